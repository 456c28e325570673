"""Publishes files of rows, with their keys in a ledger.

All files of a write become part of the ledger in one step, or none does.
The ledger stores them as a pending batch before the first file gets its name, and settles the batch
after the last one has. If the driver is killed in between, the next job that opens the ledger
finishes that. A mark in the folder tells that job whether the folder is mounted, as for bulk jobs.
Independent of Spark.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from ...errors import Ags1Error
from ...files.jobs.publishing import end, published, settle_pending, sync_names
from ...files.keys import as_text
from ...files.ledger import (
    DONE,
    ENCRYPT,
    FAILED,
    REMOVED,
    Batch,
    Ledger,
    Row,
    check_ledger,
    open_ledger,
)
from ...files.ledger.rows import encrypted_row
from ...files.paths import SUFFIX
from ...files.staging import marks
from ...files.staging.places import open_storage
from ...keys.sidecar import Sidecar, sidecar_path
from . import staging
from .encrypted_files import encrypted_below, is_encrypted

_REWRAPPED = (
    "the ledger's keys were wrapped again while these rows were written, so the rows' own keys may "
    "be under the old master key: write the rows again"
)


class NewFile(NamedTuple):
    """A file that a task has written: its future name without the ledger's suffix, where it is
    staged (``Row.attempt``), its stored size in bytes, and its wrapped key as the document of a
    sidecar."""

    name: str
    staged: str
    size: int
    wrapped: dict[str, Any]


def ledger_rows(folder: str, new: Sequence[NewFile], job_id: str) -> list[Row]:
    """Return the rows of new files in ``folder``. Raises KeyMetadataError."""
    return [
        encrypted_row(
            os.path.join(folder, file.name + SUFFIX),
            file.name,
            file.size,
            Sidecar.from_bytes(as_text(file.wrapped).encode()),
            job_id,
            source=f"write:{job_id}",
            attempt=file.staged,
        )
        for file in new
    ]


def rewrappings(ledger_location: str | None) -> frozenset[str]:
    """Return ``Ledger.rewrappings``, none if there is no ledger yet. Raises OSError."""
    if ledger_location is not None:
        with contextlib.suppress(FileNotFoundError):
            with open_ledger(ledger_location, writing=False) as ledger:
                return ledger.rewrappings()
    return frozenset()


def commit_to_ledger(
    ledger_location: str,
    folder: str,
    rows: Sequence[Row],
    seen: frozenset[str],
    *,
    overwrite: bool,
) -> None:
    """Give the files of ``rows`` their names, and the ledger their keys; ``overwrite``: remove all
    other encrypted files of ``folder``. ``seen`` are the ``rewrappings`` from before the keys of
    ``rows`` were made: since another one has begun, these keys may have the old master key.

    Raises OSError and Ags1Error; then no file has got a name. Only after UnknownOutcomeError a file
    may have one: ``take_back``, or the next job that opens the ledger, decides. If two overwrite a
    folder at the same time, the files of both stay.
    """
    old: list[str] = []
    with open_ledger(ledger_location, writing=True) as ledger:
        settle_pending(ledger)
        gone: list[Row] = []
        if overwrite:
            below = folder.rstrip("/") + "/"
            inside = (row for row in ledger.done(ENCRYPT).values() if row.target.startswith(below))
            known = [row for row in inside if is_encrypted(row.target.removeprefix(below))]
            gone = [_removed(row) for row in known]
            # In S3 a folder exists only if it has a file.
            with contextlib.suppress(FileNotFoundError):
                old = encrypted_below(folder, {row.target for row in known})
        if rows or gone:
            _commit(ledger, folder, [*rows, *gone], seen)
    for path in old:
        remove_with_sidecar(path)


def take_back(ledger_location: str, job_id: str) -> None:
    """Undo what an interrupted commit of a job has done. Raises OSError."""
    try:
        check_ledger(ledger_location)
    except FileNotFoundError:
        return
    with open_ledger(ledger_location, writing=True) as ledger:
        for batch in ledger.pending():
            if any(row.job_id == job_id for row in batch.rows):
                _give_up(ledger, batch, "Ags1Error", "the commit was interrupted")
        if (folder := ledger.killed().get(job_id)) is not None:
            end(ledger, job_id, folder)


def remove_with_sidecar(path: str) -> None:
    """Remove an encrypted file and then its sidecar, if it has one."""
    staging.remove(path)
    staging.remove(sidecar_path(path))


def _commit(ledger: Ledger, folder: str, rows: list[Row], seen: frozenset[str]) -> None:
    # One at the most: without new files, nothing is staged.
    jobs = {row.job_id for row in rows if row.attempt is not None}
    for job_id in jobs:
        marks.leave(open_storage(folder), job_id, folder, durable=True)
        ledger.begin(job_id, folder)
        # A rewrapping that begins after this finds the job, or its rows.
        if ledger.rewrappings() != seen:
            raise Ags1Error(_REWRAPPED, file=ledger.location)
    _publish(ledger, rows)
    for job_id in jobs:
        end(ledger, job_id, folder)


def _publish(ledger: Ledger, rows: list[Row]) -> None:
    batch = ledger.prepare(rows)
    settled = published(rows)
    failed = next((row for row in settled if row.status == FAILED), None)
    if failed is None:
        sync_names(settled)
        ledger.settle(batch, settled)
        return
    assert failed.error_kind is not None
    assert failed.error is not None
    _give_up(ledger, batch, failed.error_kind, failed.error)
    raise Ags1Error(f"{failed.error_kind}: {failed.error}", file=failed.target)


def _give_up(ledger: Ledger, batch: Batch, kind: str, error: str) -> None:
    # First the ledger, then the files: without a key in the ledger no file is read.
    rows = [row for row in batch.rows if row.status == DONE]
    ledger.settle(batch, [_failed(row, kind, error) for row in rows])
    for row in rows:
        # No other job writes a file of this name.
        if f"-{row.job_id}-" in os.path.basename(row.target) and not row.replaces:
            staging.remove(row.target)


_NO_FILE: Any = dict.fromkeys("target_size key_metadata key_id master_key_id attempt".split())


def _failed(row: Row, kind: str, error: str) -> Row:
    # The row keeps its key, because the file may not be removable.
    return row._replace(status=FAILED, error_kind=kind, error=error, target_size=None, attempt=None)


def _removed(row: Row) -> Row:
    return row._replace(status=REMOVED, finished_ms=time.time_ns() // 1_000_000, **_NO_FILE)

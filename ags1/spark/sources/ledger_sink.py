"""Publishing the files that rows were written to, with their keys in a job's ledger.

All files of a write, or of a stream's batch, become part of the ledger in one step, or none does:
a batch of the ledger is stored as pending before the first file gets its name, and settled after
the last one has, which whoever opens the ledger next does for a driver that was killed in between.
Knows nothing of Spark.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from ... import layout
from ...errors import Ags1Error
from ...keys.sidecar import Sidecar, sidecar_path
from ..bulk.publishing import published, settle_pending, sync_names
from ..bulk.running import SUFFIX
from ..ledger import DONE, ENCRYPT, FAILED, REMOVED, Batch, Ledger, Row
from ..storage.protocol import ledger_folder
from . import sink_folder
from .sealed_files import encrypted_below, is_encrypted

# Others write for moments at a time, but for a bulk job.
LOCK_SECONDS = 60.0
_POLL_SECONDS = 0.1


class NewFile(NamedTuple):
    """A file that a task has written: the name it is to have but for the ledger's suffix, where it
    is staged (``Row.attempt``), its stored size in bytes, and its wrapped key, the document of a
    sidecar."""

    name: str
    staged: str
    size: int
    wrapped: dict[str, Any]


def rows_of(folder: str, new: Sequence[NewFile], job_id: str, source: str) -> list[Row]:
    """Return the rows of new files in ``folder``. Raises KeyMetadataError."""
    return [_row(folder, file, job_id, source) for file in new]


def commit_to_ledger(
    folder_of_ledger: str,
    folder: str,
    rows: Sequence[Row],
    *,
    overwrite: bool = False,
    is_done: Callable[[Ledger], bool] | None = None,
) -> None:
    """Give the files of ``rows`` their names, and their keys to the ledger; with ``overwrite`` take
    all other encrypted files of ``folder`` away. Where ``is_done`` says that the ledger has it all
    already, remove what the rows have staged.

    Raises OSError and Ags1Error; then no file has got a name, unless it is UnknownOutcomeError,
    after which ``take_back`` or whoever opens the ledger next decides. BlockingIOError means that
    somebody else has been writing to the ledger for a minute.
    """
    old: list[str] = []
    with _opened(folder_of_ledger) as ledger:
        settle_pending(ledger)
        if is_done is not None and is_done(ledger):
            sink_folder.withdraw(rows)
            return
        gone: list[Row] = []
        if overwrite:
            below = folder.rstrip("/") + "/"
            known = {
                target: row
                for target, row in ledger.done(ENCRYPT).items()
                if target.startswith(below) and is_encrypted(target.removeprefix(below))
            }
            gone = [_removed(row) for row in known.values()]
            # In S3 there is no folder before there is a file.
            with contextlib.suppress(FileNotFoundError):
                old = encrypted_below(folder, known)
        if rows or gone:
            _commit(ledger, [*rows, *gone])
    for path in old:
        remove_with_sidecar(path)


def take_back(folder_of_ledger: str, job_id: str) -> None:
    """Undo what a commit of a job has done that did not come to its end. Raises OSError."""
    if not os.path.isdir(ledger_folder(folder_of_ledger)):
        return
    with _opened(folder_of_ledger) as ledger:
        for batch in ledger.pending():
            if any(row.job_id == job_id for row in batch.rows):
                _give_up(ledger, batch, "Ags1Error", "the commit was broken off")


def remove_with_sidecar(path: str) -> None:
    """Remove an encrypted file and then its sidecar, where there is one."""
    sink_folder.remove(path)
    sink_folder.remove(sidecar_path(path))


@contextlib.contextmanager
def _opened(folder: str) -> Iterator[Ledger]:
    """Open a ledger to write to, once nobody else does."""
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            ledger = Ledger(folder, writing=True)
            break
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_POLL_SECONDS)
    with ledger:
        yield ledger


def _commit(ledger: Ledger, rows: list[Row]) -> None:
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
    # First what counts, then the names: nobody reads what the ledger has no key of.
    rows = [row for row in batch.rows if row.status == DONE]
    ledger.settle(batch, [_failed(row, kind, error) for row in rows])
    for row in rows:
        # A name that no other job has.
        if f"-{row.job_id}-" in os.path.basename(row.target) and not row.replaces:
            sink_folder.remove(row.target)


def _row(folder: str, file: NewFile, job_id: str, source: str) -> Row:
    document = json.dumps(file.wrapped, separators=(",", ":"))
    sidecar = Sidecar.from_bytes(document.encode())
    return Row(
        operation=ENCRYPT,
        source=source,
        target=os.path.join(folder, file.name + SUFFIX),
        relative_path=file.name,
        source_size=layout.plaintext_size(file.size),
        source_version="",
        target_size=file.size,
        status=DONE,
        error_kind=None,
        error=None,
        key_metadata=document,
        key_id=sidecar.key_id,
        master_key_id=sidecar.encryption_keys[0].encrypted_by_id,
        plaintext_hmac=None,
        attempt=file.staged,
        replaces=False,
        job_id=job_id,
        finished_ms=time.time_ns() // 1_000_000,
    )


_NO_FILE: dict[str, Any] = {
    "target_size": None,
    "key_metadata": None,
    "key_id": None,
    "master_key_id": None,
    "attempt": None,
}


def _failed(row: Row, kind: str, error: str) -> Row:
    # The key stays, for a file that cannot be removed.
    return row._replace(status=FAILED, error_kind=kind, error=error, target_size=None, attempt=None)


def _removed(row: Row) -> Row:
    return row._replace(status=REMOVED, finished_ms=time.time_ns() // 1_000_000, **_NO_FILE)

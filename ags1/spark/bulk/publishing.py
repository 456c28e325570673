"""Giving files their names, and bringing to its end what a killed job has left.

A batch is pending in the ledger before the first of its files gets its name: the keys are there
first.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from ...errors import Ags1Error
from ..ledger import DONE, FAILED, Ledger, Row
from ..storage.choice import storage_of
from ..storage.protocol import REQUESTS, NothingStagedError, UnknownOutcomeError


def settle_pending(ledger: Ledger, *, durable: bool = True, root: str | None = None) -> None:
    """Bring to its end what a killed job has left: give files whose keys the ledger has their
    names, and remove what nothing will come of.

    A batch stays pending where it cannot be told now what will become of one of its files. Raises
    OSError or UnknownOutcomeError then, if files of the batch lie in ``root`` (None: anywhere):
    whoever writes there has to wait. Raises FormatError.
    """
    killed = ledger.killed()
    waiting: set[str] = set()
    trouble: OSError | UnknownOutcomeError | None = None
    for batch in ledger.pending():
        jobs = {row.job_id for row in batch.rows}
        try:
            for job_id in jobs & killed.keys():
                _find_root(ledger, job_id, killed[job_id])
            rows = published(batch.rows, again=True)
            if durable:
                sync_names(rows)
        except (OSError, UnknownOutcomeError) as error:
            waiting |= jobs
            if root is None or any(_is_below(row.target, root) for row in batch.rows):
                trouble = trouble or error
        else:
            ledger.settle(batch, rows)
    for job_id in killed.keys() - waiting:
        clear(ledger, job_id, killed[job_id])
    if trouble is not None:
        raise trouble


def _find_root(ledger: Ledger, job_id: str, root: str) -> None:
    """See that the folder of a killed job's files is there: what lies in one that is not mounted
    yet would pass for lost. Raises OSError."""
    if not storage_of(root).has_mark(job_id, root):
        note = os.path.join(ledger.folder, f"_job-{job_id}.json")
        said = (
            "the folder of a killed job's files is not there: mount it; if it is gone for good, "
            f"remove {note}"
        )
        raise FileNotFoundError(errno.ENOENT, said, root)


def _is_below(target: str, root: str) -> bool:
    return target.startswith(root.rstrip("/") + "/")


def clear(ledger: Ledger, job_id: str, root: str, folders: Iterable[str] | None = None) -> None:
    """Remove what the attempts of a job left in these folders (None: wherever below ``root``), and
    note its end; where something stays, so does the note, and the next job tries again. Nothing of
    the job may be pending."""
    try:
        storage = storage_of(root)
        is_there = storage.has_mark(job_id, root)
        is_gone = is_there and storage.clear(job_id, root, folders, ledger.staged(job_id))
    except OSError:
        return
    if is_gone:
        ledger.end(job_id)
        storage.remove_mark(job_id, root)


def published(rows: Sequence[Row], *, again: bool = False) -> list[Row]:
    """Give the files of rows that are done their names; return the rows, those that could not be
    as failed. ``again``: some of them may have their names already.

    Raises UnknownOutcomeError and, ``again``, OSError where what became of a file cannot be told:
    the rows are to stay pending.
    """
    if not any(_is_staged(row) and storage_of(row.target).is_remote for row in rows):
        return _published(rows, again, map)
    with ThreadPoolExecutor(REQUESTS, "ags1-publishing") as pool:
        return _published(rows, again, pool.map)


def sync_names(rows: Sequence[Row]) -> None:
    """Bring the names of files that are done to the disk. Raises OSError."""
    targets = [row.target for row in rows if row.status == DONE]
    if targets:
        # All targets of a batch are in one storage.
        storage_of(targets[0]).sync_names(set(map(os.path.dirname, targets)))


def has_its_name(row: Row) -> bool:
    """Whether the file of a pending row has got its name already."""
    try:
        return row.attempt is not None and storage_of(row.target).has_its_name(row)
    except NothingStagedError:
        return False


def _published(rows: Sequence[Row], again: bool, each: Callable[..., Iterable[Any]]) -> list[Row]:
    settled: list[Row] = list(each(partial(_settled, again=again), rows))
    # Not before all is told: of a row that stays pending the next job looks for it.
    list(each(_withdraw_failed, rows, settled))
    return settled


def _settled(row: Row, *, again: bool) -> Row:
    if not _is_staged(row):
        return row
    storage = storage_of(row.target)
    try:
        storage.publish(row, again=again)
    except OSError as error:
        if again and not isinstance(error, (FileExistsError, NothingStagedError)):
            raise
        # The key stays: whatever went wrong, no file is lost by it.
        return row._replace(
            status=FAILED,
            error_kind=type(error).__name__,
            error=cause(error),
            target_size=None,
            plaintext_hmac=None,
            attempt=None,
        )
    return row


def _withdraw_failed(row: Row, after: Row) -> None:
    if _is_staged(row) and not _is_staged(after):
        storage_of(row.target).withdraw(row)


def _is_staged(row: Row) -> bool:
    return row.status == DONE and row.attempt is not None


def cause(error: BaseException) -> str:
    """Return what to write in the ledger about an error."""
    if isinstance(error, Ags1Error):
        return error.message
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return str(error) or type(error).__name__

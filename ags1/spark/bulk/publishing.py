"""Giving files their names, and bringing to its end what a killed job has left.

A batch is pending in the ledger before the first of its files gets its name: the keys are there
first.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from ...errors import Ags1Error
from ..ledger import DONE, FAILED, Ledger, Row
from ..storage.choice import storage_of
from ..storage.protocol import REQUESTS, NothingStagedError


def settle_pending(ledger: Ledger, *, durable: bool = True) -> None:
    """Bring to its end what a killed job has left: give files whose keys the ledger has their
    names, and remove what nothing will come of. Raises FormatError, and OSError or
    UnknownOutcomeError where it cannot be told now what will: all stays pending then."""
    for batch in ledger.pending():
        rows = published(batch.rows, again=True)
        if durable:
            sync_names(rows)
        ledger.settle(batch, rows)
    for job_id, root in ledger.killed().items():
        clear(ledger, job_id, root)


def clear(ledger: Ledger, job_id: str, root: str, folders: Iterable[str] | None = None) -> None:
    """Remove what the attempts of a job left in these folders (None: wherever below ``root``), and
    note its end. Nothing of it may be pending. Raises OSError."""
    storage_of(root).clear(job_id, root, folders, ledger.staged(job_id))
    ledger.end(job_id)


def published(rows: Sequence[Row], *, again: bool = False) -> list[Row]:
    """Give the files of rows that are done their names; return the rows, those that could not be
    as failed. ``again``: some of them may have their names already.

    Raises UnknownOutcomeError and, ``again``, OSError where what became of a file cannot be told:
    the rows are to stay pending.
    """
    settled = partial(_settled, again=again)
    if not any(_is_staged(row) and storage_of(row.target).is_remote for row in rows):
        return list(map(settled, rows))
    with ThreadPoolExecutor(REQUESTS, "ags1-publishing") as pool:
        return list(pool.map(settled, rows))


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


def _settled(row: Row, *, again: bool) -> Row:
    if not _is_staged(row):
        return row
    storage = storage_of(row.target)
    try:
        storage.publish(row, again=again)
    except OSError as error:
        if again and not isinstance(error, (FileExistsError, NothingStagedError)):
            raise
        storage.withdraw(row)
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


def _is_staged(row: Row) -> bool:
    return row.status == DONE and row.attempt is not None


def cause(error: BaseException) -> str:
    """Return what to write in the ledger about an error."""
    if isinstance(error, Ags1Error):
        return error.message
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return str(error) or type(error).__name__

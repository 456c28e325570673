"""Giving files their names, and bringing to its end what a killed job has left.

A batch is pending in the ledger before the first of its files gets its name: the keys are there
first.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

from ..atomic import publish
from ..errors import Ags1Error
from . import files
from .ledger import DONE, FAILED, Ledger, Row

# A file system's clock is that much coarser than the system's.
_CLOCK_TICK_MS = 20


def settle_pending(ledger: Ledger, *, durable: bool = True) -> None:
    """Bring to its end what a killed job has left: give files whose keys the ledger has their
    names, and remove what nothing will come of. Raises OSError, FormatError."""
    for batch in ledger.pending():
        rows = published(batch.rows, again=True)
        if durable:
            for folder in {os.path.dirname(row.target) for row in rows if row.status == DONE}:
                files.sync_file_system(folder)
        ledger.settle(batch, rows)
    for job_id, root in ledger.killed().items():
        files.remove_staged((folder for folder, _, _ in os.walk(root)), job_id)
        ledger.end(job_id)


def published(rows: Sequence[Row], *, again: bool = False) -> list[Row]:
    """Give the files of rows that are done their names; return the rows, those that could not be
    as failed. ``again``: some of them may have their names already."""
    settled = []
    for row in rows:
        if row.status == DONE and row.attempt is not None:
            staged = os.path.join(os.path.dirname(row.target), row.attempt)
            try:
                _publish(staged, row, again=again)
            except OSError as error:
                files.remove(staged)
                row = row._replace(
                    status=FAILED,
                    error_kind=type(error).__name__,
                    error=cause(error),
                    target_size=None,
                    key_metadata=None,
                    key_id=None,
                    master_key_id=None,
                    plaintext_hmac=None,
                    attempt=None,
                )
        settled.append(row)
    return settled


def has_its_name(row: Row) -> bool:
    """Whether the file of a pending row has got its name already."""
    folder = os.path.dirname(row.target)
    return row.attempt is not None and not os.path.lexists(os.path.join(folder, row.attempt))


def _publish(staged: str, row: Row, *, again: bool) -> None:
    try:
        status = os.stat(staged)
    except FileNotFoundError:
        if again and _is_published(row):
            return
        raise
    if again and not files.is_staged(os.path.basename(staged), row.job_id):
        raise OSError(errno.EINVAL, "the ledger names no staged file", staged)
    if status.st_size != row.target_size:
        raise OSError(errno.EIO, "what was written has another size than it should", staged)
    if again and status.st_nlink > 1 and os.path.samefile(staged, row.target):
        os.unlink(staged)
        return
    publish(staged, row.target, overwrite=row.replaces, durable=False)


def _is_published(row: Row) -> bool:
    """Whether a target is the one that was staged rather than the one to be replaced: a file's
    status changes when it gets another name."""
    status = os.stat(row.target)
    changed_ms = status.st_ctime_ns // 1_000_000
    is_new = not row.replaces or changed_ms >= row.finished_ms - _CLOCK_TICK_MS
    return is_new and status.st_size == row.target_size


def cause(error: BaseException) -> str:
    """Return what to write in the ledger about an error."""
    if isinstance(error, Ags1Error):
        return error.message
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return str(error) or type(error).__name__

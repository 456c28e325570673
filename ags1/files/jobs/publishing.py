"""Gives files their names, and finishes the work of killed jobs.

A batch is pending in the ledger, with all its keys, before the first of its files gets its name::

    staged      the file is complete, under a temporary name; the ledger has no key
    pending     the ledger has the file's key, in a batch that is not settled
    published   the file has its name; if the job writes sidecars, it has its own
    settled     the ledger has the file as done, or as failed

If the driver is killed while the batch is pending, ``settle_pending`` of the next job goes on here.

**Tasks that outlast their job** (a server of Spark Connect goes on, and an executor finds out late
that its driver is gone) must not leave plaintext::

    a task, in a mounted folder   creates a file, looks at the job's mark, writes to the file
    elsewhere                     writes files, looks at the mark each second and at its end
    whoever clears                ends the mark; then lists and removes what is staged

A task that finds the mark gone removes what it has staged, and fails. What was written before the
last look is listed. So nothing stays, unless a task's process is killed between the end of the
mark and its next look. Therefore the ledger's note of a job whose tasks may still run stays for
``LATE_SECONDS``; jobs clear again until then, and once more before they remove the note.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from ...errors import KeyMetadataError
from ...host.pools import map_in_threads
from ...keys.sidecar import START_SIZE, Sidecar, first_nonce
from ..ledger import DONE, FAILED, JobNote, Ledger, Row
from ..publish import publish
from ..sidecars import Beside, OldKeys, StoragePlace
from ..staging import local_files, marks
from ..staging.local import LocalStorage
from ..staging.places import open_storage
from ..staging.protocol import REQUESTS, NothingStagedError, UnknownOutcomeError
from ..work.tasks import cause

# How long a task may need from one look at its job's mark to the next, with a large margin.
LATE_SECONDS = 600


def settle_pending(
    ledger: Ledger, *, durable: bool = True, root: str | None = None
) -> Mapping[str, JobNote]:
    """Finish the work of killed jobs: give the files whose keys the ledger has their names, and
    remove other staged files. Return the notes of these jobs; some may stay. A batch stays pending
    if the outcome of one of its files is not known yet. If files of such a batch are in ``root``
    (None: anywhere), a new job must not write there: raises OSError or UnknownOutcomeError. Raises
    FormatError."""
    notes = ledger.notes()
    killed = {job_id: note for job_id, note in notes.items() if note.runs_in is None}
    below = "" if root is None else root.rstrip("/") + "/"  # every path begins with ""
    unsettled: set[str] = set()
    first_error: OSError | UnknownOutcomeError | None = None
    for batch in ledger.pending():
        jobs = {row.job_id for row in batch.rows}
        if jobs & (notes.keys() - killed.keys()):
            continue
        try:
            for job_id in jobs & killed.keys():
                _find_root(ledger, job_id, killed[job_id].folder)
            sidecars = any(killed[job_id].sidecars for job_id in jobs & killed.keys())
            rows = published(batch.rows, again=True, sidecars=sidecars)
            if durable:
                sync_names(rows)
        except (OSError, UnknownOutcomeError) as error:
            unsettled |= jobs
            if any(row.target.startswith(below) for row in batch.rows):
                first_error = first_error or error
        else:
            ledger.settle(batch, rows)
    for job_id in killed.keys() - unsettled:
        note = killed[job_id]
        if not note.cleared_ms or _is_old(note):
            clear(ledger, job_id, note.folder, late=note)
    if first_error is not None:
        raise first_error
    return killed


def _find_root(ledger: Ledger, job_id: str, root: str) -> None:
    """Raise OSError if the folder of a killed job's files is not mounted. Otherwise the job's files
    would count as lost."""
    if not marks.is_there(open_storage(root), job_id, root):
        message = "the folder of a killed job's files is not there: mount it; if it is lost for "
        message += f"good, run: ags1 spark ledger forget {ledger.location} {job_id}"
        raise FileNotFoundError(errno.ENOENT, message, root)


def end(ledger: Ledger, job_id: str, root: str) -> None:
    """Note that a job has ended, and remove its mark."""
    ledger.end(job_id)
    marks.remove(open_storage(root), job_id, root)


def clear_again(ledger: Ledger) -> None:
    """Remove what late tasks have left of jobs that were cleared before."""
    for job_id, note in ledger.notes().items():
        if note.cleared_ms and note.runs_in is None:
            clear(ledger, job_id, note.folder, late=note)


def clear(
    ledger: Ledger,
    job_id: str,
    root: str,
    folders: Iterable[str] | None = None,
    *,
    late: JobNote | None = None,
) -> None:
    """Remove the staged files of a job in these folders (None: anywhere below ``root``), and note
    its end. If something cannot be removed, the ledger's note of the job stays, and the next job
    tries again. The note also stays if tasks of the job may still run; then ``late`` is the note.
    No batch of the job may be pending."""
    try:
        storage = open_storage(root)
        if not marks.is_there(storage, job_id, root):
            return
        marks.end(storage, job_id, root)
        if not storage.clear(job_id, root, folders, ledger.staged(job_id)):
            return
    except OSError:
        return
    if late is None or (late.cleared_ms and _is_old(late)):
        end(ledger, job_id, root)
    elif not late.cleared_ms:
        ledger.note_cleared(job_id, late._replace(cleared_ms=_now_ms()))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _is_old(note: JobNote) -> bool:
    return _now_ms() >= note.cleared_ms + LATE_SECONDS * 1000


def published(rows: Sequence[Row], *, again: bool = False, sidecars: bool = False) -> list[Row]:
    """Give the files of rows that are done their names, and with ``sidecars`` a sidecar each.
    Return the rows; those whose files could not be named are failed. With ``again``, some files may
    have their names already. Raises UnknownOutcomeError; OSError for a sidecar that has an old key
    beside the new one and cannot be changed; and, with ``again``, OSError if the outcome of a file
    is not known. The rows have to stay pending then."""
    name = partial(_published_row, again=again, sidecars=sidecars)
    if not any(_is_staged(row) and open_storage(row.target).is_remote for row in rows):
        return _published(rows, name, map)
    return _published(rows, name, partial(map_in_threads, REQUESTS))


def sync_names(rows: Sequence[Row]) -> None:
    """Sync the names of files that are done to the disk. Raises OSError."""
    targets = [row.target for row in rows if row.status == DONE]
    # All targets of a batch are in one storage.
    if targets and not open_storage(targets[0]).is_remote:
        local_files.sync_names(set(map(os.path.dirname, targets)))


def _published(
    rows: Sequence[Row], name: Callable[[Row], Row], each: Callable[..., Iterable[Any]]
) -> list[Row]:
    settled: list[Row] = list(each(name, rows))
    # This comes after all outcomes are known: the next job needs the staged files of pending rows.
    list(each(_withdraw_failed, rows, settled))
    return settled


def _published_row(row: Row, *, again: bool, sidecars: bool) -> Row:
    if not _is_staged(row):
        return row
    is_put = False

    def put() -> None:
        nonlocal is_put
        try:
            open_storage(row.target).publish(row, again=again)
        except (NothingStagedError, FileExistsError):
            if not _has_its_content(row):
                raise
        is_put = True

    def may_be_named(error: BaseException) -> bool:
        # If our staged file is gone, a job that has taken this one over may have given it its name.
        if not isinstance(error, OSError) or (isinstance(error, NothingStagedError) and not again):
            return True
        return again and not isinstance(error, (FileExistsError, NothingStagedError))

    try:
        if sidecars:
            publish(_keystore(row), put, may_be_named)
        else:
            put()
    except OSError as error:
        if is_put or (again and not isinstance(error, (FileExistsError, NothingStagedError))):
            raise
        # The row keeps its key, so that no file is lost, whatever went wrong.
        row = row._replace(status=FAILED, error_kind=type(error).__name__, error=cause(error))
        return row._replace(target_size=None, attempt=None)
    return row


def _has_its_content(row: Row) -> bool:
    """Whether the target is the row's encrypted file: another job, which took this one for dead,
    may have given it its name."""
    with contextlib.suppress(OSError):
        start = open_storage(row.target).read(row.target, 0, START_SIZE)
        return bool(row.nonce) and (first_nonce(start) or b"").hex() == row.nonce
    return False


def _keystore(row: Row) -> Beside:
    """Return the sidecar of a row's target, and the row's key for it. Old keys stay if the job
    replaces no file. All this can be repeated after a kill: it looks at what is there."""
    try:
        sidecar = Sidecar.from_bytes((row.key_metadata or "").encode())
    except KeyMetadataError as error:  # the row is damaged
        raise OSError(errno.EINVAL, error.message, row.target) from None
    return _Beside(_JobPlace(row), sidecar, OldKeys.RETIRE if row.replaces else OldKeys.KEEP)


class _Beside(Beside):
    def add(self) -> bool:
        """Raises OSError alone: it is an error of this file."""
        try:
            return super().add()
        except KeyMetadataError as error:
            path = str(error.file)
            raise OSError(errno.EINVAL, f"{error.message}: {path}", path) from None


class _JobPlace(StoragePlace):
    """The sidecar beside a row's target."""

    def __init__(self, row: Row) -> None:
        super().__init__(open_storage(row.target), row.target)
        self._row = row

    def write(self, data: bytes) -> None:
        if isinstance(self.storage, LocalStorage):
            self.storage.write_beside(self._row, self.path, data)
        else:
            super().write(data)


def _withdraw_failed(row: Row, after: Row) -> None:
    if _is_staged(row) and not _is_staged(after):
        open_storage(row.target).withdraw(row)


def _is_staged(row: Row) -> bool:
    return row.status == DONE and row.attempt is not None

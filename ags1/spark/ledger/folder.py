"""A ledger that is a folder of the driver's file system, with Parquet files::

    batch-<number>.parquet      settled rows; the highest number is the newest (``segments``)
    _pending-<number>.parquet   rows whose files may not all have their names yet
    _job-<job id>.json          a job that is running, or was killed
    _staged-<job id>-….json     the uploads that it has begun; they are aborted with it
    _lock                       held by the one job that writes

A batch is stored as pending before the first of its files gets its name, and settled in one step
after the last one has. So no crash leaves a file without its key, or a settled row without its
file. Readers of Parquet folders pass over names that begin with ``_``. Knows nothing of Spark.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import BinaryIO

from ... import private_file
from ...atomic import AtomicFile, sync_folder
from ...errors import KmsAccessDeniedError
from ...kms.passphrase import check_owner
from .base import BUSY, JobNote
from .rows import Batch, Row, read_parquet, write_parquet
from .segments import (
    NO_NOTE,
    Numbered,
    Segment,
    SegmentLedger,
    is_batch,
    job_note,
    read_batches,
    segment_name,
    segments,
    write_batches,
)

_PENDING = re.compile(r"_pending-(\d{12})\.parquet")
_JOB = re.compile(r"_job-([0-9a-f]+)\.json")
_MAX_JOB_SIZE = 1 << 20
_MAX_STAGED_SIZE = 64 << 20
# Far from that size: URLs and the ids of uploads have a few hundred bytes each.
_STAGED_IN_A_NOTE = 20_000


class FolderLedger(SegmentLedger):
    """A folder of Parquet files. ``writing`` takes its lock, which one job at a time holds. Raises
    BlockingIOError while another job writes, OSError, FormatError for a file there that is not a
    ledger's, and KmsAccessDeniedError for a folder that other users may write to: jobs move and
    remove the files that a ledger names."""

    def __init__(self, folder: str, *, writing: bool, durable: bool = True) -> None:
        self.folder = self.location = self.own_folder = folder
        self._durable = durable
        self._lock = -1
        if not writing:
            os.listdir(self.folder)
            return
        os.makedirs(self.folder, mode=0o700, exist_ok=True)
        _refuse_others(self.folder)
        path = os.path.join(self.folder, "_lock")
        self._lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise BlockingIOError(errno.EAGAIN, BUSY, self.folder) from None
        settled = self._segments()
        numbers = [segment.last for segment in settled] + [number for number, _ in self._pending()]
        self._next = 1 + max(numbers, default=0)
        counting = {segment.name for segment in settled}
        for name in os.listdir(self.folder):
            if is_batch(name) and name not in counting:  # of a ``compact`` that was killed
                os.unlink(self._path(name))

    def close(self) -> None:
        """Release the lock."""
        fd, self._lock = self._lock, -1
        if fd >= 0:
            os.close(fd)

    def prepare(self, rows: Sequence[Row]) -> Batch:
        batch = Batch(self._next, rows)
        self._next += 1
        write_rows(self._path(f"_pending-{batch.number:012}.parquet"), rows, durable=self._durable)
        return batch

    def settle(self, batch: Batch, rows: Sequence[Row]) -> None:
        pending = self._path(f"_pending-{batch.number:012}.parquet")
        settled = self._path(f"batch-{batch.number:012}.parquet")
        if rows == batch.rows:
            os.rename(pending, settled)
            if self._durable:
                sync_folder(self.folder)
        else:
            write_rows(settled, rows, durable=self._durable)
            os.unlink(pending)

    def pending(self) -> Iterator[Batch]:
        pending = self._pending()
        settled = set(self.numbers())
        for number, path in pending:
            if number in settled:  # with other rows, just before the kill
                if self._lock >= 0:
                    os.unlink(path)
            elif (rows := _rows_if_there(path)) is not None:
                yield Batch(number, rows)

    def begin(self, job_id: str, folder: str, *, sidecars: bool = False) -> None:
        self._note(job_id, JobNote(folder, sidecars), overwrite=False)

    def note_cleared(self, job_id: str, note: JobNote) -> None:
        self._note(job_id, note, overwrite=True)

    def _note(self, job_id: str, note: JobNote, *, overwrite: bool) -> None:
        data = json.dumps(note._asdict()).encode() + b"\n"
        path = self._path(f"_job-{job_id}.json")
        private_file.write(path, data, overwrite=overwrite, durable=self._durable)

    def end(self, job_id: str) -> None:
        for name in self._staged_names(job_id):
            os.unlink(self._path(name))
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path(f"_job-{job_id}.json"))

    def note_staged(self, job_id: str, number: int, staged: Mapping[str, str]) -> None:
        begun = list(staged.items())
        for part, first in enumerate(range(0, len(begun), _STAGED_IN_A_NOTE)):
            data = json.dumps(begun[first : first + _STAGED_IN_A_NOTE]).encode() + b"\n"
            path = self._staged_path(job_id, number, part)
            private_file.write(path, data, overwrite=False, durable=self._durable)

    def forget_staged(self, job_id: str, number: int) -> None:
        with contextlib.suppress(FileNotFoundError):
            for part in itertools.count():
                os.unlink(self._staged_path(job_id, number, part))

    def staged(self, job_id: str) -> list[tuple[str, str]]:
        staged: list[tuple[str, str]] = []
        for name in self._staged_names(job_id):
            data, _ = private_file.read(self._path(name), _MAX_STAGED_SIZE)
            with contextlib.suppress(ValueError, TypeError, RecursionError):
                staged += [(str(target), str(shared)) for target, shared in json.loads(data)]
        return staged

    def notes(self) -> dict[str, JobNote]:
        notes: dict[str, JobNote] = {}
        for name in os.listdir(self.folder):
            if match := _JOB.fullmatch(name):
                data, _ = private_file.read(self._path(name), _MAX_JOB_SIZE)
                with contextlib.suppress(*NO_NOTE):
                    notes[match[1]] = job_note(data)
        return notes

    def how_to_forget(self, job_id: str) -> str:
        return f"remove {self._path(f'_job-{job_id}.json')}"

    def settled_up_to(self) -> int:
        # Before the pending ones, so that each earlier batch that is pending is seen.
        settled = self.numbers()
        pending = [number for number, _ in self._pending()]
        first = min(set(pending).difference(settled), default=None)
        last = max(settled, default=0)
        return last if first is None else min(last, first - 1)

    def _segments(self) -> list[Segment]:
        return segments(os.listdir(self.folder))

    def _read(self, segment: Segment, columns: Sequence[str]) -> list[tuple[int, list[Row]]]:
        path = self._path(segment.name)
        return list(read_batches(path, segment, columns, path))

    def _write(self, batches: Sequence[Numbered], old: Sequence[Segment]) -> None:
        name = segment_name(batches[0][0], batches[-1][0])
        with _new_file(self._path(name), durable=self._durable, overwrite=True) as file:
            write_batches(file, batches)
        for segment in old:
            if segment.name != name:
                os.unlink(self._path(segment.name))

    def _pending(self) -> list[tuple[int, str]]:
        return sorted(
            (int(match[1]), self._path(name))
            for name in os.listdir(self.folder)
            if (match := _PENDING.fullmatch(name))
        )

    def _path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def _staged_path(self, job_id: str, number: int, part: int) -> str:
        return self._path(f"_staged-{job_id}-{number:06}-{part}.json")

    def _staged_names(self, job_id: str) -> list[str]:
        return [name for name in os.listdir(self.folder) if name.startswith(f"_staged-{job_id}-")]


def _refuse_others(folder: str) -> None:
    status = os.stat(folder)
    check_owner(status, folder, "ledger's folder")
    if status.st_mode & 0o022:
        raise KmsAccessDeniedError(
            f"others may write to this ledger (mode {stat.S_IMODE(status.st_mode):04o}) and "
            "could make a job move or remove files: run chmod go-w on it",
            file=folder,
        )


def _rows_if_there(path: str, columns: Iterable[str] = Row._fields) -> list[Row] | None:
    """Return a pending batch's rows, None if it was settled since it was listed."""
    try:
        return read_rows(path, columns)
    except FileNotFoundError:
        return None


def write_rows(path: str, rows: Sequence[Row], *, durable: bool) -> None:
    """Write a batch to a new file, whole or not at all. Raises OSError."""
    with _new_file(path, durable=durable, overwrite=False) as file:
        write_parquet(file, rows)


@contextlib.contextmanager
def _new_file(path: str, *, durable: bool, overwrite: bool) -> Iterator[BinaryIO]:
    with (
        AtomicFile(path, overwrite=overwrite, durable=durable, mode=0o600) as out,
        open(out.fd, "wb", closefd=False) as file,
    ):
        yield file


def read_rows(path: str, columns: Iterable[str] = Row._fields) -> list[Row]:
    """Return a batch's rows, with None in columns that are not asked for. Raises FormatError."""
    return read_parquet(path, columns, path)

"""A ledger that is a folder of the driver's file system, with Parquet files::

    batch-<number>.parquet      settled rows; the highest number is the newest
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

from ... import private_file
from ...atomic import AtomicFile, sync_folder
from ...errors import KmsAccessDeniedError
from ...kms.passphrase import check_owner
from .base import Ledger
from .rows import Batch, Row, read_parquet, write_parquet

_BATCH = re.compile(r"batch-(\d{12})\.parquet")
_PENDING = re.compile(r"_pending-(\d{12})\.parquet")
_JOB = re.compile(r"_job-([0-9a-f]+)\.json")
_MAX_JOB_SIZE = 1 << 20
_MAX_STAGED_SIZE = 64 << 20
# Far from that size: URLs and the ids of uploads have a few hundred bytes each.
_STAGED_IN_A_NOTE = 20_000


class FolderLedger(Ledger):
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
            said = "another job is writing to this ledger: wait for it"
            raise BlockingIOError(errno.EAGAIN, said, self.folder) from None
        self._next = 1 + max((number for number, _ in self._files(_BATCH, _PENDING)), default=0)

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
        pending = self._files(_PENDING)
        settled = {number for number, _ in self._files(_BATCH)}
        for number, path in pending:
            if number in settled:  # with other rows, just before the kill
                if self._lock >= 0:
                    os.unlink(path)
            elif (rows := _rows_if_there(path)) is not None:
                yield Batch(number, rows)

    def begin(self, job_id: str, folder: str) -> None:
        data = json.dumps({"folder": folder}).encode() + b"\n"
        private_file.write(
            self._path(f"_job-{job_id}.json"), data, overwrite=False, durable=self._durable
        )

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

    def killed(self) -> dict[str, str]:
        folders: dict[str, str] = {}
        for name in os.listdir(self.folder):
            if match := _JOB.fullmatch(name):
                data, _ = private_file.read(self._path(name), _MAX_JOB_SIZE)
                with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
                    folders[match[1]] = str(json.loads(data)["folder"])
        return folders

    def numbers(self) -> list[int]:
        return [number for number, _ in self._files(_BATCH)]

    def replace(self, number: int, rows: Sequence[Row]) -> None:
        path = self._path(f"batch-{number:012}.parquet")
        write_rows(path, rows, durable=self._durable, overwrite=True)

    def how_to_forget(self, job_id: str) -> str:
        return f"remove {self._path(f'_job-{job_id}.json')}"

    def settled_up_to(self) -> int:
        # Before the pending ones, so that each earlier batch that is pending is seen.
        settled = [number for number, _ in self._files(_BATCH)]
        pending = [number for number, _ in self._files(_PENDING)]
        first = min(set(pending).difference(settled), default=None)
        last = max(settled, default=0)
        return last if first is None else min(last, first - 1)

    def rows_between(
        self, after: int, until: int | None = None, columns: Sequence[str] = Row._fields
    ) -> Iterator[tuple[int, list[Row]]]:
        for number, path in self._files(_BATCH):
            if after < number and (until is None or number <= until):
                yield number, read_rows(path, columns)

    def _files(self, *patterns: re.Pattern[str]) -> list[tuple[int, str]]:
        return sorted(
            (int(match[1]), self._path(name))
            for name in os.listdir(self.folder)
            for pattern in patterns
            if (match := pattern.fullmatch(name))
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


def write_rows(path: str, rows: Sequence[Row], *, durable: bool, overwrite: bool = False) -> None:
    """Write a batch to a file, whole or not at all. Raises OSError."""
    with (
        AtomicFile(path, overwrite=overwrite, durable=durable, mode=0o600) as out,
        open(out.fd, "wb", closefd=False) as file,
    ):
        write_parquet(file, rows)


def read_rows(path: str, columns: Iterable[str] = Row._fields) -> list[Row]:
    """Return a batch's rows, with None in columns that are not asked for. Raises FormatError."""
    return read_parquet(path, columns, path)

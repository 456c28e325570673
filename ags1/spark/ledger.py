"""The ledger: what became of each file of a job, and its wrapped key.

If the ledger is lost, the files cannot be decrypted. Its folder has these files::

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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, overload

import pyarrow as pa
import pyarrow.parquet as pq

from .. import private_file
from ..atomic import AtomicFile, sync_folder
from ..errors import FormatError, KmsAccessDeniedError
from ..kms.passphrase import check_owner
from .paths import ledger_folder

ENCRYPT, DECRYPT = "encrypt", "decrypt"
DONE, FAILED, SKIPPED, REMOVED = "done", "failed", "skipped", "removed"

_BATCH = re.compile(r"batch-(\d{12})\.parquet")
_PENDING = re.compile(r"_pending-(\d{12})\.parquet")
_JOB = re.compile(r"_job-([0-9a-f]+)\.json")
_MAX_JOB_SIZE = 1 << 20
_MAX_STAGED_SIZE = 64 << 20
# A batch is of one wave.
_MAX_ROWS = 5_000_000
# Far from that size: URLs and the ids of uploads have a few hundred bytes each.
_STAGED_IN_A_NOTE = 20_000

T = TypeVar("T")


class Row(NamedTuple):
    """What became of one file.

    Sizes are bytes, times are ms since 1970. ``source_version`` changes with the source: a local
    file's time in ns, S3's ETag. ``key_metadata`` is the JSON document of a sidecar with the file's
    wrapped key, ``key_id`` that key's id there, ``master_key_id`` the master key in the KMS.
    ``error_kind`` is the exception's name. ``attempt`` tells the storage what was written: for a
    local file its path from the target's folder, a tab, its inode and time; for S3 JSON of the
    upload and its parts; otherwise a URL. ``replaces``: the target may replace an older one.
    ``plaintext_hmac``, if it was asked for, is HMAC-SHA-256 under a key derived from the KEK
    (``FileKeys.hmac_key``): a plain hash would tell which files are equal. A failed row has its
    key if its file may exist all the same.
    """

    operation: str
    source: str
    target: str
    relative_path: str
    source_size: int
    source_version: str
    target_size: int | None
    status: str
    error_kind: str | None
    error: str | None
    key_metadata: str | None
    key_id: str | None
    master_key_id: str | None
    plaintext_hmac: bytes | None
    attempt: str | None
    replaces: bool
    job_id: str
    finished_ms: int


_TYPES: dict[str, pa.DataType] = {
    "source_size": pa.int64(),
    "target_size": pa.int64(),
    "plaintext_hmac": pa.binary(),
    "replaces": pa.bool_(),
    "finished_ms": pa.int64(),
}
# Columns that are null in no row: those whose fields cannot be None.
_ALWAYS = frozenset(name for name, kind in Row.__annotations__.items() if "None" not in str(kind))
SCHEMA = pa.schema([(name, _TYPES.get(name, pa.string())) for name in Row._fields])


class Batch(NamedTuple):
    """A pending batch and its rows."""

    number: int
    rows: Sequence[Row]


class Ledger:
    """A folder of Parquet files. ``writing`` takes its lock, which one job at a time holds. Raises
    BlockingIOError while another job writes, OSError, FormatError for a file there that is not a
    ledger's, and KmsAccessDeniedError for a folder that other users may write to: jobs move and
    remove the files that a ledger names."""

    def __init__(self, folder: str, *, writing: bool, durable: bool = True) -> None:
        self.folder = ledger_folder(folder)
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

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def rows(self, columns: Sequence[str] = Row._fields, *, pending: bool = False) -> list[Row]:
        """Return the settled rows, oldest first, with None in columns that are not asked for;
        ``pending`` adds the pending ones, in the order of their batches."""
        batches: dict[int, list[Row]] = {}
        # Before the settled ones, so that a batch which is settled meanwhile is not missed.
        for number, path in self._files(_PENDING) if pending else ():
            batches[number] = _rows_if_there(path, columns) or []
        batches.update(self.rows_between(0, None, columns))
        return [row for number in sorted(batches) for row in batches[number]]

    @overload
    def done(self, operation: str, columns: Sequence[str] = ...) -> dict[str, Row]: ...

    @overload
    def done(
        self, operation: str, columns: Sequence[str], *, keep: Callable[[Row], T]
    ) -> dict[str, T]: ...

    def done(
        self,
        operation: str,
        columns: Sequence[str] = Row._fields,
        *,
        keep: Callable[[Row], Any] = lambda row: row,
    ) -> dict[str, Any]:
        """Return by target the newest row of each file that is done and was not removed since, or
        what ``keep`` makes of it. One batch at a time is in memory besides."""
        wanted = [*columns, "operation", "status", "target"]
        newest: dict[str, Any] = {}
        batches = self.rows_between(0, None, wanted)
        for row in (row for _, rows in batches for row in rows if row.operation == operation):
            if row.status == DONE:
                newest[row.target] = keep(row)
            elif row.status == REMOVED:
                newest.pop(row.target, None)
        return newest

    def prepare(self, rows: Sequence[Row]) -> Batch:
        """Store rows as pending."""
        batch = Batch(self._next, rows)
        self._next += 1
        write_rows(self._path(f"_pending-{batch.number:012}.parquet"), rows, durable=self._durable)
        return batch

    def settle(self, batch: Batch, rows: Sequence[Row]) -> None:
        """Replace a pending batch by a settled one with ``rows``, which say what became of it."""
        pending = self._path(f"_pending-{batch.number:012}.parquet")
        settled = self._path(f"batch-{batch.number:012}.parquet")
        if rows == batch.rows:
            self.replace(settled, pending)
        else:
            write_rows(settled, rows, durable=self._durable)
            os.unlink(pending)

    def pending(self) -> Iterator[Batch]:
        """Yield the batches that a killed job left pending, or that a job is about to settle,
        oldest first. Read the settled batches afterwards, not before: otherwise a batch that is
        settled in between is missed."""
        pending = self._files(_PENDING)
        settled = {number for number, _ in self._files(_BATCH)}
        for number, path in pending:
            if number in settled:  # with other rows, just before the kill
                if self._lock >= 0:
                    os.unlink(path)
            elif (rows := _rows_if_there(path)) is not None:
                yield Batch(number, rows)

    def begin(self, job_id: str, folder: str) -> None:
        """Note that a job has begun, which stages files in and below ``folder``."""
        data = json.dumps({"folder": folder}).encode() + b"\n"
        private_file.write(
            self._path(f"_job-{job_id}.json"), data, overwrite=False, durable=self._durable
        )

    def end(self, job_id: str) -> None:
        """Note that nothing that a job staged is left."""
        for name in self._staged_names(job_id):
            os.unlink(self._path(name))
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path(f"_job-{job_id}.json"))

    def note_staged(self, job_id: str, number: int, staged: Mapping[str, str]) -> None:
        """Note the uploads that wave ``number`` of a job has begun, by target: their names do not
        tell which job they belong to."""
        begun = list(staged.items())
        for part, first in enumerate(range(0, len(begun), _STAGED_IN_A_NOTE)):
            data = json.dumps(begun[first : first + _STAGED_IN_A_NOTE]).encode() + b"\n"
            path = self._staged_path(job_id, number, part)
            private_file.write(path, data, overwrite=False, durable=self._durable)

    def forget_staged(self, job_id: str, number: int) -> None:
        """Note that no upload of a wave is left."""
        with contextlib.suppress(FileNotFoundError):
            for part in itertools.count():
                os.unlink(self._staged_path(job_id, number, part))

    def staged(self, job_id: str) -> list[tuple[str, str]]:
        """Return the uploads that a job has noted: (target, what its storage calls it) each."""
        staged: list[tuple[str, str]] = []
        for name in self._staged_names(job_id):
            data, _ = private_file.read(self._path(name), _MAX_STAGED_SIZE)
            with contextlib.suppress(ValueError, TypeError, RecursionError):
                staged += [(str(target), str(shared)) for target, shared in json.loads(data)]
        return staged

    def killed(self) -> dict[str, str]:
        """Return the folders of jobs that did not end, by job id."""
        folders: dict[str, str] = {}
        for name in os.listdir(self.folder):
            if match := _JOB.fullmatch(name):
                data, _ = private_file.read(self._path(name), _MAX_JOB_SIZE)
                with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
                    folders[match[1]] = str(json.loads(data)["folder"])
        return folders

    def batches(self) -> list[str]:
        """Return the paths of the settled batches, oldest first."""
        return [path for _, path in self._files(_BATCH)]

    def replace(self, path: str, staged: str) -> None:
        """Replace a settled batch by the file ``staged``."""
        os.rename(staged, path)
        if self._durable:
            sync_folder(self.folder)

    def settled_up_to(self) -> int:
        """Return the number of the newest settled batch with no pending batch before it, 0 if there
        is none. Batches up to that number do not change any more."""
        # Before the pending ones, so that each earlier batch that is pending is seen.
        settled = [number for number, _ in self._files(_BATCH)]
        pending = [number for number, _ in self._files(_PENDING)]
        first = min(set(pending).difference(settled), default=None)
        last = max(settled, default=0)
        return last if first is None else min(last, first - 1)

    def rows_between(
        self, after: int, until: int | None = None, columns: Sequence[str] = Row._fields
    ) -> Iterator[tuple[int, list[Row]]]:
        """Yield number and rows of each settled batch above ``after`` and up to ``until``, oldest
        first."""
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


def write_rows(path: str, rows: Sequence[Row], *, durable: bool) -> None:
    """Write a batch to a new file, whole or not at all. Raises OSError."""
    columns: Iterable[Any] = zip(*rows, strict=True) if rows else ([] for _ in Row._fields)
    arrays = [pa.array(column, kind.type) for column, kind in zip(columns, SCHEMA, strict=True)]
    table = pa.Table.from_arrays(arrays, schema=SCHEMA)
    with (
        AtomicFile(path, durable=durable, mode=0o600) as out,
        open(out.fd, "wb", closefd=False) as file,
    ):
        pq.write_table(table, file, compression="zstd")


def read_rows(path: str, columns: Iterable[str] = Row._fields) -> list[Row]:
    """Return a batch's rows, with None in columns that are not asked for. Raises FormatError."""
    wanted = frozenset(columns)
    names = [name for name in Row._fields if name in wanted]
    try:
        with pq.ParquetFile(path) as file:
            if file.metadata.num_rows > _MAX_ROWS:
                raise _damaged("no batch has so many rows", path)
            table = file.read(columns=names)
    except pa.ArrowInvalid as error:
        raise _damaged(str(error), path) from None
    if table.column_names != names:
        said = "this is not a ledger's file (columns are missing): remove it from the folder"
        raise FormatError(said, file=path)
    for name in names:
        column = table.column(name)
        if column.type != SCHEMA.field(name).type or (name in _ALWAYS and column.null_count):
            raise _damaged(f"column {name!r}", path)
    nothing = [None] * table.num_rows
    values = [table.column(name).to_pylist() if name in wanted else nothing for name in Row._fields]
    return [Row(*row) for row in zip(*values, strict=True)]


def _damaged(what: str, path: str) -> FormatError:
    return FormatError(f"the ledger is damaged ({what}): restore a copy", file=path)

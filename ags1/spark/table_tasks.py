"""What tasks do with single files of a table: look at one, or put one under a fresh key.

A file's key comes wrapped under a key of the job, and a new file's goes back so; the job's own key
is opened by the KMS, once in each process, under that process's identity. What a new file is called
has the job's name and the attempt's in it. A file's failure is a result, not the task's failure.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

from pyiceberg.io import FileIO

from ..errors import Ags1Error, KmsConfigurationError
from ..iceberg.byte_meter import ByteMeter
from ..iceberg.catalog import PlainTableWarning
from ..iceberg.checking import Check, CheckKind, FileChecker, Outcome
from ..iceberg.files import TableFiles
from ..iceberg.table import EncryptedTable
from ..iceberg.writing.entries import FileRecord
from ..iceberg.writing.output import TableOutput
from ..iceberg.writing.reencryption import rewrite_file
from ..keys.cache import KekCache
from ..keys.envelope import KeyEncryptionKey
from ..keys.manager import DEFAULT_DATA_KEY_LENGTH, EncryptionManager
from .bulk.work import KMS_UNUSABLE
from .table_access import (
    JobKey,
    TravellingFile,
    catalog_of_options,
    table_of_process,
    unwrap_key,
    wrap_key,
)
from .workers import end_of_task

# What a file's work may raise, and so would without Spark.
_EXPECTED = (Ags1Error, OSError, NotImplementedError, MemoryError)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a job's table is, for each process to open: the options of ``table_access``, sorted.

    ``is_plain`` where the table is not encrypted yet.
    """

    job_id: str
    options: tuple[tuple[str, str], ...]
    is_plain: bool = False

    def open(self) -> Opened:
        """Return what this process has opened, once for each job. Raises as ``open_of_options``."""
        if self.is_plain:
            return _opened_plain(self.job_id, self.options)
        table = table_of_process(self.job_id, self.options)
        return Opened(table.files.inner, table.files.location_map, table.files.keys.cache)


class Opened(NamedTuple):
    """A table's storage and the KMS, as one process has opened them."""

    io: FileIO
    location_map: Mapping[str, str]
    keks: KekCache

    def files(self, table_key_id: str, key_size: int = DEFAULT_DATA_KEY_LENGTH) -> TableFiles:
        """Return the table's files, with a manager that makes new keys of ``key_size`` bytes."""
        manager = EncryptionManager(self.keks.kms, table_key_id, (), key_size, cache=self.keks)
        return TableFiles(self.io, manager, location_map=self.location_map)


@functools.lru_cache(maxsize=4)
def _opened_plain(job_id: str, options: tuple[tuple[str, str], ...]) -> Opened:
    known = dict(options)
    catalog = catalog_of_options(known)
    if catalog.kms is None:
        raise KmsConfigurationError("no KMS is configured where the task runs")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PlainTableWarning)
        table = catalog.load_table(known["path"], require_encrypted=False)
    io = table.files.inner if isinstance(table, EncryptedTable) else table.io
    return Opened(io, {}, KekCache(catalog.kms))


class TravellingCheck(NamedTuple):
    """A check on its way to a task. The snapshots stay behind: there may be thousands."""

    number: int
    kind: CheckKind
    location: str
    files: tuple[TravellingFile, ...]

    @classmethod
    def of(cls, number: int, check: Check, job: KeyEncryptionKey | None) -> TravellingCheck:
        """``job`` is only needed for files with keys. Raises KeyMetadataError."""
        files = []
        for file in check.files:
            assert job is not None or not file.is_encrypted
            files.append(TravellingFile.of(file, job))  # type: ignore[arg-type]
        return cls(number, check.kind, check.location, tuple(files))

    def open(self, job: KeyEncryptionKey | None) -> Check:
        """Raises AuthenticationError."""
        files = tuple(file.open(job) for file in self.files)  # type: ignore[arg-type]
        return Check(self.kind, self.location, (), files)


@dataclass(frozen=True)
class Checking:
    """Looks at files of an encrypted table; picklable. ``done`` is called with bytes that were
    read; ``key`` is None where no file has one."""

    place: Place
    table_key_id: str
    key: JobKey | None
    done: Callable[[int], object]

    def __call__(
        self, tasks: Iterable[list[TravellingCheck]]
    ) -> Iterator[list[tuple[int, Outcome]]]:
        opened = self.place.open()
        job = None if self.key is None else self.key.open(opened.keks)
        meter = ByteMeter()
        checker = FileChecker(opened.files(self.table_key_id), meter)
        for task in tasks:
            yield [(check.number, checker(check.open(job))) for check in task]
        self.done(meter.done)
        end_of_task()


class OldFile(NamedTuple):
    """A file to be rewritten, on its way to a task, without what the task need not know: its values
    in partitions, its bounds. ``location`` is the new file's, but for what names the attempt."""

    number: int
    location: str
    content: int
    file_path: str
    file_format: str
    record_count: int
    file_size_in_bytes: int
    column_sizes: Mapping[int, int] | None
    wrapped_key: bytes | None

    @classmethod
    def of(cls, number: int, location: str, file: FileRecord, job: KeyEncryptionKey) -> OldFile:
        """Raises KeyMetadataError."""
        km = file.key
        return cls(
            number,
            location,
            file.content,
            file.file_path,
            file.file_format,
            file.record_count,
            file.file_size_in_bytes,
            file.column_sizes,
            None if km is None else wrap_key(job, km, file.file_path),
        )

    def open(self, job: KeyEncryptionKey) -> FileRecord:
        """Return what is known of the file here, with its key. Raises AuthenticationError."""
        wrapped = self.wrapped_key
        km = None if wrapped is None else unwrap_key(job, wrapped, self.file_path)
        return FileRecord(
            self.content,
            self.file_path,
            self.file_format,
            (),
            self.record_count,
            self.file_size_in_bytes,
            self.column_sizes,
            key_metadata=None if km is None else km.to_bytes(),
        )


class NewFile(NamedTuple):
    """What a task says of a file that it has written."""

    number: int
    file_path: str
    file_size_in_bytes: int
    column_sizes: Mapping[int, int] | None
    split_offsets: tuple[int, ...] | None
    wrapped_key: bytes

    @classmethod
    def of(cls, number: int, file: FileRecord, job: KeyEncryptionKey) -> NewFile:
        assert file.key is not None
        return cls(
            number,
            file.file_path,
            file.file_size_in_bytes,
            file.column_sizes,
            file.split_offsets,
            wrap_key(job, file.key, file.file_path),
        )

    def replacing(self, old: FileRecord, job: KeyEncryptionKey) -> FileRecord:
        """Return the new file's record: the old one's, elsewhere. Raises AuthenticationError."""
        return replace(
            old,
            file_path=self.file_path,
            file_size_in_bytes=self.file_size_in_bytes,
            column_sizes=self.column_sizes,
            split_offsets=self.split_offsets,
            key_metadata=unwrap_key(job, self.wrapped_key, self.file_path).to_bytes(),
        )


class Failed(NamedTuple):
    """A file that could not be rewritten, and why."""

    number: int
    error: Exception


Rewritten: TypeAlias = "NewFile | Failed"


@dataclass(frozen=True)
class Rewriting:
    """Rewrites files under fresh keys of ``key_size`` bytes; picklable."""

    place: Place
    table_key_id: str
    key_size: int
    key: JobKey

    def __call__(self, tasks: Iterable[list[OldFile]]) -> Iterator[list[Rewritten]]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        opened = self.place.open()
        job = self.key.open(opened.keks)
        source = opened.files(self.table_key_id, self.key_size)
        output = TableOutput(opened.io, opened.location_map)
        try:
            for task in tasks:
                results: list[Rewritten] = []
                for file in task:
                    location = attempt_location(file.location, context.taskAttemptId())
                    try:
                        new = rewrite_file(file.open(job), source, output, location, source.keys)
                    except KMS_UNUSABLE:
                        raise
                    except _EXPECTED as error:
                        results.append(Failed(file.number, error))
                        break
                    results.append(NewFile.of(file.number, new, job))
                yield results
        except BaseException:
            # Nobody will hear of them.
            output.discard(output.written)
            raise
        end_of_task()


def attempt_location(location: str, attempt_id: int) -> str:
    """Return the name that one attempt of a task gives a file: two never write to one."""
    stem, _, suffix = location.rpartition(".")
    return f"{stem}-{attempt_id:x}.{suffix}"

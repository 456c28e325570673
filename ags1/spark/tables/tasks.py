"""The work of tasks on files of a table: check one, or rewrite one under a fresh key.

A file's key is sent to the task wrapped under a key of the job, and a new file's key is sent back
in the same way. Each process has the KMS unwrap the job's key once, with its own identity. The name
of a new file has the job's and the attempt's name in it. A file that fails is a result, and does
not fail the task.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from pyiceberg.io import FileIO

from ...errors import KMS_UNUSABLE, Ags1Error, KmsConfigurationError
from ...keys.cache import KekCache
from ...keys.envelope import KeyEncryptionKey
from ...keys.manager import DEFAULT_DATA_KEY_LENGTH, EncryptionManager
from ..iceberg_api import (
    ByteMeter,
    Check,
    CheckKind,
    ContentFile,
    EncryptedTable,
    FileChecker,
    Outcome,
    PlainTableWarning,
    TableFiles,
    TableOutput,
    rewrite_file,
)
from ..table_access import (
    JobKey,
    SentFile,
    SentRecord,
    catalog_of_options,
    table_of_process,
)
from ..workers import end_of_task, task_context

# What the work on a file may raise, with or without Spark.
EXPECTED = (Ags1Error, OSError, NotImplementedError, MemoryError)


@dataclass(frozen=True, slots=True)
class JobTable:
    """The table of a job, which each process opens by the options of ``table_access``, sorted.
    ``is_plain``: the table is not encrypted yet."""

    job_id: str
    options: tuple[tuple[str, str], ...]
    is_plain: bool = False

    def open(self) -> Opened:
        """Open the table, once in each process. Raises as ``open_of_options``."""
        if self.is_plain:
            return _opened_plain(self.job_id, self.options)
        table = table_of_process(self.job_id, self.options)
        return Opened(table.files.inner, table.files.location_map, table.files.keys.cache)


class Opened(NamedTuple):
    """The storage of a table and its KMS, opened by one process."""

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
        said = "no KMS is configured on this executor: configure it as on the driver"
        raise KmsConfigurationError(said)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PlainTableWarning)
        table = catalog.load_table(known["path"], require_encrypted=False)
    io = table.files.inner if isinstance(table, EncryptedTable) else table.io
    return Opened(io, {}, KekCache(catalog.kms))


class SentCheck(NamedTuple):
    """A check for a task, without its snapshots: there may be thousands."""

    number: int
    kind: CheckKind
    location: str
    files: tuple[SentFile, ...]

    @classmethod
    def of(cls, number: int, check: Check, job: KeyEncryptionKey | None) -> SentCheck:
        """``job`` may be None if no file has a key. Raises KeyMetadataError."""
        assert job is not None or not any(file.is_encrypted for file in check.files)
        files = tuple(SentFile.of(file, job) for file in check.files)  # type: ignore[arg-type]
        return cls(number, check.kind, check.location, files)

    def open(self, job: KeyEncryptionKey | None) -> Check:
        """Raises AuthenticationError."""
        files = tuple(file.open(job) for file in self.files)  # type: ignore[arg-type]
        return Check(self.kind, self.location, (), files)


@dataclass(frozen=True)
class Checking:
    """Checks files of an encrypted table; picklable. ``key`` is None if no file has
    a key."""

    table: JobTable
    table_key_id: str
    key: JobKey | None

    def __call__(self, tasks: Iterable[list[SentCheck]]) -> Iterator[list[tuple[int, Outcome]]]:
        opened = self.table.open()
        job = None if self.key is None else self.key.open(opened.keks)
        checker = FileChecker(opened.files(self.table_key_id), ByteMeter())
        for task in tasks:
            yield [(check.number, checker(check.open(job))) for check in task]
        end_of_task()


# What a task needs of a file that it rewrites: neither its partition nor its bounds.
_OLD = "content file_path file_format record_count file_size_in_bytes column_sizes".split()
_NEW = "file_path file_size_in_bytes column_sizes split_offsets".split()


class OldFile(NamedTuple):
    """A file that a task shall rewrite. ``location`` is that of the new file, without the attempt's
    name."""

    number: int
    location: str
    sent: SentRecord

    @classmethod
    def of(cls, number: int, location: str, file: ContentFile, job: KeyEncryptionKey) -> OldFile:
        """Raises KeyMetadataError."""
        return cls(number, location, SentRecord.of(file, _OLD, job))

    def open(self, job: KeyEncryptionKey) -> ContentFile:
        """Return the file's record with its key. Raises AuthenticationError."""
        return ContentFile.of(partition=(), **self.sent.fields_with_key(job))


class NewFile(NamedTuple):
    """What a task reports of a file that it has written."""

    number: int
    sent: SentRecord

    def replacing(self, old: ContentFile, job: KeyEncryptionKey) -> ContentFile:
        """Return the new file's record, made from the old one's. Raises AuthenticationError."""
        return old.replace(**self.sent.fields_with_key(job))


class Failed(NamedTuple):
    """A file that could not be rewritten, and why."""

    number: int
    error: Exception


Rewritten: TypeAlias = "NewFile | Failed"


@dataclass(frozen=True)
class Rewriting:
    """Rewrites files under fresh keys of ``key_size`` bytes; picklable."""

    table: JobTable
    table_key_id: str
    key_size: int
    key: JobKey

    def __call__(self, tasks: Iterable[list[OldFile]]) -> Iterator[list[Rewritten]]:
        context = task_context()
        opened = self.table.open()
        job = self.key.open(opened.keks)
        source = opened.files(self.table_key_id, self.key_size)
        output = TableOutput(opened.io, opened.location_map)
        try:
            for task in tasks:
                results: list[Rewritten] = []
                for file in task:
                    location = attempt_location(file.location, context.taskAttemptId())
                    try:
                        new = rewrite_file(file.open(job), source, output, location)
                    except KMS_UNUSABLE:
                        raise
                    except EXPECTED as error:
                        results.append(Failed(file.number, error))
                        break
                    results.append(NewFile(file.number, SentRecord.of_new(new, _NEW, job)))
                yield results
        except BaseException:
            # The driver will not learn their names.
            output.discard(output.written)
            raise
        end_of_task()


def attempt_location(location: str, attempt_id: int) -> str:
    """Return the location for one attempt of a task: no two attempts write to one file."""
    stem, _, suffix = location.rpartition(".")
    return f"{stem}-{attempt_id:x}.{suffix}"

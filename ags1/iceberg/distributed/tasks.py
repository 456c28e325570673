"""The work of tasks on files of a table: check one, or rewrite one under a fresh key.

A file's key is sent to the task wrapped under a key of the job, and a new file's key is sent back
in the same way. Each process has the KMS unwrap the job's key once, with its own identity. The name
of a new file has the job's and the attempt's name in it. A file that fails is a result, and does
not fail the task.
"""

from __future__ import annotations

import functools
import secrets
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from ...errors import KMS_UNUSABLE, Ags1Error, KmsConfigurationError
from ...keys.cache import KekCache
from ...keys.envelope import KeyEncryptionKey
from ...keys.manager import DEFAULT_DATA_KEY_LENGTH, EncryptionManager
from ..catalog import EncryptedCatalog, PlainTableWarning
from ..operations.check.checks import Check, CheckKind, FileChecker, Outcome
from ..read.records import ContentFile
from ..storage.byte_meter import ByteMeter
from ..storage.output import TableOutput
from ..storage.table_files import TableFiles
from ..table import EncryptedTable
from ..write.reencryption import rewrite_file
from .sealed import JobKey, SentFile, SentRecord

# What the work on a file may raise in any process.
EXPECTED = (Ags1Error, OSError, NotImplementedError, MemoryError)


class JobTable(Protocol):
    """The table of a job, which each process opens for itself. Picklable and hashable."""

    def __hash__(self) -> int: ...

    @property
    def job_id(self) -> str: ...

    @property
    def name(self) -> str:
        """The name in the catalog."""

    def open(self) -> EncryptedTable:
        """Open the table, once in each process."""

    def open_catalog(self) -> EncryptedCatalog:
        """Open the catalog of a table that is not encrypted yet."""


def open_files(
    table: JobTable, key_id: str, key_size: int = DEFAULT_DATA_KEY_LENGTH, is_plain: bool = False
) -> TableFiles:
    """Return a table's files in this process, with a manager that makes new keys of ``key_size``
    bytes. ``is_plain``: the table is not encrypted yet."""
    opened = _open_plain(table, key_id) if is_plain else table.open().files
    keks = opened.keys.cache
    manager = EncryptionManager(keks.kms, key_id, (), key_size, cache=keks)
    return TableFiles(opened.inner, manager, location_map=opened.location_map)


@functools.lru_cache(maxsize=4)
def _open_plain(table: JobTable, key_id: str) -> TableFiles:
    catalog = table.open_catalog()
    if catalog.kms is None:
        message = "no KMS is configured on this executor: configure it as on the driver"
        raise KmsConfigurationError(message)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PlainTableWarning)
        loaded = catalog.load_table(table.name, require_encrypted=False)
    io = loaded.files.inner if isinstance(loaded, EncryptedTable) else loaded.io
    return TableFiles(io, EncryptionManager(catalog.kms, key_id, cache=KekCache(catalog.kms)))


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
        files = open_files(self.table, self.table_key_id)
        job = None if self.key is None else self.key.open(files.keys.cache)
        checker = FileChecker(files, ByteMeter())
        for task in tasks:
            yield [(check.number, checker(check.open(job))) for check in task]


# What a task needs of a file that it rewrites: neither its partition nor its bounds.
OLD_FIELDS = "content file_path file_format record_count file_size_in_bytes column_sizes".split()
_NEW_FIELDS = "file_path file_size_in_bytes column_sizes split_offsets".split()


class OldFile(NamedTuple):
    """A file that a task shall rewrite. ``location`` is the new file's, without the attempt's
    name."""

    number: int
    location: str
    sent: SentRecord


class NewFile(NamedTuple):
    """What a task reports of a file that it has written, or why it could not write it."""

    number: int
    sent: SentRecord | None
    error: Exception | None = None


@dataclass(frozen=True)
class Rewriting:
    """Rewrites files under fresh keys of ``key_size`` bytes; picklable. ``is_plain``: the table is
    not encrypted yet."""

    table: JobTable
    table_key_id: str
    key_size: int
    key: JobKey
    is_plain: bool

    def __call__(self, tasks: Iterable[list[OldFile]]) -> Iterator[list[NewFile]]:
        source = open_files(self.table, self.table_key_id, self.key_size, self.is_plain)
        job = self.key.open(source.keys.cache)
        output = TableOutput(source.inner, source.location_map)
        # No two attempts write to one file.
        attempt = secrets.token_hex(8)
        try:
            for task in tasks:
                results: list[NewFile] = []
                for file in task:
                    stem, _, suffix = file.location.rpartition(".")
                    location = f"{stem}-{attempt}.{suffix}"
                    try:
                        old = ContentFile.of(partition=(), **file.sent.fields_with_key(job))
                        new = rewrite_file(old, source, output, location)
                    except KMS_UNUSABLE:
                        raise
                    except EXPECTED as error:
                        results.append(NewFile(file.number, None, error))
                        break
                    sent = SentRecord.of_new(new, _NEW_FIELDS, job)
                    results.append(NewFile(file.number, sent))
                yield results
        except BaseException:
            # The driver will not learn their names.
            output.discard(output.written)
            raise

"""Lets Spark's executors, instead of threads, do the work on each file of a table.

``verify_table`` checks files with ``SparkChecks``; migration and rekeying rewrite them with
 ``SparkRewrites``. Planning, findings and the commit stay on the driver, as on one machine::

    driver                                            executor (``tasks``)
    opens the table by the job's options              opens it by the same options, once a process
    JobKey: a key of the job, wrapped         ----->  has the KMS unwrap it, once a process
    a file's record, its key wrapped          ----->  unwraps the file's key; checks the file, or
       under the job's key                            rewrites it under a fresh key
    adds the findings; commits the new files  <-----  findings, or the new file's record with its
                                                      key wrapped under the job's key
"""

from __future__ import annotations

import errno
import itertools
import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

from pyiceberg.table.locations import LocationProvider

from ...errors import KMS_UNUSABLE, Ags1Error
from ...keys.envelope import KeyEncryptionKey
from ...keys.manager import EncryptionManager
from .. import options as opt
from ..iceberg_api import (
    ByteMeter,
    Check,
    ContentFile,
    Done,
    EncryptedTable,
    Outcome,
    TableFiles,
    TableOutput,
    Tick,
    new_location,
)
from ..jobs.group import JobGroup
from ..table_access import JobKey, new_job_id
from .tasks import (
    Checking,
    Failed,
    JobTable,
    NewFile,
    OldFile,
    Rewriting,
    SentCheck,
)
from .waves import run_in_waves

if TYPE_CHECKING:
    from typing_extensions import Self

_log = logging.getLogger(__name__)

_Item = TypeVar("_Item")


class SparkChecks:
    """A ``CheckExecutor``: checks the files of ``table`` on executors, which open it by
    ``options``. Raises KmsConfigurationError for an option that is a secret."""

    def __init__(
        self, spark: Any, table: EncryptedTable, options: Mapping[str, str], cores: int | None
    ) -> None:
        opt.refuse_secrets(options)
        self._table = table
        self._job_table = JobTable(new_job_id(), tuple(sorted(options.items())))
        self._group = _job_group(spark, cores)

    def run(
        self, checks: Iterator[Check], files: TableFiles, meter: ByteMeter, tick: Tick
    ) -> Generator[Outcome, None, None]:
        key, job = self._job_key(files.keys)
        # For each check's number: the snapshots that need the file. They are not sent.
        snapshots: dict[int, tuple[int, ...]] = {}
        counted = 0

        def sent() -> Iterator[tuple[SentCheck, int]]:
            for number, check in enumerate(checks):
                snapshots[number] = check.snapshot_ids
                yield SentCheck.of(number, check, job), check.size

        def tell() -> None:
            nonlocal counted
            now = max(counted, self._group.cost_done)
            meter.add(now - counted)
            counted = now
            tick()

        work = Checking(self._job_table, files.keys.table_key_id, key)
        with closing(run_in_waves(self._group, sent(), work, tell)) as results:
            for number, outcome in results:
                ids = snapshots.pop(number)
                findings = [replace(finding, snapshot_ids=ids) for finding in outcome.findings]
                yield Outcome(outcome.size, findings)

    def _job_key(
        self, manager: EncryptionManager
    ) -> tuple[JobKey, KeyEncryptionKey] | tuple[None, None]:
        """Make a key of the job under the KEK of the current snapshot, or of another one if that
        cannot be unwrapped. If none can, no file's key is known either: returns None. Raises
        KmsError if the KMS cannot be used."""
        entries = {entry.key_id: entry for entry in manager.encryption_keys}
        tried = set()
        metadata = self._table.metadata
        for snapshot in (metadata.current_snapshot(), *reversed(metadata.snapshots)):
            entry = entries.get(getattr(snapshot, "key_id", None) or "")
            if entry is None or entry.encrypted_by_id in tried:
                continue
            tried.add(entry.encrypted_by_id)
            try:
                return JobKey.under_kek_of(manager, entry.key_id)
            except KMS_UNUSABLE:
                raise
            except Ags1Error:
                # ``verify_table`` has a finding of it already.
                continue
        return None, None


class SparkRewrites:
    """A ``RewriteExecutor``: rewrites files of a table on executors, which open it by ``options``.

    ``is_plain``: the table is not encrypted yet. As a context manager, it deletes at its end the
    files of attempts whose results did not count: of tasks that ran again, or twice at a time. An
    attempt that is killed while it writes leaves no file under the name of a data file. Raises
    KmsConfigurationError for an option that is a secret.
    """

    def __init__(
        self,
        spark: Any,
        options: Mapping[str, str],
        cores: int | None = None,
        is_plain: bool = False,
    ) -> None:
        opt.refuse_secrets(options)
        self._job_id = new_job_id()
        self._job_table = JobTable(self._job_id, tuple(sorted(options.items())), is_plain)
        self._group = _job_group(spark, cores)
        self._numbers = itertools.count()
        # The names of the new files that are used, and the folders of new files.
        self._used: set[str] = set()
        self._folders: dict[str, TableOutput] = {}

    def rewrite(
        self,
        files: Sequence[ContentFile],
        source: TableFiles,
        output: TableOutput,
        locations: LocationProvider,
        on_done: Done,
    ) -> None:
        output.check_process()
        manager = source.keys
        key = JobKey.by_kms(manager)
        job = key.open(manager.cache)
        # The driver says how long keys have to be; tasks do not find out for themselves.
        key_size = len(manager.new_file_key().encryption_key)
        self._folders[locations.data_path] = output
        under_way: dict[int, ContentFile] = {}

        def send(file: ContentFile) -> OldFile:
            number = next(self._numbers)
            under_way[number] = file
            location = new_location(file, locations, f"{self._job_id}-{number}")
            return OldFile.of(number, location, file, job)

        work = Rewriting(self._job_table, manager.table_key_id, key_size, key)
        with closing(self._run(files, lambda f: f.file_size_in_bytes, send, work)) as results:
            result: NewFile
            for result in results:
                old = under_way.pop(result.number)
                new = result.replacing(old, job)
                self._note(new, output)
                on_done(old, new)

    def _run(
        self,
        items: Iterable[_Item],
        size_of: Callable[[_Item], int],
        send: Callable[[_Item], Any],
        work: Any,
    ) -> Generator[Any, None, None]:
        """Have executors ``work`` on what ``send`` makes of each item; yield the results. After a
        failure, no other item is sent. Once those under way are done, the failure is raised."""
        failure: Exception | None = None

        def sent() -> Iterator[tuple[Any, int]]:
            # The largest first, so that none of them is left for the end.
            for item in sorted(items, key=size_of, reverse=True):
                if failure is not None:
                    return
                yield send(item), size_of(item)

        with closing(run_in_waves(self._group, sent(), work, _nothing)) as results:
            for result in results:
                if isinstance(result, Failed):
                    failure = failure or result.error
                else:
                    yield result
        if failure is not None:
            raise failure

    def _note(self, file: ContentFile, output: TableOutput) -> None:
        output.note(file.file_path)
        self._used.add(_name(file.file_path))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._folders:
            self._group.wait_for_tasks()
        for folder, output in self._folders.items():
            try:
                output.discard(self._unused(output, folder))
            except (Ags1Error, OSError) as failure:
                said = "%s cannot be listed (%s): files of %s may be left"
                _log.warning(said, folder, type(failure).__name__, self._job_id)

    def _unused(self, output: TableOutput, folder: str) -> list[str]:
        listed = output.listed(folder)
        if listed is None:
            raise OSError(errno.ENOTSUP, "the storage cannot list files", folder)
        return [
            path for path in listed if self._job_id in _name(path) and _name(path) not in self._used
        ]


def _job_group(spark: Any, cores: int | None) -> JobGroup:
    return JobGroup(spark, f"ags1-{uuid4()}", "ags1: files of a table", cores)


def _name(location: str) -> str:
    return location.rpartition("/")[2]


def _nothing() -> None:
    """Do nothing while files are rewritten: progress is reported after each file."""

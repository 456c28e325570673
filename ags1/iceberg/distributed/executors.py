"""Lets other processes, instead of threads, do the work on each file of a table.
At the end of a rewrite, files of attempts that did not count are found by the job's id and deleted.

``verify_table`` checks files with ``FileChecks``; migration and rekeying rewrite them with
``FileRewrites``. Planning, findings and the commit stay with the driver, as on one machine::

    driver                                            executor (``tasks``)
    opens the table                                   opens it too, once a process
    JobKey: a key of the job, wrapped         ----->  has the KMS unwrap it, once a process
    a file's record, its key wrapped          ----->  unwraps the file's key; checks the file, or
       under the job's key                            rewrites it under a fresh key
    adds the findings; commits the new files  <-----  findings, or the new file's record with its
                                                      key wrapped under the job's key

The job's key is wrapped under a KEK of the current snapshot, or of another one if that cannot be
unwrapped.
"""

from __future__ import annotations

import errno
import itertools
import logging
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from pyiceberg.table.locations import LocationProvider

from ...errors import KMS_UNUSABLE, Ags1Error
from ...host.runners import Runner, run_items
from ...keys.envelope import KeyEncryptionKey
from ...keys.manager import EncryptionManager
from ..operations.check.checks import Check, Outcome, Tick
from ..read.records import ContentFile
from ..storage.byte_meter import ByteMeter
from ..storage.output import TableOutput
from ..storage.table_files import TableFiles
from ..table import EncryptedTable
from ..write.executors import Done
from ..write.reencryption import new_location
from .sealed import JobKey, SentRecord
from .tasks import OLD_FIELDS, Checking, JobTable, NewFile, OldFile, Rewriting, SentCheck

if TYPE_CHECKING:
    from typing_extensions import Self

_log = logging.getLogger(__name__)


class FileChecks:
    """A ``CheckExecutor``: has ``runner`` check the files of ``table``, which the tasks open as
    ``job_table``."""

    def __init__(self, runner: Runner, table: EncryptedTable, job_table: JobTable) -> None:
        self._table = table
        self._job_table = job_table
        self._runner = runner

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
            now = max(counted, self._runner.cost_done)
            meter.add(now - counted)
            counted = now
            tick()

        work = Checking(self._job_table, files.keys.table_key_id, key)
        with closing(run_items(self._runner, sent(), work, tell)) as results:
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


class FileRewrites:
    """A ``RewriteExecutor``: has ``runner`` rewrite files of a table, which the tasks open as
    ``job_table``.

    ``is_plain``: the table is not encrypted yet. As a context manager, it deletes at its end the
    files of attempts whose results did not count: of tasks that ran again, or twice at a time. An
    attempt that is killed while it writes leaves no file under the name of a data file.
    """

    def __init__(self, runner: Runner, job_table: JobTable, is_plain: bool = False) -> None:
        self._job_id = job_table.job_id
        self._job_table = job_table
        self._is_plain = is_plain
        self._runner = runner
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

        failure: Exception | None = None

        def old_files() -> Iterator[tuple[OldFile, int]]:
            # The largest first, so that none of them is left for the end.
            for file in sorted(files, key=lambda f: f.file_size_in_bytes, reverse=True):
                if failure is not None:
                    return
                number = next(self._numbers)
                under_way[number] = file
                location = new_location(file, locations, f"{self._job_id}-{number}")
                sent = SentRecord.of(file, OLD_FIELDS, job)
                yield OldFile(number, location, sent), file.file_size_in_bytes

        work = Rewriting(self._job_table, manager.table_key_id, key_size, key, self._is_plain)
        with closing(run_items(self._runner, old_files(), work, _nothing)) as results:
            result: NewFile
            for result in results:
                if result.sent is None:
                    # No other file is sent. Those under way are completed.
                    failure = failure or result.error
                    continue
                old = under_way.pop(result.number)
                new = old.replace(**result.sent.fields_with_key(job))
                output.note(new.file_path)
                self._used.add(_name(new.file_path))
                on_done(old, new)
        if failure is not None:
            raise failure

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._folders:
            self._runner.wait_for_tasks()
        for folder, output in self._folders.items():
            try:
                output.discard(self._unused(output, folder))
            except (Ags1Error, OSError) as failure:
                message = "%s cannot be listed (%s): files of %s may be left"
                _log.warning(message, folder, type(failure).__name__, self._job_id)

    def _unused(self, output: TableOutput, folder: str) -> list[str]:
        listed = output.listed(folder)
        if listed is None:
            raise OSError(errno.ENOTSUP, "the storage cannot list files", folder)
        return [
            path for path in listed if self._job_id in _name(path) and _name(path) not in self._used
        ]


def _name(location: str) -> str:
    return location.rpartition("/")[2]


def _nothing() -> None:
    """Do nothing while files are rewritten: progress is reported after each file."""

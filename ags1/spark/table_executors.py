"""Spark's executors in the place of threads, for what is done to each file of a table.

``SparkChecks`` is what ``verify_table`` looks at files with, ``SparkRewrites`` what migration and
rekeying rewrite them with; the walk, the findings and the commit are theirs, on the driver, as on
one machine. Keys travel wrapped, see ``table_tasks``.
"""

from __future__ import annotations

import errno
import itertools
import logging
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any, cast

from pyiceberg.io import FileIO
from pyiceberg.table.locations import LocationProvider

from ..errors import Ags1Error
from ..iceberg.byte_meter import ByteMeter
from ..iceberg.checking import Check, Outcome, Tick
from ..iceberg.files import TableFiles
from ..iceberg.snapshots import EncryptedSnapshot
from ..iceberg.table import EncryptedTable
from ..iceberg.writing.entries import FileRecord
from ..iceberg.writing.output import TableOutput
from ..iceberg.writing.reencryption import Done, new_location
from ..keys.envelope import KeyEncryptionKey
from ..keys.manager import EncryptionManager
from . import options as opt
from .bulk.work import KMS_UNUSABLE
from .table_access import JobKey, new_job_id
from .table_tasks import Checking, Failed, OldFile, Place, Rewriting, Rewritten, TravellingCheck
from .table_waves import Waves

_log = logging.getLogger(__name__)


class SparkChecks:
    """Looks at the files of ``table`` on executors, which open it by ``options``: a
    ``CheckExecutor``. Raises KmsConfigurationError for an option that is a secret."""

    def __init__(
        self,
        spark: Any,
        table: EncryptedTable,
        options: Mapping[str, str],
        *,
        cores: int | None = None,
    ) -> None:
        opt.refuse_secrets(options)
        self._table = table
        self._place = Place(new_job_id(), tuple(sorted(options.items())))
        self._waves = Waves(spark, cores)
        self._bytes_done = spark.sparkContext.accumulator(0)

    def run(
        self, checks: Iterator[Check], files: TableFiles, meter: ByteMeter, tick: Tick
    ) -> Generator[Outcome, None, None]:
        key, job = self._job_key(files.keys)
        # What does not travel: the snapshots that need the files under way.
        snapshots: dict[int, tuple[int, ...]] = {}
        known = 0

        def travelling() -> Iterator[tuple[TravellingCheck, int]]:
            for number, check in enumerate(checks):
                snapshots[number] = check.snapshot_ids
                yield TravellingCheck.of(number, check, job), check.size

        def told() -> None:
            nonlocal known
            now = self._bytes_done.value
            meter.add(now - known)
            known = now
            tick()

        work = Checking(self._place, files.keys.table_key_id, key, self._bytes_done.add)
        with closing(self._waves.run(travelling(), work, told)) as results:
            for number, outcome in results:
                ids = snapshots.pop(number)
                found = [replace(finding, snapshot_ids=ids) for finding in outcome.findings]
                yield Outcome(outcome.size, found)

    def _job_key(
        self, manager: EncryptionManager
    ) -> tuple[JobKey, KeyEncryptionKey] | tuple[None, None]:
        """Make a key of the job under a KEK of the table: the current snapshot's, or another one's
        if that does not open. Where none does, no file's key is ever known. Raises KmsError when
        the KMS cannot be used."""
        entries = {entry.key_id: entry for entry in manager.encryption_keys}
        tried = set()
        for snapshot in self._snapshots():
            entry = entries.get(snapshot.key_id or "")
            if entry is None or entry.encrypted_by_id in tried:
                continue
            tried.add(entry.encrypted_by_id)
            try:
                return JobKey.under_snapshot_s(manager, entry.key_id)
            except KMS_UNUSABLE:
                raise
            except Ags1Error:
                # A finding already.
                continue
        return None, None

    def _snapshots(self) -> Iterator[EncryptedSnapshot]:
        metadata = self._table.metadata
        current = metadata.current_snapshot()
        if current is not None:
            yield cast("EncryptedSnapshot", current)
        for snapshot in reversed(metadata.snapshots):
            yield cast("EncryptedSnapshot", snapshot)


class SparkRewrites:
    """Rewrites files of a table on executors, which open it by ``options``: a ``RewriteExecutor``.

    ``is_plain`` for a table that is not encrypted yet. At its end as a context manager it deletes
    what attempts have written that nobody heard of: of tasks that were tried again, or twice at a
    time. An attempt that is killed while it writes leaves no file under a table's file's name.
    Raises KmsConfigurationError for an option that is a secret.
    """

    def __init__(
        self,
        spark: Any,
        options: Mapping[str, str],
        *,
        is_plain: bool = False,
        cores: int | None = None,
    ) -> None:
        opt.refuse_secrets(options)
        self._job_id = new_job_id()
        self._place = Place(self._job_id, tuple(sorted(options.items())), is_plain)
        self._waves = Waves(spark, cores)
        self._numbers = itertools.count()
        # The names of new files that were told of, and the folders that they and others lie in.
        self._known: set[str] = set()
        self._folders: dict[str, TableOutput] = {}

    def rewrite(
        self,
        files: Sequence[FileRecord],
        source: FileIO,
        output: TableOutput,
        manager: EncryptionManager,
        locations: LocationProvider,
        on_done: Done,
    ) -> None:
        output.check_process()
        key = JobKey.by_kms(manager)
        job = key.open(manager.cache)
        # The driver's word: how long keys have to be is not for a task to find out.
        key_size = len(manager.new_file_key().encryption_key)
        self._folders[locations.data_path] = output
        under_way: dict[int, FileRecord] = {}
        failure: Exception | None = None

        def travelling() -> Iterator[tuple[OldFile, int]]:
            # The largest first: at the end nobody waits for one of them.
            for file in sorted(files, key=lambda f: f.file_size_in_bytes, reverse=True):
                if failure is not None:
                    return
                number = next(self._numbers)
                under_way[number] = file
                location = new_location(file, locations, f"{self._job_id}-{number}")
                yield OldFile.of(number, location, file, job), file.file_size_in_bytes

        work = Rewriting(self._place, manager.table_key_id, key_size, key)
        with closing(self._waves.run(travelling(), work, _nothing)) as results:
            result: Rewritten
            for result in results:
                if isinstance(result, Failed):
                    failure = failure or result.error
                    continue
                old = under_way.pop(result.number)
                new = result.replacing(old, job)
                output.note(new.file_path)
                self._known.add(_name(new.file_path))
                on_done(old, new)
        if failure is not None:
            raise failure

    def __enter__(self) -> SparkRewrites:
        return self

    def __exit__(self, *error: object) -> None:
        if self._folders:
            self._waves.wait_for_tasks()
        for folder, output in self._folders.items():
            try:
                output.discard(self._strays(output, folder))
            except (Ags1Error, OSError) as failure:
                _log.warning(
                    "%s cannot be listed (%s): files of %s may be left",
                    folder,
                    type(failure).__name__,
                    self._job_id,
                )

    def _strays(self, output: TableOutput, folder: str) -> list[str]:
        found = output.listed(folder)
        if found is None:
            raise OSError(errno.ENOTSUP, "the storage cannot list files", folder)
        return [
            path
            for path in found
            if _name(path).startswith(self._job_id) and _name(path) not in self._known
        ]


def _name(location: str) -> str:
    return location.rpartition("/")[2]


def _nothing() -> None:
    """What there is to do while files are rewritten: progress is told of each file."""

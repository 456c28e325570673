"""Scans of an encrypted table: PyIceberg's, with our planner and our reading of files.

What a task reads: the data file, decrypted (Parquet inside Arrow by modular encryption, Avro by
AGS1), its rows without the deleted ones, filtered, projected by field id. PyIceberg's ``ArrowScan``
cannot be used: it keeps file formats in a process-wide cache, and keys would be in them.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from functools import cached_property
from typing import TypeAlias, TypeVar, cast

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.expressions.visitors import bind
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import ManifestContent, ManifestEntryStatus
from pyiceberg.schema import Schema
from pyiceberg.table import (
    DataScan,
    FileScanTask,
    IncrementalAppendScan,
    ManifestGroupPlanner,
)
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, ancestors_between_ids
from pyiceberg.utils.concurrent import ExecutorFactory

from .files import TableFiles
from .filters import as_sql
from .planning import EncryptedPlanner
from .reading import TaskReader
from .snapshots import ContentFile, files_of

# Stored bytes. Files that a stream of batches reads ahead are held whole and decoded, which is a
# few times as much; larger ones are not held, and Arrow's threads read ahead inside of them.
_LARGE_FILE = 32 << 20
_READ_AHEAD = 128 << 20

_T = TypeVar("_T")
_Scan: TypeAlias = "EncryptedScan | EncryptedIncrementalScan"


class EncryptedScan(DataScan):
    """A scan of one snapshot. Server-side planning is not used: a server has no keys to give.

    Filters are SQL's: no null satisfies a comparison. ``x != 1`` and ``x not in (1, 2)`` leave out
    the rows where x is null, in ``count()`` too. In PyIceberg some of them stay, depending on where
    the null is found.
    """

    @cached_property
    def _manifest_planner(self) -> ManifestGroupPlanner:
        return EncryptedPlanner(
            table_metadata=self.table_metadata,
            io=self.io,
            row_filter=as_sql(
                self.row_filter, self.table_metadata.schema(), case_sensitive=self.case_sensitive
            ),
            case_sensitive=self.case_sensitive,
            options=self.options,
        )

    def plan_files(self) -> list[FileScanTask]:
        """Return the tasks: a data file each, with the delete files that apply to it.

        Raises NotEncryptedError, MetadataIntegrityError, AuthenticationError, TruncatedError,
        KmsError, and NotImplementedError for ORC.
        """
        return list(self._plan_files_local())

    def plain_files(self) -> int:
        """Return how many of the data files that the scan reads are in the clear."""
        tasks = self.plan_files()
        return sum(not cast("ContentFile", task.file).is_encrypted for task in tasks)

    def to_arrow(self, dictionary_columns: tuple[str, ...] = ()) -> pa.Table:
        """Return the rows. Raises as ``plan_files`` does; a damaged file raises before any row."""
        return _table(_reader(self, dictionary_columns), self.plan_files())

    def to_arrow_batch_reader(
        self, dictionary_columns: tuple[str, ...] = ()
    ) -> pa.RecordBatchReader:
        """Return the rows as a stream. Small files are read ahead, and of a large one a part."""
        return _batch_reader(_reader(self, dictionary_columns), self.plan_files())

    def count(self) -> int:
        """Return the number of rows, from the manifests alone where they tell it."""
        count = 0
        open_tasks = []
        for task in self.plan_files():
            if task.residual == AlwaysTrue() and not task.delete_files:
                count += task.file.record_count
            else:
                open_tasks.append(task)
        return count + _reader(self).count(open_tasks)


class EncryptedIncrementalScan(IncrementalAppendScan):
    """A scan of what was appended between two snapshots. Filters are ``EncryptedScan``'s."""

    def plan_files(self) -> list[FileScanTask]:
        """Return the tasks for the files that appends added."""
        if (
            self.from_snapshot_id is None
            and self.to_snapshot_id is None
            and self.table_metadata.current_snapshot() is None
        ):
            return []
        first, last = self._validate_and_resolve_snapshots()
        appends = {
            snapshot.snapshot_id: snapshot
            for snapshot in ancestors_between_ids(first, last, self.table_metadata)
            if snapshot.summary is not None and snapshot.summary.operation == Operation.APPEND
        }
        manifests = {
            manifest
            for snapshot in appends.values()
            for manifest in snapshot.manifests(self.io)
            if manifest.content == ManifestContent.DATA and manifest.added_snapshot_id in appends
        }
        planner = EncryptedPlanner(
            table_metadata=self.table_metadata,
            io=self.io,
            row_filter=as_sql(
                self.row_filter, self.table_metadata.schema(), case_sensitive=self.case_sensitive
            ),
            case_sensitive=self.case_sensitive,
            options=self.options,
        )
        return planner.plan_files(
            manifests,
            lambda entry: (
                entry.snapshot_id in appends and entry.status == ManifestEntryStatus.ADDED
            ),
        )

    def to_arrow(self) -> pa.Table:
        return _table(_reader(self), self.plan_files())

    def to_arrow_batch_reader(self) -> pa.RecordBatchReader:
        return _batch_reader(_reader(self), self.plan_files())


class ScanReader:
    """Reads the tasks of one scan, several at a time, and yields their rows in the tasks' order."""

    def __init__(
        self,
        files: TableFiles,
        metadata: TableMetadata,
        projected: Schema,
        row_filter: BooleanExpression,
        case_sensitive: bool,
        limit: int | None,
        dictionary_columns: tuple[str, ...],
    ) -> None:
        self.projected = projected
        self._limit = limit
        as_meant = as_sql(row_filter, metadata.schema(), case_sensitive=case_sensitive)
        bound = bind(metadata.schema(), as_meant, case_sensitive=case_sensitive)
        self._tasks = TaskReader(
            files,
            metadata,
            projected,
            bound,
            dictionary_columns,
        )

    def batches(
        self, tasks: Iterable[FileScanTask], *, ahead: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows, at most as many as the limit.

        With ``ahead``, no more than so many stored bytes are read before they are asked for, and no
        large file is held whole.
        """
        left = self._limit
        if left is not None and left <= 0:
            return
        tasks = list(tasks)
        self._tasks.share(1 if ahead is not None and any(map(_is_large, tasks)) else len(tasks))
        for batch in self._batches(tasks, ahead):
            if left is None:
                yield batch
                continue
            yield batch.slice(0, left)
            left -= batch.num_rows
            if left <= 0:
                return

    def _batches(self, tasks: list[FileScanTask], ahead: int | None) -> Iterator[pa.RecordBatch]:
        groups = itertools.groupby(tasks, key=lambda task: ahead is not None and _is_large(task))
        for one_by_one, group in groups:
            if one_by_one:
                yield from itertools.chain.from_iterable(map(self._tasks.batches, group))
            else:
                yield from itertools.chain.from_iterable(_ahead(self._read, group, ahead))

    def count(self, tasks: Iterable[FileScanTask]) -> int:
        """Return the number of rows, whatever the limit."""
        return sum(_ahead(self._tasks.count, tasks))

    def _read(self, task: FileScanTask) -> list[pa.RecordBatch]:
        found: list[pa.RecordBatch] = []
        rows = 0
        for batch in self._tasks.batches(task):
            found.append(batch)
            rows += batch.num_rows
            if self._limit is not None and rows >= self._limit:
                break
        return found


def _ahead(
    read: Callable[[FileScanTask], _T], tasks: Iterable[FileScanTask], ahead: int | None = None
) -> Iterator[_T]:
    """Yield what ``read`` returns for each task, a bounded number of them under way, of at most
    ``ahead`` stored bytes or a single one."""
    executor = ExecutorFactory.get_or_create()
    window = ExecutorFactory.max_workers() or getattr(executor, "_max_workers", None) or 8
    running: deque[tuple[int, Future[_T]]] = deque()
    size = 0
    try:
        for task in tasks:
            coming = task.file.file_size_in_bytes
            while running and (
                len(running) >= window or (ahead is not None and size + coming > ahead)
            ):
                done, future = running.popleft()
                size -= done
                yield future.result()
            running.append((coming, executor.submit(read, task)))
            size += coming
        while running:
            yield running.popleft()[1].result()
    finally:
        for _, future in running:
            future.cancel()


def _is_large(task: FileScanTask) -> bool:
    return task.file.file_size_in_bytes > _LARGE_FILE


def _reader(scan: _Scan, dictionary_columns: tuple[str, ...] = ()) -> ScanReader:
    return ScanReader(
        files_of(scan.io),
        scan.table_metadata,
        scan.projection(),
        scan.row_filter,
        scan.case_sensitive,
        scan.limit,
        dictionary_columns,
    )


def _table(reader: ScanReader, tasks: list[FileScanTask]) -> pa.Table:
    batches = list(reader.batches(tasks))
    if not batches:
        return schema_to_pyarrow(reader.projected, include_field_ids=False).empty_table()
    # The files' types may differ: large strings beside strings.
    tables = [pa.Table.from_batches([batch]) for batch in batches]
    return pa.concat_tables(tables, promote_options="permissive")


def _batch_reader(reader: ScanReader, tasks: list[FileScanTask]) -> pa.RecordBatchReader:
    schema = schema_to_pyarrow(reader.projected)
    batches = reader.batches(tasks, ahead=_READ_AHEAD)
    first = next(batches, None)
    if first is None:
        return pa.RecordBatchReader.from_batches(schema, iter(()))
    encoded = {f.name: f for f in first.schema if pa.types.is_dictionary(f.type)}
    schema = pa.schema([encoded.get(f.name, f) for f in schema], metadata=schema.metadata)
    rows = (batch.cast(schema) for batch in itertools.chain([first], batches))
    return pa.RecordBatchReader.from_batches(schema, rows)

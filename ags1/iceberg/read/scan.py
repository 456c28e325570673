"""Scans of an encrypted table: PyIceberg's scans, with our planner and our reader of files.

A task reads a data file in five steps: decrypt it (Arrow decrypts Parquet's modules, AGS1 decrypts
Avro), drop deleted rows, filter, project by field ID, and yield batches. PyIceberg's ``ArrowScan``
cannot be used, because it keeps file formats in a cache of the process, and those would have keys.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias, cast

import pyarrow as pa
from pyiceberg.expressions import BooleanExpression
from pyiceberg.manifest import ManifestContent, ManifestEntry, ManifestEntryStatus
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask, IncrementalAppendScan
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, ancestors_between_ids

from ..pyiceberg.arrow import arrow_schema
from ..pyiceberg.scans import PlannedScan, appends_between
from ..spec.constants import PARTITION_ID
from ..storage.table_files import TableFiles
from .ahead import in_order, is_large, read_ahead
from .arrow_stream import ArrowStream
from .filters import as_sql, bound_filter
from .metadata_columns import (
    METADATA_COLUMNS,
    names_any,
    select,
    without_metadata_columns,
)
from .partition_column import PARTITION, partition_column
from .planning import EncryptedPlanner
from .records import ContentFile
from .snapshots import to_table_files
from .tasks import TaskReader

# What a stream of batches reads ahead, in stored bytes.
_READ_AHEAD = 128 << 20

_Scan: TypeAlias = "EncryptedScan | EncryptedIncrementalScan"


class EncryptedScan(PlannedScan, ArrowStream):
    """A scan of one snapshot. It does not use server-side planning: a server cannot give keys.

    Filters follow SQL: null satisfies no comparison. So ``x != 1`` and ``x not in (1, 2)`` leave
    out the rows where x is null, in ``count()`` too. PyIceberg keeps some of these rows, depending
    on where the null is stored.
    """

    def projection(self) -> Schema:
        """Return the columns that the scan reads. Metadata columns (``_file``, ``_pos``,
        ``_spec_id``, ``_partition``, ``_row_id``, ``_last_updated_sequence_number``) must be
        selected by name. Raises ValueError for a column that does not exist, and as
        ``partition_column``."""
        return _projection(self, super().projection)

    def planner(self) -> EncryptedPlanner:
        """Return the planner of the scan."""
        return _planner(self)

    def plan_files(self) -> list[FileScanTask]:
        """Return the tasks. Each has a data file and the delete files that apply to it.

        Code that opens these files itself has no keys: see ``ContentFile.file_format``. Raises
        NotEncryptedError, MetadataIntegrityError, AuthenticationError, TruncatedError, KmsError,
        and NotImplementedError for ORC files.
        """
        return _mark_handed_out(self._tasks())

    def _tasks(self) -> list[FileScanTask]:
        return list(self.plan_locally())

    def plain_files(self) -> int:
        """Return the number of unencrypted data files that the scan reads."""
        return sum(not cast("ContentFile", task.file).is_encrypted for task in self._tasks())

    def to_arrow(self, dictionary_columns: tuple[str, ...] = ()) -> pa.Table:
        """Return the rows. Raises as ``plan_files`` does, and UnsupportedTypeError if the type of a
        column is not supported. If a file is damaged, no row is returned."""
        return _table(_reader(self, dictionary_columns), self._tasks())

    def to_arrow_batch_reader(
        self, dictionary_columns: tuple[str, ...] = ()
    ) -> pa.RecordBatchReader:
        """Return the rows as a stream. Small files and a part of a large one are read ahead."""
        reader = _reader(self, dictionary_columns)
        return _batch_reader(reader, self._tasks(), dictionary_columns)

    def count(self) -> int:
        """Return the number of rows, up to the scan's limit. Files are read only if the manifests
        are not enough."""
        return _count(self)

    def count_by_manifests(self) -> tuple[int, list[FileScanTask]]:
        """Return the number of rows in the files that the manifests are enough for, and the tasks
        of the other files, without regard to the limit. Manifests are enough for a file if all of
        its rows match the filter and none is deleted."""
        return _count_by_manifests(self)


class EncryptedIncrementalScan(IncrementalAppendScan, ArrowStream):
    """A scan of the rows appended between two snapshots, with the filters of ``EncryptedScan``."""

    def projection(self) -> Schema:
        """Return the columns that the scan reads, as ``EncryptedScan.projection``."""
        return _projection(self, super().projection)

    def plan_files(self) -> list[FileScanTask]:
        """Return the tasks of the appended files, as ``EncryptedScan.plan_files``."""
        return _mark_handed_out(self._tasks())

    def _tasks(self) -> list[FileScanTask]:
        is_open = self.from_snapshot_id is None and self.to_snapshot_id is None
        if is_open and self.table_metadata.current_snapshot() is None:
            return []
        first, last = appends_between(self)
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

        def is_appended(entry: ManifestEntry) -> bool:
            return entry.snapshot_id in appends and entry.status == ManifestEntryStatus.ADDED

        return _planner(self).plan_files(manifests, is_appended)

    def count(self) -> int:
        """Return the number of rows, as ``EncryptedScan.count``."""
        return _count(self)

    def to_arrow(self) -> pa.Table:
        """Return the rows, as ``EncryptedScan.to_arrow``."""
        return _table(_reader(self), self._tasks())

    def to_arrow_batch_reader(self) -> pa.RecordBatchReader:
        """Return the rows as a stream, as ``EncryptedScan.to_arrow_batch_reader``."""
        return _batch_reader(_reader(self), self._tasks())


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
        bound = bound_filter(row_filter, metadata.schema(), case_sensitive=case_sensitive)
        self._tasks = TaskReader(files, metadata, projected, bound, dictionary_columns)

    def batches(
        self, tasks: Iterable[FileScanTask], *, ahead: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows, up to the scan's limit. If ``ahead`` is given, at most that many stored
        bytes are read ahead, and no large file is held whole."""
        rows_to_return = self._limit
        if rows_to_return is not None and rows_to_return <= 0:
            return
        tasks = list(tasks)
        one_by_one = ahead is not None and any(is_large(_size(task)) for task in tasks)
        self._tasks.share(1 if one_by_one else len(tasks))
        for batch in self._batches(tasks, ahead):
            if rows_to_return is None:
                yield batch
                continue
            yield batch.slice(0, rows_to_return)
            rows_to_return -= batch.num_rows
            if rows_to_return <= 0:
                return

    def _batches(self, tasks: list[FileScanTask], ahead: int | None) -> Iterator[pa.RecordBatch]:
        if ahead is None:
            return itertools.chain.from_iterable(read_ahead(self._read, tasks))
        return in_order(self._tasks.batches, self._read, tasks, _size, ahead)

    def counts(self, tasks: Iterable[FileScanTask]) -> Iterator[int]:
        """Yield the number of rows of each task, without regard to the limit."""
        return read_ahead(self._tasks.count, tasks)

    def _read(self, task: FileScanTask) -> list[pa.RecordBatch]:
        batches: list[pa.RecordBatch] = []
        rows = 0
        for batch in self._tasks.batches(task):
            batches.append(batch)
            rows += batch.num_rows
            if self._limit is not None and rows >= self._limit:
                break
        return batches


def _size(task: FileScanTask) -> int:
    return task.file.file_size_in_bytes


def _mark_handed_out(tasks: list[FileScanTask]) -> list[FileScanTask]:
    """Note in the files of tasks that a caller gets them; return the tasks."""
    for task in tasks:
        for file in (task.file, *task.delete_files):
            cast("ContentFile", file).is_handed_out = True
    return tasks


def _projection(scan: _Scan, of_pyiceberg: Callable[[], Schema]) -> Schema:
    if not names_any(scan.selected_fields):
        return of_pyiceberg()
    everything = scan.update(selected_fields=("*",)).projection()
    beside = METADATA_COLUMNS
    if any(name.lower() == PARTITION for name in scan.selected_fields):
        beside = {**beside, PARTITION_ID: partition_column(scan.table_metadata)}
    return select(
        everything, scan.selected_fields, case_sensitive=scan.case_sensitive, beside=beside
    )


def _of_manifests(scan: _Scan) -> BooleanExpression:
    """Return the part of a scan's filter that manifests can decide. If that is all of it, return
    the filter itself."""
    schema = scan.table_metadata.schema()
    return without_metadata_columns(scan.row_filter, schema, case_sensitive=scan.case_sensitive)


def _count(scan: _Scan) -> int:
    count, rest = _count_by_manifests(scan)
    limit = math.inf if scan.limit is None else max(0, scan.limit)
    for more in _reader(scan, projected=Schema()).counts(rest) if count < limit else ():
        count += more
        if count >= limit:
            break
    return int(min(count, limit))


def _count_by_manifests(scan: _Scan) -> tuple[int, list[FileScanTask]]:
    planner = _planner(scan)
    # Manifests have nothing about metadata columns.
    is_exact = _of_manifests(scan) is scan.row_filter
    count = 0
    rest = []
    for task in _mark_handed_out(scan._tasks()):
        # Like Java, which counts by metadata only if nothing is deleted: the entry of a deletion
        # vector has the number of its positions, and some of them may be behind the file's end.
        untouched = is_exact and not task.delete_files
        if untouched and planner.file_filter.of_file(task.file):
            count += task.file.record_count
        else:
            rest.append(task)
    return count, rest


def _planner(scan: _Scan) -> EncryptedPlanner:
    schema, case_sensitive = scan.table_metadata.schema(), scan.case_sensitive
    return EncryptedPlanner(
        table_metadata=scan.table_metadata,
        io=scan.io,
        row_filter=as_sql(_of_manifests(scan), schema, case_sensitive=case_sensitive),
        case_sensitive=case_sensitive,
        options=scan.options,
    )


def _reader(
    scan: _Scan, dictionary_columns: tuple[str, ...] = (), *, projected: Schema | None = None
) -> ScanReader:
    return ScanReader(
        to_table_files(scan.io),
        scan.table_metadata,
        scan.projection() if projected is None else projected,
        scan.row_filter,
        scan.case_sensitive,
        scan.limit,
        dictionary_columns,
    )


def _table(reader: ScanReader, tasks: list[FileScanTask]) -> pa.Table:
    batches = list(reader.batches(tasks))
    if not batches:
        return arrow_schema(reader.projected, include_field_ids=False).empty_table()
    # The types of the files may differ, for example strings and large strings.
    tables = [pa.Table.from_batches([batch]) for batch in batches]
    return pa.concat_tables(tables, promote_options="permissive")


def _batch_reader(
    reader: ScanReader, tasks: list[FileScanTask], dictionary_columns: tuple[str, ...] = ()
) -> pa.RecordBatchReader:
    schema = arrow_schema(reader.projected)
    batches = reader.batches(tasks, ahead=_READ_AHEAD)
    if dictionary_columns:
        # Whether a column is encoded is known from the first batch.
        first = list(itertools.islice(batches, 1))
        batches = itertools.chain(first, batches)
        encoded = {f.name: f for b in first for f in b.schema if pa.types.is_dictionary(f.type)}
        schema = pa.schema([encoded.get(f.name, f) for f in schema], metadata=schema.metadata)
    rows = (batch.cast(schema) for batch in batches)
    return pa.RecordBatchReader.from_batches(schema, rows)

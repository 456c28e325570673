"""Scans of an encrypted table: PyIceberg's scans, with our planner and our reader of files.

A task reads a data file in five steps: decrypt it (Parquet by columns, Avro by AGS1's blocks), drop
deleted rows, filter, project by field ID, and yield batches. PyIceberg's ``ArrowScan`` cannot be
used, because it keeps file formats in a cache of the process, and those would have keys.
"""

from __future__ import annotations

import functools
import itertools
import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
from pyiceberg.expressions import And, BooleanExpression
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestContent, ManifestEntry, ManifestEntryStatus
from pyiceberg.schema import Schema
from pyiceberg.table import ALWAYS_TRUE, FileScanTask, IncrementalAppendScan
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Operation, ancestors_between_ids
from pyiceberg.typedef import EMPTY_DICT, Properties
from pyiceberg.types import strtobool

from ...columns.arrow_nested import cast_rows
from ..pyiceberg.arrow import arrow_schema
from ..pyiceberg.expressions import parse_row_filter
from ..pyiceberg.scans import PlannedScan, appends_between
from ..spec.constants import PARTITION_ID
from ..storage.table_files import TableFiles
from ..storage.workers import workers
from .ahead import in_order, is_large, read_ahead
from .arrow_stream import ArrowStream
from .binding import BoundFilter, bind_filter
from .metadata_columns import METADATA_COLUMNS, names_any, select
from .partition_column import PARTITION, partition_column
from .planning import EncryptedPlanner
from .polars_batches import PolarsReader, is_read_by_polars
from .pruning import FileFilter
from .records import ContentFile
from .snapshots import to_table_files
from .tasks import TaskReader

if TYPE_CHECKING:
    import duckdb

# What a stream of batches reads ahead, in stored bytes.
_READ_AHEAD = 128 << 20


class _PlannedHere(ArrowStream):
    """What both kinds of scans have: the columns of the rows and of the filter, the planner, and
    the rows of the tasks."""

    table_metadata: TableMetadata
    io: FileIO
    row_filter: BooleanExpression
    selected_fields: tuple[str, ...]
    case_sensitive: bool
    options: Properties
    limit: int | None
    update: Callable[..., Any]

    def _tasks(self) -> list[FileScanTask]:
        raise NotImplementedError

    @functools.cached_property
    def schema(self) -> Schema:
        """The schema that the filter and the selected columns name."""
        return self.table_metadata.schema()

    @functools.cached_property
    def bound_filter(self) -> BoundFilter:
        """The filter, bound to the columns of ``schema``. Raises as ``bind_filter``."""
        return bind_filter(
            self.row_filter,
            self.schema,
            case_sensitive=self.case_sensitive,
            metadata_columns=True,
        )

    def filter(self, expr: str | BooleanExpression) -> Any:
        """Return this scan with another filter, of which both have to be true."""
        return self.update(row_filter=And(self.row_filter, parse_row_filter(expr)))

    def projection(self) -> Schema:
        """Return the columns that the scan reads. Metadata columns (``_file``, ``_pos``,
        ``_spec_id``, ``_partition``, ``_row_id``, ``_last_updated_sequence_number``) must be
        selected by name. Raises ValueError for a column that does not exist, and as
        ``partition_column``."""
        names, case_sensitive = self.selected_fields, self.case_sensitive
        if not names_any(names):
            if "*" in names:
                return self.schema
            return self.schema.select(*names, case_sensitive=case_sensitive)
        beside = METADATA_COLUMNS
        if any(name.lower() == PARTITION for name in names):
            beside = {**beside, PARTITION_ID: partition_column(self.table_metadata)}
        return select(self.schema, names, case_sensitive=case_sensitive, beside=beside)

    def planner(self) -> EncryptedPlanner:
        """Return the planner of the scan."""
        metadata = self.table_metadata
        of_files = FileFilter(
            self.bound_filter.for_manifests(),
            metadata.specs(),
            include_empty_files=strtobool(self.options.get("include_empty_files", "false")),
        )
        return EncryptedPlanner(metadata, self.io, of_files, self.row_filter)

    def plan_files(self) -> list[FileScanTask]:
        """Return the tasks. Each has a data file and the delete files that apply to it.

        Code that opens these files itself has no keys: see ``ContentFile.file_format``. Raises
        NotEncryptedError, MetadataIntegrityError, AuthenticationError, TruncatedError, KmsError,
        and NotImplementedError for ORC files.
        """
        tasks = self._tasks()
        for task in tasks:
            for file in (task.file, *task.delete_files):
                cast("ContentFile", file).is_handed_out = True
        return tasks

    def plain_files(self) -> int:
        """Return the number of unencrypted data files that the scan reads."""
        return sum(not cast("ContentFile", task.file).is_encrypted for task in self._tasks())

    def to_arrow(self, dictionary_columns: tuple[str, ...] = ()) -> pa.Table:
        """Return the rows. Raises as ``plan_files`` does, and UnsupportedTypeError if the type of a
        column is not supported. If a file is damaged, no row is returned."""
        return self._table(self._reader(self.projection(), dictionary_columns), self._tasks())

    def _table(self, reader: ScanReader, tasks: list[FileScanTask]) -> pa.Table:
        batches = list(reader.batches(tasks))
        if not batches:
            return arrow_schema(reader.projected, include_field_ids=False).empty_table()
        # The types of the files may differ, for example strings and large strings.
        tables = [pa.Table.from_batches([batch]) for batch in batches]
        return pa.concat_tables(tables, promote_options="permissive")

    def to_arrow_batch_reader(
        self, dictionary_columns: tuple[str, ...] = ()
    ) -> pa.RecordBatchReader:
        """Return the rows as a stream. Small files and a part of a large one are read ahead. If
        Polars asks, its own reader reads what it can, and the batches have several schemas."""
        reader = self._reader(self.projection(), dictionary_columns)
        schema = arrow_schema(reader.projected)
        if is_read_by_polars(self.io):
            return cast("pa.RecordBatchReader", reader.for_polars(self._tasks(), schema))
        batches = reader.batches(self._tasks(), ahead=_READ_AHEAD)
        if dictionary_columns:
            # Whether a column is encoded is known from the first batch.
            first = list(itertools.islice(batches, 1))
            batches = itertools.chain(first, batches)
            encoded = {f.name: f for b in first for f in b.schema if pa.types.is_dictionary(f.type)}
            schema = pa.schema([encoded.get(f.name, f) for f in schema], metadata=schema.metadata)
        rows = (cast_rows(batch, schema) for batch in batches)
        return pa.RecordBatchReader.from_batches(schema, rows)

    def to_duckdb(
        self, table_name: str, connection: duckdb.DuckDBPyConnection | None = None
    ) -> duckdb.DuckDBPyConnection:
        """Return a connection in which ``table_name`` has the rows of the scan.

        DuckDB's own Parquet reader reads the files of which it needs all rows and has all types,
        when a query asks, and only the columns and row groups of the query. Rows of other files,
        for example of those with deletes, are read now, into memory. SQL of the connection can also
        read what the scan leaves out of the files. Raises ImportError if DuckDB is not installed,
        and as ``to_arrow``. If a query fails, DuckDB raises its own exception with our text.
        """
        import duckdb  # optional

        from .duckdb_files import views

        connection = connection or duckdb.connect()
        tasks = self._tasks()
        reader = self._reader(self.projection())
        shown, rest = reader.for_duckdb(tasks) if self.limit is None else ([], tasks)
        files, rows = to_table_files(self.io), self._table(reader, rest)
        made = views(connection)
        if shown and made.show(
            connection, table_name, files, shown, rows, reader.projected, self.bound_filter
        ):
            return connection
        made.register(connection, table_name, self._table(reader, tasks) if shown else rows)
        return connection

    def count(self) -> int:
        """Return the number of rows, up to the scan's limit. Files are read only if the manifests
        are not enough."""
        count, rest = self.count_by_manifests()
        limit = math.inf if self.limit is None else max(0, self.limit)
        for more in self._reader(Schema()).counts(rest) if count < limit else ():
            count += more
            if count >= limit:
                break
        return int(min(count, limit))

    def count_by_manifests(self) -> tuple[int, list[FileScanTask]]:
        """Return the number of rows in the files that the manifests are enough for, and the tasks
        of the other files, without regard to the limit. Manifests are enough for a file if all of
        its rows match the filter and none is deleted."""
        file_filter = self.planner().file_filter
        # Manifests have nothing about metadata columns.
        is_exact = self.bound_filter.is_for_manifests
        count = 0
        rest = []
        for task in self.plan_files():
            # Like Java, which counts by metadata only if nothing is deleted: the entry of a
            # deletion vector has the number of its positions, and some may be behind the file's
            # end.
            untouched = is_exact and not task.delete_files
            if untouched and file_filter.of_file(task.file):
                count += task.file.record_count
            else:
                rest.append(task)
        return count, rest

    def _reader(self, projected: Schema, dictionary_columns: tuple[str, ...] = ()) -> ScanReader:
        return ScanReader(
            to_table_files(self.io),
            self.table_metadata,
            projected,
            self.bound_filter,
            self.limit,
            dictionary_columns,
        )


class EncryptedScan(_PlannedHere, PlannedScan):
    """A scan of one snapshot. It does not use server-side planning: a server cannot give keys.

    Filters follow SQL: null satisfies no comparison. So ``x != 1`` and ``x not in (1, 2)`` leave
    out the rows where x is null, in ``count()`` too. PyIceberg keeps some of these rows, depending
    on where the null is stored.

    Its columns are those that Java takes, for the rows and for the filter: if a snapshot is chosen
    by its ID or by a tag, those of the snapshot; for a branch, and by default, the table's.
    PyIceberg takes the snapshot's for a branch, and the table's for every filter. ``schema_id``
    says otherwise. The other arguments, of which there are more than eight, are PyIceberg's.
    """

    def __init__(
        self,
        table_metadata: TableMetadata,
        io: FileIO,
        row_filter: str | BooleanExpression = ALWAYS_TRUE,
        selected_fields: tuple[str, ...] = ("*",),
        case_sensitive: bool = True,
        snapshot_id: int | None = None,
        options: Properties = EMPTY_DICT,
        limit: int | None = None,
        schema_id: int | None = None,
    ) -> None:
        super().__init__(
            table_metadata,
            io,
            parse_row_filter(row_filter),
            selected_fields,
            case_sensitive,
            snapshot_id,
            options,
            limit,
        )
        self.schema_id = schema_id

    @functools.cached_property
    def schema(self) -> Schema:
        """The schema that the filter and the selected columns name. Raises ValueError if the table
        has no such snapshot."""
        metadata, schema_id = self.table_metadata, self.schema_id
        if schema_id is None and self.snapshot_id is not None:
            snapshot = metadata.snapshot_by_id(self.snapshot_id)
            if snapshot is None:
                raise ValueError(f"Snapshot not found: {self.snapshot_id}")
            schema_id = snapshot.schema_id
        if schema_id is None:
            return metadata.schema()
        schema = metadata.schema_by_id(schema_id)
        if schema is None:
            warnings.warn(f"Metadata does not contain schema with id: {schema_id}", stacklevel=3)
            return metadata.schema()
        return schema

    def use_ref(self, name: str) -> EncryptedScan:
        """Return a scan of the head of a branch, with the table's columns, or of a tag, with those
        of its snapshot. Raises ValueError as PyIceberg's."""
        scan: EncryptedScan = super().use_ref(name)
        if self.table_metadata.refs[name].snapshot_ref_type == SnapshotRefType.TAG:
            return scan
        of_branch: EncryptedScan = scan.update(schema_id=self.table_metadata.current_schema_id)
        return of_branch

    def _tasks(self) -> list[FileScanTask]:
        return list(self.plan_locally())


class EncryptedIncrementalScan(_PlannedHere, IncrementalAppendScan):
    """A scan of the rows appended between two snapshots, with the table's columns and the filters
    of ``EncryptedScan``."""

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

        return self.planner().plan_files(manifests, is_appended)


class ScanReader:
    """Reads the tasks of one scan, several at a time, and yields their rows in the tasks' order."""

    def __init__(
        self,
        files: TableFiles,
        metadata: TableMetadata,
        projected: Schema,
        row_filter: BoundFilter,
        limit: int | None,
        dictionary_columns: tuple[str, ...],
    ) -> None:
        self.projected = projected
        self._limit = limit
        self._row_filter = row_filter
        self._polars: PolarsReader | None = None
        self._pool = workers(files, metadata.location)
        self._tasks = TaskReader(files, metadata, projected, row_filter, dictionary_columns)

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

    def for_polars(
        self, tasks: Iterable[FileScanTask], schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows, those that Arrow has to read in this schema."""
        polars = PolarsReader(self.projected, self._row_filter, self._limit)
        self._polars = None if polars.row_filter is None else polars
        for batch in self.batches(tasks, ahead=_READ_AHEAD):
            is_polars = batch.schema.equals(polars.arrow_schema)
            yield batch if is_polars else cast_rows(batch, schema)

    def for_duckdb(
        self, tasks: list[FileScanTask]
    ) -> tuple[list[tuple[ContentFile, int]], list[FileScanTask]]:
        """Return the files that DuckDB can read, with the sizes of their plaintexts (bytes), and
        the tasks that Arrow has to read."""
        sizes = list(read_ahead(self._tasks.plain_size, tasks, pool=self._pool))
        pairs = list(zip(tasks, sizes, strict=True))
        shown = [(cast("ContentFile", t.file), s) for t, s in pairs if s is not None]
        return shown, [task for task, size in pairs if size is None]

    def _batches(self, tasks: list[FileScanTask], ahead: int | None) -> Iterator[pa.RecordBatch]:
        if ahead is None:
            return itertools.chain.from_iterable(read_ahead(self._read, tasks, pool=self._pool))
        return in_order(self._tasks.batches, self._read, tasks, _size, ahead, self._pool)

    def counts(self, tasks: Iterable[FileScanTask]) -> Iterator[int]:
        """Yield the number of rows of each task, without regard to the limit."""
        return read_ahead(self._tasks.count, tasks, pool=self._pool)

    def _read(self, task: FileScanTask) -> list[pa.RecordBatch]:
        if self._polars is not None:
            found = self._tasks.by_other(task, self._polars.batches)
            if found is not None:
                return found
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

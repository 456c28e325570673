"""Reads one task of a scan: a data file's rows, without the deleted ones, filtered, in the table's
schema.

The specification gives the order of the steps. In this example a file has six rows, and the task
has a deletion vector of position 1, an equality delete of ``id = 13``, and the filter ``id > 10``::

    rows of the file, id      10  11  12  13  14  15
    position deletes               x                      positions count all rows of the file
    equality deletes                       x
    filter                     x
    rows of the task                  12      14  15      then projected to the table's schema
    their positions                    2       4   5

Arrow can apply the filter to a Parquet file while it reads, and skip parts of the file. But then
positions are unknown. So that is done only if nothing needs them. ``planning`` makes the tasks,
``columns`` opens the files, ``deletes`` reads the delete files.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysFalse, AlwaysTrue
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import FileFormat
from pyiceberg.schema import Schema, prune_columns
from pyiceberg.table import FileScanTask
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import DoubleType, FloatType
from pyroaring import BitMap64

from ...host.cpu import usable_cpus
from ..spec.column_types import as_stored, check_readable, with_struct_defaults
from ..spec.constants import FILE_ID, PARTITION_ID, POSITION_ID, ROW_ID, SPEC_ID
from ..storage.table_files import TableFiles
from .binding import EVERY_ROW, BoundFilter
from .columns import FileReader, Rows, leaf_ids
from .deletes import DeleteReader, PuffinCache
from .filters import RowFilter
from .kept_rows import KeptRows
from .metadata_columns import LINEAGE_IDS, METADATA_COLUMNS
from .open_files import FileColumns, OpenAvro, OpenParquet
from .partition_column import partitions
from .records import ContentFile
from .row_expressions import read_alike
from .single_flight import SingleFlight

_Result = TypeVar("_Result")

_METADATA_IDS = METADATA_COLUMNS.keys() | {PARTITION_ID}
_ARROW_TYPES = {i: schema_to_pyarrow(f.field_type) for i, f in METADATA_COLUMNS.items()}


@dataclass(slots=True)
class Matches:
    """Where a filter is true in a data file: the ``positions`` of rows that were not deleted.
    ``deleted`` are the positions in its deletion vector and position deletes. ``live`` is the
    number of rows that no delete of any kind has removed."""

    positions: BitMap64
    deleted: BitMap64
    live: int = 0


class TaskReader:
    """Reads the tasks of one scan. Any number of threads may use it at once.

    ``projected`` is the schema of the returned rows.
    ``puffins`` reads the files of deletion vectors, None for encrypted ones. Raises
    UnsupportedTypeError if the type of a column is not supported.
    """

    def __init__(
        self,
        files: TableFiles,
        metadata: TableMetadata,
        projected: Schema,
        row_filter: BoundFilter = EVERY_ROW,
        dictionary_columns: tuple[str, ...] = (),
        puffins: PuffinCache | None = None,
    ) -> None:
        check_readable(projected)
        schema = row_filter.schema if row_filter.schema.fields else metadata.schema()
        self._projected = projected = as_stored(with_struct_defaults(projected, schema))
        self._reader = FileReader(files, metadata, projected, schema)
        self._deletes = DeleteReader(self._reader, puffins)
        self._dictionary_columns = dictionary_columns
        compared = (f for f in row_filter.schema.fields if f.field_id in row_filter.field_ids)
        self._named = tuple({f.field_id: f for f in (*projected.fields, *compared)}.values())
        self._matches_none = row_filter.expression == AlwaysFalse()
        metadata_ids = _METADATA_IDS & projected.field_ids
        # The projected columns that files have. If that is all of them, it is the same object.
        self._file_part = projected
        if metadata_ids:
            fields = (f for f in projected.fields if f.field_id not in metadata_ids)
            self._file_part = Schema(*fields)
        field_ids = leaf_ids(self._file_part)
        self._filter: RowFilter | None = None
        if row_filter.expression != AlwaysTrue():
            self._filter = RowFilter(row_filter)
            metadata_ids |= METADATA_COLUMNS.keys() & row_filter.field_ids
            field_ids |= leaf_ids(as_stored(prune_columns(schema, set(self._filter.field_ids))))
        # Files may have columns of row lineage, but no other metadata column.
        self._field_ids = field_ids - METADATA_COLUMNS.keys() | metadata_ids & LINEAGE_IDS
        self._specs = metadata.specs()
        self._needs_positions = not metadata_ids.isdisjoint((POSITION_ID, ROW_ID))
        # The filter's schema has columns that are not projected.
        self._filter_schemas = SingleFlight[int, Schema](
            lambda field_id: as_stored(
                with_struct_defaults(prune_columns(schema, {field_id}), schema)
            )
        )
        self._file_filters: SingleFlight[
            tuple[FileColumns, frozenset[int]], pc.Expression | None
        ] = SingleFlight(lambda key: self._filter and self._filter.for_file(key[0].schema, key[1]))

    def share(self, tasks: int) -> None:
        """Divide the CPUs among this number of tasks. If there are few Avro files, each is read in
        parallel pieces. Parquet files use Arrow's own threads."""
        self._reader.threads = max(1, usable_cpus() // max(1, tasks))

    def batches(
        self, task: FileScanTask, split: tuple[int, int] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the task's rows in the projected schema.

        ``split`` is an offset and a length, in bytes of the file. Adjoining splits have each row
        once. Avro files are split at sync markers, Parquet files at row groups. The number of rows
        of a split file is not compared with the manifest's.
        """
        for rows in self._rows(task, split=split):
            if self._file_part is self._projected:
                yield self._reader.project(self._projected, rows)
            else:
                yield self._with_metadata_columns(rows)

    def count(self, task: FileScanTask, split: tuple[int, int] | None = None) -> int:
        """Return the number of the task's rows in ``split``, which is as in ``batches``."""
        return sum(rows.batch.num_rows for rows in self._rows(task, split=split))

    def by_other(self, task: FileScanTask, read: Callable[[bytes], _Result]) -> _Result | None:
        """Return what another reader of Parquet makes of the plaintext of a task's file. It has the
        columns of the projected schema and of the filter. The text is empty if no row of the file
        can match the filter. Returns None if Arrow has to read the file, and for large files."""
        file, _ = _files_of(task)
        with self._for_others(task) as opened:
            if opened is None:
                return None
            # No variable has the plaintext, so that its memory is free for the next file.
            return opened.plaintext(self._arrow_filter(opened, file), read)

    def plain_size(self, task: FileScanTask) -> int | None:
        """Return the size (bytes) of the plaintext of a task's file, which another reader may read
        with its statistics; None if Arrow has to read the file."""
        file, _ = _files_of(task)
        counts = file.nan_value_counts or {}
        floats = (FloatType, DoubleType)
        named = Schema(*self._named)
        if any(
            counts.get(i) != 0 for i in leaf_ids(named) if isinstance(named.find_type(i), floats)
        ):
            # Parquet's statistics say nothing of NaN.
            return None
        with self._for_others(task) as opened:
            return None if opened is None else opened.plain_size

    @contextmanager
    def _for_others(self, task: FileScanTask) -> Iterator[OpenParquet | None]:
        """Open an encrypted file of which another reader than Arrow may read the plaintext: its
        rows and columns are, as they are, those of the task. Yields None for other files."""
        file, deletes = _files_of(task)
        is_whole = not deletes and self._file_part is self._projected and not self._matches_none
        if not is_whole or not file.is_encrypted or file.stored_format != FileFormat.PARQUET:
            yield None
            return
        columns = self._reader.table_columns(self._field_ids)
        with self._reader.open(file, columns) as opened:
            assert isinstance(opened, OpenParquet)
            is_alike = read_alike(self._named, opened.columns.schema) and not opened.has_int96
            yield opened if is_alike else None

    def matches(self, task: FileScanTask) -> Matches:
        """Return the positions of the rows that are not deleted and that the filter matches."""
        matches = Matches(BitMap64(), self.deleted_positions(task))
        for rows in self._rows(task, located=True):
            assert rows.positions is not None
            matches.positions.update(array("Q", rows.positions.to_pylist()))
            matches.live += rows.live
        return matches

    def remaining(
        self, task: FileScanTask, deleted: BitMap64
    ) -> Iterator[tuple[pa.RecordBatch, pa.Array]]:
        """Yield the task's rows and their positions in the file. ``deleted`` are the positions of
        the deleted rows; they replace the position deletes of the task."""
        for rows in self._rows(task, located=True, deleted=deleted):
            if rows.batch.num_rows:
                yield self._reader.project(self._projected, rows), rows.positions

    def deleted_positions(self, task: FileScanTask) -> BitMap64:
        """Return the positions in the task's deletion vector and position deletes."""
        deleted = self._deletes.deleted_positions(*_files_of(task))
        return BitMap64() if deleted is None else deleted

    def position_deletes(self, delete: ContentFile) -> dict[str, BitMap64]:
        """Return the positions in a position delete file, by the data file's path."""
        return self._deletes.positions_in(delete)

    def _rows(
        self,
        task: FileScanTask,
        *,
        located: bool = False,
        split: tuple[int, int] | None = None,
        deleted: BitMap64 | None = None,
    ) -> Iterator[Rows]:
        """Yield the task's rows in the file's own columns. If ``located``, they have positions, and
        empty batches are yielded too. ``deleted`` is as in ``remaining``."""
        if self._matches_none:
            return
        file, deletes = _files_of(task)
        if deleted is None:
            deleted = self._deletes.deleted_positions(file, deletes)
        deleted_keys = self._deletes.deleted_keys(deletes)
        has_positions = located or self._needs_positions
        wanted = self._reader.table_columns(
            self._field_ids.union(*(field_ids for field_ids, _ in deleted_keys))
        )
        # Positions count all rows, so Arrow must not filter any out.
        counts_rows = has_positions or deleted is not None
        with self._reader.open(file, wanted, self._dictionary_columns) as opened:
            columns = opened.columns
            missing = self._reader.partition_values(file, wanted, columns.schema.field_ids)
            arrow_filter = None if counts_rows else self._arrow_filter(opened, file)
            own_filter = self._filter if arrow_filter is None else None
            first = opened.rows_before(split[0]) if split is not None and counts_rows else 0
            for batch in opened.read(arrow_filter, split):
                end = first + batch.num_rows
                positions = pa.arange(first, end) if has_positions else None
                rows = Rows(columns.read, missing, batch, positions, file=file)
                if deleted is not None:
                    rows = rows.only(KeptRows(deleted, first, batch.num_rows))
                first = end
                for field_ids, keys in deleted_keys:
                    key_columns = self._deletes.key_columns(field_ids, rows)
                    rows = rows.where(keys.not_deleted(key_columns))
                live = rows.batch.num_rows
                if own_filter is not None:
                    rows = rows.where(self._mask(own_filter, rows))
                if located or rows.batch.num_rows:
                    yield rows._replace(live=live)

    def _arrow_filter(
        self, opened: OpenParquet | OpenAvro, file: ContentFile
    ) -> pc.Expression | None:
        """Return the filter for Arrow to apply while it reads a file; None if Arrow cannot."""
        if not opened.can_filter or self._filter is None:
            return None
        counts = file.nan_value_counts or {}
        without_nan = frozenset(i for i in self._filter.float_ids if counts.get(i) == 0)
        return self._file_filters((opened.columns, without_nan))

    def _mask(self, row_filter: RowFilter, rows: Rows) -> pa.Array:
        return row_filter.mask(
            self._metadata_column(i, rows)
            if i in METADATA_COLUMNS
            else self._reader.column(self._filter_schemas(i), i, rows)
            for i in row_filter.field_ids
        )

    def _with_metadata_columns(self, rows: Rows) -> pa.RecordBatch:
        columns: list[pa.Array] = []
        fields: list[pa.Field] = []
        of_file: Iterator[tuple[pa.Array, pa.Field]] = iter(())
        if self._file_part.fields:
            batch = self._reader.project(self._file_part, rows)
            of_file = zip(batch.columns, batch.schema, strict=True)
        for field in self._projected.fields:
            if field.field_id == PARTITION_ID:
                assert rows.file is not None
                spec = self._specs[rows.file.spec_id]
                column = partitions(field, rows.file, spec, rows.batch.num_rows)
                kind = pa.field(field.name, column.type)
            elif field.field_id in METADATA_COLUMNS:
                column = self._metadata_column(field.field_id, rows)
                if field.name in self._dictionary_columns:
                    column = column.dictionary_encode()
                kind = pa.field(field.name, column.type, nullable=field.optional)
            else:
                column, kind = next(of_file)
            columns.append(column)
            fields.append(kind)
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))

    def _metadata_column(self, field_id: int, rows: Rows) -> pa.Array:
        file, count = rows.file, rows.batch.num_rows
        assert file is not None
        if field_id == POSITION_ID:
            return rows.positions
        field = METADATA_COLUMNS[field_id]
        kind = _ARROW_TYPES[field_id]
        if field_id in (FILE_ID, SPEC_ID):
            value = file.file_path if field_id == FILE_ID else file.spec_id
            return pa.repeat(pa.scalar(value, kind), count)
        if file.first_row_id is None:
            return pa.nulls(count, kind)
        is_stored = any(field_id == stored.field_id for stored in rows.schema.fields)
        if field_id == ROW_ID:
            inherited = pc.add(rows.positions, file.first_row_id)
        else:
            inherited = pa.repeat(pa.scalar(file.sequence_number, kind), count)
        if not is_stored:
            return inherited
        # If rows were moved from another file, the file has their former values.
        return pc.coalesce(self._reader.project(Schema(field), rows).column(0), inherited)


def _files_of(task: FileScanTask) -> tuple[ContentFile, set[ContentFile]]:
    return cast("ContentFile", task.file), cast("set[ContentFile]", task.delete_files)

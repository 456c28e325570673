"""Reads one task of a scan: a data file's rows, without the deleted ones, filtered, in the table's
schema.

The specification gives the order of the steps::

    open the file -> position deletes -> equality deletes -> filter -> project

Positions count all rows of the file, so position deletes come first. Arrow decrypts Parquet, with
properties that are made for this one file and never cached. ``planning`` makes the tasks.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow.parquet.encryption import create_decryption_properties
from pyiceberg.expressions import AlwaysFalse, AlwaysTrue, BooleanExpression
from pyiceberg.expressions.visitors import extract_field_ids
from pyiceberg.io.pyarrow import pyarrow_to_schema, schema_to_pyarrow
from pyiceberg.manifest import DataFileContent, FileFormat
from pyiceberg.schema import Schema, prune_columns
from pyiceberg.table import FileScanTask
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.name_mapping import NameMapping
from pyiceberg.types import ListType, LongType, MapType, NestedField, StringType, StructType
from pyroaring import BitMap64

from ...cpu import usable_cpus
from ...errors import (
    Ags1Error,
    AuthenticationError,
    FormatError,
    MetadataIntegrityError,
    NotEncryptedError,
    TruncatedError,
)
from ...key_metadata import KeyMetadata
from ...row_groups import row_group_starts
from ..formats.avro import AvroFile, read_avro
from ..formats.parquet_modules import check_algorithm
from ..pyiceberg.arrow import column_projection_values, downcasts_ns_timestamps, project
from ..spec.column_types import WKB, as_stored, check_readable, opaque_ids, readable
from ..spec.constants import (
    FILE_ID,
    PARQUET_FIELD_ID,
    PATH_FIELD_ID,
    POSITION_FIELD_ID,
    POSITION_ID,
    ROW_ID,
    SPEC_ID,
)
from ..storage.table_files import TableFiles
from .deletes import (
    DeletedKeys,
    Once,
    PuffinCache,
    positions_by_path,
    read_deletion_vector,
    rows_kept,
)
from .filters import RowFilter
from .metadata_columns import LINEAGE_IDS, METADATA_COLUMNS
from .records import ContentFile

_BUFFER_SIZE = 8 << 20

_LINEAGE = Schema(*(METADATA_COLUMNS[i] for i in sorted(LINEAGE_IDS)))
_POSITION_DELETES = Schema(
    NestedField(PATH_FIELD_ID, "file_path", StringType(), required=True),
    NestedField(POSITION_FIELD_ID, "pos", LongType(), required=True),
)


class TaskReader:
    """Reads the tasks of one scan. Any number of threads may use it at once.

    ``projected`` is the schema of the returned rows. ``row_filter`` is bound to the table's schema.
    Raises UnsupportedTypeError if the type of a column is not supported.
    """

    def __init__(
        self,
        files: TableFiles,
        metadata: TableMetadata,
        projected: Schema,
        row_filter: BooleanExpression,
        dictionary_columns: tuple[str, ...] = (),
    ) -> None:
        check_readable(projected)
        projected = as_stored(projected)
        self._files = files
        self._metadata = metadata
        self._opaque = opaque_ids(metadata.schemas)
        self._threads = 1
        self._projected = projected
        self._matches_none = row_filter == AlwaysFalse()
        schema = metadata.schema()
        asked = METADATA_COLUMNS.keys() & projected.field_ids
        # The projected columns that files have. If that is all of them, it is the same object.
        self._stored = projected
        if asked:
            self._stored = Schema(*(f for f in projected.fields if f.field_id not in asked))
        self._field_ids = leaf_ids(self._stored)
        self._filter: RowFilter | None = None
        if row_filter != AlwaysTrue():
            filtered = METADATA_COLUMNS.keys() & extract_field_ids(row_filter)
            if filtered:
                schema = Schema(*schema.fields, *(METADATA_COLUMNS[i] for i in filtered))
                asked |= filtered
            self._filter = RowFilter(row_filter, schema)
            self._field_ids |= leaf_ids(prune_columns(schema, set(self._filter.field_ids)))
        self._field_ids = self._field_ids - METADATA_COLUMNS.keys() | asked & LINEAGE_IDS
        self._needs_places = not asked.isdisjoint((POSITION_ID, ROW_ID))
        self._dictionary_columns = dictionary_columns
        self._names = metadata.name_mapping()
        self._downcasts = bool(downcasts_ns_timestamps())
        self._puffins = PuffinCache(files)
        self._positions: Once[ContentFile, dict[str, BitMap64]] = Once(self._read_positions)
        self._deleted_keys: Once[_Keys, DeletedKeys] = Once(self._read_keys)
        self._key_schemas: Once[int, Schema] = Once(self._key_schema)
        # The filter is bound to the current schema, not to the projected one.
        self._filter_schemas: Once[int, Schema] = Once(
            lambda field_id: as_stored(prune_columns(schema, {field_id}))
        )
        # Most files of a table have the same schema, and computing what follows from it takes
        # longer than reading a small file. So it is cached.
        self._columns: Once[frozenset[int], Schema] = Once(self._table_columns)
        self._shapes: Once[tuple[bytes, frozenset[int]], _Shape] = Once(self._shape)
        self._file_filters: Once[tuple[_Shape, frozenset[int]], pc.Expression | None] = Once(
            lambda found: self._filter and self._filter.for_file(found[0].schema, found[1])
        )

    def share(self, tasks: int) -> None:
        """Divide the CPUs among this number of tasks. If there are few Avro files, each is read in
        parallel pieces. Parquet files use Arrow's own threads."""
        self._threads = max(1, usable_cpus() // max(1, tasks))

    def batches(
        self, task: FileScanTask, split: tuple[int, int] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the task's rows in the projected schema.

        ``split`` is an offset and a length, in bytes of the file. Adjoining splits have each row
        once. Avro files are split at their sync markers, Parquet files at row groups. The number of
        rows of a split file is not compared with the manifest's.
        """
        for rows in self._rows(task, split=split):
            if self._stored is self._projected:
                yield self._project(self._projected, rows)
            else:
                yield self._with_metadata_columns(rows)

    def count(self, task: FileScanTask) -> int:
        """Return the number of the task's rows."""
        return sum(rows.batch.num_rows for rows in self._rows(task))

    def matches(self, task: FileScanTask) -> Matches:
        """Return the positions of the rows that are not deleted and that the filter matches."""
        file = cast("ContentFile", task.file)
        deletes = cast("set[ContentFile]", task.delete_files)
        deleted = self._deleted_positions(file, deletes)
        found = Matches(BitMap64(), BitMap64() if deleted is None else deleted)
        for rows in self._rows(task, located=True):
            assert rows.places is not None
            found.positions.update(array("Q", rows.places.to_pylist()))
            found.live += rows.live
        return found

    def left(self, task: FileScanTask, gone: BitMap64) -> Iterator[tuple[pa.RecordBatch, pa.Array]]:
        """Yield the task's rows and their positions in the file. ``gone`` are the positions of the
        deleted rows; they replace the position deletes of the task."""
        for rows in self._rows(task, located=True, gone=gone):
            if rows.batch.num_rows:
                yield self._project(self._projected, rows), rows.places

    def position_deletes(self, delete: ContentFile) -> dict[str, BitMap64]:
        """Return the positions in a position delete file, by the data file's path."""
        return self._positions(delete)

    def _rows(
        self,
        task: FileScanTask,
        *,
        located: bool = False,
        split: tuple[int, int] | None = None,
        gone: BitMap64 | None = None,
    ) -> Iterator[_Rows]:
        """Yield the rows that stay, in the file's own columns. If ``located``, they have their
        positions in the file, and empty batches are yielded too. ``gone`` is that of ``left``."""
        if self._matches_none:
            return
        file = cast("ContentFile", task.file)
        deletes = cast("set[ContentFile]", task.delete_files)
        positions = self._deleted_positions(file, deletes) if gone is None else gone
        equality = self._equality_deletes(deletes)
        wanted = self._columns(frozenset(self._field_ids.union(*(ids for ids, _ in equality))))
        with self._open(file, wanted, self._dictionary_columns) as opened:
            shape = opened.shape
            missing = self._identity_values(file, wanted, shape.schema.field_ids)
            # Positions count all rows, so Arrow must not filter any out.
            counted = located or self._needs_places or positions is not None
            pushable = opened.filters and not counted
            pushed = self._file_filters((shape, self._without_nan(file))) if pushable else None
            left = self._filter if pushed is None else None
            first = 0
            if split is not None and counted:
                first = opened.rows_before(split[0])
            for batch in opened.read(pushed, split):
                count = batch.num_rows
                places = None
                if located or self._needs_places:
                    places = pa.arange(first, first + count)
                rows = _Rows(shape.columns, missing, batch, places, file=file)
                if positions is not None:
                    rows = rows.kept(rows_kept(positions, first, count))
                first += count
                for ids, keys in equality:
                    columns = (self._column(self._key_schemas(i), i, rows) for i in ids)
                    rows = rows.kept(keys.rows_kept(list(columns)))
                live = rows.batch.num_rows
                if left is not None:
                    rows = rows.kept(self._matching(left, rows))
                if located or rows.batch.num_rows:
                    yield rows._replace(live=live)

    def _without_nan(self, file: ContentFile) -> frozenset[int]:
        """Return the float columns of the filter that have no NaN according to the manifest."""
        counts = file.nan_value_counts or {}
        columns = frozenset() if self._filter is None else self._filter.float_ids
        return frozenset(i for i in columns if counts.get(i) == 0)

    def _matching(self, row_filter: RowFilter, rows: _Rows) -> pa.Array:
        schemas = self._filter_schemas
        return row_filter.mask(
            self._metadata_column(i, rows)
            if i in METADATA_COLUMNS
            else self._column(schemas(i), i, rows)
            for i in row_filter.field_ids
        )

    def _with_metadata_columns(self, rows: _Rows) -> pa.RecordBatch:
        columns: list[pa.Array] = []
        fields: list[pa.Field] = []
        stored: Iterator[tuple[pa.Array, pa.Field]] = iter(())
        if self._stored.fields:
            batch = self._project(self._stored, rows)
            stored = zip(batch.columns, batch.schema, strict=True)
        for field in self._projected.fields:
            if field.field_id in METADATA_COLUMNS:
                column = self._metadata_column(field.field_id, rows)
                if field.name in self._dictionary_columns:
                    column = column.dictionary_encode()
                kind = pa.field(field.name, column.type, nullable=field.optional)
            else:
                column, kind = next(stored)
            columns.append(column)
            fields.append(kind)
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))

    def _metadata_column(self, field_id: int, rows: _Rows) -> pa.Array:
        file, count = rows.file, rows.batch.num_rows
        assert file is not None
        if field_id == POSITION_ID:
            return rows.places
        field = METADATA_COLUMNS[field_id]
        kind = schema_to_pyarrow(field.field_type)
        if field_id in (FILE_ID, SPEC_ID):
            value = file.file_path if field_id == FILE_ID else file.spec_id
            return pa.repeat(pa.scalar(value, kind), count)
        if file.first_row_id is None:
            return pa.nulls(count, kind)
        if field_id == ROW_ID:
            inherited = pc.add(rows.places, file.first_row_id)
        else:
            inherited = pa.scalar(file.sequence_number, kind)
        # If rows were moved from another file, the file has their former values.
        return pc.coalesce(self._project(Schema(field), rows).column(0), inherited)

    def _open(
        self, file: ContentFile, wanted: Schema, dictionary_columns: tuple[str, ...] = ()
    ) -> AbstractContextManager[_Parquet | _Avro]:
        """Open a file to read its columns ``wanted``."""
        if file.stored_format == FileFormat.PARQUET:
            leaves = frozenset(leaf_ids(wanted))

            def shape_of(physical: pa.Schema) -> _Shape:
                return self._shapes((physical.serialize().to_pybytes(), leaves))

            return closing(_Parquet(self._files, file, shape_of, dictionary_columns))
        if file.stored_format == FileFormat.AVRO:
            values = self._identity_values(file, wanted, set())
            return closing(_Avro(self._files, file, wanted, self._names, values, self._threads))
        raise NotImplementedError(
            f"{file.file_path}: {file.stored_format.name} files are not supported in an encrypted "
            "table"
        )

    def _shape(self, wanted: tuple[bytes, frozenset[int]]) -> _Shape:
        """Return the shape of Parquet files. ``wanted`` has their serialized Arrow schema and the
        IDs of the columns to read."""
        serialized, field_ids = wanted
        schema = pyarrow_to_schema(
            _without(pa.ipc.read_schema(pa.py_buffer(serialized)), self._opaque),
            self._names,
            downcast_ns_timestamp_to_us=self._downcasts,
            format_version=3,
        )
        columns = prune_columns(schema, set(field_ids), select_full_types=False)
        # The file may have none of these columns. Its rows still count, so one column is read.
        return _Shape(schema, columns if columns.fields else Schema(*schema.fields[:1]))

    def _table_columns(self, field_ids: frozenset[int]) -> Schema:
        """Return the table's columns with these IDs, also those that it has dropped."""
        found: dict[int, NestedField] = {}
        others = sorted(self._metadata.schemas, key=lambda s: s.schema_id, reverse=True)
        for schema in (self._projected, self._metadata.schema(), *others, _LINEAGE):
            for field in prune_columns(schema, set(field_ids), select_full_types=False).fields:
                have = found.get(field.field_id)
                # If two versions of a column differ, take the one with more of the wanted fields.
                if have is None or len(Schema(field).field_ids) > len(Schema(have).field_ids):
                    found[field.field_id] = field
        # Arrow does not count rows that have no columns.
        columns = found.values() or readable(self._metadata.schema()).fields[:1]
        return as_stored(Schema(*columns))

    def _identity_values(
        self, file: ContentFile, wanted: Schema, present: set[int]
    ) -> dict[int, Any]:
        """Return the values of columns that are only in the file's partition."""
        spec = self._metadata.specs().get(file.spec_id)
        return column_projection_values(file, wanted, self._metadata.schema(), spec, present)

    def _project(self, schema: Schema, rows: _Rows) -> pa.RecordBatch:
        return project(
            schema,
            rows.schema,
            rows.batch,
            downcast_ns_timestamp_to_us=self._downcasts,
            missing=rows.missing,
        )

    def _column(self, schema: Schema, field_id: int, rows: _Rows) -> pa.Array:
        """Return the one column of ``schema``, promoted to its type in the table if needed."""
        column = self._project(schema, rows).column(0)
        field = schema.fields[0]
        while field.field_id != field_id:
            assert isinstance(field.field_type, StructType)
            field = field.field_type.fields[0]
            column = pc.struct_field(column, 0)
        # A filter on a struct, list or map asks only whether it is null.
        return (
            column.cast(_arrow_type(schema, field_id)) if field.field_type.is_primitive else column
        )

    # -- deletes

    def _deleted_positions(
        self, file: ContentFile, deletes: Iterable[ContentFile]
    ) -> BitMap64 | None:
        found: BitMap64 | None = None
        for delete in deletes:
            if delete.is_deletion_vector:
                payload = self._puffins.read(delete)
                here = read_deletion_vector(payload, delete, file.file_path)
            elif delete.content == DataFileContent.POSITION_DELETES:
                here = self._positions(delete).get(file.file_path, BitMap64())
            else:
                continue
            found = here if found is None else found | here
        return found or None

    def _read_positions(self, delete: ContentFile) -> dict[str, BitMap64]:
        with self._open(delete, _POSITION_DELETES) as opened:
            return positions_by_path(
                self._project(_POSITION_DELETES, _Rows(opened.shape.columns, {}, batch))
                for batch in opened.read()
            )

    def _equality_deletes(
        self, deletes: Iterable[ContentFile]
    ) -> list[tuple[tuple[int, ...], DeletedKeys]]:
        """Return the deleted keys, for each set of columns that the delete files compare."""
        by_ids: dict[tuple[int, ...], set[ContentFile]] = {}
        for delete in deletes:
            if delete.content == DataFileContent.EQUALITY_DELETES:
                ids = tuple(sorted(set(delete.equality_ids or ())))
                if not ids:
                    raise MetadataIntegrityError(
                        "an equality delete file does not say which columns it compares",
                        file=delete.file_path,
                    )
                by_ids.setdefault(ids, set()).add(delete)
        return [(ids, self._deleted_keys((ids, frozenset(f)))) for ids, f in by_ids.items()]

    def _read_keys(self, wanted: _Keys) -> DeletedKeys:
        ids, files = wanted
        chunks: list[list[pa.Array]] = [[] for _ in ids]
        for file in files:
            with self._open(file, self._columns(frozenset(ids))) as opened:
                for batch in opened.read():
                    rows = _Rows(opened.shape.columns, {}, batch)
                    for field_id, column in zip(ids, chunks, strict=True):
                        column.append(self._column(self._key_schemas(field_id), field_id, rows))
        types = [_arrow_type(self._key_schemas(field_id), field_id) for field_id in ids]
        return DeletedKeys(
            [pa.chunked_array(c, type=t) for c, t in zip(chunks, types, strict=True)]
        )

    def _key_schema(self, field_id: int) -> Schema:
        """Return the schema of one column, which the table may have dropped."""
        schema = self._columns(frozenset((field_id,)))
        if field_id not in schema.field_ids:
            raise MetadataIntegrityError(
                f"an equality delete file compares column {field_id}, but no schema of the table "
                "has it"
            )
        return schema


_Keys: TypeAlias = "tuple[tuple[int, ...], frozenset[ContentFile]]"


@dataclass(slots=True)
class Matches:
    """Where a filter is true in a data file: the ``positions`` of rows that were not deleted.

    ``deleted`` are the positions in its deletion vector and position deletes. ``live`` is the
    number of rows that no delete of any kind has removed.
    """

    positions: BitMap64
    deleted: BitMap64
    live: int = 0


class _Rows(NamedTuple):
    """Rows in a file's columns. ``missing`` has values of columns that are only in its partition.

    ``places`` are the rows' positions in the file, if they are wanted. ``live`` is the number of
    rows before the filter. ``file`` is their data file.
    """

    schema: Schema
    missing: dict[int, Any]
    batch: pa.RecordBatch
    places: pa.Array | None = None
    live: int = 0
    file: ContentFile | None = None

    def kept(self, mask: pa.Array | None) -> _Rows:
        """Return the rows that the mask selects; all rows if it is None."""
        if mask is None:
            return self
        places = None if self.places is None else self.places.filter(mask)
        return self._replace(batch=self.batch.filter(mask), places=places)


@dataclass(frozen=True, slots=True, eq=False)
class _Shape:
    """A file's schema, and the columns of it that are read. Compared by identity."""

    schema: Schema
    columns: Schema


class _Parquet:
    """An open Parquet file, encrypted or not."""

    filters = True

    def __init__(
        self,
        files: TableFiles,
        file: ContentFile,
        shape_of: Callable[[pa.Schema], _Shape],
        dictionary_columns: tuple[str, ...],
    ) -> None:
        self._file = file
        km = file.key
        self._stream: Any = files.open_stored(file.file_path)
        try:
            options: dict[str, Any] = {"pre_buffer": True, "buffer_size": _BUFFER_SIZE}
            if km is not None:
                _check_stored(self._stream, km, file)
                options["decryption_properties"] = create_decryption_properties(
                    km.encryption_key, aad_prefix=km.aad_prefix, allow_plaintext_files=False
                )
            parquet = ds.ParquetFileFormat(
                default_fragment_scan_options=ds.ParquetFragmentScanOptions(**options),
                dictionary_columns=dictionary_columns or None,
            )
            with _arrow_errors(file):
                self._fragment = parquet.make_fragment(self._stream)
                self._physical = self._fragment.physical_schema
            self.shape = shape_of(self._physical)
        except BaseException:
            self._stream.close()
            raise

    def read(
        self, matches: pc.Expression | None = None, split: tuple[int, int] | None = None
    ) -> Iterator[pa.RecordBatch]:
        with _arrow_errors(self._file):
            fragment = self._fragment
            if split is not None:
                begin, end = split[0], split[0] + split[1]
                starts = enumerate(row_group_starts(fragment.metadata))
                groups = [number for number, start in starts if begin <= start < end]
                fragment = fragment.subset(row_group_ids=groups)
            batches = ds.Scanner.from_fragment(
                fragment,
                schema=self._physical,
                columns=[field.name for field in self.shape.columns.fields],
                filter=matches,
            ).to_batches()
            stored: pa.Schema | None = None
            for batch in batches:
                stored = stored or _without(batch.schema, frozenset())
                yield batch if stored == batch.schema else batch.cast(stored)

    def rows_before(self, offset: int) -> int:
        """Return how many rows are in the row groups that begin before ``offset``."""
        with _arrow_errors(self._file):
            metadata = self._fragment.metadata
            starts = enumerate(row_group_starts(metadata))
            return sum(metadata.row_group(n).num_rows for n, start in starts if start < offset)

    def close(self) -> None:
        self._stream.close()


class _Avro:
    """An open Avro file, encrypted or not. Its rows are read as the table's columns directly."""

    filters = False

    def __init__(
        self,
        files: TableFiles,
        file: ContentFile,
        wanted: Schema,
        names: NameMapping | None,
        values: dict[int, Any],
        threads: int,
    ) -> None:
        self.shape = _Shape(wanted, wanted)
        self._file = file
        self._options: dict[str, Any] = {
            "name_mapping": names,
            "missing_values": values,
            "record_count": file.record_count,
            "threads": threads,
        }
        km = file.key
        self._stream: Any = (
            files.open_stored(file.file_path)
            if km is None
            else files.open_encrypted(file.file_path, km)
        )

    def read(
        self, matches: pc.Expression | None = None, split: tuple[int, int] | None = None
    ) -> Iterator[pa.RecordBatch]:
        try:
            yield from read_avro(self._stream, self.shape.columns, split=split, **self._options)
        except Ags1Error as error:
            error.file = self._file.file_path
            raise

    def rows_before(self, offset: int) -> int:
        """Return how many rows are in the blocks of the splits before ``offset``. This reads the
        headers of the blocks."""
        try:
            return AvroFile(self._stream).rows_before(offset)
        except Ags1Error as error:
            error.file = self._file.file_path
            raise

    def close(self) -> None:
        self._stream.close()


def _without(schema: pa.Schema, ids: frozenset[int]) -> pa.Schema:
    """Return the schema of a Parquet file without the fields with these IDs and without containers
    that need them. Geometries, for which GeoArrow's libraries have a type, become bytes."""
    kept = (_field_without(field, ids) for field in schema)
    return pa.schema([field for field in kept if field is not None])


def _struct(*fields: pa.Field) -> pa.DataType:
    return pa.struct(fields)


def _field_without(field: pa.Field, ids: frozenset[int]) -> pa.Field | None:
    if int((field.metadata or {}).get(PARQUET_FIELD_ID, -1)) in ids:
        return None
    kind = field.type
    if isinstance(kind, pa.BaseExtensionType) and kind.extension_name == WKB:
        return field.with_type(kind.storage_type)
    make: Callable[..., pa.DataType]
    if pa.types.is_struct(kind):
        parts, make = list(kind), _struct
    elif pa.types.is_map(kind):
        parts, make = [kind.key_field, kind.item_field], pa.map_
    elif pa.types.is_list(kind):
        parts, make = [kind.value_field], pa.list_
    elif pa.types.is_large_list(kind):
        parts, make = [kind.value_field], pa.large_list
    else:
        return field
    kept = [part for part in (_field_without(part, ids) for part in parts) if part is not None]
    if not kept or (len(kept) < len(parts) and not pa.types.is_struct(kind)):
        return None
    return field.with_type(make(*kept))


def leaf_ids(schema: Schema) -> set[int]:
    """Return the IDs of a schema's fields without lists and maps, whose elements are counted."""
    containers = (MapType, ListType)
    return {i for i in schema.field_ids if not isinstance(schema.find_type(i), containers)}


def _check_stored(stream: Any, km: KeyMetadata, file: ContentFile) -> None:
    """Refuse a stored file whose size is not the trusted one, or whose pages Arrow would decrypt
    without authenticating them.

    Raises TruncatedError, FormatError, AuthenticationError. If the storage then gives Arrow other
    bytes than it gave this function, that is not detected here.
    """
    size = stream.size() if callable(getattr(stream, "size", None)) else stream.seek(0, 2)
    if km.file_length is None:  # the manifest has the length too, and is authenticated
        km = km.with_file_length(file.file_size_in_bytes)

    def fetch(offset: int, length: int) -> bytes:
        stream.seek(offset)
        return bytes(stream.read(length))

    try:
        check_algorithm(fetch, size, km)
    except (AuthenticationError, FormatError, TruncatedError) as error:
        error.file = file.file_path
        raise


@contextmanager
def _arrow_errors(file: ContentFile) -> Iterator[None]:
    """Turn Arrow's errors about a wrong encrypted file into our errors.

    Arrow has no exception types for these, so its messages decide. Errors of the storage pass.
    """
    try:
        yield
    except (OSError, pa.ArrowInvalid) as error:
        kind, what = _arrow_failure(str(error))
        if kind is None or not file.is_encrypted:
            raise
        raise kind(what, file=file.file_path) from None


def _arrow_failure(message: str) -> tuple[type[Ags1Error] | None, str]:
    if "decryption properties on plaintext" in message:
        return NotEncryptedError, (
            "the manifest has a key for this file, but it is an unencrypted Parquet file"
        )
    if "decrypt" in message.lower() or "AAD" in message:
        return AuthenticationError, (
            "the Parquet file does not decrypt: it was changed, or the key is of another file"
        )
    if "ciphertext" in message.lower():
        return AuthenticationError, (
            "a page of the Parquet file does not decrypt: it was changed, or it is a page of "
            "version 2 as parquet-java encrypts it (write.parquet.page-version=v2), which Arrow "
            "cannot read. EncryptedTable.rekey and `ags1 table rekey` turn it into version 1"
        )
    if "Parquet" in message or "thrift" in message:
        return FormatError, f"the Parquet file cannot be read: {message.splitlines()[0]}"
    return None, ""


def _arrow_type(schema: Schema, field_id: int) -> pa.DataType:
    return schema_to_pyarrow(schema.find_type(field_id), include_field_ids=False)

"""Opens the files of one table, and returns their columns in the table's types.

A file may have been written with any schema that the table had, or by a writer without field IDs.
So columns are matched by field ID, are promoted to the table's type, and get values that are only
in the file's partition. Most files of a table have the same schema, and computing what follows from
it takes longer than reading a small file. So the results are cached.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, closing
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io.pyarrow import pyarrow_to_schema, schema_to_pyarrow
from pyiceberg.manifest import FileFormat
from pyiceberg.schema import Schema, prune_columns
from pyiceberg.table import TableProperties
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import ListType, MapType, NestedField, StructType

from ...columns.arrow_layouts import plain_schema
from ...columns.avro.variants import VariantType
from ...errors import Ags1Error, FormatError, MetadataIntegrityError
from ..pyiceberg.arrow import project
from ..spec.column_types import (
    OpaqueType,
    as_stored,
    extensions,
    find_field_ids,
    readable,
    with_struct_defaults,
)
from ..storage.table_files import TableFiles
from .kept_rows import KeptRows
from .metadata_columns import LINEAGE_IDS, METADATA_COLUMNS
from .open_files import FileColumns, OpenAvro, OpenParquet, with_ids, without_fields
from .records import ContentFile
from .single_flight import SingleFlight

_LINEAGE = Schema(*(METADATA_COLUMNS[i] for i in sorted(LINEAGE_IDS)))


class Rows(NamedTuple):
    """Rows in a file's own columns, whose schema is ``schema``.

    ``missing`` has values of columns that are only in the file's partition. ``positions`` are the
    rows' positions in the file, if they are needed. ``live`` is the number of rows before the
    filter. ``file`` is their data file.
    """

    schema: Schema
    missing: dict[int, Any]
    batch: pa.RecordBatch
    positions: pa.Array | None = None
    live: int = 0
    file: ContentFile | None = None

    def where(self, mask: pa.Array | None) -> Rows:
        """Return the rows that the mask selects; all rows if it is None."""
        if mask is None:
            return self
        positions = None if self.positions is None else self.positions.filter(mask)
        return self._replace(batch=self.batch.filter(mask), positions=positions)

    def only(self, kept: KeptRows) -> Rows:
        """Return the rows that are kept."""
        positions = None if self.positions is None else kept.of(self.positions)
        return self._replace(batch=kept.of_batch(self.batch), positions=positions)


class _Unchanged(NamedTuple):
    """Batches of files whose columns are ``of_file`` and that have the schema ``stored`` are, as
    they are, the columns of ``wanted``, with the schema ``projected``."""

    wanted: Schema
    of_file: Schema
    stored: pa.Schema
    projected: pa.Schema


_NAME_MAPPING = TableProperties.DEFAULT_NAME_MAPPING


class FileReader:
    """Opens files of one table and reads their columns. Any number of threads may use it at once.
    ``projected`` is the schema of the rows that the caller wants, ``schema`` that of the columns
    that its filter compares, if it has one. Each Avro file is read by ``threads`` threads; Arrow
    has its own for Parquet."""

    def __init__(
        self,
        files: TableFiles,
        metadata: TableMetadata,
        projected: Schema,
        schema: Schema | None = None,
    ) -> None:
        self.files = files
        self.threads = 1
        self._metadata = metadata
        self._projected = projected
        self._filtered = projected if schema is None else schema
        self._opaque = find_field_ids(OpaqueType, metadata.schemas)
        self._variants = find_field_ids(VariantType, metadata.schemas)
        self._extensions = extensions(metadata.schemas)
        try:
            self._names = metadata.name_mapping()
        except ValueError:
            raise MetadataIntegrityError(f"the table's {_NAME_MAPPING!r} is not valid") from None
        self._table_columns = SingleFlight[frozenset[int], Schema](self._find_table_columns)
        self._file_columns = SingleFlight[tuple[bytes, frozenset[int]], FileColumns](
            self._find_file_columns
        )
        self._tried: set[FileColumns] = set()
        # The last one by the identity of ``of_file``, which it keeps alive.
        self._unchanged: dict[int, _Unchanged] = {}

    def table_columns(self, field_ids: Iterable[int]) -> Schema:
        """Return the table's columns with these IDs, also those that it has dropped. If there are
        none, return any one column, because Arrow does not count rows that have no columns."""
        return self._table_columns(frozenset(field_ids))

    def open(
        self,
        file: ContentFile,
        wanted: Schema,
        dictionary_columns: tuple[str, ...] = (),
    ) -> AbstractContextManager[OpenParquet | OpenAvro]:
        """Open a file to read its columns ``wanted``."""
        if file.stored_format == FileFormat.PARQUET:
            leaves = frozenset(leaf_ids(wanted))

            def columns_of(physical: pa.Schema) -> FileColumns:
                return self._file_columns((physical.serialize().to_pybytes(), leaves))

            return closing(OpenParquet(self.files, file, columns_of, dictionary_columns))
        if file.stored_format == FileFormat.AVRO:
            values = self.partition_values(file, wanted, set())
            return closing(OpenAvro(self.files, file, wanted, self._names, values, self.threads))
        kind = file.stored_format.name
        raise NotImplementedError(
            f"{file.file_path}: {kind} files are not supported in an encrypted table"
        )

    def try_file(self, file: ContentFile) -> None:
        """Read the first rows of a data file, or of equality deletes, as the table's columns. Of
        Parquet files with the same schema, one is read. Raises FormatError if that fails, and
        OSError."""
        ids = file.equality_ids or leaf_ids(self._projected)
        wanted = self.table_columns(ids)
        try:
            with self.open(file, wanted) as opened:
                if opened.columns in self._tried:
                    return
                for batch in opened.read():
                    columns = opened.columns
                    missing = self.partition_values(file, wanted, columns.schema.field_ids)
                    self.project(wanted, Rows(columns.read, missing, batch))
                    break
                self._tried.add(opened.columns)
        except (OSError, Ags1Error):
            raise
        except Exception as error:  # PyIceberg's have no base class
            raise FormatError(
                f"the file cannot be read as the table's columns: {error}", file=file.file_path
            ) from error

    def partition_values(
        self, file: ContentFile, wanted: Schema, present: set[int]
    ) -> dict[int, Any]:
        """Return the partition's values of the wanted columns that the file does not have.
        ``present`` are the IDs of the columns in the file."""
        spec = self._metadata.specs().get(file.spec_id)
        if spec is None or not spec.fields:
            return {}
        absent = wanted.field_ids - present
        return {
            field.source_id: file.partition[at]
            for at, field in enumerate(spec.fields)
            if isinstance(field.transform, IdentityTransform)
            and field.source_id in absent
            and file.partition[at] is not None
        }

    def project(self, schema: Schema, rows: Rows) -> pa.RecordBatch:
        """Return rows in the columns of ``schema``."""
        batch = rows.batch
        same = self._unchanged.get(id(rows.schema))
        if same is not None and same.wanted is schema and same.stored.equals(batch.schema):
            columns = batch.columns[: len(same.projected)]
            return pa.RecordBatch.from_arrays(columns, schema=same.projected)
        result = project(schema, rows.schema, batch, rows.missing, self._extensions)
        # PyIceberg walks both schemas for each batch. With small files that takes a notable time.
        count = len(schema.fields)
        if (
            count
            and schema.fields == rows.schema.fields[:count]
            and all(
                a.type.equals(b.type, check_metadata=True)
                for a, b in zip(result, batch, strict=False)
            )
        ):
            found = _Unchanged(schema, rows.schema, batch.schema, result.schema)
            self._unchanged[id(rows.schema)] = found
        return result

    def column(self, schema: Schema, field_id: int, rows: Rows) -> pa.Array:
        """Return one column in its type in ``schema``, which has no other column."""
        column = self.project(schema, rows).column(0)
        field = schema.fields[0]
        while field.field_id != field_id:
            assert isinstance(field.field_type, StructType)
            field = field.field_type.fields[0]
            column = pc.struct_field(column, 0)
        # A filter on a struct, list or map asks only whether it is null.
        is_primitive = field.field_type.is_primitive
        return column.cast(arrow_type(schema, field_id)) if is_primitive else column

    def _find_table_columns(self, field_ids: frozenset[int]) -> Schema:
        columns: tuple[NestedField, ...] = ()
        others = sorted(self._metadata.schemas, key=lambda s: s.schema_id, reverse=True)
        schemas = self._projected, self._filtered, self._metadata.schema(), *others, _LINEAGE
        missing = set(field_ids)
        for schema in map(as_stored, schemas):
            pruned = prune_columns(schema, set(field_ids), select_full_types=False)
            columns = _with_more(columns, with_struct_defaults(pruned, schema).fields)
            missing -= pruned.field_ids
            if not missing:
                break
        any_column = readable(self._metadata.schema()).fields[:1]
        return Schema(*columns) if columns else as_stored(Schema(*any_column))

    def _find_file_columns(self, wanted: tuple[bytes, frozenset[int]]) -> FileColumns:
        """``wanted`` has the serialized Arrow schema of Parquet files, and the columns' IDs."""
        serialized, field_ids = wanted
        stored = pa.ipc.read_schema(pa.py_buffer(serialized))
        # A writer may have stored its own Arrow schema in the file.
        plain = plain_schema(stored)
        known = with_ids(plain, self._names, self._variants)
        known = without_fields(known, self._opaque, self._variants)
        schema = pyarrow_to_schema(known, format_version=3)
        columns = prune_columns(schema, set(field_ids), select_full_types=False)
        # The file may have none of these columns. Its rows still count, so one column is read.
        read = columns if columns.fields else Schema(*schema.fields[:1])
        return FileColumns(schema, read, self._variants, plain != stored)


def _with_more(
    fields: tuple[NestedField, ...], more: Iterable[NestedField]
) -> tuple[NestedField, ...]:
    """Return the fields, and those of ``more`` whose IDs they lack, also inside structs. Another
    field may have the name of such a field, so its ID becomes its name."""
    joined = {field.field_id: field for field in fields}
    for field in more:
        have = joined.get(field.field_id)
        if have is None:
            joined[field.field_id] = field.model_copy(update={"name": f"#{field.field_id}"})
        elif isinstance(have.field_type, StructType) and isinstance(field.field_type, StructType):
            struct = StructType(*_with_more(have.field_type.fields, field.field_type.fields))
            joined[field.field_id] = have.model_copy(update={"field_type": struct})
    return tuple(joined.values())


def leaf_ids(schema: Schema) -> set[int]:
    """Return the IDs of a schema's fields without lists and maps, whose elements are counted."""
    containers = (MapType, ListType)
    return {i for i in schema.field_ids if not isinstance(schema.find_type(i), containers)}


def arrow_type(schema: Schema, field_id: int) -> pa.DataType:
    """Return Arrow's type of a column."""
    return schema_to_pyarrow(schema.find_type(field_id), include_field_ids=False)

"""Converts Arrow data to rows of a table's schema.

    the caller's batch     id: int32        name: dictionary         (no column "size")
    the table's rows       id: int64        name: string             size: its write default
                           cast to the      columns are found        missing columns are null,
                           table's type     by name                  or have their default

PyIceberg's own check decides which data is accepted. The values are converted here, because
PyIceberg's projection fills missing columns with the default of old files instead of that of new
rows, loses the nulls of lists and maps of structs, and does not convert unsigned integers. This
follows the Iceberg specification, "Default values" and "Schema Evolution". It does not know files.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema, make_compatible_name
from pyiceberg.types import (
    BinaryType,
    DecimalType,
    GeographyType,
    GeometryType,
    IcebergType,
    ListType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimeType,
    UnknownType,
    UUIDType,
)

from ...columns.arrow_nested import compacted, with_child
from ...columns.avro.projection import default_of
from ...columns.avro.variants import VARIANT_PARTS, VariantType
from ...errors import FormatError, UnsupportedTypeError
from ..formats.variants import whole
from ..pyiceberg.arrow import check_arrow_schema, downcasts_ns_timestamps
from ..spec.column_types import WKB, geoarrow_text, writable
from ..spec.constants import PARQUET_FIELD_ID

Rows: TypeAlias = "pa.Table | pa.RecordBatchReader | Iterable[pa.RecordBatch]"

_LOWEST_DECIMAL = pa.py_buffer((-(2**127)).to_bytes(16, "little", signed=True))

_VARIANT = pa.struct([pa.field(name, pa.large_binary(), nullable=False) for name in VARIANT_PARTS])


class _WellKnownBinary(pa.ExtensionType):  # type: ignore[misc]  # pyarrow has no types
    """The type that Arrow writes as Parquet's GEOMETRY or GEOGRAPHY: GeoArrow's name and metadata.
    It is not registered, because other libraries may register a type of that name."""

    def __init__(self, text: str) -> None:
        self._text = text
        super().__init__(pa.large_binary(), WKB)

    def __arrow_ext_serialize__(self) -> bytes:
        return self._text.encode()

    @classmethod
    def __arrow_ext_deserialize__(cls, _: pa.DataType, text: bytes) -> _WellKnownBinary:
        return cls(text.decode())


class RowConversion:
    """Converts batches of the schema ``provided`` to rows of ``schema``. ``arrow_schema`` is the
    schema of the rows, with Parquet's field IDs. With ``keep_unknown``, it has the columns of type
    ``unknown``, which Parquet files do not have. With ``file_names``, names are changed as in Java,
    because Avro's names cannot have all letters. Raises ValueError if ``provided`` does not fit,
    PyIceberg's UnsupportedPyArrowTypeException for a type that no column has, and
    NotImplementedError for what cannot be written."""

    def __init__(
        self,
        schema: Schema,
        provided: pa.Schema,
        *,
        keep_unknown: bool = False,
        file_names: bool = True,
    ) -> None:
        provided = _without_ids(provided)
        of_table, schema = schema, writable(schema, is_avro=keep_unknown)
        _refuse_left_out(of_table.as_struct(), schema.as_struct(), pa.struct(list(provided)), "")
        self._schema = schema
        self._keep_unknown = keep_unknown
        self._name = make_compatible_name if file_names else str
        self._downcast = _check(schema, provided)
        self._provided = provided
        kind = self._arrow_type(schema.as_struct(), pa.struct(list(provided)), "")
        self.arrow_schema = pa.schema(list(kind))

    def convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of a batch. Raises ValueError if the batch has another schema, a required
        column has a null, or the column's type does not have a value: an integer, decimal or time
        that is too large, or text that is not UTF-8."""
        if not _without_ids(batch.schema).equals(self._provided):
            raise ValueError("the batches' schemas differ")
        # This checks the lengths of buffers and children, and no values.
        batch.validate()
        rows = pa.StructArray.from_arrays(batch.columns, fields=list(self._provided))
        if not batch.num_columns:
            rows = pa.array([{}] * batch.num_rows, pa.struct([]))
        struct = self._schema.as_struct()
        columns = self._fields(struct, pa.struct(list(self.arrow_schema)), rows, "")
        return pa.RecordBatch.from_arrays(columns, schema=self.arrow_schema)

    # -- types

    def _written(self, struct: StructType) -> list[NestedField]:
        return [
            field
            for field in struct.fields
            if self._keep_unknown or not isinstance(field.field_type, UnknownType)
        ]

    def _arrow_type(self, kind: IcebergType, source: pa.DataType | None, path: str) -> pa.DataType:
        if isinstance(source, pa.DictionaryType):
            source = source.value_type
        if isinstance(kind, StructType):
            fields = self._written(kind)
            if not fields:
                raise NotImplementedError(f"{path or 'the table'} has no column that is stored")
            given = _fields_by_name(source)
            inner = [self._arrow_field(f, given.get(f.name), _join(path, f.name)) for f in fields]
            return pa.struct(inner)
        if isinstance(kind, ListType):
            if isinstance(kind.element_type, UnknownType):
                raise NotImplementedError(f"column {path!r}: a list of unknown is not stored")
            element = source.value_field if source is not None and _is_list(source) else None
            is_large = source is not None and pa.types.is_large_list(source)
            make = pa.large_list if is_large else pa.list_
            return make(self._arrow_field(kind.element_field, element, path))
        if isinstance(kind, MapType):
            key = item = None
            if source is not None and pa.types.is_map(source):
                key, item = source.key_field, source.item_field
            return pa.map_(
                self._arrow_field(kind.key_field, key, path),
                self._arrow_field(kind.value_field, item, path),
            )
        if isinstance(kind, StringType) and source == pa.string():
            return pa.string()
        if isinstance(kind, BinaryType) and source == pa.binary():
            return pa.binary()
        if isinstance(kind, GeometryType | GeographyType):
            if source is not None and (
                pa.types.is_string(source) or pa.types.is_large_string(source)
            ):
                # PyIceberg accepts text as bytes.
                raise ValueError(f"column {path!r} has geometries: provide them as WKB, in bytes")
            return (
                pa.large_binary() if self._keep_unknown else _WellKnownBinary(geoarrow_text(kind))
            )
        if isinstance(kind, VariantType):
            return _VARIANT
        return schema_to_pyarrow(kind)

    def _arrow_field(self, field: NestedField, source: pa.Field | None, path: str) -> pa.Field:
        kind = self._arrow_type(field.field_type, None if source is None else source.type, path)
        metadata = {PARQUET_FIELD_ID: str(field.field_id).encode()}
        if field.doc:
            metadata[b"doc"] = field.doc.encode()
        return pa.field(self._name(field.name), kind, nullable=field.optional, metadata=metadata)

    # -- values

    def _fields(
        self, struct: StructType, target: pa.StructType, rows: pa.StructArray, path: str
    ) -> list[pa.Array]:
        """Return the columns of a struct. ``rows`` may be a slice and may have nulls itself."""
        present = {field.name: i for i, field in enumerate(rows.type)}
        # Flattened, a field is null where the struct is.
        fields = range(rows.type.num_fields)
        inner = rows.flatten() if rows.null_count else [rows.field(i) for i in fields]
        columns = []
        for i, field in enumerate(self._written(struct)):
            inside = _join(path, field.name)
            kind = target.field(i).type
            if field.name in present:
                values = inner[present[field.name]]
                column = self._values(field.field_type, kind, values, inside)
                if field.required and column.null_count > rows.null_count:
                    raise _null_in_required(inside)
            elif field.write_default is None:
                column = pa.nulls(len(rows), kind)
            else:
                column = _repeated(field, kind, len(rows))
            columns.append(column)
        return columns

    def _values(
        self, kind: IcebergType, target: pa.DataType, values: pa.Array, path: str
    ) -> pa.Array:
        if isinstance(values, pa.DictionaryArray):
            values = values.dictionary_decode()
        if isinstance(kind, StructType):
            if not isinstance(values, pa.StructArray):
                return pa.nulls(len(values), target)
            columns = self._fields(kind, target, values, path)
            mask = values.is_null() if values.null_count else None
            return pa.StructArray.from_arrays(columns, fields=list(target), mask=mask)
        if isinstance(kind, ListType):
            if not _is_list(values.type):
                return pa.nulls(len(values), target)
            values = compacted(values)
            children = self._values(kind.element_type, target.value_type, values.values, path)
            if kind.element_required and children.null_count:
                raise _null_in_required(path)
            return with_child(values, target, children)
        if isinstance(kind, MapType):
            if not pa.types.is_map(values.type):
                return pa.nulls(len(values), target)
            values = compacted(values)
            keys = self._values(kind.key_type, target.key_type, values.keys, path)
            items = self._values(kind.value_type, target.item_type, values.items, path)
            if kind.value_required and items.null_count:
                raise _null_in_required(path)
            entries = pa.StructArray.from_arrays(
                [keys, items], fields=[target.key_field, target.item_field]
            )
            return with_child(values, target, entries)
        made = self._primitive(kind, target, values, path)
        _check_values(kind, made, path)
        return made

    def _primitive(
        self, kind: IcebergType, target: pa.DataType, values: pa.Array, path: str
    ) -> pa.Array:
        if values.type == target:
            return values
        if pa.types.is_null(values.type):
            return pa.nulls(len(values), target)
        if isinstance(kind, VariantType):
            return _variants(values, path)
        if isinstance(kind, UUIDType):
            return target.wrap_array(values)
        if isinstance(values, pa.ExtensionArray):
            values = values.storage
        if isinstance(target, _WellKnownBinary):
            return target.wrap_array(values.cast(target.storage_type))
        # Nanoseconds are truncated only if PyIceberg is configured to do so.
        is_time = pa.types.is_timestamp(values.type)
        is_safe = not (self._downcast and is_time and values.type.unit == "ns")
        try:
            return values.cast(target, safe=is_safe)
        except pa.ArrowInvalid as error:
            raise ValueError(f"column {path!r}: {error}") from None


def _check_values(kind: IcebergType, values: pa.Array, path: str) -> None:
    """Raise ValueError for values that Arrow's arrays of a type can have and the type has not: text
    that is not UTF-8, times of day after the last, numbers of too many digits. Not all readers
    accept them."""
    try:
        if isinstance(kind, StringType):
            _check_text(values)
        elif isinstance(kind, TimeType | DecimalType):
            values.validate(full=True)
    except pa.ArrowInvalid as error:
        raise ValueError(f"column {path!r}: {error}") from None
    if isinstance(kind, DecimalType):
        # Arrow takes the smallest number of 128 bits for one of few digits.
        lowest = pa.Array.from_buffers(values.type, 1, [None, _LOWEST_DECIMAL])[0]
        if pc.any(pc.equal(values, lowest)).as_py():
            raise ValueError(f"column {path!r}: {lowest} does not fit in precision of {kind}")


def _check_text(values: pa.Array) -> None:
    """Raise ArrowInvalid if text is not UTF-8."""
    _, offsets, data = values.buffers()
    if data is None or not len(values):
        return
    is_large = pa.types.is_large_string(values.type)
    ends = np.frombuffer(offsets, np.int64 if is_large else np.int32)[values.offset :]
    stored = np.frombuffer(data, np.int8)[ends[0] : ends[len(values)]]
    # Most text is ASCII, and it takes far less time to see that.
    if stored.size and stored.min() < 0:
        values.validate(full=True)


def _variants(values: pa.Array, path: str) -> pa.StructArray:
    """Return variants in the form in which they are written. Raises ValueError for others."""
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    try:
        made = whole(values)
    except FormatError as error:
        raise ValueError(f"column {path!r}: {error}") from None
    parts = [pc.struct_field(made, name).cast(pa.large_binary()) for name in VARIANT_PARTS]
    heads = pc.binary_slice(parts[0], 0, 1).unique().drop_null().to_pylist()
    # The lower half of the first byte is the version of the encoding.
    if any(not head or head[0] & 0x0F != 1 for head in heads):
        raise ValueError(f"column {path!r}: a variant's metadata is not of version 1")
    if pc.min(pc.binary_length(parts[1])).as_py() == 0:
        raise ValueError(f"column {path!r}: a variant's value is empty")
    mask = made.is_null() if made.null_count else None
    return pa.StructArray.from_arrays(parts, fields=list(_VARIANT), mask=mask)


def as_batches(data: Rows) -> tuple[pa.Schema | None, Iterator[pa.RecordBatch]]:
    """Return the schema of Arrow data and its batches. The schema is None if an iterable has no
    batch; its first batch is read at once. Raises TypeError for anything else."""
    if isinstance(data, pa.Table):
        return data.schema, iter(data.to_batches())
    if isinstance(data, pa.RecordBatchReader):
        return data.schema, iter(data)
    if isinstance(data, pa.RecordBatch):
        return data.schema, iter([data])
    if not isinstance(data, Iterable) or isinstance(data, str | bytes | dict):
        raise TypeError(
            f"an Arrow table, record batch reader or record batches are needed, not {data!r:.60}"
        )
    batches = map(_checked_batch, data)
    first = next(batches, None)
    if first is None:
        return None, iter(())
    return first.schema, itertools.chain([first], batches)


def _checked_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    if not isinstance(batch, pa.RecordBatch):
        raise TypeError(f"a record batch is needed, not {type(batch).__name__}")
    return batch


def _refuse_left_out(
    kind: IcebergType, written: IcebergType, source: pa.DataType, path: str
) -> None:
    """Raise UnsupportedTypeError if the data has a column that files do not have."""
    if written == kind:
        return
    if isinstance(kind, ListType) and isinstance(written, ListType) and _is_list(source):
        _refuse_left_out(kind.element_type, written.element_type, source.value_type, path)
    elif isinstance(kind, MapType) and isinstance(written, MapType) and pa.types.is_map(source):
        _refuse_left_out(kind.value_type, written.value_type, source.item_type, path)
    elif isinstance(kind, StructType) and isinstance(written, StructType):
        given = _fields_by_name(source)
        for field in kind.fields:
            inside, stored = _join(path, field.name), written.field(field.field_id)
            if field.name not in given:
                continue
            if stored is not None:
                inner = given[field.name].type
                _refuse_left_out(field.field_type, stored.field_type, inner, inside)
            else:
                raise UnsupportedTypeError(
                    f"column {inside!r} has type {field.field_type}, which this version does not "
                    "write: leave the column out of the data; it will be null"
                )


def _check(schema: Schema, provided: pa.Schema) -> bool:
    """Check as PyIceberg that the data fits; return whether nanoseconds are truncated."""
    names = [field.name for field in provided]
    if len(set(names)) < len(names):
        raise ValueError("two columns of the data have the same name")
    wanted = _with_defaults_optional(schema)
    try:
        check_arrow_schema(wanted, provided, downcast_ns_timestamp_to_us=False)
    except ValueError:
        if not downcasts_ns_timestamps():
            raise
        check_arrow_schema(wanted, provided, downcast_ns_timestamp_to_us=True)
        return True
    return False


def _with_defaults_optional(schema: Schema) -> Schema:
    """Return a schema in which required columns with a default are optional."""
    fields = [
        field.model_copy(update={"required": False})
        if field.write_default is not None and field.required
        else field
        for field in schema.fields
    ]
    return Schema(*fields, schema_id=schema.schema_id)


def _repeated(field: NestedField, kind: pa.DataType, count: int) -> pa.Array:
    value = default_of(field, "write_default")
    if isinstance(field.field_type, UUIDType):
        storage = pa.repeat(pa.scalar(getattr(value, "bytes", value), pa.binary(16)), count)
        return kind.wrap_array(storage)
    if isinstance(value, int) and pa.types.is_temporal(kind):
        width = pa.int32() if pa.types.is_date32(kind) else pa.int64()
        return pa.repeat(pa.scalar(value, width), count).cast(kind)
    return pa.repeat(pa.scalar(value, kind), count)


def _null_in_required(path: str) -> ValueError:
    return ValueError(f"column {path!r} is required, but the data has nulls in it")


def _without_ids(schema: pa.Schema) -> pa.Schema:
    """Return the schema without Parquet's field IDs, which may be those of another table."""
    return pa.schema([_field_without_ids(field) for field in schema])


def _field_without_ids(field: pa.Field) -> pa.Field:
    kind = field.type
    if pa.types.is_struct(kind):
        kind = pa.struct([_field_without_ids(f) for f in kind])
    elif pa.types.is_map(kind):
        key, item = _field_without_ids(kind.key_field), _field_without_ids(kind.item_field)
        kind = pa.map_(key, item, kind.keys_sorted)
    elif pa.types.is_fixed_size_list(kind):
        kind = pa.list_(_field_without_ids(kind.value_field), kind.list_size)
    elif pa.types.is_list(kind):
        kind = pa.list_(_field_without_ids(kind.value_field))
    elif pa.types.is_large_list(kind):
        kind = pa.large_list(_field_without_ids(kind.value_field))
    return pa.field(field.name, kind, nullable=field.nullable)


def _fields_by_name(kind: pa.DataType | None) -> dict[str, pa.Field]:
    return {f.name: f for f in kind} if kind is not None and pa.types.is_struct(kind) else {}


def _is_list(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name

"""Arrow batches in the form that Spark expects: its types, its order of columns. Spark reads a
batch by position and type and checks neither: a column of another type would come out as other
values. Independent of files."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from ..errors import FormatError


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema of the batches that Spark expects for ``schema``."""
    return to_arrow_schema(schema)


def spark_schema(schema: pa.Schema) -> StructType:
    """Return the Spark schema for data of an Arrow schema. Unsigned integers become the next larger
    signed type, times of day a number of microseconds, UUIDs text, and timestamps without a zone
    ``timestamp_ntz``. Raises NotImplementedError for a type that Spark does not have."""
    fields = [pa.field(f.name, _taken(f.type), nullable=True) for f in schema]
    try:
        return from_arrow_schema(pa.schema(fields), prefer_timestamp_ntz=True)
    except Exception as error:
        raise NotImplementedError(f"Spark has no type for a column: {error}") from None


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the columns of ``schema`` by name, in its types; absent ones are null. Raises
    FormatError if a value does not fit."""
    columns = []
    for field in schema:
        index = batch.schema.get_field_index(field.name)
        if index < 0:
            columns.append(pa.nulls(batch.num_rows, field.type))
            continue
        try:
            columns.append(_cast(batch.column(index), field.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
            # Arrow's message quotes the value, ours does not.
            kind = type(error).__name__
            failure = f"{field.name}: {batch.column(index).type} is not read as {field.type}"
            raise FormatError(f"{failure} ({kind})") from None
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if column.type == pa.uuid() and pa.types.is_string(kind):
        values = (None if value is None else str(value) for value in column.to_pylist())
        return pa.array(values, kind)
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if column.type == kind:
        return column
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_time(column.type) and pa.types.is_int64(kind):
        column = column.cast(pa.time64("us"))
    return column.cast(kind)


def _taken(kind: pa.DataType) -> pa.DataType:
    """Return the type in which Spark expects the values of an Arrow type."""
    if kind == pa.uuid():
        return pa.string()
    if isinstance(kind, pa.BaseExtensionType):
        return _taken(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return _taken(kind.value_type)
    if pa.types.is_null(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_binary_view(kind):
        return pa.binary()
    if kind in _WIDER:
        return _WIDER[kind]
    if pa.types.is_time(kind):
        return pa.int64()
    if pa.types.is_date64(kind):
        return pa.date32()
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz and "UTC")
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, _taken(f.type)) for f in kind])
    if pa.types.is_map(kind):
        return pa.map_(_taken(kind.key_type), _taken(kind.item_type))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(_taken(kind.value_type))
    return kind


_WIDER = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
}

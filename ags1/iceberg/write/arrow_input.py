"""Takes rows and schemas from any library that exports Arrow data: Polars, DuckDB, pandas, …

Follows Arrow's PyCapsule interface. Polars exports text and bytes as views, which PyIceberg does
not know: they become Arrow's large types. This module does not know tables.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

import pyarrow as pa


class ArrowStreamProducer(Protocol):
    """An object with a stream of record batches."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


class ArrowArrayProducer(Protocol):
    """An object with one record batch."""

    def __arrow_c_array__(
        self, requested_schema: object | None = None
    ) -> tuple[object, object]: ...


class ArrowSchemaProducer(Protocol):
    """An object with a schema."""

    def __arrow_c_schema__(self) -> object: ...


ArrowRows: TypeAlias = "pa.Table | pa.RecordBatchReader | ArrowStreamProducer | ArrowArrayProducer"


def arrow_rows(data: ArrowRows) -> pa.Table | pa.RecordBatchReader:
    """Return Arrow data as a table or a reader. A stream becomes a reader and is not held. Raises
    ValueError, as PyIceberg does, for an object without Arrow data."""
    rows: pa.Table | pa.RecordBatchReader
    if isinstance(data, pa.Table | pa.RecordBatchReader):
        rows = data
    elif hasattr(data, "__arrow_c_stream__"):
        rows = pa.RecordBatchReader.from_stream(data)
    elif hasattr(data, "__arrow_c_array__"):
        rows = pa.Table.from_batches([pa.record_batch(data)])
    else:
        raise ValueError(
            f"Expected pa.Table or pa.RecordBatchReader, got {type(data).__name__}: give Arrow "
            "data, or an object that exports it by __arrow_c_stream__, such as a data frame"
        )
    schema = _without_views(rows.schema)
    return rows if schema == rows.schema else rows.cast(schema)


def arrow_table(data: ArrowRows) -> pa.Table:
    """Return Arrow data as a table, in memory. Raises as ``arrow_rows``."""
    rows = arrow_rows(data)
    return rows if isinstance(rows, pa.Table) else rows.read_all()


def arrow_schema(schema: Any) -> Any:
    """Return the schema of an object that exports an Arrow schema or Arrow data. Any other object
    is returned as it is."""
    if hasattr(schema, "__arrow_c_schema__"):
        return _without_views(pa.schema(schema))
    if hasattr(schema, "__arrow_c_stream__") or hasattr(schema, "__arrow_c_array__"):
        return arrow_rows(schema).schema
    return schema


def _without_views(schema: pa.Schema) -> pa.Schema:
    return pa.schema([_field(field) for field in schema], metadata=schema.metadata)


def _field(field: pa.Field) -> pa.Field:
    return field.with_type(_type(field.type))


def _type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_string_view(kind):
        return pa.large_string()
    if pa.types.is_binary_view(kind):
        return pa.large_binary()
    if pa.types.is_struct(kind):
        return pa.struct([_field(field) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_field(kind.key_field), _field(kind.item_field), kind.keys_sorted)
    if pa.types.is_list(kind) or pa.types.is_list_view(kind):
        return pa.list_(_field(kind.value_field))
    if pa.types.is_large_list(kind) or pa.types.is_large_list_view(kind):
        return pa.large_list(_field(kind.value_field))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_field(kind.value_field), kind.list_size)
    if pa.types.is_dictionary(kind):
        return pa.dictionary(kind.index_type, _type(kind.value_type), kind.ordered)
    return kind

"""Takes rows and schemas from any library that exports Arrow data: Polars, DuckDB, pandas, …

Follows Arrow's PyCapsule interface. PyIceberg knows neither views nor runs of equal values, which
such libraries export. At every nesting, views become Arrow's large types, and runs become their
values. They are converted here, because Arrow casts list views wrongly, and does not cast all
others. This module does not know tables.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from ...arrow_nested import compacted, with_child


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
    ValueError, as PyIceberg does, for an object without Arrow data. Then, or while the reader is
    read, raises ValueError for a view or run that does not lie in its values."""
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
    schema = plain_schema(rows.schema)
    if schema == rows.schema:
        return rows
    if isinstance(rows, pa.Table):
        batches = map(plain_batch, rows.to_batches())
        return pa.Table.from_batches(batches, schema)
    return pa.RecordBatchReader.from_batches(schema, map(plain_batch, rows))


def arrow_table(data: ArrowRows) -> pa.Table:
    """Return Arrow data as a table, in memory. Raises as ``arrow_rows``."""
    rows = arrow_rows(data)
    return rows if isinstance(rows, pa.Table) else rows.read_all()


def arrow_schema(schema: Any) -> Any:
    """Return the schema of an object that exports an Arrow schema or Arrow data. Any other object
    is returned as it is."""
    if hasattr(schema, "__arrow_c_schema__"):
        return plain_schema(pa.schema(schema))
    if hasattr(schema, "__arrow_c_stream__") or hasattr(schema, "__arrow_c_array__"):
        return arrow_rows(schema).schema
    return schema


# -- types


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """Return a schema without views and runs."""
    return pa.schema([_field(field) for field in schema], metadata=schema.metadata)


def _field(field: pa.Field) -> pa.Field:
    return field.with_type(_type(field.type))


def _type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_string_view(kind):
        return pa.large_string()
    if pa.types.is_binary_view(kind):
        return pa.large_binary()
    if pa.types.is_run_end_encoded(kind):
        return _type(kind.value_type)
    if pa.types.is_struct(kind):
        return pa.struct([_field(field) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_field(kind.key_field), _field(kind.item_field), kind.keys_sorted)
    if pa.types.is_list(kind):
        return pa.list_(_field(kind.value_field))
    if _is_list_view(kind) or pa.types.is_large_list(kind):
        return pa.large_list(_field(kind.value_field))
    if pa.types.is_fixed_size_list(kind):
        inner = _field(kind.value_field)
        return kind if inner.type == kind.value_type else pa.list_(inner)
    if pa.types.is_dictionary(kind):
        return pa.dictionary(kind.index_type, _type(kind.value_type), kind.ordered)
    return kind


def _is_list_view(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind))


# -- values


def plain_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch of the schema that ``plain_schema`` returns. Raises as ``arrow_rows``."""
    schema = plain_schema(batch.schema)
    if schema == batch.schema:
        return batch
    batch.validate()
    return pa.RecordBatch.from_arrays([_plain(column) for column in batch.columns], schema=schema)


def _plain(array: pa.Array) -> pa.Array:
    """Return the values of an array, which may be a slice, in the type that ``_type`` returns."""
    kind = _type(array.type)
    if array.type == kind:
        return array
    if isinstance(array, pa.RunEndEncodedArray):
        return _without_runs(array)
    if isinstance(array, pa.DictionaryArray):
        values = _plain(array.dictionary)
        return pa.DictionaryArray.from_arrays(array.indices, values, ordered=kind.ordered)
    if isinstance(array, pa.StructArray):
        children = [_plain(array.field(i)) for i in range(kind.num_fields)]
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)
    if _is_list_view(array.type):
        return _without_views(array, kind)
    if pa.types.is_nested(kind):
        array = compacted(array)
        return with_child(array, kind, _plain(array.values))
    return array.cast(kind)


def _without_runs(array: pa.RunEndEncodedArray) -> pa.Array:
    rows = np.arange(array.offset, array.offset + len(array))
    return _taken(array.values, np.searchsorted(array.run_ends, rows, side="right"))


def _without_views(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return a list view as a list, whose values lie one after the other."""
    is_null = array.is_null()
    # A null's offset and size may be any numbers.
    shown = ~is_null.to_numpy(zero_copy_only=False)
    offsets = array.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    sizes = np.where(shown, array.sizes.to_numpy(zero_copy_only=False), 0).astype(np.int64)
    if sizes.size and not 0 <= sizes.min() <= sizes.max() <= len(array.values):
        raise ValueError(
            "a list view has a size that is negative or larger than its values: the Arrow data is "
            "invalid"
        )
    ends = np.cumsum(sizes)
    rows = np.repeat(offsets - (ends - sizes), sizes) + np.arange(sizes.sum())
    values = _taken(array.values, rows)
    starts = np.concatenate([[0], ends])
    return pa.LargeListArray.from_arrays(starts, values, type=kind, mask=is_null)


def _taken(values: pa.Array, rows: np.ndarray) -> pa.Array:
    """Return the values at the indices ``rows``."""
    if not rows.size:
        return _plain(values.slice(0, 0))
    first, end = int(rows.min()), int(rows.max()) + 1
    if first < 0 or end > len(values):
        raise ValueError(
            f"a list view or run refers to the values {first} to {end}, and there are "
            f"{len(values)}: the Arrow data is invalid"
        )
    # Arrow has no ``take`` of views. A slice of a batch may need a small part of the values.
    return _plain(values.slice(first, end - first)).take(pa.array(rows - first))

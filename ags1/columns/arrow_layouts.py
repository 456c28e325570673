"""Arrow's views and runs of equal values as its plain types.

PyIceberg knows neither. At every nesting, views become Arrow's large types, and runs become their
values. They are converted here, because Arrow casts list views wrongly, and does not cast all
others. Follows Arrow's columnar format. Independent of files.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from .arrow_nested import compacted, with_child

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
    """Return a batch of the schema that ``plain_schema`` returns. Raises
    ValueError for a view or run that does not lie in its values."""
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

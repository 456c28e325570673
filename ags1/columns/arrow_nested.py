"""Arrow's lists, maps and structs: replaces the values inside, removes those that no row has, and
makes offsets that are missing.

    lists        null  [a, b]          a null list may have elements, and a slice has
    offsets      0     2       4       those of the whole array
    values       x  y  a  b            compacted(): a b, with the offsets 0 0 2

Arrow refuses to cast a null in a required field, or to write it to Parquet, even if the struct or
list around it is null, too. ``without_hidden_nulls`` removes such nulls. Follows Arrow's columnar
format. Independent of files.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc


def with_child(array: pa.Array, kind: pa.DataType, child: pa.Array) -> pa.Array:
    """Return a list or map of type ``kind`` with another child array, and with the offsets and
    nulls of ``array``, which may be a slice."""
    return pa.Array.from_buffers(
        kind, len(array), array.buffers()[:2], offset=array.offset, children=[child]
    )


def with_offsets(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch whose ``nbytes`` is safe. If all lists of a batch are empty, the offsets of
    lists inside them may be an empty buffer: Spark makes such batches (SPARK-55056), and Arrow's
    IPC reads them as they are. ``nbytes`` reads the first offset without a check."""
    columns = [
        pa.concat_arrays([column])
        if any(buffer is not None and not buffer.size for buffer in column.buffers())
        and not pa.types.is_primitive(column.type)
        else column
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema) if columns else batch


def compacted(array: pa.Array) -> pa.Array:
    """Return a list or map whose child array has the elements of its lists and no others. A list of
    a fixed size becomes one with offsets. List views are not accepted. Raises ValueError for
    offsets that descend."""
    kind = array.type
    if pa.types.is_fixed_size_list(kind):
        kind = pa.list_(kind.value_field)
    if not len(array):
        # Its offsets may be missing.
        buffers = [None, pa.py_buffer(bytes(8))]
        return pa.Array.from_buffers(kind, 0, buffers, children=[array.values.slice(0, 0)])
    lists = array
    if pa.types.is_map(kind):
        lists = with_child(array, pa.list_(array.values.type), array.values)
    lengths = pc.fill_null(pc.list_value_length(lists), 0)
    if pc.min(lengths).as_py() < 0:
        raise ValueError("the offsets of lists descend: the Arrow data is invalid")
    count = pc.sum(lengths).as_py()
    if pa.types.is_fixed_size_list(array.type):
        values = lists.flatten()
    else:
        first, last = lists.offsets[0].as_py(), lists.offsets[-1].as_py()
        if first == 0 and last == count == len(array.values):
            return array
        values = array.values.slice(first, count) if last - first == count else lists.flatten()
    ends = pc.cumulative_sum_checked(lengths)
    offsets = pa.concat_arrays([pa.array([0], ends.type), ends])
    mask = array.is_null()
    if pa.types.is_map(kind):
        return pa.MapArray.from_arrays(offsets, values.field(0), values.field(1), kind, mask=mask)
    make = pa.LargeListArray if pa.types.is_large_list(kind) else pa.ListArray
    return make.from_arrays(offsets, values, type=kind, mask=mask)


def for_parquet(rows: pa.Table) -> pa.Table:
    """Return rows that Arrow writes to Parquet. If a null struct or list hides the null of a
    required field, this null becomes some value, which is not stored. Arrow refuses other nulls of
    required fields."""
    if not any(map(_has_required, rows.schema.types)):
        return rows
    columns = [
        pa.chunked_array(map(without_hidden_nulls, column.chunks), column.type)
        for column in rows.columns
    ]
    return pa.Table.from_arrays(columns, schema=rows.schema)


def _has_required(kind: pa.DataType) -> bool:
    """Return whether a value inside may not be null. A key of a map never may."""
    fields = [kind.field(i) for i in range(kind.num_fields)]
    if pa.types.is_map(kind):
        fields = [kind.item_field, kind.key_field.with_nullable(True)]
    return any(not field.nullable or _has_required(field.type) for field in fields)


def cast_rows(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return rows cast to a schema, also if nulls of required fields are hidden. Raises as Arrow's
    ``cast``."""
    try:
        return rows.cast(schema)
    except pa.ArrowInvalid:
        columns = list(map(without_hidden_nulls, rows.columns))
        return pa.RecordBatch.from_arrays(columns, schema=rows.schema).cast(schema)


def without_hidden_nulls(array: pa.Array) -> pa.Array:
    """Return an array without the nulls of required fields that a null struct or list hides."""
    kind = array.type
    if not _has_required(kind):
        return array
    if pa.types.is_struct(kind):
        nulls = array.null_count
        # Flattened, a field is null where the struct is.
        children = array.flatten() if nulls else map(array.field, range(kind.num_fields))
        children = [
            _unmarked(child) if nulls == child.null_count and not field.nullable else child
            for field, child in zip(kind, map(without_hidden_nulls, children), strict=True)
        ]
        mask = array.is_null() if nulls else None
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)
    if pa.types.is_map(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind):
        array = compacted(array)
        return with_child(array, kind, without_hidden_nulls(array.values))
    return array


def _unmarked(array: pa.Array) -> pa.Array:
    """Return an array without its bitmap of nulls. What its nulls become is not defined."""
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, _unmarked(array.storage))
    if pa.types.is_dictionary(kind) or not array.null_count:
        return array
    if pa.types.is_struct(kind):
        fields = [array.field(i) for i in range(kind.num_fields)]
        return pa.Array.from_buffers(kind, len(array), [None], children=fields)
    children = [array.values] if kind.num_fields else None
    buffers = [None, *array.buffers()[1 : 2 if children else None]]
    return pa.Array.from_buffers(kind, len(array), buffers, offset=array.offset, children=children)

"""Splits and sorts Arrow rows by a table's partition spec and sort order.

For example, rows of a table that is partitioned by ``bucket[16](id), day(time)``:

    id 34, time 2017-11-16T22:31      -> partition (3, 2017-11-16)
    id 34, time 2017-11-17T01:00      -> partition (3, 2017-11-17)

PyIceberg's ``pyarrow_transform`` needs another package (``pyiceberg-core``, 40 MB). PyIceberg's
partitioning distinguishes neither NaN values nor timestamps in nanoseconds, and does not accept two
fields of one column. So Arrow, NumPy and ``_transforms`` compute the transforms here. This follows
the Iceberg specification, "Partition Transforms" and "Sorting". It does not know files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import quote_plus
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg import types
from pyiceberg.expressions import (
    AlwaysFalse,
    AlwaysTrue,
    And,
    BooleanExpression,
    EqualTo,
    IsNaN,
    IsNull,
    Or,
    Reference,
)
from pyiceberg.partitioning import PartitionKey, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import NullOrder, SortDirection, SortOrder
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    VoidTransform,
    YearTransform,
)
from pyiceberg.typedef import Record
from pyiceberg.utils.decimal import decimal_to_unscaled

from ..spec.column_types import UNITS_A_DAY
from . import _transforms

_Ints: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"

_INTEGERS: tuple[type, ...] = (types.IntegerType, types.LongType, types.TimeType, *UNITS_A_DAY)
# The largest number of buckets, and the largest width of a truncation.
_MAX_INT = 2**31 - 1
_NANOSECONDS = (types.TimestampNanoType, types.TimestamptzNanoType)


@dataclass(frozen=True)
class RowsPartition(PartitionKey):
    """A partition for PyIceberg's location providers. ``values`` are those of manifests, in the
    order of the spec's fields."""

    values: tuple[Any, ...] = ()

    @property
    def partition(self) -> Record:
        return Record(*self.values)

    def to_path(self) -> str:
        try:
            return self.partition_spec.partition_to_path(self.partition, self.schema)
        except OverflowError:
            # Python has no text for a time outside the years 1 to 9999.
            pairs = zip(self.partition_spec.fields, self.values, strict=True)
            return "/".join(f"{quote_plus(f.name)}={quote_plus(str(value))}" for f, value in pairs)


def partition_filter(names: Sequence[str], partitions: Iterable[Record]) -> BooleanExpression:
    """Return a filter of the rows in identity partitions of the columns ``names``."""

    def of_value(name: str, value: Any) -> BooleanExpression:
        if value is None:
            return IsNull(term=Reference(name))
        if value != value:
            return IsNaN(term=Reference(name))
        return EqualTo(term=Reference(name), value=value)

    filters = [
        And(AlwaysTrue(), *(of_value(name, record[at]) for at, name in enumerate(names)))
        for record in partitions
    ]
    return Or(AlwaysFalse(), *filters)


class Partitioner:
    """Splits rows by a partition spec. The rows have the columns of ``schema`` as files have them:
    with ``keep_unknown`` also those of type ``unknown``. Raises NotImplementedError for an unknown
    transform, and ValueError for one whose column does not exist or has a wrong type."""

    def __init__(self, spec: PartitionSpec, schema: Schema, *, keep_unknown: bool = False) -> None:
        self._spec = spec
        self._schema = schema
        self._terms = [
            _Term(field.transform, field.source_id, schema, keep_unknown) for field in spec.fields
        ]
        self._live = [i for i, term in enumerate(self._terms) if not term.is_null]

    def key(self, values: tuple[Any, ...]) -> RowsPartition | None:
        """Return the partition with these values; None if the table is not partitioned."""
        if not self._terms:
            return None
        return RowsPartition([], self._spec, self._schema, values)

    def split(self, rows: pa.RecordBatch) -> Iterator[tuple[tuple[Any, ...], pa.RecordBatch]]:
        """Yield the values of each partition that occurs, and its rows in their given order."""
        if not rows.num_rows:
            return
        keys = {i: self._terms[i].of(rows) for i in self._live}
        groups: _Ints = np.zeros(rows.num_rows, np.int64)
        count = 1
        for key in keys.values():
            codes, values = _codes(key)
            groups, count = (
                _codes(pa.array(groups * values + codes)) if count > 1 else (codes, values)
            )
        if count == 1:
            yield self._values(keys, 0), rows
            return
        # NumPy sorts narrow integers ten times as fast (radix sort).
        order = np.argsort(groups.astype(np.min_scalar_type(count - 1)), kind="stable")
        ends = np.cumsum(np.bincount(groups))[:-1]
        # These are copies. A slice would keep the whole batch in memory until it is written.
        for indices in np.split(order, ends):
            part = pc.take(rows, pa.array(indices), boundscheck=False)
            yield self._values(keys, int(indices[0])), part

    def _values(self, keys: Mapping[int, pa.Array], row: int) -> tuple[Any, ...]:
        return tuple(
            _value(term.kind, keys[i][row]) if i in keys else None
            for i, term in enumerate(self._terms)
        )


def sort_rows(rows: pa.Table, order: SortOrder, schema: Schema, *, keep_unknown: bool) -> pa.Table:
    """Return the rows in a table's sort order. The sort is stable; NaN is above all numbers."""
    batches = rows.to_batches()
    if not batches:
        return rows
    columns: list[pa.ChunkedArray] = []
    directions: list[str] = []
    for field in order.fields:
        term = _Term(field.transform, field.source_id, schema, keep_unknown)
        key = pa.chunked_array([term.of(batch) for batch in batches])
        if pa.types.is_boolean(key.type):
            key = key.cast(pa.int8())
        is_ascending = field.direction == SortDirection.ASC
        direction = "ascending" if is_ascending else "descending"
        if key.null_count:
            columns.append(pc.is_null(key).cast(pa.int8()))
            nulls_last = field.null_order == NullOrder.NULLS_LAST
            directions.append("ascending" if nulls_last else "descending")
        if pa.types.is_floating(key.type):
            columns.append(pc.is_nan(key).cast(pa.int8()))
            directions.append(direction)
        columns.append(key)
        directions.append(direction)
    names = [str(i) for i in range(len(columns))]
    keys = pa.table(columns, names=names)
    indices = pc.sort_indices(keys, sort_keys=list(zip(names, directions, strict=True)))
    return rows.take(indices)


def can_sort(order: SortOrder, schema: Schema) -> bool:
    """Return whether the order has fields, all of known transforms and existing columns."""
    try:
        for field in order.fields:
            _Term(field.transform, field.source_id, schema, keep_unknown=True)
    except (NotImplementedError, ValueError):
        return False
    return bool(order.fields)


class _Term:
    """A transform of a column. ``kind`` is the type of its values. If ``is_null``, these are all
    null: the field was dropped (void transform), or the column's type is ``unknown``."""

    def __init__(
        self, transform: Transform[Any, Any], source_id: int, schema: Schema, keep_unknown: bool
    ) -> None:
        self._transform = transform
        self.is_null = isinstance(transform, VoidTransform)
        if self.is_null:
            self.kind: types.IcebergType = types.UnknownType()
            return
        column = _path(schema.as_struct(), source_id, keep_unknown=True)
        if column is None:
            raise ValueError(
                f"the transform {transform} is of column {source_id}, which does not exist"
            )
        self._source = column[1]
        if not isinstance(transform, _TRANSFORMS):
            raise NotImplementedError(f"the transform {transform!r} is not supported")
        if not transform.can_transform(self._source):
            raise ValueError(f"the transform {transform} cannot be applied to {self._source}")
        if getattr(transform, "num_buckets", getattr(transform, "width", 1)) > _MAX_INT:
            raise ValueError(f"the number in the transform {transform} is above {_MAX_INT}")
        self.kind = transform.result_type(self._source)
        # Parquet files do not have such a column, so no position in the rows is asked for.
        self.is_null = _is_unknown(self._source)
        stored = _path(schema.as_struct(), source_id, keep_unknown)
        self._path = () if stored is None else stored[0]

    def of(self, rows: pa.RecordBatch) -> pa.Array:
        """Return the transformed column. Null stays null; points in time are integers."""
        if self.is_null:
            return pa.nulls(rows.num_rows)
        column = rows.column(self._path[0])
        for position in self._path[1:]:
            column = pc.struct_field(column, position)
        return self._apply(_plain(self._source, column))

    def _apply(self, column: pa.Array) -> pa.Array:
        transform, source = self._transform, self._source
        if isinstance(transform, IdentityTransform):
            return column
        if isinstance(transform, BucketTransform):
            return _buckets(source, column, transform.num_buckets)
        if isinstance(source, _INTEGERS):
            kind = pa.int32() if isinstance(transform, _OF_TIMES) else column.type
            return _mapped(column, self._of_integers, kind)
        assert isinstance(transform, TruncateTransform)
        if isinstance(source, types.StringType):
            return pc.utf8_slice_codeunits(column, 0, transform.width)
        if isinstance(source, types.BinaryType):
            return pc.binary_slice(column, 0, transform.width)
        memory = _transforms.truncate_decimals(_memory(column, 16), transform.width)
        truncated = _with_nulls_of(column, memory, column.type)
        lowest = pc.min(truncated).as_py()
        if lowest is not None and decimal_to_unscaled(lowest) <= -(10**column.type.precision):
            raise ValueError(
                f"{transform} makes the partition {lowest} of a value. It has too many digits for "
                f"{source}: give the column a higher precision, or choose another transform"
            )
        return truncated

    def _of_integers(self, values: _Ints) -> _Ints:
        transform, source = self._transform, self._source
        if isinstance(transform, TruncateTransform):
            return values - np.mod(values, transform.width)
        units = UNITS_A_DAY[type(source)]
        if isinstance(transform, HourTransform):
            return values // (units // 24)
        days = values // units
        if isinstance(transform, DayTransform):
            return days
        months = days.astype("datetime64[D]").astype("datetime64[M]").astype(np.int64)
        return months if isinstance(transform, MonthTransform) else months // 12


_OF_TIMES = (YearTransform, MonthTransform, DayTransform, HourTransform)
_TRANSFORMS = (IdentityTransform, BucketTransform, TruncateTransform, *_OF_TIMES)


def _path(
    struct: types.StructType, field_id: int, keep_unknown: bool
) -> tuple[tuple[int, ...], types.PrimitiveType] | None:
    """Return the positions of a primitive column in the rows and in the structs around it, from
    outside in, and its type. Return None if there is no such column."""
    fields = [f for f in struct.fields if keep_unknown or not _is_unknown(f.field_type)]
    for position, field in enumerate(fields):
        if field.field_id == field_id and isinstance(field.field_type, types.PrimitiveType):
            return (position,), field.field_type
        if isinstance(field.field_type, types.StructType):
            inner = _path(field.field_type, field_id, keep_unknown)
            if inner is not None:
                return (position, *inner[0]), inner[1]
    return None


def _is_unknown(kind: types.IcebergType) -> bool:
    return isinstance(kind, types.UnknownType)


def _plain(kind: types.IcebergType, column: pa.Array) -> pa.Array:
    """Return a column of physical values: points in time as integers, UUIDs as bytes."""
    if isinstance(column, pa.ExtensionArray):
        return column.storage
    if isinstance(kind, types.DateType):
        return column.cast(pa.int32())
    if pa.types.is_temporal(column.type):
        return column.cast(pa.int64())
    return column


def _buckets(source: types.PrimitiveType, column: pa.Array, count: int) -> pa.Array:
    if pa.types.is_decimal(column.type):
        buckets = _transforms.bucket_decimals(_memory(column, 16), count)
        return _with_nulls_of(column, buckets, pa.int32())
    offsets: Any
    data: Any
    if isinstance(source, _INTEGERS):
        values = _integers(column)
        # A point in time is in the same bucket in either precision.
        data = values // 1000 if isinstance(source, _NANOSECONDS) else values
        offsets = np.arange(len(column) + 1) * 8
    elif pa.types.is_fixed_size_binary(column.type):
        data = _memory(column, column.type.byte_width)
        offsets = np.arange(len(column) + 1) * column.type.byte_width
    else:
        _, starts, text = column.buffers()
        data = b"" if text is None else text
        is_large = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
        all_offsets = np.frombuffer(starts, np.int64 if is_large else np.int32)
        offsets = all_offsets[column.offset :][: len(column) + 1].astype(np.int64)
    return _with_nulls_of(column, _transforms.bucket_bytes(offsets, data, count), pa.int32())


def _memory(column: pa.Array, width: int) -> memoryview:
    """Return the memory of a column's values, each of ``width`` bytes."""
    return memoryview(column.buffers()[1])[column.offset * width :][: len(column) * width]


def _with_nulls_of(column: pa.Array, memory: bytes, kind: pa.DataType) -> pa.Array:
    """Return an array of ``kind`` with the values in ``memory`` and the nulls of the column."""
    values = pa.Array.from_buffers(kind, len(column), [None, pa.py_buffer(memory)])
    return pc.if_else(column.is_valid(), values, pa.scalar(None, kind))


def _integers(column: pa.Array) -> _Ints:
    """Return a column as integers; a null becomes 0."""
    values: _Ints = column.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return values


def _mapped(column: pa.Array, function: Any, kind: pa.DataType) -> pa.Array:
    """Apply a function of NumPy integers to a column of integers with nulls."""
    mask = column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None
    result = function(_integers(column))
    return pa.array(result.astype(kind.to_pandas_dtype()), kind, mask=mask)


def _codes(key: pa.Array) -> tuple[_Ints, int]:
    """Return a code from 0 on for each value, and how many different values there are. As in Java,
    all NaNs are one value, null is another, and -0.0 is different from 0.0."""
    if pa.types.is_floating(key.type):
        is_wide = key.type == pa.float64()
        nan = pa.scalar(float("nan"), key.type)
        key = pc.if_else(pc.is_nan(key), nan, key).view(pa.int64() if is_wide else pa.int32())
    coded = key.dictionary_encode(null_encoding="encode")
    codes: _Ints = coded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return codes, len(coded.dictionary)


def _value(kind: types.IcebergType, scalar: pa.Scalar) -> Any:
    """Return a value in PyIceberg's representation."""
    value = scalar.as_py()
    return UUID(bytes=value) if isinstance(kind, types.UUIDType) and value is not None else value

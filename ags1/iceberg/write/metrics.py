"""The metrics of a data file's columns for its manifest entry: sizes, counts and bounds.

Which columns have which metrics follows Java's ``MetricsConfig`` (``write.metadata.metrics.*``; by
default the first hundred columns, and always the sorted columns). What a metric is follows Java's
``ParquetMetrics``: nothing inside of lists and maps is counted.

                    Parquet                                    Avro
    column sizes    footer                                     none
    values, nulls   footer; geometries, variants here          counted here
    NaNs            counted here                               counted here
    bounds          footer; here if a value exceeds 4 KiB      compared here

PyIceberg's collector is not used. It has no NaN counts, and it finds columns by names that two
columns may share. If a row group has no bounds, because a value exceeds 4 KiB, it takes the bounds
of the other row groups as the file's. This module does not write files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg import types
from pyiceberg.conversions import to_bytes
from pyiceberg.io.pyarrow import MetricModeTypes, MetricsMode, match_metrics_mode
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import SortOrder
from pyiceberg.utils.decimal import bytes_required, decimal_to_unscaled

from ...columns.avro.variants import VARIANT_PARTS, VariantType
from ..spec.properties import number_in

_DEFAULT = "write.metadata.metrics.default"
_OF_COLUMN = "write.metadata.metrics.column."
_MAX_INFERRED = "write.metadata.metrics.max-inferred-column-defaults"
_MAX_INFERRED_DEFAULT = 100

_TRUNCATED = MetricsMode(MetricModeTypes.TRUNCATE, 16)
_NONE = MetricsMode(MetricModeTypes.NONE)
_COUNTS = MetricsMode(MetricModeTypes.COUNTS)

# Arrow writes bounds to the footer only if the values are not longer than that, in bytes.
_MAX_FOOTER_BOUND = 4096
_FIRST_SURROGATE, _LAST_SURROGATE = 0xD800, 0xDFFF


class ColumnMetrics(NamedTuple):
    """A file's metrics by field id. Bounds are serialized as in the specification, "Appendix D:
    Single-value serialization"."""

    column_sizes: Mapping[int, int] | None
    value_counts: Mapping[int, int]
    null_value_counts: Mapping[int, int]
    nan_value_counts: Mapping[int, int]
    lower_bounds: Mapping[int, bytes]
    upper_bounds: Mapping[int, bytes]


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A primitive column. ``path`` has its positions from outside in; None in lists and maps."""

    field_id: int
    kind: types.PrimitiveType
    mode: MetricsMode
    path: tuple[int, ...] | None

    @property
    def is_measured(self) -> bool:
        return self.path is not None and self.mode != _NONE

    @property
    def has_bounds(self) -> bool:
        has_order = self.is_counted_by_parquet and not isinstance(self.kind, types.UnknownType)
        return self.is_measured and self.mode != _COUNTS and has_order

    @property
    def is_counted_by_parquet(self) -> bool:
        """Whether a Parquet footer has the number of its nulls. It has none for geometries, and
        variants are groups."""
        return not isinstance(self.kind, types.GeometryType | types.GeographyType | VariantType)

    @property
    def is_float(self) -> bool:
        return isinstance(self.kind, types.FloatType | types.DoubleType)

    def column(self, rows: pa.Table) -> pa.ChunkedArray:
        assert self.path is not None
        column = rows.column(self.path[0])
        return pc.struct_field(column, list(self.path[1:])) if len(self.path) > 1 else column


def measured_columns(
    schema: Schema, properties: Mapping[str, str], order: SortOrder, *, keep_unknown: bool
) -> list[_Leaf]:
    """Return the columns of ``schema`` with the metrics that a table wants of each. With
    ``keep_unknown``, files have the columns of type ``unknown``. Raises ValueError for an invalid
    mode."""
    modes = _modes(schema, properties, order)
    return [
        _Leaf(field_id, kind, modes.get(field_id, _NONE), path)
        for field_id, kind, path in _leaves(schema.as_struct(), (), keep_unknown)
    ]


class MetricsCollector:
    """Collects the metrics of one file while it is written."""

    def __init__(self, leaves: list[_Leaf]) -> None:
        self._leaves = leaves
        self._values = dict.fromkeys((x.field_id for x in leaves if x.is_measured), 0)
        self._nulls = dict(self._values)
        self._nans = dict.fromkeys((x.field_id for x in leaves if x.is_measured and x.is_float), 0)
        self._lower: dict[int, Any] = {}
        self._upper: dict[int, Any] = {}
        self._sizes: dict[int, int] | None = None
        # Columns whose bounds come from the rows, because the footer has none.
        self._measured: set[int] = set()

    def add_parquet_rows(self, rows: pa.Table) -> None:
        """Count what a Parquet footer will not have of the rows of a row group."""
        self._count_nans(rows)
        for leaf in self._leaves:
            if leaf.is_measured and not leaf.is_counted_by_parquet:
                self._count(leaf, leaf.column(rows))
            if leaf.has_bounds and isinstance(leaf.kind, types.StringType | types.BinaryType):
                column = leaf.column(rows)
                # The footer has no bounds then, and those of other row groups may not hold.
                if (pc.max(pc.binary_length(column)).as_py() or 0) > _MAX_FOOTER_BOUND:
                    self._widen(leaf, *_bounds(leaf, column))
                    self._measured.add(leaf.field_id)

    def add_parquet_footer(self, footer: pq.FileMetaData) -> None:
        """Add what the file's footer has. Raises ValueError if it lacks a null count."""
        sizes: dict[int, int] = {}
        boundless: set[int] = set()
        for group in map(footer.row_group, range(footer.num_row_groups)):
            position = 0
            for leaf in self._leaves:
                if isinstance(leaf.kind, VariantType):
                    # Its parts have no field ids, so Java has no sizes of them.
                    position += len(VARIANT_PARTS)
                    continue
                self._add_chunk(leaf, group.column(position), sizes, boundless)
                position += 1
        self._sizes = sizes
        for field_id in boundless - self._measured:
            self._lower.pop(field_id, None)
            self._upper.pop(field_id, None)

    def _add_chunk(
        self, leaf: _Leaf, chunk: Any, sizes: dict[int, int], boundless: set[int]
    ) -> None:
        if leaf.mode != _NONE:
            sizes[leaf.field_id] = sizes.get(leaf.field_id, 0) + chunk.total_compressed_size
        if not leaf.is_measured or not leaf.is_counted_by_parquet:
            return
        statistics = chunk.statistics
        if statistics is None or not statistics.has_null_count:
            raise ValueError(f"the nulls of {chunk.path_in_schema} were not counted")
        self._values[leaf.field_id] += chunk.num_values
        self._nulls[leaf.field_id] += statistics.null_count
        if not leaf.has_bounds or statistics.null_count == chunk.num_values:
            return
        if statistics.has_min_max:
            self._widen(leaf, _raw(leaf, statistics.min_raw), _raw(leaf, statistics.max_raw))
        elif not leaf.is_float:  # if all values are NaN, there are no bounds
            boundless.add(leaf.field_id)

    def add_rows(self, rows: pa.Table) -> None:
        """Count rows of a file whose format has no statistics (Avro)."""
        self._count_nans(rows)
        for leaf in self._leaves:
            if leaf.is_measured:
                column = leaf.column(rows)
                self._count(leaf, column)
                if leaf.has_bounds and column.null_count < len(column):
                    self._widen(leaf, *_bounds(leaf, column))

    def result(self) -> ColumnMetrics:
        """Return the metrics of all that was added."""
        lower: dict[int, bytes] = {}
        upper: dict[int, bytes] = {}
        for leaf in self._leaves:
            if leaf.field_id in self._lower:
                lower[leaf.field_id] = _serialized(leaf, self._lower[leaf.field_id], upwards=False)
                above = _serialized(leaf, self._upper[leaf.field_id], upwards=True)
                if above is not None:
                    upper[leaf.field_id] = above
        return ColumnMetrics(self._sizes, self._values, self._nulls, self._nans, lower, upper)

    def _count_nans(self, rows: pa.Table) -> None:
        for leaf in self._leaves:
            if leaf.field_id in self._nans:
                self._nans[leaf.field_id] += pc.sum(pc.is_nan(leaf.column(rows))).as_py() or 0

    def _count(self, leaf: _Leaf, column: pa.ChunkedArray) -> None:
        self._values[leaf.field_id] += len(column)
        self._nulls[leaf.field_id] += column.null_count

    def _widen(self, leaf: _Leaf, lower: Any, upper: Any) -> None:
        if lower is None or upper is None:
            return
        known = self._lower.get(leaf.field_id)
        if known is None or lower < known:
            self._lower[leaf.field_id] = lower
        known = self._upper.get(leaf.field_id)
        if known is None or upper > known:
            self._upper[leaf.field_id] = upper


def _modes(
    schema: Schema, properties: Mapping[str, str], order: SortOrder
) -> dict[int, MetricsMode]:
    ids = {field_id: schema.find_column_name(field_id) for field_id in schema.field_ids}
    configured = properties.get(_DEFAULT)
    if configured is not None:
        default = match_metrics_mode(configured)
        modes = dict.fromkeys(ids, default)
    else:
        most = number_in(properties, _MAX_INFERRED, _MAX_INFERRED_DEFAULT)
        default = _TRUNCATED if len(ids) <= most else _NONE
        modes = dict.fromkeys(ids, default)
        if default == _NONE:
            modes.update(dict.fromkeys(_first_primitives(schema.as_struct(), most), _TRUNCATED))
    for field in order.fields:
        if field.transform.preserves_order and field.source_id in ids:
            modes[field.source_id] = _TRUNCATED if default in (_NONE, _COUNTS) else default
    by_name = {name: field_id for field_id, name in ids.items()}
    for key, value in properties.items():
        name = key.removeprefix(_OF_COLUMN)
        if name != key and name in by_name:
            modes[by_name[name]] = match_metrics_mode(value)
    return modes


def _first_primitives(kind: types.IcebergType, most: int) -> list[int]:
    """Return the ids of the first primitive columns; an outer level comes before an inner one."""
    if most <= 0:
        return []
    fields = _children(kind)
    ids = [f.field_id for f in fields if isinstance(f.field_type, types.PrimitiveType)][:most]
    for field in fields:
        ids += _first_primitives(field.field_type, most - len(ids))
    return ids


def _leaves(
    kind: types.IcebergType, path: tuple[int, ...] | None, keep_unknown: bool
) -> Iterator[tuple[int, types.PrimitiveType, tuple[int, ...] | None]]:
    """Yield the id, type and path of each primitive column, in the order of a Parquet file."""
    is_struct = isinstance(kind, types.StructType)
    fields = _children(kind)
    if not keep_unknown:
        fields = tuple(f for f in fields if not isinstance(f.field_type, types.UnknownType))
    for position, field in enumerate(fields):
        inner = None if path is None or not is_struct else (*path, position)
        if isinstance(field.field_type, types.PrimitiveType):
            yield field.field_id, field.field_type, inner
        else:
            yield from _leaves(field.field_type, inner, keep_unknown)


def _children(kind: types.IcebergType) -> tuple[types.NestedField, ...]:
    if isinstance(kind, types.StructType):
        return kind.fields
    if isinstance(kind, types.ListType):
        return (kind.element_field,)
    if isinstance(kind, types.MapType):
        return kind.key_field, kind.value_field
    return ()


# Bounds are compared as numbers or bytes: strings as UTF-8, decimals as unscaled values.


def _raw(leaf: _Leaf, value: Any) -> Any:
    """Return a bound of a Parquet footer as it is compared."""
    if isinstance(leaf.kind, types.DecimalType) and isinstance(value, bytes):
        return int.from_bytes(value, "big", signed=True)
    return value


def _bounds(leaf: _Leaf, column: pa.ChunkedArray) -> tuple[Any, Any]:
    """Return the smallest and the largest value; None if there is none."""
    if isinstance(leaf.kind, types.UUIDType):
        column = pa.chunked_array([c.storage for c in column.chunks], pa.binary(16))
    elif isinstance(leaf.kind, types.StringType):
        # Arrow compares bytes in the order of code points.
        column = column.cast(pa.large_binary())
    elif isinstance(leaf.kind, types.DateType):
        column = column.cast(pa.int32())
    elif pa.types.is_temporal(column.type):
        column = column.cast(pa.int64())
    if leaf.is_float:
        column = column.filter(pc.invert(pc.is_nan(column)))
    lower, upper = pc.min_max(column).as_py().values()
    if leaf.is_float and lower is not None:
        # Arrow takes zeros of either sign for equal, Iceberg does not. A Parquet footer has these.
        return lower or -0.0, upper or 0.0
    if isinstance(leaf.kind, types.DecimalType) and lower is not None:
        return decimal_to_unscaled(lower), decimal_to_unscaled(upper)
    return lower, upper


def _serialized(leaf: _Leaf, value: Any, *, upwards: bool) -> Any:
    """Return a bound as manifests have it; None for an upper bound that cannot be truncated."""
    kind = leaf.kind
    length = leaf.mode.length
    if isinstance(kind, types.StringType):
        return value if length is None else _truncated_text(value, length, upwards=upwards)
    if isinstance(kind, types.BinaryType):
        return value if length is None else _truncated_bytes(value, length, upwards=upwards)
    if isinstance(kind, types.DecimalType):
        return value.to_bytes(bytes_required(value), "big", signed=True)
    return to_bytes(kind, value)


def _truncated_text(value: bytes, length: int, *, upwards: bool) -> bytes | None:
    text = value.decode()
    cut = text[:length]
    if not upwards or cut == text:
        return cut.encode()
    for i in range(len(cut) - 1, -1, -1):
        following = ord(cut[i]) + 1
        if following == _FIRST_SURROGATE:
            following = _LAST_SURROGATE + 1
        if following <= 0x10FFFF:
            return (cut[:i] + chr(following)).encode()
    return None


def _truncated_bytes(value: bytes, length: int, *, upwards: bool) -> bytes | None:
    cut = value[:length]
    if not upwards or cut == value:
        return cut
    for i in range(len(cut) - 1, -1, -1):
        if cut[i] < 0xFF:
            return cut[:i] + bytes([cut[i] + 1])
    return None

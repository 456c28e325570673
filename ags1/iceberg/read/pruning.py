"""What manifests say about a filter: it is true for all rows of a file, for none, or for some.

A partition value, or a pair of bounds, is a range in which the values of a column lie::

    day(t) = 1                       t from 86,400,000,000 to 172,799,999,999 (microseconds)
    truncate[10](n) = 20             n from 20 to 29
    truncate[2](s) = 'ab'            s from 'ab' on, as long as it begins with 'ab'
    bounds 7 and 9                   n from 7 to 9
    bucket[16](n) = 3                no range; but 34 does not occur, because it is in bucket 2

Each predicate is compared with such a range. PyIceberg transforms the literals of a filter instead.
That fails at the ends of a type's range: the last date has no successor, and the truncated value of
the smallest number does not fit its type. Python's numbers, which ranges have here, have no ends.
Of times before 1970, a partition value may be the next one, because old Java rounded towards zero.

This follows the Iceberg specification, "Scan Planning" and "Partition Transforms". ``binding`` says
what filters mean. No file is opened.
"""

from __future__ import annotations

import operator
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from decimal import Context, Decimal
from functools import partial
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

import numpy as np
from pyiceberg import expressions as ex
from pyiceberg import transforms, types
from pyiceberg.expressions.visitors import BooleanExpressionVisitor, visit
from pyiceberg.manifest import DataFile, ManifestFile, PartitionFieldSummary
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema

from ...columns.avro.variants import VariantType
from ..pyiceberg.expressions import value_of_bound
from ..pyiceberg.records import record_values
from ..spec.column_types import UNITS_A_DAY
from .binding import BoundFilter

# True: for all rows. False: for no row. None: for some rows, or it is not known.
Answer: TypeAlias = "bool | None"
_Decision: TypeAlias = "Callable[[Any], Answer]"
_Judge: TypeAlias = "Callable[[_Values], Answer]"
_Ranges: TypeAlias = "Callable[[Any, Any], tuple[Any, Any]]"

_FLOATS = types.FloatType, types.DoubleType
# It has room for the sum of any two decimals.
_WIDE = Context(prec=100)


class FileFilter:
    """A filter on the rows of a table's files. It must not name metadata columns, about which
    manifests say nothing. ``specs`` are the table's partition specs; files of other specs are
    judged by their metrics alone. An empty file has no row that matches, unless
    ``include_empty_files``."""

    def __init__(
        self,
        bound: BoundFilter,
        specs: Mapping[int, PartitionSpec],
        *,
        include_empty_files: bool = False,
    ) -> None:
        self._filter = bound.expression
        self._specs = specs
        self._include_empty_files = include_empty_files
        self._top_level = {field.field_id for field in bound.schema.fields}
        self._decisions: dict[tuple[int, int, str], _Decision] = {}

    def may_match_manifest(self, manifest: ManifestFile) -> bool:
        """Return whether a file of a manifest may have a row that matches."""
        decide = self._decision(self._filter, manifest.partition_spec_id, "summaries")
        return not manifest.partitions or decide(manifest.partitions) is not False

    def of_partition(self, file: DataFile) -> Answer:
        """Return what a file's partition says. (The metrics of a delete file are not those of the
        rows that it deletes.)"""
        return self._decision(self._filter, file.spec_id, "partition")(file)

    def of_file(self, file: DataFile) -> Answer:
        """Return what a file's partition and metrics say."""
        if file.record_count == 0:
            return None if self._include_empty_files else False
        return self._decision(self._filter, file.spec_id, "file")(file)

    def _decision(self, part: ex.BooleanExpression, spec_id: int, source: str) -> _Decision:
        """Return a part of the filter as a function of the manifest's ``summaries``, of a file by
        its ``partition`` alone, or of a ``file`` by its partition and metrics."""
        key = id(part), spec_id, source
        if key not in self._decisions:
            judge = partial(self._judge, self._specs.get(spec_id), source)
            self._decisions[key] = visit(part, _Decisions(judge))
        return self._decisions[key]

    def _judge(self, spec: PartitionSpec | None, source: str, bound: Any) -> _Decision:
        field = bound.term.ref().field
        kind = field.field_type
        judges: list[_Decision] = []
        for position, part in enumerate(() if spec is None else spec.fields):
            ranges = _ranges(part.transform, kind) if part.source_id == field.field_id else None
            if ranges is None:
                continue
            bucket = None
            if isinstance(part.transform, transforms.BucketTransform):
                bucket = part.transform.transform(kind)
            judge = _of(bound, bucket)
            if source == "summaries":
                result: Any = part.transform.result_type(kind)
                judges.append(partial(_by_summary, judge, position, result, ranges))
            else:
                judges.append(partial(_by_partition, judge, position, ranges))
        if source == "file":
            is_nested = field.field_id not in self._top_level
            judges.append(partial(_by_metrics, _of(bound), field, is_nested))
        return judges[0] if len(judges) == 1 else partial(_first, judges)


class PartitionsOfFiles:
    """The partitions of some files. It says which manifests may list a file again: by Java's rule
    (``ManifestFileUtil.canContainAny``), those of the same spec whose summaries may have one of
    these partitions. Other than in Java, manifests of other specs may list it too. Values are
    compared field by field, not as tuples. ``schemas`` are the table's."""

    def __init__(self, specs: Mapping[int, PartitionSpec], schemas: Sequence[Schema]) -> None:
        self._specs = specs
        self._schemas = schemas
        self._values: dict[int, list[set[Any]]] = {}
        self._judges: dict[int, list[Callable[[Any], bool]] | None] = {}

    def add(self, file: DataFile) -> None:
        """Add a file's partition."""
        values = record_values(file.partition)
        fields = self._values.setdefault(file.spec_id, [set() for _ in values])
        for of_field, value in zip(fields, values, strict=True):
            of_field.add(value)
        self._judges.pop(file.spec_id, None)

    def may_be_in(self, manifest: ManifestFile) -> bool:
        """Return whether a manifest may list one of the files."""
        spec_id = manifest.partition_spec_id
        if self._values.keys() != {spec_id} or not manifest.partitions:
            return bool(self._values)
        if spec_id not in self._judges:
            self._judges[spec_id] = self._judges_of(spec_id)
        judges = self._judges[spec_id]
        if judges is None or len(judges) != len(manifest.partitions):
            return True
        return all(judge(part) for judge, part in zip(judges, manifest.partitions, strict=True))

    def _judges_of(self, spec_id: int) -> list[Callable[[Any], bool]] | None:
        spec = self._specs.get(spec_id)
        if spec is None or len(spec.fields) != len(self._values[spec_id]):
            return None
        judges: list[Callable[[Any], bool]] = []
        for field, values in zip(spec.fields, self._values[spec_id], strict=True):
            source = field.source_id
            kinds = [s.find_type(source) for s in self._schemas if source in s.field_ids]
            # The last schema has the widest type of the column.
            kind = field.transform.result_type(kinds[-1]) if kinds else None
            judges.append(partial(_may_have, _known(values), kind))
        return judges


class _Decisions(BooleanExpressionVisitor[_Decision]):
    """Turns a filter into a function. ``judge`` returns the functions of bound predicates."""

    def __init__(self, judge: Callable[[Any], _Decision]) -> None:
        self._judge = judge

    def visit_true(self) -> _Decision:
        return lambda _: True

    def visit_false(self) -> _Decision:
        return lambda _: False

    def visit_not(self, child_result: _Decision) -> _Decision:
        raise AssertionError("the filter has no Not")

    def visit_and(self, left_result: _Decision, right_result: _Decision) -> _Decision:
        def both(source: Any) -> Answer:
            first = left_result(source)
            if first is False:
                return False
            second = right_result(source)
            return second if first else second and None

        return both

    def visit_or(self, left_result: _Decision, right_result: _Decision) -> _Decision:
        def either(source: Any) -> Answer:
            first = left_result(source)
            if first:
                return True
            second = right_result(source)
            return second if first is False else second or None

        return either

    def visit_unbound_predicate(self, predicate: ex.UnboundPredicate) -> _Decision:
        raise AssertionError("the filter is bound")

    def visit_bound_predicate(self, predicate: ex.BoundPredicate) -> _Decision:
        return self._judge(predicate)


def _known(values: set[Any]) -> tuple[bool, bool, list[Any] | None]:
    """Return whether values include null and NaN, and the others in order; None if they have no
    order that all writers share."""
    nans = {value for value in values if value != value}
    others = values - nans - {None}
    is_ordered = not any(isinstance(value, UUID) for value in others)
    return None in values, bool(nans), sorted(others) if is_ordered else None


def _may_have(
    known: tuple[bool, bool, list[Any] | None], kind: Any, summary: PartitionFieldSummary
) -> bool:
    """Return whether a partition field with this summary may have one of the values."""
    null, nan, points = known
    if points is None or kind is None:
        return True
    if (null and summary.contains_null) or (nan and summary.contains_nan is not False):
        return True
    if summary.lower_bound is None or summary.upper_bound is None:
        return False
    lower, upper = _bound(kind, summary.lower_bound), _bound(kind, summary.upper_bound)
    if lower is None or upper is None or lower != lower or upper != upper:
        return bool(points)
    return _any_between(points, _Values(lower=lower, upper=upper))


def _first(judges: Sequence[_Decision], source: Any) -> Answer:
    for judge in judges:
        answer = judge(source)
        if answer is not None:
            return answer
    return None


# -- what is known of a column


class _Values(NamedTuple):
    """What is known of a column in some rows. ``nulls`` is True if all values are null, False if
    none is; so is ``nans``. The other values lie from ``lower`` to ``upper``; None if a bound is
    not known. If ``no_others``, there are no other values."""

    nulls: Answer = None
    nans: Answer = None
    lower: Any = None
    upper: Any = None
    no_others: bool = False

    @property
    def others(self) -> Answer:
        """Whether all values, or none, are neither null nor NaN."""
        if self.nulls or self.nans or self.no_others:
            return False
        return True if self.nulls is False and self.nans is False else None


def _by_partition(judge: _Judge, position: int, ranges: _Ranges, file: DataFile) -> Answer:
    value = file.partition[position]
    if value is None:
        return judge(_Values(nulls=True, nans=False))
    if value != value:
        return judge(_Values(nulls=False, nans=True))
    return judge(_Values(False, False, *ranges(value, value)))


def _by_summary(
    judge: _Judge,
    position: int,
    kind: types.PrimitiveType,
    ranges: _Ranges,
    summaries: Sequence[PartitionFieldSummary],
) -> Answer:
    summary = summaries[position]
    nulls = None if summary.contains_null else False
    nans = None if isinstance(kind, _FLOATS) and summary.contains_nan is not False else False
    if summary.lower_bound is None or summary.upper_bound is None:
        only_nulls = nulls is None and nans is False
        return judge(_Values(True if only_nulls else nulls, nans, no_others=True))
    lower, upper = _bound(kind, summary.lower_bound), _bound(kind, summary.upper_bound)
    if lower is None or upper is None:
        return judge(_Values(nulls, nans))
    return judge(_Values(nulls, nans, *ranges(lower, upper)))


def _by_metrics(judge: _Judge, field: types.NestedField, is_nested: bool, file: DataFile) -> Answer:
    field_id, kind = field.field_id, field.field_type
    count = (file.value_counts or {}).get(field_id)
    # The counts of a column in a struct do not always include the rows where the struct is null.
    is_partial = is_nested and count != file.record_count
    nulls = _share((file.null_value_counts or {}).get(field_id), count)
    if is_partial and nulls is False:
        nulls = None
    is_float = isinstance(kind, _FLOATS)
    nans = _share((file.nan_value_counts or {}).get(field_id), count) if is_float else False
    lower = _bound(kind, (file.lower_bounds or {}).get(field_id))
    upper = _bound(kind, (file.upper_bounds or {}).get(field_id))
    if kind == _UUID and lower is not None and upper is not None:
        lower, upper = _uuids(lower, upper)
    answer = judge(_Values(nulls, nans, lower, upper))
    return None if answer and is_partial else answer


def _share(part: int | None, whole: int | None) -> Answer:
    if part == 0:
        return False
    return True if part is not None and part == whole else None


def _bound(kind: Any, bound: bytes | None) -> Any:
    if isinstance(kind, VariantType):
        return None  # its bounds are those of fields inside
    # Java's older writers have NaN as a bound. All comparisons with it are false. What is no value
    # of the type (half a character, the bytes of another type) says nothing.
    try:
        return None if bound is None else value_of_bound(kind, bound)
    except (struct.error, UnicodeDecodeError):
        return None


# -- what a range says about a predicate


def _of(bound: Any, bucket: Any = None) -> _Judge:
    """Return a function that says whether a bound predicate is true for values in a range. If
    ``bucket`` is given, the range is one of buckets, and this is the function from a value to its
    bucket."""
    if isinstance(bound, ex.BoundIsNull | ex.BoundNotNull):
        is_not = isinstance(bound, ex.BoundNotNull)
        return lambda v: None if v.nulls is None else v.nulls is not is_not
    if isinstance(bound, ex.BoundIsNaN | ex.BoundNotNaN):
        is_not = isinstance(bound, ex.BoundNotNaN)
        return lambda v: None if v.nans is None else v.nans is not is_not
    is_set = isinstance(bound, ex.BoundSetPredicate)
    literals = bound.value_set if is_set else {bound.literal.value}
    is_bucket = bucket is not None
    points = sorted(map(bucket, literals) if is_bucket else literals)
    if isinstance(bound, ex.BoundIn | ex.BoundEqualTo):
        return partial(_is_in, points, is_bucket)
    if isinstance(bound, ex.BoundNotIn | ex.BoundNotEqualTo):
        return partial(_is_not_in, points, is_bucket)
    if is_bucket:
        return lambda _: None
    if isinstance(bound, ex.BoundStartsWith):
        return partial(_starts_with, points[0])
    if isinstance(bound, ex.BoundNotStartsWith):
        return partial(_does_not_start_with, points[0])
    return partial(_compares, *_COMPARISONS[type(bound)], points[0])


def _is_in(points: list[Any], is_bucket: bool, values: _Values) -> Answer:
    if values.others is False or not _any_between(points, values):
        return False
    return None if is_bucket or not _is_point(values) else values.others


def _is_not_in(points: list[Any], is_bucket: bool, values: _Values) -> Answer:
    if values.nulls or values.nans:
        return not values.nulls
    if values.no_others or not _any_between(points, values):
        return True if values.nulls is False else None
    return None if is_bucket or values.nans is not False or not _is_point(values) else False


def _any_between(points: list[Any], values: _Values) -> bool:
    first = 0 if values.lower is None else bisect_left(points, values.lower)
    last = len(points) if values.upper is None else bisect_right(points, values.upper)
    return first < last


def _is_point(values: _Values) -> bool:
    return values.lower is not None and values.lower == values.upper


# Whether the lower bound can say that no value matches, and not the upper one; the comparison by
# which it says so; and the comparison by which the other bound says that all values match.
_COMPARISONS: Mapping[type, tuple[bool, Any, Any]] = {
    ex.BoundLessThan: (True, operator.ge, operator.lt),
    ex.BoundLessThanOrEqual: (True, operator.gt, operator.le),
    ex.BoundGreaterThan: (False, operator.le, operator.gt),
    ex.BoundGreaterThanOrEqual: (False, operator.lt, operator.ge),
}


def _compares(is_less: bool, none: Any, all_: Any, literal: Any, values: _Values) -> Answer:
    ends = (values.lower, values.upper) if is_less else (values.upper, values.lower)
    if values.others is False or (ends[0] is not None and none(ends[0], literal)):
        return False
    return values.others if ends[1] is not None and all_(ends[1], literal) else None


def _starts_with(prefix: Any, values: _Values) -> Answer:
    lower, upper = values.lower, values.upper
    if values.others is False or (lower is not None and lower[: len(prefix)] > prefix):
        return False
    if upper is None:
        return None
    if upper < prefix:
        return False
    is_whole = lower is not None and lower.startswith(prefix) and upper.startswith(prefix)
    return values.others if is_whole else None


def _does_not_start_with(prefix: Any, values: _Values) -> Answer:
    answer = False if values.nulls else _starts_with(prefix, values)
    if answer is False:
        return False if values.nulls else None if values.nulls is None else True
    return None if answer is None else False


# -- the values behind partition values


def _ranges(transform: transforms.Transform[Any, Any], source: types.IcebergType) -> _Ranges | None:
    """Return a function from the smallest and the largest partition value to the smallest and the
    largest value that they may stand for (buckets stay what they are); None if nothing is known."""
    if isinstance(transform, transforms.IdentityTransform):
        return _uuids if source == _UUID else _as_is
    if isinstance(transform, transforms.BucketTransform):
        return _as_is
    if isinstance(transform, transforms.TruncateTransform):
        width = transform.width
        if isinstance(source, types.IntegerType | types.LongType):
            return partial(_truncated_integers, width)
        if isinstance(source, types.DecimalType):
            rest = Decimal(width - 1).scaleb(-source.scale, _WIDE)
            return lambda lower, upper: (lower, _WIDE.add(upper, rest))
        return lambda lower, upper: (lower, upper if len(upper) < width else _Prefixed(upper))
    start_of = _STARTS.get(type(transform))
    units = UNITS_A_DAY.get(type(source))
    if start_of is None or units is None:
        return None
    # Hours since 1970 have 32 bits, so the first and the last ones in microseconds do not fit.
    fits = 2**32 - 2**63 * 24 // units - 2 if start_of is _STARTS[_Hour] else 2**31

    # Java before 0.11 rounded times before 1970 up, to the next period. Its dates' days were right.
    rounded = 0 if start_of is _STARTS[transforms.DayTransform] and units == 1 else 1

    def within(lower: int, upper: int) -> tuple[int | None, int | None]:
        if lower <= 0:
            lower -= rounded
        if -fits <= lower and upper <= fits:
            return start_of(lower, units), start_of(upper + 1, units) - 1
        return None, None

    return within


_UUID = types.UUIDType()
_Hour = transforms.HourTransform
# The start of a period that is counted from 1970, in units of the column, of which a day has
# ``units``.
_STARTS: Mapping[type, Callable[[int, int], int]] = {
    transforms.YearTransform: lambda year, units: _day_of_month(12 * year) * units,
    transforms.MonthTransform: lambda month, units: _day_of_month(month) * units,
    transforms.DayTransform: lambda day, units: day * units,
    _Hour: lambda hour, units: hour * (units // 24),
}


def _as_is(lower: Any, upper: Any) -> tuple[Any, Any]:
    return lower, upper


def _uuids(lower: UUID | bytes, upper: UUID | bytes) -> tuple[bytes | None, bytes | None]:
    """Return the range of the bytes of UUIDs. Older versions of Java compare UUIDs as two signed
    numbers, so the ends of several UUIDs may be the ends in that order."""
    first = lower.bytes if isinstance(lower, UUID) else lower
    last = upper.bytes if isinstance(upper, UUID) else upper
    if first == last or first[0] < 0x80 <= last[0]:
        return first, last
    if first[0] >= 0x80 > last[0]:
        return None, None
    return first[:8] + bytes(8), last[:8] + b"\xff" * 8


def _day_of_month(month: int) -> int:
    return int(np.datetime64(month, "M").astype("datetime64[D]").astype(np.int64))


def _truncated_integers(width: int, lower: int, upper: int) -> tuple[int | None, int]:
    """Return the range of truncated integers. The smallest integers of a type become a multiple of
    the width below its range. Writers store what is left of that in 32 or 64 bits, a number near
    the upper end. All other partition values are multiples of the width."""
    for bits in (32, 64):
        end = 1 << (bits - 1)
        if lower == upper and upper % width and upper < end:
            return upper - 2 * end, upper - 2 * end + width - 1
        if lower < upper and lower < end and upper >= end - width:
            return None, upper + width - 1
    return lower, upper + width - 1


class _Prefixed:
    """The end of the range of all texts, or bytes, that begin with a prefix."""

    def __init__(self, prefix: Any) -> None:
        self._prefix = prefix
        self.startswith = prefix.startswith

    def __lt__(self, other: Any) -> bool:
        return bool(self._prefix < other[: len(self._prefix)])

    __le__ = __lt__

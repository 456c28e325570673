"""What partitions, summaries and bounds say about a filter is what a model of the rows says."""

from __future__ import annotations

import itertools
import math
import operator
import random
import struct
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from day import SEED
from pyiceberg import expressions as ex
from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import PartitionFieldSummary
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import parse_transform
from pyiceberg.typedef import Record
from pyiceberg.types import NestedField, StructType

from ags1.iceberg import VariantType
from ags1.iceberg.read.binding import bind_filter
from ags1.iceberg.read.pruning import FileFilter
from ags1.iceberg.write.partitions import Partitioner

_DAY = 86_400_000_000
# 1969 and 1970, leap days, the years 1 and 9999 and their neighbours, in days since 1970.
_DAYS = [-1, 0, 1, 31, 59, 364, 365, -365, -366, 11016, 2932896, 2932897, -719162, -719163]
_TIMES = [day * _DAY + more for day in _DAYS for more in (-1, 0, 1, _DAY // 24, _DAY - 1)]
_FLOATS = [0.0, -0.0, 1.5, -1.5, 0.1, 16777217.0, math.inf, -math.inf, math.nan, 1e-45, 3.4e38]


def integers(bits: int, more: Sequence[int] = ()) -> list[int]:
    """The ends of a type, the values around zero, and others."""
    end = 1 << (bits - 1)
    near = [edge + n for edge in (-end, -(2**31), 0, 2**31, end - 1) for n in range(-12, 13)]
    return [n for n in (*near, *more) if -end <= n < end]


def decimals(precision: int, scale: int) -> list[Decimal]:
    end = 10**precision - 1
    near = [edge + n for edge in (-end, 0, end) for n in range(-12, 13) if abs(edge + n) <= end]
    return [Decimal((n < 0, [int(digit) for digit in str(abs(n))], -scale)) for n in near]


def words(letters: Sequence[Any], empty: Any, longest: int = 3) -> list[Any]:
    return [
        empty.join(word)
        for length in range(longest + 1)
        for word in itertools.product(letters, repeat=length)
    ]


_TEXTS = words(["a", "é", "\U0001f600", "\U0010ffff"], "")
_BYTES = words([b"\0", b"\x7f", b"\x80", b"\xff"], b"")
_UUIDS = [(n % 2**128).to_bytes(16, "big") for e in (0, 63, 64, 127, 128) for n in (2**e - 1, 2**e)]
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "boolean": (pa.bool_(), [False, True]),
    "int": (pa.int32(), integers(32)),
    "long": (pa.int64(), integers(64)),
    "date": (pa.date32(), integers(32, _DAYS)),
    "time": (pa.time64("us"), [0, 1, _DAY // 2, _DAY - 1]),
    "timestamp": (pa.timestamp("us"), integers(64, _TIMES)),
    "timestamptz": (pa.timestamp("us", "UTC"), integers(64, _TIMES)),
    "timestamp_ns": (pa.timestamp("ns"), integers(64, [t * 1000 for t in _TIMES])),
    "timestamptz_ns": (pa.timestamp("ns", "UTC"), integers(64, [t * 1000 + 1 for t in _TIMES])),
    "float": (pa.float32(), [struct.unpack("f", struct.pack("f", x))[0] for x in _FLOATS]),
    "double": (pa.float64(), _FLOATS),
    "decimal(5, 2)": (pa.decimal128(5, 2), decimals(5, 2)),
    "decimal(38, 0)": (pa.decimal128(38, 0), decimals(38, 0)),
    "string": (pa.string(), _TEXTS),
    "binary": (pa.binary(), _BYTES),
    "fixed[2]": (pa.binary(2), [word for word in _BYTES if len(word) == 2]),
    "uuid": (pa.uuid(), _UUIDS),
}
TRANSFORMS = [
    "identity", "void", "bucket[3]", "truncate[1]", "truncate[2]", "truncate[7]", "truncate[1000]",
    "year", "month", "day", "hour",
]  # fmt: skip
CASES = [
    (kind, transform)
    for kind, transform in itertools.product(VALUES, TRANSFORMS)
    if parse_transform(transform).can_transform(NestedField(1, "x", kind).field_type)
]

_COMPARISONS: dict[Any, Callable[[Any, Any], bool]] = {
    ex.EqualTo: operator.eq,
    ex.NotEqualTo: operator.ne,
    ex.LessThan: operator.lt,
    ex.LessThanOrEqual: operator.le,
    ex.GreaterThan: operator.gt,
    ex.GreaterThanOrEqual: operator.ge,
    ex.StartsWith: lambda value, prefix: value.startswith(prefix),
    ex.NotStartsWith: lambda value, prefix: not value.startswith(prefix),
    ex.In: lambda value, literals: value in literals,
    ex.NotIn: lambda value, literals: value not in literals,
}
_Filter = tuple[ex.BooleanExpression, Callable[[Any], bool]]


def array_of(kind: str, values: Sequence[Any]) -> pa.Array:
    arrow, _ = VALUES[kind]
    if kind == "uuid":
        return pa.ExtensionArray.from_storage(arrow, pa.array(values, pa.binary(16)))
    if pa.types.is_temporal(arrow):
        return pa.array(values, pa.int32() if kind == "date" else pa.int64()).view(arrow)
    return pa.array(values, arrow)


def filters(kind: str, chance: random.Random) -> Iterator[_Filter]:
    """Yield filters without end, each with the function that says what it is for a value."""
    literals = [value for value in VALUES[kind][1] if value == value]

    def literal() -> Any:
        value = chance.choice(literals)
        return UUID(bytes=value) if kind == "uuid" else value

    def model(value: Any) -> Any:
        return value.bytes if isinstance(value, UUID) else value

    def predicate() -> _Filter:
        unary = chance.randrange(16)
        if unary == 0:
            return ex.IsNull("x"), lambda value: value is None
        if unary == 1:
            return ex.NotNull("x"), lambda value: value is not None
        if unary == 2 and kind in ("float", "double"):
            return ex.IsNaN("x"), lambda value: value != value
        if unary == 3 and kind in ("float", "double"):
            return ex.NotNaN("x"), lambda value: value == value
        compare = chance.choice(list(_COMPARISONS))
        if compare in (ex.StartsWith, ex.NotStartsWith) and kind != "string":
            compare = ex.LessThan
        if compare in (ex.In, ex.NotIn):
            several = {literal() for _ in range(chance.randint(1, 4))}
            operand: Any = {model(value) for value in several}
            expression = compare("x", several)
        else:
            one = literal()
            operand, expression = model(one), compare("x", one)
        apply = _COMPARISONS[compare]
        return expression, lambda value: value is not None and apply(value, operand)

    while True:
        (first, of_first), (second, of_second) = predicate(), predicate()
        shape = chance.randrange(5)
        if shape < 3:
            yield first, of_first
        elif shape == 3:
            yield ex.And(first, second), lambda v, f=of_first, s=of_second: f(v) and s(v)
        else:
            yield ex.Or(first, second), lambda v, f=of_first, s=of_second: f(v) or s(v)


class Partition:
    """The rows of one partition, and what a manifest says about some of them."""

    def __init__(self, kind: str, key: Any, values: list[Any]) -> None:
        self.type: Any = NestedField(1, "x", kind).field_type
        self.key = key
        self.values = values

    def file(self, rows: list[Any], order: Any, cut: int | None) -> Any:
        """The entry of a file. Bounds are cut to a length, the upper one upwards, if possible."""
        numbers = [value for value in rows if value is not None and value == value]
        lower, upper = (None, None)
        if numbers:
            lower, upper = min(numbers, key=order), max(numbers, key=order)
        if cut == 0 and any(value != value for value in rows):
            # Older writers have such bounds.
            lower = upper = math.nan
        if isinstance(lower, str) and cut is not None:
            lower = lower[:cut]
            if len(upper) > cut:
                last = upper[cut - 1] if cut else "\U0010ffff"
                upper = None if last == "\U0010ffff" else upper[: cut - 1] + chr(ord(last) + 1)
        return SimpleNamespace(
            spec_id=0,
            partition=Record(self.key),
            record_count=len(rows),
            value_counts={1: len(rows)},
            null_value_counts={1: sum(value is None for value in rows)},
            nan_value_counts={1: sum(value != value for value in rows)},
            lower_bounds={} if lower is None else {1: to_bytes(self.type, lower)},
            upper_bounds={} if upper is None else {1: to_bytes(self.type, upper)},
        )


def in_java(value: Any) -> Any:
    """A UUID as older versions of Java order them, as two signed numbers."""
    return struct.unpack(">qq", value)


def summary_of(kind: Any, keys: list[Any], order: Any) -> PartitionFieldSummary:
    numbers = [key.bytes if isinstance(key, UUID) else key for key in keys]
    numbers = [key for key in numbers if key is not None and key == key]
    ends: list[Any] = [None, None]
    if numbers:
        ends = [to_bytes(kind, end(numbers, key=order)) for end in (min, max)]
    has_nan = any(key != key for key in keys)
    return PartitionFieldSummary(any(key is None for key in keys), has_nan, *ends)


def check(kind: str, transform: str, chance: random.Random, count: int) -> None:
    schema = Schema(NestedField(1, "x", kind, required=False))
    spec = PartitionSpec(PartitionField(1, 1000, parse_transform(transform), "p"), spec_id=0)
    values = [*VALUES[kind][1], None]
    if kind.startswith("decimal") and transform.startswith("truncate"):
        # The smallest ones have no partition that a manifest can store.
        source: Any = schema.find_type(1)
        apply = parse_transform(transform).transform(source)
        fits = 10**source.precision
        values = [v for v in values if v is None or apply(v).scaleb(source.scale) > -fits]
    rows = pa.record_batch({"x": array_of(kind, values), "n": range(len(values))})
    partitions = [
        Partition(kind, key, [values[n] for n in part["n"].to_pylist()])
        for (key,), part in Partitioner(spec, schema).split(rows)
    ]
    result = parse_transform(transform).result_type(schema.find_type(1))
    for expression, matches in itertools.islice(filters(kind, chance), count):
        of_files = FileFilter(bind_filter(expression, schema), {0: spec})

        def agree(
            answer: bool | None,
            found: list[Any],
            about: Any,
            expected: tuple[ex.BooleanExpression, Callable[[Any], bool]] = (expression, matches),
        ) -> None:
            wrong = answer is not None and {expected[1](value) for value in found} != {answer}
            assert not wrong, (answer, found, about, expected[0])

        for partition in chance.sample(partitions, min(len(partitions), 8)):
            found = chance.sample(
                partition.values, chance.randint(1, min(4, len(partition.values)))
            )
            order = chance.choice([None, in_java]) if kind == "uuid" else None
            file = partition.file(found, order, chance.choice([None, 0, 1, 2]))
            agree(of_files.of_file(file), found, file)
            # The partition alone is about all of its rows, not those of one file.
            agree(of_files.of_partition(file), partition.values, partition.key)
            some = chance.sample(partitions, chance.randint(1, min(3, len(partitions))))
            if transform != "void":
                order = order if transform == "identity" else None
                summary = summary_of(result, [one.key for one in some], order)
                manifest: Any = SimpleNamespace(partition_spec_id=0, partitions=[summary])
                may_match = None if of_files.may_match_manifest(manifest) else False
                agree(may_match, [v for one in some for v in one.values], summary)


@pytest.mark.parametrize(("kind", "transform"), CASES)
def test_no_file_is_pruned_or_kept_whole_against_its_rows(kind: str, transform: str) -> None:
    check(kind, transform, random.Random(f"{SEED} {kind} {transform}"), 10)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "transform"), CASES)
def test_no_file_of_very_many_is_pruned_against_its_rows(kind: str, transform: str) -> None:
    check(kind, transform, random.Random(), 400)


def entry(**metrics: Any) -> Any:
    """A file with four rows, and metrics of column 1."""
    names = "value_counts null_value_counts nan_value_counts lower_bounds upper_bounds".split()
    known = {name: {1: metrics[name]} if name in metrics else {} for name in names}
    return SimpleNamespace(spec_id=0, partition=Record(), record_count=4, **known)


@pytest.mark.parametrize("bounds", [("lower_bounds",), ("upper_bounds",)])
@pytest.mark.parametrize(
    ("kind", "literal", "bound"), [("string", "b", "é".encode()[:1]), ("int", 1, bytes(8))]
)
def test_a_bound_that_is_no_value_says_nothing(
    kind: str, literal: Any, bound: bytes, bounds: tuple[str, ...]
) -> None:
    schema = Schema(NestedField(1, "x", kind, required=False))
    spec = PartitionSpec(PartitionField(1, 1000, parse_transform("identity"), "p"))
    of_files = FileFilter(
        bind_filter(ex.EqualTo("x", literal), schema), {0: spec, 1: PartitionSpec(spec_id=1)}
    )
    file = entry(null_value_counts=0, **dict.fromkeys(bounds, bound))
    file.spec_id = 1
    assert of_files.of_file(file) is None
    ends = [bound if name in bounds else b"b" * 4 for name in ("lower_bounds", "upper_bounds")]
    manifest: Any = SimpleNamespace(
        partition_spec_id=0, partitions=[PartitionFieldSummary(True, False, *ends)]
    )
    assert of_files.may_match_manifest(manifest)


@pytest.mark.parametrize(
    ("kind", "transform", "is_pruned"),
    [("timestamp", "day", False), ("date", "month", False), ("date", "day", True)],
)
def test_old_versions_of_java_rounded_times_before_1970_up(
    kind: str, transform: str, is_pruned: bool
) -> None:
    schema = Schema(NestedField(1, "x", kind, required=False))
    spec = PartitionSpec(PartitionField(1, 1000, parse_transform(transform), "p"))
    file = entry()
    file.partition, file.spec_id = Record(0), 0
    before = {"timestamp": "1969-12-31T23:00:00", "date": "1969-12-31"}[kind]
    of_files = FileFilter(bind_filter(ex.EqualTo("x", before), schema), {0: spec})
    assert of_files.of_file(file) is (False if is_pruned else None)


def test_rows_without_a_struct_are_in_no_count_of_its_columns() -> None:
    # Java's writer of Parquet counts only the values of a float whose struct is there.
    inner = NestedField(1, "x", "float", required=False)
    schema = Schema(NestedField(2, "s", StructType(inner), required=False))
    bounds = dict.fromkeys(("lower_bounds", "upper_bounds"), to_bytes(inner.field_type, 1.5))
    file = entry(value_counts=3, null_value_counts=0, nan_value_counts=0, **bounds)
    for expression in (ex.IsNull("s.x"), ex.NotNull("s.x"), ex.EqualTo("s.x", 1.5)):
        assert FileFilter(bind_filter(expression, schema), {}).of_file(file) is None
    assert FileFilter(bind_filter(ex.EqualTo("s.x", 2.5), schema), {}).of_file(file) is False


def test_bounds_of_a_variant_are_not_its_own() -> None:
    """They are those of the fields inside that are shredded, as an object."""
    schema = Schema(NestedField(1, "v", VariantType()))
    bound = b"\x01\1\0\5$['a']\x02\1\0\0\2\x0c\1"
    file = entry(value_counts=4, null_value_counts=0, lower_bounds=bound, upper_bounds=bound)
    assert FileFilter(bind_filter(ex.IsNull("v"), schema), {}).of_file(file) is False
    assert FileFilter(bind_filter(ex.NotNull("v"), schema), {}).of_file(file) is True


# -- whole tables

TABLES = [
    ("uuid", "identity", "parquet", "merge-on-read"),
    ("uuid", "identity", "avro", "copy-on-write"),
    ("uuid", "bucket[3]", "parquet", "copy-on-write"),
    ("fixed[2]", "identity", "parquet", "merge-on-read"),
    ("binary", "truncate[1]", "avro", "merge-on-read"),
    ("date", "month", "parquet", "copy-on-write"),
    ("date", "year", "avro", "merge-on-read"),
    ("date", "identity", "parquet", "merge-on-read"),
    ("timestamp", "hour", "parquet", "merge-on-read"),
    ("timestamptz_ns", "day", "avro", "copy-on-write"),
    ("long", "truncate[7]", "parquet", "merge-on-read"),
    ("float", "identity", "parquet", "merge-on-read"),
]


# Of `make test`: tables of most types and transforms. Each of them is above, too.
@pytest.mark.slow_variants(
    r"(uuid|fixed.*|date)-identity-parquet-.*", r"(date-year|timestamp-hour)-.*"
)
@pytest.mark.parametrize(("kind", "transform", "file_format", "mode"), TABLES)
def test_tables_change_as_the_model_does(
    catalog: Any, kind: str, transform: str, file_format: str, mode: str
) -> None:
    chance = random.Random(f"{kind} {transform} {mode}")
    known = VALUES[kind][1]
    ends = [known[0], known[-1]]
    values = [*ends, *chance.sample(known[1:-1], min(6, len(known) - 2)), None]
    table = catalog.create_table(
        "db.t",
        Schema(NestedField(1, "x", kind, required=False), NestedField(2, "n", "long")),
        partition_spec=PartitionSpec(PartitionField(1, 1000, parse_transform(transform), "p")),
        properties={
            "encryption.key-id": "keyA",
            "write.format.default": file_format,
            "write.delete.mode": mode,
            "write.update.mode": mode,
        },
    )
    model: dict[int, Any] = {}

    def rows(first: int, some: list[Any]) -> pa.Table:
        model.update(enumerate(some, first))
        column = array_of(kind, some)
        return pa.table({"x": column, "n": pa.array(range(first, first + len(some)), pa.int64())})

    def found() -> list[int]:
        return sorted(table.scan().to_arrow()["n"].to_pylist())

    table.append(rows(0, values))
    table.append(rows(20, values[:3]))
    some = filters(kind, chance)
    for expression, matches in itertools.islice(some, 4):
        scan = table.scan(expression)
        expected = sorted(n for n, v in model.items() if matches(v))
        assert sorted(scan.to_arrow()["n"].to_pylist()) == expected, expression
        assert scan.count() == len(expected), expression
    deletes = [(expression, matches) for expression, matches in itertools.islice(some, 2)]
    for expression, matches in deletes:
        table.delete(expression)
        model = {n: value for n, value in model.items() if not matches(value)}
        assert found() == sorted(model), expression
    expression, matches = next(some)
    model = {n: value for n, value in model.items() if not matches(value)}
    table.overwrite(rows(40, ends), expression)
    assert found() == sorted(model)
    of_pyiceberg = parse_transform(transform).transform(NestedField(1, "x", kind).field_type)

    def key(value: Any) -> Any:
        # Python's dates end after 9999 years.
        return None if value is None else "late" if late(value) else of_pyiceberg(value)

    def late(value: Any) -> bool:
        return kind == "date" and abs(value) > 700_000

    replaced = [value for value in model.values() if value is None or not late(value)][-2:]
    zeros = [[0.0], [-0.0]] if kind == "float" else []
    for first, again in zip((60, 70, 80), (replaced, *zeros), strict=False):
        keys = [key(value) for value in again]
        model = {n: v for n, v in model.items() if not any(_same(key(v), k) for k in keys)}
        table.dynamic_partition_overwrite(rows(first, again))
        assert found() == sorted(model)
    assert table.scan().count() == len(model)


def _same(value: Any, other: Any) -> bool:
    return bool(value == other or (value != value and other != other))

"""Upserts against a model of rows: which keys are equal, which values differ, what is counted."""

from __future__ import annotations

import datetime as dt
import math
import struct
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyiceberg import types
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import IcebergType, LongType, NestedField

from ags1.iceberg import EncryptedCatalog, EncryptedTable

pytestmark = pytest.mark.filterwarnings("ignore:Delete operation did not match")

ENCRYPTED = {"encryption.key-id": "keyA"}
NAN, INF = math.nan, math.inf


def create(
    catalog: EncryptedCatalog, *kinds: IcebergType, spec: PartitionSpec | None = None, **more: str
) -> EncryptedTable:
    """A table of the columns k, k1, … and v, of which the last type is that of v."""
    names = [*(f"k{i or ''}" for i in range(len(kinds) - 1)), "v"]
    fields = (
        NestedField(i, name, kind, required=False)
        for i, (name, kind) in enumerate(zip(names, kinds, strict=True), 1)
    )
    properties = ENCRYPTED | {name.replace("_", "."): value for name, value in more.items()}
    table = catalog.create_table(
        "db.t", Schema(*fields), partition_spec=spec or PartitionSpec(), properties=properties
    )
    assert isinstance(table, EncryptedTable)
    return table


def array(values: list[Any], kind: pa.DataType) -> pa.Array:
    if isinstance(kind, pa.DictionaryType):
        return pa.array(values, kind.value_type).dictionary_encode()
    raw = [value.bytes if isinstance(value, UUID) else value for value in values]
    return pa.array(raw, kind)


def rows_of(table: EncryptedTable) -> list[tuple[Any, ...]]:
    loaded = table.catalog.load_table(table.name())
    columns = loaded.scan().to_arrow().columns
    columns = [_numbers(column) for column in columns]
    return sorted(zip(*(c.to_pylist() for c in columns), strict=True), key=repr)


def _numbers(column: pa.ChunkedArray) -> pa.ChunkedArray:
    is_ns = pa.types.is_timestamp(column.type) and column.type.unit == "ns"
    return column.cast(pa.int64()) if is_ns else column


class Kind(NamedTuple):
    """A type of keys. The table has ``stored``; the source has ``given``, of Arrow's types. Nothing
    is stored twice, and values that Python finds equal are one key."""

    type: IcebergType
    arrow: pa.DataType
    stored: list[Any]
    given: list[Any]
    sources: list[pa.DataType]


def _text(*values: str) -> list[str]:
    # Two forms of é, which are the same text to a reader, and trailing spaces.
    return ["e\u0301", "a", "a ", "A", "", *values]


EVENING = dt.datetime(2020, 1, 1, 23, 30, 0, 5000)
LATER = EVENING.replace(day=2)
UTC, TOKYO = dt.timezone.utc, dt.timezone(dt.timedelta(hours=9))
# 0.1 rounded to a float.
TENTH = struct.unpack("f", struct.pack("f", 0.1))[0]
FLOATS = [1.5, 0.0, INF, -INF, 5e-324], [1.5, -0.0, INF, 2.0, -1.0]
KINDS = {
    "boolean": Kind(types.BooleanType(), pa.bool_(), [True], [True, False], [pa.bool_()]),
    "int": Kind(types.IntegerType(), pa.int32(), [1, 2, -3], [2, 4, -3], [pa.int32(), pa.int8()]),
    "long": Kind(
        LongType(),
        pa.int64(),
        [1, 2, 2**62],
        [2, 3],
        [pa.int64(), pa.int32(), pa.uint16(), pa.dictionary(pa.int8(), pa.int64())],
    ),
    "float": Kind(
        types.FloatType(),
        pa.float32(),
        [TENTH, *FLOATS[0][:4]],
        [TENTH, *FLOATS[1]],
        [pa.float32()],
    ),
    "double": Kind(
        types.DoubleType(),
        pa.float64(),
        *FLOATS,
        [pa.float64(), pa.float32(), pa.dictionary(pa.int8(), pa.float64())],
    ),
    "negative zero": Kind(
        types.DoubleType(), pa.float64(), [-0.0, 1.0], [0.0, 2.0], [pa.float64(), pa.float32()]
    ),
    "one zero": Kind(types.FloatType(), pa.float32(), [-0.0], [0.0], [pa.float32()]),
    "decimal": Kind(
        types.DecimalType(10, 2),
        pa.decimal128(10, 2),
        [Decimal("1.50"), Decimal("0.00"), Decimal("-2.00")],
        [Decimal("1.5"), Decimal("-2.0"), Decimal("3.0")],
        [pa.decimal128(10, 2), pa.decimal128(4, 1)],
    ),
    "date": Kind(
        types.DateType(),
        pa.date32(),
        [EVENING.date(), dt.date(1, 1, 1)],
        [EVENING.date(), dt.date(9999, 12, 31)],
        [pa.date32()],
    ),
    "time": Kind(
        types.TimeType(),
        pa.time64("us"),
        [EVENING.time(), dt.time(0)],
        [EVENING.time(), dt.time(0, 0, 0, 1)],
        [pa.time64("us")],
    ),
    "timestamp": Kind(
        types.TimestampType(),
        pa.timestamp("us"),
        [EVENING, dt.datetime(1, 1, 1)],
        [EVENING, LATER],
        [pa.timestamp("us"), pa.timestamp("ms")],
    ),
    "timestamptz": Kind(
        types.TimestamptzType(),
        pa.timestamp("us", "UTC"),
        [EVENING.replace(tzinfo=UTC), LATER.replace(tzinfo=UTC)],
        [EVENING.replace(tzinfo=UTC).astimezone(TOKYO), EVENING.replace(tzinfo=TOKYO)],
        [pa.timestamp("us", "UTC"), pa.timestamp("ms", "+00:00")],
    ),
    "timestamp_ns": Kind(
        types.TimestampNanoType(),
        pa.timestamp("ns"),
        [10**18, 10**18 + 1],
        [10**18 + 1, 10**18 + 2],
        [pa.timestamp("ns")],
    ),
    "timestamptz_ns": Kind(
        types.TimestamptzNanoType(),
        pa.timestamp("ns", "UTC"),
        [10**18, 10**18 + 1],
        [10**18 + 1, 10**18 + 2],
        [pa.timestamp("ns", "UTC")],
    ),
    "string": Kind(
        types.StringType(),
        pa.string(),
        _text("b"),
        _text("\u00e9")[1:],
        [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())],
    ),
    "uuid": Kind(
        types.UUIDType(),
        pa.uuid(),
        [UUID(int=1), UUID(int=2**127)],
        [UUID(int=2**127), UUID(int=3)],
        [pa.uuid(), pa.binary(16)],
    ),
    "fixed": Kind(
        types.FixedType(2), pa.binary(2), [b"a\0", b"\xff\xff"], [b"a\0", b"\0a"], [pa.binary(2)]
    ),
    "binary": Kind(
        types.BinaryType(),
        pa.binary(),
        [b"", b"a", b"a\0"],
        [b"", b"a\0", b"\0"],
        [pa.binary(), pa.large_binary(), pa.binary_view()],
    ),
}
ALIKE = {"long", "float", "one zero", "date", "time", "timestamp", "timestamptz_ns", "fixed"}
WAYS = [(f, mode) for f in ("parquet", "avro") for mode in ("merge-on-read", "copy-on-write")]


def kinds() -> list[Any]:
    """Every kind in every way, from its first source; each other source in one way, in turn. Of
    `make test`: each kind in one way, of kinds whose keys are compared alike one."""
    cases = []
    for number, (name, kind) in enumerate(KINDS.items()):
        for place, source in enumerate(kind.sources):
            one = WAYS[(number + place) % 4]
            for way in WAYS if place == 0 else [one]:
                is_quick = place == 0 and way == one and name not in ALIKE
                marks = () if is_quick else (pytest.mark.slow,)
                cases.append(pytest.param(name, source, *way, marks=marks))
    return cases


@pytest.mark.parametrize(("name", "source", "file_format", "mode"), kinds())
def test_keys(
    catalog: EncryptedCatalog, name: str, source: pa.DataType, file_format: str, mode: str
) -> None:
    kind = KINDS[name]
    properties = {"write_format_default": file_format, "write_merge_mode": mode}
    table = create(catalog, kind.type, LongType(), **properties)
    stored = [*kind.stored, None]
    for part in (slice(0, 2), slice(2, None)):
        keys = array(stored[part], kind.arrow)
        table.append(pa.table({"k": keys, "v": pa.array(range(len(keys)), pa.int64())}))
    before = rows_of(table)
    # The model: a row of the source takes the place of that with an equal key.
    new = {key: 100 + i for i, key in enumerate(kind.given)}
    matched = {key for key, _ in before if key in new}
    kept = [row for row in before if row[0] not in matched]

    result = table.upsert(pa.table({"k": array(kind.given, source), "v": [*new.values()]}), ["k"])
    assert (result.rows_updated, result.rows_inserted) == (len(matched), len(new) - len(matched))
    after = rows_of(table)
    assert len(after) == len(kept) + len(new)
    assert {key: v for key, v in after if key in new} == new
    assert sorted((row for row in after if row[0] not in new), key=repr) == kept
    # The same upsert once more has nothing to change.
    result = table.upsert(pa.table({"k": array(kind.given, source), "v": [*new.values()]}), ["k"])
    assert (result.rows_updated, result.rows_inserted) == (0, 0)
    assert rows_of(table) == after


@pytest.mark.parametrize("mode", ["merge-on-read", "copy-on-write"])
def test_zeros_in_partitions(catalog: EncryptedCatalog, mode: str) -> None:
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "k"))
    table = create(catalog, types.DoubleType(), LongType(), spec=spec, write_merge_mode=mode)
    table.append(pa.table({"k": [-0.0, NAN, None, 1.0], "v": [1, 2, 3, 4]}))
    result = table.upsert(pa.table({"k": [0.0, 1.0, 2.0], "v": [10, 4, 20]}), ["k"])
    assert (result.rows_updated, result.rows_inserted) == (1, 1)
    values = {str(key): v for key, v in rows_of(table)}
    assert values == {"0.0": 10, "nan": 2, "None": 3, "1.0": 4, "2.0": 20}


def test_several_columns_are_a_key(catalog: EncryptedCatalog) -> None:
    kinds = types.DoubleType(), types.UUIDType(), types.TimestampNanoType(), LongType()
    table = create(catalog, *kinds)

    def rows(*some: tuple[float, int, int, int]) -> pa.Table:
        zeros, uuids, times, values = zip(*some, strict=True)
        return pa.table(
            {
                "k": list(zeros),
                "k1": array([UUID(int=i) for i in uuids], pa.uuid()),
                "k2": pa.array(times, pa.timestamp("ns")),
                "v": list(values),
            }
        )

    table.append(rows((0.0, 1, 1, 1), (-0.0, 1, 2, 2), (0.0, 2, 1, 3)))
    some = rows((-0.0, 1, 1, 10), (0.0, 1, 2, 2), (0.0, 2, 2, 20))
    result = table.upsert(some, ["k", "k1", "k2"])
    assert (result.rows_updated, result.rows_inserted) == (1, 1)
    assert sorted((u.int, at, v) for _, u, at, v in rows_of(table)) == [
        *((1, 1, 10), (1, 2, 2), (2, 1, 3), (2, 2, 20))
    ]


def test_keys_that_are_refused(catalog: EncryptedCatalog) -> None:
    table = create(catalog, types.DoubleType(), LongType())
    for keys in ([0.0, -0.0], [1.0, 1.0], pa.array([2.0, 2.0]).dictionary_encode()):
        with pytest.raises(ValueError, match="Duplicate rows found in source"):
            table.upsert(pa.table({"k": keys, "v": [1, 2]}), ["k"])
    no_value = pa.DictionaryArray.from_arrays(pa.array([0, 1]), pa.array([1.0, None]))
    for keys in ([NAN], pa.array([None], pa.float64()), no_value):
        with pytest.raises(ValueError, match="'k' is null or NaN"):
            table.upsert(pa.table({"k": keys, "v": [1] * len(keys)}), ["k"])
    point = pa.array([{"x": 1.0}])
    nested = catalog.create_table("db.nested", pa.schema([("k", point.type)]), properties=ENCRYPTED)
    with pytest.raises(NotImplementedError, match="Keys of type struct"):
        nested.upsert(pa.table({"k": point}), ["k"])
    with pytest.raises(KeyError, match="does not exist"):
        table.upsert(pa.table({"K": [1.0]}), ["k"], case_sensitive=False)
    for twice in ("k", "v"):
        columns = [pa.array([1.0]), pa.array([1]), pa.array([2])]
        with pytest.raises(ValueError, match="two columns of the data have the same name"):
            table.upsert(pa.Table.from_arrays(columns, ["k", "v", twice]), ["k"])
    assert table.current_snapshot() is nested.current_snapshot() is None


@pytest.mark.parametrize("parts", [1, 2])
def test_keys_that_are_twice_in_the_table(catalog: EncryptedCatalog, parts: int) -> None:
    """PyIceberg does not find them in two files, and then loses a row."""
    table = create(catalog, types.DoubleType(), LongType())
    given = pa.table({"k": [0.0, -0.0], "v": [5, 6]})
    for part in [given] if parts == 1 else [given.slice(0, 1), given.slice(1)]:
        table.append(part)
    with pytest.raises(ValueError, match="Target table has duplicate rows"):
        table.upsert(pa.table({"k": [0.0], "v": [6]}), ["k"])
    some = pa.table({"k": [0.0, 1.0], "v": [7, 8]})
    assert table.upsert(some, ["k"], when_matched_update_all=False).rows_inserted == 1
    assert [v for _, v in rows_of(table)] == [6, 5, 8]


# Avro's names cannot have these letters.
ODD = ["$id", "@type", "a-b", "a.b", "1st", "\U0001f600 é"]
ODD_ARROW = pa.struct([(name, pa.float64()) for name in ODD])


def odd(value: float) -> dict[str, float]:
    return dict.fromkeys(ODD, value)


# By Arrow's type: two values, and whether the second one is another than the first one.
VALUES: list[tuple[pa.DataType, list[tuple[Any, Any, bool]]]] = [
    (pa.float64(), [(NAN, NAN, False), (0.0, -0.0, True), (1.0, None, True), (None, None, False)]),
    (pa.timestamp("ns"), [(1, 1, False), (1, 2, True)]),
    (
        pa.list_(pa.float64()),
        [
            ([NAN], [NAN], False),
            ([None], [], True),
            ([], None, True),
            ([1.0, None], [1.0, None], False),
        ],
    ),
    (
        pa.map_(pa.string(), pa.int64()),
        [([("a", 1)], [("a", 1)], False), ([("a", 1)], [("a", None)], True)],
    ),
    (
        ODD_ARROW,
        [(odd(NAN), odd(NAN), False), (odd(1), None, True), (odd(1), odd(1) | {"a-b": 2}, True)],
    ),
    (
        pa.list_(ODD_ARROW),
        [([odd(1), None], [odd(1), None], False), ([odd(1)], [odd(2)], True)],
    ),
    (
        pa.map_(pa.string(), ODD_ARROW),
        [([("k", odd(1))], [("k", odd(1))], False), ([("k", odd(1))], [("k", odd(2))], True)],
    ),
    (
        pa.struct([("x", pa.float64())]),
        [({"x": NAN}, {"x": NAN}, False), ({"x": None}, None, True)],
    ),
]


@pytest.mark.parametrize("file_format", ["parquet", "avro"])
def test_values_that_differ(catalog: EncryptedCatalog, file_format: str) -> None:
    """A row for each case, which has nulls in the columns of the other types."""
    cases = [(kind, *case) for kind, some in VALUES for case in some]

    def rows(which: int) -> pa.Table:
        values = {
            str(kind): pa.array([case[which] if case[0] is kind else None for case in cases], kind)
            for kind, _ in VALUES
        }
        return pa.table({"k": range(len(cases)), **values})

    old, new = rows(1), rows(2)
    properties = ENCRYPTED | {"write.format.default": file_format}
    table = catalog.create_table("db.t", old.schema, properties=properties)
    assert isinstance(table, EncryptedTable)
    table.append(old)
    differ = pa.array([case[3] for case in cases])
    for some, updated in ((pc.invert(differ), 0), (differ, pc.sum(differ).as_py())):
        result = table.upsert(new.filter(some), ["k"])
        assert (result.rows_updated, result.rows_inserted) == (updated, 0)
    expected = zip(*(_numbers(column).to_pylist() for column in new.columns), strict=True)
    assert repr(rows_of(table)) == repr(sorted(expected, key=repr))


def test_no_values_beside_the_key(catalog: EncryptedCatalog) -> None:
    table = create(catalog, LongType(), LongType())
    table.append(pa.table({"k": [1], "v": [1]}))
    result = table.upsert(pa.table({"k": [1, 2], "v": [1, 1]}), ["k", "v"])
    assert (result.rows_updated, result.rows_inserted) == (0, 1)
    assert table.upsert(pa.table({"k": [1], "v": [1]}).slice(1), ["k"]).rows_inserted == 0


def test_a_column_that_the_rows_lack(catalog: EncryptedCatalog) -> None:
    table = create(catalog, LongType(), LongType())
    table.append(pa.table({"k": [1], "v": [1]}))
    with pytest.raises(ValueError, match="no column 'v'"):
        table.upsert(pa.table({"k": [1, 2]}), ["k"])
    assert table.upsert(pa.table({"k": [2]}), ["k"]).rows_inserted == 1
    insert_only = table.upsert(pa.table({"k": [1, 3]}), ["k"], when_matched_update_all=False)
    assert insert_only.rows_inserted == 1
    assert rows_of(table) == [(1, 1), (2, None), (3, None)]


def test_the_key_becomes_wider_meanwhile(catalog: EncryptedCatalog) -> None:
    table = create(catalog, types.FloatType(), LongType())
    table.append(pa.table({"k": pa.array([0.1], pa.float32()), "v": [1]}))
    with table.transaction() as transaction:
        some = pa.table({"k": pa.array([0.1, 0.2], pa.float32()), "v": [2, 3]})
        transaction.upsert(some, ["k"])
        with catalog.load_table("db.t").update_schema() as update:
            update.update_column("k", types.DoubleType())
    assert [v for _, v in rows_of(table)] == [2, 3]

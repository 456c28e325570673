"""Filters find the rows that SQL finds (SQLite is asked), wherever a value is kept: in a column, in
the partition only, as a default, in another type or under another name than the table's."""

from __future__ import annotations

import datetime
import decimal
import functools
import itertools
import operator
import sqlite3
import struct
import sys
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from iceberg_tables import memory_kms
from pyiceberg.expressions import (
    And,
    EqualTo,
    GreaterThan,
    In,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    NotEqualTo,
    NotIn,
    NotNull,
    NotStartsWith,
    Or,
    StartsWith,
)
from table_maker import TableMaker

from ags1.iceberg import open_table

pytestmark = pytest.mark.filterwarnings("ignore::ags1.kms.memory.KeysInPropertiesWarning")

Rows = list[dict[str, Any]]

COLUMNS = [
    {"id": 1, "name": "id", "type": "long"},
    {"id": 2, "name": "p", "type": "int"},
    {"id": 3, "name": "s", "type": "string"},
    {"id": 4, "name": "d", "type": "double"},
]
AVRO_TYPES = {"id": "long", "p": "int", "s": "string", "d": "double"}
ROWS: Rows = [
    {"id": number, "p": p, "s": s, "d": d}
    for number, (p, s, d) in enumerate(
        (p, s, d) for p in (1, 2, None) for s in ("a", "ab", "b", None) for d in (0.5, -1.0, None)
    )
]
FILTERS: list[tuple[str, Any]] = [
    ("p != 1", "p != 1"),
    ("NOT p = 1", "not p = 1"),
    ("p != 1 OR s = 'q'", "p != 1 or s = 'q'"),
    ("p < 2 OR s = 'a'", "p < 2 or s = 'a'"),
    ("p <= 1 OR p >= 2", "p <= 1 or p >= 2"),
    ("p > 1 OR d > 0", "p > 1 or d > 0"),
    ("NOT p > 1", "not p > 1"),
    ("p NOT IN (1, 5)", "p not in (1, 5)"),
    ("p NOT IN (7, 8)", NotIn("p", {7, 8})),
    ("s NOT IN ('a', 'z')", "s not in ('a', 'z')"),
    ("s != 'a'", NotEqualTo("s", "a")),
    ("s NOT GLOB 'a*'", NotStartsWith("s", "a")),
    ("NOT (s IN ('a', 'b') AND p = 1)", "not (s in ('a', 'b') and p = 1)"),
    ("NOT (s IS NULL OR p != 2)", "not (s is null or p != 2)"),
    ("p IS NULL AND s != 'b'", "p is null and s != 'b'"),
    ("p IS NOT NULL", "p is not null"),
    ("d NOT IN (0.5, 3.0)", NotIn("d", {0.5, 3.0})),
    ("p = 2 AND s GLOB 'a*'", "p = 2 and s like 'a%'"),
    ("0", "false"),
]


def in_sql(found: Rows, where: str) -> list[int]:
    with sqlite3.connect(":memory:") as db:
        db.execute("CREATE TABLE t (id, p, s, d)")
        db.executemany("INSERT INTO t VALUES (:id, :p, :s, :d)", found)
        return [row[0] for row in db.execute(f"SELECT id FROM t WHERE {where} ORDER BY id")]


def ids(table: Any, row_filter: Any) -> list[int]:
    """The ids of the rows found, in every way in which rows are found."""
    found = sorted(table.scan(row_filter).to_arrow()["id"].to_pylist())
    assert table.scan(row_filter).count() == len(found)
    assert table.scan(row_filter, selected_fields=("id",)).to_arrow().num_rows == len(found)
    return found


def avro_schema(names: Iterable[str] = AVRO_TYPES) -> dict[str, Any]:
    field_ids = {column["name"]: column["id"] for column in COLUMNS}
    return {
        "type": "record",
        "name": "r",
        "fields": [
            {"name": name, "type": ["null", AVRO_TYPES[name]], "field-id": field_ids[name]}
            for name in names
        ],
    }


def _parquet(maker: TableMaker) -> None:
    maker.commit(maker.add_parquet(ROWS, row_group_size=5))


def _avro(maker: TableMaker) -> None:
    maker.commit(maker.add_avro(ROWS, avro_schema()))


def _by_partition(maker: TableMaker, add: Callable[[Rows, Any], Any]) -> None:
    for p in (1, 2, None):
        maker.commit(add([row for row in ROWS if row["p"] == p], {"p": p}))


def _partitioned(maker: TableMaker) -> None:
    _by_partition(maker, lambda found, p: maker.add_parquet(found, partition=p))


def _partition_only(maker: TableMaker) -> None:
    schema = maker.schema.select("id", "s", "d")
    _by_partition(maker, lambda found, p: maker.add_parquet(found, schema=schema, partition=p))


def _avro_partition_only(maker: TableMaker) -> None:
    schema = avro_schema(["id", "s", "d"])
    _by_partition(maker, lambda found, p: maker.add_avro(found, schema, partition=p))


def _deletes(maker: TableMaker) -> None:
    # Two rows that are deleted by position, one by its value.
    more = [{"id": number, "p": 1, "s": "a", "d": 0.5} for number in (97, 98, 99)]
    file = maker.add_parquet([more[0], *ROWS, *more[1:]], row_group_size=7)
    maker.commit(file)
    maker.commit(maker.add_position_deletes([(file["file_path"], n) for n in (0, 1 + len(ROWS))]))
    maker.commit(maker.add_equality_deletes([{"id": 99}], [1]))


_IDENTITY = [{"source-id": 2, "field-id": 1000, "name": "p", "transform": "identity"}]
_BUCKETS = [{"source-id": 2, "field-id": 1000, "name": "p", "transform": "bucket[1]"}]


def _buckets(maker: TableMaker) -> None:
    found = [row for row in ROWS if row["p"] is None]
    maker.commit(maker.add_parquet(found, partition={"p": None}))
    found = [row for row in ROWS if row["p"] is not None]
    maker.commit(maker.add_parquet(found, partition={"p": 0}))


KINDS: dict[str, tuple[Callable[[TableMaker], None], Any]] = {
    "parquet": (_parquet, ()),
    "avro": (_avro, ()),
    "partitioned": (_partitioned, _IDENTITY),
    "partition_only": (_partition_only, _IDENTITY),
    "avro_partition_only": (_avro_partition_only, _IDENTITY),
    "buckets": (_buckets, _BUCKETS),
    "deletes": (_deletes, ()),
}


@pytest.fixture(scope="module", params=list(KINDS))
def table(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    build, partition_fields = KINDS[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    maker = TableMaker(folder / "t", COLUMNS, memory_kms(), partition_fields=partition_fields)
    build(maker)
    return open_table(maker.write(), memory_kms())


# Of `make test`: each filter over Parquet, some over deletes, one over each other table.
@pytest.mark.slow_variants(
    r"(?!parquet-|deletes-).*-(?!NOT \(s IN).*", r"deletes-(?!NOT \(s IN|p <=|d NOT).*"
)
@pytest.mark.parametrize(("where", "row_filter"), FILTERS, ids=[f[0] for f in FILTERS])
def test_nulls_are_what_sql_says(table: Any, where: str, row_filter: Any) -> None:
    assert ids(table, row_filter) == in_sql(ROWS, where)


def test_not_nan_is_true_of_null_as_in_spark(tmp_path: Path) -> None:
    maker = TableMaker(tmp_path / "t", COLUMNS, memory_kms())
    maker.commit(maker.add_parquet([{"id": 1, "d": float("nan")}, {"id": 2}, {"id": 3, "d": 0.0}]))
    table = open_table(maker.write(), memory_kms())
    assert ids(table, "d is not nan") == [2, 3]
    assert ids(table, "d is nan") == [1]


# -- columns that are not in the file as they are in the table


@pytest.mark.parametrize("kind", ["parquet", "avro"])
def test_literals_are_not_rounded_to_the_type_that_a_file_has(tmp_path: Path, kind: str) -> None:
    columns = [COLUMNS[0], {"id": 2, "name": "f", "type": "float"}]
    maker = TableMaker(tmp_path / "t", columns, memory_kms())
    [as_float] = struct.unpack("f", struct.pack("f", 0.1))
    if kind == "avro":
        fields = [
            {"name": "id", "type": "long", "field-id": 1},
            {"name": "f", "type": "float", "field-id": 2},
        ]
        schema = {"type": "record", "name": "r", "fields": fields}
        maker.commit(maker.add_avro([{"id": 1, "f": as_float}], schema))
    else:
        maker.commit(maker.add_parquet([{"id": 1, "f": as_float}]))
    maker.set_schema([COLUMNS[0], {"id": 2, "name": "f", "type": "double"}])
    maker.commit(maker.add_parquet([{"id": 2, "f": 0.1}]))
    table = open_table(maker.write(), memory_kms())
    assert as_float > 0.1
    assert ids(table, "f > 0.1") == [1]
    assert ids(table, "f = 0.1") == [2]
    assert ids(table, EqualTo("f", as_float)) == [1]


@pytest.mark.parametrize("partition_fields", [(), _IDENTITY], ids=["unpartitioned", "identity"])
def test_literals_of_a_float_column_are_floats(tmp_path: Path, partition_fields: Any) -> None:
    columns = [COLUMNS[0], {"id": 2, "name": "f", "type": "float"}]
    maker = TableMaker(tmp_path / "t", columns, memory_kms(), partition_fields=partition_fields)
    [value] = struct.unpack("f", struct.pack("f", 0.1))
    partition = {"p": value} if partition_fields else None
    maker.commit(maker.add_parquet([{"id": 1, "f": value}], partition=partition))
    table = open_table(maker.write(), memory_kms())
    for row_filter in ("f = 0.1", "f >= 0.1", "f <= 0.1", In("f", {0.1, 7.0})):
        assert ids(table, row_filter) == [1], row_filter
    for row_filter in ("f > 0.1", "f < 0.1", "f != 0.1", NotIn("f", {0.1, 7.0})):
        assert ids(table, row_filter) == [], row_filter


def test_only_text_and_bytes_have_prefixes(tmp_path: Path) -> None:
    columns = [COLUMNS[0], {"id": 2, "name": "x", "type": "fixed[2]"}]
    table = open_table(TableMaker(tmp_path / "t", columns, memory_kms()).write(), memory_kms())
    for wrong in (StartsWith("x", b"ab"), NotStartsWith("x", b"ab"), StartsWith("id", "1")):
        with pytest.raises(
            TypeError, match=r"only a string or binary has a prefix, and '(x|id)' is"
        ):
            table.scan(wrong).to_arrow()


_UTC = datetime.timezone.utc
DEFAULTS: list[tuple[str, Any, Any, Any, Any]] = [
    # Type, default in the metadata, the same value, a smaller one, a larger one: as literals.
    ("date", "1969-01-01", "1969-01-01", "1968-12-31", "1970-01-01"),
    ("time", "01:02:03.000004", "01:02:03.000004", "01:02:03", "02:00:00"),
    (
        "timestamp",
        "1969-12-31T23:59:59.999999",
        "1969-12-31T23:59:59.999999",
        "1969-12-31T23:59:59.999998",
        "1970-01-01T00:00:00",
    ),
    (
        "timestamptz",
        "1969-12-31T23:59:59.999999+00:00",
        "1969-12-31T23:59:59.999999+00:00",
        "1969-12-31T00:00:00+00:00",
        "1970-01-01T00:00:00+00:00",
    ),
    (
        "decimal(9, 2)",
        "-14.20",
        decimal.Decimal("-14.20"),
        decimal.Decimal("-15.00"),
        decimal.Decimal("0.00"),
    ),
    ("string", "m", "m", "l", "n"),
    ("long", -5, -5, -6, 0),
    ("double", 1.5, 1.5, 0.0, 2.0),
]


# Of `make test`: a date and a timestamp with a zone; a long.
@pytest.mark.slow_variants(r"(time|timestamp|double|decimal.*|string)")
@pytest.mark.parametrize(
    ("kind", "default", "same", "less", "more"), DEFAULTS, ids=[d[0] for d in DEFAULTS]
)
def test_filters_on_defaults(
    tmp_path: Path, kind: str, default: Any, same: Any, less: Any, more: Any
) -> None:
    maker = TableMaker(tmp_path / "t", COLUMNS[:1], memory_kms())
    maker.commit(maker.add_parquet([{"id": 1}]))
    maker.commit(maker.add_avro([{"id": 2}], avro_schema(["id"])))
    column = {"id": 5, "name": "new", "type": kind, "initial-default": default}
    maker.set_schema([COLUMNS[0], column])
    maker.commit(maker.add_parquet([{"id": 3, "new": None}]))
    table = open_table(maker.write(), memory_kms())
    assert ids(table, EqualTo("new", same)) == [1, 2]
    assert ids(table, In("new", {same, less})) == [1, 2]
    assert ids(table, GreaterThan("new", less)) == [1, 2]
    assert ids(table, GreaterThan("new", more)) == []
    assert ids(table, NotEqualTo("new", less)) == [1, 2]
    assert ids(table, Or(EqualTo("new", less), EqualTo("id", 3))) == [3]
    assert ids(table, "new is null") == [3]


def test_filters_on_dates_that_only_the_partition_knows(tmp_path: Path) -> None:
    columns = [COLUMNS[0], {"id": 2, "name": "dt", "type": "date"}]
    fields = [{"source-id": 2, "field-id": 1000, "name": "dt", "transform": "identity"}]
    maker = TableMaker(tmp_path / "t", columns, memory_kms(), partition_fields=fields)
    schema = maker.schema.select("id")
    days = (datetime.date(1969, 12, 31), datetime.date(1970, 1, 1), None)
    for number, day in enumerate(days):
        maker.commit(maker.add_parquet([{"id": number}], schema=schema, partition={"dt": day}))
    table = open_table(maker.write(), memory_kms())
    assert ids(table, "dt = '1969-12-31' or id = 2") == [0, 2]
    assert ids(table, "dt < '1970-01-01' or id = 2") == [0, 2]
    assert ids(table, "dt != '1970-01-01'") == [0]


U1, U2 = uuid.UUID(int=5), uuid.UUID(int=6)


@pytest.mark.parametrize("kind", ["parquet", "avro"])
def test_filters_on_uuids(tmp_path: Path, kind: str) -> None:
    columns = [COLUMNS[0], {"id": 2, "name": "u", "type": "uuid"}]
    maker = TableMaker(tmp_path / "t", columns, memory_kms())
    found = [{"id": 1, "u": U1.bytes}, {"id": 2, "u": U2.bytes}, {"id": 3, "u": None}]
    if kind == "avro":
        fixed = {"type": "fixed", "name": "uuid_fixed", "size": 16, "logicalType": "uuid"}
        fields = [
            {"name": "id", "type": "long", "field-id": 1},
            {"name": "u", "type": ["null", fixed], "field-id": 2},
        ]
        file = maker.add_avro(found, {"type": "record", "name": "r", "fields": fields})
    else:
        file = maker.add_parquet(found)
    maker.commit(file)
    table = open_table(maker.write(), memory_kms())
    assert ids(table, EqualTo("u", U1)) == [1]
    assert ids(table, In("u", {U1, U2})) == [1, 2]
    assert ids(table, NotEqualTo("u", U1)) == [2]
    assert ids(table, NotIn("u", {U1, uuid.UUID(int=9)})) == [2]
    assert ids(table, LessThan("u", U2)) == [1]
    assert ids(table, LessThanOrEqual("u", U2)) == [1, 2]
    assert ids(table, GreaterThan("u", U1.bytes)) == [2]
    assert ids(table, f"u >= '{U1}' and u < '{uuid.UUID(int=2**127)}'") == [1, 2]
    # And once more, after a row is deleted.
    maker.commit(maker.add_equality_deletes([{"id": 9}], [1]))
    table = open_table(maker.write(), memory_kms())
    assert ids(table, NotEqualTo("u", U1)) == [2]
    assert ids(table, f"u >= '{U1}' and u < '{U2}'") == [1]


def test_filters_inside_structs_and_on_names_with_dots(tmp_path: Path) -> None:
    inner = [
        {"id": 4, "name": "c.d", "required": False, "type": "int"},
        {"id": 5, "name": "e", "required": True, "type": "int"},
    ]
    columns = [
        COLUMNS[0],
        {"id": 2, "name": "a.b", "type": "int"},
        {"id": 3, "name": "a", "type": {"type": "struct", "fields": inner}},
    ]
    rows: Rows = [
        {"id": 1, "a.b": 1, "a": {"c.d": 7, "e": 1}},
        {"id": 2, "a.b": 2, "a": {"c.d": None, "e": 2}},
        {"id": 3, "a.b": None, "a": None},
    ]
    avro_inner = [
        {"name": "c_x2Ed", "type": ["null", "int"], "field-id": 4},
        {"name": "e", "type": "int", "field-id": 5},
    ]
    fields = [
        {"name": "id", "type": "long", "field-id": 1},
        {"name": "a_x2Eb", "type": ["null", "int"], "field-id": 2},
        {
            "name": "a",
            "type": ["null", {"type": "record", "name": "a", "fields": avro_inner}],
            "field-id": 3,
        },
    ]
    maker = TableMaker(tmp_path / "t", columns, memory_kms())
    maker.commit(maker.add_parquet(rows))
    in_avro = [
        {
            "id": row["id"] + 10,
            "a_x2Eb": row["a.b"],
            "a": row["a"] and {"c_x2Ed": row["a"]["c.d"], "e": row["a"]["e"]},
        }
        for row in rows
    ]
    maker.commit(maker.add_avro(in_avro, {"type": "record", "name": "r", "fields": fields}))
    table = open_table(maker.write(), memory_kms())
    assert ids(table, EqualTo("a.b", 2)) == [2, 12]
    assert ids(table, EqualTo("a.c.d", 7)) == [1, 11]
    assert ids(table, NotIn("a.c.d", {1, 2})) == [1, 11]
    assert ids(table, NotIn("a.e", {1, 9})) == [2, 12]
    assert ids(table, And(NotEqualTo("a.e", 9), NotEqualTo("a.b", 1))) == [2, 12]


@pytest.mark.parametrize("kind", ["parquet", "avro", "evolved", "deletes", "absent"])
def test_structs_lists_and_maps_are_null_or_not(tmp_path: Path, kind: str) -> None:
    def columns(inner: str) -> list[dict[str, Any]]:
        fields = [
            {"id": 3, "name": "x", "required": True, "type": inner},
            {"id": 4, "name": "y", "required": False, "type": "string"},
        ]
        items = {"type": "list", "element-id": 6, "element": "int", "element-required": False}
        pairs = {
            "type": "map",
            "key-id": 8,
            "key": "string",
            "value-id": 9,
            "value": "int",
            "value-required": False,
        }
        return [
            COLUMNS[0],
            {"id": 2, "name": "st", "type": {"type": "struct", "fields": fields}},
            {"id": 5, "name": "items", "type": items},
            {"id": 7, "name": "pairs", "type": pairs},
        ]

    rows: Rows = [
        {"id": 1, "st": None, "items": None, "pairs": None},
        {"id": 2, "st": {"x": 1, "y": None}, "items": [], "pairs": {}},
        {"id": 3, "st": {"x": 2, "y": "y"}, "items": [None], "pairs": [("k", None)]},
    ]
    maker = TableMaker(tmp_path / "t", columns("int"), memory_kms())
    if kind == "avro":
        inner = [
            {"name": "x", "type": "int", "field-id": 3},
            {"name": "y", "type": ["null", "string"], "field-id": 4},
        ]
        items = {"type": "array", "items": ["null", "int"], "element-id": 6}
        pairs = {"type": "map", "values": ["null", "int"], "key-id": 8, "value-id": 9}
        kinds = {2: {"type": "record", "name": "st", "fields": inner}, 5: items, 7: pairs}
        names = {2: "st", 5: "items", 7: "pairs"}
        schema = avro_schema(["id"])
        schema["fields"] += [
            {"name": names[i], "type": ["null", kinds[i]], "field-id": i} for i in kinds
        ]
        found = [{**row, "pairs": row["pairs"] and dict(row["pairs"])} for row in rows]
        maker.commit(maker.add_avro(found, schema))
    elif kind == "absent":
        only_id = maker.add_parquet([{"id": 1}], schema=maker.schema.select("id"))
        maker.commit(only_id, maker.add_parquet(rows[1:]))
    else:
        file = maker.add_parquet([*rows, {"id": 4, "st": None, "items": None, "pairs": None}])
        maker.commit(file)
        if kind == "deletes":
            maker.commit(maker.add_position_deletes([(file["file_path"], 3)]))
        else:
            maker.commit(maker.add_equality_deletes([{"id": 4}], [1]))
        if kind == "evolved":
            maker.set_schema(columns("long"))
    table = open_table(maker.write(), memory_kms())
    for name in ("st", "items", "pairs"):
        assert table.scan(f"{name} is null").to_arrow()["id"].to_pylist() == [1]
        assert table.scan(f"{name} is null").count() == 1
        assert table.scan(f"{name} is not null").count() == 2
        some = table.scan(f"{name} is not null and id != 2", selected_fields=("id",))
        assert some.to_arrow()["id"].to_pylist() == [3]


@pytest.mark.slow
@pytest.mark.parametrize("precision", [9, 38])
def test_numbers_of_more_digits_than_a_decimal_column(catalog: Any, precision: int) -> None:
    places = precision - 2
    # The last one has more digits than a context of Python's ``decimal``.
    largest = "9" * places + ".99"
    numbers = [decimal.Decimal(n) for n in ("-9999999.99", "-1.00", "0.00", largest)]
    column = pa.array([*numbers, None], pa.decimal128(precision, 2))
    rows = pa.table({"id": range(5), "x": column})
    table = catalog.create_table(
        "db.t", rows.schema, properties={"encryption.key-id": "keyA", "format-version": "3"}
    )
    table.append(rows)
    for digits in (places - 1, places, places + 1, 40):
        for sign in (-1, 1):
            number = f"{sign * 10**digits}"
            # An integer of PyIceberg's grammar has 64 bits.
            for text in (*[number] * (digits < 19), f"{number}.5", f"'{number}.00'"):
                given = decimal.Decimal(text.strip("'"))
                for sign_of, holds in OPERATORS.items():
                    expected = [i for i, x in enumerate(numbers) if holds(x, given)]
                    assert ids(table, f"x {sign_of} {text}") == expected, (sign_of, text)
    assert ids(table, f"x = '{numbers[-1]:f}'") == [3]
    some = f"x in (0.0, 1{'0' * places}.0)"
    assert ids(table, some) == [2]
    assert ids(table, f"not {some}") == [0, 1, 3]


OPERATORS = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "=": operator.eq,
    "!=": operator.ne,
}


# -- texts of filters, and their size


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Any:
    maker = TableMaker(tmp_path_factory.mktemp("texts") / "t", COLUMNS, memory_kms())
    words = ["a", "ab", "abc", "a_", "a%", "a%b", "a\\", "", None]
    rows = [{"id": number, "s": word} for number, word in enumerate(words)]
    maker.commit(maker.add_parquet(rows))
    return open_table(maker.write(), memory_kms())


@pytest.mark.parametrize("pattern", ["a", "ab%", "a%", "%", "", r"a\_", r"a\%", r"a\%%", r"a\_%"])
def test_like_is_that_of_sql(texts: Any, pattern: str) -> None:
    rows = texts.scan().to_arrow().to_pylist()
    for is_not in ("", "not "):
        expected = in_sql(rows, f"s {is_not}like '{pattern}' escape '\\'")
        assert ids(texts, f"s {is_not}like '{pattern}'") == expected


OTHER_PATTERNS = {
    "a_": r"write '\\_'",
    "_": r"write '\\_'",
    "a_%": r"write '\\_'",
    r"a\__": r"write '\\_'",
    "a%b": "at the end of a string",
    "%%": "at the end of a string",
    r"a\\": "compare with = or !=",
    r"a\b": "compare with = or !=",
    r"a\\%": "compare with = or !=",
}


def test_no_other_like_is_taken_for_another_pattern(catalog: Any) -> None:
    rows = pa.table({"id": [0, 1], "s": ["a_", "ab"]})
    table = catalog.create_table("db.t", rows.schema, properties={"encryption.key-id": "keyA"})
    table.append(rows)
    uses: list[Callable[[str], object]] = [
        table.scan,
        table.scan().filter,
        table.delete,
        functools.partial(table.overwrite, rows),
        table.incremental_append_scan().filter,
        lambda text: table.incremental_append_scan(row_filter=text),
        lambda text: table.inspect.partitions(row_filter=text),
        lambda text: table.rewrite_data_files(row_filter=text),
        lambda text: table.rekey(row_filter=text),
    ]
    for (pattern, way), is_not in itertools.product(OTHER_PATTERNS.items(), ("", "not ")):
        text = f"id >= 0 and s {is_not}like '{pattern}'"
        for use in uses:
            with pytest.raises(ValueError, match=way):
                use(text)
    assert table.scan().count() == 2


@pytest.mark.slow
def test_a_filter_of_very_many_parts(texts: Any) -> None:
    many = [EqualTo("id", number) for number in range(3, 3000)]
    found = texts.scan(functools.reduce(Or, many)).to_arrow()
    assert sorted(found["id"].to_pylist()) == [3, 4, 5, 6, 7, 8]
    # Of more than Python's limit of calls within calls.
    in_a_row: Any = functools.reduce(Or, many[: sys.getrecursionlimit() + 100])
    assert ids(texts, Not(in_a_row)) == [0, 1, 2]
    assert ids(texts, in_a_row) == [3, 4, 5, 6, 7, 8]
    text = " or ".join(f"id = {number}" for number in range(3, 700))
    assert ids(texts, text) == [3, 4, 5, 6, 7, 8]
    mixed: Any = EqualTo("id", 1)
    for number in range(1500):
        mixed = And(Or(mixed, EqualTo("id", number)), NotEqualTo("id", -1))
    with pytest.raises(ValueError, match="the filter is nested too deeply"):
        texts.scan(mixed)


# -- names


def test_a_name_is_that_of_one_column_with_a_value(catalog: Any) -> None:
    columns = {"id": pa.array([0, 1]), "ID": pa.array([1, 0]), "l": pa.array([[1], None])}
    rows = pa.table(
        {**columns, "m": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64()))}
    )
    table = catalog.create_table("db.t", rows.schema, properties={"encryption.key-id": "keyA"})
    table.append(rows)
    assert ids(table, "ID = 0") == [1]
    for use in (table.scan, table.delete):
        with pytest.raises(ValueError, match="'Id' is ambiguous, because there are 'id' and 'ID'"):
            use(EqualTo("Id", 0), case_sensitive=False).to_arrow()
        for name in ("l.element", "m.key", "m.value"):
            with pytest.raises(ValueError, match=f"'{name}' is inside a list or map"):
                use(IsNull(name)).to_arrow()
    with pytest.raises(TypeError, match="already bound"):
        table.scan(EqualTo("id", 0).bind(table.schema())).to_arrow()
    assert table.scan().count() == 2


@pytest.mark.parametrize("kind", ["int", "long"])
def test_numbers_between_and_beyond_integers(tmp_path: Path, kind: str) -> None:
    end = 2 ** (31 if kind == "int" else 63)
    columns = [COLUMNS[0], {"id": 2, "name": "p", "type": kind}]
    maker = TableMaker(tmp_path / "t", columns, memory_kms())
    numbers = [-end, -1, 0, 1, end - 1]
    rows = [{"id": i, "p": p} for i, p in enumerate([*numbers, None])]
    maker.commit(maker.add_parquet(rows))
    table = open_table(maker.write(), memory_kms())
    texts = ("0.5", "-0.5", "1.0", f"{end}.0", f"{end}.5", f"-{end}.5", f"-{end * end}.5")
    for number, (text, (sign, holds)) in enumerate(itertools.product(texts, OPERATORS.items())):
        expected = [i for i, p in enumerate(numbers) if holds(p, decimal.Decimal(text))]
        scan = table.scan(f"p {sign} {text}", selected_fields=("id",))
        assert scan.to_arrow()["id"].to_pylist() == expected, (sign, text)
        if number % 5 == 0:  # so that each sign and each text is counted, too
            assert scan.count() == len(expected), (sign, text)


# -- fields of structs, and columns of another version


@pytest.mark.slow_variants("parquet-copy-on-write|avro-merge-on-read")
@pytest.mark.parametrize("mode", ["merge-on-read", "copy-on-write"])
@pytest.mark.parametrize("kind", ["parquet", "avro"])
def test_a_required_field_is_null_where_its_struct_is(catalog: Any, kind: str, mode: str) -> None:
    inner = pa.struct([pa.field("x", pa.int64(), nullable=False)])
    outer = pa.struct([pa.field("in", inner, nullable=False)])
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("a", outer)])
    given = [{"id": 0, "a": None}, {"id": 1, "a": {"in": {"x": 1}}}, {"id": 2, "a": None}]
    rows = pa.Table.from_pylist(given, schema=schema)
    properties = {"write.format.default": kind, "write.delete.mode": mode}
    table = catalog.create_table(
        "db.t", schema, properties={"encryption.key-id": "keyA", **properties}
    )
    table.append(rows)
    for name in ("a", "a.in", "a.in.x"):
        assert ids(table, IsNull(name)) == [0, 2]
        assert table.scan(NotNull(name)).count() == 1
    # A required column is null in no row.
    assert ids(table, IsNull("id")) == []
    assert ids(table, NotNull("id")) == [0, 1, 2]
    table.overwrite(rows.slice(0, 1), IsNull("a.in.x"))
    assert ids(table, "true") == [0, 1]
    table.delete(NotNull("a.in.x"))
    assert ids(table, "true") == [0]
    table.upsert(rows, ["id"])
    with table.update_spec() as spec:
        spec.add_identity("a.in.x")
    table.dynamic_partition_overwrite(rows.slice(2))
    assert ids(table, "true") == [1, 2]
    assert table.inspect.partitions(row_filter=NotNull("a.in.x"))["record_count"].to_pylist() == [2]


def test_a_snapshot_and_a_tag_have_their_own_columns_and_a_branch_the_tables(catalog: Any) -> None:
    rows = pa.table({"id": [1, 2], "a": [10, 20], "b": [1, 2], "gone": [5, 6]})
    table = catalog.create_table("db.t", rows.schema, properties={"encryption.key-id": "keyA"})
    table.append(rows)
    first = table.current_snapshot().snapshot_id
    table.manage_snapshots().create_tag(first, "tag").create_branch(first, "branch").commit()
    with table.update_schema() as update:
        update.rename_column("a", "c").rename_column("b", "a").delete_column("gone")
    with table.update_schema() as update:
        update.rename_column("c", "b")
    for of_then in (table.scan(snapshot_id=first), table.scan().use_ref("tag")):
        assert of_then.to_arrow() == rows
        assert of_then.filter("a = 10").to_arrow() == of_then.filter("gone = 5").to_arrow()
        assert of_then.filter("a = 10").count() == of_then.filter("a > 5 and b < 2").count() == 1
        assert of_then.filter("a = 1").plan_files() == []
    now = rows.rename_columns(["id", "b", "a", "gone"]).drop(["gone"])
    for of_now in (table.scan(), table.scan().use_ref("main"), table.scan().use_ref("branch")):
        assert of_now.to_arrow() == now
        assert of_now.filter("b = 10").select("id").to_arrow()["id"].to_pylist() == [1]
        assert of_now.filter("a = 10").count() == 0
        with pytest.raises(ValueError, match="gone"):
            of_now.filter("gone = 5").count()
    partitions = table.inspect.partitions
    assert len(partitions(snapshot_id=first, row_filter="gone = 5")) == 1
    assert len(partitions(row_filter="b = 10")) == 1

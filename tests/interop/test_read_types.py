"""Every type that Spark and Java write, in Parquet and Avro, read as Spark reads it."""

from __future__ import annotations

from datetime import time
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from pyiceberg.expressions import EqualTo, GreaterThan, In, IsNull

from ags1.iceberg import EncryptedTable
from ags1.kms import KmsClient

from .java_tables import JavaTables
from .reading import check_filters, check_same, opened
from .spark import SparkTables

pytestmark = pytest.mark.interop

FORMATS = ["parquet", "avro"]
UUIDS = [UUID("f79c3e09-677c-4bbd-a479-3f349cb785e7"), UUID(int=0), UUID(int=2**128 - 1)]

# Name, type, then the values of one row after another; every column has a null in the third.
COLUMNS = {
    "b": ("BOOLEAN", "true", "false", "true"),
    "i8": ("TINYINT", "127Y", "-128Y", "0Y"),
    "i16": ("SMALLINT", "32767S", "-32768S", "0S"),
    "i": ("INT", "2147483647", "-2147483648", "0"),
    "l": ("BIGINT", "9223372036854775807L", "-9223372036854775808L", "0L"),
    "f": ("FLOAT", "FLOAT('NaN')", "FLOAT('-0.0')", "FLOAT('-Infinity')"),
    "d": ("DOUBLE", "DOUBLE('NaN')", "DOUBLE('-0.0')", "DOUBLE('4.9E-324')"),
    "d9": ("DECIMAL(9, 2)", "9999999.99", "-9999999.99", "-0.01"),
    "d18": ("DECIMAL(18, 4)", "99999999999999.9999", "-99999999999999.9999", "0"),
    "d38": (
        "DECIMAL(38, 10)",
        "9999999999999999999999999999.9999999999",
        "-9999999999999999999999999999.9999999999",
        "-0.0000000001",
    ),
    "d38_0": (
        "DECIMAL(38, 0)",
        "99999999999999999999999999999999999999",
        "-99999999999999999999999999999999999999",
        "128",
    ),
    "dt": ("DATE", "DATE'1969-12-31'", "DATE'9999-12-31'", "DATE'0001-01-01'"),
    "ts": (
        "TIMESTAMP",
        "TIMESTAMP'1969-12-31 23:59:59.999999'",
        "TIMESTAMP'9999-12-31 23:59:59.999999'",
        "TIMESTAMP'2024-02-29 12:34:56.000001+05:30'",
    ),
    "tn": (
        "TIMESTAMP_NTZ",
        "TIMESTAMP_NTZ'0001-01-01 00:00:00'",
        "TIMESTAMP_NTZ'1969-12-31 23:59:59.999999'",
        "TIMESTAMP_NTZ'2024-02-29 12:34:56.000001'",
    ),
    "s": ("STRING", "''", "'😀 \\u0000 ü'", "repeat('x', 70000)"),
    "c": ("CHAR(3)", "'a'", "'abc'", "''"),
    "vc": ("VARCHAR(5)", "''", "'abcde'", "'ü'"),
    "bi": ("BINARY", "X''", "X'00FF80'", "X'00'"),
    "st": (
        "STRUCT<a: INT, n: STRUCT<x: STRING, y: ARRAY<INT>>>",
        "named_struct('a', 1, 'n', named_struct('x', '', 'y', array(1, null)))",
        "named_struct('a', null, 'n', null)",
        "named_struct('a', 0, 'n', named_struct('x', null, 'y', array()))",
    ),
    "ar": ("ARRAY<STRING>", "array('', null, 'ü')", "array()", "array(null)"),
    "arar": (
        "ARRAY<ARRAY<DOUBLE>>",
        "array(array(DOUBLE('NaN'), null, DOUBLE('-0.0')), null, array())",
        "array()",
        "array(null)",
    ),
    "m": ("MAP<STRING, BIGINT>", "map('', 1L, 'k', null)", "map()", "map('a', -1L)"),
    "mar": (
        "MAP<DATE, ARRAY<DECIMAL(20, 5)>>",
        "map(DATE'1960-01-01', array(1.5, null), DATE'1970-01-01', null)",
        "map()",
        "map(DATE'2000-01-01', array())",
    ),
    "stm": (
        "STRUCT<m: MAP<STRING, INT>, t: TIMESTAMP>",
        "named_struct('m', map('a', 1), 't', TIMESTAMP'1960-01-01 00:00:00.5')",
        "named_struct('m', null, 't', null)",
        "named_struct('m', map(), 't', TIMESTAMP'1970-01-01 00:00:00')",
    ),
}
# Apart, because PyIceberg's projection takes what is null among them for empty.
STRUCTS_INSIDE = {
    "arst": (
        "ARRAY<STRUCT<p: INT, q: STRING>>",
        "array(named_struct('p', 1, 'q', ''), null)",
        "array()",
        "array(named_struct('p', null, 'q', null))",
    ),
    "mst": (
        "MAP<INT, STRUCT<u: DATE, v: ARRAY<STRUCT<w: DECIMAL(9, 2)>>>>",
        "map(1, named_struct('u', DATE'0001-01-01', 'v', array(named_struct('w', -0.01))))",
        "map(2, null)",
        "map()",
    ),
}


@pytest.fixture(scope="module", params=FORMATS)
def name(
    spark: SparkTables, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> str:
    """A table with a column of each type, and four rows: the third is null but for its id."""
    columns = COLUMNS | STRUCTS_INSIDE
    made = f"enc.db.types_{request.param}"
    spark.create(
        made,
        "id BIGINT NOT NULL, " + ", ".join(f"{n} {c[0]}" for n, c in columns.items()),
        tmp_path_factory.mktemp("types"),
        **{"write.format.default": request.param},
    )
    null = ["CAST(NULL AS STRING)" if n in ("c", "vc") else "NULL" for n in columns]
    values = [
        ["1L", *(c[1] for c in columns.values())],
        ["2L", *(c[2] for c in columns.values())],
        ["3L", *null],
        ["4L", *(c[3] for c in columns.values())],
    ]
    spark.sql(f"INSERT INTO {made} VALUES " + ", ".join(f"({', '.join(row)})" for row in values))
    return made


@pytest.fixture
def table(spark: SparkTables, name: str, kms: KmsClient) -> EncryptedTable:
    return opened(spark, name, kms)


@pytest.mark.parametrize("columns", [COLUMNS, STRUCTS_INSIDE], ids=["types", "structs_inside"])
def test_every_type_is_read_as_spark_reads_it(
    spark: SparkTables, name: str, table: EncryptedTable, columns: dict[str, tuple[str, ...]]
) -> None:
    names = ("id", *columns)
    scan = table.scan(selected_fields=names)
    assert check_same(spark, f"SELECT {', '.join(names)} FROM {name}", scan) == 4


@pytest.mark.parametrize("file_format", FORMATS)
def test_types_that_only_java_writes(
    spark: SparkTables, kms: KmsClient, tmp_path: Path, file_format: str
) -> None:
    java, name = JavaTables(spark), f"enc.db.java_types_{file_format}"
    kinds = {"id": "long", "u": "uuid", "f": "fixed[5]", "t": "time", "s": "string"}
    java.create(name, kinds, tmp_path)
    rows = [
        {"id": 1, "u": UUIDS[0], "f": b"\x00\x01\x02\x03\x80", "t": time(22, 31, 8, 1), "s": "a"},
        {"id": 2, "u": UUIDS[1], "f": bytes(5), "t": time(0, 0), "s": "b"},
        {"id": 3, "u": UUIDS[2], "f": b"\xff" * 5, "t": time(23, 59, 59, 999999), "s": "c"},
        {"id": 4, "u": None, "f": None, "t": None, "s": None},
    ]
    java.append(name, [_json(row) for row in rows], file_format)
    table = opened(spark, name, kms)
    ours = table.scan().to_arrow().sort_by("id")
    assert ours.to_pylist() == rows
    assert ours.schema.types == [
        *(pa.int64(), pa.uuid(), pa.binary(5), pa.time64("us")),
        ours.schema.field("s").type,
    ]
    for row_filter, expected in [
        (EqualTo("u", UUIDS[0]), [1]),
        (In("u", {UUIDS[0], UUIDS[2]}), [1, 3]),
        ("u is null", [4]),
        (EqualTo("f", bytes(5)), [2]),
        (GreaterThan("t", time(22, 0)), [1, 3]),
    ]:
        got = table.scan(row_filter).to_arrow()
        assert (row_filter, sorted(got["id"].to_pylist())) == (row_filter, expected)

    java.delete(name, [_json({"u": UUIDS[0]}), _json({"u": None})], file_format)
    java.delete(name, [_json({"f": b"\xff" * 5, "s": "c"})], file_format)
    left = opened(spark, name, kms).scan(selected_fields=("id",)).to_arrow()
    assert left["id"].to_pylist() == [2]
    java.delete(name, [_json({"t": time(0, 0)})], file_format)
    assert opened(spark, name, kms).scan().to_arrow().num_rows == 0


@pytest.mark.parametrize("file_format", FORMATS)
def test_names_that_files_cannot_have(
    spark: SparkTables, kms: KmsClient, tmp_path: Path, file_format: str
) -> None:
    """Java writes other names into the files; fields are found by their ids."""
    name = f"enc.db.names_{file_format}"
    spark.create(
        name,
        "id BIGINT, `a.b` INT, `1x y` STRING, `ü€` INT, a STRUCT<e: INT, `c.d`: INT>, `p q` INT",
        tmp_path,
        **{"write.format.default": file_format},
    )
    spark.sql(f"ALTER TABLE {name} ADD PARTITION FIELD `p q`")
    values = "(1, 2, 'x', 3, named_struct('e', 5, 'c.d', 7), 9), (2, null, null, null, null, null)"
    spark.sql(f"INSERT INTO {name} VALUES {values}")
    table = opened(spark, name, kms)
    assert check_same(spark, name, table.scan()) == 2
    filters: list[tuple[str, Any]] = [
        ("`a.b` = 2", EqualTo("a.b", 2)),
        ("`a.b` IS NULL", IsNull("a.b")),
        ("`1x y` = 'x'", EqualTo("1x y", "x")),
        ("`ü€` > 2", GreaterThan("ü€", 2)),
        ("a.`c.d` = 7", EqualTo("a.c.d", 7)),
        ("a.e = 5", EqualTo("a.e", 5)),
        ("`p q` = 9", EqualTo("p q", 9)),
    ]
    check_filters(spark, name, table, filters)


def _json(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row as in the specification's JSON single-value serialization."""
    return {
        name: value.hex()
        if isinstance(value, bytes)
        else value.isoformat()
        if isinstance(value, time)
        else str(value)
        if isinstance(value, UUID)
        else value
        for name, value in row.items()
    }

"""Partitions and filters: Spark's rows are found, and no more files are opened than Java opens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.expressions import (
    And,
    EqualTo,
    In,
    IsNull,
    Not,
    NotIn,
    NotStartsWith,
    Or,
    StartsWith,
)
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType, StructType

from ags1.iceberg import EncryptedTable
from ags1.kms import KmsClient

from .reading import check_equal, check_filters, check_same, opened
from .spark import SparkTables
from .writing import Shared

pytestmark = pytest.mark.interop

NAME = "enc.db.filtered"
COLUMNS = (
    "id BIGINT, s STRING, i INT, n DECIMAL(9, 2), d DOUBLE, dt DATE, ts TIMESTAMP, "
    "tn TIMESTAMP_NTZ, st STRUCT<a: INT, b: STRING>"
)
ROWS = """
    (1, 'apple', 1, -10.01, 1.5, DATE'1969-12-31', TIMESTAMP'1969-12-31 23:59:59.999999',
     TIMESTAMP_NTZ'1969-12-31 23:00:00', named_struct('a', 1, 'b', 'x')),
    (2, 'apricot', -1, 10.01, DOUBLE('NaN'), DATE'1970-01-01', TIMESTAMP'1970-01-01 00:00:00',
     TIMESTAMP_NTZ'2024-02-29 01:00:00', named_struct('a', null, 'b', '')),
    (3, '', 2147483647, 0.00, DOUBLE('-0.0'), DATE'2024-02-29', TIMESTAMP'2024-02-29 00:30:00',
     TIMESTAMP_NTZ'2024-02-29 00:59:59.999999', null),
    (4, null, null, null, null, null, null, null, named_struct('a', null, 'b', null)),
    (5, 'a/b=c d%é', 7, 99.99, 0.0, DATE'2024-03-01', TIMESTAMP'2024-02-29 01:30:00',
     TIMESTAMP_NTZ'2024-03-01 00:00:00', named_struct('a', 5, 'b', 'y'))
"""
# What the rows are partitioned by, one after another, and the format of their files.
SPECS = [
    ("s", "parquet"),
    ("truncate(3, s)", "avro"),
    ("bucket(3, s)", "parquet"),
    ("bucket(3, id)", "avro"),
    ("truncate(10, i)", "parquet"),
    ("dt", "avro"),
    ("years(ts)", "parquet"),
    ("months(dt)", "avro"),
    ("days(ts)", "parquet"),
    ("hours(tn)", "avro"),
    ("bucket(3, ts)", "avro"),
    ("bucket(3, dt)", "avro"),
    ("bucket(3, n)", "avro"),
    ("truncate(5, n)", "avro"),
    ("i", "avro"),
]
FILTERS: list[tuple[str, Any]] = [
    ("s = 'apple'", "s = 'apple'"),
    ("s = ''", "s = ''"),
    ("s = 'a/b=c d%é'", EqualTo("s", "a/b=c d%é")),
    ("s IS NULL", "s is null"),
    ("s IS NOT NULL", "s is not null"),
    ("s IN ('apple', 'nobody', '')", In("s", {"apple", "nobody", ""})),
    ("s LIKE 'ap%'", StartsWith("s", "ap")),
    ("s LIKE 'apri%'", StartsWith("s", "apri")),
    ("s NOT LIKE 'ap%'", And(NotStartsWith("s", "ap"), Not(IsNull("s")))),
    ("s > 'apple'", "s > 'apple'"),
    ("s NOT IN ('apple', '')", And(NotIn("s", {"apple", ""}), Not(IsNull("s")))),
    ("id = 203", "id = 203"),
    ("id IN (1, 404, 9999)", "id in (1, 404, 9999)"),
    ("id BETWEEN 300 AND 302", "id >= 300 and id <= 302"),
    ("i = -1", "i = -1"),
    ("i < 0 OR i >= 7", "i < 0 or i >= 7"),
    (
        "NOT (i = 1 OR s = 'apricot')",
        "i != 1 and s != 'apricot' and i is not null and s is not null",
    ),
    ("n = -10.01", "n = -10.01"),
    ("n BETWEEN 0 AND 99.99", "n >= 0 and n <= 99.99"),
    ("isnan(d)", "d is nan"),
    ("d = 0 AND NOT isnan(d)", "d = 0.0"),
    # To Spark NaN is more than any number; here, as in Arrow, it is not.
    ("d >= 0 AND NOT isnan(d)", "d >= 0.0"),
    ("d < 1.5", "d < 1.5"),
    ("d != 1.5", "d != 1.5"),
    ("d NOT IN (1.5, 7) AND NOT isnan(d)", "d not in (1.5, 7.0) and d is not nan"),
    ("NOT isnan(d) AND i = -1", "d is not nan and i = -1"),
    ("dt < DATE'1970-01-01'", "dt < '1970-01-01'"),
    ("dt = DATE'2024-02-29'", "dt = '2024-02-29'"),
    ("ts < TIMESTAMP'1970-01-01'", "ts < '1970-01-01T00:00:00+00:00'"),
    ("ts = TIMESTAMP'1969-12-31 23:59:59.999999'", "ts = '1969-12-31T23:59:59.999999+00:00'"),
    ("ts >= TIMESTAMP'2024-02-29 01:00:00'", "ts >= '2024-02-29T01:00:00+00:00'"),
    ("tn = TIMESTAMP_NTZ'2024-02-29 00:59:59.999999'", "tn = '2024-02-29T00:59:59.999999'"),
    ("tn < TIMESTAMP_NTZ'1970-01-01'", "tn < '1970-01-01T00:00:00'"),
    ("st.a = 5", "st.a = 5"),
    ("st.b IS NULL", "st.b is null"),
    ("st.a IS NULL AND i > 0", "st.a is null and i > 0"),
    ("false", "false"),
]


# Java knows of negations that a file with one value in the column has no row for them.
WIDER = [f for f, _ in FILTERS if "!=" in f or ("NOT " in f and "NULL" not in f)]


@pytest.fixture(scope="module", autouse=True)
def _made(spark: SparkTables, tmp_path_factory: pytest.TempPathFactory) -> None:
    spark.create(NAME, COLUMNS, tmp_path_factory.mktemp("filtered"))
    names = "id, s, i, n, d, dt, ts, tn, st"
    spark.session.sql(f"SELECT * FROM VALUES {ROWS} AS t({names})").createOrReplaceTempView("five")
    before, rest = "", names.partition(", ")[2]
    for number, (spec, file_format) in enumerate(SPECS):
        replacing = f"REPLACE PARTITION FIELD {before} WITH" if before else "ADD PARTITION FIELD"
        spark.sql(f"ALTER TABLE {NAME} {replacing} {spec}")
        before = spec
        spark.sql(f"ALTER TABLE {NAME} SET TBLPROPERTIES ('write.format.default'='{file_format}')")
        spark.sql(f"INSERT INTO {NAME} SELECT id + {100 * number}, {rest} FROM five")


@pytest.fixture
def table(spark: SparkTables, kms: KmsClient) -> EncryptedTable:
    return opened(spark, NAME, kms)


def test_all_rows(spark: SparkTables, table: EncryptedTable) -> None:
    assert check_same(spark, NAME, table.scan()) == 5 * len(SPECS)
    assert {task.file.spec_id for task in table.scan().plan_files()} == set(
        range(1, len(SPECS) + 1)
    )


def test_filters_find_the_rows_that_spark_finds(spark: SparkTables, table: EncryptedTable) -> None:
    check_filters(spark, NAME, table, FILTERS)


def test_filters_plan_the_files_that_java_plans(spark: SparkTables, table: EncryptedTable) -> None:
    jvm = spark.jvm.org.apache
    session = spark.session._jsparkSession
    java_table = jvm.iceberg.spark.Spark3Util.loadIcebergTable(session, NAME)
    convert = jvm.spark.sql.execution.datasources.SparkExpressionConverter
    everything = len(table.scan().plan_files())
    planned = {}
    for theirs, ours in FILTERS:
        found = {task.file.file_path for task in table.scan(ours).plan_files()}
        planned[theirs] = len(found)
        if "isnan" in theirs or theirs in WIDER:
            continue
        tasks = java_table.newScan().filter(
            convert.convertToIcebergExpression(
                convert.collectResolvedSparkExpression(session, NAME, theirs)
            )
        )
        files = tasks.planFiles()
        expected = {task.file().location() for task in _each(files)}
        files.close()
        # Spark adds IS NOT NULL to a filter, which leaves out the partition of a bucketed null.
        more = [path for path in found - expected if "=null/" not in path]
        assert not more, (theirs, more)
    assert all(count < everything for count in planned.values()), planned


def _each(iterable: Any) -> Iterator[Any]:
    iterator = iterable.iterator()
    while iterator.hasNext():
        yield iterator.next()


def test_negations_leave_out_nulls(spark: SparkTables, table: EncryptedTable) -> None:
    """As SQL's do, whether a partition or a column says that a value is null."""
    negations: list[tuple[str, Any]] = [
        ("s != 'apple'", "s != 'apple'"),
        ("i != 1", "i != 1"),
        ("st.a != 5", "st.a != 5"),
        ("st.b NOT IN ('x', 'z') OR st.a = 1", "st.b not in ('x', 'z') or st.a = 1"),
        ("dt != DATE'2024-02-29'", "dt != '2024-02-29'"),
        ("NOT (i = 1)", "not i = 1"),
        ("i != 1 OR s = 'nobody'", "i != 1 or s = 'nobody'"),
        ("s NOT IN ('apple', '')", NotIn("s", {"apple", ""})),
        ("i NOT IN (1, -1)", "i not in (1, -1)"),
        ("s NOT LIKE 'ap%'", NotStartsWith("s", "ap")),
        ("NOT (s IN ('apple', '') AND i = 1)", "not (s in ('apple', '') and i = 1)"),
    ]
    check_filters(spark, NAME, table, negations)


@pytest.mark.parametrize("limit", [0, 1, 7, 1000])
def test_limit(table: EncryptedTable, limit: int) -> None:
    every = {row["id"]: row for row in table.scan().to_arrow().to_pylist()}
    for row_filter in ("true", "s = 'apple'"):
        expected = len(table.scan(row_filter).to_arrow())
        got = table.scan(row_filter, limit=limit).to_arrow()
        assert len(got) == min(limit, expected)
        assert all(repr(row) == repr(every[row["id"]]) for row in got.to_pylist())
        read = table.scan(row_filter, limit=limit).to_arrow_batch_reader().read_all()
        assert len(read) == len(got)


def test_selected_columns(spark: SparkTables, table: EncryptedTable) -> None:
    for names, where in [
        (("s",), ""),
        (("ts", "id"), "i > 0"),
        (("st.a",), ""),
        (("st.b", "n"), "st.a = 5"),
        (("id",), "s = 'apple' AND dt = DATE'1969-12-31'"),
    ]:
        ours = table.scan(
            where.replace("DATE", "") or "true", selected_fields=names, case_sensitive=True
        ).to_arrow()
        inner = [n.partition(".") for n in names]
        columns = [
            f"IF(st IS NULL, NULL, named_struct('{field}', st.{field})) AS st" if dot else name
            for name, dot, field in inner
        ]
        theirs = spark.session.sql(
            f"SELECT {', '.join(columns)} FROM {NAME} WHERE {where or 'true'}"
        ).toArrow()
        check_equal(ours.select(theirs.schema.names), theirs)
        assert len(ours.schema) == len(theirs.schema)


def test_columns_in_any_case(table: EncryptedTable) -> None:
    scan = table.scan("S = 'apple'", selected_fields=("ID",), case_sensitive=False)
    assert scan.to_arrow().schema.names == ["id"]
    assert len(scan.to_arrow()) == len(SPECS)


def test_every_way_of_reading_agrees(table: EncryptedTable) -> None:
    def scan() -> Any:
        return table.scan("i > -5", selected_fields=("id", "s", "i", "n", "dt", "ts", "tn"))

    expected = scan().to_arrow()
    assert len(expected) == 4 * len(SPECS)
    check_equal(scan().to_arrow_batch_reader().read_all(), expected)
    check_equal(pa.Table.from_batches(scan().to_arrow_batch_reader()), expected)
    check_equal(scan().to_duckdb("t").sql("SELECT * FROM t").to_arrow_table(), expected)
    check_equal(scan().to_polars().to_arrow(), expected)
    assert scan().to_pandas()["id"].tolist() == expected["id"].to_pylist()
    assert scan().to_pandas()["s"].tolist() == expected["s"].to_pylist()
    assert scan().count() == len(expected)
    both = table.scan(Or(EqualTo("s", "apple"), EqualTo("s", "")))
    assert both.count() == 2 * len(SPECS)


NESTED = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(
        2,
        "a",
        StructType(
            NestedField(3, "x", LongType(), required=True),
            NestedField(
                4, "b", StructType(NestedField(5, "y", StringType(), required=True)), required=False
            ),
        ),
        required=False,
    ),
)
NESTED_ROWS = [
    {"id": 1, "a": None},
    {"id": 2, "a": {"x": 1, "b": None}},
    {"id": 3, "a": {"x": 2, "b": {"y": "z"}}},
]


@pytest.mark.parametrize("mode", ["merge-on-read", "copy-on-write"])
@pytest.mark.parametrize("column", ["a.x", "a.b", "a.b.y"])
def test_nulls_of_required_fields_in_optional_structs(
    spark: SparkTables, kms: KmsClient, tmp_path: Path, mode: str, column: str
) -> None:
    shared = Shared("sql", spark, kms, tmp_path)
    properties = {"encryption.key-id": "keyA", "write.delete.mode": mode}
    for condition in (f"{column} IS NULL", f"{column} IS NOT NULL"):
        ours, theirs = (
            shared.catalog.create_table(shared.new_name(), NESTED, properties=properties)
            for _ in range(2)
        )
        for table in (ours, theirs):
            for rows in (NESTED_ROWS, NESTED_ROWS[:1]):  # the second file has only nulls
                arrow = schema_to_pyarrow(NESTED, include_field_ids=False)
                table.append(pa.Table.from_pylist(rows, schema=arrow))
        name = shared.shown(theirs)
        matched = sorted(row.id for row in spark.sql(f"SELECT id FROM {name} WHERE {condition}"))
        assert sorted(ours.scan(condition).to_arrow()["id"].to_pylist()) == matched
        assert ours.scan(condition).count() == len(matched)
        spark.sql(f"DELETE FROM {name} WHERE {condition}")
        ours.delete(condition)
        left = sorted(ours.scan().to_arrow()["id"].to_pylist())
        assert [row.id for row in spark.sql(f"SELECT id FROM {name} ORDER BY id")] == left
        assert sorted(left + matched) == [1, 1, 2, 3]
        assert left
    shared.close()

"""Filters of the data source "ags1-iceberg" in the grammar of Spark SQL."""

from __future__ import annotations

from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.expressions.parser import parse as pyiceberg_s

pytest.importorskip("pyspark")

from ags1.spark.iceberg_source.filters import parse_filter
from ags1.spark.iceberg_source.reader import parse_option_filter

pytestmark = pytest.mark.spark


@pytest.mark.parametrize(
    "text",
    [
        "id < 5",
        "5 >= id",
        "id = 1 and (region = 'it''s' or not id in (1, 2))",
        "region like 'a%' and region not like 'b%'",
        "region LIKE 'plain'",
        "id is null or id IS NOT NULL and score is not nan",
        "id between 1 and 3",
        "at >= '2026-01-31T00:00:00+00:00'",
        '"a b" = 1 and nested.field != -2',
        "true",
        "id not in (7)",
        "score > 1.5 or score < -.5",
    ],
)
def test_what_pyiceberg_parses_is_the_same_here(text: str) -> None:
    assert parse_filter(text) == pyiceberg_s(text)


ROWS = {
    "id": [1, 2, 3, None, 5],
    "Name": ["ab", "a_c", "it's", None, 'say "x"'],
    "day": [date(2026, 1, n) for n in (1, 2, 3, 4)] + [None],
    "at": [datetime(2026, 1, n, 12, tzinfo=timezone.utc) for n in (1, 2, 3, 4)] + [None],
    "score": [1.0, 1.5, 2.25, None, -3.0],
    "real": [1.0, float("nan"), 1.1, None, float("-inf")],
    "wide": [1.0, float("nan"), 1.1, None, float("inf")],
    "long": [2**53, 2**53 + 1, 7, None, -(2**53) - 1],
    "price": [Decimal("1.00"), Decimal("1.50"), None, Decimal("2.25"), Decimal("-3.00")],
    "ok": [True, False, None, True, False],
    "two words": ["x", "y", None, "x", "y"],
    "raw": [b"\x1f", b"", None, b"\x00", b"ab"],
}
TYPES = {
    "real": pa.float32(),
    "price": pa.decimal128(9, 2),
    "day": pa.date32(),
    "at": pa.timestamp("us", "UTC"),
}

# A filter, and the numbers of the rows (from 0) for which Spark says that it is true.
MEANT = [
    ("id < 3 AND day >= DATE '2026-01-02'", [1]),
    ("day = '2026-01-02' OR DATE '2026-01-03' == day", [1, 2]),
    ("at > TIMESTAMP '2026-01-02 12:00:00Z'", [2, 3]),
    ("at <= TIMESTAMP '2026-01-02 13:00:00+01:00'", [0, 1]),
    ("Name LIKE 'a%'", [0, 1]),
    (r"Name LIKE 'a\_%'", [1]),
    ('Name = "ab" OR Name IN ("it\'s")', [0, 2]),
    (r"Name = 'it\'s' OR Name = 'say \"x\"'", [2, 4]),
    ("NOT Name LIKE '%'", []),
    ("Name = 'it''s'", [2]),
    ("id <=> 3", [2]),
    ("NOT id <=> 3", [0, 1, 3, 4]),
    ("id <=> NULL", [3]),
    ("id <> 3", [0, 1, 4]),
    ("NOT (id = 3 OR id IN (1, 2L))", [4]),
    ("id NOT BETWEEN 2 AND 3", [0, 4]),
    ("ok", [0, 3]),
    ("NOT ok AND id IS NOT NULL", [1, 4]),
    ("`two words` = 'x' AND ! (id = 1)", []),
    ("score >= 1.5D AND score < 1e1", [1, 2]),
    ("score > 1.5", [2]),
    ("id < 2.5", [0, 1]),
    ("id >= 2.5", [2, 4]),
    ("id = 2.5 OR id IN (0.5, 5.0)", [4]),
    ("id != 2.5", [0, 1, 2, 4]),
    ("id > -1e30 AND id < 1e30", [0, 1, 2, 4]),
    ("price > 1.499", [1, 3]),
    ("price = 1.5 OR price = 1BD", [0, 1]),
    ("price <= -2.999", [4]),
    ("raw = X'1F'", [0]),
    ("wide > 1", [1, 2, 4]),
    ("wide >= 1e300", [1, 4]),
    ("wide < 2 OR wide <= 1", [0, 2]),
    ("NOT wide < 2", [1, 4]),
    ("NOT (wide >= 1.1 OR wide IS NULL)", [0]),
    ("wide NOT IN (1, 7)", [1, 2, 4]),
    ("wide BETWEEN 1 AND 1e308", [0, 2]),
    ("wide NOT BETWEEN 1 AND 1e308", [1, 4]),
    ("2 < wide", [1, 4]),
    ("wide = 1.1F", []),
    ("real = 1.1", []),
    ("real = 1.1F", [2]),
    ("real > 1.1", [1, 2]),
    ("real >= 1.1", [1, 2]),
    ("real <= 1.1", [0, 4]),
    ("real != 1.1", [0, 1, 2, 4]),
    ("real IN (1.1, 1.0)", [0]),
    ("real NOT IN (1.1, 1.0)", [1, 2, 4]),
    ("real > 1e39", [1]),
    ("price = 15e-1 OR price = 225e-2", [1, 3]),
    ("price < 15e-1", [0, 4]),
    ("price >= 15e-1 AND NOT price > 225e-2", [1, 3]),
    ("price <= 225e-2D AND price <> 1e0", [1, 3, 4]),
    ("price IN (1e0, 1.5)", [0, 1]),
    ("price NOT IN (1e0, 1.5)", [3, 4]),
    ("long = 9007199254740992D", [0, 1]),
    ("long > 9007199254740992D", []),
    ("long <= -9007199254740992D", [4]),
    ("long = 7D", [2]),
]


@pytest.fixture(scope="module")
def rows() -> pa.Table:
    columns = {k: pa.array(v, TYPES.get(k)) for k, v in ROWS.items()}
    return pa.table({"n": pa.array(range(5)), **columns})


def test_filters_mean_what_spark_means(catalog: Any, rows: pa.Table) -> None:
    properties = {"encryption.key-id": "default"}
    table = catalog.create_table("db.f", rows.schema, properties=properties)
    table.append(rows)

    found = {}
    for text, _ in MEANT:
        row_filter = parse_option_filter({"filter": text}, schema=table.schema())
        scanned = table.scan(row_filter).to_arrow()
        found[text] = sorted(scanned["n"].to_pylist())

    assert found == dict(MEANT)


def test_spark_says_the_same(spark: Any, rows: pa.Table) -> None:
    # Not cached: Spark's answers from its cache left out rows with NaN.
    frame = spark.createDataFrame(rows)

    found = {text: sorted(row.n for row in frame.where(text).collect()) for text, _ in MEANT}

    assert found == dict(MEANT)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id << 5", r"from '< 5' on \(character 5\): expected a literal"),
        ("id < ", r"at its end \(character 6\): expected a literal"),
        ("id < 5 limit 3", r"from 'limit 3' on \(character 8\): expected AND or OR"),
        ("year(day) = 2026", r"from 'year\(day.*filters know no functions, give .* where"),
        ("id + 1 < 5", r"from '\+ 1 < 5' on .* where\(\)"),
        ("id < other", r"from 'other' on .*expected a literal, or give the rest to where\(\)"),
        ("1 < 2", "expected a column"),
        ("'a' = id = 3", r"from '= 3' on"),
        ("Name RLIKE 'a.*'", "from .RLIKE"),
        ("Name LIKE 'a%b'", "% only at its end"),
        ("Name LIKE 'a_%'", r"no _ \(write \\_ for itself\)"),
        ("id = NULL", "write IS NULL"),
        ("id IN (1, NULL)", "write IS NULL"),
        ("id IN ()", r"from '\)' on"),
        ("(id = 1", r"at its end .* expected \)"),
        ("id = 1)", r"from '\)' on"),
        (
            "day = DATE '2026-02-30'",
            r"from \"'2026-02-30'\" on .* this is no DATE: write one such as",
        ),
        ("raw = X'1G'", r"from \"'1G'\" on .* this is no X: write one such as X'1F'"),
        ("Name = 'open", r"from \"'open\" on"),
        ("id = 5; drop table t", "from '; drop"),
        ("(" * 2000 + "id = 1", "more than 100 levels of parentheses"),
        ("and", "from 'and' on"),
        ("   ", "at its end"),
    ],
)
def test_where_a_filter_is_wrong(text: str, message: str) -> None:
    with pytest.raises(
        ValueError, match=f"the option 'filter' cannot be read.*{message}"
    ) as caught:
        parse_filter(text)
    assert len(str(caught.value)) < 300


def test_times_are_compared_with_times_only(catalog: Any, rows: pa.Table) -> None:
    table = catalog.create_table("db.f", rows.schema, properties={"encryption.key-id": "default"})
    table.append(rows)
    for text in ("Name > DATE '2026-01-01'", "at > TIMESTAMP '2026-01-02 12:00:00'"):
        with pytest.raises((TypeError, ValueError)):
            table.scan(parse_filter(text)).to_arrow()

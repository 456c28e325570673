"""``to_polars`` against Polars itself: a query finds what it finds in a frame of the same rows.
What a query does not need is deleted or damaged, so that reading it would fail."""

from __future__ import annotations

import math
import operator
import os
import pickle
from collections.abc import Iterator
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from iceberg_tables import MASTER_KEYS, sql_catalog
from polars.testing import assert_frame_equal
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    GeographyType,
    GeometryType,
    IcebergType,
    LongType,
    NestedField,
    StructType,
)

from ags1.iceberg import EncryptedTable, VariantType

ENCRYPTED = {"encryption.key-id": "keyA"}
NAN, INF = math.nan, math.inf
UTC = timezone.utc

ROWS = pl.DataFrame(
    {
        "id": range(12),
        "i": pl.Series([1, 2, None, 3, -4, 5, 5, None, 7, 2**31 - 1, -(2**31), 0], dtype=pl.Int32),
        "f": [1.0, NAN, None, 2.0, NAN, NAN, 0.0, -0.0, INF, -INF, 3.5, None],
        "g": pl.Series(
            [NAN, 0.1, None, 1.5, None, None, -0.0, 0.0, NAN, INF, 1, 2], dtype=pl.Float32
        ),
        "s": ["a", "A", None, "ab", "", "b", "é", "\U0001f600", "\uffff", None, "abc", "a"],
        "b": [True, False, None, True, True, True, False, False, None, None, True, False],
        "d": [date(2020, 1, d) if d != 3 else None for d in range(1, 13)],
        "t": [datetime(2020, 1, 1, h, tzinfo=UTC) if h % 5 else None for h in range(12)],
        "n": [datetime(2020, 1, 1, h, 0, 0, h) if h % 4 else None for h in range(12)],
        "l": [[1, None], [], None] * 4,
    },
    schema_overrides={"t": pl.Datetime("us", "UTC"), "n": pl.Datetime("us")},
)
# Literals for each column: its own values, others, and types that Polars has to cast.
LITERALS: dict[str, list[Any]] = {
    "id": [0, 3, 11, 100, -1, 2.5, None],
    "i": [1, 5, 2**31 - 1, 2**40, 0.5, None],
    "f": [0.0, -0.0, 1.0, 2, NAN, INF, -INF, None],
    "g": [0.1, pl.lit(0.1, pl.Float32), 0.0, NAN, 1, INF],
    "s": ["a", "", "ab", "é", "\uffff", "zz", None],
    "b": [True, False, None],
    "d": [date(2020, 1, 3), date(2020, 1, 4), date(1, 1, 1), datetime(2020, 1, 5, 3)],
    "t": [datetime(2020, 1, 1, 4, tzinfo=UTC), datetime(1969, 1, 1, tzinfo=UTC)],
    "n": [datetime(2020, 1, 1, 7, 0, 0, 7), datetime(2020, 1, 1, 7)],
}
OPERATORS = [operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne]


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The same rows in four commits each: encrypted, partitioned, and not encrypted."""
    with sql_catalog(tmp_path_factory.mktemp("polars")) as catalog:
        made = {}
        for name in ("whole", "partitioned", "plain"):
            properties = {} if name == "plain" else ENCRYPTED
            table = catalog.create_table(f"db.{name}", ROWS, properties=properties)
            if name == "partitioned":
                with table.update_spec() as spec:
                    spec.add_field("s", IdentityTransform())
            append_in_parts(table)
            made[name] = table
        yield made


def append_in_parts(table: Any) -> None:
    for first in range(0, 12, 3):
        table.append(ROWS.slice(first, 3).to_arrow())


@st.composite
def comparisons(draw: st.DrawFn) -> pl.Expr:
    column = draw(st.sampled_from(sorted(LITERALS)))
    literal, other = (
        draw(st.sampled_from(LITERALS[column])),
        draw(st.sampled_from(LITERALS[column])),
    )
    compare = draw(st.sampled_from(OPERATORS))
    plain = [v for v in LITERALS[column] if not isinstance(v, pl.Expr | float | datetime)]
    kinds = {
        "compared": lambda: compare(pl.col(column), literal),
        "exchanged": lambda: compare(
            literal if isinstance(literal, pl.Expr) else pl.lit(literal), pl.col(column)
        ),
        "between": lambda: pl.col(column).is_between(
            literal, other, draw(st.sampled_from(["both", "left", "right", "none"]))
        ),
        "missing": lambda: pl.col(column).eq_missing(literal),
        "in": lambda: pl.col(column).is_in(plain or [literal], nulls_equal=draw(st.booleans())),
        "null": lambda: pl.col(column).is_null(),
        "not null": lambda: pl.col(column).is_not_null(),
        "nan": lambda: pl.col("f").is_nan(),
        "not nan": lambda: pl.col("g").is_not_nan(),
        "starts": lambda: pl.col("s").str.starts_with(draw(st.sampled_from(["a", "", "é"]))),
        "boolean": lambda: pl.col("b"),
        "computed": lambda: pl.col("id") + pl.col("i") > 5,
        "list": lambda: pl.col("l").list.len() > 1,
        "two columns": lambda: compare(pl.col("f"), pl.col("g")),
    }
    return kinds[draw(st.sampled_from(sorted(kinds)))]()


PREDICATES = st.recursive(
    comparisons(),
    lambda inner: st.one_of(
        st.builds(operator.and_, inner, inner),
        st.builds(operator.or_, inner, inner),
        st.builds(operator.invert, inner),
    ),
    max_leaves=5,
)


@pytest.mark.parametrize("examples", [6, pytest.param(150, marks=pytest.mark.slow)])
def test_a_query_finds_what_polars_finds(tables: dict[str, Any], examples: int) -> None:
    @given(
        st.sampled_from(["whole", "partitioned"]),
        PREDICATES,
        st.sampled_from([["id"], ["id", "f"], ["s", "id"], ROWS.columns]),
        st.sampled_from(["in-memory", "streaming"]),
    )
    @example("whole", pl.col("f") > 0.5, ["id"], "in-memory")
    @example("whole", ~(pl.col("f") <= 0.5), ["id"], "in-memory")
    @example("whole", pl.col("f") != 1.0, ["id"], "in-memory")
    @example("whole", pl.col("f").is_in([0.0]), ["id"], "in-memory")
    @example("whole", pl.col("g") == pl.lit(0.1, pl.Float32), ["id"], "in-memory")
    @settings(max_examples=examples)
    def check(name: str, predicate: pl.Expr, columns: list[str], engine: Any) -> None:
        try:
            # Polars 2.1 has other rows for "b & ~between(5, null)" without its optimizer.
            expected = ROWS.lazy().filter(predicate).select(columns).collect()
        except pl.exceptions.PolarsError:
            return  # for example a date beside a time with a zone
        lazy = tables[name].to_polars().filter(predicate).select(columns)
        assert_frame_equal(lazy.collect(engine=engine).sort("id"), expected)

    check()


def test_queries_of_other_shapes(tables: dict[str, Any]) -> None:
    lazy = tables["whole"].to_polars()
    assert lazy.collect_schema() == ROWS.schema
    assert_frame_equal(lazy.collect().sort("id"), ROWS)
    assert lazy.select(pl.len()).collect().item() == 12
    assert lazy.filter(pl.col("i") > 1).select(pl.len()).collect().item() == 6
    assert lazy.with_row_index().select("index").collect().height == 12
    assert lazy.filter(False).collect().equals(ROWS.clear())
    assert lazy.head(0).collect().equals(ROWS.clear())
    assert lazy.head(5).collect().height == 5
    some = lazy.filter(pl.col("b")).head(2).collect()
    assert some.height == 2
    assert some["b"].all()
    # The filter comes after the slice, and the slice after the filter.
    first = lazy.head(4).collect()
    assert_frame_equal(
        lazy.head(4).filter(pl.col("id") > 1).collect(), first.filter(pl.col("id") > 1)
    )
    doubled = lazy.group_by("s").agg(pl.col("id").sum()).sort("s", nulls_last=True)
    expected = ROWS.group_by("s").agg(pl.col("id").sum()).sort("s", nulls_last=True)
    assert_frame_equal(doubled.collect(engine="streaming"), expected)
    assert_frame_equal(tables["whole"].to_polars().collect().sort("id"), ROWS)


def test_old_columns_are_not_taken_for_new_ones(catalog: Any) -> None:
    """A filter names the table's present columns, a frame of an old snapshot the former ones."""
    old = pl.DataFrame({"x": [1, 2], "y": [20, 10]})
    table = catalog.create_table("db.t", old, properties=ENCRYPTED)
    table.append(old)
    snapshot = table.current_snapshot().snapshot_id
    with table.update_schema() as change:
        change.rename_column("x", "z")
    with table.update_schema() as change:
        change.rename_column("y", "x")
    of_snapshot = pl.scan_iceberg(table, snapshot_id=snapshot)
    assert of_snapshot.collect_schema().names() == ["x", "y"]
    found = of_snapshot.filter(pl.col("x") == 1).collect()
    assert found.equals(old.filter(pl.col("x") == 1))
    found = table.to_polars().filter(pl.col("x") == 10).collect()
    assert found.rows() == [(2, 10)]


QUERIES = {
    "comparison": pl.col("id") >= 9,
    "exchanged": pl.lit(8) < pl.col("id"),
    "opposite": ~(pl.col("id") < 9),
    "is in": pl.col("id").is_in([10, 11]),
    "between": pl.col("id").is_between(9, 10),
    "date": pl.col("d") > date(2020, 1, 9),
    "time": pl.col("t") > datetime(2020, 1, 1, 8, tzinfo=UTC),
    "text": pl.col("s").str.starts_with("abc") & (pl.col("id") > 5),
    "number": (pl.col("i") > 7) & ~pl.col("s").is_null(),
    "either": (pl.col("id") == 9) | (pl.col("id") > 9),
    "beside what is not translated": (pl.col("id") + pl.col("i") != 7) & (pl.col("id") > 8),
}


@pytest.fixture(scope="module")
def with_the_last_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A table that has lost all data files but that of the rows 9 to 11."""
    with sql_catalog(tmp_path_factory.mktemp("last")) as catalog:
        table = catalog.create_table("db.t", ROWS, properties=ENCRYPTED)
        append_in_parts(table)
        for task in table.scan("id < 9").plan_files():
            Path(task.file.file_path.removeprefix("file://")).unlink()
        with pytest.raises((FileNotFoundError, pl.exceptions.ComputeError), match="parquet"):
            table.to_polars().collect()
        yield table


@pytest.mark.parametrize("query", QUERIES)
def test_a_filter_leaves_files_closed(with_the_last_file: Any, query: str) -> None:
    lazy = with_the_last_file.to_polars().filter(QUERIES[query])
    assert_frame_equal(lazy.collect().sort("id"), ROWS.filter(QUERIES[query]))


def damaged(catalog: Any) -> EncryptedTable:
    """Return a table of two columns, of which the second is damaged in the second file."""
    table = catalog.create_table(
        "db.t", pa.schema([("id", pa.int64()), ("text", pa.binary())]), properties=ENCRYPTED
    )
    for _ in range(2):
        text = [os.urandom(500) for _ in range(1000)]
        table.append(pa.table({"id": range(1000), "text": text}))
    path = Path(next(iter(table.scan().plan_files())).file.file_path.removeprefix("file://"))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    return table


def test_a_query_reads_only_its_columns(catalog: Any) -> None:
    table = damaged(catalog)
    assert table.to_polars().select(pl.col("id").sum()).collect().item() == 999_000
    assert table.to_polars().filter(pl.col("id") == 5).select("id").collect().height == 2


@pytest.mark.parametrize("engine", ["in-memory", "streaming"])
def test_a_damaged_file_fails_the_query(catalog: Any, engine: Any) -> None:
    lazy = damaged(catalog).to_polars().select(pl.col("text").n_unique())
    with pytest.raises(Exception, match="parquet") as raised:
        lazy.collect(engine=engine)
    assert "AuthenticationError" in f"{type(raised.value).__name__} {raised.value}"


def test_no_key_is_in_a_frame(tables: dict[str, Any]) -> None:
    lazy = tables["whole"].to_polars().filter(pl.col("id") > 1)
    keys = [form for key in MASTER_KEYS.values() for form in (key.decode(), key.hex())]
    assert not any(key in lazy.explain() for key in keys)
    # What is serialized has the location of the metadata alone, and cannot be read without a KMS.
    for form in (pickle.dumps(lazy), lazy.serialize()):
        assert not any(key.encode() in form for key in keys)
    with pytest.raises(ValueError, match="Avro"):
        pickle.loads(pickle.dumps(lazy)).collect()


@pytest.mark.parametrize(
    ("version", "pushes"), [("1.44.2", False), ("2.0.0", False), ("2.1.0", True)]
)
def test_an_older_polars_filters_by_itself(
    tables: dict[str, Any], monkeypatch: pytest.MonkeyPatch, version: str, pushes: bool
) -> None:
    """Up to 2.0, it pushed ``f > 0.5`` down to a scan that leaves NaN out."""
    given: list[bool] = []
    monkeypatch.setattr(pl, "__version__", version)
    monkeypatch.setattr(
        pl,
        "scan_iceberg",
        lambda _, *, use_pyiceberg_filter, **__: given.append(use_pyiceberg_filter),
    )
    tables["whole"].to_polars()
    assert given == [pushes]


def test_variants_and_geometries_have_the_names_of_their_types(catalog: Any) -> None:
    def optional(number: int, name: str, kind: IcebergType) -> NestedField:
        return NestedField(number, name, kind, required=False)

    inner = StructType(optional(5, "v", VariantType()), optional(6, "g", GeographyType()))
    kinds: list[IcebergType] = [LongType(), VariantType(), GeometryType(), inner]
    columns = [optional(i, n, k) for i, (n, k) in enumerate(zip("ivgs", kinds, strict=True), 1)]
    variant = pa.struct([("metadata", pa.binary()), ("value", pa.binary())])
    arrow = pa.struct([("v", variant), ("g", pa.binary())])
    value = {"metadata": b"\x01\0\0", "value": b"\x0c\x11"}
    rows = [{"i": 1, "v": value, "g": b"\x01", "s": {"v": value, "g": b"\x02"}}, {"i": 2}]
    table = catalog.create_table("db.t", Schema(*columns), properties=ENCRYPTED)
    schema = pa.schema([("i", pa.int64()), ("v", variant), ("g", pa.binary()), ("s", arrow)])
    table.append(pa.Table.from_pylist(rows, schema))
    whole = pl.DataFrame(table.scan())
    lazy = table.to_polars()
    assert lazy.collect_schema() == whole.schema
    assert_frame_equal(lazy.collect(), whole)
    assert_frame_equal(pl.scan_iceberg(table).select("i").collect(), whole.select("i"))
    for name in "ivgs":
        assert lazy.filter(pl.col(name).is_not_null() & (pl.col("i") < 2)).collect().height == 1
        assert lazy.filter(pl.col(name).is_null()).collect().height == (name != "i")
    nested = pl.col("s").struct.field("g")
    assert lazy.filter(nested.is_null()).select("i").collect()["i"].to_list() == [2]
    # The type's name is not in the schemas of other tables.
    assert schema_to_pyarrow(Schema(columns[2])).field("g").type == pa.large_binary()

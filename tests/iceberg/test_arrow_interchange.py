"""Tables and scans for the libraries that take Arrow streams, and rows and schemas from those that
export them. Expected rows are those that pyarrow has written."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Any

import duckdb
import pandas
import polars
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from kept_tables import KeptTables
from pyiceberg.expressions import In
from pyiceberg.transforms import IdentityTransform

from ags1.iceberg import EncryptedCatalog, EncryptedTable
from ags1.iceberg.read import scan as scan_module

pytestmark = pytest.mark.filterwarnings("ignore::ags1.kms.memory.KeysInPropertiesWarning")

ENCRYPTED = {"encryption.key-id": "keyA"}
ROWS = pa.table(
    {
        "id": pa.array(range(6), pa.int64()),
        "text": ["a", None, "ä", "", "b", "a"],
        "number": [1.5, None, float("inf"), -0.0, 2.0, 3.0],
        "day": [date(2020, 1, 1), None, *[date(1969, 12, 31)] * 4],
        "time": pa.array(
            [datetime(2020, 1, 1, tzinfo=timezone.utc)] * 6, pa.timestamp("us", "UTC")
        ),
        "list": [["x", None], [], None, ["y"], ["z"], []],
        "struct": [{"p": 1, "q": "s"}, None, {"p": None, "q": None}, *[{"p": 2, "q": "t"}] * 3],
    }
)


def made(catalog: EncryptedCatalog, rows: Any = ROWS, name: str = "db.t") -> EncryptedTable:
    table = catalog.create_table(name, rows, properties=ENCRYPTED)
    assert isinstance(table, EncryptedTable)
    return table


def in_two_files(catalog: EncryptedCatalog) -> EncryptedTable:
    table = made(catalog)
    for first in (0, 3):
        table.append(ROWS.slice(first, 3))
    return table


def in_three_files(catalog: EncryptedCatalog) -> EncryptedTable:
    table = made(catalog, pa.schema([("id", pa.int64()), ("text", pa.binary())]))
    for _ in range(3):
        table.append(pa.table({"id": range(200), "text": [os.urandom(200) for _ in range(200)]}))
    return table


def ids(table: EncryptedTable, **more: Any) -> list[int]:
    return sorted(table.scan(**more).to_arrow()["id"].to_pylist())


# -- streams out


def by_polars(source: Any) -> pa.Table:
    return polars.DataFrame(source).to_arrow()


def by_polars_lazily(source: Any) -> pa.Table:
    return polars.scan_arrow_c_stream(source).collect().to_arrow()


def by_duckdb(source: Any) -> pa.Table:
    return duckdb.from_arrow(source).to_arrow_table()


def by_duckdb_in_sql(source: Any) -> pa.Table:
    with duckdb.connect() as connection:
        return connection.sql("from source").to_arrow_table()


def by_datafusion(source: Any) -> pa.Table:
    datafusion = pytest.importorskip("datafusion")
    return datafusion.SessionContext().from_arrow(source).to_arrow_table()


def by_pandas(source: Any) -> pa.Table:
    return pa.Table.from_pandas(pandas.DataFrame.from_arrow(source))


def by_daft(source: Any) -> pa.Table:
    daft = pytest.importorskip("daft")
    return daft.from_arrow(source).to_arrow()


def by_nanoarrow(source: Any) -> pa.Table:
    nanoarrow = pytest.importorskip("nanoarrow")
    return pa.table(nanoarrow.ArrayStream(source))


CONSUMERS = [
    pa.table,
    by_polars,
    by_polars_lazily,
    by_duckdb,
    by_duckdb_in_sql,
    by_datafusion,
    by_pandas,
    by_nanoarrow,
    by_daft,
]


@pytest.mark.parametrize("consumer", CONSUMERS, ids=lambda function: function.__name__)
def test_a_library_takes_a_table_and_a_scan(
    kept: KeptTables, consumer: Callable[[Any], pa.Table]
) -> None:
    table = kept(in_two_files)
    expected = consumer(ROWS)
    assert expected.num_rows == 6
    assert consumer(table).sort_by("id").to_pylist() == expected.to_pylist()
    scan = table.scan("id > 1", selected_fields=("id", "text"))
    wanted = [{"id": row["id"], "text": row["text"]} for row in ROWS.to_pylist()[2:]]
    # A scan is read anew each time.
    for _ in range(2):
        assert consumer(scan).sort_by("id").to_pylist() == wanted
    nothing = consumer(table.scan("id > 100"))
    assert nothing.schema.names == ROWS.schema.names
    assert nothing.num_rows == 0


@pytest.mark.parametrize("consumer", CONSUMERS, ids=lambda function: function.__name__)
def test_a_file_that_is_damaged_is_an_error_of_the_library(
    kept: KeptTables, consumer: Callable[[Any], pa.Table]
) -> None:
    table = kept(in_three_files)
    path = Path(list(table.scan().plan_files())[-1].file.file_path.removeprefix("file://"))
    whole = path.read_bytes()
    changed = bytearray(whole)
    changed[len(whole) // 2] ^= 1
    for damaged in (bytes(changed), whole[: len(whole) // 2], b""):
        path.write_bytes(damaged)
        with pytest.raises(Exception, match=path.name):
            consumer(table)
    path.write_bytes(whole)
    assert consumer(table).num_rows == 600


def test_appended_rows_are_a_stream_too(catalog: EncryptedCatalog) -> None:
    table = made(catalog)
    table.append(ROWS.slice(0, 2))
    first = table.current_snapshot()
    assert first is not None
    table.append(ROWS.slice(2, 1))
    table.delete("id = 0")
    appended = table.incremental_append_scan(from_snapshot_id_exclusive=first.snapshot_id)
    assert polars.DataFrame(appended)["id"].to_list() == [2]
    with table.transaction() as transaction:
        transaction.append(ROWS.slice(5, 1))
        assert polars.DataFrame(transaction.scan())["id"].sort().to_list() == [1, 2, 5]


def test_a_consumer_may_ask_for_other_types(catalog: EncryptedCatalog) -> None:
    rows = pa.table({"id": pa.array([1, 2], pa.int64()), "text": ["a", "b"]})
    table = made(catalog, rows)
    table.append(rows)
    wanted = pa.schema([("id", pa.int64()), ("text", pa.string_view())])
    # What pyarrow's own reader does is what ours does.
    for source in (rows.to_reader(), table.scan(), table):
        given = pa.RecordBatchReader.from_stream(source, schema=wanted)
        assert given.schema.equals(wanted)
        assert given.read_all().to_pydict() == rows.to_pydict()
    for source in (rows.to_reader(), table.scan(), table):
        with pytest.raises(pa.ArrowTypeError):
            pa.RecordBatchReader.from_stream(
                source, schema=pa.schema([("id", pa.list_(pa.int8())), ("text", pa.string())])
            )
    assert pa.schema(table) == pa.RecordBatchReader.from_stream(table).schema
    assert polars.Schema(table.scan(selected_fields=("text",))) == {"text": polars.String}


def test_a_stream_holds_few_files(
    catalog: EncryptedCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is held at once is what the stream may read ahead, and not the table."""
    table = made(catalog, pa.schema([("id", pa.int64()), ("text", pa.binary())]))
    with table.transaction() as transaction:
        for _ in range(16):
            text = [os.urandom(1 << 18) for _ in range(2)]
            transaction.append(pa.table({"id": range(2), "text": text}))
    del text
    monkeypatch.setattr(scan_module, "_READ_AHEAD", 1 << 20)
    before, held, rows = pa.total_allocated_bytes(), [], 0
    for batch in pa.RecordBatchReader.from_stream(table):
        rows += batch.num_rows
        held.append(pa.total_allocated_bytes() - before)
    assert rows == 32
    # Those of four files; the threads would read more at once.
    assert max(held) < 2 << 20
    # A consumer that stops early stops the reading.
    for task in list(table.scan().plan_files())[8:]:
        Path(task.file.file_path.removeprefix("file://")).unlink()
    assert duckdb.from_arrow(table).limit(1).fetchall()[0][0] == 0


# -- rows in


def polars_frame(rows: pa.Table) -> Any:
    return polars.DataFrame(rows)


def polars_categories(rows: pa.Table) -> Any:
    return polars.DataFrame(rows).with_columns(polars.col("text").cast(polars.Categorical))


def test_a_view_of_duckdb_that_is_made_anew_leaves_nothing(catalog: EncryptedCatalog) -> None:
    rows = ROWS.select(["id", "text"])
    table = made(catalog, rows)
    table.append(rows)
    connection = duckdb.connect()

    def check(scan: Any, expected: list[int]) -> None:
        scan.to_duckdb("Rows", connection)
        table.scan().to_duckdb("all rows", connection)
        found = connection.sql("SELECT id FROM rows ORDER BY id").fetchall()
        assert found == [(n,) for n in expected]
        assert connection.table("all rows").to_arrow_table().num_rows == table.scan().count()
        made_by_us = [n for n in connection.list_filesystems() if n.startswith("ags1-")]
        assert len(made_by_us) == 1
        views = "SELECT view_name FROM duckdb_views() WHERE NOT internal"
        names = {name for (name,) in connection.sql(views).fetchall()}
        hidden = [name for name in names if name.startswith("ags1-rest-")]
        assert names - {*hidden} == {"Rows", "all rows"}
        assert len(hidden) <= 2

    for expected in ([0, 1, 2], [3, 4, 5], [], [0, 1, 2, 3, 4, 5]):
        check(table.scan(In("id", {*expected, 9})), expected)
    table.delete("id = 0")  # from now on, Arrow reads the file's rows
    check(table.scan(), [1, 2, 3, 4, 5])
    table.append(pa.table({"id": [7], "text": ["z"]}))
    for expected in ([1, 2, 3, 4, 5, 7], [5, 7], [7]):
        check(table.scan(f"id >= {expected[0]}"), expected)


def duckdb_relation(rows: pa.Table) -> Any:
    return duckdb.from_arrow(rows)


def pandas_frame(rows: pa.Table) -> Any:
    return rows.to_pandas(types_mapper=pandas.ArrowDtype)


def nanoarrow_stream(rows: pa.Table) -> Any:
    return pytest.importorskip("nanoarrow").ArrayStream(rows)


def record_batch(rows: pa.Table) -> Any:
    return rows.combine_chunks().to_batches()[0]


class OneArray:
    """An object that exports a record batch, and not a stream."""

    def __init__(self, rows: pa.Table) -> None:
        self._batch = record_batch(rows)

    def __arrow_c_array__(self, requested_schema: Any = None) -> Any:
        return self._batch.__arrow_c_array__(requested_schema)


def views(rows: pa.Table) -> pa.Table:
    """The rows as views and runs. The lists' values lie in another order, with gaps."""
    values, offsets, sizes = [None], [], []
    for value in reversed(rows["list"].to_pylist()):
        offsets.insert(0, 10**6 if value is None else len(values))
        sizes.insert(0, len(value or ()))
        values += [*(value or ()), None]
    lists = pa.ListViewArray.from_arrays(
        pa.array([0, *offsets], pa.int32()),
        pa.array([1, *sizes], pa.int32()),
        pa.array(values, pa.string_view()),
        mask=pa.array([False, *(value is None for value in rows["list"].to_pylist())]),
    )
    numbers = pc.run_end_encode(rows["number"].combine_chunks())
    columns = {"list": lists.slice(1), "number": numbers, "text": rows["text"].cast("string_view")}
    return pa.table({name: columns.get(name, rows[name]) for name in rows.column_names})


def stream_of_views(rows: pa.Table) -> Any:
    return views(rows).to_reader(max_chunksize=2)


def array_of_views(rows: pa.Table) -> Any:
    return OneArray(views(rows))


PRODUCERS = [
    views,
    stream_of_views,
    array_of_views,
    pa.Table.to_reader,
    polars_frame,
    polars_categories,
    duckdb_relation,
    pandas_frame,
    nanoarrow_stream,
    record_batch,
    OneArray,
]


# Of `make test`: a batch, a stream, an array, and what only exports a stream.
@pytest.mark.slow_variants(
    r"(to_reader|polars_categories|OneArray|views|nanoarrow_stream|(pandas|polars)_frame)"
)
@pytest.mark.parametrize("produced", PRODUCERS, ids=lambda function: function.__name__)
def test_rows_of_a_library_are_written(
    catalog: EncryptedCatalog, produced: Callable[[pa.Table], Any]
) -> None:
    table = made(catalog)
    table.append(produced(ROWS))
    found = table.scan().to_arrow()
    assert found.select(ROWS.schema.names).to_pylist() == ROWS.to_pylist()
    table.overwrite(produced(ROWS.slice(0, 1)), In("id", [0, 1, 2, 3]))
    assert ids(table) == [0, 4, 5]
    result = table.upsert(produced(ROWS.slice(3, 2)), ["id"])
    assert (result.rows_updated, result.rows_inserted) == (0, 1)
    with table.transaction() as transaction:
        transaction.append(produced(ROWS.slice(1, 1)))
    assert ids(table) == [0, 1, 3, 4, 5]
    with table.update_spec() as spec:
        spec.add_field("text", IdentityTransform())
    table.delete("text != 'a'")
    table.dynamic_partition_overwrite(produced(ROWS.slice(5, 1)))
    assert ids(table) == [1, 5]
    table.dynamic_partition_overwrite(produced(ROWS.slice(0, 1)))
    assert ids(table) == [0, 1]


@pytest.mark.parametrize("produced", PRODUCERS, ids=lambda function: function.__name__)
def test_a_table_is_made_from_the_schema_of_a_library(
    catalog: EncryptedCatalog, produced: Callable[[pa.Table], Any]
) -> None:
    rows = ROWS.select(["id", "text", "number", "day", "time", "list"])
    table = made(catalog, produced(rows))
    kinds = "long string double date timestamptz list<string>".split()
    assert [str(field.field_type) for field in table.schema().fields] == kinds
    with catalog.create_table_transaction("db.u", produced(rows), properties=ENCRYPTED) as creating:
        creating.append(produced(rows))
    assert ids(catalog.load_table("db.u")) == list(range(6))


def test_a_schema_alone_is_enough(catalog: EncryptedCatalog) -> None:
    frame = polars.DataFrame({"id": [1], "text": ["a"]})
    assert made(catalog, frame.schema).schema() == made(catalog, frame, "db.u").schema()
    with pytest.raises(ValueError, match="must be pyiceberg"):
        made(catalog, {"id": "long"}, "db.v")


def test_a_stream_is_written_as_it_arrives(catalog: EncryptedCatalog) -> None:
    """Rows of a stream are neither read before they are needed nor again."""
    table = made(catalog, pa.schema([("id", pa.int64())]))
    asked = []

    def batches() -> Any:
        for number in range(3):
            asked.append(number)
            yield pa.record_batch({"id": [number]})

    class Once:
        def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
            reader = pa.RecordBatchReader.from_batches(pa.schema([("id", pa.int64())]), batches())
            return reader.__arrow_c_stream__(requested_schema)

    source = Once()
    assert asked == []
    table.append(source)
    assert asked == ids(table) == [0, 1, 2]


def test_a_stream_that_fails_writes_nothing(catalog: EncryptedCatalog, tmp_path: Path) -> None:
    table = made(catalog, pa.schema([("id", pa.int64())]))
    schema = pa.schema([("id", pa.int64())])

    def batches() -> Any:
        yield pa.record_batch({"id": [1]})
        raise RuntimeError("the source is gone")

    class Failing:
        def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
            reader = pa.RecordBatchReader.from_batches(schema, batches())
            return reader.__arrow_c_stream__(requested_schema)

    for write in (table.append, table.overwrite, lambda data: table.upsert(data, ["id"])):
        with pytest.raises((RuntimeError, OSError, pa.ArrowException), match="source is gone"):
            write(Failing())
    assert ids(table) == []
    assert not list(tmp_path.rglob("*.parquet"))


@pytest.mark.parametrize("data", [[1], {"id": [1]}, "rows", None], ids=repr)
def test_what_is_no_arrow_data_is_refused(catalog: EncryptedCatalog, data: Any) -> None:
    table = made(catalog, pa.schema([("id", pa.int64())]))
    with table.update_spec() as spec:
        spec.add_field("id", IdentityTransform())
    upsert = lambda rows: table.upsert(rows, ["id"])  # noqa: E731
    for write in (table.append, table.overwrite, table.dynamic_partition_overwrite, upsert):
        with pytest.raises((ValueError, TypeError)) as raised:
            write(data)
        assert type(data).__name__ in str(raised.value)
        with pytest.raises(ValueError, match="non-struct type int64"):
            write(pa.array([1]))
    assert ids(table) == []

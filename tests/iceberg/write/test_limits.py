"""Values at the ends of every type, and beyond them, by every way into a table.

What is accepted is read back as it was. What is refused leaves no file, and the error names the
column. The ends are those of the Iceberg specification, "Primitive Types".
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyiceberg import types
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema

from ags1.iceberg import EncryptedTable

pytestmark = pytest.mark.filterwarnings(
    "ignore::ags1.kms.memory.KeysInPropertiesWarning",
    "ignore:Delete operation did not match any records",
)


I32, I64, I128 = 2**31, 2**63, 2**127
DAY = 86_400_000_000
US, NS = pa.timestamp("us"), pa.timestamp("ns")
US_UTC, NS_UTC = pa.timestamp("us", "UTC"), pa.timestamp("ns", "UTC")


def decimal(digits: int, scale: int) -> tuple[types.IcebergType, pa.DataType, list[Any]]:
    ends = [10**digits - 1, 1 - 10**digits, 0]
    return types.DecimalType(digits, scale), pa.decimal128(digits, scale), ends


# By the name of the column: its type, Arrow's, and values as Arrow stores them.
ENDS: dict[str, tuple[types.IcebergType, pa.DataType, list[Any]]] = {
    "boolean": (types.BooleanType(), pa.bool_(), [True, False]),
    "int": (types.IntegerType(), pa.int32(), [-I32, I32 - 1]),
    "uint8 as int": (types.IntegerType(), pa.uint8(), [0, 255]),
    "long": (types.LongType(), pa.int64(), [-I64, I64 - 1]),
    "uint32 as long": (types.LongType(), pa.uint32(), [0, 2**32 - 1]),
    "float": (types.FloatType(), pa.float32(), [math.inf, -0.0, 2.0**-149, math.nan]),
    "double": (types.DoubleType(), pa.float64(), [-math.inf, 1.7976931348623157e308, 5e-324]),
    "date": (types.DateType(), pa.date32(), [-I32, I32 - 1, 0]),
    "time": (types.TimeType(), pa.time64("us"), [0, DAY - 1]),
    "timestamp": (types.TimestampType(), US, [-I64, I64 - 1]),
    "timestamptz": (types.TimestamptzType(), US_UTC, [-I64, I64 - 1]),
    "timestamp_ns": (types.TimestampNanoType(), NS, [-I64, I64 - 1]),
    "timestamptz_ns": (types.TimestamptzNanoType(), NS_UTC, [-I64, I64 - 1]),
    "decimal_9": decimal(9, 2),
    "decimal_18": decimal(18, 0),
    "decimal_19": decimal(19, 19),
    "decimal_38": decimal(38, 0),
    "decimal_38_38": decimal(38, 38),
    "string": (
        types.StringType(),
        pa.string(),
        [b"", b"\0", "\U0010ffff\ue000".encode(), b"x" * 5000],
    ),
    "large_string": (types.StringType(), pa.large_string(), [b"", "\ud7ff".encode()]),
    "binary": (types.BinaryType(), pa.binary(), [b"", b"\xff" * 20]),
    "fixed": (types.FixedType(4), pa.binary(4), [b"\0" * 4, b"\xff" * 4]),
    "uuid": (types.UUIDType(), pa.binary(16), [b"\0" * 16, b"\xff" * 16]),
}
# Values that the column's type does not have, in Arrow's type of the data.
BEYOND: list[tuple[str, pa.DataType, Any]] = [
    ("int", pa.uint32(), 2**31),
    ("int", pa.int64(), 1),
    ("long", pa.uint64(), 2**63),
    ("float", pa.float64(), 1e300),
    ("time", pa.time64("us"), DAY),
    ("time", pa.time64("us"), -1),
    ("time", pa.time64("us"), I64 - 1),
    ("timestamp", pa.timestamp("s"), I64 - 1),
    ("timestamptz", pa.timestamp("ms", "UTC"), -I64),
    ("timestamp", NS, 1),
    ("timestamp_ns", US, I64 - 1),
    ("decimal_9", pa.decimal128(9, 2), 10**9),
    ("decimal_9", pa.decimal128(9, 2), -I128),
    ("decimal_18", pa.decimal128(18, 0), -(10**18)),
    ("decimal_19", pa.decimal128(19, 19), 10**19),
    ("decimal_38", pa.decimal128(38, 0), I128 - 1),
    ("decimal_38", pa.decimal128(38, 0), -(10**38)),
    ("decimal_38_38", pa.decimal128(38, 38), 10**38),
    ("string", pa.string(), b"caf\xe9"),
    ("string", pa.string(), b"\xed\xa0\x80"),
    ("string", pa.large_string(), b"\xc0\xaf"),
    ("string", pa.binary(), b"\xff"),
    ("string", pa.dictionary(pa.int32(), pa.string()), b"\xf4\x90\x80\x80"),
    ("string", pa.string_view(), b"\xff"),
    ("fixed", pa.binary(5), b"12345"),
    ("fixed", pa.binary(), b"12"),
    ("uuid", pa.binary(15), b"1" * 15),
]
KEYS = {"int", "date", "time", "timestamp", "decimal_9", "decimal_38", "string", "binary", "fixed"}


def leaf(kind: pa.DataType, values: list[Any]) -> pa.Array:
    """Return values, given as they are stored, in an array that nothing has checked."""
    if pa.types.is_dictionary(kind):
        return leaf(kind.value_type, values).dictionary_encode()
    if pa.types.is_string_view(kind):
        return pa.array(values, pa.binary_view()).view(kind)
    if pa.types.is_temporal(kind):
        return pa.array(values, pa.int32() if pa.types.is_date32(kind) else pa.int64()).view(kind)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        is_large = pa.types.is_large_string(kind)
        return pa.array(values, pa.large_binary() if is_large else pa.binary()).view(kind)
    if pa.types.is_decimal(kind):
        data = b"".join((v or 0).to_bytes(16, "little", signed=True) for v in values)
        made = pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(data)])
        present = pa.array([v is not None for v in values])
        return pc.if_else(present, made, pa.scalar(None, kind))
    return pa.array(values, kind)


def stored(column: Any) -> list[Any]:
    """Return the values of a column as they are stored."""
    if isinstance(column, pa.ChunkedArray):
        return [value for chunk in column.chunks for value in stored(chunk)]
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    kind = column.type
    if pa.types.is_temporal(kind):
        column = column.view(pa.int32() if pa.types.is_date32(kind) else pa.int64())
    elif pa.types.is_floating(kind):
        column = column.view(pa.int32() if pa.types.is_float32(kind) else pa.int64())
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
        column = column.cast(pa.large_binary())
    return list(column.to_pylist())


def wrapped(place: str, values: pa.Array) -> pa.Array:
    count, ends = len(values), range(len(values) + 1)
    texts = pa.array(["k"] * count)
    if place == "struct":
        return pa.StructArray.from_arrays([values], names=["x"])
    if place == "list":
        return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), values)
    if place == "map":
        return pa.MapArray.from_arrays(pa.array(ends, pa.int32()), texts, values)
    if place == "key":
        return pa.MapArray.from_arrays(pa.array(ends, pa.int32()), values, texts)
    if place == "deep":
        return wrapped("list", wrapped("struct", wrapped("map", values)))
    return values


def unwrapped(place: str, column: pa.Array) -> pa.Array:
    if place == "struct":
        return pc.struct_field(column, 0)
    if place == "list":
        return column.flatten()
    if place in ("map", "key"):
        return column.keys if place == "key" else column.items
    if place == "deep":
        return unwrapped("map", unwrapped("struct", unwrapped("list", column)))
    return column


NESTED = ["struct", "list", "map", "deep"]
PLACES = ["top", *NESTED, "key"]


def kind_in(place: str, kind: types.IcebergType, ids: Iterator[int]) -> types.IcebergType:
    if place == "struct":
        return types.StructType(types.NestedField(next(ids), "x", kind, required=False))
    if place == "list":
        return types.ListType(next(ids), kind, element_required=False)
    if place == "map":
        return types.MapType(next(ids), types.StringType(), next(ids), kind, value_required=False)
    if place == "key":
        return types.MapType(next(ids), kind, next(ids), types.StringType(), value_required=False)
    if place == "deep":
        inner = kind_in("map", kind, ids)
        return kind_in("list", kind_in("struct", inner, ids), ids)
    return kind


def all_columns() -> Iterator[tuple[str, str, types.IcebergType, pa.DataType, list[Any]]]:
    """Yield the name, place, type, Arrow type and values of each column."""
    for name, (kind, arrow, values) in ENDS.items():
        for place in PLACES:
            if place != "key" or name in KEYS:
                yield f"{name} {place}", place, kind, arrow, values


Columns = list[tuple[str, str, types.IcebergType, pa.DataType, list[Any]]]
COLUMNS: Columns = list(all_columns())
# Each type by itself, and in one of the other places.
IN_TURN = [
    column
    for number, name in enumerate(ENDS)
    for column in COLUMNS
    if column[0] in (f"{name} top", f"{name} {NESTED[number % 4]}", f"{name} key")
]
MOST = max(len(values) for *_, values in COLUMNS) + 1


def schema(columns: Columns) -> Schema:
    ids = iter(range(1, 10_000))
    fields = [types.NestedField(next(ids), "id", types.LongType(), required=False)]
    for name, place, kind, *_ in columns:
        inside = kind_in(place, kind, ids)
        fields.append(types.NestedField(next(ids), name, inside, required=False))
    return Schema(*fields)


def of_types(*names: str) -> Schema:
    return schema([column for column in COLUMNS if column[0].rpartition(" ")[0] in names])


def at_the_ends(columns: Columns) -> pa.Table:
    """Return rows that have each value of each column, and null."""
    made: dict[str, pa.Array] = {"id": pa.array(range(MOST))}
    for name, place, _, arrow, values in columns:
        more = [values[0] if place == "key" else None] * (MOST - len(values))
        made[name] = wrapped(place, leaf(arrow, [*values, *more]))
    return pa.table(made)


def check_ends(table: EncryptedTable, columns: Columns) -> None:
    found = table.scan().to_arrow().sort_by("id").combine_chunks()
    expected = at_the_ends(columns).combine_chunks()
    assert found["id"].equals(expected["id"])
    for name, place, *_ in columns:
        there, back = (unwrapped(place, t[name].chunk(0)) for t in (expected, found))
        assert stored(back) == stored(there), name
    # Nothing else reads them: bounds, partitions, metrics.
    assert table.scan("id >= 0").count() == MOST
    assert table.inspect.files().num_rows >= 1


WAYS: dict[str, Callable[[EncryptedTable, pa.Table], object]] = {
    "append": lambda table, rows: table.append(rows),
    "stream": lambda table, rows: table.append(
        pa.RecordBatchReader.from_batches(rows.schema, rows.to_batches(max_chunksize=1))
    ),
    "overwrite": lambda table, rows: table.overwrite(rows),
    "upsert": lambda table, rows: table.upsert(rows, ["id"]),
}


def new_table(catalog: Any, columns: Schema, **properties: str) -> EncryptedTable:
    properties = {"encryption.key-id": "keyA", **properties}
    made: EncryptedTable = catalog.create_table("db.t", columns, properties=properties)
    return made


@pytest.mark.slow_variants("parquet|avro")
@pytest.mark.parametrize(
    ("file_format", "columns"),
    [
        pytest.param("parquet", IN_TURN, id="parquet, each in turn"),
        pytest.param("parquet", COLUMNS, id="parquet"),
        pytest.param("avro", COLUMNS, id="avro"),
    ],
)
def test_values_at_the_ends_of_their_types_come_back(
    catalog: Any, file_format: str, columns: Columns
) -> None:
    properties = {"write.format.default": file_format, "write.delete.mode": "copy-on-write"}
    table = new_table(catalog, schema(columns), **properties)
    rows = at_the_ends(columns)
    for way, write in WAYS.items():
        write(table, rows)
        check_ends(table, columns)
        if way != "upsert":  # which updates these rows
            table.delete("id >= 0")
    table.append(rows.slice(0, 1).set_column(0, "id", pa.array([-1])))
    table.rewrite_data_files(rewrite_all=True)
    table.delete("id = -1")
    check_ends(table, columns)


def files_of(table: EncryptedTable) -> set[Path]:
    folder = Path(table.location().removeprefix("file://"))
    return {path for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow_variants("parquet|avro")
@pytest.mark.parametrize(
    ("file_format", "is_whole"),
    [
        pytest.param("parquet", False, id="parquet, in places in turn"),
        pytest.param("parquet", True, id="parquet"),
        pytest.param("avro", True, id="avro"),
    ],
)
def test_values_beyond_their_types_are_refused_before_a_file_is_written(
    catalog: Any, file_format: str, is_whole: bool
) -> None:
    properties = {"write.format.default": file_format, "encryption.key-id": "keyA"}
    ways = itertools.cycle(WAYS)
    tables: dict[str, EncryptedTable] = {}
    for number, (name, arrow, value) in enumerate(BEYOND):
        if name not in tables:
            made = catalog.create_table(f"db.{name}", of_types(name), properties=properties)
            made.append(pa.table({"id": [1]}))
            tables[name] = made
        table = tables[name]
        before = files_of(table)
        places = ["struct"] if arrow == pa.string_view() else PLACES[1:]
        there = [p for p in places if f"{name} {p}" in table.schema().column_names]
        for place in ["top", *(there if is_whole else [there[number % len(there)]])]:
            column = f"{name} {place}"
            rows = pa.table({"id": pa.array([7]), column: wrapped(place, leaf(arrow, [value]))})
            for way in WAYS if place == "top" else [next(ways)]:
                with pytest.raises((ValueError, TypeError)) as refused:
                    WAYS[way](table, rows)
                assert column in str(refused.value), (way, column, arrow, refused.value)
                assert files_of(table) == before, (way, column)
    for name, table in tables.items():
        assert table.refresh().scan().count() == 1, name


@pytest.mark.parametrize("file_format", ["parquet", "avro"])
def test_a_stream_with_such_a_value_leaves_none_of_its_files(
    catalog: Any, file_format: str
) -> None:
    properties = {"write.format.default": file_format, "write.target-file-size-bytes": "1"}
    table = new_table(catalog, of_types("time"), **properties)
    before = files_of(table)
    good = leaf(pa.time64("us"), [0, DAY - 1] * 5)
    # A null struct hides what is inside.
    hidden = pa.StructArray.from_arrays(
        [leaf(pa.time64("us"), [DAY] * 10)], names=["x"], mask=pa.array([True] * 10)
    )
    wrong = leaf(pa.time64("us"), [0] * 9 + [DAY])
    batches = [pa.record_batch({"time top": c, "time struct": hidden}) for c in (good, good, wrong)]

    def rows(count: int) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(batches[0].schema, iter(batches[:count]))

    with pytest.raises(ValueError, match="'time top'"):
        table.append(rows(3))
    assert files_of(table) == before
    table.append(rows(2))
    found = table.scan().to_arrow()
    assert found["time struct"].null_count == 20
    assert sorted(stored(found["time top"])) == sorted(stored(good) * 2)


@pytest.mark.parametrize("name", ["time", "string", "decimal_9"])
def test_rewritten_files_have_no_such_value(catalog: Any, tmp_path: Path, name: str) -> None:
    """They are in a file that another program has written: it is read, but not written again."""
    (arrow, value) = next(b[1:] for b in BEYOND if b[0] == name)
    table = new_table(catalog, of_types(name), **{"write.delete.mode": "copy-on-write"})
    path = tmp_path / "other.parquet"
    column = f"{name} top"
    kinds = [field.field_type for field in table.schema().fields[1:]]
    rows = pa.table({"id": pa.array([1, 2]), column: leaf(arrow, [value, None])})
    more = [pa.nulls(2, schema_to_pyarrow(kind, include_field_ids=False)) for kind in kinds[1:]]
    names = [field.name for field in table.schema().fields]
    pq.write_table(
        pa.table([*rows.columns, *more], names),
        path,
        use_dictionary=False,
        write_statistics=False,
        store_decimal_as_integer=False,
    )
    table.add_files([str(path)], allow_plaintext=True)
    before = files_of(table)
    for rewrite in (
        lambda: table.rewrite_data_files(rewrite_all=True),
        lambda: table.delete("id = 2"),
    ):
        with pytest.raises(ValueError, match=column):
            rewrite()
        assert files_of(table) == before
    table.delete("id = 1")
    table.rewrite_data_files(rewrite_all=True)
    assert table.scan().to_arrow()["id"].to_pylist() == [2]


def test_a_map_in_avro_has_a_key_once(catalog: Any) -> None:
    columns = pa.schema([("a", pa.int64()), ("m", pa.map_(pa.string(), pa.int64()))])
    properties = {"encryption.key-id": "keyA", "write.format.default": "avro"}
    table = catalog.create_table("db.t", columns, properties=properties)
    before = files_of(table)
    with pytest.raises(ValueError, match="column 'm'"):
        table.append(pa.Table.from_pylist([{"a": 1, "m": [("k", 1), ("k", 2)]}], columns))
    assert files_of(table) == before


def test_keys_of_an_upsert_may_be_at_the_ends(catalog: Any) -> None:
    for name in sorted(KEYS):
        kind, arrow, values = ENDS[name]
        fields = [("id", types.LongType()), ("key", kind)]
        columns = [types.NestedField(i, *f, required=False) for i, f in enumerate(fields, 1)]
        properties = {"encryption.key-id": "keyA"}
        table = catalog.create_table(f"db.{name}", Schema(*columns), properties=properties)
        rows = pa.table({"id": pa.array(range(len(values))), "key": leaf(arrow, values)})
        table.append(rows)
        changed = rows.set_column(0, "id", pa.array([9] * len(values)))
        done = table.upsert(changed, ["key"])
        assert (done.rows_updated, done.rows_inserted) == (len(values), 0), name
        assert table.scan().to_arrow()["id"].to_pylist() == [9] * len(values)

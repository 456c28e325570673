"""Rows by partition and in sort orders: transforms as PyIceberg and the specification have them."""

from __future__ import annotations

import datetime as dt
import itertools
import math
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from data_files import files_in, metadata_of, read_parquet, write
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import parse_transform
from pyiceberg.types import NestedField

from ags1.iceberg.write import data_files as module
from ags1.iceberg.write.conversion import RowConversion
from ags1.iceberg.write.file_writer import FileWriter
from ags1.iceberg.write.partitions import Partitioner
from ags1.iceberg.write.plan import WritePlan

DAY = dt.datetime(1970, 1, 1)
# Of each type: values as Arrow takes them, before 1970 too, and as PyIceberg's transforms do.
TIMES = [-86_400_000_001, -1, 0, 1, 86_399_999_999, 1_512_151_975_038_194, -5_000_000_000_000_000]
VALUES: dict[str, tuple[pa.DataType, list[Any], list[Any]]] = {
    "boolean": (pa.bool_(), [True, False], [True, False]),
    "int": (pa.int32(), [0, 1, -1, 34, 2 - 2**31, 2**31 - 1], []),
    "long": (pa.int64(), [0, 1, -1, 34, 2**62, -(2**62)], []),
    "date": (pa.date32(), [0, -1, 17486, -719162], []),
    "time": (pa.time64("us"), [0, 81_068_000_000], []),
    "timestamp": (pa.timestamp("us"), TIMES, []),
    "timestamptz": (pa.timestamp("us", "UTC"), TIMES, []),
    "timestamp_ns": (pa.timestamp("ns"), [t * 1000 + 1 for t in TIMES], []),
    "timestamptz_ns": (pa.timestamp("ns", "UTC"), [t * 1000 + 1 for t in TIMES], []),
    "float": (pa.float32(), [0.0, -0.0, 1.5, math.nan], []),
    "double": (pa.float64(), [0.0, -0.0, 1.5, math.nan], []),
    "string": (pa.string(), ["", *("icebergs!"[:n] for n in range(1, 10)), "é\U0001f600xyz"], []),
    "uuid": (
        pa.uuid(),
        [uuid.UUID("f79c3e09-677c-4bbd-a479-3f349cb785e7").bytes],
        [uuid.UUID("f79c3e09-677c-4bbd-a479-3f349cb785e7")],
    ),
    "fixed[4]": (pa.binary(4), [b"\x00\x01\x02\x03", b"\xff\xff\xff\xff"], []),
    "fixed[7]": (pa.binary(7), [b"\x00\x01\x02\x03\xff\x80\x7f"], []),
    "binary": (pa.binary(), [b"", b"\x00\x01\x02\x03", bytes(range(249, 256))], []),
    "decimal(9,2)": (pa.decimal128(9, 2), [Decimal("14.20"), Decimal("-0.05")], []),
    # Around each power of 256 and its half: where the unscaled value takes one byte more.
    "decimal(37,0)": (
        pa.decimal128(37, 0),
        [
            Decimal(sign * 2 ** (8 * n + bit) + near)
            for n, bit in itertools.product(range(15), (0, 7))
            for sign, near in itertools.product((1, -1), (-1, 0, 1))
        ],
        [],
    ),
    "decimal(38,10)": (pa.decimal128(38, 10), [Decimal("1.4200000000"), Decimal("-1e-10")], []),
}
TRANSFORMS = [
    "identity", "void", "bucket[16]", "bucket[1000003]", "truncate[3]", "year", "month", "day",
    "hour",
]  # fmt: skip


def array_of(kind: str) -> pa.Array:
    arrow, values, _ = VALUES[kind]
    if kind == "uuid":
        return arrow.wrap_array(pa.array([*values, None], pa.binary(16)))
    if pa.types.is_temporal(arrow):
        width = pa.int32() if kind == "date" else pa.int64()
        return pa.array([*values, None], width).cast(arrow)
    return pa.array([*values, None], arrow)


def expected_of(kind: str, transform: str) -> list[Any]:
    """What PyIceberg's transform of single values says."""
    source = NestedField(1, "x", kind).field_type
    apply = parse_transform(transform).transform(source)
    _, values, given = VALUES[kind]
    if transform == "identity" and kind in ("float",):
        return [*(float(np.float32(v)) for v in values), None]
    return [apply(value) for value in given or values] + [apply(None)]


def same(found: Any, expected: Any) -> bool:
    if isinstance(expected, float) and isinstance(found, float):
        return (math.isnan(found) and math.isnan(expected)) or (
            found == expected and math.copysign(1, found) == math.copysign(1, expected)
        )
    return type(found) is type(expected) and bool(found == expected)


@pytest.mark.parametrize("kind", VALUES)
def test_transforms_are_pyiceberg_s(kind: str) -> None:
    source = NestedField(1, "x", kind)
    schema = Schema(source, NestedField(2, "n", "long"))
    column = array_of(kind)
    rows = pa.table({"x": column, "n": range(len(column))})
    # The values do not begin where the memory does.
    (longer,) = pa.concat_tables([rows.slice(1, 1), rows]).combine_chunks().to_batches()
    converted = RowConversion(schema, rows.schema).convert(longer.slice(1))
    transforms = [t for t in TRANSFORMS if parse_transform(t).can_transform(source.field_type)]
    assert len(transforms) > 1
    for transform in transforms:
        spec = PartitionSpec(PartitionField(1, 1000, parse_transform(transform), "p"))
        found: dict[int, Any] = {}
        for values, part in Partitioner(spec, schema).split(converted):
            for number in part.column("n").to_pylist():
                (found[number],) = values
        expected = expected_of(kind, transform)
        assert len(found) == len(expected), transform
        for i, value in enumerate(expected):
            assert same(found[i], value), (transform, i, found[i], value)


@pytest.mark.parametrize(
    ("kind", "value", "hashed"),
    [  # The specification, appendix B.
        ("int", pa.array([34], pa.int32()), 2017239379),
        ("long", pa.array([34]), 2017239379),
        ("decimal(9,2)", pa.array([Decimal("14.20")], pa.decimal128(9, 2)), -500754589),
        ("date", pa.array([dt.date(2017, 11, 16)]), -653330422),
        ("time", pa.array([dt.time(22, 31, 8)]), -662762989),
        ("timestamp", pa.array([dt.datetime(2017, 11, 16, 22, 31, 8)]), -2047944441),
        ("timestamp", pa.array([dt.datetime(2017, 11, 16, 22, 31, 8, 1)]), -1207196810),
        (
            "timestamp_ns",
            pa.array([dt.datetime(2017, 11, 16, 22, 31, 8)], pa.timestamp("ns")),
            -2047944441,
        ),
        (
            "timestamptz_ns",
            pa.array([1_510_871_468_000_001_001], pa.timestamp("ns", "UTC")),
            -1207196810,
        ),
        ("string", pa.array(["iceberg"]), 1210000089),
        ("string", pa.array(["iceberg"], pa.large_string()), 1210000089),
        ("uuid", pa.array([VALUES["uuid"][2][0].bytes], pa.uuid()), 1488055340),
        ("fixed[4]", pa.array([b"\x00\x01\x02\x03"], pa.binary(4)), -188683207),
        ("binary", pa.array([b"\x00\x01\x02\x03"]), -188683207),
        ("binary", pa.array([b"\x00\x01\x02\x03"], pa.large_binary()), -188683207),
    ],
)
def test_buckets_are_the_specification_s(kind: str, value: pa.Array, hashed: int) -> None:
    schema = Schema(NestedField(1, "x", kind))
    buckets = 2**31 - 1
    spec = PartitionSpec(PartitionField(1, 1000, parse_transform(f"bucket[{buckets}]"), "p"))
    rows = pa.table({"x": value})
    converted = RowConversion(schema, rows.schema).convert(rows.to_batches()[0])
    ((values, _),) = Partitioner(spec, schema).split(converted)
    assert values == ((hashed & 0x7FFF_FFFF) % buckets,)


def test_truncated_decimals_keep_all_their_digits() -> None:
    schema = Schema(NestedField(1, "x", "decimal(38,2)"))
    spec = PartitionSpec(PartitionField(1, 1000, parse_transform("truncate[10]"), "p"))
    rows = pa.table({"x": pa.array([Decimal(f"-{'1234567890' * 3}123456.78")])})
    converted = RowConversion(schema, rows.schema).convert(rows.to_batches()[0])
    ((values, _),) = Partitioner(spec, schema).split(converted)
    assert values == (Decimal(f"-{'1234567890' * 3}123456.80"),)


def test_a_truncated_decimal_that_its_type_cannot_have_is_refused(tmp_path: Path) -> None:
    fields = [{"name": "p", "source-id": 1, "transform": "truncate[1000]"}]
    metadata = metadata_of(tmp_path, [{"name": "x", "type": "decimal(5, 2)"}], fields=fields)
    fits = pa.table({"x": pa.array([Decimal("-990.00"), Decimal("999.99"), None])})
    assert len(write(metadata, fits)) == 3
    before = files_in(tmp_path)
    rows = pa.table({"x": pa.array([Decimal("-999.99"), Decimal("1.00")])})
    with pytest.raises(ValueError, match=r"makes the partition -1000.00 .* decimal\(5, 2\): give"):
        write(metadata, rows)
    assert files_in(tmp_path) == before


def test_times_outside_of_python_s_years_have_a_path(tmp_path: Path) -> None:
    columns = [{"name": "d", "type": "date"}, {"name": "t", "type": "timestamp"}]
    fields = [
        {"name": "d/", "source-id": 1, "transform": "identity"},
        {"name": "h", "source-id": 2, "transform": "hour"},
    ]
    days = pa.array([2**31 - 1], pa.int32()).view(pa.date32())
    times = pa.array([-(2**60)]).view(pa.timestamp("us"))
    (record,) = write(
        metadata_of(tmp_path, columns, fields=fields), pa.table({"d": days, "t": times})
    )
    assert "/d%2F=2147483647/h=-320255974/" in record.file_path


COLUMNS: list[dict[str, Any]] = [
    {"name": "id", "type": "long"},
    {"name": "p", "type": "string"},
    {"name": "ts", "type": "timestamp"},
    {"name": "s", "type": {"type": "struct", "fields": [
        {"id": 5, "name": "d", "type": "double", "required": False}]}},
]  # fmt: skip


def rows(count: int) -> pa.Table:
    return pa.table(
        {
            "id": range(count),
            "p": [None if i % 7 == 0 else f"p {i % 5}/é" for i in range(count)],
            "ts": pa.array([i * 3_600_000_000 for i in range(count)], pa.timestamp("us")),
            "s": [None if i % 3 == 0 else {"d": [math.nan, 1.5][i % 2]} for i in range(count)],
        }
    )


@pytest.mark.parametrize(("form", "threads"), [("table", 3), ("batches", 1), ("batches", 3)])
def test_each_file_has_the_rows_of_one_partition_in_their_order(
    tmp_path: Path, form: str, threads: int
) -> None:
    fields = [
        {"name": "p", "source-id": 2, "transform": "identity"},
        {"name": "day", "source-id": 3, "transform": "day"},
        {"name": "d", "source-id": 5, "transform": "identity"},
        {"name": "id_bucket", "source-id": 1, "transform": "bucket[3]"},
        {"name": "id_trunc", "source-id": 1, "transform": "truncate[1000]"},
        {"name": "gone", "source-id": 77, "transform": "void"},
    ]
    metadata = metadata_of(tmp_path, COLUMNS, fields=fields, spec_id=3)
    data = rows(36)
    given = data if form == "table" else iter(data.to_batches(max_chunksize=13))
    records = write(metadata, given, threads=threads)
    seen = set()
    ids = []
    for record in records:
        assert record.spec_id == 3
        found = read_parquet(record)
        p, day, d, bucket, truncated, gone = record.partition_values
        key = repr(record.partition_values)
        assert key not in seen
        seen.add(key)
        assert set(found["p"].to_pylist()) == {p}
        assert {ts.toordinal() - DAY.toordinal() for ts in found["ts"].to_pylist()} == {day}
        assert {repr(s and s["d"]) for s in found["s"].to_pylist()} == {repr(d)}
        apply = parse_transform("bucket[3]").transform(NestedField(1, "x", "long").field_type)
        assert {apply(i) for i in found["id"].to_pylist()} == {bucket}
        assert truncated == 0
        assert gone is None
        assert found["id"].to_pylist() == sorted(found["id"].to_pylist())
        ids += found["id"].to_pylist()
        path = record.file_path.split("/data/")[1]
        escaped = "null" if p is None else p.replace(" ", "+").replace("/", "%2F")
        assert path.startswith(
            f"p={escaped.replace('é', '%C3%A9')}/day={DAY.date() + dt.timedelta(day)}"
        )
    assert sorted(ids) == list(range(36))


@pytest.mark.parametrize("rows_at_once", [1, 7])
def test_nan_is_one_partition_and_minus_zero_another_than_zero(
    tmp_path: Path, rows_at_once: int
) -> None:
    columns = [{"name": "d", "type": "double"}]
    fields = [{"name": "d", "source-id": 1, "transform": "identity"}]
    bits = np.array([0.0, math.nan, -0.0, math.nan, 1.0, math.nan]).view(np.uint64)
    bits[3] |= 1  # another NaN
    values = pa.concat_arrays([pa.array(bits.view(np.float64)), pa.nulls(1, pa.float64())])
    data = pa.table({"d": values})
    batches = data.to_batches(max_chunksize=rows_at_once)
    metadata = metadata_of(tmp_path, columns, fields=fields)
    (whole,) = data.combine_chunks().to_batches()
    assert len(list(WritePlan(metadata).partitioner.split(whole))) == 5
    records = write(metadata, iter(batches))
    counts = {repr(record.partition[0]): record.record_count for record in records}
    assert counts == {"0.0": 1, "nan": 3, "-0.0": 1, "None": 1, "1.0": 1}


def test_a_table_of_dropped_fields_only_is_one_partition(tmp_path: Path) -> None:
    fields = [{"name": "p", "source-id": 2, "transform": "void"}]
    (record,) = write(metadata_of(tmp_path, COLUMNS, fields=fields), rows(10))
    assert record.partition_values == (None,)
    assert read_parquet(record)["id"].to_pylist() == list(range(10))


def test_a_transform_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    fields = [{"name": "p", "source-id": 2, "transform": "zorder"}]
    with pytest.raises(NotImplementedError, match="zorder"):
        write(metadata_of(tmp_path, COLUMNS, fields=fields), rows(10))
    fields = [{"name": "p", "source-id": 2, "transform": "day"}]
    with pytest.raises(ValueError, match="day"):
        write(metadata_of(tmp_path, COLUMNS, fields=fields), rows(10))
    fields = [{"name": "p", "source-id": 1, "transform": f"bucket[{2**31}]"}]
    with pytest.raises(ValueError, match="2147483647"):
        write(metadata_of(tmp_path, COLUMNS, fields=fields), rows(10))
    fields = [{"name": "p", "source-id": 99, "transform": "identity"}]
    with pytest.raises(ValueError, match="99"):
        write(metadata_of(tmp_path, COLUMNS, fields=fields), rows(10))


def test_more_partitions_than_may_be_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_OPEN_FILES", 5)
    monkeypatch.setattr(module, "_MAX_WAITING", 10_000)
    open_now = most = 0
    begin, end = FileWriter.__init__, FileWriter.close

    def begin_counted(self: Any, *arguments: Any) -> None:
        nonlocal open_now, most
        begin(self, *arguments)
        open_now += 1
        most = max(most, open_now)

    def end_counted(self: Any) -> Any:
        nonlocal open_now
        open_now -= 1
        return end(self)

    monkeypatch.setattr(FileWriter, "__init__", begin_counted)
    monkeypatch.setattr(FileWriter, "close", end_counted)
    fields = [{"name": "b", "source-id": 1, "transform": "bucket[20]"}]
    columns = [{"name": "id", "type": "long"}]
    data = pa.table({"id": range(6000)})
    records = write(
        metadata_of(tmp_path, columns, fields=fields),
        iter(data.to_batches(max_chunksize=500)),
        threads=2,
    )
    assert {record.partition[0] for record in records} == set(range(20))
    assert len(records) > 20
    assert 1 < most <= 5 + 2
    found = pa.concat_tables(map(read_parquet, records))
    assert sorted(found["id"].to_pylist()) == list(range(6000))
    assert len(files_in(tmp_path)) == len(records)


# -- sort orders


def order(source_id: int, direction: str = "asc", nulls: str = "first", **more: str) -> Any:
    return {
        "source-id": source_id,
        "transform": "identity",
        "direction": direction,
        "null-order": f"nulls-{nulls}",
        **more,
    }


SORTED = ["double", "string", "boolean", "uuid", "decimal(9,2)", "date"]


# Each pair of two of them.
@pytest.mark.parametrize(
    ("kind", "direction", "nulls"),
    [
        (kind, direction, nulls)
        for number, kind in enumerate(SORTED)
        for direction, nulls in zip(
            ("asc", "desc"), ("first", "last") if number % 2 else ("last", "first"), strict=True
        )
    ],
)
def test_files_of_a_sorted_table_are_sorted(
    tmp_path: Path, kind: str, direction: str, nulls: str
) -> None:
    column = array_of(kind)
    indices = np.random.default_rng(3).permutation(np.repeat(np.arange(len(column)), 4))
    data = pa.table({"x": column.take(pa.array(indices)), "n": range(len(indices))})
    columns = [{"name": "x", "type": kind}, {"name": "n", "type": "long"}]
    (record,) = write(metadata_of(tmp_path, columns, order=[order(1, direction, nulls)]), data)
    assert record.sort_order_id == 1
    found = read_parquet(record).to_pylist()
    values = [row["x"] for row in found]
    null_count = sum(value is None for value in values)
    at_nulls = values[:null_count] if nulls == "first" else values[-null_count:]
    assert at_nulls == [None] * null_count

    def comparable(value: Any) -> Any:
        if isinstance(value, uuid.UUID):
            return value.bytes
        return (math.isnan(value), value) if isinstance(value, float) else value

    others = [comparable(value) for value in values if value is not None]
    numbers = [math.inf if o == o and isinstance(o, tuple) and o[0] else o for o in others]
    plain = [n[1] if isinstance(n, tuple) else n for n in numbers]
    assert plain == sorted(plain, reverse=direction == "desc")
    # Equal ones stay in their order.
    for _, group in itertools.groupby(found, key=lambda row: repr(row["x"])):
        if kind != "double":
            ns = [row["n"] for row in group]
            assert ns == sorted(ns)


def test_sorting_by_a_transform_and_several_columns(tmp_path: Path) -> None:
    fields = [{"name": "p", "source-id": 2, "transform": "identity"}]
    by = [order(3, "desc", transform="day"), order(1, "asc")]
    metadata = metadata_of(tmp_path, COLUMNS, fields=fields, order=by)
    data = rows(300).take(pa.array(np.random.default_rng(5).permutation(300)))
    records = write(metadata, iter(data.to_batches(max_chunksize=50)))
    assert len(records) == 6
    for record in records:
        found = [(-row["ts"].toordinal(), row["id"]) for row in read_parquet(record).to_pylist()]
        assert found == sorted(found)
        assert record.sort_order_id == 1


def test_each_file_of_a_sorted_stream_is_sorted(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    data = pa.table({"id": pa.array(random.integers(0, 2**62, 50_000))})
    properties = {"write.target-file-size-bytes": "100000"}
    columns = [{"name": "id", "type": "long"}]
    metadata = metadata_of(tmp_path, columns, order=[order(1)], properties=properties)
    records = write(metadata, iter(data.to_batches(max_chunksize=1000)), threads=2)
    assert len(records) >= 4
    ids = []
    for record in records:
        found = read_parquet(record)["id"].to_pylist()
        assert found == sorted(found)
        assert (record.lower_bounds or {})[1] == found[0].to_bytes(8, "little")
        ids += found
    assert sorted(ids) == sorted(data["id"].to_pylist())


def test_an_order_that_is_not_known_is_not_claimed(tmp_path: Path) -> None:
    metadata = metadata_of(tmp_path, COLUMNS, order=[order(1, transform="zorder")])
    (record,) = write(metadata, rows(10))
    assert record.sort_order_id == 0


@pytest.mark.parametrize("format_name", ["parquet", "avro"])
def test_a_column_of_the_type_unknown_sorts_and_partitions_as_null(
    tmp_path: Path, format_name: str
) -> None:
    columns = [
        {"name": "id", "type": "long"},
        {"name": "st", "type": {"type": "struct", "fields": [
            {"id": 5, "name": "u", "type": "unknown", "required": False},
            {"id": 6, "name": "n", "type": "long", "required": False},
        ]}},
        {"name": "u", "type": "unknown"},
    ]  # fmt: skip
    fields = [
        {"name": "p", "source-id": 3, "transform": "identity"},
        {"name": "q", "source-id": 6, "transform": "identity"},
    ]
    by = [order(5), order(3, "desc", "last"), order(1, "desc")]
    properties = {"write.format.default": format_name}
    data = pa.table({"id": [2, 3, 1], "st": [{"n": 8}, {"n": 8}, {"n": 8}]})
    metadata = metadata_of(tmp_path, columns, fields=fields, order=by, properties=properties)
    (record,) = write(metadata, data)
    assert (record.partition_values, record.sort_order_id) == ((None, 8), 1)
    if format_name == "parquet":
        # The file does not have the columns.
        rows = [{"id": n, "st": {"n": 8}} for n in (3, 2, 1)]
        assert read_parquet(record).to_pylist() == rows

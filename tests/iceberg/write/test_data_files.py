"""New data files from Arrow data: what is in them, their keys, their metrics; none after a failure.

What is right comes from Arrow's own reader, from PyIceberg's writing of the same rows in the clear,
and from the files that Java wrote.
"""

from __future__ import annotations

import datetime as dt
import itertools
import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from data_files import (
    NESTED,
    files_in,
    metadata_of,
    new_manager,
    parquet_file,
    read_avro,
    read_parquet,
    without_offsets,
    write,
)
from iceberg_tables import open_fixture
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import (
    PyArrowFileIO,
    UnsupportedPyArrowTypeException,
    _pyarrow_to_schema_without_ids,
    schema_to_pyarrow,
)
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from ags1 import KeyReuseError
from ags1.iceberg.formats.parquet_modules import verify_parquet
from ags1.iceberg.read.records import read_entries
from ags1.iceberg.storage.output import TableOutput
from ags1.iceberg.write.file_writer import FileWriter
from ags1.iceberg.write.writer_threads import WriterThreads

LONGS = [{"name": "id", "type": "long"}]
COLUMNS: list[dict[str, Any]] = [
    {"name": "id", "type": "long"},
    {"name": "s", "type": "string"},
    {"name": "d", "type": "double"},
]


def rows(count: int, start: int = 0) -> pa.Table:
    ids = range(start, start + count)
    return pa.table({"id": ids, "s": [f"n{i}" for i in ids], "d": [i / 2 for i in ids]})


# -- the files


@pytest.mark.parametrize("key_size", [16, 24, 32])
def test_a_table_is_one_file_that_arrow_reads_with_its_key(tmp_path: Path, key_size: int) -> None:
    data = rows(1000)
    (record,) = write(metadata_of(tmp_path, COLUMNS), data, manager=new_manager(key_size))
    assert read_parquet(record).equals(data)
    stored = Path(record.file_path).read_bytes()
    assert stored[:4] == b"PARE"
    assert record.key is not None
    assert record.key.aad_prefix is not None
    assert record.key.aad_prefix not in stored  # as Java has it
    assert len(record.key.encryption_key) == key_size
    assert record.key.file_length == record.file_size_in_bytes == os.path.getsize(record.file_path)
    assert (record.content, record.file_format, record.record_count) == (0, "PARQUET", 1000)
    assert (record.partition_values, record.spec_id, record.sort_order_id) == ((), 0, 0)
    assert record.split_offsets == (4,)
    assert record.first_row_id is None


def test_nothing_of_the_rows_is_in_the_clear(tmp_path: Path) -> None:
    word = "confidential-word"
    data = pa.table({"id": [1] * 50, "s": [word] * 50, "d": [0.5] * 50})
    (record,) = write(
        metadata_of(
            tmp_path, COLUMNS, properties={"write.parquet.compression-codec": "uncompressed"}
        ),
        data,
    )
    assert word.encode() not in Path(record.file_path).read_bytes()


def test_every_file_has_a_key_and_an_aad_prefix_of_its_own(tmp_path: Path) -> None:
    metadata = metadata_of(tmp_path, COLUMNS, properties={"write.target-file-size-bytes": "20000"})
    manager = new_manager()
    records = write(metadata, rows(20_000), manager=manager)
    records += write(metadata, rows(20_000), manager=manager)
    assert len(records) > 6
    keys = [record.key for record in records]
    assert len({key.encryption_key for key in keys if key}) == len(records)
    assert len({key.aad_prefix for key in keys if key}) == len(records)
    assert len({record.file_path for record in records}) == len(records)


def test_files_have_field_ids_and_no_key_in_their_repr(tmp_path: Path) -> None:
    columns: list[dict[str, Any]] = [
        {"id": 7, "name": "a", "type": "int"},
        {
            "id": 3,
            "name": "l",
            "type": {
                "type": "list",
                "element-id": 9,
                "element-required": False,
                "element": {
                    "type": "struct",
                    "fields": [{"id": 5, "name": "x", "type": "string", "required": False}],
                },
            },
        },
    ]
    data = pa.table({"a": pa.array([1], pa.int32()), "l": [[{"x": "y"}]]})
    (record,) = write(metadata_of(tmp_path, columns), data)
    schema = parquet_file(record).schema_arrow
    assert schema.field("a").metadata[b"PARQUET:field_id"] == b"7"
    element = schema.field("l").type.value_field
    assert element.metadata[b"PARQUET:field_id"] == b"9"
    assert element.type.field(0).metadata[b"PARQUET:field_id"] == b"5"
    assert record.key_bytes is not None
    assert record.key is not None
    for secret in (record.key_bytes, record.key.encryption_key):
        assert repr(secret) not in repr(record)


@pytest.mark.parametrize(
    "data",
    [
        rows(0),
        pa.RecordBatchReader.from_batches(rows(1).schema, []),
        [],
        iter([]),
        rows(3).slice(1, 0),
    ],
)
def test_no_rows_are_no_files(tmp_path: Path, data: Any) -> None:
    assert write(metadata_of(tmp_path, COLUMNS), data) == []
    assert not files_in(tmp_path)


@pytest.mark.parametrize("form", ["reader", "list", "generator", "batch"])
def test_every_form_of_arrow_data_is_taken(tmp_path: Path, form: str) -> None:
    data = rows(500)
    batches = data.to_batches(max_chunksize=500 if form == "batch" else 70)
    given: Any = {
        "reader": pa.RecordBatchReader.from_batches(data.schema, batches),
        "list": batches,
        "generator": (batch for batch in batches),
        "batch": batches[0],
    }[form]
    (record,) = write(metadata_of(tmp_path, COLUMNS), given)
    assert read_parquet(record).equals(data)


@pytest.mark.parametrize("kind", NESTED, ids=str)
@pytest.mark.parametrize("form", ["table", "batch", "reader", "partitioned", "avro"])
def test_empty_lists_whose_items_have_no_offsets(
    tmp_path: Path, kind: pa.DataType, form: str
) -> None:
    """Spark sends such batches, and Arrow's IPC reads them as they are."""
    data = without_offsets(kind)
    fields = [{"source-id": 1, "transform": "identity", "name": "id"}]
    metadata = metadata_of(
        tmp_path,
        assign_fresh_schema_ids(_pyarrow_to_schema_without_ids(data.schema)),
        fields=fields if form == "partitioned" else (),
        properties={"write.format.default": "avro" if form == "avro" else "parquet"},
    )
    given: Any = {"batch": data.to_batches(), "reader": data.to_reader()}.get(form, data)
    (record,) = write(metadata, given)
    if form == "avro":
        assert read_avro(record)[1] == [{"id": 1, "a": []}]
    else:
        assert read_parquet(record).to_pylist() == [{"id": 1, "a": []}]


@pytest.mark.parametrize("data", [None, 5, "rows", {"id": [1]}, [{"id": 1}], [rows(1)]])
def test_what_is_no_arrow_data_is_refused(tmp_path: Path, data: Any) -> None:
    with pytest.raises(TypeError):
        write(metadata_of(tmp_path, COLUMNS), data)


def test_batches_of_another_schema_are_refused_and_leave_no_file(tmp_path: Path) -> None:
    other = pa.table({"id": [1], "s": [2], "d": [1.0]}).to_batches()
    with pytest.raises(ValueError, match="schemas differ"):
        write(metadata_of(tmp_path, COLUMNS), [*rows(5).to_batches(), *other])
    assert not files_in(tmp_path)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_files_are_of_the_target_size(tmp_path: Path, threads: int) -> None:
    target = 200_000
    random = np.random.default_rng(1)
    data = pa.table({"id": pa.array(random.integers(0, 2**62, 150_000))})
    properties = {"write.target-file-size-bytes": str(target)}
    records = write(metadata_of(tmp_path, LONGS, properties=properties), data, threads=threads)
    sizes = [record.file_size_in_bytes for record in records]
    assert sum(sizes) > 5 * target
    assert max(sizes) < 1.3 * target
    # Each thread's last file is what was left.
    assert sum(size < 0.8 * target for size in sizes) <= threads
    assert pa.concat_tables(map(read_parquet, records)).equals(data)


def test_files_of_a_stream_are_of_the_target_size(tmp_path: Path) -> None:
    target = 200_000
    random = np.random.default_rng(1)
    data = pa.table({"id": pa.array(random.integers(0, 2**62, 150_000))})
    properties = {"write.target-file-size-bytes": str(target)}
    metadata = metadata_of(tmp_path, LONGS, properties=properties)
    records = write(metadata, iter(data.to_batches(max_chunksize=1000)), threads=2)
    sizes = [record.file_size_in_bytes for record in records]
    assert max(sizes) < 1.3 * target
    assert sum(size < 0.8 * target for size in sizes) <= 2
    found = pa.concat_tables(map(read_parquet, records))
    assert found.sort_by("id").equals(data.sort_by("id"))


def test_row_groups_are_as_large_as_the_table_says(tmp_path: Path) -> None:
    properties = {"write.parquet.row-group-limit": "300"}
    (record,) = write(metadata_of(tmp_path, COLUMNS, properties=properties), rows(1000))
    footer = parquet_file(record).metadata
    assert [footer.row_group(i).num_rows for i in range(4)] == [300, 300, 300, 100]
    assert record.split_offsets is not None
    assert len(record.split_offsets) == 4
    assert record.split_offsets[0] == 4
    assert list(record.split_offsets) == sorted(record.split_offsets)
    assert read_parquet(record).equals(rows(1000))


def test_pages_are_as_large_as_the_table_says_and_have_an_encrypted_index(tmp_path: Path) -> None:
    modules = {}
    for limit in (10, 100):
        properties = {
            "write.parquet.page-row-limit": str(limit),
            "write.parquet.row-group-limit": "500",
        }
        metadata = metadata_of(tmp_path / str(limit), COLUMNS, properties=properties)
        (record,) = write(metadata, rows(1000))
        stored = Path(record.file_path).read_bytes()
        assert record.key is not None
        # Each page is a header and a body, all of them authenticated, the indexes too.
        found = verify_parquet(lambda at, size: stored[at : at + size], len(stored), record.key)  # noqa: B023
        modules[limit] = found.modules
        assert found.padding_size == 0
        assert read_parquet(record).equals(rows(1000))
        footer = parquet_file(record).metadata
        chunks = [footer.row_group(i).column(j) for i in range(2) for j in range(3)]
        assert all(chunk.has_column_index and chunk.has_offset_index for chunk in chunks)
    assert modules[10] - modules[100] == 2 * 3 * (1000 // 10 - 1000 // 100)


def test_only_columns_with_repetitions_have_a_dictionary(tmp_path: Path) -> None:
    def field(number: int, kind: Any) -> Any:
        return {"id": number, "name": "x", "type": kind, "required": False}

    ids = list(range(1000))
    few = [i % 10 for i in ids]
    columns: dict[str, tuple[Any, pa.Array, bool]] = {
        "id": ("long", pa.array(ids), False),
        "text": ("string", pa.array([f"n{i}" for i in ids]), False),
        "uuid": ("uuid", pa.array([uuid.UUID(int=i).bytes for i in ids], pa.uuid()), False),
        "few": ("string", pa.array([f"n{i}" for i in few]), True),
        "few_uuid": ("uuid", pa.array([uuid.UUID(int=i).bytes for i in few], pa.uuid()), True),
        "no": ("double", pa.nulls(1000, pa.float64()), True),
        "struct": (
            {"type": "struct", "fields": [field(20, "long")]},
            pa.array([{"x": i} for i in few]),
            True,
        ),
        "list": (
            {"type": "list", "element-id": 21, "element": "long", "element-required": False},
            pa.array([[i] for i in few]),
            True,
        ),
        "map": (
            {
                "type": "map",
                "key-id": 22,
                "key": "string",
                "value-id": 23,
                "value": "long",
                "value-required": False,
            },
            pa.array([[("k", i)] for i in few], pa.map_(pa.string(), pa.int64())),
            True,
        ),
    }
    metadata = metadata_of(tmp_path, [{"name": n, "type": c[0]} for n, c in columns.items()])
    data = pa.table({name: values for name, (_, values, _) in columns.items()})
    (record,) = write(metadata, data)
    group = parquet_file(record).metadata.row_group(0)
    found = [group.column(i) for i in range(group.num_columns)]
    # The encodings are the footer's, whatever is said of where a dictionary is.
    assert {
        (c.path_in_schema.partition(".")[0], "RLE_DICTIONARY" in c.encodings) for c in found
    } == {(name, expected) for name, (_, _, expected) in columns.items()}
    assert read_parquet(record).equals(data)


@pytest.mark.parametrize("at_once", [1, 70, 299, 301, 1000])
def test_row_groups_of_a_stream_are_whole_however_it_comes(tmp_path: Path, at_once: int) -> None:
    metadata = metadata_of(tmp_path, COLUMNS, properties={"write.parquet.row-group-limit": "300"})
    (record,) = write(metadata, iter(rows(1000).to_batches(max_chunksize=at_once)), threads=1)
    footer = parquet_file(record).metadata
    assert [footer.row_group(i).num_rows for i in range(4)] == [300, 300, 300, 100]
    assert read_parquet(record).equals(rows(1000))


@pytest.mark.parametrize(
    ("codec", "stored"),
    [("zstd", "ZSTD"), ("snappy", "SNAPPY"), ("gzip", "GZIP"), ("uncompressed", "UNCOMPRESSED")],
)
def test_the_codec_is_the_table_s(tmp_path: Path, codec: str, stored: str) -> None:
    properties = {"write.parquet.compression-codec": codec}
    (record,) = write(metadata_of(tmp_path, COLUMNS, properties=properties), rows(100))
    assert parquet_file(record).metadata.row_group(0).column(0).compression == stored


@pytest.mark.parametrize(
    "properties",
    [
        {"write.parquet.compression-codec": "lzo"},
        {"write.parquet.compression-level": "high"},
        {"write.target-file-size-bytes": "0"},
        {"write.target-file-size-bytes": "1_000"},
        {"write.parquet.page-row-limit": " 5"},
        {"write.metadata.metrics.max-inferred-column-defaults": "much"},
        {"write.metadata.metrics.default": "some"},
        {"write.metadata.metrics.column.id": "truncate(0)"},
        {"write.avro.compression-codec": "lzo"},
    ],
)
def test_properties_that_say_nothing_are_refused(tmp_path: Path, properties: Any) -> None:
    """A number is as Java's ``Long.parseLong`` takes it."""
    (value,) = properties.values()
    with pytest.raises(ValueError, match=f"{re.escape(value)}|Truncation length"):
        write(metadata_of(tmp_path, COLUMNS, properties=properties), rows(1))
    assert not files_in(tmp_path)


@pytest.mark.parametrize("name", ["bloom-filter-max-bytes", "bloom-filter-enabled.column.id"])
def test_bloom_filters_are_not_written_and_that_is_told(tmp_path: Path, name: str) -> None:
    properties = {f"write.parquet.{name}": "true"}
    with pytest.warns(UserWarning, match=f"{name}.*not implemented"):
        write(metadata_of(tmp_path, COLUMNS, properties=properties), rows(1))


@pytest.mark.parametrize("zone", ["UTC", "Z", "Etc/UTC", "+00:00"])
def test_nanoseconds_are_cut_in_every_spelling_of_utc(
    tmp_path: Path, zone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = metadata_of(tmp_path, [{"name": "z", "type": "timestamptz"}])
    data = pa.table({"z": pa.array([1001], pa.timestamp("ns", zone))})
    monkeypatch.setenv("PYICEBERG_DOWNCAST_NS_TIMESTAMP_TO_US_ON_WRITE", "true")
    (record,) = write(metadata, data)
    assert read_parquet(record)["z"].cast(pa.int64()).to_pylist() == [1]
    monkeypatch.setenv("PYICEBERG_DOWNCAST_NS_TIMESTAMP_TO_US_ON_WRITE", "false")
    with pytest.raises((ValueError, TypeError)):
        write(metadata, data)


def test_orc_is_refused(tmp_path: Path) -> None:
    metadata = metadata_of(tmp_path, COLUMNS, properties={"write.format.default": "orc"})
    with pytest.raises(NotImplementedError, match="orc"):
        write(metadata, rows(1))


def test_a_location_map_is_followed(tmp_path: Path) -> None:
    metadata = metadata_of(Path("/nowhere/t"), COLUMNS)
    output = TableOutput(PyArrowFileIO(), {"/nowhere": str(tmp_path)})
    (record,) = write(metadata, rows(3), output=output)
    assert record.file_path.startswith("/nowhere/t/data/")
    assert files_in(tmp_path / "t/data")
    assert output.written == [record.file_path]


# -- what fits a table


def test_columns_are_found_by_name_and_never_by_the_ids_of_another_table(tmp_path: Path) -> None:
    ids = {"id": b"2", "s": b"1", "d": b"3"}  # swapped
    data = rows(3)
    fields = [f.with_metadata({b"PARQUET:field_id": ids[f.name]}) for f in data.schema]
    data = data.cast(pa.schema(fields)).select(["d", "s", "id"])
    (record,) = write(metadata_of(tmp_path, COLUMNS), data)
    assert read_parquet(record).equals(rows(3))


def test_missing_columns_have_their_write_default(tmp_path: Path) -> None:
    columns: list[dict[str, Any]] = [
        {"name": "id", "type": "long"},
        {"name": "a", "type": "int", "initial-default": 1, "write-default": 2},
        {"name": "b", "type": "string", "initial-default": "old"},
        {"name": "c", "type": "string", "required": True, "write-default": "c"},
        {"name": "d", "type": "date", "write-default": "2020-01-02"},
        {"name": "t", "type": "timestamptz", "write-default": "2020-01-02T03:04:05+00:00"},
        {"name": "u", "type": "uuid", "write-default": str(uuid.UUID(int=7))},
        {"name": "n", "type": "decimal(9,2)", "write-default": "1.50"},
        {"name": "x", "type": "double"},
    ]
    (record,) = write(metadata_of(tmp_path, columns), pa.table({"id": [1, 2]}))
    assert read_parquet(record).to_pylist()[1] == {
        "id": 2,
        "a": 2,
        "b": None,
        "c": "c",
        "d": dt.date(2020, 1, 2),
        "t": dt.datetime(2020, 1, 2, 3, 4, 5, tzinfo=dt.timezone.utc),
        "u": uuid.UUID(int=7),
        "n": Decimal("1.50"),
        "x": None,
    }


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        ("long", pa.array([1, -2, None], pa.int8())),
        ("long", pa.array([1, 2, None], pa.uint32())),
        ("int", pa.array([1, 2, None], pa.uint32())),
        ("long", pa.array([1, 2, None], pa.uint64())),
        ("double", pa.array([1, 0.5, None], pa.float32())),
        ("decimal(20,2)", pa.array([Decimal("1.25"), None], pa.decimal128(9, 2))),
        ("timestamp", pa.array([1, None], pa.timestamp("s"))),
        ("timestamptz", pa.array([1, None], pa.timestamp("ms", "+00:00"))),
        ("timestamp_ns", pa.array([1, None], pa.timestamp("ns"))),
        ("timestamptz_ns", pa.array([1, None], pa.timestamp("ns", "UTC"))),
        ("string", pa.array(["a", None]).dictionary_encode()),
        ("string", pa.array(["a", None], pa.string_view())),
        ("string", pa.array(["a", None], pa.large_string())),
        ("binary", pa.array([b"a", None], pa.binary_view())),
        ("string", pa.nulls(2)),
        ("fixed[2]", pa.array([b"ab", None], pa.binary(2))),
    ],
)
def test_types_are_promoted(tmp_path: Path, kind: str, given: pa.Array) -> None:
    (record,) = write(metadata_of(tmp_path, [{"name": "x", "type": kind}]), pa.table({"x": given}))
    found = parquet_file(record)
    wanted = Schema(NestedField(1, "x", kind)).find_type("x")
    stored = found.schema_arrow.field(0).type
    large = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}
    assert large.get(stored, stored) == schema_to_pyarrow(wanted)
    assert found.read().column(0).to_pylist() == given.to_pylist()


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        ("int", pa.array([1])),
        ("int", pa.array([2**31], pa.uint32())),
        ("long", pa.array([2**63], pa.uint64())),
        ("float", pa.array([1.0])),
        ("string", pa.array([1])),
        ("timestamp", pa.array([1], pa.timestamp("us", "UTC"))),
        ("timestamptz", pa.array([1], pa.timestamp("us"))),
        ("timestamp", pa.array([1], pa.timestamp("ns"))),
        ("timestamp", pa.array([2**62], pa.timestamp("s"))),
        ("decimal(9,2)", pa.array([Decimal("1.25")], pa.decimal128(20, 2))),
        ("date", pa.array([1], pa.date64())),
    ],
)
def test_what_would_change_the_values_is_refused(
    tmp_path: Path, kind: str, given: pa.Array
) -> None:
    with pytest.raises((ValueError, UnsupportedPyArrowTypeException)):
        write(metadata_of(tmp_path, [{"name": "x", "type": kind}]), pa.table({"x": given}))
    assert not files_in(tmp_path)


def test_unknown_and_double_columns_are_refused(tmp_path: Path) -> None:
    metadata = metadata_of(tmp_path, LONGS)
    with pytest.raises(ValueError, match="more columns: other"):
        write(metadata, pa.table({"id": [1], "other": [2]}))
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["id", "id"])
    with pytest.raises(ValueError, match="same name"):
        write(metadata, twice)


def test_a_required_column_has_to_be_there_and_without_nulls(tmp_path: Path) -> None:
    metadata = metadata_of(tmp_path, [{"name": "id", "type": "long", "required": True}])
    with pytest.raises(ValueError, match="id"):
        write(metadata, pa.table({"id": pa.array([1])}))  # may have nulls, says its schema
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    lying = pa.Table.from_arrays([pa.array([1, None])], schema=schema)
    with pytest.raises(ValueError, match="'id' is required"):
        write(metadata, lying)
    (record,) = write(metadata, pa.Table.from_arrays([pa.array([1, 2])], schema=schema))
    assert record.record_count == 2


NESTED = Schema(
    NestedField(1, "id", LongType()),
    NestedField(
        2,
        "s",
        StructType(
            NestedField(3, "x", IntegerType()),
            NestedField(4, "y", StringType(), required=True),
            NestedField(5, "new", IntegerType(), write_default=9),
        ),
    ),
    NestedField(
        6, "l", ListType(7, StructType(NestedField(8, "z", DoubleType())), element_required=False)
    ),
    NestedField(9, "m", MapType(10, StringType(), 11, ListType(12, LongType(), False), False)),
)
NESTED_ROWS: list[dict[str, Any]] = [
    {"id": 1, "s": {"x": 1, "y": "a"}, "l": [{"z": 1.0}, None], "m": [("k", [1, None])]},
    {"id": 2, "s": None, "l": None, "m": None},
    {"id": 3, "s": {"x": None, "y": "b"}, "l": [], "m": []},
    {"id": 4, "s": {"x": 4, "y": "c"}, "l": [{"z": None}], "m": [("a", None), ("b", [])]},
]
NESTED_KIND = pa.schema(
    [
        ("id", pa.int32()),
        (
            "s",
            pa.struct([pa.field("y", pa.string(), nullable=False), pa.field("x", pa.int16())]),
        ),
        ("l", pa.large_list(pa.struct([("z", pa.float32())]))),
        ("m", pa.map_(pa.string(), pa.list_(pa.int64()))),
    ]
)


@pytest.mark.parametrize("start", [0, 1, 2])
def test_nested_values_keep_their_nulls(tmp_path: Path, start: int) -> None:
    data = pa.Table.from_pylist(NESTED_ROWS, NESTED_KIND).slice(start)
    (record,) = write(metadata_of(tmp_path, NESTED), data)
    expected = []
    for row in NESTED_ROWS[start:]:
        struct = row["s"] and {**row["s"], "new": 9}
        expected.append({**row, "s": struct})
    assert read_parquet(record).to_pylist() == expected


def test_names_that_avro_does_not_allow_are_written_as_iceberg_does(tmp_path: Path) -> None:
    columns = [{"name": "a b", "type": "long"}, {"name": "1.x", "type": "long"}]
    data = pa.table({"a b": [1], "1.x": [2]})
    (record,) = write(metadata_of(tmp_path, columns), data)
    assert read_parquet(record).column_names == ["a_x20b", "_1_x2Ex"]
    assert record.lower_bounds == {1: (1).to_bytes(8, "little"), 2: (2).to_bytes(8, "little")}


# -- metrics, compared with those of others


ALL_TYPES = Schema(
    NestedField(1, "bool", BooleanType()),
    NestedField(2, "int", IntegerType()),
    NestedField(3, "long", LongType()),
    NestedField(4, "float", FloatType()),
    NestedField(5, "double", DoubleType()),
    NestedField(6, "date", DateType()),
    NestedField(7, "time", TimeType()),
    NestedField(8, "ts", TimestampType()),
    NestedField(9, "tz", TimestamptzType()),
    NestedField(10, "text", StringType()),
    NestedField(11, "uuid", UUIDType()),
    NestedField(12, "fixed", FixedType(3)),
    NestedField(13, "bytes", BinaryType()),
    NestedField(14, "d9", DecimalType(9, 2)),
    NestedField(15, "d18", DecimalType(18, 2)),
    NestedField(16, "d38", DecimalType(38, 2)),
)


def all_types(count: int) -> pa.Table:
    def some(make: Any, kind: pa.DataType | None = None) -> pa.Array:
        values = [None if i % 5 == 3 else make(i - count // 2) for i in range(count)]
        return pa.array(values, kind)

    day = dt.datetime(2020, 1, 1)
    return pa.table(
        {
            "bool": some(lambda i: i % 2 == 0),
            "int": some(lambda i: i, pa.int32()),
            "long": some(lambda i: i << 40),
            "float": some(lambda i: i / 3, pa.float32()),
            "double": some(lambda i: i / 3),
            "date": some(lambda i: (day + dt.timedelta(days=i * 1000)).date()),
            "time": some(lambda i: dt.time(abs(i) % 24, 5, 6, 7), pa.time64("us")),
            "ts": some(lambda i: day + dt.timedelta(hours=i * 9999), pa.timestamp("us")),
            "tz": some(lambda i: day + dt.timedelta(hours=i * 9999), pa.timestamp("us", "UTC")),
            "text": some(lambda i: f"{'é' * (i % 30)}{i}"),
            "uuid": pa.array(
                [uuid.UUID(int=i << 100).bytes if i % 5 else None for i in range(count)], pa.uuid()
            ),
            "fixed": some(lambda i: (i & 0xFFFFFF).to_bytes(3, "big"), pa.binary(3)),
            "bytes": some(lambda i: bytes([i & 0xFF]) * 20, pa.binary()),
            "d9": some(lambda i: Decimal(i * 129) / 100, pa.decimal128(9, 2)),
            "d18": some(lambda i: Decimal(i * 129) / 100, pa.decimal128(18, 2)),
            "d38": some(lambda i: Decimal(i * 129) / 100, pa.decimal128(38, 2)),
        }
    )


def plain_twin(tmp_path: Path, schema: Schema, data: pa.Table, **properties: str) -> Any:
    """What PyIceberg says of the data file that it writes for the same rows."""
    catalog = SqlCatalog("p", uri="sqlite://", warehouse=f"file://{tmp_path}/plain")
    catalog.create_namespace("n")
    table = catalog.create_table("n.t", schema, properties=properties)
    table.append(data)
    (task,) = table.scan().plan_files()
    return task.file


@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"write.metadata.metrics.default": "counts"},
        {"write.metadata.metrics.default": "none", "write.metadata.metrics.column.text": "full"},
        {
            "write.metadata.metrics.default": "truncate(3)",
            "write.metadata.metrics.column.int": "none",
        },
        {"write.metadata.metrics.default": "full"},
        {"write.parquet.row-group-limit": "100"},
    ],
)
def test_metrics_are_those_that_pyiceberg_has_for_the_same_rows(
    tmp_path: Path, properties: dict[str, str]
) -> None:
    data = all_types(200)
    (record,) = write(metadata_of(tmp_path, ALL_TYPES, properties=properties), data)
    twin = plain_twin(tmp_path, ALL_TYPES, data, **properties)
    assert record.record_count == twin.record_count
    assert dict(record.value_counts or {}) == dict(twin.value_counts)
    assert dict(record.null_value_counts or {}) == dict(twin.null_value_counts)
    assert dict(record.lower_bounds or {}) == dict(twin.lower_bounds)
    assert dict(record.upper_bounds or {}) == dict(twin.upper_bounds)
    # Java has sizes of the columns that it has metrics of; PyIceberg of all.
    assert set(record.column_sizes or {}) == set(record.value_counts or {})


def test_metrics_are_those_that_java_had_for_the_same_rows(tmp_path: Path) -> None:
    table = open_fixture("parquet_plain")
    snapshot = table.current_snapshot()
    assert snapshot is not None
    for manifest in snapshot.manifests(table.io):
        for entry in read_entries(manifest, table.io):
            java = entry.file
            start = int.from_bytes((java.lower_bounds or {})[1], "little")
            data = (
                table.scan()
                .to_arrow()
                .filter((pc.field("id") >= start) & (pc.field("id") < start + java.record_count))
            )
            schema = table.schema()
            cast = data.cast(schema_to_pyarrow(schema, include_field_ids=False))
            (ours,) = write(metadata_of(tmp_path, schema), cast)
            for name in (
                "record_count",
                "value_counts",
                "null_value_counts",
                "nan_value_counts",
                "upper_bounds",
                "split_offsets",
                "sort_order_id",
            ):
                found, expected = ours.fields()[name], java.fields()[name]
                if isinstance(found, dict):
                    assert dict(found) == dict(expected), name
                else:
                    assert found == expected, name
            lower = dict(java.lower_bounds or {})
            # Arrow's footers have -0.0 for a smallest 0.0.
            assert {**(ours.lower_bounds or {}), 3: None} == {**lower, 3: None}
            assert set(ours.column_sizes or {}) == set(dict(java.column_sizes or {}))


def test_nan_is_counted_and_no_bound(tmp_path: Path) -> None:
    columns: list[dict[str, Any]] = [
        {"name": "f", "type": "float"},
        {"name": "all", "type": "double"},
        {"name": "s", "type": {"type": "struct", "fields": [
            {"id": 4, "name": "d", "type": "double", "required": False}]}},
    ]  # fmt: skip
    nan = math.nan
    data = pa.table(
        {
            "f": pa.array([nan, 1, None, nan, -2], pa.float32()),
            "all": [nan, nan, nan, nan, None],
            "s": [{"d": nan}, None, {"d": 2.0}, {"d": None}, {"d": 1.0}],
        }
    )
    (record,) = write(metadata_of(tmp_path, columns), data)
    assert record.nan_value_counts == {1: 2, 2: 4, 4: 1}
    assert record.null_value_counts == {1: 1, 2: 1, 4: 2}
    assert record.value_counts == {1: 5, 2: 5, 4: 5}
    assert set(record.lower_bounds or {}) == {1, 4}
    assert (record.upper_bounds or {})[1] == np.float32(1).tobytes()
    assert (record.lower_bounds or {})[4] == np.float64(1).tobytes()


def test_bounds_hold_for_values_that_are_too_long_for_a_footer(tmp_path: Path) -> None:
    """PyIceberg takes the bounds of the other row groups for the file's, and then finds no "z"."""
    properties = {"write.parquet.row-group-limit": "2"}
    data = pa.table({"s": ["b", "c", "a" * 5000, "z" * 5000, "d", "e"]})
    metadata = metadata_of(tmp_path, [{"name": "s", "type": "string"}], properties=properties)
    (record,) = write(metadata, data)
    assert record.lower_bounds == {1: b"a" * 16}
    assert record.upper_bounds == {1: b"z" * 15 + b"{"}


@pytest.mark.parametrize(
    ("value", "upper"),
    [
        ("a" * 15 + "\ud7ff" + "x", "a" * 15 + "\ue000"),  # no surrogates
        ("a" * 15 + "\U0010ffff" + "x", "a" * 14 + "b"),
        ("\U0010ffff" * 17, None),
        ("é" * 16, "é" * 16),
        ("é" * 17, "é" * 15 + "ê"),
    ],
)
def test_upper_bounds_of_text_are_cut_upwards(
    tmp_path: Path, value: str, upper: str | None
) -> None:
    metadata = metadata_of(tmp_path, [{"name": "s", "type": "string"}])
    (record,) = write(metadata, pa.table({"s": [value]}))
    assert record.lower_bounds == {1: value[:16].encode()}
    assert record.upper_bounds == ({} if upper is None else {1: upper.encode()})


def test_upper_bounds_of_bytes_are_cut_upwards(tmp_path: Path) -> None:
    metadata = metadata_of(tmp_path, [{"name": "b", "type": "binary"}])
    (record,) = write(metadata, pa.table({"b": [b"\x01" + b"\xff" * 20]}))
    assert record.upper_bounds == {1: b"\x02"}
    (record,) = write(metadata, pa.table({"b": [b"\xff" * 20]}))
    assert record.upper_bounds == {}


def test_only_the_first_hundred_columns_have_metrics_by_default(tmp_path: Path) -> None:
    names = [f"c{i}" for i in range(103)]
    order = [
        {"source-id": 102, "transform": "identity", "direction": "asc", "null-order": "nulls-first"}
    ]
    metadata = metadata_of(tmp_path, [{"name": n, "type": "long"} for n in names], order=order)
    (record,) = write(metadata, pa.table({n: [1] for n in names}))
    # And the sorted one.
    assert set(record.value_counts or {}) == {*range(1, 101), 102}


def test_lists_and_maps_have_no_metrics_inside(tmp_path: Path) -> None:
    data = pa.Table.from_pylist(NESTED_ROWS, NESTED_KIND)
    (record,) = write(metadata_of(tmp_path, NESTED), data)
    assert set(record.value_counts or {}) == {1, 3, 4, 5}
    assert set(record.lower_bounds or {}) == {1, 3, 4, 5}


# -- when something fails


class Trouble(Exception):
    pass


def stream_of(count: int) -> Any:
    random = np.random.default_rng(1)
    for _ in range(count):
        yield pa.record_batch({"id": pa.array(random.integers(0, 2**62, 5000))})


def failing(count: int, error: type[BaseException] = Trouble) -> Any:
    yield from stream_of(count)
    raise error


@pytest.mark.parametrize("format_name", ["parquet", "avro"])
@pytest.mark.parametrize("error", [Trouble, KeyboardInterrupt])
@pytest.mark.parametrize("threads", [1, 3])
def test_when_the_data_fails_no_file_is_left(
    tmp_path: Path, format_name: str, error: type[BaseException], threads: int
) -> None:
    properties = {"write.target-file-size-bytes": "50000", "write.format.default": format_name}
    output = TableOutput(PyArrowFileIO())
    before = threading.active_count()
    # What is raised keeps the frames and all that is in them: no garbage collector cleans up.
    with pytest.raises(error) as raised:
        write(
            metadata_of(tmp_path, LONGS, properties=properties),
            failing(20, error),
            output=output,
            threads=threads,
        )
    assert not files_in(tmp_path)
    assert raised.traceback
    assert output.written == []
    assert threading.active_count() == before


class SlowWriter:
    """A writer that takes its time, and then fails if ``error`` is given."""

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error

    def write(self, rows: pa.Table) -> None:
        time.sleep(0.2)
        if self._error is not None:
            raise self._error


def test_work_that_is_dropped_after_an_error_is_not_waited_for() -> None:
    threads = WriterThreads(1, 1 << 20)
    failing: Any = SlowWriter(Trouble())
    other: Any = SlowWriter()
    data = pa.table({"id": [1, 2, 3]})
    for writer in (failing, other, other):
        threads.write(writer, data)
    with pytest.raises(Trouble):
        threads.join()
    # Nobody will report that the dropped work is done.
    threads.stop()
    for _ in range(3):
        with pytest.raises(Trouble):
            threads.join()
    with pytest.raises(Trouble):
        threads.write(other, data)


@pytest.mark.parametrize("nth", [0, 1, 5])
def test_when_a_thread_fails_no_file_is_left(
    tmp_path: Path, nth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = itertools.count()
    write_whole = FileWriter.write

    def write_some(self: Any, rows: pa.Table) -> None:
        if next(count) == nth:
            raise OSError(28, "No space left on device")
        write_whole(self, rows)

    monkeypatch.setattr(FileWriter, "write", write_some)
    properties = {"write.target-file-size-bytes": "50000"}
    with pytest.raises(OSError, match="No space"):
        write(metadata_of(tmp_path, LONGS, properties=properties), stream_of(10), threads=2)
    assert not files_in(tmp_path)


def test_when_closing_fails_no_file_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Any, footer: Any) -> None:
        raise ValueError("no footer")

    monkeypatch.setattr("ags1.iceberg.write.metrics.MetricsCollector.add_parquet_footer", fail)
    with pytest.raises(ValueError, match="no footer"):
        write(metadata_of(tmp_path, COLUMNS), rows(10))
    assert not files_in(tmp_path)


def test_ctrl_c_while_threads_write_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_whole = FileWriter.write
    main = threading.main_thread().ident
    assert main is not None

    def write_and_interrupt(self: Any, rows: pa.Table) -> None:
        write_whole(self, rows)
        signal.pthread_kill(main, signal.SIGINT)

    monkeypatch.setattr(FileWriter, "write", write_and_interrupt)
    with pytest.raises(KeyboardInterrupt):
        write(metadata_of(tmp_path, COLUMNS), rows(1000), threads=2)
    assert not files_in(tmp_path)


def test_ctrl_c_while_a_thread_starts_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The executor does not know such a thread, so it does not wait for it."""
    begun, ended = threading.Event(), threading.Event()
    start, stop, write_whole = threading.Thread.start, WriterThreads.stop, FileWriter.write
    abort = FileWriter.abort
    aborted: list[bool] = []

    def start_and_interrupt(self: threading.Thread) -> None:
        start(self)
        if self.name.startswith("ags1-data-file"):
            raise KeyboardInterrupt

    def stop_later(self: WriterThreads) -> None:
        assert begun.wait(10)
        stop(self)

    def write_slowly(self: FileWriter, rows: pa.Table) -> None:
        begun.set()
        time.sleep(0.2)
        write_whole(self, rows)
        ended.set()

    def abort_noted(self: FileWriter) -> None:
        # During a write, Arrow would crash.
        aborted.append(ended.is_set())
        abort(self)

    monkeypatch.setattr(FileWriter, "abort", abort_noted)
    monkeypatch.setattr(threading.Thread, "start", start_and_interrupt)
    monkeypatch.setattr(WriterThreads, "stop", stop_later)
    monkeypatch.setattr(FileWriter, "write", write_slowly)
    with pytest.raises(KeyboardInterrupt):
        write(metadata_of(tmp_path, COLUMNS), rows(1000), threads=2)
    for thread in threading.enumerate():
        if thread.name.startswith("ags1-data-file"):
            thread.join(10)
    assert aborted == [True]
    assert not files_in(tmp_path)


def test_a_key_of_a_failed_file_is_not_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = new_manager()
    made: list[bytes] = []
    new_file_key = manager.new_file_key

    def noted() -> Any:
        key = new_file_key()
        made.append(key.encryption_key)
        return key

    def fail(self: Any, rows: pa.Table) -> None:
        raise Trouble

    monkeypatch.setattr(manager, "new_file_key", noted)
    metadata = metadata_of(tmp_path, COLUMNS)
    with monkeypatch.context() as broken:
        broken.setattr(FileWriter, "write", fail)
        with pytest.raises(Trouble):
            write(metadata, rows(10), manager=manager)
    (record,) = write(metadata, rows(10), manager=manager)
    assert record.key is not None
    assert len(set(made)) == 2
    assert made[1] == record.key.encryption_key


# -- memory


@pytest.mark.slow
def test_a_stream_larger_than_memory_is_written_in_bounded_memory(tmp_path: Path) -> None:
    """3 GiB of rows, of which at most half a GiB may wait."""
    block = os.urandom(1 << 20)
    batch = pa.record_batch({"id": pa.array([1] * 32), "s": pa.array([block.hex()] * 32)})
    count = 3 * (1 << 30) // batch.nbytes
    start = pa.total_allocated_bytes()
    most = 0

    def stream() -> Any:
        nonlocal most
        for _ in range(count):
            most = max(most, pa.total_allocated_bytes() - start)
            yield pa.record_batch(
                {"id": batch[0], "s": pc.binary_join_element_wise(batch[1], "x", "")}
            )

    columns = [{"name": "id", "type": "long"}, {"name": "s", "type": "string"}]
    records = write(metadata_of(tmp_path, columns), stream(), threads=2)
    assert sum(record.record_count for record in records) == 32 * count
    assert most < 1 << 30


# -- copies of the process

SAME_PID = """
import ctypes, io, os, platform, signal, sys
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.parquet.encryption import create_encryption_properties
import ags1
import re
from ags1.engine._arrow_random import draw_from_kernel

def begun(km):
    file = io.BytesIO()
    properties = create_encryption_properties(km.encryption_key, aad_prefix=km.aad_prefix)
    writer = pq.ParquetWriter(file, ROWS.schema, encryption_properties=properties)
    writer.write_table(ROWS)
    return file, writer

def nonces(file, writer):
    writer.write_table(ROWS)
    writer.close()
    data, found, at = file.getvalue(), [], 4
    while at < len(data) - 8 - int.from_bytes(data[-8:-4], "little"):
        found.append(data[at + 4 : at + 16])
        at += 4 + int.from_bytes(data[at : at + 4], "little")
    return b"".join(found[len(found) // 2 :])

ROWS = pa.table({"a": [1, 2]})
if not draw_from_kernel():
    sys.exit(78)
file = begun(ags1.KeyMetadata.generate())
libc = ctypes.CDLL(None)
if libc.unshare(0x20000000):
    sys.exit(77)
read, write = os.pipe()
if not os.fork():
    os.write(write, nonces(*file) + b"|" + nonces(*begun(ags1.KeyMetadata.generate())))
    os._exit(os.getpid() != 1)
mine = nonces(*file) + b"|" + nonces(*begun(ags1.KeyMetadata.generate()))
assert os.waitstatus_to_exitcode(os.wait()[1]) == os.getpid() - 1 == 0
theirs = os.read(read, 65536)
assert len(mine) == len(theirs) > 48 and not {*zip(mine, mine[1:], mine[2:], mine[3:])} & {
    *zip(theirs, theirs[1:], theirs[2:], theirs[3:])}
print("different")
"""


def test_arrow_draws_other_nonces_in_a_copy_of_the_process() -> None:
    # Parent and child both are process 1 of a namespace, and OpenSSL goes by that number.
    command = ["unshare", "-r", "--pid", "--fork", "--mount-proc", sys.executable, "-c", SAME_PID]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 77 or done.stderr.startswith("unshare"):
        pytest.skip("namespaces may not be made here")
    if done.returncode == 78:
        pytest.skip("this Arrow shares its OpenSSL with others")
    assert (done.stdout, done.stderr) == ("different\n", "")


@pytest.mark.parametrize("file_format", ["parquet", "avro"])
def test_a_forked_child_does_not_continue_a_file(
    tmp_path: Path,
    file_format: str,
    in_a_fork: Callable[[Callable[[], object]], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_rows = FileWriter.write

    def write_and_fork(self: FileWriter, part: pa.Table) -> None:
        write_rows(self, part)

        def child() -> None:
            for work in (lambda: write_rows(self, part), self.close):
                with pytest.raises(KeyReuseError, match="parent"):
                    work()
            self.abort()

        in_a_fork(child)

    monkeypatch.setattr(FileWriter, "write", write_and_fork)
    properties = {"write.format.default": file_format}
    (file,) = write(metadata_of(tmp_path, COLUMNS, properties=properties), rows(100))
    read = read_parquet(file).num_rows if file_format == "parquet" else len(read_avro(file)[1])
    assert read == 100

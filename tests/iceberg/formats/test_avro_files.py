"""New Avro data files: fastavro reads them, and schema, header and blocks are Java's."""

from __future__ import annotations

import datetime as dt
import io
import math
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from data_files import metadata_of, read_avro, write
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField

import ags1
from ags1.columns.avro.files import read_avro as read_avro_batches
from ags1.columns.avro.schema import avro_schema

from ..write.test_data_files import ALL_TYPES, NESTED, NESTED_KIND, NESTED_ROWS, all_types

AVRO = {"write.format.default": "avro"}
COLUMNS = [{"name": "id", "type": "long"}, {"name": "s", "type": "string"}]


def rows(count: int) -> pa.Table:
    return pa.table({"id": range(count), "s": [f"name {i}" * 5 for i in range(count)]})


@pytest.mark.parametrize("codec", ["uncompressed", "gzip", "snappy", "zstd", None])
def test_a_table_is_one_file_that_fastavro_reads(tmp_path: Path, codec: str | None) -> None:
    properties = AVRO if codec is None else {**AVRO, "write.avro.compression-codec": codec}
    data = rows(500)
    (record,) = write(metadata_of(tmp_path, COLUMNS, properties=properties), data)
    header, found = read_avro(record)
    assert found == data.to_pylist()
    names = {"uncompressed": "null", "snappy": "snappy", "zstd": "zstandard"}
    assert header["avro.codec"] == names.get(codec or "", "deflate")
    stored = Path(record.file_path).read_bytes()
    assert stored[:8] == b"AGS1" + (1 << 20).to_bytes(4, "little")
    assert record.file_path.endswith(".avro")
    assert record.key is not None
    assert record.key.file_length == record.file_size_in_bytes == len(stored)
    assert (record.file_format, record.record_count) == ("AVRO", 500)
    assert record.split_offsets is None
    assert record.fields()["column_sizes"] is None


def test_the_level_is_the_table_s(tmp_path: Path) -> None:
    sizes = []
    for level in ("1", "9"):
        properties = {**AVRO, "write.avro.compression-level": level}
        (record,) = write(metadata_of(tmp_path, COLUMNS, properties=properties), rows(2000))
        sizes.append(record.file_size_in_bytes)
    assert sizes[1] < sizes[0]


def test_blocks_are_of_the_size_of_java_s(tmp_path: Path) -> None:
    properties = {**AVRO, "write.avro.compression-codec": "uncompressed"}
    (record,) = write(metadata_of(tmp_path, COLUMNS, properties=properties), rows(8000))
    with ags1.open(record.file_path, "rb", record.key) as file:
        blocks = list(fastavro.block_reader(io.BytesIO(file.read())))
    sizes = [len(block.bytes_.getvalue()) for block in blocks]  # type: ignore[attr-defined]
    assert len(sizes) > 4
    assert all(50_000 < size < 80_000 for size in sizes[1:-1])


def test_header_and_schema_are_those_of_java(tmp_path: Path) -> None:
    """As Java 1.12.0 wrote the data files of the fixture ``avro_part``, whose rows Spark knew to
    have no nulls."""
    columns = [
        {"name": "id", "type": "long", "required": True},
        {"name": "p", "type": "string", "required": True},
        {"name": "payload", "type": "string", "required": True},
    ]
    schema = pa.schema(
        [
            pa.field(name, kind, nullable=False)
            for name, kind in (("id", pa.int64()), ("p", pa.string()), ("payload", pa.string()))
        ]
    )
    data = pa.Table.from_arrays([pa.array([1]), pa.array(["a"]), pa.array(["b"])], schema=schema)
    metadata = metadata_of(tmp_path, columns, properties=AVRO)
    metadata["schemas"][0]["fields"] = [
        {key: field[key] for key in ("id", "name", "required", "type")}
        for field in metadata["schemas"][0]["fields"]
    ]
    (record,) = write(metadata, data)
    header, found = read_avro(record)
    assert found == [{"id": 1, "p": "a", "payload": "b"}]
    assert header["avro.schema"] == (
        '{"type":"record","name":"table","fields":[{"name":"id","type":"long","field-id":1},'
        '{"name":"p","type":"string","field-id":2},{"name":"payload","type":"string","field-id":3}'
        "]}"
    )
    assert header["iceberg.schema"] == (
        '{"type":"struct","schema-id":0,"fields":[{"id":1,"name":"id","required":true,'
        '"type":"long"},{"id":2,"name":"p","required":true,"type":"string"},{"id":3,"name":'
        '"payload","required":true,"type":"string"}]}'
    )


def test_schemas_are_java_s() -> None:
    """After ``TypeToSchema`` of Iceberg's Java."""
    schema = Schema.model_validate(
        {
            "type": "struct",
            "schema-id": 0,
            "fields": [
                {"id": 1, "name": "u", "required": False, "type": "uuid", "doc": "who"},
                {"id": 2, "name": "v", "required": True, "type": "uuid"},
                {"id": 3, "name": "d", "required": True, "type": "decimal(9, 2)"},
                {"id": 4, "name": "f", "required": True, "type": "fixed[3]"},
                {"id": 5, "name": "a b", "required": False, "type": "timestamptz_ns"},
                {"id": 6, "name": "m", "required": False, "type": {
                    "type": "map", "key-id": 7, "key": "string",
                    "value-id": 8, "value-required": False, "value": "int"}},
                {"id": 9, "name": "n", "required": False, "type": {
                    "type": "map", "key-id": 10, "key": "int",
                    "value-id": 11, "value-required": True, "value": {
                        "type": "struct", "fields": [
                            {"id": 12, "name": "x", "required": True, "type": "binary"}]}}},
                {"id": 13, "name": "l", "required": True, "type": {
                    "type": "list", "element-id": 14, "element-required": False,
                    "element": "time"}},
                {"id": 15, "name": "w", "required": False, "type": "unknown"},
            ],
        }
    )  # fmt: skip
    uuid_fixed = {"type": "fixed", "name": "uuid_fixed", "size": 16, "logicalType": "uuid"}
    nanos = {"type": "long", "logicalType": "timestamp-nanos", "adjust-to-utc": True}
    record = {
        "type": "record",
        "name": "r11",
        "fields": [{"name": "x", "type": "bytes", "field-id": 12}],
    }
    decimal = {
        "type": "fixed", "name": "decimal_9_2", "size": 4, "logicalType": "decimal",
        "precision": 9, "scale": 2,
    }  # fmt: skip
    assert avro_schema(schema.as_struct())["fields"] == [
        {"name": "u", "type": ["null", uuid_fixed], "doc": "who", "default": None, "field-id": 1},
        {"name": "v", "type": "uuid_fixed", "field-id": 2},
        {"name": "d", "type": decimal, "field-id": 3},
        {"name": "f", "type": {"type": "fixed", "name": "fixed_3", "size": 3}, "field-id": 4},
        {
            "name": "a_x20b", "type": ["null", nanos], "default": None,
            "iceberg-field-name": "a b", "field-id": 5,
        },
        {
            "name": "m", "default": None, "field-id": 6,
            "type": ["null", {
                "type": "map", "values": ["null", "int"], "key-id": 7, "value-id": 8}],
        },
        {
            "name": "n", "default": None, "field-id": 9,
            "type": ["null", {
                "type": "array", "logicalType": "map",
                "items": {"type": "record", "name": "k10_v11", "fields": [
                    {"name": "key", "type": "int", "field-id": 10},
                    {"name": "value", "type": record, "field-id": 11}]}}],
        },
        {
            "name": "l", "field-id": 13,
            "type": {
                "type": "array", "element-id": 14,
                "items": ["null", {"type": "long", "logicalType": "time-micros"}]},
        },
        {"name": "w", "type": "null", "default": None, "field-id": 15},
    ]  # fmt: skip
    fastavro.parse_schema(avro_schema(schema.as_struct()))


def test_every_type_is_read_back_by_fastavro(tmp_path: Path) -> None:
    data = all_types(300)
    (record,) = write(metadata_of(tmp_path, ALL_TYPES, properties=AVRO), data)
    _, found = read_avro(record)
    for row, expected in zip(found, data.to_pylist(), strict=True):
        if expected["ts"] is not None:
            # fastavro takes every timestamp for UTC's.
            expected["ts"] = expected["ts"].replace(tzinfo=dt.timezone.utc)
        if isinstance(row["uuid"], bytes):
            row["uuid"] = uuid.UUID(bytes=row["uuid"])
        assert row == expected


def test_nested_values_keep_their_nulls(tmp_path: Path) -> None:
    for start in range(3):
        data = pa.Table.from_pylist(NESTED_ROWS, NESTED_KIND).slice(start)
        (record,) = write(metadata_of(tmp_path, NESTED, properties=AVRO), data)
        _, found = read_avro(record)
        for row, given in zip(found, NESTED_ROWS[start:], strict=True):
            struct = given["s"] and {**given["s"], "new": 9}
            pairs = None if given["m"] is None else dict(given["m"])
            assert row == {**given, "s": struct, "m": pairs}


def test_maps_of_other_keys_are_arrays_of_pairs(tmp_path: Path) -> None:
    kind = {
        "type": "map", "key-id": 2, "key": "int",
        "value-id": 3, "value-required": False, "value": "decimal(9,2)",
    }  # fmt: skip
    column = pa.array(
        [[(1, Decimal("1.50")), (2, None)], None, [], [(-1, Decimal("-0.01"))]],
        pa.map_(pa.int32(), pa.decimal128(9, 2)),
    )
    metadata = metadata_of(tmp_path, [{"name": "m", "type": kind}], properties=AVRO)
    (record,) = write(metadata, pa.table({"m": column}).slice(1))
    _, found = read_avro(record)
    assert [row["m"] for row in found] == [None, [], [{"key": -1, "value": Decimal("-0.01")}]]


def test_a_key_that_is_twice_in_a_map_is_refused(tmp_path: Path) -> None:
    kind = {
        "type": "map", "key-id": 2, "key": "string",
        "value-id": 3, "value-required": False, "value": "int",
    }  # fmt: skip
    column = pa.array([[("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int32()))
    metadata = metadata_of(tmp_path, [{"name": "m", "type": kind}], properties=AVRO)
    with pytest.raises(ValueError, match="twice"):
        write(metadata, pa.table({"m": column}))


def test_unknown_columns_are_null(tmp_path: Path) -> None:
    columns = [{"name": "w", "type": "unknown"}, {"name": "id", "type": "long"}]
    data = pa.table({"w": pa.nulls(2), "id": [1, 2]})
    (record,) = write(metadata_of(tmp_path, columns, properties=AVRO), data)
    assert read_avro(record)[1] == [{"w": None, "id": 1}, {"w": None, "id": 2}]
    assert set(record.lower_bounds or {}) == {2}
    # And are not in Parquet files at all.
    (record,) = write(metadata_of(tmp_path, columns), data)
    assert set(record.value_counts or {}) == {2}


def test_metrics_are_those_of_the_parquet_file_of_the_same_rows(tmp_path: Path) -> None:
    for schema, data in (
        (ALL_TYPES, all_types(100)),
        (NESTED, pa.Table.from_pylist(NESTED_ROWS, NESTED_KIND)),
        (
            Schema(NestedField(1, "d", NestedField(1, "x", "double").field_type)),
            pa.table({"d": [math.nan, 1.0, None, -1.0]}),
        ),
    ):
        for properties in ({}, {"write.metadata.metrics.default": "full"}):
            (parquet,) = write(metadata_of(tmp_path, schema, properties=properties), data)
            (avro,) = write(metadata_of(tmp_path, schema, properties={**properties, **AVRO}), data)
            for name in (
                "record_count",
                "value_counts",
                "null_value_counts",
                "nan_value_counts",
                "lower_bounds",
                "upper_bounds",
            ):
                assert getattr(avro, name) == getattr(parquet, name), name


def test_files_are_of_the_target_size(tmp_path: Path) -> None:
    properties = {
        **AVRO,
        "write.target-file-size-bytes": "200000",
        "write.avro.compression-codec": "uncompressed",
    }
    data = rows(20_000)
    records = write(metadata_of(tmp_path, COLUMNS, properties=properties), data, threads=1)
    sizes = [record.file_size_in_bytes for record in records]
    assert len(sizes) > 3
    assert all(150_000 < size < 300_000 for size in sizes[:-1])
    found: list[Any] = []
    for record in records:
        found += read_avro(record)[1]
    assert found == data.to_pylist()


def test_splits_and_projection_read_it_too(tmp_path: Path) -> None:
    data = all_types(1000)
    (record,) = write(metadata_of(tmp_path, ALL_TYPES, properties=AVRO), data)
    with ags1.open(record.file_path, "rb", record.key) as file:
        found = pa.Table.from_batches(read_avro_batches(file, ALL_TYPES, record_count=1000))
    assert found.to_pylist() == data.to_pylist()

"""Tables that we write: Spark reads them, the rows and what it says of files, and continues them."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog as load_plain_catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import parse_transform
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    DoubleType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
)

from ags1.iceberg import EncryptedCatalog, EncryptedTable, verify_table
from ags1.kms import KmsClient

from .reading import check_history, check_same, opened
from .spark import SparkTables, path_of

pytestmark = pytest.mark.interop

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "v", StringType(), required=False),
    NestedField(3, "d", DateType(), required=False),
    NestedField(4, "t", TimestampType(), required=False),
    NestedField(5, "z", TimestamptzType(), required=False),
    NestedField(6, "x", DoubleType(), required=False),
    NestedField(7, "m", DecimalType(9, 2), required=False),
    NestedField(8, "b", BinaryType(), required=False),
)
SPECS = {
    "unpartitioned": [],
    "identity": [("v", "identity")],
    "bucket": [("id", "bucket[4]"), ("v", "truncate[1]")],
    "time": [("d", "month"), ("z", "day")],
    "decimal": [("m", "identity"), ("t", "hour")],
}

_numbers = itertools.count()


def rows(first: int, count: int) -> pa.Table:
    """Return rows of SCHEMA with nulls, NaN and values at the edges."""
    ids = range(first, first + count)
    day = datetime.date(2026, 1, 31)
    moment = datetime.datetime(2026, 1, 31, 23, 59, 59, 999_999)
    utc = datetime.timezone.utc
    columns: dict[str, list[Any]] = {
        "id": list(ids),
        "v": [None if i % 7 == 0 else "äbc"[i % 3] * (i % 4) for i in ids],
        "d": [None if i % 11 == 0 else day + datetime.timedelta(days=i % 3) for i in ids],
        "t": [moment + datetime.timedelta(hours=i % 3) for i in ids],
        "z": [(moment + datetime.timedelta(days=i % 2)).replace(tzinfo=utc) for i in ids],
        "x": [float("nan") if i % 5 == 0 else i / 3 for i in ids],
        "m": [None if i % 13 == 0 else Decimal(i % 3) + Decimal("0.25") for i in ids],
        "b": [bytes([i % 256]) * (i % 5) for i in ids],
    }
    return pa.table(columns, schema=ARROW)


ARROW = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("v", pa.string()),
        ("d", pa.date32()),
        ("t", pa.timestamp("us")),
        ("z", pa.timestamp("us", "UTC")),
        ("x", pa.float64()),
        ("m", pa.decimal128(9, 2)),
        ("b", pa.binary()),
    ]
)


def spec(name: str) -> PartitionSpec:
    fields = []
    for number, (column, transform) in enumerate(SPECS[name]):
        source = SCHEMA.find_field(column).field_id
        fields.append(
            PartitionField(source, 1000 + number, parse_transform(transform), f"{column}_p{number}")
        )
    return PartitionSpec(*fields)


@pytest.fixture
def catalog(tmp_path: Path, kms: KmsClient) -> Iterator[EncryptedCatalog]:
    inner = load_plain_catalog(
        "sql", type="sql", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file:{tmp_path}/w"
    )
    with EncryptedCatalog(inner, kms) as made:
        made.create_namespace("db")
        yield made


@pytest.fixture
def name(spark: SparkTables) -> Iterator[str]:
    made = f"enc.db.written_{next(_numbers)}"
    yield made
    spark.sql(f"DROP TABLE IF EXISTS {made}")


def create(catalog: EncryptedCatalog, partitioning: str = "unpartitioned", **properties: str) -> EncryptedTable:
    properties = {"format-version": "3", "encryption.key-id": "keyA"} | properties
    table = catalog.create_table(
        "db.t", SCHEMA, partition_spec=spec(partitioning), properties=properties
    )
    assert isinstance(table, EncryptedTable)
    return table


def register(spark: SparkTables, name: str, table: EncryptedTable) -> None:
    spark.register(name, path_of(table.metadata_location))


def check_files(spark: SparkTables, name: str, table: EncryptedTable) -> None:
    """Check that Spark's ``files`` metadata table says what ours does."""
    columns = (
        "content, file_path, file_format, spec_id, record_count, file_size_in_bytes, "
        "value_counts, null_value_counts, nan_value_counts, lower_bounds, upper_bounds, "
        "split_offsets, sort_order_id"
    )
    theirs = {
        (row["file_path"], row["content"], row["record_count"]): row.asDict(recursive=True)
        for row in spark.sql(f"SELECT {columns} FROM {name}.files")
    }
    ours = {}
    for row in table.inspect.files().to_pylist():
        wanted = {column: row.get(column) for column in columns.split(", ")}
        ours[row["file_path"], row["content"], row["record_count"]] = wanted
    assert theirs.keys() == ours.keys()
    for key, said in theirs.items():
        for column, value in said.items():
            if isinstance(value, dict):
                value = {k: bytes(v) if isinstance(v, bytearray) else v for k, v in value.items()}
                mine = dict(ours[key][column] or [])
                assert mine == value, (key, column)
            elif column not in ("sort_order_id",):
                assert ours[key][column] == value, (key, column)


def continue_with_spark(spark: SparkTables, name: str) -> None:
    spark.sql(f"INSERT INTO {name} (id, v) VALUES (100000, 'spark')")
    spark.sql(f"DELETE FROM {name} WHERE id % 10 = 3")
    spark.sql(
        f"MERGE INTO {name} t USING (SELECT 100000L AS id UNION ALL SELECT 100001L) s "
        "ON t.id = s.id WHEN MATCHED THEN UPDATE SET v = 'merged' "
        "WHEN NOT MATCHED THEN INSERT (id, v) VALUES (s.id, 'new')"
    )
    short = name.removeprefix("enc.")
    spark.sql(f"CALL enc.system.rewrite_data_files(table => '{short}', options => map('min-input-files', '2'))")
    spark.sql(f"CALL enc.system.rewrite_manifests('{short}')")


@pytest.mark.parametrize("partitioning", SPECS)
@pytest.mark.parametrize(("format_name", "key_length"), [("parquet", "16"), ("avro", "32")])
def test_a_table_of_ours_is_read_and_continued(
    spark: SparkTables,
    catalog: EncryptedCatalog,
    name: str,
    kms: KmsClient,
    partitioning: str,
    format_name: str,
    key_length: str,
) -> None:
    table = create(
        catalog,
        partitioning,
        **{
            "write.format.default": format_name,
            "encryption.data-key-length": key_length,
            "write.delete.mode": "merge-on-read",
            "write.merge.mode": "merge-on-read",
        },
    )
    table.append(rows(1, 200))
    table.append(rows(201, 50))
    table.delete("id > 20 and id < 31")
    table.delete("id = 5 or id = 25 or id >= 245")
    table.overwrite(rows(5, 1), "id = 6")
    register(spark, name, table)
    check_same(spark, name, table.scan())
    check_history(spark, name, table)
    check_files(spark, name, table)
    before = {row["id"]: row["_row_id"] for row in spark.sql(f"SELECT id, _row_id FROM {name}")}
    assert len(set(before.values())) == len(before)
    continue_with_spark(spark, name)
    after = opened(spark, name, kms)
    check_same(spark, name, after.scan())
    check_history(spark, name, after)
    kept = {row["id"]: row["_row_id"] for row in spark.sql(f"SELECT id, _row_id FROM {name}")}
    assert {i: n for i, n in kept.items() if i in before} == {
        i: n for i, n in before.items() if i in kept
    }
    spark.sql(f"CALL enc.system.expire_snapshots(table => '{name.removeprefix('enc.')}', "
              "older_than => TIMESTAMP '2100-01-01 00:00:00', retain_last => 1)")
    after = opened(spark, name, kms)
    check_same(spark, name, after.scan())
    assert verify_table(after).ok

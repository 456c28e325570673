"""Data files that we write, of every type and shape that Spark has: Spark reads the same rows."""

from __future__ import annotations

import datetime as dt
import itertools
import math
import uuid
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog as load_plain_catalog
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import IdentityTransform
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
    UUIDType,
)

from ags1.iceberg import EncryptedCatalog, EncryptedTable
from ags1.kms import KmsClient

from .spark import SparkTables, path_of

pytestmark = pytest.mark.interop

SCHEMA = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "bool", BooleanType()),
    NestedField(3, "int", IntegerType()),
    NestedField(4, "float", FloatType()),
    NestedField(5, "double", DoubleType()),
    NestedField(6, "date", DateType()),
    NestedField(7, "ts", TimestampType()),
    NestedField(8, "tz", TimestamptzType()),
    NestedField(9, "text", StringType()),
    NestedField(10, "uuid", UUIDType()),
    NestedField(11, "fixed", FixedType(3)),
    NestedField(12, "bytes", BinaryType()),
    NestedField(13, "d9", DecimalType(9, 2)),
    NestedField(14, "d18", DecimalType(18, 2)),
    NestedField(15, "d38", DecimalType(38, 10)),
    NestedField(
        16,
        "s",
        StructType(
            NestedField(17, "x", IntegerType()),
            NestedField(18, "inner", StructType(NestedField(19, "y", StringType()))),
        ),
    ),
    NestedField(20, "l", ListType(21, ListType(22, IntegerType(), False), False)),
    NestedField(23, "m", MapType(24, StringType(), 25, DoubleType(), False)),
    NestedField(
        26, "k", MapType(27, IntegerType(), 28, StructType(NestedField(29, "z", LongType())), False)
    ),
    NestedField(30, "a b-c", StringType()),
)
COUNT = 500
_numbers = itertools.count()


def rows() -> pa.Table:
    def some(make: Any, kind: pa.DataType) -> pa.Array:
        return pa.array([None if i % 7 == 3 else make(i) for i in range(COUNT)], kind)

    day = dt.datetime(1969, 12, 30, 23, 59, 59, 999_999)
    uuids = [None if i % 7 == 3 else uuid.UUID(int=i << 90).bytes for i in range(COUNT)]
    inner = pa.struct([("x", pa.int32()), ("inner", pa.struct([("y", pa.string())]))])
    return pa.table(
        {
            "id": range(COUNT),
            "bool": some(lambda i: i % 2 == 0, pa.bool_()),
            "int": some(lambda i: -i, pa.int32()),
            "float": some(lambda i: math.nan if i % 5 == 0 else i / 4, pa.float32()),
            "double": some(lambda i: math.nan if i % 5 == 1 else -i / 3, pa.float64()),
            "date": some(lambda i: (day + dt.timedelta(days=i)).date(), pa.date32()),
            "ts": some(lambda i: day + dt.timedelta(hours=i), pa.timestamp("us")),
            "tz": some(lambda i: day + dt.timedelta(hours=i), pa.timestamp("us", "UTC")),
            "text": some(lambda i: "äöü\U0001f600" * (i % 9) + str(i), pa.string()),
            "uuid": pa.array(uuids, pa.uuid()),
            "fixed": some(lambda i: i.to_bytes(3, "big"), pa.binary(3)),
            "bytes": some(lambda i: bytes([i % 256]) * (i % 30), pa.binary()),
            "d9": some(lambda i: Decimal(i - 250) / 100, pa.decimal128(9, 2)),
            "d18": some(lambda i: Decimal(i - 250) * 10**12 / 100, pa.decimal128(18, 2)),
            "d38": some(lambda i: Decimal(i - 250) * 10**20 / 10**10, pa.decimal128(38, 10)),
            "s": some(lambda i: {"x": i, "inner": None if i % 3 else {"y": str(i)}}, inner),
            "l": some(lambda i: [[1, None], None, []][: i % 4], pa.list_(pa.list_(pa.int32()))),
            "m": some(
                lambda i: [("a", 1.5), ("b", None)][: i % 3], pa.map_(pa.string(), pa.float64())
            ),
            "k": some(
                lambda i: [(1, {"z": i}), (2, None)][: i % 3],
                pa.map_(pa.int32(), pa.struct([("z", pa.int64())])),
            ),
            "a b-c": some(str, pa.string()),
        }
    )


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
    made = f"enc.db.data_files_{next(_numbers)}"
    yield made
    spark.sql(f"DROP TABLE IF EXISTS {made}")


def comparable(value: Any) -> Any:
    """A value of Spark's or Arrow's, in one form."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value
    if isinstance(value, bytearray | bytes):
        return bytes(value)
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, dict):
        return {key: comparable(v) for key, v in value.items()}
    if isinstance(value, list):
        return [comparable(v) for v in value]
    return value


def expected() -> list[dict[str, Any]]:
    found = []
    for row in rows().to_pylist():
        for column in ("m", "k"):
            row[column] = None if row[column] is None else dict(row[column])
        if row["tz"] is not None:
            row["tz"] = row["tz"].astimezone(dt.timezone.utc).replace(tzinfo=None)
        found.append(comparable(row))
    return found


@pytest.mark.parametrize(
    ("format_name", "codec", "is_sorted"),
    [
        ("parquet", "zstd", False),
        ("parquet", "gzip", True),
        ("parquet", "snappy", False),
        ("avro", "gzip", False),
        ("avro", "zstd", True),
        ("avro", "snappy", False),
        ("avro", "uncompressed", False),
    ],
)
def test_every_type_is_read_by_spark(
    spark: SparkTables,
    catalog: EncryptedCatalog,
    name: str,
    format_name: str,
    codec: str,
    is_sorted: bool,
) -> None:
    order = SortOrder(SortField(9, transform=IdentityTransform())) if is_sorted else SortOrder()
    table = catalog.create_table(
        "db.t",
        SCHEMA,
        sort_order=order,
        properties={
            "format-version": "3",
            "encryption.key-id": "keyA",
            "write.format.default": format_name,
            f"write.{format_name}.compression-codec": codec,
            "write.parquet.row-group-limit": "100",
            "write.target-file-size-bytes": "40000",
        },
    )
    assert isinstance(table, EncryptedTable)
    table.append(rows())
    spark.register(name, path_of(table.metadata_location))
    columns = ", ".join(
        "CAST(tz AS TIMESTAMP_NTZ) AS tz" if field.name == "tz" else f"`{field.name}`"
        for field in SCHEMA.fields
    )
    found = [
        comparable(row.asDict(recursive=True))
        for row in spark.sql(f"SELECT {columns} FROM {name} ORDER BY id")
    ]
    assert found == expected()
    # Bounds that do not hold would lose rows here.
    for condition, count in (
        ("text = '100'", None),
        ("d38 = -2480000000000.0", None),
        ("double < -160 AND NOT isnan(double)", None),
        ("isnan(float)", None),
        ("uuid = '00000000-0400-0000-0000-000000000000'", None),
        ("s.x = 77", 1),
        ("int <= -490", None),
        ("date = DATE'1970-01-05'", 1),
    ):
        theirs = spark.sql(f"SELECT count(*) AS n FROM {name} WHERE {condition}")[0]["n"]
        spark.sql(f"CREATE OR REPLACE TEMP VIEW all_rows AS SELECT * FROM {name}")
        whole = spark.sql(f"SELECT count_if(coalesce({condition}, false)) AS n FROM all_rows")[0][
            "n"
        ]
        assert theirs == whole, condition
        assert count is None or whole == count, condition
    spark.sql(f"INSERT INTO {name} SELECT * FROM {name} WHERE id = 1")
    spark.sql(f"DELETE FROM {name} WHERE id < 3")
    assert spark.sql(f"SELECT count(*) AS n FROM {name}")[0]["n"] == COUNT - 3

"""Tables that Spark has just written verify to the last byte, and any byte changed is found.

With what the fixtures don't have: bloom filters, many row groups and pages, every key length, both
page formats, copy-on-write and merge-on-read.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from ags1.errors import Ags1Error, AuthenticationError
from ags1.iceberg.formats.parquet_modules import VerifiedParquet, verify_parquet
from ags1.iceberg.operations.check import verify_table
from ags1.iceberg.operations.check.findings import Severity
from ags1.kms import KmsClient

from .reading import opened
from .spark import SparkTables, path_of

pytestmark = pytest.mark.interop


@pytest.mark.parametrize("key_size", [16, 24, 32])
def test_what_spark_writes_verifies_to_the_last_byte(
    spark: SparkTables, kms: KmsClient, tmp_path: Path, key_size: int
) -> None:
    name = f"enc.db.verified_{key_size}"
    spark.create(
        name,
        "id BIGINT, v STRING, n INT, deep STRUCT<a: ARRAY<INT>, m: MAP<STRING, DOUBLE>>",
        tmp_path,
        **{
            "encryption.data-key-length": str(key_size),
            "write.parquet.bloom-filter-enabled.column.id": "true",
            "write.parquet.bloom-filter-enabled.column.v": "true",
            "write.parquet.row-group-size-bytes": "20000",
            "write.parquet.row-group-check-min-record-count": "100",
            "write.parquet.row-group-check-max-record-count": "100",
            "write.parquet.page-size-bytes": "2000",
            "write.delete.mode": "merge-on-read",
        },
    )
    rows = "id, CAST(id * 7919 AS STRING), NULL, STRUCT(ARRAY(1, NULL), MAP('k', id / 3))"
    spark.sql(f"INSERT INTO {name} SELECT {rows} FROM RANGE(0, 3000, 1, 1)")
    spark.sql(f"INSERT INTO {name} SELECT {rows} FROM RANGE(3000, 3100, 1, 1)")
    spark.sql(f"DELETE FROM {name} WHERE id % 3 = 0")
    table = opened(spark, name, kms)
    result = verify_table(table)
    assert not [f for f in result.findings if f.severity != Severity.NOTE]
    assert (result.snapshots, result.data_files) == (3, 2)
    assert result.deletion_vectors >= 1

    largest = max((t.file for t in table.scan().plan_files()), key=lambda f: f.file_size_in_bytes)
    data, km = path_of(largest.file_path).read_bytes(), largest.key  # type: ignore[attr-defined]

    def authenticate(data: bytes) -> VerifiedParquet:
        return verify_parquet(lambda at, size: data[at : at + size], len(data), km)

    found = authenticate(data)
    assert (found.rows, found.padding_size, found.plain_levels_size) == (3000, 0, 0)
    # Enough columns, row groups and pages to have each of their numbers in the tags' data count.
    assert found.modules > 100
    chosen = random.Random(key_size)
    for position in chosen.sample(range(len(data)), 300):
        changed = bytearray(data)
        changed[position] ^= 1 << chosen.randrange(8)
        with pytest.raises(Ags1Error):
            authenticate(bytes(changed))


def test_levels_that_java_leaves_in_the_clear_are_told_and_not_believed(
    spark: SparkTables, kms: KmsClient, tmp_path: Path
) -> None:
    name = "enc.db.levels"
    properties = {"write.parquet.page-version": "v2"}
    spark.create(name, "id BIGINT, n INT, deep ARRAY<INT>", tmp_path, **properties)
    spark.sql(f"INSERT INTO {name} SELECT id, NULL, ARRAY(1, id) FROM RANGE(0, 500, 1, 1)")
    result = verify_table(opened(spark, name, kms))
    assert (result.ok, result.data_files) == (True, 1)
    assert result.finding_counts["plain-levels"] == 1
    with pytest.raises(AuthenticationError, match="rewrite the file in Spark"):
        opened(spark, name, kms).scan().to_arrow()

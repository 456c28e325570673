"""Relocated tables in Spark: it reads every snapshot, and goes on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from iceberg_tables import JAVA_LOCATION, TABLES, expected_rows, metadata_file

from ags1.iceberg import EncryptedTable, open_table
from ags1.iceberg.operations.relocation.relocate import relocate
from ags1.iceberg.operations.verify import verify_table
from ags1.kms import KmsClient

from .reading import check_history, opened
from .spark import SparkTables, path_of

pytestmark = pytest.mark.interop

MERGE_ON_READ = {
    f"write.{command}.mode": "merge-on-read" for command in ("delete", "update", "merge")
}


def fixture(name: str, kms: KmsClient) -> EncryptedTable:
    table = open_table(str(metadata_file(name)), kms, {JAVA_LOCATION: str(TABLES)})
    assert isinstance(table, EncryptedTable)
    return table


def register(spark: SparkTables, name: str, location: str | None) -> None:
    assert location is not None
    spark.register(name, path_of(location))


def check_goes_on(spark: SparkTables, name: str, kms: KmsClient) -> None:
    """Check that Spark appends, deletes, compacts and expires, and that we read what it left."""
    rows = spark.rows(name)
    spark.sql(f"INSERT INTO {name} SELECT * FROM {name} WHERE id = {rows[0][0]}")
    assert len(spark.rows(name)) == len(rows) + 1
    spark.sql(f"DELETE FROM {name} WHERE id IN ({rows[1][0]}, {rows[-1][0]})")
    left = spark.rows(name)
    assert len(left) == len(rows) - 1
    check_history(spark, name, opened(spark, name, kms))
    catalog, table = name.split(".", 1)
    spark.sql(
        f"CALL {catalog}.system.rewrite_data_files(table => '{table}', "
        "options => map('rewrite-all', 'true'))"
    )
    spark.sql(f"CALL {catalog}.system.rewrite_manifests('{table}')")
    spark.sql(
        f"CALL {catalog}.system.expire_snapshots(table => '{table}', "
        "older_than => TIMESTAMP '2999-01-01', retain_last => 1)"
    )
    assert spark.rows(name) == left
    table_now = opened(spark, name, kms)
    check_history(spark, name, table_now)
    assert verify_table(table_now).ok


@pytest.mark.parametrize("snapshots", ["all", "current"])
def test_java_s_deletion_vectors_elsewhere(
    spark: SparkTables, kms: KmsClient, tmp_path: Path, snapshots: Any
) -> None:
    old = fixture("mor_dv", kms)
    result = relocate(old, str(tmp_path / "new"), snapshots=snapshots)
    name = f"enc.db.relocated_{snapshots}"
    register(spark, name, result.metadata_location)
    rows = expected_rows("mor_dv")
    assert len(rows) == 2598
    columns = ", ".join(rows[0])
    assert spark.rows(name, columns) == [tuple(row.values()) for row in rows]
    check_history(spark, name, opened(spark, name, kms))
    assert len(spark.metadata(name)["snapshots"]) == (5 if snapshots == "all" else 1)
    check_goes_on(spark, name, kms)


@pytest.mark.parametrize("file_format", ["parquet", "avro"])
def test_a_table_that_spark_no_longer_has(
    spark: SparkTables, kms: KmsClient, tmp_path: Path, file_format: str
) -> None:
    name = f"enc.db.before_{file_format}"
    spark.create(
        name,
        "id BIGINT, p INT, v STRING, t TIMESTAMP",
        tmp_path / "old",
        **MERGE_ON_READ,
        **{"write.format.default": file_format, "encryption.data-key-length": "32"},
    )
    spark.sql(f"ALTER TABLE {name} ADD PARTITION FIELD p")
    spark.sql(f"ALTER TABLE {name} ADD PARTITION FIELD day(t)")
    values = "id, CAST(id % 3 AS INT) AS p, concat('v', id) AS v, timestamp_millis(id * 9999999)"
    spark.sql(f"INSERT INTO {name} SELECT {values} FROM range(60)")
    spark.sql(f"DELETE FROM {name} WHERE id % 7 = 0")
    spark.sql(f"ALTER TABLE {name} CREATE TAG before")
    spark.sql(f"ALTER TABLE {name} DROP PARTITION FIELD p")
    spark.sql(f"UPDATE {name} SET v = 'changed' WHERE id BETWEEN 20 AND 30")
    lineage = "id, p, v, t, _row_id, _last_updated_sequence_number"
    rows, tagged = spark.rows(name, lineage), spark.rows(f"{name} VERSION AS OF 'before'", lineage)
    files = spark.rows(f"{name}.files", FILES, "file_size_in_bytes, record_count")
    result = relocate(opened(spark, name, kms), str(tmp_path / "new"), verify=True)
    moved = f"enc.db.after_{file_format}"
    spark.sql(f"DROP TABLE {name}")
    shutil.rmtree(tmp_path / "old")
    register(spark, moved, result.metadata_location)
    assert spark.rows(moved, lineage) == rows
    assert spark.rows(f"{moved} VERSION AS OF 'before'", lineage) == tagged
    data = spark.rows(f"{moved}.files", FILES, "file_size_in_bytes, record_count")
    assert [f for f in data if f[0] == 0] == [f for f in files if f[0] == 0]
    check_goes_on(spark, moved, kms)
    # All that Spark has written since is in the new place.
    text = json.dumps(spark.metadata(moved)["snapshots"])
    assert str(tmp_path / "old") not in text


FILES = (
    "content, file_format, spec_id, partition, record_count, file_size_in_bytes, column_sizes, "
    "value_counts, null_value_counts, lower_bounds, upper_bounds, split_offsets, sort_order_id"
)

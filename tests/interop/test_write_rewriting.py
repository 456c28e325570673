"""Migrated, rekeyed and compacted tables in Spark: the same rows and ids, and it goes on."""

from __future__ import annotations

import json
from dataclasses import asdict
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import PyArrowFileIO

from ags1.iceberg.commit.metadata_file import print_metadata
from ags1.iceberg.commit.updates import apply_updates
from ags1.iceberg.operations.check import verify_table
from ags1.iceberg.operations.compact import Compaction, plan_compaction
from ags1.iceberg.operations.compact_plan import RewriteOptions
from ags1.iceberg.operations.migrate import Migration
from ags1.iceberg.operations.rekey import Choice, Rekeying
from ags1.iceberg.operations.rewrite import Rewriter
from ags1.iceberg.storage.output import TableOutput
from ags1.iceberg.storage.table_files import TableFiles
from ags1.iceberg.write.executors import RewriteThreads
from ags1.iceberg.write.snapshot import SnapshotProducer
from ags1.iceberg.write.view import TableView
from ags1.keys.manager import EncryptionManager, now_ms
from ags1.kms import KmsClient

from .reading import check_same, opened
from .spark import SparkTables, path_of

pytestmark = pytest.mark.interop

IO = PyArrowFileIO()
MERGE_ON_READ = {
    f"write.{command}.mode": "merge-on-read" for command in ("delete", "update", "merge")
}
LINEAGE = "*, _row_id, _last_updated_sequence_number"


def registered(
    spark: SparkTables, name: str, metadata: dict[str, Any], updates: list[dict[str, Any]]
) -> None:
    """Commit updates by hand, as a table of another name."""
    after = apply_updates(metadata, updates, now_ms=now_ms())
    path = path_of(metadata["location"]) / "metadata" / f"00099-{name}.metadata.json"
    path.write_bytes(print_metadata(after))
    spark.register(name, path)


def migrated(
    spark: SparkTables, name: str, metadata: dict[str, Any], kms: KmsClient, key_size: int = 16
) -> None:
    migration = Migration(TableOutput(IO), EncryptionManager(kms, "keyA", data_key_length=key_size))
    registered(spark, name, metadata, migration.produce(metadata).updates)


def check_goes_on(spark: SparkTables, name: str, kms: KmsClient) -> None:
    """Check that Spark inserts, deletes and compacts, and that we read what it left."""
    rows = spark.rows(name)
    spark.sql(f"INSERT INTO {name} SELECT * FROM {name} WHERE id = {rows[0][0]}")
    spark.sql(f"DELETE FROM {name} WHERE id IN ({rows[1][0]}, {rows[-1][0]})")
    left = spark.rows(name)
    assert len(left) == len(rows) - 1
    check_same(spark, name, opened(spark, name, kms).scan())
    catalog, table = name.split(".", 1)
    spark.sql(
        f"CALL {catalog}.system.rewrite_data_files(table => '{table}', "
        "options => map('rewrite-all', 'true'))"
    )
    assert spark.rows(name) == left
    table_now = opened(spark, name, kms)
    check_same(spark, name, table_now.scan())
    # The unencrypted files are still in the table's folder.
    assert verify_table(table_now, list_folders=False).ok


@pytest.mark.parametrize("file_format", ["parquet", "avro"])
@pytest.mark.parametrize("version", [2, 3])
def test_a_plain_table_of_spark_with_deletes_is_migrated(
    spark: SparkTables, kms: KmsClient, tmp_path: Path, file_format: str, version: int
) -> None:
    name = f"enc.db.plain_{file_format}_{version}"
    properties = MERGE_ON_READ | {
        "format-version": str(version),
        "write.format.default": file_format,
        "write.parquet.bloom-filter-enabled.column.v": "true",
        "write.parquet.row-group-size-bytes": "2048",
        "write.parquet.row-group-check-min-record-count": "50",
        "write.parquet.row-group-check-max-record-count": "100",
    }
    listed = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
    spark.sql(
        f"CREATE TABLE {name} (id BIGINT, p INT, v STRING, l ARRAY<DOUBLE>, d DECIMAL(9, 2)) "
        f"USING iceberg PARTITIONED BY (p, bucket(2, v)) LOCATION 'file:{tmp_path}/t' "
        f"TBLPROPERTIES ({listed})"
    )
    values = (
        "id, CAST(id % 2 AS INT) AS p, IF(id % 7 = 0, NULL, concat('v', id)) AS v, "
        "array(id / 3, NULL) AS l, CAST(id AS DECIMAL(9, 2)) AS d"
    )
    spark.sql(f"INSERT INTO {name} SELECT {values} FROM range(1000)")
    spark.sql(f"DELETE FROM {name} WHERE id BETWEEN 100 AND 150 OR id % 11 = 0")
    spark.sql(f"UPDATE {name} SET v = 'changed' WHERE id BETWEEN 200 AND 230")
    columns = LINEAGE if version == 3 else "*"
    rows = spark.rows(name, columns)
    after = f"{name}_encrypted"
    migrated(spark, after, spark.metadata(name), kms, key_size=32)
    assert spark.rows(after, columns) == rows
    assert spark.sql(f"SELECT count(*) FROM {after} WHERE v = 'v333'")[0][0] == 1
    ids = [row[0] for row in spark.rows(after, "_row_id", "_row_id")]
    assert len(set(ids)) == len(rows)
    assert None not in ids
    table = opened(spark, after, kms)
    check_same(spark, after, table.scan())
    files = spark.rows(f"{after}.files", "content, file_format", "content")
    kind = file_format.upper()
    assert {tuple(f) for f in files} == {(0, kind), (1, "PUFFIN")}
    check_goes_on(spark, after, kms)


@pytest.mark.parametrize("version", [1, 2])
def test_a_plain_table_of_pyiceberg_is_migrated(
    spark: SparkTables, kms: KmsClient, tmp_path: Path, version: int
) -> None:
    catalog = SqlCatalog(
        "test", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}/warehouse"
    )
    catalog.create_namespace("db")
    rows = [
        {"id": i, "v": None if i % 3 == 0 else f"v{i}", "d": Decimal(i) / 100, "l": [i, None]}
        for i in range(500)
    ]
    types = {"id": pa.int64(), "v": pa.string(), "d": pa.decimal128(9, 2)}
    schema = pa.schema({**types, "l": pa.list_(pa.int32())})
    data = pa.Table.from_pylist(rows, schema)
    plain = catalog.create_table("db.t", data.schema, properties={"format-version": str(version)})
    plain.append(data.slice(0, 250))
    plain.append(data.slice(250))
    plain.delete("id > 200 and id < 300")
    metadata = path_of(plain.metadata_location).read_text()
    catalog.close()
    name = f"enc.db.pyiceberg_{version}"
    migrated(spark, name, json.loads(metadata), kms)
    expected = [tuple(row.values()) for row in rows[:201] + rows[300:]]
    assert spark.rows(name) == expected
    check_goes_on(spark, name, kms)


@pytest.mark.parametrize("file_format", ["parquet", "avro"])
def test_a_table_of_spark_is_rekeyed(
    spark: SparkTables, kms: KmsClient, tmp_path: Path, file_format: str
) -> None:
    name = f"enc.db.rekeyed_{file_format}"
    spark.create(
        name,
        "id BIGINT, p INT, v STRING",
        tmp_path / "t",
        **MERGE_ON_READ,
        **{"write.format.default": file_format},
    )
    spark.sql(f"ALTER TABLE {name} ADD PARTITION FIELD p")
    spark.sql(f"INSERT INTO {name} SELECT id, CAST(id % 3 AS INT), concat('v', id) FROM range(900)")
    spark.sql(f"DELETE FROM {name} WHERE id % 7 = 0")
    spark.sql(f"UPDATE {name} SET v = 'changed' WHERE id BETWEEN 20 AND 30")
    rows = spark.rows(name, LINEAGE)
    files = spark.rows(f"{name}.files", "file_path", "file_path")

    metadata = spark.metadata(name)
    manager = EncryptionManager.from_metadata(metadata, kms, table_key_id="keyA")
    view = TableView(metadata, TableFiles(IO, manager))
    output = TableOutput(IO)
    change = Rekeying(Rewriter(output), Choice(lambda f: "p=1" in f.file_path)).change(view)
    after = f"{name}_after"
    registered(spark, after, metadata, SnapshotProducer(output).produce(view, change))
    assert spark.rows(after, LINEAGE) == rows
    now = spark.rows(f"{after}.files", "file_path", "file_path")
    assert len(now) == len(files)
    assert 0 < len(set(now) & set(files)) < len(files)
    check_same(spark, after, opened(spark, after, kms).scan())
    check_goes_on(spark, after, kms)


@pytest.mark.parametrize("file_format", ["parquet", "avro"])
def test_a_table_of_spark_is_compacted_as_spark_does_it(
    spark: SparkTables, kms: KmsClient, tmp_path: Path, file_format: str
) -> None:
    name = f"enc.db.compacted_{file_format}"
    twin = f"enc.db.compacted_twin_{file_format}"
    properties = MERGE_ON_READ | {"write.format.default": file_format}
    spark.create(name, "id BIGINT, p INT, v STRING", tmp_path / "t", **properties)
    listed = ", ".join(
        f"'{key}' = '{value}'" for key, value in ({"format-version": "3"} | properties).items()
    )
    spark.sql(
        f"CREATE TABLE {twin} (id BIGINT, p INT, v STRING) USING iceberg "
        f"LOCATION 'file:{tmp_path}/twin' TBLPROPERTIES ({listed})"
    )
    for one in (name, twin):
        # The first files have another partition spec than the later ones.
        spark.sql(f"INSERT INTO {one} SELECT id, CAST(id % 3 AS INT), 'old' FROM range(30)")
        spark.sql(f"ALTER TABLE {one} ADD PARTITION FIELD p")
        for first in range(100, 600, 100):
            spark.sql(
                f"INSERT INTO {one} SELECT id, CAST(id % 3 AS INT), concat('v', id) "
                f"FROM range({first}, {first + 60})"
            )
        spark.sql(f"DELETE FROM {one} WHERE id IN (3, 101, 202, 303)")
        spark.sql(f"UPDATE {one} SET v = 'changed' WHERE id BETWEEN 400 AND 410")
    rows = spark.rows(name, LINEAGE)

    metadata = spark.metadata(name)
    manager = EncryptionManager.from_metadata(metadata, kms, table_key_id="keyA")
    view = TableView(metadata, TableFiles(IO, manager))
    output = TableOutput(IO)
    plan = plan_compaction(view, RewriteOptions(min_input_files=2, delete_file_threshold=1))
    compaction = Compaction(plan, plan.groups, output, RewriteThreads(), lambda _: None)
    after = f"{name}_after"
    updates = SnapshotProducer(output).produce(view, compaction.change(view))
    registered(spark, after, metadata, updates)
    assert spark.rows(after, LINEAGE) == rows
    assert len({row[-2] for row in rows}) == len(rows)
    files = spark.rows(f"{after}.files", "content, spec_id, record_count", "content")
    assert {(content, spec_id) for content, spec_id, _ in files} == {(0, 1)}
    assert sum(count for *_, count in files) == len(rows)
    check_same(spark, after, opened(spark, after, kms).scan())

    # Spark's own outcome on the plain twin.
    (theirs,) = spark.sql(
        f"CALL enc.system.rewrite_data_files(table => '{twin.removeprefix('enc.')}', "
        "options => map('min-input-files', '2', 'delete-file-threshold', '1'))"
    )
    ours = asdict(compaction.done)
    for count in ("rewritten_data_files_count", "added_data_files_count"):
        assert ours[count] == theirs[count], (ours, theirs)
    assert ours["removed_delete_files_count"] == theirs["removed_delete_files_count"]
    plain = spark.rows(f"{twin}.snapshots", "operation, summary", "committed_at")[-1]
    new = spark.rows(f"{after}.snapshots", "operation, summary", "committed_at")[-1]
    assert new[0] == plain[0] == "replace"
    for key in (
        "added-records",
        "deleted-records",
        "total-records",
        "total-delete-files",
        "removed-dvs",
        "deleted-data-files",
        "added-data-files",
    ):
        assert new[1].get(key) == plain[1].get(key), key
    check_goes_on(spark, after, kms)

"""Snapshots, branches, tags, appends between two of them, and what maintenance leaves."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from ags1 import MetadataIntegrityError
from ags1.iceberg import EncryptedTable
from ags1.kms import KmsClient

from .reading import check_equal, check_history, check_same, opened
from .spark import SparkTables

pytestmark = pytest.mark.interop

NAME = "enc.db.history"


@pytest.fixture(scope="module", autouse=True)
def _made(spark: SparkTables, tmp_path_factory: pytest.TempPathFactory) -> None:
    merge_on_read = {"write.delete.mode": "merge-on-read"}
    spark.create(NAME, "id BIGINT, v STRING", tmp_path_factory.mktemp("history"), **merge_on_read)
    spark.sql(f"INSERT INTO {NAME} VALUES (1, 'a'), (2, 'b')")
    spark.sql(f"ALTER TABLE {NAME} CREATE TAG first")
    spark.sql(f"INSERT INTO {NAME} VALUES (3, null)")
    spark.sql(f"ALTER TABLE {NAME} CREATE BRANCH side")
    spark.sql(f"INSERT INTO {NAME}.branch_side VALUES (30, 'side')")
    spark.sql(f"DELETE FROM {NAME}.branch_side WHERE id = 1")
    spark.sql(f"ALTER TABLE {NAME} SET TBLPROPERTIES ('write.format.default' = 'avro')")
    spark.sql(f"INSERT INTO {NAME} VALUES (4, 'd'), (5, 'e')")
    spark.sql(f"DELETE FROM {NAME} WHERE id IN (2, 4)")
    spark.sql(f"INSERT INTO {NAME} VALUES (6, 'f')")


@pytest.fixture
def table(spark: SparkTables, kms: KmsClient) -> EncryptedTable:
    return opened(spark, NAME, kms)


def test_branches_and_tags(spark: SparkTables, table: EncryptedTable) -> None:
    assert set(table.metadata.refs) == {"main", "first", "side"}
    for ref in table.metadata.refs:
        query = f"SELECT * FROM {NAME} VERSION AS OF '{ref}'"
        check_same(spark, query, table.scan().use_ref(ref))
    assert table.scan().use_ref("side").to_arrow() != table.scan().to_arrow()
    assert len(table.scan().use_ref("first").to_arrow()) == 2


def test_every_snapshot(spark: SparkTables, table: EncryptedTable) -> None:
    assert len(table.metadata.snapshots) == 7
    check_history(spark, NAME, table)
    times = [entry.timestamp_ms for entry in table.history()]
    found = table.snapshot_as_of_timestamp(times[1])
    assert found is not None
    assert found.snapshot_id == table.history()[1].snapshot_id


def test_what_was_appended_between_snapshots(spark: SparkTables, table: EncryptedTable) -> None:
    # Spark reads no appends across a delete: the ends lie on one side of it.
    ids = [entry.snapshot_id for entry in table.history()]
    for first, last in [(ids[0], ids[1]), (ids[0], ids[2]), (ids[1], ids[2]), (ids[3], ids[4])]:
        reader = spark.session.read.format("iceberg")
        theirs = reader.option("start-snapshot-id", first).option("end-snapshot-id", last)
        ours = table.incremental_append_scan(
            from_snapshot_id_exclusive=first, to_snapshot_id_inclusive=last
        )
        check_equal(ours.to_arrow(), theirs.load(NAME).toArrow())
    every = table.incremental_append_scan(from_snapshot_id_exclusive=ids[0])
    assert sorted(every.to_arrow()["id"].to_pylist()) == [3, 4, 5, 6]


def test_inspect_says_what_spark_says_but_for_keys(
    spark: SparkTables, table: EncryptedTable
) -> None:
    files = table.inspect.files()
    theirs = spark.sql(f"SELECT file_path, record_count, content FROM {NAME}.files")
    ours = files.select(["file_path", "record_count", "content"]).to_pylist()
    assert sorted(tuple(row.values()) for row in ours) == sorted(tuple(row) for row in theirs)
    assert {r["key_metadata"] for r in files.to_pylist()} == {None}
    for name in ("snapshots", "refs"):
        key = "snapshot_id"
        theirs = [row[key] for row in spark.sql(f"SELECT {key} FROM {NAME}.{name}")]
        assert sorted(getattr(table.inspect, name)()[key].to_pylist()) == sorted(theirs)
    manifests = [row["path"] for row in spark.sql(f"SELECT path FROM {NAME}.manifests")]
    assert sorted(table.inspect.manifests()["path"].to_pylist()) == sorted(manifests)
    theirs = spark.sql(f"SELECT status, data_file.file_path FROM {NAME}.entries WHERE status < 2")
    entries = table.inspect.entries()
    ours = [(e["status"], e["data_file"]["file_path"]) for e in entries.to_pylist()]
    assert sorted(ours) == sorted(tuple(row) for row in theirs)
    assert {e["data_file"]["key_metadata"] for e in entries.to_pylist()} == {None}


def test_the_metadata_file_that_the_caller_expects(spark: SparkTables, kms: KmsClient) -> None:
    stored = spark.metadata_file(NAME).read_bytes()
    expected = hashlib.sha256(stored).hexdigest()
    assert opened(spark, NAME, kms, expected_metadata_sha256=expected).scan().count() == 4
    with pytest.raises(MetadataIntegrityError):
        opened(spark, NAME, kms, expected_metadata_sha256=hashlib.sha256(b"").hexdigest())


def test_a_table_without_a_main_branch(spark: SparkTables, kms: KmsClient, tmp_path: Path) -> None:
    name = "enc.db.no_main"
    spark.create(name, "id BIGINT, s STRUCT<a: INT>", tmp_path)
    table = opened(spark, name, kms)
    assert check_same(spark, name, table.scan("id = 1")) == 0
    assert table.scan().to_arrow_batch_reader().read_all().num_rows == 0
    assert table.incremental_append_scan().to_arrow().num_rows == 0
    spark.sql(f"ALTER TABLE {name} CREATE BRANCH side")
    spark.sql(f"INSERT INTO {name}.branch_side VALUES (1, null)")
    table = opened(spark, name, kms)
    assert check_same(spark, name, table.scan()) == 0
    query = f"SELECT * FROM {name} VERSION AS OF 'side'"
    assert check_same(spark, query, table.scan().use_ref("side")) == 1


def test_what_maintenance_leaves(spark: SparkTables, kms: KmsClient, tmp_path: Path) -> None:
    name, called = "enc.db.maintained", "db.maintained"
    merge_on_read = {"write.delete.mode": "merge-on-read"}
    spark.create(name, "id BIGINT, p INT", tmp_path, **merge_on_read)
    spark.sql(f"ALTER TABLE {name} ADD PARTITION FIELD p")
    for start in (0, 20, 40):
        spark.sql(f"INSERT INTO {name} SELECT id, id % 2 FROM range({start}, {start + 20})")
    spark.sql(f"DELETE FROM {name} WHERE id % 5 = 0")
    steps: dict[str, Any] = {
        "rewrite_manifests": "",
        "rewrite_position_delete_files": ", options => map('rewrite-all', 'true')",
        "rewrite_data_files": ", options => map('rewrite-all', 'true')",
        "expire_snapshots": ", older_than => TIMESTAMP '2100-01-01', retain_last => 1",
    }
    for procedure, arguments in steps.items():
        spark.sql(f"CALL enc.system.{procedure}(table => '{called}'{arguments})")
        table = opened(spark, name, kms)
        assert check_same(spark, name, table.scan()) == 48
        assert table.scan("p = 1 and id < 10").count() == 4
    assert len(table.metadata.snapshots) == 1
    assert len(table.scan().plan_files()) == 2
    before = table.scan().to_arrow()
    snapshot = table.metadata.current_snapshot_id
    spark.sql(f"INSERT INTO {name} VALUES (1000, 1)")
    table = opened(spark, name, kms)
    check_same(spark, name, table.scan())
    check_equal(table.scan(snapshot_id=snapshot).to_arrow(), before)
    spark.sql(f"CALL enc.system.rollback_to_snapshot('{called}', {snapshot})")
    table = opened(spark, name, kms)
    check_same(spark, name, table.scan())
    check_equal(table.scan().to_arrow(), before)

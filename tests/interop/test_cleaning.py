"""Orphan files and erased rows: the same orphans as Spark's own procedure finds, and tables that
Spark has deleted rows of, that it reads and continues afterwards."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import pyarrow as pa
import pytest
from opened_files import OpenedFiles
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from ags1.iceberg import EncryptedTable, verify_table
from ags1.kms import KmsClient

from .spark import SparkTables
from .writing import Shared

pytestmark = pytest.mark.interop

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "v", StringType(), required=False),
)
SECRETS = [f"erase-me-{number}".encode() for number in (2, 5, 8, 11)]


@pytest.fixture
def shared(spark: SparkTables, kms: KmsClient, tmp_path: Path) -> Iterator[Shared]:
    made = Shared("sql", spark, kms, tmp_path)
    yield made
    made.close()


def create(shared: Shared, **properties: str) -> EncryptedTable:
    properties = {"format-version": "3", "encryption.key-id": "keyA", **properties}
    made = shared.catalog.create_table(shared.new_name(), SCHEMA, properties=properties)
    assert isinstance(made, EncryptedTable)
    for first in (1, 4, 7, 10):
        ids = [first, first + 1, first + 2]
        names = ["erase-me-" + str(i) if i == first + 1 else "kept" for i in ids]
        made.append(pa.table({"id": pa.array(ids, pa.int64()), "v": names}))
    return made


def folder_of(table: EncryptedTable) -> Path:
    return Path(table.location().removeprefix("file:"))


def test_spark_finds_the_same_orphan_files(spark: SparkTables, shared: Shared) -> None:
    table = create(shared, **{"write.metadata.previous-versions-max": "2"})
    table.delete("id = 2")
    folder = folder_of(table)
    for name in (
        "data/a.parquet",
        "data/x/b.puffin",
        "metadata/c.avro",
        "metadata/.d",
        "data/_e/f",
    ):
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"AGS1")
    old = time.time() - 9 * 24 * 60 * 60
    for path in folder.rglob("*"):
        os.utime(path, (old, old))
    (folder / "data" / "young.parquet").write_bytes(b"PAR1")
    name = shared.shown(table)
    catalog, short = name.split(".", 1)
    found = spark.sql(
        f"CALL {catalog}.system.remove_orphan_files(table => '{short}', dry_run => true)"
    )
    theirs = {row[0].removeprefix("file:") for row in found}
    ours = table.remove_orphan_files()
    assert set(ours.orphan_file_locations) == theirs
    assert len(theirs) == 3 + 3  # and the metadata files that the log has forgotten
    assert len(spark.rows(name)) == 11


@pytest.mark.parametrize("mode", ["merge-on-read", "copy-on-write"])
def test_rows_that_spark_has_deleted_are_erased(
    spark: SparkTables, shared: Shared, kms: KmsClient, mode: str
) -> None:
    table = create(shared, **{"write.delete.mode": mode})
    table.delete("id = 5")
    name = shared.shown(table)
    spark.sql(f"DELETE FROM {name} WHERE id IN (2, 8)")
    spark.sql(f"INSERT INTO {name} VALUES (20, 'spark')")
    table = shared.taken_back(name)
    table.delete("id = 11")
    files = OpenedFiles(folder_of(table), kms)
    assert all(files.holding(*SECRETS).values())
    done = table.erase_deleted_rows(
        remove_orphans=True,
        orphans_older_than=datetime.now(timezone.utc),
        no_other_writers=True,
    )
    assert done.remaining == ()
    assert not any(files.holding(*SECRETS).values())
    left = [1, 3, 4, 6, 7, 9, 10, 12, 20]
    assert sorted(table.scan().to_arrow()["id"].to_pylist()) == left
    assert verify_table(table).ok
    name = shared.shown(table)
    assert [row[0] for row in spark.rows(name)] == left
    assert len(spark.sql(f"SELECT * FROM {name}.snapshots")) == 1
    assert spark.sql(f"SELECT * FROM {name}.metadata_log_entries")
    # It is continued, and maintained.
    spark.sql(f"INSERT INTO {name} VALUES (21, 'spark')")
    spark.sql(f"DELETE FROM {name} WHERE id = 1")
    catalog, short = name.split(".", 1)
    spark.sql(
        f"CALL {catalog}.system.expire_snapshots(table => '{short}', "
        "older_than => TIMESTAMP '2100-01-01', retain_last => 1)"
    )
    table = shared.taken_back(name)
    assert sorted(table.scan().to_arrow()["id"].to_pylist()) == [*left[1:], 21]
    assert verify_table(table).ok

"""Spark's tables under our keys: manifest lists of ours are read, and writing goes on."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ags1.kms import KmsClient

from .spark import SparkTables
from .tables import (
    FOUR_ROWS,
    check_goes_on,
    create,
    manager_of,
    open_all,
    with_keys,
    with_list_of_ours,
    write_metadata,
)

pytestmark = pytest.mark.interop

_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Made:
    """A table of two snapshots that Spark has just written."""

    name: str
    file: Path
    metadata: dict[str, Any]


@pytest.fixture
def table(spark: SparkTables, tmp_path: Path, key_size: int) -> Iterator[Made]:
    name = f"enc.db.spark_{next(_numbers)}"
    length = {"encryption.data-key-length": str(key_size)}
    create(spark, name, tmp_path / "table", **length)
    yield Made(name, spark.metadata_file(name), spark.metadata(name))
    spark.sql(f"DROP TABLE {name}")


@pytest.fixture
def key_size() -> int:
    return 16


@pytest.mark.parametrize("key_size", [16, 24, 32])
def test_spark_goes_on_after_a_manifest_list_of_ours(
    spark: SparkTables, kms: KmsClient, table: Made, key_size: int
) -> None:
    manager = manager_of(table.metadata, kms)
    assert manager.data_key_length == key_size
    assert len(open_all(table.metadata, manager)) == 2
    changed = with_list_of_ours(table.metadata, manager)
    assert changed["snapshots"] != table.metadata["snapshots"]

    name = f"{table.name}_ours"
    spark.register(name, write_metadata(changed, table.file))
    check_goes_on(spark, name, kms)
    ours = {key["key-id"] for key in changed["encryption-keys"]}
    assert ours <= {key["key-id"] for key in spark.metadata(name)["encryption-keys"]}


def test_spark_goes_on_after_our_rotation(spark: SparkTables, kms: KmsClient, table: Made) -> None:
    rotated = manager_of(table.metadata, kms).rotate()
    file = write_metadata(with_keys(table.metadata, rotated), table.file)
    spark.commit(table.name, file)
    check_goes_on(spark, table.name, kms)
    # Nothing was left that Java could have taken instead.
    [kek] = manager_of(spark.metadata(table.name), kms).key_encryption_keys
    assert kek == rotated.key_encryption_keys[0]


def test_spark_goes_on_under_another_master_key(
    spark: SparkTables, kms: KmsClient, table: Made
) -> None:
    rewrapped = manager_of(table.metadata, kms).rewrap(table_key_id="keyB")
    file = write_metadata(with_keys(table.metadata, rewrapped), table.file)
    spark.commit(table.name, file, **{"encryption.key-id": "keyB"})
    check_goes_on(spark, table.name, kms, "keyB")


def test_spark_reads_nothing_when_the_metastore_has_another_master_key(
    spark: SparkTables, kms: KmsClient, table: Made
) -> None:
    rewrapped = manager_of(table.metadata, kms).rewrap(table_key_id="keyB")
    file = write_metadata(with_keys(table.metadata, rewrapped), table.file)
    spark.commit(table.name, file)
    with pytest.raises(Exception, match="GCM tag check failed"):
        spark.rows(table.name)


def test_spark_goes_on_after_our_pruning(spark: SparkTables, kms: KmsClient, table: Made) -> None:
    catalog, name = table.name.split(".", 1)
    spark.sql(f"INSERT INTO {table.name} VALUES (0, 'gone')")
    spark.sql(f"DELETE FROM {table.name} WHERE id = 0")
    spark.sql(
        f"CALL {catalog}.system.expire_snapshots(table => '{name}', "
        "older_than => TIMESTAMP '2100-01-01 00:00:00', retain_last => 1)"
    )
    metadata, file = spark.metadata(table.name), spark.metadata_file(table.name)
    [live] = metadata["snapshots"]
    manager = manager_of(metadata, kms)
    assert len(manager.encryption_keys) == 5  # Java never drops any
    pruned = manager.prune([live["key-id"]])
    assert len(pruned.encryption_keys) == 2
    spark.commit(table.name, write_metadata(with_keys(metadata, pruned), file))
    assert spark.rows(table.name) == FOUR_ROWS
    spark.sql(f"INSERT INTO {table.name} VALUES (5, 'e')")
    metadata = spark.metadata(table.name)
    assert len(metadata["encryption-keys"]) == 3
    assert len(open_all(metadata, manager_of(metadata, kms))) == 2


def test_spark_refuses_a_metadata_file_that_is_not_the_hashed_one(
    spark: SparkTables, kms: KmsClient, table: Made
) -> None:
    """So that the tests above mean something: Java does check the hash of what we commit."""
    rotated = manager_of(table.metadata, kms).rotate()
    file = write_metadata(with_keys(table.metadata, rotated), table.file)
    spark.commit(table.name, file)
    file.write_text(file.read_text().replace('"owner"', '"0wner"'))
    with pytest.raises(Exception, match="might have been modified"):
        spark.rows(table.name)

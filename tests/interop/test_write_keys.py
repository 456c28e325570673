"""Which KEK Spark takes after we changed a table's keys, and what a session that holds it does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from ags1.iceberg import EncryptedTable, verify_table
from ags1.kms import KmsClient

from .metastore import served_metastore
from .reading import check_history, opened
from .rest_server import rest_server
from .spark import SparkTables
from .writing import Shared

pytestmark = pytest.mark.interop

SCHEMA = Schema(NestedField(1, "id", LongType()), NestedField(2, "v", StringType()))
KEK_TIMESTAMP = "KEY_TIMESTAMP"


@pytest.fixture(scope="module")
def servers(
    spark: SparkTables, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    folder = tmp_path_factory.mktemp("rest")
    with served_metastore(spark) as hive, rest_server(folder, folder / "stderr.txt") as rest:
        yield {"hive": hive, "rest": rest}


@pytest.fixture(params=["hive"])
def shared(
    spark: SparkTables,
    kms: KmsClient,
    servers: dict[str, str],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> Iterator[Shared]:
    made = Shared(request.param, spark, kms, tmp_path, servers.get(request.param))
    yield made
    made.close()


@pytest.fixture(scope="module")
def holding(spark: SparkTables) -> str:
    """A catalog as a long-running session has it: it keeps tables and with them their keys."""
    return spark.catalog("holding", keeps_tables=True)


def create(shared: Shared, key_length: str = "16") -> EncryptedTable:
    table = shared.catalog.create_table(
        shared.new_name(),
        SCHEMA,
        properties={
            "format-version": "3",
            "encryption.key-id": "keyA",
            "encryption.data-key-length": key_length,
        },
    )
    assert isinstance(table, EncryptedTable)
    for number in range(2):
        table.append(pa.table({"id": [number], "v": ["ours"]}))
    return table


def keks(metadata: dict[str, Any]) -> set[str]:
    """Return the ids of the KEKs, which have a time."""
    keys = metadata["encryption-keys"]
    return {key["key-id"] for key in keys if KEK_TIMESTAMP in key.get("properties", {})}


def kek_of(metadata: dict[str, Any], snapshot_id: int) -> str:
    """Return the id of the KEK that a snapshot's key is wrapped with."""
    [key_id] = [s["key-id"] for s in metadata["snapshots"] if s["snapshot-id"] == snapshot_id]
    [entry] = [k for k in metadata["encryption-keys"] if k["key-id"] == key_id]
    return str(entry["encrypted-by-id"])


def used_keks(metadata: dict[str, Any]) -> set[str]:
    return {kek_of(metadata, s["snapshot-id"]) for s in metadata["snapshots"]}


def insert(spark: SparkTables, name: str, number: int) -> str:
    """Have Spark insert a row; return the id of the KEK that it took."""
    spark.sql(f"INSERT INTO {name} VALUES ({number}, 'spark')")
    metadata = spark.metadata(f"enc.{name.split('.', 1)[1]}")
    return kek_of(metadata, metadata["current-snapshot-id"])


@pytest.mark.parametrize("shared", ["sql", "hive", "rest"], indirect=True)
@pytest.mark.parametrize("key_length", ["16", "32"])
def test_spark_takes_the_kek_of_a_rotation(
    spark: SparkTables, shared: Shared, key_length: str
) -> None:
    table = create(shared, key_length)
    name = shared.shown(table)
    [first] = keks(spark.metadata(name))
    assert insert(spark, name, 10) == first
    seen = {first}
    for number in range(3):
        table = shared.taken_back(name)
        table.rotate_keys()
        name = shared.shown(table)
        metadata = spark.metadata(name)
        [new] = keks(metadata)
        assert new not in seen
        assert used_keks(metadata) == {new}
        # Not once, which could be by chance.
        assert [insert(spark, name, 20 + 10 * number + n) for n in range(2)] == [new] * 2
        assert keks(spark.metadata(name)) == {new}
        seen.add(new)
    table = shared.taken_back(name)
    assert len(table.scan().to_arrow()) == len(spark.rows(name)) == 9
    check_history(spark, name, table)
    assert verify_table(table).ok


def test_spark_takes_the_kek_of_another_master_key(
    spark: SparkTables, shared: Shared, kms: KmsClient
) -> None:
    table = create(shared)
    name = shared.shown(table)
    spark.sql(f"INSERT INTO {name} VALUES (10, 'spark')")
    table = shared.taken_back(name)
    table.rewrap_keys("keyB")
    assert spark.parameters(name)["encryption.key-id"] == "keyB"
    [kek] = keks(spark.metadata(name))
    assert insert(spark, name, 11) == kek
    metadata = spark.metadata(name)
    [entry] = [k for k in metadata["encryption-keys"] if k["key-id"] == kek]
    assert entry["encrypted-by-id"] == "keyB"
    assert len(spark.rows(name)) == 4
    check_history(spark, name, opened(spark, name, kms))


def test_spark_goes_on_after_keys_were_pruned(
    spark: SparkTables, shared: Shared, kms: KmsClient
) -> None:
    table = create(shared)
    name = shared.shown(table)
    spark.sql(f"INSERT INTO {name} VALUES (10, 'spark')")
    expire = (
        f"CALL enc.system.expire_snapshots(table => '{name.removeprefix('enc.')}', "
        "older_than => TIMESTAMP '2100-01-01', retain_last => 1)"
    )
    spark.sql(expire)
    table = shared.taken_back(name)
    assert len(table.prune_keys()) == 2
    [kek] = keks(spark.metadata(name))
    assert len(spark.metadata(name)["encryption-keys"]) == 2
    assert insert(spark, name, 11) == kek
    assert len(spark.rows(name)) == 4
    # The same, if each of our commits prunes.
    spark.sql(expire)
    with shared.taken_back(name).transaction() as transaction:
        transaction.set_properties({"encryption.keys.prune-on-commit": "true"})
        transaction.append(pa.table({"id": [20], "v": ["ours"]}))
    metadata = spark.metadata(name)
    snapshots = {snapshot["key-id"] for snapshot in metadata["snapshots"]}
    assert {key["key-id"] for key in metadata["encryption-keys"]} == {kek} | snapshots
    assert insert(spark, name, 12) == kek
    assert len(spark.rows(name)) == 6
    check_history(spark, name, opened(spark, name, kms))


def test_a_session_that_holds_the_table_over_a_rotation(
    spark: SparkTables, shared: Shared, holding: str
) -> None:
    """It takes any KEK that it knows, and may bring an old one back, which nobody loses rows by;
    once it has forgotten the table, it takes the new one."""
    table = create(shared)
    name = shared.shown(table)
    held = name.replace("enc.", f"{holding}.")
    known = [*keks(spark.metadata(name))]
    assert insert(spark, held, 10) == known[0]
    for number in range(11, 17):
        table = shared.taken_back(name)
        table.rotate_keys()
        [new] = keks(spark.metadata(name))
        assert new not in known
        known.append(new)
        is_refreshed = number % 2 == 0
        if is_refreshed:
            spark.sql(f"REFRESH TABLE {held}")
        taken = insert(spark, held, number)
        assert taken == new if is_refreshed else taken in known
        assert keks(spark.metadata(name)) == {new, taken}
    table = shared.taken_back(name)
    ids = [0, 1, *range(10, 17)]
    assert sorted(table.scan().to_arrow()["id"].to_pylist()) == ids
    assert [row[0] for row in spark.rows(held)] == ids
    check_history(spark, name, table)

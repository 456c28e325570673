"""Statistics files: those that Spark makes, read by us, and ours in tables that Spark reads.

Iceberg 1.12 does not know ``key-id`` in statistics. The keys of apache/iceberg 17417 are those that
its ``StandardEncryptionManager`` has for manifest lists, so the released one judges ours.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from iceberg_tables import unpin
from pyiceberg.schema import Schema
from pyiceberg.table.puffin import PuffinFile
from pyiceberg.types import LongType, NestedField, StringType

from ags1.iceberg import EncryptedTable, StatisticsBlob, verify_table
from ags1.keys.envelope import encryption_keys_to_dicts
from ags1.kms import KmsClient

from .java import Java
from .metastore import served_metastore
from .reading import opened
from .spark import UNITEST_KMS, SparkTables, path_of
from .table_keys import JavaKeys
from .writing import Shared

pytestmark = pytest.mark.interop

DRAFT = "draft-17533"
SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "v", StringType(), required=False),
)
BLOB = StatisticsBlob("apache-datasketches-theta-v1", [2], b"a sketch", {"ndv": "2"})


@pytest.fixture(scope="module")
def metastore(spark: SparkTables) -> Iterator[str]:
    with served_metastore(spark) as uri:
        yield uri


@pytest.fixture(params=["sql", "hive"])
def shared(
    request: Any, spark: SparkTables, kms: KmsClient, metastore: str, tmp_path: Path
) -> Iterator[Shared]:
    made = Shared(request.param, spark, kms, tmp_path, metastore)
    yield made
    made.close()


def create(shared: Shared) -> EncryptedTable:
    properties = {"format-version": "3", "encryption.key-id": "keyA"}
    made = shared.catalog.create_table(shared.new_name(), SCHEMA, properties=properties)
    assert isinstance(made, EncryptedTable)
    made.append(pa.table({"id": [1, 2, 3], "v": ["a", "b", "b"]}))
    return made


def payloads(puffin: PuffinFile) -> list[bytes]:
    return [puffin.get_blob_payload(blob) for blob in puffin.footer.blobs]


def test_statistics_of_spark_are_read(spark: SparkTables, kms: KmsClient, tmp_path: Path) -> None:
    name = "enc.db.computed"
    spark.create(name, "id BIGINT, v STRING, d DOUBLE", tmp_path)
    spark.sql(f"INSERT INTO {name} SELECT id, concat('v', id % 7), id / 3D FROM range(500)")
    spark.sql("CALL enc.system.compute_table_stats('db.computed')")
    found = opened(spark, name, kms).read_statistics(allow_plaintext=True)
    ndv = {blob.fields[0]: int(blob.properties["ndv"]) for blob in found.footer.blobs}
    counts = ", ".join(f"count(DISTINCT {column})" for column in ("id", "v", "d"))
    [row] = spark.sql(f"SELECT {counts} FROM {name}")
    assert ndv == dict(enumerate(row, 1))
    assert all(payloads(found))


def test_spark_reads_and_continues_a_table_with_encrypted_statistics(
    spark: SparkTables, shared: Shared
) -> None:
    table = create(shared)
    table.write_statistics([BLOB], encrypted_statistics=DRAFT)
    assert payloads(table.read_statistics()) == [BLOB.payload]
    name = "enc." + ".".join(table.name())
    if shared.kind != "hive":
        name = shared.shown(table)
    assert spark.rows(name) == [(1, "a"), (2, "b"), (3, "b")]
    [listed] = spark.metadata(name)["statistics"]
    assert listed["key-id"] in {key["key-id"] for key in table.version.json["encryption-keys"]}
    spark.sql(f"INSERT INTO {name} VALUES (4, 'c')")
    [dropped] = spark.metadata(name)["statistics"]
    assert dropped == {n: value for n, value in listed.items() if n != "key-id"}
    # What Spark has left is whole. The key is of no use any more.
    back = shared.taken_back(name)
    assert back.scan().count() == 4
    report = verify_table(back)
    assert report.ok
    assert report.finding_counts["unauthenticated-bytes"] == 1
    assert back.prune_keys() == [listed["key-id"]]
    first = back.snapshots()[0].snapshot_id
    back.write_statistics([BLOB], first, encrypted_statistics=DRAFT)
    assert payloads(back.read_statistics(first)) == [BLOB.payload]
    if shared.kind == "hive":
        assert len(spark.rows(name)) == 4


@pytest.mark.parametrize("shared", ["sql"], indirect=True)
def test_the_keys_are_those_of_java(shared: Shared, java: Java) -> None:
    table = create(shared)
    table.write_statistics([BLOB], encrypted_statistics=DRAFT)
    [entry] = table.version.json["statistics"]
    keys = table.files.keys.encryption_keys
    of_java = JavaKeys(java, UNITEST_KMS, "keyA")
    km = table.files.keys.manifest_list_key(entry["key-id"])
    assert of_java.open(keys, [entry["key-id"]]) == {entry["key-id"]: km}
    # The other way: Java wraps the file's key.
    added = of_java.add(keys, km)

    metadata = dict(table.version.json) | {
        "encryption-keys": encryption_keys_to_dicts(added.keys),
        "statistics": [{**entry, "key-id": added.key_id}],
    }
    path_of(table.metadata_location).write_text(json.dumps(metadata))
    unpin(table.catalog)
    changed = table.catalog.load_table(table.name())
    assert isinstance(changed, EncryptedTable)
    assert payloads(changed.read_statistics()) == [BLOB.payload]
    assert verify_table(changed).ok

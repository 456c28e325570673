"""Fields of metadata.json that nobody here knows, and keys that nobody here knows the use of: both
survive whatever is done to a table. A later Java may have them: statistics are about to get a
``key-id`` (iceberg pull request 17533)."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from iceberg_tables import rewritten
from kept_tables import KeptTables
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.statistics import StatisticsFile
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import (
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
)
from unknown_fields import objects, strewn, unknown_fields

import ags1
from ags1 import KeyMetadata
from ags1.iceberg import EncryptedCatalog, EncryptedTable, verify_table
from ags1.keys.envelope import encryption_keys_to_dicts

Json = dict[str, Any]
Change = Callable[[EncryptedTable], object]

SCHEMA = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "l", ListType(3, StringType(), False)),
    NestedField(4, "m", MapType(5, StringType(), 6, IntegerType(), False)),
    NestedField(7, "st", StructType(NestedField(8, "a", IntegerType()))),
)
THETA = "apache-datasketches-theta-v1"
BY_ID = PartitionSpec(PartitionField(1, 1000, BucketTransform(2), "b"))


def with_everything(catalog: EncryptedCatalog) -> EncryptedTable:
    """A table with something in every list of its metadata."""
    properties = {"encryption.key-id": "keyA"}
    made = catalog.create_table("db.t", SCHEMA, partition_spec=BY_ID, properties=properties)
    assert isinstance(made, EncryptedTable)
    for number in range(3):
        made.append(pa.table({"id": [10 * number, 10 * number + 1]}))
    ids = [snapshot.snapshot_id for snapshot in made.snapshots()]
    made.manage_snapshots().create_tag(ids[0], "old").create_branch(ids[1], "b").commit()
    made.update_sort_order().asc("id", IdentityTransform()).commit()
    folder = Path(made.metadata_location.removeprefix("file://")).parent
    with made.update_statistics(allow_plaintext=True) as update:
        for snapshot_id in ids:
            path = folder / f"{snapshot_id}.stats"
            path.write_bytes(b"PFA1")
            blob = {"type": THETA, "snapshot-id": 1, "sequence-number": 1, "fields": [1]}
            update.set_statistics(
                StatisticsFile.model_validate(
                    {
                        "snapshot-id": snapshot_id,
                        "statistics-path": f"file://{path}",
                        "file-size-in-bytes": 4,
                        "file-footer-size-in-bytes": 4,
                        "blob-metadata": [blob],
                    }
                )
            )
    return made


@pytest.fixture
def table(kept: KeptTables) -> EncryptedTable:
    made: EncryptedTable = kept(with_everything)
    return made


def append(table: EncryptedTable) -> None:
    table.append(pa.table({"id": [100]}))
    table.append(pa.table({"id": [101]}), branch="b")


def delete(table: EncryptedTable) -> None:
    table.delete("id = 0")
    table.overwrite(pa.table({"id": [7]}), "id = 10")


def rotate(table: EncryptedTable) -> None:
    table.rotate_keys()
    table.rewrap_keys("keyB")
    table.rewrap_keys()
    table.prune_keys()


def rekey(table: EncryptedTable) -> None:
    table.rekey()


def expire(table: EncryptedTable) -> None:
    assert table.expire_snapshots(datetime.now(timezone.utc), 1).snapshot_ids == ()
    table.manage_snapshots().remove_tag("old").remove_branch("b").commit()
    assert len(table.expire_snapshots(datetime.now(timezone.utc), 1).snapshot_ids) == 2
    assert table.prune_keys()


def evolve(table: EncryptedTable) -> None:
    table.update_schema().add_column("more", StringType()).rename_column("st", "s").commit()
    table.update_spec().add_field("more", "identity", "p").commit()
    table.transaction().set_properties(a="b").commit_transaction()


CHANGES: list[Change] = [append, delete, rotate, rekey, expire, evolve]
# What a change is there to take away.
GONE = {
    "rotate": {"encryption-keys"},
    "expire": {"encryption-keys", "snapshots", "refs", "statistics", "snapshot-log"},
}


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_unknown_fields_survive(table: EncryptedTable, change: Change) -> None:
    dice = random.Random(change.__name__)
    table = rewritten(table, lambda metadata: strewn(metadata, dice))
    before = table.view().metadata
    strewn_over = list(unknown_fields(before))
    assert {path[:1] for path, _, _ in strewn_over} >= {
        *((), ("schemas",), ("partition-specs",), ("sort-orders",), ("encryption-keys",)),
        *(("refs",), ("snapshots",), ("statistics",), ("snapshot-log",), ("metadata-log",)),
    }
    change(table)
    after = table.view().metadata
    there = set(objects(after))
    kept = {(path, name): value for path, name, value in unknown_fields(after)}
    for path, name, value in strewn_over:
        if path in there:
            assert (path, name) in kept, path
            assert kept[path, name] == value
        else:
            assert path[0] in GONE.get(change.__name__, ()), path
    if change is evolve:
        fields = {"schemas": 0, "partition-specs": 0}
        for (path, _), _ in kept.items():
            if path and path[0] in fields and path[1] == 1:
                fields[path[0]] += 1
        # Of columns and partition fields; what a list's or map's type has is not looked for.
        assert fields["schemas"] >= 5
        assert fields["partition-specs"] >= 1


def with_statistics_key(table: EncryptedTable) -> tuple[EncryptedTable, str]:
    """Give one statistics file, and something unknown, keys as pull request 17533 has them."""
    manager = table.view().manager
    unknown, unused = (
        manager.add_manifest_list_key(KeyMetadata.generate(16).with_file_length(99))
        for _ in range(2)
    )

    def change(metadata: Json) -> None:
        entry = metadata["statistics"][-1]
        [blob] = entry["blob-metadata"]
        entry["blob-metadata"].append(blob | {"type": "from-the-future"})
        data, km = ags1.encrypt(b"PFA1 from the future")
        Path(entry["statistics-path"].removeprefix("file://")).write_bytes(data)
        entry["file-size-in-bytes"] = len(data)
        entry["key-id"] = manager.add_manifest_list_key(km)
        metadata["encryption-keys"] = encryption_keys_to_dicts(manager.encryption_keys)
        metadata["from-the-future"] = [{"needs": {unknown: None}}]

    return rewritten(table, change), unused


def keys_of(table: EncryptedTable) -> set[str]:
    return {entry["key-id"] for entry in table.view().metadata["encryption-keys"]}


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_keys_that_anything_refers_to_stay(table: EncryptedTable, change: Change) -> None:
    table, unused = with_statistics_key(table)
    named = {table.view().metadata["statistics"][-1]["key-id"]}
    named |= set(table.view().metadata["from-the-future"][0]["needs"])
    assert unused in keys_of(table)
    assert {f.kind for f in verify_table(table).findings} >= {"orphan-key"}
    change(table)
    assert named <= keys_of(table)
    lengths = {table.view().manager.manifest_list_key(key_id).file_length for key_id in named}
    assert lengths == {99, table.view().metadata["statistics"][-1]["file-size-in-bytes"]}
    table.prune_keys()
    assert named <= keys_of(table)
    assert unused not in keys_of(table)
    assert "orphan-key" not in {f.kind for f in verify_table(table).findings}
    assert table.scan().count() >= 5

"""A small table that Spark and we take turns on.

Spark makes it and appends to it; we walk its keys to the end, and write manifest lists and the next
metadata.json.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from manifests import entries

import ags1
from ags1.keys.envelope import encryption_keys_to_dicts
from ags1.keys.manager import EncryptionManager
from ags1.kms import KmsClient

from .spark import SparkTables, path_of

Metadata = dict[str, Any]

FOUR_ROWS = [(1, "a"), (2, "b"), (3, "c"), (4, "d")]


def create(spark: SparkTables, name: str, location: Path, **properties: str) -> None:
    """Have Spark make the table, with two rows in each of two snapshots."""
    spark.create(name, "id BIGINT, v STRING", location, **properties)
    spark.sql(f"INSERT INTO {name} VALUES (1, 'a'), (2, 'b')")
    spark.sql(f"INSERT INTO {name} VALUES (3, 'c'), (4, 'd')")


def check_goes_on(
    spark: SparkTables, name: str, kms: KmsClient, table_key_id: str = "keyA"
) -> None:
    """Check that Spark reads each snapshot and appends, and that we open all that it has then."""
    first, second = (s["snapshot-id"] for s in spark.metadata(name)["snapshots"])
    assert spark.rows(name) == FOUR_ROWS
    assert spark.rows(f"{name} VERSION AS OF {first}") == FOUR_ROWS[:2]
    assert spark.rows(f"{name} VERSION AS OF {second}") == FOUR_ROWS
    spark.sql(f"INSERT INTO {name} VALUES (5, 'e')")
    assert spark.rows(name) == [*FOUR_ROWS, (5, "e")]
    metadata = spark.metadata(name)
    assert len(open_all(metadata, manager_of(metadata, kms, table_key_id))) == 3


def manager_of(metadata: Metadata, kms: KmsClient, table_key_id: str = "keyA") -> EncryptionManager:
    """Return our manager of the table's keys."""
    return EncryptionManager.from_metadata(metadata, kms, table_key_id=table_key_id)


def read(location: str) -> bytes:
    """Return the stored bytes of a location."""
    return path_of(location).read_bytes()


def current_snapshot(metadata: Metadata) -> dict[str, Any]:
    """Return the snapshot that a reader sees."""
    wanted = metadata["current-snapshot-id"]
    [found] = [s for s in metadata["snapshots"] if s["snapshot-id"] == wanted]
    return dict(found)


def open_all(metadata: Metadata, manager: EncryptionManager) -> dict[int, int]:
    """Open every manifest of every snapshot; return the number of entries by snapshot id."""
    return {
        snapshot["snapshot-id"]: len(
            entries(
                read(snapshot["manifest-list"]), manager.manifest_list_key(snapshot["key-id"]), read
            )
        )
        for snapshot in metadata["snapshots"]
    }


def with_keys(metadata: Metadata, manager: EncryptionManager) -> Metadata:
    """Return the metadata with the manager's keys; without the field when there are none, as Java
    leaves it out."""
    assert "encryption-keys" in metadata, "where Java has the field, for the sake of the hash"
    changed = metadata | {
        "properties": metadata["properties"] | {"encryption.key-id": manager.table_key_id},
        "encryption-keys": encryption_keys_to_dicts(manager.encryption_keys),
    }
    if not changed["encryption-keys"]:
        del changed["encryption-keys"]
    return changed


def with_list_of_ours(metadata: Metadata, manager: EncryptionManager) -> Metadata:
    """Seal the current snapshot's manifest list anew, with a key of its own, into another file;
    return the metadata that names it. The key is added to ``manager``."""
    snapshot = current_snapshot(metadata)
    plain = ags1.decrypt(
        read(snapshot["manifest-list"]), manager.manifest_list_key(snapshot["key-id"])
    )
    sealed, km = ags1.encrypt(plain, km=manager.new_file_key())
    folder = snapshot["manifest-list"].rpartition("/")[0]
    ours = {
        "manifest-list": f"{folder}/snap-{snapshot['snapshot-id']}-2-{uuid.uuid4()}.avro",
        "key-id": manager.add_manifest_list_key(km),
    }
    path_of(ours["manifest-list"]).write_bytes(sealed)
    changed = [
        old | ours if old["snapshot-id"] == snapshot["snapshot-id"] else old
        for old in metadata["snapshots"]
    ]
    return with_keys(metadata | {"snapshots": changed}, manager)


def write_metadata(metadata: Mapping[str, Any], after: Path) -> Path:
    """Write the metadata.json that follows ``after``, as compact as Java's; return its path."""
    path = after.with_name(f"{int(after.name[:5]) + 1:05}-{uuid.uuid4()}.metadata.json")
    path.write_text(json.dumps(metadata, separators=(",", ":"), ensure_ascii=False))
    return path

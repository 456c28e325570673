"""Rotation, another master key and pruning, on the lists of keys that Java wrote.

What comes out is applied and written as metadata.json, and the table is read again through it. Who
commits in between is the subject of ``commit/test_model``.
"""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from iceberg_tables import (
    JAVA_LOCATION,
    MASTER_KEYS,
    TABLES,
    by_id,
    expected_rows,
    memory_kms,
    metadata_file,
    open_fixture,
)

from ags1 import AuthenticationError, KeyMetadata, KeyMetadataError, KmsError
from ags1.iceberg import open_table
from ags1.iceberg.commit.updates import apply_updates
from ags1.iceberg.spec.table_keys import (
    KeyChange,
    adopt,
    prune,
    restore,
    rewrap,
    rotate,
    snapshots_without_keys,
    unmoved_refs,
    with_own_kek,
)
from ags1.keys import EncryptionManager
from ags1.kms import from_properties

pytestmark = pytest.mark.filterwarnings("ignore::ags1.kms.memory.KeysInPropertiesWarning")

WITH_SNAPSHOTS = ["mor_dv", "parquet_plain", "stats"]
NOW = 1_800_000_000_000
DAY = 24 * 60 * 60 * 1000


def java_metadata(name: str) -> dict[str, Any]:
    metadata: dict[str, Any] = json.loads(metadata_file(name).read_bytes())
    return metadata


def manager_of(
    metadata: dict[str, Any], kms: Any = None, key_id: str = "keyA"
) -> EncryptionManager:
    return EncryptionManager.from_metadata(metadata, kms or memory_kms(), table_key_id=key_id)


def applied(metadata: dict[str, Any], change: KeyChange | list[dict[str, Any]]) -> dict[str, Any]:
    updates = change.updates if isinstance(change, KeyChange) else change
    return apply_updates(metadata, updates, now_ms=max(NOW, metadata["last-updated-ms"]))


def keks(metadata: dict[str, Any]) -> list[dict[str, Any]]:
    return [key for key in metadata["encryption-keys"] if key.get("properties")]


def snapshot_key_ids(metadata: dict[str, Any]) -> list[str]:
    return [snapshot["key-id"] for snapshot in metadata["snapshots"]]


def assert_reads(name: str, metadata: dict[str, Any], folder: Path, **more: Any) -> None:
    """Every snapshot of a table that Java wrote still reads through other metadata."""
    path = folder / "next.metadata.json"
    path.write_text(json.dumps(metadata))
    more.setdefault("kms", memory_kms())
    more["location_map"] = {JAVA_LOCATION: str(TABLES)}
    table = open_table(str(path), **more)
    assert by_id(table.scan().to_arrow().to_pylist()) == expected_rows(name)
    before = open_fixture(name)
    for snapshot_id in (snapshot["snapshot-id"] for snapshot in metadata["snapshots"]):
        count = table.scan(snapshot_id=snapshot_id).count()
        assert count == before.scan(snapshot_id=snapshot_id).count()


# -- rotate


@pytest.mark.parametrize("name", WITH_SNAPSHOTS)
def test_rotation_leaves_one_new_kek_and_every_snapshot_readable(name: str, tmp_path: Path) -> None:
    metadata = java_metadata(name)
    as_it_was = copy.deepcopy(metadata)
    change = rotate(metadata, manager_of(metadata))
    assert metadata == as_it_was
    after = applied(metadata, change)
    [new] = keks(after)
    assert new["key-id"] not in {key["key-id"] for key in metadata["encryption-keys"]}
    others = [key for key in after["encryption-keys"] if key != new]
    assert {key["encrypted-by-id"] for key in others} == {new["key-id"]}
    assert snapshot_key_ids(after) == snapshot_key_ids(metadata)
    assert after["snapshots"] == metadata["snapshots"]
    assert_reads(name, after, tmp_path)


def test_an_entry_that_changes_is_removed_before_it_is_added() -> None:
    metadata = java_metadata("mor_dv")
    actions = [update["action"] for update in rotate(metadata, manager_of(metadata)).updates]
    count = len(metadata["encryption-keys"])
    assert actions == ["remove-encryption-key"] * count + ["add-encryption-key"] * count


def test_the_manager_of_a_rotation_is_that_of_the_table_after_it() -> None:
    metadata = java_metadata("mor_dv")
    change = rotate(metadata, manager_of(metadata))
    after = applied(metadata, change)
    assert [key.to_dict() for key in change.manager.encryption_keys] == after["encryption-keys"]
    assert applied(after, rotate(after, change.manager))["snapshots"] == after["snapshots"]
    assert {key.key_id for key in change.removed} == {
        key["key-id"] for key in metadata["encryption-keys"]
    }


def test_rotation_of_many_snapshots_asks_the_kms_twice() -> None:
    class Counting:
        accepts_foreign_keys = wraps_with_public_key = supports_key_generation = False

        def __init__(self) -> None:
            self.inner, self.calls = memory_kms(), 0

        def wrap_key(self, key: bytes, key_id: str) -> bytes:
            self.calls += 1
            return self.inner.wrap_key(key, key_id)

        def unwrap_key(self, wrapped_key: bytes, key_id: str) -> bytes:
            self.calls += 1
            return self.inner.unwrap_key(wrapped_key, key_id)

    metadata = java_metadata("mor_dv")
    maker = manager_of(metadata)
    for number in range(1000):
        key_id = maker.add_manifest_list_key(KeyMetadata.generate(16).with_file_length(1000))
        metadata["snapshots"].append({"snapshot-id": number, "key-id": key_id})
    metadata["encryption-keys"] = [key.to_dict() for key in maker.encryption_keys]
    kms: Any = Counting()
    change = rotate(metadata, manager_of(metadata, kms))
    assert kms.calls == 2
    assert len(change.manager.encryption_keys) == 1006


def test_a_table_without_keys_has_nothing_to_rotate() -> None:
    metadata = java_metadata("empty")
    manager = manager_of(metadata)
    for change in (rotate(metadata, manager), rewrap(metadata, manager), prune(metadata, manager)):
        assert change.updates == []


def test_an_entry_that_does_not_open_stops_a_rotation() -> None:
    metadata = java_metadata("mor_dv")
    entry = next(key for key in metadata["encryption-keys"] if not key.get("properties"))
    entry["encrypted-key-metadata"] = "A" + entry["encrypted-key-metadata"][1:]
    with pytest.raises(AuthenticationError):
        rotate(metadata, manager_of(metadata))


@pytest.mark.parametrize("change", [rotate, rewrap, prune])
def test_a_manager_of_another_version_is_refused(change: Any) -> None:
    metadata = java_metadata("mor_dv")
    manager = manager_of(metadata)
    manager.add_manifest_list_key(KeyMetadata.generate(16).with_file_length(1000))
    with pytest.raises(ValueError, match="this version"):
        change(metadata, manager)
    older = copy.deepcopy(metadata)
    older["encryption-keys"].pop()
    with pytest.raises(ValueError, match="this version"):
        change(metadata, manager_of(older))
    with pytest.raises(ValueError, match="this version"):
        change(
            metadata, EncryptionManager(memory_kms(), "keyB", manager_of(metadata).encryption_keys)
        )


@pytest.mark.parametrize("change", [rotate, rewrap, prune])
def test_a_plain_table_has_no_keys(change: Any) -> None:
    metadata = java_metadata("mor_dv")
    manager = manager_of(metadata)
    del metadata["properties"]["encryption.key-id"]
    with pytest.raises(KeyMetadataError, match="not encrypted"):
        change(metadata, manager)


# -- another master key


@pytest.mark.parametrize("name", WITH_SNAPSHOTS)
def test_rewrapping_under_another_master_key(name: str, tmp_path: Path) -> None:
    metadata = java_metadata(name)
    change = rewrap(metadata, manager_of(metadata), table_key_id="keyB")
    after = applied(metadata, change)
    assert after["properties"]["encryption.key-id"] == "keyB"
    assert {key["encrypted-by-id"] for key in keks(after)} == {"keyB"}
    assert {key["key-id"] for key in keks(after)} == {key["key-id"] for key in keks(metadata)}
    unchanged = [key for key in metadata["encryption-keys"] if not key.get("properties")]
    assert [key for key in after["encryption-keys"] if not key.get("properties")] == unchanged
    only_b = {"encryption.kms-type": "memory"} | {
        "encryption.kms.key.keyB": MASTER_KEYS["keyB"].hex()
    }
    assert_reads(name, after, tmp_path, kms=from_properties(only_b), expected_key_id="keyB")


def test_rewrapping_in_another_kms_under_the_same_name(tmp_path: Path) -> None:
    metadata = java_metadata("mor_dv")
    other = from_properties({"encryption.kms-type": "memory", "encryption.kms.key.keyA": "00" * 32})
    change = rewrap(metadata, manager_of(metadata), other)
    assert {update["action"] for update in change.updates} == {
        "remove-encryption-key",
        "add-encryption-key",
    }
    after = applied(metadata, change)
    assert_reads("mor_dv", after, tmp_path, kms=other)
    with pytest.raises(KmsError):
        assert_reads("mor_dv", after, tmp_path)


# -- prune


def test_pruning_keeps_what_snapshots_need_and_the_next_kek(tmp_path: Path) -> None:
    metadata = java_metadata("mor_dv")
    manager = manager_of(metadata)
    assert prune(metadata, manager).updates == []
    for _ in range(3):
        manager.add_manifest_list_key(KeyMetadata.generate(16).with_file_length(1000))
    metadata["encryption-keys"] = [key.to_dict() for key in manager.encryption_keys]
    last = metadata["snapshots"][-1]
    metadata |= {"snapshots": [last], "snapshot-log": metadata["snapshot-log"][-1:]}
    change = prune(metadata, manager)
    assert {update["action"] for update in change.updates} == {"remove-encryption-key"}
    after = applied(metadata, change)
    assert [key["key-id"] for key in after["encryption-keys"] if not key.get("properties")] == [
        last["key-id"]
    ]
    assert len(keks(after)) == 1
    assert_reads("mor_dv", after, tmp_path)


def test_pruning_after_a_rotation_takes_a_returned_kek_out() -> None:
    metadata = java_metadata("mor_dv")
    after = applied(metadata, rotate(metadata, manager_of(metadata)))
    returned = keks(metadata)
    after = applied(after, [{"action": "add-encryption-key", "encryption-key": returned[0]}])
    assert len(keks(after)) == 2
    pruned = applied(after, prune(after, manager_of(after)))
    assert [key["key-id"] for key in keks(pruned)] == [keks(after)[0]["key-id"]]


def test_pruning_when_a_key_is_missing() -> None:
    metadata = java_metadata("mor_dv")
    needed = metadata["snapshots"][0]["key-id"]
    metadata["encryption-keys"] = [
        key for key in metadata["encryption-keys"] if key["key-id"] != needed
    ]
    with pytest.raises(KeyMetadataError, match="have no"):
        prune(metadata, manager_of(metadata))


# -- what a commit requires, and what is put back after it


def test_every_ref_is_required_to_stand() -> None:
    metadata = java_metadata("mor_dv")
    head = metadata["current-snapshot-id"]
    first = metadata["snapshots"][0]["snapshot-id"]
    metadata["refs"]["old"] = {"snapshot-id": first, "type": "tag"}
    expected = [
        {"type": "assert-table-uuid", "uuid": metadata["table-uuid"]},
        {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": head},
        {"type": "assert-ref-snapshot-id", "ref": "old", "snapshot-id": first},
    ]
    assert unmoved_refs(metadata) == expected
    for change in (rotate, rewrap, prune):
        assert change(metadata, manager_of(metadata)).requirements == expected
    del metadata["refs"]
    assert unmoved_refs(metadata) == expected[:2]


def test_an_empty_table_is_required_to_stay_empty() -> None:
    main = {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": None}
    metadata = java_metadata("empty")
    assert unmoved_refs(metadata)[1:] == [main]
    assert unmoved_refs(metadata | {"current-snapshot-id": -1})[1:] == [main]


def test_an_own_kek() -> None:
    metadata = java_metadata("mor_dv")
    manager = manager_of(metadata)
    own = with_own_kek(manager)
    assert own.key_encryption_keys == ()
    key_id = own.add_manifest_list_key(KeyMetadata.generate(16).with_file_length(1000))
    kek, key = own.encryption_keys
    assert (key.key_id, key.encrypted_by_id) == (key_id, kek.key_id)
    assert kek.key_id not in {k.key_id for k in manager.encryption_keys}
    assert len(manager.encryption_keys) == len(metadata["encryption-keys"])


def test_what_a_rotation_took_is_put_back() -> None:
    metadata = java_metadata("mor_dv")
    manager = manager_of(metadata)
    change = rotate(metadata, manager)
    # An append that the rotation did not see, and a server that looks at no key.
    km = KeyMetadata.generate(16).with_file_length(1000)
    key_id = manager.add_manifest_list_key(km)
    unseen = manager.encryption_keys[-1].to_dict()
    answer = applied(metadata, change)
    answer = answer | {
        "encryption-keys": [*answer["encryption-keys"], unseen],
        "snapshots": [*answer["snapshots"], {"snapshot-id": 7, "key-id": key_id}],
    }
    assert snapshots_without_keys(answer) == [7]
    updates = restore(answer, change.removed)
    assert updates == [{"action": "add-encryption-key", "encryption-key": keks(metadata)[0]}]
    whole = applied(answer, updates)
    assert snapshots_without_keys(whole) == []
    assert manager_of(whole).manifest_list_key(key_id) == km
    assert restore(whole, change.removed) == []


def test_a_key_and_its_kek_are_put_back_together() -> None:
    metadata = java_metadata("mor_dv")
    keys = manager_of(metadata).encryption_keys
    bare = metadata | {"encryption-keys": []}
    assert snapshots_without_keys(bare) == [s["snapshot-id"] for s in metadata["snapshots"]]
    whole = applied(bare, restore(bare, keys))
    assert snapshots_without_keys(whole) == []
    assert restore(bare, ()) == []
    assert snapshots_without_keys(metadata) == []


def test_a_kek_under_another_master_key_is_no_kek_of_the_table() -> None:
    metadata = java_metadata("mor_dv")
    metadata["properties"]["encryption.key-id"] = "keyB"
    assert len(snapshots_without_keys(metadata)) == len(metadata["snapshots"])


def test_a_kek_that_came_in_under_the_previous_master_key_is_adopted() -> None:
    metadata = java_metadata("mor_dv")
    previous = manager_of(metadata)
    change = rewrap(metadata, previous, table_key_id="keyB")
    late = with_own_kek(previous)
    km = KeyMetadata.generate(16).with_file_length(1000)
    key_id = late.add_manifest_list_key(km)
    answer = applied(metadata, change)
    answer = answer | {
        "encryption-keys": [
            *answer["encryption-keys"],
            *(key.to_dict() for key in late.encryption_keys),
        ],
        "snapshots": [*answer["snapshots"], {"snapshot-id": 7, "key-id": key_id}],
    }
    assert snapshots_without_keys(answer) == [7]
    manager = manager_of(answer, key_id="keyB")
    whole = applied(answer, adopt(answer, previous, manager))
    assert snapshots_without_keys(whole) == []
    assert manager_of(whole, key_id="keyB").manifest_list_key(key_id) == km
    assert adopt(whole, previous, manager_of(whole, key_id="keyB")) == []
    assert adopt(metadata, previous, previous) == []


def test_a_change_shows_no_key() -> None:
    metadata = java_metadata("mor_dv")
    change = rotate(metadata, manager_of(metadata))
    assert "encrypted_key_metadata" not in repr(replace(change, updates=[]))

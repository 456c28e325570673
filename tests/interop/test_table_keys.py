"""A table's keys both ways: what one side wraps the other opens, and both pick the same KEKs."""

from __future__ import annotations

import time

import pytest

import ags1
from ags1 import Ags1Error, AuthenticationError, KeyMetadata, KeyMetadataError
from ags1.keys.envelope import KEY_TIMESTAMP, KEY_TIMESTAMP_PROPOSED, EncryptedKey
from ags1.keys.manager import EncryptionManager
from ags1.kms import KmsClient

from .java import Java, JavaError
from .spark import UNITEST_KMS
from .table_keys import JavaKeys, from_texts, manifest_list_ids, reprinted, texts

pytestmark = pytest.mark.interop

HOUR_MS = 3_600_000
LIFETIME_MS = 730 * 24 * HOUR_MS
key_sizes = pytest.mark.parametrize("key_size", [16, 24, 32])
Lists = dict[str, KeyMetadata]


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def a_key(key_size: int = 16) -> KeyMetadata:
    """The key metadata of a manifest list that was written."""
    return ags1.encrypt(b"a manifest list", key_size=key_size)[1]


def a_table(
    kms: KmsClient, lists: int = 3, key_size: int = 16, created_ms: int | None = None
) -> tuple[EncryptionManager, Lists]:
    """The keys of a table with so many snapshots, and what they are."""
    clock = now_ms if created_ms is None else lambda: created_ms
    manager = EncryptionManager(kms, "keyA", (), key_size, clock_ms=clock)
    added = [a_key(key_size) for _ in range(lists)]
    return manager, {manager.add_manifest_list_key(km): km for km in added}


def under(java: Java, table_key_id: str = "keyA", key_size: int = 16) -> JavaKeys:
    return JavaKeys(java, UNITEST_KMS, table_key_id, key_size)


@key_sizes
def test_java_opens_what_we_wrapped(java: Java, kms: KmsClient, key_size: int) -> None:
    manager, lists = a_table(kms, key_size=key_size)
    assert len(manager.encryption_keys) == 4
    assert under(java, key_size=key_size).open(manager.encryption_keys, lists) == lists


@key_sizes
def test_we_open_what_java_wrapped(java: Java, kms: KmsClient, key_size: int) -> None:
    keys: tuple[EncryptedKey, ...] = ()
    lists: Lists = {}
    for _ in range(3):
        km = a_key(key_size)
        added = under(java, key_size=key_size).add(keys, km)
        keys = added.keys
        lists[added.key_id] = km
    manager = EncryptionManager(kms, "keyA", keys, key_size)
    assert [len(manager.key_encryption_keys), len(keys)] == [1, 4]
    assert {key_id: manager.manifest_list_key(key_id) for key_id in lists} == lists


def test_both_take_turns_under_one_kek(java: Java, kms: KmsClient) -> None:
    manager, lists = a_table(kms, 1)
    [kek] = manager.key_encryption_keys
    for _ in range(4):
        theirs, ours = a_key(), a_key()
        added = under(java).add(manager.encryption_keys, theirs)
        assert added.kek_id == kek.key_id
        manager = EncryptionManager(kms, "keyA", added.keys)
        lists |= {added.key_id: theirs, manager.add_manifest_list_key(ours): ours}
    assert manager.key_encryption_keys == (kek,)
    assert under(java).open(manager.encryption_keys, lists) == lists
    assert {key_id: manager.manifest_list_key(key_id) for key_id in lists} == lists


def test_java_prints_our_entries_as_we_do(java: Java, kms: KmsClient) -> None:
    manager, _ = a_table(kms)
    plain = EncryptedKey("an id", b"\0\xff" * 7)
    odd = EncryptedKey('ключ/"1"\\', b"x", "arn:aws:kms:eu-1:1:key/ä", {"größe": "\t1"})
    printed = texts([*manager.encryption_keys, plain, odd])
    assert reprinted(java, printed) == printed


def test_we_print_javas_entries_as_it_does(java: Java) -> None:
    keys = under(java).add((), a_key()).keys
    printed = reprinted(java, texts(keys))
    assert texts(from_texts(printed)) == printed


@pytest.mark.parametrize(("margin_ms", "same"), [(HOUR_MS, True), (-HOUR_MS, False)])
def test_both_use_a_kek_for_730_days(
    java: Java, kms: KmsClient, margin_ms: int, same: bool
) -> None:
    manager, lists = a_table(kms, created_ms=now_ms() - LIFETIME_MS + margin_ms)
    [kek] = manager.key_encryption_keys
    km = a_key()
    added = under(java).add(manager.encryption_keys, km)
    assert (added.kek_id == kek.key_id) is same

    ours = EncryptionManager(kms, "keyA", manager.encryption_keys)
    ours.add_manifest_list_key(km)
    assert len(ours.key_encryption_keys) == (1 if same else 2)
    for keys in (added.keys, ours.encryption_keys):
        ids = manifest_list_ids(EncryptionManager(kms, "keyA", keys))
        opened = under(java).open(keys, ids)
        assert list(opened.values()).count(km) == 1
        assert lists.items() <= opened.items()


def test_java_opens_keks_of_several_sizes(java: Java, kms: KmsClient) -> None:
    manager, lists = a_table(kms, key_size=16)
    manager = EncryptionManager(kms, "keyA", manager.encryption_keys, 32)
    longer = a_key(32)
    lists[manager.add_manifest_list_key(longer)] = longer
    assert len(manager.key_encryption_keys) == 2
    assert under(java, key_size=32).open(manager.encryption_keys, lists) == lists


def test_java_goes_on_after_our_rotation(java: Java, kms: KmsClient) -> None:
    manager, lists = a_table(kms, created_ms=now_ms() - LIFETIME_MS - HOUR_MS)
    km = a_key()
    aged = EncryptionManager(kms, "keyA", manager.encryption_keys)
    lists[aged.add_manifest_list_key(km)] = km
    assert len(aged.key_encryption_keys) == 2

    rotated = aged.rotate()
    [kek] = rotated.key_encryption_keys
    assert kek not in aged.key_encryption_keys
    assert under(java).open(rotated.encryption_keys, lists) == lists
    for _ in range(5):  # which KEK Java takes is a matter of chance
        added = under(java).add(rotated.encryption_keys, km)
        assert added.kek_id == kek.key_id


def test_java_goes_on_under_another_master_key(java: Java, kms: KmsClient) -> None:
    manager, lists = a_table(kms, created_ms=now_ms() - LIFETIME_MS - HOUR_MS)
    km = a_key()
    aged = EncryptionManager(kms, "keyA", manager.encryption_keys)
    lists[aged.add_manifest_list_key(km)] = km
    rewrapped = aged.rewrap(table_key_id="keyB")

    assert under(java, "keyB").open(rewrapped.encryption_keys, lists) == lists
    with pytest.raises(JavaError, match="GCM"):
        under(java, "keyA").open(rewrapped.encryption_keys, lists)
    added = under(java, "keyB").add(rewrapped.encryption_keys, km)
    assert added.kek_id in [entry.key_id for entry in rewrapped.key_encryption_keys]
    lists[added.key_id] = km
    manager = EncryptionManager(kms, "keyB", added.keys)
    assert {key_id: manager.manifest_list_key(key_id) for key_id in lists} == lists


def test_java_opens_what_we_left_after_pruning(java: Java, kms: KmsClient) -> None:
    manager, lists = a_table(kms, lists=4, created_ms=now_ms() - LIFETIME_MS - HOUR_MS)
    aged = EncryptionManager(kms, "keyA", manager.encryption_keys)
    newer = [a_key(), a_key()]
    lists |= {aged.add_manifest_list_key(km): km for km in newer}
    ids = list(lists)
    live = {key_id: lists[key_id] for key_id in (ids[1], ids[5])}

    pruned = aged.prune(live)
    assert set(manifest_list_ids(pruned)) == set(live)
    assert under(java).open(pruned.encryption_keys, live) == live
    with pytest.raises(JavaError):
        under(java).open(pruned.encryption_keys, ids[:1])
    under(java).add(pruned.encryption_keys, a_key())


def test_java_cannot_open_what_we_shredded(java: Java, kms: KmsClient) -> None:
    manager, lists = a_table(kms, created_ms=now_ms() - LIFETIME_MS - HOUR_MS)
    [old] = manager.key_encryption_keys
    aged = EncryptionManager(kms, "keyA", manager.encryption_keys)
    km = a_key()
    kept = {aged.add_manifest_list_key(km): km}

    shredded = aged.shred(old.key_id)
    assert under(java).open(shredded.encryption_keys, kept) == kept
    for key_id in lists:
        with pytest.raises(JavaError):
            under(java).open(shredded.encryption_keys, [key_id])
        with pytest.raises(KeyMetadataError):
            shredded.manifest_list_key(key_id)


def test_both_refuse_a_kek_whose_timestamp_was_changed(java: Java, kms: KmsClient) -> None:
    manager, lists = a_table(kms)
    [kek] = manager.key_encryption_keys
    younger = {KEY_TIMESTAMP: str(int(kek.properties[KEY_TIMESTAMP]) + 1)}
    changed = [
        EncryptedKey(kek.key_id, kek.encrypted_key_metadata, "keyA", younger) if k == kek else k
        for k in manager.encryption_keys
    ]
    with pytest.raises(JavaError, match="GCM"):
        under(java).open(changed, lists)
    with pytest.raises(AuthenticationError):
        EncryptionManager(kms, "keyA", changed).manifest_list_key(next(iter(lists)))


def test_both_refuse_entries_under_another_kek(java: Java, kms: KmsClient) -> None:
    (ours, lists), (other, _) = a_table(kms, 1), a_table(kms, 1)
    [key_id] = lists
    [kek] = other.key_encryption_keys
    entry = next(key for key in ours.encryption_keys if key.key_id == key_id)
    mixed = [kek, EncryptedKey(key_id, entry.encrypted_key_metadata, kek.key_id)]
    with pytest.raises(JavaError, match="GCM"):
        under(java).open(mixed, lists)
    with pytest.raises(Ags1Error):
        EncryptionManager(kms, "keyA", mixed).manifest_list_key(key_id)


def test_java_needs_the_timestamp_in_its_own_spelling(java: Java, kms: KmsClient) -> None:
    """Why we write KEY_TIMESTAMP, though we read the other one too; a rotation mends the table."""
    manager, lists = a_table(kms)
    [kek] = manager.key_encryption_keys
    proposed = {KEY_TIMESTAMP_PROPOSED: kek.properties[KEY_TIMESTAMP]}
    keys = [
        EncryptedKey(kek.key_id, kek.encrypted_key_metadata, "keyA", proposed) if k == kek else k
        for k in manager.encryption_keys
    ]
    for attempt in (
        lambda: under(java).open(keys, lists),
        lambda: under(java).add(keys, a_key()),
    ):
        with pytest.raises(JavaError):
            attempt()
    found = EncryptionManager(kms, "keyA", keys)
    assert {key_id: found.manifest_list_key(key_id) for key_id in lists} == lists
    rotated = found.rotate().encryption_keys
    assert under(java).open(rotated, lists) == lists
    under(java).add(rotated, a_key())

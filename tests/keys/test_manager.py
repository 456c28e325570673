"""A table's keys, from metadata.json down to each manifest list's, and what may change in the list.

The KMS is the one that Java's tests use, so the tables that Java wrote open here.
"""

from __future__ import annotations

import base64
import json
import linecache
import pickle
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import pytest
from kms_contract import spellings

from ags1 import (
    AuthenticationError,
    KeyMetadata,
    KeyMetadataError,
    KeyReuseError,
    KmsAccessDeniedError,
    KmsError,
    KmsKeyDisabledError,
    KmsKeyNotFoundError,
    KmsUnavailableError,
    KmsUnwrapError,
)
from ags1.iceberg.spec.table_keys import with_own_kek
from ags1.keys import (
    EncryptedKey,
    EncryptionManager,
    KekCache,
    KeyEncryptionKey,
    encryption_keys_to_dicts,
    parse_encryption_keys,
)
from ags1.keys import cache as cache_module
from ags1.keys.manager import CLOCK_SKEW_MS, KEK_LIFETIME_MS
from ags1.kms import GeneratedKey, KmsClient, LocalKms

pytestmark = pytest.mark.filterwarnings("ignore:.*for tests and demonstrations")

TABLES = Path(__file__).parents[1] / "tables"
MASTERS = {"keyA": b"0123456789012345", "keyB": b"1123456789012345"}
NOW = 1_800_000_000_000
DAY = 24 * 60 * 60 * 1000
KEY_A: dict[str, Any] = {"encryption.key-id": "keyA"}


def memory_kms() -> KmsClient:
    from ags1.kms.memory import MemoryKms

    return MemoryKms({f"encryption.kms.key.{name}": key.hex() for name, key in MASTERS.items()})


class Watched:
    """A KMS that counts its calls, can be slow, broken, and a maker of keys."""

    def __init__(self, makes_keys: bool = False) -> None:
        self._kms = memory_kms()
        self.calls: list[tuple[str, str]] = []
        self.failure: BaseException | None = None
        self.gate: threading.Event | None = None
        self.supports_key_generation = makes_keys
        self.generated_size: int | None = None
        self.accepts_foreign_keys = False
        self.wraps_with_public_key = False

    def _called(self, what: str, key_id: str) -> None:
        self.calls.append((what, key_id))
        if self.gate is not None:
            assert self.gate.wait(30)
        if self.failure is not None:
            raise self.failure

    def wrap_key(self, key: bytes, key_id: str) -> bytes:
        self._called("wrap", key_id)
        return self._kms.wrap_key(key, key_id)

    def unwrap_key(self, wrapped_key: bytes, key_id: str) -> bytes:
        self._called("unwrap", key_id)
        return self._kms.unwrap_key(wrapped_key, key_id)

    def generate_key(self, key_id: str, key_size: int) -> GeneratedKey:
        self._called("generate", key_id)
        if key_size == 24:
            raise NotImplementedError
        key = b"G" * (self.generated_size or key_size)
        return GeneratedKey(key, self._kms.wrap_key(key, key_id))

    def close(self) -> None:
        pass


@pytest.fixture
def kms() -> Watched:
    return Watched()


def at(now_ms: int) -> Callable[[], int]:
    return lambda: now_ms


def km_of(length: int = 100) -> KeyMetadata:
    return KeyMetadata.generate(16).with_file_length(length)


def kek_entry(age_ms: int, *, key_id: str = "", by: str = "keyA", size: int = 16) -> EncryptedKey:
    made = KeyEncryptionKey.generate(memory_kms(), by, key_size=size, timestamp_ms=NOW - age_ms)
    entry = made.entry
    return EncryptedKey(key_id or entry.key_id, entry.encrypted_key_metadata, by, entry.properties)


def variables_of(trace: TracebackType | None) -> str:
    """Return what an error reporter could show: the variables of the frames outside these tests."""
    shown = []
    while trace is not None:
        frame = trace.tb_frame
        if frame.f_code.co_filename != __file__:
            shown.append(f"{frame.f_code.co_filename}: {frame.f_locals!r}")
        trace = trace.tb_next
    return "\n".join(shown)


def by_id(keys: Iterable[EncryptedKey]) -> dict[str, EncryptedKey]:
    return {key.key_id: key for key in keys}


def added(manager: EncryptionManager, count: int = 1) -> dict[str, KeyMetadata]:
    made = {}
    for n in range(count):
        km = km_of(n + 36)
        made[manager.add_manifest_list_key(km)] = km
    return made


class TestWhatJavaWrote:
    @pytest.fixture(
        params=sorted(TABLES.glob("*/metadata/*.metadata.json")), ids=lambda p: p.parts[-3]
    )
    def metadata(self, request: pytest.FixtureRequest) -> dict[str, Any]:
        return json.loads(request.param.read_text())

    def test_every_manifest_list_key_opens(self, metadata: dict[str, Any], kms: Watched) -> None:
        manager = EncryptionManager.from_metadata(metadata, kms, table_key_id="keyA")
        for snapshot in metadata.get("snapshots", []):
            km = manager.manifest_list_key(snapshot["key-id"])
            assert len(km.encryption_key) == manager.data_key_length
            assert len(km.aad_prefix or b"") == 16
            assert km.file_length is not None
        keks = {key.encrypted_by_id for key in manager.encryption_keys} - {"keyA"}
        assert kms.calls == [("unwrap", "keyA")] * len(keks)

    def test_the_list_is_printed_as_java_printed_it(
        self, metadata: dict[str, Any], kms: Watched
    ) -> None:
        manager = EncryptionManager.from_metadata(metadata, kms)
        printed = encryption_keys_to_dicts(manager.encryption_keys)
        assert json.dumps(printed) == json.dumps(metadata.get("encryption-keys", []))

    def test_javas_kek_is_used_for_what_is_added(
        self, metadata: dict[str, Any], kms: Watched
    ) -> None:
        keks = [key for key in metadata.get("encryption-keys", []) if "properties" in key]
        if not keks:
            pytest.skip("a table without snapshots has no keys")
        made_ms = int(keks[0]["properties"]["KEY_TIMESTAMP"])
        manager = EncryptionManager.from_metadata(metadata, kms, clock_ms=at(made_ms + DAY))
        (key_id,) = added(manager)
        assert manager.encryption_keys[-1].encrypted_by_id == keks[0]["key-id"]
        assert len(manager.encryption_keys) == len(metadata["encryption-keys"]) + 1
        assert manager.encryption_keys[-1].key_id == key_id

    def test_another_key_id_than_the_catalogs_is_refused(
        self, metadata: dict[str, Any], kms: Watched
    ) -> None:
        with pytest.raises(KeyMetadataError, match=r"keyA.*not 'keyB'"):
            EncryptionManager.from_metadata(metadata, kms, table_key_id="keyB")
        assert not kms.calls


def test_where_a_name_may_be_a_strangers_it_has_to_be_given(kms: Watched) -> None:
    """As with AWS: else whoever can write the metadata chooses whose master key is asked."""
    metadata = {"properties": KEY_A}
    kms.accepts_foreign_keys = True
    with pytest.raises(KeyMetadataError, match="another user's key"):
        EncryptionManager.from_metadata(metadata, kms)
    assert EncryptionManager.from_metadata(metadata, kms, table_key_id="keyA")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"properties": {}}, "not encrypted"),
        ({"properties": None}, "not encrypted"),
        (
            {"properties": {"encryption.key-id": "keyA", "encryption.data-key-length": "17"}},
            "16, 24",
        ),
        ({"properties": {"encryption.key-id": "keyA", "encryption.data-key-length": 16}}, "16, 24"),
        ({"properties": {"encryption.key-id": ""}}, "key ID"),
        ({"properties": {"encryption.key-id": 5}}, "key ID"),
        ({"encryption-keys": {}}, "not a list"),
        ({"encryption-keys": [{"key-id": "a"}]}, "encrypted-key-metadata"),
        ({"encryption-keys": 0}, "not a list"),
    ],
)
def test_malformed_metadata_is_refused(kms: Watched, change: dict[str, Any], message: str) -> None:
    metadata = {"properties": {"encryption.key-id": "keyA"}, "encryption-keys": [], **change}
    with pytest.raises(KeyMetadataError, match=message):
        EncryptionManager.from_metadata(metadata, kms)


class TestNewKeys:
    @pytest.mark.parametrize("size", [16, 24, 32])
    def test_file_keys_are_fresh_and_of_the_tables_length(self, kms: Watched, size: int) -> None:
        manager = EncryptionManager(kms, "keyA", data_key_length=size)
        made = [manager.new_file_key() for _ in range(100)]
        assert {len(km.encryption_key) for km in made} == {size}
        assert len({km.encryption_key for km in made}) == 100
        assert len({km.aad_prefix for km in made}) == 100
        assert not any(km.used for km in made)
        assert not kms.calls

    def test_file_keys_are_no_shorter_than_the_newest_kek(self, kms: Watched) -> None:
        manager = EncryptionManager(kms, "keyA", data_key_length=32, clock_ms=at(NOW))
        added(manager)
        shortened = EncryptionManager(
            kms, "keyA", manager.encryption_keys, data_key_length=16, clock_ms=at(NOW)
        )
        assert len(shortened.new_file_key().encryption_key) == 32

    @pytest.mark.parametrize("change", ["expired", "rotated", "with its own KEK", "emptied"])
    def test_a_lowered_length_shortens_no_key(self, kms: Watched, change: str) -> None:
        """Others may write the metadata, and lower the data key length there."""
        before = EncryptionManager(kms, "keyA", data_key_length=32, clock_ms=at(NOW))
        added(before)
        now = NOW + KEK_LIFETIME_MS if change == "expired" else NOW
        manager = EncryptionManager(kms, "keyA", before.encryption_keys, 16, clock_ms=at(now))
        if change == "rotated":
            manager = manager.rotate()
        elif change == "with its own KEK":
            manager = with_own_kek(manager)
        elif change == "emptied":
            manager = manager.prune(()).rotate()
        assert len(manager.new_file_key().encryption_key) == 32
        added(manager)
        keks = [KeyEncryptionKey.unwrap(kms, entry) for entry in manager.key_encryption_keys]
        assert {kek.key_size for kek in keks} == {32}
        assert len(keks) == (2 if change == "expired" else 1)

    def test_a_shorter_kek_with_a_newer_time_shortens_no_key(self, kms: Watched) -> None:
        # It is another table's, and its time is changed.
        keys = [kek_entry(0, size=32), kek_entry(-DAY // 2)]
        manager = EncryptionManager(kms, "keyA", keys, 16, clock_ms=at(NOW))
        assert len(manager.new_file_key().encryption_key) == 32
        added(manager)
        assert manager.encryption_keys[-1].encrypted_by_id == keys[0].key_id

    @pytest.mark.parametrize("change", ["rotated", "expired"])
    def test_a_new_kek_is_no_shorter_than_what_it_wraps(self, kms: Watched, change: str) -> None:
        # Java goes on with a KEK when the data key length is raised.
        age = KEK_LIFETIME_MS if change == "expired" else 0
        kek, km = KeyEncryptionKey.unwrap(kms, kek_entry(age)), KeyMetadata.generate(32)
        key = kek.wrap_key_metadata(km.with_file_length(36))
        manager = EncryptionManager(kms, "keyA", [kek.entry, key], 16, clock_ms=at(NOW))
        if change == "rotated":
            manager = manager.rotate()
        else:
            manager.add_manifest_list_key(km.with_file_length(36))
        new = KeyEncryptionKey.unwrap(kms, manager.key_encryption_keys[-1])
        assert new.key_size == len(manager.new_file_key().encryption_key) == 32

    def test_a_kek_that_the_kms_does_not_unwrap_has_no_length(self, kms: Watched) -> None:
        lost = EncryptedKey("lost", b"x" * 44, "keyA", {"KEY_TIMESTAMP": str(NOW)})
        manager = EncryptionManager(kms, "keyA", [lost, kek_entry(DAY, size=24)], clock_ms=at(NOW))
        assert manager.new_key_size() == 24
        kms.failure = KmsUnavailableError("down")
        manager = EncryptionManager(kms, "keyA", manager.encryption_keys, clock_ms=at(NOW))
        with pytest.raises(KmsUnavailableError):
            manager.new_file_key()

    @pytest.mark.parametrize("size", [16, 24, 32])
    def test_the_first_key_makes_a_kek_of_the_tables_length(self, kms: Watched, size: int) -> None:
        manager = EncryptionManager(kms, "keyA", (), size, clock_ms=at(NOW))
        made = added(manager, 3)
        kek, *wrapped = manager.encryption_keys
        assert [entry.key_id for entry in wrapped] == list(made)
        assert {entry.encrypted_by_id for entry in wrapped} == {kek.key_id}
        assert kek.to_dict()["properties"] == {"KEY_TIMESTAMP": str(NOW)}
        assert kek.encrypted_by_id == "keyA"
        assert len(base64.b64decode(kek.key_id)) == 16
        assert len(memory_kms().unwrap_key(kek.encrypted_key_metadata, "keyA")) == size
        assert kms.calls == [("wrap", "keyA")]

    def test_what_was_added_opens_here_and_from_the_printed_list(self, kms: Watched) -> None:
        manager = EncryptionManager(kms, "keyA", clock_ms=at(NOW))
        made = added(manager, 5)
        printed = json.loads(json.dumps(encryption_keys_to_dicts(manager.encryption_keys)))
        again = EncryptionManager(memory_kms(), "keyA", parse_encryption_keys(printed))
        for key_id, km in made.items():
            assert manager.manifest_list_key(key_id) == km == again.manifest_list_key(key_id)

    def test_the_kms_makes_the_kek_where_it_can(self) -> None:
        kms = Watched(makes_keys=True)
        manager = EncryptionManager(kms, "keyA", (), 32)
        added(manager)
        kek = manager.encryption_keys[0]
        assert memory_kms().unwrap_key(kek.encrypted_key_metadata, "keyA") == b"G" * 32
        assert kms.calls == [("generate", "keyA")]

    def test_a_size_that_the_kms_cannot_make_is_made_here(self) -> None:
        kms = Watched(makes_keys=True)
        manager = EncryptionManager(kms, "keyA", (), 24)
        added(manager)
        assert kms.calls == [("generate", "keyA"), ("wrap", "keyA")]

    def test_a_generated_key_of_another_size_is_refused(self) -> None:
        kms = Watched(makes_keys=True)
        kms.generated_size = 32
        with pytest.raises(KmsError, match="32 bytes where 16"):
            added(EncryptionManager(kms, "keyA"))

    def test_key_metadata_without_a_length_is_refused(self, kms: Watched) -> None:
        with pytest.raises(KeyMetadataError, match="length"):
            EncryptionManager(kms, "keyA").add_manifest_list_key(KeyMetadata.generate(16))
        assert not kms.calls

    def test_a_failed_kms_leaves_the_list_as_it_was(self, kms: Watched) -> None:
        manager = EncryptionManager(kms, "keyA")
        kms.failure = KmsUnavailableError("no answer")
        with pytest.raises(KmsUnavailableError):
            added(manager)
        assert manager.encryption_keys == ()
        kms.failure = None
        added(manager)
        assert len(manager.encryption_keys) == 2

    @pytest.mark.parametrize(
        "arguments",
        [("",), (None,), *(("keyA", (), size) for size in (15, 0, 16.0, True, "16", None))],
    )
    def test_bad_arguments_are_refused(self, kms: Watched, arguments: tuple[Any, ...]) -> None:
        with pytest.raises(KeyMetadataError):
            EncryptionManager(kms, *arguments)

    def test_two_entries_of_one_id_are_refused(self, kms: Watched) -> None:
        entries = [kek_entry(0, key_id="same"), kek_entry(0, key_id="same")]
        with pytest.raises(KeyMetadataError, match="one id"):
            EncryptionManager(kms, "keyA", entries)

    @pytest.mark.parametrize("answer", [b"", None, "text", 5, [1, 2]])
    @pytest.mark.parametrize("call", ["wrap_key", "unwrap_key", "generate_key"])
    def test_a_plug_ins_mistake_is_not_stored_as_a_key(self, call: str, answer: Any) -> None:
        kms = Watched(makes_keys=call == "generate_key")
        manager = EncryptionManager(kms, "keyA", [kek_entry(0)] if call == "unwrap_key" else ())
        made = GeneratedKey(bytes(16), answer) if call == "generate_key" else answer
        setattr(kms, call, lambda *_: made)
        before = manager.encryption_keys
        manager._clock_ms = at(NOW)
        with pytest.raises(KmsError, match="the KMS client returned"):
            added(manager)
        assert manager.encryption_keys == before


class TestWhichKek:
    def chosen(self, kms: Watched, *keks: EncryptedKey, length: int = 16) -> EncryptedKey | None:
        """Return the KEK among ``keks`` that wraps a new key; None when a new one was made."""
        manager = EncryptionManager(kms, "keyA", keks, length, clock_ms=at(NOW))
        (key_id,) = added(manager)
        wrapped_by = by_id(manager.encryption_keys)[key_id].encrypted_by_id
        return by_id(keks).get(wrapped_by or "")

    def test_the_newest_is_used(self, kms: Watched) -> None:
        keks = [kek_entry(age * DAY) for age in (300, 5, 700, 6)]
        assert self.chosen(kms, *keks) == keks[1]
        assert kms.calls == [("unwrap", "keyA")]

    def test_a_kek_serves_730_days_less_one_millisecond(self, kms: Watched) -> None:
        last = kek_entry(KEK_LIFETIME_MS - 1)
        assert self.chosen(kms, last) == last

    def test_a_kek_that_expires_exactly_now_has_expired(self, kms: Watched) -> None:
        assert self.chosen(kms, kek_entry(KEK_LIFETIME_MS)) is None

    def test_an_expired_kek_still_opens_what_it_wrapped(self, kms: Watched) -> None:
        manager = EncryptionManager(kms, "keyA", clock_ms=at(NOW))
        (old_id,) = (old := added(manager))
        late = EncryptionManager(
            kms, "keyA", manager.encryption_keys, clock_ms=at(NOW + KEK_LIFETIME_MS)
        )
        (new_id,) = added(late)
        assert late.manifest_list_key(old_id) == old[old_id]
        entries = by_id(late.encryption_keys)
        assert entries[old_id].encrypted_by_id != entries[new_id].encrypted_by_id
        assert len(late.encryption_keys) == 4

    def test_a_clock_that_is_behind_by_a_day_is_forgiven(self, kms: Watched) -> None:
        ahead = kek_entry(-CLOCK_SKEW_MS)
        assert self.chosen(kms, ahead) == ahead

    def test_a_kek_from_the_future_is_not_used(self, kms: Watched) -> None:
        assert self.chosen(kms, kek_entry(-CLOCK_SKEW_MS - 1)) is None

    def test_another_master_keys_kek_is_not_used(self, kms: Watched) -> None:
        assert self.chosen(kms, kek_entry(0, by="keyB")) is None

    @pytest.mark.parametrize("timestamp", ["", "soon", "1e12", "9" * 20, "١٢٣", " 1", "1.0"])
    def test_a_timestamp_that_is_no_number_is_not_used(self, kms: Watched, timestamp: str) -> None:
        made = kek_entry(0)
        entry = EncryptedKey(
            made.key_id, made.encrypted_key_metadata, "keyA", {"KEY_TIMESTAMP": timestamp}
        )
        assert self.chosen(kms, entry) is None

    def test_a_kek_shorter_than_the_data_keys_is_not_used(self, kms: Watched) -> None:
        short, long = kek_entry(0), kek_entry(DAY, size=32)
        assert self.chosen(kms, short, long, length=32) == long
        assert self.chosen(kms, short, length=32) is None

    def test_the_proposed_spelling_of_the_timestamp_counts(self, kms: Watched) -> None:
        made = kek_entry(0)
        entry = EncryptedKey(
            made.key_id, made.encrypted_key_metadata, "keyA", {"key-timestamp": str(NOW)}
        )
        assert self.chosen(kms, entry) == entry

    def test_unknown_properties_stay(self, kms: Watched) -> None:
        made = kek_entry(0)
        properties = {"KEY_TIMESTAMP": str(NOW), "owner": "Ü"}
        entry = EncryptedKey(made.key_id, made.encrypted_key_metadata, "keyA", properties)
        manager = EncryptionManager(kms, "keyA", [entry], clock_ms=at(NOW)).rewrap(None, "keyB")
        assert manager.encryption_keys[0].properties == properties


class TestHostileLists:
    """The list may come from whoever can write metadata.json. The master key's id never does."""

    @pytest.fixture
    def manager(self, kms: Watched) -> EncryptionManager:
        manager = EncryptionManager(kms, "keyA", clock_ms=at(NOW))
        added(manager, 2)
        return manager

    def changed(self, manager: EncryptionManager, index: int, **fields: Any) -> EncryptionManager:
        entries = [entry.to_dict() for entry in manager.encryption_keys]
        entries[index] |= fields
        return EncryptionManager(memory_kms(), "keyA", parse_encryption_keys(entries))

    def test_a_kek_is_unwrapped_by_the_tables_key_alone(self, manager: EncryptionManager) -> None:
        kms = Watched()
        # An attacker's own key, which this KMS would unwrap for us.
        attackers = kek_entry(0, by="keyB")
        wrapped = KeyEncryptionKey.unwrap(memory_kms(), attackers).wrap_key_metadata(km_of())
        forged = EncryptionManager(kms, "keyA", [attackers, wrapped])
        with pytest.raises(
            KmsUnwrapError, match="'keyB' wrapped it, and the table's key is 'keyA'"
        ):
            forged.manifest_list_key(wrapped.key_id)
        assert kms.calls == [("unwrap", "keyA")]

    def test_a_changed_timestamp_is_noticed(self, manager: EncryptionManager) -> None:
        changed = self.changed(manager, 0, properties={"KEY_TIMESTAMP": str(NOW + 1)})
        with pytest.raises(AuthenticationError, match="does not verify"):
            changed.manifest_list_key(manager.encryption_keys[1].key_id)

    def test_two_timestamps_that_differ_are_refused(self, manager: EncryptionManager) -> None:
        properties = {"KEY_TIMESTAMP": str(NOW), "key-timestamp": str(NOW + 1)}
        with pytest.raises(KeyMetadataError, match="two different timestamps"):
            self.changed(manager, 0, properties=properties).manifest_list_key(
                manager.encryption_keys[1].key_id
            )

    def test_a_missing_timestamp_is_refused(self, manager: EncryptionManager) -> None:
        with pytest.raises(KeyMetadataError, match="KEY_TIMESTAMP"):
            self.changed(manager, 0, properties={}).manifest_list_key(
                manager.encryption_keys[1].key_id
            )

    def test_every_byte_of_a_wrapped_kek_counts(self, manager: EncryptionManager) -> None:
        wrapped = manager.encryption_keys[0].encrypted_key_metadata
        for position in range(len(wrapped)):
            bad = bytearray(wrapped)
            bad[position] ^= 0x80
            text = base64.b64encode(bad).decode()
            with pytest.raises(KmsUnwrapError):
                self.changed(manager, 0, **{"encrypted-key-metadata": text}).manifest_list_key(
                    manager.encryption_keys[1].key_id
                )

    def test_exchanged_entries_are_genuine_but_not_each_others_files(
        self, manager: EncryptionManager
    ) -> None:
        first, second = manager.encryption_keys[1:]
        text = base64.b64encode(second.encrypted_key_metadata).decode()
        changed = self.changed(manager, 1, **{"encrypted-key-metadata": text})
        assert changed.manifest_list_key(first.key_id) == manager.manifest_list_key(second.key_id)

    def test_a_kek_is_no_manifest_lists_key(self, manager: EncryptionManager) -> None:
        with pytest.raises(KeyMetadataError, match="is a KEK"):
            manager.manifest_list_key(manager.encryption_keys[0].key_id)

    def test_an_unknown_id_is_named(self, manager: EncryptionManager) -> None:
        with pytest.raises(KeyMetadataError, match="no 'gone'"):
            manager.manifest_list_key("gone")

    def test_a_missing_kek_is_named(self, kms: Watched, manager: EncryptionManager) -> None:
        kek, first, _ = manager.encryption_keys
        with pytest.raises(KeyMetadataError, match="not among the table's"):
            EncryptionManager(kms, "keyA", [first]).manifest_list_key(first.key_id)
        assert kek.key_id

    @pytest.mark.parametrize("by", [None, "self"])
    def test_an_entry_that_nothing_or_itself_wraps_is_refused(self, by: str | None) -> None:
        kms = Watched()
        entry = EncryptedKey("self", b"x" * 60, by)
        with pytest.raises((KeyMetadataError, KmsUnwrapError)):
            EncryptionManager(kms, "keyA", [entry]).manifest_list_key("self")

    def test_a_kek_of_no_aes_size_is_refused(self, kms: Watched) -> None:
        wrapped = memory_kms().wrap_key(b"short", "keyA")
        kek = EncryptedKey("kek", wrapped, "keyA", {"KEY_TIMESTAMP": str(NOW)})
        manager = EncryptionManager(kms, "keyA", [kek], clock_ms=at(NOW))
        with pytest.raises(KeyMetadataError, match="5 bytes"):
            added(manager)

    @pytest.mark.parametrize(
        "failure", [KmsKeyNotFoundError("x"), KmsAccessDeniedError("x"), KmsUnavailableError("x")]
    )
    def test_the_kmss_own_failures_come_through(
        self, manager: EncryptionManager, failure: KmsError
    ) -> None:
        kms = Watched()
        kms.failure = failure
        again = EncryptionManager(kms, "keyA", manager.encryption_keys)
        for _ in range(2):  # a failure is not kept
            with pytest.raises(type(failure)):
                again.manifest_list_key(manager.encryption_keys[1].key_id)
        kms.failure = None
        assert again.manifest_list_key(manager.encryption_keys[1].key_id)


class TestAMasterKeyWhosePublicHalfWraps:
    """Whoever can write the list can add a KEK that they know."""

    def test_new_keys_are_sealed_under_keks_made_here_only(self, kms: Watched) -> None:
        planted = kek_entry(-1000)
        kms.wraps_with_public_key = True
        manager = EncryptionManager(kms, "keyA", [planted], clock_ms=at(NOW))
        made = added(manager, 3)
        assert {by_id(manager.encryption_keys)[key].encrypted_by_id for key in made} == {
            manager.encryption_keys[1].key_id
        }
        assert kms.calls == [("wrap", "keyA")]
        # Nor when reading has brought the planted one into the cache.
        cache = KekCache(kms)
        cache.unwrap(planted, "keyA")
        manager = EncryptionManager(kms, "keyA", [planted], clock_ms=at(NOW), cache=cache)
        made = added(manager)
        assert planted.key_id not in {
            by_id(manager.encryption_keys)[key].encrypted_by_id for key in made
        }

    def test_the_one_made_here_goes_on_being_used(self, kms: Watched) -> None:
        kms.wraps_with_public_key = True
        cache = KekCache(kms)
        first = EncryptionManager(kms, "keyA", cache=cache)
        added(first)
        second = EncryptionManager(kms, "keyA", first.encryption_keys, cache=cache)
        added(second)
        assert len(second.key_encryption_keys) == 1
        other = EncryptionManager(kms, "keyA", second.encryption_keys)
        added(other)
        assert len(other.key_encryption_keys) == 2

    def test_reading_is_not_restricted(self, kms: Watched) -> None:
        manager = EncryptionManager(memory_kms(), "keyA")
        (key_id,) = (made := added(manager))
        kms.wraps_with_public_key = True
        assert (
            EncryptionManager(kms, "keyA", manager.encryption_keys).manifest_list_key(key_id)
            == made[key_id]
        )


class TestRewrap:
    @pytest.fixture
    def manager(self, kms: Watched) -> EncryptionManager:
        early = EncryptionManager(kms, "keyA", clock_ms=at(NOW))
        added(early, 3)
        manager = EncryptionManager(
            kms, "keyA", early.encryption_keys, clock_ms=at(NOW + KEK_LIFETIME_MS)
        )
        added(manager, 2)
        return manager

    def test_all_keks_change_and_nothing_else_does(self, manager: EncryptionManager) -> None:
        kms = Watched()
        moved = manager.rewrap(kms, "keyB")
        assert (moved.kms, moved.table_key_id) == (kms, "keyB")
        assert [key.key_id for key in moved.encryption_keys] == [
            key.key_id for key in manager.encryption_keys
        ]
        keks = {key.key_id for key in manager.key_encryption_keys}
        assert len(keks) == 2
        for old, new in zip(manager.encryption_keys, moved.encryption_keys, strict=True):
            if old.key_id in keks:
                assert (old.encrypted_by_id, new.encrypted_by_id) == ("keyA", "keyB")
                assert old.encrypted_key_metadata != new.encrypted_key_metadata
                assert old.properties == new.properties
            else:
                assert old == new
        fresh = EncryptionManager(memory_kms(), "keyB", moved.encryption_keys)
        for key in moved.encryption_keys:
            if key.key_id not in keks:
                assert fresh.manifest_list_key(key.key_id) == manager.manifest_list_key(key.key_id)

    def test_the_proposed_timestamp_gets_javas_spelling_too(self, kms: Watched) -> None:
        made = kek_entry(0)
        entry = EncryptedKey(
            made.key_id, made.encrypted_key_metadata, "keyA", {"key-timestamp": str(NOW)}
        )
        manager = EncryptionManager(kms, "keyA", [entry], clock_ms=at(NOW))
        (key_id,) = (made_keys := added(manager))
        moved = manager.rewrap(None, "keyB")
        assert moved.encryption_keys[0].properties == {
            "key-timestamp": str(NOW),
            "KEY_TIMESTAMP": str(NOW),
        }
        assert moved.manifest_list_key(key_id) == made_keys[key_id]

    def test_the_old_manager_stays_as_it_was(self, manager: EncryptionManager) -> None:
        before = manager.encryption_keys
        manager.rewrap(None, "keyB")
        assert manager.encryption_keys == before
        assert manager.table_key_id == "keyA"

    def test_it_succeeds_as_a_whole_or_fails(self, manager: EncryptionManager) -> None:
        bad = manager.encryption_keys[0]
        damaged = EncryptedKey(bad.key_id, b"x" * 44, "keyA", bad.properties)
        broken = EncryptionManager(memory_kms(), "keyA", [damaged, *manager.encryption_keys[1:]])
        with pytest.raises(KmsUnwrapError):
            broken.rewrap(None, "keyB")

    def test_a_kms_that_does_not_unwrap_what_it_wraps_is_noticed(
        self, manager: EncryptionManager
    ) -> None:
        class Forgetful(Watched):
            def unwrap_key(self, wrapped_key: bytes, key_id: str) -> bytes:
                super().unwrap_key(wrapped_key, key_id)
                return bytes(16)

        with pytest.raises(KmsError, match="does not unwrap"):
            manager.rewrap(Forgetful(), "keyB")

    def test_whoever_may_wrap_and_unwrap_may_rewrap(self, manager: EncryptionManager) -> None:
        kms = Watched()
        ours = EncryptionManager(kms, "keyA", manager.encryption_keys)
        moved = ours.rewrap()
        assert [what for what, _ in kms.calls] == ["unwrap", "wrap", "unwrap"] * 2
        for old, new in zip(ours.key_encryption_keys, moved.key_encryption_keys, strict=True):
            assert old.encrypted_key_metadata != new.encrypted_key_metadata
            # What a KMS unwrapped may have been stored by anybody, also after it is wrapped anew.
            kek = KeyEncryptionKey.unwrap(kms, old)
            assert not kek.rewrap(kms, "keyA").made_here

    def test_a_kek_is_kept_for_the_master_key_that_unwrapped_it(self, kms: Watched) -> None:
        entry = KeyEncryptionKey.generate(kms, "keyA", key_size=16).entry
        cache = KekCache(kms)
        cache.unwrap(entry, "keyA")
        assert cache.peek(entry, "keyA") is not None
        assert cache.peek(entry, "keyB") is None

    def test_the_result_can_be_used_at_once(self, manager: EncryptionManager) -> None:
        kms = Watched()
        moved = manager.rewrap(kms, "keyB")
        calls = len(kms.calls)
        made = added(moved)
        for key_id, km in made.items():
            assert moved.manifest_list_key(key_id) == km
        assert len(kms.calls) == calls


class TestRotate:
    def test_one_new_kek_wraps_every_key(self, kms: Watched) -> None:
        early = EncryptionManager(kms, "keyA", clock_ms=at(NOW))
        made = added(early, 3)
        manager = EncryptionManager(
            kms, "keyA", early.encryption_keys, clock_ms=at(NOW + KEK_LIFETIME_MS)
        )
        made |= added(manager, 2)
        rotated = manager.rotate()
        (kek,) = rotated.key_encryption_keys
        assert kek.key_id not in by_id(manager.encryption_keys)
        assert kek.timestamp == str(NOW + KEK_LIFETIME_MS)
        assert {key.key_id for key in rotated.encryption_keys} == {kek.key_id, *made}
        fresh = EncryptionManager(memory_kms(), "keyA", rotated.encryption_keys)
        assert {key_id: fresh.manifest_list_key(key_id) for key_id in made} == made

    def test_the_new_kek_is_the_next_ones_too(self, kms: Watched) -> None:
        manager = EncryptionManager(kms, "keyA", [kek_entry(0)], clock_ms=at(NOW)).rotate()
        (kek,) = manager.encryption_keys
        (key_id,) = added(manager)
        assert by_id(manager.encryption_keys)[key_id].encrypted_by_id == kek.key_id

    def test_a_property_does_not_make_a_kek_of_a_manifest_lists_key(self, kms: Watched) -> None:
        manager = EncryptionManager(kms, "keyA", clock_ms=at(NOW))
        (key_id,) = (made := added(manager))
        kek, entry = manager.encryption_keys
        marked = EncryptedKey(
            entry.key_id, entry.encrypted_key_metadata, kek.key_id, {"KEY_TIMESTAMP": "1"}
        )
        rotated = EncryptionManager(kms, "keyA", [kek, marked], clock_ms=at(NOW)).rotate()
        assert rotated.manifest_list_key(key_id) == made[key_id]

    def test_nothing_is_lost_on_the_way(self, kms: Watched) -> None:
        manager = EncryptionManager(kms, "keyA", clock_ms=at(NOW))
        added(manager, 2)
        orphan = EncryptionManager(kms, "keyA", manager.encryption_keys[1:], clock_ms=at(NOW))
        with pytest.raises(KeyMetadataError, match="not among"):
            orphan.rotate()
        assert orphan.encryption_keys == manager.encryption_keys[1:]


class TestWhatDoesNotOpen:
    @pytest.mark.parametrize("says", ["keyA", "keyB"])
    @pytest.mark.parametrize("change", ["rotate", "rewrap"])
    def test_a_foreign_kek_stays_as_it_is_if_nothing_needs_it(
        self, kms: Watched, caplog: pytest.LogCaptureFixture, change: str, says: str
    ) -> None:
        foreign = replace(kek_entry(0, by="keyB"), encrypted_by_id=says)
        kek = KeyEncryptionKey.unwrap(memory_kms(), foreign, "keyB")
        strays = [kek.wrap_key_metadata(km_of()) for _ in range(3)]
        manager = EncryptionManager(kms, "keyA")
        files = added(manager, 2)
        keys = [*manager.encryption_keys, foreign, *strays]
        ours = EncryptionManager(kms, "keyA", keys, clock_ms=at(NOW))
        for needed in (None, {*files, strays[0].key_id, foreign.key_id}):
            with pytest.raises(KmsUnwrapError):
                getattr(ours, change)(needed=needed)
        kms.calls.clear()
        changed = getattr(ours, change)(needed=set(files))
        assert kms.calls.count(("unwrap", "keyA")) <= 3
        assert {key_id: changed.manifest_list_key(key_id) for key_id in files} == files
        after = by_id(changed.encryption_keys)
        assert [after[key.key_id] for key in (foreign, *strays)] == [foreign, *strays]
        named = foreign.key_id if change == "rewrap" else strays[0].key_id
        assert f"Nothing refers to {named!r}: it stays as it is" in caplog.text

    @pytest.mark.parametrize(
        "error", [KmsKeyDisabledError, KmsKeyNotFoundError, KmsUnwrapError, KeyMetadataError]
    )
    def test_a_newer_kek_that_does_not_open_stops_no_rotation(
        self, kms: Watched, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
    ) -> None:
        manager = EncryptionManager(kms, "keyA", (), 24, clock_ms=at(NOW))
        files, lost = added(manager, 2), kek_entry(-1)

        def unwrap(wrapped_key: bytes, key_id: str) -> bytes:
            if wrapped_key == lost.encrypted_key_metadata:
                raise error("for the test")
            return memory_kms().unwrap_key(wrapped_key, key_id)

        monkeypatch.setattr(kms, "unwrap_key", unwrap)
        keys = [*manager.encryption_keys, lost]
        rotated = EncryptionManager(kms, "keyA", keys, clock_ms=at(NOW)).rotate(files)
        assert rotated.new_key_size() == 24
        assert {key_id: rotated.manifest_list_key(key_id) for key_id in files} == files

    def test_a_refusal_is_not_a_key_that_does_not_open(self, kms: Watched) -> None:
        manager = EncryptionManager(kms, "keyA")
        added(manager)
        ours = EncryptionManager(kms, "keyA", manager.encryption_keys)
        kms.failure = KmsAccessDeniedError("for the test")
        with pytest.raises(KmsAccessDeniedError):
            ours.rewrap(needed=())

    def test_the_new_master_key_has_to_work_for_every_kek(self, kms: Watched) -> None:
        manager = EncryptionManager(kms, "keyA")
        added(manager)
        with pytest.raises(KmsKeyNotFoundError):
            manager.rewrap(table_key_id="missing", needed=())


class TestPrune:
    def test_entries_that_no_snapshot_needs_go(self, kms: Watched) -> None:
        manager = EncryptionManager(kms, "keyA", clock_ms=at(NOW))
        made = list(added(manager, 9))
        pruned = manager.prune(made[-2:])
        assert [key.key_id for key in pruned.encryption_keys][1:] == made[-2:]
        for key_id in made[-2:]:
            assert pruned.manifest_list_key(key_id) == manager.manifest_list_key(key_id)

    def test_a_kek_stays_while_a_snapshot_needs_it(self, kms: Watched) -> None:
        early = EncryptionManager(kms, "keyA", clock_ms=at(NOW))
        (old_id,) = added(early)
        late = EncryptionManager(
            kms, "keyA", early.encryption_keys, clock_ms=at(NOW + KEK_LIFETIME_MS)
        )
        (new_id,) = added(late)
        assert late.prune([old_id, new_id]).encryption_keys == late.encryption_keys
        assert len(late.prune([new_id]).encryption_keys) == 2
        # The unexpired KEK stays for the next commit, though nothing needs it.
        assert len(late.prune([old_id]).encryption_keys) == 3
        assert len(late.prune([]).encryption_keys) == 1

    def test_no_key_of_a_live_snapshot_may_be_missing(self, kms: Watched) -> None:
        manager = EncryptionManager(kms, "keyA")
        added(manager)
        with pytest.raises(KeyMetadataError, match="no 'gone'"):
            manager.prune(["gone"])

    def test_it_asks_no_kms(self, kms: Watched) -> None:
        manager = EncryptionManager(kms, "keyA")
        made = list(added(manager, 3))
        calls = len(kms.calls)
        EncryptionManager(kms, "keyA", manager.encryption_keys).prune(made[:1])
        assert len(kms.calls) == calls


class TestShred:
    def test_its_snapshots_open_no_more_and_others_do(self, kms: Watched) -> None:
        early = EncryptionManager(kms, "keyA", clock_ms=at(NOW))
        (old_id,) = added(early)
        manager = EncryptionManager(
            kms, "keyA", early.encryption_keys, clock_ms=at(NOW + KEK_LIFETIME_MS)
        )
        (new_id,) = added(manager)
        old_kek, new_kek = manager.key_encryption_keys
        shredded = manager.shred(old_kek.key_id)
        assert {key.key_id for key in shredded.encryption_keys} == {new_kek.key_id, new_id}
        assert shredded.manifest_list_key(new_id)
        with pytest.raises(KeyMetadataError):
            shredded.manifest_list_key(old_id)

    def test_an_older_list_still_opens_them(self, kms: Watched) -> None:
        manager = EncryptionManager(kms, "keyA")
        (key_id,) = added(manager)
        manager.shred(manager.key_encryption_keys[0].key_id)
        older = EncryptionManager(memory_kms(), "keyA", manager.encryption_keys)
        assert older.manifest_list_key(key_id)

    def test_only_a_kek_can_be_shredded(self, kms: Watched) -> None:
        manager = EncryptionManager(kms, "keyA")
        (key_id,) = added(manager)
        for wrong in (key_id, "gone"):
            with pytest.raises(KeyMetadataError):
                manager.shred(wrong)


class TestCache:
    @pytest.fixture
    def keys(self) -> tuple[EncryptedKey, ...]:
        manager = EncryptionManager(memory_kms(), "keyA", clock_ms=at(NOW))
        added(manager, 20)
        return manager.encryption_keys

    def test_one_call_for_a_thousand_snapshots(self, kms: Watched) -> None:
        manager = EncryptionManager(memory_kms(), "keyA")
        made = added(manager, 1000)
        reader = EncryptionManager(kms, "keyA", manager.encryption_keys)
        assert {key_id: reader.manifest_list_key(key_id) for key_id in made} == made
        assert kms.calls == [("unwrap", "keyA")]

    def test_one_call_however_many_threads_ask(
        self, kms: Watched, keys: tuple[EncryptedKey, ...]
    ) -> None:
        manager = EncryptionManager(kms, "keyA", keys)
        kms.gate = threading.Event()
        results: list[KeyMetadata] = []

        def work(key_id: str) -> None:
            results.append(manager.manifest_list_key(key_id))

        threads = [threading.Thread(target=work, args=(key.key_id,)) for key in keys[1:]]
        for thread in threads:
            thread.start()
        while not kms.calls:
            time.sleep(0.001)
        kms.gate.set()
        for thread in threads:
            thread.join(30)
        assert len(results) == 20
        assert kms.calls == [("unwrap", "keyA")]

    def test_a_failure_is_everybodys_and_is_not_kept(
        self, kms: Watched, keys: tuple[EncryptedKey, ...]
    ) -> None:
        manager = EncryptionManager(kms, "keyA", keys)
        kms.gate = threading.Event()
        kms.failure = KmsUnavailableError("no answer")
        errors: list[BaseException] = []

        def work(key_id: str) -> None:
            try:
                manager.manifest_list_key(key_id)
            except KmsUnavailableError as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(key.key_id,)) for key in keys[1:]]
        for thread in threads:
            thread.start()
        while not kms.calls:
            time.sleep(0.001)
        time.sleep(0.05)  # lets most of them wait; those that come later make a call of their own
        kms.gate.set()
        for thread in threads:
            thread.join(30)
        assert len(errors) == 20
        assert len({id(error) for error in errors}) == 20  # a traceback of its own for each
        assert len(kms.calls) < 20
        kms.failure = None
        assert manager.manifest_list_key(keys[1].key_id)

    def test_an_interrupted_call_is_made_by_another(
        self, kms: Watched, keys: tuple[EncryptedKey, ...]
    ) -> None:
        manager = EncryptionManager(kms, "keyA", keys)
        kms.failure = KeyboardInterrupt()
        with pytest.raises(KeyboardInterrupt):
            manager.manifest_list_key(keys[1].key_id)
        kms.failure = None
        assert manager.manifest_list_key(keys[1].key_id)

    def test_a_kek_is_kept_for_an_hour(self, kms: Watched, keys: tuple[EncryptedKey, ...]) -> None:
        now = [0.0]
        manager = EncryptionManager(kms, "keyA", keys, cache=KekCache(kms, clock=lambda: now[0]))
        for now[0], calls in [(0.0, 1), (3599.0, 1), (3600.0, 2), (7199.0, 2), (7200.5, 3)]:
            manager.manifest_list_key(keys[1].key_id)
            assert len(kms.calls) == calls

    def test_an_expired_kek_is_wiped_though_nobody_asks_for_it(self, kms: Watched) -> None:
        now = [0.0]
        cache = KekCache(kms, clock=lambda: now[0])
        key = cache.unwrap(kek_entry(0), "keyA")._key
        now[0] = 4000.0
        cache.unwrap(kek_entry(1), "keyA")
        assert key == bytes(16)

    def test_the_number_kept_is_bounded_and_the_oldest_goes(self, kms: Watched) -> None:
        cache = KekCache(kms, capacity=3)
        entries = [kek_entry(age) for age in range(4)]
        for entry in entries[:3]:
            cache.unwrap(entry)
        cache.unwrap(entries[0])
        cache.unwrap(entries[3])
        assert len(kms.calls) == 4
        cache.unwrap(entries[0])
        assert len(kms.calls) == 4
        cache.unwrap(entries[1])
        assert len(kms.calls) == 5

    def test_what_leaves_is_wiped_once_its_last_user_is_done(self, kms: Watched) -> None:
        cache = KekCache(kms, capacity=1)
        kek = cache.unwrap(kek_entry(0))
        key = kek._key
        cache.unwrap(kek_entry(1))
        assert key != bytes(16)
        entry = kek.wrap_key_metadata(km_of())
        assert kek.unwrap_key_metadata(entry)
        del kek
        assert key == bytes(16)

    def test_clearing_forgets(self, kms: Watched) -> None:
        cache = KekCache(kms)
        entry = kek_entry(0)
        key = cache.unwrap(entry)._key
        cache.clear()
        assert key == bytes(16)
        cache.unwrap(entry)
        assert len(kms.calls) == 2

    def test_tables_may_share_a_cache(self, kms: Watched, keys: tuple[EncryptedKey, ...]) -> None:
        cache = KekCache(kms)
        for _ in range(5):
            manager = EncryptionManager(kms, "keyA", keys, cache=cache)
            manager.manifest_list_key(keys[1].key_id)
        assert kms.calls == [("unwrap", "keyA")]

    def test_a_cache_of_another_kms_is_refused(self, kms: Watched) -> None:
        with pytest.raises(ValueError, match="another KMS"):
            EncryptionManager(kms, "keyA", cache=KekCache(Watched()))

    def test_an_entry_under_the_same_id_with_other_content_is_another(self, kms: Watched) -> None:
        cache = KekCache(kms)
        one = cache.unwrap(kek_entry(0, key_id="same"), "keyA")
        two = cache.unwrap(kek_entry(0, key_id="same"), "keyA")
        assert one is not two
        assert len(kms.calls) == 2

    def test_a_forked_child_asks_the_kms_itself(
        self,
        kms: Watched,
        keys: tuple[EncryptedKey, ...],
        in_a_fork: Callable[[Callable[[], object]], None],
    ) -> None:
        manager = EncryptionManager(kms, "keyA", keys, clock_ms=at(NOW))
        km = manager.manifest_list_key(keys[1].key_id)
        held = manager._making.get()
        held.acquire()  # as if another thread of the parent were adding a key
        parents = manager.cache.unwrap(keys[0], "keyA")

        def child() -> None:
            assert manager.manifest_list_key(keys[1].key_id) == km
            assert kms.calls == [("unwrap", "keyA")] * 2
            assert manager.add_manifest_list_key(km_of())
            with pytest.raises(KeyReuseError):
                parents.wrap_key_metadata(km_of())

        in_a_fork(child)
        held.release()
        assert manager.manifest_list_key(keys[1].key_id) == km
        assert len(kms.calls) == 1

    def test_threads_that_add_make_one_kek(self, kms: Watched) -> None:
        manager = EncryptionManager(kms, "keyA")
        made: dict[str, KeyMetadata] = {}

        def work() -> None:
            made.update(added(manager, 5))

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert len(made) == 40
        assert kms.calls == [("wrap", "keyA")]
        assert {key_id: manager.manifest_list_key(key_id) for key_id in made} == made

    def test_two_writers_who_make_a_kek_each_can_be_merged(self) -> None:
        writers = [EncryptionManager(memory_kms(), "keyA") for _ in range(2)]
        made: dict[str, KeyMetadata] = {}
        for writer in writers:
            made |= added(writer, 2)
        merged = by_id(writers[0].encryption_keys) | by_id(writers[1].encryption_keys)
        both = EncryptionManager(memory_kms(), "keyA", merged.values())
        assert len(both.key_encryption_keys) == 2
        assert {key_id: both.manifest_list_key(key_id) for key_id in made} == made

    @pytest.mark.parametrize("count", [1_000, pytest.param(10_000, marks=pytest.mark.slow)])
    def test_thousands_of_snapshots(self, kms: Watched, count: int) -> None:
        manager = EncryptionManager(kms, "keyA")
        made = added(manager, count)
        parsed = parse_encryption_keys(
            json.loads(json.dumps(encryption_keys_to_dicts(manager.encryption_keys)))
        )
        reader = EncryptionManager(kms, "keyA", parsed)
        assert all(reader.manifest_list_key(key_id) == km for key_id, km in made.items())
        assert kms.calls == [("wrap", "keyA"), ("unwrap", "keyA")]
        assert len(reader.prune(list(made)[-10:]).encryption_keys) == 11

    def test_a_flight_that_an_interrupt_left_behind_hinders_nobody(
        self, kms: Watched, keys: tuple[EncryptedKey, ...]
    ) -> None:
        """Ctrl-C at each instruction of the call in turn; waiters and later calls go on."""
        for number in range(1, 200):
            cache = KekCache(kms)
            interrupted = interrupt_at(number, lambda: cache.unwrap(keys[0], "keyA"))  # noqa: B023
            results: list[object] = []
            thread = threading.Thread(
                target=lambda: results.append(cache.unwrap(keys[0], "keyA")),  # noqa: B023
                daemon=True,
            )
            thread.start()
            thread.join(10)
            assert results, f"the next one hangs after an interrupt at step {number}"
            if not interrupted:
                break
        else:
            pytest.fail("it never came to an end")
        assert number > 20

    def test_an_error_that_cannot_be_copied_comes_through(
        self, kms: Watched, keys: tuple[EncryptedKey, ...]
    ) -> None:
        class Own(KmsError):
            def __init__(self, one: str, two: str) -> None:
                super().__init__(one + two)

        kms.failure, kms.gate = Own("a", "b"), threading.Event()
        manager = EncryptionManager(kms, "keyA", keys)
        errors: list[BaseException] = []

        def work() -> None:
            try:
                manager.manifest_list_key(keys[1].key_id)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        time.sleep(0.05)
        kms.gate.set()
        for thread in threads:
            thread.join(30)
        assert [type(error) for error in errors] == [Own] * 4

    def test_a_pickled_cache_keeps_its_bounds(self, tmp_path: Path) -> None:
        cache = KekCache(LocalKms(str(tmp_path / "k")), lifetime_seconds=1.0, capacity=2)
        again = pickle.loads(pickle.dumps(cache))
        assert (again._lifetime_seconds, again._capacity) == (1.0, 2)

    def test_a_forked_child_has_no_kek_of_its_parents(
        self,
        kms: Watched,
        keys: tuple[EncryptedKey, ...],
        in_a_fork: Callable[[Callable[[], object]], None],
    ) -> None:
        cache = KekCache(kms)
        key = cache.unwrap(keys[0], "keyA")._key
        assert key != bytes(16)

        def child() -> None:
            assert key == bytes(16)

        in_a_fork(child)
        assert key != bytes(16)

    def test_another_tables_entry_of_the_same_bytes_is_not_mixed_in(self, kms: Watched) -> None:
        cache = KekCache(kms)
        entry = kek_entry(0)
        properties = {**entry.properties, "owner": "other"}
        twin = EncryptedKey(entry.key_id, entry.encrypted_key_metadata, "keyA", properties)
        assert cache.unwrap(entry).entry.properties == entry.properties
        assert cache.unwrap(twin).entry.properties == properties


def interrupt_at(number: int, work: Callable[[], object]) -> bool:
    """Call ``work`` with a KeyboardInterrupt before the ``number``-th line in the cache's module.

    Not where a ``with`` ends: a tracer is called there, a signal's handler is not.
    """
    left = number
    begun: set[tuple[int, int]] = set()

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal left
        if frame.f_code.co_filename != cache_module.__file__:
            return None
        if event == "line":
            line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
            here = id(frame), frame.f_lineno
            if line.lstrip().startswith("with ") and here in begun:
                begun.remove(here)
                return trace
            begun.add(here)
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


class TestSecrets:
    def test_no_variable_of_a_traceback_holds_a_key(self, kms: Watched) -> None:
        seen: list[bytes] = []

        class Down(Watched):
            def wrap_key(self, key: bytes, key_id: str) -> bytes:
                seen.append(key)
                raise KmsUnavailableError("no answer")

        with pytest.raises(KmsUnavailableError) as making:
            added(EncryptionManager(Down(), "keyA"))
        manager = EncryptionManager(kms, "keyA")
        added(manager)
        with pytest.raises(KmsUnavailableError) as moving:
            manager.rewrap(Down(), "keyB")
        assert len(seen) == 2
        for caught, key in zip((making, moving), seen, strict=True):
            shown = variables_of(caught.value.__traceback__)
            assert "manager.py" in shown
            assert not any(form.decode() in shown for form in spellings(key)[1:])

    def test_a_kek_without_timestamp_is_not_unwrapped(self, kms: Watched) -> None:
        made = kek_entry(0)
        entry = EncryptedKey(made.key_id, made.encrypted_key_metadata, "keyA")
        with pytest.raises(KeyMetadataError, match="KEY_TIMESTAMP"):
            KekCache(kms).unwrap(entry, "keyA")
        assert not kms.calls

    def test_nothing_shows_a_key(self, kms: Watched, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level("DEBUG")
        manager = EncryptionManager(kms, "keyA")
        made = added(manager)
        kek_key = bytes(manager.cache.unwrap(manager.encryption_keys[0], "keyA")._key)
        shown = f"{manager!r} {manager} {manager.cache!r} {manager.encryption_keys!r} {caplog.text}"
        secrets = [kek_key, *(km.encryption_key for km in made.values())]
        for secret in secrets:
            assert not any(form in shown.encode() for form in spellings(secret))

    def test_a_pickle_has_wrapped_keys_only(self, keyring_kms: KmsClient) -> None:
        manager = EncryptionManager(keyring_kms, "default")
        made = added(manager, 2)
        kek_key = bytes(manager.cache.unwrap(manager.encryption_keys[0], "default")._key)
        data = pickle.dumps(manager)
        for secret in [kek_key, *(km.encryption_key for km in made.values())]:
            assert secret not in data
        again = pickle.loads(data)
        assert again.encryption_keys == manager.encryption_keys
        assert {key_id: again.manifest_list_key(key_id) for key_id in made} == made

    @pytest.fixture
    def keyring_kms(self, tmp_path: Path) -> KmsClient:
        from ags1.kms import LocalKms, create_key

        path = str(tmp_path / "keyring.json")
        create_key(path, "default")
        return LocalKms(path)

    def test_a_kek_that_nobody_uses_is_wiped(self) -> None:
        kek = KeyEncryptionKey.unwrap(memory_kms(), kek_entry(0), "keyA")
        key = kek._key
        assert key != bytes(16)
        del kek
        assert key == bytes(16)

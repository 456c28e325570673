"""The envelope: Java's bytes open, ours have Java's form, and no key shows."""

from __future__ import annotations

import copy
import json
import logging
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ags1 import AuthenticationError, KeyMetadata, KeyMetadataError
from ags1.engine._messages import open as open_sealed
from ags1.engine._messages import seal
from ags1.iceberg.distributed import sealed
from ags1.iceberg.distributed.sealed import JobKey, unwrap_key
from ags1.iceberg.operations import journal
from ags1.keys import (
    EncryptedKey,
    EncryptionManager,
    KekCache,
    KeyEncryptionKey,
    Sidecar,
    read_sidecar,
    write_sidecar,
)
from ags1.keys import sidecar as sidecar_module
from ags1.keys.envelope import KEY_TIMESTAMP, encryption_keys_to_dicts, parse_encryption_keys
from ags1.kms import GeneratedKey

VECTORS = Path(__file__).parents[1] / "vectors"
WRAPPED = json.loads((VECTORS / "wrapped.json").read_text())
TIMESTAMP: str = WRAPPED.pop("key_timestamp")
JAVA = {name: bytes.fromhex(text) for name, text in WRAPPED.items()}
ENTRY = {
    "key-id": "eW8VVJ7spgIBLvzPsQPr3Q==",
    "encrypted-key-metadata": "kpkKxpzcAhPvpKenoyQjeZ8kpf/dTgdCgXIw+wbx0IOr81+oZqwwHBZaTU8=",
    "encrypted-by-id": "keyA",
    "properties": {"KEY_TIMESTAMP": "1795231424225"},
}


class JavaTestKms:
    """Wraps as the KMS does that made the vectors: nonce, ciphertext, tag, no additional data."""

    supports_key_generation = False

    def __init__(self, master: bytes = JAVA["master"]) -> None:
        self._master = master
        self.calls = 0

    def wrap_key(self, key: bytes, key_id: str) -> bytes:
        self.calls += 1
        return seal(self._master, key)

    def unwrap_key(self, wrapped_key: bytes, key_id: str) -> bytes:
        self.calls += 1
        return open_sealed(self._master, wrapped_key)

    def generate_key(self, key_id: str, key_size: int) -> GeneratedKey:
        raise NotImplementedError

    def close(self) -> None:
        pass


def java_kek(**properties: str) -> EncryptedKey:
    properties = properties or {KEY_TIMESTAMP: TIMESTAMP}
    return EncryptedKey("kek", JAVA["wrapped_kek"], "keyA", properties)


def test_javas_wrapped_keys_open() -> None:
    kek = KeyEncryptionKey.unwrap(JavaTestKms(), java_kek())
    km = kek.unwrap_key_metadata(EncryptedKey("list", JAVA["mlk_encrypted"], "kek"))
    assert km == KeyMetadata.from_bytes(JAVA["mlk_plain"])


def test_the_proposed_spelling_of_the_timestamp_opens_too() -> None:
    entry = java_kek(**{"key-timestamp": TIMESTAMP})
    kek = KeyEncryptionKey.unwrap(JavaTestKms(), entry)
    kek.unwrap_key_metadata(EncryptedKey("list", JAVA["mlk_encrypted"], "kek"))


def test_another_timestamp_does_not_open() -> None:
    later = str(int(TIMESTAMP) + 1)
    kek = KeyEncryptionKey.unwrap(JavaTestKms(), java_kek(**{KEY_TIMESTAMP: later}))
    with pytest.raises(AuthenticationError, match="does not verify"):
        kek.unwrap_key_metadata(EncryptedKey("list", JAVA["mlk_encrypted"], "kek"))


def test_two_different_timestamps_are_rejected() -> None:
    entry = java_kek(**{KEY_TIMESTAMP: TIMESTAMP, "key-timestamp": "1"})
    with pytest.raises(KeyMetadataError, match="two different timestamps"):
        KeyEncryptionKey.unwrap(JavaTestKms(), entry)
    same = {KEY_TIMESTAMP: TIMESTAMP, "key-timestamp": TIMESTAMP}
    assert java_kek(**same).timestamp == TIMESTAMP


def test_a_kek_without_timestamp_is_rejected() -> None:
    with pytest.raises(KeyMetadataError, match="no KEY_TIMESTAMP"):
        KeyEncryptionKey.unwrap(JavaTestKms(), java_kek(other="1"))


@pytest.mark.parametrize(
    "timestamp",
    ["", "-", "+1", "1 ", "1\n", "1.0", "0x1", "\u0661", "\ud800", "9" * 20, "1\0ags1 sidecar"],
)
def test_a_timestamp_that_is_no_number_is_rejected(timestamp: str) -> None:
    kms, entry = JavaTestKms(), java_kek(**{KEY_TIMESTAMP: timestamp})
    with pytest.raises(KeyMetadataError, match="KEY_TIMESTAMP of 'kek' is not a number"):
        KeyEncryptionKey.unwrap(kms, entry)
    assert kms.calls == 0
    assert entry.timestamp_ms is None


@pytest.mark.parametrize("timestamp_ms", [0, -1, 2**63 - 1, -(2**63)])
def test_every_long_is_a_timestamp(timestamp_ms: int) -> None:
    kms = JavaTestKms()
    made = KeyEncryptionKey.generate(kms, "keyA", key_size=16, timestamp_ms=timestamp_ms)
    km = KeyMetadata.generate().with_file_length(36)
    again = KeyEncryptionKey.unwrap(kms, EncryptedKey.from_dict(made.entry.to_dict()))
    assert again.unwrap_key_metadata(made.wrap_key_metadata(km)) == km
    assert again.entry.timestamp_ms == timestamp_ms


def with_timestamp(entry: EncryptedKey, timestamp: str) -> EncryptedKey:
    return replace(entry, properties={KEY_TIMESTAMP: timestamp})


def as_manifest_list(kek: EncryptedKey, key: EncryptedKey) -> object:
    return EncryptionManager(JavaTestKms(), "keyA", [kek, key]).manifest_list_key(key.key_id)


def as_sidecar(kek: EncryptedKey, key: EncryptedKey) -> object:
    sidecar = Sidecar((kek, key), key.key_id)
    return sidecar.open(lambda entry: KeyEncryptionKey.unwrap(JavaTestKms(), entry), key)


def as_journal(kek: EncryptedKey, key: EncryptedKey) -> object:
    opened = KeyEncryptionKey.unwrap(JavaTestKms(), kek)
    return opened.unwrap_key_metadata(key, purpose=journal._PURPOSE)


def as_job(kek: EncryptedKey, key: EncryptedKey) -> object:
    return JobKey("keyA", kek, with_timestamp(key, "1")).open(KekCache(JavaTestKms()))


def as_file_of_job(path: str) -> Callable[[EncryptedKey, EncryptedKey], object]:
    def opened(kek: EncryptedKey, key: EncryptedKey) -> object:
        job = JobKey("keyA", kek).open(KekCache(JavaTestKms()))
        return unwrap_key(job, key.encrypted_key_metadata, path)

    return opened


# What a KEK wraps: how it is opened, and its purpose.
PURPOSES: dict[str, tuple[Callable[[EncryptedKey, EncryptedKey], object], bytes]] = {
    "a manifest list": (as_manifest_list, b""),
    "a sidecar": (as_sidecar, sidecar_module._PURPOSE),
    "a journal": (as_journal, journal._PURPOSE),
    "a Spark job": (as_job, sealed._JOB),
}
# The path of a file is part of its purpose, and may end as another purpose does.
for _, _purpose in list(PURPOSES.values()):
    _path = f"file{_purpose.decode()}"
    PURPOSES[f"{_path!r} in a Spark job"] = (
        as_file_of_job(_path),
        sealed._FILE + _path.encode(),
    )


@pytest.mark.parametrize("source", PURPOSES)
def test_what_is_wrapped_for_one_purpose_does_not_open_for_another(source: str) -> None:
    """Others may write the list of keys: they move an entry, and choose the KEK's timestamp."""
    kek = KeyEncryptionKey.generate(JavaTestKms(), "keyA", key_size=16)
    km = KeyMetadata.generate().with_file_length(36)
    opens, purpose = PURPOSES[source]
    key = kek.wrap_key_metadata(km, purpose=purpose)
    bound = f"{kek.entry.timestamp}{purpose.decode()}"
    assert opens(kek.entry, key)
    for target, (opens, _) in PURPOSES.items():
        for end in range(len(bound) + 1):
            forged = with_timestamp(kek.entry, bound[:end])
            if target != source or forged != kek.entry:
                with pytest.raises((AuthenticationError, KeyMetadataError)):
                    opens(forged, key)


def test_a_purpose_cannot_continue_the_timestamp() -> None:
    kek = KeyEncryptionKey.unwrap(JavaTestKms(), java_kek())
    km = KeyMetadata.generate().with_file_length(36)
    with pytest.raises(ValueError, match="begin with a digit"):
        kek.wrap_key_metadata(km, purpose=b"1")


def test_a_kek_without_master_key_is_rejected() -> None:
    with pytest.raises(KeyMetadataError, match="which key wrapped it"):
        KeyEncryptionKey.unwrap(JavaTestKms(), EncryptedKey("kek", JAVA["wrapped_kek"]))


@pytest.mark.parametrize("position", range(len(JAVA["mlk_encrypted"])))
def test_every_byte_of_wrapped_key_metadata_is_authenticated(position: int) -> None:
    changed = bytearray(JAVA["mlk_encrypted"])
    changed[position] ^= 1
    kek = KeyEncryptionKey.unwrap(JavaTestKms(), java_kek())
    with pytest.raises(AuthenticationError):
        kek.unwrap_key_metadata(EncryptedKey("list", bytes(changed), "kek"))


@pytest.mark.parametrize("size", [0, 1, 27, 28])
def test_cut_key_metadata_is_rejected(size: int) -> None:
    kek = KeyEncryptionKey.unwrap(JavaTestKms(), java_kek())
    with pytest.raises(AuthenticationError):
        kek.unwrap_key_metadata(EncryptedKey("list", JAVA["mlk_encrypted"][:size], "kek"))


@pytest.mark.parametrize("key_size", [16, 24, 32])
def test_a_new_kek_has_javas_form(key_size: int) -> None:
    kms = JavaTestKms()
    kek = KeyEncryptionKey.generate(kms, "keyA", key_size=key_size, timestamp_ms=1700000000000)
    assert kms.calls == 1
    assert kek.entry.to_dict().keys() == ENTRY.keys()
    assert len(kek.entry.key_id) == len(ENTRY["key-id"])
    assert len(kek.entry.encrypted_key_metadata) == key_size + 28
    assert kek.entry.properties == {"KEY_TIMESTAMP": "1700000000000"}
    km = KeyMetadata.generate(16).with_file_length(36)
    wrapped = kek.wrap_key_metadata(km)
    assert wrapped.to_dict().keys() == {"key-id", "encrypted-key-metadata", "encrypted-by-id"}
    assert wrapped.encrypted_by_id == kek.entry.key_id
    assert KeyEncryptionKey.unwrap(kms, kek.entry).unwrap_key_metadata(wrapped) == km


def test_an_entry_is_printed_as_it_was_parsed() -> None:
    assert EncryptedKey.from_dict(ENTRY).to_dict() == ENTRY
    assert list(EncryptedKey.from_dict(ENTRY).to_dict()) == list(ENTRY)


def test_unknown_properties_are_kept() -> None:
    entry = ENTRY | {"properties": {"KEY_TIMESTAMP": "1", "x": "y"}}
    assert EncryptedKey.from_dict(entry).to_dict() == entry


@pytest.mark.parametrize("absent", ["encrypted-by-id", "properties"])
def test_optional_fields_may_be_absent_or_null(absent: str) -> None:
    without = {name: value for name, value in ENTRY.items() if name != absent}
    assert EncryptedKey.from_dict(without).to_dict() == without
    assert EncryptedKey.from_dict(without | {absent: None}).to_dict() == without


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"key-id": None}, "'key-id'"),
        ({"key-id": ""}, "'key-id'"),
        ({"key-id": 1}, "'key-id'"),
        ({"encrypted-key-metadata": None}, "'encrypted-key-metadata'"),
        ({"encrypted-key-metadata": "a*b"}, "not base64"),
        ({"encrypted-key-metadata": "QUJD*"}, "not base64"),
        ({"encrypted-key-metadata": "\u00e9"}, "not base64"),
        ({"encrypted-by-id": 5}, "'encrypted-by-id'"),
        ({"properties": []}, "'properties'"),
        ({"properties": {"KEY_TIMESTAMP": 5}}, "'properties'"),
    ],
)
def test_a_malformed_entry_is_rejected_by_field(change: dict[str, Any], message: str) -> None:
    with pytest.raises(KeyMetadataError, match=message):
        EncryptedKey.from_dict(ENTRY | change)


@pytest.mark.parametrize("entries", [0, {}, [1], [ENTRY, ENTRY]])
def test_a_malformed_list_is_rejected(entries: object) -> None:
    with pytest.raises(KeyMetadataError):
        parse_encryption_keys(entries)


def test_a_list_is_printed_as_it_was_parsed() -> None:
    entries = [ENTRY, {"key-id": "b", "encrypted-key-metadata": "AA==", "encrypted-by-id": "a"}]
    assert encryption_keys_to_dicts(parse_encryption_keys(entries)) == entries


def sealed_sidecar() -> tuple[KeyMetadata, Sidecar]:
    kek = KeyEncryptionKey.generate(JavaTestKms(), "keyA", key_size=32)
    km = KeyMetadata.generate().with_file_length(36)
    return km, Sidecar.seal(km, kek)


def test_a_sidecar_has_the_form_of_a_tables_keys(tmp_path: Path) -> None:
    km, sidecar = sealed_sidecar()
    path = tmp_path / "a.ags1.keys"
    write_sidecar(str(path), sidecar)
    document = json.loads(path.read_bytes())
    assert document.keys() == {"encryption-keys", "key-id"}
    assert [entry.get("encrypted-by-id") for entry in document["encryption-keys"]] == [
        "keyA",
        document["encryption-keys"][0]["key-id"],
    ]
    assert document["key-id"] == document["encryption-keys"][1]["key-id"]
    assert list(tmp_path.iterdir()) == [path]
    again = read_sidecar(str(path))
    assert again == sidecar
    kek = KeyEncryptionKey.unwrap(JavaTestKms(), again.kek_entry(again.file_keys[0]))
    assert again.open(lambda entry: kek, again.file_keys[0]) == km


def test_a_sidecar_is_not_overwritten_unasked(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("mine")
    _, sidecar = sealed_sidecar()
    with pytest.raises(FileExistsError):
        write_sidecar(str(path), sidecar)
    assert path.read_text() == "mine"
    write_sidecar(str(path), sidecar, overwrite=True)
    assert read_sidecar(str(path)) == sidecar


def test_a_sidecar_of_two_files_lists_its_own_key_first() -> None:
    _, old = sealed_sidecar()
    _, new = sealed_sidecar()
    both = new.with_keys_of(old)
    assert [key.key_id for key in both.file_keys] == [new.key_id, old.key_id]
    assert both.with_keys_of(old) == both
    assert Sidecar.from_bytes(both.to_bytes()) == both


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b"[" * 100_000,
        b"\xff\xfe",
        b'{"encryption-keys": []}',
        b'{"encryption-keys": [], "key-id": "x"}',
        json.dumps({"encryption-keys": [ENTRY], "key-id": ENTRY["key-id"]}).encode(),
        json.dumps({"encryption-keys": [ENTRY], "key-id": 5}).encode(),
    ],
)
def test_a_damaged_sidecar_is_rejected_by_name(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.ags1.keys"
    path.write_bytes(data)
    with pytest.raises(KeyMetadataError, match=r"sidecar is damaged|not a sidecar: ") as caught:
        read_sidecar(str(path))
    assert caught.value.file == str(path)


@pytest.mark.parametrize("name", ["key-id", "encryption-keys", "KEY_TIMESTAMP"])
def test_a_sidecar_that_has_a_name_twice_is_rejected(name: str) -> None:
    _, sidecar = sealed_sidecar()
    data = sidecar.to_bytes().replace(f'"{name}"'.encode(), f'"{name}": "1", "{name}"'.encode(), 1)
    with pytest.raises(KeyMetadataError, match=f"sidecar is damaged: it has the name '{name}' twi"):
        Sidecar.from_bytes(data)


def test_a_huge_sidecar_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "a.ags1.keys"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(OSError, match="too large"):
        read_sidecar(str(path))


def test_no_key_shows(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    kms = JavaTestKms()
    kek = KeyEncryptionKey.unwrap(kms, java_kek())
    km, sidecar = sealed_sidecar()
    shown = f"{kek!r} {kek} {kek.entry!r} {sidecar!r} {kek.wrap_key_metadata(km)!r} {caplog.text}"
    for secret in (JAVA["kek"], km.encryption_key):
        for form in (secret.hex(), repr(secret)[2:-1]):
            assert form not in shown
    for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="not pickled or copied"):
            attempt(kek)

"""The test KMS: what Java's wrapped opens, what ours wraps has Java's form, and it warns."""

from __future__ import annotations

import json
import os
import pickle
import warnings
from pathlib import Path
from typing import NoReturn

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from kms_contract import KEY, KmsContract, everything_said, spellings

from ags1.errors import KmsConfigurationError, KmsKeyNotFoundError, KmsUnwrapError
from ags1.keys import KeyEncryptionKey
from ags1.keys.envelope import parse_encryption_keys
from ags1.kms import from_properties
from ags1.kms.memory import KeysInPropertiesWarning, MemoryKms

TESTS = Path(__file__).parents[1]
# Java's UnitestKMS.
KEY_A, KEY_B = b"0123456789012345", b"1123456789012345"
UNITEST = {"encryption.kms.key.keyA": KEY_A.hex(), "encryption.kms.key.keyB": KEY_B.hex()}

pytestmark = pytest.mark.filterwarnings("ignore::ags1.kms.memory.KeysInPropertiesWarning")


class TestContract(KmsContract):
    @pytest.fixture
    def kms(self) -> MemoryKms:
        return MemoryKms(UNITEST)

    @pytest.fixture
    def key_id(self) -> str:
        return "keyA"

    @pytest.fixture
    def other_key_id(self) -> str:
        return "keyB"

    @pytest.fixture
    def missing_key_id(self) -> str:
        return "keyC"

    @pytest.fixture
    def unreachable(self) -> NoReturn:
        pytest.skip("there is no service to be down")


def test_a_key_that_java_wrapped_unwraps() -> None:
    java = json.loads((TESTS / "vectors" / "wrapped.json").read_text())
    kms = MemoryKms({"encryption.kms.key.m": java["master"]})
    assert kms.unwrap_key(bytes.fromhex(java["wrapped_kek"]), "m") == bytes.fromhex(java["kek"])
    # Iceberg 1.11.0's UnitestKMS.wrapKey of the bytes 50 to 65 under keyB.
    wrapped = (
        "db811e4078133c0a46cdf980d8f5bac971129e9035dd5a60a8d51c495371649352d55bc9863dcce3cfc02647"
    )
    unwrapped = MemoryKms(UNITEST).unwrap_key(bytes.fromhex(wrapped), "keyB")
    assert unwrapped == bytes(range(50, 66))


@pytest.mark.parametrize(
    ("table", "manifest_lists"),
    [("avro_part", 2), ("empty", 0), ("mor_dv", 5), ("parquet_plain", 3), ("stats", 1)],
)
def test_the_keys_in_javas_tables_unwrap(table: str, manifest_lists: int) -> None:
    """``tables/`` holds the last metadata.json of tables that Spark wrote with UnitestKMS."""
    path = sorted((TESTS / "tables" / table / "metadata").glob("*.metadata.json"))[-1]
    metadata = json.loads(path.read_text())
    assert metadata["properties"]["encryption.key-id"] == "keyA"
    keys = parse_encryption_keys(metadata.get("encryption-keys", []))
    kms = MemoryKms(UNITEST)
    keks = {
        key.key_id: KeyEncryptionKey.unwrap(kms, key)
        for key in keys
        if key.encrypted_by_id == "keyA"
    }
    opened = [
        # Authenticated by Java's tag: a wrong KEK would not open it.
        keks[key.encrypted_by_id or ""].unwrap_key_metadata(key)
        for key in keys
        if key.encrypted_by_id != "keyA"
    ]
    assert (len(keks), len(opened)) == (min(1, manifest_lists), manifest_lists)
    assert len({km.encryption_key for km in opened}) == manifest_lists
    for key in keks:
        entry = keks[key].entry
        with pytest.raises(KmsUnwrapError):
            kms.unwrap_key(entry.encrypted_key_metadata, "keyB")


@pytest.mark.parametrize("size", [16, 24, 32])
def test_what_it_wraps_has_javas_form(size: int) -> None:
    master = os.urandom(size)
    kms = MemoryKms({"encryption.kms.key.m": master.hex()})
    wrapped = kms.wrap_key(KEY, "m")
    assert len(wrapped) == 12 + len(KEY) + 16
    assert AESGCM(master).decrypt(wrapped[:12], wrapped[12:], None) == KEY


def test_every_byte_of_a_wrapped_key_is_authenticated() -> None:
    kms = MemoryKms(UNITEST)
    wrapped = kms.wrap_key(KEY, "keyA")
    for position in range(len(wrapped)):
        changed = bytearray(wrapped)
        changed[position] ^= 1
        with pytest.raises(KmsUnwrapError):
            kms.unwrap_key(bytes(changed), "keyA")
        with pytest.raises(KmsUnwrapError):
            kms.unwrap_key(wrapped[:position], "keyA")


@pytest.mark.parametrize("key_id", ["a.b", "keyA", "KEYA", "ключ", "arn:aws:kms:x:1:key/2", " "])
def test_a_key_id_is_all_that_follows_the_prefix(key_id: str) -> None:
    kms = MemoryKms({f"encryption.kms.key.{key_id}": KEY_A.hex().upper(), "other": "x"})
    assert kms.unwrap_key(kms.wrap_key(KEY, key_id), key_id) == KEY
    with pytest.raises(KmsKeyNotFoundError):
        kms.wrap_key(KEY, key_id.swapcase() + "?")


@pytest.mark.parametrize(
    "text",
    [
        *("", "00", "0" * 30, "0" * 34, "0" * 33, "0" * 128, "g" * 32, "0x" + "0" * 30),
        *("0" * 32 + "\n", "00 " * 16, "٠" * 32, KEY_A.decode()),
    ],
)
def test_what_is_no_key_in_hex_is_refused_without_quoting_it(text: str) -> None:
    with pytest.raises(KmsConfigurationError, match=r"'encryption\.kms\.key\.bad'") as caught:
        MemoryKms({**UNITEST, "encryption.kms.key.bad": text})
    if len(text) > 8:
        # Without the lines of this file, which the traceback quotes.
        assert text not in str(caught.value)
        assert caught.value.__cause__ is caught.value.__context__ is None


@pytest.mark.parametrize(
    "properties", [{}, {"encryption.kms.key": KEY_A.hex()}, {"encryption.kms.key.": KEY_A.hex()}]
)
def test_no_key_is_built_in(properties: dict[str, str]) -> None:
    with pytest.raises(KmsConfigurationError):
        MemoryKms(properties)
    with pytest.raises(KmsKeyNotFoundError, match="'keyA'"):
        MemoryKms({"encryption.kms.key.other": KEY_B.hex()}).wrap_key(KEY, "keyA")


def test_each_client_warns_once() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for make in (MemoryKms, from_properties):
            kms = make({"encryption.kms-type": "memory", **UNITEST})
            kms.unwrap_key(kms.wrap_key(KEY, "keyA"), "keyA")
            kms.close()
    assert [warning.category for warning in caught] == [KeysInPropertiesWarning] * 2
    assert "tests and demonstrations" in str(caught[0].message)
    assert issubclass(KeysInPropertiesWarning, UserWarning)
    assert [warning.filename for warning in caught] == [__file__] * 2
    assert caught[0].lineno == caught[1].lineno
    said = repr([str(warning.message) for warning in caught])
    assert not any(form in said.encode() for form in spellings(KEY_A))


def test_its_keys_are_neither_shown_nor_pickled() -> None:
    kms = MemoryKms(UNITEST)
    kms.wrap_key(KEY, "keyA")
    with pytest.raises(TypeError, match=r"'encryption\.kms\.key\.keyA'") as caught:
        pickle.dumps(kms)
    shown = (repr(kms) + str(kms) + repr(vars(kms))).encode() + everything_said(caught.value)
    for key in (KEY_A, KEY_B):
        assert not any(form in shown for form in spellings(key))
    assert b"keyA" in shown


def test_it_says_what_it_is() -> None:
    kms = MemoryKms(UNITEST)
    assert not kms.supports_key_generation
    assert not kms.accepts_foreign_keys

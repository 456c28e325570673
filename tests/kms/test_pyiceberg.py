"""KMS clients of PyIceberg work here, and ours work where PyIceberg's are expected.

The classes below follow the interface of PyIceberg's ``KeyManagementClient``. The released versions
of PyIceberg do not have it yet. If the installed one does, the last test is run too.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from kms_contract import everything_said, spellings

from ags1.errors import (
    KmsAccessDeniedError,
    KmsConfigurationError,
    KmsError,
    KmsKeyNotFoundError,
    KmsUnavailableError,
)
from ags1.keys import Keychain, KeyEncryptionKey
from ags1.kms import KmsClient, LocalKms, from_properties
from ags1.kms.memory import MemoryKms
from ags1.kms.pyiceberg import KeyManagementClient

TESTS = Path(__file__).parents[1]
KEY = bytes(range(200, 232))
# Java's UnitestKMS.
UNITEST = {
    "encryption.kms.key.keyA": b"0123456789012345".hex(),
    "encryption.kms.key.keyB": b"1123456789012345".hex(),
}
MEMORY = {"encryption.kms-type": "memory", **UNITEST}
HERE = "kms.test_pyiceberg"
ADAPTER = "ags1.kms.pyiceberg.KeyManagementClient"

pytestmark = pytest.mark.filterwarnings("ignore::ags1.kms.memory.KeysInPropertiesWarning")


class Generated:
    def __init__(self, key: bytes, wrapped_key: bytes) -> None:
        self.key = key
        self.wrapped_key = wrapped_key


class WrapsOnly:
    """A class that implements only what is abstract in PyIceberg's interface."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        self.properties = properties

    def wrap_key(self, key: bytes, wrapping_key_id: str) -> bytes:
        nonce = bytes(range(12))  # for a test: the same each time
        return nonce + AESGCM(self._master(wrapping_key_id)).encrypt(nonce, key, None)

    def unwrap_key(self, wrapped_key: bytes, wrapping_key_id: str) -> bytes:
        master = AESGCM(self._master(wrapping_key_id))
        return master.decrypt(wrapped_key[:12], wrapped_key[12:], None)

    def supports_key_generation(self) -> bool:
        return False

    def generate_key(self, wrapping_key_id: str) -> Any:
        raise NotImplementedError(f"{type(self).__name__} does not support key generation")

    def _master(self, key_id: str) -> bytes:
        return bytes.fromhex(self.properties[f"encryption.kms.key.{key_id}"])


class Generates(WrapsOnly):
    def supports_key_generation(self) -> bool:
        return True

    def generate_key(self, wrapping_key_id: str) -> Generated:
        return Generated(KEY, self.wrap_key(KEY, wrapping_key_id))


class Initialized(WrapsOnly):
    """A client of PyIceberg's proof of concept."""

    def __init__(self) -> None:
        self.closed = False

    def initialize(self, properties: Mapping[str, str]) -> None:
        self.properties = properties

    def close(self) -> None:
        CLOSED.append(self)


class Broken(WrapsOnly):
    def unwrap_key(self, wrapped_key: bytes, wrapping_key_id: str) -> Any:
        failures = {"refused": PermissionError, "down": ConnectionError, "slow": TimeoutError}
        if wrapping_key_id == "text":
            return "not bytes"
        raise failures.get(wrapping_key_id, ValueError)(f"while unwrapping {KEY!r} {KEY.hex()}")


class Careless(WrapsOnly):
    """Returns keys without wrapping them, and has them in the text of each exception."""

    def wrap_key(self, key: bytes, wrapping_key_id: str) -> bytes:
        return b"wrapped:" + key

    def unwrap_key(self, wrapped_key: bytes, wrapping_key_id: str) -> bytes:
        raise NotImplementedError(f"unwrap {KEY!r}")

    def generate_key(self, wrapping_key_id: str) -> Any:
        raise NotImplementedError(f"wrap {KEY!r} first")


class CarelesslyGenerates(Generates):
    def generate_key(self, wrapping_key_id: str) -> Generated:
        return Generated(KEY, KEY)


class CannotBeMade(WrapsOnly):
    def __init__(self, properties: Mapping[str, str]) -> None:
        raise ValueError(f"bad properties {properties}")


CLOSED: list[Initialized] = []


def by_py_kms_impl(kind: type) -> KmsClient:
    return from_properties({"py-kms-impl": f"{HERE}.{kind.__name__}", **UNITEST})


def by_kms_impl(kind: type) -> KmsClient:
    return from_properties({"encryption.kms-impl": f"{HERE}:{kind.__name__}", **UNITEST})


# ---- theirs, used as ours ------------------------------------------------------------------------


@pytest.mark.parametrize("named", [by_py_kms_impl, by_kms_impl])
@pytest.mark.parametrize("kind", [WrapsOnly, Generates, Initialized])
def test_a_class_for_pyiceberg_opens_what_java_wrapped(
    kind: type, named: Callable[[type], KmsClient]
) -> None:
    kms = named(kind)
    # Iceberg 1.11.0's UnitestKMS.wrapKey of the bytes 50 to 65 under keyB.
    wrapped = (
        "db811e4078133c0a46cdf980d8f5bac971129e9035dd5a60a8d51c495371649352d55bc9863dcce3cfc02647"
    )
    assert kms.unwrap_key(bytes.fromhex(wrapped), "keyB") == bytes(range(50, 66))
    assert MemoryKms(UNITEST).unwrap_key(kms.wrap_key(KEY, "keyA"), "keyA") == KEY


def test_a_key_that_it_generates_is_used_if_it_has_the_size() -> None:
    kms = by_py_kms_impl(Generates)
    assert kms.supports_key_generation is True
    made = KeyEncryptionKey.generate(kms, "keyA", key_size=32)
    assert MemoryKms(UNITEST).unwrap_key(made.entry.encrypted_key_metadata, "keyA") == KEY
    with pytest.raises(NotImplementedError, match="keys of 32 bytes, not of 16"):
        kms.generate_key("keyA", 16)
    other = KeyEncryptionKey.generate(kms, "keyA", key_size=16)
    assert len(MemoryKms(UNITEST).unwrap_key(other.entry.encrypted_key_metadata, "keyA")) == 16
    assert by_py_kms_impl(WrapsOnly).supports_key_generation is False


def test_its_master_key_has_to_be_named() -> None:
    """Nobody says whose keys its IDs name: as with any plug-in, only expected ones are accepted."""
    kms = by_py_kms_impl(WrapsOnly)
    theirs = Keychain(kms, "keyB").seal(_km())
    with pytest.raises(ValueError, match="'keyB', which is not among those to trust"):
        Keychain(kms, "keyA").key_of(theirs, None)
    assert Keychain(kms, "keyB").key_of(theirs).encryption_key == KEY


def _km() -> Any:
    from ags1 import KeyMetadata

    return KeyMetadata(KEY, b"a" * 16, file_length=36)


@pytest.mark.parametrize(
    ("key_id", "error"),
    [
        ("refused", KmsAccessDeniedError),
        ("down", KmsUnavailableError),
        ("slow", KmsUnavailableError),
        ("keyA", KmsError),
    ],
)
def test_its_exceptions_become_ours_without_their_text(key_id: str, error: type) -> None:
    with pytest.raises(
        error, match=r"PyIcebergKms\(kms\.test_pyiceberg\.Broken\) failed"
    ) as caught:
        by_py_kms_impl(Broken).unwrap_key(b"wrapped", key_id)
    assert type(caught.value) is error
    assert not [text for text in spellings(KEY) if text in everything_said(caught.value)]


def test_a_client_that_says_it_cannot_does_not_say_keys() -> None:
    kms = by_py_kms_impl(Careless)
    with pytest.raises(NotImplementedError, match=r"Careless\) makes no keys") as generating:
        kms.generate_key("keyA", 32)
    with pytest.raises(KmsError, match="failed in unwrap_key: NotImplementedError") as unwrapping:
        kms.unwrap_key(b"wrapped", "keyA")
    for caught in (generating.value, unwrapping.value):
        assert not [text for text in spellings(KEY) if text in everything_said(caught)]


@pytest.mark.parametrize("kind", [Careless, CarelesslyGenerates])
def test_a_key_that_is_not_wrapped_is_not_stored(kind: type) -> None:
    with pytest.raises(KmsError, match="returned the key as it is"):
        KeyEncryptionKey.generate(by_py_kms_impl(kind), "keyA", key_size=32)
    kek = KeyEncryptionKey.generate(by_py_kms_impl(WrapsOnly), "keyA", key_size=32)
    with pytest.raises(KmsError, match="returned the key as it is"):
        kek.rewrap(by_py_kms_impl(Careless), "keyB")


def test_what_it_returns_has_to_be_bytes() -> None:
    with pytest.raises(KmsError, match="returned str from unwrap_key"):
        by_py_kms_impl(Broken).unwrap_key(b"wrapped", "text")


def test_a_class_that_cannot_be_made_is_an_error_without_the_properties() -> None:
    with pytest.raises(KmsError, match="failed in its construction: ValueError") as caught:
        by_py_kms_impl(CannotBeMade)
    secret = UNITEST["encryption.kms.key.keyA"].encode()
    assert secret not in everything_said(caught.value)


def test_close_reaches_it_and_the_next_call_makes_another() -> None:
    kms = by_py_kms_impl(Initialized)
    kms.close()
    assert len(CLOSED) == 1
    assert kms.unwrap_key(kms.wrap_key(KEY, "keyA"), "keyA") == KEY
    assert UNITEST["encryption.kms.key.keyA"] not in repr(kms)


def test_a_pickle_has_no_secret() -> None:
    with pytest.raises(TypeError, match=r"encryption\.kms\.key\.keyA"):
        pickle.dumps(by_py_kms_impl(WrapsOnly))
    again = pickle.loads(pickle.dumps(from_properties({"py-kms-impl": f"{HERE}.WrapsOnly"})))
    assert repr(again) == "PyIcebergKms(kms.test_pyiceberg.WrapsOnly)"


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ("subprocess.Popen", "no class for PyIceberg"),
        ("os.system", "no class for PyIceberg"),
        (f"{HERE}.by_kms_impl", "no class for PyIceberg"),
        (f"{HERE}.NoSuchClass", "cannot load"),
        ("no_such_module_of_ours.Kms", "cannot load"),
        ("WrapsOnly", "form package.module:Name"),
    ],
)
def test_py_kms_impl_runs_nothing_else(named: str, message: str) -> None:
    with pytest.raises(KmsConfigurationError, match=message):
        from_properties({"py-kms-impl": named, "/bin/true": "1"})


def test_the_properties_of_iceberg_come_first() -> None:
    """PyIceberg's configuration has both, for PyIceberg and for other readers."""
    given = {"encryption.kms-type": "memory", "py-kms-impl": "no.such.Class", **UNITEST}
    assert isinstance(from_properties(given), MemoryKms)


# ---- ours, used as theirs ------------------------------------------------------------------------


def loaded(properties: dict[str, str], *, initialize: bool) -> Any:
    """Make a client as PyIceberg does, or as its proof of concept."""
    if not initialize:
        return KeyManagementClient(properties)
    client = KeyManagementClient()
    client.initialize(properties)
    return client


@pytest.mark.parametrize("initialize", [False, True])
def test_a_client_of_ours_has_pyicebergs_methods(initialize: bool) -> None:
    client = loaded({"py-kms-impl": ADAPTER, **MEMORY}, initialize=initialize)
    java = json.loads((TESTS / "vectors" / "wrapped.json").read_text())
    assert client.unwrap_key(client.wrap_key(KEY, "keyA"), "keyA") == KEY
    assert client.supports_key_generation() is False
    with pytest.raises(NotImplementedError):
        client.generate_key("keyA")
    with pytest.raises(KmsKeyNotFoundError):
        client.wrap_key(key=KEY, wrapping_key_id="keyC")
    master = {"encryption.kms-type": "memory", "encryption.kms.key.m": java["master"]}
    opener = loaded(master, initialize=initialize)
    unwrapped = opener.unwrap_key(
        wrapped_key=bytes.fromhex(java["wrapped_kek"]), wrapping_key_id="m"
    )
    assert unwrapped == bytes.fromhex(java["kek"])


@pytest.mark.parametrize(("spec", "size"), [(None, 32), ("AES_256", 32), ("AES_128", 16)])
def test_a_generated_key_has_the_size_of_java(spec: str | None, size: int) -> None:
    given = {"encryption.kms-impl": f"{HERE}:MadeHere"}
    client = KeyManagementClient(given if spec is None else {**given, "kms.data-key-spec": spec})
    assert client.supports_key_generation() is True
    made = client.generate_key("keyA")
    assert len(made.key) == size
    assert client.unwrap_key(made.wrapped_key, "keyA") == made.key
    assert repr(made.key) not in repr(made)


class MadeHere(MemoryKms):
    """A client of ours that makes keys."""

    supports_key_generation = True

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> MadeHere:
        return cls({**properties, **UNITEST})

    def generate_key(self, key_id: str, key_size: int) -> Any:
        return Generated(KEY[:key_size], self.wrap_key(KEY[:key_size], key_id))


def test_secrets_are_neither_shown_nor_pickled(tmp_path: Path) -> None:
    client = KeyManagementClient(MEMORY)
    said = repr(client) + repr(client.properties) + str(vars(client))
    assert not [secret for secret in UNITEST.values() if secret in said]
    with pytest.raises(TypeError, match=r"encryption\.kms\.key\.keyA"):
        pickle.dumps(client)

    keyring = str(tmp_path / "keyring.json")
    LocalKms(keyring).create_key("orders")
    given = {"encryption.kms-type": "local", "kms.local.keyring": keyring}
    wrapped = KeyManagementClient(given).wrap_key(KEY, "orders")
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        client = KeyManagementClient(given)
        assert pool.submit(client.unwrap_key, wrapped, "orders").result() == KEY


def test_a_catalogs_other_properties_do_not_disturb() -> None:
    client: Any = KeyManagementClient({"uri": "sqlite://", "ssl": {"cabundle": "/x"}, **MEMORY})  # type: ignore[dict-item]
    assert client.properties == {"uri": "sqlite://", "encryption.kms-type": "memory"}


@pytest.mark.parametrize(
    "properties",
    [
        {"py-kms-impl": ADAPTER},
        {"encryption.kms-impl": ADAPTER.replace(".Key", ":Key")},
        {"py-kms-impl": "ags1.kms.pyiceberg.KeyManagementClient", "encryption.kms-type": ""},
    ],
)
@pytest.mark.parametrize("make", [from_properties, KeyManagementClient])
def test_the_adapter_alone_names_no_kms(
    properties: dict[str, str], make: Callable[[dict[str, str]], object]
) -> None:
    with pytest.raises(KmsConfigurationError, match=r"set encryption\.kms-type"):
        make(properties)


def test_it_is_a_subclass_where_pyiceberg_has_the_interface() -> None:
    theirs = pytest.importorskip("pyiceberg.encryption.kms", reason="this PyIceberg has no KMS")
    assert issubclass(KeyManagementClient, theirs.KeyManagementClient)

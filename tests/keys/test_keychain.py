"""The keys of a run: which sidecars are trusted, and what the KMS is asked for many of them."""

from __future__ import annotations

import functools
import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import ags1
from ags1 import AuthenticationError, KeyMetadata, KeyMetadataError, KmsUnwrapError, encrypt
from ags1.errors import (
    KmsAccessDeniedError,
    KmsError,
    KmsKeyDisabledError,
    KmsUnavailableError,
    NoKeyError,
)
from ags1.keys import EncryptedKey, Keychain, KeyEncryptionKey, Sidecar, read_sidecar, write_sidecar
from ags1.keys.keychain import key_of_file
from ags1.keys.sidecar import _PURPOSE, COPY_OF
from ags1.kms import LocalKms, create_key

pytestmark = pytest.mark.filterwarnings("ignore:.*for tests and demonstrations")


class Counting(LocalKms):
    """A keyring that counts what it is asked."""

    calls = 0

    def wrap_key(self, key: bytes, key_id: str) -> bytes:
        self.calls += 1
        return super().wrap_key(key, key_id)

    def unwrap_key(self, wrapped_key: bytes, key_id: str) -> bytes:
        self.calls += 1
        return super().unwrap_key(wrapped_key, key_id)


@pytest.fixture
def keyring(tmp_path: Path) -> Callable[[str], Counting]:
    def make(name: str) -> Counting:
        path = str(tmp_path / f"{name}.json")
        for key_id in ("default", "other"):
            create_key(path, key_id)
        return Counting(path)

    return make


def sealed(keychain: Keychain, folder: Path, count: int) -> dict[str, KeyMetadata]:
    made = {}
    for n in range(count):
        km = KeyMetadata.generate(32).with_file_length(n + 36)
        made[str(folder / f"{n}.keys")] = km
        write_sidecar(str(folder / f"{n}.keys"), keychain.seal(km))
    return made


def test_the_key_of_a_file_object_is_found_and_the_object_is_at_its_beginning_again(
    keyring: Callable[[str], Counting],
) -> None:
    (old, old_km), (new, new_km), (empty, empty_km) = map(encrypt, (b"old", b"new", b""))
    header, header_km = empty[:8], empty_km.with_file_length(8)
    kek = KeyEncryptionKey.generate(keyring("a"), "default", key_size=32)
    named = {data: data[8:20] for data in (old, new, empty, header)}
    # As earlier releases write them, as this one does, and one of each.
    for nonces in ({}, named, {old: named[old]}, {new: named[new]}, {header: b""}):
        kms = ((new, new_km), (old, old_km), (empty, empty_km), (header, header_km))
        first, *rest = (Sidecar.seal(km, kek, nonces.get(data)) for data, km in kms)
        sidecar = Sidecar.from_bytes(functools.reduce(Sidecar.with_keys_of, rest, first).to_bytes())
        for data, km in kms:
            file = io.BytesIO(data)
            assert key_of_file(sidecar, lambda entry: kek, file) == km
            assert file.read() == data
        assert key_of_file(sidecar, lambda entry: kek, None) == new_km
        other = io.BytesIO(bytes(encrypt(b"new")[0]))
        if nonces == named:
            with pytest.raises(NoKeyError, match="replaced, moved or put back"):
                key_of_file(sidecar, lambda entry: kek, other)
        else:
            km = key_of_file(sidecar, lambda entry: kek, other)
            with pytest.raises(AuthenticationError):
                ags1.decrypt(other.read(), km)


def test_one_kek_seals_a_run_and_one_call_opens_it(
    tmp_path: Path, keyring: Callable[[str], Counting]
) -> None:
    kms = keyring("a")
    made = sealed(Keychain(kms), tmp_path, 50)
    assert kms.calls == 1
    reader = Keychain(kms)
    assert {path: reader.open(path, None) for path in made} == made
    assert kms.calls == 2


def test_sidecars_of_one_kek_are_rewrapped_by_three_calls(
    tmp_path: Path, keyring: Callable[[str], Counting]
) -> None:
    kms = keyring("a")
    made = sealed(Keychain(kms), tmp_path, 50)
    kms.calls = 0
    mover = Keychain(kms)
    for path in made:
        write_sidecar(path, mover.rewrap(path, "other"), overwrite=True, durable=False)
    assert kms.calls == 3
    reader = Keychain(kms, trusted_key_ids={"other"})
    assert {path: reader.open(path, None) for path in made} == made
    # The same keychain moves a sidecar to several master keys, and to another KMS.
    (path, km), *_ = made.items()
    mover, elsewhere = Keychain(kms), keyring("b")
    for master_key_id, target in (("default", kms), ("other", kms), ("other", elsewhere)):
        moved = mover.rewrap(path, master_key_id, target)
        assert [entry.encrypted_by_id for entry in moved.kek_entries] == [master_key_id]
        write_sidecar(str(tmp_path / "moved"), moved, overwrite=True)
        assert Keychain(target).open(str(tmp_path / "moved"), None) == km


def test_a_sidecar_that_opens_nothing_is_not_rewrapped(
    tmp_path: Path, keyring: Callable[[str], Counting]
) -> None:
    kms = keyring("a")
    ((path, _),) = sealed(Keychain(kms), tmp_path, 1).items()
    sidecar = read_sidecar(path)
    (wrapped,) = sidecar.file_keys
    bad = bytearray(wrapped.encrypted_key_metadata)
    bad[-1] ^= 1
    entry = EncryptedKey(wrapped.key_id, bytes(bad), wrapped.encrypted_by_id)
    write_sidecar(path, sidecar.with_entries([entry]), overwrite=True)
    for call in (
        lambda: Keychain(kms).rewrap(path, "other"),
        lambda: Keychain(kms).open(path, None),
    ):
        with pytest.raises(AuthenticationError) as caught:
            call()
        assert caught.value.file == path


def test_a_sidecar_with_a_false_copy_of_a_kek_does_not_change_what_others_get(
    tmp_path: Path, keyring: Callable[[str], Counting]
) -> None:
    kms = keyring("a")
    ((path, km),) = sealed(Keychain(kms), tmp_path, 1).items()
    (own,) = read_sidecar(path).kek_entries
    false = KeyEncryptionKey.generate(kms, "other", key_size=32)
    form = EncryptedKey("false", b"", None, {COPY_OF: own.key_id})
    key = replace(false.wrap_key_metadata(km, purpose=_PURPOSE), encrypted_by_id=own.key_id)
    forged = Sidecar((own, false.rewrap(kms, "other", form).entry, key), key.key_id)
    write_sidecar(str(tmp_path / "forged"), forged)
    for change in (Keychain.rewrap, Keychain.add_key):
        keychain = Keychain(kms)
        write_sidecar(str(tmp_path / "first"), Sidecar.seal(km, false), overwrite=True)
        keychain.open(str(tmp_path / "first"), None)  # "other" is asked first from now on
        change(keychain, str(tmp_path / "forged"), "other")
        write_sidecar(str(tmp_path / "made"), change(keychain, path, "other"), overwrite=True)
        reader = Keychain(kms, trusted_key_ids={"other"})
        assert reader.open(str(tmp_path / "made"), None) == km


def test_a_kek_under_a_key_that_is_not_trusted_is_not_wrapped_under_another_one(
    tmp_path: Path, keyring: Callable[[str], Counting]
) -> None:
    kms = keyring("a")
    ((path, _),) = sealed(Keychain(kms), tmp_path, 1).items()
    for change in (Keychain.rewrap, Keychain.add_key):
        with pytest.raises(KeyMetadataError, match="'default', which is not among those to trust"):
            change(Keychain(kms, trusted_key_ids={"other"}), path, "other")


def test_of_two_file_keys_the_one_that_the_sidecar_names_comes_first(
    tmp_path: Path, keyring: Callable[[str], Counting]
) -> None:
    keychain = Keychain(keyring("a"))
    (path, old), (_, new) = sealed(keychain, tmp_path, 2).items()
    both = json.loads(keychain.seal(new).with_keys_of(read_sidecar(path)).to_bytes())
    for entries in (both["encryption-keys"], both["encryption-keys"][::-1]):
        (tmp_path / "both").write_text(json.dumps(both | {"encryption-keys": entries}))
        assert keychain.open(str(tmp_path / "both"), None) == new
    assert old != new
    (tmp_path / "both").write_text(json.dumps(both | {"key-id": "nothing"}))
    with pytest.raises(KeyMetadataError):
        keychain.open(str(tmp_path / "both"), None)


def test_the_same_name_in_another_keyring_is_another_key(
    tmp_path: Path, keyring: Callable[[str], Counting]
) -> None:
    old, new = keyring("a"), keyring("b")
    ((path, km),) = sealed(Keychain(old), tmp_path, 1).items()
    write_sidecar(path, Keychain(old).rewrap(path, "default", new), overwrite=True)
    assert Keychain(new).open(path, None) == km
    with pytest.raises(KmsUnwrapError):
        Keychain(old).open(path, None)


def test_only_trusted_master_keys_are_used(
    tmp_path: Path, keyring: Callable[[str], Counting]
) -> None:
    kms = keyring("a")
    ((path, km),) = sealed(Keychain(kms, "other"), tmp_path, 1).items()
    assert Keychain(kms).open(path, None) == km
    asked: list[str] = []
    unwrap = kms.unwrap_key
    kms.unwrap_key = lambda wrapped, key_id: asked.append(key_id) or unwrap(wrapped, key_id)
    for trusted in (set(), {"default"}):
        with pytest.raises(KeyMetadataError, match="'other', which is not among those to trust"):
            Keychain(kms, trusted_key_ids=trusted).open(path, None)
    assert asked == ["default"]


class Aliases(Counting):
    """A KMS with names that can be pointed at another key."""

    accepts_foreign_keys = True

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.names: dict[str, str] = {}

    def wrap_key(self, key: bytes, key_id: str) -> bytes:
        return super().wrap_key(key, self.names.get(key_id, key_id))

    def unwrap_key(self, wrapped_key: bytes, key_id: str) -> bytes:
        return super().unwrap_key(wrapped_key, self.names.get(key_id, key_id))


@pytest.fixture
def aliases(keyring: Callable[[str], Counting]) -> Aliases:
    kms = Aliases(keyring("a").path)
    kms.names = {"alias": "default"}
    return kms


def test_a_key_opens_what_was_wrapped_under_another_of_its_names(
    tmp_path: Path, aliases: Aliases
) -> None:
    for wrote, reads in (("alias", "default"), ("default", "alias")):
        ((path, km),) = sealed(Keychain(aliases, wrote), tmp_path, 1).items()
        assert Keychain(aliases, reads).open(path, None) == km
        Path(path).unlink()


def test_an_alias_that_was_pointed_at_another_key(tmp_path: Path, aliases: Aliases) -> None:
    files = sealed(Keychain(aliases, "alias"), tmp_path, 3)
    aliases.names["alias"] = "other"
    for trusted in ({"alias"}, {"alias", "other"}):
        with pytest.raises(KmsUnwrapError, match="does not open"):
            Keychain(aliases, trusted_key_ids=trusted).open(next(iter(files)), None)
    keychain = Keychain(aliases, trusted_key_ids={"alias", "default"})
    aliases.calls = 0
    for path, km in files.items():
        assert keychain.open(path, None) == km
    assert aliases.calls == 2  # the present key is asked, and then the former one
    for path, km in files.items():
        write_sidecar(path, keychain.rewrap(path, "alias"), overwrite=True)
        assert Keychain(aliases, "alias").open(path, None) == km


@pytest.mark.parametrize(
    ("failures", "error"),
    [
        ({"other": KmsAccessDeniedError, "default": KmsAccessDeniedError}, KmsAccessDeniedError),
        ({"other": KmsUnwrapError, "default": KmsAccessDeniedError}, KmsUnwrapError),
        ({"other": KmsAccessDeniedError, "default": KmsUnwrapError}, KmsAccessDeniedError),
        ({"other": KmsKeyDisabledError, "default": KmsUnavailableError}, KmsUnavailableError),
        ({"other": KmsUnavailableError}, KmsUnavailableError),
    ],
)
def test_which_failure_of_several_master_keys_is_told(
    tmp_path: Path,
    aliases: Aliases,
    failures: dict[str, type[KmsError]],
    error: type[KmsError],
) -> None:
    ((path, _),) = sealed(Keychain(aliases, "other"), tmp_path, 1).items()

    def unwrap(wrapped: bytes, key_id: str) -> bytes:
        raise failures[key_id](f"from {key_id}")

    aliases.unwrap_key = unwrap
    with pytest.raises(error, match="from ") as caught:
        Keychain(aliases, trusted_key_ids={"default", "other"}).open(path, None)
    assert type(caught.value) is error


def test_where_a_name_may_be_a_strangers_only_the_own_is_used(
    tmp_path: Path, keyring: Callable[[str], Counting]
) -> None:
    """As with AWS: whoever replaces a file and its sidecar could name a key of their own."""

    class Worldwide(Counting):
        accepts_foreign_keys = True

    kms = Worldwide(keyring("a").path)
    ((path, km),) = sealed(Keychain(kms, "other"), tmp_path, 1).items()
    with pytest.raises(KeyMetadataError, match="not among those to trust"):
        Keychain(kms, "default").open(path, None)
    assert Keychain(kms, "other").open(path, None) == km
    assert Keychain(kms, "x", trusted_key_ids={"other"}).open(path, None) == km


def test_a_client_that_does_not_say_is_taken_for_a_worldwide_one(
    tmp_path: Path, keyring: Callable[[str], Counting]
) -> None:
    kms = keyring("a")

    class Silent:
        supports_key_generation = False
        wrap_key = staticmethod(kms.wrap_key)
        unwrap_key = staticmethod(kms.unwrap_key)
        generate_key = staticmethod(kms.generate_key)
        close = staticmethod(kms.close)

    ((path, _),) = sealed(Keychain(kms, "other"), tmp_path, 1).items()
    with pytest.raises(KeyMetadataError, match="not among those to trust"):
        Keychain(Silent(), "default").open(path, None)


def test_a_forked_child_seals_under_a_kek_of_its_own(
    tmp_path: Path,
    keyring: Callable[[str], Counting],
    in_a_fork: Callable[[Callable[[], object]], None],
) -> None:
    kms = keyring("a")
    keychain = Keychain(kms)
    parents = keychain.seal(KeyMetadata.generate(32).with_file_length(36)).kek_entries

    def child() -> None:
        km = KeyMetadata.generate(32).with_file_length(36)
        assert keychain.seal(km).kek_entries != parents

    in_a_fork(child)

"""A table's keys: opening and adding those of its manifest lists, once the KEK is unwrapped."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from typing import NoReturn

from ags1 import KeyMetadata
from ags1.keys import EncryptedKey, EncryptionManager
from bench.peers import pyca
from bench.rounds import Contest, Contestant, compete, timed
from bench.settings import Settings

SUBJECT = "keys"
COUNT = 1000
MANAGER = "EncryptionManager"
NAIVE = "cryptography and fastavro by hand"
OPEN = f"open the keys of {COUNT} manifest lists"
ADD = f"add the keys of {COUNT} manifest lists"


class MemoryMaster:
    """A master key in this process: what the KMS's network costs is not the subject."""

    supports_key_generation = False
    accepts_foreign_keys = False

    def __init__(self) -> None:
        self._key: dict[bytes, bytes] = {}

    def wrap_key(self, key: bytes, key_id: str) -> bytes:
        wrapped_key = b"wrapped %d" % len(self._key)
        self._key[wrapped_key] = key
        return wrapped_key

    def unwrap_key(self, wrapped_key: bytes, key_id: str) -> bytes:
        return self._key[wrapped_key]

    def generate_key(self, key_id: str, key_size: int) -> NoReturn:
        raise NotImplementedError

    def close(self) -> None:
        self._key.clear()


class ManifestListKeys:
    """The wrapped keys of ``count`` manifest lists, and the two ways to open them."""

    def __init__(self, count: int) -> None:
        self._kms = MemoryMaster()
        manager = EncryptionManager(self._kms, "key")
        self.plain = [manager.new_file_key().with_file_length(n + 36) for n in range(count)]
        self.ids = [manager.add_manifest_list_key(km) for km in self.plain]
        self.entries = manager.encryption_keys

    def open(self) -> list[KeyMetadata]:
        """Open them as a reader does that has just parsed the metadata."""
        manager = EncryptionManager(self._kms, "key", self.entries)
        return [manager.manifest_list_key(key_id) for key_id in self.ids]

    def open_by_hand(self) -> list[tuple[bytes, bytes, int]]:
        """Open them as one writes it first."""
        kek = self.entries[0]
        return pyca.open_key_metadata(
            self._kms.unwrap_key(kek.encrypted_key_metadata, "key"),
            (kek.timestamp or "").encode(),
            [entry.encrypted_key_metadata for entry in self.entries[1:]],
        )

    def add(self) -> tuple[EncryptedKey, ...]:
        """Add them to a list that has the KEK."""
        manager = EncryptionManager(self._kms, "key", self.entries[:1])
        for km in self.plain:
            manager.add_manifest_list_key(km)
        return manager.encryption_keys

    def check(self) -> None:
        """Raise RuntimeError unless both ways give the keys that went in."""
        by_hand = [KeyMetadata(*fields) for fields in self.open_by_hand()]
        if not self.plain == self.open() == by_hand:
            raise RuntimeError("the keys did not come back")


def measure(settings: Settings, skipped: dict[str, str]) -> Iterator[Contest]:
    keys = ManifestListKeys(COUNT)
    ways: dict[str, Callable[[], object]] = {MANAGER: keys.open}
    if "naive" in settings.peers and importlib.util.find_spec("cryptography") is not None:
        keys.check()
        ways[NAIVE] = keys.open_by_hand
    opening = [Contestant(name, timed(work), count=COUNT) for name, work in ways.items()]
    yield compete(SUBJECT, OPEN, opening, settings.rounds)
    adding = [Contestant(MANAGER, timed(keys.add), count=COUNT)]
    yield compete(SUBJECT, ADD, adding, settings.rounds)

"""The keys of a table: which KEK to use, and the wrapped keys of its manifest lists.

Follows Java's ``StandardEncryptionManager`` and the Iceberg specification, "Encryption Keys". The
manager takes the list of keys that was parsed from metadata.json, and returns the list to commit.

The list may come from a place where others can write. So the ID of the master key never comes from
the list: the caller takes ``table_key_id`` from the catalog or from configuration. Whoever can have
keys wrapped under the master key can put a KEK of their own into the list. If everybody can
(``KmsClient.wraps_with_public_key``), new keys are encrypted only under KEKs that were made here.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from ..engine.key_metadata import KEY_SIZES, KeyMetadata
from ..errors import (
    Ags1Error,
    AuthenticationError,
    KeyMetadataError,
    KmsKeyDisabledError,
    KmsKeyNotFoundError,
    KmsUnwrapError,
)
from ..host.process import Lock, OncePerProcess
from ..kms.client import KmsClient, accepts_foreign_keys, wraps_with_public_key
from .cache import KekCache
from .envelope import EncryptedKey, KeyEncryptionKey, ParsedKeys, parse_encryption_keys

TABLE_KEY_ID = "encryption.key-id"
DATA_KEY_LENGTH = "encryption.data-key-length"
DEFAULT_DATA_KEY_LENGTH = 16

# NIST SP 800-57 part 1 rev. 5, 5.3.6: the time a KEK may be used to protect new keys.
KEK_LIFETIME_MS = 730 * 24 * 60 * 60 * 1000
# Clocks of writers differ. A KEK from further in the future would outlive its time.
CLOCK_SKEW_MS = 24 * 60 * 60 * 1000

Clock = Callable[[], int]

_log = logging.getLogger(__name__)
# Errors that say that one entry does not open, and nothing about other entries.
_UNOPENED = (
    AuthenticationError,
    KeyMetadataError,
    KmsUnwrapError,
    KmsKeyNotFoundError,
    KmsKeyDisabledError,
)


def now_ms() -> int:
    """Return the time in epoch milliseconds."""
    return time.time_ns() // 1_000_000


class EncryptionManager:
    """The keys of one version of a table's metadata, and the ones added to it.

    ``table_key_id`` is the table property ``encryption.key-id``, ``encryption_keys`` the list in
    the metadata, and ``data_key_length`` (bytes) the least size of new keys (``new_key_size``).
    ``clock_ms`` returns epoch milliseconds. ``cache`` is a ``KekCache`` of the same KMS client, to
    share with other tables.

    Threads may share a manager. ``rewrap``, ``rotate``, ``prune`` and ``shred`` do not change it:
    they return another manager, whose ``encryption_keys`` are the whole list to commit. A pickle
    has only the wrapped keys. Raises KeyMetadataError for a missing key ID, another key length, and
    two keys with one ID.
    """

    def __init__(
        self,
        kms: KmsClient,
        table_key_id: str,
        encryption_keys: Iterable[EncryptedKey] = (),
        data_key_length: int = DEFAULT_DATA_KEY_LENGTH,
        *,
        clock_ms: Clock = now_ms,
        cache: KekCache | None = None,
    ) -> None:
        if not isinstance(table_key_id, str) or not table_key_id:
            raise KeyMetadataError(f"the table's key ID ({TABLE_KEY_ID!r}) is missing")
        if type(data_key_length) is not int or data_key_length not in KEY_SIZES:
            raise KeyMetadataError(f"a data key has 16, 24 or 32 bytes, not {data_key_length!r}")
        if cache is not None and cache.kms is not kms:
            raise ValueError("the cache belongs to another KMS client: give a KekCache of this one")
        self.kms = kms
        self.table_key_id = table_key_id
        self.data_key_length = data_key_length
        self._clock_ms = clock_ms
        self.cache = KekCache(kms) if cache is None else cache
        keys = tuple(encryption_keys)
        self._entries = {key.key_id: key for key in keys}
        if len(self._entries) != len(keys):
            raise KeyMetadataError("two of the table's encryption keys have one id")
        self._parsed = ParsedKeys()
        self._kek_size = 0
        self._making = OncePerProcess(Lock)

    @classmethod
    def from_metadata(
        cls,
        metadata: Mapping[str, Any],
        kms: KmsClient,
        *,
        table_key_id: str | None = None,
        clock_ms: Clock = now_ms,
        cache: KekCache | None = None,
        before: EncryptionManager | None = None,
    ) -> EncryptionManager:
        """Return the manager for a table's parsed metadata.json. ``before`` is the one of an
        earlier version: objects of JSON that both versions have are not parsed again.

        ``table_key_id`` is the key ID that the catalog, or the caller, expects. None uses the one
        in the metadata, and is refused if a key ID may name another user's key
        (``KmsClient.accepts_foreign_keys``). Raises KeyMetadataError if the two differ, the table
        is not encrypted, or its keys are malformed.
        """
        properties = metadata.get("properties") or {}
        stated = properties.get(TABLE_KEY_ID)
        if stated is None:
            raise KeyMetadataError(f"the table is not encrypted: it has no {TABLE_KEY_ID!r}")
        if table_key_id is None and accepts_foreign_keys(kms):
            raise KeyMetadataError(
                f"the metadata names {stated!r} as the table's key, which may be another user's "
                "key: give the key ID to expect"
            )
        if table_key_id is not None and stated != table_key_id:
            raise KeyMetadataError(
                f"the metadata names {stated!r} as the table's key, not {table_key_id!r}"
            )
        length = properties.get(DATA_KEY_LENGTH, str(DEFAULT_DATA_KEY_LENGTH))
        if length not in map(str, KEY_SIZES):
            raise KeyMetadataError(f"the table's {DATA_KEY_LENGTH!r} is not 16, 24 or 32")
        entries = metadata.get("encryption-keys")
        known = ParsedKeys() if before is None else before._parsed
        keys = parse_encryption_keys(entries, known)
        made = cls(kms, stated, keys, int(length), clock_ms=clock_ms, cache=cache)
        made._parsed = ParsedKeys(entries or (), keys)
        return made

    @property
    def encryption_keys(self) -> tuple[EncryptedKey, ...]:
        """The list for metadata.json (see ``encryption_keys_to_dicts``)."""
        return tuple(self._entries.values())

    @property
    def key_encryption_keys(self) -> tuple[EncryptedKey, ...]:
        """The entries of the list that are KEKs."""
        return tuple(filter(self._is_kek, self.encryption_keys))

    def new_file_key(self) -> KeyMetadata:
        """Return a fresh key of ``new_key_size`` and a fresh 16-byte AAD prefix for one file of the
        table. Raises KmsError."""
        return KeyMetadata.generate(self.new_key_size())

    def new_key_size(self) -> int:
        """Return the size of new keys in bytes: the data key length or, if it is longer, the size
        of the table's longest KEK, even an expired one. Others may have lowered the data key length
        in the metadata, and changed the KEKs' times. They cannot make a KEK. So the newest KEK is
        unwrapped, and each one that is longer when wrapped, unless they are in the cache. A KEK
        that does not open does not count. Raises KmsError."""
        size, length = self._kek_size, 0
        for _, entry in () if size else self._keks_by_age():
            if len(entry.encrypted_key_metadata) > length:
                with contextlib.suppress(*_UNOPENED):
                    if kek := self._usable_kek(entry):
                        size = max(size, kek.key_size)
                        length = len(entry.encrypted_key_metadata)
        self._kek_size = size
        return max(self.data_key_length, size)

    def _usable_kek(self, entry: EncryptedKey) -> KeyEncryptionKey | None:
        """Return an unwrapped KEK; if everybody can wrap keys, only one in the cache, else None."""
        if wraps_with_public_key(self.kms):
            return self.cache.peek(entry, self.table_key_id)
        return self._unwrap(entry)

    def add_manifest_list_key(self, key_metadata: KeyMetadata) -> str:
        """Wrap the key metadata of a manifest list, add it to the list of keys, and return its ID.
        The snapshot must name that ID as ``key-id``. If no KEK may still be used, this makes one,
        which is a KMS call. Raises KmsError, or KeyMetadataError if ``km`` has no file length,
        because no reader could open the file."""
        if key_metadata.file_length is None:
            raise KeyMetadataError("a manifest list's key metadata needs the file's length")
        making = self._making.get()
        making.check_not_mine()
        with making:
            entry = self._kek_for_sealing(len(key_metadata.encryption_key)).wrap_key_metadata(
                key_metadata
            )
            self._entries[entry.key_id] = entry
        return entry.key_id

    def manifest_list_key(self, key_id: str) -> KeyMetadata:
        """Return the key metadata of the manifest list whose snapshot names ``key_id``. Raises
        KeyMetadataError if the entry or its KEK is missing or is something else,
        AuthenticationError if it was changed, and KmsError."""
        entry = self._entry(key_id)
        if self._is_kek(entry):
            raise KeyMetadataError(f"{key_id!r} is a KEK and not a manifest list's key")
        return self._kek_of(entry).unwrap_key_metadata(entry)

    def rewrap(
        self,
        kms: KmsClient | None = None,
        table_key_id: str | None = None,
        needed: Collection[str] | None = None,
    ) -> EncryptionManager:
        """Return a manager whose KEKs, expired ones included, are wrapped under another master key
        or KMS, or under the newest version of the same key. No other entry changes, and no file.

        Java unwraps every KEK with the table's key. So the new list, the table's
        ``encryption.key-id`` and the catalog's copy of it have to change in one commit. There are
        three KMS calls for each KEK: the last unwraps its new form. ``needed`` is that of
        ``rotate``. Raises KmsError.

        The IDs stay the same. In a REST catalog, adding a key whose ID exists has no effect, so
        remove each key before you add it. Destroy the old master key only after you have read the
        committed metadata back and opened every key in it.
        """
        kms = self.kms if kms is None else kms
        table_key_id = self.table_key_id if table_key_id is None else table_key_id
        cache = KekCache(kms)
        entries = {entry.key_id: entry for entry in self.encryption_keys}
        for entry in self.key_encryption_keys:
            try:
                kek = self._unwrap(entry)
            except _UNOPENED as error:
                _check_unneeded(entry, needed, error)
                continue
            kek = kek.rewrap(kms, table_key_id)
            cache.put(kek)
            entries[entry.key_id] = kek.entry
        return self._with(entries.values(), table_key_id, cache)

    def rotate(self, needed: Collection[str] | None = None) -> EncryptionManager:
        """Return a manager with one new KEK, which wraps every manifest list's key, and without the
        other KEKs. The new KEK is at least as long as the longest of these keys. Entries keep their
        IDs, so that snapshots need no change.

        Java uses any unexpired KEK for its next commit, so the old KEKs are removed. What
        ``rewrap`` says about IDs and catalogs is true here too. If others may have learned a KEK,
        disable its master key's version too: they could put the KEK back into the list.

        ``needed`` are the IDs of the entries that must open; None stands for all. If another entry
        does not open, it stays as it is, with its KEK, and a warning is logged. Raises
        KeyMetadataError, AuthenticationError or KmsError if a needed entry does not open, so that
        no key is lost.
        """
        rewrapped: list[tuple[EncryptedKey, KeyMetadata]] = []
        kept: list[EncryptedKey] = []
        closed: set[str | None] = set()  # IDs of KEKs that are not tried again
        size = 0
        for entry in self.encryption_keys:
            if self._is_kek(entry):
                continue
            if entry.encrypted_by_id in closed and entry.key_id not in (needed or ()):
                kept.append(entry)
                continue
            try:
                old_kek = self._kek_of(entry)
                key_metadata = old_kek.unwrap_key_metadata(entry)
            except _UNOPENED as error:
                _check_unneeded(entry, needed, error)
                closed.add(entry.encrypted_by_id)
                kept.append(entry)
            else:
                rewrapped.append((entry, key_metadata))
                size = max(size, old_kek.key_size, len(key_metadata.encryption_key))
        kek = self._new_kek(size)
        entries = [kek.entry]
        for entry, key_metadata in rewrapped:
            sealed = kek.wrap_key_metadata(key_metadata, entry.key_id)
            entries.append(replace(sealed, properties=entry.properties, unknown=entry.unknown))
        entries += kept
        entries += (entry for entry in self.encryption_keys if entry.key_id in closed)
        return self._with(entries)

    def prune(
        self, live_key_ids: Collection[str], others: Collection[str] = ()
    ) -> EncryptionManager:
        """Return a manager without the entries that nothing needs.

        ``live_key_ids`` are the ``key-id``s of the snapshots that stay. ``others`` are the IDs of
        other entries to keep, if they are in the list. A KEK stays if a live key needs it, or if
        the next commit would use it. Java never drops any. Raises KeyMetadataError if one of
        ``live_key_ids`` or its KEK is not in the list.
        """
        live = [self._entry(key_id) for key_id in live_key_ids]
        needed = {*others, *(entry.key_id for entry in live)}
        needed.update(self._kek_entry(entry).key_id for entry in live)
        needed.update(entry.key_id for entry in self._usable_keks()[:1])
        return self._with(entry for entry in self.encryption_keys if entry.key_id in needed)

    def shred(self, kek_id: str) -> EncryptionManager:
        """Return a manager without a KEK and without the keys that it wraps. Their snapshots cannot
        be read with the new list. This is not final. Older metadata files still contain the wrapped
        KEK, and a Java writer that has it in memory puts it back with its next commit. Only the
        destruction of the master key's version in the KMS is final. Raises KeyMetadataError."""
        if not self._is_kek(self._entry(kek_id)):
            raise KeyMetadataError(f"{kek_id!r} is not a KEK")
        return self._with(
            entry
            for entry in self.encryption_keys
            if kek_id not in (entry.key_id, entry.encrypted_by_id)
        )

    def _kek_for_sealing(self, sealed_size: int) -> KeyEncryptionKey:
        size = self.new_key_size()
        public = wraps_with_public_key(self.kms)
        for kek in map(self._usable_kek, self._usable_keks()):
            if kek is None or (public and not kek.made_here):
                continue
            # A data key is no stronger than the KEK that wraps it.
            if kek.key_size >= size:
                return kek
        kek = self._new_kek(sealed_size)
        self._entries[kek.entry.key_id] = kek.entry
        return kek

    def _new_kek(self, least_size: int) -> KeyEncryptionKey:
        size, now = max(least_size, self.new_key_size()), self._clock_ms()
        kek = KeyEncryptionKey.generate(
            self.kms, self.table_key_id, key_size=size, timestamp_ms=now
        )
        self.cache.put(kek)
        self._kek_size = size
        return kek

    def _usable_keks(self) -> list[EncryptedKey]:
        """Return the KEKs that may still encrypt, the newest first."""
        now = self._clock_ms()
        return [
            entry
            for timestamp_ms, entry in self._keks_by_age()
            if -CLOCK_SKEW_MS <= now - timestamp_ms < KEK_LIFETIME_MS
        ]

    def _keks_by_age(self) -> list[tuple[int, EncryptedKey]]:
        """Return the table's KEKs and their times, the newest first."""
        keks = [
            (timestamp_ms, entry)
            for entry in self.encryption_keys
            if entry.encrypted_by_id == self.table_key_id
            and (timestamp_ms := entry.timestamp_ms) is not None
        ]
        return sorted(keks, key=lambda both: both[0], reverse=True)

    def _kek_of(self, entry: EncryptedKey) -> KeyEncryptionKey:
        return self._unwrap(self._kek_entry(entry))

    def _unwrap(self, kek_entry: EncryptedKey) -> KeyEncryptionKey:
        try:
            return self.cache.unwrap(kek_entry, self.table_key_id)
        except KmsUnwrapError as error:
            if kek_entry.encrypted_by_id in (None, self.table_key_id):
                raise
            raise KmsUnwrapError(
                f"the KEK {kek_entry.key_id!r} says that {kek_entry.encrypted_by_id!r} wrapped it, "
                f"and the table's key is {self.table_key_id!r}: {error.message}"
            ) from None

    def _entry(self, key_id: str) -> EncryptedKey:
        entry = self._entries.get(key_id)
        if entry is None:
            raise KeyMetadataError(f"the table's encryption keys have no {key_id!r}")
        return entry

    def _kek_entry(self, entry: EncryptedKey) -> EncryptedKey:
        kek_entry = self._entries.get(entry.encrypted_by_id or "")
        if kek_entry is None:
            raise KeyMetadataError(
                f"the KEK {entry.encrypted_by_id!r}, which wraps the key {entry.key_id!r}, is not "
                "among the table's encryption keys"
            )
        return kek_entry

    def _is_kek(self, entry: EncryptedKey) -> bool:
        # A timestamp alone is not enough: anybody can add one to a manifest list's key.
        return entry.encrypted_by_id == self.table_key_id or (
            entry.timestamp is not None and entry.encrypted_by_id not in self._entries
        )

    def _with(
        self,
        entries: Iterable[EncryptedKey],
        table_key_id: str | None = None,
        cache: KekCache | None = None,
    ) -> EncryptionManager:
        cache = self.cache if cache is None else cache
        key_id = self.table_key_id if table_key_id is None else table_key_id
        length, clock_ms = self.data_key_length, self._clock_ms
        made = EncryptionManager(cache.kms, key_id, entries, length, clock_ms=clock_ms, cache=cache)
        made._kek_size = self._kek_size
        return made

    def __repr__(self) -> str:
        keks = len(self.key_encryption_keys)
        return (
            f"EncryptionManager({self.table_key_id!r}, {keks} KEKs, "
            f"{len(self._entries) - keks} other keys, {self.kms!r})"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        make = functools.partial(EncryptionManager, clock_ms=self._clock_ms)
        return make, (self.kms, self.table_key_id, self.encryption_keys, self.data_key_length)


def _check_unneeded(entry: EncryptedKey, needed: Collection[str] | None, error: Ags1Error) -> None:
    """Raise ``error``, which says why an entry does not open, unless nothing needs the entry."""
    if needed is None or entry.key_id in needed:
        raise error
    _log.warning("%s. Nothing refers to %r: it stays as it is", error.message, entry.key_id)

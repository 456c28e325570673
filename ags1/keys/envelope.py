"""Wrapped keys: master key (KMS) → key encryption key (KEK) → key metadata of one file.

An ``EncryptedKey`` is an entry of the ``encryption-keys`` list in a table's metadata.json or in the
sidecar of a single file. The KMS wraps a KEK entry. A key metadata entry is encrypted with AES-GCM
under the KEK, with the KEK's timestamp as additional data. What a KMS gives as a wrapped key is
refused if the key itself is in it. A KMS that cannot generate keys, or may not, wraps those that
are made here. Follows the Iceberg specification "Encryption Keys" and Java's ``EncryptedKeyParser``
and ``StandardEncryptionManager``.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hmac
import operator
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, NamedTuple

from ..engine._buffers import wipe
from ..engine._gcm import random_bytes
from ..engine._key_metadata import EncodedKeyMetadata
from ..engine._messages import open as open_sealed
from ..engine._messages import seal
from ..engine.key_metadata import KEY_SIZES, KeyMetadata
from ..errors import (
    AuthenticationError,
    KeyMetadataError,
    KeyReuseError,
    KmsAccessDeniedError,
    KmsError,
    KmsUnwrapError,
)
from ..host import strict_json
from ..host._process import process_number
from ..kms.client import GeneratedKey, KmsClient, own_name
from ..kms.secret import Secret, discreet

KEY_TIMESTAMP = "KEY_TIMESTAMP"
# The spelling in the text proposed for the specification; Java writes the one above.
KEY_TIMESTAMP_PROPOSED = "key-timestamp"
# A property of ours: the master key's own name, if the entry names an alias. It is a hint for
# people and is never used to unwrap, because whoever can write the entry can write it. Java prints
# it before KEY_TIMESTAMP, and the Hive catalog's hash is that of Java's text.
MASTER_KEY = "ags1.master-key"
_KEY_ID_SIZE = 16
# A timestamp, as Java writes a long. No other text is accepted: see ``_additional_data``.
_DECIMAL = re.compile(r"-?[0-9]{1,19}")
_FIELDS = frozenset({"key-id", "encrypted-key-metadata", "encrypted-by-id", "properties"})


@dataclass(frozen=True, slots=True)
class EncryptedKey:
    """One entry of ``encryption-keys``, with the ``unknown`` fields of its JSON. It contains no
    plaintext key."""

    key_id: str
    encrypted_key_metadata: bytes = field(repr=False)
    encrypted_by_id: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    unknown: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def from_dict(cls, entry: object) -> EncryptedKey:
        """Make an entry from its parsed JSON. Unknown properties and fields stay in it. Raises
        KeyMetadataError, naming the field."""
        if not isinstance(entry, dict):
            raise KeyMetadataError("an entry of encryption-keys is not an object")
        properties = {} if entry.get("properties") is None else entry["properties"]
        texts = properties.values() if isinstance(properties, dict) else ()
        if not isinstance(properties, dict) or not all(isinstance(text, str) for text in texts):
            raise KeyMetadataError("'properties' of an encrypted key is not a map of strings")
        encrypted_by_id = entry.get("encrypted-by-id")
        if encrypted_by_id is not None and not isinstance(encrypted_by_id, str):
            raise KeyMetadataError("'encrypted-by-id' of an encrypted key is not a string")
        text = _string(entry, "encrypted-key-metadata")
        try:
            encrypted_key_metadata = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            raise KeyMetadataError(
                "'encrypted-key-metadata' of an encrypted key is not base64"
            ) from None
        return cls(
            _string(entry, "key-id"),
            encrypted_key_metadata,
            encrypted_by_id,
            dict(properties),
            {name: value for name, value in entry.items() if name not in _FIELDS},
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the entry for JSON, in Java's field order, without absent and empty fields."""
        entry: dict[str, Any] = {
            "key-id": self.key_id,
            "encrypted-key-metadata": base64.b64encode(self.encrypted_key_metadata).decode(),
        }
        if self.encrypted_by_id is not None:
            entry["encrypted-by-id"] = self.encrypted_by_id
        if self.properties:
            entry["properties"] = dict(self.properties)
        return {**entry, **self.unknown}

    @property
    def timestamp(self) -> str | None:
        """The KEK's creation time (epoch ms), as text from the properties; None if there is none.
        What the KEK encrypts is bound to this text. Raises KeyMetadataError if both spellings are
        there and differ."""
        written = self.properties.get(KEY_TIMESTAMP)
        proposed = self.properties.get(KEY_TIMESTAMP_PROPOSED)
        if written is not None and proposed is not None and written != proposed:
            raise KeyMetadataError(
                f"the key {self.key_id!r} has two different timestamps, "
                f"{KEY_TIMESTAMP} and {KEY_TIMESTAMP_PROPOSED}"
            )
        return proposed if written is None else written

    @property
    def timestamp_ms(self) -> int | None:
        """The timestamp as a number; None if there is none, or if it is not decimal. Raises
        as ``timestamp``."""
        timestamp = self.timestamp or ""
        return int(timestamp) if _DECIMAL.fullmatch(timestamp) else None


class KeyEncryptionKey(Secret):
    """An unwrapped KEK and its entry. The key is never printed, pickled or copied, and is wiped
    when its last user is done.

    ``made_here`` says that ``generate`` made it, and not a KMS that unwrapped a stored entry. It
    encrypts with AES-GCM under random nonces, so that many processes can use one KEK. A forked
    child asks the KMS for its own.
    """

    __slots__ = ("_aad", "_key", "_process", "entry", "made_here")

    @discreet
    def __init__(
        self, entry: EncryptedKey, key: bytes | bytearray | memoryview, *, made_here: bool = False
    ) -> None:
        self.entry = entry
        self.made_here = made_here
        self._process = process_number()
        self._key = bytearray()
        size = len(key)
        if size not in KEY_SIZES:
            raise KeyMetadataError(
                f"the key {entry.key_id!r} unwraps to {size} bytes; an AES key has 16, 24 or 32"
            )
        self._aad = _aad(entry)
        self._key = bytearray(key)

    def __del__(self) -> None:
        wipe(memoryview(self._key))

    @classmethod
    @discreet
    def generate(
        cls, kms: KmsClient, master_key_id: str, *, key_size: int, timestamp_ms: int | None = None
    ) -> KeyEncryptionKey:
        """Make a KEK of ``key_size`` bytes under the master key; one KMS call. The KMS makes the
        key if it can and the caller has the right to that. Otherwise the key is random bytes from
        the kernel, which the KMS wraps. Raises KmsError."""
        made = _generated(kms, master_key_id, key_size)
        now_ms = time.time_ns() // 1_000_000 if timestamp_ms is None else timestamp_ms
        properties = {**_own_name(kms, master_key_id), KEY_TIMESTAMP: str(now_ms)}
        entry = EncryptedKey(new_key_id(), made.wrapped_key, master_key_id, properties)
        return cls(entry, made.key, made_here=True)

    @classmethod
    @discreet
    def unwrap(
        cls, kms: KmsClient, entry: EncryptedKey, master_key_id: str | None = None
    ) -> KeyEncryptionKey:
        """Have ``kms`` unwrap a KEK's entry; one KMS call. ``master_key_id`` is the master key to
        use. None uses the one that the entry names, which is safe only for entries from a trusted
        place. Raises KmsError, or KeyMetadataError if the wrapped key is not a KEK."""
        master_key_id = entry.encrypted_by_id if master_key_id is None else master_key_id
        if master_key_id is None:
            raise KeyMetadataError(f"the key {entry.key_id!r} does not say which key wrapped it")
        _aad(entry)  # before the KMS is asked
        try:
            return cls(entry, _bytes(kms.unwrap_key(entry.encrypted_key_metadata, master_key_id)))
        except KmsUnwrapError as error:
            own = entry.properties.get(MASTER_KEY, master_key_id)
            if own == master_key_id:
                raise
            raise KmsUnwrapError(
                f"{error.message}. The entry says that {own!r} wrapped it: if you know that this "
                "is your key, name it too, and wrap the key again"
            ) from None

    @property
    def key_size(self) -> int:
        """The key's size in bytes."""
        return len(self._key)

    def wrap_key_metadata(
        self, key_metadata: KeyMetadata, key_id: str | None = None, *, purpose: bytes = b""
    ) -> EncryptedKey:
        """Return an entry that holds ``km`` encrypted under this KEK, with a new ID unless one is
        given. ``purpose`` follows the timestamp in the additional data; manifest lists have none.
        What is encrypted for one purpose does not open for another. Raises KeyReuseError in a child
        that was forked after the KEK was unwrapped, and ValueError for a purpose that begins with a
        digit."""
        if self._process != process_number():
            raise KeyReuseError(
                f"the KEK {self.entry.key_id!r} was unwrapped before a fork, and the parent may "
                "use it too: unwrap it again in the child"
            )
        sealed = seal(self._key, key_metadata.to_bytes(), self._additional_data(purpose))
        return EncryptedKey(key_id or new_key_id(), sealed, self.entry.key_id)

    def unwrap_key_metadata(self, entry: EncryptedKey, *, purpose: bytes = b"") -> KeyMetadata:
        """Return the key metadata that ``entry`` holds. Raises AuthenticationError."""
        aad = self._additional_data(purpose)
        try:
            data = EncodedKeyMetadata(open_sealed(self._key, entry.encrypted_key_metadata, aad))
        except (AuthenticationError, ValueError):
            raise AuthenticationError(
                f"the wrapped key metadata {entry.key_id!r} does not verify: "
                "it was changed, or another key wrapped it"
            ) from None
        return KeyMetadata.from_bytes(data)

    def _additional_data(self, purpose: bytes) -> bytes:
        """Return the timestamp and then a purpose. Others may change the timestamp, which is in the
        entry. It has digits alone, except for a sign, and a purpose does not begin with a digit. So
        no other timestamp turns one purpose into another."""
        if purpose[:1].isdigit():
            raise ValueError("a purpose cannot begin with a digit: it follows the timestamp")
        return self._aad + purpose

    @discreet
    def rewrap(
        self, kms: KmsClient, master_key_id: str, entry: EncryptedKey | None = None
    ) -> KeyEncryptionKey:
        """Return the same KEK, with its ID and timestamp, wrapped under the newest version of a
        master key of ``kms``, which may be the one that has wrapped it so far. ``entry`` has the ID
        and properties to use in place of those of the KEK's own entry.

        There are two KMS calls. The second one unwraps what the first one wrapped, because the old
        master key may be destroyed next. Raises KmsError.
        """
        entry = self.entry if entry is None else entry
        wrapped_key = _wrapped(kms.wrap_key(bytes(self._key), master_key_id), self._key)
        if not hmac.compare_digest(kms.unwrap_key(wrapped_key, master_key_id), self._key):
            raise KmsError(f"the KMS does not unwrap what it wrapped under {master_key_id!r}")
        # Java reads this spelling only.
        kept = {name: text for name, text in entry.properties.items() if name != MASTER_KEY}
        timestamp = {KEY_TIMESTAMP: self._aad.decode()}
        properties = {**_own_name(kms, master_key_id), **kept, **timestamp}
        unknown = entry.unknown
        rewrapped = EncryptedKey(entry.key_id, wrapped_key, master_key_id, properties, unknown)
        return KeyEncryptionKey(rewrapped, self._key, made_here=self.made_here)

    def __repr__(self) -> str:
        return f"KeyEncryptionKey({self.entry!r}, key=<{len(self._key)} bytes>)"


def _generated(kms: KmsClient, master_key_id: str, key_size: int) -> GeneratedKey:
    if kms.supports_key_generation:
        # It makes no key of this size, or the caller has the right to wrap keys, not to make them.
        with contextlib.suppress(NotImplementedError, KmsAccessDeniedError):
            made = kms.generate_key(master_key_id, key_size)
            key_made = _bytes(made.key)
            wrapped_key = _wrapped(made.wrapped_key, key_made)
            if len(key_made) != key_size:
                raise KmsError(
                    f"the KMS made a key of {len(key_made)} bytes where {key_size} were asked for"
                )
            return GeneratedKey(key_made, wrapped_key)
    key = random_bytes(key_size)
    return GeneratedKey(key, _wrapped(kms.wrap_key(key, master_key_id), key))


def _own_name(kms: KmsClient, master_key_id: str) -> dict[str, str]:
    name = own_name(kms, master_key_id)
    return {} if name is None else {MASTER_KEY: name}


def _wrapped(answer: object, key: bytes | bytearray) -> bytes:
    """Return ``key`` as a KMS client has wrapped it. Raises KmsError if everybody can read it."""
    wrapped_key = _bytes(answer)
    if key in wrapped_key:
        raise KmsError("the KMS client returned the key as it is: it must wrap it")
    return wrapped_key


def _bytes(answer: object) -> bytes:
    """Return a KMS client's result as bytes. A plug-in's mistake must not be stored as a key."""
    if not isinstance(answer, (bytes, bytearray, memoryview)):
        raise KmsError(f"the KMS client returned {type(answer).__name__} and must return bytes")
    if not len(answer):
        raise KmsError("the KMS client returned an empty key")
    return bytes(answer)


def _aad(entry: EncryptedKey) -> bytes:
    """Return the additional data of what a KEK encrypts. Raises KeyMetadataError."""
    timestamp = entry.timestamp
    if timestamp is None:
        raise KeyMetadataError(f"the key {entry.key_id!r} has no {KEY_TIMESTAMP}")
    if entry.timestamp_ms is None:
        raise KeyMetadataError(
            f"the {KEY_TIMESTAMP} of {entry.key_id!r} is not a number: somebody has changed it"
        )
    return timestamp.encode()


def new_key_id() -> str:
    """Return a fresh key ID as Java makes it: base64 of 16 random bytes."""
    return base64.b64encode(random_bytes(_KEY_ID_SIZE)).decode()


class ParsedKeys(NamedTuple):
    """An ``encryption-keys`` list, and what it was parsed to."""

    entries: Sequence[object] = ()
    keys: tuple[EncryptedKey, ...] = ()


_NOTHING_PARSED = ParsedKeys()


def parse_encryption_keys(
    entries: object, before: ParsedKeys = _NOTHING_PARSED
) -> tuple[EncryptedKey, ...]:
    """Parse an ``encryption-keys`` list; None (JSON's null) is taken for an empty one. Objects that
    the list has in common with ``before``, an earlier version of it, are not parsed again. Raises
    KeyMetadataError, also if an ID occurs twice."""
    if entries is None:
        return ()
    if not isinstance(entries, list):
        raise KeyMetadataError("'encryption-keys' is not a list")
    same = list(takewhile(bool, map(operator.is_, entries, before.entries)))
    keys = (*before.keys[: len(same)], *map(_entry, entries[len(same) :]))
    if len({key.key_id for key in keys}) != len(keys):
        raise KeyMetadataError("'encryption-keys' has two entries with one key ID")
    return keys


def _entry(entry: object) -> EncryptedKey:
    key = _known_entry(entry)
    if key.unknown:
        return EncryptedKey.from_dict(entry)
    # A copy, which its user may change.
    return EncryptedKey(
        key.key_id, key.encrypted_key_metadata, key.encrypted_by_id, dict(key.properties), {}
    )


# An entry never changes, and each commit reads all of them again.
_known_entry = strict_json.kept(EncryptedKey.from_dict)


def encryption_keys_to_dicts(keys: Iterable[EncryptedKey]) -> list[dict[str, Any]]:
    """Return the ``encryption-keys`` list for JSON."""
    return [key.to_dict() for key in keys]


def _string(entry: Mapping[str, object], name: str) -> str:
    value = entry.get(name)
    if not isinstance(value, str) or not value:
        raise KeyMetadataError(f"{name!r} of an encrypted key is missing or not a string")
    return value

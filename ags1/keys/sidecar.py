"""The sidecar ``FILE.keys``: the wrapped keys of one file, in the form that a table uses. A
symbolic link that has no sidecar of its own uses that of the file to which it points.

::

    {"encryption-keys": [KEK entry, wrapped key metadata entry], "key-id": "<the latter's id>"}

A KEK may be wrapped under several master keys, so that each of them opens the file: an entry with
the property ``ags1.copy-of`` has the KEK of the entry that it names. Releases that do not know the
property open the file with the master key of the KEK's own entry alone.

The sidecar contains no plaintext key. If it is lost, the file cannot be decrypted. It may hold the
keys of more than one file: while a file is being replaced, its sidecar opens the old file and the
new one, so that a crash leaves neither of them without its key.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any

from ..engine import layout
from ..engine.key_metadata import KeyMetadata
from ..errors import Ags1Error, KeyMetadataError, KmsError, KmsUnavailableError
from ..host import private_file, strict_json
from ..host.atomic import AtomicFile
from ..host.descriptors import is_stream, open_stream
from .envelope import (
    EncryptedKey,
    KeyEncryptionKey,
    encryption_keys_to_dicts,
    parse_encryption_keys,
)

SUFFIX = ".keys"
# How often a reader looks at a file and its key again because another process has replaced them.
MOST_TRIES = 10
# The bytes of a file that name its content: the header, and the nonce of the first block.
START_SIZE = layout.HEADER_SIZE + layout.NONCE_SIZE
ENCRYPTED_PARQUET_MAGIC = b"PARE"
# A sidecar of two keys has under 1 KiB: far more than that is another file.
MAX_SIDECAR_SIZE = 1 << 20
# Without a purpose, somebody who can write a table's metadata could pass off a single file as a
# manifest list of the table, if both are under the same master key.
_PURPOSE = b"\0ags1 sidecar"
# The property of an entry that has the KEK of another entry, under another master key. It is not
# authenticated, and need not be: the wrong KEK does not open a file's key.
COPY_OF = "ags1.copy-of"
# The property of a file's key that names the file by its content: the nonce of the file's first
# block in hex, or nothing if the file is a header alone. It is not authenticated, and need not be:
# the wrong key does not open the file. Earlier releases do not write it.
NONCE = "ags1.nonce"
# The most entries of a sidecar. Each may need a KMS call.
_MAX_ENTRIES = 64


@dataclass(frozen=True, slots=True)
class Sidecar:
    """The entries of a sidecar, and the ID of the entry that opens the file."""

    encryption_keys: tuple[EncryptedKey, ...]
    key_id: str

    @classmethod
    def seal(
        cls, key_metadata: KeyMetadata, kek: KeyEncryptionKey, nonce: bytes | None = None
    ) -> Sidecar:
        """Return the sidecar that holds ``km`` under ``kek``. ``nonce`` is that of the file's first
        block, if it is known (``first_nonce``)."""
        wrapped = kek.wrap_key_metadata(key_metadata, purpose=_PURPOSE)
        return cls((kek.entry, wrapped), wrapped.key_id).with_nonce(nonce)

    @classmethod
    def from_bytes(cls, data: bytes) -> Sidecar:
        """Parse a sidecar. Raises KeyMetadataError."""
        if data and not data.lstrip().startswith(b"{"):
            raise KeyMetadataError("this is not a sidecar: a sidecar is a JSON object")
        try:
            document = strict_json.parse(data)
        except ValueError as error:
            raise KeyMetadataError(f"the sidecar is damaged: it {error}") from None
        if "encryption-keys" not in document:
            raise KeyMetadataError("this is not a sidecar: it has no 'encryption-keys'")
        try:
            keys = parse_encryption_keys(document.get("encryption-keys"))
        except KeyMetadataError as error:
            raise KeyMetadataError(f"the sidecar is damaged: {error.message}") from None
        if len(keys) > _MAX_ENTRIES:
            raise KeyMetadataError(f"the sidecar is damaged: it has {len(keys)} entries")
        sidecar = cls(keys, str(document.get("key-id")))
        if not sidecar.file_keys or sidecar.file_keys[0].key_id != sidecar.key_id:
            raise KeyMetadataError("the sidecar is damaged: its 'key-id' names no file's key in it")
        return sidecar

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON document."""
        keys = encryption_keys_to_dicts(self.encryption_keys)
        return {"encryption-keys": keys, "key-id": self.key_id}

    def to_bytes(self) -> bytes:
        """Return the JSON document's text: a line for each field, and a newline at the end."""
        return json.dumps(self.to_dict(), indent=2).encode() + b"\n"

    def with_keys_of(self, other: Sidecar) -> Sidecar:
        """Return this sidecar with the entries of ``other`` as well."""
        known = {key.key_id for key in self.encryption_keys}
        more = tuple(key for key in other.encryption_keys if key.key_id not in known)
        return Sidecar(self.encryption_keys + more, self.key_id)

    def with_nonce(self, nonce: bytes | None) -> Sidecar:
        """Return this sidecar, with the file's key naming the file whose first nonce this is."""
        if nonce is None:
            return self
        newest = self.file_keys[0]
        return self.with_entries(
            [replace(newest, properties={**newest.properties, NONCE: nonce.hex()})]
        )

    def without(self, key_id: str) -> Sidecar | None:
        """Return this sidecar without a file's key, and without a KEK that no other key needs; None
        if it has no other key."""
        rest = [key for key in self.file_keys if key.key_id != key_id]
        if not rest:
            return None
        wanted = {name for key in rest for name in (key.key_id, key.encrypted_by_id)}
        keys = tuple(
            key
            for key in self.encryption_keys
            if key.key_id in wanted or key.properties.get(COPY_OF) in wanted
        )
        return Sidecar(keys, rest[0].key_id)

    def with_copies(self, entries: Iterable[EncryptedKey]) -> Sidecar:
        """Return this sidecar with copies of its KEKs."""
        return Sidecar((*self.encryption_keys, *entries), self.key_id)

    def with_entries(self, entries: Iterable[EncryptedKey]) -> Sidecar:
        """Return this sidecar in which each of ``entries`` replaces the entry with its ID."""
        changed = {entry.key_id: entry for entry in entries}
        keys = tuple(changed.get(key.key_id, key) for key in self.encryption_keys)
        return Sidecar(keys, self.key_id)

    @property
    def kek_entries(self) -> tuple[EncryptedKey, ...]:
        """The entries of the KEKs, which a KMS wrapped."""
        ids = {key.key_id for key in self.encryption_keys}
        return tuple(key for key in self.encryption_keys if key.encrypted_by_id not in ids)

    @property
    def own_kek_entries(self) -> tuple[EncryptedKey, ...]:
        """The entries of the KEKs without their copies under further master keys."""
        return tuple(entry for entry in self.kek_entries if COPY_OF not in entry.properties)

    @property
    def file_keys(self) -> tuple[EncryptedKey, ...]:
        """The key metadata entries. The one that ``key_id`` names comes first."""
        ids = {key.key_id for key in self.encryption_keys}
        wrapped = [key for key in self.encryption_keys if key.encrypted_by_id in ids]
        return tuple(sorted(wrapped, key=lambda key: key.key_id != self.key_id))

    def keys_for(self, nonce: bytes) -> tuple[EncryptedKey, ...]:
        """Return the keys of the file whose first nonce this is; if there are none, those that do
        not say whose they are. The one that ``key_id`` names comes first."""
        named = tuple(key for key in self.file_keys if key.properties.get(NONCE) == nonce.hex())
        return named or tuple(key for key in self.file_keys if NONCE not in key.properties)

    def kek_entry(self, wrapped: EncryptedKey) -> EncryptedKey:
        """Return the entry of the KEK that encrypts ``wrapped``. Raises KeyMetadataError."""
        for key in self.encryption_keys:
            if key.key_id == wrapped.encrypted_by_id:
                return key
        raise KeyMetadataError("the sidecar is damaged: the KEK of its key is missing")

    def same_kek(self, kek_id: str) -> tuple[EncryptedKey, ...]:
        """Return the entries that have a KEK: its own, and its copies."""
        keks = self.kek_entries
        own = tuple(entry for entry in keks if entry.key_id == kek_id)
        return own + tuple(entry for entry in keks if entry.properties.get(COPY_OF) == kek_id)

    def unwrap_kek(
        self,
        unwrap_kek: Callable[[EncryptedKey], KeyEncryptionKey],
        kek_id: str,
        prefer: Collection[str] = (),
    ) -> KeyEncryptionKey:
        """Return a KEK from one of its entries; those under the master keys ``prefer`` come first.
        Raises KmsUnavailableError, and if none can be unwrapped the error of the first entry."""
        entries = self.same_kek(kek_id)
        if not entries:
            raise KeyMetadataError("the sidecar is damaged: the KEK of its key is missing")
        failures: list[Ags1Error] = []
        for entry in sorted(entries, key=lambda one: one.encrypted_by_id not in prefer):
            try:
                return unwrap_kek(entry)
            except KmsUnavailableError:
                raise
            except (KmsError, KeyMetadataError) as error:
                failures.append(error)
        raise failures[0]

    def open(
        self,
        unwrap_kek: Callable[[EncryptedKey], KeyEncryptionKey],
        wrapped: EncryptedKey,
        prefer: Collection[str] = (),
    ) -> KeyMetadata:
        """Return the key metadata in the entry ``wrapped``. ``unwrap_kek`` asks the KMS, first for
        the master keys ``prefer``. Raises as ``unwrap_kek``, and AuthenticationError."""
        kek = self.unwrap_kek(unwrap_kek, str(wrapped.encrypted_by_id), prefer)
        return kek.unwrap_key_metadata(wrapped, purpose=_PURPOSE)


def first_nonce(start: bytes) -> bytes | None:
    """Return the nonce of a file's first block, which names its content, from the first
    ``START_SIZE`` bytes; nothing if the file is a header alone, None if it is no encrypted file. In
    an encrypted Parquet file, it is the nonce of the first module, and has the same place."""
    if not start.startswith((layout.MAGIC, ENCRYPTED_PARQUET_MAGIC)) or len(start) not in (
        layout.HEADER_SIZE,
        START_SIZE,
    ):
        return None
    return start[layout.HEADER_SIZE :]


def sidecar_path(file: str) -> str:
    """Return the usual name of the sidecar of an encrypted file."""
    return file + SUFFIX


def sidecar_beside(file: str) -> str:
    """Return the name of the sidecar of a file on this machine. For a link that has none, it is
    that of the file which the link points to."""
    own = sidecar_path(file)
    if os.path.islink(file) and not os.path.lexists(own):
        return sidecar_path(os.path.realpath(file))
    return own


def read_sidecar(path: str) -> Sidecar:
    """Read a sidecar. Raises OSError, or KeyMetadataError with ``path`` as its file."""
    data, _ = private_file.read(path, MAX_SIDECAR_SIZE)
    try:
        return Sidecar.from_bytes(data)
    except KeyMetadataError as error:
        raise KeyMetadataError(error.message, file=path) from None


def write_sidecar(
    path: str,
    sidecar: Sidecar,
    *,
    overwrite: bool = False,
    durable: bool = True,
    file: os.stat_result | None = None,
) -> None:
    """Write a sidecar, complete or not at all, or as a stream. It gets the permissions, the owner
    and the group of its ``file``, because it is of no use without the other. If no file is given,
    those of the sidecar that it replaces stay. Raises OSError."""
    write_document(path, sidecar.to_bytes(), overwrite=overwrite, durable=durable, file=file)


def write_document(
    path: str, data: bytes, *, overwrite: bool, durable: bool, file: os.stat_result | None
) -> None:
    """Write the bytes of a sidecar, as ``write_sidecar`` does."""
    if is_stream(path):
        with open_stream(path, overwrite=overwrite) as out:
            out.write(data)
        return
    with AtomicFile(path, overwrite=overwrite, durable=durable, like=file) as out:
        out.write(data)

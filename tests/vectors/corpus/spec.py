"""The specification of AGS1, as a program: streams, key metadata and wrapped keys.

It is written to be read, not to be fast, and shares no code with any implementation. It needs only
the package ``cryptography``.
"""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM


class FormatError(Exception):
    """The header or the length of the file is impossible, or bytes follow its end."""


class TruncatedError(Exception):
    """The file is shorter than its trusted length."""


class AuthenticationError(Exception):
    """A GCM tag does not match."""


class KeyMetadataError(Exception):
    """Key metadata, or an entry of the list of keys, is malformed or missing."""


class KmsUnwrapError(Exception):
    """The master key does not open the wrapped KEK."""


def open_sealed(key: bytes, sealed: bytes, aad: bytes) -> bytes:
    """Open ``nonce(12) | ciphertext | tag(16)``."""
    if len(sealed) < 28:
        raise AuthenticationError("too short for a nonce and a tag")
    try:
        return AESGCM(key).decrypt(sealed[:12], sealed[12:], aad)
    except InvalidTag:
        raise AuthenticationError("the tag does not match") from None


# -- Streams ---------------------------------------------------------------------------------------


def read_blocks(
    file: bytes, key: bytes, aad_prefix: bytes | None, file_length: int | None
) -> Iterator[bytes]:
    """Yield the plaintext of each block, once its tag was checked. A reader may release what was
    yielded before an error. ``file_length`` None: the caller trusts the size of the file."""
    # 1. The header. It has no tag, so nothing in it is believed before the checks below.
    if len(file) >= 8:
        if file[:4] != b"AGS1":
            raise FormatError("no magic")
        (block_size,) = struct.unpack("<i", file[4:8])
        if not 1 <= block_size <= 2**31 - 1 - 28:
            raise FormatError("impossible block size")
    # 2. The length. No tag says where the file ends, so the key metadata has to say it.
    if not file or (file_length is not None and len(file) < file_length):
        raise TruncatedError("shorter than its trusted length")
    if file_length is not None and len(file) > file_length:
        raise FormatError("longer than its trusted length")
    if len(file) <= 8:
        raise FormatError("no header, or no block: an empty plaintext is one empty block")
    # 3. The layout. All blocks but the last are full, and only an only block is empty.
    blocks = [file[at : at + 28 + block_size] for at in range(8, len(file), 28 + block_size)]
    if len(blocks[-1]) < (28 if len(blocks) == 1 else 29):
        raise FormatError("no whole number of blocks has this length")
    # 4. Each block, with its number in the additional data.
    for number, block in enumerate(blocks):
        yield open_sealed(key, block, (aad_prefix or b"") + struct.pack("<i", number))


# -- Key metadata ----------------------------------------------------------------------------------


class KeyMetadata(NamedTuple):
    """The key of one file, its AAD prefix, and its length in bytes."""

    key: bytes
    aad_prefix: bytes | None
    file_length: int | None


class Datum:
    """A reader of Avro's binary encoding."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, size: int) -> bytes:
        if not 0 <= size <= len(self.data) - self.at:
            raise KeyMetadataError("the datum is cut off, or has a negative length")
        self.at += size
        return self.data[self.at - size : self.at]

    def long(self) -> int:
        """A zigzag number: seven bits a byte, the lowest first."""
        value = 0
        for shift in range(0, 70, 7):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if value >= 1 << 64 or (byte == 0 and shift):
                    raise KeyMetadataError("a number above 64 bits, or not in its shortest form")
                return (value >> 1) ^ -(value & 1)
        raise KeyMetadataError("a number of more than ten bytes")

    def bytes(self) -> bytes:
        return self.take(self.long())

    def present(self) -> bool:
        """The branch of a union of null and something."""
        branch = self.long()
        if branch not in (0, 1):
            raise KeyMetadataError("a union has only the branches 0 and 1")
        return branch == 1


def parse_key_metadata(data: bytes) -> KeyMetadata:
    """Read a version byte and the fields of ``StandardKeyMetadata``."""
    if data[:1] != b"\x01":
        raise KeyMetadataError("not version 1")
    datum = Datum(data[1:])
    key = datum.bytes()
    aad_prefix = datum.bytes() if datum.present() else None
    file_length = datum.long() if datum.present() else None
    if len(key) not in (16, 24, 32):
        raise KeyMetadataError("not the size of an AES key")
    if file_length is not None and file_length < 0:
        raise KeyMetadataError("a negative length")
    if not are_optional_fields(datum.data[datum.at :]):
        raise KeyMetadataError("bytes follow that no later version can have written")
    return KeyMetadata(key, aad_prefix, file_length)


def are_optional_fields(rest: bytes) -> bool:
    """Whether a later version can have appended this: unions of null and a number or bytes."""
    if not rest or rest[0] == 0:
        return not rest or are_optional_fields(rest[1:])
    for read in (Datum.long, Datum.bytes):
        datum = Datum(rest[1:])
        try:
            read(datum)
        except KeyMetadataError:
            continue
        if rest[0] == 2 and are_optional_fields(datum.data[datum.at :]):
            return True
    return False


# -- Wrapped keys ----------------------------------------------------------------------------------


def manifest_list_key(
    master_keys: dict[str, bytes], table_key_id: str, keys: list[dict[str, Any]], key_id: str
) -> KeyMetadata:
    """Follow a snapshot's ``key-id`` through ``encryption-keys`` to its manifest list's key."""
    by_id = {entry["key-id"]: entry for entry in keys}
    if len(by_id) != len(keys):
        raise KeyMetadataError("two entries have one ID")
    try:
        entry = by_id[key_id]
        kek_entry = by_id[entry["encrypted-by-id"]]
        wrapped, sealed = (
            base64.b64decode(e["encrypted-key-metadata"], validate=True) for e in (kek_entry, entry)
        )
    except (KeyError, binascii.Error):
        raise KeyMetadataError("an entry is missing, or is not base64") from None
    properties = kek_entry.get("properties", {})
    spellings = {properties[n] for n in ("KEY_TIMESTAMP", "key-timestamp") if n in properties}
    if len(spellings) != 1:
        raise KeyMetadataError("the KEK has no timestamp, or two that differ")
    try:  # with the table's master key, whatever the entry says
        kek = open_sealed(master_keys[table_key_id], wrapped, b"")
    except AuthenticationError:
        raise KmsUnwrapError("the master key does not open the KEK") from None
    if len(kek) not in (16, 24, 32):
        raise KeyMetadataError("the KEK is not the size of an AES key")
    return parse_key_metadata(open_sealed(kek, sealed, spellings.pop().encode()))

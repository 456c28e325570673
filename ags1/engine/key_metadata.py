"""``KeyMetadata``: the data key, the AAD prefix and the length of one file.

The bytes are Iceberg's ``StandardKeyMetadata`` (Java: ``core/.../encryption``): a version byte,
then an Avro datum. Readers take the length from here and never from the file system, because AGS1
itself does not authenticate where a file ends. Independent of files and the keys that wrap
this one.
"""

from __future__ import annotations

import contextlib
import functools
import hmac
import io
import operator
from collections.abc import Callable
from typing import Any, NoReturn

from ..errors import KeyMetadataError
from ._arrow_random import draw_from_kernel
from ._gcm import random_bytes
from ._key_metadata import EncodedKeyMetadata, KeyMetadataFields

KEY_SIZES = (16, 24, 32)
AAD_PREFIX_SIZE = 16
MAX_AAD_PREFIX_SIZE = 1 << 16
_VERSION = b"\x01"
_SCHEMA = {
    "type": "record",
    "name": "StandardKeyMetadata",
    "fields": [
        {"name": "encryption_key", "type": "bytes"},
        {"name": "aad_prefix", "type": ["null", "bytes"], "default": None},
        {"name": "file_length", "type": ["null", "long"], "default": None},
    ],
}


# A program may give our keys to Arrow itself.
draw_from_kernel()


class KeyMetadata(KeyMetadataFields):
    """The key metadata of one file, with its plaintext key, which is never printed. It is immutable
    and compared by value.

    ``encryption_key`` has 16, 24 or 32 bytes. ``aad_prefix`` is any bytes or None. ``to_bytes``
    keeps None and empty bytes apart; to AES-GCM they are the same. ``file_length`` is the encrypted
    file's size in bytes, or None if it is not known yet. Raises KeyMetadataError for other values.
    """

    __slots__ = ()

    def __init__(
        self, encryption_key: bytes, aad_prefix: bytes | None = None, file_length: int | None = None
    ) -> None:
        try:
            key = bytes(memoryview(encryption_key))
            if len(key) not in KEY_SIZES:
                raise KeyMetadataError(f"an AES key has 16, 24 or 32 bytes, not {len(key)}")
            prefix = None if aad_prefix is None else bytes(memoryview(aad_prefix))
            if prefix is not None and len(prefix) > MAX_AAD_PREFIX_SIZE:
                raise KeyMetadataError(
                    f"an AAD prefix of {len(prefix)} bytes is above the limit of "
                    f"{MAX_AAD_PREFIX_SIZE}"
                )
            self._fill(key, prefix, None if file_length is None else _checked_length(file_length))
        finally:
            # Error reporters print the variables of every frame.
            encryption_key = key = b""

    @classmethod
    def unchecked(
        cls, encryption_key: bytes, aad_prefix: bytes | None, file_length: int | None
    ) -> KeyMetadata:
        """Return key metadata of values that are known to be right. The constructor's checks take a
        noticeable part of a small message's time."""
        metadata = cls.__new__(cls)
        metadata._fill(encryption_key, aad_prefix, file_length)
        return metadata

    @property
    def encryption_key(self) -> bytes:
        """The data key, not encrypted."""
        return self._encryption_key

    @property
    def aad_prefix(self) -> bytes | None:
        """The bytes before the block number in every block's AAD."""
        return self._aad_prefix

    @property
    def file_length(self) -> int | None:
        """The encrypted file's trusted size in bytes."""
        return self._file_length

    @classmethod
    def generate(cls, key_size: int = 32) -> KeyMetadata:
        """Return a fresh random key of ``key_size`` bytes with a fresh 16-byte AAD prefix."""
        if key_size not in KEY_SIZES:
            raise KeyMetadataError(f"an AES key has 16, 24 or 32 bytes, not {key_size}")
        secret = random_bytes(key_size + AAD_PREFIX_SIZE)
        return KeyMetadata.unchecked(secret[:key_size], secret[key_size:], None)

    def with_file_length(self, file_length: int) -> KeyMetadata:
        """Return the same key metadata with that file length (bytes)."""
        return KeyMetadata.unchecked(
            self._encryption_key, self._aad_prefix, _checked_length(file_length)
        )

    def to_bytes(self) -> bytes:
        """Return Java's ``StandardKeyMetadata`` bytes. They contain the plaintext key: wrap them
        before you store them."""
        _, encode = _codec()
        fields = {
            "encryption_key": self._encryption_key,
            "aad_prefix": self._aad_prefix,
            "file_length": self._file_length,
        }
        return _VERSION + encode(fields)

    def encoded(self) -> EncodedKeyMetadata:
        """Return ``to_bytes`` in an object that does not show them. Variables and tables' records
        hold this, because error reporters print the variables of every frame."""
        return EncodedKeyMetadata(self.to_bytes())

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview | EncodedKeyMetadata) -> KeyMetadata:
        """Parse ``StandardKeyMetadata`` bytes. Optional fields that a newer writer appended are
        ignored, as in Java. Raises KeyMetadataError for another version, a truncated datum,
        trailing bytes that cannot be such fields, or a key of a wrong length."""
        try:
            return cls._parse(bytes(memoryview(data)))
        finally:
            # Error reporters print the variables of every frame.
            data = b""

    @classmethod
    def _parse(cls, data: bytes) -> KeyMetadata:
        try:
            if data[:1] != _VERSION:
                version = f"version {data[0]}" if data else "nothing"
                raise KeyMetadataError(f"key metadata must have version 1; this has {version}")
            datum = io.BytesIO(data[1:])
            fields: dict[str, Any] | None = None
            decode, _ = _codec()
            # Our error is raised outside, because the decoder's exception may quote the key.
            with contextlib.suppress(Exception):
                fields = decode(datum)
            if fields is None:
                raise KeyMetadataError("these bytes are not a StandardKeyMetadata datum")
            metadata = cls(fields["encryption_key"], fields["aad_prefix"], fields["file_length"])
            end = 1 + datum.tell()
            # If a length in the datum is beyond the end, the decoder takes what is there. So encode
            # the result again and compare.
            if not hmac.compare_digest(metadata.to_bytes(), data[:end]):
                raise KeyMetadataError("these bytes are not a whole StandardKeyMetadata datum")
            if not _are_optional_fields(data[end:]):
                raise KeyMetadataError(f"{len(data) - end} unknown bytes follow the key metadata")
            return metadata
        finally:
            data, fields = b"", None

    def __repr__(self) -> str:
        prefix = "None" if self._aad_prefix is None else f"<{len(self._aad_prefix)} bytes>"
        return (
            f"KeyMetadata(encryption_key=<{len(self._encryption_key or b'')} bytes>, "
            f"aad_prefix={prefix}, file_length={self._file_length})"
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, KeyMetadata):
            return NotImplemented
        return (
            hmac.compare_digest(self._encryption_key, other._encryption_key)
            and self._aad_prefix == other._aad_prefix
            and self._file_length == other._file_length
        )

    __hash__ = None  # type: ignore[assignment]  # a hash would be made of the key

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(
            "key metadata holds a key and is not pickled or copied: wrap what to_bytes() returns"
        )


def _checked_length(file_length: int) -> int:
    length = operator.index(file_length)
    if not 0 <= length < 2**63:
        raise KeyMetadataError(f"a file length is 0 to 2**63 - 1 bytes, not {length}")
    return length


@functools.cache
def _codec() -> tuple[Callable[[io.BytesIO], dict[str, Any]], Callable[[dict[str, Any]], bytes]]:
    # fastavro takes a while to import, and only a program that stores keys needs it.
    import fastavro

    schema = fastavro.parse_schema(_SCHEMA)

    def read(datum: io.BytesIO) -> dict[str, Any]:
        fields: dict[str, Any] = fastavro.schemaless_reader(datum, schema, None)  # type: ignore[assignment]
        return fields

    def write(fields: dict[str, Any]) -> bytes:
        datum = io.BytesIO()
        fastavro.schemaless_writer(datum, schema, fields)
        return datum.getvalue()

    return read, write


def _are_optional_fields(data: bytes) -> bool:
    """Whether ``data`` can be Avro's unions of null and a number, or of null and bytes: a newer
    version of the format can only append such fields. Every reading is tried: ``ends`` holds the
    positions that a field could end at."""
    ends = {0}
    for start in range(len(data)):
        if start not in ends:
            continue
        if data[start] == 0:  # the union's branch 0: null
            ends.add(start + 1)
        elif data[start] == 2:  # its branch 1: a zigzag varint, or one that counts bytes
            end, number = _varint(data, start + 1)
            if end is not None:
                ends.add(end)
                if number % 2 == 0 and end + number // 2 <= len(data):
                    ends.add(end + number // 2)
    return len(data) in ends


def _varint(data: bytes, start: int) -> tuple[int | None, int]:
    number = 0
    for i, byte in enumerate(data[start : start + 10]):
        number |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return start + i + 1, number
    return None, 0

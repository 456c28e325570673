"""The container of an Avro file: what its header says, how its blocks lie, and its codecs.

Follows Avro's specification, "Object Container Files". Nothing read is trusted. Knows nothing of
what the bytes of a row mean.
"""

from __future__ import annotations

import bz2
import functools
import json
import lzma
import os
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ags1.errors import FormatError, TruncatedError

from ..spec.constants import AVRO_MAGIC

if TYPE_CHECKING:
    from typing_extensions import Buffer

SYNC_SIZE = 16

MAX_BLOCK_SIZE = 256 << 20
"""Of a block's rows, decompressed, in bytes. Writers make blocks of 64 KB or of one row."""
MAX_HEADER_SIZE = 64 << 20
MAX_LONG_SIZE = 10
NEW_BLOCK_SIZE = 64_000
"""Of the rows of a block that is written, before they are compressed, in bytes. About Java's."""

Pread = Callable[[int, int], bytes]

# -- the header


class ShortError(Exception):
    """The bytes at hand end too early."""


class Fields:
    """Avro's values out of some bytes."""

    def __init__(self, data: Buffer) -> None:
        self._data = memoryview(data)
        self.at = 0

    def long(self) -> int:
        raw = shift = 0
        while True:
            if self.at == len(self._data):
                raise ShortError
            byte = self._data[self.at]
            self.at += 1
            raw |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift == 7 * MAX_LONG_SIZE:
                raise FormatError("a number has more than 64 bits")
        if raw >> 64:
            raise FormatError("a number has more than 64 bits")
        return (raw >> 1) ^ -(raw & 1)

    def fixed(self, size: int) -> bytes:
        if size > len(self._data) - self.at:
            raise ShortError
        self.at += size
        return bytes(self._data[self.at - size : self.at])

    def bytes(self) -> bytes:
        size = self.long()
        if not 0 <= size <= MAX_HEADER_SIZE:
            raise FormatError(f"the file's header has a value of {size} bytes")
        return self.fixed(size)


@dataclass(frozen=True, slots=True)
class Header:
    metadata: dict[str, bytes]
    sync: bytes
    size: int


def read_header(pread: Pread, file_size: int) -> Header:
    size = 1 << 16
    while True:
        data = pread(0, min(size, file_size))
        if data[: len(AVRO_MAGIC)] != AVRO_MAGIC[: len(data)]:
            raise FormatError("not an Avro file")
        try:
            return _parse_header(data)
        except ShortError:
            if size >= file_size:
                raise TruncatedError("the file ends within its header") from None
            if size >= MAX_HEADER_SIZE:
                raise FormatError(
                    f"the file's header has more than {MAX_HEADER_SIZE} bytes"
                ) from None
        size *= 8


def _parse_header(data: bytes) -> Header:
    fields = Fields(data)
    fields.fixed(len(AVRO_MAGIC))
    metadata: dict[str, bytes] = {}
    while count := fields.long():
        if count < 0:
            # The size of the block of entries, which we don't skip.
            fields.long()
        for _ in range(abs(count)):
            try:
                key = fields.bytes().decode()
            except UnicodeDecodeError:
                raise FormatError("a key in the file's header is not UTF-8") from None
            metadata[key] = fields.bytes()
    return Header(metadata, fields.fixed(SYNC_SIZE), fields.at)


def parse_schema(metadata: Mapping[str, bytes]) -> object:
    try:
        schema: object = json.loads(metadata["avro.schema"])
    except KeyError:
        raise FormatError("the file's header has no schema") from None
    except (ValueError, RecursionError):
        raise FormatError("the file's schema is not JSON") from None
    return schema


def codec_name(metadata: Mapping[str, bytes]) -> str:
    name = metadata.get("avro.codec", b"null").decode(errors="replace")
    if name not in CODECS:
        raise FormatError(f"the file's codec is {name[:60]!r}, not one of {', '.join(CODECS)}")
    return name


# -- the codecs

_Decompress = Callable[[memoryview, int], "Buffer"]


def _too_large(limit: int) -> FormatError:
    return FormatError(f"a block has more than {limit} bytes, decompressed")


def _damaged(codec: str) -> FormatError:
    return FormatError(f"a block can't be decompressed by {codec}")


def _plain(data: memoryview, limit: int) -> Buffer:
    return data


def _inflate(data: memoryview, limit: int) -> Buffer:
    stream = zlib.decompressobj(wbits=-zlib.MAX_WBITS)
    try:
        text = stream.decompress(data, limit + 1)
    except zlib.error:
        raise _damaged("deflate") from None
    if len(text) > limit:
        raise _too_large(limit)
    # Avro's own Python library once left zlib's checksum behind the data.
    if not stream.eof or len(stream.unused_data) > 4:
        raise _damaged("deflate")
    return text


def _unsnap(data: memoryview, limit: int) -> Buffer:
    """Snappy's raw format, then the CRC-32 of what it holds, big-endian."""
    compressed, crc = data[:-4], data[-4:]
    try:
        size = _snappy_size(compressed)
        if size > limit:
            raise _too_large(limit)
        # No element gives more than 64 bytes: memory is not had for a claim alone.
        if size > 64 * len(compressed):
            raise _damaged("snappy")
        text = pa.Codec("snappy").decompress(compressed, decompressed_size=size)
    except (ShortError, OSError, pa.ArrowException):
        raise _damaged("snappy") from None
    if zlib.crc32(text) != int.from_bytes(crc, "big"):
        raise FormatError("a block's CRC-32 is not that of its contents")
    return text  # type: ignore[no-any-return]


def _snappy_size(data: memoryview) -> int:
    size = 0
    for n, byte in enumerate(data[:5]):
        size |= (byte & 0x7F) << 7 * n
        if byte < 0x80:
            return size
    raise ShortError


def _unzstd(data: memoryview, limit: int) -> Buffer:
    parts: list[bytes] = []
    size = 0
    try:
        # Streamed, as Java writes frames that don't tell their size.
        with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
            while part := stream.read(min(limit + 1 - size, max(1 << 18, 4 * len(data)))):
                parts.append(part)
                size += len(part)
                if size > limit:
                    raise _too_large(limit)
    except (OSError, pa.ArrowException):
        raise _damaged("zstandard") from None
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _unbzip2(data: memoryview, limit: int) -> Buffer:
    stream = bz2.BZ2Decompressor()
    try:
        text = stream.decompress(data, limit + 1)
    except (OSError, ValueError):
        raise _damaged("bzip2") from None
    return _whole(text, stream, limit, "bzip2")


def _unxz(data: memoryview, limit: int) -> Buffer:
    # Its dictionary is chosen by the writer: at most 64 MiB by xz's presets.
    stream = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MAX_BLOCK_SIZE)
    try:
        text = stream.decompress(data, limit + 1)
    except (lzma.LZMAError, ValueError):
        raise _damaged("xz") from None
    return _whole(text, stream, limit, "xz")


def _whole(
    text: bytes, stream: bz2.BZ2Decompressor | lzma.LZMADecompressor, limit: int, codec: str
) -> bytes:
    if len(text) > limit:
        raise _too_large(limit)
    if not stream.eof or stream.unused_data:
        raise _damaged(codec)
    return text


# By Avro's names. Iceberg's table property calls deflate gzip, but files don't.
CODECS: dict[str, _Decompress] = {
    "null": _plain,
    "deflate": _inflate,
    "snappy": _unsnap,
    "zstandard": _unzstd,
    "bzip2": _unbzip2,
    "xz": _unxz,
}


# -- what is written


class AvroCodec:
    """A codec by the name that Iceberg's properties have for it, and a level. ``name`` is Avro's.

    Raises ValueError for one that there is not.
    """

    def __init__(self, name: str, level: int | None = None) -> None:
        known: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
            "gzip": ("deflate", lambda data: _deflated(data, 6 if level is None else level)),
            "zstd": ("zstandard", pa.Codec("zstd", level).compress if name == "zstd" else bytes),
            "snappy": ("snappy", _snapped),
            "uncompressed": ("null", bytes),
        }
        if name not in known:
            raise ValueError(f"the Avro codec {name!r} is none of {', '.join(known)}")
        self.name, self._compress = known[name]

    def compress(self, data: bytes) -> bytes:
        """Return a block's bytes as they are stored."""
        return bytes(self._compress(data))


class NewContainer:
    """The parts of a new Avro file: its header, with ``properties``, and its blocks."""

    def __init__(self, schema: Any, properties: Mapping[str, str], codec: AvroCodec) -> None:
        self._codec = codec
        self._sync = os.urandom(SYNC_SIZE)
        metadata = {**properties, "avro.schema": compact(schema), "avro.codec": codec.name}
        pairs = b"".join(string(key) + string(value) for key, value in metadata.items())
        self.header = AVRO_MAGIC + long(len(metadata)) + pairs + b"\x00" + self._sync

    def block(self, rows: int, data: bytes) -> bytes:
        """Return the block of so many rows, whose encodings are ``data``."""
        return long(rows) + prefixed(self._codec.compress(data)) + self._sync


def compact(value: Any) -> str:
    """Return JSON as Java writes it into headers."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _zigzag(number: int) -> bytes:
    if not -(1 << 63) <= number < 1 << 63:
        raise ValueError("the number has more than 64 bits")
    number = (number << 1) ^ (number >> 63)
    if number < 0x80:
        return bytes((number,))
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


# Most numbers of a manifest come again and again: column ids, counts, the lengths of bounds.
long = functools.lru_cache(maxsize=1 << 16)(_zigzag)


def prefixed(data: bytes) -> bytes:
    """Return bytes as Avro has them, after their number."""
    return long(len(data)) + bytes(memoryview(data))


def string(text: str) -> bytes:
    """Return a text as Avro has it."""
    return prefixed(text.encode())


def _deflated(data: bytes, level: int) -> bytes:
    compressor = zlib.compressobj(level, wbits=-zlib.MAX_WBITS)
    return compressor.compress(data) + compressor.flush()


def _snapped(data: bytes) -> bytes:
    compressed: bytes = pa.compress(data, codec="snappy", asbytes=True)
    return compressed + zlib.crc32(data).to_bytes(4, "big")

"""The container of an Avro file: its header, its blocks and its codecs.

    Obj 1               4 bytes
    header              a map of names to bytes: avro.schema, avro.codec and the writer's own
    sync marker         16 random bytes, the same after each block
    count of rows, size, the rows (compressed), sync marker         a block
    count of rows, size, the rows (compressed), sync marker         ...

A split is a range of the file's bytes. By Java's rule (``DataFileReader.sync``, ``pastSync``), a
block belongs to the split in which the sync marker before the block begins.

Follows Avro's specification, "Object Container Files". Nothing read is trusted. Independent of
what the bytes of a row mean.
"""

from __future__ import annotations

import bz2
import functools
import json
import lzma
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ...errors import FormatError, TruncatedError
from ._decoder import CheckedDecoder

if TYPE_CHECKING:
    from typing_extensions import Buffer

AVRO_MAGIC = b"Obj\x01"
SYNC_SIZE = 16

MAX_BLOCK_SIZE = 256 << 20
"""The largest block that is read (bytes, decompressed). Writers make blocks of 64 KB or one row."""
MAX_HEADER_SIZE = 64 << 20
MAX_LONG_SIZE = 10
NEW_BLOCK_SIZE = 64_000
"""The size of a written block (bytes, before compression). Java's blocks are about as large."""

# The source is read in chunks of this size, from multiples of it, because AGS1 blocks begin there.
_CHUNK_SIZE = 1 << 20

Pread = Callable[[int, int], bytes]


class Container:
    """An Avro file of ``size`` bytes whose header has been read: its ``metadata`` and ``codec``.
    ``pread(offset, size)`` returns those bytes, or fewer at the end of the file. Raises FormatError
    if the file is not an Avro file, and TruncatedError if it ends too early."""

    def __init__(self, pread: Pread, size: int, max_block_size: int = MAX_BLOCK_SIZE) -> None:
        self._pread = pread
        self._size = size
        self._max_block_size = max_block_size
        self.metadata, self._sync, self._data_start = _read_header(pread, size)
        self.codec = self.metadata.get("avro.codec", b"null").decode(errors="replace")
        if self.codec not in CODECS:
            name, known = self.codec[:60], ", ".join(CODECS)
            raise FormatError(f"the file's codec is {name!r}, not one of {known}")
        self._decompress = CODECS[self.codec]

    def blocks(self, start: int, end: int) -> Iterator[tuple[int, Buffer]]:
        """Yield the blocks of the split from ``start`` to ``end``: the number of rows, and their
        bytes, decompressed."""
        window = _Window(self._pread, self._size)
        marker = self._data_start - SYNC_SIZE
        if start > marker:
            marker = window.find(self._sync, start)
        first = marker + SYNC_SIZE if marker >= 0 else self._size
        for rows, stored in self._stored_blocks(window, first, end):
            yield rows, self.decompressed(stored)

    def stored_blocks(self) -> Iterator[tuple[int, memoryview]]:
        """Yield all blocks: the number of rows, and their bytes as they are stored."""
        window = _Window(self._pread, self._size)
        return self._stored_blocks(window, self._data_start, self._size)

    def decompressed(self, stored: memoryview) -> Buffer:
        """Return the bytes of a block's rows."""
        return self._decompress(stored, self._max_block_size)

    def rows_before(self, end: int) -> int:
        """Return how many rows lie in the blocks of the splits before ``end``."""
        window = _Window(self._pread, self._size)
        blocks = self._stored_blocks(window, self._data_start, end, contents=False)
        return sum(rows for rows, _ in blocks)

    def _stored_blocks(
        self, window: _Window, offset: int, end: int, *, contents: bool = True
    ) -> Iterator[tuple[int, memoryview]]:
        """Yield the number of rows and the contents (empty unless ``contents``) of each block from
        ``offset`` on, as long as the sync marker before the block begins before ``end``."""
        while offset < self._size and offset - SYNC_SIZE < end:
            head = window.take(offset, min(2 * MAX_LONG_SIZE, self._size - offset))
            decoder = CheckedDecoder(bytes(head))
            try:
                rows, size = decoder.read_int(), decoder.read_int()
            except EOFError:
                raise _truncated(offset) from None
            if rows < 0 or size < 0:
                raise FormatError(f"the block at byte {offset} has a negative count or size")
            block_end = offset + decoder.tell() + size + SYNC_SIZE
            if block_end > self._size:
                raise _truncated(offset)
            wanted = size + SYNC_SIZE if contents else SYNC_SIZE
            data = window.take(block_end - wanted, wanted)
            if data[-SYNC_SIZE:] != self._sync:
                raise FormatError(f"the block at byte {offset} does not end with the file's marker")
            yield rows, data[:-SYNC_SIZE]
            offset = block_end


def _truncated(offset: int) -> TruncatedError:
    return TruncatedError(f"the file ends within the block at byte {offset}")


class _Window:
    """Reads a file forwards, in chunks. No range may begin before the last one that was taken."""

    def __init__(self, pread: Pread, size: int) -> None:
        self._pread = pread
        self._file_size = size
        self._begin = 0
        self._view = memoryview(b"")

    def take(self, offset: int, size: int) -> memoryview:
        """Return exactly these bytes. The caller has checked that the file is large enough."""
        end = self._begin + len(self._view)
        if not self._begin <= offset <= end:
            self._begin, self._view = offset, memoryview(b"")
            end = offset
        if offset + size > end:
            rest = self._view[offset - self._begin :]
            # Read to the end of a chunk, or the whole range if it is larger.
            until = max(offset + size, (end // _CHUNK_SIZE + 1) * _CHUNK_SIZE)
            wanted = min(until, self._file_size) - end
            data = self._pread(end, wanted)
            if len(data) < wanted:
                raise TruncatedError(f"the file ends at byte {end + len(data)}, before its size")
            self._begin, self._view = end, memoryview(data)
            if len(rest):
                # Only the block that spans two chunks is copied.
                return memoryview(b"".join((rest, data[: offset + size - end])))
        begin = offset - self._begin
        return self._view[begin : begin + size]

    def find(self, marker: bytes, start: int) -> int:
        """Return the offset of the first ``marker`` from ``start`` on, -1 if there is none."""
        tail = b""
        while start < self._file_size:
            until = min((start // _CHUNK_SIZE + 1) * _CHUNK_SIZE, self._file_size)
            data = bytes(self.take(start, until - start))
            position = (tail + data).find(marker)
            if position >= 0:
                return start - len(tail) + position
            tail = (tail + data)[-(len(marker) - 1) :]
            start = until
        return -1


# -- the header


def _read_header(pread: Pread, file_size: int) -> tuple[dict[str, bytes], bytes, int]:
    """Return the metadata, the sync marker and the offset of the first block."""
    size = 1 << 16
    while True:
        data = pread(0, min(size, file_size))
        if data[: len(AVRO_MAGIC)] != AVRO_MAGIC[: len(data)]:
            raise FormatError("not an Avro file")
        try:
            return _parse_header(data)
        except EOFError:
            if size >= file_size:
                raise TruncatedError("the file ends within its header") from None
            if size >= MAX_HEADER_SIZE:
                limit = MAX_HEADER_SIZE
                raise FormatError(f"the file's header has more than {limit} bytes") from None
        size *= 8


def _parse_header(data: bytes) -> tuple[dict[str, bytes], bytes, int]:
    decoder = CheckedDecoder(data)
    decoder.skip(len(AVRO_MAGIC))
    metadata: dict[str, bytes] = {}
    while count := decoder.read_int():
        if count < 0:
            # Then the size of the entries follows. Only readers that skip the entries use it.
            decoder.skip_int()
        for _ in range(abs(count)):
            try:
                key = _value(decoder).decode()
            except UnicodeDecodeError:
                raise FormatError("a key in the file's header is not UTF-8") from None
            metadata[key] = _value(decoder)
    return metadata, decoder.read(SYNC_SIZE), decoder.tell()


def _value(decoder: CheckedDecoder) -> bytes:
    size = decoder.read_int()
    if not 0 <= size <= MAX_HEADER_SIZE:
        raise FormatError(f"the file's header has a value of {size} bytes")
    return decoder.read(size)


def parse_schema(metadata: Mapping[str, bytes]) -> Any:
    try:
        return json.loads(metadata["avro.schema"])
    except KeyError:
        raise FormatError("the file's header has no schema") from None
    except (ValueError, RecursionError):
        raise FormatError("the file's schema is not JSON") from None


# -- the codecs

_Decompress = Callable[[memoryview, int], "Buffer"]


def _too_large(limit: int) -> FormatError:
    return FormatError(f"a block has more than {limit} bytes, decompressed")


def _damaged(codec: str) -> FormatError:
    return FormatError(f"a block can't be decompressed by {codec}")


def _plain(data: memoryview, limit: int) -> Buffer:
    return data


def _of_stream(codec: str, new: Callable[[], Any], most_after: int = 0) -> _Decompress:
    """Return the function that decompresses a block with a new stream of Python's library.
    ``most_after`` is how many bytes may follow the data."""

    def decompress(data: memoryview, limit: int) -> Buffer:
        stream = new()
        try:
            text: bytes = stream.decompress(data, limit + 1)
        except (OSError, ValueError, lzma.LZMAError, zlib.error):
            raise _damaged(codec) from None
        if len(text) > limit:
            raise _too_large(limit)
        if not stream.eof or len(stream.unused_data) > most_after:
            raise _damaged(codec)
        return text

    return decompress


def _unsnap(data: memoryview, limit: int) -> Buffer:
    """Snappy's raw format, then the CRC-32 of what it holds, big-endian."""
    compressed, crc = data[:-4], data[-4:]
    try:
        size = _snappy_size(compressed)
        if size > limit:
            raise _too_large(limit)
        # No element gives more than 64 bytes, so a false size cannot make us allocate much memory.
        if size > 64 * len(compressed):
            raise _damaged("snappy")
        text = pa.Codec("snappy").decompress(compressed, decompressed_size=size)
    except (EOFError, OSError, pa.ArrowException):
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
    raise EOFError


def _unzstd(data: memoryview, limit: int) -> Buffer:
    parts: list[bytes] = []
    size = 0
    try:
        # Decompress as a stream, because Java writes frames without their size.
        with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
            while part := stream.read(min(limit + 1 - size, max(1 << 18, 4 * len(data)))):
                parts.append(part)
                size += len(part)
                if size > limit:
                    raise _too_large(limit)
    except (OSError, pa.ArrowException):
        raise _damaged("zstandard") from None
    return parts[0] if len(parts) == 1 else b"".join(parts)


# The keys are Avro's names. Iceberg's table property says gzip for what files call deflate.
CODECS: dict[str, _Decompress] = {
    "null": _plain,
    # Old versions of Avro's Python library write zlib's checksum after the data.
    "deflate": _of_stream("deflate", lambda: zlib.decompressobj(-zlib.MAX_WBITS), most_after=4),
    "snappy": _unsnap,
    "zstandard": _unzstd,
    "bzip2": _of_stream("bzip2", bz2.BZ2Decompressor),
    # The writer chooses the size of the dictionary. xz's presets have at most 64 MiB.
    "xz": _of_stream("xz", lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, MAX_BLOCK_SIZE)),
}


# -- what is written


class AvroCodec:
    """A codec by the name that Iceberg's properties use, and a level; ``name`` is Avro's name.
    Raises ValueError for an unknown name."""

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
        """Return a block of ``rows`` rows, whose encodings are ``data``."""
        return self.stored_block(rows, self._codec.compress(data))

    def stored_block(self, rows: int, stored: bytes) -> bytes:
        """Return a block of ``rows`` rows, as another file of the same codec has it ``stored``."""
        return long(rows) + prefixed(stored) + self._sync


def compact(value: Any) -> str:
    """Return JSON without spaces, as Java writes it into headers."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _zigzag(number: int) -> bytes:
    if not -(1 << 63) <= number < 1 << 63:
        raise ValueError("the number has more than 64 bits")
    number = (number << 1) ^ (number >> 63)
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


# Most numbers of a manifest are repeated: column ids, counts, the lengths of bounds.
long = functools.lru_cache(maxsize=1 << 16)(_zigzag)


def prefixed(data: bytes) -> bytes:
    """Return bytes as Avro encodes them: their count comes first."""
    return long(len(data)) + bytes(memoryview(data))


def string(text: str) -> bytes:
    """Return text as Avro encodes it."""
    return prefixed(text.encode())


def _deflated(data: bytes, level: int) -> bytes:
    compressor = zlib.compressobj(level, wbits=-zlib.MAX_WBITS)
    return compressor.compress(data) + compressor.flush()


def _snapped(data: bytes) -> bytes:
    compressed: bytes = pa.compress(data, codec="snappy", asbytes=True)
    return compressed + zlib.crc32(data).to_bytes(4, "big")

"""A Parquet file under another key: its pages are sealed anew, and none is decoded.

Rows, their order, encodings, codecs, statistics, indexes, bloom filters, the schema with its field
ids and the key-value metadata stay what they are; offsets and sizes change. The result is as
Iceberg's encrypted files are: AES_GCM_V1, an encrypted footer, one key. Pages of version 2 become
pages of version 1, because readers do not agree on what of the former is encrypted. Follows the
Parquet specification, "Parquet Modular Encryption". Knows nothing of tables.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pyarrow as pa

from ..._gcm import Checksum, random_bytes
from ..._messages import open as open_sealed
from ..._messages import seal
from ...errors import AuthenticationError, FormatError, TruncatedError
from ...geometry import claim_key
from ...key_metadata import KeyMetadata
from ..spec.constants import ENCRYPTED_PARQUET_MAGIC, PARQUET_MAGIC
from .parquet_modules import WINDOW_SIZE, check_algorithm
from .thrift import BINARY, I16, I32, I64, STRUCT, TRUE, Struct, parse, print_struct, value

Fetch: TypeAlias = "Callable[[int, int], bytes | memoryview]"
Write: TypeAlias = "Callable[[bytes], Any]"

_MALFORMED = (
    AttributeError,
    IndexError,
    KeyError,
    OverflowError,
    RecursionError,
    TypeError,
    ValueError,
    struct.error,
)
_MAX_DEPTH = 100
_LENGTH_SIZE = 4
_HEADER_SIZE = 16 << 10  # of most page headers, statistics included
_FILE_ID_SIZE = 8
_MAX_ORDINAL = 0x7FFF  # they are 16 bits with a sign

# The module types of the specification, which stand in each module's AAD.
_FOOTER, _PAGE, _DICTIONARY, _PAGE_HEADER, _DICTIONARY_HEADER = 0, 2, 3, 4, 5
_COLUMN_INDEX, _OFFSET_INDEX, _BLOOM_HEADER, _BLOOM_BITSET = 6, 7, 8, 9

# Page types, and the encoding of levels.
_DATA_PAGE, _DICTIONARY_PAGE, _DATA_PAGE_V2 = 0, 2, 3
_RLE = 3
_CODECS = {0: None, 1: "snappy", 2: "gzip", 4: "brotli", 6: "zstd", 7: "lz4_raw"}
_REQUIRED, _REPEATED = 0, 2


@dataclass(frozen=True, slots=True)
class ParquetContents:
    """What a file under a key has.

    ``checksum`` is over the headers and bodies of the pages, in their order, as they
    are once decrypted. ``column_sizes`` are the bytes of each leaf column, by field id;
    ``split_offsets`` where row groups begin, ``size`` the file's bytes.
    """

    size: int
    rows: int
    checksum: bytes = field(repr=False)
    column_sizes: dict[int, int]
    split_offsets: tuple[int, ...]


def transcribe_parquet(
    fetch: Fetch,
    size: int,
    source_km: KeyMetadata | None,
    write: Write,
    km: KeyMetadata,
    checksum: Checksum,
) -> ParquetContents:
    """Write the file's contents as a file under ``km``, a fresh key; return what was written.

    ``fetch(offset, size)`` returns these bytes of the source, a file of ``size`` bytes, in memory
    that its next call may use again; ``source_km`` opens it, None where it is in the clear.
    ``write`` takes the new file's bytes in their order. ``checksum`` takes the pages.
    Holds no more than a page and 4 MiB. Raises AuthenticationError, TruncatedError,
    FormatError (also for a page whose CRC is wrong), NotEncryptedError for a file in the clear that
    has a key, KeyReuseError, and NotImplementedError for pages of version 2 in a codec that cannot
    be undone here.
    """
    source = _Source(fetch, size, source_km)
    claim_key(km, reuse_key=False)
    try:
        return _Transcription(source, write, km).run(checksum)
    except _MALFORMED as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError("the file's structure is not one that Parquet has") from None


def read_contents(fetch: Fetch, size: int, km: KeyMetadata, checksum: Checksum) -> ParquetContents:
    """Return what a file under ``km`` has, once every page of it was read. Arguments and errors as
    for ``transcribe_parquet``."""
    source = _Source(fetch, size, km)
    try:
        footer = source.footer()
        tally = _Tally(footer, checksum)
        for chunk in _chunks(footer):
            for page in source.pages(chunk):
                tally.add(page.text, page.body)
            tally.end_chunk(chunk, value(value(chunk.fields, 3), 7))
        return tally.contents(size)
    except _MALFORMED as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError("the file's structure is not one that Parquet has") from None


@dataclass(frozen=True, slots=True)
class _Chunk:
    """A column of a row group; ``place`` is both in the AAD of its modules."""

    group: int
    column: int
    place: bytes
    fields: Struct


@dataclass(slots=True)
class _Page:
    """``text`` is the header as an encrypted file has it, nothing for a page in the clear; ``body``
    is compressed, and there until the next page is asked for."""

    header: Struct
    text: bytes
    body: memoryview
    is_dictionary: bool = False


def _chunks(footer: Struct) -> Iterator[_Chunk]:
    for number, group in enumerate(value(footer, 4, (STRUCT, []))[1]):
        ordinal = value(group, 7, number)
        for column, chunk in enumerate(value(group, 1)[1]):
            if value(chunk, 1):
                raise FormatError("a column lies in another file")
            yield _Chunk(number, column, _place(ordinal, column), chunk)


def _place(group: int, column: int) -> bytes:
    if group > _MAX_ORDINAL or column > _MAX_ORDINAL:
        raise FormatError("more row groups or columns than an encrypted Parquet file can have")
    return struct.pack("<HH", group, column)


def _page_ordinal(number: int) -> bytes:
    if number > _MAX_ORDINAL:
        raise FormatError("a column has more pages than an encrypted Parquet file can number")
    return struct.pack("<H", number)


class _Source:
    """A Parquet file to be read page by page, encrypted or in the clear."""

    def __init__(self, fetch: Fetch, size: int, km: KeyMetadata | None) -> None:
        self._fetch = fetch
        self._km = km
        self._file_aad = b""
        self._window = memoryview(b"")
        self._window_start = 0
        self._size = size
        if km is not None:
            # Its structure is checked there: length, magic, algorithm, AAD prefix.
            check_algorithm(fetch, size, km)

    def footer(self) -> Struct:
        if self._size < 12:
            raise FormatError("too short for a Parquet file", offset=0)
        tail = bytes(self._take(self._size - 8, 8))
        magic = PARQUET_MAGIC if self._km is None else ENCRYPTED_PARQUET_MAGIC
        if self._take(0, 4) != magic or tail[4:] != magic:
            raise FormatError("this file does not begin and end as a Parquet file does", offset=0)
        length = int.from_bytes(tail[:4], "little")
        start = self._size - 8 - length
        if start < 4:
            raise FormatError("the footer's length is impossible", offset=self._size - 8)
        footer = bytes(self._take(start, length))
        if self._km is None:
            fields, _ = parse(footer)
            if 8 in fields:
                raise FormatError("a Parquet file with keys of its own, which Iceberg's never have")
            return fields
        crypto, at = parse(footer)
        algorithm = value(value(crypto, 1), 1)
        self._file_aad = (self._km.aad_prefix or b"") + value(algorithm, 2)
        fields, _ = parse(self._open(start + at, _FOOTER, b""))
        return fields

    def pages(self, chunk: _Chunk) -> Iterator[_Page]:
        """Yield a column's pages in their order."""
        if 2 in value(chunk.fields, 8, {}):
            raise FormatError(
                f"column {chunk.column} has a key of its own, which Iceberg's never have"
            )
        facts = value(chunk.fields, 3)
        offset = value(facts, 9)
        dictionary = value(facts, 11, 0)
        # Arrow says 0 of a column without rows, which has a dictionary all the same.
        may_be_dictionary = dictionary > 0 and (dictionary < offset or offset == 0)
        if may_be_dictionary:
            offset = dictionary
        # Some writers do not say where a dictionary is, and begin with one.
        elif self._km is None:
            may_be_dictionary = True
        end = offset + value(facts, 7)
        values = number = 0
        while offset < end:
            page, offset = self._page(chunk, offset, may_be_dictionary, number)
            kind = value(page.header, 1)
            if kind == _DICTIONARY_PAGE and may_be_dictionary:
                page.is_dictionary = True
                yield page
            elif kind in (_DATA_PAGE, _DATA_PAGE_V2):
                number += 1
                values += value(value(page.header, 5 if kind == _DATA_PAGE else 8), 1)
                yield page
            may_be_dictionary = False
        if values != value(facts, 5) or offset != end:
            raise FormatError(f"a column's pages have {values} values, not {value(facts, 5)}")

    def _page(self, chunk: _Chunk, offset: int, dictionary: bool, number: int) -> tuple[_Page, int]:
        """Return a page and where it ends."""
        if self._km is None:
            text = b""
            header, offset = self._plain_header(offset)
            size = value(header, 3)
            if size < 0:
                raise FormatError("a page's length is impossible", offset=offset)
            body = self._take(offset, size)
            crc = value(header, 4)
            if crc is not None and crc & 0xFFFFFFFF != zlib.crc32(body):
                raise FormatError("a page's checksum is wrong: the file was changed", offset=offset)
            end = offset + size
        else:
            kinds = (_DICTIONARY_HEADER, _DICTIONARY) if dictionary else (_PAGE_HEADER, _PAGE)
            place = chunk.place if dictionary else chunk.place + _page_ordinal(number)
            text = self._open(offset, kinds[0], place)
            header, _ = parse(text)
            offset += self._length(offset)
            size, levels = self._length(offset), b""
            if size != value(header, 3) and 8 in header:
                # Java's page of version 2: the levels first, as they are.
                facts = value(header, 8)
                levels = bytes(self._take(offset, value(facts, 5) + value(facts, 6)))
                offset += len(levels)
                size = self._length(offset)
            if len(levels) + size != value(header, 3):
                raise AuthenticationError(
                    "a page is not as long as its header says: the file was changed", offset=offset
                )
            body = memoryview(levels + self._open(offset, kinds[1], place))
            end = offset + size
        return _Page(header, text, body), end

    def module(self, offset: int, length: int, kind: int, place: bytes) -> bytes:
        """Return an index, which is ``length`` bytes in the file."""
        if self._km is None:
            return bytes(self._take(offset, length))
        return self._open(offset, kind, place)

    def bloom_filter(self, offset: int, place: bytes) -> tuple[bytes, bytes]:
        """Return a bloom filter's header and bits."""
        if self._km is not None:
            header = self._open(offset, _BLOOM_HEADER, place)
            return header, self._open(offset + self._length(offset), _BLOOM_BITSET, place)
        fields, end = self._plain_header(offset)
        return bytes(self._take(offset, end - offset)), bytes(self._take(end, value(fields, 1)))

    def _plain_header(self, offset: int) -> tuple[Struct, int]:
        size = _HEADER_SIZE
        while True:
            size = min(size, self._size - offset)
            try:
                fields, length = parse(self._take(offset, size))
                return fields, offset + length
            except IndexError:
                if size <= 0 or offset + size >= self._size:
                    raise
                size *= 8

    def _length(self, offset: int) -> int:
        return _LENGTH_SIZE + int.from_bytes(self._take(offset, _LENGTH_SIZE), "little")

    def _open(self, offset: int, kind: int, place: bytes) -> bytes:
        assert self._km is not None
        size = self._length(offset)
        if offset + size > self._size:
            raise AuthenticationError(
                "a module's length is impossible: the file was changed", offset=offset
            )
        sealed = self._take(offset + _LENGTH_SIZE, size - _LENGTH_SIZE)
        try:
            aad = self._file_aad + bytes([kind]) + place
            return open_sealed(self._km.encryption_key, sealed, aad)
        except (AuthenticationError, ValueError):
            raise AuthenticationError(
                "a module does not verify: wrong key, or the file was changed", offset=offset
            ) from None

    def _take(self, offset: int, size: int) -> memoryview:
        begin = offset - self._window_start
        if begin < 0 or begin + size > len(self._window):
            if offset < 0 or size < 0 or offset + size > self._size:
                raise FormatError("the file points outside itself", offset=self._size)
            wanted = max(size, min(WINDOW_SIZE, self._size - offset))
            self._window = memoryview(self._fetch(offset, wanted))
            self._window_start, begin = offset, 0
            if len(self._window) < wanted:
                raise TruncatedError("the file became shorter while it was read", offset=offset)
        return self._window[begin : begin + size]


class _Tally:
    """Counts and sums up a file while it is read or written."""

    def __init__(self, footer: Struct, checksum: Checksum) -> None:
        groups = value(footer, 4, (STRUCT, []))[1]
        self._rows: int = value(footer, 3)
        if sum(value(group, 3) for group in groups) != self._rows:
            raise FormatError("the row groups do not have as many rows as the file")
        self._checksum = checksum
        self._field_ids = _leaf_field_ids(footer)
        self._column_sizes: dict[int, int] = {}
        self._splits: dict[int, int] = {}

    def add(self, header: bytes, body: memoryview) -> None:
        self._checksum.update(struct.pack("<II", len(header), len(body)) + header)
        self._checksum.update(body)

    def end_chunk(self, chunk: _Chunk, size: int) -> None:
        self._checksum.update(b"\xff" * 8 + struct.pack("<II", chunk.group, chunk.column))
        field_id = self._field_ids[chunk.column]
        if field_id is not None:
            self._column_sizes[field_id] = self._column_sizes.get(field_id, 0) + size
        facts = value(chunk.fields, 3)
        starts = [at for at in (value(facts, 9), value(facts, 11)) if at]
        if starts:
            start = min(starts)
            self._splits[chunk.group] = min(self._splits.get(chunk.group, start), start)

    def contents(self, size: int) -> ParquetContents:
        return ParquetContents(
            size,
            self._rows,
            self._checksum.finish(),
            self._column_sizes,
            tuple(sorted(self._splits.values())),
        )


class _Transcription:
    def __init__(self, source: _Source, write: Write, km: KeyMetadata) -> None:
        self._source = source
        self._write_bytes = write
        self._key = km.encryption_key
        self._file_id = random_bytes(_FILE_ID_SIZE)
        self._file_aad = (km.aad_prefix or b"") + self._file_id
        self._has_prefix = bool(km.aad_prefix)
        self._at = 0

    def run(self, checksum: Checksum) -> ParquetContents:
        footer = self._source.footer()
        tally = _Tally(footer, checksum)
        self._levels = _leaf_levels(footer)
        self._write(ENCRYPTED_PARQUET_MAGIC)
        groups = value(footer, 4, (STRUCT, []))[1]
        page_places: dict[tuple[int, int], list[tuple[int, int]]] = {}
        # The chunks' places are those of the source; here a row group's number is its ordinal.
        for chunk in _chunks(footer):
            page_places[chunk.group, chunk.column] = self._column(chunk, tally)
        self._bloom_filters(footer)
        self._indexes(footer, page_places)
        for number, group in enumerate(groups):
            _describe_group(number, group)
        return self._end(footer, tally)

    def _column(self, chunk: _Chunk, tally: _Tally) -> list[tuple[int, int]]:
        """Write a column's pages and correct what the footer says of it; return where its data
        pages are and their sizes."""
        facts = value(chunk.fields, 3)
        place = _place(chunk.group, chunk.column)
        start, plain_size = self._at, 0
        dictionary_at: int | None = None
        places: list[tuple[int, int]] = []
        had_v2 = False
        for page in self._source.pages(chunk):
            if value(page.header, 1) == _DATA_PAGE_V2:
                had_v2 = True
                page = _as_version_1(page, value(facts, 4), self._levels[chunk.column])
            at = self._at
            if page.is_dictionary:
                dictionary_at = at
                kinds, where = (_DICTIONARY_HEADER, _DICTIONARY), place
            else:
                kinds = _PAGE_HEADER, _PAGE
                where = place + _page_ordinal(len(places))
            body = self._sealed(kinds[1], where, page.body)
            page.header[3] = I32, len(body)
            page.header.pop(4, None)  # the CRC; the tag says more
            header = print_struct(page.header)
            tally.add(header, page.body)
            plain_size += self._write(self._sealed(kinds[0], where, header))
            plain_size += value(page.header, 2)
            self._write(body)
            if not page.is_dictionary:
                places.append((at, self._at - at))
        if had_v2:
            _forget_version_2(facts)
        size = self._at - start
        # A column of a row group without rows has no pages, and still a place.
        facts[9] = I64, places[0][0] if places else self._at
        facts.pop(11, None)
        if dictionary_at is not None:
            facts[11] = I64, dictionary_at
        facts.pop(10, None)
        facts[6] = I64, plain_size
        facts[7] = I64, size
        chunk.fields[2] = I64, start
        chunk.fields[8] = STRUCT, {1: (STRUCT, {})}  # under the footer's key
        chunk.fields.pop(9, None)
        tally.end_chunk(chunk, size)
        return places

    def _bloom_filters(self, footer: Struct) -> None:
        for chunk in _chunks(footer):
            facts = value(chunk.fields, 3)
            if 14 in facts:
                place = _place(chunk.group, chunk.column)
                header, bits = self._source.bloom_filter(value(facts, 14), chunk.place)
                start = self._at
                self._write(self._sealed(_BLOOM_HEADER, place, header))
                self._write(self._sealed(_BLOOM_BITSET, place, bits))
                facts[14] = I64, start
                facts[15] = I32, self._at - start

    def _indexes(
        self, footer: Struct, page_places: dict[tuple[int, int], list[tuple[int, int]]]
    ) -> None:
        """Write the column indexes, which say nothing of places, and the offset indexes."""
        for chunk in _chunks(footer):
            if 6 in chunk.fields:
                where, length = value(chunk.fields, 6), value(chunk.fields, 7)
                index = self._source.module(where, length, _COLUMN_INDEX, chunk.place)
                self._index(chunk, 6, _COLUMN_INDEX, index)
        for chunk in _chunks(footer):
            if 4 in chunk.fields:
                where, length = value(chunk.fields, 4), value(chunk.fields, 5)
                index = self._source.module(where, length, _OFFSET_INDEX, chunk.place)
                fields, _ = parse(index)
                locations = value(fields, 1)[1]
                places = page_places[chunk.group, chunk.column]
                for location, (at, size) in zip(locations, places, strict=True):
                    location[1] = I64, at
                    location[2] = I32, size
                self._index(chunk, 4, _OFFSET_INDEX, print_struct(fields))

    def _index(self, chunk: _Chunk, field_id: int, kind: int, index: bytes) -> None:
        place = _place(chunk.group, chunk.column)
        chunk.fields[field_id] = I64, self._at
        chunk.fields[field_id + 1] = I32, self._write(self._sealed(kind, place, index))

    def _end(self, footer: Struct, tally: _Tally) -> ParquetContents:
        footer.pop(9, None)
        start = self._at
        algorithm: Struct = {2: (BINARY, self._file_id)}
        if self._has_prefix:
            algorithm[3] = TRUE, True  # readers have to bring it
        crypto: Struct = {1: (STRUCT, {1: (STRUCT, algorithm)})}
        self._write(print_struct(crypto))
        self._write(self._sealed(_FOOTER, b"", print_struct(footer)))
        self._write(struct.pack("<I", self._at - start) + ENCRYPTED_PARQUET_MAGIC)
        return tally.contents(self._at)

    def _sealed(self, kind: int, place: bytes, text: bytes | memoryview) -> bytes:
        sealed = seal(self._key, text, self._file_aad + bytes([kind]) + place)
        return struct.pack("<I", len(sealed)) + sealed

    def _write(self, data: bytes) -> int:
        self._write_bytes(data)
        self._at += len(data)
        return len(data)


def _describe_group(number: int, group: Struct) -> None:
    """Correct what the footer says of a row group, from its columns."""
    facts = [value(chunk, 3) for chunk in value(group, 1)[1]]
    group[2] = I64, sum(value(f, 6) for f in facts)
    starts = [at for f in facts for at in (value(f, 9), value(f, 11)) if at]
    if starts:
        group[5] = I64, min(starts)
    group[6] = I64, sum(value(f, 7) for f in facts)
    group[7] = I16, number


def _leaves(footer: Struct) -> Iterator[tuple[Struct, bool, bool]]:
    """Yield the schema's leaf columns, and whether each has repetition and definition levels."""
    elements = iter(value(footer, 2)[1])

    def walk(
        count: int, repeated: bool, optional: bool, depth: int
    ) -> Iterator[tuple[Struct, bool, bool]]:
        if depth > _MAX_DEPTH:
            raise FormatError("the file's schema is nested too deeply")
        for _ in range(count):
            element = next(elements, None)
            if element is None:
                raise FormatError("the file's schema is cut")
            kind = value(element, 3, _REQUIRED)
            r, d = repeated or kind == _REPEATED, optional or kind != _REQUIRED
            children = value(element, 5, 0)
            if children:
                yield from walk(children, r, d, depth + 1)
            else:
                yield element, r, d

    root = next(elements, None)
    if root is None:
        raise FormatError("the file has no schema")
    yield from walk(value(root, 5, 0), False, False, 0)


def _leaf_field_ids(footer: Struct) -> list[int | None]:
    return [value(element, 9) for element, _, _ in _leaves(footer)]


def _leaf_levels(footer: Struct) -> list[tuple[bool, bool]]:
    return [(repeated, optional) for _, repeated, optional in _leaves(footer)]


def _as_version_1(page: _Page, codec_number: int, levels: tuple[bool, bool]) -> _Page:
    """Return a page of version 2 as one of version 1: levels and values compressed together, and
    before each kind of levels their length."""
    facts = value(page.header, 8)
    repetition_size, definition_size = value(facts, 6), value(facts, 5)
    levels_size = repetition_size + definition_size
    values_size = value(page.header, 2) - levels_size
    if min(repetition_size, definition_size, values_size) < 0 or levels_size > len(page.body):
        raise FormatError("the lengths in a page's header are impossible")
    if codec_number not in _CODECS:
        raise NotImplementedError(
            f"pages of version 2 in Parquet's codec {codec_number} cannot be encrypted anew"
        )
    name = _CODECS[codec_number]
    codec = None if name is None else pa.Codec(name)
    values = page.body[levels_size:]
    if codec is not None and value(facts, 7, True) and values_size:
        try:
            values = codec.decompress(values, values_size, asbytes=True)
        except (OSError, pa.ArrowInvalid):
            raise FormatError("a page's values do not decompress") from None
    parts: list[bytes | memoryview] = []
    repeated, optional = levels
    if repeated:
        parts += [struct.pack("<I", repetition_size), page.body[:repetition_size]]
    if optional:
        parts += [struct.pack("<I", definition_size), page.body[repetition_size:levels_size]]
    plain = b"".join([*parts, values])
    described: Struct = {
        1: (I32, value(facts, 1)),
        2: (I32, value(facts, 4)),
        3: (I32, _RLE),
        4: (I32, _RLE),
    }
    if 8 in facts:
        described[5] = facts[8]
    header = {k: v for k, v in page.header.items() if k != 8}
    header |= {1: (I32, _DATA_PAGE), 2: (I32, len(plain)), 5: (STRUCT, described)}
    body = plain if codec is None else codec.compress(plain, asbytes=True)
    return _Page(header, b"", memoryview(body))


def _forget_version_2(facts: Struct) -> None:
    """Say of a column that its pages are of version 1."""
    encodings = value(facts, 2)
    if encodings is not None and _RLE not in encodings[1]:
        encodings[1].append(_RLE)
    for counted in value(facts, 13, (STRUCT, []))[1]:
        if value(counted, 1) == _DATA_PAGE_V2:
            counted[1] = I32, _DATA_PAGE

"""Encrypts a Parquet file under another key, page by page. No page is decoded.

The rows, their order, encodings, codecs, statistics, indexes, bloom filters, the schema with its
field ids, and the key-value metadata stay the same. Offsets and sizes change. The result has the
form of Iceberg's encrypted files (``parquet_modules`` has a drawing). Pages of version 2 become
pages of version 1, because readers do not agree on which part of a page of version 2 is encrypted.
Knows nothing of tables.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pyarrow as pa

from ...engine._gcm import Checksum, random_bytes
from ...engine._messages import seal
from ...engine.geometry import claim_key
from ...engine.key_metadata import KeyMetadata
from ...errors import AuthenticationError, FormatError
from ..spec.constants import ENCRYPTED_PARQUET_MAGIC
from .parquet_fields import (
    ColumnChunk,
    ColumnCryptoMetaData,
    ColumnMetaData,
    DataPageHeader,
    DataPageHeaderV2,
    FileMetaData,
    OffsetIndex,
    PageEncodingStats,
    PageHeader,
    PageLocation,
    PageType,
    RowGroup,
    SchemaElement,
)
from .parquet_modules import (
    FILE_ID_SIZE,
    INDEXES,
    Chunk,
    Fetch,
    ModuleType,
    Page,
    ParquetSource,
    chunk_ordinals,
    chunks,
    page_modules,
    parsing,
    print_crypto_metadata,
)
from .thrift import I16, I32, I64, STRUCT, Struct, parse, print_struct, value

Write: TypeAlias = "Callable[[bytes], Any]"

_MAX_DEPTH = 100
_RLE = 3  # the encoding of levels
_CODECS = {0: None, 1: "snappy", 2: "gzip", 4: "brotli", 6: "zstd", 7: "lz4_raw"}


@dataclass(frozen=True, slots=True)
class ParquetContents:
    """The contents of an encrypted file of ``size`` bytes. ``checksum`` is over the decrypted
    headers and bodies of the pages, in order. ``column_sizes`` has the bytes of each leaf column,
    by field id. ``split_offsets`` are where row groups begin."""

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
    key_metadata: KeyMetadata,
    checksum: Checksum,
) -> ParquetContents:
    """Write the file's contents as a file under ``km``, a fresh key; return what was written.

    ``fetch(offset, size)`` returns these bytes of the source, a file of ``size`` bytes, in memory
    that its next call may use again. ``source_km`` decrypts it; None means that it is unencrypted.
    ``write`` takes the new file's bytes in their order. ``checksum`` takes the pages.
    Holds no more than a page and 4 MiB. Raises AuthenticationError, TruncatedError, FormatError
    (also for a page whose CRC is wrong), NotEncryptedError for an unencrypted file that has a key,
    KeyReuseError, and NotImplementedError for pages of version 2 in an unknown codec.
    """
    source = ParquetSource(fetch, size, source_km)
    with parsing():
        footer = source.footer()
        claim_key(key_metadata, reuse_key=False)
        return _Transcription(source, footer, write, key_metadata).run(checksum)


def read_contents(
    fetch: Fetch, size: int, key_metadata: KeyMetadata, checksum: Checksum
) -> ParquetContents:
    """Read every page of a file under ``km``; return the file's contents. Arguments and errors are
    as for ``transcribe_parquet``."""
    source = ParquetSource(fetch, size, key_metadata)
    with parsing():
        footer = source.footer()
        tally = _Tally(footer, checksum)
        for chunk in chunks(footer):
            for page in source.pages(chunk):
                tally.add(page.header_bytes, page.body)
            tally.end_chunk(chunk, value(chunk.meta, ColumnMetaData.TOTAL_COMPRESSED_SIZE))
        return tally.contents(size)


class _Tally:
    """Counts and sums up a file while it is read or written."""

    def __init__(self, footer: Struct, checksum: Checksum) -> None:
        groups = value(footer, FileMetaData.ROW_GROUPS, (STRUCT, []))[1]
        self._rows: int = value(footer, FileMetaData.NUM_ROWS)
        if sum(value(group, RowGroup.NUM_ROWS) for group in groups) != self._rows:
            raise FormatError("the row groups do not have as many rows as the file")
        self._checksum = checksum
        self._field_ids = [value(leaf, SchemaElement.FIELD_ID) for leaf, _, _ in _leaves(footer)]
        self._column_sizes: dict[int, int] = {}
        self._splits: dict[int, int] = {}

    def add(self, header: bytes, body: memoryview) -> None:
        self._checksum.update(struct.pack("<II", len(header), len(body)) + header)
        self._checksum.update(body)

    def end_chunk(self, chunk: Chunk, size: int) -> None:
        self._checksum.update(b"\xff" * 8 + struct.pack("<II", chunk.group, chunk.column))
        field_id = self._field_ids[chunk.column]
        if field_id is not None:
            self._column_sizes[field_id] = self._column_sizes.get(field_id, 0) + size
        if start := _first_offset([chunk.meta]):
            self._splits[chunk.group] = min(self._splits.get(chunk.group, start), start)

    def contents(self, size: int) -> ParquetContents:
        splits = tuple(sorted(self._splits.values()))
        return ParquetContents(
            size, self._rows, self._checksum.finish(), self._column_sizes, splits
        )


class _Transcription:
    """Writes a new file from a source; ``_at`` is the offset of the next byte."""

    def __init__(
        self, source: ParquetSource, footer: Struct, write: Write, key_metadata: KeyMetadata
    ) -> None:
        self._source = source
        self._footer = footer
        self._chunks = list(chunks(footer))
        self._levels = [(repeated, optional) for _, repeated, optional in _leaves(footer)]
        self._write_bytes = write
        self._km = key_metadata
        self._file_id = random_bytes(FILE_ID_SIZE)
        self._file_aad = (key_metadata.aad_prefix or b"") + self._file_id
        self._has_prefix = bool(key_metadata.aad_prefix)
        self._at = 0

    def run(self, checksum: Checksum) -> ParquetContents:
        tally = _Tally(self._footer, checksum)
        self._write(ENCRYPTED_PARQUET_MAGIC)
        page_locations = [self._column(chunk, tally) for chunk in self._chunks]
        self._bloom_filters()
        self._indexes(page_locations)
        groups = value(self._footer, FileMetaData.ROW_GROUPS, (STRUCT, []))[1]
        for number, group in enumerate(groups):
            _describe_group(number, group)
        return self._end(tally)

    def _column(self, chunk: Chunk, tally: _Tally) -> list[tuple[int, int]]:
        """Write a column and correct the footer; return its data pages' offsets and sizes."""
        meta = chunk.meta
        codec = value(meta, ColumnMetaData.CODEC)
        start, plain_size, had_v2 = self._at, 0, False
        dictionary_offset: int | None = None
        locations: list[tuple[int, int]] = []
        for page in self._source.pages(chunk):
            if self._source.plain_levels_size:
                raise AuthenticationError(
                    "Java wrote pages of version 2, which leave unauthenticated which values are "
                    "null and where lists begin: the file is not encrypted again as if that were "
                    "genuine. Set write.parquet.page-version=v1, and rewrite it in Spark "
                    "(rewrite_data_files)"
                )
            if value(page.header, PageHeader.TYPE) == PageType.DATA_PAGE_V2:
                had_v2 = True
                page = _as_version_1(page, codec, self._levels[chunk.column])
            offset = self._at
            number = None if page.is_dictionary else len(locations)
            header = self._page(page, *page_modules(_ordinals(chunk), number))
            tally.add(header, page.body)
            plain_size += self._at - offset - value(page.header, PageHeader.COMPRESSED_PAGE_SIZE)
            plain_size += value(page.header, PageHeader.UNCOMPRESSED_PAGE_SIZE)
            if page.is_dictionary:
                dictionary_offset = offset
            else:
                locations.append((offset, self._at - offset))
        if had_v2:
            _forget_version_2(meta)
        size = self._at - start
        # A column of a row group without rows has no pages, but still has an offset.
        meta[ColumnMetaData.DATA_PAGE_OFFSET] = I64, locations[0][0] if locations else self._at
        meta.pop(ColumnMetaData.DICTIONARY_PAGE_OFFSET, None)
        if dictionary_offset is not None:
            meta[ColumnMetaData.DICTIONARY_PAGE_OFFSET] = I64, dictionary_offset
        meta.pop(ColumnMetaData.INDEX_PAGE_OFFSET, None)
        meta[ColumnMetaData.TOTAL_UNCOMPRESSED_SIZE] = I64, plain_size
        meta[ColumnMetaData.TOTAL_COMPRESSED_SIZE] = I64, size
        crypto: Struct = {ColumnCryptoMetaData.WITH_FOOTER_KEY: (STRUCT, {})}
        chunk.fields[ColumnChunk.FILE_OFFSET] = I64, start
        chunk.fields[ColumnChunk.CRYPTO_METADATA] = STRUCT, crypto
        chunk.fields.pop(ColumnChunk.ENCRYPTED_COLUMN_METADATA, None)
        tally.end_chunk(chunk, size)
        return locations

    def _page(self, page: Page, kinds: tuple[ModuleType, ModuleType], ordinals: bytes) -> bytes:
        """Write a page; return its new header."""
        body = self._encrypted(kinds[1], ordinals, page.body)
        page.header[PageHeader.COMPRESSED_PAGE_SIZE] = I32, len(body)
        page.header.pop(PageHeader.CRC, None)  # the tag replaces it
        header = print_struct(page.header)
        self._write(self._encrypted(kinds[0], ordinals, header))
        self._write(body)
        return header

    def _bloom_filters(self) -> None:
        for chunk in self._chunks:
            if ColumnMetaData.BLOOM_FILTER_OFFSET in chunk.meta:
                header, bits = self._source.bloom_filter(chunk)
                start, ordinals = self._at, _ordinals(chunk)
                self._write(self._encrypted(ModuleType.BLOOM_FILTER_HEADER, ordinals, header))
                self._write(self._encrypted(ModuleType.BLOOM_FILTER_BITSET, ordinals, bits))
                chunk.meta[ColumnMetaData.BLOOM_FILTER_OFFSET] = I64, start
                chunk.meta[ColumnMetaData.BLOOM_FILTER_LENGTH] = I32, self._at - start

    def _indexes(self, page_locations: list[list[tuple[int, int]]]) -> None:
        for chunk in self._chunks:
            if ColumnChunk.COLUMN_INDEX_OFFSET in chunk.fields:
                index = self._source.index(chunk, ModuleType.COLUMN_INDEX)
                self._index(chunk, ModuleType.COLUMN_INDEX, index)
        for chunk, locations in zip(self._chunks, page_locations, strict=True):
            if ColumnChunk.OFFSET_INDEX_OFFSET in chunk.fields:
                fields, _ = parse(self._source.index(chunk, ModuleType.OFFSET_INDEX))
                indexed = value(fields, OffsetIndex.PAGE_LOCATIONS)[1]
                for location, (offset, size) in zip(indexed, locations, strict=True):
                    location[PageLocation.OFFSET] = I64, offset
                    location[PageLocation.COMPRESSED_PAGE_SIZE] = I32, size
                self._index(chunk, ModuleType.OFFSET_INDEX, print_struct(fields))

    def _index(self, chunk: Chunk, kind: ModuleType, index: bytes) -> None:
        start = self._at
        self._write(self._encrypted(kind, _ordinals(chunk), index))
        chunk.fields[INDEXES[kind]] = I64, start
        chunk.fields[INDEXES[kind] + 1] = I32, self._at - start

    def _end(self, tally: _Tally) -> ParquetContents:
        self._footer.pop(FileMetaData.FOOTER_SIGNING_KEY_METADATA, None)
        start = self._at
        # Without a prefix, no field says so. The key metadata has it.
        self._write(print_crypto_metadata(self._file_id, self._has_prefix or None))
        self._write(self._encrypted(ModuleType.FOOTER, b"", print_struct(self._footer)))
        self._write(struct.pack("<I", self._at - start) + ENCRYPTED_PARQUET_MAGIC)
        return tally.contents(self._at)

    def _encrypted(self, kind: ModuleType, ordinals: bytes, text: bytes | memoryview) -> bytes:
        sealed = seal(self._km.encryption_key, text, self._file_aad + bytes([kind]) + ordinals)
        return struct.pack("<I", len(sealed)) + sealed

    def _write(self, data: bytes) -> None:
        self._write_bytes(data)
        self._at += len(data)


def _ordinals(chunk: Chunk) -> bytes:
    """Return a column chunk's part of the AAD in the new file, where a row group's ordinal is its
    number. In the source, it may be another one."""
    return chunk_ordinals(chunk.group, chunk.column)


def _first_offset(columns: list[Struct]) -> int | None:
    """Return the least offset of a page of these columns; None if they have no pages."""
    ids = ColumnMetaData.DATA_PAGE_OFFSET, ColumnMetaData.DICTIONARY_PAGE_OFFSET
    offsets = [value(meta, field_id) for meta in columns for field_id in ids]
    return min(filter(None, offsets), default=None)


def _describe_group(number: int, group: Struct) -> None:
    """Correct what the footer says of a row group, from its columns."""
    columns = [value(c, ColumnChunk.META_DATA) for c in value(group, RowGroup.COLUMNS)[1]]
    plain_sizes = [value(meta, ColumnMetaData.TOTAL_UNCOMPRESSED_SIZE) for meta in columns]
    sizes = [value(meta, ColumnMetaData.TOTAL_COMPRESSED_SIZE) for meta in columns]
    group[RowGroup.TOTAL_BYTE_SIZE] = I64, sum(plain_sizes)
    if start := _first_offset(columns):
        group[RowGroup.FILE_OFFSET] = I64, start
    group[RowGroup.TOTAL_COMPRESSED_SIZE] = I64, sum(sizes)
    group[RowGroup.ORDINAL] = I16, number


def _leaves(footer: Struct) -> Iterator[tuple[Struct, bool, bool]]:
    """Yield the schema's leaf columns, and whether each has repetition and definition levels."""
    elements = iter(value(footer, FileMetaData.SCHEMA)[1])

    def walk(
        count: int, repeated: bool, optional: bool, depth: int
    ) -> Iterator[tuple[Struct, bool, bool]]:
        if depth > _MAX_DEPTH:
            raise FormatError("the file's schema is nested too deeply")
        for _ in range(count):
            element = next(elements, None)
            if element is None:
                raise FormatError("the file's schema ends too early")
            kind = value(element, SchemaElement.REPETITION_TYPE, SchemaElement.REQUIRED)
            r = repeated or kind == SchemaElement.REPEATED
            d = optional or kind != SchemaElement.REQUIRED
            children = value(element, SchemaElement.NUM_CHILDREN, 0)
            if children:
                yield from walk(children, r, d, depth + 1)
            else:
                yield element, r, d

    root = next(elements, None)
    if root is None:
        raise FormatError("the file has no schema")
    yield from walk(value(root, SchemaElement.NUM_CHILDREN, 0), False, False, 0)


def _as_version_1(page: Page, codec_number: int, levels: tuple[bool, bool]) -> Page:
    """Return a page of version 2 as one of version 1.

    version 2    repetition levels | definition levels | compressed values
    version 1    compressed: length | repetition levels | length | definition levels | values
    """
    v2 = value(page.header, PageHeader.DATA_PAGE_HEADER_V2)
    repetition_size = value(v2, DataPageHeaderV2.REPETITION_LEVELS_SIZE)
    definition_size = value(v2, DataPageHeaderV2.DEFINITION_LEVELS_SIZE)
    levels_size = repetition_size + definition_size
    values_size = value(page.header, PageHeader.UNCOMPRESSED_PAGE_SIZE) - levels_size
    if min(repetition_size, definition_size, values_size) < 0 or levels_size > len(page.body):
        raise FormatError("the lengths in a page's header are impossible")
    if codec_number not in _CODECS:
        raise NotImplementedError(
            f"pages of version 2 in Parquet's codec {codec_number} cannot be encrypted again"
        )
    name = _CODECS[codec_number]
    codec = None if name is None else pa.Codec(name)
    values = page.body[levels_size:]
    if codec is not None and value(v2, DataPageHeaderV2.IS_COMPRESSED, True) and values_size:
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
    header = dict(page.header)
    del header[PageHeader.DATA_PAGE_HEADER_V2]
    header[PageHeader.TYPE] = I32, PageType.DATA_PAGE
    header[PageHeader.UNCOMPRESSED_PAGE_SIZE] = I32, len(plain)
    v1 = {
        DataPageHeader.NUM_VALUES: (I32, value(v2, DataPageHeaderV2.NUM_VALUES)),
        DataPageHeader.ENCODING: (I32, value(v2, DataPageHeaderV2.ENCODING)),
        DataPageHeader.DEFINITION_LEVEL_ENCODING: (I32, _RLE),
        DataPageHeader.REPETITION_LEVEL_ENCODING: (I32, _RLE),
    }
    if DataPageHeaderV2.STATISTICS in v2:
        v1[DataPageHeader.STATISTICS] = v2[DataPageHeaderV2.STATISTICS]
    header[PageHeader.DATA_PAGE_HEADER] = STRUCT, v1
    body = plain if codec is None else codec.compress(plain, asbytes=True)
    return Page(header, b"", memoryview(body))


def _forget_version_2(meta: Struct) -> None:
    """Change a column's metadata: its pages are of version 1 now."""
    encodings = value(meta, ColumnMetaData.ENCODINGS)
    if encodings is not None and _RLE not in encodings[1]:
        encodings[1].append(_RLE)
    for counted in value(meta, ColumnMetaData.ENCODING_STATS, (STRUCT, []))[1]:
        if value(counted, PageEncodingStats.PAGE_TYPE) == PageType.DATA_PAGE_V2:
            counted[PageEncodingStats.PAGE_TYPE] = I32, PageType.DATA_PAGE

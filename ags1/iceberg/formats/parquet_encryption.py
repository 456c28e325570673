"""Writes an encrypted Parquet file from the row groups of other files. No page is decoded.

    add()     a source's row groups: their pages, then their bloom filters
    close()   the page indexes and the footer of the whole file

The rows, their order, encodings, codecs, statistics, indexes, bloom filters, the schema with its
field ids, and the key-value metadata stay the same. Offsets and sizes change. The result has the
form of Iceberg's encrypted files (``parquet_modules`` has a drawing). Pages of version 2 become
pages of version 1, because readers do not agree on which part of a page of version 2 is encrypted.
Those whose levels (which values are null) nothing has authenticated are refused.
Independent of tables.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from ...engine._gcm import random_bytes
from ...engine.geometry import claim_key
from ...engine.key_metadata import KeyMetadata
from ...errors import AuthenticationError, FormatError
from ..spec.constants import ENCRYPTED_PARQUET_MAGIC
from ._modules import ModuleCipher
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
    ModuleType,
    Page,
    ParquetSource,
    chunk_ordinals,
    chunks,
    page_modules,
    print_crypto_metadata,
)
from .thrift import I16, I32, I64, LIST, STRUCT, Struct, parse, print_struct, value

Write: TypeAlias = "Callable[[bytes], Any]"

_OVERHEAD = 4 + 12 + 16  # of a module: its length, nonce and tag
_BATCH_SIZE = 1 << 20
_MAX_DEPTH = 100
_RLE = 3  # the encoding of levels
_CODECS = {0: None, 1: "snappy", 2: "gzip", 4: "brotli", 6: "zstd", 7: "lz4_raw"}


class Tally(Protocol):
    """Is shown each page's new header and its body, and the end of each column chunk."""

    def add(self, header: bytes, body: memoryview) -> None: ...
    def end_chunk(self, chunk: Chunk, size: int) -> None: ...


@dataclass(slots=True)
class _Written:
    """The pages of a column chunk: their offsets and sizes. ``plain_size`` is that of the chunk
    without compression."""

    start: int
    plain_size: int = 0
    dictionary: int | None = None
    pages: list[tuple[int, int]] = field(default_factory=list)

    def add(self, offset: int, size: int, *, is_dictionary: bool) -> None:
        if is_dictionary:
            self.dictionary = offset
        else:
            self.pages.append((offset, size))

    def describe(self, chunk: Chunk, end: int) -> None:
        """Correct what the footer says of the chunk."""
        meta = chunk.meta
        # A column of a row group without rows has no pages, but still has an offset.
        meta[ColumnMetaData.DATA_PAGE_OFFSET] = I64, self.pages[0][0] if self.pages else end
        meta.pop(ColumnMetaData.DICTIONARY_PAGE_OFFSET, None)
        if self.dictionary is not None:
            meta[ColumnMetaData.DICTIONARY_PAGE_OFFSET] = I64, self.dictionary
        meta.pop(ColumnMetaData.INDEX_PAGE_OFFSET, None)
        meta[ColumnMetaData.TOTAL_UNCOMPRESSED_SIZE] = I64, self.plain_size
        meta[ColumnMetaData.TOTAL_COMPRESSED_SIZE] = I64, end - self.start
        crypto: Struct = {ColumnCryptoMetaData.WITH_FOOTER_KEY: (STRUCT, {})}
        chunk.fields[ColumnChunk.FILE_OFFSET] = I64, self.start
        chunk.fields[ColumnChunk.CRYPTO_METADATA] = STRUCT, crypto
        chunk.fields.pop(ColumnChunk.ENCRYPTED_COLUMN_METADATA, None)


class ParquetEncryptor:
    """A file under ``key_metadata``, a fresh key. ``write`` takes its bytes in their order.
    ``size`` (bytes) is that of all that was added. ``footer`` is that of the first source.
    Use it only inside ``parsing``. Raises KeyReuseError, FormatError, and NotImplementedError for
    pages of version 2 in an unknown codec. After an exception, the file is of no use.
    """

    def __init__(self, write: Write, key_metadata: KeyMetadata) -> None:
        claim_key(key_metadata, reuse_key=False)
        self.size = 0
        self.footer: Struct = {}
        self._write = write
        self._file_id = random_bytes(FILE_ID_SIZE)
        self._has_prefix = bool(key_metadata.aad_prefix)
        file_aad = (key_metadata.aad_prefix or b"") + self._file_id
        self._cipher = ModuleCipher(key_metadata.encryption_key, file_aad)
        self._batch: list[tuple[ModuleType, bytes, bytes | memoryview]] = []
        self._batched_size = 0
        self._groups: list[Struct] = []
        self._rows = 0
        # For the end of the file: a column chunk's fields, its ordinals and its index.
        self._indexes: dict[ModuleType, list[tuple[Struct, bytes, bytes]]] = {
            kind: [] for kind in INDEXES
        }
        self._put(ENCRYPTED_PARQUET_MAGIC)

    def add(
        self,
        source: ParquetSource,
        footer: Struct,
        *,
        memory: memoryview | None = None,
        tally: Tally | None = None,
    ) -> None:
        """Write the row groups of a source, and change its ``footer``. All sources have the same
        schema. The key-value metadata are the first's. ``memory`` is all of a source that is
        unencrypted and has no pages of version 2; then nothing is tallied."""
        first, groups = len(self._groups), value(footer, FileMetaData.ROW_GROUPS, (STRUCT, []))[1]
        added = [(c, chunk_ordinals(first + c.group, c.column)) for c in chunks(footer)]
        levels = [(repeated, optional) for _, repeated, optional in leaves(footer)]
        locations = []
        for chunk, ordinals in added:
            if memory is not None:
                written = self._add_plain_chunk(memory, chunk, ordinals)
            else:
                written = self._add_chunk(source, chunk, ordinals, levels[chunk.column], tally)
            locations.append(written.pages)
            written.describe(chunk, self.size)
            if tally is not None:
                tally.end_chunk(chunk, self.size - written.start)
        for chunk, ordinals in added:
            if ColumnMetaData.BLOOM_FILTER_OFFSET in chunk.meta:
                header, bits = source.bloom_filter(chunk)
                start = self.size
                self._module(ModuleType.BLOOM_FILTER_HEADER, ordinals, header)
                self._module(ModuleType.BLOOM_FILTER_BITSET, ordinals, bits)
                chunk.meta[ColumnMetaData.BLOOM_FILTER_OFFSET] = I64, start
                chunk.meta[ColumnMetaData.BLOOM_FILTER_LENGTH] = I32, self.size - start
        self._keep_indexes(source, added, locations)
        self._seal()
        for number, group in enumerate(groups, first):
            _describe_group(number, group)
        self._groups += groups
        self._rows += value(footer, FileMetaData.NUM_ROWS)
        self.footer = self.footer or footer

    def close(self) -> bytes:
        """Write the end of the file. Return the footer as it was before it was encrypted."""
        for kind, kept in self._indexes.items():
            for fields, ordinals, index in kept:
                fields[INDEXES[kind]] = I64, self.size
                fields[INDEXES[kind] + 1] = I32, self._module(kind, ordinals, index)
        self._seal()
        self.footer[FileMetaData.NUM_ROWS] = I64, self._rows
        self.footer[FileMetaData.ROW_GROUPS] = LIST, (STRUCT, self._groups)
        self.footer.pop(FileMetaData.FOOTER_SIGNING_KEY_METADATA, None)
        footer = print_struct(self.footer)
        # Without a prefix, no field says so. The key metadata has it.
        end = print_crypto_metadata(self._file_id, self._has_prefix or None)
        end += self._cipher.seal([(ModuleType.FOOTER, b"", footer)])
        self._put(end + struct.pack("<I", len(end)) + ENCRYPTED_PARQUET_MAGIC)
        return footer

    def _add_chunk(
        self,
        source: ParquetSource,
        chunk: Chunk,
        ordinals: bytes,
        levels: tuple[bool, bool],
        tally: Tally | None,
    ) -> _Written:
        """Write the pages of a column chunk, one after the other."""
        written, had_v2 = _Written(self.size), False
        for page in source.pages(chunk):
            if source.plain_levels_size:
                raise AuthenticationError(
                    "Java wrote pages of version 2, which leave unauthenticated which values are "
                    "null and where lists begin: the file is not encrypted again as if that were "
                    "genuine. Set write.parquet.page-version=v1, and rewrite it in Spark "
                    "(rewrite_data_files)"
                )
            if value(page.header, PageHeader.TYPE) == PageType.DATA_PAGE_V2:
                had_v2 = True
                page = _as_version_1(page, value(chunk.meta, ColumnMetaData.CODEC), levels)
            offset = self.size
            number = None if page.is_dictionary else len(written.pages)
            header = self._page(page, *page_modules(ordinals, number))
            if tally is not None:
                tally.add(header, page.body)
            written.plain_size += len(header) + _OVERHEAD
            written.plain_size += value(page.header, PageHeader.UNCOMPRESSED_PAGE_SIZE)
            written.add(offset, self.size - offset, is_dictionary=page.is_dictionary)
        if had_v2:
            _forget_version_2(chunk.meta)
        return written

    def _add_plain_chunk(self, plain: memoryview, chunk: Chunk, ordinals: bytes) -> _Written:
        """Write the pages of a column chunk in memory, many at a time."""
        written, values = _Written(self.size), 0
        start = first_offset([chunk.meta]) or 0
        end = start + value(chunk.meta, ColumnMetaData.TOTAL_COMPRESSED_SIZE)
        while start < end:
            size, sealed, sizes, has_dictionary, count, plain_size = self._cipher.seal_pages(
                plain[start:end], ordinals, len(written.pages), self.size == written.start
            )
            for page_size in sizes:
                written.add(self.size, page_size, is_dictionary=has_dictionary)
                self.size += page_size
                has_dictionary = False
            self._write(sealed)
            written.plain_size += plain_size
            values += count
            start += size
        if values != value(chunk.meta, ColumnMetaData.NUM_VALUES):
            raise FormatError(f"the pages of column {chunk.column} have {values} values")
        return written

    def _page(self, page: Page, kinds: tuple[ModuleType, ModuleType], ordinals: bytes) -> bytes:
        """Write a page; return its new header."""
        stored_size = len(page.body) + _OVERHEAD
        page.header[PageHeader.COMPRESSED_PAGE_SIZE] = I32, stored_size
        page.header.pop(PageHeader.CRC, None)  # the tag replaces it
        header = print_struct(page.header)
        self._module(kinds[0], ordinals, header)
        self._module(kinds[1], ordinals, page.body)
        # The source may use the memory of the page again for the next one.
        self._seal()
        return header

    def _keep_indexes(
        self,
        source: ParquetSource,
        added: list[tuple[Chunk, bytes]],
        locations: list[list[tuple[int, int]]],
    ) -> None:
        """Keep the page indexes for the end of the file. The data pages have other places now."""
        for chunk, ordinals in added:
            if ColumnChunk.COLUMN_INDEX_OFFSET in chunk.fields:
                index = source.index(chunk, ModuleType.COLUMN_INDEX)
                self._indexes[ModuleType.COLUMN_INDEX].append((chunk.fields, ordinals, index))
        for (chunk, ordinals), of_chunk in zip(added, locations, strict=True):
            if ColumnChunk.OFFSET_INDEX_OFFSET in chunk.fields:
                fields, _ = parse(source.index(chunk, ModuleType.OFFSET_INDEX))
                indexed = value(fields, OffsetIndex.PAGE_LOCATIONS)[1]
                for location, (offset, size) in zip(indexed, of_chunk, strict=True):
                    location[PageLocation.OFFSET] = I64, offset
                    location[PageLocation.COMPRESSED_PAGE_SIZE] = I32, size
                index = print_struct(fields)
                self._indexes[ModuleType.OFFSET_INDEX].append((chunk.fields, ordinals, index))

    def _module(self, kind: ModuleType, ordinals: bytes, text: bytes | memoryview) -> int:
        """Add a module to the batch; return its size in the file."""
        size = len(text) + _OVERHEAD
        self._batch.append((kind, ordinals, text))
        self._batched_size += len(text)
        self.size += size
        if self._batched_size >= _BATCH_SIZE:
            self._seal()
        return size

    def _seal(self) -> None:
        """Seal the modules of the batch, and write them."""
        batch, self._batch, self._batched_size = self._batch, [], 0
        if batch:
            self._write(self._cipher.seal(batch))

    def _put(self, data: bytes) -> None:
        """Write what is no module."""
        self._write(data)
        self.size += len(data)


def first_offset(columns: list[Struct]) -> int | None:
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
    if start := first_offset(columns):
        group[RowGroup.FILE_OFFSET] = I64, start
    group[RowGroup.TOTAL_COMPRESSED_SIZE] = I64, sum(sizes)
    group[RowGroup.ORDINAL] = I16, number


def leaves(footer: Struct) -> Iterator[tuple[Struct, bool, bool]]:
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

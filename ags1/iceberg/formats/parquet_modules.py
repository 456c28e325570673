"""Reads a Parquet file module by module, and authenticates each module of an encrypted file.

This is an encrypted file as Iceberg writes it (Parquet's specification, "Parquet Modular
Encryption": AES_GCM_V1, an encrypted footer, one key). Each part in brackets is a module:

    PARE                                 the first 4 bytes
    [page header][page] ...              the column chunks, each with its dictionary page first
    [bloom filter header][bitset] ...
    [column index] ... [offset index] ...
    crypto metadata                      plaintext: the algorithm, and an id of this file
    [footer]                             the schema, and the offsets and sizes of all above
    length, PARE                         of the crypto metadata and the footer; 4 bytes each

    module  =  length (4)  nonce (12)  ciphertext  tag (16)
    its AAD =  AAD prefix  id of the file  module type (1)  row group (2)  column (2)  page (2)

So if a module is exchanged for another one, its tag does not verify. The AAD of a footer ends with
the module type, and only data pages and their headers have a page number. Nothing authenticates the
crypto metadata. If the id could have any length, it could end with the bytes that follow it in the
AAD of a page, and this page would verify as a footer. So the structure must be, byte for byte, the
one that we would print: see ``docs/design/0009-checked-is-read.md``.

An unencrypted file has the same parts without lengths, nonces and tags. It ends with its footer,
the footer's length and PAR1. The checksums of its pages are compared.

Decompresses nothing, and is independent of tables.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

from ...engine.geometry import trusted_length
from ...engine.key_metadata import KeyMetadata
from ...errors import Ags1Error, AuthenticationError, FormatError, NotEncryptedError, TruncatedError
from ..spec.constants import ENCRYPTED_PARQUET_MAGIC, PARQUET_MAGIC
from ._modules import ModuleCipher
from .parquet_fields import (
    FILE_METADATA_TYPES,
    AesGcmV1,
    BloomFilterHeader,
    ColumnChunk,
    ColumnCryptoMetaData,
    ColumnMetaData,
    DataPageHeader,
    DataPageHeaderV2,
    EncryptionAlgorithm,
    FileCryptoMetaData,
    FileMetaData,
    PageHeader,
    PageType,
    RowGroup,
)
from .thrift import BINARY, STRUCT, TRUE, Kept, Struct, parse, print_struct, value

Fetch: TypeAlias = "Callable[[int, int], bytes | memoryview]"

WINDOW_SIZE = 4 << 20
_LENGTH_SIZE = 4
_OVERHEAD = 12 + 16  # nonce and tag
_TAIL_SIZE = 64 << 10
_MAX_CRYPTO_SIZE = 256
_HEADER_SIZE = 16 << 10  # most page headers fit into this, with their statistics
FILE_ID_SIZE = 8
_WITH_FOOTER_KEY: tuple[int, Struct] = STRUCT, {ColumnCryptoMetaData.WITH_FOOTER_KEY: (STRUCT, {})}
_MAX_ORDINAL = 0x7FFF  # they are 16 bits with a sign

# What Python raises for fields that are missing or of another type.
_MALFORMED = (AttributeError, LookupError, OverflowError, RecursionError, TypeError, ValueError)


class ModuleType(IntEnum):
    """The specification's module types, which are part of each module's AAD."""

    FOOTER = 0
    DATA_PAGE = 2
    DICTIONARY_PAGE = 3
    DATA_PAGE_HEADER = 4
    DICTIONARY_PAGE_HEADER = 5
    COLUMN_INDEX = 6
    OFFSET_INDEX = 7
    BLOOM_FILTER_HEADER = 8
    BLOOM_FILTER_BITSET = 9

    def __str__(self) -> str:
        return self.name.lower().replace("_", " ")


# The field of a column chunk that has the offset of an index; the next field has its length.
INDEXES = {
    ModuleType.COLUMN_INDEX: ColumnChunk.COLUMN_INDEX_OFFSET,
    ModuleType.OFFSET_INDEX: ColumnChunk.OFFSET_INDEX_OFFSET,
}


@dataclass(frozen=True, slots=True)
class Chunk:
    """A column chunk. ``ordinals`` is the part of its modules' AAD for row group and column."""

    group: int
    column: int
    ordinals: bytes
    fields: Struct

    @property
    def meta(self) -> Struct:
        meta: Struct = value(self.fields, ColumnChunk.META_DATA)
        return meta


@dataclass(slots=True)
class Page:
    """A page of an open file. ``header_bytes`` is the encoded header, empty in an unencrypted file.
    ``body`` is compressed, and valid until the next page is read."""

    header: Struct
    header_bytes: bytes
    body: memoryview
    is_dictionary: bool = False


@dataclass(frozen=True, slots=True)
class VerifiedParquet:
    """The result of a verification: the number of ``rows`` in the footer, the number of ``modules``
    that verified, and ``padding_size``, the bytes that belong to no part and that no reader reads.

    ``plain_levels_size`` is the bytes of repetition and definition levels (which values are null,
    where lists begin) that are neither encrypted nor authenticated: Java encrypts only the values
    of pages of version 2. Arrow encrypts all of the page.
    """

    rows: int
    modules: int
    padding_size: int
    plain_levels_size: int


def verify_parquet(fetch: Fetch, actual_size: int, key_metadata: KeyMetadata) -> VerifiedParquet:
    """Authenticate every module of a file of ``actual_size`` bytes, also those that Arrow never
    reads: page indexes and bloom filters.

    ``fetch(offset, size)`` returns exactly those bytes of the file, or fewer at its end; the memory
    may be used again by its next call. Never decompresses, and holds no more than a page and 4 MiB.
    Raises AuthenticationError, TruncatedError, FormatError, NotEncryptedError for an unencrypted
    file, and MissingFileLengthError.
    """
    head = bytes(fetch(0, 4))
    if not ENCRYPTED_PARQUET_MAGIC.startswith(head):
        raise NotEncryptedError(
            "this file has a key, but does not begin as an encrypted Parquet file does"
        )
    source = ParquetSource(fetch, actual_size, key_metadata)
    with parsing():
        footer = source.footer()
        for chunk in chunks(footer):
            for _ in source.pages(chunk):
                pass
            for index, field_id in INDEXES.items():
                if field_id in chunk.fields:
                    source.index(chunk, index)
            if ColumnMetaData.BLOOM_FILTER_OFFSET in chunk.meta:
                source.bloom_filter(chunk)
        _, rows = footer[FileMetaData.NUM_ROWS]
    return VerifiedParquet(rows, source.modules, source.padding_size(), source.plain_levels_size)


def print_crypto_metadata(file_id: bytes, supplies_prefix: bool | None) -> bytes:
    """Return the structure before the footer. ``supplies_prefix`` says whether the reader has to
    know an AAD prefix; None leaves the field out, which means no."""
    algorithm: Struct = {AesGcmV1.AAD_FILE_UNIQUE: (BINARY, file_id)}
    if supplies_prefix is not None:
        algorithm[AesGcmV1.SUPPLY_AAD_PREFIX] = TRUE, supplies_prefix
    algorithms: Struct = {EncryptionAlgorithm.AES_GCM_V1: (STRUCT, algorithm)}
    return print_struct({FileCryptoMetaData.ENCRYPTION_ALGORITHM: (STRUCT, algorithms)})


@contextmanager
def parsing() -> Iterator[None]:
    """Turn the errors that missing fields and fields of another type cause into FormatError."""
    try:
        yield
    except Ags1Error:
        raise
    except (*_MALFORMED, struct.error):
        raise FormatError("the file's structure is not one that Parquet has") from None


def chunks(footer: Struct) -> Iterator[Chunk]:
    """Yield a file's column chunks, row group by row group."""
    for number, group in enumerate(value(footer, FileMetaData.ROW_GROUPS, (STRUCT, []))[1]):
        ordinal = value(group, RowGroup.ORDINAL, number)
        for column, fields in enumerate(value(group, RowGroup.COLUMNS)[1]):
            if value(fields, ColumnChunk.FILE_PATH):
                raise FormatError(f"column {column} lies in another file")
            yield Chunk(number, column, chunk_ordinals(ordinal, column), fields)


def _check_columns(footer: Struct) -> None:
    """Raise FormatError unless each column is in this file, under the footer's key."""
    for group in value(footer, FileMetaData.ROW_GROUPS, (STRUCT, []))[1]:
        for number, fields in enumerate(value(group, RowGroup.COLUMNS)[1]):
            if (
                fields.get(ColumnChunk.CRYPTO_METADATA) != _WITH_FOOTER_KEY
                or ColumnChunk.ENCRYPTED_COLUMN_METADATA in fields
                or value(fields, ColumnChunk.FILE_PATH)
            ):
                raise FormatError(
                    f"column {number} is not encrypted under the key of the footer, as all columns "
                    "of Iceberg's files are"
                )


def chunk_ordinals(group: int, column: int) -> bytes:
    """Return the part of the AAD of a module for its row group and column."""
    if group > _MAX_ORDINAL or column > _MAX_ORDINAL:
        raise FormatError("more row groups or columns than an encrypted Parquet file can have")
    return struct.pack("<HH", group, column)


def page_modules(
    ordinals: bytes, number: int | None
) -> tuple[tuple[ModuleType, ModuleType], bytes]:
    """Return the types of a page's two modules, and the part of their AAD for their place.
    ``ordinals`` is that of the column chunk. ``number`` is None for a dictionary page."""
    if number is None:
        return (ModuleType.DICTIONARY_PAGE_HEADER, ModuleType.DICTIONARY_PAGE), ordinals
    if number > _MAX_ORDINAL:
        raise FormatError("a column has more pages than an encrypted Parquet file can number")
    kinds = ModuleType.DATA_PAGE_HEADER, ModuleType.DATA_PAGE
    return kinds, ordinals + struct.pack("<H", number)


class ParquetSource:
    """A Parquet file to be read module by module, encrypted or, without ``km``, unencrypted.
    Offsets and lengths are checked before they are used. ``modules`` and ``plain_levels_size``
    count what was read. Use it only inside ``parsing``, which converts its errors."""

    def __init__(self, fetch: Fetch, actual_size: int, key_metadata: KeyMetadata | None) -> None:
        self._fetch = fetch
        self._km = key_metadata
        self._size = actual_size
        if key_metadata is not None:
            self._size = trusted_length(actual_size, key_metadata, trust_file_size=False)
        self.cipher: ModuleCipher | None = None
        self.footer_text: bytes = b""
        self._window = memoryview(b"")
        self._window_start = 0
        self._covered: list[tuple[int, int]] = []
        self.modules = 0
        self.plain_levels_size = 0

    def footer(self) -> Struct:
        """Return the file's metadata. Raises FormatError unless it is a whole Parquet file."""
        footer, end = self.read_end()
        # This is read last, because the pages that are read next follow it in the file.
        magic = PARQUET_MAGIC if self._km is None else ENCRYPTED_PARQUET_MAGIC
        if self._take(0, 4) != magic:
            raise FormatError("this file does not begin as a Parquet file does", offset=0)
        self._covered += [(0, 4), (self._size - len(end), self._size)]
        return footer

    def read_end(self, kept: Kept | None = None) -> tuple[Struct, bytes]:
        """Return what is ``kept`` of the file's metadata, and the end of the file from which it was
        parsed. Of an encrypted file, it is authentic, and all columns are encrypted under the
        footer's key."""
        if self._km is None:
            end = self._end(PARQUET_MAGIC)
            text = end[:-8]
        else:
            end = self._end(ENCRYPTED_PARQUET_MAGIC)
            # What follows is read from these bytes alone.
            self._window, self._window_start = memoryview(end), self._size - len(end)
            at = self._window_start + self._read_crypto_metadata(end)
            text, stop = self._open(at, ModuleType.FOOTER, b"", self._size - 8)
            if stop != self._size - 8:
                raise FormatError("the footer is not as long as the file's end says", offset=at)
        footer, _ = parse(text, FILE_METADATA_TYPES, kept)
        self.footer_text = text
        if FileMetaData.ENCRYPTION_ALGORITHM in footer:
            raise FormatError("a Parquet file with keys of its own, which Iceberg's never have")
        if self._km is not None:
            _check_columns(footer)
        return footer, end

    def _read_crypto_metadata(self, end: bytes) -> int:
        """Check the structure, and take the file's part of the AAD from it. Return its size."""
        assert self._km is not None
        crypto, size = parse(end[:_MAX_CRYPTO_SIZE])
        algorithms = value(crypto, FileCryptoMetaData.ENCRYPTION_ALGORITHM)
        algorithm = value(algorithms, EncryptionAlgorithm.AES_GCM_V1)
        if algorithm is None:
            raise AuthenticationError(
                "the file has its pages read without authenticating them (it does not say "
                "AES_GCM_V1), which Iceberg forbids: it was changed"
            )
        file_id = value(algorithm, AesGcmV1.AAD_FILE_UNIQUE)
        if len(file_id) != FILE_ID_SIZE:
            raise FormatError(
                f"the id of the file in its AAD has {len(file_id)} bytes, not {FILE_ID_SIZE}: "
                "somebody has changed it, or an unknown program wrote the file"
            )
        aad_prefix = self._km.aad_prefix or b""
        supplies = value(algorithm, AesGcmV1.SUPPLY_AAD_PREFIX)
        # The id, the flag if there is a prefix, each once, and nothing else: no stored prefix.
        structure = print_crypto_metadata(file_id, supplies)
        if bool(supplies) != bool(aad_prefix) or not end.startswith(structure):
            raise FormatError(
                "the structure before the footer is not as Iceberg's writers make it: somebody has "
                "changed it, or an unknown program wrote the file"
            )
        self.cipher = ModuleCipher(self._km.encryption_key, aad_prefix + file_id)
        return size

    def _end(self, magic: bytes) -> bytes:
        """Return the file's end, from the footer or the crypto metadata before it on."""
        if self._size < 12:
            raise FormatError("too short for a Parquet file", offset=0)
        # The whole footer of most files fits into this.
        size = min(self._size, _TAIL_SIZE)
        end = self._take(self._size - size, size)
        if end[-4:] != magic:
            if end[-4:] == PARQUET_MAGIC:
                raise NotEncryptedError("this file has a key, but is an unencrypted Parquet file")
            raise FormatError(
                f"this file does not end with {magic.decode()}", offset=self._size - 4
            )
        last = bytes(end[-8:])
        length = int.from_bytes(last[:4], "little") + 8
        if length > self._size - 4:
            raise FormatError("the footer's length is impossible", offset=self._size - 8)
        if length > size:
            end = self._take(self._size - length, length)
            if end[-8:] != last:
                raise TruncatedError("the file changed while it was read", offset=self._size - 8)
        return bytes(end[-length:])

    def pages(self, chunk: Chunk) -> Iterator[Page]:
        """Yield a column chunk's pages in order. Raises FormatError unless they have as many values
        as the footer says."""
        meta = chunk.meta
        start = value(meta, ColumnMetaData.DATA_PAGE_OFFSET)
        dictionary = value(meta, ColumnMetaData.DICTIONARY_PAGE_OFFSET, 0)
        # If a column has no data pages, Arrow says that they begin at 0. It may have a dictionary.
        may_be_dictionary = dictionary > 0 and (dictionary < start or start == 0)
        if may_be_dictionary:
            start = dictionary
        # Some writers write a dictionary first and do not say so.
        elif self._km is None:
            may_be_dictionary = True
        offset, end = start, start + value(meta, ColumnMetaData.TOTAL_COMPRESSED_SIZE)
        values = number = 0
        while offset < end:
            if self._km is None:
                page, offset = self._plain_page(offset)
            else:
                data_page = None if may_be_dictionary else number
                page, offset = self._encrypted_page(chunk, offset, end, data_page)
            kind = value(page.header, PageHeader.TYPE)
            if kind == PageType.DICTIONARY_PAGE and may_be_dictionary:
                page.is_dictionary = True
                yield page
            elif kind in (PageType.DATA_PAGE, PageType.DATA_PAGE_V2):
                number += 1
                # NUM_VALUES is field 1 in the headers of both versions.
                is_v2 = kind == PageType.DATA_PAGE_V2
                details = PageHeader.DATA_PAGE_HEADER_V2 if is_v2 else PageHeader.DATA_PAGE_HEADER
                values += value(value(page.header, details), DataPageHeader.NUM_VALUES)
                yield page
            elif self._km is not None:
                raise FormatError(f"column {chunk.column} has a page of an unknown type")
            may_be_dictionary = False
        if values != value(meta, ColumnMetaData.NUM_VALUES) or offset != end:
            raise FormatError(
                f"the pages of column {chunk.column} have {values} values and end at byte {offset},"
                " which is not what the footer says",
                offset=start,
            )
        self._covered.append((start, end))

    def index(self, chunk: Chunk, kind: ModuleType) -> bytes:
        """Return one of the two ``INDEXES`` of a column chunk."""
        offset, length = value(chunk.fields, INDEXES[kind]), value(chunk.fields, INDEXES[kind] + 1)
        if self._km is None:
            return bytes(self._take(offset, length))
        text, end = self._open(offset, kind, chunk.ordinals, self._size)
        if end - offset != length:
            raise AuthenticationError(
                f"the {kind} is not as long as the footer says: the file was changed", offset=offset
            )
        self._covered.append((offset, end))
        return text

    def bloom_filter(self, chunk: Chunk) -> tuple[bytes, bytes]:
        """Return the header and the bits of a column chunk's bloom filter."""
        offset = value(chunk.meta, ColumnMetaData.BLOOM_FILTER_OFFSET)
        if self._km is None:
            header, at = self._plain_header(offset)
            bits = bytes(self._take(at, value(header, BloomFilterHeader.NUM_BYTES)))
            return bytes(self._take(offset, at - offset)), bits
        kinds = ModuleType.BLOOM_FILTER_HEADER, ModuleType.BLOOM_FILTER_BITSET
        text, at = self._open(offset, kinds[0], chunk.ordinals, self._size)
        bits, end = self._open(at, kinds[1], chunk.ordinals, self._size)
        self._covered.append((offset, end))
        return text, bits

    def padding_size(self) -> int:
        """Return the number of bytes of the file that belong to no part that was read."""
        padding, end = self._size, 0
        for start, stop in sorted(self._covered):
            padding -= max(0, stop - max(start, end))
            end = max(end, stop)
        return padding

    # The methods below return what they read, and where it ends.

    def _plain_page(self, offset: int) -> tuple[Page, int]:
        header, offset = self._plain_header(offset)
        size = value(header, PageHeader.COMPRESSED_PAGE_SIZE)
        if size < 0:
            raise FormatError("a page's length is impossible", offset=offset)
        body = self._take(offset, size)
        crc = value(header, PageHeader.CRC)
        if crc is not None and crc & 0xFFFFFFFF != zlib.crc32(body):
            raise FormatError("a page's checksum is wrong: the file was changed", offset=offset)
        return Page(header, b"", body), offset + size

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

    def _encrypted_page(
        self, chunk: Chunk, offset: int, limit: int, number: int | None
    ) -> tuple[Page, int]:
        """``number`` is that of a data page; a dictionary page has none."""
        kinds, ordinals = page_modules(chunk.ordinals, number)
        text, offset = self._open(offset, kinds[0], ordinals, limit)
        header, _ = parse(text)
        stated, levels = value(header, PageHeader.COMPRESSED_PAGE_SIZE), b""
        v2 = value(header, PageHeader.DATA_PAGE_HEADER_V2)
        if v2 is not None and self._module_size(offset) != stated:
            # In Java's pages of version 2, the levels come first and are unencrypted.
            levels_size = value(v2, DataPageHeaderV2.DEFINITION_LEVELS_SIZE)
            levels_size += value(v2, DataPageHeaderV2.REPETITION_LEVELS_SIZE)
            levels = bytes(self._take(offset, levels_size))
            self.plain_levels_size += levels_size
            offset += levels_size
        if len(levels) + self._module_size(offset) != stated:
            raise AuthenticationError(
                "a page is not as long as its header says: the file was changed", offset=offset
            )
        body, end = self._open(offset, kinds[1], ordinals, limit)
        return Page(header, text, memoryview(levels + body)), end

    def _module_size(self, offset: int) -> int:
        """Return the size of a module, its length field included."""
        return _LENGTH_SIZE + int.from_bytes(self._take(offset, _LENGTH_SIZE), "little")

    def _open(
        self, offset: int, kind: ModuleType, ordinals: bytes, limit: int
    ) -> tuple[bytes, int]:
        """Return the plaintext of a module, and where the module ends: at ``limit`` or before."""
        assert self.cipher is not None
        size = self._module_size(offset)
        if size < _LENGTH_SIZE + _OVERHEAD or offset + size > limit:
            raise AuthenticationError(
                f"the {kind}'s length is impossible: the file was changed", offset=offset
            )
        try:
            text = self.cipher.open(kind, ordinals, self._take(offset, size))
        except AuthenticationError:
            raise AuthenticationError(
                f"the {kind} does not verify: wrong key, or the file was changed", offset=offset
            ) from None
        self.modules += 1
        return text, offset + size

    def _take(self, offset: int, size: int) -> memoryview:
        begin = offset - self._window_start
        if size < 0 or begin < 0 or begin + size > len(self._window):
            if offset < 0 or size < 0 or offset + size > self._size:
                raise FormatError("the file points outside itself", offset=self._size)
            wanted = max(size, min(WINDOW_SIZE, self._size - offset))
            self._window = memoryview(self._fetch(offset, wanted))
            self._window_start, begin = offset, 0
            if len(self._window) < wanted:
                raise TruncatedError("the file became shorter while it was read", offset=offset)
        return self._window[begin : begin + size]

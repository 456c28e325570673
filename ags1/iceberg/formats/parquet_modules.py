"""Parquet modular encryption, every module of a file authenticated, and nothing decoded.

Arrow checks the modules that a read needs; a file is whole when all of them verify, the page
indexes and bloom filters too, which Arrow may never look at. Follows the Parquet specification,
"Parquet Modular Encryption", for files as Iceberg writes them: AES_GCM_V1, an encrypted footer, one
key. Knows nothing of tables, nor of what is in a page.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from ..._messages import open as open_sealed
from ...errors import AuthenticationError, FormatError, NotEncryptedError, TruncatedError
from ...geometry import trusted_length
from ...key_metadata import KeyMetadata
from ..spec.constants import ENCRYPTED_PARQUET_MAGIC, PARQUET_MAGIC
from . import thrift

Fetch: TypeAlias = "Callable[[int, int], bytes | memoryview]"
Struct: TypeAlias = "dict[int, Any]"


# What comes of fields that are missing or of another type.
_MALFORMED = (AttributeError, IndexError, KeyError, TypeError, struct.error, RecursionError)
_LENGTH_SIZE = 4
_OVERHEAD = 12 + 16  # nonce and tag
WINDOW_SIZE = 4 << 20
_MAX_CRYPTO_SIZE = 64 << 10
_TAIL_SIZE = 64 << 10

# The module types of the specification, which stand in each module's AAD.
_FOOTER, _PAGE, _DICTIONARY, _PAGE_HEADER, _DICTIONARY_HEADER = 0, 2, 3, 4, 5
_COLUMN_INDEX, _OFFSET_INDEX, _BLOOM_HEADER, _BLOOM_BITSET = 6, 7, 8, 9
_NAMES = {
    _FOOTER: "footer",
    _PAGE: "page",
    _DICTIONARY: "dictionary page",
    _PAGE_HEADER: "page header",
    _DICTIONARY_HEADER: "dictionary page header",
    _COLUMN_INDEX: "column index",
    _OFFSET_INDEX: "offset index",
    _BLOOM_HEADER: "bloom filter header",
    _BLOOM_BITSET: "bloom filter",
}


@dataclass(frozen=True, slots=True)
class VerifiedParquet:
    """``rows`` as the footer counts them and ``modules`` that verified.

    ``padding_size`` is the bytes of the file that belong to nothing, and that no reader reads.
    ``plain_levels_size`` is the bytes of repetition and definition levels (which values are null,
    where lists begin) that are in the clear and under no tag: Java encrypts only the values of
    pages of version 2. Arrow encrypts all of the page.
    """

    rows: int
    modules: int
    padding_size: int
    plain_levels_size: int


def verify_parquet(fetch: Fetch, actual_size: int, km: KeyMetadata) -> VerifiedParquet:
    """Authenticate every module of a file of ``actual_size`` bytes.

    ``fetch(offset, size)`` returns exactly those bytes of the file, or fewer at its end; the memory
    may be used again by its next call. Never decompresses, and holds no more than a page and 4 MiB.
    Raises AuthenticationError, TruncatedError, FormatError, NotEncryptedError for a file in the
    clear, and MissingFileLengthError.
    """
    head = bytes(fetch(0, 4))
    if not ENCRYPTED_PARQUET_MAGIC.startswith(head):
        raise NotEncryptedError(
            "this file has a key, and does not begin as an encrypted Parquet file does"
        )
    size = trusted_length(actual_size, km, trust_file_size=False)
    try:
        return _File(fetch, size, km).verify()
    except _MALFORMED:
        raise FormatError("the file's structure is not one that Parquet has") from None


def check_algorithm(fetch: Fetch, actual_size: int, km: KeyMetadata) -> None:
    """Refuse a file that has another reader decrypt its pages without authenticating them.

    What says how the pages are encrypted stands before the footer, in the clear and under no tag:
    whoever can write the file can have AES_GCM_V1 read as AES_GCM_CTR_V1, and Arrow obeys.
    Arguments and errors as for ``verify_parquet``.
    """
    size = trusted_length(actual_size, km, trust_file_size=False)
    try:
        _File(fetch, size, km).crypto_metadata()
    except _MALFORMED:
        raise FormatError("the file's structure is not one that Parquet has") from None


class _File:
    def __init__(self, fetch: Fetch, size: int, km: KeyMetadata) -> None:
        self._fetch = fetch
        self._size = size
        self._key = km.encryption_key
        self._aad_prefix = km.aad_prefix or b""
        self._file_aad = b""
        self._window: memoryview = memoryview(b"")
        self._window_start = 0
        self._modules = 0
        self._plain_levels_size = 0
        self._covered: list[tuple[int, int]] = []

    def verify(self) -> VerifiedParquet:
        footer = self._footer()
        for number, group in enumerate(footer.get(4, ())):
            ordinal = group.get(7, number)
            for column, chunk in enumerate(group[1]):
                self._column(chunk, ordinal, column)
        padding_size = self._size - self._covered_size()
        return VerifiedParquet(footer[3], self._modules, padding_size, self._plain_levels_size)

    def crypto_metadata(self) -> tuple[int, int]:
        """Check the structure before the footer; return where it begins and where it ends."""
        if self._size < 12:
            raise FormatError("too short for an encrypted Parquet file", offset=0)
        # The footer of most files lies in it, whole.
        self._take(max(0, self._size - _TAIL_SIZE), min(self._size, _TAIL_SIZE))
        tail = bytes(self._take(self._size - 8, 8))
        if tail[4:] == PARQUET_MAGIC:
            raise NotEncryptedError("this file has a key, and is a Parquet file in the clear")
        if tail[4:] != ENCRYPTED_PARQUET_MAGIC:
            raise FormatError("not the end of an encrypted Parquet file", offset=self._size - 4)
        length = int.from_bytes(tail[:4], "little")
        start = self._size - 8 - length
        if start < 4:
            raise FormatError("the footer's length is impossible", offset=self._size - 8)
        # Its length is anybody's: no more is read than such a structure can have.
        crypto, end = _parse(bytes(self._take(start, min(length, _MAX_CRYPTO_SIZE))))
        self._algorithm(crypto)
        return start, start + end

    def _footer(self) -> Struct:
        start, end = self.crypto_metadata()
        self._cover(0, 4)
        if end + self._length(end) != self._size - 8:
            raise FormatError("the footer is not as long as the file's end says", offset=start)
        footer = self._open(end, _FOOTER, b"", self._size - 8)
        self._cover(start, self._size)
        return _parse(footer)[0]

    def _algorithm(self, crypto: Struct) -> None:
        """Take the file's part of the AAD. None of this is authenticated, but what follows is."""
        algorithm = crypto[1].get(1)
        if algorithm is None:
            raise AuthenticationError(
                "the file has its pages read without authenticating them (it does not say "
                "AES_GCM_V1), which Iceberg forbids: it was changed"
            )
        if algorithm.get(1, self._aad_prefix) != self._aad_prefix:
            raise FormatError("the AAD prefix in the file is not that of its key metadata")
        if 1 not in algorithm and self._aad_prefix and not algorithm.get(3, False):
            raise FormatError("the file does not say that its AAD prefix is supplied")
        self._file_aad = self._aad_prefix + algorithm[2]

    def _column(self, chunk: Struct, group: int, column: int) -> None:
        if 2 in chunk.get(8, {}):
            raise FormatError(f"column {column} has a key of its own, which Iceberg's never have")
        place = struct.pack("<HH", group, column)
        facts = chunk[3]
        self._pages(facts, place)
        if 4 in chunk:
            self._index(chunk[4], chunk.get(5), _OFFSET_INDEX, place)
        if 6 in chunk:
            self._index(chunk[6], chunk.get(7), _COLUMN_INDEX, place)
        if 14 in facts:
            end = self._module(facts[14], _BLOOM_HEADER, place)
            self._module(end, _BLOOM_BITSET, place)

    def _pages(self, facts: Struct, place: bytes) -> None:
        start, values = facts[9], 0
        # Of a column without pages Arrow says that its data begins at 0.
        dictionary = facts.get(11, 0)
        has_dictionary = dictionary > 0 and (dictionary < start or start == 0)
        if has_dictionary:
            start = facts[11]
        offset, end, page = start, start + facts[7], 0
        while offset < end:
            if has_dictionary:
                kinds, ordinal = (_DICTIONARY_HEADER, _DICTIONARY), b""
            else:
                kinds, ordinal = (_PAGE_HEADER, _PAGE), struct.pack("<H", page)
                page += 1
            header = _parse(self._open(offset, kinds[0], place + ordinal, end))[0]
            offset += self._length(offset)
            offset = self._page(offset, header, kinds[1], place + ordinal, end)
            if not has_dictionary:
                values += (header.get(5) or header[8])[1]
            has_dictionary = False
        if values != facts[5]:
            raise FormatError(
                f"a column's pages have {values} values, not {facts[5]}", offset=start
            )
        self._cover(start, end)

    def _page(self, offset: int, header: Struct, kind: int, place: bytes, limit: int) -> int:
        """Verify what follows a page's header; return where it ends."""
        size, levels_size = self._length(offset), 0
        if size != header[3] and 8 in header:
            # Java's page of version 2: the levels first, as they are.
            levels_size = header[8][5] + header[8][6]
            self._plain_levels_size += levels_size
            offset += levels_size
            size = self._length(offset)
        if levels_size + size != header[3]:
            raise AuthenticationError(
                "a page is not as long as its header says: the file was changed", offset=offset
            )
        self._open(offset, kind, place, limit)
        return offset + size

    def _index(self, offset: int, length: int | None, kind: int, place: bytes) -> None:
        if self._module(offset, kind, place) - offset != length:
            raise AuthenticationError(
                f"the {_NAMES[kind]} is not as long as the footer says: the file was changed",
                offset=offset,
            )

    def _module(self, offset: int, kind: int, place: bytes) -> int:
        """Verify a module that stands alone; return where it ends."""
        self._open(offset, kind, place, self._size)
        end = offset + self._length(offset)
        self._cover(offset, end)
        return end

    def _length(self, offset: int) -> int:
        """Return the size of a module, its length field included."""
        return _LENGTH_SIZE + int.from_bytes(self._take(offset, _LENGTH_SIZE), "little")

    def _open(self, offset: int, kind: int, place: bytes, limit: int) -> bytes:
        size = self._length(offset)
        if size < _LENGTH_SIZE + _OVERHEAD or offset + size > limit:
            raise AuthenticationError(
                f"the {_NAMES[kind]}'s length is impossible: the file was changed", offset=offset
            )
        aad = self._file_aad + bytes([kind]) + place
        self._modules += 1
        sealed = self._take(offset + _LENGTH_SIZE, size - _LENGTH_SIZE)
        try:
            return open_sealed(self._key, sealed, aad)
        except (AuthenticationError, ValueError):
            raise AuthenticationError(
                f"the {_NAMES[kind]} does not verify: wrong key, or the file was changed",
                offset=offset,
            ) from None

    def _take(self, offset: int, size: int) -> memoryview:
        begin = offset - self._window_start
        if begin < 0 or begin + size > len(self._window):
            if offset < 0 or offset + size > self._size:
                raise FormatError("the footer points outside the file", offset=self._size)
            wanted = max(size, min(WINDOW_SIZE, self._size - offset))
            self._window = memoryview(self._fetch(offset, wanted))
            self._window_start, begin = offset, 0
            if len(self._window) < wanted:
                raise TruncatedError("the file became shorter while it was read", offset=offset)
        return self._window[begin : begin + size]

    def _cover(self, start: int, end: int) -> None:
        self._covered.append((start, end))

    def _covered_size(self) -> int:
        total = last = 0
        for start, end in sorted(self._covered):
            total += max(0, end - max(start, last))
            last = max(last, end)
        return total


def _parse(data: bytes) -> tuple[Struct, int]:
    """Parse a struct of Thrift's compact protocol; return it by field id, and where it ends."""
    fields, end = thrift.parse(data)
    return thrift.untyped(thrift.STRUCT, fields), end

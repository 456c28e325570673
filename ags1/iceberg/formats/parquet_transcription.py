"""Encrypts a Parquet file under another key, page by page, and sums up what was written.

``parquet_encryption`` says what changes. Independent of tables.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from ...engine._gcm import Checksum
from ...engine.key_metadata import KeyMetadata
from ...errors import FormatError
from .parquet_encryption import ParquetEncryptor, Write, first_offset, leaves
from .parquet_fields import ColumnMetaData, FileMetaData, RowGroup, SchemaElement
from .parquet_modules import Chunk, Fetch, ParquetSource, chunks, parsing
from .thrift import STRUCT, Struct, value


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
        tally = _Tally(footer, checksum)
        encryptor = ParquetEncryptor(write, key_metadata)
        encryptor.add(source, footer, tally=tally)
        encryptor.close()
        return tally.contents(encryptor.size)


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
        self._field_ids = [value(leaf, SchemaElement.FIELD_ID) for leaf, _, _ in leaves(footer)]
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
        if start := first_offset([chunk.meta]):
            self._splits[chunk.group] = min(self._splits.get(chunk.group, start), start)

    def contents(self, size: int) -> ParquetContents:
        splits = tuple(sorted(self._splits.values()))
        return ParquetContents(
            size, self._rows, self._checksum.finish(), self._column_sizes, splits
        )

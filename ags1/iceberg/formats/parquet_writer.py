"""Writes rows as an encrypted Parquet file. Arrow encodes them, and never holds a key.

    write_table()   of each row group, Arrow makes an unencrypted file in memory, whose modules are
                    encrypted
    close()         one footer for all of them

Independent of tables.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ...engine.key_metadata import KeyMetadata
from .parquet_encryption import ParquetEncryptor, Write
from .parquet_fields import FileMetaData, LogicalType, SchemaElement, VariantType
from .parquet_modules import ParquetSource, parsing
from .thrift import BYTE, STRUCT, Struct, value

_MAX_GROUP_ROWS = 1 << 20
_VARIANT_VERSION = 1


class EncryptedParquetWriter:
    """An encrypted file under ``key_metadata``, a fresh key. ``write`` takes its bytes in their
    order.

    ``schema`` and ``options`` are as in ``pyarrow.parquet.ParquetWriter``. Fields whose ids are
    in ``variants`` are annotated as variants: Arrow writes their groups, but no class of Python's
    makes it write their logical type, by which readers know them. One thread at a time may use it.
    Raises KeyReuseError for a used key and in a forked child, FormatError for more row groups or
    pages than an encrypted file can have, and what pyarrow raises.
    """

    def __init__(
        self,
        write: Write,
        key_metadata: KeyMetadata,
        schema: pa.Schema,
        *,
        variants: AbstractSet[int] = frozenset(),
        **options: Any,
    ) -> None:
        self._encryptor = ParquetEncryptor(write, key_metadata)
        self._schema = schema
        self._variants = variants
        # Pages of version 2 would become pages of version 1.
        self._options = options | {"data_page_version": "1.0"}

    @property
    def size(self) -> int:
        """The size of what was written so far, in bytes."""
        return self._encryptor.size

    def write_table(self, rows: pa.Table, row_group_size: int | None = None) -> None:
        """Write rows in row groups of at most so many rows, by default of 1,048,576, which is also
        Arrow's limit."""
        size = min(row_group_size or _MAX_GROUP_ROWS, _MAX_GROUP_ROWS)
        for start in range(0, max(1, rows.num_rows), size):
            self._write_group(rows.slice(start, size))

    def _write_group(self, rows: pa.Table) -> None:
        memory = _Memory()
        writer = pq.ParquetWriter(memory, self._schema, **self._options)
        try:
            writer.write_table(rows, row_group_size=_MAX_GROUP_ROWS)
            writer.close()
        except BaseException:
            with suppress(Exception):
                writer.close()
            raise
        plain = memoryview(memory.data)
        source = ParquetSource(lambda offset, size: plain[offset : offset + size], len(plain), None)
        with parsing():
            self._encryptor.add(source, source.footer(), memory=plain)

    def close(self) -> pq.FileMetaData:
        """Complete the file and return its footer."""
        if not self._encryptor.footer:
            self.write_table(self._schema.empty_table())
        with parsing():
            _annotate(self._encryptor.footer, self._variants)
            footer = self._encryptor.close()
        end = b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1"
        return pq.read_metadata(pa.BufferReader(end))


class _Memory:
    """What Arrow writes. Arrow's own buffer would take up to twice its size while it grows."""

    closed = False

    def __init__(self) -> None:
        self.data = bytearray()

    def write(self, data: bytes) -> None:
        self.data += data

    def tell(self) -> int:
        return len(self.data)

    def flush(self) -> None:
        pass


def _annotate(footer: Struct, variants: AbstractSet[int]) -> None:
    variant: Struct = {VariantType.SPECIFICATION_VERSION: (BYTE, _VARIANT_VERSION)}
    logical: Struct = {LogicalType.VARIANT: (STRUCT, variant)}
    for element in value(footer, FileMetaData.SCHEMA)[1]:
        if value(element, SchemaElement.FIELD_ID) in variants:
            element[SchemaElement.LOGICAL_TYPE] = STRUCT, logical

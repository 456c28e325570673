"""Annotates the variants in the footer of an encrypted Parquet file that is being written.

Arrow writes the groups of variants, but no class of Python's makes it write their logical type.
Readers know a variant by it. So the end of the file is held back until it is complete, and the
footer in it is replaced. Nothing before the footer changes. ``parquet_modules`` has a drawing of
the file.
"""

from __future__ import annotations

import struct
from typing import BinaryIO

from ...engine._messages import open as open_sealed
from ...engine._messages import seal
from ...engine.key_metadata import KeyMetadata
from ..spec.constants import ENCRYPTED_PARQUET_MAGIC
from .parquet_fields import (
    AesGcmV1,
    EncryptionAlgorithm,
    FileCryptoMetaData,
    FileMetaData,
    LogicalType,
    SchemaElement,
    VariantType,
)
from .parquet_modules import ModuleType
from .thrift import BYTE, STRUCT, Struct, parse, print_struct, value

_VERSION = 1


class AnnotatedFile:
    """The file that Arrow writes. ``finish`` writes what came after ``hold``, with the fields of
    these ids annotated. Does not close ``file``."""

    closed = False

    def __init__(
        self, file: BinaryIO, key_metadata: KeyMetadata, field_ids: frozenset[int]
    ) -> None:
        self._file = file
        self._km = key_metadata
        self._field_ids = field_ids
        self._end: bytearray | None = None

    def write(self, data: bytes) -> None:
        if self._end is None:
            self._file.write(data)
        else:
            self._end += data

    def tell(self) -> int:
        return self._file.tell() + len(self._end or b"")

    def flush(self) -> None:
        pass

    def hold(self) -> None:
        self._end = bytearray()

    def finish(self) -> None:
        assert self._end is not None
        data, self._end = bytes(self._end), None
        start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
        self._file.write(data[:start])
        self._file.write(_annotated(data[start:-8], self._km, self._field_ids))


def _annotated(end: bytes, key_metadata: KeyMetadata, field_ids: frozenset[int]) -> bytes:
    """Return the end of a file from its crypto metadata on. ``end`` is that of Arrow, without the
    last 8 bytes."""
    crypto, size = parse(end)
    algorithms = value(crypto, FileCryptoMetaData.ENCRYPTION_ALGORITHM)
    file_id = value(value(algorithms, EncryptionAlgorithm.AES_GCM_V1), AesGcmV1.AAD_FILE_UNIQUE)
    aad = (key_metadata.aad_prefix or b"") + file_id + bytes([ModuleType.FOOTER])
    footer, _ = parse(open_sealed(key_metadata.encryption_key, end[size + 4 :], aad))
    variant: Struct = {VariantType.SPECIFICATION_VERSION: (BYTE, _VERSION)}
    for element in value(footer, FileMetaData.SCHEMA)[1]:
        if value(element, SchemaElement.FIELD_ID) in field_ids:
            logical: Struct = {LogicalType.VARIANT: (STRUCT, variant)}
            element[SchemaElement.LOGICAL_TYPE] = STRUCT, logical
    sealed = seal(key_metadata.encryption_key, print_struct(footer), aad)
    made = end[:size] + struct.pack("<I", len(sealed)) + sealed
    return made + struct.pack("<I", len(made)) + ENCRYPTED_PARQUET_MAGIC

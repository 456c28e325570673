"""Encrypted Parquet files outside tables, as pyarrow and parquet-java read and write them.

Each file has a key of its own, which is wrapped and kept beside the file in a sidecar, or given to
the caller. ``open`` shows the plaintext: pyarrow, pandas, Polars and DuckDB read it with their own
Parquet readers, and no key is given to them. Needs pyarrow, which is optional.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from .engine.key_metadata import KeyMetadata
from .engine.source import open_source
from .errors import NotEncryptedError
from .files.fsspec.options import KeyOptions
from .files.sidecars import OldKeys, check_link, publish_pair
from .host.atomic import StagedFile
from .host.regular_file import regular_file
from .iceberg.formats.parquet_view import ParquetView, PlainParquet
from .iceberg.formats.parquet_writer import EncryptedParquetWriter
from .keys.keychain import FILE_KEY_SIZE
from .keys.sidecar import ENCRYPTED_PARQUET_MAGIC, sidecar_beside

__all__ = ["open", "write_table"]


def write_table(
    table: pa.Table,
    path: str | os.PathLike[str],
    *,
    row_group_size: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> KeyMetadata:
    """Write ``table`` as an encrypted Parquet file on this machine, and its wrapped key beside it.

    The file has a fresh key of 32 bytes. It and its sidecar ``PATH.keys`` take the place of
    those that are there, and appear whole. Returns the key metadata, with which ``open`` and other
    libraries read the file without the sidecar: its key is the footer's, for all columns.
    ``row_group_size`` (rows) and ``options`` are those of ``pyarrow.parquet.write_table``.
    ``storage_options`` name the KMS, as for ``ags1::`` (``Ags1FileSystem``). Raises KmsError,
    KmsConfigurationError, OSError and what pyarrow raises.
    """
    keychain = KeyOptions(storage_options or {}).keychain(sealing=True)
    keychain.prepare()
    target, sidecar_file = os.path.realpath(path), sidecar_beside(os.fspath(path))
    check_link(os.fspath(path), sidecar_file)
    staged = StagedFile(target, overwrite=True)
    try:
        km = KeyMetadata.generate(FILE_KEY_SIZE)
        writer = EncryptedParquetWriter(staged.write, km, table.schema, **options)
        writer.write_table(table, row_group_size)
        writer.close()
        km = km.with_file_length(writer.size)
        staged.commit()
        sidecar = keychain.seal(km, staged.temporary)
        old_keys = OldKeys.RETIRE if os.path.exists(target) else OldKeys.KEEP
        publish_pair(staged.temporary, target, sidecar, sidecar_file, old_keys)
    finally:
        staged.discard()
    return km


def open(
    path: str | os.PathLike[str],
    key_metadata: KeyMetadata | None = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
) -> PlainParquet:
    """Open an encrypted Parquet file on this machine as the plaintext that other libraries read::

        with ags1.parquet.open("trips.parquet") as file:
            rows = pyarrow.parquet.read_table(file, columns=["fare"])

    A column chunk is decrypted when a reader first asks for a part of it, and shown only after all
    of its pages are verified. ``key_metadata`` opens it; without one, the sidecar beside the file
    has the key, and ``storage_options`` name the KMS. The file must be as long as the key metadata
    says. Raises NotEncryptedError for an unencrypted file, AuthenticationError, TruncatedError,
    FormatError, MissingFileLengthError, KmsError, KeyMetadataError and OSError.
    """
    name = os.fspath(path)
    if key_metadata is None:
        keychain = KeyOptions(storage_options or {}).keychain()
        key_metadata = keychain.open(sidecar_beside(name), name)
    with regular_file(name) as stored:
        source, _ = open_source(stored)
    try:
        if bytes(source.fetch(0, 4, memoryview(bytearray(4)))) != ENCRYPTED_PARQUET_MAGIC:
            raise NotEncryptedError("this is not an encrypted Parquet file", file=name)
        return PlainParquet(ParquetView(source, key_metadata))
    except BaseException:
        source.close()
        raise

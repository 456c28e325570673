"""Rewrites data files and equality delete files under fresh keys. The rows and their order stay.

    old file -> read, decrypt --+--> encrypt -> new file -> read again, decrypt --+
                                |                                                 |
                             checksum  ----------- must be equal ----------- checksum

No row is decoded. The bytes of an Avro file are encrypted again as they are, and a Parquet file is
encrypted page by page; metrics stay, offsets and sizes change. The old file may be unencrypted.
Before its record is returned, the new file is read again. Its tags prove that nobody has changed it
since it was encrypted. The number of rows and the checksum prove that it decrypts to what was read;
the checksum's key is random and is not stored.

``executors`` rewrites many files at once. This module does not know snapshots. It does not rewrite
deletion vectors, because these name their data file; ``deletion_vectors`` writes new ones.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyiceberg.manifest import FileFormat
from pyiceberg.table.locations import LocationProvider

from ...columns.avro.files import AvroFile
from ...engine._gcm import Checksum, random_bytes
from ...engine.key_metadata import KeyMetadata
from ...engine.layout import DEFAULT_BLOCK_SIZE
from ...engine.reader import Reader
from ...engine.writer import Writer
from ...errors import Ags1Error, MetadataIntegrityError
from ..formats.parquet_transcription import read_contents, transcribe_parquet
from ..read.records import ContentFile
from ..storage.output import TableOutput
from ..storage.table_files import TableFiles

_PIECE_SIZE = 4 << 20


def new_location(record: ContentFile, locations: LocationProvider, stem: str | None = None) -> str:
    """Return the location of the file that replaces ``record``'s. If that is in the table's data
    folder, the new file is in the same folder, so that its path still shows the partition. ``stem``
    is its name without the suffix, by default a random one."""
    name = f"{stem or uuid.uuid4()}.{record.stored_format.name.lower()}"
    folder = record.file_path.rpartition("/")[0]
    own = locations.data_path.rstrip("/")
    is_own = folder == own or folder.startswith(own + "/")
    return f"{folder}/{name}" if is_own else locations.new_data_location(name)


def rewrite_file(
    record: ContentFile, source: TableFiles, output: TableOutput, location: str
) -> ContentFile:
    """Write a file's contents to ``location`` under a fresh key of ``source``; return its record.
    If anything fails, no new file is left. Any number of threads may call this. Raises
    MetadataIntegrityError if the file has not as many rows as its record says, or if the new file
    does not have the contents of the old one; what opening a file raises (AuthenticationError,
    TruncatedError, FormatError, NotEncryptedError, MissingFileLengthError); NotImplementedError for
    ORC; ValueError for a Puffin file; OSError."""
    if record.stored_format not in (FileFormat.PARQUET, FileFormat.AVRO):
        if record.stored_format == FileFormat.PUFFIN:
            raise ValueError(f"{record.file_path}: deletion vectors are not rewritten")
        raise NotImplementedError(
            f"{record.file_path}: Iceberg has no encryption of {record.stored_format.name} files"
        )
    rewrite = _rewrite_parquet if record.stored_format == FileFormat.PARQUET else _rewrite_avro
    key_metadata = source.keys.new_file_key()
    with _named(record.file_path):
        return rewrite(record, source, output, location, key_metadata)


def _rewrite_parquet(
    record: ContentFile,
    source: TableFiles,
    output: TableOutput,
    location: str,
    key_metadata: KeyMetadata,
) -> ContentFile:
    checksum, checksum_again = _checksums()
    with source.new_input(record.file_path).open() as stream, output.create(location) as file:
        old = _Ranges(stream)
        before = transcribe_parquet(
            old.view, old.size, record.sized_key, file.write, key_metadata, checksum
        )
    key_metadata = key_metadata.with_file_length(before.size)
    with _discarded_on_error(output, location), output.open(location) as stream:
        new = _Ranges(stream)
        after = read_contents(new.view, new.size, key_metadata, checksum_again)
        if before != after:
            raise _differs(location)
        record.check_rows(after.rows)
    # Columns without a size get none.
    sizes = record.fields()["column_sizes"]
    sizes = sizes and {i: after.column_sizes.get(i, size) for i, size in sizes.items()}
    return record.replace(
        file_path=location,
        file_size_in_bytes=after.size,
        column_sizes=sizes,
        key_metadata=key_metadata.encoded(),
        split_offsets=after.split_offsets or None,
    )


def _rewrite_avro(
    record: ContentFile,
    source: TableFiles,
    output: TableOutput,
    location: str,
    key_metadata: KeyMetadata,
) -> ContentFile:
    before, after = _checksums()
    with _plaintext(record, source) as text, output.create(location) as file:
        with Writer(file, key_metadata, block_size=DEFAULT_BLOCK_SIZE) as writer:
            while piece := text.read(_PIECE_SIZE):
                before.update(piece)
                writer.write(piece)
    key_metadata = writer.key_metadata
    with _discarded_on_error(output, location), output.open(location) as stream:
        with Reader(_Ranges(stream), key_metadata, block_size=DEFAULT_BLOCK_SIZE) as reader:
            while piece := reader.read(_PIECE_SIZE):
                after.update(piece)
            if before.finish() != after.finish():
                raise _differs(location)
            avro = AvroFile(reader)
            record.check_rows(avro.rows_before(avro.size))
    assert key_metadata.file_length is not None
    return record.replace(
        file_path=location,
        file_size_in_bytes=key_metadata.file_length,
        key_metadata=key_metadata.encoded(),
    )


def _checksums() -> tuple[Checksum, Checksum]:
    """Return checksums for what is written and for what is read again, under one key."""
    key = random_bytes(32)
    return Checksum(key), Checksum(key)


class _Ranges:
    """Reads ranges of an open file. One thread may use it."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        has_size = callable(getattr(stream, "size", None))
        self.size: int = stream.size() if has_size else stream.seek(0, os.SEEK_END)
        self._buffer = memoryview(bytearray())

    def pread(self, offset: int, size: int, /) -> bytes:
        return bytes(self.view(offset, size))

    def view(self, offset: int, size: int) -> memoryview:
        """Read a range into a buffer that the next call overwrites. New memory would take far more
        time."""
        if size > len(self._buffer):
            self._buffer = memoryview(bytearray(size))
        self._stream.seek(offset)
        done = 0
        while done < size and (count := self._stream.readinto(self._buffer[done:size])):
            done += count
        return self._buffer[:done]


@contextmanager
def _plaintext(record: ContentFile, source: TableFiles) -> Iterator[Any]:
    with source.new_input(record.file_path).open() as stream:
        key_metadata = record.key
        if key_metadata is None:
            yield stream
        else:
            with Reader(_Ranges(stream), key_metadata, block_size=DEFAULT_BLOCK_SIZE) as reader:
                yield reader


@contextmanager
def _discarded_on_error(output: TableOutput, location: str) -> Iterator[None]:
    try:
        yield
    except BaseException:
        output.discard([location])
        raise


@contextmanager
def _named(location: str) -> Iterator[None]:
    try:
        yield
    except Ags1Error as error:
        error.file = error.file or location
        raise


def _differs(location: str) -> MetadataIntegrityError:
    return MetadataIntegrityError(
        "the new file does not contain what was written to it, so it was deleted: the storage or "
        "the machine is faulty",
        file=location,
    )

"""One data or equality delete file under a fresh key: the same rows in the same order.

No row is decoded. An Avro file is sealed anew as the bytes that it is, a Parquet file page by page;
metrics stay, places and sizes change. What was written is read again, decrypted and compared with
what was read, before anybody hears of it: by the rows, and by a checksum under a key that is drawn
for the file and kept nowhere. The tags alone say that nobody has changed the new file since it was
sealed; the checksum says that what was sealed decrypts to what was read. Sources may be in the
clear. Many files are rewritten by threads, or by whoever else is a ``RewriteExecutor``. Knows
nothing of snapshots; deletion vectors name their data file and are written by
``deletion_vectors``.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from typing import Any, Protocol, TypeAlias

from pyiceberg.io import FileIO
from pyiceberg.manifest import FileFormat
from pyiceberg.table.locations import LocationProvider

from ..._gcm import Checksum, random_bytes
from ...cpu import usable_cpus
from ...errors import Ags1Error, MetadataIntegrityError
from ...key_metadata import KeyMetadata
from ...keys.manager import EncryptionManager
from ...layout import DEFAULT_BLOCK_SIZE
from ...reader import Reader
from ...writer import Writer
from ..formats.avro import AvroFile
from ..formats.parquet_transcription import ParquetContents, read_contents, transcribe_parquet
from ..read.records import ContentFile
from ..storage.output import TableOutput

_PIECE_SIZE = 4 << 20
# Above this the storage is the limit, and each thread holds a page and two windows.
_MAX_THREADS = 16

Identity = tuple[str, int | None]
# Called with a file's old record and its new one.
Done: TypeAlias = "Callable[[ContentFile, ContentFile], None]"


class RewriteExecutor(Protocol):
    """Rewrites files side by side, wherever it likes and in any order."""

    def rewrite(
        self,
        files: Sequence[ContentFile],
        source: FileIO,
        output: TableOutput,
        manager: EncryptionManager,
        locations: LocationProvider,
        on_done: Done,
    ) -> None:
        """Do for each file what ``rewrite_file`` does, at a ``new_location``.

        ``on_done`` is called after each, by one thread at a time, and ``output`` knows of each new
        file. Raises what ``rewrite_file`` raises, for the first file that fails; no other is begun
        then, and what was under way is completed and told, or leaves no file.
        """
        ...


class RewriteThreads:
    """Rewrites ``threads`` files at once, None for as many as there are CPUs."""

    def __init__(self, threads: int | None = None) -> None:
        if threads is not None and threads < 1:
            raise ValueError(f"threads must be at least 1, not {threads}")
        self._threads = threads or min(usable_cpus(), _MAX_THREADS)
        self._lock = threading.Lock()

    def rewrite(
        self,
        files: Sequence[ContentFile],
        source: FileIO,
        output: TableOutput,
        manager: EncryptionManager,
        locations: LocationProvider,
        on_done: Done,
    ) -> None:
        def rewrite(record: ContentFile) -> None:
            location = new_location(record, locations)
            new = rewrite_file(record, source, output, location, manager)
            with self._lock:
                on_done(record, new)

        pool = ThreadPoolExecutor(self._threads, "ags1-rewrite")
        try:
            for done in as_completed([pool.submit(rewrite, file) for file in files]):
                done.result()
        finally:
            # One that was interrupted leaves no file, and no thread that goes on writing.
            pool.shutdown(wait=True, cancel_futures=True)


def new_location(record: ContentFile, locations: LocationProvider, stem: str | None = None) -> str:
    """Return a new file's location: in the folder of the file that it replaces where this is one
    of the table's, so that paths that show partitions go on doing so. ``stem`` is its name without
    the suffix, None for one that no other file has."""
    name = f"{stem or uuid.uuid4()}.{record.stored_format.name.lower()}"
    folder = record.file_path.rpartition("/")[0]
    own = locations.data_path.rstrip("/")
    is_own = folder == own or folder.startswith(own + "/")
    return f"{folder}/{name}" if is_own else locations.new_data_location(name)


def rewrite_file(
    record: ContentFile,
    source: FileIO,
    output: TableOutput,
    location: str,
    manager: EncryptionManager,
) -> ContentFile:
    """Write a file's contents to ``location`` under a fresh key; return what to say of it.

    ``source`` is where the file of ``record`` lies: a ``TableFiles``, or any other FileIO for one
    in the clear. When anything fails, no new file stays. Any number of threads may call this.

    Raises MetadataIntegrityError when the file does not have the rows that its record says, or
    what was written is not what was read; what opening a file raises (AuthenticationError,
    TruncatedError, FormatError, NotEncryptedError, MissingFileLengthError); NotImplementedError for
    ORC; ValueError for a Puffin file; OSError.
    """
    if record.stored_format not in (FileFormat.PARQUET, FileFormat.AVRO):
        if record.stored_format == FileFormat.PUFFIN:
            raise ValueError("a deletion vector names its data file and is not copied")
        raise NotImplementedError(
            f"{record.file_path}: Iceberg has no encryption of {record.stored_format.name} files"
        )
    rewrite = _rewrite_parquet if record.stored_format == FileFormat.PARQUET else _rewrite_avro
    km = manager.new_file_key()
    with _named(record.file_path):
        return rewrite(record, source, output, location, km)


def _rewrite_parquet(
    record: ContentFile, source: FileIO, output: TableOutput, location: str, km: KeyMetadata
) -> ContentFile:
    checksum, checksum_again = _checksums()
    with source.new_input(record.file_path).open() as stream, output.create(location) as file:
        old = _Ranges(stream)
        key = _key_with_length(record)
        before = transcribe_parquet(old.view, old.size, key, file.write, km, checksum)
    km = km.with_file_length(before.size)
    with _discarded_on_error(output, location), _stored(output, location) as stream:
        new = _Ranges(stream)
        after = read_contents(new.view, new.size, km, checksum_again)
        if before != after:
            raise _differs(location)
        _check_rows(record, after.rows)
    return record.replace(
        file_path=location,
        file_size_in_bytes=after.size,
        column_sizes=_column_sizes(record.fields()["column_sizes"], after),
        key_metadata=km.to_bytes(),
        split_offsets=after.split_offsets or None,
    )


def _rewrite_avro(
    record: ContentFile, source: FileIO, output: TableOutput, location: str, km: KeyMetadata
) -> ContentFile:
    before, after = _checksums()
    with _plaintext(record, source) as text, output.create(location) as file:
        with Writer(file, km, block_size=DEFAULT_BLOCK_SIZE) as writer:
            while piece := text.read(_PIECE_SIZE):
                before.update(piece)
                writer.write(piece)
    km = writer.key_metadata
    with _discarded_on_error(output, location), _stored(output, location) as stream:
        with Reader(_Ranges(stream), km, block_size=DEFAULT_BLOCK_SIZE) as reader:
            while piece := reader.read(_PIECE_SIZE):
                after.update(piece)
            if before.finish() != after.finish():
                raise _differs(location)
            avro = AvroFile(reader)
            _check_rows(record, avro.rows_before(avro.size))
    assert km.file_length is not None
    return record.replace(
        file_path=location,
        file_size_in_bytes=km.file_length,
        key_metadata=km.to_bytes(),
    )


def _checksums() -> tuple[Checksum, Checksum]:
    """Return checksums for what is written and for what is read again."""
    key = random_bytes(32)
    return Checksum(key), Checksum(key)


class _Ranges:
    """An open file as a source of ranges, for one thread."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        has_size = callable(getattr(stream, "size", None))
        self.size: int = stream.size() if has_size else stream.seek(0, os.SEEK_END)
        self._room = memoryview(bytearray())

    def pread(self, offset: int, size: int, /) -> bytes:
        return bytes(self.view(offset, size))

    def view(self, offset: int, size: int) -> memoryview:
        """Read a range into memory that the next call uses again: fresh memory costs far more."""
        if size > len(self._room):
            self._room = memoryview(bytearray(size))
        self._stream.seek(offset)
        done = 0
        while done < size and (count := self._stream.readinto(self._room[done:size])):
            done += count
        return self._room[:done]


@contextmanager
def _plaintext(record: ContentFile, source: FileIO) -> Iterator[Any]:
    """Open an Avro file's plaintext."""
    with source.new_input(record.file_path).open() as stream:
        km = record.key
        if km is None:
            yield stream
        else:
            with Reader(_Ranges(stream), km, block_size=DEFAULT_BLOCK_SIZE) as reader:
                yield reader


@contextmanager
def _stored(output: TableOutput, location: str) -> Iterator[Any]:
    """Open a file that was written, as it is stored."""
    with output.open(location) as stream:
        yield stream


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


def _key_with_length(record: ContentFile) -> KeyMetadata | None:
    km = record.key
    if km is not None and km.file_length is None:
        # The manifest tells it too, as well authenticated.
        km = km.with_file_length(record.file_size_in_bytes)
    return km


def _column_sizes(
    old: Mapping[int, int] | None, contents: ParquetContents
) -> Mapping[int, int] | None:
    """Return the sizes of the columns that had one."""
    return old and {i: contents.column_sizes.get(i, size) for i, size in old.items()}


def _check_rows(record: ContentFile, rows: int) -> None:
    if rows != record.record_count:
        raise MetadataIntegrityError(
            f"the file has {rows} rows, and its manifest says {record.record_count}",
            file=record.file_path,
        )


def _differs(location: str) -> MetadataIntegrityError:
    return MetadataIntegrityError(
        "what was written is not what was read: the storage has changed it", file=location
    )

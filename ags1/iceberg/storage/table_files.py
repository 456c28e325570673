"""``TableFiles`` finds and opens the files of one encrypted table.

It is a ``FileIO`` around the one that PyIceberg would use. It finds the files of a moved table. It
returns stored bytes as they are, or the plaintext if the caller passes the file's key. It keeps no
keys of files. The lengths of files come from key metadata, never from the storage.
"""

from __future__ import annotations

import copy
import errno
import functools
import os
import stat
import threading
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar

import pyarrow as pa
from pyiceberg.io import FileIO, InputFile, InputStream, OutputFile

from ...columns.avro.container import AVRO_MAGIC
from ...engine import oneshot
from ...engine.geometry import trusted_length
from ...engine.key_metadata import KeyMetadata
from ...engine.layout import DEFAULT_BLOCK_SIZE, HEADER_SIZE, MAGIC, build_header
from ...engine.reader import Reader
from ...engine.source import Source, open_source
from ...errors import (
    Ags1Error,
    FormatError,
    KeyMetadataError,
    MetadataIntegrityError,
    MissingFileLengthError,
    NotEncryptedError,
    TruncatedError,
)
from ...keys.manager import EncryptionManager
from .locations import is_encodable, local_path, mapped_location, new_input, refuse_pipe

_HEADER = build_header(DEFAULT_BLOCK_SIZE)

# The size of stored manifests. Decoded, they take about 50 times as much memory.
_MAX_CACHED_SIZE = 4 << 20

_T = TypeVar("_T")


class ManifestCache:
    """A cache of decoded manifests and manifest lists. Files never change, so each is read once. It
    keeps what the last two attempts have used, of files of at most 4 MiB in all (stored size). Any
    number of threads may use it. It contains keys of files, so its pickle is empty."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._this_attempt: dict[Hashable, tuple[int, Any]] = {}
        self._last_attempt: dict[Hashable, tuple[int, Any]] = {}
        self._size = 0

    def next_attempt(self) -> None:
        """Begin a new attempt. Forget what the last attempt has not used."""
        with self._lock:
            self._size -= sum(size for size, _ in self._last_attempt.values())
            self._last_attempt, self._this_attempt = self._this_attempt, {}

    def get(self, key: Hashable, size: int, make: Callable[[], _T]) -> _T:
        """Return ``make()``, or what it has returned before for this key. The result must depend
        only on ``key``. ``size`` is the stored file's (bytes)."""
        with self._lock:
            cached = self._this_attempt.get(key) or self._last_attempt.pop(key, None)
            if cached is not None:
                self._this_attempt[key] = cached
                value: _T = cached[1]
                return value
        value = make()
        with self._lock:
            while self._size + size > _MAX_CACHED_SIZE and self._last_attempt:
                self._size -= self._last_attempt.popitem()[1][0]
            if self._size + size <= _MAX_CACHED_SIZE and key not in self._this_attempt:
                self._this_attempt[key] = size, value
                self._size += size
        return value

    def __reduce__(self) -> tuple[type[ManifestCache], tuple[()]]:
        return ManifestCache, ()


class TableFiles(FileIO):
    """The files of one encrypted table.

    ``inner`` is their storage. ``keys`` unwraps the keys of manifest lists. ``location_map`` maps
    prefixes of locations in the metadata to prefixes of the present locations; the longest prefix
    that ends at a ``/`` counts. With ``require_encrypted``, unencrypted data files are refused.
    With ``reads_exposed``, plaintext manifests can be read, so that they can be encrypted or
    deleted. With ``trust_file_size``, which ``open_table`` sets, a file whose key metadata has no
    length has that of the stored file. ``manifest_cache`` has manifests and manifest lists; None
    caches nothing.

    ``new_input`` returns the stored bytes, as ``open_source`` does.
    ``new_output`` and ``delete`` raise NotImplementedError: PyIceberg would write plaintext. A
    pickle has only wrapped keys; to use it, a process needs the KMS.
    """

    def __init__(
        self,
        inner: FileIO,
        keys: EncryptionManager,
        *,
        location_map: Mapping[str, str] | None = None,
        require_encrypted: bool = False,
        reads_exposed: bool = False,
        manifest_cache: ManifestCache | None = None,
    ) -> None:
        super().__init__(inner.properties)
        self.inner = inner
        self.keys = keys
        self.require_encrypted = require_encrypted
        self.reads_exposed = reads_exposed
        self.manifest_cache = manifest_cache
        self.trust_file_size = False
        self.location_map = dict(location_map or {})

    @property
    def table_files(self) -> TableFiles:
        """These files. If another FileIO wraps them, this attribute still finds them."""
        return self

    def with_keys(self, keys: EncryptionManager) -> TableFiles:
        """Return the same files with another key manager."""
        files = copy.copy(self)
        files.keys = keys
        return files

    def reading_exposed(self) -> TableFiles:
        """Return the same files with the same keys, with plaintext manifests readable."""
        files = self.with_keys(self.keys)
        files.reads_exposed = True
        return files

    def cached(self, key: Hashable, size: int, make: Callable[[], _T]) -> _T:
        """Return ``make()``, or what the cache of manifests has: see ``ManifestCache.get``."""
        return make() if self.manifest_cache is None else self.manifest_cache.get(key, size, make)

    def stored_location(self, location: str) -> str:
        """Return the present location of the file with this ``location`` in the metadata. Raises
        MetadataIntegrityError if no file can have that name."""
        stored = mapped_location(location, self.location_map)
        if "\0" in stored or not is_encodable(stored):
            raise MetadataIntegrityError("the location cannot be a file's name", file=location)
        return stored

    def new_input(self, location: str) -> InputFile:
        """Return the stored file. Raises MetadataIntegrityError for an invalid location, and
        OSError for what is not a regular file."""
        return self._found(location, functools.partial(new_input, self.inner))

    def new_output(self, location: str) -> OutputFile:
        """Raise NotImplementedError: PyIceberg would write plaintext."""
        raise NotImplementedError(
            f"{location}: PyIceberg would write plaintext to an encrypted table. Append to the "
            "table itself. If another library has already written data files, as Polars' "
            "sink_iceberg does, they are in the table's folder and not encrypted: delete them"
        )

    def delete(self, location: str | InputFile | OutputFile) -> NoReturn:
        """Raise NotImplementedError: only this library deletes files of an encrypted table."""
        raise NotImplementedError(
            "PyIceberg cannot delete files of an encrypted table: use expire_snapshots or "
            "purge_table"
        )

    def open_stored(self, location: str) -> InputStream:
        """Return a seekable stream of the file's stored bytes."""
        with self.naming(location):
            return self.new_input(location).open()

    def open_source(self, location: str) -> Source:
        """Return the file's stored bytes as what readers of the engine read."""
        with self.naming(location):
            path = self.local_path(location)
            if path is not None:
                refuse_pipe(path)
                return open_source(path)[0]
            stream: Any = self.open_stored(location)
            if not isinstance(stream, pa.NativeFile):
                stream = pa.PythonFile(stream, "r")
            source, _ = open_source(stream)
            # The source does not own a stream that it was given.
            weakref.finalize(source, stream.close)
            return source

    @contextmanager
    def naming(self, location: str) -> Iterator[None]:
        """Put the file's location in the metadata into our errors. If the table was moved or
        copied, errors name both locations, those of the storage too."""
        try:
            yield
        except (Ags1Error, OSError) as error:
            stored = mapped_location(location, self.location_map)
            if isinstance(error, Ags1Error):
                error.file = location
                error.stored_file = None if stored == location else stored
            elif stored != location and location not in str(error):
                where = f" (it is {stored} now, and the metadata names it {location})"
                if error.strerror is None:
                    error.args = (f"{error}{where}",)
                else:
                    error.strerror += where
            raise

    def open_encrypted(
        self, location: str, key_metadata: KeyMetadata, *, threads: int = 1
    ) -> Reader:
        """Return a reader of an AGS1 file's plaintext. Raises as ``ags1.open`` does."""
        key_metadata = self.sized_key(location, key_metadata)
        path = self.local_path(location)
        stream = self.open_stored(location) if path is None else None
        source: Any = path if stream is None else stream
        options: dict[str, Any] = {"block_size": DEFAULT_BLOCK_SIZE, "threads": threads}
        try:
            with self.naming(location):
                if path is not None:
                    refuse_pipe(path)
                reader = Reader(source, key_metadata, **options)
        except BaseException:
            if stream is not None:
                stream.close()
            raise
        if stream is not None:
            # The reader does not own a stream that it was given.
            weakref.finalize(reader, stream.close)
        return reader

    def read_encrypted(self, location: str, key_metadata: KeyMetadata) -> bytes:
        """Return the whole plaintext of an AGS1 file. Raises AuthenticationError, TruncatedError,
        FormatError, MissingFileLengthError, NotEncryptedError if the file is not an AGS1 file at
        all, and OSError."""
        with self.naming(location):
            key_metadata = self.sized_key(location, key_metadata)
            size = trusted_length(None, key_metadata, trust_file_size=False)
            sealed = self._read_stored(location, size)
            _check_header(sealed)
            return oneshot.decrypt(sealed, key_metadata)

    def sized_key(self, location: str, key_metadata: KeyMetadata) -> KeyMetadata:
        """Return an AGS1 file's key metadata with a length: its own, or that of the stored file if
        that is trusted. Raises MissingFileLengthError, FormatError, and OSError."""
        if key_metadata.file_length is not None:
            return key_metadata
        if not self.trust_file_size:
            raise MissingFileLengthError(
                "the key metadata has no file length, so a cut file could not be noticed. Builds "
                "of iceberg-rust from 2026-08-21 on, before its pull request 3236, wrote such "
                "tables, which Java cannot open either: write the table again with a newer build, "
                "or read it by open_table(…, trust_file_size=True)",
                file=location,
            )
        with self.naming(location):
            path = self.local_path(location)
            size = len(self.new_input(location)) if path is None else os.stat(path).st_size
            if size == HEADER_SIZE:
                raise FormatError(
                    "the file has a header and no block, and its key metadata has no length: the "
                    "file was truncated"
                )
        return key_metadata.with_file_length(size)

    def read_exposed(self, location: str, length: int) -> bytes:
        """Return a plaintext manifest, which is not authenticated. Its manifest list says that it
        has ``length`` bytes. Raises MetadataIntegrityError if it has another length or is not an
        Avro file, KeyMetadataError if it is encrypted, and OSError."""
        with self.naming(location):
            data = self._read_stored(location, length)
            if data.startswith(MAGIC):
                raise KeyMetadataError(
                    "the manifest is encrypted, but the manifest list has no key for it"
                )
            if len(data) != length or not data.startswith(AVRO_MAGIC):
                raise MetadataIntegrityError(
                    "the plaintext manifest is not the one that its manifest list names: it has "
                    "another length, or is not an Avro file. Restore it from a backup"
                )
            return data

    def _read_stored(self, location: str, length: int) -> bytes:
        path = self.local_path(location)
        # One more byte is enough to detect that a file is too long.
        if path is None:
            with self.open_stored(location) as stream:
                return stream.read(length + 1)
        with open(path, "rb", buffering=0, opener=_open_regular) as file:
            return _read(file, length + 1)

    def local_path(self, location: str) -> str | None:
        """Return the path of a local file; None for others. Raises as ``new_input``."""
        return self._found(location, functools.partial(local_path, self.inner))

    def _found(self, location: str, find: Callable[[str], _T]) -> _T:
        stored = self.stored_location(location)
        try:
            return find(stored)
        except (ValueError, ImportError) as error:
            raise MetadataIntegrityError(
                f"the location is not valid: {error}", file=location
            ) from error

    def __repr__(self) -> str:
        return f"TableFiles({type(self.inner).__name__}, {self.keys!r})"


def _check_header(sealed: bytes) -> None:
    if len(sealed) < len(MAGIC) and MAGIC.startswith(sealed):
        what = "ends within its first bytes" if sealed else "is empty"
        raise TruncatedError(f"the file {what}")
    if sealed[: len(MAGIC)] != MAGIC:
        raise NotEncryptedError(
            "the metadata has a key for this file, but the file does not begin as an encrypted one"
        )
    if len(sealed) >= len(_HEADER) and not sealed.startswith(_HEADER):
        raise FormatError("the blocks do not have 1 MiB, as Iceberg requires", offset=0)


def _open_regular(path: str, flags: int) -> int:
    """Open a regular file. Raises OSError for any other: opening a pipe could block for ever."""
    fd = os.open(path, flags | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "Not a regular file", path)
    return fd


def _read(file: Any, size: int) -> bytes:
    # An unbuffered read may stop short, but only the end of a regular file does.
    expected = min(size, os.fstat(file.fileno()).st_size)
    data: bytes = file.read(expected)
    while len(data) < expected:
        more = file.read(expected - len(data))
        if not more:
            break
        data += more
    return data

"""``TableFiles``: the files of one encrypted table, where they lie and opened.

A ``FileIO`` over the one that PyIceberg would use: it follows tables that were moved, hands out
stored bytes as they are, and plaintext to whoever brings the file's key. It keeps no file keys.
Lengths come from key metadata, never from the storage. Knows nothing of snapshots and scans.
"""

from __future__ import annotations

import errno
import os
import stat
import weakref
from collections.abc import Mapping
from typing import Any, NoReturn

from pyiceberg.io import FileIO, InputFile, InputStream, OutputFile
from pyiceberg.io.pyarrow import PyArrowFileIO

from .. import oneshot
from ..errors import (
    Ags1Error,
    FormatError,
    MetadataIntegrityError,
    MissingFileLengthError,
    NotEncryptedError,
    TruncatedError,
)
from ..key_metadata import KeyMetadata
from ..keys.manager import EncryptionManager
from ..layout import DEFAULT_BLOCK_SIZE, MAGIC, build_header
from ..reader import Reader

_HEADER = build_header(DEFAULT_BLOCK_SIZE)


class TableFiles(FileIO):
    """The files of one encrypted table.

    ``inner`` is where they are stored. ``keys`` opens the manifest lists' keys. ``location_map``
    maps prefixes of locations, as the metadata has them, to where the files lie now; the longest
    prefix that ends at a ``/`` wins. ``require_encrypted`` refuses data files in the clear.

    ``new_input`` gives the stored bytes: data files of Parquet decrypt inside. ``new_output`` and
    ``delete`` raise NotImplementedError: what PyIceberg wrote here would be in the clear. A pickle
    has wrapped keys only; whoever loads it needs the KMS.
    """

    def __init__(
        self,
        inner: FileIO,
        keys: EncryptionManager,
        *,
        location_map: Mapping[str, str] | None = None,
        require_encrypted: bool = False,
    ) -> None:
        super().__init__(inner.properties)
        self.inner = inner
        self.keys = keys
        self.require_encrypted = require_encrypted
        self.location_map = dict(location_map or {})

    def with_keys(self, keys: EncryptionManager) -> TableFiles:
        """Return the same files with another manager of keys."""
        return TableFiles(
            self.inner,
            keys,
            location_map=self.location_map,
            require_encrypted=self.require_encrypted,
        )

    def stored_location(self, location: str) -> str:
        """Return where the file lies that the metadata knows by ``location``. Raises
        MetadataIntegrityError for what can be no file's name."""
        stored = moved(location, self.location_map)
        if "\0" in stored or not _is_text(stored):
            raise MetadataIntegrityError("the location is no file's name", file=location)
        return stored

    def new_input(self, location: str) -> InputFile:
        """Return the file as it is stored. Raises MetadataIntegrityError for a location that cannot
        be one of the table's."""
        stored = self.stored_location(location)
        try:
            return self.inner.new_input(stored)
        except (ValueError, ImportError) as error:
            raise MetadataIntegrityError(
                f"there can be no such location: {error}", file=location
            ) from error

    def new_output(self, location: str) -> OutputFile:
        raise NotImplementedError(
            f"{location}: PyIceberg cannot write to an encrypted table, its files would be in the "
            "clear"
        )

    def delete(self, location: str | InputFile | OutputFile) -> NoReturn:
        raise NotImplementedError("files of an encrypted table are not deleted through PyIceberg")

    def open_stored(self, location: str) -> InputStream:
        """Return a stream of the file's bytes as they are stored, seekable."""
        return self.new_input(location).open()

    def open_encrypted(self, location: str, km: KeyMetadata, *, threads: int = 1) -> Reader:
        """Return a reader of an AGS1 file's plaintext. Raises as ``ags1.open`` does."""
        path = self.local_path(location)
        stream = self.open_stored(location) if path is None else None
        try:
            reader = Reader(
                stream if path is None else path,
                km,
                block_size=DEFAULT_BLOCK_SIZE,
                threads=threads,
            )
        except BaseException as error:
            if stream is not None:
                stream.close()
            if isinstance(error, Ags1Error):
                error.file = location
            raise
        if stream is not None:
            # The reader does not own a stream that it was given.
            weakref.finalize(reader, stream.close)
        return reader

    def read_encrypted(self, location: str, km: KeyMetadata) -> bytes:
        """Return the whole plaintext of an AGS1 file.

        Raises AuthenticationError, TruncatedError, FormatError, MissingFileLengthError,
        NotEncryptedError when the file is no AGS1 file at all, and OSError.
        """
        length = km.file_length
        if length is None:
            raise MissingFileLengthError("the key metadata has no file length", file=location)
        path = self.local_path(location)
        # One byte more tells a file that is too long, however long it is.
        if path is None:
            with self.open_stored(location) as stream:
                sealed = stream.read(length + 1)
        else:
            with open(path, "rb", buffering=0, opener=_open_regular) as file:
                sealed = _read(file, length + 1)
        try:
            _check_header(sealed)
            return oneshot.decrypt(sealed, km)
        except Ags1Error as error:
            error.file = location
            raise

    def local_path(self, location: str) -> str | None:
        """Return the path of a file of this machine, None for one that lies elsewhere. Raises
        MetadataIntegrityError as ``new_input``."""
        stored = self.stored_location(location)
        if isinstance(self.inner, PyArrowFileIO):
            try:
                scheme, _, path = self.inner.parse_location(stored, self.inner.properties)
            except ValueError as error:
                raise MetadataIntegrityError(
                    f"there can be no such location: {error}", file=location
                ) from error
            if scheme == "file":
                return path
        return None

    def __repr__(self) -> str:
        return f"TableFiles({type(self.inner).__name__}, {self.keys!r})"


def _is_text(text: str) -> bool:
    """Whether it can be encoded: JSON may have half a character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_header(sealed: bytes) -> None:
    if len(sealed) < len(MAGIC) and MAGIC.startswith(sealed):
        what = "ends within its first bytes" if sealed else "is empty"
        raise TruncatedError(f"the file {what}")
    if sealed[: len(MAGIC)] != MAGIC:
        raise NotEncryptedError("this file has a key, and does not begin as an encrypted file does")
    if len(sealed) >= len(_HEADER) and not sealed.startswith(_HEADER):
        raise FormatError("the blocks are not of 1 MiB, which Iceberg's always are", offset=0)


def moved(location: str, location_map: Mapping[str, str]) -> str:
    """Return ``location`` with its longest prefix in ``location_map`` replaced."""
    best = ""
    for old in location_map:
        prefix = old.rstrip("/")
        if len(prefix) > len(best.rstrip("/")) and (
            location == prefix or location.startswith(prefix + "/")
        ):
            best = old
    if not best:
        return location
    return location_map[best].rstrip("/") + location[len(best.rstrip("/")) :]


def _open_regular(path: str, flags: int) -> int:
    """Open a file as ``os.open`` does. Raises OSError for a pipe, whose other end may never come,
    and for all else that is no regular file."""
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

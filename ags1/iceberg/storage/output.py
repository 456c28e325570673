"""Writes a table's new files. Each appears complete under its name, or not at all.

On local file systems, a file gets its name after it is complete and synced. On object stores, a
file is visible after its upload is complete; if an upload fails, the file is deleted.
``TableOutput`` records the written files, so that they can be deleted if a commit certainly failed.
It does not know what the files contain.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO, cast

from pyiceberg.io import FileIO, InputStream

from ...engine import oneshot
from ...engine.key_metadata import KeyMetadata
from ...engine.layout import DEFAULT_BLOCK_SIZE
from ...errors import KeyReuseError
from ...host._process import process_number
from ...host.atomic import AtomicFile, sync_folder
from .listing import list_files
from .locations import local_path, mapped_location, new_input
from .small_uploads import upload_small_files_at_once

_log = logging.getLogger(__name__)


class _NamedFile(io.FileIO):
    """A file whose failed writes name it: that the disk is full, for example. A forked child cannot
    write to its parent's file, not even what was buffered at the fork."""

    path = ""
    process = 0

    def write(self, data: Any, /) -> int:
        _check_process(self.process)
        try:
            return super().write(data)
        except OSError as error:
            error.filename = self.path
            raise


class _TableFile(AtomicFile):
    """A file of a table. If its folder cannot be synced, ``commit`` raises OSError and removes it:
    the table does not refer to it yet, so nothing is lost."""

    def _sync_name(self) -> None:
        sync_folder(os.path.dirname(self._path))


def _check_process(number: int) -> None:
    if number != process_number():
        raise KeyReuseError(
            "a forked process cannot continue what its parent has begun to write: load the "
            "table again in this process"
        )


class TableOutput:
    """Writes the files of a table. ``location`` is always the location in the table's metadata.
    ``io`` is PyIceberg's FileIO, ``location_map`` that of ``open_table``. Any number of threads may
    write. ``written`` has the locations of the completed files."""

    def __init__(self, io: FileIO, location_map: Mapping[str, str] | None = None) -> None:
        self.io = io
        upload_small_files_at_once(io)
        self._location_map = dict(location_map or {})
        self._lock = threading.Lock()
        self._written: list[str] = []
        self._process = process_number()

    @property
    def written(self) -> list[str]:
        """The locations of the completed files."""
        with self._lock:
            return list(self._written)

    @contextmanager
    def create(self, location: str) -> Iterator[BinaryIO]:
        """Open a new file for writing. It gets its name when the block ends without an exception.
        Raises FileExistsError if a local file exists, KeyReuseError in a forked child, and OSError.
        Names of files have to be random: on an object store nobody asks whether there is one."""
        self.check_process()
        stored = self._stored(location)
        path = local_path(self.io, stored)
        with self._local(path) if path is not None else self._remote(stored) as file:
            yield file
        with self._lock:
            self._written.append(location)

    def write(self, location: str, data: bytes) -> None:
        """Write a new file with these bytes, unencrypted. Raises as ``create``."""
        with self.create(location) as file:
            file.write(data)

    def write_encrypted(
        self, location: str, plaintext: bytes, key_metadata: KeyMetadata
    ) -> KeyMetadata:
        """Write a new AGS1 file with a fresh key; return its key metadata with the file's length.
        Raises KeyReuseError, and as ``create``."""
        sealed = oneshot.encrypt(plaintext, km=key_metadata, block_size=DEFAULT_BLOCK_SIZE)
        # If the write fails, error reporters print the variables, and a manifest has keys.
        plaintext = b""
        self.write(location, sealed.data)
        return sealed.key_metadata

    def open(self, location: str) -> InputStream:
        """Open a written file for reading. Raises OSError."""
        return new_input(self.io, self._stored(location)).open()

    def listed(self, folder: str) -> Iterator[str] | None:
        """Return the locations of all files below a folder; None if the storage cannot list. The
        iterator raises OSError."""
        return list_files(self.io, self._stored(folder))

    def delete(self, location: str) -> None:
        """Delete a file if it exists. Raises OSError."""
        with contextlib.suppress(FileNotFoundError):
            self.io.delete(self._stored(location))
        with self._lock, contextlib.suppress(ValueError):
            self._written.remove(location)

    def note(self, location: str) -> None:
        """Record a file that another process has written for this output."""
        with self._lock:
            self._written.append(location)

    def keep(self) -> None:
        """Forget the written files: they belong to the table now."""
        with self._lock:
            self._written.clear()

    def check_process(self) -> None:
        """Raise KeyReuseError in a forked child: only the parent may continue its writes."""
        _check_process(self._process)

    def discard(self, locations: list[str]) -> None:
        """Delete the files of a commit that certainly failed. In a forked child, do nothing. If a
        file cannot be deleted, this logs a warning. Nothing refers to that file, and
        ``verify_table`` reports it as an orphan."""
        if self._process != process_number():
            return
        for location in locations:
            try:
                self.delete(location)
            except Exception as error:
                _log.warning("%s could not be deleted: %s", location, type(error).__name__)

    def _stored(self, location: str) -> str:
        return mapped_location(location, self._location_map)

    @contextmanager
    def _local(self, path: str) -> Iterator[BinaryIO]:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with _TableFile(path) as target:
            # The user must not close the descriptor, because it is synced afterwards.
            with _NamedFile(target.fd, "w", closefd=False) as raw:
                raw.path, raw.process = path, self._process
                with io.BufferedWriter(raw, 1 << 20) as file:
                    yield file

    @contextmanager
    def _remote(self, stored: str) -> Iterator[BinaryIO]:
        # Nobody else has the name, which is random: to ask for it would take two requests.
        stream: Any = self.io.new_output(stored).create(overwrite=True)
        try:
            yield cast(BinaryIO, stream)
        except BaseException:
            # fsspec can abandon an upload. Arrow completes it in any case, so it is deleted below.
            with contextlib.suppress(Exception):
                stream.discard() if hasattr(stream, "discard") else stream.close()
            with contextlib.suppress(Exception):
                self.io.delete(stored)
            raise
        stream.close()

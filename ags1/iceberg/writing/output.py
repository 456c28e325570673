"""Where a table's new files go: each appears whole under its name, or not at all.

On this machine's file systems a file gets its name once it is whole and synced; object stores do so
by themselves once an upload is completed, and one that failed is deleted again. What was written is
remembered, so that a commit that failed for certain can take it back. Knows nothing of what the
files hold, but for sealing a whole one by AGS1.
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
from pyiceberg.io.pyarrow import PyArrowFileIO

from ... import oneshot
from ..._gcm import process_number
from ...atomic import AtomicFile
from ...errors import KeyReuseError
from ...key_metadata import KeyMetadata
from ...layout import DEFAULT_BLOCK_SIZE
from ..files import moved
from ..listing import list_files

_log = logging.getLogger(__name__)


class TableOutput:
    """Writes the files of a table, which its metadata knows by their ``location``.

    ``io`` is PyIceberg's FileIO of the storage; ``location_map`` as for ``open_table``. Any number
    of threads may write. ``written`` has the locations of files that were completed.
    """

    def __init__(self, io: FileIO, location_map: Mapping[str, str] | None = None) -> None:
        self.io = io
        self._location_map = dict(location_map or {})
        self._lock = threading.Lock()
        self._written: list[str] = []
        self._process = process_number()

    @property
    def written(self) -> list[str]:
        with self._lock:
            return list(self._written)

    @contextmanager
    def create(self, location: str) -> Iterator[BinaryIO]:
        """Open a new file for writing; it has its name once the block ends without an exception.

        Raises FileExistsError when there is such a file, KeyReuseError in a forked child, and
        OSError.
        """
        self.check_process()
        path = self._local_path(location)
        with self._local(path) if path is not None else self._remote(location) as file:
            yield file
        with self._lock:
            self._written.append(location)

    def write(self, location: str, data: bytes) -> None:
        """Write a new file of these bytes as they are. Raises as ``create``."""
        with self.create(location) as file:
            file.write(data)

    def write_encrypted(self, location: str, plaintext: bytes, km: KeyMetadata) -> KeyMetadata:
        """Write a new AGS1 file under a fresh key; return the key metadata with the file's length.

        Raises KeyReuseError, and as ``create``.
        """
        sealed = oneshot.encrypt(plaintext, km=km, block_size=DEFAULT_BLOCK_SIZE)
        self.write(location, sealed.data)
        return sealed.key_metadata

    def open(self, location: str) -> InputStream:
        """Open a file to read what was written. Raises OSError."""
        return self.io.new_input(moved(location, self._location_map)).open()

    def listed(self, folder: str) -> Iterator[str] | None:
        """Return where all files below a folder lie, None where the storage cannot tell. The
        iterator raises OSError."""
        return list_files(self.io, moved(folder, self._location_map))

    def delete(self, location: str) -> None:
        """Delete a file, which may be gone already. Raises OSError."""
        with contextlib.suppress(FileNotFoundError):
            self.io.delete(moved(location, self._location_map))
        with self._lock, contextlib.suppress(ValueError):
            self._written.remove(location)

    def note(self, location: str) -> None:
        """Remember a file that another process has written for this output."""
        with self._lock:
            self._written.append(location)

    def keep(self) -> None:
        """Forget what was written: it is the table's now."""
        with self._lock:
            self._written.clear()

    def check_process(self) -> None:
        """Raise KeyReuseError in a forked child: what is under way is the parent's."""
        if self._process != process_number():
            raise KeyReuseError("what the parent process has begun to write is not gone on with")

    def discard(self, locations: list[str]) -> None:
        """Delete files of a commit that failed for certain; in a forked child nothing. What cannot
        be deleted is logged and stays: nothing refers to it, and ``verify`` finds it."""
        if self._process != process_number():
            return
        for location in locations:
            try:
                self.delete(location)
            except Exception as error:
                _log.warning("%s is left behind: %s", location, type(error).__name__)

    def _local_path(self, location: str) -> str | None:
        if not isinstance(self.io, PyArrowFileIO):
            return None
        stored = moved(location, self._location_map)
        scheme, _, path = self.io.parse_location(stored, self.io.properties)
        return path if scheme == "file" else None

    @contextmanager
    def _local(self, path: str) -> Iterator[BinaryIO]:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with AtomicFile(path) as target:
            # Not to be closed by its user: the descriptor is synced afterwards.
            with io.FileIO(target.fd, "w", closefd=False) as raw:
                with io.BufferedWriter(raw, 1 << 20) as file:
                    yield file

    @contextmanager
    def _remote(self, location: str) -> Iterator[BinaryIO]:
        stored = moved(location, self._location_map)
        stream: Any = self.io.new_output(stored).create()
        try:
            yield cast(BinaryIO, stream)
        except BaseException:
            # fsspec's uploads can be given up; Arrow's complete whatever is done to them.
            with contextlib.suppress(Exception):
                stream.discard() if hasattr(stream, "discard") else stream.close()
            with contextlib.suppress(Exception):
                self.io.delete(stored)
            raise
        stream.close()

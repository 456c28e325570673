"""Where encrypted bytes are written: to a caller's file object, or to a path. A path gets its file
only when the file is complete. A pipe or a device gets the bytes as they come. What a failed call
has sent to a caller's object is spoilt, where it can be. Independent of blocks and keys."""

from __future__ import annotations

import contextlib
import errno
import io
import os
from typing import Any

from ..host.atomic import AtomicFile
from ..host.descriptors import is_stream, open_stream
from .filelike import extent, is_io_like


class FileSink:
    """A file object, with the methods of ``AtomicFile``. It is flushed, and closed if it is
    ``owned``."""

    def __init__(self, file: Any, *, owned: bool = False) -> None:
        self._file = file
        self._owned = owned
        self.published = False
        name = getattr(file, "name", None)
        self.name: str | None = name if isinstance(name, str) else None
        self._written = False
        # The position at which we begin to write, and the end of the file before that.
        self._extent = extent(file)
        self._is_io_like = is_io_like(file)

    def write(self, data: memoryview) -> None:
        while data.nbytes:
            # The view is released at once. The same memory soon holds the plaintext of the next
            # blocks. If a target still had the view (against the rules of io), it could send that.
            with data[:] as view:
                written = self._file.write(view if self._is_io_like else bytes(view))
            if written is None:
                # Raw files have ``readall``. Other files that return None have written all, such
                # as paramiko's.
                if hasattr(self._file, "readall"):
                    raise BlockingIOError(
                        errno.EAGAIN,
                        "the target accepts no data now and would block: give one in blocking mode",
                    )
                written = data.nbytes
            if not 0 < written <= data.nbytes:
                raise OSError(
                    errno.EIO,
                    f"the target reports {written} of {data.nbytes} bytes as written",
                )
            self._written = True
            data = data[written:]

    def commit(self) -> None:
        self._flush()
        self._close()
        self.published = True

    def _close(self) -> None:
        if self._owned:
            self._file.close()

    def _flush(self) -> None:
        flush = getattr(self._file, "flush", None)
        if flush is not None:
            flush()

    def discard(self) -> None:
        """Leave nothing that a reader could take for a whole file."""
        # One zero byte makes the written bytes unusable, whatever length and key a reader is given.
        # In a file it overwrites the first of the magic bytes. In a pipe it follows the last whole
        # block, so that no file has that length.
        with contextlib.suppress(Exception):
            if self._extent is not None:
                self._file.seek(self._extent[0])
            if self._written:
                self._file.write(b"\0")
            self._flush()
        # The file gets its old length back. Bytes that we have not overwritten stay.
        if self._extent is not None:
            start, end = self._extent
            with contextlib.suppress(Exception):
                self._file.truncate(end)
            with contextlib.suppress(Exception):
                self._file.seek(start)
        with contextlib.suppress(Exception):
            self._close()


def open_sink(file: Any, *, overwrite: bool, durable: bool) -> AtomicFile | FileSink:
    """Return the sink for a path or a file object; an ``AtomicFile`` is one. Raises TypeError for
    anything else, a text file included; OSError when it cannot be made."""
    if isinstance(file, AtomicFile):
        return file
    if isinstance(file, (str, bytes, os.PathLike)):
        # Without ``overwrite``, a name that exists is refused, as in open()'s mode "x".
        if overwrite and is_stream(file):
            return FileSink(open_stream(file, overwrite=True), owned=True)
        return AtomicFile(file, overwrite=overwrite, durable=durable)
    if isinstance(file, io.TextIOBase):
        raise TypeError("a text file was given: open it in binary mode")
    if not hasattr(file, "write"):
        raise TypeError(f"a path or a binary file object is needed, not {type(file).__name__}")
    return FileSink(file)

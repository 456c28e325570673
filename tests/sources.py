"""Files of many kinds to read from and write to: what ``ags1.open`` may be handed."""

from __future__ import annotations

import contextlib
import io
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow
from typing_extensions import Buffer


class PreadOnly:
    """Ranged reads and nothing else, as an object store's client has them."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.calls: list[tuple[int, int]] = []

    def pread(self, offset: int, size: int) -> bytes:
        self.calls.append((offset, size))
        return self.data[offset : offset + size]

    @property
    def bytes_asked(self) -> int:
        return sum(size for _, size in self.calls)


class StingyRanges(PreadOnly):
    """Ranged reads that return a few bytes at a time, as a remote store may."""

    def pread(self, offset: int, size: int) -> bytes:
        return super().pread(offset, min(size, 7))


class Stingy(io.RawIOBase):
    """A seekable raw file that returns and takes a few bytes at a time."""

    def __init__(self, data: bytes = b"", at_a_time: int = 7) -> None:
        self.inner = io.BytesIO(data)
        self.at_a_time = at_a_time

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0, /) -> int:
        return self.inner.seek(offset, whence)

    def readinto(self, buffer: Buffer, /) -> int:
        view = memoryview(buffer).cast("B")
        return self.inner.readinto(view[: self.at_a_time])

    def write(self, data: Buffer, /) -> int:
        return self.inner.write(memoryview(data).cast("B")[: self.at_a_time])


class ReadOnlyStream:
    """The least that can be read in order: ``read`` alone."""

    def __init__(self, data: bytes) -> None:
        self._inner = io.BytesIO(data)

    def read(self, size: int = -1) -> bytes:
        return self._inner.read(size)


class WriteOnlyStream:
    """The least that can be written to: ``write`` alone."""

    def __init__(self) -> None:
        self.data = b""

    def write(self, data: Buffer) -> int:
        self.data += bytes(data)
        return memoryview(data).nbytes


@contextlib.contextmanager
def from_pipe(data: bytes) -> Iterator[Any]:
    """Yield the reading end of a pipe into which a thread writes."""
    read, write = os.pipe()

    def feed() -> None:
        with contextlib.suppress(BrokenPipeError), os.fdopen(write, "wb") as file:
            file.write(data)

    feeder = threading.Thread(target=feed)
    feeder.start()
    try:
        with os.fdopen(read, "rb") as file:
            yield file
    finally:
        feeder.join()


@contextlib.contextmanager
def from_socket(data: bytes) -> Iterator[Any]:
    """Yield a file over a socket into which a thread writes."""
    left, right = socket.socketpair()

    def feed() -> None:
        with contextlib.suppress(OSError), right:
            right.sendall(data)

    feeder = threading.Thread(target=feed)
    feeder.start()
    try:
        with left, left.makefile("rb") as file:
            yield file
    finally:
        feeder.join()


@contextlib.contextmanager
def _plain(file: Any) -> Iterator[Any]:
    yield file


def seekable_sources(data: bytes, path: Path) -> dict[str, Callable[[], Any]]:
    """Return context managers that yield a source with these bytes each; ``path`` is scratch."""
    path.write_bytes(data)
    return {
        "path": lambda: _plain(path),
        "str": lambda: _plain(str(path)),
        "bytes path": lambda: _plain(os.fsencode(path)),
        "BytesIO": lambda: _plain(io.BytesIO(data)),
        "buffered file": lambda: path.open("rb"),
        "raw file": lambda: path.open("rb", buffering=0),
        "pread": lambda: _plain(PreadOnly(data)),
        "stingy ranges": lambda: _plain(StingyRanges(data)),
        "stingy": lambda: _plain(Stingy(data)),
        "pyarrow": lambda: pyarrow.OSFile(str(path)),
        "pyarrow in memory": lambda: pyarrow.BufferReader(data),
        "pyarrow over Python": lambda: pyarrow.PythonFile(io.BytesIO(data), "r"),
    }


def sequential_sources(data: bytes) -> dict[str, Callable[[], Any]]:
    """The same of sources that cannot seek."""
    return {
        "pipe": lambda: from_pipe(data),
        "socket": lambda: from_socket(data),
        "read only": lambda: _plain(ReadOnlyStream(data)),
    }

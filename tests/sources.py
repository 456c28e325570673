"""Files of many kinds to read from and write to: what ``ags1.open`` may be handed."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import http.client
import io
import mmap
import os
import socket
import tarfile
import tempfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow
import urllib3
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


class Sftp:
    """A file as paramiko's SFTPFile: ``seek`` and ``write`` return None. It is not of ``io``."""

    def __init__(self, data: bytes = b"") -> None:
        self.inner = io.BytesIO(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def seek(self, offset: int, whence: int = 0) -> None:
        self.inner.seek(offset, whence)

    def write(self, data: Buffer) -> None:
        self.inner.write(data)


class ReadOnlyStream:
    """The least that can be read in order: ``read`` alone. It returns what ``kind`` makes, and not
    more than ``most`` bytes at a time."""

    def __init__(
        self, data: bytes, kind: Callable[[bytes], Any] = bytes, most: int = 1 << 30
    ) -> None:
        self.inner = io.BytesIO(data)
        self.kind = kind
        self.most = most

    def read(self, size: int = -1) -> Any:
        return self.kind(self.inner.read(min(size, self.most)))


class ObjectReader(ReadOnlyStream):
    """A file as obstore's: ``read`` returns a buffer that is no ``bytes``."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data, pyarrow.py_buffer)

    def seek(self, offset: int, whence: int = 0) -> int:
        return self.inner.seek(offset, whence)

    def tell(self) -> int:
        return self.inner.tell()


class Download(ReadOnlyStream):
    """A download as Azure's: its ``readinto`` takes a file."""

    def readinto(self, stream: Any) -> int:
        return stream.write(self.inner.read())  # type: ignore[no-any-return]


class HttpStream(io.BufferedReader):
    """A file as fsspec's HTTPStreamFile, which says that it can seek."""

    def seek(self, offset: int, whence: int = 0, /) -> int:
        raise ValueError("Cannot seek streaming HTTP file")


class WriteOnlyStream:
    """The least that can be written to: ``write`` alone."""

    def __init__(self) -> None:
        self.data = b""

    def write(self, data: Buffer) -> int:
        self.data += bytes(data)
        return memoryview(data).nbytes


class ObjectWriter:
    """A file as obstore's: it keeps what it was given, and reads it when it is closed."""

    def __init__(self) -> None:
        self.parts: list[memoryview] = []

    def write(self, data: Buffer) -> int:
        self.parts.append(memoryview(pyarrow.py_buffer(data)))
        return len(self.parts[-1])

    def getvalue(self) -> bytes:
        return b"".join(self.parts)


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
def _from_socket(data: bytes, receive: Callable[[socket.socket], Any]) -> Iterator[Any]:
    """Yield what ``receive`` makes of a socket into which a thread writes."""
    left, right = socket.socketpair()

    def feed() -> None:
        with contextlib.suppress(OSError), right:
            right.sendall(data)

    feeder = threading.Thread(target=feed)
    feeder.start()
    try:
        with left, receive(left) as file:
            yield file
    finally:
        feeder.join()


def from_socket(data: bytes) -> Any:
    return _from_socket(data, lambda end: end.makefile("rb"))


def _from_http(data: bytes) -> Any:
    def receive(end: socket.socket) -> http.client.HTTPResponse:
        response = http.client.HTTPResponse(end)
        response.begin()
        return response

    return _from_socket(
        b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(data) + data, receive
    )


def _zipped(data: bytes) -> Any:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("member", data)
    return zipfile.ZipFile(archive).open("member")


def _tarred(data: bytes, mode: str) -> Any:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as file:
        member = tarfile.TarInfo("member")
        member.size = len(data)
        file.addfile(member, io.BytesIO(data))
    archive.seek(0)
    opened = tarfile.open(fileobj=archive, mode=mode)  # type: ignore[call-overload]  # noqa: SIM115
    return opened.extractfile(opened.next())


def _filled(file: Any, data: bytes) -> Any:
    file.write(data)
    file.seek(0)
    return file


def _mapped(path: Path) -> Any:
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


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
        "SFTP": lambda: _plain(Sftp(data)),
        "mmap": lambda: _mapped(path),
        "temporary file": lambda: _filled(tempfile.NamedTemporaryFile(buffering=0), data),
        "spooled": lambda: _filled(tempfile.SpooledTemporaryFile(1000), data),
        "object": lambda: _plain(ObjectReader(data)),
        "zip member": lambda: _zipped(data),
        "tar member": lambda: _tarred(data, "r:"),
        "gzip": lambda: gzip.open(io.BytesIO(gzip.compress(data, 1))),
        "bz2": lambda: bz2.open(io.BytesIO(bz2.compress(data, 1))),
    }


def sequential_sources(data: bytes) -> dict[str, Callable[[], Any]]:
    """The same of sources that cannot seek."""
    return {
        "pipe": lambda: from_pipe(data),
        "socket": lambda: from_socket(data),
        "read only": lambda: _plain(ReadOnlyStream(data)),
        "bytearrays": lambda: _plain(ReadOnlyStream(data, bytearray, 7)),
        "memoryviews": lambda: _plain(ReadOnlyStream(data, memoryview)),
        "Arrow's buffers": lambda: _plain(ReadOnlyStream(data, pyarrow.py_buffer)),
        "download": lambda: _plain(Download(data)),
        "HTTP stream": lambda: HttpStream(io.BytesIO(data)),
        "http.client": lambda: _from_http(data),
        "urllib3": lambda: urllib3.HTTPResponse(io.BytesIO(data), preload_content=False),
        "tar stream": lambda: _tarred(data, "r|"),
    }

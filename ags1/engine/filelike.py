"""What readers and writers share: the methods of ``io.BufferedIOBase`` that neither reads nor
writes, the extent of a caller's file, and a pool of buffers."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from typing_extensions import Self

# Blocks smaller than this are read, and written, several at a time.
CHUNK_SIZE = 1 << 20
# The most bytes of one request to a source that may be far away, unless one block is larger.
REQUEST_SIZE = 4 << 20


def check_open(stream: Any) -> None:
    """Raise ValueError if ``stream`` is closed, as ``io`` does."""
    if stream.closed:
        raise ValueError("I/O operation on closed file")


def extent(file: Any) -> tuple[int, int] | None:
    """Return the position and the end of a binary file object, in bytes; None if it cannot seek.
    The position stays. Some files claim that they can seek, and fail (HTTP streams of fsspec). The
    ``seek`` of others returns None (paramiko's files, ``mmap`` before Python 3.13)."""
    try:
        if hasattr(file, "seekable") and not file.seekable():
            return None
        start = file.tell()
        file.seek(0, os.SEEK_END)
    except (AttributeError, OSError, ValueError):
        return None
    end = file.tell()
    file.seek(start)
    return start, end


def is_io_like(file: Any) -> bool:
    """Whether a file object has the interface of ``io``. An object without ``readable`` may have
    methods of the same names that do other things: ``readinto`` of Azure's downloads takes a file,
    and ``write`` of obstore's files keeps the memory that it is given."""
    return hasattr(file, "readable")


class Stream:
    """The methods of ``io.BufferedIOBase`` besides reading and writing. A compiled class cannot
    inherit from it, so the streams are registered with it instead."""

    __slots__ = ()

    def close(self) -> None:
        raise NotImplementedError

    def readable(self) -> bool:
        check_open(self)
        return False

    # A stream says no to all four. Reader and Writer override what they can do.
    writable = seekable = isatty = readable

    def fileno(self) -> int:
        raise io.UnsupportedOperation("an encrypted stream has no descriptor of its own")

    def detach(self) -> NoReturn:
        raise io.UnsupportedOperation("detach")

    def truncate(self, size: int | None = None, /) -> int:
        raise io.UnsupportedOperation("truncate")

    def flush(self) -> None:
        check_open(self)

    def __enter__(self) -> Self:
        check_open(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        # A stream that could not be opened has neither, but error reporters may print it.
        name, mode = getattr(self, "name", None), getattr(self, "mode", None)
        return f"<ags1 {type(self).__name__} name={name!r} mode={mode!r}>"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(f"an encrypted {type(self).__name__} holds a key and cannot be pickled")


class Scratch:
    """Buffers of ``size`` bytes, used again and again: the page faults of a fresh mebibyte take
    longer than its decryption. ``large``: of that size too."""

    def __init__(self, size: int, large: int = 0) -> None:
        self._size = size
        self._idle: dict[int, list[memoryview]] = {size: [], large: []}
        self._large = large

    def take(self, size: int = 0) -> memoryview:
        """Return a buffer of at least ``size`` bytes, a new one if none is idle."""
        size = self._size if size <= self._size else self._large
        try:
            return self._idle[size].pop()
        except IndexError:
            return memoryview(bytearray(size))

    def give(self, buffer: memoryview) -> None:
        """Take back a buffer that ``take`` returned."""
        self._idle[buffer.nbytes].append(buffer)

"""What readers and writers share: the rest of ``io.BufferedIOBase``, a lock, buffers used again."""

from __future__ import annotations

import io
from _thread import RLock
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from typing_extensions import Self

# Blocks smaller than this are read, and written, several at a time.
CHUNK_SIZE = 1 << 20


class Stream:
    """What ``io.BufferedIOBase`` offers beyond reading and writing.

    A compiled class cannot inherit from it, so the streams are registered with it instead.
    """

    name: str | None
    mode: str
    closed: bool

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")

    def close(self) -> None:
        raise NotImplementedError

    def readable(self) -> bool:
        self._check_open()
        return False

    def writable(self) -> bool:
        self._check_open()
        return False

    def seekable(self) -> bool:
        self._check_open()
        return False

    def isatty(self) -> bool:
        self._check_open()
        return False

    def fileno(self) -> int:
        raise io.UnsupportedOperation("an encrypted stream has no descriptor of its own")

    def detach(self) -> NoReturn:
        raise io.UnsupportedOperation("detach")

    def truncate(self, size: int | None = None, /) -> int:
        raise io.UnsupportedOperation("truncate")

    def flush(self) -> None:
        self._check_open()

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<ags1 {type(self).__name__} name={self.name!r} mode={self.mode!r}>"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(f"an encrypted {type(self).__name__} holds a key and cannot be pickled")


class Scratch:
    """Buffers used again: a fresh mebibyte costs more in page faults than its decryption."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._idle: list[memoryview] = []

    def take(self) -> memoryview:
        try:
            return self._idle.pop()
        except IndexError:
            return memoryview(bytearray(self._size))

    def give(self, buffer: memoryview) -> None:
        self._idle.append(buffer)


class Lock(RLock):  # type: ignore[misc]  # final to the checker, not to Python
    """A lock that tells its own holder (a signal handler that uses the stream it interrupted) from
    others, who wait.

    It is the C class, so that ``with`` takes it without running Python code: no signal handler can
    raise between the lock and the block that gives it back.
    """

    @property
    def mine(self) -> bool:
        """Whether this thread holds it."""
        return bool(self._is_owned())  # type: ignore[attr-defined]

    def check_not_mine(self) -> None:
        """Raise RuntimeError when this thread holds it."""
        if self.mine:
            raise RuntimeError("the stream is in use further up in this thread")

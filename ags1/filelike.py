"""Parts of readers and writers: the other methods of ``io.BufferedIOBase``, a lock, a buffer
pool."""

from __future__ import annotations

import io
from _thread import RLock
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn, Protocol

if TYPE_CHECKING:
    from typing_extensions import Self

# Blocks smaller than this are read, and written, several at a time.
CHUNK_SIZE = 1 << 20


class Closable(Protocol):
    @property
    def closed(self) -> bool: ...


def check_open(stream: Closable) -> None:
    """Raise ValueError when ``stream`` is closed, as ``io`` does."""
    if stream.closed:
        raise ValueError("I/O operation on closed file")


class Stream:
    """The methods of ``io.BufferedIOBase`` besides reading and writing.

    A compiled class cannot inherit from it, so the streams are registered with it instead.
    """

    __slots__ = ()

    if TYPE_CHECKING:

        @property
        def name(self) -> str | None: ...
        @property
        def mode(self) -> str: ...
        @property
        def closed(self) -> bool: ...

    def close(self) -> None:
        raise NotImplementedError

    def readable(self) -> bool:
        check_open(self)
        return False

    def writable(self) -> bool:
        check_open(self)
        return False

    def seekable(self) -> bool:
        check_open(self)
        return False

    def isatty(self) -> bool:
        check_open(self)
        return False

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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        # One that could not be opened has neither; error reporters print it all the same.
        name, mode = getattr(self, "name", None), getattr(self, "mode", None)
        return f"<ags1 {type(self).__name__} name={name!r} mode={mode!r}>"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(f"an encrypted {type(self).__name__} holds a key and cannot be pickled")


class Scratch:
    """Buffers to use again. A fresh mebibyte costs more in page faults than its decryption."""

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
    """A lock that knows whether the current thread holds it. A signal handler that uses the stream
    that it interrupted gets an error; other threads wait.

    It is the C class, so that ``with`` takes it without running Python code: no signal handler can
    raise between taking the lock and the block that releases it.
    """

    @property
    def mine(self) -> bool:
        """Whether this thread holds it."""
        return bool(self._is_owned())  # type: ignore[attr-defined]

    def check_not_mine(self) -> None:
        """Raise RuntimeError when this thread holds it."""
        if self.mine:
            raise RuntimeError(
                "the stream was used while a call on it was still running in the same thread (by a "
                "signal handler, or by the file object that it reads or writes): use it after that "
                "call has returned"
            )

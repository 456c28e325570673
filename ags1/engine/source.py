"""Where encrypted bytes are read: a path, a file object, or any object with ranged reads.
If a read of a pipe fails, the pipe has to be opened again. Independent of blocks and keys."""

from __future__ import annotations

import errno
import io
import os
import stat
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import FormatError, TruncatedError
from ..host.process import Lock, PerProcess
from ..host.regular_file import RegularFile, file_status
from ._buffers import flat
from ._pump import Descriptor
from .filelike import extent, is_io_like

if TYPE_CHECKING:
    from typing_extensions import Buffer

_WOULD_BLOCK = "the source has no data now and would block: give one in blocking mode"


class Source(Protocol):
    """An encrypted file. ``size`` is in bytes, or None if it is unknown. Without ``random_access``,
    one thread must fetch ranges in order and without gaps. ``far``: a request may take long,
    however many bytes it asks for."""

    size: int | None
    random_access: bool
    far: bool = False

    def fetch(self, offset: int, size: int, scratch: memoryview) -> memoryview:
        """Return exactly ``size`` bytes from ``offset``: in ``scratch``, or where they are in
        memory already. Raises TruncatedError if the source ends before, and what the storage
        raises."""

    def check_end(self) -> None:
        """Raise FormatError if more bytes follow. A source that knows its size need not check."""
        return

    def check_unchanged(self) -> None:
        """Raise OSError if another file has taken the place of the one that was opened. Then bytes
        that do not authenticate are no attack. A file's descriptor always reads the same file."""
        return

    def close(self) -> None:
        """Close what was opened here, and not what belongs to the caller."""
        return


def _closed(offset: int, size: int) -> bytes:
    raise ValueError("I/O operation on closed file")


def _cut(got: int, offset: int, size: int) -> TruncatedError:
    return TruncatedError(
        f"the file ends at byte {offset + got}, and {size} bytes from byte {offset} are needed: it "
        "was truncated, or it is still being written",
        offset=offset,
    )


class PathSource(Source):
    """A regular file on this machine. Any number of threads read it at once, with ``pread``."""

    random_access = True

    def __init__(self, fd: int, size: int) -> None:
        self.size: int | None = size
        # It is closed when its last user drops it. So while a thread reads, the number of the
        # descriptor cannot become another file's.
        self._file: Descriptor | None = Descriptor(fd)

    def fetch(self, offset: int, size: int, scratch: memoryview) -> memoryview:
        file = self._file
        if file is None:
            raise ValueError("I/O operation on closed file")
        view = scratch[:size]
        done = os.preadv(file.fd, [view], offset)
        while done < size:
            got = os.preadv(file.fd, [view[done:]], offset + done)
            if not got:
                raise _cut(done, offset, size)
            done += got
        return view

    def close(self) -> None:
        self._file = None


class RangedSource(Source):
    """Memory, or a caller's object, with a thread-safe ``pread(offset, size)``, which is called
    again if it returns fewer bytes. If it returns none, the source has ended. The encrypted file
    begins at byte ``base``. ``size`` (bytes) is used if there is one: an attribute, or a method
    without arguments."""

    random_access = True

    def __init__(
        self,
        pread: Callable[[int, int], Buffer],
        size: object,
        base: int = 0,
        check: Callable[[], None] | None = None,
        *,
        far: bool = True,
    ) -> None:
        self.far = far
        self._pread = pread
        self._base = base
        self._check = check
        size = size() if callable(size) else size
        self.size: int | None = max(size - base, 0) if isinstance(size, int) else None

    def fetch(self, offset: int, size: int, scratch: memoryview) -> memoryview:
        done = 0
        while True:
            begin = self._base + offset + done
            view = flat(self._pread(begin, size - done))[: size - done]
            if view.nbytes == size:
                return view
            if not view.nbytes:
                self.check_unchanged()
                raise _cut(done, offset, size)
            scratch[done : done + view.nbytes] = view
            done += view.nbytes
            if done == size:
                return scratch[:size]

    def check_unchanged(self) -> None:
        if self._check is not None:
            self._check()

    def close(self) -> None:
        self._pread = _closed


class SeekableSource(Source):
    """A seekable file object, from its position ``base`` to its ``end``, one read at a time."""

    random_access = True

    def __init__(self, file: Any, base: int, end: int) -> None:
        self._file = file
        self._lock = PerProcess(Lock)
        self._base = base
        self.size: int | None = end - base

    def fetch(self, offset: int, size: int, scratch: memoryview) -> memoryview:
        view = scratch[:size]
        lock = self._lock.get()
        lock.check_not_mine()
        with lock:
            self._file.seek(self._base + offset)
            done = read_full(self._file, view)
        if done < size:
            raise _cut(done, offset, size)
        return view


class PipeSource(Source):
    """A file object that cannot seek, such as a pipe. ``owned``: ``close`` closes it."""

    random_access = False
    size: int | None = None

    def __init__(self, file: Any, *, owned: bool = False) -> None:
        self._file = file
        self._owned = owned
        self._position = 0
        self._broken = False

    def fetch(self, offset: int, size: int, scratch: memoryview) -> memoryview:
        if self._broken:
            raise OSError(
                errno.EIO, "an earlier read of the source failed within a block: open it again"
            )
        if offset != self._position:
            raise io.UnsupportedOperation("the source cannot seek: read it in order")
        view = scratch[:size]
        self._broken = True
        done = read_full(self._file, view)
        self._broken = False
        self._position += done
        if done < size:
            raise _cut(done, offset, size)
        return view

    def check_end(self) -> None:
        if read_full(self._file, memoryview(bytearray(1))):
            raise FormatError(
                f"more bytes follow the trusted length of {self._position}: something was "
                "appended, or these keys belong to another file"
            )

    def close(self) -> None:
        if self._owned:
            self._file.close()


def read_full(file: Any, view: memoryview) -> int:
    """Read from a binary file object until ``view`` is full or the file ends; return the bytes."""
    done = 0
    while wanted := view.nbytes - done:
        if is_io_like(file) and hasattr(file, "readinto"):
            got = file.readinto(view[done:])
        else:
            data = file.read(wanted)
            part = flat(b"" if data is None else data)
            got = None if data is None else part.nbytes
            if part.nbytes <= wanted:
                view[done : done + part.nbytes] = part
        if got is None:
            raise BlockingIOError(errno.EAGAIN, _WOULD_BLOCK)
        if not got:
            break
        if not 0 < got <= wanted:
            why = f"the source returned {got} bytes, and {wanted} were requested"
            raise OSError(errno.EIO, why)
        done += got
    return done


def open_source(file: Any) -> tuple[Source, str | None]:
    """Return the source for a path or a file object, and its name for messages. Raises TypeError
    for anything else, a text file included; OSError when it cannot be opened."""
    if isinstance(file, RegularFile):
        return PathSource(os.dup(file.fd), file.status.st_size), file.name
    if isinstance(file, (str, bytes, os.PathLike)):
        return _open_path(file), os.fsdecode(file)
    if isinstance(file, io.TextIOBase):
        raise TypeError("a text file was given: open it in binary mode")
    name = getattr(file, "name", None)
    name = name if isinstance(name, str) else None
    if type(file) is io.BytesIO:
        # What it holds now, whatever is done to it later: if the caller writes to it meanwhile, it
        # takes new memory. A view for each call: without the GIL, a view does not survive that two
        # threads slice it at once.
        data = file.getvalue()
        base = file.tell()
        return RangedSource(
            lambda at, n: memoryview(data)[at : at + n], len(data), base, far=False
        ), name
    if hasattr(file, "pread"):
        check = getattr(file, "check_unchanged", None)
        return RangedSource(file.pread, getattr(file, "size", None), check=check), name
    if not hasattr(file, "read"):
        raise TypeError(f"a path or a binary file object is needed, not {type(file).__name__}")
    found = extent(file)
    if found is None:
        return PipeSource(file), name
    base, end = found
    if hasattr(file, "read_at"):
        # pyarrow's files take the arguments the other way round.
        return RangedSource(lambda at, size: file.read_at(size, at), end, base), name
    return SeekableSource(file, base, end), name


def _open_path(path: str | bytes | os.PathLike[Any]) -> Source:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        status = file_status(fd, path)
        if stat.S_ISREG(status.st_mode):
            return PathSource(fd, status.st_size)
        return PipeSource(os.fdopen(fd, "rb", buffering=0), owned=True)
    except BaseException:
        os.close(fd)
        raise

"""Files that are read where they are, and not pipes or devices, which a read would wait for."""

from __future__ import annotations

import errno
import os
import stat
from typing import Any, NamedTuple


class RegularFile(NamedTuple):
    """A regular file that is open for reading. If another file takes its name, this one is still
    read. It can be used wherever a path can."""

    fd: int
    status: os.stat_result
    name: str

    def __fspath__(self) -> str:
        return self.name

    def pread(self, offset: int, size: int) -> bytes:
        """Return up to ``size`` bytes from ``offset``. Raises OSError."""
        return os.pread(self.fd, size, offset)


class regular_file:
    """Open a regular file for reading, in a ``with`` block. One that is open already is returned.
    Raises OSError, also for a folder, a pipe or a device."""

    __slots__ = ("_fd", "_path")

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path, self._fd = path, -1

    def __enter__(self) -> RegularFile:
        path = self._path
        if isinstance(path, RegularFile):
            return path
        # Without O_NONBLOCK, opening a named pipe that has no writer would hang.
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            status = file_status(self._fd, path)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(errno.EINVAL, "Not a regular file", os.fsdecode(path))
            return RegularFile(self._fd, status, os.fsdecode(path))
        except BaseException:
            os.close(self._fd)
            raise

    def __exit__(self, *_: object) -> None:
        if self._fd >= 0:
            os.close(self._fd)


def file_status(fd: int, path: str | bytes | os.PathLike[Any]) -> os.stat_result:
    """Return the status of what is open. Raises IsADirectoryError for a folder."""
    status = os.fstat(fd)
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fsdecode(path))
    return status

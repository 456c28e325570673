"""Files that are read where they are, and not pipes or devices, which a read would wait for."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
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


@contextlib.contextmanager
def regular_file(path: str | os.PathLike[str]) -> Iterator[RegularFile]:
    """Open a regular file for reading. One that is open already is returned. Raises OSError, also
    for a folder, a pipe or a device."""
    if isinstance(path, RegularFile):
        yield path
        return
    # Without O_NONBLOCK, opening a named pipe that has no writer would hang.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        status = file_status(fd, path)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "Not a regular file", os.fsdecode(path))
        yield RegularFile(fd, status, os.fsdecode(path))
    finally:
        os.close(fd)


def file_status(fd: int, path: str | bytes | os.PathLike[Any]) -> os.stat_result:
    """Return the status of what is open. Raises IsADirectoryError for a folder."""
    status = os.fstat(fd)
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fsdecode(path))
    return status

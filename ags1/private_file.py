"""Small private files, such as keyrings and sidecars.

They are read up to a size limit, and written whole or not at all with mode 0600. Knows nothing of
what the bytes mean.
"""

from __future__ import annotations

import errno
import os
import stat

from .atomic import AtomicFile


def read(path: str, size_limit: int) -> tuple[bytes, os.stat_result]:
    """Return a regular file's bytes and its status. Raises OSError, also for a larger file."""
    # Without O_NONBLOCK, opening a named pipe that has no writer would hang.
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(fd)
        if stat.S_ISDIR(status.st_mode):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "Not a regular file")
        if status.st_size > size_limit:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        with open(fd, "rb", closefd=False) as file:
            data = file.read(size_limit + 1)
        if len(data) > size_limit:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        return data, status
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None
    finally:
        os.close(fd)


def write(path: str, data: bytes, *, overwrite: bool, durable: bool) -> None:
    """Write a file that only its owner may read. Raises OSError."""
    with AtomicFile(path, overwrite=overwrite, durable=durable, mode=0o600) as out:
        try:
            with open(out.fd, "wb", closefd=False) as file:
                file.write(data)
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from None

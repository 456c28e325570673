"""Small private files, such as keyrings and sidecars.

They are read up to a size limit, and written whole or not at all with mode 0600. Knows nothing of
what the bytes mean.
"""

from __future__ import annotations

import errno
import os

from .atomic import AtomicFile
from .source import regular_file


def read(path: str, size_limit: int) -> tuple[bytes, os.stat_result]:
    """Return a regular file's bytes and its status. Raises OSError, also for a larger file."""
    with regular_file(path) as (fd, status):
        try:
            with open(fd, "rb", closefd=False) as file:
                # A file may grow, and the system may report a wrong size.
                data = b"" if status.st_size > size_limit else file.read(size_limit + 1)
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from None
        if max(status.st_size, len(data)) > size_limit:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), path)
        return data, status


def write(path: str, data: bytes, *, overwrite: bool, durable: bool) -> None:
    """Write a file that only its owner may read. Raises OSError."""
    with AtomicFile(path, overwrite=overwrite, durable=durable, mode=0o600) as out:
        try:
            with open(out.fd, "wb", closefd=False) as file:
                file.write(data)
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from None

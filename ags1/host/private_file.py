"""Small private files, such as keyrings. They are read up to a size limit, and written whole or not
at all with mode 0600."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Mapping

from .atomic import AtomicFile
from .regular_file import regular_file


def config_folder(environ: Mapping[str, str]) -> str:
    """Return the user's configuration folder of ags1, by the XDG rules."""
    folder = environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(folder):  # the rules: ignore a relative path
        folder = os.path.join(os.path.expanduser("~"), ".config")
    return os.path.join(folder, "ags1")


def read(path: str, size_limit: int) -> tuple[bytes, os.stat_result]:
    """Return a regular file's bytes and its status. Raises OSError, also for a larger file."""
    with regular_file(path) as (fd, status, _):
        try:
            with open(fd, "rb", closefd=False) as file:
                # A file may grow, and the system may report a wrong size.
                data = b"" if status.st_size > size_limit else file.read(size_limit + 1)
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from None
        if max(status.st_size, len(data)) > size_limit:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), path)
        return data, status


def write(
    path: str, data: bytes, *, overwrite: bool, durable: bool, has_secrets: bool = False
) -> None:
    """Write a file that only its owner may read. Raises OSError; with ``has_secrets`` also
    PermissionError, before anything is written, where the file system keeps no modes."""
    with AtomicFile(path, overwrite=overwrite, durable=durable, mode=0o600) as out:
        mode = stat.S_IMODE(os.fstat(out.fd).st_mode)
        if has_secrets and mode & 0o077:
            raise PermissionError(
                errno.EPERM, f"the file system gives it the mode {mode:04o}", path
            )
        out.write(data)

"""``Storage``: the verbs of all storages."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from ...host.atomic import StagedFile


class Status(NamedTuple):
    """A file's size (bytes; -1 if it is not a regular file) and version. The version changes with
    the file; it is "" if the storage has nothing that does."""

    size: int
    version: str


class Storage(Protocol):
    """Files by their paths: absolute paths of this machine, or URLs. A file is never seen in part.
    Methods raise OSError; FileNotFoundError if there is no such file. ``is_remote``: each request
    mostly waits, so many are sent at a time."""

    is_remote: bool

    def status(self, path: str) -> Status | None:
        """Return the current status of a file, None if there is none."""

    def names(self, folder: str) -> list[str]:
        """Return the names of the files in a folder; none if it does not exist."""

    def read(self, path: str, begin: int = 0, end: int | None = None) -> bytes:
        """Return a file's bytes, or a range of them; fewer if the file ends before."""

    def starts(self, wanted: Sequence[tuple[str, int]]) -> list[bytes | Exception]:
        """Return the first bytes of files, as many as wanted, or why they cannot be read."""

    def write(self, path: str, data: bytes, *, new: bool = False) -> None:
        """Write a file, whole or not at all, in place of an older one. With ``new``, raise
        FileExistsError if there is one; a storage may look first and write then."""

    def scratch(self, path: str) -> StagedFile:
        """Return a place on this machine for the bytes of a file that gets its name later."""

    def remove(self, path: str) -> None:
        """Remove a file. It is no error if there is none."""


def status_of_file(storage: Storage, path: str) -> Status:
    """Return the status of a file that has to be there. Raises FileNotFoundError, OSError."""
    status = storage.status(path)
    if status is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    return status

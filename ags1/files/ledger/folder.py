"""``FolderStore``: a ledger's objects are files in a folder that is mounted.

A file gets its name by a hard link, which fails if there is a file of that name, also on NFS.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Iterable

from ...engine._gcm import random_bytes
from ...errors import KmsAccessDeniedError
from ...host.atomic import AtomicFile
from ...host.regular_file import regular_file
from ...kms.passphrase import check_owner
from .store import BUSY

_NO_LINKS = (
    "this file system has no hard links, so two jobs could write to one ledger: use a folder of "
    "another file system, or the URL of an object storage"
)


class FolderStore:
    """The files in a folder; see ``Store``. ``durable`` syncs them to the disk."""

    def __init__(self, folder: str, *, durable: bool) -> None:
        self.url = folder
        self._durable = durable

    def url_of(self, name: str) -> str:
        return os.path.join(self.url, name)

    def put(self, name: str, data: bytes) -> None:
        path = self.url_of(name)
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        with AtomicFile(path, durable=self._durable, mode=0o600) as out:
            out.write(data)

    def read(self, name: str) -> bytes:
        with regular_file(self.url_of(name)) as (fd, *_), open(fd, "rb", closefd=False) as file:
            return file.read()

    def names(self, folder: str = "") -> list[str]:
        try:
            with os.scandir(self.url_of(folder)) as entries:
                return [entry.name for entry in entries if entry.is_file()]
        except FileNotFoundError:
            return []

    def remove(self, names: Iterable[str]) -> None:
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.url_of(name))

    def modified(self, name: str) -> float:
        return os.stat(self.url_of(name)).st_mtime

    def check(self, age_of: str | None) -> float:
        os.makedirs(self.url, mode=0o700, exist_ok=True)
        _refuse_others(self.url)
        self._lock_out()
        name = f"_probe-{random_bytes(8).hex()}"
        path = self.url_of(name)
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            try:
                os.link(path, f"{path}-2")
            except OSError:
                raise OSError(errno.ENOTSUP, _NO_LINKS, self.url) from None
            return 0.0 if age_of is None else self.modified(name) - self.modified(age_of)
        finally:
            self.remove([name, f"{name}-2"])

    def _lock_out(self) -> None:
        """Keep jobs of earlier versions from writing: they lock the file ``_lock``, and know no
        state. A folder takes its place, which they cannot open. Raises BlockingIOError while one of
        them writes."""
        path = self.url_of("_lock")
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except IsADirectoryError:
            return
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(path)
            os.mkdir(path, 0o700)
        except (BlockingIOError, FileExistsError):
            raise BlockingIOError(errno.EAGAIN, BUSY, self.url) from None
        finally:
            os.close(fd)


def _refuse_others(folder: str) -> None:
    status = os.stat(folder)
    check_owner(status, folder, "ledger's folder")
    if status.st_mode & 0o022:
        raise KmsAccessDeniedError(
            f"others may write to this ledger (mode {stat.S_IMODE(status.st_mode):04o}) and "
            "could make a job move or remove files: run chmod go-w on it",
            file=folder,
        )

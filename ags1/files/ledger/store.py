"""``Store``: where a ledger keeps its objects. They are made once, read, listed and removed.

All that a storage must have is that objects appear whole. Independent of ledgers.
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
from ...host.pools import map_in_threads
from ...kms.passphrase import check_owner
from ..paths import local_path
from ..storage.bucket import Bucket, open_bucket
from ..storage.folder import Folder

BUSY = "a job of an earlier version is writing to this ledger: wait for it"
# How often an object is written again whose writer got no answer.
_TRIES = 3
# Requests at a time.
_REQUESTS = 16


class Store:
    """The objects below ``url``, which is a folder or a URL. ``durable`` syncs a folder's files to
    the disk. Methods raise OSError. A URL that cannot be used raises KmsConfigurationError too."""

    def __init__(self, url: str, *, durable: bool = True) -> None:
        self.url = url.rstrip("/")
        self._storage: Folder | Bucket
        is_local = local_path(url) is not None
        self._storage = Folder(durable=durable, mode=0o600) if is_local else open_bucket(url)

    def url_of(self, name: str) -> str:
        """Return the path or the URL of an object."""
        return f"{self.url}/{name}" if name else self.url

    def put(self, name: str, data: bytes) -> None:
        """Write an object, whole or not at all, in place of an older one."""
        self._storage.write(self.url_of(name), data)

    def read(self, name: str) -> bytes:
        """Return an object. Raises FileNotFoundError."""
        return self._storage.read(self.url_of(name))

    def names(self, folder: str = "") -> list[str]:
        """Return the names of the objects directly below a folder; none if it does not exist."""
        return self._storage.names(self.url_of(folder))

    def remove(self, names: Iterable[str]) -> None:
        """Remove objects; those that do not exist are no error."""
        paths = list(map(self.url_of, names))
        if not self._storage.is_remote or not paths:
            for path in paths:
                self._storage.remove(path)
            return
        list(map_in_threads(_REQUESTS, self._storage.remove, paths))

    def modified(self, name: str) -> float:
        """Return when an object was made, in seconds since 1970, by the storage's clock."""
        return self._storage.modified(self.url_of(name))

    def check(self) -> None:
        """Make sure that a ledger can be written here. Raises OSError, also for a storage whose
        objects do not appear whole, BlockingIOError while a job of an earlier version writes, and
        KmsAccessDeniedError for a folder that others may write to."""
        if isinstance(self._storage, Bucket):
            self._storage.check_whole(self.url)
        else:
            os.makedirs(self.url, mode=0o700, exist_ok=True)
            _refuse_others(self.url)
            self._lock_out()

    def age(self, name: str) -> float:
        """Return how old an object is, in seconds, by the storage's own clock."""
        # Readers of Parquet folders pass over names that begin with ``_``.
        probe = f"_probe-{random_bytes(8).hex()}"
        self.put(probe, b"")
        try:
            return self.modified(probe) - self.modified(name)
        finally:
            self.remove([probe])

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


def create(store: Store, name: str, data: bytes) -> None:
    """Write an object, a few times if there is no answer. Raises OSError."""
    for tries_left in reversed(range(_TRIES)):
        try:
            store.put(name, data)
            return
        except OSError:
            if not tries_left:
                raise

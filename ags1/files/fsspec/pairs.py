"""A file and its sidecar in the file system below: published, copied and removed as a pair.

There is never a file without its key. A sidecar is written before its file, with the keys of the
file that is there until then, and removed after it (``ags1.files.publish`` has the steps).
``LocalPairs`` does this with files on this machine, and locks what it changes. ``Pairs`` does it in
any file system of fsspec whose files appear whole, such as an object storage. That has no locks:
there may be one writer of a file at a time. Independent of plaintext and unwrapped keys.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Protocol

from ...errors import KeyMetadataError
from ...host.atomic import StagedFile
from ...host.regular_file import regular_file
from ...keys.sidecar import (
    MAX_SIDECAR_SIZE,
    START_SIZE,
    Sidecar,
    first_nonce,
    sidecar_beside,
    sidecar_path,
)
from ..paths import SUFFIX
from ..publish import publish
from ..sidecars import Beside, LocalPlace, OldKeys, StoragePlace, check_link, publish_pair
from ..storage.bucket import Bucket
from ..storage.folder import Folder

# A smaller file is read by one request, and kept while it is open: a block of 1 MiB fits.
_AT_ONCE = (1 << 20) + (1 << 12)
_COPIED_AT_ONCE = 1 << 20


class Opened(Protocol):
    """What ``ags1.open`` reads: any number of ranges at once."""

    def pread(self, offset: int, size: int) -> bytes:
        """Return a range of the encrypted file."""


def stored_path(path: str) -> str:
    """Return the name of the encrypted file for a path with or without ``.ags1``."""
    return path if path.endswith(SUFFIX) else path + SUFFIX


def parse_sidecar(start: bytes | Exception, file: str) -> Sidecar:
    """Return the sidecar of ``file`` from what ``Storage.starts`` returned for it. Raises
    KeyMetadataError, and OSError if it cannot be read."""
    name = sidecar_path(file)
    if isinstance(start, FileNotFoundError):
        message = "there is no such sidecar, and only it has the file's key: put it beside the file"
        raise KeyMetadataError(message, file=name)
    if isinstance(start, Exception):
        raise start
    if len(start) > MAX_SIDECAR_SIZE:
        raise KeyMetadataError("this is not a sidecar: it is too large", file=name)
    try:
        return Sidecar.from_bytes(start)
    except KeyMetadataError as error:
        raise KeyMetadataError(error.message, file=name) from None


class _Ranges:
    """A file of fsspec by ranges. Any number of threads may call ``pread``. Opening it
    takes one request. This reads a small file whole, and the first bytes of a larger one, which
    name its content."""

    def __init__(self, storage: Bucket, name: str, listed_size: int) -> None:
        self._storage = storage
        self.name = name
        self.size = listed_size
        wanted = _AT_ONCE if 0 < listed_size <= _AT_ONCE else START_SIZE
        self._start = storage.read(name, 0, wanted if listed_size else 0)
        self._is_whole = len(self._start) < wanted
        if self._is_whole:
            self.size = len(self._start)
        elif listed_size <= _AT_ONCE and (status := storage.status(name)) is not None:
            # The listing is old.
            self.size = status.size

    def pread(self, offset: int, size: int) -> bytes:
        if self._is_whole or offset + size <= len(self._start):
            return self._start[offset : offset + size]
        return self._storage.read(self.name, offset, offset + size)

    def check_unchanged(self) -> None:
        start = self._start[:START_SIZE]
        if not self._is_whole and self._storage.read(self.name, 0, START_SIZE) != start:
            message = "another process replaced the file while it was open: open it again"
            raise OSError(errno.ESTALE, message, self.name)


class Pairs:
    """Encrypted files by their stored names, and their sidecars."""

    def __init__(self, storage: Bucket) -> None:
        self.storage = storage

    def opened(self, path: str, listed_size: int) -> AbstractContextManager[Opened]:
        """Open a file. ``listed_size`` (bytes) may be wrong: file systems keep their listings, and
        another process may have replaced the file since. Raises OSError."""
        return contextlib.nullcontext(_Ranges(self.storage, path, listed_size))

    def sidecar_path(self, path: str) -> str:
        """Return the path of a file's sidecar."""
        return sidecar_path(path)

    def sidecar(self, path: str) -> Sidecar:
        """Return a file's sidecar. Raises KeyMetadataError, OSError."""
        (start,) = self.storage.starts([(self.sidecar_path(path), MAX_SIDECAR_SIZE + 1)])
        return parse_sidecar(start, path)

    def publish(self, staged: StagedFile, path: str, sidecar: Sidecar, *, overwrite: bool) -> None:
        """Give staged bytes and their sidecar their names. Raises FileExistsError, OSError."""
        put = partial(self.storage.put, staged, path, new=not overwrite)
        self._publish(put, path, sidecar, overwrite=overwrite)

    def _publish(
        self, put: Callable[[], object], path: str, sidecar: Sidecar, *, overwrite: bool
    ) -> None:
        if not overwrite and self.storage.status(path) is not None:
            raise FileExistsError(path)
        keys = Beside(StoragePlace(self.storage, path), sidecar, _old_keys(overwrite=overwrite))
        publish(keys, put, lambda _: self._may_have(path, sidecar))

    def _may_have(self, path: str, sidecar: Sidecar) -> bool:
        """Whether a request that failed may have been carried out, so that the file is the one
        whose key ``sidecar`` has. Then both keys stay."""
        try:
            nonce = first_nonce(self.storage.read(path, 0, START_SIZE))
        except FileNotFoundError:
            return False
        except Exception:
            return True
        return nonce is not None and bool(sidecar.keys_for(nonce))

    def is_same(self, source: str, target: str) -> bool:
        """Whether two names are those of one file."""
        return source == target

    def copy(self, source: str, target: str) -> None:
        """Copy a file and its sidecar, in place of what is there. Ciphertext and wrapped keys are
        the same in both: nothing binds them to a name."""
        before = self.sidecar(source)
        put = partial(self.storage.copy, source, target)
        self._publish(put, target, before, overwrite=True)
        # Another process may have replaced the source meanwhile.
        after = self.sidecar(source)
        if after != before:
            both = after.with_keys_of(before)
            self.storage.write(sidecar_path(target), both.to_bytes())

    def remove(self, path: str) -> None:
        """Remove a file and then its sidecar."""
        place = StoragePlace(self.storage, path)
        with self.storage.errors(path):
            place.remove_after(partial(self.storage.fs.rm_file, path))


class LocalPairs(Pairs):
    """The same for files on this machine."""

    storage: Folder  # type: ignore[assignment]

    def __init__(self, storage: Folder) -> None:
        self.storage = storage

    def opened(self, path: str, listed_size: int) -> AbstractContextManager[Opened]:
        return regular_file(path)

    def sidecar_path(self, path: str) -> str:
        return sidecar_beside(path)

    def publish(self, staged: StagedFile, path: str, sidecar: Sidecar, *, overwrite: bool) -> None:
        target, name = os.path.realpath(path), sidecar_beside(path)
        if overwrite:
            check_link(path, name)
        publish_pair(staged.temporary, target, sidecar, name, _old_keys(overwrite=overwrite))

    def is_same(self, source: str, target: str) -> bool:
        return os.path.realpath(source) == os.path.realpath(target)

    def copy(self, source: str, target: str) -> None:
        staged = self.storage.scratch(target)
        try:
            before = self.sidecar(source)
            with open(source, "rb", buffering=0) as file:
                shutil.copyfileobj(file, staged, _COPIED_AT_ONCE)
            staged.commit()
            # Another process may have replaced the source meanwhile.
            sidecar = self.sidecar(source).with_keys_of(before)
            self.publish(staged, target, sidecar, overwrite=True)
        finally:
            staged.discard()

    def remove(self, path: str) -> None:
        LocalPlace(sidecar_path(path)).remove_after(partial(os.remove, path))


def _old_keys(*, overwrite: bool) -> OldKeys:
    return OldKeys.RETIRE if overwrite else OldKeys.KEEP

"""The objects of a ledger in an object storage: made once, read, listed, removed.

All that a storage must have is a conditional write: a write that makes an object and fails if there
is one of that name (``If-None-Match: *`` of S3 and Azure, generation 0 of Google). fsspec calls it
``pipe_file(mode="create")``. Some storages ignore the condition, and some of fsspec's file systems
look first and write then. ``Objects.check`` tells both. Knows nothing of ledgers.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ..._gcm import random_bytes
from ..filesystems import filesystem_of, host_url_of, os_errors, refuse_chain

# Requests at a time, and how often one is sent whose answer was lost.
_REQUESTS = 16
_TRIES = 3
_NO_CONDITION = (
    "this storage has no conditional writes, so two jobs could write to one ledger: use an S3 "
    "bucket whose server knows If-None-Match, Google's or Azure's storage, or a folder of the "
    "driver"
)


class Objects:
    """The objects whose names begin with a URL. Methods raise OSError. Raises OSError and
    KmsConfigurationError for a URL that cannot be used."""

    def __init__(self, url: str) -> None:
        refuse_chain(url)
        self.url = url.rstrip("/")
        self._fs = filesystem_of(host_url_of(url))
        with os_errors(self.url):
            self._root = str(self._fs._strip_protocol(self.url))

    def url_of(self, name: str) -> str:
        """Return the URL of an object."""
        return f"{self.url}/{name}"

    def create(self, name: str, data: bytes) -> None:
        """Make an object. Raises FileExistsError if somebody else has made it. ``data`` has to be
        unlike all that others write under this name: it tells who has made the object, if the
        answer to a request was lost."""
        for tries_left in reversed(range(_TRIES)):
            try:
                self._put(name, data)
                return
            except OSError as error:
                # The request, or an earlier one whose answer was lost, may have made the object.
                try:
                    found = self.read(name)
                except FileNotFoundError:
                    if isinstance(error, FileExistsError) or not tries_left:
                        raise error from None
                    continue
                if found != data:
                    raise self._exists(name) from None
                return

    def read(self, name: str) -> bytes:
        """Return an object. Raises FileNotFoundError."""
        with os_errors(self.url_of(name)):
            return bytes(self._fs.cat_file(self._name(name)))

    def names(self, folder: str = "") -> list[str]:
        """Return the names of the objects directly below a folder; none if it does not exist."""
        where = self._name(folder) if folder else self._root
        found = []
        with os_errors(self.url_of(folder)), contextlib.suppress(FileNotFoundError):
            self._fs.invalidate_cache(where)
            for facts in self._fs.ls(where, detail=True):
                if facts["type"] == "file":
                    found.append(str(facts["name"]).rpartition("/")[2])
        return found

    def remove(self, names: Iterable[str]) -> None:
        """Remove objects; those that do not exist are no error."""

        def remove(name: str) -> None:
            with os_errors(self.url_of(name)), contextlib.suppress(FileNotFoundError):
                self._fs.rm_file(self._name(name))

        names = list(names)
        with ThreadPoolExecutor(max(1, min(len(names), _REQUESTS)), "ags1-ledger") as pool:
            list(pool.map(remove, names))

    def read_all(self, names: Iterable[str]) -> Iterator[bytes]:
        """Yield objects in the order of their names. Raises FileNotFoundError."""
        names = list(names)
        with ThreadPoolExecutor(_REQUESTS, "ags1-ledger") as pool:
            for first in range(0, len(names), _REQUESTS):  # so many are in memory at a time
                yield from pool.map(self.read, names[first : first + _REQUESTS])

    def check(self, age_of: str | None) -> float:
        """Make sure that writes are conditional. Return how old the object ``age_of`` is, in
        seconds, by the storage's own clock, 0 without one. Raises OSError for a storage without
        conditional writes, with the way out."""
        from fsspec.asyn import AsyncFileSystem  # optional
        from fsspec.spec import AbstractFileSystem

        kind = type(self._fs)
        looks_first = kind.pipe_file is AbstractFileSystem.pipe_file
        if isinstance(self._fs, AsyncFileSystem):
            looks_first = kind._pipe_file is AsyncFileSystem._pipe_file
        if looks_first:
            raise OSError(errno.ENOTSUP, _NO_CONDITION, self.url)
        # Readers of Parquet folders pass over names that begin with ``_``.
        name = f"_probe-{random_bytes(8).hex()}"
        self._put(name, b"1")
        try:
            try:
                self._put(name, b"2")
            except FileExistsError:
                return 0.0 if age_of is None else self.modified(name) - self.modified(age_of)
            raise OSError(errno.ENOTSUP, _NO_CONDITION, self.url)
        finally:
            self.remove([name])

    def _put(self, name: str, data: bytes) -> None:
        with os_errors(self.url_of(name)):
            try:
                self._fs.pipe_file(self._name(name), data, mode="create")
            except FileExistsError:
                raise self._exists(name) from None
            except OSError as error:
                if _is_refused(error):
                    raise self._exists(name) from None
                raise

    def modified(self, name: str) -> float:
        """Return when an object was made, in seconds since 1970, by the storage's clock."""
        path = self._name(name)
        with os_errors(self.url_of(name)):
            self._fs.invalidate_cache(self._fs._parent(path))
            modified: Any = self._fs.modified(path)
        return float(modified.timestamp())

    def _name(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _exists(self, name: str) -> FileExistsError:
        return FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), self.url_of(name))


def _is_refused(error: OSError) -> bool:
    """Whether S3's answer says that the condition is false. s3fs tells only some servers' answers
    by FileExistsError."""
    answer = getattr(error.__cause__, "response", None) or {}
    return str(answer.get("Error", {}).get("Code")) in ("PreconditionFailed", "412")

"""``ObjectStore``: a ledger's objects are those of an object storage, through fsspec.

A conditional write is ``If-None-Match: *`` of S3 and Azure, and generation 0 of Google. fsspec
calls it ``pipe_file(mode="create")``. Some storages ignore the condition, and some of fsspec's file
systems look first and write then. ``check`` tells both. HDFS has no such write, but a rename in it
fails if there is a file of the new name (``HdfsStore``).
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ...engine._gcm import random_bytes
from ...host.atomic import already_exists
from ..filesystems import host_url_of, open_filesystem, os_errors, refuse_chain

# Requests at a time.
_REQUESTS = 16
_NO_CONDITION = (
    "this storage has no conditional writes, so two jobs could write to one ledger: use an S3 "
    "bucket whose server knows If-None-Match, Google's or Azure's storage, HDFS by webhdfs://, or "
    "a folder of the driver"
)


class ObjectStore:
    """The objects whose names begin with a URL; see ``Store``. Raises OSError and
    KmsConfigurationError for a URL that cannot be used."""

    def __init__(self, url: str) -> None:
        refuse_chain(url)
        self.url = url.rstrip("/")
        self._fs = open_filesystem(host_url_of(url))
        with os_errors(self.url):
            self._root = str(self._fs._strip_protocol(self.url))

    def url_of(self, name: str) -> str:
        return f"{self.url}/{name}"

    def read(self, name: str) -> bytes:
        with os_errors(self.url_of(name)):
            return bytes(self._fs.cat_file(self._name(name)))

    def names(self, folder: str = "") -> list[str]:
        where = self._name(folder) if folder else self._root
        found = []
        with os_errors(self.url_of(folder)), contextlib.suppress(FileNotFoundError):
            self._fs.invalidate_cache(where)
            for facts in self._fs.ls(where, detail=True):
                if facts["type"] == "file":
                    found.append(str(facts["name"]).rpartition("/")[2])
        return found

    def remove(self, names: Iterable[str]) -> None:
        def remove(name: str) -> None:
            with os_errors(self.url_of(name)), contextlib.suppress(FileNotFoundError):
                self._fs.rm_file(self._name(name))

        names = list(names)
        with ThreadPoolExecutor(max(1, min(len(names), _REQUESTS)), "ags1-ledger") as pool:
            list(pool.map(remove, names))

    def check(self, age_of: str | None) -> float:
        if self._looks_first():
            raise OSError(errno.ENOTSUP, _NO_CONDITION, self.url)
        # Readers of Parquet folders pass over names that begin with ``_``.
        name = f"_probe-{random_bytes(8).hex()}"
        self.put(name, b"1")
        try:
            try:
                self.put(name, b"2")
            except FileExistsError:
                return 0.0 if age_of is None else self.modified(name) - self.modified(age_of)
            raise OSError(errno.ENOTSUP, _NO_CONDITION, self.url)
        finally:
            self.remove([name])

    def put(self, name: str, data: bytes) -> None:
        with os_errors(self.url_of(name)):
            try:
                self._fs.pipe_file(self._name(name), data, mode="create")
            except FileExistsError:
                raise already_exists(self.url_of(name)) from None
            except OSError as error:
                if _is_refused(error):
                    raise already_exists(self.url_of(name)) from None
                raise

    def _looks_first(self) -> bool:
        """Whether the file system looks whether there is a file, and writes then. pyarrow's HDFS
        is one of those that do."""
        from fsspec.asyn import AsyncFileSystem  # optional
        from fsspec.implementations.arrow import ArrowFSWrapper
        from fsspec.spec import AbstractFileSystem

        kind = type(self._fs)
        if isinstance(self._fs, AsyncFileSystem):
            return kind._pipe_file is AsyncFileSystem._pipe_file
        return kind.pipe_file in (AbstractFileSystem.pipe_file, ArrowFSWrapper.pipe_file)

    def modified(self, name: str) -> float:
        path = self._name(name)
        with os_errors(self.url_of(name)):
            self._fs.invalidate_cache(self._fs._parent(path))
            modified: Any = self._fs.modified(path)
        return float(modified.timestamp())

    def _name(self, name: str) -> str:
        return f"{self._root}/{name}"


class HdfsStore(ObjectStore):
    """Files in HDFS, through its web interface. A file is written under another name, and renamed:
    whoever reads it finds it whole. fsspec's own ``mv`` drops the answer that says whether it was
    renamed."""

    def put(self, name: str, data: bytes) -> None:
        path = self._name(name)
        staged = self._name(f"_put-{random_bytes(8).hex()}")
        with os_errors(self.url_of(name)):
            self._fs.makedirs(self._fs._parent(path), exist_ok=True)
            self._fs.pipe_file(staged, data)
            answer = self._fs._call("RENAME", method="put", path=staged, destination=path)
            if answer.json()["boolean"] is not True:
                self._fs.rm_file(staged)
                raise already_exists(self.url_of(name))

    def _looks_first(self) -> bool:
        return False

    def modified(self, name: str) -> float:
        with os_errors(self.url_of(name)):
            return float(self._fs.info(self._name(name))["modificationTime"]) / 1000


def _is_refused(error: OSError) -> bool:
    """Whether S3's answer says that the condition is false. s3fs tells only some servers' answers
    by FileExistsError."""
    answer = getattr(error.__cause__, "response", None) or {}
    return str(answer.get("Error", {}).get("Code")) in ("PreconditionFailed", "412")

"""``Bucket``: files in a file system of fsspec, such as an object storage. Needs fsspec, which is
optional.

A write of a new file is ``If-None-Match: *`` of S3 and Azure, and generation 0 of Google. fsspec
calls it ``pipe_file(mode="create")``. Some storages ignore the condition, and some of fsspec's file
systems look first and write then. A file system whose files can be seen while they are written is
refused for a ledger.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from http import HTTPStatus
from pathlib import Path
from typing import Any

from ...engine._gcm import random_bytes
from ...host.atomic import StagedFile, already_exists
from ..filesystems import host_url_of, open_filesystem, os_errors, refuse_chain
from .protocol import Status

# Larger files are uploaded from the disk, in parts.
_IN_MEMORY = 32 << 20
_IN_PARTS = (
    "files of this storage can be seen while they are written, and those of a ledger must not: use "
    "an object storage, HDFS by webhdfs://, or a folder of the driver"
)
# The keys in fsspec's info of a file whose values change with the file.
_VERSIONS = (
    "ETag etag Content-MD5 Digest generation mtime LastModified last_modified Last-Modified "
    "modificationTime modify sha".split()
)


class Bucket:
    """See ``Storage``. Paths are URLs, and the methods raise OSError in place of the exceptions
    that a file system has of its own."""

    is_remote = True

    def __init__(self, filesystem: Any) -> None:
        self.fs = filesystem

    def name(self, path: str) -> str:
        """Return the file system's own name of a path."""
        return str(self.fs._strip_protocol(path))

    def errors(self, path: str) -> AbstractContextManager[None]:
        """Return a context that raises the errors of the file system as those of ``path``."""
        return os_errors(path)

    def status(self, path: str) -> Status | None:
        name = self.name(path)
        try:
            with self.errors(path):
                self.fs.invalidate_cache(self.fs._parent(name))
                return status_of(self.fs.info(name))
        except FileNotFoundError:
            return None

    def names(self, folder: str) -> list[str]:
        name = self.name(folder)
        found = []
        with self.errors(folder), contextlib.suppress(FileNotFoundError):
            self.fs.invalidate_cache(name)
            for facts in self.fs.ls(name, detail=True):
                if facts["type"] == "file":
                    found.append(str(facts["name"]).rpartition("/")[2])
        return found

    def read(self, path: str, begin: int = 0, end: int | None = None) -> bytes:
        name = self.name(path)
        with self.errors(path):
            if end is None:
                return bytes(self.fs.cat_file(name))[begin:]
            try:
                return bytes(self.fs.cat_file(name, start=begin, end=end))
            except Exception as error:
                if self._says_more(path, begin, error):
                    raise
                return b""

    def _says_more(self, path: str, begin: int, error: Exception) -> bool:
        """Whether an error says more than that a file has no bytes from ``begin`` on: some servers
        refuse such a range."""
        with contextlib.suppress(Exception):
            if not isinstance(error, FileNotFoundError):
                status = self.status(path)
                return status is None or status.size > begin
        return True

    def starts(self, wanted: Sequence[tuple[str, int]]) -> list[bytes | Exception]:
        if not wanted:
            return []
        found = self._ranges([self.name(path) for path, _ in wanted], [size for _, size in wanted])
        for at, ((path, _), got) in enumerate(zip(wanted, found, strict=True)):
            if not isinstance(got, Exception):
                continue
            if not self._says_more(path, 0, got):
                found[at] = b""
                continue
            try:
                with self.errors(path):
                    raise got
            except Exception as error:
                found[at] = error
        return found

    def _ranges(self, names: list[str], ends: list[int]) -> list[bytes | Exception]:
        found: list[bytes | Exception]
        found = self.fs.cat_ranges(names, [0] * len(names), ends, on_error="return")
        return found

    def write(self, path: str, data: bytes, *, new: bool = False) -> None:
        with self.errors(path):
            if new:
                self._create(path, data)
            else:
                self.fs.pipe_file(self.name(path), data)

    def scratch(self, path: str) -> StagedFile:
        place = os.path.join(tempfile.gettempdir(), f"ags1-{random_bytes(8).hex()}")
        return StagedFile(place, durable=False, mode=0o600)

    def put(self, staged: StagedFile, path: str, *, new: bool = False) -> None:
        """Give staged bytes the name ``path``, as ``write`` does."""
        file = Path(staged.temporary)
        if file.stat().st_size <= _IN_MEMORY:
            self.write(path, file.read_bytes(), new=new)
            return
        with self.errors(path):
            if new:
                self._create(path, file)
            else:
                self.fs.put_file(str(file), self.name(path))

    def _create(self, path: str, source: bytes | Path) -> None:
        """Make a new file of bytes, or of a file of this machine."""
        try:
            if isinstance(source, Path):
                self.fs.put_file(str(source), self.name(path), mode="create")
            else:
                self.fs.pipe_file(self.name(path), source, mode="create")
        except OSError as error:
            if isinstance(error, FileExistsError) or _is_refused(error):
                raise already_exists(path) from None
            raise

    def copy(self, source: str, target: str) -> None:
        """Copy a file within the storage, in place of an older one."""
        with self.errors(target):
            if "webhdfs" in self.fs.protocol and self.fs.exists(self.name(source)):
                # fsspec's copy ends in a rename, which replaces no file there, and does not say so.
                self.remove(target)
            self.fs.cp_file(self.name(source), self.name(target))

    def remove(self, path: str) -> None:
        with self.errors(path), contextlib.suppress(FileNotFoundError):
            self.fs.rm_file(self.name(path))

    def check_whole(self, path: str) -> None:
        """Raise OSError, with the way out, if files can be seen while they are written. pyarrow's
        HDFS is such a file system."""
        from fsspec.asyn import AsyncFileSystem  # optional
        from fsspec.implementations.arrow import ArrowFSWrapper
        from fsspec.spec import AbstractFileSystem

        kind = type(self.fs)
        by_parts: tuple[Any, ...] = (AbstractFileSystem.pipe_file, ArrowFSWrapper.pipe_file)
        write = kind.pipe_file
        if isinstance(self.fs, AsyncFileSystem):
            write, by_parts = kind._pipe_file, (AsyncFileSystem._pipe_file,)
        if write in by_parts:
            raise OSError(errno.ENOTSUP, _IN_PARTS, path)

    def modified(self, path: str) -> float:
        """Return when a file was written, in seconds since 1970, by the storage's clock."""
        name = self.name(path)
        with self.errors(path):
            self.fs.invalidate_cache(self.fs._parent(name))
            return float(self.fs.modified(name).timestamp())


class Below(Bucket):
    """The file system below ``ags1::``. Paths are its own names, and its errors stay what they
    are."""

    def name(self, path: str) -> str:
        return path

    def errors(self, path: str) -> AbstractContextManager[None]:
        return contextlib.nullcontext()


class Hdfs(Bucket):
    """Files in HDFS, through its web interface. A file could be seen while it is written, so it is
    written under another name, and renamed. fsspec's own ``mv`` replaces no file, and drops the
    answer that says whether it was renamed."""

    def read(self, path: str, begin: int = 0, end: int | None = None) -> bytes:
        if end is not None:
            return super().read(path, begin, end)
        # If a file was removed just now, fsspec takes a data node's error for its content.
        with self.errors(path):
            answer = self.fs._call("OPEN", path=self.name(path), offset=begin, redirect=False)
            if "Location" in answer.headers:
                answer = self.fs.session.get(self.fs._apply_proxy(answer.headers["Location"]))
            if answer.status_code == HTTPStatus.NOT_FOUND:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            answer.raise_for_status()
            return bytes(answer.content)

    def write(self, path: str, data: bytes, *, new: bool = False) -> None:
        if new:
            super().write(path, data, new=True)
            return
        with self.errors(path):
            staged, name = self._staged(path, data)
            more = {"destination": name, "renameoptions": "OVERWRITE"}
            self.fs._call("RENAME", method="put", path=staged, **more)

    def _create(self, path: str, source: bytes | Path) -> None:
        data = source if isinstance(source, bytes) else source.read_bytes()
        staged, name = self._staged(path, data)
        answer = self.fs._call("RENAME", method="put", path=staged, destination=name)
        if answer.json()["boolean"] is not True:
            self.fs.rm_file(staged)
            raise already_exists(path)

    def _staged(self, path: str, data: bytes) -> tuple[str, str]:
        """Write bytes under another name. Return that one, and the file's own."""
        name = self.name(path)
        folder, _, last = name.rpartition("/")
        staged = f"{folder}/_put-{random_bytes(8).hex()}-{last}"
        self.fs.makedirs(folder, exist_ok=True)
        self.fs.pipe_file(staged, data)
        return staged, name

    def check_whole(self, path: str) -> None:
        return

    def modified(self, path: str) -> float:
        with self.errors(path):
            return float(self.fs.info(self.name(path))["modificationTime"]) / 1000


class Obstore(Below):
    """Files of obstore's adapter for fsspec. It has exceptions of its own, it raises the error of
    one range instead of returning it beside the others, and it ignores that a file must be new."""

    @contextlib.contextmanager
    def errors(self, path: str) -> Iterator[None]:
        try:
            yield
        except (OSError, MemoryError):
            raise
        except Exception as error:
            # obstore's errors show on further lines how Rust prints them.
            raise OSError(errno.EIO, str(error).partition("\n")[0], path) from error

    def _ranges(self, names: list[str], ends: list[int]) -> list[bytes | Exception]:
        from fsspec.asyn import sync  # optional

        async def ranges() -> list[Any]:
            asked = (
                self.fs._cat_file(name, start=0, end=end)
                for name, end in zip(names, ends, strict=True)
            )
            return await asyncio.gather(*asked, return_exceptions=True)

        found: list[bytes | Exception] = sync(self.fs.loop, ranges)
        return found

    def _create(self, path: str, source: bytes | Path) -> None:
        import obstore  # optional
        from obstore.exceptions import AlreadyExistsError

        bucket, name = self.fs._split_path(path)
        store = self.fs._construct_store(bucket)
        try:
            # In parts, an object would replace another one.
            obstore.put(store, name, source, mode="create", use_multipart=False)
        except AlreadyExistsError:
            raise already_exists(path) from None


def open_bucket(url: str) -> Bucket:
    """Return the storage of a URL. Raises OSError and KmsConfigurationError for a URL that cannot
    be used."""
    refuse_chain(url)
    filesystem = open_filesystem(host_url_of(url))
    return (Hdfs if url.startswith("webhdfs://") else Bucket)(filesystem)


def bucket_below(filesystem: Any) -> Bucket:
    """Return the storage of a file system below ``ags1::``."""
    # obstore's adapter, or what ``obstore.fsspec.register`` made of it.
    is_obstore = any(kind.__module__ == "obstore.fsspec" for kind in type(filesystem).__mro__)
    return (Obstore if is_obstore else Below)(filesystem)


def status_of(facts: Mapping[str, Any]) -> Status:
    """Return the status of a file from fsspec's info of it."""
    size = -1 if facts["type"] == "directory" else int(facts["size"])
    return Status(size, version_of(facts))


def version_of(facts: Mapping[str, Any]) -> str:
    """Return the one of fsspec's facts that changes with a file, "" if there is none."""
    return str(next((facts[key] for key in _VERSIONS if facts.get(key)), ""))


def _is_refused(error: OSError) -> bool:
    """Whether S3's answer says that the condition is false. s3fs tells only some servers' answers
    by FileExistsError."""
    answer = getattr(error.__cause__, "response", None) or {}
    return str(answer.get("Error", {}).get("Code")) in ("PreconditionFailed", "412")

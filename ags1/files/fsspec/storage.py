"""A file and its sidecar in the file system below: read, written, copied and removed as a pair.

There is never a file without its key. A sidecar is written before its file, with the keys of the
file that is there until then, and removed after it (``ags1.files.publish`` has the steps).
``Local`` does this with files on this machine, ``Remote`` with any file system of fsspec whose
files appear whole, such as an object storage. ``Local`` locks what it changes. An object storage
has no locks: there may be one writer of a file at a time. Knows nothing of plaintext and unwrapped
keys.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from fsspec.asyn import sync

from ...errors import KeyMetadataError
from ...host.atomic import StagedFile
from ...host.regular_file import regular_file
from ...keys.sidecar import (
    MAX_SIDECAR_SIZE,
    START_SIZE,
    SUFFIX,
    Sidecar,
    first_nonce,
    sidecar_beside,
    sidecar_path,
)
from ..publish import publish
from ..sidecars import Beside, LocalPlace, OldKeys, Place, check_link, publish_pair

# What names of encrypted files end in.
FILE_SUFFIX = ".ags1"
# Larger files are uploaded from the disk, in parts.
_IN_MEMORY = 32 << 20
# A smaller file is read by one request, and kept while it is open: a block of 1 MiB fits.
_AT_ONCE = (1 << 20) + (1 << 12)
_COPIED_AT_ONCE = 1 << 20


class Opened(Protocol):
    """What ``ags1.open`` reads: any number of ranges at once."""

    def pread(self, offset: int, size: int) -> bytes:
        """Return a range of the encrypted file."""


class Storage(Protocol):
    """Encrypted files by their stored names, and their sidecars."""

    def opened(self, path: str, listed_size: int) -> AbstractContextManager[Opened]:
        """Open a file. ``listed_size`` (bytes) may be wrong: file systems keep their listings, and
        another process may have replaced the file since. Raises OSError."""

    def read_starts(self, wanted: Sequence[tuple[str, int]]) -> list[bytes | Exception]:
        """Return the first bytes of files, or why they cannot be read. A smaller file is whole."""

    def stage(self, path: str) -> StagedFile:
        """Return a place for the bytes of a new file."""

    def publish(self, staged: StagedFile, path: str, sidecar: Sidecar, *, overwrite: bool) -> None:
        """Give staged bytes and their sidecar their names. Raises FileExistsError, OSError."""

    def is_same(self, source: str, target: str) -> bool:
        """Whether two names are those of one file."""

    def copy(self, source: str, target: str) -> None:
        """Copy a file and its sidecar, in place of what is there. Ciphertext and wrapped keys are
        the same in both: nothing binds them to a name."""

    def remove(self, path: str) -> None:
        """Remove a file and then its sidecar."""


def stored_path(path: str) -> str:
    """Return the name of the encrypted file for a path with or without ``.ags1``."""
    return path if path.endswith(FILE_SUFFIX) else path + FILE_SUFFIX


def parse_sidecar(start: bytes | Exception, file: str) -> Sidecar:
    """Return the sidecar of ``file`` from what ``read_starts`` returned for it. Raises
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


class Local:
    """Files on this machine. ``makes_folders``: those that are missing above a new file."""

    def __init__(self, *, makes_folders: bool) -> None:
        self._makes_folders = makes_folders

    def opened(self, path: str, listed_size: int) -> AbstractContextManager[Opened]:
        return regular_file(path)

    def read_starts(self, wanted: Sequence[tuple[str, int]]) -> list[bytes | Exception]:
        return [_attempt(_read_local_start, path, size) for path, size in wanted]

    def stage(self, path: str) -> StagedFile:
        if self._makes_folders:
            os.makedirs(os.path.dirname(path), exist_ok=True)
        return StagedFile(path, overwrite=True)

    def publish(self, staged: StagedFile, path: str, sidecar: Sidecar, *, overwrite: bool) -> None:
        target, name = os.path.realpath(path), sidecar_beside(path)
        if overwrite:
            check_link(path, name)
        publish_pair(staged.temporary, target, sidecar, name, _old_keys(overwrite=overwrite))

    def is_same(self, source: str, target: str) -> bool:
        return os.path.realpath(source) == os.path.realpath(target)

    def copy(self, source: str, target: str) -> None:
        staged = self.stage(target)
        try:
            before = self._sidecar(source)
            with open(source, "rb", buffering=0) as file:
                shutil.copyfileobj(file, staged, _COPIED_AT_ONCE)
            staged.commit()
            # Another process may have replaced the source meanwhile.
            sidecar = self._sidecar(source).with_keys_of(before)
            self.publish(staged, target, sidecar, overwrite=True)
        finally:
            staged.discard()

    def _sidecar(self, path: str) -> Sidecar:
        (start,) = self.read_starts([(sidecar_path(path), MAX_SIDECAR_SIZE + 1)])
        return parse_sidecar(start, path)

    def remove(self, path: str) -> None:
        LocalPlace(sidecar_path(path)).remove_after(lambda: os.remove(path))


class _Ranges:
    """A file of fsspec by ranges. Any number of threads may call ``pread``. Opening it
    takes one request. This reads a small file whole, and the first bytes of a larger one, which
    name its content."""

    def __init__(self, fs: Any, name: str, listed_size: int) -> None:
        self._fs = fs
        self.name = name
        self.size = listed_size
        wanted = _AT_ONCE if 0 < listed_size <= _AT_ONCE else START_SIZE
        self._start = self._get(0, min(wanted, listed_size) and wanted)
        self._is_whole = len(self._start) < wanted
        if self._is_whole:
            self.size = len(self._start)
        elif listed_size <= _AT_ONCE:
            # The listing is old.
            fs.invalidate_cache(fs._parent(name))
            self.size = fs.info(name)["size"]

    def pread(self, offset: int, size: int) -> bytes:
        if self._is_whole or offset + size <= len(self._start):
            return self._start[offset : offset + size]
        return self._get(offset, size)

    def check_unchanged(self) -> None:
        if not self._is_whole and self._get(0, START_SIZE) != self._start[:START_SIZE]:
            message = "another process replaced the file while it was open: open it again"
            raise OSError(errno.ESTALE, message, self.name)

    def _get(self, offset: int, size: int) -> bytes:
        data: bytes = self._fs.cat_file(self.name, start=offset, end=offset + size)
        return data


class Remote:
    """Files of any file system of fsspec."""

    def __init__(self, fs: Any) -> None:
        self._fs = fs

    def opened(self, path: str, listed_size: int) -> AbstractContextManager[Opened]:
        return contextlib.nullcontext(_Ranges(self._fs, path, listed_size))

    def read_starts(self, wanted: Sequence[tuple[str, int]]) -> list[bytes | Exception]:
        if not wanted:
            return []
        paths, ends = [path for path, _ in wanted], [size for _, size in wanted]
        starts: list[bytes | Exception]
        starts = self._fs.cat_ranges(paths, [0] * len(paths), ends, on_error="return")
        return starts

    def stage(self, path: str) -> StagedFile:
        # The disk of this machine has nothing but ciphertext.
        target = os.path.join(tempfile.gettempdir(), f"ags1-{os.urandom(8).hex()}")
        return StagedFile(target, durable=False, mode=0o600)

    def publish(self, staged: StagedFile, path: str, sidecar: Sidecar, *, overwrite: bool) -> None:
        put = partial(self._put, staged.temporary, path, overwrite=overwrite)
        self._publish(put, path, sidecar, overwrite=overwrite)

    def _put(self, temporary: str, path: str, *, overwrite: bool) -> None:
        exclusive = {} if overwrite else {"mode": "create"}
        if os.path.getsize(temporary) <= _IN_MEMORY:
            with open(temporary, "rb") as file:
                data = file.read()
            self._fs.pipe_file(path, data, **exclusive)
        else:
            self._fs.put_file(temporary, path, **exclusive)

    def is_same(self, source: str, target: str) -> bool:
        return source == target

    def copy(self, source: str, target: str) -> None:
        before = self._sidecar(source)
        self._publish(lambda: self._fs.cp_file(source, target), target, before, overwrite=True)
        # Another process may have replaced the source meanwhile.
        after = self._sidecar(source)
        if after != before:
            self.write(sidecar_path(target), after.with_keys_of(before).to_bytes())

    def _publish(
        self, put: Callable[[], object], path: str, sidecar: Sidecar, *, overwrite: bool
    ) -> None:
        if not overwrite and self._exists(path):
            raise FileExistsError(path)
        keys = Beside(_Place(self, path), sidecar, _old_keys(overwrite=overwrite))
        publish(keys, put, lambda _: self._may_have(path, sidecar))

    def _exists(self, path: str) -> bool:
        self._fs.invalidate_cache(self._fs._parent(path))
        try:
            self._fs.info(path)
        except FileNotFoundError:
            return False
        return True

    def _may_have(self, path: str, sidecar: Sidecar) -> bool:
        """Whether a request that failed may have been carried out, so that the file is the one
        whose key ``sidecar`` has. Then both keys stay."""
        try:
            start = self.read(path, START_SIZE)
        except Exception:
            return True
        nonce = None if start is None else first_nonce(start)
        return nonce is not None and bool(sidecar.keys_for(nonce))

    def read(self, name: str, size: int) -> bytes | None:
        """Return the first bytes of a file; None if there is none. Raises its error."""
        (start,) = self.read_starts([(name, size)])
        if isinstance(start, FileNotFoundError):
            return None
        if isinstance(start, Exception):
            raise start
        return start

    def write(self, name: str, data: bytes) -> None:
        """Write a small file."""
        self._fs.pipe_file(name, data)

    def delete(self, name: str) -> None:
        """Remove a file, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            self._fs.rm_file(name)

    def _sidecar(self, path: str) -> Sidecar:
        (start,) = self.read_starts([(sidecar_path(path), MAX_SIDECAR_SIZE + 1)])
        return parse_sidecar(start, path)

    def remove(self, path: str) -> None:
        _Place(self, path).remove_after(lambda: self._fs.rm_file(path))


class _Place(Place):
    """The sidecar beside a file."""

    def __init__(self, storage: Remote, file: str) -> None:
        self.path = sidecar_path(file)
        self._storage = storage

    def read(self) -> bytes | None:
        return self._storage.read(self.path, MAX_SIDECAR_SIZE + 1)

    def write(self, data: bytes) -> None:
        self._storage.write(self.path, data)

    def remove(self) -> None:
        self._storage.delete(self.path)


def _old_keys(*, overwrite: bool) -> OldKeys:
    return OldKeys.RETIRE if overwrite else OldKeys.KEEP


class Obstore(Remote):
    """Files of obstore's adapter for fsspec. It raises the error of one range instead of returning
    it beside the others, it has exceptions of its own, and it ignores that a file must be new."""

    def opened(self, path: str, listed_size: int) -> AbstractContextManager[Opened]:
        return contextlib.nullcontext(_ObstoreRanges(self._fs, path, listed_size))

    def read_starts(self, wanted: Sequence[tuple[str, int]]) -> list[bytes | Exception]:
        starts: list[bytes | Exception] = sync(self._fs.loop, self._starts, wanted)
        return starts

    async def _starts(self, wanted: Sequence[tuple[str, int]]) -> list[bytes | Exception]:
        return list(await asyncio.gather(*(self._start(*one) for one in wanted)))

    async def _start(self, path: str, size: int) -> bytes | Exception:
        try:
            data: bytes = await self._fs._cat_file(path, start=0, end=size)
        except OSError as error:
            return error
        except Exception as error:
            # An empty object has no range.
            with contextlib.suppress(OSError):
                if (await self._fs._info(path))["size"] == 0:
                    return b""
            return _os_error(error, path)
        return data

    def _put(self, temporary: str, path: str, *, overwrite: bool) -> None:
        if overwrite:
            with _os_errors(path):
                super()._put(temporary, path, overwrite=True)
            return
        import obstore
        from obstore.exceptions import AlreadyExistsError

        bucket, name = self._fs._split_path(path)
        store = self._fs._construct_store(bucket)
        try:
            # In parts, an object would replace another one.
            with _os_errors(path):
                obstore.put(store, name, Path(temporary), mode="create", use_multipart=False)
        except OSError as error:
            if isinstance(error.__cause__, AlreadyExistsError):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path) from None
            raise

    def write(self, name: str, data: bytes) -> None:
        with _os_errors(name):
            super().write(name, data)


class _ObstoreRanges(_Ranges):
    def _get(self, offset: int, size: int) -> bytes:
        with _os_errors(self.name):
            return super()._get(offset, size)


def is_obstore(fs: Any) -> bool:
    """Whether a file system is obstore's adapter, or made of it by ``obstore.fsspec.register``."""
    return any(kind.__module__ == "obstore.fsspec" for kind in type(fs).__mro__)


@contextlib.contextmanager
def _os_errors(path: str) -> Iterator[None]:
    try:
        yield
    except (OSError, MemoryError):
        raise
    except Exception as error:
        raise _os_error(error, path) from error


def _os_error(error: Exception, path: str) -> OSError:
    # obstore's errors show on further lines how Rust prints them.
    return OSError(errno.EIO, str(error).partition("\n")[0], path)


def _read_local_start(path: str, size: int) -> bytes:
    if path.endswith(SUFFIX):
        path = sidecar_beside(path.removesuffix(SUFFIX))
    with regular_file(path) as (fd, *_), open(fd, "rb", closefd=False) as file:
        return file.read(size)


def _attempt(read: Callable[[str, int], bytes], path: str, size: int) -> bytes | Exception:
    try:
        return read(path, size)
    except OSError as error:
        return error

"""Jobs' files in any file system that fsspec knows.

An attempt writes a staged file in the job's own folder inside the root, and the driver moves it to
its name. One task writes a file: nothing can be written in ranges here. Credentials and endpoints
are what each process finds (its environment, fsspec's configuration); none travel. Needs fsspec.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from ...atomic import is_temporary
from ...errors import Ags1Error
from ..bulk.planning import Item, Piece
from .protocol import (
    CHANGED,
    REQUESTS,
    Attempt,
    Found,
    NothingStagedError,
    Output,
    Problem,
    Source,
    Staging,
    Status,
    StatusOf,
    UnknownOutcomeError,
    version_of,
)

if TYPE_CHECKING:
    from ..ledger import Row

T = TypeVar("T")

# Nobody else's, where nothing says what it was.
_MODE = 0o600
# The type of a folder with an empty name, which only an object store has.
NAMELESS = "nameless"
# So few files are looked at one by one rather than by a listing of all that is there.
_FEW = 64
# Folders at which a tree is parted into listings that go side by side.
_SIDE_BY_SIDE = 8
# Bytes that are compared at a time.
_COMPARED = 8 << 20


def remote_storage(place: str) -> RemoteStorage:
    """Return the storage of a URL's scheme and host. Raises OSError for one that cannot be used."""
    with os_errors(place):
        import fsspec.core

        filesystem, _ = fsspec.core.url_to_fs(place)
        protocol = filesystem.protocol
    if "s3" in ((protocol,) if isinstance(protocol, str) else protocol):
        from .s3 import S3Storage

        return S3Storage(filesystem, place)
    return RemoteStorage(filesystem, place)


@contextlib.contextmanager
def os_errors(path: str) -> Iterator[None]:
    """Raise as OSError whatever a file system raises: each has kinds of its own."""
    try:
        yield
    except (OSError, Ags1Error, MemoryError):
        raise
    except Exception as error:
        raise OSError(errno.EIO, f"{type(error).__name__}: {error}", path) from error


class RemoteSource:
    """A file that is read by ranges, and asked for its version before and after."""

    fd = -1
    mode = _MODE

    def __init__(self, storage: RemoteStorage, path: str) -> None:
        self._storage, self._path = storage, path
        self.size, self.version = storage.status(path)

    def read(self, offset: int, size: int) -> bytes:
        if not size:
            return b""
        fs = self._storage.fs
        with os_errors(self._path):
            data = fs.cat_file(self._storage.name(self._path), start=offset, end=offset + size)
        return bytes(data)

    def check_unchanged(self) -> None:
        if self._storage.status(self._path) != (self.size, self.version):
            raise Ags1Error(CHANGED)


class _FileOutput:
    fd = -1

    def __init__(self, file: Any, staged: str) -> None:
        self._file = file
        self.staged = staged

    def write(self, data: bytes | memoryview) -> None:
        with os_errors(self.staged):
            self._file.write(data)


class RemoteStorage:
    """A file system of fsspec's; see ``Storage``. What attempts share is the job's folder of staged
    files; what an attempt has staged is a path, and so is ``Row.attempt``."""

    is_remote = True

    def __init__(self, filesystem: Any, place: str) -> None:
        self.fs = filesystem
        # Where the file system's own names begin behind the host, they do not say which it is.
        is_beneath = self.name(f"{place}/ags1") == "/ags1"
        self._place = place if is_beneath else None

    def is_like(self, other: RemoteStorage) -> bool:
        """Whether that is the same file system, with the same host and settings."""
        mine, its = self.fs, other.fs
        return type(mine) is type(its) and (mine.storage_args, mine.storage_options) == (
            its.storage_args,
            its.storage_options,
        )

    def name(self, path: str) -> str:
        """Return the file system's own name of a path."""
        return str(self.fs._strip_protocol(path))

    def path(self, name: str) -> str:
        """Return the path of a file system's name."""
        if self._place is not None and name.startswith("/"):
            return self._place + name
        return str(self.fs.unstrip_protocol(name))

    def status(self, path: str) -> Status:
        """Return a file's status as it is now. Raises OSError."""
        name = self.name(path)
        with os_errors(path):
            self.fs.invalidate_cache(self.fs._parent(name))
            facts = self.fs.info(name)
        return _status(facts)

    def absolute(self, path: str) -> str:
        return self.path(self.name(path))

    def holds(self, root: str, target: str) -> bool:
        if not target.startswith(root + "/"):
            return False
        parts = target[len(root) + 1 :].split("/")
        return not {"", ".", ".."}.intersection(parts) and self.absolute(target) == target

    def find(
        self, source: str, passed_over: Collection[str], pool: Executor
    ) -> Iterator[Found | Problem]:
        closed = tuple(path + "/" for path in passed_over)
        with os_errors(source):
            self.fs.invalidate_cache()
            name = self.name(source)
            if glob.has_magic(name) and not self.fs.exists(name):
                base = name
                while glob.has_magic(base):
                    base = base.rpartition("/")[0]
                matches = self.fs.glob(name, detail=True)
                if not matches:
                    raise FileNotFoundError(errno.ENOENT, "nothing matches this pattern", source)
            else:
                facts = self.fs.info(name)
                name = facts["name"].rstrip("/")
                base = name if facts["type"] == "directory" else name.rpartition("/")[0]
                matches = {name: facts}
        for match, facts in matches.items():
            found: Iterable[Found | Problem]
            if facts["type"] != "directory":
                found = [self.found(facts, base)]
            elif "**" in source and match != base:
                continue  # the pattern matches what is in it, too
            else:
                found = self._below(match.rstrip("/"), base, pool)
            for item in found:
                if not isinstance(item, Found) or _is_wanted(item, closed):
                    yield item
        self.fs.invalidate_cache()

    def _below(self, folder: str, base: str, pool: Executor) -> Iterator[Found | Problem]:
        """Yield what a folder has in it: level by level, until there are folders enough to list
        each with all below it, side by side."""
        level = [folder]
        while level and len(level) < _SIDE_BY_SIDE:
            listed = pool.map(partial(self._listed, base=base, deep=False), level)
            level = []
            for items, folders in listed:
                yield from items
                level += folders
        for items, _ in pool.map(partial(self._listed, base=base, deep=True), level):
            yield from items

    def _listed(
        self, folder: str, base: str, deep: bool
    ) -> tuple[list[Found | Problem], list[str]]:
        items: list[Found | Problem] = []
        folders: list[str] = []
        try:
            with os_errors(folder):
                for facts in self.listing(folder, deep=deep):
                    if facts["type"] == "directory":
                        name = facts["name"].rstrip("/")
                        # Stores with no folders of their own list markers of them.
                        if name != folder and not is_temporary(name.rpartition("/")[2]):
                            folders.append(name)
                    elif facts["type"] == NAMELESS:
                        said = "what has two slashes in a row in its name is in no folder"
                        error = OSError(errno.EINVAL, said)
                        items.append(Problem(self.path(facts["name"]), error))
                    elif not facts["name"].endswith("/"):
                        items.append(self.found(facts, base))
        except OSError as error:
            items.append(Problem(self.path(folder), error))
        return items, folders

    def listing(self, folder: str, *, deep: bool) -> Iterable[Mapping[str, Any]]:
        """Return what fsspec tells of all in a folder; ``deep``: of all files below it."""
        if deep:
            found: Mapping[str, Any] = self.fs.find(folder, detail=True)
            return found.values()
        entries: Iterable[Mapping[str, Any]] = self.fs.ls(folder, detail=True)
        return entries

    def found(self, facts: Mapping[str, Any], base: str) -> Found:
        """Return a listed file; ``base`` is where its relative path begins."""
        name = facts["name"]
        return Found(self.path(name), name[len(base) :].lstrip("/"), *_status(facts))

    def statuses(self, folder: str, count: int, *, follow: bool) -> StatusOf:
        name = self.name(folder).rstrip("/")
        if count <= _FEW or not name:
            return self._status_or_none
        with ThreadPoolExecutor(_SIDE_BY_SIDE, "ags1-listing") as pool:
            known = {}
            for item in self._below(name, name, pool):
                if isinstance(item, Found):
                    known[item.path] = Status(item.size, item.version)
                elif not isinstance(item.error, FileNotFoundError):
                    raise item.error
        self.fs.invalidate_cache()
        return known.get

    def _status_or_none(self, path: str) -> Status | None:
        try:
            return self.status(path)
        except FileNotFoundError:
            return None

    def make_root(self, root: str) -> None:
        with os_errors(root):
            self.fs.makedirs(self.name(root), exist_ok=True)

    def mark(self, job_id: str, root: str, *, durable: bool) -> None:
        return  # a store that is not there answers so

    def has_mark(self, job_id: str, root: str) -> bool:
        return True

    def remove_mark(self, job_id: str, root: str) -> None:
        return

    def unit(self, plaintext_size: int) -> int:
        return 0

    def stage(
        self, staging: Staging, items: Sequence[Item], cut: Collection[int]
    ) -> Mapping[int, str | OSError | None]:
        folder = _staging_folder(staging.root, staging.job_id)
        folders = {folder, *(item.target.rpartition("/")[0] for item in items)}
        failed = {path: error for path, error in in_pool(self.make_root, folders) if error}
        return {
            item.number: failed.get(folder) or failed.get(item.target.rpartition("/")[0]) or folder
            for item in items
        }

    @contextlib.contextmanager
    def open(self, path: str, size: int, version: str) -> Iterator[Source]:
        yield RemoteSource(self, path)

    @contextlib.contextmanager
    def output(self, piece: Piece, attempt: Attempt, mode: int, begin: int) -> Iterator[Output]:
        path = f"{piece.shared}/{attempt.name}"
        try:
            with os_errors(path), self.fs.open(self.name(path), "wb") as file:
                yield _FileOutput(file, path)
        except BaseException:
            self._remove(path)
            raise

    def _remove(self, path: str) -> None:
        with contextlib.suppress(OSError), os_errors(path):
            self.fs.rm_file(self.name(path))

    def sync(self, staged: Sequence[str]) -> None:
        return  # a file that could be closed is kept

    def gather(
        self,
        staging: Staging,
        item: Item,
        shared: str | None,
        results: Sequence[tuple[int, str]],
        check: Callable[[str], object],
    ) -> str:
        return results[0][1]

    def discard(
        self, target: str, shared: str | None, results: Iterable[tuple[int, str]], *, all_: bool
    ) -> bool:
        if all_:
            for _, staged in results:
                if staged:
                    self._remove(staged)
        return True

    def publish(self, row: Row, *, again: bool) -> None:
        staged = self._staged(row)
        there = self._status_or_none(staged)
        target = self._status_or_none(row.target)
        if there is None:
            # It is moved by one call, which takes it away last.
            if again and target is not None and target.size == row.target_size:
                return
            raise NothingStagedError(errno.ENOENT, os.strerror(errno.ENOENT), staged)
        if there.size != row.target_size:
            said = "what was written has another size than it should"
            raise NothingStagedError(errno.EIO, said, staged)
        # What a move that was cut short has copied is to be copied again.
        may_replace = row.replaces or (
            again and target is not None and self._begins_with(staged, row.target, target.size)
        )
        if target is not None and not may_replace:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), row.target)
        try:
            self._move(staged, row.target)
        except OSError as error:
            try:
                as_it_was = (there, target) == (
                    self._status_or_none(staged),
                    self._status_or_none(row.target),
                )
            except OSError:
                as_it_was = False
            # A copy would have replaced it.
            if as_it_was and (target is None or _copies(type(self.fs))):
                raise
            if not as_it_was:
                raise UnknownOutcomeError(f"a move broke off: {error}", file=row.target) from None
            self._replace(staged, row.target)

    def _replace(self, staged: str, target: str) -> None:
        """Move what is staged to where a target is; some file systems move nothing over that."""
        try:
            with os_errors(target):
                self.fs.rm_file(self.name(target))
            self._move(staged, target)
        except OSError as error:
            raise UnknownOutcomeError(f"a move broke off: {error}", file=target) from None

    def _move(self, staged: str, target: str) -> None:
        source, name = self.name(staged), self.name(target)
        with os_errors(target):
            if not _copies(type(self.fs)):
                self.fs.mv(source, name)
                return
            # fsspec's own way to move, but that it takes names for patterns.
            self.fs.cp_file(source, name)
        self._remove(staged)

    def _begins_with(self, staged: str, target: str, size: int) -> bool:
        """Whether a staged file begins with all ``size`` bytes of a target."""
        if size < 0:
            return False
        with os_errors(target):
            for begin in range(0, size, _COMPARED):
                part = {"start": begin, "end": min(size, begin + _COMPARED)}
                ours = self.fs.cat_file(self.name(staged), **part)
                if ours != self.fs.cat_file(self.name(target), **part):
                    return False
        return True

    def _staged(self, row: Row) -> str:
        """Return the path of what a row's job has staged. Raises NothingStagedError for what no job
        of that id stages: a ledger moves and removes nothing else."""
        staged = row.attempt or ""
        folder, _, name = staged.rpartition("/")
        root, _, staging = folder.rpartition("/")
        is_ours = staging == _folder_name(row.job_id) and row.target.startswith(root + "/")
        if not is_ours or name in ("", ".", "..") or self.absolute(staged) != staged:
            raise NothingStagedError(errno.EINVAL, "the ledger names no staged file", row.target)
        return staged

    def withdraw(self, row: Row) -> None:
        with contextlib.suppress(NothingStagedError):
            self._remove(self._staged(row))

    def has_its_name(self, row: Row) -> bool:
        return self._status_or_none(self._staged(row)) is None

    def sync_names(self, paths: Collection[str]) -> None:
        return

    def clear(
        self,
        job_id: str,
        root: str,
        folders: Iterable[str] | None,
        staged: Iterable[tuple[str, str]],
    ) -> bool:
        folder = _staging_folder(root, job_id)
        name = self.name(folder)
        with contextlib.suppress(OSError), os_errors(folder):
            if not glob.has_magic(name):
                self.fs.rm(name, recursive=True)
            else:  # fsspec would take it for a pattern
                for file in self.fs.find(name):
                    self.fs.rm_file(file)
                self.fs.rmdir(name)
        try:
            return self._status_or_none(folder) is None
        except OSError:
            return False


def in_pool(call: Callable[[T], object], items: Iterable[T]) -> Iterator[tuple[T, OSError | None]]:
    """Call something with each item, many at a time; yield the items, with what it raised."""

    def one(item: T) -> tuple[T, OSError | None]:
        try:
            call(item)
        except OSError as error:
            return item, error
        return item, None

    with ThreadPoolExecutor(REQUESTS, "ags1-requests") as pool:
        yield from pool.map(one, items)


def _copies(kind: type[Any]) -> bool:
    """Whether file systems of that kind move by copying, as fsspec's base does."""
    from fsspec.spec import AbstractFileSystem

    return kind.mv is AbstractFileSystem.mv


def _status(facts: Mapping[str, Any]) -> Status:
    size = -1 if facts["type"] == "directory" else int(facts["size"])
    return Status(size, version_of(facts))


def _is_wanted(found: Found, closed: tuple[str, ...]) -> bool:
    if found.path.startswith(closed):
        return False
    return "/.ags1-" not in found.path or not any(map(is_temporary, found.path.split("/")))


def _folder_name(job_id: str) -> str:
    return f".ags1-{job_id}.tmp"


def _staging_folder(root: str, job_id: str) -> str:
    return f"{root}/{_folder_name(job_id)}"

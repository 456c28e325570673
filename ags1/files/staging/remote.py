"""Jobs' files in any file system that fsspec knows. Needs fsspec, which is optional. An attempt
writes a staged file in the job's own folder inside the root, and the driver moves it to its name.
One task writes all of a file, because these file systems do not write ranges."""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, TypeVar

from ...errors import Ags1Error
from ...host.atomic import already_exists, is_temporary, temporary_name
from ...host.pools import CancellingPool, map_in_threads
from ..filesystems import os_errors
from ..ledger import Row
from ..storage.bucket import Bucket, status_of
from ..storage.protocol import Status, status_of_file
from . import marks
from .listing import side_by_side
from .pieces import Item, Piece
from .protocol import (
    CHANGED,
    EXCLUDED,
    LISTING_THREADS,
    REQUESTS,
    Attempt,
    Check,
    Entries,
    Found,
    NothingStagedError,
    Output,
    PassedOver,
    Prepared,
    Problem,
    Results,
    Source,
    SourceFile,
    Staging,
    StatusOf,
    Takes,
    UnknownOutcomeError,
    Uploads,
)

T = TypeVar("T")

# The type of a folder with an empty name. Only object stores have such folders.
NAMELESS = "nameless"
# The status of up to so many files is asked for one by one; for more, their folder is listed.
_FEW = 64
_HALF_MOVED = "moving the file to its name failed; the next job tries again"
# A time in whole seconds is sure so many seconds later, unless clocks differ by more than a minute.
_SETTLED_AFTER = 2.0
_CLOCKS_DIFFER = 60.0
# A larger number is no time in seconds.
_LAST_SECOND = 1e11
# Bytes compared at a time.
_COMPARED = 8 << 20


class RemoteSource:
    """A file that is read by ranges; its version is compared before and after."""

    fd = -1
    mode = 0o600  # of decrypted copies: private, because a remote file has no mode

    def __init__(self, storage: RemoteStorage, path: str) -> None:
        self._storage, self._path = storage, path
        status = status_of_file(storage, path)
        if wait := unsettled_seconds(status.version, time.time()):
            time.sleep(wait)
            status = status_of_file(storage, path)
        self.size, self.version = status

    def read(self, offset: int, size: int) -> bytes:
        return self._storage.read(self._path, offset, offset + size) if size else b""

    def check_unchanged(self) -> None:
        if status_of_file(self._storage, self._path) != (self.size, self.version):
            raise Ags1Error(CHANGED)


class _FileOutput:
    fd = -1

    def __init__(self, file: Any, staged: str, check_mark: Callable[[], object]) -> None:
        self._file = file
        self.staged = staged
        self._check_mark = check_mark

    def write(self, data: bytes | memoryview) -> None:
        self._check_mark()
        with os_errors(self.staged):
            self._file.write(data)


class RemoteStorage(Bucket):
    """A file system of fsspec; see ``JobStorage``. Attempts share the job's folder of staged files.
    What an attempt has staged is a path, and so is ``Row.attempt``."""

    def __init__(self, filesystem: Any, host_url: str) -> None:
        super().__init__(filesystem)
        # The names of some file systems do not contain the host.
        is_beneath = self.name(f"{host_url}/ags1") == "/ags1"
        self._host_url = host_url if is_beneath else None

    def is_like(self, other: RemoteStorage) -> bool:
        """Whether that is the same file system, with the same host and settings."""
        mine, its = ((type(fs), fs.storage_args, fs.storage_options) for fs in (self.fs, other.fs))
        return mine == its

    def path(self, name: str) -> str:
        """Return the path of a file system's name."""
        if self._host_url is not None and name.startswith("/"):
            return self._host_url + name
        return str(self.fs.unstrip_protocol(name))

    def absolute(self, path: str) -> str:
        return self.path(self.name(path))

    def holds(self, root: str, target: str) -> bool:
        if not target.startswith(root + "/"):
            return False
        parts = target[len(root) + 1 :].split("/")
        return not {"", ".", ".."}.intersection(parts) and self.absolute(target) == target

    def find(self, source: str, closed: Collection[str], takes: Takes, pool: Executor) -> Found:
        not_here = tuple(path + "/" for path in closed)
        with os_errors(source):
            self.fs.invalidate_cache()
            name = self.name(source)
            if glob.has_magic(name) and not self.fs.exists(name):
                base = name
                while glob.has_magic(base):
                    base = base.rpartition("/")[0]
                matches = self.fs.glob(name, detail=True)
                if not matches:
                    raise FileNotFoundError(errno.ENOENT, "no file matches this pattern", source)
            else:
                facts = self.fs.info(name)
                name = facts["name"].rstrip("/")
                base = name if facts["type"] == "directory" else name.rpartition("/")[0]
                matches = {name: facts}
        for match, facts in matches.items():
            items: Iterable[SourceFile | Problem | PassedOver]
            if facts["type"] != "directory":
                items = [self.source_file(facts, base)]
            elif "**" in source and match != base:
                continue  # the pattern also matches what the folder holds
            else:
                items = self._below(match.rstrip("/"), base, pool)
            for item in items:
                if not isinstance(item, SourceFile):
                    yield item
                elif _is_wanted(item, not_here):
                    is_taken = takes(item.relative_path, False)
                    yield item if is_taken else PassedOver(item.path, EXCLUDED)
        self.fs.invalidate_cache()

    def _below(self, folder: str, base: str, pool: Executor) -> Found:
        """Yield what is below a folder. List level by level until there are enough folders, then
        list these with all that is below them at the same time."""
        level = [folder]
        while level:
            deep = len(level) >= LISTING_THREADS
            listings = (self._listed(folder, base, deep=deep) for folder in level)
            level = []
            for item in side_by_side(listings, pool):
                if isinstance(item, str):
                    level.append(item)
                else:
                    yield item

    def _listed(self, folder: str, base: str, *, deep: bool) -> Entries:
        try:
            with os_errors(folder):
                for facts in self.listing(folder, deep=deep):
                    if facts["type"] == "directory":
                        name = facts["name"].rstrip("/")
                        # Stores without folders list an object that marks the folder.
                        known = deep or name == folder
                        if not known and not is_temporary(name.rpartition("/")[2]):
                            yield name
                    elif facts["type"] == NAMELESS:
                        message = (
                            "its name has two slashes in a row, so it is in no folder: rename it"
                        )
                        error = OSError(errno.EINVAL, message)
                        yield Problem(self.path(facts["name"]), error)
                    elif not facts["name"].endswith("/"):
                        yield self.source_file(facts, base)
        except OSError as error:
            yield Problem(self.path(folder), error)

    def listing(self, folder: str, *, deep: bool) -> Iterable[Mapping[str, Any]]:
        """Return fsspec's facts of all entries of a folder; ``deep``: of all files below it."""
        entries: Iterable[Mapping[str, Any]] = (
            self.fs.find(folder, detail=True).values() if deep else self.fs.ls(folder, detail=True)
        )
        return entries

    def source_file(self, facts: Mapping[str, Any], base: str) -> SourceFile:
        """Return a listed file; its relative path begins at ``base``."""
        name = facts["name"]
        return SourceFile(self.path(name), name[len(base) :].lstrip("/"), *status_of(facts))

    def statuses(self, folder: str, count: int, *, follow: bool) -> StatusOf:
        name = self.name(folder).rstrip("/")
        if count <= _FEW or not name:
            return self.status
        with CancellingPool(LISTING_THREADS, "ags1-listing") as pool:
            known = {}
            for item in self._below(name, name, pool):
                if isinstance(item, SourceFile):
                    known[item.path] = Status(item.size, item.version)
                elif isinstance(item, Problem) and not isinstance(item.error, FileNotFoundError):
                    raise item.error
        self.fs.invalidate_cache()
        return known.get

    def make_root(self, root: str) -> None:
        with os_errors(root):
            self.fs.makedirs(self.name(root), exist_ok=True)

    def mark_paths(self, job_id: str, root: str) -> list[str]:
        return [f"{_staging_folder(root, job_id)}/root"]

    def unit(self, plaintext_size: int) -> int:
        return 0

    def stage(self, staging: Staging, items: Sequence[Item], cut: Collection[int]) -> Prepared:
        folder = _staging_folder(staging.root, staging.job_id)
        folder_of = {item.number: item.target.rpartition("/")[0] for item in items}
        made = in_pool(self.make_root, {folder, *folder_of.values()})
        failed = {path: error for path, error in made if error}
        return {n: failed.get(folder) or failed.get(at) or folder for n, at in folder_of.items()}

    @contextlib.contextmanager
    def open(self, path: str, size: int, version: str) -> Iterator[Source]:
        yield RemoteSource(self, path)

    @contextlib.contextmanager
    def output(self, piece: Piece, attempt: Attempt, mode: int, begin: int) -> Iterator[Output]:
        path = f"{piece.shared}/{attempt.name}"
        try:
            with os_errors(path), self.fs.open(self.name(path), "wb") as file:
                yield _FileOutput(file, path, partial(marks.check, self, attempt, now=False))
        except BaseException:
            self.try_to_remove(path)
            raise

    def try_to_remove(self, path: str) -> None:
        with contextlib.suppress(OSError):
            self.remove(path)

    def gather(
        self, staging: Staging, item: Item, shared: str | None, results: Results, check: Check
    ) -> str:
        return results[0][1]

    def discard(self, target: str, shared: str | None, results: Results, *, whole: bool) -> bool:
        if whole:
            for _, staged in results:
                if staged:
                    self.try_to_remove(staged)
        return True

    def publish(self, row: Row, *, again: bool) -> None:
        staged = self._staged(row)
        there = self.status(staged)
        target = self.status(row.target)
        if there is None:
            # One call moves it, and removes the staged file last.
            if again and target is not None and target.size == row.target_size:
                return
            raise NothingStagedError(errno.ENOENT, os.strerror(errno.ENOENT), staged)
        if there.size != row.target_size:
            message = "the file that was written has the wrong size: run the job again"
            raise NothingStagedError(errno.EIO, message, staged)
        # An interrupted move may have copied a part of the file: copy it again.
        may_replace = row.replaces or (
            again and target is not None and self._begins_with(staged, row.target, target.size)
        )
        if target is not None and not may_replace:
            raise already_exists(row.target)
        try:
            self._move(staged, row.target)
        except OSError as error:
            try:
                as_it_was = there == self.status(staged) and (target == self.status(row.target))
            except OSError:
                as_it_was = False
            # If the file system moves by copying, an existing target was not the cause.
            if as_it_was and (target is None or _copies(type(self.fs))):
                raise
            if not as_it_was:
                raise UnknownOutcomeError(f"{_HALF_MOVED}: {error}", file=row.target) from None
            self._replace(staged, row.target)

    def _replace(self, staged: str, target: str) -> None:
        """Move a staged file over a target. Some file systems do not replace: remove it first."""
        try:
            self.remove(target)
            self._move(staged, target)
        except OSError as error:
            raise UnknownOutcomeError(f"{_HALF_MOVED}: {error}", file=target) from None

    def _move(self, staged: str, target: str) -> None:
        source, name = self.name(staged), self.name(target)
        with os_errors(target):
            if not _copies(type(self.fs)):
                self.fs.mv(source, name)
                # HDFS does not replace a file. It answers "false", and fsspec's WebHDFS drops that.
                if self.status(staged) is not None:
                    raise FileExistsError(
                        errno.EEXIST, "the file was not moved to its name", target
                    )
                return
            # This is what fsspec does by default, but fsspec would take the names for patterns.
            self.copy(staged, target)
        self.try_to_remove(staged)

    def _begins_with(self, staged: str, target: str, size: int) -> bool:
        """Whether a staged file begins with the ``size`` bytes of a target."""
        if size < 0:
            return False
        parts = ((begin, min(size, begin + _COMPARED)) for begin in range(0, size, _COMPARED))
        return all(self.read(staged, *part) == self.read(target, *part) for part in parts)

    def _staged(self, row: Row) -> str:
        """Return the path of a row's staged file. Raises NothingStagedError if no job of the row's
        id stages a file under that path: a ledger must not move or remove other files."""
        staged = row.attempt or ""
        folder, _, name = staged.rpartition("/")
        root = folder.rpartition("/")[0]
        is_ours = folder == _staging_folder(root, row.job_id) and self.holds(root, row.target)
        if not is_ours or name in ("", ".", "..") or self.absolute(staged) != staged:
            message = "the ledger names no file that a job stages"
            raise NothingStagedError(errno.EINVAL, message, row.target)
        return staged

    def withdraw(self, row: Row) -> None:
        with contextlib.suppress(NothingStagedError):
            self.try_to_remove(self._staged(row))

    def has_its_name(self, row: Row) -> bool:
        return self.status(self._staged(row)) is None

    def clear(self, job_id: str, root: str, folders: Iterable[str] | None, staged: Uploads) -> bool:
        folder = _staging_folder(root, job_id)
        name = self.name(folder)
        with contextlib.suppress(OSError), os_errors(folder):
            if not glob.has_magic(name):
                self.fs.rm(name, recursive=True)
            else:  # fsspec would take the name for a pattern
                for file in self.fs.find(name):
                    self.fs.rm_file(file)
                self.fs.rmdir(name)
        try:
            return self.status(folder) is None
        except OSError:
            return False


def in_pool(call: Callable[[T], object], items: Iterable[T]) -> Iterator[tuple[T, OSError | None]]:
    """Call a function with each item, many at a time; yield each item and what was raised."""

    def one(item: T) -> tuple[T, OSError | None]:
        try:
            call(item)
        except OSError as error:
            return item, error
        return item, None

    return map_in_threads(REQUESTS, one, items)


def _copies(kind: type[Any]) -> bool:
    """Whether a file system moves by copying, as fsspec's base class does."""
    from fsspec.spec import AbstractFileSystem  # optional

    return kind.mv is AbstractFileSystem.mv


def unsettled_seconds(version: str, now: float) -> float:
    """Return how long a version may still be that of two contents: until its second is over, if it
    is a time in whole seconds, and another one for a clock that differs. ``now`` is in seconds
    since 1970."""
    second = _whole_second(version)
    if second is None or abs(now - second) > _CLOCKS_DIFFER:
        return 0.0
    return min(max(second + _SETTLED_AFTER - now, 0.0), _SETTLED_AFTER)


def _whole_second(version: str) -> float | None:
    """Return the time that a version is, in seconds since 1970; None if it is finer, or no time."""
    for parsed in (float, _compact, datetime.fromisoformat, parsedate_to_datetime):
        try:
            value = parsed(version)
            if isinstance(value, datetime):
                zoned = value if value.tzinfo else value.replace(tzinfo=timezone.utc)
                value = zoned.timestamp()
        except (ValueError, TypeError, OverflowError):
            continue
        if parsed is not float or abs(value) < _LAST_SECOND:
            return value if value == int(value) else None
    return None


def _compact(text: str) -> datetime:
    """Return the time that FTP's servers write: 20260131235959."""
    return datetime.strptime(text, "%Y%m%d%H%M%S")


def _is_wanted(file: SourceFile, closed: tuple[str, ...]) -> bool:
    if file.path.startswith(closed):
        return False
    return "/.ags1-" not in file.path or not any(map(is_temporary, file.path.split("/")))


def _staging_folder(root: str, job_id: str) -> str:
    return f"{root}/{temporary_name(job_id)}"

"""Jobs' files in folders that the driver and all executors have mounted.

Tasks write to staged files in the target's folder. A file that is cut has one staged file for all
ranges; the first attempt at a range writes there, each other attempt to a file of its own. A rename
gives the staged file its name. Independent of keys. See also ``local_files``, which lists, names
and syncs files.
"""

from __future__ import annotations

import contextlib
import errno
import operator
import os
import stat
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from functools import partial

from ...engine._gcm import random_bytes
from ...errors import Ags1Error
from ...host.atomic import is_at, publish, sync
from ...host.regular_file import regular_file
from ..ledger import Row
from ..paths import local_path
from ..storage.folder import Folder, make_folder, read_range, status_of
from ..storage.protocol import Status
from . import local_files as files
from . import marks
from .pieces import Item, Piece, target_offset, target_size
from .protocol import (
    CHANGED,
    Attempt,
    Check,
    Found,
    NothingStagedError,
    Output,
    Prepared,
    Results,
    Staging,
    StatusOf,
    Takes,
    Uploads,
)


class LocalSource:
    """A regular file, open for reading."""

    def __init__(self, fd: int, status: os.stat_result) -> None:
        self.fd = fd
        self._status = status
        self.size = status.st_size
        self.version = files.version(status)
        self.mode = stat.S_IMODE(status.st_mode) & 0o777

    def read(self, offset: int, size: int) -> bytes:
        return read_range(self.fd, offset, size)

    def check_unchanged(self) -> None:
        # A program can set a file's modification time, but not the time of its last status change.
        facts = operator.attrgetter("st_size", "st_mtime_ns", "st_ctime_ns")
        if facts(os.fstat(self.fd)) != facts(self._status):
            raise Ags1Error(CHANGED)


class _LocalOutput:
    def __init__(self, fd: int, staged: str, begin: int) -> None:
        self.fd, self.staged = fd, staged
        self._offset = begin

    def write(self, data: bytes | memoryview) -> None:
        rest = memoryview(data)
        while rest:
            written = os.pwrite(self.fd, rest, self._offset)
            self._offset += written
            rest = rest[written:]


class LocalStorage(Folder):
    """Mounted folders; see ``JobStorage``. If a file is cut, its attempts share the staged file of
    all ranges. What an attempt has staged is a path."""

    def absolute(self, path: str) -> str:
        return os.path.abspath(self.name(path))

    def holds(self, root: str, target: str) -> bool:
        return os.path.normpath(target) == target and target.startswith(root + os.sep)

    def find(self, source: str, closed: Collection[str], takes: Takes, pool: Executor) -> Found:
        here = (local_path(path) for path in closed)
        folders = frozenset(os.path.abspath(path) for path in here if path is not None)
        for path, base, is_match in files.expand(self.name(source)):
            if is_match and (passed_over := files.passed_over(path)) is not None:
                yield passed_over
            else:
                yield from files.below(path, base, folders, takes, pool)

    def statuses(self, folder: str, count: int, *, follow: bool) -> StatusOf:
        return partial(_status, follow)

    def make_root(self, root: str) -> None:
        os.makedirs(root, exist_ok=True)

    def mark_paths(self, job_id: str, root: str) -> list[str]:
        return files.mark_paths(root, job_id)

    def unit(self, plaintext_size: int) -> int:
        return 1

    def stage(self, staging: Staging, items: Sequence[Item], cut: Collection[int]) -> Prepared:
        staged: dict[int, str | OSError | None] = {}
        made: dict[str, OSError | None] = {}
        for item in items:
            folder = os.path.dirname(item.target)
            if folder not in made:
                made[folder] = _make_folder(folder, item.source, staging.root)
            try:
                if (error := made[folder]) is not None:
                    raise error
                staged[item.number] = _shared(staging, item) if item.number in cut else None
            except OSError as error:
                staged[item.number] = error
        return staged

    @contextlib.contextmanager
    def open(self, path: str, size: int, version: str) -> Iterator[LocalSource]:
        with regular_file(path) as (fd, status, _):
            yield LocalSource(fd, status)

    @contextlib.contextmanager
    def output(self, piece: Piece, attempt: Attempt, mode: int, begin: int) -> Iterator[Output]:
        """Open what an attempt writes to. The first attempt at a range writes to the file of all
        ranges. Every other one writes, at the same offset, to a file of its own, because the first
        may still be writing although it was given up. So the claim of a range stays until the job
        ends. An attempt of another user than the driver's, who may not write to the file of all
        ranges, has a file of its own, too."""
        path = files.staged_path(piece.target, attempt.job_id, attempt.name)
        shared = piece.shared
        claim = "" if shared is None else _claim_path(shared, piece.first_block)
        fd = -1
        if shared is not None and _claims(claim, attempt):
            with contextlib.suppress(PermissionError):
                fd = os.open(shared, os.O_RDWR | os.O_CLOEXEC)
                path = shared
        if fd < 0:
            fd = _new_file(path, attempt)
        try:
            try:
                yield _LocalOutput(fd, path, begin)
                if path == shared:
                    # The driver's file: it copies the mode of the claim, which is this user's.
                    os.chmod(claim, mode)
                else:
                    os.fchmod(fd, mode)
            finally:
                os.close(fd)
        except BaseException:
            if path != shared:
                files.remove(path)
            raise

    def gather(
        self, staging: Staging, item: Item, shared: str | None, results: Results, check: Check
    ) -> str:
        if shared is None or {staged for _, staged in results} == {shared}:
            path = results[0][1]
            if shared is not None:
                mode = _mode_of(shared, results[0])
                if mode != stat.S_IMODE(os.stat(path).st_mode):
                    os.chmod(path, mode)
                    if staging.durable:
                        files.sync([path])
            return files.attempt(path, os.path.dirname(item.target))
        path = self._assembled(staging, item, shared, results)
        files.remove(shared)
        check(path)
        return files.attempt(path, os.path.dirname(item.target))

    def _assembled(self, staging: Staging, item: Item, shared: str, results: Results) -> str:
        """Copy the ranges into a new file. An attempt that was given up may still be writing to the
        file of all ranges, but no attempt knows the new one."""
        path = files.staged_path(item.target, staging.job_id, f"whole-{item.number:x}")
        results = sorted(results)
        begins = [target_offset(first, seals=staging.seals) for first, _ in results]
        ends = [*begins[1:], target_size(item, seals=staging.seals)]
        fd = _new_file(path, staging)
        try:
            for begin, end, (_, staged) in zip(begins, ends, results, strict=True):
                files.copy_range(staged, fd, begin, end - begin)
            os.fchmod(fd, _mode_of(shared, results[0]))
            if staging.durable:
                sync(fd)
        finally:
            os.close(fd)
        return path

    def discard(self, target: str, shared: str | None, results: Results, *, whole: bool) -> bool:
        for _, staged in results:
            if staged and staged != shared and (whole or shared is not None):
                files.remove(staged)
        if shared is not None and whole:
            files.remove(shared)
        return True

    def publish(self, row: Row, *, again: bool) -> None:
        staged, trace = _staged(row)
        try:
            status = os.stat(staged)
        except FileNotFoundError as error:
            if again and _is_published(row, trace):
                return
            folder = os.path.dirname(row.target)
            if not os.path.isdir(folder):
                # It may not be mounted yet.
                message = "the folder of a killed job's files is not there: mount it, or create it"
                raise FileNotFoundError(errno.ENOENT, message, folder) from None
            raise NothingStagedError(errno.ENOENT, error.strerror, staged) from None
        if status.st_size != row.target_size:
            message = "the file that was written has the wrong size: run the job again"
            raise NothingStagedError(errno.EIO, message, staged)
        if again and status.st_nlink > 1 and is_at(row.target, status):
            os.unlink(staged)
            return
        try:
            publish(staged, row.target, overwrite=row.replaces, durable=False)
        except OSError:
            # If the answer to a rename is lost, a network file system repeats it, and that fails.
            if not is_at(row.target, status):
                raise
            files.remove(staged)

    def withdraw(self, row: Row) -> None:
        with contextlib.suppress(NothingStagedError):
            files.remove(_staged(row)[0])

    def has_its_name(self, row: Row) -> bool:
        return not os.path.lexists(_staged(row)[0])

    def write_beside(self, row: Row, path: str, data: bytes) -> None:
        """Write the sidecar of a row's target, whole or not at all, in place of an older one. It
        gets its file's permissions and group, if it can. ``clear`` removes what a killed job
        leaves, and ``sync_names`` syncs the name."""
        like = _status_of_file(row)
        staged = files.staged_path(path, row.job_id, random_bytes(8).hex())
        fd = files.create(staged)
        try:
            with open(fd, "wb") as file:
                file.write(data)
                if like is not None:
                    with contextlib.suppress(OSError):  # not a group of this user
                        os.fchown(fd, -1, like.st_gid)
                    os.fchmod(fd, stat.S_IMODE(like.st_mode) & 0o777)
            os.rename(staged, path)
        except BaseException:
            files.remove(staged)
            raise

    def clear(self, job_id: str, root: str, folders: Iterable[str] | None, staged: Uploads) -> bool:
        unread: list[OSError] = []
        if folders is None:
            folders = (folder for folder, _, _ in os.walk(root, onerror=unread.append))
        is_gone = files.remove_staged(folders, job_id)
        return is_gone and all(isinstance(error, files.NOTHING_THERE) for error in unread)


LOCAL = LocalStorage(durable=False)  # what has to be is synced: many files at once


def _status(follow: bool, path: str) -> Status | None:
    try:
        status = os.stat(path, follow_symlinks=follow)
    except FileNotFoundError:
        return None
    return status_of(status)


def _make_folder(folder: str, source: str, root: str) -> OSError | None:
    like = None if local_path(source) is None else os.path.dirname(source)
    try:
        # Otherwise a user who may write in the root could lead the job out of it by a link.
        inside = os.path.join(os.path.realpath(root), os.path.relpath(folder, root))
        if os.path.realpath(folder) != os.path.normpath(inside):
            message = "a link lies between the target folder and this one: remove it"
            return OSError(errno.ELOOP, message, folder)
        make_folder(folder, like, root)
    except OSError as error:
        return error
    return None


def _shared(staging: Staging, item: Item) -> str:
    """Stage a file for all ranges of an item; return its path. It has the source's permissions:
    executors may have another user than the driver, but a group in common."""
    path = files.staged_path(item.target, staging.job_id, f"shared-{item.number:x}")
    source = local_path(item.source)
    mode = 0 if source is None else stat.S_IMODE(os.stat(source).st_mode) & 0o777
    fd = _new_file(path, staging)
    try:
        os.fchmod(fd, mode | 0o600)
        os.ftruncate(fd, target_size(item, seals=staging.seals))
    finally:
        os.close(fd)
    return path


def _new_file(path: str, job: Attempt | Staging) -> int:
    """Create a staged file of a job, if its mark is there, and return its descriptor."""
    return files.stage(path, partial(marks.check, LOCAL, job, now=True))


def _claim_path(shared: str, first_block: int) -> str:
    """Return the path of the file that an attempt creates to claim a range of a shared file."""
    stem, suffix = os.path.splitext(shared)
    return f"{stem}-claim{first_block:x}{suffix}"


def _mode_of(shared: str, result: tuple[int, str]) -> int:
    """Return the mode that the task of a result wants its target to have."""
    first_block, staged = result
    path = staged if staged != shared else _claim_path(shared, first_block)
    return stat.S_IMODE(os.stat(path).st_mode)


def _claims(path: str, attempt: Attempt) -> bool:
    try:
        os.close(_new_file(path, attempt))
    except FileExistsError:
        return False
    return True


def _staged(row: Row) -> tuple[str, files.Trace]:
    """Return the path of a row's staged file, and the trace that identifies it under another name.
    Raises NothingStagedError if the row's job could not have staged a file at that path: a ledger
    must not make us move or remove other files."""
    staged = files.staged_of(row.attempt or "", row.job_id)
    if staged is None:
        message = "the ledger names no file that a job stages"
        raise NothingStagedError(errno.EINVAL, message, row.target)
    return os.path.join(os.path.dirname(row.target), staged[0]), staged[1]


def _status_of_file(row: Row) -> os.stat_result | None:
    """Return the status of a row's file, staged or named; None if it is not there."""
    paths = [row.target]
    with contextlib.suppress(NothingStagedError):
        paths.insert(0, _staged(row)[0])
    for path in paths:
        with contextlib.suppress(OSError):
            return os.stat(path)
    return None


def _is_published(row: Row, trace: files.Trace) -> bool:
    """Whether a target is the staged file, and not the older file that it replaces."""
    try:
        status = os.stat(row.target)
    except FileNotFoundError:
        return False
    is_new = not row.replaces or trace.is_of(status)
    return is_new and status.st_size == row.target_size

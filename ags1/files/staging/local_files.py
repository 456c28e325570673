"""A job's files in mounted folders: listed, staged, copied and synced. A staged file is in its
target's folder, and its name contains the job and the attempt. So no two attempts write the same
file, and the files of a killed job can be recognised. Independent of keys and Spark."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import glob
import os
import re
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from typing import Any, NamedTuple

from ...host.atomic import is_temporary, temporary_name
from .listing import side_by_side
from .protocol import (
    DANGLING_LINK,
    DEVICE,
    EXCLUDED,
    LINK_TO_FOLDER,
    NOT_UTF8,
    PIPE,
    SOCKET,
    Entries,
    Found,
    PassedOver,
    Problem,
    SourceFile,
    Takes,
)

# The name of the folder in which a data source stages files begins with this. The rest of the name
# is the job's ID, or its beginning if an earlier version wrote a stream. Readers pass over such
# folders.
SINK_PREFIX = "_ags1-"
_ATTEMPT = re.compile(
    r"(?P<folder>_ags1-[0-9a-f]+/)?(?P<name>[^/\0]+)\t(?P<inode>[0-9]+)-(?P<mtime_ns>-?[0-9]+)"
)
# Listing a folder raises these if it has no files of ours: a job may list the folders that it made.
NOTHING_THERE = (FileNotFoundError, PermissionError)
# No attempt has these names.
_MARK, _ENDED = "root", "ended-root"


class Trace(NamedTuple):
    """What identifies a file under another name."""

    inode: int
    mtime_ns: int

    def is_of(self, status: os.stat_result) -> bool:
        """Whether that is the file's status. After a new mount, FUSE gives other inodes."""
        return status.st_ino == self.inode or status.st_mtime_ns == self.mtime_ns


def version(status: os.stat_result) -> str:
    """Return the version of a local file: its modification time in ns."""
    return str(status.st_mtime_ns)


def expand(source: str) -> Iterator[tuple[str, str, bool]]:
    """Yield the paths that ``source`` means, each with the folder its relative path begins in, and
    whether it matches a pattern."""
    path = os.path.abspath(source)
    if os.path.lexists(path) or not glob.has_magic(source):
        yield path, path if os.path.isdir(path) else os.path.dirname(path), False
        return
    base = path
    while glob.has_magic(base):
        base = os.path.dirname(base)
    matches = sorted(glob.glob(path, recursive=True))
    if not matches:
        raise FileNotFoundError(errno.ENOENT, "no file matches this pattern", source)
    for match in matches:
        # "**" matches folders and all that is in them, and it follows links.
        if "**" not in source or not (os.path.isdir(match) or _is_beyond_link(match, base)):
            yield match, base, True


def _is_beyond_link(path: str, base: str) -> bool:
    folder = os.path.dirname(path)
    while len(folder) > len(base):
        if os.path.islink(folder):
            return True
        folder = os.path.dirname(folder)
    return False


def passed_over(path: str) -> PassedOver | None:
    """Return why a match of a pattern is no file to work on, None if it is one or is a folder."""
    if not _is_text(path):
        return PassedOver(_text_of(path), NOT_UTF8)
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        return PassedOver(path, DANGLING_LINK) if _dangles(path, error) else None
    return None if stat.S_ISDIR(mode) else _special(path, mode)


def below(path: str, base: str, closed: frozenset[str], takes: Takes, pool: Executor) -> Found:
    """Yield the file at a path of ``expand``, or all files in that folder, level by level."""
    status = os.stat(path)
    if not stat.S_ISDIR(status.st_mode):
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "Not a regular file", path)
        file = SourceFile(path, os.path.relpath(path, base), status.st_size, version(status))
        if not takes(file.relative_path, False):
            yield PassedOver(_text_of(path), EXCLUDED)
        else:
            yield file if _is_text(path) else _no_text(path)
        return
    level = [] if path in closed else [path]
    while level:
        listings = (_list_folder(folder, base, takes) for folder in level)
        level = []
        for item in side_by_side(listings, pool):
            if not isinstance(item, str):
                yield item
            elif item not in closed:
                level.append(item)


def _list_folder(folder: str, base: str, takes: Takes) -> Entries:
    prefix = "" if folder == base else os.path.relpath(folder, base) + "/"
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if is_temporary(entry.name):
                    continue
                name = prefix + entry.name
                try:
                    is_folder = entry.is_dir(follow_symlinks=False)
                    if not takes(name, is_folder):
                        yield PassedOver(_text_of(entry.path), EXCLUDED)
                    elif not _is_text(entry.path):
                        yield PassedOver(_text_of(entry.path), NOT_UTF8)
                    elif is_folder:
                        yield entry.path
                    else:
                        yield _file(entry.path, name, entry.stat())
                except OSError as error:
                    gone = _dangles(entry.path, error)
                    problem = Problem(entry.path, error)
                    yield PassedOver(entry.path, DANGLING_LINK) if gone else problem
    except OSError as error:
        yield Problem(folder, error)


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def _text_of(path: str) -> str:
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _no_text(path: str) -> Problem:
    # Neither Parquet nor Spark's rows can hold such a name.
    return Problem(_text_of(path), OSError(errno.EILSEQ, "its name is not UTF-8: rename it"))


def _file(path: str, name: str, status: os.stat_result) -> SourceFile | PassedOver:
    file = SourceFile(path, name, status.st_size, version(status))
    return _special(path, status.st_mode) or file


def _special(path: str, mode: int) -> PassedOver | None:
    """Return why to pass over what is at a path, None for a regular file."""
    if stat.S_ISREG(mode):
        return None
    kinds = {stat.S_IFDIR: LINK_TO_FOLDER, stat.S_IFIFO: PIPE, stat.S_IFSOCK: SOCKET}
    return PassedOver(path, kinds.get(stat.S_IFMT(mode), DEVICE))


def _dangles(path: str, error: OSError) -> bool:
    """Whether a path could not be looked at because it is a link to nothing, or to itself."""
    return error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP) and os.path.islink(path)


def staged_path(target: str, job_id: str, attempt: str) -> str:
    """Return the path, in the target's folder, for what one attempt of a job writes."""
    return os.path.join(os.path.dirname(target), temporary_name(f"{job_id}-{attempt}"))


def is_staged(name: str, job_id: str) -> bool:
    """Whether that is the name of a file that an attempt of the job made."""
    begin, end = temporary_name(f"{job_id}-/").split("/")
    is_ours = name.startswith(begin) and name.endswith(end)
    return is_ours and name not in (f"{begin}{_MARK}{end}", f"{begin}{_ENDED}{end}")


@functools.lru_cache(maxsize=8)  # asked for each file
def mark_paths(root: str, job_id: str) -> list[str]:
    """See ``Publishing.mark_paths``."""
    inside = os.path.join(root, "")
    return [staged_path(inside, job_id, _MARK), staged_path(inside, job_id, _ENDED)]


def attempt(path: str, folder: str) -> str:
    """Return what the ledger notes of a staged file (``Row.attempt``): its path from ``folder``,
    which its target will be in, and its trace."""
    status = os.stat(path)
    return f"{os.path.relpath(path, folder)}\t{status.st_ino}-{status.st_mtime_ns}"


def staged_of(attempt: str, job_id: str) -> tuple[str, Trace] | None:
    """Return the path and the trace in ``attempt``; None if no attempt of the job could have made
    such a file in the target's folder, or in a data source's staging folder there."""
    match = _ATTEMPT.fullmatch(attempt)
    if match is None or not is_staged(match["name"], job_id):
        return None
    folder = match["folder"] or ""
    if not job_id.startswith(folder.removeprefix(SINK_PREFIX).removesuffix("/")):
        return None
    return folder + match["name"], Trace(int(match["inode"]), int(match["mtime_ns"]))


def remove_staged(folders: Iterable[str], job_id: str) -> bool:
    """Remove the files of a job's attempts in these folders; return whether all are removed. If a
    file cannot be removed, readers pass over its name."""
    is_gone = True
    for folder in folders:
        try:
            with os.scandir(folder) as entries:
                left = [entry.path for entry in entries if is_staged(entry.name, job_id)]
        except NOTHING_THERE:
            continue
        except OSError:
            is_gone = False
            continue
        # First the file, then the claims on its ranges: without a claim, a late attempt could write
        # to the file.
        for path in sorted(left, reverse=True):
            try:
                os.unlink(path)
            except FileNotFoundError:
                continue
            except OSError:
                is_gone = False
    return is_gone


def remove(path: str) -> bool:
    """Remove a file if it exists; return whether it was removed."""
    try:
        os.unlink(path)
    except OSError:
        return False
    return True


def stage(path: str, check_mark: Callable[[], object]) -> int:
    """Create a staged file, and return its descriptor. If the mark of its job is gone, leave no
    file, and raise JobEndedError. So a file that is written to was there before the mark was gone,
    and whoever has removed the mark finds it. Raises OSError."""
    fd = create(path)
    try:
        check_mark()
    except BaseException:
        os.close(fd)
        remove(path)
        raise
    return fd


def create(path: str) -> int:
    """Create a new file and return its descriptor. Raises OSError."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)


def check_root(root: str) -> None:
    """Raise OSError if ``root`` is something else than a folder."""
    if os.path.lexists(root) and not os.path.isdir(root):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), root)


def missing_folders(folders: Iterable[str], root: str) -> set[str]:
    """Return those of the folders, and of the folders between them and ``root``, that do not
    exist."""
    missing: set[str] = set()
    for folder in folders:
        while len(folder) >= len(root) and folder not in missing:
            if os.path.lexists(folder):
                break
            missing.add(folder)
            folder = os.path.dirname(folder)
    return missing


def remove_empty(folders: Iterable[str]) -> None:
    """Remove those of the folders that are empty. Others stay."""
    for folder in sorted(folders, key=len, reverse=True):
        with contextlib.suppress(OSError):
            os.rmdir(folder)


def copy_range(source: str, target: int, offset: int, size: int) -> None:
    """Copy ``size`` bytes at ``offset`` of a file to the same offset of the descriptor ``target``.
    Raises OSError, also if the source ends early."""
    fd = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    copy: Callable[..., int] = getattr(os, "copy_file_range", _copy_some)
    try:
        while size:
            try:
                copied = copy(fd, target, size, offset, offset)
            except OSError as error:
                if copy is _copy_some or error.errno not in _CANNOT_COPY:
                    raise
                copy = _copy_some
                continue
            if not copied:
                raise OSError(errno.EIO, "the file ends early", source)
            offset += copied
            size -= copied
    finally:
        os.close(fd)


_CANNOT_COPY = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)


def _copy_some(source: int, target: int, size: int, offset: int, target_offset: int) -> int:
    data = os.pread(source, min(size, 1 << 20), offset)
    return os.pwrite(target, data, target_offset) if data else 0


def sync(paths: Sequence[str]) -> None:
    """Sync files to the disk. Raises OSError. A few files are synced one by one, many with one call
    for their file system, which also syncs the data of other programs."""
    if len(paths) > _FEW and _syncfs is not None:
        folders = set(map(os.path.dirname, paths))
        devices = {os.stat(folder).st_dev: folder for folder in folders}
        for folder in devices.values():
            sync_file_system(folder)
        return
    for path in paths:
        _with_descriptor(path, os.fsync)


def sync_names(folders: Iterable[str]) -> None:
    """Sync the names in these folders to the disk. Raises OSError."""
    devices = {os.stat(path).st_dev: path for path in folders}
    for path in devices.values():
        sync_file_system(path)


def sync_file_system(path: str) -> None:
    """Sync the whole file system of ``path`` to the disk. Raises OSError."""

    def call(fd: int) -> None:
        if _syncfs is None:
            os.sync()
        elif _syncfs(fd):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), path)

    _with_descriptor(path, call)


def _with_descriptor(path: str, call: Callable[[int], Any]) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        call(fd)
    finally:
        os.close(fd)


def _find_syncfs() -> Callable[[int], int] | None:
    if not sys.platform.startswith("linux"):
        return None
    return getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)


_FEW = 4
_syncfs = _find_syncfs()

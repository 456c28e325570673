"""Output files that appear whole or not at all: bytes go to a file without a name in the target's
folder, and ``commit`` gives it the final name in one step. After an error, or a crash before that
step, the target is as it was, and nothing else is left. Where the system has no such files, or
gives them no names, it is a temporary file, and a crash leaves that. Independent of AGS1."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import shutil
import stat
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..errors import FileWarning
from ._paths import Unsettled, real_path
from ._process import process_number
from .descriptors import is_new, is_stream

if TYPE_CHECKING:
    from typing_extensions import Self

_PERMISSIONS = 0o777
# Linux, and only some of its file systems.
_NAMELESS = getattr(os, "O_TMPFILE", None)
# What a policy, a container or a file system answers that gives such a file no name.
_NO_NAME = {errno.EPERM, errno.EACCES, errno.ENOSYS, errno.EOPNOTSUPP, errno.EXDEV, errno.ENOENT}
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_COPIED_AT_ONCE = 1 << 20
_TEMPORARY_PREFIX, _TEMPORARY_SUFFIX = ".ags1-", ".tmp"


class AtomicFile(Unsettled):
    """A file under construction, open for writing at ``fd``. It has no path, or ``temporary``.

    If the target exists, ``overwrite=False`` raises FileExistsError, at once or at ``commit``.
    ``durable`` syncs file and folder before ``commit`` returns. ``mode`` is the permission bits of
    the file, less the umask and without setuid, setgid and sticky bits. None keeps the bits of an
    existing target, and gives 0666 less the umask to a new one. An existing target's owner and
    group are kept, or there is a FileWarning. ``like`` is the status of another file, which gives
    the bits, the owner and the group instead. A target that is a stream (``is_stream``:
    ``/dev/null``, ``/dev/stdout``) is refused. ``new`` is ``is_new(target)``, if that is known.
    """

    # An interrupt may come before the constructor has set anything.
    published = True  # there is nothing to discard yet
    fd = -1
    _is_staged = False
    _status: os.stat_result | None = None  # of the finished file

    def __init__(
        self,
        target: str | bytes | os.PathLike[Any],
        *,
        overwrite: bool = False,
        durable: bool = True,
        mode: int | None = None,
        like: os.stat_result | None = None,
        new: bool | None = None,
    ) -> None:
        self.name = os.fsdecode(target)
        if new is None:
            new = is_new(self.name)
        self._path = _real_path(self.name, new=new)
        self._overwrite = overwrite
        self.durable = durable
        # The bits of an existing target or of ``like``: the umask does not reduce them.
        self._kept_mode: int | None = None
        self._process = process_number()
        existing = None
        if not new:
            if not overwrite and os.path.lexists(self.name):
                raise already_exists(self.name)
            if is_stream(self.name):
                raise OSError(errno.EINVAL, "Not a regular file", self.name)
            with contextlib.suppress(FileNotFoundError):
                existing = os.stat(self._path) if overwrite else None
        if existing is not None and stat.S_ISDIR(existing.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), self.name)
        self._replaces = existing is not None
        self._like = existing if like is None else like
        if self._like is not None and (mode is None or like is not None):
            self._kept_mode = self._like.st_mode & _PERMISSIONS
            mode = 0o600
        self.published = self.settled = False
        # The kernel applies the umask; to ask for it would be to set it for all threads.
        mode = 0o666 if mode is None else mode & _PERMISSIONS
        self.fd = _open_nameless(self._path.rpartition("/")[0] or "/", mode)
        self._has_name = self.fd < 0
        if self._has_name:
            try:
                self.fd = os.open(self.temporary, _NEW, mode)
            except OSError as error:
                raise named(error, self.name) from None

    @functools.cached_property
    def temporary(self) -> str:
        """The path of the file under construction, if it has a name."""
        return temporary_path(self._path)

    def commit(self) -> None:
        """Give the file its final name. Raises OSError; the file is then removed. Once the file has
        its name it stays: if the folder cannot be synced, there is a FileWarning."""
        try:
            if self._like is not None:
                _give(self.fd, self._like, self._kept_mode, self.name)
            if self.durable:
                sync(self.fd)
            self._status = os.fstat(self.fd)
            self._publish()
            self.published = True
            self.settled = not self._is_staged
        except BaseException as error:
            # The file may have its name already, for example after Ctrl-C. If it replaced another,
            # it stays; otherwise it is removed.
            self.published = is_at(self._path, self._status)
            if self.published and not self._overwrite:
                os.unlink(self._path)
                self.published = False
            self.discard()
            if isinstance(error, OSError):
                raise named(error, self.name) from None
            raise

    def _publish(self) -> None:
        try:
            name = self._finish(self.temporary if self._replaces else self._path)
        except FileExistsError:
            if not self._overwrite:
                raise
            name = self._finish(self.temporary)
        if name != self._path:
            publish(name, self._path, overwrite=self._overwrite, durable=False)
        if self.durable:
            self._sync_name()

    def _sync_name(self) -> None:
        """Sync the folder after the file got its name."""
        _sync_name(self._path)

    def _finish(self, path: str) -> str:
        """Close the file and return its name: ``temporary``, or ``path`` if it had none. Raises
        FileExistsError if that exists."""
        if not self._has_name:
            try:
                # With a descriptor, os.link follows the link in /proc.
                os.link(f"/proc/self/fd/{self.fd}", path, src_dir_fd=self.fd)
            except OSError as error:
                if error.errno not in _NO_NAME:
                    raise
                self._copy_to_temporary()
        fd, self.fd = self.fd, -1
        os.close(fd)
        return self.temporary if self._has_name else path

    def _copy_to_temporary(self) -> None:
        """Copy a file that may not get a name. The process makes no more such files."""
        global _NAMELESS
        mode = os.fstat(self.fd).st_mode & _PERMISSIONS
        nameless, self.fd = self.fd, os.open(self.temporary, _NEW, 0o600)
        with open(nameless, "rb") as source, open(self.fd, "wb", closefd=False) as copy:
            source.seek(0)
            shutil.copyfileobj(source, copy, _COPIED_AT_ONCE)
        _set_mode(self.fd, mode)
        if self.durable:
            sync(self.fd)
        self._status = os.fstat(self.fd)
        self._has_name = True
        _NAMELESS = None

    def discard(self) -> None:
        """Remove the file. Does nothing after ``commit``, or to a name in a forked child. If the
        folder lets nobody remove a file, it is emptied, and there is a FileWarning."""
        try:
            is_mine = self._process == process_number() and not self.settled
            if is_mine and "temporary" in vars(self):
                remove_temporary(self.temporary, self._empty)
        finally:
            if self.fd >= 0:
                fd, self.fd = self.fd, -1
                with contextlib.suppress(OSError):
                    os.close(fd)
            self.settled = True

    def _empty(self) -> None:
        """Empty the temporary file. Raises OSError, also if its content has another name."""
        flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(self.temporary, flags) if self.fd < 0 else os.dup(self.fd)
        try:
            status = os.fstat(fd)
            known = self._status is None or os.path.samestat(status, self._status)
            if not known or status.st_nlink != 1:
                raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), self.temporary)
            os.ftruncate(fd, 0)
        finally:
            os.close(fd)

    def drop(self) -> None:
        """Discard a file that was dropped: an interrupt may come when it exists and the caller has
        no reference to this object."""
        # Nobody could catch an error here.
        with contextlib.suppress(OSError):
            self.discard()

    def __enter__(self) -> Self:
        return self

    def write(self, data: bytes | memoryview) -> None:
        """Write all of ``data``. Raises OSError."""
        view = memoryview(data)
        while view.nbytes:
            try:
                view = view[os.write(self.fd, view) :]
            except OSError as error:
                raise named(error, self.name) from None

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.commit()
        else:
            self.discard()


class StagedFile(AtomicFile):
    """A file that gets its name in two steps. ``commit`` completes it and leaves it at
    ``temporary``. The caller then writes another file first, and calls ``publish`` at the end.
    ``discard`` removes the file, and so does dropping this object."""

    _is_staged = True

    def _publish(self) -> None:
        self._finish(self.temporary)


def _real_path(name: str, *, new: bool) -> str:
    """Return the absolute path of the file that ``open`` would write. A symbolic link is followed:
    the file that it points to is replaced. The links in the folder's path are followed once,
    because somebody may change them before the file has its name. ``new`` is ``is_new(name)``."""
    if new:
        real = real_path(os.fsencode(name))
        if real is not None:
            return os.fsdecode(real)
    return os.path.realpath(name)


@functools.cache
def _umask_counts() -> bool:
    """Whether the system applies the umask to a file without a name. Before version 6.0, Linux
    does not on some file systems."""
    major = os.uname().release.partition(".")[0]
    return major.isdecimal() and int(major) >= 6


@functools.cache
def _has_proc() -> bool:
    return os.access("/proc/self", os.F_OK)


def _open_nameless(folder: str, mode: int) -> int:
    """Return the descriptor of a new file without a name, or -1 if there can be none. ``mode`` is
    the permission bits, which the umask reduces."""
    # Its name will come from /proc.
    if _NAMELESS is None or not _has_proc():
        return -1
    is_simple = _umask_counts() or not mode & 0o077
    flags = _NAMELESS | os.O_RDWR | os.O_CLOEXEC
    try:
        fd = os.open(folder, flags, mode if is_simple else _PERMISSIONS)
    except OSError:
        return -1
    if is_simple:
        return fd
    # The umask counted here if a bit is lacking.
    bits = os.fstat(fd).st_mode & _PERMISSIONS
    if bits == _PERMISSIONS:
        os.close(fd)
        return -1
    try:
        _set_mode(fd, bits & mode)
    except OSError:
        os.close(fd)
        return -1
    return fd


def _give(fd: int, like: os.stat_result, mode: int | None, name: str) -> None:
    """Give a file the owner and the group of another one, as far as the system allows it, and then
    the permission bits ``mode``. A group that could not be given does not get its bits: then this
    user's group may do what all others may. Raises OSError."""
    wanted, own = (like.st_uid, like.st_gid), os.fstat(fd)
    if (own.st_uid, own.st_gid) != wanted:
        for uid, gid in (wanted, (-1, like.st_gid)):
            with contextlib.suppress(OSError):
                os.fchown(fd, uid, gid)
                break
        own = os.fstat(fd)
    if (own.st_uid, own.st_gid) != wanted:
        warnings.warn(
            f"{name}: it should belong to user {like.st_uid} and group {like.st_gid}, and belongs "
            f"to user {own.st_uid} and group {own.st_gid}: the system does not let this user give "
            "it to them",
            FileWarning,
            stacklevel=4,
        )
    if mode is not None:
        if own.st_gid != like.st_gid:
            mode &= ~0o070 | (mode & 0o007) << 3
        _set_mode(fd, mode)


def _set_mode(fd: int, mode: int) -> None:
    """Set a file's permission bits. If the file system refuses that (CIFS, FUSE, WSL), the bits
    that it gives are accepted if they allow no more. Raises OSError."""
    try:
        os.fchmod(fd, mode)
    except OSError:
        if os.fstat(fd).st_mode & _PERMISSIONS & ~mode:
            raise


def remove_temporary(path: str, empty: Callable[[], object] | None = None) -> None:
    """Remove a file under construction, if it is there. If that is refused, as in a folder in which
    files can only be added (``chattr +a``), ``empty`` empties it, and there is a FileWarning."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
    except OSError as error:
        left = "it has the same content"
        if empty is not None:
            try:
                empty()
                left = "it is empty now"
            except OSError:
                left = "it may hold plaintext"
        warnings.warn(
            f"{path}: this temporary file could not be removed ({error.strerror}), and {left}: "
            "remove it",
            FileWarning,
            stacklevel=4,
        )


def temporary_name(unique: str) -> str:
    """Return the name of a file under construction. All commands and readers pass over it."""
    return f"{_TEMPORARY_PREFIX}{unique}{_TEMPORARY_SUFFIX}"


def temporary_path(target: str) -> str:
    """Return a new path in the folder of ``target``, for a file under construction."""
    return os.path.join(os.path.dirname(target), temporary_name(os.urandom(8).hex()))


def is_temporary(name: str) -> bool:
    """Whether ``name`` is a file under construction, or one that a killed process left."""
    return name.startswith(_TEMPORARY_PREFIX) and name.endswith(_TEMPORARY_SUFFIX)


def is_at(path: str, status: os.stat_result | None, *, follow: bool = False) -> bool:
    """Whether ``path`` names the file of that status; ``follow``: also through a link."""
    try:
        return status is not None and os.path.samestat(
            os.stat(path, follow_symlinks=follow), status
        )
    except OSError:
        return False


def publish(temporary: str, target: str, *, overwrite: bool, durable: bool) -> None:
    """Give the finished file ``temporary`` the name ``target`` in the same folder, in one step.
    Raises FileExistsError when the target exists and ``overwrite`` is not set, and OSError."""
    if overwrite:
        _rename(temporary, target)
    else:
        try:
            # Unlike rename, a link never replaces a target that appeared meanwhile.
            os.link(temporary, target)
        except FileExistsError:
            raise already_exists(target) from None
        except OSError:
            # A file system without hard links: checking is all that can be done.
            if os.path.lexists(target):
                raise already_exists(target) from None
            _rename(temporary, target)
        else:
            remove_temporary(temporary)
    if durable:
        _sync_name(target)


def _sync_name(path: str) -> None:
    try:
        sync_folder(os.path.dirname(path))
    except OSError as error:
        # The file has its name, and raising now would lose the key of what it holds.
        warnings.warn(
            f"{path}: written, but its folder could not be synced: {error.strerror}",
            FileWarning,
            stacklevel=3,
        )


def _rename(temporary: str, target: str) -> None:
    try:
        os.rename(temporary, target)
    except OSError as error:
        raise named(error, target) from None


def already_exists(path: str) -> FileExistsError:
    """Return the error of a file that is there and must not be replaced."""
    return FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)


def named(error: OSError, name: str) -> OSError:
    """Return the same error for the file that the caller knows, not for a temporary one."""
    return OSError(error.errno, error.strerror, name)


def sync(fd: int) -> None:
    """Have the disk keep what was written. On macOS, ``fsync`` alone leaves it in the disk's cache.
    Raises OSError."""
    full = getattr(fcntl, "F_FULLFSYNC", None)
    if full is not None:
        # Not every file system has it.
        with contextlib.suppress(OSError):
            fcntl.fcntl(fd, full)
            return
    os.fsync(fd)


def sync_folder(folder: str) -> None:
    """Sync the names in a folder to the disk. Raises OSError."""
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        # Some file systems cannot sync a folder, and do not need to.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(fd)

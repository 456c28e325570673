"""Outputs that are written as streams, because no file can take their place: pipes, devices, and
files that are open in this process (``/dev/stdout``, ``/dev/fd/N``, ``/proc/self/fd/N``). Knows
nothing of AGS1."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import select
import stat
import sys
from typing import TYPE_CHECKING, Any, TextIO, TypeAlias

from ._paths import is_missing

if TYPE_CHECKING:
    from typing_extensions import Buffer

Path: TypeAlias = "str | bytes | os.PathLike[Any]"

STDOUT = "standard output"
STDERR = "standard error"
_NUMBER = re.compile("[0-9]{1,9}")
_FOLDERS = ("/dev/fd", "/proc/self/fd", "/proc/thread-self/fd")
# As many as Linux follows.
_MAX_LINKS = 40


class _WaitingFile(io.FileIO):
    """A descriptor whose ``write`` waits until it takes data, even in non-blocking mode. The mode
    is not changed, because other processes share it. Errors have the file's ``name``."""

    def write(self, data: Buffer, /) -> int:
        try:
            while (written := super().write(data)) is None:
                waiting = select.poll()
                waiting.register(self.fileno(), select.POLLOUT)
                waiting.poll()
            return written
        except OSError as error:
            raise OSError(error.errno, error.strerror, self.name) from None


def _writer(fd: int, name: str, *, closefd: bool = True) -> io.BufferedWriter:
    """Return a writer to a descriptor. It writes all that it is given, or raises OSError."""
    raw = _WaitingFile(fd, "w", closefd=closefd)
    raw.name = name
    return io.BufferedWriter(raw)


def write_standard_output_whole() -> None:
    """Replace ``sys.stdout`` and ``sys.stderr`` by files that write all that they are given, or
    raise OSError. With PYTHONUNBUFFERED, Python's own lose what does not fit into a pipe in
    non-blocking mode, or on the disk. What cannot be encoded is escaped."""
    for attribute, name in (("stdout", STDOUT), ("stderr", STDERR)):
        stream = getattr(sys, attribute)
        if stream is not None:  # the descriptor was closed
            text = io.TextIOWrapper(
                _writer(stream.fileno(), name, closefd=False),
                stream.encoding,
                "backslashreplace" if stream.errors == "strict" else stream.errors,
                line_buffering=stream.line_buffering or stream.write_through,
            )
            setattr(sys, attribute, text)


def forget_output(stream: TextIO | None = None) -> None:
    """Standard output, or ``stream``, has failed: let Python's last flush of it succeed."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, (stream or sys.stdout).fileno())
        os.close(nowhere)


def own_descriptor(path: Path) -> int | None:
    """Return N for ``/dev/fd/N`` and other names of an open file of this process, also through
    symbolic links; None for any other path. The file behind such a name may have a name of its own,
    and replacing that would lose what is in it. Raises PermissionError as ``refuse_planted``."""
    name = os.fsdecode(path)
    for _ in range(_MAX_LINKS):
        folder, last = os.path.split(name)
        if _NUMBER.fullmatch(last) and os.path.realpath(folder) in map(os.path.realpath, _FOLDERS):
            return int(last)
        try:
            end, status = os.readlink(name), os.lstat(name)
        except OSError:
            return None
        refuse_planted(name, status.st_uid)
        name = os.path.join(folder, end)
    return None


def is_stream(path: Path) -> bool:
    """Whether an output of this name is written as a stream. Raises PermissionError for another
    user's link (``refuse_planted``)."""
    if own_descriptor(path) is not None:
        return True
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def is_new(path: Path) -> bool:
    """Whether nothing has the name ``path``, and it cannot be one of an open file: a file may get
    it. In doubt, this is false."""
    name = os.fsencode(path)
    last = name.rpartition(b"/")[2]
    return last not in (b"", b".", b"..") and not last.isdigit() and is_missing(name)


def open_stream(path: Path, *, overwrite: bool) -> io.BufferedWriter:
    """Open a stream for writing. An open file of this process is written from where it is. Raises
    OSError; FileExistsError for a disk, which holds data, unless ``overwrite`` is set."""
    name = os.fsdecode(path)
    descriptor = own_descriptor(path)
    try:
        if descriptor is not None:
            return _writer(os.dup(descriptor), name)
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError as error:
        raise OSError(error.errno, error.strerror, name) from None
    try:
        status = os.fstat(fd)
        if stat.S_ISREG(status.st_mode) or (stat.S_ISBLK(status.st_mode) and not overwrite):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
        if stat.S_ISFIFO(status.st_mode):
            refuse_planted(os.path.realpath(name), status.st_uid)
        return _writer(fd, name)
    except BaseException:
        os.close(fd)
        raise


def refuse_planted(name: str, owner: int) -> None:
    """Refuse another user's link or pipe in a folder where everybody may create files (``/tmp``).
    For ``open``, the kernel does that (``fs.protected_symlinks``, ``fs.protected_fifos``). It
    does not if we follow the link ourselves, or open without O_CREAT. Raises PermissionError."""
    folder = os.stat(os.path.dirname(os.path.abspath(name)))
    anybody = stat.S_ISVTX | stat.S_IWOTH
    if folder.st_mode & anybody == anybody and owner not in (os.geteuid(), folder.st_uid):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), name)

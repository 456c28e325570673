"""``Folder``: files in the folders of this machine, and in those that it has mounted."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Sequence

from ...host.atomic import AtomicFile, StagedFile
from ...host.regular_file import regular_file
from ..paths import local_path
from .protocol import Status


class Folder:
    """See ``Storage``. ``durable`` syncs what is written to the disk. New files have the permission
    bits ``mode`` (None: those of the file that they replace, or 0666 less the umask).
    ``makes_folders``: those that are missing above a new file."""

    is_remote = False

    def __init__(
        self, *, durable: bool = True, mode: int | None = None, makes_folders: bool = True
    ) -> None:
        self._durable = durable
        self._mode = mode
        self._makes_folders = makes_folders

    def name(self, path: str) -> str:
        """Return the path of a path or of a URL of this machine."""
        return local_path(path) or path

    def status(self, path: str) -> Status | None:
        try:
            return status_of(os.stat(self.name(path)))
        except FileNotFoundError:
            return None

    def names(self, folder: str) -> list[str]:
        try:
            with os.scandir(self.name(folder)) as entries:
                return [entry.name for entry in entries if entry.is_file()]
        except FileNotFoundError:
            return []

    def read(self, path: str, begin: int = 0, end: int | None = None) -> bytes:
        with regular_file(self.name(path)) as (fd, *_):
            if end is not None:
                return read_range(fd, begin, end - begin)
            with open(fd, "rb", closefd=False) as file:
                return file.read()[begin:]

    def starts(self, wanted: Sequence[tuple[str, int]]) -> list[bytes | Exception]:
        found: list[bytes | Exception] = []
        for path, size in wanted:
            try:
                found.append(self.read(path, 0, size))
            except OSError as error:
                found.append(error)
        return found

    def write(self, path: str, data: bytes, *, new: bool = False) -> None:
        path = self.name(path)
        self._make_folder(path)
        with AtomicFile(path, overwrite=not new, durable=self._durable, mode=self._mode) as out:
            out.write(data)

    def scratch(self, path: str) -> StagedFile:
        path = self.name(path)
        self._make_folder(path)
        return StagedFile(path, overwrite=True, durable=self._durable, mode=self._mode)

    def remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.name(path))

    def modified(self, path: str) -> float:
        """Return when a file was written, in seconds since 1970, by the storage's clock."""
        return os.stat(path).st_mtime

    def _make_folder(self, path: str) -> None:
        if not self._makes_folders:
            return
        private = self._mode is not None and not self._mode & 0o077
        os.makedirs(os.path.dirname(path), mode=0o700 if private else 0o777, exist_ok=True)


def make_folder(folder: str, source_folder: str | None, root: str = "") -> None:
    """Make a folder and those that are missing above it, with the modes that the folders of their
    source have: otherwise other users could read the copies of a private folder's files. ``root``,
    and folders without a source, get the usual modes. Raises OSError."""
    if os.path.isdir(folder or "."):
        return
    if source_folder is None or (root and len(folder) <= len(root)):
        os.makedirs(folder, exist_ok=True)
        return
    make_folder(os.path.dirname(folder), os.path.dirname(source_folder), root)
    mode = stat.S_IMODE(os.stat(source_folder or ".").st_mode) & 0o777
    try:
        os.mkdir(folder, mode | 0o700)
    except FileExistsError:
        if not os.path.isdir(folder):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), folder) from None


def read_range(fd: int, offset: int, size: int) -> bytes:
    """Return ``size`` bytes of a local file from ``offset``, fewer if it ends before."""
    data = os.pread(fd, size, offset)
    while len(data) < size:
        more = os.pread(fd, size - len(data), offset + len(data))
        if not more:
            break
        data += more
    return data


def status_of(status: os.stat_result) -> Status:
    """Return the status of a local file. Its version is its modification time in ns."""
    size = status.st_size if stat.S_ISREG(status.st_mode) else -1
    return Status(size, str(status.st_mtime_ns))

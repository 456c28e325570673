"""``Copier`` copies files as they are stored: data files, equality deletes and statistics.

Nothing is decrypted. A copy appears complete or not at all, and has the size that the metadata
says. So a file of that size at the new location is the copy of an earlier attempt: if it is
encrypted, its tags show whether it is right, and if not, it is compared with its source.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from contextlib import closing

from pyiceberg.io import InputStream

from ....errors import FormatError, TruncatedError
from ...storage.locations import local_path, normalized
from ...storage.output import TableOutput
from ...storage.table_files import TableFiles
from .plan import Copy
from .relocation import Relocation

_BUFFER_SIZE = 4 << 20


class Copier:
    """Copies the files of a relocation. Any number of threads may call ``copy``. If the relocation
    may ``resume``, copies of an earlier attempt are used; ``found_files`` and ``found_size``
    (bytes) count them. If not, they are in the way. ``output`` has the files that were copied."""

    def __init__(self, relocation: Relocation) -> None:
        self.output = TableOutput(relocation.io)
        self.found_files = self.found_size = 0
        self._relocation = relocation
        self._files, self._meter = relocation.files, relocation.workers.meter
        self._lock = threading.Lock()

    def copy(self, item: Copy) -> None:
        """Copy a file unless it is there already. Raises TruncatedError or FormatError if it has a
        wrong size, FileExistsError if another file is in the way, and OSError."""
        target = self._relocation.destination(item.source)
        if self._relocation.is_at_destination(item.source):
            check_size(len(self._files.new_input(item.source)), item)
            self._count_found(item)
        elif self._relocation.resume and (size := self._size_of(target)) is not None:
            if size != item.size or not (item.is_encrypted or self._is_copied(item, target)):
                raise FileExistsError(errno.EEXIST, "Another file is in the way: remove it", target)
            self._refuse_link(item, target)
            self._count_found(item)
        else:
            self._copy_bytes(item, target)

    def _copy_bytes(self, item: Copy, target: str) -> None:
        copied = 0
        with open_regular(self._files, item.source) as source, self.output.create(target) as file:
            while data := source.read(_BUFFER_SIZE):
                self._meter.add(len(data))
                copied += len(data)
                if copied > item.size:
                    break
                file.write(data)
            check_size(copied, item)
        if normalized(target).scheme != "file":
            check_size(self._size_of(target) or 0, item)

    def _count_found(self, item: Copy) -> None:
        self._meter.add(item.size)
        with self._lock:
            self.found_files += 1
            self.found_size += item.size

    def _size_of(self, target: str) -> int | None:
        try:
            return len(self.output.io.new_input(target))
        except FileNotFoundError:
            return None

    def _is_copied(self, item: Copy, target: str) -> bool:
        """Return whether the file at ``target`` has the bytes of its source."""
        with (
            open_regular(self._files, item.source) as source,
            closing(self.output.io.new_input(target).open()) as copy,
        ):
            while data := source.read(_BUFFER_SIZE):
                self._meter.add(0)
                if data != copy.read(len(data)):
                    return False
            return not copy.read(1)

    def _refuse_link(self, item: Copy, target: str) -> None:
        """Raise FileExistsError if a local file at ``target`` is a link to its source or the source
        itself: it would be lost when the old table is deleted."""
        path = local_path(self.output.io, target) or _path_by_scheme(target)
        if path is None:
            return
        target_stat = os.lstat(path)
        source = self._files.local_path(item.source) or _path_by_scheme(
            self._files.stored_location(item.source)
        )
        if not stat.S_ISREG(target_stat.st_mode) or (
            source is not None and os.path.samestat(target_stat, os.stat(source))
        ):
            raise FileExistsError(
                errno.EEXIST, "The copy would be a link to the old file: remove it", target
            )


def open_regular(files: TableFiles, location: str) -> closing[InputStream]:
    """Return a stream of a regular file's bytes. Raises OSError for a pipe, which could block."""
    path = files.local_path(location)
    if path is not None and not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(errno.EINVAL, "Not a regular file", path)
    return closing(files.open_stored(location))


def check_size(size: int, item: Copy) -> None:
    """Raise TruncatedError or FormatError if a file has another size than the metadata says."""
    if size < item.size:
        raise TruncatedError(
            f"the file has {size} bytes, and the metadata says {item.size}", file=item.source
        )
    if size > item.size:
        raise FormatError(
            f"the file has more than the {item.size} bytes that the metadata says", file=item.source
        )


def _path_by_scheme(location: str) -> str | None:
    """Return the path of a local file whose FileIO is not PyArrow's."""
    scheme, path = normalized(location)
    return f"/{path}" if scheme == "file" else None

"""Lists the files in a folder, on any storage of PyIceberg's own FileIOs.

PyIceberg's ``FileIO`` cannot list files, but the file systems below it can. The listing goes folder
by folder, because a table may have too many files to hold at once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import PyArrowFileIO

from .locations import split_location, without_scheme

if TYPE_CHECKING:
    from pyiceberg.io.fsspec import FsspecFileIO


def list_files(io: FileIO, location: str) -> Iterator[str] | None:
    """Return the locations of all files below a folder; None if the storage cannot list. A folder
    that does not exist has no files. Links to folders are not followed, because they may form a
    circle. The iterator raises OSError."""
    scheme = split_location(location)[0] or "file"
    prefix = "" if scheme == "file" else f"{scheme}://"
    if isinstance(io, PyArrowFileIO):
        return (prefix + path for path in _arrow_files(io, location))
    if hasattr(io, "get_fs"):
        paths = _fsspec_files(cast("FsspecFileIO", io), scheme, without_scheme(location))
        return (prefix + path for path in paths)
    return None


def _arrow_files(io: PyArrowFileIO, location: str) -> Iterator[str]:
    from pyarrow.fs import FileSelector, FileType, LocalFileSystem

    scheme, netloc, path = io.parse_location(location, io.properties)
    filesystem = io.fs_by_scheme(scheme, netloc)
    is_local = isinstance(filesystem, LocalFileSystem)
    folders = [path]
    while folders:
        selector = FileSelector(folders.pop().rstrip("/") or "/", allow_not_found=True)
        for info in filesystem.get_file_info(selector):
            if info.type == FileType.Directory:
                if not (is_local and os.path.islink(info.path)):
                    folders.append(info.path)
            elif info.type == FileType.File:
                yield info.path


def _fsspec_files(io: FsspecFileIO, scheme: str, path: str) -> Iterator[str]:
    filesystem = io.get_fs(scheme)
    # The cache of an earlier listing may be out of date, and so will be that of this listing.
    filesystem.invalidate_cache()
    try:
        # fsspec does not follow links to folders.
        for folder, _, files in filesystem.walk(path):
            for name in files:
                yield f"{folder.rstrip('/')}/{name}"
    finally:
        filesystem.invalidate_cache()

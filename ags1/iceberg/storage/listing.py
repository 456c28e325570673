"""Lists the files in a folder, on any storage of PyIceberg's own FileIOs.

PyIceberg's ``FileIO`` cannot list files, but the file systems below it can. The listing goes folder
by folder, because a table may have too many files to hold at once.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import PyArrowFileIO

if TYPE_CHECKING:
    from pyiceberg.io.fsspec import FsspecFileIO


def place(location: str) -> str:
    """Return a location without its scheme, in one spelling: a path, or bucket and key.

    ``file:/a``, ``file:///a`` and ``/a`` are one place, and so are ``s3://b/k`` and ``s3a://b/k``.
    """
    scheme, rest = _split(location)
    if scheme in ("", "file"):
        return "/" + rest.lstrip("/")
    return rest.lstrip("/")


def real_place(location: str) -> str:
    """Return ``place(location)`` without ``.`` and ``..``. On local file systems, links in the
    folder are followed. A link itself and the file that it leads to are two places, because either
    can be deleted without the other."""
    found = place(location)
    if _split(location)[0] in ("", "file"):
        folder, _, name = found.rpartition("/")
        if name not in ("", ".", ".."):
            # A name that no file can have raises ValueError; it is left as it is.
            with contextlib.suppress(ValueError):
                return posixpath.join(os.path.realpath(folder or "/"), name)
    return posixpath.normpath(found)


def list_files(io: FileIO, location: str) -> Iterator[str] | None:
    """Return the locations of all files below a folder; None if the storage cannot list.

    A folder that does not exist has no files. Links to folders are not followed, because they may
    form a circle. The iterator raises OSError.
    """
    scheme, rest = _split(location)
    prefix = "" if scheme in ("", "file") else f"{scheme}://"
    if isinstance(io, PyArrowFileIO):
        return (prefix + path for path in _arrow_files(io, location))
    if hasattr(io, "get_fs"):
        path = "/" + rest.lstrip("/") if not prefix else rest.lstrip("/")
        return (
            prefix + found
            for found in _fsspec_files(cast("FsspecFileIO", io), scheme or "file", path)
        )
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


def _split(location: str) -> tuple[str, str]:
    scheme, colon, rest = location.partition(":")
    if not colon or "/" in scheme:
        return "", location
    return scheme.lower(), rest

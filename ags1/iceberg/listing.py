"""What lies in a folder of a table, on any storage that PyIceberg's own FileIOs reach.

PyIceberg's ``FileIO`` cannot list; the file systems below it can. Folder by folder, because a table
may have more files than should be held at once. Knows nothing of tables.
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
    """Return what ``place`` does, without ``.`` and ``..``, and on this machine's file systems by
    the real name of the file's folder. A file that is a link itself is another than that which it
    leads to: either can be deleted without the other."""
    found = place(location)
    if _split(location)[0] in ("", "file"):
        folder, _, name = found.rpartition("/")
        if name not in ("", ".", ".."):
            # What can be no file's name is none of any folder's files.
            with contextlib.suppress(ValueError):
                return posixpath.join(os.path.realpath(folder or "/"), name)
    return posixpath.normpath(found)


def list_files(io: FileIO, location: str) -> Iterator[str] | None:
    """Return the locations of all files below a folder, None where the storage cannot tell.

    A folder that does not exist has none. Links to folders are not followed: two that lead to where
    they lie would have no end. The iterator raises OSError.
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
    # What an earlier listing found may be out of date, and so may what this one did when a file is
    # opened later.
    filesystem.invalidate_cache()
    try:
        # fsspec does not take a link for a folder.
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

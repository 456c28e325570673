"""Lists the files in a folder, on any storage of PyIceberg's own FileIOs.

PyIceberg's ``FileIO`` cannot list files, but the file systems below it can. The listing goes folder
by folder, because a table may have too many files to hold at once. A name that is not UTF-8 is an
error.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import PyArrowFileIO

from .locations import split_location, without_scheme

if TYPE_CHECKING:
    from pyiceberg.io.fsspec import FsspecFileIO

# What fsspec's file systems (S3, Azure, Google, local and others) call the time of the last change.
_MODIFIED = ("LastModified", "last_modified", "updated", "mtime", "modified")


class ListedFile(NamedTuple):
    """A file of a listing: its location, its size (bytes), and when it was last changed (epoch ms);
    None for what the storage does not say."""

    location: str
    size: int | None
    modified_ms: int | None


def list_files(io: FileIO, location: str) -> Iterator[str] | None:
    """Return the locations of all files below a folder, as ``list_with_times``."""
    files = list_with_times(io, location)
    return None if files is None else (file.location for file in files)


def list_with_times(io: FileIO, location: str) -> Iterator[ListedFile] | None:
    """Return all files below a folder; None if the storage cannot list.

    A folder that does not exist has no files. Links to folders are not followed, because they may
    form a circle. The iterator raises OSError.
    """
    if isinstance(io, PyArrowFileIO):
        return _arrow_files(io, location)
    if hasattr(io, "get_fs"):
        return _fsspec_files(cast("FsspecFileIO", io), location)
    return None


def _arrow_files(io: PyArrowFileIO, location: str) -> Iterator[ListedFile]:
    from pyarrow.fs import FileSelector, FileType, LocalFileSystem

    scheme, host, path = io.parse_location(location, io.properties)
    filesystem = io.fs_by_scheme(scheme, host)
    is_local = isinstance(filesystem, LocalFileSystem)
    prefix = _prefix(location)
    if prefix and not path.startswith(host):
        # The paths of HDFS do not begin with the host.
        prefix += host
    folders = [path]
    while folders:
        selector = FileSelector(folders.pop().rstrip("/") or "/", allow_not_found=True)
        for info, found in _infos(filesystem, selector):
            if info.type == FileType.Directory:
                if not (is_local and os.path.islink(found)):
                    folders.append(found)
            elif info.type == FileType.File:
                modified_ms = None if info.mtime_ns is None else info.mtime_ns // 1_000_000
                yield ListedFile(prefix + found, info.size, modified_ms)


def _infos(filesystem: Any, selector: Any) -> list[tuple[Any, str]]:
    """Return what Arrow knows of the files in a folder, with the path of each. Raises OSError if a
    name is not UTF-8: Arrow cannot open or delete such a file."""
    try:
        return [(info, info.path) for info in filesystem.get_file_info(selector)]
    except UnicodeDecodeError:
        what = "the name of a file in this folder is not UTF-8: rename the file or delete it"
        raise OSError(errno.EILSEQ, what, selector.base_dir) from None


def _fsspec_files(io: FsspecFileIO, location: str) -> Iterator[ListedFile]:
    filesystem = io.get_fs(split_location(location)[0] or "file")
    prefix = _prefix(location)
    # The cache of an earlier listing may be out of date, and so will be that of this listing.
    filesystem.invalidate_cache()
    try:
        # fsspec does not follow links to folders.
        for folder, _, files in filesystem.walk(without_scheme(location), detail=True):
            for name, info in files.items():
                path = f"{folder.rstrip('/')}/{name}"
                yield ListedFile(prefix + path, info.get("size"), _modified_ms(info))
    finally:
        filesystem.invalidate_cache()


def _prefix(location: str) -> str:
    scheme = split_location(location)[0]
    return "" if scheme in ("", "file") else f"{scheme}://"


def _modified_ms(info: Mapping[str, Any]) -> int | None:
    """Return when a file of fsspec was last changed. Each file system has another name for it."""
    for name in _MODIFIED:
        value = info.get(name)
        if isinstance(value, str):
            # Before Python 3.11, Z is not understood.
            with contextlib.suppress(ValueError):
                value = datetime.fromisoformat(re.sub("[zZ]$", "+00:00", value))
        if isinstance(value, datetime):
            if value.tzinfo is None:
                value = value.replace(tzinfo=timezone.utc)
            return int(value.timestamp() * 1000)
        if isinstance(value, int | float):
            return int(value * 1000)
    return None

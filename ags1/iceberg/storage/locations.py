"""Compares locations: whether two of them name one file, and whether one is inside another.

Iceberg's metadata names each file by its location, a URI or a path. One file has many spellings::

    location          file_identity         unambiguous
    /t/d/../a         /t/a, links followed  file, "", t/d/../a
    file:///t//a      /t/a, links followed  file, "", t/a
    s3a://bucket/t/a  bucket/t/a            s3, bucket, t/a
    s3://bucket/a?b   bucket/a?b            None: "?" may end the path

There are two forms because a mistake costs something else in each case:

- ``file_identity`` says which files are still needed. If in doubt, two files are one, and it stays.
  Links among the folders are followed, but a file that is itself a link is not the file that it
  leads to: either can be deleted alone.
- ``unambiguous`` says which files may be deleted. If in doubt, the file is nowhere, and it stays.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import posixpath
import stat
from collections.abc import Callable, Mapping
from typing import NamedTuple

from pyiceberg.io import FileIO, InputFile
from pyiceberg.io.pyarrow import PyArrowFileIO

_NO_NAMES = "", ".", ".."
# For how many folders of a table ``FileNames`` remembers where links lead.
_MAX_FOLDERS = 1 << 16
_SAME_SCHEME = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfss": "abfs", "wasbs": "wasb"}


def split_location(location: str) -> tuple[str, str]:
    """Return the scheme in lower case, empty for a path, and what follows the colon."""
    scheme, colon, rest = location.partition(":")
    if not colon or "/" in scheme:
        return "", location
    return scheme.lower(), rest


def without_scheme(location: str) -> str:
    """Return the path of a local file, or the bucket and key of an object."""
    scheme, rest = split_location(location)
    path = rest.lstrip("/")
    return f"/{path}" if scheme in ("", "file") else path


def file_identity(location: str, real_folder: Callable[[str], str] = os.path.realpath) -> str:
    """Return ``without_scheme(location)`` without ``.`` and ``..``. On local file systems, links in
    the folder are followed, by ``real_folder``. A link itself and the file that it leads to are two
    files, because either can be deleted without the other."""
    path = without_scheme(location)
    if path.startswith("/"):
        folder, _, name = path.rpartition("/")
        if name not in _NO_NAMES:
            # A name that no file can have raises ValueError; it is left as it is.
            with contextlib.suppress(ValueError):
                return posixpath.join(real_folder(folder or "/"), name)
    return posixpath.normpath(path)


def path_without_host(location: str) -> str:
    """Return the path of a file, without the host, bucket or container before it."""
    rest = split_location(location)[1]
    if rest.startswith("//"):
        rest = "/" + rest[2:].partition("/")[2]
    return posixpath.normpath("/" + rest.lstrip("/"))


def real_file(location: str) -> str | None:
    """Return the path of the file to which a local link leads; None if ``location`` is no link."""
    path = without_scheme(location)
    with contextlib.suppress(ValueError):
        if path.startswith("/") and os.path.islink(path):
            return os.path.realpath(path)
    return None


class FileNames:
    """Names of files for large sets: ``file_identity``, as bytes, and without the path of the
    table's folder ``root``.

    ``stored`` maps a location in the metadata to the present one. Where links lead is looked up
    once for each folder, and so is where a folder in the metadata is. Any number of threads may use
    it.
    """

    def __init__(self, root: str, stored: Callable[[str], str] = str) -> None:
        self._stored = stored
        self._of_folder = functools.lru_cache(_MAX_FOLDERS)(self._name_of_folder)
        self._real_folder = functools.lru_cache(_MAX_FOLDERS)(os.path.realpath)
        self._root = posixpath.dirname(self._identity(f"{stored(root).rstrip('/')}/_")) + "/"

    def of(self, location: str) -> bytes:
        """Return the name of the file with this ``location`` in the metadata. ``stored`` must map a
        file as it maps others in its folder. Raises as ``stored``."""
        folder, _, name = location.rpartition("/")
        if name.isascii() and name.isprintable() and name not in _NO_NAMES and folder:
            return self._of_folder(folder) + name.encode()
        return self.of_stored(self._stored(location))

    def _name_of_folder(self, folder: str) -> bytes:
        return self.of_stored(self._stored(f"{folder}/_"))[:-1]

    def of_stored(self, location: str) -> bytes:
        """Return the name of the file at this present location."""
        return self._identity(location).removeprefix(self._root).encode("utf-8", "surrogatepass")

    def is_below_root(self, location: str) -> bool:
        """Return whether a file or folder at this present location is below the table's folder."""
        return self._identity(location).startswith(self._root)

    def _identity(self, location: str) -> str:
        return file_identity(location, self._real_folder)


# -- where a table is


def leads_up(location: str) -> bool:
    """Return whether a location has ``..`` as a part of its path."""
    return ".." in without_scheme(location).split("/")


def may_be_one_folder(one: str, other: str) -> bool:
    """Return whether two locations may name one folder. Hive adds the default file system, and its
    host, to locations without them."""

    def parts(location: str) -> tuple[str | None, str | None, str]:
        scheme, rest = split_location(location)
        host, path = "", rest
        if rest.startswith("//"):
            host, _, path = rest[2:].partition("/")
        known = _SAME_SCHEME.get(scheme, scheme)
        return known or None, host or None, posixpath.normpath(f"/{path.strip('/')}")

    pairs = zip(parts(one), parts(other), strict=True)
    return all(None in pair or pair[0] == pair[1] for pair in pairs)


def mapped_location(location: str, location_map: Mapping[str, str]) -> str:
    """Return ``location`` with its longest prefix in ``location_map`` replaced."""
    prefixes = {old.rstrip("/"): new.rstrip("/") for old, new in location_map.items()}
    fitting = (p for p in prefixes if p and (location == p or location.startswith(f"{p}/")))
    best = max(fitting, key=len, default="")
    return prefixes[best] + location[len(best) :] if best else location


def local_path(io: FileIO, location: str) -> str | None:
    """Return a file's path if PyArrow finds it on a local file system, else None. Raises ValueError
    if the location is invalid."""
    if not isinstance(io, PyArrowFileIO):
        return None
    scheme, _, path = io.parse_location(location, io.properties)
    return path if scheme == "file" else None


def new_input(io: FileIO, location: str) -> InputFile:
    """Return a stored file, to be opened or measured. Raises OSError if a local file is no regular
    one: opening a pipe could block for ever. Raises ValueError if the location is invalid."""
    path = local_path(io, location)
    if path is None and location.startswith(("file:", "/")):
        path = without_scheme(location)  # for a FileIO of fsspec
    if path is not None:
        refuse_pipe(path)
    return io.new_input(location)


def refuse_pipe(path: str) -> None:
    """Raise OSError if there is something at ``path`` that is not a regular file."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return  # opening the file raises the error
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "Not a regular file", path)


# -- what every FileIO understands alike


class UnambiguousLocation(NamedTuple):
    """A location that every FileIO understands alike. ``host`` is the bucket or host; ``path`` has
    no slash at either end. On local file systems it has no ``.`` and no empty part. ``..`` stays,
    because where it leads depends on links."""

    scheme: str
    host: str
    path: str

    @property
    def parent(self) -> UnambiguousLocation:
        """The folder of the file or folder."""
        return self._replace(path=self.path.rpartition("/")[0])

    @property
    def is_root(self) -> bool:
        """Whether this is the root of a file system, or a whole bucket."""
        return posixpath.normpath("/" + self.path).strip("/") == ""

    def contains(self, other: UnambiguousLocation) -> bool:
        """Return whether a file or folder is below this folder. A folder is not below itself."""
        if other[:2] != self[:2] or not other.path.startswith(self.path + "/"):
            return False
        inner = other.path[len(self.path) + 1 :]
        return not {".", ".."} & set(inner.split("/"))

    def with_links_followed(self) -> UnambiguousLocation:
        """Return where a local folder is really."""
        return self._replace(path=_real(self.path)) if self.scheme == "file" else self

    def in_real_folder(self) -> UnambiguousLocation:
        """Return a local file under the real name of its folder. If the file itself is a link, that
        link is not followed."""
        folder, _, name = self.path.rpartition("/")
        real = _real(folder)
        return self._replace(path=f"{real}/{name}" if name and real else real or name)


def unambiguous(location: str) -> UnambiguousLocation | None:
    """Return what a location names for every FileIO; None if FileIOs understand it differently."""
    # Python's parser of URIs ignores some of the control characters.
    has_control = any(ord(character) < 32 or character == "\x7f" for character in location)
    if has_control or not is_encodable(location):
        return None
    scheme, rest = split_location(location)
    if not scheme:
        is_whole = location.startswith("/")
        return UnambiguousLocation("file", "", _cleaned(location)) if is_whole else None
    if {"?", "#"} & set(rest):
        # For some FileIOs the path ends here.
        return None
    if scheme == "file":
        # PyArrow treats a host name as the beginning of a relative path.
        is_whole = rest.startswith("/") and (rest[1:2] != "/" or rest[2:3] == "/")
        return UnambiguousLocation(scheme, "", _cleaned(rest)) if is_whole else None
    host, path = "", rest
    if rest.startswith("//"):
        host, _, path = rest[2:].partition("/")
    return UnambiguousLocation(_SAME_SCHEME.get(scheme, scheme), host, path)


def is_encodable(text: str) -> bool:
    """Return whether a text can be encoded. JSON may have half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _cleaned(path: str) -> str:
    return "/".join(part for part in path.split("/") if part not in ("", "."))


def _real(folder: str) -> str:
    return os.path.realpath("/" + folder).strip("/")

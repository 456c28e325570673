"""``Home``: the folders that belong to one table, in which its files may be deleted.

Others may be able to change a metadata.json. Then it may name any file: another table's, or one of
no table. Snapshots of another table under the same master key can even be decrypted. So a file that
the metadata names is deleted, or copied unencrypted, only if it is below the folder to which the
catalog's pointer leads. Folders that the metadata itself names count only if a hash or a REST
server confirms the metadata. On local file systems, links are followed before places are compared,
because somebody who can write in the table's folder may put a link there.
"""

from __future__ import annotations

import os
import posixpath
import stat
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from typing import Any, TypeAlias

from ...layout import MAGIC
from ..spec.constants import ENCRYPTED_PARQUET_MAGIC, PARQUET_MAGIC, PUFFIN_MAGIC
from .table_files import TableFiles
from .trust import Trust, vouches

# Where Iceberg's table properties may put files besides the table's own folder.
FOLDER_PROPERTIES = (
    "write.data.path",
    "write.metadata.path",
    "write.object-storage.path",
    "write.folder-storage.path",
)
_LOCATION = "location"
# The first bytes of Puffin and Parquet files, unencrypted and encrypted.
_STATISTICS = (PUFFIN_MAGIC, PARQUET_MAGIC, MAGIC, ENCRYPTED_PARQUET_MAGIC)
# The endings of files in the metadata folder that are not statistics.
_NO_STATISTICS = (".json", ".json.gz", ".avro")
_METADATA_ENDINGS = (".metadata.json", ".metadata.json.gz")
_ONE_SCHEME = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfss": "abfs", "wasbs": "wasb"}

# Scheme, bucket or host, and path without a slash at either end.
_Place: TypeAlias = "tuple[str, str, str]"


class Home:
    """The folders of one table. ``metadata_location`` is its metadata.json in the catalog.

    If the folder of that file is named ``metadata``, the folder above it is the table's. If not,
    only that folder itself is, because other tables may be beside it. ``folders`` are further
    folders of the table. The root of a file system and a whole bucket are never a table's folder.
    The path to a folder may have links. A link inside a folder that leads out of it is outside.

    ``stored`` maps a location in the metadata to the real one, for a table that was moved. If
    ``is_vouched_for`` is true, the metadata is confirmed, and statistics may be in all folders.
    """

    def __init__(
        self,
        metadata_location: str,
        folders: Iterable[str] = (),
        *,
        stored: Callable[[str], str] = str,
        is_vouched_for: bool = False,
    ) -> None:
        self._stored = stored
        self._is_vouched_for = is_vouched_for
        where = _place(metadata_location)
        beside = None if where is None else _parent(where)
        own = [_place(folder.rstrip("/")) for folder in folders]
        if beside is not None:
            own.append(beside)
            if posixpath.basename(beside[2]) == "metadata":
                own.append(_parent(beside))
        named = [folder for folder in own if folder is not None and not _is_root(folder)]
        # A folder inside another one is not a further root, because it may be a link there.
        self._named = [f for f in named if not any(_is_below(other, f) for other in named)]
        real = {folder: _real(folder) for folder in self._named}
        self._folders = [folder for folder in real.values() if not _is_root(folder)]
        self._beside = beside
        for folder in self._named:
            if beside is not None and _is_below(folder, beside):
                self._beside = (*beside[:2], real[folder][2] + beside[2][len(folder[2]) :])
            elif folder == beside:
                self._beside = real[folder]

    @classmethod
    def of(
        cls,
        metadata: Mapping[str, Any],
        metadata_location: str,
        trust: Trust,
        properties: Mapping[str, Any],
        stored: Callable[[str], str] = str,
    ) -> Home:
        """Return the folders of a table. ``trust`` is what is known of its metadata from elsewhere.
        ``properties`` are the catalog's: a folder that they name as the metadata does counts."""
        vouched = vouches(trust)
        stated = {**(metadata.get("properties") or {}), _LOCATION: metadata.get(_LOCATION)}
        folders = [
            stored(folder)
            for name in (_LOCATION, *FOLDER_PROPERTIES)
            if isinstance(folder := stated.get(name), str)
            and folder
            and (vouched or properties.get(name) == folder)
        ]
        return cls(metadata_location, folders, stored=stored, is_vouched_for=vouched)

    def has(self, location: str) -> bool:
        """Return whether the file with this ``location`` in the metadata is in these folders."""
        where = self._settled(location)
        return where is not None and any(_is_below(folder, where) for folder in self._folders)

    def has_beside_metadata(self, location: str) -> bool:
        """Return whether a file is in the folder of the metadata.json in the catalog."""
        where = self._settled(location)
        return where is not None and self._beside is not None and _parent(where) == self._beside

    def versions(self, logged: Iterable[str]) -> list[str]:
        """Return the locations of a metadata log that may be deleted: versions of the metadata in
        the folder of the metadata.json in the catalog."""
        return [
            location
            for location in logged
            if location.endswith(_METADATA_ENDINGS) and self.has_beside_metadata(location)
        ]

    def has_statistics(self, location: str, files: TableFiles) -> bool:
        """Return whether a file may be statistics of the table. Only metadata.json names those, so
        the file must be in the metadata folder and begin like Puffin or Parquet. This does not
        check whether a manifest names it too. Raises FileNotFoundError and OSError."""
        is_here = self.has_beside_metadata(location) or (
            self._is_vouched_for and self.has(location)
        )
        if not is_here or location.endswith(_NO_STATISTICS):
            return False
        path = files.local_path(location)
        # Opening a pipe could block for ever, and a link may lead to any file.
        if path is not None and not stat.S_ISREG(os.lstat(path).st_mode):
            return False
        with closing(files.open_stored(location)) as stream:
            return stream.read(4) in _STATISTICS

    def _settled(self, location: str) -> _Place | None:
        """Return the place of a file, with the real name of its folder; None if FileIOs may
        understand its location differently."""
        where = _place(self._stored(location))
        if where is None or where[0] != "file":
            return where
        folder, _, name = where[2].rpartition("/")
        # Some FileIOs resolve ".." before they follow links.
        if ".." in folder.split("/") and not any(_is_below(f, where) for f in self._named):
            return None
        return _real_path(folder, name)

    def __repr__(self) -> str:
        return f"Home({self._folders})"


def versions_beside(metadata_location: str, logged: Iterable[str]) -> list[str]:
    """Return ``Home.versions`` for a table whose metadata.json is at ``metadata_location``."""
    return Home(metadata_location).versions(logged)


def _place(location: str) -> _Place | None:
    """Return a location in one spelling; None if FileIOs understand it differently.

    ``..`` stays, because where it leads depends on links.
    """
    if any(ord(character) < 32 or character == "\x7f" for character in location):
        # Python's parser of URIs ignores some of these characters.
        return None
    try:
        location.encode()
    except UnicodeEncodeError:
        # JSON may have half a character.
        return None
    scheme, colon, rest = location.partition(":")
    if not colon or "/" in scheme:
        return ("file", "", _cleaned(location)) if location.startswith("/") else None
    if {"?", "#"} & set(rest):
        # For some FileIOs the path ends here.
        return None
    scheme = scheme.lower()
    if scheme == "file":
        # PyArrow treats a host name as the beginning of a relative path.
        is_whole = rest.startswith("/") and (rest[1:2] != "/" or rest[2:3] == "/")
        return (scheme, "", _cleaned(rest)) if is_whole else None
    host, path = "", rest
    if rest.startswith("//"):
        host, _, path = rest[2:].partition("/")
    return _ONE_SCHEME.get(scheme, scheme), host, path


def _cleaned(path: str) -> str:
    return "/".join(part for part in path.split("/") if part not in ("", "."))


def _real(folder: _Place) -> _Place:
    return _real_path(folder[2], "") if folder[0] == "file" else folder


def _real_path(folder: str, name: str) -> _Place:
    path = os.path.realpath("/" + folder).strip("/")
    return "file", "", f"{path}/{name}" if name and path else path or name


def _parent(where: _Place) -> _Place:
    return where[0], where[1], where[2].rpartition("/")[0]


def _is_root(folder: _Place) -> bool:
    return posixpath.normpath("/" + folder[2]).strip("/") == ""


def _is_below(folder: _Place, where: _Place) -> bool:
    if where[:2] != folder[:2] or not where[2].startswith(folder[2] + "/"):
        return False
    inner = where[2][len(folder[2]) + 1 :]
    return not {".", ".."} & set(inner.split("/"))

"""``Home``: the folders that are a table's own, in which its files may be deleted.

A metadata.json lies where others may write, and may name any file: another table's, or no table's
at all, and snapshots of another table under the same master key open with it. So what it names is
deleted with the caller's credentials, or copied in the clear, only below the folder that the
catalog's pointer to it leads to. What it says of folders itself counts where somebody else vouches
for it. On this machine's file systems links are followed before places are compared: whoever writes
in a table's folder may put one there. Knows nothing of manifests and snapshots.
"""

from __future__ import annotations

import os
import posixpath
import stat
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any, TypeAlias

from .files import TableFiles
from .metadata import Trust

if TYPE_CHECKING:
    from .table import EncryptedTable

# Where Iceberg's table properties may put files besides the table's own folder.
FOLDER_PROPERTIES = (
    "write.data.path",
    "write.metadata.path",
    "write.object-storage.path",
    "write.folder-storage.path",
)
_LOCATION = "location"
# How Puffin and Parquet begin, plain and encrypted.
_STATISTICS = (b"PFA1", b"PAR1", b"AGS1", b"PARE")
# Of a table's own files in the metadata folder.
_NO_STATISTICS = (".json", ".json.gz", ".avro")
_METADATA_ENDINGS = (".metadata.json", ".metadata.json.gz")
_ONE_SCHEME = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfss": "abfs", "wasbs": "wasb"}

# Scheme, bucket or host, and path without a slash at either end.
_Place: TypeAlias = "tuple[str, str, str]"


class Home:
    """The folders of one table. ``metadata_location`` is where the catalog has its metadata.json.

    The folder above the one named ``metadata`` that this lies in is the table's own; where it has
    another name, only itself: others' tables may lie beside it. ``folders`` are more of them. A
    file system's root and a whole bucket are nobody's own. The folder may itself lie behind links;
    a link in it that leads elsewhere leads outside.

    ``stored`` says where a file lies that the metadata knows by a location, for a table that was
    moved. ``is_vouched_for``: the metadata's word for where statistics lie counts.
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
        # One that lies in another is no further root: it might be a link there.
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
        """Return a table's home. ``trust`` is what is known of its metadata from elsewhere,
        ``properties`` are the catalog's: those that the metadata has too count."""
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
        """Whether a file that the metadata knows by ``location`` is the table's own."""
        where = self._settled(location)
        return where is not None and any(_is_below(folder, where) for folder in self._folders)

    def has_beside_metadata(self, location: str) -> bool:
        """Whether a file lies in the folder of the metadata that the catalog points to."""
        where = self._settled(location)
        return where is not None and self._beside is not None and _parent(where) == self._beside

    def versions(self, logged: Iterable[str]) -> list[str]:
        """Return those of a metadata log's locations that may be deleted: versions of the metadata
        in the folder where the catalog has the present one."""
        return [
            location
            for location in logged
            if location.endswith(_METADATA_ENDINGS) and self.has_beside_metadata(location)
        ]

    def has_statistics(self, location: str, files: TableFiles) -> bool:
        """Whether a file may be statistics of the table, which metadata.json alone names: it lies
        beside the metadata and begins as Puffin or Parquet. Whether a manifest names it too is not
        looked at. Raises FileNotFoundError, and OSError."""
        is_here = self.has_beside_metadata(location) or (
            self._is_vouched_for and self.has(location)
        )
        if not is_here or location.endswith(_NO_STATISTICS):
            return False
        path = files.local_path(location)
        # To open a pipe could take for ever, and a link may lead to anybody's file.
        if path is not None and not stat.S_ISREG(os.lstat(path).st_mode):
            return False
        with closing(files.open_stored(location)) as stream:
            return stream.read(4) in _STATISTICS

    def _settled(self, location: str) -> _Place | None:
        """Return where a file lies, by the real name of its folder; None where FileIOs may
        disagree about that."""
        where = _place(self._stored(location))
        if where is None or where[0] != "file":
            return where
        folder, _, name = where[2].rpartition("/")
        # Some FileIOs take ".." out before they follow links.
        if ".." in folder.split("/") and not any(_is_below(f, where) for f in self._named):
            return None
        return _real_path(folder, name)

    def __repr__(self) -> str:
        return f"Home({self._folders})"


def home_of(table: EncryptedTable) -> Home:
    """Return the home of a table that was loaded."""
    base = table.base()
    # A REST server need not say where its metadata lies; then it is its word that counts.
    return Home.of(
        base.metadata,
        base.location,
        base.trust,
        table.catalog.properties,
        table.files.stored_location,
    )


def vouches(trust: Trust) -> bool:
    """Whether the whole of a table's metadata is known from a better place than a file where others
    may write."""
    return trust.is_server_s or bool(trust.metadata_sha256 or trust.java_hash)


def versions_beside(metadata_location: str, logged: Iterable[str]) -> list[str]:
    """Return what ``Home.versions`` does, of a table with its metadata there."""
    return Home(metadata_location).versions(logged)


def _place(location: str) -> _Place | None:
    """Return a location in one spelling, None for one that FileIOs do not understand alike.

    ``..`` stays as it is: where it leads to depends on links.
    """
    if any(ord(character) < 32 or character == "\x7f" for character in location):
        # Python's parser of URIs passes over some of them.
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
        # For some the path ends here.
        return None
    scheme = scheme.lower()
    if scheme == "file":
        # PyArrow takes what a host's name would be for a relative path.
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

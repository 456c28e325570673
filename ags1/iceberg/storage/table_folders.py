"""``TableFolders``: the folders that belong to one table, in which its files may be deleted.

Others may be able to change a metadata.json. Then it may name any file: another table's, or one of
no table. Snapshots of another table under the same master key can even be decrypted. So a file that
the metadata names is deleted only if it is below the folder to which the catalog's pointer leads.
Folders that the metadata itself names count only if a hash or a REST server confirms the metadata.
On local file systems, links are followed before locations are compared, because somebody who can
write in the table's folder may put a link there::

    the catalog names               s3://b/t/metadata/5.metadata.json
    so these are the table's        s3://b/t/data/1.parquet, s3://b/t/metadata/snap-1.avro
    these are not                   s3://b/other/1.parquet, s3://b/t/../other/1.parquet
    only if 5.metadata.json is      s3://elsewhere/1.parquet, with write.data.path=s3://elsewhere
    confirmed, this is too
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from typing import Any

from ...engine.layout import MAGIC
from ..spec.constants import ENCRYPTED_PARQUET_MAGIC, PARQUET_MAGIC, PUFFIN_MAGIC
from .locations import UnambiguousLocation, unambiguous
from .table_files import TableFiles
from .trust import Trust

# Where Iceberg's table properties may put files besides the table's own folder.
FOLDER_PROPERTIES = (
    "write.data.path",
    "write.metadata.path",
    "write.object-storage.path",
    "write.folder-storage.path",
)
# The first bytes of Puffin and Parquet files, unencrypted and encrypted.
_STATISTICS = (PUFFIN_MAGIC, PARQUET_MAGIC, MAGIC, ENCRYPTED_PARQUET_MAGIC)
# The endings of files in the metadata folder that are not statistics.
_NO_STATISTICS = (".json", ".json.gz", ".avro")
# The endings of metadata files.
METADATA_ENDINGS = (".metadata.json", ".metadata.json.gz")


class TableFolders:
    """The folders of one table. ``metadata_location`` is its metadata.json in the catalog.

    If the folder of that file is named ``metadata``, the folder above it is the table's. If not,
    only that folder itself is, because the folder above it may have other tables. ``folders`` are
    further folders of the table. The root of a file system and a whole bucket are never a table's
    folder. The path to a folder may have links. A link inside a folder that leads out of it is
    outside.

    ``stored`` maps a location in the metadata to the present one, for a table that was moved. If
    ``is_confirmed`` is true, the metadata is confirmed, and statistics may be in all folders.
    """

    def __init__(
        self,
        metadata_location: str,
        folders: Iterable[str] = (),
        *,
        stored: Callable[[str], str] = str,
        is_confirmed: bool = False,
    ) -> None:
        self._stored = stored
        self._is_confirmed = is_confirmed
        metadata_file = unambiguous(metadata_location)
        metadata_folder = None if metadata_file is None else metadata_file.parent
        own = [unambiguous(folder.rstrip("/")) for folder in folders]
        if metadata_folder is not None:
            own.append(metadata_folder)
            if metadata_folder.path.rpartition("/")[2] == "metadata":
                own.append(metadata_folder.parent)
        named = [folder for folder in own if folder is not None and not folder.is_root]
        # A folder inside another one is not a further root, because it may be a link there.
        self._named = [f for f in named if not any(other.contains(f) for other in named)]
        real = {folder: folder.with_links_followed() for folder in self._named}
        self._folders = [folder for folder in real.values() if not folder.is_root]
        self._metadata_folder = metadata_folder
        for folder in self._named:
            if metadata_folder is not None and (
                folder == metadata_folder or folder.contains(metadata_folder)
            ):
                path = real[folder].path + metadata_folder.path[len(folder.path) :]
                self._metadata_folder = metadata_folder._replace(path=path)

    @classmethod
    def of(
        cls,
        metadata: Mapping[str, Any],
        metadata_location: str,
        trust: Trust,
        properties: Mapping[str, Any],
        stored: Callable[[str], str] = str,
    ) -> TableFolders:
        """Return the folders of a table. ``trust`` is what is known of its metadata from elsewhere.
        ``properties`` are the catalog's: if they name the same folder as the metadata, it counts.
        """
        stated = {**(metadata.get("properties") or {}), "location": metadata.get("location")}
        folders = [
            stored(folder)
            for name in ("location", *FOLDER_PROPERTIES)
            if isinstance(folder := stated.get(name), str)
            and folder
            and (trust.confirms_metadata or properties.get(name) == folder)
        ]
        return cls(metadata_location, folders, stored=stored, is_confirmed=trust.confirms_metadata)

    def has(self, location: str) -> bool:
        """Return whether the file with this ``location`` in the metadata is in these folders."""
        file = self._real_location(location)
        return file is not None and any(folder.contains(file) for folder in self._folders)

    def has_in_metadata_folder(self, location: str) -> bool:
        """Return whether a file is in the folder of the metadata.json in the catalog."""
        file = self._real_location(location)
        return file is not None and file.parent == self._metadata_folder

    def versions(self, logged: Iterable[str]) -> list[str]:
        """Return the locations of a metadata log that may be deleted: versions of the metadata in
        the folder of the metadata.json in the catalog."""
        return [
            location
            for location in logged
            if location.endswith(METADATA_ENDINGS) and self.has_in_metadata_folder(location)
        ]

    def has_statistics(self, location: str, files: TableFiles) -> bool:
        """Return whether a file may be statistics of the table. Only metadata.json names those, so
        the file must be in the metadata folder and begin like Puffin or Parquet. This does not
        check whether a manifest names it too. Raises FileNotFoundError and OSError."""
        is_inside = self._is_confirmed and self.has(location)
        if not (is_inside or self.has_in_metadata_folder(location)):
            return False
        if location.endswith(_NO_STATISTICS):
            return False
        path = files.local_path(location)
        # Opening a pipe could block for ever, and a link may lead to any file.
        if path is not None and not stat.S_ISREG(os.lstat(path).st_mode):
            return False
        with closing(files.open_stored(location)) as stream:
            return stream.read(4) in _STATISTICS

    def _real_location(self, location: str) -> UnambiguousLocation | None:
        """Return where a file is, with the real name of its folder; None if FileIOs may understand
        its location differently."""
        file = unambiguous(self._stored(location))
        if file is None or file.scheme != "file":
            return file
        # Some FileIOs resolve ".." before they follow links.
        if ".." in file.parent.path.split("/") and not any(f.contains(file) for f in self._named):
            return None
        return file.in_real_folder()

    def __repr__(self) -> str:
        return f"TableFolders({self._folders})"

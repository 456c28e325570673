"""Which folders to list for a table's files, and what the names of the files in them say: which
metadata.json is left from a failed commit, for example.

``verify`` and the removal of orphan files share this. It opens no file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from ..storage.locations import FileNames
from ..storage.table_folders import FOLDER_PROPERTIES, METADATA_ENDINGS
from .deletion import logged_metadata

VERSION_HINT = "version-hint.text"


def folders_to_list(metadata: Mapping[str, Any], stored: Callable[[str], str] = str) -> list[str]:
    """Return the folders that a table's metadata names, without those inside the first one, which
    is the table's own. ``stored`` maps locations to the present ones."""
    own = str(metadata["location"])
    names = FileNames(own, stored)
    folders = [own]
    for name in FOLDER_PROPERTIES:
        folder = (metadata.get("properties") or {}).get(name)
        if folder and folder not in folders and not names.is_below_root(stored(folder)):
            folders.append(folder)
    return folders


class MetadataVersions:
    """The names of the metadata files in a table's metadata log, and of the current one."""

    def __init__(self, metadata: Mapping[str, Any], current: str) -> None:
        locations = [*logged_metadata(metadata), current]
        self._names = {location.rpartition("/")[2] for location in locations}
        self._oldest = min((version_of_name(name) or 0 for name in self._names), default=0)

    def is_of_failed_commit(self, name: str) -> bool:
        """Return whether a metadata file that the log does not name is newer than the log's oldest
        one, so that it is of a commit that failed or was killed."""
        version = version_of_name(name)
        return version is not None and version >= self._oldest and name not in self._names


def version_of_name(name: str) -> int | None:
    """Return the number at the beginning of a metadata file's name; None if there is none."""
    match = re.fullmatch(r"(\d+)-[^/]*\.metadata\.json", name)
    return None if match is None else int(match[1])


def is_metadata(name: str) -> bool:
    """Return whether a file is a version of the metadata, or Hadoop's file that names the newest.
    No snapshot names these."""
    return name.endswith(METADATA_ENDINGS) or name == VERSION_HINT


def with_checksum(name: str) -> str | None:
    """Return the name of the file that a checksum file of Hadoop is for; None for other files."""
    if name.startswith(".") and name.endswith(".crc") and len(name) > len("..crc"):
        return name[1 : -len(".crc")]
    return None

"""``Relocation``: what all steps of one relocation share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyiceberg.io import FileIO

from ...storage.locations import normalized
from ...storage.table_files import TableFiles
from ...storage.table_folders import TableFolders
from ...write.view import TableView
from .destination import Destination
from .workers import Workers


@dataclass(frozen=True, slots=True)
class Relocation:
    """One relocation: the table, where it goes, and the threads that copy. ``metadata_location`` is
    the location of the old metadata.json in the catalog. ``folders`` are the old table's. Without
    ``all_snapshots``, only the current snapshot is copied. ``io`` is the storage of the new
    location. With ``is_same_storage``, one location names one file for both tables. With
    ``is_in_place``, the table was moved before, and its files are at the new location already.
    ``resume`` and ``verify`` are arguments of ``relocate``."""

    view: TableView
    metadata_location: str
    folders: TableFolders
    all_snapshots: bool
    destination: Destination
    io: FileIO
    is_same_storage: bool
    is_in_place: bool
    workers: Workers
    resume: bool
    verify: bool

    @property
    def files(self) -> TableFiles:
        """The files of the old table."""
        return self.view.files

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The old metadata."""
        return self.view.metadata

    def is_at_destination(self, source: str) -> bool:
        """Return whether a file of the old table is at its new location already."""
        stored = normalized(self.files.stored_location(source))
        return stored == normalized(self.destination(source)) and (
            stored.scheme == "file" or self.is_same_storage
        )

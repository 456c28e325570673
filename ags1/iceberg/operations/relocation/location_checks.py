"""Checks that a table can be relocated to a location: that nothing else is there.

The old table and the new one must have no file in common, because one of them will be deleted. So
the new location must not be the old one, under whichever name, nor inside it, nor around it.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import Any

from pyiceberg.io import FileIO
from pyiceberg.typedef import Properties

from ...commit.metadata_file import METADATA_PATH
from ...read.metadata import read_metadata
from ...storage.listing import list_files
from ...storage.locations import are_nested, normalized, real_location
from ...storage.trust import Trust
from ...write.view import TableView
from .destination import Destination


def check_new_location(view: TableView, new_location: str, properties: Properties) -> bool:
    """Raise ValueError if a table cannot be relocated to ``new_location``: if it is there already,
    under the same name or through a link, or if one location is inside the other. Return whether
    the table's files are there already, but its metadata names another location, because the table
    was moved. ``properties`` are those of the new location's FileIO."""
    named = view.metadata["location"]
    stored = view.files.stored_location(named)
    if normalized(stored).scheme != "file" and properties != view.files.properties:
        return False  # Another storage.
    is_in_place = normalized(new_location) == normalized(stored)
    if is_in_place and normalized(stored) == normalized(named):
        raise ValueError(f"the table is at {new_location} already: choose another location")
    real, real_new = real_location(stored), real_location(new_location)
    if not is_in_place and normalized(real) == normalized(real_new):
        raise known_by_another_name(new_location)
    if are_nested(stored, new_location) or are_nested(real, real_new):
        # A clean-up of the outer table would delete the inner table's files as orphans.
        raise ValueError(
            f"of {stored} and {new_location}, one is within the other: choose another location"
        )
    return is_in_place


def known_by_another_name(new_location: str) -> ValueError:
    """Return the error for a new location that is the old one."""
    return ValueError(
        f"the table is at {new_location} already, under another name: choose another location"
    )


def refuse_other_table(io: FileIO, metadata_folder: str, metadata: Mapping[str, Any]) -> None:
    """Raise FileExistsError if a metadata.json of another table is in the new folder. Raises
    MetadataIntegrityError if that file cannot be read."""
    for location in list_files(io, metadata_folder) or ():
        if location.endswith(".metadata.json"):
            if read_metadata(io, location, Trust()).get("table-uuid") != metadata["table-uuid"]:
                raise FileExistsError(
                    errno.EEXIST, "Another table is here: choose another location", location
                )
            return


def is_seen_from(view: TableView, metadata_location: str, new_metadata_location: str) -> bool:
    """Return whether the copy's new metadata.json is in the old table's metadata folders, in the
    old table's storage. The file's name is unique. So if it is there, both locations are the same,
    and the old table's files are the new table's. Raises OSError. ``metadata_location`` is the
    location of the old metadata.json in the catalog."""
    name = new_metadata_location.rpartition("/")[2]
    root = view.metadata["location"].rstrip("/")
    folders = [f"{root}/metadata"]
    stated = view.properties.get(METADATA_PATH)
    # A folder outside the table's location is not looked at.
    if stated is not None and Destination(root, root).inside(stated.rstrip("/")) is not None:
        folders.append(stated.rstrip("/"))
    inputs = [view.files.inner.new_input(f"{metadata_location.rpartition('/')[0]}/{name}")]
    inputs += [view.files.new_input(f"{folder}/{name}") for folder in folders]
    return any(file.exists() for file in inputs)

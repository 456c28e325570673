"""Finds the current metadata.json of a table in its folder, as Java's HadoopTables does."""

from __future__ import annotations

import contextlib
import errno
import os
import re

from pyiceberg.io import FileIO

from ...errors import MetadataIntegrityError
from .listing import list_files
from .locations import new_input, without_scheme

_ENDINGS = (".json", ".json.gz")
# Java's endings of the file of a version, in the order in which it looks for them.
_OF_VERSION = (".metadata.json", ".gz.metadata.json", ".metadata.json.gz")
_NUMBER = re.compile(r"[0-9]{1,18}")
_NAME = re.compile(
    r"(?:v(?P<version>\d{1,18})|(?P<number>\d{1,18})(?:-[^/]*?)?)"
    r"(?:\.gz\.metadata\.json|\.metadata\.json(?:\.gz)?)"
)


def absolute(location: str) -> str:
    """Return a location, and the whole path of a local file."""
    return location if ":" in location else os.path.abspath(location)


def find_metadata(io: FileIO, location: str) -> tuple[str, str | None]:
    """Return the location of a metadata.json, and the table's folder if ``location`` is one; else
    None. Raises as ``newest_metadata``."""
    if location.endswith(_ENDINGS):
        return location, None
    folder = location.rstrip("/")
    return newest_metadata(io, folder), folder


def moved_to(folder: str | None, stated: str | None) -> dict[str, str]:
    """Return the location map of a table whose metadata.json was found in ``folder``. It is empty
    if that is the location that the metadata states."""
    stated = str(stated or "").rstrip("/")
    if folder is None or not stated or without_scheme(stated) == without_scheme(folder):
        return {}
    return {stated: folder}


def newest_metadata(io: FileIO, folder: str) -> str:
    """Return the location of the newest metadata file of the table in ``folder``: the one that
    ``version-hint.text`` names, or else the one with the highest number. As in Java, a hint of 3
    means ``v3.metadata.json``, and the versions that follow it without a gap are newer. Raises
    OSError if the storage cannot list files, FileNotFoundError if there is no such file, and
    MetadataIntegrityError if two have that number."""
    files = list_files(io, f"{folder}/metadata")
    if files is None:
        message = (
            f"{type(io).__name__} cannot list the files in this folder: name the metadata.json"
        )
        raise OSError(errno.ENOTSUP, message, folder)
    hint, numbered = None, []
    for location in files:
        name = location.rpartition("/")[2]
        if name == "version-hint.text":
            hint = location
        elif match := _NAME.fullmatch(name):
            numbered.append((int(match["version"] or match["number"]), location))
    if hint is not None:
        with contextlib.closing(new_input(io, hint).open()) as stream:
            version = stream.read(1 << 10).decode("utf-8", "replace").strip()
        if hinted := _hinted(version, {path.rpartition("/")[2]: path for _, path in numbered}):
            return hinted
    if not numbered:
        message = "there is no metadata.json in its folder 'metadata': name a table's folder"
        raise FileNotFoundError(errno.ENOENT, message, folder)
    highest = max(number for number, _ in numbered)
    newest = [location for number, location in numbered if number == highest]
    if len(newest) > 1:
        message = f"{len(newest)} metadata files have the number {highest}: name the one to read"
        raise MetadataIntegrityError(message, file=folder)
    return newest[0]


def _hinted(version: str, files: dict[str, str]) -> str | None:
    """Return the location of the metadata file that a hint means, of those with these names."""
    found = None
    if _NUMBER.fullmatch(version):
        number = int(version)
        while newer := _of_version(number, files):
            found, number = newer, number + 1
    return found or files.get(version) or files.get(f"{version}.metadata.json")


def _of_version(number: int, files: dict[str, str]) -> str | None:
    names = (f"v{number}{ending}" for ending in _OF_VERSION)
    return next((files[name] for name in names if name in files), None)

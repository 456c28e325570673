"""Computes where a table's files are after the table is copied to another location.

The new location depends only on the old one, not on whether the file exists. All spellings of a
location give the same result: ``file:/a``, ``file:///a`` and ``/a`` are one place, and ``s3`` and
``s3a`` are one scheme.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from typing import TypeAlias

# A location in one spelling: the scheme, and the path without a slash before it.
Place: TypeAlias = "tuple[str, str]"

# The folder below the new location for files that were not below the old one.
_OUTSIDE = "outside"
_S3 = ("s3", "s3a", "s3n")


def place_of(location: str) -> Place:
    """Return a location in one spelling."""
    scheme, colon, rest = location.partition(":")
    if not colon or "/" in scheme:
        return "file", location.lstrip("/")
    scheme = scheme.lower()
    return "s3" if scheme in _S3 else scheme, rest.lstrip("/")


def checked_location(location: str) -> str:
    """Return a table's location in the form for metadata. Raises ValueError if it is invalid."""
    _, path = place_of(location)
    if "\0" in location or not path.strip("/"):
        raise ValueError(f"{location!r} cannot be a table's location: give a folder")
    if {".", ".."} & set(path.split("/")):
        raise ValueError(f"the location {location!r} must not contain '.' or '..'")
    stripped = location.rstrip("/")
    if ":" in stripped.partition("/")[0]:
        return stripped
    if not location.startswith("/"):
        raise ValueError(f"{location!r} depends on the current folder: give the whole path")
    # A bare path would be another place for a reader with another default file system.
    return f"file://{stripped}"


def are_nested(one: str, other: str) -> bool:
    """Return whether one of two locations is inside the other. A location is not inside itself."""
    (scheme, path), (other_scheme, other_path) = place_of(one), place_of(other)
    path, other_path = f"{path.rstrip('/')}/", f"{other_path.rstrip('/')}/"
    return (
        scheme == other_scheme
        and path != other_path
        and (path.startswith(other_path) or other_path.startswith(path))
    )


def real_location(location: str) -> str:
    """Return a location with links followed, if it is on a local file system."""
    scheme, path = place_of(location)
    return f"file://{os.path.realpath('/' + path)}" if scheme == "file" else location


class Places:
    """Maps the locations of files of a table at ``old`` to those of the table at ``new``."""

    def __init__(self, old: str, new: str) -> None:
        self._root = place_of(old.rstrip("/"))
        self._outside = _OUTSIDE
        self.new = new

    def keep_apart(self, locations: Iterable[str]) -> None:
        """Choose the folder for files from outside. None of ``locations`` below the old location is
        in a folder of that name."""
        taken = {inner.partition("/")[0] for inner in map(self.inner, locations) if inner}
        number = 1
        while self._outside in taken:
            number += 1
            self._outside = f"{_OUTSIDE}-{number}"

    def inner(self, location: str) -> str | None:
        """Return a location relative to the table's location; None if it is not below that."""
        scheme, path = place_of(location)
        root = self._root[1]
        if scheme != self._root[0] or not path.startswith(root + "/" if root else ""):
            return None
        inner = path[len(root) + 1 if root else 0 :]
        # "a/../b" may leave the folder, and an object store would look for another object.
        return None if {"", ".", ".."} & set(inner.split("/")) else inner

    def __call__(self, location: str) -> str:
        """Return the new location of a file."""
        inner = self.inner(location)
        if inner is None:
            place = place_of(location)
            name = place[1].rpartition("/")[2]
            name = "file" if name in ("", ".", "..") else name
            digest = hashlib.sha256("\0".join(place).encode()).hexdigest()[:32]
            inner = f"{self._outside}/{digest}/{name}"
        return f"{self.new}/{inner}"

    def inside(self, folder: str) -> str | None:
        """Return the new location of the table's folder or of a folder in it; None for others."""
        if place_of(folder) == self._root:
            return self.new
        return None if self.inner(folder) is None else self(folder)

    def folder(self, location: str) -> str:
        """Return the new location of a file's folder."""
        return self(location).rpartition("/")[0]

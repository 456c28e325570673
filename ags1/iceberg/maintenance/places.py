"""Where a table's files are once the table is at another location.

A function of locations alone, in whatever spelling (``file:/a``, ``file:///a`` and ``/a`` are one
place, ``s3`` and ``s3a`` one scheme): what names a file that is gone is renamed by the same rule.
Knows nothing of storages, but that a folder of this machine may have several names.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from typing import TypeAlias

# A location in one spelling: the scheme, and the path with no slash before it.
Place: TypeAlias = "tuple[str, str]"

# Below the new location: files that were not below the old one.
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
    """Return a table's location in the form for metadata. Raises ValueError."""
    _, path = place_of(location)
    if "\0" in location or not path.strip("/"):
        raise ValueError(f"{location!r} is no place for a table")
    if {".", ".."} & set(path.split("/")):
        raise ValueError(f"{location!r}: the location has to be without '.' and '..'")
    stripped = location.rstrip("/")
    if ":" in stripped.partition("/")[0]:
        return stripped
    if not location.startswith("/"):
        raise ValueError(f"{location!r} depends on the current folder: give the whole path")
    # A bare path means another place to whoever has another default file system.
    return f"file://{stripped}"


def are_nested(one: str, other: str) -> bool:
    """Whether one of two locations lies within the other; one is not within itself."""
    (scheme, path), (other_scheme, other_path) = place_of(one), place_of(other)
    path, other_path = f"{path.rstrip('/')}/", f"{other_path.rstrip('/')}/"
    return (
        scheme == other_scheme
        and path != other_path
        and (path.startswith(other_path) or other_path.startswith(path))
    )


def real_location(location: str) -> str:
    """Return a location with links followed, where it is of this machine's file systems."""
    scheme, path = place_of(location)
    return f"file://{os.path.realpath('/' + path)}" if scheme == "file" else location


class Places:
    """Where files of a table at ``old`` are when it is at ``new``: the same for each spelling."""

    def __init__(self, old: str, new: str) -> None:
        self._root = place_of(old.rstrip("/"))
        self._outside = _OUTSIDE
        self.new = new

    def keep_apart(self, locations: Iterable[str]) -> None:
        """Choose the folder for files from outside: one that none of these, below the old location,
        is in."""
        taken = {inner.partition("/")[0] for inner in map(self.inner, locations) if inner}
        number = 1
        while self._outside in taken:
            number += 1
            self._outside = f"{_OUTSIDE}-{number}"

    def inner(self, location: str) -> str | None:
        """Return what of a location is below the table's, None where it lies elsewhere."""
        scheme, path = place_of(location)
        root = self._root[1]
        if scheme != self._root[0] or not path.startswith(root + "/" if root else ""):
            return None
        inner = path[len(root) + 1 if root else 0 :]
        # "a/../b" would leave the folder, and a store of objects would find another one.
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
        """Return the new location of the table's folder, or of one in it; None for another."""
        if place_of(folder) == self._root:
            return self.new
        return None if self.inner(folder) is None else self(folder)

    def folder(self, location: str) -> str:
        """Return the new location of a file's folder."""
        return self(location).rpartition("/")[0]

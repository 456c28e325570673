"""``Destination``: where the files of a table go when the table is relocated.

The new location of a file depends only on the old one. All spellings of a location give the same
result. With the table at ``s3://b/old``, going to ``s3://b/new``::

    s3://b/old/data/1.parquet     s3://b/new/data/1.parquet
    s3a://b/old/data/1.parquet    the same: another spelling
    s3://b/other/1.parquet        s3://b/new/outside/<digest of the location>/1.parquet
    s3://b/old/../other/x         s3://b/new/outside/<another digest>/x
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from ...storage.locations import normalized

# The folder below the new location for files that were not below the old one.
_OUTSIDE = "outside"


class Destination:
    """Maps the locations of files of a table at ``old`` to those of the table at ``new``."""

    def __init__(self, old: str, new: str) -> None:
        self._root = normalized(old.rstrip("/"))
        self._outside = _OUTSIDE
        self.new = new

    def keep_apart(self, locations: Iterable[str]) -> None:
        """Choose a folder for files from outside in which none of ``locations`` is."""
        taken = {inner.partition("/")[0] for inner in map(self.inner, locations) if inner}
        number = 1
        while self._outside in taken:
            number += 1
            self._outside = f"{_OUTSIDE}-{number}"

    def inner(self, location: str) -> str | None:
        """Return a location relative to the table's location; None if it is not below that."""
        scheme, path = normalized(location)
        root = self._root.path
        if scheme != self._root.scheme or not path.startswith(root + "/" if root else ""):
            return None
        inner = path[len(root) + 1 if root else 0 :]
        # "a/../b" may leave the folder, and an object store would look for another object.
        return None if {"", ".", ".."} & set(inner.split("/")) else inner

    def __call__(self, location: str) -> str:
        """Return the new location of a file."""
        inner = self.inner(location)
        if inner is None:
            spelled = normalized(location)
            name = spelled.path.rpartition("/")[2]
            name = "file" if name in ("", ".", "..") else name
            digest = hashlib.sha256("\0".join(spelled).encode()).hexdigest()[:32]
            inner = f"{self._outside}/{digest}/{name}"
        return f"{self.new}/{inner}"

    def inside(self, folder: str) -> str | None:
        """Return the new location of the table's folder or of a folder in it; None for others."""
        if normalized(folder) == self._root:
            return self.new
        return None if self.inner(folder) is None else self(folder)

    def folder(self, location: str) -> str:
        """Return the new location of a file's folder."""
        return self(location).rpartition("/")[0]

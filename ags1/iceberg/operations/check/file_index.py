"""``FileIndex``: what a table's metadata says of each file, for checks of it.

For each file the index has three things, and everything that the metadata says of the file later is
compared with them:

    key_digest   of the file's key: no file may have two keys, and no key two files
    stated       the size, rows, content and format in the first manifest entry of the file
    in use       whether a snapshot has the file, the current one, or that of a branch or tag

A file that several manifests list is new only once, so it is checked once. A file in the table's
folder that is not in the index belongs to no snapshot.

A table may have millions of files. So a file is known by its name below the table's folder, and its
key only by a digest under a secret of this run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, TypeAlias

from ....engine._gcm import random_bytes
from ....engine.key_metadata import KeyMetadata
from ....errors import MetadataIntegrityError
from ...read.records import DATA, ContentFile
from ...storage.locations import FileNames
from ...storage.table_files import TableFiles
from .findings import Findings

SnapshotIds: TypeAlias = "tuple[int, ...]"
_NO_KEY = b""


@dataclass(slots=True)
class _IndexedFile:
    key_digest: bytes = _NO_KEY
    stated: tuple[Any, ...] | None = None
    is_live: bool = False
    is_current: bool = False
    is_head: bool = False


class FileIndex:
    """The files that the metadata names. Contradictions about a file become findings. ``files``
    maps the locations of a table that was moved, and ``table_location`` is the table's folder. For
    use by one thread."""

    def __init__(self, files: TableFiles, table_location: str, findings: Findings) -> None:
        self._files = files
        self._findings = findings
        self._names = FileNames(table_location, self.stored)
        self._secret = random_bytes(32)
        self._by_name: dict[bytes, _IndexedFile] = {}
        self._name_of_key: dict[bytes, bytes] = {}
        self._vectors: set[tuple[Any, ...]] = set()
        self._exposed: set[bytes] = set()

    def name(self, location: str) -> bytes:
        """Return the name by which the index knows the file at this location of the metadata."""
        return self._names.of(location)

    def add(
        self, location: str, key_metadata: KeyMetadata | None, snapshot_ids: SnapshotIds
    ) -> bool:
        """Add a file, with its key if it has one; return whether it is new."""
        return self._add(self.name(location), location, key_metadata, snapshot_ids)

    def add_unreadable(self, location: str) -> None:
        """Add a file whose key is missing or cannot be read. There is a finding of it already."""
        self._by_name.setdefault(self.name(location), _IndexedFile())

    def add_entry(
        self, file: ContentFile, snapshot_ids: SnapshotIds, *, is_current: bool, is_head: bool
    ) -> bool:
        """Add the file of a manifest entry that is not deleted; return whether it is new.
        ``is_current``: the current snapshot has the manifest; ``is_head``: that of a branch or tag.
        Raises what reading the file's key raises; even then, the file is in the index."""
        location = file.file_path
        name = self.name(location)
        try:
            is_new = self._add(name, location, file.key, snapshot_ids)
        finally:
            indexed = self._by_name.setdefault(name, _IndexedFile())
            indexed.is_live = True
            indexed.is_current |= is_current
            indexed.is_head |= is_head
        stated = _stated(file)
        if indexed.stated is None:
            indexed.stated = stated
        elif indexed.stated != stated:
            self._findings.add(
                "metadata",
                "two manifest entries contradict each other about this file",
                location,
                snapshot_ids,
            )
        return is_new

    def add_vector(self, file: ContentFile) -> bool:
        """Add a deletion vector of a Puffin file; return whether it is new."""
        vector = (
            self.name(file.file_path),
            (file.content_offset, file.content_size_in_bytes),
            (file.referenced_data_file, file.record_count),
        )
        if vector in self._vectors:
            return False
        self._vectors.add(vector)
        return True

    def add_exposed(self, names: Collection[bytes]) -> None:
        """Note the names of files whose keys are in a plaintext manifest."""
        self._exposed.update(names)

    def count_exposed(self) -> tuple[int, int]:
        """Return how many exposed files any snapshot has, and how many the current one has."""
        unused = _IndexedFile()
        exposed = [self._by_name.get(name, unused) for name in self._exposed]
        return sum(file.is_live for file in exposed), sum(file.is_current for file in exposed)

    def earlier_sizes(self) -> list[int]:
        """Return the sizes (bytes) of the data files that no branch and no tag has."""
        indexed = self._by_name.values()
        stated = (file.stated for file in indexed if file.is_live and not file.is_head)
        return [facts[0] for facts in stated if facts is not None and facts[2] == DATA]

    def has_stored(self, location: str) -> bool:
        """Return whether the index has the file at this real location."""
        return self._names.of_stored(location) in self._by_name

    def stored(self, location: str) -> str:
        """Return the present location of a file or folder of the metadata."""
        try:
            return self._files.stored_location(location)
        except MetadataIntegrityError:
            # The same error is a finding when the file is opened.
            return location

    def _add(
        self,
        name: bytes,
        location: str,
        key_metadata: KeyMetadata | None,
        snapshot_ids: SnapshotIds,
    ) -> bool:
        digest = _NO_KEY
        if key_metadata is not None:
            digest = hashlib.blake2b(
                key_metadata.encryption_key, digest_size=16, key=self._secret
            ).digest()
        indexed = self._by_name.get(name)
        if indexed is not None:
            if indexed.key_digest != digest:
                self._findings.add(
                    "two-keys",
                    "the table's metadata has two keys for this file",
                    location,
                    snapshot_ids,
                )
            return False
        self._by_name[name] = _IndexedFile(digest)
        if digest and (other := self._name_of_key.setdefault(digest, name)) is not name:
            self._findings.add(
                "shared-key",
                f"its key is also that of {other.decode('utf-8', 'replace')}: somebody can "
                "exchange parts of the two files. Rewrite both with rekey",
                location,
                snapshot_ids,
            )
        return True


def _stated(file: ContentFile) -> tuple[Any, ...]:
    """Return the values that all entries of one file must agree on."""
    # One Puffin file may have several deletion vectors, each with its own number of rows.
    rows = None if file.is_deletion_vector else file.record_count
    equality_ids = tuple(file.equality_ids or ())
    return file.file_size_in_bytes, rows, file.content, file.file_format, equality_ids

"""Replaces the partitions that new data files belong to, as Java's ``BaseReplacePartitions``.

Removed are all data and delete files of these partitions that have the partition spec of the new
files. Files of another spec stay. If the spec has no fields, all files are removed, of whatever
spec. Compares partitions by their values, so any transform will do. No data file is opened. Other
than in Java, what others commit to these partitions meanwhile is always a conflict, according to
the table's isolation level. Knows no catalogs and retries.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyiceberg.table.snapshots import IsolationLevel

from ..read.planning import partition_key
from ..read.records import DATA, ContentFile, ManifestEntry, read_entries
from ..read.snapshots import EncryptedManifest
from .conflicts import ConflictError, isolation_level
from .snapshot import FileChange
from .view import TableView

#: What Java's snapshots of this kind have in their summary.
SUMMARY = {"replace-partitions": "true"}


class PartitionReplacement:
    """The replacement of the partitions of ``added``, which are new data files of one partition
    spec, at least one. Give ``change`` and ``recheck`` to one ``SnapshotStep``."""

    def __init__(self, added: Sequence[ContentFile]) -> None:
        self._added = added
        self._spec_id = added[0].spec_id
        self._partitions = {partition_key(file) for file in added}
        self._removed: dict[Any, ManifestEntry] = {}

    def change(self, view: TableView) -> FileChange:
        """Return what to add to ``view`` and to remove from it. Raises as reading manifests."""
        self._removed = self._present(view)
        return FileChange(added=self._added, removed=list(self._removed.values()))

    def recheck(self, view: TableView) -> None:
        """Raise ConflictError if a later version has other files in these partitions: new deletes,
        fewer files or, unless the property ``write.update.isolation-level`` is ``snapshot``, new
        data files. With ``snapshot`` these stay."""
        present = self._present(view)
        isolation = isolation_level(view.properties, "update")
        keeps_added = isolation == IsolationLevel.SNAPSHOT
        for identity in present.keys() ^ self._removed.keys():
            file = (present.get(identity) or self._removed[identity]).file
            if keeps_added and identity in present and file.content == DATA:
                continue
            raise ConflictError(
                "another writer has changed a partition that was to be replaced, for example by "
                f"{file.file_path}: nothing was committed. Load the table again and repeat the "
                "change"
            )

    def _present(self, view: TableView) -> dict[Any, ManifestEntry]:
        """Return the entries of the files in the partitions, by the files' identities."""
        spec = view.specs.get(self._spec_id)
        # If the table does not have the spec any more, the snapshot's producer raises.
        is_everything = spec is not None and not spec.fields

        def inside(manifest: EncryptedManifest) -> list[ManifestEntry]:
            entries = read_entries(manifest, view.files)
            return [
                e for e in entries if is_everything or partition_key(e.file) in self._partitions
            ]

        manifests = [
            manifest
            for manifest in view.manifests
            if is_everything or manifest.partition_spec_id == self._spec_id
        ]
        found = view.workers.map(inside, manifests)
        return {entry.file.identity: entry for entries in found for entry in entries}

"""Finds the data files whose rows a range of snapshots inserted or deleted.

A snapshot's own manifests say what it changed. In this example, snapshot 7 adds the data file C,
removes B, and replaces the deletion vector v1 of A by v2::

    data manifests:    A existing           B deleted by 7        C added by 7
    delete manifests:  v1 (of A) deleted by 7                     v2 (of A) added by 7
    deletes before:    existing or deleted by 7                   {v1}
    deletes after:     existing or added by 7                     {v2}
    tasks:             DELETE  of A: left by v1, deleted by v2
                       DELETE  of B: left by the deletes before
                       INSERT  of A: left by v2, deleted by v1
                       INSERT  of C: left by the deletes after

So the parent of a snapshot may be expired, if the files that the snapshot removed still exist.
Snapshots whose operation is ``replace`` change no rows. Java's ``BaseIncrementalChangelogScan``
plans the files B and C in the same way, and refuses tables with delete files.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator
from typing import cast

from pyiceberg.expressions import BooleanExpression
from pyiceberg.manifest import DataFile
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import (
    Operation,
    Snapshot,
    ancestors_between_ids,
    ancestors_of,
    is_parent_ancestor_of,
)

from .planning import DeleteIndex, EncryptedPlanner
from .records import ADDED, DELETED, ContentFile, Manifest, ManifestEntry
from .tasks import DifferenceTask

DELETE, INSERT = "DELETE", "INSERT"


class ChangelogScanTask(DifferenceTask):
    """Rows of one data file that a snapshot inserted or deleted.

    ``change_type`` is INSERT or DELETE. ``change_ordinal`` counts the snapshots of the scan from 0,
    without those that change no rows. ``delete_files`` are those that applied to the file after an
    insert or before a delete. If ``removed_by`` is not empty, the rows are only those that these
    delete files delete.
    """

    change_type: str
    change_ordinal: int
    commit_snapshot_id: int

    def __init__(
        self,
        file: DataFile,
        delete_files: set[DataFile],
        residual: BooleanExpression,
        change: tuple[str, int, int],
        removed_by: set[DataFile] | None = None,
    ) -> None:
        super().__init__(file, delete_files, residual)
        self.change_type, self.change_ordinal, self.commit_snapshot_id = change
        self.removed_by = removed_by or set()


class ChangelogPlanner(EncryptedPlanner):
    """Plans the tasks of snapshots of an encrypted table."""

    def plan_changes(self, snapshots: Iterable[Snapshot]) -> list[ChangelogScanTask]:
        """Return the tasks of the snapshots, which are given from the oldest on. Those of a
        snapshot are together, its deletes first. Raises as ``plan_files``."""
        tasks: list[ChangelogScanTask] = []
        changing = (s for s in snapshots if not _replaces(s))
        for ordinal, snapshot in enumerate(changing):
            of_snapshot = sorted(
                self._tasks(snapshot, ordinal), key=lambda task: task.change_type == INSERT
            )
            for task in of_snapshot:
                self.check(cast("ContentFile", task.file))
            tasks += of_snapshot
        return tasks

    def _tasks(self, snapshot: Snapshot, ordinal: int) -> Iterator[ChangelogScanTask]:
        number = snapshot.snapshot_id
        manifests = cast("list[Manifest]", snapshot.manifests(self.io))
        own = [m for m in manifests if m.added_snapshot_id == number]
        data = self._entries(m for m in own if not m.is_deletes)
        data = [e for e in data if e.snapshot_id == number and e.status in (ADDED, DELETED)]
        before, after = self.delete_index(), self.delete_index()
        changed: list[ManifestEntry] = []
        if any(m.is_deletes for m in own) or any(e.status == DELETED for e in data):
            changed = self._add_deletes(
                (m for m in manifests if m.is_deletes), number, before, after
            )
        for entry in data:
            deletes, kind = (after, INSERT) if entry.status == ADDED else (before, DELETE)
            file = entry.file
            change = kind, ordinal, number
            yield ChangelogScanTask(file, deletes.of(entry), self.row_filter, change)
        if not changed:
            return
        for entry in self._entries(m for m in manifests if not m.is_deletes):
            if entry.status == DELETED or (entry.status == ADDED and entry.snapshot_id == number):
                continue
            old, new = before.of(entry), after.of(entry)
            file = entry.file
            for kind, left_by, removed_by in ((DELETE, old, new - old), (INSERT, new, old - new)):
                if removed_by:
                    change = kind, ordinal, number
                    yield ChangelogScanTask(file, left_by, self.row_filter, change, removed_by)

    def _add_deletes(
        self, manifests: Iterable[Manifest], number: int, before: DeleteIndex, after: DeleteIndex
    ) -> list[ManifestEntry]:
        """Add the delete files to the indexes; return those that the snapshot added or removed."""
        changed = []
        for entry in self._entries(manifests):
            is_own = entry.snapshot_id == number
            if is_own and entry.status in (ADDED, DELETED):
                changed.append(entry)
            if entry.status != DELETED:
                after.add(entry)
            if entry.status != DELETED if not is_own else entry.status != ADDED:
                before.add(entry)
        return changed

    def _entries(self, manifests: Iterable[Manifest]) -> list[ManifestEntry]:
        matching = self.matching_entries(manifests, with_removed=True)
        return [cast("ManifestEntry", entry) for _, entries in matching for entry in entries]


def _replaces(snapshot: Snapshot) -> bool:
    return snapshot.summary is not None and snapshot.summary.operation == Operation.REPLACE


def snapshots_between(
    metadata: TableMetadata,
    from_snapshot_id: int | None = None,
    to_snapshot_id: int | None = None,
    from_timestamp_ms: int | None = None,
    to_timestamp_ms: int | None = None,
) -> list[Snapshot]:
    """Return the snapshots of a range, from the oldest on.

    The start is exclusive. Without it, the range begins with the oldest ancestor of its end. The
    end is inclusive. Without it, the range ends with the current snapshot. Times (epoch ms) mean
    snapshots of the current one's history, as in Spark's ``start-timestamp`` and ``end-timestamp``.
    Raises ValueError as Java does: both an ID and a time are given, the times are in the wrong
    order, the end does not exist, the start is not the parent of a snapshot in the end's history,
    or the snapshot at the start time was expired.
    """
    for name, snapshot_id, time in (
        ("start", from_snapshot_id, from_timestamp_ms),
        ("end", to_snapshot_id, to_timestamp_ms),
    ):
        if snapshot_id is not None and time is not None:
            raise ValueError(f"both a snapshot and a time are given as the {name}: give one")
    if None not in (from_timestamp_ms, to_timestamp_ms) and (
        cast("int", from_timestamp_ms) >= cast("int", to_timestamp_ms)
    ):
        raise ValueError("the start time is not before the end time")
    current = metadata.current_snapshot()
    history = list(ancestors_of(current, metadata))
    if from_timestamp_ms is not None:
        if current is None or from_timestamp_ms > current.timestamp_ms:
            return []
        from_snapshot_id = _snapshot_at(history, from_timestamp_ms)
    if to_timestamp_ms is not None:
        until = (s.snapshot_id for s in history if s.timestamp_ms <= to_timestamp_ms)
        to_snapshot_id = next(until, None)
        if to_snapshot_id is None:
            return []
    if to_snapshot_id is None:
        if current is None:
            if from_snapshot_id is None:
                return []
            raise ValueError("End snapshot is not set and table has no current snapshot")
        to_snapshot_id = current.snapshot_id
    if metadata.snapshot_by_id(to_snapshot_id) is None:
        raise ValueError(f"Cannot find the end snapshot: {to_snapshot_id}")
    if from_snapshot_id == to_snapshot_id:
        return []
    if from_snapshot_id is not None and not is_parent_ancestor_of(
        to_snapshot_id, from_snapshot_id, metadata
    ):
        raise ValueError(
            f"Starting snapshot (exclusive) {from_snapshot_id} is not a parent ancestor of end "
            f"snapshot {to_snapshot_id}"
        )
    return list(ancestors_between_ids(from_snapshot_id, to_snapshot_id, metadata))[::-1]


def _snapshot_at(history: list[Snapshot], timestamp_ms: int) -> int | None:
    """Return the ID of the newest snapshot made at or before a time; None if the table had none
    then. ``history`` begins with the newest. Raises ValueError if that snapshot was expired."""
    after: Snapshot | None = None
    for snapshot in history:
        if snapshot.timestamp_ms == timestamp_ms:
            return snapshot.snapshot_id
        if snapshot.timestamp_ms < timestamp_ms:
            break
        after = snapshot
    else:
        if after is not None and after.parent_snapshot_id is not None:
            moment = datetime.datetime.fromtimestamp(timestamp_ms / 1000, datetime.timezone.utc)
            raise ValueError(
                f"Cannot find snapshot older than {moment.isoformat()}: it was expired. Give "
                "a later start, or no start to begin with the oldest snapshot that is left"
            )
    return None if after is None else after.parent_snapshot_id

"""Reads what others have committed to a branch since a snapshot.

It reads manifest lists and manifests, and no data. ``conflicts`` decides whether a change is in
conflict with it. The exceptions are as in PyIceberg's ``CommitWindow``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import cast

from pyiceberg.exceptions import ValidationException
from pyiceberg.manifest import ManifestFile
from pyiceberg.table.snapshots import ancestors_of

from ..read.records import ADDED, DATA, DELETED, ManifestEntry, read_entries
from ..read.snapshots import EncryptedSnapshot
from .conflicts import Changes, ConflictError, Read, find_conflict, isolation_level
from .view import TableView


def check_unchanged(read: Read | None, start: EncryptedSnapshot | None, view: TableView) -> None:
    """Raise ConflictError if a later snapshot has changed what a change has read in the snapshot
    ``start``, according to the table's isolation level. A change that read nothing has no
    conflict."""
    if read is None or view.snapshot == start:
        return
    conflict = find_conflict(
        read,
        changes_since(start, view),
        view.schema,
        isolation_level(view.properties, read.command),
    )
    if conflict is not None:
        raise ConflictError(conflict)


def changes_since(start: EncryptedSnapshot | None, view: TableView) -> Iterator[Changes]:
    """Yield what each snapshot of the view's branch has changed since ``start`` (None: since the
    beginning), newest first. Raises as ``snapshots_since`` and as reading manifests does."""
    return (_changes_of(snapshot, view) for snapshot in snapshots_since(start, view))


def snapshots_since(start: EncryptedSnapshot | None, view: TableView) -> list[EncryptedSnapshot]:
    """Return the branch's snapshots since ``start``, newest first. Raises ConflictError if
    ``start`` is not in the branch's history any more."""
    newer: list[EncryptedSnapshot] = []
    # In damaged metadata, snapshots may be each other's parents.
    most = len(view.parsed.snapshots)
    for snapshot in itertools.islice(ancestors_of(view.snapshot, view.parsed), most):
        # A copy of a table has the same snapshot IDs, but other files.
        if start is not None and snapshot.snapshot_id == start.snapshot_id:
            if snapshot.manifest_list == start.manifest_list:
                return newer
            break
        newer.append(cast("EncryptedSnapshot", snapshot))
    if start is None:
        return newer
    raise ConflictError(
        f"snapshot {start.snapshot_id}, which this change was made for, is not in the history of "
        f"the branch {view.branch!r} any more: the branch was rolled back or moved, or the "
        "snapshot has expired. Nothing was committed. Load the table again and repeat the change"
    )


def _changes_of(snapshot: EncryptedSnapshot, view: TableView) -> Changes:
    snapshot_id = snapshot.snapshot_id
    if snapshot.summary is None:
        raise ValidationException(
            f"snapshot {snapshot_id} has no summary, so conflicts with it cannot be ruled out"
        )
    manifests = [m for m in snapshot.manifests(view.files) if m.added_snapshot_id == snapshot_id]

    def own(manifest: ManifestFile) -> list[ManifestEntry]:
        entries = read_entries(manifest, view.files, discard_deleted=False)
        return [entry for entry in entries if entry.snapshot_id == snapshot_id]

    by_manifest = view.workers.map(own, manifests)
    entries = list(itertools.chain.from_iterable(by_manifest))
    return Changes(
        snapshot_id,
        snapshot.summary.operation,
        added=[e.file for e in entries if e.status == ADDED and e.file.content == DATA],
        removed=[e.file for e in entries if e.status == DELETED and e.file.content == DATA],
        deletes=[e.file for e in entries if e.status == ADDED and e.file.content != DATA],
    )

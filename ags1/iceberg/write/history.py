"""What was committed to a branch since a snapshot, as its manifests have it.

Reads manifest lists and manifests, and no data. Which of it conflicts is in ``conflicts``. The
exceptions are those of PyIceberg's ``CommitWindow``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import cast

from pyiceberg.exceptions import ValidationException
from pyiceberg.manifest import ManifestFile
from pyiceberg.table.snapshots import ancestors_of
from pyiceberg.utils.concurrent import ExecutorFactory

from ..read.records import ADDED, DATA, DELETED, ManifestEntry, read_entries
from ..read.snapshots import EncryptedSnapshot
from .conflicts import Changes, ConflictError, Read, find_conflict
from .view import TableView


def check_unchanged(read: Read | None, start: EncryptedSnapshot | None, view: TableView) -> None:
    """Raise ValidationException when what a change has read in the snapshot ``start`` is not so in
    the view's any more, as the table's isolation level says. Nothing read, no conflict."""
    if read is None or view.snapshot == start:
        return
    conflict = find_conflict(
        read,
        changes_since(start, view),
        view.schema,
        view.parsed.isolation_level(read.operation),
    )
    if conflict is not None:
        raise ConflictError(conflict)


def changes_since(start: EncryptedSnapshot | None, view: TableView) -> Iterator[Changes]:
    """Yield what each snapshot of the view's branch after ``start`` changed, the newest first; all
    of them when ``start`` is None, as in a table that was empty.

    Raises ValidationException when the branch's history does not lead back to ``start``: it was
    rolled back, moved or expired. Raises as reading manifests does.
    """
    return (_changes_of(snapshot, view) for snapshot in snapshots_since(start, view))


def snapshots_since(start: EncryptedSnapshot | None, view: TableView) -> list[EncryptedSnapshot]:
    """Return the branch's snapshots after ``start``. Raises ValidationException as
    ``changes_since``."""
    found: list[EncryptedSnapshot] = []
    # Damaged metadata may have snapshots that are each other's parents.
    most = len(view.parsed.snapshots)
    for snapshot in itertools.islice(ancestors_of(view.snapshot, view.parsed), most):
        # A table that was moved has its snapshots under their old ids, with other files.
        if start is not None and snapshot.snapshot_id == start.snapshot_id:
            if snapshot.manifest_list == start.manifest_list:
                return found
            break
        found.append(cast("EncryptedSnapshot", snapshot))
    if start is None:
        return found
    raise ConflictError(
        f"the branch {view.branch!r} does not come from snapshot {start.snapshot_id} any more, "
        "which this change was made for: it was rolled back, moved or expired. Load the table "
        "again and repeat the change"
    )


def _changes_of(snapshot: EncryptedSnapshot, view: TableView) -> Changes:
    number = snapshot.snapshot_id
    if snapshot.summary is None:
        raise ValidationException(f"snapshot {number} does not say what it has changed")
    manifests = [m for m in snapshot.manifests(view.files) if m.added_snapshot_id == number]

    def own(manifest: ManifestFile) -> list[ManifestEntry]:
        entries = read_entries(manifest, view.files, discard_deleted=False)
        return [entry for entry in entries if entry.snapshot_id == number]

    entries = [e for found in ExecutorFactory.get_or_create().map(own, manifests) for e in found]
    return Changes(
        number,
        snapshot.summary.operation,
        added=[e.file for e in entries if e.status == ADDED and e.file.content == DATA],
        removed=[e.file for e in entries if e.status == DELETED and e.file.content == DATA],
        deletes=[e.file for e in entries if e.status == ADDED and e.file.content != DATA],
    )

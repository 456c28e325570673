"""Makes a snapshot from the files that a change adds and removes.

    FileChange   added, replaced, deletes      -> new manifests  ---+
                 removed                                            |
    TableView    manifests with removed files  -> rewritten ones ---+-> merged --> manifest list
                 all other manifests           -> kept           ---+                   |
                                                                            updates to commit:
                                                                       keys, snapshot, branch

A ``SnapshotProducer`` belongs to one change and is used for all attempts to commit it. The
snapshot's ID stays the same, so that a commit that succeeded unnoticed is recognised, and the
manifests of added files are written once. All that depends on the table's version is made again:
row IDs, sequence numbers, rewritten manifests, and the manifest list under a fresh key. This
follows Java's ``SnapshotProducer``, ``MergingSnapshotProducer`` and ``ManifestMergeManager``. It
does not know rows, filters and catalogs.
"""

from __future__ import annotations

import itertools
import secrets
import threading
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ...errors import MetadataIntegrityError
from ...host.pools import CancellingPool
from ...keys.manager import EncryptionManager, now_ms
from ..read.ahead import read_ahead
from ..read.pruning import PartitionsOfFiles
from ..read.records import ADDED, DATA, DELETED, ContentFile, ManifestEntry, read_entries
from ..read.snapshots import EncryptedManifest
from ..spec.constants import MAIN_BRANCH
from ..spec.properties import number_in
from ..spec.table_keys import with_own_kek
from ..storage.output import TableOutput
from ..storage.workers import pool_size
from .conflicts import ConflictError, Read
from .manifests import (
    DATA_MANIFEST,
    DEFAULT_TARGET_SIZE,
    DELETE_MANIFEST,
    NewManifests,
    NewSnapshot,
    schema_of_spec,
    write_manifest_list,
    write_manifests,
)
from .summary import SummaryBuilder
from .view import TableView

Update = dict[str, Any]

_CODEC = "write.manifest.compression-codec"
_MERGE_ENABLED = "commit.manifest-merge.enabled"
_MERGE_MIN_COUNT = "commit.manifest.min-count-to-merge"
_MERGE_TARGET_SIZE = "commit.manifest.target-size-bytes"
_DEFAULT_MIN_COUNT = 100
# How many bytes of manifests are read or written at once; decoded, they take several times as much.
_AT_ONCE = 32 << 20


@dataclass(frozen=True, slots=True)
class FileChange:
    """The files that a snapshot adds and removes.

    ``added`` are data files with new rows. ``replaced`` are entries of files with rows or deletes
    that the table has already; they have the sequence number and first row ID of the files that
    they replace. ``deletes`` are new deletion vectors. ``removed`` are the entries of removed files
    of any content. If ``reseals`` is true, plaintext manifests are encrypted. If ``keeps_rows`` is
    true, the table has the same rows before and after. If ``forgets_removed`` is true, manifests
    that list files which earlier snapshots have removed are rewritten without these. ``read`` is
    what others must not have changed meanwhile; None if the change has read nothing, as an append.
    """

    added: Sequence[ContentFile] = ()
    replaced: Sequence[ManifestEntry] = ()
    deletes: Sequence[ContentFile] = ()
    removed: Sequence[ManifestEntry] = ()
    reseals: bool = False
    keeps_rows: bool = False
    forgets_removed: bool = False
    read: Read | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing changes."""
        listed = self.added or self.replaced or self.deletes or self.removed
        return not (listed or self.reseals or self.forgets_removed)

    @property
    def operation(self) -> str:
        """The ``operation`` of the snapshot's summary, as the specification defines it."""
        if self.replaced or self.reseals or self.keeps_rows or self.forgets_removed:
            return "replace"
        if not (self.removed or self.deletes):
            return "append"
        return "overwrite" if self.added else "delete"


@dataclass(frozen=True, slots=True)
class _Rewrite:
    """A manifest of the head that is rewritten, encrypted, with the files of the identities
    ``removed`` as deleted."""

    manifest: EncryptedManifest
    removed: Collection[tuple[str, int | None]]

    @property
    def is_emptied(self) -> bool:
        """Whether the manifest loses all its files."""
        return len(self.removed) == self.manifest.live_files_count


# Manifests that become one.
_Group: TypeAlias = "Sequence[EncryptedManifest | _Rewrite]"


class SnapshotProducer:
    """Writes the manifests and manifest lists of one snapshot to ``output``, for each attempt to
    commit it. ``properties`` are the caller's own for the snapshot's summary."""

    def __init__(self, output: TableOutput, properties: Mapping[str, str] | None = None) -> None:
        self.snapshot_id = secrets.randbits(63) or 1
        self.commit_uuid = uuid.uuid4()
        self._output = output
        self._properties = dict(properties or {})
        self._attempts = itertools.count(1)
        self._numbers = itertools.count(0)
        self._lock = threading.Lock()
        self._written: list[str] = []
        self._used: set[str] = set()
        self._added: tuple[Any, list[EncryptedManifest]] | None = None

    def produce(self, view: TableView, change: FileChange) -> list[Update]:
        """Write the manifests and manifest list of ``change``, based on ``view``; return the
        updates to commit: keys, snapshot and branch. Raises ConflictError if a file to remove is
        not in the branch's head any more, or if the table does not have the partition spec or sort
        order of an added file any more; and what reading and writing raises."""
        if change.reseals:
            view = view.exposed()
        _check_counters(view)
        check_definitions(view, change.added)
        kept, rewritten = self._without(view, change)
        new = self._added_manifests(view, change)
        new += self._write(view, _as_added(change.deletes, self), DELETE_MANIFEST)
        for content in (DATA_MANIFEST, DELETE_MANIFEST):
            part = [e for e in change.replaced if _manifest_content(e.file) == content]
            new += self._write(view, part, content)
        manifests, replaced = self._merged(view, [*new, *rewritten, *kept])
        self._used = {manifest.manifest_path for manifest in manifests}
        created = sum(m.added_snapshot_id == self.snapshot_id for m in manifests)
        new_snapshot = NewSnapshot(
            snapshot_id=self.snapshot_id,
            parent_snapshot_id=None if view.snapshot is None else view.snapshot.snapshot_id,
            sequence_number=view.metadata.get("last-sequence-number", 0) + 1,
            first_row_id=view.metadata.get("next-row-id", 0),
        )
        path = view.locations.new_metadata_location(
            f"snap-{self.snapshot_id}-{next(self._attempts)}-{self.commit_uuid}.avro"
        )
        self._written.append(path)
        self._used.add(path)
        manager = view.manager
        if view.branch != MAIN_BRANCH and view.branch not in view.committed_refs:
            # Others do not know the new branch yet, and may remove keys that it needs.
            manager = with_own_kek(manager)
        key_metadata, next_row_id = write_manifest_list(
            self._output, path, new_snapshot, manifests, manager
        )
        key_id = manager.add_manifest_list_key(key_metadata)
        snapshot: dict[str, Any] = {
            "sequence-number": new_snapshot.sequence_number,
            "snapshot-id": self.snapshot_id,
            "parent-snapshot-id": new_snapshot.parent_snapshot_id,
            "timestamp-ms": max(now_ms(), view.metadata.get("last-updated-ms", 0)),
            "summary": self._summary(view, change, created, len(manifests) - created, replaced),
            "manifest-list": path,
            "schema-id": view.metadata["current-schema-id"],
            "first-row-id": new_snapshot.first_row_id,
            "added-rows": next_row_id - new_snapshot.first_row_id,
            "key-id": key_id,
        }
        if view.snapshot is None:
            del snapshot["parent-snapshot-id"]
        return [
            *key_updates(manager, key_id),
            {"action": "add-snapshot", "snapshot": snapshot},
            *self._branch_updates(view),
        ]

    def _branch_updates(self, view: TableView) -> list[Update]:
        if view.branch is None:
            return []
        # The branch's own settings stay: how long it and its snapshots are kept.
        ref = (view.metadata.get("refs") or {}).get(view.branch) or {"type": "branch"}
        target = {"ref-name": view.branch, "snapshot-id": self.snapshot_id}
        return [{"action": "set-snapshot-ref", **ref, **target}]

    def forget(self) -> None:
        """Forget the last attempt, because there is nothing to commit: all manifests are
        ``left_over``."""
        self._used = set()

    @property
    def left_over(self) -> list[str]:
        """The locations of manifests and manifest lists that the last attempt does not use."""
        return [path for path in self._written if path not in self._used]

    # -- manifests

    def _without(
        self, view: TableView, change: FileChange
    ) -> tuple[list[EncryptedManifest], list[_Rewrite]]:
        """Return the head's manifests that are kept, and those to rewrite because they list removed
        files. Raises ConflictError if a file is in none."""
        wanted = {entry.file.identity: entry.file for entry in change.removed}
        contents = {_manifest_content(entry.file) for entry in change.removed}
        partitions = PartitionsOfFiles(view.specs, view.parsed.schemas)
        for entry in change.removed:
            partitions.add(entry.file)
        # Readers do not need a manifest that lists only deleted files.
        manifests = [manifest for manifest in view.manifests if manifest.live_files_count]

        def is_changed(manifest: EncryptedManifest) -> bool:
            forgets = change.forgets_removed and lists_removed_files(manifest)
            return manifest.is_plaintext or forgets

        def may_list(manifest: EncryptedManifest) -> bool:
            return manifest.content in contents and partitions.may_be_in(manifest)

        def listed_in(manifest: EncryptedManifest) -> frozenset[tuple[str, int | None]]:
            entries = read_entries(manifest, view.files)
            return frozenset(entry.file.identity for entry in entries) & wanted.keys()

        # All of them are searched, because a table may have a file twice.
        searched = [m for m in manifests if may_list(m) or is_changed(m)]
        found = read_ahead(listed_in, searched, _length, _AT_ONCE, view.workers)
        listed = {m.manifest_path: here for m, here in zip(searched, found, strict=True)}
        kept: list[EncryptedManifest] = []
        rewritten: list[_Rewrite] = []
        for manifest in manifests:
            here = listed.get(manifest.manifest_path, frozenset())
            if here or is_changed(manifest):
                rewritten.append(_Rewrite(manifest, here))
            else:
                kept.append(manifest)
        gone = frozenset().union(*listed.values())
        missing = [file for identity, file in wanted.items() if identity not in gone]
        if missing:
            raise ConflictError(
                f"{len(missing)} files to be removed are not in the branch {view.branch!r} any "
                f"more, for example {missing[0].file_path}: another writer has rewritten or "
                "deleted them. Nothing was committed. Load the table again and repeat the change"
            )
        return kept, rewritten

    def _added_manifests(self, view: TableView, change: FileChange) -> list[EncryptedManifest]:
        """Return the manifests of the added data files. They are written at the first attempt, and
        again only if the files or the current schema have changed."""
        if not change.added:
            return []
        paths = tuple(file.file_path for file in change.added)
        made_for = view.metadata["current-schema-id"], paths
        if self._added is None or self._added[0] != made_for:
            entries = _as_added(change.added, self)
            self._added = made_for, self._write(view, entries, DATA_MANIFEST)
        return list(self._added[1])

    def _write(
        self, view: TableView, entries: Iterable[ManifestEntry], content: int
    ) -> list[EncryptedManifest]:
        """Write manifests of these entries, at least one for each partition spec."""
        manifests = []
        by_spec = sorted(entries, key=lambda entry: entry.file.spec_id)
        for spec_id, group in itertools.groupby(by_spec, key=lambda entry: entry.file.spec_id):
            manifests += self._write_of_spec(view, group, content, spec_id)
        return manifests

    def _write_of_spec(
        self, view: TableView, entries: Iterable[ManifestEntry], content: int, spec_id: int
    ) -> list[EncryptedManifest]:
        """Write manifests of these entries, which have the same partition spec."""

        def new_location() -> str:
            with self._lock:
                name = f"{self.commit_uuid}-m{next(self._numbers)}.avro"
            location = view.locations.new_metadata_location(name)
            self._written.append(location)
            return location

        target_size = number_in(view.properties, _MERGE_TARGET_SIZE, DEFAULT_TARGET_SIZE)
        spec = view.specs[spec_id]
        schema = schema_of_spec(spec, view.parsed.schemas)
        new = NewManifests(
            output=self._output,
            manager=view.manager,
            spec=spec,
            schema=schema,
            schema_json=view.schema_json(schema.schema_id),
            snapshot_id=self.snapshot_id,
            content=content,
            codec=view.properties.get(_CODEC, "gzip"),
        )
        return write_manifests(new, new_location, entries, target_size)

    def _merged(
        self, view: TableView, manifests: list[EncryptedManifest | _Rewrite]
    ) -> tuple[list[EncryptedManifest], int]:
        """Merge small manifests, and rewrite those to rewrite, several at once. Return the
        snapshot's manifests, and how many of the head's manifests they replace."""
        groups: list[_Group] = [[manifest] for manifest in manifests]
        if view.properties.get(_MERGE_ENABLED, "true").lower() != "false":
            groups = list(_to_merge(view, manifests))

        def is_written(group: _Group) -> bool:
            return len(group) > 1 or isinstance(group[0], _Rewrite)

        def write(group: _Group) -> list[EncryptedManifest]:
            entries = (entry for manifest in group for entry in self._entries(view, manifest))
            first = _manifest(group[0])
            return self._write_of_spec(view, entries, first.content, first.partition_spec_id)

        def size(group: _Group) -> int:
            return sum(map(_length, group))

        new = [group for group in groups if is_written(group)]
        replaced = sum(
            _manifest(m).added_snapshot_id != self.snapshot_id for group in new for m in group
        )
        # If one fails, the others end before the files of this attempt are deleted.
        with CancellingPool(min(pool_size(view.workers), len(new) or 1), "ags1-manifests") as pool:
            written = read_ahead(write, new, size, _AT_ONCE, pool)
            result = [
                manifest
                for group in groups
                for manifest in (next(written) if is_written(group) else map(_manifest, group))
            ]
        return result, replaced

    def _entries(
        self, view: TableView, source: EncryptedManifest | _Rewrite
    ) -> Iterator[ManifestEntry]:
        """Yield a manifest's entries for another manifest that this snapshot writes."""
        manifest = _manifest(source)
        removed = source.removed if isinstance(source, _Rewrite) else ()
        for entry in read_entries(manifest, view.files, discard_deleted=False):
            if manifest.is_plaintext:
                # It is not authenticated, so its bytes are not copied.
                entry = entry.replace(data_file=entry.file.replace())
            if entry.file.identity in removed and entry.status != DELETED:
                yield entry.deleted(self.snapshot_id)
            elif entry.snapshot_id == self.snapshot_id:
                # This snapshot has added the file. The commit decides what the entry inherits.
                if entry.status == ADDED and manifest.added_snapshot_id == self.snapshot_id:
                    number = entry.sequence_number
                    number = None if number == manifest.sequence_number else number
                    entry = entry.replace(sequence_number=number, file_sequence_number=None)
                yield entry
            elif entry.status != DELETED:
                yield entry.existing()

    # -- the rest

    def _summary(
        self, view: TableView, change: FileChange, created: int, kept: int, replaced: int
    ) -> dict[str, str]:
        summary = SummaryBuilder(view.specs, view.schema)
        for file in (*change.added, *change.deletes, *(entry.file for entry in change.replaced)):
            summary.add(file)
        for entry in change.removed:
            summary.remove(entry.file)
        summary.manifests(created=created, kept=kept, replaced=replaced)
        parent = view.snapshot
        previous = None
        if parent is not None and parent.summary is not None:
            previous = parent.summary.additional_properties
        return summary.build(change.operation, previous, self._properties)


def _check_counters(view: TableView) -> None:
    """Raise MetadataIntegrityError if the metadata's last sequence number or next row ID is less
    than those of the head's manifests. The manifests are authenticated, but the metadata may not
    be. With too low numbers, deletes would not apply, and row IDs would be assigned twice."""
    number = view.metadata.get("last-sequence-number", 0)
    next_row_id = view.metadata.get("next-row-id", 0)
    for manifest in view.manifests:
        first, rows = manifest.first_row_id, manifest.live_rows_count
        has_later_ids = first is not None and first + rows > next_row_id
        if (manifest.sequence_number or 0) > number or has_later_ids:
            raise MetadataIntegrityError(
                "the metadata's last-sequence-number or next-row-id is less than that of its "
                "manifests: the metadata was changed",
                file=manifest.manifest_path,
            )


def check_definitions(view: TableView, added: Iterable[ContentFile]) -> None:
    """Raise ConflictError if another writer has removed the partition spec or sort order of a new
    file. (Java does not check this; then its snapshot cannot be read.) A removed schema does no
    harm, because files identify columns by IDs."""
    orders = {order["order-id"] for order in view.metadata.get("sort-orders") or ()} | {0, None}
    for file in added:
        if file.spec_id in view.specs and file.sort_order_id in orders:
            continue
        what = f"partition spec {file.spec_id}"
        if file.spec_id in view.specs:
            what = f"sort order {file.sort_order_id}"
        raise ConflictError(
            f"Cannot find {what} for data file: {file.file_path}. Another writer has removed it "
            "from the table since the file was written: nothing was committed. Load the table "
            "again and repeat the change"
        )


def key_updates(manager: EncryptionManager, key_id: str) -> list[Update]:
    """Return the updates that add a manifest list's key and its KEK. The KEK is added even if the
    table has it, which changes nothing: a catalog may apply the updates to newer metadata, from
    which a rotation has removed the KEK."""
    entries = {key.key_id: key for key in manager.encryption_keys}
    key = entries[key_id]
    keys = [entries[key.encrypted_by_id or ""], key]
    return [{"action": "add-encryption-key", "encryption-key": k.to_dict()} for k in keys]


def _as_added(files: Iterable[ContentFile], producer: SnapshotProducer) -> list[ManifestEntry]:
    return [ManifestEntry(ADDED, producer.snapshot_id, None, None, file) for file in files]


def _manifest_content(file: ContentFile) -> int:
    return DATA_MANIFEST if file.content == DATA else DELETE_MANIFEST


def lists_removed_files(manifest: EncryptedManifest) -> bool:
    """Return whether a manifest may list files that a snapshot has removed. Such an entry still has
    the bounds of the file's columns."""
    return manifest.deleted_files_count != 0


def _manifest(manifest: EncryptedManifest | _Rewrite) -> EncryptedManifest:
    return manifest.manifest if isinstance(manifest, _Rewrite) else manifest


def _length(manifest: EncryptedManifest | _Rewrite) -> int:
    return _manifest(manifest).manifest_length


def _to_merge(
    view: TableView, manifests: Sequence[EncryptedManifest | _Rewrite]
) -> Iterator[_Group]:
    """Yield groups of manifests; the manifests of a group become one. The table's properties
    decide. Unlike in Java, those that lose all their files become one: nobody reads it."""
    min_count = number_in(view.properties, _MERGE_MIN_COUNT, _DEFAULT_MIN_COUNT)
    target = number_in(view.properties, _MERGE_TARGET_SIZE, DEFAULT_TARGET_SIZE)

    def kind(manifest: EncryptedManifest | _Rewrite) -> tuple[int, int]:
        one = _manifest(manifest)
        return one.content, one.partition_spec_id

    for _, of_kind in itertools.groupby(sorted(manifests, key=kind), key=kind):
        groups = _packed_from_the_end(list(of_kind), target)
        if len(groups[0]) < min_count:
            few = groups.pop(0)
            emptied = [m for m in few if isinstance(m, _Rewrite) and m.is_emptied]
            yield from ([manifest] for manifest in few if manifest not in emptied)
            if emptied:
                yield emptied
        yield from groups


def _packed_from_the_end(
    manifests: Sequence[EncryptedManifest | _Rewrite], target: int
) -> list[list[EncryptedManifest | _Rewrite]]:
    """Return groups of neighbouring manifests of up to ``target`` bytes, filled from the last
    (oldest) manifest on."""
    groups: list[list[EncryptedManifest | _Rewrite]] = []
    size = 0
    for manifest in reversed(manifests):
        length = _length(manifest)
        if groups and size + length <= target:
            groups[-1].insert(0, manifest)
            size += length
        else:
            groups.append([manifest])
            size = length
    return groups[::-1]

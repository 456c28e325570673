"""Snapshots: from files that come and go to manifests, a manifest list and the updates to commit.

A ``SnapshotProducer`` belongs to one change of a table and lives through all attempts to commit it:
the snapshot's id stays, so that a commit that landed unnoticed is recognised, and the manifests of
added files are written once. All that depends on the version built upon is made anew: row ids,
sequence numbers, the manifests that lose files, and the manifest list, under a fresh key.
Follows Java's ``SnapshotProducer``, ``MergingSnapshotProducer`` and ``ManifestMergeManager``.
Knows nothing of rows, filters and catalogs.
"""

from __future__ import annotations

import functools
import itertools
import secrets
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyiceberg.table.locations import LocationProvider

from ...errors import MetadataIntegrityError
from ...keys.manager import EncryptionManager, now_ms
from ..read.records import ADDED, DATA, DELETED, ContentFile, ManifestEntry, read_entries
from ..read.snapshots import EncryptedManifest
from ..spec.constants import MAIN_BRANCH
from ..spec.table_keys import with_own_kek
from ..storage.output import TableOutput
from .conflicts import ConflictError, Read
from .manifests import DEFAULT_TARGET_SIZE, schema_of_spec, write_manifest_list, write_manifests
from .summary import SummaryBuilder
from .view import TableView

Update = dict[str, Any]

_CODEC = "write.manifest.compression-codec"
_MERGE_ENABLED = "commit.manifest-merge.enabled"
_MERGE_MIN_COUNT = "commit.manifest.min-count-to-merge"
_MERGE_TARGET_SIZE = "commit.manifest.target-size-bytes"
_DEFAULT_MIN_COUNT = 100

_DATA_MANIFEST, _DELETE_MANIFEST = 0, 1


@dataclass(frozen=True, slots=True)
class FileChange:
    """The files that a snapshot adds and removes.

    ``added`` are data files of new rows. ``replaced`` are entries of data files, equality deletes
    or position deletes that hold rows the table has already: their sequence number and first row id
    are those of what they replace. ``deletes`` are new deletion vectors. ``removed`` are entries of
    any content that go. ``reseals``: plaintext manifests are read, and written anew, encrypted.
    ``read`` is what a later version must not have changed, None for a change that goes by nothing,
    as an append.
    """

    added: Sequence[ContentFile] = ()
    replaced: Sequence[ManifestEntry] = ()
    deletes: Sequence[ContentFile] = ()
    removed: Sequence[ManifestEntry] = ()
    reseals: bool = False
    read: Read | None = None

    @property
    def is_empty(self) -> bool:
        return not (self.added or self.replaced or self.deletes or self.removed or self.reseals)

    @property
    def operation(self) -> str:
        """The ``operation`` of the snapshot's summary, as the specification defines them."""
        if self.replaced or self.reseals:
            return "replace"
        if not (self.removed or self.deletes):
            return "append"
        return "overwrite" if self.added else "delete"


@dataclass(frozen=True, slots=True)
class _Rewrite:
    """A manifest of the head that is written anew: without the files of these identities, if any,
    and encrypted."""

    manifest: EncryptedManifest
    gone: Collection[tuple[str, int | None]]


class SnapshotProducer:
    """Writes the manifests and manifest lists of one snapshot, for each attempt to commit it.

    Whatever it writes goes through ``output``.
    """

    def __init__(self, output: TableOutput, properties: Mapping[str, str] | None = None) -> None:
        self.snapshot_id = secrets.randbits(63) or 1
        self.commit_uuid = uuid.uuid4()
        self._output = output
        self._properties = dict(properties or {})
        self._attempts = itertools.count(1)
        self._numbers = itertools.count(0)
        self._written: list[str] = []
        self._used: set[str] = set()
        self._added: tuple[Any, list[EncryptedManifest]] | None = None

    def produce(self, view: TableView, change: FileChange) -> list[Update]:
        """Write the snapshot that makes ``change`` upon ``view``; return the updates to commit:
        keys, snapshot and branch.

        Raises ValidationException when a file to be removed is not in the branch's head any more,
        or a file to be added is of a partition spec or sort order that the table does not have any
        more; and what reading and writing raises.
        """
        if change.reseals:
            view = view.exposed()
        _check_counters(view)
        _check_definitions(view, change.added)
        schema_id = view.metadata["current-schema-id"]
        locations = view.locations
        kept, rewritten = self._without(view, change.removed)
        new = self._added_manifests(view, locations, change)
        new += self._write(view, locations, _as_added(change.deletes, self), _DELETE_MANIFEST)
        new += [
            record
            for deletes, part in _by_content(change.replaced)
            for record in self._write(view, locations, part, deletes)
        ]
        manifests, replaced = self._merged(view, locations, [*new, *rewritten, *kept])
        self._used = {manifest.manifest_path for manifest in manifests}
        created = sum(m.added_snapshot_id == self.snapshot_id for m in manifests)
        parent = view.snapshot
        sequence_number = view.metadata.get("last-sequence-number", 0) + 1
        first_row_id = view.metadata.get("next-row-id", 0)
        path = locations.new_metadata_location(
            f"snap-{self.snapshot_id}-{next(self._attempts)}-{self.commit_uuid}.avro"
        )
        self._written.append(path)
        self._used.add(path)
        manager = view.manager
        if view.branch != MAIN_BRANCH and view.branch not in view.committed_refs:
            # Nobody who takes keys out of the table now would know of the new branch.
            manager = with_own_kek(manager)
        km, next_row_id = write_manifest_list(
            self._output,
            path,
            manifests,
            snapshot_id=self.snapshot_id,
            parent_snapshot_id=None if parent is None else parent.snapshot_id,
            sequence_number=sequence_number,
            first_row_id=first_row_id,
            manager=manager,
        )
        key_id = manager.add_manifest_list_key(km)
        snapshot: dict[str, Any] = {
            "sequence-number": sequence_number,
            "snapshot-id": self.snapshot_id,
            "parent-snapshot-id": None if parent is None else parent.snapshot_id,
            "timestamp-ms": max(now_ms(), view.metadata.get("last-updated-ms", 0)),
            "summary": self._summary(view, change, created, len(manifests) - created, replaced),
            "manifest-list": path,
            "schema-id": schema_id,
            "first-row-id": first_row_id,
            "added-rows": next_row_id - first_row_id,
            "key-id": key_id,
        }
        if parent is None:
            del snapshot["parent-snapshot-id"]
        return [
            *key_updates(manager, key_id),
            {"action": "add-snapshot", "snapshot": snapshot},
            *self._branch_updates(view),
        ]

    def _branch_updates(self, view: TableView) -> list[Update]:
        """Return the update that sets the branch, if there is one, to the snapshot."""
        if view.branch is None:
            return []
        # With what the branch has of its own: how long it and its snapshots are kept.
        ref = (view.metadata.get("refs") or {}).get(view.branch) or {"type": "branch"}
        return [
            {
                "action": "set-snapshot-ref",
                **ref,
                "ref-name": view.branch,
                "snapshot-id": self.snapshot_id,
            }
        ]

    def forget(self) -> None:
        """Need nothing of the last attempt: there is nothing to commit now."""
        self._used = set()

    @property
    def left_over(self) -> list[str]:
        """Manifests and manifest lists that were written and that the last attempt does not use."""
        return [path for path in self._written if path not in self._used]

    # -- manifests

    def _without(
        self, view: TableView, removed: Sequence[ManifestEntry]
    ) -> tuple[list[EncryptedManifest], list[_Rewrite]]:
        """Return the head's manifests that stay, and those to be written anew without the files
        that go."""
        wanted = {entry.file.identity: entry.file for entry in removed}
        found: set[tuple[str, int | None]] = set()
        kept: list[EncryptedManifest] = []
        rewritten: list[_Rewrite] = []
        contents = {_manifest_content(entry.file) for entry in removed}
        for manifest in view.manifests:
            if not manifest.live_files_count:
                # What has only deleted files tells readers nothing that they still need.
                continue
            if manifest.content not in contents and not manifest.is_plaintext:
                kept.append(manifest)
                continue
            # All of them: a file may be in the table twice.
            gone = {e.file.identity for e in read_entries(manifest, view.files)} & wanted.keys()
            if not gone and not manifest.is_plaintext:
                kept.append(manifest)
                continue
            found |= gone
            rewritten.append(_Rewrite(manifest, frozenset(gone)))
        missing = [file for identity, file in wanted.items() if identity not in found]
        if missing:
            raise ConflictError(
                f"{len(missing)} files to be removed are not in the branch {view.branch!r} any "
                f"more, {missing[0].file_path} for one: somebody else has rewritten or deleted them"
            )
        return kept, rewritten

    def _added_manifests(
        self, view: TableView, locations: LocationProvider, change: FileChange
    ) -> list[EncryptedManifest]:
        """Return the manifests of the added data files, written at the first attempt."""
        if not change.added:
            return []
        made_for = (
            view.metadata["current-schema-id"],
            tuple(file.file_path for file in change.added),
        )
        if self._added is None or self._added[0] != made_for:
            entries = _as_added(change.added, self)
            records = self._write(view, locations, entries, _DATA_MANIFEST)
            self._added = made_for, records
        return list(self._added[1])

    def _write(
        self,
        view: TableView,
        locations: LocationProvider,
        entries: Sequence[ManifestEntry],
        content: int,
    ) -> list[EncryptedManifest]:
        target_size = _integer(view.properties, _MERGE_TARGET_SIZE, DEFAULT_TARGET_SIZE)
        schemas = view.parsed.schemas
        records = []
        by_spec = sorted(entries, key=lambda entry: entry.file.spec_id)
        for spec_id, group in itertools.groupby(by_spec, key=lambda entry: entry.file.spec_id):
            spec = view.specs[spec_id]
            schema = schema_of_spec(spec, schemas)
            records += write_manifests(
                self._output,
                functools.partial(self._new_manifest, locations),
                group,
                spec=spec,
                schema=schema,
                schema_json=view.schema_json(schema.schema_id),
                snapshot_id=self.snapshot_id,
                content=content,
                manager=view.manager,
                codec=view.properties.get(_CODEC, "gzip"),
                target_size=target_size,
            )
        return records

    def _new_manifest(self, locations: LocationProvider) -> str:
        path = locations.new_metadata_location(f"{self.commit_uuid}-m{next(self._numbers)}.avro")
        self._written.append(path)
        return path

    def _merged(
        self,
        view: TableView,
        locations: LocationProvider,
        manifests: list[EncryptedManifest | _Rewrite],
    ) -> tuple[list[EncryptedManifest], int]:
        """Return the manifests with many small ones made into few, and how many of the head's are
        gone for it. Those to be written anew are written once, merged or not."""
        groups: Iterable[Sequence[EncryptedManifest | _Rewrite]] = ([m] for m in manifests)
        if view.properties.get(_MERGE_ENABLED, "true").lower() != "false":
            groups = _to_merge(view, manifests)
        result: list[EncryptedManifest] = []
        replaced = 0
        for group in groups:
            if len(group) == 1 and not isinstance(group[0], _Rewrite):
                result.append(group[0])
                continue
            entries = [entry for manifest in group for entry in self._entries(view, manifest)]
            result += self._write(view, locations, entries, _manifest(group[0]).content)
            replaced += sum(_manifest(m).added_snapshot_id != self.snapshot_id for m in group)
        return result, replaced

    def _entries(
        self, view: TableView, source: EncryptedManifest | _Rewrite
    ) -> Iterator[ManifestEntry]:
        """Yield a manifest's entries as they stand in one that this snapshot writes."""
        manifest = _manifest(source)
        gone = source.gone if isinstance(source, _Rewrite) else ()
        for entry in read_entries(manifest, view.files, discard_deleted=False):
            if entry.file.identity in gone and entry.status != DELETED:
                yield entry.deleted(self.snapshot_id)
            elif entry.snapshot_id == self.snapshot_id:
                # Ours: what it inherits, the commit decides.
                if entry.status == ADDED and manifest.added_snapshot_id == self.snapshot_id:
                    entry = _unassigned(entry, manifest)
                yield entry
            elif entry.status != DELETED:
                yield entry.existing()

    # -- the rest

    def _summary(
        self, view: TableView, change: FileChange, created: int, kept: int, replaced: int
    ) -> dict[str, str]:
        summary = SummaryBuilder(view.specs, view.schema)
        for file in (*change.added, *change.deletes):
            summary.add(file)
        for entry in change.replaced:
            summary.add(entry.file)
        for entry in change.removed:
            summary.remove(entry.file)
        summary.manifests(created=created, kept=kept, replaced=replaced)
        parent = view.snapshot
        previous = None
        if parent is not None and parent.summary is not None:
            previous = parent.summary.additional_properties
        return summary.build(change.operation, previous, self._properties)


def _check_counters(view: TableView) -> None:
    """Raise MetadataIntegrityError when the metadata counts sequence numbers or row ids from where
    the head's manifests have been already.

    Those are authentic, and the metadata may not be: a delete of too low a number deletes nothing,
    and row ids would be given twice.
    """
    number = view.metadata.get("last-sequence-number", 0)
    next_row_id = view.metadata.get("next-row-id", 0)
    for manifest in view.manifests:
        first, rows = manifest.first_row_id, manifest.live_rows_count
        if (manifest.sequence_number or 0) > number or (
            first is not None and first + rows > next_row_id
        ):
            raise MetadataIntegrityError(
                "the metadata's last-sequence-number or next-row-id is less than its manifests "
                "have: it was changed",
                file=manifest.manifest_path,
            )


def _check_definitions(view: TableView, added: Iterable[ContentFile]) -> None:
    """Raise ConflictError for a new file of a partition spec, or in a sort order, that another
    writer has removed. (Java does not look again, and its snapshot cannot be read then.) A schema
    may go: files know columns by their ids."""
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
    """Return the updates that add a manifest list's key and its KEK.

    The KEK is added though it is there: to a catalog that applies updates to whatever is current,
    a rotation may have taken it out meanwhile, and a key that is there already changes nothing.
    """
    entries = {key.key_id: key for key in manager.encryption_keys}
    key = entries[key_id]
    keys = [entries[key.encrypted_by_id or ""], key]
    return [{"action": "add-encryption-key", "encryption-key": k.to_dict()} for k in keys]


def _as_added(files: Iterable[ContentFile], producer: SnapshotProducer) -> list[ManifestEntry]:
    return [ManifestEntry(ADDED, producer.snapshot_id, None, None, file) for file in files]


def _unassigned(entry: ManifestEntry, manifest: EncryptedManifest) -> ManifestEntry:
    number = None if entry.sequence_number == manifest.sequence_number else entry.sequence_number
    return entry.replace(sequence_number=number, file_sequence_number=None)


def _manifest_content(file: ContentFile) -> int:
    return _DATA_MANIFEST if file.content == DATA else _DELETE_MANIFEST


def _by_content(entries: Sequence[ManifestEntry]) -> Iterator[tuple[int, list[ManifestEntry]]]:
    for content in (_DATA_MANIFEST, _DELETE_MANIFEST):
        part = [entry for entry in entries if _manifest_content(entry.file) == content]
        if part:
            yield content, part


def _manifest(manifest: EncryptedManifest | _Rewrite) -> EncryptedManifest:
    return manifest.manifest if isinstance(manifest, _Rewrite) else manifest


def _to_merge(
    view: TableView, manifests: Sequence[EncryptedManifest | _Rewrite]
) -> Iterator[Sequence[EncryptedManifest | _Rewrite]]:
    """Yield the manifests that are to be one, as the table's properties say."""
    min_count = _integer(view.properties, _MERGE_MIN_COUNT, _DEFAULT_MIN_COUNT)
    target = _integer(view.properties, _MERGE_TARGET_SIZE, DEFAULT_TARGET_SIZE)

    def kind(manifest: EncryptedManifest | _Rewrite) -> tuple[int, int]:
        one = _manifest(manifest)
        return one.content, one.partition_spec_id

    for _, of_kind in itertools.groupby(sorted(manifests, key=kind), key=kind):
        groups = _packed_from_the_end(list(of_kind), target)
        if len(groups[0]) < min_count:
            yield from ([manifest] for manifest in groups.pop(0))
        yield from groups


def _packed_from_the_end(
    manifests: Sequence[EncryptedManifest | _Rewrite], target: int
) -> list[list[EncryptedManifest | _Rewrite]]:
    """Return neighbours grouped up to ``target`` bytes, filled from the oldest on."""
    groups: list[list[EncryptedManifest | _Rewrite]] = []
    size = 0
    for manifest in reversed(manifests):
        length = _manifest(manifest).manifest_length
        if groups and size + length <= target:
            groups[-1].insert(0, manifest)
            size += length
        else:
            groups.append([manifest])
            size = length
    return groups[::-1]


def _integer(properties: Mapping[str, str], name: str, default: int) -> int:
    value = properties.get(name)
    if value is None:
        return default
    try:
        return int(value)
    except ValueError:
        raise ValueError(f"the table's {name!r} is not a number: {value!r}") from None

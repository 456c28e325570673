"""``Migration`` turns an unencrypted table into an encrypted one of format version 3, in one
commit.

Data files are rewritten one for one and keep their rows, row IDs and sequence numbers. Position
deletes of version 2 become deletion vectors. The commit upgrades the table, names its master key,
adds one snapshot with all files, and removes the old snapshots. Their files are not encrypted, and
an encrypted table has no such snapshots. Until the commit, the table does not change. The old files
stay. ``plaintext_files`` lists them, so that they can be deleted after the new table is verified.
This follows the Iceberg specification, "Version 3" and "Row Lineage". It does not know catalogs.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from pyiceberg.exceptions import ValidationException
from pyiceberg.io import FileIO
from pyiceberg.table.locations import LocationProvider
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil

from ...errors import Ags1Error, MetadataIntegrityError
from ...keys.manager import (
    DATA_KEY_LENGTH,
    TABLE_KEY_ID,
    EncryptionManager,
    now_ms,
)
from ..commit.updates import apply_updates
from ..read.metadata import FORMAT_VERSION
from ..read.records import DATA, ContentFile, read_entries
from ..spec.column_types import with_types
from ..spec.constants import AVRO_MAGIC, MAIN_BRANCH, ORC_MAGIC, PARQUET_MAGIC, PUFFIN_MAGIC
from ..storage.locations import file_identity
from ..storage.output import TableOutput
from ..storage.table_files import TableFiles
from ..storage.table_folders import TableFolders
from ..write.reencryption import Done, RewriteExecutor
from ..write.snapshot import FileChange, SnapshotProducer
from ..write.summary import SummaryBuilder
from ..write.view import TableView
from .expire import GC_ENABLED
from .journal import Journal
from .plain_snapshots import plain_manifests, plain_reader
from .rewrite import RewritePlan, Rewriter, plan_rewrite, read_snapshot

_THREADS = 4
_LOOKING_THREADS = 16
# The first bytes of unencrypted Parquet, Avro, Puffin and ORC files.
_BEGINNINGS = (PARQUET_MAGIC, AVRO_MAGIC, PUFFIN_MAGIC, ORC_MAGIC)

_log = logging.getLogger(__name__)

Update = dict[str, Any]


@dataclass(frozen=True, slots=True)
class MigrationPlan:
    """What a migration does. ``rewrite`` has the files, ``rows`` is the number of rows in the data
    files with the deleted ones, ``refs`` are the branches and tags to remove."""

    rewrite: RewritePlan
    rows: int
    refs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MigrationCommit:
    """The commit of a migration, in the REST specification's form. ``key_id`` is the table's new
    master key. ``snapshot_id`` is None if the table has no files."""

    updates: list[Update] = field(repr=False)
    requirements: list[Update]
    key_id: str
    snapshot_id: int | None
    rows: int


class Migration:
    """Makes the files and the commit that encrypt an unencrypted table.

    ``output`` writes to the table's storage. ``keys`` makes the table's new keys: it has the KMS,
    the table's new master key and no key yet. If ``drop_refs`` is true, branches and tags other
    than main are removed; if not, a table that has some is refused. ``executor`` rewrites the
    files, by default threads. ``on_done`` is called after each file with its old and new record,
    also for files that an earlier run has rewritten.

    If a run is killed, the next one for the same table and key continues its work: a journal beside
    the metadata has the finished files. So if the migration fails, only the files in ``left_over``
    may be deleted.
    """

    def __init__(
        self,
        output: TableOutput,
        keys: EncryptionManager,
        *,
        drop_refs: bool = False,
        executor: RewriteExecutor | None = None,
        on_done: Done | None = None,
    ) -> None:
        self._output = output
        self._io = output.io
        self._manager = keys
        self._drop_refs = drop_refs
        self._on_done = on_done
        self._rewriter = Rewriter(output, executor, self._note)
        self._producer: SnapshotProducer | None = None
        self._journal: Journal | None = None
        self._vector_files: set[str] = set()
        self._used: set[str] = set()

    def plan(self, metadata: Mapping[str, Any]) -> MigrationPlan:
        """Return what a migration of the table with this metadata does. Writes nothing.

        Raises ValueError if the table is encrypted already, or has other branches and tags than
        main and ``drop_refs`` is false; NotImplementedError for ORC files and for a snapshot
        without a manifest list; what reading manifests and delete files raises.
        """
        refs = tuple(name for name in _refs(metadata) if name != MAIN_BRANCH)
        _check(metadata, () if self._drop_refs else refs)
        snapshot = _current_snapshot(metadata)
        if snapshot is None:
            return MigrationPlan(RewritePlan(), 0, refs)
        parsed = _parsed(metadata)
        files = TableFiles(self._io, self._manager)
        manifests = plain_manifests(snapshot, self._io)
        contents = read_snapshot(manifests, files, parsed, plain_reader(files, parsed))
        plan = plan_rewrite(contents, contents.entries.keys())
        rows = sum(e.file.record_count for e in plan.files if e.file.content == DATA)
        return MigrationPlan(plan, rows, refs)

    def produce(self, metadata: Mapping[str, Any]) -> MigrationCommit:
        """Rewrite the files that are not rewritten yet; return the commit upon this metadata.

        If another commit comes first, call this again with the new metadata. It does not rewrite a
        file twice. Raises as ``plan``; what ``rewrite_file`` raises (MetadataIntegrityError if a
        file has not as many rows as its manifest says); KmsError; OSError.
        """
        plan = self.plan(metadata)
        prefix = self._prefix(metadata)
        view = self._view(metadata, prefix)
        key_id, requirements = self._manager.table_key_id, _requirements(metadata)
        if plan.rewrite.is_empty:
            return MigrationCommit(prefix, requirements, key_id, None, 0)
        locations = view.locations
        old = [entry.file for entry in plan.rewrite.files]
        self._resume(view, locations, old)
        source = TableFiles(self._io, self._manager)
        try:
            added, vectors = self._rewriter.apply(plan.rewrite, source, locations)
        finally:
            if self._journal is not None:
                self._journal.flush()
        self._used = {entry.file.file_path for entry in vectors}
        self._vector_files |= self._used
        rows = sum(entry.file.record_count for entry in added if entry.file.content == DATA)
        if rows != plan.rows:
            raise MetadataIntegrityError(
                f"{rows} rows were rewritten, but the table has {plan.rows}: nothing was committed"
            )
        if self._producer is None:
            self._producer = SnapshotProducer(self._output)
        change = _WholeTable(replaced=[*added, *vectors])
        produced = self._producer.produce(view, change)
        for update in produced:
            if update["action"] == "add-snapshot":
                old_files = [*old, *(entry.file for entry in plan.rewrite.superseded)]
                new_files = [entry.file for entry in change.replaced]
                _summarize(update["snapshot"], view, old_files, new_files)
        return MigrationCommit(
            prefix + produced, requirements, key_id, self._producer.snapshot_id, rows
        )

    def finish(self) -> None:
        """Delete the journal. Call this after the migration is certainly committed."""
        if self._journal is not None:
            self._journal.remove()

    @property
    def left_over(self) -> list[str]:
        """Written metadata files and deletion vectors that the last produced commit does not use.
        Rewritten data files are not among them, because the next run may need them."""
        unused = sorted(self._vector_files - self._used)
        return unused + ([] if self._producer is None else list(self._producer.left_over))

    def _resume(
        self, view: TableView, locations: LocationProvider, files: list[ContentFile]
    ) -> None:
        if self._journal is not None:
            return
        self._journal = Journal(
            self._output,
            f"{locations.metadata_path}/migration",
            str(view.metadata.get("table-uuid")),
            self._manager,
        )
        self._journal.prepare()
        finished = self._journal.finished(files)
        self._rewriter.rewritten.update(finished)
        if self._on_done is not None:
            for file in files:
                if file.identity in finished:
                    self._on_done(file, finished[file.identity])

    def _note(self, old: ContentFile, new: ContentFile) -> None:
        assert self._journal is not None
        self._journal.add(old, new)
        if self._on_done is not None:
            self._on_done(old, new)

    def _prefix(self, metadata: Mapping[str, Any]) -> list[Update]:
        """Return the updates that make the table encrypted and remove its snapshots."""
        updates: list[Update] = []
        if metadata["format-version"] < FORMAT_VERSION:
            updates.append({"action": "upgrade-format-version", "format-version": FORMAT_VERSION})
        updates.append(
            {
                "action": "set-properties",
                "updates": {
                    TABLE_KEY_ID: self._manager.table_key_id,
                    DATA_KEY_LENGTH: str(self._manager.data_key_length),
                },
            }
        )
        for name in ("statistics", "partition-statistics"):
            for snapshot_id in sorted({e["snapshot-id"] for e in metadata.get(name) or ()}):
                updates.append({"action": f"remove-{name}", "snapshot-id": snapshot_id})
        for name in _refs(metadata):
            updates.append({"action": "remove-snapshot-ref", "ref-name": name})
        gone = [snapshot["snapshot-id"] for snapshot in metadata.get("snapshots") or ()]
        if gone:
            updates.append({"action": "remove-snapshots", "snapshot-ids": gone})
        return updates

    def _view(self, metadata: Mapping[str, Any], prefix: list[Update]) -> TableView:
        empty = apply_updates(dict(metadata), prefix, now_ms=now_ms())
        keys = self._manager
        # A manager of its own, because the keys of an attempt that fails must not be committed.
        attempt = EncryptionManager(keys.kms, keys.table_key_id, (), keys.data_key_length)
        return TableView(empty, TableFiles(self._io, attempt))


class _WholeTable(FileChange):
    """A change that replaces all files of a table."""

    @property
    def operation(self) -> str:
        return "overwrite"


def _summarize(
    snapshot: dict[str, Any], view: TableView, old: list[ContentFile], new: list[ContentFile]
) -> None:
    """Make the snapshot's operation ``replace``: readers of changes skip such snapshots."""
    before = SummaryBuilder(view.specs, view.schema)
    after = SummaryBuilder(view.specs, view.schema)
    for file in old:
        before.add(file)
        after.remove(file)
    for file in new:
        after.add(file)
    snapshot["summary"] = {
        **after.build("replace", before.build("append", None)),
        **{k: v for k, v in snapshot["summary"].items() if k.startswith("manifests-")},
    }


@dataclass(frozen=True, slots=True)
class PlaintextFiles:
    """The files of the snapshots of an unencrypted table: data and delete files, manifests,
    manifest lists and statistics, but not its metadata.json files.

    ``inside`` are those that can be deleted. ``outside`` are those outside the table's own folders,
    which may be another table's, and those that do not begin like a file of a table.
    ``unreadable`` are files that could not be read, so the files that they name are not listed.
    ``folders`` are the table's folders.
    """

    inside: tuple[str, ...]
    outside: tuple[str, ...]
    unreadable: tuple[str, ...]
    folders: TableFolders = field(repr=False, compare=False)

    def delete(
        self,
        output: TableOutput,
        *,
        threads: int = _THREADS,
        progress: Callable[[int, int], None] | None = None,
    ) -> tuple[str, ...]:
        """Delete the files ``inside``; return those that could not be deleted. ``progress`` is
        called with the number of deleted files and the number of all."""
        failed = []

        def delete(location: str) -> str | None:
            # A folder may have become a link since it was looked at.
            if not self.folders.has(location):
                _log.warning("%s is left behind: it is not in the table's folders", location)
                return location
            try:
                output.delete(location)
            except Exception as error:
                _log.warning("%s is left behind: %s", location, type(error).__name__)
                return location
            return None

        with ThreadPoolExecutor(threads) as pool:
            for done, location in enumerate(pool.map(delete, self.inside), 1):
                if location is not None:
                    failed.append(location)
                if progress is not None:
                    progress(done, len(self.inside))
        return tuple(failed)


def plaintext_files(
    before: Mapping[str, Any], after: Mapping[str, Any], files: TableFiles, folders: TableFolders
) -> PlaintextFiles:
    """Return the unencrypted files that a migration has left. Reads manifests; deletes nothing.

    ``before`` is the metadata that was migrated. ``after`` is the metadata of the encrypted table
    at any later time, and ``files`` opens its files. The result never has a file that ``after``
    reaches. ``folders`` are the table's folders. If the manifest list of a snapshot is outside
    them, its files are not listed, because anybody may have written it.

    Raises ValueError if ``before`` and ``after`` are not the same table before and after its
    migration; ValidationException if ``gc.enabled`` is not true, because other tables may have
    files of such a table too; and what reading the encrypted table's manifests raises.
    """
    if (after.get("properties") or {}).get(TABLE_KEY_ID) is None:
        raise ValueError(
            "the table is not encrypted, so it needs its unencrypted files: migrate it first"
        )
    if before.get("table-uuid") not in (None, after["table-uuid"]):
        raise ValueError(
            "the metadata before and after the migration is of two tables, "
            f"{before['table-uuid']} and {after['table-uuid']}: pass that of one"
        )
    properties = dict(before.get("properties") or {})
    if properties.get(GC_ENABLED, "true").lower() != "true":
        raise ValidationException(
            f"the unencrypted files cannot be deleted: the table's property {GC_ENABLED!r} is not "
            "true, so other tables may have them too. Set it to true if no other table has them"
        )
    view = TableView(dict(after), files)
    # Compare real places, because a needed file may also be listed by another name.
    needed = {file_identity(location) for location in _reached(view)}
    inside: dict[str, str] = {}
    outside: dict[str, str] = {}
    unreadable: list[str] = []
    read: set[str] = set()
    for name in ("statistics", "partition-statistics"):
        for entry in before.get(name) or ():
            location = entry["statistics-path"]
            try:
                is_own = folders.has_statistics(location, files)
            except FileNotFoundError:
                continue
            except (Ags1Error, OSError):
                is_own = False
            (inside if is_own else outside)[file_identity(location)] = location
    for snapshot in before.get("snapshots") or ():
        for location in _plain_files(snapshot, files.inner, folders, read, unreadable):
            (inside if folders.has(location) else outside)[file_identity(location)] = location
    for where in needed & inside.keys():
        del inside[where]
    with ThreadPoolExecutor(_LOOKING_THREADS) as pool:
        found = pool.map(lambda location: _begins_as_tables(location, files), inside.values())
        for where, is_tables in zip(list(inside), found, strict=True):
            if is_tables is None:
                del inside[where]
            elif not is_tables:
                outside[where] = inside.pop(where)
    return PlaintextFiles(
        tuple(inside.values()),
        tuple(
            location for where, location in outside.items() if where not in needed | inside.keys()
        ),
        tuple(unreadable),
        folders,
    )


def _begins_as_tables(location: str, files: TableFiles) -> bool | None:
    """Return whether a file is a regular file and begins like an unencrypted file of a table; None
    if it is missing. This is checked because others may be able to change the plaintext manifests
    that name it."""
    try:
        path = files.local_path(location)
        if path is not None and not stat.S_ISREG(os.lstat(path).st_mode):
            return False
        with closing(files.open_stored(location)) as stream:
            return stream.read(4).startswith(_BEGINNINGS)
    except FileNotFoundError:
        return None
    except (Ags1Error, OSError):
        return False


def _reached(view: TableView) -> Iterator[str]:
    """Yield the locations of all files that the snapshots of an encrypted table reach."""
    read: set[str] = set()
    for snapshot in view.parsed.snapshots:
        yield snapshot.manifest_list
        for manifest in snapshot.manifests(view.files):
            yield manifest.manifest_path
            if manifest.manifest_path not in read:
                read.add(manifest.manifest_path)
                for entry in read_entries(manifest, view.files):
                    yield entry.file.file_path


def _plain_files(
    snapshot: Mapping[str, Any],
    io: FileIO,
    folders: TableFolders,
    read: set[str],
    unreadable: list[str],
) -> Iterator[str]:
    """Yield the files that an unencrypted snapshot reaches, without those of manifests in ``read``.
    If its manifest list is outside the table's folders, yield only that."""
    location = str(snapshot.get("manifest-list"))
    if snapshot.get("manifest-list") is not None and not folders.has(location):
        yield location
        return
    try:
        manifests = plain_manifests(snapshot, io)
    except (OSError, MetadataIntegrityError, NotImplementedError):
        unreadable.append(location)
        return
    yield location
    for manifest in manifests:
        if manifest.manifest_path in read:
            continue
        read.add(manifest.manifest_path)
        try:
            entries = read_entries(manifest, io)
        except (OSError, MetadataIntegrityError, NotImplementedError):
            unreadable.append(manifest.manifest_path)
            continue
        yield manifest.manifest_path
        for entry in entries:
            yield entry.file.file_path


def _check(metadata: Mapping[str, Any], other_refs: tuple[str, ...]) -> None:
    properties = metadata.get("properties") or {}
    if properties.get(TABLE_KEY_ID) or metadata.get("encryption-keys"):
        raise ValueError(
            f"the table is encrypted already: it has {TABLE_KEY_ID!r} or 'encryption-keys'"
        )
    version = metadata.get("format-version")
    if version not in range(1, FORMAT_VERSION + 1):
        raise ValueError(
            f"the table has format version {version}, and only versions 1 to {FORMAT_VERSION} can "
            "be migrated"
        )
    if other_refs:
        raise ValueError(
            f"the table has branches or tags besides main ({', '.join(other_refs)}), which a "
            "migration removes: pass drop_refs=True (--drop-refs) to allow that"
        )


def _refs(metadata: Mapping[str, Any]) -> list[str]:
    refs = metadata.get("refs")
    if refs is None:
        return [] if metadata.get("current-snapshot-id") in (None, -1) else [MAIN_BRANCH]
    return list(refs)


def _current_snapshot(metadata: Mapping[str, Any]) -> Mapping[str, Any] | None:
    current = metadata.get("current-snapshot-id")
    if current in (None, -1):
        return None
    for snapshot in metadata.get("snapshots") or ():
        if snapshot["snapshot-id"] == current:
            found: Mapping[str, Any] = snapshot
            return found
    raise MetadataIntegrityError(
        f"the metadata has no snapshot {current}, which it names as the current one: restore an "
        "earlier metadata file"
    )


def _parsed(metadata: Mapping[str, Any]) -> TableMetadata:
    return TableMetadataUtil.parse_obj(with_types(metadata))


def _requirements(metadata: Mapping[str, Any]) -> list[Update]:
    """Return the requirements of the commit: no other writer has committed to main meanwhile."""
    current = metadata.get("current-snapshot-id")
    requirements: list[Update] = [
        {
            "type": "assert-ref-snapshot-id",
            "ref": MAIN_BRANCH,
            "snapshot-id": None if current in (None, -1) else current,
        }
    ]
    if metadata.get("table-uuid"):
        requirements.insert(0, {"type": "assert-table-uuid", "uuid": metadata["table-uuid"]})
    return requirements

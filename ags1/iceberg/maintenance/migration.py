"""A table in the clear becomes an encrypted one of format version 3, in one commit.

Data files are rewritten one for one with their rows, row ids and sequence numbers; position deletes
of version 2 become deletion vectors. The commit upgrades the table, names its master key, adds one
snapshot with all the files and takes the old snapshots out: what they name is in the clear, and an
encrypted table has no such snapshot. Until then the table is what it was. Old files stay where they
are, to be listed and deleted when the new table has been verified. Follows the Iceberg
specification, "Version 3" and "Row Lineage". Knows nothing of catalogs.
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
    DEFAULT_DATA_KEY_LENGTH,
    TABLE_KEY_ID,
    EncryptionManager,
    now_ms,
)
from ...kms.client import KmsClient
from ..files import TableFiles
from ..home import Home
from ..listing import real_place
from ..metadata import FORMAT_VERSION
from ..writing.entries import DATA, FileRecord, read_entries
from ..writing.output import TableOutput
from ..writing.producing import FileChange, SnapshotProducer, location_provider
from ..writing.reencryption import Done, FileRewriter, RewriteExecutor
from ..writing.summary import SummaryBuilder
from ..writing.updates import apply_updates
from ..writing.view import MAIN, TableView
from .expiry import GC_ENABLED
from .journal import Journal
from .plain_snapshots import PlainReader, plain_manifests
from .rewriting import RewritePlan, plan_rewrite, read_snapshot, write_vectors

_THREADS = 4
_LOOKING_THREADS = 16
# How Parquet, Avro, Puffin and ORC begin in the clear.
_BEGINNINGS = (b"PAR1", b"Obj\x01", b"PFA1", b"ORC")

_log = logging.getLogger(__name__)

Update = dict[str, Any]


@dataclass(frozen=True, slots=True)
class MigrationPlan:
    """What a migration does: ``rewrite`` says which files, ``rows`` how many rows are in the data
    files, deleted ones included. ``refs`` are the branches and tags that go."""

    rewrite: RewritePlan
    rows: int
    refs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MigrationCommit:
    """The one commit of a migration, in the REST specification's form. ``key_id`` is the table's
    master key from then on; ``snapshot_id`` is None for a table without rows."""

    updates: list[Update] = field(repr=False)
    requirements: list[Update]
    key_id: str
    snapshot_id: int | None
    rows: int


class Migration:
    """Makes the files and the commit that encrypt a plain table.

    ``io`` is the table's storage, ``output`` writes to it. ``key_id`` is the master key of ``kms``
    that the table is to be under, ``data_key_length`` (bytes) the size of its keys. ``drop_refs``
    lets branches and tags other than main go, which otherwise are refused. ``threads`` files are
    rewritten at once, None for as many as there are CPUs, or ``executor`` does it; ``on_done`` is
    called after each with its old and new record, also for those that an earlier run has rewritten.

    A run that was killed goes on where it was: another one for the same table and key finds what is
    finished in a journal beside the metadata. So nothing that was written may be discarded when the
    migration fails, except what ``left_over`` names.
    """

    def __init__(
        self,
        io: FileIO,
        output: TableOutput,
        kms: KmsClient,
        key_id: str,
        *,
        data_key_length: int = DEFAULT_DATA_KEY_LENGTH,
        drop_refs: bool = False,
        threads: int | None = None,
        on_done: Done | None = None,
        executor: RewriteExecutor | None = None,
    ) -> None:
        self._io = io
        self._output = output
        self._kms = kms
        self._key_id = key_id
        self._data_key_length = data_key_length
        self._drop_refs = drop_refs
        self._on_done = on_done
        self._manager = self._new_manager()
        self._rewriter = FileRewriter(
            output, threads=threads, on_done=self._note, executor=executor
        )
        self._producer: SnapshotProducer | None = None
        self._journal: Journal | None = None
        self._vector_files: list[str] = []
        self._used: set[str] = set()

    def plan(self, metadata: Mapping[str, Any]) -> MigrationPlan:
        """Return what migrating the table of this metadata does; writes nothing.

        Raises ValueError for a table that is encrypted already, and for other branches and tags
        than main unless they may go; NotImplementedError for ORC files and manifests without a
        list; what reading manifests and delete files raises.
        """
        refs = tuple(name for name in _refs(metadata) if name != MAIN)
        _check(metadata, () if self._drop_refs else refs)
        snapshot = _current_snapshot(metadata)
        if snapshot is None:
            return MigrationPlan(RewritePlan(), 0, refs)
        parsed = _parsed(metadata)
        files = TableFiles(self._io, self._manager)
        manifests = plain_manifests(snapshot, self._io)
        contents = read_snapshot(manifests, files, parsed, PlainReader(files, parsed))
        plan = plan_rewrite(contents, contents.entries.keys())
        rows = sum(e.file.record_count for e in plan.files if e.file.content == DATA)
        return MigrationPlan(plan, rows, refs)

    def produce(self, metadata: Mapping[str, Any]) -> MigrationCommit:
        """Rewrite what is not rewritten yet, and return what to commit upon this metadata.

        When another commit comes first, call it again with the metadata then: files that are
        rewritten stay so. Raises as ``plan``, what ``rewrite_file`` raises (MetadataIntegrityError
        where a file's rows are not as many as its manifest says), KmsError and OSError.
        """
        plan = self.plan(metadata)
        prefix = self._prefix(metadata)
        view = self._view(metadata, prefix)
        requirements = _requirements(metadata)
        if plan.rewrite.is_empty:
            return MigrationCommit(prefix, requirements, self._key_id, None, 0)
        locations = location_provider(view)
        entries = plan.rewrite.files
        old = [entry.file for entry in entries]
        self._resume(view, locations, old)
        try:
            self._rewriter.rewrite(
                old, TableFiles(self._io, self._manager), self._manager, locations
            )
        finally:
            if self._journal is not None:
                self._journal.flush()
        added = [self._rewriter.entry(entry) for entry in entries]
        moved = {file.identity: new.file for file, new in zip(old, added, strict=True)}
        vectors = write_vectors(plan.rewrite.vectors, moved, self._output, locations, self._manager)
        self._vector_files += {entry.file.file_path for entry in vectors}
        rows = sum(entry.file.record_count for entry in added if entry.file.content == DATA)
        if rows != plan.rows:
            raise MetadataIntegrityError(
                f"{rows} rows were rewritten, and the table has {plan.rows}"
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
        updates = prefix + produced
        self._used = {entry.file.file_path for entry in vectors}
        return MigrationCommit(
            updates, requirements, self._key_id, self._producer.snapshot_id, rows
        )

    def finish(self) -> None:
        """Delete the journal, once the migration is committed for certain."""
        if self._journal is not None:
            self._journal.remove()

    @property
    def left_over(self) -> list[str]:
        """Metadata and deletion vectors that were written and that the last commit produced does
        not use. Rewritten data files are not among them: another run may need them."""
        unused = sorted(set(self._vector_files) - self._used)
        return unused + ([] if self._producer is None else list(self._producer.left_over))

    def _resume(
        self, view: TableView, locations: LocationProvider, files: list[FileRecord]
    ) -> None:
        if self._journal is not None:
            return
        self._journal = Journal(
            self._io,
            self._output,
            f"{locations.metadata_path}/migration",
            str(view.metadata.get("table-uuid")),
            self._kms,
            self._key_id,
            self._data_key_length,
        )
        self._journal.prepare()
        finished = self._journal.finished(files)
        self._rewriter.rewritten.update(finished)
        if self._on_done is not None:
            for file in files:
                if file.identity in finished:
                    self._on_done(file, finished[file.identity])

    def _note(self, old: FileRecord, new: FileRecord) -> None:
        assert self._journal is not None
        self._journal.add(old, new)
        if self._on_done is not None:
            self._on_done(old, new)

    def _prefix(self, metadata: Mapping[str, Any]) -> list[Update]:
        """Return the updates that make the table an encrypted one without snapshots."""
        updates: list[Update] = []
        if metadata["format-version"] < FORMAT_VERSION:
            updates.append({"action": "upgrade-format-version", "format-version": FORMAT_VERSION})
        updates.append(
            {
                "action": "set-properties",
                "updates": {
                    TABLE_KEY_ID: self._key_id,
                    DATA_KEY_LENGTH: str(self._data_key_length),
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
        return TableView(empty, TableFiles(self._io, self._new_manager()))

    def _new_manager(self) -> EncryptionManager:
        return EncryptionManager(self._kms, self._key_id, (), self._data_key_length)


class _WholeTable(FileChange):
    """All files of a table: nothing is left of what they replace."""

    @property
    def operation(self) -> str:
        return "overwrite"


def _summarize(
    snapshot: dict[str, Any], view: TableView, old: list[FileRecord], new: list[FileRecord]
) -> None:
    """Say of the snapshot what it is, a replacement: readers of changes pass over such ones."""
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
    """The files of a plain table's snapshots: data and delete files, manifests, manifest lists and
    statistics, not its metadata.json files.

    ``outside`` are those that do not lie in the table's own folders, and may be another table's,
    and those that do not begin as such files do; ``unreadable`` what could not be read, so that
    files that it names are not in the list. ``home`` are the table's folders.
    """

    inside: tuple[str, ...]
    outside: tuple[str, ...]
    unreadable: tuple[str, ...]
    home: Home = field(repr=False, compare=False)

    def delete(
        self,
        output: TableOutput,
        *,
        threads: int = _THREADS,
        progress: Callable[[int, int], None] | None = None,
    ) -> tuple[str, ...]:
        """Delete the files inside the table's folders; return those that could not be. ``progress``
        is called with the number of files done and that of all."""
        failed = []

        def delete(location: str) -> str | None:
            # A folder may have become a link since it was looked at.
            if not self.home.has(location):
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
    before: Mapping[str, Any], after: Mapping[str, Any], files: TableFiles, home: Home
) -> PlaintextFiles:
    """Return the files in the clear that a migration has left. Reads manifests and deletes nothing.

    ``before`` is the metadata that was migrated, ``after`` that of the encrypted table, now or
    later, whose files and keys are ``files``: what it reaches is never in the list. ``home`` are
    the table's folders. A snapshot whose manifest list lies outside is not followed: nobody vouches
    for it.

    Raises ValueError when the two are not one table before and after its migration,
    ValidationException where ``gc.enabled`` is not true, as files of such a table may be other
    tables' too, and what reading the encrypted table's manifests raises.
    """
    if (after.get("properties") or {}).get(TABLE_KEY_ID) is None:
        raise ValueError("the table is not encrypted: its files in the clear are needed")
    if before.get("table-uuid") not in (None, after["table-uuid"]):
        raise ValueError("the metadata before and after is of two tables")
    properties = dict(before.get("properties") or {})
    if properties.get(GC_ENABLED, "true").lower() != "true":
        raise ValidationException(
            f"cannot delete files: {GC_ENABLED!r} is not true, "
            "so the table's files may be other tables' too"
        )
    view = TableView(dict(after), files)
    # By real places: nothing that is needed may be deleted by another name.
    needed = {real_place(location) for location in _reached(view)}
    inside: dict[str, str] = {}
    outside: dict[str, str] = {}
    unreadable: list[str] = []
    read: set[str] = set()
    for name in ("statistics", "partition-statistics"):
        for entry in before.get(name) or ():
            location = entry["statistics-path"]
            try:
                is_own = home.has_statistics(location, files)
            except FileNotFoundError:
                continue
            except (Ags1Error, OSError):
                is_own = False
            (inside if is_own else outside)[real_place(location)] = location
    for snapshot in before.get("snapshots") or ():
        for location in _plain_files(snapshot, files.inner, home, read, unreadable):
            (inside if home.has(location) else outside)[real_place(location)] = location
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
        home,
    )


def _begins_as_tables(location: str, files: TableFiles) -> bool | None:
    """Whether a file is a regular one and begins as a plain table's do; None if it is gone. What
    names it lies in the clear where others may write."""
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
    snapshot: Mapping[str, Any], io: FileIO, home: Home, read: set[str], unreadable: list[str]
) -> Iterator[str]:
    """Yield the files that a plain snapshot reaches, without those of manifests in ``read``; only
    its manifest list where that is not the table's own."""
    location = str(snapshot.get("manifest-list"))
    if snapshot.get("manifest-list") is not None and not home.has(location):
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
            entries = list(read_entries(manifest, io))
        except (OSError, MetadataIntegrityError, NotImplementedError):
            unreadable.append(manifest.manifest_path)
            continue
        yield manifest.manifest_path
        for entry in entries:
            yield entry.file.file_path


def _check(metadata: Mapping[str, Any], other_refs: tuple[str, ...]) -> None:
    properties = metadata.get("properties") or {}
    if properties.get(TABLE_KEY_ID) or metadata.get("encryption-keys"):
        raise ValueError("the table is encrypted already")
    version = metadata.get("format-version")
    if version not in range(1, FORMAT_VERSION + 1):
        raise ValueError(f"a table of format version {version} cannot be migrated")
    if other_refs:
        raise ValueError(
            f"the table has branches or tags besides main ({', '.join(other_refs)}), which would "
            "go: drop them, or say that they may"
        )


def _refs(metadata: Mapping[str, Any]) -> list[str]:
    refs = metadata.get("refs")
    if refs is None:
        return [] if metadata.get("current-snapshot-id") in (None, -1) else [MAIN]
    return list(refs)


def _current_snapshot(metadata: Mapping[str, Any]) -> Mapping[str, Any] | None:
    current = metadata.get("current-snapshot-id")
    if current in (None, -1):
        return None
    for snapshot in metadata.get("snapshots") or ():
        if snapshot["snapshot-id"] == current:
            found: Mapping[str, Any] = snapshot
            return found
    raise MetadataIntegrityError(f"the table's current snapshot {current} is not in its metadata")


def _parsed(metadata: Mapping[str, Any]) -> TableMetadata:
    return TableMetadataUtil.parse_obj(dict(metadata))


def _requirements(metadata: Mapping[str, Any]) -> list[Update]:
    """Return what must still be so at the commit: nothing that was written came after."""
    current = metadata.get("current-snapshot-id")
    requirements: list[Update] = [
        {
            "type": "assert-ref-snapshot-id",
            "ref": MAIN,
            "snapshot-id": None if current in (None, -1) else current,
        }
    ]
    if metadata.get("table-uuid"):
        requirements.insert(0, {"type": "assert-table-uuid", "uuid": metadata["table-uuid"]})
    return requirements

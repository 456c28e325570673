"""``Migration`` turns an unencrypted table into an encrypted one of format version 3, in one
commit.

Data files are rewritten one for one and keep their rows, row IDs and sequence numbers. Position
deletes of version 2 become deletion vectors. What is on disk after each step::

    before           00003.metadata.json -> snap-1.avro -> m0.avro -> x.parquet, p-deletes.parquet
    0  trial         The first rows of x are read. If that fails, nothing is encrypted.
    1  files         + x'.parquet, encrypted; + migration/*.journal, which notes x' and its key
                     A run that is killed here is continued by the next one.
    2  vectors       + deletes.puffin: the rows of p, as a deletion vector for x'
    3  snapshot      + snap-2.avro, m1.avro: x' and the vector. All are encrypted
    4  the commit    + 00004.metadata.json: version 3, the master key's ID, only snapshot 2.
                     Until here, readers see the table as it was before.
    5  finish        - migration/*.journal
    6  (optional)    - snap-1.avro, m0.avro, x.parquet, p-deletes.parquet (``plaintext_files``),
                     after the new table was verified. 00003.metadata.json stays; it has no rows

The commit removes the old snapshots, because their files are not encrypted and an encrypted table
has no such snapshots. This follows the Iceberg specification, "Version 3" and "Row Lineage". This
module does steps 1 to 3 and 5, and does not know catalogs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyiceberg.table.locations import LocationProvider
from pyiceberg.table.metadata import TableMetadataUtil
from pyiceberg.utils.concurrent import ExecutorFactory

from ...errors import MetadataIntegrityError
from ...keys.manager import DATA_KEY_LENGTH, TABLE_KEY_ID, EncryptionManager, now_ms
from ..commit.updates import apply_updates
from ..read.columns import FileReader
from ..read.metadata import is_plaintext
from ..read.records import DATA, POSITION_DELETES, ContentFile
from ..spec.column_types import as_stored, readable
from ..spec.constants import FORMAT_VERSION, MAIN_BRANCH
from ..spec.parsable import parsable
from ..spec.properties import check_encryption
from ..storage.output import TableOutput
from ..storage.table_files import TableFiles
from ..write.executors import Done, Identity, RewriteExecutor
from ..write.snapshot import FileChange, SnapshotProducer
from ..write.summary import SummaryBuilder
from ..write.view import TableView
from .deletion import statistics_updates
from .journal import Journal
from .plain_snapshots import plain_manifests, plain_reader
from .rewrite import Contents, RewritePlan, Rewriter, plan_rewrite, read_snapshot

Update = dict[str, Any]


@dataclass(frozen=True, slots=True)
class MigrationPlan:
    """What a migration does. ``rewrite`` has the files, ``rows`` is the number of rows in the data
    files with the deleted ones. ``refs`` are the branches and tags, and ``snapshots`` the IDs of
    the snapshots, to remove."""

    rewrite: RewritePlan
    rows: int
    refs: tuple[str, ...]
    snapshots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MigrationCommit:
    """The commit of a migration, in the REST specification's form. ``key_id`` is the table's new
    master key."""

    updates: list[Update] = field(repr=False)
    requirements: list[Update]
    key_id: str
    plan: MigrationPlan


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
        self._tried: set[Identity] = set()

    def plan(self, metadata: Mapping[str, Any]) -> MigrationPlan:
        """Return what a migration of the table with this metadata does. Writes nothing. Raises
        ValueError if the table is encrypted already, or has other branches and tags than main and
        ``drop_refs`` is false; NotImplementedError for ORC files and for a snapshot without a
        manifest list; FormatError, which names the file, if the first rows of a file cannot be read
        as the table's columns; what reading manifests and delete files raises."""
        refs = tuple(name for name in _refs(metadata) if name != MAIN_BRANCH)
        _check(metadata, () if self._drop_refs else refs)
        snapshots = tuple(one["snapshot-id"] for one in metadata.get("snapshots") or ())
        snapshot = _current_snapshot(metadata)
        if snapshot is None:
            return MigrationPlan(RewritePlan(), 0, refs, snapshots)
        parsed = TableMetadataUtil.parse_obj(parsable(metadata))
        files = TableFiles(self._io, self._manager)
        manifests = plain_manifests(snapshot, self._io)
        contents = read_snapshot(manifests, files, parsed, plain_reader(files, parsed))
        self._try_files(FileReader(files, parsed, as_stored(readable(parsed.schema()))), contents)
        plan = plan_rewrite(contents, contents.entries.keys())
        rows = sum(e.file.record_count for e in plan.files if e.file.content == DATA)
        return MigrationPlan(plan, rows, refs, snapshots)

    def _try_files(self, reader: FileReader, contents: Contents) -> None:
        """Raise FormatError if the reader of the encrypted table would not read a file."""
        files = [e.file for name, e in contents.entries.items() if name not in self._tried]
        files = [file for file in files if file.content != POSITION_DELETES]
        list(ExecutorFactory.get_or_create().map(reader.try_file, files))
        self._tried.update(file.identity for file in files)

    def produce(self, metadata: Mapping[str, Any]) -> MigrationCommit:
        """Rewrite the files that are not rewritten yet; return the commit upon this metadata. If
        another commit comes first, call this again with the new metadata. It does not rewrite a
        file twice. Raises as ``plan``; what ``rewrite_file`` raises (MetadataIntegrityError if a
        file has not as many rows as its manifest says); KmsError; OSError."""
        plan = self.plan(metadata)
        prefix = self._prefix(metadata)
        view = self._view(metadata, prefix)
        key_id, requirements = self._manager.table_key_id, _requirements(metadata)
        if plan.rewrite.is_empty:
            return MigrationCommit(prefix, requirements, key_id, plan)
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
        return MigrationCommit(prefix + produced, requirements, key_id, plan)

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
        updates += statistics_updates(metadata)
        for name in _refs(metadata):
            updates.append({"action": "remove-snapshot-ref", "ref-name": name})
        ids = [snapshot["snapshot-id"] for snapshot in metadata.get("snapshots") or ()]
        if ids:
            updates.append({"action": "remove-snapshots", "snapshot-ids": ids})
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


def _check(metadata: Mapping[str, Any], other_refs: tuple[str, ...]) -> None:
    if not is_plaintext(metadata) or metadata.get("encryption-keys"):
        raise ValueError(
            f"the table is encrypted already: it has {TABLE_KEY_ID!r} or 'encryption-keys'"
        )
    check_encryption(metadata.get("properties") or {})
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
            head: Mapping[str, Any] = snapshot
            return head
    raise MetadataIntegrityError(
        f"the metadata has no snapshot {current}, which it names as the current one: restore an "
        "earlier metadata file"
    )


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

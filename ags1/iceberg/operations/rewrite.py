"""Rewrites data and delete files under fresh keys, for a rekeying and for a migration.

``plan_rewrite`` finds the delete files that change with the chosen files, and ``Rewriter`` carries
the plan out. A deletion vector names its data file, so each rewritten data file that has deletes
gets a new vector, which also contains the older position deletes of that file. Data files and
equality delete files are rewritten one for one. For example, a position delete file p has rows of
the data files x and y, and y has the deletion vector v::

    chosen   rewritten   new vectors for   removed
    x        x           x                 x; p stays, because y needs it
    y        y           y                 y, v; p stays, because x needs it
    x, y     x, y        x, y              x, y, v, p
    p        -           x, y              v, p

This follows the Iceberg specification, "Scan Planning" and "Deletion Vectors". It does not commit.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyiceberg.exceptions import ValidationException
from pyiceberg.expressions import BooleanExpression
from pyiceberg.manifest import DataFileContent, ManifestFile
from pyiceberg.table import FileScanTask
from pyiceberg.table.locations import LocationProvider
from pyiceberg.table.metadata import TableMetadata
from pyroaring import BitMap64

from ...keys.manager import EncryptionManager
from ..read.binding import EVERY_ROW, bind_filter
from ..read.planning import EncryptedPlanner
from ..read.pruning import FileFilter
from ..read.records import ADDED, POSITION_DELETES, ContentFile, ManifestEntry, read_entries
from ..read.tasks import TaskReader
from ..storage.output import TableOutput
from ..storage.table_files import TableFiles
from ..storage.workers import workers
from ..write.deletion_vectors import write_deletion_vectors
from ..write.executors import Done, Identity, RewriteExecutor, RewriteThreads

_VECTORS_PER_FILE = 1000


@dataclass(frozen=True, slots=True)
class Contents:
    """A snapshot's live files by identity. ``tasks`` are its data files with the deletes that apply
    to each. ``reader`` reads those deletes; its filter matches no row."""

    entries: Mapping[Identity, ManifestEntry]
    tasks: Mapping[Identity, FileScanTask]
    reader: TaskReader


@dataclass(frozen=True, slots=True)
class Vector:
    """A deletion vector to write for the data file of the entry ``of``. ``sequence_number`` is that
    of the newest deletes in it."""

    of: ManifestEntry
    positions: BitMap64
    sequence_number: int


@dataclass(frozen=True, slots=True)
class RewritePlan:
    """The changes of a rewrite. ``files`` are the data and equality delete files to rewrite,
    ``vectors`` the deletion vectors to write, ``superseded`` the delete files to remove."""

    files: list[ManifestEntry] = field(default_factory=list)
    vectors: list[Vector] = field(default_factory=list)
    superseded: list[ManifestEntry] = field(default_factory=list)

    @property
    def size(self) -> int:
        """The number of bytes to rewrite."""
        return sum(entry.file.file_size_in_bytes for entry in self.files)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to change."""
        return not (self.files or self.vectors or self.superseded)


def plan_tasks(
    manifests: Iterable[ManifestFile],
    files: TableFiles,
    metadata: TableMetadata,
    row_filter: BooleanExpression | None = None,
    *,
    case_sensitive: bool = True,
) -> list[FileScanTask]:
    """Return the tasks of a scan. Raises as planning a scan does, and NotImplementedError for ORC
    files."""
    bound = EVERY_ROW
    if row_filter is not None:
        bound = bind_filter(row_filter, metadata.schema(), case_sensitive=case_sensitive)
    planner = EncryptedPlanner(metadata, files, FileFilter(bound, metadata.specs()))
    return planner.plan_files(manifests)


def read_snapshot(
    manifests: Sequence[ManifestFile],
    files: TableFiles,
    metadata: TableMetadata,
    reader: TaskReader,
) -> Contents:
    """Return the contents of a snapshot with these manifests. Raises as planning a scan does, and
    as ``live_entries``."""
    entries = live_entries(manifests, files)
    tasks = plan_tasks(manifests, files, metadata)
    return Contents(entries, {identity(task.file): task for task in tasks}, reader)


def live_entries(
    manifests: Sequence[ManifestFile], files: TableFiles
) -> dict[Identity, ManifestEntry]:
    """Return the entries of a snapshot's data and delete files. Raises as reading manifests does,
    and ValidationException if the table has a file twice: the two entries could not be
    distinguished."""

    def live(manifest: ManifestFile) -> list[ManifestEntry]:
        return read_entries(manifest, files)

    if not manifests:
        return {}
    of_manifests = workers(files, manifests[0].manifest_path).map(live, manifests)
    entries: dict[Identity, ManifestEntry] = {}
    for entry in itertools.chain.from_iterable(of_manifests):
        if entries.setdefault(entry.file.identity, entry) is not entry:
            raise ValidationException(
                f"the table has the file {entry.file.file_path} twice: delete its rows, or "
                "overwrite them"
            )
    return entries


def plan_rewrite(contents: Contents, chosen: Collection[Identity]) -> RewritePlan:
    """Return what changes if the chosen files are rewritten. A chosen position delete file becomes
    deletion vectors. Reads the delete files concerned, and raises what reading them raises."""
    files = [
        entry
        for name, entry in contents.entries.items()
        if name in chosen and entry.file.content != POSITION_DELETES
    ]
    # For each position delete file, the data files to which it may apply.
    applies_to: dict[Identity, set[Identity]] = {}
    deletes: dict[Identity, Any] = {}
    for name, task in contents.tasks.items():
        for delete in task.delete_files:
            if delete.content == DataFileContent.POSITION_DELETES:
                deletes[identity(delete)] = delete
                applies_to.setdefault(identity(delete), set()).add(name)

    def data_files_in(delete: Identity) -> set[Identity]:
        if deletes[delete].is_deletion_vector:
            return applies_to[delete]
        paths = contents.reader.position_deletes(deletes[delete])
        return {name for name in applies_to[delete] if name[0] in paths}

    # The data files that get new vectors.
    changed = {name for name in contents.tasks if name in chosen}
    for deleting in deletes.keys() & set(chosen):
        changed |= data_files_in(deleting)
    changed_paths = {name[0] for name in changed}

    def is_superseded(name: Identity, file: ContentFile) -> bool:
        if file.content != POSITION_DELETES:
            return False
        if name in chosen:
            # Its rows are in the new vectors, or they belong to files that no longer exist.
            return True
        if file.is_deletion_vector and file.referenced_data_file in changed_paths:
            return True
        return bool(applies_to.get(name, set()) & changed) and data_files_in(name) <= changed

    vectors = [_vector(contents, name) for name in contents.tasks if name in changed]
    superseded = [e for name, e in contents.entries.items() if is_superseded(name, e.file)]
    return RewritePlan(files, [vector for vector in vectors if vector], superseded)


class Rewriter:
    """Rewrites files under fresh keys, each once, even if a commit has to be tried again.
    ``executor`` rewrites the files side by side; by default, as many threads do as there are CPUs.
    ``on_done`` is called after each file with the old and the new record, by one thread at a time.
    ``rewritten`` has the new record of each file, by the old one's identity."""

    def __init__(
        self,
        output: TableOutput,
        executor: RewriteExecutor | None = None,
        on_done: Done | None = None,
    ) -> None:
        self.output = output
        self.rewritten: dict[Identity, ContentFile] = {}
        self._executor = RewriteThreads() if executor is None else executor
        self._on_done = on_done

    def apply(
        self, plan: RewritePlan, source: TableFiles, locations: LocationProvider
    ) -> tuple[list[ManifestEntry], list[ManifestEntry]]:
        """Rewrite the plan's files that are not rewritten yet, and write its vectors. Return the
        manifest entries that add the files and the vectors to a snapshot. Raises what
        ``RewriteExecutor.rewrite`` raises, for the first file that fails, and what
        ``write_deletion_vectors`` raises. Finished files stay in ``rewritten``."""
        files = [entry.file for entry in plan.files]
        missing = {f.identity: f for f in files if f.identity not in self.rewritten}
        if missing:
            self._executor.rewrite(
                list(missing.values()), source, self.output, locations, self._note
            )
        added = [self._added(entry) for entry in plan.files]
        return added, self._write_vectors(plan.vectors, source.keys, locations)

    def _note(self, old: ContentFile, new: ContentFile) -> None:
        self.rewritten[old.identity] = new
        if self._on_done is not None:
            self._on_done(old, new)

    def _added(self, old: ManifestEntry) -> ManifestEntry:
        """Return the entry of a rewritten file. Its rows keep their sequence number and IDs."""
        new = self.rewritten[old.file.identity].replace(first_row_id=old.file.first_row_id)
        return ManifestEntry(ADDED, None, old.sequence_number, None, new)

    def _write_vectors(
        self, vectors: Sequence[Vector], manager: EncryptionManager, locations: LocationProvider
    ) -> list[ManifestEntry]:
        added: list[ManifestEntry] = []
        rest = iter(vectors)
        while part := list(itertools.islice(rest, _VECTORS_PER_FILE)):
            old = [vector.of.file for vector in part]
            files = [self.rewritten.get(file.identity, file) for file in old]
            records = write_deletion_vectors(
                self.output,
                locations.new_data_location(f"{uuid.uuid4()}-deletes.puffin"),
                {f.file_path: (v.positions, f) for v, f in zip(part, files, strict=True)},
                manager,
            )
            added += [
                ManifestEntry(ADDED, None, vector.sequence_number, None, record)
                for vector, record in zip(part, records, strict=True)
            ]
        return added


def identity(file: Any) -> Identity:
    """Return the identity of a file of a scan's task."""
    return file.file_path, file.content_offset


def _vector(contents: Contents, name: Identity) -> Vector | None:
    task = contents.tasks[name]
    positions = contents.reader.matches(task).deleted
    if not positions:
        return None
    numbers = [
        contents.entries[identity(delete)].sequence_number or 0
        for delete in task.delete_files
        if delete.content == DataFileContent.POSITION_DELETES
    ]
    return Vector(contents.entries[name], positions, max(numbers))

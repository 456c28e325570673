"""Finds the delete files that must change when data files of a snapshot are rewritten.

A deletion vector names its data file. So each rewritten data file that has deletes gets a new
vector, which also contains the older position deletes of that file. A position delete file is
removed if no other data file needs it. Data files and equality delete files are rewritten one for
one. This follows the Iceberg specification, "Scan Planning" and "Deletion Vectors". It does not
know keys and commits.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyiceberg.exceptions import ValidationException
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.manifest import DataFileContent, ManifestFile
from pyiceberg.table import FileScanTask
from pyiceberg.table.locations import LocationProvider
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.utils.concurrent import ExecutorFactory
from pyroaring import BitMap64

from ...keys.manager import EncryptionManager
from ..read.planning import EncryptedPlanner
from ..read.records import ADDED, POSITION_DELETES, ContentFile, ManifestEntry, read_entries
from ..read.tasks import TaskReader
from ..storage.output import TableOutput
from ..storage.table_files import TableFiles
from ..write.deletion_vectors import write_deletion_vectors
from ..write.reencryption import Identity

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
    """What a rewrite changes. ``files`` are the data and equality delete files to rewrite,
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
    planner = EncryptedPlanner(
        table_metadata=metadata,
        io=files,
        row_filter=AlwaysTrue() if row_filter is None else row_filter,
        case_sensitive=case_sensitive,
    )
    return planner.plan_files(manifests)


def read_snapshot(
    manifests: Sequence[ManifestFile],
    files: TableFiles,
    metadata: TableMetadata,
    reader: TaskReader,
) -> Contents:
    """Return the contents of a snapshot with these manifests.

    Raises as planning a scan does, and ValidationException if the table has a file twice: the two
    could not be told apart.
    """

    def live(manifest: ManifestFile) -> list[ManifestEntry]:
        return read_entries(manifest, files)

    found = ExecutorFactory.get_or_create().map(live, manifests)
    entries: dict[Identity, ManifestEntry] = {}
    for entry in itertools.chain.from_iterable(found):
        if entries.setdefault(entry.file.identity, entry) is not entry:
            raise ValidationException(
                f"the table has the file {entry.file.file_path} twice: delete its rows, or "
                "overwrite them"
            )
    tasks = plan_tasks(manifests, files, metadata)
    return Contents(entries, {identity(task.file): task for task in tasks}, reader)


def plan_rewrite(contents: Contents, chosen: Collection[Identity]) -> RewritePlan:
    """Return what changes if the chosen files are rewritten. A chosen position delete file becomes
    deletion vectors. Reads the delete files concerned, and raises what reading them raises."""
    files = [
        entry
        for name, entry in contents.entries.items()
        if name in chosen and entry.file.content != POSITION_DELETES
    ]
    # For each position delete file, the data files to which it applies.
    users: dict[Identity, set[Identity]] = {}
    for name, task in contents.tasks.items():
        for delete in task.delete_files:
            if delete.content == DataFileContent.POSITION_DELETES:
                users.setdefault(identity(delete), set()).add(name)
    deletes = {identity(d): d for task in contents.tasks.values() for d in task.delete_files}

    def names_in(delete: Identity) -> set[Identity]:
        file: Any = deletes[delete]
        if file.is_deletion_vector:
            return users[delete]
        paths = contents.reader.position_deletes(file)
        return {name for name in users[delete] if name[0] in paths}

    changed = {name for name in contents.tasks if name in chosen}
    for name in users.keys() & set(chosen):
        changed |= names_in(name)
    vectors = [
        v for v in (_vector(contents, name) for name in contents.tasks if name in changed) if v
    ]
    paths = {name[0] for name in changed}
    superseded = []
    for name, entry in contents.entries.items():
        file = entry.file
        if file.content != POSITION_DELETES:
            continue
        if file.is_deletion_vector and file.referenced_data_file in paths:
            goes = True
        elif name in chosen:
            # All of its rows are in the new vectors, or they belong to files that are gone.
            goes = True
        else:
            goes = bool(users.get(name, set()) & changed) and names_in(name) <= changed
        if goes:
            superseded.append(entry)
    return RewritePlan(files, vectors, superseded)


def write_vectors(
    vectors: Sequence[Vector],
    moved: Mapping[Identity, ContentFile],
    output: TableOutput,
    locations: LocationProvider,
    manager: EncryptionManager,
) -> list[ManifestEntry]:
    """Write deletion vectors; return the manifest entries that add them to a snapshot.

    ``moved`` has the new record of each rewritten data file. Raises what
    ``write_deletion_vectors`` raises.
    """
    added: list[ManifestEntry] = []
    rest = iter(vectors)
    while part := list(itertools.islice(rest, _VECTORS_PER_FILE)):
        files = [moved.get(vector.of.file.identity, vector.of.file) for vector in part]
        records = write_deletion_vectors(
            output,
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

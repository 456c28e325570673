"""Plans a row-level delete: which data files it removes, and which positions of others.

A row is deleted if the filter is true for it; null does not count as true.

    partition and metrics say that all rows match      the file is removed, unread
    reading it finds that all live rows match          the file is removed
    reading it finds that some rows match              the file gets one deletion vector
    no row matches                                     nothing changes

A new deletion vector has the positions that were deleted before, too. So the file's old vector is
removed, and also position deletes that are of no other file. Equality deletes stay; they apply to a
file with a new vector as before. This follows the Iceberg specification, "Scan Planning" and
"Deletion Vectors". Data files are read, and nothing is written.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from pyiceberg.expressions import BooleanExpression
from pyiceberg.manifest import DataFileContent, ManifestFile
from pyiceberg.manifest import ManifestEntry as PyIcebergEntry
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask

from ..read.binding import bind_filter
from ..read.planning import EncryptedPlanner, live_rows, path_of_all
from ..read.pruning import FileFilter
from ..read.records import ContentFile, ManifestEntry
from ..read.tasks import Matches, TaskReader
from .view import TableView

if TYPE_CHECKING:
    from pyroaring import BitMap64

_Identity: TypeAlias = "tuple[str, int | None]"


@dataclass(frozen=True, slots=True)
class DeletePlan:
    """What a delete changes. Entries are those of the snapshot's manifests.

    ``dropped`` are the data files that are removed. ``vectors`` has by a data file's path the
    positions of all its deleted rows, the earlier ones included, and its entry; ``changed`` are the
    tasks that read these files, and ``rewritable`` all their entries. ``superseded`` are the
    deletion vectors and position delete files that are not needed any more. ``matched_rows`` is the
    number of deleted rows; if a file was dropped unread, it includes rows that delete files had
    deleted already. ``read`` are the paths of the data files that may have rows that match, and
    ``compared`` the IDs of the columns that the filter compares.
    """

    dropped: list[ManifestEntry] = field(default_factory=list)
    vectors: dict[str, tuple[BitMap64, ManifestEntry]] = field(default_factory=dict)
    rewritable: list[ManifestEntry] = field(default_factory=list)
    superseded: list[ManifestEntry] = field(default_factory=list)
    matched_rows: int = 0
    changed: list[FileScanTask] = field(default_factory=list, repr=False, compare=False)
    read: frozenset[str] = field(default=frozenset(), compare=False)
    compared: frozenset[int] = field(default=frozenset(), compare=False)

    @property
    def is_empty(self) -> bool:
        """Whether no row matches."""
        return not (self.dropped or self.vectors)


def find_deletes(
    view: TableView, row_filter: BooleanExpression, *, case_sensitive: bool = True
) -> DeletePlan:
    """Return what changes in the view's snapshot if the rows for which ``row_filter`` (unbound) is
    true are deleted. If there is no snapshot, nothing changes. Raises ValueError if the table does
    not have a column of the filter, NotEncryptedError, MetadataIntegrityError, AuthenticationError,
    TruncatedError and KmsError as reading does, and NotImplementedError for ORC."""
    planner = DeletePlanner(view, row_filter, case_sensitive=case_sensitive)
    # Only the columns of the filter and of equality deletes are read.
    planner.reader.share(len(planner.unknown))
    matches = view.workers.map(planner.reader.matches, planner.unknown)
    return planner.plan(zip(planner.unknown, matches, strict=True))


class DeletePlanner:
    """Plans a delete in two steps: the files that may have rows that match ``row_filter``
    (unbound), and then, from the rows that do, what changes.

    ``whole`` are the tasks of files of which the metadata says that all rows match, and ``unknown``
    those of the files to read. If the filter is not ``exact``, rows for which it is true may be
    left out later, so that all files are unknown. ``reader`` reads the tasks. Raises as
    ``find_deletes``.
    """

    def __init__(
        self,
        view: TableView,
        row_filter: BooleanExpression,
        *,
        case_sensitive: bool = True,
        exact: bool = True,
    ) -> None:
        bound = bind_filter(row_filter, view.schema, case_sensitive=case_sensitive)
        self._compared = bound.field_ids
        self._planner = _Planner(view.parsed, view.files, FileFilter(bound, view.specs))
        self.whole: list[FileScanTask] = []
        self.unknown: list[FileScanTask] = []
        for task in self._planner.plan_files(view.manifests):
            whole = exact and self._planner.file_filter.of_file(task.file)
            (self.whole if whole else self.unknown).append(task)
        self.reader = TaskReader(view.files, view.parsed, Schema(), bound)

    def plan(self, matches: Iterable[tuple[FileScanTask, Matches]]) -> DeletePlan:
        """Return what changes if the rows of the ``whole`` files and these of others are
        deleted."""
        matched_rows = sum(map(live_rows, self.whole))
        read = frozenset(task.file.file_path for task in (*self.whole, *self.unknown))
        dropped = list(self.whole)
        changed: dict[str, tuple[BitMap64, FileScanTask]] = {}
        partly: list[FileScanTask] = []
        for task, found in matches:
            matched_rows += len(found.positions)
            if not found.positions:
                continue
            if len(found.positions) == found.live:
                dropped.append(task)
            else:
                changed[task.file.file_path] = found.deleted | found.positions, task
                partly.append(task)

        affected = [*dropped, *(task for _, task in changed.values())]
        superseded = _superseded(affected, self.reader)
        entries = self._planner.entries
        return DeletePlan(
            dropped=_all_of(entries, (task.file for task in dropped)),
            vectors={
                path: (positions, entries[_identity(task.file)][0])
                for path, (positions, task) in changed.items()
            },
            rewritable=_all_of(entries, (task.file for task in partly)),
            superseded=_all_of(entries, superseded),
            matched_rows=matched_rows,
            changed=partly,
            read=read,
            compared=self._compared,
        )


class _Planner(EncryptedPlanner):
    """A planner that remembers the entries of each file: a table may have a file twice, also in
    different partitions."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.entries: defaultdict[_Identity, list[ManifestEntry]] = defaultdict(list)

    def plan_manifest_entries(
        self, manifests: Iterable[ManifestFile]
    ) -> Iterator[list[PyIcebergEntry]]:
        for entries in super().plan_manifest_entries(manifests):
            for entry in cast("list[ManifestEntry]", entries):
                self.entries[entry.file.identity].append(entry)
            yield entries


def _all_of(
    entries: Mapping[_Identity, list[ManifestEntry]], files: Iterable[Any]
) -> list[ManifestEntry]:
    """Return all entries of these files."""
    return [entry for one in dict.fromkeys(map(_identity, files)) for entry in entries[one]]


def _superseded(affected: list[FileScanTask], reader: TaskReader) -> list[ContentFile]:
    """Return the delete files that are not needed when the affected data files are dropped or have
    a new vector. As in Java, a position delete file stays if it names other data files."""
    covered = {task.file.file_path for task in affected}
    superseded: dict[ContentFile, None] = {}
    for delete in (d for task in affected for d in cast("set[ContentFile]", task.delete_files)):
        if delete in superseded or delete.content != DataFileContent.POSITION_DELETES:
            continue
        path = path_of_all(delete)
        if covered.issuperset(reader.position_deletes(delete) if path is None else (path,)):
            superseded[delete] = None
    return list(superseded)


def _identity(file: Any) -> _Identity:
    return file.file_path, file.content_offset

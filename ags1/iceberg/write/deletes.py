"""What a row-level delete changes: which data files go whole, which positions of others.

A row is deleted where the filter is true; null is not. A data file goes whole when its partition
and metrics say that all rows match, or when a reading of it finds that all that are left do. Each
other file with a match gets one deletion vector, of the positions that were deleted before too: its
old vector and the position deletes that it makes superfluous go. Equality deletes stay, and apply
to a file with a new vector as before. Follows the Iceberg specification, "Scan Planning" and
"Deletion Vectors". Opens data files for reading and writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from pyiceberg.expressions import BooleanExpression
from pyiceberg.expressions.visitors import bind, extract_field_ids
from pyiceberg.manifest import DataFileContent, ManifestFile
from pyiceberg.manifest import ManifestEntry as PyIcebergEntry
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
)
from pyiceberg.utils.concurrent import ExecutorFactory

from ..pyiceberg.expressions import StrictMetricsEvaluator
from ..read.filters import as_sql
from ..read.planning import EncryptedPlanner, path_of_all
from ..read.records import ContentFile, ManifestEntry, read_entries
from ..read.tasks import TaskReader
from .view import TableView

if TYPE_CHECKING:
    from pyroaring import BitMap64

_Identity: TypeAlias = "tuple[str, int | None]"

# Types whose bounds PyIceberg compares with a literal as the values are compared.
_BOUNDED_TYPES = (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
)


@dataclass(frozen=True, slots=True)
class DeletePlan:
    """What a delete changes. Entries are as the snapshot's manifests have them.

    ``dropped`` are data files that go whole. ``vectors`` has, by a data file's path, the positions
    of all of its deleted rows, the older ones too, and its entry; ``changed`` are the tasks that
    read these files. ``superseded`` are deletion vectors and position delete files that go with a
    dropped file, or whose positions are in the new vectors. ``matched_rows`` is the number of rows
    that are deleted; in a file that was dropped unread, rows that only position or equality delete
    files had deleted are counted again. ``read`` are the paths of the data files that were looked
    at, since they may have rows that match.
    """

    dropped: list[ManifestEntry] = field(default_factory=list)
    vectors: dict[str, tuple[BitMap64, ManifestEntry]] = field(default_factory=dict)
    superseded: list[ManifestEntry] = field(default_factory=list)
    matched_rows: int = 0
    changed: list[FileScanTask] = field(default_factory=list, repr=False, compare=False)
    read: frozenset[str] = field(default=frozenset(), compare=False)

    @property
    def is_empty(self) -> bool:
        """Whether no row matches."""
        return not (self.dropped or self.vectors)


def find_deletes(
    view: TableView, row_filter: BooleanExpression, *, case_sensitive: bool = True
) -> DeletePlan:
    """Return what deleting the rows for which ``row_filter``, unbound, is true changes in the
    view's snapshot. A table without one has nothing to delete.

    Raises ValueError for a column that the table does not have; NotEncryptedError,
    MetadataIntegrityError, AuthenticationError, TruncatedError, KmsError as reading does, and
    NotImplementedError for ORC.
    """
    as_meant = as_sql(row_filter, view.schema, case_sensitive=case_sensitive)
    bound = bind(view.schema, as_meant, case_sensitive=case_sensitive)
    planner = _Planner(
        table_metadata=view.parsed,
        io=view.files,
        row_filter=as_meant,
        case_sensitive=case_sensitive,
    )
    dropped: list[FileScanTask] = []
    unknown: list[FileScanTask] = []
    for task in planner.plan_files(view.manifests):
        whole = _all_rows_match(task, view.schema, case_sensitive)
        (dropped if whole else unknown).append(task)
    matched_rows = sum(map(_rows_left, dropped))
    read = frozenset(task.file.file_path for task in (*dropped, *unknown))

    # Only the columns that the filter and equality deletes look at are read.
    reader = TaskReader(view.files, view.parsed, Schema(), bound)
    reader.share(len(unknown))
    changed: dict[str, tuple[BitMap64, FileScanTask]] = {}
    partly: list[FileScanTask] = []
    found = ExecutorFactory.get_or_create().map(reader.matches, unknown)
    for task, matches in zip(unknown, found, strict=True):
        matched_rows += len(matches.positions)
        if not matches.positions:
            continue
        if len(matches.positions) == matches.live:
            dropped.append(task)
        else:
            changed[task.file.file_path] = matches.deleted | matches.positions, task
            partly.append(task)

    affected = [*dropped, *(task for _, task in changed.values())]
    superseded = _superseded(affected, reader)
    entries = planner.entries(view, [*(task.file for task in affected), *superseded])
    return DeletePlan(
        dropped=[entries[_identity(task.file)] for task in dropped],
        vectors={
            path: (positions, entries[_identity(task.file)])
            for path, (positions, task) in changed.items()
        },
        superseded=[entries[_identity(file)] for file in superseded],
        matched_rows=matched_rows,
        changed=partly,
        read=read,
    )


class _Planner(EncryptedPlanner):
    """Remembers which manifest has which file."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._manifests: dict[_Identity, ManifestFile] = {}

    def plan_manifest_entries(
        self, manifests: Iterable[ManifestFile]
    ) -> Iterator[list[PyIcebergEntry]]:
        for manifest, entries in self.matching_entries(manifests):
            self._manifests |= {_identity(entry.data_file): manifest for entry in entries}
            yield entries

    def entries(self, view: TableView, files: Iterable[Any]) -> Mapping[_Identity, ManifestEntry]:
        """Return the entries of these files, from their manifests, which are read again: row ids
        are assigned over all of a manifest."""
        wanted = {_identity(file) for file in files}
        manifests = {m.manifest_path: m for m in map(self._manifests.__getitem__, wanted)}

        def wanted_of(manifest: ManifestFile) -> list[ManifestEntry]:
            found = read_entries(manifest, view.files)
            return [entry for entry in found if entry.file.identity in wanted]

        found = ExecutorFactory.get_or_create().map(wanted_of, manifests.values())
        return {entry.file.identity: entry for entries in found for entry in entries}


def _superseded(affected: list[FileScanTask], reader: TaskReader) -> list[ContentFile]:
    """Return the delete files that nothing needs once the affected data files are dropped or have a
    new vector.

    A position delete file that is of other data files too stays, as it does when Java rewrites it.
    """
    covered = {task.file.file_path for task in affected}
    found: dict[ContentFile, None] = {}
    for delete in (d for task in affected for d in cast("set[ContentFile]", task.delete_files)):
        if delete in found or delete.content != DataFileContent.POSITION_DELETES:
            continue
        path = path_of_all(delete)
        if covered.issuperset(reader.position_deletes(delete) if path is None else (path,)):
            found[delete] = None
    return list(found)


def _all_rows_match(task: FileScanTask, schema: Schema, case_sensitive: bool) -> bool:
    """Whether a file's partition and metrics say that the filter is true of all rows.

    PyIceberg takes a count that is missing for a count of none. Here a file without counts of what
    the filter looks at is one to be read.
    """
    file, residual = task.file, task.residual
    looked_at = extract_field_ids(bind(schema, residual, case_sensitive=case_sensitive))
    top_level = {f.field_id: f.field_type for f in schema.fields}
    for field_id in looked_at:
        kind = top_level.get(field_id)
        if not isinstance(kind, _BOUNDED_TYPES) or field_id not in (file.null_value_counts or {}):
            return False
        if isinstance(kind, FloatType | DoubleType) and field_id not in (
            file.nan_value_counts or {}
        ):
            return False
    return StrictMetricsEvaluator(schema, residual, case_sensitive).eval(file)


def _rows_left(task: FileScanTask) -> int:
    """Return the number of a file's rows that its deletion vector leaves."""
    deletes = cast("set[ContentFile]", task.delete_files)
    return task.file.record_count - sum(d.record_count for d in deletes if d.is_deletion_vector)


def _identity(file: Any) -> _Identity:
    return file.file_path, file.content_offset

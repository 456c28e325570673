"""The changes of a table's rows between two snapshots, as Spark's ``create_changelog_view`` returns
them.

A *unit* is one snapshot or, for net changes, all of them. Its changes are read in the order of the
snapshots, deletes first. A row that the unit both deletes and inserts is not a change: a
copy-on-write delete writes all other rows of a file again. To find these rows, a unit that both
deletes and inserts is read twice. First, only the digests of its rows are kept, and counted::

    row                    DELETE a   DELETE b   INSERT a   INSERT c
    count of its digest       -1         -1          0         +1
    is a change                no        yes         no        yes

Then the rows are read again, unless they are so few that they were kept, and the changes are
yielded.
"""

from __future__ import annotations

import errno
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyiceberg.expressions import AlwaysFalse, AlwaysTrue, BooleanExpression
from pyiceberg.io import FileIO
from pyiceberg.schema import Schema
from pyiceberg.table import ALWAYS_TRUE, BaseScan
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import EMPTY_DICT, Properties
from pyiceberg.types import NestedField

from ...errors import MetadataIntegrityError
from ..pyiceberg.arrow import arrow_schema
from ..spec.column_types import readable
from ..spec.constants import CHANGE_ORDINAL_ID, CHANGE_TYPE_ID, COMMIT_SNAPSHOT_ID
from .arrow_stream import ArrowStream
from .changelog_planning import (
    DELETE,
    INSERT,
    ChangelogPlanner,
    ChangelogScanTask,
    snapshots_between,
)
from .filters import RowFilter, as_sql, bound_filter
from .metadata_columns import CHANGE_COLUMNS, of_columns, select
from .row_digests import Digests, row_digests
from .scan import READ_AHEAD, ScanReader, mark_handed_out
from .snapshots import to_table_files

if TYPE_CHECKING:
    from typing_extensions import Self

UPDATE_BEFORE, UPDATE_AFTER = "UPDATE_BEFORE", "UPDATE_AFTER"
_TYPES = pa.array([DELETE, INSERT, UPDATE_BEFORE, UPDATE_AFTER])
_DELETE, _INSERT, _BEFORE, _AFTER = range(4)

# In bytes of memory. The rows of units up to this size are held between the two reads.
_HELD = 32 << 20

_Numbers: TypeAlias = "npt.NDArray[np.int64]"


class EncryptedChangelogScan(BaseScan, ArrowStream):
    """A scan of the rows that were inserted, deleted and updated between two snapshots.

    See ``EncryptedTable.changelog_scan``. Filters are those of ``EncryptedScan``. Each choice is a
    parameter and an attribute, because PyIceberg's ``update`` requires it.
    """

    def __init__(
        self,
        table_metadata: TableMetadata,
        io: FileIO,
        row_filter: str | BooleanExpression = ALWAYS_TRUE,
        selected_fields: tuple[str, ...] = ("*",),
        case_sensitive: bool = True,
        options: Properties = EMPTY_DICT,
        limit: int | None = None,
        from_snapshot_id: int | None = None,
        to_snapshot_id: int | None = None,
        from_timestamp_ms: int | None = None,
        to_timestamp_ms: int | None = None,
        net_changes: bool = False,
        compute_updates: bool | None = None,
        identifier_columns: Sequence[str] | None = None,
    ) -> None:
        super().__init__(
            table_metadata, io, row_filter, selected_fields, case_sensitive, options, limit
        )
        self.from_snapshot_id = from_snapshot_id
        self.to_snapshot_id = to_snapshot_id
        self.from_timestamp_ms = from_timestamp_ms
        self.to_timestamp_ms = to_timestamp_ms
        self.net_changes = net_changes
        self.compute_updates = compute_updates
        self.identifier_columns = identifier_columns
        own = {f.name if case_sensitive else f.name.lower() for f in self._columns.fields}
        taken = [f.name for f in CHANGE_COLUMNS.values() if f.name in own]
        if taken:
            raise ValueError(f"the table has a column {taken[0]!r}: rename it to scan for changes")
        if self._pairs_updates and net_changes:
            raise ValueError("Not support net changes with update images")
        self._identifiers()

    def from_snapshot_id_exclusive(self, from_snapshot_id: int) -> Self:
        """Return a copy of this scan that starts after the given snapshot."""
        return self.update(from_snapshot_id=from_snapshot_id)

    def to_snapshot_id_inclusive(self, to_snapshot_id: int) -> Self:
        """Return a copy of this scan that ends with the given snapshot."""
        return self.update(to_snapshot_id=to_snapshot_id)

    def projection(self) -> Schema:
        """Return the columns of the changes. Raises ValueError for one that does not exist."""
        names = self.selected_fields
        if "*" in names:
            names = (*names, *(field.name for field in CHANGE_COLUMNS.values()))
        return select(
            self._columns, names, case_sensitive=self.case_sensitive, beside=CHANGE_COLUMNS
        )

    def plan_files(self) -> list[ChangelogScanTask]:
        """Return the tasks, from the oldest snapshot on. They include rows that were written
        again without a change. Raises as ``EncryptedScan.plan_files``, and ValueError if the range
        of snapshots is not valid."""
        return mark_handed_out(self._tasks())

    def to_arrow(self) -> pa.Table:
        """Return the changes, as ``EncryptedScan.to_arrow``."""
        return self.to_arrow_batch_reader().read_all()

    def to_arrow_batch_reader(self) -> pa.RecordBatchReader:
        """Return the changes as a stream. For a snapshot that both inserts and deletes rows, it
        holds a digest (16 bytes) of each of these rows, and a second one to compute updates. Net
        changes hold the digests of all rows of the range.

        Raises as ``plan_files``. Reading the stream raises as that of ``EncryptedScan``,
        MetadataIntegrityError if a file was replaced meanwhile, and ValueError if a snapshot
        deletes two rows with the same identifiers."""
        schema = arrow_schema(self.projection())
        batches = self._limited(self._changes(self._tasks()))
        rows = (batch.select(schema.names).cast(schema) for batch in batches)
        return pa.RecordBatchReader.from_batches(schema, rows)

    # -- what is asked for

    @property
    def _columns(self) -> Schema:
        return self.table_metadata.schema()

    @property
    def _pairs_updates(self) -> bool:
        if self.compute_updates is None:
            return self.identifier_columns is not None
        return self.compute_updates

    def _identifiers(self) -> list[NestedField]:
        """Return the columns that identify a row for updates; none if they are not computed."""
        if not self._pairs_updates:
            return []
        names = self.identifier_columns
        if names is None:
            names = sorted(self._columns.identifier_field_names())
        if not names:
            raise ValueError(
                "Cannot compute the update images because identifier columns are not set"
            )
        fields = [self._columns.find_field(name, self.case_sensitive) for name in names]
        nested = [field.name for field in fields if field not in self._columns.fields]
        if nested:
            raise ValueError(f"the identifier column {nested[0]!r} is inside another column")
        return fields

    def _early_filter(self) -> BooleanExpression:
        """Return a filter that may be applied before updates are found: it treats both rows of an
        update alike."""
        if not self._pairs_updates:
            return self.row_filter
        names = (field.name for field in self._identifiers())
        return of_columns(self.row_filter, names, case_sensitive=self.case_sensitive)

    def _tasks(self) -> list[ChangelogScanTask]:
        snapshots = snapshots_between(
            self.table_metadata,
            self.from_snapshot_id,
            self.to_snapshot_id,
            self.from_timestamp_ms,
            self.to_timestamp_ms,
        )
        # An unknown column is an error even if nothing has changed.
        bound = bound_filter(self.row_filter, self._columns, case_sensitive=self.case_sensitive)
        if bound == AlwaysFalse():
            return []
        early = self._early_filter()
        planner = ChangelogPlanner(
            table_metadata=self.table_metadata,
            io=self.io,
            row_filter=as_sql(early, self._columns, case_sensitive=self.case_sensitive),
            case_sensitive=self.case_sensitive,
            options=self.options,
        )
        return planner.plan_changes(snapshots)

    # -- reading

    def _limited(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        left = self.limit
        if left is not None and left <= 0:
            return
        for batch in batches:
            if left is None:
                yield batch
                continue
            yield batch.slice(0, left)
            left -= batch.num_rows
            if left <= 0:
                return

    def _changes(self, tasks: list[ChangelogScanTask]) -> Iterator[pa.RecordBatch]:
        """Yield the changes, with all columns of the projection at least."""
        by_snapshot = itertools.groupby(tasks, key=lambda task: task.change_ordinal)
        units = [tasks] if self.net_changes else (list(group) for _, group in by_snapshot)
        for unit in units:
            if len({task.change_type for task in unit}) > 1:
                yield from self._cancelled(unit)
            else:
                yield from self._as_they_are(unit)

    def _as_they_are(self, unit: list[ChangelogScanTask]) -> Iterator[pa.RecordBatch]:
        """Yield the changes of a unit that only inserts, or only deletes."""
        wanted = [f for f in self.projection().fields if f.field_id not in CHANGE_COLUMNS]
        # Arrow does not count rows that have no columns.
        columns = Schema(*(wanted or readable(self._columns).fields[:1]))
        reader = self._reader(columns, self.row_filter)
        for group in _groups(unit):
            for batch in self._batches(reader, group):
                kinds = np.full(batch.num_rows, group.kind)
                yield group.labelled(batch, kinds)

    def _cancelled(self, unit: list[ChangelogScanTask]) -> Iterator[pa.RecordBatch]:
        """Yield the changes of a unit, without the rows that it deletes and inserts."""
        reader = self._reader(self._columns, self._early_filter())
        schema = arrow_schema(reader.projected, include_field_ids=False)
        identifiers = [field.name for field in self._identifiers()]
        groups = list(_groups(unit))
        held: list[list[pa.RecordBatch]] | None = [[] for _ in groups]
        size = 0
        rows, keys, signs = _Digested(), _Digested(), _Signs()

        def read(group: _Group) -> Iterator[pa.RecordBatch]:
            batches = self._batches(reader, group)
            return (batch.select(schema.names).cast(schema) for batch in batches)

        for number, group in enumerate(groups):
            for batch in read(group):
                rows.add(row_digests(batch.columns))
                signs.add(-1 if group.kind == _DELETE else 1, batch.num_rows)
                if identifiers:
                    keys.add(row_digests(batch.select(identifiers).columns))
                size += batch.nbytes
                if held is not None and size <= _HELD:
                    held[number].append(batch)
                else:
                    held = None
        is_change = net_changes(rows.all(), signs.all())
        updated = _updated(keys.all(), signs.all(), is_change, identifiers)
        late = self._late_filter() if identifiers else None
        first = 0
        for number, group in enumerate(groups):
            for batch in read(group) if held is None else held[number]:
                here = slice(first, first + batch.num_rows)
                first = here.stop
                if first > len(is_change):
                    raise _changed(group)
                indices = np.flatnonzero(is_change[here])
                if not len(indices):
                    continue
                update = _BEFORE if group.kind == _DELETE else _AFTER
                kinds = np.where(updated[here][indices], update, group.kind)
                changes = group.labelled(batch.take(pa.array(indices)), kinds)
                if late is not None:
                    changes = changes.filter(late.mask_of(changes))
                yield changes
        if first != len(is_change):
            raise _changed(groups[-1])

    def _batches(self, reader: ScanReader, group: _Group) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a group. Raises FileNotFoundError that names the snapshot if an expiry
        has deleted what the snapshot removed."""
        try:
            yield from reader.batches(group.tasks, ahead=READ_AHEAD)
        except FileNotFoundError as error:
            number = group.tasks[0].commit_snapshot_id
            snapshot = self.table_metadata.snapshot_by_id(number)
            parent = snapshot.parent_snapshot_id if snapshot is not None else None
            if parent is None or self.table_metadata.snapshot_by_id(parent) is not None:
                raise
            message = (
                f"the snapshot before {number} was expired, and with it files whose rows {number} "
                f"removed: start after snapshot {number}"
            )
            missing = FileNotFoundError(errno.ENOENT, message)
            missing.parameter = "from_snapshot_id_exclusive"  # type: ignore[attr-defined]
            raise missing from error

    def _late_filter(self) -> RowFilter | None:
        bound = bound_filter(self.row_filter, self._columns, case_sensitive=self.case_sensitive)
        if bound == AlwaysTrue() or self._early_filter() == self.row_filter:
            return None
        return RowFilter(bound, self._columns)

    def _reader(self, projected: Schema, row_filter: BooleanExpression) -> ScanReader:
        return ScanReader(
            to_table_files(self.io),
            self.table_metadata,
            projected,
            row_filter,
            self.case_sensitive,
            None,
            (),
        )


@dataclass(frozen=True, slots=True)
class _Group:
    """The tasks of one snapshot and one kind of change."""

    tasks: list[ChangelogScanTask]

    @property
    def kind(self) -> int:
        return _DELETE if self.tasks[0].change_type == DELETE else _INSERT

    def labelled(self, batch: pa.RecordBatch, kinds: _Numbers) -> pa.RecordBatch:
        """Return a batch with the columns that say what each change is."""
        task = self.tasks[0]
        values = {
            CHANGE_TYPE_ID: _TYPES.take(pa.array(kinds)),
            CHANGE_ORDINAL_ID: pa.repeat(pa.scalar(task.change_ordinal, pa.int32()), len(kinds)),
            COMMIT_SNAPSHOT_ID: pa.repeat(pa.scalar(task.commit_snapshot_id), len(kinds)),
        }
        for field_id, column in values.items():
            batch = batch.append_column(CHANGE_COLUMNS[field_id].name, column)
        return batch


def _groups(unit: list[ChangelogScanTask]) -> Iterator[_Group]:
    of_group = itertools.groupby(unit, key=lambda task: (task.change_ordinal, task.change_type))
    return (_Group(list(tasks)) for _, tasks in of_group)


class _Digested:
    """The digests of all rows of a unit, which are added batch by batch."""

    def __init__(self) -> None:
        self._parts: list[Digests] = [np.empty((0, 2), np.uint64)]

    def add(self, digests: Digests) -> None:
        self._parts.append(digests)

    def all(self) -> Digests:
        return np.concatenate(self._parts)


class _Signs:
    """1 for each inserted row of a unit, -1 for each deleted one."""

    def __init__(self) -> None:
        self._parts: list[npt.NDArray[np.int8]] = [np.empty(0, np.int8)]

    def add(self, sign: int, count: int) -> None:
        self._parts.append(np.full(count, sign, np.int8))

    def all(self) -> npt.NDArray[np.int8]:
        return np.concatenate(self._parts)


def net_changes(digests: Digests, signs: npt.NDArray[np.int8]) -> npt.NDArray[np.bool_]:
    """Return which rows of a unit are changes.

    Equal rows have a count, to which an insert adds 1 and a delete -1. Its absolute value at the
    end is the number of changes. They are the first rows of that sign after the count was last 0.
    Java's ``RemoveNetCarryoverIterator`` returns as many, all with the labels of the first.
    """
    changes = np.zeros(len(signs), np.bool_)
    if not len(signs):
        return changes
    order = np.lexsort((digests[:, 1], digests[:, 0]))  # stable: equal rows stay in their order
    starts, ends = _runs(digests[order])
    lengths = ends - starts
    ordered = signs[order]
    counts = _counts(ordered, starts, lengths)
    positions = np.arange(len(counts))
    zeros = np.maximum.reduceat(np.where(counts == 0, positions, -1), starts)
    left = counts[ends - 1]
    # The rows after the last 0 that have the sign of the final count.
    chosen = (positions > np.repeat(zeros, lengths)) & (
        ordered == np.repeat(np.sign(left), lengths)
    )
    changes[order] = chosen & (_counts(chosen, starts, lengths) <= np.repeat(np.abs(left), lengths))
    return changes


def _counts(values: npt.NDArray[Any], starts: _Numbers, lengths: _Numbers) -> _Numbers:
    """Return the running sums of the values. They begin at 0 with each run."""
    sums = np.cumsum(values, dtype=np.int64)
    before: _Numbers = np.concatenate(([0], sums))[starts]
    counts: _Numbers = sums - np.repeat(before, lengths)
    return counts


def _updated(
    keys: Digests,
    signs: npt.NDArray[np.int8],
    is_change: npt.NDArray[np.bool_],
    names: list[str],
) -> npt.NDArray[np.bool_]:
    """Return which rows of a snapshot are part of an update: a deleted row and the first inserted
    one with the same key. Raises ValueError if a key was deleted twice."""
    updated = np.zeros(len(signs), np.bool_)
    changes = np.flatnonzero(is_change)
    if not names or not len(changes):
        return updated
    changes = changes[np.lexsort((keys[changes, 1], keys[changes, 0]))]  # deletes come first
    starts, ends = _runs(keys[changes])
    deleted = np.add.reduceat(signs[changes] < 0, starts, dtype=np.int64)
    if (deleted > 1).any():
        raise ValueError(
            "Cannot compute updates because there are multiple rows with the same identifier "
            f"fields([{','.join(names)}]). Please make sure the rows are unique."
        )
    paired = starts[(deleted == 1) & (ends - starts > 1)]
    updated[changes[paired]] = updated[changes[paired + 1]] = True
    return updated


def _runs(digests: Digests) -> tuple[_Numbers, _Numbers]:
    """Return where the runs of equal digests start and end."""
    is_new = np.concatenate(([True], (digests[1:] != digests[:-1]).any(axis=1)))
    starts = np.flatnonzero(is_new)
    return starts, np.concatenate((starts[1:], [len(digests)]))


def _changed(group: _Group) -> MetadataIntegrityError:
    return MetadataIntegrityError(
        "this file, or one read before it, had another number of rows when it was read again: it "
        "was replaced meanwhile. Read the changes again, and run 'ags1 table verify'",
        file=group.tasks[-1].file.file_path,
    )

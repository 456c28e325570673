"""Reads an encrypted table as a stream: the rows that its snapshots append, each once.

``spark.readStream.format("ags1-iceberg").load("db.table")`` follows the snapshots of main, or of
``branch``. The rules and the names of options are those of Iceberg's Spark runtime: a snapshot that
appends is read; one that only rewrites files (a compaction) has no new rows; one that overwrites or
deletes is an error unless ``streaming-skip-overwrite-snapshots`` or
``streaming-skip-delete-snapshots`` is ``true``. A row that a later snapshot deletes is still read,
because only appended files are.

The offset of a query names a snapshot, and how many of its added files have been read::

    {"snapshot_id": -1}                     before the first snapshot
    {"snapshot_id": 7}                      all of snapshot 7
    {"snapshot_id": 7, "position": 3}       the first three files of snapshot 7

Snapshots do not change, so a micro-batch that is run again has the same files. The checkpoint has
offsets only. A new query begins with the oldest snapshot, after ``start-snapshot-id``, or with the
first snapshot at or after ``stream-from-timestamp`` (ms since 1970). A micro-batch has at most
``streaming-max-files-per-micro-batch``, ``streaming-max-rows-per-micro-batch`` and
``streaming-max-bytes-per-micro-batch`` (stored bytes), but at least one file.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Operation, Snapshot, ancestors_of
from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.types import StructType

from .. import options as opt
from ..iceberg_api import ADDED, EncryptedTable, ManifestEntry, as_stored, read_entries
from ..table_access import open_of_options
from .reader import TablePartition, TableReader, partitions_of, row_filter_of, scan_of

try:
    from pyspark.sql.streaming import datasource as _limits
except ImportError:  # PySpark before 4.2, which has no read limits
    _limits = None

_log = logging.getLogger(__name__)
_EndsWithWhatIsThere: Any = object if _limits is None else _limits.SupportsTriggerAvailableNow

FROM_TIMESTAMP = "stream-from-timestamp"
START = "start-snapshot-id"
SKIP_DELETES = "streaming-skip-delete-snapshots"
SKIP_OVERWRITES = "streaming-skip-overwrite-snapshots"
MAX_FILES = "streaming-max-files-per-micro-batch"
MAX_ROWS = "streaming-max-rows-per-micro-batch"
MAX_BYTES = "streaming-max-bytes-per-micro-batch"
# The snapshot ID of an offset that is before the first snapshot, as in Java.
_NONE_READ = -1


class Offset(NamedTuple):
    """Where a query is: ``files`` of the files that a snapshot added are read; None means all."""

    snapshot_id: int
    files: int | None = None

    @classmethod
    def of(cls, given: Mapping[str, int]) -> Offset:
        return cls(given["snapshot_id"], given.get("position"))

    def json(self) -> dict[str, int]:
        position = {} if self.files is None else {"position": self.files}
        return {"snapshot_id": self.snapshot_id, **position}


@dataclass(frozen=True, slots=True)
class Limits:
    """What a micro-batch may have at most; None is no limit. Bytes are stored bytes."""

    files: int | None
    rows: int | None
    size: int | None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Limits:
        """Raises ValueError."""
        size = opt.size(options, MAX_BYTES, 0) or None
        return cls(opt.count(options, MAX_FILES), opt.count(options, MAX_ROWS), size)

    @property
    def any(self) -> bool:
        return any(limit is not None for limit in (self.files, self.rows, self.size))

    def exceeded(self, files: int, rows: int, size: int) -> bool:
        """Return whether so much is more than a micro-batch may have."""
        found = ((files, self.files), (rows, self.rows), (size, self.size))
        return any(limit is not None and count > limit for count, limit in found)


class History:
    """The snapshots of a branch, from the oldest that the table knows to the newest. ``skipped``
    has for each operation whether its snapshots are passed over. ``from_ms`` is the time at which a
    query begins, if it was given."""

    def __init__(
        self,
        table: EncryptedTable,
        branch: str | None,
        skipped: Mapping[Operation, bool],
        from_ms: int | None,
    ) -> None:
        self.table = table
        self._skipped = skipped
        self._from_ms = from_ms
        head = table.snapshot_by_name(branch) if branch else table.current_snapshot()
        if branch and head is None:
            raise ValueError(f"the table has no branch {branch!r}: correct the option 'branch'")
        self._chain = list(ancestors_of(head, table.metadata))[::-1]

    @property
    def end(self) -> Offset:
        """The offset after all that exists."""
        return Offset(self._chain[-1].snapshot_id) if self._chain else Offset(_NONE_READ)

    @property
    def begin(self) -> Offset:
        """The offset before the first snapshot that a new query reads."""
        since = self._from_ms or 0
        first = next((s for s in self._chain if s.timestamp_ms >= since), None)
        return Offset(_NONE_READ) if first is None else Offset(first.snapshot_id, 0)

    @property
    def begins_late(self) -> bool:
        """Whether a new query would begin after snapshots that were expired."""
        oldest = self._chain[0].parent_snapshot_id if self._chain else None
        return self._from_ms is None and oldest is not None

    def check(self, offset: Offset) -> int:
        """Return where the offset's snapshot is in the branch; -1 if it was expired, but nothing
        after it was. Raises ValueError if snapshots after it may have been expired, or if the
        branch does not have it any more."""
        number = offset.snapshot_id
        for index, snapshot in enumerate(self._chain):
            if snapshot.snapshot_id == number:
                return index
        if self._chain and offset == Offset(self._chain[0].parent_snapshot_id or _NONE_READ):
            return -1
        advice = f"begin a new query, with another checkpoint and {START!r} or {FROM_TIMESTAMP!r}"
        if self.table.snapshot_by_id(number) is None:
            raise ValueError(
                f"the stream was read up to snapshot {number}, and the table does not have it any "
                f"more: it was expired, and so may be rows that were not read. To go on, {advice}"
            )
        raise ValueError(
            f"the stream was read up to snapshot {number}, and the branch does not have it any "
            f"more: the branch was rolled back or replaced. To go on, {advice}"
        )

    def appends(self, begin: Offset, end: Offset) -> Iterator[Snapshot]:
        """Yield the snapshots between two offsets that append. Raises ValueError for one that a
        stream does not read, and as ``check``."""
        if begin.snapshot_id == _NONE_READ and not self.begins_late:
            begin = self.begin
            if begin.snapshot_id == _NONE_READ:
                return
        stop = self.check(end)
        first = self.check(begin) + (begin.files is None)
        for snapshot in self._chain[max(first, 0) : stop + 1]:
            if self._is_append(snapshot):
                yield snapshot

    def files(self, begin: Offset, end: Offset) -> Iterator[tuple[Offset, ManifestEntry]]:
        """Yield the files that were added between two offsets, each with the offset after it.
        Their order is always the same. Raises as ``appends``."""
        for snapshot in self.appends(begin, end):
            number = snapshot.snapshot_id
            added = [
                entry
                for manifest in self.manifests(snapshot)
                for entry in read_entries(manifest, self.table.io)
                if entry.status == ADDED and entry.snapshot_id == number
            ]
            first = begin.files if number == begin.snapshot_id else 0
            last = end.files if number == end.snapshot_id else None
            for count, entry in enumerate(added[first:last], (first or 0) + 1):
                yield Offset(number, count if count < len(added) else None), entry

    def manifests(self, snapshot: Snapshot) -> list[ManifestFile]:
        """Return the data manifests that a snapshot added."""
        return [
            manifest
            for manifest in snapshot.manifests(self.table.io)
            if manifest.content == ManifestContent.DATA
            and manifest.added_snapshot_id == snapshot.snapshot_id
        ]

    def _is_append(self, snapshot: Snapshot) -> bool:
        operation = Operation.APPEND if snapshot.summary is None else snapshot.summary.operation
        if operation == Operation.APPEND:
            return True
        if operation == Operation.REPLACE or self._skipped[operation]:
            return False
        option = SKIP_DELETES if operation == Operation.DELETE else SKIP_OVERWRITES
        raise ValueError(
            f"snapshot {snapshot.snapshot_id} has the operation {operation.value!r}, and a stream "
            f"reads only appended rows: to pass over such snapshots, set {option!r} to 'true'"
        )


class TableStreamReader(DataSourceStreamReader, _EndsWithWhatIsThere):  # type: ignore[misc]
    """Reads what snapshots append. Its pickle has options, and no keys. Raises ValueError for
    options that are not valid, and KmsConfigurationError for one that is a secret."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = dict(options)
        self._columns = schema.fieldNames()
        self._reader = TableReader(options, schema)
        self._limits = Limits.of(options)
        self._skipped = {
            Operation.DELETE: opt.flag(options, SKIP_DELETES),
            Operation.OVERWRITE: opt.flag(options, SKIP_OVERWRITES),
        }
        self._from_ms = opt.count(options, FROM_TIMESTAMP)
        self._start_id = opt.count(options, START)
        if self._from_ms is not None and self._start_id is not None:
            said = f"the options {FROM_TIMESTAMP!r} and {START!r} exclude each other"
            raise ValueError(f"{said}: leave one out")
        self._last: Offset | None = None  # the end of a query that takes only what exists now
        self.__setstate__({})

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in _OF_PROCESS}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        # Only the process that plans has these. ``_at`` is where the query is, as far as known.
        self._table: EncryptedTable | None = None
        self._projected: Schema | None = None
        self._at: Offset | None = None

    def initialOffset(self) -> dict[str, int]:
        """Return the offset at which a new query begins. Raises ValueError if the table does not
        have the snapshot ``start-snapshot-id``."""
        history = self._history()
        if self._start_id is not None:
            self._at = Offset(self._start_id)
            history.check(self._at)
        else:
            self._at = history.begin
            if history.begins_late:
                _log.warning("the stream begins with the oldest snapshot: others were expired")
        return self._at.json()

    def latestOffset(
        self, start: dict[str, int] | None = None, limit: Any = None
    ) -> dict[str, int]:
        """Return the end of the next micro-batch. Raises as ``History.files``.

        PySpark before 4.2 gives no arguments. Then the micro-batch begins where the last one ends.
        Before the first call, Spark plans an empty range to say where a query goes on.
        """
        begin = self._at if start is None else Offset.of(start)
        history = self._history()
        end = self._last or history.end
        is_whole = _limits is not None and isinstance(limit, _limits.ReadAllAvailable)
        # Nothing is as late yet as the query begins, and the offset has to go on saying so.
        waits = begin is not None and begin.snapshot_id == _NONE_READ == history.begin.snapshot_id
        if waits or begin == end or end.snapshot_id == _NONE_READ:
            end = begin or end
        elif begin is not None and self._limits.any and not is_whole:
            end = self._limited(history.files(begin, end), begin, end)
        elif begin is not None:
            for _ in history.appends(begin, end):
                pass  # raises for snapshots that are not read
        self._at = end
        return end.json()

    def _limited(
        self, files: Iterator[tuple[Offset, ManifestEntry]], begin: Offset, end: Offset
    ) -> Offset:
        """Return the offset after as many files as a micro-batch may have."""
        at, rows, size = begin, 0, 0
        for count, (after, entry) in enumerate(files, 1):
            rows += entry.data_file.record_count
            size += entry.data_file.file_size_in_bytes
            if count > 1 and self._limits.exceeded(count, rows, size):
                return at
            at = after
        return end

    def getDefaultReadLimit(self) -> Any:
        """Return a limit of the kind that the options give; ``latestOffset`` applies it."""
        limits = self._limits
        if limits.files is not None:
            return _limits.ReadMaxFiles(limits.files)
        if limits.rows is not None:
            return _limits.ReadMaxRows(limits.rows)
        if limits.size is not None:
            return _limits.ReadMaxBytes(limits.size)
        return _limits.ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Let this query end with what exists now."""
        self._last = self._history().end

    def reportLatestOffset(self) -> dict[str, int]:
        """Return the offset after all that exists."""
        return self._history().end.json()

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[TablePartition]:
        """Return the tasks for the files that were added after ``start`` up to ``end``. Raises as
        ``latestOffset`` and ``EncryptedScan.plan_files``."""
        begin, last = Offset.of(start), Offset.of(end)
        self._at = last
        if begin == last:
            return []
        history = self._history()
        added = [entry for _, entry in history.files(begin, last)]
        wanted = {(entry.snapshot_id, entry.data_file.file_path) for entry in added}
        manifests = [m for s in history.appends(begin, last) for m in history.manifests(s)]

        def is_wanted(entry: Any) -> bool:
            file = entry.snapshot_id, entry.data_file.file_path
            return entry.status == ADDED and file in wanted

        table = history.table
        row_filter = row_filter_of(self._options, schema=table.schema())
        scan = table.scan(row_filter, snapshot_id=last.snapshot_id)
        tasks = scan.planner().plan_files(manifests, is_wanted) if wanted else []
        if not tasks:
            return []
        return partitions_of(table, self._options, scan, tasks, self._projection(table))

    def read(self, partition: TablePartition) -> Iterator[pa.RecordBatch]:
        """Yield a task's rows. Raises as ``TableReader.read``."""
        return self._reader.read(partition)

    def _projection(self, table: EncryptedTable) -> Schema:
        """Return the columns to read. Until the query ends, they are the same fields, whatever
        names the table gives them. Raises ValueError if they are not those of the frame."""
        if self._projected is None:
            projected = scan_of(table, self._options).projection()
            names = [field.name for field in projected.fields]
            if names != self._columns:
                raise ValueError(
                    "the table's columns are not those that the stream was made with: load the "
                    "table again"
                )
            self._projected = as_stored(projected)
        return self._projected

    def _history(self) -> History:
        """Return the snapshots that the table has now."""
        if self._table is None:
            self._table = open_of_options(self._options)
        else:
            self._table.refresh()
        branch = self._options.get("branch")
        return History(self._table, branch, self._skipped, self._from_ms)


_OF_PROCESS = ("_table", "_projected", "_at")

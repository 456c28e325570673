"""Deletes, updates and merges over executors, each one snapshot: the driver's part.

    driver     plans the files that may have matching rows
    executors  read them, with the number of the file and the position of each row
    Spark      computes by SQL which rows go, and the new ones; a merge joins them with the source
    executors  write the new rows into data files, and report the positions of the old rows
    executors  remove the old rows: by deletion vectors, or by rewriting their files
    driver     commits all, with the version that was read as its base

An updated row keeps its row ID, and gets the sequence number of the new snapshot, as in Java. No
row passes the driver: it gets positions, as bitmaps, and records of files. ``row_tasks`` is what
the executors do, and ``merge`` has the SQL.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression
from pyiceberg.expressions.visitors import extract_field_ids
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask
from pyiceberg.types import FloatType
from pyroaring import BitMap64
from pyspark.errors import SparkRuntimeException
from pyspark.sql.types import LongType, StructField, StructType

from ...errors import Ags1Error
from ...keys.envelope import KeyEncryptionKey
from ..arrow_rows import arrow_schema, spark_schema
from ..iceberg_api import (
    METADATA_COLUMNS,
    POSITION_ID,
    ROW_ID,
    ContentFile,
    DeletePlanner,
    EncryptedScan,
    EncryptedTable,
    FileChange,
    Matches,
    Read,
    SnapshotStep,
    TableOutput,
    TableView,
    WritePlan,
    as_stored,
    bound_filter,
    check_readable,
    columns_of,
    is_copy_on_write,
    isolation_level,
    metadata_with_lineage,
    schema_with_lineage,
)
from ..iceberg_source.column_names import naming
from ..iceberg_source.filters import as_in_spark, conjuncts, parse_filter
from ..iceberg_source.reader import (
    TablePartition,
    numbered_rows_of,
    partitions_of,
    path_of_number,
)
from ..iceberg_source.writer import snapshot_properties
from ..queries import frame_of
from ..table_access import JobKey, SentFile, SentRecord, without_history
from .executors import SparkRewrites
from .row_tasks import (
    ACTION,
    FILE,
    POSITION,
    Changed,
    ChangingRows,
    Positions,
    Removal,
    Removed,
    RemovingRows,
)

ROW_ID_NAME = METADATA_COLUMNS[ROW_ID].name
# The columns of a target row beside the table's own.
_ROW_ID = StructField(ROW_ID_NAME, LongType())
_LOCATION = [StructField(FILE, LongType()), StructField(POSITION, LongType()), _ROW_ID]
_WORD = re.compile(r"`(?:[^`]|``)+`|\w+")
_CARDINALITY = "MERGE_CARDINALITY_VIOLATION"

# From the target rows: rows with an action, where the old row is, and the new row.
Actions: TypeAlias = "Callable[[Any], Any]"


@dataclass(frozen=True, slots=True)
class RowChanges:
    """How many rows of the table a command has deleted and updated, and how many it has
    inserted."""

    rows_deleted: int = 0
    rows_updated: int = 0
    rows_inserted: int = 0


@dataclass(frozen=True, slots=True)
class Command:
    """A delete, update or merge. ``name`` is that in ``write.{name}.mode`` and
    ``write.{name}.isolation-level``. All rows that it
    changes satisfy ``row_filter``; if it deletes all that do, it is ``exact``. ``columns`` are the
    names of the table's columns that ``actions`` needs; None means all. ``writes`` is true if it
    may make new rows, and ``inserts`` if it may do so without any old ones."""

    name: str
    actions: Actions
    row_filter: BooleanExpression = field(default_factory=AlwaysTrue)
    exact: bool = False
    columns: frozenset[str] | None = None
    writes: bool = True
    inserts: bool = False


class ChangedTable:
    """The table of a command: ``table``, opened, and the ``options`` by which executors open it.
    These were checked."""

    def __init__(
        self, spark: Any, table: EncryptedTable, options: Mapping[str, str], cores: int | None
    ) -> None:
        self.spark = spark
        self.table = table
        self.options = options
        self._cores = cores
        # The names of columns, as Spark resolves them.
        self.own_name = naming(options, table.schema())
        taken = {ACTION, FILE, POSITION, ROW_ID_NAME} & {f.name for f in table.schema().fields}
        if taken:
            raise NotImplementedError(
                f"the table has a column named {taken.pop()!r}, which changes of rows use for "
                "themselves: rename the column"
            )

    @property
    def schema(self) -> StructType:
        """The table's columns in Spark's types."""
        return _in_spark(as_stored(self.table.schema()))

    def default_of(self, name: str) -> Any:
        """Return what a new row has in a column that it does not name."""
        return self.table.schema().find_field(name).write_default

    def filter_of(self, where: str | None, prefix: str = "") -> tuple[BooleanExpression, bool]:
        """Return a filter that is true wherever ``where`` is, to choose files by, and whether it is
        exactly ``where``. It has those parts of ``where`` that are filters on the table's columns,
        whose names begin with ``prefix``."""
        if where is None:
            return AlwaysTrue(), True
        if any(sign in where for sign in ('"', "\\", "''")):
            # Spark's settings decide what is in double quotes, and what a backslash or two quotes
            # in a string are.
            return AlwaysTrue(), False
        parts = [self._filter_of(part, prefix) for part in conjuncts(where)]
        found = [part for part in parts if part is not None]
        return And(AlwaysTrue(), AlwaysTrue(), *found), len(found) == len(parts)

    def _filter_of(self, text: str, prefix: str) -> BooleanExpression | None:
        """Return a filter that means what Spark takes the text for; None if that is not sure, or if
        it names a FLOAT. ``spark.sql.ansi.enabled`` decides how these compare with integers."""
        schema = self.table.schema()

        def own_name(name: str) -> str:
            if not name.lower().startswith(prefix):
                raise ValueError(f"{name!r} is not a column of the table")
            return self.own_name(name[len(prefix) :])

        try:
            row_filter = as_in_spark(parse_filter(text, own_name=own_name), schema)
            bound = bound_filter(row_filter, schema)
        except (Ags1Error, ValueError, TypeError, NotImplementedError):
            return None
        kinds = map(schema.find_type, extract_field_ids(bound) & set(schema.field_ids))
        is_float = any(isinstance(kind, FloatType) for kind in kinds)
        hidden = extract_field_ids(bound) - set(schema.field_ids)
        return None if is_float or hidden else row_filter

    def columns_in(self, *texts: str | None) -> frozenset[str] | None:
        """Return the names of the table's columns that expressions may use, at least those that
        they do; None if it is not known."""
        if any("*" in text for text in texts if text):
            return None
        words = {
            word.strip("`").replace("``", "`").lower()
            for text in texts
            for word in _WORD.findall(text or "")
        }
        names = (column.name for column in self.table.schema().fields)
        return frozenset(name for name in names if name.lower() in words)

    def run(self, command: Command, branch: str | None) -> RowChanges:
        """Carry out a command and commit it. Raises as ``EncryptedTransaction.commit_transaction``,
        what Spark raises for its expressions, and as reading and writing does."""
        transaction = self.table.transaction()
        done = RowChanges()
        with SparkRowChanges(self.spark, self.options, self._cores) as executor, transaction:

            def change(view: TableView) -> FileChange:
                nonlocal done
                run = _Run(self, command, view, transaction.output, executor)
                changed = run.change()
                done = run.done
                return changed

            properties = snapshot_properties(self.options)
            step = SnapshotStep(transaction.output, change, properties, branch)
            transaction.stage_step(step)
        return done


class _Run:
    """A command on one version of the table. ``done`` is what it has done."""

    def __init__(
        self,
        target: ChangedTable,
        command: Command,
        view: TableView,
        output: TableOutput,
        executor: SparkRowChanges,
    ) -> None:
        self._target = target
        self._command = command
        self._view = view
        self._output = output
        self._executor = executor
        # As in Java, both are checked before anything is read.
        self._copy_on_write = is_copy_on_write(view.properties, command.name, "copy-on-write")
        isolation_level(view.properties, command.name)
        self.done = RowChanges()

    def change(self) -> FileChange:
        """Do the work; return what to commit."""
        command, view = self._command, self._view
        planner = DeletePlanner(view, command.row_filter, exact=command.exact)
        parts = self._parts(planner.unknown)
        changed = Outcome()
        if parts or command.inserts:
            rows = sum(task.file.record_count for task in planner.unknown)
            columns = self._new_columns()
            frame = command.actions(self._frame(parts, rows))
            changed = self._executor.change_rows(view, self._output, frame, parts, columns)
        by_path = {task.file.file_path: task for task in planner.unknown}
        removals = [(by_path[path], gone) for path, gone in changed.removed.of_file.items()]
        emptied, removed = self._executor.remove_rows(
            view, self._output, removals, copy_on_write=self._copy_on_write
        )
        plan = planner.plan(
            (task, Matches(gone, BitMap64(), len(gone) + (number not in emptied)))
            for number, (task, gone) in enumerate(removals)
        )
        deleted = plan.matched_rows - changed.updated
        self.done = RowChanges(deleted, changed.updated, changed.inserted)
        field_ids = columns_of(command.row_filter, view.schema)
        read = Read(command.row_filter, plan.read, field_ids, command.name)
        gone = [*plan.dropped, *plan.superseded]
        if not self._copy_on_write:
            return FileChange(added=changed.files, deletes=removed, removed=gone, read=read)
        gone += [entry for _, entry in plan.vectors.values()]
        read = replace(read, rewrites=bool(plan.vectors))
        return FileChange(added=[*changed.files, *removed], removed=gone, read=read)

    def _projected(self) -> Schema:
        """Return the columns to read of the table's own. Raises UnsupportedTypeError."""
        names = self._command.columns
        fields = self._view.schema.fields
        chosen = Schema(*(f for f in fields if names is None or f.name in names))
        check_readable(chosen)
        return as_stored(chosen)

    def _parts(self, tasks: list[FileScanTask]) -> list[TablePartition]:
        view = self._view
        if not tasks or view.snapshot is None:
            return []
        scan = EncryptedScan(
            table_metadata=view.parsed,
            io=view.files,
            row_filter=self._command.row_filter,
            snapshot_id=view.snapshot.snapshot_id,
        )
        more = METADATA_COLUMNS[POSITION_ID], METADATA_COLUMNS[ROW_ID]
        projected = Schema(*self._projected().fields, *more)
        return partitions_of(self._target.table, self._target.options, scan, tasks, projected)

    def _frame(self, parts: list[TablePartition], rows: int) -> Any:
        schema = StructType([*_LOCATION, *_in_spark(self._projected())])
        wanted = arrow_schema(schema)
        return frame_of(
            self._target.spark,
            parts,
            rows,
            lambda part: numbered_rows_of(part, wanted, FILE),
            schema,
        )

    def _new_columns(self) -> pa.Schema | None:
        """Return the columns of new rows; None if the command makes none. Raises ValueError if
        the table has a column whose values do not pass through Spark."""
        if not self._command.writes:
            return None
        schema = schema_with_lineage(as_stored(self._view.schema))
        required = {column.name for column in schema.fields if column.required}
        in_spark = arrow_schema(StructType([_ROW_ID, *_in_spark(as_stored(self._view.schema))]))
        # Spark does not say that a column has no nulls. That is checked when rows are written.
        columns = pa.schema(f.with_nullable(f.name not in required) for f in in_spark)
        WritePlan(metadata_with_lineage(self._view.metadata)).conversion(columns)
        return columns


@dataclass
class Outcome:
    """What the tasks of ``ChangingRows`` have done; ``removed`` has rows by the path of a file."""

    files: list[ContentFile] = field(default_factory=list)
    removed: Positions = field(default_factory=Positions)
    updated: int = 0
    inserted: int = 0


class SparkRowChanges(SparkRewrites):
    """Writes new rows and removes old ones on executors, which open the table by ``options``. As a
    context manager, it cleans up as ``SparkRewrites`` does."""

    def change_rows(
        self,
        view: TableView,
        output: TableOutput,
        actions: Any,
        parts: list[TablePartition],
        columns: pa.Schema | None,
    ) -> Outcome:
        """Carry out ``actions``, a DataFrame. Raises as ``JobGroup.collect``, and
        SparkRuntimeException if several source rows match a row."""
        key, job, key_size = self._keys(view, output)
        work = ChangingRows(
            self._job_table,
            view.manager.table_key_id,
            key_size,
            key,
            metadata_with_lineage(without_history(view.metadata)),
            columns,
        )
        rows = self._group.collect(lambda: actions.mapInArrow(work, "result binary"))
        done, matched = Outcome(), Positions()
        for packed in rows.column(0).to_pylist():
            result: Changed = pickle.loads(packed)
            for file in _records(result.files, job):
                self._note(file, output)
                done.files.append(file)
            _gather(result.removed, parts, done.removed)
            _gather(result.matched, parts, matched)
            matched.has_twice |= result.matched_twice
            done.updated += result.updated
            done.inserted += result.inserted
        if matched.has_twice:
            raise _several_matches()
        return done

    def remove_rows(
        self,
        view: TableView,
        output: TableOutput,
        removals: list[tuple[FileScanTask, BitMap64]],
        *,
        copy_on_write: bool,
    ) -> tuple[set[int], list[ContentFile]]:
        """Remove the rows at these positions. Return the indexes of the files that have no row
        left, and the new deletion vectors or data files of the others."""
        emptied: set[int] = set()
        files: list[ContentFile] = []
        if not removals:
            return emptied, files
        key, job, key_size = self._keys(view, output)
        metadata = without_history(view.metadata)
        work = RemovingRows(
            self._job_table, view.manager.table_key_id, key_size, key, metadata, copy_on_write
        )

        def send(number: int) -> Removal:
            task, positions = removals[number]
            deletes = tuple(SentFile.of(delete, job) for delete in task.delete_files)
            packed = BitMap64(positions, optimize=True).serialize()
            return Removal(number, SentFile.of(task.file, job), deletes, packed)

        def cost(number: int) -> int:
            task, positions = removals[number]
            return task.file.file_size_in_bytes if copy_on_write else len(positions)

        with closing(self._run(range(len(removals)), cost, send, work)) as results:
            result: Removed
            for result in results:
                emptied.update(result.emptied)
                for file in _records(result.sent, job):
                    self._note(file, output)
                    files.append(file)
        return emptied, files

    def _keys(self, view: TableView, output: TableOutput) -> tuple[JobKey, KeyEncryptionKey, int]:
        """Make a key of the job; return it, its unwrapped form, and the size of new keys."""
        output.check_process()
        self._folders[view.locations.data_path] = output
        key = JobKey.by_kms(view.manager)
        key_size = len(view.manager.new_file_key().encryption_key)
        return key, key.open(view.manager.cache), key_size


def _records(sent: Iterable[SentRecord], job: KeyEncryptionKey) -> list[ContentFile]:
    return [ContentFile.of(**record.fields_with_key(job)) for record in sent]


def _gather(packed: Mapping[int, bytes], parts: list[TablePartition], found: Positions) -> None:
    """Add what a task has found to the positions by path."""
    for number, data in packed.items():
        positions = BitMap64.deserialize(data)
        found.add(path_of_number(parts, number), positions, len(positions))


def _several_matches() -> SparkRuntimeException:
    # Spark's words and condition. Its own exception is made in the JVM.
    return SparkRuntimeException(
        "The ON search condition of the MERGE statement matched a single row from the target table "
        "with multiple rows of the source table. This could result in the target row being "
        "operated on more than once with an update or delete operation and is not allowed. "
        "SQLSTATE: 23K01",
        errorClass=_CARDINALITY,
        messageParameters={},
    )


def _in_spark(schema: Schema) -> StructType:
    return spark_schema(schema_to_pyarrow(schema, include_field_ids=False))

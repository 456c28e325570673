"""Reads encrypted tables: the driver plans the scan, and tasks read its parts. A task reads some
data files, or a part of a large one, and applies their deletes. Only wrapped keys are sent to
it."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import starmap
from typing import Any, NamedTuple

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from ...keys.envelope import KeyEncryptionKey
from .. import options as opt
from ..arrow_rows import arrow_schema, conform
from ..iceberg_api import (
    POSITION_ID,
    ROW_ID,
    EncryptedIncrementalScan,
    EncryptedScan,
    EncryptedTable,
    TaskReader,
    as_stored,
    bound_filter,
    check_readable,
    filtered_schema,
    parse_metadata,
    splits_of,
)
from ..splits import PART_SIZE, grouped
from ..table_access import (
    JobKey,
    SentFile,
    new_job_id,
    open_of_options,
    table_of_process,
    without_history,
)
from ..workers import end_of_task
from .column_names import name_now, naming
from .filters import as_in_spark, parse_filter
from .snapshots import Pin, pin_of


def scan_of(
    table: EncryptedTable, options: Mapping[str, str], pin: Pin | None = None
) -> EncryptedScan | EncryptedIncrementalScan:
    """Return the scan that the options describe, of the version ``pin``; by default, of the one
    that the options name. Raises ValueError, also for a column or a version that does not exist,
    and UnsupportedTypeError."""
    pin = pin or pin_of(table, options)
    pin.check(table)
    schema = table.schemas()[pin.schema_id]
    chosen = pin.of_own_columns
    frame = schema if chosen is None else table.scan(snapshot_id=chosen).projection()
    row_filter = row_filter_of(options, schema=schema, frame=frame)
    own_name = naming(options, frame)
    columns = tuple(map(own_name, opt.names(options.get("columns")))) or ("*",)
    scan: EncryptedScan | EncryptedIncrementalScan
    if pin.start is not None:
        scan = table.incremental_append_scan(
            from_snapshot_id_exclusive=pin.start,
            to_snapshot_id_inclusive=pin.snapshot_id,
            row_filter=row_filter,
            selected_fields=columns,
        )
    else:
        scan = table.scan(row_filter, columns, snapshot_id=chosen)
    version = {"current_snapshot_id": pin.snapshot_id, "current_schema_id": pin.schema_id}
    scan = scan.update(table_metadata=scan.table_metadata.model_copy(update=version))
    check_readable(scan.projection(), "give the option 'columns'")
    return scan


def row_filter_of(
    options: Mapping[str, str],
    name: str = "filter",
    schema: Schema | None = None,
    frame: Schema | None = None,
) -> BooleanExpression:
    """Return the row filter of an option; without it, all rows match. Its columns have their names
    in ``schema``, if that is given. The option has those of ``frame``, which is another version of
    the schema; by default the same. Raises ValueError."""
    text = options.get(name)
    if not text:
        return AlwaysTrue()
    if schema is None:
        return parse_filter(text, name, str)
    then = frame or schema
    own_name = naming(options, then)
    try:
        bound_filter(parse_filter(text, name, own_name), then)
    except TypeError as error:
        raise ValueError(
            f"the option {name!r} compares a column with a value of another type ({error}): write "
            "strings in quotes, and numbers without"
        ) from error
    parsed = parse_filter(text, name, lambda given: name_now(own_name(given), then, schema))
    return as_in_spark(parsed, filtered_schema(schema, parsed))


@dataclass(frozen=True, slots=True)
class _Job:
    """What all tasks of a scan share; pickled. Jobs of the same id are equal."""

    job_id: str
    options: tuple[tuple[str, str], ...] = field(compare=False)
    metadata: dict[str, Any] = field(compare=False)
    projected: str = field(compare=False)
    row_filter: BooleanExpression = field(compare=False)
    key: JobKey = field(compare=False)


class SealedTask(NamedTuple):
    """A data file, or its part ``split`` (offset and length), and the delete files that apply."""

    file: SentFile
    deletes: list[SentFile]
    split: tuple[int, int] | None


class TablePartition(InputPartition):  # type: ignore[misc]
    """What a Spark task reads."""

    def __init__(self, job: _Job | None, tasks: list[SealedTask]) -> None:
        super().__init__(len(tasks))
        self.job = job
        self.tasks = tasks


def partitions_of(
    table: EncryptedTable,
    options: Mapping[str, str],
    scan: EncryptedScan | EncryptedIncrementalScan,
    tasks: list[FileScanTask],
    projected: Schema | None = None,
) -> list[TablePartition]:
    """Divide the tasks of a scan, of which there must be some, among Spark's. ``projected`` are the
    columns to read, by default the scan's. Raises KmsError."""
    snapshot: Any = scan.table_metadata.current_snapshot()
    if isinstance(scan, EncryptedScan):
        snapshot = scan.snapshot()
    key, job_key = JobKey.under_kek_of(table.files.keys, snapshot.key_id)
    projected = as_stored(scan.projection()) if projected is None else projected
    metadata = without_history(table.view().metadata)
    metadata["current-schema-id"] = scan.table_metadata.current_schema_id
    job = _Job(
        new_job_id(),
        tuple(sorted(options.items())),
        metadata,
        projected.model_dump_json(),
        scan.row_filter,
        key,
    )
    sent: dict[Any, SentFile] = {}

    def sealed(file: Any) -> SentFile:
        if file not in sent:
            sent[file] = SentFile.of(file, job_key)
        return sent[file]

    def sealed_task(task: FileScanTask, split: tuple[int, int] | None) -> SealedTask:
        return SealedTask(sealed(task.file), [sealed(d) for d in task.delete_files], split)

    part_size = opt.size(options, "partsize", PART_SIZE)
    counted = _counts_rows(projected, scan)
    groups = grouped(_splits(tasks, part_size, counted=counted), part_size)
    return [TablePartition(job, list(starmap(sealed_task, group))) for group in groups]


class TableReader(DataSourceReader):  # type: ignore[misc]
    """Reads the version ``pin`` of an encrypted table; by default, the one that the options name
    when the scan is planned. Its pickle has wrapped keys only."""

    def __init__(
        self, options: Mapping[str, str], schema: StructType, pin: Pin | None = None
    ) -> None:
        opt.refuse_secrets(options)
        self._pin = pin
        self._options = dict(options)
        self._schema = schema

    def partitions(self) -> list[TablePartition]:
        """Plan the scan. Raises as ``EncryptedScan.plan_files``."""
        table = open_of_options(self._options)
        scan = scan_of(table, self._options, self._pin)
        tasks = scan.plan_files()
        if not tasks:
            return [TablePartition(None, [])]
        return partitions_of(table, self._options, scan, tasks)

    def read(self, partition: TablePartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task's files. Raises as ``TaskReader.batches``, and KmsError."""
        yield from rows_of(partition, arrow_schema(self._schema))
        end_of_task()


def rows_of(partition: TablePartition, wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a partition in the columns ``wanted``, which Spark expects. Raises as
    ``TaskReader.batches``, FormatError and KmsError."""
    for reader, task, split in _opened(partition):
        for batch in reader.batches(task, split):
            yield conform(batch, wanted)


def count_of(partition: TablePartition) -> int:
    """Return the number of rows of a partition. Raises as ``TaskReader.count``, and KmsError."""
    return sum(reader.count(task, split) for reader, task, split in _opened(partition))


def _opened(
    partition: TablePartition,
) -> Iterator[tuple[TaskReader, FileScanTask, tuple[int, int] | None]]:
    if partition.job is None:
        return
    reading = _reading(partition.job)
    for file, deletes, split in partition.tasks:
        task = FileScanTask(file.open(reading.key), {d.open(reading.key) for d in deletes})
        yield reading.reader, task, split


class _Reading(NamedTuple):
    reader: TaskReader
    key: KeyEncryptionKey


@functools.lru_cache(maxsize=4)
def _reading(job: _Job) -> _Reading:
    """Return what this process reads a job's files with. It is cached, so that deletes of several
    tasks are read once."""
    table = table_of_process(job.job_id, job.options)
    metadata = parse_metadata(job.metadata)
    bound = bound_filter(job.row_filter, metadata.schema())
    projected = Schema.model_validate_json(job.projected)
    reader = TaskReader(table.files, metadata, projected, bound)
    return _Reading(reader, job.key.open(table.files.keys.cache))


_Split = tuple[FileScanTask, "tuple[int, int] | None"]


def _counts_rows(projected: Schema, scan: EncryptedScan | EncryptedIncrementalScan) -> bool:
    """Return whether a scan asks for the rows' positions in their files."""
    asked = filtered_schema(projected, scan.row_filter).field_ids
    return not asked.isdisjoint((POSITION_ID, ROW_ID))


def _splits(
    tasks: list[FileScanTask], part_size: int, *, counted: bool
) -> Iterator[tuple[list[_Split], int]]:
    """Yield the splits of each data file, and its size in bytes."""
    for task in tasks:
        splits = splits_of(task, part_size, counted=counted)
        parts: list[_Split] = [(task, split if len(splits) > 1 else None) for split in splits]
        yield parts, task.file.file_size_in_bytes

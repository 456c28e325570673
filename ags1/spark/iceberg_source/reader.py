"""Reads encrypted tables: the driver plans the scan, and tasks read its parts. A task reads some
data files, or a part of a large one, and applies their deletes. Only wrapped keys are sent to
it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from ...iceberg.distributed import (
    EncryptedScan,
    EncryptedTable,
    ScanJob,
    bind_filter,
    parse_filter,
    rename_columns,
)
from .. import options as opt
from ..arrow_rows import arrow_schema, conform
from ..planning_errors import in_few_words
from ..splits import PART_SIZE, grouped
from ..table_access import TableByOptions, open_of_options
from ..workers import end_of_task
from .column_names import naming
from .snapshots import Pin, resolve_pin


def build_scan(
    table: EncryptedTable, options: Mapping[str, str], pin: Pin | None = None
) -> EncryptedScan:
    """Return the scan that the options describe, of the version ``pin``; by default, of the one
    that the options name. Raises ValueError, also for a column or a version that does not exist,
    and UnsupportedTypeError."""
    pin = pin or resolve_pin(table, options)
    pin.check(table)
    schema = table.schemas()[pin.schema_id]
    row_filter = parse_option_filter(options, schema=schema)
    columns = tuple(map(naming(options, schema), opt.names(options.get("columns")))) or ("*",)
    # A table without a snapshot may have one by now.
    pinned = table.metadata.model_copy(update={"current_snapshot_id": pin.snapshot_id})
    scan: EncryptedScan = table.scan(row_filter, columns, snapshot_id=pin.snapshot_id).update(
        table_metadata=pinned, schema_id=pin.schema_id
    )
    ScanJob.columns(scan)  # raises UnsupportedTypeError
    return scan


def parse_option_filter(
    options: Mapping[str, str], name: str = "filter", schema: Schema | None = None
) -> BooleanExpression:
    """Return the row filter of an option, which is in PyIceberg's grammar; without it, all rows
    match. If ``schema`` is given, its columns are the schema's. Raises ValueError."""
    text = options.get(name)
    if not text:
        return AlwaysTrue()
    try:
        parsed = parse_filter(text)
        if schema is None:
            return parsed
        parsed = rename_columns(parsed, naming(options, schema))
        bind_filter(parsed, schema, metadata_columns=True)
        return parsed
    except (TypeError, ValueError) as error:
        raise ValueError(f"the option {name!r} ({text!r}) is wrong: {error}") from error


class TablePartition(InputPartition):  # type: ignore[misc]
    """What a Spark task reads."""

    def __init__(self, job: ScanJob | None, tasks: list[Any]) -> None:
        super().__init__(len(tasks))
        self.job = job
        self.tasks = tasks

    def batches(self, wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows in the columns ``wanted``, which Spark expects. Raises as
        ``ScanJob.batches``, and FormatError."""
        if self.job is not None:
            for batch in self.job.batches(self.tasks):
                yield conform(batch, wanted)


def plan_partitions(
    table: EncryptedTable,
    options: Mapping[str, str],
    scan: EncryptedScan,
    tasks: list[FileScanTask],
    projected: Schema | None = None,
) -> list[TablePartition]:
    """Divide the tasks of a scan, of which there must be some, among Spark's. ``projected`` are the
    columns to read, by default the scan's. Raises KmsError."""
    part_size = opt.size(options, "partsize", PART_SIZE)
    named = TableByOptions.of(options)
    job, files = ScanJob.plan(table, scan, tasks, named, part_size, projected)
    return [TablePartition(job, group) for group in grouped(files, part_size)]


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

    @in_few_words
    def partitions(self) -> list[TablePartition]:
        """Plan the scan. Raises as ``EncryptedScan.plan_files``."""
        table = open_of_options(self._options)
        scan = build_scan(table, self._options, self._pin)
        tasks = scan.plan_files()
        if not tasks:
            return [TablePartition(None, [])]
        return plan_partitions(table, self._options, scan, tasks)

    def read(self, partition: TablePartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task's files. Raises as ``TablePartition.batches``."""
        yield from partition.batches(arrow_schema(self._schema))
        end_of_task()

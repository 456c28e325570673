"""Queries on encrypted tables as DataFrames: ``read_table`` and ``count``.

Spark tells a Python data source neither which columns a query uses nor, in a way that can be relied
on, which rows. These functions get both as arguments. The driver plans the scan in the caller's own
process, and tasks read its parts::

    session.range ──► an ID for each part ──► the part's description ──► mapInArrow: its rows
                                                  │
                        the descriptions of all parts, once on each executor

All of it is DataFrames, so that it works on Spark Connect too. Only wrapped keys are in the plan.
The length of the range is chosen so that Spark takes its size for that of the rows. Otherwise it
would send every table whole to each executor (a broadcast).
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyiceberg.schema import Schema
from pyspark.sql.types import LongType, StructField, StructType

from ..iceberg.distributed import ScanJob
from . import known_options as known
from . import options as opt
from .arrow_rows import arrow_schema, spark_schema
from .iceberg_source.reader import TablePartition, build_scan, plan_partitions
from .table_access import open_of_options
from .workers import end_of_task

_COUNT = StructType([StructField("count", LongType(), nullable=False)])
_MOST_IDS = 1_000_000
# What Spark takes for the size of an ID with the one row of descriptions, whatever their size.
_ID_SIZE = 860
# What Spark counts for a row, and for a value of variable length, in bytes.
_ROW_SIZE, _VALUE_SIZE = 8, 20


def read_table(
    spark: Any,
    table: str,
    options: Mapping[str, str] | None = None,
    *,
    columns: Iterable[str] | None = None,
    where: str | None = None,
    snapshot: int | None = None,
    branch: str | None = None,
) -> Any:
    """Return a DataFrame of an encrypted table's rows. ``spark`` is a classic session or one of
    Spark Connect.

    ``table`` is the table's name in a catalog or the location of its metadata.json. ``options`` are
    those of the data source "ags1-iceberg", without secrets. The other arguments are its options
    ``columns``, ``filter`` (in PyIceberg's grammar), ``snapshot-id`` and ``branch``. The columns
    come in the table's order.

    Files and row groups without matching rows are not read. The DataFrame has the rows of the
    snapshot that is current now, however often and however late it is used. Spark estimates its
    size from the number of rows in its files.

    Raises as ``open_of_options`` and ``EncryptedScan.plan_files``; ValueError for an option,
    column, snapshot or branch that is not known.
    """
    given = _options(table, options, columns, where, snapshot, branch)
    opened = open_of_options(given)
    scan = build_scan(opened, given)
    schema = spark_schema(ScanJob.columns(scan))
    tasks = scan.plan_files()
    rows = sum(task.file.record_count for task in tasks)
    wanted = arrow_schema(schema)
    parts = plan_partitions(opened, given, scan, tasks) if tasks else []
    return build_frame(spark, parts, rows, lambda part: part.batches(wanted), schema)


def count(
    spark: Any | None,
    table: str,
    options: Mapping[str, str] | None = None,
    *,
    where: str | None = None,
    snapshot: int | None = None,
    branch: str | None = None,
) -> int:
    """Return the number of rows of an encrypted table, from its manifests as far as they suffice.

    They suffice for a file if all of its rows match ``where`` and none is deleted. Other files are
    read: by Spark's executors, or by this process if ``spark`` is None. The arguments and errors
    are as in ``read_table``.
    """
    given = _options(table, options, None, where, snapshot, branch)
    opened = open_of_options(given)
    scan = build_scan(opened, given)
    if spark is None:
        whole: int = scan.count()
        return whole
    known_rows, tasks = scan.count_by_manifests()
    if not tasks:
        return known_rows
    parts = plan_partitions(opened, given, scan, tasks, Schema())
    wanted = arrow_schema(_COUNT)

    def counted(part: TablePartition) -> Iterator[pa.RecordBatch]:
        assert part.job is not None
        number = part.job.count(part.tasks)
        yield pa.record_batch([pa.array([number], pa.int64())], schema=wanted)

    frame = build_frame(spark, parts, len(parts), counted, _COUNT)
    return int(known_rows + sum(row[0] for row in frame.collect()))


def _options(
    table: str,
    options: Mapping[str, str] | None,
    columns: Iterable[str] | None,
    where: str | None,
    snapshot: int | None,
    branch: str | None,
) -> dict[str, str]:
    """Return all that is asked for as options of the data source. Raises ValueError for one that
    is not known or is given twice, and KmsConfigurationError for one that is a secret."""
    given = opt.as_spark_names(options)
    arguments = {
        "path": table,
        "columns": None if columns is None else _joined(columns),
        "filter": where,
        "snapshot-id": None if snapshot is None else str(snapshot),
        "branch": branch,
    }
    for name, value in arguments.items():
        if value is not None and given.setdefault(name, value) != value:
            raise ValueError(f"the option {name!r} is an argument too: leave one out")
    opt.refuse_secrets(given)
    known.check(given, known.TABLES, known.READ)
    return given


def _joined(columns: Iterable[str]) -> str:
    if isinstance(columns, str):
        return columns
    names = list(columns)
    if not names:
        raise ValueError("no column is named: use count(), or name one in 'columns'")
    if wrong := [name for name in names if "," in name]:
        raise ValueError(f"the column {wrong[0]!r} has a comma in its name: select it with Spark")
    return ",".join(names)


def build_frame(
    spark: Any,
    parts: list[TablePartition],
    rows: int,
    read: Callable[[TablePartition], Iterator[pa.RecordBatch]],
    schema: StructType,
) -> Any:
    """Return a DataFrame that has a task for each part, with what ``read`` yields for it.

    The descriptions of all parts are one row, which Spark sends once to each executor. There each
    task takes the description of its own part, and no other reaches its Python.

    Spark takes the size of the input for that of the output of ``mapInArrow``. An input of one ID
    for each part would make every table look small enough to be sent whole to each executor. So the
    input is a range of IDs that Spark believes to be as large as the rows of the table, up to
    860 MB. One of them for each part passes.
    """
    if not parts:
        return spark.createDataFrame([], schema)
    size = rows * (_ROW_SIZE + sum(map(_size, arrow_schema(schema).types)))
    step = max(1, min(size // _ID_SIZE, _MOST_IDS) // len(parts))
    job = parts[0].job
    sent = pa.array([[pickle.dumps(part.tasks) for part in parts]], pa.list_(pa.binary()))

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for tasks in batch.column(0).to_pylist():
                yield from read(TablePartition(job, pickle.loads(tasks)))
        end_of_task()

    described = spark.createDataFrame(pa.table({"parts": sent})).hint("broadcast")
    numbers = spark.range(0, step * len(parts), 1, len(parts)).where(f"id % {step} = 0")
    own = numbers.crossJoin(described).selectExpr(f"parts[int(id div {step})] AS part")
    return own.mapInArrow(run, schema)


def _size(kind: pa.DataType) -> int:
    """Return about how many bytes a value has."""
    try:
        return max(1, int(kind.bit_width) // 8)
    except ValueError:
        return _VALUE_SIZE

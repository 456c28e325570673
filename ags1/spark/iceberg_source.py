"""The data source "ags1-iceberg": encrypted Iceberg tables, without Java's runtime.

For installations where that cannot be configured with a KMS, and for the KMSs that it lacks::

    spark.read.format("ags1-iceberg").option("catalog", "prod").load("db.table")
    df.write.format("ags1-iceberg").option("catalog", "prod").mode("append").save("db.table")

The scan is planned on the driver, which opens the manifests; a task reads some data files, or a
part of a large one, and applies their deletes. Options to read: ``filter`` (a row filter as
PyIceberg parses it), ``columns`` (names with commas between), ``snapshot-id`` or ``branch`` (or a
tag), ``partSize`` (stored bytes for a task, 64m); and those of ``table_access``. Filters are not
taken from Spark, see ``datasource``. For writing see ``iceberg_sink``.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, cast

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.expressions.visitors import bind
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from ..iceberg.filters import as_sql
from ..iceberg.metadata import parse_metadata
from ..iceberg.pyiceberg_internals import parse_row_filter
from ..iceberg.reading import TaskReader
from ..iceberg.scan import EncryptedScan
from ..iceberg.snapshots import ContentFile
from ..iceberg.table import EncryptedTable
from ..keys.envelope import KeyEncryptionKey
from . import options as opt
from .iceberg_sink import TableWriter
from .sources.arrow_rows import arrow_schema, conform, spark_schema
from .table_access import (
    JobKey,
    TravellingFile,
    new_job_id,
    open_of_options,
    table_of_process,
    without_history,
)
from .workers import end_of_task

NAME = "ags1-iceberg"
_PART_SIZE = 64 << 20
# What opening a file costs, in the bytes that could be read meanwhile.
_OPEN_COST = 1 << 20
_MAX_COUNTED_SPLITS = 16


def register(spark: Any) -> None:
    """Make "ags1-iceberg" known to a Spark session."""
    spark.dataSource.register(Ags1IcebergDataSource)


class Ags1IcebergDataSource(DataSource):  # type: ignore[misc]  # PySpark's types are not read
    """See the module."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        """Return the columns of the table, or of the snapshot. Raises as ``open_of_options``, and
        ValueError for a column or snapshot that there is not."""
        scan = scan_of(open_of_options(self.options), self.options)
        return spark_schema(schema_to_pyarrow(scan.projection(), include_field_ids=False))

    def reader(self, schema: StructType) -> TableReader:
        return TableReader(dict(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> TableWriter:
        return TableWriter(dict(self.options), schema, overwrite=overwrite)


def scan_of(table: EncryptedTable, options: Mapping[str, str]) -> EncryptedScan:
    """Return the scan that the options describe. Raises ValueError."""
    snapshot_id: int | None = None
    if text := options.get("snapshot-id"):
        snapshot_id = int(text)
        if table.snapshot_by_id(snapshot_id) is None:
            raise ValueError(f"the table has no snapshot {snapshot_id}")
    if branch := options.get("branch"):
        if snapshot_id is not None:
            raise ValueError("'snapshot-id' and 'branch' are given: one is meant")
        snapshot = table.snapshot_by_name(branch)
        if snapshot is None:
            raise ValueError(f"the table has no branch or tag {branch!r}")
        snapshot_id = snapshot.snapshot_id
    scan = table.scan(
        row_filter=options.get("filter") or AlwaysTrue(),
        selected_fields=tuple(opt.names(options.get("columns"))) or ("*",),
        snapshot_id=snapshot_id,
    )
    scan.projection()  # raises for a column that there is not
    return scan


@dataclass(frozen=True, slots=True)
class _Job:
    """What all tasks of a scan have in common; pickled. ``key`` is None where there is no file."""

    job_id: str
    options: tuple[tuple[str, str], ...]
    metadata: dict[str, Any]
    projected: str
    key: JobKey | None


class SealedTask(NamedTuple):
    """A data file, or the part ``split`` of it (offset and length), and the delete files that apply
    to it."""

    file: TravellingFile
    deletes: list[TravellingFile]
    split: tuple[int, int] | None


class TablePartition(InputPartition):  # type: ignore[misc]
    """What a task of Spark's reads."""

    def __init__(self, job: _Job | None, tasks: list[SealedTask]) -> None:
        super().__init__(len(tasks))
        self.job = job
        self.tasks = tasks


class TableReader(DataSourceReader):  # type: ignore[misc]
    """Reads an encrypted table. What is pickled has wrapped keys only."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        opt.refuse_secrets(options)
        self._options = dict(options)
        self._schema = schema

    def partitions(self) -> list[TablePartition]:
        """Plan the scan. Raises as ``EncryptedScan.plan_files``."""
        table = open_of_options(self._options)
        scan = scan_of(table, self._options)
        tasks = scan.plan_files()
        snapshot: Any = scan.snapshot()
        if not tasks:
            return [TablePartition(None, [])]
        key, job_key = JobKey.under_snapshot_s(table.files.keys, snapshot.key_id)
        job = _Job(
            new_job_id(),
            tuple(sorted(self._options.items())),
            without_history(table.view().metadata),
            scan.projection().model_dump_json(),
            key,
        )
        travelling: dict[Any, TravellingFile] = {}

        def sealed(file: Any) -> TravellingFile:
            if file not in travelling:
                travelling[file] = TravellingFile.of(file, job_key)
            return travelling[file]

        part_size = opt.size(self._options, "partsize", _PART_SIZE)
        return [
            TablePartition(
                job,
                [
                    SealedTask(sealed(t.file), [sealed(d) for d in t.delete_files], split)
                    for t, split in group
                ],
            )
            for group in _groups(tasks, part_size)
        ]

    def read(self, partition: TablePartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task's files. Raises as ``TaskReader.batches``, and KmsError."""
        job = partition.job
        if job is None:
            return
        wanted = arrow_schema(self._schema)
        reading = _reading(job.job_id, _Pinned(job))
        for file, deletes, split in partition.tasks:
            task = FileScanTask(
                file.open(reading.key), delete_files={d.open(reading.key) for d in deletes}
            )
            for batch in reading.reader.batches(task, split):
                yield conform(batch, wanted)
        end_of_task()


class _Pinned:
    """A job as an argument of a function that remembers: one is as good as another of its id."""

    def __init__(self, job: _Job) -> None:
        self.job = job

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Pinned) and self.job.job_id == other.job.job_id

    def __hash__(self) -> int:
        return hash(self.job.job_id)


@dataclass(frozen=True, slots=True)
class _Reading:
    reader: TaskReader
    key: KeyEncryptionKey


@functools.lru_cache(maxsize=4)
def _reading(job_id: str, pinned: _Pinned) -> _Reading:
    """Return what this process reads a job's files with: deletes that several tasks need are read
    once."""
    job = pinned.job
    assert job.key is not None
    table = table_of_process(job_id, job.options)
    metadata = parse_metadata(job.metadata)
    asked = parse_row_filter(dict(job.options).get("filter") or AlwaysTrue())
    row_filter = as_sql(asked, metadata.schema())
    bound = bind(metadata.schema(), row_filter, case_sensitive=True)
    projected = Schema.model_validate_json(job.projected)
    reader = TaskReader(table.files, metadata, projected, bound)
    return _Reading(reader, job.key.open(table.files.keys.cache))


_Split = tuple[FileScanTask, "tuple[int, int] | None"]


def _groups(tasks: list[FileScanTask], part_size: int) -> Iterator[list[_Split]]:
    """Yield the files, or the one part of a file, for each task: about so many stored bytes."""
    gathered: list[_Split] = []
    weight = 0
    for task in tasks:
        splits = splits_of(task, part_size)
        if len(splits) > 1:
            for split in splits:
                yield [(task, split)]
            continue
        size = task.file.file_size_in_bytes + _OPEN_COST
        if gathered and weight + size > part_size:
            yield gathered
            gathered, weight = [], 0
        gathered.append((task, None))
        weight += size
    if gathered:
        yield gathered


def splits_of(task: FileScanTask, part_size: int) -> list[tuple[int, int]]:
    """Return the splits, of about ``part_size`` stored bytes, that a data file is to be read in.

    A Parquet file ends one only where its manifest entry says that a row group begins. An Avro file
    is cut anywhere, but only if it is encrypted: its blocks alone tell then that none is missing,
    where otherwise the count of all rows does. Its text is a little shorter than what is stored,
    which the last splits have room for.
    """
    file = cast("ContentFile", task.file)
    size = file.file_size_in_bytes
    if file.file_format == FileFormat.PARQUET:
        bounds = [0]
        for offset in sorted(file.split_offsets or ()):
            if offset - bounds[-1] >= part_size and size - offset >= part_size // 2:
                bounds.append(offset)
    elif file.file_format == FileFormat.AVRO and file.is_encrypted:
        if any(delete.content == DataFileContent.POSITION_DELETES for delete in task.delete_files):
            # A row's position is found by reading what is before it, as every split does.
            part_size = max(part_size, size // _MAX_COUNTED_SPLITS)
        count = max(1, round(size / part_size))
        bounds = [size * number // count for number in range(count)]
    else:
        bounds = [0]
    return [(begin, end - begin) for begin, end in pairwise([*bounds, size])]

"""Reads the parts of a scan in other processes, which are sent wrapped keys only.

The driver plans the scan. A task reads some data files, or a part of a large one, and applies their
deletes. Independent of how files are grouped into tasks.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa
from pyiceberg.expressions import BooleanExpression
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask

from ...keys.envelope import KeyEncryptionKey
from ..pyiceberg.arrow import arrow_schema
from ..read.binding import bind_filter
from ..read.metadata import parse_metadata
from ..read.scan import EncryptedScan
from ..read.splits import splits_of
from ..read.tasks import TaskReader
from ..spec.column_types import as_stored, check_readable
from ..spec.constants import POSITION_ID, ROW_ID
from ..table import EncryptedTable
from .sealed import JobKey, SentFile, without_history
from .tasks import JobTable


class SealedTask(NamedTuple):
    """A data file, or its part ``split`` (offset and length), and the delete files that apply."""

    file: SentFile
    deletes: list[SentFile]
    split: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class ScanJob:
    """What all tasks of a scan share; picklable. Jobs on the same ``table`` of a job are equal."""

    table: JobTable
    metadata: dict[str, Any] = field(compare=False)
    projected: str = field(compare=False)
    row_filter: BooleanExpression = field(compare=False)
    key: JobKey = field(compare=False)

    @staticmethod
    def columns(scan: EncryptedScan) -> pa.Schema:
        """Return the columns of a scan's rows. Raises UnsupportedTypeError for a column that cannot
        be read."""
        check_readable(scan.projection(), "give the option 'columns'")
        return arrow_schema(scan.projection(), include_field_ids=False)

    @classmethod
    def plan(
        cls,
        table: EncryptedTable,
        scan: EncryptedScan,
        tasks: Iterable[FileScanTask],
        job_table: JobTable,
        part_size: int,
        projected: Schema | None = None,
    ) -> tuple[ScanJob, Iterator[tuple[list[SealedTask], int]]]:
        """Return the job of a scan of ``table``, which has a snapshot, and for each data file its
        parts, of about ``part_size`` bytes, with the file's size in bytes. ``projected`` are the
        columns to read, by default the scan's. Raises KmsError."""
        snapshot: Any = scan.snapshot()
        key, job_key = JobKey.under_kek_of(table.files.keys, snapshot.key_id)
        projected = as_stored(scan.projection()) if projected is None else projected
        metadata = without_history(table.view().metadata)
        metadata["current-schema-id"] = scan.schema.schema_id
        job = cls(job_table, metadata, projected.model_dump_json(), scan.row_filter, key)
        # Whether the scan asks for the rows' positions in their files.
        asked = projected.field_ids | scan.bound_filter.field_ids
        counted = not asked.isdisjoint((POSITION_ID, ROW_ID))
        sent: dict[Any, SentFile] = {}

        def sealed(file: Any) -> SentFile:
            if file not in sent:
                sent[file] = SentFile.of(file, job_key)
            return sent[file]

        def parts() -> Iterator[tuple[list[SealedTask], int]]:
            for task in tasks:
                splits: list[Any] = list(splits_of(task, part_size, counted=counted))
                whole = splits if len(splits) > 1 else [None]
                deletes = [sealed(file) for file in task.delete_files]
                of_file = [SealedTask(sealed(task.file), deletes, split) for split in whole]
                yield of_file, task.file.file_size_in_bytes

        return job, parts()

    def batches(self, tasks: Iterable[SealedTask]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of tasks. Raises as ``TaskReader.batches``, and KmsError."""
        for reader, task, split in self._opened(tasks):
            yield from reader.batches(task, split)

    def count(self, tasks: Iterable[SealedTask]) -> int:
        """Return the number of rows of tasks. Raises as ``TaskReader.count``, and KmsError."""
        return sum(reader.count(task, split) for reader, task, split in self._opened(tasks))

    def _opened(
        self, tasks: Iterable[SealedTask]
    ) -> Iterator[tuple[TaskReader, FileScanTask, tuple[int, int] | None]]:
        reader, key = _reading(self)
        for file, deletes, split in tasks:
            yield reader, FileScanTask(file.open(key), {d.open(key) for d in deletes}), split


@functools.lru_cache(maxsize=4)
def _reading(job: ScanJob) -> tuple[TaskReader, KeyEncryptionKey]:
    """Return what this process reads a job's files with. It is cached, so that deletes of several
    tasks are read once."""
    table = job.table.open()
    metadata = parse_metadata(job.metadata)
    bound = bind_filter(job.row_filter, metadata.schema(), metadata_columns=True)
    projected = Schema.model_validate_json(job.projected)
    reader = TaskReader(table.files, metadata, projected, bound)
    return reader, job.key.open(table.files.keys.cache)

"""Writes a table's new data files in other processes, and commits them as one snapshot.

Each attempt makes keys of its own for its files, and sends them to the driver wrapped under a key
of the job. It has one thread, because each core has a task. Independent of who runs the tasks.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pyarrow as pa
from pyiceberg.expressions import BooleanExpression

from ..read.records import ContentFile
from ..steps import SnapshotStep
from ..storage.output import TableOutput
from ..table import EncryptedTable
from ..transaction import EncryptedTransaction
from ..write.data_files import write_rows
from ..write.partition_replacement import SUMMARY, PartitionReplacement
from ..write.plan import WritePlan
from ..write.snapshot import FileChange
from ..write.view import TableView
from .sealed import SENT_FIELDS, JobKey, SentRecord, without_history
from .tasks import JobTable

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WriteJob:
    """What all tasks that write rows share; picklable. All write by one schema and partitioning,
    whatever other writers commit. ``is_partitioned``: the files have partitions."""

    table: JobTable
    metadata: dict[str, Any]
    key: JobKey
    is_partitioned: bool

    @classmethod
    def begin(cls, table: EncryptedTable, job_table: JobTable, columns: pa.Schema) -> WriteJob:
        """Return a job that writes ``columns``. Raises KmsError, and ValueError if the columns do
        not fit the table's."""
        metadata = without_history(table.view().metadata)
        plan = WritePlan(metadata)
        plan.conversion(columns)
        return cls(job_table, metadata, JobKey.by_kms(table.files.keys), bool(plan.spec.fields))

    def write(self, batches: Iterator[pa.RecordBatch]) -> list[SentRecord]:
        """Write a task's rows as new files, whose names contain the job's ID. Raises as
        ``write_rows``, and then leaves no file."""
        table = self.table.open()
        view = TableView(self.metadata, table.files)
        # One thread: there is a task on each core.
        write_uuid = UUID(self.table.job_id)
        records = write_rows(view, batches, table.output(), write_uuid=write_uuid, threads=1)
        job = self.key.open(table.files.keys.cache)
        return [SentRecord.of_new(record, SENT_FIELDS, job) for record in records]

    def stage(
        self,
        transaction: EncryptedTransaction,
        table: EncryptedTable,
        sent: Sequence[SentRecord],
        properties: Mapping[str, str],
        branch: str,
        row_filter: BooleanExpression | None = None,
        *,
        replaces_partitions: bool = False,
    ) -> None:
        """Add the files that tasks have written, in one snapshot, and delete the rows that
        ``row_filter`` matches or, with ``replaces_partitions``, replace the partitions that the
        files belong to: no files replace none. If the transaction fails, it deletes the files.
        Raises KmsError, AuthenticationError."""
        for file in sent:
            transaction.output.note(file.path)
        job = self.key.open(table.files.keys.cache)
        added = [ContentFile.of(**file.fields_with_key(job)) for file in sent]

        def change(view: TableView) -> FileChange:
            if row_filter is None:
                return FileChange(added=added)
            return transaction.deleting(view, row_filter, True, added)

        recheck = None
        if replaces_partitions:
            if not added:
                return
            replacement = PartitionReplacement(added)
            change, recheck = replacement.change, replacement.recheck
            properties = {**properties, **SUMMARY}
        output = transaction.output
        step = SnapshotStep(output, change, properties, branch, always=True, recheck=recheck)
        transaction.stage_step(step)

    def discard(self, table: EncryptedTable, sent: Sequence[SentRecord]) -> None:
        """Delete the files of the job, also of tasks that died before they could report."""
        output = TableOutput(table.files.inner)
        output.discard([file.path for file in sent])
        folder = TableView(self.metadata, table.files).locations.data_path
        listed = output.listed(folder)
        job_id = self.table.job_id
        if listed is None:
            _log.warning("%s cannot be listed: files of %s may be left", folder, job_id)
        output.discard([path for path in listed or () if job_id in path])

"""Writes encrypted tables from Spark: tasks write the files, and the driver makes one commit.

``mode("append")`` adds the rows. ``mode("overwrite")`` replaces all rows, or those for which the
option ``overwrite-filter`` is true. Either makes one snapshot, on ``branch`` if it is given. Each
attempt makes keys of its own for its files, and sends them to the driver wrapped under a key of the
job. If a task fails for good, the job's files are deleted. If the outcome of a commit is unknown,
its files are kept, because they may belong to the table. If a job succeeds, the files of its killed
attempts are kept, too; nothing refers to them, and ``verify`` lists them.
"""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from ... import private_file
from .. import options as opt
from ..arrow_rows import arrow_schema, conform
from ..iceberg_api import (
    MAIN_BRANCH,
    ContentFile,
    EncryptedTable,
    EncryptedTransaction,
    FileChange,
    SnapshotStep,
    TableOutput,
    TableView,
    WritePlan,
    parse_row_filter,
    write_rows,
)
from ..tables.access import (
    SENT_FIELDS,
    JobKey,
    SentRecord,
    new_job_id,
    open_of_options,
    table_of_process,
    without_history,
)
from ..workers import end_of_task

_log = logging.getLogger(__name__)


@dataclass
class WrittenFiles(WriterCommitMessage):  # type: ignore[misc]  # PySpark's types are not read
    """What a task has written."""

    files: list[SentRecord]


def write_task(
    table: EncryptedTable,
    metadata: dict[str, Any],
    batches: Iterator[pa.RecordBatch],
    write_uuid: UUID,
    key: JobKey,
) -> list[SentRecord]:
    """Write a task's rows as new files of a table with this metadata. The files' names contain
    ``write_uuid``, and their keys are wrapped under ``key``. Raises as ``write_rows``, and then
    leaves no file."""
    view = TableView(metadata, table.files)
    # One thread: Spark runs a task on each core.
    records = write_rows(view, batches, table.output(), write_uuid=write_uuid, threads=1)
    job = key.open(table.files.keys.cache)
    end_of_task()
    return [SentRecord.of_new(record, SENT_FIELDS, job) for record in records]


def taken_over(
    transaction: EncryptedTransaction,
    table: EncryptedTable,
    files: list[SentRecord],
    key: JobKey,
) -> list[ContentFile]:
    """Return the files that tasks have written. If the transaction fails, it deletes them. Raises
    KmsError, AuthenticationError."""
    for file in files:
        transaction.output.note(file.path)
    job = key.open(table.files.keys.cache)
    return [ContentFile.of(**file.fields_with_key(job)) for file in files]


class TableWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """Writes rows to an encrypted table. Its pickle has wrapped keys only. Raises, before any task
    begins, as ``open_of_options``, and ValueError if the columns do not fit the table's."""

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        super().__init__()
        opt.refuse_secrets(options)
        table = open_of_options(options)
        table.output()  # raises if the table cannot be written to
        self._options = tuple(sorted(options.items()))
        self._arrow = arrow_schema(schema)
        self._overwrite = overwrite
        self._job_id = new_job_id()
        # All tasks write by one schema and partitioning, whatever other writers commit.
        self._metadata = without_history(table.view().metadata)
        WritePlan(self._metadata).conversion(self._arrow)
        self._key = JobKey.by_kms(table.files.keys)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenFiles:
        """Write a task's rows as new files. Raises as ``write_rows``, and then leaves no file."""
        table = table_of_process(self._job_id, self._options)
        batches = (conform(batch, self._arrow) for batch in iterator)
        return WrittenFiles(
            write_task(table, self._metadata, batches, UUID(self._job_id), self._key)
        )

    def commit(self, messages: list[WrittenFiles | None]) -> None:
        """Commit what all tasks have written as one snapshot. Raises as ``open_of_options`` and
        ``EncryptedTransaction.commit_transaction``. After ``abort`` no file is left, unless the
        outcome of the commit is unknown."""
        options = dict(self._options)
        try:
            table = open_of_options(options)
            transaction = table.transaction()
        except Exception:
            # Spark calls ``abort`` in another process, which knows nothing but this file.
            with contextlib.suppress(OSError):
                private_file.write(self._not_sent, b"", overwrite=True, durable=False)
            raise
        # The transaction deletes its files if they certainly do not belong to the table.
        with transaction:
            added = taken_over(transaction, table, files_of(messages), self._key)
            row_filter = parse_row_filter(options.get("overwrite-filter") or AlwaysTrue())

            def change(view: TableView) -> FileChange:
                if not self._overwrite:
                    return FileChange(added=added)
                return transaction.deleting(view, row_filter, True, added)

            branch = options.get("branch") or MAIN_BRANCH
            step = SnapshotStep(transaction.output, change, {}, branch, always=True)
            transaction.stage_step(step)

    def abort(self, messages: list[WrittenFiles | None]) -> None:
        """Delete what was written, also by tasks that died before they could report. If all tasks
        have succeeded, the commit has failed. If it had begun a transaction, that has deleted the
        files, or does not know whether they belong to the table."""
        if messages and all(message is not None for message in messages) and not self._is_unsent():
            return
        table = open_of_options(dict(self._options))
        output = TableOutput(table.files.inner)
        output.discard([file.path for file in files_of(messages)])
        folder = TableView(self._metadata, table.files).locations.data_path
        listed = output.listed(folder)
        if listed is None:
            _log.warning("%s cannot be listed: files of %s may be left", folder, self._job_id)
        output.discard([path for path in listed or () if self._job_id in path])

    @property
    def _not_sent(self) -> str:
        """The path of a file that says that nothing was sent to the catalog."""
        return os.path.join(tempfile.gettempdir(), f"ags1-{self._job_id}-not-sent")

    def _is_unsent(self) -> bool:
        try:
            is_ours = os.lstat(self._not_sent).st_uid == os.geteuid()
        except FileNotFoundError:
            return False
        if is_ours:  # any user may write to that folder
            os.unlink(self._not_sent)
        return is_ours


def files_of(messages: Sequence[WrittenFiles | None]) -> list[SentRecord]:
    return [file for message in messages if message is not None for file in message.files]

"""Writing encrypted Iceberg tables from Spark: files by the tasks, one commit by the driver.

``mode("append")`` adds the rows; ``mode("overwrite")`` replaces all rows, or those for which the
option ``overwrite-filter`` is true. Either is one snapshot, on ``branch`` if one is named. A task
makes the keys of its files, for its attempt alone, and sends them to the driver under a key of the
job. When a task fails for good, nothing that the job wrote stays; a commit whose outcome nobody
knows keeps its files, as they may be the table's. What a killed attempt left of a job that
succeeded stays, too: nothing refers to it, and ``verify`` finds it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any
from uuid import UUID

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.table.refs import MAIN_BRANCH
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from .. import private_file
from ..iceberg.listing import list_files
from ..iceberg.pyiceberg_internals import parse_row_filter
from ..iceberg.table import EncryptedTable
from ..iceberg.writing.conversion import RowConversion
from ..iceberg.writing.data_files import WritePlan, write_rows
from ..iceberg.writing.entries import FileRecord
from ..iceberg.writing.output import TableOutput
from ..iceberg.writing.producing import FileChange, location_provider
from ..iceberg.writing.transaction import SnapshotStep
from ..iceberg.writing.view import TableView
from ..keys.envelope import KeyEncryptionKey
from . import options as opt
from .sources.arrow_rows import arrow_schema, conform
from .table_access import (
    JobKey,
    new_job_id,
    open_of_options,
    table_of_process,
    unwrap_key,
    without_history,
    wrap_key,
)
from .workers import end_of_task

_log = logging.getLogger(__name__)

# The one field of a record that does not travel as it is.
_KEY = "key_metadata"


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A new data file on its way to the driver: the fields of its record, its key wrapped."""

    fields: dict[str, Any]
    wrapped_key: bytes

    @classmethod
    def of(cls, record: FileRecord, job: KeyEncryptionKey) -> WrittenFile:
        assert record.key is not None
        known = {f.name: getattr(record, f.name) for f in fields(record) if f.name != _KEY}
        return cls(known, wrap_key(job, record.key, record.file_path))

    @property
    def path(self) -> str:
        return str(self.fields["file_path"])

    def open(self, job: KeyEncryptionKey) -> FileRecord:
        """Return the record with its key. Raises AuthenticationError."""
        km = unwrap_key(job, self.wrapped_key, self.path)
        return FileRecord(**self.fields, key_metadata=km.to_bytes())


@dataclass
class WrittenFiles(WriterCommitMessage):  # type: ignore[misc]  # PySpark's types are not read
    """What a task has written."""

    files: list[WrittenFile]


class TableWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """Writes rows to an encrypted table. What is pickled has wrapped keys only.

    Raises as ``open_of_options``, and ValueError when the columns do not fit the table's: before
    any task begins.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        super().__init__()
        opt.refuse_secrets(options)
        table = open_of_options(options)
        table.output()  # raises where the table cannot be written to
        self._options = tuple(sorted(options.items()))
        self._arrow = arrow_schema(schema)
        self._overwrite = overwrite
        self._job_id = new_job_id()
        # All tasks write for one version of schema and partitioning, whatever others commit.
        self._metadata = without_history(table.view().metadata)
        plan = WritePlan(self._metadata)
        RowConversion(plan.schema, self._arrow, keep_unknown=plan.is_avro)
        self._key = JobKey.by_kms(table.files.keys)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenFiles:
        """Write a task's rows as new files. Raises as ``write_rows``; then none is left."""
        table = table_of_process(self._job_id, self._options)
        view = TableView(self._metadata, table.files)
        # Spark says in its session's zone what these are: instants.
        batches = (conform(batch, self._arrow) for batch in iterator)
        records = write_rows(
            self._metadata,
            batches,
            table.output(),
            view.manager,
            location_provider=location_provider(view),
            write_uuid=UUID(self._job_id),
            # There are as many tasks as there are cores to use.
            threads=1,
        )
        job = self._key.open(table.files.keys.cache)
        end_of_task()
        return WrittenFiles([WrittenFile.of(record, job) for record in records])

    def commit(self, messages: list[WrittenFiles | None]) -> None:
        """Commit what all tasks have written as one snapshot.

        Raises as ``open_of_options`` and ``EncryptedTransaction.commit_transaction``. Unless the
        outcome is unknown, no file is left when ``abort`` has been called.
        """
        options = dict(self._options)
        try:
            table = open_of_options(options)
            transaction = table.transaction()
        except Exception:
            # ``abort`` is called in another process, which is told nothing else.
            with contextlib.suppress(OSError):
                private_file.write(self._not_sent, b"", overwrite=True, durable=False)
            raise
        # It takes its files back where they are certainly not the table's.
        with transaction:
            files = _files_of(messages)
            for file in files:
                transaction.output.note(file.path)
            job = self._key.open(table.files.keys.cache)
            added = [file.open(job) for file in files]
            row_filter = parse_row_filter(options.get("overwrite-filter") or AlwaysTrue())

            def change(view: TableView) -> FileChange:
                if not self._overwrite:
                    return FileChange(added=added)
                return transaction.deleting(view, row_filter, True, added)

            branch = options.get("branch") or MAIN_BRANCH
            step = SnapshotStep(transaction.output, change, {}, branch, always=True)
            transaction.stage_step(step)

    def abort(self, messages: list[WrittenFiles | None]) -> None:
        """Delete what was written, also by tasks that did not live to say so.

        When all tasks have succeeded it was the commit that failed. Where that had a table to
        commit to, it has seen to the files, or does not know whose they are.
        """
        if messages and all(message is not None for message in messages) and not self._is_unsent():
            return
        table = open_of_options(dict(self._options))
        output = TableOutput(table.files.inner)
        output.discard([file.path for file in _files_of(messages)])
        output.discard([path for path in self._found(table) if self._job_id in path])

    @property
    def _not_sent(self) -> str:
        """The path of a file of the driver's that says that nothing was sent to the catalog."""
        return os.path.join(tempfile.gettempdir(), f"ags1-{self._job_id}-not-sent")

    def _is_unsent(self) -> bool:
        try:
            is_ours = os.lstat(self._not_sent).st_uid == os.geteuid()
        except FileNotFoundError:
            return False
        if is_ours:  # anybody may write to that folder
            os.unlink(self._not_sent)
        return is_ours

    def _found(self, table: EncryptedTable) -> list[str]:
        """Return the files where this job's would be."""
        view = TableView(self._metadata, table.files)
        folder = location_provider(view).data_path
        found = list_files(table.files.inner, folder)
        if found is None:
            _log.warning("%s: cannot be listed, files of %s may be left", folder, self._job_id)
        return list(found or ())


def _files_of(messages: list[WrittenFiles | None]) -> list[WrittenFile]:
    return [file for message in messages if message is not None for file in message.files]

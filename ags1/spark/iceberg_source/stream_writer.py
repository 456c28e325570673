"""Writes a stream into an encrypted table: each micro-batch is one snapshot, once.

``df.writeStream.format("ags1-iceberg").option("checkpointLocation", …).start("db.table")``. The
output mode append adds a batch's rows, complete replaces all rows by them. As Iceberg's Spark
runtime does, a snapshot's summary names the query, whose id is in the checkpoint, and the batch
(``spark.sql.streaming.queryId`` and ``spark.sql.streaming.epochId``). If the driver is killed
before it has noted the end of a batch, Spark runs the batch again; the branch has it already, and
the new files are removed. Unlike in Java, this is also looked up each time that the commit is
tried: two drivers of one query cannot both commit a batch.

The files of a batch that a killed driver leaves have the query and the batch in their names. The
first commit of the query's next run removes them. Manifests that it leaves stay, and so do the
files of killed attempts of tasks whose batch is in the table; nothing refers to them, and
``remove_orphan_files`` finds them.
"""

from __future__ import annotations

import functools
import logging
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid5

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.table.snapshots import ancestors_of
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from ...errors import MetadataIntegrityError
from .. import options as opt
from ..arrow_rows import arrow_schema, conform
from ..iceberg_api import (
    MAIN_BRANCH,
    EncryptedTable,
    FileChange,
    SnapshotStep,
    TableOutput,
    TableView,
    WritePlan,
)
from ..table_access import (
    JobKey,
    SentRecord,
    open_of_options,
    table_of_process,
    without_history,
)
from .column_names import as_in_table, named
from .writer import snapshot_properties, taken_over, write_task

_log = logging.getLogger(__name__)

# The names of Iceberg's Spark runtime in a snapshot's summary, and one of ours: the run of a query,
# which begins when the query is started.
QUERY_ID, EPOCH_ID = "spark.sql.streaming.queryId", "spark.sql.streaming.epochId"
RUN_ID = "spark.sql.streaming.runId"
# The properties in which Spark tells a task its query, batch and run.
_TASK_QUERY, _TASK_BATCH, _TASK_RUN = (
    "sql.streaming.queryId",
    "streaming.sql.batchId",
    "spark.jobGroup.id",
)
# Spark counts batches in a Java long.
_NUMBER = re.compile(r"[0-9]{1,19}")
# How long a KEK wraps files' keys: a KMS call for each batch would be too many.
_KEK_SECONDS = 3600


@dataclass(frozen=True, slots=True)
class Epoch:
    """A batch of a query, in one of the query's runs."""

    query_id: str
    number: int
    run_id: str

    @property
    def mark(self) -> UUID:
        """What the names of the batch's files contain."""
        return uuid5(UUID(self.query_id), str(self.number))

    @property
    def summary(self) -> dict[str, str]:
        """What the summary of the batch's snapshot contains."""
        run = {RUN_ID: self.run_id} if self.run_id else {}
        return {QUERY_ID: self.query_id, EPOCH_ID: str(self.number), **run}

    def last_committed(self, view: TableView) -> Epoch | None:
        """Return the query's last batch that the branch of a version has. Snapshots that have
        expired are not found. Raises MetadataIntegrityError if its number is not one."""
        for snapshot in ancestors_of(view.snapshot, view.parsed):
            summary = {} if snapshot.summary is None else snapshot.summary.additional_properties
            if summary.get(QUERY_ID) == self.query_id:
                number = summary.get(EPOCH_ID, "")
                if not _NUMBER.fullmatch(number):
                    raise MetadataIntegrityError(
                        f"the snapshot {snapshot.snapshot_id} is a batch of the query "
                        f"{self.query_id}, and its {EPOCH_ID!r} is not a number: somebody changed "
                        "the metadata. Start the query with a new checkpoint once you trust it"
                    )
                return Epoch(self.query_id, int(number), summary.get(RUN_ID, ""))
        return None


@dataclass
class BatchFiles(WriterCommitMessage):  # type: ignore[misc]  # PySpark's types are not read
    """What a task has written of a batch, and the wrapped key that wraps the files' keys."""

    files: list[SentRecord]
    epoch: Epoch
    key: JobKey


class _CommittedBefore(Exception):
    """The branch has the batch."""


class TableStreamWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]
    """Writes the batches of a query. Its pickle has a wrapped key only. Raises, before a batch
    begins, as ``open_of_options``, and ValueError if the columns do not fit the table's."""

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        super().__init__()
        opt.refuse_secrets(options)
        table = open_of_options(options)
        table.output()  # raises if the table cannot be written to
        self._options = tuple(sorted(options.items()))
        self._arrow = as_in_table(options, arrow_schema(schema), table.schema())
        self._overwrite = overwrite
        self._metadata = without_history(table.view().metadata)
        WritePlan(self._metadata).conversion(self._arrow)
        self._key: JobKey | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Spark sends one writer to the tasks, and makes another one to commit, which needs no key.
        hour = int(time.monotonic()) // _KEK_SECONDS
        return {**self.__dict__, "_key": _key(self._options, hour)}

    def write(self, iterator: Iterator[pa.RecordBatch]) -> BatchFiles:
        """Write a task's rows as new files. Raises as ``write_task``."""
        context = TaskContext.get()
        known = (_TASK_QUERY, _TASK_BATCH, _TASK_RUN)
        query, batch, run = (context and context.getLocalProperty(name) for name in known)
        if not query or not batch:
            said = "Spark does not tell the query and the batch: use PySpark 4.1 or later"
            raise ValueError(said)
        assert self._key is not None
        epoch = Epoch(query, int(batch), run or "")
        table = table_of_process(query, self._options)
        batches = (conform(named(batch, self._arrow), self._arrow) for batch in iterator)
        files = write_task(table, self._metadata, batches, epoch.mark, self._key)
        return BatchFiles(files, epoch, self._key)

    def commit(self, messages: list[BatchFiles | None], batchId: int) -> None:
        """Commit a batch, unless the table has it already: then delete what was written. Raises as
        ``open_of_options``, ``Epoch.last_committed`` and
        ``EncryptedTransaction.commit_transaction``."""
        written = [message for message in messages if message is not None]
        files = [file for message in written for file in message.files]
        # There is none if there was no task, and a batch without rows appends nothing.
        if not written or not (files or self._overwrite):
            return
        epoch, key = written[0].epoch, written[0].key
        table = open_of_options(dict(self._options))
        transaction = table.transaction()
        before: list[Epoch | None] = []
        try:
            # The transaction deletes its files if they certainly do not belong to the table.
            with transaction:
                added = taken_over(transaction, table, files, key)

                def check(view: TableView) -> None:
                    last = epoch.last_committed(view.at(self._branch))
                    if last is not None and last.number >= epoch.number:
                        raise _CommittedBefore
                    before[:] = [last]

                def change(view: TableView) -> FileChange:
                    check(view)
                    if not self._overwrite:
                        return FileChange(added=added)
                    return transaction.deleting(view, AlwaysTrue(), True, added)

                step = SnapshotStep(
                    transaction.output,
                    change,
                    {**snapshot_properties(dict(self._options)), **epoch.summary},
                    self._branch,
                    always=True,
                    recheck=check,
                )
                transaction.stage_step(step)
        except _CommittedBefore:
            _log.info("batch %d of query %s is in the table", epoch.number, epoch.query_id)
            return
        last = before[0]
        if last is None or not epoch.run_id or last.run_id != epoch.run_id:
            _remove_left_files(table, epoch, {file.path for file in files})

    def abort(self, messages: list[BatchFiles | None], batchId: int) -> None:
        """Delete what tasks have written if some task failed. If none did, the commit has failed,
        and it has deleted the files, or does not know whether they belong to the table. The next
        run of the query removes what else is left."""
        if all(message is not None for message in messages):
            return
        written = [message for message in messages if message is not None]
        table = open_of_options(dict(self._options))
        paths = [file.path for message in written for file in message.files]
        TableOutput(table.files.inner).discard(paths)

    @property
    def _branch(self) -> str:
        return dict(self._options).get("branch") or MAIN_BRANCH


def _remove_left_files(table: EncryptedTable, epoch: Epoch, written: set[str]) -> None:
    """Delete the files of a batch that earlier runs of the query have left. ``written`` are those
    that were committed."""
    folder = table.view().locations.data_path
    output = table.output()
    listed = output.listed(folder)
    if listed is None:
        _log.warning("%s cannot be listed: files of %s may be left", folder, epoch.query_id)
        return
    mark = str(epoch.mark)
    kept = {_name(path) for path in written}
    left = [path for path in listed if mark in path and _name(path) not in kept]
    if left:
        # The table may have the batch without a snapshot that says so, if that was expired.
        kept |= {_name(path) for path in table.inspect.all_files()["file_path"].to_pylist()}
        output.discard([path for path in left if _name(path) not in kept])


def _name(path: str) -> str:
    return path.rpartition("/")[2]


@functools.lru_cache(maxsize=4)
def _key(options: tuple[tuple[str, str], ...], hour: int) -> JobKey:
    return JobKey.by_kms(open_of_options(dict(options)).files.keys)

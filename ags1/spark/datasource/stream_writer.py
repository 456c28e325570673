"""Writes a stream as encrypted files, each row once.

``df.writeStream.format("ags1").option("ledger", …).option("inner", "parquet").option("key", …)
.option("checkpointLocation", …).start(folder)`` writes each micro-batch as ``writer`` does, and the
driver's commit makes its files part of the ledger (``ledger_commit``). A batch is identified by the
query's id, which is in the checkpoint, and by its number. If the driver is killed before it has
noted the end of a batch, Spark runs the batch again; the ledger has it already, and the new files
are removed.

Files that a killed driver or task leaves are in a folder of the query inside the target. Readers
pass over it, and the query's next batch removes it. In S3 they are incomplete uploads, which the
bucket's life cycle aborts.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Mapping
from typing import Any
from uuid import UUID

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter
from pyspark.sql.types import StructType

from ...errors import Ags1Error
from .. import options as opt
from ..keys import FileKeys
from ..ledger import DONE, FAILED, Ledger, Row
from ..storage.places import open_storage
from . import staging
from .ledger_commit import commit_to_ledger, ledger_rows, take_back
from .writer import Target, WrittenFile, written_files

# The properties in which Spark tells a task's query and batch.
_QUERY_ID, _BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
# A job's id has so many hexadecimal digits of the query's id, then those of the batch's number.
_QUERY_DIGITS = 32
# How long a KEK wraps files' keys: a KMS call for each batch would be too many.
_KEK_SECONDS = 3600


class StreamWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]  # PySpark's types are not read
    """Writes the batches of a query. Its pickle has a wrapped key only. Raises as
    ``Target.of_options``, and ValueError without a ledger."""

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        super().__init__()
        self._target = Target.of_options(options, schema)
        if self._target.ledger is None:
            message = (
                "writing a stream needs the option 'ledger': it tells which batches are complete"
            )
            raise ValueError(message)
        self._overwrite = overwrite
        self._keys: FileKeys | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Spark sends one writer to the tasks, and makes another one to commit, which needs no key.
        hour = int(time.monotonic()) // _KEK_SECONDS
        keys = _keys(tuple(sorted(self._target.options.items())), hour)
        return {**self.__dict__, "_keys": keys}

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenFile:
        """Write a task's rows as one file. Raises as ``Target.write``."""
        context = TaskContext.get()
        query = context and context.getLocalProperty(_QUERY_ID)
        batch = context and context.getLocalProperty(_BATCH_ID)
        if not query or not batch:
            message = "Spark does not tell the query and the batch: use PySpark 4.1 or later"
            raise ValueError(message)
        assert self._keys is not None
        job_id = job_id_of(query, int(batch))
        return self._target.write(iterator, self._keys, job_id, job_id[:_QUERY_DIGITS])

    def commit(self, messages: list[WrittenFile | None], batchId: int) -> None:
        """Make a batch's files part of the ledger, unless they are already. Raises as
        ``commit_to_ledger``."""
        folder, ledger, again = self._target.folder, self._target.ledger, self._overwrite
        assert ledger is not None
        # There is none if there was no task.
        for job_id in job_ids(messages):
            rows = self._rows(messages, job_id)
            open_storage(folder).make_root(folder)
            if rows or again:
                is_done = functools.partial(is_committed, job_id=job_id)
                commit_to_ledger(ledger, folder, rows, overwrite=again, is_done=is_done)
            staging.clear(folder, job_id, job_id[:_QUERY_DIGITS])

    def abort(self, messages: list[WrittenFile | None], batchId: int) -> None:
        """Remove what tasks, and a commit that failed, have written. If no task has succeeded, the
        next batch does so."""
        assert self._target.ledger is not None
        for job_id in job_ids(messages):
            take_back(self._target.ledger, job_id)
            staging.withdraw(self._rows(messages, job_id))
            staging.clear(self._target.folder, job_id, job_id[:_QUERY_DIGITS])

    def _rows(self, messages: list[WrittenFile | None], job_id: str) -> list[Row]:
        query, batch = UUID(job_id[:_QUERY_DIGITS]), _batch(job_id)
        return ledger_rows(
            self._target.folder, written_files(messages), job_id, f"stream:{query}/{batch}"
        )


def job_ids(messages: list[WrittenFile | None]) -> set[str]:
    """Return the batch that tasks have written, as a job's id; empty without tasks."""
    return {message.job_id for message in messages if message is not None}


def job_id_of(query: str, batch: int) -> str:
    """Return the name of a query's batch in the ledger and in the names of files."""
    return f"{UUID(query).hex}{batch:08x}"


def is_committed(ledger: Ledger, job_id: str) -> bool:
    """Whether the ledger has a query's batch, or a later batch of that query. Raises Ags1Error if
    the driver was killed and a file of the batch was lost before it got its name."""
    query = job_id[:_QUERY_DIGITS]
    # The newest first: the last batch of the query is probably one of them.
    for number in reversed(ledger.numbers()):
        ours = [
            row
            for _, rows in ledger.rows_between(number - 1, number, ("job_id", "status", "error"))
            for row in rows
            if row.job_id.startswith(query) and len(row.job_id) > _QUERY_DIGITS
        ]
        if not any(row.status == DONE for row in ours):
            continue  # no file of it got its name
        lost = next((row for row in ours if row.status == FAILED), None)
        if lost is not None:
            raise Ags1Error(
                f"only a part of a batch of the stream is in the ledger: {lost.error}. Remove the "
                "other files of the batch, or start the query with a new checkpoint"
            )
        newest = max(_batch(row.job_id) for row in ours)
        return newest >= _batch(job_id)
    return False


def _batch(job_id: str) -> int:
    return int(job_id[_QUERY_DIGITS:], 16)


@functools.lru_cache(maxsize=4)
def _keys(options: tuple[tuple[str, str], ...], hour: int) -> FileKeys:
    return opt.sealing_keys(dict(options))

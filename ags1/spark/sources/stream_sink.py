"""Writing a stream as encrypted files, each row once.

``df.writeStream.format("ags1").option("ledger", …).option("inner", "parquet").option("key", …)
.option("checkpointLocation", …).start(folder)`` writes each micro-batch as ``files_sink`` does, and
the driver's commit makes its files part of the ledger (``ledger_sink``). A batch is known by the
query's id, which its checkpoint keeps, and by its number: one that Spark runs again, because the
driver was killed before it had noted the end, is in the ledger already, and what was written again
is thrown away.

Files that a killed driver or task leaves are in a folder of the query inside the target, which
readers pass over and the query's next batch removes. In S3 they are uploads that nobody completes,
for the bucket's life cycle to abort.
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
from ..ledger import DONE, FAILED, Ledger, Row, read_rows
from ..storage.choice import storage_of
from . import sink_folder
from .files_sink import Target, WrittenFile, files_of
from .ledger_sink import commit_to_ledger, rows_of, take_back

# Which query and batch a task is of, as Spark tells it.
_QUERY_ID, _BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
# Hexadecimal digits of a query's id in the id of a job; those of the batch's number follow.
_QUERY_DIGITS = 32
# The KEK that files' keys are wrapped under serves so long: a KMS call for each batch is too many.
_KEK_SECONDS = 3600


class StreamWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]  # PySpark's types are not read
    """Writes the batches of a query. What is pickled has a wrapped key.

    Raises as ``Target.of_options``, and ValueError without a ledger.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        super().__init__()
        self._target = Target.of_options(options, schema)
        if self._target.ledger is None:
            raise ValueError(
                "a stream is written with the option 'ledger': it says which batches are there"
            )
        self._overwrite = overwrite
        self._keys: FileKeys | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Spark makes one writer to send to the tasks, and another one, which needs no key, to
        # commit what they have written.
        hour = int(time.monotonic()) // _KEK_SECONDS
        keys = _keys(tuple(sorted(self._target.options.items())), hour)
        return {**self.__dict__, "_keys": keys}

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenFile:
        """Write a task's rows as one file. Raises as ``Target.write``."""
        context = TaskContext.get()
        query = context and context.getLocalProperty(_QUERY_ID)
        batch = context and context.getLocalProperty(_BATCH_ID)
        if not query or not batch:
            raise ValueError("Spark does not tell which query and batch this is")
        assert self._keys is not None
        job_id = job_id_of(query, int(batch))
        return self._target.write(iterator, self._keys, job_id, job_id[:_QUERY_DIGITS])

    def commit(self, messages: list[WrittenFile | None], batchId: int) -> None:
        """Make a batch's files part of the ledger, unless they are. Raises as
        ``commit_to_ledger``."""
        target = self._target
        assert target.ledger is not None
        # None where there was no task.
        for job_id in jobs_of(messages):
            rows = self._rows(messages, job_id)
            storage_of(target.folder).make_root(target.folder)
            if rows or self._overwrite:
                commit_to_ledger(
                    target.ledger,
                    target.folder,
                    rows,
                    overwrite=self._overwrite,
                    is_done=functools.partial(is_committed, job_id=job_id),
                )
            sink_folder.clear(target.folder, job_id, job_id[:_QUERY_DIGITS])

    def abort(self, messages: list[WrittenFile | None], batchId: int) -> None:
        """Take away what was written, by the tasks and by a commit that failed. Of a batch of which
        no task has succeeded the next one does."""
        assert self._target.ledger is not None
        for job_id in jobs_of(messages):
            take_back(self._target.ledger, job_id)
            sink_folder.withdraw(self._rows(messages, job_id))
            sink_folder.clear(self._target.folder, job_id, job_id[:_QUERY_DIGITS])

    def _rows(self, messages: list[WrittenFile | None], job_id: str) -> list[Row]:
        query, batch = UUID(job_id[:_QUERY_DIGITS]), _batch(job_id)
        return rows_of(self._target.folder, files_of(messages), job_id, f"stream:{query}/{batch}")


def jobs_of(messages: list[WrittenFile | None]) -> set[str]:
    """Return the one batch, as a job's id, that tasks have written; none where there are none."""
    return {message.job_id for message in messages if message is not None}


def job_id_of(query: str, batch: int) -> str:
    """Return the name, in the ledger and in those of files, of a query's batch."""
    return f"{UUID(query).hex}{batch:08x}"


def is_committed(ledger: Ledger, job_id: str) -> bool:
    """Whether the ledger has a query's batch, or a later one of that query.

    Raises Ags1Error where a file of the batch was lost before the driver, killed meanwhile, could
    give it its name.
    """
    query = job_id[:_QUERY_DIGITS]
    # The newest first: a query's last batch is not far.
    for path in reversed(ledger.batches()):
        ours = [
            row
            for row in read_rows(path, ("job_id", "status", "error"))
            if row.job_id.startswith(query) and len(row.job_id) > _QUERY_DIGITS
        ]
        if not any(row.status == DONE for row in ours):
            continue  # none of it could be published
        lost = next((row for row in ours if row.status == FAILED), None)
        if lost is not None:
            raise Ags1Error(f"a batch of the stream is in the ledger in part: {lost.error}")
        newest = max(_batch(row.job_id) for row in ours)
        return newest >= _batch(job_id)
    return False


def _batch(job_id: str) -> int:
    return int(job_id[_QUERY_DIGITS:], 16)


@functools.lru_cache(maxsize=4)
def _keys(options: tuple[tuple[str, str], ...], hour: int) -> FileKeys:
    return opt.sealing_keys(dict(options))

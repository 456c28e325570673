"""Writes encrypted tables from Spark: tasks write the files, and the driver makes one commit.

``mode("append")`` adds the rows. ``mode("overwrite")`` replaces all rows, or those for which the
option ``overwrite-filter`` is true, or the partitions that the new rows belong to, if
``overwrite-mode`` (Iceberg's name) or ``partitionOverwriteMode`` (Spark's) is ``dynamic``. Without
any of these options, Spark's setting ``spark.sql.sources.partitionOverwriteMode`` decides for a
partitioned table, as for Spark's own sources; in Iceberg's Spark runtime it decides for ``INSERT
OVERWRITE`` alone. Each makes one snapshot, on ``branch`` if it is given, with the properties
``snapshot-property.<name>`` in its summary. A dynamic overwrite without rows makes none. Each
attempt makes keys of its own for its files, and sends them to the driver wrapped under a key of the
job. If a task fails for good, the job's files are deleted. If the outcome of a commit is unknown,
its files are kept, because they may belong to the table. If a job succeeds, the files of its killed
attempts are kept, too; nothing refers to them, and ``verify`` lists them.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table.refs import MAIN_BRANCH
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from ...host import private_file
from ...iceberg.distributed import EncryptedTable, WriteJob
from .. import options as opt
from ..arrow_rows import arrow_schema, conform
from ..table_access import TableByOptions, open_of_options
from ..workers import end_of_task
from .column_names import as_in_table, named
from .reader import parse_option_filter

_STATIC, _DYNAMIC = "static", "dynamic"
_MODE_OPTIONS = ("overwrite-mode", "partitionoverwritemode")
_SESSION_S_MODE = "spark.sql.sources.partitionOverwriteMode"
_SNAPSHOT_PROPERTY = "snapshot-property."


@dataclass
class WrittenFiles(WriterCommitMessage):  # type: ignore[misc]  # PySpark's types are not read
    """What a task has written. ``session_s_mode`` is what Spark's session says of overwrites."""

    files: list[Any]
    session_s_mode: str


def snapshot_properties(options: Mapping[str, str]) -> dict[str, str]:
    """Return what the options add to the summary of a snapshot."""
    return {
        name.removeprefix(_SNAPSHOT_PROPERTY): value
        for name, value in options.items()
        if name.startswith(_SNAPSHOT_PROPERTY)
    }


class TableWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """Writes rows to an encrypted table. Its pickle has wrapped keys only. Raises, before any task
    begins, as ``open_of_options``, and ValueError for invalid options or if the columns do not fit
    the table's."""

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        super().__init__()
        opt.refuse_secrets(options)
        self._mode = _overwrite_mode(options, overwrite=overwrite)
        parse_option_filter(options, "overwrite-filter")
        table = _existing(options)
        table.output()  # raises if the table cannot be written to
        self._options = dict(options)
        self._arrow = as_in_table(options, arrow_schema(schema), table.schema())
        self._overwrite = overwrite
        self._job = WriteJob.begin(table, TableByOptions.of(options), self._arrow)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenFiles:
        """Write a task's rows as new files. Raises as ``WriteJob.write``, and then leaves no
        file."""
        batches = (conform(named(batch, self._arrow), self._arrow) for batch in iterator)
        sent = self._job.write(batches)
        end_of_task()
        return WrittenFiles(sent, _session_s_mode())

    def commit(self, messages: list[WrittenFiles | None]) -> None:
        """Commit what all tasks have written as one snapshot. Raises as ``open_of_options`` and
        ``EncryptedTransaction.commit_transaction``. After ``abort`` no file is left, unless the
        outcome of the commit is unknown."""
        options = self._options
        row_filter = None
        try:
            table = open_of_options(options)
            is_dynamic = self._is_dynamic(messages)
            if self._overwrite:
                row_filter = parse_option_filter(options, "overwrite-filter", table.schema())
            transaction = table.transaction()
        except Exception:
            # Spark calls ``abort`` in another process, which knows nothing but this file.
            with contextlib.suppress(OSError):
                private_file.write(self._not_sent, b"", overwrite=True, durable=False)
            raise
        # The transaction deletes its files if they certainly do not belong to the table.
        with transaction:
            self._job.stage(
                transaction,
                table,
                _files_of(messages),
                snapshot_properties(options),
                options.get("branch") or MAIN_BRANCH,
                row_filter,
                replaces_partitions=is_dynamic,
            )

    def _is_dynamic(self, messages: list[WrittenFiles | None]) -> bool:
        """Whether the partitions of the new rows are replaced. Raises ValueError if the session
        decides, and no task could tell what it says."""
        if self._mode is not None or not self._overwrite:
            return self._mode == _DYNAMIC
        if not self._job.is_partitioned:
            return False
        modes = {message.session_s_mode for message in messages if message is not None}
        if not modes:
            raise ValueError(
                "no task has run, so it is not known whether the session overwrites partitions "
                "dynamically: give the option 'overwrite-mode', static or dynamic"
            )
        return _DYNAMIC in modes

    def abort(self, messages: list[WrittenFiles | None]) -> None:
        """Delete what was written, also by tasks that died before they could report. If all tasks
        have succeeded, the commit has failed. If it had begun a transaction, that has deleted the
        files, or does not know whether they belong to the table."""
        if messages and all(message is not None for message in messages) and not self._is_unsent():
            return
        self._job.discard(open_of_options(self._options), _files_of(messages))

    @property
    def _not_sent(self) -> str:
        """The path of a file that says that nothing was sent to the catalog."""
        return os.path.join(tempfile.gettempdir(), f"ags1-{self._job.table.job_id}-not-sent")

    def _is_unsent(self) -> bool:
        try:
            is_ours = os.lstat(self._not_sent).st_uid == os.geteuid()
        except FileNotFoundError:
            return False
        if is_ours:  # any user may write to that folder
            os.unlink(self._not_sent)
        return is_ours


def _existing(options: Mapping[str, str]) -> EncryptedTable:
    try:
        return open_of_options(options)
    except NoSuchTableError as error:
        # As in Java's runtime: neither an append nor an overwrite creates a table.
        raise NoSuchTableError(
            f"{error}: create it with create_table() of ags1.iceberg.load_catalog(), whose "
            "properties name its key, and write again"
        ) from None


def _overwrite_mode(options: Mapping[str, str], *, overwrite: bool) -> str | None:
    """Return what the options say of overwrites: static, dynamic, or None for nothing. A filter is
    static. Raises ValueError."""
    given = {name: options[name].lower() for name in _MODE_OPTIONS if options.get(name)}
    if options.get("overwrite-filter"):
        given["overwrite-filter"] = _STATIC
    for name, mode in given.items():
        if not overwrite:
            raise ValueError(f"the option {name!r} is only for mode('overwrite'): leave it out")
        if mode not in (_STATIC, _DYNAMIC):
            raise ValueError(f"the option {name!r} has to be 'static' or 'dynamic', not {mode!r}")
    if len(set(given.values())) > 1:
        raise ValueError(f"the options {' and '.join(given)} contradict each other: leave one out")
    return next(iter(given.values()), None)


def _session_s_mode() -> str:
    """Return what Spark's session says of overwrites. Spark tells it to tasks only."""
    context = TaskContext.get()
    mode = context and context.getLocalProperty(_SESSION_S_MODE)
    return (mode or _STATIC).lower()


def _files_of(messages: list[WrittenFiles | None]) -> list[Any]:
    return [file for message in messages if message is not None for file in message.files]

"""A scan whose files other processes read: what they are sent has no keys.

The client plans the scan, and sends the paths of its files. A worker opens the table itself, with
its own credentials, and plans the same scan of the same snapshot, once for all of its tasks::

    client      open_table()   plan      sends: ["a.parquet", "b.parquet"] and the scan, …
    worker      open_table()   plan      -> the keys of a.parquet and b.parquet -> rows

Knows nothing of the libraries that send the tasks.
"""

from __future__ import annotations

import functools
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa
from pyiceberg.expressions import BooleanExpression
from pyiceberg.table import FileScanTask, Table

from ..pyiceberg.arrow import arrow_schema
from .scan import EncryptedScan, rows_of_tasks

# A plan has keys, so a worker keeps only the plans of the last scans that it has read.
_KEPT_PLANS = 4


@dataclass(frozen=True)
class SentScan:
    """What a worker needs to plan a scan."""

    number: str
    open_table: Callable[[], Table] = field(compare=False)
    row_filter: str | BooleanExpression = field(compare=False)
    selected_fields: tuple[str, ...] = field(compare=False)
    snapshot_id: int | None = field(compare=False)

    def __dask_tokenize__(self) -> str:
        return self.number

    @classmethod
    def of(
        cls,
        open_table: Callable[[], Table],
        row_filter: str | BooleanExpression,
        selected_fields: tuple[str, ...],
        snapshot_id: int | None,
    ) -> SentScan:
        """Return a scan of the current snapshot, or of ``snapshot_id``. Raises TypeError if
        ``open_table`` is no function."""
        if not callable(open_table):
            raise TypeError(
                f"a function that opens the table is needed, not {type(open_table).__name__}: give "
                "lambda: load_catalog(NAME).load_table(TABLE), which each worker calls"
            )
        table = open_table()
        if snapshot_id is None and table.current_snapshot() is not None:
            snapshot_id = table.metadata.current_snapshot_id
        return cls(str(uuid.uuid4()), open_table, row_filter, selected_fields, snapshot_id)

    def partitions(self, most: int) -> list[list[str]]:
        """Return the paths of the files, in lists whose files have at most ``most`` stored bytes
        together, or one file. Raises TypeError if the table is not encrypted."""
        return list(_partitions(_plan(self)[1].values(), most))

    def schema(self) -> pa.Schema:
        """Return the Arrow schema of the rows."""
        return _schema(_plan(self)[0])

    def read(self, paths: list[str], columns: list[str] | None = None) -> pa.Table:
        """Return the rows of some files, or only ``columns`` of them."""
        scan, tasks = _plan(self)
        if columns is not None:
            # Rows without a column could not be counted.
            read = columns or [scan.projection().fields[0].name]
            scan = scan.update(selected_fields=tuple(read))
        # Files may differ in their types, for example in strings and large strings.
        return rows_of_tasks(scan, [tasks[path] for path in paths]).cast(_schema(scan))


def _schema(scan: EncryptedScan) -> pa.Schema:
    return arrow_schema(scan.projection(), include_field_ids=False)


def _partitions(tasks: Iterable[FileScanTask], most: int) -> Iterator[list[str]]:
    paths: list[str] = []
    size = 0
    for task in tasks:
        coming = task.file.file_size_in_bytes
        if paths and size + coming > most:
            yield paths
            paths, size = [], 0
        paths.append(task.file.file_path)
        size += coming
    if paths:
        yield paths


_planning = threading.Lock()


def _plan(sent: SentScan) -> tuple[EncryptedScan, dict[str, FileScanTask]]:
    # One thread of a worker plans, and the others wait for it.
    with _planning:
        return _planned(sent)


@functools.lru_cache(_KEPT_PLANS)
def _planned(sent: SentScan) -> tuple[EncryptedScan, dict[str, FileScanTask]]:
    table = sent.open_table()
    scan = table.scan(sent.row_filter, sent.selected_fields, snapshot_id=sent.snapshot_id)
    if not isinstance(scan, EncryptedScan):
        raise TypeError("the table is not encrypted: read it by the library's own functions")
    return scan, {task.file.file_path: task for task in scan.plan_files()}

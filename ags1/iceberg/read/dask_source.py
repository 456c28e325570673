"""``read_dask``: a table as a data frame of Dask, whose tasks have no keys.

The client plans the scan, and puts the paths of its files into the graph. A worker opens the table
itself, with its own credentials, and plans the same scan of the same snapshot, once for all of its
tasks::

    client      open_table()   plan      graph: _read(["a.parquet", "b.parquet"], job), …
    worker      open_table()   plan      -> the keys of a.parquet and b.parquet -> rows
"""

from __future__ import annotations

import functools
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyiceberg.expressions import BooleanExpression
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.table import ALWAYS_TRUE, FileScanTask, Table

from ..spec.column_types import as_stored
from .scan import EncryptedScan, rows_of_tasks

if TYPE_CHECKING:
    import dask.dataframe
    import pandas

# A plan has keys, so a worker keeps only the plans of the last frames that it has read.
_KEPT_PLANS = 4


@dataclass(frozen=True)
class _Job:
    """What a worker needs to plan the scan of one frame."""

    number: str
    open_table: Callable[[], Table] = field(compare=False)
    row_filter: str | BooleanExpression = field(compare=False)
    selected_fields: tuple[str, ...] = field(compare=False)
    snapshot_id: int | None = field(compare=False)

    def __dask_tokenize__(self) -> str:
        return self.number


def read_dask(
    open_table: Callable[[], Table],
    row_filter: str | BooleanExpression = ALWAYS_TRUE,
    selected_fields: tuple[str, ...] = ("*",),
    snapshot_id: int | None = None,
    *,
    partition_size: int = 128 << 20,
) -> dask.dataframe.DataFrame:
    """Return a snapshot of a table, by default the current one, as a data frame of Dask.

    Every worker calls ``open_table``, a function without arguments that loads the table, for
    example from a catalog. The graph has this function and the paths of the files, but no keys: a
    worker gets them from the KMS by its own credentials. If the function holds a table or a KMS
    client, it cannot be sent to another process.

    ``row_filter`` and ``selected_fields`` are those of ``scan``. Dask also pushes down the columns
    of a query, but not its filters. A partition has one or more whole files, of about
    ``partition_size`` stored bytes together. Columns have pandas' types of Arrow.

    Raises ImportError if Dask is not installed, TypeError if ``open_table`` is no function or the
    table is not encrypted, and what planning raises.
    """
    import dask.dataframe  # an optional dependency
    import pandas

    if not callable(open_table):
        raise TypeError(
            f"a function that opens the table is needed, not {type(open_table).__name__}: give "
            "lambda: load_catalog(NAME).load_table(TABLE), which each worker calls"
        )
    table = open_table()
    if snapshot_id is None and table.current_snapshot() is not None:
        snapshot_id = table.metadata.current_snapshot_id
    job = _Job(str(uuid.uuid4()), open_table, row_filter, selected_fields, snapshot_id)
    scan, tasks = _plan(job)
    empty = schema_to_pyarrow(as_stored(scan.projection())).empty_table()
    make: Any = dask.dataframe.from_map
    frame: dask.dataframe.DataFrame = make(
        _read,
        list(_partitions(tasks.values(), partition_size)) or [[]],
        job=job,
        meta=empty.to_pandas(types_mapper=pandas.ArrowDtype),
        label="read-ags1",
    )
    return frame


def _partitions(tasks: Iterable[FileScanTask], most: int) -> Iterator[list[str]]:
    """Yield lists of the paths of files that have at most ``most`` bytes together, or of one."""
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


def _read(paths: list[str], job: _Job, columns: list[str] | None = None) -> pandas.DataFrame:
    """Return the rows of some files. Dask finds by the name ``columns`` that it may choose them."""
    import pandas  # an optional dependency

    scan, tasks = _plan(job)
    if columns is not None:
        # Rows without a column could not be counted.
        read = columns or [scan.projection().fields[0].name]
        scan = scan.update(selected_fields=tuple(read))
    rows = rows_of_tasks(scan, [tasks[path] for path in paths])
    # Files may differ in their types, for example in strings and large strings.
    rows = rows.cast(schema_to_pyarrow(as_stored(scan.projection()), include_field_ids=False))
    frame = rows.to_pandas(types_mapper=pandas.ArrowDtype)
    return frame if columns is None else frame[columns]


_planning = threading.Lock()


def _plan(job: _Job) -> tuple[EncryptedScan, dict[str, FileScanTask]]:
    # One thread of a worker plans, and the others wait for it.
    with _planning:
        return _planned(job)


@functools.lru_cache(_KEPT_PLANS)
def _planned(job: _Job) -> tuple[EncryptedScan, dict[str, FileScanTask]]:
    scan = job.open_table().scan(job.row_filter, job.selected_fields, snapshot_id=job.snapshot_id)
    if not isinstance(scan, EncryptedScan):
        raise TypeError("the table is not encrypted: read it by dask.dataframe.from_map itself")
    return scan, {task.file.file_path: task for task in scan.plan_files()}

"""New data files of a table from Arrow data.

Follow a batch from ``append()`` to the files:

    append(rows)
      write_rows, DataFileWriter     one batch of the caller's
        RowConversion                -> the table's columns, types and defaults
        Partitioner.split            -> a batch for each partition
        _Gathered                    -> in memory, until a partition has enough for a row group
    ---- WriterThreads -------------------------------------------------- a few threads from here on
          RollingWriter              -> files of the target size, one after the other
            FileWriter               -> one Parquet or Avro file, fresh key -> ContentFile

The size of the rows that wait is bounded, and so is the number of open files. If anything fails, no
file is left. The caller commits the files' records; this module does not know snapshots.
"""

from __future__ import annotations

import itertools
import secrets
import sys
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any
from uuid import UUID, uuid4

import pyarrow as pa

from ...columns.arrow_nested import with_offsets
from ...errors import MetadataIntegrityError
from ...host.cpu import usable_cpus
from ..read.records import ContentFile
from ..storage.output import TableOutput
from .conversion import Rows, as_batches
from .file_writer import NewFiles
from .plan import WritePlan
from .rolling_writer import RollingWriter
from .view import TableView
from .writer_threads import WriterThreads

_MIB = 1 << 20

# The size of Arrow data in memory: one half is gathered, the other is queued or being written.
_MAX_WAITING = 512 * _MIB
_MAX_OPEN_FILES = 64
# A file of a sorted table is sorted in memory, as a whole.
_MAX_SORTED = 256 * _MIB
# A row group may exceed its size by this factor before the next one is begun.
_ROUNDED_UP = 1.25
_MAX_THREADS = 8


def write_rows(
    view: TableView,
    data: Rows,
    output: TableOutput,
    *,
    write_uuid: UUID | None = None,
    threads: int | None = None,
) -> list[ContentFile]:
    """Write Arrow data as new data files of a table; return their records, for a commit.

    Columns are matched by name; a missing column has its write default. The names of the files
    contain ``write_uuid``. ``threads`` is the number of files that are written at once, by default
    the number of CPUs, at most 8. About half a GiB of a stream, or of the rows of a partitioned
    table, is held in memory. No rows make no files.

    Raises ValueError or TypeError if the data does not fit the table or a property has an
    impossible value, PyIceberg's UnsupportedPyArrowTypeException for an Arrow type that no column
    has, NotImplementedError for a format or type that cannot be written encrypted, OSError, and
    what ``data`` raises. Whatever is raised, KeyboardInterrupt included, no file is left.
    """
    if threads is not None and threads < 1:
        raise ValueError(f"threads must be at least 1, not {threads}")
    provided, batches = as_batches(data)
    try:
        plan = WritePlan(view.metadata)
    except (LookupError, TypeError, AttributeError, OverflowError, StopIteration) as error:
        raise MetadataIntegrityError(
            f"the table's metadata is malformed: {type(error).__name__}"
        ) from error
    if provided is None:
        return []
    with DataFileWriter(
        plan, provided, view, output, write_uuid=write_uuid, threads=threads
    ) as writer:
        if isinstance(data, pa.Table) and not plan.spec.fields:
            writer.write_table(data)
        else:
            for batch in batches:
                writer.write(batch)
    return writer.files


class _Gathered:
    """Rows for a writer, in memory until they make a row group. ``size`` is in bytes."""

    def __init__(self, writer: RollingWriter) -> None:
        self.writer = writer
        # Whether the writer will have an open file when it has done what is queued for it.
        self.has_file = False
        self._clear()

    def add(self, rows: pa.RecordBatch) -> None:
        self._batches.append(rows)
        self.size += rows.nbytes
        self.row_count += rows.num_rows

    def take(self) -> pa.Table:
        """Return the rows, of which there must be some, and forget them."""
        rows = pa.Table.from_batches(self._batches)
        self._clear()
        return rows

    def _clear(self) -> None:
        self._batches: list[pa.RecordBatch] = []
        self.size = self.row_count = 0


class DataFileWriter:
    """Writes data files from record batches of the schema ``provided``; see ``write_rows``.

    ``view`` has the keys and the locations of the table. ``max_waiting`` is the size (bytes) of
    Arrow data that is held in memory, by default 512 MiB. A file of a sorted table has the rows
    that are sorted at once; with ``joins_runs``, it has several such runs until it is full, and its
    record does not say that it is sorted. This is a context manager: when its block ends, ``files``
    has the records; if the block raises, no file is left. One thread may use it.
    """

    def __init__(
        self,
        plan: WritePlan,
        provided: pa.Schema,
        view: TableView,
        output: TableOutput,
        *,
        write_uuid: UUID | None = None,
        threads: int | None = None,
        max_waiting: int | None = None,
        joins_runs: bool = False,
    ) -> None:
        self.files: list[ContentFile] = []
        self._plan = plan
        max_waiting = max_waiting or _MAX_WAITING
        self._max_waiting = max_waiting
        self._thread_count = threads or min(_MAX_THREADS, usable_cpus())
        self._conversion = plan.conversion(provided)
        self._new_files = NewFiles(
            plan,
            self._conversion.arrow_schema,
            output,
            view.manager,
            view.locations,
            # Two processes may have been given the same ``write_uuid``.
            f"{write_uuid or uuid4()}-{secrets.token_hex(4)}",
            joins_runs=joins_runs,
        )
        self._writers: list[RollingWriter] = []
        # For each partition. The one that has waited longest for rows comes first.
        self._gathered: OrderedDict[tuple[Any, ...], _Gathered] = OrderedDict()
        self._gathered_size = 0
        self._threads = WriterThreads(self._thread_count, max_waiting // 2)
        if plan.sort_order is None:
            # Each thread writes one row group while another waits, and one more is gathered.
            largest = max_waiting // (2 * self._thread_count + 2)
            self._group_size = min(plan.row_group_size, plan.target_size, largest)
            self._group_rows = plan.row_group_rows
        else:
            self._group_size = min(_MAX_SORTED, max_waiting // 2)
            if not joins_runs:
                self._group_size = min(plan.target_size, self._group_size)
            self._group_rows = sys.maxsize
        # The writer whose turn it is in a table without partitions.
        self._next = 0

    def write(self, batch: pa.RecordBatch, *, in_turn: bool = True) -> None:
        """Write the rows of a batch. In a table without partitions, each thread has files of its
        own, which get row groups ``in_turn``; otherwise all rows go into the same file until it is
        full. Raises what the writing of earlier rows has raised."""
        number = None if in_turn and not self._plan.spec.fields else 0
        for piece in self._pieces([batch]):
            rows = self._conversion.convert(piece)
            for partition, of_partition in self._plan.partitioner.split(rows):
                self._gather(partition, of_partition, number)

    def write_table(self, table: pa.Table) -> None:
        """Write the rows of a table that is not partitioned. It is cut into several runs of rows,
        which are written at the same time, so that neighbours come into the same file."""
        table = pa.Table.from_batches(map(with_offsets, table.to_batches()), table.schema)
        runs = max(1, min(self._thread_count, -(-table.nbytes // self._plan.target_size)))
        rows = -(-table.num_rows // runs)
        streams = [table.slice(i * rows, rows).to_batches() for i in range(runs)]
        for pieces in itertools.zip_longest(*map(self._pieces, streams)):
            for number, piece in enumerate(pieces):
                if piece is not None:
                    self._gather((), self._conversion.convert(piece), number)

    def end_files(self) -> None:
        """Complete the files of all rows so far; later rows go into others. Raises as ``write``."""
        for gathered in self._gathered.values():
            self._send(gathered)
            self._finish(gathered)
        self._gathered.clear()

    def close(self) -> None:
        """Complete all files. Then ``files`` has their records, in the order of the rows as far as
        they have one. Raises as ``write``."""
        self.end_files()
        self._threads.join()
        self._threads.stop()
        self.files = [record for writer in self._writers for record in writer.files]

    def abort(self) -> None:
        """End the threads and delete all files."""
        self._threads.stop()
        for writer in self._writers:
            # If one file cannot be deleted, the others are.
            with suppress(Exception):
                writer.abort()

    def __enter__(self) -> DataFileWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.abort()
            return
        try:
            self.close()
        except BaseException:
            self.abort()
            raise

    def _pieces(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield batches in slices that are no larger than a row group."""
        for batch in map(with_offsets, batches):
            if batch.num_rows:
                row_size = max(1, batch.nbytes // batch.num_rows)
                count = max(1, min(self._plan.row_group_rows, self._group_size // row_size))
                for start in range(0, batch.num_rows, count):
                    yield batch.slice(start, count)

    def _gather(self, partition: tuple[Any, ...], rows: pa.RecordBatch, number: int | None) -> None:
        """Add rows to those that are gathered for a partition, and send these to the threads when
        they make a row group. ``number`` distinguishes a partition's writers; with None, they take
        turns."""
        while rows.num_rows:
            gathered = self._gathered_for(partition, self._next if number is None else number)
            if gathered.size + rows.nbytes > self._group_size * _ROUNDED_UP:
                self._send(gathered)
            # More rows than that would leave a small row group behind.
            count = min(rows.num_rows, self._group_rows - gathered.row_count)
            added, rows = rows.slice(0, count), rows.slice(count)
            gathered.add(added)
            self._gathered_size += added.nbytes
            if gathered.size >= self._group_size or gathered.row_count >= self._group_rows:
                self._send(gathered)
                self._next = (self._next + 1) % self._thread_count
            elif self._gathered_size > self._max_waiting // 2:
                self._send_largest()

    def _gathered_for(self, partition: tuple[Any, ...], number: int) -> _Gathered:
        key = number, _hashable(partition)
        if key not in self._gathered:
            self._writers.append(RollingWriter(self._new_files, partition))
            self._gathered[key] = _Gathered(self._writers[-1])
        self._gathered.move_to_end(key)
        return self._gathered[key]

    def _send_largest(self) -> None:
        """Send the largest row groups to the threads, unfinished as they are, to free memory."""
        for gathered in sorted(self._gathered.values(), key=lambda x: -x.size):
            self._send(gathered)
            if self._gathered_size < self._max_waiting // 4:
                return

    def _send(self, gathered: _Gathered) -> None:
        if not gathered.row_count:
            return
        if not gathered.has_file:
            self._finish_idle()
        self._gathered_size -= gathered.size
        gathered.has_file = True
        self._threads.write(gathered.writer, gathered.take())

    def _finish_idle(self) -> None:
        """If too many files are open, complete those that have waited longest for rows."""
        having = [gathered for gathered in self._gathered.values() if gathered.has_file]
        for gathered in having[: max(0, len(having) - _MAX_OPEN_FILES + 1)]:
            self._finish(gathered)

    def _finish(self, gathered: _Gathered) -> None:
        if gathered.has_file:
            gathered.has_file = False
            self._threads.finish(gathered.writer)


def _hashable(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return values that are equal for the same partition only: in Python NaN is not equal to NaN,
    but 0.0 to -0.0 and 1 to True."""
    return tuple((type(v), repr(v) if isinstance(v, float) else v) for v in values)

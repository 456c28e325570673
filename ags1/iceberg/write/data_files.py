"""New data files of a table from Arrow data: partitions, parallel writers, files of the right size.

Rows are converted and split by partition as they come, gathered for each partition until they make
a row group, and written by a few threads, in the order of their partition; how much waits is
bounded, and so is how many files are open. Every file has a fresh key, appears whole or not at all,
and when anything fails none is left. The names of table properties and their defaults are Java's.
Knows nothing of snapshots: the files' records go back to the caller, who commits them.
"""

from __future__ import annotations

import itertools
import secrets
import sys
import threading
import warnings
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, BinaryIO, Protocol
from uuid import UUID, uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.parquet.encryption import create_encryption_properties
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table.locations import LocationProvider
from pyiceberg.table.sorting import SortOrder
from pyiceberg.transforms import VoidTransform

from ...cpu import usable_cpus
from ...errors import MetadataIntegrityError, UnsupportedTypeError
from ...keys.manager import EncryptionManager
from ..formats.avro_container import AvroCodec
from ..formats.avro_writer import AvroFileWriter
from ..read.records import DATA, ContentFile
from ..spec.column_types import parse_schema, writable
from ..storage.output import TableOutput
from .conversion import RowConversion, as_batches
from .metrics import ColumnMetrics, MetricsPlan
from .partitions import Partitioner, can_sort, sort_rows

_MIB = 1 << 20

# Of Arrow data that waits: gathered for a row group, queued for a thread, being written.
_MAX_WAITING = 512 * _MIB
_MAX_OPEN_FILES = 64
# A file of a sorted table is sorted in memory, all of it.
_MAX_SORTED = 256 * _MIB
# A row group may be larger by this factor before another is begun for the rows that come.
_ROUNDED_UP = 1.25
# A file that lacks less than this part of its target size is not begun another row group for.
_FULL_ENOUGH = 0.95
# Of 50,000 values that occur at random, so many are met by so many rows.
_ROWS_JUDGED = 5_000
_MOST_DISTINCT = 0.95
_MAX_THREADS = 8
_MAX_SETTING = 1 << 40

_PARQUET_CODECS = {
    "uncompressed": "none",
    "none": "none",
    "snappy": "snappy",
    "gzip": "gzip",
    "brotli": "brotli",
    "lz4": "lz4",
    "lz4_raw": "lz4",
    "zstd": "zstd",
}


def write_rows(
    metadata: Mapping[str, Any],
    data: pa.Table | pa.RecordBatchReader | Iterable[pa.RecordBatch],
    output: TableOutput,
    manager: EncryptionManager,
    *,
    location_provider: LocationProvider,
    write_uuid: UUID | None = None,
    threads: int | None = None,
) -> list[ContentFile]:
    """Write Arrow data as new data files of a table; return their records, for a commit.

    ``metadata`` is the table's, parsed from JSON: its current schema, default partition spec, sort
    order and properties hold. Columns are found by name; what is missing has its write default.
    ``write_uuid`` becomes part of the files' names. ``threads`` is how many files are written at
    once, by default as many as there are CPUs, at most 8. Of a stream, and of a partitioned table,
    about half a GiB is held in memory. No rows, no files.

    Raises ValueError or TypeError for data that does not fit the table and for properties that say
    nothing, PyIceberg's UnsupportedPyArrowTypeException for a type of Arrow's that no column has,
    NotImplementedError for a format or type that cannot be written encrypted, OSError, and what
    ``data`` raises. Whatever is raised, KeyboardInterrupt included, no file is left.
    """
    if threads is not None and threads < 1:
        raise ValueError(f"threads must be at least 1, not {threads}")
    provided, batches = as_batches(data)
    try:
        plan = WritePlan(metadata)
    except (LookupError, TypeError, AttributeError, OverflowError, StopIteration) as error:
        raise MetadataIntegrityError(
            f"the table's metadata is malformed: {type(error).__name__}"
        ) from error
    if provided is None:
        return []
    with DataFileWriter(
        plan,
        provided,
        output,
        manager,
        location_provider=location_provider,
        write_uuid=write_uuid,
        threads=threads,
    ) as writer:
        if isinstance(data, pa.Table) and not plan.spec.fields:
            writer.write_table(data)
        else:
            for batch in batches:
                writer.write(batch)
    return writer.files


class WritePlan:
    """How a table wants its data files, from its metadata. ``schema`` has the columns that are
    written.

    ``target_size`` (bytes) is of a file as it is stored, ``row_group_size`` of Arrow data. Raises
    ValueError for what the properties cannot mean, NotImplementedError for what is not written.
    """

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        properties: Mapping[str, str] = metadata.get("properties") or {}
        self.properties = properties
        self.schema_json = _by_id(metadata["schemas"], "schema-id", metadata["current-schema-id"])
        self._table_schema = parse_schema(self.schema_json)
        self.spec = PartitionSpec.model_validate(
            _by_id(metadata["partition-specs"], "spec-id", metadata["default-spec-id"])
        )
        order = SortOrder.model_validate(
            _by_id(metadata["sort-orders"], "order-id", metadata["default-sort-order-id"])
        )
        self.file_format = properties.get("write.format.default", "parquet").upper()
        if self.file_format not in _FORMATS:
            raise NotImplementedError(
                f"write.format.default is {self.file_format.lower()!r}: encrypted data files are "
                "Parquet or Avro"
            )
        self.is_avro = self.file_format == "AVRO"
        self.schema = writable(self._table_schema, is_avro=self.is_avro)
        left_out = set(self._table_schema.field_ids) - set(self.schema.field_ids)
        for part in self.spec.fields:
            if part.source_id in left_out and not isinstance(part.transform, VoidTransform):
                raise UnsupportedTypeError(
                    f"no rows can be written: the table is partitioned by {part.name!r}, of a "
                    "column that this version does not write"
                )
        # Rows in no order are legal in any table, and rows in half an order are in none.
        self.sort_order = order if can_sort(order, self.schema) else None
        self.target_size = _positive(properties, "write.target-file-size-bytes", 512 * _MIB)
        self.row_group_size = _positive(
            properties, "write.parquet.row-group-size-bytes", 128 * _MIB
        )
        self.row_group_rows = _positive(properties, "write.parquet.row-group-limit", 1_048_576)
        self.metrics = MetricsPlan(self.schema, properties, order, keep_unknown=self.is_avro)
        self.partitioner = Partitioner(self.spec, self.schema, keep_unknown=self.is_avro)
        self.avro_codec = AvroCodec(
            properties.get("write.avro.compression-codec", "gzip").lower(),
            _level(properties, "write.avro.compression-level"),
        )
        self.parquet_options = _parquet_options(properties)

    def conversion(self, provided: pa.Schema) -> RowConversion:
        """Return what makes rows of the table from batches. Raises as ``RowConversion``."""
        return RowConversion(self._table_schema, provided, keep_unknown=self.is_avro)

    def sorted(self, rows: pa.Table) -> pa.Table:
        """Return rows in the table's order, if it has one."""
        if self.sort_order is None:
            return rows
        return sort_rows(rows, self.sort_order, self.schema, keep_unknown=self.is_avro)


class DataFileWriter:
    """Writes data files from record batches of the schema ``provided``; see ``write_rows``.

    A context manager: when its block ends, ``files`` has the records; when it ends by an exception
    nothing is left. One thread may use it.
    """

    def __init__(
        self,
        plan: WritePlan,
        provided: pa.Schema,
        output: TableOutput,
        manager: EncryptionManager,
        *,
        location_provider: LocationProvider,
        write_uuid: UUID | None = None,
        threads: int | None = None,
    ) -> None:
        self.files: list[ContentFile] = []
        self._plan = plan
        self._threads = threads or min(_MAX_THREADS, usable_cpus())
        self._conversion = plan.conversion(provided)
        names = _FileNames(location_provider, write_uuid or uuid4(), plan.file_format.lower())
        self._new = _NewFiles(plan, self._conversion.arrow_schema, output, manager, names)
        self._lanes: OrderedDict[tuple[Any, ...], _Lane] = OrderedDict()
        self._ended: list[_Lane] = []
        self._waiting_size = 0  # gathered in lanes
        self._crew = _Crew(self._threads, _MAX_WAITING)
        # Each thread writes one row group while another waits, and one more is being gathered.
        most = _MAX_WAITING // (2 * self._threads + 2)
        self._group_size = min(plan.row_group_size, plan.target_size, most)
        if plan.sort_order is not None:
            self._group_size = min(plan.target_size, _MAX_SORTED)
        self._next_lane = 0

    def write(self, batch: pa.RecordBatch, *, in_turn: bool = True) -> None:
        """Take the rows of a batch. Where there are no partitions, row groups are written to
        several files ``in_turn``, or else to one after the other. Raises what the writing of
        earlier ones has raised."""
        for part in self._pieces(batch):
            rows = self._conversion.convert(part)
            for values, of_partition in self._plan.partitioner.split(rows):
                self._gather(values, of_partition, () if in_turn else ("one",))

    def write_table(self, table: pa.Table) -> None:
        """Take the rows of a table that is not partitioned, in several runs that are written at
        once: each file has rows that lie beside each other."""
        runs = max(1, min(self._threads, -(-table.nbytes // self._plan.target_size)))
        rows = -(-table.num_rows // runs) if table.num_rows else 0
        streams = [((f"run {i}",), table.slice(i * rows, rows).to_batches()) for i in range(runs)]
        pending = deque((key, self._all_pieces(of_run)) for key, of_run in streams)
        while pending:
            key, pieces = pending.popleft()
            piece = next(pieces, None)
            if piece is not None:
                self._gather((), self._conversion.convert(piece), key)
                pending.append((key, pieces))

    def end_files(self) -> None:
        """Write what is left; rows that come later are in other files. Raises as ``write``."""
        for lane in list(self._lanes.values()):
            self._send(lane)
            self._crew.finish(lane)
        self._ended += self._lanes.values()
        self._lanes.clear()

    def close(self) -> None:
        """Write what is left; then ``files`` has the records, in the order of the rows as far as
        they have one. Raises what writing raises."""
        self.end_files()
        self._crew.join()
        self.files = self._new.records()

    def abort(self) -> None:
        """Give up: end the threads, leave no file."""
        self._crew.stop()
        for lane in (*self._ended, *self._lanes.values()):
            # Whatever keeps one from being removed, the others have to be.
            with suppress(Exception):
                lane.abort()
        self._new.discard()

    def __enter__(self) -> DataFileWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self.close()
        except BaseException:
            self.abort()
            raise
        if kind is not None:
            self.abort()
        else:
            self._crew.stop()

    def _all_pieces(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from self._pieces(batch)

    def _pieces(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield a batch in slices that are no larger than a row group."""
        rows = batch.num_rows
        if not rows:
            return
        size_of_row = max(1, batch.nbytes // rows)
        step = max(1, min(self._plan.row_group_rows, self._group_size // size_of_row))
        for start in range(0, rows, step):
            yield batch.slice(start, step)

    def _gather(
        self, values: tuple[Any, ...], rows: pa.RecordBatch, run: tuple[Any, ...] = ()
    ) -> None:
        key = _hashable(values) + run
        if not self._plan.spec.fields and not run:
            key = (self._next_lane,)
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = _Lane(self._new, values)
        self._lanes.move_to_end(key)
        if lane.gathered_size + rows.nbytes > self._group_size * _ROUNDED_UP:
            self._send(lane)
        # Up to a whole row group: what is over would be a small one of its own.
        fitting = self._group_rows - lane.gathered_rows
        self._waiting_size += lane.gather(rows.slice(0, fitting))
        if lane.gathered_size >= self._group_size or lane.gathered_rows >= self._group_rows:
            self._send(lane)
            # Row groups of a stream go to the threads in turn.
            self._next_lane = (self._next_lane + 1) % self._threads
        elif self._waiting_size > _MAX_WAITING // 2:
            for largest in sorted(self._lanes.values(), key=lambda x: -x.gathered_size):
                self._send(largest)
                if self._waiting_size < _MAX_WAITING // 4:
                    break
        if fitting < rows.num_rows:
            self._gather(values, rows.slice(fitting), run)

    @property
    def _group_rows(self) -> int:
        return sys.maxsize if self._plan.sort_order is not None else self._plan.row_group_rows

    def _send(self, lane: _Lane) -> None:
        self._waiting_size -= lane.gathered_size
        rows = lane.take()
        if rows is None:
            return
        if not lane.is_open:
            self._close_some()
        self._crew.send(lane, rows)

    def _close_some(self) -> None:
        """End the files that have waited longest for rows where too many are open."""
        opened = [lane for lane in self._lanes.values() if lane.is_open]
        for lane in opened[: max(0, len(opened) - _MAX_OPEN_FILES + 1)]:
            self._crew.finish(lane)


class _DataFile(Protocol):
    """A data file under construction; ``size`` is what is stored of it so far, in bytes."""

    location: str

    @property
    def size(self) -> int: ...

    def write(self, rows: pa.Table) -> None: ...

    def close(self) -> _Written: ...

    def abort(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _Written:
    """What is known of a finished file. ``file_size`` in bytes, as stored."""

    row_count: int
    file_size: int
    key_metadata: bytes
    metrics: ColumnMetrics
    split_offsets: tuple[int, ...] | None

    def __repr__(self) -> str:
        return f"_Written({self.row_count} rows, {self.file_size} bytes)"


class _FileNames:
    """Makes the locations of new files. Threads may share it."""

    def __init__(self, provider: LocationProvider, write_uuid: UUID, extension: str) -> None:
        self._provider = provider
        # Two processes may have been given one ``write_uuid``, and no storage minds.
        self._stem = f"{write_uuid}-{secrets.token_hex(4)}"
        self._extension = extension
        self._numbers = itertools.count(1)

    def next(self, key: Any) -> str:
        name = f"00000-0-{self._stem}-{next(self._numbers):05d}.{self._extension}"
        location: str = self._provider.new_data_location(name, key)
        return location


class _NewFiles:
    """Opens a table's new files and keeps the records of the finished ones, for all threads."""

    def __init__(
        self,
        plan: WritePlan,
        arrow_schema: pa.Schema,
        output: TableOutput,
        manager: EncryptionManager,
        names: _FileNames,
    ) -> None:
        self.plan = plan
        self._arrow_schema = arrow_schema
        self._output = output
        self._manager = manager
        self._names = names
        self._lock = threading.Lock()
        self._records: list[tuple[int, ContentFile]] = []

    def open(self, values: tuple[Any, ...], rows: pa.Table) -> _DataFile:
        """Open a file for rows of a partition, of which these come first, under a key of its
        own."""
        location = self._names.next(self.plan.partitioner.key(values))
        if self.plan.is_avro:
            return _AvroFile(self.plan, self._output, location, self._manager)
        return _ParquetFile(
            self.plan, self._arrow_schema, self._output, location, self._manager, rows
        )

    def add(self, file: _DataFile, written: _Written, values: tuple[Any, ...], order: int) -> None:
        """Keep the record of a finished file; ``order`` is where it stands among the others."""
        metrics, plan = written.metrics, self.plan
        record = ContentFile.of(
            content=DATA,
            file_path=file.location,
            file_format=plan.file_format,
            partition=values,
            record_count=written.row_count,
            file_size_in_bytes=written.file_size,
            column_sizes=metrics.column_sizes,
            value_counts=metrics.value_counts,
            null_value_counts=metrics.null_value_counts,
            nan_value_counts=metrics.nan_value_counts,
            lower_bounds=metrics.lower_bounds,
            upper_bounds=metrics.upper_bounds,
            key_metadata=written.key_metadata,
            split_offsets=written.split_offsets,
            sort_order_id=plan.sort_order.order_id if plan.sort_order is not None else 0,
            spec_id=plan.spec.spec_id,
        )
        with self._lock:
            self._records.append((order, record))

    def records(self) -> list[ContentFile]:
        with self._lock:
            return [record for _, record in sorted(self._records, key=lambda found: found[0])]

    def discard(self) -> None:
        self._output.discard([record.file_path for record in self.records()])


class _Lane:
    """The rows of one partition on their way into files, one after the other.

    The caller's thread gathers rows and takes them for the queue; one thread at a time writes.
    """

    _numbers = itertools.count()

    def __init__(self, new: _NewFiles, values: tuple[Any, ...]) -> None:
        self._new = new
        self._values = values
        self._number = next(self._numbers)
        self._gathered: list[pa.RecordBatch] = []
        self.gathered_size = self.gathered_rows = 0
        self._file: _DataFile | None = None
        self._arrow_size = 0  # of the rows in the file
        self.queue: deque[pa.Table | None] = deque()
        self.is_running = False
        self.is_open = False  # as the caller knows it, once the queue is empty

    def gather(self, rows: pa.RecordBatch) -> int:
        """Keep rows for later; return their size (bytes)."""
        size: int = rows.nbytes
        self._gathered.append(rows)
        self.gathered_size += size
        self.gathered_rows += rows.num_rows
        return size

    def take(self) -> pa.Table | None:
        """Return the rows gathered, None if there are none."""
        if not self._gathered:
            return None
        rows = pa.Table.from_batches(self._gathered)
        self._gathered = []
        self.gathered_size = self.gathered_rows = 0
        return rows

    def write(self, rows: pa.Table) -> None:
        """Write rows, in files as large as they are to be."""
        plan = self._new.plan
        rows = plan.sorted(rows)
        size_of_row = max(1.0, rows.nbytes / rows.num_rows)
        start = 0
        while start < rows.num_rows:
            if self._file is None:
                self._file = self._new.open(self._values, rows.slice(start))
                self._arrow_size = 0
            count = self._rows_to_write(size_of_row)
            group = rows.slice(start, count)
            self._file.write(group)
            self._arrow_size += int(size_of_row * group.num_rows)
            start += group.num_rows
            if self._file.size >= plan.target_size * _FULL_ENOUGH:
                self.finish()
        if plan.sort_order is not None:
            # What comes next has an order of its own.
            self.finish()

    def _rows_to_write(self, size_of_row: float) -> int:
        """Return how many rows of that size in Arrow are the next row group."""
        assert self._file is not None
        plan = self._new.plan
        # How they compress is known from those before; the first are taken to be no smaller.
        ratio = min(1.0, self._file.size / self._arrow_size) if self._arrow_size else 1.0
        room = max(1.0, (plan.target_size - self._file.size) / max(ratio, 0.01))
        count = int(min(plan.row_group_size, room) / size_of_row)
        return max(1, min(count, plan.row_group_rows))

    def finish(self) -> None:
        """End the file, if there is one."""
        file, self._file = self._file, None
        if file is not None:
            try:
                written = file.close()
            except BaseException:
                file.abort()
                raise
            self._new.add(file, written, self._values, self._number)

    def abort(self) -> None:
        """Leave nothing of the file under construction."""
        file, self._file = self._file, None
        if file is not None:
            file.abort()


class _Crew:
    """Some threads that write lanes, each by one at a time, and a bound on what waits for them.

    ``most_waiting`` is in bytes of Arrow data.
    """

    def __init__(self, threads: int, most_waiting: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="ags1-data-file")
        self._most = most_waiting // 2  # the other half is for what is being gathered
        # Taken by itself and not through the condition, whose code an interrupt may cut short with
        # the lock held.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._size = 0
        self._threads = threads
        self._ending = 0  # files that are open and shall not be
        self._running = 0
        self._error: BaseException | None = None
        self._stopping = False

    def send(self, lane: _Lane, rows: pa.Table) -> None:
        """Queue rows for a lane; wait while too much is queued. Raises what a thread raised."""
        with self._lock:
            while self._error is None and (
                (self._size and self._size + rows.nbytes > self._most)
                or self._ending > self._threads
            ):
                self._changed.wait()
            self._raise()
            self._size += rows.nbytes
            lane.is_open = True
            self._queue(lane, rows)

    def finish(self, lane: _Lane) -> None:
        """Have a lane end its file, if it has one, after what is queued."""
        with self._lock:
            if not lane.is_open:
                return
            self._ending += 1
            lane.is_open = False
            self._queue(lane, None)

    def join(self) -> None:
        """Wait until all is written. Raises what a thread raised."""
        with self._lock:
            while self._running and self._error is None:
                self._changed.wait()
            self._raise()

    def stop(self) -> None:
        """End the threads, and what they have not begun."""
        with self._lock:
            self._stopping = True
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _queue(self, lane: _Lane, rows: pa.Table | None) -> None:
        lane.queue.append(rows)
        if not lane.is_running:
            lane.is_running = True
            self._running += 1
            self._pool.submit(self._drain, lane)

    def _drain(self, lane: _Lane) -> None:
        while True:
            with self._lock:
                if not lane.queue or self._stopping or self._error is not None:
                    lane.is_running = False
                    self._running -= 1
                    self._changed.notify_all()
                    return
                rows = lane.queue.popleft()
            size = 0 if rows is None else rows.nbytes
            ended = int(rows is None)
            try:
                lane.finish() if rows is None else lane.write(rows)
            except BaseException as error:
                with self._lock:
                    self._error = self._error or error
            del rows
            with self._lock:
                self._size -= size
                self._ending -= ended
                self._changed.notify_all()


class _ParquetFile:
    """A Parquet file under construction, encrypted inside."""

    def __init__(
        self,
        plan: WritePlan,
        schema: pa.Schema,
        output: TableOutput,
        location: str,
        manager: EncryptionManager,
        rows: pa.Table,
    ) -> None:
        self.location = location
        self._key = manager.new_file_key()
        self._metrics = plan.metrics.collector()
        self._rows = 0
        self._cleanup = ExitStack()
        self._file: BinaryIO = self._cleanup.enter_context(output.create(location))
        try:
            self._writer = pq.ParquetWriter(
                self._file,
                schema,
                encryption_properties=create_encryption_properties(
                    self._key.encryption_key,
                    aad_prefix=self._key.aad_prefix,
                    store_aad_prefix=False,
                ),
                store_decimal_as_integer=True,
                use_dictionary=_dictionary_columns(rows),
                **plan.parquet_options,
            )
        except BaseException:
            _leave_by_an_exception(self._cleanup)
            raise

    @property
    def size(self) -> int:
        return self._file.tell()

    def write(self, rows: pa.Table) -> None:
        """Write rows as one row group."""
        self._metrics.add_parquet_rows(rows)
        self._writer.write_table(rows, row_group_size=rows.num_rows)
        self._rows += rows.num_rows

    def close(self) -> _Written:
        self._writer.close()
        footer: pq.FileMetaData = self._writer.writer.metadata
        self._metrics.add_parquet_footer(footer)
        size = self._file.tell()
        written = _Written(
            row_count=self._rows,
            file_size=size,
            key_metadata=self._key.with_file_length(size).to_bytes(),
            metrics=self._metrics.result(),
            split_offsets=_split_offsets(footer),
        )
        # Last, because now the file has its name.
        self._cleanup.close()
        return written

    def abort(self) -> None:
        # It would be closed anyway, by the garbage collector, when the file is not open any more.
        with suppress(Exception):
            self._writer.close()
        _leave_by_an_exception(self._cleanup)


class _AvroFile:
    """An Avro file under construction, in an AGS1 stream."""

    def __init__(
        self,
        plan: WritePlan,
        output: TableOutput,
        location: str,
        manager: EncryptionManager,
    ) -> None:
        self.location = location
        self._metrics = plan.metrics.collector()
        self._rows = 0
        self._cleanup = ExitStack()
        file = self._cleanup.enter_context(output.create(location))
        try:
            self._writer = AvroFileWriter(
                file, manager.new_file_key(), plan.schema, plan.schema_json, plan.avro_codec
            )
        except BaseException:
            _leave_by_an_exception(self._cleanup)
            raise

    @property
    def size(self) -> int:
        return self._writer.size

    def write(self, rows: pa.Table) -> None:
        self._metrics.add_rows(rows)
        self._writer.write(rows)
        self._rows += rows.num_rows

    def close(self) -> _Written:
        key = self._writer.close()
        written = _Written(
            row_count=self._rows,
            file_size=key.file_length or 0,
            key_metadata=key.to_bytes(),
            metrics=self._metrics.result(),
            split_offsets=None,
        )
        self._cleanup.close()
        return written

    def abort(self) -> None:
        self._writer.abort()
        _leave_by_an_exception(self._cleanup)


_FORMATS = {"PARQUET", "AVRO"}


class _Aborted(Exception):
    pass


def _leave_by_an_exception(stack: ExitStack) -> None:
    """Leave contexts as a failure does, so that they leave no file."""
    with suppress(_Aborted):
        stack.__exit__(_Aborted, _Aborted(), None)


def _dictionary_columns(rows: pa.Table) -> list[str]:
    """Return the columns, by their paths in the file, that are to have a dictionary: not those
    whose first values nearly all differ. Java's writer leaves these without one as well; Arrow
    would make one as long as the values, which takes longer than all else."""
    columns: list[str] = []
    for field, column in zip(rows.schema, rows.columns, strict=True):
        if pa.types.is_nested(field.type) or _has_repetitions(column.slice(0, _ROWS_JUDGED)):
            columns += _paths(field.name, field.type)
    return columns


def _has_repetitions(column: pa.ChunkedArray) -> bool:
    if isinstance(column.type, pa.BaseExtensionType):
        column = column.cast(column.type.storage_type)
    return len(column.unique()) <= _MOST_DISTINCT * len(column)


def _paths(name: str, kind: pa.DataType) -> Iterator[str]:
    """Yield the paths of the leaf columns of a column."""
    if pa.types.is_map(kind):
        yield from _paths(f"{name}.key_value.key", kind.key_type)
        yield from _paths(f"{name}.key_value.value", kind.item_type)
    elif pa.types.is_struct(kind):
        for field in kind:
            yield from _paths(f"{name}.{field.name}", field.type)
    elif pa.types.is_nested(kind):
        yield from _paths(f"{name}.list.element", kind.value_type)
    else:
        yield name


def _split_offsets(footer: pq.FileMetaData) -> tuple[int, ...]:
    """Return where the row groups begin, in order."""
    offsets = []
    for group in map(footer.row_group, range(footer.num_row_groups)):
        first = group.column(0)
        offset = first.data_page_offset
        if first.has_dictionary_page and first.dictionary_page_offset is not None:
            offset = min(offset, first.dictionary_page_offset)
        offsets.append(offset)
    return tuple(sorted(offsets))


_BLOOM_FILTERS = ("write.parquet.bloom-filter-max-bytes", "write.parquet.bloom-filter-enabled.")


def _parquet_options(properties: Mapping[str, str]) -> dict[str, Any]:
    unsupported = [name for name in properties if name.startswith(_BLOOM_FILTERS)]
    if unsupported:
        # As PyIceberg warns, which writes none either.
        warnings.warn(f"Parquet writer option(s) {unsupported} not implemented", stacklevel=2)
    codec = properties.get("write.parquet.compression-codec", "zstd").lower()
    if codec not in _PARQUET_CODECS:
        raise ValueError(f"write.parquet.compression-codec is {codec!r}, which is none of Parquet")
    return {
        "compression": _PARQUET_CODECS[codec],
        "compression_level": _level(properties, "write.parquet.compression-level"),
        "data_page_size": _positive(properties, "write.parquet.page-size-bytes", _MIB),
        "dictionary_pagesize_limit": _positive(
            properties, "write.parquet.dict-size-bytes", 2 * _MIB
        ),
        "max_rows_per_page": _positive(properties, "write.parquet.page-row-limit", 20_000),
        # As Java, which skips pages by it.
        "write_page_index": True,
    }


def _positive(properties: Mapping[str, str], name: str, default: int) -> int:
    text = properties.get(name, default)
    try:
        number = int(text)
    except ValueError:
        number = 0
    if not 0 < number <= _MAX_SETTING:
        raise ValueError(f"{name} is {text!r}, and has to be a number above 0, of any use")
    return number


def _level(properties: Mapping[str, str], name: str) -> int | None:
    text = properties.get(name)
    try:
        return None if text is None else int(text)
    except ValueError:
        raise ValueError(f"{name} is {text!r}, and has to be a number") from None


def _by_id(values: Iterable[Mapping[str, Any]], name: str, wanted: int) -> Mapping[str, Any]:
    for value in values:
        if value[name] == wanted:
            return value
    raise ValueError(f"the table's metadata has no {name} {wanted}")


def _hashable(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return what is equal for the same partition only: to Python NaN is not itself, and 0.0 is
    -0.0, and 1 is True."""
    return tuple((type(v), repr(v) if isinstance(v, float) else v) for v in values)

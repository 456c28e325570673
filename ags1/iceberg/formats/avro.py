"""Avro data files as Arrow record batches: their blocks, splits and threads.

Follows Avro's spec, "Object Container Files", and for splits Java's rule (``DataFileReader.sync``
and ``pastSync``): a block belongs to the split in which the sync marker before it begins. Nothing
read is trusted. A file that ends within a block raises; that it ends where it should is for its
source to know (an ``ags1.Reader`` does), or for ``record_count``. Knows nothing of keys; what the
bytes of a row mean is ``avro_projection``'s.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from queue import Full, Queue
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.table.name_mapping import NameMapping

from ags1.errors import Ags1Error, FormatError, TruncatedError

from .avro_container import (
    CODECS,
    MAX_BLOCK_SIZE,
    MAX_LONG_SIZE,
    SYNC_SIZE,
    Fields,
    Pread,
    ShortError,
    codec_name,
    parse_schema,
    read_header,
)
from .avro_projection import Projection

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["AvroFile", "plan_splits", "read_avro"]

if sys.byteorder != "little":
    raise ImportError("Avro's floats and Arrow's are the same bytes only on little-endian machines")

DEFAULT_BATCH_ROWS = 65536
BATCH_SIZE = 32 << 20
"""At about so many bytes a batch ends before it has all its rows."""

# Read from the source at once, and from multiples of it, as AGS1's own blocks lie.
_CHUNK_SIZE = 1 << 20
# What a thread takes on at once: some batches' worth, but several pieces even of a small file.
_PIECE_SIZE = 8 << 20
_MIN_PIECE_SIZE = 1 << 20
# Of one piece, before they are asked for. What compresses well is large once it is read.
_BATCHES_AHEAD = 2


class SeekableReader(Protocol):
    """A binary file. If it has a thread-safe ``pread(offset, size)``, that is used instead."""

    def read(self, size: int, /) -> bytes: ...
    def seek(self, offset: int, whence: int = 0, /) -> int: ...
    def tell(self) -> int: ...


def read_avro(
    source: SeekableReader,
    schema: Schema,
    *,
    split: tuple[int, int] | None = None,
    batch_size: int = DEFAULT_BATCH_ROWS,
    name_mapping: NameMapping | None = None,
    missing_values: Mapping[int, Any] | None = None,
    record_count: int | None = None,
    threads: int = 1,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of an Avro data file, in their order, as rows of ``schema``.

    The batches' schema is what PyIceberg's ``schema_to_pyarrow`` makes of ``schema``. ``split`` is
    an offset and a length in bytes: splits that adjoin have each row once. ``batch_size`` is in
    rows; batches of wide rows have fewer. ``missing_values`` has the values of fields that the file
    lacks, by field id. With ``record_count``, and without a split, a file of more or fewer rows
    raises. More than one of the ``threads`` needs a source with ``pread`` to be of use.

    Raises FormatError for what is not an Avro file or can't be read as ``schema``, TruncatedError
    for one that ends too early, and what the source raises.
    """
    file = AvroFile(source)
    for _, batch in file.read(
        schema,
        split=split,
        batch_size=batch_size,
        name_mapping=name_mapping,
        missing_values=missing_values,
        record_count=record_count,
        threads=threads,
        positions=False,
    ):
        yield batch


def plan_splits(source: SeekableReader, count: int) -> list[tuple[int, int]]:
    """Return at most ``count`` splits of about the same size that make up the file."""
    if count < 1:
        raise ValueError(f"count must be at least 1, not {count}")
    return _ranges(0, _size(source), count)


class AvroFile:
    """An Avro file whose header has been read: ``schema`` as parsed from JSON, ``codec``,
    ``metadata``, and ``size`` in bytes. Does not close ``source``."""

    def __init__(self, source: SeekableReader, *, max_block_size: int = MAX_BLOCK_SIZE) -> None:
        name = getattr(source, "name", None)
        self._name = name if isinstance(name, str) else None
        self._pread = _pread_of(source)
        self._max_block_size = max_block_size
        self.size = _size(source)
        with self._named():
            header = read_header(self._pread, self.size)
            self.metadata: Mapping[str, bytes] = header.metadata
            self.schema = parse_schema(header.metadata)
            self.codec = codec_name(header.metadata)
            self._sync, self._data_start = header.sync, header.size
            self._decompress = CODECS[self.codec]

    def read(
        self,
        schema: Schema,
        *,
        split: tuple[int, int] | None = None,
        batch_size: int = DEFAULT_BATCH_ROWS,
        name_mapping: NameMapping | None = None,
        missing_values: Mapping[int, Any] | None = None,
        record_count: int | None = None,
        threads: int = 1,
        positions: bool = True,
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield batches as ``read_avro`` does, each with the position of its first row in the file.

        For a split, the blocks before it are counted, which reads their headers; without
        ``positions`` they are not, and positions count from the split's first row.
        """
        if batch_size < 1 or threads < 1:
            raise ValueError("batch_size and threads must be at least 1")
        start, end = (0, self.size) if split is None else (split[0], split[0] + split[1])
        if not 0 <= start <= end:
            raise ValueError(f"split {split} is no range of bytes")
        end = min(end, self.size)
        with self._named():
            projection = Projection(
                self.schema, schema, name_mapping=name_mapping, missing_values=missing_values
            )
            position = self.rows_before(start) if positions and split is not None else 0
            pieces = 1 if threads == 1 else _piece_count(end - start, threads)
            if pieces == 1:
                batches = self._read(projection, start, end, batch_size)
            else:
                ranges = _ranges(start, end, pieces)
                batches = self._read_ahead(projection, ranges, batch_size, threads)
            expected = record_count if split is None else None
            for batch in batches:
                end_row = position + batch.num_rows
                if expected is not None and end_row > expected:
                    # At once: rows of no bytes may go on for ever.
                    raise FormatError(
                        f"the file has {end_row} rows or more, but should have {expected}"
                    )
                yield position, batch
                position = end_row
            if expected is not None and position < expected:
                raise TruncatedError(f"the file has {position} rows, but should have {expected}")

    def blocks(self) -> Iterator[tuple[int, Buffer]]:
        """Yield how many rows each block has, and their bytes, decompressed."""
        window = _Window(self._pread, self.size)
        for rows, data in self._blocks(window, self._data_start, self.size):
            yield rows, self._decompress(data, self._max_block_size)

    def rows_before(self, start: int) -> int:
        """Return how many rows lie in the blocks of the splits before ``start``."""
        window = _Window(self._pread, self.size)
        blocks = self._blocks(window, self._data_start, start, contents=False)
        return sum(rows for rows, _ in blocks)

    def _read(
        self, projection: Projection, start: int, end: int, batch_size: int
    ) -> Iterator[pa.RecordBatch]:
        window = _Window(self._pread, self.size)
        first = self._first_block(window, start)
        decoder = projection.decoder()
        held = 0
        for rows, data in self._blocks(window, first, end):
            decoder.begin(self._decompress(data, self._max_block_size), rows)
            while decoder.rows_left:
                held += decoder.decode(batch_size - held, BATCH_SIZE)
                # Short of rows although the block has more: there are bytes enough.
                if held == batch_size or decoder.rows_left:
                    yield projection.batch(decoder, held)
                    held = 0
        if held:
            yield projection.batch(decoder, held)

    def _read_ahead(
        self,
        projection: Projection,
        ranges: list[tuple[int, int]],
        batch_size: int,
        threads: int,
    ) -> Iterator[pa.RecordBatch]:
        """Have threads read the ranges, a few ahead of the caller; yield in order."""
        stopping = threading.Event()
        pool = ThreadPoolExecutor(threads, thread_name_prefix="ags1-avro")
        waiting: deque[_Queue] = deque()

        def read(piece: tuple[int, int], queue: _Queue) -> None:
            start, length = piece
            try:
                for batch in self._read(projection, start, start + length, batch_size):
                    if not _put(queue, batch, stopping):
                        return
                _put(queue, None, stopping)
            except BaseException as error:
                _put(queue, error, stopping)

        def take_first() -> Iterator[pa.RecordBatch]:
            queue = waiting.popleft()
            while (item := queue.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item

        try:
            for piece in ranges:
                waiting.append(Queue(_BATCHES_AHEAD))
                pool.submit(read, piece, waiting[-1])
                if len(waiting) > threads:
                    yield from take_first()
            while waiting:
                yield from take_first()
        finally:
            stopping.set()
            pool.shutdown(wait=True, cancel_futures=True)

    def _first_block(self, window: _Window, start: int) -> int:
        """Return where the first block begins whose marker does not begin before ``start``."""
        marker = self._data_start - SYNC_SIZE
        if start > marker:
            marker = window.find(self._sync, start)
        return marker + SYNC_SIZE if marker >= 0 else self.size

    def _blocks(
        self, window: _Window, at: int, end: int, *, contents: bool = True
    ) -> Iterator[tuple[int, memoryview]]:
        """Yield the rows and, unless they are not wanted, the contents of the blocks from ``at`` on
        whose marker begins before ``end``."""
        while at < self.size and at - SYNC_SIZE < end:
            fields = Fields(window.take(at, min(2 * MAX_LONG_SIZE, self.size - at)))
            try:
                rows, size = fields.long(), fields.long()
            except ShortError:
                raise _cut(at) from None
            if rows < 0 or size < 0:
                raise FormatError(f"the block at byte {at} has a negative count or size")
            block_end = at + fields.at + size + SYNC_SIZE
            if block_end > self.size:
                raise _cut(at)
            wanted = size + SYNC_SIZE if contents else SYNC_SIZE
            data = window.take(block_end - wanted, wanted)
            if data[-SYNC_SIZE:] != self._sync:
                raise FormatError(f"the block at byte {at} does not end with the file's marker")
            yield rows, data[:-SYNC_SIZE]
            at = block_end

    def _named(self) -> _Named:
        return _Named(self._name)


class _Named:
    """Says in our errors which file they are about."""

    def __init__(self, name: str | None) -> None:
        self._name = name

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Ags1Error) and error.file is None:
            error.file = self._name


def _cut(at: int) -> TruncatedError:
    return TruncatedError(f"the file ends within the block at byte {at}")


_Queue = Queue["pa.RecordBatch | BaseException | None"]


def _put(
    queue: _Queue, item: pa.RecordBatch | BaseException | None, stopping: threading.Event
) -> bool:
    """Wait for room in ``queue``; return whether the caller still wants what is in it."""
    while not stopping.is_set():
        try:
            queue.put(item, timeout=0.1)
        except Full:
            continue
        return True
    return False


# -- the source


def _size(source: SeekableReader) -> int:
    before = source.tell()
    size = source.seek(0, os.SEEK_END)
    source.seek(before)
    return size


def _pread_of(source: SeekableReader) -> Pread:
    pread: Pread | None = getattr(source, "pread", None)
    if pread is not None:
        return pread
    lock = threading.Lock()

    def seek_and_read(offset: int, size: int) -> bytes:
        parts = []
        with lock:
            source.seek(offset)
            while size:
                part = source.read(size)
                if not part:
                    break
                parts.append(part)
                size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    return seek_and_read


class _Window:
    """Reads a file forwards, in chunks, and shows any range that does not begin before the last."""

    def __init__(self, pread: Pread, size: int) -> None:
        self._pread = pread
        self._file_size = size
        self._begin = 0
        self._view = memoryview(b"")

    def take(self, offset: int, size: int) -> memoryview:
        """Return exactly these bytes, which the file has by its size."""
        end = self._begin + len(self._view)
        if not self._begin <= offset <= end:
            self._begin, self._view = offset, memoryview(b"")
            end = offset
        if offset + size > end:
            kept = self._view[offset - self._begin :]
            # Up to where a chunk ends; large ranges whole.
            until = max(offset + size, (end // _CHUNK_SIZE + 1) * _CHUNK_SIZE)
            wanted = min(until, self._file_size) - end
            data = self._pread(end, wanted)
            if len(data) < wanted:
                raise TruncatedError(f"the file ends at byte {end + len(data)}, before its size")
            if len(kept):
                # Only the block that lies across is copied: what follows is shown where it lies.
                across = offset + size - end
                joined = memoryview(b"".join((kept, data[:across])))
                self._begin, self._view = end, memoryview(data)
                return joined
            self._begin, self._view = end, memoryview(data)
        begin = offset - self._begin
        return self._view[begin : begin + size]

    def find(self, marker: bytes, start: int) -> int:
        """Return where ``marker`` first lies from ``start`` on, -1 if nowhere."""
        tail = b""
        while start < self._file_size:
            until = min((start // _CHUNK_SIZE + 1) * _CHUNK_SIZE, self._file_size)
            data = bytes(self.take(start, until - start))
            found = (tail + data).find(marker)
            if found >= 0:
                return start - len(tail) + found
            tail = (tail + data)[-(len(marker) - 1) :]
            start = until
        return -1


def _ranges(start: int, end: int, count: int) -> list[tuple[int, int]]:
    size = end - start
    bounds = [start + size * n // count for n in range(count + 1)]
    ranges = [(low, high - low) for low, high in pairwise(bounds)]
    return [piece for piece in ranges if piece[1]] or [(start, 0)]


def _piece_count(size: int, threads: int) -> int:
    piece = min(_PIECE_SIZE, max(_MIN_PIECE_SIZE, size // (4 * threads)))
    return max(1, size // piece)

"""Avro data files as Arrow record batches, by splits and threads.

If a file ends within a block, this raises an error. If it ends too early between two blocks, only
its source can notice that (an ``ags1.Reader`` does), or a check of ``record_count``.
``container`` reads the blocks, and ``projection`` knows what the bytes of a row mean.
Independent of keys.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from queue import Full, Queue
from typing import Any, Protocol

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.table.name_mapping import NameMapping

from ...errors import Ags1Error, FormatError, TruncatedError
from ...host.process import Lock
from .container import MAX_BLOCK_SIZE, Container, Pread, parse_schema
from .projection import Projection

__all__ = ["AvroFile", "plan_splits", "read_avro"]

if sys.byteorder != "little":
    raise ImportError("Avro's floats and Arrow's are the same bytes only on little-endian machines")

DEFAULT_BATCH_ROWS = 65536
BATCH_SIZE = 32 << 20
"""A batch ends at about this number of bytes, even if it has fewer rows than asked for."""

# A file is read in pieces, one by each thread (sizes in bytes). A piece makes some batches, and a
# small file still has several pieces.
_PIECE_SIZE = 8 << 20
_MIN_PIECE_SIZE = 1 << 20
# The number of batches of one piece that are read ahead. Decompressed data can be large.
_BATCHES_AHEAD = 2


class SeekableReader(Protocol):
    """A binary file. If it has a thread-safe ``pread(offset, size)``, that is used instead."""

    def read(self, size: int, /) -> bytes: ...
    def seek(self, offset: int, whence: int = 0, /) -> int: ...
    def tell(self) -> int: ...


def read_avro(source: SeekableReader, schema: Schema, **options: Any) -> Iterator[pa.RecordBatch]:
    """Yield the rows of an Avro data file, in their order, as rows of ``schema``. ``options`` are
    those of ``AvroFile.read``. Raises as that, and FormatError if this is not an Avro file."""
    for _, batch in AvroFile(source).read(schema, positions=False, **options):
        yield batch


def plan_splits(source: SeekableReader, count: int) -> list[tuple[int, int]]:
    """Divide the file into at most ``count`` splits of about the same size."""
    if count < 1:
        raise ValueError(f"count must be at least 1, not {count}")
    return _ranges(0, _size(source), count)


class AvroFile:
    """An Avro file whose header has been read: ``schema`` as parsed from JSON, ``codec``,
    ``metadata``, and ``size`` in bytes. Does not close ``source``."""

    def __init__(self, source: SeekableReader, *, max_block_size: int = MAX_BLOCK_SIZE) -> None:
        name = getattr(source, "name", None)
        self._name = name if isinstance(name, str) else None
        self.size = _size(source)
        with self._named():
            self._container = Container(_pread_of(source), self.size, max_block_size)
            self.metadata = self._container.metadata
            self.codec = self._container.codec
            self.schema = parse_schema(self.metadata)

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
        """Yield the rows, in their order, as batches, each with the position of its first row.

        The batches' schema is what PyIceberg's ``schema_to_pyarrow`` makes of ``schema``. ``split``
        is an offset and a length in bytes. Adjoining splits have each row once. ``batch_size`` is
        in rows; batches of wide rows have fewer. ``missing_values`` has the values of fields that
        the file lacks, by field id. If ``record_count`` is given and ``split`` is not, the file
        must have that number of rows. Several ``threads`` are faster only if the source has
        ``pread``. The positions in a split need the number of rows before it, so the headers of all
        earlier blocks are read. If ``positions`` is false, they are not read, and positions count
        from the split's first row.

        Raises FormatError if the file cannot be read as ``schema``, TruncatedError if it ends too
        early, and what the source raises.
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
                    # Raise at once: rows of no bytes may go on without end.
                    raise FormatError(
                        f"the file has {end_row} rows or more, but should have {expected}"
                    )
                yield position, batch
                position = end_row
            if expected is not None and position < expected:
                raise TruncatedError(f"the file has {position} rows, but should have {expected}")

    def rows_before(self, start: int) -> int:
        """Return how many rows lie in the blocks of the splits before ``start``."""
        return self._container.rows_before(start)

    def _read(
        self, projection: Projection, start: int, end: int, batch_size: int
    ) -> Iterator[pa.RecordBatch]:
        decoder = projection.decoder()
        held = 0
        for rows, data in self._container.blocks(start, end):
            decoder.begin(data, rows)
            while decoder.rows_left:
                held += decoder.decode(batch_size - held, BATCH_SIZE)
                # If the batch has fewer rows, although the block has more, it has enough bytes.
                if held == batch_size or decoder.rows_left:
                    yield projection.batch(decoder, held)
                    held = 0
        if held:
            yield projection.batch(decoder, held)

    def _read_ahead(
        self, projection: Projection, ranges: list[tuple[int, int]], batch_size: int, threads: int
    ) -> Iterator[pa.RecordBatch]:
        """Have threads read the ranges, a few of them ahead; yield their batches in order."""
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

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Put the name of the file into our errors."""
        try:
            yield
        except Ags1Error as error:
            error.file = error.file or self._name
            raise


_Queue = Queue["pa.RecordBatch | BaseException | None"]


def _put(
    queue: _Queue, item: pa.RecordBatch | BaseException | None, stopping: threading.Event
) -> bool:
    """Wait for room in ``queue`` and add ``item``; return False if the caller has stopped."""
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
    lock = Lock()

    def seek_and_read(offset: int, size: int) -> bytes:
        parts = []
        lock.check_not_mine()
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


def _ranges(start: int, end: int, count: int) -> list[tuple[int, int]]:
    size = end - start
    bounds = [start + size * n // count for n in range(count + 1)]
    ranges = [(low, high - low) for low, high in pairwise(bounds)]
    return [piece for piece in ranges if piece[1]] or [(start, 0)]


def _piece_count(size: int, threads: int) -> int:
    piece = min(_PIECE_SIZE, max(_MIN_PIECE_SIZE, size // (4 * threads)))
    return max(1, size // piece)

"""Reads and applies deletion vectors, position deletes and equality deletes.

Positions become 64-bit bitmaps. Equality deletes become sets of keys, in which Arrow looks rows up.
Both give a mask of the rows that stay. This follows the Iceberg specification, "Delete Formats" and
"Puffin". Values are equal if they are equal in Java: null equals null, NaN equals NaN, -0.0 is not
0.0. ``planning`` decides which deletes apply to which file.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.table.deletion_vector import PROPERTY_REFERENCED_DATA_FILE
from pyiceberg.table.puffin import PuffinFile
from pyroaring import BitMap64

from ...errors import MetadataIntegrityError, NotEncryptedError
from ..storage.table_files import TableFiles
from .records import ContentFile

VECTOR_TYPE = "deletion-vector-v1"
VECTOR_MAGIC = bytes.fromhex("d1d33964")
CARDINALITY = "cardinality"

_K = TypeVar("_K")
_V = TypeVar("_V")


class Once(Generic[_K, _V]):
    """A cache that makes each value once, in the thread that first asks for it. Other threads wait
    for it."""

    def __init__(self, make: Callable[[_K], _V]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._values: dict[_K, Future[_V]] = {}

    def __call__(self, key: _K) -> _V:
        with self._lock:
            future = self._values.get(key)
            mine = future is None
            if future is None:
                future = self._values[key] = Future()
        if mine:
            try:
                future.set_result(self._make(key))
            except BaseException as error:
                future.set_exception(error)
                raise
        return future.result()


def read_deletion_vector(payload: bytes, file: ContentFile, data_file: str) -> BitMap64:
    """Return the positions in the deletion vector of the data file at ``data_file``.

    ``payload`` is the Puffin file's plaintext. ``file`` is the manifest's record of the vector.
    Raises MetadataIntegrityError if the two contradict each other, or if the vector is damaged.
    """

    def wrong(what: str) -> MetadataIntegrityError:
        return MetadataIntegrityError(
            f"the deletion vector of {data_file}: {what}", file=file.file_path
        )

    offset, size = file.content_offset, file.content_size_in_bytes
    if offset is None or size is None:
        raise wrong("its entry does not say where it begins and ends")
    try:
        blobs = PuffinFile(payload).footer.blobs
    except (IndexError, ValueError):
        raise wrong("the file is not a Puffin file that can be read") from None
    blob = next((b for b in blobs if (b.offset, b.length) == (offset, size)), None)
    if blob is None or blob.type != VECTOR_TYPE or blob.compression_codec is not None:
        raise wrong(f"the Puffin file has none at byte {offset} of {size} bytes")
    referenced = blob.properties.get(PROPERTY_REFERENCED_DATA_FILE)
    if referenced != data_file or file.referenced_data_file != data_file:
        raise wrong(f"the Puffin file says it is of {referenced}")
    data = payload[offset : offset + size]
    if len(data) < 12 or int.from_bytes(data[:4], "big") != size - 8 or size != len(data):
        raise wrong("its length is wrong")
    if data[4:8] != VECTOR_MAGIC:
        raise wrong("it does not begin as one does")
    if zlib.crc32(data[4:-4]) != int.from_bytes(data[-4:], "big"):
        raise wrong("its checksum is wrong")
    try:
        positions = BitMap64.deserialize(data[8:-4])
    except (IndexError, ValueError, RuntimeError, MemoryError):
        raise wrong("its bitmap cannot be read") from None
    stated = {blob.properties.get(CARDINALITY, str(len(positions))), str(file.record_count)}
    if stated != {str(len(positions))}:
        raise wrong(f"it has {len(positions)} positions, not {' or '.join(sorted(stated))}")
    return positions


class PuffinCache:
    """The Puffin files of one scan. Each is read once, even if it has several vectors."""

    def __init__(self, files: TableFiles) -> None:
        self._files = files
        self._keys: dict[str, ContentFile] = {}
        self._payload: Once[str, bytes] = Once(self._read)

    def read(self, file: ContentFile) -> bytes:
        """Return the plaintext of a Puffin file."""
        self._keys.setdefault(file.file_path, file)
        return self._payload(file.file_path)

    def _read(self, path: str) -> bytes:
        km = self._keys[path].key
        if km is None:
            raise NotEncryptedError(
                "a deletion vector of an encrypted table has no key: it is not encrypted", file=path
            )
        return self._files.read_encrypted(path, km)


def positions_by_path(batches: Iterable[pa.RecordBatch]) -> dict[str, BitMap64]:
    """Return the positions of each data file, from the rows ``(file_path, pos)`` of a delete
    file."""
    found: dict[str, BitMap64] = {}
    for batch in batches:
        groups = pa.table({"path": batch.column(0), "pos": batch.column(1)}).group_by("path")
        grouped = groups.aggregate([("pos", "list")]).to_pydict()
        for path, positions in zip(grouped["path"], grouped["pos_list"], strict=True):
            found.setdefault(path, BitMap64()).update(positions)
    return found


def rows_kept(deleted: BitMap64, first: int, count: int) -> pa.Array | None:
    """Return a mask over the rows ``first`` to ``first + count``; None if all of them stay."""
    if not deleted.range_cardinality(first, first + count):
        return None
    mask = bytearray(b"\x01") * count
    for position in deleted.iter_equal_or_larger(first):
        if position >= first + count:
            break
        mask[position - first] = 0
    buffers = [None, pa.py_buffer(mask)]
    return pa.Array.from_buffers(pa.uint8(), count, buffers).cast(pa.bool_())


class DeletedKeys:
    """The keys of equality deletes: rows of one or more columns, looked up by value.

    Each value is replaced by its position among the distinct deleted values of its column. Two such
    positions are combined into one number, which is replaced by its position among the distinct
    numbers, and so on column by column. So the numbers stay small for any values.
    """

    def __init__(self, columns: Sequence[pa.ChunkedArray]) -> None:
        self._sets: list[pa.Array] = []
        self._pairs: list[pa.Array] = []
        codes: Any = None
        for column in columns:
            values = comparable(column)
            self._sets.append(_distinct(values))
            here = pc.index_in(values, value_set=self._sets[-1])
            if codes is None:
                codes = here
            else:
                pairs = self._pair(codes, here, len(self._sets[-1]))
                self._pairs.append(_distinct(pairs))
                codes = pc.index_in(pairs, value_set=self._pairs[-1])

    def rows_kept(self, columns: Sequence[Any]) -> pa.Array | None:
        """Return a mask of the rows whose key is not deleted; None if all stay."""
        codes: Any = None
        for number, column in enumerate(columns):
            here = pc.index_in(comparable(column), value_set=self._sets[number])
            if codes is None:
                codes = here
            else:
                pairs = self._pair(codes, here, len(self._sets[number]))
                # A null here means a value that no deleted row has.
                codes = pc.index_in(pairs, value_set=self._pairs[number - 1], skip_nulls=True)
            if codes.null_count == len(codes):
                return None
        return pc.is_null(codes)

    @staticmethod
    def _pair(codes: Any, here: Any, size: int) -> Any:
        return pc.add(pc.multiply(codes.cast(pa.int64()), size), here.cast(pa.int64()))


def comparable(column: Any) -> Any:
    """Return the column in a form in which Arrow finds values equal if Java does."""
    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        column = column.cast(kind.storage_type)
    elif pa.types.is_float32(kind) or pa.types.is_float64(kind):
        bits = pa.int32() if pa.types.is_float32(kind) else pa.int64()
        one_nan = pc.if_else(pc.is_nan(column), pa.scalar(float("nan"), kind), column)
        column = one_nan.view(bits) if isinstance(one_nan, pa.Array) else _view(one_nan, bits)
    return column


def _view(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    return pa.chunked_array([chunk.view(kind) for chunk in column.chunks], type=kind)


def _distinct(values: Any) -> pa.Array:
    return pc.unique(values)

"""Reads and applies deletion vectors, position deletes and equality deletes.

Positions become 64-bit bitmaps. Equality deletes become sets of keys, in which Arrow looks rows up.
Both give a mask of the rows that are not deleted. Values are equal if they are equal in Java: null
equals null, NaN equals NaN, -0.0 is not 0.0. ``planning`` decides which deletes apply to which
file. This follows the Iceberg specification, "Delete Formats" and "Puffin".
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.manifest import DataFileContent
from pyiceberg.schema import Schema
from pyiceberg.table.deletion_vector import PROPERTY_REFERENCED_DATA_FILE
from pyiceberg.types import LongType, NestedField, StringType
from pyroaring import BitMap64

from ...errors import MetadataIntegrityError, NotEncryptedError
from ...host import strict_json
from ..spec.constants import PATH_FIELD_ID, POSITION_FIELD_ID, PUFFIN_MAGIC
from ..storage.table_files import TableFiles
from .columns import FileReader, Rows, arrow_type
from .records import ContentFile
from .single_flight import SingleFlight

VECTOR_TYPE = "deletion-vector-v1"
VECTOR_MAGIC = bytes.fromhex("d1d33964")
CARDINALITY = "cardinality"

_POSITION_DELETES = Schema(
    NestedField(PATH_FIELD_ID, "file_path", StringType(), required=True),
    NestedField(POSITION_FIELD_ID, "pos", LongType(), required=True),
)
# The IDs of the columns that are compared, and the delete files.
_EqualityDeletes: TypeAlias = "tuple[tuple[int, ...], frozenset[ContentFile]]"


def read_deletion_vector(payload: bytes, file: ContentFile, data_file: str) -> BitMap64:
    """Return the positions in the deletion vector of the data file at ``data_file``. ``payload`` is
    the Puffin file's plaintext. ``file`` is the manifest's record of the vector. Raises
    MetadataIntegrityError if the two contradict each other, or if the vector is damaged."""

    def wrong(what: str) -> MetadataIntegrityError:
        return MetadataIntegrityError(
            f"the deletion vector of {data_file}: {what}", file=file.file_path
        )

    offset, size = file.content_offset, file.content_size_in_bytes
    if offset is None or size is None:
        raise wrong("its entry does not say where it begins and ends")
    try:
        blobs = _puffin_blobs(payload)
    except ValueError:
        raise wrong("the file is not a Puffin file that can be read") from None
    blob = next((b for b in blobs if (b.get("offset"), b.get("length")) == (offset, size)), {})
    if blob.get("type") != VECTOR_TYPE or blob.get("compression-codec") is not None:
        raise wrong(f"the Puffin file has none at byte {offset} of {size} bytes")
    properties = blob.get("properties")
    if not isinstance(properties, dict):
        raise wrong("its blob in the Puffin file has no properties")
    referenced = properties.get(PROPERTY_REFERENCED_DATA_FILE)
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
    stated = {str(properties.get(CARDINALITY, len(positions))), str(file.record_count)}
    if stated != {str(len(positions))}:
        raise wrong(f"it has {len(positions)} positions, not {' or '.join(sorted(stated))}")
    return positions


def _puffin_blobs(payload: bytes) -> list[dict[str, Any]]:
    """Return what the footer of a Puffin file says of each blob. Raises ValueError if it is none.
    PyIceberg would make a model of each, which takes 100 times the memory of its text."""
    size = int.from_bytes(payload[-12:-8], "little")
    footer = strict_json.parse(payload[-12 - size : -12])
    is_compressed = any(payload[-8:-4])
    ends = {payload[:4], payload[-16 - size : -12 - size], payload[-4:]}
    if ends != {PUFFIN_MAGIC} or is_compressed or not isinstance(footer, dict):
        raise ValueError("not a Puffin file")
    blobs = footer.get("blobs")
    if not isinstance(blobs, list) or not all(isinstance(blob, dict) for blob in blobs):
        raise ValueError("the footer has no list of blobs")
    return blobs


class PuffinCache:
    """The Puffin files of one scan. Each is read once, even if it has several vectors."""

    def __init__(self, files: TableFiles) -> None:
        self.files = files
        self._keys: dict[str, ContentFile] = {}
        self._payload = SingleFlight[str, bytes](self._read)

    def read(self, file: ContentFile) -> bytes:
        """Return the plaintext of a Puffin file."""
        self._keys.setdefault(file.file_path, file)
        return self._payload(file.file_path)

    def _read(self, path: str) -> bytes:
        key_metadata = self._keys[path].key
        if key_metadata is None:
            raise NotEncryptedError(
                "a deletion vector of an encrypted table has no key: it is not encrypted", file=path
            )
        return self.files.read_encrypted(path, key_metadata)


class DeleteReader:
    """The delete files of one scan. Each is read once. Any number of threads may use it."""

    def __init__(self, reader: FileReader, puffins: PuffinCache | None = None) -> None:
        self._reader = reader
        self._puffins = PuffinCache(reader.files) if puffins is None else puffins
        # The positions in a position delete file, by the data file's path.
        self.positions_in = SingleFlight[ContentFile, dict[str, BitMap64]](self._read_positions)
        self._keys = SingleFlight[_EqualityDeletes, DeletedKeys](self._read_keys)
        self._key_schemas = SingleFlight[int, Schema](self._key_schema)

    def deleted_positions(
        self, file: ContentFile, deletes: Iterable[ContentFile]
    ) -> BitMap64 | None:
        """Return the positions that are deleted in a data file; None if there are none."""
        positions: BitMap64 | None = None
        for delete in deletes:
            if delete.is_deletion_vector:
                payload = self._puffins.read(delete)
                more = read_deletion_vector(payload, delete, file.file_path)
            elif delete.content == DataFileContent.POSITION_DELETES:
                more = self.positions_in(delete).get(file.file_path, BitMap64())
            else:
                continue
            positions = more if positions is None else positions | more
        return positions or None

    def deleted_keys(
        self, deletes: Iterable[ContentFile]
    ) -> list[tuple[tuple[int, ...], DeletedKeys]]:
        """Return the keys that equality delete files delete, for each set of compared columns."""
        by_ids: dict[tuple[int, ...], set[ContentFile]] = {}
        for delete in deletes:
            if delete.content == DataFileContent.EQUALITY_DELETES:
                ids = tuple(sorted(set(delete.equality_ids or ())))
                if not ids:
                    raise MetadataIntegrityError(
                        "an equality delete file does not say which columns it compares",
                        file=delete.file_path,
                    )
                by_ids.setdefault(ids, set()).add(delete)
        return [(ids, self._keys((ids, frozenset(files)))) for ids, files in by_ids.items()]

    def key_columns(self, field_ids: Iterable[int], rows: Rows) -> list[pa.Array]:
        """Return the columns that equality deletes compare."""
        return [self._reader.column(self._key_schemas(i), i, rows) for i in field_ids]

    def _read_positions(self, delete: ContentFile) -> dict[str, BitMap64]:
        with self._reader.open(delete, _POSITION_DELETES) as opened:
            return positions_by_path(
                self._reader.project(_POSITION_DELETES, Rows(opened.columns.read, {}, batch))
                for batch in opened.read()
            )

    def _read_keys(self, wanted: _EqualityDeletes) -> DeletedKeys:
        ids, files = wanted
        chunks: list[list[pa.Array]] = [[] for _ in ids]
        for file in files:
            with self._reader.open(file, self._reader.table_columns(ids)) as opened:
                for batch in opened.read():
                    columns = self.key_columns(ids, Rows(opened.columns.read, {}, batch))
                    for chunk, column in zip(chunks, columns, strict=True):
                        chunk.append(column)
        types = [arrow_type(self._key_schemas(field_id), field_id) for field_id in ids]
        return DeletedKeys([pa.chunked_array(c, t) for c, t in zip(chunks, types, strict=True)])

    def _key_schema(self, field_id: int) -> Schema:
        """Return the schema of one column, which the table may have dropped."""
        schema = self._reader.table_columns((field_id,))
        if field_id not in schema.field_ids:
            raise MetadataIntegrityError(
                f"an equality delete file compares column {field_id}, but no schema of the table "
                "has it"
            )
        return schema


def positions_by_path(batches: Iterable[pa.RecordBatch]) -> dict[str, BitMap64]:
    """Return the positions of each data file, from a delete file's rows ``(file_path, pos)``."""
    by_path: dict[str, BitMap64] = {}
    for batch in batches:
        groups = pa.table({"path": batch.column(0), "pos": batch.column(1)}).group_by("path")
        grouped = groups.aggregate([("pos", "list")]).to_pydict()
        for path, positions in zip(grouped["path"], grouped["pos_list"], strict=True):
            by_path.setdefault(path, BitMap64()).update(positions)
    return by_path


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
            self._sets.append(pc.unique(values))
            here = pc.index_in(values, value_set=self._sets[-1])
            if codes is None:
                codes = here
            else:
                pairs = self._pair(codes, here, len(self._sets[-1]))
                self._pairs.append(pc.unique(pairs))
                codes = pc.index_in(pairs, value_set=self._pairs[-1])

    def not_deleted(self, columns: Sequence[Any]) -> pa.Array | None:
        """Return a mask of the rows whose key is not deleted; None if no row is deleted."""
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

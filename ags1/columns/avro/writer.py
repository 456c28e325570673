"""Writes Avro data files from Arrow rows, as an AGS1 stream.

The blocks are about as large as Java's. fastavro encodes the rows. The values are first converted
to forms that it encodes without conversion, which is faster. Follows Avro's specification, "Object
Container Files", and Iceberg's appendix "Avro". Independent of partitions and tables.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any, BinaryIO

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg import types
from pyiceberg.schema import Schema
from pyiceberg.utils.decimal import decimal_required_bytes

from ...engine import layout
from ...engine.key_metadata import KeyMetadata
from ...engine.writer import Writer
from ..arrow_nested import with_child
from .container import NEW_BLOCK_SIZE, AvroCodec, NewContainer, compact, long
from .schema import avro_schema

_FIRST_BLOCK_ROWS = 100
_MAX_BLOCK_ROWS = 10_000
# How many bytes of Arrow's rows become Python objects at once.
_SIZE_AT_ONCE = 4 << 20
_MAX_ROWS_AT_ONCE = 50_000


class AvroFileWriter:
    """Writes an Avro file into ``file``, encrypted under the fresh key ``km``. ``schema_json``, for
    the header, is Iceberg's schema as metadata.json has it. Does not close ``file``."""

    def __init__(
        self,
        file: BinaryIO,
        key_metadata: KeyMetadata,
        schema: Schema,
        schema_json: Mapping[str, Any],
        codec: AvroCodec,
    ) -> None:
        self._schema = schema
        described = avro_schema(schema.as_struct())
        properties = {"iceberg.schema": compact(schema_json)}
        self._container = NewContainer(described, properties, codec)
        self._rows_schema = fastavro.parse_schema({"type": "array", "items": described})
        self._block_rows = _FIRST_BLOCK_ROWS
        self._stream = Writer(file, key_metadata, block_size=layout.DEFAULT_BLOCK_SIZE)
        try:
            self._stream.write(self._container.header)
        except BaseException:
            self._stream.abort()
            raise

    @property
    def size(self) -> int:
        """The size of the encrypted file so far, in bytes."""
        return layout.encrypted_size(self._stream.tell())

    def write(self, rows: pa.Table) -> None:
        """Write rows, which have the columns that ``RowConversion`` makes."""
        size_of_row = max(1, rows.nbytes // max(1, rows.num_rows))
        most = max(1, min(_MAX_ROWS_AT_ONCE, _SIZE_AT_ONCE // size_of_row))
        for batch in rows.to_batches(max_chunksize=most):
            self._write(_records(self._schema.as_struct(), batch))

    def close(self) -> KeyMetadata:
        """Finish the stream; return its key metadata, with the file's length."""
        self._stream.close()
        return self._stream.key_metadata

    def abort(self) -> None:
        """Stop writing, and make the written bytes unreadable."""
        self._stream.abort()

    def _write(self, records: list[dict[str, Any]]) -> None:
        start = 0
        while start < len(records):
            block = records[start : start + self._block_rows]
            buffer = io.BytesIO()
            fastavro.schemaless_writer(buffer, self._rows_schema, block)
            # fastavro encodes an array: the number of rows, the rows, a zero. Keep only the rows.
            data = buffer.getvalue()[len(long(len(block))) : -1]
            self._stream.write(self._container.block(len(block), data))
            start += len(block)
            fitting = len(block) * NEW_BLOCK_SIZE // max(1, len(data))
            self._block_rows = max(1, min(_MAX_BLOCK_ROWS, fitting))


# -- the values


def _records(struct: types.StructType, batch: pa.RecordBatch) -> list[dict[str, Any]]:
    columns = [
        _encodable(field.field_type, column)
        for field, column in zip(struct.fields, batch.columns, strict=True)
    ]
    rows = pa.StructArray.from_arrays(columns, names=batch.schema.names)
    try:
        records: list[dict[str, Any]] = rows.to_pylist(maps_as_pydicts="strict")
    except (KeyError, ValueError):
        if len(columns) > 1:
            # Find the column.
            for i, field in enumerate(struct.fields):
                _records(types.StructType(field), batch.select([i]))
        raise ValueError(
            f"column {struct.fields[0].name!r}: a map has the same key twice"
        ) from None
    return records


def _encodable(kind: types.IcebergType, column: pa.Array) -> pa.Array:
    """Return a column whose values have types of Avro: numbers, text, bytes, lists and records."""
    if isinstance(kind, types.StructType):
        children = [
            _encodable(field.field_type, column.field(i)) for i, field in enumerate(kind.fields)
        ]
        mask = column.is_null() if column.null_count else None
        names = [field.name for field in column.type]
        return pa.StructArray.from_arrays(children, names=names, mask=mask)
    if isinstance(kind, types.ListType):
        element = _encodable(kind.element_type, column.values)
        make = pa.large_list if pa.types.is_large_list(column.type) else pa.list_
        return with_child(column, make(element.type), element)
    if isinstance(kind, types.MapType):
        keys = _encodable(kind.key_type, column.keys)
        items = _encodable(kind.value_type, column.items)
        is_map = isinstance(kind.key_type, types.StringType)
        key, value = pa.field("key", keys.type, nullable=not is_map), pa.field("value", items.type)
        entries = pa.StructArray.from_arrays([keys, items], fields=[key, value])
        made = pa.map_(keys.type, items.type) if is_map else pa.list_(entries.type)
        return with_child(column, made, entries)
    if isinstance(kind, types.DecimalType):
        return _decimal_bytes(column, decimal_required_bytes(kind.precision))
    if isinstance(kind, types.UUIDType):
        return column.storage
    if isinstance(kind, types.DateType):
        return column.cast(pa.int32())
    if pa.types.is_temporal(column.type):
        return column.cast(pa.int64())
    return column


def _decimal_bytes(column: pa.Array, size: int) -> pa.Array:
    """Return the unscaled values in two's complement, the highest byte first."""
    data = column.buffers()[1]
    if data is None or not len(column):
        return pa.nulls(len(column), pa.binary(size))
    little = np.frombuffer(data, np.uint8)[column.offset * 16 : (column.offset + len(column)) * 16]
    big = np.ascontiguousarray(little.reshape(-1, 16)[:, :size][:, ::-1])
    values = pa.Array.from_buffers(pa.binary(size), len(column), [None, pa.py_buffer(big)])
    null = pa.scalar(None, pa.binary(size))
    return pc.if_else(column.is_valid(), values, null) if column.null_count else values

"""Avro data files from Arrow rows, in an AGS1 stream.

The schema is what Java's ``TypeToSchema`` makes of Iceberg's: field ids, names of records and
fixed types, maps with string keys as Avro's and others as arrays of pairs. (PyIceberg's conversion
has no nulls in lists and maps, and no Avro map at all.) Blocks are of about Java's size. Rows are
encoded by fastavro, from values that need no conversion of its own. Follows Avro's specification,
"Object Container Files", and Iceberg's appendix "Avro". Knows nothing of partitions and tables.
"""

from __future__ import annotations

import io
import json
import os
import zlib
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema, make_compatible_name
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    GeographyType,
    GeometryType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UnknownType,
    UUIDType,
)
from pyiceberg.utils.decimal import decimal_required_bytes

from ... import layout
from ...key_metadata import KeyMetadata
from ...writer import Writer

_MAGIC = b"Obj\x01"
_SYNC_SIZE = 16
# Of a block's rows before they are compressed, in bytes.
_BLOCK_SIZE = 64_000
_FIRST_BLOCK_ROWS = 100
_MAX_BLOCK_ROWS = 10_000
# Of Arrow's rows that are Python objects at a time, in bytes.
_SIZE_AT_ONCE = 4 << 20
_MAX_ROWS_AT_ONCE = 50_000

_PRIMITIVES: Mapping[type[IcebergType], Any] = {
    UnknownType: "null",
    BooleanType: "boolean",
    IntegerType: "int",
    LongType: "long",
    FloatType: "float",
    DoubleType: "double",
    StringType: "string",
    BinaryType: "bytes",
    GeometryType: "bytes",
    GeographyType: "bytes",
    DateType: {"type": "int", "logicalType": "date"},
    TimeType: {"type": "long", "logicalType": "time-micros"},
    TimestampType: {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": False},
    TimestamptzType: {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": True},
    TimestampNanoType: {"type": "long", "logicalType": "timestamp-nanos", "adjust-to-utc": False},
    TimestamptzNanoType: {"type": "long", "logicalType": "timestamp-nanos", "adjust-to-utc": True},
}

_Compress = Callable[[bytes], bytes]


class AvroCodec:
    """A codec by the name that Iceberg's properties have for it, and a level. ``name`` is Avro's.

    Raises ValueError for one that there is not.
    """

    def __init__(self, name: str, level: int | None = None) -> None:
        known: dict[str, tuple[str, _Compress]] = {
            "uncompressed": ("null", bytes),
            "gzip": ("deflate", lambda data: _deflated(data, 6 if level is None else level)),
            "snappy": ("snappy", _snapped),
            "zstd": ("zstandard", pa.Codec("zstd", level).compress if name == "zstd" else bytes),
        }
        if name not in known:
            raise ValueError(f"the Avro codec {name!r} is none of {', '.join(known)}")
        self.name, self._compress = known[name]

    def compress(self, data: bytes) -> bytes:
        """Return a block's bytes as they are stored."""
        return bytes(self._compress(data))


def avro_schema(schema: Schema) -> dict[str, Any]:
    """Return the Avro schema, parsed from JSON, of an Iceberg schema's data files."""
    converted: dict[str, Any] = _avro_type(schema.as_struct(), "table", set())
    return converted


class AvroFileWriter:
    """Writes an Avro file into ``file``, encrypted under the fresh key ``km``.

    ``schema_json`` is Iceberg's schema as metadata.json has it, for the file's header. Does not
    close ``file``.
    """

    def __init__(
        self,
        file: BinaryIO,
        km: KeyMetadata,
        schema: Schema,
        schema_json: Mapping[str, Any],
        codec: AvroCodec,
    ) -> None:
        self._schema = schema
        self._codec = codec
        self._sync = os.urandom(_SYNC_SIZE)
        described = avro_schema(schema)
        self._rows_schema = fastavro.parse_schema({"type": "array", "items": described})
        self._block_rows = _FIRST_BLOCK_ROWS
        self._stream = Writer(file, km, block_size=layout.DEFAULT_BLOCK_SIZE)
        try:
            self._stream.write(self._header(described, schema_json))
        except BaseException:
            self._stream.abort()
            raise

    @property
    def size(self) -> int:
        """How large the encrypted file is with what was written, in bytes."""
        return layout.encrypted_size(self._stream.tell())

    def write(self, rows: pa.Table) -> None:
        """Write rows, of the columns that ``RowConversion`` makes."""
        size_of_row = max(1, rows.nbytes // max(1, rows.num_rows))
        most = max(1, min(_MAX_ROWS_AT_ONCE, _SIZE_AT_ONCE // size_of_row))
        for batch in rows.to_batches(max_chunksize=most):
            self._write(_records(self._schema.as_struct(), batch))

    def close(self) -> KeyMetadata:
        """Finish the stream; return its key metadata, with the file's length."""
        self._stream.close()
        return self._stream.key_metadata

    def abort(self) -> None:
        """Give up what was written."""
        self._stream.abort()

    def _write(self, records: list[dict[str, Any]]) -> None:
        start = 0
        while start < len(records):
            block = records[start : start + self._block_rows]
            data = self._encoded(block)
            stored = self._codec.compress(data)
            self._stream.write(_long(len(block)) + _long(len(stored)) + stored + self._sync)
            start += len(block)
            fitting = len(block) * _BLOCK_SIZE // max(1, len(data))
            self._block_rows = max(1, min(_MAX_BLOCK_ROWS, fitting))

    def _encoded(self, records: list[dict[str, Any]]) -> bytes:
        """Return the rows' encodings, one after the other: those of an array's elements, between
        their number and the zero that ends it."""
        buffer = io.BytesIO()
        fastavro.schemaless_writer(buffer, self._rows_schema, records)
        return buffer.getvalue()[len(_long(len(records))) : -1]

    def _header(self, described: Mapping[str, Any], schema_json: Mapping[str, Any]) -> bytes:
        properties = {
            "avro.schema": _compact(described),
            "avro.codec": self._codec.name,
            "iceberg.schema": _compact(schema_json),
        }
        parts = [_MAGIC, _long(len(properties))]
        for key, value in properties.items():
            for text in (key.encode(), value.encode()):
                parts += [_long(len(text)), text]
        return b"".join([*parts, _long(0), self._sync])


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _long(value: int) -> bytes:
    """Return a number that is not negative in Avro's encoding: zig-zag, seven bits a byte."""
    value <<= 1
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _deflated(data: bytes, level: int) -> bytes:
    compressor = zlib.compressobj(level, wbits=-15)
    return compressor.compress(data) + compressor.flush()


def _snapped(data: bytes) -> bytes:
    compressed: bytes = pa.compress(data, codec="snappy", asbytes=True)
    return compressed + zlib.crc32(data).to_bytes(4, "big")


# -- the schema


def _avro_type(kind: IcebergType, record_name: str, named: set[str]) -> Any:
    """Return a type's schema. A fixed type stands in full once, then by its name (``named``)."""
    if isinstance(kind, StructType):
        fields = [_avro_field(field, named) for field in kind.fields]
        return {"type": "record", "name": record_name, "fields": fields}
    if isinstance(kind, ListType):
        items = _avro_value(kind.element_field, named)
        return {"type": "array", "items": items, "element-id": kind.element_id}
    if isinstance(kind, MapType):
        return _avro_map(kind, named)
    if isinstance(kind, DecimalType):
        name = f"decimal_{kind.precision}_{kind.scale}"
        size = decimal_required_bytes(kind.precision)
        logical = {"logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
        return _fixed(name, size, logical, named)
    if isinstance(kind, UUIDType):
        return _fixed("uuid_fixed", 16, {"logicalType": "uuid"}, named)
    if isinstance(kind, FixedType):
        return _fixed(f"fixed_{len(kind)}", len(kind), {}, named)
    return _PRIMITIVES[type(kind)]


def _avro_value(field: NestedField, named: set[str]) -> Any:
    kind = _avro_type(field.field_type, f"r{field.field_id}", named)
    return ["null", kind] if field.optional and kind != "null" else kind


def _avro_field(field: NestedField, named: set[str]) -> dict[str, Any]:
    name = make_compatible_name(field.name)
    described: dict[str, Any] = {"name": name, "type": _avro_value(field, named)}
    if field.doc is not None:
        described["doc"] = field.doc
    if field.optional:
        described["default"] = None
    if name != field.name:
        described["iceberg-field-name"] = field.name
    described["field-id"] = field.field_id
    return described


def _avro_map(kind: MapType, named: set[str]) -> dict[str, Any]:
    if isinstance(kind.key_type, StringType):
        values = _avro_value(kind.value_field, named)
        return {"type": "map", "values": values, "key-id": kind.key_id, "value-id": kind.value_id}
    key: dict[str, Any] = {
        "name": "key",
        "type": _avro_value(kind.key_field, named),
        "field-id": kind.key_id,
    }
    value: dict[str, Any] = {"name": "value", "type": _avro_value(kind.value_field, named)}
    if kind.value_field.optional:
        value["default"] = None
    value["field-id"] = kind.value_id
    pair = {"type": "record", "name": f"k{kind.key_id}_v{kind.value_id}", "fields": [key, value]}
    return {"type": "array", "items": pair, "logicalType": "map"}


def _fixed(name: str, size: int, logical: Mapping[str, Any], named: set[str]) -> Any:
    if name in named:
        return name
    named.add(name)
    return {"type": "fixed", "name": name, "size": size, **logical}


# -- the values


def _records(struct: StructType, batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return rows as the encoder takes them."""
    columns = [
        _encodable(field.field_type, column)
        for field, column in zip(struct.fields, batch.columns, strict=True)
    ]
    rows = pa.StructArray.from_arrays(columns, names=batch.schema.names)
    try:
        records: list[dict[str, Any]] = rows.to_pylist(maps_as_pydicts="strict")
    except (KeyError, ValueError):
        raise ValueError("a map has the same key twice") from None
    return records


def _encodable(kind: IcebergType, column: pa.Array) -> pa.Array:
    """Return a column whose values are Avro's own: numbers, text, bytes, lists and records."""
    if isinstance(kind, StructType):
        children = [
            _encodable(field.field_type, column.field(i)) for i, field in enumerate(kind.fields)
        ]
        mask = column.is_null() if column.null_count else None
        names = [field.name for field in column.type]
        return pa.StructArray.from_arrays(children, names=names, mask=mask)
    if isinstance(kind, ListType):
        element = _encodable(kind.element_type, column.values)
        make = pa.large_list if pa.types.is_large_list(column.type) else pa.list_
        return _with_child(column, make(element.type), element)
    if isinstance(kind, MapType):
        keys = _encodable(kind.key_type, column.keys)
        items = _encodable(kind.value_type, column.items)
        entries = pa.StructArray.from_arrays([keys, items], names=["key", "value"])
        if isinstance(kind.key_type, StringType):
            key = pa.field("key", keys.type, nullable=False)
            entries = pa.StructArray.from_arrays(
                [keys, items], fields=[key, pa.field("value", items.type)]
            )
            return _with_child(column, pa.map_(keys.type, items.type), entries)
        return _with_child(column, pa.list_(entries.type), entries)
    if isinstance(kind, DecimalType):
        return _decimal_bytes(column, decimal_required_bytes(kind.precision))
    if isinstance(kind, UUIDType):
        return column.storage
    if isinstance(kind, DateType):
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


def _with_child(array: pa.Array, kind: pa.DataType, child: pa.Array) -> pa.Array:
    return pa.Array.from_buffers(
        kind, len(array), array.buffers()[:2], offset=array.offset, children=[child]
    )

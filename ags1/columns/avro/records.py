"""Makes Avro files of records in memory: manifests and manifest lists.

A record is given as its values in the order of the schema. The values are encoded as the Iceberg
specification says, "Appendix A: Avro". Independent of tables.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyiceberg import types
from pyiceberg.utils.decimal import decimal_required_bytes

from ._decoder import Block, EncodedFile
from .container import NEW_BLOCK_SIZE, AvroCodec, NewContainer, long, prefixed, string
from .schema import avro_schema, layout

_Encode = Callable[[Any], bytes]


class RecordFile:
    """An Avro file in memory. Its records are of the type ``struct``, which is called ``name``.
    ``size`` is that of its header, with ``properties``, and its finished blocks (bytes)."""

    def __init__(
        self, struct: types.StructType, name: str, properties: Mapping[str, str], codec: AvroCodec
    ) -> None:
        self._encode = _encoder(struct)
        schema = avro_schema(struct, name)
        self._codec = codec.name
        self._layout = layout(schema)
        self._container = NewContainer(schema, properties, codec)
        self._parts = [self._container.header]
        self.size = len(self._parts[0])
        self._records: list[bytes] = []
        self._block_size = 0
        # A block of another file of which all records so far, the last ones here, came unchanged.
        self._whole: Block | None = None
        self._whole_from = 0

    def add(self, values: Sequence[Any]) -> None:
        """Add a record with these values of its fields: a sequence for a struct, the unscaled value
        for a decimal, bytes for a UUID. Raises ValueError for a value its field cannot have."""
        self._whole = None
        self._add(self._encode(values))

    def can_copy(self, file: EncodedFile) -> bool:
        """Return whether an entry with the bytes of ``file`` has this file's schema."""
        return file.block.layout == self._layout

    def add_copy(self, file: EncodedFile, entry: bytes) -> None:
        """Add a record that ``file.entry`` has made. If all records of a block come as they were
        read, in their order, that block is copied as it is stored."""
        block = file.block
        if not file.is_as_read(entry) or block.codec != self._codec:
            self._whole = None
        elif file.number == 0:
            self._whole, self._whole_from = block, len(self._records)
        elif block is not self._whole or file.number != len(self._records) - self._whole_from:
            self._whole = None
        if self._whole is not None and file.number == block.rows - 1:
            self._copy_block(block)
        else:
            self._add(entry)

    def _add(self, encoded: bytes) -> None:
        self._records.append(encoded)
        self._block_size += len(encoded)
        if self._block_size >= NEW_BLOCK_SIZE and self._whole is None:
            self._end_block()

    def _copy_block(self, block: Block) -> None:
        del self._records[self._whole_from :]
        if self._records:
            self._end_block()
        self._append(self._container.stored_block(block.rows, block.stored))
        self._whole = None

    def finish(self) -> bytes:
        """Return the whole file."""
        if self._records:
            self._end_block()
        return b"".join(self._parts)

    def _end_block(self) -> None:
        self._append(self._container.block(len(self._records), b"".join(self._records)))

    def _append(self, part: bytes) -> None:
        self._parts.append(part)
        self.size += len(part)
        self._records = []
        self._block_size = 0


class _BadValueError(ValueError):
    """A value that its field cannot have. It may be a key, so the message names only the field."""


def _encoder(kind: types.IcebergType) -> _Encode:
    match kind:
        case types.StructType():
            return _record(kind)
        case types.ListType():
            return _array(_of_field(kind.element_field))
        case types.MapType():
            return _map(_of_field(kind.key_field), _of_field(kind.value_field))
        case types.DecimalType():
            size = decimal_required_bytes(kind.precision)
            return lambda unscaled: unscaled.to_bytes(size, "big", signed=True)
        case types.FixedType():
            return _fixed(len(kind))
    encode = _ENCODERS.get(type(kind))
    if encode is None:
        raise ValueError(f"there can be no partitions of type {kind}")
    return encode


def _of_field(field: types.NestedField) -> _Encode:
    encode = _encoder(field.field_type)
    if field.required or encode is _null:
        return encode
    return lambda value: b"\x00" if value is None else b"\x02" + encode(value)


def _record(kind: types.StructType) -> _Encode:
    encoders = [(field.name, _of_field(field)) for field in kind.fields]

    def encode_values(values: Sequence[Any]) -> bytes:
        encoded = []
        for (field_name, encode), value in zip(encoders, values, strict=True):
            try:
                encoded.append(encode(value))
            except _BadValueError:
                raise
            except (TypeError, ValueError, AttributeError, OverflowError, struct.error):
                encoded.clear()  # they may have a key, and error reporters print variables
                raise _BadValueError(f"{field_name} has an impossible value") from None
        return b"".join(encoded)

    return encode_values


def _array(encode: _Encode) -> _Encode:
    def encode_items(items: Sequence[Any]) -> bytes:
        if not items:
            return b"\x00"
        return long(len(items)) + b"".join(map(encode, items)) + b"\x00"

    return encode_items


def _map(encode_key: _Encode, encode_value: _Encode) -> _Encode:
    """Encode a map with integer keys, as an array of pairs: keys of Avro's maps are strings."""

    def encode_pairs(pairs: Mapping[int, Any]) -> bytes:
        if not pairs:
            return b"\x00"
        encoded = b"".join([encode_key(key) + encode_value(item) for key, item in pairs.items()])
        return long(len(pairs)) + encoded + b"\x00"

    return encode_pairs


def _int(number: int) -> bytes:
    if not -(1 << 31) <= number < 1 << 31:
        raise ValueError("the number has more than 32 bits")
    return long(number)


def _boolean(value: bool) -> bytes:
    if not isinstance(value, bool):
        raise TypeError("not a boolean")
    return b"\x01" if value else b"\x00"


def _fixed(size: int) -> _Encode:
    def encode(data: bytes) -> bytes:
        if len(data) != size:
            raise ValueError(f"not {size} bytes")
        return bytes(memoryview(data))

    return encode


def _null(value: None) -> bytes:
    if value is not None:
        raise ValueError("the column was dropped and its type with it")
    return b""


_ENCODERS: dict[type[types.IcebergType], _Encode] = {
    types.BooleanType: _boolean,
    types.IntegerType: _int,
    types.LongType: long,
    types.FloatType: struct.Struct("<f").pack,
    types.DoubleType: struct.Struct("<d").pack,
    types.StringType: string,
    types.BinaryType: prefixed,
    types.UUIDType: _fixed(16),
    types.DateType: _int,
    types.TimeType: long,
    types.TimestampType: long,
    types.TimestamptzType: long,
    types.TimestampNanoType: long,
    types.TimestamptzNanoType: long,
    types.UnknownType: _null,
}

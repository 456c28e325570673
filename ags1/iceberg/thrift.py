"""Thrift's compact protocol with the types kept, so that a structure can be printed again.

A struct is a dict from field id to ``(type, value)``, a list ``(element type, values)``. Fields
that nobody here knows survive. Follows the Thrift compact protocol specification. Knows nothing of
what the structures mean.
"""

from __future__ import annotations

import struct
from typing import Any, TypeAlias

from ..errors import FormatError

# Field types. A boolean field has its value in its type; here it is always (TRUE, value).
TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)

Struct: TypeAlias = "dict[int, tuple[int, Any]]"

_MAX_DEPTH = 32
_LONG_LIST = 15


def parse(data: bytes | memoryview) -> tuple[Struct, int]:
    """Return the struct at the beginning of ``data`` and its size (bytes).

    Raises IndexError when ``data`` ends within it, FormatError when it is none.
    """
    source = _Source(data)
    return source.struct(0), source.at


def untyped(kind: int, content: Any) -> Any:
    """Return a value without its types: a struct as a dict by field id, a list as a list."""
    if kind == STRUCT:
        return {field_id: untyped(*field) for field_id, field in content.items()}
    if kind in (LIST, SET):
        inner, items = content
        return [untyped(inner, item) for item in items]
    return content


def print_struct(fields: Struct) -> bytes:
    """Return a struct as bytes, its fields in the order of their ids."""
    out = bytearray()
    _put_struct(out, fields)
    return bytes(out)


def value(fields: Struct, field_id: int, default: Any = None) -> Any:
    """Return a field's value, ``default`` where it is not there."""
    found = fields.get(field_id)
    return default if found is None else found[1]


class _Source:
    def __init__(self, data: bytes | memoryview) -> None:
        self._data = data
        self.at = 0

    def struct(self, depth: int) -> Struct:
        if depth > _MAX_DEPTH:
            raise FormatError("a structure of the file is nested too deeply")
        found: Struct = {}
        field_id = 0
        while header := self._byte():
            field_id = field_id + (header >> 4) if header >> 4 else self._integer()
            kind = header & 0x0F
            if kind in (TRUE, FALSE):
                found[field_id] = TRUE, kind == TRUE
            else:
                found[field_id] = kind, self._value(kind, depth)
        return found

    def _value(self, kind: int, depth: int) -> Any:
        if kind in (TRUE, FALSE):  # within a list, a byte each
            return self._byte() == TRUE
        if kind == BYTE:
            return self._byte()
        if kind in (I16, I32, I64):
            return self._integer()
        if kind == DOUBLE:
            return self._bytes(8)
        if kind == BINARY:
            return self._bytes(self._varint())
        if kind in (LIST, SET):
            header = self._byte()
            count = header >> 4 if header >> 4 != _LONG_LIST else self._varint()
            inner = header & 0x0F
            return inner, [self._value(inner, depth + 1) for _ in range(count)]
        if kind == STRUCT:
            return self.struct(depth + 1)
        raise FormatError("a structure of the file has a type that Parquet does not use")

    def _byte(self) -> int:
        byte = self._data[self.at]
        self.at += 1
        return byte

    def _bytes(self, size: int) -> bytes:
        data = bytes(self._data[self.at : self.at + size])
        if len(data) < size:
            raise IndexError
        self.at += size
        return data

    def _varint(self) -> int:
        number = shift = 0
        while True:
            byte = self._byte()
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
            shift += 7
            if shift > 63:
                raise FormatError("a number of the file is too long")

    def _integer(self) -> int:
        number = self._varint()
        return number >> 1 ^ -(number & 1)


def _put_struct(out: bytearray, fields: Struct) -> None:
    last = 0
    for field_id in sorted(fields):
        kind, content = fields[field_id]
        code = (TRUE if content else FALSE) if kind == TRUE else kind
        if 0 < field_id - last <= 15:
            out.append((field_id - last) << 4 | code)
        else:
            out.append(code)
            _put_integer(out, field_id)
        last = field_id
        if kind != TRUE:
            _put(out, kind, content)
    out.append(0)


def _put(out: bytearray, kind: int, content: Any) -> None:
    if kind in (TRUE, FALSE):
        out.append(TRUE if content else FALSE)
    elif kind == BYTE:
        out += struct.pack("B", content)
    elif kind in (I16, I32, I64):
        _put_integer(out, content)
    elif kind == DOUBLE:
        out += content
    elif kind == BINARY:
        _put_varint(out, len(content))
        out += content
    elif kind in (LIST, SET):
        inner, values = content
        if len(values) < _LONG_LIST:
            out.append(len(values) << 4 | inner)
        else:
            out.append(_LONG_LIST << 4 | inner)
            _put_varint(out, len(values))
        for item in values:
            _put(out, inner, item)
    else:
        _put_struct(out, content)


def _put_varint(out: bytearray, number: int) -> None:
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def _put_integer(out: bytearray, number: int) -> None:
    _put_varint(out, number << 1 if number >= 0 else (-number << 1) - 1)

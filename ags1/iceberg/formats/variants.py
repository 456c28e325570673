"""Puts shredded variants of Parquet files together again.

    shredded     metadata   value          typed_value: {a: {value, typed_value}, b: …}
    whole        metadata   value          an object that has the fields of both

A group of ``value`` and ``typed_value`` is one value: the columns of ``typed_value`` hold what fits
their types, and ``value`` holds the rest, encoded. Follows Parquet's specifications "Variant
Encoding" and "Variant Shredding". Nothing in a file is trusted: each offset is checked.
Independent of tables and files.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from ...columns.arrow_nested import compacted
from ...errors import FormatError

_Values: TypeAlias = "list[bytes | None]"

_NULL = b"\0"
_OBJECT, _ARRAY = 2, 3
_MAX_SHORT_STRING = 63

# The numbers of the primitive types, of which a value's first byte has four times the number.
_BINARY, _STRING, _UUID = 15, 16, 20
_TRUE, _FALSE = 1, 2
_DECIMALS = ((9, 4, 8), (18, 8, 9), (38, 16, 10))  # the last precision, the size, the number
_NUMBERS = {
    pa.int8(): 3,
    pa.int16(): 4,
    pa.int32(): 5,
    pa.int64(): 6,
    pa.float64(): 7,
    pa.date32(): 11,
    pa.timestamp("us", "UTC"): 12,
    pa.timestamp("us"): 13,
    pa.float32(): 14,
    pa.time64("us"): 17,
    pa.timestamp("ns", "UTC"): 18,
    pa.timestamp("ns"): 19,
}


def whole(variants: pa.StructArray) -> pa.StructArray:
    """Return variants, shredded or not, as structs of ``metadata`` and ``value``. A variant that is
    not null but has no value is the variant null. Raises FormatError."""
    parts = _parts(variants)
    if not _is_binary(parts.get("metadata")):
        raise FormatError("a variant's group has no binary field metadata")
    metadata, mask = variants.field("metadata"), variants.is_null()
    if metadata.null_count and pc.any(pc.and_not(metadata.is_null(), mask)).as_py():
        raise FormatError("a variant has no metadata")
    if "typed_value" in parts:
        dictionaries = _dictionaries(metadata, mask)
        values = [_NULL if v is None else v for v in _values(variants, dictionaries)]
        value = pa.array(values, pa.large_binary())
    elif _is_binary(parts.get("value")):
        value = variants.field("value")
        if value.null_count:
            value = pc.fill_null(value, pa.scalar(_NULL, value.type))
    else:
        raise FormatError("a variant's group has no binary field value")
    if metadata.null_count:
        metadata = pc.fill_null(metadata, pa.scalar(b"", metadata.type))
    fields = [
        pa.field(name, part.type, nullable=False)
        for name, part in (("metadata", metadata), ("value", value))
    ]
    return pa.StructArray.from_arrays(
        [metadata, value], fields=fields, mask=mask if variants.null_count else None
    )


class _Dictionary:
    """The names of fields that a variant's metadata has; a field's id is its name's position."""

    def __init__(self, metadata: bytes) -> None:
        if not metadata or metadata[0] & 0x0F != 1:
            raise FormatError("a variant's metadata is not of version 1")
        size = (metadata[0] >> 6) + 1
        count = int.from_bytes(metadata[1 : 1 + size], "little")
        start = 1 + size * (count + 2)
        if start > len(metadata):
            raise FormatError("a variant's metadata ends too early")
        offsets = _numbers(metadata, 1 + size, size, count + 1)
        if any(a > b for a, b in itertools.pairwise(offsets)):
            raise FormatError("the offsets in a variant's metadata descend")
        if start + offsets[-1] > len(metadata):
            raise FormatError("an offset in a variant's metadata is outside of it")
        ends = itertools.pairwise(offsets)
        self.names = [metadata[start + begin : start + end] for begin, end in ends]
        self._ids = {name: number for number, name in enumerate(self.names)}

    def id_of(self, name: bytes) -> int:
        try:
            return self._ids[name]
        except KeyError:
            raise FormatError("a field of a variant is not in its metadata") from None


def _dictionaries(metadata: pa.Array, mask: pa.Array) -> list[_Dictionary | None]:
    """Return the dictionary of each variant; None for a null one."""
    known: dict[bytes, _Dictionary] = {}
    found: list[_Dictionary | None] = []
    for data, is_null in zip(metadata.to_pylist(), mask.to_pylist(), strict=True):
        if is_null:
            found.append(None)
            continue
        if data not in known:
            known[data] = _Dictionary(data)
        found.append(known[data])
    return found


def _values(group: pa.StructArray, dictionaries: Sequence[_Dictionary | None]) -> _Values:
    """Return the encoded values of groups of ``value`` and ``typed_value``; None if missing. Where
    the dictionary is None, the value is not used."""
    parts = _parts(group)
    if not parts.keys() & {"value", "typed_value"}:
        raise FormatError("a shredded variant has a group of neither value nor typed_value")
    if "value" in parts and not _is_binary(parts["value"]):
        raise FormatError("the value of a variant is not binary")
    rest: _Values = (
        pc.struct_field(group, "value").to_pylist() if "value" in parts else [None] * len(group)
    )
    if "typed_value" not in parts:
        return rest
    typed = pc.struct_field(group, "typed_value")
    if pa.types.is_struct(typed.type):
        return _objects(typed, rest, dictionaries)
    if pa.types.is_list(typed.type) or pa.types.is_large_list(typed.type):
        found = _arrays(typed, dictionaries)
    else:
        found = _primitives(typed)
    if any(a is not None and b is not None for a, b in zip(found, rest, strict=True)):
        raise FormatError("a shredded variant has both a value and a typed value")
    return [b if a is None else a for a, b in zip(found, rest, strict=True)]


def _objects(
    typed: pa.StructArray, rest: _Values, dictionaries: Sequence[_Dictionary | None]
) -> _Values:
    # Where a struct is null, this makes its fields null; otherwise they may be anything.
    columns = [
        (name.encode(), _values(_group(pc.struct_field(typed, [i])), dictionaries))
        for i, name in enumerate(_parts(typed))
    ]
    result = list(rest)
    for row, is_object in enumerate(typed.is_valid().to_pylist()):
        dictionary = dictionaries[row]
        if not is_object or dictionary is None:
            continue
        fields = {name: value for name, values in columns if (value := values[row]) is not None}
        others = rest[row]
        if others is not None:
            for name, value in _fields_in(others, dictionary):
                if name in fields:
                    raise FormatError("a shredded variant has a field twice")
                fields[name] = value
        result[row] = _object(fields, dictionary)
    return result


def _arrays(typed: pa.Array, dictionaries: Sequence[_Dictionary | None]) -> _Values:
    typed = compacted(typed)
    lengths = pc.list_value_length(typed).to_pylist()
    of_elements = [d for d, n in zip(dictionaries, lengths, strict=True) for _ in range(n or 0)]
    elements = iter(_values(_group(typed.values), of_elements))
    return [
        None if n is None else _array([next(elements) or _NULL for _ in range(n)]) for n in lengths
    ]


def _parts(group: pa.StructArray) -> dict[str, pa.DataType]:
    parts = {field.name: field.type for field in group.type}
    if len(parts) != group.type.num_fields:
        raise FormatError("a group of a shredded variant has two fields of one name")
    return parts


def _group(array: pa.Array) -> pa.StructArray:
    if not isinstance(array, pa.StructArray):
        raise FormatError("a shredded variant's field or element is no group")
    return array


def _fields_in(value: bytes, dictionary: _Dictionary) -> Iterable[tuple[bytes, bytes]]:
    """Return the names and values of an encoded object's fields."""
    if not value or value[0] & 3 != _OBJECT:
        raise FormatError("a variant with shredded fields has a value that is no object")
    header = value[0] >> 2
    offset_size, id_size = (header & 3) + 1, (header >> 2 & 3) + 1
    count_size = 4 if header & 0x10 else 1
    count = int.from_bytes(value[1 : 1 + count_size], "little")
    ids_at = 1 + count_size
    offsets_at = ids_at + count * id_size
    start = offsets_at + (count + 1) * offset_size
    if start > len(value):
        raise FormatError("an object in a variant ends too early")
    ids = _numbers(value, ids_at, id_size, count)
    *offsets, end = _numbers(value, offsets_at, offset_size, count + 1)
    if start + end > len(value) or any(n >= end for n in offsets):
        raise FormatError("an offset in a variant's object is outside of it")
    if any(n >= len(dictionary.names) for n in ids):
        raise FormatError("a field of a variant is not in its metadata")
    # The values may be in any order.
    ordered = sorted({*offsets, end})
    ends = dict(itertools.pairwise(ordered))
    return [
        (dictionary.names[n], value[start + at : start + ends[at]])
        for n, at in zip(ids, offsets, strict=True)
    ]


def _object(fields: dict[bytes, bytes], dictionary: _Dictionary) -> bytes:
    names = sorted(fields)
    values = [fields[name] for name in names]
    id_size, offset_size = _size(len(dictionary.names)), _size(sum(map(len, values)))
    header, count = _counted(_OBJECT | (offset_size - 1) << 2 | (id_size - 1) << 4, 6, len(values))
    ids = b"".join(dictionary.id_of(name).to_bytes(id_size, "little") for name in names)
    return b"".join((header, count, ids, _offsets(values, offset_size), *values))


def _array(values: Sequence[bytes]) -> bytes:
    offset_size = _size(sum(map(len, values)))
    header, count = _counted(_ARRAY | (offset_size - 1) << 2, 4, len(values))
    return b"".join((header, count, _offsets(values, offset_size), *values))


def _counted(header: int, large_bit: int, count: int) -> tuple[bytes, bytes]:
    """Return the first byte and the number of values, which has 4 bytes if 1 is not enough."""
    is_large = count > 0xFF
    return bytes([header | is_large << large_bit]), count.to_bytes(4 if is_large else 1, "little")


def _offsets(values: Sequence[bytes], size: int) -> bytes:
    at, offsets = 0, bytearray(size)
    for value in values:
        at += len(value)
        offsets += at.to_bytes(size, "little")
    return bytes(offsets)


def _size(largest: int) -> int:
    """Return the number of bytes that a number needs, at least 1."""
    return max(1, -(-largest.bit_length() // 8))


def _numbers(data: bytes, start: int, size: int, count: int) -> list[int]:
    ends = range(start + size, start + size * (count + 1), size)
    return [int.from_bytes(data[end - size : end], "little") for end in ends]


def _is_binary(kind: pa.DataType | None) -> bool:
    return kind is not None and bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _primitives(array: pa.Array) -> _Values:
    """Return values of a typed column, encoded."""
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    kind = array.type
    if pa.types.is_boolean(kind):
        flags = {True: bytes([_TRUE << 2]), False: bytes([_FALSE << 2]), None: None}
        return [flags[value] for value in array.to_pylist()]
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        # Not every writer checks that text is UTF-8.
        return _each(array.cast(pa.large_binary()), _string)
    if _is_binary(kind):
        return _each(array, lambda data: _sized(_BINARY, data))
    if pa.types.is_decimal128(kind) and kind.scale >= 0:
        size, number = next((s, n) for most, s, n in _DECIMALS if kind.precision <= most)
        start = bytes([number << 2, kind.scale])
    elif kind in _NUMBERS:
        size, start = kind.bit_width // 8, bytes([_NUMBERS[kind] << 2])
    elif kind == pa.binary(16):
        size, start = 16, bytes([_UUID << 2])
    else:
        raise FormatError(f"a shredded variant has a column of {kind}, which no variant has")
    width = pa.binary(kind.bit_width // 8)
    return _each(array.view(width), lambda data: start + data[:size])


def _each(array: pa.Array, encode: Callable[[bytes], bytes]) -> _Values:
    return [None if value is None else encode(value) for value in array.to_pylist()]


def _string(data: bytes) -> bytes:
    if len(data) <= _MAX_SHORT_STRING:
        return bytes([len(data) << 2 | 1]) + data
    return _sized(_STRING, data)


def _sized(number: int, data: bytes) -> bytes:
    return bytes([number << 2]) + len(data).to_bytes(4, "little") + data

# cython: freethreading_compatible=True
"""Parses and prints structures in Thrift's compact protocol.

A struct becomes a dict from field id to ``(type, value)``, and a list becomes ``(element type,
values)``. The types and the unknown fields are there, so that a structure can be printed again
without loss. What another parser could read in another way is refused: a field that is there
twice, and a number that is too long for its type. Follows the Thrift compact protocol
specification. Independent of what the structures mean. It is compiled, because a Parquet file has a
structure for each of its pages.
"""

from cpython.buffer cimport PyBuffer_Release
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint64_t

from ags1.engine._buffers cimport take_input

from ...errors import FormatError

cdef enum Kind:
    KIND_TRUE = 1
    KIND_FALSE
    KIND_BYTE
    KIND_I16
    KIND_I32
    KIND_I64
    KIND_DOUBLE
    KIND_BINARY
    KIND_LIST
    KIND_SET
    KIND_MAP
    KIND_STRUCT

# Field types. In the bytes, a boolean field has one of two types and no value. Here it is always
# (TRUE, value).
TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)

# For annotations; the stub has the types inside.
Struct = dict
Types = dict
Kept = dict

cdef enum:
    MAX_DEPTH = 32
    LONG_LIST = 15
    MAX_FIELD_ID = 0x7FFF


cdef struct Cursor:
    const unsigned char *at
    const unsigned char *end


def parse(data, dict types=None, dict kept=None):
    """Return the struct at the beginning of ``data`` and its size (bytes).

    ``types`` has by a field's id its type, for structs ``(STRUCT, types)``, and for lists ``(LIST,
    type of the elements)``. Fields that it does not have are of any type. ``kept`` has by a field's
    id what is kept of the struct, or of each struct of the list; None keeps all of it. Other fields
    are parsed, and left out. Raises IndexError when ``data`` ends within the struct, FormatError
    when it is none.
    """
    cdef Py_buffer view
    cdef Cursor cursor
    take_input(data, &view)
    try:
        cursor.at = <const unsigned char *>view.buf
        cursor.end = cursor.at + view.len
        fields = read_struct(&cursor, 0, types, kept, True)
        return fields, cursor.at - <const unsigned char *>view.buf
    finally:
        PyBuffer_Release(&view)


def print_struct(dict fields):
    """Return a struct as bytes, its fields in the order of their ids."""
    cdef bytearray out = bytearray()
    put_struct(out, fields)
    return bytes(out)


def value(dict fields, field_id, default=None):
    """Return a field's value, ``default`` if it is missing."""
    found = fields.get(field_id)
    return default if found is None else found[1]


# -- parsing

cdef object check_type(int kind, wanted):
    """Return the types of what is inside. Raise FormatError if ``kind`` is not what is wanted."""
    inside = None
    if wanted is None:
        return None
    if type(wanted) is tuple:
        wanted, inside = wanted
    if kind != <int>wanted:
        raise FormatError("a structure of the file has a field of a type that Parquet's has not")
    return inside


cdef dict read_struct(Cursor *source, int depth, dict types, dict kept, bint is_kept):
    cdef dict found = {} if is_kept else None
    cdef set other_ids = None
    cdef uint64_t small_ids = 0
    cdef int64_t field_id = 0
    cdef int kind, header = read_byte(source)
    cdef bint is_twice
    check_depth(depth)
    while header:
        field_id = field_id + (header >> 4) if header >> 4 else read_integer(source)
        if not -MAX_FIELD_ID <= field_id <= MAX_FIELD_ID:
            raise FormatError("a structure of the file has a field that Thrift does not have")
        key = field_id
        if 0 <= field_id < 64:
            is_twice = small_ids >> field_id & 1
            small_ids |= <uint64_t>1 << field_id
        else:
            other_ids = other_ids or set()
            is_twice = key in other_ids
            other_ids.add(key)
        if is_twice:
            raise FormatError("a structure of the file has a field twice")
        kind = header & 0x0F
        if kind == KIND_FALSE:
            kind = KIND_TRUE
        inside = None if types is None else check_type(kind, types.get(key))
        if is_kept and (kept is None or key in kept):
            within = None if kept is None else kept[key]
            if kind == KIND_TRUE:
                found[key] = TRUE, header & 0x0F == KIND_TRUE
            else:
                found[key] = kind, read_value(source, kind, depth, inside, within, True)
        elif kind != KIND_TRUE:
            read_value(source, kind, depth, inside, None, False)
        header = read_byte(source)
    return found


cdef object read_value(
    Cursor *source, int kind, int depth, types, dict kept, bint is_kept
):
    """Return a value; None if it is not kept."""
    cdef uint64_t count
    cdef int64_t number, limit
    cdef int header, inner
    cdef list items
    if kind == KIND_I64:
        number = read_integer(source)
        return number if is_kept else None
    if kind == KIND_I32 or kind == KIND_I16:
        number, limit = read_integer(source), <int64_t>1 << (31 if kind == KIND_I32 else 15)
        if not -limit <= number < limit:
            raise FormatError("a number of the file is too long")
        return number if is_kept else None
    if kind == KIND_BINARY:
        return read_bytes(source, read_varint(source), is_kept)
    if kind == KIND_STRUCT:
        return read_struct(source, depth + 1, types, kept, is_kept)
    if kind == KIND_TRUE or kind == KIND_FALSE:  # booleans of a list have a byte each
        return read_byte(source) == KIND_TRUE
    if kind == KIND_BYTE:
        return read_byte(source)
    if kind == KIND_DOUBLE:
        return read_bytes(source, 8, is_kept)
    if kind == KIND_LIST or kind == KIND_SET:
        check_depth(depth)
        header = read_byte(source)
        count = header >> 4 if header >> 4 != LONG_LIST else read_varint(source)
        inner = header & 0x0F
        inside = check_type(inner, types) if count else None
        items = [] if is_kept else None
        while count:
            # Each value has at least one byte, so a false count cannot use up the memory.
            item = read_value(source, inner, depth + 1, inside, kept, is_kept)
            if is_kept:
                items.append(item)
            count -= 1
        return (inner, items) if is_kept else None
    raise FormatError("a structure of the file has a type that Parquet does not use")


cdef int check_depth(int depth) except -1:
    if depth > MAX_DEPTH:
        raise FormatError("a structure of the file is nested too deeply")
    return 0


cdef int read_byte(Cursor *source) except -1:
    if source.at == source.end:
        raise IndexError("the data ends within a structure")
    source.at += 1
    return (source.at - 1)[0]


cdef bytes read_bytes(Cursor *source, uint64_t size, bint is_kept):
    if size > <uint64_t>(source.end - source.at):
        raise IndexError("the data ends within a structure")
    source.at += size
    return None if not is_kept else PyBytes_FromStringAndSize(<const char *>source.at - size, size)


cdef uint64_t read_varint(Cursor *source) except? 0:
    cdef uint64_t number = 0, byte
    cdef int shift = 0
    while True:
        byte = read_byte(source)
        if shift == 63 and byte > 1:
            raise FormatError("a number of the file is too long")
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number
        shift += 7


cdef int64_t read_integer(Cursor *source) except? 0:
    cdef uint64_t number = read_varint(source)
    return <int64_t>(number >> 1) ^ -<int64_t>(number & 1)


# -- printing

cdef int put_struct(bytearray out, dict fields) except -1:
    cdef int64_t last = 0, field_id
    cdef int kind, code
    for key in sorted(fields):
        kind, content = fields[key]
        field_id = key
        code = kind
        if kind == KIND_TRUE and not content:
            code = KIND_FALSE
        if 0 < field_id - last <= 15:
            out.append(<int>(field_id - last) << 4 | code)
        else:
            out.append(code)
            put_integer(out, field_id)
        last = field_id
        if kind != KIND_TRUE:
            put(out, kind, content)
    out.append(0)
    return 0


cdef int put(bytearray out, int kind, content) except -1:
    cdef int inner
    cdef Py_ssize_t count
    if kind == KIND_I32 or kind == KIND_I64 or kind == KIND_I16:
        put_integer(out, content)
    elif kind == KIND_BINARY:
        put_varint(out, len(content))
        out += content
    elif kind == KIND_STRUCT:
        put_struct(out, content)
    elif kind == KIND_TRUE or kind == KIND_FALSE:
        out.append(KIND_TRUE if content else KIND_FALSE)
    elif kind == KIND_BYTE:
        out.append(content)
    elif kind == KIND_DOUBLE:
        out += content
    elif kind == KIND_LIST or kind == KIND_SET:
        inner, values = content
        count = len(values)
        if count < LONG_LIST:
            out.append(<int>count << 4 | inner)
        else:
            out.append(LONG_LIST << 4 | inner)
            put_varint(out, count)
        for item in values:
            put(out, inner, item)
    else:
        raise FormatError("a structure has a type that Parquet does not use")
    return 0


cdef int put_varint(bytearray out, uint64_t number) except -1:
    while number > 0x7F:
        out.append(<int>(number & 0x7F | 0x80))
        number >>= 7
    out.append(<int>number)
    return 0


cdef int put_integer(bytearray out, int64_t number) except -1:
    return put_varint(out, (<uint64_t>number << 1) ^ <uint64_t>(number >> 63))

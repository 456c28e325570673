# cython: freethreading_compatible=True
"""Parses and prints structures in Thrift's compact protocol.

A struct becomes a dict from field id to ``(type, value)``, and a list becomes ``(element type,
values)``. The types and the unknown fields are there, so that a structure can be printed again
without loss. What another parser could read in another way is refused: a field that is there
twice or out of order, and a number that is too long for its type. Follows the Thrift compact
protocol specification. Independent of what the structures mean. It is compiled, because a Parquet
file has a structure for each of its pages.
"""

from cpython.buffer cimport PyBuffer_Release
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint64_t

from ags1.engine._buffers cimport take_input

from ...errors import FormatError

# Field types. In the bytes, a boolean field has one of two types and no value. Here it is always
# (TRUE, value).
TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)

# For annotations; the stub has the types inside.
Struct = dict
Types = dict
Kept = dict
# What is kept of a field: its value, and under its id with a minus, where the field begins.
PLACE = object()


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
        cursor.begin = cursor.at = <const unsigned char *>view.buf
        cursor.end = cursor.at + view.len
        cursor.fault = 0
        fields = read_struct(&cursor, 0, types, kept, True)
        return fields, cursor.at - cursor.begin
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


cdef int check(const Cursor *source) except -1:
    """Raise if something was wrong."""
    if source.fault == FAULT_END:
        raise IndexError("the data ends within a structure")
    if source.fault == FAULT_NUMBER:
        raise FormatError("a number of the file is too long")
    if source.fault == FAULT_ORDER:
        raise FormatError("a structure of the file has a field twice, or out of order")
    if source.fault == FAULT_KIND:
        raise FormatError("a structure of the file has a type that Parquet does not use")
    if source.fault == FAULT_DEPTH:
        raise FormatError("a structure of the file is nested too deeply")
    return 0


cdef dict read_struct(Cursor *source, int depth, dict types, dict kept, bint is_kept):
    cdef dict found = {} if is_kept else None
    cdef int64_t field_id = 0
    cdef int kind
    cdef const unsigned char *begin
    check_depth(source, depth)
    while True:
        begin = source.at
        kind = next_field(source, &field_id)
        if not kind:
            check(source)
            return found
        key = field_id
        content = kind == KIND_TRUE
        if kind == KIND_FALSE:
            kind = KIND_TRUE
        inside = None if types is None else check_type(kind, types.get(key))
        if is_kept and (kept is None or key in kept):
            if kind != KIND_TRUE:
                within = None if kept is None else kept[key]
                if within is PLACE:
                    within = None
                    found[-key] = KIND_I64, begin - source.begin
                content = read_value(source, kind, depth, inside, within, True)
            found[key] = kind, content
        elif kind != KIND_TRUE:
            read_value(source, kind, depth, inside, None, False)


cdef object read_value(
    Cursor *source, int kind, int depth, types, dict kept, bint is_kept
):
    """Return a value; None if it is not kept."""
    cdef uint64_t count
    cdef int inner
    cdef list items
    if not is_kept and types is None:
        skip_value(source, kind, depth)
        check(source)
        return None
    if kind == KIND_I64 or kind == KIND_I32 or kind == KIND_I16:
        return read_integer(source) if kind == KIND_I64 else read_short_integer(source, kind)
    if kind == KIND_BINARY:
        return read_bytes(source, read_varint(source))
    if kind == KIND_STRUCT:
        return read_struct(source, depth + 1, types, kept, is_kept)
    if kind == KIND_TRUE or kind == KIND_FALSE:  # booleans of a list have a byte each
        return read_byte(source) == KIND_TRUE
    if kind == KIND_BYTE:
        return read_byte(source)
    if kind == KIND_DOUBLE:
        return read_bytes(source, 8)
    if kind == KIND_LIST or kind == KIND_SET:
        check_depth(source, depth)
        inner = read_list_header(source, &count)
        inside = check_type(inner, types) if count else None
        items = [] if is_kept else None
        while count:
            # Each value has at least one byte, so a false count cannot use up the memory.
            item = read_value(source, inner, depth + 1, inside, kept, is_kept)
            check(source)
            if is_kept:
                items.append(item)
            count -= 1
        return (inner, items) if is_kept else None
    set_fault(source, FAULT_KIND)
    return check(source)


cdef void skip_value(Cursor *source, int kind, int depth) noexcept nogil:
    cdef uint64_t count
    cdef int64_t field_id = 0
    cdef int inner
    if depth > MAX_DEPTH:
        set_fault(source, FAULT_DEPTH)
    elif kind == KIND_I64:
        read_integer(source)
    elif kind == KIND_I32 or kind == KIND_I16:
        read_short_integer(source, kind)
    elif kind == KIND_BINARY:
        skip_bytes(source, read_varint(source))
    elif kind == KIND_STRUCT:
        while True:
            inner = next_field(source, &field_id)
            if not inner:
                break
            if inner != KIND_TRUE and inner != KIND_FALSE:
                skip_value(source, inner, depth + 1)
    elif kind == KIND_TRUE or kind == KIND_FALSE or kind == KIND_BYTE:
        read_byte(source)
    elif kind == KIND_DOUBLE:
        skip_bytes(source, 8)
    elif kind == KIND_LIST or kind == KIND_SET:
        inner = read_list_header(source, &count)
        while count and not source.fault:
            skip_value(source, inner, depth + 1)
            count -= 1
    else:
        set_fault(source, FAULT_KIND)


cdef int read_list_header(Cursor *source, uint64_t *count) noexcept nogil:
    """Return the type of a list's elements."""
    cdef int header = read_byte(source)
    count[0] = header >> 4 if header >> 4 != LONG_LIST else read_varint(source)
    return header & 0x0F


cdef int check_depth(Cursor *source, int depth) except -1:
    if depth > MAX_DEPTH:
        set_fault(source, FAULT_DEPTH)
    return check(source)


cdef const unsigned char *skip_bytes(Cursor *source, uint64_t size) noexcept nogil:
    """Return where the bytes begin."""
    if size > <uint64_t>(source.end - source.at):
        set_fault(source, FAULT_END)
        return source.at
    source.at += size
    return source.at - size


cdef bytes read_bytes(Cursor *source, uint64_t size):
    cdef const unsigned char *begin = skip_bytes(source, size)
    check(source)
    return PyBytes_FromStringAndSize(<const char *>begin, size)


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

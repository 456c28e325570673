"""Columns in Arrow's memory that grow value by value.

A column has up to three buffers, of which its layout needs some:

    validity    a bit for each value, 0 for null; only from the first null on
    offsets     where each value's bytes or items begin and end; the first begins at 0
    data        the values of BITS and WIDE, the bytes of VARIABLE

Most functions are inline, for ``_avro`` alone. Follows Arrow's columnar format.
"""

from libc.stdint cimport INT32_MAX, int32_t, int64_t
from libc.string cimport memcpy, memset

from ._values cimport OK, TOO_MUCH, Status


cpdef enum Layout:
    """How a column lies in memory. The columns inside follow it."""

    BITS
    # The same number of bytes for each value.
    WIDE
    # Bytes with 64-bit offsets.
    VARIABLE
    # A list with 64-bit offsets, and one with 32-bit offsets.
    LARGE_LIST
    SMALL_LIST
    # Only the columns inside have values.
    STRUCT


cdef struct Buffer:
    unsigned char *data
    size_t size
    size_t capacity
    # The size that the previous batch needed.
    size_t hint


cdef struct Column:
    Layout layout
    int end
    size_t width
    bint nullable
    int64_t length
    int64_t nulls
    Buffer validity
    Buffer offsets
    Buffer data


cdef class Memory:
    cdef unsigned char *data
    cdef Py_ssize_t size


cdef Memory take(Buffer *b)
cdef Status grow(Buffer *b, size_t extra) noexcept nogil


# -- adding values

cdef inline Status reserve(Buffer *b, size_t extra) noexcept nogil:
    return OK if extra <= b.capacity - b.size else grow(b, extra)


cdef inline Status put(Buffer *b, const void *value, size_t size) noexcept nogil:
    cdef Status status = reserve(b, size)
    # If the size is 0, there may be no memory yet.
    if status == OK and size:
        memcpy(b.data + b.size, value, size)
        b.size += size
    return status


cdef inline Status put_bit(Buffer *b, int64_t index, bint value) noexcept nogil:
    """Set the bit at ``index``, which is at most one after the last."""
    cdef size_t byte = <size_t>(index >> 3)
    cdef unsigned char mask = 1 << (index & 7)
    cdef Status status
    if byte == b.size:
        status = reserve(b, 1)
        if status != OK:
            return status
        b.data[byte] = 0
        b.size += 1
    if value:
        b.data[byte] |= mask
    else:
        b.data[byte] &= ~mask
    return OK


cdef inline Status put_offset(Column *c, int64_t end) noexcept nogil:
    """End the value at ``end``; the first value begins at 0."""
    cdef int64_t zero = 0
    cdef int32_t end32
    cdef size_t size = sizeof(int32_t) if c.layout == SMALL_LIST else sizeof(int64_t)
    cdef Status status = OK
    if c.offsets.size == 0:
        status = put(&c.offsets, &zero, size)
    if status != OK:
        return status
    if c.layout == SMALL_LIST:
        if end > INT32_MAX:
            return TOO_MUCH
        end32 = <int32_t>end
        return put(&c.offsets, &end32, sizeof(end32))
    return put(&c.offsets, &end, sizeof(end))


cdef inline int64_t last_offset(const Column *c) noexcept nogil:
    cdef int32_t end32
    cdef int64_t end
    if c.offsets.size == 0:
        return 0
    if c.layout == SMALL_LIST:
        memcpy(&end32, c.offsets.data + c.offsets.size - sizeof(end32), sizeof(end32))
        return end32
    memcpy(&end, c.offsets.data + c.offsets.size - sizeof(end), sizeof(end))
    return end


cdef inline Status added(Column *c) noexcept nogil:
    """Count a value that is not null. There is a bitmap only from the first null on."""
    cdef Status status = OK
    if c.nulls:
        status = put_bit(&c.validity, c.length, True)
    c.length += 1
    return status


cdef inline Status add_null(Column *c) noexcept nogil:
    cdef size_t before
    cdef Status status
    if not c.nulls:
        before = <size_t>((c.length + 7) >> 3)
        status = reserve(&c.validity, before + 1)
        if status != OK:
            return status
        memset(c.validity.data, 0xFF, before)
        c.validity.size = before
    status = put_bit(&c.validity, c.length, False)
    c.nulls += 1
    c.length += 1
    return status


cdef inline Status add_blank(Column *columns, int index) noexcept nogil:
    """Add what stands in for no value: null, or zeros in a column of values under a null."""
    cdef Column *c = &columns[index]
    cdef Status status = OK
    cdef int inside
    if c.layout == BITS:
        status = put_bit(&c.data, c.length, False)
    elif c.layout == WIDE:
        status = reserve(&c.data, c.width)
        if status == OK and c.width:
            memset(c.data.data + c.data.size, 0, c.width)
            c.data.size += c.width
    elif c.layout == VARIABLE:
        status = put_offset(c, <int64_t>c.data.size)
    elif c.layout == STRUCT:
        inside = index + 1
        while status == OK and inside < c.end:
            status = add_blank(columns, inside)
            inside = columns[inside].end
    else:
        status = put_offset(c, last_offset(c))
    if status != OK:
        return status
    return add_null(c) if c.nullable else added(c)


cdef inline Status add(Column *c, const void *value, size_t size) noexcept nogil:
    cdef Status status = put(&c.data, value, size)
    return added(c) if status == OK else status


cdef inline Status add_variable(Column *c, const void *value, size_t size) noexcept nogil:
    cdef Status status = put(&c.data, value, size)
    if status == OK:
        status = put_offset(c, <int64_t>c.data.size)
    return added(c) if status == OK else status

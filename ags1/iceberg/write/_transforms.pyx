# cython: freethreading_compatible=True, cdivision=True
"""Partition transforms of whole columns that Arrow and NumPy do not have.

Values and results are memory in Arrow's layout on a little-endian machine. The bytes of a null are
transformed like any others, and the caller must ignore the result. This follows the Iceberg
specification, "Partition Transforms" and "Appendix B: 32-bit Hash Requirements".
"""

from cpython.buffer cimport PyBuffer_Release
from cpython.bytes cimport PyBytes_AS_STRING
from libc.stddef cimport size_t
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcpy

from ags1.engine._buffers cimport new_object, take_input

cdef extern from *:
    """
    typedef __int128 ags1_int128;
    typedef unsigned __int128 ags1_uint128;
    """
    # Cython must be given some width; C knows the real one.
    ctypedef long long int128 "ags1_int128"
    ctypedef unsigned long long uint128 "ags1_uint128"

cdef enum:
    DECIMAL_SIZE = 16


cdef inline uint32_t rotated(uint32_t value, int bits) noexcept nogil:
    return (value << bits) | (value >> (32 - bits))


cdef inline uint32_t scrambled(uint32_t word) noexcept nogil:
    return rotated(word * <uint32_t>0xCC9E2D51, 15) * <uint32_t>0x1B873593


cdef inline uint32_t murmur3(const uint8_t *data, size_t size) noexcept nogil:
    """Return the 32-bit Murmur3 hash (x86) of the seed 0."""
    cdef uint32_t state = 0, word
    cdef size_t at = 0
    while at + 4 <= size:
        memcpy(&word, data + at, 4)
        state = rotated(state ^ scrambled(word), 13) * 5 + <uint32_t>0xE6546B64
        at += 4
    if at < size:
        word = 0
        memcpy(&word, data + at, size - at)
        state ^= scrambled(word)
    state ^= <uint32_t>size
    state = (state ^ (state >> 16)) * <uint32_t>0x85EBCA6B
    state = (state ^ (state >> 13)) * <uint32_t>0xC2B2AE35
    return state ^ (state >> 16)


cdef inline int32_t bucket_of(const uint8_t *data, size_t size, int32_t buckets) noexcept nogil:
    return <int32_t>(murmur3(data, size) & 0x7FFF_FFFF) % buckets


def bucket_bytes(offsets, data, int32_t buckets):
    """Return the bucket of each run of bytes, 32 bits each.

    Value i is ``data`` from number i to number i + 1 of ``offsets``, which have 64 bits. Raises
    ValueError for a value that does not lie in the data.
    """
    cdef Py_buffer starts, text
    cdef const int64_t *at
    cdef const uint8_t *values
    cdef int32_t *found
    cdef Py_ssize_t i, count
    take_input(offsets, &starts)
    try:
        take_input(data, &text)
        try:
            count = starts.len // <Py_ssize_t>sizeof(int64_t) - 1
            if count < 0 or buckets < 1:
                raise ValueError("there is at least one offset, and one bucket")
            result = new_object(count * sizeof(int32_t))
            found = <int32_t *>PyBytes_AS_STRING(result)
            at, values = <const int64_t *>starts.buf, <const uint8_t *>text.buf
            with nogil:
                for i in range(count):
                    if not 0 <= at[i] <= at[i + 1] <= text.len:
                        with gil:
                            raise ValueError("a value does not lie in its column's memory")
                    found[i] = bucket_of(values + at[i], at[i + 1] - at[i], buckets)
            return result
        finally:
            PyBuffer_Release(&text)
    finally:
        PyBuffer_Release(&starts)


def bucket_decimals(decimals, int32_t buckets):
    """Return the bucket of each decimal of 128 bits, 32 bits each: that of the fewest bytes that
    hold the unscaled value with its sign, the highest byte first."""
    cdef Py_buffer view
    cdef const uint8_t *value
    cdef uint8_t turned[DECIMAL_SIZE]
    cdef int32_t *found
    cdef Py_ssize_t i, count
    cdef int n, first
    if buckets < 1:
        raise ValueError("there is at least one bucket")
    take_input(decimals, &view)
    try:
        count = view.len // DECIMAL_SIZE
        result = new_object(count * sizeof(int32_t))
        found = <int32_t *>PyBytes_AS_STRING(result)
        value = <const uint8_t *>view.buf
        with nogil:
            for i in range(count):
                for n in range(DECIMAL_SIZE):
                    turned[n] = value[DECIMAL_SIZE - 1 - n]
                first = 0
                # Leading bytes that only repeat the sign are left out.
                while (first < DECIMAL_SIZE - 1
                       and turned[first] == (0xFF if turned[first + 1] & 0x80 else 0)):
                    first += 1
                found[i] = bucket_of(turned + first, DECIMAL_SIZE - first, buckets)
                value += DECIMAL_SIZE
        return result
    finally:
        PyBuffer_Release(&view)


def truncate_decimals(decimals, int64_t width):
    """Return each decimal of 128 bits, rounded down to a multiple of ``width`` units. The result
    may have one digit more."""
    cdef Py_buffer view
    cdef const uint8_t *value
    cdef uint8_t *found
    cdef Py_ssize_t i, count
    cdef int128 number, rest
    if width < 1:
        raise ValueError(f"the width is at least 1, not {width}")
    take_input(decimals, &view)
    try:
        count = view.len // DECIMAL_SIZE
        result = new_object(count * DECIMAL_SIZE)
        found = <uint8_t *>PyBytes_AS_STRING(result)
        value = <const uint8_t *>view.buf
        with nogil:
            for i in range(count):
                memcpy(&number, value + i * DECIMAL_SIZE, DECIMAL_SIZE)
                rest = number % width
                # Unsigned, because the bytes of a null may make the result overflow.
                number = <int128>(<uint128>number - <uint128>(rest + width if rest < 0 else rest))
                memcpy(found + i * DECIMAL_SIZE, &number, DECIMAL_SIZE)
        return result
    finally:
        PyBuffer_Release(&view)

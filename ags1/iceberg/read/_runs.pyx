# cython: freethreading_compatible=True, cdivision=True
"""Copies runs of values between buffers in Arrow's layout, on a little-endian machine.

A run is a pair of 64-bit numbers: that of its first value, and that after its last one. Runs ascend
and do not overlap. Nothing is read or written outside of the buffers, whatever the numbers are.
Independent of types.
"""

from cpython.buffer cimport PyBuffer_Release
from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memcpy

from ags1.engine._buffers cimport new_object, take_input, take_output

ctypedef fused Offset:
    int32_t
    int64_t

cdef enum:
    NUMBER = 8  # bytes
    # So many bits are in eight bytes, whatever the first one's place in its byte is.
    BITS_AT_ONCE = 56


cdef class View:
    """The memory of an object, until this one is freed."""

    cdef Py_buffer buffer

    def __cinit__(self, object held, bint is_output=False):
        if is_output:
            take_output(held, &self.buffer)
        else:
            take_input(held, &self.buffer)

    def __dealloc__(self):
        PyBuffer_Release(&self.buffer)


cdef class Runs(View):
    """Runs of a buffer, of ``total`` values, which all are among ``available`` ones."""

    cdef const int64_t *at
    cdef Py_ssize_t count
    cdef int64_t total

    cdef int check(self, int64_t available) except -1:
        cdef int64_t end = 0
        cdef Py_ssize_t i
        self.at = <const int64_t *>self.buffer.buf
        self.count = self.buffer.len // (2 * NUMBER)
        self.total = 0
        for i in range(self.count):
            if not end <= self.at[2 * i] <= self.at[2 * i + 1]:
                raise ValueError("the runs do not ascend")
            end = self.at[2 * i + 1]
            self.total += end - self.at[2 * i]
        if end > available:
            raise ValueError("a run is outside of its buffer")
        return 0


def runs_between(positions, int64_t first, int64_t count):
    """Return the runs of ``count`` values from number ``first`` on, without those at ``positions``,
    which are ascending 64-bit numbers. The first of the values has the number 0 in the runs. Raises
    ValueError for a position that is none of theirs."""
    cdef View view = View(positions)
    cdef const int64_t *removed = <const int64_t *>view.buffer.buf
    cdef Py_ssize_t i, size = view.buffer.len // NUMBER, made = 0
    cdef int64_t start = 0, position
    result = new_object((size + 1) * 2 * NUMBER)
    cdef int64_t *runs = <int64_t *>PyBytes_AS_STRING(result)
    for i in range(size + 1):
        position = removed[i] - first if i < size else count
        if not start <= position <= count - (i < size):
            raise ValueError("the positions do not ascend, or one is none of the values'")
        if position > start:
            runs[made], runs[made + 1] = start, position
            made += 2
        start = position + 1
    return result[:made * NUMBER]


def copy_values(source, runs, int64_t width, target):
    """Copy runs of values of ``width`` bytes. Raises ValueError if a buffer is too small."""
    cdef View old = View(source), new = View(target, True)
    cdef Runs kept = Runs(runs)
    if width < 1:
        raise ValueError("a value has at least one byte")
    kept.check(old.buffer.len // width)
    if kept.total > new.buffer.len // width:
        raise ValueError("the runs are longer than the target")
    cdef const uint8_t *values = <const uint8_t *>old.buffer.buf
    cdef uint8_t *out = <uint8_t *>new.buffer.buf
    cdef int64_t start, size
    cdef Py_ssize_t i
    with nogil:
        for i in range(kept.count):
            start = kept.at[2 * i] * width
            size = kept.at[2 * i + 1] * width - start
            memcpy(out, values + start, size)
            out += size


def copy_bits(source, int64_t first, int64_t available, runs, target):
    """Copy runs of bits. The first of ``available`` bits is bit ``first`` of the source. Raises
    ValueError if a buffer is too small."""
    cdef View old = View(source), new = View(target, True)
    cdef Runs kept = Runs(runs)
    if not 0 <= first <= old.buffer.len * 8 or not 0 <= available <= old.buffer.len * 8 - first:
        raise ValueError("the bits are outside of their buffer")
    kept.check(available)
    if kept.total > new.buffer.len * 8:
        raise ValueError("the runs are longer than the target")
    cdef const uint8_t *data = <const uint8_t *>old.buffer.buf
    cdef uint8_t *out = <uint8_t *>new.buffer.buf
    cdef uint64_t waiting = 0, word
    cdef int64_t bit, end, step, place
    cdef int used = 0
    cdef Py_ssize_t i
    with nogil:
        for i in range(kept.count):
            bit, end = kept.at[2 * i] + first, kept.at[2 * i + 1] + first
            while bit < end:
                step, place = min(end - bit, BITS_AT_ONCE), bit >> 3
                word = 0
                memcpy(&word, data + place, min(NUMBER, old.buffer.len - place))
                word = (word >> (bit & 7)) & ((<uint64_t>1 << step) - 1)
                waiting |= word << used
                used += <int>step
                bit += step
                while used >= 8:
                    out[0] = <uint8_t>waiting
                    out += 1
                    waiting >>= 8
                    used -= 8
        if used:
            out[0] = <uint8_t>waiting


def copy_offsets(source, runs, int64_t width, target):
    """Copy the offsets of runs of lists, of ``width`` bytes (4 or 8), so that the first is 0.
    Return the runs of their elements. Raises ValueError if a buffer is too small."""
    cdef View old = View(source), new = View(target, True)
    cdef Runs kept = Runs(runs)
    if width != 4 and width != 8:
        raise ValueError("an offset has 4 or 8 bytes")
    if old.buffer.len < width:
        # If there are no lists, there may be no offset either. All runs are empty.
        old = View(bytes(width))
    kept.check(max(0, old.buffer.len // width - 1))
    if kept.total + 1 > new.buffer.len // width:
        raise ValueError("the runs are longer than the target")
    result = new_object(kept.count * 2 * NUMBER)
    cdef int64_t *inner = <int64_t *>PyBytes_AS_STRING(result)
    if width == 4:
        _copy_offsets(<const int32_t *>old.buffer.buf, kept, <int32_t *>new.buffer.buf, inner)
    else:
        _copy_offsets(<const int64_t *>old.buffer.buf, kept, <int64_t *>new.buffer.buf, inner)
    return result


cdef void _copy_offsets(
    const Offset *offsets, Runs kept, Offset *out, int64_t *inner
) noexcept:
    cdef Offset shift, end = 0
    cdef int64_t j
    cdef Py_ssize_t i
    with nogil:
        out[0] = 0
        for i in range(kept.count):
            inner[2 * i] = offsets[kept.at[2 * i]]
            inner[2 * i + 1] = offsets[kept.at[2 * i + 1]]
            shift = end - offsets[kept.at[2 * i]]
            for j in range(kept.at[2 * i] + 1, kept.at[2 * i + 1] + 1):
                out += 1
                out[0] = offsets[j] + shift
            end = out[0]

"""The seldom-used part of ``_columns.pxd``: buffers that grow, and what Arrow gets."""

from cpython.buffer cimport PyBuffer_FillInfo
from libc.stdlib cimport free, realloc

from ._values cimport NO_MEMORY, OK, TOO_MUCH, Status

# The largest buffer of a column. Batches end long before that, unless a single row has more.
cdef size_t MAX_BUFFER_SIZE = <size_t>4 << 30


cdef Status grow(Buffer *b, size_t extra) noexcept nogil:
    cdef size_t capacity
    cdef void *data
    if extra > MAX_BUFFER_SIZE - b.size:
        return TOO_MUCH
    capacity = max(max(b.size + extra, 2 * b.capacity), max(b.hint, <size_t>64))
    data = realloc(b.data, capacity)
    if data == NULL:
        return NO_MEMORY
    b.data = <unsigned char *>data
    b.capacity = capacity
    return OK


cdef class Memory:
    """One buffer of a column, for Arrow to look at. It is freed with the last array over it."""

    def __dealloc__(self):
        free(self.data)

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.data, self.size, 1, flags)


cdef Memory take(Buffer *b):
    """Hand out what was written; None if that is nothing."""
    cdef Memory memory
    cdef void *data
    if b.size == 0:
        return None
    memory = Memory.__new__(Memory)
    memory.size = <Py_ssize_t>b.size
    memory.data = b.data
    if b.capacity - b.size > b.size // 4:
        data = realloc(b.data, b.size)
        if data != NULL:
            memory.data = <unsigned char *>data
    b.hint = b.size
    b.data = NULL
    b.size = b.capacity = 0
    return memory

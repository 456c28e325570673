# The arrays of ``_arrow_arrays.pyx``, for the work on them.

from arrow_c cimport ArrowArray, ArrowSchema

cdef struct Message:
    const unsigned char *at
    Py_ssize_t size  # -1 if it is null
    # Of a file: what its header and its size say. The text's size is -1 if they say nothing.
    Py_ssize_t text_size
    size_t block_size


cdef class Messages:
    cdef Message *_messages
    cdef readonly Py_ssize_t count
    cdef readonly Py_ssize_t size  # of all of them (bytes)
    cdef readonly bint is_large  # whether its offsets have 64 bits
    cdef list _held

    cdef _add_object(self, column, arrow)
    cdef _add_stream(self, capsule)
    cdef int _add(self, ArrowSchema *schema, ArrowArray *array, list sizes) except -1


cdef struct Memory:
    int users  # the Column, and each array that was exported
    bint is_secret
    bint is_given  # whether the bytes are in memory of the caller, which ``given`` holds
    Py_buffer given
    Py_ssize_t size
    # The bitmap of what is not null (or NULL), the offsets, the bytes. Arrow wants all of them to
    # be readable in whole pieces of 64 bytes.
    void *buffers[3]


cdef class Column:
    cdef Memory *_memory
    cdef unsigned char *_data
    cdef Py_ssize_t _count
    cdef Py_ssize_t _null_count
    cdef bint _is_large

    cdef int start(
        self, Py_ssize_t count, Py_ssize_t size, bint is_large, bint has_nulls, bint is_secret,
        object out,
    ) except -1
    cdef int check_apart(self, Messages messages) except -1
    cdef void zero(self) noexcept nogil
    cdef void put_offset(self, Py_ssize_t i, Py_ssize_t offset) noexcept nogil
    cdef Py_ssize_t offset(self, Py_ssize_t i) noexcept nogil
    cdef void put_null(self, Py_ssize_t i) noexcept nogil

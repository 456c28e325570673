# What a batch of messages in a column has in common with one in a list.
from libc.stdint cimport uint64_t


cdef class Batch:
    cdef readonly object failure
    cdef uint64_t _next
    cdef Py_ssize_t _end
    cdef Py_ssize_t _share_size  # in messages

    cdef Py_ssize_t next_share(self) except -2
    cdef fail(self, Py_ssize_t number, error)


cdef void put_header(unsigned char *at, size_t block_size) noexcept nogil
cdef Py_ssize_t stated_sizes(
    const unsigned char *at, Py_ssize_t file_size, size_t max_block_size, size_t *block_size
) noexcept nogil


cdef extern from *:
    """
    #define ags1_prefetch(at) __builtin_prefetch(at)
    """
    void prefetch "ags1_prefetch"(const void *at) nogil

cdef enum:
    MAX_FETCH_SIZE = 16 << 10


cdef inline void fetch(const void *message, Py_ssize_t size) noexcept nogil:
    # Has the CPU read the next message from memory while it works on this one. It does not see by
    # itself which one is next.
    cdef Py_ssize_t at
    for at in range(0, min(size, <Py_ssize_t>MAX_FETCH_SIZE), 64):
        prefetch(<const char *>message + at)

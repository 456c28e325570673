from libc.stdint cimport uint64_t


cdef uint64_t this_process() noexcept nogil

# sys/uio.h: positioned reads and writes over several buffers.
from libc.stddef cimport size_t
from posix.types cimport off_t

cdef extern from "<sys/uio.h>" nogil:
    struct iovec:
        void *iov_base
        size_t iov_len

    ssize_t preadv(int fd, const iovec *iov, int iovcnt, off_t offset)
    ssize_t pwritev(int fd, const iovec *iov, int iovcnt, off_t offset)

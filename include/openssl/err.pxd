# openssl/err.h: the thread's error queue.
from libc.stddef cimport size_t

cdef extern from "openssl/err.h" nogil:
    unsigned long ERR_get_error()
    void ERR_error_string_n(unsigned long e, char *buf, size_t len)
    void ERR_clear_error()

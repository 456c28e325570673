# openssl/crypto.h: library start, version, and memory that must not keep secrets.
from libc.stddef cimport size_t
from libc.stdint cimport uint64_t

cdef extern from "openssl/crypto.h" nogil:
    ctypedef struct OPENSSL_INIT_SETTINGS:
        pass

    enum:
        OPENSSL_VERSION
        OPENSSL_CPU_INFO
        OPENSSL_INIT_LOAD_CONFIG
        OPENSSL_INIT_NO_LOAD_CONFIG
        OPENSSL_INIT_NO_ATEXIT

    int OPENSSL_init_crypto(uint64_t opts, const OPENSSL_INIT_SETTINGS *settings)
    const char *OpenSSL_version(int t)
    void OPENSSL_cleanse(void *ptr, size_t len)

# openssl/params.h: parameters that are asked of an object.
from openssl.types cimport OSSL_PARAM

cdef extern from "openssl/params.h" nogil:
    OSSL_PARAM OSSL_PARAM_construct_uint(const char *key, unsigned int *buf)
    OSSL_PARAM OSSL_PARAM_construct_end()

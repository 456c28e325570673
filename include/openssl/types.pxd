# openssl/types.h: opaque types shared by the other headers.
cdef extern from "openssl/types.h" nogil:
    ctypedef struct OSSL_LIB_CTX:
        pass
    ctypedef struct OSSL_PARAM:
        pass

# openssl/rand.h: OpenSSL's own random generator, which FIPS asks for.
from openssl.evp cimport EVP_RAND_CTX
from openssl.types cimport OSSL_LIB_CTX

cdef extern from "openssl/rand.h" nogil:
    EVP_RAND_CTX *RAND_get0_private(OSSL_LIB_CTX *ctx)

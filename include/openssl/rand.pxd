# openssl/rand.h: the random generators, one for public values (nonces) and one for keys.
from openssl.evp cimport EVP_RAND_CTX
from openssl.types cimport OSSL_LIB_CTX

cdef extern from "openssl/rand.h" nogil:
    int RAND_bytes(unsigned char *buf, int num)
    int RAND_priv_bytes(unsigned char *buf, int num)
    EVP_RAND_CTX *RAND_get0_primary(OSSL_LIB_CTX *ctx)

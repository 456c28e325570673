# openssl/rand.h: the random generators, one for public values (nonces) and one for keys.
cdef extern from "openssl/rand.h" nogil:
    int RAND_bytes(unsigned char *buf, int num)
    int RAND_priv_bytes(unsigned char *buf, int num)

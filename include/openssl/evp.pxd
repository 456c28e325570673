# openssl/evp.h: the EVP interface to AEAD ciphers, as far as AES-GCM needs it.
from libc.stddef cimport size_t

from openssl.types cimport OSSL_LIB_CTX, OSSL_PARAM

cdef extern from "openssl/evp.h" nogil:
    ctypedef struct EVP_CIPHER:
        pass
    ctypedef struct EVP_CIPHER_CTX:
        pass

    enum:
        EVP_CTRL_AEAD_GET_TAG
        EVP_CTRL_AEAD_SET_TAG

    EVP_CIPHER *EVP_CIPHER_fetch(OSSL_LIB_CTX *ctx, const char *algorithm, const char *properties)

    EVP_CIPHER_CTX *EVP_CIPHER_CTX_new()
    void EVP_CIPHER_CTX_free(EVP_CIPHER_CTX *ctx)
    int EVP_CIPHER_CTX_reset(EVP_CIPHER_CTX *ctx)
    int EVP_CIPHER_CTX_get_original_iv(EVP_CIPHER_CTX *ctx, void *buf, size_t len)
    int EVP_CIPHER_CTX_get_params(EVP_CIPHER_CTX *ctx, OSSL_PARAM params[])
    int EVP_CIPHER_CTX_ctrl(EVP_CIPHER_CTX *ctx, int cmd, int p1, void *p2)

    int EVP_EncryptInit_ex2(EVP_CIPHER_CTX *ctx, const EVP_CIPHER *cipher,
                            const unsigned char *key, const unsigned char *iv,
                            const OSSL_PARAM *params)
    int EVP_EncryptUpdate(EVP_CIPHER_CTX *ctx, unsigned char *out, int *outl,
                          const unsigned char *data, int inl)
    int EVP_EncryptFinal_ex(EVP_CIPHER_CTX *ctx, unsigned char *out, int *outl)

    int EVP_DecryptInit_ex2(EVP_CIPHER_CTX *ctx, const EVP_CIPHER *cipher,
                            const unsigned char *key, const unsigned char *iv,
                            const OSSL_PARAM *params)
    int EVP_DecryptUpdate(EVP_CIPHER_CTX *ctx, unsigned char *out, int *outl,
                          const unsigned char *data, int inl)
    int EVP_DecryptFinal_ex(EVP_CIPHER_CTX *ctx, unsigned char *outm, int *outl)

    ctypedef struct EVP_RAND_CTX:
        pass

    int EVP_RAND_generate(EVP_RAND_CTX *ctx, unsigned char *out, size_t outlen,
                          unsigned int strength, int prediction_resistance,
                          const unsigned char *addin, size_t addin_len)

    int EVP_default_properties_is_fips_enabled(OSSL_LIB_CTX *libctx)

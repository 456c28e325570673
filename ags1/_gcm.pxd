# What the other extension modules may use of the block cipher without the GIL.
from libc.stddef cimport size_t
from libc.stdint cimport uint32_t, uint64_t

from openssl.evp cimport EVP_CIPHER_CTX


# One caller's share of a key: a context that keeps the key schedule, and the AAD to be numbered.
cdef struct Lane:
    EVP_CIPHER_CTX *ctx
    Lane *next
    size_t prefix_size
    unsigned char *aad


cdef class BlockCipher:
    cdef readonly size_t block_size
    cdef readonly int key_size
    cdef unsigned char _key[32]
    cdef bytes _aad_prefix
    cdef Lane *_idle
    cdef uint64_t _sealed_blocks
    cdef unsigned long _forks

    cdef Lane *borrow(self) except NULL
    cdef void give_back(self, Lane *lane) noexcept
    cdef int claim(self, size_t blocks) except -1
    cdef int _seal(self, const unsigned char *text, size_t stride, unsigned char *slots,
                   size_t text_size, long long first_block) except -1
    cdef int _open(self, const unsigned char *slots, unsigned char *text, size_t stride,
                   size_t text_size, long long first_block) except -1


cdef unsigned long forks() noexcept nogil
cdef Py_ssize_t seal_run(
    Lane *lane, const unsigned char *text, size_t text_stride, unsigned char *slots,
    size_t block_size, size_t text_size, uint32_t first_block, bint has_nonce,
) noexcept nogil
cdef Py_ssize_t open_run(
    Lane *lane, const unsigned char *slots, unsigned char *text, size_t text_stride,
    size_t block_size, size_t text_size, uint32_t first_block,
) noexcept nogil
cdef object unauthentic(uint64_t block, size_t block_size)
cdef void wipe(void *memory, size_t size) noexcept nogil
cdef object libcrypto_error(str what)
cdef size_t run_blocks(size_t block_size, size_t text_size, long long first_block) except 0

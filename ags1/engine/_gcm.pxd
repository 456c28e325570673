# What the other extension modules use of the block cipher, mostly without the GIL.
from libc.stddef cimport size_t
from libc.stdint cimport uint32_t, uint64_t

from openssl.evp cimport EVP_CIPHER_CTX

cdef enum:
    # How many contexts a cipher keeps for its next callers.
    IDLE_CONTEXTS = 8


# One caller's share of a key: an EVP context that keeps the key schedule, and the AAD with room for
# the block number. ``key`` is used only with the FIPS provider.
cdef struct GcmContext:
    EVP_CIPHER_CTX *ctx
    unsigned char key[32]
    int key_size
    size_t prefix_size
    unsigned char *aad


cdef class BlockCipher:
    cdef readonly size_t block_size
    cdef readonly int key_size
    cdef unsigned char _key[32]
    cdef bytes _aad_prefix
    cdef void *_idle[IDLE_CONTEXTS]
    cdef uint64_t _sealed_blocks
    cdef uint64_t _process

    cdef GcmContext *borrow(self) except NULL
    cdef void give_back(self, GcmContext *context) noexcept nogil
    cdef int claim(self, size_t blocks) except -1
    cdef int _seal(self, const unsigned char *text, size_t stride, unsigned char *slots,
                   size_t text_size, long long first_block) except -1
    cdef int _open(self, const unsigned char *slots, unsigned char *text, size_t stride,
                   size_t text_size, long long first_block, bint is_shared) except -1


cdef int draw(unsigned char *out, size_t size) noexcept nogil
cdef int check_key_size(Py_ssize_t key_size) except -1
cdef GcmContext *new_context(const unsigned char *key, int key_size, bytes aad_prefix) except NULL
cdef GcmContext *keyed_context(
    GcmContext *old, const unsigned char *key, int key_size, const unsigned char *aad_prefix,
    size_t prefix_size,
) noexcept nogil
cdef void free_context(GcmContext *context) noexcept nogil
cdef int seal_message(
    GcmContext *context, const unsigned char *aad, size_t aad_size,
    const unsigned char *nonce, const unsigned char *text, size_t size, unsigned char *slot,
) noexcept nogil
cdef int open_message(
    EVP_CIPHER_CTX *ctx, const unsigned char *aad, size_t aad_size,
    const unsigned char *slot, size_t size, unsigned char *text, bint is_shared,
) noexcept nogil
cdef Py_ssize_t seal_run(
    GcmContext *context, const unsigned char *text, size_t text_stride, unsigned char *slots,
    size_t block_size, size_t text_size, uint32_t first_block, const unsigned char *first_nonce,
) noexcept nogil
cdef Py_ssize_t open_run(
    GcmContext *context, const unsigned char *slots, unsigned char *text, size_t text_stride,
    size_t block_size, size_t text_size, uint32_t first_block, bint is_shared,
) noexcept nogil
cdef size_t run_blocks(size_t block_size, size_t text_size, long long first_block) except 0
cdef Py_ssize_t run_text_size(size_t block_size, size_t slots_size) except -1
cdef int check_pair(
    const Py_buffer *src, const Py_buffer *dst, size_t needed, bint in_place
) except -1
cdef object unauthentic(uint64_t block, size_t block_size)
cdef void wipe(void *memory, size_t size) noexcept nogil
cdef void forget_errors() noexcept nogil
cdef object libcrypto_error(str what)

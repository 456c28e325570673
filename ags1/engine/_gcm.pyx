# cython: freethreading_compatible=True
"""AES-GCM over runs of AGS1 blocks: the only module that calls libcrypto.

A ``BlockCipher`` holds one file's key and AAD prefix. In one call without the GIL it seals or opens
a *run*: consecutive blocks, of which only the last may be short. Each block has a *slot* in the
file. The text of a run lies in a buffer of its own, or in the slots ("in place")::

    slots             nonce | ciphertext    | tag   nonce | ciphertext    | tag   nonce | c. | tag
    text, own buffer          block 0               block 1                       block 2
                              (the blocks follow each other without a gap)
    text, in place    .....   block 0         ...   .....   block 1         ...   ..... b. 2   ...

Any C-contiguous buffer can be used. AES itself moves the bytes. Only input that others can change
is copied first. This module is independent of files and Iceberg.

Nonces are random and have 96 bits (NIST SP 800-38D, 8.2.2); a key has at most 2**32 of them. The
kernel draws nonces and keys anew for each call, because a generator in user space repeats itself
when a process or a virtual machine is cloned. If OpenSSL's FIPS provider is the default, its
generator draws them. Keys get fresh bytes from the kernel as additional input. The provider draws
each nonce itself, because it approves of no other encryption.

A failed call zeroes its whole output range before it raises. Until a call returns, its output may
hold bytes that are not verified yet, so no other thread may read it. Our C copies of the key (here
and in OpenSSL's contexts) are wiped when the object is freed. Any number of threads may use one
cipher, with or without the GIL, because each call takes a context of its own.
"""

from cpython.buffer cimport PyBuffer_Release
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.number cimport PyNumber_Index
from libc.limits cimport INT_MAX
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from ags1.engine._buffers cimport is_private, overlap, take_input, take_output
from ags1.engine.layout cimport BLOCK_OVERHEAD, NONCE_SIZE, TAG_SIZE, put_int32
from ags1.host._process cimport this_process
from atomics cimport atomic_add, atomic_put, atomic_take
from generator_lock cimport guard_generator, is_unseen_child, lock_generator, unlock_generator
from kernel cimport kernel_random
from openssl.crypto cimport (
    OPENSSL_CPU_INFO, OPENSSL_INIT_LOAD_CONFIG, OPENSSL_INIT_NO_ATEXIT, OPENSSL_VERSION,
    OPENSSL_cleanse, OPENSSL_init_crypto, OpenSSL_version,
)
from openssl.err cimport ERR_clear_error, ERR_error_string_n, ERR_get_error
from openssl.evp cimport (
    EVP_CIPHER, EVP_CIPHER_CTX_ctrl, EVP_CIPHER_CTX_free, EVP_CIPHER_CTX_get_original_iv,
    EVP_CIPHER_CTX_get_params, EVP_CIPHER_CTX_new, EVP_CIPHER_CTX_reset, EVP_CIPHER_fetch,
    EVP_CTRL_AEAD_GET_TAG, EVP_CTRL_AEAD_SET_TAG, EVP_DecryptFinal_ex, EVP_DecryptInit_ex2,
    EVP_DecryptUpdate, EVP_EncryptFinal_ex, EVP_EncryptInit_ex2, EVP_EncryptUpdate,
    EVP_RAND_CTX, EVP_RAND_generate, EVP_default_properties_is_fips_enabled,
)
from openssl.params cimport OSSL_PARAM_construct_end, OSSL_PARAM_construct_uint
from openssl.rand cimport RAND_get0_private
from openssl.types cimport OSSL_PARAM

from ..errors import Ags1Error, AuthenticationError, KeyMetadataError, KeyReuseError
from .layout import MAX_BLOCK_COUNT as _MAX_BLOCK_COUNT
from .layout import block_offset, check_block_size

cdef extern from *:
    const char *AGS1_OPENSSL_SOURCE

cdef enum:
    NONCE_BATCH = 64
    # One update over a whole block of 1 MiB is up to twice as slow on some CPUs (AMD Zen 5): see
    # the sweep in bench/limits.
    PIECE_SIZE = 256 << 10

cdef uint64_t MAX_BLOCK_COUNT = _MAX_BLOCK_COUNT
cdef uint64_t MAX_SEALS_PER_KEY = 1ULL << 32

cdef EVP_CIPHER *aes_128_gcm
cdef EVP_CIPHER *aes_192_gcm
cdef EVP_CIPHER *aes_256_gcm
cdef bint fips


# ---- randomness -------------------------------------------------------------------------------

cdef int draw(unsigned char *out, size_t size) noexcept nogil:
    # Draws keys, AAD prefixes and nonces. Returns 1, or 0 on failure. The bytes must be used within
    # the call that draws them: otherwise a clone of the process or the machine uses them again.
    cdef unsigned char fresh[32]
    if not fips:
        return kernel_random(out, size)
    if not kernel_random(fresh, sizeof(fresh)):
        return 0
    lock_generator()
    cdef EVP_RAND_CTX *generator = RAND_get0_private(NULL)
    # NULL if the provider is in its error state.
    cdef int ok = generator != NULL and EVP_RAND_generate(
        generator, out, size, 0, 0, fresh, sizeof(fresh)
    ) == 1
    unlock_generator()
    OPENSSL_cleanse(fresh, sizeof(fresh))
    return ok


def random_bytes(Py_ssize_t size):
    """Return ``size`` random bytes (at most 2**31-1), fit for keys."""
    if not 0 <= size <= INT_MAX:
        raise ValueError(f"cannot draw {size} random bytes")
    cdef bytes data = PyBytes_FromStringAndSize(NULL, size)
    if not draw(<unsigned char *>PyBytes_AS_STRING(data), size):
        raise libcrypto_error("the random generator failed")
    return data


# ---- one block --------------------------------------------------------------------------------

cdef int seal_message(
    GcmContext *context, const unsigned char *aad, size_t aad_size,
    const unsigned char *nonce, const unsigned char *text, size_t size, unsigned char *slot,
) noexcept nogil:
    # Returns 1, or 0 if libcrypto fails. OpenSSL gets the nonce from our memory and not from the
    # slot: if others can write to the slot, they could make two blocks use one nonce.
    if fips:
        return seal_fips_message(context, aad, aad_size, text, size, slot)
    if EVP_EncryptInit_ex2(context.ctx, NULL, NULL, nonce, NULL) != 1:
        return 0
    memcpy(slot, nonce, NONCE_SIZE)
    return seal_aad(context.ctx, aad, aad_size) and seal_text(context.ctx, text, size, slot)


cdef int seal_aad(EVP_CIPHER_CTX *ctx, const unsigned char *aad, size_t size) noexcept nogil:
    cdef int n
    return not size or EVP_EncryptUpdate(ctx, NULL, &n, aad, <int>size) == 1


cdef int seal_text(
    EVP_CIPHER_CTX *ctx, const unsigned char *text, size_t size, unsigned char *slot
) noexcept nogil:
    cdef int n
    cdef size_t done = 0, piece
    cdef unsigned char *sealed = slot + NONCE_SIZE
    while done < size:
        piece = min(size - done, <size_t>PIECE_SIZE)
        if EVP_EncryptUpdate(ctx, sealed + done, &n, text + done, <int>piece) != 1:
            return 0
        done += piece
    if EVP_EncryptFinal_ex(ctx, sealed + size, &n) != 1:
        return 0
    return EVP_CIPHER_CTX_ctrl(ctx, EVP_CTRL_AEAD_GET_TAG, TAG_SIZE, sealed + size) == 1


cdef int seal_fips_message(
    GcmContext *context, const unsigned char *aad, size_t aad_size, const unsigned char *text,
    size_t size, unsigned char *slot,
) noexcept nogil:
    # The provider approves of a message only if it draws the nonce. It does so at the first byte of
    # AAD or text, and only in a new context.
    cdef EVP_CIPHER_CTX *ctx = context.ctx
    cdef unsigned int approved = 1
    cdef OSSL_PARAM asked[2]
    if EVP_CIPHER_CTX_reset(ctx) != 1 or EVP_EncryptInit_ex2(
        ctx, cipher_of(context.key_size), context.key, NULL, NULL
    ) != 1:
        return 0
    lock_generator()
    cdef bint ok = not is_unseen_child(this_process()) and (
        seal_aad(ctx, aad, aad_size) if aad_size else seal_text(ctx, text, size, slot)
    )
    unlock_generator()
    if not ok or (aad_size and not seal_text(ctx, text, size, slot)):
        return 0
    # Before OpenSSL 3.4, the provider leaves `approved` as it is.
    asked[0] = OSSL_PARAM_construct_uint(b"iv-generated", &approved)
    asked[1] = OSSL_PARAM_construct_end()
    return EVP_CIPHER_CTX_get_params(ctx, asked) == 1 and approved == 1 and (
        EVP_CIPHER_CTX_get_original_iv(ctx, slot, NONCE_SIZE) == 1
    )


cdef int open_message(
    EVP_CIPHER_CTX *ctx, const unsigned char *aad, size_t aad_size,
    const unsigned char *slot, size_t size, unsigned char *text, bint is_shared,
) noexcept nogil:
    # Returns 1 if the tag verifies. Otherwise returns 0, and the caller must wipe `text`.
    # OpenSSL may read the ciphertext twice, to verify and to decrypt. If others can change it in
    # between (`is_shared`), each piece is first copied to the output and decrypted there.
    cdef int n
    cdef size_t done = 0, piece
    cdef const unsigned char *sealed = slot + NONCE_SIZE
    cdef const unsigned char *source
    if EVP_DecryptInit_ex2(ctx, NULL, NULL, slot, NULL) != 1:
        return 0
    if aad_size and EVP_DecryptUpdate(ctx, NULL, &n, aad, <int>aad_size) != 1:
        return 0
    while done < size:
        piece = min(size - done, <size_t>PIECE_SIZE)
        source = sealed + done
        if is_shared and source != text + done:
            memcpy(text + done, source, piece)
            source = text + done
        if EVP_DecryptUpdate(ctx, text + done, &n, source, <int>piece) != 1:
            return 0
        done += piece
    if EVP_CIPHER_CTX_ctrl(ctx, EVP_CTRL_AEAD_SET_TAG, TAG_SIZE, <void *>(sealed + size)) != 1:
        return 0
    return EVP_DecryptFinal_ex(ctx, text + size, &n) == 1


# ---- a run of blocks --------------------------------------------------------------------------
# `text_stride` is the distance of two blocks' texts: block_size if the text has a buffer of its
# own, and block_size + 28 if it lies in the slots (see the drawing above).

cdef Py_ssize_t seal_run(
    GcmContext *context, const unsigned char *text, size_t text_stride, unsigned char *slots,
    size_t block_size, size_t text_size, uint32_t first_block, const unsigned char *first_nonce,
) noexcept nogil:
    """Return 0, or -1 if libcrypto fails. In that case all slots are zero. An empty text is one
    empty block. Every block gets a fresh nonce. The first block gets ``first_nonce``, unless that
    is NULL."""
    cdef unsigned char nonces[NONCE_BATCH * NONCE_SIZE]
    cdef size_t blocks = (text_size + block_size - 1) // block_size if text_size else 1
    cdef size_t i, size, batch, drawn = 0
    cdef const unsigned char *nonce = first_nonce
    cdef unsigned char *slot = slots
    if first_nonce != NULL:
        drawn = 1
    for i in range(blocks):
        if i == drawn:
            batch = min(blocks - i, <size_t>NONCE_BATCH)
            if not draw(nonces, batch * NONCE_SIZE):
                break
            nonce = nonces
            drawn = i + batch
        size = min(text_size - i * block_size, block_size)
        put_int32(context.aad + context.prefix_size, first_block + <uint32_t>i)
        if not seal_message(
            context, context.aad, context.prefix_size + 4, nonce, text, size, slot
        ):
            break
        nonce += NONCE_SIZE
        text += text_stride
        slot += block_size + BLOCK_OVERHEAD
    else:
        return 0
    OPENSSL_cleanse(slots, text_size + blocks * BLOCK_OVERHEAD)
    return -1


cdef Py_ssize_t open_run(
    GcmContext *context, const unsigned char *slots, unsigned char *text, size_t text_stride,
    size_t block_size, size_t text_size, uint32_t first_block, bint is_shared,
) noexcept nogil:
    """Return -1 if every block authenticates, else the index of the first block that does not. In
    the second case the whole output range is zero: the text, or (in place) the slots."""
    cdef size_t blocks = (text_size + block_size - 1) // block_size if text_size else 1
    cdef size_t i, size, stride = block_size + BLOCK_OVERHEAD
    for i in range(blocks):
        size = min(text_size - i * block_size, block_size)
        put_int32(context.aad + context.prefix_size, first_block + <uint32_t>i)
        if not open_message(
            context.ctx, context.aad, context.prefix_size + 4, slots + i * stride, size,
            text + i * text_stride, is_shared,
        ):
            if text_stride == stride:
                OPENSSL_cleanse(text - NONCE_SIZE, text_size + blocks * BLOCK_OVERHEAD)
            else:
                OPENSSL_cleanse(text, text_size)
            forget_errors()
            return i
    return -1


cdef void wipe(void *memory, size_t size) noexcept nogil:
    OPENSSL_cleanse(memory, size)


cdef void forget_errors() noexcept nogil:
    # The queue of errors belongs to the thread, and Python's own ssl may use it too.
    ERR_clear_error()


cdef object libcrypto_error(str what):
    cdef char text[256]
    cdef unsigned long code = ERR_get_error()
    if code:
        ERR_error_string_n(code, text, sizeof(text))
        what = f"{what}: {text.decode('utf-8', 'replace')}"
    ERR_clear_error()
    lock_generator()
    if fips and is_unseen_child(this_process()):
        what += (
            "; this process is a copy of another with the same process ID, so OpenSSL's FIPS "
            "provider would draw the same nonces as that one"
        )
    unlock_generator()
    return Ags1Error(what)


# ---- the arguments of a run --------------------------------------------------------------------

cdef long long block_index(object number) except -1:
    number = PyNumber_Index(number)
    if not 0 <= number < MAX_BLOCK_COUNT:
        raise ValueError(f"block numbers go from 0 to {MAX_BLOCK_COUNT - 1}, not {number}")
    return number


cdef size_t run_blocks(size_t block_size, size_t text_size, long long first_block) except 0:
    cdef size_t blocks = max((text_size + block_size - 1) // block_size, <size_t>1)
    if first_block + blocks > MAX_BLOCK_COUNT:
        raise ValueError(
            f"{blocks} blocks from number {first_block}: they go from 0 to {MAX_BLOCK_COUNT - 1}"
        )
    return blocks


cdef Py_ssize_t run_text_size(size_t block_size, size_t slots_size) except -1:
    cdef size_t stride = block_size + BLOCK_OVERHEAD
    cdef size_t full = slots_size // stride, rest = slots_size % stride
    if slots_size == 0 or (rest and (rest < BLOCK_OVERHEAD or (rest == BLOCK_OVERHEAD and full))):
        raise ValueError(f"{slots_size} bytes are not a run of blocks of {block_size} bytes")
    return full * block_size + (rest - BLOCK_OVERHEAD if rest else 0)


cdef int check_pair(
    const Py_buffer *src, const Py_buffer *dst, size_t needed, bint in_place
) except -1:
    if <size_t>dst.len < needed:
        raise ValueError(f"the output needs {needed} bytes and has {dst.len}")
    if overlap(src.buf, src.len, dst.buf, needed) and not in_place:
        raise ValueError("input and output overlap")
    return 0


# ---- the cipher -------------------------------------------------------------------------------

cdef int check_key_size(Py_ssize_t key_size) except -1:
    if key_size != 16 and key_size != 24 and key_size != 32:
        raise KeyMetadataError(f"an AES key has 16, 24 or 32 bytes, not {key_size}")
    return 0


cdef EVP_CIPHER *cipher_of(int key_size) noexcept nogil:
    return aes_128_gcm if key_size == 16 else aes_192_gcm if key_size == 24 else aes_256_gcm


cdef GcmContext *new_context(const unsigned char *key, int key_size, bytes aad_prefix) except NULL:
    check_key_size(key_size)
    if len(aad_prefix) > INT_MAX - 4:
        raise ValueError("the AAD prefix is too long")
    cdef GcmContext *context = keyed_context(
        NULL, key, key_size, <const unsigned char *>PyBytes_AS_STRING(aad_prefix), len(aad_prefix)
    )
    if context == NULL:
        raise libcrypto_error("OpenSSL could not set up AES-GCM")
    return context


cdef GcmContext *keyed_context(
    GcmContext *old, const unsigned char *key, int key_size, const unsigned char *aad_prefix,
    size_t prefix_size,
) noexcept nogil:
    """Return a context for that key. If ``old`` has room for it, that is used again; otherwise it
    is freed and a new one is made. Returns NULL if there is no memory or libcrypto fails. The
    caller has checked the key's size."""
    cdef GcmContext *context = old
    cdef EVP_CIPHER *cipher = NULL
    if old == NULL or old.key_size != key_size or old.prefix_size != prefix_size:
        free_context(old)
        context = <GcmContext *>malloc(sizeof(GcmContext) + prefix_size + 4)
        if context == NULL:
            return NULL
        context.key_size = key_size
        context.prefix_size = prefix_size
        context.aad = <unsigned char *>(context + 1)
        context.ctx = EVP_CIPHER_CTX_new()
        cipher = cipher_of(key_size)
    memcpy(context.aad, aad_prefix, prefix_size)
    if fips:
        memcpy(context.key, key, key_size)
    if context.ctx == NULL or EVP_EncryptInit_ex2(context.ctx, cipher, key, NULL, NULL) != 1:
        free_context(context)
        return NULL
    return context


cdef void free_context(GcmContext *context) noexcept nogil:
    if context != NULL:
        # This wipes the key schedule.
        EVP_CIPHER_CTX_free(context.ctx)
        if fips:
            OPENSSL_cleanse(context.key, sizeof(context.key))
        free(context)


cdef class BlockCipher:
    """Seals and opens the blocks of one file.

    ``key`` is 16, 24 or 32 bytes, ``aad_prefix`` any bytes or None, ``block_size`` the plaintext
    bytes of a full block (1 to ``layout.MAX_BLOCK_SIZE``). Java and iceberg-rust read only the
    default block size of 1 MiB. Raises KeyMetadataError for another key length and FormatError for
    another block size.

    Use a key for one file only. The cipher counts the blocks that it seals, whatever their numbers
    are. Sealing raises KeyReuseError after 2**32 blocks, and in a forked child.
    """

    def __cinit__(self, key, aad_prefix=None, *, block_size=1 << 20):
        cdef Py_buffer view
        self.block_size = check_block_size(PyNumber_Index(block_size))
        self._aad_prefix = b"" if aad_prefix is None else bytes(memoryview(aad_prefix))
        take_input(key, &view)
        try:
            check_key_size(view.len)
            memcpy(self._key, view.buf, view.len)
            self.key_size = <int>view.len
        finally:
            PyBuffer_Release(&view)
        self._process = this_process()

    def __dealloc__(self):
        cdef int i
        for i in range(IDLE_CONTEXTS):
            free_context(<GcmContext *>self._idle[i])
        OPENSSL_cleanse(self._key, sizeof(self._key))

    def __repr__(self):
        return f"<BlockCipher AES-{self.key_size * 8}-GCM, blocks of {self.block_size} bytes>"

    def __reduce__(self):
        raise TypeError("a BlockCipher holds a key and cannot be pickled or copied")

    cdef GcmContext *borrow(self) except NULL:
        cdef int i
        cdef void *idle
        for i in range(IDLE_CONTEXTS):
            idle = atomic_take(&self._idle[i])
            if idle != NULL:
                return <GcmContext *>idle
        return new_context(self._key, self.key_size, self._aad_prefix)

    cdef void give_back(self, GcmContext *context) noexcept nogil:
        cdef int i
        for i in range(IDLE_CONTEXTS):
            if atomic_put(&self._idle[i], context):
                return
        free_context(context)

    cdef int claim(self, size_t blocks) except -1:
        if not self._process or self._process != this_process():
            raise KeyReuseError(
                "this cipher was made before a fork, and its parent may seal under the same key: "
                "make another one with a fresh key"
            )
        if atomic_add(&self._sealed_blocks, blocks) + blocks > MAX_SEALS_PER_KEY:
            atomic_add(&self._sealed_blocks, -<uint64_t>blocks)
            raise KeyReuseError("a key may seal no more than 2**32 blocks with random nonces")
        return 0

    cdef int _seal(self, const unsigned char *text, size_t stride, unsigned char *slots,
                   size_t text_size, long long first_block) except -1:
        cdef uint32_t first = <uint32_t>first_block
        cdef Py_ssize_t failed
        self.claim(run_blocks(self.block_size, text_size, first_block))
        cdef GcmContext *context = self.borrow()
        with nogil:
            failed = seal_run(
                context, text, stride, slots, self.block_size, text_size, first, NULL
            )
            self.give_back(context)
        if failed:
            raise libcrypto_error("OpenSSL could not encrypt")
        return 0

    cdef int _open(self, const unsigned char *slots, unsigned char *text, size_t stride,
                   size_t text_size, long long first_block, bint is_shared) except -1:
        cdef uint32_t first = <uint32_t>first_block
        cdef Py_ssize_t failed
        run_blocks(self.block_size, text_size, first_block)
        cdef GcmContext *context = self.borrow()
        with nogil:
            failed = open_run(
                context, slots, text, stride, self.block_size, text_size, first, is_shared
            )
            self.give_back(context)
        if failed >= 0:
            raise unauthentic(first + failed, self.block_size)
        return 0

    def seal_blocks(self, plaintext, out, first_block=0):
        """Seal ``plaintext`` as the blocks ``first_block`` onwards into ``out``.

        Only the last block may be short. An empty plaintext is one empty block. For each block,
        ``out`` needs 28 bytes more than the plaintext. Returns the number of bytes written. A
        single block may be sealed in place: its text then lies 12 bytes after the beginning of
        ``out``. Raises ValueError for any other overlap, if ``out`` is too small, and for block
        numbers above 2**31-2.
        """
        cdef Py_buffer src, dst
        cdef size_t blocks, size
        cdef long long first
        take_input(plaintext, &src)
        try:
            take_output(out, &dst)
            try:
                first = block_index(first_block)
                blocks = run_blocks(self.block_size, src.len, first)
                size = src.len + blocks * BLOCK_OVERHEAD
                check_pair(&src, &dst, size, blocks == 1
                           and <char *>src.buf == <char *>dst.buf + NONCE_SIZE)
                self._seal(<const unsigned char *>src.buf, self.block_size,
                           <unsigned char *>dst.buf, src.len, first)
                return size
            finally:
                PyBuffer_Release(&dst)
        finally:
            PyBuffer_Release(&src)

    def open_blocks(self, sealed, out, first_block=0):
        """Open the run of blocks ``sealed``, whose first is ``first_block``, into ``out``. Returns
        the number of bytes written. If any block does not verify, zeroes all bytes that it would
        have written and raises AuthenticationError. Overlap is as in ``seal_blocks``."""
        cdef Py_buffer src, dst
        cdef Py_ssize_t text_size
        take_input(sealed, &src)
        try:
            take_output(out, &dst)
            try:
                text_size = run_text_size(self.block_size, src.len)
                check_pair(&src, &dst, text_size, <size_t>text_size <= self.block_size
                           and <char *>dst.buf == <char *>src.buf + NONCE_SIZE)
                self._open(<const unsigned char *>src.buf, <unsigned char *>dst.buf,
                           self.block_size, text_size, block_index(first_block),
                           not is_private(sealed))
                return text_size
            finally:
                PyBuffer_Release(&dst)
        finally:
            PyBuffer_Release(&src)

    def seal_in_place(self, slots, first_block=0):
        """Seal a run of blocks whose text already lies in the slots; return the text's size. Slot i
        begins at ``i * (block_size + 28)``, and its text 12 bytes later. This fills in the nonces
        and tags."""
        cdef Py_buffer view
        cdef Py_ssize_t text_size
        take_output(slots, &view)
        try:
            text_size = run_text_size(self.block_size, view.len)
            self._seal(<unsigned char *>view.buf + NONCE_SIZE, self.block_size + BLOCK_OVERHEAD,
                       <unsigned char *>view.buf, text_size, block_index(first_block))
            return text_size
        finally:
            PyBuffer_Release(&view)

    def open_in_place(self, slots, first_block=0):
        """Open a run of blocks in its slots; return the text's size. Afterwards, the text of slot i
        begins at ``i * (block_size + 28) + 12``. If any block does not verify, zeroes all of
        ``slots`` (the input is lost) and raises AuthenticationError."""
        cdef Py_buffer view
        cdef Py_ssize_t text_size
        take_output(slots, &view)
        try:
            text_size = run_text_size(self.block_size, view.len)
            self._open(<unsigned char *>view.buf, <unsigned char *>view.buf + NONCE_SIZE,
                       self.block_size + BLOCK_OVERHEAD, text_size, block_index(first_block), False)
            return text_size
        finally:
            PyBuffer_Release(&view)


# ---- the comparison of long texts --------------------------------------------------------------

cdef class Checksum:
    """A keyed checksum (GMAC) of a text that comes in pieces. It is about as fast as memory.

    If two texts differ, their checksums under a random ``key`` of 32 bytes are equal only with a
    probability of n / 2**128, where n is the longer text's size in blocks of 16 bytes. This holds
    for texts of an attacker who knows neither the key nor a checksum. All checksums use the same
    nonce. So use a key for one comparison in one process, and show neither the key nor a checksum
    to anybody.
    """

    cdef void *_idle  # the EVP context, unless a call uses it

    def __cinit__(self, key):
        cdef Py_buffer view
        cdef unsigned char nonce[NONCE_SIZE]
        cdef EVP_CIPHER_CTX *ctx
        take_input(key, &view)
        try:
            if view.len != 32:
                raise KeyMetadataError(f"a checksum's key has 32 bytes, not {view.len}")
            memset(nonce, 0, NONCE_SIZE)
            ctx = EVP_CIPHER_CTX_new()
            self._idle = ctx
            if ctx == NULL or EVP_EncryptInit_ex2(
                ctx, aes_256_gcm, <const unsigned char *>view.buf, nonce, NULL
            ) != 1:
                raise libcrypto_error("OpenSSL could not set up AES-GCM")
        finally:
            PyBuffer_Release(&view)

    def __dealloc__(self):
        EVP_CIPHER_CTX_free(<EVP_CIPHER_CTX *>self._idle)

    def __reduce__(self):
        raise TypeError("a Checksum holds a key and cannot be pickled or copied")

    cdef EVP_CIPHER_CTX *borrow(self) except NULL:
        cdef void *idle = atomic_take(&self._idle)
        if idle == NULL:
            raise RuntimeError("another thread uses this Checksum: give each thread one of its own")
        return <EVP_CIPHER_CTX *>idle

    def update(self, text):
        """Add the next piece of the text. Raises RuntimeError if another thread uses the object."""
        cdef Py_buffer view
        cdef Py_ssize_t done = 0
        cdef int n, ok = 1, piece
        cdef EVP_CIPHER_CTX *ctx
        take_input(text, &view)
        try:
            ctx = self.borrow()
            with nogil:
                while ok == 1 and done < view.len:
                    piece = <int>min(view.len - done, <Py_ssize_t>PIECE_SIZE)
                    ok = EVP_EncryptUpdate(
                        ctx, NULL, &n, <const unsigned char *>view.buf + done, piece
                    )
                    done += piece
                atomic_put(&self._idle, ctx)
            if ok != 1:
                raise libcrypto_error("OpenSSL could not sum up a text")
        finally:
            PyBuffer_Release(&view)

    def finish(self):
        """Return the checksum of 16 bytes. After that, nothing can be added."""
        cdef unsigned char tag[TAG_SIZE]
        cdef int n
        cdef EVP_CIPHER_CTX *ctx = self.borrow()
        cdef bint ok = EVP_EncryptFinal_ex(ctx, tag, &n) == 1 and EVP_CIPHER_CTX_ctrl(
            ctx, EVP_CTRL_AEAD_GET_TAG, TAG_SIZE, tag
        ) == 1
        atomic_put(&self._idle, ctx)
        if not ok:
            raise libcrypto_error("OpenSSL could not sum up a text")
        return PyBytes_FromStringAndSize(<char *>tag, TAG_SIZE)


cdef object unauthentic(uint64_t block, size_t block_size):
    offset = block_offset(block, block_size)
    return AuthenticationError(
        f"block {block} (at byte {offset}) does not authenticate: "
        "wrong key or AAD prefix, or the data was changed",
        block=block, offset=offset,
    )


# ---- libcrypto --------------------------------------------------------------------------------

def libcrypto():
    """Return which libcrypto is in use: its ``version``, its ``source`` (``vendored``, ``system``
    or ``prefix``), whether its ``fips`` provider is the default, and what it knows of the ``cpu``.
    """
    return {
        "version": OpenSSL_version(OPENSSL_VERSION).decode(),
        "source": (<bytes>AGS1_OPENSSL_SOURCE).decode(),
        "fips": fips,
        "cpu": OpenSSL_version(OPENSSL_CPU_INFO).decode(),
    }


cdef int start() except -1:
    global aes_128_gcm, aes_192_gcm, aes_256_gcm, fips
    # Without OpenSSL's atexit handler: daemon threads may still be inside libcrypto at exit.
    if OPENSSL_init_crypto(OPENSSL_INIT_LOAD_CONFIG | OPENSSL_INIT_NO_ATEXIT, NULL) != 1:
        raise libcrypto_error("OpenSSL could not start")
    aes_128_gcm = EVP_CIPHER_fetch(NULL, b"AES-128-GCM", NULL)
    aes_192_gcm = EVP_CIPHER_fetch(NULL, b"AES-192-GCM", NULL)
    aes_256_gcm = EVP_CIPHER_fetch(NULL, b"AES-256-GCM", NULL)
    if aes_128_gcm == NULL or aes_192_gcm == NULL or aes_256_gcm == NULL:
        raise libcrypto_error("OpenSSL's configuration offers no AES-GCM")
    fips = EVP_default_properties_is_fips_enabled(NULL) == 1
    if fips and guard_generator():
        raise MemoryError
    return 0


start()

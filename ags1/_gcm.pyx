"""AES-GCM over runs of AGS1 blocks: the only module that calls libcrypto.

A ``BlockCipher`` holds one file's key and AAD prefix. It seals or opens a *run* of consecutive
blocks between two buffers, or in place, in one call without the GIL. Any C-contiguous buffer will
do; no byte is copied but by AES itself. Beside it stand ``seal`` and ``open`` for a single message
with the caller's own AAD, which key wrapping needs. Knows nothing of files or of Iceberg.

Nonces are random, 96 bits, from OpenSSL's generator (NIST SP 800-38D, 8.2.2), at most 2**32 a key.
A failed call zeroes its whole output range before it raises. Until a call returns, its output may
hold bytes not yet verified: no other thread may look at it. Nor may anybody change the input
meanwhile: OpenSSL may read it twice, once to verify and once to decrypt.

Our C copies of the key (here and in OpenSSL's contexts) are wiped when the object goes; Python
``bytes`` that the caller passed in cannot be. A forked child may open but not seal with a cipher
made before the fork. Callers share the object freely: each gets a context of its own, handed out
under the GIL, and that is why this module does not declare itself free-threading compatible.
"""

from cpython.buffer cimport (
    PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_FillInfo, PyBuffer_Release,
    PyObject_CheckBuffer, PyObject_GetBuffer,
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.number cimport PyNumber_Index
from libc.limits cimport INT_MAX
from libc.stdint cimport uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy

from ags1.layout cimport BLOCK_OVERHEAD, HEADER_SIZE, NONCE_SIZE, TAG_SIZE
from openssl.crypto cimport (
    OPENSSL_INIT_LOAD_CONFIG, OPENSSL_INIT_NO_ATEXIT, OPENSSL_VERSION, OPENSSL_cleanse,
    OPENSSL_init_crypto, OpenSSL_version,
)
from openssl.err cimport ERR_clear_error, ERR_error_string_n, ERR_get_error
from openssl.evp cimport (
    EVP_CIPHER, EVP_CIPHER_CTX_ctrl, EVP_CIPHER_CTX_free, EVP_CIPHER_CTX_new, EVP_CIPHER_fetch,
    EVP_CTRL_AEAD_GET_TAG, EVP_CTRL_AEAD_SET_TAG, EVP_DecryptFinal_ex, EVP_DecryptInit_ex2,
    EVP_DecryptUpdate, EVP_EncryptFinal_ex, EVP_EncryptInit_ex2, EVP_EncryptUpdate,
    EVP_RAND_reseed, EVP_default_properties_is_fips_enabled,
)
from openssl.rand cimport RAND_bytes, RAND_get0_primary, RAND_priv_bytes
from pthread cimport (
    pthread_atfork, pthread_mutex_init, pthread_mutex_lock, pthread_mutex_t, pthread_mutex_unlock,
)

from .errors import Ags1Error, AuthenticationError, KeyMetadataError, KeyReuseError
from .layout import MAX_BLOCK_COUNT as _MAX_BLOCK_COUNT
from .layout import MAX_BLOCK_SIZE as _MAX_BLOCK_SIZE
from .layout import block_offset, check_block_size

cdef extern from *:
    """
    #include <sys/mman.h>
    #ifdef MADV_HUGEPAGE
    #define ags1_want_huge_pages(at, size) madvise((void *)(at), (size), MADV_HUGEPAGE)
    #else
    #define ags1_want_huge_pages(at, size) 0
    #endif
    """
    const char *AGS1_OPENSSL_SOURCE
    int ags1_want_huge_pages(uintptr_t at, size_t size)

cdef const char *MAGIC = b"AGS1"

cdef enum:
    AAD_PREFIX_SIZE = 16
    NONCE_BATCH = 64
    # Below this a huge page costs more to clear than the page faults that it saves.
    HUGE_PAGE_WORTHWHILE = 4 << 20

cdef size_t MAX_BLOCK_SIZE = _MAX_BLOCK_SIZE
cdef uint64_t MAX_BLOCK_COUNT = _MAX_BLOCK_COUNT
cdef uint64_t MAX_SEALS_PER_KEY = 1ULL << 32

cdef EVP_CIPHER *aes_128_gcm
cdef EVP_CIPHER *aes_192_gcm
cdef EVP_CIPHER *aes_256_gcm


# ---- fork -------------------------------------------------------------------------------------
# OpenSSL notices a fork by the process id alone, and in another PID namespace, or when numbers come
# round, a child has its parent's: both would draw the same keys and nonces. So we count forks
# ourselves and reseed; the threads' generators follow the primary one. Nor does a fork happen while
# we draw: a child would inherit a lock that nobody will ever release.

cdef pthread_mutex_t random_lock
cdef unsigned long fork_count = 0
cdef unsigned long seeded_fork = 0


cdef void before_fork() noexcept nogil:
    pthread_mutex_lock(&random_lock)


cdef void after_fork_in_parent() noexcept nogil:
    pthread_mutex_unlock(&random_lock)


cdef void after_fork_in_child() noexcept nogil:
    global fork_count
    fork_count += 1
    pthread_mutex_unlock(&random_lock)


cdef unsigned long forks() noexcept nogil:
    return fork_count


def fork_number():
    """How many forks lie between the start of the first process and this one."""
    return fork_count


cdef int reseed() noexcept nogil:
    global seeded_fork
    if seeded_fork != fork_count:
        if EVP_RAND_reseed(RAND_get0_primary(NULL), 0, NULL, 0, NULL, 0) != 1:
            return 0
        seeded_fork = fork_count
    return 1


cdef int draw_nonces(unsigned char *out, int size) noexcept nogil:
    pthread_mutex_lock(&random_lock)
    cdef int ok = reseed() and RAND_bytes(out, size) == 1
    pthread_mutex_unlock(&random_lock)
    return ok


cdef int draw_key(unsigned char *out, int size) noexcept nogil:
    pthread_mutex_lock(&random_lock)
    cdef int ok = reseed() and RAND_priv_bytes(out, size) == 1
    pthread_mutex_unlock(&random_lock)
    return ok


# ---- one block --------------------------------------------------------------------------------

cdef inline void put_int32(unsigned char *at, uint32_t number) noexcept nogil:
    at[0] = number & 0xff
    at[1] = (number >> 8) & 0xff
    at[2] = (number >> 16) & 0xff
    at[3] = number >> 24


cdef inline int seal_message(
    EVP_CIPHER_CTX *ctx, const unsigned char *aad, size_t aad_size,
    const unsigned char *text, size_t size, unsigned char *slot,
) noexcept nogil:
    # The nonce already stands at the slot's beginning. Returns 1, or 0 when libcrypto fails.
    cdef int n
    cdef unsigned char *sealed = slot + NONCE_SIZE
    if EVP_EncryptInit_ex2(ctx, NULL, NULL, slot, NULL) != 1:
        return 0
    if aad_size and EVP_EncryptUpdate(ctx, NULL, &n, aad, <int>aad_size) != 1:
        return 0
    if size and EVP_EncryptUpdate(ctx, sealed, &n, text, <int>size) != 1:
        return 0
    if EVP_EncryptFinal_ex(ctx, sealed + size, &n) != 1:
        return 0
    return EVP_CIPHER_CTX_ctrl(ctx, EVP_CTRL_AEAD_GET_TAG, TAG_SIZE, sealed + size) == 1


cdef inline int open_message(
    EVP_CIPHER_CTX *ctx, const unsigned char *aad, size_t aad_size,
    const unsigned char *slot, size_t size, unsigned char *text,
) noexcept nogil:
    # Returns 1 when the tag verifies; otherwise 0, and `text` holds bytes that must be wiped.
    cdef int n
    cdef const unsigned char *sealed = slot + NONCE_SIZE
    if EVP_DecryptInit_ex2(ctx, NULL, NULL, slot, NULL) != 1:
        return 0
    if aad_size and EVP_DecryptUpdate(ctx, NULL, &n, aad, <int>aad_size) != 1:
        return 0
    if size and EVP_DecryptUpdate(ctx, text, &n, sealed, <int>size) != 1:
        return 0
    if EVP_CIPHER_CTX_ctrl(ctx, EVP_CTRL_AEAD_SET_TAG, TAG_SIZE, <void *>(sealed + size)) != 1:
        return 0
    return EVP_DecryptFinal_ex(ctx, text + size, &n) == 1


# ---- a run of blocks --------------------------------------------------------------------------
# `text_stride` is block_size where the plaintext lies contiguously, and block_size + 28 where each
# block's text lies inside its slot (in place).

cdef Py_ssize_t seal_run(
    Lane *lane, const unsigned char *text, size_t text_stride, unsigned char *slots,
    size_t block_size, size_t text_size, uint32_t first_block, bint has_nonce,
) noexcept nogil:
    """Return 0, or -1 when libcrypto fails; then all the slots are zero.

    An empty text is one empty block. Every block gets a fresh nonce; with ``has_nonce`` the first
    one's stands in its slot already.
    """
    cdef unsigned char nonces[NONCE_BATCH * NONCE_SIZE]
    cdef size_t blocks = (text_size + block_size - 1) // block_size if text_size else 1
    cdef size_t i, size, batch, first_drawn = 0, drawn = 1 if has_nonce else 0
    cdef unsigned char *slot = slots
    for i in range(blocks):
        if i == drawn:
            batch = min(blocks - i, <size_t>NONCE_BATCH)
            if not draw_nonces(nonces, <int>(batch * NONCE_SIZE)):
                break
            first_drawn = i
            drawn = i + batch
        size = min(text_size - i * block_size, block_size)
        if i or not has_nonce:
            memcpy(slot, nonces + (i - first_drawn) * NONCE_SIZE, NONCE_SIZE)
        put_int32(lane.aad + lane.prefix_size, first_block + <uint32_t>i)
        if not seal_message(lane.ctx, lane.aad, lane.prefix_size + 4, text, size, slot):
            break
        text += text_stride
        slot += block_size + BLOCK_OVERHEAD
    else:
        return 0
    OPENSSL_cleanse(slots, text_size + blocks * BLOCK_OVERHEAD)
    return -1


cdef Py_ssize_t open_run(
    Lane *lane, const unsigned char *slots, unsigned char *text, size_t text_stride,
    size_t block_size, size_t text_size, uint32_t first_block,
) noexcept nogil:
    """Return -1 when every block authenticates, else the index of the first that does not.

    In that case the whole output range is zero: the contiguous text, or in place the slots.
    """
    cdef size_t blocks = (text_size + block_size - 1) // block_size if text_size else 1
    cdef size_t i, size, stride = block_size + BLOCK_OVERHEAD
    for i in range(blocks):
        size = min(text_size - i * block_size, block_size)
        put_int32(lane.aad + lane.prefix_size, first_block + <uint32_t>i)
        if not open_message(
            lane.ctx, lane.aad, lane.prefix_size + 4, slots + i * stride, size,
            text + i * text_stride,
        ):
            if text_stride == stride:
                OPENSSL_cleanse(text - NONCE_SIZE, text_size + blocks * BLOCK_OVERHEAD)
            else:
                OPENSSL_cleanse(text, text_size)
            # The queue is the thread's, and Python's own ssl may share it.
            ERR_clear_error()
            return i
    return -1


cdef void wipe(void *memory, size_t size) noexcept nogil:
    OPENSSL_cleanse(memory, size)


# ---- buffers ----------------------------------------------------------------------------------

cdef int take_input(object data, Py_buffer *view) except -1:
    PyObject_GetBuffer(data, view, PyBUF_SIMPLE)
    return 0


cdef int take_output(object out, Py_buffer *view) except -1:
    try:
        PyObject_GetBuffer(out, view, PyBUF_SIMPLE | PyBUF_WRITABLE)
    except BufferError as error:
        if PyObject_CheckBuffer(out) and memoryview(out).readonly:
            raise TypeError(
                f"the output must be a writable buffer, not a read-only {type(out).__name__}"
            ) from None
        raise error
    return 0


cdef bint overlap(const void *a, size_t a_size, const void *b, size_t b_size) noexcept:
    return <uintptr_t>a < <uintptr_t>b + b_size and <uintptr_t>b < <uintptr_t>a + a_size


cdef class FlatBuffer:
    """Any C-contiguous buffer as plain bytes: ``memoryview.cast`` knows native formats only."""

    cdef Py_buffer _view
    cdef bint _taken

    def __cinit__(self, buffer):
        take_input(buffer, &self._view)
        self._taken = True

    def __dealloc__(self):
        if self._taken:
            PyBuffer_Release(&self._view)

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self._view.buf, self._view.len, self._view.readonly, flags)


def overlapping(a, b):
    """Whether two buffers share any byte."""
    cdef Py_buffer first, second
    take_input(a, &first)
    try:
        take_input(b, &second)
        try:
            return overlap(first.buf, first.len, second.buf, second.len)
        finally:
            PyBuffer_Release(&second)
    finally:
        PyBuffer_Release(&first)


cdef object libcrypto_error(str what):
    cdef char text[256]
    cdef unsigned long code = ERR_get_error()
    if code:
        ERR_error_string_n(code, text, sizeof(text))
        what = f"{what}: {text.decode('utf-8', 'replace')}"
    ERR_clear_error()
    return Ags1Error(what)


cdef bytes uninitialised_bytes(Py_ssize_t size):
    # Page faults cost more than AES on a large new object: ask for huge pages.
    cdef uintptr_t first, last, huge = 2 << 20
    cdef bytes data = PyBytes_FromStringAndSize(NULL, size)
    cdef char *at = PyBytes_AS_STRING(data)
    if size >= HUGE_PAGE_WORTHWHILE:
        first = (<uintptr_t>at + huge - 1) & ~(huge - 1)
        last = (<uintptr_t>at + size) & ~(huge - 1)
        ags1_want_huge_pages(first, last - first)
    return data


cdef class Filling:
    """The way into a ``bytes`` that is being made. It owns the object: a thread that still writes
    when its caller has given up writes into memory that nobody else has."""

    cdef bytes data

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, PyBytes_AS_STRING(self.data), len(self.data), 0, flags)


def new_bytes(Py_ssize_t size):
    """Return a new, uninitialised ``bytes`` and a writable view through which to fill it.

    The view must not outlive the filling: the object is a ``bytes`` like any other afterwards.
    """
    if size < 0:
        raise ValueError(f"bytes cannot have a size of {size}")
    cdef Filling filling = Filling.__new__(Filling)
    filling.data = uninitialised_bytes(size)
    return filling.data, memoryview(filling)


def random_bytes(Py_ssize_t size):
    """Return ``size`` bytes (at most 2**31-1) from OpenSSL's private generator, fit for keys."""
    if not 0 <= size <= INT_MAX:
        raise ValueError(f"cannot draw {size} random bytes")
    cdef bytes data = PyBytes_FromStringAndSize(NULL, size)
    if not draw_key(<unsigned char *>PyBytes_AS_STRING(data), <int>size):
        raise libcrypto_error("OpenSSL's random generator failed")
    return data


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

cdef EVP_CIPHER *cipher_of(Py_ssize_t key_size) except NULL:
    if key_size == 16:
        return aes_128_gcm
    if key_size == 24:
        return aes_192_gcm
    if key_size == 32:
        return aes_256_gcm
    raise KeyMetadataError(f"an AES key has 16, 24 or 32 bytes, not {key_size}")


cdef Lane *new_lane(const unsigned char *key, int key_size, bytes aad_prefix) except NULL:
    cdef EVP_CIPHER *cipher = cipher_of(key_size)
    if len(aad_prefix) > INT_MAX - 4:
        raise ValueError("the AAD prefix is too long")
    lane = <Lane *>calloc(1, sizeof(Lane))
    if lane == NULL:
        raise MemoryError
    lane.prefix_size = len(aad_prefix)
    lane.aad = <unsigned char *>malloc(lane.prefix_size + 4)
    lane.ctx = EVP_CIPHER_CTX_new()
    if lane.aad == NULL or lane.ctx == NULL:
        free_lane(lane)
        raise MemoryError
    memcpy(lane.aad, <const char *>aad_prefix, lane.prefix_size)
    if EVP_EncryptInit_ex2(lane.ctx, cipher, key, NULL, NULL) != 1:
        free_lane(lane)
        raise libcrypto_error("OpenSSL could not set up AES-GCM")
    return lane


cdef void free_lane(Lane *lane) noexcept:
    EVP_CIPHER_CTX_free(lane.ctx)
    free(lane.aad)
    free(lane)


cdef class BlockCipher:
    """Seals and opens the blocks of one file.

    ``key`` is 16, 24 or 32 bytes, ``aad_prefix`` any bytes or None, ``block_size`` the plaintext
    bytes of a full block (1 to ``layout.MAX_BLOCK_SIZE``). Any block size but the default of 1 MiB
    cannot be read by Java or iceberg-rust. Raises KeyMetadataError for another key length and
    FormatError for another block size.

    A key seals one file. The cipher counts the blocks that it seals, whatever their numbers, and
    raises KeyReuseError beyond 2**32 and in a forked child; it cannot count other objects' use of
    the same key.
    """

    def __cinit__(self, key, aad_prefix=None, *, block_size=1 << 20):
        cdef Py_buffer view
        self.block_size = check_block_size(PyNumber_Index(block_size))
        self._aad_prefix = b"" if aad_prefix is None else bytes(memoryview(aad_prefix))
        take_input(key, &view)
        try:
            cipher_of(view.len)
            memcpy(self._key, view.buf, view.len)
            self.key_size = <int>view.len
        finally:
            PyBuffer_Release(&view)
        self._forks = forks()

    def __dealloc__(self):
        cdef Lane *lane
        while self._idle != NULL:
            lane = self._idle
            self._idle = lane.next
            free_lane(lane)
        OPENSSL_cleanse(self._key, sizeof(self._key))

    def __repr__(self):
        return f"<BlockCipher AES-{self.key_size * 8}-GCM, blocks of {self.block_size} bytes>"

    def __reduce__(self):
        raise TypeError("a BlockCipher holds a key and cannot be pickled or copied")

    cdef Lane *borrow(self) except NULL:
        cdef Lane *lane = self._idle
        if lane != NULL:
            self._idle = lane.next
            return lane
        return new_lane(self._key, self.key_size, self._aad_prefix)

    cdef void give_back(self, Lane *lane) noexcept:
        lane.next = self._idle
        self._idle = lane

    cdef int claim(self, size_t blocks) except -1:
        if self._forks != forks():
            raise KeyReuseError(
                "this cipher was made before a fork: its parent may seal under the same key"
            )
        if self._sealed_blocks + blocks > MAX_SEALS_PER_KEY:
            raise KeyReuseError("a key may seal no more than 2**32 blocks with random nonces")
        self._sealed_blocks += blocks
        return 0

    cdef int _seal(self, const unsigned char *text, size_t stride, unsigned char *slots,
                   size_t text_size, long long first_block) except -1:
        cdef uint32_t first = <uint32_t>first_block
        cdef Py_ssize_t failed
        self.claim(run_blocks(self.block_size, text_size, first_block))
        cdef Lane *lane = self.borrow()
        with nogil:
            failed = seal_run(lane, text, stride, slots, self.block_size, text_size, first, False)
        self.give_back(lane)
        if failed:
            raise libcrypto_error("OpenSSL could not encrypt")
        return 0

    cdef int _open(self, const unsigned char *slots, unsigned char *text, size_t stride,
                   size_t text_size, long long first_block) except -1:
        cdef uint32_t first = <uint32_t>first_block
        cdef Py_ssize_t failed
        run_blocks(self.block_size, text_size, first_block)
        cdef Lane *lane = self.borrow()
        with nogil:
            failed = open_run(lane, slots, text, stride, self.block_size, text_size, first)
        self.give_back(lane)
        if failed >= 0:
            raise unauthentic(first + failed, self.block_size)
        return 0

    def seal_blocks(self, plaintext, out, first_block=0):
        """Seal ``plaintext`` as the blocks ``first_block`` onwards into ``out``.

        Only the last block may be short; an empty plaintext is one empty block. ``out`` needs 28
        bytes a block more than the plaintext. Returns the bytes written. A single block may be
        sealed in place (its text 12 bytes after the beginning of ``out``); other overlap raises
        ValueError, as do a small ``out`` and block numbers beyond 2**31-2.
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
                           and <uintptr_t>src.buf == <uintptr_t>dst.buf + NONCE_SIZE)
                self._seal(<const unsigned char *>src.buf, self.block_size,
                           <unsigned char *>dst.buf, src.len, first)
                return size
            finally:
                PyBuffer_Release(&dst)
        finally:
            PyBuffer_Release(&src)

    def open_blocks(self, sealed, out, first_block=0):
        """Open the run of blocks ``sealed``, whose first is ``first_block``, into ``out``.

        Returns the bytes written. Raises AuthenticationError when any block does not verify, and
        then all bytes that the call would have written are zero. Overlap as in ``seal_blocks``.
        """
        cdef Py_buffer src, dst
        cdef Py_ssize_t text_size
        take_input(sealed, &src)
        try:
            take_output(out, &dst)
            try:
                text_size = run_text_size(self.block_size, src.len)
                check_pair(&src, &dst, text_size, <size_t>text_size <= self.block_size
                           and <uintptr_t>dst.buf == <uintptr_t>src.buf + NONCE_SIZE)
                self._open(<const unsigned char *>src.buf, <unsigned char *>dst.buf,
                           self.block_size, text_size, block_index(first_block))
                return text_size
            finally:
                PyBuffer_Release(&dst)
        finally:
            PyBuffer_Release(&src)

    def seal_in_place(self, slots, first_block=0):
        """Seal a run of blocks whose text lies in its slots already; return the text's size.

        ``slots`` is a whole run: slot i begins at ``i * (block_size + 28)`` and its text 12 bytes
        later; nonces and tags are filled in.
        """
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
        """Open a run of blocks where it lies; return the text's size.

        The text of slot i is then at ``i * (block_size + 28) + 12``. Raises AuthenticationError,
        and then all of ``slots`` is zero: the input is destroyed.
        """
        cdef Py_buffer view
        cdef Py_ssize_t text_size
        take_output(slots, &view)
        try:
            text_size = run_text_size(self.block_size, view.len)
            self._open(<unsigned char *>view.buf, <unsigned char *>view.buf + NONCE_SIZE,
                       self.block_size + BLOCK_OVERHEAD, text_size, block_index(first_block))
            return text_size
        finally:
            PyBuffer_Release(&view)


cdef object unauthentic(uint64_t block, size_t block_size):
    offset = block_offset(block, block_size)
    return AuthenticationError(
        f"block {block} (at byte {offset}) does not authenticate: "
        "wrong key or AAD prefix, or the data was changed",
        block=block, offset=offset,
    )


# ---- a whole stream ---------------------------------------------------------------------------
# Small messages spend their time around AES, not in it: these two make one call of it.

def seal_stream(plaintext, bytes key, bytes aad_prefix, int key_size, block_size):
    """Seal ``plaintext`` as a whole AGS1 file; return its bytes, the key and the AAD prefix.

    With ``key`` None a fresh key of ``key_size`` bytes and a fresh AAD prefix are made.
    Raises KeyMetadataError for a wrong key length and FormatError for a wrong block size.
    """
    cdef unsigned char fresh[32 + AAD_PREFIX_SIZE + NONCE_SIZE]
    cdef Py_buffer src
    cdef Lane *lane
    cdef unsigned char *at
    cdef Py_ssize_t failed
    cdef bint is_fresh = key is None
    cdef size_t full = check_block_size(PyNumber_Index(block_size))
    take_input(plaintext, &src)
    try:
        sealed = uninitialised_bytes(
            HEADER_SIZE + src.len + BLOCK_OVERHEAD * run_blocks(full, src.len, 0)
        )
        at = <unsigned char *>PyBytes_AS_STRING(sealed)
        memcpy(at, MAGIC, 4)
        put_int32(at + 4, <uint32_t>full)
        if is_fresh:
            cipher_of(key_size)
            try:
                # The generator's cost is by the call, so the first nonce comes along.
                if not draw_key(fresh, key_size + AAD_PREFIX_SIZE + NONCE_SIZE):
                    raise libcrypto_error("OpenSSL's random generator failed")
                key = PyBytes_FromStringAndSize(<char *>fresh, key_size)
                aad_prefix = PyBytes_FromStringAndSize(<char *>fresh + key_size, AAD_PREFIX_SIZE)
                memcpy(at + HEADER_SIZE, fresh + key_size + AAD_PREFIX_SIZE, NONCE_SIZE)
            finally:
                OPENSSL_cleanse(fresh, sizeof(fresh))
        lane = new_lane(<const unsigned char *>key, <int>len(key), aad_prefix or b"")
        with nogil:
            failed = seal_run(lane, <const unsigned char *>src.buf, full,
                              at + HEADER_SIZE, full, src.len, 0, is_fresh)
        free_lane(lane)
        if failed:
            raise libcrypto_error("OpenSSL could not encrypt")
        return sealed, key, aad_prefix
    finally:
        PyBuffer_Release(&src)


def open_stream(
    sealed, bytes key not None, bytes aad_prefix, Py_ssize_t length, size_t max_block_size
):
    """Return the plaintext of a whole AGS1 file of ``length`` trusted bytes, as ``bytes``.

    Returns None when the header or the length is out of order, for the caller to find out how.
    Raises AuthenticationError.
    """
    cdef Py_buffer src
    cdef Lane *lane
    cdef const unsigned char *at
    cdef unsigned char *text
    cdef size_t block_size, last
    cdef Py_ssize_t size, failed
    take_input(sealed, &src)
    try:
        at = <const unsigned char *>src.buf
        if src.len != length or length < HEADER_SIZE + BLOCK_OVERHEAD or memcmp(at, MAGIC, 4):
            return None
        block_size = at[4] | <size_t>at[5] << 8 | <size_t>at[6] << 16 | <size_t>at[7] << 24
        if not 1 <= block_size <= min(max_block_size, MAX_BLOCK_SIZE):
            return None
        last = (length - HEADER_SIZE) % (block_size + BLOCK_OVERHEAD)
        if last and last <= BLOCK_OVERHEAD and length > HEADER_SIZE + BLOCK_OVERHEAD:
            return None
        size = run_text_size(block_size, length - HEADER_SIZE)
        run_blocks(block_size, size, 0)
        plaintext = uninitialised_bytes(size)
        text = <unsigned char *>PyBytes_AS_STRING(plaintext)
        lane = new_lane(<const unsigned char *>key, <int>len(key), aad_prefix or b"")
        with nogil:
            failed = open_run(lane, at + HEADER_SIZE, text, block_size, block_size, size, 0)
        free_lane(lane)
        if failed >= 0:
            raise unauthentic(failed, block_size)
        return plaintext
    finally:
        PyBuffer_Release(&src)


# ---- one message ------------------------------------------------------------------------------

cdef EVP_CIPHER_CTX *message_context(object key) except NULL:
    cdef Py_buffer view
    cdef int ok
    take_input(key, &view)
    try:
        cipher = cipher_of(view.len)
        ctx = EVP_CIPHER_CTX_new()
        if ctx == NULL:
            raise MemoryError
        ok = EVP_EncryptInit_ex2(ctx, cipher, <const unsigned char *>view.buf, NULL, NULL)
    finally:
        PyBuffer_Release(&view)
    if ok != 1:
        EVP_CIPHER_CTX_free(ctx)
        raise libcrypto_error("OpenSSL could not set up AES-GCM")
    return ctx


cdef int check_message(Py_buffer *text, Py_buffer *aad) except -1:
    if text.len > INT_MAX - BLOCK_OVERHEAD or aad.len > INT_MAX:
        raise ValueError("a message and its AAD are limited to 2**31-1 bytes")
    return 0


def seal(key, data, aad=b""):
    """Encrypt one message: return nonce(12) | ciphertext | tag(16) as ``bytes``.

    ``key`` is 16, 24 or 32 bytes; ``data`` and ``aad`` any buffers. Raises KeyMetadataError for
    another key length. As Java's ``Ciphers.AesGcmEncryptor.encrypt``.
    """
    cdef Py_buffer text, extra
    cdef EVP_CIPHER_CTX *ctx
    cdef unsigned char *at
    cdef int ok
    take_input(data, &text)
    try:
        take_input(aad, &extra)
        try:
            check_message(&text, &extra)
            sealed = PyBytes_FromStringAndSize(NULL, text.len + BLOCK_OVERHEAD)
            at = <unsigned char *>PyBytes_AS_STRING(sealed)
            ctx = message_context(key)
            with nogil:
                ok = draw_nonces(at, NONCE_SIZE) and seal_message(
                    ctx, <const unsigned char *>extra.buf, extra.len,
                    <const unsigned char *>text.buf, text.len, at,
                )
                EVP_CIPHER_CTX_free(ctx)
            if not ok:
                raise libcrypto_error("OpenSSL could not encrypt")
            return sealed
        finally:
            PyBuffer_Release(&extra)
    finally:
        PyBuffer_Release(&text)


def open(key, sealed, aad=b""):
    """Decrypt one message of the form that ``seal`` returns; return its text as ``bytes``.

    Raises AuthenticationError when it does not verify or is too short to hold a tag.
    """
    cdef Py_buffer slot, extra
    cdef EVP_CIPHER_CTX *ctx
    cdef unsigned char *at
    cdef Py_ssize_t size
    cdef int ok
    take_input(sealed, &slot)
    try:
        take_input(aad, &extra)
        try:
            check_message(&slot, &extra)
            size = slot.len - BLOCK_OVERHEAD
            if size < 0:
                raise AuthenticationError(f"a sealed message has at least 28 bytes, not {slot.len}")
            text = PyBytes_FromStringAndSize(NULL, size)
            at = <unsigned char *>PyBytes_AS_STRING(text)
            ctx = message_context(key)
            with nogil:
                ok = open_message(
                    ctx, <const unsigned char *>extra.buf, extra.len,
                    <const unsigned char *>slot.buf, size, at,
                )
                EVP_CIPHER_CTX_free(ctx)
                if not ok:
                    OPENSSL_cleanse(at, size)
                    ERR_clear_error()
            if not ok:
                raise AuthenticationError(
                    "the message does not authenticate: wrong key or AAD, or it was changed"
                )
            return text
        finally:
            PyBuffer_Release(&extra)
    finally:
        PyBuffer_Release(&slot)


# ---- libcrypto --------------------------------------------------------------------------------

def libcrypto():
    """Return which libcrypto runs: its ``version``, its ``source`` (``vendored``, ``system`` or
    ``prefix``), and whether its ``fips`` provider is the default."""
    return {
        "version": OpenSSL_version(OPENSSL_VERSION).decode(),
        "source": (<bytes>AGS1_OPENSSL_SOURCE).decode(),
        "fips": EVP_default_properties_is_fips_enabled(NULL) == 1,
    }


cdef int start() except -1:
    global aes_128_gcm, aes_192_gcm, aes_256_gcm
    # Without our own atexit handler: daemon threads may still be inside libcrypto at exit.
    if OPENSSL_init_crypto(OPENSSL_INIT_LOAD_CONFIG | OPENSSL_INIT_NO_ATEXIT, NULL) != 1:
        raise libcrypto_error("OpenSSL could not start")
    aes_128_gcm = EVP_CIPHER_fetch(NULL, b"AES-128-GCM", NULL)
    aes_192_gcm = EVP_CIPHER_fetch(NULL, b"AES-192-GCM", NULL)
    aes_256_gcm = EVP_CIPHER_fetch(NULL, b"AES-256-GCM", NULL)
    if aes_128_gcm == NULL or aes_192_gcm == NULL or aes_256_gcm == NULL:
        raise libcrypto_error("OpenSSL's configuration offers no AES-GCM")
    if pthread_mutex_init(&random_lock, NULL) or pthread_atfork(
        before_fork, after_fork_in_parent, after_fork_in_child
    ):
        raise MemoryError
    return 0


start()

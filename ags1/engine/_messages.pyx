# cython: freethreading_compatible=True
"""Messages in memory: a whole AGS1 file in one call, many of them in one call, and AES-GCM alone.

A small message takes little time for AES, and more for all that is around it. So everything that a
message needs is done here, between two buffers. Independent of files.

How many messages go through two threads (``MessageBatch``). A share is prepared with the GIL (take
buffers, make objects) and encrypted without it, while the other thread prepares the next share::

    messages    | share 1 | share 2 | share 3 | share 4 | ...
    thread A     prepare   encrypt   prepare   encrypt
    thread B               prepare   encrypt   prepare    ...
"""

cimport cython
from cpython.buffer cimport PyBuffer_Release
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_CheckSignals
from cpython.number cimport PyNumber_Index
from libc.limits cimport INT_MAX
from libc.stdint cimport uint32_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy

from ags1.engine._buffers cimport is_private, new_object, take_input, take_output
from ags1.engine._gcm cimport (
    GcmContext, check_pair, check_key_size, draw, forget_errors, free_context, keyed_context,
    libcrypto_error, new_context, open_message, open_run, run_blocks, seal_message, seal_run,
    unauthentic, wipe,
)
from ags1.engine._key_metadata cimport new_key_metadata
from ags1.engine.layout cimport BLOCK_OVERHEAD, HEADER_SIZE, NONCE_SIZE, get_int32, put_int32
from atomics cimport atomic_add
from heap cimport reserve

from ..errors import AuthenticationError
from .geometry import DEFAULT_MAX_BLOCK_SIZE, claim_key
from .key_metadata import KeyMetadata
from .layout import DEFAULT_BLOCK_SIZE as _DEFAULT_BLOCK_SIZE
from .layout import MAX_BLOCK_SIZE
from .layout import check_block_size

cdef extern from *:
    """
    /* A tuple of a class without more fields. Neither item can be part of a cycle, so the garbage
       collector does not have to look at the tuple. */
    static PyObject *ags1_new_pair(PyObject *kind, PyObject *first, PyObject *second) {
        PyObject *pair = ((PyTypeObject *)kind)->tp_alloc((PyTypeObject *)kind, 2);
        if (pair == NULL)
            return NULL;
    #if PY_VERSION_HEX >= 0x030E0000
        ((PyTupleObject *)pair)->ob_hash = -1; /* not known yet */
    #endif
        Py_INCREF(first);
        Py_INCREF(second);
        PyTuple_SET_ITEM(pair, 0, first);
        PyTuple_SET_ITEM(pair, 1, second);
        PyObject_GC_UnTrack(pair);
        return pair;
    }
    """
    object ags1_new_pair(object kind, object first, object second)

# Given instead of an output buffer: make a new bytes object.
NEW_BYTES = object()

cdef const char *MAGIC = b"AGS1"
cdef size_t DEFAULT_BLOCK_SIZE = _DEFAULT_BLOCK_SIZE
cdef size_t MAX_STATED_BLOCK_SIZE = DEFAULT_MAX_BLOCK_SIZE

cdef enum:
    AAD_PREFIX_SIZE = 16
    MAX_KEY_SIZE = 32
    # Giving up the GIL and getting it back costs more than sealing so few bytes.
    GIL_WORTHWHILE = 16 << 10
    # The most messages that are prepared with the GIL before they are encrypted without it.
    MAX_SHARE = 256
    # Memory for results is reserved in pieces of this size. For fewer bytes, it is not worth it.
    RESERVE_SIZE = 20 << 20
    LEAST_RESERVE_SIZE = 4 << 20


# ---- a whole file ------------------------------------------------------------------------------

def seal_stream(plaintext, out, km, Py_ssize_t key_size, block_size, bint reuse_key, kind=tuple):
    """Seal ``plaintext`` as a whole AGS1 file into ``out``, a buffer or NEW_BYTES. Returns a pair
    of the class ``kind``: the new ``bytes`` (or the number of bytes written to ``out``) and the key
    metadata. Makes a key and raises as ``encrypt`` and ``encrypt_into`` do."""
    cdef Py_buffer src, dst
    cdef Py_ssize_t size
    cdef size_t full = check_block_size(PyNumber_Index(block_size))
    take_input(plaintext, &src)
    try:
        size = HEADER_SIZE + src.len + BLOCK_OVERHEAD * run_blocks(full, src.len, 0)
        if out is NEW_BYTES:
            sealed = new_object(size)
            km = seal_into(&src, <unsigned char *>PyBytes_AS_STRING(sealed), km, key_size, full,
                           reuse_key, size)
            return ags1_new_pair(kind, sealed, km)
        take_output(out, &dst)
        try:
            check_pair(&src, &dst, size, False)
            km = seal_into(&src, <unsigned char *>dst.buf, km, key_size, full, reuse_key, size)
            return size, km
        finally:
            PyBuffer_Release(&dst)
    finally:
        PyBuffer_Release(&src)


cdef seal_into(Py_buffer *src, unsigned char *at, km, Py_ssize_t key_size, size_t block_size,
               bint reuse_key, Py_ssize_t size):
    cdef unsigned char fresh[MAX_KEY_SIZE + AAD_PREFIX_SIZE + NONCE_SIZE]
    cdef const unsigned char *first_nonce = NULL
    cdef bytes key, aad_prefix
    cdef Py_ssize_t failed
    if km is None:
        check_key_size(key_size)
        # A call of the generator costs more than its bytes, so it draws the first nonce too.
        if not draw(fresh, key_size + AAD_PREFIX_SIZE + NONCE_SIZE):
            raise libcrypto_error("the random generator failed")
        key = PyBytes_FromStringAndSize(<char *>fresh, key_size)
        aad_prefix = PyBytes_FromStringAndSize(<char *>fresh + key_size, AAD_PREFIX_SIZE)
        wipe(fresh, key_size)
        first_nonce = fresh + key_size + AAD_PREFIX_SIZE
    else:
        claim_key(km, reuse_key=reuse_key)
        key, aad_prefix = km._encryption_key, km._aad_prefix
    cdef GcmContext *context = new_context(
        <const unsigned char *>PyBytes_AS_STRING(key), <int>len(key), aad_prefix or b""
    )
    if src.len < GIL_WORTHWHILE:
        failed = seal_run(context, <const unsigned char *>src.buf, block_size,
                          at + HEADER_SIZE, block_size, src.len, 0, first_nonce)
    else:
        with nogil:
            failed = seal_run(context, <const unsigned char *>src.buf, block_size,
                              at + HEADER_SIZE, block_size, src.len, 0, first_nonce)
    free_context(context)
    if failed:
        # seal_run has zeroed the rest of the output.
        wipe(at, HEADER_SIZE)
        raise libcrypto_error("OpenSSL could not encrypt")
    put_header(at, block_size)
    return new_key_metadata(KeyMetadata, key, aad_prefix, size)


cdef void put_header(unsigned char *at, size_t block_size) noexcept nogil:
    memcpy(at, MAGIC, 4)
    put_int32(at + 4, <uint32_t>block_size)


def open_stream(sealed, out, km, block_size, max_block_size):
    """Open a whole AGS1 file into ``out``, a buffer or NEW_BYTES. Returns the new ``bytes``, or the
    number of bytes written to ``out``. Returns None if the header or the length is wrong; the
    caller finds out why. Raises ValueError if ``out`` is too small or overlaps the input. If a
    block does not verify, zeroes what it would have written and raises AuthenticationError."""
    cdef Py_buffer src, dst
    cdef Py_ssize_t size
    cdef size_t stated
    cdef size_t limit = max(0, min(max_block_size, MAX_BLOCK_SIZE))
    length = km._file_length
    if length is None:
        return None
    take_input(sealed, &src)
    try:
        if src.len != length:
            return None
        size = stated_sizes(<const unsigned char *>src.buf, src.len, limit, &stated)
        if size < 0 or (block_size is not None and stated != block_size):
            return None
        if out is NEW_BYTES:
            plaintext = new_object(size)
            open_into(&src, <unsigned char *>PyBytes_AS_STRING(plaintext), km, stated, size,
                      not is_private(sealed))
            return plaintext
        take_output(out, &dst)
        try:
            check_pair(&src, &dst, size, False)
            open_into(&src, <unsigned char *>dst.buf, km, stated, size, not is_private(sealed))
            return size
        finally:
            PyBuffer_Release(&dst)
    finally:
        PyBuffer_Release(&src)


cdef Py_ssize_t stated_sizes(
    const unsigned char *at, Py_ssize_t file_size, size_t max_block_size, size_t *block_size
) noexcept nogil:
    """Return the plaintext's size, and in ``block_size`` the one that the header states. Return -1
    if no file with at least one block has that header and length."""
    cdef size_t slots, last
    if file_size < HEADER_SIZE + BLOCK_OVERHEAD or memcmp(at, MAGIC, 4):
        return -1
    block_size[0] = get_int32(at + 4)
    if not 1 <= block_size[0] <= max_block_size:
        return -1
    slots = file_size - HEADER_SIZE
    last = slots % (block_size[0] + BLOCK_OVERHEAD)
    # Only a file of one block may have an empty one.
    if last and last <= BLOCK_OVERHEAD and slots > BLOCK_OVERHEAD:
        return -1
    return slots - BLOCK_OVERHEAD * (slots // (block_size[0] + BLOCK_OVERHEAD) + (last > 0))


cdef int open_into(const Py_buffer *src, unsigned char *text, km, size_t block_size,
                   Py_ssize_t size, bint is_shared) except -1:
    cdef bytes key = km._encryption_key
    cdef Py_ssize_t failed
    cdef const unsigned char *slots = <const unsigned char *>src.buf + HEADER_SIZE
    run_blocks(block_size, size, 0)
    cdef GcmContext *context = new_context(
        <const unsigned char *>PyBytes_AS_STRING(key), <int>len(key), km._aad_prefix or b""
    )
    if size < GIL_WORTHWHILE:
        failed = open_run(context, slots, text, block_size, block_size, size, 0, is_shared)
    else:
        with nogil:
            failed = open_run(context, slots, text, block_size, block_size, size, 0, is_shared)
    free_context(context)
    if failed >= 0:
        raise unauthentic(failed, block_size)
    return 0


# ---- many files --------------------------------------------------------------------------------
cdef struct Message:
    Py_buffer view
    bint is_taken
    bint is_shared
    const unsigned char *key
    int key_size
    const unsigned char *aad_prefix
    Py_ssize_t aad_prefix_size
    const unsigned char *nonce  # of the first block
    size_t block_size
    size_t text_size
    Py_ssize_t result_size  # -1 if `open_one` makes the result
    unsigned char *out  # NULL if nothing is left to do
    Py_ssize_t failed_block


cdef void set_key(Message *message, bytes key, bytes aad_prefix) noexcept:
    # The message has only pointers to them, so the caller must keep them alive.
    message.key = <const unsigned char *>PyBytes_AS_STRING(key)
    message.key_size = <int>len(key)
    message.aad_prefix = <const unsigned char *>PyBytes_AS_STRING(aad_prefix)
    message.aad_prefix_size = len(aad_prefix)


cdef class Reserve:
    """The memory for one thread's next results (see ``heap.pxd``)."""

    cdef void *_pin
    cdef Py_ssize_t _left

    def __dealloc__(self):
        free(self._pin)

    cdef void want(self, Py_ssize_t size, Py_ssize_t more) noexcept:
        """The thread now makes results of ``size`` bytes, and perhaps ``more`` in all."""
        cdef Py_ssize_t wanted = max(size, min(more, <Py_ssize_t>RESERVE_SIZE))
        cdef void *pin
        if size > self._left and wanted >= LEAST_RESERVE_SIZE:
            with nogil:
                pin = reserve(wanted)
                free(self._pin)
            self._pin = pin
            self._left = wanted
        self._left -= size


cdef class Batch:
    """The messages of one call. Any number of threads may call ``work`` at once. If a message has
    failed, ``failure`` has the number of the first such message, and its exception."""

    def stop(self):
        """Make ``work`` return after its current share."""
        with cython.critical_section(self):
            self._end = 0

    cdef Py_ssize_t next_share(self) except -2:
        """Return the number of a share's first message, or -1 if no message is left or one has
        failed."""
        cdef Py_ssize_t first
        # Nothing else in a share runs Python code, so Ctrl-C is noticed only here.
        PyErr_CheckSignals()
        first = <Py_ssize_t>atomic_add(&self._next, self._share_size)
        return first if first < self._end else -1

    cdef fail(self, Py_ssize_t number, error):
        with cython.critical_section(self):
            # Shares are taken in order, so all earlier messages are done or in progress.
            if self.failure is None or number < self.failure[0]:
                self.failure = number, error
            self._end = min(self._end, number)


cdef class MessageBatch(Batch):
    """The messages of a list."""

    cdef readonly list results
    cdef list _messages
    cdef Py_ssize_t _threads
    cdef Py_ssize_t _fresh_size  # random bytes that one message needs

    def __init__(self, list messages, Py_ssize_t threads):
        self._messages = messages
        self._end = len(messages)
        self._threads = threads
        self.results = [None] * self._end
        self._share_size = min(max(self._end // (8 * threads), 1), <Py_ssize_t>MAX_SHARE)

    def work(self, number=0):
        """Work until no message is left, or one has failed."""
        cdef Py_ssize_t first, fresh_size = self._share_size * self._fresh_size
        cdef Message *share = <Message *>calloc(self._share_size, sizeof(Message))
        cdef unsigned char *fresh = <unsigned char *>malloc(fresh_size + 1)
        cdef Reserve heap = Reserve()
        try:
            if share == NULL or fresh == NULL:
                raise MemoryError
            while True:
                first = self.next_share()
                if first < 0:
                    break
                self.work_on(
                    share, fresh, first, min(self._share_size, len(self._messages) - first), heap
                )
        finally:
            if fresh != NULL:
                wipe(fresh, fresh_size)
            free(fresh)
            free(share)

    cdef work_on(self, Message *share, unsigned char *fresh, Py_ssize_t first, Py_ssize_t count,
                 Reserve heap):
        cdef Py_ssize_t i, size = 0, failed, taken = 0, prepared = 0, done = 0
        cdef bint drawn
        # Keeps alive what the messages point to.
        cdef list held = []
        try:
            try:
                with nogil:
                    drawn = draw(fresh, count * self._fresh_size)
                if not drawn:
                    raise libcrypto_error("the random generator failed")
                while taken < count:
                    size += self.take(share + taken, first + taken)
                    taken += 1
            except Exception as error:
                self.fail(first + taken, error)
            try:
                heap.want(size, size // max(taken, 1) * ((self._end - first) // self._threads))
                while prepared < taken:
                    self.prepare(
                        share + prepared, fresh + prepared * self._fresh_size, first + prepared,
                        held,
                    )
                    prepared += 1
            except Exception as error:
                self.fail(first + prepared, error)
            # If a message is refused, an earlier one may still fail, and is then the first.
            with nogil:
                failed = self.run(share, prepared)
            done = prepared if failed < 0 else failed
            if failed >= 0:
                self.fail(first + failed, self.error(share + failed))
        finally:
            for i in range(count):
                if share[i].is_taken:
                    PyBuffer_Release(&share[i].view)
                    share[i].is_taken = False
                # Its result holds uninitialised memory.
                if i >= done:
                    self.results[first + i] = None

    cdef Py_ssize_t take(self, Message *message, Py_ssize_t number) except -1:
        """Take the buffer of the message of that number, and return its result's size (bytes)."""
        raise NotImplementedError

    cdef prepare(self, Message *message, unsigned char *fresh, Py_ssize_t number, list held):
        """Fill in the rest of ``message``, and make its result."""
        raise NotImplementedError

    cdef Py_ssize_t run(self, Message *share, Py_ssize_t count) noexcept nogil:
        """Return -1 if every message is done, else the index of the first that fails."""
        return -1

    cdef error(self, Message *message):
        """Return the exception for a message that has failed."""
        raise NotImplementedError


cdef class SealBatch(MessageBatch):
    """Seals each message as a file under a fresh key. A result is a ``kind``, a class of pairs
    (file, key metadata)."""

    cdef int _key_size
    cdef object _kind

    def __init__(self, list messages, Py_ssize_t threads, Py_ssize_t key_size, kind):
        MessageBatch.__init__(self, messages, threads)
        check_key_size(key_size)
        self._key_size = key_size
        self._kind = kind
        self._fresh_size = key_size + AAD_PREFIX_SIZE + NONCE_SIZE

    cdef Py_ssize_t take(self, Message *message, Py_ssize_t number) except -1:
        take_input(self._messages[number], &message.view)
        message.is_taken = True
        message.text_size = message.view.len
        message.block_size = DEFAULT_BLOCK_SIZE
        message.result_size = HEADER_SIZE + message.view.len + BLOCK_OVERHEAD * run_blocks(
            DEFAULT_BLOCK_SIZE, message.view.len, 0
        )
        return message.result_size

    cdef prepare(self, Message *message, unsigned char *fresh, Py_ssize_t number, list held):
        cdef Py_ssize_t size = message.result_size
        cdef bytes sealed = new_object(size)
        cdef bytes key = PyBytes_FromStringAndSize(<char *>fresh, self._key_size)
        fresh += self._key_size
        cdef bytes aad_prefix = PyBytes_FromStringAndSize(<char *>fresh, AAD_PREFIX_SIZE)
        message.out = <unsigned char *>PyBytes_AS_STRING(sealed)
        set_key(message, key, aad_prefix)
        message.nonce = fresh + AAD_PREFIX_SIZE
        # This keeps alive the objects that the message points to.
        self.results[number] = ags1_new_pair(
            self._kind, sealed, new_key_metadata(KeyMetadata, key, aad_prefix, size)
        )

    cdef Py_ssize_t run(self, Message *share, Py_ssize_t count) noexcept nogil:
        cdef GcmContext *context = NULL
        cdef Py_ssize_t i, failed = -1
        cdef Message *m
        for i in range(count):
            m = share + i
            if i + 1 < count:
                fetch(m[1].view.buf, m[1].view.len)
            context = keyed_context(context, m.key, m.key_size, m.aad_prefix, m.aad_prefix_size)
            if context == NULL or seal_run(
                context, <const unsigned char *>m.view.buf, m.block_size, m.out + HEADER_SIZE,
                m.block_size, m.text_size, 0, m.nonce,
            ):
                failed = i
                break
            put_header(m.out, m.block_size)
        free_context(context)
        return failed

    cdef error(self, Message *message):
        return libcrypto_error("OpenSSL could not encrypt")


cdef class OpenBatch(MessageBatch):
    """Opens files. If a file is only a header, or its sizes are wrong, ``open_one(sealed, km)`` is
    called, which opens or refuses it."""

    cdef object _open_one

    def __init__(self, list messages, Py_ssize_t threads, open_one):
        MessageBatch.__init__(self, messages, threads)
        self._open_one = open_one

    cdef Py_ssize_t take(self, Message *message, Py_ssize_t number) except -1:
        try:
            sealed, km = self._messages[number]
        except (TypeError, ValueError) as error:
            if type(error) not in (TypeError, ValueError):
                raise
            raise TypeError("expected a pair (data, key_metadata)") from None
        message.result_size = -1
        if isinstance(km, KeyMetadata) and km._file_length is not None:
            take_input(sealed, &message.view)
            message.is_taken = True
            message.is_shared = not is_private(sealed)
            if message.view.len == km._file_length:
                message.result_size = stated_sizes(
                    <const unsigned char *>message.view.buf, message.view.len,
                    MAX_STATED_BLOCK_SIZE, &message.block_size,
                )
        return max(message.result_size, 0)

    cdef prepare(self, Message *message, unsigned char *fresh, Py_ssize_t number, list held):
        cdef bytes key, aad_prefix, plaintext
        sealed, km = self._messages[number]
        message.out = NULL
        if message.result_size < 0:
            self.results[number] = self._open_one(sealed, km)
            return
        key, aad_prefix = km._encryption_key, km._aad_prefix or b""
        plaintext = new_object(message.result_size)
        check_key_size(len(key))
        held.append((key, aad_prefix, plaintext))
        message.text_size = message.result_size
        set_key(message, key, aad_prefix)
        message.out = <unsigned char *>PyBytes_AS_STRING(plaintext)
        self.results[number] = plaintext

    cdef Py_ssize_t run(self, Message *share, Py_ssize_t count) noexcept nogil:
        cdef GcmContext *context = NULL
        cdef Py_ssize_t i, failed = -1
        cdef Message *m
        for i in range(count):
            m = share + i
            if i + 1 < count:
                fetch(m[1].view.buf, m[1].view.len)
            if m.out == NULL:
                continue
            context = keyed_context(context, m.key, m.key_size, m.aad_prefix, m.aad_prefix_size)
            if context == NULL:
                m.failed_block = -1
                failed = i
                break
            m.failed_block = open_run(
                context, <const unsigned char *>m.view.buf + HEADER_SIZE, m.out, m.block_size,
                m.block_size, m.text_size, 0, m.is_shared,
            )
            if m.failed_block >= 0:
                failed = i
                break
        free_context(context)
        return failed

    cdef error(self, Message *message):
        if message.failed_block < 0:
            return libcrypto_error("OpenSSL could not set up AES-GCM")
        return unauthentic(message.failed_block, message.block_size)


# ---- AES-GCM alone -----------------------------------------------------------------------------

cdef GcmContext *message_context(object key) except NULL:
    cdef Py_buffer view
    take_input(key, &view)
    try:
        check_key_size(view.len)
        return new_context(<const unsigned char *>view.buf, <int>view.len, b"")
    finally:
        PyBuffer_Release(&view)


cdef int check_message(Py_ssize_t sealed_size, Py_ssize_t aad_size) except -1:
    if sealed_size > INT_MAX or aad_size > INT_MAX:
        raise ValueError("a sealed message and its AAD are limited to 2**31-1 bytes each")
    return 0


def seal(key, data, aad=b""):
    """Encrypt one message: return nonce(12) | ciphertext | tag(16) as ``bytes``, like Java's
    ``Ciphers.AesGcmEncryptor.encrypt``. ``key`` is 16, 24 or 32 bytes, ``data`` and ``aad`` are any
    buffers. Raises KeyMetadataError for another key length."""
    cdef Py_buffer text, extra
    cdef GcmContext *context
    cdef unsigned char nonce[NONCE_SIZE]
    cdef unsigned char *at
    cdef int ok
    take_input(data, &text)
    try:
        take_input(aad, &extra)
        try:
            check_message(text.len + BLOCK_OVERHEAD, extra.len)
            sealed = PyBytes_FromStringAndSize(NULL, text.len + BLOCK_OVERHEAD)
            at = <unsigned char *>PyBytes_AS_STRING(sealed)
            context = message_context(key)
            with nogil:
                ok = draw(nonce, NONCE_SIZE) and seal_message(
                    context, <const unsigned char *>extra.buf, extra.len, nonce,
                    <const unsigned char *>text.buf, text.len, at,
                )
                free_context(context)
            if not ok:
                raise libcrypto_error("OpenSSL could not encrypt")
            return sealed
        finally:
            PyBuffer_Release(&extra)
    finally:
        PyBuffer_Release(&text)


def open(key, sealed, aad=b""):
    """Decrypt a message that ``seal`` returned; return its plaintext as ``bytes``. Raises
    AuthenticationError if it does not verify or is too short to hold a tag."""
    cdef Py_buffer slot, extra
    cdef GcmContext *context
    cdef bint is_shared
    cdef unsigned char *at
    cdef Py_ssize_t size
    cdef int ok
    take_input(sealed, &slot)
    try:
        is_shared = not is_private(sealed)
        take_input(aad, &extra)
        try:
            check_message(slot.len, extra.len)
            size = slot.len - BLOCK_OVERHEAD
            if size < 0:
                raise AuthenticationError(f"a sealed message has at least 28 bytes, not {slot.len}")
            text = PyBytes_FromStringAndSize(NULL, size)
            at = <unsigned char *>PyBytes_AS_STRING(text)
            context = message_context(key)
            with nogil:
                ok = open_message(
                    context.ctx, <const unsigned char *>extra.buf, extra.len,
                    <const unsigned char *>slot.buf, size, at, is_shared,
                )
                free_context(context)
                if not ok:
                    wipe(at, size)
                    forget_errors()
            if not ok:
                raise AuthenticationError(
                    "the message does not authenticate: wrong key or AAD, or it was changed"
                )
            return text
        finally:
            PyBuffer_Release(&extra)
    finally:
        PyBuffer_Release(&slot)

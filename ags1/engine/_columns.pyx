# cython: freethreading_compatible=True
"""Messages in Arrow arrays: many AGS1 files in one call, without a Python object for each.

Several threads fill the buffer of a column of results, each a share of the messages at a time::

    input     message | message | message | message | ...      any Arrow array of bytes or text
                 |         |         |         |
    sealed     file   |  file   |  file   |  file   | ...      two Columns
    metadata  key etc | key etc | key etc | key etc | ...
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from ags1.engine._arrow_arrays cimport Column, Message, Messages
from ags1.engine._gcm cimport (
    GcmContext, check_key_size, draw, free_context, keyed_context, libcrypto_error, open_run,
    seal_run, wipe,
)
from ags1.engine._key_metadata cimport (
    AAD_PREFIX_SIZE, Metadata, put_metadata, size_of_metadata, take_metadata,
)
from ags1.engine._messages cimport Batch, fetch, put_header, stated_sizes
from ags1.engine.layout cimport BLOCK_OVERHEAD, HEADER_SIZE, NONCE_SIZE

from ..errors import FormatError
from .geometry import DEFAULT_MAX_BLOCK_SIZE
from .key_metadata import KeyMetadata
from .layout import DEFAULT_BLOCK_SIZE as _DEFAULT_BLOCK_SIZE

cdef size_t DEFAULT_BLOCK_SIZE = _DEFAULT_BLOCK_SIZE
cdef size_t MAX_STATED_BLOCK_SIZE = DEFAULT_MAX_BLOCK_SIZE

cdef enum:
    MAX_KEY_SIZE = 32
    FRESH_SIZE = MAX_KEY_SIZE + AAD_PREFIX_SIZE + NONCE_SIZE
    # A thread takes so many bytes at a time, at most so many messages. OpenSSL's FIPS provider
    # draws at most 64 KiB in one call.
    SHARE_SIZE = 2 << 20
    MAX_SHARE = 1024
    # What a message costs besides its bytes, as so many bytes.
    MESSAGE_COST = 2048
    # Longer key metadata is opened as a ``KeyMetadata``. Other writers of AGS1 make less.
    USUAL_METADATA_SIZE = 128


# ---- the work ----------------------------------------------------------------------------------

cdef class ColumnBatch(Batch):
    """The messages of a column. ``useful_threads`` is how many threads shorten the work."""

    cdef Messages _input
    cdef readonly Py_ssize_t useful_threads

    cdef int plan(self, Messages messages, Py_ssize_t threads) except -1:
        cdef Py_ssize_t cost = messages.size + messages.count * <Py_ssize_t>MESSAGE_COST
        self._input = messages
        self._end = messages.count
        self.useful_threads = max(1, min(threads, cost // SHARE_SIZE))
        cost = min(cost // (8 * self.useful_threads) + 1, SHARE_SIZE)
        self._share_size = max(
            1, min(cost // (messages.size // max(messages.count, 1) + MESSAGE_COST), MAX_SHARE)
        )
        return 0

    def work(self, number=0):
        """Work until no message is left, or one has failed."""
        cdef Py_ssize_t i, end
        cdef unsigned char *fresh = <unsigned char *>malloc(self._share_size * FRESH_SIZE)
        try:
            if fresh == NULL:
                raise MemoryError
            while True:
                i = self.next_share()
                if i < 0:
                    break
                end = min(i + self._share_size, self._input.count)
                while i < end:
                    with nogil:
                        i = self.run(i, end, fresh)
                    if i < end:
                        try:
                            self.work_by_hand(i)
                        except Exception as error:
                            self.fail(i, error)
                            break
                        i += 1
        finally:
            if fresh != NULL:
                wipe(fresh, self._share_size * FRESH_SIZE)
            free(fresh)

    cdef Py_ssize_t run(self, Py_ssize_t i, Py_ssize_t end, unsigned char *fresh) noexcept nogil:
        """Work on the messages from ``i`` to ``end``. Return ``end``, or the number of the first
        that has to be done by hand."""
        return end

    cdef work_by_hand(self, Py_ssize_t i):
        """Do that message, or raise the exception for it."""
        raise NotImplementedError

    def wipe(self):
        """Zero what a failed call has written to the results."""
        raise NotImplementedError


cdef class SealColumn(ColumnBatch):
    """Seals each message as a file under a fresh key."""

    cdef readonly Column sealed
    cdef readonly Column key_metadata
    cdef int _key_size

    def __init__(self, Messages messages, Py_ssize_t threads, Py_ssize_t key_size, out=None):
        cdef Py_ssize_t i, file_size, sealed_size = 0, metadata_size = 0
        cdef bint has_nulls = False
        cdef Message *message
        check_key_size(key_size)
        self._key_size = <int>key_size
        self.plan(messages, threads)
        for i in range(messages.count):
            message = messages._messages + i
            if message.size < 0:
                has_nulls = True
            else:
                file_size = size_of_file(message.size)
                sealed_size += file_size
                metadata_size += size_of_metadata(self._key_size, file_size)
        self.sealed = Column()
        self.sealed.start(messages.count, sealed_size, messages.is_large, has_nulls, False, out)
        self.sealed.check_apart(messages)
        self.key_metadata = Column()
        self.key_metadata.start(messages.count, metadata_size, False, has_nulls, True, None)
        sealed_size = metadata_size = 0
        for i in range(messages.count):
            message = messages._messages + i
            if message.size < 0:
                self.sealed.put_null(i)
                self.key_metadata.put_null(i)
            else:
                file_size = size_of_file(message.size)
                sealed_size += file_size
                metadata_size += size_of_metadata(self._key_size, file_size)
            self.sealed.put_offset(i + 1, sealed_size)
            self.key_metadata.put_offset(i + 1, metadata_size)

    @property
    def results(self):
        """The two columns, when no message has failed."""
        return self.sealed, self.key_metadata

    def wipe(self):
        self.sealed.zero()

    cdef Py_ssize_t run(self, Py_ssize_t i, Py_ssize_t end, unsigned char *fresh) noexcept nogil:
        cdef GcmContext *context = NULL
        cdef const unsigned char *aad_prefix
        cdef unsigned char *out
        cdef Message *message
        if not draw(fresh, (end - i) * (self._key_size + AAD_PREFIX_SIZE + NONCE_SIZE)):
            return i
        while i < end:
            message = self._input._messages + i
            if i + 1 < end:
                fetch(message[1].at, message[1].size)
            if message.size >= 0:
                out = self.sealed._data + self.sealed.offset(i)
                aad_prefix = fresh + self._key_size
                context = keyed_context(
                    context, fresh, self._key_size, aad_prefix, AAD_PREFIX_SIZE
                )
                if context == NULL or seal_run(
                    context, message.at, DEFAULT_BLOCK_SIZE, out + HEADER_SIZE, DEFAULT_BLOCK_SIZE,
                    message.size, 0, aad_prefix + AAD_PREFIX_SIZE,
                ):
                    break
                put_header(out, DEFAULT_BLOCK_SIZE)
                put_metadata(
                    self.key_metadata._data + self.key_metadata.offset(i), fresh, self._key_size,
                    self.sealed.offset(i + 1) - self.sealed.offset(i),
                )
                fresh += self._key_size + AAD_PREFIX_SIZE + NONCE_SIZE
            i += 1
        free_context(context)
        return i

    cdef work_by_hand(self, Py_ssize_t i):
        raise libcrypto_error("OpenSSL could not encrypt")


cdef inline Py_ssize_t size_of_file(Py_ssize_t text_size) noexcept nogil:
    cdef size_t blocks = (text_size + DEFAULT_BLOCK_SIZE - 1) // DEFAULT_BLOCK_SIZE
    return HEADER_SIZE + text_size + BLOCK_OVERHEAD * max(blocks, <size_t>1)


cdef class OpenColumn(ColumnBatch):
    """Opens each file of ``sealed`` with the key metadata in the same row. If a file is unusual or
    wrong, ``open_one(file, key metadata)`` is called, which opens or refuses it."""

    cdef Messages _key_metadata
    cdef readonly Column plaintext
    cdef object _open_one

    def __init__(
        self, Messages sealed, Messages key_metadata, Py_ssize_t threads, open_one, out=None
    ):
        cdef Py_ssize_t i, size = 0, mismatch = -1
        cdef bint has_nulls = False
        cdef Message *message
        if sealed.count != key_metadata.count:
            raise ValueError(
                f"there are {sealed.count} messages, and key metadata for {key_metadata.count}"
            )
        self._open_one = open_one
        self._key_metadata = key_metadata
        self.plan(sealed, threads)
        with nogil:
            for i in range(sealed.count):
                message = sealed._messages + i
                if (message.size < 0) != (key_metadata._messages[i].size < 0):
                    mismatch = i
                    break
                message.text_size = 0
                if message.size < 0:
                    has_nulls = True
                    continue
                message.text_size = stated_sizes(
                    message.at, message.size, MAX_STATED_BLOCK_SIZE, &message.block_size
                )
                size += max(message.text_size, 0)
        if mismatch >= 0:
            raise ValueError(
                f"message {mismatch}: of the message and its key metadata, only one is null"
            )
        self.plaintext = Column()
        self.plaintext.start(sealed.count, size, sealed.is_large, has_nulls, out is None, out)
        self.plaintext.check_apart(sealed)
        self.plaintext.check_apart(key_metadata)
        size = 0
        for i in range(sealed.count):
            message = sealed._messages + i
            if message.size < 0:
                self.plaintext.put_null(i)
            size += max(message.text_size, 0)
            self.plaintext.put_offset(i + 1, size)

    @property
    def results(self):
        """The column of plaintexts, when no message has failed. It is the caller's from then on."""
        self.plaintext._memory.is_secret = False
        return self.plaintext

    def wipe(self):
        self.plaintext.zero()

    cdef Py_ssize_t run(self, Py_ssize_t i, Py_ssize_t end, unsigned char *fresh) noexcept nogil:
        cdef GcmContext *context = NULL
        cdef unsigned char usual[USUAL_METADATA_SIZE]
        cdef Metadata km
        cdef Message *message
        cdef Message *packed
        while i < end:
            message, packed = self._input._messages + i, self._key_metadata._messages + i
            if i + 1 < end:
                fetch(message[1].at, message[1].size)
            if message.size >= 0:
                if message.text_size < 0 or packed.size > USUAL_METADATA_SIZE:
                    break
                memcpy(usual, packed.at, packed.size)
                if not take_metadata(usual, packed.size, &km) or km.file_length != message.size:
                    break
                context = keyed_context(
                    context, km.key, km.key_size, km.aad_prefix, km.aad_prefix_size
                )
                if context == NULL or open_run(
                    context, message.at + HEADER_SIZE,
                    self.plaintext._data + self.plaintext.offset(i), message.block_size,
                    message.block_size, message.text_size, 0, True,
                ) >= 0:
                    break
            i += 1
        free_context(context)
        wipe(usual, sizeof(usual))
        return i

    cdef work_by_hand(self, Py_ssize_t i):
        cdef Message *message = self._input._messages + i
        cdef Message *packed = self._key_metadata._messages + i
        cdef bytes text = self._open_one(
            PyBytes_FromStringAndSize(<const char *>message.at, message.size),
            KeyMetadata.from_bytes(
                PyBytes_FromStringAndSize(<const char *>packed.at, packed.size)
            ),
        )
        if len(text) != self.plaintext.offset(i + 1) - self.plaintext.offset(i):
            raise FormatError("the message changed while it was read")
        memcpy(
            self.plaintext._data + self.plaintext.offset(i), PyBytes_AS_STRING(text), len(text)
        )

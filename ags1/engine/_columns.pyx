# cython: freethreading_compatible=True
"""Messages in Arrow arrays: many AGS1 files in one call, without a Python object for each.

A call reads each offset of its input once, and keeps where each message lies (``Messages``). It
then knows the sizes of all results, so that a column of results has one buffer for the bytes of all
of them (``Column``). Several threads fill that buffer, each a share of the messages at a time::

    input     message | message | message | message | ...      any Arrow array of bytes or text
                 |         |         |         |
    sealed     file   |  file   |  file   |  file   | ...      two Columns
    metadata  key etc | key etc | key etc | key etc | ...

Input that breaks Arrow's rules is refused. The interface does not tell the sizes of all buffers,
only pyarrow does. Others may change the input meanwhile, which makes wrong results or errors.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_New
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memset
from posix.stdlib cimport posix_memalign

from ags1.engine._buffers cimport want_huge_pages
from ags1.engine._gcm cimport (
    GcmContext, check_key_size, draw, free_context, keyed_context, libcrypto_error, open_run,
    seal_run, wipe,
)
from ags1.engine._key_metadata cimport (
    AAD_PREFIX_SIZE, Metadata, put_metadata, size_of_metadata, take_metadata,
)
from ags1.engine._messages cimport Batch, fetch, put_header, stated_sizes
from ags1.engine.layout cimport BLOCK_OVERHEAD, HEADER_SIZE, NONCE_SIZE
from arrow_c cimport (
    ARROW_FLAG_NULLABLE, ArrowArray, ArrowArrayStream, ArrowSchema, read_int32, read_int64,
)
from atomics cimport atomic_join, atomic_leave, atomic_put, atomic_take

import sys

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
    # A buffer for results begins so many bytes after its block.
    BLOCK_START = 64
    LEAST_KEPT_SIZE = 4 << 20
    MOST_KEPT_SIZE = 64 << 20
    # What a message costs besides its bytes, as so many bytes.
    MESSAGE_COST = 2048
    # Longer key metadata is opened as a ``KeyMetadata``. Other writers of AGS1 make less.
    USUAL_METADATA_SIZE = 128
    INT32_MAX = 0x7fffffff

# No memory is larger. Sums of such sizes do not overflow.
cdef int64_t MAX_SIZE = 1LL << 47


# ---- a column of input -------------------------------------------------------------------------

cdef struct Message:
    const unsigned char *at
    Py_ssize_t size  # -1 if it is null
    # Of a file: what its header and its size say. The text's size is -1 if they say nothing.
    Py_ssize_t text_size
    size_t block_size


cdef class Chunk:
    """An array that a stream gave us."""

    cdef ArrowArray array

    def __dealloc__(self):
        if self.array.release != NULL:
            self.array.release(&self.array)


cdef class Messages:
    """Where the messages of ``column`` lie: any object with ``__arrow_c_array__`` or
    ``__arrow_c_stream__`` whose type is binary or text. Raises TypeError for other types, and
    FormatError if the array is malformed."""

    cdef Message *_messages
    cdef readonly Py_ssize_t count
    cdef readonly Py_ssize_t size  # of all of them (bytes)
    cdef readonly bint is_large  # whether its offsets have 64 bits
    cdef list _held

    def __cinit__(self, column):
        self._held = [column]
        arrow = sys.modules.get("pyarrow")
        if arrow is not None and isinstance(column, arrow.ChunkedArray):
            # Through its chunks, the sizes of the buffers are known.
            for chunk in column.chunks or [arrow.array([], column.type)]:
                self._add_object(chunk, arrow)
        elif hasattr(column, "__arrow_c_array__"):
            self._add_object(column, arrow)
        else:
            self._add_stream(column.__arrow_c_stream__())

    def __dealloc__(self):
        free(self._messages)

    def __len__(self):
        return self.count

    cdef _add_object(self, column, arrow):
        schema, array = capsules = column.__arrow_c_array__()
        self._held.append(capsules)
        sizes = None
        if arrow is not None and isinstance(column, arrow.Array):
            sizes = [0 if buffer is None else buffer.size for buffer in column.buffers()]
        self._add(
            <ArrowSchema *>PyCapsule_GetPointer(schema, b"arrow_schema"),
            <ArrowArray *>PyCapsule_GetPointer(array, b"arrow_array"),
            sizes,
        )

    cdef _add_stream(self, capsule):
        cdef ArrowArrayStream *stream = <ArrowArrayStream *>PyCapsule_GetPointer(
            capsule, b"arrow_array_stream"
        )
        cdef ArrowSchema schema
        cdef Chunk chunk
        cdef const char *error
        cdef int failed
        memset(&schema, 0, sizeof(schema))
        self._held.append(capsule)
        if stream.release == NULL:
            raise FormatError("the Arrow stream was released")
        failed = stream.get_schema(stream, &schema)
        try:
            if not failed:
                take_format(&schema)
            while not failed:
                chunk = Chunk()
                failed = stream.get_next(stream, &chunk.array)
                if failed or chunk.array.release == NULL:
                    break
                self._held.append(chunk)
                self._add(&schema, &chunk.array, None)
        finally:
            if schema.release != NULL:
                schema.release(&schema)
        if failed:
            error = stream.get_last_error(stream)
            reason = b"error %d" % failed if error == NULL else <bytes>error
            raise FormatError(f"the Arrow stream failed: {reason.decode('utf-8', 'replace')}")

    cdef int _add(self, ArrowSchema *schema, ArrowArray *array, list sizes) except -1:
        """Add the messages of one array. ``sizes`` are those of its buffers (bytes), or None."""
        cdef bytes type_ = take_format(schema)
        cdef bint is_view = type_.startswith(b"v"), is_large = type_.isupper()
        cdef Py_ssize_t width = 16 if is_view else 8 if is_large else 4
        cdef Py_ssize_t length = array.length, first = array.offset
        cdef Py_ssize_t failed
        cdef Message *messages
        if array.release == NULL:
            raise FormatError("the Arrow array was released")
        if not (0 <= length <= MAX_SIZE and 0 <= first <= MAX_SIZE and array.buffers != NULL) or (
            array.n_buffers < 3 if is_view else array.n_buffers != 3
        ):
            raise FormatError("the Arrow array's length, offset or number of buffers is impossible")
        if length == 0:
            self.is_large |= is_large
            return 0
        cdef const unsigned char *valid = <const unsigned char *>array.buffers[0]
        cdef const unsigned char *entries = <const unsigned char *>array.buffers[1]
        need(sizes, 0, valid, (first + length + 7) // 8 if valid != NULL else 0)
        need(sizes, 1, entries, (first + length + (not is_view)) * width)
        if length > PY_SSIZE_T_MAX // <Py_ssize_t>sizeof(Message) - self.count:
            raise MemoryError
        messages = <Message *>realloc(
            self._messages, (self.count + length) * sizeof(Message)
        )
        if messages == NULL:
            raise MemoryError
        self._messages = messages
        messages += self.count
        cdef const unsigned char *data = <const unsigned char *>array.buffers[2]
        # A NULL buffer has no bytes.
        cdef int64_t data_size = 0
        if data != NULL:
            data_size = MAX_SIZE if sizes is None else sizes[2]
        with nogil:
            if is_view:
                failed = find_views(messages, array, valid, entries)
            else:
                failed = find_texts(messages, length, first, valid, entries, width, data, data_size)
            if failed < 0:
                for i in range(length):
                    self.size += max(messages[i].size, 0)
                    if self.size > MAX_SIZE:
                        failed = i
                        break
        if failed >= 0:
            error = FormatError("the Arrow array says that it lies outside of its buffer")
            error.index = self.count + failed
            raise error
        self.count += length
        self.is_large |= is_large
        return 0


cdef extern from "Python.h":
    Py_ssize_t PY_SSIZE_T_MAX


cdef bytes take_format(const ArrowSchema *schema):
    if schema.release == NULL or schema.format == NULL:
        raise FormatError("the Arrow schema was released")
    type_ = <bytes>schema.format
    if type_ not in (b"z", b"Z", b"u", b"U", b"vz", b"vu") or schema.dictionary != NULL:
        kind = "dictionary" if schema.dictionary != NULL else type_.decode("utf-8", "replace")
        raise TypeError(
            f"a column of messages must be of binary or text, not of Arrow's type {kind!r}: cast it"
        )
    return type_


cdef int need(list sizes, int number, const void *buffer, Py_ssize_t size) except -1:
    if size and (buffer == NULL or (sizes is not None and size > sizes[number])):
        raise FormatError(f"buffer {number} of the Arrow array is shorter than its {size} bytes")
    return 0


cdef inline bint is_null(const unsigned char *valid, Py_ssize_t i) noexcept nogil:
    return valid != NULL and not valid[i >> 3] >> (i & 7) & 1


cdef Py_ssize_t find_texts(
    Message *messages, Py_ssize_t length, Py_ssize_t first, const unsigned char *valid,
    const unsigned char *offsets, Py_ssize_t width, const unsigned char *data, int64_t data_size,
) noexcept nogil:
    """Return -1, or the number of the first message whose offsets are wrong."""
    cdef Py_ssize_t i
    cdef int64_t begin, end = offset_at(offsets, width, first)
    if end < 0:
        return 0
    for i in range(length):
        begin, end = end, offset_at(offsets, width, first + i + 1)
        if end < begin or end > data_size:
            return i
        messages[i].at = data + begin
        messages[i].size = -1 if is_null(valid, first + i) else end - begin
    return -1


cdef inline int64_t offset_at(
    const unsigned char *offsets, Py_ssize_t width, Py_ssize_t i
) noexcept nogil:
    return read_int32(offsets + 4 * i) if width == 4 else read_int64(offsets + 8 * i)


cdef Py_ssize_t find_views(
    Message *messages, const ArrowArray *array, const unsigned char *valid,
    const unsigned char *views,
) noexcept nogil:
    """The same for views. A view has the text's size, and then a text of up to 12 bytes, or four
    bytes of it, the number of a buffer and an offset in it. The last buffer has the sizes of the
    others."""
    cdef Py_ssize_t i, size
    cdef int64_t number, offset
    cdef const unsigned char *view
    cdef const unsigned char *sizes = <const unsigned char *>array.buffers[array.n_buffers - 1]
    for i in range(array.length):
        if is_null(valid, array.offset + i):
            messages[i].size = -1
            continue
        view = views + 16 * (array.offset + i)
        size = read_int32(view)
        if size < 0:
            return i
        messages[i].size = size
        messages[i].at = view + 4
        if size > 12:
            number, offset = read_int32(view + 8), read_int32(view + 12)
            if (
                not 0 <= number < array.n_buffers - 3 or sizes == NULL or offset < 0
                or array.buffers[2 + number] == NULL
                or offset + size > read_int64(sizes + 8 * number)
            ):
                return i
            messages[i].at = <const unsigned char *>array.buffers[2 + number] + offset
    return -1


# ---- a column of results -----------------------------------------------------------------------

cdef struct Memory:
    int users  # the Column, and each array that was exported
    bint is_secret
    Py_ssize_t size
    # The bitmap of what is not null (or NULL), the offsets, the bytes. Arrow wants all of them to
    # be readable in whole pieces of 64 bytes.
    void *buffers[3]


cdef void leave(Memory *memory) noexcept nogil:
    if atomic_leave(&memory.users):
        return
    if memory.is_secret and memory.buffers[2] != NULL:
        wipe(memory.buffers[2], memory.size)
    for i in range(3):
        free_buffer(<char *>memory.buffers[i])
    free(memory)


# The last large buffer that was freed. The pages of a fresh one cost as much as AES, and two
# threads wait for each other when they ask for them. Its room (bytes) stands at its beginning.
cdef void *idle_block


cdef void *new_buffer(Py_ssize_t size) noexcept nogil:
    cdef void *block = NULL
    cdef Py_ssize_t room = BLOCK_START + max(size + 63 & ~63, 64)
    if room >= LEAST_KEPT_SIZE:
        block = atomic_take(&idle_block)
        if block != NULL and not room <= (<Py_ssize_t *>block)[0] <= 2 * room:
            free(block)
            block = NULL
    if block == NULL:
        if posix_memalign(&block, 64, room):
            return NULL
        want_huge_pages(block, room)
        (<Py_ssize_t *>block)[0] = room
    memset(<char *>block + BLOCK_START + size, 0, room - BLOCK_START - size)
    return <char *>block + BLOCK_START


cdef void free_buffer(char *buffer) noexcept nogil:
    cdef void *block
    if buffer == NULL:
        return
    block = buffer - BLOCK_START
    if not LEAST_KEPT_SIZE <= (<Py_ssize_t *>block)[0] <= MOST_KEPT_SIZE or (
        not atomic_put(&idle_block, block)
    ):
        free(block)


cdef class Column:
    """An Arrow array of type binary, or large_binary if it is too large for that. A secret one is
    wiped when the last user of its memory has left."""

    cdef Memory *_memory
    cdef unsigned char *_data
    cdef Py_ssize_t _count
    cdef Py_ssize_t _null_count
    cdef bint _is_large

    def __dealloc__(self):
        if self._memory != NULL:
            leave(self._memory)

    cdef int start(
        self, Py_ssize_t count, Py_ssize_t size, bint is_large, bint has_nulls, bint is_secret
    ) except -1:
        """Take memory for ``count`` messages of ``size`` bytes in all."""
        self._is_large = is_large or size > INT32_MAX
        self._count = count
        self._memory = <Memory *>calloc(1, sizeof(Memory))
        if self._memory == NULL:
            raise MemoryError
        self._memory.users = 1
        self._memory.is_secret = is_secret
        if has_nulls:
            self._memory.buffers[0] = new_buffer((count + 7) // 8)
            if self._memory.buffers[0] == NULL:
                raise MemoryError
            memset(self._memory.buffers[0], 0xff, (count + 7) // 8)
        self._memory.buffers[1] = new_buffer((count + 1) * (8 if self._is_large else 4))
        self._memory.buffers[2] = new_buffer(size)
        self._memory.size = size
        self._data = <unsigned char *>self._memory.buffers[2]
        if self._memory.buffers[1] == NULL or self._data == NULL:
            raise MemoryError
        self.put_offset(0, 0)
        return 0

    cdef inline void put_offset(self, Py_ssize_t i, Py_ssize_t offset) noexcept nogil:
        if self._is_large:
            (<int64_t *>self._memory.buffers[1])[i] = offset
        else:
            (<int32_t *>self._memory.buffers[1])[i] = <int32_t>offset

    cdef inline Py_ssize_t offset(self, Py_ssize_t i) noexcept nogil:
        if self._is_large:
            return (<int64_t *>self._memory.buffers[1])[i]
        return (<int32_t *>self._memory.buffers[1])[i]

    cdef void put_null(self, Py_ssize_t i) noexcept nogil:
        (<unsigned char *>self._memory.buffers[0])[i >> 3] &= ~(1 << (i & 7))
        self._null_count += 1

    def __len__(self):
        return self._count

    def __arrow_c_schema__(self):
        """Return a capsule with the ``ArrowSchema``."""
        cdef ArrowSchema *schema = <ArrowSchema *>calloc(1, sizeof(ArrowSchema))
        if schema == NULL:
            raise MemoryError
        schema.format = b"Z" if self._is_large else b"z"
        schema.name = b""
        schema.flags = ARROW_FLAG_NULLABLE
        schema.release = release_schema
        return PyCapsule_New(schema, b"arrow_schema", free_schema)

    def __arrow_c_array__(self, requested_schema=None):
        """Return capsules with the ``ArrowSchema`` and the ``ArrowArray``. ``requested_schema`` is
        not looked at, as the interface allows."""
        schema = self.__arrow_c_schema__()
        cdef ArrowArray *array = <ArrowArray *>calloc(1, sizeof(ArrowArray))
        if array == NULL:
            raise MemoryError
        array.length = self._count
        array.null_count = self._null_count
        array.n_buffers = 3
        array.buffers = <const void **>self._memory.buffers
        array.release = release_array
        array.private_data = self._memory
        atomic_join(&self._memory.users)
        return schema, PyCapsule_New(array, b"arrow_array", free_array)


cdef void release_schema(ArrowSchema *schema) noexcept nogil:
    schema.release = NULL


cdef void release_array(ArrowArray *array) noexcept nogil:
    # Any thread may call this, also one that Python does not know.
    leave(<Memory *>array.private_data)
    array.release = NULL


cdef void free_schema(object capsule) noexcept:
    free(PyCapsule_GetPointer(capsule, b"arrow_schema"))


cdef void free_array(object capsule) noexcept:
    cdef ArrowArray *array = <ArrowArray *>PyCapsule_GetPointer(capsule, b"arrow_array")
    if array.release != NULL:
        array.release(array)
    free(array)


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


cdef class SealColumn(ColumnBatch):
    """Seals each message as a file under a fresh key."""

    cdef readonly Column sealed
    cdef readonly Column key_metadata
    cdef int _key_size

    def __init__(self, Messages messages, Py_ssize_t threads, Py_ssize_t key_size):
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
        self.sealed.start(messages.count, sealed_size, messages.is_large, has_nulls, False)
        self.key_metadata = Column()
        self.key_metadata.start(messages.count, metadata_size, False, has_nulls, True)
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

    def __init__(self, Messages sealed, Messages key_metadata, Py_ssize_t threads, open_one):
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
        self.plaintext.start(sealed.count, size, sealed.is_large, has_nulls, True)
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

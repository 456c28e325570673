# cython: freethreading_compatible=True
"""Messages in Arrow's memory: columns of input (``Messages``) and of results (``Column``).

A call reads each offset of its input once, and keeps where each message lies. It then knows the
sizes of all results, so that a column of results has one buffer for the bytes of all of them.

Input that breaks Arrow's rules is refused. The interface does not tell the sizes of all buffers,
only pyarrow does. Others may change the input meanwhile, which makes wrong results or errors.
"""

from cpython.buffer cimport PyBuffer_Release
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_New
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memset
from posix.stdlib cimport posix_memalign

from ags1.engine._buffers cimport overlap, take_output, want_huge_pages
from ags1.engine._gcm cimport wipe
from arrow_c cimport (
    ARROW_FLAG_NULLABLE, ArrowArray, ArrowArrayStream, ArrowSchema, read_int32, read_int64,
)
from atomics cimport atomic_join, atomic_leave, atomic_put, atomic_take

import sys

from ..errors import FormatError

cdef enum:
    # A buffer for results begins so many bytes after its block.
    BLOCK_START = 64
    LEAST_KEPT_SIZE = 4 << 20
    MOST_KEPT_SIZE = 64 << 20
    INT32_MAX = 0x7fffffff

# No memory is larger. Sums of such sizes do not overflow.
cdef int64_t MAX_SIZE = 1LL << 47


# ---- a column of input -------------------------------------------------------------------------

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

cdef void leave(Memory *memory) noexcept nogil:
    if atomic_leave(&memory.users):
        return
    if memory.is_secret and memory.buffers[2] != NULL:
        wipe(memory.buffers[2], memory.size)
    if memory.is_given:
        memory.buffers[2] = NULL
        with gil:
            PyBuffer_Release(&memory.given)
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
    wiped when the last user of its memory has left. Its bytes are in memory of its own, or of the
    caller's."""

    def __dealloc__(self):
        if self._memory != NULL:
            leave(self._memory)

    cdef int start(
        self, Py_ssize_t count, Py_ssize_t size, bint is_large, bint has_nulls, bint is_secret,
        object out,
    ) except -1:
        """Take memory for ``count`` messages of ``size`` bytes in all: the beginning of ``out``,
        unless it is None. Raises TypeError and ValueError if ``out`` cannot be that. The caller
        wipes ``out``, and it does so only after it has written to it."""
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
        if out is None:
            self._memory.buffers[2] = new_buffer(size)
        else:
            take_output(out, &self._memory.given)
            self._memory.is_given = True
            if self._memory.given.len < size:
                raise ValueError(
                    f"the output has {self._memory.given.len} bytes and must have at least {size}"
                )
            self._memory.buffers[2] = self._memory.given.buf
        self._memory.size = size
        self._data = <unsigned char *>self._memory.buffers[2]
        if self._memory.buffers[1] == NULL or self._data == NULL:
            raise MemoryError
        self.put_offset(0, 0)
        return 0

    cdef int check_apart(self, Messages messages) except -1:
        """Raise ValueError if the bytes have memory in common with a message."""
        cdef Message *message
        cdef Py_ssize_t i
        if not self._memory.is_given:
            return 0
        for i in range(messages.count):
            message = messages._messages + i
            if message.size > 0 and overlap(
                message.at, message.size, self._data, self._memory.size
            ):
                raise ValueError("input and output overlap: give another buffer as the output")
        return 0

    cdef void zero(self) noexcept nogil:
        """Zero the bytes."""
        wipe(self._data, self._memory.size)

    cdef void put_offset(self, Py_ssize_t i, Py_ssize_t offset) noexcept nogil:
        if self._is_large:
            (<int64_t *>self._memory.buffers[1])[i] = offset
        else:
            (<int32_t *>self._memory.buffers[1])[i] = <int32_t>offset

    cdef Py_ssize_t offset(self, Py_ssize_t i) noexcept nogil:
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

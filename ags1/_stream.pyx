"""The part of the streams that every small read and write goes through.

A ``ReadWindow`` holds the plaintext that lies verified in memory and the position in it; a
``WriteBatch`` holds the slots being filled. What they can serve from memory costs one copy; for
the rest they call their subclass in ``stream``. Knows nothing of keys or of I/O.

``busy`` is set by the subclass while it works without the GIL, so that a second thread takes the
slow way too and waits there for the lock.
"""

from cpython.buffer cimport (
    PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer,
)
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint64_t
from libc.string cimport memchr, memcpy, memset

from ags1._gcm cimport this_process
from ags1.layout cimport BLOCK_OVERHEAD, NONCE_SIZE

cdef enum:
    # What peek() shows: enough for anybody who sniffs a format, cheap for readline.
    PEEK_SIZE = 8192


cdef class ReadWindow:
    """Sequential reads of what is in memory."""

    cdef Py_buffer _buffer
    cdef bint _attached
    cdef const unsigned char *_data
    cdef long long _start
    cdef Py_ssize_t _size
    cdef public long long position
    cdef public bint busy

    def __dealloc__(self):
        self.drop_window()

    cpdef set_window(self, buffer, long long start, Py_ssize_t offset, Py_ssize_t size):
        """Show ``size`` bytes of ``buffer`` from ``offset`` as the plaintext from ``start`` on."""
        self.drop_window()
        PyObject_GetBuffer(buffer, &self._buffer, PyBUF_SIMPLE)
        self._attached = True
        if offset < 0 or size < 0 or size > self._buffer.len - offset or start < 0:
            self.drop_window()
            raise ValueError("the window is larger than its buffer")
        self._data = <const unsigned char *>self._buffer.buf + offset
        self._start = start
        self._size = size

    cpdef drop_window(self):
        """Forget the window."""
        if self._attached:
            PyBuffer_Release(&self._buffer)
        self._attached = False
        self._size = 0

    cdef Py_ssize_t ahead(self, long long position) noexcept:
        """How many bytes the window holds from ``position`` on."""
        if position < self._start or position >= self._start + self._size:
            return 0
        return <Py_ssize_t>(self._start + self._size - position)

    def copy_window(self, long long position, out):
        """Copy what the window holds from ``position`` on into ``out``; return how much."""
        cdef Py_buffer view
        cdef Py_ssize_t size = self.ahead(position)
        if not size:
            return 0
        PyObject_GetBuffer(out, &view, PyBUF_SIMPLE | PyBUF_WRITABLE)
        size = min(size, view.len)
        memcpy(view.buf, self._data + (position - self._start), size)
        PyBuffer_Release(&view)
        return size

    def cached(self, long long position, Py_ssize_t size):
        """Return those bytes if the window holds them all, else None."""
        if self.busy or size <= 0 or self.ahead(position) < size:
            return None
        return PyBytes_FromStringAndSize(<char *>self._data + (position - self._start), size)

    def window_line(self, Py_ssize_t limit):
        """Take the rest of the line, or of the window if that ends first; at most ``limit``."""
        cdef Py_ssize_t size = self.ahead(self.position)
        cdef const unsigned char *at = self._data + (self.position - self._start)
        if 0 <= limit < size:
            size = limit
        cdef const unsigned char *newline = <const unsigned char *>memchr(at, 10, size)
        if newline != NULL:
            size = newline - at + 1
        self.position += size
        return PyBytes_FromStringAndSize(<char *>at, size)

    def read(self, size=-1, /):
        """Read up to ``size`` bytes, or all that remain when it is negative or None."""
        cdef Py_ssize_t wanted = -1 if size is None else size
        cdef long long position = self.position
        if self.busy or wanted <= 0 or self.ahead(position) < wanted:
            return self._read_slow(wanted)
        self.position = position + wanted
        return PyBytes_FromStringAndSize(<char *>self._data + (position - self._start), wanted)

    def read1(self, Py_ssize_t size=-1, /):
        """Read up to ``size`` bytes, from one block at most."""
        cdef long long position = self.position
        cdef Py_ssize_t at_hand = self.ahead(position)
        if self.busy or at_hand == 0 or size == 0:
            return self._read1_slow(size)
        if 0 <= size < at_hand:
            at_hand = size
        self.position = position + at_hand
        return PyBytes_FromStringAndSize(<char *>self._data + (position - self._start), at_hand)

    def readinto(self, buffer, /):
        """Read into ``buffer`` until it is full or the file ends; return the bytes read.

        When the call fails, the bytes that it could have written are zero.
        """
        cdef Py_buffer view
        cdef Py_ssize_t size
        PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE | PyBUF_WRITABLE)
        size = view.len
        if self.busy or size == 0 or self.ahead(self.position) < size:
            PyBuffer_Release(&view)
            return self._readinto_slow(buffer)
        memcpy(view.buf, self._data + (self.position - self._start), size)
        self.position += size
        PyBuffer_Release(&view)
        return size

    def readline(self, size=-1, /):
        """Read up to and with the next newline; at most ``size`` bytes unless it is negative."""
        cdef Py_ssize_t limit = -1 if size is None else size
        cdef Py_ssize_t at_hand = self.ahead(self.position)
        cdef const unsigned char *at
        if not self.busy and limit < 0 and at_hand:
            at = self._data + (self.position - self._start)
            newline = <const unsigned char *>memchr(at, 10, at_hand)
            if newline != NULL:
                at_hand = newline - at + 1
                self.position += at_hand
                return PyBytes_FromStringAndSize(<char *>at, at_hand)
        return self._readline_slow(limit)

    def peek(self, Py_ssize_t size=0, /):
        """Return some of the bytes that follow, at least one unless at the end; don't move on."""
        cdef Py_ssize_t at_hand = self.ahead(self.position)
        if self.busy or at_hand == 0:
            return self._peek_slow()
        return PyBytes_FromStringAndSize(
            <char *>self._data + (self.position - self._start), min(at_hand, <Py_ssize_t>PEEK_SIZE)
        )


cdef class WriteBatch:
    """Small writes into the slots of the batch under way.

    The text of slot i begins at ``i * (block_size + 28) + 12``, so that the batch is sealed in
    place. ``batch_used`` is the size of the run of slots that holds text.
    """

    cdef Py_buffer _buffer
    cdef bint _attached
    cdef Py_ssize_t _block_size
    cdef Py_ssize_t _blocks
    cdef Py_ssize_t _block
    cdef Py_ssize_t _fill
    cdef uint64_t _process
    cdef public long long position
    cdef public bint busy

    def __cinit__(self):
        self._process = this_process()

    def __dealloc__(self):
        self.drop_batch()

    cpdef set_batch(self, slots, Py_ssize_t block_size):
        """Fill ``slots`` from now on: a writable buffer of whole slots."""
        self.drop_batch()
        if block_size < 1:
            raise ValueError("a block has at least one byte")
        PyObject_GetBuffer(slots, &self._buffer, PyBUF_SIMPLE | PyBUF_WRITABLE)
        self._attached = True
        self._block_size = block_size
        self._blocks = self._buffer.len // (block_size + BLOCK_OVERHEAD)

    cpdef drop_batch(self):
        """Wipe the plaintext that was not sealed, and forget the batch."""
        if self._attached:
            if self._block or self._fill:
                memset(self._buffer.buf, 0, self._buffer.len)
            PyBuffer_Release(&self._buffer)
        self._attached = False
        self._blocks = self._block = self._fill = 0

    @property
    def forked(self):
        """Whether this process is a child of the one that made the object."""
        return self._process != this_process()

    @property
    def batch_used(self):
        """The bytes of the batch's slots that hold text, nonces and tags included."""
        cdef Py_ssize_t full = self._block * (self._block_size + BLOCK_OVERHEAD)
        return full + self._fill + BLOCK_OVERHEAD if self._fill else full

    @property
    def batch_full(self):
        """Whether every slot is filled."""
        return self._block == self._blocks

    def restart_batch(self):
        """Begin the same batch again, after it was sealed and written."""
        self._block = self._fill = 0

    def fill_batch(self, data):
        """Copy as much of ``data`` as fits into the batch; return how much."""
        cdef Py_buffer view
        cdef Py_ssize_t done = 0, size
        cdef unsigned char *slot
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        while done < view.len and self._block < self._blocks:
            size = min(view.len - done, self._block_size - self._fill)
            slot = <unsigned char *>self._buffer.buf
            slot += self._block * (self._block_size + BLOCK_OVERHEAD) + NONCE_SIZE
            memcpy(slot + self._fill, <const unsigned char *>view.buf + done, size)
            done += size
            self._fill += size
            if self._fill == self._block_size:
                self._block += 1
                self._fill = 0
        PyBuffer_Release(&view)
        self.position += done
        return done

    def write(self, data, /):
        """Write all of ``data``, any C-contiguous buffer; return its size in bytes."""
        cdef Py_buffer view
        cdef Py_ssize_t size
        cdef unsigned char *slot
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        size = view.len
        if (
            self.busy or not self._attached or self._process != this_process()
            or self._block == self._blocks or self._fill + size >= self._block_size
        ):
            PyBuffer_Release(&view)
            return self._write_slow(data)
        slot = <unsigned char *>self._buffer.buf
        slot += self._block * (self._block_size + BLOCK_OVERHEAD) + NONCE_SIZE
        memcpy(slot + self._fill, view.buf, size)
        self._fill += size
        self.position += size
        PyBuffer_Release(&view)
        return size

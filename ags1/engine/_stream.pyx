# cython: freethreading_compatible=True
"""The compiled part of readers and writers: small reads and writes that need no I/O.

``FastReader`` and ``FastWriter`` are the bases of ``Reader`` and ``Writer``. If they can, they copy
from memory or to memory. Otherwise they call their core, a Python object::

    Reader(FastReader)                                  Writer(FastWriter)
      |  read, readline, ...     pread                    |  write
      v                          v                        v
    ReadWindow                 BlockCache               WriteBatch
    decrypted plaintext,       plaintext that pread     slots being filled
    and the position in it     has decrypted            with plaintext
      |  not in memory           |                        |  no room left
      v                          v                        v
    ReaderCore (reader.py): fetches, decrypts           WriterCore (writer.py): encrypts, writes

While a core works on the window or the batch, it sets ``busy``. Then the other threads call the
core too, and wait for its lock. Every access holds the object's critical section, which costs
nothing if there is a GIL. Python cannot reach core, window, cache and batch through a stream.
"""

import sys

cimport cython
from cpython.buffer cimport (
    PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer,
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_SetObject, PyErr_WriteUnraisable
from cpython.long cimport PyLong_AsLongLongAndOverflow
from libc.stdint cimport uint64_t
from libc.string cimport memchr, memcpy, memset

from ags1.host._process cimport this_process
from ags1.engine.layout cimport BLOCK_OVERHEAD, NONCE_SIZE

from .filelike import check_open

cdef enum:
    # The bytes that peek() returns: enough to recognise a format, and cheap for readline.
    PEEK_SIZE = 8192


# ---- reading -----------------------------------------------------------------------------------

cdef class Plaintext:
    """``size`` bytes of the plaintext, from ``start`` on, at the beginning of a buffer."""

    cdef Py_buffer view
    cdef const unsigned char *data
    cdef object buffer
    cdef long long start
    cdef Py_ssize_t size

    def __dealloc__(self):
        PyBuffer_Release(&self.view)

    cdef Py_ssize_t ahead(self, long long position) noexcept:
        """The number of bytes from ``position`` on."""
        if position < self.start or position >= self.start + self.size:
            return 0
        return <Py_ssize_t>(self.start + self.size - position)

    cdef const unsigned char *at(self, long long position) noexcept:
        return self.data + (position - self.start)


cdef Plaintext NO_PLAINTEXT = Plaintext()


cdef Plaintext plaintext(buffer, long long start, Py_ssize_t size):
    cdef Plaintext text = Plaintext.__new__(Plaintext)
    PyObject_GetBuffer(buffer, &text.view, PyBUF_SIMPLE)
    text.data = <const unsigned char *>text.view.buf
    if size < 0 or size > text.view.len or start < 0:
        raise ValueError(f"{size} bytes of plaintext do not fit into {text.view.len}")
    text.buffer = buffer
    text.start = start
    text.size = size
    return text


cdef class ReadWindow:
    """The plaintext that sequential reads are served from, and their position."""

    cdef Plaintext text
    cdef public long long position
    cdef bint _busy

    def __cinit__(self):
        self.text = NO_PLAINTEXT

    @property
    def busy(self):
        return self._busy

    @busy.setter
    def busy(self, bint busy):
        with cython.critical_section(self):
            self._busy = busy

    def put(self, buffer, long long start, Py_ssize_t size):
        """Hold the first ``size`` bytes of ``buffer``, which are the plaintext from ``start`` on.
        Returns the buffer that was held before, which may be used again, or None."""
        cdef Plaintext old, new = plaintext(buffer, start, size)
        with cython.critical_section(self):
            old = self.text
            self.text = new
        return old.buffer

    def drop(self):
        """Hold nothing any more."""
        with cython.critical_section(self):
            self.text = NO_PLAINTEXT

    def copy(self, long long position, out):
        """Copy the bytes from ``position`` on that are here into ``out``; return their number."""
        cdef Py_buffer view
        cdef Py_ssize_t size
        PyObject_GetBuffer(out, &view, PyBUF_SIMPLE | PyBUF_WRITABLE)
        with cython.critical_section(self):
            size = min(self.text.ahead(position), view.len)
            if size:
                memcpy(view.buf, self.text.at(position), size)
        PyBuffer_Release(&view)
        return size

    def holds(self, long long position):
        """Whether the byte at ``position`` is here."""
        return self.text.ahead(position) > 0

    def line(self, Py_ssize_t limit):
        """Read to the end of the line or of the window, at most ``limit`` bytes."""
        cdef bytes data
        cdef Py_ssize_t size
        with cython.critical_section(self):
            size = self.text.ahead(self.position)
            data = self.take(self.line_size(size if limit < 0 else min(limit, size)))
        return data

    def peek(self):
        """Return some bytes from the position on, and do not move it."""
        cdef bytes data
        with cython.critical_section(self):
            data = self.look()
        return data

    # The caller of the following methods holds the critical section.

    cdef Py_ssize_t ahead(self) noexcept:
        """The number of bytes that can be read without the core."""
        return 0 if self._busy else self.text.ahead(self.position)

    cdef bytes take(self, Py_ssize_t size):
        data = PyBytes_FromStringAndSize(<char *>self.text.at(self.position), size)
        self.position += size
        return data

    cdef bytes look(self):
        size = min(self.text.ahead(self.position), <Py_ssize_t>PEEK_SIZE)
        return PyBytes_FromStringAndSize(<char *>self.text.at(self.position), size)

    cdef Py_ssize_t line_size(self, Py_ssize_t size) noexcept:
        """The size of the line at the position; ``size`` if it does not end before that."""
        cdef const unsigned char *at = self.text.at(self.position)
        cdef const unsigned char *newline = NULL
        if size:
            newline = <const unsigned char *>memchr(at, 10, size)
        return size if newline == NULL else newline - at + 1


cdef class BlockCache:
    """The plaintext that was decrypted last, in up to ``limit`` buffers."""

    cdef list _texts
    cdef Py_ssize_t _limit

    def __cinit__(self, Py_ssize_t limit):
        self._texts = []
        self._limit = limit

    def keep(self, buffer, long long start, Py_ssize_t size):
        """Keep a buffer with ``size`` bytes of the plaintext from ``start`` on. Returns a buffer
        that is not needed, which may be this one, or None."""
        cdef Plaintext text = plaintext(buffer, start, size)
        with cython.critical_section(self):
            if self._limit and self.find(start, size) is None:
                self._texts.append(text)
                text = None
                if len(self._texts) > self._limit:
                    text = self._texts[0]
                    del self._texts[0]
        return None if text is None else text.buffer

    def close(self):
        """Keep nothing any more."""
        with cython.critical_section(self):
            self._limit = 0
            self._texts = []

    def copy(self, long long position, out):
        """Fill ``out`` from ``position`` on; return False if not all of that is here."""
        cdef Py_buffer view
        cdef bint filled
        PyObject_GetBuffer(out, &view, PyBUF_SIMPLE | PyBUF_WRITABLE)
        with cython.critical_section(self):
            filled = self.fill(position, <unsigned char *>view.buf, view.len)
        PyBuffer_Release(&view)
        return filled

    # The caller of the following methods holds the critical section.

    cdef Plaintext find(self, long long position, Py_ssize_t size):
        """Return the text that holds those bytes, or None, and mark it as the one used last."""
        cdef Plaintext text
        cdef Py_ssize_t i, last = len(self._texts) - 1
        for i in range(last, -1, -1):
            text = self._texts[i]
            if text.ahead(position) >= size:
                if i != last:
                    del self._texts[i]
                    self._texts.append(text)
                return text
        return None

    cdef bint fill(self, long long position, unsigned char *out, Py_ssize_t size):
        cdef Plaintext text
        cdef Py_ssize_t part
        while size:
            text = self.find(position, 1)
            if text is None:
                return False
            part = min(size, text.ahead(position))
            memcpy(out, text.at(position), part)
            position += part
            out += part
            size -= part
        return True


cdef ReadWindow NO_WINDOW = ReadWindow()
cdef BlockCache NO_CACHE = BlockCache(0)


cdef class FastReader:
    """The base of ``Reader``: reads from memory, or else through its ``ReaderCore``."""

    cdef object __weakref__
    cdef object core
    cdef ReadWindow window
    cdef BlockCache cache
    cdef long long end
    cdef bint seeks

    def __cinit__(self):
        self.window = NO_WINDOW
        self.cache = NO_CACHE

    def __init__(self, core):
        if self.core is not None:
            raise RuntimeError("the reader is open already: make another one")
        self.window = core.window
        self.cache = core.cache
        self.end = core.plaintext_size
        self.seeks = core.seekable
        self.core = core

    @property
    def name(self):
        """The path or the name of the source; None if it has none."""
        return self.core.name

    @property
    def closed(self):
        """Whether the stream was closed."""
        return self.core is None or self.core.closed

    @property
    def plaintext_size(self):
        """The size of the plaintext in bytes."""
        return self.end

    @property
    def encrypted_size(self):
        """The trusted size of the encrypted file in bytes."""
        return self.core.encrypted_size

    @property
    def block_size(self):
        """The plaintext bytes of a full block."""
        return self.core.block_size

    def seekable(self):
        """Whether the source, and so the stream, can seek."""
        check_open(self)
        return self.seeks

    def tell(self):
        """Return the position in the plaintext."""
        check_open(self)
        return self.window.position

    def seek(self, offset, int whence=0, /):
        """Move to ``offset`` from the start, the position or the end; return the new position. A
        position beyond the end is allowed; a read there returns nothing. Raises OSError for a
        negative position, as files do, and io.UnsupportedOperation if the source cannot seek."""
        return self.core.seek(offset, whence)

    def read(self, size=-1, /):
        """Read up to ``size`` bytes, or all that remain if it is negative or None."""
        cdef Py_ssize_t wanted = -1 if size is None else size
        cdef bytes data = None
        with cython.critical_section(self.window):
            if wanted > 0 and self.window.ahead() >= wanted:
                data = self.window.take(wanted)
        return self.core.read(wanted) if data is None else data

    def read1(self, Py_ssize_t size=-1, /):
        """Read up to ``size`` bytes, from one block at most."""
        cdef Py_ssize_t at_hand
        cdef bytes data = None
        with cython.critical_section(self.window):
            at_hand = self.window.ahead()
            if at_hand and size:
                data = self.window.take(at_hand if size < 0 else min(size, at_hand))
        return self.core.read1(size) if data is None else data

    def readinto(self, buffer, /):
        """Read into ``buffer`` until it is full or the file ends; return the bytes read. If the
        call fails, it zeroes the bytes that it could have written."""
        cdef Py_buffer view
        cdef Py_ssize_t size
        cdef bint done = False
        PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE | PyBUF_WRITABLE)
        size = view.len
        with cython.critical_section(self.window):
            if size and self.window.ahead() >= size:
                memcpy(view.buf, self.window.text.at(self.window.position), size)
                self.window.position += size
                done = True
        PyBuffer_Release(&view)
        return size if done else self.core.readinto(buffer)

    def readline(self, size=-1, /):
        """Read up to and with the next newline; at most ``size`` bytes unless it is negative."""
        cdef Py_ssize_t limit = -1 if size is None else size
        cdef Py_ssize_t at_hand, line
        cdef bytes data = None
        with cython.critical_section(self.window):
            at_hand = self.window.ahead()
            line = self.window.line_size(at_hand)
            # A line that ends with the window may continue in the next block.
            if limit < 0 and line < at_hand:
                data = self.window.take(line)
        return self.core.readline(limit) if data is None else data

    def peek(self, Py_ssize_t size=0, /):
        """Return some of the next bytes (at least one, except at the end) without moving."""
        cdef bytes data = None
        with cython.critical_section(self.window):
            if self.window.ahead():
                data = self.window.look()
        return self.core.peek() if data is None else data

    def pread(self, offset, size, /):
        """Return up to ``size`` bytes from ``offset``; fewer at the end of the file.

        Does not use the position. Any number of threads may call it. With a path, an ``io.BytesIO``
        or a ranged source, they do not wait for each other. Decrypted blocks stay in memory, up to
        the ``cache_size`` given to ``ags1.open``. An error fails only this call. Raises
        io.UnsupportedOperation if the source cannot seek, and ValueError for a negative argument.
        """
        cdef bytes data = None
        if type(offset) is int and type(size) is int:
            data = self.at_hand(offset, size)
        return self.core.pread(offset, size) if data is None else data

    cdef bytes at_hand(self, offset, size):
        """Return the bytes for ``pread``, or None if they are not in memory."""
        cdef int offset_overflow = 0, size_overflow = 0
        cdef long long position = PyLong_AsLongLongAndOverflow(offset, &offset_overflow)
        cdef long long wanted = PyLong_AsLongLongAndOverflow(size, &size_overflow)
        cdef bytes data = None
        if offset_overflow or size_overflow < 0 or not self.seeks or not 0 <= position < self.end:
            return None
        if size_overflow > 0 or wanted > self.end - position:
            wanted = self.end - position
        if wanted <= 0:
            return None
        with cython.critical_section(self.window):
            if self.window.text.ahead(position) >= wanted:
                data = PyBytes_FromStringAndSize(<char *>self.window.text.at(position), wanted)
        if data is None:
            with cython.critical_section(self.cache):
                if self.cache.find(position, 1) is not None:
                    data = PyBytes_FromStringAndSize(NULL, wanted)
                    if not self.cache.fill(
                        position, <unsigned char *>PyBytes_AS_STRING(data), wanted
                    ):
                        data = None
        return data

    def readv(self, ranges, /):
        """Return the bytes of each ``(offset, size)``, in that order, as ``pread`` does. Ranges in
        the same block or in adjacent blocks are read from the source together. Each block is
        decrypted once."""
        return self.core.readv(ranges)

    def close(self):
        """Close the stream, and its file if ``open`` was given a path."""
        if self.core is not None:
            self.core.close()


# ---- writing -----------------------------------------------------------------------------------

cdef class WriteBatch:
    """The slots that small writes fill. The text of slot i begins at ``i * (block_size + 28) +
    12``, so that the batch can be sealed in place."""

    cdef Py_buffer _buffer
    cdef bint _attached
    cdef Py_ssize_t _block_size
    cdef Py_ssize_t _blocks
    cdef Py_ssize_t _block
    cdef Py_ssize_t _fill
    cdef uint64_t _process
    cdef public long long position
    cdef bint _busy

    def __cinit__(self):
        self._process = this_process()

    def __dealloc__(self):
        self.release()

    @property
    def busy(self):
        return self._busy

    @busy.setter
    def busy(self, bint busy):
        with cython.critical_section(self):
            self._busy = busy

    def begin(self, slots, Py_ssize_t block_size):
        """Fill ``slots`` from now on, a writable buffer of whole slots."""
        if block_size < 1:
            raise ValueError("a block has at least one byte")
        with cython.critical_section(self):
            self.release()
            PyObject_GetBuffer(slots, &self._buffer, PyBUF_SIMPLE | PyBUF_WRITABLE)
            self._attached = True
            self._block_size = block_size
            self._blocks = self._buffer.len // (block_size + BLOCK_OVERHEAD)

    def drop(self):
        """Wipe plaintext that was not sealed, and forget the slots."""
        with cython.critical_section(self):
            self.release()

    cdef void release(self) noexcept:
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
    def used(self):
        """The size of the run of slots that holds text, with nonces and tags."""
        cdef Py_ssize_t full = self._block * (self._block_size + BLOCK_OVERHEAD)
        return full + self._fill + BLOCK_OVERHEAD if self._fill else full

    @property
    def full(self):
        """Whether every slot is filled."""
        return self._block == self._blocks

    def restart(self):
        """Begin again with the same slots, after they were sealed and written."""
        self._block = self._fill = 0

    def fill(self, data):
        """Copy as much of ``data`` as fits; return the number of bytes."""
        cdef Py_buffer view
        cdef Py_ssize_t done = 0, size
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        with cython.critical_section(self):
            while done < view.len and self._block < self._blocks:
                size = min(view.len - done, self._block_size - self._fill)
                memcpy(self.at(), <const unsigned char *>view.buf + done, size)
                done += size
                self._fill += size
                if self._fill == self._block_size:
                    self._block += 1
                    self._fill = 0
            self.position += done
        PyBuffer_Release(&view)
        return done

    cdef unsigned char *at(self) noexcept:
        cdef Py_ssize_t slot = self._block * (self._block_size + BLOCK_OVERHEAD)
        return <unsigned char *>self._buffer.buf + slot + NONCE_SIZE + self._fill

    cdef bint has_room(self, Py_ssize_t size) noexcept:
        """Whether ``size`` bytes fit into the current slot without filling it."""
        return (
            not self._busy and self._attached and self._process == this_process()
            and self._block < self._blocks and self._fill + size < self._block_size
        )


cdef WriteBatch NO_BATCH = WriteBatch()


cdef list running():
    """Return where each Python frame of this thread is. If C code makes several calls, this does
    not change between them."""
    cdef list instructions = []
    frame = sys._getframe()
    while frame is not None:
        instructions.append((frame.f_code, frame.f_lasti))
        frame = frame.f_back
    return instructions


def report(about, error):
    """Report an error that nobody can catch, as Python does: by ``sys.unraisablehook``."""
    PyErr_SetObject(type(error), error)
    PyErr_WriteUnraisable(about)


cdef class FastWriter:
    """The base of ``Writer``: collects small writes, and calls its ``WriterCore`` for all else."""

    cdef object __weakref__
    cdef object core
    cdef WriteBatch batch
    cdef list asked

    def __cinit__(self):
        self.batch = NO_BATCH

    def __init__(self, core):
        if self.core is not None:
            raise RuntimeError("the writer is open already: make another one")
        self.batch = core.batch
        self.core = core

    def __del__(self):
        # Most writers are closed by now. Python ignores the KeyboardInterrupt of a signal that
        # arrives in a __del__, so call no Python code without need.
        if self.core is not None and not self.core.closed:
            self.core.drop(self)

    @property
    def name(self):
        """The path or the name of the target; None if it has none."""
        return self.core.name

    @property
    def mode(self):
        """``wb`` or ``xb``."""
        return self.core.mode

    @property
    def closed(self):
        """Whether the stream was closed or aborted."""
        return self.core is None or self.core.closed

    @property
    def block_size(self):
        """The plaintext bytes of a full block."""
        return self.core.block_size

    @property
    def key_metadata(self):
        """The file's key metadata with its length. Raises ValueError before ``close`` has
        succeeded."""
        return self.core.key_metadata

    def writable(self):
        check_open(self)
        self.asked = running()
        return True

    def seekable(self):
        """Return False, and True to the constructor of ``io.TextIOWrapper`` alone. If its file
        cannot seek, a text has no ``tell`` and no byte-order mark of UTF-16 and UTF-32. It never
        seeks by itself. It calls ``writable`` and then this method from C, from one place."""
        check_open(self)
        asked, self.asked = self.asked, None
        return asked is not None and asked == running()

    def tell(self):
        """Return the number of plaintext bytes written."""
        check_open(self)
        return self.batch.position

    def write(self, data, /):
        """Write all of ``data``, any C-contiguous buffer; return its size in bytes."""
        cdef Py_buffer view
        cdef Py_ssize_t size
        cdef bint done = False
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        size = view.len
        with cython.critical_section(self.batch):
            if self.batch.has_room(size):
                memcpy(self.batch.at(), view.buf, size)
                self.batch._fill += size
                self.batch.position += size
                done = True
        PyBuffer_Release(&view)
        return size if done else self.core.write(data)

    def close(self):
        """Encrypt the rest and finish the file. If this fails, a path gets no file. A file object
        that was given to ``open`` stays open."""
        if self.core is not None:
            self.core.close()

    def abort(self):
        """Close the stream and leave no file. Does nothing if the stream is closed. If a write is
        still running, in another thread or in this one, it fails. The docstring of ``ags1.open``
        says what is left in a file object."""
        if self.core is not None:
            self.core.abort()

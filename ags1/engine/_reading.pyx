# cython: freethreading_compatible=True
"""The compiled part of readers: small reads that need no I/O.

``FastReader`` is the base of ``Reader``. If it can, it copies from memory. Otherwise it calls its
core, a Python object::

    Reader(FastReader)
      |  read, readline, seek, ...     pread
      v                                  v
    ReadWindow         <---->          BlockCache
    decrypted plaintext, and           plaintext that pread has decrypted,
    the position in it                 or that a seek has left
      |  not in memory                   |
      v                                  v
    ReaderCore (reader.py): fetches, decrypts

While the core works on the window, it sets ``busy``. Then the other threads call the core too, and
wait for its lock. Every access holds the object's critical section, which costs nothing if there is
a GIL. Python cannot reach core, window and cache through a stream.
"""

cimport cython
from cpython.buffer cimport (
    PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer,
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.long cimport PyLong_AsLongLongAndOverflow
from libc.string cimport memchr, memcpy

from atomics cimport atomic_join, atomic_leave, atomic_load

from .filelike import check_open

cdef enum:
    # The bytes that peek() returns: enough to recognise a format, and cheap for readline.
    PEEK_SIZE = 8192

# Two such positions have a sum.
cdef long long FAR = 1LL << 62


cdef class Plaintext:
    """``size`` bytes of the plaintext, from ``start`` on, at the beginning of a buffer. A window
    and a cache may both use it. The last one that leaves it may use the buffer again."""

    cdef Py_buffer view
    cdef int users
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

    cdef object left(self):
        """Leave it; return the buffer if nobody else uses it, or None."""
        if self.buffer is None:
            return None
        return self.buffer if atomic_leave(&self.users) == 0 else None


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
    text.users = 1
    return text


cdef class ReadWindow:
    """The plaintext that sequential reads are served from, and their position."""

    cdef Plaintext text
    cdef public long long position
    cdef readonly bint closed
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
        return old.left()

    def keep_in(self, BlockCache cache not None):
        """Give the plaintext that is here to ``cache``. Returns a buffer that neither needs, which
        may be used again, or None."""
        cdef Plaintext old
        with cython.critical_section(self):
            old = self.text
            self.text = NO_PLAINTEXT
        spare = cache.add(old) if old.size else None
        mine = old.left()
        return spare if mine is None else mine

    def turn(self, BlockCache cache not None, long long position):
        """Hold the plaintext of ``cache`` at ``position``; return its end, or -1 if it is not
        there."""
        cdef long long end = -1
        with cython.critical_section(self, cache):
            if self.turned(cache, position, 1):
                end = self.text.start + self.text.size
        return end

    def drop(self):
        """Hold nothing any more."""
        with cython.critical_section(self):
            self.text.left()
            self.text = NO_PLAINTEXT

    def close(self):
        """Hold nothing any more, and call the core for everything from now on."""
        with cython.critical_section(self):
            self.closed = self._busy = True
            self.text.left()
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

    cdef bint turned(self, BlockCache cache, long long position, Py_ssize_t size):
        """Hold the plaintext of ``cache`` that has ``size`` bytes from ``position`` on, if it is
        there. What is here must be nobody's, or the cache's too."""
        cdef Plaintext text = cache.find(position, size)
        if text is None:
            return False
        atomic_join(&text.users)
        self.text.left()
        self.text = text
        return True

    cdef bint shared(self) noexcept:
        """Whether the core is not needed to hold another plaintext."""
        return not self._busy and atomic_load(&self.text.users) != 1

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
    """The plaintext that was decrypted last, in buffers of up to ``limit`` bytes together."""

    cdef list _texts
    cdef Py_ssize_t _limit
    cdef Py_ssize_t _used

    def __cinit__(self, Py_ssize_t limit):
        self._texts = []
        self._limit = limit

    def keep(self, buffer, long long start, Py_ssize_t size):
        """Keep a buffer with ``size`` bytes of the plaintext from ``start`` on. Returns a buffer
        that is not needed, which may be this one, or None."""
        cdef Plaintext text = plaintext(buffer, start, size)
        spare = self.add(text)
        mine = text.left()
        return spare if mine is None else mine

    cdef object add(self, Plaintext text):
        """Keep a text too. Returns a buffer that nobody uses any more, or None."""
        cdef Plaintext old
        cdef object spare = None
        with cython.critical_section(self):
            if text.view.len <= self._limit and self.find(text.start, text.size) is None:
                atomic_join(&text.users)
                self._texts.append(text)
                self._used += text.view.len
                while self._used > self._limit:
                    old = self._texts.pop(0)
                    self._used -= old.view.len
                    spare = old.left()
        return spare

    def holds(self, long long position):
        """Whether the byte at ``position`` is here."""
        with cython.critical_section(self):
            found = self.find(position, 1) is not None
        return found

    def close(self):
        """Keep nothing any more."""
        with cython.critical_section(self):
            self._limit = -1
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
        return self.core is None or self.window.closed

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
        cdef int overflow = 0
        cdef long long to = -1
        if type(offset) is int and self.seeks:
            to = PyLong_AsLongLongAndOverflow(offset, &overflow)
            with cython.critical_section(self.window):
                to = -1 if overflow or self.window._busy else self.target(to, whence)
                if to >= 0:
                    self.window.position = to
        return self.core.seek(offset, whence) if to < 0 else to

    cdef long long target(self, long long offset, int whence) noexcept:
        """Where a seek goes to; -1 or less if the core has to say that."""
        cdef long long base
        if whence == 0:
            base = 0
        elif whence == 1:
            base = self.window.position
        elif whence == 2:
            base = self.end
        else:
            return -1
        return base + offset if base < FAR and -FAR < offset < FAR else -1

    def read(self, size=-1, /):
        """Read up to ``size`` bytes, or all that remain if it is negative or None."""
        cdef Py_ssize_t wanted = -1 if size is None else size
        cdef bytes data = None
        with cython.critical_section(self.window):
            if wanted > 0 and self.window.ahead() >= wanted:
                data = self.window.take(wanted)
        if data is None and wanted > 0 and self.seeks:
            with cython.critical_section(self.window, self.cache):
                if self.turned(wanted):
                    data = self.window.take(wanted)
        return self.core.read(wanted) if data is None else data

    cdef bint turned(self, Py_ssize_t size):
        """Turn the window to ``size`` bytes at the position that the cache has. The caller holds
        both critical sections."""
        window = self.window
        return window.shared() and window.turned(self.cache, window.position, size)

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
        if not done and size and self.seeks:
            with cython.critical_section(self.window, self.cache):
                if self.turned(size):
                    memcpy(view.buf, self.window.text.at(self.window.position), size)
                    self.window.position += size
                    done = True
        PyBuffer_Release(&view)
        return size if done else self.core.readinto(buffer)

    def readline(self, size=-1, /):
        """Read up to and with the next newline; at most ``size`` bytes unless it is negative."""
        return self.line(-1 if size is None else size)

    cdef bytes line(self, Py_ssize_t limit):
        cdef Py_ssize_t at_hand, size
        cdef bytes data = None
        with cython.critical_section(self.window):
            at_hand = self.window.ahead()
            size = self.window.line_size(at_hand)
            # A line that ends with the window may continue in the next block.
            if limit < 0 and size < at_hand:
                data = self.window.take(size)
        return self.core.readline(limit) if data is None else data

    def __iter__(self):
        check_open(self)
        return self

    def __next__(self):
        cdef bytes line = self.line(-1)
        if not line:
            raise StopIteration
        return line

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

# cython: freethreading_compatible=True
"""The compiled part of writers: small writes that need no I/O.

``FastWriter`` is the base of ``Writer``. If it can, it copies to memory. Otherwise it calls its
core, a Python object::

    Writer(FastWriter)
      |  write
      v
    WriteBatch: slots being filled with plaintext
      |  no room left
      v
    WriterCore (writer.py): encrypts, writes

While the core works on the batch, it sets ``busy``. Then the other threads call the core too, and
wait for its lock. Every access holds the batch's critical section, which costs nothing if there is
a GIL. Python cannot reach core and batch through a stream.
"""

import sys

cimport cython
from cpython.buffer cimport (
    PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer,
)
from cpython.exc cimport PyErr_SetObject, PyErr_WriteUnraisable
from libc.stdint cimport uint64_t
from libc.string cimport memcpy, memset

from ags1.host._process cimport this_process
from ags1.engine.layout cimport BLOCK_OVERHEAD, NONCE_SIZE

from .filelike import check_open


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

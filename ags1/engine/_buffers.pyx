# cython: freethreading_compatible=True
"""Views of callers' memory, and new ``bytes`` to fill. Independent of AES and files."""

from cpython.buffer cimport PyBuffer_FillInfo, PyBuffer_Release
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uintptr_t
from libc.string cimport memset

cdef extern from *:
    """
    #include <sys/mman.h>
    #ifdef MADV_HUGEPAGE
    #define ags1_want_huge_pages(at, size) madvise((void *)(at), (size), MADV_HUGEPAGE)
    #else
    #define ags1_want_huge_pages(at, size) 0
    #endif
    """
    int ags1_want_huge_pages(uintptr_t at, size_t size) nogil

cdef enum:
    # Below this a huge page costs more to clear than the page faults that it saves.
    HUGE_PAGE_WORTHWHILE = 4 << 20


cdef class FlatBuffer:
    """Any C-contiguous buffer as plain bytes. ``memoryview.cast`` supports native formats only."""

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


def flat(buffer):
    """Return the bytes of any C-contiguous buffer as a one-dimensional view."""
    view = memoryview(buffer)
    if view.format == "B" and view.ndim == 1 and view.contiguous:
        return view
    return memoryview(FlatBuffer(buffer))


def overlapping(a, b):
    """Whether two buffers have any byte of memory in common."""
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


def wipe(buffer):
    """Zero a writable buffer."""
    cdef Py_buffer view
    take_output(buffer, &view)
    memset(view.buf, 0, view.len)
    PyBuffer_Release(&view)


cdef void want_huge_pages(void *fresh, size_t size) noexcept nogil:
    # On large fresh memory, page faults cost more than AES. A huge page saves most of that.
    cdef uintptr_t first, last, huge = 2 << 20
    if size >= HUGE_PAGE_WORTHWHILE:
        first = (<uintptr_t>fresh + huge - 1) & ~(huge - 1)
        last = (<uintptr_t>fresh + size) & ~(huge - 1)
        ags1_want_huge_pages(first, last - first)


cdef bytes new_object(Py_ssize_t size):
    cdef bytes data = PyBytes_FromStringAndSize(NULL, size)
    want_huge_pages(PyBytes_AS_STRING(data), size)
    return data


cdef class UnfinishedBytes:
    """A writable view of a ``bytes`` that is being made. It owns the object: if a thread still
    writes after its caller has given up, nobody else uses that memory."""

    cdef bytes data

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, PyBytes_AS_STRING(self.data), len(self.data), 0, flags)


def new_bytes(Py_ssize_t size):
    """Return a new, uninitialised ``bytes`` and a writable view through which to fill it.

    Drop the view when the object is filled: a ``bytes`` must not change after that.
    """
    if size < 0:
        raise ValueError(f"bytes cannot have a size of {size}")
    cdef UnfinishedBytes unfinished = UnfinishedBytes.__new__(UnfinishedBytes)
    unfinished.data = new_object(size)
    return unfinished.data, memoryview(unfinished)

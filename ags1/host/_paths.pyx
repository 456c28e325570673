# cython: freethreading_compatible=True
"""What ``atomic`` does in C: ``os.path.realpath`` of a file's folder, ``os.path.lexists`` of
a file that is not, and a look at what is dropped."""

from cpython.bytes cimport PyBytes_AsStringAndSize
from libc cimport errno
from libc.stdlib cimport free
from posix.stat cimport lstat, struct_stat

cdef extern from "stdlib.h" nogil:
    char *realpath(const char *path, char *resolved)


cdef class Unsettled:
    """The base of what has a method ``drop``, which is called if this is dropped before it is
    ``settled``. Python ignores the KeyboardInterrupt of a signal that arrives in a ``__del__``, so
    what is settled runs no Python code there."""

    cdef public bint settled

    def __cinit__(self, *_, **__):
        self.settled = True  # there is nothing to drop yet

    def __del__(self):
        if not self.settled:
            self.drop()


def real_path(bytes path not None):
    """Return the absolute path of a file, without links in its folder's path; None if the system
    finds no such folder. Raises ValueError for a path with a null byte."""
    cdef char *text
    cdef char *found
    folder, slash, name = path.rpartition(b"/")
    folder = folder or slash or b"."
    PyBytes_AsStringAndSize(folder, &text, NULL)
    with nogil:
        found = realpath(text, NULL)
    if found == NULL:
        return None
    try:
        # Only of the root, the path ends with a slash.
        return found + name if found[1] == 0 else found + b"/" + name
    finally:
        free(found)


def is_missing(bytes path not None):
    """Return whether the system says that nothing has this name. Raises ValueError for a path with
    a null byte."""
    cdef char *text
    cdef struct_stat status
    cdef int error = 0
    PyBytes_AsStringAndSize(path, &text, NULL)
    with nogil:
        if lstat(text, &status):
            error = errno.errno
    return error == errno.ENOENT

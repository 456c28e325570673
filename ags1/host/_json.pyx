# cython: freethreading_compatible=True
"""What ``strict_json`` does in C: it cuts a list of objects into their texts."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.string cimport memchr


cdef Py_ssize_t past_string(const char *text, Py_ssize_t at, Py_ssize_t size) noexcept nogil:
    """Return where the string ends whose first character is at ``at``."""
    cdef const char *quote
    cdef Py_ssize_t before
    while at < size:
        quote = <const char *>memchr(text + at, c'"', size - at)
        if quote == NULL:
            break
        before = quote - text
        while before > at and text[before - 1] == c"\\":
            before -= 1
        # Of two backslashes, the first escapes the second.
        if (quote - text - before) % 2 == 0:
            return quote - text + 1
        at = quote - text + 1
    return size


cdef Py_ssize_t past_object(const char *text, Py_ssize_t at, Py_ssize_t size) noexcept nogil:
    """Return where the object ends that begins at ``at``; -1 if the text ends before."""
    cdef Py_ssize_t depth = 0
    cdef char character
    while at < size:
        character = text[at]
        at += 1
        if character == c'"':
            at = past_string(text, at, size)
        elif character == c"{":
            depth += 1
        elif character == c"}":
            depth -= 1
            if not depth:
                return at
    return -1


cdef Py_ssize_t past_spaces(const char *text, Py_ssize_t at, Py_ssize_t size) noexcept nogil:
    while at < size and text[at] in (c" ", c"\t", c"\r", c"\n"):
        at += 1
    return at


def objects_from(bytes text not None, Py_ssize_t at):
    """Return the texts of the objects that begin at ``at``, with a comma between two, and where the
    last one ends. The text need not be JSON. Then the objects need not be JSON either. Raises
    ValueError if an object has no end."""
    cdef const char *characters = PyBytes_AS_STRING(text)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(text), end = at, begin, past
    cdef list objects = []
    if at < 0:
        raise ValueError("the position is negative")
    while True:
        begin = past_spaces(characters, at, size)
        if begin >= size or characters[begin] != c"{":
            break
        past = past_object(characters, begin, size)
        if past < 0:
            raise ValueError("an object has no end")
        objects.append(PyBytes_FromStringAndSize(characters + begin, past - begin))
        end = past
        at = past_spaces(characters, past, size)
        if at >= size or characters[at] != c",":
            break
        at += 1
    return objects, end

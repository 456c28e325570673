# How the extension modules take the buffers of their callers.
from cpython.buffer cimport (
    PyBUF_SIMPLE, PyBUF_WRITABLE, PyObject_CheckBuffer, PyObject_GetBuffer,
)
from cpython.memoryview cimport PyMemoryView_Check
from cpython.object cimport PyObject
from libc.stdint cimport uintptr_t

# Cython's own declaration has another type.
cdef extern from "Python.h":
    PyObject *PyMemoryView_GET_BASE(object view)


cdef inline int take_input(object data, Py_buffer *view) except -1:
    return PyObject_GetBuffer(data, view, PyBUF_SIMPLE)


cdef inline int take_output(object out, Py_buffer *view) except -1:
    try:
        PyObject_GetBuffer(out, view, PyBUF_SIMPLE | PyBUF_WRITABLE)
    except (BufferError, ValueError) as error:  # numpy raises the second
        if PyObject_CheckBuffer(out) and memoryview(out).readonly:
            raise TypeError(
                f"the output must be a writable buffer, not a read-only {type(out).__name__}"
            ) from None
        raise error
    return 0


cdef inline bint overlap(
    const void *a, size_t a_size, const void *b, size_t b_size
) noexcept nogil:
    return <uintptr_t>a < <uintptr_t>b + b_size and <uintptr_t>b < <uintptr_t>a + a_size


# Whether nobody outside this process can change the memory while it is read. OpenSSL may read
# ciphertext twice, to verify and to decrypt. Shared memory, such as a mapped file, may change in
# between.
cdef inline bint is_private(object buffer):
    cdef PyObject *base
    while PyMemoryView_Check(buffer):
        base = PyMemoryView_GET_BASE(buffer)
        if base == NULL:
            return False
        buffer = <object>base
    return type(buffer) is bytes or type(buffer) is bytearray


cdef bytes new_object(Py_ssize_t size)
cdef void want_huge_pages(void *fresh, size_t size) noexcept nogil

# cython: freethreading_compatible=True
"""Seals the modules of a Parquet file, many in one call. ``parquet_modules`` has a drawing of them.

The texts of all modules of a call are in memory before the kernel draws their nonces, in one call.
So a copy of the process or the machine that goes on from there makes the same modules, or draws
other nonces.
"""

from cpython.buffer cimport PyBuffer_Release
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.limits cimport INT_MAX
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

from ags1.engine._buffers cimport take_input
from ags1.engine._gcm cimport BlockCipher, GcmContext, draw, libcrypto_error, seal_message, wipe
from ags1.engine.layout cimport BLOCK_OVERHEAD, NONCE_SIZE, put_int32

from ...errors import FormatError

cdef enum:
    LENGTH_SIZE = 4
    MAX_PLACE_SIZE = 7  # the module's type, row group, column and page

MODULE_OVERHEAD = LENGTH_SIZE + BLOCK_OVERHEAD


cdef struct Module:
    Py_buffer text
    const unsigned char *place
    size_t place_size


cdef class ModuleSealer:
    """Seals the modules of one file. ``file_aad`` is the part of the AAD that they share.

    Any number of threads may use it. Raises KeyReuseError in a forked child, and after 2**32
    modules.
    """

    cdef BlockCipher _cipher
    cdef bytes _file_aad

    def __cinit__(self, key, bytes file_aad):
        self._cipher = BlockCipher(key)
        self._file_aad = file_aad

    def __reduce__(self):
        raise TypeError("a ModuleSealer holds a key and cannot be pickled or copied")

    def seal(self, modules):
        """Return the sealed modules, one after the other. ``modules`` has of each its place (the
        end of its AAD, at most 7 bytes) and its text. Each becomes longer by MODULE_OVERHEAD."""
        cdef tuple taken = tuple(modules)
        cdef Py_ssize_t count = len(taken), done = 0, size = 0, i
        cdef bytes place
        cdef Module *listed = <Module *>calloc(max(count, 1), sizeof(Module))
        if listed == NULL:
            raise MemoryError
        try:
            for place, text in taken:
                if len(place) > MAX_PLACE_SIZE:
                    raise ValueError("the place of a module has at most 7 bytes")
                take_input(text, &listed[done].text)
                listed[done].place = <const unsigned char *>PyBytes_AS_STRING(place)
                listed[done].place_size = len(place)
                done += 1
                if listed[done - 1].text.len > INT_MAX - LENGTH_SIZE - BLOCK_OVERHEAD:
                    raise FormatError("a page is longer than an encrypted Parquet file can have")
                size += listed[done - 1].text.len + LENGTH_SIZE + BLOCK_OVERHEAD
            sealed = PyBytes_FromStringAndSize(NULL, size)
            self._seal(listed, count, <unsigned char *>PyBytes_AS_STRING(sealed), size)
            return sealed
        finally:
            for i in range(done):
                PyBuffer_Release(&listed[i].text)
            free(listed)

    cdef int _seal(
        self, const Module *modules, size_t count, unsigned char *out, size_t size
    ) except -1:
        cdef bint ok
        cdef size_t file_size = len(self._file_aad)
        cdef unsigned char *memory = <unsigned char *>malloc(
            count * NONCE_SIZE + file_size + MAX_PLACE_SIZE
        )
        if memory == NULL:
            raise MemoryError
        cdef unsigned char *aad = memory + count * NONCE_SIZE
        memcpy(aad, PyBytes_AS_STRING(self._file_aad), file_size)
        cdef GcmContext *context = NULL
        try:
            self._cipher.claim(count)
            context = self._cipher.borrow()
            with nogil:
                ok = draw(memory, count * NONCE_SIZE) and seal_modules(
                    context, modules, count, memory, aad, file_size, out
                )
                self._cipher.give_back(context)
                if not ok:
                    wipe(out, size)
        finally:
            free(memory)
        if not ok:
            raise libcrypto_error("OpenSSL could not encrypt")
        return 0


cdef bint seal_modules(
    GcmContext *context, const Module *modules, size_t count, const unsigned char *nonces,
    unsigned char *aad, size_t file_size, unsigned char *out,
) noexcept nogil:
    cdef size_t i, size
    for i in range(count):
        size = modules[i].text.len
        memcpy(aad + file_size, modules[i].place, modules[i].place_size)
        put_int32(out, <unsigned int>(size + BLOCK_OVERHEAD))
        if not seal_message(
            context, aad, file_size + modules[i].place_size, nonces + i * NONCE_SIZE,
            <const unsigned char *>modules[i].text.buf, size, out + LENGTH_SIZE,
        ):
            return False
        out += LENGTH_SIZE + BLOCK_OVERHEAD + size
    return True

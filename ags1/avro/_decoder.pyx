# cython: freethreading_compatible=True
"""Decodes single values of Avro's binary encoding, and never reads beyond the bytes given.

``CheckedDecoder`` reads the headers of containers and of blocks, and the records of manifests. It
has the methods of PyIceberg's ``BinaryDecoder``. PyIceberg's own compiled one checks no length, so
a truncated manifest makes it read other memory or end the process. It also reads a double as a
float. Follows the Avro specification, "Binary Encoding".
"""

from cpython cimport array
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcpy

import array

from ..errors import FormatError

cdef array.array LONGS = array.array("q")


cdef class CheckedDecoder:
    """Reads values one after the other. Raises EOFError where the bytes end first, and FormatError
    for a number of more than 64 bits."""

    cdef bytes _data
    cdef const unsigned char *_at
    cdef const unsigned char *_end

    def __cinit__(self, bytes data not None):
        self._data = data
        self._at = <const unsigned char *>PyBytes_AS_STRING(data)
        self._end = self._at + PyBytes_GET_SIZE(data)

    cdef const unsigned char *take(self, int64_t size) except NULL:
        cdef const unsigned char *taken = self._at
        if size < 0:
            raise FormatError(f"a length is negative: {size}")
        if size > self._end - taken:
            raise EOFError(f"{size} bytes are wanted, but {self._end - taken} are left")
        self._at = taken + size
        return taken

    cdef int64_t number(self) except? -1:
        cdef uint64_t value = 0
        cdef unsigned char byte
        cdef int shift = 0
        while True:
            if self._at == self._end:
                raise EOFError("the bytes end within a number")
            byte = self._at[0]
            self._at += 1
            if shift == 63 and byte > 1:
                raise FormatError("a number has more than 64 bits")
            value |= <uint64_t>(byte & 0x7F) << shift
            if byte < 0x80:
                return <int64_t>(value >> 1) ^ -<int64_t>(value & 1)
            shift += 7

    cdef bytes chunk(self):
        cdef int64_t size = self.number()
        return PyBytes_FromStringAndSize(<const char *>self.take(size), size)

    def tell(self):
        return self._at - <const unsigned char *>PyBytes_AS_STRING(self._data)

    def read(self, int64_t n):
        return PyBytes_FromStringAndSize(<const char *>self.take(n), n)

    def read_boolean(self):
        return self.take(1)[0] != 0

    def read_int(self):
        return self.number()

    def read_ints(self, int64_t count):
        # Each number has at least one byte.
        if not 0 <= count <= self._end - self._at:
            raise EOFError(f"{count} numbers are wanted, but {self._end - self._at} bytes are left")
        cdef array.array numbers = array.clone(LONGS, count, zero=False)
        cdef int64_t i
        for i in range(count):
            numbers.data.as_longlongs[i] = self.number()
        return numbers

    def read_int_bytes_dict(self, int64_t count, dict dest not None):
        cdef int64_t key
        for _ in range(count):
            key = self.number()
            dest[key] = self.chunk()

    def read_bytes(self):
        return self.chunk()

    def read_float(self):
        cdef float value
        memcpy(&value, self.take(4), 4)
        return value

    def read_double(self):
        cdef double value
        memcpy(&value, self.take(8), 8)
        return value

    def read_utf8(self):
        return self.chunk().decode("utf-8")

    def skip(self, int64_t n):
        self.take(n)

    def skip_int(self):
        self.number()

    def skip_boolean(self):
        self.take(1)

    def skip_float(self):
        self.take(4)

    def skip_double(self):
        self.take(8)

    def skip_bytes(self):
        self.take(self.number())

    def skip_utf8(self):
        self.take(self.number())

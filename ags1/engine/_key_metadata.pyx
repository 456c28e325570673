# cython: freethreading_compatible=True
"""The fields of ``KeyMetadata``, whether its key is used, and its bytes. A list of small messages
makes one object for each message. So these are made in compiled code, and the garbage collector,
which they cannot occupy with cycles, does not know them."""

cimport cython
from cpython.buffer cimport PyObject_GetBuffer
from libc.string cimport memcpy

from ags1.host._process cimport this_process
from atomics cimport atomic_load, atomic_set

cdef extern from *:
    """
    static PyObject *ags1_new_object(PyObject *kind, PyObject *none) {
        return ((PyTypeObject *)kind)->tp_new((PyTypeObject *)kind, none, NULL);
    }
    """
    object ags1_new_object(object kind, object none)


@cython.no_gc
cdef class KeyMetadataFields:
    """``_fill`` sets them once, to values that its caller has checked: a key, a prefix or None, and
    a length or None."""

    def _fill(self, bytes encryption_key not None, bytes aad_prefix, file_length):
        if self._encryption_key is not None:
            raise TypeError("key metadata is immutable")
        fill(self, encryption_key, aad_prefix, file_length)

    @property
    def used(self):
        """Whether the key may have encrypted a file already, as far as this object can know: it has
        a file length, a writer took it, or it was made before a fork (the parent has it too)."""
        return bool(atomic_load(&self._taken)) or self._process != this_process()

    def claim(self):
        """Mark the key as used; a writer does so before its first block. Return whether this call
        was the first, even if several threads try."""
        return not atomic_set(&self._taken)


cdef inline void fill(
    KeyMetadataFields self, bytes encryption_key, bytes aad_prefix, object file_length
):
    self._encryption_key = encryption_key
    self._aad_prefix = aad_prefix
    self._file_length = file_length
    # With a length, the key counts as used.
    self._taken = file_length is not None
    self._process = this_process()


cdef KeyMetadataFields new_key_metadata(
    object kind, bytes encryption_key, bytes aad_prefix, object file_length
):
    """Return an object of the class ``kind``, with values that are known to be right."""
    cdef KeyMetadataFields fields = <KeyMetadataFields>ags1_new_object(kind, ())
    fill(fields, encryption_key, aad_prefix, file_length)
    return fields


# ---- its bytes ---------------------------------------------------------------------------------

@cython.no_gc
cdef class EncodedKeyMetadata:
    """What ``KeyMetadata.to_bytes`` returns, as a variable may hold it: ``repr`` does not show it,
    and it is not pickled or copied. ``bytes(memoryview(…))`` are its bytes."""

    cdef bytes _data

    def __init__(self, const unsigned char[::1] data not None):
        self._data = bytes(data)

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        PyObject_GetBuffer(self._data, buffer, flags)

    def __len__(self):
        return len(self._data)

    def __eq__(self, other):
        if not isinstance(other, EncodedKeyMetadata):
            return NotImplemented
        return self._data == (<EncodedKeyMetadata>other)._data

    def __hash__(self):
        return hash(self._data)

    def __repr__(self):
        return f"EncodedKeyMetadata(<{len(self._data)} bytes>)"

    def __reduce_ex__(self, protocol):
        raise TypeError("key metadata holds a key and is not pickled or copied")


# Of many messages, without an object for each. Avro writes a number as a varint of twice the
# number. Before an optional value it writes 2, or 0 if there is none.

cdef Py_ssize_t size_of_metadata(int key_size, Py_ssize_t file_length) noexcept nogil:
    cdef Py_ssize_t size = 6 + key_size + AAD_PREFIX_SIZE, rest = file_length >> 6
    while rest:
        size += 1
        rest >>= 7
    return size


cdef void put_metadata(
    unsigned char *at, const unsigned char *secrets, int key_size, Py_ssize_t file_length
) noexcept nogil:
    """Write what ``KeyMetadata.to_bytes`` returns. ``secrets`` are the key and the AAD prefix."""
    cdef size_t rest = <size_t>file_length << 1
    at[0], at[1] = 1, key_size << 1
    memcpy(at + 2, secrets, key_size)
    at += 2 + key_size
    at[0], at[1] = 2, AAD_PREFIX_SIZE << 1
    memcpy(at + 2, secrets + key_size, AAD_PREFIX_SIZE)
    at += 2 + AAD_PREFIX_SIZE
    at[0] = 2
    at += 1
    while rest > 0x7f:
        at[0] = rest & 0x7f | 0x80
        at += 1
        rest >>= 7
    at[0] = <unsigned char>rest


cdef bint take_metadata(const unsigned char *at, Py_ssize_t size, Metadata *km) noexcept nogil:
    """Whether the bytes are key metadata as ``put_metadata`` writes it, or with an AAD prefix of
    another size. If they are not, ``KeyMetadata.from_bytes`` may still take them."""
    cdef const unsigned char *end = at + size
    cdef size_t number = 0
    cdef int shift = 0
    if size < 4 or at[0] != 1 or not (at[1] == 32 or at[1] == 48 or at[1] == 64):
        return False
    km.key_size = at[1] >> 1
    km.key = at + 2
    at += 2 + km.key_size
    km.aad_prefix, km.aad_prefix_size = at, 0
    if end - at >= 2 and at[0] == 2 and at[1] < 0x80 and not at[1] & 1:
        km.aad_prefix, km.aad_prefix_size = at + 2, at[1] >> 1
        at += 1 + km.aad_prefix_size
    elif end - at < 1 or at[0] != 0:
        return False
    at += 1
    if end - at < 2 or at[0] != 2:
        return False
    at += 1
    while at < end and shift < 63:
        number |= <size_t>(at[0] & 0x7f) << shift
        if at[0] < 0x80:
            km.file_length = number >> 1
            return at + 1 == end and not number & 1 and (at[0] or not shift)
        at += 1
        shift += 7
    return False

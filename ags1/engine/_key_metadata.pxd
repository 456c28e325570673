from libc.stdint cimport uint64_t

cdef enum:
    AAD_PREFIX_SIZE = 16


cdef struct Metadata:
    const unsigned char *key
    int key_size
    const unsigned char *aad_prefix
    Py_ssize_t aad_prefix_size
    Py_ssize_t file_length


cdef class KeyMetadataFields:
    cdef readonly bytes _encryption_key
    cdef readonly bytes _aad_prefix
    cdef readonly object _file_length
    cdef uint64_t _process
    cdef int _taken


cdef KeyMetadataFields new_key_metadata(
    object kind, bytes encryption_key, bytes aad_prefix, object file_length
)
cdef Py_ssize_t size_of_metadata(int key_size, Py_ssize_t file_length) noexcept nogil
cdef void put_metadata(
    unsigned char *at, const unsigned char *secrets, int key_size, Py_ssize_t file_length
) noexcept nogil
cdef bint take_metadata(const unsigned char *at, Py_ssize_t size, Metadata *km) noexcept nogil

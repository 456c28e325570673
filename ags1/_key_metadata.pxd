from libc.stdint cimport uint64_t


cdef class KeyMetadataFields:
    cdef readonly bytes _encryption_key
    cdef readonly bytes _aad_prefix
    cdef readonly object _file_length
    cdef uint64_t _process
    cdef int _taken


cdef KeyMetadataFields new_key_metadata(
    object kind, bytes encryption_key, bytes aad_prefix, object file_length
)

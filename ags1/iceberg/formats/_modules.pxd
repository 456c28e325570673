# What seals and opens the modules of encrypted Parquet files without the GIL.
from libc.stddef cimport size_t
from libc.stdint cimport int64_t

from ags1.engine._gcm cimport BlockCipher, GcmContext

cdef enum:
    LENGTH_SIZE = 4
    MODULE_OVERHEAD = 32  # length, nonce, tag
    MAX_ORDINAL = 0x7FFF  # they are 16 bits with a sign

cdef enum ModuleKind:  # ModuleType has the same
    FOOTER = 0
    DATA_PAGE = 2
    DICTIONARY_PAGE = 3
    DATA_PAGE_HEADER = 4
    DICTIONARY_PAGE_HEADER = 5

cdef enum PageKind:  # parquet_fields.PageType has the same
    PAGE_OF_DATA = 0
    PAGE_OF_DICTIONARY = 2
    PAGE_OF_DATA_V2 = 3


# What a page's header says. ``stated_size`` (COMPRESSED_PAGE_SIZE) is the number from ``size_at``
# to ``size_end``. A checksum may follow it. ``rest`` is the next field after that, with the id
# ``rest_id``, and ``rest_end`` is the struct's end. ``levels_size`` is that of a page of version 2.
cdef struct PageHead:
    int64_t kind
    int64_t plain_size
    int64_t stated_size
    int64_t values
    int64_t levels_size
    const unsigned char *size_at
    const unsigned char *size_end
    const unsigned char *rest
    int64_t rest_id
    const unsigned char *rest_end


# A module that is to be sealed.
cdef struct Module:
    Py_buffer text
    int kind
    const unsigned char *ordinals
    size_t ordinals_size


cdef class ModuleCipher:
    cdef BlockCipher _cipher
    cdef Py_ssize_t _file_aad_size

    cdef int _seal(
        self, const Module *modules, size_t count, unsigned char *nonces, unsigned char *out,
        size_t size,
    ) except -1


cdef int read_page_header(
    const unsigned char *at, Py_ssize_t size, PageHead *head
) noexcept nogil
cdef unsigned char *print_page_header(
    unsigned char *out, const unsigned char *at, const PageHead *head, int64_t stated_size
) noexcept nogil
cdef size_t put_place(
    GcmContext *context, Py_ssize_t file_aad_size, int kind, const unsigned char *ordinals,
    size_t ordinals_size,
) noexcept nogil
cdef int seal_module(
    GcmContext *context, size_t aad_size, const unsigned char *nonce, const unsigned char *text,
    size_t size, unsigned char *out,
) noexcept nogil
cdef int open_module(
    GcmContext *context, size_t aad_size, const unsigned char *module, size_t size,
    unsigned char *text, bint is_shared,
) noexcept nogil

# cython: freethreading_compatible=True
"""Seals and opens the modules of one encrypted Parquet file (``parquet_modules`` has a drawing).

A page is two modules, its header and its body. ``open_pages`` opens all pages of a column chunk, or
as many as are there, in one call without the GIL. Each page keeps its place and its size::

    encrypted    len nonce header tag | len nonce body tag
    plaintext    header with padding            | body

The padding is a field of the header that no reader knows, and that all of them skip, as Thrift's
parsers have to. So all offsets that a footer and its indexes have are those of the plaintext too.
A checksum in a header was that of the ciphertext, and is left out.

``seal`` and ``seal_pages`` seal many modules in one call without the GIL. Their texts are in memory
before the kernel draws their nonces, all at once. So a copy of the process or the machine that goes
on from there makes the same modules, or draws other nonces.

A failed call zeroes what it has written of its output. Until a call returns, its output may hold
bytes that are not verified yet, so nobody else may read it. Independent of footers and tables.
"""

from cpython.buffer cimport PyBuffer_Release
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.limits cimport INT_MAX
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memmove, memset

from ags1.engine._buffers cimport is_private as is_private_buffer
from ags1.engine._buffers cimport take_input, take_output
from ags1.engine._gcm cimport (
    BlockCipher, GcmContext, draw, forget_errors, libcrypto_error, open_message, seal_message, wipe,
)
from ags1.engine.layout cimport NONCE_SIZE, get_int32, put_int32

from ...errors import AuthenticationError, FormatError
from .thrift cimport (
    KIND_BINARY, KIND_FALSE, KIND_I32, KIND_STRUCT, KIND_TRUE, Cursor, next_field,
    read_short_integer, skip_value,
)

cdef enum:
    MAX_PLACE_SIZE = 7  # module type, row group, column, page
    # The ids of fields; ``parquet_fields`` has them by their names.
    TYPE_ID = 1
    PLAIN_SIZE_ID = 2
    STATED_SIZE_ID = 3
    CRC_ID = 4
    DATA_ID = 5
    DICTIONARY_ID = 7
    DATA_V2_ID = 8
    VALUES_ID = 1
    DEFINITION_LEVELS_ID = 5
    REPETITION_LEVELS_ID = 6

# A field of bytes with an id that Parquet does not have: 127, in the form for any id.
cdef enum:
    PADDING_SIZE = 4  # with a length of one byte

cdef enum:
    # What is sealed at once fits into a CPU's cache.
    ENOUGH = 1 << 20
    MAX_PAGES = 256

cdef enum Failure:
    FAILED_TAG = 1
    FAILED_LENGTH
    FAILED_HEADER
    FAILED_KIND
    FAILED_NUMBER
    FAILED_STATED_SIZE


# ---- one module --------------------------------------------------------------------------------

cdef size_t put_place(
    GcmContext *context, Py_ssize_t file_aad_size, int kind, const unsigned char *ordinals,
    size_t ordinals_size,
) noexcept nogil:
    """Put a module's place behind the file's part of the AAD. Return the size of the AAD."""
    cdef unsigned char *at = context.aad + file_aad_size
    at[0] = kind
    memcpy(at + 1, ordinals, ordinals_size)
    return file_aad_size + 1 + ordinals_size


cdef int seal_module(
    GcmContext *context, size_t aad_size, const unsigned char *nonce, const unsigned char *text,
    size_t size, unsigned char *out,
) noexcept nogil:
    """Write a module of ``size + MODULE_OVERHEAD`` bytes. Return 0 if libcrypto fails."""
    put_int32(out, <unsigned int>(size + MODULE_OVERHEAD - LENGTH_SIZE))
    return seal_message(context, context.aad, aad_size, nonce, text, size, out + LENGTH_SIZE)


cdef int open_module(
    GcmContext *context, size_t aad_size, const unsigned char *module, size_t size,
    unsigned char *text, bint is_shared,
) noexcept nogil:
    """Open a module of ``size`` bytes, with its length, which the caller has checked. Return 0 if
    it does not verify; then the caller must wipe ``text``."""
    return open_message(
        context.ctx, context.aad, aad_size, module + LENGTH_SIZE, size - MODULE_OVERHEAD, text,
        is_shared,
    )


cdef Py_ssize_t module_size(const unsigned char *at, Py_ssize_t left) noexcept nogil:
    """Return a module's size, with its length; -1 if it is impossible, 0 if it is not all there."""
    cdef Py_ssize_t size
    if left < LENGTH_SIZE:
        return 0
    size = LENGTH_SIZE + <Py_ssize_t>get_int32(at)
    if size < MODULE_OVERHEAD or size > INT_MAX:
        return -1
    return size if size <= left else 0


# ---- a page's header ---------------------------------------------------------------------------

cdef int read_page_header(
    const unsigned char *at, Py_ssize_t size, PageHead *head
) noexcept nogil:
    """Read the header at ``at``, which ends one byte after ``rest_end``. Return 0 if it is not one,
    or has more than ``size`` bytes."""
    cdef Cursor source
    cdef int64_t field_id = 0
    cdef int kind
    cdef const unsigned char *begin
    memset(head, 0, sizeof(PageHead))
    head.kind = -1
    source.begin = source.at = at
    source.end = at + size
    source.fault = 0
    while True:
        begin = source.at
        kind = next_field(&source, &field_id)
        if field_id > CRC_ID and head.rest == NULL or not kind:
            head.rest = begin if head.rest == NULL else head.rest
            head.rest_id = field_id if kind and not head.rest_id else head.rest_id
        if not kind:
            head.rest_end = begin
            return not source.fault and head.size_at != NULL
        if field_id <= CRC_ID and kind != KIND_I32:
            return 0
        if field_id == TYPE_ID:
            head.kind = read_short_integer(&source, kind)
        elif field_id == PLAIN_SIZE_ID:
            head.plain_size = read_short_integer(&source, kind)
        elif field_id == STATED_SIZE_ID:
            head.size_at = source.at
            head.stated_size = read_short_integer(&source, kind)
            head.size_end = source.at
        elif field_id == (DATA_V2_ID if head.kind == PAGE_OF_DATA_V2 else DATA_ID) and (
            kind == KIND_STRUCT
        ):
            read_data_header(&source, head)
        elif kind != KIND_TRUE and kind != KIND_FALSE:
            skip_value(&source, kind, 0)


cdef void read_data_header(Cursor *source, PageHead *head) noexcept nogil:
    """Read what the header of a page of data says, in both versions."""
    cdef int64_t field_id = 0
    cdef int kind
    while True:
        kind = next_field(source, &field_id)
        if not kind:
            return
        if kind == KIND_I32 and field_id == VALUES_ID:
            head.values = read_short_integer(source, kind)
        elif kind == KIND_I32 and head.kind == PAGE_OF_DATA_V2 and (
            field_id == DEFINITION_LEVELS_ID or field_id == REPETITION_LEVELS_ID
        ):
            head.levels_size += read_short_integer(source, kind)
        elif kind != KIND_TRUE and kind != KIND_FALSE:
            skip_value(source, kind, 1)


cdef unsigned char *print_page_header(
    unsigned char *out, const unsigned char *at, const PageHead *head, int64_t stated_size
) noexcept nogil:
    """Print the header at ``at`` with another size and without a checksum, but not its last byte,
    which is 0. Return its end. ``out`` may be before ``at``; it is at most as long as it was if the
    size is smaller."""
    cdef size_t size = head.size_at - at
    cdef uint64_t number = <uint64_t>stated_size << 1
    cdef const unsigned char *rest = head.rest
    memmove(out, at, size)
    out += size
    while number > 0x7F:
        out[0] = <unsigned char>(number & 0x7F | 0x80)
        number >>= 7
        out += 1
    out[0] = <unsigned char>number
    out += 1
    if rest < head.rest_end:
        # The byte before a field has the distance of its id from the last one.
        if rest[0] >> 4:
            out[0] = <unsigned char>((head.rest_id - STATED_SIZE_ID) << 4 | rest[0] & 0x0F)
            out += 1
            rest += 1
        size = head.rest_end - rest
        memmove(out, rest, size)
        out += size
    return out


cdef int put_padding(unsigned char *out, Py_ssize_t size) noexcept nogil:
    """Fill ``size`` bytes with a field that nobody reads, and the end of its struct. Return 0 if
    there is no such field."""
    cdef Py_ssize_t content = size - PADDING_SIZE - 1, at = PADDING_SIZE
    if content > 0x7F:  # the length has two bytes
        content -= 1
        at += 1
        out[4] = <unsigned char>(content >> 7)
    if not 0 <= content <= 0x3FFF:
        return 0
    out[0] = KIND_BINARY
    out[1] = 0xFE
    out[2] = 0x01
    out[3] = <unsigned char>(content & 0x7F | (0x80 if at > PADDING_SIZE else 0))
    memset(out + at, 0, content + 1)
    return 1


# ---- the pages of a column chunk ---------------------------------------------------------------

cdef struct Pages:
    unsigned char ordinals[6]
    Py_ssize_t number
    bint has_dictionary
    bint is_shared
    int failure
    # What was read.
    Py_ssize_t done
    int64_t values
    Py_ssize_t levels_size
    Py_ssize_t modules


cdef void open_all(
    GcmContext *context, Py_ssize_t file_aad_size, const unsigned char *sealed, Py_ssize_t size,
    unsigned char *out, bint is_last, Pages *pages,
) noexcept nogil:
    """Open the pages that lie in ``sealed`` as a whole. If there is a failure, ``out`` is zero as
    far as it was written, and ``done`` is where the module begins."""
    cdef Py_ssize_t step = 0, written
    while pages.done < size and not pages.failure:
        step = open_page(context, file_aad_size, sealed, size, out, pages)
        if not step:
            if is_last:
                pages.failure = FAILED_LENGTH
            break
        if step > 0:
            pages.done += step
    if pages.failure:
        written = min(size, pages.done + (step if step > 0 else size))
        wipe(out, written)
        forget_errors()


cdef Py_ssize_t open_page(
    GcmContext *context, Py_ssize_t file_aad_size, const unsigned char *sealed, Py_ssize_t size,
    unsigned char *out, Pages *pages,
) noexcept nogil:
    """Open the page at ``pages.done``. Return its size, 0 if it is not all there, or -1 if there is
    a failure."""
    cdef PageHead head
    cdef Py_ssize_t begin = pages.done, header, body, levels = 0, text_size
    cdef size_t aad_size, ordinals_size = 4 if pages.has_dictionary else 6
    cdef unsigned char *text
    cdef unsigned char *printed
    cdef int kind = DICTIONARY_PAGE_HEADER if pages.has_dictionary else DATA_PAGE_HEADER
    header = module_size(sealed + begin, size - begin)
    if header <= 0:
        return fail(pages, FAILED_LENGTH) if header else 0
    if not pages.has_dictionary:
        if pages.number > MAX_ORDINAL:
            return fail(pages, FAILED_NUMBER)
        pages.ordinals[4] = pages.number & 0xFF
        pages.ordinals[5] = pages.number >> 8
    # The header as it was, at the end of its place. It is printed again from the beginning on.
    text = out + begin + MODULE_OVERHEAD
    aad_size = put_place(context, file_aad_size, kind, pages.ordinals, ordinals_size)
    if not open_module(context, aad_size, sealed + begin, header, text, pages.is_shared):
        return fail(pages, FAILED_TAG)
    # Java's headers have zeros behind them.
    if not read_page_header(text, header - MODULE_OVERHEAD, &head):
        return fail(pages, FAILED_HEADER)
    if pages.has_dictionary != (head.kind == PAGE_OF_DICTIONARY) or not (
        pages.has_dictionary or head.kind == PAGE_OF_DATA or head.kind == PAGE_OF_DATA_V2
    ):
        return fail(pages, FAILED_KIND)
    begin += header
    if size - begin < LENGTH_SIZE:
        return 0
    if head.kind == PAGE_OF_DATA_V2 and LENGTH_SIZE + get_int32(sealed + begin) != head.stated_size:
        # In Java's pages of version 2, the levels come first and are unencrypted.
        levels = head.levels_size
        if levels < 0 or levels > head.stated_size:
            return fail(pages, FAILED_HEADER)
        if size - begin < levels + LENGTH_SIZE:
            return 0
    body = module_size(sealed + begin + levels, size - begin - levels)
    if not body and size - begin - levels >= LENGTH_SIZE:
        body = LENGTH_SIZE + <Py_ssize_t>get_int32(sealed + begin + levels)
        return 0 if levels + body == head.stated_size else fail(pages, FAILED_STATED_SIZE)
    if body <= 0:
        return fail(pages, FAILED_LENGTH) if body else 0
    if levels + body != head.stated_size:
        return fail(pages, FAILED_STATED_SIZE)
    text_size = levels + body - MODULE_OVERHEAD
    printed = print_page_header(out + pages.done, text, &head, text_size)
    text = out + begin + MODULE_OVERHEAD
    if not put_padding(printed, text - printed):
        return fail(pages, FAILED_HEADER)
    memcpy(text, sealed + begin, levels)
    aad_size = put_place(
        context, file_aad_size, DICTIONARY_PAGE if pages.has_dictionary else DATA_PAGE,
        pages.ordinals, ordinals_size,
    )
    if not open_module(
        context, aad_size, sealed + begin + levels, body, text + levels, pages.is_shared
    ):
        return fail(pages, FAILED_TAG)
    pages.modules += 2
    pages.levels_size += levels
    if pages.has_dictionary:
        pages.has_dictionary = False
    else:
        pages.number += 1
        pages.values += head.values
    return header + levels + body


cdef Py_ssize_t fail(Pages *pages, int failure) noexcept nogil:
    pages.failure = failure
    return -1


cdef object failed(int failure):
    if failure == FAILED_TAG:
        return AuthenticationError("a page does not verify: wrong key, or the file was changed")
    if failure == FAILED_LENGTH:
        return AuthenticationError("a page's length is impossible: the file was changed")
    if failure == FAILED_STATED_SIZE:
        return AuthenticationError(
            "a page is not as long as its header says: the file was changed"
        )
    if failure == FAILED_NUMBER:
        return FormatError("a column has more pages than an encrypted Parquet file can number")
    if failure == FAILED_KIND:
        return FormatError("a column has a page of an unknown type")
    return FormatError("the header of a page is not one that Parquet has")


# ---- many modules ------------------------------------------------------------------------------

cdef bint seal_all(
    GcmContext *context, Py_ssize_t file_aad_size, const Module *modules, size_t count,
    unsigned char *nonces, unsigned char *out,
) noexcept nogil:
    cdef size_t i, aad_size
    if not draw(nonces, count * NONCE_SIZE):
        return False
    for i in range(count):
        aad_size = put_place(
            context, file_aad_size, modules[i].kind, modules[i].ordinals, modules[i].ordinals_size
        )
        if not seal_module(
            context, aad_size, nonces + i * NONCE_SIZE,
            <const unsigned char *>modules[i].text.buf, modules[i].text.len, out,
        ):
            return False
        out += modules[i].text.len + MODULE_OVERHEAD
    return True


# ---- the pages of an unencrypted column chunk ---------------------------------------------------

cdef struct PlainPage:
    const unsigned char *at
    PageHead head
    size_t header_size  # in the new file, as text


cdef struct PlainPages:
    PlainPage pages[MAX_PAGES]
    size_t count
    bint has_dictionary
    Py_ssize_t size
    size_t sealed_size
    int failure


cdef void find_pages(
    const unsigned char *plain, Py_ssize_t size, bint may_have_dictionary, PlainPages *found
) noexcept nogil:
    """Find the pages at the beginning of ``plain``, about as many as ENOUGH bytes have."""
    cdef PlainPage *page
    cdef Py_ssize_t header_size
    found.count = found.size = found.sealed_size = found.failure = found.has_dictionary = 0
    while found.count < MAX_PAGES and found.sealed_size < ENOUGH and found.size < size:
        page = &found.pages[found.count]
        page.at = plain + found.size
        if not read_page_header(page.at, size - found.size, &page.head):
            found.failure = FAILED_HEADER
            return
        header_size = page.head.rest_end + 1 - page.at
        if not 0 <= page.head.stated_size <= min(
            size - found.size - header_size, <Py_ssize_t>INT_MAX - MODULE_OVERHEAD
        ):
            found.failure = FAILED_HEADER
            return
        if page.head.kind == PAGE_OF_DICTIONARY and may_have_dictionary and not found.count:
            found.has_dictionary = True
        elif page.head.kind != PAGE_OF_DATA:
            found.failure = FAILED_KIND
            return
        page.header_size = page.head.size_at - page.at + 1 + (
            page.head.rest_end - page.head.rest
        ) + varint_size(<uint64_t>(page.head.stated_size + MODULE_OVERHEAD) << 1)
        found.count += 1
        found.size += header_size + page.head.stated_size
        found.sealed_size += page.header_size + page.head.stated_size + 2 * MODULE_OVERHEAD


cdef size_t varint_size(uint64_t number) noexcept nogil:
    cdef size_t size = 1
    while number > 0x7F:
        number >>= 7
        size += 1
    return size


cdef bint seal_found(
    GcmContext *context, Py_ssize_t file_aad_size, const PlainPages *found,
    unsigned char *ordinals, Py_ssize_t number, unsigned char *out,
) noexcept nogil:
    """Seal pages. The first one of data has this ``number``."""
    cdef unsigned char nonces[2 * MAX_PAGES * 12]
    cdef const PlainPage *page
    cdef size_t i, aad_size, ordinals_size
    cdef bint is_dictionary
    if not draw(nonces, 2 * found.count * NONCE_SIZE):
        return False
    for i in range(found.count):
        page = &found.pages[i]
        is_dictionary = found.has_dictionary and not i
        ordinals_size = 4 if is_dictionary else 6
        ordinals[4] = number & 0xFF
        ordinals[5] = number >> 8
        number += not is_dictionary
        # The header is sealed in its place.
        print_page_header(
            out + LENGTH_SIZE + NONCE_SIZE, page.at, &page.head,
            page.head.stated_size + MODULE_OVERHEAD,
        )[0] = 0
        aad_size = put_place(
            context, file_aad_size, DICTIONARY_PAGE_HEADER if is_dictionary else DATA_PAGE_HEADER,
            ordinals, ordinals_size,
        )
        if not seal_module(
            context, aad_size, nonces + 2 * i * NONCE_SIZE, out + LENGTH_SIZE + NONCE_SIZE,
            page.header_size, out,
        ):
            return False
        out += page.header_size + MODULE_OVERHEAD
        aad_size = put_place(
            context, file_aad_size, DICTIONARY_PAGE if is_dictionary else DATA_PAGE, ordinals,
            ordinals_size,
        )
        if not seal_module(
            context, aad_size, nonces + (2 * i + 1) * NONCE_SIZE, page.head.rest_end + 1,
            page.head.stated_size, out,
        ):
            return False
        out += page.head.stated_size + MODULE_OVERHEAD
    return True


# ---- the cipher --------------------------------------------------------------------------------

cdef class ModuleCipher:
    """Seals and opens the modules of one file. ``file_aad`` is its AAD prefix and its id. Any
    number of threads may use it. It counts what it seals, as ``BlockCipher`` does."""

    def __cinit__(self, key, bytes file_aad):
        self._cipher = BlockCipher(key, file_aad + bytes(MAX_PLACE_SIZE))
        self._file_aad_size = PyBytes_GET_SIZE(file_aad)

    def __reduce__(self):
        raise TypeError("a ModuleCipher holds a key and cannot be pickled or copied")

    def seal(self, modules):
        """Return the sealed modules, one after the other. ``modules`` has of each its type, its
        ordinals and its text. Raises KeyReuseError in a forked child and after 2**32 modules,
        FormatError for a text that is too long."""
        cdef list given = list(modules)
        cdef list places = []  # they keep the ordinals alive
        cdef Py_ssize_t count = len(given), taken = 0, size = 0, i
        cdef unsigned char *nonces = NULL
        cdef Module *listed = <Module *>calloc(max(count, 1), sizeof(Module))
        cdef bytes ordinals
        try:
            nonces = <unsigned char *>malloc(max(count, 1) * NONCE_SIZE)
            if listed == NULL or nonces == NULL:
                raise MemoryError
            for kind, ordinals, text in given:
                check_place(ordinals)
                places.append(ordinals)
                listed[taken].kind = kind
                listed[taken].ordinals = <const unsigned char *>PyBytes_AS_STRING(ordinals)
                listed[taken].ordinals_size = PyBytes_GET_SIZE(ordinals)
                take_input(text, &listed[taken].text)
                taken += 1
                if listed[taken - 1].text.len > INT_MAX - MODULE_OVERHEAD:
                    raise FormatError("a page is longer than an encrypted Parquet file can have")
                size += listed[taken - 1].text.len + MODULE_OVERHEAD
            sealed = PyBytes_FromStringAndSize(NULL, size)
            self._seal(listed, count, nonces, <unsigned char *>PyBytes_AS_STRING(sealed), size)
            return sealed
        finally:
            for i in range(taken):
                PyBuffer_Release(&listed[i].text)
            free(listed)
            free(nonces)

    def seal_pages(
        self, plain, bytes ordinals, Py_ssize_t number, bint may_have_dictionary
    ):
        """Seal the pages (of version 1) at the beginning of ``plain``, which is the rest of an
        unencrypted column chunk. ``ordinals`` are the chunk's, ``number`` is that of the next page
        of data. ``may_have_dictionary`` says whether the first page may be a dictionary.

        Returns the bytes that were sealed, about 1 MiB; the sealed pages; their sizes; whether the
        first is a dictionary; the number of their values; and what they would have without
        compression (bytes). Checksums are left out. Raises as ``seal``, and FormatError for other
        pages.
        """
        cdef Py_buffer source
        cdef PlainPages found
        cdef unsigned char places[6]
        cdef unsigned char *out
        cdef const PlainPage *page
        cdef GcmContext *context
        cdef size_t i
        cdef int64_t values = 0, plain_size = 0
        cdef bint ok
        if PyBytes_GET_SIZE(ordinals) != 4:
            raise ValueError("a column chunk has two ordinals of two bytes each")
        memcpy(places, PyBytes_AS_STRING(ordinals), 4)
        take_input(plain, &source)
        try:
            find_pages(
                <const unsigned char *>source.buf, source.len, may_have_dictionary, &found
            )
            if not found.failure and (
                number + <Py_ssize_t>found.count - found.has_dictionary > MAX_ORDINAL + 1
            ):
                found.failure = FAILED_NUMBER
            if found.failure:
                raise failed(found.failure)
            sealed = PyBytes_FromStringAndSize(NULL, found.sealed_size)
            out = <unsigned char *>PyBytes_AS_STRING(sealed)
            self._cipher.claim(2 * found.count)
            context = self._cipher.borrow()
            with nogil:
                ok = seal_found(context, self._file_aad_size, &found, places, number, out)
                self._cipher.give_back(context)
                if not ok:
                    wipe(out, found.sealed_size)
            if not ok:
                raise libcrypto_error("OpenSSL could not encrypt")
        finally:
            PyBuffer_Release(&source)
        sizes = []
        for i in range(found.count):
            page = &found.pages[i]
            sizes.append(page.header_size + page.head.stated_size + 2 * MODULE_OVERHEAD)
            plain_size += page.header_size + MODULE_OVERHEAD + page.head.plain_size
            values += page.head.values
        return found.size, sealed, sizes, found.has_dictionary, values, plain_size

    cdef int _seal(
        self, const Module *modules, size_t count, unsigned char *nonces, unsigned char *out,
        size_t size,
    ) except -1:
        cdef bint ok
        self._cipher.claim(count)
        cdef GcmContext *context = self._cipher.borrow()
        with nogil:
            ok = seal_all(context, self._file_aad_size, modules, count, nonces, out)
            self._cipher.give_back(context)
            if not ok:
                wipe(out, size)
        if not ok:
            raise libcrypto_error("OpenSSL could not encrypt")
        return 0

    def open(self, int kind, bytes ordinals, module):
        """Return the plaintext of a module. Raises AuthenticationError unless it verifies at this
        place and is as long as it says."""
        cdef Py_buffer view
        cdef unsigned char *out
        cdef size_t aad_size
        cdef GcmContext *context
        cdef bint is_shared = not is_private_buffer(module)
        cdef int ok
        check_place(ordinals)
        take_input(module, &view)
        try:
            if module_size(<const unsigned char *>view.buf, view.len) != view.len:
                raise AuthenticationError("a module's length is impossible: the file was changed")
            text = PyBytes_FromStringAndSize(NULL, view.len - MODULE_OVERHEAD)
            out = <unsigned char *>PyBytes_AS_STRING(text)
            context = self._cipher.borrow()
            aad_size = put_place(
                context, self._file_aad_size, kind,
                <const unsigned char *>PyBytes_AS_STRING(ordinals), PyBytes_GET_SIZE(ordinals),
            )
            with nogil:
                ok = open_module(
                    context, aad_size, <const unsigned char *>view.buf, view.len, out, is_shared
                )
                self._cipher.give_back(context)
                if not ok:
                    wipe(out, view.len - MODULE_OVERHEAD)
                    forget_errors()
            if not ok:
                raise AuthenticationError(
                    "a module does not verify: wrong key, or the file was changed"
                )
            return text
        finally:
            PyBuffer_Release(&view)

    def open_pages(
        self, sealed, out, bytes ordinals, Py_ssize_t number, bint has_dictionary, bint is_last,
        bint is_private=False,
    ):
        """Open the pages of a column chunk, or of a part of it that begins with a page.

        ``sealed`` are the bytes of the file. Every page is written to the same place of ``out``,
        which has the same size. ``ordinals`` are the chunk's, ``number`` is that of the first page
        of data, and ``has_dictionary`` says whether a dictionary page comes first. With
        ``is_last``, ``sealed`` ends with the chunk; otherwise it may end within a page.
        ``is_private`` says that nobody else can change ``sealed`` meanwhile.

        Returns five numbers: the bytes that were opened, the pages of data, their values, the bytes
        of levels that are unauthenticated (Java's pages of version 2), and the modules. Raises
        AuthenticationError and FormatError, and then ``out`` is zero.
        """
        cdef Py_buffer source, target
        cdef Pages pages
        cdef GcmContext *context
        if PyBytes_GET_SIZE(ordinals) != 4:
            raise ValueError("a column chunk has two ordinals of two bytes each")
        memset(&pages, 0, sizeof(pages))
        memcpy(pages.ordinals, PyBytes_AS_STRING(ordinals), 4)
        pages.number = number
        pages.has_dictionary = has_dictionary
        pages.is_shared = not (is_private or is_private_buffer(sealed))
        take_input(sealed, &source)
        try:
            take_output(out, &target)
            try:
                if target.len < source.len:
                    raise ValueError(
                        f"the output needs {source.len} bytes and has {target.len}"
                    )
                context = self._cipher.borrow()
                with nogil:
                    open_all(
                        context, self._file_aad_size, <const unsigned char *>source.buf,
                        source.len, <unsigned char *>target.buf, is_last, &pages,
                    )
                    self._cipher.give_back(context)
            finally:
                PyBuffer_Release(&target)
        finally:
            PyBuffer_Release(&source)
        if pages.failure:
            error = failed(pages.failure)
            error.offset = pages.done
            raise error
        return pages.done, pages.number - number, pages.values, pages.levels_size, pages.modules


cdef int check_place(bytes ordinals) except -1:
    if PyBytes_GET_SIZE(ordinals) >= MAX_PLACE_SIZE:
        raise ValueError("a module has at most three ordinals of two bytes each")
    return 0

"""Values of Avro's binary encoding, one at a time, from bytes that are not trusted.

Nothing is read at or after ``Input.end``. Each function leaves ``Input.at`` after the value, or
returns another status than OK. Inline, for ``_avro`` alone.
"""

from libc.stdint cimport INT32_MAX, INT32_MIN, int64_t, uint64_t
from libc.string cimport memcpy

cdef extern from *:
    """
    typedef unsigned __int128 ags1_uint128;
    typedef __int128 ags1_int128;
    """
    # Cython must be given some width; C knows the real one.
    ctypedef unsigned long long uint128 "ags1_uint128"
    ctypedef long long int128 "ags1_int128"


cdef enum Status:
    OK
    CUT
    LONG_NUMBER
    RANGE
    NEGATIVE
    NOT_BOOLEAN
    NOT_UTF8
    DIGITS
    NO_SYMBOL
    NO_BRANCH
    NO_VALUE
    BLOCK_SIZE
    EMPTY_ITEMS
    TOO_MUCH
    NO_MEMORY


cdef struct Input:
    const unsigned char *at
    const unsigned char *end


cdef inline Status read_long(Input *source, int64_t *value) noexcept nogil:
    cdef const unsigned char *at = source.at
    cdef uint64_t raw = 0, byte
    cdef int shift = 0
    while True:
        if at == source.end:
            return CUT
        byte = at[0]
        at += 1
        # Only one bit of the tenth byte fits.
        if shift == 63 and byte > 1:
            return LONG_NUMBER
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    source.at = at
    value[0] = <int64_t>((raw >> 1) ^ (0 - (raw & 1)))
    return OK


cdef inline Status read_int(Input *source, int64_t *value) noexcept nogil:
    cdef Status status = read_long(source, value)
    if status == OK and not INT32_MIN <= value[0] <= INT32_MAX:
        return RANGE
    return status


cdef inline Status read_size(Input *source, int64_t *size) noexcept nogil:
    """Read the length of what follows, which must be there."""
    cdef Status status = read_long(source, size)
    if status != OK:
        return status
    if size[0] < 0:
        return NEGATIVE
    return CUT if size[0] > source.end - source.at else OK


cdef inline const unsigned char *read_bytes(Input *source, int64_t size) noexcept nogil:
    """Return where the next ``size`` bytes begin, and move after them; NULL if there are fewer.
    ``size`` is at least 0."""
    cdef const unsigned char *taken = source.at
    if size > source.end - taken:
        return NULL
    source.at += size
    return taken


cdef inline bint is_utf8(const unsigned char *at, size_t size) noexcept nogil:
    cdef const unsigned char *end = at + size
    cdef uint64_t word, seen
    cdef unsigned char lead, low, high
    cdef int more
    while end - at >= 32:
        seen = 0
        for more in range(4):
            memcpy(&word, at + 8 * more, 8)
            seen |= word
        if seen & <uint64_t>0x8080808080808080:
            break
        at += 32
    while at < end:
        lead = at[0]
        at += 1
        if lead < 0x80:
            continue
        # The range of the second byte excludes overlong forms, surrogates and all above U+10FFFF.
        low, high = 0x80, 0xBF
        if 0xC2 <= lead <= 0xDF:
            more = 1
        elif 0xE0 <= lead <= 0xEF:
            more = 2
            if lead == 0xE0:
                low = 0xA0
            elif lead == 0xED:
                high = 0x9F
        elif 0xF0 <= lead <= 0xF4:
            more = 3
            if lead == 0xF0:
                low = 0x90
            elif lead == 0xF4:
                high = 0x8F
        else:
            return False
        if end - at < more or not low <= at[0] <= high:
            return False
        at += 1
        more -= 1
        while more:
            if at[0] & 0xC0 != 0x80:
                return False
            at += 1
            more -= 1
    return True


cdef inline Status parse_decimal(
    const unsigned char *at, int64_t size, int128 limit, int128 *value
) noexcept nogil:
    """Parse a big-endian two's complement number of any width, nearer to zero than ``limit``."""
    cdef unsigned char sign
    cdef uint128 raw
    if size == 0:
        return DIGITS
    sign = 0xFF if at[0] & 0x80 else 0
    while size > 16:
        if at[0] != sign:
            return DIGITS
        at += 1
        size -= 1
    if (at[0] & 0x80) != (sign & 0x80):
        return DIGITS
    raw = 0
    if sign:
        raw = ~raw
    while size:
        raw = (raw << 8) | at[0]
        at += 1
        size -= 1
    value[0] = <int128>raw
    return OK if -limit < value[0] < limit else DIGITS

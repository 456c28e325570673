# The constants of layout.py for compiled code, and the byte order of its numbers.
from libc.stdint cimport uint32_t

cdef enum:
    HEADER_SIZE = 8
    NONCE_SIZE = 12
    TAG_SIZE = 16
    BLOCK_OVERHEAD = 28


cdef inline void put_int32(unsigned char *at, uint32_t number) noexcept nogil:
    at[0] = number & 0xff
    at[1] = (number >> 8) & 0xff
    at[2] = (number >> 16) & 0xff
    at[3] = number >> 24


cdef inline uint32_t get_int32(const unsigned char *at) noexcept nogil:
    return at[0] | <uint32_t>at[1] << 8 | <uint32_t>at[2] << 16 | <uint32_t>at[3] << 24

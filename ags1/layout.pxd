# The constants of layout.py that compiled code needs.
cdef enum:
    HEADER_SIZE = 8
    NONCE_SIZE = 12
    TAG_SIZE = 16
    BLOCK_OVERHEAD = 28

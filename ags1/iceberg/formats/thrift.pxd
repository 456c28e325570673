# How compiled code walks a structure without the GIL. Once something is wrong, ``fault`` says what,
# nothing is left to read, and all that is read is 0.
from libc.stdint cimport int64_t, uint64_t

cdef enum Kind:
    KIND_TRUE = 1
    KIND_FALSE
    KIND_BYTE
    KIND_I16
    KIND_I32
    KIND_I64
    KIND_DOUBLE
    KIND_BINARY
    KIND_LIST
    KIND_SET
    KIND_MAP
    KIND_STRUCT

cdef enum Fault:
    FAULT_END = 1
    FAULT_NUMBER
    FAULT_ORDER
    FAULT_KIND
    FAULT_DEPTH

cdef enum:
    MAX_DEPTH = 32
    LONG_LIST = 15
    MAX_FIELD_ID = 0x7FFF

cdef struct Cursor:
    const unsigned char *begin
    const unsigned char *at
    const unsigned char *end
    int fault


cdef inline void set_fault(Cursor *source, int fault) noexcept nogil:
    if not source.fault:
        source.fault = fault
    source.at = source.end


cdef inline int read_byte(Cursor *source) noexcept nogil:
    if source.at == source.end:
        set_fault(source, FAULT_END)
        return 0
    source.at += 1
    return (source.at - 1)[0]


cdef inline uint64_t read_varint(Cursor *source) noexcept nogil:
    cdef uint64_t number = 0, byte
    cdef int shift = 0
    while True:
        byte = read_byte(source)
        if shift == 63 and byte > 1:
            set_fault(source, FAULT_NUMBER)
        if source.fault:
            return 0
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number
        shift += 7


cdef inline int64_t read_integer(Cursor *source) noexcept nogil:
    cdef uint64_t number = read_varint(source)
    return <int64_t>(number >> 1) ^ -<int64_t>(number & 1)


cdef inline int64_t read_short_integer(Cursor *source, int kind) noexcept nogil:
    # An I32 or an I16.
    cdef int64_t number = read_integer(source)
    cdef int64_t limit = <int64_t>1 << (31 if kind == KIND_I32 else 15)
    if not -limit <= number < limit:
        set_fault(source, FAULT_NUMBER)
        return 0
    return number


cdef inline int next_field(Cursor *source, int64_t *field_id) noexcept nogil:
    # Returns the type of a struct's next field, and 0 at its end. ``field_id`` has the last field's
    # id, at first 0. All writers print fields in the order of their ids, and each once.
    cdef int header = read_byte(source)
    cdef int64_t last = field_id[0]
    if not header:
        return 0
    field_id[0] = last + (header >> 4) if header >> 4 else read_integer(source)
    if not last < field_id[0] <= MAX_FIELD_ID:
        set_fault(source, FAULT_ORDER)
        return 0
    return header & 0x0F


cdef void skip_value(Cursor *source, int kind, int depth) noexcept nogil

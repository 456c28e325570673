# cython: cdivision=True
"""Rows of an Avro block into Arrow's memory, without the GIL.

A ``Decoder`` runs a program: one step for each type in the writer's schema, in the order in which
its values lie in a row, each with the column that takes the value, or none to skip it. Knows
nothing of schemas, files or codecs; ``iceberg.avro_projection`` makes the programs. Follows Avro's
binary encoding and Arrow's columnar format.

The bytes are not trusted: each length, count, index and number is checked before it is used, and
memory grows only by what was really read or by the width of a column for a null. A program is
trusted once its ranges have been checked; its depth, which is the depth of the recursion here, is
for its maker to limit.
"""

from cpython.buffer cimport (
    PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer,
)
from libc.stdint cimport INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, int32_t, int64_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy, memset

from ...errors import FormatError

cdef extern from *:
    """
    typedef unsigned __int128 ags1_uint128;
    typedef __int128 ags1_int128;
    """
    # Cython has to believe in some width; C knows the real one.
    ctypedef unsigned long long uint128 "ags1_uint128"
    ctypedef long long int128 "ags1_int128"


cpdef enum Step:
    """What a step of a program reads, and what its parameters a and b are."""

    # No bytes, no column.
    NOTHING
    BOOLEAN
    # Numbers: those of 32 bits must fit; SCALED is multiplied by a and, unless b is 0, is then no
    # less than 0 and less than b.
    INT
    INT_AS_LONG
    LONG
    SCALED
    FLOAT
    FLOAT_AS_DOUBLE
    DOUBLE
    BYTES
    STRING
    # a bytes.
    FIXED
    # A number of at most b decimal digits, in bytes or in a bytes.
    DECIMAL_BYTES
    DECIMAL_FIXED
    # One of b symbols, the first of which is number a of the decoder's.
    ENUM
    # The steps inside, one after the other.
    RECORD
    # Blocks of items; the steps inside read one.
    LIST
    # A union of null, branch number a (0 or 1), and the step inside.
    OPTION
    # A union of nothing but the step inside.
    ONLY


cpdef enum Layout:
    """How a column lies in memory. The columns inside follow it."""

    BITS
    # Some bytes each.
    WIDE
    # Bytes with 64-bit offsets.
    VARIABLE
    # 64-bit and 32-bit offsets.
    LARGE_LIST
    SMALL_LIST
    # Nothing of its own.
    STRUCT


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

PROBLEMS = {
    CUT: "the block ends inside it",
    LONG_NUMBER: "a number has more than 64 bits",
    RANGE: "a number does not fit its type",
    NEGATIVE: "a length is negative",
    NOT_BOOLEAN: "a boolean is neither 0 nor 1",
    NOT_UTF8: "a string is not UTF-8",
    DIGITS: "a decimal has no digits or more than its type",
    NO_SYMBOL: "an enum has no such symbol",
    NO_BRANCH: "a union has no such branch",
    NO_VALUE: "null, but the table requires a value",
    BLOCK_SIZE: "a block of items has another size than it says",
    EMPTY_ITEMS: "too many items of no bytes",
    TOO_MUCH: "more in one batch than a column can hold",
}

cdef enum:
    # Items of a batch and rows of a block that take no bytes: they cost nothing to claim.
    MAX_EMPTY_ITEMS = 1 << 24
    # How often, in rows, in items and in bytes read, the size of the batch is looked at.
    ROWS_BETWEEN_LOOKS = 64
    ITEMS_BETWEEN_LOOKS = 1 << 12
    BYTES_BETWEEN_LOOKS = 1 << 20
    # What an item of a list costs at least, where it has a column that is not in the file.
    ITEM_SIZE = 8
    MAX_DIGITS = 38

# Of one of a column's buffers. Batches end long before, unless a single row holds more.
cdef size_t MAX_BUFFER_SIZE = <size_t>4 << 30
# Of all columns, beyond the size of the block: a null of one byte may be wide.
cdef size_t MAX_BATCH_SIZE = <size_t>1 << 30

cdef int128 POWERS[MAX_DIGITS + 1]


cdef void fill_powers() noexcept:
    cdef int n
    POWERS[0] = 1
    for n in range(1, MAX_DIGITS + 1):
        POWERS[n] = POWERS[n - 1] * 10

fill_powers()


cdef struct Op:
    Step step
    int end
    int column
    int64_t a
    int64_t b

cdef struct Growing:
    unsigned char *data
    size_t size
    size_t capacity
    # What the batch before needed.
    size_t hint

cdef struct Column:
    Layout layout
    int end
    size_t width
    bint nullable
    int64_t length
    int64_t nulls
    Growing validity
    Growing offsets
    Growing data

cdef struct Symbol:
    const unsigned char *text
    Py_ssize_t size

cdef struct State:
    const unsigned char *at
    const unsigned char *end
    # How many more rows of the block may have no bytes.
    int64_t empty_rows_left
    # Of the batch: how many more items may have no bytes, and how many items lists have.
    int64_t empty_left
    int64_t items
    size_t block_size
    int failed_op
    int op_count
    int column_count
    Op *ops
    Column *columns
    Symbol *symbols


# -- reading

cdef inline Status read_long(State *s, int64_t *value) noexcept nogil:
    cdef const unsigned char *at = s.at
    cdef uint64_t raw = 0, byte
    cdef int shift = 0
    while True:
        if at == s.end:
            return CUT
        byte = at[0]
        at += 1
        # The tenth byte has one bit left to give.
        if shift == 63 and byte > 1:
            return LONG_NUMBER
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    s.at = at
    value[0] = <int64_t>((raw >> 1) ^ (0 - (raw & 1)))
    return OK


cdef inline Status read_int(State *s, int64_t *value) noexcept nogil:
    cdef Status status = read_long(s, value)
    if status == OK and not INT32_MIN <= value[0] <= INT32_MAX:
        return RANGE
    return status


cdef inline Status read_size(State *s, int64_t *size) noexcept nogil:
    """Read the length of what follows."""
    cdef Status status = read_long(s, size)
    if status != OK:
        return status
    if size[0] < 0:
        return NEGATIVE
    return CUT if size[0] > s.end - s.at else OK


cdef inline const unsigned char *read_bytes(State *s, int64_t size) noexcept nogil:
    """Return where the next ``size`` bytes lie and pass them, or NULL. ``size`` is no less than 0.
    """
    cdef const unsigned char *found = s.at
    if size > s.end - found:
        return NULL
    s.at += size
    return found


cdef bint is_utf8(const unsigned char *at, size_t size) noexcept nogil:
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
        # The second byte's range keeps out overlong forms, surrogates and what is past U+10FFFF.
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


cdef Status parse_decimal(const unsigned char *at, int64_t size, int64_t digits, int128 *value) \
        noexcept nogil:
    """Parse a big-endian two's complement number, of any width, with at most ``digits`` digits."""
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
    return OK if -POWERS[digits] < value[0] < POWERS[digits] else DIGITS


# -- writing

cdef Status grow(Growing *b, size_t extra) noexcept nogil:
    cdef size_t capacity
    cdef void *data
    if extra > MAX_BUFFER_SIZE - b.size:
        return TOO_MUCH
    capacity = max(max(b.size + extra, 2 * b.capacity), max(b.hint, <size_t>64))
    data = realloc(b.data, capacity)
    if data == NULL:
        return NO_MEMORY
    b.data = <unsigned char *>data
    b.capacity = capacity
    return OK


cdef inline Status reserve(Growing *b, size_t extra) noexcept nogil:
    return OK if extra <= b.capacity - b.size else grow(b, extra)


cdef inline Status put(Growing *b, const void *value, size_t size) noexcept nogil:
    cdef Status status = reserve(b, size)
    # There may be no memory yet to copy nothing to.
    if status == OK and size:
        memcpy(b.data + b.size, value, size)
        b.size += size
    return status


cdef inline Status put_bit(Growing *b, int64_t index, bint value) noexcept nogil:
    """Set the bit at ``index``, which is at most one after the last."""
    cdef size_t byte = <size_t>(index >> 3)
    cdef unsigned char mask = 1 << (index & 7)
    cdef Status status
    if byte == b.size:
        status = reserve(b, 1)
        if status != OK:
            return status
        b.data[byte] = 0
        b.size += 1
    if value:
        b.data[byte] |= mask
    else:
        b.data[byte] &= ~mask
    return OK


cdef Status put_offset(Column *c, int64_t end) noexcept nogil:
    """End the value at ``end``; the first value begins at 0."""
    cdef int64_t zero = 0
    cdef int32_t end32
    cdef size_t size = sizeof(int32_t) if c.layout == SMALL_LIST else sizeof(int64_t)
    cdef Status status = OK
    if c.offsets.size == 0:
        status = put(&c.offsets, &zero, size)
    if status != OK:
        return status
    if c.layout == SMALL_LIST:
        if end > INT32_MAX:
            return TOO_MUCH
        end32 = <int32_t>end
        return put(&c.offsets, &end32, sizeof(end32))
    return put(&c.offsets, &end, sizeof(end))


cdef inline Status added(Column *c) noexcept nogil:
    """Count a value that is not null. There is a bitmap only from the first null on."""
    cdef Status status = OK
    if c.nulls:
        status = put_bit(&c.validity, c.length, True)
    c.length += 1
    return status


cdef Status add_null(Column *c) noexcept nogil:
    cdef size_t before
    cdef Status status
    if not c.nulls:
        before = <size_t>((c.length + 7) >> 3)
        status = reserve(&c.validity, before + 1)
        if status != OK:
            return status
        memset(c.validity.data, 0xFF, before)
        c.validity.size = before
    status = put_bit(&c.validity, c.length, False)
    c.nulls += 1
    c.length += 1
    return status


cdef Status add_blank(State *s, int index) noexcept nogil:
    """Add what stands in for no value: null, or zeros in a column of values under a null."""
    cdef Column *c = &s.columns[index]
    cdef Status status = OK
    cdef int inside
    if c.layout == BITS:
        status = put_bit(&c.data, c.length, False)
    elif c.layout == WIDE:
        status = reserve(&c.data, c.width)
        if status == OK and c.width:
            memset(c.data.data + c.data.size, 0, c.width)
            c.data.size += c.width
    elif c.layout == VARIABLE:
        status = put_offset(c, <int64_t>c.data.size)
    elif c.layout == STRUCT:
        inside = index + 1
        while status == OK and inside < c.end:
            status = add_blank(s, inside)
            inside = s.columns[inside].end
    else:
        status = put_offset(c, last_offset(c))
    if status != OK:
        return status
    return add_null(c) if c.nullable else added(c)


cdef inline int64_t last_offset(const Column *c) noexcept nogil:
    cdef int32_t end32
    cdef int64_t end
    if c.offsets.size == 0:
        return 0
    if c.layout == SMALL_LIST:
        memcpy(&end32, c.offsets.data + c.offsets.size - sizeof(end32), sizeof(end32))
        return end32
    memcpy(&end, c.offsets.data + c.offsets.size - sizeof(end), sizeof(end))
    return end


cdef inline Status add(Column *c, const void *value, size_t size) noexcept nogil:
    cdef Status status = put(&c.data, value, size)
    return added(c) if status == OK else status


cdef inline Status add_variable(Column *c, const void *value, size_t size) noexcept nogil:
    cdef Status status = put(&c.data, value, size)
    if status == OK:
        status = put_offset(c, <int64_t>c.data.size)
    return added(c) if status == OK else status


# -- the steps

cdef inline Status run_number(State *s, const Op *op, Column *c) noexcept nogil:
    cdef int64_t value = 0
    cdef int32_t value32
    cdef Status status
    if op.step == INT or op.step == INT_AS_LONG:
        status = read_int(s, &value)
    else:
        status = read_long(s, &value)
    if status != OK or c == NULL:
        return status
    if op.step == INT:
        value32 = <int32_t>value
        return add(c, &value32, sizeof(value32))
    if op.step == SCALED:
        if not -(INT64_MAX // op.a) <= value <= INT64_MAX // op.a:
            return RANGE
        value *= op.a
        if op.b and not 0 <= value < op.b:
            return RANGE
    return add(c, &value, sizeof(value))


cdef inline Status run_plain(State *s, int64_t size, Column *c) noexcept nogil:
    """Values that Arrow keeps as Avro does."""
    cdef const unsigned char *value = read_bytes(s, size)
    if value == NULL:
        return CUT
    return OK if c == NULL else add(c, value, <size_t>size)


cdef inline Status run_float_as_double(State *s, Column *c) noexcept nogil:
    cdef const unsigned char *found = read_bytes(s, sizeof(float))
    cdef float single
    cdef double value
    if found == NULL:
        return CUT
    if c == NULL:
        return OK
    memcpy(&single, found, sizeof(single))
    value = single
    return add(c, &value, sizeof(value))


cdef inline Status run_boolean(State *s, Column *c) noexcept nogil:
    cdef const unsigned char *value = read_bytes(s, 1)
    cdef Status status
    if value == NULL:
        return CUT
    if value[0] > 1:
        return NOT_BOOLEAN
    if c == NULL:
        return OK
    status = put_bit(&c.data, c.length, value[0])
    return added(c) if status == OK else status


cdef inline Status run_variable(State *s, const Op *op, Column *c) noexcept nogil:
    cdef int64_t size = 0
    cdef const unsigned char *value
    cdef Status status = read_size(s, &size)
    if status != OK:
        return status
    value = read_bytes(s, size)
    if c == NULL:
        return OK
    if op.step == STRING and not is_utf8(value, <size_t>size):
        return NOT_UTF8
    return add_variable(c, value, <size_t>size)


cdef Status run_decimal(State *s, const Op *op, Column *c) noexcept nogil:
    cdef int64_t size = op.a
    cdef const unsigned char *found
    cdef int128 value = 0
    cdef Status status = OK
    if op.step == DECIMAL_BYTES:
        status = read_size(s, &size)
    if status != OK:
        return status
    found = read_bytes(s, size)
    if found == NULL:
        return CUT
    if c == NULL:
        return OK
    status = parse_decimal(found, size, op.b, &value)
    return add(c, &value, 16) if status == OK else status


cdef Status run_enum(State *s, const Op *op, Column *c) noexcept nogil:
    cdef int64_t number = 0
    cdef const Symbol *symbol
    cdef Status status = read_long(s, &number)
    if status != OK:
        return status
    if not 0 <= number < op.b:
        return NO_SYMBOL
    if c == NULL:
        return OK
    symbol = &s.symbols[op.a + number]
    return add_variable(c, symbol.text, <size_t>symbol.size)


cdef Status run_inside(State *s, int index, int end) noexcept nogil:
    cdef Status status = OK
    while status == OK and index < end:
        status = run(s, index)
        index = s.ops[index].end
    return status


cdef Status run_list(State *s, int index, Column *c) noexcept nogil:
    cdef int end = s.ops[index].end
    cdef int64_t count = 0, size = 0, items = 0, _n
    cdef const unsigned char *block_end
    cdef const unsigned char *before
    cdef Status status
    while True:
        status = read_long(s, &count)
        if status != OK or count == 0:
            break
        block_end = NULL
        if count < 0:
            if count == INT64_MIN:
                return RANGE
            count = -count
            status = read_size(s, &size)
            if status != OK:
                return status
            block_end = s.at + size
            if c == NULL:
                s.at = block_end
                continue
        for _n in range(count):
            before = s.at
            status = run_inside(s, index + 1, end)
            if status != OK:
                return status
            if s.at == before:
                if s.empty_left == 0:
                    return EMPTY_ITEMS
                s.empty_left -= 1
            if c != NULL:
                s.items += 1
                if s.items % ITEMS_BETWEEN_LOOKS:
                    continue
                if size_of(s) > MAX_BATCH_SIZE + s.block_size:
                    return TOO_MUCH
        items += count
        if block_end != NULL and s.at != block_end:
            return BLOCK_SIZE
    if status != OK or c == NULL:
        return status
    status = put_offset(c, last_offset(c) + items)
    return added(c) if status == OK else status


cdef Status run(State *s, int index) noexcept nogil:
    """Read one value. ``failed_op`` tells of the innermost step that could not."""
    cdef int64_t branch = 0
    cdef Status status = OK
    cdef const Op *op = &s.ops[index]
    cdef Column *c
    while op.step == OPTION or op.step == ONLY:
        status = read_long(s, &branch)
        if status != OK:
            break
        if op.step == OPTION and branch == op.a:
            if op.column < 0:
                return OK
            if s.columns[op.column].nullable:
                status = add_blank(s, op.column)
                if status == OK:
                    return OK
            else:
                status = NO_VALUE
            break
        if branch != (1 - op.a if op.step == OPTION else 0):
            status = NO_BRANCH
            break
        index += 1
        op = &s.ops[index]
    if status == OK:
        c = &s.columns[op.column] if op.column >= 0 else NULL
        if op.step == INT or op.step == INT_AS_LONG or op.step == LONG or op.step == SCALED:
            status = run_number(s, op, c)
        elif op.step == STRING or op.step == BYTES:
            status = run_variable(s, op, c)
        elif op.step == DOUBLE:
            status = run_plain(s, sizeof(double), c)
        elif op.step == FLOAT:
            status = run_plain(s, sizeof(float), c)
        elif op.step == FLOAT_AS_DOUBLE:
            status = run_float_as_double(s, c)
        elif op.step == BOOLEAN:
            status = run_boolean(s, c)
        elif op.step == FIXED:
            status = run_plain(s, op.a, c)
        elif op.step == DECIMAL_BYTES or op.step == DECIMAL_FIXED:
            status = run_decimal(s, op, c)
        elif op.step == RECORD:
            status = run_inside(s, index + 1, op.end)
            if status == OK and c != NULL:
                status = added(c)
        elif op.step == LIST:
            status = run_list(s, index, c)
        elif op.step == ENUM:
            status = run_enum(s, op, c)
    if status != OK and s.failed_op < 0:
        s.failed_op = index
    return status


cdef size_t size_of(const State *s) noexcept nogil:
    """Return what the batch takes, near enough."""
    cdef size_t size = <size_t>s.items * ITEM_SIZE
    cdef int n
    for n in range(s.column_count):
        size += s.columns[n].data.size + s.columns[n].offsets.size
    return size


cdef Status run_rows(State *s, int64_t most_rows, size_t enough, int64_t *rows) noexcept nogil:
    """Read up to ``most_rows``, one at least, until the columns hold ``enough`` bytes."""
    cdef const unsigned char *looked_at = s.at
    cdef const unsigned char *before
    cdef Status status
    while rows[0] < most_rows:
        before = s.at
        status = run(s, 0)
        if status != OK:
            return status
        rows[0] += 1
        if s.at == before:
            if s.empty_rows_left == 0:
                return EMPTY_ITEMS
            s.empty_rows_left -= 1
        if s.at - looked_at >= BYTES_BETWEEN_LOOKS or rows[0] % ROWS_BETWEEN_LOOKS == 0:
            if size_of(s) >= enough:
                break
            looked_at = s.at
    return OK


# -- Python's side

cdef class Memory:
    """One buffer of a column, for Arrow to look at. It is freed with the last array over it."""

    cdef unsigned char *data
    cdef Py_ssize_t size

    def __dealloc__(self):
        free(self.data)

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.data, self.size, 1, flags)


cdef Memory take(Growing *b):
    """Hand out what was written; None if that is nothing."""
    cdef Memory memory
    cdef void *data
    if b.size == 0:
        return None
    memory = Memory.__new__(Memory)
    memory.size = <Py_ssize_t>b.size
    memory.data = b.data
    if b.capacity - b.size > b.size // 4:
        data = realloc(b.data, b.size)
        if data != NULL:
            memory.data = <unsigned char *>data
    b.hint = b.size
    b.data = NULL
    b.size = b.capacity = 0
    return memory


cdef class Decoder:
    """Runs a program over blocks and keeps the columns until they are taken.

    ``program`` has a tuple for each step: Step, the end of the steps inside (its own number plus 1
    if there are none), column or -1, a, b. ``columns`` has one for each column: Layout, width in
    bytes, nullable, the end of the columns inside. ``names`` says for each step how to call it in
    messages. ``symbols`` are those of all enums, in UTF-8. For one thread at a time.
    """

    cdef State _state
    cdef Py_buffer _block
    cdef bint _attached
    cdef bint _busy
    cdef bint _broken
    cdef tuple _names
    cdef tuple _symbols
    cdef readonly long long rows_left

    def __cinit__(self, program, columns, names, symbols):
        cdef int n
        cdef Op *op
        cdef Column *c
        cdef const unsigned char[::1] text
        self._names = tuple(names)
        self._symbols = tuple(symbols)
        cdef int ops = len(program), count = len(columns), symbol_count = len(self._symbols)
        if not 0 < ops == len(self._names):
            raise ValueError("a program has at least one step, and a name for each")
        self._state.ops = <Op *>calloc(ops, sizeof(Op))
        self._state.columns = <Column *>calloc(count + 1, sizeof(Column))
        self._state.symbols = <Symbol *>calloc(symbol_count + 1, sizeof(Symbol))
        if not (self._state.ops and self._state.columns and self._state.symbols):
            raise MemoryError
        self._state.op_count, self._state.column_count = ops, count
        self._state.empty_left = MAX_EMPTY_ITEMS
        for n in range(ops):
            op = &self._state.ops[n]
            op.step, op.end, op.column, op.a, op.b = program[n]
        for n in range(count):
            c = &self._state.columns[n]
            c.layout, c.width, c.nullable, c.end = columns[n]
        for n in range(symbol_count):
            text = self._symbols[n]
            # A symbol is an Avro name, which is never empty.
            self._state.symbols[n].text = &text[0]
            self._state.symbols[n].size = text.shape[0]
        self._check(symbol_count)

    cdef _check(self, int symbol_count):
        """Raise ValueError unless no step can leave the program, the columns or the symbols."""
        cdef State *s = &self._state
        cdef Op *op
        cdef int n
        for n in range(s.op_count):
            op = &s.ops[n]
            inside = op.end - n - 1
            sound = 0 <= inside <= s.op_count - n - 1 and -1 <= op.column < s.column_count
            if op.step == OPTION or op.step == ONLY:
                sound = sound and inside > 0 and 0 <= op.a <= 1
            elif op.step == SCALED:
                sound = sound and op.a > 0 and op.b >= 0
            elif op.step == FIXED or op.step == DECIMAL_FIXED:
                sound = sound and op.a >= 0
            elif op.step == ENUM:
                sound = sound and 0 <= op.a and 0 <= op.b <= symbol_count - op.a
            if op.step == DECIMAL_BYTES or op.step == DECIMAL_FIXED:
                sound = sound and 0 <= op.b <= MAX_DIGITS
            if not sound:
                raise ValueError(f"step {n} of the program is not sound")
        for n in range(s.column_count):
            if not n < s.columns[n].end <= s.column_count:
                raise ValueError(f"column {n} is not sound")

    def __dealloc__(self):
        cdef int n
        if self._attached:
            PyBuffer_Release(&self._block)
        if self._state.columns:
            for n in range(self._state.column_count):
                free(self._state.columns[n].validity.data)
                free(self._state.columns[n].offsets.data)
                free(self._state.columns[n].data.data)
        free(self._state.ops)
        free(self._state.columns)
        free(self._state.symbols)

    def begin(self, block, long long rows):
        """Have ``block``, some bytes, read next, which are said to hold ``rows`` rows.

        Raises ValueError unless the block before has been read to its end.
        """
        if self._busy or self._broken or self.rows_left:
            raise ValueError("the block before has not been read to its end")
        if rows < 0:
            raise FormatError("a block has a negative count of rows")
        self._drop_block()
        PyObject_GetBuffer(block, &self._block, PyBUF_SIMPLE)
        self._attached = True
        self._state.at = <const unsigned char *>self._block.buf
        self._state.end = self._state.at + self._block.len
        self._state.block_size = <size_t>self._block.len
        self._state.empty_rows_left = MAX_EMPTY_ITEMS
        self.rows_left = rows
        if rows == 0:
            self._check_end()

    def decode(self, long long most_rows, long long enough):
        """Read up to ``most_rows`` of the block, but stop when the columns hold ``enough`` bytes;
        return the count of rows read.

        Raises FormatError, after which the decoder is of no more use, for bytes that are no such
        rows.
        """
        cdef int64_t rows = 0
        cdef Status status
        cdef int64_t most = min(most_rows, self.rows_left)
        if self._busy or self._broken:
            raise ValueError("the decoder is in use, or has failed")
        if enough < 0:
            raise ValueError("enough may not be negative")
        self._state.failed_op = -1
        self._busy = True
        with nogil:
            status = run_rows(&self._state, most, <size_t>enough, &rows)
        self._busy = False
        self.rows_left -= rows
        if status != OK:
            self._broken = True
            self._drop_block()
            if status == NO_MEMORY:
                raise MemoryError
            name = self._names[max(self._state.failed_op, 0)]
            raise FormatError(f"{name}: {PROBLEMS[status]}")
        if self.rows_left == 0:
            self._check_end()
        return rows

    cdef _check_end(self):
        left = self._state.end - self._state.at
        self._drop_block()
        if left:
            self._broken = True
            raise FormatError(f"a block has {left} bytes after its last row")

    cdef _drop_block(self):
        self._state.at = self._state.end = NULL
        if self._attached:
            self._attached = False
            PyBuffer_Release(&self._block)

    def take(self):
        """Return, for each column, its length, its nulls and three buffers, None where they are
        empty: validity, offsets, data. The columns begin anew."""
        cdef Column *c
        cdef int n
        if self._busy or self._broken:
            raise ValueError("the decoder is in use, or has failed")
        taken = []
        # If memory runs out midway, some columns count values that they no longer hold.
        self._broken = True
        for n in range(self._state.column_count):
            c = &self._state.columns[n]
            taken.append(
                (c.length, c.nulls, take(&c.validity), take(&c.offsets), take(&c.data))
            )
            c.length = c.nulls = 0
        self._state.empty_left = MAX_EMPTY_ITEMS
        self._state.items = 0
        self._broken = False
        return taken

# cython: cdivision=True
"""Reads the rows of an Avro block into Arrow's memory, without the GIL.

A ``Decoder`` runs a program. It has one instruction for each type in the file's schema, in the
order of the values in a row. An example: the file has records of ``id`` (long) and ``name`` (a
union of null and string); the table wants both.

    instruction   column   end   what it reads                    columns
    0 RECORD          -1     4   instructions 1 to 3              0  WIDE, 8 bytes
    1 LONG             0     2   a number                         1  VARIABLE, nullable
    2 OPTION           1     4   a branch; 0 is null, 1 goes on
    3 STRING           1     4   a size and as many bytes

    rows          bytes
    (1, "ab")     02    02 04 61 62      numbers are zigzag: 02 is 1, branch 1, size 04 is 2
    (-2, null)    03    00               03 is -2, branch 0

    column 0      data      01 00 00 00 00 00 00 00  fe ff ff ff ff ff ff ff
    column 1      validity  bits 1 0      (the second value is null)
                  offsets   0 2 2      data  61 62

An instruction without a column (-1) skips its value, or only holds others, as a row does.
Independent of schemas, files and codecs; ``projection`` makes the programs. ``_values`` reads
single values, and ``_columns`` adds them to columns. Follows Avro's binary encoding.

The bytes are not trusted. Each length, count, index and number is checked before it is used. Memory
grows only by the bytes that were read, or for a null by the width of its column. A program is
trusted after its ranges are checked. Its depth is the depth of the recursion here; whoever makes
the program limits it.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport INT64_MAX, INT64_MIN, int32_t, int64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from ._columns cimport (
    Column, Layout, add, add_blank, add_variable, added, last_offset, put_bit, put_offset, take,
)
from ._values cimport (
    BLOCK_SIZE, CUT, DIGITS, EMPTY_ITEMS, LONG_NUMBER, NEGATIVE, NO_BRANCH, NO_MEMORY, NO_SYMBOL,
    NO_VALUE, NOT_BOOLEAN, NOT_UTF8, OK, RANGE, TOO_MUCH, Input, Status, int128, is_utf8,
    parse_decimal, read_bytes, read_int, read_long, read_size,
)

from dataclasses import dataclass

from ...errors import FormatError


cpdef enum Step:
    """What an instruction reads, and which of its parameters count."""

    # No bytes, no column.
    NOTHING
    BOOLEAN
    # Numbers. Those of 32 bits must fit. SCALED is multiplied by ``factor`` and, unless ``below``
    # is 0, must then be at least 0 and less than ``below``.
    INT
    INT_AS_LONG
    LONG
    SCALED
    FLOAT
    FLOAT_AS_DOUBLE
    DOUBLE
    BYTES
    STRING
    # ``size`` bytes.
    FIXED
    # A number of at most ``digits`` decimal digits, in bytes or in ``size`` bytes.
    DECIMAL_BYTES
    DECIMAL_FIXED
    # One of ``symbol_count`` symbols, of which the first is the decoder's ``first_symbol``.
    ENUM
    # The instructions inside, one after the other.
    RECORD
    # Blocks of items; the instructions inside read one.
    LIST
    # A union: branch ``null_branch`` (0 or 1) is null, the other is the instruction inside.
    OPTION
    # A union with one branch, the instruction inside.
    ONLY


@dataclass(slots=True)
class Instruction:
    """A part of a program. ``name`` is what messages call the value.

    ``end`` is the number of the instruction after those inside this one: the next if there are
    none inside.
    """

    step: Step
    name: str
    end: int
    column: int = -1
    null_branch: int = 0
    size: int = 0
    digits: int = 0
    factor: int = 1
    below: int = 0
    first_symbol: int = 0
    symbol_count: int = 0


@dataclass(slots=True)
class ColumnLayout:
    """A column to fill. ``end`` is the number of the column after those inside it; ``width`` is in
    bytes, for WIDE alone."""

    layout: Layout
    end: int
    width: int = 0
    nullable: bool = False


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
    # The most items of a batch, and rows of a block, that have no bytes. A few false bytes could
    # claim any number of them.
    MAX_EMPTY_ITEMS = 1 << 24
    # The size of the batch is computed again after this number of rows, items and bytes.
    ROWS_BETWEEN_LOOKS = 64
    ITEMS_BETWEEN_LOOKS = 1 << 12
    BYTES_BETWEEN_LOOKS = 1 << 20
    # An item of a list counts as this many bytes at least: some of its columns may not be in the
    # file.
    ITEM_SIZE = 8
    MAX_DIGITS = 38

# The most bytes of all columns, besides the size of the block: a null has one byte in the file, but
# may have many in its column.
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
    int null_branch
    int digits
    int first_symbol
    int symbol_count
    int64_t size
    int64_t factor
    int64_t below

cdef struct Symbol:
    const unsigned char *text
    Py_ssize_t size

cdef struct State:
    Input input
    # How many more rows of the block may have no bytes.
    int64_t empty_rows_left
    # How many more items of the batch may have no bytes, and how many items its lists have.
    int64_t empty_left
    int64_t items
    size_t block_size
    int failed_op
    int op_count
    int column_count
    Op *ops
    Column *columns
    Symbol *symbols


# -- the steps

cdef inline Status run_number(State *s, const Op *op, Column *c) noexcept nogil:
    cdef int64_t value = 0
    cdef int32_t value32
    cdef Status status
    if op.step == INT or op.step == INT_AS_LONG:
        status = read_int(&s.input, &value)
    else:
        status = read_long(&s.input, &value)
    if status != OK or c == NULL:
        return status
    if op.step == INT:
        value32 = <int32_t>value
        return add(c, &value32, sizeof(value32))
    if op.step == SCALED:
        if not -(INT64_MAX // op.factor) <= value <= INT64_MAX // op.factor:
            return RANGE
        value *= op.factor
        if op.below and not 0 <= value < op.below:
            return RANGE
    return add(c, &value, sizeof(value))


cdef inline Status run_plain(State *s, int64_t size, Column *c) noexcept nogil:
    """Read values that are the same bytes in Avro and in Arrow."""
    cdef const unsigned char *value = read_bytes(&s.input, size)
    if value == NULL:
        return CUT
    return OK if c == NULL else add(c, value, <size_t>size)


cdef inline Status run_float_as_double(State *s, Column *c) noexcept nogil:
    cdef const unsigned char *stored = read_bytes(&s.input, sizeof(float))
    cdef float single
    cdef double value
    if stored == NULL:
        return CUT
    if c == NULL:
        return OK
    memcpy(&single, stored, sizeof(single))
    value = single
    return add(c, &value, sizeof(value))


cdef inline Status run_boolean(State *s, Column *c) noexcept nogil:
    cdef const unsigned char *value = read_bytes(&s.input, 1)
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
    cdef Status status = read_size(&s.input, &size)
    if status != OK:
        return status
    value = read_bytes(&s.input, size)
    if c == NULL:
        return OK
    if op.step == STRING and not is_utf8(value, <size_t>size):
        return NOT_UTF8
    return add_variable(c, value, <size_t>size)


cdef Status run_decimal(State *s, const Op *op, Column *c) noexcept nogil:
    cdef int64_t size = op.size
    cdef const unsigned char *number
    cdef int128 value = 0
    cdef Status status = OK
    if op.step == DECIMAL_BYTES:
        status = read_size(&s.input, &size)
    if status != OK:
        return status
    number = read_bytes(&s.input, size)
    if number == NULL:
        return CUT
    if c == NULL:
        return OK
    status = parse_decimal(number, size, POWERS[op.digits], &value)
    return add(c, &value, 16) if status == OK else status


cdef Status run_enum(State *s, const Op *op, Column *c) noexcept nogil:
    cdef int64_t number = 0
    cdef const Symbol *symbol
    cdef Status status = read_long(&s.input, &number)
    if status != OK:
        return status
    if not 0 <= number < op.symbol_count:
        return NO_SYMBOL
    if c == NULL:
        return OK
    symbol = &s.symbols[op.first_symbol + number]
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
        status = read_long(&s.input, &count)
        if status != OK or count == 0:
            break
        block_end = NULL
        if count < 0:
            if count == INT64_MIN:
                return RANGE
            count = -count
            status = read_size(&s.input, &size)
            if status != OK:
                return status
            block_end = s.input.at + size
            if c == NULL:
                s.input.at = block_end
                continue
        for _n in range(count):
            before = s.input.at
            status = run_inside(s, index + 1, end)
            if status != OK:
                return status
            if s.input.at == before:
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
        if block_end != NULL and s.input.at != block_end:
            return BLOCK_SIZE
    if status != OK or c == NULL:
        return status
    status = put_offset(c, last_offset(c) + items)
    return added(c) if status == OK else status


cdef Status run(State *s, int index) noexcept nogil:
    """Read one value. ``failed_op`` becomes the innermost instruction that fails."""
    cdef int64_t branch = 0
    cdef Status status = OK
    cdef const Op *op = &s.ops[index]
    cdef Column *c
    while op.step == OPTION or op.step == ONLY:
        status = read_long(&s.input, &branch)
        if status != OK:
            break
        if op.step == OPTION and branch == op.null_branch:
            if op.column < 0:
                return OK
            if s.columns[op.column].nullable:
                status = add_blank(s.columns, op.column)
                if status == OK:
                    return OK
            else:
                status = NO_VALUE
            break
        if branch != (1 - op.null_branch if op.step == OPTION else 0):
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
            status = run_plain(s, op.size, c)
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
    """Return about how many bytes the batch takes."""
    cdef size_t size = <size_t>s.items * ITEM_SIZE
    cdef int n
    for n in range(s.column_count):
        size += s.columns[n].data.size + s.columns[n].offsets.size
    return size


cdef Status run_rows(State *s, int64_t most_rows, size_t enough, int64_t *rows) noexcept nogil:
    """Read up to ``most_rows``, one at least, until the columns hold ``enough`` bytes."""
    cdef const unsigned char *looked_at = s.input.at
    cdef const unsigned char *before
    cdef Status status
    while rows[0] < most_rows:
        before = s.input.at
        status = run(s, 0)
        if status != OK:
            return status
        rows[0] += 1
        if s.input.at == before:
            if s.empty_rows_left == 0:
                return EMPTY_ITEMS
            s.empty_rows_left -= 1
        if s.input.at - looked_at >= BYTES_BETWEEN_LOOKS or rows[0] % ROWS_BETWEEN_LOOKS == 0:
            if size_of(s) >= enough:
                break
            looked_at = s.input.at
    return OK


# -- Python's side

cdef class Decoder:
    """Runs a program over blocks and keeps the columns until they are taken.

    ``program`` is a list of ``Instruction`` and ``columns`` of ``ColumnLayout``. ``symbols`` are
    those of all enums, in UTF-8. For one thread at a time.
    """

    cdef State _state
    cdef Py_buffer _block
    cdef bint _attached
    cdef bint _busy
    cdef bint _broken
    cdef tuple _names
    cdef tuple _symbols
    cdef readonly long long rows_left

    def __cinit__(self, program, columns, symbols):
        cdef int n
        cdef Op *op
        cdef Column *c
        cdef const unsigned char[::1] text
        self._names = tuple([instruction.name for instruction in program])
        self._symbols = tuple(symbols)
        cdef int ops = len(program), count = len(columns), symbol_count = len(self._symbols)
        if ops == 0:
            raise ValueError("a program has at least one instruction")
        self._state.ops = <Op *>calloc(ops, sizeof(Op))
        self._state.columns = <Column *>calloc(count + 1, sizeof(Column))
        self._state.symbols = <Symbol *>calloc(symbol_count + 1, sizeof(Symbol))
        if not (self._state.ops and self._state.columns and self._state.symbols):
            raise MemoryError
        self._state.op_count, self._state.column_count = ops, count
        self._state.empty_left = MAX_EMPTY_ITEMS
        for n in range(ops):
            op, i = &self._state.ops[n], program[n]
            op.step, op.end, op.column, op.null_branch = i.step, i.end, i.column, i.null_branch
            op.size, op.digits, op.factor, op.below = i.size, i.digits, i.factor, i.below
            op.first_symbol, op.symbol_count = i.first_symbol, i.symbol_count
        for n in range(count):
            c, i = &self._state.columns[n], columns[n]
            c.layout, c.end, c.width, c.nullable = i.layout, i.end, i.width, i.nullable
        for n in range(symbol_count):
            text = self._symbols[n]
            # A symbol is an Avro name, which is never empty.
            self._state.symbols[n].text = &text[0]
            self._state.symbols[n].size = text.shape[0]
        self._check(symbol_count)

    cdef _check(self, int symbol_count):
        """Raise ValueError for an instruction that could leave the program, columns or symbols."""
        cdef State *s = &self._state
        cdef Op *op
        cdef int n
        for n in range(s.op_count):
            op = &s.ops[n]
            inside = op.end - n - 1
            sound = 0 <= inside <= s.op_count - n - 1 and -1 <= op.column < s.column_count
            if op.step == OPTION or op.step == ONLY:
                sound = sound and inside > 0 and 0 <= op.null_branch <= 1
            elif op.step == SCALED:
                sound = sound and op.factor > 0 and op.below >= 0
            elif op.step == FIXED or op.step == DECIMAL_FIXED:
                sound = sound and op.size >= 0
            elif op.step == ENUM:
                sound = sound and 0 <= op.first_symbol
                sound = sound and 0 <= op.symbol_count <= symbol_count - op.first_symbol
            if op.step == DECIMAL_BYTES or op.step == DECIMAL_FIXED:
                sound = sound and 0 <= op.digits <= MAX_DIGITS
            if not sound:
                raise ValueError(f"instruction {n} of the program is not sound")
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
        """Take ``block``, the bytes of ``rows`` rows, to be read next.

        Raises ValueError unless the block before has been read to its end.
        """
        if self._busy or self._broken or self.rows_left:
            raise ValueError("the block before has not been read to its end")
        if rows < 0:
            raise FormatError("a block has a negative count of rows")
        self._drop_block()
        PyObject_GetBuffer(block, &self._block, PyBUF_SIMPLE)
        self._attached = True
        self._state.input.at = <const unsigned char *>self._block.buf
        self._state.input.end = self._state.input.at + self._block.len
        self._state.block_size = <size_t>self._block.len
        self._state.empty_rows_left = MAX_EMPTY_ITEMS
        self.rows_left = rows
        if rows == 0:
            self._check_end()

    def decode(self, long long most_rows, long long enough):
        """Read up to ``most_rows`` of the block, but stop when the columns hold ``enough`` bytes;
        return the count of rows read.

        Raises FormatError for bytes that are not such rows. The decoder cannot be used after it.
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
        left = self._state.input.end - self._state.input.at
        self._drop_block()
        if left:
            self._broken = True
            raise FormatError(f"a block has {left} bytes after its last row")

    cdef _drop_block(self):
        self._state.input.at = self._state.input.end = NULL
        if self._attached:
            self._attached = False
            PyBuffer_Release(&self._block)

    def take(self):
        """Return, for each column, its length, its nulls and three buffers, None where they are
        empty: validity, offsets, data. The columns are empty after it."""
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

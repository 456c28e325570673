# cython: freethreading_compatible=True
"""Decodes values of Avro's binary encoding, and never reads beyond the bytes given.

``CheckedDecoder`` reads the headers of containers and of blocks. ``read_records`` reads the records
of manifests and manifest lists: a ``Shape`` says what they consist of. A record of a file remembers
its bytes (``EncodedFile``). Its metrics are decoded when somebody asks for them, and a manifest
that has the file too gets the same bytes. Follows the Avro specification, "Binary Encoding".
Independent of what the fields mean.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport INT64_MIN, UINT32_MAX, int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy

from ...errors import FormatError

cdef extern from "Python.h":
    void PyObject_GC_UnTrack(void *one)

# A number of 64 bits has at most this many bytes.
cdef enum:
    LONG_SIZE = 10
    MOST_LAZY = 8

# What stands in a record for a value that was not decoded yet.
UNREAD = type("Unread", (), {"__repr__": lambda _: "UNREAD", "__slots__": ()})()


cpdef enum Kind:
    # The same value for each record; it has no bytes.
    CONSTANT
    BOOLEAN
    LONG
    FLOAT
    DOUBLE
    BYTES
    STRING
    FIXED
    # A fixed number of bytes after their number, as Java writes them.
    PREFIXED
    # A union of null and another type, null first.
    OPTION
    LIST
    # A map whose keys are not text: an array of pairs.
    PAIRS
    STRUCT


cdef class Shape:
    """What a value consists of, and what becomes of it.

    ``parts`` are the shapes inside. ``value`` is that of CONSTANT; the class of the records of
    STRUCT; for BYTES, FIXED and PREFIXED, a function from the bytes to a value, or None. FIXED and
    PREFIXED have ``size``. ``members`` returns what stands for a number or text: a member of an
    enumeration. In a STRUCT, ``places`` has for each part its place among the ``size`` values of
    the record, or -1 for a part that is skipped. If ``lazy`` has places, the records are files:
    they have an ``EncodedFile``, the values at these places are decoded later, and ``row_id`` is
    the place of the first row ID. Raises ValueError for parts that do not fit.
    """

    cdef Kind kind
    cdef Py_ssize_t size
    cdef int count
    cdef int row_id
    cdef bint is_file
    cdef object value
    cdef object members
    cdef tuple parts
    cdef int *places
    cdef int *lazy

    def __cinit__(
        self, Kind kind, *, tuple parts=(), places=(), Py_ssize_t size=0, value=None, members=None,
        lazy=(), int row_id=-1,
    ):
        cdef int n
        self.kind, self.parts, self.size = kind, parts, size
        self.value, self.members, self.row_id = value, members, row_id
        self.count = len(parts)
        # Their lengths do not change while memory is written.
        places, lazy = tuple(places), tuple(lazy)
        self.is_file = bool(lazy)
        needed = {OPTION: 1, LIST: 1, PAIRS: 2, STRUCT: len(places)}.get(kind, 0)
        if self.count != needed or (kind != STRUCT and places) or size < 0 or len(lazy) > MOST_LAZY:
            raise ValueError("the parts do not fit the shape")
        for part in parts:
            if not isinstance(part, Shape):
                raise ValueError("a part is a shape")
        self.places = <int *>malloc((self.count + 1) * sizeof(int))
        self.lazy = <int *>malloc((self.count + 1) * sizeof(int))
        if not (self.places and self.lazy):
            raise MemoryError
        order = sorted(lazy)
        for n, place in enumerate(places):
            if not -1 <= place < size:
                raise ValueError("a place is outside the record")
            self.places[n] = place
            self.lazy[n] = order.index(place) if place in order else -1

    def __dealloc__(self):
        free(self.places)
        free(self.lazy)


cdef class Block:
    """A block of a container: its ``data``, decompressed, of ``rows`` records; as it is ``stored``,
    by ``codec``; and the ``layout`` of its records (``avro_schema.layout``). The data of a manifest
    have the keys of its files."""

    cdef readonly bytes data
    cdef readonly object stored
    cdef readonly str codec
    cdef readonly str layout
    cdef readonly Py_ssize_t rows

    def __init__(
        self, bytes data not None, stored, str codec not None, str layout not None, Py_ssize_t rows
    ):
        if not 0 <= rows <= len(data) <= UINT32_MAX:
            raise FormatError("a block has more records than bytes, or too many bytes")
        self.data, self.stored, self.codec, self.layout = data, stored, codec, layout
        self.rows = rows

    def __reduce__(self):
        raise TypeError("a block may hold keys, so it is not pickled or copied")


@cython.no_gc
cdef class EncodedFile:
    """The bytes of a file's entry in a manifest. ``number`` counts the entries of ``block``."""

    cdef readonly Block block
    cdef readonly Py_ssize_t number
    cdef Shape _shape
    # Offsets in the block: of the entry, of the file in it, of its first row ID.
    cdef uint32_t _entry
    cdef uint32_t _begin
    cdef uint32_t _row_id
    cdef uint32_t _row_id_end
    cdef uint32_t _end
    cdef uint32_t[MOST_LAZY] _lazy

    def value(self, int place):
        """Decode the value at ``place`` of the record, which is one of the lazy ones."""
        cdef Shape shape = self._shape
        cdef _Records records
        cdef int n
        for n in range(shape.count):
            if shape.places[n] == place and shape.lazy[n] >= 0:
                records = _Records.__new__(_Records, self.block.data)
                records._at += self._lazy[shape.lazy[n]]
                return records.value(<Shape>shape.parts[n])
        raise IndexError(place)

    def entry(self, int64_t status, snapshot_id, sequence_number, file_sequence_number, row_id):
        """Return the bytes of an entry with these values, and with the file as it was read. The
        block's layout has these four values first, then the file, and nothing else. Raises
        ValueError if the file was read without a first row ID."""
        cdef unsigned char[5 * LONG_SIZE] head
        cdef unsigned char[LONG_SIZE + 1] first
        cdef Py_ssize_t head_size = put_long(head, status)
        cdef Py_ssize_t first_size = put_optional(first, row_id)
        cdef const unsigned char *data = <const unsigned char *>PyBytes_AS_STRING(self.block.data)
        cdef bytes made
        cdef unsigned char *at
        if not self._begin <= self._row_id < self._row_id_end <= self._end:
            raise ValueError("the file was read without a first row ID")
        for number in (snapshot_id, sequence_number, file_sequence_number):
            head_size += put_optional(head + head_size, number)
        made = PyBytes_FromStringAndSize(
            NULL,
            head_size + (self._row_id - self._begin) + first_size + (self._end - self._row_id_end),
        )
        at = <unsigned char *>PyBytes_AS_STRING(made)
        memcpy(at, head, head_size)
        at += head_size
        memcpy(at, data + self._begin, self._row_id - self._begin)
        at += self._row_id - self._begin
        memcpy(at, first, first_size)
        memcpy(at + first_size, data + self._row_id_end, self._end - self._row_id_end)
        return made

    def is_as_read(self, bytes entry not None):
        """Return whether these are the bytes of the entry as it was read."""
        cdef Py_ssize_t size = self._end - self._entry
        return PyBytes_GET_SIZE(entry) == size and memcmp(
            PyBytes_AS_STRING(entry), PyBytes_AS_STRING(self.block.data) + self._entry, size
        ) == 0


cpdef object untrack(one):
    """Have the garbage collector pass over an object; return it. It is freed with its last
    reference all the same. Of a large table there are hundreds of thousands, and to look for cycles
    in them takes twice as long as to make them. An object that refers to itself would stay."""
    PyObject_GC_UnTrack(<void *>one)
    return one


cdef Py_ssize_t put_long(unsigned char *at, int64_t value) noexcept:
    cdef uint64_t rest = (<uint64_t>value << 1) ^ <uint64_t>(value >> 63)
    cdef Py_ssize_t size = 0
    while rest > 0x7F:
        at[size] = <unsigned char>(rest & 0x7F | 0x80)
        rest >>= 7
        size += 1
    at[size] = <unsigned char>rest
    return size + 1


cdef Py_ssize_t put_optional(unsigned char *at, value) except -1:
    if value is None:
        at[0] = 0
        return 1
    at[0] = 2
    return 1 + put_long(at + 1, value)


cdef class CheckedDecoder:
    """Reads values one after the other. Raises EOFError where the bytes end first, and FormatError
    for a number of more than 64 bits."""

    cdef bytes _data
    cdef const unsigned char *_at
    cdef const unsigned char *_end

    def __cinit__(self, bytes data not None):
        self._data = data
        self._at = <const unsigned char *>PyBytes_AS_STRING(data)
        self._end = self._at + PyBytes_GET_SIZE(data)

    cdef const unsigned char *take(self, int64_t size) except NULL:
        cdef const unsigned char *taken = self._at
        if size < 0:
            raise FormatError(f"a length is negative: {size}")
        if size > self._end - taken:
            raise EOFError(f"{size} bytes are wanted, but {self._end - taken} are left")
        self._at = taken + size
        return taken

    cdef int64_t number(self) except? -1:
        cdef uint64_t value = 0
        cdef unsigned char byte
        cdef int shift = 0
        while True:
            if self._at == self._end:
                raise EOFError("the bytes end within a number")
            byte = self._at[0]
            self._at += 1
            if shift == 63 and byte > 1:
                raise FormatError("a number has more than 64 bits")
            value |= <uint64_t>(byte & 0x7F) << shift
            if byte < 0x80:
                return <int64_t>(value >> 1) ^ -<int64_t>(value & 1)
            shift += 7

    def tell(self):
        return self._at - <const unsigned char *>PyBytes_AS_STRING(self._data)

    def read(self, int64_t n):
        return PyBytes_FromStringAndSize(<const char *>self.take(n), n)

    def read_int(self):
        return self.number()

    def skip(self, int64_t n):
        self.take(n)

    def skip_int(self):
        self.number()


cdef const unsigned char *skip_items(
    const unsigned char *at, const unsigned char *end, int64_t count, int numbers, bint are_bytes
) noexcept nogil:
    """Skip items of so many numbers, the last of which may be the size of bytes. Return where they
    end; NULL if they are not sound."""
    cdef uint64_t value = 0
    cdef int64_t size
    cdef unsigned char byte
    cdef int shift
    while count:
        for _ in range(numbers):
            if at == end:
                return NULL
            byte = at[0]
            at += 1
            value = byte & 0x7F
            shift = 0
            while byte >= 0x80:
                shift += 7
                if at == end or (shift == 63 and at[0] > 1):
                    return NULL
                byte = at[0]
                at += 1
                value |= <uint64_t>(byte & 0x7F) << shift
        if are_bytes:
            size = <int64_t>(value >> 1) ^ -<int64_t>(value & 1)
            if size < 0 or size > end - at:
                return NULL
            at += size
        count -= 1
    return at


cdef class _Records(CheckedDecoder):
    """Reads and skips values of any shape. What it skips, it checks as if it were read."""

    cdef Block _block
    cdef EncodedFile _file
    # The last record inside a file, and its bytes. Neighbours often have the same partition.
    cdef object _inside
    cdef const unsigned char *_inside_at
    cdef Py_ssize_t _inside_size
    # An item has at least one byte of its own, so all lists have no more items than there are
    # bytes. More items without bytes are not made, however many a few bytes claim.
    cdef int64_t _items_left

    def __cinit__(self):
        self._items_left = self._end - self._at

    cdef uint32_t offset(self):
        return <uint32_t>(self._at - <const unsigned char *>PyBytes_AS_STRING(self._data))

    cdef bint is_there(self) except -1:
        """Read the branch of a union of null and another type: whether it is the other."""
        cdef int64_t branch = self.number()
        if not 0 <= branch <= 1:
            raise FormatError(f"a union of two types has no branch {branch}")
        return branch == 1

    cdef int64_t items(self) except -1:
        """Read how many items come next; 0 after the last."""
        cdef int64_t count = self.number()
        if count < 0:
            if count == INT64_MIN:
                raise FormatError("an array has too many items")
            # Their size follows. Readers that skip the items use it.
            self.number()
            count = -count
        if count > self._end - self._at:
            raise EOFError(f"{count} items are wanted, but {self._end - self._at} bytes are left")
        if count > self._items_left:
            raise FormatError("the lists have more items than bytes")
        self._items_left -= count
        return count

    cdef int64_t size_of(self, Shape shape) except? -1:
        """Return how many bytes a value has. Unless it is FIXED, their number comes first."""
        cdef int64_t size = shape.size if shape.kind == FIXED else self.number()
        if shape.kind == PREFIXED and size != shape.size:
            raise FormatError(f"a value of {shape.size} bytes has {size}")
        return size

    cdef object value(self, Shape shape):
        cdef Kind kind = shape.kind
        cdef int64_t size
        cdef float single
        cdef double double
        if kind == OPTION:
            return self.value(<Shape>shape.parts[0]) if self.is_there() else None
        if kind == LONG:
            found = self.number()
        elif kind == STRING:
            size = self.size_of(shape)
            found = PyUnicode_DecodeUTF8(<const char *>self.take(size), size, NULL)
        elif kind == BYTES or kind == FIXED or kind == PREFIXED:
            size = self.size_of(shape)
            data = PyBytes_FromStringAndSize(<const char *>self.take(size), size)
            return data if shape.value is None else shape.value(data)
        elif kind == STRUCT:
            return self.record(shape)
        elif kind == PAIRS:
            return self.pairs(shape)
        elif kind == LIST:
            return self.list_of(<Shape>shape.parts[0])
        elif kind == BOOLEAN:
            return self.take(1)[0] != 0
        elif kind == FLOAT:
            memcpy(&single, self.take(4), 4)
            return single
        elif kind == DOUBLE:
            memcpy(&double, self.take(8), 8)
            return double
        else:
            return shape.value
        return found if shape.members is None else shape.members(found)

    cdef object list_of(self, Shape part):
        cdef list values = []
        cdef int64_t count = self.items()
        while count:
            for _ in range(count):
                values.append(self.value(part))
            count = self.items()
        return untrack(values)

    cdef object pairs(self, Shape shape):
        cdef dict values = {}
        cdef int64_t count = self.items()
        while count:
            for _ in range(count):
                key = self.value(<Shape>shape.parts[0])
                values[key] = self.value(<Shape>shape.parts[1])
            count = self.items()
        return values

    cdef object record(self, Shape shape):
        cdef list values = [None] * shape.size
        cdef EncodedFile file = None
        cdef Shape part
        cdef int n, place
        if shape.is_file and self._block is not None:
            file = EncodedFile.__new__(EncodedFile)
            file.block, file._shape, file._begin = self._block, shape, self.offset()
        for n in range(shape.count):
            part = <Shape>shape.parts[n]
            place = shape.places[n]
            if place < 0:
                self.skip_value(part)
            elif file is None:
                values[place] = self.value(part)
            elif shape.lazy[n] >= 0 and not self.is_short(part):
                file._lazy[shape.lazy[n]] = self.offset()
                self.skip_value(part)
                values[place] = UNREAD
            elif place == shape.row_id:
                file._row_id = self.offset()
                values[place] = self.value(part)
                file._row_id_end = self.offset()
            elif part.kind == STRUCT:
                values[place] = self.inside(part)
            else:
                values[place] = self.value(part)
        made = shape.value.__new__(shape.value)
        made._data = values
        untrack(values)
        untrack(made)
        if file is not None:
            file._end = self.offset()
            made.encoded = self._file = file
        return made

    cdef bint is_short(self, Shape part):
        """Return whether decoding a value costs nothing: it is null, or constant."""
        return part.kind == CONSTANT or (
            part.kind == OPTION and self._at != self._end and self._at[0] == 0
        )

    cdef object inside(self, Shape part):
        """Read a record in a file's. Files with the same bytes there share it."""
        cdef const unsigned char *begin = self._at
        cdef int64_t items_left = self._items_left
        self.skip_value(part)
        if (
            self._inside is None
            or self._inside_size != self._at - begin
            or memcmp(begin, self._inside_at, self._inside_size) != 0
        ):
            self._inside_at, self._inside_size = begin, self._at - begin
            self._at, self._items_left = begin, items_left
            self._inside = self.value(part)
        return self._inside

    cdef int skip_value(self, Shape shape) except -1:
        cdef Kind kind = shape.kind
        cdef Shape first, last
        cdef const unsigned char *skipped
        cdef int64_t size
        cdef int n
        if kind == LONG:
            self.number()
        elif kind == BYTES or kind == STRING or kind == FIXED or kind == PREFIXED:
            self.take(self.size_of(shape))
        elif kind == OPTION:
            if self.is_there():
                self.skip_value(<Shape>shape.parts[0])
        elif kind == LIST or kind == PAIRS:
            first = <Shape>shape.parts[0]
            last = <Shape>shape.parts[shape.count - 1]
            size = self.items()
            while size:
                if first.kind == LONG and (last.kind == LONG or last.kind == BYTES):
                    skipped = skip_items(self._at, self._end, size, shape.count, last.kind == BYTES)
                    if skipped != NULL:
                        self._at = skipped
                        size = self.items()
                        continue
                    # What is wrong is found, and raised, item by item.
                for _ in range(size):
                    for n in range(shape.count):
                        self.skip_value(<Shape>shape.parts[n])
                size = self.items()
        elif kind == STRUCT:
            for n in range(shape.count):
                self.skip_value(<Shape>shape.parts[n])
        elif kind == BOOLEAN:
            self.take(1)
        elif kind == FLOAT:
            self.take(4)
        elif kind == DOUBLE:
            self.take(8)
        return 0


def read_records(Block block not None, Shape shape not None):
    """Return the records of a block. Raises FormatError or EOFError if it has no such records or
    more bytes than they, and what a shape's functions raise for a value."""
    cdef _Records records = _Records.__new__(_Records, block.data)
    cdef list found = []
    cdef uint32_t begin
    cdef Py_ssize_t number
    records._block = block
    for number in range(block.rows):
        begin = records.offset()
        found.append(records.value(shape))
        if records._file is not None:
            records._file._entry, records._file.number = begin, number
            records._file = None
    if records._at != records._end:
        raise FormatError(f"a block has {records._end - records._at} bytes after its last record")
    return found

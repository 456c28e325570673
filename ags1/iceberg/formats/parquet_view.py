"""Shows an encrypted Parquet file as an unencrypted one, of which every byte is authentic.

Each part of the plaintext lies where its module lies in the encrypted file (``_modules`` has a
drawing), so a footer's offsets and indexes are true of both. The footer is the file's own. Only the
field that says of a column that it is encrypted gets an id that no reader knows, so that it is
skipped::

    encrypted    PARE  [column chunks]  [bloom filters]  [indexes]  crypto metadata  [footer]  PARE
    plaintext    PAR1   column chunks    bloom filters    indexes   footer  PAR1

A part is decrypted when it is first needed, and nothing of it is shown before all of it is
authentic. A part that is wanted whole goes into the caller's memory, and is not kept for others.
Independent of tables.
"""

from __future__ import annotations

import bisect
import io
import struct
import threading
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ...engine._buffers import new_bytes
from ...engine.key_metadata import KeyMetadata
from ...engine.source import RangedSource, Source
from ...errors import Ags1Error, AuthenticationError, FormatError
from ..spec.constants import PARQUET_MAGIC
from .parquet_fields import (
    ColumnChunk,
    ColumnMetaData,
    FileMetaData,
    RowGroup,
    SchemaElement,
)
from .parquet_modules import INDEXES, Chunk, ModuleType, ParquetSource, chunks, parsing
from .thrift import PLACE, STRUCT, Kept, Struct, parse, value

if TYPE_CHECKING:
    import pyarrow as pa

_KEPT: Kept = {
    FileMetaData.SCHEMA: {SchemaElement.NAME: None, SchemaElement.NUM_CHILDREN: None},
    FileMetaData.ENCRYPTION_ALGORITHM: {},
    FileMetaData.ROW_GROUPS: {
        RowGroup.ORDINAL: None,
        RowGroup.COLUMNS: {
            ColumnChunk.FILE_PATH: None,
            ColumnChunk.META_DATA: {
                ColumnMetaData.NUM_VALUES: None,
                ColumnMetaData.TOTAL_COMPRESSED_SIZE: None,
                ColumnMetaData.DATA_PAGE_OFFSET: None,
                ColumnMetaData.DICTIONARY_PAGE_OFFSET: None,
                ColumnMetaData.BLOOM_FILTER_OFFSET: None,
            },
            ColumnChunk.OFFSET_INDEX_OFFSET: None,
            ColumnChunk.OFFSET_INDEX_OFFSET + 1: None,
            ColumnChunk.COLUMN_INDEX_OFFSET: None,
            ColumnChunk.COLUMN_INDEX_OFFSET + 1: None,
            ColumnChunk.CRYPTO_METADATA: PLACE,
            ColumnChunk.ENCRYPTED_COLUMN_METADATA: None,
        },
    },
}
# From the id of CRYPTO_METADATA to one that Parquet does not have.
_DISTANCE = 7
# A field of bytes with the id 127, before its length.
_PADDING = b"\x08\xfe\x01"
# What is fetched at once of a file, if its parts are wanted.
_WINDOW_SIZE = 2 << 20
_IDLE_SCRATCHES = 4
_FAR_WINDOW_SIZE = 32 << 20
_HOLE_SIZE = 64 << 10
_HELD_SIZE = 64 << 20


class _Scratch:
    """Memory for ciphertext, which is used again: new memory takes longer than AES."""

    def __init__(self) -> None:
        self._idle: deque[bytearray] = deque(maxlen=_IDLE_SCRATCHES)

    def take(self) -> bytearray:
        try:
            return self._idle.pop()
        except IndexError:
            return bytearray(_WINDOW_SIZE)

    def give_back(self, scratch: bytearray) -> None:
        self._idle.append(scratch)


_SCRATCH = _Scratch()


@dataclass(frozen=True, slots=True)
class Section:
    """Bytes of the file that are decrypted as a whole."""

    start: int
    size: int
    ordinals: bytes

    @property
    def end(self) -> int:
        return self.start + self.size


@dataclass(frozen=True, slots=True)
class Part(Section):
    """A column chunk. ``values`` is the number of its values, nulls included."""

    group: int
    column: int
    values: int
    has_dictionary: bool


@dataclass(frozen=True, slots=True)
class Index(Section):
    """A part that is one module, or two if it is a bloom filter. The ``size`` of a bloom filter is
    that of its first module, and 0 before it is known."""

    kind: ModuleType


class ParquetView:
    """The plaintext of an encrypted file, which has ``size`` bytes. Any number of threads may use
    it, for different parts. Raises as ``ParquetSource.read_end``, and FormatError if the footer
    points outside the file."""

    def __init__(self, file: Source, key_metadata: KeyMetadata) -> None:
        self._source = file
        actual_size = file.size
        assert actual_size is not None
        source = ParquetSource(
            lambda at, size: file.fetch(at, size, memoryview(bytearray(size))),
            actual_size,
            key_metadata,
        )
        with parsing():
            footer, end = source.read_end(_KEPT)
            self._chunks = list(chunks(footer))
            self._parts = list(map(_part, self._chunks))
            self._tops = list(_top_columns(footer))
            self._end_offset = actual_size - len(end)
            self._check_places(self._parts)
        assert source.cipher is not None
        self._cipher = source.cipher
        self._plain_end = _plain_end(source.footer_text, footer)
        self.size = self._end_offset + len(self._plain_end)

    def parts(self, names: Iterable[str] | None, groups: Iterable[int] | None) -> list[Part]:
        """Return the column chunks of the top columns ``names`` in the row groups ``groups``; None
        is all."""
        columns = None if names is None else set(names)
        numbers = None if groups is None else set(groups)
        return [
            part
            for part in self._parts
            if (columns is None or self._tops[part.column] in columns)
            and (numbers is None or part.group in numbers)
        ]

    def prepare(self, memory: memoryview, base: int = 0) -> None:
        """Write the first and the last bytes of the plaintext into ``memory``, as far as it has
        them. It begins at ``base``."""
        for start, data in ((0, PARQUET_MAGIC), (self._end_offset, self._plain_end)):
            first, last = max(start, base), min(start + len(data), base + len(memory))
            if first < last:
                memory[first - base : last - base] = data[first - start : last - start]

    def enclose(self, memory: memoryview) -> None:
        """Write the first and the last bytes of the plaintext at the two ends of ``memory``, which
        may be longer: readers look for a footer at the end."""
        self.prepare(memory[: self._end_offset])
        memory[len(memory) - len(self._plain_end) :] = self._plain_end

    def sections(self, has_indexes: bool = True) -> list[Part | Index]:
        """Return all parts, in the order of their places, with or without indexes. Asks the file
        for the sizes of bloom filters. Raises FormatError if an index points outside the file."""
        indexes = self._indexes() if has_indexes else []
        return sorted((*self._parts, *indexes), key=lambda part: part.start)

    def _indexes(self) -> list[Index]:
        with parsing():
            found = [index for chunk in self._chunks for index in _indexes(chunk)]
            self._check_places(found)
        return [
            self._bloom_filter(index) if index.kind == ModuleType.BLOOM_FILTER_HEADER else index
            for index in found
        ]

    def _check_places(self, parts: Iterable[Part | Index]) -> None:
        if not all(0 <= part.start <= part.end <= self._end_offset for part in parts):
            raise FormatError("the file points outside itself", offset=self._source.size)

    def fill_indexes(self, memory: memoryview) -> None:
        """Write the page indexes and bloom filters into ``memory``."""
        for index in self._indexes():
            memory[index.start : index.end] = self.read(index)

    def read(self, part: Part | Index) -> memoryview:
        """Return the plaintext of a part. Raises as ``fill``."""
        if isinstance(part, Part):
            memory = memoryview(bytearray(part.size))
            self.fill(memory, [part], part.start)
            return memory
        sealed = self._fetch(part.start, part.size)
        if part.kind != ModuleType.BLOOM_FILTER_HEADER:
            return memoryview(
                _padded(self._cipher.open(part.kind, part.ordinals, sealed), part.size)
            )
        size = _module_size(sealed)
        header = self._cipher.open(part.kind, part.ordinals, sealed[:size])
        bits = self._cipher.open(ModuleType.BLOOM_FILTER_BITSET, part.ordinals, sealed[size:])
        return memoryview(_padded(header, part.size - len(bits)) + bits)

    def _bloom_filter(self, index: Index) -> Index:
        header = _module_size(self._fetch(index.start, 4))
        size = header + _module_size(self._fetch(index.start + header, 4))
        if index.start + size > self._end_offset:
            raise AuthenticationError("a bloom filter's length is impossible", offset=index.start)
        return replace(index, size=size)

    def close(self) -> None:
        """Close the source."""
        self._source.close()

    def _fetch(self, offset: int, size: int) -> memoryview:
        return self._source.fetch(offset, size, memoryview(bytearray(size)))

    def fill(self, memory: memoryview, parts: Iterable[Part], base: int = 0) -> None:
        """Write these parts of the plaintext into ``memory``, which begins at ``base``. If a part
        is not authentic, it is zero there. Raises AuthenticationError, TruncatedError and
        FormatError."""
        is_direct = isinstance(self._source, RangedSource)
        most = _FAR_WINDOW_SIZE if is_direct else _WINDOW_SIZE
        scratch = None if is_direct else _SCRATCH.take()
        for run in _runs(sorted(parts, key=lambda part: part.start), most):
            window = _Window(self._source, max(part.end for part in run), most, scratch)
            for part in run:
                self._fill(memory[part.start - base : part.end - base], part, window)
        if scratch is not None:
            _SCRATCH.give_back(scratch)

    def _fill(self, memory: memoryview, part: Part, window: _Window) -> None:
        at, number, has_dictionary, values = part.start, 0, part.has_dictionary, part.values
        least = 1
        try:
            while at < part.end:
                sealed = window.take(at, part.end, least)
                done, count, found = self._open(
                    memory, part, sealed, at, number, has_dictionary, values
                )
                # If nothing was opened, the window ends within a page.
                least = 1 if done else len(sealed) + 1
                at, number, values = at + done, number + count, values - found
                has_dictionary = has_dictionary and not done
        except BaseException:
            memory[: at - part.start] = bytes(at - part.start)
            raise

    def _open(
        self,
        memory: memoryview,
        part: Part,
        sealed: memoryview,
        at: int,
        number: int,
        has_dictionary: bool,
        values: int,
    ) -> tuple[int, int, int]:
        """Open the pages in ``sealed``, which begins at ``at``. ``values`` is the number of values
        that the rest of the part has. Return the sizes and numbers of what was opened."""
        out = memory[at - part.start : at - part.start + len(sealed)]
        is_last = at + len(sealed) == part.end
        try:
            done, count, found, levels, _ = self._cipher.open_pages(
                sealed, out, part.ordinals, number, has_dictionary, is_last
            )
        except (AuthenticationError, FormatError) as error:
            error.offset = at + (error.offset or 0)
            raise
        problem: Ags1Error | None = None
        if levels:
            problem = AuthenticationError(
                "Java wrote a page of version 2, which leaves unauthenticated which values are "
                "null and where lists begin. Set write.parquet.page-version=v1, and rewrite the "
                "file in Spark (rewrite_data_files)",
                offset=at,
            )
        elif is_last and found != values:
            problem = FormatError(
                f"the pages of column {part.column} do not have the values that the footer says",
                offset=part.start,
            )
        if problem is not None:
            out[:] = bytes(len(out))
            raise problem
        return done, count, found


class PlainParquet(io.RawIOBase):
    """The plaintext of an encrypted file, as a file that any reader of Parquet takes. Any number of
    threads may call ``pread``. It holds the parts that were read last, of 64 MiB in all. Without
    indexes, zeros are in their place. Closing it closes the source."""

    def __init__(self, view: ParquetView, has_indexes: bool = True) -> None:
        super().__init__()
        self._view = view
        self._sections = view.sections(has_indexes)
        self._starts = [part.start for part in self._sections]
        self._held: OrderedDict[int, memoryview] = OrderedDict()
        self._lock = threading.Lock()
        self._position = 0
        self.size = view.size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size}[whence]
        if base + offset < 0:
            raise ValueError(f"negative seek position {base + offset}")
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        with memoryview(buffer).cast("B") as view:
            size = max(0, min(len(view), self.size - self._position))
            self._show(view[:size], self._position)
        self._position += size
        return size

    def read(self, size: int | None = -1) -> bytes:
        left = max(0, self.size - self._position)
        data = self.pread(self._position, left if size is None or size < 0 else size)
        self._position += len(data)
        return data

    def readall(self) -> bytes:
        return self.read()

    def read_buffer(self, nbytes: int | None = None, /) -> pa.Buffer:
        """Read as ``read``, into memory of Arrow's pool. ``pyarrow.PythonFile`` calls it."""
        import pyarrow as pa

        left = max(0, self.size - self._position)
        buffer = pa.allocate_buffer(left if nbytes is None or nbytes < 0 else min(nbytes, left))
        self.readinto(buffer)
        return buffer

    def pread(self, offset: int, size: int) -> bytes:
        """Return bytes of the plaintext, fewer at its end. Raises ValueError if it is closed,
        AuthenticationError, FormatError and TruncatedError."""
        data, memory = new_bytes(max(0, min(size, self.size - offset)))
        self._show(memory, offset)
        return data

    def _show(self, out: memoryview, offset: int) -> None:
        """Write the plaintext from ``offset`` on into ``out``. What belongs to no part is zero."""
        if self.closed:
            raise ValueError("I/O operation on closed file")
        at, end = offset, offset + len(out)
        whole: list[Part] = []
        number = max(0, bisect.bisect_right(self._starts, offset) - 1)
        for part in self._sections[number:]:
            if part.start >= end:
                break
            first, last = max(part.start, offset), min(part.end, end)
            if first > at:
                out[at - offset : first - offset] = bytes(first - at)
            at = max(at, last)
            # What is wanted as a whole is not held: it is seldom wanted twice.
            if isinstance(part, Part) and (first, last) == (part.start, part.end):
                whole.append(part)
            elif first < last:
                data = self._read(part)
                out[first - offset : last - offset] = data[first - part.start : last - part.start]
        out[at - offset :] = bytes(end - at)
        self._view.prepare(out, offset)
        if whole:
            self._view.fill(out, whole, offset)

    def _read(self, part: Part | Index) -> memoryview:
        with self._lock:
            data = self._held.get(part.start)
            if data is not None:
                self._held.move_to_end(part.start)
                return data
        data = self._view.read(part)
        with self._lock:
            self._held[part.start] = data
            size = sum(map(len, self._held.values()))
            while size > _HELD_SIZE and len(self._held) > 1:
                size -= len(self._held.popitem(last=False)[1])
        return data

    def close(self) -> None:
        if not self.closed:
            self._held.clear()
            self._view.close()
        super().close()


class _Window:
    """The bytes of a file up to ``end``, of which a part is in memory: about ``most``. Those of a
    file on this machine are read into ``scratch``, which grows if it has to."""

    def __init__(self, source: Source, end: int, most: int, scratch: bytearray | None) -> None:
        self._source, self._end, self._most, self._scratch = source, end, most, scratch
        self._data = memoryview(b"")
        self._start = 0

    def take(self, start: int, end: int, least: int) -> memoryview:
        """Return the bytes from ``start``, which ascends from call to call, to ``end`` or before,
        but ``least`` of them if there are as many. They are valid until the next call."""
        data = self._data[start - self._start : end - self._start]
        if len(data) < min(least, end - start):
            size = min(max(self._most, 2 * least), self._end - start)
            self._data, self._start = self._read(start, size), start
            data = self._data[: end - start]
        return data

    def _read(self, start: int, size: int) -> memoryview:
        if self._scratch is None:
            # What is far may come in pieces, which are put together.
            pieces = bytearray(size if self._source.far else 0)
            return self._source.fetch(start, size, memoryview(pieces))
        # The end of what is there is the beginning of what is wanted.
        kept = self._data[start - self._start :]
        if size > len(self._scratch):
            self._scratch = bytearray(size)
        memory = memoryview(self._scratch)[:size]
        memory[: len(kept)] = kept
        self._source.fetch(start + len(kept), size - len(kept), memory[len(kept) :])
        return memory


def _part(chunk: Chunk) -> Part:
    meta = chunk.meta
    start = value(meta, ColumnMetaData.DATA_PAGE_OFFSET)
    dictionary = value(meta, ColumnMetaData.DICTIONARY_PAGE_OFFSET, 0)
    # If a column has no data pages, Arrow says that they begin at 0. It may have a dictionary.
    has_dictionary = dictionary > 0 and (dictionary < start or start == 0)
    start = dictionary if has_dictionary else start
    size = value(meta, ColumnMetaData.TOTAL_COMPRESSED_SIZE)
    values = value(meta, ColumnMetaData.NUM_VALUES)
    place = (chunk.group, chunk.column)
    return Part(start, size, chunk.ordinals, *place, values, has_dictionary)


def _indexes(chunk: Chunk) -> Iterator[Index]:
    for kind, field in INDEXES.items():
        if field in chunk.fields:
            place = value(chunk.fields, field), value(chunk.fields, field + 1)
            yield Index(*place, chunk.ordinals, kind)
    if ColumnMetaData.BLOOM_FILTER_OFFSET in chunk.meta:
        start = value(chunk.meta, ColumnMetaData.BLOOM_FILTER_OFFSET)
        yield Index(start, 0, chunk.ordinals, ModuleType.BLOOM_FILTER_HEADER)


def _module_size(sealed: memoryview) -> int:
    return 4 + int.from_bytes(sealed[:4], "little")


def _padded(text: bytes, size: int) -> bytes:
    """Return a structure that has ``size`` bytes, with a field that no reader knows."""
    _, end = parse(text)
    content = size - end - len(_PADDING) - 2
    length = bytes((content & 0x7F | 0x80, content >> 7))
    return text[: end - 1] + _PADDING + length + bytes(content + 1)


def _top_columns(footer: Struct) -> Iterator[str]:
    """Yield for each leaf column the name of the top column that it is in."""
    elements = value(footer, FileMetaData.SCHEMA)[1]
    waiting = [value(elements[0], SchemaElement.NUM_CHILDREN, 0)]
    top = ""
    for element in elements[1:]:
        while waiting and not waiting[-1]:
            waiting.pop()
        waiting[-1] -= 1
        if len(waiting) == 1:
            top = value(element, SchemaElement.NAME).decode()
        children = value(element, SchemaElement.NUM_CHILDREN, 0)
        if children:
            waiting.append(children)
        else:
            yield top


def _runs(parts: list[Part], most: int) -> Iterator[list[Part]]:
    """Yield the parts that are fetched together."""
    run: list[Part] = []
    for part in parts:
        if run and (part.start > run[-1].end + _HOLE_SIZE or part.end - run[0].start > most):
            yield run
            run = []
        run.append(part)
    if run:
        yield run


def _plain_end(text: bytes, footer: Struct) -> bytes:
    """Return the footer as an unencrypted file has it, and what follows it."""
    plain = bytearray(text)
    for group in value(footer, FileMetaData.ROW_GROUPS, (STRUCT, []))[1]:
        for fields in value(group, RowGroup.COLUMNS)[1]:
            at = value(fields, -ColumnChunk.CRYPTO_METADATA)
            # The upper half of a field's first byte is the distance of its id from the last one.
            if plain[at] >> 4 not in range(1, 16 - _DISTANCE):
                raise FormatError("a column's encryption is not as Iceberg's writers print it")
            plain[at] += _DISTANCE << 4
    return bytes(plain) + struct.pack("<I", len(plain)) + PARQUET_MAGIC

"""Shows an encrypted Parquet file as an unencrypted one, of which every byte is authentic.

Each part of the plaintext lies where its module lies in the encrypted file (``_modules`` has a
drawing), so a footer's offsets and indexes are true of both. The footer is the file's own. Only the
field that says of a column that it is encrypted gets an id that no reader knows, so that it is
skipped::

    encrypted    PARE  [column chunks]  [bloom filters]  [indexes]  crypto metadata  [footer]  PARE
    plaintext    PAR1   column chunks    bloom filters    indexes   footer  PAR1

A part is decrypted when it is first needed, and nothing of it is shown before all of it is
authentic. Knows nothing of tables.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from ...engine.key_metadata import KeyMetadata
from ...engine.source import Source
from ...errors import AuthenticationError, FormatError
from ..spec.constants import PARQUET_MAGIC
from .parquet_fields import (
    ColumnChunk,
    ColumnMetaData,
    FileMetaData,
    RowGroup,
    SchemaElement,
)
from .parquet_modules import Chunk, ParquetSource, chunks, parsing
from .thrift import PLACE, STRUCT, Kept, Struct, value

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
            },
            ColumnChunk.CRYPTO_METADATA: PLACE,
            ColumnChunk.ENCRYPTED_COLUMN_METADATA: None,
        },
    },
}
# From the id of CRYPTO_METADATA to one that Parquet does not have.
_DISTANCE = 7
# What is fetched at once of a file, if its parts are wanted.
_WINDOW_SIZE = 2 << 20
_FAR_WINDOW_SIZE = 32 << 20
_HOLE_SIZE = 64 << 10


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the file that is decrypted as a whole: a column chunk. ``values`` is the number of
    its values, nulls included."""

    start: int
    size: int
    group: int
    column: int
    ordinals: bytes
    values: int
    has_dictionary: bool

    @property
    def end(self) -> int:
        return self.start + self.size


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
            self._parts = [_part(chunk) for chunk in chunks(footer)]
            self._tops = list(_top_columns(footer))
        assert source.cipher is not None
        self._cipher = source.cipher
        self._end_offset = actual_size - len(end)
        if not all(0 <= part.start <= part.end <= self._end_offset for part in self._parts):
            raise FormatError("the file points outside itself", offset=actual_size)
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

    def prepare(self, memory: memoryview) -> None:
        """Write the first and the last bytes of the plaintext into ``memory``, which has all of
        them."""
        memory[:4] = PARQUET_MAGIC
        memory[self._end_offset :] = self._plain_end

    def fill(self, memory: memoryview, parts: Iterable[Part]) -> None:
        """Write these parts of the plaintext into ``memory``. If a part is not authentic, it is
        zero there. Raises AuthenticationError, TruncatedError and FormatError."""
        most = _FAR_WINDOW_SIZE if self._source.far else _WINDOW_SIZE
        for run in _runs(sorted(parts, key=lambda part: part.start), most):
            window = _Window(self._source, max(part.end for part in run), most)
            for part in run:
                self._fill(memory, part, window)

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
            memory[part.start : at] = bytes(at - part.start)
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
        out = memory[at : at + len(sealed)]
        is_last = at + len(sealed) == part.end
        try:
            done, count, found, levels, _ = self._cipher.open_pages(
                sealed, out, part.ordinals, number, has_dictionary, is_last
            )
        except (AuthenticationError, FormatError) as error:
            error.offset = at + (error.offset or 0)
            raise
        problem = None
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


class _Window:
    """The bytes of a file up to ``end``, of which a part is in memory: about ``most``."""

    def __init__(self, source: Source, end: int, most: int) -> None:
        self._source, self._end, self._most = source, end, most
        self._scratch = self._data = memoryview(b"")
        self._start = 0

    def take(self, start: int, end: int, least: int) -> memoryview:
        """Return the bytes from ``start``, which ascends from call to call, to ``end`` or before,
        but ``least`` of them if there are as many. They are valid until the next call."""
        data = self._data[start - self._start : end - self._start]
        if len(data) < min(least, end - start):
            size = min(max(self._most, 2 * least), self._end - start)
            if not self._source.far and size > len(self._scratch):
                self._scratch = memoryview(pa.allocate_buffer(size)).cast("B")
            self._data, self._start = self._source.fetch(start, size, self._scratch), start
            data = self._data[: end - start]
        return data


def _part(chunk: Chunk) -> Part:
    meta = chunk.meta
    start = value(meta, ColumnMetaData.DATA_PAGE_OFFSET)
    dictionary = value(meta, ColumnMetaData.DICTIONARY_PAGE_OFFSET, 0)
    # If a column has no data pages, Arrow says that they begin at 0. It may have a dictionary.
    has_dictionary = dictionary > 0 and (dictionary < start or start == 0)
    start = dictionary if has_dictionary else start
    size = value(meta, ColumnMetaData.TOTAL_COMPRESSED_SIZE)
    values = value(meta, ColumnMetaData.NUM_VALUES)
    place = (chunk.group, chunk.column, chunk.ordinals)
    return Part(start, size, *place, values, has_dictionary)


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

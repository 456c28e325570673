"""Files of rows that go into a table, read by Arrow: Parquet, Arrow's files and streams, CSV.

Each batch is cast to the table's schema as ``RowConversion`` does it: a column is found by its
name, no value is cut, and text is no number. Only one batch is in memory at a time. Knows nothing
of where rows go.
"""

from __future__ import annotations

import contextlib
import errno
import io
import itertools
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import IO, TYPE_CHECKING, Any, NamedTuple, TypeAlias

import click
import pyarrow as pa

from ...columns.arrow_layouts import plain_batch, plain_schema
from ...errors import Ags1Error, FormatError
from ...iceberg.pyiceberg.arrow import arrow_schema, iceberg_schema
from ...iceberg.write.plan import WritePlan
from ..console import STDIN, binary_input

if TYPE_CHECKING:
    from pyiceberg.schema import Schema

    from ..report import Report

# Batches, each with the number of bytes of the file that are read by then.
_Batches: TypeAlias = "Iterator[tuple[pa.RecordBatch, int]]"
_SUFFIXES = {
    **dict.fromkeys((".parquet", ".pq"), "parquet"),
    **dict.fromkeys((".arrow", ".arrows", ".feather", ".ipc"), "arrow"),
    ".csv": "csv",
}
_ARROW_FILE = b"ARROW1"
# A value of CSV has to fit into a block.
_CSV_BLOCK_SIZE = 8 << 20


class RowsFile(NamedTuple):
    """A file of rows that is open: its columns as Arrow's schema, and its batches."""

    schema: pa.Schema
    batches: _Batches


class TableRows:
    """The rows of files as rows of a table, of whose metadata ``metadata`` is the JSON. ``rows``
    counts those that were read."""

    def __init__(
        self, names: Sequence[str], format_: str | None, metadata: Mapping[str, Any]
    ) -> None:
        self._names = names
        self._format = format_
        self._plan = WritePlan(metadata)
        self._columns = arrow_schema(self._plan.schema, include_field_ids=False)
        self._kinds = {field.name: field.type for field in self._columns}
        self.rows = 0

    @property
    def size(self) -> int | None:
        """The size of all files in bytes; None if one is a pipe. Raises OSError."""
        sizes = [_size(name) for name in self._names]
        return None if None in sizes else sum(size or 0 for size in sizes)

    def check(self) -> None:
        """Raise click.UsageError if the columns of a file do not fit the table, and what
        ``open_rows`` raises. Pipes are checked when they are read."""
        for name in self._names:
            if _size(name) is not None:
                with open_rows(name, self._format, self._kinds) as file:
                    self._plan.conversion(self._provided(file))

    def reader(self, report: Report) -> pa.RecordBatchReader:
        """Return the rows of all files; the first batch is read at once. Raises as ``check``, and
        click.UsageError for a row that does not fit the table. So does what reads the others."""
        batches = self._batches(report)
        if (first := next(batches, None)) is None:
            return pa.RecordBatchReader.from_batches(self._columns, [])
        return pa.RecordBatchReader.from_batches(first.schema, itertools.chain([first], batches))

    def _batches(self, report: Report) -> Iterator[pa.RecordBatch]:
        """Yield the rows in batches of one schema."""
        schema: pa.Schema | None = None
        for name in self._names:
            report.begin(name)
            with open_rows(name, self._format, self._kinds) as file:
                provided = self._provided(file)
                conversion = self._plan.conversion(provided)
                # Files differ in the widths of offsets alone. Arrow cannot cast every null struct.
                schema = schema or conversion.arrow_schema
                for batch, done_size in file.batches:
                    self.rows += batch.num_rows
                    given = pa.RecordBatch.from_arrays(batch.columns, schema=provided)
                    converted = conversion.convert(given)
                    yield converted if converted.schema == schema else converted.cast(schema)
                    report.progress(done_size)

    def _provided(self, file: RowsFile) -> pa.Schema:
        for name in file.schema.names:
            if name not in self._kinds:
                raise ValueError(f"the table has no column {name!r}")
        # Most files do not say which columns have no nulls. Nulls are refused in the batches.
        is_optional = {field.name: field.nullable for field in self._columns}
        return pa.schema([f.with_nullable(f.nullable and is_optional[f.name]) for f in file.schema])


def schema_of_rows(name: str, format_: str | None) -> Schema:
    """Return a table's schema for the rows in a file. Raises as ``open_rows``, and click.UsageError
    for a type that no column of a table has."""
    with open_rows(name, format_) as file:
        return iceberg_schema(file.schema)


@contextlib.contextmanager
def open_rows(
    name: str, format_: str | None, kinds: Mapping[str, pa.DataType] | None = None
) -> Iterator[RowsFile]:
    """Open a file of rows; ``-`` is standard input, an Arrow stream unless ``format_`` says
    otherwise. ``kinds`` are the types of the columns of CSV; without them, Arrow guesses the types.
    Raises FormatError for a file that is damaged or cut, OSError, and click.UsageError for CSV that
    is malformed or not of these types. So does what reads the batches within the context."""
    from pyiceberg.io.pyarrow import UnsupportedPyArrowTypeException

    shown = STDIN if name == "-" else name
    chosen = format_ or _format_of(name)
    try:
        with ExitStack() as stack:
            if chosen == "csv":
                file = _csv(_open(name, stack), kinds)
            elif chosen == "parquet":
                file = _parquet(_seekable(name, stack))
            else:
                file = _arrow(name, stack)
            batches = ((plain_batch(batch), done_size) for batch, done_size in file.batches)
            yield RowsFile(plain_schema(file.schema), batches)
    except Ags1Error as error:
        error.file = error.file or shown
        raise
    except pa.ArrowNotImplementedError as error:
        raise click.UsageError(f"{shown}: {_text(error)}") from None
    except (OSError, pa.ArrowException) as error:
        if isinstance(error, OSError) and error.errno is not None:
            error.filename = shown
            raise
        # Arrow's OSError of a file that is cut has no number.
        if chosen == "csv":
            raise click.UsageError(f"{shown}: {_text(error)}") from None
        raise FormatError(_text(error), file=shown) from None
    except (ValueError, TypeError, UnsupportedPyArrowTypeException) as error:
        raise click.UsageError(f"{shown}: {_mismatch(str(error))}") from None


def _size(name: str) -> int | None:
    """Return a file's size in bytes, None for a pipe. Raises OSError."""
    if name == "-":
        return None
    status = os.stat(name)
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def _open(name: str, stack: ExitStack) -> IO[bytes]:
    return binary_input() if name == "-" else stack.enter_context(open(name, "rb"))


def _seekable(name: str, stack: ExitStack) -> pa.NativeFile:
    if _size(name) is None:
        raise ValueError("this format is read from files, not from a pipe: name a file")
    return stack.enter_context(pa.OSFile(name))


def _format_of(name: str) -> str:
    if name == "-":
        return "arrow"
    suffix = os.path.splitext(name)[1].lower()
    if suffix not in _SUFFIXES:
        known = ", ".join(sorted(_SUFFIXES))
        message = f"{name}: its name does not end in one of {known}: give --input-format"
        raise click.UsageError(message)
    return _SUFFIXES[suffix]


def _parquet(source: pa.NativeFile) -> RowsFile:
    import pyarrow.parquet as pq

    opened = pq.ParquetFile(source, pre_buffer=False)

    def batches() -> _Batches:
        done = 0
        for batch in opened.iter_batches():
            done += batch.num_rows
            yield batch, source.size() * done // opened.metadata.num_rows

    return RowsFile(opened.schema_arrow, batches())


def _arrow(name: str, stack: ExitStack) -> RowsFile:
    file = _open(name, stack)
    if _size(name) is not None:
        if file.read(len(_ARROW_FILE)) == _ARROW_FILE:
            return _arrow_file(_seekable(name, stack))
        file.seek(0)
    whole = _Stream(file)
    try:
        opened = pa.ipc.open_stream(whole)
    except pa.ArrowInvalid as error:
        message = "this is not a stream of Arrow: give --input-format if it has another format"
        raise FormatError(f"{message} ({error})") from None

    def batches() -> _Batches:
        for batch in opened:
            yield batch, whole.done_size
        if whole.has_ended:
            # Arrow takes the end of the file for the end of the stream, and would not notice that a
            # stream was cut.
            raise FormatError("the stream ends without its end mark: it is truncated")

    return RowsFile(opened.schema, batches())


def _arrow_file(source: pa.NativeFile) -> RowsFile:
    opened = pa.ipc.open_file(source)
    count = opened.num_record_batches

    def batches() -> _Batches:
        for number in range(count):
            yield opened.get_batch(number), source.size() * (number + 1) // count

    return RowsFile(opened.schema, batches())


def _csv(file: IO[bytes], kinds: Mapping[str, pa.DataType] | None) -> RowsFile:
    from pyarrow import csv

    kinds = kinds or {}
    convert = csv.ConvertOptions(
        column_types={name: kind for name, kind in kinds.items() if _is_text(kind)},
        null_values=[""],  # 'NA' is a country
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    read = csv.ReadOptions(block_size=_CSV_BLOCK_SIZE)
    counted = _Stream(file)
    opened = csv.open_csv(counted, read, csv.ParseOptions(newlines_in_values=True), convert)
    for name in opened.schema.names:
        if name in kinds and not _is_text(kinds[name]):
            message = f"CSV has no form for the column {name!r} of type {kinds[name]}"
            raise ValueError(f"{message}: use Parquet or Arrow")
    return RowsFile(opened.schema, ((batch, counted.done_size) for batch in opened))


def _is_text(kind: pa.DataType) -> bool:
    """Whether a text of CSV stands for a value of this type."""
    types = pa.types
    numbers = types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind)
    texts = types.is_string(kind) or types.is_large_string(kind)
    return bool(numbers or texts or types.is_decimal(kind) or types.is_temporal(kind))


class _Stream(io.RawIOBase):
    """A file that counts what is read. ``has_ended`` is true after a read beyond its end."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.done_size = 0
        self.has_ended = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        # Arrow takes a short read for the end of the file.
        data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        self.has_ended = len(data) < len(buffer)
        self.done_size += len(data)
        return len(data)


def _text(error: BaseException) -> str:
    return " ".join(str(error).split())


def _mismatch(text: str) -> str:
    """Return a message as one line. If PyIceberg's message is a drawn table, the line has only the
    columns that do not fit."""
    rows = [line.split("\u2502") for line in text.splitlines() if "\u274c" in line]
    pairs = (f"the table has {row[2].strip()}, the data {row[3].strip()}" for row in rows)
    return "; ".join(pairs) or " ".join(text.split())

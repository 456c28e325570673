"""Files of rows that go into a table, as Arrow batches: Parquet, Arrow, CSV, JSON lines, Avro. CSV
and JSON lines of ``ags1 table scan`` are read back: base64 for binary, text for decimals and times,
pairs for maps. Only one batch is in memory at a time. Knows nothing of where rows go."""

from __future__ import annotations

import contextlib
import errno
import io
import itertools
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias

import pyarrow as pa

from ...errors import Ags1Error, FormatError
from ..console import STDIN, binary_input
from .texts import TextColumns

if TYPE_CHECKING:
    from pyiceberg.schema import Schema

    from ..report import Report

_Opened: TypeAlias = "tuple[pa.Schema, Iterator[pa.RecordBatch]]"
_SUFFIXES = {
    **dict.fromkeys((".parquet", ".pq"), "parquet"),
    **dict.fromkeys((".arrow", ".arrows", ".feather", ".ipc"), "arrow"),
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), "jsonl"),
    ".csv": "csv",
    ".avro": "avro",
}
_BATCH_ROWS = 65536
# A value has to fit into a block.
_CSV_BLOCK_SIZE = 8 << 20
_ARROW_FILE = b"ARROW1"


class Input:
    """A file of rows; ``-`` is standard input, Arrow's stream unless ``format_`` says otherwise.
    ``schema`` is Arrow's, of the batches; ``done_size`` is how many bytes of ``size`` are read,
    about. ``table_schema`` has the types of columns in text; without it, Arrow guesses them. Raises
    ValueError for a name that does not tell the format."""

    def __init__(self, name: str, format_: str | None, table_schema: Schema | None) -> None:
        self.name = STDIN if name == "-" else name
        self.path = name
        self.table_schema = table_schema
        self.done_size = 0
        self.schema = pa.schema([])
        # A pipe cannot be opened a second time.
        self.is_file = False
        self.size: int | None = None
        self._read = _FORMATS[format_ or _format_of(name)]
        self._stack = ExitStack()
        self._batches: Iterator[pa.RecordBatch] | None = None

    def open(self) -> None:
        """Open the file, if it is not, and read its schema. Raises as ``batches``."""
        from ...arrow_layouts import plain_batch, plain_schema

        if self._batches is not None:
            return
        self.done_size = 0
        with _failures(self.name), ExitStack() as self._stack:
            schema, batches = self._read(self, self._open())
            self.schema, self._batches = plain_schema(schema), map(plain_batch, batches)
            names = self.schema.names
            for name in names:
                if names.count(name) > 1:
                    raise FormatError(f"the file has the column {name!r} twice: rename one")
            self._stack = self._stack.pop_all()  # it stays open until `close`

    def close(self) -> None:
        """Close the file. It can be opened again."""
        self._batches = None
        self._stack.close()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of an open file. Raises Ags1Error with the file's name for a file that is
        damaged or cut, ValueError for text that does not fit the table, OSError."""
        assert self._batches is not None
        with _failures(self.name):
            yield from self._batches

    def need_file(self) -> None:
        """Raise ValueError for a pipe."""
        if not self.is_file:
            raise ValueError("this format is read from files, not from a pipe: name a file")

    def arrow_file(self) -> pa.NativeFile:
        """Open the file for Arrow, which seeks in it. Raises ValueError for a pipe."""
        self.need_file()
        return self._stack.enter_context(pa.OSFile(self.path))

    def advance(self, done: int, total: int) -> None:
        """Take that ``done`` parts of ``total`` are read."""
        self.done_size = (self.size or 0) * done // max(total, 1)

    def _open(self) -> _Counted:
        if self.path == "-":
            return _Counted(binary_input(), self)
        status = os.stat(self.path)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), self.path)
        self.is_file = stat.S_ISREG(status.st_mode)
        self.size = status.st_size if self.is_file else None
        return _Counted(self._stack.enter_context(io.FileIO(self.path)), self)


def _format_of(name: str) -> str:
    if name == "-":
        return "arrow"
    suffix = os.path.splitext(name)[1].lower()
    if suffix not in _SUFFIXES:
        known = ", ".join(sorted(_SUFFIXES))
        raise ValueError(f"{name}: its name does not end in one of {known}: give --input-format")
    return _SUFFIXES[suffix]


# Each of these opens a file of one format, and returns the schema and the batches.


def _parquet(source: Input, file: _Counted) -> _Opened:
    import pyarrow.parquet as pq

    opened = pq.ParquetFile(source.arrow_file(), pre_buffer=False)

    def batches() -> Iterator[pa.RecordBatch]:
        done = 0
        for batch in opened.iter_batches(_BATCH_ROWS):
            yield batch
            done += batch.num_rows
            source.advance(done, opened.metadata.num_rows)

    return opened.schema_arrow, batches()


def _arrow(source: Input, file: _Counted) -> _Opened:
    if source.is_file:
        if file.read(len(_ARROW_FILE)) == _ARROW_FILE:
            return _arrow_file(source)
        file.seek(0)
        source.done_size = 0
    try:
        stream = pa.ipc.open_stream(file)
    except pa.ArrowInvalid as error:
        said = "this is not a stream of Arrow: give --input-format if it has another format"
        raise FormatError(f"{said} ({error})") from None

    def batches() -> Iterator[pa.RecordBatch]:
        yield from stream
        if file.has_ended:
            # Arrow treats the end of the file like the stream's end mark. So it would not notice
            # that a stream was cut.
            raise FormatError("the stream ends without its end mark: it is truncated")

    return stream.schema, batches()


def _arrow_file(source: Input) -> _Opened:
    opened = pa.ipc.open_file(source.arrow_file())

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(opened.num_record_batches):
            yield opened.get_batch(number)
            source.advance(number + 1, opened.num_record_batches)

    return opened.schema, batches()


def _csv(source: Input, file: _Counted) -> _Opened:
    from pyarrow import csv

    texts = TextColumns(source.table_schema)
    convert = csv.ConvertOptions(
        column_types=texts.csv_types,
        null_values=[""],  # 'NA' is a country
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    read = csv.ReadOptions(block_size=_CSV_BLOCK_SIZE)
    opened = csv.open_csv(file, read, csv.ParseOptions(newlines_in_values=True), convert)
    schema = texts.schema_of_csv(opened.schema)
    return schema, (texts.of_csv(batch, schema) for batch in opened)


def _json_lines(source: Input, file: _Counted) -> _Opened:
    if source.table_schema is None:
        from pyarrow import json

        return json.open_json(file).schema, iter(())
    texts = TextColumns(source.table_schema)
    rows = texts.json_rows(enumerate(io.BufferedReader(file, 1 << 20), 1))
    first = next(rows, [])
    schema = texts.schema_of_json(first)
    some = itertools.chain([first], rows)
    return schema, (texts.of_json(part, schema) for part in some if part)


def _avro(source: Input, file: _Counted) -> _Opened:
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    from ...avro.files import AvroFile
    from ...avro.schema import iceberg_schema_of_avro

    source.need_file()
    avro = AvroFile(file)
    schema, names = iceberg_schema_of_avro(avro.schema)
    rows = avro.read(schema, name_mapping=names, positions=False)
    return schema_to_pyarrow(schema), (batch for _, batch in rows)


_FORMATS = {"parquet": _parquet, "arrow": _arrow, "csv": _csv, "jsonl": _json_lines, "avro": _avro}


class Inputs:
    """Several files of rows as a few streams, one for each set of columns that they have.
    ``groups`` are the schema and the files of each. ``size`` is that of all files in bytes, None
    where it cannot be known. ``rows`` counts those that were read. A context manager; entering it
    raises as ``Input.batches``."""

    def __init__(self, names: Sequence[str], format_: str | None, table_schema: Schema) -> None:
        self._required = {field.name for field in table_schema.fields if field.required}
        self._inputs = [Input(name, format_, table_schema) for name in names]
        self.groups: list[tuple[pa.Schema, list[Input]]] = []
        self.rows = 0

    def __enter__(self) -> Inputs:
        with ExitStack() as stack:
            stack.callback(self.__exit__)
            for source in self._inputs:
                source.open()
                self._add_to_group(source)
                if source.is_file:
                    # There may be more of them than a process can have open.
                    source.close()
            stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        for source in self._inputs:
            source.close()

    @property
    def size(self) -> int | None:
        sizes = [source.size for source in self._inputs]
        return None if None in sizes else sum(size or 0 for size in sizes)

    def readers(self, report: Report) -> Iterator[pa.RecordBatchReader]:
        """Yield each group's rows. While they are read, they raise as ``Input.batches``."""
        for schema, inputs in self.groups:
            rows = self._rows_of(schema, inputs, report)
            yield pa.RecordBatchReader.from_batches(schema, rows)

    def _add_to_group(self, source: Input) -> None:
        # Most files do not say which columns have no nulls. Nulls are checked later.
        schema = pa.schema(
            pa.field(f.name, f.type, f.nullable and f.name not in self._required)
            for f in source.schema
        )
        for number, (known, inputs) in enumerate(self.groups):
            both = _common_schema(known, schema)
            if both is not None:
                self.groups[number] = both, [*inputs, source]
                return
        self.groups.append((schema, [source]))

    def _rows_of(
        self, schema: pa.Schema, inputs: Iterable[Input], report: Report
    ) -> Iterator[pa.RecordBatch]:
        for source in inputs:
            source.open()
            report.begin(source.name)
            for batch in source.batches():
                if batch.num_rows:
                    self.rows += batch.num_rows
                    yield _cast(batch, schema)
                report.progress(source.done_size)
            source.close()
            report.progress(source.size or source.done_size)


def _common_schema(one: pa.Schema, other: pa.Schema) -> pa.Schema | None:
    """Return a schema for the rows of both. In it, no row loses a value or gets a column that it
    does not have. Return None if there is no such schema."""
    if set(one.names) != set(other.names):
        return None
    for field in one:
        kinds = {field.type, other.field(field.name).type}
        if len(kinds) > 1 and any(map(pa.types.is_nested, kinds)):
            return None
    try:
        return pa.unify_schemas([one, other], promote_options="permissive")
    except pa.ArrowException:
        return None


def _cast(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    named = ((batch.column(field.name), field.type) for field in schema)
    columns = [column if column.type == kind else column.cast(kind) for column, kind in named]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


class _Counted(io.RawIOBase):
    """A file that counts the bytes read. ``has_ended`` is true after a read beyond its end."""

    def __init__(self, file: BinaryIO | io.FileIO, source: Input) -> None:
        self._file = file
        self._source = source
        self.has_ended = False

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._file.seekable()

    def seek(self, offset: int, whence: int = 0, /) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def readinto(self, buffer: Any, /) -> int:
        # Return as many bytes as asked for, because Arrow treats a shorter result as the end.
        view = memoryview(buffer).cast("B")
        done = 0
        while done < len(view):
            part = self._file.read(len(view) - done)
            if not part:
                self.has_ended = True
                break
            view[done : done + len(part)] = part
            done += len(part)
        self._source.done_size += done
        return done


@contextlib.contextmanager
def _failures(name: str) -> Iterator[None]:
    """Name the file in Arrow's errors about it, and in our own."""
    try:
        yield
    except Ags1Error as error:
        error.file = error.file or name
        raise
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        # Arrow's OSError of a file that is cut has no number.
        if not isinstance(error, OSError) or error.errno is None:
            raise FormatError(" ".join(str(error).split()), file=name) from None
        error.filename = name
        raise
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None

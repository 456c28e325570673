"""Files of rows that go into a table, as Arrow batches: Parquet, Arrow, CSV, JSON lines, Avro.

CSV and JSON lines of ``ags1 table scan`` are read back: base64 for binary, text for decimals and
times, pairs for maps. Only one batch is in memory at a time. Knows nothing of where rows go.
"""

from __future__ import annotations

import contextlib
import errno
import io
import itertools
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import IO, TYPE_CHECKING, Any

import pyarrow as pa

from ...errors import Ags1Error, FormatError
from ..console import STDIN, binary_input
from .texts import TextColumns

if TYPE_CHECKING:
    from pyiceberg.schema import Schema

    from ..report import Report

_SUFFIXES = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".arrows": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".avro": "avro",
}
_FORMATS: dict[str, type[Input]] = {}
_BATCH_ROWS = 65536
# A value has to fit into a block.
_CSV_BLOCK_SIZE = 8 << 20
_ARROW_FILE = b"ARROW1"


class Input:
    """A file of rows. ``schema`` is Arrow's, of the batches; ``done_size`` is how many bytes of
    ``size`` are read, about.

    ``table_schema`` has the types of columns in text; without it, Arrow guesses them.
    """

    def __init__(self, name: str, table_schema: Schema | None) -> None:
        self.name = STDIN if name == "-" else name
        self.done_size = 0
        self.schema = pa.schema([])
        # A pipe cannot be opened a second time.
        self.is_file = False
        self.size: int | None = None
        self._path = name
        self._table_schema = table_schema
        self._stack = ExitStack()
        self._is_open = False

    def open(self) -> None:
        """Open the file, if it is not, and read its schema. Raises as ``batches``."""
        if self._is_open:
            return
        self._is_open = True
        self.done_size = 0
        with _failures(self.name):
            try:
                self._open()
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        """Close the file. It can be opened again."""
        self._stack.close()
        self._is_open = False

    def _open(self) -> None:
        if self._path == "-":
            raw: Any = binary_input()
        else:
            status = os.stat(self._path)
            if stat.S_ISDIR(status.st_mode):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), self._path)
            self.is_file = stat.S_ISREG(status.st_mode)
            self.size = status.st_size if self.is_file else None
            raw = self._stack.enter_context(io.FileIO(self._path))
        self._file = _Counted(raw, self._count)
        self._begin()
        names = self.schema.names
        for name in names:
            if names.count(name) > 1:
                raise FormatError(f"the file has the column {name!r} twice: rename one")

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows. Raises Ags1Error with the file's name for a file that is damaged or cut,
        ValueError for text that does not fit the table, OSError."""
        with _failures(self.name):
            yield from self._batches()

    def _count(self, size: int) -> None:
        self.done_size += size

    def _begin(self) -> None:
        raise NotImplementedError

    def _batches(self) -> Iterator[pa.RecordBatch]:
        raise NotImplementedError

    def _need_file(self) -> None:
        if not self.is_file:
            raise ValueError("this format is read from files, not from a pipe: name a file")


class _Parquet(Input):
    def _begin(self) -> None:
        import pyarrow.parquet as pq

        self._need_file()
        source = self._stack.enter_context(pa.OSFile(self._path))
        self._parquet = pq.ParquetFile(source, pre_buffer=False)
        self.schema = self._parquet.schema_arrow

    def _batches(self) -> Iterator[pa.RecordBatch]:
        rows, size = self._parquet.metadata.num_rows, self.size or 0
        done = 0
        for batch in self._parquet.iter_batches(_BATCH_ROWS):
            yield batch
            done += batch.num_rows
            self.done_size = size * done // max(rows, 1)


class _Arrow(Input):
    def _begin(self) -> None:
        self._groups: Any = None
        if self.is_file and self._file.read(len(_ARROW_FILE)) == _ARROW_FILE:
            source = self._stack.enter_context(pa.OSFile(self._path))
            self._groups = pa.ipc.open_file(source)
            self.schema = self._groups.schema
            return
        if self.is_file:
            self._file.seek(0)
            self.done_size = 0
        self._stream = pa.ipc.open_stream(self._file)
        self.schema = self._stream.schema

    def _batches(self) -> Iterator[pa.RecordBatch]:
        if self._groups is None:
            yield from self._stream
            if self._file.has_ended:
                # Arrow stops at the stream's end mark, and takes the file's end for another. Then a
                # stream that was cut would pass for a whole one.
                raise FormatError("the stream ends without its end mark: it is truncated")
            return
        for number in range(self._groups.num_record_batches):
            yield self._groups.get_batch(number)
            self.done_size = (self.size or 0) * (number + 1) // self._groups.num_record_batches


class _Csv(Input):
    def _begin(self) -> None:
        from pyarrow import csv

        texts = self._texts = TextColumns(self._table_schema)
        self._csv = csv.open_csv(
            self._file,
            read_options=csv.ReadOptions(block_size=_CSV_BLOCK_SIZE),
            parse_options=csv.ParseOptions(newlines_in_values=True),
            convert_options=csv.ConvertOptions(
                column_types=texts.csv_types,
                # 'NA' is a country.
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
        self.schema = texts.schema_of_csv(self._csv.schema)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        for batch in self._csv:
            yield self._texts.of_csv(batch, self.schema)


class _JsonLines(Input):
    def _begin(self) -> None:
        if self._table_schema is None:
            from pyarrow import json

            self.schema = json.open_json(self._file).schema
            return
        self._texts = TextColumns(self._table_schema)
        lines = enumerate(io.BufferedReader(self._file, 1 << 20), 1)
        self._rows = self._texts.json_rows(lines)
        self._first = next(self._rows, [])
        self.schema = self._texts.schema_of_json(self._first)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        first, self._first = self._first, []
        for rows in itertools.chain([first], self._rows):
            if rows:
                yield self._texts.of_json(rows, self.schema)


class _Avro(Input):
    def _begin(self) -> None:
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        from ...iceberg.formats.avro import AvroFile
        from ...iceberg.formats.avro_schema import iceberg_schema_of_avro

        self._need_file()
        self._avro = AvroFile(self._file)
        self._schema, self._names = iceberg_schema_of_avro(self._avro.schema)
        self.schema = schema_to_pyarrow(self._schema)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        for _, batch in self._avro.read(self._schema, name_mapping=self._names, positions=False):
            yield batch


_FORMATS.update(parquet=_Parquet, arrow=_Arrow, csv=_Csv, jsonl=_JsonLines, avro=_Avro)


def new_input(name: str, format_: str | None, table_schema: Schema | None) -> Input:
    """Return the file ``name``, not opened yet; ``-`` is standard input, Arrow's stream unless
    ``format_`` says otherwise. Raises ValueError for a name that does not tell the format."""
    if format_ is None:
        suffix = os.path.splitext(name)[1].lower()
        format_ = "arrow" if name == "-" else _SUFFIXES.get(suffix)
    if format_ is None:
        known = ", ".join(sorted(_SUFFIXES))
        raise ValueError(f"{name}: its name does not end in one of {known}: give --input-format")
    return _FORMATS[format_](name, table_schema)


class Inputs:
    """Several files of rows as a few streams, one for each set of columns that they have.

    ``groups`` are the schema and the files of each. ``size`` is that of all files in bytes, None
    where it cannot be known. A context manager. ``report`` is told how far the reading is.

    Entering it raises as ``Input.batches``.
    """

    def __init__(
        self,
        names: Sequence[str],
        format_: str | None,
        table_schema: Schema,
    ) -> None:
        self.report: Report | None = None
        self._required = {field.name for field in table_schema.fields if field.required}
        self._inputs = [new_input(name, format_, table_schema) for name in names]
        self.groups: list[tuple[pa.Schema, list[Input]]] = []
        self.rows = 0

    def __enter__(self) -> Inputs:
        try:
            for found in self._inputs:
                found.open()
                self._sort_in(found)
                if found.is_file:
                    # There may be more of them than a process can have open.
                    found.close()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for found in self._inputs:
            found.close()

    @property
    def size(self) -> int | None:
        sizes = [found.size for found in self._inputs]
        return None if None in sizes else sum(size or 0 for size in sizes)

    def readers(self) -> Iterator[pa.RecordBatchReader]:
        """Yield each group's rows. While they are read, they raise as ``Input.batches``; ``rows``
        counts them."""
        for schema, inputs in self.groups:
            yield pa.RecordBatchReader.from_batches(schema, self._rows_of(schema, inputs))

    def _sort_in(self, found: Input) -> None:
        # Most files say of no column that it has no nulls. Whether there are any is seen later.
        schema = pa.schema(
            pa.field(f.name, f.type, f.nullable and f.name not in self._required)
            for f in found.schema
        )
        for number, (known, inputs) in enumerate(self.groups):
            both = _of_both(known, schema)
            if both is not None:
                self.groups[number] = both, [*inputs, found]
                return
        self.groups.append((schema, [found]))

    def _rows_of(self, schema: pa.Schema, inputs: Iterable[Input]) -> Iterator[pa.RecordBatch]:
        for found in inputs:
            found.open()
            if self.report is not None:
                self.report.begin(found.name)
            for batch in found.batches():
                if batch.num_rows:
                    self.rows += batch.num_rows
                    yield _as(batch, schema)
                if self.report is not None:
                    self.report.progress(found.done_size)
            found.close()
            if self.report is not None:
                self.report.progress(found.size or found.done_size)


def _of_both(one: pa.Schema, other: pa.Schema) -> pa.Schema | None:
    """Return a schema for the rows of both, in which none of them lose anything or get columns that
    they do not have; None where there is none."""
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


def _as(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    columns = [
        column if column.type == field.type else column.cast(field.type)
        for field in schema
        for column in [batch.column(field.name)]
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


class _Counted(io.RawIOBase):
    """A file that tells how much is read of it, and ``has_ended`` once more was wanted than it
    has."""

    def __init__(self, file: IO[bytes], count: Callable[[int], None]) -> None:
        self._of = file
        self._count = count
        self.has_ended = False

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._of.seekable()

    def seek(self, offset: int, whence: int = 0, /) -> int:
        return self._of.seek(offset, whence)

    def tell(self) -> int:
        return self._of.tell()

    def readinto(self, buffer: Any, /) -> int:
        # All that is wanted, as Arrow takes less for the end.
        view = memoryview(buffer).cast("B")
        done = 0
        while done < len(view):
            part = self._of.read(len(view) - done)
            if not part:
                self.has_ended = True
                break
            view[done : done + len(part)] = part
            done += len(part)
        self._count(done)
        return done


@contextlib.contextmanager
def _failures(name: str) -> Iterator[None]:
    """Name the file in what Arrow says of it, and in our own failures."""
    try:
        yield
    except Ags1Error as error:
        error.file = error.file or name
        raise
    except OSError as error:
        # Arrow's of a file that is cut have no number.
        if error.errno is None:
            raise FormatError(" ".join(str(error).split()), file=name) from None
        error.filename = name
        raise
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise FormatError(" ".join(str(error).split()), file=name) from None
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None

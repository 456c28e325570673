"""Files of rows that go into a table, as Arrow batches: Parquet, Arrow, CSV, JSON lines, Avro.

What ``ags1 table scan`` prints as CSV or JSON lines is read back as it was: base64 for binary, text
for decimals and times, pairs for maps. Batches go through one by one, never all at once. Knows
nothing of what the rows are written to.
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
from typing import IO, TYPE_CHECKING, Any, cast

import pyarrow as pa

from ..errors import FormatError
from .standard import STDIN, binary_input
from .table_texts import TextColumns

if TYPE_CHECKING:
    from pyiceberg.schema import Schema

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
# The last bytes of a stream that ended: a message of no bytes. Before Arrow 0.15 it had only those.
_END_OF_STREAM = bytes(4)


class Input:
    """A file of rows. ``schema`` is Arrow's, of the batches; ``done_size`` is how many bytes of
    ``size`` are read, about.

    ``table_schema`` says what text means; without it, its types are guessed. A context manager:
    what is opened is closed at its end.
    """

    def __init__(self, name: str, table_schema: Schema | None) -> None:
        self.name = STDIN if name == "-" else name
        self.done_size = 0
        self.schema = pa.schema([])
        self._path = name
        self._table_schema = table_schema
        self._stack = ExitStack()
        self.can_be_reopened = False
        self.size: int | None = None

    def __enter__(self) -> Input:
        with _failures(self.name):
            self._open_file()
        return self

    def _open_file(self) -> None:
        self._file: IO[bytes]
        if self._path == "-":
            self._file = cast("IO[bytes]", _Counted(binary_input(), self._count))
            self._begin()
            return
        status = os.stat(self._path)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), self._path)
        self.can_be_reopened = stat.S_ISREG(status.st_mode)
        self.size = status.st_size if self.can_be_reopened else None
        raw = self._stack.enter_context(open(self._path, "rb"))
        self._file = cast("IO[bytes]", _Counted(raw, self._count))
        self._begin()
        names = self.schema.names
        for twice in {column for column in names if names.count(column) > 1}:
            raise FormatError(f"the column {twice!r} is there twice")

    def __exit__(self, *_: object) -> None:
        self._stack.close()

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
        if not self.can_be_reopened:
            raise FormatError("this format is read from files, and not from a pipe")


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
        if self.can_be_reopened and self._file.read(len(_ARROW_FILE)) == _ARROW_FILE:
            source = self._stack.enter_context(pa.OSFile(self._path))
            self._groups = pa.ipc.open_file(source)
            self.schema = self._groups.schema
            return
        if self.can_be_reopened:
            self._file.seek(0)
            self.done_size = 0
        self._stream = pa.ipc.open_stream(self._file)
        self.schema = self._stream.schema

    def _batches(self) -> Iterator[pa.RecordBatch]:
        if self._groups is None:
            yield from self._stream
            if cast("_Counted", self._file).tail != _END_OF_STREAM:
                # For Arrow a stream may just stop; then a cut one would pass for a whole one.
                raise FormatError("the stream stops without its end mark: it was cut")
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
        lines = enumerate(io.BufferedReader(cast("Any", self._file), 1 << 20), 1)
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

        from ..iceberg.avro import AvroFile
        from .table_avro import iceberg_schema_of_avro

        self._need_file()
        self._avro = AvroFile(self._file)
        self._schema, self._names = iceberg_schema_of_avro(self._avro.schema)
        self.schema = schema_to_pyarrow(self._schema)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        for _, batch in self._avro.read(self._schema, name_mapping=self._names, positions=False):
            yield batch


_FORMATS.update(parquet=_Parquet, arrow=_Arrow, csv=_Csv, jsonl=_JsonLines, avro=_Avro)
FORMATS = tuple(_FORMATS)


def new_input(name: str, format_: str | None, table_schema: Schema | None) -> Input:
    """Return the file ``name``, not opened yet; ``-`` is standard input, Arrow's stream unless
    ``format_`` says otherwise. Raises ValueError for a name that does not tell the format."""
    if format_ is None:
        suffix = os.path.splitext(name)[1].lower()
        format_ = "arrow" if name == "-" else _SUFFIXES.get(suffix)
    if format_ is None:
        known = ", ".join(sorted(_SUFFIXES))
        raise ValueError(f"{name}: its name does not end in one of {known}: say --input-format")
    return _FORMATS[format_](name, table_schema)


class Inputs:
    """Several files of rows as a few streams, one for each set of columns that they have.

    ``groups`` are the schema and the files of each. ``size`` is that of all files in bytes, None
    where it cannot be known. A context manager.
    """

    def __init__(
        self,
        names: Sequence[str],
        format_: str | None,
        table_schema: Schema,
        progress: Callable[[str, int], None],
    ) -> None:
        self._stack = ExitStack()
        self._progress = progress
        self._done_size = 0
        self._make = lambda name: new_input(name, format_, table_schema)
        self._names = names
        self._open: dict[str, Input] = {}
        self._sizes: list[int | None] = []
        self.groups: list[tuple[pa.Schema, list[str]]] = []
        self.rows = 0

    def __enter__(self) -> Inputs:
        try:
            for name in self._names:
                self._look_at(name)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def size(self) -> int | None:
        return None if None in self._sizes else sum(size or 0 for size in self._sizes)

    def readers(self) -> Iterator[pa.RecordBatchReader]:
        """Yield each group's rows. Raises, while they are read, as ``Input.batches``; ``rows``
        counts them."""
        for schema, names in self.groups:
            yield pa.RecordBatchReader.from_batches(schema, self._rows_of(schema, names))

    def _look_at(self, name: str) -> None:
        with ExitStack() as stack:
            found = stack.enter_context(self._make(name))
            schema = found.schema.remove_metadata()
            if not found.can_be_reopened:
                if name in self._open:
                    raise ValueError(f"{found.name} is given twice")
                self._open[name] = self._stack.enter_context(contextlib.closing(_Kept(found))).input
                stack.pop_all()
        self._sizes.append(found.size)
        for number, (known, names) in enumerate(self.groups):
            both = _of_both(known, schema)
            if both is not None:
                self.groups[number] = both, [*names, name]
                return
        self.groups.append((schema, [name]))

    def _rows_of(self, schema: pa.Schema, names: Iterable[str]) -> Iterator[pa.RecordBatch]:
        for name in names:
            with self._open.get(name) or self._make(name) as found:
                for batch in found.batches():
                    if batch.num_rows:
                        self.rows += batch.num_rows
                        yield _as(batch, schema)
                    self._progress(found.name, self._done_size + found.done_size)
                self._done_size += found.size or found.done_size


class _Kept:
    """Closes an input that cannot be opened a second time."""

    def __init__(self, kept: Input) -> None:
        self.input = _Once(kept)

    def close(self) -> None:
        self.input.kept.__exit__(None, None, None)


class _Once(Input):
    """An input that is open already."""

    def __init__(self, kept: Input) -> None:
        self.kept = kept

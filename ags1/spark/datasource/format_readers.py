"""Reads text, CSV, Parquet and Avro inside encrypted files as Arrow batches. Each format tells a
file's columns and reads the rows of a part of it. Text and CSV are split by lines, Parquet by row
groups, Avro by its sync markers. Independent of keys and of Spark."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from ...columns.row_groups import row_group_starts
from ...errors import FormatError
from .. import options as opt
from .csv_records import Quoting, first_record, whole_records
from .encrypted_files import OpenPart
from .lines import CHUNK_SIZE, SAMPLE_SIZE, whole_lines, with_line_feeds

_BATCH_ROWS = 1 << 16
_VALUE = "value"


class InnerFormat(Protocol):
    def columns(self, whole: OpenPart) -> pa.Schema:
        """Return the columns of a whole file."""
        ...

    def read(self, part: OpenPart, wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield a part's rows, with at least the columns of ``wanted`` that the file has, in any
        order and any type that casts to the wanted one. Raises FormatError."""
        ...


def inner_format(options: Mapping[str, str]) -> InnerFormat | None:
    """Return the format that the options name, None if they name none. Raises ValueError."""
    name = opt.inner(options)
    if name == "avro":
        from .avro_rows import Avro  # optional: needs the extra "iceberg"

        return Avro()
    if name == "csv":
        return Csv(options)
    return {"": None, "text": Text(), "parquet": Parquet()}[name]


class Text:
    """Lines, as Spark's text source has them: one column, ``value``."""

    def columns(self, whole: OpenPart) -> pa.Schema:
        return pa.schema([(_VALUE, pa.string())])

    def read(self, part: OpenPart, wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
        for data in whole_lines(part.reader, part.begin, part.end, CHUNK_SIZE):
            text = with_line_feeds(data).removesuffix(b"\n")
            lines = pc.split_pattern(pa.array([text], pa.large_binary()), b"\n").values
            try:
                yield pa.RecordBatch.from_arrays([lines.cast(pa.large_string())], [_VALUE])
            except pa.ArrowInvalid:
                raise FormatError("the text is not UTF-8: leave 'inner' out") from None


class Csv:
    """Comma-separated values, quoted as in RFC 4180. A quoted value may have line ends, but not
    where a file is cut into parts: that raises FormatError. Options are Spark's ``header``,
    ``sep``, ``quote``, ``escape`` (none by default), ``nullValue``, ``inferSchema`` and
    ``multiLine`` (a file is not cut). If files have headers, each file's own one names its columns.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self.header = opt.flag(options, "header")
        self.separator = options.get("sep") or options.get("delimiter") or ","
        self.quote = options.get("quote", '"')
        self.escape = options.get("escape", "")
        self.null = options.get("nullvalue", "")
        self.infers = opt.flag(options, "inferschema")
        self._quoting = Quoting(self.separator, self.quote, self.escape)

    def columns(self, whole: OpenPart) -> pa.Schema:
        names, begin = self._names(whole)
        if self.infers:
            records = whole_records(whole.reader, begin, whole.end, SAMPLE_SIZE, self._quoting)
            sample = next(records, b"")
            if sample.strip():
                fields = self._parse(sample, names, {}).schema
                return pa.schema([(f.name, _known(f.type)) for f in fields])
        return pa.schema([(name, pa.string()) for name in names])

    def read(self, part: OpenPart, wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
        names, after_header = self._names(part)
        types = {f.name: f.type for f in wanted if f.name in names}
        begin = max(part.begin, after_header)
        end = max(begin, part.end)
        for data in whole_records(part.reader, begin, end, CHUNK_SIZE, self._quoting):
            if data.strip(b"\r\n"):
                yield from self._parse(data, names, types).to_batches()

    def _names(self, part: OpenPart) -> tuple[list[str], int]:
        """Return the names of the columns, and the offset of the rows."""
        end = first_record(part.reader, self._quoting)
        try:
            line = part.reader.pread(0, end).decode("utf-8-sig").strip("\r\n")
        except UnicodeDecodeError:
            raise FormatError("the first line is not UTF-8: leave 'inner' out") from None
        rows = csv.reader(
            io.StringIO(line, newline=""),
            delimiter=self.separator,
            quotechar=self.quote or None,
            escapechar=self.escape or None,
            quoting=csv.QUOTE_MINIMAL if self.quote else csv.QUOTE_NONE,
        )
        first = next(rows, [])
        if self.header:
            return [name or f"_c{n}" for n, name in enumerate(first)], end
        return [f"_c{n}" for n in range(len(first))], 0

    def _parse(self, data: bytes, names: list[str], types: dict[str, pa.DataType]) -> pa.Table:
        try:
            return pa_csv.read_csv(
                pa.BufferReader(data),
                pa_csv.ReadOptions(column_names=names, use_threads=False, block_size=len(data) + 1),
                pa_csv.ParseOptions(
                    delimiter=self.separator,
                    quote_char=self.quote or False,
                    double_quote=bool(self.quote),
                    escape_char=self.escape or False,
                ),
                pa_csv.ConvertOptions(
                    column_types=types,
                    include_columns=list(types) or None,
                    null_values=[self.null],
                    strings_can_be_null=True,
                    quoted_strings_can_be_null=False,
                ),
            )
        except pa.ArrowInvalid as error:
            raise _unreadable("CSV", error) from None


class Parquet:
    """Parquet files that are encrypted as a whole; a row group is in the part where it begins."""

    def columns(self, whole: OpenPart) -> pa.Schema:
        return _parquet(whole).schema_arrow

    def read(self, part: OpenPart, wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
        file = _parquet(part)
        starts = enumerate(row_group_starts(file.metadata))
        groups = [number for number, start in starts if part.begin <= start < part.end]
        present = set(file.schema_arrow.names)
        names = [name for name in wanted.names if name in present]
        if not names:
            rows = sum(file.metadata.row_group(group).num_rows for group in groups)
            yield from _rows_of_nothing(rows)
            return
        try:
            yield from file.iter_batches(_BATCH_ROWS, groups, names, use_threads=False)
        except (pa.ArrowInvalid, OSError) as error:
            raise _bad_parquet(error) from None


def _parquet(part: OpenPart) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(part.reader)
    except (pa.ArrowInvalid, OSError) as error:
        raise _bad_parquet(error) from None


def _bad_parquet(error: Exception) -> Exception:
    # Arrow also raises OSError for a bad file; an error of the storage has a number.
    storage_s = isinstance(error, OSError) and error.errno is not None
    return error if storage_s else _unreadable("Parquet", error)


def _rows_of_nothing(rows: int) -> Iterator[pa.RecordBatch]:
    """Yield so many rows of a column that is not asked for: a batch without columns has no rows."""
    for first in range(0, rows, _BATCH_ROWS):
        nulls = pa.nulls(min(_BATCH_ROWS, rows - first))
        yield pa.RecordBatch.from_arrays([nulls], ["\0"])


def _known(kind: pa.DataType) -> pa.DataType:
    return pa.string() if pa.types.is_null(kind) or pa.types.is_time(kind) else kind


def _unreadable(what: str, error: Exception) -> FormatError:
    # Arrow's message quotes the rows that it cannot read, and they may be secret.
    message = str(error).partition(":")[0].splitlines()[0][:100]
    return FormatError(f"the {what} inside cannot be read: {message}")

"""Rows of a table as text or as files: a table to read, JSON lines, CSV, Arrow's stream, Parquet.
Only one batch is in memory at a time. Independent of where they come from."""

from __future__ import annotations

import base64
import csv
import datetime
import decimal
import io
import itertools
import json
import math
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import IO, TYPE_CHECKING, Any

from ..exits import one_line

if TYPE_CHECKING:
    import pyarrow as pa

    Write = Callable[[pa.RecordBatchReader, IO[bytes]], None]

_MAX_CELL_WIDTH = 40
_WIDTH_SAMPLE_ROWS = 500


def write_table(reader: pa.RecordBatchReader, out: IO[bytes]) -> None:
    """Write columns aligned for reading. Long values are shortened."""
    names = [one_line(name) for name in reader.schema.names]
    rows = ([_cell(value) for value in row.values()] for row in _rows(reader))
    first = list(itertools.islice(rows, _WIDTH_SAMPLE_ROWS))
    widths = [max([len(name), *(len(row[i]) for row in first)]) for i, name in enumerate(names)]
    for line in itertools.chain([names, ["-" * width for width in widths]], first, rows):
        text = "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        out.write(text.rstrip().encode("utf-8", "replace") + b"\n")


def write_jsonl(reader: pa.RecordBatchReader, out: IO[bytes]) -> None:
    """Write a JSON object a line. Binary is base64, decimals are strings, maps are pairs."""
    for row in _rows(reader):
        text = json.dumps({name: json_value(value) for name, value in row.items()})
        out.write(text.encode() + b"\n")


def write_csv(reader: pa.RecordBatchReader, out: IO[bytes]) -> None:
    """Write CSV with a header. Null is empty; lists, maps and structs are JSON."""
    text = io.TextIOWrapper(out, "utf-8", newline="", write_through=True)
    try:
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(reader.schema.names)
        writer.writerows(map(_plain, row.values()) for row in _rows(reader))
    finally:
        text.detach()


def write_arrow(reader: pa.RecordBatchReader, out: IO[bytes]) -> None:
    """Write Arrow's IPC stream."""
    import pyarrow as pa

    with pa.ipc.new_stream(out, reader.schema) as writer:
        for batch in reader:
            writer.write_batch(batch)


def write_parquet(reader: pa.RecordBatchReader, out: IO[bytes]) -> None:
    """Write one unencrypted Parquet file."""
    import pyarrow.parquet as pq

    with pq.ParquetWriter(out, reader.schema) as writer:
        for batch in reader:
            writer.write_batch(batch)


WRITERS: dict[str, Write] = {
    "table": write_table,
    "jsonl": write_jsonl,
    "csv": write_csv,
    "arrow": write_arrow,
    "parquet": write_parquet,
}
BINARY = ("arrow", "parquet")


def json_value(value: Any) -> Any:
    """Return a value of Arrow in the form that JSON has for it; nothing is lost."""
    if isinstance(value, (bytes, bytearray)):
        return base64.b64encode(value).decode()
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    is_not_finite = isinstance(value, float) and not math.isfinite(value)
    if is_not_finite or isinstance(value, (decimal.Decimal, uuid.UUID)):
        return str(value)
    if isinstance(value, dict):
        return {name: json_value(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_value(inner) for inner in value]
    return value


def _rows(batches: Iterable[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    for batch in batches:
        yield from _readable(batch).to_pylist()


def _readable(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Python's times have no nanoseconds: such columns become text."""
    import pyarrow as pa

    def is_finer(kind: pa.DataType) -> bool:
        return bool(pa.types.is_timestamp(kind) and kind.unit == "ns")

    columns = [c.cast(pa.string()) if is_finer(c.type) else c for c in batch.columns]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _plain(value: Any) -> Any:
    value = json_value(value)
    return json.dumps(value) if isinstance(value, (dict, list, bool)) else value


def _cell(value: Any) -> str:
    text = "" if value is None else one_line(str(_plain(value)))
    return text if len(text) <= _MAX_CELL_WIDTH else text[: _MAX_CELL_WIDTH - 1] + "…"

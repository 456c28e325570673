"""Writes Arrow batches as encrypted files of several formats.

Text, CSV and Parquet are written through an AGS1 stream, Avro as Iceberg's data files are, which
any reader of Avro reads. Rows are kept in memory only until they fill a row group. Independent of
wrapped keys and of Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from ...columns.arrow_nested import for_parquet
from ...engine.key_metadata import KeyMetadata
from ...engine.stream import open as open_stream
from ...keys.keychain import FILE_KEY_SIZE
from .. import options as opt

_ROW_GROUP_SIZE = 64 << 20


def check_columns(inner: str, schema: pa.Schema) -> None:
    """Raise ValueError if a format cannot hold such columns."""
    if inner == "text" and (len(schema) != 1 or not pa.types.is_string(schema[0].type)):
        raise ValueError("text files have one column, a string: select one")
    nested = [f.name for f in schema if pa.types.is_nested(f.type)]
    if inner == "csv" and nested:
        raise ValueError(f"CSV cannot hold the nested column {nested[0]!r}: leave it out")
    binary = [f.name for f in schema if pa.types.is_binary(f.type)]
    if inner == "csv" and binary:
        raise ValueError(f"CSV cannot hold the binary column {binary[0]!r}: cast it with base64()")
    if inner == "avro":
        from .avro_rows import schema_for

        schema_for(schema)


def write_file(
    inner: str,
    path: str,
    columns: pa.Schema,
    rows: Iterable[pa.RecordBatch],
    options: Mapping[str, str],
) -> KeyMetadata:
    """Write batches of these columns as a new file under a fresh key; return its key metadata.
    Options are ``compression`` of Parquet and Avro, ``header`` and ``sep`` of CSV. Raises OSError,
    ValueError, and then leaves no file."""
    if inner == "avro":
        from .avro_rows import write_avro

        codec = options.get("compression", "zstd").lower()
        return write_avro(path, columns, _gathered(rows), codec, FILE_KEY_SIZE)
    # Given a path, the stream is synced and appears whole.
    writer = open_stream(path, "xb", key_size=FILE_KEY_SIZE)
    with writer:
        if inner == "parquet":
            codec = options.get("compression", "zstd").lower()
            with pq.ParquetWriter(writer, columns, compression=codec) as parquet:
                for table in _gathered(rows):
                    parquet.write_table(for_parquet(table), row_group_size=table.num_rows)
        elif inner == "csv":
            write_options = pa_csv.WriteOptions(
                include_header=opt.flag(options, "header"),
                delimiter=options.get("sep") or ",",
                quoting_style="needed",
            )
            with pa_csv.CSVWriter(writer, columns, write_options=write_options) as text:
                for batch in rows:
                    text.write_batch(batch)
        else:
            for batch in rows:
                writer.write(_text_lines(batch))
    return writer.key_metadata


def _gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield tables of about a row group's size."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        held.append(batch)
        size += batch.get_total_buffer_size()  # ``nbytes`` may read outside of Spark's buffers
        if size >= _ROW_GROUP_SIZE:
            yield pa.Table.from_batches(held)
            held, size = [], 0
    if held:
        yield pa.Table.from_batches(held)


def _text_lines(batch: pa.RecordBatch) -> bytes:
    lines = (value or "" for value in batch.column(0).to_pylist())
    return "".join(f"{line}\n" for line in lines).encode()

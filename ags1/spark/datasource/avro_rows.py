"""Reads and writes encrypted Avro files as Arrow batches. Needs PyIceberg, which is optional.

The reader of Iceberg's Avro files reads those of any program: it needs an Iceberg schema, which is
made from the file's own. Files are written as Iceberg's are. Knows nothing of wrapped keys and of
Spark.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyiceberg.io.pyarrow import UnsupportedPyArrowTypeException, schema_to_pyarrow
from pyiceberg.schema import Schema, assign_fresh_schema_ids

from ...arrow_nested import with_offsets
from ...atomic import AtomicFile
from ...key_metadata import KeyMetadata
from ..iceberg_api import (
    AvroCodec,
    AvroFile,
    AvroFileWriter,
    RowConversion,
    iceberg_schema,
    iceberg_schema_of_avro,
    writable,
)
from .encrypted_files import OpenPart

_BATCH_ROWS = 1 << 16


class Avro:
    """Avro's object container files."""

    def columns(self, whole: OpenPart) -> pa.Schema:
        schema, _ = iceberg_schema_of_avro(AvroFile(whole.reader).schema)
        return schema_to_pyarrow(schema, include_field_ids=False)

    def read(self, part: OpenPart, wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
        file = AvroFile(part.reader)
        schema, mapping = iceberg_schema_of_avro(file.schema)
        fields = [field for field in schema.fields if field.name in wanted.names]
        # Without a wanted column, read one to count the rows.
        chosen = Schema(*(fields or schema.fields[:1]))
        split = (part.begin, part.end - part.begin)
        rows = file.read(
            chosen, split=split, batch_size=_BATCH_ROWS, name_mapping=mapping, positions=False
        )
        yield from (batch for _, batch in rows)


def schema_for(columns: pa.Schema) -> Schema:
    """Return the Iceberg schema, with ids, that columns are written by. Raises ValueError for a
    type that Avro files do not hold, UnsupportedTypeError for one that is nested too deeply."""
    try:
        return writable(assign_fresh_schema_ids(iceberg_schema(columns)), is_avro=True)
    except (TypeError, ValueError, UnsupportedPyArrowTypeException) as error:
        raise ValueError(f"Avro cannot hold a column: {error}") from None


def write_avro(
    path: str, columns: pa.Schema, tables: Iterable[pa.Table], codec: str, key_size: int
) -> KeyMetadata:
    """Write an Avro file under a fresh key of ``key_size`` bytes; return its key metadata.
    ``codec`` is uncompressed, gzip, snappy or zstd. Raises OSError, ValueError."""
    schema = schema_for(columns)
    conversion = RowConversion(schema, columns)
    with AtomicFile(path) as target, open(target.fd, "wb", 1 << 20, closefd=False) as file:
        km = KeyMetadata.generate(key_size)
        described = json.loads(schema.model_dump_json())
        writer = AvroFileWriter(file, km, schema, described, AvroCodec(codec))
        try:
            for table in tables:
                batches = map(conversion.convert, map(with_offsets, table.to_batches()))
                writer.write(pa.Table.from_batches(list(batches)))
        except BaseException:
            writer.abort()
            raise
        return writer.close()

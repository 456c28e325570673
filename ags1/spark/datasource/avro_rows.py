"""Reads and writes encrypted Avro files as Arrow batches. Needs PyIceberg, which is optional.

``ags1.columns.avro`` reads the files of any program: it needs an Iceberg schema, which is made from
the file's own. Independent of wrapped keys and of Spark.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyiceberg.io.pyarrow import (
    UnsupportedPyArrowTypeException,
    pyarrow_to_schema,
    schema_to_pyarrow,
)
from pyiceberg.schema import Schema

from ...columns.arrow_nested import with_offsets
from ...columns.avro.container import AvroCodec
from ...columns.avro.files import AvroFile
from ...columns.avro.schema import avro_schema, iceberg_schema_of_avro
from ...columns.avro.writer import AvroFileWriter
from ...engine.key_metadata import KeyMetadata
from ...errors import FormatError, UnsupportedTypeError
from ...host.atomic import AtomicFile
from .encrypted_files import OpenPart

_BATCH_ROWS = 1 << 16
_FIELD_ID = b"PARQUET:field_id"  # where PyIceberg looks for the id of an Arrow field


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
    ids = itertools.count(1)
    try:
        schema = pyarrow_to_schema(pa.schema([_numbered(field, ids) for field in columns]))
        described = avro_schema(schema.as_struct())
    except (TypeError, ValueError, UnsupportedPyArrowTypeException) as error:
        raise ValueError(f"Avro cannot hold a column: {error}") from None
    try:
        iceberg_schema_of_avro(described)
    except FormatError as error:
        raise UnsupportedTypeError(f"no reader could read the file: {error.message}") from None
    return schema


def _numbered(field: pa.Field, ids: Iterator[int]) -> pa.Field:
    """Return an Arrow field with ids, for itself and for the fields in it."""
    field = field.with_metadata({_FIELD_ID: str(next(ids))})
    kind = field.type
    if pa.types.is_struct(kind):
        kind = pa.struct([_numbered(inner, ids) for inner in kind])
    elif pa.types.is_map(kind):
        kind = pa.map_(_numbered(kind.key_field, ids), _numbered(kind.item_field, ids))
    elif pa.types.is_list(kind):
        kind = pa.list_(_numbered(kind.value_field, ids))
    return field.with_type(kind)


def write_avro(
    path: str, columns: pa.Schema, tables: Iterable[pa.Table], codec: str, key_size: int
) -> KeyMetadata:
    """Write an Avro file under a fresh key of ``key_size`` bytes; return its key metadata.
    ``codec`` is uncompressed, gzip, snappy or zstd. Raises OSError, ValueError."""
    schema = schema_for(columns)
    with AtomicFile(path) as target, open(target.fd, "wb", 1 << 20, closefd=False) as file:
        key_metadata = KeyMetadata.generate(key_size)
        described = json.loads(schema.model_dump_json())
        writer = AvroFileWriter(file, key_metadata, schema, described, AvroCodec(codec))
        try:
            for table in tables:
                batches = map(with_offsets, table.to_batches())
                writer.write(pa.Table.from_batches(list(batches), table.schema))
        except BaseException:
            writer.abort()
            raise
        return writer.close()

"""Avro files that anybody wrote, as Arrow batches.

The reader of Iceberg's Avro files reads them: what it needs is an Iceberg schema, which is made
here of the file's own. Types are those that Spark's Avro source has; a union is of null and one
type. And Avro files of Arrow batches, as Iceberg's writers make them. Knows nothing of wrapped keys
and of Spark.
"""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyiceberg.io.pyarrow import UnsupportedPyArrowTypeException, schema_to_pyarrow
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table.name_mapping import NameMapping, create_mapping_from_schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from ..atomic import AtomicFile
from ..errors import FormatError
from ..iceberg.avro import AvroFile
from ..iceberg.pyiceberg_internals import iceberg_schema as arrow_to_iceberg
from ..iceberg.writing.avro_files import AvroCodec, AvroFileWriter
from ..iceberg.writing.conversion import RowConversion
from ..key_metadata import KeyMetadata
from .sealed_files import OpenPart

_BATCH_ROWS = 1 << 16
_MAX_DEPTH = 64

_PRIMITIVES: dict[str, IcebergType] = {
    "boolean": BooleanType(),
    "int": IntegerType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "bytes": BinaryType(),
    "string": StringType(),
}
_LOGICAL: dict[tuple[str, str], IcebergType] = {
    ("int", "date"): DateType(),
    ("int", "time-millis"): TimeType(),
    ("long", "time-micros"): TimeType(),
    ("long", "local-timestamp-millis"): TimestampType(),
    ("long", "local-timestamp-micros"): TimestampType(),
    ("long", "local-timestamp-nanos"): TimestampNanoType(),
}


@dataclass(frozen=True, slots=True)
class Avro:
    """Avro's object container files."""

    def columns(self, whole: OpenPart) -> pa.Schema:
        schema, _ = iceberg_schema(AvroFile(whole.reader).schema)
        return schema_to_pyarrow(schema, include_field_ids=False)

    def read(self, part: OpenPart, wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
        file = AvroFile(part.reader)
        schema, mapping = iceberg_schema(file.schema)
        fields = [field for field in schema.fields if field.name in wanted.names]
        # Rows are counted by a column, and a small one is the best.
        chosen = Schema(*(fields or schema.fields[:1]))
        for _, batch in file.read(
            chosen,
            split=(part.begin, part.end - part.begin),
            batch_size=_BATCH_ROWS,
            name_mapping=mapping,
            positions=False,
        ):
            yield batch


def iceberg_schema(avro: Any) -> tuple[Schema, NameMapping | None]:
    """Return the Iceberg schema of an Avro file's rows, and the names of the fields, None where
    the file has ids of its own. Raises FormatError for what cannot be read as columns."""
    converted = _Converter().rows(avro)
    if _has_ids(avro):
        return converted, None
    return converted, create_mapping_from_schema(converted)


def _has_ids(avro: Any) -> bool:
    if isinstance(avro, dict):
        return "field-id" in avro or any(map(_has_ids, avro.values()))
    return isinstance(avro, list) and any(map(_has_ids, avro))


class _Converter:
    def __init__(self) -> None:
        self._ids = itertools.count(1)
        self._named: dict[str, Any] = {}
        self._depth = 0

    def rows(self, avro: Any) -> Schema:
        kind, _ = self._type(avro, "", "")
        if not isinstance(kind, StructType):
            raise FormatError("the Avro file's rows are no records")
        return Schema(*kind.fields)

    def _type(self, avro: Any, namespace: str, path: str) -> tuple[IcebergType, bool]:
        """Return a type, and whether it may be null."""
        if isinstance(avro, list):
            return self._union(avro, namespace, path)
        definition = avro if isinstance(avro, dict) else {"type": avro}
        kind = definition.get("type")
        if isinstance(kind, (dict, list)):
            return self._type(kind, namespace, path)
        self._depth += 1
        if self._depth > _MAX_DEPTH or not isinstance(kind, str):
            raise FormatError(f"{path}: the Avro type is nested too deeply, or is none")
        try:
            return self._single(kind, definition, namespace, path), False
        finally:
            self._depth -= 1

    def _union(self, branches: list[Any], namespace: str, path: str) -> tuple[IcebergType, bool]:
        others = [b for b in branches if b not in ("null", {"type": "null"})]
        if len(others) != 1:
            raise FormatError(f"{path}: a union of null and one type is read, and no other")
        kind, optional = self._type(others[0], namespace, path)
        return kind, optional or len(branches) > 1

    def _single(
        self, kind: str, definition: dict[str, Any], namespace: str, path: str
    ) -> IcebergType:
        if kind in ("record", "error", "enum", "fixed"):
            namespace = self._name(definition, namespace)
        elif kind not in _PRIMITIVES and kind not in ("array", "map"):
            full = kind if "." in kind or not namespace else f"{namespace}.{kind}"
            known = self._named.get(full) or self._named.get(kind)
            if known is None:
                raise FormatError(f"{path}: the file has no such Avro type")
            return self._single(known["type"], known, namespace, path)
        if kind in ("record", "error"):
            return self._record(definition, namespace, path)
        if kind == "array":
            return self._array(definition, namespace, path)
        if kind == "map":
            value, optional = self._type(definition.get("values"), namespace, f"{path}.value")
            key_id = definition.get("key-id") or next(self._ids)
            value_id = definition.get("value-id") or next(self._ids)
            return MapType(key_id, StringType(), value_id, value, value_required=not optional)
        return _leaf(kind, definition)

    def _name(self, definition: dict[str, Any], namespace: str) -> str:
        """Remember a named type; return the namespace inside it."""
        name = str(definition.get("name", ""))
        space = definition.get("namespace", namespace) or ""
        full = name if "." in name or not space else f"{space}.{name}"
        self._named.setdefault(full, definition)
        return full.rpartition(".")[0]

    def _record(self, definition: dict[str, Any], namespace: str, path: str) -> StructType:
        fields = []
        for field in definition.get("fields") or ():
            if not isinstance(field, dict) or not isinstance(field.get("name"), str):
                raise FormatError(f"{path or 'a row'}: a record has no fields")
            name = field["name"]
            field_id = field.get("field-id") or next(self._ids)
            kind, optional = self._type(field.get("type"), namespace, f"{path}.{name}".lstrip("."))
            fields.append(NestedField(field_id, name, kind, required=not optional))
        return StructType(*fields)

    def _array(self, definition: dict[str, Any], namespace: str, path: str) -> IcebergType:
        items = definition.get("items")
        if definition.get("logicalType") == "map" and isinstance(items, dict):
            # Iceberg's maps whose keys are no strings.
            pair = self._record(items, namespace, path)
            key, value = pair.fields
            return MapType(
                key.field_id,
                key.field_type,
                value.field_id,
                value.field_type,
                value_required=value.required,
            )
        element, optional = self._type(items, namespace, f"{path}.element")
        element_id = definition.get("element-id") or next(self._ids)
        return ListType(element_id, element, element_required=not optional)


def _leaf(kind: str, definition: dict[str, Any]) -> IcebergType:
    logical = definition.get("logicalType")
    if logical == "decimal" and kind in ("bytes", "fixed"):
        return DecimalType(definition.get("precision", 0), definition.get("scale", 0))
    if kind == "fixed":
        size = definition.get("size", 0)
        return UUIDType() if logical == "uuid" and size == 16 else FixedType(size)
    if kind == "enum":
        return StringType()
    if kind == "long" and logical in ("timestamp-millis", "timestamp-micros", "timestamp-nanos"):
        # Avro's are instants; Iceberg's writers say where one of theirs is not.
        is_local = definition.get("adjust-to-utc") is False
        if logical == "timestamp-nanos":
            return TimestampNanoType() if is_local else TimestamptzNanoType()
        return TimestampType() if is_local else TimestamptzType()
    return _LOGICAL.get((kind, str(logical)), _PRIMITIVES[kind])


def schema_for(columns: pa.Schema) -> Schema:
    """Return the Iceberg schema, with ids, that columns are written by. Raises ValueError for a
    type that Avro files do not hold."""
    try:
        return assign_fresh_schema_ids(arrow_to_iceberg(columns))
    except (TypeError, ValueError, UnsupportedPyArrowTypeException) as error:
        raise ValueError(f"Avro cannot hold a column: {error}") from None


def write_avro(
    path: str, columns: pa.Schema, tables: Iterable[pa.Table], codec: str, key_size: int
) -> KeyMetadata:
    """Write an Avro file under a fresh key of ``key_size`` bytes; return its key metadata.

    ``codec`` is uncompressed, gzip, snappy or zstd. Raises OSError, ValueError.
    """
    schema = schema_for(columns)
    conversion = RowConversion(schema, columns)
    with AtomicFile(path) as target:
        with io.FileIO(target.fd, "w", closefd=False) as raw:
            with io.BufferedWriter(raw, 1 << 20) as file:
                km = KeyMetadata.generate(key_size)
                described = json.loads(schema.model_dump_json())
                writer = AvroFileWriter(file, km, schema, described, AvroCodec(codec))
                try:
                    for table in tables:
                        batches = map(conversion.convert, table.to_batches())
                        writer.write(pa.Table.from_batches(list(batches)))
                except BaseException:
                    writer.abort()
                    raise
                return writer.close()

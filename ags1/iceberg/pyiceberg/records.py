"""The records of manifests and manifest lists, as PyIceberg's decoder of Avro reads them."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

from pyiceberg.avro.file import AvroFileHeader
from pyiceberg.avro.reader import Reader
from pyiceberg.avro.resolver import resolve_reader
from pyiceberg.manifest import (
    DATA_FILE_TYPE,
    MANIFEST_ENTRY_SCHEMAS,
    MANIFEST_LIST_FILE_SCHEMAS,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    PartitionFieldSummary,
)
from pyiceberg.manifest import _inherit_from_manifest as inherit_from_manifest
from pyiceberg.schema import Schema
from pyiceberg.types import StructType

from ..formats._avro_decoder import CheckedDecoder
from ..formats.avro_container import Container

__all__ = [
    "DATA_FILE",
    "MANIFEST_ENTRY_SCHEMAS",
    "MANIFEST_FILE",
    "MANIFEST_LIST_FILE_SCHEMAS",
    "ManifestContent",
    "ManifestEntry",
    "ManifestEntryStatus",
    "PartitionFieldSummary",
    "RecordShape",
    "inherit_from_manifest",
    "read_avro_records",
]


def _positions(struct_type: StructType) -> Mapping[str, int]:
    return {field.name: at for at, field in enumerate(struct_type.fields)}


# Where PyIceberg's records have the fields of the specification's data_file and manifest_file.
DATA_FILE = _positions(DATA_FILE_TYPE[3])
MANIFEST_FILE = _positions(MANIFEST_LIST_FILE_SCHEMAS[3].as_struct())


class RecordShape:
    """What the records of a metadata file are read into: a schema, and Python types by field id."""

    def __init__(
        self, read_schema: Schema, read_types: Mapping[int, Any], read_enums: Mapping[int, Any]
    ) -> None:
        self._read_schema = read_schema
        self._read_types = dict(read_types)
        self._read_enums = dict(read_enums)
        # Files of one table mostly have one schema; resolving it costs more than reading a file.
        self.reader = functools.lru_cache(maxsize=256)(self._resolve)

    def _resolve(self, avro_schema: str) -> Reader:
        readable = json.dumps(_readable(json.loads(avro_schema), {}))
        header = AvroFileHeader(None, {"avro.schema": readable}, None)
        return resolve_reader(
            header.get_schema(), self._read_schema, self._read_types, self._read_enums
        )


def _readable(avro_type: Any, named: dict[str, Any]) -> Any:
    """Return an Avro schema's JSON as PyIceberg can read it: it knows neither names that stand for
    a type defined before, as Avro demands of two uuid fields, nor timestamps in nanoseconds."""
    if isinstance(avro_type, str):
        return named.get(avro_type, avro_type)
    if isinstance(avro_type, list):
        return [_readable(branch, named) for branch in avro_type]
    readable = dict(avro_type)
    if readable.get("logicalType") == "timestamp-nanos":
        del readable["logicalType"]
    for part in ("type", "items", "values"):
        if part in readable:
            readable[part] = _readable(readable[part], named)
    if "fields" in readable:
        readable["fields"] = [_readable(field, named) for field in readable["fields"]]
    if readable.get("type") in ("record", "fixed", "enum"):
        named[readable["name"]] = readable
    return readable


def read_avro_records(data: bytes, shape: RecordShape) -> tuple[dict[str, str], list[Any]]:
    """Return the header's properties and the records of an Avro file in memory.

    PyIceberg's own ``AvroFile`` does the same from a file. It resolves the schema each time, and
    reads beyond the end of truncated bytes. Raises what parsing raises.
    """
    container = Container(lambda offset, size: data[offset : offset + size], len(data))
    properties = {name: text.decode() for name, text in container.metadata.items()}
    reader = shape.reader(properties["avro.schema"])
    records: list[Any] = []
    for count, block in container.blocks(0, len(data)):
        decoder = CheckedDecoder(bytes(block))
        records += [reader.read(decoder) for _ in range(count)]
    return properties, records

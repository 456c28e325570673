"""Reads Avro into PyIceberg's records, and gives access to their fields by name.

PyIceberg's ``Record`` is a list of values. Other modules use names and not positions in it.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from pyiceberg.avro.file import AvroFileHeader
from pyiceberg.avro.reader import Reader
from pyiceberg.avro.resolver import resolve_reader
from pyiceberg.manifest import DATA_FILE_TYPE, MANIFEST_ENTRY_SCHEMAS, MANIFEST_LIST_FILE_SCHEMAS
from pyiceberg.manifest import _inherit_from_manifest as inherit_from_manifest
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record
from pyiceberg.types import StructType

from ...avro._decoder import CheckedDecoder
from ...avro.container import Container

__all__ = [
    "DATA_FILE",
    "MANIFEST_ENTRY",
    "MANIFEST_ENTRY_SCHEMAS",
    "MANIFEST_FILE",
    "MANIFEST_LIST_FILE_SCHEMAS",
    "Field",
    "NamedRecord",
    "RecordShape",
    "inherit_from_manifest",
    "read_avro_records",
    "values_of",
]

if TYPE_CHECKING:
    from typing_extensions import Self

_T = TypeVar("_T")


def _names(struct_type: StructType) -> tuple[str, ...]:
    return tuple(field.name for field in struct_type.fields)


# The names of the specification's fields, in the order in which PyIceberg's records have them.
DATA_FILE = _names(DATA_FILE_TYPE[3])
MANIFEST_ENTRY = _names(MANIFEST_ENTRY_SCHEMAS[3].as_struct())
MANIFEST_FILE = _names(MANIFEST_LIST_FILE_SCHEMAS[3].as_struct())


def values_of(record: Record) -> tuple[Any, ...]:
    """Return a record's values, in its order."""
    return tuple(record[at] for at in range(len(record)))


class Field(Generic[_T]):
    """A field of a record, under the name that the specification gives it."""

    def __set_name__(self, owner: type[NamedRecord], name: str) -> None:
        self._position = owner.names.index(name)

    def __get__(self, record: Record | None, owner: type) -> _T:
        if record is None:
            # It is read from the class, as ``inspect`` and completion in a shell do.
            return self  # type: ignore[return-value]
        value: _T = record[self._position]
        return value

    def __set__(self, record: Record, value: _T) -> None:
        record[self._position] = value


class NamedRecord(Record):
    """A record of PyIceberg with the names of its fields, in the order of the specification."""

    names: ClassVar[tuple[str, ...]]

    @classmethod
    def of(cls, **fields: Any) -> Self:
        """Return the record with these fields. Others are None. Raises TypeError for a field that
        the specification does not have."""
        if unknown := fields.keys() - set(cls.names):
            raise TypeError(f"{cls.__name__} has no field {', '.join(sorted(unknown))}")
        return cls(*map(fields.get, cls.names))

    def fields(self) -> dict[str, Any]:
        """Return the fields by name, in the order of the specification, and without a key."""
        return dict(zip(self.names, values_of(self), strict=True))

    def replace(self, **changes: Any) -> Self:
        """Return a copy with these fields changed."""
        return self.of(**{**self.fields(), **changes})


class RecordShape:
    """The schema with which records are read, and their Python types by field ID."""

    def __init__(
        self, read_schema: Schema, read_types: Mapping[int, Any], read_enums: Mapping[int, Any]
    ) -> None:
        self._read_schema = read_schema
        self._read_types = dict(read_types)
        self._read_enums = dict(read_enums)
        # Most files of a table have the same schema, and resolving it costs more than reading.
        self.reader = functools.lru_cache(maxsize=256)(self._resolve)

    def _resolve(self, avro_schema: str) -> Reader:
        readable = json.dumps(_readable(json.loads(avro_schema), {}))
        header = AvroFileHeader(None, {"avro.schema": readable}, None)
        return resolve_reader(
            header.get_schema(), self._read_schema, self._read_types, self._read_enums
        )


def _readable(avro_type: Any, named: dict[str, Any]) -> Any:
    """Return an Avro schema's JSON in a form that PyIceberg can read. PyIceberg does not know
    timestamps in nanoseconds, nor names of types that were defined earlier in the schema; Avro
    requires such a name if a schema has two UUID fields."""
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
    """Return the header's properties and the records of an Avro file in memory. PyIceberg's own
    ``AvroFile`` does the same from a file. It resolves the schema each time, and reads beyond the
    end of truncated bytes. Raises what parsing raises."""
    container = Container(lambda offset, size: data[offset : offset + size], len(data))
    properties = {name: text.decode() for name, text in container.metadata.items()}
    reader = shape.reader(properties["avro.schema"])
    records: list[Any] = []
    for count, block in container.blocks(0, len(data)):
        decoder = CheckedDecoder(bytes(block))
        records += [reader.read(decoder) for _ in range(count)]
    return properties, records

"""The schema of any Avro file as Iceberg's: that of a table's data file, or of another program's.

Follows the Avro specification, "Logical Types", and Iceberg's, "Avro". Knows nothing of rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from pyiceberg.schema import Schema
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

from ..errors import FormatError

_PRIMITIVES: dict[str, IcebergType] = {
    "boolean": BooleanType(),
    "int": IntegerType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "bytes": BinaryType(),
    "string": StringType(),
    "enum": StringType(),
}
_LOGICAL: dict[tuple[str, str], IcebergType] = {
    ("date", "int"): DateType(),
    ("time-micros", "long"): TimeType(),
    ("local-timestamp-micros", "long"): TimestampType(),
    ("local-timestamp-nanos", "long"): TimestampNanoType(),
    ("uuid", "fixed"): UUIDType(),
}
# Times in milliseconds: what is read as a long would be a thousand times too early.
_UNREADABLE = ("time-millis", "timestamp-millis", "local-timestamp-millis", "duration")


def iceberg_schema_of_avro(avro: object) -> tuple[Schema, NameMapping | None]:
    """Return the schema of an Avro file, parsed from JSON, and what finds its fields by name where
    they have no ids. Raises FormatError for one that no table has."""
    conversion = _Conversion(has_ids=_has_ids(avro))
    kind = conversion.type_of(avro)
    if not isinstance(kind, StructType):
        raise FormatError("the Avro file holds no records")
    schema = Schema(*kind.fields)
    return schema, None if conversion.has_ids else create_mapping_from_schema(schema)


def _has_ids(avro: object) -> bool:
    fields = avro.get("fields") if isinstance(avro, dict) else None
    return bool(fields) and isinstance(fields, list) and "field-id" in fields[0]


def _names(avro: dict[str, Any]) -> frozenset[str]:
    """Return the names by which a named type may be meant."""
    name, space = avro.get("name"), avro.get("namespace")
    return frozenset([str(name), f"{space}.{name}"])


class _Conversion:
    def __init__(self, *, has_ids: bool) -> None:
        self.has_ids = has_ids
        self._ids: Iterator[int] = itertools.count(1)
        self._named: dict[str, Any] = {}
        self._within: frozenset[str] = frozenset()

    def type_of(self, avro: Any) -> IcebergType:
        if isinstance(avro, str):
            if avro in self._within:
                raise FormatError(f"the record {avro!r} holds itself")
            if avro in self._named:
                return self.type_of(self._named[avro])
            avro = {"type": avro}
        if not isinstance(avro, dict):
            raise FormatError("a union of several types is no column's type")
        kind, logical = avro.get("type"), avro.get("logicalType")
        if isinstance(kind, dict | list):
            return self.type_of(kind)
        if kind in ("record", "enum", "fixed"):
            self._named = dict.fromkeys(_names(avro), avro) | self._named
        if kind == "record":
            within, self._within = self._within, self._within | _names(avro)
            fields = [self._field(field) for field in avro.get("fields") or ()]
            self._within = within
            return StructType(*fields)
        if kind == "array":
            return self._array(avro)
        if kind == "map":
            ids = self._id(avro, "key-id"), self._id(avro, "value-id")
            value, required = self._value(avro.get("values"))
            return MapType(ids[0], StringType(), ids[1], value, value_required=required)
        if logical in _UNREADABLE:
            raise FormatError(f"{logical} of Avro is not read")
        if logical == "decimal":
            return DecimalType(int(avro["precision"]), int(avro.get("scale", 0)))
        if logical in ("timestamp-micros", "timestamp-nanos") and kind == "long":
            in_utc = avro.get("adjust-to-utc", True)
            if logical == "timestamp-nanos":
                return TimestamptzNanoType() if in_utc else TimestampNanoType()
            return TimestamptzType() if in_utc else TimestampType()
        if isinstance(logical, str) and isinstance(kind, str) and (logical, kind) in _LOGICAL:
            return _LOGICAL[logical, kind]
        if kind == "fixed":
            return FixedType(int(avro["size"]))
        if not isinstance(kind, str) or kind not in _PRIMITIVES:
            raise FormatError(f"{kind!r} of Avro is no column's type")
        return _PRIMITIVES[kind]

    def _array(self, avro: dict[str, Any]) -> IcebergType:
        items = avro.get("items")
        if avro.get("logicalType") == "map" and isinstance(items, dict):
            key, value = (self._field(field) for field in items["fields"])
            return MapType(
                key.field_id, key.field_type, value.field_id, value.field_type, value.required
            )
        element_id = self._id(avro, "element-id")
        element, required = self._value(items)
        return ListType(element_id, element, element_required=required)

    def _field(self, avro: dict[str, Any]) -> NestedField:
        field_id = self._id(avro, "field-id")
        kind, required = self._value(avro.get("type"))
        return NestedField(field_id, str(avro["name"]), kind, required=required)

    def _value(self, avro: Any) -> tuple[IcebergType, bool]:
        """Return a type and whether null is none of its values."""
        if not isinstance(avro, list):
            return self.type_of(avro), True
        others = [branch for branch in avro if branch != "null"]
        if len(others) != 1:
            raise FormatError("a union of several types is no column's type")
        return self.type_of(others[0]), len(others) == len(avro)

    def _id(self, avro: dict[str, Any], name: str) -> int:
        if not self.has_ids:
            return next(self._ids)
        try:
            return int(avro[name])
        except (KeyError, TypeError, ValueError):
            raise FormatError(f"some fields have ids, and one has no {name}") from None

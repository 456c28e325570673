"""The schema of any Avro file as Iceberg's: that of a table's data file, or of another program's.

A union is of null and one type. Follows the Avro specification, "Logical Types", and Iceberg's,
"Avro". Knows nothing of rows.
"""

from __future__ import annotations

import itertools
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


def iceberg_schema_of_avro(avro: Any) -> tuple[Schema, NameMapping | None]:
    """Return the schema of an Avro file, parsed from JSON, and what finds its fields by name where
    they have no ids. Raises FormatError for one that cannot be read as columns."""
    converter = _Converter(has_ids=_has_ids(avro))
    schema = converter.rows(avro)
    return schema, None if converter.has_ids else create_mapping_from_schema(schema)


def _has_ids(avro: Any) -> bool:
    if isinstance(avro, dict):
        return "field-id" in avro or any(map(_has_ids, avro.values()))
    return isinstance(avro, list) and any(map(_has_ids, avro))


class _Converter:
    def __init__(self, *, has_ids: bool) -> None:
        self.has_ids = has_ids
        self._ids = itertools.count(1)
        self._named: dict[str, Any] = {}
        self._within: list[str] = []
        self._depth = 0

    def rows(self, avro: Any) -> Schema:
        kind, _ = self._type(avro, "", "")
        if not isinstance(kind, StructType):
            raise FormatError("the Avro file holds no records")
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
        full = ""
        if kind in ("record", "error", "enum", "fixed"):
            full = self._name(definition, namespace)
            namespace = full.rpartition(".")[0]
        elif kind not in _PRIMITIVES and kind not in ("array", "map"):
            meant = kind if "." in kind or not namespace else f"{namespace}.{kind}"
            known = self._named.get(meant) or self._named.get(kind)
            if known is None:
                raise FormatError(f"{path}: the file has no Avro type {kind!r}")
            return self._single(known["type"], known, namespace, path)
        if kind in ("record", "error"):
            if full in self._within:
                raise FormatError(f"{path}: the record {full!r} holds itself")
            self._within.append(full)
            try:
                return self._record(definition, namespace, path)
            finally:
                self._within.pop()
        if kind == "array":
            return self._array(definition, namespace, path)
        if kind == "map":
            ids = self._id(definition, "key-id", path), self._id(definition, "value-id", path)
            value, optional = self._type(definition.get("values"), namespace, f"{path}.value")
            return MapType(ids[0], StringType(), ids[1], value, value_required=not optional)
        return _leaf(kind, definition, path)

    def _name(self, definition: dict[str, Any], namespace: str) -> str:
        """Remember a named type; return its full name."""
        name = str(definition.get("name", ""))
        space = definition.get("namespace", namespace) or ""
        full = name if "." in name or not space else f"{space}.{name}"
        self._named.setdefault(full, definition)
        return full

    def _record(self, definition: dict[str, Any], namespace: str, path: str) -> StructType:
        fields = []
        for field in definition.get("fields") or ():
            if not isinstance(field, dict) or not isinstance(field.get("name"), str):
                raise FormatError(f"{path or 'a row'}: a record has no fields")
            inside = f"{path}.{field['name']}".lstrip(".")
            field_id = self._id(field, "field-id", inside)
            kind, optional = self._type(field.get("type"), namespace, inside)
            fields.append(NestedField(field_id, field["name"], kind, required=not optional))
        return StructType(*fields)

    def _array(self, definition: dict[str, Any], namespace: str, path: str) -> IcebergType:
        items = definition.get("items")
        if definition.get("logicalType") == "map" and isinstance(items, dict):
            # Iceberg's maps whose keys are no strings.
            key, value = self._record(items, namespace, path).fields
            return MapType(
                key.field_id,
                key.field_type,
                value.field_id,
                value.field_type,
                value_required=value.required,
            )
        element_id = self._id(definition, "element-id", path)
        element, optional = self._type(items, namespace, f"{path}.element")
        return ListType(element_id, element, element_required=not optional)

    def _id(self, definition: dict[str, Any], name: str, path: str) -> int:
        if not self.has_ids:
            return next(self._ids)
        try:
            return int(definition[name])
        except (KeyError, TypeError, ValueError):
            raise FormatError(f"{path}: other fields have ids, and this has no {name}") from None


def _leaf(kind: str, definition: dict[str, Any], path: str) -> IcebergType:
    logical = definition.get("logicalType")
    try:
        if logical == "decimal" and kind in ("bytes", "fixed"):
            return DecimalType(int(definition["precision"]), int(definition.get("scale", 0)))
        if kind == "fixed":
            size = int(definition["size"])
            return UUIDType() if logical == "uuid" and size == 16 else FixedType(size)
    except (KeyError, TypeError, ValueError):
        lacking = "precision" if logical == "decimal" else "size"
        raise FormatError(f"{path}: the Avro type has no {lacking}") from None
    if kind == "enum":
        return StringType()
    if kind == "long" and logical in ("timestamp-millis", "timestamp-micros", "timestamp-nanos"):
        # Avro's are instants; Iceberg's writers say where one of theirs is not.
        is_local = definition.get("adjust-to-utc") is False
        if logical == "timestamp-nanos":
            return TimestampNanoType() if is_local else TimestamptzNanoType()
        return TimestampType() if is_local else TimestamptzType()
    return _LOGICAL.get((kind, str(logical)), _PRIMITIVES[kind])

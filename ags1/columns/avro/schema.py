"""Converts schemas: those of any Avro file to Iceberg's, and Iceberg's to Avro's.

The files may be a table's data files or another program's. Their unions must be of null and one
other type. Iceberg's schemas are converted as in Java's ``TypeToSchema``: with field ids, and with
the same names of records and fixed types. A map with string keys becomes an Avro map, and any other
map an array of pairs. (PyIceberg's conversion lacks nulls in lists and maps, and Avro maps.)
Follows the Avro specification, "Logical Types", and Iceberg's, "Avro". Independent of rows.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from typing import Any

from pyiceberg import types
from pyiceberg.exceptions import ValidationError
from pyiceberg.schema import Schema, make_compatible_name
from pyiceberg.table.name_mapping import NameMapping, create_mapping_from_schema
from pyiceberg.utils.decimal import decimal_required_bytes

from ...errors import FormatError
from .projection import READABLE, has_zone_of
from .types import MAX_AVRO_DEPTH, MAX_STEPS, AvroTypes, fields_of, has_ids
from .variants import VARIANT_PARTS, VariantType


def iceberg_schema_of_avro(avro: Any) -> tuple[Schema, NameMapping | None]:
    """Return Iceberg's schema for the schema of an Avro file (parsed JSON), and a mapping of names
    if its fields have no ids. Raises FormatError if it cannot be converted to columns."""
    converter = _Converter(has_ids=has_ids(avro))
    schema = converter.rows(avro)
    return schema, None if converter.has_ids else create_mapping_from_schema(schema)


class _Converter:
    def __init__(self, *, has_ids: bool) -> None:
        self.has_ids = has_ids
        self._ids = itertools.count(1)
        self._types = AvroTypes()
        self._depth = -1  # a row does not count, as in ``Projection``
        self._steps = 0

    def rows(self, avro: Any) -> Schema:
        kind, _ = self._type(avro, "", "")
        if not isinstance(kind, types.StructType):
            raise FormatError("the Avro file holds no records")
        try:
            return Schema(*kind.fields)
        except ValueError:
            raise FormatError("the file's schema has two columns of one name") from None

    def _type(self, avro: Any, namespace: str, path: str) -> tuple[types.IcebergType, bool]:
        """Return a type, and whether it may be null."""
        self._depth += 1
        if self._depth > MAX_AVRO_DEPTH:
            raise FormatError(f"{path}: the Avro type is nested too deeply")
        # Each use of a named type converts it again: a few records that each have two fields of the
        # one before would take forever.
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise FormatError("the file's schema is too large")
        kind, definition, inside = self._types.resolve(avro, namespace, path or "the schema")
        if kind == "union":
            result = self._union(definition, inside, path)
        else:
            result = self._single(kind, definition, inside, path), False
        self._depth -= 1
        return result

    def _union(
        self, branches: list[Any], namespace: str, path: str
    ) -> tuple[types.IcebergType, bool]:
        others = [b for b in branches if b not in ("null", {"type": "null"})]
        if len(others) != 1:
            raise FormatError(f"{path}: a union must be of one type, or of null and one type")
        kind, optional = self._type(others[0], namespace, path)
        return kind, optional or len(branches) > 1

    def _single(
        self, kind: str, definition: dict[str, Any], namespace: str, path: str
    ) -> types.IcebergType:
        if kind == "record":
            return self._record(definition, namespace, path)
        if kind == "array":
            return self._array(definition, namespace, path)
        if kind == "map":
            ids = self._id(definition, "key-id", path), self._id(definition, "value-id", path)
            value, optional = self._type(definition.get("values"), namespace, f"{path}.value")
            return types.MapType(ids[0], types.StringType(), ids[1], value, not optional)
        return _leaf(kind, definition, path)

    def _record(self, definition: dict[str, Any], namespace: str, path: str) -> types.StructType:
        fields = []
        with self._types.inside(definition, namespace, path):
            for field in fields_of(definition, path):
                inside = f"{path}.{field['name']}".lstrip(".")
                field_id = self._id(field, "field-id", inside)
                kind, optional = self._type(field["type"], namespace, inside)
                name = field["name"]
                fields.append(types.NestedField(field_id, name, kind, required=not optional))
        return types.StructType(*fields)

    def _array(self, definition: dict[str, Any], namespace: str, path: str) -> types.IcebergType:
        items = definition.get("items")
        if definition.get("logicalType") == "map":
            # A map of Iceberg whose keys are not strings.
            kind, pair, inside = self._types.resolve(items, namespace, path)
            fields = self._record(pair, inside, path).fields if kind == "record" else ()
            if len(fields) != 2:
                raise FormatError(f"{path}: a map's array has records of key and value")
            key, value = fields
            return types.MapType(
                key.field_id, key.field_type, value.field_id, value.field_type, value.required
            )
        element_id = self._id(definition, "element-id", path)
        element, optional = self._type(items, namespace, f"{path}.element")
        return types.ListType(element_id, element, element_required=not optional)

    def _id(self, definition: dict[str, Any], name: str, path: str) -> int:
        if not self.has_ids:
            return next(self._ids)
        try:
            return int(definition[name])
        except (KeyError, TypeError, ValueError):
            raise FormatError(f"{path}: other fields have ids, but this has no {name}") from None


def _leaf(kind: str, definition: dict[str, Any], path: str) -> types.IcebergType:
    logical = definition.get("logicalType")
    if kind == "null":
        raise FormatError(f"{path}: the Avro type is null alone, which no column can have")
    try:
        if logical == "decimal" and kind in ("bytes", "fixed"):
            return types.DecimalType(int(definition["precision"]), int(definition.get("scale", 0)))
        if kind == "fixed":
            size = int(definition["size"])
            if not 0 <= size < 1 << 31:
                raise ValueError
            return types.UUIDType() if logical == "uuid" and size == 16 else types.FixedType(size)
    except (KeyError, TypeError, ValueError, OverflowError, ValidationError):
        lacking = "precision" if logical == "decimal" else "size"
        raise FormatError(f"{path}: the Avro type has no {lacking} that is possible") from None
    readable = READABLE.get((kind, str(logical))) or READABLE[kind, None]
    kinds = [new for kinds, _, _ in readable for new in kinds]
    # Avro's timestamps are instants, unless ``adjust-to-utc`` of Iceberg's writers is false.
    return next((new for new in kinds if has_zone_of(definition, new)), kinds[0])()


# -- from Iceberg's to Avro's

_MICROS = {"type": "long", "logicalType": "timestamp-micros"}
_NANOS = {"type": "long", "logicalType": "timestamp-nanos"}
_WRITTEN_AS: Mapping[type[types.IcebergType], Any] = {
    types.UnknownType: "null",
    types.BooleanType: "boolean",
    types.IntegerType: "int",
    types.LongType: "long",
    types.FloatType: "float",
    types.DoubleType: "double",
    types.StringType: "string",
    types.BinaryType: "bytes",
    types.GeometryType: "bytes",
    types.GeographyType: "bytes",
    types.DateType: {"type": "int", "logicalType": "date"},
    types.TimeType: {"type": "long", "logicalType": "time-micros"},
    types.TimestampType: {**_MICROS, "adjust-to-utc": False},
    types.TimestamptzType: {**_MICROS, "adjust-to-utc": True},
    types.TimestampNanoType: {**_NANOS, "adjust-to-utc": False},
    types.TimestamptzNanoType: {**_NANOS, "adjust-to-utc": True},
}


def avro_schema(struct: types.StructType, name: str = "table") -> dict[str, Any]:
    """Return the Avro schema (parsed JSON) of records with a struct's fields."""
    converted: dict[str, Any] = _avro_type(struct, name, set())
    return converted


def layout(avro: Any) -> str:
    """Return a text that two Avro schemas (parsed JSON) share only if the same bytes are the same
    values in both: the types and the IDs of their fields, in order, without names and words."""
    return json.dumps(_layout(avro, {}))


def _layout(avro: Any, named: dict[str, Any]) -> Any:
    if isinstance(avro, str):
        return named.get(avro, avro)
    if isinstance(avro, list):
        return [_layout(branch, named) for branch in avro]
    laid: list[Any] = [
        _layout(avro["type"], named),
        {name: avro[name] for name in _MEANINGFUL if name in avro},
    ]
    laid += (_layout(avro[part], named) for part in ("items", "values") if part in avro)
    laid += ([f.get("field-id"), _layout(f["type"], named)] for f in avro.get("fields", ()))
    if "name" in avro:
        named[avro["name"]] = laid
    return laid


_MEANINGFUL = (
    *("size", "logicalType", "precision", "scale", "adjust-to-utc"),
    *("element-id", "key-id", "value-id"),
)


def _avro_type(kind: types.IcebergType, record_name: str, named: set[str]) -> Any:
    """Return a type's schema. A fixed type is defined where it is first used, and after that is
    given by its name. ``named`` has the names that are defined."""
    if isinstance(kind, types.StructType):
        fields = [_avro_field(field, named) for field in kind.fields]
        return {"type": "record", "name": record_name, "fields": fields}
    if isinstance(kind, types.ListType):
        items = _avro_value(kind.element_field, named)
        return {"type": "array", "items": items, "element-id": kind.element_id}
    if isinstance(kind, types.MapType):
        return _avro_map(kind, named)
    if isinstance(kind, types.DecimalType):
        name = f"decimal_{kind.precision}_{kind.scale}"
        size = decimal_required_bytes(kind.precision)
        logical = {"logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
        return _fixed(name, size, logical, named)
    if isinstance(kind, VariantType):
        parts = [{"name": name, "type": "bytes"} for name in VARIANT_PARTS]
        record = {"type": "record", "name": record_name, "fields": parts}
        return {**record, "logicalType": "variant"}
    if isinstance(kind, types.UUIDType):
        return _fixed("uuid_fixed", 16, {"logicalType": "uuid"}, named)
    if isinstance(kind, types.FixedType):
        return _fixed(f"fixed_{len(kind)}", len(kind), {}, named)
    return _WRITTEN_AS[type(kind)]


def _avro_value(field: types.NestedField, named: set[str]) -> Any:
    kind = _avro_type(field.field_type, f"r{field.field_id}", named)
    return ["null", kind] if field.optional and kind != "null" else kind


def _avro_field(field: types.NestedField, named: set[str]) -> dict[str, Any]:
    name = make_compatible_name(field.name)
    described: dict[str, Any] = {"name": name, "type": _avro_value(field, named)}
    if field.doc is not None:
        described["doc"] = field.doc
    if field.optional:
        described["default"] = None
    if name != field.name:
        described["iceberg-field-name"] = field.name
    described["field-id"] = field.field_id
    return described


def _avro_map(kind: types.MapType, named: set[str]) -> dict[str, Any]:
    if isinstance(kind.key_type, types.StringType):
        values = _avro_value(kind.value_field, named)
        return {"type": "map", "values": values, "key-id": kind.key_id, "value-id": kind.value_id}
    key_type, value_type = (_avro_value(f, named) for f in (kind.key_field, kind.value_field))
    key = {"name": "key", "type": key_type, "field-id": kind.key_id}
    value = {"name": "value", "type": value_type}
    if kind.value_field.optional:
        value["default"] = None
    value["field-id"] = kind.value_id
    pair = {"type": "record", "name": f"k{kind.key_id}_v{kind.value_id}", "fields": [key, value]}
    return {"type": "array", "items": pair, "logicalType": "map"}


def _fixed(name: str, size: int, logical: Mapping[str, Any], named: set[str]) -> Any:
    if name in named:
        return name
    named.add(name)
    return {"type": "fixed", "name": name, "size": size, **logical}

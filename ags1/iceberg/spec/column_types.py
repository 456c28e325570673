"""Types of columns that PyIceberg does not know, or that it spells differently from Java.

A table's metadata may name any type, also one of a later version of the format. Such a column has
an ``OpaqueType`` here, which keeps the type's JSON. So the table opens, its other columns are read
and written, and the type is written back into metadata unchanged. Variants are read and written,
but PyIceberg does not know them. Follows the Iceberg specification, "Schemas and Data Types" and
"Appendix C". Independent of files and keys.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from pydantic import model_serializer
from pyiceberg import types
from pyiceberg.conversions import from_json, to_json
from pyiceberg.exceptions import ValidationError as PyIcebergValidationError
from pyiceberg.schema import Schema, index_by_id

from ...columns.avro.types import MAX_AVRO_DEPTH
from ...columns.avro.variants import VARIANT_PARTS, VariantType
from ...errors import UnsupportedTypeError

# As Java spells them; PyIceberg reads and writes the parameters in quotes.
_GEOMETRY = re.compile(r"geometry\(\s*([^'\"(),]+?)\s*\)")
_GEOGRAPHY = re.compile(r"geography\(\s*([^'\"(),]+?)\s*(?:,\s*(\w+)\s*)?\)")

# The types of points in time, with the number of their units in a day.
UNITS_A_DAY: Mapping[type[types.IcebergType], int] = {
    types.DateType: 1,
    types.TimestampType: 86_400_000_000,
    types.TimestamptzType: 86_400_000_000,
    types.TimestampNanoType: 86_400_000_000_000,
    types.TimestamptzNanoType: 86_400_000_000_000,
}

# GeoArrow's name of geometries in Arrow, and Arrow's of variants.
WKB = "geoarrow.wkb"
VARIANT = "arrow.parquet.variant"
# Arrow reads the schemas of Parquet files to this depth.
_MAX_PARQUET_DEPTH = 99
# An error names at most this number of readable columns.
_NAMED = 5

_Change = Callable[[types.NestedField], "types.IcebergType | None"]


class OpaqueType(types.PrimitiveType):
    """A type that PyIceberg does not know; ``text`` is its JSON. No value of it is read or written,
    nothing is promoted to it, and no filter applies to it."""

    # The field is not the text alone, because PyIceberg would parse that.
    root: tuple[str]

    def __init__(self, text: str) -> None:
        super().__init__(root=(text,))

    @model_serializer
    def ser_model(self) -> Any:
        return json.loads(self.root[0])

    def __str__(self) -> str:
        kind = self.ser_model()
        return kind if isinstance(kind, str) else self.root[0]

    def __repr__(self) -> str:
        return f"OpaqueType({self.root[0]!r})"

    def __hash__(self) -> int:
        return hash(self.root)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OpaqueType) and self.root == other.root

    def __getnewargs__(self) -> tuple[str]:
        return self.root


# Defaults of such a column are kept as their JSON. That of a struct is {}, as its fields have some.
@from_json.register(OpaqueType)
@from_json.register(VariantType)
@from_json.register(types.StructType)
def _(_: types.IcebergType, value: Any) -> str:  # type: ignore[misc]  # it takes primitive types
    return json.dumps(value)


@to_json.register(OpaqueType)
@to_json.register(VariantType)
@to_json.register(types.StructType)
def _(_: types.IcebergType, value: str) -> Any:  # type: ignore[misc]
    return json.loads(value)


def parse_schema(schema: Mapping[str, Any]) -> Schema:
    """Return a schema of metadata.json, of any types. Raises what PyIceberg raises."""
    return Schema.model_validate(_with_types(schema))


def with_types(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table's metadata, parsed from JSON, with types that PyIceberg can parse."""
    typed = dict(metadata)
    if isinstance(typed.get("schemas"), list):
        typed["schemas"] = [_with_types(schema) for schema in typed["schemas"]]
    if "schema" in typed:
        typed["schema"] = _with_types(typed["schema"])
    return typed


def _with_types(kind: Any) -> Any:
    """Return the JSON of a schema or type, with its primitive types as objects. Malformed parts
    stay as they are; PyIceberg refuses them."""
    if isinstance(kind, str):
        return primitive_type(kind)
    of = kind.get("type") if isinstance(kind, Mapping) else None
    if of == "struct" and isinstance(kind.get("fields"), list):
        fields = [
            {**field, "type": _with_types(field["type"])}
            if isinstance(field, Mapping) and "type" in field
            else field
            for field in kind["fields"]
        ]
        return {**kind, "fields": fields}
    if of == "list" and "element" in kind:
        return {**kind, "element": _with_types(kind["element"])}
    if of == "map" and "key" in kind and "value" in kind:
        return {**kind, "key": _with_types(kind["key"]), "value": _with_types(kind["value"])}
    if isinstance(of, str) and of not in ("struct", "list", "map"):
        return OpaqueType(json.dumps(kind))
    return kind


@functools.lru_cache(maxsize=1000)
def primitive_type(kind: str) -> types.IcebergType:
    """Return the type of this name in metadata.json, or an ``OpaqueType``."""
    if kind == "variant":
        return VariantType()
    if match := _GEOMETRY.fullmatch(kind):
        return types.GeometryType(match[1])
    if match := _GEOGRAPHY.fullmatch(kind):
        return types.GeographyType(match[1], match[2] or types.GeographyType().algorithm)
    try:
        field = types.NestedField(field_id=1, name="x", field_type=kind, required=False)
    except (ValueError, PyIcebergValidationError):
        return OpaqueType(json.dumps(kind))
    parsed: types.IcebergType = field.field_type
    # PyIceberg looks only at the beginning of some names.
    is_whole = str(parsed).replace(" ", "") == kind.replace(" ", "")
    return parsed if is_whole else OpaqueType(json.dumps(kind))


def check_readable(schema: Schema, way: str | None = None) -> None:
    """Raise UnsupportedTypeError if a column has a type that is not read here. ``way`` is what the
    message advises, by default to select other columns."""
    for field in _opaque(schema.fields):
        others = tuple(f.name for f in schema.fields if not any(_opaque([f])))
        parameter = None
        if way is None and others:
            parameter = "selected_fields"
            way = f"select others, such as {', '.join(others[:_NAMED])}"
        raise UnsupportedTypeError(
            f"column {schema.find_column_name(field.field_id)!r} has type {field.field_type}, "
            f"which this version does not read{f': {way}' if way else ''}",
            parameter=parameter,
        )


def check_comparable(schema: Schema, field: types.NestedField, *, values: bool) -> None:
    """Raise UnsupportedTypeError if a column of the schema has a type that no filter can use, or
    TypeError if the filter compares ``values`` of a type that has no order."""
    if values and isinstance(field.field_type, VariantType):
        name = schema.find_column_name(field.field_id)
        raise TypeError(f"column {name!r} is a variant: a filter can only ask whether it is null")
    for opaque in _opaque([field]):
        raise UnsupportedTypeError(
            f"column {schema.find_column_name(opaque.field_id)!r} has type {opaque.field_type}, "
            "which this version does not read: filter by other columns"
        )


def check_sources(fields: Iterable[Mapping[str, Any]], schema: Schema) -> None:
    """Raise UnsupportedTypeError if a field of a partition spec or sort order, as JSON, has an
    opaque source column or a variant. A ``void`` field has no source."""
    for field in fields:
        source_id = field.get("source-id")
        if source_id not in schema.field_ids or field.get("transform") == "void":
            continue
        kind = schema.find_type(source_id)
        if isinstance(kind, OpaqueType | VariantType):
            raise UnsupportedTypeError(
                f"column {schema.find_column_name(source_id)!r} has type {kind}: no table can be "
                "partitioned or sorted by it. Choose another column"
            )


def readable(schema: Schema, *, variants: bool = True) -> Schema:
    """Return the columns without those that are opaque, or that need an opaque part. Without
    ``variants``, these are left out too."""
    left_out = OpaqueType if variants else (OpaqueType, VariantType)
    return with_types_changed(
        schema, lambda f: None if isinstance(f.field_type, left_out) else f.field_type
    )


def writable(schema: Schema, *, is_avro: bool) -> Schema:
    """Return the columns that are written to new files. The other columns are not written, and are
    read as null. Raises UnsupportedTypeError if one of the others is required, or if a column is
    nested so deeply that the files could not be read."""
    _check_depth(schema, is_avro)
    known = _writable(schema, is_avro)
    if known is schema:
        return schema
    for field_id, field in index_by_id(schema).items():
        if field_id in known.field_ids:
            continue
        has_default = field.initial_default is not None or field.write_default is not None
        if has_default or (field.required and field in schema.fields):
            raise UnsupportedTypeError(
                f"no rows can be written: {_not_written(schema, field, is_avro)}, and "
                f"{'has a default' if has_default else 'is required'}"
            )
    return known


def _check_depth(schema: Schema, is_avro: bool) -> None:
    most = MAX_AVRO_DEPTH if is_avro else _MAX_PARQUET_DEPTH
    for field in schema.fields:
        if (depth := _depth(field, is_avro)) > most:
            raise UnsupportedTypeError(
                f"no rows can be written: column {field.name!r} is nested {depth} deep in "
                f"{_format(is_avro)} files, and they are read to a depth of {most}"
                + (" (an optional value counts twice): write Parquet files" if is_avro else "")
            )


def _depth(field: types.NestedField, is_avro: bool) -> int:
    """Return how deeply a column is nested as the readers count it: in Avro an optional value is a
    union, in Parquet a list or map is a group in a group."""
    kind = field.field_type
    is_double = field.optional if is_avro else isinstance(kind, types.ListType | types.MapType)
    if isinstance(kind, types.PrimitiveType):
        return 1 + is_double + isinstance(kind, VariantType)
    return 1 + is_double + max((_depth(part, is_avro) for part in _parts(kind)), default=0)


def check_writable(schema: Schema, *, is_avro: bool) -> None:
    """Raise UnsupportedTypeError if a column cannot be written to a file."""
    known = _writable(schema, is_avro)
    for field in schema.fields:
        if field not in known.fields:
            raise UnsupportedTypeError(_not_written(schema, field, is_avro))


def _writable(schema: Schema, is_avro: bool) -> Schema:
    def written(field: types.NestedField) -> types.IcebergType | None:
        kind = field.field_type
        # Arrow writes only spherical edges to Parquet.
        fits_arrow = not isinstance(kind, types.GeographyType) or kind.algorithm == "spherical"
        return None if isinstance(kind, OpaqueType) or not (is_avro or fits_arrow) else kind

    return with_types_changed(schema, written)


def _not_written(schema: Schema, field: types.NestedField, is_avro: bool) -> str:
    name, kind = schema.find_column_name(field.field_id), field.field_type
    return (
        f"column {name!r} has type {kind}, which this version does not write to {_format(is_avro)}"
    )


def _format(is_avro: bool) -> str:
    return "Avro" if is_avro else "Parquet"


def as_stored(schema: Schema) -> Schema:
    """Return the schema with the types that values have in Arrow. Geometries are their WKB. A
    variant is a struct, whose fields have negative ids."""

    def stored(field: types.NestedField) -> types.IcebergType:
        if isinstance(field.field_type, VariantType):
            ids = variant_part_ids(field.field_id)
            parts = zip(ids, VARIANT_PARTS, strict=True)
            return types.StructType(
                *(
                    types.NestedField(i, name, types.BinaryType(), required=True)
                    for i, name in parts
                )
            )
        return field.field_type

    return as_bytes(with_types_changed(schema, stored))


def with_struct_defaults(schema: Schema, whole: Schema) -> Schema:
    """Return a selection of the columns of ``whole`` with the initial defaults of structs, which
    PyIceberg's selection drops."""
    defaults = {
        field.field_id: field.initial_default
        for field in index_by_id(whole).values()
        if isinstance(field.field_type, types.StructType) and field.initial_default is not None
    }

    def restored(field: types.NestedField) -> types.NestedField:
        if not isinstance(field.field_type, types.StructType):
            return field
        kind = types.StructType(*map(restored, field.field_type.fields))
        change = {"field_type": kind, "initial_default": defaults.get(field.field_id)}
        return field.model_copy(update=change)

    return Schema(*map(restored, schema.fields)) if defaults else schema


def as_bytes(schema: Schema) -> Schema:
    """Return the schema with geometries and variants as binary."""
    kinds, binary = types.GeometryType | types.GeographyType | VariantType, types.BinaryType()
    return with_types_changed(
        schema, lambda f: binary if isinstance(f.field_type, kinds) else f.field_type
    )


def variant_part_ids(field_id: int) -> tuple[int, int]:
    """Return the ids that the two parts of a variant column have here; in files they have none. No
    id is -1, which a field of a file without an id has here."""
    return -2 * field_id - 2, -2 * field_id - 3


def extensions(schemas: Iterable[Schema]) -> dict[int, dict[bytes, bytes]]:
    """Return what Arrow names the extension types of geometries and variants with, by field ID: the
    metadata of a field, as Arrow has it for types without a class. (If Python has a class of the
    name for variants, Arrow's writer of Parquet crashes. It takes the class for one of C++.)"""
    kinds = types.GeometryType, types.GeographyType, VariantType
    return {
        field.field_id: {
            b"ARROW:extension:name": (
                VARIANT if field.field_type == VariantType() else WKB
            ).encode(),
            b"ARROW:extension:metadata": geoarrow_text(field.field_type).encode(),
        }
        for schema in schemas
        for field in _fields_of(kinds, schema.fields)
    }


def geoarrow_text(kind: types.IcebergType) -> str:
    """Return GeoArrow's metadata of a type of geometries; nothing for another type."""
    if not isinstance(kind, types.GeometryType | types.GeographyType):
        return ""
    edges = {"edges": kind.algorithm} if isinstance(kind, types.GeographyType) else {}
    return json.dumps({"crs": kind.crs, **edges})


def without_uuids(schema: Schema) -> Schema:
    """Return the schema with ``fixed[16]`` for UUIDs."""
    fixed, uuid = types.FixedType(16), types.UUIDType
    return with_types_changed(
        schema, lambda f: fixed if isinstance(f.field_type, uuid) else f.field_type
    )


def find_field_ids(kind: type[types.IcebergType], schemas: Iterable[Schema]) -> frozenset[int]:
    """Return the ids of the fields, elements, keys and values of a type."""
    return frozenset(f.field_id for schema in schemas for f in _fields_of(kind, schema.fields))


def _opaque(fields: Iterable[types.NestedField]) -> Iterator[types.NestedField]:
    return _fields_of(OpaqueType, fields)


def _fields_of(
    wanted: type | tuple[type, ...], fields: Iterable[types.NestedField]
) -> Iterator[types.NestedField]:
    """Yield the fields of primitive types, also those inside the fields."""
    for field in fields:
        kind = field.field_type
        if isinstance(kind, wanted):
            yield field
        elif not isinstance(kind, types.PrimitiveType):
            yield from _fields_of(wanted, _parts(kind))


def _parts(kind: types.IcebergType) -> tuple[types.NestedField, ...]:
    if isinstance(kind, types.StructType):
        return kind.fields
    if isinstance(kind, types.ListType):
        return (kind.element_field,)
    return (kind.key_field, kind.value_field) if isinstance(kind, types.MapType) else ()


def with_types_changed(schema: Schema, change: _Change) -> Schema:
    """Return the schema with changed primitive types. If a type becomes None, the smallest optional
    field around it is removed or, if there is none, the whole column."""
    changed = [_of_type(field, change) for field in schema.fields]
    if all(new is old for new, old in zip(changed, schema.fields, strict=True)):
        return schema
    remaining = [field for field in changed if field is not None]
    result = Schema(*remaining, schema_id=schema.schema_id)
    ids = [i for i in schema.identifier_field_ids if i in result.field_ids]
    return result.model_copy(update={"identifier_field_ids": ids})


def _of_type(field: types.NestedField, change: _Change) -> types.NestedField | None:
    kind = _changed(field, change)
    if kind is field.field_type:
        return field
    return None if kind is None else field.model_copy(update={"field_type": kind})


def _changed(field: types.NestedField, change: _Change) -> types.IcebergType | None:
    kind = field.field_type
    if isinstance(kind, types.PrimitiveType):
        return change(field)
    parts = _parts(kind)
    changed = [_of_type(part, change) for part in parts]
    if all(new is old for new, old in zip(changed, parts, strict=True)):
        return kind
    if isinstance(kind, types.StructType):
        is_needed = any(n is None and o.required for n, o in zip(changed, parts, strict=True))
        remaining = [field for field in changed if field is not None]
        return types.StructType(*remaining) if remaining and not is_needed else None
    if None in changed:
        return None
    kinds = [part.field_type for part in changed if part is not None]
    if isinstance(kind, types.ListType):
        return types.ListType(kind.element_id, kinds[0], kind.element_required)
    assert isinstance(kind, types.MapType)
    return types.MapType(kind.key_id, kinds[0], kind.value_id, kinds[1], kind.value_required)

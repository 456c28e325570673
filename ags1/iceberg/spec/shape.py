"""Checks and compares schemas, partition specs and sort orders, as JSON in Java's form."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pyiceberg.conversions import from_json
from pyiceberg.exceptions import ValidationError
from pyiceberg.transforms import UnknownTransform, parse_transform
from pyiceberg.types import DecimalType, IcebergType, PrimitiveType

from ...errors import UnsupportedTypeError
from .column_types import OpaqueType, primitive_type
from .java_json import as_float, fields_in, schema_in_java_order
from .json_fields import one_of, string, whole

FIRST_PARTITION_ID = 1000
# The first format version in which rows have ids and columns have default values.
LINEAGE = 3
# How many structs, lists and maps may lie in each other in a column. PyIceberg does not parse the
# metadata of a table that has a few more.
_MAX_NESTING = 60
# Properties of one column: the rest of their names is the column's.
_OF_COLUMNS = (
    "write.metadata.metrics.column.",
    "write.parquet.bloom-filter-enabled.column.",
    "write.parquet.stats-enabled.column.",
)
_NEEDS_VERSION_3 = ("timestamp_ns", "timestamptz_ns", "unknown", "variant", "geometry", "geography")


# The type that a column may get, by the one that it has. A decimal may get a larger precision.
_PROMOTIONS = {"int": "long", "float": "double"}


class TypeChangeError(ValidationError, ValueError):
    """A schema would give a column a type that the values in its files do not have, or rows of
    older files another value of a column."""


class Column(NamedTuple):
    """A field of a schema: its full name, whether it is inside a list or map, and whether it is a
    map's key or inside one. ``parent_id`` is the field that it is part of; -1 in a schema.
    ``initial_default`` is the JSON of that; None without one."""

    id: int
    name: str
    type: Any
    in_collection: bool
    in_key: bool
    parent_id: int
    initial_default: Any = None


# The struct that the columns of a schema are in.
_SCHEMA = Column(-1, "", None, in_collection=False, in_key=False, parent_id=-1)


def walk(kind: Any, outer: Column | None = None) -> Iterator[Column]:
    """Yield the fields in the JSON of a schema, outer fields first. If ``outer`` is given, ``kind``
    is the type of that column."""
    above = outer or _SCHEMA
    for field_id, name, field_type, default in _parts(kind):
        of = kind["type"]
        column = Column(
            field_id,
            name if outer is None else f"{outer.name}.{name}",
            field_type,
            in_collection=above.in_collection or of != "struct",
            in_key=above.in_key or (of == "map" and name == "key"),
            parent_id=above.id,
            initial_default=default,
        )
        yield column
        yield from walk(field_type, column)


def _parts(kind: Any) -> list[tuple[Any, Any, Any, Any]]:
    """Return the id, name, type and initial default of each field directly in the JSON of a schema
    or type."""
    of = kind.get("type") if isinstance(kind, Mapping) else None
    if of == "struct":
        names = "id", "name", "type", "initial-default"
        return [tuple(map(field.get, names)) for field in kind.get("fields") or ()]
    if of == "list":
        return [(kind.get("element-id"), "element", kind.get("element"), None)]
    if of == "map":
        return [(kind.get(f"{part}-id"), part, kind.get(part), None) for part in ("key", "value")]
    return []


def _check_nesting(schema: Any) -> None:
    for _, name, kind, _ in _parts(schema):
        kinds, depth = [kind], 0
        while kinds := [inner for outer in kinds for _, _, inner, _ in _parts(outer)]:
            depth += 1
            if depth > _MAX_NESTING:
                raise UnsupportedTypeError(
                    f"column {name!r} is nested more than {_MAX_NESTING} deep, so the table could "
                    "not be opened again: divide the column into several"
                )


def checked_schema(schema: Any, version: int) -> dict[str, Any]:
    """Return a schema's JSON in Java's form. Raises ValueError if it is malformed, or if the
    table's format version does not allow it, and UnsupportedTypeError if a column is nested too
    deeply."""
    if not isinstance(schema, Mapping) or schema.get("type") != "struct":
        raise ValueError("the schema is not a struct")
    _check_nesting(schema)
    ordered: dict[str, Any] = schema_in_java_order(dict(schema))
    ids: set[int] = set()
    names: set[str] = set()
    for column in walk(ordered):
        if not isinstance(column.id, int) or column.id in ids or column.name in names:
            raise ValueError(f"the column {column.name!r} has no id and name of its own")
        ids.add(column.id)
        names.add(column.name)
        if version < LINEAGE and str(column.type).startswith(_NEEDS_VERSION_3):
            raise ValueError(
                f"the column {column.name!r} has type {column.type}, which format version "
                f"{version} does not know"
            )
    has_default = any(f.get("initial-default") is not None for f in fields_in(ordered))
    if version < LINEAGE and has_default:
        raise ValueError(
            f"a column's initial default, which format version {version} does not know"
        )
    for identifier in ordered.get("identifier-field-ids") or ():
        if identifier not in ids:
            raise ValueError(f"the identifier field {identifier} is not in the schema")
    return ordered


def schema_content(schema: Mapping[str, Any]) -> tuple[Any, frozenset[int]]:
    """Return what is equal for equal schemas: all but the id."""
    ordered = schema_in_java_order(dict(schema))
    return ordered.get("fields"), frozenset(ordered.get("identifier-field-ids") or ())


def following_properties(
    properties: Mapping[str, str], before: Mapping[str, Any], after: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return the updates by which a table's properties follow a change of its schema, as in Java's
    ``SchemaUpdate``: those of a renamed column get its new name, those of a dropped column go. A
    column is renamed too if the struct that it is in is."""
    now = {column.id: column.name for column in walk(after)}
    names = {column.name: now.get(column.id) for column in walk(before)}
    old: set[str] = set()
    new: dict[str, str] = {}
    for prop, value in properties.items():
        prefix = next(filter(prop.startswith, _OF_COLUMNS), prop)
        name = prop.removeprefix(prefix)
        becomes = names.get(name, name)
        if becomes != name:
            old.add(prop)
            if becomes is not None:
                new[prefix + becomes] = value
    removed = sorted(old - new.keys())
    return [
        *([{"action": "remove-properties", "removals": removed}] if removed else []),
        *([{"action": "set-properties", "updates": new}] if new else []),
    ]


def check_evolution(schema: Mapping[str, Any], before: Iterable[Mapping[str, Any]]) -> None:
    """Raise TypeChangeError if a column of ``schema`` has the ID of an earlier column and cannot
    have its values. ``before`` are earlier schemas; if a column is in several, the last one counts.

    By the specification's "Schema Evolution", an int may become a long, a float a double, a decimal
    may get a larger precision, and an unknown type may become any type. Java is stricter: an
    unknown type stays. As in Java, a date does not become a time, and the key of a map does not
    change, because two keys could become equal. A field stays in its struct. It keeps its initial
    default, which is its value in all files that are older than the field.
    """
    earlier = {column.id: column for each in before for column in walk(each)}
    for column in walk(schema):
        was = earlier.get(column.id)
        if was is None:
            continue
        if was.parent_id != column.parent_id:
            raise TypeChangeError(
                f"Cannot move a column to another struct: {was.name} -> {column.name}"
            )
        old, new = _outline(was), _outline(column)
        if old != new and (column.in_key or not _is_promotion(old, new)):
            raise TypeChangeError(
                f"Cannot change column type: {column.name}: {_type_name(was)} -> "
                f"{_type_name(column)}. Add a new column instead"
            )
        if _initial_default(was, column) != _initial_default(column, column):
            raise TypeChangeError(
                f"Cannot change the initial default of a column: {column.name}: "
                f"{was.initial_default!r} -> {column.initial_default!r}. Change its write default"
            )


def _initial_default(column: Column, typed: Column) -> Any:
    """Return the initial default of a column as a value of the type of ``typed``: JSON has several
    forms of one value, and a float is rounded. If PyIceberg cannot read it, return its JSON."""
    default = column.initial_default
    kind = primitive_type(typed.type) if isinstance(typed.type, str) else None
    if default is None or not isinstance(kind, PrimitiveType):
        return default
    try:
        value: Any = from_json(kind, default)
        return as_float(value) if column.type == "float" else value
    except (TypeError, ValueError, ArithmeticError, NotImplementedError):
        return default


def _outline(column: Column) -> Any:
    """Return a primitive type; of a nested type, what stays the same if its fields change."""
    kind = column.type
    if isinstance(kind, str):
        return primitive_type(kind)
    of = kind.get("type")
    if of == "struct":
        return of, column.in_key and {field["id"] for field in kind["fields"]}
    ids = [kind.get(name) for name in ("element-id", "key-id", "value-id")]
    return (of, ids) if of in ("list", "map") else kind


def _is_promotion(old: Any, new: Any) -> bool:
    if isinstance(old, DecimalType) and isinstance(new, DecimalType):
        return old.scale == new.scale and old.precision < new.precision
    return str(old) == "unknown" or (
        isinstance(new, IcebergType) and _PROMOTIONS.get(str(old)) == str(new)
    )


def _type_name(column: Column) -> str:
    return column.type if isinstance(column.type, str) else str(column.type.get("type"))


def partition_fields(spec: Any) -> list[dict[str, Any]]:
    """Return a partition spec's fields in Java's form. Fields without an id get one."""
    fields = _fields(spec, "partition spec")
    with_ids = [field.get("field-id") is not None for field in fields]
    if any(with_ids) and not all(with_ids):
        raise ValueError("some fields of the partition spec have an id, and some have none")
    return [
        {
            **{name: value for name, value in field.items() if name != "source-ids"},
            "name": string(field, "name"),
            "transform": string(field, "transform"),
            "source-id": _source_id(field),
            "field-id": whole(field, "field-id", FIRST_PARTITION_ID + position),
        }
        for position, field in enumerate(fields)
    ]


def partitioning(fields: Iterable[Mapping[str, Any]]) -> list[tuple[Any, ...]]:
    """Return what is equal for equal partition specs: all but the ids of their fields."""
    return [(field["source-id"], field["transform"], field["name"]) for field in fields]


def sequential_ids(ids: Sequence[int]) -> list[int]:
    """Return the ids that format version 1 gives to this number of partition fields."""
    return [FIRST_PARTITION_ID + position for position in range(len(ids))]


def sort_fields(order: Any) -> list[dict[str, Any]]:
    """Return a sort order's fields in Java's form. Raises ValueError if it is malformed."""
    return [
        {
            "transform": string(field, "transform"),
            "source-id": _source_id(field),
            "direction": one_of(field, "direction", ("asc", "desc")),
            "null-order": one_of(field, "null-order", ("nulls-first", "nulls-last")),
        }
        for field in _fields(order, "sort order")
    ]


def known_sort_fields(fields: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return what is equal for equal sort orders: the parts that the specification names."""
    names = ("transform", "source-id", "direction", "null-order")
    return [{name: field.get(name) for name in names} for field in fields]


def _fields(of: Any, what: str) -> Sequence[Any]:
    fields = of.get("fields") if isinstance(of, Mapping) else None
    if not isinstance(fields, Sequence):
        raise ValueError(f"the {what} has no 'fields'")
    return fields


def _source_id(field: Mapping[str, Any]) -> int:
    """Return the id of the source column of a partition or sort field."""
    several = field.get("source-ids")
    if several is not None:
        if not isinstance(several, Sequence) or len(several) != 1:
            raise ValueError("a transform of several columns is not supported")
        return whole({"source-ids": several[0]}, "source-ids")
    return whole(field, "source-id")


def source_column(columns: Mapping[int, Column], field: Mapping[str, Any], what: str) -> Column:
    """Return the source column of a partition or sort field. Raises ValueError if the column does
    not exist or the field cannot have it."""
    column = columns.get(field["source-id"])
    if column is None:
        raise ValueError(f"the {what} field {field} is of a column that the schema does not have")
    if not isinstance(column.type, str):
        raise ValueError(f"the {what} field {field} is of the nested column {column.name!r}")
    transform = parse_transform(field["transform"])
    if isinstance(transform, UnknownTransform):
        return column
    kind = primitive_type(column.type)
    if not isinstance(kind, OpaqueType) and not transform.can_transform(kind):
        raise ValueError(
            f"the {what} field {field}: {column.name!r} has type {column.type}, which "
            f"{transform} does not take"
        )
    return column

"""A new table's columns, partitions and order, from what is typed or from files. The words are
Iceberg's: ``id long not null``, ``bucket[16](id)``, ``ts desc nulls last``. Knows nothing of
catalogs."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import ValidationError
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import Transform, parse_transform
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType

from ...errors import FormatError
from .inputs import Input

_FIRST_PARTITION_ID = 1000
_MAX_SCHEMA_SIZE = 16 << 20
_NAME = r'(?:"(?P<quoted>[^"]+)"|(?P<name>[^\s"(),:<>]+))'
_COLUMN = re.compile(
    rf"\s*{_NAME}\s+(?P<type>.*?)(?P<required>\s+not\s+null)?\s*", re.IGNORECASE | re.DOTALL
)
_FIELD = re.compile(rf"\s*{_NAME}\s*:(?P<type>.*)", re.DOTALL)
_TRANSFORM = re.compile(
    r"""\s*(?: (?P<transform>[A-Za-z]+) \s* (?:\[\s*(?P<width>\d{1,9})\s*\])? \s*
        \( \s* (?: (?P<spark_width>\d{1,9}) \s* , )? \s* (?P<source>[^()]+?) \s* \)
        | (?P<column>[^()]+?) )\s*""",
    re.VERBOSE,
)
_ORDER = re.compile(
    r"(?P<term>.*?)(?:\s+(?P<direction>asc|desc))?(?:\s+nulls\s+(?P<nulls>first|last))?\s*",
    re.IGNORECASE | re.DOTALL,
)
# The ends that Java's builder gives to the names of partition fields.
_ENDS = {"identity": "", "bucket": "_bucket", "truncate": "_trunc"}
_ENDS |= {name: f"_{name}" for name in ("year", "month", "day", "hour")} | {"void": "_null"}
_WITH_WIDTH = ("bucket", "truncate")


def schema_of_columns(columns: Sequence[str]) -> Schema:
    """Return the schema of columns such as ``id long not null``. Raises ValueError."""
    ids = itertools.count(1)
    fields = []
    for text in columns:
        match = _COLUMN.fullmatch(text)
        if match is None:
            said = f"the column {text!r} does not have the form NAME TYPE or NAME TYPE not null"
            raise ValueError(said)
        name = match["quoted"] or match["name"]
        field_id, kind = next(ids), parse_type(match["type"], ids)
        fields.append(NestedField(field_id, name, kind, required=bool(match["required"])))
    return _checked(Schema(*fields))


def parse_type(text: str, ids: Iterator[int]) -> IcebergType:
    """Return the type that a text such as ``map<string, list<int>>`` names; what is in it gets the
    next ``ids``. Raises ValueError."""
    text = text.strip()
    match = re.fullmatch(r"(list|map|struct)\s*<(.*)>", text, re.IGNORECASE | re.DOTALL)
    if match is None:
        try:
            # PyIceberg knows the names of those that hold no others.
            named = {"id": 1, "name": "c", "type": text.lower(), "required": False}
            return NestedField.model_validate(named).field_type
        except (ValueError, TypeError):
            said = f"{text!r} is not a type of Iceberg, such as long, decimal(9, 2) or list<int>"
            raise ValueError(said) from None
    kind, parts = match[1].lower(), _split(match[2])
    if kind == "list" and len(parts) == 1:
        return ListType(next(ids), parse_type(parts[0], ids), element_required=False)
    if kind == "map" and len(parts) == 2:
        key_id, value_id = next(ids), next(ids)
        key, value = parse_type(parts[0], ids), parse_type(parts[1], ids)
        return MapType(key_id, key, value_id, value, value_required=False)
    fields = [_FIELD.fullmatch(part) for part in parts]
    if kind != "struct" or None in fields:
        raise ValueError(
            f"{text!r} is not a type: nested ones are list<T>, map<K, V> and struct<name: T, ...>"
        )
    made = []
    for f in filter(None, fields):
        made.append(NestedField(next(ids), f["quoted"] or f["name"], parse_type(f["type"], ids)))
    return StructType(*made)


def _split(text: str) -> list[str]:
    """Return the parts between commas that are in no brackets."""
    parts, depth = [""], 0
    for c in text:
        depth += (c in "<(") - (c in ">)")
        if c == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += c
    return parts


def schema_of_json(path: str) -> Schema:
    """Return the schema in a file of Iceberg's JSON. Raises OSError, FormatError."""
    with open(path, "rb") as file:
        text = file.read(_MAX_SCHEMA_SIZE)
    try:
        return _checked(Schema.model_validate_json(text))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        reason = f"{where}: {first['msg']}" if where else first["msg"]
    except (ValueError, TypeError, KeyError) as error:
        reason = str(error)
    raise FormatError(f"it is not a schema in Iceberg's JSON: {reason}", file=path)


def schema_like(path: str, format_: str | None) -> Schema:
    """Return a schema for the rows in a file. Raises as opening it, ValueError for a type that no
    column has."""
    from pyiceberg.io.pyarrow import UnsupportedPyArrowTypeException

    from ...iceberg.pyiceberg.arrow import iceberg_schema

    file = Input(path, format_, None)
    try:
        file.open()
        return _checked(iceberg_schema(file.schema))
    except UnsupportedPyArrowTypeException as error:
        raise ValueError(f"{path}: {' '.join(str(error).split())}") from None
    finally:
        file.close()


def _checked(schema: Schema) -> Schema:
    if not schema.fields:
        raise ValueError("a table needs a column: the schema has none")
    return schema


def partition_spec(terms: Sequence[str], schema: Schema) -> PartitionSpec:
    """Return the spec of terms such as ``bucket[16](id)`` or ``v``. Raises ValueError."""
    fields: list[PartitionField] = []
    for term in terms:
        transform, source, ending = _parse_term(term, schema)
        column = schema.find_column_name(source.field_id)
        name = f"{column}{ending}"
        if any(field.name == name for field in fields):
            raise ValueError(f"{term}: the table has a partition {name!r} already: leave one out")
        field_id = _FIRST_PARTITION_ID + len(fields)
        fields.append(PartitionField(source.field_id, field_id, transform, name))
    return PartitionSpec(*fields)


def sort_order(terms: Sequence[str], schema: Schema) -> SortOrder:
    """Return the order of terms such as ``ts desc nulls last``. Raises ValueError."""
    fields = []
    for term in terms:
        match = _ORDER.fullmatch(term)
        assert match is not None  # it matches everything
        transform, source, _ = _parse_term(match["term"], schema)
        direction = SortDirection((match["direction"] or "asc").lower())
        default = "first" if direction == SortDirection.ASC else "last"
        nulls = NullOrder(f"nulls-{(match['nulls'] or default).lower()}")
        fields.append(SortField(source.field_id, transform, direction, nulls))
    return SortOrder(*fields)


def _parse_term(term: str, schema: Schema) -> tuple[Transform[Any, Any], NestedField, str]:
    match = _TRANSFORM.fullmatch(term)
    if match is None:
        raise ValueError(f"{term!r} is neither a column nor a transform such as bucket[16](id)")
    column = match["column"] or match["source"]
    try:
        source = schema.find_field(column.strip().strip('"'))
    except ValueError:
        raise ValueError(f"{term}: the table has no column {column!r}") from None
    name = (match["transform"] or "identity").lower()
    if name not in _ENDS:
        name = name.removesuffix("s")  # Spark says 'days'
    if name not in _ENDS:
        raise ValueError(f"{term}: {name!r} is not among the transforms: {', '.join(_ENDS)}")
    width = match["width"] or match["spark_width"]
    if (name in _WITH_WIDTH) != (width is not None) or width == "0":
        needed = f"needs a number, as {name}[16]" if name in _WITH_WIDTH else "takes no number"
        raise ValueError(f"{term}: {name} {needed}")
    transform = parse_transform(name if width is None else f"{name}[{width}]")
    if not transform.can_transform(source.field_type):
        raise ValueError(f"{term}: {name} cannot transform a column of type {source.field_type}")
    return transform, source, _ENDS[name]

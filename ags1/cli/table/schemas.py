"""A new table's columns, from a file or another table, and its partitions and order, in Iceberg's
words: ``bucket[16](id)``, ``ts desc``. Knows nothing of catalogs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError
from pyiceberg.exceptions import ValidationError as PyIcebergValidationError
from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import (
    IdentityTransform,
    Transform,
    UnknownTransform,
    parse_transform,
)
from pyiceberg.types import NestedField

from ...errors import FormatError
from .inputs import schema_of_rows

_MAX_SCHEMA_SIZE = 16 << 20
_TERM = re.compile(r"(?P<transform>[a-z]+(?:\[[1-9]\d{0,8}\])?)\((?P<source>.+)\)")


def schema_of_file(path: str, format_: str | None) -> Schema:
    """Return the schema of a file of rows, or the one in a file of Iceberg's JSON. Raises OSError,
    FormatError, click.UsageError; ValueError for a schema without a column."""
    schema = _parsed(path) if path.endswith(".json") else schema_of_rows(path, format_)
    if not schema.fields:
        raise ValueError(f"{path}: a table needs a column: the schema has none")
    return schema


def _parsed(path: str) -> Schema:
    with open(path, "rb") as file:
        text = file.read(_MAX_SCHEMA_SIZE)
    try:
        return Schema.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        reason = f"{where}: {first['msg']}" if where else first["msg"]
    except (ValueError, TypeError, KeyError) as error:
        reason = str(error)
    raise FormatError(f"it is not a schema in Iceberg's JSON: {reason}", file=path)


def partition_spec(terms: Sequence[str], schema: Schema) -> PartitionSpec:
    """Return the spec of terms such as ``bucket[16](id)`` or ``v``. Raises ValueError."""
    fields: list[PartitionField] = []
    for field_id, term in enumerate(terms, PARTITION_FIELD_ID_START):
        transform, source = _parse_term(term, schema)
        # The ends that Java's builder gives to the names of partition fields.
        kind = str(transform).partition("[")[0].replace("truncate", "trunc")
        name = schema.find_column_name(source.field_id) or ""
        name += "" if kind == "identity" else f"_{kind}"
        if any(field.name == name for field in fields):
            raise ValueError(f"{term}: the table has a partition {name!r} already: leave one out")
        fields.append(PartitionField(source.field_id, field_id, transform, name))
    return PartitionSpec(*fields)


def sort_order(terms: Sequence[str], schema: Schema) -> SortOrder:
    """Return the order of terms such as ``v`` or ``days(ts) desc``. Nulls are first, or last with
    ``desc``, as Iceberg has it. Raises ValueError."""
    fields = []
    for term in terms:
        name, _, direction = term.partition(" ")
        if direction.lower() not in ("", "asc", "desc"):
            raise ValueError(f"{term}: after the column, only asc or desc may stand")
        transform, source = _parse_term(name, schema)
        is_down = direction.lower() == "desc"
        order = SortDirection.DESC if is_down else SortDirection.ASC
        nulls = NullOrder.NULLS_LAST if is_down else NullOrder.NULLS_FIRST
        fields.append(SortField(source.field_id, transform, order, nulls))
    return SortOrder(*fields)


def _parse_term(term: str, schema: Schema) -> tuple[Transform[Any, Any], NestedField]:
    match = _TERM.fullmatch(term)
    column = term if match is None else match["source"]
    try:
        source = schema.find_field(column)
    except ValueError:
        raise ValueError(f"{term}: the table has no column {column!r}") from None
    try:
        transform = IdentityTransform() if match is None else parse_transform(match["transform"])
        is_known = not isinstance(transform, UnknownTransform)
        fits = is_known and transform.can_transform(source.field_type)
    except PyIcebergValidationError:
        fits = False
    if not fits:
        message = f"{term} is not a transform of a column of type {source.field_type}"
        raise ValueError(f"{message}, such as bucket[16](id) or month(ts)")
    return transform, source

"""Metadata columns: the file of a row, its position there, its partition, its row ID, and the
sequence number of its last change.

Names, IDs and types are as in Java's ``MetadataColumns``. See "Reserved Field IDs" and "Row
Lineage" in the specification. A metadata column is read only if it is named. If the table has a
column of the same name, the name means that column. ``_partition`` has another type in each table:
``partition_column`` makes it, and filters cannot name it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pyiceberg.expressions import And, BooleanExpression, Not, Or, UnboundPredicate
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, LongType, NestedField, StringType

from ..spec.constants import (
    FILE_ID,
    LAST_UPDATED_ID,
    POSITION_ID,
    ROW_ID,
    SPEC_ID,
)
from .partition_column import PARTITION

_FIELDS = (
    (FILE_ID, "_file", StringType(), "Path of the file in which a row is stored"),
    (POSITION_ID, "_pos", LongType(), "Ordinal position of a row in the source data file"),
    (SPEC_ID, "_spec_id", IntegerType(), "Spec ID used to track the file containing a row"),
    (ROW_ID, "_row_id", LongType(), "Implicit row ID that is automatically assigned"),
    (
        LAST_UPDATED_ID,
        "_last_updated_sequence_number",
        LongType(),
        "Sequence number when the row was last updated",
    ),
)
# The metadata columns that data files may contain.
LINEAGE_IDS = frozenset((ROW_ID, LAST_UPDATED_ID))
METADATA_COLUMNS = {
    i: NestedField(i, name, kind, required=i not in LINEAGE_IDS, doc=doc)
    for i, name, kind, doc in _FIELDS
}
#: The names of all metadata columns of a scan.
METADATA_NAMES = (*(field.name for field in METADATA_COLUMNS.values()), PARTITION)


def names_any(names: Iterable[str]) -> bool:
    """Return whether any of the names may be that of a metadata column."""
    return any(name.lower() in METADATA_NAMES for name in names)


def select(
    schema: Schema,
    names: Iterable[str],
    *,
    case_sensitive: bool = True,
    beside: Mapping[int, NestedField],
) -> Schema:
    """Return the table's columns with these names, as PyIceberg does (``*`` means all), then the
    metadata columns ``beside`` them in the order of ``names``. Raises ValueError for an unknown
    name."""
    columns = _columns_beside(schema, case_sensitive, beside)
    own: list[str] = []
    chosen: dict[int, NestedField] = {}
    for name in names:
        field = columns.get(name if case_sensitive else name.lower())
        if field is None:
            own.append(name)
        else:
            chosen[field.field_id] = field
    selected = schema if "*" in own else schema.select(*own, case_sensitive=case_sensitive)
    return Schema(
        *selected.fields,
        *chosen.values(),
        schema_id=selected.schema_id,
        identifier_field_ids=selected.identifier_field_ids,
    )


def filtered_schema(
    schema: Schema, row_filter: BooleanExpression, *, case_sensitive: bool = True
) -> Schema:
    """Return a table's schema plus the metadata columns that an unbound filter names."""
    names = set(_names_in(row_filter))
    if not names_any(names):
        return schema
    columns = _columns_beside(schema, case_sensitive)
    wanted = {name if case_sensitive else name.lower() for name in names}
    more = [field for name, field in columns.items() if name in wanted]
    return Schema(*schema.fields, *more) if more else schema


def _columns_beside(
    schema: Schema,
    case_sensitive: bool,
    beside: Mapping[int, NestedField] = METADATA_COLUMNS,
) -> dict[str, NestedField]:
    """Return the metadata columns by name, without those whose names the table's columns have."""
    own = {field.name if case_sensitive else field.name.lower() for field in schema.fields}
    return {f.name: f for f in beside.values() if f.name not in own}


def _names_in(expression: BooleanExpression) -> Iterator[str]:
    pending = [expression]
    while pending:
        part = pending.pop()
        if isinstance(part, And | Or):
            pending += [part.left, part.right]
        elif isinstance(part, Not):
            pending.append(part.child)
        elif isinstance(part, UnboundPredicate):
            yield _name_in(part)


def _name_in(predicate: UnboundPredicate) -> str:
    term: Any = predicate.term  # a Reference: there is no other
    return str(term.name)

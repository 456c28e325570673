"""The columns of row lineage, which rewritten files have beside those of the table.

A row keeps its ID and the sequence number of its last change when it moves to another file. This
follows the Iceberg specification, "Row Lineage".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyiceberg.schema import Schema

from ..read.metadata_columns import METADATA_COLUMNS
from ..spec.column_types import check_readable
from ..spec.constants import LAST_UPDATED_ID, ROW_ID

LINEAGE = METADATA_COLUMNS[ROW_ID], METADATA_COLUMNS[LAST_UPDATED_ID]


def schema_with_lineage(schema: Schema, way: str | None = None) -> Schema:
    """Return the schema to read rows that will be written to other files.

    ``way`` is what errors advise. Raises UnsupportedTypeError if a column has a type that is not
    read here, and NotImplementedError if the table has a column with the name of a lineage column.
    """
    check_readable(schema, way)
    for field in LINEAGE:
        if field.name in schema.column_names:
            raise NotImplementedError(
                f"the table has a column named {field.name!r}, so files cannot be rewritten with "
                f"their row IDs: rename it{f', or {way}' if way else ''}"
            )
    return Schema(*schema.fields, *LINEAGE)


def metadata_with_lineage(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table's metadata with the columns of row lineage in its current schema."""
    more = [field.model_dump(by_alias=True, mode="json", exclude_none=True) for field in LINEAGE]
    current = metadata["current-schema-id"]
    schemas = [
        schema | {"fields": [*schema["fields"], *more]}
        if schema["schema-id"] == current
        else schema
        for schema in metadata["schemas"]
    ]
    return {**metadata, "schemas": schemas}

"""AWS Glue's entries of tables, as PyIceberg's ``GlueCatalog`` reads and writes them."""

from __future__ import annotations

from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Identifier

# Glue's limit, in characters.
_MAX_COMMENT = 255


def glue_table(catalog: Any, identifier: str | Identifier) -> dict[str, Any]:
    """Return Glue's entry of a table. Raises NoSuchTableError."""
    database, name = Catalog.identifier_to_database_and_table(identifier, NoSuchTableError)
    entry: dict[str, Any] = catalog._get_glue_table(database, name)
    return entry


def glue_columns(metadata: TableMetadata) -> list[dict[str, Any]]:
    """Return the columns of a table's schemas in Glue's form. Comments are cut to Glue's limit."""
    from pyiceberg.catalog.glue import _to_columns

    columns: list[dict[str, Any]] = [dict(column) for column in _to_columns(metadata)]
    for column in columns:
        if "Comment" in column:
            column["Comment"] = column["Comment"][:_MAX_COMMENT]
    return columns


def is_of_s3_tables(catalog: Any, namespace: str) -> bool:
    """Return whether a database of Glue is one of Amazon S3 Tables, which manages its files."""
    return bool(catalog._is_s3tables_database(namespace))

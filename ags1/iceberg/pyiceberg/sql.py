"""The rows of a SQL catalog's table ``iceberg_tables``."""

from __future__ import annotations

from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.typedef import Identifier


def sql_metadata_location(catalog: Any, identifier: str | Identifier) -> str:
    """Return the location of a table's metadata.json in a SQL catalog, without reading the file.
    Raises NoSuchTableError."""
    from pyiceberg.catalog.sql import IcebergTables
    from sqlalchemy import select
    from sqlalchemy.orm import Session

    namespace = Catalog.namespace_to_string(Catalog.namespace_from(identifier))
    name = Catalog.table_name_from(identifier)
    statement = select(IcebergTables.metadata_location).where(
        IcebergTables.catalog_name == catalog.name,
        IcebergTables.table_namespace == namespace,
        IcebergTables.table_name == name,
    )
    is_table = catalog._iceberg_type_filter()
    with Session(catalog.engine) as session:
        location = session.scalar(statement if is_table is None else statement.where(is_table))
    if not location:
        raise NoSuchTableError(f"Table does not exist: {namespace}.{name}")
    return str(location)


def sql_table_row(
    catalog: Any, identifier: str | Identifier, metadata_location: str
) -> dict[str, Any]:
    """Return the row of a new table for the catalog's version of ``iceberg_tables``."""
    namespace = Catalog.namespace_to_string(Catalog.namespace_from(identifier))
    row: dict[str, Any] = catalog._create_table_row(
        namespace, Catalog.table_name_from(identifier), metadata_location
    )
    return row

"""The items of PyIceberg's ``DynamoDbCatalog``: one for each table, and one for each namespace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.typedef import Identifier, Properties

Item = dict[str, Any]


def dynamodb_item(catalog: Any, identifier: str | Identifier) -> Item:
    """Return the item of a table, as it was last written. Raises NoSuchTableError."""
    database, name = Catalog.identifier_to_database_and_table(identifier, NoSuchTableError)
    item: Item = catalog._get_iceberg_table_item(database, name)
    return item


def dynamodb_parameters(item: Item) -> Properties:
    """Return the parameters that an item has, such as the location of the metadata."""
    from pyiceberg.catalog.dynamodb import PROPERTY_KEY_PREFIX

    return {
        name.removeprefix(PROPERTY_KEY_PREFIX): value["S"]
        for name, value in item.items()
        if name.startswith(PROPERTY_KEY_PREFIX) and "S" in value
    }


def dynamodb_key(identifier: Identifier) -> Item:
    """Return the key of a table's item."""
    database, _ = identifier
    return {"identifier": {"S": ".".join(identifier)}, "namespace": {"S": database}}


def dynamodb_column(parameter: str) -> str:
    """Return the name of the attribute that has a parameter in a table's item."""
    from pyiceberg.catalog.dynamodb import _add_property_prefix

    return str(_add_property_prefix(parameter))


def new_dynamodb_item(catalog: Any, identifier: Identifier, parameters: Mapping[str, str]) -> Item:
    """Return the item of a new table. Raises NoSuchNamespaceError."""
    from pyiceberg.catalog.dynamodb import _get_create_table_item

    database, name = identifier
    catalog._ensure_namespace_exists(database)
    item: Item = _get_create_table_item(database, name, {}, "")
    return item | {dynamodb_column(n): {"S": value} for n, value in parameters.items()}


def renamed_dynamodb_item(catalog: Any, item: Item, identifier: Identifier) -> Item:
    """Return the item of a table under another name. Raises NoSuchNamespaceError."""
    from pyiceberg.catalog.dynamodb import _get_rename_table_item

    database, name = identifier
    catalog._ensure_namespace_exists(database)
    copy = {column: dict(value) for column, value in item.items()}
    renamed: Item = _get_rename_table_item(copy, database, name)
    return renamed

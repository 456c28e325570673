"""The rows of a SQL catalog: those of ``iceberg_tables``, and a table's pins.

Pins are what a catalog keeps of an encrypted table: three rows of ``iceberg_namespace_properties``,
which every SQL catalog of PyIceberg and Java has. docs/tables/catalogs.md has their format.
Independent of metadata.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.typedef import Identifier

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Connection, Executable

# The imports of SQLAlchemy are in the functions, because only users of SQL catalogs have it.

_PINNED = "key-id", "location", "sha256"


def sql_table(catalog: Any, identifier: str | Identifier) -> tuple[str, dict[str, str]]:
    """Return the location of a table's metadata.json in a SQL catalog, and the table's pins of the
    same moment, by ``key-id``, ``location`` and ``sha256``. Raises NoSuchTableError."""
    from sqlalchemy.exc import DBAPIError

    namespace, table = _names(identifier)
    parts = {_key(part, identifier): part for part in _PINNED}
    values = _parameters(catalog, identifier)
    has_types = catalog._iceberg_type_filter() is not None
    try:
        with catalog.engine.connect() as connection:
            keys = dict(zip(_PINNED, parts, strict=True))
            rows = connection.execute(_table_query(has_types, True), values | keys).all()
    except DBAPIError:
        if has_pins(catalog):
            raise
        with catalog.engine.connect() as connection:
            rows = connection.execute(_table_query(has_types, False), values).all()
    if not rows or not rows[0][0]:
        raise NoSuchTableError(f"Table does not exist: {namespace}.{table}")
    return str(rows[0][0]), {parts[key]: value for _, key, value in rows if key}


@functools.cache
def _table_query(has_types: bool, has_pins: bool) -> Executable:
    """Return the query for a table's location and its pins. It is made once, because making it
    takes as long as asking SQLite."""
    from pyiceberg.catalog.sql import ICEBERG_TABLE_TYPE, IcebergNamespaceProperties, IcebergTables
    from sqlalchemy import and_, bindparam, null, or_, select

    tables: Any = IcebergTables.__table__.c
    pins: Any = IcebergNamespaceProperties.__table__.c
    conditions = [_is_row()]
    if has_types:
        conditions.append(
            or_(tables.iceberg_type == ICEBERG_TABLE_TYPE, tables.iceberg_type.is_(None))
        )
    if not has_pins:
        return select(tables.metadata_location, null(), null()).where(*conditions)
    are_pins = and_(
        pins.catalog_name == tables.catalog_name,
        pins.namespace == tables.table_namespace,
        or_(*(pins.property_key == bindparam(part) for part in _PINNED)),
    )
    return (
        select(tables.metadata_location, pins.property_key, pins.property_value)
        .outerjoin(IcebergNamespaceProperties.__table__, are_pins)
        .where(*conditions)
    )


def has_pins(catalog: Any) -> bool:
    """Return whether the catalog's database has the table in which pins are kept."""
    from pyiceberg.catalog.sql import IcebergNamespaceProperties
    from sqlalchemy import inspect

    return bool(inspect(catalog.engine).has_table(IcebergNamespaceProperties.__tablename__))


def swap(
    catalog: Any, connection: Connection, identifier: Identifier, base: str, new: str
) -> bool | None:
    """Let a table's row name ``new`` in place of ``base``, locations of metadata. Return whether a
    row was changed, or None if the database does not tell: see :func:`has_location`."""
    values = _parameters(catalog, identifier) | {"base": base, "new": new}
    changed = connection.execute(_swapped(), values).rowcount
    return changed > 0 if catalog.engine.dialect.supports_sane_rowcount else None


@functools.cache
def _swapped() -> Executable:
    """Return the statement of :func:`swap`, made once as :func:`_table_query` is."""
    from pyiceberg.catalog.sql import IcebergTables
    from sqlalchemy import bindparam, update

    tables: Any = IcebergTables.__table__
    return (
        update(tables)
        .where(_is_row(), tables.c.metadata_location == bindparam("base"))
        .values(metadata_location=bindparam("new"), previous_metadata_location=bindparam("base"))
    )


def has_location(
    catalog: Any, connection: Connection, identifier: Identifier, location: str
) -> bool:
    """Return whether a table's row names this location of metadata."""
    from pyiceberg.catalog.sql import IcebergTables
    from sqlalchemy import select

    is_row = is_sql_row(catalog, identifier), IcebergTables.metadata_location == location
    return connection.scalar(select(IcebergTables.table_name).where(*is_row)) is not None


def set_pins(
    catalog: Any, connection: Connection, identifier: Identifier, pins: Mapping[str, str]
) -> None:
    """Replace a table's pins in the transaction of ``connection``."""
    keys = {part: _key(part, identifier) for part in _PINNED}
    common = {"catalog": catalog.name, "namespace": _names(identifier)[0]}
    delete_pins, insert_pin = _pins_replaced()
    connection.execute(delete_pins, common | keys)
    rows = [common | {"key": keys[part], "value": value} for part, value in pins.items()]
    connection.execute(insert_pin, rows)


@functools.cache
def _pins_replaced() -> tuple[Executable, Executable]:
    """Return the statements of :func:`set_pins`, made once as :func:`_table_query` is."""
    from pyiceberg.catalog.sql import IcebergNamespaceProperties
    from sqlalchemy import bindparam, delete, insert, or_

    pins: Any = IcebergNamespaceProperties.__table__
    delete_pins = delete(pins).where(
        pins.c.catalog_name == bindparam("catalog"),
        pins.c.namespace == bindparam("namespace"),
        or_(*(pins.c.property_key == bindparam(part) for part in _PINNED)),
    )
    insert_pin = insert(pins).values(
        catalog_name=bindparam("catalog"),
        namespace=bindparam("namespace"),
        property_key=bindparam("key"),
        property_value=bindparam("value"),
    )
    return delete_pins, insert_pin


def move_pins(catalog: Any, connection: Connection, before: Identifier, after: Identifier) -> None:
    """Give a table's pins to its new name, ``after``, in the transaction of ``connection``."""
    from pyiceberg.catalog.sql import IcebergNamespaceProperties
    from sqlalchemy import delete, update

    if before == after:
        return
    connection.execute(delete(IcebergNamespaceProperties).where(_are_pins(catalog, after)))
    for part in _PINNED:
        new = {"namespace": _names(after)[0], "property_key": _key(part, after)}
        is_pin = _are_pins(catalog, before, [part])
        connection.execute(update(IcebergNamespaceProperties).where(is_pin).values(new))


def drop_sql_table(catalog: Any, identifier: str | Identifier) -> None:
    """Delete a table's row and its pins, in one transaction. Raises NoSuchTableError."""
    from pyiceberg.catalog.sql import IcebergNamespaceProperties, IcebergTables
    from sqlalchemy import delete, select, true

    is_table = catalog._iceberg_type_filter()
    condition = is_sql_row(catalog, identifier), true() if is_table is None else is_table
    keeps_pins = has_pins(catalog)
    with catalog.engine.connect() as connection:
        # Some databases do not say how many rows were deleted, so the row is read first.
        found = connection.scalar(
            select(IcebergTables.table_name).where(*condition).with_for_update()
        )
        deleted: Any = connection.execute(delete(IcebergTables).where(*condition))
        if found is None or deleted.rowcount == 0:
            raise NoSuchTableError(f"Table does not exist: {'.'.join(_names(identifier))}")
        if keeps_pins:
            pins = delete(IcebergNamespaceProperties).where(_are_pins(catalog, identifier))
            connection.execute(pins)
        connection.commit()


def forget_pins(catalog: Any, identifier: str | Identifier) -> None:
    """Delete the pins of a table that the catalog does not have any more."""
    from pyiceberg.catalog.sql import IcebergNamespaceProperties, IcebergTables
    from sqlalchemy import delete, exists

    if not catalog.namespace_from(identifier) or not has_pins(catalog):
        return  # without a namespace, the catalog itself says what is wrong
    is_there = exists(IcebergTables.table_name).where(is_sql_row(catalog, identifier))
    statement = delete(IcebergNamespaceProperties).where(_are_pins(catalog, identifier), ~is_there)
    with catalog.engine.connect() as connection:
        connection.execute(statement)
        connection.commit()


def _is_row() -> ColumnElement[bool]:
    """Return the condition for the row of a table that ``_parameters`` names."""
    from pyiceberg.catalog.sql import IcebergTables
    from sqlalchemy import and_, bindparam

    tables: Any = IcebergTables.__table__.c
    return and_(
        tables.catalog_name == bindparam("catalog"),
        tables.table_namespace == bindparam("namespace"),
        tables.table_name == bindparam("table"),
    )


def _parameters(catalog: Any, identifier: str | Identifier) -> dict[str, str]:
    namespace, table = _names(identifier)
    return {"catalog": catalog.name, "namespace": namespace, "table": table}


def is_sql_row(catalog: Any, identifier: str | Identifier) -> ColumnElement[bool]:
    """Return the condition for the row of a table in ``iceberg_tables``."""
    from pyiceberg.catalog.sql import IcebergTables
    from sqlalchemy import and_

    namespace, table = _names(identifier)
    return and_(
        IcebergTables.catalog_name == catalog.name,
        IcebergTables.table_namespace == namespace,
        IcebergTables.table_name == table,
    )


def sql_table_row(
    catalog: Any, identifier: str | Identifier, metadata_location: str
) -> dict[str, Any]:
    """Return the row of a new table for the catalog's version of ``iceberg_tables``."""
    row: dict[str, Any] = catalog._create_table_row(*_names(identifier), metadata_location)
    return row


def _are_pins(
    catalog: Any, identifier: str | Identifier, parts: Iterable[str] = _PINNED
) -> ColumnElement[bool]:
    """Return the condition for the rows of a table's pins."""
    from pyiceberg.catalog.sql import IcebergNamespaceProperties
    from sqlalchemy import and_

    return and_(
        IcebergNamespaceProperties.catalog_name == catalog.name,
        IcebergNamespaceProperties.namespace == _names(identifier)[0],
        IcebergNamespaceProperties.property_key.in_([_key(part, identifier) for part in parts]),
    )


def _key(part: str, identifier: str | Identifier) -> str:
    return f"ags1.pin.{part}.{Catalog.table_name_from(identifier)}"


def _names(identifier: str | Identifier) -> tuple[str, str]:
    """Return a table's namespace, as text, and its name."""
    namespace = Catalog.namespace_from(identifier)
    return Catalog.namespace_to_string(namespace), Catalog.table_name_from(identifier)

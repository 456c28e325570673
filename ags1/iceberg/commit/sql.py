"""``SqlCommits``: commits to PyIceberg's SQL catalog, in a database of SQLite or PostgreSQL.

A commit is one UPDATE of the table's row. Its WHERE clause names the base's metadata location, so
it changes no row if another commit was first. Follows PyIceberg's ``SqlCatalog`` and Java's
``JdbcTableOperations``.

The same transaction sets the table's pins, and ``read`` requires that the metadata agrees with
them: see ``docs/design/0001-pins.md``.
"""

from __future__ import annotations

from contextlib import ExitStack
from threading import Event

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import IcebergTables
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.typedef import Identifier, Properties
from sqlalchemy import Connection, insert, select, update
from sqlalchemy.exc import DBAPIError, IntegrityError

from ...keys.manager import TABLE_KEY_ID
from ..pyiceberg.sql import (
    drop_sql_table,
    forget_pins,
    has_location,
    has_pins,
    is_sql_row,
    move_pins,
    set_pins,
    sql_table,
    sql_table_row,
    swap,
)
from ..storage.trust import (
    HASH_LOCATION,
    ICEBERG,
    METADATA_LOCATION,
    METADATA_SHA256,
    TABLE_TYPE,
    UNCONFIRMED,
)
from .base import Base
from .file_commits import FileCommits, NewMetadata
from .outcome import not_committed

# What the pins are among the parameters of other catalogs.
_OF_PINS = {"key-id": TABLE_KEY_ID, "location": HASH_LOCATION, "sha256": METADATA_SHA256}


class SqlCommits(FileCommits):
    """Commits to the tables of a SqlCatalog."""

    keeps_java_hash = False
    parses_registered = parses_renamed = True

    def __init__(self, catalog: Catalog) -> None:
        super().__init__(catalog)
        self._engine = catalog.engine  # type: ignore[attr-defined]  # SqlCatalog's
        self.keeps_hash = has_pins(catalog)

    def parameters(self, name: Identifier, shared_client: bool) -> Properties:
        location, pins = sql_table(self.catalog, name)
        known = {_OF_PINS[part]: value for part, value in pins.items()}
        return {TABLE_TYPE: ICEBERG, METADATA_LOCATION: location, **known}

    def drop(self, identifier: str | Identifier) -> None:
        drop_sql_table(self.catalog, identifier)

    def forget(self, identifier: str | Identifier) -> None:
        forget_pins(self.catalog, identifier)

    def _swap(self, base: Base, new: NewMetadata, sent: Event) -> None:
        with ExitStack() as stack:
            try:
                connection = stack.enter_context(self._engine.connect())
                changed = swap(
                    self.catalog, connection, base.identifier, base.location, new.location
                )
                if changed is None:
                    # If the row was changed, it is locked.
                    changed = has_location(self.catalog, connection, base.identifier, new.location)
                if changed:
                    self._pin(connection, base.identifier, new)
            except DBAPIError as error:
                # For example, the database is locked. It was not asked to commit yet.
                raise not_committed(base.identifier, error.orig or error) from error
            if not changed:
                raise CommitFailedException(
                    f"Table has been updated by another process: {'.'.join(base.identifier)}"
                )
            sent.set()
            connection.commit()

    def _insert(self, identifier: Identifier, new: NewMetadata, sent: Event) -> None:
        namespace = Catalog.namespace_from(identifier)
        if not self.catalog.namespace_exists(namespace):
            raise NoSuchNamespaceError(f"Namespace does not exist: {'.'.join(namespace)}")
        row = sql_table_row(self.catalog, identifier, new.location)
        with self._engine.connect() as connection:
            try:
                connection.execute(insert(IcebergTables).values(**row))
            except IntegrityError as error:
                raise TableAlreadyExistsError(
                    f"Table {'.'.join(identifier)} already exists"
                ) from error
            self._pin(connection, identifier, new)
            sent.set()
            connection.commit()

    def rename(self, base: Base, identifier: str | Identifier) -> None:
        name = Catalog.identifier_to_tuple(identifier)
        namespace = Catalog.namespace_from(name)
        if not self.catalog.namespace_exists(namespace):
            raise NoSuchNamespaceError(f"Namespace does not exist: {'.'.join(namespace)}")
        to = sql_table_row(self.catalog, name, base.location)
        statement = (
            update(IcebergTables)
            .where(is_sql_row(self.catalog, base.identifier))
            .values(table_namespace=to["table_namespace"], table_name=to["table_name"])
        )
        with self._engine.connect() as connection:
            try:
                changed = connection.execute(statement).rowcount
            except IntegrityError as error:
                raise TableAlreadyExistsError(f"Table {'.'.join(name)} already exists") from error
            if changed == 0:
                raise NoSuchTableError(f"Table does not exist: {'.'.join(base.identifier)}")
            if self.keeps_hash:
                move_pins(self.catalog, connection, base.identifier, name)
            connection.commit()

    def _pin(self, connection: Connection, identifier: Identifier, new: NewMetadata) -> None:
        """Set the pins of a table that is encrypted."""
        key_id = (new.metadata.get("properties") or {}).get(TABLE_KEY_ID)
        if self.keeps_hash and key_id:
            location = new.location if new.is_confirmed else UNCONFIRMED
            pins = {"key-id": key_id, "location": location, "sha256": new.sha256}
            set_pins(self.catalog, connection, identifier, pins)

    def _current_location(self, identifier: Identifier) -> str | None:
        # The row's lock is waited for: a commit whose answer was lost may hold it.
        statement = (
            select(IcebergTables.metadata_location)
            .where(is_sql_row(self.catalog, identifier))
            .with_for_update()
        )
        with self._engine.connect() as connection:
            location: str | None = connection.scalar(statement)
            return location

    def _may_still_commit(self, error: BaseException, is_new: bool) -> bool:
        # A new row has no lock to wait for. SQLite has no server that could go on without us.
        return is_new and self._engine.dialect.name != "sqlite"

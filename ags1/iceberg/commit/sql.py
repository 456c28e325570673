"""``SqlCommits``: commits to PyIceberg's SQL catalog, in a database of SQLite or PostgreSQL.

A commit is one UPDATE of the table's row. Its WHERE clause names the base's metadata location, so
it changes no row if another commit was first. Follows PyIceberg's ``SqlCatalog`` and Java's
``JdbcTableOperations``. Knows nothing of metadata.
"""

from __future__ import annotations

from threading import Event

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import IcebergTables
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchNamespaceError,
    TableAlreadyExistsError,
)
from pyiceberg.typedef import Identifier
from sqlalchemy import ColumnElement, and_, insert, select, update
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import Session

from ..pyiceberg.sql import sql_table_row
from .base import Base
from .file_commits import FileCommits, Staged


class SqlCommits(FileCommits):
    """Commits to the tables of a SqlCatalog."""

    def __init__(self, catalog: Catalog) -> None:
        super().__init__(catalog)
        self._engine = catalog.engine  # type: ignore[attr-defined]  # SqlCatalog's

    def _swap(self, base: Base, staged: Staged, sent: Event) -> None:
        statement = (
            update(IcebergTables)
            .where(
                self._is_row_of(base.identifier), IcebergTables.metadata_location == base.location
            )
            .values(metadata_location=staged.location, previous_metadata_location=base.location)
        )
        name = ".".join(base.identifier)
        with Session(self._engine) as session:
            try:
                changed: int = session.execute(statement).rowcount  # type: ignore[attr-defined]
                if not self._engine.dialect.supports_sane_rowcount:
                    # The number of changed rows is unknown, so read the row. If it was changed, it
                    # is locked.
                    row = select(IcebergTables).where(
                        self._is_row_of(base.identifier),
                        IcebergTables.metadata_location == staged.location,
                    )
                    changed = len(session.scalars(row).all())
            except DBAPIError as error:
                # For example, the database is locked. It was not asked to commit yet.
                raise CommitFailedException(
                    f"a commit of {name} was not made: {type(error.orig).__name__}"
                ) from error
            if changed < 1:
                raise CommitFailedException(f"Table has been updated by another process: {name}")
            sent.set()
            session.commit()

    def _insert(self, identifier: Identifier, staged: Staged, sent: Event) -> None:
        namespace = Catalog.namespace_from(identifier)
        if not self.catalog.namespace_exists(namespace):
            raise NoSuchNamespaceError(f"Namespace does not exist: {'.'.join(namespace)}")
        row = sql_table_row(self.catalog, identifier, staged.location)
        with Session(self._engine) as session:
            try:
                session.execute(insert(IcebergTables).values(**row))
            except IntegrityError as error:
                raise TableAlreadyExistsError(
                    f"Table {'.'.join(identifier)} already exists"
                ) from error
            sent.set()
            session.commit()

    def _current_location(self, identifier: Identifier) -> str | None:
        # The row's lock is waited for: a commit whose answer was lost may hold it.
        statement = (
            select(IcebergTables.metadata_location)
            .where(self._is_row_of(identifier))
            .with_for_update()
        )
        with Session(self._engine) as session:
            return session.scalar(statement)

    def _may_still_commit(self, error: BaseException, is_new: bool) -> bool:
        # A new row has no lock to wait for. SQLite has no server that could go on without us.
        return is_new and self._engine.dialect.name != "sqlite"

    def _is_row_of(self, identifier: Identifier) -> ColumnElement[bool]:
        namespace = Catalog.namespace_to_string(Catalog.namespace_from(identifier))
        return and_(
            IcebergTables.catalog_name == self.catalog.name,
            IcebergTables.table_namespace == namespace,
            IcebergTables.table_name == Catalog.table_name_from(identifier),
        )

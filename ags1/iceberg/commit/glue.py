"""``GlueCommits``: commits to the AWS Glue Data Catalog.

A commit replaces Glue's entry of the table, and names the version of the entry that it replaces.
Glue refuses it if there is a later version. Follows PyIceberg's ``GlueCatalog`` and Java's
``GlueTableOperations``. ``aws.py`` says what is trusted. Glue has no request that renames: a new
entry is made, and the old one removed. Independent of metadata files.
"""

from __future__ import annotations

from collections.abc import Mapping
from threading import Event
from typing import Any

from botocore.exceptions import ClientError
from pyiceberg.catalog import METADATA_LOCATION, Catalog
from pyiceberg.catalog.glue import GLUE_SKIP_ARCHIVE, GLUE_SKIP_ARCHIVE_DEFAULT
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.schema import Schema
from pyiceberg.typedef import Identifier, Properties
from pyiceberg.utils.properties import property_as_bool

from ..pyiceberg.glue import glue_columns, glue_table, is_of_s3_tables
from ..read.metadata import parse_metadata
from ..storage.trust import TABLE_LOCATION
from .aws import AwsCommits, error_code, updated_by_another, was_repeated
from .base import Base
from .commits import NewLocation
from .file_commits import NewMetadata, catalog_parameters
from .outcome import was_committed

# The parts of an entry that a replacement has to repeat. Glue sets the others itself.
_KEPT = (
    "Description",
    "Owner",
    "LastAccessTime",
    "LastAnalyzedTime",
    "Retention",
    "StorageDescriptor",
    "PartitionKeys",
    "TableType",
    "Parameters",
)


class GlueCommits(AwsCommits):
    """Commits to the tables of a GlueCatalog."""

    def __init__(self, catalog: Catalog) -> None:
        super().__init__(catalog)
        self._glue: Any = catalog.glue  # type: ignore[attr-defined]  # GlueCatalog's

    def parameters(self, name: Identifier, shared_client: bool) -> Properties:
        entry = glue_table(self.catalog, name)
        folder = entry.get("StorageDescriptor", {}).get("Location")
        return {**entry.get("Parameters", {}), TABLE_LOCATION: folder}

    def new_location(
        self,
        identifier: str | Identifier,
        location: str | None,
        schema: Schema,
        properties: Properties,
    ) -> NewLocation:
        database, _ = Catalog.identifier_to_database_and_table(identifier)
        if is_of_s3_tables(self.catalog, database):
            raise NotImplementedError(
                f"{database!r} is a database of Amazon S3 Tables, which rewrites files itself "
                "but cannot decrypt them: create the table in another database"
            )
        return super().new_location(identifier, location, schema, properties)

    def _swap(self, base: Base, new: NewMetadata, sent: Event) -> None:
        entry = self._entry_of(base)
        sent.set()
        self._replace(base.identifier, entry, self._input(base.identifier, new, entry, base))

    def _insert(self, identifier: Identifier, new: NewMetadata, sent: Event) -> None:
        sent.set()
        try:
            self._create(identifier, self._input(identifier, new, {}, None))
        except TableAlreadyExistsError as error:
            cause = error.__cause__
            # The first of two equal requests may have made the table.
            repeated = isinstance(cause, ClientError) and was_repeated(cause)
            if not repeated or self._current_location(identifier) != new.location:
                raise

    def _current_location(self, identifier: Identifier) -> str | None:
        try:
            entry = glue_table(self.catalog, identifier)
        except NoSuchTableError:
            return None
        location: str | None = entry.get("Parameters", {}).get(METADATA_LOCATION)
        return location

    def rename(self, base: Base, identifier: str | Identifier) -> None:
        # Glue cannot rename. The new entry is made first; then the old one loses the location of
        # the metadata, unless another writer was first; then it is deleted. So no commit to the
        # old name is lost. If the process is killed, both entries may stay.
        name = Catalog.identifier_to_tuple(identifier)
        entry = self._entry_of(base)
        kept = {part: entry[part] for part in _KEPT if part in entry}
        self._create(name, {**kept, "Name": name[-1]})
        without = {n: value for n, value in entry["Parameters"].items() if n != METADATA_LOCATION}
        try:
            empty = {**kept, "Name": base.identifier[-1], "Parameters": without}
            self._replace(base.identifier, entry, empty)
        except BaseException as error:
            is_refused = isinstance(error, CommitFailedException)
            if is_refused or not was_committed(
                base.identifier,
                base.metadata,
                error,
                lambda: self._current_location(base.identifier) is None,
            ):
                if self._current_location(name) == base.location:
                    self.catalog.drop_table(name)
                raise
        self.catalog.drop_table(base.identifier)

    def _entry_of(self, base: Base) -> dict[str, Any]:
        """Return Glue's entry. Raises CommitFailedException if it is not that of ``base``."""
        try:
            entry = glue_table(self.catalog, base.identifier)
        except NoSuchTableError as error:
            raise CommitFailedException(
                f"{'.'.join(base.identifier)} does not exist any more"
            ) from error
        location = entry.get("Parameters", {}).get(METADATA_LOCATION)
        if location != base.location or not entry.get("VersionId"):
            raise updated_by_another(base.identifier)
        return entry

    def _create(self, identifier: Identifier, table: Mapping[str, Any]) -> None:
        database, name = identifier
        try:
            self._glue.create_table(DatabaseName=database, TableInput=table)
        except ClientError as error:
            if error_code(error) == "AlreadyExistsException":
                raise TableAlreadyExistsError(f"Table {database}.{name} already exists") from error
            if error_code(error) == "EntityNotFoundException":
                raise NoSuchNamespaceError(f"Database {database} does not exist") from error
            raise

    def _replace(
        self, identifier: Identifier, entry: Mapping[str, Any], table: Mapping[str, Any]
    ) -> None:
        """Replace Glue's entry, if it still has the version of ``entry``. Raises
        CommitFailedException if it certainly was not replaced."""
        skips_archive = property_as_bool(
            self.catalog.properties, GLUE_SKIP_ARCHIVE, GLUE_SKIP_ARCHIVE_DEFAULT
        )
        try:
            self._glue.update_table(
                DatabaseName=identifier[0],
                TableInput=table,
                SkipArchive=skips_archive,
                VersionId=entry["VersionId"],
            )
        except ClientError as error:
            conflicts = ("ConcurrentModificationException", "EntityNotFoundException")
            if error_code(error) in conflicts and not was_repeated(error):
                raise updated_by_another(identifier) from error
            raise

    def _input(
        self, identifier: Identifier, new: NewMetadata, entry: Mapping[str, Any], base: Base | None
    ) -> dict[str, Any]:
        """Return Glue's entry of a table whose metadata is ``new``."""
        return {
            **{part: entry[part] for part in _KEPT if part in entry},
            "Name": identifier[-1],
            "TableType": "EXTERNAL_TABLE",
            "Parameters": entry.get("Parameters", {}) | catalog_parameters(new, base),
            "StorageDescriptor": {
                **entry.get("StorageDescriptor", {}),
                "Columns": glue_columns(parse_metadata(new.metadata)),
                "Location": new.metadata["location"],
            },
        }

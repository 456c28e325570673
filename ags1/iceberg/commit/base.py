"""``Base``: a table's current metadata as its catalog has it, which a commit is built upon.

``load_base`` reads it in every kind of catalog. What the catalog knows of a table is trusted more
than the metadata file: the parameters of Hive, Glue and DynamoDB, the pins of a SQL catalog, and a
REST server's answer become part of the ``Trust``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.typedef import Identifier, Properties

from ...errors import MetadataIntegrityError, NotEncryptedError
from ...keys.manager import TABLE_KEY_ID
from ..pyiceberg.catalogs import is_a
from ..pyiceberg.dynamodb import dynamodb_item, dynamodb_parameters
from ..pyiceberg.glue import glue_table
from ..pyiceberg.hive import hive_parameters
from ..pyiceberg.redirection import refuse_redirection
from ..pyiceberg.rest import RestTable, ask_rest_server, snapshot_loading_mode
from ..pyiceberg.sql import sql_table
from ..read.metadata import read_metadata
from ..storage.trust import (
    HASH_LOCATION,
    ICEBERG,
    METADATA_HASH,
    METADATA_LOCATION,
    METADATA_SHA256,
    TABLE_TYPE,
    Trust,
    parameters_trust,
    rest_trust,
)

# What the pins of a SQL catalog are among the parameters of other catalogs.
_OF_PINS = {"key-id": TABLE_KEY_ID, "location": HASH_LOCATION, "sha256": METADATA_SHA256}


@dataclass(frozen=True, slots=True)
class TableConfig:
    """A REST server's configuration of a table; empty in other catalogs. ``storage`` is the same
    with the credentials for the table's files."""

    config: dict[str, str] = field(default_factory=dict, repr=False)
    storage: dict[str, str] = field(default_factory=dict, repr=False)

    def io(self, catalog: Catalog, location: str) -> FileIO:
        """Return the FileIO for ``location``. The table's metadata has no say in it."""
        return load_file_io(self.properties(catalog), location)

    def properties(self, catalog: Catalog) -> Properties:
        """Return the properties of the table's FileIO: those of the catalog and of the server."""
        return {**catalog.properties, **self.storage}


@dataclass(frozen=True, slots=True)
class Base:
    """A table's metadata as its catalog has it, to be updated. ``location`` is that of its
    metadata.json; it is empty if a REST server leaves it out. ``trust`` confirms the metadata."""

    identifier: Identifier
    metadata: dict[str, Any] = field(repr=False)
    location: str
    trust: Trust
    config: TableConfig = field(default_factory=TableConfig)

    def io(self, catalog: Catalog) -> FileIO:
        """Return the FileIO of the table's files."""
        return self.config.io(catalog, self.location or self.metadata.get("location", ""))


def load_base(
    catalog: Catalog, identifier: str | Identifier, trust: Trust, *, as_pyiceberg: bool = False
) -> Base:
    """Return a table's current metadata. ``trust`` is what the caller knows of it.

    A REST server is asked for all snapshots, and the Hive metastore by a client for this call. If
    ``as_pyiceberg`` is true, both are asked as PyIceberg's ``load_table`` asks them: the server for
    the snapshots that ``snapshot-loading-mode`` names (but an encrypted table needs all), and the
    metastore by the catalog's own client.

    Raises NoSuchTableError, and MetadataIntegrityError if the metadata contradicts what the caller
    or the catalog knows, or names code to run or a server to ask that the catalog does not name.
    """
    config = TableConfig()
    name = Catalog.identifier_to_tuple(identifier)
    if is_a(catalog, "RestCatalog"):
        mode = snapshot_loading_mode(catalog) if as_pyiceberg else None
        answer = ask_rest_server(catalog, identifier, mode)
        if mode == "refs" and answer[0].get("properties", {}).get(TABLE_KEY_ID):
            # Keys whose snapshots are missing from the answer would be pruned.
            answer = ask_rest_server(catalog, identifier)
        return rest_base(catalog, name, answer, trust)
    parameters = _parameters(catalog, identifier, shared_client=as_pyiceberg)
    while parameters is not None:
        location = parameters.get(METADATA_LOCATION, "")
        if not location or parameters.get(TABLE_TYPE, "").lower() != ICEBERG:
            catalog.load_table(identifier)  # raises PyIceberg's own errors
            raise MetadataIntegrityError(
                f"the catalog gave two different answers about {'.'.join(name)}: "
                "load the table again"
            )
        try:
            return file_base(catalog, name, location, parameters_trust(trust, parameters), config)
        except MetadataIntegrityError:
            # While another writer commits, the Hive metastore can answer with the location of one
            # version and the hash of another.
            asked = _parameters(catalog, identifier, shared_client=as_pyiceberg)
            if asked == parameters:
                raise
            parameters = asked
    table = catalog.load_table(identifier)
    config = TableConfig(table.config, table.config)
    return file_base(catalog, table.name(), table.metadata_location, trust, config)


def catalog_pins(catalog: Catalog, identifier: str | Identifier) -> Properties:
    """Return what a catalog keeps of a table to confirm its metadata.json, by the names of the
    parameters in ``trust``. It is empty if the catalog keeps nothing, or is a REST catalog. Raises
    NoSuchTableError."""
    parameters = _parameters(catalog, identifier, shared_client=True) or {}
    names = TABLE_KEY_ID, METADATA_HASH, METADATA_SHA256, HASH_LOCATION
    return {name: parameters[name] for name in names if name in parameters}


def check_never_encrypted(
    catalog: Catalog, identifier: str | Identifier, metadata_location: str
) -> None:
    """Raise NotEncryptedError if the catalog keeps more of a plaintext table than its key ID: then
    the table was encrypted. Raises NoSuchTableError."""
    if catalog_pins(catalog, identifier).keys() - {TABLE_KEY_ID}:
        raise NotEncryptedError(
            "no file of the table is encrypted, but its catalog keeps a hash of it, as of an "
            "encrypted one: the table was encrypted, and somebody replaced the metadata or removed "
            "its keys. This may be an attack. Restore the earlier metadata file",
            file=metadata_location,
        )


def _parameters(
    catalog: Catalog, identifier: str | Identifier, *, shared_client: bool
) -> Properties | None:
    """Return the parameters of a table in a catalog that has such; None for other catalogs. Raises
    NoSuchTableError."""
    if is_a(catalog, "HiveCatalog"):
        return hive_parameters(catalog, identifier, shared_client=shared_client)
    if is_a(catalog, "GlueCatalog"):
        return dict(glue_table(catalog, identifier).get("Parameters", {}))
    if is_a(catalog, "DynamoDbCatalog"):
        return dynamodb_parameters(dynamodb_item(catalog, identifier))
    if is_a(catalog, "SqlCatalog"):
        location, pins = sql_table(catalog, identifier)
        known = {_OF_PINS[part]: value for part, value in pins.items()}
        return {TABLE_TYPE: ICEBERG, METADATA_LOCATION: location, **known}
    return None


def rest_base(catalog: Catalog, identifier: Identifier, answer: RestTable, trust: Trust) -> Base:
    """Return the table of a REST server's answer. Its metadata is used and not the metadata file,
    unless a SHA-256 of the file is expected. Raises MetadataIntegrityError as ``load_base``."""
    metadata, location, config = answer[0], answer[1], TableConfig(answer[2], answer[3])
    trust = rest_trust(trust, metadata)
    if trust.metadata_sha256 is not None:
        return file_base(catalog, identifier, location, trust, config)
    return _checked(catalog, Base(identifier, metadata, location, trust, config))


def file_base(
    catalog: Catalog,
    identifier: Identifier,
    location: str,
    trust: Trust,
    config: TableConfig | None = None,
) -> Base:
    """Return the table of the metadata.json at ``location``. Raises as ``load_base``."""
    config = config or TableConfig()
    metadata = read_metadata(config.io(catalog, location), location, trust)
    return _checked(catalog, Base(identifier, metadata, location, trust, config))


def _checked(catalog: Catalog, base: Base) -> Base:
    refuse_redirection(base.metadata, base.config.properties(catalog), base.location)
    return base

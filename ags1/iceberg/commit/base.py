"""``Base``: a table's current metadata as its catalog has it, which a commit is built upon.

``Commits.read`` reads it. What the catalog knows of a table is trusted more than the metadata file:
the parameters of Hive, Glue and DynamoDB, the pins of a SQL catalog, and a REST server's answer
become part of the ``Trust``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.typedef import Identifier, Properties

from ..pyiceberg.redirection import refuse_redirection
from ..pyiceberg.rest import RestTable
from ..read.metadata import read_metadata
from ..storage.trust import Trust, rest_trust


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


def rest_base(catalog: Catalog, identifier: Identifier, answer: RestTable, trust: Trust) -> Base:
    """Return the table of a REST server's answer. Its metadata is used and not the metadata file,
    unless a SHA-256 of the file is expected. Raises MetadataIntegrityError as ``Commits.read``."""
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
    """Return the table of the metadata.json at ``location``. Raises as ``Commits.read``."""
    config = config or TableConfig()
    metadata = read_metadata(config.io(catalog, location), location, trust)
    return _checked(catalog, Base(identifier, metadata, location, trust, config))


def _checked(catalog: Catalog, base: Base) -> Base:
    refuse_redirection(base.metadata, base.config.properties(catalog), base.location)
    return base

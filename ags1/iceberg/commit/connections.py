"""The ``Commits`` of each kind of catalog."""

from __future__ import annotations

from pyiceberg.catalog import Catalog

from ..pyiceberg.catalogs import is_a
from .commits import Commits
from .rest import RestCommits


def connection_to(catalog: Catalog) -> Commits:
    """Return the object that reads the tables of any catalog, and commits to them if it can."""
    if is_a(catalog, "RestCatalog"):
        return RestCommits(catalog)
    # These need packages that only their users have: SQLAlchemy, Thrift, boto3.
    if is_a(catalog, "SqlCatalog"):
        from .sql import SqlCommits

        return SqlCommits(catalog)
    if is_a(catalog, "HiveCatalog"):
        from .hive import HiveCommits

        return HiveCommits(catalog)
    if is_a(catalog, "GlueCatalog"):
        from .glue import GlueCommits

        return GlueCommits(catalog)
    if is_a(catalog, "DynamoDbCatalog"):
        from .dynamodb import DynamoDbCommits

        return DynamoDbCommits(catalog)
    return Commits(catalog)

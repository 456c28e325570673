"""Chooses the ``Commits`` for a catalog. Only catalogs that keep a table's keys are written to."""

from __future__ import annotations

from pyiceberg.catalog import Catalog

from ..pyiceberg.catalogs import is_a
from .commits import Commits
from .rest import RestCommits


def commits_for(catalog: Catalog) -> Commits:
    """Return the object that commits to the tables of a PyIceberg catalog. Raises
    NotImplementedError for other kinds: they could lose the keys, or one of two commits."""
    commits = connection_to(catalog)
    commits.check_writable()
    return commits


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

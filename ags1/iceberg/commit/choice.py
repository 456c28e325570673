"""Which commits a catalog has: those that keep a table's keys. Knows nothing of how they commit."""

from __future__ import annotations

from pyiceberg.catalog import Catalog

from ..storage.trust import is_a
from .commits import Commits
from .hive import HiveCommits
from .rest import RestCommits
from .sql import SqlCommits

_KEEPING = "SQL, Hive and REST catalogs"


def commits_for(catalog: Catalog) -> Commits:
    """Return what commits to the tables of a PyIceberg catalog.

    Raises NotImplementedError for a catalog that would lose the keys, or cannot tell two writers
    apart.
    """
    if is_a(catalog, "SqlCatalog"):
        return SqlCommits(catalog)
    if is_a(catalog, "HiveCatalog"):
        return HiveCommits(catalog)
    if is_a(catalog, "RestCatalog"):
        return RestCommits(catalog)
    raise NotImplementedError(
        f"encrypted tables cannot be written to {catalog.name!r}, a {type(catalog).__name__}: only "
        f"{_KEEPING} are known to keep a table's keys"
    )

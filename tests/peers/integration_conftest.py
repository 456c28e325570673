"""The ``conftest.py`` of PyIceberg's integration tests: catalogs on SQLite, in place of servers in
docker. There is no Spark: tests that ask for it are skipped."""

from __future__ import annotations

import os
from pathlib import Path

import pyiceberg.catalog
import pytest
from pyiceberg.catalog import Catalog

FOLDER = Path(os.environ["AGS1_OUTCOMES"]).with_suffix("")
_load = pyiceberg.catalog.load_catalog


def load_catalog(name: str | None = None, **properties: str | None) -> Catalog:
    if "localhost" not in (properties.get("uri") or ""):
        return _load(name, **properties)
    place = FOLDER / str(properties["type"])
    place.mkdir(parents=True, exist_ok=True)
    catalog = _load(
        name, type="sql", uri=f"sqlite:///{place}/catalog.db", warehouse=f"file://{place}"
    )
    catalog.create_namespace_if_not_exists("default")
    return catalog


pyiceberg.catalog.load_catalog = load_catalog


@pytest.fixture(scope="session")
def session_catalog() -> Catalog:
    return load_catalog("local", type="rest", uri="http://localhost")


@pytest.fixture(scope="session")
def session_catalog_hive() -> Catalog:
    return load_catalog("local", type="hive", uri="http://localhost")


@pytest.fixture(scope="session")
def spark() -> None:
    pytest.skip("there is no Spark")

"""What PyIceberg's catalogs have in common: properties, and the FileIO and location of a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyiceberg.catalog import _ENV_CONFIG, Catalog
from pyiceberg.exceptions import NoSuchNamespaceError
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.typedef import Identifier, Properties
from pyiceberg.utils.config import merge_config

from ...errors import ArgumentError
from .configuration import file_path


def is_a(catalog: Catalog, name: str) -> bool:
    """Return whether ``catalog`` is PyIceberg's class ``name`` or a subclass of it."""
    # Compared by name, because importing the class needs libraries that only its users have.
    names = {(kind.__module__.partition(".")[0], kind.__name__) for kind in type(catalog).__mro__}
    return ("pyiceberg", name) in names


def configured_properties(name: str | None, properties: Mapping[str, Any]) -> dict[str, str]:
    """Return the properties that PyIceberg's ``load_catalog`` would use for a catalog: those of the
    configuration file and the environment. The caller's ``properties`` override them. Raises
    ArgumentError if the file has something else in place of a catalog's properties."""
    try:
        if name is None:
            name = _ENV_CONFIG.get_default_catalog_name()
        configured = _ENV_CONFIG.get_catalog_config(name) or {}
    except ValueError as error:
        raise ArgumentError(f"PyIceberg's configuration file {file_path()}: {error}") from None
    merged = merge_config(configured, dict(properties))
    return {key: value for key, value in merged.items() if isinstance(value, str)}


def configured_catalogs() -> list[str]:
    """Return the names of the catalogs in PyIceberg's configuration file and environment."""
    return sorted(_ENV_CONFIG.get_known_catalogs())


def plain_file_io(catalog: Any, properties: Properties, location: str) -> FileIO:
    """Return the FileIO that a catalog makes for an unencrypted table with these properties, which
    must have been checked. The FileIO of a RestCatalog signs its requests as the catalog does."""
    if hasattr(catalog, "_load_file_io"):
        made: FileIO = catalog._load_file_io(properties, location)
        return made
    return load_file_io({**catalog.properties, **properties}, location)


def default_table_location(catalog: Any, identifier: str | Identifier, location: str | None) -> str:
    """Return the location of a new table in a SQL or Hive catalog: ``location`` if that is given.
    Raises NoSuchNamespaceError, and ValueError if namespace and catalog have no location."""
    namespace = Catalog.namespace_from(identifier)
    if not catalog.namespace_exists(namespace):
        raise NoSuchNamespaceError(f"Namespace does not exist: {'.'.join(namespace)}")
    resolved: str = catalog._resolve_table_location(
        location, Catalog.namespace_to_string(namespace), Catalog.table_name_from(identifier)
    )
    return resolved

"""Makes PyIceberg's catalogs refuse tables whose metadata names code, a server or credentials."""

from __future__ import annotations

import functools
from typing import Any

from pyiceberg.typedef import EMPTY_DICT, Properties

from .redirection import refuse_foreign_code, refuse_redirection


def guard_catalog(catalog: Any) -> None:
    """Make a catalog of PyIceberg refuse tables whose metadata names code, a server or credentials.

    All of its methods that load a table use what the metadata names at once, and so do ``refresh``
    and ``append`` of a loaded table. After this call they raise MetadataIntegrityError instead. For
    a REST catalog, the methods that parse the server's answers are guarded. For others, it is the
    method that makes a table's FileIO from the metadata.
    """
    own = vars(catalog)
    if "_response_to_table" in own or "_load_file_io" in own:
        return
    if hasattr(catalog, "_response_to_table"):
        for name in ("_response_to_table", "_response_to_staged_table"):
            setattr(catalog, name, functools.partial(_checked, catalog, getattr(catalog, name)))
        catalog.commit_table = functools.partial(_committed, catalog, catalog.commit_table)
    elif hasattr(catalog, "_load_file_io"):
        catalog._load_file_io = functools.partial(_loaded, catalog, catalog._load_file_io)


def _loaded(
    catalog: Any, load: Any, properties: Properties = EMPTY_DICT, location: str | None = None
) -> Any:
    refuse_redirection({"properties": properties}, catalog.properties, location)
    return load(properties, location)


def _checked(catalog: Any, make: Any, identifier: Any, response: Any) -> Any:
    location = response.metadata_location
    credentials = catalog._resolve_storage_credentials(response.storage_credentials, location)
    storage = {**response.config, **credentials}
    refuse_foreign_code(storage, catalog.properties, location)
    stated = {"properties": response.metadata.properties}
    refuse_redirection(stated, {**catalog.properties, **storage}, location)
    return make(identifier, response)


def _committed(catalog: Any, commit: Any, table: Any, requirements: Any, updates: Any) -> Any:
    response = commit(table, requirements, updates)
    # From now on, the table uses what the server has answered.
    stated = {"properties": response.metadata.properties}
    own = {**catalog.properties, **table.config}
    refuse_redirection(stated, own, response.metadata_location)
    return response

"""Encrypted tables in a Spark job, which each process opens for itself.

A table is named by options without secrets. The driver and every Python worker open it with their
own environment and configuration files: PyIceberg's for the catalog, the command line's for the
KMS. Independent of Spark.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from ..errors import NotEncryptedError
from ..iceberg.distributed import (
    EncryptedCatalog,
    EncryptedTable,
    configured_properties,
    load_catalog,
    open_table,
)
from ..kms.registry import names_kms
from . import options as opt

_CATALOG_PREFIX = "catalog."


def open_of_options(options: Mapping[str, str]) -> EncryptedTable:
    """Open the table that a reader's or writer's options name.

    ``path`` (the argument of ``load`` and ``save``) is its name in the catalog ``catalog`` or, to
    read, the location of a metadata.json. ``catalog.<property>`` are properties of the catalog or,
    without a catalog, of PyIceberg's FileIO; they come before PyIceberg's configuration file and
    environment. ``key`` is the master key to expect, ``require-encrypted`` is as for
    ``load_table``, and ``location-map`` is that of a table that was moved, in JSON.

    Raises as ``load_table`` and ``open_table``; NotEncryptedError for a table that is not
    encrypted; KmsConfigurationError for an option that is a secret.
    """
    opt.refuse_secrets(options)
    name = options.get("path")
    if not name:
        raise ValueError("no table is named: load('database.table') or load('….metadata.json')")
    more: dict[str, Any] = {
        "expected_key_id": options.get("key") or None,
        "location_map": json.loads(options.get("location-map") or "{}"),
    }
    if options.get("require-encrypted"):
        more["require_encrypted"] = opt.flag(options, "require-encrypted")
    if name.endswith((".metadata.json", ".metadata.json.gz")):
        properties = _catalog_properties(options)
        kms = _with_kms(properties, options)
        table = open_table(name, kms, properties=properties, **more)
    else:
        table = catalog_of_options(options).load_table(name, **more)
    if not isinstance(table, EncryptedTable):
        raise NotEncryptedError("the table is not encrypted: read it with Spark's own sources")
    return table


def catalog_of_options(options: Mapping[str, str]) -> EncryptedCatalog:
    """Open the catalog that the options ``catalog`` and ``catalog.<property>`` name, with the KMS
    of its configuration or else that of ``opt.key_settings``. Raises as ``load_catalog``, and
    KmsConfigurationError for an option that is a secret."""
    opt.refuse_secrets(options)
    name = options.get("catalog")
    properties = _catalog_properties(options)
    configured = configured_properties(name, properties)
    if not names_kms(configured):
        properties = _with_kms(properties, options)
    return load_catalog(name, **properties)


def _catalog_properties(options: Mapping[str, str]) -> dict[str, str]:
    ours = (name for name in options if name.startswith(_CATALOG_PREFIX))
    return {name.removeprefix(_CATALOG_PREFIX): options[name] for name in ours}


def _with_kms(properties: Mapping[str, str], options: Mapping[str, str]) -> dict[str, str]:
    return {**opt.key_settings(options).properties, **properties}


@dataclass(frozen=True)
class TableByOptions:
    """The table of a job, named by sorted options. Each process opens it once for the job."""

    job_id: str
    options: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, options: Mapping[str, str]) -> TableByOptions:
        """Return the table for a new job. The names of the files that the job writes contain its
        ID. Raises KmsConfigurationError for an option that is a secret."""
        opt.refuse_secrets(options)
        return cls(str(uuid4()), tuple(sorted(options.items())))

    @property
    def name(self) -> str:
        """The table's name in its catalog."""
        return dict(self.options)["path"]

    def open(self) -> EncryptedTable:
        """Open the table. Raises as ``open_of_options``."""
        return _opened(self)

    def open_catalog(self) -> EncryptedCatalog:
        """Open the table's catalog. Raises as ``catalog_of_options``."""
        return catalog_of_options(dict(self.options))


@functools.lru_cache(maxsize=4)
def _opened(table: TableByOptions) -> EncryptedTable:
    return open_of_options(dict(table.options))

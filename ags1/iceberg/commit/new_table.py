"""The updates that create a table, encrypted or not as its properties say."""

from __future__ import annotations

import uuid as uuids
from collections.abc import Mapping
from typing import Any

from pyiceberg.partitioning import PartitionSpec, assign_fresh_partition_spec_ids
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table.sorting import SortOrder, assign_fresh_sort_order_ids

from ..pyiceberg.defaults import check_defaults
from ..spec.column_types import check_sources, check_writable
from ..spec.constants import FORMAT_VERSION
from ..spec.java_json import schema_in_java_order
from ..spec.properties import (
    FILE_FORMAT,
    FORMAT_VERSION_PROPERTY,
    number_in,
    property_text,
    refuse_reserved,
)
from ..storage.locations import split_location
from .metadata_file import PREVIOUS_VERSIONS_MAX, without_trailing_slash
from .updates import LAST_ADDED

_PARQUET_CODEC = "write.parquet.compression-codec"
_METRICS_OF_COLUMN = "write.metadata.metrics.column."

# Java refuses a new table if one of these is not a number.
_COUNTS = (
    "commit.retry.num-retries",
    "commit.retry.min-wait-ms",
    "commit.retry.max-wait-ms",
    "commit.retry.total-timeout-ms",
)


def new_table_updates(
    schema: Schema,
    partition_spec: PartitionSpec,
    sort_order: SortOrder,
    location: str,
    properties: Mapping[str, Any],
    uuid: uuids.UUID | str | None = None,
) -> list[dict[str, Any]]:
    """Return the updates that create a table of format version 3, with fresh IDs. ``properties``
    may have ``format-version``; the new table does not get it as a property. Raises ValueError for
    another version, for properties that are reserved or that Java refuses in a new table, and for a
    partition spec, sort order or default that does not fit the schema, and for a location with
    ``?`` or ``#``; UnsupportedTypeError for a column that could not be written."""
    texts = {name: property_text(name, value) for name, value in properties.items()}
    version = texts.pop(FORMAT_VERSION_PROPERTY, str(FORMAT_VERSION))
    if version != str(FORMAT_VERSION):
        raise ValueError(
            f"new tables have format version {FORMAT_VERSION}, not {version}: remove the property "
            f"{FORMAT_VERSION_PROPERTY!r}"
        )
    refuse_reserved(texts)
    if {"?", "#"} & set(location) and split_location(location)[0]:
        raise ValueError(
            f"the table's location would be {location}, and its path ends at the '?' or '#' for "
            "some readers: pass a location without these, or another name"
        )
    # As Java does for new tables. If the property is missing, Java uses gzip.
    texts.setdefault(_PARQUET_CODEC, "zstd")
    check_writable(schema, is_avro=texts.get(FILE_FORMAT, "").lower() == "avro")
    check_defaults(schema)
    fresh_schema = assign_fresh_schema_ids(schema)
    _check_new_properties(texts, schema)
    fresh_spec = assign_fresh_partition_spec_ids(partition_spec, schema, fresh_schema)
    fresh_order = assign_fresh_sort_order_ids(sort_order, schema, fresh_schema)
    check_sources([*_plain(fresh_spec)["fields"], *_plain(fresh_order)["fields"]], fresh_schema)
    return [
        {"action": "assign-uuid", "uuid": str(uuids.uuid4() if uuid is None else uuid)},
        {"action": "upgrade-format-version", "format-version": FORMAT_VERSION},
        {"action": "add-schema", "schema": schema_in_java_order(_plain(fresh_schema))},
        {"action": "set-current-schema", "schema-id": LAST_ADDED},
        {"action": "add-spec", "spec": _plain(fresh_spec)},
        {"action": "set-default-spec", "spec-id": LAST_ADDED},
        {"action": "add-sort-order", "sort-order": _plain(fresh_order)},
        {"action": "set-default-sort-order", "sort-order-id": LAST_ADDED},
        {"action": "set-location", "location": without_trailing_slash(location)},
        {"action": "set-properties", "updates": texts},
    ]


def _plain(model: Schema | PartitionSpec | SortOrder) -> dict[str, Any]:
    plain: dict[str, Any] = model.model_dump(mode="json", by_alias=True, exclude_none=True)
    return plain


def _check_new_properties(properties: Mapping[str, str], schema: Schema) -> None:
    for name in (*_COUNTS, PREVIOUS_VERSIONS_MAX):
        # A negative count means 0, as in PyIceberg. Java refuses it in a new table.
        number_in(properties, name, 0, least=None if name in _COUNTS else 0)
    for name in properties:
        if name.startswith(_METRICS_OF_COLUMN):
            column = name.removeprefix(_METRICS_OF_COLUMN)
            try:
                schema.find_field(column)
            except ValueError:
                raise ValueError(f"{name}: the table has no column {column!r}") from None

"""The form of a table's metadata that PyIceberg parses.

Java reads metadata that PyIceberg refuses: null for an optional list, an operation of a later
version, types that PyIceberg does not know. What a table keeps is the JSON, not this form of it.
Follows Java's ``TableMetadataParser``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, get_args

from pyiceberg.table.snapshots import Operation
from pyiceberg.table.statistics import BlobMetadata

from .column_types import with_types
from .refs import read_refs

# The fields for which null means the same as no field.
_NULLABLE = frozenset(
    "refs snapshots snapshot-log metadata-log statistics partition-statistics".split()
)
_NULLABLE_OF_SCHEMAS = frozenset(("schema-id", "identifier-field-ids"))
_OPERATIONS = frozenset(operation.value for operation in Operation)
_BLOB_TYPES = get_args(BlobMetadata.model_fields["type"].annotation)


def without_nulls(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table's metadata, parsed from JSON, without null where Java takes it for a missing
    list. If it has no branches, main is at the current snapshot."""
    given = {n: v for n, v in metadata.items() if v is not None or n not in _NULLABLE}
    if "refs" not in given and (refs := read_refs(given)):
        given["refs"] = refs
    if isinstance(given.get("schemas"), list):
        given["schemas"] = [_schema(schema) for schema in given["schemas"]]
    return given


def _schema(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return schema
    return {n: v for n, v in schema.items() if v is not None or n not in _NULLABLE_OF_SCHEMAS}


def parsable(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table's metadata in the form that PyIceberg parses. Columns have types as
    ``with_types`` says. Statistics blobs of unknown types are left out. Malformed parts stay as
    they are; PyIceberg refuses them. Raises ValueError, which names the field, for one at which
    PyIceberg stumbles."""
    form = with_types(metadata)
    orders = form.get("sort-orders")
    for i, order in enumerate(orders if isinstance(orders, list) else ()):
        fields = order.get("fields") if isinstance(order, dict) else None
        for j, field in enumerate(fields if isinstance(fields, list) else ()):
            if not isinstance(field, dict):
                raise ValueError(f"sort-orders.{i}.fields.{j}: is not an object")
    for name, change in (("snapshots", parsable_snapshot), ("statistics", _statistics)):
        if isinstance(form.get(name), list):
            form[name] = list(map(change, form[name]))
    return form


def parsable_snapshot(snapshot: Any) -> Any:
    """Return a snapshot's JSON in the form that PyIceberg parses. An unknown operation becomes
    ``overwrite``, which conflicts with most, as PyIceberg's does if there is none."""
    summary = snapshot.get("summary") if isinstance(snapshot, dict) else None
    if not isinstance(summary, dict):
        return snapshot
    texts = {n: v if isinstance(v, str) else json.dumps(v) for n, v in summary.items()}
    if texts.get("operation") not in _OPERATIONS:
        texts["operation"] = Operation.OVERWRITE.value
    return {**snapshot, "summary": texts}


def _statistics(file: Any) -> Any:
    blobs = file.get("blob-metadata") if isinstance(file, dict) else None
    if not isinstance(blobs, list):
        return file
    known = [b for b in blobs if not isinstance(b, dict) or b.get("type") in _BLOB_TYPES]
    return {**file, "blob-metadata": known}

"""Checks what a commit requires of the table, in the form of the REST specification.

Follows Java's ``UpdateRequirement``. Independent of files and catalogs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pyiceberg.exceptions import CommitFailedException

from .json_fields import string, whole
from .refs import read_refs


def check_requirements(
    metadata: Mapping[str, Any] | None, requirements: Iterable[Mapping[str, Any]]
) -> None:
    """Raise CommitFailedException unless the metadata, None if there is no table, meets the
    requirements. Raises ValueError for a requirement that is unknown or malformed."""
    for requirement in requirements:
        kind = str(requirement.get("type")).lower()
        if kind == "assert-create":
            if metadata is not None:
                raise _failed("the table exists already")
        elif kind == "assert-ref-snapshot-id":
            _check_ref(_existing(metadata), requirement)
        elif kind == "assert-table-uuid":
            uuid = _existing(metadata).get("table-uuid")
            wanted = string(requirement, "uuid")
            if str(uuid).lower() != wanted.lower():
                raise CommitFailedException(f"Table UUID does not match: {wanted} != {uuid}")
        elif kind in _ASSERTED:
            name, asserted = _ASSERTED[kind]
            wanted_id = whole(requirement, asserted)
            actual_id = _existing(metadata).get(name)
            if actual_id != wanted_id:
                what = asserted.replace("-", " ")
                raise _failed(f"{what} has changed: expected {wanted_id}, found {actual_id}")
        else:
            raise ValueError(f"unknown requirement: {kind!r}")


# For each type of requirement: the field of the metadata, and the field of the requirement with the
# expected value.
_ASSERTED = {
    "assert-last-assigned-field-id": ("last-column-id", "last-assigned-field-id"),
    "assert-current-schema-id": ("current-schema-id", "current-schema-id"),
    "assert-last-assigned-partition-id": ("last-partition-id", "last-assigned-partition-id"),
    "assert-default-spec-id": ("default-spec-id", "default-spec-id"),
    "assert-default-sort-order-id": ("default-sort-order-id", "default-sort-order-id"),
}


def _failed(what: str) -> CommitFailedException:
    return CommitFailedException(f"Requirement failed: {what}")


def _existing(metadata: Mapping[str, Any] | None) -> Mapping[str, Any]:
    if metadata is None:
        raise _failed("current table metadata is missing")
    return metadata


def _check_ref(metadata: Mapping[str, Any], requirement: Mapping[str, Any]) -> None:
    name = string(requirement, "ref")
    expected = requirement.get("snapshot-id")
    ref = read_refs(metadata).get(name)
    if ref is None:
        if expected is not None:
            raise _failed(f"branch or tag {name} is missing, expected {expected}")
    elif expected is None:
        raise _failed(f"{ref['type']} {name} was created concurrently")
    elif ref["snapshot-id"] != expected:
        change = f"expected id {expected}, found {ref['snapshot-id']}"
        raise _failed(f"{ref['type']} {name} has changed: {change}")

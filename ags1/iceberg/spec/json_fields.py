"""Reads the fields of a JSON object. Raises ValueError if a field has another type."""

from __future__ import annotations

import uuid as uuids
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def whole(values: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """Return a field that is a whole number; ``default`` if it is missing."""
    value = values.get(name)
    if value is None:
        value = default
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{name!r} is {value!r}, not a whole number")
    return value


def wholes(values: Mapping[str, Any], name: str) -> list[int]:
    """Return a field that is a list of whole numbers."""
    value = values.get(name)
    if not isinstance(value, Iterable) or isinstance(value, str):
        raise ValueError(f"{name!r} is {value!r}, not a list")
    return [whole({name: number}, name) for number in value]


def string(values: Mapping[str, Any], name: str) -> str:
    """Return a field that is text; a UUID becomes text."""
    value = values.get(name)
    if isinstance(value, uuids.UUID):
        return str(value)
    if not isinstance(value, str):
        raise ValueError(f"{name!r} is {value!r}, not text")
    return value


def one_of(values: Mapping[str, Any], name: str, allowed: Sequence[str]) -> str:
    """Return a field in lower case. It must be one of the ``allowed`` words."""
    value = string(values, name).lower()
    if value not in allowed:
        raise ValueError(f"{name!r} is {value!r}, not one of {', '.join(allowed)}")
    return value


def json_object(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a field that is an object."""
    value = values.get(name)
    if not isinstance(value, Mapping):
        raise ValueError(f"{name!r} is missing, or no object")
    return value

"""The fields of a JSON object, each of the kind that it has to be: ValueError where it is not."""

from __future__ import annotations

import uuid as uuids
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def whole(values: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """Return a field that is a whole number, ``default`` where it is missing."""
    found = values.get(name)
    if found is None:
        found = default
    if not isinstance(found, int) or isinstance(found, bool):
        raise ValueError(f"{name!r} is {found!r}, not a whole number")
    return found


def wholes(values: Mapping[str, Any], name: str) -> list[int]:
    """Return a field that is a list of whole numbers."""
    found = values.get(name)
    if not isinstance(found, Iterable) or isinstance(found, str):
        raise ValueError(f"{name!r} is {found!r}, not a list")
    return [whole({name: value}, name) for value in found]


def string(values: Mapping[str, Any], name: str) -> str:
    """Return a field that is text; a UUID becomes text."""
    found = values.get(name)
    if isinstance(found, uuids.UUID):
        return str(found)
    if not isinstance(found, str):
        raise ValueError(f"{name!r} is {found!r}, not text")
    return found


def one_of(values: Mapping[str, Any], name: str, allowed: Sequence[str]) -> str:
    """Return a field that is one of some words, in lower case."""
    found = string(values, name).lower()
    if found not in allowed:
        raise ValueError(f"{name!r} is {found!r}, not one of {', '.join(allowed)}")
    return found


def json_object(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a field that is an object."""
    found = values.get(name)
    if not isinstance(found, Mapping):
        raise ValueError(f"{name!r} is missing, or no object")
    return found

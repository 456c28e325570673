"""Fields that nobody knows yet, strewn over a table's metadata, and found again."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

Path = tuple[Any, ...]

# What tells an object of a list from the others.
_IDS = (
    *("snapshot-id", "schema-id", "spec-id", "order-id", "field-id", "key-id", "id"),
    *("metadata-file", "source-id", "type"),
)
# Java's maps of texts: every name in them is known.
_MAPS = ("properties", "summary")
_VALUES: list[Any] = [None, 0, -1, 2**63, 1.5, "ü", "", [], {}, [None, {"a": []}], {"b": {"c": 1}}]


def strewn(metadata: dict[str, Any], dice: random.Random, chance: float = 1) -> dict[str, Any]:
    """Return metadata with unknown fields, called ``x-…``, in its objects, at any place in them."""

    def with_more(value: Any, is_map: bool = False) -> Any:
        if isinstance(value, list):
            return [with_more(item) for item in value]
        if not isinstance(value, dict):
            return value
        fields = [(n, v if n in _MAPS else with_more(v, n == "refs")) for n, v in value.items()]
        if not is_map and dice.random() < chance:
            for number in range(dice.randint(1, 2)):
                unknown = (f"x-{dice.randrange(10**6)}-{number}", dice.choice(_VALUES))
                fields.insert(dice.randint(0, len(fields)), unknown)
        return dict(fields)

    found: dict[str, Any] = with_more(metadata)
    return found


def unknown_fields(value: Any, path: Path = ()) -> Iterator[tuple[Path, str, Any]]:
    """Yield what is unknown in metadata: the path of the object that has it, its name, its value.
    Objects in lists are told apart by their ids."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if name.startswith("x-"):
                yield path, name, inner
            elif name not in _MAPS:
                yield from unknown_fields(inner, (*path, name))
    elif isinstance(value, list):
        for item in value:
            yield from unknown_fields(item, (*path, _identity(item)))


def objects(value: Any, path: Path = ()) -> Iterator[Path]:
    """Yield the paths of the objects in metadata."""
    if isinstance(value, Mapping):
        yield path
        for name, inner in value.items():
            if name not in _MAPS and not name.startswith("x-"):
                yield from objects(inner, (*path, name))
    elif isinstance(value, list):
        for item in value:
            yield from objects(item, (*path, _identity(item)))


def _identity(item: Any) -> Any:
    if not isinstance(item, Mapping):
        return item
    return next((item[name] for name in _IDS if name in item), None)

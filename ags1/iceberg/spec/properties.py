"""A table's properties as text, and the reserved names, which no property may have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

FORMAT_VERSION_PROPERTY = "format-version"

# Java does not store these as properties: the metadata has other fields for them.
RESERVED_PROPERTIES = frozenset(
    "format-version uuid snapshot-count current-snapshot-id current-snapshot-summary "
    "current-snapshot-timestamp-ms current-schema default-partition-spec default-sort-order".split()
)


def refuse_reserved(properties: Iterable[str]) -> None:
    """Raise ValueError if a name in ``properties`` is reserved."""
    reserved = sorted(RESERVED_PROPERTIES.intersection(properties))
    if reserved:
        raise ValueError(f"reserved, and no properties of a table: {', '.join(reserved)}")


def property_text(name: Any, value: Any) -> str:
    """Return a property's value as text. Raises ValueError if it is not text or a number."""
    if not isinstance(name, str) or not isinstance(value, str | int | float):
        raise ValueError(f"the property {name!r} is no text")
    return str(value).lower() if isinstance(value, bool) else str(value)


def number_in(properties: Mapping[str, str], name: str, default: int) -> int:
    """Return a property that is a whole number. Raises ValueError if it is something else."""
    text = properties.get(name, default)
    try:
        return int(text)
    except ValueError:
        raise ValueError(
            f"the table property {name!r} is not a number but {text!r}: correct it"
        ) from None

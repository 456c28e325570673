"""A table's properties as text, the reserved names, which no property may have, and the properties
of encryption. An encrypted table is refused some values of other properties: ORC as its format, and
pages of version 2."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from ...engine.key_metadata import KEY_SIZES
from ...errors import ArgumentError
from ...keys.manager import DATA_KEY_LENGTH, TABLE_KEY_ID
from .constants import FORMAT_VERSION
from .table_keys import PRUNE_ON_COMMIT, prunes_on_commit

FORMAT_VERSION_PROPERTY = "format-version"

# Java does not store these as properties: the metadata has other fields for them.
RESERVED_PROPERTIES = frozenset(
    "format-version uuid snapshot-count current-snapshot-id current-snapshot-summary "
    "current-snapshot-timestamp-ms current-schema default-partition-spec default-sort-order".split()
)

_OF_ENCRYPTION = (TABLE_KEY_ID, DATA_KEY_LENGTH, PRUNE_ON_COMMIT)
FILE_FORMAT = "write.format.default"
# In data pages of version 2, Java does not encrypt the levels, which say what values are null.
_ALLOWED = {
    DATA_KEY_LENGTH: tuple(map(str, KEY_SIZES)),
    FILE_FORMAT: ("parquet", "avro"),
    "write.parquet.page-version": ("v1",),
    "write.delete.parquet.page-version": ("v1",),
}


def is_like_encryption(name: str) -> bool:
    """Return whether a property has the name of one of encryption, or nearly such a name: only
    letters count, and capitals are small letters. The plug-in for Java has the same rule."""
    return re.sub("[^a-z]", "", name.lower()).startswith("encryption")


def refuse_misspelt(names: Iterable[str]) -> None:
    """Raise ValueError for names that are only nearly those of encryption."""
    for name in filter(is_like_encryption, names):
        if name not in _OF_ENCRYPTION:
            raise ValueError(
                f"the table property {name!r} does not exist: use {', '.join(_OF_ENCRYPTION)}"
            )


def check_encryption(properties: Mapping[str, str]) -> None:
    """Check properties that an encrypted table gets. Raises ValueError for those that it cannot
    have."""
    version = str(properties.get(FORMAT_VERSION_PROPERTY, FORMAT_VERSION))
    if version != str(FORMAT_VERSION):
        raise ValueError(
            f"an encrypted table has format version {FORMAT_VERSION}, not {version}: remove the "
            f"property {FORMAT_VERSION_PROPERTY!r}"
        )
    refuse_misspelt(properties)
    prunes_on_commit(properties)  # raises for other text than true and false
    for name, allowed in _ALLOWED.items():
        text = properties.get(name)
        if text is not None and text.lower() not in allowed:
            raise ValueError(
                f"the property {name!r} of an encrypted table is one of {', '.join(allowed)}, and "
                f"not {text!r}"
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


def number_in(
    properties: Mapping[str, Any],
    name: str,
    default: int,
    *,
    least: int | None = None,
    most: int = 2**63 - 1,
) -> int:
    """Return the whole number that a property of a table or a catalog is, or ``default`` without
    one. As for Java's ``PropertyUtil.propertyAsLong``, it has digits and perhaps a sign, and no
    spaces. Raises ArgumentError, a ValueError, for anything else, and for a number that is not from
    ``least`` to ``most``."""
    text = str(properties.get(name, default))
    if re.fullmatch("[+-]?[0-9]{1,19}", text):
        number = int(text)
        if (-(2**63) if least is None else least) <= number <= most:
            return number
    allowed = "" if least is None else f", {least} or more"
    if most < 2**63 - 1:
        allowed = f" from {least or 0} to {most}"
    message = f"the property {name!r} is {text!r}: it must be a whole number{allowed}"
    raise ArgumentError(message, parameter=name)

"""A table's branches and tags, as its metadata has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .constants import MAIN_BRANCH
from .json_fields import one_of, whole

RETENTION = ("min-snapshots-to-keep", "max-snapshot-age-ms", "max-ref-age-ms")


def read_refs(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table's branches and tags; main at the current snapshot if the metadata has none."""
    refs = metadata.get("refs")
    if refs is None:
        current = metadata.get("current-snapshot-id")
        if current in (None, -1):
            return {}
        return {MAIN_BRANCH: {"snapshot-id": current, "type": "branch"}}
    return dict(refs)


def ref_from_update(update: Mapping[str, Any]) -> dict[str, Any]:
    """Return the branch or tag that an update sets. Raises ValueError if it is invalid."""
    ref: dict[str, Any] = {
        "snapshot-id": whole(update, "snapshot-id"),
        "type": one_of(update, "type", ("branch", "tag")),
    }
    for name in RETENTION:
        if update.get(name) is None:
            continue
        ref[name] = whole(update, name)
        if ref[name] <= 0:
            raise ValueError(f"{name} is {ref[name]}, but must be above 0")
        if ref["type"] == "tag" and name != "max-ref-age-ms":
            raise ValueError(f"a tag has no {name}")
    return ref

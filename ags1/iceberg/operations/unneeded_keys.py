"""Counts the keys of a table that nothing needs, and the bytes that they take in metadata.json.

``EncryptedTable.prune_keys`` removes them. This module changes nothing and needs no KMS.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...keys.manager import EncryptionManager
from ..spec.table_keys import prune


@dataclass(frozen=True, slots=True)
class UnneededKeys:
    """The IDs of the keys that nothing needs, of ``total`` keys in all. They take ``size`` bytes of
    the ``metadata_size`` bytes of metadata.json, before compression."""

    key_ids: tuple[str, ...]
    total: int
    size: int
    metadata_size: int

    @property
    def message(self) -> str:
        """How many there are and what they take. There must be at least one."""
        return (
            f"{len(self.key_ids)} of {self.total} keys are not needed, such as "
            f"{min(self.key_ids)!r}. They are {self.size} of the {self.metadata_size} bytes of "
            "metadata.json"
        )


def unneeded_keys(metadata: Mapping[str, Any], manager: EncryptionManager) -> UnneededKeys:
    """Return the keys of ``metadata`` that pruning would remove. ``manager`` has all of them.
    Raises KeyMetadataError if a snapshot's key or its KEK is missing, and ValueError as
    ``table_keys.prune``."""
    removed = tuple(key.key_id for key in prune(metadata, manager).removed)
    entries = metadata.get("encryption-keys") or []
    kept = [entry for entry in entries if entry["key-id"] not in removed]
    saved = _printed_size(entries) - _printed_size(kept)
    return UnneededKeys(removed, len(entries), saved, _printed_size(metadata))


def _printed_size(value: Any) -> int:
    """Return the size (bytes) of compact JSON. The value may have text that UTF-8 cannot encode."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return len(text.encode("utf-8", "surrogatepass"))

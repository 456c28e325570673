"""A table's keys on Java's side: its StandardEncryptionManager behind the list of keys alone.

The list travels as its JSON text, entry by entry, as both sides print it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ags1 import KeyMetadata
from ags1.keys.envelope import EncryptedKey, encryption_keys_to_dicts, parse_encryption_keys
from ags1.keys.manager import EncryptionManager

from .java import Java

_PROGRAM = "org.apache.iceberg.encryption.TableKeys"


@dataclass(frozen=True, slots=True)
class Added:
    """What Java added: the entry's id, that of the KEK it took, and the whole list."""

    key_id: str
    kek_id: str
    keys: tuple[EncryptedKey, ...]


@dataclass(frozen=True, slots=True)
class JavaKeys:
    """Java's manager of tables under one master key. ``kms`` are its catalog properties."""

    java: Java
    kms: Mapping[str, str]
    table_key_id: str
    data_key_length: int = 16

    def open(self, keys: Iterable[EncryptedKey], key_ids: Iterable[str]) -> dict[str, KeyMetadata]:
        """Unwrap manifest lists' key metadata. Raises JavaError."""
        opened = self._call("open", keys, key_ids=list(key_ids))
        return {
            key_id: KeyMetadata.from_bytes(bytes.fromhex(text)) for key_id, text in opened.items()
        }

    def add(self, keys: Iterable[EncryptedKey], km: KeyMetadata, later_ms: int = 0) -> Added:
        """Add a manifest list's key metadata, ``later_ms`` in the future. Raises JavaError."""
        added = self._call("add", keys, key_metadata=km.to_bytes().hex(), later_ms=later_ms)
        return Added(added["key_id"], added["kek_id"], from_texts(added["keys"]))

    def _call(
        self, method: str, keys: Iterable[EncryptedKey], **arguments: object
    ) -> dict[str, Any]:
        result: dict[str, Any] = self.java.call(
            f"{_PROGRAM}.{method}",
            keys=texts(keys),
            table_key_id=self.table_key_id,
            data_key_length=self.data_key_length,
            kms=dict(self.kms),
            **arguments,
        )
        return result


def reprinted(java: Java, printed: Iterable[str]) -> list[str]:
    """Have Java parse entries and print them again."""
    again: list[str] = java.call(f"{_PROGRAM}.reprint", keys=list(printed))
    return again


def texts(keys: Iterable[EncryptedKey]) -> list[str]:
    """Return our JSON of each entry, as compact as in a metadata.json."""
    return [
        json.dumps(entry, separators=(",", ":"), ensure_ascii=False)
        for entry in encryption_keys_to_dicts(keys)
    ]


def from_texts(printed: Iterable[str]) -> tuple[EncryptedKey, ...]:
    """Parse entries as they stand in a metadata.json."""
    return parse_encryption_keys([json.loads(text) for text in printed])


def manifest_list_ids(manager: EncryptionManager) -> list[str]:
    """Return the ids of the entries that are no KEKs."""
    keks = {entry.key_id for entry in manager.key_encryption_keys}
    return [key.key_id for key in manager.encryption_keys if key.key_id not in keks]

"""``rotate``, ``rewrap`` and ``prune``: changes of a table's keys, as updates for its catalog.

Each takes the base, which is a version of the metadata, and the manager of its keys. It returns a
``KeyChange``: updates and requirements in the form of the REST specification. Each attempt to
commit makes the change again from the current base. Keys change, files do not. ``named_keys`` says
what counts as a use of a key.

**The rule**: the metadata never has a snapshot without the key of its manifest list, and never has
that key without its KEK. This is true whichever writers commit at the same time. Over REST, this
needs four parts: see ``docs/design/0006-keys-over-rest.md``. Independent of catalogs.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyiceberg.utils.properties import property_as_bool

from ...errors import KeyMetadataError
from ...keys.envelope import EncryptedKey, parse_encryption_keys
from ...keys.manager import TABLE_KEY_ID, EncryptionManager
from ...kms.client import KmsClient
from .constants import MAIN_BRANCH

Update = dict[str, Any]
Requirement = dict[str, Any]

_KEYS = "encryption-keys"
# A property of a table: whether each commit removes the keys that nothing needs.
PRUNE_ON_COMMIT = "encryption.keys.prune-on-commit"


def prunes_on_commit(properties: Mapping[str, str]) -> bool:
    """Return whether the table's commits prune its keys. The default is false. Raises ValueError if
    the property is neither true nor false."""
    return property_as_bool(dict(properties), PRUNE_ON_COMMIT, False)


def named_keys(metadata: Mapping[str, Any], key_ids: Collection[str]) -> set[str]:
    """Return those of the ids that a table's metadata refers to, outside its list of keys.

    Snapshots have references, statistics will have them, and later versions of the format may have
    others. So any text that equals an id counts, as a value or a name, except names of properties.
    """
    named: set[str] = set()
    waiting: list[Any] = [{name: part for name, part in metadata.items() if name != _KEYS}]
    while waiting:
        part = waiting.pop()
        if isinstance(part, str):
            if part in key_ids:
                named.add(part)
        elif isinstance(part, dict):
            properties = part.get("properties")
            waiting += part
            waiting += (inner for inner in part.values() if inner is not properties)
            waiting += properties.values() if isinstance(properties, dict) else [properties]
        elif isinstance(part, list):
            waiting += part
    return named


def needed_keys(metadata: Mapping[str, Any]) -> set[str]:
    """Return the ids of the keys that the table's metadata refers to, and of these keys' KEKs."""
    entries = {entry["key-id"]: entry for entry in metadata.get(_KEYS) or ()}
    needed: set[str] = set()
    new = named_keys(metadata, entries)
    while new:
        needed |= new
        others = [{n: v for n, v in entries[i].items() if n != "key-id"} for i in new]
        new = named_keys({"entries": others}, entries) - needed
    return needed


@dataclass(frozen=True, slots=True)
class KeyChange:
    """A change of a table's list of keys, to be committed if there are ``updates``. ``manager`` has
    the keys of the base after the change. ``removed`` are the entries that the change removes or
    replaces, for ``restore``."""

    updates: list[Update]
    requirements: list[Requirement]
    manager: EncryptionManager
    removed: tuple[EncryptedKey, ...] = field(default=(), repr=False)


def rotate(metadata: Mapping[str, Any], manager: EncryptionManager) -> KeyChange:
    """Wrap every manifest list's key under one new KEK, and remove the other KEKs.

    There is one KMS call, and one more for each old KEK that is not in the cache. If the table has
    no keys, there are no updates. An entry that cannot be decrypted stays as it is if nothing in
    ``metadata`` refers to it; ``prune`` removes it. Otherwise, raises KeyMetadataError or
    AuthenticationError, KmsError, and ValueError if ``manager`` does not have the keys of
    ``metadata``.
    """
    _check_base(metadata, manager)
    rotated = manager.rotate(needed_keys(metadata)) if manager.encryption_keys else manager
    return _change(metadata, manager, rotated)


def rewrap(
    metadata: Mapping[str, Any],
    manager: EncryptionManager,
    kms: KmsClient | None = None,
    table_key_id: str | None = None,
) -> KeyChange:
    """Wrap every KEK under another master key or KMS, or under the newest version of its own. The
    table's ``encryption.key-id`` changes in the same commit. There are three KMS calls for each
    KEK. As in ``rotate``, only what ``metadata`` refers to has to be decrypted. Raises KmsError,
    KeyMetadataError, and ValueError as ``rotate``."""
    _check_base(metadata, manager)
    rewrapped = manager.rewrap(kms, table_key_id, needed_keys(metadata))
    change = _change(metadata, manager, rewrapped)
    if rewrapped.table_key_id != manager.table_key_id:
        properties = {TABLE_KEY_ID: rewrapped.table_key_id}
        change.updates.append({"action": "set-properties", "updates": properties})
    return change


def prune(metadata: Mapping[str, Any], manager: EncryptionManager) -> KeyChange:
    """Remove the keys that nothing in ``metadata`` refers to, except the KEK that the next commit
    would use. The KMS is not called. Raises KeyMetadataError if a snapshot's key or its KEK is
    missing, and ValueError as ``rotate``."""
    _check_base(metadata, manager)
    pruned = manager.prune(_snapshot_keys(metadata).values(), needed_keys(metadata))
    return _change(metadata, manager, pruned)


def with_own_kek(manager: EncryptionManager) -> EncryptionManager:
    """Return a manager that wraps the next manifest list's key under a KEK made for it alone. It
    has no other KEK, and no key that another KEK wraps. Raises KmsError."""
    manager.new_key_size()  # the other manager keeps this size
    for kek in manager.key_encryption_keys:
        manager = manager.shred(kek.key_id)
    return manager


def unmoved_refs(metadata: Mapping[str, Any]) -> list[Requirement]:
    """Return the requirements that the table is the same, and that no branch or tag has moved."""
    refs = {name: ref["snapshot-id"] for name, ref in (metadata.get("refs") or {}).items()}
    if MAIN_BRANCH not in refs:
        # Version 1 of the format has no refs, and an empty table has no main branch.
        current = metadata.get("current-snapshot-id")
        refs[MAIN_BRANCH] = None if current == -1 else current
    unmoved = [
        {"type": "assert-ref-snapshot-id", "ref": name, "snapshot-id": snapshot_id}
        for name, snapshot_id in refs.items()
    ]
    return [{"type": "assert-table-uuid", "uuid": metadata["table-uuid"]}, *unmoved]


def snapshots_without_keys(metadata: Mapping[str, Any]) -> list[int]:
    """Return the ids of the snapshots whose key, or its KEK under the table's master key, is not
    in the metadata. The entries are not decrypted. Raises KeyMetadataError."""
    table_key_id = (metadata.get("properties") or {}).get(TABLE_KEY_ID)
    entries = {key.key_id: key for key in _keys(metadata)}
    missing = []
    for snapshot_id, key_id in _snapshot_keys(metadata).items():
        entry = entries.get(key_id)
        kek = entries.get(entry.encrypted_by_id or "") if entry is not None else None
        if kek is None or kek.encrypted_by_id != table_key_id:
            missing.append(snapshot_id)
    return missing


def restore(metadata: Mapping[str, Any], removed: Iterable[EncryptedKey]) -> list[Update]:
    """Return the updates that add those of the removed keys again that ``metadata`` needs and does
    not have. ``removed`` are the entries that a change has removed, ``metadata`` is the catalog's
    after it. The updates require only the table's uuid, as an unneeded key does no harm. Raises
    KeyMetadataError."""
    present = {key.key_id for key in _keys(metadata)}
    absent = [key for key in removed if key.key_id not in present]
    if not absent:
        return []
    keys = [*(metadata.get(_KEYS) or ()), *(key.to_dict() for key in absent)]
    needed = needed_keys({**metadata, _KEYS: keys})
    return [_added(key) for key in absent if key.key_id in needed]


def adopt(
    metadata: Mapping[str, Any], previous: EncryptionManager, manager: EncryptionManager
) -> list[Update]:
    """Return the updates that wrap KEKs under the table's present master key, if another writer has
    added them under that of ``previous``, the manager before the change. There are three KMS calls
    for each KEK. Raises KmsError, KeyMetadataError, and ValueError as ``rotate``."""
    _check_base(metadata, manager)
    if previous.table_key_id == manager.table_key_id:
        return []
    strays = [
        key
        for key in manager.encryption_keys
        if key.encrypted_by_id == previous.table_key_id and key.timestamp is not None
    ]
    adopted = EncryptionManager(
        previous.kms, previous.table_key_id, strays, previous.data_key_length
    ).rewrap(manager.kms, manager.table_key_id)
    return _updates(strays, adopted.encryption_keys)


def _change(
    metadata: Mapping[str, Any], manager: EncryptionManager, changed: EncryptionManager
) -> KeyChange:
    before, after = manager.encryption_keys, set(map(_identity, changed.encryption_keys))
    return KeyChange(
        _updates(before, changed.encryption_keys),
        unmoved_refs(metadata),
        changed,
        tuple(key for key in before if _identity(key) not in after),
    )


def _updates(before: Iterable[EncryptedKey], after: Iterable[EncryptedKey]) -> list[Update]:
    """Return the updates that change one list of keys into the other. An entry that changes and
    keeps its id is removed first, because an added key with an existing id is ignored."""
    before, after = tuple(before), tuple(after)
    old, new = set(map(_identity, before)), set(map(_identity, after))
    removed = [key.key_id for key in before if _identity(key) not in new]
    return [
        *({"action": "remove-encryption-key", "key-id": key_id} for key_id in removed),
        *(_added(key) for key in after if _identity(key) not in old),
    ]


def _added(key: EncryptedKey) -> Update:
    return {"action": "add-encryption-key", "encryption-key": key.to_dict()}


def _identity(key: EncryptedKey) -> tuple[object, ...]:
    others = json.dumps([key.properties, key.unknown], sort_keys=True)
    return key.key_id, key.encrypted_key_metadata, key.encrypted_by_id, others


def _check_base(metadata: Mapping[str, Any], manager: EncryptionManager) -> None:
    """Raise ValueError if a manager does not have the keys of this version of the table: keys that
    it lacks would be removed."""
    stated = (metadata.get("properties") or {}).get(TABLE_KEY_ID)
    if stated is None:
        raise KeyMetadataError(f"the table is not encrypted: it has no {TABLE_KEY_ID!r}")
    if stated != manager.table_key_id or set(map(_identity, _keys(metadata))) != set(
        map(_identity, manager.encryption_keys)
    ):
        raise ValueError("the keys given are not those of this version of the table's metadata")


def _keys(metadata: Mapping[str, Any]) -> tuple[EncryptedKey, ...]:
    return parse_encryption_keys(metadata.get(_KEYS))


def _snapshot_keys(metadata: Mapping[str, Any]) -> dict[int, str]:
    """Return the ``key-id`` of each snapshot that has one, by the snapshot's id."""
    return {
        snapshot["snapshot-id"]: snapshot["key-id"]
        for snapshot in metadata.get("snapshots") or ()
        if snapshot.get("key-id") is not None
    }

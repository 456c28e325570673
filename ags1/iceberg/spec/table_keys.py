"""``rotate``, ``rewrap`` and ``prune``: changes of a table's keys, as updates for its catalog.

Each takes the metadata that it is based upon and the manager of that metadata's keys, and returns a
``KeyChange``: updates and requirements in the form of the REST specification. Each attempt to
commit makes the change again, from its own base. Keys change, files do not. Knows nothing of
catalogs.

**The rule**: a snapshot is never in the metadata without its manifest list's key, nor that key
without its KEK, whoever commits in between.

Where a commit swaps a pointer (SQL, Hive), it replaces the very metadata that it was made from or
fails, so that an append and a rotation at the same time are each made again from the other's
result. The pointer is the requirement.

A REST server applies a commit's updates to whatever is current, if the requirements hold, and there
is none about keys; a key whose id is there is not added again. There the rule takes four parts:

1. A commit that adds a snapshot adds the KEK of its key too, each time, as Java does with all keys
   that it holds. If a rotation took it out meanwhile, it comes back; the next rotation ends it.
2. A change of keys, and an expiry, requires every ref to stand where it did in the base. An append
   to one of them in between makes it fail, and it is made again with the append's key in its base.
3. A change removes only ids that its base had. A snapshot that goes onto no ref of its base (a new
   branch, or none) is not seen by part 2: its key is sealed under a KEK made for that commit,
   ``with_own_kek``, which no other base can have. A first one on main is seen, as it is required
   that there is no main. Since what it builds upon could expire, such a commit also requires the
   ref that has its parent to stand.
4. What parts 2 and 3 cannot see (a ref that was moved and moved back, writers that obey no rule) is
   looked for in the server's answer: ``snapshots_without_keys``, and ``restore`` adds again what
   the change took from them. If the process dies before that, the keys still are in the metadata
   file before the change.

Another master key over REST has one more window: a KEK that somebody makes under the old one, in a
commit that comes after, does not open with the new one. ``adopt`` puts it under the new one, which
needs the old one; so the old one is destroyed only when all writers have loaded the table anew.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...errors import KeyMetadataError
from ...keys.envelope import EncryptedKey, parse_encryption_keys
from ...keys.manager import TABLE_KEY_ID, EncryptionManager
from ...kms.client import KmsClient
from .constants import MAIN_BRANCH

Update = dict[str, Any]
Requirement = dict[str, Any]


_KEYS = "encryption-keys"


def named_keys(metadata: Mapping[str, Any], key_ids: Collection[str]) -> set[str]:
    """Return those of the ids that a table's metadata refers to, outside its list of keys.

    A snapshot's ``key-id`` is a reference, and statistics will have one. Later versions of the
    format may have others. So any text that equals an id counts, as a value or as a name, except
    the names of properties.
    """
    found: set[str] = set()
    waiting: list[Any] = [{name: part for name, part in metadata.items() if name != _KEYS}]
    while waiting:
        part = waiting.pop()
        if isinstance(part, str):
            if part in key_ids:
                found.add(part)
        elif isinstance(part, dict):
            properties = part.get("properties")
            waiting += part
            waiting += (inner for inner in part.values() if inner is not properties)
            waiting += properties.values() if isinstance(properties, dict) else [properties]
        elif isinstance(part, list):
            waiting += part
    return found


def needed_keys(metadata: Mapping[str, Any]) -> set[str]:
    """Return the ids of the table's keys that anything in its metadata refers to, and of those that
    they are wrapped by."""
    entries = {entry["key-id"]: entry for entry in metadata.get(_KEYS) or ()}
    found: set[str] = set()
    new = named_keys(metadata, entries)
    while new:
        found |= new
        others = [{n: v for n, v in entries[i].items() if n != "key-id"} for i in new]
        new = named_keys({"entries": others}, entries) - found
    return found


@dataclass(frozen=True, slots=True)
class KeyChange:
    """A change of a table's list of keys, to be committed; nothing to commit without ``updates``.

    ``manager`` has the keys as they are once it is committed to the base. ``removed`` are the
    entries that it takes out or replaces, for ``restore``.
    """

    updates: list[Update]
    requirements: list[Requirement]
    manager: EncryptionManager
    removed: tuple[EncryptedKey, ...] = field(default=(), repr=False)


def rotate(metadata: Mapping[str, Any], manager: EncryptionManager) -> KeyChange:
    """Put every manifest list's key under one new KEK, and remove the other KEKs.

    One KMS call, and one more for each old KEK that is not in the cache. A table without keys has
    nothing to rotate. Raises KeyMetadataError or AuthenticationError when an entry does not open
    (``prune`` first, if nothing refers to it), KmsError, and ValueError when ``manager`` has not
    the keys of ``metadata``.
    """
    _check_base(metadata, manager)
    return _change(metadata, manager, manager.rotate() if manager.encryption_keys else manager)


def rewrap(
    metadata: Mapping[str, Any],
    manager: EncryptionManager,
    kms: KmsClient | None = None,
    table_key_id: str | None = None,
) -> KeyChange:
    """Put every KEK under another master key or KMS, or under the newest version of its own.

    The table's ``encryption.key-id`` changes in the same commit. Three KMS calls a KEK. Raises
    KmsError, KeyMetadataError, and ValueError as ``rotate``.
    """
    _check_base(metadata, manager)
    rewrapped = manager.rewrap(kms, table_key_id)
    change = _change(metadata, manager, rewrapped)
    if rewrapped.table_key_id != manager.table_key_id:
        properties = {TABLE_KEY_ID: rewrapped.table_key_id}
        change.updates.append({"action": "set-properties", "updates": properties})
    return change


def prune(metadata: Mapping[str, Any], manager: EncryptionManager) -> KeyChange:
    """Remove the keys that nothing in ``metadata`` refers to, except the KEK that the next commit
    would use.

    No KMS call. Raises KeyMetadataError when a snapshot's key or its KEK is missing, and ValueError
    as ``rotate``.
    """
    _check_base(metadata, manager)
    pruned = manager.prune(_snapshot_keys(metadata).values(), needed_keys(metadata))
    return _change(metadata, manager, pruned)


def with_own_kek(manager: EncryptionManager) -> EncryptionManager:
    """Return a manager whose next manifest list's key is sealed under a KEK made for it.

    It has no other KEK and no key under one, and both new entries once that key was added.
    """
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
    return [
        {"type": "assert-table-uuid", "uuid": metadata["table-uuid"]},
        *(
            {"type": "assert-ref-snapshot-id", "ref": name, "snapshot-id": snapshot_id}
            for name, snapshot_id in refs.items()
        ),
    ]


def snapshots_without_keys(metadata: Mapping[str, Any]) -> list[int]:
    """Return the ids of the snapshots whose key, or its KEK under the table's master key, is not
    in the metadata. What the entries hold is not looked at. Raises KeyMetadataError."""
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
    """Return the updates that put keys back which something in ``metadata`` needs and has not.

    ``removed`` are a change's, ``metadata`` is what the catalog has after it. They need no
    requirement but the table's uuid: an unneeded key does no harm. Raises KeyMetadataError.
    """
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
    """Return the updates that put KEKs which came in under the table's previous master key under
    its present one.

    ``previous`` is the manager before the change of master keys, ``manager`` that of ``metadata``.
    Three KMS calls a KEK. Raises KmsError, KeyMetadataError, and ValueError as ``rotate``.
    """
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
    """Return what makes one list of keys the other. An entry that changes and keeps its id is
    removed first: to add a key whose id is there has no effect."""
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
    """Raise ValueError when a manager is not of this version of the table: what it lacks would be
    removed."""
    stated = (metadata.get("properties") or {}).get(TABLE_KEY_ID)
    if stated is None:
        raise KeyMetadataError(f"the table is not encrypted: it has no {TABLE_KEY_ID!r}")
    if stated != manager.table_key_id or set(map(_identity, _keys(metadata))) != set(
        map(_identity, manager.encryption_keys)
    ):
        raise ValueError("the keys given are not those of this version of the table's metadata")


def _keys(metadata: Mapping[str, Any]) -> tuple[EncryptedKey, ...]:
    return parse_encryption_keys(metadata.get(_KEYS) or [])


def _snapshot_keys(metadata: Mapping[str, Any]) -> dict[int, str]:
    """Return the ``key-id`` of each snapshot that has one, by the snapshot's id."""
    return {
        snapshot["snapshot-id"]: snapshot["key-id"]
        for snapshot in metadata.get("snapshots") or ()
        if snapshot.get("key-id") is not None
    }

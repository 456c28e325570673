"""Changes of a table's keys: a new KEK, another master key, and the removal of what nothing needs.

Each is one commit, which changes no file. ``spec/table_keys.py`` has the rules that no commit may
break.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ...errors import MetadataIntegrityError
from ...keys.envelope import EncryptedKey
from ...keys.manager import EncryptionManager
from ...kms.client import KmsClient
from ..commit.session import TableSession
from ..spec import table_keys as rotation
from ..spec.table_keys import KeyChange
from ..steps import KeyStep, MetadataStep
from ..transaction import commit_steps


@dataclass(frozen=True, slots=True)
class KeysChanged:
    """The keys of a table after a change of them, or after its dry run. ``key_id`` is its master
    key, ``keks`` are the IDs of its KEKs, which wrap the keys of ``snapshots`` snapshots, and
    ``removed`` the IDs of the keys that were removed or replaced."""

    key_id: str
    keks: tuple[str, ...]
    snapshots: int
    removed: tuple[str, ...]


def rotate_keys(table: TableSession, *, dry_run: bool = False) -> KeysChanged:
    """Make a new KEK, wrap the key of every snapshot with it, and remove the old KEKs.

    No file and no snapshot changes. Java's next commit may use any unexpired KEK that it knows,
    and after a rotation only the new one is left. But a Java session that holds the table adds
    an old KEK again until it runs ``REFRESH TABLE``. Rotate again after that. Earlier metadata
    files still have the old KEKs.

    Raises KmsError, and AuthenticationError or KeyMetadataError if a key cannot be unwrapped.
    If nothing refers to such a key, it stays as it is; ``prune_keys`` removes it. With
    ``dry_run``, the change is made, but not committed.
    """
    return _change_keys(table, rotation.rotate, dry_run=dry_run)


def rewrap_keys(
    table: TableSession,
    table_key_id: str | None = None,
    kms: KmsClient | None = None,
    *,
    dry_run: bool = False,
) -> KeysChanged:
    """Wrap all KEKs with another master key, which may be in another KMS. Without arguments,
    wrap them with the newest version of their own master key.

    No file and no snapshot changes. After a change of the KMS, load the table from a catalog
    that is configured for the new one. Destroy the old master key only after all writers have
    loaded the table anew and the metadata is verified. With ``dry_run``, the KEKs are wrapped, but
    nothing is committed. Raises KmsError.
    """

    def rewrap(metadata: dict[str, Any], manager: EncryptionManager) -> KeyChange:
        return rotation.rewrap(metadata, manager, kms, table_key_id)

    return _change_keys(table, rewrap, dry_run=dry_run)


def prune_keys(table: TableSession, *, dry_run: bool = False) -> list[str]:
    """Remove the keys that no snapshot and no statistics file in the metadata refers to; return
    their IDs. Neither Java nor an expiry removes them. With ``dry_run``, nothing is removed. Raises
    KeyMetadataError if the key of a snapshot is missing."""
    return list(_change_keys(table, rotation.prune, dry_run=dry_run).removed)


def _change_keys(
    table: TableSession,
    compute: Callable[[dict[str, Any], EncryptionManager], KeyChange],
    *,
    dry_run: bool,
) -> KeysChanged:
    """Commit a change of the table's keys, unless it is a ``dry_run``."""
    view = table.view()
    if dry_run:
        change = compute(view.metadata, view.manager)
        return _result(table, change.manager, change.removed)
    before = view.manager
    step = KeyStep(compute)
    commit_steps(table, step)
    if rotation.snapshots_without_keys(table.version.json):
        # Over REST, another writer may have added a snapshot whose key is wrapped with the
        # former master key.
        updates = rotation.adopt(table.version.json, before, table.view().manager)
        uuid = {"type": "assert-table-uuid", "uuid": table.version.json["table-uuid"]}
        commit_steps(table, MetadataStep(updates, [uuid]))
        missing = rotation.snapshots_without_keys(table.version.json)
        if missing:
            raise MetadataIntegrityError(
                f"the keys of snapshots {missing} are missing: another writer committed during "
                "the change of keys. Take them from the previous metadata file",
                file=table.metadata_location,
            )
    return _result(table, table.files.keys, step.removed)


def _result(
    table: TableSession, keys: EncryptionManager, removed: Iterable[EncryptedKey]
) -> KeysChanged:
    return KeysChanged(
        keys.table_key_id,
        tuple(kek.key_id for kek in keys.key_encryption_keys),
        len(table.metadata.snapshots),
        tuple(key.key_id for key in removed),
    )

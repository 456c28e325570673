"""Changes of a table's keys: a new KEK, another master key, and the removal of what nothing needs.

Each is one commit, which changes no file. ``spec/table_keys.py`` has the rules that no commit may
break.
"""

from __future__ import annotations

from collections.abc import Callable
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


def rotate_keys(table: TableSession) -> None:
    """Make a new KEK, wrap the key of every snapshot with it, and remove the old KEKs.

    No file and no snapshot changes. Java's next commit may use any unexpired KEK that it knows,
    and after a rotation only the new one is left. But a Java session that holds the table adds
    an old KEK again until it runs ``REFRESH TABLE``. Rotate again after that. Earlier metadata
    files still have the old KEKs.

    Raises KmsError, and AuthenticationError or KeyMetadataError if a key cannot be unwrapped.
    If nothing refers to such a key, it stays as it is; ``prune_keys`` removes it.
    """
    _change_keys(table, rotation.rotate)


def rewrap_keys(
    table: TableSession, table_key_id: str | None = None, kms: KmsClient | None = None
) -> None:
    """Wrap all KEKs with another master key, which may be in another KMS. Without arguments,
    wrap them with the newest version of their own master key.

    No file and no snapshot changes. After a change of the KMS, load the table from a catalog
    that is configured for the new one. Destroy the old master key only after all writers have
    loaded the table anew and the metadata is verified. Raises KmsError.
    """
    _change_keys(
        table, lambda metadata, manager: rotation.rewrap(metadata, manager, kms, table_key_id)
    )


def prune_keys(table: TableSession) -> list[str]:
    """Remove the keys that no snapshot and no statistics file in the metadata refers to; return
    their IDs. Neither Java nor an expiry removes them. Raises KeyMetadataError if the key of a
    snapshot is missing."""
    return [key.key_id for key in _change_keys(table, rotation.prune)]


def _change_keys(
    table: TableSession, compute: Callable[[dict[str, Any], EncryptionManager], KeyChange]
) -> tuple[EncryptedKey, ...]:
    """Commit a change of the table's keys; return the keys that it has removed."""
    before = table.view().manager
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
    return step.removed

"""Checks of a table's metadata.json and of the keys in it, for ``verify_table``.

They read no other file of the table. Each KEK is unwrapped once by the KMS.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyiceberg.table.metadata import TableMetadata

from ....errors import KMS_UNUSABLE, Ags1Error, KeyMetadataError
from ....keys.envelope import EncryptedKey, KeyEncryptionKey
from ....keys.manager import (
    CLOCK_SKEW_MS,
    KEK_LIFETIME_MS,
    TABLE_KEY_ID,
    Clock,
    EncryptionManager,
)
from ...commit.session import TableSession
from ..unneeded_keys import unneeded_keys
from .findings import Findings

_DAY_MS = 24 * 60 * 60 * 1000
_NEAR_EXPIRY_MS = 60 * _DAY_MS
_LIFETIME_DAYS = KEK_LIFETIME_MS // _DAY_MS


def check_metadata(table: TableSession, findings: Findings, clock_ms: Clock) -> None:
    """Add what is wrong with the metadata and its keys to ``findings``. Raises KmsUnavailableError,
    KmsAccessDeniedError and KmsConfigurationError."""
    if not table.metadata_is_confirmed:
        message = "the metadata's schemas and list of snapshots are not authenticated: "
        if TABLE_KEY_ID in table.pins():
            message += (
                "the catalog has no hash of this metadata.json, as after a commit of another "
                "writer. 'ags1 table doctor' says what to do"
            )
        else:
            message += "pass the file's expected SHA-256, or load the table from its catalog"
        findings.add("metadata-not-pinned", message, table.metadata_location)
    check_partition_fields(table.metadata, table.metadata_location, findings)
    _check_keys(table, findings, clock_ms)


def check_partition_fields(metadata: TableMetadata, location: str, findings: Findings) -> None:
    """Find partition fields with one name and several IDs. As in Java, a field's latest name
    counts."""
    names: dict[int, str] = {}
    for spec in sorted(metadata.partition_specs, key=lambda s: s.spec_id, reverse=True):
        for field in spec.fields:
            names.setdefault(field.field_id, field.name)
    ids_of: dict[str, list[int]] = {}
    for field_id, name in names.items():
        ids_of.setdefault(name, []).append(field_id)
    for name, ids in ids_of.items():
        if len(ids) > 1:
            findings.add(
                "partition-field-ids",
                f"the partition field {name!r} has several IDs, {sorted(ids)}: Java cannot "
                "read the table's metadata tables (FILES, PARTITIONS, ENTRIES). Rename the "
                "field with update_spec().rename_field(…)",
                location,
            )


def readable_keys(manager: EncryptionManager, findings: Findings) -> EncryptionManager:
    """Return a manager with those keys of a table whose entries can be read. Each other one is a
    finding."""
    readable = []
    for entry in manager.encryption_keys:
        try:
            _ = entry.timestamp
        except KeyMetadataError as error:
            findings.add("kek-unusable", error.message)
        else:
            readable.append(entry)
    return EncryptionManager(manager.kms, manager.table_key_id, readable)


def _check_keys(table: TableSession, findings: Findings, clock_ms: Clock) -> None:
    keks = readable_keys(table.files.keys, findings).key_encryption_keys
    for kek in keks:
        _check_kek(kek, table, findings, clock_ms)
    _check_unneeded_keys(table, findings)
    check_several(keks, findings)


def check_several(keks: Sequence[EncryptedKey], findings: Findings) -> None:
    """Say that a table has more than one KEK."""
    if len(keks) > 1:
        findings.add(
            "several-keks",
            f"the table has {len(keks)} KEKs, and Java's next commit may use any of them: "
            "rotate_keys leaves one",
        )


def _check_unneeded_keys(table: TableSession, findings: Findings) -> None:
    """Say what ``prune_keys`` would remove, and how much smaller metadata.json would be."""
    try:
        keys = unneeded_keys(table.version.json, table.files.keys)
    except KeyMetadataError:
        return  # other findings say what is wrong with the keys
    if keys.key_ids:
        remedy = "prune_keys, or 'ags1 table prune-keys', removes them"
        findings.add("orphan-key", f"{keys.message}: {remedy}")


def _check_kek(kek: EncryptedKey, table: TableSession, findings: Findings, clock_ms: Clock) -> None:
    check_master_key(kek, table.key_id, findings)
    try:
        KeyEncryptionKey.unwrap(table.files.keys.kms, kek, table.key_id)
    except KMS_UNUSABLE:
        raise
    except Ags1Error as error:
        findings.add("kek-unusable", f"the KEK {kek.key_id!r} cannot be used: {error.message}")
        return
    check_age(kek, findings, clock_ms)


def check_master_key(kek: EncryptedKey, master_key_id: str, findings: Findings) -> None:
    """Compare the master key that a KEK names with the table's."""
    if kek.encrypted_by_id != master_key_id:
        findings.add(
            "kek-other-master-key",
            f"the KEK {kek.key_id!r} says that it is wrapped with {kek.encrypted_by_id!r}, but the "
            f"table's master key is {master_key_id!r}",
        )


def check_age(kek: EncryptedKey, findings: Findings, clock_ms: Clock) -> None:
    """Compare the age of a KEK with its lifetime. Raises KeyMetadataError if the entry cannot be
    read."""
    name, made_ms = f"the KEK {kek.key_id!r}", kek.timestamp_ms
    if made_ms is None:
        findings.add("kek-timestamp", f"{name} has no readable time of creation")
        return
    age_ms = clock_ms() - made_ms
    days = age_ms // _DAY_MS
    if age_ms < -CLOCK_SKEW_MS:
        findings.add("kek-timestamp", f"{name} was created in the future")
    elif age_ms >= KEK_LIFETIME_MS:
        findings.add(
            "kek-expired",
            f"{name} is {days} days old, more than its {_LIFETIME_DAYS} days: the next commit "
            "makes a new one",
        )
    elif age_ms >= KEK_LIFETIME_MS - _NEAR_EXPIRY_MS:
        findings.add(
            "kek-near-expiry",
            f"{name} is {days} days old: after {_LIFETIME_DAYS} days a commit makes a new one",
        )

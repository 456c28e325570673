"""Checks of a table's metadata.json and of the keys in it, for ``verify_table``.

They read no other file of the table. Each KEK is unwrapped once by the KMS.
"""

from __future__ import annotations

from pyiceberg.table.metadata import TableMetadata

from ....errors import KMS_UNUSABLE, Ags1Error, KeyMetadataError
from ....keys.envelope import EncryptedKey, KeyEncryptionKey
from ....keys.manager import CLOCK_SKEW_MS, KEK_LIFETIME_MS, Clock, EncryptionManager
from ...commit.metadata_file import print_metadata
from ...commit.session import TableSession
from ...spec.table_keys import prune
from .findings import Findings

_DAY_MS = 24 * 60 * 60 * 1000
_NEAR_EXPIRY_MS = 60 * _DAY_MS
_LIFETIME_DAYS = KEK_LIFETIME_MS // _DAY_MS


def check_metadata(table: TableSession, findings: Findings, clock_ms: Clock) -> None:
    """Add what is wrong with the metadata and its keys to ``findings``. Raises KmsUnavailableError,
    KmsAccessDeniedError and KmsConfigurationError."""
    if not table.metadata_is_confirmed:
        findings.add(
            "metadata-not-pinned",
            "the metadata's schemas and list of snapshots are not authenticated: pass the "
            "file's expected SHA-256, or load the table from a Hive, REST, Glue or DynamoDB "
            "catalog",
            table.metadata_location,
        )
    _check_partition_fields(table.metadata, table.metadata_location, findings)
    _check_keys(table, findings, clock_ms)


def _check_partition_fields(metadata: TableMetadata, location: str, findings: Findings) -> None:
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


def _check_keys(table: TableSession, findings: Findings, clock_ms: Clock) -> None:
    manager = table.files.keys
    readable = []
    for entry in manager.encryption_keys:
        try:
            _ = entry.timestamp
        except KeyMetadataError as error:
            findings.add("kek-unusable", error.message)
        else:
            readable.append(entry)
    keks = EncryptionManager(manager.kms, manager.table_key_id, readable).key_encryption_keys
    for kek in keks:
        _check_kek(kek, table, findings, clock_ms)
    _check_unneeded_keys(table, findings)
    if len(keks) > 1:
        findings.add(
            "several-keks",
            f"the table has {len(keks)} KEKs, and Java's next commit may use any of them: "
            "rotate_keys leaves one",
        )


def _check_unneeded_keys(table: TableSession, findings: Findings) -> None:
    """Say what ``prune_keys`` would remove, and how much smaller metadata.json would be."""
    metadata = table.version.json
    try:
        removed = {key.key_id for key in prune(metadata, table.files.keys).removed}
    except KeyMetadataError:
        return  # other findings say what is wrong with the keys
    if not removed:
        return
    kept = [entry for entry in metadata["encryption-keys"] if entry["key-id"] not in removed]
    size = len(print_metadata(metadata))
    saved = size - len(print_metadata({**metadata, "encryption-keys": kept}))
    findings.add(
        "orphan-key",
        f"{len(removed)} of {len(metadata['encryption-keys'])} keys are not needed, such as "
        f"{min(removed)!r}. They are {saved} of the {size} bytes of metadata.json: prune_keys, or "
        "'ags1 table prune-keys', removes them",
    )


def _check_kek(kek: EncryptedKey, table: TableSession, findings: Findings, clock_ms: Clock) -> None:
    name = f"the KEK {kek.key_id!r}"
    master_key_id = table.key_id
    if kek.encrypted_by_id != master_key_id:
        findings.add(
            "kek-other-master-key",
            f"{name} says that it is wrapped with {kek.encrypted_by_id!r}, but the table's "
            f"master key is {master_key_id!r}",
        )
    try:
        KeyEncryptionKey.unwrap(table.files.keys.kms, kek, master_key_id)
        timestamp = kek.timestamp
    except KMS_UNUSABLE:
        raise
    except Ags1Error as error:
        findings.add("kek-unusable", f"{name} cannot be used: {error.message}")
        return
    try:
        age_ms = clock_ms() - int(timestamp or "")
    except ValueError:
        findings.add("kek-timestamp", f"{name} has no readable time of creation")
        return
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

"""Checks of a table's metadata.json, of the keys in it, and of its catalog. They read no other file
of the table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyiceberg.table.metadata import TableMetadata

from ....errors import KMS_UNUSABLE, Ags1Error, KeyMetadataError
from ....keys.envelope import EncryptedKey, KeyEncryptionKey
from ....keys.manager import (
    CLOCK_SKEW_MS,
    KEK_LIFETIME_MS,
    Clock,
    EncryptionManager,
)
from ...commit.session import TableSession
from ...read.statistics import list_statistics
from ...spec.table_keys import snapshots_without_keys
from ..deletion import GC_ENABLED, may_share_files
from ..expire import by_id, expire
from ..unneeded_keys import unneeded_keys
from .findings import Findings, KekHealth

_DAY_MS = 24 * 60 * 60 * 1000
_NEAR_EXPIRY_MS = 60 * _DAY_MS
_LIFETIME_DAYS = KEK_LIFETIME_MS // _DAY_MS
_PARTITIONS = "partitions."


def check_metadata(table: TableSession, findings: Findings, clock_ms: Clock) -> None:
    """Add what is wrong with the metadata and with what it says of its keys to ``findings``."""
    if not table.metadata_is_confirmed:
        if table.pins().key_id is not None:
            message = (
                "the catalog has no hash of the table's current metadata.json, as after a commit "
                "of another writer, so a change of that file would not be noticed: the next commit "
                "of ags1 writes one. If the metadata names a folder outside the table's own, set "
                "that folder again if it is right"
            )
        else:
            message = (
                "the metadata's schemas and list of snapshots are not authenticated: pass the "
                "file's expected SHA-256, or load the table from its catalog"
            )
        findings.add("metadata-not-pinned", message, table.metadata_location)
    _check_partition_fields(table.metadata, table.metadata_location, findings)
    keks = readable_keys(table.files.keys, findings).key_encryption_keys
    for kek in keks:
        if kek.encrypted_by_id != table.key_id:
            findings.add(
                "kek-other-master-key",
                f"the KEK {kek.key_id!r} says that it is wrapped with {kek.encrypted_by_id!r}, but "
                f"the table's master key is {table.key_id!r}",
            )
        _check_age(kek, findings, clock_ms)
    if len(keks) > 1:
        findings.add(
            "several-keks",
            f"the table has {len(keks)} KEKs, and Java's next commit may use any of them: "
            "rotate_keys leaves one",
        )
    _check_unneeded_keys(table, findings)
    for snapshot in by_id(table.version.json).values():
        if snapshot.get("key-id") is None:
            findings.add(
                "snapshot-without-key",
                "the snapshot has no key-id, so its manifest list is not encrypted",
                snapshot.get("manifest-list"),
                (snapshot["snapshot-id"],),
            )


def check_keks(table: TableSession, findings: Findings) -> None:
    """Have the KMS unwrap each KEK once. Raises KmsUnavailableError, KmsAccessDeniedError and
    KmsConfigurationError."""
    for kek in readable_keys(table.files.keys, Findings()).key_encryption_keys:
        try:
            KeyEncryptionKey.unwrap(table.files.keys.kms, kek, table.key_id)
        except KMS_UNUSABLE:
            raise
        except Ags1Error as error:
            message = f"the KEK {kek.key_id!r} cannot be used: {error.message}"
            findings.add("kek-unusable", message)


def check_settings(table: TableSession, findings: Findings, clock_ms: Clock) -> None:
    """Add what metadata.json and the catalog show that matters to the table's future."""
    metadata = table.version.json
    try:
        missing = snapshots_without_keys(metadata)
    except KeyMetadataError:
        missing = []  # the key's own finding says so
    if missing:
        findings.add(
            "missing-snapshot-key",
            "metadata.json lacks the keys of snapshots, or their KEKs under the table's master "
            "key, so these snapshots cannot be read. A catalog or writer that does not know such "
            "keys has removed them: take them from an earlier metadata file",
            snapshot_ids=tuple(missing),
            count=len(missing),
        )
    _check_snapshots(metadata, findings, clock_ms)
    if may_share_files(metadata.get("properties")):
        findings.add(
            "gc-disabled",
            f"the property {GC_ENABLED!r} is not true: other tables may use this table's files, "
            "so nothing can be expired, erased or removed. Set it to true if no other table uses "
            "them",
        )
    if getattr(table.catalog, "inner", None) is not None:
        try:
            _ = table.commits
        except NotImplementedError as error:
            findings.add("catalog-loses-keys", str(error))


def check_statistics(metadata: Mapping[str, Any], findings: Findings) -> None:
    """Add the statistics files that have no key, as far as the metadata shows it."""
    for _, entry in list_statistics(metadata):
        if entry.get("key-id") is None:
            findings.add(
                "plain-statistics",
                "the statistics file is not encrypted: "
                "table.update_statistics(allow_plaintext=True) removes it",
                entry["statistics-path"],
                (entry["snapshot-id"],),
                size=entry.get("file-size-in-bytes"),
            )


def keks_of(table: TableSession) -> tuple[KekHealth, ...]:
    """Return the table's KEKs."""
    keks = readable_keys(table.files.keys, Findings()).key_encryption_keys
    return tuple(KekHealth(kek.key_id, kek.encrypted_by_id, kek.timestamp_ms) for kek in keks)


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


def _check_unneeded_keys(table: TableSession, findings: Findings) -> None:
    """Say what ``prune_keys`` would remove, and how much smaller metadata.json would be."""
    try:
        keys = unneeded_keys(table.version.json, table.files.keys)
    except KeyMetadataError:
        return  # other findings say what is wrong with the keys
    if keys.key_ids:
        message = f"{keys.message}: prune_keys removes them"
        findings.add("orphan-key", message, count=len(keys.key_ids), size=keys.size)


def _check_age(kek: EncryptedKey, findings: Findings, clock_ms: Clock) -> None:
    """Compare the age of a KEK with its lifetime."""
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


def _check_snapshots(metadata: Mapping[str, Any], findings: Findings, clock_ms: Clock) -> None:
    snapshots = by_id(metadata)
    is_shared = may_share_files(metadata.get("properties"))
    try:
        expired = () if is_shared else expire(metadata, now_ms=clock_ms()).snapshot_ids
    except ValueError as error:
        findings.add("impossible-setting", f"snapshots cannot be expired: {error}")
        return
    if expired:
        findings.add(
            "old-snapshots",
            f"the table's history.expire.* properties no longer keep {len(expired)} of "
            f"{len(snapshots)} snapshots",
            snapshot_ids=tuple(expired),
            count=len(expired),
        )
    with_values = tuple(
        i
        for i, snapshot in snapshots.items()
        if any(name.startswith(_PARTITIONS) for name in snapshot.get("summary") or {})
    )
    if with_values:
        findings.add(
            "partition-values",
            "the summaries of snapshots contain partition values, and metadata.json is not "
            "encrypted: remove the property write.summary.partition-limit, and expire these "
            "snapshots",
            snapshot_ids=with_values,
            count=len(with_values),
        )

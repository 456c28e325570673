"""The checks of a table's health that need only metadata.json and the catalog, and no key. They
read no other file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ....errors import KeyMetadataError
from ....keys.manager import Clock
from ...commit.session import TableSession
from ...read.statistics import list_statistics
from ...spec.table_keys import snapshots_without_keys
from ..deletion import GC_ENABLED, may_share_files
from ..expire import by_id, expire
from ..unneeded_keys import unneeded_keys
from ..verify.findings import Findings
from ..verify.metadata_checks import (
    check_age,
    check_master_key,
    check_partition_fields,
    check_several,
    readable_keys,
)
from .findings import HealthFinding, KekHealth, Remedy, examples_of, summed

_ROTATE = Remedy("rotate")
_KEY_REMEDIES = dict.fromkeys(
    ("kek-expired", "kek-near-expiry", "kek-timestamp", "kek-other-master-key", "several-keks"),
    _ROTATE,
)
_PARTITIONS = "partitions."
_MAX_NAMED = 20


def check_without_keys(table: TableSession, clock_ms: Clock) -> Iterator[HealthFinding]:
    """Yield the findings of metadata.json and of the catalog."""
    metadata = table.version.json
    findings = Findings()
    check_partition_fields(table.metadata, table.metadata_location, findings)
    keks = readable_keys(table.files.keys, findings).key_encryption_keys
    for kek in keks:
        check_master_key(kek, table.key_id, findings)
        check_age(kek, findings, clock_ms)
    check_several(keks, findings)
    yield from summed(findings.sorted(), _KEY_REMEDIES)
    yield from _unneeded_keys(table)
    yield from _snapshots(table, clock_ms)
    yield from _statistics(metadata)
    yield from _settings(metadata)
    yield from _catalog(table)


def keks_of(table: TableSession) -> tuple[KekHealth, ...]:
    """Return the table's KEKs."""
    keks = readable_keys(table.files.keys, Findings()).key_encryption_keys
    return tuple(KekHealth(kek.key_id, kek.encrypted_by_id, kek.timestamp_ms) for kek in keks)


def expiring(metadata: Mapping[str, Any], snapshot_ids: set[int]) -> Remedy | None:
    """Return the command that expires these snapshots, except the heads of branches and tags; None
    if no other is left, or if the table's files may not be deleted. If the snapshots are more than
    ``_MAX_NAMED``, the command expires all but the heads."""
    heads = {ref["snapshot-id"] for ref in (metadata.get("refs") or {}).values()}
    chosen = sorted(snapshot_ids - heads)
    if not chosen or may_share_files(metadata.get("properties")):
        return None
    if len(chosen) <= _MAX_NAMED:
        return Remedy("expire", tuple(a for i in chosen for a in ("--snapshot", str(i))))
    return Remedy("expire", ("--older-than", "0s", "--retain-last", "1"))


def _unneeded_keys(table: TableSession) -> Iterator[HealthFinding]:
    try:
        keys = unneeded_keys(table.version.json, table.files.keys)
    except KeyMetadataError:
        return  # another finding says which key is missing
    if keys.key_ids:
        yield HealthFinding(
            "orphan-key",
            keys.message,
            len(keys.key_ids),
            keys.size,
            examples_of(keys.key_ids),
            Remedy("prune-keys"),
        )


def _snapshots(table: TableSession, clock_ms: Clock) -> Iterator[HealthFinding]:
    metadata = table.version.json
    snapshots = by_id(metadata)
    plain = {i for i, snapshot in snapshots.items() if snapshot.get("key-id") is None}
    if plain:
        yield HealthFinding(
            "snapshot-without-key",
            "snapshots have no key-id, so their manifest lists are not encrypted",
            len(plain),
            examples=examples_of(map(str, plain)),
            remedy=expiring(metadata, plain),
        )
    try:
        missing = snapshots_without_keys(metadata)
    except KeyMetadataError:
        missing = []  # the key's own finding says so
    if missing:
        yield HealthFinding(
            "missing-snapshot-key",
            "metadata.json lacks the keys of snapshots, or their KEKs under the table's master "
            "key, so these snapshots cannot be read. A catalog or writer that does not know such "
            "keys has removed them: take them from an earlier metadata file",
            len(missing),
            examples=examples_of(map(str, missing)),
        )
    try:
        expired = () if _is_shared(metadata) else expire(metadata, now_ms=clock_ms()).snapshot_ids
    except ValueError as error:
        yield HealthFinding("impossible-setting", f"snapshots cannot be expired: {error}")
        return
    if expired:
        yield HealthFinding(
            "old-snapshots",
            f"the table's history.expire.* properties no longer keep {len(expired)} of "
            f"{len(snapshots)} snapshots",
            len(expired),
            examples=examples_of(map(str, expired)),
            remedy=Remedy("expire"),
        )
    with_values = [
        str(i)
        for i, snapshot in snapshots.items()
        if any(name.startswith(_PARTITIONS) for name in snapshot.get("summary") or {})
    ]
    if with_values:
        yield HealthFinding(
            "partition-values",
            "the summaries of snapshots contain partition values, and metadata.json is not "
            "encrypted: remove the property write.summary.partition-limit, and expire these "
            "snapshots",
            len(with_values),
            examples=examples_of(with_values),
            remedy=expiring(metadata, set(map(int, with_values))),
        )


def _statistics(metadata: Mapping[str, Any]) -> Iterator[HealthFinding]:
    files = [entry for _, entry in list_statistics(metadata) if entry.get("key-id") is None]
    if files:
        yield HealthFinding(
            "plain-statistics",
            "statistics files are not encrypted: "
            "table.update_statistics(allow_plaintext=True) removes them",
            len(files),
            sum(int(entry.get("file-size-in-bytes") or 0) for entry in files),
            examples_of(entry["statistics-path"] for entry in files),
        )


def _settings(metadata: Mapping[str, Any]) -> Iterator[HealthFinding]:
    if _is_shared(metadata):
        yield HealthFinding(
            "gc-disabled",
            f"the property {GC_ENABLED!r} is not true: other tables may use this table's files, "
            "so nothing can be expired, erased or removed. Set it to true if no other table uses "
            "them",
        )


def _catalog(table: TableSession) -> Iterator[HealthFinding]:
    catalog = getattr(table.catalog, "inner", None)
    if catalog is None:
        return  # opened by its metadata.json
    try:
        commits = table.commits
    except NotImplementedError as error:
        yield HealthFinding("catalog-loses-keys", str(error))
        return
    trust = table.version.base.trust
    if commits.keeps_hash and not (trust.java_hash or trust.pinned_sha256):
        yield HealthFinding(
            "no-metadata-hash",
            "the catalog has no hash of the table's current metadata.json, so a change of that "
            "file would not be detected: the next commit of ags1 writes one. If the metadata "
            "names a folder outside the table's own, set that folder again if it is right",
        )


def _is_shared(metadata: Mapping[str, Any]) -> bool:
    return may_share_files(metadata.get("properties"))

"""The metadata.json of a relocated table.

IDs, sequence numbers, row IDs, counts, references and unknown fields stay the same. Changed are the
locations, the keys of manifest lists, and the time of the last update.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from itertools import takewhile
from typing import Any

from ....keys.envelope import encryption_keys_to_dicts
from ....keys.manager import now_ms
from ...spec.table_keys import needed_keys
from ...storage.table_folders import FOLDER_PROPERTIES
from ...write.summary import without_partitions
from .destination import Destination
from .plan import Plan
from .relocation import Relocation
from .rewriting import Rewritten


def new_properties(metadata: Mapping[str, Any], destination: Destination) -> dict[str, str]:
    """Return the table's properties at the new location. Folders below the old location are changed
    to the new one. Properties that name other folders are removed."""
    properties = {
        name: destination.inside(value.rstrip("/")) if name in FOLDER_PROPERTIES else value
        for name, value in (metadata.get("properties") or {}).items()
    }
    return {name: value for name, value in properties.items() if value is not None}


def new_metadata(
    relocation: Relocation, plan: Plan, properties: dict[str, str], lists: Mapping[str, Rewritten]
) -> dict[str, Any]:
    """Return the metadata of the new table. ``lists`` are the new manifest lists by the locations
    of the old ones. Raises KmsError, because their keys are wrapped here."""
    # A copy of the keys, to add others to it. Unneeded keys are removed below.
    old_keys = relocation.files.keys
    keys = old_keys.prune((), [key.key_id for key in old_keys.encryption_keys])
    copied = {snapshot.snapshot_id for snapshot in plan.snapshots}
    snapshots = []
    for entry in relocation.metadata.get("snapshots") or ():
        if entry["snapshot-id"] not in copied:
            continue
        manifest_list = lists[entry["manifest-list"]]
        key_id = keys.add_manifest_list_key(manifest_list.key_metadata)
        entry = {**entry, "manifest-list": manifest_list.location, "key-id": key_id}
        if "summary" in entry:
            entry["summary"] = without_partitions(entry["summary"])
        snapshots.append(entry)
    metadata = copy.deepcopy(dict(relocation.metadata))
    metadata["location"] = relocation.destination.new
    metadata["last-updated-ms"] = max(now_ms(), metadata["last-updated-ms"])
    metadata["properties"] = properties
    metadata["snapshots"] = snapshots
    metadata["metadata-log"] = []
    if not relocation.all_snapshots:
        refs = metadata.get("refs") or {}
        metadata["refs"] = {name: r for name, r in refs.items() if r["snapshot-id"] in copied}
        metadata["snapshot-log"] = _end_of_log(metadata.get("snapshot-log") or [], copied)
    for name, entries in plan.statistics.items():
        metadata[name] = [
            {**entry, "statistics-path": relocation.destination(entry["statistics-path"])}
            for entry in entries
        ]
    metadata["encryption-keys"] = encryption_keys_to_dicts(keys.encryption_keys)
    keys = keys.prune([entry["key-id"] for entry in snapshots], needed_keys(metadata))
    metadata["encryption-keys"] = encryption_keys_to_dicts(keys.encryption_keys)
    return metadata


def _end_of_log(log: list[dict[str, Any]], snapshot_ids: set[int]) -> list[dict[str, Any]]:
    """Return the end of a snapshot log that has only these snapshots. As in Java, the log has no
    gap: it says which snapshot was the current one at any time since its first entry."""
    return list(takewhile(lambda entry: entry["snapshot-id"] in snapshot_ids, reversed(log)))[::-1]

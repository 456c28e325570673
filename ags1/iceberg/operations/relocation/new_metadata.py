"""The metadata.json of a relocated table.

IDs, sequence numbers, row IDs, counts, references and unknown fields stay the same. Changed are the
locations, the keys of manifest lists, and the time of the last update.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

from ....keys.envelope import encryption_keys_to_dicts
from ....keys.manager import now_ms
from ...spec.table_keys import needed_keys
from ...storage.table_folders import FOLDER_PROPERTIES
from ...write.summary import without_partitions
from .destination import Destination
from .job import Job
from .plan import Plan
from .rewriting import Rewritten


def new_properties(metadata: Mapping[str, Any], destination: Destination) -> dict[str, str]:
    """Return the table's properties at the new location. Folders below the old location are changed
    to the new one. Properties that name other folders are removed."""
    properties = dict(metadata.get("properties") or {})
    for name in FOLDER_PROPERTIES:
        folder = properties.get(name)
        if folder is None:
            continue
        new_folder = destination.inside(folder.rstrip("/"))
        if new_folder is not None:
            properties[name] = new_folder
        else:
            del properties[name]
    return properties


def new_metadata(
    job: Job, plan: Plan, properties: dict[str, str], lists: Mapping[str, Rewritten]
) -> dict[str, Any]:
    """Return the metadata of the new table. ``lists`` are the new manifest lists by the locations
    of the old ones. Raises KmsError, because their keys are wrapped here."""
    # A copy of the keys, to add others to it. Unneeded keys are removed below.
    old_keys = job.files.keys
    keys = old_keys.prune((), [key.key_id for key in old_keys.encryption_keys])
    copied = {snapshot.snapshot_id for snapshot in plan.snapshots}
    snapshots = []
    for entry in job.metadata.get("snapshots") or ():
        if entry["snapshot-id"] not in copied:
            continue
        manifest_list = lists[entry["manifest-list"]]
        key_id = keys.add_manifest_list_key(manifest_list.km)
        entry = {**entry, "manifest-list": manifest_list.location, "key-id": key_id}
        if "summary" in entry:
            entry["summary"] = without_partitions(entry["summary"])
        snapshots.append(entry)
    metadata = copy.deepcopy(dict(job.metadata))
    metadata["location"] = job.destination.new
    metadata["last-updated-ms"] = max(now_ms(), metadata["last-updated-ms"])
    metadata["properties"] = properties
    metadata["snapshots"] = snapshots
    metadata["metadata-log"] = []
    if not job.all_snapshots:
        metadata["refs"] = _refs_to(metadata.get("refs") or {}, copied)
        metadata["snapshot-log"] = _log_of(metadata.get("snapshot-log") or [], copied)
    for name, entries in plan.statistics.items():
        metadata[name] = [
            {**entry, "statistics-path": job.destination(entry["statistics-path"])}
            for entry in entries
        ]
    metadata["encryption-keys"] = encryption_keys_to_dicts(keys.encryption_keys)
    keys = keys.prune([entry["key-id"] for entry in snapshots], needed_keys(metadata))
    metadata["encryption-keys"] = encryption_keys_to_dicts(keys.encryption_keys)
    return metadata


def _refs_to(refs: Mapping[str, Any], snapshot_ids: set[int]) -> dict[str, Any]:
    """Return the branches and tags that refer to these snapshots."""
    return {name: ref for name, ref in refs.items() if ref["snapshot-id"] in snapshot_ids}


def _log_of(log: Iterable[dict[str, Any]], snapshot_ids: set[int]) -> list[dict[str, Any]]:
    """Return the end of a snapshot log that has only these snapshots. As in Java, the log has no
    gap: it says which snapshot was the current one at any time since its first entry."""
    end: list[dict[str, Any]] = []
    for entry in log:
        if entry["snapshot-id"] in snapshot_ids:
            end.append(entry)
        else:
            end.clear()
    return end

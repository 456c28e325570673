"""What every deletion of a table's files has in common: an expiry, a purge and a migration.

If the table's property ``gc.enabled`` is not true, other tables may have its files too, and none
may be deleted. A file is deleted only if it is in the table's folders at the time of its deletion.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeAlias

from ...host.pools import map_in_threads
from ..read.statistics import list_statistics
from ..storage.output import TableOutput
from ..storage.table_folders import TableFolders

GC_ENABLED = "gc.enabled"
_THREADS = 4

# Called with the number of deleted files and the number of all.
DeletionProgress: TypeAlias = "Callable[[int, int], None]"

_log = logging.getLogger(__name__)


def may_share_files(properties: Mapping[str, str] | None) -> bool:
    """Return whether other tables may have files of a table with these properties."""
    return (properties or {}).get(GC_ENABLED, "true").lower() != "true"


def logged_metadata(metadata: Mapping[str, Any]) -> list[str]:
    """Return the locations of the earlier metadata files that the metadata log names."""
    return [entry["metadata-file"] for entry in metadata.get("metadata-log") or ()]


def statistics_updates(
    metadata: Mapping[str, Any], snapshot_ids: Collection[int] | None = None
) -> list[dict[str, Any]]:
    """Return the updates that remove the statistics files of snapshots (None: all) from the
    metadata, in the REST specification's form."""
    ids = dict.fromkeys((name, entry["snapshot-id"]) for name, entry in list_statistics(metadata))
    return [
        {"action": f"remove-{name}", "snapshot-id": snapshot_id}
        for name, snapshot_id in ids
        if snapshot_ids is None or snapshot_id in snapshot_ids
    ]


def delete_files(
    locations: Collection[str],
    output: TableOutput,
    folders: TableFolders,
    progress: DeletionProgress | None = None,
) -> tuple[str, ...]:
    """Delete files; return those that could not be deleted or are not in ``folders``. Those are
    logged and stay. Nothing refers to them, and ``verify_table`` finds them. ``progress`` is called
    in the caller's thread."""
    failed = []

    def delete(location: str) -> str | None:
        # A folder may have become a link since it was looked at.
        if not folders.has(location):
            _log.warning("%s is left behind: it is not in the table's folders", location)
            return location
        try:
            output.delete(location)
        except Exception as error:
            _log.warning("%s is left behind: %s", location, type(error).__name__)
            return location
        return None

    for done, location in enumerate(map_in_threads(_THREADS, delete, locations), 1):
        if location is not None:
            failed.append(location)
        if progress is not None:
            progress(done, len(locations))
    return tuple(failed)

"""``expire``: which snapshots a table need not keep, and which files can then be deleted.

There are two steps. ``expire`` makes a plan from the metadata alone, anew for each attempt to
commit. After the commit, and only if it is certain, ``ExpiryPlan.find_files`` reads the manifests
and finds the files that no snapshot reaches any more. A file that a snapshot of the committed
metadata reaches is never deleted. This follows Java's ``RemoveSnapshots`` and
``ReachableFileCleanup``. Keys stay: ``spec.table_keys.prune`` removes them.

The plan requires that no branch or tag has moved (``spec.table_keys`` has that rule). So a branch
that was rolled back meanwhile cannot lose its head.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pyiceberg.exceptions import ValidationException
from pyiceberg.manifest import DataFileContent, ManifestFile

from ...errors import Ags1Error, KmsError
from ..read.snapshots import EncryptedSnapshot
from ..spec.constants import MAIN_BRANCH
from ..spec.table_keys import Requirement, Update, unmoved_refs
from ..storage.locations import file_identity
from ..storage.output import TableOutput
from ..storage.table_files import TableFiles
from ..storage.table_folders import TableFolders

GC_ENABLED = "gc.enabled"
MAX_SNAPSHOT_AGE_MS = "history.expire.max-snapshot-age-ms"
MIN_SNAPSHOTS_TO_KEEP = "history.expire.min-snapshots-to-keep"
MAX_REF_AGE_MS = "history.expire.max-ref-age-ms"
_DEFAULTS = {
    MAX_SNAPSHOT_AGE_MS: 5 * 24 * 60 * 60 * 1000,
    MIN_SNAPSHOTS_TO_KEEP: 1,
    MAX_REF_AGE_MS: 2**63 - 1,
}
_THREADS = 4

_log = logging.getLogger(__name__)
_Item = TypeVar("_Item")

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class ExpiredFiles:
    """The locations of the files to delete, in the order of deletion.

    ``left_behind`` are files that stay although no snapshot reaches them. Files outside the table's
    folders stay, because they may be another table's, as may their whole snapshot. Parts of expired
    snapshots that cannot be read stay, because the files that they name are unknown. Statistics
    files stay if only the metadata, which is not authenticated, says that they are statistics.
    """

    data_files: tuple[str, ...] = ()
    delete_files: tuple[str, ...] = ()
    manifests: tuple[str, ...] = ()
    manifest_lists: tuple[str, ...] = ()
    statistics: tuple[str, ...] = ()
    left_behind: tuple[str, ...] = ()
    folders: TableFolders | None = field(default=None, repr=False, compare=False)

    @property
    def locations(self) -> tuple[str, ...]:
        """All files to delete."""
        return (
            *self.data_files,
            *self.delete_files,
            *self.manifests,
            *self.manifest_lists,
            *self.statistics,
        )

    def delete(
        self, output: TableOutput, *, threads: int = _THREADS, progress: Progress | None = None
    ) -> tuple[str, ...]:
        """Delete the files; return those that could not be deleted. Those are logged and stay.
        Nothing refers to them, and ``verify_table`` finds them. ``progress`` is called with the
        number of deleted files and the number of all, in the caller's thread."""
        failed = []

        def delete(location: str) -> str | None:
            # A folder may have become a link since it was looked at.
            if self.folders is not None and not self.folders.has(location):
                _log.warning("%s is left behind: it is not in the table's folders", location)
                return location
            try:
                output.delete(location)
            except Exception as error:
                _log.warning("%s is left behind: %s", location, type(error).__name__)
                return location
            return None

        locations = self.locations
        with ThreadPoolExecutor(threads) as pool:
            for done, location in enumerate(pool.map(delete, locations), 1):
                if location is not None:
                    failed.append(location)
                if progress is not None:
                    progress(done, len(locations))
        return tuple(failed)


@dataclass(frozen=True, slots=True)
class ExpiryPlan:
    """What an expiry commits, and afterwards which files it deletes.

    Without ``updates`` there is nothing to commit. ``snapshot_ids`` are the snapshots to remove,
    ``refs`` the names of the branches and tags to remove.
    """

    updates: list[Update]
    requirements: list[Requirement]
    snapshot_ids: tuple[int, ...]
    refs: tuple[str, ...]
    metadata: Mapping[str, Any] = field(repr=False)

    def find_files(
        self,
        files: TableFiles,
        metadata_location: str,
        *,
        folders: TableFolders | None = None,
        after: Mapping[str, Any] | None = None,
        after_files: TableFiles | None = None,
        threads: int = _THREADS,
    ) -> ExpiredFiles:
        """Read the manifests and return the files that no snapshot reaches any more. Deletes
        nothing.

        ``files`` has the keys of the metadata that the plan was made from. ``after`` is the
        committed metadata of the table, or any later one, and ``after_files`` has its keys. Without
        them, this is a dry run of the commit. ``metadata_location`` is the location of
        metadata.json in the catalog. ``folders`` are the table's folders. By default, they are
        derived from that location. Files outside them are left behind.

        Raises KmsError, OSError, and what reading a snapshot that stays raises. In these cases no
        file may be deleted. Raises ValueError if ``after`` is another table's metadata.
        """
        before = self.metadata
        if after is None:
            gone = set(self.snapshot_ids)
            names = ("snapshots", "statistics", "partition-statistics")
            kept = {
                name: [e for e in before.get(name) or () if e["snapshot-id"] not in gone]
                for name in names
            }
            after = {**before, **kept}
        if after["table-uuid"] != before["table-uuid"]:
            raise ValueError(
                f"the metadata after the expiry is that of another table, {after['table-uuid']}: "
                f"pass that of {before['table-uuid']}"
            )
        # A snapshot that is still in the metadata was not expired, even if the plan has it.
        staying = {snapshot["snapshot-id"] for snapshot in after.get("snapshots") or ()}
        expired = [
            snapshot
            for snapshot in before.get("snapshots") or ()
            if snapshot["snapshot-id"] in self.snapshot_ids
            and snapshot["snapshot-id"] not in staying
        ]
        with ThreadPoolExecutor(threads) as pool:
            if folders is None:
                folders = TableFolders(metadata_location, stored=files.stored_location)
            return _Search(files, after_files or files, folders, pool).run(before, after, expired)


def expire(
    metadata: Mapping[str, Any],
    *,
    older_than_ms: int | None = None,
    retain_last: int | None = None,
    snapshot_ids: Collection[int] = (),
    now_ms: int | None = None,
) -> ExpiryPlan:
    """Plan which snapshots to remove, as Java's ``expireSnapshots`` does.

    Each branch keeps its last ``retain_last`` snapshots, and those made at ``older_than_ms`` (epoch
    ms) or later. A branch's own settings come first. If an argument is None, the table's
    ``history.expire.*`` properties decide. Branches and tags that are older than their maximum age
    are removed, except main. Snapshots that no branch or tag reaches are removed if they are older
    than ``older_than_ms``. ``snapshot_ids`` are removed as well.

    Raises ValueError if ``snapshot_ids`` has a snapshot that does not exist or that a branch or tag
    points to, if ``retain_last`` is below 1, and if a property is not a number. Raises
    ValidationException if ``gc.enabled`` is not true, because other tables may have files of such a
    table too.
    """
    properties = metadata.get("properties") or {}
    _check_owns_files(properties)
    if retain_last is not None and retain_last < 1:
        raise ValueError(f"retain_last must be at least 1, not {retain_last}")
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    if older_than_ms is None:
        older_than_ms = now_ms - _setting(properties, MAX_SNAPSHOT_AGE_MS)
    if retain_last is None:
        retain_last = _setting(properties, MIN_SNAPSHOTS_TO_KEEP)
    snapshots = {s["snapshot-id"]: s for s in metadata.get("snapshots") or ()}
    refs = metadata.get("refs") or {}
    kept_refs = _kept_refs(refs, snapshots, now_ms, _setting(properties, MAX_REF_AGE_MS))
    _check_ids(snapshot_ids, snapshots, kept_refs)
    kept: set[int] = set()
    referenced: set[int] = set()
    for ref in kept_refs.values():
        kept.add(ref["snapshot-id"])
        if ref.get("type", "branch") != "branch":
            continue
        age_ms, count = ref.get("max-snapshot-age-ms"), ref.get("min-snapshots-to-keep")
        oldest_ms = older_than_ms if age_ms is None else now_ms - age_ms
        count = retain_last if count is None else count
        ancestors = list(_ancestors(ref["snapshot-id"], snapshots))
        referenced.update(s["snapshot-id"] for s in ancestors)
        for number, snapshot in enumerate(ancestors):
            if number >= count and snapshot["timestamp-ms"] < oldest_ms:
                break
            kept.add(snapshot["snapshot-id"])
    kept.update(
        snapshot_id
        for snapshot_id, snapshot in snapshots.items()
        if snapshot_id not in referenced and snapshot["timestamp-ms"] >= older_than_ms
    )
    kept.difference_update(snapshot_ids)
    gone = tuple(snapshot_id for snapshot_id in snapshots if snapshot_id not in kept)
    gone_refs = tuple(name for name in refs if name not in kept_refs)
    return ExpiryPlan(
        _updates(metadata, gone, gone_refs), unmoved_refs(metadata), gone, gone_refs, metadata
    )


def expire_chosen(metadata: Mapping[str, Any], snapshot_ids: Collection[int]) -> ExpiryPlan:
    """Plan to remove exactly these snapshots, except those that are gone already and those that a
    branch or tag points to. Raises ValidationException as ``expire``."""
    _check_owns_files(metadata.get("properties") or {})
    heads = {ref["snapshot-id"] for ref in (metadata.get("refs") or {}).values()}
    there = [snapshot["snapshot-id"] for snapshot in metadata.get("snapshots") or ()]
    gone = tuple(i for i in there if i in snapshot_ids and i not in heads)
    return ExpiryPlan(_updates(metadata, gone, ()), unmoved_refs(metadata), gone, (), metadata)


def everything(metadata: Mapping[str, Any]) -> ExpiryPlan:
    """Return a plan for a table that is dropped: it commits nothing and finds the files of all
    snapshots. Raises ValidationException as ``expire``."""
    _check_owns_files(metadata.get("properties") or {})
    gone = tuple(snapshot["snapshot-id"] for snapshot in metadata.get("snapshots") or ())
    return ExpiryPlan([], [], gone, tuple(metadata.get("refs") or ()), metadata)


def _check_owns_files(properties: Mapping[str, str]) -> None:
    if properties.get(GC_ENABLED, "true").lower() != "true":
        raise ValidationException(
            f"nothing can be expired or purged: the table's property {GC_ENABLED!r} is not true, "
            "so other tables may have its files too. Set it to true if no other table has them"
        )


def _setting(properties: Mapping[str, str], name: str) -> int:
    text = properties.get(name, str(_DEFAULTS[name]))
    try:
        return int(text)
    except ValueError:
        raise ValueError(
            f"the table property {name!r} is not a number but {text!r}: correct it"
        ) from None


def _kept_refs(
    refs: Mapping[str, Any], snapshots: Mapping[int, Any], now_ms: int, max_age_ms: int
) -> dict[str, Any]:
    kept = {}
    for name, ref in refs.items():
        snapshot = snapshots.get(ref["snapshot-id"])
        own = ref.get("max-ref-age-ms")
        if name == MAIN_BRANCH or (
            snapshot is not None
            and now_ms - snapshot["timestamp-ms"] <= (max_age_ms if own is None else own)
        ):
            kept[name] = ref
    return kept


def _check_ids(
    snapshot_ids: Collection[int], snapshots: Mapping[int, Any], kept_refs: Mapping[str, Any]
) -> None:
    for snapshot_id in snapshot_ids:
        if snapshot_id not in snapshots:
            raise ValueError(f"the table has no snapshot {snapshot_id}")
        names = [name for name, ref in kept_refs.items() if ref["snapshot-id"] == snapshot_id]
        if names:
            raise ValueError(
                f"snapshot {snapshot_id} cannot be expired: {', '.join(names)} refers to it"
            )


def _ancestors(snapshot_id: int | None, snapshots: Mapping[int, Any]) -> Iterator[Any]:
    """Yield a snapshot and its ancestors, as far as the metadata has them."""
    seen: set[int] = set()
    while snapshot_id is not None and snapshot_id in snapshots and snapshot_id not in seen:
        seen.add(snapshot_id)
        yield snapshots[snapshot_id]
        snapshot_id = snapshots[snapshot_id].get("parent-snapshot-id")


def _updates(
    metadata: Mapping[str, Any], gone: Collection[int], gone_refs: Iterable[str]
) -> list[Update]:
    updates: list[Update] = [
        {"action": "remove-snapshot-ref", "ref-name": name} for name in gone_refs
    ]
    if gone:
        updates.append({"action": "remove-snapshots", "snapshot-ids": list(gone)})
    for name in ("statistics", "partition-statistics"):
        found = {entry["snapshot-id"] for entry in metadata.get(name) or ()}
        updates += (
            {"action": f"remove-{name}", "snapshot-id": snapshot_id}
            for snapshot_id in gone
            if snapshot_id in found
        )
    return updates


class _Search:
    """Finds the files that only expired snapshots reach.

    One file may have several locations, also through links. So real places are compared and not
    locations. In doubt a file stays.
    """

    def __init__(
        self,
        files: TableFiles,
        after_files: TableFiles,
        folders: TableFolders,
        pool: ThreadPoolExecutor,
    ) -> None:
        # Plaintext manifests of expired snapshots are deleted too, with the files that they list.
        self._files = files.reading_exposed()
        self._folders = folders
        self._after_files = after_files
        self._pool = pool
        self._left: dict[str, None] = {}

    def run(
        self,
        before: Mapping[str, Any],
        after: Mapping[str, Any],
        expired: list[Mapping[str, Any]],
    ) -> ExpiredFiles:
        living = after.get("snapshots") or ()
        live_lists = {self._place(s["manifest-list"]) for s in living}
        lists: dict[str, str] = {}
        candidates: dict[str, ManifestFile] = {}
        for snapshot, manifests in zip(
            expired, self._pool.map(self._expired_manifests, expired), strict=True
        ):
            if manifests is None:
                continue
            location = snapshot["manifest-list"]
            if self._place(location) not in live_lists:
                lists[self._place(location)] = location
            candidates.update((self._place(m.manifest_path), m) for m in manifests)
        statistics = self._statistics(before, after, expired)
        live_manifests: dict[str, ManifestFile] = {}
        wanted = living if candidates or statistics else ()
        for manifests in self._pool.map(self._live_manifests, wanted):
            live_manifests.update((self._place(m.manifest_path), m) for m in manifests)
        for where in live_manifests:
            candidates.pop(where, None)
        for where in (*live_lists, *live_manifests):
            self._leave(statistics.pop(where, None), "a snapshot has it")
        for where, manifest in list(candidates.items()):
            if not self._folders.has(manifest.manifest_path):
                self._leave(manifest.manifest_path)
                del candidates[where]
        contents = self._contents(candidates, live_manifests, statistics)
        return ExpiredFiles(
            tuple(path for path, is_data in contents.values() if is_data),
            tuple(path for path, is_data in contents.values() if not is_data),
            tuple(manifest.manifest_path for manifest in candidates.values()),
            tuple(lists.values()),
            tuple(statistics.values()),
            tuple(self._left),
            self._folders,
        )

    def _contents(
        self,
        expired: dict[str, ManifestFile],
        live: Mapping[str, ManifestFile],
        statistics: dict[str, str],
    ) -> dict[str, tuple[str, bool]]:
        """Return the data and delete files that only ``expired`` manifests list: by place, the
        location and whether it is a data file. Removes unreadable manifests from ``expired``, and
        from ``statistics`` the files that ``live`` manifests list."""
        contents: dict[str, tuple[str, bool]] = {}
        found = self._pool.map(self._expired_entries, list(expired.values()))
        for where, entries in zip(list(expired), found, strict=True):
            if entries is None:
                del expired[where]
            else:
                contents.update(entries)

        def reached(manifest: ManifestFile) -> list[str]:
            entries = manifest.fetch_manifest_entry(self._after_files)
            places = (self._place(entry.data_file.file_path) for entry in entries)
            return [where for where in places if where in contents or where in statistics]

        # Collect all results before anything is removed, because the threads read these mappings.
        wanted = live.values() if contents or statistics else ()
        for places in list(self._pool.map(reached, wanted)):
            for where in places:
                contents.pop(where, None)
                self._leave(statistics.pop(where, None), "a snapshot has it")
        for where, (location, _) in list(contents.items()):
            if not self._folders.has(location):
                self._leave(location)
                del contents[where]
        return contents

    def _live_manifests(self, snapshot: Mapping[str, Any]) -> list[ManifestFile]:
        return EncryptedSnapshot.model_validate(snapshot).manifests(self._after_files)

    def _expired_manifests(self, snapshot: Mapping[str, Any]) -> list[ManifestFile] | None:
        def read(snapshot: Mapping[str, Any]) -> list[ManifestFile]:
            return EncryptedSnapshot.model_validate(snapshot).manifests(self._files)

        if not self._folders.has(snapshot["manifest-list"]):
            # If another table has the same master key, its snapshot could be read here too.
            self._leave(snapshot["manifest-list"])
            return None
        return self._unless_unreadable(read, snapshot, snapshot["manifest-list"])

    def _expired_entries(self, manifest: ManifestFile) -> dict[str, tuple[str, bool]] | None:
        def read(manifest: ManifestFile) -> dict[str, tuple[str, bool]]:
            files = [entry.data_file for entry in manifest.fetch_manifest_entry(self._files)]
            return {
                self._place(file.file_path): (
                    file.file_path,
                    file.content == DataFileContent.DATA,
                )
                for file in files
            }

        return self._unless_unreadable(read, manifest, manifest.manifest_path)

    def _unless_unreadable(
        self, read: Callable[[_Item], Any], item: _Item, location: str
    ) -> Any | None:
        """Return ``read(item)``, or None if this part of an expired snapshot is damaged or missing.
        Then it stays, and so do the files that it names. Raises KmsError, and OSError for failures
        of the storage."""
        try:
            return read(item)
        except KmsError:
            raise
        except (Ags1Error, FileNotFoundError) as error:
            self._leave(location, type(error).__name__)
            return None

    def _leave(
        self, location: str | None, reason: str = "it is not in the table's folders"
    ) -> None:
        if location is not None:
            _log.warning("%s is left behind: %s", location, reason)
            self._left[location] = None

    def _statistics(
        self,
        before: Mapping[str, Any],
        after: Mapping[str, Any],
        expired: list[Mapping[str, Any]],
    ) -> dict[str, str]:
        """Return the statistics files of expired snapshots, by place."""
        ids = {snapshot["snapshot-id"] for snapshot in expired}
        live = {self._place(entry["statistics-path"]) for entry in _statistics(after)}
        found: dict[str, str] = {}
        for entry in _statistics(before):
            location = entry["statistics-path"]
            where = self._place(location)
            if entry["snapshot-id"] not in ids or where in live:
                continue
            try:
                is_statistics = self._folders.has_statistics(location, self._files)
            except FileNotFoundError:
                continue
            except (Ags1Error, OSError) as error:
                self._leave(location, type(error).__name__)
                continue
            if is_statistics:
                found[where] = location
            else:
                self._leave(location, "it is not a statistics file in the metadata folder")
        return found

    def _place(self, location: str) -> str:
        return file_identity(self._files.stored_location(location))


def _statistics(metadata: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for name in ("statistics", "partition-statistics"):
        yield from metadata.get(name) or ()

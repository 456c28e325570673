"""``expire``: which snapshots a table need not keep, and which files can then be deleted.

There are two steps. ``expire`` makes a plan from the metadata alone, anew for each attempt to
commit. After the commit, and only if it is certain, ``ExpiryPlan.find_files`` reads the manifests
and finds the files that no snapshot reaches any more (``expired_files``). For example, with
``retain_last=2`` and snapshots that are all older than the limit::

    s1 -- s2 -- s3 -- s4     main points to s4: s3 and s4 stay. A tag points to s1: it stays.
                             s2 is removed
    s5                       no branch or tag reaches it: it is removed

This follows Java's ``RemoveSnapshots``. Keys stay, unless the same commit prunes them
(``spec.table_keys.prune``).

The plan requires that no branch or tag has moved (``spec.table_keys`` has that rule). So a branch
that was rolled back meanwhile cannot lose its head.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyiceberg.exceptions import ValidationException

from ..spec.constants import MAIN_BRANCH
from ..spec.properties import number_in
from ..spec.table_keys import Requirement, Update, unmoved_refs
from ..storage.table_files import TableFiles
from ..storage.table_folders import TableFolders
from ..write.view import TableView
from .deletion import GC_ENABLED, may_share_files, statistics_updates
from .expired_files import ExpiredFiles, find_expired_files

MAX_SNAPSHOT_AGE_MS = "history.expire.max-snapshot-age-ms"
MIN_SNAPSHOTS_TO_KEEP = "history.expire.min-snapshots-to-keep"
MAX_REF_AGE_MS = "history.expire.max-ref-age-ms"
_DEFAULTS = {
    MAX_SNAPSHOT_AGE_MS: 5 * 24 * 60 * 60 * 1000,
    MIN_SNAPSHOTS_TO_KEEP: 1,
    MAX_REF_AGE_MS: 2**63 - 1,
}


@dataclass(frozen=True, slots=True)
class ExpiryPlan:
    """What an expiry commits, and afterwards which files it deletes. Without ``updates`` there is
    nothing to commit. ``snapshot_ids`` are the snapshots to remove, ``refs`` the names of the
    branches and tags to remove."""

    updates: list[Update]
    requirements: list[Requirement]
    snapshot_ids: tuple[int, ...]
    refs: tuple[str, ...]
    metadata: Mapping[str, Any] = field(repr=False)

    def find_files(
        self, files: TableFiles, folders: TableFolders, after: TableView | None = None
    ) -> ExpiredFiles:
        """Read the manifests and return the files that no snapshot reaches any more. Deletes
        nothing.

        ``files`` has the keys of the metadata that the plan was made from. ``folders`` are the
        table's folders; files outside them are left behind. ``after`` is the committed version of
        the table, or any later one. Without it, this is a dry run of the commit.

        Raises KmsError, OSError, and what reading a snapshot that stays raises. In these cases no
        file may be deleted. Raises ValueError if ``after`` is another table's.
        """
        before = self.metadata
        removed = set(self.snapshot_ids)
        if after is None:
            names = ("snapshots", "statistics", "partition-statistics")
            retained = {
                name: [e for e in before.get(name) or () if e["snapshot-id"] not in removed]
                for name in names
            }
            after = TableView({**before, **retained}, files)
        uuid = after.metadata["table-uuid"]
        if uuid != before["table-uuid"]:
            raise ValueError(
                f"the metadata after the expiry is that of another table, {uuid}: pass that of "
                f"{before['table-uuid']}"
            )
        # A snapshot that is still in the metadata was not expired, even if the plan has it.
        removed -= {snapshot["snapshot-id"] for snapshot in after.metadata.get("snapshots") or ()}
        expired = [s for s in before.get("snapshots") or () if s["snapshot-id"] in removed]
        return find_expired_files(TableView(dict(before), files), after, expired, folders)


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
    _check_owns_files(metadata)
    properties = metadata.get("properties") or {}
    if retain_last is not None and retain_last < 1:
        raise ValueError(f"retain_last must be at least 1, not {retain_last}")
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    if older_than_ms is None:
        older_than_ms = now_ms - number_in(
            properties, MAX_SNAPSHOT_AGE_MS, _DEFAULTS[MAX_SNAPSHOT_AGE_MS]
        )
    if retain_last is None:
        retain_last = number_in(properties, MIN_SNAPSHOTS_TO_KEEP, _DEFAULTS[MIN_SNAPSHOTS_TO_KEEP])
    snapshots = by_id(metadata)
    refs = metadata.get("refs") or {}
    retained_refs = _retained_refs(
        refs, snapshots, now_ms, number_in(properties, MAX_REF_AGE_MS, _DEFAULTS[MAX_REF_AGE_MS])
    )
    _check_ids(snapshot_ids, snapshots, retained_refs)
    retained: set[int] = set()
    reached: set[int] = set()
    for ref in retained_refs.values():
        retained.add(ref["snapshot-id"])
        if ref.get("type", "branch") != "branch":
            continue
        age_ms, count = ref.get("max-snapshot-age-ms"), ref.get("min-snapshots-to-keep")
        oldest_ms = older_than_ms if age_ms is None else now_ms - age_ms
        count = retain_last if count is None else count
        line = list(ancestors(ref["snapshot-id"], snapshots))
        reached.update(s["snapshot-id"] for s in line)
        for number, snapshot in enumerate(line):
            if number >= count and snapshot["timestamp-ms"] < oldest_ms:
                break
            retained.add(snapshot["snapshot-id"])
    for snapshot_id, snapshot in snapshots.items():
        if snapshot_id not in reached and snapshot["timestamp-ms"] >= older_than_ms:
            retained.add(snapshot_id)
    retained.difference_update(snapshot_ids)
    return _plan(
        metadata,
        [snapshot_id for snapshot_id in snapshots if snapshot_id not in retained],
        [name for name in refs if name not in retained_refs],
    )


def expire_chosen(metadata: Mapping[str, Any], snapshot_ids: Collection[int]) -> ExpiryPlan:
    """Plan to remove exactly these snapshots, except those that the table no longer has and those
    that a branch or tag points to. Raises ValidationException as ``expire``."""
    _check_owns_files(metadata)
    heads = {ref["snapshot-id"] for ref in (metadata.get("refs") or {}).values()}
    ids = [snapshot["snapshot-id"] for snapshot in metadata.get("snapshots") or ()]
    return _plan(metadata, [i for i in ids if i in snapshot_ids and i not in heads], ())


def expire_all(metadata: Mapping[str, Any]) -> ExpiryPlan:
    """Return a plan for a table that is dropped: it commits nothing and finds the files of all
    snapshots. Raises ValidationException as ``expire``."""
    _check_owns_files(metadata)
    ids = tuple(snapshot["snapshot-id"] for snapshot in metadata.get("snapshots") or ())
    return ExpiryPlan([], [], ids, tuple(metadata.get("refs") or ()), metadata)


def _check_owns_files(metadata: Mapping[str, Any]) -> None:
    if may_share_files(metadata.get("properties")):
        raise ValidationException(
            f"nothing can be expired or purged: the table's property {GC_ENABLED!r} is not true, "
            "so other tables may have its files too. Set it to true if no other table has them"
        )


def _retained_refs(
    refs: Mapping[str, Any], snapshots: Mapping[int, Any], now_ms: int, max_age_ms: int
) -> dict[str, Any]:
    retained = {}
    for name, ref in refs.items():
        snapshot = snapshots.get(ref["snapshot-id"])
        own = ref.get("max-ref-age-ms")
        if name == MAIN_BRANCH or (
            snapshot is not None
            and now_ms - snapshot["timestamp-ms"] <= (max_age_ms if own is None else own)
        ):
            retained[name] = ref
    return retained


def _check_ids(
    snapshot_ids: Collection[int], snapshots: Mapping[int, Any], retained_refs: Mapping[str, Any]
) -> None:
    for snapshot_id in snapshot_ids:
        if snapshot_id not in snapshots:
            raise ValueError(f"the table has no snapshot {snapshot_id}")
        names = [name for name, ref in retained_refs.items() if ref["snapshot-id"] == snapshot_id]
        if names:
            raise ValueError(
                f"snapshot {snapshot_id} cannot be expired: {', '.join(names)} refers to it"
            )


def by_id(metadata: Mapping[str, Any]) -> dict[int, Any]:
    """Return the snapshots of metadata by their IDs."""
    return {snapshot["snapshot-id"]: snapshot for snapshot in metadata.get("snapshots") or ()}


def ancestors(snapshot_id: int | None, snapshots: Mapping[int, Any]) -> Iterator[Any]:
    """Yield a snapshot and its ancestors, as far as the metadata has them."""
    seen: set[int] = set()
    while snapshot_id is not None and snapshot_id in snapshots and snapshot_id not in seen:
        seen.add(snapshot_id)
        yield snapshots[snapshot_id]
        snapshot_id = snapshots[snapshot_id].get("parent-snapshot-id")


def _plan(
    metadata: Mapping[str, Any], snapshot_ids: Sequence[int], refs: Sequence[str]
) -> ExpiryPlan:
    """Return the plan that removes these snapshots, branches and tags."""
    updates: list[Update] = [{"action": "remove-snapshot-ref", "ref-name": name} for name in refs]
    if snapshot_ids:
        updates.append({"action": "remove-snapshots", "snapshot-ids": list(snapshot_ids)})
    updates += statistics_updates(metadata, set(snapshot_ids))
    requirements = unmoved_refs(metadata)
    return ExpiryPlan(updates, requirements, tuple(snapshot_ids), tuple(refs), metadata)

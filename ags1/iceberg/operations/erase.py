"""``erase`` removes deleted rows for good: afterwards, no file of the branch has them.

A deletion vector only marks rows, and a snapshot that a delete replaces still has its files. An
example: s1 has the data files a and b, s2 deletes rows of a by the vector v, and s3 deletes rows of
b by copy-on-write, so that b becomes b'. What still has deleted rows after each step::

    at the start                            a; b; the manifests of s1, s2 and s3, with the bounds
                                            of a and b
    1  a becomes a', without its deleted    the same; also the manifests of s4, which list a and v
       rows: snapshot s4                    as removed, with their bounds
    2  these manifests are rewritten: s5    a, b, the manifests of s1 to s4
    3  s1 to s4 expire; their keys go       the same. Only earlier metadata files name them
    4  a, b, v, then the manifests, then    the earlier metadata files, with the keys of manifest
       the manifest lists are deleted       lists, and summaries
    5  the earlier metadata files are       nothing. The metadata log still has their names
       deleted
    6  if asked: the orphan files           files of writers that failed

A run may be killed at any time. Steps 1 to 3 are commits. Steps 4 and 5 delete what the table does
not need. The next run finds in the earlier metadata files what the last one has left, because
they go last, and each file outlives the files that it names.

What is still there, and why, is in ``Erasure.remaining``. This knows the table's own folders only:
backups, versioned buckets, and copies that a KMS or a reader keeps are not seen from here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...errors import Ags1Error
from ...keys.envelope import parse_encryption_keys
from ..commit.session import TableSession
from ..read.metadata import parse_metadata, read_metadata
from ..read.statistics import list_statistics
from ..spec.constants import MAIN_BRANCH
from ..spec.moments import Moment
from ..steps import RecomputedSnapshotStep
from ..storage.listing import list_files
from ..storage.locations import file_identity
from ..storage.output import TableOutput
from ..storage.table_files import TableFiles
from ..storage.table_folders import TableFolders
from ..storage.trust import Trust
from ..transaction import EncryptedTransaction, commit_steps
from ..write.conflicts import ConflictError
from ..write.snapshot import FileChange, lists_removed_files
from ..write.view import TableView
from .compact import Compacted, rewrite_data_files
from .deletion import delete_files, logged_metadata
from .expire import ExpiryPlan, ancestors, by_id, expire_chosen
from .expire_snapshots import ExpiryStep
from .expired_files import ExpiredFiles, find_expired_files
from .meter import Progress
from .orphans import OrphanFiles, age_limit, find_orphans
from .own_folders import version_of_name
from .rotation import prune_keys

_ATTEMPTS = 3
_STAGED = "wap.id"
_PARTITIONS = "partitions."
# The lists of the metadata that are merged over its versions, and what identifies an entry.
_NAMES = {
    "snapshots": "snapshot-id",
    "encryption-keys": "key-id",
    "statistics": "statistics-path",
    "partition-statistics": "statistics-path",
}


@dataclass(frozen=True, slots=True)
class Remaining:
    """Something that may still have deleted rows. ``kind`` is stable. ``remedy`` is what to do, for
    example a command; then erase again."""

    kind: str
    message: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Erasure:
    """What an erasure has done, or would do (``dry_run``).

    ``rewritten`` counts the rewritten data files. ``snapshot_ids`` are the expired snapshots.
    ``files`` are the deleted data, delete and statistics files, manifests and manifest lists; after
    a dry run without those that only the present snapshot needs. ``metadata_files`` are the deleted
    metadata files. ``orphans`` is None if orphan files were not searched for. ``failed`` are files
    that could not be deleted, ``remaining`` is what may still have deleted rows.
    """

    rewritten: Compacted
    snapshot_ids: tuple[int, ...]
    files: tuple[str, ...] = ()
    metadata_files: tuple[str, ...] = ()
    orphans: OrphanFiles | None = None
    failed: tuple[str, ...] = ()
    remaining: tuple[Remaining, ...] = ()


def erase_deleted_rows(
    table: TableSession,
    *,
    branch: str = MAIN_BRANCH,
    remove_orphans: bool = False,
    orphans_older_than: Moment | None = None,
    no_other_writers: bool = False,
    threads: int | None = None,
    dry_run: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Erasure:
    """Erase the deleted rows of a branch for good; return what was done, and what is left.

    This rewrites the data files that have deleted rows, expires all earlier snapshots of the
    branch and those that no branch or tag has, and deletes the files that only they needed,
    with all earlier metadata files. Time travel ends. ``Erasure.remaining`` says what may still
    have deleted rows, such as other branches and tags, and what to do about it. With
    ``remove_orphans``, files of writers that failed are deleted too;
    ``orphans_older_than`` and ``no_other_writers`` are as in ``remove_orphan_files``. With
    ``dry_run``, nothing is changed. ``threads`` and ``progress`` are those of
    ``rewrite_data_files``. If the call is interrupted or fails, call it again.

    Raises ValidationException if ``gc.enabled`` is not true or another writer has changed a
    rewritten file meanwhile, ValueError for a branch that does not exist, and what reading and
    writing raises. Files that could not be deleted are in ``Erasure.failed``.
    """
    limit = None
    if remove_orphans:
        limit = age_limit(
            orphans_older_than, no_other_writers=no_other_writers, name="orphans_older_than"
        )
    return _Erasing(table, branch, threads, progress, limit).run(dry_run=dry_run)


def earlier_snapshots(metadata: Mapping[str, Any], branch: str) -> list[int]:
    """Return the IDs of the snapshots that an erasure expires: those before the branch's head, and
    those that no branch or tag has. Heads of branches, tagged snapshots, the history of other
    branches alone, and staged snapshots (write-audit-publish) stay."""
    snapshots = by_id(metadata)
    refs = metadata.get("refs") or {}
    heads = {ref["snapshot-id"] for ref in refs.values()}
    lines = {
        name: [s["snapshot-id"] for s in ancestors(ref["snapshot-id"], snapshots)]
        for name, ref in refs.items()
        if ref.get("type", "branch") == "branch"
    }
    of_any_branch = {snapshot_id for line in lines.values() for snapshot_id in line}
    own = set(lines.get(branch, ()))
    return [
        snapshot_id
        for snapshot_id, snapshot in snapshots.items()
        if snapshot_id not in heads
        and (snapshot_id in own or (snapshot_id not in of_any_branch and not _is_staged(snapshot)))
    ]


class _Erasing:
    def __init__(
        self,
        table: TableSession,
        branch: str,
        threads: int | None,
        progress: Progress | None,
        orphans_older_than_ms: int | None,
    ) -> None:
        self._table = table
        self._branch = branch
        self._threads = threads
        self._progress = progress
        self._orphans_older_than_ms = orphans_older_than_ms

    def run(self, *, dry_run: bool) -> Erasure:
        table, branch = self._table, self._branch
        table.refresh()
        view = table.view().at(branch)
        if view.snapshot is not None and view.branch_head_id is None:
            raise ValueError(f"the table has no branch {branch!r}")
        plan = self._plan(view.metadata)  # raises if other tables may have the files
        if dry_run:
            return self._would(view, plan)
        output = table.output()
        rewritten = self._rewritten()
        _forget_removed_files(table, branch)
        expiry = ExpiryStep(self._plan)
        commit_steps(table, expiry)
        before = expiry.view.metadata
        prune_keys(table)
        expired = by_id(before).keys() - by_id(table.version.json).keys()
        earlier, files = self._earlier([before])
        deleted, failed = _delete_in_order(files, output, table.folders)
        metadata_files: tuple[str, ...] = ()
        if not failed:
            failed = delete_files(earlier.locations, output, table.folders)
            metadata_files = tuple(x for x in earlier.locations if x not in failed)
        orphans = None
        if self._orphans_older_than_ms is not None:
            orphans = find_orphans(table, self._orphans_older_than_ms, refresh=table.refresh)
            orphans = orphans.delete(output, table.folders)
            failed += orphans.failed
        done = Erasure(rewritten, tuple(sorted(expired)), deleted, metadata_files, orphans, failed)
        table.refresh()
        remaining = list(self._remaining(done, files, earlier))
        if self._rewrite(dry_run=True).rewritten_data_files_count:
            what = "other writers have deleted rows while this ran"
            remaining.append(Remaining("deleted-since", what, "erase again"))
        return replace(done, remaining=tuple(remaining))

    def _plan(self, metadata: Mapping[str, Any]) -> ExpiryPlan:
        return expire_chosen(metadata, earlier_snapshots(metadata, self._branch))

    def _rewritten(self) -> Compacted:
        """Rewrite the data files that have deleted rows. If other writers have changed these files
        meanwhile, try again."""
        for _ in range(_ATTEMPTS - 1):
            try:
                return self._rewrite()
            except ConflictError:
                self._table.refresh()
        return self._rewrite()

    def _rewrite(self, *, dry_run: bool = False) -> Compacted:
        return rewrite_data_files(
            self._table,
            branch=self._branch,
            delete_file_threshold=1,
            min_file_size_bytes=0,
            max_file_size_bytes=1 << 40,
            min_input_files=1 << 31,
            remove_dangling_deletes=True,
            threads=self._threads,
            progress=self._progress,
            dry_run=dry_run,
        )

    def _would(self, view: TableView, plan: ExpiryPlan) -> Erasure:
        rewritten = self._rewrite(dry_run=True)
        ids = list(plan.snapshot_ids)
        is_changed = rewritten != Compacted() or not _forgetting(view).is_empty
        head = view.branch_head_id
        others = {
            ref["snapshot-id"]
            for name, ref in (view.metadata.get("refs") or {}).items()
            if name != self._branch
        }
        if is_changed and head is not None and head not in others:
            ids.append(head)
        earlier, files = self._earlier((), plan.snapshot_ids)
        done = Erasure(rewritten, tuple(ids), files.locations, earlier.locations)
        return replace(done, remaining=tuple(self._remaining(done, files, earlier)))

    def _earlier(
        self, known: Sequence[Mapping[str, Any]], snapshot_ids: tuple[int, ...] = ()
    ) -> tuple[EarlierVersions, ExpiredFiles]:
        def found() -> tuple[EarlierVersions, ExpiredFiles]:
            earlier = EarlierVersions(self._table, known)
            return earlier, earlier.find_files(snapshot_ids)

        return self._table.or_newer(found)

    def _remaining(
        self, done: Erasure, files: ExpiredFiles, earlier: EarlierVersions
    ) -> Iterator[Remaining]:
        """Yield what may still have deleted rows, from the table's present version without the
        snapshots that go."""
        metadata = self._table.version.json
        yield from _refs(metadata, self._branch)
        for snapshot_id, snapshot in by_id(metadata).items():
            if snapshot_id in done.snapshot_ids:
                continue
            if _is_staged(snapshot):
                yield Remaining(
                    "staged-snapshot",
                    f"snapshot {snapshot_id} is staged and not published",
                    "publish it, or expire it with table.expire_snapshots(snapshot_ids=...)",
                )
            if any(name.startswith(_PARTITIONS) for name in snapshot.get("summary") or {}):
                yield Remaining(
                    "partition-values",
                    f"the summary of snapshot {snapshot_id} in metadata.json has values of "
                    "partitions, unencrypted",
                    "append rows, so that a new snapshot replaces it",
                )
        for _, entry in list_statistics(metadata):
            if entry["snapshot-id"] in done.snapshot_ids:
                continue
            is_plain = "" if entry.get("key-id") else "is not encrypted, and "
            yield Remaining(
                "statistics",
                f"the statistics file {entry['statistics-path']} {is_plain}may have been made "
                "before rows were deleted",
                "remove it with table.update_statistics(allow_plaintext=True), and erase with "
                "orphans",
            )
        for location in files.left_behind:
            if _exists(self._table.files, location):
                yield Remaining(
                    "left-behind",
                    f"{location} is not certainly the table's own, or cannot be read",
                    "delete it by hand if nothing else needs it",
                )
        yield from _empty_folders(self._table)
        for location in done.failed:
            yield Remaining("not-deleted", f"{location} could not be deleted", "erase again")
        for location in earlier.unread:
            yield Remaining(
                "metadata-file",
                f"the earlier metadata file {location} cannot be read, or is outside the table's "
                "metadata folder, so it stays",
                "delete it by hand if no other table needs it",
            )
        yield from _unsearched(done.orphans)


class EarlierVersions:
    """The earlier metadata files of a table, and what they name. ``known`` are earlier versions
    that were read before, newest first.

    ``locations`` are those that may be deleted: in the folder of the current metadata file, of this
    table, and older than the current one. ``unread`` are the others that exist.
    """

    def __init__(self, table: TableSession, known: Sequence[Mapping[str, Any]] = ()) -> None:
        self._table = table
        self._metadata = dict(table.version.json)
        self._merged: dict[str, dict[Any, Any]] = {name: {} for name in _NAMES}
        self._seen = {file_identity(table.metadata_location)}
        self.unread: list[str] = []
        for metadata in (self._metadata, *known):
            self._merge(metadata)
        self._recent = frozenset(self._merged["snapshots"])
        self.locations = (*self._logged(), *self._unlogged())

    def find_files(self, snapshot_ids: tuple[int, ...] = ()) -> ExpiredFiles:
        """Return the files that only snapshots of earlier versions need, and those that the current
        version has with these IDs. Raises as ``find_expired_files``."""
        table = self._table
        after = dict(self._metadata)
        for name in ("snapshots", "statistics", "partition-statistics"):
            entries = after.get(name) or ()
            after[name] = [e for e in entries if e["snapshot-id"] not in snapshot_ids]
        before = {**self._metadata, **{n: list(of.values()) for n, of in self._merged.items()}}
        living = by_id(after)
        expired = [
            s for i, s in by_id(before).items() if i not in living and not self._was_deleted(i, s)
        ]
        return find_expired_files(
            table.view_with(before), table.view_with(after), expired, table.folders
        )

    def _was_deleted(self, snapshot_id: int, snapshot: Mapping[str, Any]) -> bool:
        """Return whether an earlier expiry has deleted the snapshot's manifest list."""
        location = snapshot["manifest-list"]
        return (
            snapshot_id not in self._recent
            and self._table.folders.has(location)
            and not _exists(self._table.files, location)
        )

    def _logged(self) -> Iterator[str]:
        """Yield the metadata files in the metadata log, in the logs of these files, and so on, and
        merge them. All of them were committed."""
        waiting = logged_metadata(self._metadata)
        while waiting:
            location = waiting.pop()
            if file_identity(location) in self._seen:
                continue
            self._seen.add(file_identity(location))
            metadata = self._read(location)
            if metadata is not None:
                self._merge(metadata)
                waiting = [*logged_metadata(metadata), *waiting]
                yield location

    def _unlogged(self) -> Iterator[str]:
        """Yield the other earlier metadata files beside the current one.

        A writer may have failed to commit such a file, and be about to commit the files that it
        names in the next one. So these files do not count as expired.
        """
        folder, _, name = self._table.metadata_location.rpartition("/")
        version = version_of_name(name)
        if version is None:
            # It is not known which files are older. A REST server may not say where the file is.
            return
        for location in list_files(self._table.files.inner, folder) or ():
            number = version_of_name(location.rpartition("/")[2])
            is_seen = file_identity(location) in self._seen
            is_older = number is not None and number < version
            if is_older and not is_seen and self._read(location) is not None:
                yield location

    def _read(self, location: str) -> dict[str, Any] | None:
        """Return a metadata file's content; None if it does not exist or is not the table's."""
        table = self._table
        metadata = None
        if table.folders.versions([location]):
            try:
                metadata = read_metadata(table.files.inner, location, Trust())
                # Nothing confirms this file, and what it names is read below.
                parse_metadata(metadata)
                parse_encryption_keys(metadata.get("encryption-keys") or [])
            except FileNotFoundError:
                return None
            except (Ags1Error, OSError):
                metadata = None
        if metadata is None or metadata.get("table-uuid") != self._metadata["table-uuid"]:
            if _exists(table.files, location):
                self.unread.append(location)
            return None
        return metadata

    def _merge(self, metadata: Mapping[str, Any]) -> None:
        """Note the snapshots, keys and statistics that no later version has."""
        for name, merged in self._merged.items():
            for entry in metadata.get(name) or ():
                merged.setdefault(entry[_NAMES[name]], entry)


def _forget_removed_files(table: TableSession, branch: str) -> None:
    transaction = EncryptedTransaction(table)
    transaction.stage_step(RecomputedSnapshotStep(transaction.output, _forgetting, branch))
    transaction.commit_transaction()


def _forgetting(view: TableView) -> FileChange:
    """Return the change after which no manifest of the branch lists removed files."""
    return FileChange(forgets_removed=any(map(lists_removed_files, view.manifests)))


def _delete_in_order(
    files: ExpiredFiles, output: TableOutput, folders: TableFolders
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Delete files before the files that name them. Return those that were deleted, and those that
    could not be; the files that name these stay."""
    deleted: list[str] = []
    for group in (
        (*files.data_files, *files.delete_files),
        files.manifests,
        (*files.manifest_lists, *files.statistics),
    ):
        failed = delete_files(group, output, folders)
        deleted += [location for location in group if location not in failed]
        if failed:
            return tuple(deleted), failed
    return tuple(deleted), ()


def _refs(metadata: Mapping[str, Any], branch: str) -> Iterator[Remaining]:
    refs = metadata.get("refs") or {}
    head = (refs.get(branch) or {}).get("snapshot-id")
    for name, ref in refs.items():
        kind = ref.get("type", "branch")
        if name == branch or ref["snapshot-id"] == head:
            continue
        remedy = f"table.manage_snapshots().remove_{kind}({name!r}).commit()"
        if kind == "branch":
            remedy = f"erase the branch {name!r}, or {remedy}"
        yield Remaining(kind, f"the {kind} {name!r} keeps snapshot {ref['snapshot-id']}", remedy)


def _unsearched(orphans: OrphanFiles | None) -> Iterator[Remaining]:
    """Yield the orphan files that were not searched for, or are too young."""
    if orphans is None:
        yield Remaining(
            "orphans-not-searched",
            "files of writers that failed may have deleted rows, and were not searched for",
            "erase again with remove_orphans=True ('ags1 table erase --orphans')",
        )
        return
    for folder in orphans.not_searched:
        yield Remaining(
            "orphans",
            f"{folder} was not searched: only the metadata, which nothing confirms, says that "
            "it is the table's",
            "use a catalog that confirms the metadata, or look there by hand",
        )
    if orphans.young_files:
        yield Remaining(
            "orphans",
            f"{orphans.young_files} files that nothing needs are too young to be deleted: "
            "a commit may be under way",
            "erase again with orphans when they are older",
        )


def _empty_folders(table: TableSession) -> Iterator[Remaining]:
    """Yield the empty folders of partitions on a local file system. Their names have values. They
    stay, because a writer may be about to create a file in one."""
    location = f"{str(table.version.json['location']).rstrip('/')}/_"
    path = table.files.local_path(location)
    if path is None or not table.folders.has(location):
        return
    empty = [
        folder
        for folder, folders, files in os.walk(os.path.dirname(path))
        if not folders and not files and "=" in os.path.basename(folder)
    ]
    if empty:
        yield Remaining(
            "empty-folder",
            f"{len(empty)} empty folders of partitions have values in their names, such as "
            f"{empty[0]}",
            "delete them while nobody writes to the table",
        )


def _is_staged(snapshot: Mapping[str, Any]) -> bool:
    return _STAGED in (snapshot.get("summary") or {})


def _exists(files: TableFiles, location: str) -> bool:
    try:
        return files.new_input(location).exists()
    except (Ags1Error, OSError):
        return True

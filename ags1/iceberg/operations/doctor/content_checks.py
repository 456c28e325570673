"""The checks of an encrypted table's health that need its keys.

They read manifest lists and manifests, list folders, and open no data file::

    each branch and tag    its live files; what a compaction would rewrite     ``LiveFiles``
    all snapshots          the walk of ``verify``: unencrypted files, keys     ``ManifestChecks``
                           in plaintext manifests, contradictions; deleted
                           rows
    the table's folders    orphan files                                        ``check_orphans``
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime, timezone
from typing import Any, cast

from pyiceberg.exceptions import ValidationException

from ....errors import Ags1Error
from ...commit.session import TableSession
from ...read.records import DATA, EQUALITY_DELETES, ContentFile, read_entries
from ...read.snapshots import EncryptedSnapshot
from ...spec.constants import MAIN_BRANCH
from ...storage.byte_meter import ByteMeter
from ...write.executors import CancellingPool
from ..compact import CompactionPlan, plan_compaction
from ..compact_plan import RewriteOptions
from ..deletion import may_share_files
from ..expire import by_id
from ..orphans import age_limit, find_orphans
from ..rekey import exposed_paths
from ..rewrite import live_entries
from ..verify.checks import CheckKind
from ..verify.file_index import FileIndex
from ..verify.findings import Finding, Findings
from ..verify.progress import ProgressReport
from ..verify.walk import ReadAhead, TableWalk
from .findings import BranchHealth, HealthFinding, LeftOut, Remedy, examples_of, summed
from .metadata_checks import expiring

# What reading the files of a snapshot may raise.
UNREADABLE = (Ags1Error, OSError, ValidationException, ValueError, NotImplementedError)
_THREADS = 16
_PLAINTEXT = ("exposed-keys", "manifest-without-key")
# Operations that remove rows. Files of earlier snapshots may still have these rows.
_DELETING = ("delete", "overwrite")


class LiveFiles:
    """The live files of all branches and tags. ``files`` has those of each branch, and ``hiding``
    each branch's data files with deleted rows, both by path. ``paths`` has those of all branches
    and tags. ``left_out`` names the branches and tags that could not be read."""

    def __init__(self, table: TableSession) -> None:
        self.files: dict[str, dict[str, ContentFile]] = {}
        self.hiding: dict[str, dict[str, ContentFile]] = {}
        self.paths: set[str] = set()
        self.branches: list[BranchHealth] = []
        self.findings: list[HealthFinding] = []
        self.left_out: list[LeftOut] = []
        self._view = table.view().exposed()
        for name, ref in sorted((table.version.json.get("refs") or {}).items()):
            kind = ref.get("type", "branch")
            try:
                if kind == "branch":
                    self._add_branch(name, int(ref["snapshot-id"]))
                else:
                    self._add_tag(int(ref["snapshot-id"]))
            except UNREADABLE as error:
                self.left_out.append(LeftOut(f"the files of the {kind} {name!r}", str(error)))

    def _add_branch(self, name: str, snapshot_id: int) -> None:
        view = self._view.at(name)
        plan = plan_compaction(view, RewriteOptions(remove_dangling_deletes=True))
        files = {entry.file.file_path: entry.file for entry in plan.entries.values()}
        self.files[name] = files
        self.hiding[name] = {
            task.file.file_path: cast("ContentFile", task.file)
            for task in plan.tasks.values()
            if task.delete_files
        }
        self.paths |= files.keys()
        self.branches.append(_branch_health(name, snapshot_id, plan))
        self.findings += _compaction(name, plan)
        self.findings += _plain_data(name, files.values())

    def _add_tag(self, snapshot_id: int) -> None:
        snapshot = self._view.parsed.snapshot_by_id(snapshot_id)
        assert snapshot is not None  # the metadata was checked
        manifests = snapshot.manifests(self._view.files)
        self.paths |= {path for path, _ in live_entries(manifests, self._view.files)}


def _branch_health(name: str, snapshot_id: int, plan: CompactionPlan) -> BranchHealth:
    files = [entry.file for entry in plan.entries.values()]
    data = [file for file in files if file.content == DATA]
    deletes = [file for file in files if file.content != DATA]
    positions = [file for file in deletes if file.content != EQUALITY_DELETES]
    vectors = sum(file.is_deletion_vector for file in positions)
    partitions = Counter((file.spec_id, file.partition_values) for file in data)
    return BranchHealth(
        name=name,
        snapshot_id=snapshot_id,
        data_files=len(data),
        size=sum(file.file_size_in_bytes for file in data),
        small_files=sum(file.file_size_in_bytes < plan.sizes.least for file in data),
        deletion_vectors=vectors,
        position_delete_files=len(positions) - vectors,
        equality_delete_files=len(deletes) - len(positions),
        deleted_rows=sum(file.record_count for file in positions),
        partitions=len(partitions),
        most_files=max(partitions.values(), default=0),
    )


def _compaction(branch: str, plan: CompactionPlan) -> Iterator[HealthFinding]:
    files = [cast("ContentFile", task.file) for group in plan.groups for task in group.tasks]
    if files:
        yield HealthFinding(
            "compaction",
            f"a compaction of the branch {branch!r} would rewrite {len(files)} of "
            f"{len(plan.tasks)} data files into about "
            f"{sum(group.output_files for group in plan.groups)}: they are too small or too large, "
            "or have many deleted rows",
            len(files),
            _size(files),
            examples_of(file.file_path for file in files),
            Remedy("compact", _on(branch)),
        )
    dangling = [entry.file for entry in plan.removed_deletes(())]
    if dangling:
        yield HealthFinding(
            "dangling-deletes",
            f"delete files of the branch {branch!r} apply to no data file any more",
            len(dangling),
            _size(dangling),
            examples_of(file.file_path for file in dangling),
            Remedy("compact", ("--remove-dangling-deletes", *_on(branch))),
        )


def _plain_data(branch: str, files: Iterable[ContentFile]) -> Iterator[HealthFinding]:
    plain = [file for file in files if file.content == DATA and not file.is_encrypted]
    if plain:
        yield HealthFinding(
            "plain-data-file",
            f"data files of the branch {branch!r} are not encrypted",
            len(plain),
            _size(plain),
            examples_of(file.file_path for file in plain),
            Remedy("rekey", ("--unencrypted", *_on(branch))),
        )


class ManifestChecks:
    """The walk through the manifests of all snapshots."""

    def __init__(self, table: TableSession, live: LiveFiles) -> None:
        self._table = table
        self._metadata = table.version.json
        self._live = live
        self._found: tuple[Finding, ...] = ()
        # Data files that no branch and no tag has, by path.
        self._earlier: dict[str, ContentFile] = {}
        # Unencrypted data files that no branch has.
        self._plain: dict[str, ContentFile] = {}

    def run(self) -> Iterator[HealthFinding]:
        """Yield the findings of the manifests. Raises the exceptions in ``KMS_UNUSABLE``."""
        self._walk()
        others = [
            finding
            for finding in self._found
            if finding.kind not in (*_PLAINTEXT, "plain-data-file", "snapshot-without-key")
        ]
        yield from summed(others)
        yield from self._exposed_keys()
        yield from self._earlier_plain_files()
        yield from self._deleted_rows()

    def _walk(self) -> None:
        table, meter = self._table, ByteMeter()
        findings = Findings(table.files.location_map)
        index = FileIndex(table.files, table.metadata.location, findings)
        with CancellingPool(_THREADS, "ags1-doctor", meter.stop) as pool:
            report = ProgressReport(None, meter, None)
            ahead = ReadAhead(pool, _THREADS, report.tick)
            walk = TableWalk(table, index, findings, ahead, report, require_encrypted=False)
            walk.read_manifest_lists()
            for check in walk.checks():
                is_listed = check.kind in (CheckKind.ENCRYPTED, CheckKind.PLAIN)
                if is_listed and check.files[0].content == DATA:
                    self._note(check.location, check.files[0])
        self._found = findings.sorted()

    def _note(self, path: str, file: ContentFile) -> None:
        if path not in self._live.paths:
            self._earlier[path] = file
        if not file.is_encrypted and not any(path in f for f in self._live.files.values()):
            self._plain[path] = file

    def _exposed_keys(self) -> Iterator[HealthFinding]:
        plaintext = [finding for finding in self._found if finding.kind in _PLAINTEXT]
        if not plaintext:
            return
        ids = {snapshot_id for finding in plaintext for snapshot_id in finding.snapshot_ids}
        view = self._table.view().exposed()
        try:
            exposed = exposed_paths(view.parsed.snapshots, view.files)
        except UNREADABLE as error:
            exposed = frozenset()
            yield HealthFinding("metadata", f"it is unknown which keys are exposed: {error}")
        refs = self._metadata.get("refs") or {}
        for branch, files in self._live.files.items():
            in_use = [file for path, file in files.items() if path in exposed]
            if in_use or refs[branch]["snapshot-id"] in ids:
                yield HealthFinding(
                    "exposed-keys",
                    f"plaintext manifests have the keys of files of the branch {branch!r}: "
                    "everybody who can read the manifests can decrypt and forge these files",
                    len(in_use),
                    _size(in_use),
                    examples_of(file.file_path for file in in_use),
                    Remedy("rekey", ("--exposed", *_on(branch))),
                )
        ids -= {ref["snapshot-id"] for ref in refs.values() if _is_branch(ref)}
        if ids:
            yield HealthFinding(
                "exposed-keys-earlier",
                f"{len(ids)} snapshots that are not the head of a branch have plaintext manifests "
                f"with the keys of files{self._tags_at(ids)}",
                len(plaintext),
                examples=examples_of(finding.file for finding in plaintext if finding.file),
                remedy=expiring(self._metadata, ids),
            )

    def _earlier_plain_files(self) -> Iterator[HealthFinding]:
        if not self._plain:
            return
        ids = self._snapshots_with(self._plain)
        yield HealthFinding(
            "plain-data-file-earlier",
            f"{len(ids)} snapshots that are not the head of a branch have data files that are not "
            f"encrypted{self._tags_at(ids)}",
            len(self._plain),
            _size(self._plain.values()),
            examples_of(self._plain),
            expiring(self._metadata, ids),
        )

    def _snapshots_with(self, paths: Collection[str]) -> set[int]:
        """Return the IDs of the snapshots that have at least one of the files."""
        ids, view = set(), self._table.view().exposed()
        for snapshot in view.parsed.snapshots:
            try:
                manifests = cast("EncryptedSnapshot", snapshot).manifests(view.files)
                entries = (e for manifest in manifests for e in read_entries(manifest, view.files))
                if any(entry.file.file_path in paths for entry in entries):
                    ids.add(snapshot.snapshot_id)
            except UNREADABLE:
                continue  # the walk has reported it
        return ids

    def _deleted_rows(self) -> Iterator[HealthFinding]:
        hiding = self._live.hiding
        deletes = any(hiding.values()) or any(map(_deletes_rows, by_id(self._metadata).values()))
        for branch in sorted({MAIN_BRANCH, *hiding}):
            hidden = hiding.get(branch, {})
            earlier = self._earlier if deletes and branch == MAIN_BRANCH else {}
            files = {**hidden, **earlier}
            if not files:
                continue
            parts = []
            if hidden:
                parts.append(f"{len(hidden)} data files of {branch!r} have deleted rows")
            if earlier:
                parts.append(f"{len(earlier)} data files of earlier snapshots may have them")
            yield HealthFinding(
                "deleted-rows",
                f"deleted rows can still be read: {' and '.join(parts)}",
                len(files),
                _size(files.values()),
                examples_of(files),
                self._unless_shared(Remedy("erase", _on(branch))),
            )

    def _unless_shared(self, remedy: Remedy) -> Remedy | None:
        return None if may_share_files(self._metadata.get("properties")) else remedy

    def _tags_at(self, ids: Collection[int]) -> str:
        tags = [
            name
            for name, ref in (self._metadata.get("refs") or {}).items()
            if ref["snapshot-id"] in ids and not _is_branch(ref)
        ]
        return f"; remove the tags {', '.join(tags)} first" if tags else ""


def check_orphans(table: TableSession) -> Iterator[HealthFinding]:
    """Yield a finding if the table has orphan files. Raises what ``find_orphans`` raises."""
    limit = age_limit(None)
    orphans = find_orphans(table, limit)
    if orphans.files:
        before = datetime.fromtimestamp(limit / 1000, timezone.utc).isoformat(timespec="seconds")
        yield HealthFinding(
            "orphan-file",
            f"nothing needs these files, which were last changed before {before} (three days ago); "
            f"{orphans.young_files} younger files are not counted",
            len(orphans.files),
            orphans.size,
            examples_of(orphans.orphan_file_locations),
            Remedy("remove-orphans"),
        )


def _deletes_rows(snapshot: Mapping[str, Any]) -> bool:
    operation = (snapshot.get("summary") or {}).get("operation")
    return operation is None or operation in _DELETING


def _is_branch(ref: Mapping[str, Any]) -> bool:
    return bool(ref.get("type", "branch") == "branch")


def _size(files: Iterable[ContentFile]) -> int:
    return sum(file.file_size_in_bytes for file in files)


def _on(branch: str) -> tuple[str, ...]:
    return () if branch == MAIN_BRANCH else ("--branch", branch)

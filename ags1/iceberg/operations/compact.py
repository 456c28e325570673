"""``Compaction`` rewrites many small data files of a table into few of the target size.

Deleted rows are not written again, and the deletion vectors of the rewritten files are removed. All
other rows stay, with their IDs and the sequence numbers of their last change. For example, with
three files and two merges; S is the snapshot that the plan is made for::

    in S                     data files a, b, c     deletion vector of b      equality delete e
    planned                  merge 0: a and b without its deleted rows; merge 1: c; e applied
    ---- the merges are carried out: minutes, in which others commit to the table --------------
    committed as "replace"   removed a, b, c and b's vector; added ab, c'  with S's sequence number

    others have meanwhile
      added files            they stay as they are
      added equality delete  its sequence number is greater than S's, so it applies to ab and c'
      deleted rows of b, or
      removed a              ConflictError: nothing is committed, and the new files are deleted

``docs/design/0005-sequence-numbers.md`` says why the new files have the number of S.
``compact_plan`` decides what is merged, and ``write/merging.py`` merges. With partial progress,
each part of the groups is committed on its own. If a run is killed, what it has committed stays;
its other files belong to no snapshot, and the next run does the rest. This follows Java's
``RewriteDataFilesCommitManager`` and the Iceberg specification, "Row Lineage" and "Snapshots".
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import cast

from pyiceberg.exceptions import CommitStateUnknownException
from pyiceberg.expressions import BooleanExpression
from pyiceberg.table import ALWAYS_TRUE, FileScanTask

from ...errors import KMS_UNUSABLE, MetadataIntegrityError
from ..commit.session import TableSession
from ..pyiceberg.expressions import parse_row_filter
from ..read.records import ADDED, DATA, ContentFile, ManifestEntry
from ..read.snapshots import EncryptedSnapshot
from ..spec.constants import MAIN_BRANCH
from ..steps import SnapshotStep
from ..storage.output import TableOutput
from ..storage.table_files import ManifestCache
from ..transaction import EncryptedTransaction
from ..write.conflicts import ConflictError, find_rewrite_conflict
from ..write.executors import Identity, RewriteThreads
from ..write.history import changes_since
from ..write.merging import Merge, OnRead
from ..write.snapshot import FileChange, check_definitions
from ..write.view import TableView
from .compact_plan import FileGroup, RewriteOptions, Sizes, default_target, plan_groups
from .meter import Meter
from .rewrite import identity, live_entries, plan_tasks

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Compacted:
    """The result of a compaction. The names are those of Java's procedure ``rewrite_data_files``.

    ``rewritten_bytes_count`` is the stored size of the rewritten files.
    ``failed_data_files_count`` are files whose part of a partial progress was not committed.
    """

    rewritten_data_files_count: int = 0
    added_data_files_count: int = 0
    rewritten_bytes_count: int = 0
    removed_delete_files_count: int = 0
    failed_data_files_count: int = 0

    def __add__(self, other: Compacted) -> Compacted:
        """Return the sums of the fields, for a compaction in several commits."""
        return Compacted(*map(sum, zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """What to rewrite of the snapshot ``start``; None if the table is empty.

    ``entries`` and ``tasks`` are its live files and its data files with the deletes that apply.
    """

    start: EncryptedSnapshot | None
    entries: Mapping[Identity, ManifestEntry]
    tasks: Mapping[Identity, FileScanTask]
    groups: Sequence[FileGroup]
    sizes: Sizes
    spec_id: int
    removes_dangling_deletes: bool

    @property
    def size(self) -> int:
        """The number of stored bytes to read."""
        return sum(group.size for group in self.groups)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to change."""
        return not (self.groups or self.removed_deletes(self.groups))

    def batches(self, commits: int) -> Iterator[Sequence[FileGroup]]:
        """Yield the groups of each commit; there are at most ``commits``, and at least one."""
        count = max(1, -(-len(self.groups) // commits))
        yield from (self.groups[i : i + count] for i in range(0, max(1, len(self.groups)), count))

    def removed_deletes(
        self, groups: Iterable[FileGroup], removed: Collection[Identity] = ()
    ) -> list[ManifestEntry]:
        """Return the delete files that are removed with the data files of ``groups``: the deletion
        vectors of these and, if that is asked for, the deletes that apply to no other data file.
        ``removed`` are files that earlier commits have removed."""
        gone = {identity(task.file) for group in groups for task in group.tasks} | set(removed)
        paths = {path for path, _ in gone}
        needed: set[ContentFile] = set()
        if self.removes_dangling_deletes:
            for name, task in self.tasks.items():
                if name not in gone:
                    needed |= cast("set[ContentFile]", task.delete_files)

        def is_dangling(file: ContentFile) -> bool:
            if file.is_deletion_vector and file.referenced_data_file in paths:
                return True
            return self.removes_dangling_deletes and file not in needed

        return [
            entry
            for name, entry in self.entries.items()
            if entry.file.content != DATA and name not in removed and is_dangling(entry.file)
        ]

    def expected(self) -> Compacted:
        """Return the result of carrying out the plan. The number of new files is an estimate."""
        return Compacted(
            rewritten_data_files_count=sum(len(group.tasks) for group in self.groups),
            added_data_files_count=sum(group.output_files for group in self.groups),
            rewritten_bytes_count=self.size,
            removed_delete_files_count=len(self.removed_deletes(self.groups)),
        )


def plan_compaction(
    view: TableView,
    options: RewriteOptions,
    row_filter: BooleanExpression = ALWAYS_TRUE,
    *,
    case_sensitive: bool = True,
) -> CompactionPlan:
    """Return what to rewrite in the view's snapshot, of the data files that may have a row for
    which ``row_filter`` (unbound) is true. Writes nothing, and reads no data file.

    Raises ValueError for sizes that contradict each other, for a branch that does not exist and for
    a column that the table does not have, ValidationException if the table has a file twice, and
    what planning a scan raises.
    """
    if view.snapshot is not None and view.branch is not None and view.branch_head_id is None:
        raise ValueError(f"the table has no branch {view.branch!r}, whose files could be rewritten")
    sizes = Sizes.of(options, default_target(view.properties))
    manifests, files = view.manifests, view.files
    entries = live_entries(manifests, files)
    tasks = {identity(t.file): t for t in plan_tasks(manifests, files, view.parsed)}
    chosen: Iterable[FileScanTask] = tasks.values()
    if row_filter != ALWAYS_TRUE:
        matching = plan_tasks(
            manifests, files, view.parsed, row_filter, case_sensitive=case_sensitive
        )
        chosen = [tasks[identity(task.file)] for task in matching]
    return CompactionPlan(
        start=view.snapshot,
        entries=entries,
        tasks=tasks,
        groups=plan_groups(chosen, options, sizes, view.spec),
        sizes=sizes,
        spec_id=view.spec.spec_id,
        removes_dangling_deletes=options.remove_dangling_deletes,
    )


class Compaction:
    """Carries out the groups of one commit. ``removed`` are the files that earlier commits of the
    same plan have removed. ``done`` is the result, once there is one, and ``removes`` are the files
    that this commit removes."""

    def __init__(
        self,
        plan: CompactionPlan,
        groups: Sequence[FileGroup],
        output: TableOutput,
        threads: RewriteThreads,
        on_read: OnRead,
        *,
        removed: Collection[Identity] = (),
    ) -> None:
        self.done = Compacted()
        self._plan = plan
        self._groups = groups
        self._output = output
        self._threads = threads
        self._on_read = on_read
        self._rewritten = [
            plan.entries[identity(task.file)] for group in groups for task in group.tasks
        ]
        self._deletes = plan.removed_deletes(groups, removed)
        self._new: list[ContentFile] = []

    @property
    def removes(self) -> frozenset[Identity]:
        """The data and delete files that this commit removes."""
        return frozenset(e.file.identity for e in (*self._rewritten, *self._deletes))

    def change(self, view: TableView) -> FileChange:
        """Carry out the merges; return the change to commit upon ``view``.

        Raises ConflictError as ``recheck``, MetadataIntegrityError if the new files have another
        number of rows than the old ones, and what ``RewriteThreads.merge`` raises.
        """
        self.recheck(view)
        files: dict[int, list[ContentFile]] = {}

        def note(merge: Merge, new: list[ContentFile]) -> None:
            files[merge.number] = new

        merges = [merge for group in self._groups for merge in group.merges]
        if merges:
            largest = self._plan.sizes.largest_output
            self._threads.merge(merges, view, self._output, largest, note, self._on_read)
        for group in self._groups:
            _check_rows(group, [file for merge in group.merges for file in files[merge.number]])
        self._new = [file for merge in merges for file in files[merge.number]]
        self.done = Compacted(
            rewritten_data_files_count=len(self._rewritten),
            added_data_files_count=len(self._new),
            rewritten_bytes_count=sum(e.file.file_size_in_bytes for e in self._rewritten),
            removed_delete_files_count=len(self._deletes),
        )
        # Deletes up to the start are applied. Later equality deletes apply to the new files too.
        start = self._plan.start
        number = None if start is None else start.sequence_number
        return FileChange(
            replaced=[ManifestEntry(ADDED, None, number, None, file) for file in self._new],
            removed=[*self._rewritten, *self._deletes],
            keeps_rows=True,
        )

    def recheck(self, view: TableView) -> None:
        """Raise ConflictError if others have removed a file that is rewritten, have deleted rows
        of it, or have removed the partition spec or sort order of new files."""
        check_definitions(view, self._new)
        if not self._new and view.spec.spec_id != self._plan.spec_id:
            raise ConflictError(
                "the table has another partition spec than when the rewrite was planned: nothing "
                "was committed. Repeat the operation"
            )
        if view.snapshot == self._plan.start or not self._rewritten:
            return
        conflict = find_rewrite_conflict(
            self._rewritten,
            changes_since(self._plan.start, view),
            view.specs,
            self._plan.spec_id,
        )
        if conflict is not None:
            raise ConflictError(conflict)


def _check_rows(group: FileGroup, new: Sequence[ContentFile]) -> None:
    """Raise MetadataIntegrityError if the new files of a group cannot have the rows of the old
    ones. With equality deletes, only the greatest number of rows is known."""
    before = sum(task.file.record_count for task in group.tasks)
    deletes = set(itertools.chain.from_iterable(task.delete_files for task in group.tasks))
    vectors = [d for d in cast("set[ContentFile]", deletes) if d.is_deletion_vector]
    most = before - sum(vector.record_count for vector in vectors)
    after = sum(file.record_count for file in new)
    if after > most or (after < most and len(vectors) == len(deletes)):
        raise MetadataIntegrityError(
            f"the files have {most} rows according to their manifest entries, but {after} were "
            "read: nothing was committed. Verify the table",
            file=group.tasks[0].file.file_path,
        )


def rewrite_data_files(
    table: TableSession,
    row_filter: str | BooleanExpression = ALWAYS_TRUE,
    *,
    target_file_size_bytes: int | None = None,
    min_file_size_bytes: int | None = None,
    max_file_size_bytes: int | None = None,
    min_input_files: int = 5,
    delete_file_threshold: int | None = None,
    delete_ratio_threshold: float = 0.3,
    rewrite_all: bool = False,
    max_file_group_size_bytes: int = 100 << 30,
    remove_dangling_deletes: bool = False,
    partial_progress: bool = False,
    partial_progress_max_commits: int = 10,
    case_sensitive: bool = True,
    branch: str | None = MAIN_BRANCH,
    threads: int | None = None,
    dry_run: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Compacted:
    """Rewrite small data files, and files with many deleted rows, into files of the target
    size; return the counts. By default, the target is the table's
    ``write.target-file-size-bytes``. The strategy is Java's bin-packing.

    Only data files that may have a row for which ``row_filter`` is true are rewritten. The
    options down to ``remove_dangling_deletes`` are as in ``RewriteOptions``, which says what
    each does. Rows, row IDs and the sequence numbers of their last change stay the same, and
    deleted rows are not written again. Rows keep the order in which they were added. In a
    sorted table, as many rows as fit into memory are sorted at once. Unencrypted files become
    encrypted, and each new file has a fresh key. Earlier snapshots keep the old files until
    ``expire_snapshots`` removes them.

    All is committed at once. With ``partial_progress``, it is committed in up to
    ``partial_progress_max_commits`` parts; a part that fails is left out and logged, and the
    others go on. ``threads`` files are written at once. ``progress`` is called with two numbers
    of bytes: those that were read, and those of all files to rewrite.

    Raises ValueError for an impossible option or a column that the table does not have;
    ValidationException if another writer has meanwhile removed a rewritten file or deleted rows
    of it; NotImplementedError or UnsupportedTypeError for a column that cannot be rewritten;
    and what reading and writing raises. With ``partial_progress``, it raises only if no part
    was committed.

    There are more than eight parameters: each is an option of Java's procedure or of ``rekey``.
    """
    options = RewriteOptions(
        target_file_size_bytes=target_file_size_bytes,
        min_file_size_bytes=min_file_size_bytes,
        max_file_size_bytes=max_file_size_bytes,
        min_input_files=min_input_files,
        delete_file_threshold=delete_file_threshold,
        delete_ratio_threshold=delete_ratio_threshold,
        rewrite_all=rewrite_all,
        max_file_group_size_bytes=max_file_group_size_bytes,
        remove_dangling_deletes=remove_dangling_deletes,
    )
    if partial_progress_max_commits < 1:
        raise ValueError(
            f"partial_progress_max_commits is {partial_progress_max_commits}: it must be at least 1"
        )
    expression = parse_row_filter(row_filter)
    table.output()  # raises if the table cannot be written to
    at_once = RewriteThreads(threads)
    cache = ManifestCache()

    def planned() -> CompactionPlan:
        view = table.view().at(branch)
        view.files.manifest_cache = cache
        return plan_compaction(view, options, expression, case_sensitive=case_sensitive)

    plan = table.or_newer(planned)
    if dry_run or plan.is_empty:
        return plan.expected()
    meter = Meter(progress)
    meter.total = plan.size
    if not partial_progress:
        return _compact(table, plan, plan.groups, at_once, meter, branch, cache=cache).done
    return _compact_in_parts(
        table, plan, partial_progress_max_commits, at_once, meter, branch, cache
    )


def _compact(
    table: TableSession,
    plan: CompactionPlan,
    groups: Sequence[FileGroup],
    threads: RewriteThreads,
    meter: Meter,
    branch: str | None,
    removed: Collection[Identity] = (),
    *,
    cache: ManifestCache,
) -> Compaction:
    """Rewrite groups of a compaction and commit them. ``cache`` has the manifests of the plan."""
    transaction = EncryptedTransaction(table, manifest_cache=cache)
    compaction = Compaction(plan, groups, transaction.output, threads, meter.add, removed=removed)
    step = SnapshotStep(
        transaction.output, compaction.change, {}, branch, recheck=compaction.recheck
    )
    transaction.stage_step(step)
    transaction.commit_transaction()
    return compaction


def _compact_in_parts(
    table: TableSession,
    plan: CompactionPlan,
    commits: int,
    threads: RewriteThreads,
    meter: Meter,
    branch: str | None,
    cache: ManifestCache,
) -> Compacted:
    """Rewrite the groups of a compaction in several commits. If no part was committed, raises
    what the last one has raised."""
    result = Compacted()
    removed: frozenset[Identity] = frozenset()
    failure: Exception | None = None
    for groups in plan.batches(commits):
        try:
            part = _compact(table, plan, groups, threads, meter, branch, removed, cache=cache)
        except (CommitStateUnknownException, *KMS_UNUSABLE):
            raise
        except Exception as error:
            failure = error
            files = sum(len(group.tasks) for group in groups)
            _log.warning("%d files were not rewritten: %s", files, error)
            result += Compacted(failed_data_files_count=files)
        else:
            result += part.done
            removed |= part.removes
    if failure is not None and not removed:
        raise failure
    return result

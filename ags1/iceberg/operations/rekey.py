"""``Rekeying`` rewrites chosen files of a table with fresh keys.

Rows, row IDs and sequence numbers stay the same. An encrypted table may have unencrypted files;
rewriting encrypts them. A plaintext manifest exposes the keys of the files that it lists;
``exposed_paths`` finds those files. From the call down to a file::

    rekey                      plans once for its result; commits, and tries again after conflicts
      Rekeying.change          for each attempt: which files, and which delete files with them
        Rewriter.apply         each file once, however many attempts; then the deletion vectors
          RewriteExecutor      files side by side: ``RewriteThreads``, or Spark's executors
            rewrite_file       one file: read, encrypt under a fresh key, read again and compare

The result is one ``replace`` snapshot. This follows the Iceberg specification, "Row Lineage".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import cast

from pyiceberg.expressions import BooleanExpression
from pyiceberg.schema import Schema
from pyiceberg.table import ALWAYS_TRUE
from pyiceberg.table.snapshots import Snapshot

from ...errors import MetadataIntegrityError
from ..commit.session import TableSession
from ..pyiceberg.expressions import parse_row_filter
from ..read.binding import NO_ROW
from ..read.records import ContentFile, read_entries
from ..read.snapshots import EncryptedManifest
from ..read.tasks import TaskReader
from ..spec.constants import MAIN_BRANCH
from ..steps import RecomputedSnapshotStep
from ..storage.table_files import TableFiles
from ..storage.workers import workers
from ..transaction import EncryptedTransaction
from ..write.executors import Identity, RewriteExecutor, RewriteThreads
from ..write.snapshot import FileChange
from ..write.view import TableView
from .meter import Meter
from .rewrite import (
    Contents,
    RewritePlan,
    Rewriter,
    identity,
    plan_rewrite,
    plan_tasks,
    read_snapshot,
)


@dataclass(frozen=True, slots=True)
class Choice:
    """Which files of a snapshot to rekey; by default all.

    ``select`` returns whether a file is chosen. ``row_filter`` is unbound. If it is given, only
    data files are chosen that may have a row for which it is true. A chosen position delete file
    becomes deletion vectors. If ``exposed`` is true, only files are chosen whose keys are in a
    plaintext manifest of any snapshot, and the plaintext manifests of the branch's head are
    encrypted.
    """

    select: Callable[[ContentFile], bool] | None = None
    row_filter: BooleanExpression = ALWAYS_TRUE
    case_sensitive: bool = True
    exposed: bool = False


class Rekeying:
    """Rewrites files with fresh keys, for one snapshot and all attempts to commit it. The first
    attempt chooses the files. Later attempts do not rewrite them again, but apply the deletes that
    the table has by then."""

    def __init__(self, rewriter: Rewriter, choice: Choice) -> None:
        self._rewriter = rewriter
        self._choice = choice
        self._chosen: frozenset[Identity] | None = None

    def plan(self, view: TableView) -> RewritePlan:
        """Return the files to rewrite in the view's snapshot. Writes nothing. Raises ValueError if
        the filter names a column that the table does not have, and what planning a scan and reading
        delete files raises."""
        return self._planned(view)[1]

    def change(self, view: TableView) -> FileChange:
        """Rewrite the chosen files that are not rewritten yet; return the change to commit upon
        ``view``. Raises as ``plan`` and ``Rewriter.apply``."""
        self._chosen, plan = self._planned(view)
        added, vectors = self._rewriter.apply(plan, view.files, view.locations)
        return FileChange(
            replaced=[*added, *vectors],
            removed=[*plan.files, *plan.superseded],
            reseals=self.plaintext_manifests(view) > 0,
        )

    def plaintext_manifests(self, view: TableView) -> int:
        """Return how many plaintext manifests of the view's snapshot will be encrypted."""
        if not self._choice.exposed:
            return 0
        return sum(manifest.is_plaintext for manifest in view.exposed().manifests)

    def _planned(self, view: TableView) -> tuple[frozenset[Identity], RewritePlan]:
        # These files do not refuse unencrypted data files, because rekeying encrypts them.
        files = TableFiles(
            view.files.inner,
            view.manager,
            location_map=view.files.location_map,
            reads_exposed=self._choice.exposed,
            manifest_cache=view.files.manifest_cache,
        )
        view = view.exposed() if self._choice.exposed else view
        reader = TaskReader(files, view.parsed, Schema(), NO_ROW)
        contents = read_snapshot(view.manifests, files, view.parsed, reader)
        chosen = self._chosen
        if chosen is None:
            chosen = frozenset(self._choose(view, files, contents))
        return chosen, plan_rewrite(contents, chosen & contents.entries.keys())

    def _choose(self, view: TableView, files: TableFiles, contents: Contents) -> Iterator[Identity]:
        choice = self._choice
        wanted: Collection[Identity] = contents.entries.keys()
        if choice.row_filter != ALWAYS_TRUE:
            tasks = plan_tasks(
                view.manifests,
                files,
                view.parsed,
                choice.row_filter,
                case_sensitive=choice.case_sensitive,
            )
            wanted = {identity(task.file) for task in tasks}
        paths = exposed_paths(view.parsed.snapshots, files) if choice.exposed else None
        for name in wanted:
            if (paths is None or name[0] in paths) and (
                choice.select is None or choice.select(contents.entries[name].file)
            ):
                yield name


def exposed_paths(snapshots: Iterable[Snapshot], files: TableFiles) -> frozenset[str]:
    """Return the paths of the encrypted files whose keys are in a plaintext manifest of the
    snapshots. ``files`` must be able to read such manifests.

    Raises MetadataIntegrityError if an encrypted manifest contradicts a plaintext one about such a
    file: everybody who can write to the storage can change a plaintext manifest. Raises what
    reading the manifests of any of the snapshots raises: then it is unknown what is exposed.
    """
    manifests = {m.manifest_path: m for s in snapshots for m in s.manifests(files)}
    all_manifests = [cast("EncryptedManifest", manifest) for manifest in manifests.values()]
    plaintext = [manifest for manifest in all_manifests if manifest.is_plaintext]
    if not plaintext:
        return frozenset()
    pool = workers(files, plaintext[0].manifest_path)

    def listed(manifest: EncryptedManifest) -> list[ContentFile]:
        return [e.file for e in read_entries(manifest, files, discard_deleted=False)]

    exposed = {
        file.identity: file
        for records in pool.map(listed, plaintext)
        for file in records
        if file.is_encrypted
    }

    def check(manifest: EncryptedManifest) -> None:
        for file in listed(manifest):
            other = exposed.get(file.identity)
            if other is not None and _protected_values(other) != _protected_values(file):
                raise MetadataIntegrityError(
                    "a plaintext manifest has another key, size or number of rows for this file "
                    "than an encrypted manifest: it was changed. Restore the plaintext manifest "
                    "from a backup",
                    file=file.file_path,
                )

    for _ in pool.map(check, [m for m in all_manifests if not m.is_plaintext]):
        pass
    return frozenset(path for path, _ in exposed)


def _protected_values(file: ContentFile) -> tuple[object, ...]:
    """Return the values of a file's entry that nobody may have changed."""
    key_metadata = file.key
    key = None if key_metadata is None else (key_metadata.encryption_key, key_metadata.aad_prefix)
    return key, file.content, file.file_size_in_bytes, file.record_count, file.referenced_data_file


@dataclass(frozen=True, slots=True)
class Rekeyed:
    """The result of ``rekey``: the number of files that now have fresh keys, their size (bytes),
    and the number of plaintext manifests that are now encrypted."""

    files: int
    size: int
    manifests: int = 0


def rekey(
    table: TableSession,
    row_filter: str | BooleanExpression = ALWAYS_TRUE,
    *,
    select: Callable[[ContentFile], bool] | None = None,
    case_sensitive: bool = True,
    branch: str | None = MAIN_BRANCH,
    exposed: bool = False,
    threads: int | None = None,
    dry_run: bool = False,
    progress: Callable[[int, int], None] | None = None,
    executor: RewriteExecutor | None = None,
) -> Rekeyed:
    """Rewrite files with fresh keys, in one snapshot; return their number and size.

    A data file is chosen if it may have a row for which ``row_filter`` is true, and if
    ``select`` returns true for it. ``select`` gets a ``ContentFile``. Its ``key_metadata`` is
    always None; ``is_encrypted`` says whether the file has a key, and ``lambda file: not
    file.is_encrypted`` chooses the unencrypted files. It may be called several times for
    the same file, and must not change the file. Without a filter, delete files can be
    chosen too. Rows and their order, row IDs and sequence numbers stay the same. Unencrypted
    files become encrypted. Earlier snapshots keep the old files until ``expire_snapshots``
    removes them. ``progress`` is called with two numbers of bytes: those of the
    finished files, and those of all files. ``threads`` files are rewritten at once, or
    ``executor`` rewrites them.

    If ``exposed`` is true, only those files are rewritten whose keys are in a plaintext
    manifest of any snapshot, and the branch's plaintext manifests are encrypted.
    ``rewrite_manifests`` of Iceberg before 1.12 writes plaintext manifests. Until they are
    encrypted, their snapshot cannot be read. What they list is compared with the counts in the
    manifest list and with all encrypted manifests. But it cannot be detected whether somebody
    with the exposed keys has forged files meanwhile. Expire the earlier snapshots afterwards:
    they still have the old files and the plaintext manifests.

    Raises ValueError for a column that the table does not have, ValidationException if another
    writer removed a chosen file meanwhile, and what reading and writing raises.
    """
    expression = parse_row_filter(row_filter)
    transaction = EncryptedTransaction(table)
    meter = Meter(progress)
    rewriter = Rewriter(transaction.output, executor or RewriteThreads(threads), meter.done)
    rekeying = Rekeying(rewriter, Choice(select, expression, case_sensitive, exposed))

    def planned() -> tuple[RewritePlan, int]:
        view = table.view().at(branch)
        return rekeying.plan(view), rekeying.plaintext_manifests(view)

    plan, manifests = table.or_newer(planned)
    meter.total = plan.size
    done = Rekeyed(len(plan.files), plan.size, manifests)
    if dry_run or (plan.is_empty and not done.manifests):
        return done
    # What other writers removed stays removed, and their new deletes are applied.
    step = RecomputedSnapshotStep(transaction.output, rekeying.change, branch)
    transaction.stage_step(step)
    transaction.commit_transaction()
    return done

"""``Rekeying`` rewrites chosen files of a table with fresh keys.

Rows, row IDs and sequence numbers stay the same. An encrypted table may have unencrypted files;
rewriting encrypts them. A plaintext manifest exposes the keys of the files that it lists;
``exposed_paths`` finds those files. ``rewrite`` decides which delete files change as well. The
result is one ``replace`` snapshot. This follows the Iceberg specification, "Row Lineage". It does
not commit.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import cast

from pyiceberg.expressions import AlwaysFalse, AlwaysTrue, BooleanExpression
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.utils.concurrent import ExecutorFactory

from ...errors import MetadataIntegrityError
from ..read.records import FileRecord, read_entries
from ..read.snapshots import EncryptedManifest
from ..read.tasks import TaskReader
from ..storage.output import TableOutput
from ..storage.table_files import TableFiles
from ..write.reencryption import Done, FileRewriter, Identity, RewriteExecutor
from ..write.snapshot import FileChange
from ..write.view import TableView
from .rewrite import (
    Contents,
    RewritePlan,
    identity,
    plan_rewrite,
    plan_tasks,
    read_snapshot,
    write_vectors,
)


class Rekeying:
    """Rewrites files with fresh keys, for one snapshot and all attempts to commit it.

    ``select`` returns whether a file is chosen; None chooses all. ``row_filter`` is unbound. If it
    is given, only data files are chosen that may have a row for which it is true. A chosen position
    delete file becomes deletion vectors. If ``exposed`` is true, only files are chosen whose keys
    are in a plaintext manifest of any snapshot, and the plaintext manifests of the branch's head
    are encrypted. ``threads`` files are rewritten at once, or ``executor`` rewrites them.
    ``on_done`` is called after each file with its old and new record.

    The first attempt chooses the files. Later attempts do not rewrite them again, but apply the
    deletes that the table has by then.
    """

    def __init__(
        self,
        output: TableOutput,
        *,
        select: Callable[[FileRecord], bool] | None = None,
        row_filter: BooleanExpression | None = None,
        case_sensitive: bool = True,
        exposed: bool = False,
        threads: int | None = None,
        on_done: Done | None = None,
        executor: RewriteExecutor | None = None,
    ) -> None:
        self._output = output
        self._select = select
        self._row_filter = None if row_filter == AlwaysTrue() else row_filter
        self._case_sensitive = case_sensitive
        self._exposed = exposed
        self._rewriter = FileRewriter(output, threads=threads, on_done=on_done, executor=executor)
        self._chosen: frozenset[Identity] | None = None
        self._used: set[str] = set()
        self._vector_files: set[str] = set()

    def plan(self, view: TableView) -> RewritePlan:
        """Return the files to rewrite in the view's snapshot. Writes nothing.

        Raises ValueError if the filter names a column that the table does not have, and what
        planning a scan and reading delete files raises.
        """
        return self._planned(view)[1]

    def change(self, view: TableView) -> FileChange:
        """Rewrite the chosen files that are not rewritten yet; return the change to commit upon
        ``view``. Raises as ``plan`` and ``FileRewriter.rewrite``."""
        self._chosen, plan = self._planned(view)
        locations = view.locations
        files = [entry.file for entry in plan.files]
        self._rewriter.rewrite(files, view.files, locations)
        added = [self._rewriter.entry(entry) for entry in plan.files]
        moved = {old.identity: new.file for old, new in zip(files, added, strict=True)}
        vectors = write_vectors(plan.vectors, moved, self._output, locations, view.manager)
        self._vector_files.update(entry.file.file_path for entry in vectors)
        self._used = {entry.file.file_path for entry in (*added, *vectors)}
        return FileChange(
            replaced=[*added, *vectors],
            removed=[*plan.files, *plan.superseded],
            reseals=self.plaintext_manifests(view) > 0,
        )

    def plaintext_manifests(self, view: TableView) -> int:
        """Return how many plaintext manifests of the view's snapshot will be encrypted."""
        if not self._exposed:
            return 0
        return sum(manifest.is_plaintext for manifest in view.exposed().manifests)

    @property
    def left_over(self) -> list[str]:
        """Written files that the last change does not use."""
        written = {file.file_path for file in self._rewriter.rewritten.values()}
        return sorted((written | self._vector_files) - self._used)

    def _planned(self, view: TableView) -> tuple[frozenset[Identity], RewritePlan]:
        # These files do not refuse unencrypted data files, because rekeying encrypts them.
        files = TableFiles(
            view.files.inner,
            view.manager,
            location_map=view.files.location_map,
            reads_exposed=self._exposed,
            decoded=view.files.decoded,
        )
        view = view.exposed() if self._exposed else view
        reader = TaskReader(files, view.parsed, Schema(), AlwaysFalse())
        contents = read_snapshot(view.manifests, files, view.parsed, reader)
        chosen = self._chosen
        if chosen is None:
            chosen = frozenset(self._choose(view, files, contents))
        return chosen, plan_rewrite(contents, chosen & contents.entries.keys())

    def _choose(self, view: TableView, files: TableFiles, contents: Contents) -> Iterator[Identity]:
        wanted: Collection[Identity] = contents.entries.keys()
        if self._row_filter is not None:
            tasks = plan_tasks(
                view.manifests,
                files,
                view.parsed,
                self._row_filter,
                case_sensitive=self._case_sensitive,
            )
            wanted = {identity(task.file) for task in tasks}
        paths = exposed_paths(view.parsed.snapshots, files) if self._exposed else None
        for name in wanted:
            is_wanted = paths is None or name[0] in paths
            if is_wanted and (self._select is None or self._select(contents.entries[name].file)):
                yield name


def exposed_paths(snapshots: Iterable[Snapshot], files: TableFiles) -> frozenset[str]:
    """Return the paths of the encrypted files whose keys are in a plaintext manifest of the
    snapshots. ``files`` must be able to read such manifests.

    Raises MetadataIntegrityError if an encrypted manifest contradicts a plaintext one about such a
    file: everybody who can write to the storage can change a plaintext manifest. Raises what
    reading the manifests of any of the snapshots raises: then it is unknown what is exposed.
    """
    manifests = {m.manifest_path: m for s in snapshots for m in s.manifests(files)}
    found = [cast("EncryptedManifest", manifest) for manifest in manifests.values()]
    plaintext = [manifest for manifest in found if manifest.is_plaintext]
    if not plaintext:
        return frozenset()
    pool = ExecutorFactory.get_or_create()

    def listed(manifest: EncryptedManifest) -> list[FileRecord]:
        return [e.file for e in read_entries(manifest, files, discard_deleted=False)]

    exposed = {
        file.identity: file
        for records in pool.map(listed, plaintext)
        for file in records
        if file.key_metadata is not None
    }

    def check(manifest: EncryptedManifest) -> None:
        for file in listed(manifest):
            other = exposed.get(file.identity)
            if other is not None and _essence(other) != _essence(file):
                raise MetadataIntegrityError(
                    "a plaintext manifest has another key, size or number of rows for this file "
                    "than an encrypted manifest: it was changed. Restore the plaintext manifest "
                    "from a backup",
                    file=file.file_path,
                )

    for _ in pool.map(check, [manifest for manifest in found if not manifest.is_plaintext]):
        pass
    return frozenset(path for path, _ in exposed)


def _essence(file: FileRecord) -> tuple[object, ...]:
    km = file.key
    key = None if km is None else (km.encryption_key, km.aad_prefix)
    return key, file.content, file.file_size_in_bytes, file.record_count, file.referenced_data_file

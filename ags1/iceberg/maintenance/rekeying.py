"""Chosen files of a table under fresh keys: rows, row ids and sequence numbers stay what they are.

Files in the clear, which an encrypted table may have, are encrypted by this. What goes with them is
in ``rewriting``. The outcome is one ``replace`` snapshot. Follows the Iceberg specification, "Row
Lineage". Knows nothing of commits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from pyiceberg.expressions import AlwaysFalse, AlwaysTrue, BooleanExpression
from pyiceberg.schema import Schema

from ..files import TableFiles
from ..reading import TaskReader
from ..writing.entries import FileRecord
from ..writing.output import TableOutput
from ..writing.producing import FileChange, location_provider
from ..writing.reencryption import Done, FileRewriter, Identity, RewriteExecutor
from ..writing.view import TableView
from .rewriting import (
    Contents,
    RewritePlan,
    identity,
    plan_rewrite,
    plan_tasks,
    read_snapshot,
    write_vectors,
)


class Rekeying:
    """Puts files of a table under fresh keys, for one snapshot and all attempts to commit it.

    ``select`` says of a file whether it is chosen; None chooses all. With a ``row_filter``, which
    is unbound, only data files are, of those that may have a row for which it is true. A chosen
    position delete file becomes deletion vectors. ``threads`` files are rewritten at once, or
    ``executor`` does it; ``on_done`` is called after each with its old and new record.

    Files are chosen at the first attempt. Later ones do not rewrite them again, and take the
    deletes that are there by then.
    """

    def __init__(
        self,
        output: TableOutput,
        *,
        select: Callable[[FileRecord], bool] | None = None,
        row_filter: BooleanExpression | None = None,
        case_sensitive: bool = True,
        threads: int | None = None,
        on_done: Done | None = None,
        executor: RewriteExecutor | None = None,
    ) -> None:
        self._output = output
        self._select = select
        self._row_filter = None if row_filter == AlwaysTrue() else row_filter
        self._case_sensitive = case_sensitive
        self._rewriter = FileRewriter(output, threads=threads, on_done=on_done, executor=executor)
        self._chosen: frozenset[Identity] | None = None
        self._used: set[str] = set()
        self._vector_files: set[str] = set()

    def plan(self, view: TableView) -> RewritePlan:
        """Return what is to be done in the view's snapshot; writes nothing.

        Raises ValueError for a filter on a column that the table does not have, and what planning a
        scan and reading delete files raises.
        """
        return self._planned(view)[1]

    def change(self, view: TableView) -> FileChange:
        """Rewrite what is chosen and was not yet rewritten; return the change to commit upon
        ``view``. Raises as ``plan`` and ``FileRewriter.rewrite``."""
        self._chosen, plan = self._planned(view)
        locations = location_provider(view)
        files = [entry.file for entry in plan.files]
        self._rewriter.rewrite(files, view.files, view.manager, locations)
        added = [self._rewriter.entry(entry) for entry in plan.files]
        moved = {old.identity: new.file for old, new in zip(files, added, strict=True)}
        vectors = write_vectors(plan.vectors, moved, self._output, locations, view.manager)
        self._vector_files.update(entry.file.file_path for entry in vectors)
        self._used = {entry.file.file_path for entry in (*added, *vectors)}
        return FileChange(replaced=[*added, *vectors], removed=[*plan.files, *plan.superseded])

    @property
    def left_over(self) -> list[str]:
        """Files that were written and that the last change does not use."""
        written = {file.file_path for file in self._rewriter.rewritten.values()}
        return sorted((written | self._vector_files) - self._used)

    def _planned(self, view: TableView) -> tuple[frozenset[Identity], RewritePlan]:
        # Files in the clear are not refused, they are what this may be for.
        files = TableFiles(view.files.inner, view.manager, location_map=view.files.location_map)
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
        for name in wanted:
            if self._select is None or self._select(contents.entries[name].file):
                yield name

"""What a transaction does: steps, and an attempt to apply them to one version of the table.

An ``Attempt`` calls each step twice: ``check`` compares the committed version with what the step
read earlier, and ``stage`` adds the step's updates. The rules of a conflict are in
``write/conflicts.py``. Before it commits, an attempt removes the keys that nothing needs, if the
table's properties say so; if the table is damaged, it only warns.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from ..errors import KeyMetadataError
from ..keys.envelope import EncryptedKey
from ..keys.manager import EncryptionManager, now_ms
from .commit.session import TableSession
from .commit.updates import apply_updates
from .spec.column_types import check_sources
from .spec.constants import MAIN_BRANCH
from .spec.requirements import check_requirements
from .spec.shape import following_properties
from .spec.table_keys import KeyChange, prune, prunes_on_commit, unmoved_refs
from .storage.output import TableOutput
from .storage.table_files import ManifestCache
from .write.history import check_unchanged
from .write.snapshot import FileChange, SnapshotProducer
from .write.view import TableView

_log = logging.getLogger(__name__)

Update: TypeAlias = "dict[str, Any]"
# Updates and requirements, as in the REST specification's CommitTableRequest.
CommitRequest: TypeAlias = "tuple[list[Update], list[Update]]"


class Step:
    """A change that a transaction makes. ``stage`` returns the updates and requirements for a
    version of the table. It is called once for each version that is tried."""

    # The key manager of the version after this step, if the step changes the keys.
    manager: EncryptionManager | None = None

    def check(self, committed: TableView) -> None:
        """Compare the step with the committed version, before each ``stage``. Raises
        ValidationException if a commit of another writer since the first call conflicts with it."""

    def stage(self, view: TableView) -> CommitRequest:
        """Return the updates and requirements of this step for the version ``view``."""
        raise NotImplementedError

    @property
    def left_over(self) -> list[str]:
        """Files that were written for versions that were not committed."""
        return []


class MetadataStep(Step):
    """Given updates of the metadata, which are made if their requirements hold."""

    def __init__(self, updates: Iterable[Update], requirements: Iterable[Update]) -> None:
        self._updates = list(updates)
        self._requirements = list(requirements)

    def stage(self, view: TableView) -> CommitRequest:
        for update in self._updates:
            of_update = update.get("spec") or update.get("sort-order") or {}
            check_sources(of_update.get("fields", ()), view.schema)
        return [*self._updates, *self._following(view)], self._requirements

    def _following(self, view: TableView) -> list[Update]:
        """Return the updates of properties that belong to columns, if the schema changes."""
        if not any(update["action"] == "set-current-schema" for update in self._updates):
            return []
        # A schema for another version would be taken for a change of this one's columns.
        check_requirements(view.metadata, self._requirements)
        after = TableView(apply_updates(view.metadata, self._updates, now_ms=now_ms()), view.files)
        return following_properties(after.properties, view.schema_json(), after.schema_json())


class KeyStep(Step):
    """A change of the table's keys. ``removed`` are the keys that the last tried version loses."""

    def __init__(self, compute: Callable[[dict[str, Any], EncryptionManager], KeyChange]) -> None:
        self._compute = compute
        self.removed: tuple[EncryptedKey, ...] = ()

    def stage(self, view: TableView) -> CommitRequest:
        change = self._compute(view.metadata, view.manager)
        self.manager = change.manager
        self.removed = change.removed
        return change.updates, change.requirements


class SnapshotStep(Step):
    """A new snapshot that adds and removes the files that ``change`` returns. If there are none, no
    snapshot is made unless ``always`` is true. ``change`` is called once, and its result is
    committed upon every later version that does not conflict with it. ``recheck`` is called with
    each later version. It raises ValidationException for conflicts that only the rows show."""

    def __init__(
        self,
        output: TableOutput,
        change: Callable[[TableView], FileChange],
        properties: Mapping[str, str],
        branch: str | None,
        *,
        always: bool = False,
        recheck: Callable[[TableView], None] | None = None,
    ) -> None:
        self._output = output
        self._compute = change
        self._branch = branch
        self._always = always
        self._recheck = recheck
        self._producer = SnapshotProducer(output, properties)
        self._files: set[str] = set()
        self._first: TableView | None = None
        self._change: FileChange | None = None

    @property
    def may_delete(self) -> bool:
        """Whether a file of the last tried version may have rows to delete."""
        return self._change is not None and bool(self._change.read and self._change.read.files)

    def check(self, committed: TableView) -> None:
        view = committed.at(self._branch)
        if self._change is None or self._first is None:
            self._first = view
        else:
            check_unchanged(self._change.read, self._first.snapshot, view)

    def stage(self, view: TableView) -> CommitRequest:
        view = view.at(self._branch)
        change = self._change = self._change_for(view)
        updates: list[Update] = []
        if self._always or not change.is_empty:
            updates = self._producer.produce(view, change)
        else:
            self._producer.forget()
            if change.read is None:
                return [], []
        # A branch that does not exist yet begins at the head of main, which must not move either.
        heads = {MAIN_BRANCH: view.metadata.get("current-snapshot-id")}
        if self._branch is not None:
            if view.branch_head_id is not None:
                heads.clear()
            heads[self._branch] = view.branch_head_id
        return updates, [
            {"type": "assert-ref-snapshot-id", "ref": ref, "snapshot-id": head}
            for ref, head in heads.items()
        ]

    def _change_for(self, view: TableView) -> FileChange:
        if self._change is None:
            return self._computed(view)
        if self._recheck is not None:
            self._recheck(view)
        return self._change

    def _computed(self, view: TableView) -> FileChange:
        before = set(self._output.written)
        change = self._compute(view)
        # The deletion vectors and data files that were written for this version.
        self._files |= set(self._output.written) - before
        return change

    @property
    def left_over(self) -> list[str]:
        if self._change is None:
            return []
        change = self._change
        files = (*change.added, *change.deletes, *(entry.file for entry in change.replaced))
        unused = self._files - {file.file_path for file in files}
        return [*sorted(unused), *self._producer.left_over]


class RecomputedSnapshotStep(SnapshotStep):
    """A new snapshot whose ``change`` is called again for each version. It has to account for what
    other writers did, so nothing is checked. If there are no files, no snapshot is made."""

    def __init__(
        self, output: TableOutput, change: Callable[[TableView], FileChange], branch: str | None
    ) -> None:
        super().__init__(output, change, {}, branch)

    def check(self, committed: TableView) -> None:
        pass

    def _change_for(self, view: TableView) -> FileChange:
        return self._computed(view)


class Attempt:
    """One version of a table with a transaction's steps applied to it. ``base`` is the version that
    the catalog has, ``committed`` the same as a view. ``view`` is the version after the steps.
    ``updates`` and ``requirements`` are what a commit of it sends. ``manifest_cache`` is what this
    attempt and earlier ones have read of files."""

    def __init__(self, table: TableSession, manifest_cache: ManifestCache) -> None:
        self._table = table
        self._manifest_cache = manifest_cache
        manifest_cache.next_attempt()
        version = table.version
        self.base = version.base
        self.committed = self.view = self._view_of(version.json, parsed=version.metadata)
        self.updates: list[Update] = []
        self.requirements: list[Update] = []
        self._manager: EncryptionManager | None = None

    def _view_of(self, metadata: dict[str, Any], **more: Any) -> TableView:
        view = self._table.view_with(metadata, **more)
        view.files.manifest_cache = self._manifest_cache
        return view

    @property
    def snapshot_ids(self) -> tuple[int, ...]:
        """The IDs of the snapshots that the steps add."""
        return tuple(
            update["snapshot"]["snapshot-id"]
            for update in self.updates
            if update["action"] == "add-snapshot"
        )

    def apply(self, steps: Sequence[Step]) -> None:
        """Check the steps against the committed version, then apply them. Raises
        ValidationException if one conflicts with it, and what the steps raise."""
        for step in steps:
            step.check(self.committed)
        for step in steps:
            self._stage(step)

    def _stage(self, step: Step) -> None:
        updates, requirements = step.stage(self.view)
        check_requirements(self.view.metadata, requirements)
        self._add(updates, requirements, step.manager)

    def _add(
        self,
        updates: list[Update],
        requirements: list[Update],
        manager: EncryptionManager | None,
    ) -> None:
        # Requirements are about the committed version, so the first of each kind counts.
        asserted = {(r["type"], r.get("ref")) for r in self.requirements}
        self.requirements += [r for r in requirements if (r["type"], r.get("ref")) not in asserted]
        if not updates:
            return
        metadata = apply_updates(self.view.metadata, updates, now_ms=now_ms())
        self._manager = manager or self._manager
        self.view = self._view_of(
            metadata,
            manager=self._manager,
            committed_refs=self.view.committed_refs,
            known=self.view,
        )
        self.updates += updates

    def finish(self) -> None:
        """Remove the keys that nothing needs after the steps, if the table's properties say so.
        Raises ValueError if the property is neither true nor false."""
        if not prunes_on_commit(self.view.properties):
            return
        try:
            change = prune(self.view.metadata, self.view.manager)
        except KeyMetadataError as error:
            # The table is damaged. That must not prevent a commit, which may be the repair.
            _log.warning("%s: no key is removed: %s", self.base.location, error.message)
            return
        if change.updates:
            # The steps may have moved refs without a requirement, so the committed ones count.
            self._add(change.updates, unmoved_refs(self.committed.metadata), change.manager)

    def commit(self, output: TableOutput) -> None:
        """Make one try to commit. Raises as ``finish`` and ``Commits.commit`` do."""
        self.finish()
        self._table.commit_updates(
            self.base, self.updates, self.requirements, output, self._manager
        )

"""What a transaction does, as steps: each staged upon the version of the table that is tried.

What a step read is checked against what others committed since; what counts is in ``conflicts``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from ..keys.envelope import EncryptedKey
from ..keys.manager import EncryptionManager
from .operations.expire import ExpiryPlan
from .spec.column_types import check_sources
from .spec.constants import MAIN_BRANCH
from .spec.table_keys import KeyChange
from .storage.output import TableOutput
from .write.history import check_unchanged
from .write.snapshot import FileChange, SnapshotProducer
from .write.view import TableView

Update: TypeAlias = "dict[str, Any]"
Staged: TypeAlias = "tuple[list[Update], list[Update]]"


class Step:
    """A change that a transaction makes. ``stage`` returns the updates and requirements for a
    version of the table. It is called once for each version that is tried."""

    # The key manager of the version after this step, if the step changes the keys.
    manager: EncryptionManager | None = None

    def check(self, committed: TableView) -> None:
        """Compare the step with the committed version, before each ``stage``. Raises
        ValidationException if a commit of another writer since the first call conflicts with it."""

    def stage(self, view: TableView) -> Staged:
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

    def stage(self, view: TableView) -> Staged:
        for update in self._updates:
            of_update = update.get("spec") or update.get("sort-order") or {}
            check_sources(of_update.get("fields", ()), view.schema)
        return self._updates, self._requirements


class KeyStep(Step):
    """A change of the table's keys. ``removed`` are the keys that the last tried version loses."""

    def __init__(self, compute: Callable[[dict[str, Any], EncryptionManager], KeyChange]) -> None:
        self._compute = compute
        self.removed: tuple[EncryptedKey, ...] = ()

    def stage(self, view: TableView) -> Staged:
        change = self._compute(view.metadata, view.manager)
        self.manager = change.manager
        self.removed = change.removed
        return change.updates, change.requirements


class ExpiryStep(Step):
    """An expiry of snapshots. ``plan`` and ``view`` are those of the last tried version."""

    plan: ExpiryPlan
    view: TableView

    def __init__(self, compute: Callable[[dict[str, Any]], ExpiryPlan]) -> None:
        self._compute = compute

    def stage(self, view: TableView) -> Staged:
        self.view = view
        self.plan = self._compute(view.metadata)
        return self.plan.updates, self.plan.requirements


class SnapshotStep(Step):
    """A new snapshot that adds and removes the files that ``change`` returns. If there are none,
    no snapshot is made unless ``always`` is true.

    ``change`` is called once, and its result is committed upon every later version that does not
    conflict with it. If ``anew`` is true, it is called for each version and has to account for what
    other writers did. ``recheck`` is called with each later version. It raises ValidationException
    for conflicts that only the rows show.
    """

    def __init__(
        self,
        output: TableOutput,
        change: Callable[[TableView], FileChange],
        properties: Mapping[str, str],
        branch: str | None,
        *,
        always: bool = False,
        anew: bool = False,
        recheck: Callable[[TableView], None] | None = None,
    ) -> None:
        self._output = output
        self._change = change
        self._branch = branch
        self._always = always
        self._anew = anew
        self._recheck = recheck
        self._producer = SnapshotProducer(output, properties)
        self._files: set[str] = set()
        self._start: TableView | None = None
        self._last: FileChange | None = None

    @property
    def may_delete(self) -> bool:
        """Whether a file of the last tried version may have rows to delete."""
        return self._last is not None and bool(self._last.read and self._last.read.files)

    def check(self, committed: TableView) -> None:
        view = committed.at(self._branch)
        if self._start is None:
            self._start = view
        elif self._last is not None and not self._anew:
            check_unchanged(self._last.read, self._start.snapshot, view)

    def stage(self, view: TableView) -> Staged:
        view = view.at(self._branch)
        if self._last is None or self._anew:
            before = set(self._output.written)
            self._last = self._change(view)
            # The deletion vectors and data files that were written for this version.
            self._files |= set(self._output.written) - before
        elif self._recheck is not None:
            self._recheck(view)
        updates: list[Update] = []
        if self._always or not self._last.is_empty:
            updates = self._producer.produce(view, self._last)
        else:
            self._producer.forget()
            if self._last.read is None:
                return [], []
        heads = {MAIN_BRANCH: view.metadata.get("current-snapshot-id")}
        if self._branch is not None:
            if view.branch_head_id is not None:
                heads.clear()
            heads[self._branch] = view.branch_head_id
        return updates, [
            {"type": "assert-ref-snapshot-id", "ref": ref, "snapshot-id": head}
            for ref, head in heads.items()
        ]

    @property
    def left_over(self) -> list[str]:
        if self._last is None:
            return []
        files = (*self._last.added, *self._last.deletes, *(e.file for e in self._last.replaced))
        unused = self._files - {file.file_path for file in files}
        return [*sorted(unused), *self._producer.left_over]

"""The maintenance that a table needs: what a compaction would rewrite, deleted rows, old metadata
files. It reads manifests, and opens no data file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

from pyiceberg.exceptions import ValidationException

from ....errors import Ags1Error
from ...commit.session import TableSession
from ...read.records import DATA, EQUALITY_DELETES, ContentFile
from ...spec.constants import MAIN_BRANCH
from ...spec.properties import number_in
from ...storage.listing import list_files
from ...storage.table_folders import METADATA_ENDINGS
from ..compact import CompactionPlan, plan_compaction
from ..compact_plan import RewriteOptions
from ..expire import by_id
from .file_index import FileIndex
from .findings import BranchHealth, Finding, LeftOut, Remedy
from .remedies import on_branch

# What reading the files of a snapshot may raise.
_UNREADABLE = (Ags1Error, OSError, ValidationException, ValueError, NotImplementedError)
_METADATA_FILES = "write.metadata.previous-versions-max"
_MAX_METADATA_FILES = 100
# Operations that remove rows. Files of earlier snapshots may still have these rows.
_DELETING = ("delete", "overwrite")


class Maintenance:
    """The maintenance that a table needs. ``index`` has the files of all its snapshots.
    ``branches`` are those that could be read, and ``left_out`` names the others."""

    def __init__(self, table: TableSession, index: FileIndex) -> None:
        self._table = table
        self._index = index
        self.branches: list[BranchHealth] = []
        self.left_out: list[LeftOut] = []

    def findings(self) -> Iterator[Finding]:
        """Yield what is due."""
        metadata = self._table.version.json
        view = self._table.view().exposed()
        hiding: dict[str, list[ContentFile]] = {MAIN_BRANCH: []}
        for name, ref in sorted((metadata.get("refs") or {}).items()):
            if ref.get("type", "branch") != "branch":
                continue
            try:
                plan = plan_compaction(view.at(name), RewriteOptions(remove_dangling_deletes=True))
            except _UNREADABLE as error:
                self.left_out.append(LeftOut(f"the files of the branch {name!r}", str(error)))
                continue
            hiding[name] = [
                cast("ContentFile", task.file) for task in plan.tasks.values() if task.delete_files
            ]
            self.branches.append(_branch_health(name, int(ref["snapshot-id"]), plan))
            yield from _compaction(name, plan)
        yield from self._deleted_rows(hiding)

    def _deleted_rows(self, hiding: Mapping[str, list[ContentFile]]) -> Iterator[Finding]:
        deletes = any(hiding.values()) or any(
            map(_deletes_rows, by_id(self._table.version.json).values())
        )
        for branch, hidden in sorted(hiding.items()):
            earlier = self._index.earlier_sizes() if deletes and branch == MAIN_BRANCH else []
            if not hidden and not earlier:
                continue
            parts = []
            if hidden:
                parts.append(f"{len(hidden)} data files of {branch!r} have deleted rows")
            if earlier:
                parts.append(f"{len(earlier)} data files of earlier snapshots may have them")
            yield Finding(
                "deleted-rows",
                f"deleted rows can still be read: {' and '.join(parts)}",
                count=len(hidden) + len(earlier),
                size=_size(hidden) + sum(earlier),
                remedy=Remedy("erase", on_branch(branch)),
            )


def surplus_metadata(table: TableSession) -> Iterator[Finding]:
    """Yield a finding if there are more metadata files than the metadata log names. Raises
    OSError."""
    try:
        most = number_in(
            table.version.json.get("properties") or {}, _METADATA_FILES, _MAX_METADATA_FILES
        )
    except ValueError as error:
        yield Finding("impossible-setting", str(error))
        return
    folder = table.files.stored_location(table.metadata_location).rpartition("/")[0]
    files = [f for f in list_files(table.files.inner, folder) or () if f.endswith(METADATA_ENDINGS)]
    # The log does not name the current one.
    if len(files) > most + 1:
        yield Finding(
            "metadata-files",
            f"there are {len(files)} metadata files, but the metadata log names at most {most} "
            "earlier ones: set write.metadata.delete-after-commit.enabled to true, or erase the "
            "deleted rows, which also expires all earlier snapshots",
            count=len(files),
        )


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
        size=_size(data),
        small_files=sum(file.file_size_in_bytes < plan.sizes.least for file in data),
        deletion_vectors=vectors,
        position_delete_files=len(positions) - vectors,
        equality_delete_files=len(deletes) - len(positions),
        deleted_rows=sum(file.record_count for file in positions),
        partitions=len(partitions),
        most_files=max(partitions.values(), default=0),
    )


def _compaction(branch: str, plan: CompactionPlan) -> Iterator[Finding]:
    files = [cast("ContentFile", task.file) for group in plan.groups for task in group.tasks]
    if files:
        yield Finding(
            "compaction",
            f"a compaction of the branch {branch!r} would rewrite {len(files)} of "
            f"{len(plan.tasks)} data files into about "
            f"{sum(group.output_files for group in plan.groups)}: they are too small or too large, "
            "or have many deleted rows",
            count=len(files),
            size=_size(files),
            remedy=Remedy("compact", on_branch(branch)),
        )
    dangling = [entry.file for entry in plan.removed_deletes(())]
    if dangling:
        yield Finding(
            "dangling-deletes",
            f"delete files of the branch {branch!r} apply to no data file any more",
            count=len(dangling),
            size=_size(dangling),
            remedy=Remedy("compact", ("--remove-dangling-deletes", *on_branch(branch))),
        )


def _deletes_rows(snapshot: Mapping[str, Any]) -> bool:
    operation = (snapshot.get("summary") or {}).get("operation")
    return operation is None or operation in _DELETING


def _size(files: Iterable[ContentFile]) -> int:
    return sum(file.file_size_in_bytes for file in files)

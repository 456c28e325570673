"""Transactions on an encrypted table: PyIceberg's methods, committed with retries.

What a transaction does is kept as steps. Each is applied at once to a staged version of the
metadata, so that the next step sees it. When somebody else commits first, all steps are applied
again, to the new version, with the files that they had found and written. Before that, each step
checks that what it has read is still so: if not, the transaction fails, as PyIceberg's does. What
counts is in ``conflicts``.

Files are taken back when it is certain that nothing refers to them, and never when a commit's
outcome is unknown. Follows Java's ``SnapshotProducer.commit``. Knows nothing of catalogs' ways.
"""

from __future__ import annotations

import json
import random
import time
import uuid
import warnings
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.expressions import AlwaysFalse, BooleanExpression
from pyiceberg.table import ALWAYS_TRUE, Table, Transaction, UpsertResult
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    TableRequirement,
    TableUpdate,
)
from pyiceberg.table.update.spec import UpdateSpec
from pyiceberg.table.update.statistics import UpdateStatistics
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import EMPTY_DICT, Record

from ...errors import NotEncryptedError
from ...keys.manager import DATA_KEY_LENGTH, TABLE_KEY_ID, EncryptionManager, now_ms
from ..pyiceberg_internals import ReusingUpdateSpec, parse_row_filter
from .conflicts import Read
from .data_files import write_rows
from .deletion import find_deletes
from .deletion_vectors import write_deletion_vectors
from .entries import FileRecord
from .history import check_unchanged
from .output import TableOutput
from .producing import FileChange, SnapshotProducer, location_provider
from .updates import apply_updates, check_requirements
from .view import TableView

if TYPE_CHECKING:
    from ...keys.envelope import EncryptedKey
    from ..maintenance.expiry import ExpiryPlan
    from ..maintenance.rotation import KeyChange
    from ..table import EncryptedTable

Update: TypeAlias = "dict[str, Any]"
Staged: TypeAlias = "tuple[list[Update], list[Update]]"
Rows: TypeAlias = "pa.Table | pa.RecordBatchReader"

# Properties of a table, their defaults and the most that is believed of them.
_NUM_RETRIES = "commit.retry.num-retries", 4, 1000
_MIN_WAIT_MS = "commit.retry.min-wait-ms", 100, 60_000
_MAX_WAIT_MS = "commit.retry.max-wait-ms", 60_000, 60_000
_TOTAL_TIMEOUT_MS = "commit.retry.total-timeout-ms", 1_800_000, 86_400_000


class Step:
    """Something that a transaction does. ``stage`` returns updates and requirements for the version
    it is given; it is called once for each version that is tried."""

    # What opens the version after it, where that is not the manager of the version before.
    manager: EncryptionManager | None = None

    def check(self, committed: TableView) -> None:
        """Be told what the catalog has, before each ``stage``. Raises ValidationException when what
        others committed since the first time does not go with this step."""

    def stage(self, view: TableView) -> Staged:
        raise NotImplementedError

    @property
    def left_over(self) -> list[str]:
        """Files of versions that were not committed."""
        return []


class MetadataStep(Step):
    """Updates of the metadata alone, as they are, if their requirements hold."""

    def __init__(self, updates: Iterable[Update], requirements: Iterable[Update]) -> None:
        self._updates = list(updates)
        self._requirements = list(requirements)

    def stage(self, view: TableView) -> Staged:
        return self._updates, self._requirements


class KeyStep(Step):
    """A change of the table's keys. ``removed`` are those that the last version tried loses."""

    def __init__(self, compute: Callable[[dict[str, Any], EncryptionManager], KeyChange]) -> None:
        self._compute = compute
        self.removed: tuple[EncryptedKey, ...] = ()

    def stage(self, view: TableView) -> Staged:
        change = self._compute(view.metadata, view.manager)
        self.manager = change.manager
        self.removed = change.removed
        return change.updates, change.requirements


class ExpiryStep(Step):
    """An expiry. ``plan`` and ``view`` are those of the last version tried."""

    plan: ExpiryPlan
    view: TableView

    def __init__(self, compute: Callable[[dict[str, Any]], ExpiryPlan]) -> None:
        self._compute = compute

    def stage(self, view: TableView) -> Staged:
        self.view = view
        self.plan = self._compute(view.metadata)
        return self.plan.updates, self.plan.requirements


class SnapshotStep(Step):
    """A snapshot of the files that ``change`` finds should come and go. No file, no snapshot,
    unless ``always``.

    ``change`` is asked once, and what it found is committed upon any later version that does not
    conflict with it; with ``anew`` it is asked for each version, and has to take in what others did
    by itself. ``recheck`` is called with each later version, and raises ValidationException for
    what only a look at the rows can tell.
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
    def is_empty(self) -> bool:
        return self._last is None or self._last.is_empty

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
            # Deletion vectors, and rows that are written for this version.
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


class EncryptedTransaction(Transaction):
    """A transaction on an encrypted table, with PyIceberg's methods.

    Deletes drop whole files and mark rows of others by deletion vectors. A branch that does not
    exist is made from main's head, as Java does. What would write plaintext is refused:
    ``update_snapshot``, statistics, and ``add_files`` unless it is told.

    Raises ValidationException when another writer has changed what a delete, an overwrite or an
    upsert of it has read, as the table's isolation level says; CommitFailedException when others
    kept committing first, CommitStateUnknownException when the catalog did not say what became of
    the commit, KeyReuseError in a forked child, and what writing raises. After a failure it cannot
    be used again.
    ``snapshot_ids`` are those of the snapshots that the last commit added.
    """

    _table: EncryptedTable

    def __init__(self, table: EncryptedTable, autocommit: bool = False) -> None:
        super().__init__(table, autocommit)
        self.output = table.output()
        self._steps: list[Step] = []
        self.snapshot_ids: tuple[int, ...] = ()
        self._sending = False
        self._allows_plaintext = False
        self._start()

    def _start(self) -> None:
        self._base = self._table.base()
        self._committed = self._view = self._table.view_of(self._base.metadata)
        self._manager: EncryptionManager | None = None
        self._staged_updates: list[Update] = []
        self._staged_requirements: list[Update] = []

    @property
    def table_metadata(self) -> TableMetadata:
        return self._view.parsed

    def __exit__(
        self,
        exctype: type[BaseException] | None,
        excinst: BaseException | None,
        exctb: TracebackType | None,
    ) -> None:
        if exctype is None:
            self.commit_transaction()
        else:
            self._give_up()

    # -- PyIceberg's own changes of metadata end here

    def _stage(
        self, updates: tuple[TableUpdate, ...], requirements: tuple[TableRequirement, ...] = ()
    ) -> Transaction:
        if any(isinstance(update, AddSnapshotUpdate) for update in updates):
            raise NotImplementedError(
                "what PyIceberg writes would be in the clear: use append, overwrite or delete"
            )
        self.stage_updates(map(_as_json, updates), map(_requirement, requirements))
        return self

    def stage_updates(self, updates: Iterable[Update], requirements: Iterable[Update] = ()) -> None:
        """Stage updates of the metadata in the REST specification's form. Raises ValueError for
        those that would strip the table of its encryption."""
        updates = list(updates)
        for update in updates:
            _refuse(update, self._allows_plaintext)
        self.stage_step(MetadataStep(updates, requirements))

    def stage_step(self, step: Step) -> None:
        """Do a step. Raises what the step raises; then the transaction cannot go on."""
        self._check_usable()
        try:
            step.check(self._committed)
            self._run(step)
        except BaseException:
            self._give_up()
            raise
        self._steps.append(step)

    def _run(self, step: Step) -> None:
        updates, requirements = step.stage(self._view)
        check_requirements(self._view.metadata, requirements)
        # A thing is asserted of the version that the transaction is built upon, and only once.
        asserted = {(r["type"], r.get("ref")) for r in self._staged_requirements}
        self._staged_requirements += [
            r for r in requirements if (r["type"], r.get("ref")) not in asserted
        ]
        if not updates:
            return
        metadata = apply_updates(self._view.metadata, updates, now_ms=now_ms())
        self._manager = step.manager or self._manager
        committed = self._view.committed_refs
        self._view = self._table.view_of(metadata, self._manager, committed)
        self._staged_updates += updates

    # -- rows

    def append(
        self,
        df: Rows,
        snapshot_properties: dict[str, str] = EMPTY_DICT,
        branch: str | None = MAIN_BRANCH,
    ) -> None:
        """Append rows. Batches of a reader are written as they come, to partitioned tables too.
        Raises ValueError when they do not fit the schema."""
        files = self._write_rows(df)
        self._snapshot(
            lambda view: FileChange(added=files), snapshot_properties, branch, always=True
        )

    def overwrite(
        self,
        df: Rows,
        overwrite_filter: BooleanExpression | str = ALWAYS_TRUE,
        snapshot_properties: dict[str, str] = EMPTY_DICT,
        case_sensitive: bool = True,
        branch: str | None = MAIN_BRANCH,
    ) -> None:
        """Delete the rows that match, and append others, in one snapshot.

        The commit raises ValidationException when another writer has added, removed or deleted
        rows that may match since the table was loaded. Where ``write.update.isolation-level`` is
        ``snapshot`` instead of ``serializable``, added rows are no conflict, and stay.
        """
        row_filter = parse_row_filter(overwrite_filter)
        files = self._write_rows(df)
        self._snapshot(
            lambda view: self.deleting(view, row_filter, case_sensitive, files),
            snapshot_properties,
            branch,
            always=True,
        )

    def dynamic_partition_overwrite(
        self,
        df: pa.Table,
        snapshot_properties: dict[str, str] = EMPTY_DICT,
        branch: str | None = MAIN_BRANCH,
    ) -> None:
        """Replace the partitions that the rows are of. Raises ValueError for a table that is not
        partitioned by columns as they are; the commit raises as that of ``overwrite``."""
        fields = self.table_metadata.spec().fields
        if not fields:
            raise ValueError("a table without partitions has none to overwrite")
        if any(not isinstance(field.transform, IdentityTransform) for field in fields):
            raise ValueError("partitions are overwritten where columns partition as they are")
        if df.num_rows == 0:
            return
        files = self._write_rows(df)
        schema = self.table_metadata.schema()
        names = [str(schema.find_column_name(field.source_id)) for field in fields]
        partitions = self._build_partition_predicate(
            {Record(*file.partition) for file in files}, names
        )
        self._snapshot(
            lambda view: self.deleting(view, partitions, True, files),
            snapshot_properties,
            branch,
        )

    def delete(
        self,
        delete_filter: str | BooleanExpression,
        snapshot_properties: dict[str, str] = EMPTY_DICT,
        case_sensitive: bool = True,
        branch: str | None = MAIN_BRANCH,
        _isolation_operation: Operation | None = None,
    ) -> None:
        """Delete the rows for which the filter is true. Files that lose all rows go; the others
        get deletion vectors. Warns when no row matches.

        The commit raises ValidationException as that of ``overwrite``, as the table's
        ``write.delete.isolation-level`` says, also when no row has matched.
        """
        row_filter = parse_row_filter(delete_filter)
        operation = _isolation_operation or Operation.DELETE
        step = self._snapshot(
            lambda view: self.deleting(view, row_filter, case_sensitive, [], operation),
            snapshot_properties,
            branch,
        )
        if step.is_empty:
            warnings.warn("Delete operation did not match any records", stacklevel=2)

    def upsert(
        self,
        df: pa.Table,
        join_cols: list[str] | None = None,
        when_matched_update_all: bool = True,
        when_not_matched_insert_all: bool = True,
        case_sensitive: bool = True,
        branch: str | None = MAIN_BRANCH,
        snapshot_properties: dict[str, str] = EMPTY_DICT,
    ) -> UpsertResult:
        """Update the rows that have the key of one of ``df``'s, and insert the others, in one
        snapshot. The arguments are PyIceberg's.

        The commit raises ValidationException as that of ``overwrite`` does, for the rows that are
        updated; and when another writer has inserted a key that is inserted here, which PyIceberg
        would have in the table twice.
        """
        from .upserting import Upsert

        upsert = Upsert(
            df,
            join_cols,
            update=when_matched_update_all,
            insert=when_not_matched_insert_all,
            case_sensitive=case_sensitive,
            schema=self.table_metadata.schema(),
        )

        def change(view: TableView) -> FileChange:
            row_filter, rows = upsert.against(view)
            files = self._write_rows(rows, view) if rows.num_rows else []
            return self.deleting(view, row_filter, case_sensitive, files)

        self._snapshot(change, snapshot_properties, branch, recheck=upsert.check_inserts)
        return upsert.result

    def add_files(
        self,
        file_paths: list[str],
        snapshot_properties: dict[str, str] = EMPTY_DICT,
        check_duplicate_files: bool = True,
        branch: str | None = MAIN_BRANCH,
        *,
        allow_plaintext: bool = False,
    ) -> None:
        """Add Parquet files as they are, in the clear. Raises NotEncryptedError unless
        ``allow_plaintext``: such files are no better protected in an encrypted table."""
        if not allow_plaintext:
            raise NotEncryptedError(
                "files are added as they are, and these are not encrypted: append their rows, or "
                "give allow_plaintext=True"
            )
        from .plain_files import name_mapping_update, plain_file_records

        mapping = name_mapping_update(self._view)
        if mapping:
            self.stage_updates(mapping)
        files = plain_file_records(
            self._view, self._table.files.inner, file_paths, check_duplicates=check_duplicate_files
        )
        self._snapshot(
            lambda view: FileChange(added=files), snapshot_properties, branch, always=True
        )

    def _write_rows(self, rows: Rows, view: TableView | None = None) -> list[FileRecord]:
        self._check_usable()
        if not isinstance(rows, pa.Table | pa.RecordBatchReader):
            raise ValueError(
                f"Expected pa.Table or pa.RecordBatchReader, got {type(rows).__name__}"
            )
        view = view or self._view
        try:
            return write_rows(
                view.metadata,
                rows,
                self.output,
                view.manager,
                location_provider=location_provider(view),
            )
        except BaseException:
            self._give_up()
            raise

    def deleting(
        self,
        view: TableView,
        row_filter: BooleanExpression,
        case_sensitive: bool,
        added: list[FileRecord],
        operation: Operation = Operation.OVERWRITE,
    ) -> FileChange:
        """Return the change that deletes the rows of ``view`` that match and adds data files; the
        deletion vectors are written. ``operation`` as in ``Read``. Raises as ``delete``."""
        if row_filter == AlwaysFalse():
            return FileChange(added=added)
        plan = find_deletes(view, row_filter, case_sensitive=case_sensitive)
        vectors = write_deletion_vectors(
            self.output,
            location_provider(view).new_data_location(f"{uuid.uuid4()}-deletes.puffin"),
            {path: (found, entry.file) for path, (found, entry) in plan.vectors.items()},
            view.manager,
        )
        return FileChange(
            added=added,
            deletes=vectors,
            removed=[*plan.dropped, *plan.superseded],
            read=Read(row_filter, plan.read, operation, case_sensitive),
        )

    def _snapshot(
        self,
        change: Callable[[TableView], FileChange],
        properties: Mapping[str, str],
        branch: str | None,
        *,
        always: bool = False,
        recheck: Callable[[TableView], None] | None = None,
    ) -> SnapshotStep:
        step = SnapshotStep(self.output, change, properties, branch, always=always, recheck=recheck)
        self.stage_step(step)
        if self._autocommit:
            self.commit_transaction()
        return step

    def update_spec(self) -> UpdateSpec:
        """Return PyIceberg's change of the partition spec."""
        return ReusingUpdateSpec(self)

    # -- refused

    def update_snapshot(self, *_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError(
            "what PyIceberg writes would be in the clear: use append, overwrite or delete"
        )

    def update_statistics(self, *, allow_plaintext: bool = False) -> UpdateStatistics:
        """Set or remove statistics files. Raises NotEncryptedError unless ``allow_plaintext``: they
        are in the clear, for the key of one would stand in the metadata, and tell of the data."""
        if not allow_plaintext:
            raise NotEncryptedError(
                "statistics files of an encrypted table are in the clear, and tell of its data: "
                "give allow_plaintext=True if they may"
            )
        self._allows_plaintext = True
        return UpdateStatistics(transaction=self)

    def upgrade_table_version(self, format_version: int) -> Transaction:
        if format_version != 3:
            raise ValueError("an encrypted table has format version 3")
        return self

    # -- commit

    def commit_transaction(self) -> Table:
        """Commit all steps as one change; return the table, which shows it.

        Retries as the table's ``commit.retry.*`` properties say, with the steps checked against
        what others have committed, and applied anew.
        """
        self._check_usable()
        self.output.check_process()
        if self._staged_updates or any(isinstance(step, SnapshotStep) for step in self._steps):
            try:
                self._commit()
            except CommitStateUnknownException:
                # Whoever reads the table next may find the files in it.
                self._failed = True
                raise
            except Exception:
                # It was certainly not made: that is what the catalog's answer means.
                self._sending = False
                self._give_up()
                raise
            except BaseException:
                # Ctrl-C. Between the commit and the next line here, nobody can tell.
                self._give_up()
                raise
            self.snapshot_ids = self._staged_ids()
            self.output.discard([path for step in self._steps for path in step.left_over])
            self.output = self._table.output()
        self._sending = False
        self._steps = []
        self._start()
        return self._table

    def _commit(self) -> None:
        retries, min_wait, max_wait, timeout = (
            _setting(self._view.properties, *setting)
            for setting in (_NUM_RETRIES, _MIN_WAIT_MS, _MAX_WAIT_MS, _TOTAL_TIMEOUT_MS)
        )
        begun = time.monotonic()
        if not self._staged_updates:
            # Steps that found nothing to change have read the table too.
            self._rebase()
        for attempt in range(retries + 1):
            if not self._staged_updates:
                return
            try:
                self._sending = True
                self._send()
                return
            except CommitFailedException:
                self._sending = False
                if attempt == retries or (time.monotonic() - begun) * 1000 >= timeout:
                    raise
            wait = min(min_wait * 2 ** min(attempt, 16), max_wait)
            # All who lost the same race wait; they should not all come back at once.
            time.sleep(random.uniform(0.5, 1.1) * wait / 1000)
            if self._rebase():
                return

    def _rebase(self) -> bool:
        """Apply the steps to the table as it is now. Return whether they need not be: a try that
        was said to have failed was committed, for the catalog has its snapshots."""
        sent = set(self._staged_ids())
        self._table.refresh()
        if sent and sent <= {s.snapshot_id for s in self._table.snapshots()}:
            self.output.keep()
            return True
        self._start()
        for step in self._steps:
            step.check(self._committed)
        for step in self._steps:
            self._run(step)
        return False

    def _send(self) -> None:
        self._table.commit_updates(
            self._base,
            self._staged_updates,
            self._staged_requirements,
            self.output,
            self._manager,
        )

    def _staged_ids(self) -> tuple[int, ...]:
        return tuple(
            update["snapshot"]["snapshot-id"]
            for update in self._staged_updates
            if update["action"] == "add-snapshot"
        )

    def _check_usable(self) -> None:
        if self._failed:
            raise RuntimeError("this transaction has failed and cannot be used again")

    def _give_up(self) -> None:
        """Take back all that was written, unless the catalog may know of it."""
        self._failed = True
        if not self._sending:
            self.output.discard(self.output.written)


def _refuse(update: Update, allows_plaintext: bool) -> None:
    action = update["action"]
    if action == "set-properties":
        names = set(update["updates"]) & {TABLE_KEY_ID}
    elif action == "remove-properties":
        names = set(update["removals"]) & {TABLE_KEY_ID, DATA_KEY_LENGTH}
    elif action in ("set-statistics", "set-partition-statistics") and not allows_plaintext:
        raise NotEncryptedError(
            "statistics files of an encrypted table are in the clear, and this adds one"
        )
    else:
        return
    if names:
        raise ValueError(
            f"{', '.join(sorted(names))!r} of an encrypted table is not changed as a property: "
            "see rotate_keys and rewrap_keys"
        )


def _as_json(update: TableUpdate) -> Update:
    found: Update = json.loads(update.model_dump_json())
    return found


def _requirement(requirement: TableRequirement) -> Update:
    # With what is null: that there is no such branch can be required too.
    found: Update = json.loads(requirement.model_dump_json(exclude_none=False))
    return found


def _setting(properties: Mapping[str, str], name: str, default: int, most: int) -> int:
    value = properties.get(name)
    if value is None:
        return default
    try:
        return min(max(0, int(value)), most)
    except ValueError:
        raise ValueError(f"the table's {name!r} is not a number: {value!r}") from None


class EncryptedCreateTransaction(EncryptedTransaction):
    """A transaction that begins with a table's creation, and commits both as one.

    ``create`` makes the table by updates. Raises TableAlreadyExistsError at the commit.
    """

    def __init__(
        self,
        table: EncryptedTable,
        updates: Iterable[Update],
        create: Callable[[list[Update], TableOutput], None],
    ) -> None:
        super().__init__(table)
        self._create = create
        self._staged_updates = list(updates)

    def _commit(self) -> None:
        self._sending = True
        self._create(self._staged_updates, self.output)

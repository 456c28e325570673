"""Transactions on an encrypted table: PyIceberg's methods, committed with retries.

A transaction is a list of steps. Each step is applied at once to a staged version of the metadata,
so that the next step sees its result. If another writer commits first, all steps are applied again
to the new version, with the files that they found and wrote before. First each step checks that
nothing has changed that it read. If something has, the transaction fails, as PyIceberg's does.
``write.conflicts`` has the rules.

Written files are deleted only if it is certain that nothing refers to them. If the outcome of a
commit is unknown, they stay. This module follows Java's ``SnapshotProducer.commit``. It does not
know how a catalog commits.
"""

from __future__ import annotations

import json
import random
import time
import uuid
import warnings
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, NoReturn, TypeAlias

import pyarrow as pa
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    TableAlreadyExistsError,
)
from pyiceberg.expressions import AlwaysFalse, BooleanExpression
from pyiceberg.table import ALWAYS_TRUE, Table, Transaction, UpsertResult
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import AddSnapshotUpdate, TableRequirement, TableUpdate
from pyiceberg.table.update.spec import UpdateSpec
from pyiceberg.table.update.statistics import UpdateStatistics
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import EMPTY_DICT, Record

from ..errors import NotEncryptedError
from ..keys.manager import DATA_KEY_LENGTH, TABLE_KEY_ID, EncryptionManager, now_ms
from .commit.session import TableSession
from .commit.updates import apply_updates
from .pyiceberg.expressions import parse_row_filter
from .pyiceberg.tables import BuiltTransaction, ReusingUpdateSpec
from .read.records import FileRecord
from .read.scan import EncryptedScan
from .spec.java_json import partition_fields_like, with_unknown_fields
from .spec.requirements import check_requirements
from .steps import MetadataStep, SnapshotStep, Step, Update
from .storage.output import TableOutput
from .storage.table_files import Decoded
from .write.conflicts import Read, columns_of
from .write.copy_on_write import is_copy_on_write, rewrite_without
from .write.data_files import write_rows
from .write.deletes import find_deletes
from .write.deletion_vectors import write_deletion_vectors
from .write.plain_files import name_mapping_update, plain_file_records
from .write.snapshot import FileChange
from .write.upsert import Upsert
from .write.view import TableView

Rows: TypeAlias = "pa.Table | pa.RecordBatchReader"

# Properties of a table, with their defaults and the greatest values that are obeyed.
_NUM_RETRIES = "commit.retry.num-retries", 4, 1000
_MIN_WAIT_MS = "commit.retry.min-wait-ms", 100, 60_000
_MAX_WAIT_MS = "commit.retry.max-wait-ms", 60_000, 60_000
_TOTAL_TIMEOUT_MS = "commit.retry.total-timeout-ms", 1_800_000, 86_400_000


class EncryptedTransaction(BuiltTransaction):
    """A transaction on an encrypted table, with PyIceberg's methods.

    If all rows of a file are deleted, the file is removed from the table. If some rows are, the
    file gets a deletion vector. If the table's properties say ``copy-on-write``, the file is
    rewritten instead: ``write.delete.mode`` is for deletes, ``write.merge.mode`` for upserts and
    ``write.update.mode`` for overwrites. A branch that does not exist is made from the head of
    main, as in Java. Methods that would write plaintext are refused: ``update_snapshot``, and
    statistics and ``add_files`` unless ``allow_plaintext`` is true.

    The commit raises ValidationException if another writer changed what a delete, an overwrite or
    an upsert has read (the table's isolation level decides what counts); CommitFailedException if
    other writers kept committing first; CommitStateUnknownException if the catalog did not say
    whether the commit was made; KeyReuseError in a forked child; and what writing raises. After a
    failure the transaction cannot be used again.

    The transaction is based on the version that its table shows. If the table is refreshed, what
    other writers committed is in the transaction too, as in PyIceberg. The earlier steps are then
    checked against it and applied again; PyIceberg's transaction fails there if rows were changed.
    ``snapshot_ids`` are the IDs of the snapshots that the last commit added.
    """

    _table: TableSession

    def __init__(self, table: TableSession, autocommit: bool = False) -> None:
        super().__init__(table, autocommit)
        self.output = table.output()
        self._steps: list[Step] = []
        self.snapshot_ids: tuple[int, ...] = ()
        self._sending = False
        self._allows_plaintext = False
        self._decoded = Decoded()
        self._start()

    def _start(self) -> None:
        self._base = self._table.base()
        self._decoded.next_attempt()
        self._committed = self._view = self._view_of(self._base.metadata)
        self._manager: EncryptionManager | None = None
        self._staged_updates: list[Update] = []
        self._staged_requirements: list[Update] = []

    def _view_of(self, metadata: dict[str, Any], **more: Any) -> TableView:
        """Return a version of the table. All versions share what was read of files."""
        view = self._table.view_of(metadata, **more)
        view.files.decoded = self._decoded
        return view

    @property
    def table_metadata(self) -> TableMetadata:
        """The table's metadata with this transaction's changes. Raises as ``commit_transaction``
        if the table was refreshed and the changes conflict with its new version."""
        if not self._failed:
            self._catch_up()
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

    def scan(
        self, row_filter: str | BooleanExpression = ALWAYS_TRUE, case_sensitive: bool = True
    ) -> EncryptedScan:
        """Return a scan of the table with this transaction's changes."""
        metadata = self.table_metadata
        return EncryptedScan(
            table_metadata=metadata,
            io=self._view.files,
            row_filter=row_filter,
            case_sensitive=case_sensitive,
        )

    # -- where PyIceberg's own changes of metadata arrive

    def stage_built(
        self, updates: tuple[TableUpdate, ...], requirements: tuple[TableRequirement, ...]
    ) -> None:
        """Stage the updates that a builder of PyIceberg made. Raises as ``stage_updates``, and
        NotImplementedError for a snapshot."""
        if any(isinstance(update, AddSnapshotUpdate) for update in updates):
            raise NotImplementedError(
                "PyIceberg would write plaintext to an encrypted table: use append, overwrite or "
                "delete"
            )
        as_json = [_with_unknown(_as_json(update), self._view) for update in updates]
        self.stage_updates(as_json, map(_requirement, requirements))

    def stage_updates(self, updates: Iterable[Update], requirements: Iterable[Update] = ()) -> None:
        """Stage updates of the metadata in the REST specification's form. Raises ValueError for an
        update that would remove the table's encryption."""
        updates = list(updates)
        for update in updates:
            _refuse(update, self._allows_plaintext)
        self.stage_step(MetadataStep(updates, requirements))

    def stage_step(self, step: Step) -> None:
        """Apply a step. Raises what the step raises; after that the transaction is unusable."""
        self._check_usable()
        self._catch_up()
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
        # Requirements are about the version that the transaction is based on, so the first of each
        # kind counts.
        asserted = {(r["type"], r.get("ref")) for r in self._staged_requirements}
        self._staged_requirements += [
            r for r in requirements if (r["type"], r.get("ref")) not in asserted
        ]
        if not updates:
            return
        metadata = apply_updates(self._view.metadata, updates, now_ms=now_ms())
        self._manager = step.manager or self._manager
        self._view = self._view_of(
            metadata, manager=self._manager, committed_refs=self._view.committed_refs
        )
        self._staged_updates += updates

    # -- rows

    def append(
        self,
        df: Rows,
        snapshot_properties: dict[str, str] = EMPTY_DICT,
        branch: str | None = MAIN_BRANCH,
    ) -> None:
        """Append rows. If ``df`` is a reader, each batch is written as it arrives, also to a
        partitioned table. Raises ValueError if the rows do not fit the schema."""
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
        """Delete the rows that match and append the rows of ``df``, in one snapshot. Warns if no
        file can have a row that matches.

        The commit raises ValidationException if another writer has added, removed or deleted rows
        that may match since the table was loaded. If ``write.update.isolation-level`` is
        ``snapshot`` instead of ``serializable``, added rows are not a conflict; they stay.
        """
        row_filter = parse_row_filter(overwrite_filter)
        files = self._write_rows(df)
        step = self._snapshot(
            lambda view: self.deleting(view, row_filter, case_sensitive, files),
            snapshot_properties,
            branch,
            always=True,
        )
        if row_filter != AlwaysFalse():
            _warn_of_no_match(step)

    def dynamic_partition_overwrite(
        self,
        df: pa.Table,
        snapshot_properties: dict[str, str] = EMPTY_DICT,
        branch: str | None = MAIN_BRANCH,
    ) -> None:
        """Replace the partitions that the rows belong to. Raises ValueError unless the table is
        partitioned, and only by identity transforms. Warns, and its commit raises, as
        ``overwrite``."""
        fields = self.table_metadata.spec().fields
        if not fields:
            raise ValueError("Cannot apply dynamic overwrite on an unpartitioned table.")
        for field in fields:
            if not isinstance(field.transform, IdentityTransform):
                raise ValueError(
                    "For now dynamic overwrite does not support a table with "
                    f"non-identity-transform field in the latest partition spec: {field}"
                )
        if df.num_rows == 0:
            return
        files = self._write_rows(df)
        schema = self.table_metadata.schema()
        names = [str(schema.find_column_name(field.source_id)) for field in fields]
        partitions = self.partition_predicate({Record(*file.partition) for file in files}, names)
        step = self._snapshot(
            lambda view: self.deleting(view, partitions, True, files),
            snapshot_properties,
            branch,
        )
        _warn_of_no_match(step)

    def delete(
        self,
        delete_filter: str | BooleanExpression,
        snapshot_properties: dict[str, str] = EMPTY_DICT,
        case_sensitive: bool = True,
        branch: str | None = MAIN_BRANCH,
        _isolation_operation: Operation | None = None,
    ) -> None:
        """Delete the rows for which the filter is true. Files that lose all rows are removed. The
        others get deletion vectors, or are rewritten if ``write.delete.mode`` says so. Warns if no
        file can have a row that matches.

        The commit raises ValidationException as that of ``overwrite`` does, even if no row matched.
        Here ``write.delete.isolation-level`` is the property that decides.
        """
        row_filter = parse_row_filter(delete_filter)
        operation = _isolation_operation or Operation.DELETE
        step = self._snapshot(
            lambda view: self.deleting(view, row_filter, case_sensitive, [], operation, "delete"),
            snapshot_properties,
            branch,
        )
        _warn_of_no_match(step)

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
        """Write the rows of ``df`` in one snapshot: if the table has a row with the same key, that
        row is updated, otherwise the new row is inserted. The arguments are PyIceberg's.

        The commit raises ValidationException as that of ``overwrite`` does, for the updated rows.
        It also raises if another writer has inserted a key that this upsert inserts. With PyIceberg
        the table would then have that key twice.
        """
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
            return self.deleting(view, row_filter, case_sensitive, files, command="merge")

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
        """Add unencrypted Parquet files as they are. They stay unencrypted, so this raises
        NotEncryptedError unless ``allow_plaintext`` is true."""
        if not allow_plaintext:
            raise NotEncryptedError(
                "add_files would add unencrypted files to an encrypted table: append their rows, "
                "or pass allow_plaintext=True"
            )
        self._check_usable()
        self._catch_up()
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
        if view is None:
            self._catch_up()
            view = self._view
        try:
            return write_rows(view, rows, self.output)
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
        command: str = "update",
    ) -> FileChange:
        """Return the change that deletes the matching rows of ``view`` and adds the data files
        ``added``. This writes the deletion vectors or, if the table's ``write.{command}.mode`` says
        so, the files without the matching rows. ``operation`` is that of ``Read``. Raises as
        ``delete``."""
        if row_filter == AlwaysFalse():
            return FileChange(added=added)
        rewrites = is_copy_on_write(view.properties, command)
        columns = columns_of(row_filter, view.schema, case_sensitive)
        plan = find_deletes(view, row_filter, case_sensitive=case_sensitive)
        if rewrites and plan.vectors:
            committed = self._committed.metadata.get("last-sequence-number", 0)
            rewritten = rewrite_without(view, plan, self.output, committed)
            changed = [entry for _, entry in plan.vectors.values()]
            return FileChange(
                added=[*added, *rewritten],
                removed=[*plan.dropped, *changed, *plan.superseded],
                read=Read(row_filter, plan.read, columns, operation, case_sensitive, rewrites=True),
            )
        vectors = write_deletion_vectors(
            self.output,
            view.locations.new_data_location(f"{uuid.uuid4()}-deletes.puffin"),
            {path: (found, entry.file) for path, (found, entry) in plan.vectors.items()},
            view.manager,
        )
        return FileChange(
            added=added,
            deletes=vectors,
            removed=[*plan.dropped, *plan.superseded],
            read=Read(row_filter, plan.read, columns, operation, case_sensitive),
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
        if self.commits_each_step:
            self.commit_transaction()
        return step

    def update_spec(self) -> UpdateSpec:
        """Return PyIceberg's builder for a change of the partition spec."""
        return ReusingUpdateSpec(self)

    # -- refused

    def update_snapshot(self, *_: Any, **__: Any) -> NoReturn:
        """Raise NotImplementedError: PyIceberg would write plaintext."""
        raise NotImplementedError(
            "PyIceberg would write plaintext to an encrypted table: use append, overwrite or delete"
        )

    def update_statistics(self, *, allow_plaintext: bool = False) -> UpdateStatistics:
        """Set or remove statistics files. They are not encrypted, because the metadata would have
        their keys, and they reveal something of the data. So this raises NotEncryptedError unless
        ``allow_plaintext`` is true."""
        if not allow_plaintext:
            raise NotEncryptedError(
                "statistics files are not encrypted and reveal something of an encrypted table's "
                "data: pass allow_plaintext=True to allow them"
            )
        self._allows_plaintext = True
        return UpdateStatistics(transaction=self)

    def upgrade_table_version(self, format_version: int) -> Transaction:
        """Do nothing: an encrypted table has version 3. Raises ValueError for another version."""
        if format_version != 3:
            raise ValueError(f"an encrypted table has format version 3, not {format_version}")
        return self

    # -- commit

    def commit_transaction(self) -> Table:
        """Commit all steps as one change; return the table, which then shows it.

        If another writer commits first, this checks the steps against the new version, applies them
        again and retries, as often as the table's ``commit.retry.*`` properties say.
        """
        self._check_usable()
        self.output.check_process()
        self._catch_up()
        if self._staged_updates or any(isinstance(step, SnapshotStep) for step in self._steps):
            try:
                self._commit()
            except CommitStateUnknownException:
                # The table may now refer to the files, so they stay.
                self._failed = True
                raise
            except Exception:
                # The catalog's answer means that the commit was certainly not made.
                self._sending = False
                self._give_up()
                raise
            except BaseException:
                # Ctrl-C may come after the commit was made: `_sending` tells whether it can be.
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
            # Steps that found nothing to change have read the table, and that can conflict too.
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
            # Writers that failed together should not retry together, so the wait is random.
            time.sleep(random.uniform(0.5, 1.1) * wait / 1000)
            if self._rebase():
                return

    def _rebase(self) -> bool:
        """Refresh the table and apply the steps to it again. Return True if the last attempt was
        committed although it was reported as failed: then the table has its snapshots."""
        sent = set(self._staged_ids())
        self._table.refresh()
        if sent and sent <= {s.snapshot_id for s in self._table.snapshots()}:
            self.output.keep()
            return True
        self._apply_again()
        return False

    def _apply_again(self) -> None:
        self._start()
        for step in self._steps:
            step.check(self._committed)
        for step in self._steps:
            self._run(step)

    def _catch_up(self) -> None:
        """If the table was refreshed or committed to, apply the steps to its new version. Raises
        what the steps raise; after that the transaction is unusable."""
        base = self._table.base()
        if base.metadata is self._base.metadata or base.metadata == self._base.metadata:
            self._base = base
            return
        try:
            self._apply_again()
        except BaseException:
            self._give_up()
            raise

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
            raise RuntimeError(
                "this transaction has failed and cannot be used again: begin a new one"
            )

    def _give_up(self) -> None:
        """Delete the written files, unless the catalog may have got a commit that names them."""
        self._failed = True
        if not self._sending:
            self.output.discard(self.output.written)


def _warn_of_no_match(step: SnapshotStep) -> None:
    # As in PyIceberg: there is no warning if the rows of some file had to be read.
    if not step.may_delete:
        warnings.warn("Delete operation did not match any records", stacklevel=3)


def _refuse(update: Update, allows_plaintext: bool) -> None:
    action = update["action"]
    if action == "set-properties":
        names = set(update["updates"]) & {TABLE_KEY_ID}
    elif action == "remove-properties":
        names = set(update["removals"]) & {TABLE_KEY_ID, DATA_KEY_LENGTH}
    elif action in ("set-statistics", "set-partition-statistics") and not allows_plaintext:
        raise NotEncryptedError(
            "statistics files are not encrypted, and this update adds one to an encrypted table: "
            "use update_statistics(allow_plaintext=True)"
        )
    else:
        return
    if names:
        raise ValueError(
            f"the property {', '.join(sorted(names))!r} of an encrypted table cannot be changed: "
            "use rotate_keys or rewrap_keys"
        )


def _as_json(update: TableUpdate) -> Update:
    found: Update = json.loads(update.model_dump_json())
    return found


def _with_unknown(update: Update, view: TableView) -> Update:
    """Return an update with the parts of columns and partition fields that PyIceberg drops."""
    metadata = view.metadata
    if update["action"] == "add-schema":
        before = view.schema_json(metadata["current-schema-id"])
        update["schema"] = with_unknown_fields(update["schema"], before)
    elif update["action"] == "add-spec":
        known = [field for spec in metadata["partition-specs"] for field in spec["fields"]]
        update["spec"]["fields"] = partition_fields_like(update["spec"]["fields"], known)
    return update


def _requirement(requirement: TableRequirement) -> Update:
    # Keep nulls: a null snapshot ID requires that there is no such branch.
    found: Update = json.loads(requirement.model_dump_json(exclude_none=False))
    return found


def _setting(properties: Mapping[str, str], name: str, default: int, most: int) -> int:
    value = properties.get(name)
    if value is None:
        return default
    try:
        return min(max(0, int(value)), most)
    except ValueError:
        raise ValueError(
            f"the table property {name!r} is not a number but {value!r}: correct it"
        ) from None


class EncryptedCreateTransaction(EncryptedTransaction):
    """A transaction that creates a table and commits its further changes in the same commit.

    ``create`` creates the table from updates. The commit raises CommitFailedException if a table of
    that name exists by then.
    """

    def __init__(
        self,
        table: TableSession,
        updates: Iterable[Update],
        create: Callable[[list[Update], TableOutput], None],
    ) -> None:
        super().__init__(table)
        self._create = create
        self._staged_updates = list(updates)

    def _commit(self) -> None:
        self._sending = True
        try:
            self._create(self._staged_updates, self.output)
        except TableAlreadyExistsError as error:
            raise CommitFailedException(str(error)) from error

"""Transactions on an encrypted table: PyIceberg's methods, committed with retries.

An example, in which another writer commits first. The table object is at version 7::

    with table.transaction() as transaction:
        transaction.delete("id = 3")     step 1 upon version 7: writes a deletion vector
        transaction.append(rows)         writes data files; step 2 upon version 7 with step 1
    # The commit sends the updates of both steps: "if main is still where version 7 has it, ..."
    CommitFailedException                another writer has made version 8
    table.refresh()
    check of step 1                      has version 8 changed rows with id = 3, or added some?
      yes: ValidationException           nothing is committed, and the written files are deleted
      no:  both steps upon version 8     the same data files and vectors; only the manifests are new
    # The commit sends the updates again; the table object is then at version 9.

If the catalog does not say whether a commit was made, its files stay, because the table may refer
to them. Follows Java's ``SnapshotProducer.commit``. ``commit/commits.py`` shows the commit itself.
"""

from __future__ import annotations

import json
import random
import time
import uuid
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    TableAlreadyExistsError,
)
from pyiceberg.expressions import AlwaysFalse, BooleanExpression
from pyiceberg.table import ALWAYS_TRUE, Table, Transaction, UpsertResult
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import AddSnapshotUpdate, TableRequirement, TableUpdate
from pyiceberg.table.update.spec import UpdateSpec
from pyiceberg.table.update.statistics import UpdateStatistics
from pyiceberg.transforms import IdentityTransform, VoidTransform
from pyiceberg.typedef import EMPTY_DICT

from ..errors import NotEncryptedError
from ..keys.manager import DATA_KEY_LENGTH, TABLE_KEY_ID
from .commit.session import TableSession
from .pyiceberg.defaults import ExactUpdateSchema
from .pyiceberg.expressions import parse_row_filter
from .pyiceberg.tables import BuiltTransaction, ReusingUpdateSpec
from .read.records import ContentFile
from .read.scan import EncryptedScan
from .spec.constants import MAIN_BRANCH
from .spec.java_json import partition_fields_like, with_float_defaults, with_unknown_fields
from .spec.properties import number_in
from .steps import Attempt, MetadataStep, SnapshotStep, Step, Update
from .storage.output import TableOutput
from .storage.table_files import ManifestCache
from .write.arrow_input import ArrowRows, arrow_rows, arrow_table
from .write.conflicts import Read
from .write.copy_on_write import is_copy_on_write, rewrite_without
from .write.data_files import write_rows
from .write.deletes import find_deletes
from .write.deletion_vectors import write_deletion_vectors
from .write.partition_replacement import SUMMARY as REPLACES_PARTITIONS
from .write.partition_replacement import PartitionReplacement
from .write.partitions import partition_filter
from .write.plain_files import name_mapping_update, plain_file_records
from .write.snapshot import FileChange
from .write.upsert import Upsert
from .write.view import TableView

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

    The transaction is based on the version that its table is at. If the table is refreshed, what
    other writers committed is in the transaction too, as in PyIceberg. The earlier steps are then
    checked against it and applied again; PyIceberg's transaction fails there if rows were changed.
    ``snapshot_ids`` are the IDs of the snapshots that the last commit added. ``manifest_cache`` may
    have manifests that were read before.
    """

    _table: TableSession

    def __init__(
        self,
        table: TableSession,
        autocommit: bool = False,
        *,
        manifest_cache: ManifestCache | None = None,
    ) -> None:
        super().__init__(table, autocommit)
        self.output = table.output()
        self.snapshot_ids: tuple[int, ...] = ()
        self._steps: list[Step] = []
        self._manifest_cache = ManifestCache() if manifest_cache is None else manifest_cache
        self._attempt = Attempt(table, self._manifest_cache)
        self._may_be_committed = False
        self._allows_plaintext = False

    @property
    def table_metadata(self) -> TableMetadata:
        """The table's metadata with this transaction's changes. Raises as ``commit_transaction``
        if the table was refreshed and the changes conflict with its new version."""
        if not self._failed:
            self._catch_up()
        return self._attempt.view.parsed

    def __enter__(self) -> EncryptedTransaction:
        return self

    def __exit__(self, exctype: type[BaseException] | None, *_: object) -> None:
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
            io=self._attempt.view.files,
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
        as_json = [_with_unknown(_as_json(update), self._attempt.view) for update in updates]
        # Nulls are kept: a null snapshot ID requires that there is no such branch.
        required = [_as_json(requirement, exclude_none=False) for requirement in requirements]
        self.stage_updates(as_json, required)

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
        self._catch_up(step)
        self._steps.append(step)

    # -- rows

    def append(
        self,
        df: ArrowRows,
        snapshot_properties: dict[str, str] = EMPTY_DICT,
        branch: str | None = MAIN_BRANCH,
    ) -> None:
        """Append rows. ``df`` is an Arrow table or reader, or an object that exports Arrow data,
        such as a data frame of Polars or pandas or a relation of DuckDB. If it is a stream, each
        batch is written as it arrives, also to a partitioned table. Raises ValueError if the rows
        do not fit the schema, or if ``df`` has no Arrow data."""
        files = self._write_rows(df)
        change = FileChange(added=files)
        self._snapshot(lambda _: change, snapshot_properties, branch, always=True)

    def overwrite(
        self,
        df: ArrowRows,
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
        df: ArrowRows,
        snapshot_properties: dict[str, str] = EMPTY_DICT,
        branch: str | None = MAIN_BRANCH,
    ) -> None:
        """Replace the partitions that the rows belong to. Raises ValueError if the table is not
        partitioned. If all transforms are identity, warns, and its commit raises, as ``overwrite``.
        If not, PyIceberg refuses; this does as Java's ``ReplacePartitions``: files of older specs
        stay, and its commit raises ConflictError for any change of others in these partitions.
        ``df`` is as in ``append``."""
        fields = self.table_metadata.spec().fields
        if all(isinstance(field.transform, VoidTransform) for field in fields):
            raise ValueError("Cannot apply dynamic overwrite on an unpartitioned table.")
        files = self._write_rows(df)
        if not files:
            return
        if not all(isinstance(field.transform, IdentityTransform) for field in fields):
            replacement = PartitionReplacement(files)
            summary = {**snapshot_properties, **REPLACES_PARTITIONS}
            self._snapshot(replacement.change, summary, branch, recheck=replacement.recheck)
            return
        schema = self.table_metadata.schema()
        names = [str(schema.find_column_name(field.source_id)) for field in fields]
        partitions = partition_filter(names, {file.partition for file in files})
        step = self._snapshot(
            lambda view: self.deleting(view, partitions, True, files), snapshot_properties, branch
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
        isolated_as = "update" if _isolation_operation == Operation.OVERWRITE else "delete"
        step = self._snapshot(
            lambda view: self.deleting(view, row_filter, case_sensitive, [], isolated_as, "delete"),
            snapshot_properties,
            branch,
        )
        _warn_of_no_match(step)

    def upsert(
        self,
        df: ArrowRows,
        join_cols: list[str] | None = None,
        when_matched_update_all: bool = True,
        when_not_matched_insert_all: bool = True,
        case_sensitive: bool = True,
        branch: str | None = MAIN_BRANCH,
        snapshot_properties: dict[str, str] = EMPTY_DICT,
    ) -> UpsertResult:
        """Write the rows of ``df`` in one snapshot: if the table has a row with the same key, that
        row is updated, otherwise the new row is inserted. The arguments are PyIceberg's. ``df`` is
        that of ``append``, but is held in memory.

        The commit raises ValidationException as that of ``overwrite`` does, for the updated rows.
        It also raises if another writer has inserted a key that this upsert inserts. With PyIceberg
        the table would then have that key twice.
        """
        upsert = Upsert(
            arrow_table(df),
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
        if self._table.files.require_encrypted:
            raise NotEncryptedError(
                "add_files would add unencrypted files, and encryption is required "
                "('encryption.require-encrypted'): append their rows"
            )
        self._check_usable()
        self._catch_up()
        mapping = name_mapping_update(self._attempt.view)
        if mapping:
            self.stage_updates(mapping)

        def records() -> list[ContentFile]:
            self._catch_up()
            files, checks = self._table.files.inner, check_duplicate_files
            return plain_file_records(
                self._attempt.view, files, file_paths, check_duplicates=checks
            )

        files = self._table.or_newer(records)
        change = FileChange(added=files)
        self._snapshot(lambda _: change, snapshot_properties, branch, always=True)

    def _write_rows(self, data: ArrowRows, view: TableView | None = None) -> list[ContentFile]:
        self._check_usable()
        rows = arrow_rows(data)
        if view is None:
            self._catch_up()
            view = self._attempt.view
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
        added: list[ContentFile],
        isolated_as: str = "update",
        command: str = "update",
    ) -> FileChange:
        """Return the change that deletes the matching rows of ``view`` and adds the data files
        ``added``. This writes the deletion vectors or, if ``write.{command}.mode`` says so, the
        files without the matching rows. ``isolated_as`` is the ``command`` of ``Read``. Raises as
        ``delete``."""
        if row_filter == AlwaysFalse():
            return FileChange(added=added)
        copy_on_write = is_copy_on_write(view.properties, command)
        plan = find_deletes(view, row_filter, case_sensitive=case_sensitive)
        rewrites = copy_on_write and bool(plan.vectors)
        read = Read(row_filter, plan.read, plan.compared, isolated_as, case_sensitive, rewrites)
        changed = plan.rewritable if rewrites else []
        removed = [*plan.dropped, *changed, *plan.superseded]
        if rewrites:
            committed = self._attempt.committed.metadata.get("last-sequence-number", 0)
            rewritten = rewrite_without(view, plan, self.output, committed)
            return FileChange(added=[*added, *rewritten], removed=removed, read=read)
        vectors = write_deletion_vectors(
            self.output,
            view.locations.new_data_location(f"{uuid.uuid4()}-deletes.puffin"),
            {path: (positions, entry.file) for path, (positions, entry) in plan.vectors.items()},
            view.manager,
        )
        return FileChange(added=added, deletes=vectors, removed=removed, read=read)

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

    def update_schema(
        self, allow_incompatible_changes: bool = False, case_sensitive: bool = True
    ) -> ExactUpdateSchema:
        """Return PyIceberg's builder for a change of the schema. It refuses defaults that the
        column's type cannot hold."""
        return ExactUpdateSchema(
            self,
            allow_incompatible_changes,
            case_sensitive,
            name_mapping=self.table_metadata.name_mapping(),
        )

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
        """Set or remove statistics files. They are not encrypted and reveal something of the data,
        so this raises NotEncryptedError unless ``allow_plaintext`` is true."""
        if not allow_plaintext:
            raise NotEncryptedError(
                "statistics files are not encrypted and reveal something of an encrypted table's "
                "data: pass allow_plaintext=True if that is meant"
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
        """Commit all steps as one change; return the table, which is then at the new version. If
        another writer commits first, this checks the steps against the new version, applies them
        again and retries, as often as the table's ``commit.retry.*`` properties say."""
        self._check_usable()
        self.output.check_process()
        self._catch_up()
        if self._attempt.updates or any(isinstance(step, SnapshotStep) for step in self._steps):
            try:
                self._commit()
            except BaseException as error:
                # Ctrl-C may come after the commit was made. Other exceptions say whether it was.
                if isinstance(error, Exception):
                    self._may_be_committed = isinstance(error, CommitStateUnknownException)
                self._give_up()
                raise
            self.snapshot_ids = self._attempt.snapshot_ids
            self.output.discard([path for step in self._steps for path in step.left_over])
            self.output = self._table.output()
        self._may_be_committed = False
        self._steps = []
        self._attempt = Attempt(self._table, self._manifest_cache)
        return self._table

    def _commit(self) -> None:
        retries = _Retries(self._attempt.view.properties)
        if not self._attempt.updates:
            # Steps that found nothing to change have read the table, and that can conflict too.
            self._table.refresh()
            self._table.or_newer(self._apply_again)
        while self._attempt.updates:
            try:
                self._may_be_committed = True
                self._attempt.commit(self.output)
                return
            except CommitFailedException:
                self._may_be_committed = False
                if not retries.wait():
                    raise
            self._table.refresh()
            added, present = self._attempt.snapshot_ids, self._table.snapshots()
            if added and {snapshot.snapshot_id for snapshot in present}.issuperset(added):
                # The commit was made, although it was reported as failed.
                self.output.keep()
                return
            self._table.or_newer(self._apply_again)

    def _apply_again(self, *more: Step) -> None:
        self._attempt = Attempt(self._table, self._manifest_cache)
        self._attempt.apply([*self._steps, *more])

    def _catch_up(self, *more: Step) -> None:
        """Apply more steps. If the table was refreshed or committed to, or a file of its version is
        gone, apply all steps to the new version. Raises what the steps raise; after that the
        transaction is unusable."""

        def apply() -> None:
            base, before = self._table.version.base, self._attempt.base
            if base.metadata is before.metadata or base.metadata == before.metadata:
                self._attempt.base = base
                self._attempt.apply(more)
            else:
                self._apply_again(*more)

        try:
            self._table.or_newer(apply)
        except BaseException:
            self._give_up()
            raise

    def _check_usable(self) -> None:
        if self._failed:
            raise RuntimeError(
                "this transaction has failed and cannot be used again: begin a new one"
            )

    def _give_up(self) -> None:
        """Delete the written files, unless the table may refer to them."""
        self._failed = True
        if not self._may_be_committed:
            self.output.discard(self.output.written)


def commit_steps(table: TableSession, *steps: Step) -> None:
    """Commit steps as one transaction. Raises as ``EncryptedTransaction``."""
    transaction = EncryptedTransaction(table)
    for step in steps:
        transaction.stage_step(step)
    transaction.commit_transaction()


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


def _as_json(model: TableUpdate | TableRequirement, **options: Any) -> Update:
    as_json: Update = json.loads(model.model_dump_json(**options))
    return as_json


def _with_unknown(update: Update, view: TableView) -> Update:
    """Return an update with the parts of columns and partition fields that PyIceberg drops, and
    with the defaults that it changes."""
    metadata = view.metadata
    if update["action"] == "add-schema":
        before = view.schema_json()
        schema = with_unknown_fields(update["schema"], before)
        update["schema"] = with_float_defaults(schema, before)
    elif update["action"] == "add-spec":
        known = [field for spec in metadata["partition-specs"] for field in spec["fields"]]
        update["spec"]["fields"] = partition_fields_like(update["spec"]["fields"], known)
    return update


class _Retries:
    """Counts the retries of a commit and waits between them, as ``commit.retry.*`` says."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        self._retries, self._min_wait_ms, self._max_wait_ms, self._timeout_ms = (
            _setting(properties, *setting)
            for setting in (_NUM_RETRIES, _MIN_WAIT_MS, _MAX_WAIT_MS, _TOTAL_TIMEOUT_MS)
        )
        self._done = 0
        self._begun = time.monotonic()

    def wait(self) -> bool:
        """Wait before the next retry. Return False at once if there are no more."""
        elapsed_ms = (time.monotonic() - self._begun) * 1000
        if self._done >= self._retries or elapsed_ms >= self._timeout_ms:
            return False
        wait_ms = min(self._min_wait_ms * 2 ** min(self._done, 16), self._max_wait_ms)
        # Writers that failed together should not retry together, so the wait is random.
        time.sleep(random.uniform(0.5, 1.1) * wait_ms / 1000)
        self._done += 1
        return True


def _setting(properties: Mapping[str, str], name: str, default: int, most: int) -> int:
    return min(max(0, number_in(properties, name, default)), most)


class EncryptedCreateTransaction(EncryptedTransaction):
    """A transaction that creates a table and commits its further changes in the same commit.
    ``create`` creates the table from updates. The commit raises CommitFailedException if a table of
    that name exists by then."""

    def __init__(
        self,
        table: TableSession,
        updates: Iterable[Update],
        create: Callable[[list[Update], TableOutput], None],
    ) -> None:
        super().__init__(table)
        self._create = create
        self._attempt.updates = list(updates)

    def _commit(self) -> None:
        self._may_be_committed = True
        try:
            self._create(self._attempt.updates, self.output)
        except TableAlreadyExistsError as error:
            raise CommitFailedException(str(error)) from error

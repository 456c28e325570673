"""``MaintainedTable``: the methods of an encrypted table that PyIceberg's ``Table`` lacks. They
change keys and files, and read and write statistics.

Most methods commit what a module of ``operations`` plans, or call such a module.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from pyiceberg.exceptions import CommitStateUnknownException
from pyiceberg.expressions import BooleanExpression
from pyiceberg.table import ALWAYS_TRUE
from pyiceberg.table.puffin import PuffinFile

from ..errors import (
    KMS_UNUSABLE,
    MetadataIntegrityError,
)
from ..keys.envelope import EncryptedKey
from ..keys.manager import EncryptionManager
from ..kms.client import KmsClient
from .commit.session import TableSession
from .operations.compact import Compacted, Compaction, CompactionPlan, plan_compaction
from .operations.compact_plan import FileGroup, RewriteOptions
from .operations.erase import Erasure, erase
from .operations.expire import ExpiryPlan, expire
from .operations.expired_files import ExpiredFiles
from .operations.meter import Meter
from .operations.orphans import OrphanFiles, PrefixMismatchMode, age_limit, find_orphans
from .operations.rekey import Choice, Rekeying
from .operations.rewrite import Rewriter
from .pyiceberg.expressions import parse_row_filter
from .read.records import ContentFile
from .read.statistics import read_statistics
from .spec import table_keys as rotation
from .spec.constants import MAIN_BRANCH
from .spec.table_keys import KeyChange
from .steps import Attempt, ExpiryStep, KeyStep, RecomputedSnapshotStep, SnapshotStep, Step
from .storage.table_files import ManifestCache
from .transaction import EncryptedTransaction
from .write.executors import Identity, RewriteExecutor, RewriteThreads
from .write.snapshot import FileChange
from .write.statistics import DRAFT, StatisticsBlob, StatisticsWriter
from .write.view import TableView

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Expiry:
    """The result of an expiry: the snapshots, the names of branches and tags, and the files that it
    removed. ``failed`` are the files that could not be deleted, ``key_ids`` the IDs of the keys
    that were removed."""

    snapshot_ids: tuple[int, ...]
    refs: tuple[str, ...]
    files: ExpiredFiles
    failed: tuple[str, ...] = ()
    key_ids: tuple[str, ...] = ()

    @property
    def left_behind(self) -> tuple[str, ...]:
        """Files that still exist although nothing refers to them."""
        return (*self.files.left_behind, *self.failed)


@dataclass(frozen=True, slots=True)
class Rekeyed:
    """The result of ``rekey``: the number of files that now have fresh keys, their size (bytes),
    and the number of plaintext manifests that are now encrypted."""

    files: int
    size: int
    manifests: int = 0


class MaintainedTable(TableSession):
    """The part of ``EncryptedTable`` that maintains a table."""

    def transaction(self) -> EncryptedTransaction:
        """Return a transaction, which commits several changes as one. Raises NotImplementedError if
        the table has no catalog that keeps keys."""
        return EncryptedTransaction(self)

    def read_statistics(
        self, snapshot_id: int | None = None, *, allow_plaintext: bool = False
    ) -> PuffinFile:
        """Return the statistics file of a snapshot, by default of the current one. Its
        ``get_blob_payload`` returns a blob of its ``footer.blobs``.

        Java up to 1.12 writes statistics unencrypted. Nothing authenticates them, so this raises
        NotEncryptedError for them unless ``allow_plaintext`` is true. Encrypted statistics have a
        ``key-id`` in the metadata, as in the open pull request apache/iceberg 17533. Raises
        ValueError if the snapshot has no statistics; MetadataIntegrityError if the file is not what
        the metadata says; AuthenticationError, TruncatedError, KmsError, FileNotFoundError.
        """
        entry = self._statistics_entry(snapshot_id)
        if entry is None:
            raise ValueError("the snapshot has no statistics file")
        return read_statistics(entry, self.files, allow_plaintext=allow_plaintext)

    def write_statistics(
        self,
        blobs: Iterable[StatisticsBlob],
        snapshot_id: int | None = None,
        *,
        encrypted_statistics: str,
    ) -> None:
        """Write an encrypted statistics file for a snapshot, by default for the current one.

        ``encrypted_statistics`` names the form, and must be ``"draft-17533"``. **The specification
        is not final**: the form is that of the open pull request apache/iceberg 17533, and may
        change. Java up to 1.12 reads such a table, and its next commit removes the ``key-id`` from
        the statistics. They cannot be read then: write them again. ``StatisticsBlob.all_of`` takes
        the blobs of a file that another writer has made. An earlier file of the snapshot is not
        deleted; ``verify_table`` reports it.

        Raises ValueError for another form or an unknown snapshot, NotImplementedError if the
        catalog does not keep the ``key-id``, and what a commit raises.
        """
        if encrypted_statistics != DRAFT:
            raise ValueError(
                "encrypted statistics are a draft of the specification, which may change: pass "
                f"encrypted_statistics={DRAFT!r}, not {encrypted_statistics!r}"
            )
        if snapshot_id is None:
            snapshot_id = self.version.json.get("current-snapshot-id", -1)
        transaction = self.transaction()
        with transaction:  # an interrupt leaves no file
            writer = StatisticsWriter(transaction.output, self.view(), snapshot_id)
            writer.write(blobs)
            transaction.stage_step(KeyStep(writer.change))
        entry = self._statistics_entry(snapshot_id)
        if entry is not None and entry.get("key-id") is None:
            transaction = self.transaction()
            remove = {"action": "remove-statistics", "snapshot-id": snapshot_id}
            transaction.stage_updates([remove], [])
            transaction.commit_transaction()
            raise NotImplementedError(
                "the catalog does not keep the key-id of statistics, so they cannot be encrypted: "
                "they were removed again"
            )

    def _statistics_entry(self, snapshot_id: int | None) -> Mapping[str, Any] | None:
        if snapshot_id is None:
            snapshot_id = self.version.json.get("current-snapshot-id")
        entries = self.version.json.get("statistics") or ()
        return next((e for e in entries if e["snapshot-id"] == snapshot_id), None)

    def rotate_keys(self) -> None:
        """Make a new KEK, wrap the key of every snapshot with it, and remove the old KEKs.

        No file and no snapshot changes. Java's next commit may use any unexpired KEK that it knows,
        and after a rotation only the new one is left. But a Java session that holds the table adds
        an old KEK again until it runs ``REFRESH TABLE``. Rotate again after that. Earlier metadata
        files still have the old KEKs.

        Raises KmsError, and AuthenticationError or KeyMetadataError if a key cannot be unwrapped.
        If nothing refers to such a key, it stays as it is; ``prune_keys`` removes it.
        """
        self._change_keys(rotation.rotate)

    def rewrap_keys(self, table_key_id: str | None = None, kms: KmsClient | None = None) -> None:
        """Wrap all KEKs with another master key, which may be in another KMS. Without arguments,
        wrap them with the newest version of their own master key.

        No file and no snapshot changes. After a change of the KMS, load the table from a catalog
        that is configured for the new one. Destroy the old master key only after all writers have
        loaded the table anew and the metadata is verified. Raises KmsError.
        """
        self._change_keys(
            lambda metadata, manager: rotation.rewrap(metadata, manager, kms, table_key_id)
        )

    def prune_keys(self) -> list[str]:
        """Remove the keys that no snapshot and no statistics file in the metadata refers to; return
        their IDs. Neither Java nor an expiry removes them. Raises KeyMetadataError if the key of a
        snapshot is missing."""
        return [key.key_id for key in self._change_keys(rotation.prune)]

    def expire_snapshots(
        self,
        older_than: datetime | None = None,
        retain_last: int | None = None,
        snapshot_ids: Collection[int] = (),
        *,
        delete_files: bool = True,
        prune_keys: bool = False,
        dry_run: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> Expiry:
        """Remove old snapshots and the files that only they need; return what was removed.

        Each branch keeps its last ``retain_last`` snapshots, and those made at ``older_than`` or
        later. If an argument is None, the table's ``history.expire.*`` properties decide; their
        defaults are one snapshot and five days. ``snapshot_ids`` are removed as well. If
        ``dry_run`` is true, nothing is removed. ``progress`` is called with the number of deleted
        files and the number of all. If ``prune_keys`` or the table's property
        ``encryption.keys.prune-on-commit`` is true, the same commit removes the keys that nothing
        needs any more. Otherwise the keys stay.

        Raises ValueError for invalid arguments, and ValidationException if ``gc.enabled`` is not
        true. Files that could not be deleted are in ``Expiry.left_behind``.
        """
        moment = None if older_than is None else round(older_than.timestamp() * 1000)

        def plan_for(metadata: dict[str, Any]) -> ExpiryPlan:
            return expire(
                metadata, older_than_ms=moment, retain_last=retain_last, snapshot_ids=snapshot_ids
            )

        folders = self.folders
        step = ExpiryStep(plan_for)
        steps: list[Step] = [step, KeyStep(rotation.prune)] if prune_keys else [step]
        if dry_run:
            attempt = Attempt(self, ManifestCache())
            attempt.apply(steps)
            attempt.finish()
            after = attempt.view.metadata
        else:
            self._commit(*steps)
            after = self.version.json
        plan, view = step.plan, step.view
        kept = {key["key-id"] for key in after.get("encryption-keys") or ()}
        key_ids = (key.key_id for key in view.manager.encryption_keys)
        done = Expiry(
            plan.snapshot_ids,
            plan.refs,
            ExpiredFiles(),
            key_ids=tuple(key_id for key_id in key_ids if key_id not in kept),
        )
        if dry_run:
            return replace(done, files=plan.find_files(view.files, folders))
        if not delete_files:
            return done
        files = plan.find_files(view.files, folders, TableView(after, self.files))
        return replace(done, files=files, failed=files.delete(self.output(), progress))

    def commit_expiry(self, plan_for: Callable[[dict[str, Any]], ExpiryPlan]) -> ExpiryStep:
        """Commit the expiry that ``plan_for`` returns for a version of the metadata. Deletes no
        file."""
        step = ExpiryStep(plan_for)
        self._commit(step)
        return step

    def _commit(self, *steps: Step) -> None:
        transaction = self.transaction()
        for step in steps:
            transaction.stage_step(step)
        transaction.commit_transaction()

    def commit_without_rows(
        self, change: Callable[[TableView], FileChange], branch: str | None = MAIN_BRANCH
    ) -> None:
        """Commit a change that adds and deletes no rows. If another writer commits first,
        ``change`` is called again for the new version of the table, so there are no conflicts."""
        transaction = self.transaction()
        transaction.stage_step(RecomputedSnapshotStep(transaction.output, change, branch))
        transaction.commit_transaction()

    def erase_deleted_rows(
        self,
        *,
        branch: str = MAIN_BRANCH,
        remove_orphans: bool = False,
        orphans_older_than: datetime | None = None,
        no_other_writers: bool = False,
        threads: int | None = None,
        dry_run: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> Erasure:
        """Erase the deleted rows of a branch for good; return what was done, and what is left.

        This rewrites the data files that have deleted rows, expires all earlier snapshots of the
        branch and those that no branch or tag has, and deletes the files that only they needed,
        with all earlier metadata files. Time travel ends. ``Erasure.remaining`` says what may still
        have deleted rows, such as other branches and tags, and what to do about it. With
        ``remove_orphans``, files of writers that failed are deleted too;
        ``orphans_older_than`` and ``no_other_writers`` are those of ``remove_orphan_files``. With
        ``dry_run``, nothing is changed. ``threads`` and ``progress`` are those of
        ``rewrite_data_files``. If the call is interrupted or fails, call it again.

        Raises ValidationException if ``gc.enabled`` is not true or another writer has changed a
        rewritten file meanwhile, ValueError for a branch that does not exist, and what reading and
        writing raises. Files that could not be deleted are in ``Erasure.failed``.
        """
        limit = None
        if remove_orphans:
            limit = age_limit(
                orphans_older_than, no_other_writers=no_other_writers, name="orphans_older_than"
            )
        return erase(self, branch, threads, progress, orphans_older_than_ms=limit, dry_run=dry_run)

    def remove_orphan_files(
        self,
        older_than: datetime | None = None,
        *,
        location: str | None = None,
        prefix_mismatch_mode: PrefixMismatchMode = "error",
        no_other_writers: bool = False,
        dry_run: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> OrphanFiles:
        """Delete the files in the table's folders that nothing needs and that were last changed
        before ``older_than``; return them. The arguments are those of Iceberg's procedure.

        The default of ``older_than`` is three days ago. Only its age distinguishes a file of a
        commit that is under way from an orphan file, so a limit of less than 24 hours is refused
        unless ``no_other_writers`` is true. A file stays if a snapshot, a branch or tag, the
        metadata log or the statistics have it, even under another spelling of its location. It also
        stays if its age is unknown. Folders of other tables stay. ``location`` is a folder of the
        table; only files below it are deleted. If the table needs a file with the same path in
        another bucket or on another host, ``prefix_mismatch_mode`` decides: ``error`` (raise),
        ``ignore`` (the file stays) or ``delete``. ``dry_run`` deletes nothing. ``progress`` is
        called with the number of deleted files and the number of all. If the call is interrupted,
        call it again.

        The table is loaded again, so it is at its newest version afterwards. Raises ValueError for
        invalid arguments, ValidationException if ``gc.enabled`` is not true, and as
        ``find_orphans``. If one manifest cannot be read, nothing is deleted. Files that could not
        be deleted are in ``OrphanFiles.failed``.
        """
        limit = age_limit(older_than, no_other_writers=no_other_writers)
        output = None if dry_run else self.output()
        orphans = find_orphans(
            self,
            limit,
            location=location,
            prefix_mismatch_mode=prefix_mismatch_mode,
            refresh=self.refresh,
        )
        return orphans if output is None else orphans.delete(output, self.folders, progress)

    def rekey(
        self,
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
        transaction = self.transaction()
        meter = Meter(progress)
        rewriter = Rewriter(transaction.output, executor or RewriteThreads(threads), meter.done)
        rekeying = Rekeying(rewriter, Choice(select, expression, case_sensitive, exposed))
        view = self.view().at(branch)
        plan = rekeying.plan(view)
        meter.total = plan.size
        done = Rekeyed(len(plan.files), plan.size, rekeying.plaintext_manifests(view))
        if dry_run or (plan.is_empty and not done.manifests):
            return done
        # What other writers removed stays removed, and their new deletes are applied.
        step = RecomputedSnapshotStep(transaction.output, rekeying.change, branch)
        transaction.stage_step(step)
        transaction.commit_transaction()
        return done

    def rewrite_data_files(
        self,
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
        options down to ``remove_dangling_deletes`` are those of ``RewriteOptions``, which says what
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
                f"partial_progress_max_commits is {partial_progress_max_commits}: it must be at "
                "least 1"
            )
        expression = parse_row_filter(row_filter)
        self.output()  # raises if the table cannot be written to
        at_once = RewriteThreads(threads)
        plan = plan_compaction(
            self.view().at(branch), options, expression, case_sensitive=case_sensitive
        )
        if dry_run or plan.is_empty:
            return plan.expected()
        meter = Meter(progress)
        meter.total = plan.size
        if not partial_progress:
            return self._compact(plan, plan.groups, at_once, meter, branch).done
        return self._compact_in_parts(plan, partial_progress_max_commits, at_once, meter, branch)

    def _compact(
        self,
        plan: CompactionPlan,
        groups: Sequence[FileGroup],
        threads: RewriteThreads,
        meter: Meter,
        branch: str | None,
        removed: Collection[Identity] = (),
    ) -> Compaction:
        """Rewrite groups of a compaction and commit them."""
        transaction = self.transaction()
        compaction = Compaction(
            plan, groups, transaction.output, threads, meter.add, removed=removed
        )
        step = SnapshotStep(
            transaction.output, compaction.change, {}, branch, recheck=compaction.recheck
        )
        transaction.stage_step(step)
        transaction.commit_transaction()
        return compaction

    def _compact_in_parts(
        self,
        plan: CompactionPlan,
        commits: int,
        threads: RewriteThreads,
        meter: Meter,
        branch: str | None,
    ) -> Compacted:
        """Rewrite the groups of a compaction in several commits. If no part was committed, raises
        what the last one has raised."""
        result = Compacted()
        removed: frozenset[Identity] = frozenset()
        failure: Exception | None = None
        for groups in plan.batches(commits):
            try:
                part = self._compact(plan, groups, threads, meter, branch, removed)
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

    def _change_keys(
        self, compute: Callable[[dict[str, Any], EncryptionManager], KeyChange]
    ) -> tuple[EncryptedKey, ...]:
        """Commit a change of the table's keys; return the keys that it has removed."""
        before = self.view().manager
        step = KeyStep(compute)
        self._commit(step)
        if rotation.snapshots_without_keys(self.version.json):
            # Over REST, another writer may have added a snapshot whose key is wrapped with the
            # former master key.
            updates = rotation.adopt(self.version.json, before, self.view().manager)
            uuid = {"type": "assert-table-uuid", "uuid": self.version.json["table-uuid"]}
            transaction = self.transaction()
            transaction.stage_updates(updates, [uuid])
            transaction.commit_transaction()
            missing = rotation.snapshots_without_keys(self.version.json)
            if missing:
                raise MetadataIntegrityError(
                    f"the keys of snapshots {missing} are missing: another writer committed during "
                    "the change of keys. Take them from the previous metadata file",
                    file=self.metadata_location,
                )
        return step.removed

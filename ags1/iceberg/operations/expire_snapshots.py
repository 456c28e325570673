"""Removes old snapshots, and the files that only they need: what ``expire`` plans is committed, and
then the files are deleted. ``table.maintenance``, PyIceberg's builder, deletes no files."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

from pyiceberg.table.maintenance import MaintenanceTable
from pyiceberg.table.update.snapshot import ExpireSnapshots

from ..commit.session import TableSession
from ..pyiceberg.tables import ExpiryBuilder
from ..spec.moments import Moment, epoch_ms
from ..spec.table_keys import prune
from ..steps import Attempt, CommitRequest, KeyStep, Step
from ..storage.table_files import ManifestCache
from ..transaction import EncryptedTransaction, commit_steps
from ..write.view import TableView
from .expire import ExpiryPlan, expire, expire_chosen
from .expired_files import ExpiredFiles


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


class ExpiryStep(Step):
    """An expiry of snapshots. ``plan`` and ``view`` are those of the last tried version."""

    plan: ExpiryPlan
    view: TableView

    def __init__(self, compute: Callable[[dict[str, Any]], ExpiryPlan]) -> None:
        self._compute = compute

    def stage(self, view: TableView) -> CommitRequest:
        self.view = view
        self.plan = self._compute(view.metadata)
        return self.plan.updates, self.plan.requirements


def expire_snapshots(
    table: TableSession,
    older_than: Moment | None = None,
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
    later, which is a ``datetime``, or an age such as ``"7d"`` or ``timedelta(7)``. If an argument
    is None, the table's ``history.expire.*`` properties decide; their defaults are one snapshot and
    five days. ``snapshot_ids`` are removed as well. If
    ``dry_run`` is true, nothing is removed. ``progress`` is called with the number of deleted
    files and the number of all. If ``prune_keys`` or the table's property
    ``encryption.keys.prune-on-commit`` is true, the same commit removes the keys that nothing
    needs any more. Otherwise the keys stay.

    Raises ValueError or TypeError for invalid arguments, and ValidationException if ``gc.enabled``
    is not true. Files that could not be deleted are in ``Expiry.left_behind``.
    """
    limit = None if older_than is None else epoch_ms(older_than, "older_than")

    def plan_for(metadata: dict[str, Any]) -> ExpiryPlan:
        return expire(
            metadata, older_than_ms=limit, retain_last=retain_last, snapshot_ids=snapshot_ids
        )

    folders = table.folders
    step = ExpiryStep(plan_for)
    steps: list[Step] = [step, KeyStep(prune)] if prune_keys else [step]
    files = ExpiredFiles()
    if dry_run:

        def would() -> tuple[dict[str, Any], ExpiredFiles]:
            attempt = Attempt(table, ManifestCache())
            attempt.apply(steps)
            attempt.finish()
            return attempt.view.metadata, step.plan.find_files(step.view.files, folders)

        after, files = table.or_newer(would)
    else:
        commit_steps(table, *steps)
        after = table.version.json
    plan, view = step.plan, step.view
    kept = {key["key-id"] for key in after.get("encryption-keys") or ()}
    key_ids = (key.key_id for key in view.manager.encryption_keys)
    done = Expiry(
        plan.snapshot_ids,
        plan.refs,
        files,
        key_ids=tuple(key_id for key_id in key_ids if key_id not in kept),
    )
    if dry_run or not delete_files:
        return done

    def found() -> ExpiredFiles:
        return plan.find_files(view.files, folders, table.view())

    files = table.or_newer(found)
    return replace(done, files=files, failed=files.delete(table.output(), progress))


class EncryptedMaintenance(MaintenanceTable):
    """PyIceberg's ``table.maintenance``."""

    def expire_snapshots(self) -> ExpireSnapshots:
        """Return PyIceberg's builder: ``by_id``, ``by_ids``, ``older_than``, then ``commit``.

        ``commit`` removes the chosen snapshots from the metadata and deletes no file.
        ``EncryptedTable.expire_snapshots`` also deletes the files that no snapshot needs any more.
        If a branch or tag refers to a snapshot at the time of the commit, the snapshot stays.
        Raises ValidationException if ``gc.enabled`` is not true, and NotImplementedError as
        ``EncryptedTable.transaction`` does.
        """
        return _ExpireSnapshots(EncryptedTransaction(self.tbl, autocommit=True))  # type: ignore[arg-type]


class _ExpireSnapshots(ExpiryBuilder):
    _transaction: EncryptedTransaction

    def commit(self) -> None:
        chosen = self.chosen
        self._transaction.stage_step(ExpiryStep(lambda metadata: expire_chosen(metadata, chosen)))
        self._transaction.commit_transaction()

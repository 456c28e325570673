"""``table.maintenance`` of an encrypted table: PyIceberg's builders, committed by our rules.

Knows nothing of files: as in PyIceberg, none is deleted.
"""

from __future__ import annotations

from pyiceberg.table.maintenance import MaintenanceTable
from pyiceberg.table.update.snapshot import ExpireSnapshots

from ..writing.transaction import EncryptedTransaction, ExpiryStep
from .expiry import expire_chosen


class EncryptedMaintenance(MaintenanceTable):
    """PyIceberg's ``table.maintenance``."""

    def expire_snapshots(self) -> ExpireSnapshots:
        """Return PyIceberg's builder: ``by_id``, ``by_ids``, ``older_than``, then ``commit``.

        ``commit`` forgets the snapshots that were chosen and deletes no file;
        ``EncryptedTable.expire_snapshots`` deletes those that nothing reaches any more. Snapshots
        that are a branch's or tag's by the time of the commit stay. Raises ValidationException
        where ``gc.enabled`` is not true, and NotImplementedError as ``EncryptedTable.transaction``.
        """
        return _ExpireSnapshots(EncryptedTransaction(self.tbl, autocommit=True))  # type: ignore[arg-type]


class _ExpireSnapshots(ExpireSnapshots):
    _transaction: EncryptedTransaction

    def commit(self) -> None:
        chosen = frozenset(self._snapshot_ids_to_expire)
        self._transaction.stage_step(ExpiryStep(lambda metadata: expire_chosen(metadata, chosen)))
        self._transaction.commit_transaction()

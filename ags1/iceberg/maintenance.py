"""``table.maintenance`` of an encrypted table: PyIceberg's builder with a commit of our own.

As in PyIceberg, this deletes no files.
"""

from __future__ import annotations

from pyiceberg.table.maintenance import MaintenanceTable
from pyiceberg.table.update.snapshot import ExpireSnapshots

from .operations.expire import expire_chosen
from .pyiceberg.tables import ExpiryBuilder
from .steps import ExpiryStep
from .transaction import EncryptedTransaction


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

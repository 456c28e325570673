"""PyIceberg's table, transaction and builders, with hooks for our commits."""

from __future__ import annotations

from typing import Any

from pyiceberg.expressions import BooleanExpression
from pyiceberg.partitioning import PartitionField
from pyiceberg.table import ALWAYS_TRUE, DataScan, Table, Transaction
from pyiceberg.table.update import TableRequirement, TableUpdate
from pyiceberg.table.update.snapshot import ExpireSnapshots
from pyiceberg.table.update.spec import UpdateSpec
from pyiceberg.transforms import Transform

from ..spec.moments import Moment, moment

# Raises ValueError if the new metadata of a table has another UUID.
check_uuid = Table._check_uuid


class BuiltTable(Table):
    """PyIceberg's table. Its builders, for example ``update_schema``, call ``commit_built``."""

    def commit_built(
        self, updates: tuple[TableUpdate, ...], requirements: tuple[TableRequirement, ...]
    ) -> None:
        """Commit the updates of a builder."""
        raise NotImplementedError

    def _do_commit(
        self, updates: tuple[TableUpdate, ...], requirements: tuple[TableRequirement, ...]
    ) -> None:
        self.commit_built(updates, requirements)


class BuiltTransaction(Transaction):
    """PyIceberg's transaction. Its builders call ``stage_built``."""

    @property
    def commits_each_step(self) -> bool:
        """Whether each change is committed at once."""
        return self._autocommit

    def stage_built(
        self, updates: tuple[TableUpdate, ...], requirements: tuple[TableRequirement, ...]
    ) -> None:
        """Stage the updates of a builder."""
        raise NotImplementedError

    def _stage(
        self, updates: tuple[TableUpdate, ...], requirements: tuple[TableRequirement, ...] = ()
    ) -> Transaction:
        self.stage_built(updates, requirements)
        return self

    def scan(
        self, row_filter: str | BooleanExpression = ALWAYS_TRUE, case_sensitive: bool = True
    ) -> DataScan:
        """Return a scan of the table with the transaction's changes."""
        raise NotImplementedError

    def _scan(
        self, row_filter: str | BooleanExpression = ALWAYS_TRUE, case_sensitive: bool = True
    ) -> DataScan:
        return self.scan(row_filter, case_sensitive)


class ExpiryBuilder(ExpireSnapshots):
    """PyIceberg's builder that chooses the snapshots to expire. Subclasses commit."""

    @property
    def chosen(self) -> frozenset[int]:
        """The IDs of the chosen snapshots."""
        return frozenset(self._snapshot_ids_to_expire)

    def older_than(self, dt: Moment) -> ExpireSnapshots:
        """Choose the snapshots made before ``dt``, which may be an age such as ``"7d"`` too."""
        return super().older_than(moment(dt, "dt"))


class ReusingUpdateSpec(UpdateSpec):
    """PyIceberg's builder of partition specs. A partition field that is added again gets its former
    ID. With another one, as PyIceberg's in version 3, Java cannot read some metadata tables."""

    def _partition_field(
        self, transform_key: tuple[int, Transform[Any, Any]], name: str | None
    ) -> PartitionField:
        source_id, transform = transform_key
        for spec in self._transaction.table_metadata.specs().values():
            for field in spec.fields:
                is_same = field.source_id == source_id and str(field.transform) == str(transform)
                if is_same and name in (None, field.name):
                    return PartitionField(source_id, field.field_id, transform, field.name)
        return super()._partition_field(transform_key, name)


def transaction_table(transaction: Transaction) -> Table:
    """Return the table that a transaction changes or will create."""
    return transaction._table

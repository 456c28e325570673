"""The changes of a table beside the differences of its snapshots' rows.

The judge is subtraction of multisets: the rows of one snapshot less those of another.
"""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

from pyiceberg.table.snapshots import Operation, ancestors_of

from ags1.iceberg import EncryptedTable

LABELS = ("_change_type", "_change_ordinal", "_commit_snapshot_id")
SIGNS = {"INSERT": 1, "UPDATE_AFTER": 1, "DELETE": -1, "UPDATE_BEFORE": -1}

Rows = Counter[str]


def rows_at(table: EncryptedTable, snapshot_id: int | None, row_filter: str = "true") -> Rows:
    """Return how often each row is there, in the table's present columns; none before the first
    snapshot."""
    if snapshot_id is None:
        return Counter()
    found = table.scan(row_filter, snapshot_id=snapshot_id).to_arrow().to_pylist()
    names = [field.name for field in table.schema().fields]
    return Counter(repr({name: row.get(name) for name in names}) for row in found)


def without_labels(row: dict[str, Any]) -> str:
    return repr({name: value for name, value in row.items() if name not in LABELS})


def difference(after: Rows, before: Rows) -> dict[tuple[str, str], int]:
    """Return how often each row is inserted and deleted."""
    inserted = {("INSERT", row): n for row, n in (after - before).items()}
    return inserted | {("DELETE", row): n for row, n in (before - after).items()}


def check_changes(table: EncryptedTable, row_filter: str = "true") -> int:
    """Check the changes of each snapshot of the main branch, and the net changes since each of
    them; return the number of changes."""
    # The log has no snapshot that another one of its commit followed.
    ancestors = list(ancestors_of(table.current_snapshot(), table.metadata))[::-1]
    snapshots = [snapshot.snapshot_id for snapshot in ancestors]
    states = {n: rows_at(table, n, row_filter) for n in (None, *snapshots)}
    every = table.changelog_scan(row_filter=row_filter).to_arrow().to_pylist()
    counted = [s for s in ancestors if s.summary and s.summary.operation != Operation.REPLACE]
    ordinals = {snapshot.snapshot_id: ordinal for ordinal, snapshot in enumerate(counted)}
    found = Counter(
        (row["_commit_snapshot_id"], row["_change_type"], without_labels(row)) for row in every
    )
    expected = {
        (number, kind, row): count
        for before, number in itertools.pairwise((None, *snapshots))
        for (kind, row), count in difference(states[number], states[before]).items()
    }
    assert found == expected, (found - Counter(expected), Counter(expected) - found)
    order = [(row["_change_ordinal"], row["_change_type"] == "INSERT") for row in every]
    assert order == sorted(order)
    assert all(row["_change_ordinal"] == ordinals[row["_commit_snapshot_id"]] for row in every)
    for first in (None, *snapshots):
        scan = table.changelog_scan(
            from_snapshot_id_exclusive=first, row_filter=row_filter, net_changes=True
        )
        net = Counter((r["_change_type"], without_labels(r)) for r in scan.to_arrow().to_pylist())
        assert net == difference(states[snapshots[-1]], states[first])
    return len(every)

"""Deletes rows by a filter. ``write/deletes.py`` plans what becomes of the files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyiceberg.expressions import BooleanExpression
from pyiceberg.table import ALWAYS_TRUE
from pyiceberg.table.snapshots import Summary
from pyiceberg.typedef import EMPTY_DICT

from ..commit.session import TableSession
from ..pyiceberg.expressions import parse_row_filter
from ..spec.constants import MAIN_BRANCH
from ..transaction import EncryptedTransaction
from ..write.copy_on_write import is_copy_on_write
from ..write.deletes import DeletePlan, find_deletes


@dataclass(frozen=True, slots=True)
class RowsDeleted:
    """What a delete has done, or would do. ``snapshot_ids`` are the new snapshots; there is none
    after a dry run, and if nothing was deleted. ``dropped_files`` counts the data files that are
    not in the table any more, ``marked_files`` those with a new deletion vector. If the table's
    ``write.delete.mode`` is copy-on-write, ``rewritten_files`` counts the new files, which have the
    rows that stay of files that were dropped."""

    snapshot_ids: tuple[int, ...] = ()
    deleted_rows: int = 0
    dropped_files: int = 0
    marked_files: int = 0
    rewritten_files: int = 0


def delete(
    table: TableSession,
    delete_filter: BooleanExpression | str = ALWAYS_TRUE,
    snapshot_properties: dict[str, str] = EMPTY_DICT,
    case_sensitive: bool = True,
    branch: str | None = MAIN_BRANCH,
    *,
    dry_run: bool = False,
) -> RowsDeleted:
    """Delete the rows for which the filter is true; return what was deleted. The arguments are
    PyIceberg's, whose method returns None.

    If ``dry_run`` is true, the files are read as for a delete, but nothing is written. Its
    ``rewritten_files`` is the number of files to rewrite; there may be more new ones. Warns and
    raises as ``EncryptedTransaction.delete`` and its commit. A dry run does not warn.
    """
    if dry_run:
        row_filter = parse_row_filter(delete_filter)

        def plan() -> DeletePlan:
            view = table.view().at(branch)
            return find_deletes(view, row_filter, case_sensitive=case_sensitive)

        return _expected(table.or_newer(plan), is_copy_on_write(table.properties, "delete"))
    transaction = EncryptedTransaction(table)
    with transaction:
        transaction.delete(delete_filter, snapshot_properties, case_sensitive, branch)
    ids = transaction.snapshot_ids
    made = (snapshot.summary for snapshot in table.snapshots() if snapshot.snapshot_id in ids)
    return _done(ids, [summary for summary in made if summary is not None])


def _expected(plan: DeletePlan, rewrites: bool) -> RowsDeleted:
    changed = len(plan.vectors)
    return RowsDeleted(
        deleted_rows=plan.matched_rows,
        dropped_files=len(plan.dropped) + (changed if rewrites else 0),
        marked_files=0 if rewrites else changed,
        rewritten_files=changed if rewrites else 0,
    )


def _done(snapshot_ids: tuple[int, ...], summaries: Sequence[Summary]) -> RowsDeleted:
    def total(name: str) -> int:
        return sum(int(summary[name] or 0) for summary in summaries)

    # Rows that stay of a file that was rewritten are added again.
    gone = total("deleted-records") - total("added-records")
    # A deletion vector has the rows of the one before it, too.
    marked = total("added-position-deletes") - total("removed-position-deletes")
    return RowsDeleted(
        snapshot_ids,
        deleted_rows=gone + marked,
        dropped_files=total("deleted-data-files"),
        marked_files=total("added-dvs"),
        rewritten_files=total("added-data-files"),
    )

"""The commands ``ags1 table delete|drop``: delete rows of a table, or drop it."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import click

from ...errors import Ags1Error
from ..console import Output
from ..exits import Command
from ..options import confirm, flag, output, yes
from ..results import BranchResult, TableResult
from . import options
from .catalogs import ChangedCatalog
from .filters import parsed_filter
from .options import TableOptions

if TYPE_CHECKING:
    from ...iceberg.command_line import EncryptedTable, RowsDeleted


@dataclass(frozen=True, slots=True, kw_only=True)
class _Deleted(BranchResult):
    done: RowsDeleted
    PARTS: ClassVar = (
        "{deleted_rows:row} deleted",
        "{dropped_files:file} dropped",
        "rows of {marked_files:file} marked",
        "{rewritten_files:file} written with the rows that stay",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Dropped(TableResult):
    purge: bool
    metadata_location: str | None
    files: int
    left_behind: Sequence[str]
    PARTS: ClassVar = (
        "dropped",
        "its metadata is {metadata_location}",
        "{files:file} deleted",
        "{left_behind:file} left behind (--json lists them)",
    )


@click.command(cls=Command, short_help="Delete the rows for which a filter is true.")
@options.changing()
@click.argument("filter_argument", metavar="[FILTER]", required=False)
@click.option("--filter", "row_filter", metavar="EXPR", help="The same as FILTER.")
@options.branch
@options.dry_run("Print what would be deleted.")
@yes
@output
def delete(
    table_options: TableOptions,
    filter_argument: str | None,
    row_filter: str | None,
    branch: str,
    dry_run: bool,
    yes: bool,
    out: Output,
) -> None:
    """Delete the rows for which FILTER, in PyIceberg's syntax, is true.

    If FILTER is true for every row, the command asks first. A file that loses all its rows is
    dropped; in the others a deletion vector marks the deleted rows, or they are rewritten without
    them if the table's write.delete.mode is copy-on-write. Earlier snapshots still have the rows
    until 'ags1 table expire' removes those snapshots.

    Examples:
      ags1 table delete db.flights "carrier = 'XX'" --catalog prod --dry-run
      ags1 table delete db.flights "carrier = 'XX' and day < '2026-01-31'" --catalog prod
    """
    if (filter_argument is None) == (row_filter is None):
        raise click.UsageError("say once which rows to delete: by FILTER or by --filter")
    text = filter_argument if row_filter is None else row_filter
    table = ChangedCatalog(table_options).load()
    expression = parsed_filter(table.schema(), text, "FILTER" if row_filter is None else "--filter")
    if not dry_run:
        _confirm_if_all(table, branch, expression, yes=yes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the result says that nothing matched
        done = table.delete(expression, branch=branch, dry_run=dry_run)
    _Deleted(table=".".join(table.name()), branch=branch, dry_run=dry_run, done=done).show(out)


@click.command(cls=Command)
@options.changing(mapped=False)
@flag("--purge", help="Also delete the table's files.")
@options.dry_run("Print what would be deleted.")
@yes
@output
def drop(table_options: TableOptions, purge: bool, dry_run: bool, yes: bool, out: Output) -> None:
    """Remove a table from its catalog. The command asks first.

    Without --purge, the files stay, and 'ags1 table scan' can read the table by its metadata.json.
    With --purge, the files of all snapshots are deleted; files that failed writers left stay.

    Examples:
      ags1 table drop db.flights --catalog prod
      ags1 table drop db.flights --catalog prod --purge --dry-run
      ags1 table drop db.flights --catalog prod --purge --yes
    """
    opened = ChangedCatalog(table_options, keys=purge)
    location, files = None, 0
    left: Sequence[str] = ()
    if not purge:
        # A table that is damaged can go, too.
        with suppress(Ags1Error, OSError):
            location = opened.catalog.load_table(opened.identifier).metadata_location
        if not dry_run:
            confirm(f"Remove {opened.identifier} from its catalog?", yes=yes)
            opened.catalog.drop_table(opened.identifier)
    else:
        opened.load()  # refuses an unencrypted table
        if not dry_run:
            confirm(f"Drop {opened.identifier} and delete its files?", yes=yes)
        done = opened.catalog.purge_table(opened.identifier, dry_run=dry_run)
        assert done is not None  # the table is encrypted
        files, left = len(done.files.locations), done.left_behind
    _Dropped(
        table=opened.identifier,
        dry_run=dry_run,
        purge=purge,
        metadata_location=location,
        files=files,
        left_behind=left,
    ).show(out)


def _confirm_if_all(table: EncryptedTable, branch: str, expression: Any, *, yes: bool) -> None:
    """Ask before all rows of a branch are deleted."""
    from pyiceberg.expressions import AlwaysTrue

    from ...iceberg.command_line import bind_filter

    # Bound: "id is not null" is true for every row if the column is required.
    if isinstance(bind_filter(expression, table.schema()).expression, AlwaysTrue):
        name = ".".join(table.name())
        rows_of = name if branch == "main" else f"{name}, branch {branch}"
        confirm(f"Delete all rows of {rows_of}?", yes=yes)


COMMANDS = (delete, drop)

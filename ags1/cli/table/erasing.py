"""The commands ``ags1 table remove-orphans|erase``: they delete what a table does not need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar

import click

from ..console import Output, print_line
from ..exits import Command, Exit, one_line
from ..options import confirm, flag, output, yes
from ..report import progress_line
from ..results import BranchResult, TableResult
from . import options
from .catalogs import ChangedCatalog
from .options import TableOptions
from .times import Moment

if TYPE_CHECKING:
    from ...iceberg.command_line import OrphanFiles

# This kind was not searched for. All other kinds were found.
_NOT_SEARCHED = "orphans-not-searched"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Orphans(TableResult):
    """Orphan files, with their size in bytes, and what stays."""

    deleted_files: int
    orphan_file_locations: Sequence[str]
    size: int
    young_files: int
    other_tables: Sequence[str]
    not_searched: Sequence[str]
    failed: Sequence[str]
    PARTS: ClassVar = (
        "{deleted_files:orphan file} deleted, of {size:byte} in all",
        "{young_files:orphan file} too young (--older-than)",
        "kept because they have metadata of other tables: {other_tables}",
        "not searched: {not_searched}",
        "{failed:file} could not be deleted (--json lists them)",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Erased(BranchResult):
    """What an erasure has rewritten and deleted, and what may still have deleted rows."""

    rewritten_files: int
    deleted_files: int
    rewritten: dict[str, int]
    snapshot_ids: Sequence[int]
    files: Sequence[str]
    metadata_files: Sequence[str]
    orphans: dict[str, Any] | None
    failed: Sequence[str]
    remaining: Sequence[Any]
    PARTS: ClassVar = (
        "{rewritten_files:data file} rewritten",
        "{snapshot_ids:snapshot} expired",
        "{deleted_files:file} deleted",
    )


_no_other_writers = flag(
    "--no-other-writers",
    help="Nobody else writes to the table: allow orphan files younger than 24 hours to be deleted.",
)


@click.command("remove-orphans", cls=Command, short_help="Delete files that nothing needs.")
@options.changing()
@click.option(
    "--older-than",
    type=Moment(),
    metavar="AGE|TIME",
    help="Delete files last changed before this: 7d, 36h, or a time in ISO 8601, in UTC if it has "
    "no offset.  [default: 3d]",
)
@click.option("--location", metavar="FOLDER", help="Delete only files below this folder.")
@click.option(
    "--prefix-mismatch",
    type=click.Choice(["error", "ignore", "delete"]),
    default="error",
    help="If the table needs a file with the same path in another bucket or on another host: fail, "
    "leave the file, or delete it.  [default: error]",
)
@_no_other_writers
@options.dry_run("Print what would be deleted.")
@yes
@output
def remove_orphans(
    table_options: TableOptions,
    older_than: datetime | None,
    location: str | None,
    prefix_mismatch: Any,
    no_other_writers: bool,
    dry_run: bool,
    yes: bool,
    out: Output,
) -> int:
    """Delete the files in a table's folders that nothing needs. The command asks first.

    Writers that failed or were killed leave such files. A file stays if a snapshot, a branch or
    tag, the metadata log or the statistics have it. If one manifest cannot be read, nothing is
    deleted. The files of a commit under way look like orphan files. So --older-than must be at
    least 24 hours ago, unless --no-other-writers is given. The dry run prints the location of each
    file. If a file cannot be deleted, the others still are, and the exit status is 6.

    Examples:
      ags1 table remove-orphans db.flights --catalog prod --dry-run
      ags1 table remove-orphans db.flights --catalog prod --older-than 7d --yes
      ags1 table remove-orphans db.flights --catalog prod --location s3://lake/db/flights/data
      ags1 table remove-orphans db.flights --catalog prod --older-than 1h --no-other-writers
    """
    table = ChangedCatalog(table_options).load()
    name = ".".join(table.name())
    if not dry_run:
        confirm(f"Delete the files of {name} that nothing needs?", yes=yes)
    found = table.remove_orphan_files(
        older_than,
        location=location,
        prefix_mismatch_mode=prefix_mismatch,
        no_other_writers=no_other_writers,
        dry_run=dry_run,
    )
    if dry_run and not out.as_json and not out.quiet:
        for location in found.orphan_file_locations:
            print_line(one_line(location))
    code = Exit.IO if found.failed else Exit.OK
    return _Orphans(table=name, dry_run=dry_run, **_orphan_facts(found)).show(out, code)


@click.command(cls=Command, short_help="Erase deleted rows for good.")
@options.changing()
@options.branch
@options.threads
@flag("--orphans", help="Also delete files of writers that failed.")
@click.option(
    "--orphans-older-than",
    type=Moment(),
    metavar="AGE|TIME",
    help="With --orphans: only files last changed before this.  [default: 3d]",
)
@_no_other_writers
@options.dry_run("Print what would be rewritten, expired and deleted.")
@yes
@output
def erase(
    table_options: TableOptions,
    branch: str,
    threads: int | None,
    orphans: bool,
    orphans_older_than: datetime | None,
    no_other_writers: bool,
    dry_run: bool,
    yes: bool,
    out: Output,
) -> int:
    """Erase the deleted rows of a table for good. The command asks first.

    It rewrites the data files that have deleted rows, expires all earlier snapshots of the branch,
    and deletes the files that only those needed, with all earlier metadata files. Time travel
    ends. Then it prints what may still have deleted rows and what to do about it, such as tags.
    The command does not see backups, nor older versions of objects in a bucket. If a run was
    interrupted, repeat the command.

    The exit status is 8 if something may still have deleted rows, and 6 if a file could not be
    deleted. Files of writers that failed may have deleted rows too. They are searched for only with
    --orphans, and without it they do not change the exit status. A dry run exits with 0.

    Examples:
      ags1 table erase db.flights --catalog prod --dry-run
      ags1 table erase db.flights --catalog prod --yes
      ags1 table erase db.flights --catalog prod --orphans --orphans-older-than 2d --json
    """
    if not orphans and (orphans_older_than is not None or no_other_writers):
        raise click.UsageError("--orphans-older-than and --no-other-writers need --orphans")
    table = ChangedCatalog(table_options).load()
    name = ".".join(table.name())
    if not dry_run:
        question = f"Erase the deleted rows of {name}, with all its earlier snapshots?"
        confirm(question, yes=yes)
    with progress_line(name, out) as progress:
        done = table.erase_deleted_rows(
            branch=branch,
            remove_orphans=orphans,
            orphans_older_than=orphans_older_than,
            no_other_writers=no_other_writers,
            threads=threads,
            dry_run=dry_run,
            progress=progress,
        )
    found = done.orphans
    deleted_files = len(done.files) + len(done.metadata_files)
    deleted_files += 0 if found is None else len(found.files) - len(found.failed)
    code = Exit.OK
    if not dry_run and done.failed:
        code = Exit.IO
    elif not dry_run and any(remaining.kind != _NOT_SEARCHED for remaining in done.remaining):
        code = Exit.ROWS_LEFT
    _Erased(
        table=name,
        branch=branch,
        dry_run=dry_run,
        rewritten_files=done.rewritten.rewritten_data_files_count,
        deleted_files=deleted_files,
        rewritten=asdict(done.rewritten),
        snapshot_ids=done.snapshot_ids,
        files=done.files,
        metadata_files=done.metadata_files,
        orphans=None if found is None else _orphan_facts(found),
        failed=done.failed,
        remaining=done.remaining,
    ).show(out, code)
    if not out.as_json:
        for remaining in done.remaining:
            is_note = remaining.kind == _NOT_SEARCHED
            if not is_note or not out.quiet:
                label = "note" if is_note else "may still have deleted rows"
                print_line(one_line(f"{label}: {remaining.message}. To do: {remaining.remedy}"))
    return code


def _orphan_facts(found: OrphanFiles) -> dict[str, Any]:
    return {
        "deleted_files": len(found.files) - len(found.failed),
        "orphan_file_locations": found.orphan_file_locations,
        "size": found.size,
        "young_files": found.young_files,
        "other_tables": found.other_tables,
        "not_searched": found.not_searched,
        "failed": found.failed,
    }


COMMANDS = (remove_orphans, erase)

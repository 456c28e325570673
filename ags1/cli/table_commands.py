"""The commands ``ags1 table …``: encrypted Iceberg tables described, read, listed and verified.

Those that change a table are in ``table_writing`` and ``table_maintenance``.

Imports nothing that help doesn't need; PyIceberg and Arrow come in with the first table.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import IO, TYPE_CHECKING, Any, TypeVar, cast

import click

from . import options, table_maintenance, table_options, table_writing
from .failures import EXIT_STATUS, EXPECTED, Exit
from .table_options import TableOptions

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

    from ..iceberg import EncryptedTable
    from ..iceberg.findings import TableVerification

Command = TypeVar("Command", bound=Callable[..., Any])


def _reporting(command: Command) -> Command:
    """Have failures over the table told with our exit codes."""

    @functools.wraps(command)
    def guarded(where: TableOptions, *arguments: Any, **more: Any) -> int:
        from .failures import describe, one_line
        from .standard import STDOUT, print_error

        try:
            return int(command(where, *arguments, **more))
        except EXPECTED as error:
            failure = describe(error, where.table)
            if failure.file == STDOUT:
                raise
            print_error(f"ags1: {one_line(failure.message)}")
            return failure.exit_code

    return cast("Command", guarded)


_at_snapshot = click.option(
    "--snapshot", "snapshot_id", type=int, metavar="ID", help="Read this snapshot."
)
_at_ref = click.option("--ref", metavar="NAME", help="Read what this branch or tag names.")
require_encrypted = click.option(
    "--require-encrypted",
    is_flag=True,
    help="Refuse unencrypted data files. The format allows them.",
)
strict = click.option("--strict", is_flag=True, help="Fail on warnings, too.")
no_list = click.option(
    "--no-list",
    is_flag=True,
    help="Don't look through the table's folder for files that no snapshot has.",
)
as_json = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object: all that was found."
)
errors_only = click.option(
    "-q", "--quiet", is_flag=True, help="Errors only: no progress bar, no warnings, no notes."
)


@click.group(
    "table",
    invoke_without_command=True,
    epilog="""
\b
Examples:
  ags1 table info warehouse/db/flights
  ags1 table verify s3://lake/db/flights --kms aws --key alias/tables
  ags1 table scan db.flights --catalog prod --filter "day = '2026-01-31'"
  ags1 table create db.flights --catalog prod --like flights.parquet
  ags1 table append db.flights --catalog prod flights.parquet
""",
)
@click.pass_context
def table(ctx: click.Context) -> None:
    """Read, verify, write and maintain encrypted Iceberg tables."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help(), err=True)
        ctx.exit(Exit.USAGE)


@table.command(
    epilog=f"""
\b
Examples:
  ags1 table info warehouse/db/flights
  ags1 table info db.flights --catalog prod --json | jq .keks

{EXIT_STATUS}"""
)
@table_options.opening
@click.option("--json", "as_json", is_flag=True, help="Print the facts as a JSON object.")
@_reporting
def info(where: TableOptions, as_json: bool) -> int:
    """Show a table's snapshots and keys, and which of its files are unencrypted. Needs no key."""
    import json

    from .failures import one_line
    from .standard import print_line
    from .table_facts import describe_table, table_lines
    from .tables import open_table

    facts = describe_table(open_table(where, _ignore if as_json else _note, keys=False))
    if as_json:
        print_line(json.dumps({**facts, "ok": True}))
    else:
        for line in table_lines(facts):
            print_line(one_line(line))
    return Exit.OK


@table.command(
    epilog=f"""
\b
Examples:
  ags1 table scan warehouse/db/flights --limit 10
  ags1 table scan db.flights --catalog prod --columns id,day --format csv
  ags1 table scan db.flights --catalog prod --filter "id > 7 and day is not null" \\
      --format jsonl | jq .id
  ags1 table scan warehouse/db/flights --ref audit -o /secure/flights.parquet

{EXIT_STATUS}"""
)
@table_options.opening
@click.option(
    "--filter",
    "row_filter",
    metavar="EXPR",
    help="Rows to read, in PyIceberg's syntax: \"id > 7 and (s = 'a' or s is null)\".",
)
@click.option("--columns", metavar="A,B", help="Columns to read.  [default: all]")
@click.option("--limit", type=click.IntRange(0), metavar="N", help="Stop after so many rows.")
@_at_snapshot
@_at_ref
@click.option(
    "--format",
    "format_",
    type=click.Choice(["table", "jsonl", "csv", "arrow", "parquet"]),
    help="[default: what the output's name ends in, or table]",
)
@click.option(
    "-o",
    "--output",
    type=options.PATH,
    metavar="FILE",
    help="Write to this file, unencrypted. It appears when it is whole.",
)
@options.force
@require_encrypted
@options.quiet
@_reporting
def scan(
    where: TableOptions,
    row_filter: str | None,
    columns: str | None,
    limit: int | None,
    snapshot_id: int | None,
    ref: str | None,
    format_: str | None,
    output: str | None,
    force: bool,
    require_encrypted: bool,
    quiet: bool,
) -> int:
    """Print a table's rows, decrypted.

    Rows are printed as they are read. A damaged file ends the output: it is whole only if the exit
    status is 0. With -o, the file is unencrypted, with the permissions that the umask gives it.
    """
    from .rows import BINARY, WRITERS
    from .standard import BinaryOutput
    from .tables import open_table, pyiceberg_failures

    format_ = format_ or _format_of(output)
    if output is None and format_ in BINARY and sys.stdout is not None and sys.stdout.isatty():
        raise click.UsageError(f"{format_} is not for a terminal: use -o, or a pipe")
    opened = open_table(where, _ignore if quiet else _note, require_encrypted=require_encrypted)
    with pyiceberg_failures(where.table):
        chosen = _snapshot(opened, snapshot_id, ref)
        reader = opened.scan(
            row_filter=_expression(opened, row_filter),
            selected_fields=tuple(columns.split(",")) if columns else ("*",),
            snapshot_id=None if chosen is None else chosen.snapshot_id,
            limit=limit,
        ).to_arrow_batch_reader()
        write = WRITERS[format_]
        if output is None:
            stdout = cast("IO[bytes]", BinaryOutput())
            write(reader, stdout)
            stdout.flush()
            return Exit.OK
        from ..atomic import AtomicFile

        with (
            AtomicFile(output, overwrite=force) as target,
            os.fdopen(target.fd, "wb", closefd=False) as file,
        ):
            write(reader, file)
    return Exit.OK


@table.command(
    epilog=f"""
\b
Examples:
  ags1 table files warehouse/db/flights
  ags1 table files db.flights --catalog prod --json | jq 'select(.encrypted | not)'

{EXIT_STATUS}"""
)
@table_options.opening
@_at_snapshot
@_at_ref
@options.quiet
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")
@_reporting
def files(
    where: TableOptions, snapshot_id: int | None, ref: str | None, quiet: bool, as_json: bool
) -> int:
    """List a snapshot's data and delete files: whether they are encrypted, rows, sizes."""
    import json

    from .failures import one_line
    from .standard import print_line
    from .table_facts import file_line, files_of_snapshot
    from .tables import open_table, pyiceberg_failures

    opened = open_table(where, _ignore if quiet or as_json else _note)
    with pyiceberg_failures(where.table):
        chosen = _snapshot(opened, snapshot_id, ref) or opened.current_snapshot()
        if chosen is None:
            return Exit.OK
        for facts in files_of_snapshot(opened, chosen):
            print_line(json.dumps(facts) if as_json else one_line(file_line(facts)))
    return Exit.OK


@table.command(
    epilog=f"""
\b
Examples:
  ags1 table verify warehouse/db/flights
  ags1 table verify db.flights --catalog prod --strict --quiet || mail -s broken me
  ags1 table verify s3://lake/db/flights --kms aws --key alias/tables --json \\
      | jq '.findings[] | select(.severity == "error")'

{EXIT_STATUS}"""
)
@table_options.opening
@require_encrypted
@strict
@no_list
@click.option(
    "--threads",
    type=click.IntRange(1, 1024),
    metavar="N",
    help="Worker threads.  [default: one for each CPU, more over a network]",
)
@errors_only
@as_json
def verify(
    where: TableOptions,
    require_encrypted: bool,
    strict: bool,
    no_list: bool,
    threads: int | None,
    quiet: bool,
    as_json: bool,
) -> int:
    """Check every block of every file of every snapshot, and list what is unencrypted.

    An error is a file that is damaged, changed or missing, or is unencrypted where the format
    demands encryption. A warning is an unencrypted data or statistics file, an unencrypted file in
    the table's folder that belongs to no snapshot (a failed INSERT leaves such files), or a key
    encryption key (KEK) that expires soon. A note is another file, or a key, that no snapshot
    needs.

    The metadata.json itself (schemas, which snapshots there are) is not authenticated by the
    table's keys. A note says so, unless --expect-sha256 or a Hive or REST catalog confirms it.
    """
    from .table_verifying import verify_and_tell

    def verified(opened: EncryptedTable, progress: Any) -> TableVerification:
        from ..iceberg.verify import verify_table

        return verify_table(
            opened,
            threads=threads,
            progress=progress,
            require_encrypted=require_encrypted,
            list_folders=not no_list,
        )

    return verify_and_tell(
        where,
        verified,
        strict=strict,
        quiet=quiet,
        as_json=as_json,
    )


def _snapshot(opened: Table, snapshot_id: int | None, ref: str | None) -> Snapshot | None:
    """Return the snapshot that was asked for, None for the current one."""
    if snapshot_id is not None and ref is not None:
        raise click.UsageError("--snapshot and --ref name two snapshots: one is meant")
    if ref is not None:
        found = opened.snapshot_by_name(ref)
        if found is None:
            raise click.UsageError(f"the table has no branch or tag {ref!r}")
        return found
    if snapshot_id is not None:
        found = opened.snapshot_by_id(snapshot_id)
        if found is None:
            raise click.UsageError(f"the table has no snapshot {snapshot_id}")
        return found
    return None


def _expression(opened: Table, text: str | None) -> Any:
    from pyiceberg.expressions import AlwaysTrue

    from .table_filters import parsed_filter

    return parsed_filter(opened, text, "--filter") if text else AlwaysTrue()


def _format_of(output: str | None) -> str:
    suffix = os.path.splitext(output or "")[1].lower()
    known = {".parquet": "parquet", ".csv": "csv", ".arrow": "arrow", ".arrows": "arrow"}
    return known.get(suffix) or ("jsonl" if suffix in (".jsonl", ".ndjson", ".json") else "table")


def _note(text: str) -> None:
    from .failures import one_line
    from .standard import print_error

    print_error(f"ags1: {one_line(text)}")


def _ignore(text: str) -> None:
    """Say nothing."""


for _command in (*table_writing.COMMANDS, *table_maintenance.COMMANDS):
    table.add_command(_command)

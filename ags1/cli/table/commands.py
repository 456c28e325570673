"""The commands ``ags1 table …`` that describe, read and list encrypted Iceberg tables. Those that
check or change a table are in ``checking``, ``deleting``, ``maintenance`` and ``erasing``."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, cast

import click

from ...host.atomic import AtomicFile
from ...host.descriptors import is_stream
from ..console import STREAM, BinaryOutput, Output, print_json, print_line
from ..exits import Group, one_line
from ..options import force, grouped, json_output, output, output_path, quiet
from . import checking, deleting, erasing, maintenance, options
from .description import describe_table, file_line, files_of_snapshot, table_lines
from .filters import parsed_filter
from .listing import list_
from .opening import open_table
from .options import TableOptions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot


_OUTPUT_FORMATS = {
    **dict.fromkeys(("", ".txt"), "table"),
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), "jsonl"),
    ".csv": "csv",
    **dict.fromkeys((".arrow", ".arrows"), "arrow"),
    **dict.fromkeys((".parquet", ".pq"), "parquet"),
}


@dataclass(frozen=True, slots=True)
class RowsTarget:
    """Where rows are written, and in which format. ``output`` may be ``STREAM``."""

    format_: str | None
    output: str
    force: bool

    def chosen_format(self) -> str:
        """Return the format. Raises click.UsageError for a binary one on a terminal."""
        from .rows import BINARY

        format_ = self.format_ or _format_of(self.output)
        if self.output == STREAM and format_ in BINARY and sys.stdout and sys.stdout.isatty():
            raise click.UsageError(
                f"{format_} is not written to a terminal: give -o FILE, or use a pipe"
            )
        return format_

    def write(self, reader: pa.RecordBatchReader) -> None:
        """Write rows as they are read."""
        from .rows import WRITERS

        write = WRITERS[self.chosen_format()]
        if self.output == STREAM or is_stream(self.output):
            stream = cast("IO[bytes]", BinaryOutput(self.output, overwrite=self.force))
            write(reader, stream)
            stream.flush()
            return
        with (
            AtomicFile(self.output, overwrite=self.force) as target,
            os.fdopen(target.fd, "wb", closefd=False) as file,
        ):
            write(reader, file)


_at_snapshot = click.option(
    "--snapshot", "snapshot_id", type=int, metavar="ID", help="Read this snapshot."
)
_at_ref = click.option("--ref", metavar="NAME", help="Read this branch or tag.")
_written = grouped(
    "target",
    RowsTarget,
    click.option(
        "--format",
        "format_",
        type=click.Choice(["table", "jsonl", "csv", "arrow", "parquet"]),
        help="[default: by the end of the output's name, or table]",
    ),
    output_path(
        "Write the rows, unencrypted, to this file, which appears when it is complete, or (-) to "
        "standard output.",
        "FILE",
        default=STREAM,
    ),
    force,
)


@click.group("table", cls=Group)
def table() -> None:
    """Read, check and maintain encrypted Iceberg tables.

    Examples:
      ags1 table info warehouse/db/flights
      ags1 table check s3://lake/db/flights --kms aws --key $KEY --full
      ags1 table scan db.flights --catalog prod --filter "day = '2026-01-31'"
      ags1 table compact db.flights --catalog prod
    """


@table.command(short_help="Show a table's snapshots and keys.")
@options.opening
@json_output
def info(table_options: TableOptions, out: Output) -> None:
    """Show a table's snapshots and keys, and what in it is unencrypted. This needs no key.

    Examples:
      ags1 table info warehouse/db/flights
      ags1 table info db.flights --catalog prod --json | jq .keks
    """
    facts = describe_table(open_table(table_options, out.note, keys=False))
    if out.as_json:
        out.result(facts)
    else:
        for line in table_lines(facts):
            print_line(one_line(line))


@table.command()
@options.opening
@click.option(
    "--filter",
    "row_filter",
    metavar="EXPR",
    help="Read only these rows, in PyIceberg's syntax: \"id > 7 and (s = 'a' or s is null)\".",
)
@click.option(
    "--columns",
    metavar="A,B",
    help="Columns to read; of an encrypted table also _file, _pos, _spec_id, _row_id and "
    "_last_updated_sequence_number, with * for all others.  [default: all]",
)
@click.option("--limit", type=click.IntRange(0), metavar="N", help="Stop after N rows.")
@_at_snapshot
@_at_ref
@_written
@options.require_encrypted
@quiet
def scan(
    table_options: TableOptions,
    row_filter: str | None,
    columns: str | None,
    limit: int | None,
    snapshot_id: int | None,
    ref: str | None,
    target: RowsTarget,
    require_encrypted: bool,
    out: Output,
) -> None:
    """Print a table's rows, decrypted.

    Rows are printed as they are read. A damaged file ends the output: it is complete only if the
    exit status is 0. With -o, the file is unencrypted and has the permissions that the umask gives
    it.

    Examples:
      ags1 table scan warehouse/db/flights --limit 10
      ags1 table scan db.flights --catalog prod --columns id,day --format csv
      ags1 table scan db.flights --catalog prod --filter "id > 7 and day is not null" \\
          --format jsonl | jq .id
      ags1 table scan warehouse/db/flights --ref audit -o /secure/flights.parquet
    """
    from ...iceberg.command_line import EncryptedTable

    target.chosen_format()  # refuses a terminal before the table is opened
    opened = open_table(table_options, out.note, require_encrypted=require_encrypted)
    _snapshot(opened, snapshot_id, ref)  # raises if the table has none
    names = tuple(columns.split(",")) if columns else ("*",)
    rows: Any = opened.scan(selected_fields=names, snapshot_id=snapshot_id, limit=limit)
    rows = rows if ref is None else rows.use_ref(ref)
    # PyIceberg binds the filter of an unencrypted table to the table's columns.
    is_ours = isinstance(opened, EncryptedTable)
    schema = rows.schema if is_ours else opened.schema()
    chosen = parsed_filter(schema, row_filter, "--filter", metadata_columns=is_ours)
    target.write(rows.filter(chosen).to_arrow_batch_reader())


@table.command(short_help="List a snapshot's data and delete files.")
@options.opening
@_at_snapshot
@_at_ref
@output
def files(
    table_options: TableOptions, snapshot_id: int | None, ref: str | None, out: Output
) -> None:
    """List a snapshot's data and delete files: whether they are encrypted, rows, sizes.

    Examples:
      ags1 table files warehouse/db/flights
      ags1 table files db.flights --catalog prod --json | jq 'select(.encrypted | not)'
    """
    opened = open_table(table_options, out.note)
    chosen = _snapshot(opened, snapshot_id, ref) or opened.current_snapshot()
    if chosen is not None:
        for facts in files_of_snapshot(opened, chosen):
            if out.as_json:
                print_json(facts)
            else:
                print_line(one_line(file_line(facts)))


def _snapshot(opened: Table, snapshot_id: int | None, ref: str | None) -> Snapshot | None:
    """Return the snapshot that was asked for, None for the current one."""
    if snapshot_id is not None and ref is not None:
        raise click.UsageError("--snapshot and --ref name two snapshots: name one")
    if ref is not None:
        named, chosen = f"branch or tag {ref!r}", opened.snapshot_by_name(ref)
    elif snapshot_id is not None:
        named, chosen = f"snapshot {snapshot_id}", opened.snapshot_by_id(snapshot_id)
    else:
        return None
    if chosen is None:
        raise click.UsageError(f"the table has no {named}: 'ags1 table info' lists them")
    return chosen


def _format_of(output: str) -> str:
    """Return the format that a file's name ends in. Raises click.UsageError for an unknown end."""
    suffix = os.path.splitext(output)[1].lower()
    if suffix not in _OUTPUT_FORMATS:
        raise click.UsageError(f"{output}: its name does not tell the format: give --format")
    return _OUTPUT_FORMATS[suffix]


for _command in (
    list_,
    *checking.COMMANDS,
    *deleting.COMMANDS,
    *maintenance.COMMANDS,
    *erasing.COMMANDS,
):
    table.add_command(_command)

"""The commands ``ags1 table create|append|overwrite|delete|drop``: tables made, filled and emptied.

Imports nothing that help doesn't need.
"""

from __future__ import annotations

import io
import os
import time
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from typing import TYPE_CHECKING, Any

import click

from ..errors import Ags1Error
from . import options, table_options
from .failures import EXIT_STATUS
from .table_catalogs import (
    ChangedCatalog,
    counted,
    print_result,
    reporting,
)
from .table_options import TableOptions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.schema import Schema

    from ..iceberg import EncryptedTable
    from ..iceberg.writing.conversion import RowConversion
    from ..iceberg.writing.transaction import EncryptedTransaction
    from .report import Report
    from .table_inputs import Inputs

_PROGRESS_SECONDS = 0.1

as_json = click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
quiet = click.option("-q", "--quiet", is_flag=True, help="No progress bar, and no line.")
branch = click.option(
    "--branch", default="main", metavar="NAME", help="Change this branch.  [default: main]"
)
_input_format = click.option(
    "--input-format",
    type=click.Choice(["parquet", "arrow", "csv", "jsonl", "avro"]),
    help="The format of FILE.  [default: by the end of its name; for - arrow]",
)
_new_key = click.option(
    "--key",
    "key_id",
    metavar="NAME",
    help="The table's master key.  [default: encryption.trusted-key-ids of the catalog if that is "
    "one, $AGS1_KMS_KEY, the configuration's key, or in a keyring 'default']",
)


@click.command(
    epilog=f"""
\b
Examples:
  ags1 table create db.flights --catalog prod --like flights.parquet --create-namespace
  ags1 table create db.t --catalog prod --column "id long not null" --column "v string" \\
      --column "ts timestamptz" --partition "bucket[16](id)" --partition "month(ts)" \\
      --sort "ts desc" --key tables --data-key-length 32
  ags1 table create db.t --catalog prod --schema t.json --format avro --dry-run

{EXIT_STATUS}"""
)
@table_options.changing(key=_new_key, mapped=False)
@click.option(
    "--schema", "schema_file", type=options.PATH, metavar="FILE", help="A schema in Iceberg's JSON."
)
@click.option(
    "--like",
    type=options.PATH,
    metavar="FILE",
    help="A file of rows with the columns that the table gets.",
)
@click.option(
    "--column",
    "columns",
    multiple=True,
    metavar="'NAME TYPE [not null]'",
    help="A column of one of Iceberg's types: long, decimal(9,2), list<string>, "
    "struct<a: int, b: map<string, double>>; may be repeated.",
)
@click.option(
    "--partition",
    "partitions",
    multiple=True,
    metavar="TERM",
    help="A column, or one transformed: bucket[16](id), truncate[4](s), year|month|day|hour(ts); "
    "may be repeated.",
)
@click.option(
    "--sort",
    "sorts",
    multiple=True,
    metavar="'TERM [asc|desc] [nulls first|last]'",
    help="What files are sorted by; may be repeated.",
)
@click.option(
    "--data-key-length",
    type=click.Choice(["16", "24", "32"]),
    default="16",
    help="Size of the data files' keys in bytes.  [default: 16]",
)
@click.option(
    "--format",
    "file_format",
    type=click.Choice(["parquet", "avro"]),
    default="parquet",
    help="Format of the data files.  [default: parquet]",
)
@click.option(
    "--property",
    "properties",
    type=table_options.TABLE_PROPERTY,
    multiple=True,
    callback=table_options.unique,
    metavar="NAME=VALUE",
    help="A table property, such as write.target-file-size-bytes=134217728; may be repeated.",
)
@click.option("--location", metavar="PLACE", help="The table's folder.  [default: the catalog's]")
@click.option("--create-namespace", is_flag=True, help="Create the namespace if it is not there.")
@_input_format
@click.option("--dry-run", is_flag=True, help="Print what the table would be.")
@quiet
@as_json
@reporting
def create(
    where: TableOptions,
    schema_file: str | None,
    like: str | None,
    columns: tuple[str, ...],
    partitions: tuple[str, ...],
    sorts: tuple[str, ...],
    data_key_length: str,
    file_format: str,
    properties: dict[str, str],
    location: str | None,
    create_namespace: bool,
    input_format: str | None,
    dry_run: bool,
    quiet: bool,
    as_json: bool,
) -> int:
    """Create an encrypted table, of format version 3.

    Its columns come from --schema, from the rows in --like, or from --column. The master key is
    used once, to make sure that it works.
    """
    from .table_schemas import partition_spec, sort_order

    schema = _new_schema(schema_file, like, columns, input_format)
    spec, order = partition_spec(partitions, schema), sort_order(sorts, schema)
    own = ("encryption.", "write.format.default", "format-version")
    for name in properties:
        if name.startswith(own):
            raise click.UsageError(f"--property {name}: there is an option for it, or no choice")
    opened = ChangedCatalog(where)
    key_id = opened.new_key_id()
    facts: dict[str, Any] = {
        "table": opened.identifier,
        "dry_run": dry_run,
        "key_id": key_id,
        "data_key_length": int(data_key_length),
        "format": file_format,
        "schema": schema.model_dump(mode="json", by_alias=True, exclude_none=True),
        "partitions": [f"{field.name}: {field.transform}" for field in spec.fields],
    }
    if dry_run:
        columns_ = ", ".join(
            f"{field.name} {field.field_type}{' not null' if field.required else ''}"
            for field in schema.fields
        )
        by = f", partitioned by {', '.join(map(str, facts['partitions']))}" if partitions else ""
        line = f"{opened.identifier} would be created under {key_id}: {columns_}{by}"
        print_result(facts, line, as_json=as_json, quiet=quiet)
        return 0
    if create_namespace:
        _ensure_namespace(opened)
    table = opened.catalog.create_table(
        opened.identifier,
        schema,
        location=location,
        partition_spec=spec,
        sort_order=order,
        properties={
            **properties,
            "format-version": "3",
            "encryption.key-id": key_id,
            "encryption.data-key-length": data_key_length,
            "write.format.default": file_format,
        },
    )
    facts |= {"location": table.location(), "metadata_location": table.metadata_location}
    line = f"{opened.identifier} created under {key_id}, at {table.location()}"
    print_result(facts, line, as_json=as_json, quiet=quiet)
    return 0


@click.command(
    epilog=f"""
\b
Examples:
  ags1 table append db.flights --catalog prod january.parquet february.parquet
  ags1 table append db.flights --catalog prod flights.csv --branch audit
  ags1 table append db.flights --catalog prod - < flights.arrows

{EXIT_STATUS}"""
)
@table_options.changing()
@click.argument("files", nargs=-1, required=True, type=options.PATH, metavar="FILE...")
@_input_format
@branch
@click.option(
    "--dry-run", is_flag=True, help="Only read all rows, and check that they fit the table."
)
@quiet
@as_json
@reporting
def append(
    where: TableOptions,
    files: tuple[str, ...],
    input_format: str | None,
    branch: str,
    dry_run: bool,
    quiet: bool,
    as_json: bool,
) -> int:
    """Append the rows of files, all in one commit.

    Files are Parquet, Arrow (IPC files and streams; Feather), CSV with a header, JSON lines or
    Avro; - is an Arrow stream on standard input. Columns are matched by name. CSV and JSON lines
    have the form that 'ags1 table scan' prints: an empty cell is null, binary is base64.
    """
    return _write(where, files, input_format, branch, False, None, dry_run, quiet, as_json)


@click.command(
    epilog=f"""
\b
Examples:
  ags1 table overwrite db.flights --catalog prod all.parquet
  ags1 table overwrite db.flights --catalog prod january.csv --filter "month = '2026-01'"
  ags1 table overwrite db.flights --catalog prod january.csv --filter "month = 1" --dry-run

{EXIT_STATUS}"""
)
@table_options.changing()
@click.argument("files", nargs=-1, required=True, type=options.PATH, metavar="FILE...")
@click.option(
    "--filter",
    "row_filter",
    metavar="EXPR",
    help="The rows to replace, in PyIceberg's syntax.  [default: all]",
)
@_input_format
@branch
@click.option("--dry-run", is_flag=True, help="Read all, and tell what would change.")
@options.yes
@quiet
@as_json
@reporting
def overwrite(
    where: TableOptions,
    files: tuple[str, ...],
    row_filter: str | None,
    input_format: str | None,
    branch: str,
    dry_run: bool,
    yes: bool,
    quiet: bool,
    as_json: bool,
) -> int:
    """Replace rows by those of files, in one commit.

    The rows for which --filter is true are replaced. Without --filter, all rows are, and the
    command asks first. The files are as for 'ags1 table append'. Earlier snapshots still have the
    replaced rows until 'ags1 table expire' removes those snapshots.
    """
    return _write(
        where, files, input_format, branch, True, row_filter, dry_run, quiet, as_json, yes=yes
    )


@click.command(
    epilog=f"""
\b
Examples:
  ags1 table delete db.flights "carrier = 'XX'" --catalog prod --dry-run
  ags1 table delete db.flights "carrier = 'XX' and day < '2026-01-31'" --catalog prod

{EXIT_STATUS}"""
)
@table_options.changing()
@click.argument("row_filter", metavar="FILTER")
@branch
@click.option("--dry-run", is_flag=True, help="Tell what would be deleted.")
@options.yes
@quiet
@as_json
@reporting
def delete(
    where: TableOptions,
    row_filter: str,
    branch: str,
    dry_run: bool,
    yes: bool,
    quiet: bool,
    as_json: bool,
) -> int:
    """Delete the rows for which FILTER, in PyIceberg's syntax, is true.

    If FILTER is true for every row, the command asks first. A file that loses all its rows is
    dropped; in the others a deletion vector marks the deleted rows. Earlier snapshots still have
    the rows until 'ags1 table expire' removes those snapshots.
    """
    from .table_filters import parsed_filter

    table = ChangedCatalog(where).load()
    expression = parsed_filter(table, row_filter, "FILTER")
    facts: dict[str, Any] = {"table": ".".join(table.name()), "branch": branch, "dry_run": dry_run}
    if dry_run:
        facts |= _would_delete(table, branch, expression)
    else:
        _confirm_if_all(table, branch, expression, "Delete", yes=yes)
        transaction = table.transaction()
        with transaction, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that nothing matched is told here
            transaction.delete(expression, branch=branch)
            made = _staged_ids(table, transaction)
        facts |= {"snapshot_ids": sorted(made)} | _deleted(_summaries(table, made))
    would = "would be " if dry_run else ""
    line = (
        f"{facts['table']}: {counted(facts['deleted_rows'], 'row')} {would}deleted: "
        f"{counted(facts['dropped_files'], 'file')} {would}dropped, rows of "
        f"{counted(facts['marked_files'], 'other')} {would}marked"
    )
    print_result(facts, line, as_json=as_json, quiet=quiet)
    return 0


@click.command(
    epilog=f"""
\b
Examples:
  ags1 table drop db.flights --catalog prod
  ags1 table drop db.flights --catalog prod --purge --dry-run
  ags1 table drop db.flights --catalog prod --purge --yes

{EXIT_STATUS}"""
)
@table_options.changing(mapped=False)
@click.option("--purge", is_flag=True, help="Delete the table's files, too.")
@click.option("--dry-run", is_flag=True, help="Tell what would be deleted.")
@options.yes
@quiet
@as_json
@reporting
def drop(
    where: TableOptions, purge: bool, dry_run: bool, yes: bool, quiet: bool, as_json: bool
) -> int:
    """Take a table out of its catalog. The command asks first.

    Without --purge the files stay, and 'ags1 table scan' can read them by their metadata.json. With
    --purge the files of all snapshots are deleted; files that failed writers have left stay.
    """
    from .standard import print_error

    opened = ChangedCatalog(where, keys=purge)
    facts: dict[str, Any] = {"table": opened.identifier, "purge": purge, "dry_run": dry_run}
    would = "would be " if dry_run else ""
    line = f"{opened.identifier} {would}dropped"
    if not purge:
        location = None
        # A table that is damaged can go, too.
        with suppress(Ags1Error, OSError):
            location = opened.catalog.load_table(opened.identifier).metadata_location
        facts["metadata_location"] = location
        if not dry_run:
            options.confirm(f"Take {opened.identifier} out of its catalog?", yes=yes)
            opened.catalog.drop_table(opened.identifier)
        if location is not None:
            line += f"; its metadata is {location}"
    else:
        from ..iceberg.home import home_of
        from ..iceberg.maintenance.expiry import everything

        encrypted = opened.load()
        found = everything(encrypted.view().metadata).find_files(
            encrypted.files, encrypted.metadata_location, home=home_of(encrypted)
        )
        facts |= {"files": len(found.locations), "left_behind": list(found.left_behind)}
        files = counted(len(found.locations), "file")
        if not dry_run:
            options.confirm(f"Drop {opened.identifier} and delete its {files}?", yes=yes)
            opened.catalog.purge_table(opened.identifier)
        line += f", {files} {would}deleted"
        if found.left_behind and not quiet and not as_json:
            print_error(f"ags1: {counted(len(found.left_behind), 'file')} left behind")
    print_result(facts, line, as_json=as_json, quiet=quiet)
    return 0


# -- rows


def _write(
    where: TableOptions,
    files: tuple[str, ...],
    input_format: str | None,
    branch: str,
    replaces: bool,
    row_filter: str | None,
    dry_run: bool,
    quiet: bool,
    as_json: bool,
    *,
    yes: bool = False,
) -> int:
    from pyiceberg.expressions import AlwaysTrue

    from .report import Report
    from .table_filters import parsed_filter
    from .table_inputs import Inputs

    table = ChangedCatalog(where).load()
    name = ".".join(table.name())
    expression: Any = AlwaysTrue() if replaces else None
    # An empty one is a shell's variable that is not set, and does not mean all rows.
    if row_filter is not None:
        expression = parsed_filter(table, row_filter, "--filter")
    facts: dict[str, Any] = {"table": name, "branch": branch, "dry_run": dry_run}
    tell = _Teller()
    with Inputs(files, input_format, table.schema(), tell) as inputs:
        _check_columns(table, inputs)
        if expression is not None and not dry_run:
            _confirm_if_all(table, branch, expression, "Replace", yes=yes)
        with Report(as_json=as_json, quiet=quiet, total_size=inputs.size) as report:
            tell.report = report
            if dry_run:
                _check_rows(table, inputs)
                facts |= {"rows": inputs.rows}
                if expression is not None:
                    facts |= _would_delete(table, branch, expression)
            else:
                transaction = table.transaction()
                with transaction, warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    _write_groups(transaction, inputs, branch, expression)
                    ids = _staged_ids(table, transaction)
                made = _summaries(table, ids)
                facts |= {
                    "rows": inputs.rows,
                    "files": _sum(made, "added-data-files"),
                    "size": _sum(made, "added-files-size"),
                    "snapshot_ids": sorted(ids),
                }
                if expression is not None:
                    facts |= _deleted(made)
    would = "would be " if dry_run else ""
    line = f"{name}: {counted(facts['rows'], 'row')} {would}appended"
    if not dry_run:
        line += f" in {counted(facts['files'], 'file')}"
    if expression is not None:
        line += f", {counted(facts['deleted_rows'], 'row')} {would}deleted"
    if branch != "main":
        line += f", on the branch {branch}"
    print_result(facts, line, as_json=as_json, quiet=quiet)
    return 0


def _confirm_if_all(
    table: EncryptedTable, branch: str, expression: Any, verb: str, *, yes: bool
) -> None:
    """Ask before a change of every row of a branch."""
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.expressions.visitors import bind

    # Bound: "id is not null" is true for every row if the column is required.
    if isinstance(bind(table.schema(), expression, case_sensitive=True), AlwaysTrue):
        name = ".".join(table.name())
        place = name if branch == "main" else f"{name}, branch {branch}"
        options.confirm(f"{verb} all rows of {place}?", yes=yes)


class ThrottledClock:
    """Says when progress is to be shown: not more often than it is looked at."""

    def __init__(self) -> None:
        self._next = 0.0

    def is_time(self) -> bool:
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + _PROGRESS_SECONDS
        return True


class _Teller:
    """Tells a report how far the reading of files is."""

    def __init__(self) -> None:
        self.report: Report | None = None
        self._file: str | None = None
        self._clock = ThrottledClock()

    def __call__(self, file: str, done_size: int, is_all: bool) -> None:
        if self.report is None or not (is_all or self._clock.is_time()):
            return
        if self._file is None:
            self._file = file
            self.report.begin(file)
        self.report.progress(done_size)
        if is_all:
            self._file = None


def _check_columns(table: EncryptedTable, inputs: Inputs) -> None:
    """Raise click.UsageError for columns that the table does not have, that it needs, or that are
    of other types."""
    schema = table.schema()
    names = {field.name for field in schema.fields}
    required = [f.name for f in schema.fields if f.required and f.write_default is None]
    for provided, files in inputs.groups:
        for name in provided.names:
            if name not in names:
                raise click.UsageError(f"{files[0].name}: the table has no column {name!r}")
        for name in required:
            if name not in provided.names:
                raise click.UsageError(f"{files[0].name}: the required column {name!r} is missing")
        # PyIceberg prints what it raises, too.
        with redirect_stdout(io.StringIO()), _fitting(files[0].name):
            _conversion(table, provided)


def _conversion(table: EncryptedTable, provided: pa.Schema) -> RowConversion:
    from ..iceberg.writing.conversion import RowConversion
    from ..iceberg.writing.data_files import WritePlan

    plan = WritePlan(table.view().metadata)
    return RowConversion(plan.schema, provided, keep_unknown=plan.is_avro)


def _write_groups(
    transaction: EncryptedTransaction, inputs: Inputs, branch: str, expression: Any
) -> None:
    with _fitting():
        for reader in inputs.readers():
            if expression is None:
                transaction.append(reader, branch=branch)
            else:
                transaction.overwrite(reader, expression, branch=branch)
                expression = None


def _check_rows(table: EncryptedTable, inputs: Inputs) -> None:
    with _fitting():
        for reader in inputs.readers():
            conversion = _conversion(table, reader.schema)
            for batch in reader:
                conversion.convert(batch)


@contextmanager
def _fitting(file: str | None = None) -> Iterator[None]:
    """Turn what is raised for rows that do not fit the table into a wrong use of the command."""
    import pyarrow as pa
    from pyiceberg.io.pyarrow import UnsupportedPyArrowTypeException

    try:
        yield
    except (Ags1Error, OSError):
        raise
    except (TypeError, ValueError, pa.ArrowException, UnsupportedPyArrowTypeException) as error:
        if os.environ.get("AGS1_DEBUG"):
            raise
        message = _mismatch(str(error))
        raise click.UsageError(message if file is None else f"{file}: {message}") from None


def _mismatch(text: str) -> str:
    """Return a message on one line: of the table that PyIceberg draws, what does not fit."""
    rows = [line.split("\u2502") for line in text.splitlines() if "\u274c" in line]
    if rows:
        pairs = (f"the table has {row[2].strip()}, the data {row[3].strip()}" for row in rows)
        return "; ".join(pairs)
    return " ".join(text.split())


def _would_delete(table: EncryptedTable, branch: str, expression: Any) -> dict[str, Any]:
    from ..iceberg.writing.deletion import find_deletes

    found = find_deletes(table.view().at(branch), expression)
    return {
        "deleted_rows": found.matched_rows,
        "dropped_files": len(found.dropped),
        "marked_files": len(found.vectors),
    }


def _staged_ids(table: EncryptedTable, transaction: EncryptedTransaction) -> set[int]:
    """Return the ids of the snapshots that a transaction is about to add; they are the same in all
    its attempts."""
    before = {snapshot.snapshot_id for snapshot in table.metadata.snapshots}
    return {s.snapshot_id for s in transaction.table_metadata.snapshots} - before


def _summaries(table: EncryptedTable, snapshot_ids: Collection[int]) -> list[dict[str, str]]:
    """Return the summaries of snapshots that were committed: where another writer was first, there
    may be nothing left to delete."""
    found = (s for s in table.metadata.snapshots if s.snapshot_id in snapshot_ids)
    return [dict(s.summary.additional_properties) for s in found if s.summary is not None]


def _sum(summaries: list[dict[str, str]], name: str) -> int:
    return sum(int(summary.get(name, 0)) for summary in summaries)


def _deleted(summaries: list[dict[str, str]]) -> dict[str, Any]:
    # A deletion vector has the rows of the one before it, too.
    marked = _sum(summaries, "added-position-deletes")
    marked -= _sum(summaries, "removed-position-deletes")
    return {
        "deleted_rows": _sum(summaries, "deleted-records") + marked,
        "dropped_files": _sum(summaries, "deleted-data-files"),
        "marked_files": _sum(summaries, "added-dvs"),
    }


# -- new tables


def _new_schema(
    schema_file: str | None, like: str | None, columns: tuple[str, ...], input_format: str | None
) -> Schema:
    from .table_schemas import schema_like, schema_of_columns, schema_of_json

    if (schema_file is not None) + (like is not None) + bool(columns) != 1:
        raise click.UsageError("which columns? One of --schema, --like and --column says it")
    if schema_file is not None:
        return schema_of_json(schema_file)
    if like is not None:
        return schema_like(like, input_format)
    return schema_of_columns(columns)


def _ensure_namespace(opened: ChangedCatalog) -> None:
    from pyiceberg.exceptions import NamespaceAlreadyExistsError

    namespace = opened.identifier.rpartition(".")[0]
    if not opened.catalog.namespace_exists(namespace):
        with suppress(NamespaceAlreadyExistsError):  # somebody else was faster
            opened.catalog.create_namespace(namespace)


COMMANDS = (create, append, overwrite, delete, drop)

"""The commands ``ags1 table migrate|rotate|rekey|relocate|expire|prune-keys``.

Imports nothing that help doesn't need.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from . import options, table_options
from .failures import EXIT_STATUS
from .table_catalogs import (
    ChangedCatalog,
    counted,
    other_kms,
    print_result,
    reporting,
)
from .table_options import TableOptions
from .table_writing import ThrottledClock, as_json, branch, quiet

if TYPE_CHECKING:
    from ..iceberg import EncryptedTable
    from ..iceberg.maintenance.jobs import MigrationResult
    from ..iceberg.table import Rekeyed
    from .report import Report

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_MAX_DIGITS = 9

_threads = click.option(
    "--threads",
    type=click.IntRange(1, 1024),
    metavar="N",
    help="Worker threads.  [default: one for each CPU, more over a network]",
)
_to_key = click.option(
    "--key", "key_id", required=True, metavar="NAME", help="The master key for the table."
)
# Of migration and rekeying, wherever their work is done.
migrating = table_options.changing(key=_to_key, mapped=False)
data_key_length = click.option(
    "--data-key-length",
    type=click.Choice(["16", "24", "32"]),
    default="16",
    help="Size of the data files' keys in bytes.  [default: 16]",
)
delete_plaintext = click.option(
    "--delete-plaintext",
    is_flag=True,
    help="Delete the unencrypted files once the encrypted ones are committed. Asks first.",
)
drop_refs = click.option(
    "--drop-refs", is_flag=True, help="Drop all branches but main, and all tags."
)
dry_run_encrypting = click.option("--dry-run", is_flag=True, help="Tell what would be encrypted.")
row_filter = click.option(
    "--filter",
    "row_filter",
    metavar="EXPR",
    help="Only data files that may have such rows, in PyIceberg's syntax.  [default: all files]",
)
exposed = click.option(
    "--exposed",
    is_flag=True,
    help="Only files whose keys stand in plaintext manifests; encrypt those manifests.",
)
dry_run_rewriting = click.option("--dry-run", is_flag=True, help="Tell what would be rewritten.")


class _Moment(click.ParamType):  # type: ignore[type-arg]
    """A time, or how long ago it is."""

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime:
        if isinstance(value, datetime):
            return value
        match = re.fullmatch(rf"(\d{{1,{_MAX_DIGITS}}})([smhdw])", value)
        try:
            if match is not None:
                ago = timedelta(**{_UNITS[match[2]]: int(match[1])})
                return datetime.now(timezone.utc) - ago
            # Before Python 3.11, Z is not understood.
            moment = datetime.fromisoformat(re.sub("[zZ]$", "+00:00", value))
            # As the table's times are printed.
            return moment if moment.tzinfo is not None else moment.replace(tzinfo=timezone.utc)
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is neither an age such as 7d or 12h nor a time.", param, ctx)


@click.command(
    epilog=f"""
\b
Examples:
  ags1 table migrate db.flights --catalog prod --key tables --dry-run
  ags1 table migrate db.flights --catalog prod --key tables
  ags1 table migrate db.flights --catalog prod --key tables --delete-plaintext --yes

{EXIT_STATUS}"""
)
@migrating
@data_key_length
@delete_plaintext
@drop_refs
@_threads
@dry_run_encrypting
@options.yes
@quiet
@as_json
@reporting
def migrate(
    where: TableOptions,
    data_key_length: str,
    delete_plaintext: bool,
    drop_refs: bool,
    threads: int | None,
    dry_run: bool,
    yes: bool,
    quiet: bool,
    as_json: bool,
) -> int:
    """Encrypt an unencrypted table, of any format version, in its place.

    Every file is encrypted and read back; then one commit makes the table an encrypted one of
    format version 3. Rows keep their order and ids. The table loses its earlier snapshots, because
    they are unencrypted. If a run was interrupted, the same command goes on where it stopped. The
    unencrypted files stay, unless --delete-plaintext is given; --json lists them.
    """
    opened = ChangedCatalog(where)
    told = MigrationOptions(dry_run, delete_plaintext)
    told.confirm(opened.identifier, yes=yes)
    with Bar(opened.identifier, quiet=quiet) as bar:
        done = opened.catalog.migrate_table(
            opened.identifier,
            opened.new_key_id(),
            data_key_length=int(data_key_length),
            drop_refs=drop_refs,
            threads=threads,
            delete_plaintext=delete_plaintext,
            dry_run=dry_run,
            progress=bar,
        )
    tell_migration(opened.identifier, done, told, quiet=quiet, as_json=as_json)
    return 0


class MigrationOptions(NamedTuple):
    """What was asked of a migration."""

    dry_run: bool
    delete_plaintext: bool

    def confirm(self, table: str, *, yes: bool) -> None:
        """Ask before files are deleted."""
        if self.delete_plaintext and not self.dry_run:
            question = f"Delete the unencrypted files of {table} once it is encrypted?"
            options.confirm(question, yes=yes)


def tell_migration(
    table: str, done: MigrationResult, asked: MigrationOptions, *, quiet: bool, as_json: bool
) -> None:
    """Print what a migration did, or would do."""
    dry_run, delete_plaintext = asked
    left = done.plaintext
    facts: dict[str, Any] = {
        "table": table,
        "dry_run": dry_run,
        "files": done.files,
        "size": done.size,
        "rows": done.rows,
        "dropped_refs": list(done.dropped_refs),
    }
    would = "would be " if dry_run else ""
    line = (
        f"{table}: {counted(done.files, 'file')} of {done.size} bytes and "
        f"{counted(done.rows, 'row')} {would}encrypted"
    )
    if left is not None:
        stay = done.failed if delete_plaintext else left.inside
        facts |= {
            "plaintext_deleted": len(left.inside) - len(stay) if delete_plaintext else 0,
            "plaintext_left": list(stay),
            "plaintext_outside": list(left.outside),
            "unreadable": list(left.unreadable),
        }
        number = len(stay) + len(left.outside)
        if number:
            line += f"; {counted(number, 'unencrypted file')} left (--json lists them)"
    print_result(facts, line, as_json=as_json, quiet=quiet)


@click.command(
    epilog=f"""
\b
Examples:
  ags1 table rotate db.flights --catalog prod
  ags1 table rotate db.flights --catalog prod --rewrap
  ags1 table rotate db.flights --catalog prod --to-key new
  ags1 table rotate db.flights --catalog prod --to-kms vault --to-key tables --dry-run

{EXIT_STATUS}"""
)
@table_options.changing()
@click.option("--rewrap", is_flag=True, help="Wrap under the newest version of the master key.")
@click.option("--to-key", metavar="NAME", help="Wrap under another master key.")
@click.option(
    "--to-kms",
    type=options.KMS_TYPE,
    metavar="TYPE",
    help="The KMS of that key, if it is another one; needs --to-key.",
)
@click.option(
    "--to-kms-property",
    "to_kms_properties",
    type=options.PROPERTY,
    multiple=True,
    metavar="NAME=VALUE",
    help="A property of that KMS; may be repeated.",
)
@click.option("--dry-run", is_flag=True, help="Do all but the commit.")
@quiet
@as_json
@reporting
def rotate(
    where: TableOptions,
    rewrap: bool,
    to_key: str | None,
    to_kms: str | None,
    to_kms_properties: tuple[tuple[str, str], ...],
    dry_run: bool,
    quiet: bool,
    as_json: bool,
) -> int:
    """Replace or rewrap the keys that wrap a table's keys. Files and snapshots stay as they are.

    Without options, a new key encryption key (KEK) replaces all others. With --rewrap, --to-key or
    --to-kms the KEKs stay and are wrapped anew. After --to-kms, configure the catalog for the new
    KMS. Earlier metadata files still have the old wrapped keys.
    """
    from ..iceberg.maintenance import rotation

    is_other = to_kms is not None or bool(to_kms_properties)
    if rewrap and (to_key is not None or is_other):
        raise click.UsageError("--rewrap is without --to-key: one is meant")
    if is_other and to_key is None:
        raise click.UsageError("--to-kms needs --to-key")
    if to_key == "":
        raise click.UsageError("--to-key is empty")
    kms = other_kms(to_kms, to_kms_properties)
    opened = ChangedCatalog(where)
    trusted = opened.trusted_key_ids
    if to_key is not None and trusted and to_key not in trusted:
        raise click.UsageError(
            f"--to-key {to_key}: it is none of the catalog's encryption.trusted-key-ids, so that "
            "the table could not be loaded any more: add it there first"
        )
    table = opened.load()
    rewraps = rewrap or to_key is not None
    if dry_run:
        view = table.view()
        if rewraps:
            change = rotation.rewrap(view.metadata, view.manager, kms, to_key)
        else:
            change = rotation.rotate(view.metadata, view.manager)
        keys = change.manager
    else:
        if rewraps:
            table.rewrap_keys(to_key, kms)
        else:
            table.rotate_keys()
        keys = table.files.keys
    keks = [kek.key_id for kek in keys.key_encryption_keys]
    facts: dict[str, Any] = {
        "table": opened.identifier,
        "dry_run": dry_run,
        "key_id": keys.table_key_id,
        "keks": keks,
        "snapshots": len(table.metadata.snapshots),
    }
    would = "would be " if dry_run else ""
    done = "wrapped anew" if rewraps else "rotated"
    line = (
        f"{opened.identifier}: {would}{done} under {keys.table_key_id}, "
        f"{counted(len(keks), 'KEK')} over the keys of {counted(facts['snapshots'], 'snapshot')}"
    )
    print_result(facts, line, as_json=as_json, quiet=quiet)
    return 0


@click.command(
    epilog=f"""
\b
Examples:
  ags1 table rekey db.flights --catalog prod
  ags1 table rekey db.flights --catalog prod --filter "day < '2026-01-31'" --dry-run
  ags1 table rekey db.flights --catalog prod --exposed

{EXIT_STATUS}"""
)
@table_options.changing()
@row_filter
@exposed
@branch
@_threads
@dry_run_rewriting
@quiet
@as_json
@reporting
def rekey(
    where: TableOptions,
    row_filter: str | None,
    exposed: bool,
    branch: str,
    threads: int | None,
    dry_run: bool,
    quiet: bool,
    as_json: bool,
) -> int:
    """Rewrite files under fresh keys, in one commit. Unencrypted files are encrypted.

    Rows keep their order, ids and sequence numbers. Earlier snapshots still have the old files
    until 'ags1 table expire' removes those snapshots.

    Iceberg's rewrite_manifests before 1.12 writes plaintext manifests, which expose the keys of the
    files that they list: 'ags1 table verify' finds them, and --exposed mends the table.
    """
    table = ChangedCatalog(where).load()
    name = ".".join(table.name())
    expression = files_filter(table, row_filter)
    with Bar(name, quiet=quiet) as bar:
        done = table.rekey(
            expression,
            branch=branch,
            exposed=exposed,
            threads=threads,
            dry_run=dry_run,
            progress=bar,
        )
    tell_rekeying(name, branch, done, dry_run=dry_run, quiet=quiet, as_json=as_json)
    return 0


def files_filter(table: EncryptedTable, row_filter: str | None) -> Any:
    """Return the filter that ``--filter`` gives. Raises click.UsageError."""
    from pyiceberg.expressions import AlwaysTrue

    from .table_filters import parsed_filter

    return AlwaysTrue() if row_filter is None else parsed_filter(table, row_filter, "--filter")


def tell_rekeying(
    name: str, branch: str, done: Rekeyed, *, dry_run: bool, quiet: bool, as_json: bool
) -> None:
    """Print what a rekeying did, or would do."""
    facts: dict[str, Any] = {
        "table": name,
        "branch": branch,
        "dry_run": dry_run,
        "files": done.files,
        "size": done.size,
        "manifests": done.manifests,
    }
    would = "would be " if dry_run else ""
    line = f"{name}: {counted(done.files, 'file')} of {done.size} bytes {would}under fresh keys"
    if done.manifests:
        line += f", {counted(done.manifests, 'plaintext manifest')} {would}encrypted"
    print_result(facts, line, as_json=as_json, quiet=quiet)


@click.command(
    epilog=f"""
\b
Examples:
  ags1 table relocate db.flights s3://other/db/flights --catalog prod --move --yes
  ags1 table relocate db.flights /backup/flights --catalog prod --current-only --verify
  ags1 table relocate db.flights /copy/flights --catalog prod --register-as db.copy

{EXIT_STATUS}"""
)
@table_options.changing()
@click.argument("new_location", metavar="NEW_LOCATION")
@click.option(
    "--move",
    is_flag=True,
    help="Make the copy this table, once all of it is verified, and delete the old files. Asks "
    "first.",
)
@click.option("--register-as", metavar="NAME", help="Make the copy a table of this catalog.")
@click.option("--current-only", is_flag=True, help="Leave all but the current snapshot behind.")
@click.option("--verify", is_flag=True, help="Authenticate every file of the copy.")
@click.option(
    "--to-io-property",
    "to_io_properties",
    type=table_options.IO_PROPERTY,
    multiple=True,
    callback=table_options.unique,
    metavar="NAME=VALUE",
    help="A property of PyIceberg's FileIO for the new place; may be repeated.  [default: as for "
    "the old one]",
)
@_threads
@click.option("--dry-run", is_flag=True, help="Tell what would be copied.")
@options.yes
@quiet
@as_json
@reporting
def relocate(
    where: TableOptions,
    new_location: str,
    move: bool,
    register_as: str | None,
    current_only: bool,
    verify: bool,
    to_io_properties: dict[str, str],
    threads: int | None,
    dry_run: bool,
    yes: bool,
    quiet: bool,
    as_json: bool,
) -> int:
    """Copy or move a table to another place, which may be in another storage.

    Data files are copied byte by byte and keep their keys. Files that name other files are written
    anew. Without --move and --register-as the copy is in no catalog; the output says where its
    metadata.json is. If a run was interrupted, the same command goes on where it stopped.
    """
    from dataclasses import asdict

    if move and register_as is not None:
        raise click.UsageError("--move and --register-as: one is meant")
    opened = ChangedCatalog(where)
    opened.load()  # to be sure that it is under the key that was named
    if move and not dry_run:
        question = f"Move {opened.identifier} to {new_location} and delete its old files?"
        options.confirm(question, yes=yes)
    with Bar(opened.identifier, quiet=quiet) as bar:
        done = opened.catalog.relocate_table(
            opened.identifier,
            new_location,
            move=move,
            register_as=register_as,
            snapshots="current" if current_only else "all",
            properties={**where.io_properties, **to_io_properties} if to_io_properties else None,
            threads=threads,
            verify=verify or move,
            dry_run=dry_run,
            progress=bar,
        )
    facts: dict[str, Any] = {
        "table": opened.identifier,
        "dry_run": dry_run,
        "move": move,
        "registered_as": register_as,
        **asdict(done),
    }
    would = "would be " if dry_run else ""
    line = (
        f"{opened.identifier}: {counted(done.copied_files, 'file')} of {done.copied_size} bytes "
        f"{would}copied, {done.rewritten_files} {would}written anew"
    )
    if done.found_files:
        line += f", {done.found_files} found"
    copy = "the table" if move else "the copy"
    line += f"; {copy} {'would be' if dry_run else 'is'} {done.metadata_location or done.location}"
    print_result(facts, line, as_json=as_json, quiet=quiet)
    return 0


@click.command(
    epilog=f"""
\b
Examples:
  ags1 table expire db.flights --catalog prod --older-than 7d --retain-last 10 --dry-run
  ags1 table expire db.flights --catalog prod --older-than 2026-01-31T12:00:00Z
  ags1 table expire db.flights --catalog prod --snapshot 4530519338837612000 --yes

{EXIT_STATUS}"""
)
@table_options.changing()
@click.option(
    "--older-than",
    type=_Moment(),
    metavar="AGE|TIME",
    help="Expire snapshots older than this: 7d, 12h, 30m, or a time in ISO's form, UTC unless it "
    "says otherwise.  [default: the table's history.expire.max-snapshot-age-ms, or 5d]",
)
@click.option(
    "--retain-last",
    type=click.IntRange(1),
    metavar="N",
    help="Keep so many snapshots of each branch, however old.  [default: the table's "
    "history.expire.min-snapshots-to-keep, or 1]",
)
@click.option(
    "--snapshot",
    "snapshot_ids",
    type=int,
    multiple=True,
    metavar="ID",
    help="Expire this snapshot too, however young it is; may be repeated.",
)
@click.option("--keep-files", is_flag=True, help="Delete no files.")
@click.option("--dry-run", is_flag=True, help="Tell what would be expired and deleted.")
@options.yes
@quiet
@as_json
@reporting
def expire(
    where: TableOptions,
    older_than: datetime | None,
    retain_last: int | None,
    snapshot_ids: tuple[int, ...],
    keep_files: bool,
    dry_run: bool,
    yes: bool,
    quiet: bool,
    as_json: bool,
) -> int:
    """Remove old snapshots, and delete the files that only they have. The command asks first.

    The snapshots' keys stay in the metadata until 'ags1 table prune-keys'.
    """
    table = ChangedCatalog(where).load()
    name = ".".join(table.name())
    if not dry_run:
        deleting = "" if keep_files else " and delete the files that only they have"
        options.confirm(f"Remove old snapshots of {name}{deleting}?", yes=yes)
    done = table.expire_snapshots(
        older_than, retain_last, snapshot_ids, delete_files=not keep_files, dry_run=dry_run
    )
    files = 0 if keep_files else len(done.files.locations) - len(done.failed)
    facts: dict[str, Any] = {
        "table": name,
        "dry_run": dry_run,
        "snapshot_ids": list(done.snapshot_ids),
        "refs": list(done.refs),
        "files": files,
        "left_behind": list(done.left_behind),
    }
    would = "would be " if dry_run else ""
    line = f"{name}: {counted(len(done.snapshot_ids), 'snapshot')} {would}expired"
    if done.refs:
        line += f" (with {', '.join(done.refs)})"
    line += f", {counted(files, 'file')} {would}deleted"
    if done.left_behind:
        line += f", {counted(len(done.left_behind), 'file')} left behind (--json lists them)"
    print_result(facts, line, as_json=as_json, quiet=quiet)
    return 0


@click.command(
    "prune-keys",
    epilog=f"""
\b
Examples:
  ags1 table prune-keys db.flights --catalog prod --dry-run
  ags1 table prune-keys db.flights --catalog prod --yes

{EXIT_STATUS}""",
)
@table_options.changing()
@click.option("--dry-run", is_flag=True, help="Tell which keys would be removed.")
@options.yes
@quiet
@as_json
@reporting
def prune_keys(where: TableOptions, dry_run: bool, yes: bool, quiet: bool, as_json: bool) -> int:
    """Remove the wrapped keys that no snapshot needs from a table's metadata. The command asks
    first."""
    from ..iceberg.maintenance import rotation

    table = ChangedCatalog(where).load()
    name = ".".join(table.name())
    if dry_run:
        view = table.view()
        gone = [key.key_id for key in rotation.prune(view.metadata, view.manager).removed]
    else:
        options.confirm(f"Remove the keys of {name} that no snapshot needs?", yes=yes)
        gone = table.prune_keys()
    would = "would be " if dry_run else ""
    facts = {"table": name, "dry_run": dry_run, "key_ids": gone}
    line = f"{name}: {counted(len(gone), 'key')} {would}removed"
    print_result(facts, line, as_json=as_json, quiet=quiet)
    return 0


class Bar:
    """A progress bar over a table's bytes, of which the total is known once the work has begun."""

    def __init__(self, name: str, *, quiet: bool) -> None:
        self._name = name
        self._quiet = quiet
        self._report: Report | None = None
        self._clock = ThrottledClock()

    def __enter__(self) -> Bar:
        return self

    def __call__(self, done_size: int, total_size: int | None) -> None:
        from .report import Report

        if self._report is None:
            self._report = Report(as_json=False, quiet=self._quiet, total_size=total_size)
            self._report.begin(self._name)
        if self._clock.is_time():
            self._report.progress(done_size)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._report is not None:
            self._report.__exit__(kind, error, trace)


COMMANDS = (migrate, rotate, rekey, relocate, expire, prune_keys)

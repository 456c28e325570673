"""The commands ``ags1 table migrate|rotate|rekey|compact|expire|prune-keys``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar

import click

from ..console import Output
from ..exits import Command, Exit
from ..kms.options import NewMasterKey, target
from ..options import confirm, flag, output, yes
from ..results import TableResult
from . import compacting, migrating, options, rekeying
from .catalogs import ChangedCatalog
from .compacting import CompactionOptions, compact_and_report
from .migrating import MigrationOptions, migrate_and_report
from .options import TableOptions
from .rekeying import RekeyingOptions, rekey_and_report
from .times import Moment

if TYPE_CHECKING:
    from ...iceberg.command_line import EncryptedCatalog, EncryptedTable, MigrationResult, Rekeyed

_exposed = flag(
    "--exposed",
    help="Rewrite only files whose keys are in plaintext manifests, and encrypt those manifests.",
)

_unencrypted = flag("--unencrypted", help="Rewrite only files that are not encrypted.")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rotated(TableResult):
    """The keys of a table, after they were rotated."""

    key_id: str
    keks: Sequence[str]
    snapshots: int
    PARTS: ClassVar[Sequence[str]] = (
        "rotated under {key_id}",
        "{keks:KEK} over the keys of {snapshots:snapshot}",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rewrapped(_Rotated):
    PARTS: ClassVar = ("rewrapped under {key_id}", *_Rotated.PARTS[1:])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Expired(TableResult):
    snapshot_ids: Sequence[int]
    refs: Sequence[str]
    files: int
    key_ids: Sequence[str]
    left_behind: Sequence[str]
    PARTS: ClassVar = (
        "{snapshot_ids:snapshot} expired",
        "with them {refs}",
        "{files:file} deleted",
        "{key_ids:key} removed",
        "{left_behind:file} left behind (--json lists them)",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pruned(TableResult):
    key_ids: Sequence[str]
    PARTS: ClassVar = ("{key_ids:key} removed",)


@click.command(cls=Command, short_help="Encrypt an unencrypted table in place.")
@migrating.opening
@options.threads
@migrating.asking
@output
def migrate(
    table_options: TableOptions, threads: int | None, asked: MigrationOptions, out: Output
) -> int:
    """Encrypt an unencrypted table of any format version in place.

    Every file is encrypted and read back. Then one commit makes the table an encrypted table of
    format version 3. Rows keep their order and ids. The table loses its earlier snapshots, because
    they are unencrypted. If a run was interrupted, repeat the command: it continues the run. The
    unencrypted files stay unless --delete-plaintext is given; --json lists them.

    Examples:
      ags1 table migrate db.flights --catalog prod --key tables --dry-run
      ags1 table migrate db.flights --catalog prod --key tables
      ags1 table migrate db.flights --catalog prod --key tables --delete-plaintext --yes
    """

    def work(catalog: EncryptedCatalog, *table_and_key: str, **named: Any) -> MigrationResult:
        return catalog.migrate_table(*table_and_key, threads=threads, **named)

    return migrate_and_report(table_options, asked, work, out)


@click.command(cls=Command)
@options.changing()
@flag("--rewrap", help="Wrap under the newest version of the master key.")
@target
@options.dry_run("Do everything, but commit nothing.")
@output
def rotate(
    table_options: TableOptions, rewrap: bool, target: NewMasterKey, dry_run: bool, out: Output
) -> None:
    """Replace or rewrap the keys that wrap a table's keys. Files and snapshots do not change.

    Without options, a new key encryption key (KEK) replaces all others. With --rewrap, --to-key or
    --to-kms, the KEKs stay and are wrapped again. After --to-kms, configure the catalog for the new
    KMS. Earlier metadata files still hold the old wrapped keys.

    Examples:
      ags1 table rotate db.flights --catalog prod
      ags1 table rotate db.flights --catalog prod --rewrap
      ags1 table rotate db.flights --catalog prod --to-key new
      ags1 table rotate db.flights --catalog prod --to-kms vault --to-key tables --dry-run
    """
    from ..kms.master_keys import connect, target_of

    to_key = target.to_key
    if rewrap and target != NewMasterKey():
        raise click.UsageError("--rewrap and --to-key cannot be used together")
    other = target_of(target)
    kms = None if other is None else connect(other)
    opened = ChangedCatalog(table_options)
    trusted = opened.trusted_key_ids
    if to_key is not None and trusted and to_key not in trusted:
        raise click.UsageError(
            f"--to-key {to_key} is not among the catalog's encryption.trusted-key-ids, so the "
            "table could not be loaded any more: add it there first"
        )
    table = opened.load()
    shown: type[_Rotated] = _Rotated
    if rewrap or to_key is not None:
        shown, done = _Rewrapped, table.rewrap_keys(to_key, kms, dry_run=dry_run)
    else:
        done = table.rotate_keys(dry_run=dry_run)
    shown(
        table=opened.identifier,
        dry_run=dry_run,
        key_id=done.key_id,
        keks=done.keks,
        snapshots=done.snapshots,
    ).show(out)


@click.command(cls=Command)
@options.changing()
@_exposed
@_unencrypted
@options.threads
@rekeying.asking
@output
def rekey(
    table_options: TableOptions,
    exposed: bool,
    unencrypted: bool,
    threads: int | None,
    asked: RekeyingOptions,
    out: Output,
) -> None:
    """Rewrite files under fresh keys, in one commit. Unencrypted files are encrypted.

    Rows keep their order, ids and sequence numbers. Earlier snapshots still have the old files
    until 'ags1 table expire' removes those snapshots.

    Before 1.12, Iceberg's rewrite_manifests writes plaintext manifests, which expose the keys of
    the files that they list. 'ags1 table check' finds them, and --exposed fixes the table.

    Examples:
      ags1 table rekey db.flights --catalog prod
      ags1 table rekey db.flights --catalog prod --filter "day < '2026-01-31'" --dry-run
      ags1 table rekey db.flights --catalog prod --exposed
    """
    select = (lambda file: not file.is_encrypted) if unencrypted else None

    def work(table: EncryptedTable, files: Any, **named: Any) -> Rekeyed:
        return table.rekey(files, select=select, exposed=exposed, threads=threads, **named)

    rekey_and_report(table_options, asked, work, out)


@click.command(cls=Command, short_help="Rewrite small data files into larger ones.")
@options.changing()
@options.threads
@compacting.asking
@output
def compact(
    table_options: TableOptions, threads: int | None, asked: CompactionOptions, out: Output
) -> int:
    """Rewrite small data files, and files with many deleted rows, into files of the target size.

    Deleted rows are not written again; other rows keep their ids and the sequence numbers of their
    last change. What is rewritten and when is as in Iceberg's procedure rewrite_data_files. Earlier
    snapshots still have the old files until 'ags1 table expire' removes those snapshots. If a run
    was interrupted, repeat the command: it does what is left.

    Examples:
      ags1 table compact db.flights --catalog prod --dry-run
      ags1 table compact db.flights --catalog prod --target-file-size 128MiB
      ags1 table compact db.flights --catalog prod --filter "day = '2026-01-31'" --rewrite-all
    """

    return compact_and_report(table_options, asked, threads, out)


@click.command(cls=Command)
@options.changing()
@click.option(
    "--older-than",
    type=Moment(),
    metavar="AGE|TIME",
    help="Expire snapshots older than this: 7d, 12h, 30m, or a time in ISO 8601, in UTC if it has "
    "no offset.  [default: the table's history.expire.max-snapshot-age-ms, or 5d]",
)
@click.option(
    "--retain-last",
    type=click.IntRange(1),
    metavar="N",
    help="Keep the newest N snapshots of each branch, however old they are.  [default: the table's "
    "history.expire.min-snapshots-to-keep, or 1]",
)
@click.option(
    "--snapshot",
    "snapshot_ids",
    type=int,
    multiple=True,
    metavar="ID",
    help="Also expire this snapshot, however young it is; may be repeated.",
)
@flag("--keep-files", help="Delete no files.")
@flag(
    "--prune-keys",
    help="In the same commit, remove the wrapped keys that nothing needs any more. Without this, "
    "keys stay until 'ags1 table prune-keys' removes them, unless the table's "
    "encryption.keys.prune-on-commit is true.",
)
@options.dry_run("Print what would be expired and deleted.")
@yes
@output
def expire(
    table_options: TableOptions,
    older_than: datetime | None,
    retain_last: int | None,
    snapshot_ids: tuple[int, ...],
    keep_files: bool,
    prune_keys: bool,
    dry_run: bool,
    yes: bool,
    out: Output,
) -> int:
    """Remove old snapshots, and delete the files that only they use. The command asks first.

    If a file cannot be deleted, the others still are, and the exit status is 6.

    Examples:
      ags1 table expire db.flights --catalog prod --older-than 7d --retain-last 10 --dry-run
      ags1 table expire db.flights --catalog prod --older-than 2026-01-31T12:00:00Z --prune-keys
      ags1 table expire db.flights --catalog prod --snapshot 4530519338837612000 --yes
    """
    table = ChangedCatalog(table_options).load()
    name = ".".join(table.name())
    if not dry_run:
        deleting = "" if keep_files else " and delete the files that only they use"
        confirm(f"Remove old snapshots of {name}{deleting}?", yes=yes)
    done = table.expire_snapshots(
        older_than,
        retain_last,
        snapshot_ids,
        delete_files=not keep_files,
        prune_keys=prune_keys,
        dry_run=dry_run,
    )
    files = 0 if keep_files else len(done.files.locations) - len(done.failed)
    return _Expired(
        table=name,
        dry_run=dry_run,
        snapshot_ids=done.snapshot_ids,
        refs=done.refs,
        files=files,
        key_ids=done.key_ids,
        left_behind=done.left_behind,
    ).show(out, Exit.IO if done.failed else Exit.OK)


@click.command(
    "prune-keys", cls=Command, short_help="Remove the wrapped keys that nothing refers to."
)
@options.changing()
@options.dry_run("Print which keys would be removed.")
@yes
@output
def prune_keys(table_options: TableOptions, dry_run: bool, yes: bool, out: Output) -> None:
    """Remove the wrapped keys that nothing refers to from a table's metadata. The command asks
    first.

    Examples:
      ags1 table prune-keys db.flights --catalog prod --dry-run
      ags1 table prune-keys db.flights --catalog prod --yes
    """
    table = ChangedCatalog(table_options).load()
    name = ".".join(table.name())
    if not dry_run:
        confirm(f"Remove the keys of {name} that nothing refers to?", yes=yes)
    removed = table.prune_keys(dry_run=dry_run)
    _Pruned(table=name, dry_run=dry_run, key_ids=removed).show(out)


COMMANDS = (migrate, rotate, rekey, compact, expire, prune_keys)

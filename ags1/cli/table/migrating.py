"""What ``ags1 table migrate`` and ``ags1 spark migrate`` share: their options, their question, and
what they print. Independent of where the files are encrypted."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, cast

import click

from ..console import Output
from ..exits import Exit
from ..options import confirm, flag, grouped, yes
from ..report import progress_line
from ..results import TableResult
from . import options
from .catalogs import ChangedCatalog
from .options import TableOptions

if TYPE_CHECKING:
    from ...iceberg.command_line import MigrationResult


@dataclass(frozen=True, slots=True)
class MigrationOptions:
    """What is asked of a migration."""

    data_key_length: str
    delete_plaintext: bool
    drop_refs: bool
    dry_run: bool
    yes: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Migrated(TableResult):
    """What a migration has done. ``configuration`` is what readers need in theirs."""

    files: int
    size: int
    rows: int
    dropped_snapshots: Sequence[int]
    dropped_refs: Sequence[str]
    configuration: Sequence[str]
    plaintext_deleted: int = 0
    metadata_deleted: int = 0
    plaintext_left: Sequence[str] = ()
    plaintext_outside: Sequence[str] = ()
    unreadable: Sequence[str] = ()
    PARTS: ClassVar = (
        "{files:file} of {size:byte} and {rows:row} encrypted",
        "{dropped_snapshots:earlier snapshot} removed, and time travel with them",
        "the branches and tags {dropped_refs} removed",
        "{plaintext_deleted:unencrypted file} deleted",
        "{metadata_deleted:earlier metadata file} deleted",
        "{plaintext_left:unencrypted file} left (--json lists them)",
        "{plaintext_outside:unencrypted file} left outside its folder (--json lists them)",
    )


opening = options.changing(
    key=click.option(
        "--key", "key_id", required=True, metavar="NAME", help="The master key for the table."
    ),
    mapped=False,
)
asking = grouped(
    "asked",
    MigrationOptions,
    options.data_key_length,
    flag(
        "--delete-plaintext",
        help="Delete the unencrypted files after the commit. The command asks first.",
    ),
    flag("--drop-refs", help="Drop all branches but main, and all tags."),
    options.dry_run("Print what would be encrypted."),
    yes,
)


def migrate_and_report(
    table_options: TableOptions,
    asked: MigrationOptions,
    migrate: Callable[..., MigrationResult],
    out: Output,
) -> int:
    """Have a table encrypted and print what was done; return the exit code. ``migrate`` gets
    the catalog, the table's name, the master key and, by name, the arguments that all migrations
    take."""
    opened = ChangedCatalog(table_options, migrates=True)
    if asked.delete_plaintext and not asked.dry_run:
        question = f"Delete the unencrypted files of {opened.identifier} once it is encrypted?"
        confirm(question, yes=asked.yes)
    with progress_line(opened.identifier, out) as progress:
        result = migrate(
            opened.catalog,
            opened.identifier,
            cast("str", table_options.key_id),  # the option is required
            data_key_length=int(asked.data_key_length),
            drop_refs=asked.drop_refs,
            delete_plaintext=asked.delete_plaintext,
            dry_run=asked.dry_run,
            progress=progress,
        )
    lines = _lines_for_readers(table_options)
    code = _report(opened.identifier, result, asked, lines, out)
    if out.as_json:
        return code
    if lines and not asked.dry_run:
        out.result({}, "readers need the KMS in the catalog's configuration: add these lines to it")
        for text in lines:
            out.result({}, f"    {text}")
    if (told := _next_command(table_options, result, asked)) is not None:
        out.result({}, told)
    return code


def _next_command(
    table_options: TableOptions, done: MigrationResult, asked: MigrationOptions
) -> str | None:
    """Return what to do next, as a line; None if nothing is left to do."""
    from ..kms.options import KmsOptions

    left = done.plaintext is not None and bool(done.plaintext.inside)
    if not asked.dry_run and (asked.delete_plaintext or not left):
        return None
    command = [
        *click.get_current_context().command_path.split(),
        table_options.table,
        f"--catalog={table_options.catalog}",
        f"--key={table_options.key_id}",
    ]
    if asked.dry_run:
        purpose = "to encrypt it"
        command += ["--drop-refs"] if asked.drop_refs else []
        command += ["--delete-plaintext"] if asked.delete_plaintext else []
    else:
        purpose = "to delete the unencrypted files, once all readers have the keys"
        command.append("--delete-plaintext")
    more = "" if table_options.kms == KmsOptions() else " (and the options for the KMS)"
    return f"{purpose}: {shlex.join(command)}{more}"


def _lines_for_readers(table_options: TableOptions) -> list[str]:
    """Return the lines of .pyiceberg.yaml that readers of the table need and the catalog does not
    have, without secrets."""
    from ...iceberg.command_line import configured_properties
    from ...kms.properties import Properties
    from ...kms.registry import names_kms
    from ..kms.master_keys import settings_of

    if table_options.catalog is None or names_kms(configured_properties(table_options.catalog, {})):
        return []
    properties = settings_of(table_options.kms).properties
    secrets = Properties(dict(properties)).secrets()
    lines = [f"{name}: {text}" for name, text in properties.items() if name not in secrets]
    return [*lines, "encryption.require-encrypted: true"]


def _report(
    table: str, done: MigrationResult, asked: MigrationOptions, lines: list[str], out: Output
) -> int:
    facts: dict[str, Any] = {}
    if (left := done.plaintext) is not None:
        remaining = done.failed if asked.delete_plaintext else left.inside
        facts["plaintext_left"] = remaining
        facts["plaintext_deleted"] = len(set(left.inside) - set(remaining))
        facts["metadata_deleted"] = done.metadata_deleted
        facts["plaintext_outside"], facts["unreadable"] = left.outside, left.unreadable
    return _Migrated(
        table=table,
        dry_run=asked.dry_run,
        files=done.files,
        size=done.size,
        rows=done.rows,
        dropped_snapshots=done.dropped_snapshots,
        dropped_refs=done.dropped_refs,
        configuration=lines,
        **facts,
    ).show(out, Exit.IO if done.failed else Exit.OK)

"""The command ``ags1 table doctor``: the findings of a table's health as lines or JSON, each with
the command that mends it."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import click

from ...errors import KmsError
from ..console import Output, counted, print_error, print_json, print_line, size
from ..exits import Command, Exit, one_line
from ..options import flag, output
from . import options
from .opening import open_table
from .options import TableOptions
from .verifying import gravest

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from ...iceberg import TableHealth
    from ...iceberg.operations.doctor.findings import BranchHealth, HealthFinding, Remedy


@click.command(cls=Command, short_help="Say how healthy a table is, and what mends it.")
@options.opening
@flag("--strict", help="Warnings are failures, too, and so are checks that could not be done.")
@flag("--no-list", help="Do not list the table's folders.")
@output
def doctor(table_options: TableOptions, strict: bool, no_list: bool, out: Output) -> int:
    """Say how healthy a table is, and name the command that mends each finding.

    It reads metadata.json, manifests and folders, but no data file: 'ags1 table verify' reads
    those. An error is a file or snapshot that must be encrypted and is not, keys in plaintext
    manifests, or missing keys. A warning is an unencrypted data or statistics file, a key
    encryption key (KEK) that expires soon, or a risky setting. A note is maintenance that is due:
    small files, deleted rows, old snapshots, orphan files, unused keys.

    Without the table's master key, it reports what metadata.json and the catalog show, and says
    which checks were left out.

    Examples:
      ags1 table doctor db.flights --catalog prod
      ags1 table doctor db.flights --catalog prod --json | jq -r '.findings[].command'
      ags1 table doctor warehouse/db/flights --strict --quiet || mail -s unhealthy me
    """
    from ...iceberg import examine_table

    opened, no_keys = _open(table_options, out)
    health = examine_table(opened, no_keys=no_keys, list_folders=not no_list)
    code = _exit_code(health, strict=strict)
    if out.as_json:
        facts = health.to_dict()
        for found, finding in zip(facts["findings"], health.findings, strict=True):
            found["command"] = finding.remedy and command_line(table_options, finding.remedy)
        print_json({**facts, "ok": code == Exit.OK, "exit_code": int(code)})
        return code
    _print(table_options, health, out)
    if code != Exit.OK:
        print_error(f"{table_options.table}: {_summary(health)}")
    else:
        # What was not looked at may be wrong.
        ok = "no finding" if health.left_out else "OK"
        out.result({}, f"{table_options.table}: {ok}: {_summary(health)}")
    return code


def _open(table_options: TableOptions, out: Output) -> tuple[Table, str | None]:
    """Open the table, without keys if the KMS cannot be used; also return why it cannot."""
    message: set[str] = set()

    def note(text: str) -> None:
        if text not in message:
            message.add(text)
            out.note(text)

    try:
        return open_table(table_options, note), None
    except KmsError as error:
        return open_table(table_options, note, keys=False), error.message


def _print(table_options: TableOptions, health: TableHealth, out: Output) -> None:
    if not out.quiet:
        for branch in health.branches:
            print_line(one_line(_branch_line(branch)))
    has_command = False
    for finding in health.findings:
        if out.quiet and finding.severity != "error":
            continue
        print_line(one_line(_finding_line(finding)))
        if finding.remedy is not None:
            has_command = True
            print_line(one_line(f"    {command_line(table_options, finding.remedy)}"))
    for left in health.left_out:
        out.note(f"{table_options.table}: left out: {left.checks}: {left.reason}")
    if has_command and (table_options.io_properties or table_options.kms.kms_properties):
        out.note("add your --io-property and --kms-property options to these commands")


def command_line(table_options: TableOptions, remedy: Remedy) -> str:
    """Return the command that mends a finding, for a shell. It names the table and its KMS as
    ``table_options`` does, without properties, which may be secrets. If it was opened without a
    catalog, or a migration needs a master key, the user has to replace the words in capitals."""
    words = ["ags1", "table", remedy.command]
    words += [table_options.table if table_options.catalog is not None else "NAMESPACE.TABLE"]
    words += ["--catalog", table_options.catalog or "CATALOG"]
    if table_options.kms.kms_type is not None:
        words += ["--kms", table_options.kms.kms_type]
    if table_options.kms.keyring is not None:
        words += ["--keyring", table_options.kms.keyring]
    if table_options.kms.key_file is not None:
        words += ["--key-file", table_options.kms.key_file]
    key_id = table_options.key_id or ("KEY" if remedy.command == "migrate" else None)
    if key_id is not None:
        words += ["--key", key_id]
    return shlex.join([*words, *remedy.arguments])


def _exit_code(health: TableHealth, *, strict: bool) -> Exit:
    from ...iceberg.operations.doctor.findings import SEVERITIES

    code = gravest(health.finding_counts, SEVERITIES, strict=strict)
    if code == Exit.OK and strict and health.left_out:
        return Exit.KEYS
    return code


def _finding_line(finding: HealthFinding) -> str:
    many = "" if finding.size is None else f" [{finding.count}, {size(finding.size)}]"
    such = f", such as {finding.examples[0]}" if finding.examples else ""
    return f"{finding.severity.value}: {finding.kind}: {finding.message}{such}{many}"


def _branch_line(branch: BranchHealth) -> str:
    parts = [
        f"{counted(branch.data_files, 'data file')} of {size(branch.size)} in "
        f"{counted(branch.partitions, 'partition')}",
        f"at most {branch.most_files} in one, {branch.small_files} small",
    ]
    for number, name in (
        (branch.deletion_vectors, "deletion vector"),
        (branch.position_delete_files, "position delete file"),
        (branch.equality_delete_files, "equality delete file"),
    ):
        if number:
            parts.append(counted(number, name))
    if branch.deleted_rows:
        parts.append(f"{counted(branch.deleted_rows, 'row')} deleted")
    return f"branch {branch.name}: {', '.join(parts)}"


def _summary(health: TableHealth) -> str:
    from ...iceberg.operations.verify.findings import Severity

    parts = [counted(health.snapshots, "snapshot"), counted(len(health.keks), "KEK")]
    for severity in Severity:
        if number := health.count(severity):
            parts.append(counted(number, severity.value))
    if health.left_out:
        parts.append("some checks were left out")
    return ", ".join(parts)

"""The command ``ags1 table check``, and what ``ags1 spark verify-table`` has in common with it: a
table is checked, the findings are printed as lines or JSON, each with the command that fixes it,
and the gravest makes the exit status. Independent of where the files are looked at."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from ...errors import KmsError
from ..console import Output, counted, print_error, print_json, print_line, size
from ..exits import Command, Exit, one_line
from ..options import flag, grouped, output
from ..report import progress_line
from . import options
from .opening import open_table
from .options import TableOptions

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from ...iceberg.command_line import Finding, TableCheck

# All other kinds mean that data is not what was encrypted, or is unencrypted where it must not be.
_EXIT = {
    "truncated": Exit.TRUNCATED,
    "format": Exit.FORMAT,
    "impossible-setting": Exit.FORMAT,
    "missing-file": Exit.IO,
    "missing-statistics": Exit.IO,
    "unreadable-file": Exit.IO,
    **dict.fromkeys(
        ("key", "kek-unusable", "kek-expired", "kek-near-expiry", "kek-timestamp"), Exit.KEYS
    ),
    **dict.fromkeys(
        ("kek-other-master-key", "missing-snapshot-key", "catalog-loses-keys"), Exit.KEYS
    ),
    **dict.fromkeys(("plain-data-file", "plain-statistics", "stray-plain-file"), Exit.PLAINTEXT),
}
# Findings that differ only in their files are printed as one, which names some of them.
_MAX_EXAMPLES = 3


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """What counts as an error, and where to look for it."""

    require_encrypted: bool
    strict: bool
    no_list: bool


asking = grouped(
    "asked",
    CheckOptions,
    options.require_encrypted,
    flag("--strict", help="Warnings are failures, too."),
    flag("--no-list", help="Do not search the table's folders for files that no snapshot uses."),
)


@click.command(cls=Command, short_help="Say what is wrong with a table, and what fixes it.")
@options.opening
@click.option(
    "--quick", "level", flag_value="quick", help="Look only at metadata.json and the catalog."
)
@click.option("--full", "level", flag_value="full", help="Check every byte of every file.")
@asking
@options.threads
@output
def check(
    table_options: TableOptions,
    level: str | None,
    asked: CheckOptions,
    threads: int | None,
    out: Output,
) -> int:
    """Say what is wrong with a table, and name the command that fixes each finding.

    With --quick, the check reads metadata.json and asks the catalog, and needs no key. Without it,
    it also reads all manifests, lists the table's folders, and compares the length of each file.
    With --full, it authenticates every byte of every file of every snapshot.

    An error is a file that is damaged, changed or missing, or keys that are missing or exposed. A
    file that is not encrypted is an error, too, wherever it is in the table or its folders. If that
    is all that is wrong, the exit status is 10. A warning is a key encryption key (KEK) that
    expires soon, or a risky setting. A note is maintenance that is due, or a file or a key that no
    snapshot needs.

    The metadata.json itself (schemas, which snapshots there are) is not authenticated by the
    table's keys. A note says so, unless --expect-sha256 or the catalog confirms it. SQL, Hive, Glue
    and DynamoDB catalogs keep its hash; a REST server answers for it.

    Examples:
      ags1 table check db.flights --catalog prod
      ags1 table check db.flights --catalog prod --full --quiet || mail -s broken me
      ags1 table check s3://lake/db/flights --kms aws --key $KEY --json \\
          | jq -r '.findings[].command'
    """
    return _check(table_options, level or "default", asked, threads, out)


def _former(name: str, level: str, instead: str) -> click.Command:
    """Return a former name of the command ``check``."""

    @click.command(name, cls=Command, hidden=True, help=f"The former name of '{instead}'.")
    @options.opening
    @asking
    @options.threads
    @output
    def command(
        table_options: TableOptions, asked: CheckOptions, threads: int | None, out: Output
    ) -> int:
        out.note(f"'ags1 table {name}' is now '{instead}'. The next release has only this name")
        return _check(table_options, level, asked, threads, out)

    return command


COMMANDS = (
    check,
    _former("verify", "full", "ags1 table check --full"),
    _former("doctor", "default", "ags1 table check"),
)


def _check(
    table_options: TableOptions, level: Any, asked: CheckOptions, threads: int | None, out: Output
) -> int:
    from ...iceberg.command_line import check_table

    def work(opened: Table, **named: Any) -> TableCheck:
        return check_table(opened, level, threads=threads, **named)

    return report_check(table_options, _open(table_options, level, out), asked, work, out)


def report_check(
    table_options: TableOptions,
    opened: Table,
    asked: CheckOptions,
    check: Callable[..., TableCheck],
    out: Output,
) -> int:
    """Have a table checked, print the findings, and return the exit code. ``check`` gets the table
    and, by name, the arguments that all checks take."""
    with progress_line(table_options.table, out) as progress:
        result = check(
            opened,
            require_encrypted=asked.require_encrypted,
            list_folders=not asked.no_list,
            progress=progress,
        )
    code = exit_code(result, strict=asked.strict)
    if out.as_json:
        facts = result.to_dict()
        for found, finding in zip(facts["findings"], result.findings, strict=True):
            found["command"] = command_line(table_options, result, finding)
        print_json({**facts, "ok": code == Exit.OK, "exit_code": int(code)})
        return code
    _print(table_options, result, out)
    if code != Exit.OK:
        print_error(f"{table_options.table}: {_summary(result)}")
    else:
        out.result({}, f"{table_options.table}: OK: {_summary(result)}")
    return code


def _open(table_options: TableOptions, level: str, out: Output) -> Table:
    """Open the table. If the KMS cannot be used, or no key is needed, open it without."""
    said: set[str] = set()

    def note(text: str) -> None:
        if text not in said:
            said.add(text)
            out.note(text)

    if level == "quick":
        return open_table(table_options, note, keys=False)
    try:
        return open_table(table_options, note)
    except KmsError as error:
        if level == "full":
            raise
        return open_table(table_options, note, keys=False, no_keys=error.message)


def exit_code(result: TableCheck, *, strict: bool) -> Exit:
    """Return the code of the gravest finding; with ``strict``, warnings count too. Without one,
    return KEYS if checks could not be done, and else OK."""
    kinds = [*result.kinds("error"), *(result.kinds("warning") if strict else ())]
    codes = [_EXIT.get(kind, Exit.AUTHENTICATION) for kind in kinds]
    if Exit.AUTHENTICATION in codes:
        return Exit.AUTHENTICATION
    return min(codes, default=Exit.KEYS if result.left_out else Exit.OK)


def _print(table_options: TableOptions, result: TableCheck, out: Output) -> None:
    if not out.quiet:
        for line in _branch_lines(result):
            print_line(one_line(line))
    has_command = False
    # A finding about one file, such as damage, stands for itself.
    groups: dict[tuple[Any, ...], list[Finding]] = {}
    for finding in result.findings:
        alike = None if finding.remedy else (finding.file, finding.message)
        groups.setdefault((finding.kind, finding.remedy, alike), []).append(finding)
    for findings in groups.values():
        first = findings[0]
        if out.quiet and first.severity != "error":
            continue
        print_line(_line(findings))
        if (command := command_line(table_options, result, first)) is not None:
            has_command = True
            print_line(one_line(f"    {command}"))
    for left in result.left_out:
        print_error(f"{table_options.table}: not checked: {left.checks}: {left.reason}")
    if has_command and (table_options.io_properties or table_options.kms.kms_properties):
        out.note("add your --io-property and --kms-property options to these commands")


def command_line(table_options: TableOptions, result: TableCheck, finding: Finding) -> str | None:
    """Return the command that fixes a finding, for a shell; None if none does. It names the table
    and its KMS as ``table_options`` does, without properties, which may be secrets. If it was
    opened without a catalog, or a migration needs a master key, the user has to replace the words
    in capitals."""
    remedy = finding.remedy
    if remedy is None:
        return None
    words = ["ags1", "table", remedy.command]
    words += [table_options.table if table_options.catalog is not None else "NAMESPACE.TABLE"]
    words += ["--catalog", table_options.catalog or "CATALOG"]
    if table_options.kms.kms_type is not None:
        words += ["--kms", table_options.kms.kms_type]
    if table_options.kms.keyring is not None:
        words += ["--keyring", table_options.kms.keyring]
    if table_options.kms.key_file is not None:
        words += ["--key-file", table_options.kms.key_file]
    needed = (result.key_id or "KEY") if remedy.command == "migrate" else None
    if (key_id := table_options.key_id or needed) is not None:
        words += ["--key", key_id]
    return shlex.join([*words, *remedy.arguments])


def _line(findings: list[Finding]) -> str:
    """Return findings that differ only in their files as one line."""
    first = findings[0]
    text = f"{first.severity.value}: {first.kind}: "
    if len(findings) == 1:
        where = "" if first.block is None else f" (block {first.block})"
        many = "" if first.size is None else f" [{first.count}, {size(first.size)}]"
        file = "" if first.file is None else f"{first.file}: "
        return one_line(f"{text}{file}{first.message}{where}{many}")
    files = [finding.file for finding in findings if finding.file]
    such = f", such as {', '.join(files[:_MAX_EXAMPLES])}" if files else ""
    return one_line(f"{text}{len(findings)} times: {first.message}{such}")


def _branch_lines(result: TableCheck) -> Iterator[str]:
    for branch in result.branches:
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
        yield f"branch {branch.name}: {', '.join(parts)}"


def _summary(result: TableCheck) -> str:
    """Return what was checked, in one line."""
    parts = [counted(result.snapshots, "snapshot"), counted(len(result.keks), "KEK")]
    for number, name in (
        (result.manifests, "manifest"),
        (result.data_files, "data file"),
        (result.delete_files, "delete file"),
    ):
        if number:
            parts.append(counted(number, name))
    if result.plain_data_files:
        parts.append(f"{counted(result.plain_data_files, 'data file')} not encrypted")
    if result.exposed_files:
        exposed = counted(result.exposed_files, "file")
        parts.append(f"{exposed} with exposed keys ({result.exposed_current_files} in use)")
    if result.level == "full":
        parts.append(f"{result.verified_size} bytes verified in {result.seconds:.1f} s")
    for severity in ("error", "warning", "note"):
        if number := result.count(severity):
            parts.append(counted(number, severity))
    if result.left_out:
        parts.append("some checks could not be done")
    return ", ".join(parts)

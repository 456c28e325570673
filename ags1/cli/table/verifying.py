"""A table verified by a command: the findings as lines or JSON, and the exit code that they make.
Knows nothing of where the files are looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import NotEncryptedError
from ..console import Output, counted, print_error, print_json, print_line
from ..exits import Exit, one_line
from ..options import flag, grouped
from ..report import Report
from . import options
from .opening import open_table
from .options import TableOptions

if TYPE_CHECKING:
    from ...iceberg.operations.verify.findings import Finding, TableVerification

# All other kinds mean that data is not what was encrypted, or is unencrypted where it must not be.
_EXIT = {
    "truncated": Exit.TRUNCATED,
    "format": Exit.FORMAT,
    "key": Exit.KEYS,
    "kek-unusable": Exit.KEYS,
    "kek-expired": Exit.KEYS,
    "kek-near-expiry": Exit.KEYS,
    "kek-timestamp": Exit.KEYS,
    "kek-other-master-key": Exit.KEYS,
    "missing-snapshot-key": Exit.KEYS,
    "catalog-loses-keys": Exit.KEYS,
    "impossible-setting": Exit.FORMAT,
    "missing-file": Exit.IO,
    "missing-statistics": Exit.IO,
    "unreadable-file": Exit.IO,
}


@dataclass(frozen=True, slots=True)
class VerifyingOptions:
    """What counts as an error, and where to look for it."""

    require_encrypted: bool
    strict: bool
    no_list: bool


asking = grouped(
    "asked",
    VerifyingOptions,
    options.require_encrypted,
    flag("--strict", help="Warnings are failures, too."),
    flag("--no-list", help="Do not search the table's folder for files that no snapshot uses."),
)


def verify_and_report(
    table_options: TableOptions,
    asked: VerifyingOptions,
    verify: Callable[..., TableVerification],
    out: Output,
) -> int:
    """Open a table, have it verified and print the findings; return the exit code. ``verify`` gets
    the table and, by name, the arguments that all verifications take."""
    from ...iceberg import EncryptedTable
    from ...iceberg.operations.verify import estimated_size

    opened = open_table(table_options, out.note)
    if not isinstance(opened, EncryptedTable):
        raise NotEncryptedError(
            "the table is not encrypted, so nothing in it can be verified: 'ags1 table migrate' "
            "encrypts it"
        )
    with Report(out, estimated_size(opened)) as report:
        report.begin(table_options.table)
        result = verify(
            opened,
            require_encrypted=asked.require_encrypted,
            list_folders=not asked.no_list,
            progress=report.progress,
        )
    code = exit_code(result, strict=asked.strict)
    if out.as_json:
        facts = {**result.to_dict(), "ok": code == Exit.OK, "exit_code": int(code)}
        print_json(facts)
        return code
    for finding in result.findings:
        if not out.quiet or finding.severity == "error":
            print_line(line(finding))
    if code != Exit.OK:
        print_error(f"{table_options.table}: {summary(result)}")
    else:
        out.result({}, f"{table_options.table}: OK: {summary(result)}")
    return code


def exit_code(result: TableVerification, *, strict: bool) -> Exit:
    """Return the code of the gravest finding. With ``strict``, warnings count too. If nothing
    counts, return OK."""
    from ...iceberg.operations.verify.findings import SEVERITIES

    return gravest(result.finding_counts, SEVERITIES, strict=strict)


def gravest(kinds: Iterable[str], severities: Mapping[str, str], *, strict: bool) -> Exit:
    """Return the code of the gravest of some kinds of findings, as ``exit_code``."""
    grave = ("error", "warning") if strict else ("error",)
    codes = [_EXIT.get(kind, Exit.AUTHENTICATION) for kind in kinds if severities[kind] in grave]
    if Exit.AUTHENTICATION in codes:
        return Exit.AUTHENTICATION
    return min(codes, default=Exit.OK)


def line(finding: Finding) -> str:
    """Return a finding as one line."""
    file = "" if finding.file is None else f"{finding.file}: "
    where = "" if finding.block is None else f" (block {finding.block})"
    return one_line(f"{finding.severity.value}: {finding.kind}: {file}{finding.message}{where}")


def summary(result: TableVerification) -> str:
    """Return what was verified, in one line."""
    from ...iceberg.operations.verify.findings import Severity

    parts = [
        counted(result.snapshots, "snapshot"),
        counted(result.manifests, "manifest"),
        counted(result.data_files, "data file"),
    ]
    if result.plain_data_files:
        parts[-1] += f" ({result.plain_data_files} unencrypted)"
    if result.delete_files:
        parts.append(counted(result.delete_files, "delete file"))
    if result.exposed_files:
        exposed = counted(result.exposed_files, "file")
        parts.append(f"{exposed} with exposed keys ({result.exposed_current_files} in use)")
    parts.append(f"{result.verified_size} bytes verified in {result.seconds:.1f} s")
    for severity in (Severity.ERROR, Severity.WARNING, Severity.NOTE):
        if number := result.count(severity):
            parts.append(counted(number, severity.value))
    return ", ".join(parts)

"""A table verified by a command: the findings as lines or JSON, and the exit code that they make.

Knows nothing of where the files are looked at.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from .failures import EXPECTED, Exit, describe, one_line
from .table_options import TableOptions

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from ..iceberg import EncryptedTable
    from ..iceberg.findings import Finding, TableVerification
    from ..iceberg.verify import Progress

# The kinds that mean something else than that the data is not what the keys sealed, or is in the
# clear where it should not be.
_EXIT = {
    "truncated": Exit.TRUNCATED,
    "format": Exit.FORMAT,
    "key": Exit.KEYS,
    "kek-unusable": Exit.KEYS,
    "kek-expired": Exit.KEYS,
    "kek-near-expiry": Exit.KEYS,
    "kek-timestamp": Exit.KEYS,
    "kek-other-master-key": Exit.KEYS,
    "missing-file": Exit.IO,
    "missing-statistics": Exit.IO,
    "unreadable-file": Exit.IO,
}


def verify_and_tell(
    where: TableOptions,
    verify: Callable[[EncryptedTable, Progress], TableVerification],
    *,
    strict: bool,
    quiet: bool,
    as_json: bool,
) -> int:
    """Open a table, have it verified and print what was found; return the exit code.

    ``verify`` gets the table, and what is to be told of the bytes that are done.
    """
    from .standard import print_error, print_line
    from .tables import open_table, pyiceberg_failures

    def note(text: str) -> None:
        if not quiet and not as_json:
            print_error(f"ags1: {one_line(text)}")

    try:
        opened = open_table(where, note)
        with pyiceberg_failures(where.table):
            result = _verified(where, opened, verify, quiet)
    except EXPECTED as error:
        failure = describe(error, where.table)
        print_error(f"ags1: {one_line(failure.message)}")
        if as_json:
            details = {"kind": failure.kind, "message": failure.message}
            code = int(failure.exit_code)
            print_line(json.dumps({"ok": False, "exit_code": code, "error": details}))
        return failure.exit_code
    code = exit_code(result, strict=strict)
    if as_json:
        print_line(_as_json(result, code))
        return code
    for finding in result.findings:
        if not quiet or finding.severity == "error":
            print_line(line(finding))
    if code != Exit.OK:
        print_error(f"ags1: {one_line(where.table)}: {summary(result)}")
    elif not quiet:
        print_line(one_line(f"{where.table}: OK: {summary(result)}"))
    return code


def _verified(
    where: TableOptions,
    opened: Table,
    verify: Callable[[EncryptedTable, Progress], TableVerification],
    quiet: bool,
) -> TableVerification:
    from ..errors import NotEncryptedError
    from ..iceberg import EncryptedTable
    from ..iceberg.verify import estimated_size
    from .report import Report

    if not isinstance(opened, EncryptedTable):
        raise NotEncryptedError("the table is not encrypted: nothing in it can be verified")
    with Report(as_json=False, quiet=quiet, total_size=estimated_size(opened)) as report:
        report.begin(where.table)
        return verify(opened, report.progress)


def exit_code(result: TableVerification, *, strict: bool) -> Exit:
    """Return the code of the gravest finding; OK if there are no errors, nor warnings with
    ``strict``."""
    from ..iceberg.findings import SEVERITIES, Severity

    grave = {Severity.ERROR, Severity.WARNING} if strict else {Severity.ERROR}
    codes = [
        _EXIT.get(kind, Exit.AUTHENTICATION)
        for kind in result.finding_counts
        if SEVERITIES[kind] in grave
    ]
    if Exit.AUTHENTICATION in codes:
        return Exit.AUTHENTICATION
    return min(codes, default=Exit.OK)


def _as_json(result: TableVerification, code: Exit) -> str:
    """Return the result as a JSON object on one line."""
    return json.dumps({**result.to_dict(), "ok": code == Exit.OK, "exit_code": int(code)})


def line(finding: Finding) -> str:
    """Return a finding as one line."""
    file = "" if finding.file is None else f"{finding.file}: "
    where = "" if finding.block is None else f" (block {finding.block})"
    return one_line(f"{finding.severity.value}: {finding.kind}: {file}{finding.message}{where}")


def summary(result: TableVerification) -> str:
    """Return what was verified, in one line."""
    from ..iceberg.findings import Severity

    parts = [
        _count(result.snapshots, "snapshot"),
        _count(result.manifests, "manifest"),
        _count(result.data_files, "data file"),
    ]
    if result.plain_data_files:
        parts[-1] += f" ({result.plain_data_files} in the clear)"
    if result.delete_files:
        parts.append(_count(result.delete_files, "delete file"))
    if result.exposed_files:
        exposed = _count(result.exposed_files, "file")
        parts.append(f"{exposed} with exposed keys ({result.exposed_current_files} in use)")
    parts.append(f"{result.verified_size} bytes verified in {result.seconds:.1f} s")
    for severity in (Severity.ERROR, Severity.WARNING, Severity.NOTE):
        if found := result.count(severity):
            parts.append(_count(found, severity.value))
    return ", ".join(parts)


def _count(number: int, name: str) -> str:
    return f"{number} {name}{'' if number == 1 else 's'}"

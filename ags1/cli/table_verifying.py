"""``ags1 table verify``: the findings as lines or JSON, and the exit code that they make."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from .failures import Exit, one_line

if TYPE_CHECKING:
    from ..iceberg.findings import Finding, TableVerification

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


def exit_code(result: TableVerification, *, strict: bool) -> Exit:
    """Return the gravest of the findings' codes, which is the lowest; OK without errors, and with
    ``strict`` without warnings."""
    from ..iceberg.findings import SEVERITIES, Severity

    grave = {Severity.ERROR, Severity.WARNING} if strict else {Severity.ERROR}
    codes = [
        _EXIT.get(kind, Exit.AUTHENTICATION)
        for kind in result.finding_counts
        if SEVERITIES[kind] in grave
    ]
    return min(codes, default=Exit.OK)


def as_json(result: TableVerification, code: Exit) -> str:
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
    parts.append(f"{result.verified_size} bytes verified in {result.seconds:.1f} s")
    for severity in (Severity.ERROR, Severity.WARNING, Severity.NOTE):
        if found := result.count(severity):
            parts.append(_count(found, severity.value))
    return ", ".join(parts)


def _count(number: int, name: str) -> str:
    return f"{number} {name}{'' if number == 1 else 's'}"

"""Which command of ``ags1 table`` fixes a finding of a check."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from ...spec.constants import MAIN_BRANCH
from ..deletion import may_share_files
from .findings import Finding, Remedy

_BY_KIND = {
    **dict.fromkeys(
        ("kek-expired", "kek-near-expiry", "kek-timestamp", "kek-other-master-key", "several-keks"),
        Remedy("rotate"),
    ),
    "unencrypted-table": Remedy("migrate"),
    "orphan-key": Remedy("prune-keys"),
    "old-snapshots": Remedy("expire"),
    "metadata-files": Remedy("erase"),
    "orphan-file": Remedy("remove-orphans"),
    "stray-plain-file": Remedy("remove-orphans"),
}
# What a branch has is rewritten. What only earlier snapshots have goes with them.
_REWRITTEN = {
    "exposed-keys": "--exposed",
    "manifest-without-key": "--exposed",
    "plain-data-file": "--unencrypted",
}
_OF_SNAPSHOTS = (*_REWRITTEN, "snapshot-without-key", "partition-values")
# They delete files, which other tables may have too.
_DELETING = ("expire", "erase", "remove-orphans")
_DELETE_PLAINTEXT = Remedy("migrate", ("--delete-plaintext",))
_MAX_NAMED = 20


def on_branch(branch: str) -> tuple[str, ...]:
    """Return the arguments by which a command works on this branch."""
    return () if branch == MAIN_BRANCH else ("--branch", branch)


def with_remedies(
    findings: Iterable[Finding], metadata: Mapping[str, Any], *, migrated: bool = False
) -> Iterator[Finding]:
    """Yield the findings with the commands that fix them. Those that have a command keep it.
    ``migrated``: an earlier version of the table, which is still there, is not encrypted."""
    findings = list(findings)
    branches, tags = _heads(metadata)
    earlier: dict[str, set[int]] = {}
    for finding in findings:
        if finding.kind in _OF_SNAPSHOTS and _branch_of(finding, branches) is None:
            earlier.setdefault(finding.kind, set()).update(finding.snapshot_ids)
    for finding in findings:
        remedy = finding.remedy or _BY_KIND.get(finding.kind)
        if finding.kind in earlier and _branch_of(finding, branches) is None:
            remedy = expiring(metadata, earlier[finding.kind])
            if kept := [name for name, i in tags.items() if i in finding.snapshot_ids]:
                message = f"{finding.message}; remove the tags {', '.join(kept)} first"
                finding = replace(finding, message=message)
        elif branch := _branch_of(finding, branches):
            remedy = Remedy("rekey", (_REWRITTEN[finding.kind], *on_branch(branch)))
        if migrated and finding.kind == "stray-plain-file":
            message = f"{finding.message}: the migration of the table has left such files"
            finding, remedy = replace(finding, message=message), _DELETE_PLAINTEXT
        if remedy and remedy.command in _DELETING and may_share_files(metadata.get("properties")):
            remedy = None
        yield replace(finding, remedy=remedy)


def expiring(metadata: Mapping[str, Any], snapshot_ids: Collection[int]) -> Remedy | None:
    """Return the command that expires these snapshots, except the heads of branches and tags; None
    if no other is left. If the snapshots are more than ``_MAX_NAMED``, the command expires all but
    the heads."""
    branches, tags = _heads(metadata)
    chosen = sorted({*snapshot_ids} - {*branches.values(), *tags.values()})
    if not chosen:
        return None
    if len(chosen) <= _MAX_NAMED:
        return Remedy("expire", tuple(a for i in chosen for a in ("--snapshot", str(i))))
    return Remedy("expire", ("--older-than", "0s", "--retain-last", "1"))


def _branch_of(finding: Finding, branches: Mapping[str, int]) -> str | None:
    """Return the branch that has what the finding is about, and whose files can be rewritten."""
    if finding.kind not in _REWRITTEN:
        return None
    return next((name for name, i in branches.items() if i in finding.snapshot_ids), None)


def _heads(metadata: Mapping[str, Any]) -> tuple[dict[str, int], dict[str, int]]:
    """Return the snapshots of the branches and those of the tags."""
    branches: dict[str, int] = {}
    tags: dict[str, int] = {}
    for name, ref in (metadata.get("refs") or {}).items():
        of_kind = branches if ref.get("type", "branch") == "branch" else tags
        of_kind[name] = int(ref["snapshot-id"])
    return branches, tags

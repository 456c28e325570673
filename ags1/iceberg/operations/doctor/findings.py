"""The findings of an examination of a table's health, and its result.

Each kind of finding has a stable name and one severity. Kinds that ``verify`` has too have the same
name and severity there. Programs may rely on both, and on the names in ``to_dict``. This holds no
key, and knows nothing of where the findings come from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ..verify import findings as verify
from ..verify.findings import Severity

_ERRORS = "unencrypted-table missing-snapshot-key exposed-keys-earlier catalog-loses-keys".split()
_WARNINGS = """
    plain-data-file-earlier partition-values no-metadata-hash impossible-setting
""".split()
_NOTES = """
    compaction dangling-deletes deleted-rows old-snapshots metadata-files gc-disabled
""".split()

SEVERITIES: Mapping[str, Severity] = (
    dict(verify.SEVERITIES)
    | dict.fromkeys(_ERRORS, Severity.ERROR)
    | dict.fromkeys(_WARNINGS, Severity.WARNING)
    | dict.fromkeys(_NOTES, Severity.NOTE)
)
MAX_EXAMPLES = 3


@dataclass(frozen=True, slots=True)
class Remedy:
    """The command ``ags1 table …`` that mends a finding: its name, and its arguments without the
    table and the options that open the table."""

    command: str
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HealthFinding:
    """One finding. ``count`` is the number of files, keys or snapshots concerned. ``size``
    is that of the files or keys (bytes); None if it is unknown. ``examples`` are some locations or
    IDs. If no command mends the finding, ``remedy`` is None, and ``message`` says what to do.
    """

    kind: str
    message: str
    count: int = 1
    size: int | None = None
    examples: tuple[str, ...] = ()
    remedy: Remedy | None = None

    @property
    def severity(self) -> Severity:
        """How bad it is."""
        return SEVERITIES[self.kind]

    def to_dict(self) -> dict[str, Any]:
        """Return the finding as a dict for JSON."""
        remedy = self.remedy and [self.remedy.command, *self.remedy.arguments]
        examples = list(self.examples)
        return {
            "severity": self.severity.value,
            **asdict(self),
            "examples": examples,
            "remedy": remedy,
        }


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Checks that could not be done, and why."""

    checks: str
    reason: str


@dataclass(frozen=True, slots=True)
class KekHealth:
    """A KEK of the table. ``created_ms`` (epoch ms) is None if it has no readable time."""

    key_id: str
    master_key_id: str | None
    created_ms: int | None


@dataclass(frozen=True, slots=True)
class BranchHealth:
    """The live files of a branch. ``size`` is that of its data files (stored bytes).
    ``small_files`` are below the minimum size that a compaction has by default. ``deleted_rows``
    counts rows in deletion vectors and position delete files. ``partitions`` is the number of
    partitions with data files, and ``most_files`` the largest number of data files in one."""

    name: str
    snapshot_id: int
    data_files: int
    size: int
    small_files: int
    deletion_vectors: int
    position_delete_files: int
    equality_delete_files: int
    deleted_rows: int
    partitions: int
    most_files: int


@dataclass(frozen=True, slots=True, repr=False)
class TableHealth(verify.ShownResult):
    """The result of ``examine_table``. ``key_id`` is the table's master key; None if the table is
    not encrypted. ``left_out`` are the checks that could not be done."""

    metadata_location: str
    table_uuid: str
    encrypted: bool
    key_id: str | None
    snapshots: int
    keks: tuple[KekHealth, ...] = ()
    branches: tuple[BranchHealth, ...] = ()
    findings: tuple[HealthFinding, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    seconds: float = field(default=0.0, compare=False)

    @property
    def ok(self) -> bool:
        """Whether there is no error."""
        return not self.count(Severity.ERROR)

    @property
    def finding_counts(self) -> Mapping[str, int]:
        """The number of findings of each kind."""
        return Counter(finding.kind for finding in self.findings)

    def count(self, severity: Severity) -> int:
        """Return the number of findings with that severity."""
        return sum(finding.severity == severity for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Return the result as a dict for JSON."""
        lists = {
            "keks": [asdict(kek) for kek in self.keks],
            "branches": [asdict(branch) for branch in self.branches],
            "left_out": [asdict(left) for left in self.left_out],
            "findings": [finding.to_dict() for finding in self.findings],
        }
        return {
            "ok": self.ok,
            "metadata_location": self.metadata_location,
            "table_uuid": self.table_uuid,
            "encrypted": self.encrypted,
            "key_id": self.key_id,
            "snapshots": self.snapshots,
            "seconds": round(self.seconds, 3),
            "errors": self.count(Severity.ERROR),
            "warnings": self.count(Severity.WARNING),
            "notes": self.count(Severity.NOTE),
            **lists,
        }


def in_order(findings: Iterable[HealthFinding]) -> tuple[HealthFinding, ...]:
    """Return the findings, errors first."""
    order = list(Severity)
    return tuple(sorted(findings, key=lambda f: (order.index(f.severity), f.kind, f.message)))


def summed(
    findings: Sequence[verify.Finding], remedies: Mapping[str, Remedy] | None = None
) -> list[HealthFinding]:
    """Return one finding for each kind of ``verify``'s findings. ``remedies`` are by kind."""
    by_kind: dict[str, list[verify.Finding]] = {}
    for finding in findings:
        by_kind.setdefault(finding.kind, []).append(finding)
    return [
        HealthFinding(
            kind,
            same[0].message + (f" ({len(same)} such findings)" if len(same) > 1 else ""),
            len(same),
            examples=examples_of(finding.file for finding in same if finding.file),
            remedy=(remedies or {}).get(kind),
        )
        for kind, same in by_kind.items()
    ]


def examples_of(names: Iterable[str]) -> tuple[str, ...]:
    """Return the first ``MAX_EXAMPLES`` of the sorted names."""
    return tuple(sorted(names)[:MAX_EXAMPLES])

"""The findings of a verification of a table, and its result.

Each kind of finding has a stable name and one severity. Programs may rely on both. This module does
not look for anything itself and holds no key.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from enum import Enum
from typing import Any

from pyiceberg.typedef import EMPTY_DICT

from ....errors import (
    Ags1Error,
    AuthenticationError,
    FormatError,
    KeyMetadataError,
    KmsError,
    MetadataIntegrityError,
    MissingFileLengthError,
    NotEncryptedError,
    TruncatedError,
)
from ...read.shown import Shown
from ...storage.locations import mapped_location


class Severity(str, Enum):
    """How bad a finding is. ``ERROR``: the table is damaged, was changed, or is not protected as
    the format demands. ``WARNING``: the table is intact, but something in it or beside it is not
    encrypted or needs attention. ``NOTE``: anything else."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


_ERRORS = """
    authentication not-encrypted metadata shared-key two-keys record-count
    snapshot-without-key exposed-keys manifest-without-key delete-file-without-key
    truncated missing-file format key kek-unusable unreadable-file
""".split()
_WARNINGS = """
    plain-data-file plain-levels plain-statistics missing-statistics stray-plain-file
    kek-expired kek-near-expiry kek-timestamp kek-other-master-key partition-field-ids
""".split()
_NOTES = """
    orphan-file orphan-key several-keks unauthenticated-bytes folder-not-listed metadata-not-pinned
    orphans-not-searched
""".split()

SEVERITIES: Mapping[str, Severity] = (
    dict.fromkeys(_ERRORS, Severity.ERROR)
    | dict.fromkeys(_WARNINGS, Severity.WARNING)
    | dict.fromkeys(_NOTES, Severity.NOTE)
)

# The maximum number of findings of one kind to keep. A folder may have a million unknown files.
MAX_FINDINGS = 10_000
# Of all kinds, in a notebook.
MAX_SHOWN = 100


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding. ``file`` is the location in the metadata, or the real one if the metadata does
    not name the file. ``snapshot_ids`` are the snapshots that need the file, as far as they are
    known. ``block`` and ``offset`` (bytes in the stored file) are where in the file it is."""

    severity: Severity
    kind: str
    message: str
    file: str | None = None
    snapshot_ids: tuple[int, ...] = ()
    block: int | None = None
    offset: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the finding as a dict for JSON."""
        ids = list(self.snapshot_ids)
        return {**asdict(self), "severity": self.severity.value, "snapshot_ids": ids}


class ShownResult(Shown):
    """A result with findings: ``repr`` counts them, and a notebook shows the first of them."""

    __slots__ = ()

    def shown_facts(self: Any) -> dict[str, Any]:
        """Return what was looked at, and how many findings of each severity there are."""
        facts = {name: getattr(self, name) for name in ("metadata_location", "key_id", "ok")}
        return facts | {f"{severity.value}s": self.count(severity) for severity in Severity}

    def shown_lines(self: Any) -> list[tuple[str, ...]]:
        """Return the findings."""
        shown = self.findings[:MAX_SHOWN]
        return [(finding.severity.value, finding.kind, finding.message) for finding in shown]


@dataclass(frozen=True, slots=True, repr=False)
class TableVerification(ShownResult):
    """The result of ``verify_table``.

    The numbers count each file once, even if several snapshots share it. ``verified_size`` is the
    number of bytes of stored files whose tags were checked. ``exposed_files`` counts the encrypted
    files of all snapshots whose keys are in a plaintext manifest; ``exposed_current_files`` counts
    those in the current snapshot. ``findings`` keeps at most 10,000 of a kind; ``finding_counts``
    counts all of each kind.
    """

    metadata_location: str
    table_uuid: str
    key_id: str
    snapshots: int
    manifest_lists: int
    manifests: int
    data_files: int
    plain_data_files: int
    delete_files: int
    deletion_vectors: int
    statistics_files: int
    exposed_files: int
    exposed_current_files: int
    verified_size: int
    seconds: float
    findings: tuple[Finding, ...]
    finding_counts: Mapping[str, int]

    @property
    def ok(self) -> bool:
        """Whether there is no error."""
        return not self.count(Severity.ERROR)

    @property
    def bytes_per_second(self) -> float:
        """The speed of the verification."""
        return self.verified_size / self.seconds if self.seconds else 0.0

    def count(self, severity: Severity) -> int:
        """Return the number of findings with that severity."""
        return sum(n for kind, n in self.finding_counts.items() if SEVERITIES[kind] == severity)

    def to_dict(self) -> dict[str, Any]:
        """Return the result as a dict for JSON."""
        names = [f.name for f in fields(self) if f.name not in ("findings", "finding_counts")]
        return {
            "ok": self.ok,
            **{name: getattr(self, name) for name in names},
            "seconds": round(self.seconds, 3),
            "bytes_per_second": round(self.bytes_per_second),
            "errors": self.count(Severity.ERROR),
            "warnings": self.count(Severity.WARNING),
            "notes": self.count(Severity.NOTE),
            "finding_counts": dict(sorted(self.finding_counts.items())),
            "findings": [finding.to_dict() for finding in self.findings],
        }


class Findings:
    """Collects findings, for use by one thread. In a table that was moved or copied, they say where
    the file is now, by ``location_map``."""

    def __init__(self, location_map: Mapping[str, str] = EMPTY_DICT) -> None:
        self._location_map = location_map
        self.counts: Counter[str] = Counter()
        self._findings: list[Finding] = []

    def add(
        self, kind: str, message: str, file: str | None = None, snapshot_ids: tuple[int, ...] = ()
    ) -> None:
        """Add a finding of this kind."""
        self.append(Finding(SEVERITIES[kind], kind, message, file, snapshot_ids))

    def append(self, finding: Finding) -> None:
        """Count a finding, and add it unless there are too many of its kind."""
        file = finding.file or ""
        stored = mapped_location(file, self._location_map)
        if stored != file and stored not in finding.message:
            message = f"{finding.message} (the file is {stored} now)"
            finding = replace(finding, message=message)
        self.counts[finding.kind] += 1
        if self.counts[finding.kind] <= MAX_FINDINGS:
            self._findings.append(finding)

    def sorted(self) -> tuple[Finding, ...]:
        """Return the findings, errors first, in an order that does not depend on threads."""
        order = {kind: number for number, kind in enumerate(SEVERITIES)}
        return tuple(
            sorted(
                self._findings,
                key=lambda f: (order[f.kind], f.file or "", f.message, f.offset or 0),
            )
        )


def finding_of(
    error: Ags1Error | OSError, file: str | None, snapshot_ids: tuple[int, ...]
) -> Finding:
    """Return the finding that stands for ``error``, which ``file`` caused."""
    kind = next(kind for error_type, kind in _KINDS if isinstance(error, error_type))
    severity = SEVERITIES[kind]
    if isinstance(error, Ags1Error):
        return Finding(severity, kind, error.message, file, snapshot_ids, error.block, error.offset)
    message = "the file is missing" if kind == "missing-file" else error.strerror or str(error)
    return Finding(severity, kind, message, file, snapshot_ids)


# The kinds of errors. The first that fits counts, because some are subclasses of later ones.
_KINDS: tuple[tuple[type[BaseException], str], ...] = (
    (NotEncryptedError, "not-encrypted"),
    (MetadataIntegrityError, "metadata"),
    (AuthenticationError, "authentication"),
    (TruncatedError, "truncated"),
    (FormatError, "format"),
    (KeyMetadataError, "key"),
    (MissingFileLengthError, "key"),
    (KmsError, "key"),
    (FileNotFoundError, "missing-file"),
    (BaseException, "unreadable-file"),
)

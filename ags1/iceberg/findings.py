"""What a verification of a table finds, and its result.

Each kind of finding has a stable name and one severity; programs may rely on both. Knows nothing of
how things are found, and holds no key.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from ..errors import (
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


class Severity(str, Enum):
    """``ERROR``: the table is damaged, changed or not protected as its format demands. ``WARNING``:
    it is whole, and something in it or beside it is in the clear or needs care. ``NOTE``: the
    rest."""

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
""".split()

SEVERITIES: Mapping[str, Severity] = (
    dict.fromkeys(_ERRORS, Severity.ERROR)
    | dict.fromkeys(_WARNINGS, Severity.WARNING)
    | dict.fromkeys(_NOTES, Severity.NOTE)
)

# The most of one kind that are kept. A folder may hold a million strangers' files.
MAX_FINDINGS = 10_000


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing found.

    ``file`` is its location as the metadata has it, or where it lies if the metadata does not know
    it; ``snapshot_ids`` are the snapshots that need it, as far as known; ``block`` and ``offset``
    (bytes in the stored file) say where in the file.
    """

    severity: Severity
    kind: str
    message: str
    file: str | None = None
    snapshot_ids: tuple[int, ...] = ()
    block: int | None = None
    offset: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "severity": self.severity.value,
            "kind": self.kind,
            "message": self.message,
            "file": self.file,
            "snapshot_ids": list(self.snapshot_ids),
            "block": self.block,
            "offset": self.offset,
        }


@dataclass(frozen=True, slots=True)
class TableVerification:
    """The result of ``verify_table``.

    The numbers count each file once, however many snapshots share it. ``verified_size`` is the
    bytes of stored files whose tags were checked. ``exposed_files`` are encrypted files of any
    snapshot whose keys stand in a plaintext manifest, ``exposed_current_files`` those that are in
    the current snapshot. ``finding_counts`` counts findings by kind, those
    too that ``findings`` leaves out (it keeps 10,000 of a kind).
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
    findings: tuple[Finding, ...] = field(repr=False)
    finding_counts: Mapping[str, int]

    @property
    def ok(self) -> bool:
        """Whether there is no error."""
        return not self.count(Severity.ERROR)

    @property
    def bytes_per_second(self) -> float:
        return self.verified_size / self.seconds if self.seconds else 0.0

    def count(self, severity: Severity) -> int:
        """Return how many findings have that severity."""
        return sum(n for kind, n in self.finding_counts.items() if SEVERITIES[kind] == severity)

    def to_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "ok": self.ok,
            "metadata_location": self.metadata_location,
            "table_uuid": self.table_uuid,
            "key_id": self.key_id,
            "snapshots": self.snapshots,
            "manifest_lists": self.manifest_lists,
            "manifests": self.manifests,
            "data_files": self.data_files,
            "plain_data_files": self.plain_data_files,
            "delete_files": self.delete_files,
            "deletion_vectors": self.deletion_vectors,
            "statistics_files": self.statistics_files,
            "exposed_files": self.exposed_files,
            "exposed_current_files": self.exposed_current_files,
            "verified_size": self.verified_size,
            "seconds": round(self.seconds, 3),
            "bytes_per_second": round(self.bytes_per_second),
            "errors": self.count(Severity.ERROR),
            "warnings": self.count(Severity.WARNING),
            "notes": self.count(Severity.NOTE),
            "finding_counts": dict(sorted(self.finding_counts.items())),
            "findings": [finding.to_dict() for finding in self.findings],
        }


class Findings:
    """Findings as they come in; for one thread."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._kept: list[Finding] = []

    def add(
        self,
        kind: str,
        message: str,
        file: str | None = None,
        snapshot_ids: tuple[int, ...] = (),
    ) -> None:
        self.take(Finding(SEVERITIES[kind], kind, message, file, snapshot_ids))

    def take(self, finding: Finding) -> None:
        self.counts[finding.kind] += 1
        if self.counts[finding.kind] <= MAX_FINDINGS:
            self._kept.append(finding)

    def sorted(self) -> tuple[Finding, ...]:
        """Return them, the errors first, in an order that does not depend on threads."""
        order = {kind: number for number, kind in enumerate(SEVERITIES)}
        return tuple(
            sorted(
                self._kept, key=lambda f: (order[f.kind], f.file or "", f.message, f.offset or 0)
            )
        )


def finding_of(
    error: Ags1Error | OSError, file: str | None, snapshot_ids: tuple[int, ...]
) -> Finding:
    """Return what a failure over ``file`` means for the table."""
    kind = _kind(error)
    severity = SEVERITIES[kind]
    if isinstance(error, Ags1Error):
        return Finding(severity, kind, error.message, file, snapshot_ids, error.block, error.offset)
    message = "the file is missing" if kind == "missing-file" else error.strerror or str(error)
    return Finding(severity, kind, message, file, snapshot_ids)


def _kind(error: Ags1Error | OSError) -> str:
    if isinstance(error, NotEncryptedError):
        return "not-encrypted"
    if isinstance(error, MetadataIntegrityError):
        return "metadata"
    if isinstance(error, AuthenticationError):
        return "authentication"
    if isinstance(error, TruncatedError):
        return "truncated"
    if isinstance(error, FormatError):
        return "format"
    if isinstance(error, (KeyMetadataError, MissingFileLengthError, KmsError)):
        return "key"
    if isinstance(error, FileNotFoundError):
        return "missing-file"
    return "unreadable-file"

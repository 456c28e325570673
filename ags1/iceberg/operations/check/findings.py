"""The findings of a check of a table, and its result.

Each kind of finding has a stable name and one severity. Programs may rely on both, and on the names
in ``to_dict``. This module does not look for anything itself and holds no key.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
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


class Level(str, Enum):
    """How deep a check looks. ``QUICK``: at metadata.json and the catalog, without a key.
    ``DEFAULT``: also at manifests, folders, and the lengths of all files. ``FULL``: at every byte
    of every file."""

    QUICK = "quick"
    DEFAULT = "default"
    FULL = "full"


class Severity(str, Enum):
    """How bad a finding is. ``ERROR``: the table is damaged, was changed, or is not protected as
    the format demands, or a file of it is not encrypted. ``WARNING``: the table is intact, but
    something in it needs attention. ``NOTE``: anything else, such as maintenance that is due."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


# Files in a table or in its folders that are not encrypted. The format allows them.
PLAINTEXT_KINDS = ("plain-data-file", "plain-statistics", "stray-plain-file")
_ERRORS = """
    authentication not-encrypted metadata shared-key two-keys record-count
    snapshot-without-key exposed-keys manifest-without-key delete-file-without-key unencrypted-table
    truncated missing-file format key kek-unusable missing-snapshot-key catalog-loses-keys
    unreadable-file
""".split()
_WARNINGS = """
    plain-levels missing-statistics partition-values impossible-setting
    kek-expired kek-near-expiry kek-timestamp kek-other-master-key partition-field-ids
""".split()
_NOTES = """
    orphan-file orphan-key several-keks unauthenticated-bytes folder-not-listed metadata-not-pinned
    orphans-not-searched compaction dangling-deletes deleted-rows old-snapshots metadata-files
    gc-disabled
""".split()

SEVERITIES: Mapping[str, Severity] = (
    dict.fromkeys([*_ERRORS, *PLAINTEXT_KINDS], Severity.ERROR)
    | dict.fromkeys(_WARNINGS, Severity.WARNING)
    | dict.fromkeys(_NOTES, Severity.NOTE)
)

# The maximum number of findings of one kind to keep. A folder may have a million unknown files.
MAX_FINDINGS = 10_000
# Of all kinds, in a notebook.
MAX_SHOWN = 100


@dataclass(frozen=True, slots=True)
class Remedy:
    """The command ``ags1 table …`` that fixes a finding: its name, and its arguments without the
    table and the options that open the table."""

    command: str
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding. ``file`` is the location in the metadata, or the real one if the metadata does
    not name the file. ``snapshot_ids`` are the snapshots that need the file, as far as they are
    known. ``block`` and ``offset`` (bytes in the stored file) are where in the file it is.
    ``count`` is the number of files, keys or snapshots concerned, and ``size`` their size (bytes);
    None if it is unknown. If no command fixes the finding, ``remedy`` is None, and ``message`` says
    what to do."""

    kind: str
    message: str
    file: str | None = None
    snapshot_ids: tuple[int, ...] = ()
    block: int | None = None
    offset: int | None = None
    count: int = 1
    size: int | None = None
    remedy: Remedy | None = None

    @property
    def severity(self) -> Severity:
        """How bad it is."""
        return SEVERITIES[self.kind]

    def to_dict(self) -> dict[str, Any]:
        """Return the finding as a dict for JSON."""
        remedy = self.remedy and [self.remedy.command, *self.remedy.arguments]
        ids = list(self.snapshot_ids)
        more = {"snapshot_ids": ids, "remedy": remedy}
        return {"severity": self.severity.value, **asdict(self), **more}


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
class TableCheck(Shown):
    """The result of ``check_table`` or ``verify_table``.

    ``key_id`` is the table's master key; None if the table is not encrypted. The numbers of files
    count each file once, even if several snapshots share it; they are 0 if the ``level`` is
    ``QUICK``. ``verified_size`` is the number of bytes of stored files whose tags were checked.
    ``exposed_files`` counts the encrypted files of all snapshots whose keys are in a plaintext
    manifest; ``exposed_current_files`` counts those in the current snapshot. ``left_out`` are the
    checks that could not be done. ``findings`` has the errors first, and at most 10,000 of a kind;
    ``finding_counts`` counts all of each kind.
    """

    level: Level
    metadata_location: str
    table_uuid: str
    encrypted: bool
    key_id: str | None
    snapshots: int
    manifest_lists: int = 0
    manifests: int = 0
    data_files: int = 0
    plain_data_files: int = 0
    delete_files: int = 0
    deletion_vectors: int = 0
    statistics_files: int = 0
    exposed_files: int = 0
    exposed_current_files: int = 0
    verified_size: int = 0
    keks: tuple[KekHealth, ...] = ()
    branches: tuple[BranchHealth, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    seconds: float = field(default=0.0, compare=False)
    findings: tuple[Finding, ...] = ()
    finding_counts: Mapping[str, int] = field(default_factory=dict)
    plaintext_counts: bool = field(default=True, compare=False)

    @property
    def ok(self) -> bool:
        """Whether there is no error. If ``plaintext_counts`` is false, the files that are not
        encrypted, although the format allows them, do not count."""
        ignored = () if self.plaintext_counts else PLAINTEXT_KINDS
        return set(self.kinds(Severity.ERROR)) <= set(ignored)

    @property
    def bytes_per_second(self) -> float:
        """The speed of the check."""
        return self.verified_size / self.seconds if self.seconds else 0.0

    def kinds(self, severity: Severity | str) -> list[str]:
        """Return the kinds of the findings with that severity."""
        return [kind for kind in self.finding_counts if SEVERITIES[kind] == severity]

    def count(self, severity: Severity | str) -> int:
        """Return the number of findings with that severity."""
        return sum(self.finding_counts[kind] for kind in self.kinds(severity))

    def to_dict(self) -> dict[str, Any]:
        """Return the result as a dict for JSON."""
        lists = ("keks", "branches", "left_out")
        hidden = (*lists, "findings", "plaintext_counts")
        shown = [f.name for f in fields(self) if f.name not in hidden]
        return {
            "ok": self.ok,
            **{name: getattr(self, name) for name in shown},
            "level": self.level.value,
            "seconds": round(self.seconds, 3),
            "bytes_per_second": round(self.bytes_per_second),
            **{f"{severity.value}s": self.count(severity) for severity in Severity},
            "finding_counts": dict(sorted(self.finding_counts.items())),
            **{name: [asdict(one) for one in getattr(self, name)] for name in lists},
            "findings": [finding.to_dict() for finding in self.findings],
        }

    def shown_facts(self) -> dict[str, Any]:
        """Return what was looked at, and how many findings of each severity there are."""
        facts = {name: getattr(self, name) for name in ("metadata_location", "key_id", "ok")}
        return facts | {f"{severity.value}s": self.count(severity) for severity in Severity}

    def shown_lines(self) -> list[tuple[str, ...]]:
        """Return the findings."""
        shown = self.findings[:MAX_SHOWN]
        return [(finding.severity.value, finding.kind, finding.message) for finding in shown]


class Findings:
    """Collects findings, for use by one thread. In a table that was moved or copied, they say where
    the file is now, by ``location_map``."""

    def __init__(self, location_map: Mapping[str, str] = EMPTY_DICT) -> None:
        self._location_map = location_map
        self.counts: Counter[str] = Counter()
        self._findings: list[Finding] = []

    def add(
        self,
        kind: str,
        message: str,
        file: str | None = None,
        snapshot_ids: tuple[int, ...] = (),
        **more: Any,
    ) -> None:
        """Add a finding of this kind. ``more`` are the other fields of ``Finding``."""
        self.append(Finding(kind, message, file, snapshot_ids, **more))

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
    if isinstance(error, Ags1Error):
        return Finding(kind, error.message, file, snapshot_ids, error.block, error.offset)
    message = "the file is missing" if kind == "missing-file" else error.strerror or str(error)
    return Finding(kind, message, file, snapshot_ids)


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

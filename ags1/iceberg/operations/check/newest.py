"""Looks at a table's newest version before a check reports a missing file or an orphan.
While the check ran, others may have expired the snapshots of the missing file, or committed
the orphan."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from ...commit.session import TableSession
from ..reached_files import ReachedFiles
from .findings import Finding, Findings

_log = logging.getLogger(__name__)

_MISSING = frozenset({"missing-file", "missing-statistics"})
_UNNEEDED = frozenset({"orphan-file", "stray-plain-file"})
_MAX_HELD = 100_000


class DoubtfulFindings(Findings):
    """Findings. Those that may be wrong wait until ``settle`` has looked at the newest version. If
    very many wait, no more are kept waiting."""

    def __init__(self, location_map: Mapping[str, str]) -> None:
        super().__init__(location_map)
        self._waiting: list[Finding] = []

    def append(self, finding: Finding) -> None:
        """Add a finding now, or when it is settled."""
        if finding.kind in _MISSING | _UNNEEDED and len(self._waiting) < _MAX_HELD:
            self._waiting.append(finding)
        else:
            super().append(finding)

    def settle(self, table: TableSession) -> TableSession | None:
        """Add the waiting findings that still hold in the newest version of ``table``. If the
        newest version cannot be read whole, add all of them. If the snapshot that was current has
        expired and lacks files, little of the newest version was verified: then return the table
        at that version."""
        newer = _newer(table) if self._waiting else None
        expired = None
        for finding in self._waiting:
            if newer is not None and not newer.confirms(finding):
                if table.metadata.current_snapshot_id in finding.snapshot_ids:
                    expired = newer.table
                continue
            super().append(finding)
        return expired


@dataclass(frozen=True, slots=True)
class _Newer:
    """A newer version of a table, and the files that it reaches."""

    table: TableSession
    reached: ReachedFiles

    def confirms(self, finding: Finding) -> bool:
        """Return whether a waiting finding is true of this version."""
        location = finding.file or ""
        if finding.kind in _MISSING:
            return self.reached.has(location)
        return not self.reached.has_stored(location)


def _newer(table: TableSession) -> _Newer | None:
    """Return the newest version; None if ``table`` has it, or if it cannot be read. ``table`` stays
    at its version."""
    newest = type(table)(table.version, table.catalog)

    def reached() -> _Newer:
        files = ReachedFiles(newest.files, newest.metadata.location)
        files.add_version(newest.view(), newest.metadata_location)
        return _Newer(newest, files)

    try:
        newest.refresh()
        same = newest.version.json == table.version.json
        return None if same else newest.or_newer(reached)
    except Exception as error:
        _log.warning("the newest version could not be read: %s", type(error).__name__)
        return None

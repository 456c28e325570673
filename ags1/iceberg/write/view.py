"""The version of a table that a change is based on. It does not know catalogs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from concurrent.futures import Executor
from functools import cached_property
from typing import Any, cast

from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.locations import LocationProvider, load_location_provider
from pyiceberg.table.metadata import TableMetadata

from ...keys.manager import EncryptionManager
from ..read.metadata import parse_metadata
from ..read.snapshots import EncryptedManifest, EncryptedSnapshot
from ..spec.constants import MAIN_BRANCH
from ..storage.table_files import TableFiles
from ..storage.workers import workers


class TableView:
    """A version of a table: ``metadata`` (parsed JSON), and the files and keys to read it. A change
    is based on the head of ``branch``. If that is None, it is based on main's head, and no branch
    gets its snapshot. ``committed_refs`` are the catalog's branches and tags, if ``metadata`` is
    not committed yet. ``parsed`` is what ``parse_metadata`` returns, if somebody has called it.
    What the version has in common with ``known``, another one, is not parsed again."""

    def __init__(
        self,
        metadata: dict[str, Any],
        files: TableFiles,
        branch: str | None = MAIN_BRANCH,
        *,
        committed_refs: Collection[str] | None = None,
        parsed: TableMetadata | None = None,
        known: TableView | None = None,
    ) -> None:
        self.metadata = metadata
        self.files = files
        self.branch = branch
        self._parsed = parsed
        # Not the view, which may know another one.
        self._known = None
        if known is not None and known._parsed is not None:
            self._known = known.metadata, known._parsed
        refs = metadata.get("refs") or {}
        self.committed_refs = frozenset(refs if committed_refs is None else committed_refs)

    def at(self, branch: str | None) -> TableView:
        """Return the same version with another branch."""
        if branch == self.branch:
            return self
        return self._with(self.files, branch)

    def exposed(self) -> TableView:
        """Return the same version with files that also read plaintext manifests."""
        return self._with(self.files.reading_exposed(), self.branch)

    def _with(self, files: TableFiles, branch: str | None) -> TableView:
        return TableView(
            self.metadata, files, branch, committed_refs=self.committed_refs, parsed=self._parsed
        )

    @property
    def manager(self) -> EncryptionManager:
        """The keys of the table."""
        return self.files.keys

    @property
    def properties(self) -> Mapping[str, str]:
        """The table properties."""
        return self.metadata.get("properties") or {}

    @property
    def workers(self) -> Executor:
        """The threads that read several files of the table at once."""
        return workers(self.files, self.metadata["location"])

    @cached_property
    def locations(self) -> LocationProvider:
        """Makes the locations of the table's new files."""
        return load_location_provider(self.metadata["location"], dict(self.properties))

    @property
    def parsed(self) -> TableMetadata:
        """The metadata as PyIceberg's object. Raises as ``parse_metadata``."""
        if self._parsed is None:
            self._parsed = parse_metadata(self.metadata, self._known)
            self._known = None
        return self._parsed

    @property
    def schema(self) -> Schema:
        """The current schema."""
        return self.parsed.schema()

    def schema_json(self, schema_id: int | None = None) -> dict[str, Any]:
        """Return a schema of the metadata, as JSON; by default the current one."""
        if schema_id is None:
            schema_id = self.metadata["current-schema-id"]
        return next(s for s in self.metadata["schemas"] if s["schema-id"] == schema_id)

    @property
    def spec(self) -> PartitionSpec:
        """The default partition spec."""
        return self.parsed.spec()

    @cached_property
    def specs(self) -> dict[int, PartitionSpec]:
        """All partition specs, by ID."""
        return self.parsed.specs()

    @property
    def branch_head_id(self) -> int | None:
        """The snapshot ID of the branch's head; None without one. Raises ValueError for a tag."""
        ref = (self.metadata.get("refs") or {}).get(self.branch)
        if ref is None:
            return None
        if ref.get("type", "branch") != "branch":
            raise ValueError(f"{self.branch} is a tag; changes are made to branches only")
        return int(ref["snapshot-id"])

    @cached_property
    def snapshot(self) -> EncryptedSnapshot | None:
        """The snapshot that a change is based on: the branch's head or, if there is no such branch
        yet, main's, as in Java. It is None in an empty table."""
        head = self.branch_head_id
        if head is None:
            head = self.metadata.get("current-snapshot-id", -1)
        snapshot = None if head in (None, -1) else self.parsed.snapshot_by_id(head)
        return cast("EncryptedSnapshot | None", snapshot)

    @cached_property
    def manifests(self) -> list[EncryptedManifest]:
        """The manifests of ``snapshot``. Raises as reading them does."""
        if self.snapshot is None:
            return []
        return cast("list[EncryptedManifest]", self.snapshot.manifests(self.files))

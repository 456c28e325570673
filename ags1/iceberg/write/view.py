"""The version of a table that a change is built upon. Knows nothing of catalogs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cached_property
from typing import Any, cast

from pyiceberg.io import FileIO
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.locations import LocationProvider, load_location_provider
from pyiceberg.table.metadata import TableMetadata

from ...keys.manager import EncryptionManager
from ..read.metadata import parse_metadata
from ..read.snapshots import EncryptedManifest, EncryptedSnapshot
from ..spec.constants import MAIN_BRANCH
from ..storage.table_files import TableFiles


class TableView:
    """A table's metadata, ``metadata`` as JSON, with the files and keys to read it by.

    ``branch`` is whose head a change is built upon; None builds upon that of main, for a snapshot
    that no branch is to have. ``committed_refs`` are the branches and tags that the catalog has,
    where ``metadata`` is not committed yet.
    """

    def __init__(
        self,
        metadata: dict[str, Any],
        files: TableFiles,
        branch: str | None = MAIN_BRANCH,
        *,
        committed_refs: Collection[str] | None = None,
    ) -> None:
        self.metadata = metadata
        self.files = files
        self.branch = branch
        refs = metadata.get("refs") or {}
        self.committed_refs = frozenset(refs if committed_refs is None else committed_refs)

    def at(self, branch: str | None) -> TableView:
        """Return the same version, seen from another branch."""
        if branch == self.branch:
            return self
        return TableView(self.metadata, self.files, branch, committed_refs=self.committed_refs)

    def exposed(self) -> TableView:
        """Return the same version, plaintext manifests included, which cannot be read otherwise."""
        files = self.files.reading_exposed()
        return TableView(self.metadata, files, self.branch, committed_refs=self.committed_refs)

    @property
    def manager(self) -> EncryptionManager:
        return self.files.keys

    @property
    def io(self) -> FileIO:
        return self.files

    @property
    def properties(self) -> Mapping[str, str]:
        return self.metadata.get("properties") or {}

    @cached_property
    def locations(self) -> LocationProvider:
        """Names the table's new files."""
        return load_location_provider(self.metadata["location"], dict(self.properties))

    @cached_property
    def parsed(self) -> TableMetadata:
        return parse_metadata(self.metadata)

    @property
    def schema(self) -> Schema:
        return self.parsed.schema()

    def schema_json(self, schema_id: int) -> dict[str, Any]:
        """Return a schema as the metadata has it."""
        return next(s for s in self.metadata["schemas"] if s["schema-id"] == schema_id)

    @property
    def spec(self) -> PartitionSpec:
        return self.parsed.spec()

    @cached_property
    def specs(self) -> dict[int, PartitionSpec]:
        return self.parsed.specs()

    @property
    def branch_head_id(self) -> int | None:
        """The id of the branch's head, None where there is no such branch yet. Raises ValueError
        for a tag."""
        ref = (self.metadata.get("refs") or {}).get(self.branch)
        if ref is None:
            return None
        if ref.get("type", "branch") != "branch":
            raise ValueError(f"{self.branch} is a tag, and only branches are written to")
        return int(ref["snapshot-id"])

    @cached_property
    def snapshot(self) -> EncryptedSnapshot | None:
        """The snapshot to build upon: the branch's head, or main's where the branch is to be made,
        as Java does; None in an empty table."""
        head = self.branch_head_id
        if head is None:
            head = self.metadata.get("current-snapshot-id", -1)
        found = None if head in (None, -1) else self.parsed.snapshot_by_id(head)
        return cast("EncryptedSnapshot | None", found)

    @cached_property
    def manifests(self) -> list[EncryptedManifest]:
        """The head's manifests. Raises as reading them does."""
        if self.snapshot is None:
            return []
        return cast("list[EncryptedManifest]", self.snapshot.manifests(self.files))

"""One version of an encrypted table, as a process has it: what reads it, and what commits to it.

``TableSession`` is below the table that users hold and below its transactions: both show the same
version, and a commit replaces it in one piece. Knows nothing of rows.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from pyiceberg.catalog import Catalog
from pyiceberg.io import FileIO
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Identifier

from ...keys.cache import KekCache
from ...keys.manager import TABLE_KEY_ID, EncryptionManager
from ...kms.client import KmsClient
from ..pyiceberg.tables import BuiltTable
from ..pyiceberg.versions import check_tested_for_writing
from ..read.metadata import parse_metadata
from ..storage.output import TableOutput
from ..storage.table_files import TableFiles
from ..storage.table_folders import TableFolders
from ..storage.trust import Trust, vouches
from ..write.view import TableView
from .commits import Base, Commits, made_whatever_comes

NO_CATALOG = (
    "a table that was opened by its metadata.json has no catalog to commit to: load it from one"
)


class Version(NamedTuple):
    """All that a table object knows of one version of the table. ``json`` is the metadata as it is;
    ``config`` and ``storage`` are a REST server's, the second with credentials."""

    metadata: TableMetadata
    json: dict[str, Any]
    location: str
    files: TableFiles
    config: dict[str, str]
    storage: dict[str, str]
    trust: Trust

    def __repr__(self) -> str:
        return f"Version({self.location!r})"

    @property
    def age(self) -> tuple[int, int]:
        """What a later version of the table has more of: snapshots, milliseconds."""
        return self.json.get("last-sequence-number", 0), self.json.get("last-updated-ms", 0)


def version_of(
    metadata: dict[str, Any],
    metadata_location: str,
    io: FileIO,
    kms: KmsClient,
    trust: Trust,
    *,
    location_map: Mapping[str, str] | None = None,
    require_encrypted: bool = False,
    config: dict[str, str] | None = None,
    storage: dict[str, str] | None = None,
    cache: KekCache | None = None,
) -> Version:
    """Return a table's version for metadata that was read and checked.

    Raises KeyMetadataError when nobody but the metadata says what the table's key is and the KMS
    would unwrap with anybody's. There are ten parameters: what the caller, the catalog and the
    metadata say of a table comes together here and nowhere else.
    """
    key_id = trust.key_id
    if trust.metadata_sha256 is not None or trust.java_hash is not None:
        # Whoever vouches for the metadata vouches for the key that it names.
        key_id = metadata["properties"][TABLE_KEY_ID]
    files = TableFiles(
        io,
        EncryptionManager.from_metadata(metadata, kms, table_key_id=key_id, cache=cache),
        location_map=location_map,
        require_encrypted=require_encrypted,
    )
    return Version(
        parse_metadata(metadata),
        metadata,
        metadata_location,
        files,
        config or {},
        storage or {},
        trust,
    )


class TableSession(BuiltTable):
    """An encrypted table in one version, and what commits the next."""

    def __init__(self, identifier: Identifier, version: Version, catalog: Catalog) -> None:
        self._identifier = identifier
        self.catalog = catalog
        # In one piece: half of one version and half of another would be committed upon.
        self.version = version
        self._lock = threading.Lock()

    @property
    def metadata(self) -> TableMetadata:  # type: ignore[override]
        return self.version.metadata

    @property
    def metadata_location(self) -> str:  # type: ignore[override]
        return self.version.location

    @property
    def io(self) -> FileIO:  # type: ignore[override]
        return self.version.files

    @property
    def config(self) -> dict[str, str]:  # type: ignore[override]
        return self.version.config

    @property
    def key_id(self) -> str:
        """The id of the table's master key."""
        return self.files.keys.table_key_id

    @property
    def metadata_is_vouched_for(self) -> bool:
        """Whether the whole metadata is from a better place than a file where others may write: by
        its expected SHA-256, Hive's hash of it, or a REST server's answer."""
        return vouches(self.version.trust)

    @property
    def files(self) -> TableFiles:
        """The table's files, stored and decrypted."""
        return self.version.files

    @property
    def folders(self) -> TableFolders:
        """The folders in which the table's files may be deleted."""
        base = self.base()
        # A REST server need not say where its metadata lies; then it is its word that counts.
        return TableFolders.of(
            base.metadata,
            base.location,
            base.trust,
            self.catalog.properties,
            self.files.stored_location,
        )

    def view(self) -> TableView:
        """Return the version of the table that this object shows, to build changes upon."""
        # With keys of its own: those that are made for a change which fails are of no use.
        return self.view_of(self.version.json)

    def view_of(
        self,
        metadata: dict[str, Any],
        manager: EncryptionManager | None = None,
        committed_refs: Collection[str] | None = None,
    ) -> TableView:
        """Return a version of the table that is not committed yet; ``manager`` has its keys if
        they are under another master key, ``committed_refs`` what the catalog has by now."""
        keys = self.files.keys if manager is None else manager
        keys = EncryptionManager.from_metadata(
            metadata, keys.kms, table_key_id=keys.table_key_id, cache=keys.cache
        )
        files = self.files.with_keys(keys)
        return TableView(metadata, files, committed_refs=committed_refs)

    def output(self) -> TableOutput:
        """Return what writes new files of the table.

        Raises NotImplementedError as ``transaction`` and for a table that was moved and is read by
        a ``location_map``; MetadataIntegrityError when the metadata would choose the code that
        names files or where they go.
        """
        check_tested_for_writing()
        if self.files.location_map:
            raise NotImplementedError(
                "the table was moved, and its metadata does not know: relocate it before writing"
            )
        self._committer().check(self.base())
        return TableOutput(self.files.inner)

    def base(self) -> Base:
        """Return what a commit of this version is built upon."""
        version = self.version
        # The key was settled when the table was loaded.
        trust = replace(version.trust, key_id=version.files.keys.table_key_id)
        return Base(
            self._identifier,
            version.json,
            version.location,
            trust,
            version.config,
            version.storage,
        )

    def commit_updates(
        self,
        base: Base,
        updates: list[dict[str, Any]],
        requirements: list[dict[str, Any]],
        output: TableOutput,
        manager: EncryptionManager | None = None,
    ) -> None:
        """Make one try to commit updates, in the REST specification's form, upon ``base``; show
        the outcome. ``manager`` has the keys if they change. Raises as ``Commits.commit`` does."""
        new_key_id = None
        if manager is not None and manager.table_key_id != base.trust.key_id:
            new_key_id = manager.table_key_id
        after = self._committer().commit(base, updates, requirements, output, new_key_id=new_key_id)
        output.keep()
        with made_whatever_comes(self._identifier):
            self._show(after, base, manager)

    def _show(self, after: Base, before: Base, manager: EncryptionManager | None) -> None:
        files = self.files
        keys = files.keys if manager is None else manager
        shown = version_of(
            after.metadata,
            after.location,
            files.inner,
            keys.kms,
            replace(after.trust, key_id=keys.table_key_id),
            location_map=files.location_map,
            require_encrypted=files.require_encrypted,
            config=after.config,
            storage=after.storage,
            cache=keys.cache,
        )
        self.become(shown, before.metadata)

    def become(self, version: Version, before: Mapping[str, Any]) -> None:
        """Show ``version``, unless another thread has shown a later one since this object showed
        ``before``: who commits next would take his own rows for another writer's."""
        with self._lock:
            if self.version.json is before or version.age >= self.version.age:
                self.version = version

    def _committer(self) -> Commits:
        commits = getattr(self.catalog, "commits", None)
        if commits is None:
            raise NotImplementedError(NO_CATALOG)
        return commits()  # type: ignore[no-any-return]  # our catalog's

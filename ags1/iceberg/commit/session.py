"""One version of an encrypted table in this process: it reads the table and commits the next one.

``TableSession`` is the base of the table that users hold, and what transactions work with. Both see
the same version, and a commit replaces it as a whole. Independent of rows.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from pyiceberg.catalog import Catalog
from pyiceberg.io import FileIO
from pyiceberg.table.metadata import TableMetadata

from ...keys.cache import KekCache
from ...keys.manager import TABLE_KEY_ID, EncryptionManager
from ...kms.client import KmsClient
from ..pyiceberg.tables import BuiltTable
from ..pyiceberg.versions import check_tested_for_writing
from ..read.metadata import parse_metadata
from ..storage.output import TableOutput
from ..storage.table_files import TableFiles
from ..storage.table_folders import TableFolders
from ..storage.trust import Pins
from ..write.view import TableView
from .base import Base
from .commits import Commits
from .outcome import after_commit

_T = TypeVar("_T")

NO_CATALOG = (
    "a table that was opened by its metadata.json has no catalog to commit to: load it from one"
)


@dataclass(frozen=True, slots=True)
class Version:
    """One version of a table: what its catalog has (``base``), the same metadata as PyIceberg's
    object, and the files with the keys of this version."""

    base: Base
    metadata: TableMetadata = field(repr=False)
    files: TableFiles = field(repr=False)

    @property
    def json(self) -> dict[str, Any]:
        """The metadata as parsed JSON."""
        return self.base.metadata

    @property
    def age(self) -> tuple[int, int]:
        """The last sequence number and time of update (ms). A later version has a greater pair."""
        return self.json.get("last-sequence-number", 0), self.json.get("last-updated-ms", 0)


def open_version(
    base: Base,
    io: FileIO,
    kms: KmsClient,
    *,
    location_map: Mapping[str, str] | None = None,
    require_encrypted: bool = False,
    cache: KekCache | None = None,
    before: EncryptionManager | None = None,
    parsed: Version | None = None,
) -> Version:
    """Return the version of a table whose metadata was read and checked. ``io`` is the FileIO of
    its files. ``before`` has the keys of an earlier version; what both versions have is not parsed
    again if ``parsed`` is the earlier version. The other arguments are those of ``open_table``.
    Raises KeyMetadataError if only the metadata says what the table's key is, and the KMS would
    unwrap with any key that is named."""
    key_id = base.trust.key_id
    if base.trust.has_hash:
        # A hash confirms the whole metadata, with the key ID.
        key_id = base.metadata["properties"][TABLE_KEY_ID]
    keys = EncryptionManager.from_metadata(
        base.metadata, kms, table_key_id=key_id, cache=cache, before=before
    )
    files = TableFiles(io, keys, location_map=location_map, require_encrypted=require_encrypted)
    trust = replace(base.trust, key_id=keys.table_key_id)
    known = None if parsed is None else (parsed.json, parsed.metadata)
    return Version(replace(base, trust=trust), parse_metadata(base.metadata, known), files)


class TableSession(BuiltTable):
    """An encrypted table in one version. It commits the next version."""

    def __init__(self, version: Version, catalog: Catalog) -> None:
        self._identifier = version.base.identifier
        self.catalog = catalog
        # One object, replaced as a whole. No commit can be built upon a mixture of two versions.
        self.version = version
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[TableSession], tuple[Version, Catalog]]:
        # A version has only wrapped keys. Our catalogs are not pickled.
        return type(self), (self.version, self.catalog)

    @property
    def metadata(self) -> TableMetadata:  # type: ignore[override]
        return self.version.metadata

    @property
    def metadata_location(self) -> str:  # type: ignore[override]
        return self.version.base.location

    @property
    def io(self) -> FileIO:  # type: ignore[override]
        return self.version.files

    @property
    def config(self) -> dict[str, str]:  # type: ignore[override]
        return self.version.base.config.config

    @property
    def key_id(self) -> str:
        """The ID of the table's master key."""
        return self.files.keys.table_key_id

    @property
    def metadata_is_confirmed(self) -> bool:
        """Whether a hash or a REST server confirms the whole metadata. Otherwise somebody who can
        write to the storage may have changed it."""
        return self.version.base.trust.confirms_metadata

    def pins(self) -> Pins:
        """Return what the table's catalog keeps now to confirm metadata.json. Raises
        NoSuchTableError."""
        connection: Commits | None = getattr(self.catalog, "connection", None)
        parameters = {} if connection is None else connection.pins(self._identifier)
        return Pins.of(parameters, self.metadata_location)

    @property
    def files(self) -> TableFiles:
        """The table's files, stored and decrypted."""
        return self.version.files

    @property
    def folders(self) -> TableFolders:
        """The folders in which the table's files may be deleted."""
        base = self.version.base
        return TableFolders.of(
            base.metadata,
            base.location,
            base.trust,
            self.catalog.properties,
            self.files.stored_location,
        )

    @property
    def commits(self) -> Commits:
        """What commits to the table's catalog. Raises NotImplementedError if the table has no
        catalog, or one that does not keep keys."""
        commits = getattr(self.catalog, "commits", None)
        if commits is None:
            raise NotImplementedError(NO_CATALOG)
        return commits()  # type: ignore[no-any-return]  # our catalog's

    def view(self) -> TableView:
        """Return this version of the table, to build changes upon. Its key manager is a copy, so
        the keys of a change that fails are forgotten with it."""
        version = self.version
        return self.view_with(version.json, parsed=version.metadata)

    def view_with(
        self,
        metadata: dict[str, Any],
        manager: EncryptionManager | None = None,
        committed_refs: Collection[str] | None = None,
        parsed: TableMetadata | None = None,
        known: TableView | None = None,
    ) -> TableView:
        """Return a version of the table that is not committed yet. ``manager`` has its keys if
        they are under another master key, ``committed_refs`` the refs that the catalog has, and
        ``parsed`` and ``known`` are those of ``TableView``."""
        keys = self.files.keys if manager is None else manager
        keys = EncryptionManager.from_metadata(
            metadata, keys.kms, table_key_id=keys.table_key_id, cache=keys.cache, before=keys
        )
        files = self.files.with_keys(keys)
        return TableView(metadata, files, committed_refs=committed_refs, parsed=parsed, known=known)

    def output(self) -> TableOutput:
        """Return what writes new files of the table. Raises NotImplementedError as ``commits``
        does, and for a table that was moved and is read through a ``location_map``. Raises
        MetadataIntegrityError if the metadata names code to run or another server to write to."""
        check_tested_for_writing()
        if self.files.location_map:
            raise NotImplementedError(
                "the table's metadata names other locations than those of its files, so it can "
                "only be read: write its rows to a new table"
            )
        self.commits.check(self.version.base)
        return TableOutput(self.files.inner)

    def commit_updates(
        self,
        base: Base,
        updates: list[dict[str, Any]],
        requirements: list[dict[str, Any]],
        output: TableOutput,
        manager: EncryptionManager | None = None,
    ) -> None:
        """Make one try to commit updates, in the REST specification's form, upon ``base``; then
        switch to the new version. ``manager`` has the keys if they change. Raises as
        ``Commits.commit``."""
        new_key_id = None
        if manager is not None and manager.table_key_id != base.trust.key_id:
            new_key_id = manager.table_key_id
        after = self.commits.commit(base, updates, requirements, output, new_key_id=new_key_id)
        output.keep()
        with after_commit(self._identifier):
            files = self.files
            keys = files.keys if manager is None else manager
            version = open_version(
                after,
                files.inner,
                keys.kms,
                location_map=files.location_map,
                require_encrypted=files.require_encrypted,
                cache=keys.cache,
                before=keys,
                parsed=self.version,
            )
            self.switch_to(version, base)

    def or_newer(self, work: Callable[[], _T]) -> _T:
        """Return ``work()``, which reads files of the table's present version. If one of them is
        missing, load the table again. If somebody has committed since, such as an expiry that has
        deleted the file, return ``work()`` for the newest version. Otherwise raise the error."""
        before = self.version.json
        try:
            return work()
        except FileNotFoundError:
            self.refresh()
            if self.version.json == before:
                raise
        return work()

    def switch_to(self, version: Version, before: Base) -> None:
        """Switch from the version ``before`` to ``version``, unless another thread has switched to
        a later one: the next commit would take this object's own rows for another writer's."""
        with self._lock:
            if self.version.json is before.metadata or version.age >= self.version.age:
                self.version = version

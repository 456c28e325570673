"""``FileCommits``: commits to catalogs that only keep the location of a table's metadata.json.

Each try writes a metadata.json of its own. The catalog replaces the old location by the new one
only if it still has the old one. Follows Java's ``BaseMetastoreTableOperations``.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import Event
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchNamespaceError,
    TableAlreadyExistsError,
)
from pyiceberg.io import FileIO
from pyiceberg.typedef import Identifier

from ...keys.manager import DATA_KEY_LENGTH, TABLE_KEY_ID, now_ms
from ..read.metadata import MAX_METADATA_SIZE, read_metadata
from ..spec.java_json import JavaOrdered, java_hash, metadata_hash, print_ordered
from ..spec.requirements import check_requirements
from ..storage.locations import new_input
from ..storage.output import TableOutput
from ..storage.table_folders import FOLDER_PROPERTIES, TableFolders
from ..storage.trust import (
    HASH_LOCATION,
    ICEBERG,
    METADATA_HASH,
    METADATA_LOCATION,
    PREVIOUS_METADATA_LOCATION,
    TABLE_TYPE,
    UNCONFIRMED,
    Trust,
)
from .base import Base, TableConfig
from .commits import Commits, NewLocation, Update, check_still_encrypted, plain_dicts
from .metadata_file import (
    METADATA_PATH,
    next_metadata_location,
    print_metadata,
    stored_form,
    with_metadata_log,
)
from .outcome import after_commit, not_committed, was_committed
from .updates import apply_updates

# After these, the change was certainly not made.
_REFUSALS = (CommitFailedException, NoSuchNamespaceError, TableAlreadyExistsError)


@dataclass(frozen=True, slots=True)
class NewMetadata:
    """A table's next metadata, written but not committed. ``java_hash`` is Hive's ``metadata_hash``
    of it, empty if the catalog does not keep that; ``sha256`` is that of the stored file in hex. If
    ``is_confirmed`` is false, the catalog does not confirm the metadata by a hash."""

    metadata: dict[str, Any] = field(repr=False)
    location: str
    java_hash: str
    sha256: str
    is_confirmed: bool = True


class FileCommits(Commits, ABC):
    """Commits to a catalog that keeps the location of a table's metadata.json, and its hash if
    ``keeps_hash`` is true: Hive's, or the SHA-256 of the file if ``keeps_java_hash`` is false."""

    keeps_location = True
    keeps_java_hash = True

    def commit(
        self,
        base: Base,
        updates: Sequence[Mapping[str, Any]],
        requirements: Sequence[Mapping[str, Any]],
        output: TableOutput,
        *,
        new_key_id: str | None = None,
    ) -> Base:
        check_requirements(base.metadata, plain_dicts(requirements))
        if not updates:
            return base
        changes = plain_dicts(updates)
        metadata = self._updated(base, changes, new_key_id)
        before_ms = base.metadata["last-updated-ms"]
        metadata, expired = with_metadata_log(metadata, base.location, before_ms)
        location = next_metadata_location(
            metadata, base.location, is_beside=not self._may_choose_folder(base, metadata, changes)
        )
        new = self._write(metadata, location, output, base)
        if self._names_foreign_folder(base, metadata, changes):
            new = replace(new, is_confirmed=False)
        trust = replace(base.trust, key_id=new_key_id or base.trust.key_id)
        after = self._after(replace(base, trust=trust), new)
        self._try(base, new, output, lambda sent: self._swap(base, new, sent))
        with after_commit(base.identifier):
            output.discard(expired)
        return after

    def create(
        self,
        identifier: str | Identifier,
        updates: Sequence[Mapping[str, Any]],
        output: TableOutput,
        *,
        new_location: NewLocation | None = None,
    ) -> Base:
        name = Catalog.identifier_to_tuple(identifier)
        metadata = apply_updates(None, plain_dicts(updates), now_ms=now_ms())
        new_location = new_location or NewLocation(metadata["location"])
        self._refuse_redirection(metadata, new_location.config, new_location.location)
        key_id = (metadata.get("properties") or {}).get(TABLE_KEY_ID) or None
        check_still_encrypted({}, metadata, key_id)
        new = self._write(metadata, next_metadata_location(metadata, None), output, None)
        after = self._after(Base(name, metadata, new.location, Trust(key_id)), new)
        self._try(after, new, output, lambda sent: self._insert(name, new, sent))
        return after

    def register(self, identifier: str | Identifier, location: str, output: TableOutput) -> None:
        new = self._read(location, output.io)
        self._refuse_redirection(new.metadata, TableConfig(), location)
        self._insert(Catalog.identifier_to_tuple(identifier), new, Event())

    def _may_choose_folder(
        self, base: Base, metadata: Mapping[str, Any], updates: list[Update]
    ) -> bool:
        """Return whether ``metadata`` may choose the folder of the next metadata.json. Files beside
        the catalog's metadata.json count as the table's own. So somebody who could write the base's
        file must not choose the folder. This commit may, and the catalog's own properties, and
        metadata that a hash or a server confirms."""
        path = (metadata.get("properties") or {}).get(METADATA_PATH)
        if path:
            chosen = any(
                update["action"] == "set-properties"
                and update["updates"].get(METADATA_PATH) == path
                for update in updates
            )
            chosen = chosen or self.catalog.properties.get(METADATA_PATH) == path
        else:
            chosen = any(update["action"] == "set-location" for update in updates)
        return chosen or base.trust.confirms_metadata

    def _names_foreign_folder(
        self, base: Base, metadata: Mapping[str, Any], updates: list[Update]
    ) -> bool:
        """Return whether only a base that nothing confirms says that a folder elsewhere is the
        table's. Somebody may have changed the base since another writer's commit. If this commit
        confirmed that, files could be deleted in any folder, such as another table's."""
        if base.trust.confirms_metadata or not self.keeps_hash:
            return False
        known = dict(self.catalog.properties)
        for update in updates:
            if update["action"] == "set-properties":
                known |= update["updates"]
            elif update["action"] == "set-location":
                known["location"] = update["location"]
        own = TableFolders.of(metadata, base.location, Trust(), known)
        stated = {**(metadata.get("properties") or {}), "location": metadata["location"]}
        folders = [stated[name] for name in ("location", *FOLDER_PROPERTIES) if stated.get(name)]
        return not all(own.has(f"{folder.rstrip('/')}/_") for folder in folders)

    @abstractmethod
    def _swap(self, base: Base, new: NewMetadata, sent: Event) -> None:
        """Make ``new`` the table's metadata if ``base`` still is. ``sent`` is set before the
        request after which the catalog may have committed, even if it ends in an exception. Raises
        CommitFailedException if another commit was first, whether ``sent`` is set or not."""

    @abstractmethod
    def _insert(self, identifier: Identifier, new: NewMetadata, sent: Event) -> None:
        """Make a new table. ``sent`` is as in ``_swap``. Raises TableAlreadyExistsError and
        NoSuchNamespaceError if it was certainly not made."""

    @abstractmethod
    def _current_location(self, identifier: Identifier) -> str | None:
        """Return the metadata's location that the catalog has; None if there is no such table. If
        the catalog can, this waits for a commit under way. Raises whatever prevents an answer."""

    @abstractmethod
    def _may_still_commit(self, error: BaseException, is_new: bool) -> bool:
        """Return whether the catalog may still carry out a request that ended in ``error``,
        although ``_current_location`` does not show it yet. ``is_new``: it was for a new table."""

    def _read(self, location: str, io: FileIO) -> NewMetadata:
        """Return metadata that was written earlier, for a new table."""
        with new_input(io, location).open() as stream:
            sha256 = hashlib.sha256(stream.read(MAX_METADATA_SIZE + 1)).hexdigest()
        metadata = read_metadata(io, location, Trust(None, sha256))
        return self._staged(metadata, location, print_metadata(metadata), sha256, None)

    def _write(
        self, metadata: JavaOrdered, location: str, output: TableOutput, base: Base | None
    ) -> NewMetadata:
        text = print_ordered(metadata, None if base is None else base.metadata)
        stored = stored_form(text, location)
        output.write(location, stored)
        return self._staged(metadata, location, text, hashlib.sha256(stored).hexdigest(), base)

    def _staged(
        self, metadata: dict[str, Any], location: str, text: bytes, sha256: str, base: Base | None
    ) -> NewMetadata:
        hashed = _java_hash(metadata, text, base) if self.keeps_java_hash else ""
        return NewMetadata(metadata, location, hashed, sha256)

    def _after(self, base: Base, new: NewMetadata) -> Base:
        """Return the base with ``new``, which is confirmed by what confirmed the old one."""
        keeps_hash = self.keeps_hash and new.is_confirmed
        has_folder = base.trust.table_location is not None and not keeps_hash
        trust = replace(
            base.trust,
            metadata_sha256=base.trust.metadata_sha256 and new.sha256,
            java_hash=new.java_hash if keeps_hash and self.keeps_java_hash else None,
            pinned_sha256=new.sha256 if keeps_hash and not self.keeps_java_hash else None,
            data_key_length=None,
            table_location=new.metadata["location"] if has_folder else None,
        )
        return replace(base, metadata=new.metadata, location=new.location, trust=trust)

    def _try(
        self, base: Base, new: NewMetadata, output: TableOutput, change: Callable[[Event], None]
    ) -> None:
        """Return if the catalog has ``new``. Otherwise delete its file and raise as ``commit``
        and ``create``; if that is unknown, the file stays."""
        sent = Event()
        try:
            change(sent)
        except BaseException as error:
            was_refused = isinstance(error, _REFUSALS) or not sent.is_set()
            if not was_refused and self._was_made(base, new, error):
                return
            output.discard([new.location])
            if was_refused or not isinstance(error, Exception):
                raise
            what = "the creation" if base.location == new.location else "a commit"
            raise not_committed(base.identifier, error, what) from error

    def _was_made(self, base: Base, new: NewMetadata, error: BaseException) -> bool:
        is_new = base.location == new.location

        def ask() -> bool | None:
            location = self._current_location(base.identifier)
            if location == new.location:
                return True
            if location == (None if is_new else base.location):
                return None if self._may_still_commit(error, is_new) else False
            if location is None:
                # The table was dropped.
                return None
            log = self.load(base.identifier, Trust()).metadata.get("metadata-log") or ()
            locations = {entry.get("metadata-file") for entry in log}
            if new.location in locations:
                return True
            # Somebody else's new table excludes ours. A commit may be older than the log.
            return False if is_new or base.location in locations else None

        return was_committed(base.identifier, new.metadata, error, ask)


def catalog_parameters(new: NewMetadata, base: Base | None) -> dict[str, str]:
    """Return what a catalog of parameters keeps of a table after ``new`` becomes its metadata:
    where that is, and what ``parameters_trust`` believes. ``base`` is None for a new table."""
    properties = new.metadata.get("properties") or {}
    return {
        TABLE_TYPE: ICEBERG.upper(),
        METADATA_LOCATION: new.location,
        PREVIOUS_METADATA_LOCATION: base.location if base else "",
        METADATA_HASH: new.java_hash,
        HASH_LOCATION: new.location if new.is_confirmed else UNCONFIRMED,
        **{n: properties[n] for n in (TABLE_KEY_ID, DATA_KEY_LENGTH) if n in properties},
    }


def _java_hash(metadata: Mapping[str, Any], text: bytes, base: Base | None) -> str:
    """Return Hive's hash of metadata, which is printed as ``text``. Java hashes the fields that it
    knows. If the hash of ``base`` covers fields that are unknown here, a later Java wrote it, and
    the new hash covers them too."""
    known, whole = java_hash(metadata, text), metadata_hash(text)
    stated = None if base is None else base.trust.java_hash
    if base is None or stated is None or known == whole:
        return known
    return known if java_hash(base.metadata) == stated else whole

"""Finds the files that only expired snapshots of a table reach, so that they can be deleted::

    expired snapshots               living snapshots
    ------------------              ------------------
    1  manifest lists       minus   3  manifest lists
    1  manifests            minus   3  manifests
    4  data, delete files   minus   5  data, delete files
    2  statistics           minus   3, 5  all of these

The numbers are the order of reading. The files that remain can be deleted if they are in the
table's folders. If a part of an expired snapshot cannot be read, it stays, and so do the files that
it names. If a part of a living snapshot cannot be read, this raises, and nothing may be deleted.

One file may have several locations, also through links. So files are compared by their identity,
not by their locations. This follows Java's ``ReachableFileCleanup``. It deletes nothing by itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from ...errors import Ags1Error, KmsError
from ...host.pools import CancellingPool
from ..read.snapshots import EncryptedManifest, EncryptedSnapshot
from ..read.statistics import list_statistics
from ..storage.locations import FileNames
from ..storage.output import TableOutput
from ..storage.table_files import TableFiles
from ..storage.table_folders import TableFolders
from ..write.view import TableView
from .deletion import DeletionProgress, delete_files

_THREADS = 4
_OUTSIDE = "it is not in the table's folders"
_REACHED = "a snapshot has it"

_log = logging.getLogger(__name__)
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_Snapshot = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ExpiredFiles:
    """The locations of the files to delete, in the order of deletion. ``left_behind`` are files
    that stay although no snapshot reaches them. Files outside the table's folders stay, because
    they may be another table's, as may their whole snapshot. Parts of expired snapshots that cannot
    be read stay, because the files that they name are unknown. Statistics files stay if only the
    metadata, which is not authenticated, says that they are statistics. If no ``folders`` are
    given, all files stay."""

    data_files: tuple[str, ...] = ()
    delete_files: tuple[str, ...] = ()
    manifests: tuple[str, ...] = ()
    manifest_lists: tuple[str, ...] = ()
    statistics: tuple[str, ...] = ()
    left_behind: tuple[str, ...] = ()
    folders: TableFolders = field(default=TableFolders(""), repr=False, compare=False)

    @property
    def locations(self) -> tuple[str, ...]:
        """All files to delete."""
        contents = self.data_files + self.delete_files
        return contents + self.manifests + self.manifest_lists + self.statistics

    def delete(
        self, output: TableOutput, progress: DeletionProgress | None = None
    ) -> tuple[str, ...]:
        """Delete the files; return those that could not be deleted, as ``delete_files``."""
        return delete_files(self.locations, output, self.folders, progress)


def find_expired_files(
    before: TableView, after: TableView, expired: list[_Snapshot], folders: TableFolders
) -> ExpiredFiles:
    """Return the files that the snapshots ``expired`` of ``before`` reach, and no snapshot of
    ``after``. ``folders`` are the table's. Raises KmsError, OSError, and as reading ``after``."""
    with CancellingPool(_THREADS) as pool:
        return _Search(before, after, expired, folders, pool).run()


class _Search:
    """One search. The dictionaries have the files to delete, by identity."""

    def __init__(
        self,
        before: TableView,
        after: TableView,
        expired: list[_Snapshot],
        folders: TableFolders,
        pool: CancellingPool,
    ) -> None:
        self._before = before
        # Plaintext manifests of expired snapshots are deleted too, with the files that they list.
        self._before_files = before.files.reading_exposed()
        self._after = after
        self._living: Sequence[_Snapshot] = after.metadata.get("snapshots") or ()
        self._expired = expired
        self._folders = folders
        self._names = FileNames(before.metadata["location"], before.files.stored_location)
        self._pool = pool
        self._manifest_lists: dict[bytes, str] = {}
        self._manifests: dict[bytes, EncryptedManifest] = {}
        self._statistics: dict[bytes, str] = {}
        # With each location, whether it is that of a data file.
        self._contents: dict[bytes, tuple[str, bool]] = {}
        self._left_behind: dict[str, None] = {}

    def run(self) -> ExpiredFiles:
        live_lists = {self._identity(s["manifest-list"]) for s in self._living}
        self._add_manifests(live_lists)
        self._add_statistics()
        live_manifests = self._live_manifests()
        for manifest in live_manifests:
            self._manifests.pop(manifest, None)
        for reached in (*live_lists, *live_manifests):
            self._leave(self._statistics.pop(reached, None), _REACHED)
        self._leave_outside(self._manifests, lambda manifest: manifest.manifest_path)
        self._add_contents()
        self._subtract_contents(live_manifests.values())
        self._leave_outside(self._contents, lambda content: content[0])
        contents = self._contents.values()
        return ExpiredFiles(
            tuple(location for location, is_data in contents if is_data),
            tuple(location for location, is_data in contents if not is_data),
            tuple(manifest.manifest_path for manifest in self._manifests.values()),
            tuple(self._manifest_lists.values()),
            tuple(self._statistics.values()),
            tuple(self._left_behind),
            self._folders,
        )

    def _add_manifests(self, live_lists: set[bytes]) -> None:
        """Add the manifest lists of expired snapshots, and the manifests in them."""

        def read(snapshot: _Snapshot) -> list[EncryptedManifest] | None:
            location = snapshot["manifest-list"]
            if not self._folders.has(location):
                # If another table has the same master key, its snapshot could be read here too.
                self._leave(location, _OUTSIDE)
                return None
            return self._unless_unreadable(
                lambda: _manifests(snapshot, self._before_files), location
            )

        results = self._pool.map(read, self._expired)
        for snapshot, manifests in zip(self._expired, results, strict=True):
            if manifests is None:
                continue
            location = snapshot["manifest-list"]
            if self._identity(location) not in live_lists:
                self._manifest_lists[self._identity(location)] = location
            self._manifests.update((self._identity(m.manifest_path), m) for m in manifests)

    def _add_statistics(self) -> None:
        """Add the statistics files of expired snapshots."""
        ids = {snapshot["snapshot-id"] for snapshot in self._expired}
        of_living = list_statistics(self._after.metadata)
        live = {self._identity(entry["statistics-path"]) for _, entry in of_living}
        for _, entry in list_statistics(self._before.metadata):
            location = entry["statistics-path"]
            identity = self._identity(location)
            if entry["snapshot-id"] not in ids or identity in live:
                continue
            try:
                is_statistics = self._folders.has_statistics(location, self._before_files)
            except FileNotFoundError:
                continue
            except (Ags1Error, OSError) as error:
                self._leave(location, type(error).__name__)
                continue
            if is_statistics:
                self._statistics[identity] = location
            else:
                self._leave(location, "it is not a statistics file in the metadata folder")

    def _live_manifests(self) -> dict[bytes, EncryptedManifest]:
        def read(snapshot: _Snapshot) -> list[EncryptedManifest]:
            return _manifests(snapshot, self._after.files)

        wanted = self._living if self._manifests or self._statistics else ()
        return {
            self._identity(manifest.manifest_path): manifest
            for manifests in self._pool.map(read, wanted)
            for manifest in manifests
        }

    def _add_contents(self) -> None:
        """Add the files that the manifests list. A manifest that cannot be read stays."""

        def read(manifest: EncryptedManifest) -> dict[bytes, tuple[str, bool]] | None:
            def listed() -> dict[bytes, tuple[str, bool]]:
                files = manifest.live_files(self._before_files)
                return {self._identity(location): (location, data) for location, data in files}

            return self._unless_unreadable(listed, manifest.manifest_path)

        identities = list(self._manifests)
        results = self._pool.map(read, list(self._manifests.values()))
        for identity, contents in zip(identities, results, strict=True):
            if contents is None:
                del self._manifests[identity]
            else:
                self._contents.update(contents)

    def _subtract_contents(self, live: Iterable[EncryptedManifest]) -> None:
        """Take away the files that living manifests list."""

        def reached(manifest: EncryptedManifest) -> list[bytes]:
            files = manifest.live_files(self._after.files)
            identities = (self._identity(location) for location, _ in files)
            return [i for i in identities if i in self._contents or i in self._statistics]

        wanted = live if self._contents or self._statistics else ()
        # Collect all results before anything is removed, because the threads read the dictionaries.
        for identities in list(self._pool.map(reached, wanted)):
            for identity in identities:
                self._contents.pop(identity, None)
                self._leave(self._statistics.pop(identity, None), _REACHED)

    def _leave_outside(
        self, files: dict[bytes, _Item], location_of: Callable[[_Item], str]
    ) -> None:
        """Take away the files that are outside the table's folders."""
        for identity, file in list(files.items()):
            if not self._folders.has(location_of(file)):
                self._leave(location_of(file), _OUTSIDE)
                del files[identity]

    def _unless_unreadable(self, read: Callable[[], _Result], location: str) -> _Result | None:
        """Return ``read()``, or None if this part of an expired snapshot is damaged or missing.
        Raises KmsError, and OSError for failures of the storage."""
        try:
            return read()
        except KmsError:
            raise
        except (Ags1Error, FileNotFoundError) as error:
            self._leave(location, type(error).__name__)
            return None

    def _leave(self, location: str | None, reason: str) -> None:
        """Leave a file behind, unless ``location`` is None."""
        if location is not None:
            _log.warning("%s is left behind: %s", location, reason)
            self._left_behind[location] = None

    def _identity(self, location: str) -> bytes:
        return self._names.of(location)


def _manifests(snapshot: _Snapshot, files: TableFiles) -> list[EncryptedManifest]:
    manifests = EncryptedSnapshot.model_validate(snapshot).manifests(files)
    return cast("list[EncryptedManifest]", manifests)

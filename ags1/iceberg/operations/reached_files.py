"""``ReachedFiles``: the files that a table's metadata reaches, so that no other one is needed.

A version of the metadata reaches itself, the earlier metadata files in its log, its statistics, and
the manifest lists, manifests, data and delete files of all its snapshots, whether a branch or tag
has them or not. Every manifest is authenticated. If one cannot be read, this raises, because a file
that only this manifest lists would look as if nothing needed it.

Java's ``BaseSparkAction`` collects the same files. This module does not list folders.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar
from urllib.parse import unquote

from pyiceberg.manifest import ManifestFile

from ...errors import MetadataIntegrityError
from ...host.pools import map_in_threads
from ..read.snapshots import EncryptedSnapshot
from ..read.statistics import list_statistics
from ..storage.locations import FileNames, path_without_host, real_file
from ..storage.table_files import TableFiles
from ..write.view import TableView
from .deletion import logged_metadata

_THREADS = 16

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class ReachedFiles:
    """A set of reached files. ``table_location`` is the table's folder; ``files`` maps locations.

    In doubt, a file is reached: a location that may be read in two ways stands for both files. For
    use by one thread.
    """

    def __init__(self, files: TableFiles, table_location: str) -> None:
        self._files = files
        self._names = FileNames(table_location, files.stored_location)
        self._root_path = path_without_host(files.stored_location(table_location)) + "/"
        self._reached: set[bytes] = set()
        # The files outside the table's own folder, by their path without the bucket or host.
        self._elsewhere: dict[str, str] = {}
        self._read: set[str] = set()

    def add_version(
        self,
        view: TableView,
        metadata_location: str | None = None,
        *,
        may_be_incomplete: bool = False,
    ) -> None:
        """Add what a version of the table reaches, and its own metadata file. Manifests that an
        earlier version had are not read again. With ``may_be_incomplete``, manifests and manifest
        lists may be missing, as after a commit that failed.

        Raises KmsError, OSError, and what reading a snapshot raises.
        """
        metadata = view.metadata
        if metadata_location is not None:
            self._add(metadata_location)
        for logged in logged_metadata(metadata):
            self._add(logged)
        for _, entry in list_statistics(metadata):
            self._add(entry["statistics-path"])
        snapshots = [
            EncryptedSnapshot.model_validate(snapshot)
            for snapshot in metadata.get("snapshots") or ()
            if self._is_new(snapshot["manifest-list"])
        ]

        def manifests_of(snapshot: EncryptedSnapshot) -> list[ManifestFile]:
            return snapshot.manifests(view.files)

        def files_of(manifest: ManifestFile) -> list[str]:
            return [e.data_file.file_path for e in manifest.fetch_manifest_entry(view.files)]

        manifests = [
            manifest
            for of_snapshot in _read_all(manifests_of, snapshots, may_be_incomplete)
            for manifest in of_snapshot
            if self._is_new(manifest.manifest_path)
        ]
        for locations in _read_all(files_of, manifests, may_be_incomplete):
            for location in locations:
                self._add(location)

    def has(self, location: str) -> bool:
        """Return whether the file with this ``location`` in the metadata is reached."""
        try:
            return self.has_stored(self._files.stored_location(location))
        except MetadataIntegrityError:
            return False  # no file can have that name

    def has_stored(self, location: str) -> bool:
        """Return whether the file at this present location is reached."""
        return self._names.of_stored(location) in self._reached or (
            "%" in location and self._names.of_stored(unquote(location)) in self._reached
        )

    def on_another_host(self, location: str) -> str | None:
        """Return a reached file, or the path of one, that differs from the file at this present
        location only in the bucket or host; None if there is none."""
        path = path_without_host(location)
        if path.startswith(self._root_path):
            below = path[len(self._root_path) :].encode("utf-8", "surrogatepass")
            if below in self._reached:
                return path
        return self._elsewhere.get(path)

    def _is_new(self, location: str) -> bool:
        """Add a manifest or manifest list. Return whether it has to be read."""
        self._add(location)
        is_new = location not in self._read
        self._read.add(location)
        return is_new

    def _add(self, location: str) -> None:
        for stored in _readings(self._files.stored_location(location)):
            name = self._names.of_stored(stored)
            self._reached.add(name)
            if not self._names.is_below_root(stored):
                self._elsewhere[path_without_host(stored)] = location


def _readings(location: str) -> Iterator[str]:
    """Yield the present locations of all files that a reader may open for one location."""
    yield location
    if "%" in location:
        yield unquote(location)
    for end in "?#":
        if end in location:
            # For some FileIOs the path ends here.
            yield location.partition(end)[0]
    target = real_file(location)
    if target is not None:
        yield target


def _read_all(
    read: Callable[[_Item], list[_Result]], items: Iterable[_Item], may_be_missing: bool
) -> Iterator[list[_Result]]:
    """Yield what ``read`` returns for each item. Threads read ahead."""

    def read_one(item: _Item) -> list[_Result]:
        try:
            return read(item)
        except FileNotFoundError:
            if may_be_missing:
                return []
            raise

    return map_in_threads(_THREADS, read_one, items)

"""``relocate`` copies an encrypted table to another location, in the same storage or in another.

Data files, equality deletes and statistics are copied as they are stored; none is decrypted. Files
that name other files are written anew with fresh keys: position deletes, deletion vectors,
manifests and manifest lists. The last one is metadata.json. IDs, sequence numbers, row IDs, counts,
summaries and references stay the same. Java's ``RewriteTablePath`` does the same for unencrypted
tables and refuses encrypted ones. This module does not know catalogs: its result is a metadata.json
to register.

If an attempt fails, completely copied data files stay, and the next attempt uses them. Files that
are written anew get new names in each attempt, so that no key ever encrypts two contents.
"""

from __future__ import annotations

import copy
import errno
import os
import stat
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, cast

from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.io import load_file_io
from pyiceberg.manifest import DataFileContent, FileFormat
from pyiceberg.typedef import Properties

from ...cpu import usable_cpus
from ...errors import Ags1Error, MetadataIntegrityError
from ...key_metadata import KeyMetadata
from ...keys.envelope import encryption_keys_to_dicts
from ...keys.manager import EncryptionManager, now_ms
from ..commit.base import Base
from ..commit.metadata_file import next_metadata_location, print_metadata, stored_form
from ..commit.session import TableSession, version_of
from ..read.deletes import read_deletion_vector
from ..read.metadata import read_metadata
from ..read.snapshots import EncryptedManifest, EncryptedSnapshot
from ..spec.table_keys import needed_keys
from ..storage.byte_meter import ByteMeter
from ..storage.home import Home
from ..storage.listing import list_files
from ..storage.output import TableOutput
from ..storage.places import Place, Places, are_nested, checked_location, place_of, real_location
from ..storage.table_files import TableFiles
from ..storage.trust import Trust
from ..write.summary import without_partitions
from ..write.view import TableView
from .findings import Severity
from .relocation_plan import (
    Copy,
    Deletes,
    Plan,
    Rewritten,
    Vectors,
    check_size,
    distinct,
    log_of,
    moved_properties,
    read_manifest,
    refs_to,
)
from .repoint import (
    Paths,
    Row,
    UnreadableError,
    repoint_avro_deletes,
    repoint_parquet_deletes,
    repoint_puffin,
    repointed,
    unreadable,
    with_bound,
)
from .verify import Progress, verify_table

__all__ = ["Progress", "RelocationResult", "is_seen_from", "relocate"]

_BUFFER_SIZE = 4 << 20
_PROGRESS_SECONDS = 0.1
_REMOTE_THREADS = 16
_METADATA_PATH = "write.metadata.path"
_STATISTICS = ("statistics", "partition-statistics")

# Field ids of manifest lists, manifest entries and data files.
_MANIFEST_PATH, _MANIFEST_LENGTH, _MANIFEST_KEY = 500, 501, 519
_DATA_FILE, _FILE_PATH, _FILE_SIZE, _COLUMN_SIZES = 2, 100, 104, 108
_LOWER_BOUNDS, _UPPER_BOUNDS, _KEY, _SPLIT_OFFSETS = 125, 128, 131, 132
_CONTENT, _REFERENCED_DATA_FILE = 134, 143

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class RelocationResult:
    """The result of a relocation, or of its ``dry_run``.

    ``metadata_location`` is the new metadata.json, to register in a catalog; None after a dry run.
    ``copied_files`` is the number of files that were copied, ``copied_size`` their bytes.
    ``found_files`` and ``found_size`` are those that an earlier attempt had copied; a dry run does
    not look for them. ``rewritten_files`` is the number of files that were written anew: manifest
    lists, manifests, deletion vectors, position deletes. ``dropped_statistics`` are statistics
    files of the old metadata that are missing or outside the metadata folder; those outside may be
    something else, so they are not copied.

    ``old_files`` are the files in the old table's own folders that the new table replaces, and all
    known metadata.json files there. Delete them once nobody reads the old table.
    ``old_files_outside`` are those outside these folders, which may be somebody else's.
    """

    location: str
    metadata_location: str | None
    snapshots: int
    copied_files: int
    copied_size: int
    found_files: int
    found_size: int
    rewritten_files: int
    dropped_statistics: tuple[str, ...] = ()
    old_files: tuple[str, ...] = field(default=(), repr=False)
    old_files_outside: tuple[str, ...] = field(default=(), repr=False)


def relocate(
    table: TableSession,
    new_location: str,
    *,
    properties: Mapping[str, str] | None = None,
    snapshots: Literal["all", "current"] = "all",
    threads: int | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
    resume: bool = True,
    verify: bool = False,
) -> RelocationResult:
    """Copy a table to ``new_location``. The old table does not change.

    ``properties`` are those of PyIceberg's FileIO for the new location; the default is the table's
    own. With ``snapshots="current"``, only the current snapshot is copied, with the branches and
    tags that refer to it. ``threads`` is the number of threads that copy. The default is one per
    CPU for this machine's file systems, and more over a network. ``progress(done, total)`` is
    called about ten times a second with numbers of bytes to copy, in the calling thread. If it
    raises, the call ends. With ``dry_run``, the manifests are read and nothing is written. With
    ``resume``, data files that are at their new location already are used, and after a failure the
    copied files stay. Without it, such a file is an error, and after a failure nothing stays.

    Each copy must have the size that the metadata says. With ``verify``, every file of the new
    table is authenticated before its metadata.json is written. If an unencrypted file is at its new
    location already, it is compared with its source. If a wrong encrypted file is there, reading it
    will fail.

    The new table keeps its KEKs and the keys of its data files. Files from outside the table's
    location are copied into a folder of the new location. Table properties that name a folder below
    the old location are changed to the new one. Those that name another folder are removed.

    If the table was moved and is opened with a ``location_map``, the new location may be where its
    files already are. Then nothing is copied.

    Raises ValueError if the location is invalid, if it is inside the present one or contains it,
    or if it is the present one under another name (through a link, a mount or an access point);
    TypeError if the table is not encrypted; FileExistsError if another file is in the way;
    MetadataIntegrityError, TruncatedError, FormatError, AuthenticationError and NotEncryptedError
    if the table is damaged; KmsError; OSError.

    There are nine parameters: each optional one is a choice by itself, and is given by name.
    """
    if not isinstance(table, TableSession):
        raise TypeError(
            "the table is not encrypted, and only encrypted tables can be relocated: migrate it "
            "first"
        )
    if snapshots not in ("all", "current"):
        raise ValueError(f"snapshots must be 'all' or 'current', not {snapshots!r}")
    if threads is not None and threads < 1:
        raise ValueError(f"threads must be at least 1, not {threads}")
    relocation = _Relocation(
        table.view(),
        table.metadata_location,
        table.home,
        checked_location(new_location),
        table.files.properties if properties is None else dict(properties),
        snapshots == "all",
        threads,
        progress,
        resume,
        verify,
    )
    return relocation.run(dry_run)


def is_seen_from(table: TableSession, metadata_location: str) -> bool:
    """Return whether the metadata.json of a copy is in the metadata folders of ``table``, in the
    storage of that one. The file's name is unique. So if it is there, both locations are the same
    place, and the old table's files are the new table's. Raises OSError."""
    return _is_seen_from(
        table.files, table.metadata_location, table.view().metadata, metadata_location
    )


def _is_seen_from(
    files: TableFiles, old_location: str, old: Mapping[str, Any], metadata_location: str
) -> bool:
    name = metadata_location.rpartition("/")[2]
    root = old["location"].rstrip("/")
    folders = [f"{root}/metadata"]
    stated = (old.get("properties") or {}).get(_METADATA_PATH)
    # A folder outside the table's location is not looked at.
    if stated is not None and Places(root, root).inside(stated.rstrip("/")) is not None:
        folders.append(stated.rstrip("/"))
    inputs = [files.inner.new_input(f"{old_location.rpartition('/')[0]}/{name}")]
    inputs += [files.new_input(f"{folder}/{name}") for folder in folders]
    return any(file.exists() for file in inputs)


class _Relocation:
    """One call of ``relocate``. Its ten parameters are the table's and what that call was given."""

    def __init__(
        self,
        view: TableView,
        metadata_location: str,
        home: Home,
        new_location: str,
        properties: Properties,
        all_snapshots: bool,
        threads: int | None,
        progress: Progress | None,
        resume: bool,
        verify: bool,
    ) -> None:
        self._view = view
        self._files = view.files
        self._metadata = view.metadata
        self._metadata_location = metadata_location
        self._home = home
        self._places = Places(self._metadata["location"], new_location)
        self._io_properties = properties
        self._all_snapshots = all_snapshots
        self._progress = progress
        self._resume = resume
        self._verify = verify
        self._is_in_place = self._refuse_place(new_location)
        io = load_file_io(properties, new_location)
        self._copied = TableOutput(io)
        self._written = TableOutput(io)
        self._is_remote = any(
            place_of(location)[0] != "file"
            for location in (new_location, self._files.stored_location(self._metadata["location"]))
        )
        cpus = usable_cpus()
        self._threads = threads or (max(cpus, _REMOTE_THREADS) if self._is_remote else cpus)
        # Part of the names of this attempt's files, so that no earlier attempt has used them.
        self._run_id = str(uuid.uuid4())
        self._properties = moved_properties(self._metadata, self._places)
        self._metadata_folder = self._properties.get(_METADATA_PATH, f"{new_location}/metadata")
        self._manager: EncryptionManager = self._files.keys
        self._plan = Plan()
        self._rewritten: dict[Place, Rewritten] = {}
        self._lock = threading.Lock()
        self._found_files = 0
        self._found_size = 0
        self._meter = ByteMeter()
        self._next_progress = 0.0

    def run(self, dry_run: bool) -> RelocationResult:
        self._pool = ThreadPoolExecutor(self._threads, "ags1-relocate")
        metadata_location = None
        try:
            self._make_plan()
            if not dry_run:
                metadata_location = self._make()
            self._tell(final=True)
        except BaseException:
            # Stop the threads first, because they may be about to complete a file.
            self._meter.stop()
            self._pool.shutdown(cancel_futures=True)
            self._written.discard(self._written.written)
            if not self._resume:
                self._copied.discard(self._copied.written)
            raise
        finally:
            self._meter.stop()
            self._pool.shutdown(cancel_futures=True)
        return self._result(metadata_location)

    def _make(self) -> str:
        """Write the new table; return the location of its metadata.json."""
        self._refuse_other_table()
        for _ in self._each(self._copy, self._plan.copies.values()):
            pass
        work: list[tuple[Callable[[Any], Rewritten], Iterable[Any]]] = [
            (self._rewrite_vectors, self._plan.vectors.values()),
            (self._rewrite_deletes, self._plan.deletes.values()),
            # Manifests name the files above, so they are written after them.
            (self._rewrite_manifest, enumerate(self._plan.manifests.values())),
        ]
        for rewrite, items in work:
            for done in list(self._each(rewrite, items)):
                self._rewritten[place_of(done.source)] = done
        metadata = self._new_metadata()
        location = next_metadata_location(metadata, self._metadata_location)
        text = print_metadata(metadata)
        if self._verify:
            self._check(metadata, location)
        self._written.write(location, stored_form(text, location))
        if not self._is_in_place and _is_seen_from(
            self._files, self._metadata_location, self._metadata, location
        ):
            # Delete the copies of files from outside: no further attempt will use them.
            self._copied.discard(self._copied.written)
            raise ValueError(
                f"the table is at {self._places.new} already, under another name: choose another "
                "location"
            )
        return location

    def _result(self, metadata_location: str | None) -> RelocationResult:
        plan = self._plan
        old = [c.source for c in plan.copies.values() if not self._stays(c.source)]
        old += [item.source for item in plan.vectors.values()]
        old += [item.source for item in plan.deletes.values()]
        old += [*plan.manifests, *(s.manifest_list for s in plan.snapshots)]
        inside = {location for location in old if self._home.has(location)}
        logged = [entry["metadata-file"] for entry in self._metadata.get("metadata-log") or ()]
        inside.update(self._home.versions(logged))
        # The table was opened from this file, which may have another location than in the metadata.
        inside.add(self._metadata_location)
        old += logged
        return RelocationResult(
            location=self._places.new,
            metadata_location=metadata_location,
            snapshots=len(plan.snapshots),
            copied_files=len(plan.copies) - self._found_files,
            copied_size=plan.copied_size - self._found_size,
            found_files=self._found_files,
            found_size=self._found_size,
            rewritten_files=plan.rewritten,
            dropped_statistics=tuple(plan.dropped_statistics),
            old_files=tuple(sorted(inside)),
            old_files_outside=tuple(sorted(set(old) - inside)),
        )

    # -- the plan

    def _make_plan(self) -> None:
        plan = self._plan
        for entry in self._kept_snapshots():
            parsed = self._view.parsed.snapshot_by_id(entry["snapshot-id"])
            plan.snapshots.append(cast("EncryptedSnapshot", parsed))
        lists = self._each(lambda snapshot: snapshot.manifests(self._files), plan.snapshots)
        for manifest in (cast("EncryptedManifest", m) for found in lists for m in found):
            plan.add_manifest(manifest)
        for found in self._each(
            lambda manifest: read_manifest(manifest, self._files, self._meter),
            plan.manifests.values(),
        ):
            plan.add(found)
        for name in _STATISTICS:
            for statistics in self._kept_statistics(name):
                self._add_statistics(statistics)
        self._places.keep_apart(plan.sources())

    def _kept_snapshots(self) -> list[dict[str, Any]]:
        snapshots: list[dict[str, Any]] = self._metadata.get("snapshots") or []
        if self._all_snapshots:
            return snapshots
        current = self._metadata.get("current-snapshot-id")
        return [s for s in snapshots if s["snapshot-id"] == current]

    def _kept_statistics(self, name: str) -> list[dict[str, Any]]:
        kept = {snapshot.snapshot_id for snapshot in self._plan.snapshots}
        entries = self._metadata.get(name) or []
        return [e for e in entries if self._all_snapshots or e["snapshot-id"] in kept]

    def _add_statistics(self, entry: Mapping[str, Any]) -> None:
        location = entry["statistics-path"]
        try:
            is_there = self._home.has_statistics(location, self._files)
        except FileNotFoundError:
            is_there = False
        if not is_there:
            # No reader needs statistics: Java reads the table without them if they are missing.
            self._plan.dropped_statistics.append(location)
        else:
            self._plan.add_copy(Copy(location, int(entry["file-size-in-bytes"]), False))

    # -- files as they are

    def _copy(self, item: Copy) -> None:
        target = self._places(item.source)
        if self._stays(item.source):
            # The file is there already, at the table's own place under another name.
            size = len(self._files.new_input(item.source))
            check_size(size, item)
            self._found(item)
            return
        if self._resume and (there := self._size_at(target)) is not None:
            if there != item.size or not (item.is_encrypted or self._is_copied(item, target)):
                raise FileExistsError(errno.EEXIST, "Another file is in the way: remove it", target)
            self._refuse_link(item, target)
            self._found(item)
            return
        self._refuse_pipe(item.source)
        done = 0
        with (
            closing(self._files.open_stored(item.source)) as source,
            self._copied.create(target) as file,
        ):
            while data := source.read(_BUFFER_SIZE):
                self._meter.add(len(data))
                done += len(data)
                if done > item.size:
                    break
                file.write(data)
            check_size(done, item)
        if self._is_remote:
            check_size(self._size_at(target) or 0, item)

    def _found(self, item: Copy) -> None:
        self._meter.add(item.size)
        with self._lock:
            self._found_files += 1
            self._found_size += item.size

    def _refuse_place(self, new: str) -> bool:
        """Return whether the table's files are at ``new`` already, under a name that its metadata
        does not have. Raises ValueError if ``new`` cannot be used."""
        named = self._metadata["location"]
        stored = self._files.stored_location(named)
        if not self._is_same_storage(place_of(stored)):
            return False
        is_in_place = place_of(new) == place_of(stored)
        if is_in_place and place_of(stored) == place_of(named):
            raise ValueError(f"the table is at {new} already: choose another location")
        real, real_new = real_location(stored), real_location(new)
        if not is_in_place and place_of(real) == place_of(real_new):
            raise ValueError(
                f"the table is at {new} already, under another name: choose another location"
            )
        if are_nested(stored, new) or are_nested(real, real_new):
            # A clean-up of the outer table would delete the inner table's files as orphans.
            raise ValueError(
                f"of {stored} and {new}, one is within the other: choose another location"
            )
        return is_in_place

    def _refuse_other_table(self) -> None:
        """Raise FileExistsError if a metadata.json of another table is in the new folder."""
        io = self._written.io
        for location in list_files(io, self._metadata_folder) or ():
            if location.endswith(".metadata.json"):
                uuid_there = read_metadata(io, location, Trust()).get("table-uuid")
                if uuid_there != self._metadata["table-uuid"]:
                    raise FileExistsError(
                        errno.EEXIST, "Another table is here: choose another location", location
                    )
                return

    def _is_same_storage(self, place: Place) -> bool:
        return place[0] == "file" or self._io_properties == self._files.properties

    def _stays(self, source: str) -> bool:
        """Return whether a file already is at its new location, in the same storage."""
        place = place_of(self._files.stored_location(source))
        return place == place_of(self._places(source)) and self._is_same_storage(place)

    def _size_at(self, target: str) -> int | None:
        try:
            return len(self._copied.io.new_input(target))
        except FileNotFoundError:
            return None

    def _is_copied(self, item: Copy, target: str) -> bool:
        """Return whether the file at ``target`` has the bytes of its source. This is for
        unencrypted files, which have no tags."""
        self._refuse_pipe(item.source)
        with (
            closing(self._files.open_stored(item.source)) as source,
            closing(self._copied.io.new_input(target).open()) as there,
        ):
            while data := source.read(_BUFFER_SIZE):
                self._meter.add(0)
                if data != there.read(len(data)):
                    return False
            return not there.read(1)

    def _refuse_link(self, item: Copy, target: str) -> None:
        """Raise FileExistsError if a local file at ``target`` is a link to its source or the source
        itself: it would be lost when the old table is deleted."""
        path = _local_path(TableFiles(self._copied.io, self._manager), target)
        if path is None:
            return
        there = os.lstat(path)
        source = _local_path(self._files, item.source)
        if not stat.S_ISREG(there.st_mode) or (
            source is not None and os.path.samestat(there, os.stat(source))
        ):
            raise FileExistsError(
                errno.EEXIST, "The copy would be a link to the old file: remove it", target
            )

    def _refuse_pipe(self, location: str) -> None:
        """Raise OSError unless it is a regular file: opening a pipe could block for ever."""
        path = self._files.local_path(location)
        if path is not None and not stat.S_ISREG(os.stat(path).st_mode):
            raise OSError(errno.EINVAL, "Not a regular file", path)

    # -- files that name others

    def _rewrite_vectors(self, item: Vectors) -> Rewritten:
        self._meter.add(0)
        payload = self._files.read_encrypted(item.source, item.km)
        for vector in distinct(item.vectors):
            read_deletion_vector(payload, vector, vector.referenced_data_file or "")
        try:
            data = repoint_puffin(payload, self._places)
        except UnreadableError as error:
            raise unreadable(error, "Puffin file", item.source) from None
        location = self._fresh_name(item.source, "-deletes.puffin")
        return Rewritten(item.source, location, self._seal(location, data))

    def _rewrite_deletes(self, item: Deletes) -> Rewritten:
        self._meter.add(0)
        try:
            if item.file_format == FileFormat.AVRO:
                plain = self._files.read_encrypted(item.source, item.km)
                data, paths = repoint_avro_deletes(plain, self._places)
                location = self._fresh_name(item.source, "-deletes.avro")
                return Rewritten(item.source, location, self._seal(location, data), paths)
            if item.file_format != FileFormat.PARQUET:
                raise NotImplementedError(
                    f"{item.source}: position deletes in {item.file_format.name} files are not "
                    "supported in an encrypted table"
                )
            fresh = self._manager.new_file_key()
            stored = self._read_stored(item)
            data, paths = repoint_parquet_deletes(stored, item.km, fresh, self._places)
        except UnreadableError as error:
            raise unreadable(error, "position delete file", item.source) from None
        except Ags1Error as error:
            error.file = item.source
            raise
        location = self._fresh_name(item.source, "-deletes.parquet")
        self._written.write(location, data)
        return Rewritten(item.source, location, fresh.with_file_length(len(data)), paths)

    def _rewrite_manifest(self, item: tuple[int, EncryptedManifest]) -> Rewritten:
        self._meter.add(0)
        number, manifest = item
        source = manifest.manifest_path
        plain = self._files.read_encrypted(source, manifest.key)
        location = f"{self._metadata_folder}/{self._run_id}-m{number}.avro"
        data = repointed(plain, self._repoint_entry, "manifest", source)
        return Rewritten(source, location, self._seal(location, data))

    def _repoint_entry(self, entry: Row) -> None:
        file = entry.record(_DATA_FILE)
        path = file.get(_FILE_PATH)
        if not isinstance(path, str):
            raise UnreadableError("an entry has no path")
        file.set(_FILE_PATH, self._places(path))
        referenced = file.get(_REFERENCED_DATA_FILE)
        if referenced is not None:
            file.set(_REFERENCED_DATA_FILE, self._places(referenced))
        if file.get(_CONTENT) != DataFileContent.POSITION_DELETES:
            return
        done = self._rewritten.get(place_of(path))
        # If there is none, the entry only says that the file was removed.
        if done is not None:
            file.set(_FILE_PATH, done.location)
            file.set(_FILE_SIZE, done.size)
            file.set(_KEY, done.km.to_bytes())
        paths = done.paths if done is not None else Paths(None, None)
        if paths is not None:
            for field_id, bound in zip((_LOWER_BOUNDS, _UPPER_BOUNDS), paths, strict=True):
                bounds = file.get(field_id)
                if bounds is not None:
                    file.set(
                        field_id, with_bound(bounds, None if bound is None else bound.encode())
                    )
            # These optional values are not true any more.
            for field_id in (_COLUMN_SIZES, _SPLIT_OFFSETS):
                if file.get(field_id) is not None:
                    file.set(field_id, None)

    def _rewrite_list(self, snapshot: EncryptedSnapshot) -> Rewritten:
        self._meter.add(0)

        def repoint(manifest: Row) -> None:
            done = self._rewritten.get(place_of(manifest.get(_MANIFEST_PATH)))
            if done is None:
                raise UnreadableError("it has changed since it was first read")
            manifest.set(_MANIFEST_PATH, done.location)
            manifest.set(_MANIFEST_LENGTH, done.size)
            manifest.set(_MANIFEST_KEY, done.km.to_bytes())

        source = snapshot.manifest_list
        km = self._files.keys.manifest_list_key(cast("str", snapshot.key_id))
        data = repointed(self._files.read_encrypted(source, km), repoint, "manifest list", source)
        name = f"snap-{snapshot.snapshot_id}-1-{self._run_id}.avro"
        location = f"{self._metadata_folder}/{name}"
        return Rewritten(source, location, self._seal(location, data))

    def _seal(self, location: str, data: bytes) -> KeyMetadata:
        return self._written.write_encrypted(location, data, self._manager.new_file_key())

    def _fresh_name(self, source: str, ending: str) -> str:
        return f"{self._places.folder(source)}/{uuid.uuid4()}{ending}"

    def _read_stored(self, item: Deletes) -> bytes:
        """Return an encrypted Parquet file as it is stored. Raises TruncatedError, FormatError."""
        size = item.km.file_length
        assert size is not None
        self._refuse_pipe(item.source)
        with closing(self._files.open_stored(item.source)) as stream:
            stored = stream.read(size + 1)
        check_size(len(stored), Copy(item.source, size, True))
        return stored

    # -- the metadata

    def _new_metadata(self) -> dict[str, Any]:
        """Write the manifest lists; return the metadata that names them."""
        # A copy of the keys, to add others to it. Unneeded keys are removed below.
        old = self._files.keys
        keys = old.prune((), [key.key_id for key in old.encryption_keys])
        snapshots = []
        lists = {done.source: done for done in self._each(self._rewrite_list, self._plan.snapshots)}
        for entry in self._kept_snapshots():
            done = lists[entry["manifest-list"]]
            key_id = keys.add_manifest_list_key(done.km)
            entry = {**entry, "manifest-list": done.location, "key-id": key_id}
            if "summary" in entry:
                entry["summary"] = without_partitions(entry["summary"])
            snapshots.append(entry)
        metadata = copy.deepcopy(self._metadata)
        metadata["location"] = self._places.new
        metadata["last-updated-ms"] = max(now_ms(), metadata["last-updated-ms"])
        metadata["properties"] = self._properties
        metadata["snapshots"] = snapshots
        metadata["metadata-log"] = []
        if not self._all_snapshots:
            kept = {entry["snapshot-id"] for entry in snapshots}
            metadata["refs"] = refs_to(metadata.get("refs") or {}, kept)
            metadata["snapshot-log"] = log_of(metadata.get("snapshot-log") or [], kept)
        dropped = set(self._plan.dropped_statistics)
        for name in _STATISTICS:
            metadata[name] = [
                {**entry, "statistics-path": self._places(entry["statistics-path"])}
                for entry in self._kept_statistics(name)
                if entry["statistics-path"] not in dropped
            ]
        metadata["encryption-keys"] = encryption_keys_to_dicts(keys.encryption_keys)
        keys = keys.prune([entry["key-id"] for entry in snapshots], needed_keys(metadata))
        metadata["encryption-keys"] = encryption_keys_to_dicts(keys.encryption_keys)
        return metadata

    def _check(self, metadata: dict[str, Any], location: str) -> None:
        """Authenticate every file of the new table. Raises MetadataIntegrityError, KmsError."""
        trust = Trust(key_id=self._manager.table_key_id)
        version = version_of(
            Base(("relocated", location), metadata, location, trust),
            self._written.io,
            self._manager.kms,
            require_encrypted=self._files.require_encrypted,
        )
        table = TableSession(version, NoopCatalog("relocated"))
        found = verify_table(table, threads=self._threads, list_folders=False)
        for finding in found.findings:
            if finding.severity == Severity.ERROR:
                raise MetadataIntegrityError(
                    f"the relocated table has an error, so it was not completed: {finding.message}",
                    file=finding.file,
                )

    # -- threads

    def _each(self, work: Callable[[Any], _T], items: Iterable[Any]) -> Iterator[_T]:
        """Yield ``work(item)`` for each item, as they finish."""
        running: set[Future[_T]] = set()
        waiting = iter(items)
        more = True
        while running or more:
            while more and len(running) < 4 * self._threads:
                try:
                    running.add(self._pool.submit(work, next(waiting)))
                except StopIteration:
                    more = False
            done, running = wait(running, _PROGRESS_SECONDS, FIRST_COMPLETED)
            self._tell()
            for future in done:
                yield future.result()

    def _tell(self, *, final: bool = False) -> None:
        now = time.monotonic()
        if self._progress is None or (now < self._next_progress and not final):
            return
        self._next_progress = now + _PROGRESS_SECONDS
        self._progress(self._meter.done, self._plan.copied_size)


def _local_path(files: TableFiles, location: str) -> str | None:
    path = files.local_path(location)
    if path is None:
        # With another FileIO than PyArrow's, the scheme says whether the file is local.
        scheme, rest = place_of(files.stored_location(location))
        path = f"/{rest}" if scheme == "file" else None
    return path

"""``relocate``: an encrypted table under another location, on this storage or another.

Data files, equality deletes and statistics are copied as they are stored, no byte decrypted. What
names other files is written anew under fresh keys: position deletes and deletion vectors,
manifests, manifest lists; then metadata.json. Ids, sequence numbers, row ids, counts, summaries and
references stay. Java's ``RewriteTablePath`` does the like for plain tables and refuses encrypted
ones. Knows nothing of catalogs: the result is a metadata.json to be registered.

An attempt that failed leaves data files that were copied whole, which the next one finds; what it
wrote itself has new names in each attempt, so that no key is ever used for a second content.
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
from typing import Any, Literal, NamedTuple, TypeVar, cast

from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.io import load_file_io
from pyiceberg.manifest import DataFileContent, FileFormat, ManifestEntryStatus
from pyiceberg.typedef import Properties

from ...cpu import usable_cpus
from ...errors import (
    Ags1Error,
    FormatError,
    MetadataIntegrityError,
    NotEncryptedError,
    TruncatedError,
)
from ...key_metadata import KeyMetadata
from ...keys.envelope import encryption_keys_to_dicts
from ...keys.manager import EncryptionManager, now_ms
from ..byte_meter import ByteMeter
from ..deletes import read_deletion_vector
from ..files import TableFiles
from ..findings import Severity
from ..home import FOLDER_PROPERTIES, Home, home_of
from ..listing import list_files
from ..metadata import Trust, read_metadata
from ..snapshots import ContentFile, EncryptedManifest, EncryptedSnapshot
from ..table import EncryptedTable, encrypted_table
from ..verify import Progress, verify_table
from ..writing.metadata_file import next_metadata_location, print_metadata, stored_form
from ..writing.output import TableOutput
from ..writing.view import TableView
from .places import Place, Places, are_nested, checked_location, place_of, real_location
from .repointing import (
    Paths,
    Row,
    UnreadableError,
    repoint_avro_deletes,
    repoint_parquet_deletes,
    repoint_puffin,
    repoint_records,
    unreadable,
    with_bound,
)

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
    """What a relocation made, or would make (``dry_run``).

    ``metadata_location`` is the new metadata.json, to be registered in a catalog; None after a dry
    run. ``copied_files`` were copied as they are, ``copied_size`` bytes in all;
    ``found_files`` with ``found_size`` lay there already, from an attempt before (a dry run does
    not look). ``rewritten_files`` were written anew: manifest lists, manifests, deletion vectors,
    position deletes. ``dropped_statistics`` are statistics files that the old metadata names and
    that are gone, or that may be something else: only those beside the metadata are copied.
    ``old_files`` are those in the old table's own folders that the new table has in their stead, by
    the old table's names, and every metadata.json that is known of there: what is left to be
    deleted once nobody reads the old table. ``old_files_outside`` are those that lie elsewhere, and
    perhaps are somebody else's.
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
    table: EncryptedTable,
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
    """Copy a table to ``new_location``; the old one stays as it is.

    ``properties`` are those of PyIceberg's FileIO for the new place, by default the table's own.
    ``snapshots="current"`` leaves all others behind, and references to them. ``threads`` copy, by
    default one a CPU on this machine's file systems, and more over a network. ``progress(done,
    total)`` is called about ten times a second with bytes of files to be copied, in the calling
    thread; what it raises ends the call. ``dry_run`` reads the manifests, and writes nothing.
    ``resume`` takes data files that lie in their new place already, and after a failure leaves
    those that were copied; without it, such a file is an error, and nothing is left.

    Each copy has the size that the metadata says. ``verify`` authenticates every file of the new
    table before its metadata.json is written. A file in the clear that was found is compared with
    its source; one that is encrypted and is not what it should be fails when it is read.

    The new table keeps its KEKs and its data files' keys. A file from outside the table's location
    goes into a folder of the new one. Table properties that send new files below the old location
    are changed to the new one, and those that send them elsewhere are dropped.

    The new place may be where the table lies already, when it was moved and is opened by a
    ``location_map``: then nothing is copied. Raises ValueError for a location that is none, lies
    within the present one, or the other way round, or is the present one by another name, as by a
    link, a mount or an access point; TypeError for a table that is not encrypted;
    FileExistsError when another file is in the way; MetadataIntegrityError, TruncatedError,
    FormatError, AuthenticationError and NotEncryptedError for a table that is damaged; KmsError and
    OSError.
    """
    if not isinstance(table, EncryptedTable):
        raise TypeError("the table is not encrypted: this is for those that are")
    if snapshots not in ("all", "current"):
        raise ValueError(f"snapshots is 'all' or 'current', not {snapshots!r}")
    if threads is not None and threads < 1:
        raise ValueError(f"threads must be at least 1, not {threads}")
    relocation = _Relocation(
        table.view(),
        table.metadata_location,
        home_of(table),
        checked_location(new_location),
        table.files.properties if properties is None else dict(properties),
        snapshots == "all",
        threads,
        progress,
        resume,
        verify,
    )
    return relocation.run(dry_run)


def is_seen_from(table: EncryptedTable, metadata_location: str) -> bool:
    """Whether a relocated table's metadata.json, whose name is like no other, is to be seen in the
    metadata folders of the table that it was made of, in that one's storage. Then both places are
    one, and the old table's files are the new one's. Raises OSError."""
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
    # One that lies elsewhere is not gone to.
    if stated is not None and Places(root, root).inside(stated.rstrip("/")) is not None:
        folders.append(stated.rstrip("/"))
    inputs = [files.inner.new_input(f"{old_location.rpartition('/')[0]}/{name}")]
    inputs += [files.new_input(f"{folder}/{name}") for folder in folders]
    return any(file.exists() for file in inputs)


class _Copy(NamedTuple):
    """A file to be copied. ``size`` in bytes; ``is_encrypted`` where tags tell if it is right."""

    source: str
    size: int
    is_encrypted: bool


class _Vectors(NamedTuple):
    """A Puffin file of deletion vectors, and those of them that a snapshot has."""

    source: str
    km: KeyMetadata
    vectors: list[ContentFile]


class _Deletes(NamedTuple):
    """A file of position deletes."""

    source: str
    km: KeyMetadata
    file_format: FileFormat


class _Found(NamedTuple):
    """What one manifest names that is live."""

    copies: list[_Copy]
    vectors: list[_Vectors]
    deletes: list[_Deletes]


@dataclass(frozen=True, slots=True)
class _Rewritten:
    """A file that was written anew, in the place of ``source``."""

    source: str
    location: str
    km: KeyMetadata
    paths: Paths | None = None

    @property
    def size(self) -> int:
        return cast("int", self.km.file_length)


@dataclass(slots=True)
class _Plan:
    """All that is to be done."""

    snapshots: list[EncryptedSnapshot] = field(default_factory=list)
    manifests: dict[str, EncryptedManifest] = field(default_factory=dict)
    copies: dict[Place, _Copy] = field(default_factory=dict)
    vectors: dict[Place, _Vectors] = field(default_factory=dict)
    deletes: dict[Place, _Deletes] = field(default_factory=dict)
    dropped_statistics: list[str] = field(default_factory=list)

    def sources(self) -> Iterator[str]:
        """Yield the locations of all data and delete files and statistics."""
        yield from (item.source for item in self.copies.values())
        yield from (item.source for item in self.vectors.values())
        yield from (item.source for item in self.deletes.values())

    @property
    def rewritten(self) -> int:
        return sum(map(len, (self.snapshots, self.manifests, self.vectors, self.deletes)))

    @property
    def copied_size(self) -> int:
        return sum(c.size for c in self.copies.values())


class _Relocation:
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
        # Of this attempt: no earlier one has written under these names.
        self._run_id = str(uuid.uuid4())
        self._properties = self._moved_properties()
        self._metadata_folder = self._properties.get(_METADATA_PATH, f"{new_location}/metadata")
        self._manager: EncryptionManager = self._files.keys
        self._plan = _Plan()
        self._rewritten: dict[Place, _Rewritten] = {}
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
            # The threads first: they may be about to complete a file.
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
        work: list[tuple[Callable[[Any], _Rewritten], Iterable[Any]]] = [
            (self._rewrite_vectors, self._plan.vectors.values()),
            (self._rewrite_deletes, self._plan.deletes.values()),
            # These name what was written before.
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
            # Files from outside: nobody will go on with them.
            self._copied.discard(self._copied.written)
            raise ValueError(f"the table is at {self._places.new} already, under another name")
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
        # Opened by where it lies, which may be another place than its name in the metadata.
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
            known = plan.manifests.setdefault(manifest.manifest_path, manifest)
            if known.key != manifest.key:
                raise MetadataIntegrityError(
                    "two manifest lists have different keys for this manifest",
                    file=manifest.manifest_path,
                )
        for found in self._each(self._read_manifest, plan.manifests.values()):
            for item in found.copies:
                self._add_copy(item)
            for vectors in found.vectors:
                here = plan.vectors.setdefault(place_of(vectors.source), vectors)
                if here is not vectors:
                    _check_same(here.km, vectors.km, vectors.source)
                    here.vectors.extend(vectors.vectors)
            for deletes in found.deletes:
                known_file = plan.deletes.setdefault(place_of(deletes.source), deletes)
                _check_same(known_file.km, deletes.km, deletes.source)
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

    def _read_manifest(self, manifest: EncryptedManifest) -> _Found:
        found = _Found([], [], [])
        puffins: dict[str, _Vectors] = {}
        for entry in manifest.fetch_manifest_entry(self._files, discard_deleted=False):
            self._meter.add(0)
            if entry.status == ManifestEntryStatus.DELETED:
                continue
            file = cast("ContentFile", entry.data_file)
            path, km = file.file_path, file.key
            if km is None and self._files.require_encrypted:
                raise NotEncryptedError(
                    "this data file is in the clear, and the caller requires encryption", file=path
                )
            if km is None or file.content != DataFileContent.POSITION_DELETES:
                found.copies.append(_Copy(path, file.file_size_in_bytes, km is not None))
            elif file.is_deletion_vector:
                if path not in puffins:
                    puffins[path] = _Vectors(path, km, [])
                    found.vectors.append(puffins[path])
                puffins[path].vectors.append(file)
            else:
                found.deletes.append(_Deletes(path, km, FileFormat(file.file_format)))
        return found

    def _add_copy(self, item: _Copy) -> None:
        known = self._plan.copies.setdefault(place_of(item.source), item)
        if known[1:] != item[1:]:
            raise MetadataIntegrityError(
                "two entries say different things of this file", file=item.source
            )

    def _add_statistics(self, entry: Mapping[str, Any]) -> None:
        location = entry["statistics-path"]
        try:
            is_there = self._home.has_statistics(location, self._files)
        except FileNotFoundError:
            is_there = False
        if not is_there:
            # No reader needs them, and Java does without when they are gone.
            self._plan.dropped_statistics.append(location)
        else:
            self._add_copy(_Copy(location, int(entry["file-size-in-bytes"]), False))

    # -- files as they are

    def _copy(self, item: _Copy) -> None:
        target = self._places(item.source)
        if self._stays(item.source):
            # It lies there: in the table's own place, under another name.
            size = len(self._files.new_input(item.source))
            _check_size(size, item)
            self._found(item)
            return
        if self._resume and (there := self._size_at(target)) is not None:
            if there != item.size or not (item.is_encrypted or self._is_copied(item, target)):
                raise FileExistsError(
                    errno.EEXIST, "another file is where this table's is to be", target
                )
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
            _check_size(done, item)
        if self._is_remote:
            _check_size(self._size_at(target) or 0, item)

    def _found(self, item: _Copy) -> None:
        self._meter.add(item.size)
        with self._lock:
            self._found_files += 1
            self._found_size += item.size

    def _refuse_place(self, new: str) -> bool:
        """Return whether the table lies there, under a name that its metadata does not know. Raises
        ValueError."""
        named = self._metadata["location"]
        stored = self._files.stored_location(named)
        if not self._is_same_storage(place_of(stored)):
            return False
        is_in_place = place_of(new) == place_of(stored)
        if is_in_place and place_of(stored) == place_of(named):
            raise ValueError(f"the table is at {new} already")
        real, real_new = real_location(stored), real_location(new)
        if not is_in_place and place_of(real) == place_of(real_new):
            raise ValueError(f"the table is at {new} already, under another name")
        if are_nested(stored, new) or are_nested(real, real_new):
            # Whoever cleans up the outer one would take the inner one's files for orphans.
            raise ValueError(f"of {stored} and {new}, one lies within the other")
        return is_in_place

    def _refuse_other_table(self) -> None:
        """Raise FileExistsError when the place is another table's, as far as it can be told."""
        io = self._written.io
        for location in list_files(io, self._metadata_folder) or ():
            if location.endswith(".metadata.json"):
                uuid_there = read_metadata(io, location, Trust()).get("table-uuid")
                if uuid_there != self._metadata["table-uuid"]:
                    raise FileExistsError(errno.EEXIST, "another table lies there", location)
                return

    def _is_same_storage(self, place: Place) -> bool:
        return place[0] == "file" or self._io_properties == self._files.properties

    def _stays(self, source: str) -> bool:
        """Whether a file lies where it is to be, in the same storage."""
        place = place_of(self._files.stored_location(source))
        return place == place_of(self._places(source)) and self._is_same_storage(place)

    def _size_at(self, target: str) -> int | None:
        try:
            return len(self._copied.io.new_input(target))
        except FileNotFoundError:
            return None

    def _is_copied(self, item: _Copy, target: str) -> bool:
        """Whether the file there has the source's bytes: no tag would tell later."""
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

    def _refuse_link(self, item: _Copy, target: str) -> None:
        """Raise FileExistsError for a file of this machine that is no copy: it would be gone with
        the old table."""
        path = _local_path(TableFiles(self._copied.io, self._manager), target)
        if path is None:
            return
        there = os.lstat(path)
        source = _local_path(self._files, item.source)
        if not stat.S_ISREG(there.st_mode) or (
            source is not None and os.path.samestat(there, os.stat(source))
        ):
            raise FileExistsError(
                errno.EEXIST, "a link, or the file itself, is where its copy is to be", target
            )

    def _refuse_pipe(self, location: str) -> None:
        """Raise OSError for what is no regular file: to open a pipe could take for ever."""
        path = self._files.local_path(location)
        if path is not None and not stat.S_ISREG(os.stat(path).st_mode):
            raise OSError(errno.EINVAL, "Not a regular file", path)

    # -- files that name others

    def _rewrite_vectors(self, item: _Vectors) -> _Rewritten:
        self._meter.add(0)
        payload = self._files.read_encrypted(item.source, item.km)
        for vector in _distinct(item.vectors):
            read_deletion_vector(payload, vector, vector.referenced_data_file or "")
        try:
            data = repoint_puffin(payload, self._places)
        except UnreadableError as error:
            raise unreadable(error, "Puffin file", item.source) from None
        location = self._fresh_name(item.source, "-deletes.puffin")
        return _Rewritten(item.source, location, self._seal(location, data))

    def _rewrite_deletes(self, item: _Deletes) -> _Rewritten:
        self._meter.add(0)
        try:
            if item.file_format == FileFormat.AVRO:
                plain = self._files.read_encrypted(item.source, item.km)
                data, paths = repoint_avro_deletes(plain, self._places)
                location = self._fresh_name(item.source, "-deletes.avro")
                return _Rewritten(item.source, location, self._seal(location, data), paths)
            if item.file_format != FileFormat.PARQUET:
                raise NotImplementedError(
                    f"{item.source}: {item.file_format.name} files are not read in an encrypted "
                    "table"
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
        return _Rewritten(item.source, location, fresh.with_file_length(len(data)), paths)

    def _rewrite_manifest(self, item: tuple[int, EncryptedManifest]) -> _Rewritten:
        self._meter.add(0)
        number, manifest = item
        source = manifest.manifest_path
        plain = self._files.read_encrypted(source, manifest.key)
        location = f"{self._metadata_folder}/{self._run_id}-m{number}.avro"
        data = _repointed(plain, self._repoint_entry, "manifest", source)
        return _Rewritten(source, location, self._seal(location, data))

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
        # Without one, the entry tells only that the file went.
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
            # Optional, and no longer true.
            for field_id in (_COLUMN_SIZES, _SPLIT_OFFSETS):
                if file.get(field_id) is not None:
                    file.set(field_id, None)

    def _rewrite_list(self, snapshot: EncryptedSnapshot) -> _Rewritten:
        self._meter.add(0)

        def repoint(manifest: Row) -> None:
            done = self._rewritten.get(place_of(manifest.get(_MANIFEST_PATH)))
            if done is None:
                raise UnreadableError("it names a manifest that it did not name before")
            manifest.set(_MANIFEST_PATH, done.location)
            manifest.set(_MANIFEST_LENGTH, done.size)
            manifest.set(_MANIFEST_KEY, done.km.to_bytes())

        source = snapshot.manifest_list
        km = self._files.keys.manifest_list_key(cast("str", snapshot.key_id))
        data = _repointed(self._files.read_encrypted(source, km), repoint, "manifest list", source)
        name = f"snap-{snapshot.snapshot_id}-1-{self._run_id}.avro"
        location = f"{self._metadata_folder}/{name}"
        return _Rewritten(source, location, self._seal(location, data))

    def _seal(self, location: str, data: bytes) -> KeyMetadata:
        return self._written.write_encrypted(location, data, self._manager.new_file_key())

    def _fresh_name(self, source: str, ending: str) -> str:
        return f"{self._places.folder(source)}/{uuid.uuid4()}{ending}"

    def _read_stored(self, item: _Deletes) -> bytes:
        """Return an encrypted Parquet file as it is stored. Raises TruncatedError, FormatError."""
        size = item.km.file_length
        assert size is not None
        self._refuse_pipe(item.source)
        with closing(self._files.open_stored(item.source)) as stream:
            stored = stream.read(size + 1)
        _check_size(len(stored), _Copy(item.source, size, True))
        return stored

    # -- the metadata

    def _new_metadata(self) -> dict[str, Any]:
        """Write the manifest lists; return the metadata that names them."""
        old = self._files.keys
        ids = [cast("str", snapshot.key_id) for snapshot in self._plan.snapshots]
        keys = old.prune(ids)
        snapshots = []
        lists = {done.source: done for done in self._each(self._rewrite_list, self._plan.snapshots)}
        for entry in self._kept_snapshots():
            done = lists[entry["manifest-list"]]
            key_id = keys.add_manifest_list_key(done.km)
            snapshots.append({**entry, "manifest-list": done.location, "key-id": key_id})
        keys = keys.prune([entry["key-id"] for entry in snapshots])
        metadata = copy.deepcopy(self._metadata)
        metadata["location"] = self._places.new
        metadata["last-updated-ms"] = max(now_ms(), metadata["last-updated-ms"])
        metadata["properties"] = self._properties
        metadata["snapshots"] = snapshots
        metadata["metadata-log"] = []
        metadata.pop("encryption-keys", None)
        if keys.encryption_keys:
            metadata["encryption-keys"] = encryption_keys_to_dicts(keys.encryption_keys)
        if not self._all_snapshots:
            kept = {entry["snapshot-id"] for entry in snapshots}
            metadata["refs"] = _refs_to(metadata.get("refs") or {}, kept)
            metadata["snapshot-log"] = _log_of(metadata.get("snapshot-log") or [], kept)
        dropped = set(self._plan.dropped_statistics)
        for name in _STATISTICS:
            metadata[name] = [
                {**entry, "statistics-path": self._places(entry["statistics-path"])}
                for entry in self._kept_statistics(name)
                if entry["statistics-path"] not in dropped
            ]
        return metadata

    def _moved_properties(self) -> dict[str, str]:
        properties = dict(self._metadata.get("properties") or {})
        for name in FOLDER_PROPERTIES:
            folder = properties.get(name)
            if folder is None:
                continue
            moved = self._places.inside(folder.rstrip("/"))
            if moved is not None:
                properties[name] = moved
            else:
                del properties[name]
        return properties

    def _check(self, metadata: dict[str, Any], location: str) -> None:
        """Authenticate every file of the new table. Raises MetadataIntegrityError, KmsError."""
        table = encrypted_table(
            ("relocated", location),
            metadata,
            location,
            self._written.io,
            NoopCatalog("relocated"),
            self._manager.kms,
            Trust(key_id=self._manager.table_key_id),
            require_encrypted=self._files.require_encrypted,
        )
        found = verify_table(table, threads=self._threads, list_folders=False)
        for finding in found.findings:
            if finding.severity == Severity.ERROR:
                raise MetadataIntegrityError(
                    f"the relocated table does not verify: {finding.message}", file=finding.file
                )

    # -- threads

    def _each(self, work: Callable[[Any], _T], items: Iterable[Any]) -> Iterator[_T]:
        """Yield ``work(item)`` of each, as they are done."""
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
        # Another FileIO than PyArrow's, whose files of this machine are such by their names.
        scheme, rest = place_of(files.stored_location(location))
        path = f"/{rest}" if scheme == "file" else None
    return path


def _distinct(vectors: Iterable[ContentFile]) -> Iterable[ContentFile]:
    """Return deletion vectors of one file without those of which another says the same."""
    found = {
        (v.content_offset, v.content_size_in_bytes, v.referenced_data_file, v.record_count): v
        for v in vectors
    }
    return found.values()


def _check_same(one: KeyMetadata, other: KeyMetadata, location: str) -> None:
    if one != other:
        raise MetadataIntegrityError("two entries have different keys for this file", file=location)


def _check_size(size: int, item: _Copy) -> None:
    if size < item.size:
        raise TruncatedError(
            f"the file has {size} bytes, and the metadata says {item.size}", file=item.source
        )
    if size > item.size:
        raise FormatError(
            f"the file has more than the {item.size} bytes that the metadata says",
            file=item.source,
        )


def _repointed(plain: bytes, change: Callable[[Row], None], what: str, source: str) -> bytes:
    try:
        return repoint_records(plain, change)
    except UnreadableError as error:
        raise unreadable(error, what, source) from None


def _refs_to(refs: Mapping[str, Any], kept: set[int]) -> dict[str, Any]:
    return {name: ref for name, ref in refs.items() if ref["snapshot-id"] in kept}


def _log_of(log: Iterable[dict[str, Any]], kept: set[int]) -> list[dict[str, Any]]:
    """Return a snapshot log without what is gone, nor what was before: as Java keeps it, the log
    says without a gap which snapshot was the current one."""
    found: list[dict[str, Any]] = []
    for entry in log:
        if entry["snapshot-id"] in kept:
            found.append(entry)
        else:
            found.clear()
    return found

"""Finds orphan files: files in a table's folders that nothing needs, such as those of a writer that
was killed. An example, with ``older_than`` three days ago::

    in the table's folder            age   reached by             so it
    data/a.parquet                   9 d   a snapshot             stays
    data/b.parquet                   9 d   nothing                is an orphan
    data/c.parquet                   1 h   nothing yet            stays: an append may be under way
    data/_work/d.parquet             9 d   nothing                stays: hidden, as in Java
    metadata/snap-1.avro             9 d   a tag's snapshot       stays
    metadata/00007-u.metadata.json   9 d   the metadata log       stays
    metadata/00002-v.metadata.json   9 d   nothing                is an orphan: older than the log
    metadata/00009-w.metadata.json   1 h   nothing yet            stays, with all that it reaches:
                                                                  it may become current
    sub/metadata/0-x.metadata.json   9 d   nothing                stays, and all of sub/: another
                                                                  table's folder

The steps are in this order, so that no commit is missed::

    1  the files that the table's current version reaches        ``ReachedFiles``
    2  the files in its folders; those that 1 lacks are noted    ``_listed``
    3  the table is loaded again, and what its version then      ``_subtract_newer``
       reaches is needed too; so is what a metadata file reaches
       that was written meanwhile and may become current
    4  the noted files that are still not reached are orphans

A writer that commits after step 3 is safe if its files are younger than ``older_than``. Nothing is
an orphan if a manifest cannot be read: ``find_orphans`` raises instead. This follows Java's
``DeleteOrphanFilesSparkAction``. It deletes nothing by itself.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, get_args

from pyiceberg.exceptions import ValidationException

from ...errors import ArgumentError, MetadataIntegrityError
from ...host.pools import map_in_threads
from ...keys.manager import TABLE_KEY_ID, now_ms
from ..commit.session import TableSession
from ..read.metadata import read_metadata
from ..spec.moments import Moment, epoch_ms
from ..storage.listing import ListedFile, list_with_times
from ..storage.locations import FileNames, new_input, real_file
from ..storage.output import TableOutput
from ..storage.table_files import TableFiles
from ..storage.table_folders import METADATA_ENDINGS, TableFolders
from ..storage.trust import Trust
from .deletion import (
    GC_ENABLED,
    DeletionProgress,
    delete_files,
    logged_metadata,
    may_share_files,
)
from .own_folders import VERSION_HINT, folders_to_list, is_metadata, version_of_name, with_checksum
from .reached_files import ReachedFiles

PrefixMismatchMode = Literal["error", "ignore", "delete"]

_DAY_MS = 24 * 60 * 60 * 1000
_DEFAULT_AGE_MS = 3 * _DAY_MS
_MIN_AGE_MS = _DAY_MS
_THREADS = 16
# The beginning of a metadata file, in which all writers put the table's UUID.
_BEGINNING = 64 << 10
_UUID = re.compile(rb'"table-uuid"\s*:\s*"([^"]*)"')


@dataclass(frozen=True, slots=True)
class OrphanFiles:
    """Orphan files of a table, in the folders that were searched.

    ``files`` have the location, size (bytes) and time of last change (epoch ms) of each.
    ``young_files`` is the number of files that nothing needs either, but that stay because they are
    younger than the limit, or because the storage does not say how old they are. ``other_tables``
    are folders of other tables in the table's own, which stay. ``not_searched`` are folders that
    only the metadata calls the table's, so that no file is deleted there. ``failed`` are the orphan
    files that could not be deleted.
    """

    files: tuple[ListedFile, ...] = ()
    young_files: int = 0
    other_tables: tuple[str, ...] = ()
    not_searched: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()

    @property
    def orphan_file_locations(self) -> tuple[str, ...]:
        """The locations of the orphan files, as in Java's result."""
        return tuple(file.location for file in self.files)

    @property
    def size(self) -> int:
        """The size of all orphan files (bytes), as far as the storage tells it."""
        return sum(file.size or 0 for file in self.files)

    def delete(
        self, output: TableOutput, folders: TableFolders, progress: DeletionProgress | None = None
    ) -> OrphanFiles:
        """Delete the files; return the same result with those that could not be deleted."""
        failed = delete_files(self.orphan_file_locations, output, folders, progress)
        return replace(self, failed=failed)


def age_limit(
    older_than: Moment | None, *, no_other_writers: bool = False, name: str = "older_than"
) -> int:
    """Return the limit of age as epoch ms; the default is three days ago. ``name`` is
    that of the argument.

    Raises ArgumentError if it is less than 24 hours ago, as Java's procedure does, unless
    ``no_other_writers`` says that nobody else writes to the table.
    """
    now = now_ms()
    limit = now - _DEFAULT_AGE_MS if older_than is None else epoch_ms(older_than, name)
    if limit > now - _MIN_AGE_MS and not no_other_writers:
        raise ArgumentError(
            "the limit of age must be at least 24 hours ago: a younger file may belong to a commit "
            "that is under way. If nobody else writes to the table, say so",
            parameter=name,
        )
    return limit


def find_orphans(
    table: TableSession,
    older_than_ms: int,
    *,
    location: str | None = None,
    prefix_mismatch_mode: PrefixMismatchMode = "error",
    refresh: Callable[[], object] | None = None,
) -> OrphanFiles:
    """Return the orphan files of ``table`` that are older than ``older_than_ms`` (epoch ms).

    ``location`` is a folder of the table; only files below it count. If the table needs a file with
    the path of an orphan file in another bucket or on another host, ``prefix_mismatch_mode``
    decides: raise, do not count the orphan file, or count it. ``refresh`` loads ``table`` again,
    after the folders were listed; without it, files of commits made meanwhile may be in the result.

    Raises ValidationException if ``gc.enabled`` is not true, for such a file in the mode ``error``,
    and if another table has its metadata in the same folder. Raises ValueError for a ``location``
    outside the table's folders, NotImplementedError if the storage cannot list files, KmsError,
    OSError, and what reading a snapshot raises.
    """
    if may_share_files(table.version.json.get("properties")):
        raise ValidationException(
            f"orphan files cannot be found: the table's property {GC_ENABLED!r} is not true, so "
            "other tables may have files in its folders. Set it to true if no other table has them"
        )
    if prefix_mismatch_mode not in get_args(PrefixMismatchMode):
        raise ValueError(f"prefix_mismatch_mode {prefix_mismatch_mode!r} is unknown")

    def searched() -> tuple[_Search, OrphanFiles]:
        search = _Search(table, older_than_ms, location)
        return search, search.run(refresh)

    search, orphans = table.or_newer(searched)
    return replace(orphans, files=_without_mismatches(orphans.files, search, prefix_mismatch_mode))


class _Search:
    """One search in the folders of ``table``."""

    def __init__(self, table: TableSession, older_than_ms: int, location: str | None) -> None:
        self._table = table
        self._older_than_ms = older_than_ms
        self._folders = table.folders
        metadata = table.version.json
        self._stored = table.files.stored_location
        self._own = str(metadata["location"])
        self._names = FileNames(self._own, self._stored)
        self._within: FileNames | None = None
        if location is not None:
            if not self._folders.has(f"{location.rstrip('/')}/_"):
                raise ValueError(f"{location!r} is not in the table's folders")
            self._within = FileNames(location, self._stored)
        self._uuid = str(metadata["table-uuid"])
        self._version = version_of_name(table.metadata_location.rpartition("/")[2]) or 0
        self._hidden_fields = tuple(
            f"{field['name']}="
            for spec in metadata.get("partition-specs") or ()
            for field in spec["fields"]
            if field["name"].startswith(("_", "."))
        )
        self._metadata_folders = self._own_metadata_folders()
        self._other_tables: dict[bytes, str] = {}
        # Young metadata files that may become current.
        self._pending: list[str] = []
        self.reached = ReachedFiles(table.files, self._own)

    def run(self, refresh: Callable[[], object] | None) -> OrphanFiles:
        self.reached.add_version(self._table.view(), self._table.metadata_location)
        found: list[ListedFile] = []
        young: list[ListedFile] = []
        not_searched = []
        for folder in folders_to_list(self._table.version.json, self._stored):
            if not self._folders.has(f"{folder.rstrip('/')}/_"):
                not_searched.append(folder)
                continue
            for file in self._listed(folder):
                is_old = file.modified_ms is not None and file.modified_ms < self._older_than_ms
                (found if is_old else young).append(file)
        self._subtract_newer(refresh)
        orphans = tuple(file for file in self._still_unreached(found) if self._may_go(file))
        # All of them count: the files to delete may be of a table whose metadata is young, or
        # outside the folder that was asked for.
        self._check_other_tables(
            [
                file.location
                for file in (*found, *young)
                if _is_version(file.location) and self._is_unneeded(file)
            ]
        )
        return OrphanFiles(
            orphans,
            sum(1 for _ in self._still_unreached(young)),
            tuple(self._other_tables.values()),
            tuple(not_searched),
        )

    def _own_metadata_folders(self) -> set[bytes]:
        """Return the names of the folders in which the table's metadata files are."""
        metadata = self._table.version.json
        path = (metadata.get("properties") or {}).get("write.metadata.path")
        folder = (path or f"{self._own.rstrip('/')}/metadata").rstrip("/")
        files = [self._table.metadata_location, *logged_metadata(metadata), f"{folder}/_"]
        return {_folder(self._names.of(file)) for file in files}

    def _listed(self, folder: str) -> Iterator[ListedFile]:
        """Yield the files of a folder that could be orphans: neither reached nor hidden."""
        files = list_with_times(self._table.files.inner, self._stored(folder))
        if files is None:
            raise NotImplementedError(
                f"{type(self._table.files.inner).__name__} cannot list files, so orphan files "
                "cannot be found"
            )
        below = FileNames(folder, self._stored)
        for file in files:
            name = file.location.rpartition("/")[2]
            if is_metadata(name):
                self._note_metadata(file)
            if self.reached.has_stored(_needed_as(file.location)) or self._is_hidden(
                below.of_stored(file.location)
            ):
                continue
            yield file

    def _note_metadata(self, file: ListedFile) -> None:
        """Note a metadata file that may become current, and the folder of another table."""
        folder = _folder(self._names.of_stored(file.location))
        if folder not in self._metadata_folders:
            location = file.location.rpartition("/")[0]
            if folder == b"metadata" or folder.endswith(b"/metadata"):
                folder, location = _folder(folder), location.rpartition("/")[0]
            self._other_tables[folder] = location
            return
        version = version_of_name(file.location.rpartition("/")[2])
        is_old = file.modified_ms is not None and file.modified_ms < self._older_than_ms
        may_be_next = version is None or version > self._version
        if not is_old and may_be_next and _is_version(file.location):
            self._pending.append(file.location)

    def _is_hidden(self, name: bytes) -> bool:
        """Return whether a file, or a folder above it, is hidden. Java does not list those. Files
        that were not completed here, and Hadoop's checksum files, are not hidden."""
        *folders, file = name.decode("utf-8", "surrogatepass").split("/")
        if any(f.startswith(("_", ".")) and not f.startswith(self._hidden_fields) for f in folders):
            return True
        is_ours = file.startswith(".ags1-") and file.endswith(".tmp")
        return file.startswith(("_", ".")) and not is_ours and with_checksum(file) is None

    def _subtract_newer(self, refresh: Callable[[], object] | None) -> None:
        """Add to the reached files what was committed since, or may be committed now."""
        table = self._table
        if refresh is not None:
            refresh()
            self.reached.add_version(table.view(), table.metadata_location)
        for location in self._pending:
            if self.reached.has_stored(location):
                continue
            try:
                metadata = read_metadata(table.files.inner, location, Trust())
            except FileNotFoundError:
                continue
            self._check_uuid(str(metadata.get("table-uuid")), location)
            if (metadata.get("properties") or {}).get(TABLE_KEY_ID):
                view = table.view_with(metadata)
                self.reached.add_version(view, location, may_be_incomplete=True)

    def _still_unreached(self, files: Sequence[ListedFile]) -> Iterator[ListedFile]:
        """Yield the files that are not reached by now, below the location that was asked for, and
        not in the folder of another table."""
        for file in files:
            is_within = self._within is None or self._within.is_below_root(file.location)
            if is_within and self._is_unneeded(file):
                yield file

    def _is_unneeded(self, file: ListedFile) -> bool:
        """Return whether a file is not reached by now, and not in the folder of another table."""
        name = self._names.of_stored(file.location)
        return not self.reached.has_stored(_needed_as(file.location)) and not any(
            _is_below(name, folder) for folder in self._other_tables
        )

    def _may_go(self, file: ListedFile) -> bool:
        """Return whether a file is the table's to delete. A link is not, and neither is Hadoop's
        file that names the newest metadata. If a REST server does not say which metadata file is
        the current one, none is."""
        name = file.location.rpartition("/")[2]
        return (
            name != VERSION_HINT
            and bool(self._table.metadata_location or not _is_version(file.location))
            and self._folders.has(file.location)
            and real_file(file.location) is None
        )

    def _check_other_tables(self, metadata_files: Sequence[str]) -> None:
        """Raise ValidationException if one of these metadata files is another table's. That table's
        files could not be distinguished from orphans."""
        uuids = map_in_threads(_THREADS, partial(_uuid_of, self._table.files), metadata_files)
        for location, uuid in zip(metadata_files, uuids, strict=True):
            if uuid is not None:
                self._check_uuid(uuid, location)

    def _check_uuid(self, uuid: str, location: str) -> None:
        if uuid != self._uuid:
            raise ValidationException(
                f"{location} is the metadata of another table, {uuid}, in the folder of this one, "
                f"{self._uuid}. Its files could not be distinguished from orphan files, so nothing "
                "was deleted. If that table was dropped, delete this file"
            )


def _without_mismatches(
    files: tuple[ListedFile, ...], search: _Search, mode: PrefixMismatchMode
) -> tuple[ListedFile, ...]:
    if mode == "delete":
        return files
    mismatches = {}
    for file in files:
        needed = search.reached.on_another_host(_needed_as(file.location))
        if needed is not None:
            mismatches[file.location] = needed
    if mismatches and mode == "error":
        location, needed = next(iter(mismatches.items()))
        error = ValidationException(
            f"the table needs {len(mismatches)} files that differ from files in its folders only "
            f"in the bucket or host, such as {needed} and {location}: nothing was deleted. If they "
            "are the same files, choose 'ignore'; if they certainly are not, 'delete'"
        )
        error.parameter = "prefix_mismatch_mode"  # type: ignore[attr-defined]
        raise error
    return tuple(file for file in files if file.location not in mismatches)


def _needed_as(location: str) -> str:
    """Return the location that decides whether a file is needed: its own, or for a checksum file of
    Hadoop that of the file with this checksum."""
    folder, slash, name = location.rpartition("/")
    return folder + slash + (with_checksum(name) or name)


def _is_below(name: bytes, folder: bytes) -> bool:
    """Return whether a file is below a folder. The table's own folder has the empty name."""
    return not folder or name.startswith(folder + b"/")


def _folder(name: bytes) -> bytes:
    return name.rpartition(b"/")[0]


def _is_version(location: str) -> bool:
    return location.endswith(METADATA_ENDINGS)


def _uuid_of(files: TableFiles, location: str) -> str | None:
    """Return the UUID of the table in a metadata file; None if the file is gone or has none."""
    try:
        with new_input(files.inner, location).open() as stream:
            beginning: Any = stream.read(_BEGINNING)
    except FileNotFoundError:
        return None
    if beginning.startswith(b"\x1f\x8b"):
        try:
            beginning = zlib.decompressobj(31).decompress(beginning, _BEGINNING)
        except zlib.error as error:
            raise MetadataIntegrityError(
                f"this metadata file is damaged ({error}), so it is unknown whether it is another "
                "table's, and nothing was deleted. Delete it if no table needs it",
                file=location,
            ) from None
    match = _UUID.search(beginning)
    return None if match is None else match[1].decode("utf-8", "replace")


def remove_orphan_files(
    table: TableSession,
    older_than: Moment | None = None,
    *,
    location: str | None = None,
    prefix_mismatch_mode: PrefixMismatchMode = "error",
    no_other_writers: bool = False,
    dry_run: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> OrphanFiles:
    """Delete the files in the table's folders that nothing needs and that were last changed
    before ``older_than``; return them. The arguments are those of Iceberg's procedure.

    ``older_than`` is a ``datetime``, or an age such as ``"7d"`` or ``timedelta(7)``; the default is
    three days ago. Only its age distinguishes a file of a commit that is under way from an orphan
    file, so a limit of less than 24 hours is refused unless ``no_other_writers`` is true. A file
    stays if a snapshot, a branch or tag, the metadata log or the statistics have it, even under
    another spelling of its location. It also stays if its age is unknown. Folders of other tables
    stay. ``location`` is a folder of the table; only files below it are deleted. If the table needs
    a file with the same path in another bucket or on another host, ``prefix_mismatch_mode``
    decides: ``error`` (raise), ``ignore`` (the file stays) or ``delete``. ``dry_run`` deletes
    nothing. ``progress`` is called with the number of deleted files and the number of all. If the
    call is interrupted, call it again.

    The table is loaded again, so it is at its newest version afterwards. Raises ValueError or
    TypeError for invalid arguments, ValidationException if ``gc.enabled`` is not true, and as
    ``find_orphans``. If one manifest cannot be read, nothing is deleted. Files that could not be
    deleted are in ``OrphanFiles.failed``.
    """
    limit = age_limit(older_than, no_other_writers=no_other_writers)
    output = None if dry_run else table.output()
    orphans = find_orphans(
        table,
        limit,
        location=location,
        prefix_mismatch_mode=prefix_mismatch_mode,
        refresh=table.refresh,
    )
    return orphans if output is None else orphans.delete(output, table.folders, progress)

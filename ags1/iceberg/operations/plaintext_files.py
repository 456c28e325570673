"""Lists the unencrypted files that a migration has left, so that they can be deleted.

Everybody who could write to the storage may have changed the plaintext manifests that name these
files. So a file is deleted only if the encrypted table does not reach it, it is in the table's
folders, and it begins like an unencrypted file of a table.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pyiceberg.exceptions import ValidationException
from pyiceberg.io import FileIO

from ...columns.avro.container import AVRO_MAGIC
from ...errors import Ags1Error, MetadataIntegrityError
from ...host.pools import map_in_threads
from ...keys.manager import TABLE_KEY_ID
from ..read.metadata import is_plaintext, read_metadata
from ..read.records import read_entries
from ..read.statistics import list_statistics
from ..spec.constants import ORC_MAGIC, PARQUET_MAGIC, PUFFIN_MAGIC
from ..storage.locations import file_identity
from ..storage.output import TableOutput
from ..storage.table_files import TableFiles
from ..storage.table_folders import TableFolders
from ..storage.trust import Trust
from ..write.view import TableView
from .deletion import GC_ENABLED, delete_files, logged_metadata, may_share_files
from .plain_snapshots import plain_manifests
from .reached_files import ReachedFiles

_READ_THREADS = 16
_UNREADABLE = (OSError, MetadataIntegrityError, NotImplementedError)
# The first bytes of unencrypted Parquet, Avro, Puffin and ORC files.
_BEGINNINGS = (PARQUET_MAGIC, AVRO_MAGIC, PUFFIN_MAGIC, ORC_MAGIC)


@dataclass(frozen=True, slots=True)
class PlaintextFiles:
    """The files of the snapshots of an unencrypted table: data and delete files, manifests,
    manifest lists and statistics, but not its metadata.json files.

    ``inside`` are those that can be deleted. ``outside`` are those that may be another table's,
    which are outside the table's own folders, and those that do not begin like a file of a table.
    If the table's ``gc.enabled`` is not true, all may be another table's.
    ``unreadable`` are files that could not be read, so the files that they name are not listed.
    ``folders`` are the table's folders.
    """

    inside: tuple[str, ...]
    outside: tuple[str, ...]
    unreadable: tuple[str, ...]
    folders: TableFolders = field(repr=False, compare=False)

    def delete(self, output: TableOutput) -> tuple[str, ...]:
        """Delete the files ``inside``; return those that could not be deleted, as
        ``deletion.delete_files``."""
        return delete_files(self.inside, output, self.folders)


def plaintext_files(
    before: Mapping[str, Any], after: Mapping[str, Any], files: TableFiles, folders: TableFolders
) -> PlaintextFiles:
    """Return the unencrypted files that a migration has left. Reads manifests; deletes nothing.

    ``before`` is the metadata that was migrated. ``after`` is the metadata of the encrypted table
    at any later time, and ``files`` opens its files. The result never has a file that ``after``
    reaches. ``folders`` are the table's folders. If the manifest list of a snapshot is outside
    them, its files are not listed, because anybody may have written it.

    Raises ValueError if ``before`` and ``after`` are not the same table before and after its
    migration, and what reading the encrypted table's manifests raises.
    """
    _check_versions(before, after)
    is_shared = any(may_share_files(table.get("properties")) for table in (before, after))
    needed = ReachedFiles(files, after["location"])
    needed.add_version(TableView(dict(after), files))
    inside: dict[str, str] = {}
    outside: dict[str, str] = {}
    unreadable: list[str] = []
    for location, is_own in _statistics_files(before, files, folders):
        (inside if is_own and not is_shared else outside)[file_identity(location)] = location
    for location in _plaintext_files(before, files.inner, folders, unreadable):
        is_own = not is_shared and folders.has(location)
        (inside if is_own else outside)[file_identity(location)] = location
    # A needed file may also be listed by another name.
    inside = {i: location for i, location in inside.items() if not needed.has(location)}
    begins = partial(_begins_as_tables, files=files)
    results = map_in_threads(_READ_THREADS, begins, list(inside.values()))
    for identity, is_tables in zip(list(inside), results, strict=True):
        if is_tables is None:
            del inside[identity]
        elif not is_tables:
            outside[identity] = inside.pop(identity)
    return PlaintextFiles(
        tuple(inside.values()),
        tuple(path for i, path in outside.items() if i not in inside and not needed.has(path)),
        tuple(unreadable),
        folders,
    )


def unencrypted_version(
    metadata: Mapping[str, Any], io: FileIO, folders: TableFolders
) -> tuple[str, dict[str, Any]] | None:
    """Return the location and the content of the newest earlier metadata file in ``folders`` that
    is still there and is not encrypted; None if there is none. A migration has encrypted it. Raises
    OSError."""
    for location in reversed(folders.versions(logged_metadata(metadata))):
        try:
            earlier = read_metadata(io, location, Trust())
        except (FileNotFoundError, MetadataIntegrityError):
            continue
        if is_plaintext(earlier):
            return location, earlier
    return None


def _check_versions(before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    if (after.get("properties") or {}).get(TABLE_KEY_ID) is None:
        raise ValueError(
            "the table is not encrypted, so it needs its unencrypted files: migrate it first"
        )
    if before.get("table-uuid") not in (None, after["table-uuid"]):
        raise ValueError(
            "the metadata before and after the migration is of two tables, "
            f"{before['table-uuid']} and {after['table-uuid']}: pass that of one"
        )


def check_owns_files(*versions: Mapping[str, Any]) -> None:
    """Raise ValidationException if other tables may have files of the table too. ``versions`` are
    metadata of the table."""
    if any(may_share_files(metadata.get("properties")) for metadata in versions):
        raise ValidationException(
            f"the unencrypted files cannot be deleted: the table's property {GC_ENABLED!r} is not "
            "true, or was not when it was migrated, so other tables may have them too. Set it to "
            "true before the migration if no other table has them, or migrate without deleting"
        )


def _statistics_files(
    metadata: Mapping[str, Any], files: TableFiles, folders: TableFolders
) -> Iterator[tuple[str, bool]]:
    """Yield the statistics files that exist, each with whether it is certainly the table's."""
    for _, entry in list_statistics(metadata):
        location = entry["statistics-path"]
        try:
            yield location, folders.has_statistics(location, files)
        except FileNotFoundError:
            continue
        except (Ags1Error, OSError):
            yield location, False


def _begins_as_tables(location: str, files: TableFiles) -> bool | None:
    """Return whether a file is a regular file and begins like an unencrypted file of a table; None
    if it is missing. This is checked because others may be able to change the plaintext manifests
    that name it."""
    try:
        path = files.local_path(location)
        if path is not None and not stat.S_ISREG(os.lstat(path).st_mode):
            return False
        with closing(files.open_stored(location)) as stream:
            return stream.read(4).startswith(_BEGINNINGS)
    except FileNotFoundError:
        return None
    except (Ags1Error, OSError):
        return False


def _plaintext_files(
    metadata: Mapping[str, Any], io: FileIO, folders: TableFolders, unreadable: list[str]
) -> Iterator[str]:
    """Yield the files that the snapshots of an unencrypted table reach. If a manifest list is
    outside the table's folders, yield only that. ``unreadable`` collects what cannot be read."""
    read: set[str] = set()
    for snapshot in metadata.get("snapshots") or ():
        location = str(snapshot.get("manifest-list"))
        if snapshot.get("manifest-list") is not None and not folders.has(location):
            yield location
            continue
        try:
            manifests = plain_manifests(snapshot, io)
        except _UNREADABLE:
            unreadable.append(location)
            continue
        yield location
        for manifest in manifests:
            path = manifest.manifest_path
            if path in read:
                continue
            read.add(path)
            try:
                entries = read_entries(manifest, io)
            except _UNREADABLE:
                unreadable.append(path)
                continue
            yield path
            for entry in entries:
                yield entry.file.file_path

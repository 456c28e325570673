"""Finds files in a table's folders that no snapshot has, for ``verify_table``.

Metadata files need no snapshot: the metadata log names them. But a metadata file that the log does
not name, and that is newer than the log's oldest one, is of a commit that failed or was killed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pyiceberg.table.metadata import TableMetadata

from ....errors import Ags1Error
from ...commit.session import TableSession
from ...storage.listing import list_files
from ...storage.table_files import TableFiles
from .checks import Check, CheckKind
from .file_index import FileIndex
from .findings import Findings, finding_of

# Where Iceberg's table properties may put files besides the table's own folder.
_FOLDER_PROPERTIES = ("write.data.path", "write.metadata.path", "write.object-storage.path")


def unreferenced_files(
    table: TableSession, index: FileIndex, findings: Findings
) -> Iterator[Check]:
    """Yield a check for each file in the table's folders that is not in ``index``. A folder that
    cannot be listed is a finding."""
    metadata = table.metadata
    versions = _MetadataVersions(metadata, table.metadata_location)
    folders = [metadata.location]
    for name in _FOLDER_PROPERTIES:
        location = metadata.properties.get(name)
        if location and not index.is_below_root(location):
            folders.append(location)
    for folder in folders:
        for location in _listed(folder, table.files, findings):
            name = location.rpartition("/")[2]
            if not index.has_stored(location) and (
                not _needs_no_snapshot(name) or versions.is_of_failed_commit(name)
            ):
                yield Check(CheckKind.UNREFERENCED, location)


def _listed(folder: str, files: TableFiles, findings: Findings) -> Iterator[str]:
    """Yield the real locations of the files in a folder. Add a finding if it cannot be listed."""
    try:
        locations = list_files(files.inner, files.stored_location(folder))
        if locations is None:
            findings.add(
                "folder-not-listed",
                f"{type(files.inner).__name__} cannot list files, so files that no "
                "snapshot has were not searched for in this folder",
                folder,
            )
            return
        yield from locations
    except (Ags1Error, OSError) as error:
        findings.append(finding_of(error, folder, ()))
    except (ValueError, ImportError) as error:
        findings.add("metadata", f"this location is not valid: {error}", folder)


class _MetadataVersions:
    """The names of the metadata files in the metadata log, and of the current one."""

    def __init__(self, metadata: TableMetadata, current: str) -> None:
        locations = [*(entry.metadata_file for entry in metadata.metadata_log), current]
        self._names = {location.rpartition("/")[2] for location in locations}
        self._oldest = min((_version(name) or 0 for name in self._names), default=0)

    def is_of_failed_commit(self, name: str) -> bool:
        version = _version(name)
        return version is not None and version >= self._oldest and name not in self._names


def _version(name: str) -> int | None:
    """Return the number at the beginning of a metadata file's name; None if there is none."""
    match = re.fullmatch(r"(\d+)-[^/]*\.metadata\.json", name)
    return None if match is None else int(match[1])


def _needs_no_snapshot(name: str) -> bool:
    """Return whether a file is a version of the metadata, which is unencrypted by design, or a
    checksum file of Hadoop."""
    return (
        name.endswith((".metadata.json", ".metadata.json.gz", ".crc"))
        or name == "version-hint.text"
    )

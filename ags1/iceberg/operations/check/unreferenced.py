"""Finds files in a table's folders that no snapshot has, for checks of it.

Metadata files need no snapshot: the metadata log names them. But a metadata file that the log does
not name, and that is newer than the log's oldest one, is of a commit that failed or was killed.
"""

from __future__ import annotations

from collections.abc import Iterator

from ....errors import Ags1Error
from ...commit.session import TableSession
from ...storage.listing import list_files
from ...storage.table_files import TableFiles
from ..own_folders import MetadataVersions, folders_to_list, is_metadata
from .checks import Check, CheckKind
from .file_index import FileIndex
from .findings import Findings, finding_of


def unreferenced_files(
    table: TableSession, index: FileIndex, findings: Findings, is_complete: bool
) -> Iterator[Check]:
    """Yield a check for each file in the table's folders that is not in ``index``. A folder that
    cannot be listed is a finding, and so is an index that is not complete: then any file may be one
    that a snapshot has."""
    if not is_complete:
        message = "a manifest list or a manifest could not be read, so it is not known which files "
        message += "no snapshot has"
        findings.add("orphans-not-searched", message, table.metadata.location)
        return
    metadata = table.version.json
    versions = MetadataVersions(metadata, table.metadata_location)
    for folder in folders_to_list(metadata, index.stored):
        for location in _listed(folder, table.files, findings):
            name = location.rpartition("/")[2]
            if not index.has_stored(location) and (
                not (is_metadata(name) or name.endswith(".crc"))
                or versions.is_of_failed_commit(name)
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

"""Snapshots of a table in the clear, read into the same values as those of an encrypted one.

PyIceberg reads manifests of version 3 as those of version 2 and drops row ids and deletion vectors'
places, so the shapes of ``snapshots`` are used, without keys. Follows the Iceberg specification,
"Manifests", of versions 1 to 3. Knows nothing of what becomes of the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from pyiceberg.expressions import AlwaysFalse
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestEntry, ManifestFile
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata

from ..deletes import PuffinCache
from ..files import TableFiles
from ..pyiceberg_internals import (
    MANIFEST_FILE_KEY_METADATA,
    MANIFEST_LIST_FILE_SCHEMAS,
    ManifestContent,
    ManifestEntryStatus,
    PartitionFieldSummary,
    RecordShape,
    inherit_from_manifest,
    read_avro_records,
)
from ..reading import TaskReader
from ..snapshots import MANIFEST, ContentFile, unreadable


class PlainManifest(ManifestFile):
    """A manifest in the clear."""

    def fetch_manifest_entry(self, io: FileIO, discard_deleted: bool = True) -> list[ManifestEntry]:
        """Return the manifest's entries. Raises MetadataIntegrityError when it cannot be parsed,
        NotImplementedError when a file has a key."""
        _, records = _parsed("manifest", self.manifest_path, read_plain(io, self.manifest_path))
        entries = []
        for entry in records:
            if discard_deleted and entry.status == ManifestEntryStatus.DELETED:
                continue
            entry = inherit_from_manifest(entry, self)
            file = cast("ContentFile", entry.data_file)
            file.conceal()
            if file.is_encrypted:
                raise NotImplementedError(
                    f"{file.file_path} has key metadata, in a table that is not encrypted: it is "
                    "not known what it opens"
                )
            entries.append(entry)
        return entries


class PlainReader(TaskReader):
    """Reads the delete files of a table in the clear; takes no row of a data file."""

    def __init__(self, files: TableFiles, metadata: TableMetadata) -> None:
        super().__init__(files, metadata, Schema(), AlwaysFalse())
        self._puffins = _PlainPuffins(files)


class _PlainPuffins(PuffinCache):
    def _read(self, path: str) -> bytes:
        return read_plain(self._files, path)


def plain_manifests(snapshot: Mapping[str, Any], io: FileIO) -> list[ManifestFile]:
    """Return the manifests of a snapshot, which is as metadata.json has it.

    Raises NotImplementedError for a snapshot without a manifest list, as the first writers of
    version 1 left them, MetadataIntegrityError when it cannot be parsed, and OSError.
    """
    location = snapshot.get("manifest-list")
    if location is None:
        raise NotImplementedError(
            f"snapshot {snapshot['snapshot-id']} has no manifest list: append to the table first"
        )
    _, records = _parsed("manifest list", location, read_plain(io, location), _MANIFEST_LIST)
    for manifest in records:
        if manifest._data[MANIFEST_FILE_KEY_METADATA] is not None:
            raise NotImplementedError(
                f"{manifest.manifest_path} has key metadata, in a table that is not encrypted: "
                "it is not known what it opens"
            )
    return cast("list[ManifestFile]", records)


def read_plain(io: FileIO, location: str) -> bytes:
    """Return a file's bytes."""
    with io.new_input(location).open() as stream:
        return bytes(stream.read())


def _parsed(
    what: str, location: str, data: bytes, shape: RecordShape = MANIFEST
) -> tuple[dict[str, str], list[Any]]:
    try:
        return read_avro_records(data, shape)
    except Exception as error:
        raise unreadable(what, location, error) from error


_MANIFEST_LIST = RecordShape(
    MANIFEST_LIST_FILE_SCHEMAS[3],
    {-1: PlainManifest, 508: PartitionFieldSummary},
    {517: ManifestContent},
)

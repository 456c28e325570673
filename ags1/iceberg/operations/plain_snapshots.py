"""Reads the snapshots of an unencrypted table into the same records as those of an encrypted one.

PyIceberg reads manifests of version 3 as if they were of version 2: it drops row IDs and the
offsets of deletion vectors. So this module uses the record shapes of ``read.snapshots``, without
keys. It follows the Iceberg specification, "Manifests", versions 1 to 3. Only ``migrate`` needs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestContent, ManifestEntry, PartitionFieldSummary
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata

from ..pyiceberg.records import MANIFEST_LIST_FILE_SCHEMAS, RecordShape
from ..read.binding import NO_ROW
from ..read.deletes import PuffinCache
from ..read.records import DELETED, Manifest
from ..read.snapshots import MANIFEST, parsed
from ..read.tasks import TaskReader
from ..storage.locations import new_input
from ..storage.table_files import TableFiles


class PlainManifest(Manifest):
    """An unencrypted manifest."""

    def fetch_manifest_entry(self, io: FileIO, discard_deleted: bool = True) -> list[ManifestEntry]:
        """Return the manifest's entries. Raises MetadataIntegrityError if it cannot be parsed, and
        NotImplementedError if a file has a key."""
        path = self.manifest_path
        _, records = parsed("manifest", path, read_plain(io, path), MANIFEST)
        entries: list[ManifestEntry] = []
        for entry in self.inherited(records):
            if discard_deleted and entry.status == DELETED:
                continue
            if entry.file.is_encrypted:
                raise NotImplementedError(
                    f"{entry.file.file_path} has key metadata, but its table is not encrypted: it "
                    "is unknown how to decrypt the file. Rewrite it without a key first"
                )
            entries.append(entry)
        return entries


class _PlainPuffins(PuffinCache):
    def _read(self, path: str) -> bytes:
        return read_plain(self.files, path)


def plain_reader(files: TableFiles, metadata: TableMetadata) -> TaskReader:
    """Return a reader of an unencrypted table's delete files. Its filter matches no row."""
    return TaskReader(files, metadata, Schema(), NO_ROW, puffins=_PlainPuffins(files))


def plain_manifests(snapshot: Mapping[str, Any], io: FileIO) -> list[PlainManifest]:
    """Return the manifests of ``snapshot``, an entry of metadata.json. Raises NotImplementedError
    for a snapshot without a manifest list, as early writers of version 1 wrote them;
    MetadataIntegrityError if the list cannot be parsed; OSError."""
    location = snapshot.get("manifest-list")
    if location is None:
        raise NotImplementedError(
            f"snapshot {snapshot['snapshot-id']} has no manifest list: append to the table first"
        )
    _, records = parsed("manifest list", location, read_plain(io, location), _MANIFEST_LIST)
    manifests = cast("list[PlainManifest]", records)
    for manifest in manifests:
        manifest.conceal()
        if not manifest.is_plaintext:
            raise NotImplementedError(
                f"{manifest.manifest_path} has key metadata, but its table is not encrypted: it is "
                "unknown how to decrypt the manifest. Rewrite it without a key first"
            )
    return manifests


def read_plain(io: FileIO, location: str) -> bytes:
    """Return a file's bytes."""
    with new_input(io, location).open() as stream:
        return bytes(stream.read())


_MANIFEST_LIST = RecordShape(
    MANIFEST_LIST_FILE_SCHEMAS[3],
    {-1: PlainManifest, 508: PartitionFieldSummary},
    {517: ManifestContent},
)

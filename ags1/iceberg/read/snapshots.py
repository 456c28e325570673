"""Snapshots, manifests and entries of an encrypted table. Each is decrypted with its own key.

The keys form a chain::

    metadata.json:  the snapshot's key-id  -> the key of the manifest list
    manifest list:  field 519              -> the key of each manifest
    manifest:       field 131              -> the key of each data or delete file

If a key is missing, that is an error here, except for data files; Java treats the file as not
encrypted. Plaintext manifests are not read: see ``docs/design/0007-exposed-keys.md``. The classes
are PyIceberg's or subclasses, so that scans, ``inspect`` and time travel
work with them. PyIceberg's fields do not show the keys.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, cast

from pydantic import Field
from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntryStatus,
    ManifestFile,
    PartitionFieldSummary,
)
from pyiceberg.manifest import ManifestEntry as PyIcebergEntry
from pyiceberg.table.snapshots import Snapshot

from ...engine.key_metadata import KeyMetadata
from ...errors import MetadataIntegrityError, NotEncryptedError
from ..pyiceberg.records import (
    MANIFEST_ENTRY_SCHEMAS,
    MANIFEST_LIST_FILE_SCHEMAS,
    RecordShape,
    read_avro_records,
    record_values,
)
from ..storage.table_files import TableFiles
from .records import DATA, DELETED, ContentFile, Manifest, ManifestEntry, parse_key


class EncryptedManifest(Manifest):
    """A manifest of an encrypted table."""

    def check_encrypted(self) -> None:
        """Raise NotEncryptedError if the manifest list has no key for this manifest."""
        if self.is_plaintext:
            raise NotEncryptedError(
                "the manifest list has no key for this manifest, and the table is encrypted: the "
                "manifest is plaintext, and so are the keys of the files that it lists. "
                "rekey(exposed=True), or 'ags1 table rekey --exposed', puts those files under "
                "fresh keys and encrypts the manifest. Do not use rewrite_manifests of Iceberg "
                "before 1.12, which writes such manifests itself",
                file=self.manifest_path,
            )

    @property
    def key(self) -> KeyMetadata:
        """The manifest's key. Raises NotEncryptedError if there is none; KeyMetadataError;
        MetadataIntegrityError if the lengths in the manifest list and in the key differ."""
        self.check_encrypted()
        assert self._key_bytes is not None
        return parse_key(self._key_bytes, self.manifest_path, self.manifest_length)

    def fetch_manifest_entry(
        self, io: FileIO, discard_deleted: bool = True
    ) -> list[PyIcebergEntry]:
        """Return the manifest's entries. ``io`` is the table's.

        Raises AuthenticationError, TruncatedError and FormatError if the file is not the manifest
        that the manifest list names, and NotEncryptedError if a delete file has no key. A plaintext
        manifest is read only if ``io`` allows it. If it has not as many files and rows as the
        manifest list says, this raises MetadataIntegrityError.
        """
        files = to_table_files(io)
        if self.is_plaintext and files.reads_exposed:
            # This is not cached, because the plaintext file may change.
            path, length = self.manifest_path, self.manifest_length
            records = parsed("manifest", path, files.read_exposed(path, length), MANIFEST)[1]
            entries = self._checked(records)
        else:
            # The values that entries inherit are part of the key of the cache.
            cache_key = (
                *(self.manifest_path, self.manifest_length, self._key_bytes, self.sequence_number),
                *(self.added_snapshot_id, self.partition_spec_id, self.first_row_id),
            )
            read = functools.partial(self._read, files)
            entries = files.cached(cache_key, self.manifest_length, read)
        return [entry for entry in entries if not discard_deleted or entry.status != DELETED]

    def live_files(self, io: FileIO) -> list[tuple[str, bool]]:
        """Return the location of each file that is listed and not removed, and whether it is a data
        file. This takes less time than reading entries. Raises as ``fetch_manifest_entry``."""
        files = to_table_files(io)
        if self.is_plaintext:
            listed = [entry.data_file for entry in self.fetch_manifest_entry(files)]
            return [(file.file_path, file.content == DATA) for file in listed]
        path, found = self.manifest_path, []
        _, records = parsed("manifest", path, files.read_encrypted(path, self.key), _LOCATIONS)
        for status, file in map(record_values, records):
            content, location, key = record_values(file)
            if content != DATA and key is None:
                raise _not_encrypted(location)
            if status != DELETED:
                found.append((location, content == DATA))
        return found

    def _read(self, files: TableFiles) -> list[ManifestEntry]:
        path = self.manifest_path
        _, records = parsed("manifest", path, files.read_encrypted(path, self.key), MANIFEST)
        return self._checked(records)

    def _checked(self, records: list[ManifestEntry]) -> list[ManifestEntry]:
        if self.is_plaintext:
            self._check_counts(records)
        entries = self.inherited(records)
        for file in (entry.file for entry in entries):
            if file.content != DATA and not file.is_encrypted:
                raise _not_encrypted(file.file_path)
        return entries

    def _check_counts(self, entries: Sequence[ManifestEntry]) -> None:
        """Compare an unauthenticated manifest with the counts in its manifest list."""
        stated = {
            ManifestEntryStatus.ADDED: (self.added_files_count, self.added_rows_count),
            ManifestEntryStatus.EXISTING: (self.existing_files_count, self.existing_rows_count),
            ManifestEntryStatus.DELETED: (self.deleted_files_count, self.deleted_rows_count),
        }
        for status, (file_count, row_count) in stated.items():
            rows = [e.data_file.record_count for e in entries if e.status == status]
            if file_count not in (None, len(rows)) or row_count not in (None, sum(rows)):
                raise MetadataIntegrityError(
                    f"the plaintext manifest has {len(rows)} {status.name.lower()} files of "
                    f"{sum(rows)} rows, but the manifest list says {file_count} of {row_count}: it "
                    "was changed. Restore it from a backup",
                    file=self.manifest_path,
                )


class EncryptedSnapshot(Snapshot):
    """A snapshot of an encrypted table. ``key_id`` names the key of its manifest list."""

    key_id: str | None = Field(alias="key-id", default=None)

    def manifests(self, io: FileIO) -> list[ManifestFile]:
        """Return the snapshot's manifests. ``io`` is the table's.

        Raises NotEncryptedError if the snapshot or a manifest has no key; KeyMetadataError and
        AuthenticationError if the key cannot be unwrapped; MetadataIntegrityError if the manifest
        list is that of another snapshot, or names a manifest twice with different keys; KmsError.
        """
        if self.key_id is None:
            raise NotEncryptedError(
                f"snapshot {self.snapshot_id} has no key-id, although the table is encrypted: its "
                "manifest list is plaintext, or somebody changed metadata.json",
                file=self.manifest_list,
            )
        files = to_table_files(io)
        key_metadata = files.keys.manifest_list_key(self.key_id)
        cache_key = self.manifest_list, key_metadata.encoded(), self.snapshot_id
        read = functools.partial(self._read, files, key_metadata)
        manifests = files.cached(cache_key, key_metadata.file_length or 0, read)
        if not files.reads_exposed:
            for manifest in manifests:
                manifest.check_encrypted()
        return list(manifests)

    def _read(self, files: TableFiles, key_metadata: KeyMetadata) -> list[EncryptedManifest]:
        path = self.manifest_list
        header, records = parsed(
            "manifest list", path, files.read_encrypted(path, key_metadata), MANIFEST_LIST
        )
        manifests = cast("list[EncryptedManifest]", records)
        # The header is authenticated with the list; the snapshot ID in metadata.json is not.
        written_for = header.get("snapshot-id")
        if written_for is not None and written_for != str(self.snapshot_id):
            raise MetadataIntegrityError(
                f"the manifest list of snapshot {self.snapshot_id} was written for snapshot "
                f"{written_for}: somebody changed metadata.json",
                file=self.manifest_list,
            )
        keys: dict[str, object] = {}
        for manifest in manifests:
            manifest.conceal()
            if keys.setdefault(manifest.manifest_path, manifest.key_bytes) != manifest.key_bytes:
                raise MetadataIntegrityError(
                    "the manifest list names this manifest twice, with different keys",
                    file=manifest.manifest_path,
                )
        return manifests


def _not_encrypted(location: str) -> NotEncryptedError:
    return NotEncryptedError(
        "a delete file of an encrypted table has no key: it is not encrypted", file=location
    )


def to_table_files(io: FileIO) -> TableFiles:
    """Return the table's files. Another library may have wrapped them, as Polars does. Raises
    TypeError if ``io`` is something else, because that has no keys."""
    files = io if isinstance(io, TableFiles) else getattr(io, "table_files", None)
    if not isinstance(files, TableFiles):
        raise TypeError(
            f"an encrypted table is read with its own io, not {type(io).__name__}: pass table.io"
        )
    return files


def parsed(
    what: str, location: str, data: bytes, shape: RecordShape
) -> tuple[dict[str, str], list[Any]]:
    """Return the header and the records of a manifest or manifest list. Its ``data`` have keys, so
    no variable of the caller holds them. Raises MetadataIntegrityError if they cannot be parsed."""
    try:
        return read_avro_records(data, shape)
    except Exception as error:
        kind = type(error).__name__
    finally:
        data = b""
    # Raised out here, without the other error as its context: that may quote a record with a key.
    raise MetadataIntegrityError(
        f"the {what} was read, but it cannot be parsed ({kind})", file=location
    )


MANIFEST_LIST = RecordShape(
    MANIFEST_LIST_FILE_SCHEMAS[3],
    {-1: EncryptedManifest, 508: PartitionFieldSummary},
    {517: ManifestContent},
)
_ENUMS = {0: ManifestEntryStatus, 101: FileFormat, 134: DataFileContent}
MANIFEST = RecordShape(MANIFEST_ENTRY_SCHEMAS[3], {-1: ManifestEntry, 2: ContentFile}, _ENUMS)
# The status of each entry, and of its file the content, the location and the key.
_LOCATIONS = RecordShape(MANIFEST_ENTRY_SCHEMAS[3], {}, _ENUMS, only={0, 2, 134, 100, 131})

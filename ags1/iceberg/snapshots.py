"""Snapshots, manifests and their entries of an encrypted table, each opened with its own key.

The chain: the snapshot's ``key-id`` opens the manifest list, field 519 of which opens each
manifest, field 131 of which opens each data file. A link that is missing is an error here: Java
takes it for "not encrypted". The classes are PyIceberg's, so that scans, ``inspect`` and time
travel go through them; keys are kept out of what those classes show. Knows nothing of scans.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn, cast

from pydantic import Field
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestFile
from pyiceberg.table.snapshots import Snapshot

from ..errors import Ags1Error, MetadataIntegrityError, NotEncryptedError
from ..key_metadata import KeyMetadata
from .files import TableFiles
from .pyiceberg_internals import (
    DATA_FILE_KEY_METADATA,
    MANIFEST_ENTRY_SCHEMAS,
    MANIFEST_FILE_KEY_METADATA,
    MANIFEST_LIST_FILE_SCHEMAS,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    PartitionFieldSummary,
    RecordShape,
    inherit_from_manifest,
    read_avro_records,
)

_REFERENCED_DATA_FILE, _CONTENT_OFFSET, _CONTENT_SIZE = 17, 18, 19


class ContentFile(DataFile):
    """A data or delete file of an encrypted table.

    ``key_metadata``, which PyIceberg shows and prints, is None; ``key`` is the real one. Several
    deletion vectors lie in one file, so where one begins is part of its identity. Not pickled.
    """

    _key_bytes: bytes | None = None

    @classmethod
    def of_record(cls, record: Sequence[Any], spec_id: int, km: KeyMetadata | None) -> ContentFile:
        """Return a file of what ``record`` gave of it, in this process or another."""
        file = cls(*record)
        file.spec_id = spec_id
        file._key_bytes = None if km is None else km.to_bytes()
        return file

    @property
    def record(self) -> list[Any]:
        """The values of the manifest's record, in its order and without the key."""
        return list(self._data)

    def conceal(self) -> None:
        """Take the key out of the record's fields, once it is read."""
        self._key_bytes = self._data[DATA_FILE_KEY_METADATA]
        self._data[DATA_FILE_KEY_METADATA] = None

    @property
    def is_encrypted(self) -> bool:
        """Whether the file has a key."""
        return self._key_bytes is not None

    @property
    def key(self) -> KeyMetadata | None:
        """What opens the file, None where it is in the clear.

        Raises KeyMetadataError, and MetadataIntegrityError when the lengths of the manifest entry
        and of the key metadata differ.
        """
        if self._key_bytes is None:
            return None
        return _parsed_key(self._key_bytes, self.file_path, self.file_size_in_bytes)

    @property
    def column_sizes(self) -> dict[int, int]:
        # ``inspect.entries`` fails on a file without them, as deletion vectors are.
        return super().column_sizes or {}

    @property
    def referenced_data_file(self) -> str | None:
        """The data file that all deletes of this delete file are of."""
        return cast("str | None", self._data[_REFERENCED_DATA_FILE])

    @property
    def content_offset(self) -> int | None:
        """Where a deletion vector begins in the Puffin file's plaintext (bytes)."""
        return cast("int | None", self._data[_CONTENT_OFFSET])

    @property
    def content_size_in_bytes(self) -> int | None:
        """The size of the deletion vector there."""
        return cast("int | None", self._data[_CONTENT_SIZE])

    @property
    def is_deletion_vector(self) -> bool:
        return (
            self.content == DataFileContent.POSITION_DELETES
            and self.file_format == FileFormat.PUFFIN
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ContentFile):
            return NotImplemented
        return (self.file_path, self.content_offset) == (other.file_path, other.content_offset)

    def __hash__(self) -> int:
        return hash((self.file_path, self.content_offset))

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a file of an encrypted table holds its key and is not pickled or copied")


class EncryptedManifest(ManifestFile):
    """A manifest of an encrypted table. ``key_metadata`` is None, ``key`` the real one."""

    _key_bytes: bytes | None = None

    def conceal(self) -> None:
        """Take the key out of the record's fields, once it is read."""
        self._key_bytes = self._data[MANIFEST_FILE_KEY_METADATA]
        self._data[MANIFEST_FILE_KEY_METADATA] = None

    @property
    def is_plaintext(self) -> bool:
        """Whether the manifest list has no key for this manifest."""
        return self._key_bytes is None

    @property
    def key(self) -> KeyMetadata:
        """What opens the manifest. Raises NotEncryptedError when there is nothing,
        KeyMetadataError, MetadataIntegrityError when the lengths stated differ."""
        if self._key_bytes is None:
            raise NotEncryptedError(
                "the manifest list has no key for this manifest, and the table is encrypted: the "
                "manifest is plaintext, and so are the keys of the files that it lists. "
                "rekey(exposed=True), or 'ags1 table rekey --exposed', puts those files under "
                "fresh keys and encrypts the manifest. Do not use rewrite_manifests of Iceberg "
                "before 1.12, which writes such manifests itself",
                file=self.manifest_path,
            )
        return _parsed_key(self._key_bytes, self.manifest_path, self.manifest_length)

    def fetch_manifest_entry(self, io: FileIO, discard_deleted: bool = True) -> list[ManifestEntry]:
        """Return the manifest's entries. ``io`` is the table's.

        Raises AuthenticationError, TruncatedError, FormatError for a manifest that is not the one
        of the manifest list, and NotEncryptedError for a delete file without a key. A plaintext
        manifest is read if ``io`` says so; MetadataIntegrityError, if it has not as many files and
        rows as the manifest list says.
        """
        files = files_of(io)
        if self.is_plaintext and files.reads_exposed:
            data = files.read_exposed(self.manifest_path, self.manifest_length)
        else:
            data = files.read_encrypted(self.manifest_path, self.key)
        _, records = _parsed("manifest", self.manifest_path, data, MANIFEST)
        if self.is_plaintext:
            self._check_counts(records)
        entries = []
        for entry in records:
            if discard_deleted and entry.status == ManifestEntryStatus.DELETED:
                continue
            entry = inherit_from_manifest(entry, self)
            file = cast("ContentFile", entry.data_file)
            file.conceal()
            if file.content != DataFileContent.DATA and not file.is_encrypted:
                raise NotEncryptedError(
                    "a delete file of an encrypted table has no key", file=file.file_path
                )
            entries.append(entry)
        return entries

    def _check_counts(self, entries: Sequence[ManifestEntry]) -> None:
        """Compare what nothing authenticates with what the manifest list says."""
        stated = {
            ManifestEntryStatus.ADDED: (self.added_files_count, self.added_rows_count),
            ManifestEntryStatus.EXISTING: (self.existing_files_count, self.existing_rows_count),
            ManifestEntryStatus.DELETED: (self.deleted_files_count, self.deleted_rows_count),
        }
        for status, counts in stated.items():
            rows = [e.data_file.record_count for e in entries if e.status == status]
            found = len(rows), sum(rows)
            if any(n is not None and n != m for n, m in zip(counts, found, strict=True)):
                raise MetadataIntegrityError(
                    f"the plaintext manifest has {found[0]} {status.name.lower()} files of "
                    f"{found[1]} rows, and the manifest list says {counts[0]} of {counts[1]}: it "
                    "was changed",
                    file=self.manifest_path,
                )

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a manifest of an encrypted table holds its key and is not pickled")


class EncryptedSnapshot(Snapshot):
    """A snapshot of an encrypted table; ``key_id`` names the key of its manifest list."""

    key_id: str | None = Field(alias="key-id", default=None)

    def manifests(self, io: FileIO) -> list[ManifestFile]:
        """Return the snapshot's manifests. ``io`` is the table's.

        Raises NotEncryptedError when the snapshot or a manifest has no key, KeyMetadataError and
        AuthenticationError when its key does not open, MetadataIntegrityError when the manifest
        list is another snapshot's or names a manifest twice with different keys, KmsError.
        """
        if self.key_id is None:
            raise NotEncryptedError(
                f"snapshot {self.snapshot_id} has no key-id, and the table is encrypted",
                file=self.manifest_list,
            )
        files = files_of(io)
        data = files.read_encrypted(self.manifest_list, files.keys.manifest_list_key(self.key_id))
        header, records = _parsed("manifest list", self.manifest_list, data, MANIFEST_LIST)
        manifests = cast("list[EncryptedManifest]", records)
        # The header is as authentic as the rest, and metadata.json is not.
        written_for = header.get("snapshot-id")
        if written_for is not None and written_for != str(self.snapshot_id):
            raise MetadataIntegrityError(
                f"the manifest list of snapshot {self.snapshot_id} was written for snapshot "
                f"{written_for}",
                file=self.manifest_list,
            )
        keys: dict[str, bytes | None] = {}
        for manifest in manifests:
            manifest.conceal()
            if keys.setdefault(manifest.manifest_path, manifest._key_bytes) != manifest._key_bytes:
                raise MetadataIntegrityError(
                    "the manifest list names this manifest twice, with different keys",
                    file=manifest.manifest_path,
                )
            if manifest.is_plaintext and not files.reads_exposed:
                _ = manifest.key
        return cast("list[ManifestFile]", manifests)


def files_of(io: FileIO) -> TableFiles:
    """Return the table's files. Raises TypeError when ``io`` is something else: it has no keys."""
    if not isinstance(io, TableFiles):
        raise TypeError(f"an encrypted table is read through its own io, not {type(io).__name__}")
    return io


def _parsed_key(key_bytes: bytes, location: str, length: int) -> KeyMetadata:
    try:
        km = KeyMetadata.from_bytes(key_bytes)
    except Ags1Error as error:
        error.file = location
        raise
    if km.file_length is not None and km.file_length != length:
        raise MetadataIntegrityError(
            f"the file's length is {length} in its entry and {km.file_length} in its key metadata",
            file=location,
        )
    return km


def _parsed(
    what: str, location: str, data: bytes, shape: RecordShape
) -> tuple[dict[str, str], list[Any]]:
    try:
        return read_avro_records(data, shape)
    except Exception as error:
        failure = unreadable(what, location, error)
    # Outside, so that the other error, which may quote a record with its key, is not its context.
    raise failure


def unreadable(what: str, location: str, error: Exception) -> MetadataIntegrityError:
    return MetadataIntegrityError(
        f"the {what} decrypts and cannot be parsed ({type(error).__name__})", file=location
    )


MANIFEST_LIST = RecordShape(
    MANIFEST_LIST_FILE_SCHEMAS[3],
    {-1: EncryptedManifest, 508: PartitionFieldSummary},
    {517: ManifestContent},
)
MANIFEST = RecordShape(
    MANIFEST_ENTRY_SCHEMAS[3],
    {-1: ManifestEntry, 2: ContentFile},
    {0: ManifestEntryStatus, 101: FileFormat, 134: DataFileContent},
)

"""Snapshots, manifests and entries of an encrypted table. Each is decrypted with its own key.

The keys form a chain::

    metadata.json:  the snapshot's key-id  -> the key of the manifest list
    manifest list:  field 519              -> the key of each manifest
    manifest:       field 131              -> the key of each data or delete file

If a key is missing, that is an error here, except for data files; Java treats the file as not
encrypted. The classes are PyIceberg's or subclasses, so that scans, ``inspect`` and time travel
work with them. PyIceberg's fields do not show the keys.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NoReturn, cast

from pydantic import Field
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestFile
from pyiceberg.table.snapshots import Snapshot

from ...errors import Ags1Error, MetadataIntegrityError, NotEncryptedError
from ...key_metadata import KeyMetadata
from ..pyiceberg.records import (
    DATA_FILE,
    MANIFEST_ENTRY_SCHEMAS,
    MANIFEST_FILE,
    MANIFEST_LIST_FILE_SCHEMAS,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    PartitionFieldSummary,
    RecordShape,
    inherit_from_manifest,
    read_avro_records,
)
from ..storage.table_files import TableFiles

_FILE_FORMAT = DATA_FILE["file_format"]
_FIRST_ROW_ID = DATA_FILE["first_row_id"]
_REFERENCED_DATA_FILE = DATA_FILE["referenced_data_file"]
_CONTENT_OFFSET = DATA_FILE["content_offset"]
_CONTENT_SIZE = DATA_FILE["content_size_in_bytes"]
_DATA_FILE_KEY = DATA_FILE["key_metadata"]
_MANIFEST_KEY = MANIFEST_FILE["key_metadata"]
_MANIFEST_FIRST_ROW_ID = MANIFEST_FILE["first_row_id"]


class ContentFile(DataFile):
    """A data or delete file of an encrypted table.

    ``key_metadata``, which PyIceberg shows and prints, is None; ``key`` is the real key. One Puffin
    file may have several deletion vectors, so the offset is part of the identity.
    ``sequence_number`` is that of the data. ``is_handed_out`` is true after a scan has given the
    file to its caller. It cannot be pickled.
    """

    _key_bytes: bytes | None = None
    sequence_number: int | None = None
    is_handed_out = False
    # PyIceberg's own __setattr__ handles a name that is not used here, and it slows planning down.
    __setattr__ = object.__setattr__  # type: ignore[assignment]

    @classmethod
    def of_record(
        cls,
        record: Sequence[Any],
        spec_id: int,
        km: KeyMetadata | None,
        sequence_number: int | None = None,
    ) -> ContentFile:
        """Return the file with the values of ``record``, which may come from another process."""
        file = cls(*record)
        file.spec_id = spec_id
        file.sequence_number = sequence_number
        file._key_bytes = None if km is None else km.to_bytes()
        return file

    @property
    def record(self) -> list[Any]:
        """The values of the manifest's record, in its order and without the key."""
        return [self[at] for at in range(len(self))]

    def conceal(self) -> None:
        """Move the key from the record's fields, which PyIceberg shows, to this object."""
        self._key_bytes = self[_DATA_FILE_KEY]
        self[_DATA_FILE_KEY] = None

    @property
    def stored_format(self) -> FileFormat:
        """The file's format."""
        return cast("FileFormat", self[_FILE_FORMAT])

    @property
    def file_format(self) -> FileFormat:
        """The file's format. If a scan has handed out an encrypted file, this is a text that says
        how to read it, so that a reader without keys does not try. Polars then lets PyIceberg read
        the file, and the error of PyIceberg's ``ArrowScan`` quotes the text."""
        stored = self.stored_format
        if self.is_handed_out and self.is_encrypted:
            return cast(
                "FileFormat",
                f"{stored.name}, encrypted: read it by the table's own scan, with "
                "table.scan().to_arrow() or to_polars()",
            )
        return stored

    @property
    def is_encrypted(self) -> bool:
        """Whether the file has a key."""
        return self._key_bytes is not None

    @property
    def key(self) -> KeyMetadata | None:
        """The file's key; None if it is not encrypted.

        Raises KeyMetadataError, and MetadataIntegrityError if the file lengths in the manifest
        entry and in the key metadata differ.
        """
        if self._key_bytes is None:
            return None
        return _parsed_key(self._key_bytes, self.file_path, self.file_size_in_bytes)

    @property
    def column_sizes(self) -> dict[int, int]:
        """The stored sizes of the columns (bytes), by field ID."""
        # ``inspect.entries`` fails on None, which deletion vectors have.
        return super().column_sizes or {}

    @property
    def first_row_id(self) -> int | None:
        """The ID of the first row. It is None if the rows have no IDs: the table had an older
        format version when the file was added, and nobody has written to it since."""
        return cast("int | None", self[_FIRST_ROW_ID])

    @property
    def referenced_data_file(self) -> str | None:
        """The only data file to which this delete file applies, if there is only one."""
        return cast("str | None", self[_REFERENCED_DATA_FILE])

    @property
    def content_offset(self) -> int | None:
        """The offset of a deletion vector in the Puffin file's plaintext (bytes)."""
        return cast("int | None", self[_CONTENT_OFFSET])

    @property
    def content_size_in_bytes(self) -> int | None:
        """The size of a deletion vector in the Puffin file's plaintext."""
        return cast("int | None", self[_CONTENT_SIZE])

    @property
    def is_deletion_vector(self) -> bool:
        """Whether this is a deletion vector in a Puffin file."""
        return (
            self.content == DataFileContent.POSITION_DELETES
            and self.stored_format == FileFormat.PUFFIN
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
    """A manifest of an encrypted table. ``key_metadata`` is None; ``key`` is the real key."""

    _key_bytes: bytes | None = None

    def conceal(self) -> None:
        """Move the key from the record's fields, which PyIceberg shows, to this object."""
        self._key_bytes = self[_MANIFEST_KEY]
        self[_MANIFEST_KEY] = None

    @property
    def is_plaintext(self) -> bool:
        """Whether the manifest list has no key for this manifest."""
        return self._key_bytes is None

    @property
    def key(self) -> KeyMetadata:
        """The manifest's key. Raises NotEncryptedError if there is none; KeyMetadataError;
        MetadataIntegrityError if the lengths in the manifest list and in the key differ."""
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
        """Return the manifest's entries. ``io`` is that of the table.

        Raises AuthenticationError, TruncatedError and FormatError if the file is not the manifest
        that the manifest list names, and NotEncryptedError if a delete file has no key. A plaintext
        manifest is read only if ``io`` allows it. If it has not as many files and rows as the
        manifest list says, this raises MetadataIntegrityError.
        """
        files = files_of(io)
        if self.is_plaintext and files.reads_exposed:
            # The result is not kept, because the plaintext file may change.
            data = files.read_exposed(self.manifest_path, self.manifest_length)
            entries = self._entries(data)
        elif files.decoded is None:
            entries = self._read(files)
        else:
            # The values that entries inherit are part of the key of the cache.
            known_by = (
                *(self.manifest_path, self.manifest_length, self._key_bytes, self.sequence_number),
                *(self.added_snapshot_id, self.partition_spec_id, self[_MANIFEST_FIRST_ROW_ID]),
            )
            entries = files.decoded.get(
                known_by, self.manifest_length, functools.partial(self._read, files)
            )
        return [
            entry
            for entry in entries
            if not (discard_deleted and entry.status == ManifestEntryStatus.DELETED)
        ]

    def _read(self, files: TableFiles) -> list[ManifestEntry]:
        return self._entries(files.read_encrypted(self.manifest_path, self.key))

    def _entries(self, data: bytes) -> list[ManifestEntry]:
        _, records = _parsed("manifest", self.manifest_path, data, MANIFEST)
        if self.is_plaintext:
            self._check_counts(records)
        entries = []
        next_row_id = self[_MANIFEST_FIRST_ROW_ID]
        for entry in records:
            is_deleted = entry.status == ManifestEntryStatus.DELETED
            entry = inherit_from_manifest(entry, self)
            file = cast("ContentFile", entry.data_file)
            file.conceal()
            file.sequence_number = entry.sequence_number
            if next_row_id is not None and not is_deleted and file[_FIRST_ROW_ID] is None:
                file[_FIRST_ROW_ID] = next_row_id
                next_row_id += file.record_count
            if file.content != DataFileContent.DATA and not file.is_encrypted:
                raise NotEncryptedError(
                    "a delete file of an encrypted table has no key: it is not encrypted",
                    file=file.file_path,
                )
            entries.append(entry)
        return entries

    def _check_counts(self, entries: Sequence[ManifestEntry]) -> None:
        """Compare an unauthenticated manifest with the counts in its manifest list."""
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
                    f"{found[1]} rows, but the manifest list says {counts[0]} of {counts[1]}: it "
                    "was changed. Restore it from a backup",
                    file=self.manifest_path,
                )

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a manifest of an encrypted table holds its key and is not pickled")


class EncryptedSnapshot(Snapshot):
    """A snapshot of an encrypted table. ``key_id`` names the key of its manifest list."""

    key_id: str | None = Field(alias="key-id", default=None)

    def manifests(self, io: FileIO) -> list[ManifestFile]:
        """Return the snapshot's manifests. ``io`` is that of the table.

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
        files = files_of(io)
        km = files.keys.manifest_list_key(self.key_id)
        read = functools.partial(self._read, files, km)
        if files.decoded is None:
            manifests = read()
        else:
            known_by = self.manifest_list, km.to_bytes(), self.snapshot_id
            manifests = files.decoded.get(known_by, km.file_length or 0, read)
        for manifest in manifests:
            if manifest.is_plaintext and not files.reads_exposed:
                _ = manifest.key
        return list(manifests)

    def _read(self, files: TableFiles, km: KeyMetadata) -> list[EncryptedManifest]:
        data = files.read_encrypted(self.manifest_list, km)
        header, records = _parsed("manifest list", self.manifest_list, data, MANIFEST_LIST)
        manifests = cast("list[EncryptedManifest]", records)
        # The header is authenticated with the list; the snapshot ID in metadata.json is not.
        written_for = header.get("snapshot-id")
        if written_for is not None and written_for != str(self.snapshot_id):
            raise MetadataIntegrityError(
                f"the manifest list of snapshot {self.snapshot_id} was written for snapshot "
                f"{written_for}: somebody changed metadata.json",
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
        return manifests


def files_of(io: FileIO) -> TableFiles:
    """Return the table's files. Another library may have wrapped them, as Polars does. Raises
    TypeError if ``io`` is something else, because that has no keys."""
    files = io if isinstance(io, TableFiles) else getattr(io, "table_files", None)
    if not isinstance(files, TableFiles):
        raise TypeError(
            f"an encrypted table is read with its own io, not {type(io).__name__}: pass table.io"
        )
    return files


def _parsed_key(key_bytes: bytes, location: str, length: int) -> KeyMetadata:
    try:
        km = KeyMetadata.from_bytes(key_bytes)
    except Ags1Error as error:
        error.file = location
        raise
    if km.file_length is not None and km.file_length != length:
        raise MetadataIntegrityError(
            f"the file's length is {length} in its entry, but {km.file_length} in its key metadata",
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
    # Raised out here, without the other error as its context: that may quote a record with a key.
    raise failure


def unreadable(what: str, location: str, error: Exception) -> MetadataIntegrityError:
    """Return the error for a manifest or manifest list that cannot be parsed."""
    return MetadataIntegrityError(
        f"the {what} was read, but it cannot be parsed ({type(error).__name__})", file=location
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

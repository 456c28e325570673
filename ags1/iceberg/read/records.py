"""Records of manifests and manifest lists, in the form in which they are written.

There is one dataclass for a data or delete file, one for its entry in a manifest, and one for a
manifest's entry in a manifest list. Their fields are those of the specification, in its order.
``read_entries`` assigns row IDs as every reader of format version 3 does, so that an entry keeps
them when it is moved to another manifest. This follows the Iceberg specification, "Manifests",
"Manifest Lists" and "Row Lineage".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestContent, ManifestFile

from ...key_metadata import KeyMetadata
from ..pyiceberg.records import DATA_FILE, MANIFEST_FILE
from .snapshots import ContentFile, EncryptedManifest

EXISTING, ADDED, DELETED = 0, 1, 2
DATA, POSITION_DELETES, EQUALITY_DELETES = 0, 1, 2


@dataclass(frozen=True, slots=True)
class FileRecord:
    """A data or delete file (``data_file`` of the specification; sizes in bytes).

    ``content`` is DATA, POSITION_DELETES or EQUALITY_DELETES. ``file_format`` is ``PARQUET``,
    ``AVRO`` or ``PUFFIN``. ``partition`` has the values of the spec ``spec_id``, in its order, as
    PyIceberg represents them. ``key_metadata`` is None if the file is not encrypted.
    """

    content: int
    file_path: str
    file_format: str
    partition: tuple[Any, ...]
    record_count: int
    file_size_in_bytes: int
    column_sizes: Mapping[int, int] | None = None
    value_counts: Mapping[int, int] | None = None
    null_value_counts: Mapping[int, int] | None = None
    nan_value_counts: Mapping[int, int] | None = None
    lower_bounds: Mapping[int, bytes] | None = field(default=None, repr=False)
    upper_bounds: Mapping[int, bytes] | None = field(default=None, repr=False)
    key_metadata: bytes | None = field(default=None, repr=False)
    split_offsets: tuple[int, ...] | None = None
    equality_ids: tuple[int, ...] | None = None
    sort_order_id: int | None = None
    first_row_id: int | None = None
    referenced_data_file: str | None = None
    content_offset: int | None = None
    content_size_in_bytes: int | None = None
    spec_id: int = 0

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a file's record holds its key and is not pickled or copied")

    @property
    def is_deletion_vector(self) -> bool:
        """Whether the record is of a deletion vector in a Puffin file."""
        return self.content == POSITION_DELETES and self.file_format == "PUFFIN"

    @property
    def key(self) -> KeyMetadata | None:
        """The file's key; None if it is not encrypted. Raises KeyMetadataError."""
        return None if self.key_metadata is None else KeyMetadata.from_bytes(self.key_metadata)

    @property
    def identity(self) -> tuple[str, int | None]:
        """What distinguishes the file. One Puffin file may have several deletion vectors."""
        return self.file_path, self.content_offset


@dataclass(frozen=True, slots=True)
class Entry:
    """A file's entry in a manifest.

    ``status`` is EXISTING, ADDED or DELETED. ``sequence_number`` (of the data) and
    ``file_sequence_number`` are None if they will be that of the snapshot after its commit.
    """

    status: int
    snapshot_id: int | None
    sequence_number: int | None
    file_sequence_number: int | None
    file: FileRecord

    def existing(self) -> Entry:
        """Return the entry for a manifest that a later snapshot writes."""
        return replace(self, status=EXISTING)

    def deleted(self, snapshot_id: int) -> Entry:
        """Return the entry by which a snapshot removes the file."""
        return replace(self, status=DELETED, snapshot_id=snapshot_id)


@dataclass(frozen=True, slots=True)
class FieldSummary:
    """A manifest list's summary of one partition field over the files of a manifest."""

    contains_null: bool
    contains_nan: bool | None
    lower_bound: bytes | None
    upper_bound: bytes | None


@dataclass(frozen=True, slots=True)
class ManifestRecord:
    """A manifest's entry in a manifest list (``manifest_file`` of the specification).

    ``sequence_number`` and ``min_sequence_number`` are None if the snapshot under construction adds
    the manifest: its manifest list then has the snapshot's number. ``first_row_id`` is None if no
    row ID was assigned yet.
    """

    manifest_path: str
    manifest_length: int
    partition_spec_id: int
    content: int
    sequence_number: int | None
    min_sequence_number: int | None
    added_snapshot_id: int
    added_files_count: int
    existing_files_count: int
    deleted_files_count: int
    added_rows_count: int
    existing_rows_count: int
    deleted_rows_count: int
    partitions: tuple[FieldSummary, ...] | None = field(default=None, repr=False)
    key_metadata: bytes | None = field(default=None, repr=False)
    first_row_id: int | None = None

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a manifest's record holds its key and is not pickled or copied")

    @property
    def is_deletes(self) -> bool:
        """Whether the manifest lists delete files."""
        return self.content == 1

    @property
    def has_live_files(self) -> bool:
        """Whether the manifest lists files that are not removed."""
        return self.added_files_count + self.existing_files_count > 0


def manifest_record(manifest: ManifestFile) -> ManifestRecord:
    """Return the record of a manifest of any table, encrypted or not."""
    key = manifest._key_bytes if isinstance(manifest, EncryptedManifest) else manifest.key_metadata
    summaries = manifest.partitions
    return ManifestRecord(
        manifest_path=manifest.manifest_path,
        manifest_length=manifest.manifest_length,
        partition_spec_id=manifest.partition_spec_id,
        content=int(manifest.content),
        sequence_number=manifest.sequence_number or 0,
        min_sequence_number=manifest.min_sequence_number or 0,
        added_snapshot_id=manifest.added_snapshot_id or 0,
        added_files_count=manifest.added_files_count or 0,
        existing_files_count=manifest.existing_files_count or 0,
        deleted_files_count=manifest.deleted_files_count or 0,
        added_rows_count=manifest.added_rows_count or 0,
        existing_rows_count=manifest.existing_rows_count or 0,
        deleted_rows_count=manifest.deleted_rows_count or 0,
        partitions=None
        if summaries is None
        else tuple(
            FieldSummary(s.contains_null, s.contains_nan, s.lower_bound, s.upper_bound)
            for s in summaries
        ),
        key_metadata=key,
        first_row_id=_first_row_id(manifest),
    )


def read_entries(
    manifest: ManifestFile, io: FileIO, *, discard_deleted: bool = True
) -> Iterator[Entry]:
    """Yield a manifest's entries with the values that they inherit: sequence numbers, the spec and
    row IDs.

    ``io`` is that of the table. Raises what ``fetch_manifest_entry`` raises.
    """
    next_row_id = _first_row_id(manifest) if manifest.content == ManifestContent.DATA else None
    for entry in manifest.fetch_manifest_entry(io, discard_deleted=False):
        record = file_record(entry.data_file)
        is_live = int(entry.status) != DELETED
        if record.first_row_id is None and next_row_id is not None and is_live:
            record = replace(record, first_row_id=next_row_id)
            next_row_id += record.record_count
        if is_live or not discard_deleted:
            yield Entry(
                status=int(entry.status),
                snapshot_id=entry.snapshot_id,
                sequence_number=entry.sequence_number,
                file_sequence_number=entry.file_sequence_number,
                file=record,
            )


def file_record(file: DataFile) -> FileRecord:
    """Return the record of a file of any table, encrypted or not."""
    return FileRecord(
        content=int(file.content or DataFileContent.DATA),
        file_path=file.file_path,
        file_format=FileFormat(_at(file, "file_format")).name,
        partition=tuple(file.partition[i] for i in range(len(file.partition))),
        record_count=file.record_count,
        file_size_in_bytes=file.file_size_in_bytes,
        column_sizes=_at(file, "column_sizes"),
        value_counts=_at(file, "value_counts"),
        null_value_counts=_at(file, "null_value_counts"),
        nan_value_counts=_at(file, "nan_value_counts"),
        lower_bounds=_at(file, "lower_bounds"),
        upper_bounds=_at(file, "upper_bounds"),
        key_metadata=file._key_bytes if isinstance(file, ContentFile) else file.key_metadata,
        split_offsets=_tuple(_at(file, "split_offsets")),
        equality_ids=_tuple(_at(file, "equality_ids")),
        sort_order_id=_at(file, "sort_order_id"),
        first_row_id=_at(file, "first_row_id"),
        referenced_data_file=_at(file, "referenced_data_file"),
        content_offset=_at(file, "content_offset"),
        content_size_in_bytes=_at(file, "content_size_in_bytes"),
        spec_id=file.spec_id,
    )


def _tuple(values: Any) -> tuple[int, ...] | None:
    return None if values is None else tuple(values)


def _at(file: DataFile, name: str) -> Any:
    """Return a field of a file's record; None if the record's version does not have it."""
    position = DATA_FILE[name]
    return file[position] if position < len(file) else None


def _first_row_id(manifest: ManifestFile) -> int | None:
    position = MANIFEST_FILE["first_row_id"]
    return manifest[position] if position < len(manifest) else None


def manifest_file(record: ManifestRecord) -> EncryptedManifest:
    """Return the manifest of a manifest list's entry, for reading it."""
    manifest = EncryptedManifest.from_args(
        _table_format_version=3,
        manifest_path=record.manifest_path,
        manifest_length=record.manifest_length,
        partition_spec_id=record.partition_spec_id,
        content=ManifestContent(record.content),
        sequence_number=record.sequence_number,
        min_sequence_number=record.min_sequence_number,
        added_snapshot_id=record.added_snapshot_id,
        added_files_count=record.added_files_count,
        existing_files_count=record.existing_files_count,
        deleted_files_count=record.deleted_files_count,
        added_rows_count=record.added_rows_count,
        existing_rows_count=record.existing_rows_count,
        deleted_rows_count=record.deleted_rows_count,
        key_metadata=record.key_metadata,
        first_row_id=record.first_row_id,
    )
    assert isinstance(manifest, EncryptedManifest)
    manifest.conceal()
    return manifest

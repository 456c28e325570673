"""The records of manifests and manifest lists: one class for each, for reading and for writing.

A snapshot's files are listed on two levels::

    manifest list:  Manifest, Manifest, ...            (``manifest_file`` of the specification)
    manifest:       ManifestEntry, ManifestEntry, ...  (``manifest_entry``)
                      .data_file: ContentFile          (``data_file``)

The classes are subclasses of PyIceberg's, so that its scans and ``inspect`` work with them.
PyIceberg's record is a list of values, and it has no properties for the fields of format version 3.
Here, ``of``, ``fields`` and ``replace`` handle all fields by the names of the specification. A
record that is shared, for example by a cache, is never changed: ``replace`` makes another one. This
follows the Iceberg specification, "Manifests", "Manifest Lists" and "Row Lineage".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, cast

from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, FileFormat, ManifestFile
from pyiceberg.manifest import ManifestEntry as PyIcebergEntry
from pyiceberg.typedef import Record

from ...engine._key_metadata import EncodedKeyMetadata
from ...engine.key_metadata import KeyMetadata
from ...errors import Ags1Error, MetadataIntegrityError
from ..pyiceberg.records import (
    DATA_FILE,
    MANIFEST_ENTRY,
    MANIFEST_FILE,
    Field,
    FileRecord,
    NamedRecord,
    inherit,
    record_values,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer, Self

EXISTING, ADDED, DELETED = 0, 1, 2
DATA, POSITION_DELETES, EQUALITY_DELETES = 0, 1, 2


class _KeyedRecord(NamedRecord):
    """A record with the key of a file. PyIceberg's ``key_metadata`` is None, and ``key_bytes`` is
    the real value. ``of`` and ``replace`` take it as ``key_metadata``. It cannot be pickled."""

    _key_bytes: EncodedKeyMetadata | None = None

    @classmethod
    def of(cls, *, key_metadata: Buffer | None = None, **fields: Any) -> Self:
        record = super().of(**fields)
        record._key_bytes = None if key_metadata is None else EncodedKeyMetadata(key_metadata)
        return record

    def replace(self, **changes: Any) -> Self:
        return super().replace(**{"key_metadata": self._key_bytes, **changes})

    def conceal(self) -> None:
        """Move the key from the fields of a record that was just read to ``key_bytes``."""
        at = self.names.index("key_metadata")
        self._key_bytes, self[at] = self[at], None

    @property
    def key_bytes(self) -> EncodedKeyMetadata | None:
        """The encoded key metadata of the file; None if it is not encrypted."""
        return self._key_bytes

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(f"{type(self).__name__} holds a file's key and is not pickled or copied")


class ContentFile(_KeyedRecord, FileRecord, DataFile):
    """A data or delete file of a table (sizes in bytes).

    ``spec_id`` names the partition spec. ``sequence_number`` is the data's, in a file that
    was read. One Puffin file may have several deletion vectors, so two files are equal if they have
    the same ``identity``. ``is_handed_out`` is true after a scan has given the file to its caller.
    """

    names = DATA_FILE
    lazy = (
        *("column_sizes", "value_counts", "null_value_counts", "nan_value_counts"),
        *("lower_bounds", "upper_bounds"),
    )
    sequence_number: int | None = None
    is_handed_out = False
    # PyIceberg's own __setattr__ handles a name that is not used here, and it slows planning down.
    __setattr__ = object.__setattr__  # type: ignore[assignment]

    # The ID of the first row. It is None if the rows have no IDs: the table had an older format
    # version when the file was added, and nobody has written to it since.
    first_row_id = Field[int | None]()
    # The only data file to which this delete file applies, if there is only one.
    referenced_data_file = Field[str | None]()
    # Where a deletion vector is in the Puffin file's plaintext (bytes).
    content_offset = Field[int | None]()
    content_size_in_bytes = Field[int | None]()
    # Metrics of the columns, by field ID.
    value_counts = Field["dict[int, int]"]()
    null_value_counts = Field["dict[int, int]"]()
    nan_value_counts = Field["dict[int, int]"]()
    lower_bounds = Field["dict[int, bytes]"]()
    upper_bounds = Field["dict[int, bytes]"]()

    @classmethod
    def of(cls, *, spec_id: int = 0, **fields: Any) -> Self:
        """Return the file with these fields; ``partition`` is a sequence of values. Raises
        TypeError for a field that the specification does not have."""
        fields["partition"] = Record(*fields.get("partition", ()))
        if "file_format" in fields:
            fields["file_format"] = FileFormat(fields["file_format"])
        file = super().of(**fields)
        file.spec_id = spec_id
        return file

    def fields(self) -> dict[str, Any]:
        """Return the fields by name, in the order of the specification and without the key, then
        ``spec_id``. Lists and ``partition`` are tuples."""
        fields = {**super().fields(), "partition": self.partition_values, "spec_id": self.spec_id}
        for name in ("split_offsets", "equality_ids"):
            if fields[name] is not None:
                fields[name] = tuple(fields[name])
        return fields

    @property
    def partition_values(self) -> tuple[Any, ...]:
        """The values of the partition, in the order of its spec."""
        return record_values(self.partition)

    @property
    def stored_format(self) -> FileFormat:
        """The file's format."""
        return cast("FileFormat", self[_FORMAT])

    @property
    def file_format(self) -> FileFormat:
        """The file's format. If a scan has handed out an encrypted file, this is a text that says
        how to read it, so that a reader without keys does not try. Polars then lets PyIceberg read
        the file, and the error of PyIceberg's ``ArrowScan`` quotes the text."""
        stored = self.stored_format
        if self.is_handed_out and self.is_encrypted:
            advice = "read it by the table's own scan, with table.scan().to_arrow() or to_polars()"
            return cast("FileFormat", f"{stored.name}, encrypted: {advice}")
        return stored

    @property
    def column_sizes(self) -> dict[int, int]:
        """The stored sizes of the columns (bytes), by field ID."""
        # ``inspect.entries`` fails on None, which deletion vectors have.
        return self[_COLUMN_SIZES] or {}

    @property
    def is_encrypted(self) -> bool:
        """Whether the file has a key."""
        return self._key_bytes is not None

    @property
    def key(self) -> KeyMetadata | None:
        """The file's key; None if it is not encrypted. Raises KeyMetadataError, and
        MetadataIntegrityError if the lengths in the manifest entry and the key metadata differ."""
        if self._key_bytes is None:
            return None
        return parse_key(self._key_bytes, self.file_path, self.file_size_in_bytes)

    @property
    def sized_key(self) -> KeyMetadata | None:
        """``key``, with the manifest entry's length of the file if the key metadata has none: the
        manifest is just as authentic. An AGS1 file must have the length in its key metadata."""
        key = self.key
        if key is None or key.file_length is not None:
            return key
        return key.with_file_length(self.file_size_in_bytes)

    def check_rows(self, rows: int) -> None:
        """Raise MetadataIntegrityError unless the file should have this number of rows."""
        if rows != self.record_count:
            raise MetadataIntegrityError(
                f"the file has {rows} rows, but its manifest says {self.record_count}",
                file=self.file_path,
            )

    @property
    def is_deletion_vector(self) -> bool:
        """Whether this is a deletion vector in a Puffin file."""
        return self.content == POSITION_DELETES and self.stored_format == FileFormat.PUFFIN

    @property
    def identity(self) -> tuple[str, int | None]:
        """What distinguishes the file: its path, and the offset of a deletion vector."""
        return self.file_path, self.content_offset

    def __eq__(self, other: object) -> bool:
        return self.identity == other.identity if isinstance(other, ContentFile) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.identity)

    def __repr__(self) -> str:
        # Without the bounds, which are values of the encrypted file.
        return f"{type(self).__name__}({self.file_path!r}, {self.record_count} rows)"


_COLUMN_SIZES, _FORMAT = map(DATA_FILE.index, ("column_sizes", "file_format"))


class ManifestEntry(NamedRecord, PyIcebergEntry):
    """A file's entry in a manifest. ``status`` is EXISTING, ADDED or DELETED. ``sequence_number``
    (of the data) and ``file_sequence_number`` are None if they will be that of the snapshot after
    its commit."""

    names = MANIFEST_ENTRY

    @property
    def file(self) -> ContentFile:
        """The data or delete file."""
        return cast("ContentFile", self.data_file)

    def existing(self) -> ManifestEntry:
        """Return the entry for a manifest that a later snapshot writes."""
        return self if self.status == EXISTING else self.replace(status=EXISTING)

    def deleted(self, snapshot_id: int) -> ManifestEntry:
        """Return the entry by which a snapshot removes the file."""
        return self.replace(status=DELETED, snapshot_id=snapshot_id)


class Manifest(_KeyedRecord, ManifestFile):
    """A manifest's entry in a manifest list. ``read`` and ``operations`` have a subclass each, for
    encrypted and for plaintext manifests, because these are read differently.

    ``sequence_number`` and ``min_sequence_number`` are None if the snapshot under construction adds
    the manifest: its manifest list then has the snapshot's number. ``first_row_id`` is None if no
    row ID was assigned yet.
    """

    names = MANIFEST_FILE
    first_row_id = Field[int | None]()

    @property
    def is_plaintext(self) -> bool:
        """Whether the manifest list has no key for this manifest."""
        return self._key_bytes is None

    @property
    def is_deletes(self) -> bool:
        """Whether the manifest lists delete files."""
        return self.content == 1

    @property
    def live_files_count(self) -> int:
        """The number of files that are listed and not removed."""
        return (self.added_files_count or 0) + (self.existing_files_count or 0)

    @property
    def live_rows_count(self) -> int:
        """The number of rows in the files that are listed and not removed."""
        return (self.added_rows_count or 0) + (self.existing_rows_count or 0)

    def inherited(self, entries: list[ManifestEntry]) -> list[ManifestEntry]:
        """Return entries that were just read from the manifest, with the values that they inherit:
        sequence numbers, the spec and row IDs. Their keys are concealed."""
        inherit(entries, self, None if self.is_deletes else self.first_row_id)
        return entries


def read_entries(
    manifest: ManifestFile, io: FileIO, *, discard_deleted: bool = True
) -> list[ManifestEntry]:
    """Return a manifest's entries with the values that they inherit. ``io`` is the table's.
    Raises what ``fetch_manifest_entry`` raises."""
    entries = manifest.fetch_manifest_entry(io, discard_deleted)
    return cast("list[ManifestEntry]", entries)


def parse_key(key_bytes: EncodedKeyMetadata, location: str, length: int) -> KeyMetadata:
    """Return the key of a file that has ``length`` bytes according to its record. Raises
    KeyMetadataError, and MetadataIntegrityError if the key metadata has another length."""
    try:
        key_metadata = KeyMetadata.from_bytes(key_bytes)
    except Ags1Error as error:
        error.file = location
        raise
    if key_metadata.file_length is not None and key_metadata.file_length != length:
        raise MetadataIntegrityError(
            f"the file's length is {length} in its entry, but {key_metadata.file_length} in its "
            "key metadata",
            file=location,
        )
    return key_metadata

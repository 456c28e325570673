"""Manifests and manifest lists of format version 3, encrypted, each under a key of its own.

Their Avro is Java's: the same schemas, field ids, logical types and header properties; entries and
records are the values of ``entries``. Follows the Iceberg specification, "Manifests", "Manifest
Lists", "Row Lineage" and "Appendix A: Avro", and Java's ``V3Metadata``, ``ManifestWriter`` and
``ManifestListWriter``. Knows nothing of snapshots and commits: who calls decides what is written
where, and takes back what a failed commit leaves.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, cast
from uuid import UUID

from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import ManifestContent, PartitionFieldSummary
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    PrimitiveType,
    StringType,
    StructType,
    UnknownType,
    UUIDType,
)

from ...errors import NotEncryptedError
from ...key_metadata import KeyMetadata
from ...keys.manager import EncryptionManager
from ..formats.avro_container import AvroCodec, compact
from ..formats.avro_records import RecordFile
from ..read.records import (
    ADDED,
    DATA,
    DELETED,
    EXISTING,
    POSITION_DELETES,
    ContentFile,
    ManifestEntry,
)
from ..read.snapshots import EncryptedManifest
from ..storage.output import TableOutput

__all__ = [
    "DATA_MANIFEST",
    "DEFAULT_TARGET_SIZE",
    "DELETE_MANIFEST",
    "schema_of_spec",
    "write_manifest",
    "write_manifest_list",
    "write_manifests",
]

# What a manifest holds; a manifest of deletes holds position and equality deletes.
DATA_MANIFEST, DELETE_MANIFEST = 0, 1

# ``commit.manifest.target-size-bytes``, and how often Java looks whether it was reached.
DEFAULT_TARGET_SIZE = 8 << 20
_ENTRIES_PER_CHECK = 250

_OF_POSITION_DELETES = ("referenced_data_file", "content_offset", "content_size_in_bytes")

_INT, _LONG, _STRING, _BYTES = IntegerType(), LongType(), StringType(), BinaryType()


def write_manifest(
    output: TableOutput,
    location: str,
    entries: Iterable[ManifestEntry],
    *,
    spec: PartitionSpec,
    schema: Schema,
    schema_json: Mapping[str, Any],
    snapshot_id: int,
    content: int,
    manager: EncryptionManager,
    codec: str = "gzip",
    compression_level: int | None = None,
) -> EncryptedManifest:
    """Write one manifest under a fresh key; return what a manifest list is to say of it.

    ``spec`` is the entries' partition spec; ``schema`` gives its types (see ``schema_of_spec``) and
    ``schema_json`` is that schema as metadata.json has it. ``content`` is DATA_MANIFEST or
    DELETE_MANIFEST. ``codec`` is a value of ``write.manifest.compression-codec``: gzip (deflate),
    zstd, snappy or uncompressed.

    An ADDED entry takes ``snapshot_id`` where it has none, and may lack sequence numbers, which it
    then has from the snapshot's commit; all others have theirs. Row ids are written as they are
    given. The record's sequence number is None, for ``write_manifest_list`` to fill in, and so is
    the smallest one when no live entry has any.

    Raises ValueError for an entry that does not belong in this manifest or has an impossible value,
    and for a key whose file length is another than the entry's or, of a new file, missing;
    NotEncryptedError for a delete file without a key; and what ``TableOutput.create`` raises.
    """
    manifest = _Manifest(spec, schema, schema_json, snapshot_id, content, codec, compression_level)
    for entry in entries:
        manifest.add(entry)
    return manifest.write(output, location, manager)


def write_manifests(
    output: TableOutput,
    new_location: Callable[[], str],
    entries: Iterable[ManifestEntry],
    *,
    spec: PartitionSpec,
    schema: Schema,
    schema_json: Mapping[str, Any],
    snapshot_id: int,
    content: int,
    manager: EncryptionManager,
    codec: str = "gzip",
    compression_level: int | None = None,
    target_size: int = DEFAULT_TARGET_SIZE,
) -> list[EncryptedManifest]:
    """Write as many manifests as ``target_size`` (``commit.manifest.target-size-bytes``) asks for,
    none for no entries; ``new_location`` names each. Else as ``write_manifest``.

    When it raises, the manifests written so far are in ``output.written``.
    """
    records = []
    waiting = iter(entries)
    while (first := next(waiting, None)) is not None:
        manifest = _Manifest(
            spec, schema, schema_json, snapshot_id, content, codec, compression_level
        )
        manifest.add(first)
        while not manifest.is_full(target_size) and (entry := next(waiting, None)) is not None:
            manifest.add(entry)
        records.append(manifest.write(output, new_location(), manager))
    return records


def write_manifest_list(
    output: TableOutput,
    location: str,
    manifests: Iterable[EncryptedManifest],
    *,
    snapshot_id: int,
    parent_snapshot_id: int | None,
    sequence_number: int,
    first_row_id: int,
    manager: EncryptionManager,
    codec: str = "gzip",
    compression_level: int | None = None,
) -> tuple[KeyMetadata, int]:
    """Write a snapshot's manifest list under a fresh key.

    ``first_row_id`` is the table's ``next-row-id``; manifests of data that have no row ids get
    theirs from there on, in order, with room for all their existing and added rows. Returns the
    list's key metadata, with its length, and the row id that comes next: the difference is the
    snapshot's ``added-rows``. Manifests without a sequence number get the snapshot's.

    Raises ValueError for a manifest of another snapshot without a sequence number, one that is
    named twice, or an impossible value; NotEncryptedError for one without a key; and what
    ``TableOutput.create`` raises.
    """
    header = {
        "snapshot-id": str(snapshot_id),
        "parent-snapshot-id": "null" if parent_snapshot_id is None else str(parent_snapshot_id),
        "sequence-number": str(sequence_number),
        "first-row-id": str(first_row_id),
        "format-version": "3",
    }
    container = RecordFile(
        _MANIFEST_FILE, "manifest_file", header, AvroCodec(codec.lower(), compression_level)
    )
    next_row_id = first_row_id
    seen: set[str] = set()
    for manifest in manifests:
        path = manifest.manifest_path
        if path in seen:
            raise ValueError(f"{path} would be in the manifest list twice")
        seen.add(path)
        _check_manifest(manifest, snapshot_id)
        row_id = None
        if not manifest.is_deletes:
            row_id = manifest.first_row_id
            if row_id is None:
                row_id = next_row_id
                next_row_id += manifest.live_rows_count
        container.add(_manifest_values(manifest, sequence_number, row_id))
    km = output.write_encrypted(location, container.finish(), manager.new_file_key())
    return km, next_row_id


def schema_of_spec(spec: PartitionSpec, schemas: Sequence[Schema]) -> Schema:
    """Return the schema, of those of a table in their order, that knows the types of a spec.

    That is the last one with all the columns which the spec has partitions of, for the current one
    may have dropped some; the last with the most of them where none has all.
    """
    if not schemas:
        raise ValueError("a table has a schema")
    wanted = {field.source_id for field in spec.fields}
    return max(reversed(schemas), key=lambda schema: len(wanted & schema.field_ids))


# -- a manifest under construction


class _Manifest:
    """Entries as they are encoded, and what is counted of them."""

    def __init__(
        self,
        spec: PartitionSpec,
        schema: Schema,
        schema_json: Mapping[str, Any],
        snapshot_id: int,
        content: int,
        codec: str,
        compression_level: int | None,
    ) -> None:
        if content not in (DATA_MANIFEST, DELETE_MANIFEST):
            raise ValueError(f"a manifest holds data (0) or deletes (1), not {content!r}")
        self._spec_id = spec.spec_id
        self._snapshot_id = snapshot_id
        self._content = content
        types = _partition_types(spec, schema)
        self._partition = [_PartitionField(kind) for kind in types]
        fields = [
            _field(field.field_id, field.name, kind)
            for field, kind in zip(spec.fields, types, strict=True)
        ]
        header = {
            "schema": compact(schema_json),
            "partition-spec": compact(
                [
                    {
                        "name": field.name,
                        "transform": str(field.transform),
                        "source-id": field.source_id,
                        "field-id": field.field_id,
                    }
                    for field in spec.fields
                ]
            ),
            "partition-spec-id": str(spec.spec_id),
            "format-version": "3",
            "content": "deletes" if content == DELETE_MANIFEST else "data",
        }
        self._container = RecordFile(
            _entry_type(StructType(*fields)),
            "manifest_entry",
            header,
            AvroCodec(codec.lower(), compression_level),
        )
        self._files = [0, 0, 0]
        self._rows = [0, 0, 0]
        self._min_sequence_number: int | None = None

    def is_full(self, target_size: int) -> bool:
        return sum(self._files) % _ENTRIES_PER_CHECK == 0 and self._container.size >= target_size

    def add(self, entry: ManifestEntry) -> None:
        file = entry.file
        _check_entry(entry, self._snapshot_id)
        is_new = entry.status == ADDED and entry.sequence_number is None
        _check_file(file, self._content, self._spec_id, len(self._partition), is_new=is_new)
        partition = tuple(
            field.normal(value)
            for field, value in zip(self._partition, file.partition_values, strict=True)
        )
        self._container.add(_entry_values(entry, self._snapshot_id, partition))
        for field, value in zip(self._partition, partition, strict=True):
            field.update(value)
        self._files[entry.status] += 1
        self._rows[entry.status] += file.record_count
        number = entry.sequence_number
        if entry.status != DELETED and number is not None:
            smallest = self._min_sequence_number
            self._min_sequence_number = number if smallest is None else min(smallest, number)

    def write(
        self, output: TableOutput, location: str, manager: EncryptionManager
    ) -> EncryptedManifest:
        km = output.write_encrypted(location, self._container.finish(), manager.new_file_key())
        assert km.file_length is not None
        return EncryptedManifest.of(
            manifest_path=location,
            manifest_length=km.file_length,
            partition_spec_id=self._spec_id,
            content=ManifestContent(self._content),
            sequence_number=None,
            min_sequence_number=self._min_sequence_number,
            added_snapshot_id=self._snapshot_id,
            added_files_count=self._files[ADDED],
            existing_files_count=self._files[EXISTING],
            deleted_files_count=self._files[DELETED],
            added_rows_count=self._rows[ADDED],
            existing_rows_count=self._rows[EXISTING],
            deleted_rows_count=self._rows[DELETED],
            partitions=[field.summary() for field in self._partition],
            key_metadata=km.to_bytes(),
            first_row_id=None,
        )


def _check_entry(entry: ManifestEntry, snapshot_id: int) -> None:
    """Raise ValueError unless the entry has what cannot be inherited. Java's V3Metadata."""
    path = entry.file.file_path
    if entry.status not in (EXISTING, ADDED, DELETED):
        raise ValueError(f"{path}: an entry's status is 0, 1 or 2, not {entry.status!r}")
    if entry.status != ADDED:
        if entry.snapshot_id is None or entry.sequence_number is None:
            raise ValueError(f"{path}: only an added file may lack snapshot and sequence number")
    elif entry.sequence_number is None and entry.snapshot_id not in (None, snapshot_id):
        raise ValueError(
            f"{path}: the file has no sequence number and was added by snapshot "
            f"{entry.snapshot_id}, not by {snapshot_id}"
        )


def _check_file(
    file: ContentFile, content: int, spec_id: int, partition_size: int, *, is_new: bool
) -> None:
    path = file.file_path
    if (file.content == DATA) != (content == DATA_MANIFEST) or file.content not in (0, 1, 2):
        kind = "data" if content == DATA_MANIFEST else "deletes"
        raise ValueError(f"{path}: content {file.content!r} does not go into a manifest of {kind}")
    if file.spec_id != spec_id or len(file.partition) != partition_size:
        raise ValueError(
            f"{path}: a partition of {len(file.partition)} values of spec {file.spec_id} does not "
            f"go into a manifest of spec {spec_id}, which has {partition_size}"
        )
    if file.is_deletion_vector and (
        file.referenced_data_file is None
        or file.content_offset is None
        or file.content_size_in_bytes is None
    ):
        raise ValueError(f"{path}: a deletion vector has a data file, an offset and a size")
    if file.key_bytes is None:
        if content == DELETE_MANIFEST:
            raise NotEncryptedError("a delete file of an encrypted table has no key", file=path)
        return
    length = KeyMetadata.from_bytes(file.key_bytes).file_length
    if length != file.file_size_in_bytes and (length is not None or is_new):
        # Other writers may have left it out; Java cannot open a file of an unknown length.
        raise ValueError(
            f"{path}: the file has {file.file_size_in_bytes} bytes, and {length} by its key "
            "metadata"
        )


def _entry_values(
    entry: ManifestEntry, snapshot_id: int, partition: tuple[Any, ...]
) -> tuple[Any, ...]:
    file = entry.file
    fields = {**file.fields(), "partition": partition, "key_metadata": file.key_bytes}
    fields["file_format"] = file.stored_format.name
    del fields["spec_id"]
    if file.content != DATA:
        fields["first_row_id"] = None
    if file.content != POSITION_DELETES:
        fields |= dict.fromkeys(_OF_POSITION_DELETES)
    return (
        entry.status,
        snapshot_id if entry.snapshot_id is None else entry.snapshot_id,
        entry.sequence_number,
        entry.file_sequence_number,
        tuple(fields.values()),
    )


def _check_manifest(manifest: EncryptedManifest, snapshot_id: int) -> None:
    path = manifest.manifest_path
    numbers = manifest.sequence_number, manifest.min_sequence_number
    if None in numbers and manifest.added_snapshot_id != snapshot_id:
        raise ValueError(
            f"{path}: the manifest has no sequence number and was added by snapshot "
            f"{manifest.added_snapshot_id}, not by {snapshot_id}"
        )
    if manifest.content not in (DATA_MANIFEST, DELETE_MANIFEST):
        raise ValueError(f"{path}: a manifest holds data (0) or deletes (1)")
    if manifest.key_bytes is None:
        raise NotEncryptedError("a manifest of an encrypted table has no key", file=path)
    length = KeyMetadata.from_bytes(manifest.key_bytes).file_length
    if length not in (None, manifest.manifest_length):
        raise ValueError(
            f"{path}: the manifest has {manifest.manifest_length} bytes, and {length} by its key "
            "metadata"
        )


def _manifest_values(
    manifest: EncryptedManifest, sequence_number: int, first_row_id: int | None
) -> tuple[Any, ...]:
    fields = {
        **manifest.fields(),
        "key_metadata": manifest.key_bytes,
        "first_row_id": first_row_id,
    }
    for name in ("sequence_number", "min_sequence_number"):
        if fields[name] is None:
            fields[name] = sequence_number
    if manifest.partitions is not None:
        fields["partitions"] = [
            (s.contains_null, s.contains_nan, s.lower_bound, s.upper_bound)
            for s in manifest.partitions
        ]
    return tuple(fields.values())


# -- partitions


class _PartitionField:
    """One field of a manifest's partitions: how its values are compared, and its summary so far.

    Values are compared as Java compares them: text by code points, bytes unsigned, -0.0 before 0.0.
    Follows Java's ``PartitionSummary``.
    """

    def __init__(self, partition_type: IcebergType) -> None:
        self._type = partition_type
        self.normal = _normalizer(partition_type)
        self._is_float = isinstance(partition_type, FloatType | DoubleType)
        self._contains_null = False
        self._contains_nan = False
        self._min: Any = None
        self._max: Any = None

    def update(self, value: Any) -> None:
        if value is None:
            self._contains_null = True
        elif self._is_float and math.isnan(value):
            self._contains_nan = True
        elif self._min is None:
            self._min = self._max = value
        else:
            order = self._order(value)
            if order < self._order(self._min):
                self._min = value
            if order > self._order(self._max):
                self._max = value

    def summary(self) -> PartitionFieldSummary:
        return PartitionFieldSummary(
            self._contains_null,
            self._contains_nan,
            self._single_value(self._min),
            self._single_value(self._max),
        )

    def _order(self, value: Any) -> Any:
        return (value, math.copysign(1, value)) if self._is_float else value

    def _single_value(self, value: Any) -> bytes | None:
        if value is None:
            return None
        if isinstance(self._type, DecimalType):
            # The shortest two's complement, unlike in an Avro file.
            return int(value).to_bytes(_signed_size(value), "big", signed=True)
        return to_bytes(cast(PrimitiveType, self._type), value)


def _partition_types(spec: PartitionSpec, schema: Schema) -> list[IcebergType]:
    """Return the types of a spec's partition values, unknown where the column was dropped and the
    transform's result depends on it. Java's ``PartitionSpec.partitionType``."""
    known = schema.field_ids
    types = []
    for field in spec.fields:
        source = field.source_id
        source_type = schema.find_type(source) if source in known else UnknownType()
        types.append(field.transform.result_type(source_type))
    return types


def _normalizer(partition_type: IcebergType) -> Callable[[Any], Any]:
    """Return what makes a partition value as PyIceberg has it one that is encoded and compared."""
    if isinstance(partition_type, UUIDType):
        return lambda value: value.bytes if isinstance(value, UUID) else value
    if isinstance(partition_type, DecimalType):
        precision, scale = partition_type.precision, partition_type.scale
        return lambda value: None if value is None else _unscaled(value, precision, scale)
    return lambda value: value


def _unscaled(value: Decimal, precision: int, scale: int) -> int:
    if not isinstance(value, Decimal) or not value.is_finite():
        raise ValueError(f"a partition of decimal({precision}, {scale}) cannot be {value!r}")
    sign, digits, exponent = value.as_tuple()
    unscaled = int("".join(map(str, digits))) * (-1 if sign else 1)
    shift = int(exponent) + scale
    factor: int = 10 ** abs(shift)
    unscaled, lost = (unscaled * factor, 0) if shift >= 0 else divmod(unscaled, factor)
    if lost or abs(unscaled) >= 10**precision:
        raise ValueError(f"a partition of decimal({precision}, {scale}) cannot be {value}")
    return unscaled


def _signed_size(number: int) -> int:
    """Return how many bytes a number has in two's complement."""
    return (number if number >= 0 else ~number).bit_length() // 8 + 1


# -- the schemas of format version 3


def _field(
    field_id: int, name: str, kind: IcebergType, doc: str | None = None, required: bool = False
) -> NestedField:
    return NestedField(field_id, name, kind, required=required, doc=doc)


@functools.lru_cache(maxsize=64)
def _entry_type(partition: StructType) -> StructType:
    """``manifest_entry``, in the order of PyIceberg's records."""
    file = StructType(
        _field(134, "content", _INT, _CONTENT_DOC, required=True),
        _field(100, "file_path", _STRING, "Location URI with FS scheme", required=True),
        _field(101, "file_format", _STRING, _FORMAT_DOC, required=True),
        _field(102, "partition", partition, _PARTITION_DOC, required=True),
        _field(103, "record_count", _LONG, "Number of records in the file", required=True),
        _field(104, "file_size_in_bytes", _LONG, "Total file size in bytes", required=True),
        _field(
            108,
            "column_sizes",
            MapType(117, _INT, 118, _LONG),
            "Map of column id to total size on disk",
        ),
        _field(109, "value_counts", MapType(119, _INT, 120, _LONG), _VALUE_COUNTS_DOC),
        _field(
            110,
            "null_value_counts",
            MapType(121, _INT, 122, _LONG),
            "Map of column id to null value count",
        ),
        _field(137, "nan_value_counts", MapType(138, _INT, 139, _LONG), _NAN_COUNTS_DOC),
        _field(
            125, "lower_bounds", MapType(126, _INT, 127, _BYTES), "Map of column id to lower bound"
        ),
        _field(
            128, "upper_bounds", MapType(129, _INT, 130, _BYTES), "Map of column id to upper bound"
        ),
        _field(131, "key_metadata", _BYTES, "Encryption key metadata blob"),
        _field(132, "split_offsets", ListType(133, _LONG), "Splittable offsets"),
        _field(135, "equality_ids", ListType(136, _INT), "Equality comparison field IDs"),
        _field(140, "sort_order_id", _INT, "Sort order ID"),
        _field(142, "first_row_id", _LONG, _FILE_ROW_ID_DOC),
        _field(143, "referenced_data_file", _STRING, _REFERENCED_DOC),
        _field(144, "content_offset", _LONG, "The offset in the file where the content starts"),
        _field(145, "content_size_in_bytes", _LONG, _CONTENT_SIZE_DOC),
    )
    return StructType(
        _field(0, "status", _INT, required=True),
        _field(1, "snapshot_id", _LONG),
        _field(3, "sequence_number", _LONG),
        _field(4, "file_sequence_number", _LONG),
        _field(2, "data_file", file, required=True),
    )


_CONTENT_DOC = "Contents of the file: 0=data, 1=position deletes, 2=equality deletes"
_FORMAT_DOC = "File format name: avro, orc, or parquet"
_PARTITION_DOC = "Partition data tuple, schema based on the partition spec"
_VALUE_COUNTS_DOC = "Map of column id to total count, including null and NaN"
_NAN_COUNTS_DOC = "Map of column id to number of NaN values in the column"
_FILE_ROW_ID_DOC = "The first row ID assigned to the first row in the data file"
_REFERENCED_DOC = (
    "Fully qualified location (URI with FS scheme) of a data file that all deletes reference"
)
_CONTENT_SIZE_DOC = "The length of referenced content stored in the file"

_FIELD_SUMMARY = StructType(
    _field(
        509,
        "contains_null",
        BooleanType(),
        "True if any file has a null partition value",
        required=True,
    ),
    _field(518, "contains_nan", BooleanType(), "True if any file has a nan partition value"),
    _field(510, "lower_bound", _BYTES, "Partition lower bound for all files"),
    _field(511, "upper_bound", _BYTES, "Partition upper bound for all files"),
)
# In the order of PyIceberg's records.
_MANIFEST_FILE = StructType(
    _field(500, "manifest_path", _STRING, "Location URI with FS scheme", required=True),
    _field(501, "manifest_length", _LONG, "Total file size in bytes", required=True),
    _field(502, "partition_spec_id", _INT, "Spec ID used to write", required=True),
    _field(517, "content", _INT, "Contents of the manifest: 0=data, 1=deletes", required=True),
    _field(
        515,
        "sequence_number",
        _LONG,
        "Sequence number when the manifest was added",
        required=True,
    ),
    _field(
        516,
        "min_sequence_number",
        _LONG,
        "Lowest sequence number in the manifest",
        required=True,
    ),
    _field(503, "added_snapshot_id", _LONG, "Snapshot ID that added the manifest", required=True),
    _field(504, "added_files_count", _INT, "Added entry count", required=True),
    _field(505, "existing_files_count", _INT, "Existing entry count", required=True),
    _field(506, "deleted_files_count", _INT, "Deleted entry count", required=True),
    _field(512, "added_rows_count", _LONG, "Added rows count", required=True),
    _field(513, "existing_rows_count", _LONG, "Existing rows count", required=True),
    _field(514, "deleted_rows_count", _LONG, "Deleted rows count", required=True),
    _field(507, "partitions", ListType(508, _FIELD_SUMMARY), "Summary for each partition"),
    _field(519, "key_metadata", _BYTES, "Encryption key metadata blob"),
    _field(520, "first_row_id", _LONG, "Starting row ID to assign to new rows in ADDED data files"),
)

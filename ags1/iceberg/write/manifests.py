"""Writes manifests and manifest lists of format version 3, each encrypted under a fresh key.

    write_manifest(s)      entries of files  -> manifest      -> its EncryptedManifest, with the key
    write_manifest_list    EncryptedManifest -> manifest list -> its key, for the table's metadata

The Avro files are like Java's: the same schemas, field IDs, logical types and header properties.
This follows the Iceberg specification, "Manifests", "Manifest Lists", "Row Lineage" and "Appendix
A: Avro", and Java's ``V3Metadata``, ``ManifestWriter`` and ``ManifestListWriter``. The caller
decides what is written where, and deletes what a failed commit leaves.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeAlias, cast
from uuid import UUID

from pyiceberg import types
from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import ManifestContent, PartitionFieldSummary
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.utils.decimal import bytes_required, decimal_to_unscaled

from ...columns.avro.container import AvroCodec, compact
from ...columns.avro.records import RecordFile
from ...engine.key_metadata import KeyMetadata
from ...errors import NotEncryptedError
from ...keys.manager import EncryptionManager
from ..pyiceberg.records import record_values
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
from .manifest_schemas import MANIFEST_FILE, entry_type

# The content of a manifest. A manifest of deletes has position and equality deletes.
DATA_MANIFEST, DELETE_MANIFEST = 0, 1

# The default of ``commit.manifest.target-size-bytes``; Java checks the size that often.
DEFAULT_TARGET_SIZE = 8 << 20
_ENTRIES_PER_CHECK = 250

_Values: TypeAlias = "tuple[Any, ...]"
_OF_POSITION_DELETES = ("referenced_data_file", "content_offset", "content_size_in_bytes")


@dataclass(frozen=True, slots=True, repr=False)
class NewManifests:
    """How one snapshot writes the manifests of one partition spec and content. ``schema`` gives the
    types of ``spec`` (see ``schema_of_spec``); ``schema_json`` is the same as in metadata.json.
    ``content`` is DATA_MANIFEST or DELETE_MANIFEST. ``codec`` is gzip (deflate), zstd, snappy or
    uncompressed."""

    output: TableOutput
    manager: EncryptionManager
    spec: PartitionSpec
    schema: Schema
    schema_json: Mapping[str, Any]
    snapshot_id: int
    content: int
    codec: str = "gzip"


@dataclass(frozen=True, slots=True)
class NewSnapshot:
    """A new snapshot, for its manifest list. ``first_row_id`` is the table's ``next-row-id`` before
    the snapshot."""

    snapshot_id: int
    parent_snapshot_id: int | None
    sequence_number: int
    first_row_id: int


def write_manifest(
    new: NewManifests, location: str, entries: Iterable[ManifestEntry]
) -> EncryptedManifest:
    """Write one manifest under a fresh key; return its entry for the manifest list.

    An ADDED entry without a snapshot ID gets ``new.snapshot_id``. If it lacks sequence numbers, it
    has the snapshot's after the commit; all other entries must have both. Row IDs are written as
    they are. In the returned record, the sequence number is None, and so is the smallest one if no
    live entry has one: ``write_manifest_list`` writes the snapshot's.

    Raises ValueError if an entry does not belong in this manifest or has an impossible value, or if
    its key has another file length or, for a new file, none; NotEncryptedError if a delete file has
    no key; and what ``TableOutput.create`` raises.
    """
    manifest = _Manifest(new)
    for entry in entries:
        manifest.add(entry)
    return manifest.write(location)


def write_manifests(
    new: NewManifests,
    new_location: Callable[[], str],
    entries: Iterable[ManifestEntry],
    target_size: int = DEFAULT_TARGET_SIZE,
) -> list[EncryptedManifest]:
    """Write as many manifests of ``target_size`` (``commit.manifest.target-size-bytes``) as the
    entries need; no entries need none. ``new_location`` makes their locations. Raises as
    ``write_manifest``; the manifests written before that are in ``output.written``."""
    manifests = []
    waiting = iter(entries)
    while (first := next(waiting, None)) is not None:
        manifest = _Manifest(new)
        manifest.add(first)
        while not manifest.is_full(target_size) and (entry := next(waiting, None)) is not None:
            manifest.add(entry)
        manifests.append(manifest.write(new_location()))
    return manifests


def write_manifest_list(
    output: TableOutput,
    location: str,
    snapshot: NewSnapshot,
    manifests: Iterable[EncryptedManifest],
    manager: EncryptionManager,
) -> tuple[KeyMetadata, int]:
    """Write a snapshot's manifest list under a fresh key. Return the list's key metadata, with its
    length, and the next free row ID. Data manifests without row IDs get them in order, from
    ``snapshot.first_row_id`` on, one for each existing and added row. Manifests without a sequence
    number get the snapshot's. Raises ValueError if a manifest of another snapshot has no sequence
    number, if a manifest is named twice, or for an impossible value; NotEncryptedError if a
    manifest has no key; and what ``TableOutput.create`` raises."""
    parent = snapshot.parent_snapshot_id
    header = {
        "snapshot-id": str(snapshot.snapshot_id),
        "parent-snapshot-id": "null" if parent is None else str(parent),
        "sequence-number": str(snapshot.sequence_number),
        "first-row-id": str(snapshot.first_row_id),
        "format-version": "3",
    }
    container = RecordFile(MANIFEST_FILE, "manifest_file", header, AvroCodec("gzip"))
    next_row_id = snapshot.first_row_id
    seen: set[str] = set()
    for manifest in manifests:
        path = manifest.manifest_path
        if path in seen:
            raise ValueError(f"{path}: the manifest is in the manifest list twice")
        seen.add(path)
        _check_manifest(manifest, snapshot.snapshot_id)
        row_id = None
        if not manifest.is_deletes:
            row_id = manifest.first_row_id
            if row_id is None:
                row_id = next_row_id
                next_row_id += manifest.live_rows_count
        container.add(_manifest_values(manifest, snapshot.sequence_number, row_id))
    key_metadata = output.write_encrypted(location, container.finish(), manager.new_file_key())
    return key_metadata, next_row_id


def schema_of_spec(spec: PartitionSpec, schemas: Sequence[Schema]) -> Schema:
    """Return the one of a table's ``schemas`` (all, in order) that has the types of a partition
    spec. The current one may lack dropped columns. So this is the last one that has the most of the
    spec's columns."""
    if not schemas:
        raise ValueError("a table has a schema")
    wanted = {field.source_id for field in spec.fields}
    return max(reversed(schemas), key=lambda schema: len(wanted & schema.field_ids))


class _Manifest:
    """A manifest under construction: its encoded entries and their counts."""

    def __init__(self, new: NewManifests) -> None:
        if new.content not in (DATA_MANIFEST, DELETE_MANIFEST):
            raise ValueError(f"a manifest has data (0) or deletes (1), not {new.content!r}")
        self._new = new
        spec = new.spec
        kinds = _partition_types(spec, new.schema)
        self._partition = [_PartitionField(kind) for kind in kinds]
        # Files that were read together share the record of their partition.
        self._last_partition: Any = None
        fields = [
            types.NestedField(field.field_id, field.name, _stored(kind), required=False)
            for field, kind in zip(spec.fields, kinds, strict=True)
        ]
        header = {
            "schema": compact(new.schema_json),
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
            "content": "deletes" if new.content == DELETE_MANIFEST else "data",
        }
        kind, codec = entry_type(types.StructType(*fields)), AvroCodec(new.codec.lower())
        self._container = RecordFile(kind, "manifest_entry", header, codec)
        self._files = [0, 0, 0]
        self._rows = [0, 0, 0]
        self._min_sequence_number: int | None = None

    def is_full(self, target_size: int) -> bool:
        return sum(self._files) % _ENTRIES_PER_CHECK == 0 and self._container.size >= target_size

    def add(self, entry: ManifestEntry) -> None:
        status, snapshot_id, number, file_number, file = record_values(entry)
        new = self._new
        _check_entry(entry, new.snapshot_id)
        encoded = file.encoded
        _check_file(file, new)
        if encoded is None or not self._container.can_copy(encoded):
            _check_key(file, is_new=status == ADDED and number is None)
            partition = self._encodable_partition(file)
            self._container.add(_entry_values(entry, new.snapshot_id, partition))
            self._summarize(partition)
        else:
            if file.partition is not self._last_partition:
                self._summarize(self._encodable_partition(file))
                self._last_partition = file.partition
            if snapshot_id is None:
                snapshot_id = new.snapshot_id
            row_id = file.first_row_id if new.content == DATA_MANIFEST else None
            made = encoded.entry(status, snapshot_id, number, file_number, row_id)
            self._container.add_copy(encoded, made)
        self._files[status] += 1
        self._rows[status] += file.record_count
        if status != DELETED and number is not None:
            smallest = self._min_sequence_number
            self._min_sequence_number = number if smallest is None else min(smallest, number)

    def _encodable_partition(self, file: ContentFile) -> _Values:
        return tuple(
            field.normal(value)
            for field, value in zip(self._partition, file.partition_values, strict=True)
        )

    def _summarize(self, partition: _Values) -> None:
        for field, value in zip(self._partition, partition, strict=True):
            field.update(value)

    def write(self, location: str) -> EncryptedManifest:
        new = self._new
        key_metadata = new.output.write_encrypted(
            location, self._container.finish(), new.manager.new_file_key()
        )
        assert key_metadata.file_length is not None
        return EncryptedManifest.of(
            manifest_path=location,
            manifest_length=key_metadata.file_length,
            partition_spec_id=new.spec.spec_id,
            content=ManifestContent(new.content),
            sequence_number=None,
            min_sequence_number=self._min_sequence_number,
            added_snapshot_id=new.snapshot_id,
            added_files_count=self._files[ADDED],
            existing_files_count=self._files[EXISTING],
            deleted_files_count=self._files[DELETED],
            added_rows_count=self._rows[ADDED],
            existing_rows_count=self._rows[EXISTING],
            deleted_rows_count=self._rows[DELETED],
            partitions=[field.summary() for field in self._partition],
            key_metadata=key_metadata.encoded(),
            first_row_id=None,
        )


def _check_entry(entry: ManifestEntry, snapshot_id: int) -> None:
    """Raise ValueError unless the entry has all that it cannot inherit (Java's ``V3Metadata``)."""
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


def _check_file(file: ContentFile, new: NewManifests) -> None:
    path, spec = file.file_path, new.spec
    of_data = new.content == DATA_MANIFEST
    if (file.content == DATA) != of_data or file.content not in (0, 1, 2):
        kind = "data" if of_data else "deletes"
        raise ValueError(f"{path}: content {file.content!r} does not go into a manifest of {kind}")
    if file.spec_id != spec.spec_id or len(file.partition) != len(spec.fields):
        raise ValueError(
            f"{path}: a partition of {len(file.partition)} values of spec {file.spec_id} does not "
            f"go into a manifest of spec {spec.spec_id}, which has {len(spec.fields)}"
        )
    if file.is_deletion_vector and (
        file.referenced_data_file is None
        or file.content_offset is None
        or file.content_size_in_bytes is None
    ):
        raise ValueError(f"{path}: the deletion vector lacks its data file, offset or size")
    if file.key_bytes is None and not of_data:
        raise NotEncryptedError("a delete file of an encrypted table has no key", file=path)


def _check_key(file: ContentFile, *, is_new: bool) -> None:
    if file.key_bytes is None:
        return
    path = file.file_path
    length = KeyMetadata.from_bytes(file.key_bytes).file_length
    if length != file.file_size_in_bytes and (length is not None or is_new):
        # Other writers may have left the length out, but Java cannot open such a file.
        raise ValueError(
            f"{path}: the file has {file.file_size_in_bytes} bytes, but {length} according to its "
            "key metadata"
        )


def _entry_values(entry: ManifestEntry, snapshot_id: int, partition: _Values) -> _Values:
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
        raise ValueError(f"{path}: a manifest has data (0) or deletes (1)")
    if manifest.key_bytes is None:
        raise NotEncryptedError("a manifest of an encrypted table has no key", file=path)
    length = KeyMetadata.from_bytes(manifest.key_bytes).file_length
    if length not in (None, manifest.manifest_length):
        raise ValueError(
            f"{path}: the manifest has {manifest.manifest_length} bytes, but {length} according to "
            "its key metadata"
        )


def _manifest_values(manifest: EncryptedManifest, number: int, first_row_id: int | None) -> _Values:
    fields = {**manifest.fields(), "key_metadata": manifest.key_bytes, "first_row_id": first_row_id}
    for name in ("sequence_number", "min_sequence_number"):
        if fields[name] is None:
            fields[name] = number
    if manifest.partitions is not None:
        fields["partitions"] = [
            (s.contains_null, s.contains_nan, s.lower_bound, s.upper_bound)
            for s in manifest.partitions
        ]
    return tuple(fields.values())


# -- partitions


class _PartitionField:
    """A partition field of a manifest under construction, with its summary. Values are compared as
    in Java's ``PartitionSummary``: text by code points, bytes unsigned, -0.0 before 0.0."""

    def __init__(self, partition_type: types.IcebergType) -> None:
        self._type = partition_type
        self.normal = _normalizer(partition_type)
        self._is_float = isinstance(partition_type, types.FloatType | types.DoubleType)
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
        if isinstance(self._type, types.DecimalType):
            # In an Avro file, decimals have a fixed size instead.
            return int(value).to_bytes(bytes_required(value), "big", signed=True)
        return to_bytes(cast(types.PrimitiveType, self._type), value)


def _partition_types(spec: PartitionSpec, schema: Schema) -> list[types.IcebergType]:
    """Return the types of a spec's partition values (Java's ``PartitionSpec.partitionType``). If a
    column was dropped and the type depends on it, the type is unknown."""
    known = schema.field_ids
    kinds = []
    for field in spec.fields:
        source = field.source_id
        source_type = schema.find_type(source) if source in known else types.UnknownType()
        kinds.append(field.transform.result_type(source_type))
    return kinds


def _stored(partition_type: types.IcebergType) -> types.IcebergType:
    """Return the type of a partition value in the manifest's Avro schema. For fixed, it is bytes.
    With the specification's type, Java (``InternalReader``) expects the number of bytes before
    them, and other readers do not. With bytes, all do."""
    return types.BinaryType() if isinstance(partition_type, types.FixedType) else partition_type


def _normalizer(partition_type: types.IcebergType) -> Callable[[Any], Any]:
    """Return a function from PyIceberg's partition values to those that are encoded."""
    if isinstance(partition_type, types.UUIDType):
        return lambda value: value.bytes if isinstance(value, UUID) else value
    if isinstance(partition_type, types.DecimalType):
        precision, scale = partition_type.precision, partition_type.scale
        return lambda value: None if value is None else _unscaled(value, precision, scale)
    if isinstance(partition_type, types.FixedType):
        return functools.partial(_of_size, len(partition_type))
    return lambda value: value


def _of_size(size: int, value: bytes | None) -> bytes | None:
    if value is not None and len(value) != size:
        raise ValueError(f"a partition of fixed[{size}] cannot have {len(value)} bytes")
    return value


def _unscaled(value: Decimal, precision: int, scale: int) -> int:
    if not isinstance(value, Decimal) or not value.is_finite():
        raise ValueError(f"a partition of decimal({precision}, {scale}) cannot be {value!r}")
    unscaled = decimal_to_unscaled(value)
    shift = int(value.as_tuple().exponent) + scale
    factor: int = 10 ** abs(shift)
    unscaled, lost = (unscaled * factor, 0) if shift >= 0 else divmod(unscaled, factor)
    if lost or abs(unscaled) >= 10**precision:
        raise ValueError(f"a partition of decimal({precision}, {scale}) cannot be {value}")
    return unscaled

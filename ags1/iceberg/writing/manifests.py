"""Manifests and manifest lists of format version 3, encrypted, each under a key of its own.

Their Avro is Java's: the same schemas, field ids, logical types and header properties; entries and
records are the values of ``entries``. Follows the Iceberg specification, "Manifests", "Manifest
Lists", "Row Lineage" and "Appendix A: Avro", and Java's ``V3Metadata``, ``ManifestWriter`` and
``ManifestListWriter``. Knows nothing of snapshots and commits: who calls decides what is written
where, and takes back what a failed commit leaves.
"""

from __future__ import annotations

import functools
import json
import math
import os
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple, cast
from uuid import UUID

import pyarrow as pa
from pyiceberg.conversions import to_bytes
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema, make_compatible_name
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    PrimitiveType,
    StringType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UnknownType,
    UUIDType,
)
from pyiceberg.utils.decimal import decimal_required_bytes

from ...errors import NotEncryptedError
from ...key_metadata import KeyMetadata
from ...keys.manager import EncryptionManager
from .entries import (
    ADDED,
    DATA,
    DELETED,
    EXISTING,
    POSITION_DELETES,
    Entry,
    FieldSummary,
    FileRecord,
    ManifestRecord,
)
from .output import TableOutput

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

# The plaintext size of an Avro block, before compression (bytes).
_BLOCK_SIZE = 64_000
_MAGIC = b"Obj\x01"
_SYNC_SIZE = 16


class _Kind(NamedTuple):
    """An Avro type: its schema's JSON, and how a value is written."""

    avro: Any
    encode: Callable[[Any], bytes]


class _Field(NamedTuple):
    """A field of an Avro record, with its Iceberg id."""

    field_id: int
    name: str
    kind: _Kind
    doc: str | None = None
    required: bool = False


def write_manifest(
    output: TableOutput,
    location: str,
    entries: Iterable[Entry],
    *,
    spec: PartitionSpec,
    schema: Schema,
    schema_json: Mapping[str, Any],
    snapshot_id: int,
    content: int,
    manager: EncryptionManager,
    codec: str = "gzip",
    compression_level: int | None = None,
) -> ManifestRecord:
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
    entries: Iterable[Entry],
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
) -> list[ManifestRecord]:
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
    manifests: Iterable[ManifestRecord],
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
    container = _Container(_MANIFEST_FILE, header, codec, compression_level)
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
                next_row_id += manifest.existing_rows_count + manifest.added_rows_count
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
        self._partition = [_PartitionField(kind) for kind in _partition_types(spec, schema)]
        fields = [
            _Field(field.field_id, field.name, partition.kind)
            for field, partition in zip(spec.fields, self._partition, strict=True)
        ]
        header = {
            "schema": _compact(schema_json),
            "partition-spec": _compact(
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
        self._container = _Container(_entry_kind(fields), header, codec, compression_level)
        self._files = [0, 0, 0]
        self._rows = [0, 0, 0]
        self._min_sequence_number: int | None = None

    def is_full(self, target_size: int) -> bool:
        return sum(self._files) % _ENTRIES_PER_CHECK == 0 and self._container.size >= target_size

    def add(self, entry: Entry) -> None:
        file = entry.file
        _check_entry(entry, self._snapshot_id)
        is_new = entry.status == ADDED and entry.sequence_number is None
        _check_file(file, self._content, self._spec_id, len(self._partition), is_new=is_new)
        partition = tuple(
            field.normal(value)
            for field, value in zip(self._partition, file.partition, strict=True)
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
    ) -> ManifestRecord:
        km = output.write_encrypted(location, self._container.finish(), manager.new_file_key())
        assert km.file_length is not None
        return ManifestRecord(
            manifest_path=location,
            manifest_length=km.file_length,
            partition_spec_id=self._spec_id,
            content=self._content,
            sequence_number=None,
            min_sequence_number=self._min_sequence_number,
            added_snapshot_id=self._snapshot_id,
            added_files_count=self._files[ADDED],
            existing_files_count=self._files[EXISTING],
            deleted_files_count=self._files[DELETED],
            added_rows_count=self._rows[ADDED],
            existing_rows_count=self._rows[EXISTING],
            deleted_rows_count=self._rows[DELETED],
            partitions=tuple(field.summary() for field in self._partition),
            key_metadata=km.to_bytes(),
            first_row_id=None,
        )


def _check_entry(entry: Entry, snapshot_id: int) -> None:
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
    file: FileRecord, content: int, spec_id: int, partition_size: int, *, is_new: bool
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
    km = file.key
    if km is None:
        if content == DELETE_MANIFEST:
            raise NotEncryptedError("a delete file of an encrypted table has no key", file=path)
    elif km.file_length != file.file_size_in_bytes and (km.file_length is not None or is_new):
        # Other writers may have left it out; Java cannot open a file of an unknown length.
        raise ValueError(
            f"{path}: the file has {file.file_size_in_bytes} bytes, and {km.file_length} by its "
            "key metadata"
        )


def _entry_values(entry: Entry, snapshot_id: int, partition: tuple[Any, ...]) -> tuple[Any, ...]:
    file = entry.file
    is_data, is_positions = file.content == DATA, file.content == POSITION_DELETES
    values = (
        file.content,
        file.file_path,
        file.file_format,
        partition,
        file.record_count,
        file.file_size_in_bytes,
        file.column_sizes,
        file.value_counts,
        file.null_value_counts,
        file.nan_value_counts,
        file.lower_bounds,
        file.upper_bounds,
        file.key_metadata,
        file.split_offsets,
        file.equality_ids,
        file.sort_order_id,
        file.first_row_id if is_data else None,
        file.referenced_data_file if is_positions else None,
        file.content_offset if is_positions else None,
        file.content_size_in_bytes if is_positions else None,
    )
    return (
        entry.status,
        snapshot_id if entry.snapshot_id is None else entry.snapshot_id,
        entry.sequence_number,
        entry.file_sequence_number,
        values,
    )


def _check_manifest(manifest: ManifestRecord, snapshot_id: int) -> None:
    path = manifest.manifest_path
    numbers = manifest.sequence_number, manifest.min_sequence_number
    if None in numbers and manifest.added_snapshot_id != snapshot_id:
        raise ValueError(
            f"{path}: the manifest has no sequence number and was added by snapshot "
            f"{manifest.added_snapshot_id}, not by {snapshot_id}"
        )
    if manifest.content not in (DATA_MANIFEST, DELETE_MANIFEST):
        raise ValueError(f"{path}: a manifest holds data (0) or deletes (1)")
    if manifest.key_metadata is None:
        raise NotEncryptedError("a manifest of an encrypted table has no key", file=path)
    length = KeyMetadata.from_bytes(manifest.key_metadata).file_length
    if length not in (None, manifest.manifest_length):
        raise ValueError(
            f"{path}: the manifest has {manifest.manifest_length} bytes, and {length} by its key "
            "metadata"
        )


def _manifest_values(
    manifest: ManifestRecord, sequence_number: int, first_row_id: int | None
) -> tuple[Any, ...]:
    own, smallest = manifest.sequence_number, manifest.min_sequence_number
    return (
        manifest.manifest_path,
        manifest.manifest_length,
        manifest.partition_spec_id,
        manifest.content,
        sequence_number if own is None else own,
        sequence_number if smallest is None else smallest,
        manifest.added_snapshot_id,
        manifest.added_files_count,
        manifest.existing_files_count,
        manifest.deleted_files_count,
        manifest.added_rows_count,
        manifest.existing_rows_count,
        manifest.deleted_rows_count,
        None
        if manifest.partitions is None
        else [
            (s.contains_null, s.contains_nan, s.lower_bound, s.upper_bound)
            for s in manifest.partitions
        ],
        manifest.key_metadata,
        first_row_id,
    )


# -- partitions


class _PartitionField:
    """One field of a manifest's partitions: how it is written, and its summary so far.

    Values are compared as Java compares them: text by code points, bytes unsigned, -0.0 before 0.0.
    Follows Java's ``PartitionSummary``.
    """

    def __init__(self, partition_type: IcebergType) -> None:
        self._type = partition_type
        self.kind = _partition_kind(partition_type)
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

    def summary(self) -> FieldSummary:
        return FieldSummary(
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


# -- Avro


def _zigzag(number: int) -> bytes:
    if not -(1 << 63) <= number < 1 << 63:
        raise ValueError("the number has more than 64 bits")
    number = (number << 1) ^ (number >> 63)
    if number < 0x80:
        return bytes((number,))
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


# Most numbers of a manifest come again and again: column ids, counts, the lengths of bounds.
_long = functools.lru_cache(maxsize=1 << 16)(_zigzag)


def _int(number: int) -> bytes:
    if not -(1 << 31) <= number < 1 << 31:
        raise ValueError("the number has more than 32 bits")
    return _long(number)


def _bytes(data: bytes) -> bytes:
    return _long(len(data)) + bytes(memoryview(data))


def _string(text: str) -> bytes:
    return _bytes(text.encode())


def _boolean(value: bool) -> bytes:
    if not isinstance(value, bool):
        raise TypeError("not a boolean")
    return b"\x01" if value else b"\x00"


def _fixed(size: int) -> Callable[[bytes], bytes]:
    def encode(data: bytes) -> bytes:
        if len(data) != size:
            raise ValueError(f"not {size} bytes")
        return bytes(memoryview(data))

    return encode


def _null(value: None) -> bytes:
    if value is not None:
        raise ValueError("the column was dropped and its type with it")
    return b""


_INT, _LONG = _Kind("int", _int), _Kind("long", _long)
_STRING, _BYTES = _Kind("string", _string), _Kind("bytes", _bytes)
_BOOLEAN, _NULL = _Kind("boolean", _boolean), _Kind("null", _null)


def _optional(kind: _Kind) -> _Kind:
    if kind.avro == "null":
        return kind
    encode = kind.encode
    return _Kind(
        ["null", kind.avro], lambda value: b"\x00" if value is None else b"\x02" + encode(value)
    )


def _array(item: _Kind, element_id: int) -> _Kind:
    encode = item.encode

    def encode_items(items: Sequence[Any]) -> bytes:
        if not items:
            return b"\x00"
        return _long(len(items)) + b"".join(map(encode, items)) + b"\x00"

    return _Kind({"type": "array", "items": item.avro, "element-id": element_id}, encode_items)


def _map(key_id: int, value_id: int, value: _Kind) -> _Kind:
    """A map with integers for keys, which Avro has as an array of pairs."""
    pair = {
        "type": "record",
        "name": f"k{key_id}_v{value_id}",
        "fields": [
            {"name": "key", "type": "int", "field-id": key_id},
            {"name": "value", "type": value.avro, "field-id": value_id},
        ],
    }
    encode = value.encode

    def encode_pairs(pairs: Mapping[int, Any]) -> bytes:
        if not pairs:
            return b"\x00"
        encoded = b"".join([_int(key) + encode(item) for key, item in pairs.items()])
        return _long(len(pairs)) + encoded + b"\x00"

    return _Kind({"type": "array", "items": pair, "logicalType": "map"}, encode_pairs)


class _BadValueError(ValueError):
    """A value that its field cannot have. It may be a key: only the field is named."""


def _record(name: str, fields: Sequence[_Field]) -> _Kind:
    """A record, whose values come as a sequence."""
    encoders = [(field.name, _of_field(field).encode) for field in fields]

    def encode_values(values: Sequence[Any]) -> bytes:
        encoded = []
        for (field_name, encode), value in zip(encoders, values, strict=True):
            try:
                encoded.append(encode(value))
            except _BadValueError:
                raise
            except (TypeError, ValueError, AttributeError, OverflowError, struct.error):
                raise _BadValueError(f"{field_name} has an impossible value") from None
        return b"".join(encoded)

    named: set[str] = set()
    avro = [_avro_field(field, named) for field in fields]
    return _Kind({"type": "record", "name": name, "fields": avro}, encode_values)


def _of_field(field: _Field) -> _Kind:
    return field.kind if field.required else _optional(field.kind)


def _avro_field(field: _Field, named: set[str]) -> dict[str, Any]:
    kind = field.kind
    if isinstance(kind.avro, dict) and "name" in kind.avro:
        # Avro defines a named type once; from then on its name stands for it.
        if kind.avro["name"] in named:
            kind = kind._replace(avro=kind.avro["name"])
        else:
            named.add(kind.avro["name"])
    name = make_compatible_name(field.name)
    avro: dict[str, Any] = {"name": name, "type": _of_field(field._replace(kind=kind)).avro}
    if field.doc is not None:
        avro["doc"] = field.doc
    if not field.required:
        avro["default"] = None
    if name != field.name:
        avro["iceberg-field-name"] = field.name
    avro["field-id"] = field.field_id
    return avro


def _partition_kind(partition_type: IcebergType) -> _Kind:
    """Return how a type's values, normalized, are written. Appendix A of the specification."""
    match partition_type:
        case DecimalType():
            size = decimal_required_bytes(partition_type.precision)
            decimal = {
                "type": "fixed",
                "name": f"decimal_{partition_type.precision}_{partition_type.scale}",
                "size": size,
                "logicalType": "decimal",
                "precision": partition_type.precision,
                "scale": partition_type.scale,
            }
            return _Kind(decimal, lambda unscaled: unscaled.to_bytes(size, "big", signed=True))
        case FixedType():
            size = len(partition_type)
            return _Kind({"type": "fixed", "name": f"fixed_{size}", "size": size}, _fixed(size))
    kind = _PARTITION_KINDS.get(type(partition_type))
    if kind is None:
        raise ValueError(f"there can be no partitions of type {partition_type}")
    return kind


def _logical(base: _Kind, logical_type: str, **more: Any) -> _Kind:
    return _Kind({"type": base.avro, "logicalType": logical_type, **more}, base.encode)


_PARTITION_KINDS: dict[type[IcebergType], _Kind] = {
    BooleanType: _BOOLEAN,
    IntegerType: _INT,
    LongType: _LONG,
    FloatType: _Kind("float", struct.Struct("<f").pack),
    DoubleType: _Kind("double", struct.Struct("<d").pack),
    StringType: _STRING,
    BinaryType: _BYTES,
    UUIDType: _Kind(
        {"type": "fixed", "name": "uuid_fixed", "size": 16, "logicalType": "uuid"}, _fixed(16)
    ),
    DateType: _logical(_INT, "date"),
    TimeType: _logical(_LONG, "time-micros"),
    TimestampType: _logical(_LONG, "timestamp-micros", **{"adjust-to-utc": False}),
    TimestamptzType: _logical(_LONG, "timestamp-micros", **{"adjust-to-utc": True}),
    TimestampNanoType: _logical(_LONG, "timestamp-nanos", **{"adjust-to-utc": False}),
    TimestamptzNanoType: _logical(_LONG, "timestamp-nanos", **{"adjust-to-utc": True}),
    UnknownType: _NULL,
}


# -- the schemas of format version 3


def _entry_kind(partition_fields: Sequence[_Field]) -> _Kind:
    """``manifest_entry``, in the order of ``_entry_values``."""
    partition = _record("r102", partition_fields)
    file_fields = [
        _Field(134, "content", _INT, _CONTENT_DOC, required=True),
        _Field(100, "file_path", _STRING, "Location URI with FS scheme", required=True),
        _Field(101, "file_format", _STRING, _FORMAT_DOC, required=True),
        _Field(102, "partition", partition, _PARTITION_DOC, required=True),
        _Field(103, "record_count", _LONG, "Number of records in the file", required=True),
        _Field(104, "file_size_in_bytes", _LONG, "Total file size in bytes", required=True),
        _Field(
            108, "column_sizes", _map(117, 118, _LONG), "Map of column id to total size on disk"
        ),
        _Field(109, "value_counts", _map(119, 120, _LONG), _VALUE_COUNTS_DOC),
        _Field(
            110, "null_value_counts", _map(121, 122, _LONG), "Map of column id to null value count"
        ),
        _Field(137, "nan_value_counts", _map(138, 139, _LONG), _NAN_COUNTS_DOC),
        _Field(125, "lower_bounds", _map(126, 127, _BYTES), "Map of column id to lower bound"),
        _Field(128, "upper_bounds", _map(129, 130, _BYTES), "Map of column id to upper bound"),
        _Field(131, "key_metadata", _BYTES, "Encryption key metadata blob"),
        _Field(132, "split_offsets", _array(_LONG, 133), "Splittable offsets"),
        _Field(135, "equality_ids", _array(_INT, 136), "Equality comparison field IDs"),
        _Field(140, "sort_order_id", _INT, "Sort order ID"),
        _Field(142, "first_row_id", _LONG, _FILE_ROW_ID_DOC),
        _Field(143, "referenced_data_file", _STRING, _REFERENCED_DOC),
        _Field(144, "content_offset", _LONG, "The offset in the file where the content starts"),
        _Field(145, "content_size_in_bytes", _LONG, _CONTENT_SIZE_DOC),
    ]
    return _record(
        "manifest_entry",
        [
            _Field(0, "status", _INT, required=True),
            _Field(1, "snapshot_id", _LONG),
            _Field(3, "sequence_number", _LONG),
            _Field(4, "file_sequence_number", _LONG),
            _Field(2, "data_file", _record("r2", file_fields), required=True),
        ],
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

_FIELD_SUMMARY = _record(
    "r508",
    [
        _Field(
            509,
            "contains_null",
            _BOOLEAN,
            "True if any file has a null partition value",
            required=True,
        ),
        _Field(518, "contains_nan", _BOOLEAN, "True if any file has a nan partition value"),
        _Field(510, "lower_bound", _BYTES, "Partition lower bound for all files"),
        _Field(511, "upper_bound", _BYTES, "Partition upper bound for all files"),
    ],
)
# In the order of ``_manifest_values``.
_MANIFEST_FILE = _record(
    "manifest_file",
    [
        _Field(500, "manifest_path", _STRING, "Location URI with FS scheme", required=True),
        _Field(501, "manifest_length", _LONG, "Total file size in bytes", required=True),
        _Field(502, "partition_spec_id", _INT, "Spec ID used to write", required=True),
        _Field(517, "content", _INT, "Contents of the manifest: 0=data, 1=deletes", required=True),
        _Field(
            515,
            "sequence_number",
            _LONG,
            "Sequence number when the manifest was added",
            required=True,
        ),
        _Field(
            516,
            "min_sequence_number",
            _LONG,
            "Lowest sequence number in the manifest",
            required=True,
        ),
        _Field(
            503, "added_snapshot_id", _LONG, "Snapshot ID that added the manifest", required=True
        ),
        _Field(504, "added_files_count", _INT, "Added entry count", required=True),
        _Field(505, "existing_files_count", _INT, "Existing entry count", required=True),
        _Field(506, "deleted_files_count", _INT, "Deleted entry count", required=True),
        _Field(512, "added_rows_count", _LONG, "Added rows count", required=True),
        _Field(513, "existing_rows_count", _LONG, "Existing rows count", required=True),
        _Field(514, "deleted_rows_count", _LONG, "Deleted rows count", required=True),
        _Field(507, "partitions", _array(_FIELD_SUMMARY, 508), "Summary for each partition"),
        _Field(519, "key_metadata", _BYTES, "Encryption key metadata blob"),
        _Field(
            520, "first_row_id", _LONG, "Starting row ID to assign to new rows in ADDED data files"
        ),
    ],
)


# -- the container


def _deflated(block: bytes, level: int | None) -> bytes:
    stream = zlib.compressobj(6 if level is None else level, zlib.DEFLATED, -zlib.MAX_WBITS)
    return stream.compress(block) + stream.flush()


def _zstandard(block: bytes, level: int | None) -> bytes:
    return cast(bytes, pa.Codec("zstd", compression_level=level).compress(block, asbytes=True))


def _snappy(block: bytes, level: int | None) -> bytes:
    compressed = cast(bytes, pa.Codec("snappy").compress(block, asbytes=True))
    return compressed + zlib.crc32(block).to_bytes(4, "big")


def _plain(block: bytes, level: int | None) -> bytes:
    return block


# By Iceberg's names of codecs: Avro's name, and what compresses a block.
_CODECS: dict[str, tuple[str, Callable[[bytes, int | None], bytes]]] = {
    "gzip": ("deflate", _deflated),
    "zstd": ("zstandard", _zstandard),
    "snappy": ("snappy", _snappy),
    "uncompressed": ("null", _plain),
}


class _Container:
    """An Avro file in memory; ``size`` is that of its finished blocks (bytes)."""

    def __init__(
        self, kind: _Kind, header: Mapping[str, str], codec: str, level: int | None
    ) -> None:
        known = _CODECS.get(codec.lower())
        if known is None:
            raise ValueError(f"the codec is {codec!r}, not one of {', '.join(_CODECS)}")
        name, self._compress = known
        self._level = level
        self._encode = kind.encode
        self._sync = os.urandom(_SYNC_SIZE)
        metadata = {**header, "avro.schema": _compact(kind.avro), "avro.codec": name}
        pairs = b"".join(_string(key) + _string(value) for key, value in metadata.items())
        self._parts = [_MAGIC + _long(len(metadata)) + pairs + b"\x00" + self._sync]
        self.size = len(self._parts[0])
        self._records: list[bytes] = []
        self._block_size = 0

    def add(self, values: Sequence[Any]) -> None:
        encoded = self._encode(values)
        self._records.append(encoded)
        self._block_size += len(encoded)
        if self._block_size >= _BLOCK_SIZE:
            self._end_block()

    def finish(self) -> bytes:
        """Return the whole file."""
        if self._records:
            self._end_block()
        return b"".join(self._parts)

    def _end_block(self) -> None:
        block = self._compress(b"".join(self._records), self._level)
        part = _long(len(self._records)) + _bytes(block) + self._sync
        self._parts.append(part)
        self.size += len(part)
        self._records = []
        self._block_size = 0


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)

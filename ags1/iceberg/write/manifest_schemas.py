"""The Avro records of manifests and manifest lists of format version 3, as Java writes them.

Names, field IDs, order and documentation are Java's (``V3Metadata``). PyIceberg's schemas have
other documentation and defaults, and another type of ``equality_ids``.
"""

from __future__ import annotations

import functools

from pyiceberg.types import (
    BinaryType,
    BooleanType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
)

_INT, _LONG, _STRING, _BYTES = IntegerType(), LongType(), StringType(), BinaryType()
_BOOL = BooleanType()


def _field(
    field_id: int, name: str, kind: IcebergType, doc: str | None = None, required: bool = False
) -> NestedField:
    """Return a field; optional fields have the default null."""
    return NestedField(field_id, name, kind, required=required, doc=doc)


def _required(field_id: int, name: str, kind: IcebergType, doc: str | None = None) -> NestedField:
    return _field(field_id, name, kind, doc, required=True)


def _by_column(key_id: int, kind: IcebergType) -> MapType:
    return MapType(key_id, _INT, key_id + 1, kind)


@functools.lru_cache(maxsize=64)
def entry_type(partition: StructType) -> StructType:
    """``manifest_entry``, in the order of PyIceberg's records."""
    file = StructType(
        _required(134, "content", _INT, _CONTENT_DOC),
        _required(100, "file_path", _STRING, "Location URI with FS scheme"),
        _required(101, "file_format", _STRING, _FORMAT_DOC),
        _required(102, "partition", partition, _PARTITION_DOC),
        _required(103, "record_count", _LONG, "Number of records in the file"),
        _required(104, "file_size_in_bytes", _LONG, "Total file size in bytes"),
        _field(108, "column_sizes", _by_column(117, _LONG), _COLUMN_SIZES_DOC),
        _field(109, "value_counts", _by_column(119, _LONG), _VALUE_COUNTS_DOC),
        _field(110, "null_value_counts", _by_column(121, _LONG), _NULL_COUNTS_DOC),
        _field(137, "nan_value_counts", _by_column(138, _LONG), _NAN_COUNTS_DOC),
        _field(125, "lower_bounds", _by_column(126, _BYTES), "Map of column id to lower bound"),
        _field(128, "upper_bounds", _by_column(129, _BYTES), "Map of column id to upper bound"),
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
        _required(0, "status", _INT),
        _field(1, "snapshot_id", _LONG),
        _field(3, "sequence_number", _LONG),
        _field(4, "file_sequence_number", _LONG),
        _required(2, "data_file", file),
    )


_CONTENT_DOC = "Contents of the file: 0=data, 1=position deletes, 2=equality deletes"
_FORMAT_DOC = "File format name: avro, orc, or parquet"
_PARTITION_DOC = "Partition data tuple, schema based on the partition spec"
_COLUMN_SIZES_DOC = "Map of column id to total size on disk"
_VALUE_COUNTS_DOC = "Map of column id to total count, including null and NaN"
_NULL_COUNTS_DOC = "Map of column id to null value count"
_NAN_COUNTS_DOC = "Map of column id to number of NaN values in the column"
_FILE_ROW_ID_DOC = "The first row ID assigned to the first row in the data file"
_REFERENCED_DOC = (
    "Fully qualified location (URI with FS scheme) of a data file that all deletes reference"
)
_CONTENT_SIZE_DOC = "The length of referenced content stored in the file"

_FIELD_SUMMARY = StructType(
    _required(509, "contains_null", _BOOL, "True if any file has a null partition value"),
    _field(518, "contains_nan", _BOOL, "True if any file has a nan partition value"),
    _field(510, "lower_bound", _BYTES, "Partition lower bound for all files"),
    _field(511, "upper_bound", _BYTES, "Partition upper bound for all files"),
)
# In the order of PyIceberg's records.
MANIFEST_FILE = StructType(
    _required(500, "manifest_path", _STRING, "Location URI with FS scheme"),
    _required(501, "manifest_length", _LONG, "Total file size in bytes"),
    _required(502, "partition_spec_id", _INT, "Spec ID used to write"),
    _required(517, "content", _INT, "Contents of the manifest: 0=data, 1=deletes"),
    _required(515, "sequence_number", _LONG, "Sequence number when the manifest was added"),
    _required(516, "min_sequence_number", _LONG, "Lowest sequence number in the manifest"),
    _required(503, "added_snapshot_id", _LONG, "Snapshot ID that added the manifest"),
    _required(504, "added_files_count", _INT, "Added entry count"),
    _required(505, "existing_files_count", _INT, "Existing entry count"),
    _required(506, "deleted_files_count", _INT, "Deleted entry count"),
    _required(512, "added_rows_count", _LONG, "Added rows count"),
    _required(513, "existing_rows_count", _LONG, "Existing rows count"),
    _required(514, "deleted_rows_count", _LONG, "Deleted rows count"),
    _field(507, "partitions", ListType(508, _FIELD_SUMMARY), "Summary for each partition"),
    _field(519, "key_metadata", _BYTES, "Encryption key metadata blob"),
    _field(520, "first_row_id", _LONG, "Starting row ID to assign to new rows in ADDED data files"),
)

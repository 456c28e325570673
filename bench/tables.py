"""Iceberg tables to measure with: encrypted, and plain twins with the same rows, files and blocks.

Format V3 as Java writes it, by pyarrow and fastavro in PyIceberg's schemas of metadata files:
``ags1.iceberg`` takes no part. One snapshot, no commits. Needs numpy, pyarrow and PyIceberg.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow.parquet.encryption import create_encryption_properties
from pyiceberg.conversions import to_bytes
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import (
    MANIFEST_LIST_FILE_SCHEMAS,
    data_file_with_partition,
    manifest_entry_schema_with_data_file,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

import ags1
from ags1 import KeyMetadata
from ags1.keys import EncryptionManager
from ags1.keys.envelope import encryption_keys_to_dicts
from ags1.kms import KmsClient

ORDERS = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "customer", IntegerType()),
    NestedField(3, "price", DoubleType()),
    NestedField(4, "category", StringType()),
    NestedField(5, "name", StringType()),
    NestedField(6, "made_at", TimestamptzType()),
    NestedField(7, "amount", DecimalType(12, 2)),
    NestedField(8, "is_paid", BooleanType()),
    NestedField(9, "day", DateType()),
    NestedField(10, "sizes", ListType(11, IntegerType(), element_required=True)),
)
ORDERS_BY_DAY = PartitionSpec(PartitionField(9, 1000, IdentityTransform(), "day"))
PAYLOADS = Schema(NestedField(1, "payload", BinaryType(), required=True))

# What a row of ``orders`` takes in a Parquet file, about.
BYTES_PER_ORDER = 35
ROW_GROUP_ROWS = 1 << 20

_KEY_ID = "key"
_SNAPSHOT_ID = 4242
_TIME_MS = 1_790_000_000_000
_LEAVES = [field.field_id for field in ORDERS.fields[:-1]] + [11]

Entry = dict[str, Any]


class TableWriter:
    """Writes one table into ``folder``; encrypted, if there is a ``kms``."""

    def __init__(
        self,
        folder: Path,
        schema: Schema,
        spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
        kms: KmsClient | None = None,
    ) -> None:
        self._folder = folder
        self._schema = schema
        self._spec = spec
        self._keys = EncryptionManager(kms, _KEY_ID) if kms else None
        self._manifests: list[Entry] = []
        self._data_size = 0
        partition = spec.partition_type(schema)
        data_file = _like_java(data_file_with_partition(partition, 3))
        self._entry_schema = fastavro.parse_schema(
            _avro(manifest_entry_schema_with_data_file(3, data_file), "manifest_entry")
        )
        for name in ("data", "metadata"):
            (folder / name).mkdir(parents=True)

    def parquet_file(self, name: str, rows: pa.Table) -> Entry:
        """Write a data file; return its manifest entry."""
        path = self._path(f"data/{name}.parquet")
        km = self._new_key()
        pq.write_table(
            rows,
            path,
            row_group_size=ROW_GROUP_ROWS,
            compression="zstd",
            # Java's files have no Arrow schema in them.
            store_schema=False,
            encryption_properties=km
            and create_encryption_properties(
                km.encryption_key, aad_prefix=km.aad_prefix, store_aad_prefix=False
            ),
        )
        km = km and km.with_file_length(path.stat().st_size)
        return self._entry(path, "PARQUET", rows.num_rows, path.stat().st_size, km)

    def avro_file(self, name: str, payloads: Sequence[bytes]) -> Entry:
        """Write a data file of the schema ``PAYLOADS``; return its manifest entry."""
        path = self._path(f"data/{name}.avro")
        records = [{"payload": payload} for payload in payloads]
        size, km = self._write_avro(path, _avro(PAYLOADS, "table"), records, {}, "null")
        return self._entry(path, "AVRO", len(records), size, km)

    def absent_file(self, name: str, rows: int, size: int, day: int) -> Entry:
        """Return the manifest entry, with all metrics, of a data file that is not written.

        For a table of the schema ``ORDERS`` that nobody scans.
        """
        km = self._new_key()
        km = km and km.with_file_length(size)
        path = self._path(f"data/day={day}/{name}.parquet")
        entry = self._entry(path, "PARQUET", rows, size, km)
        counts = dict.fromkeys(_LEAVES, rows)
        bounds: dict[int, object] = {
            1: day * rows,
            2: 17,
            3: 0.5,
            4: "category 1",
            5: "customer 17",
            6: _TIME_MS * 1000 + day,
            7: Decimal("17.00"),
            8: True,
            9: day,
        }
        values = {
            i: to_bytes(ORDERS.find_type(i), value)  # type: ignore[arg-type]
            for i, value in bounds.items()
        }
        return entry | {
            "partition": {"day": day},
            "column_sizes": _map(dict.fromkeys(_LEAVES, size // len(_LEAVES))),
            "value_counts": _map(counts),
            "null_value_counts": _map(dict.fromkeys(_LEAVES, 0)),
            "nan_value_counts": _map({3: 0}),
            "lower_bounds": _map(values),
            "upper_bounds": _map(values),
            "split_offsets": [4],
            "sort_order_id": 0,
        }

    def manifest(self, entries: Sequence[Entry]) -> None:
        """Write a manifest of data files, all of one partition."""
        path = self._path(f"metadata/{len(self._manifests):05}-m0.avro")
        records = [
            {
                "status": 1,
                "snapshot_id": _SNAPSHOT_ID,
                "sequence_number": None,
                "file_sequence_number": None,
                "data_file": entry,
            }
            for entry in entries
        ]
        header = {
            "schema": self._schema.model_dump_json(),
            "partition-spec": json.dumps(_dump(self._spec)["fields"]),
            "partition-spec-id": str(self._spec.spec_id),
            "format-version": "3",
            "content": "data",
        }
        size, km = self._write_avro(path, self._entry_schema, records, header, "deflate")
        self._data_size += sum(entry["file_size_in_bytes"] for entry in entries)
        self._manifests.append(
            {
                "manifest_path": _location(path),
                "manifest_length": size,
                "partition_spec_id": self._spec.spec_id,
                "content": 0,
                "sequence_number": 1,
                "min_sequence_number": 1,
                "added_snapshot_id": _SNAPSHOT_ID,
                "added_files_count": len(entries),
                "existing_files_count": 0,
                "deleted_files_count": 0,
                "added_rows_count": sum(entry["record_count"] for entry in entries),
                "existing_rows_count": 0,
                "deleted_rows_count": 0,
                "partitions": [
                    _summary(to_bytes(DateType(), value))
                    for value in entries[0]["partition"].values()
                ],
                "key_metadata": km and km.to_bytes(),
                "first_row_id": None,
            }
        )

    def finish(self) -> str:
        """Write the manifest list and metadata.json; return the latter's location."""
        path = self._path(f"metadata/snap-{_SNAPSHOT_ID}.avro")
        schema = _avro(MANIFEST_LIST_FILE_SCHEMAS[3], "manifest_file")
        header = {"snapshot-id": str(_SNAPSHOT_ID), "format-version": "3"}
        _, km = self._write_avro(path, schema, self._manifests, header, "deflate")
        snapshot = {
            "sequence-number": 1,
            "snapshot-id": _SNAPSHOT_ID,
            "timestamp-ms": _TIME_MS,
            "summary": {"operation": "append", "total-files-size": str(self._data_size)},
            "manifest-list": _location(path),
            "schema-id": 0,
            "first-row-id": 0,
            "added-rows": 0,
        }
        properties: dict[str, str] = {}
        metadata = {
            "format-version": 3,
            "table-uuid": "8b7d2a0e-6c1f-4c58-9d0b-1f6f2f4e7a93",
            "location": _location(self._folder),
            "last-sequence-number": 1,
            "last-updated-ms": _TIME_MS,
            "last-column-id": self._schema.highest_field_id,
            "current-schema-id": 0,
            "schemas": [_dump(self._schema)],
            "default-spec-id": 0,
            "partition-specs": [_dump(self._spec)],
            "last-partition-id": 1000,
            "default-sort-order-id": 0,
            "sort-orders": [{"order-id": 0, "fields": []}],
            "properties": properties,
            "next-row-id": 0,
            "current-snapshot-id": _SNAPSHOT_ID,
            "snapshots": [snapshot],
            "refs": {"main": {"snapshot-id": _SNAPSHOT_ID, "type": "branch"}},
            "snapshot-log": [{"timestamp-ms": _TIME_MS, "snapshot-id": _SNAPSHOT_ID}],
            "metadata-log": [],
            "statistics": [],
            "partition-statistics": [],
        }
        if self._keys and km:
            properties["encryption.key-id"] = _KEY_ID
            snapshot["key-id"] = self._keys.add_manifest_list_key(km)
            metadata["encryption-keys"] = encryption_keys_to_dicts(self._keys.encryption_keys)
        path = self._path("metadata/00001.metadata.json")
        path.write_text(json.dumps(metadata))
        return _location(path)

    def _entry(
        self, path: Path, file_format: str, rows: int, size: int, km: KeyMetadata | None
    ) -> Entry:
        return {
            "content": 0,
            "file_path": _location(path),
            "file_format": file_format,
            "partition": {},
            "record_count": rows,
            "file_size_in_bytes": size,
            "key_metadata": km and km.to_bytes(),
        }

    def _write_avro(
        self,
        path: Path,
        schema: Any,
        records: Sequence[Mapping[str, Any]],
        header: Mapping[str, str],
        codec: str,
    ) -> tuple[int, KeyMetadata | None]:
        """Write an Avro file, as AGS1 in an encrypted table; return its size and what opens it."""
        out = io.BytesIO()
        fastavro.writer(out, schema, records, codec=codec, metadata=dict(header))
        km = self._new_key()
        if km is None:
            return path.write_bytes(out.getbuffer()), None
        sealed, km = ags1.encrypt(out.getbuffer(), km=km)
        return path.write_bytes(sealed), km

    def _new_key(self) -> KeyMetadata | None:
        return None if self._keys is None else self._keys.new_file_key()

    def _path(self, name: str) -> Path:
        return self._folder / name


def orders(first: int, count: int) -> pa.Table:
    """Return ``count`` rows of the schema ``ORDERS``, from the id ``first`` on."""
    random = np.random.default_rng(first)
    ids = np.arange(first, first + count)
    customers = random.integers(0, 5_000_000, count, dtype=np.int32)
    days = (20_000 + ids // 100_000).astype(np.int32)
    cents = pa.array(random.integers(0, 10_000_000, count)).cast(pa.decimal128(19, 0))
    offsets = np.concatenate([[0], np.cumsum(random.integers(0, 4, count))]).astype(np.int32)
    columns = {
        "id": ids,
        "customer": pa.array(customers, mask=random.random(count) < 0.05),
        "price": random.random(count) * 1000,
        "category": pa.array([f"category {n}" for n in range(20)]).take(
            pa.array(random.integers(0, 20, count))
        ),
        "name": pc.binary_join_element_wise(
            "customer", pa.array(customers).cast("string"), _tokens(random.bytes(8 * count)), " "
        ),
        "made_at": _TIME_MS * 1000 + ids * 1000 + random.integers(0, 1000, count),
        "amount": pc.multiply(cents, pa.scalar(Decimal("0.01"))),
        "is_paid": random.random(count) < 0.7,
        "day": days,
        "sizes": pa.ListArray.from_arrays(
            pa.array(offsets), pa.array(random.integers(0, 50, offsets[-1], dtype=np.int32))
        ),
    }
    schema = schema_to_pyarrow(ORDERS)
    return pa.table(
        [pa.array(columns[f.name]).cast(f.type) for f in schema],
        schema=schema,
    )


def _tokens(random: bytes) -> pa.Array:
    """Random bytes as strings of 16 digits: text that compresses by half."""
    digits = random.hex().encode()
    tokens = pa.Array.from_buffers(pa.binary(16), len(digits) // 16, [None, pa.py_buffer(digits)])
    return tokens.cast(pa.binary()).cast(pa.string())


def _location(path: Path) -> str:
    return f"file://{path}"


def _dump(model: Schema | PartitionSpec) -> dict[str, Any]:
    dumped: dict[str, Any] = json.loads(model.model_dump_json())
    return dumped


def _like_java(data_file: StructType) -> StructType:
    """PyIceberg's ``equality_ids`` are longs, and Java's are integers."""
    ids = NestedField(135, "equality_ids", ListType(136, IntegerType()), required=False)
    return StructType(*(ids if f.field_id == 135 else f for f in data_file.fields))


def _avro(schema: Schema, name: str) -> Any:
    return AvroSchemaConversion().iceberg_to_avro(schema, name)


def _map(values: Mapping[int, object]) -> list[dict[str, object]]:
    """A map as Iceberg has it in Avro where the keys are no strings."""
    return [{"key": key, "value": value} for key, value in values.items()]


def _summary(bound: bytes) -> dict[str, object]:
    return {
        "contains_null": False,
        "contains_nan": None,
        "lower_bound": bound,
        "upper_bound": bound,
    }

"""Tiny Iceberg V3 tables, encrypted or plain, written by fastavro and pyarrow.

What Java's fixtures do not have: position and equality deletes, plain data files among encrypted
ones, other partitions, schemas and codecs, damage of every kind. A plain twin of the same table is
there for PyIceberg to read. Not a writer for users: no commit, no checks.
"""

from __future__ import annotations

import io
import itertools
import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.parquet.encryption import create_encryption_properties
from pyiceberg.conversions import to_bytes
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import PrimitiveType
from pyroaring import BitMap64

import ags1
from ags1 import KeyMetadata
from ags1.keys.envelope import encryption_keys_to_dicts
from ags1.keys.manager import EncryptionManager
from ags1.kms import KmsClient

PATH_ID, POS_ID = 2147483546, 2147483545
ADDED, EXISTING, DELETED = 0, 1, 2
ADDED_STATUS = 1
DATA, POSITION_DELETES, EQUALITY_DELETES = 0, 1, 2

Entry = dict[str, Any]


class TableMaker:
    """A table under construction in ``folder``, which its metadata knows as ``location``.

    ``schema`` is Iceberg's JSON; ``fields`` those of its one partition spec. Without a ``kms`` the
    table is plain. Each ``add_*`` returns a manifest entry's data file, for ``commit``.
    """

    def __init__(
        self,
        folder: Path,
        columns: Sequence[Mapping[str, Any]],
        kms: KmsClient | None = None,
        *,
        location: str | None = None,
        partition_fields: Sequence[Mapping[str, Any]] = (),
        key_id: str = "keyA",
        data_key_length: int = 16,
        avro_codec: str = "deflate",
    ) -> None:
        self.folder = folder
        self.location = location or f"file://{folder}"
        (folder / "data").mkdir(parents=True)
        (folder / "metadata").mkdir()
        self.schemas: list[dict[str, Any]] = []
        self.set_schema(columns)
        self.specs: list[dict[str, Any]] = [{"spec-id": 0, "fields": list(partition_fields)}]
        self.manager = (
            EncryptionManager(kms, key_id, data_key_length=data_key_length) if kms else None
        )
        self.avro_codec = avro_codec
        self.snapshots: list[dict[str, Any]] = []
        self.refs: dict[str, Any] = {}
        self.manifests: list[dict[str, Any]] = []
        self.properties: dict[str, str] = {}
        if self.manager:
            self.properties["encryption.key-id"] = key_id
            if data_key_length != 16:
                self.properties["encryption.data-key-length"] = str(data_key_length)
        self._numbers = itertools.count(1)

    # -- the schema

    def set_schema(self, columns: Sequence[Mapping[str, Any]]) -> None:
        """Make another schema the current one."""
        fields = [{"required": False, **column} for column in columns]
        self.schemas.append({"type": "struct", "schema-id": len(self.schemas), "fields": fields})

    def add_spec(self, fields: Sequence[Mapping[str, Any]]) -> int:
        """Add a partition spec; return its id."""
        self.specs.append({"spec-id": len(self.specs), "fields": list(fields)})
        return len(self.specs) - 1

    @property
    def schema(self) -> Schema:
        return Schema.model_validate(self.schemas[-1])

    # -- files

    def add_parquet(
        self,
        rows: Sequence[Mapping[str, Any]] | pa.Table,
        *,
        schema: Schema | None = None,
        encrypted: bool = True,
        partition: Mapping[str, Any] | None = None,
        spec_id: int = 0,
        row_group_size: int | None = None,
        **content: Any,
    ) -> Entry:
        """Write a data file (or, with ``content``, another) of rows in the table's schema."""
        schema = schema or self.schema
        table = _table(rows, schema)
        entry = self.add_parquet_of(
            table, encrypted, partition, spec_id, row_group_size=row_group_size
        )
        return entry | _metrics(table, schema) | content

    def add_parquet_of(
        self,
        table: pa.Table,
        encrypted: bool = True,
        partition: Mapping[str, Any] | None = None,
        spec_id: int = 0,
        **options: Any,
    ) -> Entry:
        """Write a data file of these columns, as another writer would, with pyarrow's options."""
        km = self._new_key(encrypted)
        properties = km and create_encryption_properties(
            km.encryption_key, aad_prefix=km.aad_prefix, store_aad_prefix=False
        )
        out = io.BytesIO()
        pq.write_table(table, out, encryption_properties=properties, **options)
        km = km and km.with_file_length(len(out.getvalue()))
        return self._entry("parquet", out.getvalue(), km, table.num_rows, partition, spec_id)

    def add_avro(
        self,
        rows: Sequence[Mapping[str, Any]],
        avro_schema: Mapping[str, Any],
        *,
        encrypted: bool = True,
        partition: Mapping[str, Any] | None = None,
        spec_id: int = 0,
        **content: Any,
    ) -> Entry:
        """Write an Avro file; ``avro_schema`` has its ``field-id``s."""
        data, km = self._sealed(_avro(avro_schema, rows, {}, self.avro_codec), encrypted)
        return self._entry("avro", data, km, len(rows), partition, spec_id) | content

    def add_position_deletes(self, path_positions: Sequence[tuple[str, int]], **more: Any) -> Entry:
        """Write a Parquet file of position deletes."""
        schema = Schema.model_validate(
            {
                "type": "struct",
                "schema-id": 0,
                "fields": [
                    {"id": PATH_ID, "name": "file_path", "required": True, "type": "string"},
                    {"id": POS_ID, "name": "pos", "required": True, "type": "long"},
                ],
            }
        )
        rows = [{"file_path": path, "pos": pos} for path, pos in sorted(path_positions)]
        more = {"lower_bounds": None, "upper_bounds": None} | more
        return self.add_parquet(rows, schema=schema, content=POSITION_DELETES, **more)

    def add_equality_deletes(
        self, rows: Sequence[Mapping[str, Any]], equality_ids: Sequence[int], **more: Any
    ) -> Entry:
        """Write a Parquet file of equality deletes, whose columns are as in ``rows``."""
        names = [self.schema.find_column_name(i) for i in equality_ids]
        schema = more.pop("schema", None) or self.schema.select(*[n for n in names if n])
        more = {"content": EQUALITY_DELETES, "equality_ids": list(equality_ids)} | more
        return self.add_parquet(rows, schema=schema, **more)

    def add_deletion_vectors(
        self,
        positions_by_path: Mapping[str, Sequence[int]],
        *,
        encrypted: bool = True,
        partition: Mapping[str, Any] | None = None,
        spec_id: int = 0,
        **wrong: Any,
    ) -> list[Entry]:
        """Write one Puffin file with a deletion vector for each data file. ``wrong`` overrides the
        blobs' properties."""
        payload = bytearray(b"PFA1")
        blobs, places = [], []
        for path, positions in positions_by_path.items():
            vector = b"\xd1\xd3\x39\x64" + BitMap64(positions).serialize()
            blob = struct.pack(">I", len(vector)) + vector + struct.pack(">I", zlib.crc32(vector))
            properties = {"referenced-data-file": path, "cardinality": str(len(positions))} | wrong
            blobs.append(
                {
                    "type": "deletion-vector-v1",
                    "fields": [2147483645],
                    "snapshot-id": -1,
                    "sequence-number": -1,
                    "offset": len(payload),
                    "length": len(blob),
                    "properties": properties,
                }
            )
            places.append((path, len(positions), len(payload), len(blob)))
            payload += blob
        footer = json.dumps({"blobs": blobs, "properties": {}}).encode()
        payload += b"PFA1" + footer + struct.pack("<I", len(footer)) + b"\0\0\0\0" + b"PFA1"
        data, km = self._sealed(bytes(payload), encrypted)
        one = self._entry("puffin", data, km, 0, partition, spec_id)
        return [
            one
            | {
                "content": POSITION_DELETES,
                "record_count": count,
                "referenced_data_file": path,
                "content_offset": offset,
                "content_size_in_bytes": size,
            }
            for path, count, offset, size in places
        ]

    def _entry(
        self,
        kind: str,
        data: bytes,
        km: KeyMetadata | None,
        rows: int,
        partition: Mapping[str, Any] | None,
        spec_id: int,
    ) -> Entry:
        name = f"data/{next(self._numbers):05}.{kind}"
        (self.folder / name).write_bytes(data)
        return {
            "content": DATA,
            "file_path": f"{self.location}/{name}",
            "file_format": kind.upper(),
            "partition": dict(partition or {}),
            "record_count": rows,
            "file_size_in_bytes": len(data),
            "key_metadata": km and km.to_bytes(),
            "spec_id": spec_id,
        }

    # -- commits

    def commit(
        self,
        *files: Entry,
        ref: str = "main",
        manifests_of: int = 1_000_000,
        first_row_id: int | None = None,
    ) -> int:
        """Add files in a new snapshot, on top of all earlier ones; return its id.

        ``manifests_of`` is how many files a manifest has at most. ``first_row_id`` is that of each
        manifest of data files.
        """
        sequence_number = len(self.snapshots) + 1
        snapshot_id = 1000 + sequence_number
        groups: dict[tuple[int, bool], list[Entry]] = {}
        for file in files:
            groups.setdefault((file["spec_id"], file["content"] != DATA), []).append(file)
        for (spec_id, deletes), found in groups.items():
            for start in range(0, len(found), manifests_of):
                part = found[start : start + manifests_of]
                self.manifests.append(
                    self._manifest(part, spec_id, deletes, snapshot_id, sequence_number)
                    | {"first_row_id": None if deletes else first_row_id}
                )
        self.snapshots.append(self._snapshot(snapshot_id, sequence_number))
        self.refs[ref] = {"snapshot-id": snapshot_id, "type": "branch"}
        return snapshot_id

    def _manifest(
        self, files: list[Entry], spec_id: int, deletes: bool, snapshot_id: int, sequence: int
    ) -> dict[str, Any]:
        spec = self.specs[spec_id]
        schema = Schema.model_validate(self.schemas[0])
        for other in self.schemas:
            candidate = Schema.model_validate(other)
            if all(f["source-id"] in candidate.field_ids for f in spec["fields"]):
                schema = candidate
        partition = _partition_record(spec, schema)
        records = [
            {
                "status": ADDED_STATUS,
                "snapshot_id": snapshot_id,
                "sequence_number": None,
                "file_sequence_number": None,
                "data_file": {k: v for k, v in file.items() if k != "spec_id"},
            }
            for file in files
        ]
        header = {
            "schema": json.dumps(self.schemas[-1]),
            "partition-spec": json.dumps(spec["fields"]),
            "partition-spec-id": str(spec_id),
            "format-version": "3",
            "content": "deletes" if deletes else "data",
        }
        plain = _avro(_manifest_schema(partition), records, header, "deflate")
        data, km = self._sealed(plain)
        name = f"metadata/{next(self._numbers):05}-m0.avro"
        (self.folder / name).write_bytes(data)
        rows = sum(file["record_count"] for file in files)
        return {
            "manifest_path": f"{self.location}/{name}",
            "manifest_length": len(data),
            "partition_spec_id": spec_id,
            "content": int(deletes),
            "sequence_number": sequence,
            "min_sequence_number": sequence,
            "added_snapshot_id": snapshot_id,
            "added_files_count": len(files),
            "existing_files_count": 0,
            "deleted_files_count": 0,
            "added_rows_count": rows,
            "existing_rows_count": 0,
            "deleted_rows_count": 0,
            "partitions": None,
            "key_metadata": km and km.to_bytes(),
            "first_row_id": None,
        }

    def _snapshot(self, snapshot_id: int, sequence_number: int) -> dict[str, Any]:
        header = {"snapshot-id": str(snapshot_id), "format-version": "3"}
        data, km = self._sealed(_avro(_MANIFEST_LIST, self.manifests, header, "deflate"))
        name = f"metadata/snap-{snapshot_id}.avro"
        (self.folder / name).write_bytes(data)
        snapshot = {
            "sequence-number": sequence_number,
            "snapshot-id": snapshot_id,
            "timestamp-ms": 1_790_000_000_000 + sequence_number,
            "summary": {"operation": "append"},
            "manifest-list": f"{self.location}/{name}",
            "schema-id": len(self.schemas) - 1,
            "first-row-id": 0,
            "added-rows": 0,
        }
        if self.snapshots:
            snapshot["parent-snapshot-id"] = self.snapshots[-1]["snapshot-id"]
        if self.manager and km:
            snapshot["key-id"] = self.manager.add_manifest_list_key(km)
        return snapshot

    def metadata(self) -> dict[str, Any]:
        """Return the table's metadata.json as it is now."""
        last_column_id = max(Schema.model_validate(s).highest_field_id for s in self.schemas)
        metadata: dict[str, Any] = {
            "format-version": 3,
            "table-uuid": "0e1f0d92-5a9c-4b0e-9f5d-0a6f3c1d2e4b",
            "location": self.location,
            "last-sequence-number": len(self.snapshots),
            "last-updated-ms": 1_790_000_000_000 + len(self.snapshots),
            "last-column-id": last_column_id,
            "current-schema-id": len(self.schemas) - 1,
            "schemas": self.schemas,
            "default-spec-id": 0,
            "partition-specs": self.specs,
            "last-partition-id": 1010,
            "default-sort-order-id": 0,
            "sort-orders": [{"order-id": 0, "fields": []}],
            "properties": self.properties,
            "next-row-id": 0,
            "snapshots": self.snapshots,
            "refs": self.refs,
            "statistics": [],
            "partition-statistics": [],
            "snapshot-log": [
                {"timestamp-ms": s["timestamp-ms"], "snapshot-id": s["snapshot-id"]}
                for s in self.snapshots
            ],
            "metadata-log": [],
        }
        if "main" in self.refs:
            metadata["current-snapshot-id"] = self.refs["main"]["snapshot-id"]
        if self.manager:
            metadata["encryption-keys"] = encryption_keys_to_dicts(self.manager.encryption_keys)
        return metadata

    def write(self, metadata: Mapping[str, Any] | None = None) -> str:
        """Write metadata.json; return where it lies on this machine."""
        path = self.folder / "metadata" / f"{next(self._numbers):05}.metadata.json"
        path.write_text(json.dumps(metadata or self.metadata()))
        return str(path)

    # -- keys

    def _new_key(self, encrypted: bool = True) -> KeyMetadata | None:
        return self.manager.new_file_key() if self.manager and encrypted else None

    def _sealed(self, data: bytes, encrypted: bool = True) -> tuple[bytes, KeyMetadata | None]:
        km = self._new_key(encrypted)
        return (data, None) if km is None else ags1.encrypt(data, km=km)


def stored(location: str) -> Path:
    """Return the path of a file that a table here knows by ``location``."""
    return Path(location.removeprefix("file://"))


def _table(rows: Sequence[Mapping[str, Any]] | pa.Table, schema: Schema) -> pa.Table:
    # With the field ids in the schema's metadata, from where they go into the file.
    arrow = schema_to_pyarrow(schema)
    return rows.cast(arrow) if isinstance(rows, pa.Table) else pa.Table.from_pylist(rows, arrow)


def _metrics(table: pa.Table, schema: Schema) -> Entry:
    import pyarrow.compute as pc

    lower, upper, counts, nulls = [], [], [], []
    for field in schema.fields:
        column = table.column(field.name)
        if not isinstance(field.field_type, PrimitiveType) or pa.types.is_null(column.type):
            continue
        counts.append({"key": field.field_id, "value": len(column)})
        nulls.append({"key": field.field_id, "value": column.null_count})
        if pa.types.is_integer(column.type) and column.null_count < len(column):
            ends = pc.min_max(column).as_py()
            lower.append({"key": field.field_id, "value": to_bytes(field.field_type, ends["min"])})
            upper.append({"key": field.field_id, "value": to_bytes(field.field_type, ends["max"])})
    return {
        "value_counts": counts,
        "null_value_counts": nulls,
        "lower_bounds": lower,
        "upper_bounds": upper,
    }


def _avro(schema: Mapping[str, Any], records: Any, header: Mapping[str, str], codec: str) -> bytes:
    out = io.BytesIO()
    fastavro.writer(out, dict(schema), records, codec=codec, metadata=dict(header))
    return out.getvalue()


def _field(field_id: int, name: str, kind: Any, *, required: bool = False) -> dict[str, Any]:
    if required:
        return {"name": name, "type": kind, "field-id": field_id}
    return {"name": name, "type": ["null", kind], "default": None, "field-id": field_id}


def _map(key_id: int, value_id: int, value: str) -> dict[str, Any]:
    return {
        "type": "array",
        "logicalType": "map",
        "items": {
            "type": "record",
            "name": f"k{key_id}_v{value_id}",
            "fields": [
                _field(key_id, "key", "int", required=True),
                _field(value_id, "value", value, required=True),
            ],
        },
    }


def _list(element_id: int, kind: str) -> dict[str, Any]:
    return {"type": "array", "items": kind, "element-id": element_id}


def _partition_record(spec: Mapping[str, Any], schema: Schema) -> dict[str, Any]:
    kinds: dict[str, Any] = {
        kind: kind for kind in ("int", "long", "float", "double", "string", "boolean")
    }
    kinds["date"] = {"type": "int", "logicalType": "date"}
    fields = []
    for field in spec["fields"]:
        source = str(schema.find_type(field["source-id"]))
        kind: Any = kinds[source] if field["transform"] == "identity" else "int"
        fields.append(_field(field["field-id"], field["name"], kind))
    return {"type": "record", "name": "r102", "fields": fields}


def _manifest_schema(partition: dict[str, Any]) -> dict[str, Any]:
    data_file = [
        _field(134, "content", "int", required=True),
        _field(100, "file_path", "string", required=True),
        _field(101, "file_format", "string", required=True),
        _field(102, "partition", partition, required=True),
        _field(103, "record_count", "long", required=True),
        _field(104, "file_size_in_bytes", "long", required=True),
        _field(109, "value_counts", _map(119, 120, "long")),
        _field(110, "null_value_counts", _map(121, 122, "long")),
        _field(125, "lower_bounds", _map(126, 127, "bytes")),
        _field(128, "upper_bounds", _map(129, 130, "bytes")),
        _field(131, "key_metadata", "bytes"),
        _field(132, "split_offsets", _list(133, "long")),
        _field(135, "equality_ids", _list(136, "int")),
        _field(142, "first_row_id", "long"),
        _field(143, "referenced_data_file", "string"),
        _field(144, "content_offset", "long"),
        _field(145, "content_size_in_bytes", "long"),
    ]
    return {
        "type": "record",
        "name": "manifest_entry",
        "fields": [
            _field(0, "status", "int", required=True),
            _field(1, "snapshot_id", "long"),
            _field(3, "sequence_number", "long"),
            _field(4, "file_sequence_number", "long"),
            _field(
                2, "data_file", {"type": "record", "name": "r2", "fields": data_file}, required=True
            ),
        ],
    }


_MANIFEST_LIST = {
    "type": "record",
    "name": "manifest_file",
    "fields": [
        _field(500, "manifest_path", "string", required=True),
        _field(501, "manifest_length", "long", required=True),
        _field(502, "partition_spec_id", "int", required=True),
        _field(517, "content", "int", required=True),
        _field(515, "sequence_number", "long", required=True),
        _field(516, "min_sequence_number", "long", required=True),
        _field(503, "added_snapshot_id", "long", required=True),
        _field(504, "added_files_count", "int", required=True),
        _field(505, "existing_files_count", "int", required=True),
        _field(506, "deleted_files_count", "int", required=True),
        _field(512, "added_rows_count", "long", required=True),
        _field(513, "existing_rows_count", "long", required=True),
        _field(514, "deleted_rows_count", "long", required=True),
        _field(519, "key_metadata", "bytes"),
        _field(520, "first_row_id", "long"),
    ],
}

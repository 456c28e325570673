"""What the tests of new data files share: a table's metadata, writing, reading back without us."""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
from iceberg_tables import memory_kms
from pyarrow.parquet.encryption import create_decryption_properties
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.schema import Schema

import ags1
from ags1.iceberg.read.records import ContentFile, Manifest, ManifestEntry
from ags1.iceberg.storage.output import TableOutput
from ags1.iceberg.storage.table_files import TableFiles
from ags1.iceberg.write.data_files import write_rows
from ags1.iceberg.write.view import TableView
from ags1.keys.manager import EncryptionManager


def metadata_of(
    location: Path,
    columns: Sequence[Mapping[str, Any]] | Schema,
    *,
    fields: Sequence[Mapping[str, Any]] = (),
    order: Sequence[Mapping[str, Any]] = (),
    properties: Mapping[str, str] | None = None,
    spec_id: int = 0,
) -> dict[str, Any]:
    """What metadata.json says of a table, as far as writing data files wants to know."""
    if isinstance(columns, Schema):
        listed: list[dict[str, Any]] = json.loads(columns.model_dump_json())["fields"]
    else:
        listed = [{"id": i, "required": False, **c} for i, c in enumerate(columns, 1)]
    partition: list[dict[str, Any]] = [
        {"field-id": 1000 + i, **dict(f)} for i, f in enumerate(fields)
    ]
    return {
        "format-version": 3,
        "location": str(location),
        "current-schema-id": 0,
        "schemas": [{"type": "struct", "schema-id": 0, "fields": listed}],
        "default-spec-id": spec_id,
        "partition-specs": [{"spec-id": spec_id, "fields": partition}],
        "default-sort-order-id": 1 if order else 0,
        "sort-orders": [
            {"order-id": 0, "fields": []},
            {"order-id": 1, "fields": list(order)},
        ],
        "properties": {"encryption.key-id": "keyA", **(properties or {})},
    }


def new_manager(key_size: int = 16) -> EncryptionManager:
    return EncryptionManager(memory_kms(), "keyA", data_key_length=key_size)


def write(
    metadata: dict[str, Any], data: Any, *, manager: EncryptionManager | None = None, **more: Any
) -> list[ContentFile]:
    output = more.pop("output", None) or TableOutput(PyArrowFileIO())
    view = TableView(metadata, TableFiles(output.io, manager or new_manager()))
    return write_rows(view, data, output, write_uuid=uuid.uuid4(), **more)


def all_fields(record: ContentFile | ManifestEntry | Manifest) -> dict[str, Any]:
    """Return a record's fields with its key: PyIceberg's equality compares paths only."""
    if isinstance(record, ManifestEntry):
        return {**record.fields(), "data_file": all_fields(record.file)}
    return {**record.fields(), "key_metadata": record.key_bytes}


def read_parquet(record: ContentFile) -> pa.Table:
    """Arrow's own reading of an encrypted file."""
    return parquet_file(record).read()


def parquet_file(record: ContentFile) -> pq.ParquetFile:
    key = record.key
    assert key is not None
    properties = create_decryption_properties(key.encryption_key, aad_prefix=key.aad_prefix)
    return pq.ParquetFile(record.file_path, decryption_properties=properties)


def read_avro(record: ContentFile) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """fastavro's own reading of an encrypted file: the header's properties and the rows."""
    with ags1.open(record.file_path, "rb", record.key) as file:
        reader: Any = fastavro.reader(io.BytesIO(file.read()))
        return dict(reader.metadata), list(reader)


# Types of the items of a list.
NESTED = [
    pa.string(),
    pa.list_(pa.string()),
    pa.map_(pa.string(), pa.string()),
    pa.struct([("x", pa.list_(pa.string()))]),
]


def without_offsets(kind: pa.DataType) -> pa.Table:
    """Return a row with an empty list of items of a type. These have no values and no offsets."""
    items = _no_values(kind)
    zeros = pa.py_buffer(bytes(8))
    lists = pa.Array.from_buffers(pa.list_(kind), 1, [None, zeros], children=[items])
    batch = pa.record_batch({"id": pa.array([1], pa.int32()), "a": lists})
    out = io.BytesIO()
    with pa.ipc.new_stream(out, batch.schema) as stream:
        stream.write_batch(batch)
    return pa.ipc.open_stream(out.getvalue()).read_all()


def _no_values(kind: pa.DataType) -> pa.Array:
    empty = pa.py_buffer(b"")
    children: list[pa.DataType] = []
    buffers = [None, empty]
    if pa.types.is_string(kind):
        buffers.append(empty)
    elif pa.types.is_struct(kind):
        buffers, children = [None], [field.type for field in kind]
    elif pa.types.is_map(kind):
        fields = [pa.field("key", kind.key_type, False), pa.field("value", kind.item_type)]
        children = [pa.struct(fields)]
    else:
        children = [kind.value_type]
    return pa.Array.from_buffers(kind, 0, buffers, children=[_no_values(c) for c in children])


def files_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())

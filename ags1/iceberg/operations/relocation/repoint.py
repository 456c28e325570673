"""Changes the locations inside a file that names other files, and nothing else.

Manifests and manifest lists are Avro records. Their fields are found in the file's own schema by
the field IDs of the specification. All other values stay as they were written: unknown fields,
nulls that inherit, row IDs. This follows the Iceberg specification, "Manifests", "Puffin" and
"Position Delete Files". All functions are pure functions of bytes::

    manifest list      field 500 of each record, the path of a manifest
    manifest           fields 100 and 143 of the record in field 2, the paths of data files
    Puffin             "referenced-data-file" of each blob in the footer, a path
    position deletes   column 2147483546 of each row, the path of a data file
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.parquet.encryption import create_decryption_properties, create_encryption_properties

from ....avro.container import AvroCodec, Container, NewContainer, parse_schema
from ....key_metadata import KeyMetadata
from ...formats.parquet_modules import verify_parquet
from ...spec.constants import PARQUET_FIELD_ID, PATH_FIELD_ID, POSITION_FIELD_ID, PUFFIN_MAGIC

_PUFFIN_TAIL = 12  # the footer's length, flags and magic
_REFERENCED_DATA_FILE = "referenced-data-file"

PathOf = Callable[[str], str]


class UnreadableError(Exception):
    """Bytes cannot be parsed or lack a field. The message never quotes them: they may have keys."""


class Paths(NamedTuple):
    """The least and the greatest path in a position delete file; None if it has no rows."""

    lower: str | None
    upper: str | None


class Row:
    """An Avro record whose fields are accessed by their IDs."""

    __slots__ = ("_names", "_values")

    def __init__(self, values: dict[str, Any], names: _Names) -> None:
        self._values = values
        self._names = names

    def get(self, field_id: int) -> Any:
        """Return a field's value; None if the file's schema lacks the field."""
        field = self._names.get(field_id)
        return None if field is None else self._values[field[0]]

    def set(self, field_id: int, value: Any) -> None:
        """Change a field's value. Raises UnreadableError if the schema lacks the field."""
        field = self._names.get(field_id)
        if field is None:
            raise UnreadableError(f"the schema has no field {field_id}")
        self._values[field[0]] = value

    def record(self, field_id: int) -> Row:
        """Return the value of a field that is a record. Raises UnreadableError if there is none."""
        field = self._names.get(field_id)
        value = None if field is None else self._values[field[0]]
        if field is None or field[1] is None or not isinstance(value, dict):
            raise UnreadableError(f"the schema has no record {field_id}")
        return Row(value, field[1])


# Field ID -> (the field's name, the same mapping of the field's type if that is a record).
_Names = dict[int, tuple[str, Any]]


def repoint_records(data: bytes, change: Callable[[Row], None]) -> bytes:
    """Return an Avro file with ``change`` applied to each record. The schema, the header, the
    blocks and all other values stay the same: logical types are not converted. A compressed file is
    compressed with deflate, Iceberg's default. Raises UnreadableError."""
    try:
        container = Container(lambda offset, size: data[offset : offset + size], len(data))
        header = {name: value.decode() for name, value in container.metadata.items()}
        schema = parse_schema(container.metadata)
        codec = AvroCodec("uncompressed" if container.codec == "null" else "gzip")
        new_container = NewContainer(schema, header, codec)
        names = _names(schema)
        physical = fastavro.parse_schema(_physical(schema))
        parts = [new_container.header]
        for count, block in container.blocks(0, len(data)):
            old, new = io.BytesIO(block), io.BytesIO()
            for _ in range(count):
                record: Any = fastavro.schemaless_reader(old, physical, None)
                change(Row(record, names))
                fastavro.schemaless_writer(new, physical, record)
            parts.append(new_container.block(count, new.getvalue()))
        return b"".join(parts)
    except UnreadableError:
        raise
    except Exception as error:
        failure = UnreadableError(f"it cannot be parsed ({type(error).__name__})")
    # Raised out here, without the other error as its context: that may quote a record with a key.
    raise failure


def _names(schema: Any) -> _Names:
    return {
        field["field-id"]: (field["name"], _record_names(field["type"]))
        for field in schema["fields"]
        if "field-id" in field
    }


def _record_names(kind: Any) -> _Names | None:
    for option in kind if isinstance(kind, list) else [kind]:
        if isinstance(option, dict) and option.get("type") == "record":
            return _names(option)
    return None


def _physical(schema: Any) -> Any:
    """Return an Avro schema without logical types, so that dates outside Python's range pass."""
    if isinstance(schema, list):
        return [_physical(part) for part in schema]
    if isinstance(schema, dict):
        return {
            key: _physical(value) if key in ("type", "items", "values", "fields") else value
            for key, value in schema.items()
            if key != "logicalType"
        }
    return schema


def repoint_puffin(payload: bytes, path_of: PathOf) -> bytes:
    """Return a Puffin file whose deletion vectors name ``path_of(path)`` instead of ``path``. The
    offsets and sizes of the vectors do not change. Raises UnreadableError."""
    try:
        (size,) = struct.unpack("<i", payload[-_PUFFIN_TAIL : 4 - _PUFFIN_TAIL])
        start = len(payload) - _PUFFIN_TAIL - size - len(PUFFIN_MAGIC)
        flags = payload[-8:-4]
        if (
            size < 0
            or start < len(PUFFIN_MAGIC)
            or flags != bytes(4)
            or {payload[:4], payload[start : start + 4], payload[-4:]} != {PUFFIN_MAGIC}
        ):
            raise UnreadableError("it is not a Puffin file with a plain footer")
        footer = json.loads(payload[start + 4 : -_PUFFIN_TAIL])
        for blob in footer["blobs"]:
            properties = blob.get("properties") or {}
            if _REFERENCED_DATA_FILE in properties:
                properties[_REFERENCED_DATA_FILE] = path_of(properties[_REFERENCED_DATA_FILE])
        text = json.dumps(footer, separators=(",", ":"), ensure_ascii=False).encode()
    except (ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise UnreadableError(f"it cannot be parsed ({type(error).__name__})") from None
    tail = struct.pack("<i", len(text)) + flags + PUFFIN_MAGIC
    return payload[:start] + PUFFIN_MAGIC + text + tail


def repoint_avro_deletes(data: bytes, path_of: PathOf) -> tuple[bytes, Paths]:
    """Return Avro position deletes with the new paths, and their bounds. Raises UnreadableError."""
    paths: set[str] = set()

    def change(row: Row) -> None:
        path = path_of(row.get(PATH_FIELD_ID))
        paths.add(path)
        row.set(PATH_FIELD_ID, path)

    return repoint_records(data, change), _bounds(paths)


def repoint_parquet_deletes(
    stored: bytes, key_metadata: KeyMetadata, fresh: KeyMetadata, path_of: PathOf
) -> tuple[bytes, Paths]:
    """Return a Parquet file of position deletes with the new paths, and their bounds. ``km``
    decrypts the file ``stored``, and ``fresh`` encrypts the new one. The rows keep their order
    unless the new paths sort differently. Raises AuthenticationError, FormatError,
    UnreadableError."""

    def fetch(offset: int, size: int) -> bytes:
        return stored[offset : offset + size]

    verify_parquet(fetch, len(stored), key_metadata)
    try:
        file = pq.ParquetFile(
            pa.BufferReader(stored),
            decryption_properties=create_decryption_properties(
                key_metadata.encryption_key,
                aad_prefix=key_metadata.aad_prefix,
                allow_plaintext_files=False,
            ),
        )
        table = file.read()
        codec = _codec_of(file.metadata)
        name = _column(table.schema, PATH_FIELD_ID)
        position = _column(table.schema, POSITION_FIELD_ID)
    except (OSError, pa.ArrowException) as error:
        raise UnreadableError(f"it cannot be read ({type(error).__name__})") from None
    index = table.schema.get_field_index(name)
    encoded = table.column(index).combine_chunks().dictionary_encode()
    old = encoded.dictionary.to_pylist()
    if None in old:
        raise UnreadableError("a row has no path")
    new = {path: path_of(path) for path in old}
    paths = pa.array([new[path] for path in old], table.schema.field(index).type)
    column = paths.take(encoded.indices)
    table = table.set_column(index, table.schema.field(index), column)
    if sorted(new, key=lambda path: new[path]) != sorted(new):
        table = table.sort_by([(name, "ascending"), (position, "ascending")])
    fresh.claim()
    out = io.BytesIO()
    pq.write_table(
        table,
        out,
        compression=codec,
        store_schema=False,
        encryption_properties=create_encryption_properties(
            fresh.encryption_key, aad_prefix=fresh.aad_prefix, store_aad_prefix=False
        ),
    )
    return out.getvalue(), _bounds(new.values())


def _column(schema: pa.Schema, field_id: int) -> str:
    for field in schema:
        if (field.metadata or {}).get(PARQUET_FIELD_ID) == str(field_id).encode():
            return str(field.name)
    raise UnreadableError(f"the file has no column {field_id}")


def _codec_of(metadata: Any) -> str:
    if not metadata.num_row_groups:
        return "zstd"
    codec = str(metadata.row_group(0).column(0).compression)
    return "none" if codec == "UNCOMPRESSED" else codec.lower()


def _bounds(paths: Any) -> Paths:
    return Paths(min(paths), max(paths)) if paths else Paths(None, None)


def with_bound(bounds: Any, value: bytes | None) -> Any:
    """Return a manifest's bounds in Avro's form, with ``value`` as the bound of the column of
    paths; None removes that bound."""
    others: list[Mapping[str, Any]] = [b for b in bounds if b["key"] != PATH_FIELD_ID]
    if value is not None:
        others.append({"key": PATH_FIELD_ID, "value": value})
    return others

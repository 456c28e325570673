"""Manifest lists and manifests of an encrypted table, opened by ags1 and parsed by fastavro.

Fields are found by the ids of the Iceberg specification, in the schema that the file brings. Just
enough to judge a table by; not a reader of tables.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import fastavro

import ags1
from ags1 import KeyMetadata

MANIFEST_PATH, MANIFEST_LENGTH, MANIFEST_KEY_METADATA = 500, 501, 519
STATUS, DATA_FILE = 0, 2
FILE_PATH, FILE_FORMAT, RECORD_COUNT, FILE_SIZE, KEY_METADATA = 100, 101, 103, 104, 131
SPLIT_OFFSETS, CONTENT = 132, 134
DELETED = 2  # a status

Record = dict[int, Any]


def records(sealed: bytes, km: KeyMetadata) -> list[Record]:
    """Decrypt an AGS1 stream of Avro and return its records, each by field id."""
    reader: Any = fastavro.reader(io.BytesIO(ags1.decrypt(sealed, km)))
    schema = reader.writer_schema
    return [_by_id(record, schema) for record in reader]


def entries(
    sealed_list: bytes, km: KeyMetadata, read: Callable[[str], bytes]
) -> list[tuple[Record, Record]]:
    """Return each entry of a manifest list's manifests, beside its manifest.

    ``read`` returns the stored bytes of a location.
    """
    found = []
    for manifest in records(sealed_list, km):
        sealed = read(manifest[MANIFEST_PATH])
        manifest_km = KeyMetadata.from_bytes(manifest[MANIFEST_KEY_METADATA])
        found += [(manifest, entry) for entry in records(sealed, manifest_km)]
    return found


def _by_id(record: dict[str, Any], schema: Any) -> Record:
    values = {}
    for field in schema["fields"]:
        value, kind = record[field["name"]], field["type"]
        nested = isinstance(kind, dict) and kind["type"] == "record"
        values[field["field-id"]] = _by_id(value, kind) if nested else value
    return values

"""Every name of PyIceberg that is private or undocumented and that we use anyway.

Tested with PyIceberg 0.12.0; ``ags1[iceberg]`` allows 0.12.x only. When another version is to be
allowed, this is the module to compare with its source. Knows nothing of encryption.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

import pyiceberg
from pyiceberg.avro.decoder import new_decoder
from pyiceberg.avro.file import META_SCHEMA, AvroFileHeader
from pyiceberg.avro.reader import Reader
from pyiceberg.avro.resolver import construct_reader, resolve_reader
from pyiceberg.catalog import _ENV_CONFIG, Catalog
from pyiceberg.io.pyarrow import _get_column_projection_values as column_projection_values
from pyiceberg.io.pyarrow import _to_requested_schema as to_requested_schema
from pyiceberg.manifest import (
    MANIFEST_ENTRY_SCHEMAS,
    MANIFEST_LIST_FILE_SCHEMAS,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    PartitionFieldSummary,
)
from pyiceberg.manifest import _inherit_from_manifest as inherit_from_manifest
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import DOWNCAST_NS_TIMESTAMP_TO_US_ON_WRITE, Table
from pyiceberg.table import _min_sequence_number as min_sequence_number
from pyiceberg.typedef import Identifier, Properties
from pyiceberg.utils.config import Config, merge_config

__all__ = [
    "DATA_FILE_KEY_METADATA",
    "MANIFEST_ENTRY_SCHEMAS",
    "MANIFEST_FILE_KEY_METADATA",
    "MANIFEST_LIST_FILE_SCHEMAS",
    "ManifestContent",
    "ManifestEntry",
    "ManifestEntryStatus",
    "PartitionFieldSummary",
    "RecordShape",
    "column_projection_values",
    "configured_properties",
    "downcasts_ns_timestamps",
    "hive_parameters",
    "inherit_from_manifest",
    "load_rest_table",
    "min_sequence_number",
    "partition_spec_is_void",
    "read_avro_records",
    "to_requested_schema",
]

_TESTED = ("0", "12")
if tuple(pyiceberg.__version__.split(".")[:2]) != _TESTED:
    raise ImportError(
        f"ags1.iceberg reaches into PyIceberg {'.'.join(_TESTED)}, and this is "
        f"{pyiceberg.__version__}: pip install 'ags1[iceberg]'"
    )

_SYNC_SIZE = 16
# Positions of a DataFile's and a ManifestFile's key_metadata in their records.
DATA_FILE_KEY_METADATA = 12
MANIFEST_FILE_KEY_METADATA = 14


class RecordShape:
    """What the records of a metadata file are read into: a schema, and Python types by field id."""

    def __init__(
        self, read_schema: Schema, read_types: Mapping[int, Any], read_enums: Mapping[int, Any]
    ) -> None:
        self._read_schema = read_schema
        self._read_types = dict(read_types)
        self._read_enums = dict(read_enums)
        # Files of one table mostly have one schema; resolving it costs more than reading a file.
        self.reader = functools.lru_cache(maxsize=256)(self._resolve)

    def _resolve(self, avro_schema: str) -> Reader:
        header = AvroFileHeader(None, {"avro.schema": avro_schema}, None)
        return resolve_reader(
            header.get_schema(), self._read_schema, self._read_types, self._read_enums
        )


@functools.cache
def _header_reader() -> Reader:
    return construct_reader(META_SCHEMA, {-1: AvroFileHeader})


def read_avro_records(data: bytes, shape: RecordShape) -> tuple[dict[str, str], list[Any]]:
    """Return the header's properties and the records of an Avro file in memory.

    PyIceberg's own ``AvroFile`` does the same, from a file, and resolves the schema each time.
    """
    decoder = new_decoder(data)
    header = _header_reader().read(decoder)
    reader = shape.reader(header.meta["avro.schema"])
    codec = header.compression_codec()
    records: list[Any] = []
    while True:
        try:
            count = decoder.read_int()
        except EOFError:
            return header.meta, records
        block = decoder.read_bytes()
        block_decoder = new_decoder(block if codec is None else codec.decompress(block))
        records += [reader.read(block_decoder) for _ in range(count)]
        if decoder.read(_SYNC_SIZE) != header.sync:
            raise ValueError("the sync marker after an Avro block is not the file's")


def configured_properties(name: str | None, properties: Mapping[str, Any]) -> dict[str, str]:
    """Return what PyIceberg's ``load_catalog`` takes for the properties of a catalog: those of the
    configuration file and the environment, overruled by the caller's."""
    if name is None:
        name = _ENV_CONFIG.get_default_catalog_name()
    merged = merge_config(_ENV_CONFIG.get_catalog_config(name) or {}, dict(properties))
    return {key: value for key, value in merged.items() if isinstance(value, str)}


def downcasts_ns_timestamps() -> bool | None:
    """Return PyIceberg's setting: nanoseconds to microseconds, None where it is not set."""
    return Config().get_bool(DOWNCAST_NS_TIMESTAMP_TO_US_ON_WRITE)


def partition_spec_is_void(spec: PartitionSpec) -> bool:
    """Whether a partition spec does not partition: it has no field, or only dropped ones."""
    return spec.is_unpartitioned() or all(str(f.transform) == "void" for f in spec.fields)


def load_rest_table(catalog: Any, identifier: str | Identifier) -> tuple[dict[str, Any], Table]:
    """Return the metadata as a REST server sent it, and the table that PyIceberg makes of it.

    PyIceberg's parsing drops what encryption needs, and the server's word is better than that of
    the file, which lies where the data lies. Raises what ``catalog.load_table`` raises.
    """
    from pyiceberg.catalog.rest import Endpoints, TableResponse

    url = catalog.url(
        Endpoints.load_table, prefixed=True, **catalog._split_identifier_for_path(identifier)
    )
    response = catalog._session.get(url)
    if not response.ok:
        # It raises PyIceberg's own errors, or renews a token that has expired.
        catalog.load_table(identifier)
        response = catalog._session.get(url)
        response.raise_for_status()
    parsed = TableResponse.model_validate_json(response.text)
    metadata: dict[str, Any] = json.loads(response.text)["metadata"]
    table = catalog._response_to_table(Catalog.identifier_to_tuple(identifier), parsed)
    return metadata, table


def hive_parameters(catalog: Any, identifier: str | Identifier) -> Properties:
    """Return the parameters that the Hive metastore keeps of a table."""
    database, name = Catalog.identifier_to_database_and_table(identifier)
    with catalog._client as client:
        parameters: Properties = catalog._get_hive_table(client, database, name).parameters
    return parameters

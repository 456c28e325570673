"""How a table wants its data files: format, sizes, compression, columns, partitions and order.

``WritePlan`` reads this from the table's metadata. The names of the table properties and their
defaults are Java's. It opens no file.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table.sorting import SortOrder
from pyiceberg.transforms import VoidTransform

from ...columns.avro.container import AvroCodec
from ...errors import UnsupportedTypeError
from ..spec.column_types import parse_schema, writable
from ..spec.properties import number_in
from .conversion import RowConversion
from .metrics import measured_columns
from .partitions import Partitioner, can_sort, sort_rows

_MIB = 1 << 20
_MAX_SETTING = 1 << 40
_FORMATS = {"PARQUET", "AVRO"}
_PARQUET_CODECS = {
    "uncompressed": "none",
    "none": "none",
    "snappy": "snappy",
    "gzip": "gzip",
    "brotli": "brotli",
    "lz4": "lz4",
    "lz4_raw": "lz4",
    "zstd": "zstd",
}
_BLOOM_FILTERS = ("write.parquet.bloom-filter-max-bytes", "write.parquet.bloom-filter-enabled.")


class WritePlan:
    """How new data files are written, from the metadata of their table (parsed JSON): its current
    schema, default partition spec and default sort order. ``schema`` has the columns that are
    written. ``target_size`` is the size of a stored file, ``row_group_size`` that of its rows as
    Arrow data (both in bytes). Raises ValueError for a property with an impossible value, and
    NotImplementedError for a format or type that cannot be written."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        properties: Mapping[str, str] = metadata.get("properties") or {}
        self.schema_json = _by_id(metadata["schemas"], "schema-id", metadata["current-schema-id"])
        self._table_schema = parse_schema(self.schema_json)
        self.spec = PartitionSpec.model_validate(
            _by_id(metadata["partition-specs"], "spec-id", metadata["default-spec-id"])
        )
        order = SortOrder.model_validate(
            _by_id(metadata["sort-orders"], "order-id", metadata["default-sort-order-id"])
        )
        self.file_format = properties.get("write.format.default", "parquet").upper()
        if self.file_format not in _FORMATS:
            raise NotImplementedError(
                f"write.format.default is {self.file_format.lower()!r}: encrypted data files are "
                "Parquet or Avro"
            )
        self.is_avro = self.file_format == "AVRO"
        self.schema = writable(self._table_schema, is_avro=self.is_avro)
        left_out = set(self._table_schema.field_ids) - set(self.schema.field_ids)
        for part in self.spec.fields:
            if part.source_id in left_out and not isinstance(part.transform, VoidTransform):
                raise UnsupportedTypeError(
                    f"no rows can be written: the table is partitioned by {part.name!r}, whose "
                    "column has a type that this version does not write"
                )
        # If a part of the order is unknown, rows stay unsorted, which is legal in every table.
        self.sort_order = order if can_sort(order, self.schema) else None
        self.target_size = _positive(properties, "write.target-file-size-bytes", 512 * _MIB)
        self.row_group_size = _positive(
            properties, "write.parquet.row-group-size-bytes", 128 * _MIB
        )
        self.row_group_rows = _positive(properties, "write.parquet.row-group-limit", 1_048_576)
        self.metrics = measured_columns(self.schema, properties, order, keep_unknown=self.is_avro)
        self.partitioner = Partitioner(self.spec, self.schema, keep_unknown=self.is_avro)
        self.avro_codec = AvroCodec(
            properties.get("write.avro.compression-codec", "gzip").lower(),
            _level(properties, "write.avro.compression-level"),
        )
        self.parquet_options = _parquet_options(properties)

    def conversion(self, provided: pa.Schema) -> RowConversion:
        """Return the conversion of ``provided`` columns. Raises as ``RowConversion``."""
        return RowConversion(self._table_schema, provided, keep_unknown=self.is_avro)

    def sorted(self, rows: pa.Table) -> pa.Table:
        """Return rows in the table's order, if it has one."""
        if self.sort_order is None:
            return rows
        return sort_rows(rows, self.sort_order, self.schema, keep_unknown=self.is_avro)


def _by_id(values: Iterable[Mapping[str, Any]], name: str, wanted: int) -> Mapping[str, Any]:
    for value in values:
        if value[name] == wanted:
            return value
    raise ValueError(f"the table's metadata has no {name} {wanted}")


def _parquet_options(properties: Mapping[str, str]) -> dict[str, Any]:
    unsupported = [name for name in properties if name.startswith(_BLOOM_FILTERS)]
    if unsupported:
        # PyIceberg writes no bloom filters either, and warns with these words.
        warnings.warn(f"Parquet writer option(s) {unsupported} not implemented", stacklevel=2)
    codec = properties.get("write.parquet.compression-codec", "zstd").lower()
    if codec not in _PARQUET_CODECS:
        raise ValueError(
            f"write.parquet.compression-codec is {codec!r}: it must be one of "
            f"{', '.join(_PARQUET_CODECS)}"
        )
    return {
        "compression": _PARQUET_CODECS[codec],
        "compression_level": _level(properties, "write.parquet.compression-level"),
        "data_page_size": _positive(properties, "write.parquet.page-size-bytes", _MIB),
        "dictionary_pagesize_limit": _positive(
            properties, "write.parquet.dict-size-bytes", 2 * _MIB
        ),
        "max_rows_per_page": _positive(properties, "write.parquet.page-row-limit", 20_000),
        # Java writes the index too, and skips pages by it.
        "write_page_index": True,
    }


def _positive(properties: Mapping[str, str], name: str, default: int) -> int:
    return number_in(properties, name, default, least=1, most=_MAX_SETTING)


def _level(properties: Mapping[str, str], name: str) -> int | None:
    return number_in(properties, name, 0) if name in properties else None

"""Writes one new data file of a table, encrypted under a fresh key.

    FileWriter          location, key, row count, metrics; the ContentFile for the manifest
      output.create()   the file appears complete under its name, or not at all
      _ParquetContent   a row group for each write(); or
      _AvroContent      Avro blocks in an AGS1 stream

It does not know which rows belong into the file, or how large the file is to become.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any, BinaryIO, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.table.locations import LocationProvider

from ...columns.arrow_nested import for_parquet
from ...columns.avro.variants import VariantType
from ...columns.avro.writer import AvroFileWriter
from ...engine.key_metadata import KeyMetadata
from ...errors import KeyReuseError
from ...keys.manager import EncryptionManager
from ..formats.parquet_writer import EncryptedParquetWriter
from ..read.records import DATA, ContentFile
from ..spec.column_types import find_field_ids
from ..storage.output import TableOutput
from .metrics import MetricsCollector
from .plan import WritePlan

# A column gets no dictionary if more than this part of its first rows are distinct values.
_JUDGED_ROWS = 5_000
_MAX_DISTINCT = 0.95

# What a content knows once it is complete: its key with the file's length, and split offsets.
_Finished: TypeAlias = "tuple[KeyMetadata, tuple[int, ...] | None]"


@dataclass(frozen=True, slots=True, repr=False)
class NewFiles:
    """How and where the new files of one write are made. Threads may share it.

    ``arrow_schema`` is the schema of the rows in the files. ``name_stem`` becomes part of the
    files' names; no other write may have the same. With ``joins_runs``, a file of a sorted table
    may have several runs of sorted rows.
    """

    plan: WritePlan
    arrow_schema: pa.Schema
    output: TableOutput
    manager: EncryptionManager
    locations: LocationProvider
    name_stem: str
    joins_runs: bool = False
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def new_location(self, partition: tuple[Any, ...]) -> str:
        """Return the location of the next file of a partition."""
        suffix = self.plan.file_format.lower()
        name = f"00000-0-{self.name_stem}-{next(self._numbers):05d}.{suffix}"
        location: str = self.locations.new_data_location(name, self.plan.partitioner.key(partition))
        return location


class FileWriter:
    """A data file under construction. One thread at a time may use it.

    ``partition`` has the partition's values. ``first_rows`` are the first rows that will be
    written; they decide which columns get a dictionary. ``is_sorted`` is whether all rows have the
    table's order, if it has one.
    """

    def __init__(
        self, new_files: NewFiles, partition: tuple[Any, ...], first_rows: pa.Table
    ) -> None:
        plan = new_files.plan
        self._plan = plan
        self._output = new_files.output
        self._partition = partition
        self._location = new_files.new_location(partition)
        self.is_sorted = True
        self._row_count = 0
        self._metrics = MetricsCollector(plan.metrics)
        self._cleanup = ExitStack()
        key_metadata = new_files.manager.new_file_key()
        file = self._cleanup.enter_context(new_files.output.create(self._location))
        try:
            self._content = (
                _AvroContent(plan, file, key_metadata)
                if plan.is_avro
                else _ParquetContent(plan, file, key_metadata, new_files.arrow_schema, first_rows)
            )
        except BaseException:
            self._remove()
            raise

    @property
    def size(self) -> int:
        """The size of what is stored so far, in bytes."""
        return self._content.size

    def write(self, rows: pa.Table) -> None:
        """Write rows; in a Parquet file they become one row group. Raises KeyReuseError in a forked
        child, which must not encrypt other rows under the same key."""
        self._output.check_process()
        self._content.write(rows, self._metrics)
        self._row_count += rows.num_rows

    def close(self) -> ContentFile:
        """Complete the file and return its record. If that fails, no file is left. Raises
        KeyReuseError in a forked child."""
        self._output.check_process()
        try:
            key_metadata, split_offsets = self._content.close(self._metrics)
            metrics = self._metrics.result()
            # This gives the file its name.
            self._cleanup.close()
        except BaseException:
            self.abort()
            raise
        assert key_metadata.file_length is not None
        order = self._plan.sort_order
        return ContentFile.of(
            content=DATA,
            file_path=self._location,
            file_format=self._plan.file_format,
            partition=self._partition,
            record_count=self._row_count,
            file_size_in_bytes=key_metadata.file_length,
            column_sizes=metrics.column_sizes,
            value_counts=metrics.value_counts,
            null_value_counts=metrics.null_value_counts,
            nan_value_counts=metrics.nan_value_counts,
            lower_bounds=metrics.lower_bounds,
            upper_bounds=metrics.upper_bounds,
            key_metadata=key_metadata.encoded(),
            split_offsets=split_offsets,
            sort_order_id=order.order_id if order is not None and self.is_sorted else 0,
            spec_id=self._plan.spec.spec_id,
        )

    def abort(self) -> None:
        """Remove the unfinished file."""
        with suppress(Exception):
            self._content.abort()
        self._remove()

    def _remove(self) -> None:
        """Leave the output's context as a failure does, so that it leaves no file."""
        with suppress(_Aborted, KeyReuseError):
            self._cleanup.__exit__(_Aborted, _Aborted(), None)


class _Aborted(Exception):
    pass


class _ParquetContent:
    def __init__(
        self,
        plan: WritePlan,
        file: BinaryIO,
        key_metadata: KeyMetadata,
        schema: pa.Schema,
        rows: pa.Table,
    ) -> None:
        self._km = key_metadata
        self._writer = EncryptedParquetWriter(
            file.write,
            key_metadata,
            schema,
            variants=find_field_ids(VariantType, [plan.schema]),
            store_decimal_as_integer=True,
            use_dictionary=_dictionary_columns(rows),
            **plan.parquet_options,
        )

    @property
    def size(self) -> int:
        return self._writer.size

    def write(self, rows: pa.Table, metrics: MetricsCollector) -> None:
        metrics.add_parquet_rows(rows)
        self._writer.write_table(for_parquet(rows), row_group_size=rows.num_rows)

    def close(self, metrics: MetricsCollector) -> _Finished:
        footer = self._writer.close()
        metrics.add_parquet_footer(footer)
        return self._km.with_file_length(self._writer.size), _split_offsets(footer)

    def abort(self) -> None:
        pass


class _AvroContent:
    def __init__(self, plan: WritePlan, file: BinaryIO, key_metadata: KeyMetadata) -> None:
        self._writer = AvroFileWriter(
            file, key_metadata, plan.schema, plan.schema_json, plan.avro_codec
        )

    @property
    def size(self) -> int:
        return self._writer.size

    def write(self, rows: pa.Table, metrics: MetricsCollector) -> None:
        metrics.add_rows(rows)
        self._writer.write(rows)

    def close(self, metrics: MetricsCollector) -> _Finished:
        return self._writer.close(), None

    def abort(self) -> None:
        self._writer.abort()


def _dictionary_columns(rows: pa.Table) -> list[str]:
    """Return the paths in the file of the columns that get a dictionary: not those whose first
    values nearly all differ. Java's writer gives these none either. Arrow would make a dictionary
    as long as the values, which takes longer than all the rest."""
    columns: list[str] = []
    for column_field, column in zip(rows.schema, rows.columns, strict=True):
        kind = column_field.type
        if pa.types.is_nested(kind) or _has_repetitions(column.slice(0, _JUDGED_ROWS)):
            columns += _leaf_paths(column_field.name, kind)
    return columns


def _has_repetitions(column: pa.ChunkedArray) -> bool:
    if isinstance(column.type, pa.BaseExtensionType):
        column = column.cast(column.type.storage_type)
    return len(column.unique()) <= _MAX_DISTINCT * len(column)


def _leaf_paths(name: str, kind: pa.DataType) -> Iterator[str]:
    if pa.types.is_map(kind):
        yield from _leaf_paths(f"{name}.key_value.key", kind.key_type)
        yield from _leaf_paths(f"{name}.key_value.value", kind.item_type)
    elif pa.types.is_struct(kind):
        for child in kind:
            yield from _leaf_paths(f"{name}.{child.name}", child.type)
    elif pa.types.is_nested(kind):
        yield from _leaf_paths(f"{name}.list.element", kind.value_type)
    else:
        yield name


def _split_offsets(footer: pq.FileMetaData) -> tuple[int, ...]:
    """Return the offsets of the row groups, in order."""
    offsets = []
    for group in map(footer.row_group, range(footer.num_row_groups)):
        first = group.column(0)
        offset = first.data_page_offset
        if first.has_dictionary_page and first.dictionary_page_offset is not None:
            offset = min(offset, first.dictionary_page_offset)
        offsets.append(offset)
    return tuple(sorted(offsets))

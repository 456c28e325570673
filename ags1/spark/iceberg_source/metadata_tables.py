"""Metadata tables of an encrypted table: ``load("db.table.files")``, ``.snapshots``, ``.history``…

Names and columns are those of Iceberg's, as PyIceberg's ``table.inspect`` has them. The driver
reads metadata.json and the manifests, and sends the rows to tasks. There is no key in them: the
column ``key_metadata`` is null. (Java shows the plaintext keys of all files there.) Times of
commits are instants, as in Java. Knows nothing of data files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from ..arrow_rows import arrow_schema, conform, spark_schema
from ..table_access import open_of_options
from .snapshots import pin_of

# The metadata tables of one snapshot, and those of the table.
_OF_SNAPSHOT = frozenset(("entries", "files", "data_files", "delete_files", "partitions"))
_OF_TABLE = frozenset(
    "snapshots history refs manifests metadata_log_entries all_manifests all_files all_data_files "
    "all_delete_files".split()
)
_NAMES = _OF_SNAPSHOT | _OF_TABLE
# Options that only the rows of the table itself have.
_OF_ROWS = ("filter", "columns", "partsize")
# The rows that a task gets.
_ROWS = 4096


@dataclass(frozen=True, slots=True)
class MetadataTable:
    """A metadata table, and the options that open its table."""

    name: str
    options: Mapping[str, str]

    def read(self) -> pa.Table:
        """Return its rows. Raises ValueError for an option that it does not have, and what opening
        the table and reading its manifests raises."""
        for option in _OF_ROWS:
            if self.options.get(option):
                raise ValueError(
                    f"the metadata table {self.name!r} has no option {option!r}: leave it out, and "
                    "use where() and select()"
                )
        table = open_of_options(self.options)
        pin = pin_of(table, self.options)
        if pin.start is not None or (pin.is_chosen and self.name in _OF_TABLE):
            raise ValueError(
                f"the metadata table {self.name!r} is not one of a snapshot: leave out the options "
                "that choose one"
            )
        method = getattr(table.inspect, self.name)
        if self.name in _OF_TABLE:
            return _with_instants(method())
        if pin.snapshot_id is None:
            raise ValueError(f"the table has no snapshot yet, and so no {self.name}: write to it")
        return _with_instants(method(pin.snapshot_id))

    def schema(self) -> StructType:
        """Return its columns. Raises as ``read``."""
        return spark_schema(self.read().schema)


def metadata_table(options: Mapping[str, str]) -> MetadataTable | None:
    """Return the metadata table that the options name; None if they name a table. After the
    location of a metadata.json, its name follows a ``#``. Raises as ``open_of_options``."""
    path = options.get("path") or ""
    is_location = ".metadata.json" in path
    base, _, name = path.rpartition("#" if is_location else ".")
    if not base or name not in _NAMES:
        return None
    if not is_location:
        if "." not in base:
            return None
        try:
            open_of_options(options)
        except (NoSuchTableError, NoSuchNamespaceError):
            pass
        else:
            return None
    return MetadataTable(name, {**options, "path": base})


def _with_instants(rows: pa.Table) -> pa.Table:
    """Return rows whose own times, which PyIceberg gives in UTC without a zone, have it."""
    fields = [
        f.with_type(pa.timestamp("us", "UTC")) if pa.types.is_timestamp(f.type) else f
        for f in rows.schema
    ]
    return rows.cast(pa.schema(fields))


class _Rows(InputPartition):  # type: ignore[misc]  # PySpark's types are not read
    """Rows for a task, as a stream of Arrow's."""


class MetadataTableReader(DataSourceReader):  # type: ignore[misc]
    """Reads a metadata table on the driver."""

    def __init__(self, table: MetadataTable, schema: StructType) -> None:
        self._table = table
        self._schema = schema

    def partitions(self) -> list[_Rows]:
        """Read the rows. Raises as ``MetadataTable.read``."""
        rows = self._table.read()
        parts = [_Rows(_stream(batch)) for batch in rows.to_batches(max_chunksize=_ROWS)]
        return parts or [_Rows(_stream(pa.RecordBatch.from_pylist([], rows.schema)))]

    def read(self, partition: _Rows) -> Iterator[pa.RecordBatch]:
        """Yield a task's rows."""
        wanted = arrow_schema(self._schema)
        with pa.ipc.open_stream(partition.value) as stream:
            for batch in stream:
                yield conform(batch, wanted)


def _stream(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return bytes(sink.getvalue())

"""Takes rows and schemas from any library that exports Arrow data: Polars, DuckDB, pandas, …

Follows Arrow's PyCapsule interface. Views and runs of equal values, which such libraries export,
are converted. This module does not know tables.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from ...columns.arrow_layouts import plain_batch, plain_schema


class ArrowStreamProducer(Protocol):
    """An object with a stream of record batches."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


class ArrowArrayProducer(Protocol):
    """An object with one record batch."""

    def __arrow_c_array__(
        self, requested_schema: object | None = None
    ) -> tuple[object, object]: ...


class ArrowSchemaProducer(Protocol):
    """An object with a schema."""

    def __arrow_c_schema__(self) -> object: ...


ArrowRows: TypeAlias = "pa.Table | pa.RecordBatchReader | ArrowStreamProducer | ArrowArrayProducer"


def arrow_rows(data: ArrowRows) -> pa.Table | pa.RecordBatchReader:
    """Return Arrow data as a table or a reader. A stream becomes a reader and is not held. Raises
    ValueError, as PyIceberg does, for an object without Arrow data. Then, or while the reader is
    read, raises ValueError for a view or run that does not lie in its values."""
    rows: pa.Table | pa.RecordBatchReader
    if isinstance(data, pa.Table | pa.RecordBatchReader):
        rows = data
    elif hasattr(data, "__arrow_c_stream__"):
        rows = pa.RecordBatchReader.from_stream(data)
    elif hasattr(data, "__arrow_c_array__"):
        rows = pa.Table.from_batches([pa.record_batch(data)])
    else:
        raise ValueError(
            f"Expected pa.Table or pa.RecordBatchReader, got {type(data).__name__}: give Arrow "
            "data, or an object that exports it by __arrow_c_stream__, such as a data frame"
        )
    schema = plain_schema(rows.schema)
    if schema == rows.schema:
        return rows
    if isinstance(rows, pa.Table):
        batches = map(plain_batch, rows.to_batches())
        return pa.Table.from_batches(batches, schema)
    return pa.RecordBatchReader.from_batches(schema, map(plain_batch, rows))


def arrow_table(data: ArrowRows) -> pa.Table:
    """Return Arrow data as a table, in memory. Raises as ``arrow_rows``."""
    rows = arrow_rows(data)
    return rows if isinstance(rows, pa.Table) else rows.read_all()


def arrow_schema(schema: Any) -> Any:
    """Return the schema of an object that exports an Arrow schema or Arrow data. Any other object
    is returned as it is."""
    if hasattr(schema, "__arrow_c_schema__"):
        return plain_schema(pa.schema(schema))
    if hasattr(schema, "__arrow_c_stream__") or hasattr(schema, "__arrow_c_array__"):
        return arrow_rows(schema).schema
    return schema

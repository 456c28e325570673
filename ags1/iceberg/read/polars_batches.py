"""Reads data files with Polars' Parquet reader, for queries of Polars.

``polars.scan_iceberg`` asks a scan for batches of rows, with the part of the query's filter that
Iceberg has too, and applies the whole filter itself. Arrow would decode the files in types that
Polars converts once more. So Polars decodes them itself: it gets the plaintext in memory, of which
every byte is authentic, and no key. This module makes the batches of one file. It is independent of
deletes, and returns None for what Arrow has to read.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyiceberg.io import FileIO
from pyiceberg.schema import Schema

from ..pyiceberg.arrow import arrow_schema
from .binding import BoundFilter
from .row_expressions import row_expression

if TYPE_CHECKING:
    import polars


def is_read_by_polars(io: FileIO) -> bool:
    """Return whether Polars asks for the rows of a scan: it then has put its cache around ``io``.
    Before 2.1, Polars did not, and got batches of Arrow."""
    return type(io).__module__.startswith("polars.") and "polars" in sys.modules


class PolarsReader:
    """Reads the columns ``projected`` of the rows that match a filter, as batches of
    ``arrow_schema``. ``row_filter`` is None if Polars has no such filter. ``limit`` is how many
    rows of a file are needed. Any number of threads may use it."""

    def __init__(self, projected: Schema, row_filter: BoundFilter, limit: int | None) -> None:
        import polars as pl

        self._names = [field.name for field in projected.fields]
        self._limit = limit
        rows: Any = pl.from_arrow(arrow_schema(projected, include_field_ids=False).empty_table())
        self._schema = rows.schema
        self.arrow_schema = _arrow(rows).schema
        names = {field.field_id: field.name for field in row_filter.schema.fields}
        self.row_filter = row_expression(row_filter.expression, names, _Polars())

    def batches(self, plaintext: bytes) -> list[pa.RecordBatch] | None:
        """Return the rows of a file whose columns have the names and types of ``projected``, but
        None if Polars reads other types, or cannot read the file."""
        import polars as pl

        if not plaintext:
            return []
        found = pl.scan_parquet(plaintext).filter(self.row_filter).select(self._names)
        try:
            frame = (found if self._limit is None else found.head(self._limit)).collect()
        except pl.exceptions.PolarsError:
            return None
        if frame.schema != self._schema:
            return None
        batches: list[pa.RecordBatch] = _arrow(frame).to_batches()
        return batches


def _arrow(frame: polars.DataFrame) -> pa.Table:
    """Return the rows in the types that need no conversion."""
    import polars as pl

    return frame.to_arrow(compat_level=pl.CompatLevel.newest())


class _Polars:
    def column(self, name: str) -> polars.Expr:
        import polars as pl

        return pl.col(name)

    def literal(self, value: Any) -> polars.Expr:
        import polars as pl

        return pl.lit(value)

    def is_null(self, column: polars.Expr) -> polars.Expr:
        return column.is_null()

    def is_in(self, column: polars.Expr, values: list[Any]) -> polars.Expr:
        return column.is_in(values)

    def starts_with(self, column: polars.Expr, prefix: str) -> polars.Expr:
        return column.str.starts_with(prefix)

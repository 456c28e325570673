"""Arrow's PyCapsule interface for scans, by which Polars, DuckDB, pandas and others take the rows.

The consumer asks for one batch after the other, and gets its memory without a copy. This module
does not know the consumers.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyiceberg.schema import Schema

from ..pyiceberg.arrow import arrow_schema
from .shown import Shown

_SHOWN = """
    snapshot_id from_snapshot_id to_snapshot_id selected_fields row_filter limit
""".split()


class ArrowStream(Shown):
    """Exports the rows of a scan as a stream of Arrow batches."""

    def shown_facts(self) -> dict[str, Any]:
        """Return what the scan was asked for."""
        facts = {name: vars(self).get(name) for name in _SHOWN}
        return {name: value for name, value in facts.items() if value is not None}

    def projection(self) -> Schema:
        """Return the columns of the rows."""
        raise NotImplementedError

    def to_arrow_batch_reader(self) -> pa.RecordBatchReader:
        """Return the rows as a stream."""
        raise NotImplementedError

    def __arrow_c_schema__(self) -> object:
        """Return the schema of the rows, without a look at a file."""
        return arrow_schema(self.projection()).__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return the rows as a stream. Each call reads them anew, while the consumer asks for them.
        Raises as ``plan_files`` does, and pyarrow's ArrowTypeError if the columns cannot have the
        types of ``requested_schema``. If a file is damaged, the consumer gets an error instead of
        the rest of the rows."""
        return self.to_arrow_batch_reader().__arrow_c_stream__(requested_schema)

"""Upserts: finds which of the caller's rows update rows of a table, and which are inserted.

    the table has a row with the same key     rows_updated: if a value differs, replace the row
    it has none                               rows_inserted: add the row

The caller's rows are converted to the table's types first. Two keys are equal if they are equal in
Spark: 0.0 equals -0.0, and text is compared by its bytes. A key of the caller is never null or NaN.
Other values differ if they differ in Java: null equals null, NaN equals NaN, and -0.0 is not 0.0.
This module does not know files.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysFalse, BooleanExpression
from pyiceberg.schema import Schema
from pyiceberg.table import UpsertResult, upsert_util

from ..read.row_digests import Digests, row_digests
from ..read.scan import EncryptedScan
from ..spec.column_types import check_readable
from .conflicts import ConflictError
from .conversion import RowConversion
from .view import TableView


class Upsert:
    """The rows ``df``, with unique keys in the columns ``join_cols`` or, if there are none, in the
    schema's identifier fields. ``result`` is that of the last call of ``against``. Raises
    ValueError for invalid arguments, as PyIceberg's ``upsert`` does, and UnsupportedTypeError if
    rows with a column of an unreadable type would be updated; KeyError if a key is no column."""

    def __init__(
        self,
        df: pa.Table,
        join_cols: list[str] | None,
        *,
        update: bool,
        insert: bool,
        case_sensitive: bool,
        schema: Schema,
    ) -> None:
        keys = join_cols or [
            str(schema.find_column_name(field_id)) for field_id in schema.identifier_field_ids
        ]
        if not keys:
            raise ValueError(
                "Join columns could not be found, please set identifier-field-ids or pass in "
                "explicitly."
            )
        if not (update or insert):
            raise ValueError("an upsert that neither updates nor inserts does nothing")
        if update:
            # Rows are replaced as a whole, so the values of such a column would be lost.
            check_readable(schema, "insert only, by when_matched_update_all=False")
        for name in keys:
            if name not in df.column_names:
                raise KeyError(f'Field "{name}" does not exist in schema')
        conversion = RowConversion(schema, df.schema, keep_unknown=True, file_names=False)
        self._rows = pa.Table.from_batches(
            map(conversion.convert, df.to_batches()), conversion.arrow_schema
        )
        names = self._rows.column_names
        for name in keys:
            column = self._rows[name]
            is_float = pa.types.is_floating(column.type)
            if column.null_count or (is_float and pc.any(pc.is_nan(column)).as_py()):
                raise ValueError(
                    f"the key {name!r} is null or NaN in a row: such a row matches no other"
                )
        self._keys = keys
        self._key_table = pa.table([_comparable(self._rows[name]) for name in keys], keys)
        if upsert_util.has_duplicate_rows(self._key_table, keys):
            raise ValueError(
                "Duplicate rows found in source dataset based on the key columns. No upsert "
                "executed"
            )
        batches = self._key_table.to_batches()
        digests = (key for batch in batches for key in _as_bytes(row_digests(batch.columns)))
        self._row_of = {key: row for row, key in enumerate(digests)}
        self._values = [name for name in names if name not in keys]
        self._lacking = [name for name in names if name not in df.column_names]
        self._update = update
        self._insert = insert
        self._case_sensitive = case_sensitive
        self._inserted: list[int] = []
        self.result = UpsertResult()

    def against(self, view: TableView) -> tuple[BooleanExpression, pa.Table]:
        """Return the filter of the table's rows to delete, and the rows to write. Raises ValueError
        if a row would update several, or if rows to update would lose the values of a column."""
        matched: set[int] = set()
        changed: list[int] = []
        for batch in self._matched(view, range(len(self._rows))):
            rows = self._rows_for(batch)
            if self._update:
                if len(set(rows)) < len(rows) or not matched.isdisjoint(rows):
                    raise ValueError("Target table has duplicate rows, aborting upsert")
                if self._lacking and rows:
                    raise ValueError(
                        f"the rows have no column {self._lacking[0]!r}, whose values in the table "
                        "would be lost: add the column, or insert only"
                    )
                changed += self._changed(batch, rows)
            matched.update(rows)
        inserted = set(range(len(self._rows))) - matched if self._insert else ()
        self._inserted = sorted(inserted)
        self.result = UpsertResult(rows_updated=len(changed), rows_inserted=len(self._inserted))
        row_filter = self._filter(changed) if changed else AlwaysFalse()
        return row_filter, self._rows.take(_indices([*changed, *self._inserted]))

    def check_inserts(self, view: TableView) -> None:
        """Raise ConflictError if the table has a key by now that ``against`` found to be new."""
        if any(map(len, self._matched(view, self._inserted))):
            raise ConflictError(
                "another writer has inserted a key that this upsert would insert: nothing was "
                "committed. Load the table again and repeat the upsert"
            )

    def _rows_for(self, batch: pa.RecordBatch) -> list[int]:
        """Return for each of the table's rows in ``batch`` the row with the same key."""
        keys = row_digests([_comparable(batch.column(name)) for name in self._keys])
        return [self._row_of[key] for key in _as_bytes(keys)]

    def _changed(self, batch: pa.RecordBatch, rows: list[int]) -> list[int]:
        """Return the rows that differ in a value from the table's rows in ``batch``."""
        if not self._values or not rows:
            return []
        table = row_digests(batch.select(self._values).columns)
        differs = (table != self._value_digests[rows]).any(axis=1)
        return [row for row, is_changed in zip(rows, differs, strict=True) if is_changed]

    @functools.cached_property
    def _value_digests(self) -> Digests:
        batches = self._rows.select(self._values).to_batches()
        return np.concatenate([row_digests(batch.columns) for batch in batches])

    def _filter(self, rows: Sequence[int]) -> BooleanExpression:
        """Return the filter of the table's rows that have the keys of the rows."""
        keys = self._key_table.take(_indices(rows))
        row_filter: BooleanExpression = upsert_util.create_match_filter(keys, self._keys)
        return row_filter

    def _matched(self, view: TableView, rows: Sequence[int]) -> Iterator[pa.RecordBatch]:
        """Return the table's rows that have the keys of the rows."""
        snapshot = view.snapshot
        if snapshot is None or not rows:
            return iter(())
        scan = EncryptedScan(
            table_metadata=view.parsed,
            io=view.files,
            row_filter=self._filter(rows),
            selected_fields=("*",) if self._update else tuple(self._keys),
            case_sensitive=self._case_sensitive,
            snapshot_id=snapshot.snapshot_id,
            schema_id=view.parsed.current_schema_id,
        )
        return iter(scan.to_arrow_batch_reader())


def _as_bytes(digests: Digests) -> list[bytes]:
    each: list[bytes] = digests.view("V16").ravel().tolist()
    return each


def _comparable(column: Any) -> Any:
    """Return a column of keys in a form in which equal keys have the same bytes, and from which
    PyIceberg can make literals."""
    kind = column.type
    if pa.types.is_floating(kind):
        return pc.add(column, pa.scalar(0.0, kind))  # -0.0 + 0.0 is 0.0
    if pa.types.is_temporal(kind):
        # Python's times have no nanoseconds, and end with the year 9999.
        return column.cast(pa.int32() if pa.types.is_date32(kind) else pa.int64())
    return column.cast(kind.storage_type) if isinstance(kind, pa.BaseExtensionType) else column


def _indices(rows: Sequence[int]) -> pa.Array:
    return pa.array(rows, pa.int64())

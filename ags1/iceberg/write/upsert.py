"""Upserts: finds which of the caller's rows update rows of a table, and which are inserted.

    the table has a row with the same key     rows_updated: if a value differs, replace the row
    it has none                               rows_inserted: add the row

PyIceberg compares the rows (``pyiceberg.table.upsert_util``). This module does not know files.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysFalse, BooleanExpression, Or
from pyiceberg.expressions.visitors import bind
from pyiceberg.io.pyarrow import expression_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.table import UpsertResult, upsert_util
from pyiceberg.types import LongType, TimestampNanoType, TimestamptzNanoType

from ..pyiceberg.arrow import check_arrow_schema, downcasts_ns_timestamps
from ..read.scan import EncryptedScan
from ..spec.column_types import as_stored, check_readable
from .conflicts import ConflictError
from .view import TableView

_NANOSECONDS = TimestampNanoType, TimestamptzNanoType


class Upsert:
    """The rows ``df``, with unique keys in the columns ``join_cols`` or, if there are none, in the
    schema's identifier fields. ``result`` is that of the last call of ``against``. Raises
    ValueError for invalid arguments, as PyIceberg's ``upsert`` does, and UnsupportedTypeError if
    rows with a column of an unreadable type would be updated."""

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
        for name in keys:
            column = df[name]
            is_float = pa.types.is_floating(column.type)
            if column.null_count or (is_float and pc.any(pc.is_nan(column)).as_py()):
                raise ValueError(
                    f"the key {name!r} is null or NaN in a row: such a row matches no other"
                )
        if upsert_util.has_duplicate_rows(df, keys):
            raise ValueError(
                "Duplicate rows found in source dataset based on the key columns. No upsert "
                "executed"
            )
        if update:
            # Rows are replaced as a whole, so the values of such a column would be lost.
            check_readable(schema, "insert only, by when_matched_update_all=False")
        check_arrow_schema(
            as_stored(schema),
            df.schema,
            downcast_ns_timestamp_to_us=bool(downcasts_ns_timestamps()),
        )
        self._rows = df
        self._keys = keys
        self._update = update
        self._insert = insert
        self._case_sensitive = case_sensitive
        self._nanoseconds = {
            name
            for name in keys
            if isinstance(schema.find_type(name, case_sensitive), _NANOSECONDS)
        }
        self._inserted = df.slice(0, 0)
        self.result = UpsertResult()

    def against(self, view: TableView) -> tuple[BooleanExpression, pa.Table]:
        """Return the filter of the table's rows to delete, and the rows to write."""
        to_insert = self._in_numbers(self._rows)
        updates: list[pa.Table] = []
        filters: list[BooleanExpression] = []
        schema = self._of_numbers(view.schema)
        for batch in self._matched(view, self._rows):
            rows = pa.Table.from_batches([batch])
            if self._update:
                changed = upsert_util.get_rows_to_update(self._rows, rows, self._keys)
                if len(changed):
                    updates.append(changed)
                    filters.append(self._match_filter(changed))
            if self._insert:
                matched = self._match_filter(rows)
                bound = bind(schema, matched, case_sensitive=self._case_sensitive)
                to_insert = to_insert.filter(~expression_to_pyarrow(bound))
        to_insert = to_insert.cast(self._rows.schema)
        if not self._insert:
            to_insert = to_insert.slice(0, 0)
        self._inserted = to_insert
        updated = sum(map(len, updates))
        self.result = UpsertResult(rows_updated=updated, rows_inserted=len(to_insert))
        row_filter: BooleanExpression = AlwaysFalse()
        if filters:
            row_filter = filters[0] if len(filters) == 1 else Or(*filters)
        return row_filter, pa.concat_tables([*updates, to_insert])

    def check_inserts(self, view: TableView) -> None:
        """Raise ConflictError if the table has a key by now that ``against`` found to be new."""
        if len(self._inserted) and any(map(len, self._matched(view, self._inserted))):
            raise ConflictError(
                "another writer has inserted a key that this upsert would insert: nothing was "
                "committed. Load the table again and repeat the upsert"
            )

    def _match_filter(self, rows: pa.Table) -> BooleanExpression:
        return upsert_util.create_match_filter(self._in_numbers(rows), self._keys)

    def _in_numbers(self, rows: pa.Table) -> pa.Table:
        """Return rows in which keys in nanoseconds are numbers. PyIceberg would compare them as
        Python's times, which have no nanoseconds."""
        for name in self._nanoseconds:
            index = rows.schema.get_field_index(name)
            kind = pa.timestamp("ns", rows.schema.field(name).type.tz)
            rows = rows.set_column(index, name, rows[name].cast(kind).cast(pa.int64()))
        return rows

    def _of_numbers(self, schema: Schema) -> Schema:
        fields = (
            field.model_copy(update={"field_type": LongType()})
            if isinstance(field.field_type, _NANOSECONDS)
            else field
            for field in schema.fields
        )
        return Schema(*fields)

    def _matched(self, view: TableView, wanted: pa.Table) -> pa.RecordBatchReader:
        """Return the table's rows that have the keys of ``wanted``."""
        snapshot = view.snapshot
        if snapshot is None:
            return wanted.slice(0, 0).to_reader()
        # The rows get the current columns, not those of the snapshot's time.
        snapshot = snapshot.model_copy(update={"schema_id": None})
        return EncryptedScan(
            table_metadata=view.parsed.model_copy(update={"snapshots": [snapshot]}),
            io=view.files,
            row_filter=self._match_filter(wanted),
            selected_fields=("*",) if self._update else tuple(self._keys),
            case_sensitive=self._case_sensitive,
            snapshot_id=snapshot.snapshot_id,
        ).to_arrow_batch_reader()

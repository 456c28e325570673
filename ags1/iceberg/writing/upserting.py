"""Upserts: which rows of a table are replaced by which of the caller's, and which are new.

Knows nothing of files. The matching is PyIceberg's own (``pyiceberg.table.upsert_util``).
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.exceptions import ValidationException
from pyiceberg.expressions import AlwaysFalse, BooleanExpression, Or
from pyiceberg.expressions.visitors import bind
from pyiceberg.io.pyarrow import expression_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.table import UpsertResult, upsert_util

from ..pyiceberg_internals import check_arrow_schema, downcasts_ns_timestamps
from ..scan import EncryptedScan
from .view import TableView


class Upsert:
    """Rows ``df`` with unique keys in the columns ``join_cols``, the schema's identifier fields if
    that is empty. ``result`` tells what became of them in the version last asked about.

    Raises ValueError for arguments that cannot be, as PyIceberg's ``upsert`` does.
    """

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
            raise ValueError("no columns to join on: name them, or set identifier fields")
        if not (update or insert):
            raise ValueError("an upsert that neither updates nor inserts does nothing")
        for name in keys:
            column = df[name]
            is_float = pa.types.is_floating(column.type)
            if column.null_count or (is_float and pc.any(pc.is_nan(column)).as_py()):
                raise ValueError(f"the key {name!r} is null or NaN in a row, which matches no row")
        if upsert_util.has_duplicate_rows(df, keys):
            raise ValueError("two of the rows have one key")
        check_arrow_schema(
            schema, df.schema, downcast_ns_timestamp_to_us=bool(downcasts_ns_timestamps())
        )
        self._rows = df
        self._keys = keys
        self._update = update
        self._insert = insert
        self._case_sensitive = case_sensitive
        self._inserted = df.slice(0, 0)
        self.result = UpsertResult()

    def against(self, view: TableView) -> tuple[BooleanExpression, pa.Table]:
        """Return which of the table's rows go, and the rows to be written."""
        to_insert = self._rows
        updates: list[pa.Table] = []
        filters: list[BooleanExpression] = []
        for batch in self._matched(view, self._rows):
            rows = pa.Table.from_batches([batch])
            if self._update:
                changed = upsert_util.get_rows_to_update(self._rows, rows, self._keys)
                if len(changed):
                    updates.append(changed)
                    filters.append(upsert_util.create_match_filter(changed, self._keys))
            if self._insert:
                matched = upsert_util.create_match_filter(rows, self._keys)
                bound = bind(view.schema, matched, case_sensitive=self._case_sensitive)
                to_insert = to_insert.filter(~expression_to_pyarrow(bound))
        if not self._insert:
            to_insert = self._rows.slice(0, 0)
        self._inserted = to_insert
        updated = sum(map(len, updates))
        self.result = UpsertResult(rows_updated=updated, rows_inserted=len(to_insert))
        row_filter: BooleanExpression = AlwaysFalse()
        if filters:
            row_filter = filters[0] if len(filters) == 1 else Or(*filters)
        return row_filter, pa.concat_tables([*updates, to_insert])

    def check_inserts(self, view: TableView) -> None:
        """Raise ValidationException when a version has rows with keys that were new in the one last
        asked about."""
        if len(self._inserted) and any(map(len, self._matched(view, self._inserted))):
            raise ValidationException(
                "another writer has inserted a key that this upsert would insert: nothing was "
                "committed. Load the table again and repeat the upsert"
            )

    def _matched(self, view: TableView, wanted: pa.Table) -> pa.RecordBatchReader:
        """Return the rows of a version that have the keys of ``wanted``."""
        snapshot = view.snapshot
        if snapshot is None:
            return wanted.slice(0, 0).to_reader()
        # By the columns as they are now, and not as they were when the snapshot was made.
        snapshot = snapshot.model_copy(update={"schema_id": None})
        return EncryptedScan(
            table_metadata=view.parsed.model_copy(update={"snapshots": [snapshot]}),
            io=view.files,
            row_filter=upsert_util.create_match_filter(wanted, self._keys),
            case_sensitive=self._case_sensitive,
            snapshot_id=snapshot.snapshot_id,
        ).to_arrow_batch_reader()

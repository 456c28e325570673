"""What a file's manifest entry says about all of its rows, so that the file need not be read."""

from __future__ import annotations

from typing import cast

from pyiceberg import types
from pyiceberg.expressions.visitors import bind, extract_field_ids
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask

from ..pyiceberg.expressions import StrictMetricsEvaluator
from .records import ContentFile

# PyIceberg compares the bounds of these types with a literal just as it compares the values.
_BOUNDED_TYPES = (
    types.BinaryType,
    types.BooleanType,
    types.DateType,
    types.DecimalType,
    types.DoubleType,
    types.FixedType,
    types.FloatType,
    types.IntegerType,
    types.LongType,
    types.StringType,
    types.TimestampType,
    types.TimestamptzType,
    types.TimeType,
)


def all_rows_match(task: FileScanTask, schema: Schema, case_sensitive: bool) -> bool:
    """Return whether a file's partition and metrics say that the filter is true for all rows. A
    file without counts of the filter's columns must be read; PyIceberg takes a missing count for
    0."""
    file, residual = task.file, task.residual
    field_ids = extract_field_ids(bind(schema, residual, case_sensitive=case_sensitive))
    top_level = {f.field_id: f.field_type for f in schema.fields}
    for field_id in field_ids:
        kind = top_level.get(field_id)
        if not isinstance(kind, _BOUNDED_TYPES) or field_id not in (file.null_value_counts or {}):
            return False
        is_float = isinstance(kind, types.FloatType | types.DoubleType)
        if is_float and field_id not in (file.nan_value_counts or {}):
            return False
    return StrictMetricsEvaluator(schema, residual, case_sensitive).eval(file)


def live_rows(task: FileScanTask) -> int:
    """Return the number of a file's rows that are not in its deletion vector."""
    deletes = cast("set[ContentFile]", task.delete_files)
    return task.file.record_count - sum(d.record_count for d in deletes if d.is_deletion_vector)

"""Filters in the expressions of other libraries that read Parquet files: Polars, DuckDB.

``binding`` says what filters mean. A filter that a library could understand in another way has no
expression here: one of floating-point numbers, because each library has its own order of NaN, and
one of types that the libraries have no common literals for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any, Protocol

from pyiceberg import expressions as ex
from pyiceberg import types
from pyiceberg.expressions.visitors import BoundBooleanExpressionVisitor, visit
from pyiceberg.schema import Schema

_EPOCH = datetime(1970, 1, 1)
_NUMBERS = types.IntegerType, types.LongType, types.BooleanType
# The types of columns that the libraries read as Arrow does.
_COMMON = (
    *_NUMBERS,
    types.FloatType,
    types.DoubleType,
    types.DecimalType,
    types.DateType,
    types.TimestampType,
    types.TimestamptzType,
    types.StringType,
    types.BinaryType,
)


class Library(Protocol):
    """The expressions of a library. They have Python's operators for comparisons, ``&`` and
    ``|``."""

    def column(self, name: str) -> Any: ...
    def literal(self, value: Any) -> Any: ...
    def is_null(self, column: Any) -> Any: ...
    def is_in(self, column: Any, values: list[Any]) -> Any: ...
    def starts_with(self, column: Any, prefix: str) -> Any: ...


def row_expression(
    bound: ex.BooleanExpression, names: Mapping[int, str], library: Library
) -> Any | None:
    """Return a bound filter without ``Not`` as an expression of ``library``; None if it has none.
    ``names`` has the names of the columns, by field ID."""
    try:
        return visit(bound, _Expression(names, library))
    except (LookupError, OverflowError):
        return None


def read_alike(wanted: Iterable[types.NestedField], stored: Schema) -> bool:
    """Return whether a file whose schema is ``stored`` has the columns ``wanted`` under the same
    names, which no case makes ambiguous, with types that all libraries read alike."""
    of_file = {field.field_id: field for field in stored.fields}
    return _has_distinct_names(stored.fields) and all(
        field.field_id in of_file and _are_alike(field, of_file[field.field_id]) for field in wanted
    )


def _has_distinct_names(fields: Sequence[types.NestedField]) -> bool:
    return len({field.name.casefold() for field in fields}) == len(fields)


def _are_alike(wanted: types.NestedField, stored: types.NestedField) -> bool:
    """Compare IDs, names and types. Defaults and comments say nothing of stored values."""
    if (wanted.field_id, wanted.name) != (stored.field_id, stored.name):
        return False
    return _types_are_alike(wanted.field_type, stored.field_type)


def _types_are_alike(wanted: types.IcebergType, stored: types.IcebergType) -> bool:
    if isinstance(wanted, types.ListType) and isinstance(stored, types.ListType):
        return _are_alike(wanted.element_field, stored.element_field)
    if isinstance(wanted, types.StructType) and isinstance(stored, types.StructType):
        return (
            len(wanted.fields) == len(stored.fields)
            and _has_distinct_names(stored.fields)
            and all(map(_are_alike, wanted.fields, stored.fields))
        )
    return isinstance(wanted, _COMMON) and wanted == stored


def _python_value(value: Any, term: Any) -> Any:
    """Return a literal for a column as Python has it: days and microseconds as dates and times.
    Raises OverflowError for one that Python does not have, and LookupError for other types."""
    kind = term.ref().field.field_type
    if isinstance(kind, types.DateType):
        return _EPOCH.date() + timedelta(days=value)
    if isinstance(kind, types.TimestampType):
        return _EPOCH + timedelta(microseconds=value)
    if isinstance(kind, types.TimestamptzType):
        return _EPOCH.replace(tzinfo=timezone.utc) + timedelta(microseconds=value)
    if isinstance(kind, (*_NUMBERS, types.StringType)):
        return value
    raise LookupError


class _Expression(BoundBooleanExpressionVisitor[Any]):
    def __init__(self, names: Mapping[int, str], library: Library) -> None:
        self._names, self._library = names, library

    def _column(self, term: Any) -> Any:
        return self._library.column(self._names[term.ref().field.field_id])

    def _literal(self, term: Any, literal: Any) -> Any:
        return self._library.literal(_python_value(literal.value, term))

    def visit_true(self) -> Any:
        return self._library.literal(True)

    def visit_false(self) -> Any:
        return self._library.literal(False)

    def visit_not(self, child_result: Any) -> Any:
        raise LookupError

    def visit_and(self, left_result: Any, right_result: Any) -> Any:
        return left_result & right_result

    def visit_or(self, left_result: Any, right_result: Any) -> Any:
        return left_result | right_result

    def visit_in(self, term: Any, literals: Any) -> Any:
        values = [_python_value(one, term) for one in literals]
        return self._library.is_in(self._column(term), values)

    def visit_not_in(self, term: Any, literals: Any) -> Any:
        return ~self.visit_in(term, literals)

    def visit_is_nan(self, term: Any) -> Any:
        raise LookupError

    visit_not_nan = visit_is_nan

    def visit_is_null(self, term: Any) -> Any:
        return self._library.is_null(self._column(term))

    def visit_not_null(self, term: Any) -> Any:
        return ~self.visit_is_null(term)

    def visit_equal(self, term: Any, literal: Any) -> Any:
        return self._column(term) == self._literal(term, literal)

    def visit_not_equal(self, term: Any, literal: Any) -> Any:
        return self._column(term) != self._literal(term, literal)

    def visit_greater_than_or_equal(self, term: Any, literal: Any) -> Any:
        return self._column(term) >= self._literal(term, literal)

    def visit_greater_than(self, term: Any, literal: Any) -> Any:
        return self._column(term) > self._literal(term, literal)

    def visit_less_than(self, term: Any, literal: Any) -> Any:
        return self._column(term) < self._literal(term, literal)

    def visit_less_than_or_equal(self, term: Any, literal: Any) -> Any:
        return self._column(term) <= self._literal(term, literal)

    def visit_starts_with(self, term: Any, literal: Any) -> Any:
        return self._library.starts_with(self._column(term), _python_value(literal.value, term))

    def visit_not_starts_with(self, term: Any, literal: Any) -> Any:
        return ~self.visit_starts_with(term, literal)

"""``scan_polars``: a table as a lazy frame of Polars, with columns and filters pushed down.

Polars hands over the filter of a query as an expression. Its conjuncts that have a counterpart in
Iceberg choose the files and row groups that are read::

    (x > 5) & (s.str.starts_with("a")) & (x + y < 7)
     x > 5 or x is NaN   s starts with "a"   not translated      -> the scan's filter

A translation matches at least the rows that Polars wants: in Polars, NaN is the greatest number,
and equal to itself. Polars' whole expression then filters the rows. So the result does not depend
on what was translated. Polars does not promise the form of its expressions. An expression of an
unknown form is not translated.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

from pyiceberg.expressions import (
    And,
    BooleanExpression,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNaN,
    IsNull,
    LessThan,
    LessThanOrEqual,
    NotEqualTo,
    NotIn,
    NotNaN,
    NotNull,
    NotStartsWith,
    Or,
    StartsWith,
)
from pyiceberg.expressions.visitors import bind
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from ..pyiceberg.arrow import arrow_schema
from .scan import EncryptedIncrementalScan, EncryptedScan

if TYPE_CHECKING:
    import polars

    _Scan: TypeAlias = EncryptedScan | EncryptedIncrementalScan

# By the names in Polars' expressions: a comparison and its opposite, the same with its sides
# exchanged.
_OPPOSITES = {"Eq": "NotEq", "Lt": "GtEq", "LtEq": "Gt"}
_OPPOSITES |= {there: here for here, there in _OPPOSITES.items()}
_EXCHANGED = {"Eq": "Eq", "NotEq": "NotEq", "Lt": "Gt", "Gt": "Lt", "LtEq": "GtEq", "GtEq": "LtEq"}
_COMPARISONS: dict[str, Any] = {
    "Eq": EqualTo,
    "NotEq": NotEqualTo,
    "Lt": LessThan,
    "LtEq": LessThanOrEqual,
    "Gt": GreaterThan,
    "GtEq": GreaterThanOrEqual,
}
# Each with its opposite.
_TESTS: dict[str, tuple[Any, Any]] = {
    "IsNull": (IsNull, NotNull),
    "IsNotNull": (NotNull, IsNull),
    "IsNan": (IsNaN, NotNaN),
    "IsNotNan": (NotNaN, IsNaN),
}
_IS_IN: tuple[Any, Any] = In, NotIn
_STARTS_WITH: tuple[Any, Any] = StartsWith, NotStartsWith
_IS_NAN, _ = _TESTS["IsNan"]
_BETWEEN = {
    "Both": ("GtEq", "LtEq"),
    "Left": ("GtEq", "Lt"),
    "Right": ("Gt", "LtEq"),
    "None": ("Gt", "Lt"),
}


def scan_polars(source: Table | _Scan) -> polars.LazyFrame:
    """Return a table or a scan as a lazy frame of Polars.

    A query reads only the columns that it uses, and only the files and row groups that its filter
    needs. It reads them in batches, so that Polars' streaming engine needs memory for few of them.
    The result is the same as if Polars filtered all rows, also for null and NaN. ``source`` may be
    a ``scan`` or an ``incremental_append_scan``, for example of a branch. The frame stays at the
    version that the table had when the frame was made.

    Raises ImportError if Polars is not installed, and TypeError for another source, for example a
    table that is not encrypted. A query raises what the scan raises; Polars may wrap that in its
    ComputeError.
    """
    import polars as pl  # an optional dependency
    from polars.io.plugins import register_io_source

    scan = source.scan() if isinstance(source, Table) else source
    if not isinstance(scan, EncryptedScan | EncryptedIncrementalScan):
        raise TypeError(
            f"an encrypted table or a scan of one is needed, not {type(source).__name__}: use "
            "polars.scan_iceberg for a table that is not encrypted, and polars.DataFrame for "
            "changes"
        )
    rows = _PolarsSource(scan)
    empty = arrow_schema(scan.projection()).empty_table()
    return register_io_source(rows.read, schema=pl.DataFrame(empty).schema)


class _PolarsSource:
    """Reads a scan for Polars."""

    def __init__(self, scan: _Scan) -> None:
        self._scan = scan

    def read(
        self,
        with_columns: list[str] | None,
        predicate: polars.Expr | None,
        n_rows: int | None,
        batch_size: int | None,
    ) -> Iterator[polars.DataFrame]:
        """Yield the rows that match, in frames of at most ``batch_size`` rows."""
        import polars as pl  # an optional dependency

        for batch in self._narrowed(with_columns, predicate, n_rows).to_arrow_batch_reader():
            frame = pl.DataFrame(batch)
            if predicate is not None:
                frame = frame.filter(predicate)
            if n_rows is not None:
                frame = frame.head(n_rows)
                n_rows -= frame.height
            if with_columns is not None:
                # Unlike ``select``, this keeps the number of rows if there is no column left.
                frame = frame.drop(set(frame.columns).difference(with_columns))
                frame = frame.select(with_columns) if with_columns else frame
            yield from frame.iter_slices(batch_size or max(1, frame.height))
            if n_rows == 0:
                return

    def _narrowed(
        self, with_columns: list[str] | None, predicate: polars.Expr | None, n_rows: int | None
    ) -> _Scan:
        """Return the scan of the columns and of at least the rows that the query needs."""
        scan = self._scan
        used = [] if predicate is None else predicate.meta.root_names()
        if with_columns is not None:
            # Rows without a column could not be counted.
            columns = [*with_columns, *used] or [scan.projection().fields[0].name]
            scan = scan.update(selected_fields=tuple(dict.fromkeys(columns)))
        if predicate is None:
            limits = [limit for limit in (n_rows, scan.limit) if limit is not None]
            return scan.update(limit=min(limits)) if limits else scan
        # A scan's limit comes before the query's filter.
        if scan.limit is not None:
            return scan
        wanted = _Translation(scan, self._scan.projection()).of(_parsed(predicate), False)
        return scan if wanted is None else scan.filter(wanted)


class _Translation:
    """Translates Polars' expressions on the columns of ``projected``, whose names in Polars are
    those of the table's schema."""

    def __init__(self, scan: _Scan, projected: Schema) -> None:
        import polars as pl  # an optional dependency

        self._pl = pl
        self._schema = scan.table_metadata.schema()
        self._floats = pl.Float32, pl.Float64
        # Other types have values that are not compared as in Polars, or that Python cannot hold.
        known = {
            pl.Boolean,
            pl.Int32,
            pl.Int64,
            *self._floats,
            pl.String,
            pl.Date,
            pl.Datetime("us"),
            pl.Datetime("us", "UTC"),
        }
        arrow = arrow_schema(projected).empty_table()
        types = pl.DataFrame(arrow).schema
        # Filters name the table's current columns. Those of an old snapshot may be others.
        current = {field.name: field.field_id for field in self._schema.fields}
        self._columns = {
            field.name: types[field.name]
            for field in projected.fields
            if current.get(field.name) == field.field_id and types[field.name] in known
        }

    def of(self, node: Any, negated: bool) -> BooleanExpression | None:
        """Return an expression that is true for all rows for which the node is true or, if it is
        ``negated``, false. Return None if there is none."""
        match node:
            case {"Column": str(name)} if self._columns.get(name) == self._pl.Boolean:
                return self._bound(_COMPARISONS["Eq"](name, not negated))
            case {"BinaryExpr": {"left": left, "op": "And" | "LogicalAnd", "right": right}}:
                return self._both(left, right, negated, Or if negated else And)
            case {"BinaryExpr": {"left": left, "op": "Or" | "LogicalOr", "right": right}}:
                return self._both(left, right, negated, And if negated else Or)
            case {"BinaryExpr": {"left": {"Column": str(name)}, "op": str(op), "right": right}}:
                return self._compared(name, op, right, negated)
            case {"BinaryExpr": {"left": left, "op": str(op), "right": {"Column": str(name)}}}:
                return self._compared(name, _EXCHANGED.get(op, ""), left, negated)
            case {"Function": {"input": [inner], "function": {"Boolean": "Not"}}}:
                return self.of(inner, not negated)
            case {"Function": {"input": [{"Column": str(name)}, *others], "function": function}}:
                return self._called(name, function, others, negated)
        return None

    def _both(
        self, left: Any, right: Any, negated: bool, combined: type[And | Or]
    ) -> BooleanExpression | None:
        parts = [self.of(left, negated), self.of(right, negated)]
        known = [part for part in parts if part is not None]
        if len(known) == 2:
            return combined(*known)
        return known[0] if known and combined is And else None

    def _compared(
        self, name: str, op: str, literal: Any, negated: bool
    ) -> BooleanExpression | None:
        op = _OPPOSITES.get(op, "") if negated else op
        values = self._values(name, literal)
        is_equality = op in ("Eq", "NotEq")
        if values is None or len(values) != 1 or op not in _COMPARISONS:
            return None
        if self._columns[name] == self._pl.Boolean and not is_equality:
            return None
        with_nan = op in ("Gt", "GtEq", "NotEq")
        return self._bound(_COMPARISONS[op](name, values[0]), name if with_nan else None)

    def _called(
        self, name: str, function: Any, others: list[Any], negated: bool
    ) -> BooleanExpression | None:
        column = {"Column": name}
        match function, others:
            case {"Boolean": str(test)}, [] if test in _TESTS and name in self._columns:
                return self._bound(_TESTS[test][negated](name))
            case {"Boolean": {"IsBetween": {"closed": str(closed)}}}, [low, high]:
                above, below = _BETWEEN[closed]
                return self._both(
                    {"BinaryExpr": {"left": column, "op": above, "right": low}},
                    {"BinaryExpr": {"left": column, "op": below, "right": high}},
                    negated,
                    Or if negated else And,
                )
            case {"Boolean": {"IsIn": {"nulls_equal": False}}}, [literal]:
                values = self._values(name, literal)
                # Arrow tells -0.0 from 0.0 here, and Polars does not.
                if values is None or self._columns[name] in self._floats:
                    return None
                return self._bound(_IS_IN[negated](name, values))
            case {"StringExpr": "StartsWith"}, [literal]:
                values = self._values(name, literal)
                if values is None or len(values) != 1:
                    return None
                return self._bound(_STARTS_WITH[negated](name, values[0]))
        return None

    def _values(self, name: str, literal: Any) -> list[Any] | None:
        """Return the values of a literal that is of a column's type, without null."""
        kind = self._columns.get(name)
        if kind is None or not isinstance(literal, dict) or "Literal" not in literal:
            return None
        pl = self._pl
        try:
            parsed = pl.Expr.deserialize(io.StringIO(json.dumps(literal)), format="json")
            values = pl.select(parsed).to_series()
            if values.dtype == pl.List(kind) and len(values) == 1:
                values = values.explode()
            return values.drop_nulls().to_list() if values.dtype == kind else None
        except (pl.exceptions.PolarsError, ValueError, OverflowError):
            return None

    def _bound(
        self, wanted: BooleanExpression, nan_in: str | None = None
    ) -> BooleanExpression | None:
        """Return an expression that the table's columns can have; else None. It also lets the NaNs
        in the column ``nan_in`` through."""
        if nan_in is not None and self._columns[nan_in] in self._floats:
            wanted = Or(wanted, _IS_NAN(nan_in))
        try:
            bind(self._schema, wanted, case_sensitive=True)
        except (ValueError, TypeError):
            return None
        return wanted


def _parsed(predicate: polars.Expr) -> Any:
    """Return Polars' JSON of an expression; None if it has none."""
    import polars as pl  # an optional dependency

    try:
        return json.loads(predicate.meta.serialize(format="json"))
    except (pl.exceptions.PolarsError, ValueError):
        return None

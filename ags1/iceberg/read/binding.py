"""Binds a filter to the columns of one schema. All that reads, plans or deletes rows uses this.

PyIceberg's expressions are the language of filters, and SQL gives them their meaning: for null, no
comparison and no negation of one is true. In PyIceberg the meaning depends on where a value is
stored (a column, a partition, a default). Here one rule holds everywhere. It is Spark's rule.

    names       those of the schema: the table's, or that of the snapshot or tag that is read
                without regard to case, names that differ only in case are ambiguous
    nulls       a required field is null where an optional struct around it is, as in Java's
                ``BoundReference.producesNull``: IS NULL is constant only if no struct is optional
    literals    they are compared in the schema's type of a column, even if a file has another type

The predicates that come out are PyIceberg's bound ones, without ``Not``. Independent of files.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterable
from decimal import ROUND_FLOOR, Decimal, localcontext
from typing import Any, NamedTuple, cast

import numpy as np
from pyiceberg import expressions as ex
from pyiceberg import types
from pyiceberg.expressions import literals
from pyiceberg.expressions.visitors import extract_field_ids, rewrite_not, visit
from pyiceberg.schema import Schema
from pyiceberg.utils.datetime import timestamp_to_nanos, timestamptz_to_nanos

from ..pyiceberg.expressions import BooleanRewriter, balanced
from ..spec.column_types import check_comparable
from .metadata_columns import METADATA_COLUMNS, filtered_schema


class BoundFilter(NamedTuple):
    """A filter on the columns of ``schema``, which has the metadata columns too that the filter
    names. ``expression`` has bound predicates and no ``Not``."""

    expression: ex.BooleanExpression
    schema: Schema

    @property
    def field_ids(self) -> frozenset[int]:
        """The columns that the filter compares. A filter that is always false has none."""
        return frozenset(extract_field_ids(self.expression))

    @property
    def is_for_manifests(self) -> bool:
        """Whether manifests can decide the filter: it has no metadata column."""
        return METADATA_COLUMNS.keys().isdisjoint(self.field_ids)

    def for_manifests(self) -> BoundFilter:
        """Return a filter without metadata columns, which is true wherever this one is."""
        if self.is_for_manifests:
            return self
        return self._replace(expression=visit(self.expression, _OtherColumns()))


# True for all rows, and for none.
EVERY_ROW = BoundFilter(ex.AlwaysTrue(), Schema())
NO_ROW = BoundFilter(ex.AlwaysFalse(), Schema())


def bind_filter(
    row_filter: ex.BooleanExpression,
    schema: Schema,
    *,
    case_sensitive: bool = True,
    metadata_columns: bool = False,
) -> BoundFilter:
    """Return an unbound filter, bound to the columns of ``schema`` and, with ``metadata_columns``,
    to the metadata columns whose names the schema does not have.

    ``x != 1``, ``x NOT IN (…)`` and ``x NOT LIKE 'a%'`` leave nulls out. ``x IS NOT NAN`` is true
    for null, as in Spark. NaN satisfies no comparison but ``!=``, as in PyIceberg; in Spark, NaN is
    equal to itself and larger than all numbers. A number for a float column is rounded to a float.
    A number that the column's type cannot hold is compared too, with nulls left out; PyIceberg
    treats it as the largest number, or matches all rows.

    Raises ValueError for a column that the schema does not have, or has in a list or map, for a
    name that several columns have if case is ignored, and for a filter that is nested too deeply;
    UnsupportedTypeError for a column whose type is not known; TypeError for a literal that cannot
    have the column's type, for a prefix if the column is neither text nor bytes, and for a bound
    filter.
    """
    row_filter = balanced(row_filter)
    if metadata_columns:
        schema = filtered_schema(schema, row_filter, case_sensitive=case_sensitive)
    bound = visit(rewrite_not(row_filter), _Binding(schema, case_sensitive))
    return BoundFilter(bound, schema)


class _OtherColumns(BooleanRewriter):
    def visit_bound_predicate(self, predicate: ex.BoundPredicate) -> ex.BooleanExpression:
        is_metadata = predicate.term.ref().field.field_id in METADATA_COLUMNS
        return ex.AlwaysTrue() if is_metadata else predicate


class _Binding(BooleanRewriter):
    """Binds predicates as ``bind_filter`` says. The types float and int may be narrower than a
    literal. Then ``beyond`` is 1 if the literal is above all numbers of the type, and -1 if it is
    below: ``x < 1e300`` is true for each float but +infinity and NaN."""

    def __init__(self, schema: Schema, case_sensitive: bool) -> None:
        self._schema = schema
        self._case_sensitive = case_sensitive

    def visit_bound_predicate(self, predicate: ex.BoundPredicate) -> ex.BooleanExpression:
        raise TypeError(f"Found already bound predicate: {predicate}")

    def visit_unbound_predicate(self, predicate: ex.UnboundPredicate) -> ex.BooleanExpression:
        name: Any = predicate.term  # a Reference: there is no other
        term = self._bound_term(name.name)
        is_value = not isinstance(predicate, ex.IsNull | ex.NotNull)
        check_comparable(self._schema, term.field, values=is_value)
        kind: Any = predicate.as_bound
        if isinstance(predicate, ex.LiteralPredicate):
            return self._comparison(kind, term, predicate.literal)
        if isinstance(predicate, ex.SetPredicate):
            return self._set_predicate(kind, term, predicate.literals)
        if isinstance(predicate, ex.NotNaN):
            return ex.Or(kind(term), _of(ex.BoundIsNull, term))
        return _of(kind, term)

    def _bound_term(self, name: str) -> ex.BoundReference:
        schema = self._schema
        if not self._case_sensitive:
            both = [other for other in schema.column_names if other.lower() == name.lower()]
            if len(both) > 1:
                raise ValueError(
                    f"the column {name!r} is ambiguous, because there are "
                    f"{' and '.join(map(repr, both))}: write its name in its own case, and let "
                    "the filter be case-sensitive"
                )
        field = schema.find_field(name, case_sensitive=self._case_sensitive)
        path = _path(schema.fields, field.field_id)
        if path is None:
            raise ValueError(
                f"the column {name!r} is inside a list or map, and has no value of its own for a "
                "row: filter by other columns"
            )
        if any(part.optional for part in path):
            field = field.model_copy(update={"required": False})
        return ex.BoundReference(field, schema.accessor_for_field(field.field_id))

    def _comparison(self, kind: Any, term: ex.BoundReference, literal: Any) -> ex.BooleanExpression:
        column = term.field.field_type
        is_prefix = issubclass(kind, ex.BoundStartsWith | ex.BoundNotStartsWith)
        if is_prefix and not isinstance(column, types.StringType | types.BinaryType):
            name = term.field.name
            raise TypeError(f"only a string or binary has a prefix, and {name!r} is {column}")
        number = _number_in(literal, column)
        if number is not None:
            literal = number.literal
            if not number.is_exact:
                if issubclass(kind, ex.BoundEqualTo | ex.BoundNotEqualTo):
                    return _never(kind, term)
                is_less = issubclass(kind, ex.BoundLessThan | ex.BoundLessThanOrEqual)
                # The literal is between the next lower number of the type and the next one.
                kind = ex.BoundLessThanOrEqual if is_less else ex.BoundGreaterThan
        value, beyond = _in_type(literal, column)
        return _beyond(kind, term, beyond) if beyond else _at(kind, term, value)

    def _set_predicate(
        self, kind: Any, term: ex.BoundReference, given: Iterable[Any]
    ) -> ex.BooleanExpression:
        column = term.field.field_type
        values = set()
        for literal in given:
            number = _number_in(literal, column)
            if number is None or number.is_exact:
                value, beyond = _in_type(literal if number is None else number.literal, column)
                if not beyond:
                    values.add(value)
        return _at(kind, term, values)


def _path(
    fields: Iterable[types.NestedField], field_id: int
) -> tuple[types.NestedField, ...] | None:
    """Return a column that is not in a list or map, after the structs that it is in."""
    for field in fields:
        if field.field_id == field_id:
            return (field,)
        if isinstance(field.field_type, types.StructType):
            inner = _path(field.field_type.fields, field_id)
            if inner is not None:
                return (field, *inner)
    return None


def _of(kind: Any, term: ex.BoundReference, *literal: Any) -> ex.BooleanExpression:
    """Return a predicate. (The declared types of its classes only allow named arguments.)"""
    predicate: ex.BooleanExpression = kind(term, *literal)
    return predicate


def _at(kind: Any, term: ex.BoundReference, literal: Any) -> ex.BooleanExpression:
    """Return a comparison with a value of the column's type. It is not true for null."""
    compared = _of(kind, term, literal)
    is_not = issubclass(kind, ex.BoundNotEqualTo | ex.BoundNotStartsWith | ex.BoundNotIn)
    return ex.And(compared, _of(ex.BoundNotNull, term)) if is_not else compared


def _never(kind: Any, term: ex.BoundReference) -> ex.BooleanExpression:
    """Return = or != with a value that the column's type does not have."""
    return ex.AlwaysFalse() if issubclass(kind, ex.BoundEqualTo) else _of(ex.BoundNotNull, term)


def _beyond(kind: Any, term: ex.BoundReference, beyond: int) -> ex.BooleanExpression:
    """Return a comparison with a number above (1) or below (-1) all numbers of the column's type.
    Of a float, infinity is further away."""
    if issubclass(kind, ex.BoundEqualTo | ex.BoundNotEqualTo):
        return _never(kind, term)
    is_less = issubclass(kind, ex.BoundLessThan | ex.BoundLessThanOrEqual)
    is_nearer = is_less == (beyond > 0)
    if not isinstance(term.field.field_type, types.FloatType):
        return _of(ex.BoundNotNull, term) if is_nearer else ex.AlwaysFalse()
    infinity = literals.FloatLiteral(beyond * math.inf)
    if not is_nearer:
        return _of(ex.BoundEqualTo, term, infinity)
    return _of(ex.BoundLessThan if is_less else ex.BoundGreaterThan, term, infinity)


class _NanosecondLiteral(literals.TimestampLiteral):
    """A time in nanoseconds since 1970, for which PyIceberg has no literal."""

    def to(self, type_var: types.IcebergType) -> _NanosecondLiteral:
        if not isinstance(type_var, types.TimestampNanoType | types.TimestamptzNanoType):
            raise TypeError(f"a time in nanoseconds is compared with {type_var}")
        return self

    def increment(self) -> _NanosecondLiteral:
        return _NanosecondLiteral(self.value + 1)

    def decrement(self) -> _NanosecondLiteral:
        return _NanosecondLiteral(self.value - 1)


def _in_nanoseconds(literal: Any, kind: types.IcebergType) -> Any:
    """Return a literal for a column in nanoseconds. It may be given as an integer, a datetime or
    text in ISO 8601, with a UTC offset if the column has a zone, as for microseconds."""
    value = literal.value
    if isinstance(literal, _NanosecondLiteral):
        return literal
    if isinstance(literal, literals.StringLiteral):
        has_zone = isinstance(kind, types.TimestamptzNanoType)
        parse = timestamptz_to_nanos if has_zone else timestamp_to_nanos
        return _NanosecondLiteral(parse(value))
    if isinstance(literal, literals.TimestampLiteral):
        return _NanosecondLiteral(value * 1000)
    if isinstance(literal, literals.LongLiteral):
        return _NanosecondLiteral(value)
    raise TypeError(f"{value!r} is not a time, and cannot be compared with {kind}")


def _in_type(literal: Any, kind: types.IcebergType) -> tuple[Any, int]:
    """Return a literal in a column's type, and ``beyond``; 0 if the type has the value."""
    is_float = isinstance(kind, types.FloatType) and isinstance(literal.value, float)
    if is_float and math.isinf(literal.value):
        return literals.FloatLiteral(literal.value), 0
    if isinstance(kind, types.TimestampNanoType | types.TimestamptzNanoType):
        return _in_nanoseconds(literal, kind), 0
    converted = _conversion(literal.__class__, type(kind))(literal, kind)
    if isinstance(converted, literals.FloatLiteral):
        # PyIceberg rounds it for some comparisons only.
        return literals.FloatLiteral(float(np.float32(converted.value))), 0
    if isinstance(kind, types.DecimalType):
        # Arrow refuses a number of more digits than the column's type has. ``abs`` would round.
        has_place = converted.value.copy_abs() < 10 ** (kind.precision - kind.scale)
        return converted, 0 if has_place else 1 if converted.value > 0 else -1
    if isinstance(converted, literals.AboveMax):
        return converted, 1
    return converted, -1 if isinstance(converted, literals.BelowMin) else 0


@functools.cache
def _conversion(literal: type, column: type) -> Callable[[Any, types.IcebergType], Any]:
    """Return ``to`` of a class of literals, for a class of types. PyIceberg looks for it, and makes
    a method of it, in each call."""
    method = inspect.getattr_static(literal, "to")
    if isinstance(method, functools.singledispatchmethod):
        method = method.dispatcher.dispatch(column)
    return cast("Callable[[Any, types.IcebergType], Any]", method)


class _Number(NamedTuple):
    """A number for a column of integers or decimals. If the column's type cannot have it, because
    of its decimal places, ``literal`` is the next lower number that the type has."""

    literal: literals.Literal[Any]
    is_exact: bool


def _number_in(literal: Any, kind: types.IcebergType) -> _Number | None:
    """Return a decimal or floating number for a column of integers or decimals, and None for other
    literals and columns. PyIceberg rounds such a number to an integer, and refuses one with another
    number of decimal places than the column's type."""
    kinds = literals.DecimalLiteral, literals.DoubleLiteral, literals.FloatLiteral
    if not isinstance(literal, kinds) or not math.isfinite(literal.value):
        return None
    if isinstance(kind, types.FloatType | types.DoubleType):
        number = literals.DoubleLiteral(float(literal.value))
        return _Number(number, True) if isinstance(literal, literals.DecimalLiteral) else None
    if not isinstance(kind, types.IntegerType | types.LongType | types.DecimalType):
        return None
    scale = kind.scale if isinstance(kind, types.DecimalType) else 0
    value = Decimal(literal.value)
    with localcontext() as context:
        context.prec = 2000
        lower = value.quantize(Decimal(1).scaleb(-scale), ROUND_FLOOR)
    return _Number(literals.DecimalLiteral(lower), lower == value)

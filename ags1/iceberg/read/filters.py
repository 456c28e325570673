"""Row filters with the rules of SQL: for null, no comparison and no negation of one is true.

In PyIceberg the rule depends on where a value is stored (a column, a partition, a default). Here
one rule holds everywhere. It is Spark's rule, and the planner and the reader both use it. Literals
are compared in the table's type of a column, even if the file has another type.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from decimal import ROUND_FLOOR, Decimal, localcontext
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import acero
from pyiceberg import expressions as ex
from pyiceberg import types
from pyiceberg.expressions import literals
from pyiceberg.expressions.visitors import bind, extract_field_ids, rewrite_not, visit
from pyiceberg.schema import Schema
from pyiceberg.utils.datetime import timestamp_to_nanos, timestamptz_to_nanos

from ..pyiceberg.expressions import BooleanRewriter, arrow_filter
from ..spec.column_types import check_comparable
from .metadata_columns import METADATA_COLUMNS, filtered_schema


def as_sql(
    expression: ex.BooleanExpression, schema: Schema, *, case_sensitive: bool = True
) -> ex.BooleanExpression:
    """Return an unbound filter that treats nulls and numbers as SQL does in ``expression``.

    ``x != 1``, ``x NOT IN (…)`` and ``x NOT LIKE 'a%'`` leave nulls out. ``x IS NOT NAN`` is true
    for null, as in Spark. NaN satisfies no comparison but ``!=``, as in PyIceberg; in Spark, NaN is
    equal to itself and larger than all numbers. A number for a float column is rounded to a float.
    A number that the column's type in ``schema`` cannot hold is compared too, with nulls left out;
    PyIceberg treats it as the largest number, or matches all rows.

    Raises ValueError for a column that the schema does not have, UnsupportedTypeError for a column
    whose type is not known, and TypeError for a literal that cannot have the column's type, or for
    a prefix if the column is neither text nor bytes.
    """
    return visit(rewrite_not(expression), _SqlRules(schema, case_sensitive))


def bound_filter(
    row_filter: ex.BooleanExpression, schema: Schema, *, case_sensitive: bool = True
) -> ex.BooleanExpression:
    """Return ``as_sql`` of an unbound filter, bound to the table's columns and to the metadata
    columns that it names. Raises ValueError for a column that does not exist."""
    whole = filtered_schema(schema, row_filter, case_sensitive=case_sensitive)
    as_meant = as_sql(row_filter, whole, case_sensitive=case_sensitive)
    return bind(whole, as_meant, case_sensitive=case_sensitive)


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


class _SqlRules(BooleanRewriter):
    """Rewrites predicates as ``as_sql`` says. The types float and int may be narrower than a
    literal. Then ``beyond`` is 1 if the literal is above all numbers of the type, and -1 if it is
    below: ``x < 1e300`` is true for each float but +infinity and NaN."""

    def __init__(self, schema: Schema, case_sensitive: bool) -> None:
        self._schema = schema
        self._case_sensitive = case_sensitive

    def visit_unbound_predicate(self, predicate: ex.UnboundPredicate) -> ex.BooleanExpression:
        term = predicate.term.bind(self._schema, self._case_sensitive)
        is_value = not isinstance(predicate, ex.IsNull | ex.NotNull)
        check_comparable(self._schema, term.ref().field, values=is_value)
        if isinstance(predicate, ex.LiteralPredicate):
            number = _number_in(predicate.literal, term.ref().field.field_type)
            if number is not None:
                of = _of if number.is_exact else _beside
                compared = of(type(predicate), predicate.term, number.literal)
                if not isinstance(compared, ex.LiteralPredicate):
                    return compared
                predicate = compared
            return self._comparison(predicate)
        if isinstance(predicate, ex.SetPredicate):
            return self._set_predicate(predicate)
        if isinstance(predicate, ex.NotNaN):
            return ex.Or(predicate, ex.IsNull(term=predicate.term))
        return predicate

    def _comparison(self, predicate: ex.LiteralPredicate) -> ex.BooleanExpression:
        kind = self._type(predicate)
        is_prefix = isinstance(predicate, ex.StartsWith | ex.NotStartsWith)
        if is_prefix and not isinstance(kind, types.StringType | types.BinaryType):
            name = predicate.term.bind(self._schema, self._case_sensitive).ref().field.name
            raise TypeError(f"only a string or binary has a prefix, and {name!r} is {kind}")
        value, beyond = self._in_type(predicate, predicate.literal)
        term, not_null = predicate.term, ex.NotNull(term=predicate.term)
        if isinstance(predicate, ex.NotEqualTo | ex.NotStartsWith):
            return not_null if beyond else ex.And(_of(type(predicate), term, value), not_null)
        if not beyond:
            return _of(type(predicate), term, value)
        is_float = isinstance(kind, types.FloatType)
        infinity = literals.FloatLiteral(beyond * math.inf) if is_float else None
        if beyond > 0 and isinstance(predicate, ex.LessThan | ex.LessThanOrEqual):
            return not_null if infinity is None else _of(ex.LessThan, term, infinity)
        if beyond < 0 and isinstance(predicate, ex.GreaterThan | ex.GreaterThanOrEqual):
            return not_null if infinity is None else _of(ex.GreaterThan, term, infinity)
        if infinity is None or isinstance(predicate, ex.EqualTo):
            return ex.AlwaysFalse()
        return _of(ex.EqualTo, term, infinity)

    def _set_predicate(self, predicate: ex.SetPredicate) -> ex.BooleanExpression:
        numbers = [(x, _number_in(x, self._type(predicate))) for x in predicate.literals]
        exact = [x if n is None else n.literal for x, n in numbers if n is None or n.is_exact]
        converted = [self._in_type(predicate, literal) for literal in exact]
        values = [value for value, beyond in converted if not beyond]
        if isinstance(predicate, ex.NotIn):
            not_null = ex.NotNull(term=predicate.term)
            return ex.And(_of(ex.NotIn, predicate.term, values), not_null) if values else not_null
        return _of(ex.In, predicate.term, values) if values else ex.AlwaysFalse()

    def _in_type(self, predicate: ex.UnboundPredicate, literal: Any) -> tuple[Any, int]:
        """Return the literal in the column's type, and ``beyond``; 0 if the type has the value."""
        kind = self._type(predicate)
        is_float = isinstance(kind, types.FloatType) and isinstance(literal.value, float)
        if is_float and math.isinf(literal.value):
            return literals.FloatLiteral(literal.value), 0
        if isinstance(kind, types.TimestampNanoType | types.TimestamptzNanoType):
            return _in_nanoseconds(literal, kind), 0
        converted = literal.to(kind)
        if isinstance(converted, literals.FloatLiteral):
            # PyIceberg rounds it for some comparisons only.
            return literals.FloatLiteral(float(np.float32(converted.value))), 0
        if isinstance(kind, types.DecimalType):
            # Arrow refuses a number of more digits than the column's type has. ``abs`` would round.
            has_place = converted.value.copy_abs() < 10 ** (kind.precision - kind.scale)
            return literal, 0 if has_place else 1 if converted.value > 0 else -1
        if isinstance(converted, literals.AboveMax):
            return literal, 1
        return literal, -1 if isinstance(converted, literals.BelowMin) else 0

    def _type(self, predicate: ex.UnboundPredicate) -> types.IcebergType:
        term = predicate.term.bind(self._schema, self._case_sensitive)
        kind: types.IcebergType = term.ref().field.field_type
        return kind


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


def _beside(kind: type, term: Any, lower: Any) -> ex.BooleanExpression:
    """Return a comparison with a number above ``lower`` and below the type's next one."""
    if issubclass(kind, ex.LessThan | ex.LessThanOrEqual):
        return _of(ex.LessThanOrEqual, term, lower)
    if issubclass(kind, ex.GreaterThan | ex.GreaterThanOrEqual):
        return _of(ex.GreaterThan, term, lower)
    if issubclass(kind, ex.EqualTo):
        return ex.AlwaysFalse()
    return ex.NotNull(term=term)


def _of(kind: Any, term: Any, literal: Any) -> ex.BooleanExpression:
    """Return a predicate. (The declared types of its classes only allow named arguments.)"""
    predicate: ex.BooleanExpression = kind(term, literal)
    return predicate


class RowFilter:
    """A filter, bound to ``schema``, in two forms for Arrow: as an expression over the columns of a
    file, which Arrow applies while it reads, and as a mask of rows that were read. ``field_ids``
    are the columns that the filter uses. A filter that is always false uses none."""

    def __init__(self, bound: ex.BooleanExpression, schema: Schema) -> None:
        self._bound = bound
        self._schema = schema
        self.field_ids: tuple[int, ...] = tuple(sorted(extract_field_ids(bound)))
        # Each column has its ID as its name, because a column's own name may contain dots.
        self._flat = arrow_filter(bound, {i: str(i) for i in self.field_ids})

    @property
    def float_ids(self) -> frozenset[int]:
        """The columns of type float or double among ``field_ids``."""
        kinds = types.FloatType, types.DoubleType
        return frozenset(i for i in self.field_ids if isinstance(self._schema.find_type(i), kinds))

    def for_file(
        self, file_schema: Schema, without_nan: frozenset[int] = frozenset()
    ) -> pc.Expression | None:
        """Return the filter over a file's own columns, so that Arrow can skip parts of the file.

        The result is None in these cases, because Arrow would return wrong rows:

        - The file does not have a column, or has it in another type, which could round a literal.
        - A float column may have NaN: it is not in ``without_nan``. Parquet's statistics do not
          count NaN, and Arrow concludes from them that all rows match, or none.
        - The filter uses metadata columns, whose values are not all in the file.
        """
        if not self.float_ids <= without_nan or not METADATA_COLUMNS.keys().isdisjoint(
            self.field_ids
        ):
            return None
        names: dict[int, str | tuple[str, ...]] = {}
        paths = dict(_paths(file_schema.fields))
        for field_id in self.field_ids:
            kind = self._schema.find_type(field_id)
            # Arrow's type for a UUID depends on the writer of the file.
            if field_id not in paths or isinstance(kind, types.UUIDType):
                return None
            if file_schema.find_type(field_id) != kind:
                return None
            names[field_id] = paths[field_id]
        return arrow_filter(self._bound, names)

    def mask(self, columns: Iterable[pa.Array]) -> pa.Array:
        """Return a mask of the rows that match; null if that is unknown. ``columns`` are those of
        ``field_ids``, in the table's types."""
        names = map(str, self.field_ids)
        table = pa.table({n: _storage(c) for n, c in zip(names, columns, strict=True)})
        source = acero.Declaration("table_source", acero.TableSourceNodeOptions(table))
        project = acero.Declaration("project", acero.ProjectNodeOptions([self._flat], ["matches"]))
        plan = acero.Declaration.from_sequence([source, project])
        # With several threads, the order of the rows would be undefined.
        return plan.to_table(use_threads=False).column(0).combine_chunks()


def _storage(column: pa.Array) -> pa.Array:
    return column.storage if isinstance(column, pa.ExtensionArray) else column


def _paths(
    fields: Iterable[types.NestedField], above: tuple[str, ...] = ()
) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield the ID of each column that is not inside a list or map, and its names from the top."""
    for field in fields:
        path = (*above, field.name)
        yield field.field_id, path
        if isinstance(field.field_type, types.StructType):
            yield from _paths(field.field_type.fields, path)

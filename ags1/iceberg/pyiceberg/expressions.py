"""PyIceberg's filters: their text, their literals, and their form in Arrow. LIKE has SQL's meaning,
and patterns that filters cannot look for are refused. Bounds of columns are decoded here, also
those of a column that had another type (a date) when its file was written."""

from __future__ import annotations

import functools
import importlib.util
import re
import struct
from collections.abc import Callable, Mapping
from typing import Any, cast

import pyarrow.compute as pc
from pyiceberg.conversions import from_bytes
from pyiceberg.expressions import (
    And,
    BooleanExpression,
    BoundPredicate,
    BoundReference,
    BoundTerm,
    EqualTo,
    Not,
    Or,
    Reference,
    StartsWith,
    UnboundPredicate,
)
from pyiceberg.expressions.literals import literal
from pyiceberg.expressions.visitors import _RewriteNotVisitor, visit
from pyiceberg.io.pyarrow import _ConvertToArrowExpression
from pyiceberg.types import (
    DoubleType,
    FixedType,
    FloatType,
    PrimitiveType,
    TimestampNanoType,
    TimestampType,
    UUIDType,
)

from ..spec.column_types import UNITS_A_DAY

# PyIceberg's visitors need about three of Python's 1,000 frames for a level.
_MAX_DEPTH = 200
_TOO_DEEP = (
    "the filter is nested too deeply: write it with fewer parentheses, or with IN instead of many "
    "comparisons"
)
_DAY = struct.Struct("<i")
_TIME = struct.Struct("<q")


@from_bytes.register(TimestampType)
@from_bytes.register(TimestampNanoType)
def _time_of_bound(kind: TimestampType | TimestampNanoType, bound: bytes) -> int:
    """Return a bound of a column of times. If the column had dates when the file was written, the
    bound is a number of days. PyIceberg's own function raises an error for that."""
    if len(bound) == _DAY.size:
        return int(_DAY.unpack(bound)[0]) * UNITS_A_DAY[type(kind)]
    return int(_TIME.unpack(bound)[0])


# Returns the value of a bound in a manifest, for a type.
value_of_bound: Callable[[PrimitiveType, bytes], Any] = from_bytes

# A visitor that returns the expression unchanged. Subclasses rewrite some of the predicates.
BooleanRewriter = _RewriteNotVisitor


def _literals_of(predicate: Any) -> list[Any]:
    """Return the arguments of a predicate after its term."""
    names = ("literal", "literals")
    return [getattr(predicate, name) for name in names if hasattr(predicate, name)]


class _Renamed(BooleanRewriter):
    def __init__(self, new_name: Callable[[str], str]) -> None:
        self._new_name = new_name

    def visit_unbound_predicate(self, predicate: UnboundPredicate) -> BooleanExpression:
        term = Reference(self._new_name(cast("Reference", predicate.term).name))
        return type(predicate)(term, *_literals_of(predicate))


def rename_columns(
    expression: BooleanExpression, new_name: Callable[[str], str]
) -> BooleanExpression:
    """Return an unbound filter with other names of columns. Raises what ``new_name`` raises."""
    return visit(expression, _Renamed(new_name))


def balanced(expression: BooleanExpression) -> BooleanExpression:
    """Return a filter, or the same one with chains of AND and OR as trees of little depth if it is
    very deep: PyIceberg's visitors fail at a chain of some hundreds. Raises ValueError for a filter
    that is still too deep."""
    pending = [(expression, 0)]
    while pending:
        part, depth = pending.pop()
        if depth > _MAX_DEPTH:
            return _balanced(expression, _MAX_DEPTH)
        parts = (part.left, part.right) if isinstance(part, And | Or) else ()
        pending += [(inner, depth + 1) for inner in parts]
        if isinstance(part, Not):
            pending.append((part.child, depth + 1))
    return expression


def _balanced(expression: BooleanExpression, depth: int) -> BooleanExpression:
    if depth < 0:
        raise ValueError(_TOO_DEEP)
    if isinstance(expression, Not):
        return Not(_balanced(expression.child, depth - 1))
    if not isinstance(expression, And | Or):
        return expression
    kind = type(expression)
    parts: list[BooleanExpression] = []
    pending: list[BooleanExpression] = [expression]
    while pending:
        part = pending.pop()
        if isinstance(part, kind):
            pending += [part.right, part.left]
        else:
            parts.append(part)
    more = (len(parts) - 1).bit_length()
    whole: BooleanExpression = kind(*(_balanced(part, depth - more) for part in parts))
    return whole


@functools.cache
def _grammar() -> Any:
    """Return a copy of PyIceberg's module with the grammar, in which LIKE has SQL's meaning. The
    module itself stays as it is."""
    found: Any = importlib.util.find_spec("pyiceberg.expressions.parser")
    copy: Any = importlib.util.module_from_spec(found)
    found.loader.exec_module(copy)
    copy._evaluate_like_statement = _like
    return copy


def _like(parsed: Any) -> BooleanExpression:
    pattern = parsed.raw_quoted_string.value
    letters = re.findall(r"\\[%_]|.", pattern, re.DOTALL)
    is_prefix = letters[-1:] == ["%"]
    text = letters[: len(letters) - is_prefix]
    if "%" in text:
        # PyIceberg's message.
        raise ValueError("LIKE expressions only supports wildcard, '%', at the end of a string")
    if "_" in text:
        raise ValueError(
            f"in LIKE {pattern!r}, '_' stands for any character, and filters cannot look for that: "
            "write '\\_' if the character '_' is meant"
        )
    if "\\" in text:
        raise ValueError(
            f"in LIKE {pattern!r}, a backslash is before another character than '%' and '_': "
            "compare with = or != instead, or with the predicate StartsWith"
        )
    value = "".join(letter[-1] for letter in text)
    kind: Any = StartsWith if is_prefix else EqualTo
    predicate: BooleanExpression = kind(parsed.column, literal(value))
    return predicate


def parse_row_filter(row_filter: str | BooleanExpression) -> BooleanExpression:
    """Return an unbound filter in the form of ``balanced``. A text is parsed with PyIceberg's
    grammar. Raises what ``balanced`` and PyIceberg's parser raise, and ValueError for a LIKE that
    is not an equality or a prefix. (PyIceberg reads ``_`` as the character itself.)"""
    if not isinstance(row_filter, str):
        return balanced(row_filter)
    try:
        return balanced(_grammar().parse(row_filter))
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None


def parse_filter(text: str) -> BooleanExpression:
    """Return a filter as ``parse_row_filter``. Raises ValueError, which says where the text is
    wrong."""
    try:
        return parse_row_filter(text)
    except Exception as error:
        position = getattr(error, "loc", None)  # pyparsing's
        if position is not None:
            reason = f"PyIceberg does not understand it from character {position + 1} on"
        else:
            reason = " ".join(str(error).split())
        raise ValueError(reason) from None


class _ArrowFilter(_ConvertToArrowExpression):
    def __init__(self, names: Mapping[int, str | tuple[str, ...]]) -> None:
        super().__init__()
        self._names = names

    def _get_field_name(self, term: BoundTerm) -> str | tuple[str, ...]:
        return self._names[term.ref().field.field_id]

    def visit_bound_predicate(self, predicate: BoundPredicate) -> pc.Expression:
        reference = predicate.term.ref()
        if isinstance(reference.field.field_type, UUIDType):
            # Arrow does not compare UUIDs. It compares their bytes.
            field = reference.field.model_copy(update={"field_type": FixedType(16)})
            predicate = type(predicate)(
                BoundReference(field, reference.accessor), *_literals_of(predicate)
            )
        return super().visit_bound_predicate(predicate)

    def visit_in(self, term: BoundTerm, literals: set[Any]) -> pc.Expression:
        rest = literals - {0}
        if rest != literals and isinstance(term.ref().field.field_type, FloatType | DoubleType):
            # 0.0 equals -0.0. Arrow's sets distinguish them.
            zero = self.visit_equal(term, literal(0.0))
            return zero | super().visit_in(term, rest) if rest else zero
        return super().visit_in(term, literals)

    def visit_not_in(self, term: BoundTerm, literals: set[Any]) -> pc.Expression:
        # For Arrow, null is in no set, so its negation would match null.
        return ~self.visit_in(term, literals) & self.visit_not_null(term)


def arrow_filter(
    bound: BooleanExpression, names: Mapping[int, str | tuple[str, ...]]
) -> pc.Expression:
    """Return a bound filter as an expression of Arrow. The filter must not contain ``Not``.
    ``names`` has Arrow's names of the columns, by field ID."""
    return visit(bound, _ArrowFilter(names))

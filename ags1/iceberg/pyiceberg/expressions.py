"""PyIceberg's filters: their text, their literals and bounds, and their form in Arrow."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any, cast

import pyarrow.compute as pc
from pyiceberg.conversions import from_bytes
from pyiceberg.expressions import (
    BooleanExpression,
    BoundPredicate,
    BoundReference,
    BoundTerm,
    Reference,
    UnboundPredicate,
)
from pyiceberg.expressions.literals import literal
from pyiceberg.expressions.parser import parse
from pyiceberg.expressions.visitors import (
    _RewriteNotVisitor,
    visit,
)
from pyiceberg.io.pyarrow import _ConvertToArrowExpression
from pyiceberg.table import _parse_row_filter as parse_row_filter
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

__all__ = [
    "BooleanRewriter",
    "arrow_filter",
    "parse_filter",
    "parse_row_filter",
    "rename_columns",
    "value_of_bound",
]

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


def parse_filter(text: str) -> BooleanExpression:
    """Return a filter in PyIceberg's grammar, not bound to columns yet. Raises ValueError, which
    says where the text is wrong."""
    try:
        return parse(text)
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

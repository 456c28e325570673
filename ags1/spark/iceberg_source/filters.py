"""Row filters as Spark SQL writes them, for sources that Spark hands a text.

A filter is what Iceberg can prune by: comparisons of a column with literals (``=``, ``==``,
``<>``, ``!=``, ``<``, ``<=``, ``>``, ``>=``, ``<=>``), ``IN``, ``BETWEEN``, ``LIKE 'prefix%'``,
``IS NULL``, ``IS NAN``, a boolean column by itself, and these with ``AND``, ``OR``, ``NOT`` and
parentheses. Literals are those of Spark: ``1000``, ``10L``, ``1.5``, ``1e3``, ``'text'``,
``"text"``, ``true``, ``DATE '2026-01-31'``, ``TIMESTAMP '2026-01-31 12:00:00Z'``, ``X'1F'``. A
column may be in backticks. PyIceberg's grammar is a part of this, with its column names in double
quotes on the left of an operator. All else (functions, arithmetic, two columns) is for ``where``.

The grammar is the part of Spark's ``SqlBaseParser.g4`` for these. A filter has the meaning that
``where`` gives it: ``read.filters`` has the rules for nulls, and ``as_in_spark`` those for
floating-point numbers. Knows nothing of tables.
"""

from __future__ import annotations

import math
import re
import struct
import sys
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any, NamedTuple, NoReturn

import pyarrow as pa
from pyiceberg import expressions as ex
from pyiceberg.expressions import literals
from pyiceberg.expressions.visitors import rewrite_not, visit
from pyiceberg.schema import Schema
from pyiceberg.types import (
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    LongType,
    StringType,
)

from ...iceberg.distributed import BooleanRewriter

_TOKENS = re.compile(
    r"""
      (?P<blank>\s+)
    | (?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?:BD|[LSYDF])?(?![A-Za-z0-9_.]))
    | (?P<name>[A-Za-z_][A-Za-z0-9_$]*)
    | (?P<backticks>`(?:[^`]|``)+`)
    | (?P<single>'(?:[^'\\]|\\.|'')*')
    | (?P<double>"(?:[^"\\]|\\.|"")*")
    | (?P<sign><=>|<=|>=|<>|!=|==|[=<>(),.!+-])
    """,
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)
_COMPARISONS: dict[str, Any] = {
    "=": ex.EqualTo,
    "==": ex.EqualTo,
    "<>": ex.NotEqualTo,
    "!=": ex.NotEqualTo,
    "<": ex.LessThan,
    "<=": ex.LessThanOrEqual,
    ">": ex.GreaterThan,
    ">=": ex.GreaterThanOrEqual,
}
# What a comparison is with its sides exchanged.
_EXCHANGED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_RESERVED = frozenset("AND OR NOT IN IS LIKE ILIKE RLIKE REGEXP BETWEEN NULL TRUE FALSE".split())
_TIME = "'2026-01-31 12:00:00'"
# The words that begin a literal, and such a literal.
_TYPED = {
    "DATE": "DATE '2026-01-31'",
    "TIMESTAMP": f"TIMESTAMP {_TIME}",
    "TIMESTAMP_NTZ": f"TIMESTAMP_NTZ {_TIME}",
    "TIMESTAMP_LTZ": f"TIMESTAMP_LTZ {_TIME}",
    "X": "X'1F'",
}
_ESCAPES = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a"}
_MAX_DEPTH = 100
# From here on, not all integers are a DOUBLE.
_FIRST_INEXACT = 2.0**53
_WHERE = "give the rest to where()"


class _Token(NamedTuple):
    kind: str
    text: str
    at: int

    @property
    def word(self) -> str:
        """A name or a sign in upper case, to compare with the grammar's; else empty."""
        return self.text.upper() if self.kind in ("name", "sign") else ""


class _TimeText(literals.StringLiteral):
    """A date or a time in ISO 8601. It is compared with dates and times only: as in Spark, a
    timestamp with zone needs one here."""

    def to(self, type_var: IcebergType) -> Any:
        if isinstance(type_var, StringType):
            raise TypeError(f"{self.value!r} is a time, and the column is a string")
        return super().to(type_var)


def parse_filter(
    text: str, option: str = "filter", own_name: Callable[[str], str] = str
) -> ex.BooleanExpression:
    """Return a filter that is not bound to columns yet. ``own_name`` returns a column's name as the
    table has it. Raises ValueError, which says where the text is wrong."""
    return _Parser(text, option, own_name).parse()


def as_in_spark(expression: ex.BooleanExpression, schema: Schema) -> ex.BooleanExpression:
    """Return an unbound filter in which floating-point numbers are what they are in ``where``: NaN
    is larger than all numbers, and any number is compared with a DOUBLE as a DOUBLE. ``schema`` has
    the columns of the filter; raises ValueError for another one."""
    return visit(rewrite_not(expression), _SparkNumbers(schema))


class _SparkNumbers(BooleanRewriter):
    """Rewrites the comparisons of a filter that has no NOT."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema

    def visit_unbound_predicate(self, predicate: ex.UnboundPredicate) -> ex.BooleanExpression:
        kind = predicate.term.bind(self._schema, case_sensitive=True).ref().field.field_type
        if isinstance(predicate, ex.SetPredicate):
            return _set_as_in_spark(predicate, kind)
        if not isinstance(predicate, ex.LiteralPredicate):
            return predicate
        compared = _compared(type(predicate), predicate.term, predicate.literal, kind)
        is_float = isinstance(kind, FloatType | DoubleType)
        if is_float and isinstance(predicate, ex.GreaterThan | ex.GreaterThanOrEqual):
            return ex.Or(compared, _predicate(ex.IsNaN, predicate.term))
        return compared


def _set_as_in_spark(predicate: ex.SetPredicate, kind: IcebergType) -> ex.BooleanExpression:
    values = list(predicate.literals)
    has_double = any(isinstance(value, literals.DoubleLiteral) for value in values)
    if not has_double and not isinstance(kind, FloatType):
        return predicate
    # Spark gives all values of a list one type.
    numbers = [
        literals.DoubleLiteral(float(value.value)) if _is_number(value) else value
        for value in values
    ]
    one, joined = (ex.EqualTo, ex.Or) if isinstance(predicate, ex.In) else (ex.NotEqualTo, ex.And)
    parts = [_compared(one, predicate.term, value, kind) for value in numbers]
    return joined(*parts) if len(parts) > 1 else parts[0]


def _is_number(value: Any) -> bool:
    return isinstance(value, literals.DoubleLiteral | literals.DecimalLiteral)


def _compared(kind: Any, term: Any, value: Any, column: IcebergType) -> ex.BooleanExpression:
    """Return the comparison of a column with a value, by all numbers that are equal to it."""
    of_double = isinstance(value, literals.DoubleLiteral) or (
        isinstance(column, FloatType) and isinstance(value, literals.DecimalLiteral)
    )
    if not of_double or not isinstance(column, FloatType | DecimalType | LongType):
        return _predicate(kind, term, value)
    number = float(value.value)
    if not abs(number) < sys.float_info.max:
        return _predicate(kind, term, value)
    if isinstance(column, FloatType):
        return _compared_as_float(kind, term, number)
    if isinstance(column, LongType) and abs(number) < _FIRST_INEXACT:
        return _predicate(kind, term, value)
    # The numbers between these become ``number`` as a DOUBLE, and the limits if it is even.
    low = (Fraction(number) + Fraction(math.nextafter(number, -math.inf))) / 2
    high = (Fraction(number) + Fraction(math.nextafter(number, math.inf))) / 2
    is_even = struct.pack("<d", number)[0] % 2 == 0
    below = _predicate(ex.LessThan if is_even else ex.LessThanOrEqual, term, _decimal(low))
    above = _predicate(ex.GreaterThan if is_even else ex.GreaterThanOrEqual, term, _decimal(high))
    within = ~below, ~above
    by_kind = {
        ex.LessThan: below,
        ex.LessThanOrEqual: within[1],
        ex.GreaterThan: above,
        ex.GreaterThanOrEqual: within[0],
        ex.EqualTo: ex.And(*within),
        ex.NotEqualTo: ex.Or(below, above),
    }
    return by_kind[kind]


def _compared_as_float(kind: Any, term: Any, number: float) -> ex.BooleanExpression:
    """Return the comparison of a FLOAT with a DOUBLE that may be no FLOAT."""
    try:
        (nearest,) = struct.unpack("<f", struct.pack("<f", number))
    except OverflowError:
        return _predicate(kind, term, literals.DoubleLiteral(number))
    if nearest == number:
        return _predicate(kind, term, literals.DoubleLiteral(number))
    if kind is ex.EqualTo:
        return ex.AlwaysFalse()
    if kind is ex.NotEqualTo:
        return _predicate(ex.NotNull, term)
    is_less = kind in (ex.LessThan, ex.LessThanOrEqual)
    if is_less:
        kind = ex.LessThanOrEqual if nearest < number else ex.LessThan
    else:
        kind = ex.GreaterThan if nearest < number else ex.GreaterThanOrEqual
    return _predicate(kind, term, literals.DoubleLiteral(nearest))


def _decimal(number: Fraction) -> literals.Literal[Any]:
    """Return a number whose denominator is a power of two, exactly."""
    with localcontext() as context:
        context.prec = 2000
        return literals.DecimalLiteral(Decimal(number.numerator) / number.denominator)


class _Parser:
    """Reads one filter, by recursive descent: a method for each rule of the grammar."""

    def __init__(self, text: str, option: str, own_name: Callable[[str], str]) -> None:
        self._text = text
        self._option = option
        self._own_name = own_name
        self._depth = 0
        self._next = 0
        self._tokens: list[_Token] = []
        at = 0
        while at < len(text):
            found = _TOKENS.match(text, at)
            if found is None:
                self._fail(at, f"filters do not know this, {_WHERE}")
            if found.lastgroup != "blank":
                self._tokens.append(_Token(str(found.lastgroup), found[0], at))
            at = found.end()
        self._tokens.append(_Token("end", "", len(text)))

    def parse(self) -> ex.BooleanExpression:
        parsed = self._either()
        if self._token.kind != "end":
            self._fail(self._token.at, f"expected AND or OR, or {_WHERE}")
        return parsed

    def _fail(self, at: int, advice: str) -> NoReturn:
        where = f"from {self._text[at : at + 40]!r} on" if self._text[at:].strip() else "at its end"
        raise ValueError(
            f"the option {self._option!r} cannot be read {where} (character {at + 1}): {advice}"
        )

    @property
    def _token(self) -> _Token:
        return self._tokens[self._next]

    def _take(self) -> _Token:
        token = self._token
        self._next += token.kind != "end"
        return token

    def _accept(self, *words: str) -> bool:
        """Take the next tokens if they are these words."""
        tokens = self._tokens[self._next : self._next + len(words)]
        if [token.word for token in tokens] != list(words):
            return False
        self._next += len(words)
        return True

    def _expect(self, word: str) -> None:
        if not self._accept(word):
            self._fail(self._token.at, f"expected {word}")

    def _joined(
        self, word: str, part: Callable[[], ex.BooleanExpression], joining: Any
    ) -> ex.BooleanExpression:
        parts = [part()]
        while self._accept(word):
            parts.append(part())
        joined: ex.BooleanExpression = joining(*parts) if len(parts) > 1 else parts[0]
        return joined

    def _either(self) -> ex.BooleanExpression:
        return self._joined("OR", self._both, ex.Or)

    def _both(self) -> ex.BooleanExpression:
        return self._joined("AND", self._negated, ex.And)

    def _negated(self) -> ex.BooleanExpression:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            self._fail(self._token.at, f"there are more than {_MAX_DEPTH} levels of parentheses")
        try:
            if self._accept("NOT") or self._accept("!"):
                return ex.Not(self._negated())
            if self._accept("("):
                inner = self._either()
                self._expect(")")
                return inner
            return self._predicate()
        finally:
            self._depth -= 1

    def _predicate(self) -> ex.BooleanExpression:
        begin = self._token.at
        if self._is_column():
            return self._of_column(self._column())
        value = self._value()
        sign = self._token.word
        if sign in _COMPARISONS:
            self._take()
            column = self._column()
            predicate: ex.BooleanExpression = _COMPARISONS[_EXCHANGED.get(sign, sign)](
                column, value
            )
            return predicate
        if isinstance(value, literals.BooleanLiteral):
            return ex.AlwaysTrue() if value.value else ex.AlwaysFalse()
        self._fail(begin, "expected a column and a comparison")

    def _of_column(self, column: ex.Reference) -> ex.BooleanExpression:
        sign = self._token.word
        if sign in _COMPARISONS:
            self._take()
            return _predicate(_COMPARISONS[sign], column, self._value())
        if self._accept("<=>"):
            if self._accept("NULL"):
                return _predicate(ex.IsNull, column)
            # With NOT before it, this is true for null, as in SQL.
            return ex.And(
                _predicate(ex.EqualTo, column, self._value()), _predicate(ex.NotNull, column)
            )
        if self._accept("IS"):
            is_not = self._accept("NOT")
            if self._accept("NULL"):
                return _predicate(ex.NotNull, column) if is_not else _predicate(ex.IsNull, column)
            if self._accept("NAN"):
                return _predicate(ex.NotNaN, column) if is_not else _predicate(ex.IsNaN, column)
            self._fail(self._token.at, "expected NULL or NAN")
        is_not = self._accept("NOT")
        found = self._range_or_set(column)
        if found is not None:
            return ~found if is_not else found
        if is_not:
            self._fail(self._token.at, "expected IN, BETWEEN or LIKE")
        if self._token.kind != "end" and self._token.word not in ("AND", "OR", ")"):
            self._fail(self._token.at, f"expected a comparison with a literal, or {_WHERE}")
        return _predicate(ex.EqualTo, column, literals.BooleanLiteral(True))

    def _range_or_set(self, column: ex.Reference) -> ex.BooleanExpression | None:
        if self._accept("IN"):
            self._expect("(")
            values = [self._value()]
            while self._accept(","):
                values.append(self._value())
            self._expect(")")
            return _predicate(ex.In, column, values)
        if self._accept("BETWEEN"):
            low = self._value()
            self._expect("AND")
            high = self._value()
            return ex.And(
                _predicate(ex.GreaterThanOrEqual, column, low),
                _predicate(ex.LessThanOrEqual, column, high),
            )
        if self._accept("LIKE"):
            return self._like(column)
        return None

    def _like(self, column: ex.Reference) -> ex.BooleanExpression:
        token = self._take()
        if token.kind not in ("single", "double"):
            self._fail(token.at, "expected a pattern in quotes")
        parts = re.findall(r"\\.|.", _unquoted(token.text), re.DOTALL)
        is_prefix = False
        while parts and parts[-1] == "%":
            is_prefix = bool(parts.pop())
        if "%" in parts or "_" in parts:
            self._fail(
                token.at,
                rf"a pattern has % only at its end, and no _ (write \_ for itself); {_WHERE}",
            )
        prefix = "".join(part[-1] for part in parts)
        if not is_prefix:
            return _predicate(ex.EqualTo, column, literals.StringLiteral(prefix))
        return _predicate(ex.StartsWith, column, literals.StringLiteral(prefix))

    def _is_column(self) -> bool:
        token, after = self._token, self._tokens[self._next + 1 :][:1]
        if token.kind in ("backticks", "double"):
            return True
        if token.kind != "name" or token.word in _RESERVED:
            return False
        begins_literal = token.word in _TYPED and after[0].kind in ("single", "double")
        return not begins_literal

    def _column(self) -> ex.Reference:
        names = []
        while True:
            token = self._token
            if not self._is_column():
                self._fail(token.at, "expected a column")
            self._take()
            if token.kind == "backticks":
                names.append(token.text[1:-1].replace("``", "`"))
            else:
                names.append(token.text if token.kind == "name" else _unquoted(token.text))
            if self._token.word == "(":
                self._fail(token.at, f"filters know no functions, {_WHERE}")
            if not self._accept("."):
                return ex.Reference(self._own_name(".".join(names)))

    def _value(self) -> literals.Literal[Any]:
        token = self._take()
        if token.kind in ("single", "double"):
            return literals.StringLiteral(_unquoted(token.text))
        if token.word in ("TRUE", "FALSE"):
            return literals.BooleanLiteral(token.word == "TRUE")
        if token.word in _TYPED and self._token.kind in ("single", "double"):
            return self._typed(token)
        if token.word in ("+", "-") and self._token.kind == "number":
            return _number(("-" if token.word == "-" else "") + self._take().text)
        if token.kind == "number":
            return _number(token.text)
        if token.word == "NULL":
            self._fail(token.at, "nothing equals NULL: write IS NULL or IS NOT NULL")
        self._fail(token.at, f"expected a literal, or {_WHERE}")

    def _typed(self, kind: _Token) -> literals.Literal[Any]:
        token = self._take()
        text = _unquoted(token.text).strip()
        try:
            if kind.word == "X":
                return literals.BinaryLiteral(bytes.fromhex(text))
            if kind.word == "DATE":
                return _TimeText(date.fromisoformat(text).isoformat())
            return _TimeText(datetime.fromisoformat(re.sub("[zZ]$", "+00:00", text)).isoformat())
        except ValueError:
            self._fail(token.at, f"this is no {kind.word}: write one such as {_TYPED[kind.word]}")


def _predicate(kind: Any, *arguments: Any) -> ex.BooleanExpression:
    # The declared types of the classes only allow named arguments.
    predicate: ex.BooleanExpression = kind(*arguments)
    return predicate


def _number(text: str) -> literals.Literal[Any]:
    digits = text.upper().removesuffix("BD")
    if digits == text.upper():
        digits = digits.rstrip("LSYDF")
        if text.upper().endswith("F"):
            return literals.DoubleLiteral(float(pa.scalar(float(digits), pa.float32()).as_py()))
        if "E" in digits or text.upper().endswith("D"):
            return literals.DoubleLiteral(float(digits))
    number = Decimal(digits)
    if "." in digits or not -(1 << 63) <= number < 1 << 63:
        return literals.DecimalLiteral(number)
    return literals.LongLiteral(int(number))


def _unquoted(text: str) -> str:
    r"""Return the text in quotes, with Spark's escapes. \% and \_ stay, for LIKE."""
    quote = text[0]

    def meant(found: re.Match[str]) -> str:
        escaped = found[0][1]
        if escaped in "%_":
            return found[0]
        return _ESCAPES.get(escaped, escaped)

    return re.sub(rf"\\.|{quote}{quote}", meant, text[1:-1], flags=re.DOTALL)

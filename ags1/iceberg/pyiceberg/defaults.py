"""Default values of columns.

PyIceberg stores some values as other ones, without an error. As in Java, a value that the column's
type cannot hold is refused here.
"""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

from pyiceberg.expressions.literals import AboveMax, BelowMin, TimestampLiteral, literal
from pyiceberg.schema import Schema, index_by_id
from pyiceberg.table.update.schema import UpdateSchema
from pyiceberg.types import (
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimeType,
)

from ..spec.column_types import UNITS_A_DAY

_DAY = UNITS_A_DAY[TimestampType]


class ExactUpdateSchema(UpdateSchema):
    """PyIceberg's builder of schemas. Raises ValueError for a default that would become another
    value."""

    def add_column(
        self,
        path: str | tuple[str, ...],
        field_type: IcebergType,
        doc: str | None = None,
        required: bool = False,
        default_value: Any = None,
    ) -> UpdateSchema:
        _check_default(_dotted(path), field_type, default_value)
        return super().add_column(path, field_type, doc, required, default_value)

    def set_default_value(self, path: str | tuple[str, ...], default_value: Any) -> UpdateSchema:
        name = _dotted(path)
        field = self._schema.find_field(name, self._case_sensitive)
        _check_default(name, field.field_type, default_value)
        return super().set_default_value(path, default_value)


def check_defaults(schema: Schema) -> None:
    """Raise ValueError if a field has a default that its type cannot hold."""
    for field_id, field in index_by_id(schema).items():
        for default in (field.initial_default, field.write_default):
            _check_default(str(schema.find_column_name(field_id)), field.field_type, default)


def _dotted(path: str | tuple[str, ...]) -> str:
    return path if isinstance(path, str) else ".".join(path)


def _check_default(name: str, kind: IcebergType, value: Any) -> None:
    if value is None or not kind.is_primitive:
        return
    given: Any = None
    converted: Any = None
    try:
        given = literal(value)
        converted = given.to(kind)
    except OverflowError:
        pass
    except (TypeError, ValueError):
        return  # PyIceberg refuses it
    is_beyond = converted is None or isinstance(converted, AboveMax | BelowMin)
    if is_beyond or not _is_same(given, kind, converted.value):
        raise ValueError(
            f"Invalid default value: column {name!r} of type {kind} cannot hold {value!r}"
        )


def _is_same(given: Any, kind: IcebergType, value: Any) -> bool:
    """Return whether a type has a value, which is ``given`` converted to it."""
    if isinstance(kind, FloatType | DoubleType):
        return math.isfinite(value)
    if isinstance(kind, IntegerType | LongType | DecimalType):
        digits = kind.precision - kind.scale if isinstance(kind, DecimalType) else 19
        return bool(value == Decimal(given.value)) and abs(int(value)) < 10**digits
    if isinstance(kind, StringType):
        return not any("\ud800" <= letter <= "\udfff" for letter in value)
    if isinstance(kind, DateType):
        # A date drops the time of day, so only midnight keeps its value.
        return not isinstance(given, TimestampLiteral) or not given.value % _DAY
    if isinstance(kind, TimeType):
        return value in range(_DAY)
    return type(kind) not in UNITS_A_DAY or value in range(-(2**63), 2**63)

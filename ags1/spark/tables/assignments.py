"""Assigned values in the types of a table's columns, as Spark's UPDATE and MERGE store them.

The rules are those of ``spark.sql.storeAssignmentPolicy=ANSI``, Spark's default, whatever the
session sets: a number is stored as any number, dates and timestamps as each other, every atomic
value as text, and structs by the names of their fields. Other types are refused when the command is
analyzed. A value that is too large fails the job. Knows nothing of tables and clauses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql.types import (
    ArrayType,
    AtomicType,
    DataType,
    DateType,
    MapType,
    NullType,
    NumericType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

_DATES = (DateType, TimestampType, TimestampNTZType)
_CONDITION = "INCOMPATIBLE_DATA_FOR_TABLE"


def as_assigned(frame: Any, columns: Mapping[str, StructField], table: tuple[str, ...]) -> Any:
    """Return ``frame`` with its columns that ``columns`` names in the types of those of the table
    that they are for. Raises AnalysisException with Spark's condition and words."""
    present = frame.schema
    given = [field for field in present if field.name in columns]
    if all(_text(field.dataType) == _text(columns[field.name].dataType) for field in given):
        return frame
    is_sensitive = frame.sparkSession.conf.get("spark.sql.caseSensitive") == "true"
    assignment = _Assignment(table, is_sensitive=is_sensitive)
    for field in given:
        assignment.check(field.dataType, columns[field.name].dataType, [columns[field.name].name])
    types = {name: column.dataType for name, column in columns.items()}
    fields = [StructField(f.name, types.get(f.name, f.dataType)) for f in present]
    # Its casts follow the rules for ANSI also if the session's other casts do not. Whether nulls
    # are allowed is checked when rows are written.
    return frame.to(StructType(fields).toNullable())


class _Assignment:
    """Checks one assignment to a column of ``table``."""

    def __init__(self, table: tuple[str, ...], *, is_sensitive: bool) -> None:
        self._table = table
        self._is_sensitive = is_sensitive

    def check(self, kind: DataType, wanted: DataType, path: list[str]) -> None:
        """Raise AnalysisException if a value of type ``kind`` cannot be stored as ``wanted``."""
        if isinstance(kind, StructType) and isinstance(wanted, StructType):
            self._check_fields(kind, wanted, path)
        elif isinstance(kind, ArrayType) and isinstance(wanted, ArrayType):
            self.check(kind.elementType, wanted.elementType, [*path, "element"])
        elif isinstance(kind, MapType) and isinstance(wanted, MapType):
            self.check(kind.keyType, wanted.keyType, [*path, "key"])
            self.check(kind.valueType, wanted.valueType, [*path, "value"])
        elif not _is_storable(kind, wanted):
            types = {"srcType": _in_sql(kind), "targetType": _in_sql(wanted)}
            said = f"Cannot safely cast {_quoted(path)} {types['srcType']} to {types['targetType']}"
            raise self._refused("CANNOT_SAFELY_CAST", said, path, types)

    def _check_fields(self, kind: StructType, wanted: StructType, path: list[str]) -> None:
        given = {self._folded(field.name): field.dataType for field in kind}
        for field in wanted:
            inner = [*path, field.name]
            found = given.pop(self._folded(field.name), None)
            if found is None:
                said = f"Cannot find data for the output column {_quoted(inner)}"
                raise self._refused("CANNOT_FIND_DATA", said, inner, {})
            self.check(found, field.dataType, inner)
        extra = [field.name for field in kind if self._folded(field.name) in given]
        if extra:
            names = ", ".join(_quoted([name]) for name in extra)
            said = f"Cannot write extra fields {names} to the struct {_quoted(path)}"
            raise self._refused("EXTRA_STRUCT_FIELDS", said, path, {"extraFields": names})

    def _folded(self, name: str) -> str:
        return name if self._is_sensitive else name.lower()

    def _refused(
        self, kind: str, said: str, path: list[str], more: Mapping[str, str]
    ) -> AnalysisException:
        table, condition = _quoted(self._table), f"{_CONDITION}.{kind}"
        return AnalysisException(
            f"Cannot write incompatible data for the table {table}: {said}. SQLSTATE: KD000",
            errorClass=condition,
            messageParameters={"tableName": table, "colName": _quoted(path), **more},
        )


def _is_storable(kind: DataType, wanted: DataType) -> bool:
    if isinstance(kind, NullType) or kind == wanted:
        return True
    if isinstance(wanted, StringType):
        return isinstance(kind, AtomicType)
    return any(
        isinstance(kind, all_) and isinstance(wanted, all_) for all_ in (NumericType, _DATES)
    )


def _in_sql(kind: DataType) -> str:
    return f'"{_text(kind).upper()}"'


def _text(kind: DataType) -> str:
    """Return the text of a type, which does not say where nulls are allowed."""
    return str(kind.simpleString())


def _quoted(path: list[str] | tuple[str, ...]) -> str:
    return ".".join(f"`{name.replace('`', '``')}`" for name in path)

"""Reads CSV and JSON lines, in the form that ``rows`` prints, as Arrow data of a table's types.

JSON has types: a number is not accepted as text, and 1.5 is not accepted as an integer. If a row
lacks a column, the value is null. Messages never quote values.

Arrow's own reader of JSON is not used: it drops the offset of a time for a column that has none,
and it reads no times of day, dates, maps, UUIDs, binary in base64 or NaN. ``pa.array`` cuts 1.5 to
an integer and ignores keys that are no fields. So values are checked here and then handed to Arrow.
"""

from __future__ import annotations

import base64
import datetime
import decimal
import functools
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from ... import strict_json

if TYPE_CHECKING:
    from pyiceberg.schema import Schema

# A line's number, and the object on the line.
Row: TypeAlias = "tuple[int, dict[str, Any]]"

_BATCH_ROWS = 16384
_BATCH_SIZE = 8 << 20


class TextColumns:
    """The columns of a table, for text. Without a schema, CSV's types are guessed by Arrow."""

    def __init__(self, table_schema: Schema | None) -> None:
        self._types: dict[str, pa.DataType] = {}
        self._defaults: set[str] = set()
        if table_schema is not None:
            from pyiceberg.io.pyarrow import schema_to_pyarrow

            from ...iceberg.spec.column_types import as_stored, readable

            # Columns of other types are refused later, by the table.
            stored = as_stored(readable(table_schema))
            arrow = schema_to_pyarrow(stored, include_field_ids=False)
            self._types = {field.name: field.type for field in arrow}
            self._defaults = {f.name for f in table_schema.fields if f.write_default is not None}
        # Columns of types that Arrow's CSV reader does not know are read as text first.
        self._in_text = {name: kind for name, kind in self._types.items() if _is_text_in_csv(kind)}

    @property
    def csv_types(self) -> Mapping[str, pa.DataType]:
        """The types as which Arrow reads the columns of CSV."""
        return self._types | dict.fromkeys(self._in_text, pa.string())

    def schema_of_csv(self, read: pa.Schema) -> pa.Schema:
        """Return the schema of a CSV file's batches; ``read`` is what Arrow reads."""
        return pa.schema([(f.name, self._in_text.get(f.name, f.type)) for f in read])

    def of_csv(self, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        """Return a batch that Arrow has read as one of ``schema``. Raises ValueError."""
        columns = []
        for field, column in zip(schema, batch.columns, strict=True):
            if field.name in self._in_text:
                texts = column.to_pylist()
                if pa.types.is_nested(field.type):
                    texts = [None if text is None else _parsed(text) for text in texts]
                column = _array(texts, field.type, field.name)
            columns.append(column)
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def json_rows(self, lines: Iterable[tuple[int, bytes]]) -> Iterator[list[Row]]:
        """Yield the objects of JSON lines, some at a time. Raises ValueError."""
        rows: list[Row] = []
        size = 0
        for number, line in lines:
            if not line.strip():
                continue
            try:
                row = _parsed(line)
            except ValueError as error:
                raise ValueError(f"line {number}: {error}") from None
            if not isinstance(row, dict):
                raise ValueError(f"line {number}: it is not a JSON object")
            rows.append((number, row))
            size += len(line)
            if len(rows) == _BATCH_ROWS or size >= _BATCH_SIZE:
                yield rows
                rows, size = [], 0
        if rows:
            yield rows

    def schema_of_json(self, first: list[Row]) -> pa.Schema:
        """Return the schema of a JSON file's batches, of which ``first`` is the first one: the
        table's columns, but for those with a default that no row there has."""
        present = {name for _, row in first for name in row}
        names = [name for name in self._types if name in present or name not in self._defaults]
        return pa.schema([(name, self._types[name]) for name in names])

    def of_json(self, rows: list[Row], schema: pa.Schema) -> pa.RecordBatch:
        """Return rows as a batch of ``schema``. Raises ValueError, with the line's number."""
        try:
            return _batch([row for _, row in rows], schema)
        except ValueError as error:
            failure = error
        for number, row in rows:
            try:
                _batch([row], schema)
            except ValueError as error:
                raise ValueError(f"line {number}: {error}") from None
        raise failure


def _batch(rows: list[dict[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    columns = [_array([row.get(f.name) for row in rows], f.type, f.name) for f in schema]
    known = set(schema.names)
    for row in rows:
        if not known.issuperset(row):
            unknown = next(name for name in row if name not in known)
            raise ValueError(f"the table has no column {unknown!r}, or the rows before had none")
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _is_text_in_csv(kind: pa.DataType) -> bool:
    return bool(pa.types.is_nested(kind) or _is_extension(kind) or _is_binary(kind))


def _is_binary(kind: pa.DataType) -> bool:
    types = pa.types
    kinds = (types.is_binary, types.is_large_binary, types.is_fixed_size_binary)
    return any(is_kind(kind) for is_kind in kinds)


def _parsed(text: str | bytes) -> Any:
    try:
        # Of a decimal, no digit is lost.
        return strict_json.parse(text, parse_float=decimal.Decimal)
    except ValueError as error:
        raise ValueError(f"it {error}") from None


def _array(values: list[Any], kind: pa.DataType, path: str) -> pa.Array:
    """Return values from JSON as Arrow's. Raises ValueError."""
    if pa.types.is_struct(kind):
        return _structs(values, kind, path)
    if pa.types.is_map(kind):
        return _maps(values, kind, path)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        _check(values, list, path, "a list")
        offsets, parts = _flat(values)
        children = _array(parts, kind.value_type, path)
        make = pa.LargeListArray if pa.types.is_large_list(kind) else pa.ListArray
        index = pa.int64() if pa.types.is_large_list(kind) else pa.int32()
        return make.from_arrays(pa.array(offsets, index), children, type=kind)
    try:
        if pa.types.is_temporal(kind) and not pa.types.is_time(kind):
            return pa.array(values, pa.string()).cast(kind)
        for is_kind, converted in _CONVERTED:
            if is_kind(kind):
                values = [None if value is None else converted(value) for value in values]
        # Arrow refuses what is no text, truth value and so on.
        return pa.array(values, kind)
    except (ValueError, TypeError, OverflowError, AttributeError, pa.ArrowException):
        pass
    raise ValueError(f"column {path!r}: a value is not of its type, {kind}")


def _structs(values: list[Any], kind: pa.StructType, path: str) -> pa.Array:
    _check(values, dict, path, "an object")
    names = {field.name for field in kind}
    for value in values:
        if value is not None and not names.issuperset(value):
            raise ValueError(f"column {path!r}: an object has a key that is not a field")
    columns = []
    for field in kind:
        parts = [None if value is None else value.get(field.name) for value in values]
        columns.append(_array(parts, field.type, f"{path}.{field.name}"))
    mask = pa.array([value is None for value in values], pa.bool_())
    return pa.StructArray.from_arrays(columns, fields=list(kind), mask=mask)


def _maps(values: list[Any], kind: pa.MapType, path: str) -> pa.Array:
    pairs = [list(map(list, v.items())) if isinstance(v, dict) else v for v in values]
    _check(pairs, list, path, "a list of pairs")
    offsets, parts = _flat(pairs)
    if any(not isinstance(pair, list) or len(pair) != 2 for pair in parts):
        raise ValueError(f"column {path!r}: a list of pairs is needed")
    keys = _array([key for key, _ in parts], kind.key_type, path)
    if keys.null_count:
        raise ValueError(f"column {path!r}: a key is null")
    items = _array([item for _, item in parts], kind.item_type, path)
    return pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), keys, items, type=kind)


def _check(values: list[Any], kind: type, path: str, name: str) -> None:
    if any(value is not None and not isinstance(value, kind) for value in values):
        raise ValueError(f"column {path!r}: {name} is needed")


def _flat(values: list[Any]) -> tuple[list[int | None], list[Any]]:
    """Return Arrow's offsets, in which null marks a list that is null, and all elements."""
    offsets: list[int | None] = []
    parts: list[Any] = []
    for value in values:
        offsets.append(None if value is None else len(parts))
        parts += value or ()
    return [*offsets, len(parts)], parts


def _time(value: Any) -> datetime.time:
    time = datetime.time.fromisoformat(value)
    if time.tzinfo is not None:
        raise ValueError
    return time


def _integer(value: Any) -> int:
    if type(value) is not int:  # Arrow would cut a decimal
        raise TypeError
    return value


def _float(value: Any) -> float:
    if type(value) not in (int, float, decimal.Decimal) and value not in ("nan", "inf", "-inf"):
        raise TypeError
    return float(value)


def _decimal(value: Any) -> Any:
    return decimal.Decimal(value) if type(value) is str else value


def _is_extension(kind: pa.DataType) -> bool:
    return isinstance(kind, pa.BaseExtensionType)


# Values of JSON in the form that Arrow takes for these types.
_CONVERTED: tuple[tuple[Callable[[pa.DataType], bool], Callable[[Any], Any]], ...] = (
    (pa.types.is_integer, _integer),
    (pa.types.is_floating, _float),
    (pa.types.is_decimal, _decimal),
    (pa.types.is_time, _time),
    (_is_binary, functools.partial(base64.b64decode, validate=True)),
    (_is_extension, lambda text: uuid.UUID(text).bytes),
)

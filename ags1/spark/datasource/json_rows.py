"""JSON lines inside encrypted files, as Spark's own source ``json`` writes and reads them.

Bytes are base64, NaN and the infinities are text, decimals are numbers, a map is an object, and
what is null is left out of objects. One thing differs: Spark cuts times to milliseconds, and here
they keep their microseconds. Knows nothing of keys and of Spark.
"""

from __future__ import annotations

import base64
import datetime
import decimal
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.json as pa_json

from ...errors import FormatError
from .encrypted_files import OpenPart
from .lines import CHUNK_SIZE, SAMPLE_SIZE, whole_lines

# The texts by which Spark reads numbers that JSON does not have.
_NOT_FINITE = {
    "NaN": math.nan,
    **dict.fromkeys(("Infinity", "+Infinity", "INF", "+INF"), math.inf),
    **dict.fromkeys(("-Infinity", "-INF"), -math.inf),
}
_NUMBERS = (int, float, decimal.Decimal)
_INTERVAL = re.compile(r"INTERVAL '(-?)(\d+) (\d+):(\d+):(\d+)(?:\.(\d{1,6}))?' DAY TO SECOND")
_quoted = json.JSONEncoder(ensure_ascii=False).encode


def check_columns(schema: pa.Schema) -> None:
    """Raise ValueError for a map whose keys are no text: Spark cannot read such a map either."""
    for field in schema:
        _check(field.type, field.name)


def _check(kind: pa.DataType, name: str) -> None:
    if pa.types.is_map(kind) and not pa.types.is_string(kind.key_type):
        raise ValueError(f"JSON cannot hold the map {name!r}: cast its keys to string")
    for index in range(kind.num_fields):
        _check(kind.field(index).type, name)


def json_lines(batch: pa.RecordBatch) -> bytes:
    """Return the rows of a batch, an object to a line."""
    write = _writer(pa.struct(list(batch.schema)))
    return "".join([f"{write(row)}\n" for row in batch.to_pylist()]).encode()


def _writer(kind: pa.DataType) -> Callable[[Any], str]:
    """Return what makes JSON of a value of a type that is not null."""
    if pa.types.is_struct(kind):
        fields = [(f.name, f"{_quoted(f.name)}:", _writer(f.type)) for f in kind]
        return lambda row: _joined(
            "{}", (label + write(row[n]) for n, label, write in fields if row[n] is not None)
        )
    if pa.types.is_map(kind):
        item = _or_null(kind.item_type)
        return lambda pairs: _joined("{}", (f"{_quoted(k)}:{item(value)}" for k, value in pairs))
    if pa.types.is_list(kind):
        item = _or_null(kind.value_type)
        return lambda values: _joined("[]", map(item, values))
    if pa.types.is_binary(kind):
        return lambda value: f'"{base64.b64encode(value).decode()}"'
    if pa.types.is_floating(kind):
        return _single if pa.types.is_float32(kind) else _double
    if pa.types.is_timestamp(kind):
        return _time
    if pa.types.is_date(kind):
        return lambda value: f'"{value.isoformat()}"'
    if pa.types.is_duration(kind):
        return _interval
    return str if pa.types.is_decimal(kind) else _quoted


def _or_null(kind: pa.DataType) -> Callable[[Any], str]:
    write = _writer(kind)
    return lambda value: "null" if value is None else write(value)


def _joined(brackets: str, texts: Iterable[str]) -> str:
    return f"{brackets[0]}{','.join(texts)}{brackets[1]}"


def _double(value: float) -> str:
    if math.isfinite(value):
        return repr(value)
    return '"NaN"' if math.isnan(value) else '"Infinity"' if value > 0 else '"-Infinity"'


def _single(value: float) -> str:
    # The shortest text that is read as the same number of 32 bits.
    return _double(float(str(np.float32(value))))


def _time(value: datetime.datetime) -> str:
    unit = "microseconds" if value.microsecond % 1000 else "milliseconds"
    return f'"{value.isoformat(timespec=unit).replace("+00:00", "Z")}"'


def _interval(value: datetime.timedelta) -> str:
    sign = "-" if value < datetime.timedelta(0) else ""
    value = abs(value)
    minutes, seconds = divmod(value.seconds, 60)
    hours, minutes = divmod(minutes, 60)
    fraction = f".{value.microseconds:06}".rstrip("0") if value.microseconds else ""
    at = f"{value.days} {hours:02}:{minutes:02}:{seconds:02}{fraction}"
    return f"\"INTERVAL '{sign}{at}' DAY TO SECOND\""


class Json:
    """JSON, an object to a line. The columns are those in the first MiBs of the first file, in the
    order of their names, as with Spark's reader."""

    def columns(self, whole: OpenPart) -> pa.Schema:
        sample = next(whole_lines(whole.reader, 0, whole.end, SAMPLE_SIZE), b"")
        if not sample.strip():
            return pa.schema([])
        try:
            found = _parsed(sample, None).schema
        except pa.ArrowInvalid:
            found = _inferred(_documents(sample, float))
        return pa.schema(_by_name(found))

    def read(self, part: OpenPart, wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
        # Arrow's reader is the faster one.
        by_python = any(_is_told_by_text(field.type) for field in wanted)
        for data in whole_lines(part.reader, part.begin, part.end, CHUNK_SIZE):
            if data.strip():
                try:
                    table = _converted(data, wanted) if by_python else _parsed(data, wanted)
                except pa.ArrowInvalid:
                    table = _converted(data, wanted)
                yield from table.to_batches()


def _parsed(data: bytes, wanted: pa.Schema | None) -> pa.Table:
    read = pa_json.ReadOptions(use_threads=False, block_size=len(data) + 1)
    parse = pa_json.ParseOptions(explicit_schema=wanted, unexpected_field_behavior="ignore")
    return pa_json.read_json(pa.BufferReader(data), read, parse if wanted is not None else None)


def _is_told_by_text(kind: pa.DataType) -> bool:
    """Whether Arrow's reader never reads a type as Spark writes it."""
    types = pa.types
    if (
        types.is_map(kind)
        or types.is_binary(kind)
        or types.is_date(kind)
        or types.is_duration(kind)
    ):
        return True
    return any(_is_told_by_text(kind.field(index).type) for index in range(kind.num_fields))


def _documents(data: bytes, number: Callable[[str], Any]) -> list[dict[str, Any]]:
    """Return the objects of lines, with ``number`` of what has a fraction or an exponent. Raises
    FormatError."""
    try:
        lines = (line for line in data.splitlines() if line.strip())
        return [_of(dict, json.loads(line, parse_float=number)) for line in lines]
    except (ValueError, TypeError, RecursionError) as error:
        raise _unreadable(error) from None


def _inferred(values: list[Any]) -> pa.DataType:
    """Return the type of values. Scalars of several types are text, as with Spark."""
    values = [value for value in values if value is not None]
    if values and all(isinstance(value, dict) for value in values):
        names = {name for value in values for name in value}
        return pa.struct([(n, _inferred([value.get(n) for value in values])) for n in names])
    if values and all(isinstance(value, list) for value in values):
        return pa.list_(_inferred([item for value in values for item in value]))
    try:
        return pa.array(values).type
    except (pa.ArrowException, OverflowError):
        return pa.string()


def _converted(data: bytes, wanted: pa.Schema) -> pa.Table:
    """As ``_parsed``, for all types. Raises FormatError."""
    whole = pa.struct(list(wanted))
    documents = _documents(data, decimal.Decimal)
    try:
        return pa.Table.from_pylist([_value(document, whole) for document in documents], wanted)
    except (ValueError, TypeError, LookupError, ArithmeticError, pa.ArrowException) as error:
        raise _unreadable(error) from None


def _value(value: Any, kind: pa.DataType) -> Any:
    """Return what ``_writer`` has made JSON of. Raises ValueError, TypeError, LookupError,
    ArithmeticError."""
    if value is None:
        return None
    types = pa.types
    if types.is_struct(kind):
        fields = _of(dict, value)
        return {f.name: _value(fields.get(f.name), f.type) for f in kind}
    if types.is_map(kind):
        return [(key, _value(item, kind.item_type)) for key, item in _of(dict, value).items()]
    if types.is_list(kind):
        return [_value(item, kind.value_type) for item in _of(list, value)]
    if types.is_string(kind):
        if isinstance(value, (str, decimal.Decimal)):
            return str(value)
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=float)
    if types.is_boolean(kind):
        return _of(bool, value)
    if types.is_integer(kind):
        return _of(int, value)
    if types.is_floating(kind):
        return _NOT_FINITE[value] if isinstance(value, str) else float(_of(_NUMBERS, value))
    if types.is_decimal(kind):
        places = decimal.Decimal(1).scaleb(-kind.scale)
        exact = decimal.Context(prec=76, rounding=decimal.ROUND_HALF_UP)
        return decimal.Decimal(_of((*_NUMBERS, str), value)).quantize(places, context=exact)
    text = _of(str, value)
    if types.is_binary(kind):
        return base64.b64decode(text, validate=True)
    if types.is_timestamp(kind):
        return datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))
    if types.is_date(kind):
        return datetime.date.fromisoformat(text)
    if types.is_duration(kind):
        return _timedelta(text)
    raise TypeError(kind)


def _timedelta(text: str) -> datetime.timedelta:
    match = _INTERVAL.fullmatch(text)
    if match is None:
        raise ValueError(text)
    sign, *whole, fraction = match.groups(default="")
    days, hours, minutes, seconds = map(int, whole)
    micros = int(fraction.ljust(6, "0"))
    value = datetime.timedelta(days, seconds, micros, minutes=minutes, hours=hours)
    return -value if sign else value


def _of(kind: type | tuple[type, ...], value: Any) -> Any:
    """Return the value if it is of that type. Raises TypeError."""
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise TypeError(kind)
    return value


def _unreadable(error: Exception) -> FormatError:
    # The message may quote a row, and rows may be secret.
    return FormatError(f"the JSON inside cannot be read as these columns ({type(error).__name__})")


def _by_name(fields: Iterable[pa.Field]) -> list[tuple[str, pa.DataType]]:
    return [(f.name, _json_type(f.type)) for f in sorted(fields, key=lambda f: f.name)]


def _json_type(kind: pa.DataType) -> pa.DataType:
    """Return an inferred type, with strings where Spark has them."""
    if pa.types.is_struct(kind):
        return pa.struct(_by_name(kind))
    if pa.types.is_list(kind):
        return pa.list_(_json_type(kind.value_type))
    told = (pa.types.is_timestamp, pa.types.is_null, pa.types.is_time)
    return pa.string() if any(is_told(kind) for is_told in told) else kind

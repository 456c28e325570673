"""A table's metadata as Java prints it: the order of the fields, the text of numbers and strings.

The Hive catalog has a hash of the metadata as Java prints it. A table with another hash is refused.
So writers print in this form, and readers print the metadata again to compare the hash. The
functions take parsed JSON. It may be malformed: unexpected parts stay as they are. Follows Java's
``TableMetadataParser``, the parsers that it calls, and Jackson.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import itertools
import json
import math
import operator
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pydantic_core

# Orders the fields of a value. The second argument: whether fields unknown to Java are removed.
_Order = Callable[[Any, bool], Any]


class _Form:
    """The fields of a JSON object in Java's order. ``inside`` orders the values of some fields.
    Java does not print the fields ``omitted_when_empty`` if they are empty or zero. What has this
    form is returned as it is."""

    def __init__(
        self, fields: str, inside: Mapping[str, _Order] | None = None, omitted_when_empty: str = ""
    ) -> None:
        self._fields = tuple(fields.split())
        self._known = frozenset(self._fields)
        self._places = {name: place for place, name in enumerate(self._fields)}
        self._inside = inside or {}
        self._omitted_when_empty = frozenset(omitted_when_empty.split())
        self._seen = functools.lru_cache(maxsize=256)(self._order_of)

    def __call__(self, value: Any, known_only: bool) -> Any:
        if not isinstance(value, dict):
            return value
        if self._is_ordered(value):
            changed = {}
            for name, form in self._inside.items():
                if name in value and (inner := form(value[name], known_only)) is not value[name]:
                    changed[name] = inner
            return {**value, **changed} if changed else value
        is_known = known_only or self._known.issuperset(value)
        unknown = {} if is_known else self._followers(value)
        ordered: dict[str, Any] = unknown.get("", {})
        for name in self._fields:
            inner = value.get(name)
            if inner is not None and (inner or name not in self._omitted_when_empty):
                order = self._inside.get(name)
                ordered[name] = inner if order is None else order(inner, known_only)
            if name in unknown:
                ordered.update(unknown[name])
        return ordered

    def _is_ordered(self, value: dict[str, Any]) -> bool:
        """Whether this level has the form already. Of many snapshots, most do."""
        is_in_order, may_be_omitted = self._seen(tuple(value))
        if not is_in_order or None in value.values():
            return False
        return all(map(value.__getitem__, may_be_omitted))

    def _order_of(self, names: tuple[str, ...]) -> tuple[bool, tuple[str, ...]]:
        places = [self._places.get(name, -1) for name in names]
        is_in_order = -1 not in places and places == sorted(places)
        return is_in_order, tuple(name for name in names if name in self._omitted_when_empty)

    def unknown(self, value: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields that are not known."""
        return {name: inner for name, inner in value.items() if name not in self._known}

    def _followers(self, value: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Return the unknown fields, by the known field that each one follows, "" for the first."""
        followers: dict[str, dict[str, Any]] = {}
        before = ""
        for name, inner in value.items():
            if name in self._known:
                before = name
            else:
                followers.setdefault(before, {})[name] = inner
        return followers


def _each(order: _Order) -> _Order:
    def ordered(values: Any, known_only: bool) -> Any:
        if not isinstance(values, list):
            return values
        made = [order(value, known_only) for value in values]
        return values if all(map(operator.is_, made, values)) else made

    return ordered


def _each_value(order: _Order) -> _Order:
    def ordered(values: Any, known_only: bool) -> Any:
        if not isinstance(values, dict):
            return values
        return {name: order(value, known_only) for name, value in values.items()}

    return ordered


_DECIMAL = re.compile(r"decimal\(\s*(\d+)\s*,\s*(\d+)\s*\)")
_FIXED = re.compile(r"fixed\[\s*(\d+)\s*\]")
# PyIceberg puts the parameters in quotes.
_GEOMETRY = re.compile(r"geometry(?:\(\s*(['\"]?)([^'\"(),]+?)\1\s*\))?")
_GEOGRAPHY = re.compile(
    r"geography(?:\(\s*(['\"]?)([^'\"(),]+?)\1\s*(?:,\s*(['\"]?)(\w+)\3\s*)?\))?"
)
_CRS, _EDGES = "OGC:CRS84", "spherical"


def _type(value: Any, known_only: bool) -> Any:
    if isinstance(value, str):
        if match := _DECIMAL.fullmatch(value):
            return f"decimal({match[1]}, {match[2]})"
        if match := _FIXED.fullmatch(value):
            return f"fixed[{match[1]}]"
        if match := _GEOMETRY.fullmatch(value):
            return f"geometry({match[2] or _CRS})"
        if match := _GEOGRAPHY.fullmatch(value):
            return f"geography({match[2] or _CRS}, {match[4] or _EDGES})"
        return value
    form = _NESTED.get(str(value.get("type"))) if isinstance(value, dict) else None
    return value if form is None else form(value, known_only)


def _column(value: Any, known_only: bool) -> Any:
    ordered = _COLUMN(value, known_only)
    if isinstance(ordered, dict) and ordered.get("type") in ("float", "double"):
        ordered = dict(ordered)
        for name in ("initial-default", "write-default"):
            default = ordered.get(name)
            if isinstance(default, int | float) and not isinstance(default, bool):
                ordered[name] = _default(default, is_single=ordered["type"] == "float")
    return ordered


def _summary(value: Any, known_only: bool) -> Any:
    if isinstance(value, dict) and "operation" in value and next(iter(value)) != "operation":
        return {"operation": value["operation"], **value}
    return value


_COLUMN = _Form("id name required type doc initial-default write-default", {"type": _type})
_NESTED = {
    "struct": _Form("type fields", {"fields": _each(_column)}),
    "list": _Form("type element-id element element-required", {"element": _type}),
    "map": _Form("type key-id key value-id value value-required", {"key": _type, "value": _type}),
}
_SCHEMA = _Form(
    "type schema-id identifier-field-ids fields",
    {"fields": _each(_column)},
    omitted_when_empty="identifier-field-ids",
)
_PARTITION_FIELD = _Form("name transform source-id field-id")
_PARTITION_FIELDS = _each(_PARTITION_FIELD)
_SORT_FIELDS = _each(_Form("transform source-id direction null-order"))
_KEY = _Form(
    "key-id encrypted-key-metadata encrypted-by-id properties", omitted_when_empty="properties"
)
_REF = _Form("snapshot-id type min-snapshots-to-keep max-snapshot-age-ms max-ref-age-ms")
_SNAPSHOT = _Form(
    "sequence-number snapshot-id parent-snapshot-id timestamp-ms summary manifest-list manifests "
    "schema-id first-row-id added-rows key-id",
    {"summary": _summary},
    omitted_when_empty="sequence-number summary",
)
_BLOB = _Form("type snapshot-id sequence-number fields properties", omitted_when_empty="properties")
_STATISTICS_FILE = _Form(
    "snapshot-id statistics-path file-size-in-bytes file-footer-size-in-bytes blob-metadata",
    {"blob-metadata": _each(_BLOB)},
)
_TABLE = _Form(
    "format-version table-uuid location last-sequence-number last-updated-ms last-column-id "
    "schema current-schema-id schemas partition-spec default-spec-id partition-specs "
    "last-partition-id default-sort-order-id sort-orders properties current-snapshot-id "
    "next-row-id encryption-keys refs snapshots statistics partition-statistics snapshot-log "
    "metadata-log",
    {
        "schema": _SCHEMA,
        "schemas": _each(_SCHEMA),
        "partition-spec": _PARTITION_FIELDS,
        "partition-specs": _each(_Form("spec-id fields", {"fields": _PARTITION_FIELDS})),
        "sort-orders": _each(_Form("order-id fields", {"fields": _SORT_FIELDS})),
        "encryption-keys": _each(_KEY),
        "refs": _each_value(_REF),
        "snapshots": _each(_SNAPSHOT),
        "statistics": _each(_STATISTICS_FILE),
        "partition-statistics": _each(_Form("snapshot-id statistics-path file-size-in-bytes")),
        "snapshot-log": _each(_Form("timestamp-ms snapshot-id")),
        "metadata-log": _each(_Form("timestamp-ms metadata-file")),
    },
    omitted_when_empty="encryption-keys",
)
# Java prints these for every table, even if they are empty.
_ALWAYS_OBJECTS = ("properties", "refs")
_ALWAYS_LISTS = tuple("snapshots statistics partition-statistics snapshot-log metadata-log".split())
# Java prints these only for tables of version 1.
_VERSION_1_ONLY = ("schema", "partition-spec")


# The lists that grow with each commit.
_GROWING = ("encryption-keys", "snapshots", "snapshot-log")


class JavaOrdered(dict[str, Any]):
    """A table's metadata in Java's order. The objects in it are never changed, so the next version
    takes from it what both have. ``printed`` is the print of some growing lists, by their names,
    without brackets."""

    def __init__(self, ordered: Mapping[str, Any]) -> None:
        super().__init__(ordered)
        self.printed: dict[str, bytes] = {}

    def __reduce__(self) -> tuple[type[JavaOrdered], tuple[dict[str, Any]]]:
        return type(self), (dict(self),)

    def shared(self, name: str, values: Sequence[Any]) -> int:
        """Return with how many of the same objects this version's list and ``values`` begin."""
        same = map(operator.is_, values, self.get(name) or ())
        return sum(itertools.takewhile(bool, same))


def in_java_order(
    metadata: Mapping[str, Any],
    *,
    known_only: bool = False,
    before: Mapping[str, Any] | None = None,
) -> JavaOrdered:
    """Return a table's metadata with its fields in Java's order, on all levels.

    Optional fields that Java does not print (those that are null, and some that are empty) are
    removed. Fields that Java always prints are added. Fields that Java does not know stay after the
    field that they follow; if ``known_only`` is true, they are removed. What ``metadata`` has from
    ``before``, an earlier version, is not ordered again if that was a result of this function.
    """
    version = metadata.get("format-version")
    is_first = isinstance(version, int) and version == 1
    complete = dict(metadata)
    for name in (*_ALWAYS_OBJECTS, *_ALWAYS_LISTS):
        if complete.get(name) is None:
            complete[name] = {} if name in _ALWAYS_OBJECTS else []
    unset = None if isinstance(version, int) and version >= 3 else -1
    if complete.get("current-snapshot-id") in (None, -1):
        # A null is removed like any other null, so it is set below.
        complete["current-snapshot-id"] = -1
    if is_first:
        complete.pop("last-sequence-number", None)
    elif known_only:
        for name in _VERSION_1_ONLY:
            complete.pop(name, None)
    same: dict[str, list[Any]] = {}
    if isinstance(before, JavaOrdered) and not known_only:
        for name in _GROWING:
            # One stays: an empty list would be removed.
            count = before.shared(name, complete.get(name) or ()) - 1
            if count > 0:
                same[name], complete[name] = before[name][:count], complete[name][count:]
    ordered = JavaOrdered(_TABLE(complete, known_only))
    for name, objects in same.items():
        ordered[name] = objects + ordered[name]
    if ordered["current-snapshot-id"] == -1:
        ordered["current-snapshot-id"] = unset
    return ordered


def schema_in_java_order(schema: Any) -> Any:
    """Return a schema's JSON with its fields in Java's order and types in Java's spelling."""
    return _SCHEMA(schema, False)


def with_unknown_fields(schema: Any, before: Any) -> Any:
    """Return a schema's JSON with the unknown fields that its columns have in ``before``. PyIceberg
    made ``schema`` from ``before`` and dropped these fields."""
    unknown = {column["id"]: _COLUMN.unknown(column) for column in fields_in(before)}
    for column in fields_in(schema):
        column.update(unknown.get(column["id"], {}))
    return {**schema, **_SCHEMA.unknown(before)}


def with_float_defaults(schema: Any, before: Any) -> Any:
    """Return a schema's JSON in which a column that was a float in ``before`` and is a double has
    defaults of the same values, as in Java: the float 0.1 is the double 0.10000000149011612."""
    floats = {column["id"]: column for column in fields_in(before) if column["type"] == "float"}
    for column in fields_in(schema):
        was = floats.get(column["id"], {}) if column["type"] == "double" else {}
        for name in ("initial-default", "write-default"):
            if was.get(name) is not None and column.get(name) == was[name]:
                column[name] = as_float(was[name])
    return schema


def as_float(value: float) -> float:
    """Return the value that a float has in place of a double."""
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


def partition_fields_like(fields: list[Any], before: list[Any]) -> list[Any]:
    """Return a partition spec's fields. Each gets the unknown fields of the field in ``before``
    that has the same id."""
    unknown = {field["field-id"]: _PARTITION_FIELD.unknown(field) for field in before}
    return [{**field, **unknown.get(field["field-id"], {})} for field in fields]


def fields_in(kind: Any) -> Iterator[dict[str, Any]]:
    """Yield the fields in the JSON of a schema or type, outer fields first."""
    parts = kind if isinstance(kind, list) else ()
    if isinstance(kind, dict):
        if "name" in kind and "id" in kind:
            yield kind
        parts = [kind.get(name) for name in ("fields", "type", "element", "key", "value")]
    for part in parts:
        yield from fields_in(part)


def java_print(metadata: Mapping[str, Any], *, known_only: bool = False) -> bytes:
    """Return the metadata.json that Java would print: compact, in UTF-8, in the order of
    ``in_java_order``. Raises ValueError for what JSON does not have: NaN, infinities, text that is
    not Unicode."""
    return print_ordered(in_java_order(metadata, known_only=known_only))


def print_ordered(metadata: JavaOrdered, before: Mapping[str, Any] | None = None) -> bytes:
    """Return what ``java_print`` does, of ordered metadata. Of a list that begins with the whole
    list of ``before``, an earlier version that this function has printed, the rest is printed."""
    pieces = []
    for name, value in metadata.items():
        pieces += [b",", _printed(name), b":"]
        # Only schemas have numbers that Java prints differently.
        if name in ("schema", "schemas"):
            pieces.append(_with_floats(value).encode())
        elif name in _GROWING and isinstance(value, list) and value:
            metadata.printed[name] = _grown(name, value, before)
            pieces += [b"[", metadata.printed[name], b"]"]
        else:
            pieces.append(_printed(value))
    # Joined once: these are megabytes.
    return b"".join([b"{", *pieces[1:], b"}"])


def _grown(name: str, values: list[Any], before: Mapping[str, Any] | None) -> bytes:
    """Return the print of a list without brackets."""
    if isinstance(before, JavaOrdered) and name in before.printed:
        count = len(before[name])
        if before.shared(name, values) == count:
            rest = [_inside(values[count:])] if values[count:] else []
            return b",".join([before.printed[name], *rest])
    return _inside(values)


def _inside(values: list[Any]) -> bytes:
    return _printed(values)[1:-1]


def java_hash(metadata: Mapping[str, Any], text: bytes | None = None) -> str:
    """Return the ``metadata_hash`` that the Hive catalog has for a table's metadata: that of Java's
    print without unknown fields. ``text`` is what ``print_ordered`` returns, if it is known. Raises
    ValueError as ``java_print``."""
    known = in_java_order(metadata, known_only=True)
    return metadata_hash(text if text is not None and known == metadata else print_ordered(known))


def metadata_hash(text: bytes) -> str:
    """Return the hash of printed metadata: SHA-256, in base64."""
    return base64.b64encode(hashlib.sha256(text).digest()).decode()


def _with_floats(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{{','.join(f'{_text(k)}:{_with_floats(v)}' for k, v in value.items())}}}"
    if isinstance(value, list):
        return f"[{','.join(map(_with_floats, value))}]"
    if isinstance(value, float):
        return _java_float(value, is_single=isinstance(value, _Float) and value.is_single)
    return _text(value)


_ESCAPE = re.compile(rb"\\(?:u00([01][0-9a-f])|.)")


def _text(value: Any) -> str:
    return _printed(value).decode()


def _printed(value: Any) -> bytes:
    """Return what ``json.dumps`` would print, in a third of the time."""
    printed = pydantic_core.to_json(value, inf_nan_mode="constants")
    if b"NaN" in printed or b"Infinity" in printed:
        json.dumps(value, allow_nan=False)  # refuses numbers of that name, and not text
    if b"\\u00" not in printed:
        return printed
    # Jackson writes the digits of a control character in capitals.
    return _ESCAPE.sub(lambda m: b"\\u00" + m[1].upper() if m[1] else m[0], printed)


class _Float(float):
    """A column's default of type float or double: Java prints the two types differently."""

    is_single = False


def _default(value: float, *, is_single: bool) -> _Float:
    try:
        default = _Float(value)
    except OverflowError:
        raise ValueError("a column's default is no double") from None
    default.is_single = is_single
    return default


def _java_float(value: float, *, is_single: bool) -> str:
    """Return a number as Double.toString and Float.toString of JDK 19 and later print it. Older
    JDKs print some large numbers with more digits than needed."""
    if not math.isfinite(value):
        raise ValueError(f"a column's default is {value}, which JSON cannot express")
    sign = "-" if math.copysign(1, value) < 0 else ""
    digits, exponent = _shortest(abs(value), is_single=is_single)
    if value == 0:
        return f"{sign}0.0"
    if -3 <= exponent < 7:
        if exponent < 0:
            return f"{sign}0.{'0' * (-exponent - 1)}{digits}"
        whole, part = digits[: exponent + 1], digits[exponent + 1 :]
        return f"{sign}{whole.ljust(exponent + 1, '0')}.{part or '0'}"
    return f"{sign}{digits[0]}.{digits[1:] or '0'}E{exponent}"


def _shortest(value: float, *, is_single: bool) -> tuple[str, int]:
    """Return the fewest digits that distinguish a number from its neighbours, and its exponent of
    ten. As in Java, there are at least two digits: 4.9E-324, not 5E-324."""
    same = _single if is_single else float
    number = same(value)
    if math.isinf(number):
        raise ValueError(f"a column's default is {value}, which is no float")
    texts = (f"{number:.{precision}e}" for precision in range(1, 17))
    text = next(text for text in texts if same(float(text)) == number)
    mantissa, _, exponent = text.partition("e")
    return mantissa.replace(".", "").rstrip("0") or "0", int(exponent)


def _single(value: float) -> float:
    """Return the nearest number of single precision; infinity if the number is too large."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return math.inf

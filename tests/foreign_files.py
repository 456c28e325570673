"""Data files that programs without Iceberg's writers made: fields without IDs, whose
IDs come from the table's name mapping. The expected rows follow from the specification,
"Column Projection"."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

AVRO_TYPES = {pa.int64(): "long", pa.string(): "string"}


def field(number: int, name: str, kind: Any) -> dict[str, Any]:
    return {"id": number, "name": name, "required": False, "type": kind}


def mapped(number: int | None, *names: str, fields: Any = ()) -> dict[str, Any]:
    found: dict[str, Any] = {"names": list(names), "fields": list(fields)}
    return found if number is None else {"field-id": number, **found}


def struct(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "struct", "fields": list(fields)}


A, B = field(1, "a", "long"), field(2, "b", "string")
S = struct(field(3, "y", "long"), field(4, "z", "string"))
ROWS = [{"a": 1, "b": "x"}, {"a": 2, "b": None}]
OF_STRUCT = [{"a": 1, "s": {"y": 5, "z": "q"}}, {"a": 2, "s": None}]
WITH_STRUCT = [A, field(2, "s", S)]
YZ = [mapped(3, "y"), mapped(4, "z")]
LIST = {"type": "list", "element-id": 3, "element": "long", "element-required": False}
MAP = {"type": "map", "key-id": 3, "key": "string", "value-id": 4, "value": "long"}
MAP["value-required"] = False
# The table's columns, the mapping, the rows of the file, and of the table.
CASES: dict[str, tuple[list[Any], list[Any], list[Any], list[Any]]] = {
    "a column that the mapping lacks": (
        [A, B],
        [mapped(1, "a")],
        ROWS,
        [{"a": 1, "b": None}, {"a": 2, "b": None}],
    ),
    "a name without an ID": (
        [A, B],
        [mapped(1, "a"), mapped(None, "b")],
        ROWS,
        [{"a": 1, "b": None}, {"a": 2, "b": None}],
    ),
    "no names, no mapped column": (
        [A, B],
        [mapped(1), mapped(2)],
        ROWS,
        [{"a": None, "b": None}] * 2,
    ),
    "swapped names": (
        [field(1, "b", "long"), field(2, "a", "string")],
        [mapped(1, "a"), mapped(2, "b")],
        ROWS,
        [{"b": 1, "a": "x"}, {"b": 2, "a": None}],
    ),
    "another case": ([A, B], [mapped(1, "A"), mapped(2, "b")], ROWS, [
        {"a": None, "b": "x"}, {"a": None, "b": None}
    ]),
    "a field of a struct": (
        WITH_STRUCT,
        [mapped(1, "a"), mapped(2, "s", fields=YZ[:1])],
        OF_STRUCT,
        [{"a": 1, "s": {"y": 5, "z": None}}, {"a": 2, "s": None}],
    ),
    "all fields of a struct": (
        WITH_STRUCT,
        [mapped(1, "a"), mapped(2, "s")],
        OF_STRUCT,
        [{"a": 1, "s": {"y": None, "z": None}}, {"a": 2, "s": None}],
    ),
    "a struct whose fields are mapped": (
        WITH_STRUCT,
        [mapped(1, "a"), mapped(None, "s", fields=YZ)],
        OF_STRUCT,
        [{"a": 1, "s": None}, {"a": 2, "s": None}],
    ),
    "the name of a field at the top": (
        WITH_STRUCT,
        [mapped(1, "a"), mapped(2, "s"), *YZ],
        OF_STRUCT,
        [{"a": 1, "s": {"y": None, "z": None}}, {"a": 2, "s": None}],
    ),
    "the value of a map": (
        [A, field(2, "m", MAP)],
        [mapped(1, "a"), mapped(2, "m", fields=[mapped(3, "key")])],
        [{"a": 1, "m": [("k", 5)]}],
        [{"a": 1, "m": None}],
    ),
    "the element of a list": (
        [A, field(2, "l", LIST)],
        [mapped(1, "a"), mapped(2, "l")],
        [{"a": 1, "l": [5]}],
        [{"a": 1, "l": None}],
    ),
}  # fmt: skip
INSIDE = {"the value of a map", "the element of a list"}


def file_of(rows: list[dict[str, Any]]) -> pa.Table:
    """Return rows of ``CASES`` as columns without IDs."""
    inner = pa.struct([("y", pa.int64()), ("z", pa.string())])
    kinds = {"a": pa.int64(), "b": pa.string(), "s": inner}
    kinds |= {"m": pa.map_(pa.string(), pa.int64()), "l": pa.list_(pa.int64())}
    return pa.Table.from_pylist(rows, pa.schema([(name, kinds[name]) for name in rows[0]]))


def avro_of(table: pa.Table) -> dict[str, Any]:
    def kind(arrow: pa.DataType, name: str) -> Any:
        if pa.types.is_struct(arrow):
            parts = [{"name": f.name, "type": kind(f.type, f.name)} for f in arrow]
            return ["null", {"type": "record", "name": name, "fields": parts}]
        return ["null", AVRO_TYPES[arrow]]

    parts = [{"name": f.name, "type": kind(f.type, f.name)} for f in table.schema]
    return {"type": "record", "name": "row", "fields": parts}


def paths(part: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each field of parsed JSON, in lists that of the last element."""
    inside = list(part.items() if isinstance(part, dict) else enumerate(part))
    for name, value in inside if isinstance(part, dict) else inside[-1:]:
        yield (*above, name)
        if isinstance(value, dict | list):
            yield from paths(value, (*above, name))

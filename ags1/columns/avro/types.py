"""Resolves the types in an Avro file's schema: a name stands for the type of that name.

No type may contain itself, and names can be printed, because messages have them. The schema is not
trusted. Follows Avro's specification, "Names" and
"Complex Types". Independent of Iceberg's types.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ...errors import FormatError

# How deeply the types of a file may be nested, for the reader and for the writer.
MAX_AVRO_DEPTH = 64
MAX_STEPS = 100_000

_PRIMITIVES = frozenset("null boolean int long float double bytes string".split())
_NAMED = frozenset(("record", "error", "enum", "fixed"))


class AvroTypes:
    """The named types that a schema has defined so far, in the order of its text."""

    def __init__(self) -> None:
        self._named: dict[str, tuple[dict[str, Any], str]] = {}
        # The names of the records around the type that is being resolved.
        self._around: list[str] = []

    def resolve(self, schema: object, namespace: str, path: str) -> tuple[str, Any, str]:
        """Return a type's kind (``record``, ``union``, ``long``, …), its definition, and the
        namespace of the names inside it."""
        for _ in range(MAX_AVRO_DEPTH):
            if isinstance(schema, list):
                return "union", schema, namespace
            if isinstance(schema, str):
                if schema in _PRIMITIVES:
                    return schema, {}, namespace
                return self._lookup(schema, namespace, path)
            if not isinstance(schema, dict):
                break
            kind = schema.get("type")
            if isinstance(kind, str):
                if kind in _NAMED:
                    return self._define(kind, schema, namespace, path)
                if kind in _PRIMITIVES or kind in ("array", "map"):
                    return kind, schema, namespace
            schema = kind
        raise FormatError(f"{path}: not an Avro type")

    def _define(
        self, kind: str, definition: dict[str, Any], namespace: str, path: str
    ) -> tuple[str, Any, str]:
        name, space = definition.get("name"), definition.get("namespace", namespace)
        space = "" if space is None else space
        if not isinstance(name, str) or not isinstance(space, str):
            raise FormatError(f"{path}: an Avro type without a name")
        if "." in name:
            space = name.rpartition(".")[0]
        self._named[_full_name(name, space)] = definition, namespace
        return "record" if kind == "error" else kind, definition, space

    def _lookup(self, name: str, namespace: str, path: str) -> tuple[str, Any, str]:
        for full_name in (_full_name(name, namespace), name):
            if full_name in self._named:
                definition, outer = self._named[full_name]
                return self._define(definition["type"], definition, outer, path)
        raise FormatError(f"{path}: {shown(name)} is no Avro type")

    @contextmanager
    def inside(self, record: dict[str, Any], namespace: str, path: str) -> Iterator[None]:
        """Go inside a record. Raises FormatError if it is inside itself."""
        name = _full_name(record["name"], namespace)
        if name in self._around:
            raise FormatError(f"{path or 'a row'}: {shown(name)} holds itself")
        self._around.append(name)
        yield
        self._around.pop()


def has_ids(schema: object) -> bool:
    """Whether any field of the schema has an id. Only if none has, Java gives ids by name."""
    to_see, seen = [schema], 0
    while to_see:
        part = to_see.pop()
        seen += 1
        if seen > MAX_STEPS:
            raise FormatError("the file's schema is too large")
        if isinstance(part, list):
            to_see += part
        elif isinstance(part, dict):
            if "field-id" in part:
                return True
            to_see += [part.get(key) for key in ("type", "fields", "items", "values")]
    return False


def fields_of(definition: dict[str, Any], path: str) -> list[dict[str, Any]]:
    """Return a record's fields. Each has a name that can be printed, and a type."""
    fields = definition.get("fields")
    if not isinstance(fields, list) or not all(
        isinstance(field, dict) and isinstance(field.get("name"), str) and "type" in field
        for field in fields
    ):
        raise FormatError(f"{path or 'a row'}: a record has no fields")
    for field in fields:
        # Messages quote names.
        if not field["name"].isprintable():
            raise FormatError(f"{path or 'a row'}: {shown(field['name'])} is no name")
    return fields


def _full_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def shown(text: str) -> str:
    """Return a part of the schema as messages quote it."""
    return repr(text if len(text) <= 60 else f"{text[:60]}…")

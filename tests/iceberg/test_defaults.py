"""Defaults of columns keep their values, and those that a type cannot hold are refused, as in Java.
``NestedField`` casts a default to its type (``Literal.to``); ``SchemaParser`` reads no other."""

from __future__ import annotations

import datetime
import json
import math
import re
import struct
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, FloatType, NestedField, StructType

ENCRYPTED = {"encryption.key-id": "keyA"}
ROWS = pa.table({"id": [1]})
[TENTH] = struct.unpack("<f", struct.pack("<f", 0.1))


def type_of(kind: str) -> Any:
    return NestedField(1, "x", kind).field_type


def schema_json(table: Any) -> Any:
    return json.loads(Path(table.metadata_location.removeprefix("file://")).read_text())["schemas"][
        -1
    ]


@pytest.mark.parametrize("path", [("f",), ("s", "f")], ids=["column", "field"])
def test_the_default_of_a_float_that_becomes_a_double_keeps_its_value(
    catalog: Any, path: tuple[str, ...]
) -> None:
    table = catalog.create_table("db.t", pa.schema([("id", pa.int64())]), properties=ENCRYPTED)
    with table.update_schema() as update:
        update.add_column("s", StructType(NestedField(9, "y", DoubleType(), required=False)))
    given = [{"id": 1, "s": {"y": 1.0}}]
    table.append(pa.Table.from_pylist(given, schema=table.schema().as_arrow()))
    with table.update_schema() as update:
        update.add_column(path, FloatType(), default_value=0.1)

    def read() -> Any:
        value = table.scan().to_arrow().to_pylist()[0]
        for name in path:
            value = value[name]
        return value

    assert read() == TENTH
    with table.transaction() as transaction, transaction.update_schema() as update:
        update.update_column(path, DoubleType())
    assert read() == TENTH
    assert table.scan(f"{'.'.join(path)} > 0.1").count() == 1
    field = table.schema().find_field(".".join(path))
    assert (field.initial_default, field.write_default) == (TENTH, TENTH)
    # As Java prints it.
    assert f'"initial-default": {TENTH}' in json.dumps(schema_json(table))
    with table.update_schema() as update:
        update.set_default_value(path, 0.1)
    field = table.schema().find_field(".".join(path))
    assert (field.initial_default, field.write_default) == (TENTH, 0.1)


BEYOND: list[tuple[str, Any]] = [
    ("int", 2**31),
    ("int", -(2**40)),
    ("int", Decimal("1.5")),
    ("int", "1.5"),
    ("long", 2**63),
    ("float", 1e39),
    ("float", -math.inf),
    ("float", Decimal("1e39")),
    ("double", math.inf),
    ("double", 10**400),
    ("double", Decimal("1e400")),
    ("decimal(9, 2)", 10**7),
    ("decimal(9, 2)", 1.005),
    ("decimal(9, 2)", Decimal("10000000.00")),
    ("date", datetime.datetime(2024, 1, 1, 5)),
    ("time", 86_400_000_000),
    ("timestamp", 2**63),
    ("string", "\ud800"),
]


def test_a_default_that_its_type_cannot_hold_is_refused(
    catalog: Any, subtests: pytest.Subtests
) -> None:
    table = catalog.create_table("db.t", ROWS.schema, properties=ENCRYPTED)
    table.append(ROWS)
    with table.update_schema() as update:
        for number, (kind, _) in enumerate(BEYOND):
            update.add_column(f"x{number}", type_of(kind))
    before = table.metadata
    for number, (kind, value) in enumerate(BEYOND):
        with subtests.test(f"{kind} {value!r}"[:40]):
            check_refused(table, f"x{number}", kind, value)
    assert table.refresh().metadata == before


def check_refused(table: Any, name: str, kind: str, value: Any) -> None:
    def refused(column: str) -> Any:
        message = f"column '{column}' of type {kind} cannot hold"
        return pytest.raises(ValueError, match=re.escape(message))

    with refused("y"):
        table.update_schema().add_column("y", type_of(kind), default_value=value)
    with refused(name):
        table.update_schema().set_default_value(name, value)
    # PyIceberg's fields read others as other values, or refuse them.
    is_kept = kind in ("int", "long", "float", "double", "string") or type(value) is Decimal
    for default in ("initial_default", "write_default") if is_kept else ():
        inner: Any = NestedField(2, "y", type_of(kind), required=False, **{default: value})
        schema = Schema(NestedField(1, "s", StructType(inner), required=False))
        with refused("s.y"):
            table.catalog.create_table("db.new", schema, properties=ENCRYPTED)


AT_THE_END: list[tuple[str, Any, Any]] = [
    ("int", -(2**31), -(2**31)),
    ("int", Decimal("2.0"), 2),
    ("float", 16777217, 16777216.0),
    ("double", 1.7976931348623157e308, 1.7976931348623157e308),
    ("decimal(9, 2)", Decimal("-9999999.99"), Decimal("-9999999.99")),
    ("decimal(9, 2)", 5, Decimal("5.00")),
    ("date", datetime.datetime(2024, 1, 1), datetime.date(2024, 1, 1)),
    ("date", "0001-01-01", datetime.date(1, 1, 1)),
    ("time", "23:59:59.999999", datetime.time(23, 59, 59, 999999)),
    ("string", "\U0001f600", "\U0001f600"),
]


def test_a_default_at_the_end_of_its_type_is_read(catalog: Any) -> None:
    table = catalog.create_table("db.t", ROWS.schema, properties=ENCRYPTED)
    table.append(ROWS)
    with table.update_schema() as update:
        for number, (kind, value, _) in enumerate(AT_THE_END):
            update.add_column(f"x{number}", type_of(kind), default_value=value)
    found = table.scan().to_arrow()
    for number, (kind, value, read) in enumerate(AT_THE_END):
        assert found[f"x{number}"].to_pylist() == [read], (kind, value)

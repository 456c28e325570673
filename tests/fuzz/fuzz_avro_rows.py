"""The compiled decoder: any bytes become columns that Arrow finds valid, or are refused."""

import json

import harness

with harness.instrumented():
    from pyiceberg.schema import Schema
    from pyiceberg.types import (
        BinaryType,
        BooleanType,
        DateType,
        DecimalType,
        DoubleType,
        FixedType,
        IntegerType,
        ListType,
        LongType,
        MapType,
        NestedField,
        StringType,
        StructType,
        TimestampType,
        TimeType,
        UUIDType,
    )

    from ags1.columns.avro.projection import Projection
    from ags1.errors import FormatError


def record(name, *fields):
    listed = [
        {"name": field_name, "type": kind, "field-id": field_id}
        for field_name, field_id, kind in fields
    ]
    return {"type": "record", "name": name, "fields": listed}


def optional(kind):
    return ["null", kind]


def column(field_id, kind, required=False):
    return NestedField(field_id, f"c{field_id}", kind, required=required)


NUMBERS = record(
    "numbers",
    ("a", 1, "int"),
    ("b", 2, optional("long")),
    ("c", 3, ["float", "null"]),
    ("d", 4, "double"),
    ("e", 5, optional("boolean")),
    ("f", 6, {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}),
    (
        "g",
        7,
        {"type": "fixed", "name": "g", "size": 5, "logicalType": "decimal", "precision": 10},
    ),
    ("h", 8, {"type": "int", "logicalType": "date"}),
    ("i", 9, {"type": "long", "logicalType": "time-micros"}),
    ("j", 10, {"type": "long", "logicalType": "timestamp-millis", "adjust-to-utc": False}),
)
TEXTS = record(
    "texts",
    ("a", 1, "string"),
    ("b", 2, optional("bytes")),
    ("c", 3, {"type": "fixed", "name": "c", "size": 3}),
    ("d", 4, optional({"type": "fixed", "name": "d", "size": 16, "logicalType": "uuid"})),
    ("e", 5, {"type": "enum", "name": "e", "symbols": ["X", "YY"]}),
)
PAIR = record("pair", ("key", 12, "string"), ("value", 13, optional("int")))
NESTED = record(
    "nested",
    ("a", 1, optional({"type": "array", "items": optional("int"), "element-id": 10})),
    ("b", 2, {"type": "array", "items": PAIR, "logicalType": "map"}),
    ("c", 3, optional(record("inner", ("x", 14, "boolean"), ("y", 15, optional("string"))))),
    ("d", 4, {"type": "map", "values": "long", "key-id": 16, "value-id": 17}),
)
ALL_NUMBERS = (
    column(1, LongType(), required=True),
    column(2, LongType()),
    column(3, DoubleType()),
    column(4, DoubleType()),
    column(5, BooleanType()),
    column(6, DecimalType(12, 2)),
    column(7, DecimalType(10, 0)),
    column(8, DateType()),
    column(9, TimeType()),
    column(10, TimestampType()),
)
ALL_NESTED = (
    column(1, ListType(10, IntegerType(), element_required=False)),
    column(2, MapType(12, StringType(), 13, IntegerType(), value_required=False)),
    column(
        3,
        StructType(
            column(14, BooleanType(), required=True),
            column(15, StringType()),
            column(19, DateType()),
        ),
    ),
    column(4, MapType(16, StringType(), 17, LongType(), value_required=True)),
)
# What the file has, and what the table wants of it.
SHAPES = (
    (NUMBERS, Schema(*ALL_NUMBERS)),
    (NUMBERS, Schema(column(2, LongType(), required=True), column(7, DecimalType(10, 0)))),
    (
        TEXTS,
        Schema(
            column(1, StringType()),
            column(2, BinaryType()),
            column(3, FixedType(3)),
            column(4, UUIDType()),
            column(5, StringType()),
        ),
    ),
    (TEXTS, Schema(column(3, FixedType(3)))),
    (NESTED, Schema(*ALL_NESTED)),
    (NESTED, Schema(column(4, MapType(16, StringType(), 17, LongType(), value_required=True)))),
    (NESTED, Schema(column(30, StringType()))),
)
PROJECTIONS = [Projection(json.loads(json.dumps(file)), table) for file, table in SHAPES]


def TestOneInput(data: bytes) -> None:
    source = harness.Input(data)
    projection = PROJECTIONS[source.number(len(PROJECTIONS) - 1)]
    rows, at_once, enough = source.number(20), 1 + source.number(7), source.number(500)
    block = source.rest()
    decoder = projection.decoder()
    read = 0
    try:
        decoder.begin(block, rows)
        while decoder.rows_left:
            count = decoder.decode(at_once, enough)
            assert 0 < count <= at_once
            batch = projection.batch(decoder, count)
            batch.validate(full=True)
            read += batch.num_rows
    except FormatError:
        return
    assert read == rows


if __name__ == "__main__":
    harness.main(TestOneInput)

"""Avro data files as Arrow: against fastavro, bytes made by hand, and files that Java wrote."""

from __future__ import annotations

import datetime as dt
import hashlib
import io
import json
import math
import struct
import time
import zlib
from collections.abc import Iterable, Sequence
from decimal import Context, Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import fastavro
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.table.name_mapping import MappedField, NameMapping
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    GeometryType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UnknownType,
    UUIDType,
)

import ags1
from ags1.columns.avro import container as avro_container
from ags1.columns.avro import files as avro_files
from ags1.columns.avro import projection as avro_projection
from ags1.columns.avro._columns import Layout
from ags1.columns.avro._program import ColumnLayout, Decoder, Instruction, Step
from ags1.columns.avro.files import AvroFile, plan_splits, read_avro
from ags1.columns.avro.schema import iceberg_schema_of_avro
from ags1.errors import Ags1Error, FormatError, TruncatedError

JAVA_TABLE = Path(__file__).parents[2] / "tables" / "avro_part"
JAVA_FILES = sorted(JAVA_TABLE.glob("data/**/*.avro"))
SYNC = bytes(range(100, 116))
UTC = dt.timezone.utc
WIDE = Context(prec=60)
CODECS = ["null", "deflate", "snappy", "zstandard", "bzip2", "xz"]


# -- making files


def varint(number: int) -> bytes:
    raw = (number << 1) ^ (number >> 63)
    out = bytearray()
    while raw > 0x7F:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)


def string(text: bytes) -> bytes:
    return varint(len(text)) + text


def container(
    schema: object, blocks: Iterable[tuple[int, bytes]], codec: str = "null", sync: bytes = SYNC
) -> bytes:
    """A file made by hand of ``(rows, contents)``."""
    text = schema if isinstance(schema, bytes) else json.dumps(schema).encode()
    entries = [(b"avro.schema", text), (b"avro.codec", codec.encode())]
    header = b"Obj\x01" + varint(len(entries))
    header += b"".join(string(key) + string(value) for key, value in entries) + b"\0" + sync
    return header + b"".join(
        varint(rows) + varint(len(data)) + data + sync for rows, data in blocks
    )


def record(*fields: tuple[int | None, str, object]) -> dict[str, Any]:
    """The Avro schema of rows of fields: id, name, type."""
    return {
        "type": "record",
        "name": "table",
        "fields": [
            {"name": name, "type": kind} | ({} if field_id is None else {"field-id": field_id})
            for field_id, name, kind in fields
        ],
    }


def written(
    schema: dict[str, Any], rows: Sequence[object], codec: str = "null", interval: int = 16000
) -> bytes:
    """A file by fastavro."""
    if codec == "snappy":
        pytest.importorskip("cramjam")
    out = io.BytesIO()
    try:
        fastavro.writer(
            out, schema, list(rows), codec=codec, sync_interval=interval, sync_marker=SYNC
        )
    except ValueError as error:
        if "need to install" in str(error):
            pytest.skip(str(error))
        raise
    return out.getvalue()


def read(data: bytes, schema: Schema, **options: Any) -> list[dict[str, Any]]:
    """Rows out of batches that Arrow finds nothing wrong with."""
    rows: list[dict[str, Any]] = []
    for batch in read_avro(io.BytesIO(data), schema, **options):
        batch.validate(full=True)
        rows += batch.to_pylist()
    return rows


def column(
    kind: object, contents: bytes, wanted: IcebergType, rows: int = 1, *, required: bool = True
) -> list[Any]:
    """The values of one column of that Avro type, read as the Iceberg type."""
    schema = Schema(NestedField(1, "c", wanted, required))
    return [row["c"] for row in read(container(record((1, "c", kind)), [(rows, contents)]), schema)]


def logical(kind: str, name: str, **more: object) -> dict[str, object]:
    return {"type": kind, "logicalType": name} | more


def fixed(size: int, **more: object) -> dict[str, object]:
    return {"type": "fixed", "name": f"fixed_{size}", "size": size} | more


ENUM = {"type": "enum", "name": "suit", "symbols": ["hearts", "spades", "clubs"]}
ONE = UUID(int=1)


# -- each type

TYPES = [
    ("boolean", b"\1", BooleanType(), True),
    ("int", varint(-(2**31)), IntegerType(), -(2**31)),
    ("int", varint(2**31 - 1), IntegerType(), 2**31 - 1),
    ("long", varint(-(2**63)), LongType(), -(2**63)),
    ("long", varint(2**63 - 1), LongType(), 2**63 - 1),
    # Longer than it need be, but no wider than 64 bits.
    ("long", b"\x82\x80\x00", LongType(), 1),
    ("float", struct.pack("<f", 1.5), FloatType(), 1.5),
    ("double", struct.pack("<d", math.pi), DoubleType(), math.pi),
    ("double", struct.pack("<d", -math.inf), DoubleType(), -math.inf),
    ("bytes", string(b"\xff\x00"), BinaryType(), b"\xff\x00"),
    ("bytes", string(b""), BinaryType(), b""),
    ("bytes", string(b"\x01"), GeometryType(), b"\x01"),
    ("string", string("Grüße, 🐟".encode()), StringType(), "Grüße, 🐟"),
    ({"type": "string"}, string(b""), StringType(), ""),
    (ENUM, varint(1), StringType(), "spades"),
    (fixed(3), b"abc", FixedType(3), b"abc"),
    (fixed(16, logicalType="uuid"), ONE.bytes, UUIDType(), ONE),
    (fixed(16), ONE.bytes, UUIDType(), ONE),
    (logical("int", "date"), varint(-1), DateType(), dt.date(1969, 12, 31)),
    (logical("long", "time-micros"), varint(61_000_001), TimeType(), dt.time(0, 1, 1, 1)),
    (logical("int", "time-millis"), varint(61_001), TimeType(), dt.time(0, 1, 1, 1000)),
    (
        logical("long", "timestamp-micros", **{"adjust-to-utc": False}),
        varint(-1),
        TimestampType(),
        dt.datetime(1969, 12, 31, 23, 59, 59, 999999),
    ),
    (
        logical("long", "timestamp-micros", **{"adjust-to-utc": True}),
        varint(1),
        TimestamptzType(),
        dt.datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC),
    ),
    (
        logical("long", "timestamp-millis"),
        varint(1),
        TimestampType(),
        dt.datetime(1970, 1, 1, 0, 0, 0, 1000),
    ),
    (
        logical("long", "local-timestamp-micros"),
        varint(2),
        TimestampType(),
        dt.datetime(1970, 1, 1, 0, 0, 0, 2),
    ),
    (
        fixed(4, logicalType="decimal", precision=9, scale=2),
        (-1234).to_bytes(4, "big", signed=True),
        DecimalType(9, 2),
        Decimal("-12.34"),
    ),
    (
        logical("bytes", "decimal", precision=38),
        string((10**38 - 1).to_bytes(16, "big", signed=True)),
        DecimalType(38, 0),
        Decimal(10**38 - 1),
    ),
    (
        logical("bytes", "decimal", precision=38),
        string((1 - 10**38).to_bytes(40, "big", signed=True)),
        DecimalType(38, 0),
        Decimal(1 - 10**38),
    ),
    (logical("string", "something new"), string(b"x"), StringType(), "x"),
]


@pytest.mark.parametrize(("kind", "contents", "wanted", "value"), TYPES)
def test_each_type(kind: object, contents: bytes, wanted: IcebergType, value: object) -> None:
    assert column(kind, contents, wanted) == [value]
    branch = ["null", kind]
    contents = varint(1) + contents + varint(0) + varint(1) + contents
    assert column(branch, contents, wanted, 3, required=False) == [value, None, value]


UNREADABLE = [
    (fixed(12, logicalType="duration"), bytes(12)),
    (logical("string", "uuid"), string(str(ONE).encode())),
    (
        record((None, "metadata", "bytes"), (None, "value", "bytes"))
        | {"name": "v", "logicalType": "variant"},
        string(b"\1\0\0") + string(b"\0"),
    ),
    ({"type": "array", "items": ["null", "string"]}, varint(2) + b"\0\2\2x" + b"\0"),
    ({"type": "map", "values": "double"}, varint(1) + string(b"k") + bytes(8) + b"\0"),
    # As one that is not read, a string may be anything.
    ("string", string(b"\xff")),
]


@pytest.mark.parametrize(
    ("kind", "contents"), [(kind, contents) for kind, contents, *_ in TYPES] + UNREADABLE
)
def test_columns_that_are_not_read_are_skipped(kind: object, contents: bytes) -> None:
    schema = record((1, "c", ["null", kind]), (2, "after", "int"))
    one = varint(1) + contents + varint(5)
    table = Schema(NestedField(2, "after", IntegerType(), True))
    data = container(schema, [(3, one + b"\0" + varint(6) + one)])
    assert [row["after"] for row in read(data, table)] == [5, 6, 5]
    # What is skipped is looked at, too: not one byte may be missing.
    with pytest.raises(FormatError):
        read(container(schema, [(1, one[:-1])]), table)


@pytest.mark.parametrize(
    ("wanted", "zone"), [(TimestampNanoType(), None), (TimestamptzNanoType(), "UTC")]
)
def test_nanoseconds(wanted: IcebergType, zone: str | None) -> None:
    kind = logical("long", "timestamp-nanos", **{"adjust-to-utc": zone is not None})
    data = container(record((1, "c", kind)), [(1, varint(1_000_000_001))])
    (batch,) = read_avro(io.BytesIO(data), Schema(NestedField(1, "c", wanted, True)))
    assert batch.schema.field("c").type == pa.timestamp("ns", tz=zone)
    assert batch.column(0).cast(pa.int64()).to_pylist() == [1_000_000_001]


PROMOTED = [
    ("int", varint(-5), LongType(), -5),
    ("float", struct.pack("<f", 0.1), DoubleType(), struct.unpack("<f", struct.pack("<f", 0.1))[0]),
    (
        fixed(2, logicalType="decimal", precision=4, scale=1),
        b"\xff\xff",
        DecimalType(20, 1),
        Decimal("-0.1"),
    ),
    (logical("int", "date"), varint(-1), TimestampType(), dt.datetime(1969, 12, 31)),
]


@pytest.mark.parametrize(("kind", "contents", "wanted", "value"), PROMOTED)
def test_promotions(kind: object, contents: bytes, wanted: IcebergType, value: object) -> None:
    assert column(kind, contents, wanted) == [value]


def test_a_date_as_nanoseconds_has_to_fit() -> None:
    kind, schema = logical("int", "date"), Schema(NestedField(1, "c", TimestampNanoType(), True))
    for days in (106_751, -106_751):
        data = container(record((1, "c", kind)), [(1, varint(days))])
        (batch,) = read_avro(io.BytesIO(data), schema)
        assert batch.column(0).cast(pa.int64()).to_pylist() == [days * 86_400 * 10**9]
    for days in (106_752, -106_752, 2**63 - 1, -(2**63)):
        with pytest.raises(FormatError, match="does not fit"):
            read(container(record((1, "c", kind)), [(1, varint(days))]), schema)


@pytest.mark.parametrize("wanted", [IntegerType(), StringType(), DecimalType(9, 2), UnknownType()])
def test_an_unknown_column_is_null_as_any_type(wanted: IcebergType) -> None:
    assert column("null", b"", wanted, 2, required=False) == [None, None]
    assert column(["null"], varint(0) * 2, wanted, 2, required=False) == [None, None]


def test_an_unknown_column_is_no_required_one() -> None:
    with pytest.raises(FormatError, match="always null"):
        column("null", b"", IntegerType())


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        ("long", IntegerType()),
        ("double", FloatType()),
        ("int", StringType()),
        ("int", DateType()),
        ("string", BinaryType()),
        ("bytes", StringType()),
        (logical("int", "date"), IntegerType()),
        (logical("int", "date"), TimestamptzType()),
        (logical("long", "timestamp-micros"), LongType()),
        (logical("long", "timestamp-micros"), TimestampNanoType()),
        (logical("long", "timestamp-micros", **{"adjust-to-utc": True}), TimestampType()),
        (logical("long", "timestamp-micros", **{"adjust-to-utc": False}), TimestamptzType()),
        (logical("long", "local-timestamp-micros"), TimestamptzType()),
        (fixed(4, logicalType="decimal", precision=9, scale=2), DecimalType(8, 2)),
        (fixed(4, logicalType="decimal", precision=9, scale=2), DecimalType(9, 1)),
        (fixed(12, logicalType="duration"), FixedType(12)),
        (fixed(4), FixedType(5)),
        (fixed(15), UUIDType()),
        (logical("string", "uuid"), UUIDType()),
        (logical("string", "uuid"), StringType()),
        (record((2, "metadata", "bytes")) | {"logicalType": "variant"}, StringType()),
        (record((2, "x", "int")), IntegerType()),
        ({"type": "array", "items": "int"}, IntegerType()),
        ({"type": "map", "values": "int"}, ListType(2, IntegerType(), True)),
        ("int", StructType(NestedField(2, "x", IntegerType()))),
    ],
)
def test_no_other_type_is_read_as_another(kind: Any, wanted: IcebergType) -> None:
    if isinstance(kind, dict) and kind["type"] == "record":
        kind = kind | {"name": "inner"}
    with pytest.raises(FormatError, match=r"c: .* can't be read as"):
        column(kind, b"", wanted, 0)


# -- fields

PEOPLE = record(
    (1, "id", "long"),
    (2, "name", ["null", "string"]),
    (3, "tags", {"type": "array", "items": "string", "element-id": 4}),
    (
        5,
        "place",
        [
            "null",
            record((6, "x", "double"), (7, "y", ["double", "null"]), (8, "label", "string"))
            | {"name": "place"},
        ],
    ),
)
ROWS = [
    {"id": n, "name": f"n{n}" if n % 3 else None, "tags": ["a"] * (n % 4)}
    | {"place": {"x": n / 2, "y": None if n % 2 else n, "label": "l"} if n % 5 else None}
    for n in range(50)
]


def test_fields_are_found_by_id_in_any_order_and_by_any_name() -> None:
    place = StructType(
        NestedField(7, "renamed_y", DoubleType()),
        NestedField(9, "added", StringType(), initial_default="new"),
        NestedField(6, "x", DoubleType(), True),
    )
    schema = Schema(NestedField(5, "where", place), NestedField(1, "key", LongType(), True))
    expected = [
        {
            "where": row["place"]
            and {"renamed_y": row["place"]["y"], "added": "new", "x": row["place"]["x"]},
            "key": row["id"],
        }
        for row in ROWS
    ]
    assert read(written(PEOPLE, ROWS), schema) == expected


def test_no_column_at_all_still_has_rows() -> None:
    batches = list(read_avro(io.BytesIO(written(PEOPLE, ROWS)), Schema()))
    assert [batch.num_rows for batch in batches] == [50]


DEFAULTS = [
    (IntegerType(), 7, 7),
    (StringType(), "x", "x"),
    (BooleanType(), False, False),
    (DateType(), "2024-02-29", dt.date(2024, 2, 29)),
    (TimestamptzType(), "2024-02-29T01:02:03.000004+00:00", None),
    (DecimalType(9, 2), "14.20", Decimal("14.20")),
    (UUIDType(), str(ONE), ONE),
    (BinaryType(), "00ff", b"\x00\xff"),
    (FixedType(2), "00ff", b"\x00\xff"),
]


@pytest.mark.parametrize(("kind", "default", "value"), DEFAULTS)
@pytest.mark.parametrize("required", [False, True])
def test_a_missing_field_has_its_initial_default(
    kind: IcebergType, default: object, value: object, required: bool
) -> None:
    value = value or (False if value is False else dt.datetime(2024, 2, 29, 1, 2, 3, 4, tzinfo=UTC))
    field = NestedField(20, "new", kind, required, initial_default=default)
    assert read(written(PEOPLE, ROWS[:2]), Schema(field)) == [{"new": value}] * 2


def test_a_missing_field_without_a_default_is_null_or_an_error() -> None:
    data = written(PEOPLE, ROWS[:2])
    nested = ListType(21, StructType(NestedField(22, "u", UUIDType())), False)
    for kind in (LongType(), UUIDType(), UnknownType(), nested):
        assert read(data, Schema(NestedField(20, "new", kind))) == [{"new": None}] * 2
    inner = NestedField(20, "new", LongType(), True)
    with pytest.raises(FormatError, match=r"place\.new: required"):
        read(data, Schema(NestedField(5, "place", StructType(inner))))


def test_partition_values_stand_in_for_missing_fields_only() -> None:
    schema = Schema(
        NestedField(1, "id", LongType(), True), NestedField(20, "p", StringType(), True)
    )
    rows = read(written(PEOPLE, ROWS[:2]), schema, missing_values={1: 77, 20: "even"})
    assert rows == [{"id": 0, "p": "even"}, {"id": 1, "p": "even"}]


def test_a_name_mapping_gives_ids_to_a_file_without() -> None:
    def without_ids(part: Any) -> Any:
        if isinstance(part, dict):
            return {k: without_ids(v) for k, v in part.items() if not k.endswith("-id")}
        return [without_ids(each) for each in part] if isinstance(part, list) else part

    inner = [MappedField(field_id=6, names=["x"]), MappedField(field_id=7, names=["why", "y"])]
    mapping = NameMapping(
        [
            MappedField(field_id=1, names=["nothing", "id"]),
            MappedField(field_id=5, names=["place"], fields=inner),
        ]
    )
    place = StructType(NestedField(7, "y", DoubleType()))
    schema = Schema(
        NestedField(1, "id", LongType(), True),
        NestedField(5, "place", place),
        NestedField(2, "name", StringType()),
    )
    data = written(without_ids(PEOPLE), ROWS)
    assert read(data, schema, name_mapping=mapping) == [
        {"id": row["id"], "place": row["place"] and {"y": row["place"]["y"]}, "name": None}
        for row in ROWS
    ]
    with pytest.raises(FormatError, match="no name mapping"):
        read(data, schema)
    # Where there are ids, names mean nothing.
    assert read(written(PEOPLE, ROWS), schema, name_mapping=NameMapping([]))[1]["name"] == "n1"


def test_a_name_mapping_reaches_into_lists_and_maps() -> None:
    inner = record((None, "v", "int")) | {"name": "inner"}
    schema = record(
        (None, "l", {"type": "array", "items": inner}),
        (None, "m", {"type": "map", "values": "inner"}),
    )
    fields = [MappedField(field_id=9, names=["v"])]
    mapping = NameMapping(
        [
            MappedField(
                field_id=1,
                names=["l"],
                fields=[MappedField(field_id=2, names=["element"], fields=fields)],
            ),
            MappedField(
                field_id=3,
                names=["m"],
                fields=[
                    MappedField(field_id=4, names=["key"]),
                    MappedField(field_id=5, names=["value"], fields=fields),
                ],
            ),
        ]
    )
    struct_type = StructType(NestedField(9, "w", IntegerType(), True))
    table = Schema(
        NestedField(1, "l", ListType(2, struct_type, True), True),
        NestedField(3, "m", MapType(4, StringType(), 5, struct_type, True), True),
    )
    data = written(schema, [{"l": [{"v": 1}], "m": {"k": {"v": 2}}}])
    assert read(data, table, name_mapping=mapping) == [{"l": [{"w": 1}], "m": [("k", {"w": 2})]}]


def test_two_fields_of_one_id_are_refused() -> None:
    data = container(record((1, "a", "int"), (1, "b", "int")), [])
    with pytest.raises(FormatError, match="another field"):
        read(data, Schema(NestedField(1, "a", IntegerType())))


# -- unions, lists, maps


def test_null_may_be_either_branch() -> None:
    contents = varint(0) + varint(5) + varint(1)
    assert column(["int", "null"], contents, IntegerType(), 2, required=False) == [5, None]


@pytest.mark.parametrize("first", [*range(18), 63, 64, 65])
def test_the_first_null_may_come_late(first: int) -> None:
    contents = (varint(1) + varint(5)) * first + varint(0) + (varint(1) + varint(5)) * 20
    expected = [5] * first + [None] + [5] * 20
    assert column(["null", "int"], contents, IntegerType(), first + 21, required=False) == expected


def test_under_a_null_struct_required_fields_are_not_null() -> None:
    (batch,) = read_avro(io.BytesIO(written(PEOPLE, ROWS)), PEOPLE_TABLE)
    place = batch.column("place")
    assert place.null_count == 10
    assert [place.field(n).null_count for n in range(3)] == [0, 30, 0]


def test_a_null_in_a_required_column_is_refused() -> None:
    assert column(["null", "int"], varint(1) + varint(5), IntegerType()) == [5]
    with pytest.raises(FormatError, match="c: null, but the table requires"):
        column(["null", "int"], varint(0), IntegerType())


@pytest.mark.parametrize("union", [["int", "string"], ["null", "int", "string"], [], ["null"] * 2])
def test_other_unions_are_refused(union: list[str]) -> None:
    with pytest.raises(FormatError, match="no unions but"):
        column(union, b"", IntegerType(), 0, required=False)


NUMBERS = {"type": "array", "items": "int"}
NUMBER_LIST = ListType(2, IntegerType(), True)


@pytest.mark.parametrize(
    "blocks",
    [
        varint(3) + b"\2\4\6" + b"\0",
        varint(1) + b"\2" + varint(2) + b"\4\6" + b"\0",
        varint(-3) + varint(3) + b"\2\4\6" + b"\0",
        varint(-1) + varint(1) + b"\2" + varint(2) + b"\4\6" + b"\0",
    ],
)
def test_a_list_may_come_in_blocks_that_say_their_size(blocks: bytes) -> None:
    schema = record((1, "l", NUMBERS), (2, "after", "int"))
    data = container(schema, [(2, (blocks + varint(9)) * 2)])
    after = NestedField(2, "after", IntegerType(), True)
    assert read(data, Schema(NestedField(1, "l", NUMBER_LIST, True), after)) == (
        [{"l": [1, 2, 3], "after": 9}] * 2
    )
    assert read(data, Schema(after)) == [{"after": 9}] * 2


@pytest.mark.parametrize("size", [2, 4])
def test_a_block_of_items_of_another_size_is_refused(size: int) -> None:
    contents = varint(-3) + varint(size) + b"\2\4\6" + b"\0" * 3
    with pytest.raises(FormatError, match="another size"):
        column(NUMBERS, contents, NUMBER_LIST)


def test_maps_with_keys_that_are_not_strings() -> None:
    pairs = {
        "type": "array",
        "logicalType": "map",
        "items": record((2, "key", "int"), (3, "value", ["null", "string"])) | {"name": "k2_v3"},
    }
    rows = [{"m": [{"key": n, "value": None if n % 2 else str(n)} for n in range(count)]}
            for count in range(5)]  # fmt: skip
    schema = Schema(NestedField(1, "m", MapType(2, IntegerType(), 3, StringType(), False), True))
    expected = [{"m": [(pair["key"], pair["value"]) for pair in row["m"]]} for row in rows]
    assert read(written(record((1, "m", pairs)), rows), schema) == expected


def test_a_null_as_the_key_of_a_map_is_refused() -> None:
    pairs = {
        "type": "array",
        "logicalType": "map",
        "items": record((2, "key", ["null", "int"]), (3, "value", "int")) | {"name": "k2_v3"},
    }
    wanted = MapType(2, IntegerType(), 3, IntegerType(), True)
    with pytest.raises(FormatError, match=r"c\.key: null"):
        column(pairs, varint(1) + varint(0) + varint(5) + b"\0", wanted)


# -- Arrow's side


def everything() -> tuple[dict[str, Any], Schema]:
    """One column of each type, and some inside others."""
    fields: list[tuple[int | None, str, object]] = []
    table = []
    for n, (kind, _, wanted, _) in enumerate(TYPES, 1):
        text = json.dumps(kind).replace("fixed_", f"f{n}_").replace("suit", f"suit{n}")
        fields.append((n, f"c{n}", ["null", json.loads(text)]))
        table.append(NestedField(n, f"c{n}", wanted))
    return record(*fields), Schema(*table)


def test_the_arrow_types_are_those_of_pyiceberg() -> None:
    avro_schema, schema = everything()
    (batch,) = read_avro(io.BytesIO(container(avro_schema, [(1, b"\0" * len(TYPES))])), schema)
    assert batch.schema == schema_to_pyarrow(schema, include_field_ids=False)
    (batch,) = read_avro(io.BytesIO(written(PEOPLE, ROWS)), PEOPLE_TABLE)
    assert batch.schema == schema_to_pyarrow(PEOPLE_TABLE, include_field_ids=False)
    both = pa.concat_tables([pa.Table.from_batches([batch]), batch.schema.empty_table()])
    assert both.num_rows == 50


PEOPLE_TABLE = Schema(
    NestedField(1, "id", LongType(), True),
    NestedField(2, "name", StringType()),
    NestedField(3, "tags", ListType(4, StringType(), True), True),
    NestedField(
        5,
        "place",
        StructType(
            NestedField(6, "x", DoubleType(), True),
            NestedField(7, "y", DoubleType()),
            NestedField(8, "label", StringType(), True),
        ),
    ),
)


@pytest.mark.parametrize("batch_size", [1, 7, 49, 50, 51, 1000])
@pytest.mark.parametrize("interval", [1, 100, 16000])
def test_batches_have_as_many_rows_as_asked_for(batch_size: int, interval: int) -> None:
    file = AvroFile(io.BytesIO(written(PEOPLE, ROWS, interval=interval)))
    got = list(file.read(PEOPLE_TABLE, batch_size=batch_size))
    full, rest = divmod(50, batch_size)
    assert [batch.num_rows for _, batch in got] == [batch_size] * full + [rest] * bool(rest)
    assert [position for position, _ in got] == list(range(0, 50, batch_size))
    assert [row for _, batch in got for row in batch.to_pylist()] == ROWS


def test_a_batch_of_wide_rows_ends_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(avro_files, "BATCH_SIZE", 100_000)
    rows = [{"s": "x" * 1000} for _ in range(300)]
    data = written(record((1, "s", "string")), rows, interval=1 << 20)
    batches = list(read_avro(io.BytesIO(data), Schema(NestedField(1, "s", StringType(), True))))
    assert [batch.num_rows for batch in batches] == [128, 128, 44]


def test_batches_outlive_what_made_them() -> None:
    batches = list(read_avro(io.BytesIO(written(PEOPLE, ROWS)), PEOPLE_TABLE, batch_size=3))
    assert [row for batch in batches for row in batch.to_pylist()] == ROWS


def test_a_file_without_rows() -> None:
    assert read(written(PEOPLE, []), PEOPLE_TABLE) == []
    assert read(container(PEOPLE, [(0, b""), (0, b"")]), PEOPLE_TABLE) == []


# -- codecs


@pytest.mark.parametrize("codec", CODECS)
def test_each_codec(codec: str) -> None:
    data = written(PEOPLE, ROWS * 20, codec, interval=2000)
    assert AvroFile(io.BytesIO(data)).codec == codec
    assert read(data, PEOPLE_TABLE) == ROWS * 20


@pytest.mark.parametrize("codec", CODECS[1:])
def test_damaged_compression_is_refused(codec: str) -> None:
    data = written(record((1, "s", "bytes")), [{"s": bytes(range(256)) * 8}], codec)
    schema = Schema(NestedField(1, "s", BinaryType(), True))
    begin = data.index(SYNC) + 16
    expected = read(data, schema)
    for at in range(begin, len(data)):
        changed = bytearray(data)
        changed[at] ^= 0x41
        try:
            rows = read(bytes(changed), schema)
        except Ags1Error:
            continue
        if codec == "snappy":
            assert rows == expected


@pytest.mark.parametrize("codec", CODECS[1:])
def test_a_block_may_not_grow_past_the_limit(codec: str) -> None:
    data = written(record((1, "s", "bytes")), [{"s": bytes(1 << 20)}], codec)
    schema = Schema(NestedField(1, "s", BinaryType(), True))
    with pytest.raises(FormatError, match="more than 1048576 bytes"):
        list(AvroFile(io.BytesIO(data), max_block_size=1 << 20).read(schema))
    whole = AvroFile(io.BytesIO(data), max_block_size=(1 << 20) + 4)
    assert sum(batch.num_rows for _, batch in whole.read(schema)) == 1


def test_snappy_claims_are_not_believed() -> None:
    contents = b"\xff\xff\xff\x7f" + b"\0" * 40
    contents += zlib.crc32(b"").to_bytes(4, "big")
    data = container(record((1, "s", "bytes")), [(1, contents)], "snappy")
    with pytest.raises(FormatError, match="snappy"):
        read(data, Schema(NestedField(1, "s", BinaryType(), True)))


def test_an_unknown_codec_is_named() -> None:
    with pytest.raises(FormatError, match="'lz4'"):
        AvroFile(io.BytesIO(container(PEOPLE, [], "lz4")))


# -- splits and threads

MANY = [{"id": n, "s": f"row {n} " * (n % 17)} for n in range(3000)]
MANY_AVRO = record((1, "id", "long"), (2, "s", "string"))
MANY_TABLE = Schema(NestedField(1, "id", LongType(), True), NestedField(2, "s", StringType(), True))


class Ranged(io.BytesIO):
    """A source that threads may share."""

    def pread(self, offset: int, size: int, /) -> bytes:
        return self.getvalue()[offset : offset + size]


@pytest.mark.parametrize("count", range(1, 21))
def test_splits_that_adjoin_have_each_row_once(count: int) -> None:
    data = written(MANY_AVRO, MANY[:600], interval=1000)
    file = AvroFile(io.BytesIO(data))
    splits = plan_splits(io.BytesIO(data), count)
    assert len(splits) == count
    assert sum(length for _, length in splits) == len(data)
    rows = []
    for split in splits:
        for position, batch in file.read(MANY_TABLE, split=split, batch_size=20):
            assert position == len(rows)
            rows += batch.to_pylist()
    assert rows == MANY[:600]


@pytest.mark.parametrize("chunk_size", [1 << 20, 50, 7])
def test_a_split_has_the_blocks_whose_marker_begins_in_it(
    chunk_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(avro_container, "_CHUNK_SIZE", chunk_size)
    schema = record((1, "n", "int"))
    data = container(schema, [(1, varint(n)) for n in range(4)])
    table = Schema(NestedField(1, "n", IntegerType(), True))
    markers = [at for at in range(len(data)) if data.startswith(SYNC, at)]
    for start in range(len(data)):
        for length in (1, 19, 20, 40):
            expected = [n for n in range(4) if start <= markers[n] < start + length]
            rows = [row["n"] for row in read(data, table, split=(start, length))]
            assert rows == expected, (start, length)


@pytest.mark.parametrize("split", [(-1, 5), (5, -1)])
def test_no_range_of_bytes_is_no_split(split: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="range"):
        read(written(PEOPLE, ROWS), PEOPLE_TABLE, split=split)


@pytest.mark.parametrize("source", [Ranged, io.BytesIO])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_keep_the_order(
    source: type[io.BytesIO], threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(avro_files, "_MIN_PIECE_SIZE", 1000)
    data = written(MANY_AVRO, MANY, interval=700)
    rows: list[Any] = []
    file = AvroFile(source(data))
    for position, batch in file.read(MANY_TABLE, batch_size=50, threads=threads):
        assert position == len(rows)
        rows += batch.to_pylist()
    assert rows == MANY


def test_threads_hand_on_what_one_of_them_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(avro_files, "_MIN_PIECE_SIZE", 1000)
    data = bytearray(written(MANY_AVRO, MANY, interval=700))
    data[data.rindex(SYNC, 0, len(data) - 1000)] ^= 1
    with pytest.raises(FormatError, match="marker"):
        list(read_avro(Ranged(bytes(data)), MANY_TABLE, threads=3))


def test_threads_do_not_run_far_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(avro_files, "_MIN_PIECE_SIZE", 1000)
    monkeypatch.setattr(avro_container, "_CHUNK_SIZE", 500)
    asked: list[int] = []

    class Counted(Ranged):
        def pread(self, offset: int, size: int, /) -> bytes:
            asked.append(offset)
            return super().pread(offset, size)

    data = written(MANY_AVRO, MANY, interval=700)
    batches = read_avro(Counted(data), MANY_TABLE, threads=2, batch_size=1)
    assert next(batches).to_pylist() == MANY[:1]
    time.sleep(0.2)
    # Two threads with a piece each, which is a sixteenth at most, and one that waits.
    assert max(asked) < len(data) / 4
    assert [row for batch in batches for row in batch.to_pylist()] == MANY[1:]


def test_a_caller_may_stop_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(avro_files, "_MIN_PIECE_SIZE", 1000)
    data = written(MANY_AVRO, MANY, interval=700)
    batches = read_avro(Ranged(data), MANY_TABLE, threads=3, batch_size=10)
    assert next(batches).to_pylist() == MANY[:10]
    batches.close()  # type: ignore[attr-defined]


def test_blocks_larger_than_what_is_read_at_once() -> None:
    rows = [{"id": n, "s": chr(97 + n) * 1_500_000} for n in range(5)]
    data = written(MANY_AVRO, rows, interval=1)
    assert read(data, MANY_TABLE) == rows
    assert [row["id"] for split in plan_splits(io.BytesIO(data), 9)
            for row in read(data, MANY_TABLE, split=split)] == list(range(5))  # fmt: skip


def test_any_seekable_source_will_do(tmp_path: Path) -> None:
    path = tmp_path / "a.avro"
    path.write_bytes(written(PEOPLE, ROWS))
    openers: list[Any] = [open, io.FileIO, pa.OSFile]
    for opener in openers:
        with opener(str(path), "rb") as source:
            source.seek(7)
            batches = list(read_avro(source, PEOPLE_TABLE))
            assert [row for batch in batches for row in batch.to_pylist()] == ROWS


def test_the_file_is_named_in_errors(tmp_path: Path) -> None:
    path = tmp_path / "a.avro"
    path.write_bytes(written(PEOPLE, ROWS)[:-1])
    with open(path, "rb") as source, pytest.raises(TruncatedError, match=r"a\.avro: the file ends"):
        list(read_avro(source, PEOPLE_TABLE))


# -- random tables, against fastavro


class Numbering:
    def __init__(self) -> None:
        self.last = 0

    def next(self) -> int:
        self.last += 1
        return self.last


LEAVES: dict[str, tuple[object, IcebergType, st.SearchStrategy[Any]]] = {
    "boolean": ("boolean", BooleanType(), st.booleans()),
    "int": ("int", IntegerType(), st.integers(-(2**31), 2**31 - 1)),
    "long": ("long", LongType(), st.integers(-(2**63), 2**63 - 1)),
    "float": ("float", FloatType(), st.floats(width=32, allow_nan=False)),
    "double": ("double", DoubleType(), st.floats(allow_nan=False)),
    "bytes": ("bytes", BinaryType(), st.binary(max_size=40)),
    "string": ("string", StringType(), st.text(max_size=40)),
    "enum": (ENUM, StringType(), st.sampled_from(ENUM["symbols"])),
    "fixed": (fixed(3), FixedType(3), st.binary(min_size=3, max_size=3)),
    "date": (logical("int", "date"), DateType(), st.dates()),
    "time": (logical("long", "time-micros"), TimeType(), st.times()),
    "timestamp": (
        logical("long", "timestamp-micros", **{"adjust-to-utc": True}),
        TimestamptzType(),
        st.datetimes(timezones=st.just(UTC)),
    ),
    "decimal": (
        logical("bytes", "decimal", precision=38, scale=3),
        DecimalType(38, 3),
        st.integers(1 - 10**38, 10**38 - 1).map(lambda n: Decimal(n).scaleb(-3, WIDE)),
    ),
    "small decimal": (
        fixed(5, name="decimal_11_2", logicalType="decimal", precision=11, scale=2),
        DecimalType(11, 2),
        st.integers(1 - 10**11, 10**11 - 1).map(lambda n: Decimal(n).scaleb(-2, WIDE)),
    ),
}  # fmt: skip


@st.composite
def columns(
    draw: st.DrawFn, numbers: Numbering, depth: int = 0
) -> tuple[Any, IcebergType, bool, Any]:
    """Draw a type: Avro's, Iceberg's, whether it is required, and a strategy for its values, which
    are pairs of what fastavro writes and what is to be read."""
    kinds = [*LEAVES, *(["list", "map", "pairs", "record"] * 3 if depth < 3 else [])]
    kind = draw(st.sampled_from(kinds))
    if kind in LEAVES:
        text, iceberg, plain = LEAVES[kind]
        values = plain.map(lambda value: (value, value))
        text = json.loads(json.dumps(text))
        if isinstance(text, dict) and "name" in text:
            text["name"] += f"_{numbers.next()}"
    elif kind == "list":
        inside, wanted, required, items = draw(columns(numbers, depth + 1))
        number = numbers.next()
        text = {"type": "array", "items": inside, "element-id": number}
        iceberg = ListType(number, wanted, required)
        values = st.lists(items, max_size=4).map(
            lambda pairs: ([a for a, _ in pairs], [b for _, b in pairs])
        )
    elif kind == "map":
        inside, wanted, required, items = draw(columns(numbers, depth + 1))
        key, value = numbers.next(), numbers.next()
        text = {"type": "map", "values": inside, "key-id": key, "value-id": value}
        iceberg = MapType(key, StringType(), value, wanted, required)
        values = st.dictionaries(st.text(max_size=5), items, max_size=4).map(
            lambda pairs: (
                {k: a for k, (a, _) in pairs.items()},
                [(k, b) for k, (_, b) in pairs.items()],
            )
        )
    elif kind == "pairs":
        inside, wanted, required, items = draw(columns(numbers, depth + 1))
        key, value = numbers.next(), numbers.next()
        pair = record((key, "key", "long"), (value, "value", inside)) | {"name": f"k{key}_v{value}"}
        text = {"type": "array", "logicalType": "map", "items": pair}
        iceberg = MapType(key, LongType(), value, wanted, required)
        values = st.lists(st.tuples(st.integers(-9, 9), items), max_size=4).map(
            lambda pairs: (
                [{"key": k, "value": a} for k, (a, _) in pairs],
                [(k, b) for k, (_, b) in pairs],
            )
        )
    else:
        text, struct_type, values = draw(records(numbers, depth + 1))
        iceberg = struct_type
    if draw(st.booleans()):
        null_first = draw(st.booleans())
        union = ["null", text] if null_first else [text, "null"]
        return union, iceberg, False, st.one_of(st.just((None, None)), values)
    return text, iceberg, True, values


@st.composite
def records(draw: st.DrawFn, numbers: Numbering, depth: int = 0) -> tuple[Any, StructType, Any]:
    """Draw a record and, of its fields, those that are read, in any order."""
    drawn = [
        (numbers.next(), draw(columns(numbers, depth))) for _ in range(draw(st.integers(1, 4)))
    ]
    text = record(*((n, f"f{n}", kind) for n, (kind, *_) in drawn)) | {"name": f"r{numbers.next()}"}
    wanted = draw(st.permutations(drawn))[: draw(st.integers(1, len(drawn)))]
    fields = [NestedField(n, f"t{n}", iceberg, required) for n, (_, iceberg, required, _) in wanted]
    values = st.tuples(*(values for _, (*_, values) in drawn)).map(
        lambda row: (
            {f"f{n}": a for (n, _), (a, _) in zip(drawn, row, strict=True)},
            {
                f"t{n}": b
                for n, b in sorted(
                    ((n, b) for (n, _), (_, b) in zip(drawn, row, strict=True)
                     if n in [m for m, _ in wanted]),
                    key=lambda each: [m for m, _ in wanted].index(each[0]),
                )
            },
        )
    )  # fmt: skip
    return text, StructType(*fields), values


@st.composite
def tables(draw: st.DrawFn) -> tuple[Any, Schema, list[Any], list[Any]]:
    text, struct_type, values = draw(records(Numbering()))
    rows = draw(st.lists(values, max_size=12))
    return text, Schema(*struct_type.fields), [a for a, _ in rows], [b for _, b in rows]


@pytest.mark.parametrize("examples", [25, pytest.param(150, marks=pytest.mark.slow)])
def test_random_tables_come_back(examples: int) -> None:
    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
    @given(tables(), st.integers(1, 300), st.integers(1, 5), st.sampled_from(["null", "deflate"]))
    def check(
        table: tuple[Any, Schema, list[Any], list[Any]], interval: int, batch_size: int, codec: str
    ) -> None:
        text, schema, rows, expected = table
        data = written(text, rows, codec, interval)
        assert list(fastavro.reader(io.BytesIO(data)))[: len(rows)] == rows or "enum" in json.dumps(
            text
        )
        assert read(data, schema, batch_size=batch_size) == expected

    check()


# -- hostile bytes


def small_file(codec: str = "null") -> tuple[bytes, list[int]]:
    """A small file, and its rows' count at each end of a block."""
    data = written(PEOPLE, ROWS[:12], codec, interval=60)
    ends = [n + 16 for n in range(len(data)) if data.startswith(SYNC, n)]
    return data, ends


@pytest.mark.parametrize("codec", ["null", "deflate"])
def test_each_file_cut_short_raises_or_ends_at_a_block(codec: str) -> None:
    data, ends = small_file(codec)
    assert len(ends) > 4
    for size in range(len(data)):
        if size in ends:
            rows = read(data[:size], PEOPLE_TABLE)
            assert rows == ROWS[: len(rows)]
            with pytest.raises(TruncatedError, match="should have 12"):
                read(data[:size], PEOPLE_TABLE, record_count=12)
        else:
            with pytest.raises((TruncatedError, FormatError)):
                read(data[:size], PEOPLE_TABLE)


def test_a_file_of_another_count_of_rows_raises() -> None:
    data, _ = small_file()
    assert read(data, PEOPLE_TABLE, record_count=12) == ROWS[:12]
    with pytest.raises(FormatError, match="should have 11"):
        read(data, PEOPLE_TABLE, record_count=11)


@pytest.mark.slow_variants("255")
@pytest.mark.parametrize("flip", [0x01, 0x80, 0xFF])
def test_each_byte_changed_gives_fastavros_rows_or_an_error(flip: int) -> None:
    data, ends = small_file()
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= flip
        try:
            rows = read(bytes(changed), PEOPLE_TABLE)
        except Ags1Error:
            continue
        # In the header it may be a field's id or a default: there is nothing to compare with.
        if at >= ends[0]:
            theirs = list(fastavro.reader(io.BytesIO(bytes(changed))))
            assert repr(rows) == repr(theirs), at


@pytest.mark.parametrize("examples", [40, pytest.param(300, marks=pytest.mark.slow)])
def test_random_bytes_give_fastavros_rows_or_an_error(examples: int) -> None:
    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.data(), st.binary(max_size=60), st.integers(0, 4))
    def check(data: st.DataObject, contents: bytes, rows: int) -> None:
        text, struct_type, _ = data.draw(records(Numbering()))
        file = container(text, [(rows, contents)])
        try:
            got = read(file, Schema(*struct_type.fields))
        except FormatError:
            return
        # Who reads them all has read the same number of bytes.
        stream = io.BytesIO(contents)
        for row in got:
            try:
                theirs = fastavro.schemaless_reader(stream, text, None)
            except (OverflowError, ValueError):
                # Python's dates and times end earlier.
                return
            for field in text["fields"]:
                ours = row.get("t" + field["name"][1:])
                if isinstance(ours, (int, float, str, bytes)) and not isinstance(ours, bool):
                    assert repr(ours) == repr(theirs[field["name"]])
        assert not stream.read()

    check()


NUMBER_MAP = {"type": "map", "values": "int"}
NUMBER_MAP_TYPE = MapType(2, StringType(), 3, IntegerType(), True)
NOTHINGS = {"type": "array", "items": "null"}
NOTHING_LIST = ListType(2, UnknownType(), False)
DECIMAL = logical("bytes", "decimal", precision=38)

HOSTILE = [
    ("long", b"\xff" * 10 + b"\1", LongType(), "64 bits"),
    ("long", b"\xff" * 9 + b"\2", LongType(), "64 bits"),
    ("long", b"\xff" * 9, LongType(), "ends inside"),
    ("int", varint(2**31), IntegerType(), "does not fit"),
    ("int", varint(-(2**31) - 1), LongType(), "does not fit"),
    ("boolean", b"\2", BooleanType(), "boolean"),
    (logical("long", "time-micros"), varint(-1), TimeType(), "does not fit"),
    (logical("long", "time-micros"), varint(86_400_000_000), TimeType(), "does not fit"),
    (logical("int", "time-millis"), varint(86_400_000), TimeType(), "does not fit"),
    ("string", varint(-1), StringType(), "negative"),
    ("string", varint(2**62) + b"x", StringType(), "ends inside"),
    ("bytes", varint(2), BinaryType(), "ends inside"),
    ("double", b"\0" * 7, DoubleType(), "ends inside"),
    (fixed(3), b"ab", FixedType(3), "ends inside"),
    (ENUM, varint(3), StringType(), "symbol"),
    (ENUM, varint(-1), StringType(), "symbol"),
    (["null", "int"], varint(2), IntegerType(), "branch"),
    (["null", "int"], varint(-1), IntegerType(), "branch"),
    (["int"], varint(1), IntegerType(), "branch"),
    (NUMBERS, varint(2**62) + b"\2", NUMBER_LIST, "ends inside"),
    (NUMBERS, varint(-(2**63)) + b"\2", NUMBER_LIST, "does not fit"),
    (NUMBERS, varint(-1) + varint(-1), NUMBER_LIST, "negative"),
    (NUMBERS, varint(-1) + varint(9), NUMBER_LIST, "ends inside"),
    (NUMBER_MAP, varint(1) + varint(5), NUMBER_MAP_TYPE, "ends inside"),
    (NOTHINGS, varint(2**40) + b"\0", NOTHING_LIST, "no bytes"),
    (NOTHINGS, varint(-(2**40)) + b"\0\0", NOTHING_LIST, "no bytes"),
    (logical("bytes", "decimal", precision=2), string(b"\x64"), DecimalType(2, 0), "digits"),
    (logical("bytes", "decimal", precision=2), string(b"\x9c"), DecimalType(2, 0), "digits"),
    (DECIMAL, string(b"\x7f" * 17), DecimalType(38, 0), "digits"),
    (DECIMAL, string(b"\xff" + b"\x7f" * 16), DecimalType(38, 0), "digits"),
    (DECIMAL, string(b"\xff" + bytes(15) + b"\x01"), DecimalType(38, 0), "digits"),
    (DECIMAL, string(b"\x00" + b"\xff" * 16), DecimalType(38, 0), "digits"),
    (DECIMAL, string(b""), DecimalType(38, 0), "digits"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "contents", "wanted", "message"), HOSTILE)
def test_hostile_values_are_refused(
    kind: object, contents: bytes, wanted: IcebergType, message: str
) -> None:
    with pytest.raises(FormatError, match=message):
        column(kind, contents, wanted)


def test_items_of_no_bytes_are_counted_over_a_batch_s_blocks() -> None:
    # Missing values take room in Arrow, of the types that tables have a bit an item at least.
    wanted = Schema(NestedField(1, "c", ListType(2, BooleanType(), False), required=True))
    block = (1, varint(1 << 19) + b"\0")
    data = container(record((1, "c", NOTHINGS)), [block] * 4)
    batches = list(read_avro(io.BytesIO(data), wanted, batch_size=20))
    assert [batch.num_rows for batch in batches] == [4]
    block = (1, varint((1 << 23) + 1) + b"\0")
    data = container(record((1, "c", NOTHINGS)), [block] * 2)
    with pytest.raises(FormatError, match="no bytes"):
        list(read_avro(io.BytesIO(data), wanted, batch_size=20))
    assert len(list(read_avro(io.BytesIO(data), wanted, batch_size=1))) == 2


def test_rows_beyond_the_count_are_not_read_on() -> None:
    # The second block is broken: it is not come to.
    data = container(record((1, "c", "int")), [(10, varint(1) * 10), (1 << 40, b"\xff")])
    wanted = Schema(NestedField(1, "c", IntegerType(), required=True))
    with pytest.raises(FormatError, match="should have 3"):
        list(read_avro(io.BytesIO(data), wanted, batch_size=5, record_count=3))


@pytest.mark.slow_variants("record")
@pytest.mark.parametrize("kind", ["null", pytest.param(record() | {"name": "r"}, id="record")])
def test_rows_of_no_bytes_cannot_be_claimed_without_end(kind: object) -> None:
    data = container(record((1, "c", kind)), [(2**50, b"")])
    with pytest.raises(FormatError, match="no bytes"):
        list(read_avro(io.BytesIO(data), Schema(), batch_size=1 << 20))


@pytest.mark.parametrize(
    "text",
    [b"\x80", b"\xc0\x80", b"\xc1\xbf", b"\xe0\x80\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80",
     b"\xf5\x80\x80\x80", b"\xc3", b"\xe2\x82", b"\xf0\x9f\x90", b"\xff", b"\xe2\x28\xa1"],
)  # fmt: skip
@pytest.mark.parametrize("before", [b"", b"a" * 31, b"a" * 70, "é".encode() * 40])
def test_strings_have_to_be_utf8(text: bytes, before: bytes) -> None:
    with pytest.raises(UnicodeDecodeError):
        (before + text).decode()
    for after in (b"", b"b" * 40):
        with pytest.raises(FormatError, match="UTF-8"):
            column("string", string(before + text + after), StringType())


@pytest.mark.parametrize("examples", [60, pytest.param(500, marks=pytest.mark.slow)])
def test_strings_are_utf8_where_python_says_so(examples: int) -> None:
    @settings(max_examples=examples, deadline=None)
    @given(st.binary(max_size=80) | st.text(max_size=60).map(str.encode))
    def check(text: bytes) -> None:
        try:
            expected = text.decode()
        except UnicodeDecodeError:
            with pytest.raises(FormatError, match="UTF-8"):
                column("string", string(text), StringType())
        else:
            assert column("string", string(text), StringType()) == [expected]

    check()


def test_bytes_after_the_last_row_are_refused() -> None:
    for rows, contents in ((0, b"\0"), (1, b"\0\0")):
        with pytest.raises(FormatError, match="after its last row"):
            column("int", contents, IntegerType(), rows)


def nested(depth: int) -> object:
    kind: object = "int"
    for _ in range(depth):
        kind = {"type": "array", "items": kind}
    return kind


def doubling(levels: int) -> object:
    """A schema that is short, and expands to 2 to the power of ``levels`` fields."""
    kind: object = "int"
    for level in range(levels):
        kind = record(
            (None, "a", kind), (None, "b", kind if isinstance(kind, str) else f"r{level}")
        )
        kind["name"] = f"r{level + 1}"
    return record((1, "c", kind))


BAD_SCHEMAS = [
    b"",
    b"nonsense",
    b'"int"',
    b"[" * 100_000,
    b"{}",
    b"null",
    b"[1, 2]",
    json.dumps({"type": "record", "name": "t"}).encode(),
    json.dumps({"type": "record", "fields": []}).encode(),
    json.dumps({"type": "record", "name": "t", "fields": [3]}).encode(),
    json.dumps(record((1, "c", "no such type"))).encode(),
    json.dumps(record((1, "c", {"type": "fixed", "name": "f", "size": -1}))).encode(),
    json.dumps(record((1, "c", {"type": "fixed", "name": "f", "size": True}))).encode(),
    json.dumps(record((1, "c", {"type": "enum", "name": "e"}))).encode(),
    json.dumps(record((1, "c", {"type": "enum", "name": "e", "symbols": ["\ud800"]}))).encode(),
    json.dumps(record((1, "c", {"type": "enum", "name": "e", "symbols": [""]}))).encode(),
    json.dumps(record((1, "c", {"type": "array"}))).encode(),
    json.dumps(record((1, "c", {"type": "map"}))).encode(),
    json.dumps(record((1, "c", logical("array", "map", items="int")))).encode(),
    json.dumps(record((1, "c", logical("bytes", "decimal", precision="9")))).encode(),
    json.dumps(record((1, "c", {"type": {"type": {"type": {}}}}))).encode(),
    json.dumps(record(("1", "c", "int"))).encode(),
    json.dumps(record((1.5, "c", "int"))).encode(),
    json.dumps(record((1, "c\n", "int"))).encode(),
]  # fmt: skip


@pytest.mark.parametrize("text", BAD_SCHEMAS, ids=range(len(BAD_SCHEMAS)))
def test_bad_schemas_are_refused(text: bytes) -> None:
    with pytest.raises(FormatError):
        read(container(text, []), Schema(NestedField(1, "c", DecimalType(9, 0))))


def test_schemas_without_end_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(avro_projection, "MAX_STEPS", 5000)
    other = Schema(NestedField(9, "other", IntegerType()))
    assert read(container(record((1, "c", nested(60))), [(1, b"\0")]), other) == [{"other": None}]
    for kind, message in (
        (nested(70), "nested more than 64"),
        (["null", "table"], "holds itself"),
        ({"type": "array", "items": "table"}, "holds itself"),
    ):
        with pytest.raises(FormatError, match=message):
            read(container(record((1, "c", kind)), []), other)
    with pytest.raises(FormatError, match="too large"):
        read(container(doubling(40), []), other)


@pytest.mark.slow
def test_a_small_schema_that_converts_to_a_huge_one_is_refused() -> None:
    without_ids: Any = doubling(40)
    del without_ids["fields"][0]["field-id"]
    with pytest.raises(FormatError, match="too large"):
        iceberg_schema_of_avro(without_ids)


def foreign_record(name: str, *types: Any) -> dict[str, Any]:
    fields = [{"name": f"x{n}", "type": kind} for n, kind in enumerate(types)]
    return {"type": "record", "name": name, "fields": fields}


@pytest.mark.parametrize(
    "kind",
    [
        {"type": "fixed", "name": "f", "size": -1},
        {"type": "fixed", "name": "f", "size": 1 << 31},
        {"type": "bytes", "logicalType": "decimal", "precision": 39},
        {"type": "bytes", "logicalType": "decimal", "precision": 0},
        {"type": "bytes", "logicalType": "decimal", "precision": math.inf},
    ],
)
def test_impossible_sizes_and_precisions_of_a_foreign_schema_are_refused(kind: Any) -> None:
    with pytest.raises(FormatError, match=r"x0: the Avro type has no (size|precision)"):
        iceberg_schema_of_avro(foreign_record("table", kind))


def test_a_foreign_schema_with_one_name_twice_is_refused() -> None:
    twice = foreign_record("table", "int", "int")
    twice["fields"][1]["name"] = "x0"
    with pytest.raises(FormatError, match="two columns of one name"):
        iceberg_schema_of_avro(twice)


def test_named_types_are_found_in_their_namespaces() -> None:
    inner = record((2, "x", "int")) | {"name": "inner", "namespace": "a.b"}
    outer = record(
        (1, "first", inner), (3, "second", "a.b.inner"), (4, "third", {"type": "a.b.inner"})
    )
    table = Schema(
        *(
            NestedField(n, f"c{n}", StructType(NestedField(2, "x", IntegerType(), True)), True)
            for n in (4, 3, 1)
        )
    )
    expected = [{"c4": {"x": 3}, "c3": {"x": 2}, "c1": {"x": 1}}]
    assert read(container(outer, [(1, b"\2\4\6")]), table) == expected


@pytest.mark.parametrize(
    "data",
    [b"", b"O", b"Obj\x02" + b"\0" * 40, b"PAR1" * 20, b"Obj\x01" + varint(2**60),
     b"Obj\x01\0" + SYNC,
     b"Obj\x01" + varint(1) + varint(-1) + b"\0" * 30,
     b"Obj\x01" + varint(1) + varint(2**40) + b"\0" * 30,
     b"Obj\x01" + varint(1) + string(b"\xff") + string(b"") + b"\0" + SYNC,
     b"Obj\x01" + b"\xff" * 20],
)  # fmt: skip
def test_bad_headers_are_refused(data: bytes) -> None:
    with pytest.raises((FormatError, TruncatedError)):
        AvroFile(io.BytesIO(data))


@pytest.mark.parametrize(
    "block",
    [varint(-1) + varint(0) + SYNC, varint(1) + varint(-1) + SYNC, varint(1) + varint(2**62) + SYNC,
     varint(0) + varint(0) + bytes(16), b"\xff" * 30, varint(0)],
)  # fmt: skip
def test_bad_blocks_are_refused(block: bytes) -> None:
    with pytest.raises((FormatError, TruncatedError)):
        read(container(PEOPLE, []) + block, PEOPLE_TABLE)


def test_a_header_longer_than_the_first_read() -> None:
    schema = record((1, "id", "long")) | {"doc": "x" * 700_000}
    data = written(schema, [{"id": 5}])
    assert read(data, Schema(NestedField(1, "id", LongType(), True))) == [{"id": 5}]
    for size in (65536, 524288, 600_000):
        with pytest.raises(TruncatedError, match="header"):
            AvroFile(io.BytesIO(data[:size]))


def test_a_source_that_ends_before_its_size() -> None:
    class Shrunk(io.BytesIO):
        def pread(self, offset: int, size: int, /) -> bytes:
            return self.getvalue()[offset : min(offset + size, 900)]

    with pytest.raises(TruncatedError, match="before its size"):
        list(read_avro(Shrunk(written(PEOPLE, ROWS)), PEOPLE_TABLE))


# -- the decoder itself


@pytest.mark.parametrize(
    ("program", "columns"),
    [
        ([], []),
        ([Instruction(Step.INT, "c", 1, 0)], []),
        ([Instruction(Step.INT, "c", 2)], []),
        ([Instruction(Step.RECORD, "c", 0)], []),
        ([Instruction(Step.OPTION, "c", 1)], []),
        ([Instruction(Step.OPTION, "c", 2, null_branch=2), Instruction(Step.INT, "c", 2)], []),
        ([Instruction(Step.SCALED, "c", 1, factor=0)], []),
        ([Instruction(Step.SCALED, "c", 1, below=-1)], []),
        ([Instruction(Step.FIXED, "c", 1, size=-1)], []),
        ([Instruction(Step.DECIMAL_FIXED, "c", 1, size=-1, digits=9)], []),
        ([Instruction(Step.ENUM, "c", 1, symbol_count=1)], []),
        ([Instruction(Step.ENUM, "c", 1, first_symbol=-1)], []),
        ([Instruction(Step.DECIMAL_BYTES, "c", 1, digits=39)], []),
        ([Instruction(Step.INT, "c", 1, 0)], [ColumnLayout(Layout.WIDE, 2, 4)]),
    ],
)
def test_programs_that_leave_their_bounds_are_refused(program: Any, columns: Any) -> None:
    with pytest.raises(ValueError, match=r"instruction|column"):
        Decoder(program, columns, [])


def test_a_decoder_that_failed_is_of_no_more_use() -> None:
    decoder = Decoder([Instruction(Step.INT, "c", 1, 0)], [ColumnLayout(Layout.WIDE, 1, 4)], [])
    decoder.begin(b"\xff", 1)
    with pytest.raises(ValueError, match="end"):
        decoder.begin(b"\0", 1)
    with pytest.raises(FormatError):
        decoder.decode(1, 1)
    for use in (lambda: decoder.begin(b"\0", 1), lambda: decoder.decode(1, 1), decoder.take):
        with pytest.raises(ValueError, match=r"failed|end"):
            use()


# -- Java's files


@pytest.mark.skipif(not JAVA_FILES, reason="no data files beside the table's metadata")
@pytest.mark.parametrize("path", JAVA_FILES, ids=lambda path: path.name[:20])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_file_that_java_wrote_and_encrypted(path: Path, threads: int) -> None:
    known = json.loads(
        (JAVA_TABLE.parent / "read_by_spark" / JAVA_TABLE.name / "files.json").read_text()
    )
    (entry,) = [file for file in known if file["file_path"].endswith(path.name)]
    key = ags1.KeyMetadata.from_bytes(bytes.fromhex(entry["km"]))
    schema = Schema(
        NestedField(3, "payload", StringType(), True),
        NestedField(1, "id", LongType(), True),
        NestedField(2, "p", StringType(), True),
    )
    half = path.parent.name.partition("=")[2]
    with ags1.open(path, "rb", key) as source:
        rows = [
            row
            for batch in read_avro(source, schema, threads=threads, record_count=3300)
            for row in batch.to_pylist()
        ]
        splits = plan_splits(source, 7)
        pieces = [batch for split in splits for batch in read_avro(source, schema, split=split)]
    assert [row for batch in pieces for row in batch.to_pylist()] == rows
    assert len({row["id"] for row in rows}) == 3300
    for row in rows:
        digest = hashlib.md5(str(row["id"]).encode()).hexdigest()
        assert row["p"] == half == ("odd" if row["id"] % 2 else "even")
        assert row["payload"] == digest * 32

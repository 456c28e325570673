"""Every type that we write, in Parquet and Avro: Java reads the same values, and the metrics of our
files are those that Java has for the same rows in a table of its own.

Java has no metrics of Avro files; ours are compared with those of its Parquet files.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from pyiceberg.expressions import EqualTo
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    UUIDType,
)

from ags1.iceberg import EncryptedTable, open_table
from ags1.iceberg.read.records import ContentFile, read_entries
from ags1.kms import KmsClient

from .java_tables import JavaTables
from .reading import check_equal, opened
from .spark import SparkTables, path_of
from .writing import Shared

pytestmark = pytest.mark.interop

UTC = timezone.utc
NAN, INF = math.nan, math.inf
# Batches of rows, each for a file: three of values at the edges, one of short ones, one of nulls.
VALUES: dict[str, list[list[Any]]] = {
    "boolean": [[True, False, None], [False] * 3, [True] * 3, [None, True, True]],
    "int": [[2**31 - 1, -(2**31), None], [0, -1, 1], [127, 128, -129], [5, 5, 5]],
    "long": [[2**63 - 1, -(2**63), None], [0, -1, 1], [2**40, -(2**40), 0], [5, 5, 5]],
    "float": [[INF, -INF, None], [0.0, -0.0, NAN], [NAN, NAN, NAN], [1.5, NAN, -2.25]],
    "double": [[1e308, -5e-324, None], [-0.0, -0.0, NAN], [NAN, NAN, None], [INF, 0.1, NAN]],
    "date": [
        [date(1, 1, 1), date(9999, 12, 31), None],
        [date(1970, 1, 1), date(1969, 12, 31), date(2024, 2, 29)],
        [date(1900, 1, 1)] * 3,
        [date(2026, 1, 1), None, None],
    ],
    "time": [
        [time(0, 0), time(23, 59, 59, 999_999), None],
        [time(12, 0, 0, 1), time(1, 2, 3), time(4, 5)],
        [time(6, 0)] * 3,
        [None, None, time(7, 8, 9)],
    ],
    "timestamp": [
        [datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999_999), None],
        [datetime(1969, 12, 31, 23, 59, 59, 999_999), datetime(1970, 1, 1), None],
        [datetime(2026, 1, 1)] * 3,
        [datetime(2024, 2, 29, 1, 2, 3, 4), None, None],
    ],
    "timestamptz": [
        [datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC), None],
        [datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC), datetime(1970, 1, 1, tzinfo=UTC), None],
        [datetime(2026, 1, 1, tzinfo=UTC)] * 3,
        [datetime(2024, 2, 29, 1, 2, 3, 4, UTC), None, None],
    ],
    # In nanoseconds since 1970.
    "timestamp_ns": [[2**62, -(2**62), None], [0, -1, 1], [999, 1_000, 1_001], [7, None, 7]],
    "timestamptz_ns": [[2**62, -(2**62), None], [0, -1, 1], [999, 1_000, 1_001], [7, None, 7]],
    "string": [
        ["", "ü" * 17, None],
        ["\U0001f600" * 20, "a" * 16, "\ud7ff" * 17],
        ["\U0010ffff" * 17, "z", "ab\u0000"],
        ["x" * 5_000, "w" * 70_000, "y"],
    ],
    "uuid": [
        [UUID(int=0), UUID(int=2**128 - 1), None],
        [UUID(int=2**127), UUID(int=2**127 - 1), UUID(int=1)],
        [UUID("f79c3e09-677c-4bbd-a479-3f349cb785e7")] * 3,
        [None, UUID(int=5), None],
    ],
    "fixed[3]": [
        [b"\x00\x00\x00", b"\xff\xff\xff", None],
        [b"\x7f\x00\x01", b"\x80\x00\x00", b"abc"],
        [b"abc"] * 3,
        [None, b"abd", None],
    ],
    "binary": [
        [b"", b"\x80" * 17, None],
        [b"\xff" * 17, b"\x00", b"\x7f"],
        [b"a" * 15 + b"\xff\xff", b"b", b"c"],
        [b"x" * 5_000, b"w" * 70_000, b"y"],
    ],
    "decimal(9, 2)": [
        [Decimal("9999999.99"), Decimal("-9999999.99"), None],
        [Decimal("0.00"), Decimal("-0.01"), Decimal("1.28")],
        [Decimal("-1.28")] * 3,
        [Decimal("2.55"), None, Decimal("2.56")],
    ],
    "decimal(18, 4)": [
        [Decimal("99999999999999.9999"), Decimal("-99999999999999.9999"), None],
        [Decimal("0.0000"), Decimal("-0.0001"), Decimal("0.0128")],
        [Decimal("-0.0128")] * 3,
        [None, None, Decimal("0.0255")],
    ],
    "decimal(38, 10)": [
        [Decimal("9" * 28 + "." + "9" * 10), Decimal("-" + "9" * 28 + "." + "9" * 10), None],
        [Decimal("0.0000000001"), Decimal("-0.0000000001"), Decimal("0.0000000128")],
        [Decimal("-0.0000000128")] * 3,
        [None, Decimal("0.0000000255"), Decimal("-0.0000032769")],
    ],
}
BATCHES = [*range(4), None]


def batch(kind: str, number: int | None) -> list[Any]:
    return [None] * 3 if number is None else VALUES[kind][number]


@pytest.fixture
def shared(spark: SparkTables, kms: KmsClient, tmp_path: Path) -> Iterator[Shared]:
    made = Shared("sql", spark, kms, tmp_path)
    yield made
    made.close()


def create(shared: Shared, schema: Schema, file_format: str) -> EncryptedTable:
    table = shared.catalog.create_table(
        shared.new_name(),
        schema,
        properties={
            "format-version": "3",
            "encryption.key-id": "keyA",
            "write.format.default": file_format,
        },
    )
    assert isinstance(table, EncryptedTable)
    return table


def files_of(table: Table) -> list[ContentFile]:
    """Return the data files of appends in their order."""
    snapshot = table.current_snapshot()
    assert snapshot is not None
    found = [
        entry
        for manifest in snapshot.manifests(table.io)
        for entry in read_entries(manifest, table.io)
    ]
    return [
        entry.data_file for entry in sorted(found, key=lambda entry: entry.sequence_number or 0)
    ]


def check_metrics(ours: Table, theirs: Table) -> None:
    """Check that files of the same rows have the same metrics."""
    mine, others = files_of(ours), files_of(theirs)
    assert [file.record_count for file in mine] == [file.record_count for file in others]
    different = {}
    for number, (one, other) in enumerate(zip(mine, others, strict=True)):
        for name in METRICS:
            said, expected = (dict(getattr(file, name) or {}) for file in (one, other))
            for field_id, bound in expected.items():
                if isinstance(ours.schema().find_type(field_id), FloatType | DoubleType):
                    expected[field_id] = widened(name, bound)
            for field_id in said.keys() | expected.keys():
                if said.get(field_id) != expected.get(field_id):
                    column = ours.schema().find_column_name(field_id)
                    pair = said.get(field_id), expected.get(field_id)
                    different[number, column, name] = pair
    assert not different, different


def widened(name: str, metric: Any) -> Any:
    """Return a bound such as ours, which hold for zeros of both signs."""
    if not isinstance(metric, bytes) or any(metric[:-1]) or metric[-1] not in (0, 0x80):
        return metric
    return metric[:-1] + (b"\x80" if name == "lower_bounds" else b"\x00")


METRICS = (
    *("value_counts", "null_value_counts", "nan_value_counts"),
    *("lower_bounds", "upper_bounds"),
)


@pytest.mark.parametrize("file_format", ["parquet", "avro"])
def test_every_primitive_type(
    spark: SparkTables, shared: Shared, kms: KmsClient, tmp_path: Path, file_format: str
) -> None:
    java = JavaTables(spark)
    names = {kind: f"c{number}" for number, kind in enumerate(VALUES)}
    twin = java.create_plain({names[kind]: kind for kind in VALUES}, tmp_path / "twin")
    table = create(shared, Schema(*plain_table(twin).schema().fields), file_format)
    expected: list[list[str | None]] = []
    for number in BATCHES:
        columns = {names[kind]: batch(kind, number) for kind in VALUES}
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        java.append(
            twin,
            [{names[k]: as_json(k, row[names[k]]) for k in VALUES} for row in rows],
            "parquet",
        )
        table.append(pa.table({names[k]: as_arrow(k, columns[names[k]]) for k in VALUES}))
        expected += [[printed(kind, row[names[kind]]) for kind in VALUES] for row in rows]
    found = java.rows(java.open(path_of(table.metadata_location)))
    assert sorted(found, key=repr) == sorted(java.rows(twin), key=repr)
    assert sorted(found, key=repr) == sorted(expected, key=repr)
    check_metrics(table, plain_table(twin))


def plain_table(table: Any) -> Table:
    """Return what PyIceberg makes of a plain table of Java's."""
    table.refresh()
    return open_table(table.operations().current().metadataFileLocation())


def as_arrow(kind: str, values: list[Any]) -> pa.Array:
    if kind == "uuid":
        return pa.array([v and v.bytes for v in values], pa.uuid())
    fixed = {
        "int": pa.int32(),
        "float": pa.float32(),
        "timestamp_ns": pa.timestamp("ns"),
        "timestamptz_ns": pa.timestamp("ns", "UTC"),
        "timestamp": pa.timestamp("us"),
        "timestamptz": pa.timestamp("us", "UTC"),
        "time": pa.time64("us"),
        "date": pa.date32(),
        "boolean": pa.bool_(),
        "long": pa.int64(),
        "double": pa.float64(),
        "string": pa.string(),
        "binary": pa.binary(),
        "fixed[3]": pa.binary(3),
        "decimal(9, 2)": pa.decimal128(9, 2),
        "decimal(18, 4)": pa.decimal128(18, 4),
        "decimal(38, 10)": pa.decimal128(38, 10),
    }
    return pa.array(values, fixed[kind])


def as_json(kind: str, value: Any) -> Any:
    """Return a value as in the specification's JSON single-value serialization."""
    if kind.endswith("_ns") and value is not None:
        whole, rest = divmod(value, 1_000_000_000)
        moment = datetime(1970, 1, 1) + timedelta(seconds=whole)
        zone = "+00:00" if "tz" in kind else ""
        return f"{moment.isoformat()}.{rest:09}{zone}"
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, float):
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}.get(str(value), repr(value))
    return str(value) if isinstance(value, UUID | Decimal) else value


def printed(kind: str, value: Any) -> str | None:
    """Return a value as Java prints its own."""
    if value is None:
        return None
    if kind.startswith("time"):
        return java_time(as_json(kind, value))
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return java_number(value)
    return value.hex() if isinstance(value, bytes) else str(value)


def java_time(text: str) -> str:
    """Return a time as Java prints it: without seconds that are 0, a fraction in groups of 3."""
    text = text.replace("+00:00", "Z")
    zone = "Z" if text.endswith("Z") else ""
    whole, _, fraction = text.removesuffix("Z").partition(".")
    while fraction.endswith("000"):
        fraction = fraction[:-3]
    if not fraction and whole.endswith(":00") and whole.count(":") == 2:
        whole = whole[:-3]
    return whole + (f".{fraction}" if fraction else "") + zone


def java_number(value: float) -> str:
    names = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
    # Java knows this one by another name.
    found = names.get(str(value)) or repr(value).replace("5e-324", "4.9e-324")
    mantissa, e, exponent = found.partition("e")
    if e and "." not in mantissa:
        mantissa += ".0"
    return f"{mantissa}E{int(exponent)}" if e else found


NESTED = Schema(
    NestedField(1, "id", LongType()),
    NestedField(
        2,
        "s",
        StructType(
            NestedField(3, "x", DoubleType()),
            NestedField(
                4,
                "inner",
                StructType(
                    NestedField(5, "d", DateType()),
                    NestedField(6, "u", UUIDType()),
                    NestedField(7, "l", ListType(8, FloatType(), False)),
                ),
            ),
        ),
    ),
    NestedField(9, "l", ListType(10, ListType(11, TimestampType(), False), False)),
    NestedField(
        12,
        "ls",
        ListType(
            13,
            StructType(
                NestedField(14, "m", DecimalType(20, 3)), NestedField(15, "t", TimestamptzType())
            ),
            False,
        ),
    ),
    NestedField(16, "m", MapType(17, StringType(), 18, IntegerType(), False)),
    NestedField(
        19,
        "ms",
        MapType(
            20,
            DateType(),
            21,
            StructType(NestedField(22, "b", ListType(23, StringType(), False))),
            False,
        ),
    ),
)
NESTED_ARROW = pa.schema(
    [
        ("id", pa.int64()),
        (
            "s",
            pa.struct(
                [
                    ("x", pa.float64()),
                    (
                        "inner",
                        pa.struct(
                            [
                                ("d", pa.date32()),
                                ("u", pa.binary(16)),
                                ("l", pa.list_(pa.float32())),
                            ]
                        ),
                    ),
                ]
            ),
        ),
        ("l", pa.list_(pa.list_(pa.timestamp("us")))),
        (
            "ls",
            pa.list_(pa.struct([("m", pa.decimal128(20, 3)), ("t", pa.timestamp("us", "UTC"))])),
        ),
        ("m", pa.map_(pa.string(), pa.int32())),
        ("ms", pa.map_(pa.date32(), pa.struct([("b", pa.list_(pa.string()))]))),
    ]
)
DAY, MOMENT = date(1969, 12, 31), datetime(1969, 12, 31, 23, 59, 59, 999_999)
NESTED_ROWS: list[dict[str, Any]] = [
    {
        "id": 1,
        "s": {"x": NAN, "inner": {"d": DAY, "u": UUID(int=7).bytes, "l": [1.5, None, NAN]}},
        "l": [[MOMENT, None], None, []],
        "ls": [{"m": Decimal("-0.001"), "t": MOMENT.replace(tzinfo=UTC)}, None],
        "m": [("", None), ("k", -1)],
        "ms": [(DAY, {"b": ["", None]}), (date(2026, 1, 1), None)],
    },
    {"id": 2, "s": {"x": None, "inner": None}, "l": [], "ls": [], "m": [], "ms": []},
    {"id": 3, "s": None, "l": None, "ls": None, "m": None, "ms": None},
    {
        "id": 4,
        "s": {"x": -0.0, "inner": {"d": None, "u": None, "l": []}},
        "l": [[]],
        "ls": [{"m": None, "t": None}],
        "m": [("a", 2)],
        "ms": [(DAY, {"b": None})],
    },
]


@pytest.mark.parametrize("file_format", ["parquet", "avro"])
def test_nested_types(spark: SparkTables, shared: Shared, kms: KmsClient, file_format: str) -> None:
    table, twin = create(shared, NESTED, file_format), create(shared, NESTED, "parquet")
    batches = [NESTED_ROWS, NESTED_ROWS[1:3], NESTED_ROWS[2:3], NESTED_ROWS[3:]]
    for some in batches:
        table.append(pa.Table.from_pylist(some, NESTED_ARROW))
    name, twin_name = shared.shown(table), shared.shown(twin)
    for file in files_of(table):
        # One file of Spark's for each of ours, in our order.
        spark.sql(
            f"INSERT INTO {twin_name} SELECT /*+ COALESCE(1) */ * FROM {name} "
            f"WHERE _file = '{file.file_path}'"
        )
    theirs = opened(spark, twin_name, kms)
    check_equal(theirs.scan().to_arrow(), table.scan().to_arrow())
    check_metrics(table, theirs)
    # Maps and lists of structs are not for every reader: their JSON is compared.
    columns = ", ".join(f"to_json(struct({c.name})) AS {c.name}" for c in NESTED.fields)
    mine = spark.sql(f"SELECT {columns} FROM {name} ORDER BY id")
    assert mine == spark.sql(f"SELECT {columns} FROM {twin_name} ORDER BY id")


PARTITIONS = ("fixed[3]", "uuid", "decimal(9, 2)", "decimal(38, 10)", "binary")


def check_partitions(spark: SparkTables, name: str, table: EncryptedTable) -> None:
    """Check that both have the same files. Spark shows no UUIDs here: it expects text."""
    shown = ("p2", "p4", "p5", "p6")
    theirs = spark.sql(
        f"SELECT {', '.join(f'partition.{p} AS {p}' for p in shown)}, record_count, file_path "
        f"FROM {name}.files"
    )
    ours = [
        (*(file["partition"][p] for p in shown), file["record_count"], file["file_path"])
        for file in table.inspect.files().to_pylist()
    ]
    found = [tuple(bytes(v) if isinstance(v, bytearray) else v for v in row) for row in theirs]
    assert sorted(ours, key=repr) == sorted(found, key=repr)


@pytest.mark.parametrize("merged", [False, True])
def test_partitions_of_bytes_are_shared(spark: SparkTables, shared: Shared, merged: bool) -> None:
    """Java reads and writes the lengths of fixed values, although its own schema has none."""
    columns = [FixedType(3), UUIDType(), DecimalType(9, 2), DecimalType(38, 10), BinaryType()]
    schema = Schema(
        NestedField(1, "id", LongType()),
        *(NestedField(n, f"c{n}", kind) for n, kind in enumerate(columns, 2)),
    )
    spec = PartitionSpec(
        *(PartitionField(n, 998 + n, IdentityTransform(), f"p{n}") for n in range(2, 7))
    )
    table = shared.catalog.create_table(
        shared.new_name(),
        schema,
        partition_spec=spec,
        properties={
            "format-version": "3",
            "encryption.key-id": "keyA",
            "commit.manifest-merge.enabled": str(merged).lower(),
            "commit.manifest.min-count-to-merge": "2",
        },
    )
    assert isinstance(table, EncryptedTable)
    values = [[v for some in VALUES[kind][:2] for v in some] for kind in PARTITIONS]
    arrays = [as_arrow(kind, some) for kind, some in zip(PARTITIONS, values, strict=True)]
    rows = pa.table([pa.array(range(6)), *arrays], schema.column_names)
    table.append(rows)
    name = shared.shown(table)
    check_partitions(spark, name, table)
    # Files of two rows. The last byte of a value and the row count would make one number.
    spark.sql(
        f"INSERT INTO {name} SELECT id + 10 * n, c2, c3, c4, c5, c6 FROM {name} "
        "CROSS JOIN (VALUES 1, 2) AS v(n)"
    )
    table = shared.taken_back(name)
    check_partitions(spark, name, table)
    found = table.scan().to_arrow().sort_by("id")
    assert found["id"].to_pylist() == [i + 10 * n for n in range(3) for i in range(6)]
    for number, value in enumerate(values[0]):
        row_filter = EqualTo("c2", value) if value is not None else "c2 is null"
        ids = [number, number + 10, number + 20]
        assert sorted(table.scan(row_filter).to_arrow()["id"].to_pylist()) == ids
    table.delete(EqualTo("c2", b"\x80\x00\x00"))
    table.append(rows.slice(3, 1))
    name = shared.shown(table)
    check_partitions(spark, name, table)
    for value, ids in ((b"\x80\x00\x00", []), (b"\x7f\x00\x01", [3, 3, 13, 23])):
        where = f"c2 = X'{value.hex()}'"
        assert [r.id for r in spark.sql(f"SELECT id FROM {name} WHERE {where} ORDER BY id")] == ids
    spark.sql(f"DELETE FROM {name} WHERE c2 = X'FFFFFF'")
    table = shared.taken_back(name)
    check_partitions(spark, name, table)
    assert sorted(table.scan().to_arrow()["id"].to_pylist()) == sorted(
        [3, *(i + 10 * n for n in range(3) for i in (0, 2, 3, 5))]
    )

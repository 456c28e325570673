"""Scans against PyIceberg's own of the same table in the clear, and against plain Python.

``table_maker`` writes each table twice, encrypted and plain. What PyIceberg cannot read (equality
deletes, Avro) is compared with the rows that were written.
"""

from __future__ import annotations

import datetime
import decimal
import gc
import itertools
import json
import math
import random
import struct
import uuid
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from day import SEED
from iceberg_tables import memory_kms
from pyiceberg.expressions import AlwaysTrue, EqualTo, GreaterThan
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import StaticTable
from pyiceberg.transforms import parse_transform
from pyiceberg.types import NestedField
from table_maker import TableMaker

from ags1 import FormatError, TruncatedError
from ags1.columns.avro.schema import avro_schema
from ags1.iceberg import open_table
from ags1.iceberg.pyiceberg.arrow import project
from ags1.iceberg.read import ahead as ahead_module
from ags1.iceberg.read import scan as scan_module
from ags1.iceberg.read.columns import FileReader
from ags1.iceberg.read.deletes import DeletedKeys
from ags1.iceberg.storage.locations import mapped_location

pytestmark = pytest.mark.filterwarnings("ignore::ags1.kms.memory.KeysInPropertiesWarning")

COLUMNS = [
    {"id": 1, "name": "id", "type": "long"},
    {"id": 2, "name": "name", "type": "string"},
    {"id": 3, "name": "value", "type": "double"},
]
Rows = list[dict[str, Any]]
WITH_PARTITIONS = ["entries", "files", "all_files", "manifests", "all_manifests", "partitions"]
METADATA_TABLES = [*WITH_PARTITIONS, "data_files", "all_data_files", "snapshots", "history"]


def rows(*numbers: int) -> Rows:
    return [{"id": n, "name": f"n{n % 7}", "value": n / 2} for n in numbers]


def both(
    tmp_path: Path,
    build: Callable[[TableMaker], object],
    columns: Sequence[Any] = COLUMNS,
    **more: Any,
) -> tuple[Any, Any]:
    """Build a table encrypted and in the clear; return ours of one, PyIceberg's of the other."""
    tables = []
    for name, kms in (("encrypted", memory_kms()), ("plain", None)):
        maker = TableMaker(tmp_path / name, columns, kms, **more)
        build(maker)
        tables.append(maker.write())
    return open_table(tables[0], memory_kms()), StaticTable.from_metadata(f"file://{tables[1]}")


def assert_same(ours: Any, theirs: Any, **scan: Any) -> pa.Table:
    found, expected = ours.scan(**scan).to_arrow(), theirs.scan(**scan).to_arrow()
    assert found.schema == expected.schema
    assert repr(found.to_pylist()) == repr(expected.to_pylist())
    assert ours.scan(**scan).count() == len(expected)
    streamed = ours.scan(**scan).to_arrow_batch_reader().read_all()
    assert streamed.schema == expected.schema
    assert repr(streamed.to_pylist()) == repr(expected.to_pylist())
    return found


FILTERS = [
    AlwaysTrue(),
    "id < 5",
    "id >= 5 and id < 12",
    "name = 'n3' or value > 9",
    "name is null",
    "not (name = 'n1')",
    "name like 'n%'",
    "id in (1, 3, 5, 100)",
    "id > 1000",
    "value is not null",
]


@pytest.fixture(scope="module")
def filtered(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    def build(maker: TableMaker) -> None:
        first = maker.add_parquet(rows(*range(10)), row_group_size=3)
        second = maker.add_parquet([{"id": 10, "name": None, "value": math.nan}, *rows(11, 12)])
        maker.commit(first)
        maker.commit(second)
        maker.commit(maker.add_position_deletes([(first["file_path"], 3)]))

    return both(tmp_path_factory.mktemp("filtered"), build)


@pytest.mark.parametrize("row_filter", FILTERS, ids=str)
def test_filters(filtered: tuple[Any, Any], row_filter: Any) -> None:
    ours, theirs = filtered
    expected = assert_same(ours, theirs, row_filter=row_filter)
    some = ours.scan(row_filter, selected_fields=("value",)).to_arrow()
    assert some.schema == expected.select(["value"]).schema
    assert repr(some.to_pylist()) == repr(expected.select(["value"]).to_pylist())
    planned = [len(list(t.scan(row_filter).plan_files())) for t in filtered]
    assert planned[0] == planned[1]


def test_names_in_another_case(tmp_path: Path) -> None:
    ours, theirs = both(tmp_path, lambda m: m.commit(m.add_parquet(rows(*range(10)))))
    more: dict[str, Any] = {"selected_fields": ("VALUE",), "case_sensitive": False}
    assert assert_same(ours, theirs, row_filter="ID < 5", **more).num_rows == 5
    for table in (ours, theirs):
        with pytest.raises(ValueError, match="ID"):
            table.scan("ID < 5").to_arrow()


def test_position_deletes_and_vectors(tmp_path: Path) -> None:
    def build(maker: TableMaker) -> None:
        files = [maker.add_parquet(rows(*range(n, n + 10)), row_group_size=4) for n in (0, 10, 20)]
        paths = [file["file_path"] for file in files]
        maker.commit(*files)
        maker.commit(maker.add_position_deletes([(paths[0], 0), (paths[0], 9), (paths[1], 5)]))
        maker.commit(maker.add_position_deletes([(paths[0], 4)]))
        maker.commit(*maker.add_deletion_vectors({paths[2]: [0, 1, 7]}))

    found = assert_same(*both(tmp_path, build))
    deleted = {0, 9, 4, 15, 20, 21, 27}
    assert found["id"].to_pylist() == [n for n in range(30) if n not in deleted]


def test_a_vector_takes_the_place_of_position_deletes(tmp_path: Path) -> None:
    maker = TableMaker(tmp_path / "t", COLUMNS, memory_kms())
    file = maker.add_parquet(rows(*range(10)))
    maker.commit(file)
    maker.commit(maker.add_position_deletes([(file["file_path"], 0)]))
    # The specification: a writer merges them into the vector, and readers ignore them.
    maker.commit(*maker.add_deletion_vectors({file["file_path"]: [1]}))
    table = open_table(maker.write(), memory_kms())
    assert table.scan().to_arrow()["id"].to_pylist() == [0, *range(2, 10)]


def test_positions_beyond_32_bits(tmp_path: Path) -> None:
    maker = TableMaker(tmp_path / "t", COLUMNS, memory_kms())
    file = maker.add_parquet(rows(*range(3)))
    maker.commit(file)
    maker.commit(*maker.add_deletion_vectors({file["file_path"]: [1, 2**32, 2**40]}))
    table = open_table(maker.write(), memory_kms())
    assert table.scan().to_arrow()["id"].to_pylist() == [0, 2]


@pytest.mark.filterwarnings("ignore:Iceberg scan planning with the polars_iceberg plugin")
@pytest.mark.parametrize("kind", ["positions", "vectors", "keys"])
def test_polars_applies_the_deletes_of_plain_files(tmp_path: Path, kind: str) -> None:
    maker = TableMaker(tmp_path / "t", COLUMNS, memory_kms())
    files = [maker.add_parquet(rows(*range(n, n + 4)), encrypted=False) for n in (0, 10)]
    maker.commit(*files)
    table = open_table(maker.write(), memory_kms())
    assert polars.scan_iceberg(table).collect().rows() == [
        tuple(row.values()) for row in rows(0, 1, 2, 3, 10, 11, 12, 13)
    ]
    path = files[0]["file_path"]
    maker.commit(
        *{
            "positions": lambda: [maker.add_position_deletes([(path, 1)])],
            "vectors": lambda: maker.add_deletion_vectors({path: [1]}),
            "keys": lambda: [maker.add_equality_deletes([{"id": 1}], [1])],
        }[kind]()
    )
    table = open_table(maker.write(), memory_kms())
    found = polars.scan_iceberg(table).filter(polars.col("id") < 12).collect()
    assert found["id"].to_list() == [0, 2, 3, 10, 11]


# -- equality deletes


def without(found: Rows, deleted: Rows) -> Rows:
    """The rows that no deleted key matches, as Java compares."""

    def key(row: dict[str, Any], names: Sequence[str]) -> list[str]:
        # repr: NaN is NaN, None is None, and -0.0 is not 0.0.
        return [repr(row.get(name)) for name in names]

    names = list(deleted[0]) if deleted else []
    gone = [key(row, names) for row in deleted]
    return [row for row in found if key(row, names) not in gone]


MIXED: Rows = [
    {"id": 1, "name": "a", "value": 0.0},
    {"id": 2, "name": None, "value": -0.0},
    {"id": None, "name": "a", "value": math.nan},
    {"id": 3, "name": "b", "value": None},
    {"id": 3, "name": None, "value": None},
    {"id": None, "name": None, "value": None},
]


@pytest.mark.parametrize(
    "deleted",
    [
        [{"id": 1}],
        [{"id": None}],
        [{"name": None}],
        [{"value": math.nan}],
        [{"value": 0.0}],
        [{"value": -0.0}],
        [{"value": None}],
        [{"id": 3, "name": "b"}],
        [{"id": 3, "name": None}, {"id": 1, "name": "b"}],
        [{"id": None, "name": None, "value": None}],
        [{"id": None, "name": "a", "value": math.nan}, {"id": 1, "name": "a", "value": -0.0}],
        [{"id": 99}],
        [{"id": 1}, {"id": 2}, {"id": 3}, {"id": None}],
    ],
    ids=str,
)
def test_equality_deletes(tmp_path: Path, deleted: Rows) -> None:
    maker = TableMaker(tmp_path / "t", COLUMNS, memory_kms())
    maker.commit(maker.add_parquet(MIXED))
    ids = {"id": 1, "name": 2, "value": 3}
    maker.commit(maker.add_equality_deletes(deleted, [ids[name] for name in deleted[0]]))
    table = open_table(maker.write(), memory_kms())
    expected = without(MIXED, deleted)
    assert repr(table.scan().to_arrow().to_pylist()) == repr(expected)
    assert table.scan().count() == len(expected)
    # The compared columns are read though nobody asked for them.
    names = table.scan(selected_fields=("name",)).to_arrow()["name"].to_pylist()
    assert names == [row["name"] for row in expected]
    filtered = table.scan("name = 'a'").to_arrow().to_pylist()
    assert repr(filtered) == repr([row for row in expected if row["name"] == "a"])


_FLOATS = [None, 0.0, -0.0, math.nan, 1.0, -1.0]


def test_keys_of_several_columns() -> None:
    chance = random.Random(SEED)

    def keys(count: int) -> list[Any]:
        parts = ([None, 0, 1, 2, 3], _FLOATS, [None, "a", "b"])
        return [tuple(map(chance.choice, parts)) for _ in range(count)]

    def columns(keys: list[Any]) -> list[pa.ChunkedArray]:
        kinds = (pa.int64(), pa.float64(), pa.string())
        parts = zip(*keys, strict=True) if keys else ((), (), ())
        return [
            pa.chunked_array([pa.array(list(part), kind)])
            for part, kind in zip(parts, kinds, strict=True)
        ]

    for _ in range(200):
        found = keys(chance.randrange(20))
        deleted = keys(chance.randint(1, 8)) + found[: chance.randrange(4)]
        gone = {repr(key) for key in deleted}
        mask = DeletedKeys(columns(deleted)).not_deleted(columns(found))
        expected = [repr(key) not in gone for key in found]
        shown = [True] * len(found) if mask is None else mask.to_pylist()
        assert shown == expected, (deleted, found)


def test_equality_deletes_apply_to_older_rows_only(tmp_path: Path) -> None:
    maker = TableMaker(tmp_path / "t", COLUMNS, memory_kms())
    maker.commit(maker.add_parquet(rows(1, 2)))
    # In one commit, the new row of an upsert beside the delete of the old one.
    maker.commit(maker.add_equality_deletes([{"id": 1}], [1]), maker.add_parquet(rows(1)))
    maker.commit(maker.add_parquet(rows(1)))
    table = open_table(maker.write(), memory_kms())
    assert sorted(table.scan().to_arrow()["id"].to_pylist()) == [1, 1, 2]


PARTITIONED: dict[str, Any] = {
    "partition_fields": [
        {"source-id": 2, "field-id": 1000, "name": "name", "transform": "identity"}
    ]
}


def test_equality_deletes_are_of_their_partition_unless_they_have_none(tmp_path: Path) -> None:
    def build(**more: Any) -> Rows:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        maker = TableMaker(folder, COLUMNS, memory_kms(), **PARTITIONED)
        for name in ("a", "b"):
            row = {"id": 1, "name": name, "value": 0.0}
            maker.commit(maker.add_parquet([row], partition={"name": name}))
        spec_id = maker.add_spec([])
        maker.commit(maker.add_equality_deletes([{"id": 1}], [1], **({"spec_id": spec_id} | more)))
        found: Rows = open_table(maker.write(), memory_kms()).scan().to_arrow().to_pylist()
        return found

    assert build() == []
    assert [row["name"] for row in build(spec_id=0, partition={"name": "a"})] == ["b"]


def test_a_filter_does_not_prune_delete_files_by_their_other_columns(tmp_path: Path) -> None:
    maker = TableMaker(tmp_path / "t", COLUMNS, memory_kms())
    schema = maker.schema
    maker.commit(maker.add_parquet(rows(1, 2)))
    # A writer may leave the deleted row's other columns in the file: here not as they were.
    deletes = maker.add_equality_deletes(
        [{"id": 50, "name": "n1", "value": 0.0}], [2], schema=schema
    )
    maker.commit(deletes)
    table = open_table(maker.write(), memory_kms())
    assert table.scan("id = 1").to_arrow().num_rows == 0


def test_equality_deletes_after_the_column_was_promoted_renamed_or_dropped(tmp_path: Path) -> None:
    int_columns = [{"id": 1, "name": "k", "type": "int"}, {"id": 2, "name": "x", "type": "float"}]
    maker = TableMaker(tmp_path / "t", int_columns, memory_kms())
    maker.commit(maker.add_parquet([{"k": n, "x": n / 2} for n in range(6)]))
    maker.commit(maker.add_equality_deletes([{"k": 0}], [1]))
    maker.set_schema(
        [{"id": 2, "name": "y", "type": "double"}, {"id": 1, "name": "key", "type": "long"}]
    )
    maker.commit(maker.add_equality_deletes([{"key": 1}], [1]))
    maker.commit(maker.add_equality_deletes([{"y": 1.0}], [2]))
    table = open_table(maker.write(), memory_kms())
    assert table.scan().to_arrow()["key"].to_pylist() == [3, 4, 5]
    maker.set_schema([{"id": 2, "name": "y", "type": "double"}])
    table = open_table(maker.write(), memory_kms())
    assert table.scan().to_arrow()["y"].to_pylist() == [1.5, 2.0, 2.5]
    # A new column may have the name of the dropped one.
    maker.set_schema(
        [{"id": 2, "name": "y", "type": "double"}, {"id": 3, "name": "key", "type": "string"}]
    )
    maker.commit(maker.add_parquet([{"y": 7.0, "key": "1"}]))
    maker.commit(maker.add_equality_deletes([{"key": "2"}], [3]))
    table = open_table(maker.write(), memory_kms())
    found = table.scan().to_arrow().sort_by("y")
    assert found.to_pydict() == {"y": [1.5, 2.0, 2.5, 7.0], "key": [None, None, None, "1"]}
    assert table.scan("key is null and y > 1.5").count() == 2


@pytest.mark.parametrize("file_format", ["parquet", "avro"])
def test_equality_deletes_by_a_field_whose_name_another_field_of_its_struct_has(
    tmp_path: Path, file_format: str
) -> None:
    def columns(field_id: int, kind: str) -> list[dict[str, Any]]:
        fields = [("a", field_id, kind), ("o", 9, "long")]
        struct = [{"id": i, "name": n, "required": False, "type": k} for n, i, k in fields]
        return [COLUMNS[0], {"id": 2, "name": "s", "type": {"type": "struct", "fields": struct}}]

    def add(rows: Rows) -> None:
        described = avro_schema(maker.schema.as_struct())
        is_avro = file_format == "avro"
        maker.commit(maker.add_avro(rows, described) if is_avro else maker.add_parquet(rows))

    def delete(value: Any, field_id: int) -> None:
        schema = maker.schema.select("s.a")
        deleted = maker.add_equality_deletes([{"s": {"a": value}}], [field_id], schema=schema)
        maker.commit(deleted)

    maker = TableMaker(tmp_path / "t", columns(3, "int"), memory_kms())
    add([{"id": n, "s": {"a": n, "o": 8}} for n in range(4)])
    delete(1, 3)
    maker.set_schema(columns(4, "string"))
    add([{"id": 7, "s": {"a": "x", "o": 8}}, {"id": 8, "s": {"a": "1", "o": 8}}])
    delete("1", 4)
    table = open_table(maker.write(), memory_kms())
    found = table.scan().to_arrow().sort_by("id")
    assert found["id"].to_pylist() == [0, 2, 3, 7]
    assert found["s"].to_pylist() == [{"a": a, "o": 8} for a in (None, None, None, "x")]
    assert table.scan("s.a is null").count() == 3


def test_equality_deletes_of_a_column_that_the_file_lacks(tmp_path: Path) -> None:
    maker = TableMaker(tmp_path / "t", COLUMNS[:1], memory_kms())
    maker.commit(maker.add_parquet([{"id": 1}]))
    maker.set_schema([COLUMNS[0], {**COLUMNS[1], "initial-default": "d"}, COLUMNS[2]])
    maker.commit(maker.add_parquet([{"id": 2, "name": "e", "value": None}]))
    maker.commit(maker.add_equality_deletes([{"name": "d", "value": None}], [2, 3]))
    table = open_table(maker.write(), memory_kms())
    assert table.scan().to_arrow()["id"].to_pylist() == [2]


def test_equality_deletes_inside_a_struct(tmp_path: Path) -> None:
    inner = {"type": "struct", "fields": [{"id": 3, "name": "a", "required": False, "type": "int"}]}
    columns = [COLUMNS[0], {"id": 2, "name": "s", "type": inner}]
    maker = TableMaker(tmp_path / "t", columns, memory_kms())
    found = [{"id": 1, "s": {"a": 1}}, {"id": 2, "s": {"a": None}}, {"id": 3, "s": None}]
    maker.commit(maker.add_parquet([*found, {"id": 4, "s": {"a": 2}}]))
    schema = maker.schema.select("s.a")
    maker.commit(maker.add_equality_deletes([{"s": {"a": 1}}, {"s": None}], [3], schema=schema))
    table = open_table(maker.write(), memory_kms())
    assert table.scan().to_arrow()["id"].to_pylist() == [4]


_MOMENT = datetime.datetime(2024, 2, 29, 12, 30, 1, 123456)
KEY_TYPES: list[tuple[str, Any, Any]] = [
    ("boolean", True, False),
    ("int", 1, 2),
    ("date", datetime.date(2024, 2, 29), datetime.date(1969, 12, 31)),
    ("time", datetime.time(1, 2, 3, 4), datetime.time(0)),
    ("timestamp", _MOMENT, datetime.datetime(1960, 1, 1)),
    ("timestamptz", _MOMENT.replace(tzinfo=datetime.timezone.utc), None),
    ("decimal(9, 2)", decimal.Decimal("1.50"), decimal.Decimal("-1.50")),
    ("decimal(38, 10)", decimal.Decimal("1e20"), decimal.Decimal("0")),
    ("binary", b"\x00\xff", b""),
    ("fixed[4]", b"abcd", b"abce"),
    ("string", "\U0001f511", ""),
    ("float", math.nan, 1.5),
    ("uuid", uuid.UUID(int=5).bytes, uuid.UUID(int=6).bytes),
]


def test_equality_deletes_of_every_type(tmp_path: Path) -> None:
    """Each column is the key of one delete, of the value that one row has."""
    kinds = [kind for kind, _, _ in KEY_TYPES]
    names = [f"k{number}" for number in range(len(kinds))]
    columns = [{"id": n, "name": names[n - 2], "type": k} for n, k in enumerate(kinds, 2)]
    maker = TableMaker(tmp_path / "t", [COLUMNS[0], *columns], memory_kms())
    gone = [{names[n]: value} for n, (_, value, _) in enumerate(KEY_TYPES)]
    kept = [{names[n]: value} for n, (_, _, value) in enumerate(KEY_TYPES)]
    maker.commit(maker.add_parquet([{"id": id_, **row} for id_, row in enumerate(gone + kept)]))
    for number, key in enumerate(gone):
        maker.commit(maker.add_equality_deletes([key], [number + 2]))
    found = open_table(maker.write(), memory_kms()).scan().to_arrow()["id"].to_pylist()
    assert [kinds[number % len(kinds)] for number in found] == kinds
    assert found == list(range(len(kinds), 2 * len(kinds)))


def test_all_kinds_of_deletes_at_once(tmp_path: Path) -> None:
    maker = TableMaker(tmp_path / "t", COLUMNS, memory_kms())
    files = [maker.add_parquet(rows(*range(n, n + 10)), row_group_size=3) for n in (0, 10)]
    paths = [file["file_path"] for file in files]
    maker.commit(*files)
    maker.commit(maker.add_position_deletes([(paths[0], 2)]))
    maker.commit(*maker.add_deletion_vectors({paths[1]: [3]}))
    maker.commit(maker.add_equality_deletes([{"id": 7}, {"id": 17}], [1]))
    maker.commit(maker.add_equality_deletes([{"name": "n4"}], [2]))
    table = open_table(maker.write(), memory_kms())
    gone = {2, 13, 7, 17} | {n for n in range(20) if n % 7 == 4}
    assert table.scan().to_arrow()["id"].to_pylist() == [n for n in range(20) if n not in gone]
    assert table.scan("id >= 5").count() == len([n for n in range(5, 20) if n not in gone])


def test_inspecting_a_table_with_all_kinds_of_deletes(tmp_path: Path) -> None:
    maker = TableMaker(tmp_path / "t", COLUMNS, memory_kms())
    files = [maker.add_parquet(rows(*range(n, n + 10))) for n in (0, 10)]
    maker.commit(*files)
    maker.commit(maker.add_position_deletes([(files[0]["file_path"], 2)]))
    maker.commit(*maker.add_deletion_vectors({files[1]["file_path"]: [3]}))
    maker.commit(maker.add_equality_deletes([{"id": 7}], [1]))
    inspect = open_table(maker.write(), memory_kms()).inspect
    [partition] = inspect.partitions().to_pylist()
    found = {k: partition[k] for k in partition if k.endswith("_count")}
    assert found == {
        "record_count": 20,
        "file_count": 2,
        "position_delete_record_count": 2,
        "position_delete_file_count": 2,
        "equality_delete_record_count": 1,
        "equality_delete_file_count": 1,
    }
    assert inspect.delete_files().num_rows == 3
    assert inspect.entries().num_rows == 5


def test_all_entries_are_those_of_each_manifest_once(catalog: Any) -> None:
    properties = {"encryption.key-id": "keyA"}
    table = catalog.create_table("db.t", pa.schema([("id", pa.int64())]), properties=properties)
    assert table.inspect.all_entries().num_rows == 0
    for number in range(3):
        table.append(pa.table({"id": [number, number + 10]}))
    table.delete("id = 1")  # a deletion vector
    table.delete("id = 0 or id = 10")  # a whole file, whose entry says DELETED
    inspect = table.inspect
    found = inspect.all_entries()
    assert found.schema == inspect.entries().schema
    manifests = {row["path"]: row for row in inspect.all_manifests().to_pylist()}
    counts = [n for row in manifests.values() for name, n in row.items() if "files_count" in name]
    assert found.num_rows == sum(counts)
    of_snapshots = [
        row for s in table.snapshots() for row in inspect.entries(s.snapshot_id).to_pylist()
    ]
    assert set(map(repr, found.to_pylist())) == set(map(repr, of_snapshots))
    assert {0, 1, 2} >= set(found["status"].to_pylist()) >= {1, 2}


def test_a_limit_counts_in_every_method(tmp_path: Path) -> None:
    maker = TableMaker(tmp_path / "t", COLUMNS, memory_kms())
    files = [maker.add_parquet(rows(*range(n, n + 5))) for n in (0, 5, 10)]
    maker.commit(*files)
    maker.commit(*maker.add_deletion_vectors({files[1]["file_path"]: [3]}))
    table = open_table(maker.write(), memory_kms())
    ways: list[Callable[[Any], int]] = [
        lambda scan: scan.to_arrow().num_rows,
        lambda scan: scan.to_arrow_batch_reader().read_all().num_rows,
        lambda scan: pa.table(scan).num_rows,
        lambda scan: len(scan.to_pandas()),
        lambda scan: scan.select("value").to_arrow().num_rows,
        lambda scan: scan.with_case_sensitive(False).count(),
    ]
    # For the first filter, manifests are enough. For the others, files must be read.
    filters = [("id < 5", 5), ("id > 2", 11), ("name != 'n1'", 13)]
    for f, (row_filter, matching) in enumerate(filters):
        for number, limit in enumerate((0, 1, 4, 7, 100, None)):
            scan = table.scan(row_filter, limit=limit)
            left = matching if limit is None else min(limit, matching)
            assert scan.count() == left, (row_filter, limit)
            # Two ways, so that each filter and each limit meets each way.
            for way in range((f + number) % 3, len(ways), 3):
                assert ways[way](scan) == left, (row_filter, limit, way)
    first = table.snapshots()[0].snapshot_id
    assert table.scan(snapshot_id=first, limit=20).count() == 15
    appended = table.incremental_append_scan(to_snapshot_id_inclusive=first)
    assert (appended.count(), appended.update(limit=7).count()) == (15, 7)


@pytest.mark.slow_variants("(string|decimal).*")
@pytest.mark.parametrize(
    ("kind", "column", "transform", "values"),
    [
        ("uuid", [uuid.UUID(int=1).bytes, None], "identity", [uuid.UUID(int=1), None]),
        ("string", ["a", None], "bucket[4]", [2, None]),
        ("date", [0, -(2**31)], "month", [0, -70555327]),
        (
            "decimal(9, 2)",
            [decimal.Decimal("1.29"), None],
            "truncate[10]",
            [decimal.Decimal("1.20"), None],
        ),
    ],
)
def test_metadata_tables_of_every_history_of_a_partition_field(
    catalog: Any, kind: str, column: list[Any], transform: str, values: list[Any]
) -> None:
    schema = Schema(NestedField(1, "x", kind, required=False), NestedField(2, "n", "long"))
    table = catalog.create_table(
        "db.t",
        schema,
        partition_spec=PartitionSpec(PartitionField(1, 1000, parse_transform(transform), "p")),
        properties={"encryption.key-id": "keyA"},
    )
    arrow = schema_to_pyarrow(schema.select("x")).field(0).type
    stored = pa.array(column, pa.int32() if kind == "date" else None)
    cells = stored.view(arrow) if kind == "date" else pa.array(column, arrow)

    def append(first: int, **known: Any) -> None:
        table.append(pa.table({**known, "n": pa.array([first, first + 1])}))

    def check(*expected: Any) -> None:
        inspect = table.inspect
        made = {name: getattr(inspect, name)() for name in WITH_PARTITIONS}
        entries = made["entries"]["data_file"].combine_chunks()
        rows = table.scan(selected_fields=("_partition",)).to_arrow()["_partition"]
        for found in (
            *(made[name]["partition"] for name in ("files", "all_files", "partitions")),
            pa.StructArray.field(entries, "partition"),
            rows,
        ):
            assert {repr(partition) for partition in found.to_pylist()} == set(map(repr, expected))
        assert inspect.partitions(row_filter="n = 0")["record_count"].to_pylist() == [1]

    append(0, x=cells)
    check(*({"p": value} for value in values))
    with table.update_spec() as update:
        update.rename_field("p", "q")
    append(2, x=cells)
    check(*({"q": value} for value in values))
    with table.update_spec() as update:
        update.remove_field("q")
    append(4, x=cells)
    check(*({"q": value} for value in (*values, None)))
    with table.update_schema() as change:
        change.delete_column("x")
    append(6)
    for name in METADATA_TABLES:
        assert getattr(table.inspect, name)().num_rows, name
    assert table.inspect.files()["partition"].to_pylist() == [{}] * 6
    assert table.inspect.partitions(row_filter="n = 0")["record_count"].to_pylist() == [1]
    table.delete("n < 3 or n = 7")
    assert sorted(table.scan().to_arrow()["n"].to_pylist()) == [3, 4, 5, 6]


def _random_commit(chance: random.Random) -> tuple[Any, Any]:
    """Return a kind of commit, and its rows or positions."""
    shape = chance.randrange(4)
    if shape in (1, 2):
        positions = chance.sample(range(12), chance.randint(1, 5))
        return ("positions" if shape == 1 else "vector"), positions
    keys = [("id",), ("name",), ("id", "value"), ("id", "name", "value")]
    kind, most = (chance.choice(keys), 4) if shape else (chance.choice(["parquet", "avro"]), 12)
    values = ([None, *range(10)], [None, *"abc"], [None, 0.0, 1.5, math.nan])
    names = [column["name"] for column in COLUMNS]
    return kind, [
        dict(zip(names, map(chance.choice, values), strict=True))
        for _ in range(chance.randint(1, most))
    ]


@pytest.mark.parametrize("histories", [10, pytest.param(60, marks=pytest.mark.slow)])
def test_any_history_reads_as_its_rows(histories: int, tmp_path: Path) -> None:
    """Against a model: each file is its rows, each delete takes some of them away."""
    for number in range(histories):
        chance = random.Random(f"{SEED} {number}")
        maker = TableMaker(tmp_path / f"t{number}", COLUMNS, memory_kms())
        first = chance.choice(["parquet", "avro"]), rows(*range(chance.randint(1, 12)))
        model = _changed(
            maker, [first, *map(_random_commit, [chance] * chance.randrange(8))], chance
        )
        table = open_table(maker.write(), memory_kms())
        about = SEED, number
        assert repr(table.scan().to_arrow().to_pylist()) == repr(model), about
        assert table.scan().count() == len(model), about
        wanted = [row for row in model if row["name"] == "a"]
        assert repr(table.scan("name = 'a'").to_arrow().to_pylist()) == repr(wanted), about


def _changed(maker: TableMaker, commits: list[Any], choice: random.Random) -> Rows:
    """Do these commits, and return the rows that are left."""
    model: dict[str, list[tuple[int, dict[str, Any]]]] = {}  # by path: positions and rows
    by_position: dict[str, str] = {}
    for kind, what in commits:
        if kind in ("parquet", "avro"):
            add = (
                maker.add_parquet
                if kind == "parquet"
                else partial(maker.add_avro, avro_schema=AVRO)
            )
            file = add(what, encrypted=choice.random() < 0.8)
            maker.commit(file)
            model[file["file_path"]] = list(enumerate(what))
        elif kind in ("positions", "vector"):
            # A vector stands for all position deletes of its file: a file has the one or the
            # other, and one vector.
            path = choice.choice(sorted(model))
            if by_position.get(path) == "vector" or by_position.get(path, kind) != kind:
                continue
            by_position[path] = kind
            if kind == "vector":
                maker.commit(*maker.add_deletion_vectors({path: what}))
            else:
                maker.commit(maker.add_position_deletes([(path, n) for n in what]))
            model[path] = [(n, row) for n, row in model[path] if n not in what]
        else:
            ids = [{"id": 1, "name": 2, "value": 3}[name] for name in kind]
            deleted = [{name: row[name] for name in kind} for row in what]
            maker.commit(maker.add_equality_deletes(deleted, ids))
            for path, found in model.items():
                kept = [repr(row) for row in without([row for _, row in found], deleted)]
                model[path] = [(n, row) for n, row in found if repr(row) in kept]
    return [row for found in model.values() for _, row in found]


# -- schemas


def test_columns_of_one_type_change_their_order(tmp_path: Path) -> None:
    columns = [{"id": i, "name": name, "type": "long"} for i, name in ((1, "a"), (2, "b"))]

    def build(maker: TableMaker) -> None:
        rows = [{"a": n, "b": -n} for n in range(1, 9)]
        files = [maker.add_parquet(rows, row_group_size=3) for _ in range(2)]
        maker.set_schema(columns[::-1])
        maker.commit(*files)

    read = assert_same(*both(tmp_path, build, columns))
    assert read.to_pylist() == 2 * [{"b": -n, "a": n} for n in range(1, 9)]


def test_schema_evolution(tmp_path: Path) -> None:
    def build(maker: TableMaker) -> None:
        maker.commit(maker.add_parquet([{"a": n, "b": f"b{n}", "c": n / 2} for n in range(4)]))
        maker.set_schema(
            [
                {"id": 3, "name": "see", "type": "double"},
                {"id": 1, "name": "a", "type": "long"},
                {"id": 4, "name": "new", "type": "string", "initial-default": "d"},
                {"id": 5, "name": "newer", "type": "int"},
            ]
        )
        maker.commit(maker.add_parquet([{"see": 9.0, "a": 2**40, "new": "n", "newer": 1}]))

    columns = [
        {"id": 1, "name": "a", "type": "int"},
        {"id": 2, "name": "b", "type": "string"},
        {"id": 3, "name": "c", "type": "float"},
    ]
    ours, theirs = both(tmp_path, build, columns)
    assert_same(ours, theirs)
    for row_filter in ("a > 2", "see >= 1.5", "new = 'd'", "newer is null", "new = 'n'"):
        assert_same(ours, theirs, row_filter=row_filter)
    for snapshot in theirs.snapshots():
        assert_same(ours, theirs, snapshot_id=snapshot.snapshot_id)
    assert_same(ours, theirs, selected_fields=("newer",))


@pytest.mark.parametrize("value", [1.5, math.nan, -0.0])
def test_deletes_of_a_partition_of_a_float(value: float, tmp_path: Path) -> None:
    by_p = {"source-id": 2, "field-id": 1000, "name": "p", "transform": "identity"}
    columns = [{"id": 1, "name": "id", "type": "long"}, {"id": 2, "name": "p", "type": "double"}]
    maker = TableMaker(tmp_path / "t", columns, memory_kms(), partition_fields=[by_p])
    files = {}
    for p in (value, 0.0):
        rows = [{"id": 1, "p": p}, {"id": 2, "p": p}, {"id": 3, "p": p}]
        files[str(p)] = maker.add_parquet(rows, partition={"p": p})
    maker.commit(*files.values())
    partition = {"p": struct.unpack("<d", struct.pack("<d", value))[0]}
    path = files[str(value)]["file_path"]
    maker.commit(
        maker.add_equality_deletes([{"id": 1}], [1], partition=partition),
        maker.add_position_deletes([(path, 1), ("another", 0)], partition=partition),
    )
    rows = open_table(maker.write(), memory_kms()).scan().to_arrow().to_pylist()
    # Java's Double.compare: one NaN, and two zeros.
    assert sorted((str(r["p"]), r["id"]) for r in rows) == sorted(
        [(str(value), 3), ("0.0", 1), ("0.0", 2), ("0.0", 3)]
    )


def test_columns_known_from_the_partition_only(tmp_path: Path) -> None:
    def build(maker: TableMaker) -> None:
        schema = maker.schema.select("id", "value")
        for name in ("a", "b"):
            found = [{"id": 1, "value": 2.0}, {"id": 2, "value": None}]
            maker.commit(maker.add_parquet(found, schema=schema, partition={"name": name}))

    ours, theirs = both(tmp_path, build, **PARTITIONED)
    assert assert_same(ours, theirs)["name"].to_pylist() == ["a", "a", "b", "b"]
    assert_same(ours, theirs, row_filter="name = 'b'")


def test_nested_columns(tmp_path: Path) -> None:
    def build(maker: TableMaker) -> None:
        found = [
            {"id": 1, "s": {"a": 1, "b": "x"}, "l": [1, None], "m": [("k", 1.5)]},
            {"id": 2, "s": None, "l": [], "m": []},
            {"id": 3, "s": {"a": None, "b": None}, "l": None, "m": None},
        ]
        maker.commit(maker.add_parquet(found))

    columns = [
        {"id": 1, "name": "id", "type": "long"},
        {
            "id": 2,
            "name": "s",
            "type": {
                "type": "struct",
                "fields": [
                    {"id": 3, "name": "a", "required": False, "type": "int"},
                    {"id": 4, "name": "b", "required": False, "type": "string"},
                ],
            },
        },
        {
            "id": 5,
            "name": "l",
            "type": {"type": "list", "element-id": 6, "element": "int", "element-required": False},
        },
        {
            "id": 7,
            "name": "m",
            "type": {
                "type": "map",
                "key-id": 8,
                "key": "string",
                "value-id": 9,
                "value": "double",
                "value-required": False,
            },
        },
    ]
    ours, theirs = both(tmp_path, build, columns)
    assert_same(ours, theirs)
    assert_same(ours, theirs, selected_fields=("s.b", "m"))
    assert_same(ours, theirs, row_filter="s.a = 1", selected_fields=("id", "l"))


def _struct(first_id: int) -> dict[str, Any]:
    fields = [
        {"id": first_id, "name": "x", "required": False, "type": "int"},
        {"id": first_id + 1, "name": "y", "required": False, "type": "string"},
    ]
    return {"type": "struct", "fields": fields}


def _list(element_id: int, element: Any) -> dict[str, Any]:
    return {
        "type": "list",
        "element-id": element_id,
        "element": element,
        "element-required": False,
    }


NESTED = [
    COLUMNS[0],
    {"id": 10, "name": "ls", "type": _list(11, _struct(12))},
    {
        "id": 20,
        "name": "ms",
        "type": {
            "type": "map",
            "key-id": 21,
            "key": "string",
            "value-id": 22,
            "value": _struct(23),
            "value-required": False,
        },
    },
    {"id": 30, "name": "ll", "type": _list(31, _list(32, _struct(33)))},
]
_ONE = {"x": 1, "y": "a"}
NESTED_ROWS: Rows = [
    {"id": 0, "ls": None, "ms": None, "ll": None},
    {"id": 1, "ls": [], "ms": [], "ll": []},
    {"id": 2, "ls": [None], "ms": [("k", None)], "ll": [None]},
    {"id": 3, "ls": [_ONE, None], "ms": [("k", _ONE), ("l", None)], "ll": [[], [_ONE, None], None]},
    {"id": 4, "ls": None, "ms": None, "ll": None},
    {"id": 5, "ls": [{"x": None, "y": None}], "ms": [("k", _ONE)], "ll": [[_ONE]]},
]


def test_null_lists_and_maps_of_structs_stay_null(tmp_path: Path) -> None:
    # PyIceberg 0.12 reads them as empty ones.
    maker = TableMaker(tmp_path / "t", NESTED, memory_kms())
    file = maker.add_parquet(NESTED_ROWS)
    maker.commit(file)
    table = open_table(maker.write(), memory_kms())
    assert table.scan().to_arrow().to_pylist() == NESTED_ROWS
    streamed = table.scan(selected_fields=("ms", "ls")).to_arrow_batch_reader().read_all()
    assert streamed["ls"].to_pylist() == [row["ls"] for row in NESTED_ROWS]
    maker.commit(maker.add_position_deletes([(file["file_path"], 1)]))
    table = open_table(maker.write(), memory_kms())
    assert table.scan().to_arrow().to_pylist() == [NESTED_ROWS[0], *NESTED_ROWS[2:]]


def test_structs_inside_lists_and_maps_evolve(tmp_path: Path) -> None:
    maker = TableMaker(tmp_path / "t", NESTED, memory_kms())
    maker.commit(maker.add_parquet(NESTED_ROWS))
    columns = json.loads(
        json.dumps(NESTED).replace('"name": "x"', '"name": "z"').replace('"int"', '"long"')
    )
    maker.set_schema(columns)
    table = open_table(maker.write(), memory_kms())
    found = table.scan().to_arrow()
    expected = json.loads(json.dumps(NESTED_ROWS).replace('"x"', '"z"'))
    assert json.loads(json.dumps(found.to_pylist())) == expected
    assert "int32" not in str(found.schema)


@pytest.mark.parametrize("file_format", ["parquet", "avro"])
def test_a_new_struct_is_null_in_old_rows_and_its_required_fields_are_not(
    catalog: Any, file_format: str
) -> None:
    kinds = {"n": "long", "u": "uuid", "d": "date", "f": "fixed[3]"}
    part = [{"id": n, "name": k, "type": kinds[k]} for n, k in enumerate(kinds, 101)]
    deep = [
        {"id": 120, "name": "s", "type": {"type": "struct", "fields": part}},
        {"id": 121, "name": "l", "type": {"type": "list", "element-id": 122, "element": "long"}},
        {"id": 123, "name": "m", "type": {
            "type": "map", "key-id": 124, "key": "string", "value-id": 125, "value": "long"
        }},
    ]  # fmt: skip
    for each in deep:
        each["type"] |= {"element-required": True, "value-required": True}
    fields = [field | {"required": True} for field in (*part, *deep)]
    added = Schema.model_validate({"type": "struct", "fields": fields}).as_struct()
    one = pa.struct([("x", pa.int64())])
    kinds_of_old = {"id": pa.int64(), "s": one, "l": pa.list_(one), "m": pa.map_(pa.string(), one)}
    old = [
        {"id": 1, "s": {"x": 1}, "l": [{"x": 2}, None], "m": [("k", {"x": 3}), ("o", None)]},
        {"id": 2, "s": None, "l": None, "m": None},
    ]
    properties = {"encryption.key-id": "keyA", "write.format.default": file_format}
    table = catalog.create_table("db.t", pa.schema(kinds_of_old), properties=properties)
    table.append(pa.Table.from_pylist(old, pa.schema(kinds_of_old)))
    with table.update_schema() as change:
        for path in ("t", ("s", "t"), ("l", "t"), ("m", "t")):
            change.add_column(path, added)
    expected = [
        {
            "id": 1,
            "s": {"x": 1, "t": None},
            "l": [{"x": 2, "t": None}, None],
            "m": [("k", {"x": 3, "t": None}), ("o", None)],
            "t": None,
        },
        old[1] | {"t": None},
    ]
    for scan in (table.scan(), table.scan("id < 9 and t is null")):
        for found in (scan.to_arrow(), scan.to_arrow_batch_reader().read_all()):
            found.validate(full=True)
            assert found.select(expected[0]).to_pylist() == expected
            # Arrow looks at the nulls of required fields, whatever is around them.
            assert found.cast(found.schema).equals(found)
            pq.write_table(found, pa.BufferOutputStream())


def test_a_part_of_a_batch_is_projected() -> None:
    schema = Schema.model_validate(
        {"type": "struct", "fields": [{"required": False, **c} for c in NESTED]}
    )
    kinds = schema_to_pyarrow(schema, include_field_ids=False)
    whole = pa.RecordBatch.from_pylist(NESTED_ROWS, schema=kinds)
    for first, count in itertools.product(range(7), range(7)):
        found = project(schema, schema, whole.slice(first, count), missing={}, extensions={})
        found.validate(full=True)
        assert found.to_pylist() == NESTED_ROWS[first : first + count], (first, count)


def test_dictionary_columns(tmp_path: Path) -> None:
    ours, theirs = both(tmp_path, lambda m: m.commit(m.add_parquet(rows(*range(20)))))
    found = ours.scan().to_arrow(dictionary_columns=("name",))
    assert found.schema == theirs.scan().to_arrow(dictionary_columns=("name",)).schema
    assert pa.types.is_dictionary(found.schema.field("name").type)
    streamed = ours.scan().to_arrow_batch_reader(dictionary_columns=("name",)).read_all()
    assert streamed["name"].cast(pa.string()).to_pylist() == [f"n{n % 7}" for n in range(20)]


@pytest.mark.parametrize("kind", ["parquet", "avro"])
def test_a_stream_of_large_files_opens_them_one_after_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    maker = TableMaker(tmp_path / "t", COLUMNS, memory_kms())
    for start in range(0, 60, 10):
        found = rows(*range(start, start + 10))
        maker.commit(maker.add_avro(found, AVRO) if kind == "avro" else maker.add_parquet(found))
    table = open_table(maker.write(), memory_kms())
    sizes = [task.file.file_size_in_bytes for task in table.scan().plan_files()]
    size, least = max(sizes), min(sizes)
    opened: list[str] = []
    open_file = FileReader.open

    def counting(self: FileReader, file: Any, *more: Any, **options: Any) -> Any:
        opened.append(file.file_path)
        return open_file(self, file, *more, **options)

    monkeypatch.setattr(FileReader, "open", counting)
    for large, ahead, most in ((least - 1, 10 * size, 1), (size, 2 * size, 2), (size, 1, 1)):
        monkeypatch.setattr(ahead_module, "_LARGE_FILE", large)
        opened.clear()
        monkeypatch.setattr(scan_module, "_READ_AHEAD", ahead)
        stream = table.scan().to_arrow_batch_reader()
        assert opened == []
        first = stream.read_next_batch()
        assert 1 <= len(opened) <= most
        left = stream.read_all()["id"].to_pylist()
        assert sorted([*first["id"].to_pylist(), *left]) == list(range(60))
        limited = table.scan(limit=15).to_arrow_batch_reader().read_all()
        assert limited.num_rows == 15


def test_branches(tmp_path: Path) -> None:
    def build(maker: TableMaker) -> None:
        maker.commit(maker.add_parquet(rows(1)))
        maker.commit(maker.add_parquet(rows(2)), ref="audit")

    ours, theirs = both(tmp_path, build)
    for name in ("main", "audit"):
        assert repr(ours.scan().use_ref(name).to_arrow().to_pylist()) == repr(
            theirs.scan().use_ref(name).to_arrow().to_pylist()
        )
    assert ours.scan().use_ref("audit").count() == 2


def test_the_garbage_collector_does_not_look_at_each_file(tmp_path: Path) -> None:
    maker = TableMaker(tmp_path / "t", COLUMNS, memory_kms())
    maker.commit(*[maker.add_parquet(rows(number)) for number in range(60)])
    scan = open_table(maker.write(), memory_kms()).scan()
    scan.plan_files()
    gc.collect()
    before = len(gc.get_objects())
    tasks = scan.plan_files()
    gc.collect()
    assert len(tasks) == 60
    assert len(gc.get_objects()) - before < 60
    # Without the collector, they are freed all the same.
    ends = [weakref.ref(tasks[0]), weakref.ref(tasks[0].file)]
    del tasks
    assert [end() for end in ends] == [None, None]


def test_many_manifests_are_planned_alike(tmp_path: Path) -> None:
    def build(maker: TableMaker) -> None:
        files = [maker.add_parquet(rows(n)) for n in range(20)]
        maker.commit(*files, manifests_of=3)

    ours, theirs = both(tmp_path, build)
    for row_filter in ("id < 10", "id = 19", AlwaysTrue()):
        found = [t.file.record_count for t in ours.scan(row_filter).plan_files()]
        assert len(found) == len(list(theirs.scan(row_filter).plan_files()))
    assert_same(ours, theirs, row_filter="id < 10")


# -- Avro

AVRO = {
    "type": "record",
    "name": "r",
    "fields": [
        {"name": "id", "type": ["null", "long"], "field-id": 1},
        {"name": "name", "type": ["null", "string"], "field-id": 2},
        {"name": "value", "type": ["null", "double"], "field-id": 3},
    ],
}


@pytest.mark.parametrize("codec", ["null", "deflate"])
def test_avro_files_with_every_kind_of_delete(tmp_path: Path, codec: str) -> None:
    maker = TableMaker(tmp_path / "t", COLUMNS, memory_kms(), avro_codec=codec)
    files = [maker.add_avro(rows(*range(n, n + 10)), AVRO) for n in (0, 10)]
    files.append(maker.add_avro(rows(20), AVRO, encrypted=False))
    paths = [file["file_path"] for file in files]
    maker.commit(*files)
    maker.commit(*maker.add_deletion_vectors({paths[0]: [1]}))
    maker.commit(maker.add_position_deletes([(paths[1], 2)]))
    maker.commit(maker.add_equality_deletes([{"name": "n3"}], [2]))
    path = maker.write()
    gone = {1, 12, 3, 10, 17}
    expected = [row for row in rows(*range(21)) if row["id"] not in gone]
    table = open_table(path, memory_kms())
    assert table.scan().to_arrow().to_pylist() == expected
    assert table.scan().count() == len(expected)
    filtered = table.scan("value > 4", selected_fields=("name",)).to_arrow().to_pylist()
    assert filtered == [{"name": row["name"]} for row in expected if row["value"] > 4]
    assert table.scan(limit=3).to_arrow().num_rows == 3
    streamed = table.scan().to_arrow_batch_reader().read_all()
    assert streamed.to_pylist() == expected


def test_avro_delete_files(tmp_path: Path) -> None:
    maker = TableMaker(tmp_path / "t", COLUMNS, memory_kms())
    file = maker.add_parquet(rows(*range(5)))
    maker.commit(file)
    fields = [
        {"name": "file_path", "type": "string", "field-id": 2147483546},
        {"name": "pos", "type": "long", "field-id": 2147483545},
    ]
    positions = {"type": "record", "name": "d", "fields": fields}
    found = [{"file_path": file["file_path"], "pos": 1}]
    maker.commit(maker.add_avro(found, positions, content=1))
    keys = {"type": "record", "name": "d", "fields": AVRO["fields"][:1]}
    maker.commit(maker.add_avro([{"id": 3}], keys, content=2, equality_ids=[1]))
    table = open_table(maker.write(), memory_kms())
    assert table.scan().to_arrow()["id"].to_pylist() == [0, 2, 4]


def test_avro_schema_evolution(tmp_path: Path) -> None:
    maker = TableMaker(tmp_path / "t", COLUMNS, memory_kms(), **PARTITIONED)
    old = {"type": "record", "name": "r", "fields": [{"name": "i", "type": "int", "field-id": 1}]}
    maker.commit(maker.add_avro([{"i": 1}], old, partition={"name": "p"}))
    maker.set_schema([*COLUMNS, {"id": 4, "name": "d", "type": "int", "initial-default": 7}])
    table = open_table(maker.write(), memory_kms())
    expected = [{"id": 1, "name": "p", "value": None, "d": 7}]
    assert table.scan().to_arrow().to_pylist() == expected
    assert table.scan("d = 7 and name = 'p'").to_arrow().to_pylist() == expected
    assert table.scan("d = 8").to_arrow().num_rows == 0


def test_an_avro_file_cut_at_a_block_raises(tmp_path: Path) -> None:
    # Java returns fewer rows and no error.
    maker = TableMaker(tmp_path / "t", COLUMNS, memory_kms(), avro_codec="null")
    long_name = "x" * 1000
    found = [{"id": n, "name": long_name, "value": 0.0} for n in range(3000)]
    file = maker.add_avro(found, AVRO)
    maker.commit(file)
    table = open_table(maker.write(), memory_kms())
    assert table.scan().to_arrow().num_rows == 3000
    path = tmp_path / "t/data" / file["file_path"].rpartition("/")[2]
    block = 2**20 + 28
    data = path.read_bytes()
    for size in (8 + 2 * block, 8 + block, len(data) - 1):
        path.write_bytes(data[:size])
        with pytest.raises(TruncatedError):
            table.scan().to_arrow()
    path.write_bytes(data + b"x")
    with pytest.raises(FormatError):
        table.scan().to_arrow()


# -- places


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("file:/a/b/c", "/x/b/c"),
        ("file:/a", "/x"),
        ("file:/ab/c", "file:/ab/c"),
        ("file:/a/deep/c", "/y/c"),
        ("file:/a/deeper/c", "/x/deeper/c"),
        ("s3://bucket/k", "file:///z/k"),
        ("s3://bucket2/k", "s3://bucket2/k"),
    ],
)
def test_the_longest_prefix_that_ends_at_a_slash_is_replaced(location: str, expected: str) -> None:
    places = {"file:/a": "/x", "file:/a/deep/": "/y/", "s3://bucket": "file:///z"}
    assert mapped_location(location, places) == expected


@pytest.mark.parametrize("kind", ["timestamp", "timestamptz"])
def test_int96_of_any_year_is_the_time_that_it_says(tmp_path: Path, kind: str) -> None:
    columns = [
        COLUMNS[0],
        {"id": 8, "name": "t", "type": kind},
        {
            "id": 9,
            "name": "s",
            "type": {"type": "struct", "fields": [{"id": 10, "name": "t", "type": kind}]},
        },
    ]
    maker = TableMaker(tmp_path / "t", columns, memory_kms())
    texts = ["0001-01-01", "1677-09-20", "9999-12-31T23:59:59.999999", "2025-07-01"]
    utc = datetime.timezone.utc if kind == "timestamptz" else None
    times = [datetime.datetime.fromisoformat(text).replace(tzinfo=utc) for text in texts]
    given = [{"id": i, "t": time, "s": {"t": time}} for i, time in enumerate(times)]
    rows = pa.Table.from_pylist(given, schema=schema_to_pyarrow(maker.schema))
    # As Hive and Spark 2 wrote times.
    maker.commit(maker.add_parquet_of(rows, use_deprecated_int96_timestamps=True))
    table = open_table(maker.write(), memory_kms())
    assert table.scan().to_arrow().to_pylist() == given
    for number, time in enumerate(times):
        for name in ("t", "s.t"):
            same = table.scan(EqualTo(name, time.isoformat()))
            assert same.to_arrow()["id"].to_pylist() == [number]
            later = table.scan(GreaterThan(name, time.isoformat()))
            assert later.count() == sum(other > time for other in times)

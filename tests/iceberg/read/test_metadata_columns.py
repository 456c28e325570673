"""Metadata columns of a scan against DuckDB's file names and row numbers, and against the rules of
Java's readers; with Spark itself they are compared in ``interop``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from iceberg_tables import by_id, memory_kms, open_fixture
from pyiceberg.expressions import Reference, StartsWith
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType
from table_maker import Entry, TableMaker

from ags1.iceberg import EncryptedTable, open_table
from ags1.iceberg.read.tasks import TaskReader

pytestmark = pytest.mark.filterwarnings("ignore::ags1.kms.memory.KeysInPropertiesWarning")

ALL = ("_file", "_pos", "_spec_id", "_partition", "_row_id", "_last_updated_sequence_number")
LINEAGE = {"_row_id": 2147483540, "_last_updated_sequence_number": 2147483539}
COLUMNS = [{"id": 1, "name": "id", "type": "long"}, {"id": 2, "name": "v", "type": "string"}]
Rows = list[dict[str, Any]]


def rows(*numbers: int, **more: Any) -> Rows:
    return [{"id": n, "v": f"v{n % 4}"} | more for n in numbers]


def opened(maker: TableMaker) -> EncryptedTable:
    table = open_table(maker.write(), memory_kms())
    assert isinstance(table, EncryptedTable)
    return table


def add(maker: TableMaker, kind: str, found: Rows, lineage: bool = False, **more: Any) -> Entry:
    """Write a data file, with the columns of row lineage if it is to have them."""
    ids = {"id": 1, "v": 2} | (LINEAGE if lineage else {})
    if kind == "parquet":
        fields = [
            NestedField(field_id, name, StringType() if name == "v" else LongType(), required=False)
            for name, field_id in ids.items()
        ]
        return maker.add_parquet(found, schema=Schema(*fields), row_group_size=3, **more)
    types = {name: "string" if name == "v" else "long" for name in ids}
    fields = [
        {"name": n, "type": ["null", types[n]], "default": None, "field-id": i}
        for n, i in ids.items()
    ]
    found = [{name: row.get(name) for name in ids} for row in found]
    return maker.add_avro(found, {"type": "record", "name": "r", "fields": fields}, **more)


FORMATS = pytest.mark.parametrize("kind", ["parquet", "avro"])


@pytest.fixture(scope="module", params=["parquet", "avro"])
def table(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[EncryptedTable, Rows]:
    """A table with deletes of all kinds, and what is known of each row that they leave."""
    maker = TableMaker(tmp_path_factory.mktemp("t") / "t", COLUMNS, memory_kms())
    files = [
        add(maker, request.param, rows(*range(first, first + 10))) for first in (0, 100, 200, 300)
    ]
    paths = [file["file_path"] for file in files]
    maker.commit(*files[:2], first_row_id=1000)
    maker.commit(maker.add_position_deletes([(paths[0], 0), (paths[0], 4)]))
    maker.commit(files[2], first_row_id=None)
    maker.commit(*maker.add_deletion_vectors({paths[1]: [1, 2, 3]}))
    maker.commit(files[3], first_row_id=5000)
    maker.commit(maker.add_equality_deletes([{"id": 300}, {"id": 103}, {"id": 105}], [1]))
    deleted = {0, 4, 101, 102, 103, 105, 300}
    first_ids = [1000, 1010, None, 5000]
    expected = [
        {
            **row,
            "_file": path,
            "_pos": position,
            "_spec_id": 0,
            "_partition": None,
            "_row_id": None if first_id is None else first_id + position,
            "_last_updated_sequence_number": None if first_id is None else number,
        }
        for path, first, first_id, number in zip(
            paths, (0, 100, 200, 300), first_ids, (1, 1, 3, 5), strict=True
        )
        for position, row in enumerate(rows(*range(first, first + 10)))
        if row["id"] not in deleted
    ]
    return opened(maker), expected


def test_all_of_them_beside_all_columns(table: tuple[EncryptedTable, Rows]) -> None:
    ours, expected = table
    scan = ours.scan(selected_fields=("*", *ALL))
    assert by_id(scan.to_arrow().to_pylist()) == expected
    assert by_id(scan.to_arrow_batch_reader().read_all().to_pylist()) == expected
    assert scan.count() == len(expected)
    assert ours.scan().to_arrow().schema.names == ["id", "v"]


@pytest.mark.slow_variants(r"avro-\('_\w+',\)")  # `make test` has all of them at once
@pytest.mark.parametrize("names", [(name,) for name in ALL] + [("_pos", "id"), ALL[::-1]], ids=str)
def test_some_of_them(table: tuple[EncryptedTable, Rows], names: tuple[str, ...]) -> None:
    ours, expected = table
    found = ours.scan(selected_fields=names).to_arrow()
    # PyIceberg has a table's own columns in the table's order, whatever the order asked for.
    order = sorted(names, key=lambda name: name.startswith("_"))
    assert found.schema.names == order
    wanted = [{name: row[name] for name in order} for row in expected]
    assert sorted(map(repr, found.to_pylist())) == sorted(map(repr, wanted))
    assert len(ours.scan(selected_fields=names, limit=3).to_arrow()) == 3


FILTERS = [
    ("id >= 5 and id < 107", lambda r: 5 <= r["id"] < 107),
    ("v = 'v1'", lambda r: r["v"] == "v1"),
    ("_pos >= 2 and _pos < 5", lambda r: 2 <= r["_pos"] < 5),
    ("_pos = 7 or id = 2", lambda r: r["_pos"] == 7 or r["id"] == 2),
    ("not (_pos < 8)", lambda r: r["_pos"] >= 8),
    ("_row_id > 1012 and id > 7", lambda r: (r["_row_id"] or 0) > 1012 and r["id"] > 7),
    ("_row_id is null", lambda r: r["_row_id"] is None),
    ("_row_id != 1001", lambda r: r["_row_id"] not in (None, 1001)),
    ("_last_updated_sequence_number = 5", lambda r: r["_last_updated_sequence_number"] == 5),
    ("_spec_id = 0 and id < 3", lambda r: r["id"] < 3),
    ("_spec_id in (1, 2)", lambda r: False),
]


# Of `make test`: each filter on all columns of Parquet, and some filters on some columns of Avro.
@pytest.mark.slow_variants(
    r"(parquet-\('(id|_row_id)'.*|avro-\('(\*|id)'.*)",
    r"avro-.*-(id >=|v =|_pos =|not|_row_id !=|_spec_id =).*",
)
@pytest.mark.parametrize(("row_filter", "matches"), FILTERS, ids=[f[0] for f in FILTERS])
@pytest.mark.parametrize("names", [("*", *ALL), ("id",), ("_row_id", "_file")], ids=str)
def test_filters(
    table: tuple[EncryptedTable, Rows], row_filter: str, matches: Any, names: tuple[str, ...]
) -> None:
    ours, expected = table
    scan = ours.scan(row_filter, selected_fields=names)
    wanted = [
        {name: row[name] for name in (row if "*" in names else sorted(names)[::-1])}
        for row in expected
        if matches(row)
    ]
    found = scan.to_arrow().to_pylist()
    assert sorted(repr(sorted(row.items())) for row in found) == sorted(
        repr(sorted(row.items())) for row in wanted
    )
    assert scan.count() == len(wanted)


def test_a_filter_of_the_file(table: tuple[EncryptedTable, Rows]) -> None:
    ours, expected = table
    path = expected[0]["_file"]
    wanted = [row["id"] for row in expected if row["_file"] == path]
    found = ours.scan(f"_file = '{path}'").to_arrow()
    assert found["id"].to_pylist() == wanted
    assert ours.scan(StartsWith(Reference("_file"), path[:-1])).count() >= len(wanted)


def test_places_are_those_that_duckdb_counts(tmp_path: Path) -> None:
    # Three rows a row group: those before the ones that match are counted though nobody reads them.
    files = []
    tables = []
    for name, kms in (("encrypted", memory_kms()), ("plain", None)):
        maker = TableMaker(tmp_path / name, COLUMNS, kms)
        added = [maker.add_parquet(rows(*range(n, n + 20)), row_group_size=3) for n in (0, 50)]
        files.append([file["file_path"].removeprefix("file://") for file in added])
        maker.commit(*added, first_row_id=7)
        tables.append(maker)
    ours = opened(tables[0])
    with duckdb.connect() as connection:
        for row_filter in ("id > 11 and id < 55", "id in (3, 69)", "v = 'v2'"):
            expected = connection.execute(
                "SELECT id, filename, file_row_number FROM read_parquet(?, filename = true, "
                f"file_row_number = true) WHERE {row_filter} ORDER BY id",
                [files[1]],
            ).fetchall()
            names = ("id", "_file", "_pos")
            found = ours.scan(row_filter, selected_fields=names).to_arrow()
            assert expected
            assert [
                (row["id"], row["_file"].replace("/encrypted/", "/plain/"), row["_pos"])
                for row in by_id(found.to_pylist())
            ] == [(n, f"file://{path}", position) for n, path, position in expected]


@FORMATS
def test_what_a_file_has_of_row_lineage_goes_before_what_it_inherits(
    tmp_path: Path, kind: str
) -> None:
    maker = TableMaker(tmp_path / "t", COLUMNS, memory_kms())
    found = rows(0, 1, 2, 3)
    for row, row_id, number in zip(found, (77, None, 5, None), (None, None, 1, 9), strict=True):
        row |= {"_row_id": row_id, "_last_updated_sequence_number": number}
    maker.commit(add(maker, kind, rows(10)), first_row_id=0)
    maker.commit(add(maker, kind, found, lineage=True), first_row_id=100)
    # Java's readers: without a first row id there is none, whatever the file has.
    maker.commit(add(maker, kind, found, lineage=True), first_row_id=None)
    table = opened(maker)
    lineage = table.scan(selected_fields=tuple(LINEAGE)).to_arrow().to_pylist()
    assert sorted(lineage, key=repr) == sorted(
        [
            {"_row_id": row_id, "_last_updated_sequence_number": number}
            for row_id, number in [(0, 1), (77, 2), (101, 2), (5, 1), (103, 9)] + 4 * [(None, None)]
        ],
        key=repr,
    )
    assert table.scan("_row_id = 101").to_arrow()["id"].to_pylist() == [1]
    assert table.scan("_row_id in (5, 77)").count() == 2
    updated = table.scan("_last_updated_sequence_number = 2").to_arrow()
    assert updated["id"].to_pylist() == [0, 1]
    assert table.scan("_row_id < 78", selected_fields=("id",)).to_arrow().num_rows == 3
    assert table.scan().to_arrow().schema.names == ["id", "v"]


@FORMATS
def test_splits_count_rows_from_the_file_s_first(tmp_path: Path, kind: str) -> None:
    maker = TableMaker(tmp_path / "t", COLUMNS, memory_kms())
    count = 60 if kind == "parquet" else 5000  # several row groups, or several blocks
    file = add(maker, kind, rows(*range(count)))
    maker.commit(file, first_row_id=10)
    table = opened(maker)
    scan = table.scan("id >= 7", selected_fields=("id", "_pos", "_row_id"))
    (task,) = scan.plan_files()
    reader = TaskReader(table.files, table.metadata, scan.projection(), scan.bound_filter)
    size = task.file.file_size_in_bytes
    part = size // 5
    splits = [(begin, min(part, size - begin)) for begin in range(0, size, part)]
    assert len(splits) > 1
    found = [row for s in splits for b in reader.batches(task, s) for row in b.to_pylist()]
    assert found == [{"id": n, "_pos": n, "_row_id": n + 10} for n in range(7, count)]


def test_a_table_s_own_column_of_such_a_name_is_meant(tmp_path: Path) -> None:
    columns = [*COLUMNS, {"id": 3, "name": "_pos", "type": "string"}]
    maker = TableMaker(tmp_path / "t", columns, memory_kms())
    found = [row | {"_pos": f"p{row['id']}"} for row in rows(1, 2)]
    maker.commit(maker.add_parquet(found), first_row_id=0)
    table = opened(maker)
    assert table.scan().to_arrow().to_pylist() == found
    assert table.scan(selected_fields=("_pos", "_row_id")).to_arrow().to_pylist() == [
        {"_pos": "p1", "_row_id": 0},
        {"_pos": "p2", "_row_id": 1},
    ]
    assert table.scan("_pos = 'p2' and _row_id >= 0").to_arrow()["id"].to_pylist() == [2]
    assert table.scan("_pos = 'p2'").count() == 1


def test_names_ids_and_types(table: tuple[EncryptedTable, Rows]) -> None:
    ours, _ = table
    projected = ours.scan(selected_fields=("*", *ALL)).projection()
    # Those of the specification, "Reserved Field IDs".
    assert {f.name: (f.field_id, str(f.field_type)) for f in projected.fields[2:]} == {
        "_file": (2147483646, "string"),
        "_pos": (2147483645, "long"),
        "_spec_id": (2147483643, "int"),
        "_partition": (2147483642, "struct<>"),
        "_row_id": (2147483540, "long"),
        "_last_updated_sequence_number": (2147483539, "long"),
    }
    read = ours.scan(selected_fields=("_POS", "ID"), case_sensitive=False).to_arrow()
    assert read.schema.names == ["id", "_pos"]
    assert ours.scan("_POS = 9 and ID > 5", case_sensitive=False).count() == 4
    encoded = ours.scan(selected_fields=("_file", "id")).to_arrow(dictionary_columns=("_file",))
    assert pa.types.is_dictionary(encoded.schema.field("_file").type)
    assert (
        encoded["_file"].to_pylist()
        == ours.scan(selected_fields=("_file",)).to_arrow()["_file"].to_pylist()
    )


@pytest.mark.parametrize("name", ["_POS", "_deleted", "_nope"])
def test_names_that_there_are_not(table: tuple[EncryptedTable, Rows], name: str) -> None:
    ours, _ = table
    with pytest.raises(ValueError, match=f"Could not find column: '{name}'"):
        ours.scan(selected_fields=("id", name)).to_arrow()
    with pytest.raises(ValueError, match=f"Could not find field with name {name}"):
        ours.scan(f"{name} = 1").to_arrow()
    with pytest.raises(ValueError, match="Could not find field with name _partition"):
        ours.scan("_partition is null").to_arrow()


def test_a_scan_of_appends_has_them_too() -> None:
    table = open_fixture("parquet_plain")
    first, *_ = table.snapshots()
    names = ("id", *ALL)
    scan = table.incremental_append_scan(
        from_snapshot_id_exclusive=first.snapshot_id, row_filter="_pos < 3", selected_fields=names
    )
    expected = table.scan("_pos < 3 and _row_id >= 1000", selected_fields=names)
    found = by_id(scan.to_arrow().to_pylist())
    assert found == by_id(expected.to_arrow().to_pylist())
    assert [row["_row_id"] for row in found] == [1000, 1001, 1002, 2000, 2001, 2002]


def test_rows_that_spark_updated_keep_their_ids() -> None:
    table = open_fixture("mor_dv")
    names = ("id", "_row_id", "_last_updated_sequence_number")

    def lineage(snapshot_id: int) -> dict[int, tuple[int, int]]:
        found = table.scan(selected_fields=names, snapshot_id=snapshot_id).to_arrow().to_pylist()
        return {row["id"]: (row["_row_id"], row["_last_updated_sequence_number"]) for row in found}

    first, *_, before, last = [lineage(s.snapshot_id) for s in table.snapshots()]
    assert sorted(row_id for row_id, _ in first.values()) == list(range(len(first)))
    assert {key: row_id for key, (row_id, _) in last.items()} == {
        key: row_id for key, (row_id, _) in before.items()
    }
    # The last commit was an UPDATE.
    updated = {key for key in last if last[key] != before[key]}
    assert updated
    assert {last[key][1] for key in updated} == {table.metadata.last_sequence_number}

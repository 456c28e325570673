"""Row-level deletes: which files go, which positions, and the vectors as Java writes them.

What DuckDB leaves of the same rows after the same DELETE is what has to be left here; PyIceberg
reads the plain twins. ``table_maker`` commits what a plan says, as no writer of ours does it.
"""

from __future__ import annotations

import functools
import itertools
import json
import struct
import tempfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from data_files import all_fields
from hypothesis import given, settings
from hypothesis import strategies as st
from iceberg_tables import TABLES, copied, memory_kms, metadata_file, open_fixture
from pyiceberg.expressions import (
    AlwaysTrue,
    BooleanExpression,
    EqualTo,
    IsNaN,
    NotEqualTo,
)
from pyiceberg.expressions.parser import parse
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import StaticTable
from pyiceberg.table.deletion_vector import deletion_vectors_from_puffin_file
from pyiceberg.table.puffin import PuffinFile
from pyroaring import BitMap64
from table_maker import Entry as MakerEntry
from table_maker import TableMaker, stored

import ags1
from ags1 import AuthenticationError, KeyMetadata, MetadataIntegrityError, __version__
from ags1.iceberg import open_table
from ags1.iceberg.read.records import DATA, ContentFile, ManifestEntry, read_entries
from ags1.iceberg.storage.output import TableOutput
from ags1.iceberg.write.deletes import DeletePlan, find_deletes
from ags1.iceberg.write.deletion_vectors import vector_blob, write_deletion_vectors
from ags1.iceberg.write.view import TableView
from ags1.keys.manager import EncryptionManager

pytestmark = pytest.mark.filterwarnings("ignore::ags1.kms.memory.KeysInPropertiesWarning")

COLUMNS = [
    {"id": 1, "name": "id", "type": "long"},
    {"id": 2, "name": "name", "type": "string"},
    {"id": 3, "name": "value", "type": "double"},
    {"id": 4, "name": "part", "type": "int"},
]
BY_PART = [{"source-id": 4, "field-id": 1000, "name": "part", "transform": "identity"}]
Rows = list[dict[str, Any]]


def rows(*numbers: int, part: int | None = None) -> Rows:
    """Rows of which every fifth has no name and every fourth no value."""
    return [
        {
            "id": n,
            "name": None if n % 5 == 0 else f"n{n % 3}",
            "value": None if n % 4 == 0 else n / 2,
            "part": part,
        }
        for n in numbers
    ]


class Lake:
    """A table under construction: its commits, so that it can be made again without some files.

    Data files are in the clear unless ``encrypted``, so that a plain table can have them too.
    """

    def __init__(
        self,
        folder: Path,
        columns: Sequence[Any] = COLUMNS,
        partition_fields: Sequence[Any] = (),
        encrypted: bool = False,
    ) -> None:
        self.folder = folder
        self.columns = columns
        self.encrypted = encrypted
        self.maker = TableMaker(
            folder / "table", columns, memory_kms(), partition_fields=partition_fields
        )
        self.commits: list[list[MakerEntry]] = []
        self._numbers = itertools.count()

    def parquet(self, found: Rows, **more: Any) -> MakerEntry:
        """Add a data file in a commit of its own."""
        more = {"encrypted": self.encrypted, "row_group_size": 3} | more
        return self.commit(self.maker.add_parquet(found, **more))

    def commit(self, *files: MakerEntry) -> MakerEntry:
        self.maker.commit(*files)
        self.commits.append(list(files))
        return files[0]

    def open(self) -> Any:
        return open_table(self.maker.write(), memory_kms())

    def view(self) -> TableView:
        table = self.open()
        return TableView(json.loads(Path(table.metadata_location).read_text()), table.files)

    def find(self, row_filter: str | BooleanExpression, **more: Any) -> DeletePlan:
        unbound = parse(row_filter) if isinstance(row_filter, str) else row_filter
        return find_deletes(self.view(), unbound, **more)

    def write(self, plan: DeletePlan) -> list[ContentFile]:
        location = f"{self.maker.location}/data/{next(self._numbers):05}-deletes.puffin"
        return write_deletion_vectors(
            TableOutput(PyArrowFileIO()), location, files_of(plan), self.maker.manager
        )

    def after(self, plan: DeletePlan) -> Any:
        """Return the table with the plan carried out."""
        remade = self._remade(memory_kms(), plan)
        remade.commit(*(self._entry(record) for record in self.write(plan)))
        return open_table(remade.write(), memory_kms())

    def plain_after(self, plan: DeletePlan) -> StaticTable:
        """Return the same in the clear, for PyIceberg to read."""
        remade = self._remade(None, plan)
        vectors = (self._entry(record) for record in self.write(plan))
        remade.commit(*map(self._in_the_clear, vectors))
        return StaticTable.from_metadata(f"file://{remade.write()}")

    def _remade(self, kms: Any, plan: DeletePlan) -> TableMaker:
        maker = TableMaker(self.folder / f"remade{next(self._numbers)}", self.columns, kms)
        maker.schemas, maker.specs = self.maker.schemas, self.maker.specs
        gone = {entry.file.identity for entry in (*plan.dropped, *plan.superseded)}
        for files in self.commits:
            kept = [file for file in files if identity(file) not in gone]
            maker.commit(*(kept if kms else (self._in_the_clear(file) for file in kept)))
        return maker

    def _in_the_clear(self, file: MakerEntry) -> MakerEntry:
        """Return the entry of a plain copy of an older Puffin file."""
        if file["file_format"] != "PUFFIN":
            return file
        path = self.folder / f"plain{next(self._numbers)}.puffin"
        km = KeyMetadata.from_bytes(file["key_metadata"])
        path.write_bytes(ags1.decrypt(stored(file["file_path"]).read_bytes(), km))
        return file | {
            "file_path": f"file://{path}",
            "file_size_in_bytes": path.stat().st_size,
            "key_metadata": None,
        }

    def _entry(self, record: ContentFile) -> MakerEntry:
        names = [field["name"] for field in self.maker.specs[record.spec_id]["fields"]]
        return {
            "content": record.content,
            "file_path": record.file_path,
            "file_format": record.file_format.name,
            "partition": dict(zip(names, record.partition_values, strict=True)),
            "record_count": record.record_count,
            "file_size_in_bytes": record.file_size_in_bytes,
            "key_metadata": record.key_bytes and bytes(record.key_bytes),
            "spec_id": record.spec_id,
            "referenced_data_file": record.referenced_data_file,
            "content_offset": record.content_offset,
            "content_size_in_bytes": record.content_size_in_bytes,
        }


def identity(file: Mapping[str, Any]) -> tuple[str, int | None]:
    return file["file_path"], file.get("content_offset")


def files_of(plan: DeletePlan) -> dict[str, tuple[BitMap64, ContentFile]]:
    return {path: (found, entry.file) for path, (found, entry) in plan.vectors.items()}


def paths(entries: Iterable[ManifestEntry]) -> set[str]:
    return {entry.file.file_path for entry in entries}


def path_of(*files: MakerEntry) -> set[str]:
    return {file["file_path"] for file in files}


def positions(plan: DeletePlan) -> dict[str, list[int]]:
    return {path: list(found) for path, (found, _) in plan.vectors.items()}


def opened(record: ContentFile) -> bytes:
    """Return the plaintext of the Puffin file that a record is of."""
    km = record.key
    assert km is not None
    return ags1.decrypt(stored(record.file_path).read_bytes(), km)


@functools.cache
def connection() -> duckdb.DuckDBPyConnection:
    """A database in memory. Connecting takes several times as long as a query."""
    return duckdb.connect()


def left_by_duckdb(found: Rows, row_filter: str) -> Rows:
    """Return what DuckDB's DELETE leaves."""
    kinds = {"id": pa.int64(), "name": pa.string(), "value": pa.float64(), "part": pa.int32()}
    given_rows = pa.Table.from_pylist(found, pa.schema(list(kinds.items())))
    database = connection().register("given_rows", given_rows)
    database.execute("CREATE OR REPLACE TABLE t AS FROM given_rows")
    database.execute(f"DELETE FROM t WHERE {row_filter}")
    left: Rows = database.sql("FROM t ORDER BY id").to_arrow_table().to_pylist()
    return left


def fixture_view(name: str, folder: Path = TABLES) -> TableView:
    metadata = json.loads(metadata_file(name, folder).read_text())
    return TableView(metadata, open_fixture(name, folder).files)


def rows_of(table: Any) -> Rows:
    return sorted(table.scan().to_arrow().to_pylist(), key=lambda row: row["id"])


FILTERS = [
    "id < 5",
    "id >= 3 and id < 12",
    "id = 7",
    "id != 7",
    "id in (1, 3, 5, 100)",
    "id not in (1, 3, 5, 100)",
    "name = 'n1'",
    "name != 'n1'",
    "not (name = 'n1' and value > 2)",
    "name in ('n1', 'n2') or value > 4",
    "name not in ('n1', 'n2')",
    "name is null",
    "name is not null",
    "name like 'n%'",
    "name not like 'n1%'",
    "value <= 3",
    "not (value <= 3)",
    "part = 1",
    "part != 1",
    "part is null or id = 2",
    "id > 1000",
    "id >= 0",
]


@pytest.fixture(scope="module")
def with_deletes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Lake, Rows]:
    """A table of three files, from two of which rows were deleted, and the rows that are left."""
    lake = Lake(tmp_path_factory.mktemp("lake"), partition_fields=BY_PART)
    model: Rows = []
    files = []
    for part, numbers in ((1, range(10)), (None, range(10, 17)), (2, range(17, 20))):
        found = rows(*numbers, part=part)
        files.append(lake.parquet(found, partition={"part": part}))
        model += found
    old = {files[0]["file_path"]: [0, 4, 9], files[1]["file_path"]: [6]}
    vectors = {p: lake.maker.add_deletion_vectors({p: v}) for p, v in old.items()}
    for file in files[:2]:
        (vector,) = vectors[file["file_path"]]
        lake.commit(vector | {"partition": file["partition"]})
    model = [row for row in model if row["id"] not in (0, 4, 9, 16)]
    assert rows_of(lake.open()) == model
    return lake, model


@pytest.mark.parametrize("row_filter", FILTERS)
def test_rows_go_as_they_do_in_sql(with_deletes: tuple[Lake, Rows], row_filter: str) -> None:
    lake, model = with_deletes
    expected = left_by_duckdb(model, row_filter)
    plan = lake.find(row_filter)
    assert rows_of(lake.after(plan)) == expected
    assert rows_of(lake.plain_after(plan)) == expected
    assert plan.matched_rows == len(model) - len(expected)
    assert plan.is_empty == (model == expected)


OLD_DELETES = ["none", "vector", "of one file", "of the partition", "equality"]


@st.composite
def lakes(draw: st.DrawFn) -> tuple[list[tuple[int, str, frozenset[int], int | None]], str]:
    """Files (a number of rows, what deleted which of them before, the partition), and a filter."""
    files = []
    for _ in range(draw(st.integers(1, 4))):
        size = draw(st.integers(1, 9))
        gone = draw(st.frozensets(st.integers(0, size - 1)))
        part = draw(st.sampled_from([None, 1, 2]))
        files.append((size, draw(st.sampled_from(OLD_DELETES)), gone, part))
    one, other = (draw(st.sampled_from(FILTERS)) for _ in range(2))
    return files, draw(st.sampled_from([one, f"({one}) and ({other})", f"({one}) or ({other})"]))


@pytest.mark.parametrize("examples", [8, pytest.param(20, marks=pytest.mark.slow)])
def test_any_deletes_over_any_older_ones(examples: int) -> None:
    given(lakes())(settings(max_examples=examples)(deletes_over_older_ones))()


def deletes_over_older_ones(
    drawn: tuple[list[tuple[int, str, frozenset[int], int | None]], str],
) -> None:
    shapes, row_filter = drawn
    with tempfile.TemporaryDirectory() as folder:
        lake = Lake(Path(folder), partition_fields=BY_PART, encrypted=True)
        numbers = itertools.count()
        model: dict[str, Rows] = {}
        shared: dict[int | None, list[tuple[str, int]]] = {}
        for size, how, gone, part in shapes:
            found = rows(*itertools.islice(numbers, size), part=part)
            where: dict[str, Any] = {"partition": {"part": part}}
            file = lake.parquet(found, **where)
            path = file["file_path"]
            left = [row for place, row in enumerate(found) if place not in gone]
            pairs = [(path, place) for place in sorted(gone)]
            if not gone or how == "none":
                left = found
            elif how == "vector":
                lake.commit(*lake.maker.add_deletion_vectors({path: sorted(gone)}, **where))
            elif how == "of one file":
                deletes = lake.maker.add_position_deletes(pairs, **where)
                lake.commit(deletes | {"referenced_data_file": path})
            elif how == "of the partition":
                shared.setdefault(part, []).extend(pairs)
            else:
                keys = [{"id": found[place]["id"]} for place in sorted(gone)]
                lake.commit(lake.maker.add_equality_deletes(keys, [1], **where))
            model[path] = left
        for part, pairs in shared.items():
            lake.commit(lake.maker.add_position_deletes(pairs, partition={"part": part}))

        live = [row for found in model.values() for row in found]
        assert rows_of(lake.open()) == live
        plan = lake.find(row_filter)
        expected = left_by_duckdb(live, row_filter)
        after = lake.after(plan)
        assert rows_of(after) == expected
        left_ids = {row["id"] for row in expected}
        for path, found in model.items():
            matched = [row for row in found if row["id"] not in left_ids]
            # A file whose rows all went before is nothing to a delete, unless it is not read.
            assert (path in plan.vectors) == (0 < len(matched) < len(found))
            assert (path in paths(plan.dropped)) >= (0 < len(matched) == len(found))
            assert not (path in paths(plan.dropped) and len(matched) < len(found))
        # Nothing is left of the deletes that were written down in the new vectors.
        again = find_deletes(
            TableView(json.loads(Path(after.metadata_location).read_text()), after.files),
            parse(row_filter),
        )
        assert not again.vectors


# -- what goes with what


def test_a_vector_takes_the_older_ones_place(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    one, other = lake.parquet(rows(*range(9))), lake.parquet(rows(*range(9, 18)))
    paths_now = (one["file_path"], other["file_path"])
    first, second = lake.maker.add_deletion_vectors({p: [1, 2] for p in paths_now})
    lake.commit(first, second)
    plan = lake.find("id = 5")
    assert positions(plan) == {paths_now[0]: [1, 2, 5]}
    # Both lie in one Puffin file, and one of them goes.
    assert [entry.file.identity for entry in plan.superseded] == [identity(first)]
    assert rows_of(lake.after(plan)) == rows(0, 3, 4, 6, 7, 8, 9, *range(12, 18))


def test_a_delete_that_was_done_already_changes_nothing(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    file = lake.parquet(rows(*range(9)))
    lake.commit(*lake.maker.add_deletion_vectors({file["file_path"]: [1, 2]}))
    plan = lake.find("id in (1, 2)")
    assert plan == DeletePlan()
    assert lake.write(plan) == []
    assert not list((tmp_path / "table/data").glob("*-deletes.puffin"))


def test_a_vector_goes_with_its_file(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    one, other = lake.parquet(rows(*range(9))), lake.parquet(rows(*range(9, 18)))
    vectors = lake.maker.add_deletion_vectors({f["file_path"]: [0] for f in (one, other)})
    lake.commit(*vectors)
    plan = lake.find("id < 9")
    assert paths(plan.dropped) == path_of(one)
    assert [entry.file.identity for entry in plan.superseded] == [identity(vectors[0])]
    assert plan.matched_rows == 8
    assert rows_of(lake.after(plan)) == rows(*range(10, 18))


def test_a_file_goes_when_the_rest_of_its_rows_does(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    file = lake.parquet(rows(*range(9)))
    lake.commit(*lake.maker.add_deletion_vectors({file["file_path"]: [0, 1, 2, 3]}))
    lake.commit(lake.maker.add_equality_deletes([{"id": 4}, {"id": 5}], [1]))
    plan = lake.find("id > 5")
    assert paths(plan.dropped) == path_of(file)
    assert plan.matched_rows == 3
    assert rows_of(lake.after(plan)) == []


@pytest.mark.parametrize("how", ["referenced", "bounds"])
def test_position_deletes_of_one_file_go(tmp_path: Path, how: str) -> None:
    lake = Lake(tmp_path)
    one, _ = lake.parquet(rows(*range(9))), lake.parquet(rows(*range(9, 18)))
    path = one["file_path"]
    deletes = lake.maker.add_position_deletes([(path, 3), (path, 8)])
    if how == "referenced":
        deletes["referenced_data_file"] = path
    else:
        bound = [{"key": 2147483546, "value": path.encode()}]
        deletes |= {"lower_bounds": bound, "upper_bounds": bound}
    lake.commit(deletes)
    assert lake.find("id > 9").superseded == []
    for row_filter, expected in (("id = 0", {path: [0, 3, 8]}), ("id < 9", {})):
        plan = lake.find(row_filter)
        assert positions(plan) == expected
        assert paths(plan.superseded) == path_of(deletes)


def test_position_deletes_of_many_files_go_when_all_are_covered(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    one, other = lake.parquet(rows(*range(9))), lake.parquet(rows(*range(9, 18)))
    pairs = [(one["file_path"], 3), (other["file_path"], 3)]
    deletes = lake.commit(lake.maker.add_position_deletes(pairs))
    plan = lake.find("id = 0")
    assert positions(plan) == {one["file_path"]: [0, 3]}
    assert plan.superseded == []
    assert rows_of(lake.after(plan)) == rows(*(n for n in range(18) if n not in (0, 3, 12)))
    for row_filter in ("id in (0, 9)", "id < 10"):
        plan = lake.find(row_filter)
        assert paths(plan.superseded) == path_of(deletes)
        assert rows_of(lake.plain_after(plan)) == left_by_duckdb(
            rows(*(n for n in range(18) if n not in (3, 12))), row_filter
        )


def test_equality_deletes_stay_and_still_apply(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    file = lake.parquet(rows(*range(9)))
    lake.commit(lake.maker.add_equality_deletes([{"id": 2}, {"id": 5}], [1]))
    plan = lake.find("id <= 2")
    assert positions(plan) == {file["file_path"]: [0, 1]}
    assert (plan.superseded, plan.matched_rows) == ([], 2)
    assert rows_of(lake.after(plan)) == rows(3, 4, 6, 7, 8)


# -- without reading


def without_data(lake: Lake) -> None:
    for path in (lake.folder / "table" / "data").glob("*.parquet"):
        path.unlink()


def test_whole_partitions_go_unread(tmp_path: Path) -> None:
    lake = Lake(tmp_path, partition_fields=BY_PART)
    one, none = (
        lake.parquet(rows(*range(1, part or 5), part=part), partition={"part": part})
        for part in (3, None)
    )
    without_data(lake)
    assert paths(lake.find("part = 3").dropped) == path_of(one)
    assert paths(lake.find("part is null").dropped) == path_of(none)
    assert lake.find("part != 3").is_empty
    assert paths(lake.find(AlwaysTrue()).dropped) == path_of(one, none)
    assert lake.find(AlwaysTrue()).matched_rows == 6
    with pytest.raises(FileNotFoundError):
        lake.find("part = 3 and name = 'n1'")


def test_files_whose_metrics_say_so_go_unread(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    file = lake.parquet(rows(*range(1, 9)))
    without_data(lake)
    for row_filter in ("id <= 8", "id > 0", "id != 0", "id not in (0, 9)", "id >= 1 and id < 9"):
        assert paths(lake.find(row_filter).dropped) == path_of(file)
    for row_filter in ("id > 8", "id < 1", "id is null"):
        assert lake.find(row_filter).is_empty
    for row_filter in ("id < 8", "id != 3", "name like 'n%'"):
        with pytest.raises(FileNotFoundError):
            lake.find(row_filter)


@pytest.mark.parametrize("counts", ["null_value_counts", "value_counts"])
def test_a_missing_count_is_not_a_count_of_none(tmp_path: Path, counts: str) -> None:
    lake = Lake(tmp_path)
    found = [*rows(*range(9)), *[row | {"id": None} for row in rows(9)]]
    file = lake.parquet(found, **{counts: None})
    for row_filter in ("id < 100", "id != 100", "id not in (100, 101)"):
        plan = lake.find(row_filter)
        assert positions(plan) == {file["file_path"]: list(range(9))}, row_filter
        assert plan.dropped == []


def test_nans_that_were_not_counted_are_found(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    found = [row | {"value": float("nan") if row["id"] == 3 else 1.0} for row in rows(*range(5))]
    bounds = [{"key": 3, "value": struct.pack("<d", 1.0)}]
    file = lake.parquet(found, lower_bounds=bounds, upper_bounds=bounds)
    for row_filter in (parse("value < 2"), EqualTo("value", 1.0)):
        plan = lake.find(row_filter)
        assert positions(plan) == {file["file_path"]: [0, 1, 2, 4]}
    assert positions(lake.find(IsNaN("value"))) == {file["file_path"]: [3]}
    # As in the scans: NaN is no number, and not equal to any.
    assert positions(lake.find(NotEqualTo("value", 1.0))) == {file["file_path"]: [3]}


# -- schemas and formats


def test_columns_that_files_lack_or_have_in_another_type(tmp_path: Path) -> None:
    narrow = [{"id": 1, "name": "id", "type": "int"}]
    lake = Lake(tmp_path, narrow)
    file = lake.parquet([{"id": n} for n in range(6)])
    lake.maker.set_schema(
        [
            {"id": 1, "name": "number", "type": "long"},
            {"id": 2, "name": "new", "type": "int", "initial-default": 7},
            {"id": 3, "name": "newer", "type": "int"},
        ]
    )
    path = file["file_path"]
    assert positions(lake.find("number > 3")) == {path: [4, 5]}
    assert paths(lake.find("number < 5000000000").dropped) == {path}
    assert paths(lake.find("new = 7").dropped) == {path}
    assert paths(lake.find("newer is null").dropped) == {path}
    assert lake.find("new != 7").is_empty
    assert lake.find("newer != 7").is_empty
    assert positions(lake.find("NUMBER = 1", case_sensitive=False)) == {path: [1]}
    for wrong in ("id = 1", "NUMBER = 1"):
        with pytest.raises(ValueError, match="field"):
            lake.find(wrong)


def test_avro_files(tmp_path: Path) -> None:
    fields = [
        {"name": "id", "type": "long", "field-id": 1},
        {"name": "name", "type": ["null", "string"], "field-id": 2},
    ]
    lake = Lake(tmp_path, COLUMNS[:2], encrypted=True)
    numbers = range(70_000)
    found = [{"id": n, "name": None if n % 5 == 0 else f"n{n % 3}"} for n in numbers]
    schema = {"type": "record", "name": "table", "fields": fields}
    file = lake.commit(lake.maker.add_avro(found, schema))
    plan = lake.find("name != 'n1'")
    gone = [n for n in numbers if n % 5 and n % 3 != 1]
    assert positions(plan) == {file["file_path"]: gone}
    left = set(numbers) - set(gone)
    assert rows_of(lake.after(plan)) == [row for row in found if row["id"] in left]


def test_partitions_of_two_specs(tmp_path: Path) -> None:
    lake = Lake(tmp_path, partition_fields=BY_PART)
    old = lake.parquet(rows(0, 1, 2, part=1), partition={"part": 1})
    spec_id = lake.maker.add_spec(
        [{"source-id": 1, "field-id": 1001, "name": "bucket", "transform": "bucket[4]"}]
    )
    new = lake.parquet(rows(3, 4, 5, part=1), partition={"bucket": 2}, spec_id=spec_id)
    plan = lake.find("id in (1, 4)")
    assert positions(plan) == {old["file_path"]: [1], new["file_path"]: [1]}
    by_path = {record.referenced_data_file: record for record in lake.write(plan)}
    assert {path: (r.spec_id, r.partition_values) for path, r in by_path.items()} == {
        old["file_path"]: (0, (1,)),
        new["file_path"]: (spec_id, (2,)),
    }


def test_rows_and_ids_of_javas_table() -> None:
    table = open_fixture("mor_dv")
    view = fixture_view("mor_dv")
    plan = find_deletes(view, parse("id >= 1990 and id < 2010"))
    before = table.scan("id >= 1990 and id < 2010").to_arrow()
    assert plan.matched_rows == before.num_rows > 0
    assert [entry.file.first_row_id for _, entry in plan.vectors.values()] == [2000, 0]
    everything = find_deletes(view, AlwaysTrue())
    assert everything.matched_rows == table.scan().count() == 2598
    assert {e.file.identity for e in everything.superseded} == {
        r.identity for r, _ in java_vectors(table) if r.identity in live_vectors(table)
    }


def test_a_table_without_a_snapshot() -> None:
    view = fixture_view("empty")
    assert find_deletes(view, parse("id = 1")) == DeletePlan()
    with pytest.raises(ValueError, match="nothing_like_it"):
        find_deletes(view, parse("nothing_like_it = 1"))


@pytest.mark.parametrize("pattern", ["*-deletes.puffin", "00000-2[12]-*.parquet"])
def test_damaged_files_are_errors(tmp_path: Path, pattern: str) -> None:
    folder = copied("mor_dv", tmp_path)
    view = fixture_view("mor_dv", tmp_path)
    row_filter = parse("id > 5 and g > 1 and s > 's5'")
    assert not find_deletes(view, row_filter).is_empty
    for path in (folder / "data").glob(pattern):
        data = path.read_bytes()
        middle = len(data) // 2
        path.write_bytes(data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])
    with pytest.raises(AuthenticationError):
        find_deletes(view, row_filter)


# -- the files of vectors


def java_vectors(table: Any) -> list[tuple[ContentFile, bytes]]:
    """Return the records of all vectors in a table's history, and their Puffin files' plaintext."""
    found = {}
    for snapshot in table.metadata.snapshots:
        for manifest in snapshot.manifests(table.io):
            for entry in read_entries(manifest, table.io):
                if entry.file.is_deletion_vector:
                    found[entry.file.identity] = entry.file
    return [(r, table.files.read_encrypted(r.file_path, r.key)) for r in found.values()]


def live_vectors(table: Any) -> set[tuple[str, int | None]]:
    manifests = table.current_snapshot().manifests(table.io)
    entries = itertools.chain.from_iterable(read_entries(m, table.io) for m in manifests)
    return {e.file.identity for e in entries if e.file.content != DATA}


def bitmap(blob: bytes) -> BitMap64:
    return BitMap64.deserialize(blob[8:-4])


def test_vectors_are_javas_to_the_byte(tmp_path: Path) -> None:
    table = open_fixture("mor_dv")
    by_file: dict[str, list[tuple[ContentFile, bytes]]] = {}
    for record, payload in java_vectors(table):
        by_file.setdefault(record.file_path, []).append((record, payload))
    assert sorted(map(len, by_file.values())) == [1, 1, 2]
    for number, found in enumerate(by_file.values()):
        payload = found[0][1]
        vectors = {}
        for record, _ in found:
            assert record.content_offset is not None
            assert record.content_size_in_bytes is not None
            end = record.content_offset + record.content_size_in_bytes
            blob = payload[record.content_offset : end]
            assert vector_blob(bitmap(blob)) == blob
            data_file = record.replace(content=DATA, file_path=record.referenced_data_file)
            vectors[str(record.referenced_data_file)] = bitmap(blob), data_file
        ours = write_deletion_vectors(
            TableOutput(PyArrowFileIO()), f"file://{tmp_path}/{number}.puffin", vectors, keys()
        )
        assert as_written_by(f"ags1 {__version__}", payload) == opened(ours[0])
        for mine, (javas, _) in zip(ours, found, strict=True):
            expected = javas.replace(
                file_path=mine.file_path,
                file_size_in_bytes=mine.file_size_in_bytes,
                key_metadata=mine.key_bytes,
            )
            assert all_fields(mine) == all_fields(expected)


def as_written_by(writer: str, puffin: bytes) -> bytes:
    """Return Java's Puffin file as if somebody else had written it."""
    size = int.from_bytes(puffin[-12:-8], "little")
    footer = json.loads(puffin[-12 - size : -12])
    before, after = (json.dumps(w).encode() for w in (footer["properties"]["created-by"], writer))
    text = puffin[-12 - size : -12].replace(before, after)
    return puffin[: -12 - size] + text + struct.pack("<I", len(text)) + puffin[-8:]


def keys(data_key_length: int = 16) -> EncryptionManager:
    return EncryptionManager(memory_kms(), "keyA", data_key_length=data_key_length)


def data_file(path: str = "file:/t/data/1.parquet", **more: Any) -> ContentFile:
    return ContentFile.of(
        content=DATA,
        file_path=path,
        file_format="PARQUET",
        partition=(),
        record_count=10,
        file_size_in_bytes=100,
        **more,
    )


@pytest.mark.parametrize(
    "found",
    [
        BitMap64([0]),
        BitMap64(range(100_000)),
        BitMap64(range(0, 200_000, 2)),
        BitMap64([1, 2, 3, 70_000, *range(80_000, 90_000), 2**31, 2**32 + 1]),
    ],
    ids=["one", "a run", "a bitset", "some of each"],
)
def test_pyiceberg_reads_vectors(tmp_path: Path, found: BitMap64) -> None:
    file = data_file("file:/t/data/ä 1.parquet")
    before = found.copy()
    (record,) = write_deletion_vectors(
        TableOutput(PyArrowFileIO()),
        f"file://{tmp_path}/1.puffin",
        {file.file_path: (found, file)},
        keys(),
    )
    (vector,) = deletion_vectors_from_puffin_file(PuffinFile(opened(record)))
    assert vector.referenced_data_file == file.file_path
    assert vector.to_vector().to_pylist() == list(found)
    assert found == before
    assert record.record_count == len(found)
    blob = opened(record)[4 : 4 + (record.content_size_in_bytes or 0)]
    assert int.from_bytes(blob[:4], "big") == len(blob) - 8
    assert int.from_bytes(blob[-4:], "big") == zlib.crc32(blob[4:-4])


def test_runs_are_written_as_runs() -> None:
    found = BitMap64()
    for position in range(10, 3000):
        found.add(position)
    assert len(found.serialize()) > 5000
    assert len(vector_blob(found)) < 100


@pytest.mark.parametrize("data_key_length", [16, 24, 32])
def test_each_file_has_its_own_key(tmp_path: Path, data_key_length: int) -> None:
    manager = keys(data_key_length)
    file = data_file()
    vectors = {file.file_path: (BitMap64([1]), file)}
    output = TableOutput(PyArrowFileIO())
    records = [
        write_deletion_vectors(output, f"file://{tmp_path}/{n}.puffin", vectors, manager)[0]
        for n in range(2)
    ]
    found = [record.key for record in records]
    assert len({km.encryption_key for km in found if km}) == 2
    for record, km in zip(records, found, strict=True):
        assert km is not None
        assert len(km.encryption_key) == data_key_length
        sealed = stored(record.file_path).read_bytes()
        assert sealed.startswith(b"AGS1")
        assert km.file_length == record.file_size_in_bytes == len(sealed)
        assert km.encryption_key.hex() not in repr(record)
        assert repr(km.encryption_key) not in repr(record)
    assert output.written == [record.file_path for record in records]


def test_what_cannot_be_written(tmp_path: Path) -> None:
    output = TableOutput(PyArrowFileIO())
    location = f"file://{tmp_path}/1.puffin"
    with pytest.raises(ValueError, match=r"other\.parquet"):
        write_deletion_vectors(
            output, location, {"other.parquet": (BitMap64([1]), data_file())}, keys()
        )
    assert write_deletion_vectors(output, location, {}, keys()) == []
    assert list(tmp_path.iterdir()) == []


def test_two_vectors_of_one_file_are_an_error(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    file = lake.parquet(rows(*range(9)))
    for _ in range(2):
        lake.commit(*lake.maker.add_deletion_vectors({file["file_path"]: [1]}))
    with pytest.raises(MetadataIntegrityError, match="more than one"):
        lake.find("id = 3")

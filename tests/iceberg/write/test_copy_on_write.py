"""Files rewritten without their deleted rows: what Java's tables say by ``copy-on-write``.

PyIceberg, which always rewrites, does the same to a plain table beside ours. Row ids and sequence
numbers are read from the stored files by pyarrow, and added up as the specification says. Random
programs of changes in both modes run against a model that is a dictionary.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from day import SEED
from iceberg_tables import memory_kms
from pyiceberg.exceptions import ValidationException
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType
from row_lineage import Lineage, again, check_whole, entries, lineage, raw
from table_maker import TableMaker

from ags1.iceberg import EncryptedCatalog, EncryptedTable

pytestmark = pytest.mark.filterwarnings(
    "ignore::ags1.kms.memory.KeysInPropertiesWarning",
    "ignore:Delete operation did not match any records",
)

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "v", StringType(), required=False),
)
BY_V = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "v"))
BY_BUCKET = PartitionSpec(PartitionField(1, 1000, BucketTransform(3), "b"))
COMMANDS = ("delete", "update", "merge")
REWRITES, MARKS = "copy-on-write", "merge-on-read"
QUICK = {"commit.retry.min-wait-ms": "1", "commit.retry.max-wait-ms": "5"}
ENCRYPTED = {"format-version": "3", "encryption.key-id": "keyA"} | QUICK


def modes(mode: str) -> dict[str, str]:
    return {f"write.{command}.mode": mode for command in COMMANDS}


def create(
    catalog: EncryptedCatalog, name: str = "db.t", mode: str = REWRITES, **more: Any
) -> EncryptedTable:
    properties = ENCRYPTED | modes(mode) | more.pop("properties", {})
    made = catalog.create_table(name, SCHEMA, properties=properties, **more)
    assert isinstance(made, EncryptedTable)
    return made


def rows(*ids: int, v: str | None = "a") -> pa.Table:
    kind = pa.schema([("id", pa.int64()), ("v", pa.string())])
    return pa.table({"id": ids, "v": [v] * len(ids)}, schema=kind)


def contents(table: Table) -> dict[int, Any]:
    found = again(table).scan().to_arrow().to_pylist()
    state = {row["id"]: row["v"] for row in found}
    assert len(state) == len(found)
    return state


# -- beside PyIceberg


CHANGES: dict[str, Callable[[Any], object]] = {
    "rows of two files": lambda t: t.delete("id in (2, 12)"),
    "the rest of a file": lambda t: t.delete("id >= 10"),
    "no row": lambda t: t.delete("id = 99"),
    "overwrite": lambda t: t.overwrite(rows(50, v="b"), "id in (1, 11, 12)"),
    "overwrite a column's values": lambda t: t.overwrite(rows(50), "v = 'b' or id = 2"),
    "upsert": lambda t: t.upsert(rows(2, 60, v="new"), ["id"]),
    "nulls": lambda t: t.delete("v is null or id = 3"),
}
COUNTED = (
    *("added-data-files", "deleted-data-files", "added-records", "deleted-records"),
    *("total-data-files", "total-records", "total-delete-files"),
)


# Of `make test`: each kind of change once, with partitions or without.
@pytest.mark.slow_variants(
    r"whole-(no row|the rest of a file|overwrite|overwrite a column's values)",
    r"by v-(no row|rows of two files|nulls|upsert|overwrite a column's values)",
)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("spec", [PartitionSpec(), BY_V], ids=["whole", "by v"])
def test_files_are_what_pyiceberg_leaves(
    catalog: EncryptedCatalog, change: str, spec: PartitionSpec
) -> None:
    ours = create(catalog, partition_spec=spec)
    plain = catalog.create_table("db.plain", SCHEMA, partition_spec=spec)
    for table in (ours, plain):
        table.append(pa.concat_tables([rows(1, 2, 3), rows(4, v=None)]))
        table.append(pa.concat_tables([rows(11, 12, v="b"), rows(13, v="c")]))
        CHANGES[change](table)
    assert contents(ours) == contents(plain)
    if change == "upsert":
        return  # PyIceberg writes updates and inserts to files of their own
    sizes = [
        sorted((f["record_count"], f["content"]) for f in again(t).inspect.files().to_pylist())
        for t in (ours, plain)
    ]
    assert sizes[0] == sizes[1]
    # PyIceberg makes two snapshots where files go whole, and one for what is appended.
    summaries = [again(t).snapshots()[-1].summary for t in (ours, plain)]
    if len(again(ours).snapshots()) == len(again(plain).snapshots()):
        assert summaries[0].operation == summaries[1].operation
    changed = [
        {k: v for k, v in s.additional_properties.items() if k in COUNTED and "total" in k}
        for s in summaries
    ]
    assert changed[0] == changed[1]
    check_whole(ours)


def test_the_summary_is_that_of_an_overwrite(catalog: EncryptedCatalog) -> None:
    ours = create(catalog)
    plain = catalog.create_table("db.plain", SCHEMA)
    found = []
    for table in (ours, plain):
        table.append(rows(1, 2, 3))
        table.append(rows(11, 12))
        table.delete("id in (2, 12)")
        summary = again(table).snapshots()[-1].summary
        counted = {k: v for k, v in summary.additional_properties.items() if k in COUNTED}
        found.append((summary.operation, counted))
    assert found[0] == found[1]
    assert found[0][1]["added-records"] == "3"


@pytest.mark.parametrize("file_format", ["parquet", "avro"])
def test_nothing_is_left_of_deleted_rows(catalog: EncryptedCatalog, file_format: str) -> None:
    table = create(catalog, properties={"write.format.default": file_format})
    table.append(pa.concat_tables([rows(1, 2), rows(3, v="secret")]))
    table.append(rows(4, 5))
    before = lineage(table)
    table.delete("v = 'secret'")
    found = [row["id"] for entry in entries(table) for row in raw(entry)]
    assert sorted(found) == [1, 2, 4, 5]
    assert lineage(table) == {n: before[n] for n in found}
    keys = {entry.file.key_bytes for entry in entries(table)}
    assert len(keys) == 2
    [other] = [e for e in entries(table) if e.file.first_row_id == before[4][0]]
    assert other.sequence_number == 2
    # The ids of new rows are above all that were given.
    table.append(rows(6))
    assert lineage(table)[6][0] > max(row_id for row_id, _ in before.values())
    table.delete("id = 1")
    table.overwrite(rows(7), "id = 2")
    assert {n: before[n] for n in (4, 5)}.items() <= lineage(table).items()
    check_whole(table)


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_its_mode(catalog: EncryptedCatalog, command: str) -> None:
    table = create(catalog, mode=MARKS, properties={f"write.{command}.mode": "Copy-On-Write"})
    table.append(rows(*range(9)))
    words = iter("bcd")
    changes: dict[str, Callable[[], object]] = {
        "delete": lambda: table.delete("id = 1"),
        "update": lambda: table.overwrite(rows(2, v="b"), "id = 2"),
        "merge": lambda: table.upsert(rows(3, v=next(words)), ["id"]),
    }
    changes[command]()
    assert not any(entry.file.is_deletion_vector for entry in entries(table))
    for other in set(COMMANDS) - {command}:
        changes[other]()
        assert any(entry.file.is_deletion_vector for entry in entries(table))
        with table.transaction() as transaction:
            transaction.set_properties({f"write.{other}.mode": "copy"})
        with pytest.raises(ValueError, match="Unknown row-level operation mode: copy"):
            changes[other]()
    check_whole(table)


def test_rows_are_marked_unless_the_table_says_otherwise(catalog: EncryptedCatalog) -> None:
    table = catalog.create_table("db.t", SCHEMA, properties=ENCRYPTED)
    assert isinstance(table, EncryptedTable)
    table.append(rows(1, 2))
    table.delete("id = 1")
    assert [entry.file.content for entry in entries(table)] in ([0, 1], [1, 0])


# -- what files may be


def test_older_deletes_of_all_kinds_are_taken_along(
    catalog: EncryptedCatalog, tmp_path: Path
) -> None:
    columns = [{"id": 1, "name": "id", "type": "long"}, {"id": 2, "name": "v", "type": "string"}]
    maker = TableMaker(tmp_path / "lake", columns, memory_kms())
    maker.properties |= modes(REWRITES)
    files = [
        maker.add_parquet([{"id": n, "v": "a"} for n in range(first, first + 5)])
        for first in (0, 10, 20, 30)
    ]
    for file in files:
        maker.commit(file)
    maker.commit(*maker.add_deletion_vectors({files[0]["file_path"]: [1, 2]}))
    pairs = [(files[1]["file_path"], 1), (files[2]["file_path"], 1)]
    maker.commit(maker.add_position_deletes(pairs))
    maker.commit(maker.add_equality_deletes([{"id": n} for n in (3, 13, 23, 33)], [1]))
    catalog.register_table("db.lake", f"file://{maker.write()}")
    table = catalog.load_table("db.lake")
    assert isinstance(table, EncryptedTable)
    before = contents(table)
    assert sorted(before) == [0, 4, 10, 12, 14, 20, 22, 24, 30, 31, 32, 34]
    assert {entry.file.first_row_id for entry in entries(table)} == {None}
    table.delete("id in (0, 10)")
    left = {n: v for n, v in before.items() if n not in (0, 10)}
    assert contents(table) == left
    # Rows had no ids before, as in a table of an older format version, and all have one now.
    data = [entry for entry in entries(table) if not entry.file.content]
    assert sorted([row["id"] for row in raw(e)] for e in data)[:2] == [[4], [12, 14]]
    assert {row.get("_row_id") for entry in data for row in raw(entry)} == {None}
    ids_now = {
        row["id"]: (entry.file.first_row_id or 0) + position
        for entry in data
        for position, row in enumerate(raw(entry))
    }
    assert len(set(ids_now.values())) == len(ids_now)
    table.delete("id in (20, 30)")
    found = {
        row["id"]: row.get("_row_id")
        for entry in entries(table)
        if not entry.file.content
        for row in raw(entry)
    }
    ids_now |= dict.fromkeys((4, 12, 14))
    assert found == {n: ids_now[n] for n in left if n not in (20, 30)}
    # The vector went with its file. Deletes of several files stay, as in Java.
    assert sorted(e.file.content for e in entries(table)) == [0, 0, 0, 0, 1, 2]
    table.delete("id > 14")
    assert sorted(contents(table)) == [4, 12, 14]
    table.delete("id = 4")
    assert sorted(contents(table)) == [12, 14]
    check_whole(table)


def test_rows_of_an_older_schema_spec_and_order(catalog: EncryptedCatalog) -> None:
    table = create(catalog)
    table.append(rows(5, 1, 4, 2, 3, v="x"))
    before = lineage(table)
    with table.update_schema() as schema:
        schema.rename_column("v", "word")
        schema.add_column("n", LongType())
    with table.update_spec() as spec:
        spec.add_field("id", BucketTransform(2), "b")
    with table.update_sort_order() as order:
        order.asc("id", IdentityTransform())
    table.delete("id = 3")
    data = entries(table)
    assert {e.file.spec_id for e in data} == {table.spec().spec_id}
    assert {e.file.sort_order_id for e in data} == {table.sort_order().order_id}
    for entry in data:
        found = [row["id"] for row in raw(entry)]
        assert found == sorted(found)
        assert {row["word"] for row in raw(entry)} == {"x"}
        assert {row["n"] for row in raw(entry)} == {None}
    after = lineage(table)
    assert after == {n: before[n] for n in (1, 2, 4, 5)}
    assert len({e.file.partition_values for e in data}) == len(data) > 1
    check_whole(table)


def test_a_file_that_the_table_has_twice_keeps_its_rows_twice(catalog: EncryptedCatalog) -> None:
    table = create(catalog)
    table.append(rows(1, 2, 3))
    [entry] = entries(table)
    path = Path(entry.file.file_path.removeprefix("file://"))
    plain = path.with_name("plain.parquet")
    pq.write_table(rows(7, 8, 9), plain)
    for _ in range(2):
        with table.transaction() as transaction:
            transaction.add_files(
                [f"file://{plain}"], check_duplicate_files=False, allow_plaintext=True
            )
    table.delete("id in (1, 8)")
    found = again(table).scan().to_arrow()["id"].to_pylist()
    assert sorted(found) == [2, 3, 7, 7, 9, 9]


def test_files_are_not_mixed(catalog: EncryptedCatalog) -> None:
    table = create(catalog, partition_spec=BY_BUCKET)
    for first in range(0, 100, 20):
        table.append(rows(*range(first, first + 20)))
    table.delete("id in (0, 5, 21, 22, 45, 99)")
    bounds = {(min(x), max(x)) for x in ([r["id"] for r in raw(e)] for e in entries(table))}
    assert all(high - low < 20 for low, high in bounds)
    assert len(contents(table)) == 94
    check_whole(table)


# -- several writers


def test_a_retry_rewrites_nothing_again(catalog: EncryptedCatalog) -> None:
    table = create(catalog)
    table.append(rows(1, 2, 3))
    before = lineage(table)
    transaction = again(table).transaction()
    transaction.delete("id = 2")
    written = set(transaction.output.written)
    again(table).append(rows(10))
    again(table).append(rows(20))
    transaction.commit_transaction()
    files = {e.file.file_path for e in entries(table)}
    assert len(files & written) == 1
    after = lineage(table)
    assert {n: after[n] for n in (1, 3)} == {n: before[n] for n in (1, 3)}
    assert after[10][0] != after[20][0]
    check_whole(table)


def test_rows_that_are_not_committed_yet_have_no_ids_to_keep(catalog: EncryptedCatalog) -> None:
    table = create(catalog)
    table.append(rows(1, 2))
    before = lineage(table)
    with again(table).transaction() as transaction:
        transaction.append(rows(3, 4, 5))
        transaction.delete("id in (1, 4)")
        transaction.delete("id = 3")
        again(table).append(rows(10, 11, 12))  # takes the ids that the append had at first
    after = lineage(table)
    assert sorted(after) == [2, 5, 10, 11, 12]
    assert after[2] == before[2]
    assert after[5][1] > after[10][1]
    check_whole(table)


def test_deletes_by_value_meanwhile_are_not_undone(
    catalog: EncryptedCatalog, tmp_path: Path
) -> None:
    columns = [{"id": 1, "name": "id", "type": "long"}, {"id": 2, "name": "v", "type": "string"}]
    maker = TableMaker(tmp_path / "lake", columns, memory_kms())
    maker.commit(maker.add_parquet([{"id": n, "v": "a"} for n in range(5)]))
    first = maker.write()
    bound = [{"key": 1, "value": (3).to_bytes(8, "little")}]
    deletes = maker.add_equality_deletes([{"id": 3}], [1])
    maker.commit(deletes | {"lower_bounds": bound, "upper_bounds": bound})
    second = maker.write()
    for mode in (MARKS, REWRITES):
        catalog.register_table("db.lake", f"file://{first}")
        table = catalog.load_table("db.lake")
        assert isinstance(table, EncryptedTable)
        transaction = table.transaction()
        transaction.set_properties(modes(mode))
        transaction.delete("id = 1")
        # Somebody deletes another row of the file, by its value.
        catalog.drop_table("db.lake")
        catalog.register_table("db.lake", f"file://{second}")
        if mode == REWRITES:
            with pytest.raises(ValidationException, match="added the delete file"):
                transaction.commit_transaction()
        else:
            transaction.commit_transaction()
        left = sorted(contents(table))
        assert left == ([0, 1, 2, 4] if mode == REWRITES else [0, 2, 4])
        catalog.drop_table("db.lake")


def test_a_rewrite_that_fails_leaves_nothing(
    catalog: EncryptedCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = create(catalog, partition_spec=BY_BUCKET)
    table.append(rows(*range(30)))
    table.append(rows(*range(30, 60)))
    before = contents(table)
    from ags1.iceberg.write import copy_on_write

    inherited = copy_on_write._inherited
    calls = iter(range(100))

    def failing(*arguments: Any) -> Any:
        if next(calls) == 1:
            raise OSError("the disk is full")
        return inherited(*arguments)

    monkeypatch.setattr(copy_on_write, "_inherited", failing)
    with pytest.raises(OSError, match="disk is full"):
        table.delete("id in (1, 2, 3, 4, 5, 31, 32, 33, 34, 35)")
    assert contents(table) == before
    check_whole(table)
    folder = Path(table.location().removeprefix("file://"))
    assert not [
        p
        for p in folder.rglob("*")
        if p.is_file() and p.suffix not in (".parquet", ".avro", ".json")
    ]


# -- random programs


class Program:
    """Random changes of a table, and a model of its rows."""

    def __init__(self, table: EncryptedTable, pick: random.Random, *, mixed: bool) -> None:
        self.table = table
        self.pick = pick
        self.mixed = mixed
        self.state: dict[int, str | None] = {}
        self.lineage: Lineage = {}
        self.given: set[int] = set()
        self.next_id = 0

    def step(self) -> None:
        """Make a change, and compare."""
        before = dict(self.state)
        works: list[Callable[[], None]] = [
            *[self.append] * 2,
            *[self.delete] * 3,
            *[self.overwrite] * 2,
            *[self.upsert] * 2,
            self.several,
            self.rekey,
            self.evolve,
        ]
        if self.mixed:
            works.append(self.switch)
        self.written: set[int] = set()
        self.pick.choice(works)()
        assert contents_of(self.table) == self.state
        found = lineage(self.table)
        assert found.keys() == self.state.keys()
        kept = self.state.keys() & before.keys() - self.written
        assert {n: found[n] for n in kept} == {n: self.lineage[n] for n in kept}
        new = {row_id for n, (row_id, _) in found.items() if n not in kept}
        assert not new & self.given
        self.given |= new
        self.lineage = found
        if not self.mixed:
            data = entries(self.table)
            assert not any(entry.file.content for entry in data)
            assert sum(entry.file.record_count for entry in data) == len(self.state)

    # -- one change

    def append(self, target: Any = None) -> None:
        some = self.some_new()
        (target or self.other()).append(self.table_of(some))
        self.wrote(some)

    def delete(self, target: Any = None) -> None:
        row_filter, takes = self.some_filter()
        with self.in_between(target) as table:
            table.delete(row_filter)
        self.state = {n: v for n, v in self.state.items() if not takes(n, v)}

    def overwrite(self, target: Any = None) -> None:
        row_filter, takes = self.some_filter()
        some = self.some_new()
        with self.in_between(target) as table:
            table.overwrite(self.table_of(some), row_filter)
        self.state = {n: v for n, v in self.state.items() if not takes(n, v)}
        self.wrote(some)

    def upsert(self, target: Any = None) -> None:
        known = self.pick.sample(sorted(self.state), min(len(self.state), self.pick.randrange(4)))
        some = dict.fromkeys(known, self.pick.choice("abc")) | self.some_new()
        (target or self.other()).upsert(self.table_of(some), ["id"])
        self.wrote({n: v for n, v in some.items() if self.state.get(n, "none") != v})

    def several(self) -> None:
        with self.other().transaction() as transaction:
            for _ in range(self.pick.randrange(2, 4)):
                self.pick.choice([self.append, self.delete, self.overwrite, self.upsert])(
                    transaction
                )

    def rekey(self) -> None:
        self.other().rekey()

    def switch(self) -> None:
        with self.other().transaction() as transaction:
            transaction.set_properties(
                {f"write.{c}.mode": self.pick.choice([REWRITES, MARKS]) for c in COMMANDS}
            )

    def evolve(self) -> None:
        table = self.other()
        kind = self.pick.randrange(3)
        if kind == 0:
            with table.update_schema() as schema:
                schema.add_column(f"c{self.next_id}_{self.pick.randrange(1 << 30)}", StringType())
        elif kind == 1:
            with table.update_spec() as spec:
                names = [field.name for field in table.spec().fields]
                if names:
                    spec.remove_field(names[0])
                else:
                    spec.add_field("id", BucketTransform(self.pick.randrange(2, 5)))
        else:
            with table.update_sort_order() as order:
                order.desc("id", IdentityTransform())

    # -- what it is made of

    def other(self) -> Any:
        return again(self.table)

    @contextmanager
    def in_between(self, target: Any) -> Iterator[Any]:
        """Give a table that somebody else appends to before the change is committed."""
        if target is not None or self.pick.random() < 0.7:
            yield target or self.other()
            return
        with self.other().transaction() as transaction:
            yield transaction
            # No filter takes such rows.
            some = {10_000 + n: "other" for n in self.some_new()}
            again(self.table).append(self.table_of(some))
        self.wrote(some)

    def some_new(self) -> dict[int, str | None]:
        first = self.next_id
        self.next_id += self.pick.randrange(1, 5)
        return {n: self.pick.choice(["a", "b", "c", None]) for n in range(first, self.next_id)}

    def some_filter(self) -> tuple[str, Callable[[int, str | None], bool]]:
        low = self.pick.randrange(self.next_id + 1)
        high = low + self.pick.randrange(1, 8)
        word = self.pick.choice("abc")
        return self.pick.choice(
            [
                (f"id >= {low} and id < {high}", lambda n, v: low <= n < high),
                (f"id = {low}", lambda n, v: n == low),
                (f"v = '{word}' and id < {high}", lambda n, v: v == word and n < high),
                (f"v != '{word}' and id < {low}", lambda n, v: v not in (word, None) and n < low),
                (
                    f"v is null and id > {low} and id < 10000",
                    lambda n, v: v is None and low < n < 10_000,
                ),
            ]
        )

    def table_of(self, some: dict[int, str | None]) -> pa.Table:
        found = rows(*some).set_column(1, "v", pa.array(some.values(), pa.string()))
        for column in again(self.table).schema().column_names[2:]:
            found = found.append_column(column, pa.nulls(len(some), pa.string()))
        return found

    def wrote(self, some: dict[int, Any]) -> None:
        self.state |= some
        self.written |= some.keys()


def contents_of(table: EncryptedTable) -> dict[int, Any]:
    found = again(table).scan(selected_fields=("id", "v")).to_arrow().to_pylist()
    state = {row["id"]: row["v"] for row in found}
    assert len(state) == len(found)
    return state


@pytest.mark.slow_variants(r"1-.*")
@pytest.mark.parametrize("mixed", [False, True], ids=["rewriting", "mixed"])
@pytest.mark.parametrize(
    "number", [*range(2), *(pytest.param(n, marks=pytest.mark.slow) for n in range(2, 14))]
)
def test_random_programs(catalog: EncryptedCatalog, number: int, mixed: bool) -> None:
    # The slow ones are others each day.
    pick = random.Random(number if number < 2 else SEED * 100 + number)
    properties = {
        "write.format.default": pick.choice(["parquet", "parquet", "avro"]),
        "commit.manifest.min-count-to-merge": pick.choice(["2", "4", "100"]),
    }
    spec = pick.choice([PartitionSpec(), BY_V, BY_BUCKET])
    table = create(catalog, partition_spec=spec, properties=properties)
    program = Program(table, pick, mixed=mixed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(12):
            program.step()
    check_whole(table)

"""Small files rewritten into few: the same rows with their IDs, without the deleted ones.

PyIceberg reads a plain twin of the table, and row IDs are read from the stored files by pyarrow.
"""

from __future__ import annotations

import _thread
import logging
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from iceberg_tables import memory_kms
from kept_tables import KeptTables
from pyiceberg.exceptions import ValidationException
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType
from row_lineage import again, check_whole, entries, lineage, raw
from table_maker import TableMaker

from ags1.errors import AuthenticationError, MetadataIntegrityError
from ags1.iceberg import Compacted, EncryptedCatalog, EncryptedTable
from ags1.iceberg.operations import compact
from ags1.iceberg.operations.compact_plan import RewriteOptions, Sizes, plan_groups
from ags1.iceberg.read.records import DELETED, ContentFile, ManifestEntry
from ags1.iceberg.storage.output import TableOutput
from ags1.iceberg.write import merging
from ags1.iceberg.write.conflicts import Changes, find_rewrite_conflict
from ags1.iceberg.write.executors import RewriteThreads

pytestmark = pytest.mark.filterwarnings(
    "ignore::ags1.kms.memory.KeysInPropertiesWarning",
    "ignore:Delete operation did not match any records",
)

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "v", StringType(), required=False),
)
BY_V = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "v"))
BY_BUCKET = PartitionSpec(PartitionField(1, 1001, BucketTransform(3), "b"))
QUICK = {"commit.retry.min-wait-ms": "1", "commit.retry.max-wait-ms": "5"}
ENCRYPTED = {"format-version": "3", "encryption.key-id": "keyA"} | QUICK


def create(catalog: EncryptedCatalog, name: str = "db.t", **more: Any) -> EncryptedTable:
    properties = ENCRYPTED | more.pop("properties", {})
    made = catalog.create_table(name, more.pop("schema", SCHEMA), properties=properties, **more)
    assert isinstance(made, EncryptedTable)
    return made


def rows(ids: Sequence[int], v: str | None = "a") -> pa.Table:
    kind = pa.schema([("id", pa.int64()), ("v", pa.string())])
    return pa.table({"id": ids, "v": [v] * len(ids)}, schema=kind)


def ids(table: EncryptedTable) -> list[int]:
    return sorted(again(table).scan().to_arrow()["id"].to_pylist())


def data_files(table: EncryptedTable) -> list[ContentFile]:
    return [entry.file for entry in entries(table) if entry.file.content == 0]


def delete_files(table: EncryptedTable) -> list[ContentFile]:
    return [entry.file for entry in entries(table) if entry.file.content != 0]


def keys(files: list[ContentFile]) -> set[bytes]:
    return {file.key.encryption_key for file in files if file.key is not None}


def summary(table: EncryptedTable) -> dict[str, str]:
    last = again(table).current_snapshot().summary
    return {"operation": last.operation.value, **last.additional_properties}


@pytest.fixture
def six(kept: KeptTables) -> EncryptedTable:
    """A table of six files with ten rows each, three of them deleted."""
    made: EncryptedTable = kept(six_files)
    return made


def six_files(catalog: EncryptedCatalog) -> EncryptedTable:
    table = create(catalog)
    with table.transaction() as transaction:
        for first in range(0, 60, 10):
            transaction.append(rows(range(first, first + 10)))
    table.delete("id in (3, 4, 25)")
    return table


# -- the rows


def test_small_files_become_one_with_the_same_rows(six: EncryptedTable) -> None:
    before, old = lineage(six), data_files(six)
    size = sum(file.file_size_in_bytes for file in old)
    assert len(delete_files(six)) == 2
    done = six.rewrite_data_files()
    assert done == Compacted(6, 1, size, 2)
    (new,) = data_files(six)
    assert (new.record_count, delete_files(six)) == (57, [])
    # Nothing is left of deleted rows, and the others are in the order in which they were added.
    (entry,) = entries(six)
    assert [row["id"] for row in raw(entry)] == sorted(set(range(60)) - {3, 4, 25})
    assert lineage(six) == before
    assert len(keys([*old, new])) == 7
    check_whole(six)


def test_the_summary_is_that_of_a_replacement(six: EncryptedTable) -> None:
    before = summary(six)
    six.rewrite_data_files()
    after = summary(six)
    assert after["operation"] == "replace"
    counted = ("added-data-files", "deleted-data-files", "removed-delete-files", "removed-dvs")
    assert [after[name] for name in counted] == ["1", "6", "2", "2"]
    assert (after["added-records"], after["deleted-records"]) == ("57", "60")
    assert int(before["total-records"]) == 60
    assert (after["total-records"], after["total-data-files"]) == ("57", "1")
    assert after["total-delete-files"] == "0"


def test_manifests_that_lose_all_their_files_become_one(six: EncryptedTable) -> None:
    removed = {file.file_path for file in (*data_files(six), *delete_files(six))}
    six.rewrite_data_files()
    # One for each of the new file, the old data files and their vectors. There were seven.
    counts = summary(six)
    assert (counts["manifests-created"], counts["manifests-replaced"]) == ("3", "7")
    listed = again(six).inspect.entries().to_pylist()
    assert {e["data_file"]["file_path"] for e in listed if e["status"] == DELETED} == removed
    six.append(rows([100]))
    assert summary(six)["manifests-kept"] == "1"
    check_whole(six)


def test_manifests_that_keep_a_file_stay_apart(catalog: EncryptedCatalog) -> None:
    table = by_value(catalog)
    table.delete("v = 'b'")
    counts = summary(table)
    assert (counts["manifests-created"], counts["manifests-replaced"]) == ("4", "4")
    assert ids(table) == [0, 1, 2, 3]
    check_whole(table)


def test_a_manifest_that_cannot_be_written_leaves_none_of_the_others(
    catalog: EncryptedCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = by_value(catalog)
    folder = Path(table.location().removeprefix("file://")) / "metadata"
    before, found = again(table).current_snapshot(), set(folder.iterdir())
    write = TableOutput.write_encrypted

    def fail(output: TableOutput, location: str, *what: Any) -> Any:
        if location.endswith("-m0.avro"):
            raise OSError("no room")
        time.sleep(0.1)
        return write(output, location, *what)

    monkeypatch.setattr(TableOutput, "write_encrypted", fail)
    with pytest.raises(OSError, match="no room"):
        table.delete("v = 'b'")
    time.sleep(0.3)
    assert set(folder.iterdir()) == found
    assert again(table).current_snapshot() == before


def by_value(catalog: EncryptedCatalog) -> EncryptedTable:
    """Return a table of four manifests, each with a file of the partition a and one of b."""
    table = create(catalog, partition_spec=BY_V)
    for number in range(4):
        table.append(pa.concat_tables([rows([number], "a"), rows([number], "b")]))
    return table


def test_new_files_have_the_sequence_number_of_the_start(six: EncryptedTable) -> None:
    start = again(six).current_snapshot()
    six.rewrite_data_files()
    (entry,) = entries(six)
    assert entry.sequence_number == start.sequence_number
    assert entry.file_sequence_number == start.sequence_number + 1


def test_compacting_twice_keeps_the_first_ids(six: EncryptedTable) -> None:
    before = lineage(six)
    six.rewrite_data_files()
    six.append(rows([70]))
    six.overwrite(rows([5], v="changed"), "id = 5")
    now = lineage(six)
    assert {i: now[i] for i in before if i != 5} == {i: before[i] for i in before if i != 5}
    six.rewrite_data_files(rewrite_all=True)
    assert lineage(six) == now
    assert len(data_files(six)) == 1
    check_whole(six)


@pytest.mark.slow
@pytest.mark.parametrize("file_format", ["parquet", "avro"])
def test_random_tables_keep_rows_and_lineage(catalog: EncryptedCatalog, file_format: str) -> None:
    dice = random.Random(file_format)
    properties = {"write.format.default": file_format, "write.merge.mode": "copy-on-write"}
    for number in range(3):
        spec = BY_V if number == 1 else PartitionSpec()
        table = create(catalog, f"db.t{number}", partition_spec=spec, properties=properties)
        for step in range(8):
            first = step * 20
            count = dice.randint(1, 20)
            values = [dice.choice(["a", "b", None]) for _ in range(count)]
            table.append(
                pa.table({"id": range(first, first + count), "v": values}, rows([]).schema)
            )
            doomed = dice.sample(range(first + 20), 3)
            table.delete(f"id in ({', '.join(map(str, doomed))})")
            if step == 4:
                table.upsert(rows([0, 1, 500 + number], v="b"), ["id"])
        before, state = lineage(table), again(table).scan().to_arrow().sort_by("id")
        table.rewrite_data_files(rewrite_all=True)
        assert lineage(table) == before
        assert again(table).scan().to_arrow().sort_by("id").equals(state)
        found = [row["id"] for entry in entries(table) for row in raw(entry)]
        assert sorted(found) == sorted(before)
        check_whole(table)


COLUMNS = [
    {"id": 1, "name": "id", "type": "long", "required": True},
    {"id": 2, "name": "name", "type": "string"},
]


def some(first: int, count: int) -> list[dict[str, Any]]:
    return [{"id": i, "name": f"name {i}"} for i in range(first, first + count)]


def registered(catalog: EncryptedCatalog, maker: TableMaker) -> EncryptedTable:
    table = catalog.register_table("db.made", maker.write())
    assert isinstance(table, EncryptedTable)
    return table


def test_position_and_equality_deletes_are_applied(
    catalog: EncryptedCatalog, tmp_path: Path
) -> None:
    maker = TableMaker(tmp_path / "made", COLUMNS, memory_kms())
    one, two = maker.add_parquet(some(0, 100)), maker.add_parquet(some(100, 100))
    maker.commit(one, two)
    maker.commit(maker.add_position_deletes([(one["file_path"], 3), (two["file_path"], 5)]))
    maker.commit(maker.add_equality_deletes([{"id": 4}, {"id": 300}], [1]))
    maker.commit(maker.add_parquet(some(300, 10)))
    table = registered(catalog, maker)
    expected = sorted((set(range(200)) | set(range(300, 310))) - {3, 4, 105})
    assert ids(table) == expected
    done = table.rewrite_data_files(min_input_files=2)
    # As in Java: deletes that may be of other files stay.
    assert (done.rewritten_data_files_count, done.removed_delete_files_count) == (3, 0)
    assert ids(table) == expected
    assert len(delete_files(table)) == 2
    done = table.rewrite_data_files(remove_dangling_deletes=True)
    assert done == Compacted(removed_delete_files_count=2)
    assert summary(table)["operation"] == "replace"
    assert ids(table) == expected
    assert delete_files(table) == []


def test_dangling_deletes_go_with_the_files_and_needed_ones_stay(
    catalog: EncryptedCatalog, tmp_path: Path
) -> None:
    maker = TableMaker(tmp_path / "made", COLUMNS, memory_kms())
    one, two = maker.add_parquet(some(0, 10)), maker.add_parquet(some(10, 10))
    maker.commit(one, two)
    maker.commit(maker.add_position_deletes([(one["file_path"], 1), (two["file_path"], 2)]))
    maker.commit(maker.add_equality_deletes([{"id": 15}], [1]))
    three = maker.add_parquet(some(20, 10))
    maker.commit(three)
    maker.commit(maker.add_position_deletes([(three["file_path"], 1)]))
    table = registered(catalog, maker)
    expected = sorted(set(range(30)) - {1, 12, 15, 21})
    done = table.rewrite_data_files("id < 20", rewrite_all=True, remove_dangling_deletes=True)
    assert (done.rewritten_data_files_count, done.removed_delete_files_count) == (2, 2)
    assert ids(table) == expected
    assert [file.content for file in delete_files(table)] == [1]
    done = table.rewrite_data_files(rewrite_all=True, remove_dangling_deletes=True)
    assert done.removed_delete_files_count == 1
    assert (ids(table), delete_files(table)) == (expected, [])


def test_unencrypted_files_and_old_schemas_are_rewritten(
    catalog: EncryptedCatalog, tmp_path: Path
) -> None:
    maker = TableMaker(tmp_path / "made", COLUMNS, memory_kms())
    maker.commit(maker.add_parquet(some(0, 10), encrypted=False), maker.add_parquet(some(10, 10)))
    maker.set_schema(
        [*COLUMNS, {"id": 3, "name": "n", "type": "int", "initial-default": 7, "write-default": 8}]
    )
    table = registered(catalog, maker)
    table.append(pa.table({"id": [20], "name": ["x"], "n": pa.array([1], pa.int32())}, ARROW_N))
    before = again(table).scan().to_arrow().sort_by("id")
    assert before["n"].to_pylist() == [7] * 20 + [1]
    table.rewrite_data_files(min_input_files=2)
    (file,) = data_files(table)
    assert file.is_encrypted
    assert again(table).scan().to_arrow().sort_by("id").equals(before)
    (entry,) = entries(table)
    assert [row["n"] for row in raw(entry)] == [7] * 20 + [1]


ARROW_N = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), ("name", pa.string()), ("n", pa.int32())]
)


def test_a_file_whose_rows_are_all_deleted_is_removed(
    catalog: EncryptedCatalog, tmp_path: Path
) -> None:
    maker = TableMaker(tmp_path / "made", COLUMNS, memory_kms())
    file = maker.add_parquet(some(0, 10))
    maker.commit(file)
    maker.commit(*maker.add_deletion_vectors({file["file_path"]: list(range(10))}))
    table = registered(catalog, maker)
    assert table.rewrite_data_files() == Compacted(1, 0, file["file_size_in_bytes"], 1)
    assert entries(table) == []
    assert summary(table)["operation"] == "replace"
    assert ids(table) == []


def test_a_large_file_is_cut_at_its_row_groups(catalog: EncryptedCatalog) -> None:
    table = create(catalog, properties={"write.parquet.row-group-limit": "200"})
    dice = random.Random(1)
    values = [dice.randbytes(20).hex() for _ in range(4000)]
    table.append(pa.table({"id": range(4000), "v": values}, rows([]).schema))
    table.delete("id in (0, 200, 3999)")
    before = lineage(table)
    size = data_files(table)[0].file_size_in_bytes
    table.rewrite_data_files(target_file_size_bytes=size // 4, max_file_size_bytes=size // 2)
    files = data_files(table)
    assert 3 <= len(files) <= 5
    assert lineage(table) == before
    in_order = [row["id"] for entry in reversed(entries(table)) for row in raw(entry)]
    assert sorted(in_order) == sorted(before)
    for entry in entries(table):
        found = [row["id"] for row in raw(entry)]
        assert found == sorted(found)


# -- partitions and order


def test_partitions_are_not_mixed(catalog: EncryptedCatalog) -> None:
    table = create(catalog, partition_spec=BY_V)
    for i in range(5):
        table.append(pa.concat_tables([rows([i], "a"), rows([10 + i], "b"), rows([20 + i], None)]))
    table.append(rows([99], "c"))
    before = lineage(table)
    assert table.rewrite_data_files().added_data_files_count == 3
    found = {file.partition_values: file.record_count for file in data_files(table)}
    assert found == {("a",): 5, ("b",): 5, (None,): 5, ("c",): 1}
    assert lineage(table) == before
    check_whole(table)


def test_files_of_an_old_spec_get_the_current_one(catalog: EncryptedCatalog) -> None:
    table = create(catalog)
    for i in range(6):
        table.append(pa.concat_tables([rows([i], "a"), rows([10 + i], "b")]))
    with table.update_spec() as update:
        update.add_field("v", IdentityTransform(), "by_v")
    table.append(rows([30], "a"))
    before = lineage(table)
    done = table.rewrite_data_files()
    assert (done.rewritten_data_files_count, done.added_data_files_count) == (6, 2)
    spec = table.spec().spec_id
    found = sorted((f.spec_id, f.partition_values, f.record_count) for f in data_files(table))
    assert found == [(spec, ("a",), 1), (spec, ("a",), 6), (spec, ("b",), 6)]
    assert lineage(table) == before
    check_whole(table)


ORDER = SortOrder(
    SortField(1, IdentityTransform(), SortDirection.DESC, NullOrder.NULLS_LAST), order_id=1
)


def test_rows_of_a_sorted_table_are_sorted(catalog: EncryptedCatalog) -> None:
    table = create(catalog, sort_order=ORDER)
    for first in (40, 0, 20, 60, 10):
        table.append(rows(range(first, first + 5)))
    before = lineage(table)
    table.rewrite_data_files()
    (entry,) = entries(table)
    found = [row["id"] for row in raw(entry)]
    assert found == sorted(found, reverse=True)
    assert entry.file.sort_order_id == table.sort_order().order_id
    assert lineage(table) == before


def test_a_file_of_several_sorted_runs_is_not_called_sorted(
    catalog: EncryptedCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merging, "_MAX_WAITING_SORTED", 40_000)
    table = create(catalog, sort_order=ORDER)
    for first in range(0, 5000, 1000):
        table.append(rows(range(first, first + 1000), v="some text"))
    before = lineage(table)
    table.rewrite_data_files()
    (entry,) = entries(table)
    found = [row["id"] for row in raw(entry)]
    assert sorted(found) == list(range(5000))
    assert found != sorted(found, reverse=True)
    assert not entry.file.sort_order_id
    assert lineage(table) == before


# -- the choice of files


class FakeTask:
    def __init__(self, number: int, size: int, rows: int = 100, **more: Any) -> None:
        self.delete_files = set(more.pop("deletes", ()))
        self.file = ContentFile.of(
            content=0,
            file_path=f"f{number:03}.parquet",
            file_format="PARQUET",
            partition=more.pop("partition", ()),
            record_count=rows,
            file_size_in_bytes=size,
            first_row_id=number * 1000,
            **more,
        )
        self.file.sequence_number = 1


def vector(path: str, rows: int) -> ContentFile:
    return ContentFile.of(
        content=1,
        file_path=f"{path}.puffin",
        file_format="PUFFIN",
        record_count=rows,
        file_size_in_bytes=9,
        referenced_data_file=path,
        content_offset=4,
    )


def groups(tasks: list[Any], spec: PartitionSpec | None = None, **options: Any) -> list[list[str]]:
    asked = RewriteOptions(**{"target_file_size_bytes": 100, **options})
    found = plan_groups(tasks, asked, Sizes.of(asked, 512), spec or PartitionSpec())
    for group in found:
        merged = [part.task for merge in group.merges for part in merge.parts]
        assert list(dict.fromkeys(map(id, merged))) == list(map(id, group.tasks))
    return [[task.file.file_path[1:4] for task in group.tasks] for group in found]


# The rules of Java's SizeBasedFileRewritePlanner and BinPackRewriteFilePlanner, one by one.
@pytest.mark.parametrize(
    ("sizes", "options", "expected"),
    [
        ([10] * 4, {}, []),
        ([10] * 5, {}, [["000", "001", "002", "003", "004"]]),
        ([10] * 2, {"min_input_files": 2}, [["000", "001"]]),
        ([10], {"min_input_files": 1}, []),
        ([60, 60], {}, [["000", "001"]]),
        ([74, 75, 180, 181], {}, [["000", "003"]]),
        ([181], {}, [["000"]]),
        ([180], {}, []),
        ([100], {"rewrite_all": True}, [["000"]]),
        (
            [10] * 12,
            {"max_file_group_size_bytes": 60},
            [[f"{i:03}" for i in range(6)], [f"{i:03}" for i in range(6, 12)]],
        ),
        ([10] * 5, {"min_file_size_bytes": 10}, []),
    ],
)
def test_files_are_chosen_by_size(
    sizes: list[int], options: dict[str, Any], expected: list[list[str]]
) -> None:
    assert groups([FakeTask(i, size) for i, size in enumerate(sizes)], **options) == expected


def test_files_are_chosen_by_deletes() -> None:
    def task(deleted: int) -> Any:
        deletes = [vector("f000.parquet", deleted)] if deleted else []
        return [FakeTask(0, 100, deletes=deletes)]

    assert groups(task(29)) == []
    assert groups(task(30)) == [["000"]]
    assert groups(task(29), delete_ratio_threshold=0.29) == [["000"]]
    assert groups(task(1), delete_file_threshold=1) == [["000"]]
    assert groups(task(1), delete_file_threshold=2) == []
    assert groups(task(0), delete_ratio_threshold=0.01) == []


def test_groups_are_of_one_partition() -> None:
    tasks = [FakeTask(i, 10, partition=("ab"[i % 2],), spec_id=1) for i in range(10)]
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "v"), spec_id=1)
    assert groups(tasks, spec) == [[f"{i:03}" for i in range(n, 10, 2)] for n in (0, 1)]
    assert groups(tasks[:8], spec) == []


@pytest.mark.parametrize(
    ("size", "files"),
    [(50, 1), (99, 1), (100, 1), (109, 1), (111, 2), (176, 2), (210, 2), (250, 3), (1009, 10)],
)
def test_the_number_of_new_files_is_java_s(size: int, files: int) -> None:
    # expectedOutputFiles: a small rest is spread over the others if they grow by less than 10 %.
    assert Sizes(100, 75, 180).output_files(size) == files


IMPOSSIBLE: list[dict[str, Any]] = [
    {"target_file_size_bytes": 0},
    {"target_file_size_bytes": 10, "min_file_size_bytes": 10},
    {"target_file_size_bytes": 10, "max_file_size_bytes": 10},
    {"min_input_files": 0},
    {"delete_file_threshold": -1},
    {"delete_ratio_threshold": 0},
    {"delete_ratio_threshold": 1.1},
    {"max_file_group_size_bytes": 0},
    {"partial_progress_max_commits": 0},
    {"threads": 0},
]


def test_impossible_options_are_refused(six: EncryptedTable) -> None:
    before = six.metadata_location
    for options in IMPOSSIBLE:
        with pytest.raises(ValueError, match=next(iter(options))):
            six.rewrite_data_files(**options)
    assert again(six).metadata_location == before


def test_a_filter_chooses_the_files_that_may_have_such_rows(six: EncryptedTable) -> None:
    done = six.rewrite_data_files("id >= 20 and id < 50", min_input_files=2)
    assert done.rewritten_data_files_count == 3
    assert ids(six) == sorted(set(range(60)) - {3, 4, 25})
    with pytest.raises(ValueError, match="nothing"):
        six.rewrite_data_files("nothing = 1")


def test_a_dry_run_writes_nothing(six: EncryptedTable, kept: KeptTables) -> None:
    before = sorted(kept.place.rglob("*"))
    expected = six.rewrite_data_files(dry_run=True)
    assert sorted(kept.place.rglob("*")) == before
    assert six.rewrite_data_files() == expected
    assert six.rewrite_data_files() == Compacted()


def test_an_empty_table_has_nothing_to_rewrite(catalog: EncryptedCatalog) -> None:
    assert create(catalog).rewrite_data_files(remove_dangling_deletes=True) == Compacted()


def test_a_branch_is_rewritten_alone(six: EncryptedTable) -> None:
    main = {file.file_path for file in data_files(six)}
    six.append(rows([100]), branch="audit")
    done = six.rewrite_data_files(branch="audit")
    assert done.rewritten_data_files_count == 7
    assert {file.file_path for file in data_files(six)} == main
    found = again(six).scan().use_ref("audit").to_arrow()["id"].to_pylist()
    assert sorted(found) == [*sorted(set(range(60)) - {3, 4, 25}), 100]
    with pytest.raises(ValueError, match="no branch 'absent'"):
        six.rewrite_data_files(branch="absent")


def test_progress_counts_the_bytes_that_are_read(six: EncryptedTable) -> None:
    told: list[tuple[int, int]] = []
    done = six.rewrite_data_files(progress=lambda *sizes: told.append(sizes))
    assert told[-1] == (done.rewritten_bytes_count, done.rewritten_bytes_count)
    assert [size for size, _ in told] == sorted(size for size, _ in told)
    assert len(told) == 6


# -- other writers


def meanwhile(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Let others do something after the merges and before the commit."""
    merge = RewriteThreads.merge

    def merging_slowly(self: RewriteThreads, *arguments: Any) -> None:
        merge(self, *arguments)
        monkeypatch.setattr(RewriteThreads, "merge", merge)
        act()

    monkeypatch.setattr(RewriteThreads, "merge", merging_slowly)


def test_rows_that_were_added_meanwhile_stay(
    six: EncryptedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = again(six)
    meanwhile(monkeypatch, lambda: other.append(rows([100])))
    six.rewrite_data_files()
    assert ids(six) == [*sorted(set(range(60)) - {3, 4, 25}), 100]
    assert len(data_files(six)) == 2
    check_whole(six)


CHANGES: dict[str, Callable[[Any], object]] = {
    "deletes a row": lambda t: t.delete("id = 11"),
    "deletes a file": lambda t: t.delete("id >= 10 and id < 20"),
    "rekeys a file": lambda t: t.rekey("id = 11"),
    "rekeys a vector": lambda t: t.rekey(select=lambda file: file.is_deletion_vector),
    "compacts": lambda t: t.rewrite_data_files(),
    "overwrites": lambda t: t.overwrite(rows([11], "b"), "id = 11"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_rewritten_files_is_a_conflict(
    six: EncryptedTable, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    other = again(six)
    meanwhile(monkeypatch, lambda: CHANGES[change](other))
    with pytest.raises(ValidationException):
        six.rewrite_data_files()
    expected = lineage(other)
    assert lineage(six) == expected
    # The files that were written in vain are deleted.
    check_whole(six)
    again(six).rewrite_data_files(rewrite_all=True)
    assert lineage(six) == expected


def test_a_change_of_other_files_is_no_conflict(
    six: EncryptedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = again(six)
    meanwhile(monkeypatch, lambda: other.delete("id = 11"))
    six.rewrite_data_files("id >= 20", min_input_files=2)
    assert ids(six) == sorted(set(range(60)) - {3, 4, 11, 25})
    check_whole(six)


def test_the_first_attempt_sees_what_was_committed_since_the_plan(
    six: EncryptedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan_compaction = compact.plan_compaction
    other = again(six)

    def planned(*arguments: Any, **named: Any) -> Any:
        plan = plan_compaction(*arguments, **named)
        other.delete("id = 11")
        six.refresh()
        return plan

    monkeypatch.setattr("ags1.iceberg.operations.compact.plan_compaction", planned)
    with pytest.raises(ValidationException, match="added the delete file"):
        six.rewrite_data_files()
    assert 11 not in ids(six)


# -- other writers, who write equality deletes


def changes(*deletes: ContentFile, removed: Sequence[ContentFile] = ()) -> Changes:
    return Changes(7, Operation.OVERWRITE, removed=removed, deletes=deletes)


def delete_file(content: int, spec_id: int = 0, partition: Any = (), **more: Any) -> ContentFile:
    file = ContentFile.of(
        content=content,
        file_path="delete",
        file_format="PARQUET",
        partition=partition,
        spec_id=spec_id,
        **more,
    )
    file.sequence_number = 9
    return file


EQUALITY, POSITION = 2, 1


def test_what_is_a_conflict_with_a_rewrite() -> None:
    specs = {0: PartitionSpec(), 1: replace_spec(BY_V, 1), 2: replace_spec(BY_BUCKET, 2)}

    def conflict(spec_id: int, new_spec_id: int, found: Changes) -> bool:
        file = FakeTask(0, 10, spec_id=spec_id, partition=("a",) if spec_id else ()).file
        entry = ManifestEntry(1, 5, 1, 1, file)
        return find_rewrite_conflict([entry], [found], specs, new_spec_id) is not None

    old = FakeTask(0, 10).file
    assert conflict(0, 0, changes(removed=[old]))
    assert not conflict(0, 0, changes(removed=[FakeTask(1, 10).file]))
    assert conflict(0, 0, changes(delete_file(POSITION, referenced_data_file=old.file_path)))
    assert not conflict(0, 0, changes(delete_file(POSITION, referenced_data_file="other")))
    assert conflict(1, 1, changes(delete_file(POSITION, 1, ("a",))))
    assert not conflict(1, 1, changes(delete_file(POSITION, 1, ("b",))))
    # Their sequence number is greater than that of the new files, so they apply to these.
    assert not conflict(0, 0, changes(delete_file(EQUALITY)))
    assert not conflict(1, 1, changes(delete_file(EQUALITY, 1, ("a",))))
    # In another spec they would not, or they would apply to rows to which they did not.
    assert conflict(1, 2, changes(delete_file(EQUALITY, 1, ("a",))))
    assert not conflict(1, 2, changes(delete_file(EQUALITY, 1, ("b",))))
    assert conflict(1, 2, changes(delete_file(EQUALITY, 2, (0,))))
    assert not conflict(1, 2, changes(delete_file(EQUALITY, 0)))


def replace_spec(spec: PartitionSpec, spec_id: int) -> PartitionSpec:
    return PartitionSpec(*spec.fields, spec_id=spec_id)


# -- several commits, failures


def damage(file: ContentFile) -> None:
    path = Path(file.file_path.removeprefix("file://"))
    data = bytearray(path.read_bytes())
    data[60] ^= 1  # in the first page
    path.chmod(0o644)
    path.write_bytes(data)


def parts_of(table: EncryptedTable) -> dict[str, Any]:
    """Return options by which the six files are three groups."""
    sizes = [file.file_size_in_bytes for file in data_files(table)]
    return {
        "min_input_files": 2,
        "max_file_group_size_bytes": 2 * max(sizes),
        "partial_progress": True,
    }


def test_partial_progress_commits_each_group(six: EncryptedTable) -> None:
    before, snapshots = lineage(six), len(six.snapshots())
    done = six.rewrite_data_files(**parts_of(six))
    assert (done.rewritten_data_files_count, done.added_data_files_count) == (6, 3)
    assert done.removed_delete_files_count == 2
    assert len(six.snapshots()) == snapshots + 3
    assert lineage(six) == before
    check_whole(six)


def test_partial_progress_makes_no_more_commits_than_asked(six: EncryptedTable) -> None:
    snapshots = len(six.snapshots())
    six.rewrite_data_files(**parts_of(six), partial_progress_max_commits=2)
    assert len(six.snapshots()) == snapshots + 2


def test_a_part_that_fails_is_left_out(
    six: EncryptedTable, caplog: pytest.LogCaptureFixture
) -> None:
    options = parts_of(six)
    bad = next(file for file in data_files(six) if file.first_row_id == 20)
    damage(bad)
    with caplog.at_level(logging.WARNING):
        done = six.rewrite_data_files(**options)
    assert (done.rewritten_data_files_count, done.failed_data_files_count) == (4, 2)
    assert "2 files were not rewritten" in caplog.text
    assert sorted(file.record_count for file in data_files(six)) == [10, 10, 18, 20]
    # What is left is done when it can be done.
    damage(bad)
    done = six.rewrite_data_files(**options)
    assert done.failed_data_files_count == 0
    assert ids(six) == sorted(set(range(60)) - {3, 4, 25})
    check_whole(six)


def test_a_conflict_costs_only_its_part(
    six: EncryptedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = again(six)
    meanwhile(monkeypatch, lambda: other.delete("id = 11"))
    done = six.rewrite_data_files(**parts_of(six))
    assert (done.rewritten_data_files_count, done.failed_data_files_count) == (4, 2)
    assert ids(six) == sorted(set(range(60)) - {3, 4, 11, 25})
    check_whole(six)


def test_it_raises_if_no_part_was_done(six: EncryptedTable) -> None:
    options = parts_of(six)
    for file in data_files(six):
        damage(file)
    before = again(six).current_snapshot()
    with pytest.raises(AuthenticationError):
        six.rewrite_data_files(**options)
    with pytest.raises(AuthenticationError):
        six.rewrite_data_files()
    assert again(six).current_snapshot() == before


def files_below(table: EncryptedTable) -> set[Path]:
    folder = Path(table.location().removeprefix("file://")) / "data"
    return {path for path in folder.rglob("*") if path.is_file()}


def test_a_damaged_file_leaves_everything_as_it_was(six: EncryptedTable) -> None:
    before, found = again(six).current_snapshot(), files_below(six)
    damage(data_files(six)[3])
    with pytest.raises(AuthenticationError):
        six.rewrite_data_files()
    assert again(six).current_snapshot() == before
    assert files_below(six) == found


@pytest.mark.parametrize("partial", [False, True])
def test_an_interrupt_leaves_no_files(six: EncryptedTable, partial: bool) -> None:
    before, found = lineage(six), files_below(six)
    options = parts_of(six) if partial else {}

    def interrupt(done: int, total: int) -> None:
        if done > total / 2:
            _thread.interrupt_main()
            time.sleep(0.2)

    with pytest.raises(KeyboardInterrupt):
        six.rewrite_data_files(progress=interrupt, **options)
    assert lineage(six) == before
    check_whole(six)
    if not partial:
        assert files_below(six) == found


def test_new_files_with_other_rows_are_not_committed(
    six: EncryptedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = merging.TaskReader.batches
    monkeypatch.setattr(
        merging.TaskReader,
        "batches",
        lambda *arguments: (batch.slice(1) for batch in batches(*arguments)),
    )
    found = files_below(six)
    with pytest.raises(MetadataIntegrityError, match=r"57 rows .* but 51"):
        six.rewrite_data_files()
    assert files_below(six) == found


@pytest.mark.slow
def test_rows_stream_through_bounded_memory(
    catalog: EncryptedCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = create(catalog)
    text = "some text of a row that takes its place in memory " * 4
    for first in range(0, 400_000, 20_000):
        table.append(rows(range(first, first + 20_000), v=text))
    total = again(table).scan().to_arrow().nbytes
    monkeypatch.setattr(merging, "_READ_AHEAD", 1)
    monkeypatch.setattr(merging, "_MAX_WAITING", 8 << 20)
    held: list[int] = []
    before = pa.total_allocated_bytes()

    def progress(done: int, size: int) -> None:
        held.append(pa.total_allocated_bytes() - before)

    table.rewrite_data_files(progress=progress, threads=1)
    assert len(data_files(table)) == 1
    assert len(held) == 20
    assert total > 80 << 20
    assert max(held) < total // 2

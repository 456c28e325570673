"""Chosen files under fresh keys: same rows, row ids and sequence numbers, deletes go with them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from iceberg_tables import JAVA_LOCATION, copied, expected_rows, memory_kms, open_fixture
from pyiceberg.exceptions import ValidationException
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyroaring import BitMap64
from table_maker import TableMaker, stored

from ags1.iceberg import EncryptedTable, open_table
from ags1.iceberg.commit.metadata_file import print_metadata
from ags1.iceberg.commit.updates import apply_updates
from ags1.iceberg.operations.rekey import Choice, Rekeying
from ags1.iceberg.operations.rewrite import Rewriter
from ags1.iceberg.read.records import ContentFile, ManifestEntry, read_entries
from ags1.iceberg.steps import RecomputedSnapshotStep
from ags1.iceberg.storage.output import TableOutput
from ags1.iceberg.storage.table_files import TableFiles
from ags1.iceberg.write.deletion_vectors import write_deletion_vectors
from ags1.iceberg.write.snapshot import FileChange, SnapshotProducer
from ags1.iceberg.write.view import TableView
from ags1.keys.manager import EncryptionManager, now_ms

IO = PyArrowFileIO()
COLUMNS = [
    {"id": 1, "name": "id", "type": "long", "required": True},
    {"id": 2, "name": "name", "type": "string"},
]


class Bed:
    """A table in a folder, without a catalog: what is committed is its next metadata.json."""

    def __init__(self, folder: Path, metadata_path: Path, location_map: dict[str, str]) -> None:
        self.folder = folder
        self.location_map = location_map
        self.output = TableOutput(IO, location_map)
        self.metadata: dict[str, Any] = json.loads(metadata_path.read_text())
        self.path = metadata_path

    def view(self) -> TableView:
        manager = EncryptionManager.from_metadata(self.metadata, memory_kms(), table_key_id="keyA")
        return TableView(self.metadata, TableFiles(IO, manager, location_map=self.location_map))

    def entries(self) -> list[ManifestEntry]:
        view = self.view()
        return [e for m in view.manifests for e in read_entries(m, view.files)]

    def commit(self, change: Callable[[TableView], FileChange]) -> None:
        view = self.view()
        self.apply(SnapshotProducer(self.output).produce(view, change(view)))

    def apply(self, updates: list[dict[str, Any]]) -> None:
        self.metadata = apply_updates(self.metadata, updates, now_ms=now_ms())
        self.path = self.folder / "metadata" / f"{now_ms()}-new.metadata.json"
        self.path.write_bytes(print_metadata(self.metadata))

    def rekeying(self, **choice: Any) -> Rekeying:
        return Rekeying(Rewriter(self.output), Choice(**choice))

    def rekey(self, **choice: Any) -> None:
        self.commit(self.rekeying(**choice).change)

    def table(self) -> EncryptedTable:
        table = open_table(str(self.path), memory_kms(), self.location_map, expected_key_id="keyA")
        assert isinstance(table, EncryptedTable)
        return table

    def ids(self) -> list[int]:
        return sorted(self.table().scan().to_arrow()["id"].to_pylist())


def fixture(name: str, folder: Path) -> Bed:
    copy = copied(name, folder)
    path = sorted((copy / "metadata").glob("*.metadata.json"))[-1]
    return Bed(copy, path, {JAVA_LOCATION: str(folder)})


def some(first: int, count: int) -> list[dict[str, Any]]:
    return [{"id": i, "name": f"name {i}"} for i in range(first, first + count)]


def made(folder: Path) -> tuple[TableMaker, Callable[[], Bed]]:
    table = TableMaker(folder, COLUMNS, memory_kms())

    def finish() -> Bed:
        return Bed(folder, Path(table.write()), {})

    return table, finish


def key_of(entry: ManifestEntry) -> bytes:
    assert entry.file.key is not None
    return entry.file.key.encryption_key


def lineage(entries: list[ManifestEntry]) -> list[Any]:
    """What identifies rows: of each data file its first row id, rows and sequence number."""
    return sorted(
        (e.file.first_row_id, e.file.record_count, e.sequence_number)
        for e in entries
        if e.file.content == 0
    )


@pytest.mark.parametrize("name", ["parquet_plain", "mor_dv", "stats"])
def test_a_table_of_java_has_the_same_rows_under_other_keys(tmp_path: Path, name: str) -> None:
    bed = fixture(name, tmp_path)
    before = bed.entries()
    rows = by_id(open_fixture(name).scan().to_arrow().to_pylist())
    bed.rekey()
    after = bed.entries()
    assert by_id(bed.table().scan().to_arrow().to_pylist()) == rows
    assert len(rows) == len(expected_rows(name))
    assert lineage(after) == lineage(before)
    assert len(after) == len(before)
    assert {e.file.identity for e in after}.isdisjoint(e.file.identity for e in before)
    assert {key_of(e) for e in after}.isdisjoint(key_of(e) for e in before)
    paths = {e.file.file_path for e in after}
    vectors = [e.file for e in after if e.file.is_deletion_vector]
    assert {v.referenced_data_file for v in vectors} <= paths
    snapshot = bed.metadata["snapshots"][-1]
    assert snapshot["summary"]["operation"] == "replace"
    old = bed.metadata["snapshots"][-2]["summary"]
    for total in ("total-records", "total-data-files", "total-delete-files"):
        assert snapshot["summary"][total] == old[total]


def by_id(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: row["id"])


def test_sequence_numbers_of_vectors_are_kept(tmp_path: Path) -> None:
    bed = fixture("mor_dv", tmp_path)

    def vectors() -> list[Any]:
        return sorted(
            (e.sequence_number, e.file.record_count)
            for e in bed.entries()
            if e.file.is_deletion_vector
        )

    before = vectors()
    assert before
    bed.rekey()
    assert vectors() == before


def test_only_chosen_files_are_rewritten(tmp_path: Path) -> None:
    bed = fixture("mor_dv", tmp_path)
    before = bed.entries()
    vector = next(e.file for e in before if e.file.is_deletion_vector)
    chosen = vector.referenced_data_file
    rows = bed.ids()
    bed.rekey(select=lambda file: file.file_path == chosen)
    after = bed.entries()
    old, new = ({e.file.identity for e in found} for found in (before, after))
    assert old - new == {(chosen, None), vector.identity}
    assert len(new - old) == 2
    assert bed.ids() == rows


def test_a_vector_alone_may_be_chosen(tmp_path: Path) -> None:
    bed = fixture("mor_dv", tmp_path)
    before = bed.entries()
    rows = bed.ids()
    bed.rekey(select=lambda file: file.is_deletion_vector)
    after = bed.entries()
    assert {e.file.identity for e in before if e.file.content == 0} == {
        e.file.identity for e in after if e.file.content == 0
    }
    old = {e.file.identity for e in before if e.file.is_deletion_vector}
    new = {e.file.identity for e in after if e.file.is_deletion_vector}
    assert len(old) == len(new)
    assert old.isdisjoint(new)
    assert bed.metadata["snapshots"][-1]["summary"]["operation"] == "replace"
    assert bed.ids() == rows


def test_a_filter_chooses_the_files_that_may_have_such_rows(tmp_path: Path) -> None:
    table, finish = made(tmp_path / "t")
    files = [table.add_parquet(some(i * 100, 100)) for i in range(4)]
    table.commit(*files)
    bed = finish()
    from pyiceberg.expressions import EqualTo

    plan = bed.rekeying(row_filter=EqualTo("id", 250)).plan(bed.view())
    assert [e.file.file_path for e in plan.files] == [files[2]["file_path"]]
    assert plan.size == files[2]["file_size_in_bytes"]
    bed.rekey(row_filter=EqualTo("id", 250))
    left = {e.file.file_path for e in bed.entries()}
    assert {f["file_path"] for f in files} - left == {files[2]["file_path"]}
    assert bed.ids() == list(range(400))
    with pytest.raises(ValueError, match="nothing"):
        bed.rekeying(row_filter=EqualTo("nothing", 1)).plan(bed.view())


def test_older_position_deletes_go_into_the_vector(tmp_path: Path) -> None:
    table, finish = made(tmp_path / "t")
    one, two = table.add_parquet(some(0, 100)), table.add_parquet(some(100, 100))
    table.commit(one, two)
    table.commit(table.add_position_deletes([(one["file_path"], 3)]))
    table.commit(table.add_position_deletes([(one["file_path"], 4), (two["file_path"], 5)]))
    bed = finish()
    expected = sorted(set(range(200)) - {3, 4, 105})
    assert bed.ids() == expected
    bed.rekey(select=lambda file: file.file_path == one["file_path"])
    assert bed.ids() == expected
    kinds = sorted((e.file.content, e.file.file_format, e.file.record_count) for e in bed.entries())
    # The one of both files stays for the other's sake.
    assert kinds == [
        (0, "PARQUET", 100),
        (0, "PARQUET", 100),
        (1, "PARQUET", 2),
        (1, "PUFFIN", 2),
    ]
    bed.rekey(select=lambda file: file.file_path == two["file_path"])
    assert bed.ids() == expected
    assert [e.file.file_format for e in bed.entries() if e.file.content == 1] == ["PUFFIN"] * 2


def test_a_chosen_position_delete_file_becomes_vectors(tmp_path: Path) -> None:
    table, finish = made(tmp_path / "t")
    one, two = table.add_parquet(some(0, 100)), table.add_parquet(some(100, 100))
    table.commit(one, two)
    table.commit(table.add_position_deletes([(one["file_path"], 4), (two["file_path"], 5)]))
    bed = finish()
    bed.rekey(select=lambda file: file.content == 1)
    assert bed.ids() == sorted(set(range(200)) - {4, 105})
    assert [e.file.file_format for e in bed.entries() if e.file.content == 1] == ["PUFFIN"] * 2
    assert {e.file.file_path for e in bed.entries() if e.file.content == 0} == {
        one["file_path"],
        two["file_path"],
    }


def test_a_vector_that_is_too_old_to_apply_goes_with_its_file(tmp_path: Path) -> None:
    table, finish = made(tmp_path / "t")
    file = table.add_parquet(some(0, 10))
    table.commit(*table.add_deletion_vectors({file["file_path"]: [3]}))
    table.commit(file)
    bed = finish()
    assert bed.ids() == list(range(10))
    bed.rekey(select=lambda file: file.content == 0)
    assert bed.ids() == list(range(10))
    assert [e.file.content for e in bed.entries()] == [0]


def test_equality_deletes_still_apply_to_older_rows_only(tmp_path: Path) -> None:
    table, finish = made(tmp_path / "t")
    table.commit(table.add_parquet(some(0, 10)))
    table.commit(table.add_equality_deletes([{"id": 4}], [1]))
    table.commit(table.add_parquet(some(4, 1)))
    bed = finish()
    before = bed.entries()
    bed.rekey()
    assert bed.ids() == list(range(10))
    after = bed.entries()
    assert {key_of(e) for e in after}.isdisjoint(key_of(e) for e in before)
    assert sorted(e.sequence_number or 0 for e in after) == [1, 2, 3]


def test_files_in_the_clear_are_encrypted(tmp_path: Path) -> None:
    table, finish = made(tmp_path / "t")
    table.commit(table.add_parquet(some(0, 10), encrypted=False), table.add_parquet(some(10, 10)))
    bed = finish()
    bed.rekey(select=lambda file: not file.is_encrypted)
    path = str(bed.path)
    opened = open_table(path, memory_kms(), expected_key_id="keyA", require_encrypted=True)
    assert sorted(opened.scan().to_arrow()["id"].to_pylist()) == list(range(20))


def test_a_plan_writes_nothing(tmp_path: Path) -> None:
    bed = fixture("mor_dv", tmp_path)
    before = sorted(tmp_path.rglob("*"))
    plan = bed.rekeying().plan(bed.view())
    assert sorted(tmp_path.rglob("*")) == before
    assert not plan.is_empty
    files = [e.file for e in bed.entries() if e.file.content == 0]
    assert plan.size == sum(f.file_size_in_bytes for f in files)


def delete_rows(bed: Bed, path: str, positions: list[int]) -> None:
    """Somebody else deletes rows of a data file that has no deletes."""
    entry = next(e for e in bed.entries() if e.file.file_path == path)

    def change(view: TableView) -> FileChange:
        location = f"{bed.metadata['location']}/data/{now_ms()}-other.puffin"
        found = {path: (BitMap64(positions), entry.file)}
        return FileChange(deletes=write_deletion_vectors(bed.output, location, found, view.manager))

    bed.commit(change)


def test_deletes_that_came_in_between_are_not_lost(tmp_path: Path) -> None:
    table, finish = made(tmp_path / "t")
    files = [table.add_parquet(some(i * 100, 100)) for i in range(2)]
    table.commit(*files)
    bed = finish()
    rekeying = bed.rekeying()
    lost = rekeying.change(bed.view())
    delete_rows(bed, files[0]["file_path"], [7])
    written = set(bed.output.written)
    bed.commit(rekeying.change)
    assert bed.ids() == sorted(set(range(200)) - {7})
    # No data file was written again.
    data = {e.file.file_path for e in lost.replaced}
    assert data == {e.file.file_path for e in bed.entries() if e.file.content == 0}
    new = set(bed.output.written) - written
    assert [p for p in new if p.endswith(".parquet")] == []


def test_files_that_went_in_between_are_left_over(tmp_path: Path) -> None:
    table, finish = made(tmp_path / "t")
    files = [table.add_parquet(some(i * 100, 100)) for i in range(2)]
    table.commit(*files)
    table.commit(*table.add_deletion_vectors({files[1]["file_path"]: [1]}))
    bed = finish()
    step = RecomputedSnapshotStep(bed.output, bed.rekeying().change, "main")
    step.stage(bed.view())
    lost = set(bed.output.written)
    gone = next(e for e in bed.entries() if e.file.file_path == files[0]["file_path"])
    bed.commit(lambda view: FileChange(removed=[gone]))
    bed.apply(step.stage(bed.view())[0])
    assert bed.ids() == [100, *range(102, 200)]
    used = {e.file.file_path for e in bed.entries()}
    assert used & lost
    assert set(step.left_over) >= {path for path in lost - used if "/data/" in path}
    bed.output.discard(step.left_over)
    assert bed.ids() == [100, *range(102, 200)]


def test_rows_added_in_between_are_not_chosen(tmp_path: Path) -> None:
    table, finish = made(tmp_path / "t")
    table.commit(table.add_parquet(some(0, 10)))
    bed = finish()
    rekeying = bed.rekeying()
    rekeying.change(bed.view())
    added = ContentFile.of(
        content=0,
        file_path=f"{table.location}/data/absent.parquet",
        file_format="PARQUET",
        partition=(),
        record_count=1,
        file_size_in_bytes=1,
    )
    bed.commit(lambda view: FileChange(added=[added]))
    plan = rekeying.plan(bed.view())
    assert added.file_path not in {e.file.file_path for e in plan.files}


def test_a_lost_race_is_noticed_where_the_change_is_not_made_anew(tmp_path: Path) -> None:
    table, finish = made(tmp_path / "t")
    file = table.add_parquet(some(0, 10))
    table.commit(file)
    bed = finish()
    change = bed.rekeying().change(bed.view())
    bed.rekey()
    with pytest.raises(ValidationException):
        bed.commit(lambda view: change)


def test_avro_files_are_rekeyed(tmp_path: Path) -> None:
    table, finish = made(tmp_path / "t")
    schema = {
        "type": "record",
        "name": "table",
        "fields": [
            {"name": "id", "type": "long", "field-id": 1},
            {"name": "name", "type": ["null", "string"], "default": None, "field-id": 2},
        ],
    }
    table.commit(table.add_avro(some(0, 300), schema))
    bed = finish()
    (before,) = bed.entries()
    bed.rekey()
    (after,) = bed.entries()
    assert key_of(before) != key_of(after)
    assert stored(after.file.file_path).read_bytes()[:4] == b"AGS1"
    assert bed.ids() == list(range(300))

"""Plain tables, written by PyIceberg or by hand, become encrypted ones with the same rows."""

from __future__ import annotations

import json
import struct
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from data_files import all_fields
from iceberg_tables import memory_kms
from kept_tables import KeptTables
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType
from table_maker import TableMaker, stored

from ags1 import KeyMetadata
from ags1.errors import FormatError, MetadataIntegrityError
from ags1.iceberg import EncryptedTable, open_table
from ags1.iceberg.commit.connections import connection_to
from ags1.iceberg.commit.metadata_file import print_metadata
from ags1.iceberg.commit.updates import apply_updates
from ags1.iceberg.operations.journal import Journal
from ags1.iceberg.operations.migrate import Migration, MigrationCommit
from ags1.iceberg.operations.plaintext_files import plaintext_files
from ags1.iceberg.pyiceberg.records import record_values
from ags1.iceberg.read.records import ContentFile, read_entries
from ags1.iceberg.storage.output import TableOutput
from ags1.iceberg.storage.table_files import TableFiles
from ags1.iceberg.storage.table_folders import TableFolders
from ags1.iceberg.storage.trust import Trust
from ags1.iceberg.write.executors import RewriteThreads
from ags1.keys.manager import EncryptionManager, now_ms

IO = PyArrowFileIO()
ARROW = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("name", pa.string()),
        pa.field("price", pa.decimal128(9, 2)),
        pa.field("day", pa.date32()),
        pa.field("at", pa.timestamp("us")),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("part", pa.string()),
    ]
)


def rows(first: int, count: int) -> pa.Table:
    return pa.Table.from_pylist(
        [
            {
                "id": i,
                "name": None if i % 7 == 0 else f"name {i}",
                "price": Decimal(i) / 100,
                "day": date(2026, 1, 1 + i % 28),
                "at": datetime(2026, 1, 1, i % 24),
                "tags": [None, [], ["a", None, str(i)]][i % 3],
                "part": ["odd", "even", None][i % 3],
            }
            for i in range(first, first + count)
        ],
        ARROW,
    )


def plain_catalog(folder: Path) -> SqlCatalog:
    catalog = SqlCatalog(
        "test", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/warehouse"
    )
    catalog.create_namespace_if_not_exists("db")
    return catalog


@pytest.fixture(scope="module")
def _kept_tables(tmp_path_factory: pytest.TempPathFactory) -> KeptTables:
    """In PyIceberg's own catalog."""
    return KeptTables(tmp_path_factory.mktemp("kept"), plain_catalog)


def make(catalog: SqlCatalog, version: int, *, partitioned: bool = True) -> Table:
    """A table of three appends, a deletion and an overwrite."""
    schema = assign_fresh_schema_ids(catalog._convert_schema_if_needed(ARROW))
    part = PartitionField(schema.find_field("part").field_id, 1000, IdentityTransform(), "part")
    fields = [part] if partitioned else []
    table = catalog.create_table(
        "db.t",
        schema,
        partition_spec=PartitionSpec(*fields),
        properties={"format-version": str(version), "write.parquet.compression-codec": "zstd"},
    )
    for first in (0, 100, 200):
        table.append(rows(first, 100))
    table.delete("id >= 90 and id < 110")
    return table


def described(file: Any) -> str:
    """What a manifest says of the rows of a file."""
    counts = (file.value_counts, file.null_value_counts, file.nan_value_counts)
    bounds = (file.lower_bounds, file.upper_bounds)
    found = [sorted(dict(metrics or {}).items()) for metrics in (*counts, *bounds)]
    return repr((file.record_count, record_values(file.partition), found))


def by_id(table: pa.Table) -> list[dict[str, Any]]:
    return table.sort_by("id").to_pylist()


def new_keys(size: int = 16) -> EncryptionManager:
    return EncryptionManager(memory_kms(), "keyA", data_key_length=size)


def migrate(
    catalog: SqlCatalog, key_size: int = 16, **options: Any
) -> tuple[EncryptedTable, Migration, dict[str, Any]]:
    commits = connection_to(catalog)
    base = commits.load("db.t", Trust())
    migration = Migration(TableOutput(IO), new_keys(key_size), **options)
    commit = migration.produce(base.metadata)
    after = commits.commit(
        base, commit.updates, commit.requirements, TableOutput(IO), new_key_id=commit.key_id
    )
    migration.finish()
    table = open_table(after.location, memory_kms(), expected_key_id="keyA", require_encrypted=True)
    assert isinstance(table, EncryptedTable)
    return table, migration, base.metadata


# Of `make test`: each version, partitioned or not, with one of the key sizes.
@pytest.mark.slow_variants(r"(16-False-1|16-True-2|32-False-2|32-True-1)")
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("partitioned", [False, True])
@pytest.mark.parametrize("key_size", [16, 32])
def test_a_table_of_pyiceberg_is_encrypted(
    kept: KeptTables, version: int, partitioned: bool, key_size: int
) -> None:
    plain = kept(make, version, partitioned=partitioned)
    catalog = plain.catalog
    expected = by_id(plain.scan().to_arrow())
    old = {task.file.file_path: task.file for task in plain.scan().plan_files()}
    table, _, _ = migrate(catalog, key_size)

    assert by_id(table.scan().to_arrow()) == expected
    filtered = table.scan("part = 'odd' and id > 150").to_arrow()
    assert by_id(filtered) == [r for r in expected if r["part"] == "odd" and r["id"] > 150]
    assert table.metadata.format_version == 3
    assert [s.snapshot_id for s in table.metadata.snapshots] == [table.metadata.current_snapshot_id]
    new = [task.file for task in table.scan().plan_files()]
    assert len(new) == len(old)
    for file in new:
        assert len(file.key.encryption_key) == key_size
        data = stored(file.file_path).read_bytes()
        assert data[:4] == data[-4:] == b"PARE"
    assert sorted(map(described, new)) == sorted(map(described, old.values()))
    # The folders show the same partitions as before.
    assert sorted(f.file_path.rpartition("/")[0] for f in new) == sorted(
        path.rpartition("/")[0] for path in old
    )


def test_row_ids_are_given_to_a_table_that_had_none(kept: KeptTables) -> None:
    catalog = kept(make, 2).catalog
    table, _, _ = migrate(catalog)
    entries = _entries(table)
    starts = sorted((e.file.first_row_id, e.file.record_count) for e in entries)
    end = 0
    for first, count in starts:
        assert first == end
        end = first + count
    metadata = json.loads(Path(table.metadata_location.removeprefix("file://")).read_text())
    assert metadata["next-row-id"] == end == 280
    assert metadata["snapshots"][0]["summary"]["operation"] == "replace"
    assert metadata["snapshots"][0]["summary"]["total-records"] == "280"


def test_sequence_numbers_are_kept(kept: KeptTables) -> None:
    plain = kept(make, 2)
    catalog = plain.catalog
    old = sorted(
        (e["sequence_number"], e["data_file"]["record_count"])
        for e in plain.inspect.entries().to_pylist()
        if e["status"] != 2
    )
    table, _, before = migrate(catalog)
    entries = _entries(table)
    assert sorted((e.sequence_number, e.file.record_count) for e in entries) == old
    assert {e.file_sequence_number for e in entries} == {before["last-sequence-number"] + 1}


def test_no_file_is_in_the_clear_once_the_old_ones_are_gone(kept: KeptTables) -> None:
    catalog = kept(make, 2).catalog
    commits = connection_to(catalog)
    table, _, before = migrate(catalog)
    after = commits.load("db.t", Trust("keyA"))
    old = plaintext_files(before, after.metadata, table.files, TableFolders(after.location))
    assert not old.outside
    assert not old.unreadable
    assert old.delete(TableOutput(IO)) == ()
    left = [p for p in (kept.place / "warehouse").rglob("*") if p.is_file()]
    heads = {p.read_bytes()[:4] for p in left if not p.name.endswith(".metadata.json")}
    assert heads == {b"AGS1", b"PARE"}
    assert table.scan().to_arrow().num_rows == 280
    assert b"name 1" not in b"".join(p.read_bytes() for p in left)


def test_files_of_other_tables_are_not_deleted(kept: KeptTables, tmp_path: Path) -> None:
    plain = kept(make, 2, partitioned=False)
    catalog = plain.catalog
    other = tmp_path / "other"
    other.mkdir()
    pq.write_table(rows(1000, 5), other / "added.parquet")
    plain.add_files([f"file://{other}/added.parquet"])
    table, _, before = migrate(catalog)
    assert table.scan().count() == 285
    after = connection_to(catalog).load("db.t", Trust("keyA")).metadata
    folders = TableFolders(table.metadata_location)
    old = plaintext_files(before, after, table.files, folders)
    assert old.outside == (f"file://{other}/added.parquet",)
    kept = before | {"properties": before["properties"] | {"gc.enabled": "false"}}
    now = after | {"properties": after["properties"] | {"gc.enabled": "false"}}
    for versions in ((kept, after), (before, now)):
        shared = plaintext_files(*versions, table.files, folders)
        assert shared.inside == ()
        assert set(shared.outside) == {*old.inside, *old.outside}
    with pytest.raises(ValueError, match="not encrypted"):
        plaintext_files(before, before, table.files, folders)


def test_what_the_new_table_reaches_is_never_listed(kept: KeptTables) -> None:
    catalog = kept(make, 2).catalog
    table, _, before = migrate(catalog)
    after = connection_to(catalog).load("db.t", Trust("keyA")).metadata
    one = next(iter(table.scan().plan_files())).file.file_path
    forged = before | {
        "statistics": [
            {"snapshot-id": 1, "statistics-path": one.replace(old, new)}
            for old, new in (("file://", "file:"), ("/data/", "//data/./"))
        ]
    }
    # Beside whose metadata statistics would lie.
    folders = TableFolders(one.rpartition("/")[0] + "/1.metadata.json")
    assert plaintext_files(forged, after, table.files, folders).inside == ()


def test_a_killed_run_is_gone_on_with(kept: KeptTables, monkeypatch: Any) -> None:
    import ags1.iceberg.operations.journal as journal
    import ags1.iceberg.write.executors as executors

    monkeypatch.setattr(journal, "_FILES_PER_PART", 1)
    plain = kept(make, 2)
    catalog = plain.catalog
    expected = by_id(plain.scan().to_arrow())
    count = len(list(plain.scan().plan_files()))
    base = connection_to(catalog).load("db.t", Trust())
    rewrite, calls = executors.rewrite_file, []

    def dies(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) > 3:
            raise KeyboardInterrupt
        return rewrite(*arguments)

    monkeypatch.setattr(executors, "rewrite_file", dies)
    first = Migration(TableOutput(IO), new_keys(), executor=RewriteThreads(1))
    with pytest.raises(KeyboardInterrupt):
        first.produce(base.metadata)

    calls.clear()
    monkeypatch.setattr(executors, "rewrite_file", lambda *a: calls.append(a) or rewrite(*a))
    done: list[Any] = []
    table, _, _ = migrate(catalog, on_done=lambda old, new: done.append(old))
    assert len(calls) == count - 3
    assert len(done) == count
    assert by_id(table.scan().to_arrow()) == expected
    folder = stored(table.location()) / "metadata" / "migration"
    assert list(folder.iterdir()) == []


def test_the_journal_has_no_key_in_the_clear(kept: KeptTables, monkeypatch: Any) -> None:
    plain = kept(make, 2)
    catalog = plain.catalog
    base = connection_to(catalog).load("db.t", Trust())
    migration = Migration(TableOutput(IO), new_keys())
    migration.produce(base.metadata)
    (part,) = (stored(plain.location()) / "metadata" / "migration").iterdir()
    text = part.read_bytes()
    assert migration._rewriter.rewritten
    for file in migration._rewriter.rewritten.values():
        assert file.key.encryption_key not in text
        assert file.key.encryption_key.hex().encode() not in text
        assert file.file_path.encode() not in text


def test_a_journal_of_another_table_is_passed_over(tmp_path: Path) -> None:
    made = maker(tmp_path / "t")
    old = file_record(made)
    new = old.replace(
        file_path=old.file_path + "x", key_metadata=KeyMetadata.generate(16).to_bytes()
    )
    stored(new.file_path).write_bytes(b"x" * new.file_size_in_bytes)

    def journal(table_uuid: str) -> Journal:
        folder = f"{made.location}/metadata/migration"
        return Journal(TableOutput(IO), folder, table_uuid, EncryptionManager(memory_kms(), "keyA"))

    first = journal("one")
    first.add(old, new)
    first.flush()
    [found] = journal("one").finished([old]).values()
    assert all_fields(found) == all_fields(new)
    assert journal("another").finished([old]) == {}


def file_record(made: TableMaker) -> ContentFile:
    file = made.add_parquet(some(0, 3))
    size = file["file_size_in_bytes"]
    return ContentFile.of(
        content=0,
        file_path=file["file_path"],
        file_format="PARQUET",
        partition=(),
        record_count=file["record_count"],
        file_size_in_bytes=size,
    )


@pytest.mark.parametrize(
    "damage", ["cut", "flipped", "not ours", "another key", "two KEKs", "file gone"]
)
def test_a_journal_that_is_not_what_was_written_is_passed_over(
    kept: KeptTables, damage: str
) -> None:
    plain = kept(make, 2, partitioned=False)
    catalog = plain.catalog
    expected = by_id(plain.scan().to_arrow())
    base = connection_to(catalog).load("db.t", Trust())
    first = Migration(TableOutput(IO), new_keys())
    first.produce(base.metadata)
    (part,) = (stored(plain.location()) / "metadata" / "migration").iterdir()
    data = bytearray(part.read_bytes())
    if damage == "cut":
        part.write_bytes(data[: len(data) // 2])
    elif damage == "flipped":
        data[-20] ^= 1
        part.write_bytes(data)
    elif damage == "not ours":
        part.write_bytes(b'{"kek": 3}\n')
    elif damage == "another key":
        part.write_bytes(data.replace(b'"keyA"', b'"keyB"'))
    elif damage == "two KEKs":
        part.write_bytes(data.replace(b'{"kek": ', b'{"kek": {}, "kek": ', 1))
    else:
        for file in first._rewriter.rewritten.values():
            stored(file.file_path).unlink()
    old_files = {f.file_path for f in first._rewriter.rewritten.values()}
    table, _, _ = migrate(catalog)
    assert by_id(table.scan().to_arrow()) == expected
    assert old_files.isdisjoint(task.file.file_path for task in table.scan().plan_files())


def test_a_commit_in_between_is_not_lost(kept: KeptTables) -> None:
    plain = kept(make, 2)
    catalog = plain.catalog
    commits = connection_to(catalog)
    base = commits.load("db.t", Trust())
    migration = Migration(TableOutput(IO), new_keys())
    commit = migration.produce(base.metadata)
    done = set(migration._rewriter.rewritten)
    plain.append(rows(1000, 10))
    with pytest.raises(CommitFailedException):
        commits.commit(
            base, commit.updates, commit.requirements, TableOutput(IO), new_key_id="keyA"
        )
    base = commits.load("db.t", Trust())
    again = migration.produce(base.metadata)
    assert again.plan.rows == commit.plan.rows + 10
    after = commits.commit(
        base, again.updates, again.requirements, TableOutput(IO), new_key_id="keyA"
    )
    TableOutput(IO).discard(migration.left_over)
    table = open_table(after.location, memory_kms(), expected_key_id="keyA")
    assert table.scan().count() == 290
    paths = {task.file.file_path for task in table.scan().plan_files()}
    assert {migration._rewriter.rewritten[i].file_path for i in done} <= paths


def test_an_empty_table_becomes_encrypted(tmp_path: Path) -> None:
    catalog = plain_catalog(tmp_path)
    catalog.create_table("db.t", ARROW)
    table, _, _ = migrate(catalog)
    assert table.key_id == "keyA"
    assert table.scan().to_arrow().num_rows == 0


def test_other_branches_are_refused_unless_they_may_go(kept: KeptTables) -> None:
    plain = kept(make, 2)
    catalog = plain.catalog
    plain.manage_snapshots().create_tag(plain.history()[0].snapshot_id, "first").commit()
    with pytest.raises(ValueError, match="first"):
        migrate(catalog)
    table, _, _ = migrate(catalog, drop_refs=True)
    assert list(table.metadata.refs) == ["main"]


def test_an_encrypted_table_is_refused(kept: KeptTables) -> None:
    catalog = kept(make, 2).catalog
    _, _, _ = migrate(catalog)
    base = connection_to(catalog).load("db.t", Trust("keyA"))
    with pytest.raises(ValueError, match="encrypted already"):
        Migration(TableOutput(IO), new_keys()).produce(base.metadata)


def test_nothing_is_written_by_a_plan(kept: KeptTables) -> None:
    plain = kept(make, 2)
    catalog = plain.catalog
    base = connection_to(catalog).load("db.t", Trust())
    before = sorted(p for p in kept.place.rglob("*"))
    plan = Migration(TableOutput(IO), new_keys()).plan(base.metadata)
    assert sorted(p for p in kept.place.rglob("*")) == before
    files = [task.file for task in plain.scan().plan_files()]
    assert plan.rows == 280
    assert plan.rewrite.size == sum(f.file_size_in_bytes for f in files)


@pytest.mark.parametrize("what", ["rows", "page"])
def test_a_damaged_source_is_not_migrated(kept: KeptTables, what: str) -> None:
    plain = kept(make, 2, partitioned=False)
    catalog = plain.catalog
    path = stored(next(iter(plain.scan().plan_files())).file.file_path)
    if what == "rows":
        pq.write_table(pq.read_table(path).slice(0, 7), path)
    else:
        table = pq.read_table(path)
        pq.write_table(table, path, write_page_checksum=True, compression="none")
        data = bytearray(path.read_bytes())
        at = pq.ParquetFile(path).metadata.row_group(0).column(1).data_page_offset
        data[at + 60] ^= 0x40
        path.write_bytes(data)
    with pytest.raises(MetadataIntegrityError if what == "rows" else FormatError):
        migrate(catalog)
    assert connection_to(catalog).load("db.t", Trust()).metadata["format-version"] == 2


# -- what PyIceberg does not write


COLUMNS = [
    {"id": 1, "name": "id", "type": "long", "required": True},
    {"id": 2, "name": "name", "type": "string"},
]


def maker(folder: Path) -> TableMaker:
    table = TableMaker(folder, COLUMNS)
    table.properties["owner"] = "me"
    return table


def some(first: int, count: int) -> list[dict[str, Any]]:
    return [{"id": i, "name": f"name {i}"} for i in range(first, first + count)]


def committed(folder: Path, location: str, **options: Any) -> EncryptedTable:
    metadata = json.loads(Path(location).read_text())
    migration = Migration(TableOutput(IO), new_keys(), **options)
    commit = migration.produce(metadata)
    return opened(folder, metadata, commit)


def opened(folder: Path, metadata: dict[str, Any], commit: MigrationCommit) -> EncryptedTable:
    after = apply_updates(metadata, commit.updates, now_ms=now_ms())
    path = folder / "metadata" / "99999.metadata.json"
    path.write_bytes(print_metadata(after))
    table = open_table(str(path), memory_kms(), expected_key_id="keyA", require_encrypted=True)
    assert isinstance(table, EncryptedTable)
    return table


def _entries(table: EncryptedTable) -> list[Any]:
    snapshot = table.current_snapshot()
    assert snapshot is not None
    return [e for m in snapshot.manifests(table.files) for e in read_entries(m, table.files)]


def test_deletes_of_all_kinds_become_vectors(tmp_path: Path) -> None:
    made = maker(tmp_path / "t")
    first = made.add_parquet(some(0, 100))
    second = made.add_parquet(some(100, 100))
    third = made.add_parquet(some(200, 100))
    made.commit(first, second, third)
    made.commit(
        made.add_position_deletes([(first["file_path"], 3), (second["file_path"], 5)]),
        *made.add_deletion_vectors({third["file_path"]: [7, 8]}),
    )
    made.commit(made.add_equality_deletes([{"id": 250}, {"id": 5}], [1]))
    made.commit(made.add_parquet(some(250, 1)))
    table = committed(tmp_path / "t", made.write())
    gone = {3, 105, 207, 208, 250, 5}
    expected = [i for i in range(300) if i not in gone] + [250]
    assert sorted(table.scan().to_arrow()["id"].to_pylist()) == sorted(expected)
    kinds = sorted((e.file.content, e.file.file_format) for e in _entries(table))
    assert kinds == [(0, "PARQUET")] * 4 + [(1, "PUFFIN")] * 3 + [(2, "PARQUET")]
    assert table.properties["owner"] == "me"


def test_row_ids_of_version_3_are_kept(tmp_path: Path) -> None:
    made = maker(tmp_path / "t")
    files = [made.add_parquet(some(i * 10, 10), first_row_id=1000 - i * 100) for i in range(3)]
    made.commit(*files)
    metadata = made.metadata() | {"next-row-id": 2000}
    table = committed(tmp_path / "t", made.write(metadata))
    ids = {
        stored(e.file.file_path).stat().st_size and e.file.lower_bounds[1]: e.file.first_row_id
        for e in _entries(table)
    }
    assert ids == {struct.pack("<q", i * 10): 1000 - i * 100 for i in range(3)}
    assert table.metadata.next_row_id >= 2000


def test_avro_files_are_sealed_as_they_are(tmp_path: Path) -> None:
    made = maker(tmp_path / "t")
    schema = {
        "type": "record",
        "name": "table",
        "fields": [
            {"name": "id", "type": "long", "field-id": 1},
            {"name": "name", "type": ["null", "string"], "default": None, "field-id": 2},
        ],
    }
    file = made.add_avro(some(0, 500), schema)
    made.commit(file)
    plain = stored(file["file_path"]).read_bytes()
    table = committed(tmp_path / "t", made.write())
    assert table.scan().to_arrow()["id"].to_pylist() == list(range(500))
    (entry,) = _entries(table)
    files = TableFiles(IO, EncryptionManager(memory_kms(), "keyA"))
    assert files.read_encrypted(entry.file.file_path, entry.file.key) == plain


def test_orc_is_refused(tmp_path: Path) -> None:
    made = maker(tmp_path / "t")
    made.commit(made.add_parquet(some(0, 3)) | {"file_format": "ORC"})
    with pytest.raises(NotImplementedError, match="ORC"):
        committed(tmp_path / "t", made.write())


@pytest.mark.parametrize("what", ["another type", "no time", "no column", "no IDs", "key"])
def test_a_file_that_cannot_be_read_is_not_migrated(tmp_path: Path, what: str) -> None:
    made = maker(tmp_path / "t")
    made.set_schema([COLUMNS[0], {"id": 3, "name": "t", "type": "time"}])
    made.commit(made.add_parquet([{"id": 1, "t": time(23, 59)}] * 5))
    names = Schema(NestedField(1, "id", LongType()), NestedField(3, "t", StringType()))
    late = {"name": "t", "type": {"type": "long", "logicalType": "time-micros"}, "field-id": 3}
    number = {"name": "id", "type": "long", "field-id": 1}
    unreadable = {
        "another type": lambda: made.add_parquet([{"id": 1, "t": "x"}] * 5, schema=names),
        "no time": lambda: made.add_avro(
            [{"id": 1, "t": 86_400_000_000}],
            {"type": "record", "name": "table", "fields": [number, late]},
        ),
        "no column": lambda: made.add_parquet([{"t": None}], schema=made.schema.select("t")),
        "no IDs": lambda: made.add_parquet_of(pa.table({"id": [1]})),
        "key": lambda: made.add_equality_deletes([{"id": 1, "t": "x"}], [3], schema=names),
    }[what]()
    made.commit(unreadable)
    before = sorted(tmp_path.rglob("*"))
    metadata = json.loads(Path(made.write()).read_text())
    migration = Migration(TableOutput(IO), new_keys())
    with pytest.raises(FormatError) as refused:
        migration.produce(metadata)
    assert refused.value.file == unreadable["file_path"]
    written = set(tmp_path.rglob("*")) - set(before)
    assert [path.name for path in written] == ["00005.metadata.json"]  # that of the test


def test_statistics_go(tmp_path: Path) -> None:
    made = maker(tmp_path / "t")
    snapshot_id = made.commit(made.add_parquet(some(0, 3)))
    statistics = {
        "snapshot-id": snapshot_id,
        "statistics-path": f"{made.location}/metadata/s.puffin",
        "file-size-in-bytes": 3,
        "file-footer-size-in-bytes": 3,
        "blob-metadata": [],
    }
    # Of a snapshot that is long gone, too.
    metadata = made.metadata() | {"statistics": [statistics, statistics | {"snapshot-id": 77}]}
    table = committed(tmp_path / "t", made.write(metadata))
    assert table.metadata.statistics == []

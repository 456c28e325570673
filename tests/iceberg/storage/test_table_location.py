"""What metadata.json alone names is neither deleted nor overwritten: each test has somebody who
may write a table's metadata.json where it lies, and nothing else."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from iceberg_tables import memory_kms, unpin
from pyiceberg.catalog import load_catalog as load_plain_catalog
from pyiceberg.exceptions import ValidationException

from ags1.iceberg import EncryptedCatalog, EncryptedTable
from ags1.iceberg.commit.metadata_file import with_metadata_log
from ags1.iceberg.storage.output import TableOutput
from ags1.iceberg.storage.table_folders import TableFolders
from ags1.iceberg.storage.trust import Trust

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])
DATA, METADATA = "write.data.path", "write.metadata.path"


class Warehouse:
    """A catalog in a folder, and somebody who writes into its metadata files."""

    def __init__(self, folder: Path, **properties: str) -> None:
        self.folder = folder
        inner = load_plain_catalog(
            "test",
            type="sql",
            uri=f"sqlite:///{folder}/catalog.db",
            warehouse=f"file://{folder}/warehouse",
            **properties,
        )
        inner.create_namespace_if_not_exists("db")
        self.catalog = EncryptedCatalog(inner, memory_kms())

    def create(self, name: str, *appended: range, **properties: str) -> EncryptedTable:
        stated = {"encryption.key-id": "keyA", **properties}
        table = self.catalog.create_table(f"db.{name}", SCHEMA, properties=stated)
        for ids in appended or (range(10),):
            table.append(rows(ids))
        assert isinstance(table, EncryptedTable)
        return table

    def load(self, name: str, **expected: Any) -> EncryptedTable:
        table = self.catalog.load_table(f"db.{name}", **expected)
        assert isinstance(table, EncryptedTable)
        return table

    def forge(self, table: Any, change: Callable[[dict[str, Any]], None]) -> None:
        path = path_of(table.metadata_location)
        metadata = json.loads(path.read_text())
        change(metadata)
        path.write_text(json.dumps(metadata))
        unpin(self.catalog)

    def strangers_file(self, text: str = "precious") -> Path:
        path = self.folder / "home" / "thesis.tex"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path

    def folder_of(self, name: str) -> Path:
        return self.folder / "warehouse" / "db" / name


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Warehouse]:
    made = Warehouse(tmp_path)
    yield made
    made.catalog.close()


def rows(ids: range) -> pa.Table:
    return pa.table({"id": ids, "v": [f"v{i}" for i in ids]}, schema=SCHEMA)


def path_of(location: str) -> Path:
    return Path(location.removeprefix("file://"))


def count(table: Any) -> int:
    return int(table.scan().to_arrow().num_rows)


def statistics(snapshot_id: int, location: str | Path, size: int = 9) -> dict[str, Any]:
    return {
        "snapshot-id": snapshot_id,
        "statistics-path": location if isinstance(location, str) else f"file://{location}",
        "file-size-in-bytes": size,
        "file-footer-size-in-bytes": 1,
        "blob-metadata": [],
    }


def graft(source: Any) -> Callable[[dict[str, Any]], None]:
    """Return what puts another table's snapshots, with their keys, before a table's own."""
    other = json.loads(path_of(source.metadata_location).read_text())

    def change(metadata: dict[str, Any]) -> None:
        before = metadata["snapshots"][0]["timestamp-ms"] - 10
        metadata["snapshots"] += [
            s | {"timestamp-ms": before, "sequence-number": 1} for s in other["snapshots"]
        ]
        if "encryption-keys" in other:
            metadata["encryption-keys"] += other["encryption-keys"]

    return change


def expire_all_but_one(table: EncryptedTable) -> Any:
    return table.expire_snapshots(older_than=datetime.now(), retain_last=1)


def files_in(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


# -- a plain table is encrypted


def test_a_migration_deletes_no_files_of_others(lake: Warehouse) -> None:
    plain = lake.catalog.inner.create_table("db.p", SCHEMA)
    plain.append(rows(range(5)))
    other = lake.catalog.inner.create_table("db.q", SCHEMA)
    other.append(rows(range(100, 105)))
    encrypted = lake.create("e", range(7))
    precious = lake.strangers_file()
    notes = lake.folder_of("p") / "metadata" / "notes"
    notes.write_text("not statistics")
    good = notes.with_name("1.stats")
    good.write_bytes(b"PFA1 good")

    def change(metadata: dict[str, Any]) -> None:
        metadata["properties"] |= {
            DATA: f"{metadata['location']}/data",
            METADATA: f"{metadata['location']}/metadata",
        }
        metadata["location"] = f"file://{lake.folder}"
        current = metadata["current-snapshot-id"]
        graft(other)(metadata)
        metadata["statistics"] = [
            statistics(current, precious),
            statistics(current, encrypted.metadata_location),
            statistics(current, notes),
            statistics(current, good),
            statistics(current, notes.with_name("gone.stats")),
        ]

    lake.forge(plain, change)
    mine = (".avro", ".parquet", ".stats")
    old = {path for path in files_in(lake.folder_of("p")) if path.suffix in mine}
    result = lake.catalog.migrate_table("db.p", "keyA", delete_plaintext=True)
    assert precious.exists()
    assert notes.exists()
    assert count(lake.load("e")) == 7
    assert count(lake.catalog.load_table("db.q")) == 5
    assert result.plaintext is not None
    current = other.current_snapshot()
    assert current is not None
    assert set(result.plaintext.outside) == {
        f"file://{precious}",
        f"file://{notes}",
        encrypted.metadata_location,
        current.manifest_list,
    }
    # What was the table's is gone.
    assert count(lake.load("p")) == 5
    assert {path_of(location) for location in result.plaintext.inside} == old
    assert not any(path.exists() for path in old)


@pytest.mark.parametrize("is_shared", [False, True])
def test_an_earlier_metadata_json_names_no_folder(lake: Warehouse, is_shared: bool) -> None:
    """The catalog confirms the encrypted table, and not the plaintext version that its log names.
    Somebody changed that one before the next run deletes what is in the clear."""
    lake.catalog.create_table("db.p", SCHEMA).append(rows(range(5)))
    other = lake.catalog.create_table("db.q", SCHEMA)
    other.append(rows(range(100, 105)))
    lake.catalog.migrate_table("db.p", "keyA")
    table = lake.load("p")
    earlier = path_of(table.metadata.metadata_log[-1].metadata_file)
    metadata = json.loads(earlier.read_text())
    graft(other)(metadata)
    earlier.write_text(json.dumps(metadata | {"location": other.location()}))
    before = files_in(lake.folder)
    if is_shared:
        table.transaction().set_properties({"gc.enabled": "false"}).commit_transaction()
        with pytest.raises(ValidationException, match=r"gc\.enabled"):
            lake.catalog.migrate_table("db.p", "keyA", delete_plaintext=True)
        assert before <= files_in(lake.folder)
        return
    result = lake.catalog.migrate_table("db.p", "keyA", delete_plaintext=True)
    gone = before - files_in(lake.folder)
    assert earlier in gone
    assert all(path.is_relative_to(lake.folder_of("p")) for path in gone)
    current = other.current_snapshot()
    assert current is not None
    assert result.plaintext.outside == (current.manifest_list,)
    assert (count(lake.load("p")), count(other)) == (5, 5)


def forge_records(source: Path, target: Path, change: Callable[[Any], None]) -> None:
    """Write an Avro file anew, with ``change`` done to each of its records."""
    with source.open("rb") as file:
        reader: Any = fastavro.reader(file)
        records, schema = list(reader), reader.writer_schema
        header = {k: v for k, v in reader.metadata.items() if not k.startswith("avro.")}
    for record in records:
        change(record)
    with target.open("wb") as file:
        fastavro.writer(file, schema, records, metadata=header)


def migrate_with_forged_snapshot(lake: Warehouse, named: Path) -> Any:
    """Migrate a plain table and delete what is in the clear; it has an older snapshot, of other
    people's making, with one data file: ``named``."""
    plain = lake.catalog.inner.load_table("db.p")
    folder = lake.folder_of("p") / "metadata"
    current = plain.current_snapshot()
    assert current is not None
    manifest, listed = folder / "old-m0.avro", folder / "snap-old.avro"
    forge_records(
        path_of(current.manifests(plain.io)[0].manifest_path),
        manifest,
        lambda entry: entry["data_file"].update(file_path=f"file://{named}"),
    )
    forge_records(
        path_of(current.manifest_list),
        listed,
        lambda m: m.update(
            manifest_path=f"file://{manifest}", manifest_length=manifest.stat().st_size
        ),
    )

    def change(metadata: dict[str, Any]) -> None:
        snapshot = metadata["snapshots"][-1]
        old = {
            "snapshot-id": 1,
            "manifest-list": f"file://{listed}",
            "timestamp-ms": snapshot["timestamp-ms"] - 5,
        }
        metadata["snapshots"].insert(0, snapshot | old)

    lake.forge(plain, change)
    return lake.catalog.migrate_table("db.p", "keyA", delete_plaintext=True)


def test_a_migration_deletes_nothing_behind_a_link(lake: Warehouse) -> None:
    lake.catalog.inner.create_table("db.p", SCHEMA).append(rows(range(5)))
    precious = lake.strangers_file("PAR1 precious")
    link = lake.folder_of("p") / "link"
    link.symlink_to(precious.parent)
    result = migrate_with_forged_snapshot(lake, link / precious.name)
    assert precious.exists()
    assert result.plaintext.outside == (f"file://{link / precious.name}",)
    assert result.failed == ()
    assert count(lake.load("p")) == 5


def test_a_migration_deletes_only_what_begins_as_a_tables_file(lake: Warehouse) -> None:
    lake.catalog.inner.create_table("db.p", SCHEMA).append(rows(range(5)))
    notes = lake.folder_of("p") / "notes.parquet"
    notes.write_text("mine")
    result = migrate_with_forged_snapshot(lake, notes)
    assert notes.exists()
    assert result.plaintext.outside == (f"file://{notes}",)


def test_a_link_that_comes_late_leads_nowhere(lake: Warehouse) -> None:
    lake.catalog.inner.create_table("db.p", SCHEMA).append(rows(range(5)))
    left = lake.catalog.migrate_table("db.p", "keyA").plaintext
    assert left is not None
    data, moved = lake.folder_of("p") / "data", lake.folder / "moved"
    data.rename(moved)
    data.symlink_to(moved)
    before = files_in(moved)
    failed = left.delete(TableOutput(lake.load("p").files.inner))
    assert files_in(moved) == before
    assert failed
    assert {path_of(f).parent for f in failed} == {data}


# -- snapshots are expired, tables purged


def linked_graft(source: Any, link: Path) -> Callable[[dict[str, Any]], None]:
    """As ``graft``, by a link to the source's folder."""

    def change(metadata: dict[str, Any]) -> None:
        count = len(metadata["snapshots"])
        graft(source)(metadata)
        for snapshot in metadata["snapshots"][count:]:
            named = path_of(snapshot["manifest-list"])
            snapshot["manifest-list"] = f"file://{link}/metadata/{named.name}"

    return change


def test_another_tables_files_behind_a_link_are_left(lake: Warehouse) -> None:
    table, other = lake.create("t", range(10), range(10, 20)), lake.create("other", range(100, 200))
    link = lake.folder_of("t") / "link"
    link.symlink_to(lake.folder_of("other"))
    before = files_in(lake.folder_of("other"))
    lake.forge(table, linked_graft(other, link))
    expired = expire_all_but_one(lake.load("t"))
    assert [path_of(f).parent for f in expired.left_behind] == [link / "metadata"]
    assert files_in(lake.folder_of("other")) == before
    dropped = lake.create("dropped")
    link = lake.folder_of("dropped") / "link"
    link.symlink_to(lake.folder_of("other"))
    lake.forge(dropped, linked_graft(other, link))
    lake.catalog.purge_table("db.dropped")
    assert files_in(lake.folder_of("dropped")) == set()
    assert files_in(lake.folder_of("other")) == before
    assert count(lake.load("other")) == 100


def test_a_live_file_is_not_deleted_by_the_name_of_a_link(lake: Warehouse) -> None:
    table = lake.create("t", range(10), range(10, 20))
    (lake.folder_of("t") / "link").symlink_to(".")
    live = lake.folder_of("t") / "metadata" / "live.stats"
    old = live.with_name("old.stats")
    for file in (live, old):
        file.write_bytes(b"PFA1 good")
    first, last = (snapshot.snapshot_id for snapshot in table.snapshots())
    linked = lake.folder_of("t") / "link" / "metadata"

    def change(metadata: dict[str, Any]) -> None:
        metadata["statistics"] = [statistics(first, linked / "live.stats"), statistics(last, live)]
        metadata["partition-statistics"] = [statistics(first, linked / "old.stats")]

    lake.forge(table, change)
    expired = expire_all_but_one(lake.load("t"))
    assert expired.files.statistics == (f"file://{linked}/old.stats",)
    assert live.exists()
    assert not old.exists()


def test_snapshots_of_another_table_are_not_expired_with_their_files(lake: Warehouse) -> None:
    table, other = lake.create("t", range(10), range(10, 20)), lake.create("other", range(100, 200))
    lake.forge(table, graft(other))
    current = other.current_snapshot()
    assert current is not None
    expired = expire_all_but_one(lake.load("t"))
    assert current.snapshot_id in expired.snapshot_ids
    assert expired.left_behind == (current.manifest_list,)
    # The table's own does go.
    assert [path_of(f).parent for f in expired.files.manifest_lists] == [
        lake.folder_of("t") / "metadata"
    ]
    assert count(lake.load("other")) == 100


def test_a_purge_leaves_another_tables_files(lake: Warehouse) -> None:
    table, other = lake.create("t"), lake.create("other", range(100, 200))
    lake.forge(table, graft(other))
    lake.catalog.purge_table("db.t")
    assert not files_in(lake.folder_of("t"))
    assert count(lake.load("other")) == 100


def test_a_purge_leaves_what_two_parsers_read_differently(lake: Warehouse) -> None:
    table, other = lake.create("t"), lake.create("other")
    # Behind '#' is no path for PyArrow, and for others the way back to the table's folder.
    detour = f"{other.metadata_location}#/../../../t/metadata/1.metadata.json"
    lake.forge(
        table,
        lambda m: m["metadata-log"].append(
            {"timestamp-ms": m["last-updated-ms"], "metadata-file": detour}
        ),
    )
    lake.catalog.purge_table("db.t")
    assert count(lake.load("other")) == 10


def test_live_files_are_no_statistics_wherever_they_lie(lake: Warehouse) -> None:
    here = f"file://{lake.folder_of('t')}/metadata"
    table = lake.create("t", range(10), range(10, 20), **{DATA: here})
    live = next(iter(lake.load("t").scan(row_filter="id < 10").plan_files())).file.file_path
    first = table.metadata.snapshots[0].snapshot_id
    current = table.current_snapshot()
    assert current is not None
    # The list by a name that does not tell what it is.
    renamed = path_of(current.manifest_list).with_suffix(".list")
    path_of(current.manifest_list).rename(renamed)

    def change(metadata: dict[str, Any]) -> None:
        metadata["snapshots"][1]["manifest-list"] = f"file://{renamed}"
        metadata["statistics"] = [statistics(first, live), statistics(first, renamed)]

    lake.forge(table, change)
    expired = expire_all_but_one(lake.load("t"))
    assert expired.files.statistics == ()
    assert set(expired.left_behind) == {live, f"file://{renamed}"}
    assert count(lake.load("t")) == 20


# -- which folders are its own


def test_files_elsewhere_are_deleted_where_somebody_vouches_for_the_metadata(
    tmp_path: Path,
) -> None:
    def overwritten(lake: Warehouse) -> tuple[EncryptedTable, str]:
        elsewhere = f"file://{tmp_path}/elsewhere/{lake.folder.name}"
        table = lake.create("t", **{DATA: elsewhere})
        file = next(iter(table.scan().plan_files())).file.file_path
        assert file.startswith(elsewhere)
        table.overwrite(rows(range(5)))
        return table, file

    lakes = []
    for name in ("unknown", "pinned", "configured"):
        (tmp_path / name).mkdir()
        more = {DATA: f"file://{tmp_path}/elsewhere/{name}"} if name == "configured" else {}
        lakes.append(Warehouse(tmp_path / name, **more))
    unknown, pinned, configured = lakes
    _, file = overwritten(unknown)
    unpin(unknown.catalog)
    expired = expire_all_but_one(unknown.load("t"))
    assert path_of(file).exists()
    assert expired.left_behind == (file,)
    table, file = overwritten(pinned)
    unpin(pinned.catalog)
    digest = hashlib.sha256(path_of(table.metadata_location).read_bytes()).hexdigest()
    expired = expire_all_but_one(pinned.load("t", expected_metadata_sha256=digest))
    assert not path_of(file).exists()
    assert expired.left_behind == ()
    _, file = overwritten(configured)
    unpin(configured.catalog)
    assert expire_all_but_one(configured.load("t")).left_behind == ()
    assert not path_of(file).exists()
    for lake in lakes:
        assert count(lake.load("t")) == 5
        lake.catalog.close()


@pytest.mark.parametrize(
    ("metadata_location", "location", "expected"),
    [
        ("file:///w/t/metadata/1.json", "file:///w/t/data/x", True),
        ("file:///w/t/metadata/1.json", "file:/w/t/data/x", True),
        ("file:///w/t/metadata/1.json", "/w//t/./data/x", True),
        ("/w/t/metadata/1.json", "file:///w/t/metadata/x", True),
        ("file:///w/t/metadata/1.json", "file:///w/t", False),
        ("file:///w/t/metadata/1.json", "file:///w/t2/x", False),
        ("file:///w/t/metadata/1.json", "file:///w/t/../u/x", False),
        ("file:///w/t/metadata/1.json", "file:///w/t/data/../../u/x", False),
        ("file:///w/t/metadata/1.json", "file:///w/u/../t/x", False),
        ("file:///w/t/metadata/1.json", "file:///u/x?/../../w/t/x", False),
        ("file:///w/t/metadata/1.json", "file:///w/t/.\t./u/x", False),
        ("file:///w/t/metadata/1.json", "file://w/t/x", False),
        ("file:///w/t/metadata/1.json", "w/t/x", False),
        ("file:///w/t/metadata/1.json", "s3://w/t/x", False),
        # The catalog's own detour is no reason to leave everything.
        ("file:///v/../w/t/metadata/1.json", "file:///v/../w/t/data/x", True),
        ("s3://b/w/t/metadata/1.json", "s3a://b/w/t/data/x", True),
        ("s3n://b/w/t/metadata/1.json", "S3://b/w/t/data/x", True),
        ("s3://b/w/t/metadata/1.json", "gs://b/w/t/data/x", False),
        ("s3://b/w/t/metadata/1.json", "s3://c/w/t/data/x", False),
        ("s3://b/w/t/metadata/1.json", "s3://b/w/t/../x", False),
        ("s3://b/w/t/metadata/1.json", "s3://b/w//t/data/x", False),
        # Neither a bucket nor a file system is a table's alone.
        ("s3://b/metadata/1.json", "s3://b/data/x", False),
        ("s3://b/metadata/1.json", "s3://b/metadata/x", True),
        ("s3://b/1.json", "s3://b/x", False),
        ("file:///metadata/1.json", "file:///data/x", False),
        ("file:///v/../metadata/1.json", "file:///v/../data/x", False),
        # Beside a folder of another name there may be other tables.
        ("file:///w/t-metadata/1.json", "file:///w/t/data/x", False),
        ("file:///w/t-metadata/1.json", "file:///w/t-metadata/x", True),
        ("", "file:///w/t/x", False),
    ],
)
def test_which_files_are_a_tables_own(
    metadata_location: str, location: str, expected: bool
) -> None:
    assert TableFolders(metadata_location).has(location) is expected


def test_the_metadatas_word_counts_where_it_is_confirmed() -> None:
    metadata = {
        "location": "s3://b/t/",
        "properties": {DATA: "s3://c/t/data", "write.object-storage.path": "s3://c"},
    }
    at = "s3://b/meta/t/1.metadata.json"

    def found(trust: Trust, **properties: str) -> list[bool]:
        folders = TableFolders.of(metadata, at, trust, properties)
        return [folders.has(f) for f in ("s3://b/t/x", "s3://c/t/data/x", "s3://c/x", "s3://d/x")]

    assert found(Trust("keyA")) == [False, False, False, False]
    assert found(Trust(), **{DATA: "s3://c/t/data"}) == [False, True, False, False]
    assert found(Trust(), **{DATA: "s3://c/other"}) == [False, False, False, False]
    for trust in (Trust(java_hash="x"), Trust(metadata_sha256="x"), Trust(is_from_server=True)):
        assert found(trust) == [True, True, False, False]


def test_versions_of_the_metadata_are_beside_it() -> None:
    at = "s3://b/t/metadata/00002-x.metadata.json"
    own = [
        "s3a://b/t/metadata/00001-x.metadata.json",
        "s3://b/t/metadata/00000-x.gz.metadata.json",
    ]
    strange = [
        "s3://b/u/metadata/00001-x.metadata.json",
        "s3://b/t/metadata/snap-1.avro",
        "s3://b/t/metadata/snap-1.avro#.metadata.json",
        "s3://b/t/metadata/../../u/metadata/1.metadata.json",
        "gs://b/t/metadata/00001-x.metadata.json",
    ]
    assert TableFolders(at).versions(own + strange) == own
    log = [{"timestamp-ms": 1, "metadata-file": file} for file in own + strange]
    metadata = {
        "last-updated-ms": 2,
        "metadata-log": log,
        "properties": {
            "write.metadata.previous-versions-max": "1",
            "write.metadata.delete-after-commit.enabled": "true",
        },
    }
    assert with_metadata_log(metadata, at, 1)[1] == own


def test_a_home_behind_a_link_is_one(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    lake = Warehouse(tmp_path / "link")
    table = lake.create("t", range(10), range(10, 20))
    folders = table.folders
    for folder in ("link", "real"):
        assert folders.has(f"file://{tmp_path}/{folder}/warehouse/db/t/data/x")
        assert folders.has_in_metadata_folder(f"{tmp_path}/{folder}/warehouse/db/t/metadata/x")
    table.overwrite(rows(range(5)))
    expired = expire_all_but_one(lake.load("t"))
    assert expired.left_behind == ()
    assert len(expired.files.data_files) == 2
    lake.catalog.purge_table("db.t")
    assert not files_in(lake.folder_of("t"))
    lake.catalog.close()


def test_a_link_in_a_home_leads_out_of_it(tmp_path: Path) -> None:
    own, other = tmp_path / "t", tmp_path / "other"
    for folder in (own / "data" / "real", own / "metadata", other / "metadata"):
        folder.mkdir(parents=True)
    (own / "out").symlink_to(other)
    (own / "in").symlink_to(own / "data")
    (own / "loop").symlink_to("loop")
    folders = TableFolders(f"file://{own}/metadata/1.metadata.json")
    assert folders.has(f"file://{own}/data/real/x")
    assert folders.has(f"file:{own}/in/real/x")
    assert not folders.has(f"file://{own}/out/x")
    assert not folders.has(f"{own}/out/metadata/x")
    assert not folders.has(f"{own}/in/../x")
    # That of the link itself.
    assert folders.has(f"{own}/out")
    assert not folders.has_in_metadata_folder(f"{own}/out/metadata/1.metadata.json")
    assert folders.has_in_metadata_folder(f"{own}/data/../metadata/x") is False
    assert not folders.has(f"file://{own}/\ud800")


def test_a_linked_folder_is_no_root_of_a_home(tmp_path: Path) -> None:
    own, other = tmp_path / "t", tmp_path / "other"
    own.mkdir()
    other.mkdir()
    for name in ("metadata", "data"):
        (own / name).symlink_to(other)
    at = f"file://{own}/metadata/1.metadata.json"
    data = f"file://{own}/data"
    for folders in (
        TableFolders(at),
        TableFolders.of({"properties": {DATA: data}}, at, Trust(), {DATA: data}),
    ):
        assert not folders.has(f"{data}/x")
        assert not folders.has(f"file://{own}/metadata/x")
        assert not folders.has_in_metadata_folder(at)
        assert folders.versions([at]) == []
    assert TableFolders(at, [str(other)]).has(f"{data}/x")


# -- where the next metadata.json goes


def test_a_forged_folder_for_metadata_is_not_gone_to(lake: Warehouse) -> None:
    table = lake.create("t")
    lake.create("other", range(100, 200), range(200, 300))
    victim = next((lake.folder_of("other") / "data").glob("*.parquet"))
    snapshot_id = table.metadata.current_snapshot_id
    assert snapshot_id is not None

    def change(metadata: dict[str, Any]) -> None:
        metadata["properties"][METADATA] = f"file://{victim.parent}"
        metadata["statistics"] = [statistics(snapshot_id, victim)]

    lake.forge(table, change)
    table = lake.load("t")
    table.append(rows(range(10, 12)))
    assert path_of(table.metadata_location).parent == lake.folder_of("t") / "metadata"
    expired = expire_all_but_one(table)
    assert expired.files.statistics == ()
    assert f"file://{victim}" in expired.left_behind
    lake.catalog.purge_table("db.t")
    assert count(lake.load("other")) == 200


def test_a_forged_log_names_no_version_of_another_table(lake: Warehouse) -> None:
    table, other = lake.create("t"), lake.create("other")

    def change(metadata: dict[str, Any]) -> None:
        metadata["properties"] |= {
            METADATA: f"file://{lake.folder_of('other')}/metadata",
            "write.metadata.delete-after-commit.enabled": "true",
            "write.metadata.previous-versions-max": "2",
        }
        metadata["metadata-log"] = [
            {
                "timestamp-ms": metadata["last-updated-ms"] - 5,
                "metadata-file": other.metadata_location,
            }
        ]

    lake.forge(table, change)
    for _ in range(3):
        lake.load("t").append(rows(range(2)))
    assert count(lake.load("other")) == 10
    assert count(lake.load("t")) == 16
    # Its own versions do go: the present one and two before stay.
    assert len(list((lake.folder_of("t") / "metadata").glob("*.metadata.json"))) == 4


def test_a_forged_location_does_not_move_the_metadata(lake: Warehouse) -> None:
    table = lake.create("t")
    lake.forge(table, lambda m: m.update(location=f"file://{lake.folder}/elsewhere"))
    table = lake.load("t")
    table.append(rows(range(2)))
    assert path_of(table.metadata_location).parent == lake.folder_of("t") / "metadata"
    # Its name is the table's to choose.
    with table.transaction() as transaction:
        transaction.set_properties({"write.metadata.compression-codec": "gzip"})
    assert path_of(table.metadata_location).parent == lake.folder_of("t") / "metadata"
    assert table.metadata_location.endswith(".gz.metadata.json")
    assert count(lake.load("t")) == 12


def test_metadata_goes_where_the_writer_says(lake: Warehouse) -> None:
    chosen, later = lake.folder / "chosen", lake.folder / "later"
    table = lake.create("t", **{METADATA: f"file://{chosen}"})
    assert path_of(table.metadata_location).parent == chosen
    with table.transaction() as transaction:
        transaction.set_properties({METADATA: f"file://{later}/"})
    assert path_of(table.metadata_location).parent == later
    table.append(rows(range(2)))
    assert path_of(table.metadata_location).parent == later
    table.overwrite(rows(range(2)))
    # Nothing tells that the folder before was the table's.
    unpin(lake.catalog)
    expired = expire_all_but_one(table := lake.load("t"))
    assert {path_of(location).parent for location in expired.files.locations} == {later}
    assert len([f for f in expired.left_behind if path_of(f).parent == chosen]) == 2
    # What another writer had set before counts where the file is vouched for.
    lake.forge(table, lambda m: m["properties"].update({METADATA: f"file://{chosen}"}))
    digest = hashlib.sha256(path_of(table.metadata_location).read_bytes()).hexdigest()
    pinned = lake.load("t", expected_metadata_sha256=digest)
    pinned.append(rows(range(2)))
    assert path_of(pinned.metadata_location).parent == chosen
    assert count(lake.load("t")) == 4


def test_metadata_goes_where_the_catalog_says(tmp_path: Path) -> None:
    lake = Warehouse(tmp_path, **{METADATA: f"file://{tmp_path}/all"})
    table = lake.create("t")
    lake.forge(table, lambda m: m["properties"].update({METADATA: f"file://{tmp_path}/all"}))
    table = lake.load("t")
    table.append(rows(range(2)))
    assert path_of(table.metadata_location).parent == tmp_path / "all"
    lake.catalog.close()

"""Orphan files: what nothing needs goes, and everything else stays.

What stays is compared with the folder as it was, and with scans of every snapshot, branch and tag.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from iceberg_tables import JAVA_LOCATION, copied, memory_kms, metadata_file, sql_catalog, unpin
from pyiceberg.exceptions import ValidationException
from pyiceberg.io.pyarrow import PyArrowFileIO
from table_maker import TableMaker, stored

from ags1.errors import (
    Ags1Error,
    AuthenticationError,
    KmsUnavailableError,
    MetadataIntegrityError,
    NotEncryptedError,
    TruncatedError,
)
from ags1.iceberg import (
    EncryptedCatalog,
    EncryptedTable,
    open_table,
    verify_table,
)
from ags1.iceberg.commit.sql import SqlCommits
from ags1.iceberg.operations import orphans
from ags1.iceberg.operations.orphans import OrphanFiles, find_orphans
from ags1.iceberg.operations.reached_files import ReachedFiles
from ags1.iceberg.storage.listing import ListedFile, list_with_times
from ags1.iceberg.storage.output import TableOutput
from ags1.keys.manager import now_ms

pytestmark = pytest.mark.filterwarnings("ignore::ags1.kms.memory.KeysInPropertiesWarning")

DAY = 24 * 60 * 60
COLUMNS = [{"id": 1, "name": "id", "type": "long"}]
AT_ONCE: dict[str, Any] = {"no_other_writers": True}


def rows(*numbers: int) -> pa.Table:
    return pa.table({"id": pa.array(numbers, pa.int64())})


def now() -> datetime:
    return datetime.now(timezone.utc)


def files_in(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file() or path.is_symlink()}


def age(*paths: Path, days: float = 9) -> None:
    for path in paths:
        os.utime(path, (time.time() - days * DAY,) * 2, follow_symlinks=False)


def planted(path: Path, data: bytes = b"PAR1", days: float = 9) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    age(path, days=days)
    return path


def folder_of(table: EncryptedTable) -> Path:
    return Path(table.location().removeprefix("file://"))


def locations(*paths: Path) -> list[str]:
    return sorted(map(str, paths))


def found_of(result: OrphanFiles) -> list[str]:
    return sorted(result.orphan_file_locations)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A catalog's folder, to be copied to ``live`` beside it: its table has data files, vectors, a
    tag, a branch and forgotten metadata files. All its files are nine days old."""
    folder = tmp_path_factory.mktemp("orphans") / "live"
    folder.mkdir()
    with sql_catalog(folder) as made:
        properties = {"encryption.key-id": "keyA", "write.metadata.previous-versions-max": "3"}
        table = made.create_table("db.t", rows(1).schema, properties=properties)
        table.append(rows(1, 2, 3))
        first = table.metadata.current_snapshot_id
        table.manage_snapshots().create_tag(first, "v1").commit()
        table.delete("id = 2")
        table.append(rows(4))
        table.append(rows(50), branch="audit")
        table.overwrite(rows(5), "id = 4")
    age(*files_in(folder))
    return Path(shutil.copytree(folder, folder.with_name("saved")))


@pytest.fixture
def catalog(template: Path) -> Iterator[EncryptedCatalog]:
    live = template.with_name("live")
    shutil.rmtree(live)
    shutil.copytree(template, live)
    with sql_catalog(live) as made:
        yield made


@pytest.fixture
def table(catalog: EncryptedCatalog) -> EncryptedTable:
    made = catalog.load_table("db.t")
    assert isinstance(made, EncryptedTable)
    return made


def check_whole(table: EncryptedTable) -> None:
    """Everything that any branch, tag or snapshot has can be read and verified."""
    assert verify_table(table, list_folders=False).ok
    assert sorted(table.scan().to_arrow()["id"].to_pylist()) == [1, 3, 5]
    v1, audit = (table.snapshot_by_name(name) for name in ("v1", "audit"))
    assert v1 is not None
    assert audit is not None
    assert table.scan(snapshot_id=v1.snapshot_id).to_arrow()["id"].to_pylist() == [1, 2, 3]
    assert 50 in table.scan(snapshot_id=audit.snapshot_id).to_arrow()["id"].to_pylist()
    for snapshot in table.snapshots():
        table.scan(snapshot_id=snapshot.snapshot_id).to_arrow()


def unlogged(table: EncryptedTable) -> list[Path]:
    """The metadata files that the metadata log has forgotten."""
    known = {table.metadata_location, *(e.metadata_file for e in table.metadata.metadata_log)}
    paths = folder_of(table).rglob("*.metadata.json")
    return [path for path in paths if f"file://{path}" not in known]


def test_orphans_go_and_all_else_stays(table: EncryptedTable) -> None:
    folder = folder_of(table)
    old = unlogged(table)
    assert len(old) == 3
    needed = list((folder / "data").glob("*.parquet"))
    go = [
        *old,
        planted(folder / "data" / "b.parquet"),
        planted(folder / "data" / "p=1" / "b.puffin", b"AGS1" + bytes(100)),
        planted(folder / "data" / ".b.parquet.crc"),
        planted(folder / "metadata" / ".ags1-x.tmp"),
        planted(folder / "metadata" / "snap-1-1-x.avro"),
        planted(folder / "metadata" / "1.stats"),
    ]
    stay = [
        planted(folder / "data" / "_work" / "c.parquet"),
        planted(folder / "data" / ".hidden"),
        planted(folder / "data" / "young.parquet", days=2),
        planted(folder / "metadata" / "version-hint.text", b"3"),
        planted(folder / "sub" / "metadata" / "00000-x.metadata.json", b"{}"),
        planted(folder / "sub" / "data" / "c.parquet"),
        *(planted(path.with_name(f".{path.name}.crc")) for path in needed),
    ]
    age(*files_in(folder) - {folder / "data" / "young.parquet"})
    before = files_in(folder)
    dry = table.remove_orphan_files(dry_run=True)
    assert files_in(folder) == before
    seen: list[tuple[int, int]] = []
    done = table.remove_orphan_files(progress=lambda *step: seen.append(step))
    assert dry == done
    assert found_of(done) == locations(*go)
    assert before - files_in(folder) == set(go)
    assert set(stay) <= files_in(folder)
    assert done.young_files == 1
    assert done.other_tables == (f"{folder}/sub",)
    assert (done.failed, done.not_searched) == ((), ())
    assert done.size == sum(f.size or 0 for f in done.files) > 100
    assert seen == [(n, len(go)) for n in range(1, len(go) + 1)]
    check_whole(table)
    assert table.remove_orphan_files().files == ()


def test_the_same_files_as_pyiceberg_knows_of_stay(table: EncryptedTable) -> None:
    """Whatever PyIceberg's own metadata tables name is not an orphan, and all else is."""
    planted(folder_of(table) / "data" / "b.parquet")
    known = {table.metadata_location, *(e.metadata_file for e in table.metadata.metadata_log)}
    known |= {s.manifest_list for s in table.snapshots()}
    known |= set(table.inspect.all_manifests()["path"].to_pylist())
    known |= set(table.inspect.all_files()["file_path"].to_pylist())
    known = {location.removeprefix("file://") for location in known}
    result = table.remove_orphan_files(dry_run=True)
    assert set(result.orphan_file_locations) == set(locations(*files_in(folder_of(table)))) - known


def test_a_folder_of_the_table_alone(table: EncryptedTable) -> None:
    folder = folder_of(table)
    orphan = planted(folder / "data" / "b.parquet")
    planted(folder / "metadata" / "snap-1.avro")
    for spelled in (f"file:{folder}/data", f"{folder}/data/", f"file://{folder}//data"):
        result = table.remove_orphan_files(location=spelled, dry_run=True)
        assert found_of(result) == locations(orphan)
    for outside in (f"file://{folder.parent}", "s3://lake/t", f"file://{folder}/../other"):
        with pytest.raises(ValueError, match="not in the table's folders"):
            table.remove_orphan_files(location=outside)


def test_less_than_a_day_is_refused(table: EncryptedTable) -> None:
    orphan = planted(folder_of(table) / "data" / "b.parquet", days=0.5)
    for moment in (now(), now() - timedelta(hours=23), now() + timedelta(days=1)):
        with pytest.raises(ValueError, match="24 hours"):
            table.remove_orphan_files(moment)
    day = now() - timedelta(hours=25)
    assert str(orphan) not in table.remove_orphan_files(day).orphan_file_locations
    assert orphan.exists()
    assert found_of(table.remove_orphan_files(now(), **AT_ONCE)) == locations(orphan)


def test_the_default_is_three_days(table: EncryptedTable) -> None:
    data = folder_of(table) / "data"
    old, young = planted(data / "old", days=3.01), planted(data / "young", days=2.99)
    result = table.remove_orphan_files()
    assert (old.exists(), young.exists(), result.young_files) == (False, True, 1)


def test_a_file_of_unknown_age_stays(
    table: EncryptedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    orphan = planted(folder_of(table) / "data" / "b.parquet")

    def timeless(*arguments: Any) -> Iterator[ListedFile]:
        return (file._replace(modified_ms=None) for file in list_with_times(*arguments) or ())

    monkeypatch.setattr(orphans, "list_with_times", timeless)
    result = table.remove_orphan_files(now(), **AT_ONCE)
    assert result.files == ()
    assert result.young_files == 1 + len(unlogged(table))
    assert orphan.exists()


def test_a_table_that_may_share_its_files_is_refused(table: EncryptedTable) -> None:
    orphan = planted(folder_of(table) / "data" / "b.parquet")
    with table.transaction() as transaction:
        transaction.set_properties({"gc.enabled": "false"})
    with pytest.raises(ValidationException, match=r"gc\.enabled"):
        table.remove_orphan_files()
    assert orphan.exists()


def test_what_cannot_be_deleted_is_told(
    table: EncryptedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = (planted(folder_of(table) / "data" / name) for name in ("a", "b"))
    delete = TableOutput.delete

    def stubborn(self: TableOutput, location: str) -> None:
        if location.endswith("/a"):
            raise PermissionError(location)
        delete(self, location)

    monkeypatch.setattr(TableOutput, "delete", stubborn)
    assert table.remove_orphan_files().failed == (str(one),)
    assert (one.exists(), two.exists()) == (True, False)


def test_an_interrupt_leaves_the_table_whole_and_the_next_run_goes_on(
    table: EncryptedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_of(table)
    data = [planted(folder / "data" / f"{number}.parquet") for number in range(200)]

    def interrupted(done: int, total: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    delete = TableOutput.delete

    def slow(self: TableOutput, location: str) -> None:
        time.sleep(0.01)
        delete(self, location)

    monkeypatch.setattr(TableOutput, "delete", slow)
    with pytest.raises(KeyboardInterrupt):
        table.remove_orphan_files(progress=interrupted)
    left = {path for path in data if path.exists()}
    assert 0 < len(left) < 200  # the rest was not deleted all the same
    check_whole(table)
    assert found_of(table.remove_orphan_files()) >= locations(*left)
    assert not [path for path in data if path.exists()]
    check_whole(table)


# -- what cannot be read


def manifest_of(table: EncryptedTable, ref: str) -> str:
    snapshot = table.snapshot_by_name(ref)
    assert snapshot is not None
    return snapshot.manifests(table.io)[0].manifest_path


def list_of(table: EncryptedTable, ref: str) -> str:
    snapshot = table.snapshot_by_name(ref)
    assert snapshot is not None
    return snapshot.manifest_list


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("ref", ["main", "audit", "v1"])
@pytest.mark.parametrize("of", [manifest_of, list_of])
@pytest.mark.parametrize(
    ("damage", "error"),
    [
        (flip, AuthenticationError),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), TruncatedError),
        (lambda path: path.write_bytes(b"Obj\x01" + path.read_bytes()), NotEncryptedError),
        (Path.unlink, FileNotFoundError),
    ],
)
def test_if_a_manifest_cannot_be_read_nothing_is_deleted(
    table: EncryptedTable, ref: str, of: Any, damage: Callable[[Path], Any], error: Any
) -> None:
    location = of(table, ref)
    path = Path(location.removeprefix("file://"))
    planted(folder_of(table) / "data" / "b.parquet")
    before = files_in(folder_of(table))
    damage(path)
    with pytest.raises(error) as caught:
        table.remove_orphan_files()
    assert path.name in str(caught.value)
    assert files_in(folder_of(table)) | {path} == before


def test_without_the_kms_nothing_is_deleted(
    table: EncryptedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    orphan = planted(folder_of(table) / "data" / "b.parquet")

    def down(*_: Any) -> bytes:
        raise KmsUnavailableError("no answer")

    monkeypatch.setattr(type(table.files.keys), "manifest_list_key", down)
    with pytest.raises(KmsUnavailableError):
        table.remove_orphan_files()
    assert orphan.exists()


# -- one file, many spellings


SPELLINGS: list[Callable[[str], str]] = [
    lambda path: f"file:{path}",
    lambda path: f"file://{path}",
    lambda path: path,
    lambda path: path.replace("/data/", "/data/../data/"),
    lambda path: path.replace("/data/", "//data//./"),
    lambda path: path.replace("/t/", "/link/"),  # a link to the table's folder
    lambda path: path.replace("/data/", "/d%61ta/"),
]


@pytest.mark.parametrize("number", range(len(SPELLINGS)))
def test_a_location_that_is_spelled_in_another_way_is_the_same_file(
    tmp_path: Path, number: int
) -> None:
    maker = TableMaker(tmp_path / "t", COLUMNS, memory_kms())
    (tmp_path / "link").symlink_to(tmp_path / "t")
    entry = maker.add_parquet([{"id": 1}])
    path = stored(entry["file_path"])
    maker.commit(entry | {"file_path": SPELLINGS[number](str(path))})
    made = open_table(maker.write(), kms=memory_kms())
    assert isinstance(made, EncryptedTable)
    orphan = planted(path.with_name("orphan.parquet"))
    age(*files_in(tmp_path))
    assert found_of(find_orphans(made, now_ms())) == locations(orphan)


def test_a_link_and_the_file_that_it_leads_to_stay(tmp_path: Path) -> None:
    maker = TableMaker(tmp_path / "t", COLUMNS, memory_kms())
    entry = maker.add_parquet([{"id": 1}])
    path = stored(entry["file_path"])
    link = path.with_name("link.parquet")
    link.symlink_to(path)
    path.with_name("unused.parquet").symlink_to(path)
    maker.commit(entry | {"file_path": f"file://{link}"})
    made = open_table(maker.write(), kms=memory_kms())
    assert isinstance(made, EncryptedTable)
    age(*files_in(tmp_path))
    assert find_orphans(made, now_ms()).files == ()


@pytest.fixture
def reached(tmp_path: Path) -> Callable[..., ReachedFiles]:
    """Return what a table at a location reaches if a manifest list has a given location."""
    maker = TableMaker(tmp_path / "t", COLUMNS, memory_kms())
    made = open_table(maker.write(), kms=memory_kms())
    assert isinstance(made, EncryptedTable)

    def make(table_location: str, location: str) -> ReachedFiles:
        files = ReachedFiles(made.files, table_location)
        metadata = {"metadata-log": [{"metadata-file": location}]}
        files.add_version(made.view_with({**made.version.json, **metadata}))
        return files

    return make


@pytest.mark.parametrize(
    ("named", "listed"),
    [
        ("s3a://lake/t/a", "s3://lake/t/a"),
        ("s3n://lake/t/a", "s3://lake/t/a"),
        ("gcs://lake/t/a", "gs://lake/t/a"),
        ("abfss://c@h/t/a", "abfs://c@h/t/a"),
        ("s3://lake/t/a%20b", "s3://lake/t/a b"),
        ("s3://lake/t/a b", "s3://lake/t/a%20b"),
        ("s3://lake/t//a", "s3://lake/t/a"),
        ("s3://lake/t/a?x", "s3://lake/t/a"),
        ("s3://lake/t/a#x", "s3://lake/t/a"),
        ("S3://lake/t/a", "s3://lake/t/a"),
    ],
)
def test_spellings_on_object_stores(
    reached: Callable[..., ReachedFiles], named: str, listed: str
) -> None:
    root = f"{listed.partition(':')[0]}://{listed.split('/')[2]}/t"
    files = reached(root, named)
    assert files.has_stored(listed)
    assert files.on_another_host(f"{listed}x") is None
    assert not files.has_stored(f"{listed}x")


@pytest.mark.parametrize(
    ("root", "named", "listed"),
    [
        ("s3://lake/t", "s3://other/t/a", "s3://lake/t/a"),
        ("s3://other/t", "s3://other/t/a", "s3://lake/t/a"),
        ("hdfs:///t", "hdfs://nn:8020/t/a", "hdfs:///t/a"),
        ("hdfs://nn:8020/t", "hdfs:///t/a", "hdfs://nn:8020/t/a"),
        ("hdfs://nn:8020/t", "/t/a", "hdfs://nn:8020/t/a"),
    ],
)
def test_another_host_is_noticed(
    reached: Callable[..., ReachedFiles], root: str, named: str, listed: str
) -> None:
    files = reached(root, named)
    assert not files.has_stored(listed)
    assert files.on_another_host(listed) is not None
    assert files.on_another_host(f"{listed}x") is None


def test_what_another_host_means(table: EncryptedTable, monkeypatch: pytest.MonkeyPatch) -> None:
    orphan = planted(folder_of(table) / "data" / "b.parquet")
    other = planted(folder_of(table) / "data" / "c.parquet")
    monkeypatch.setattr(
        ReachedFiles,
        "on_another_host",
        lambda self, location: "s3://x" if location == str(orphan) else None,
    )
    with pytest.raises(ValidationException, match="s3://x"):
        table.remove_orphan_files()
    with pytest.raises(ValueError, match="unknown"):
        table.remove_orphan_files(prefix_mismatch_mode="DELETE")  # type: ignore[arg-type]
    table.remove_orphan_files(prefix_mismatch_mode="ignore")
    assert (orphan.exists(), other.exists()) == (True, False)
    assert found_of(table.remove_orphan_files(prefix_mismatch_mode="delete")) == [str(orphan)]


# -- folders


@pytest.mark.parametrize("name", ["write.data.path", "write.folder-storage.path"])
def test_only_confirmed_folders_are_searched(
    catalog: EncryptedCatalog, table: EncryptedTable, tmp_path: Path, name: str
) -> None:
    elsewhere = tmp_path / "elsewhere"
    with table.transaction() as transaction:
        transaction.set_properties({name: f"file://{elsewhere}"})
    unpin(catalog)
    table.refresh()
    orphan = planted(elsewhere / "b.parquet")
    # Somebody who could change the metadata must not have other files deleted.
    result = table.remove_orphan_files()
    assert result.not_searched == (f"file://{elsewhere}",)
    assert orphan.exists()
    found = {f.file for f in verify_table(table).findings if f.kind.startswith(("orphan", "stray"))}
    assert str(orphan) in found
    catalog.properties[name] = f"file://{elsewhere}"
    again = catalog.load_table("db.t")
    assert isinstance(again, EncryptedTable)
    assert str(orphan) in again.remove_orphan_files().orphan_file_locations
    assert not orphan.exists()


def test_if_the_current_metadata_file_is_not_known_none_is_an_orphan(
    catalog: EncryptedCatalog, table: EncryptedTable
) -> None:
    """A REST server need not say where it is, and the metadata log does not have it."""
    orphan = planted(folder_of(table) / "data" / "b.parquet")
    catalog.properties["location"] = table.location()
    base = dataclasses.replace(table.version.base, location="")
    unknown = EncryptedTable(dataclasses.replace(table.version, base=base), catalog)
    found = find_orphans(unknown, now_ms())
    assert found.not_searched == ()
    assert found_of(found) == locations(orphan)


def test_another_table_in_the_same_folder_is_an_error(table: EncryptedTable) -> None:
    metadata = json.loads(Path(table.metadata_location.removeprefix("file://")).read_text())
    metadata["table-uuid"] = "0e1f0d92-5a9c-4b0e-9f5d-0a6f3c1d2e4b"
    folder = folder_of(table)
    planted(folder / "data" / "b.parquet")
    for days, number in ((9, 0), (1, 0), (1, 99)):
        path = folder / "metadata" / f"{number:05d}-x.metadata.json"
        planted(path, json.dumps(metadata).encode(), days=days)
        before = files_in(folder)
        for location in (None, f"{table.location()}/data"):
            with pytest.raises(ValidationException, match="another table, 0e1f0d92"):
                table.remove_orphan_files(location=location)
            assert files_in(folder) == before
        path.unlink()
    table.remove_orphan_files()


def test_a_damaged_metadata_file_might_be_another_table_s(table: EncryptedTable) -> None:
    path = folder_of(table) / "metadata" / "00000-x.gz.metadata.json"
    planted(path, b"\x1f\x8b no gzip")
    planted(folder_of(table) / "data" / "b.parquet")
    before = files_in(folder_of(table))
    with pytest.raises(MetadataIntegrityError, match=path.name):
        table.remove_orphan_files()
    assert files_in(folder_of(table)) == before


def test_a_table_that_lies_in_another_ones_folder_stays(
    catalog: EncryptedCatalog, table: EncryptedTable
) -> None:
    key = {"encryption.key-id": "keyA"}
    for place in (f"{table.location()}/inner", f"{table.location()}/data/inner"):
        name = "db.inner" if place.endswith("t/inner") else "db.deep"
        inner = catalog.create_table(name, rows(1).schema, location=place, properties=key)
        inner.append(rows(7))
    age(*files_in(folder_of(table)))
    result = table.remove_orphan_files()
    assert len(result.other_tables) == 2
    for name in ("db.inner", "db.deep"):
        inner = catalog.load_table(name)
        assert verify_table(inner).ok
        assert inner.scan().to_arrow()["id"].to_pylist() == [7]


# -- while others write


def other_writer(catalog: EncryptedCatalog) -> EncryptedTable:
    other = catalog.load_table("db.t")
    assert isinstance(other, EncryptedTable)
    return other


def in_the_middle(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, do: Any) -> None:
    """Call ``do`` once, right before the function ``name`` of ``owner``."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def called(*arguments: Any, **named: Any) -> Any:
        monkeypatch.setattr(owner, name, original)
        do()
        return original(*arguments, **named)

    monkeypatch.setattr(owner, name, called)


def test_files_of_a_commit_under_way_stay(catalog: EncryptedCatalog, table: EncryptedTable) -> None:
    """Its data files are there, and the metadata does not know them yet."""
    with other_writer(catalog).transaction() as transaction:
        transaction.append(rows(100))
        planted(folder_of(table) / "data" / "b.parquet")
        result = table.remove_orphan_files(now() - timedelta(hours=24, minutes=1))
        assert result.young_files >= 2  # the data file and its manifest
    table.refresh()
    assert 100 in table.scan().to_arrow()["id"].to_pylist()
    assert verify_table(table, list_folders=False).ok


def test_what_a_metadata_file_reaches_that_may_become_current_stays(
    catalog: EncryptedCatalog, table: EncryptedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit took so long that its data files are old. Its metadata file is there already."""
    removed: list[OrphanFiles] = []

    def meanwhile() -> None:
        paths = files_in(folder_of(table))
        age(*(path for path in paths if not path.name.endswith(".metadata.json")))
        planted(folder_of(table) / "data" / "b.parquet")
        removed.append(table.remove_orphan_files())

    in_the_middle(monkeypatch, SqlCommits, "_swap", meanwhile)
    other_writer(catalog).append(rows(100))
    assert str(folder_of(table) / "data" / "b.parquet") in removed[0].orphan_file_locations
    table.refresh()
    assert 100 in table.scan().to_arrow()["id"].to_pylist()
    assert verify_table(table, list_folders=False).ok


def test_what_is_committed_during_the_search_stays(
    catalog: EncryptedCatalog, table: EncryptedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = other_writer(catalog)

    def commit() -> None:
        other.append(rows(100))
        age(*files_in(folder_of(table)))

    in_the_middle(monkeypatch, orphans, "list_with_times", commit)
    table.remove_orphan_files()
    assert 100 in table.scan().to_arrow()["id"].to_pylist()
    assert verify_table(table, list_folders=False).ok


def test_a_young_metadata_file_that_cannot_be_read_stops_the_search(
    table: EncryptedTable,
) -> None:
    orphan = planted(folder_of(table) / "data" / "b.parquet")
    pending = planted(folder_of(table) / "metadata" / "00099-x.metadata.json", b"{", days=0)
    with pytest.raises(Ags1Error, match="00099-x"):
        table.remove_orphan_files()
    assert orphan.exists()
    age(pending)
    # By now nobody can still be writing it.
    with contextlib.suppress(Ags1Error):
        table.remove_orphan_files()
    assert not orphan.exists()


def test_a_failed_commit_does_not_stop_the_search(table: EncryptedTable) -> None:
    """Its metadata file is left, and its manifest list is not."""
    metadata = json.loads(Path(table.metadata_location.removeprefix("file://")).read_text())
    snapshot = metadata["snapshots"][-1]
    gone = snapshot | {"manifest-list": f"{table.location()}/metadata/gone.avro"}
    metadata["snapshots"].append(gone | {"snapshot-id": 7})
    orphan = planted(folder_of(table) / "data" / "b.parquet")
    path = folder_of(table) / "metadata" / "00099-x.metadata.json"
    planted(path, json.dumps(metadata).encode(), days=0)
    table.remove_orphan_files()
    assert (orphan.exists(), path.exists()) == (False, True)


# -- other storage


# Of `make test`: PyArrow's FileIO.
@pytest.mark.slow_variants(r"fsspec.FsspecFileIO")
@pytest.mark.parametrize("io_impl", ["pyarrow.PyArrowFileIO", "fsspec.FsspecFileIO"])
def test_a_table_on_s3(io_impl: str, tmp_path: Path) -> None:
    boto3 = pytest.importorskip("boto3")
    pytest.importorskip("moto.server")
    if io_impl.startswith("fsspec"):
        pytest.importorskip("s3fs")
    from aws_server import aws_server, dummy_environment

    folder = copied("mor_dv", tmp_path)
    planted(folder / "data" / "orphan.parquet")
    with aws_server() as endpoint, pytest.MonkeyPatch.context() as patch:
        for name, value in dummy_environment(endpoint).items():
            patch.setenv(name, value)
        client = boto3.client("s3", endpoint_url=endpoint)
        bucket = f"lake-{io_impl.partition('.')[0]}"
        client.create_bucket(Bucket=bucket)
        for path in files_in(folder):
            client.upload_file(str(path), bucket, f"x/{path.relative_to(tmp_path)}")
        shutil.rmtree(folder)
        made = open_table(
            f"s3a://{bucket}/x/mor_dv/metadata/{metadata_file('mor_dv').name}",
            memory_kms(),
            {JAVA_LOCATION: f"s3a://{bucket}/x"},
            properties={
                "py-io-impl": f"pyiceberg.io.{io_impl}",
                "s3.endpoint": endpoint,
                "s3.access-key-id": "testing",
                "s3.secret-access-key": "testing",
                "s3.region": "us-east-1",
            },
        )
        assert isinstance(made, EncryptedTable)
        in_a_minute = now_ms() + 60_000
        found = find_orphans(made, in_a_minute)
        assert [name.rpartition("/")[2] for name in found_of(found)] == ["orphan.parquet"]
        assert found.size == 4
        assert found.files[0].modified_ms is not None
        assert abs(found.files[0].modified_ms - now_ms()) < 60_000
        assert find_orphans(made, now_ms() - DAY * 1000).files == ()


def test_a_storage_that_cannot_list(table: EncryptedTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orphans, "list_with_times", lambda *_: None)
    with pytest.raises(NotImplementedError, match="cannot list"):
        table.remove_orphan_files()


@pytest.mark.parametrize(
    "info",
    [
        {"LastModified": datetime(2026, 1, 1, tzinfo=timezone.utc)},
        {"last_modified": datetime(2026, 1, 1)},
        {"updated": "2026-01-01T00:00:00.000Z"},
        {"mtime": 1767225600.0},
        {"mtime": "soon"},
        {},
    ],
)
def test_the_times_of_each_file_system(info: dict[str, Any]) -> None:
    from pyiceberg.io.fsspec import FsspecFileIO

    class FileSystem:
        def invalidate_cache(self) -> None: ...

        def walk(self, path: str, detail: bool) -> Any:
            yield path, {}, {"a": {"size": 3, **info}}

    class IO(FsspecFileIO):
        def get_fs(self, *_: Any) -> Any:
            return FileSystem()

    listing = list_with_times(IO({}), "s3://lake/t")
    assert listing is not None
    known = not info or info.get("mtime") == "soon"
    modified_ms = None if known else 1767225600000
    assert list(listing) == [ListedFile("s3://lake/t/a", 3, modified_ms)]


def test_pyarrow_s_listing_of_hdfs_keeps_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    from pyarrow.fs import FileInfo, FileType

    class FileSystem:
        def get_file_info(self, selector: Any) -> list[FileInfo]:
            return [FileInfo(f"{selector.base_dir}/a", FileType.File)]

    io = PyArrowFileIO()
    monkeypatch.setattr(io, "fs_by_scheme", lambda *_: FileSystem())
    for folder in ("hdfs://nn:8020/t", "hdfs:///t", "s3://lake/t"):
        listing = list_with_times(io, folder)
        assert listing is not None
        assert [file.location for file in listing] == [f"{folder}/a"]


def test_a_name_that_is_not_utf_8_is_an_error(table: EncryptedTable) -> None:
    folder = Path(table.location().removeprefix("file://")) / "data"
    (folder / os.fsdecode(b"\xff.parquet")).write_bytes(b"")
    with pytest.raises(OSError, match="not UTF-8") as caught:
        table.remove_orphan_files(dry_run=True)
    assert caught.value.filename == str(folder)

"""Relocated tables: the same rows, ids and data bytes in another place, and no way back to the old.

Judged by Java's fixtures, by manifests as fastavro reads them, and by PyIceberg's scans over tables
of every kind of delete file.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import fastavro
import manifests
import pytest
from iceberg_tables import (
    JAVA_LOCATION,
    READABLE,
    TABLES,
    by_id,
    copied,
    expected_rows,
    memory_kms,
    open_fixture,
)
from pyiceberg.io import FileIO, InputFile, OutputFile, load_file_io
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table.puffin import PuffinFile
from pyiceberg.typedef import EMPTY_DICT, Properties
from table_maker import TableMaker, stored

import ags1
from ags1 import KeyMetadata, KmsUnavailableError, MetadataIntegrityError, TruncatedError
from ags1.errors import FormatError, NotEncryptedError
from ags1.iceberg import EncryptedTable, open_table
from ags1.iceberg.operations.relocation import relocate as relocation
from ags1.iceberg.operations.relocation.destination import Destination
from ags1.iceberg.operations.relocation.location_checks import is_seen_from
from ags1.iceberg.operations.relocation.relocate import RelocationResult, relocate
from ags1.iceberg.operations.verify import verify_table
from ags1.iceberg.storage.listing import list_files
from ags1.iceberg.storage.locations import normalized
from ags1.iceberg.storage.output import TableOutput
from ags1.keys.manager import EncryptionManager

pytestmark = pytest.mark.filterwarnings("ignore::ags1.kms.memory.KeysInPropertiesWarning")

COLUMNS = [{"id": 1, "name": "id", "type": "long"}, {"id": 2, "name": "name", "type": "string"}]
AVRO = {
    "type": "record",
    "name": "r",
    "fields": [
        {"name": "id", "type": "long", "field-id": 1},
        {"name": "name", "type": "string", "field-id": 2},
    ],
}
AVRO_DELETES = {
    "type": "record",
    "name": "r",
    "fields": [
        {"name": "file_path", "type": "string", "field-id": 2147483546},
        {"name": "pos", "type": "long", "field-id": 2147483545},
    ],
}
# What may differ between an old entry and a new one.
PATH_FIELDS = {manifests.FILE_PATH, 143}
REWRITTEN_FIELDS = PATH_FIELDS | {manifests.FILE_SIZE, manifests.KEY_METADATA, 108, 125, 128, 132}
PATH_ID = 2147483546


def reopened(result: RelocationResult, **more: Any) -> EncryptedTable:
    assert result.metadata_location is not None
    table = open_table(result.metadata_location, memory_kms(), **more)
    assert isinstance(table, EncryptedTable)
    return table


def rows_of(table: EncryptedTable, **scan: Any) -> list[dict[str, Any]]:
    return by_id(table.scan(**scan).to_arrow().to_pylist())


def metadata_of(table: EncryptedTable) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(
        table.files.inner.new_input(table.metadata_location).open().read()
    )
    return parsed


def stored_bytes(table: EncryptedTable, location: str) -> bytes:
    with table.files.open_stored(location) as stream:
        return stream.read()


def entries_of(table: EncryptedTable, snapshot: Any) -> list[tuple[dict[int, Any], dict[int, Any]]]:
    """A snapshot's entries, each beside its manifest, as fastavro reads them."""
    return manifests.entries(
        stored_bytes(table, snapshot.manifest_list),
        table.files.keys.manifest_list_key(snapshot.key_id),
        lambda location: stored_bytes(table, location),
    )


def files_in(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}


def check_relocated(old: EncryptedTable, new: EncryptedTable) -> None:
    """Check that two tables have the same snapshots, rows and entries, in other places."""
    assert [s.snapshot_id for s in old.metadata.snapshots] == [
        s.snapshot_id for s in new.metadata.snapshots
    ]
    for before, after in zip(old.metadata.snapshots, new.metadata.snapshots, strict=True):
        snapshot_id = before.snapshot_id
        assert rows_of(old, snapshot_id=snapshot_id) == rows_of(new, snapshot_id=snapshot_id)
        for (m1, e1), (m2, e2) in zip(entries_of(old, before), entries_of(new, after), strict=True):
            check_same_but(m1, m2, {500, 501, 519})
            check_same_but(e1, e2, {manifests.DATA_FILE})
            f1, f2 = e1[manifests.DATA_FILE], e2[manifests.DATA_FILE]
            is_rewritten = f1.get(manifests.CONTENT, 0) == 1
            check_same_but(f1, f2, REWRITTEN_FIELDS if is_rewritten else PATH_FIELDS)
            if not is_rewritten and e1[manifests.STATUS] != manifests.DELETED:
                assert stored_bytes(old, f1[100]) == stored_bytes(new, f2[100])
            if is_rewritten and e1[manifests.STATUS] != manifests.DELETED:
                km = KeyMetadata.from_bytes(f2[manifests.KEY_METADATA])
                assert km.file_length == f2[104] == len(stored_bytes(new, f2[100]))
                assert km != KeyMetadata.from_bytes(f1[manifests.KEY_METADATA])
            for path in (m2[500], f2[100], f2.get(143)):
                assert path is None or path.startswith(new.metadata.location + "/")
    report = verify_table(new)
    assert report.ok, report.findings
    assert not {"orphan-file", "stray-plain-file", "orphan-key", "shared-key"} & set(
        report.finding_counts
    )


def check_same_but(one: Mapping[int, Any], other: Mapping[int, Any], fields: set[int]) -> None:
    assert one.keys() == other.keys()
    assert {i for i in one if one[i] != other[i]} <= fields


# -- Java's tables


@pytest.mark.parametrize("name", READABLE)
def test_java_s_tables_elsewhere(name: str, tmp_path: Path) -> None:
    old = open_fixture(name)
    result = relocate(old, f"file://{tmp_path}/new/place/")
    new = reopened(result)
    assert new.metadata.location == f"file://{tmp_path}/new/place"
    assert rows_of(new) == expected_rows(name)
    check_relocated(old, new)
    assert result.snapshots == len(old.metadata.snapshots)
    assert result.copied_files == len(files_in(TABLES / name / "data") - deletes(name)) + (
        2 if name == "stats" else 0
    )


def deletes(name: str) -> set[str]:
    return {f for f in files_in(TABLES / name / "data") if f.endswith(".puffin")}


@pytest.mark.parametrize("name", READABLE)
def test_metadata_in_java_s_form_with_nothing_but_places_changed(name: str, tmp_path: Path) -> None:
    old = open_fixture(name)
    new = reopened(relocate(old, str(tmp_path / "t")))
    text = Path(new.metadata_location.removeprefix("file://")).read_text()
    before, after = metadata_of(old), json.loads(text)
    assert text == json.dumps(after, separators=(",", ":"), ensure_ascii=False)
    assert list(before) == list(after)
    assert JAVA_LOCATION not in text
    changed = {"location", "last-updated-ms", "metadata-log", "encryption-keys", "snapshots"}
    for field in before.keys() - changed - {"statistics", "partition-statistics"}:
        assert before[field] == after[field]
    assert after["last-updated-ms"] >= before["last-updated-ms"]
    assert after["metadata-log"] == []
    for one, other in zip(before["snapshots"], after["snapshots"], strict=True):
        assert list(one) == list(other)
        assert {k for k in one if one[k] != other[k]} == {"manifest-list", "key-id"}
        assert list(one["summary"].items()) == list(other["summary"].items())
    for field in ("statistics", "partition-statistics"):
        for one, other in zip(before[field], after[field], strict=True):
            assert {k for k in one if one[k] != other[k]} == {"statistics-path"}


def test_keys_are_fresh_and_under_the_same_kek(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ags1.keys.manager.KEK_LIFETIME_MS", 10**15)
    old = open_fixture("mor_dv")
    new = reopened(relocate(old, str(tmp_path / "t")))
    assert new.files.keys.key_encryption_keys == old.files.keys.key_encryption_keys
    assert len(new.files.keys.encryption_keys) == 1 + len(new.metadata.snapshots)

    def keys(table: EncryptedTable) -> tuple[set[bytes], set[bytes]]:
        """Keys of what names files, and of what does not."""
        naming, data = set(), set()
        for snapshot in table.metadata.snapshots:
            naming.add(table.files.keys.manifest_list_key(snapshot.key_id).encryption_key)  # type: ignore[attr-defined]
            for manifest, entry in entries_of(table, snapshot):
                naming.add(KeyMetadata.from_bytes(manifest[519]).encryption_key)
                file = entry[manifests.DATA_FILE]
                km = KeyMetadata.from_bytes(file[manifests.KEY_METADATA])
                (naming if file[manifests.CONTENT] else data).add(km.encryption_key)
        return naming, data

    (naming, data), (naming_before, data_before) = keys(new), keys(old)
    assert data == data_before
    assert len(naming) == len(naming_before)
    assert not naming & (naming_before | data_before)


def test_no_file_names_the_old_place(tmp_path: Path) -> None:
    new = reopened(relocate(open_fixture("mor_dv"), str(tmp_path / "t")))
    puffins = 0
    for snapshot in new.metadata.snapshots:
        km = new.files.keys.manifest_list_key(snapshot.key_id)  # type: ignore[attr-defined]
        plain = new.files.read_encrypted(snapshot.manifest_list, km)
        assert JAVA_LOCATION.encode() not in plain
        for manifest, entry in entries_of(new, snapshot):
            km = KeyMetadata.from_bytes(manifest[519])
            _, records = raw_avro(new.files.read_encrypted(manifest[500], km))
            assert JAVA_LOCATION not in repr(records)
            file = entry[manifests.DATA_FILE]
            if file[manifests.CONTENT] and entry[manifests.STATUS] != manifests.DELETED:
                km = KeyMetadata.from_bytes(file[manifests.KEY_METADATA])
                plain = new.files.read_encrypted(file[100], km)
                assert JAVA_LOCATION.encode() not in plain
                blobs = PuffinFile(plain).footer.blobs
                here = [b for b in blobs if b.properties["referenced-data-file"] == file[143]]
                assert [(b.offset, b.length) for b in here] == [(file[144], file[145])]
                puffins += 1
    assert puffins


def raw_avro(data: bytes) -> tuple[Mapping[str, Any], list[Any]]:
    import io

    reader: Any = fastavro.reader(io.BytesIO(data))
    return reader.metadata, list(reader)


def test_manifests_keep_their_schema_and_header(tmp_path: Path) -> None:
    old = open_fixture("mor_dv")
    new = reopened(relocate(old, str(tmp_path / "t")))
    for before, after in zip(old.metadata.snapshots, new.metadata.snapshots, strict=True):
        lists = []
        for table, snapshot in ((old, before), (new, after)):
            km = table.files.keys.manifest_list_key(snapshot.key_id)  # type: ignore[attr-defined]
            lists.append(raw_avro(table.files.read_encrypted(snapshot.manifest_list, km)))
        headers = [same_header(header) for header, _ in lists]
        assert headers[0] == headers[1]
        for one, other in zip(lists[0][1], lists[1][1], strict=True):
            manifests_here = [
                table.files.read_encrypted(
                    record["manifest_path"], KeyMetadata.from_bytes(record["key_metadata"])
                )
                for table, record in ((old, one), (new, other))
            ]
            headers = [same_header(raw_avro(data)[0]) for data in manifests_here]
            assert headers[0] == headers[1]


def same_header(header: Mapping[str, str]) -> dict[str, Any]:
    return {**header, "avro.schema": json.loads(header["avro.schema"])}


# -- every kind of file


def make_table(folder: Path, location: str | None = None) -> TableMaker:
    """A table with every kind of delete file, a data file in the clear, and one from outside."""
    maker = TableMaker(folder, COLUMNS, memory_kms(), location=location)
    rows = [{"id": n, "name": f"v{n}"} for n in range(60)]
    parquet = maker.add_parquet(rows[:10])
    plain = maker.add_parquet(rows[10:20], encrypted=False)
    avro = maker.add_avro(rows[20:30], AVRO)
    outside = maker.add_parquet(rows[30:40])
    elsewhere = folder.parent / "elsewhere" / "x.parquet"
    elsewhere.parent.mkdir()
    shutil.move(folder / outside["file_path"].removeprefix(maker.location + "/"), elsewhere)
    outside["file_path"] = f"file:{elsewhere}"
    # In another spelling than the rest.
    spelled = maker.add_parquet(rows[40:50])
    if location is None:
        spelled["file_path"] = str(stored(spelled["file_path"]))
    maker.commit(parquet, plain, avro, outside, spelled)
    vectors = {parquet["file_path"]: [0, 9], avro["file_path"]: [5], outside["file_path"]: [1]}
    maker.commit(*maker.add_deletion_vectors(vectors))
    both = [(plain["file_path"], 1), (spelled["file_path"], 2), (outside["file_path"], 9)]
    maker.commit(
        maker.add_position_deletes(both),
        maker.add_avro(
            [{"file_path": plain["file_path"], "pos": 4}],
            AVRO_DELETES,
            content=1,
            lower_bounds=[{"key": PATH_ID, "value": plain["file_path"].encode()}],
            upper_bounds=[{"key": PATH_ID, "value": plain["file_path"].encode()}],
        ),
    )
    maker.commit(maker.add_equality_deletes([{"id": 7}, {"id": 27}], [1]))
    maker.commit(maker.add_parquet(rows[50:]))
    return maker


# A deletion vector takes the place of position deletes, so 39 stays.
LEFT = sorted(set(range(60)) - {0, 9, 25, 31, 11, 14, 42, 7, 27})


def test_every_kind_of_delete(tmp_path: Path) -> None:
    old = open_made(make_table(tmp_path / "t"))
    assert [row["id"] for row in rows_of(old)] == LEFT
    result = relocate(old, str(tmp_path / "new"), verify=True)
    new = reopened(result)
    assert [row["id"] for row in rows_of(new)] == LEFT
    check_relocated(old, new)
    assert result.copied_files == 7
    assert result.old_files_outside == (f"file:{tmp_path}/elsewhere/x.parquet",)
    assert {str(stored(f)).removeprefix("file:") for f in result.old_files} == {
        str(p) for p in (tmp_path / "t").rglob("*") if p.is_file()
    }
    shutil.rmtree(tmp_path / "t")
    shutil.rmtree(tmp_path / "elsewhere")
    assert [row["id"] for row in rows_of(new.refresh())] == LEFT


def open_made(maker: TableMaker, **more: Any) -> EncryptedTable:
    table = open_table(maker.write(), memory_kms(), **more)
    assert isinstance(table, EncryptedTable)
    return table


def test_bounds_of_position_deletes_follow_their_paths(tmp_path: Path) -> None:
    new = reopened(relocate(open_made(make_table(tmp_path / "t")), str(tmp_path / "new")))
    found = {
        file[manifests.FILE_FORMAT]: file
        for _, entry in entries_of(new, new.metadata.snapshots[-1])
        if (file := entry[manifests.DATA_FILE])[manifests.CONTENT] == 1 and not file[143]
    }
    data = {
        file[100]
        for _, entry in entries_of(new, new.metadata.snapshots[-1])
        if (file := entry[manifests.DATA_FILE])[manifests.CONTENT] == 0
    }
    [lower], [upper] = found["AVRO"][125], found["AVRO"][128]
    assert lower["value"] == upper["value"]
    assert lower["value"].decode() in data
    # The one in Parquet came without.
    assert found["PARQUET"][125] is None


def test_a_file_from_outside_never_meets_one_from_inside() -> None:
    destination = Destination("file:/old", "s3://b/new")
    inside = destination("file:///old/data/a.parquet")
    assert inside == destination("/old/data/a.parquet") == "s3://b/new/data/a.parquet"
    strangers = ["s3://old/data/a.parquet", "/older/data/a.parquet", "file:/old/../x/a.parquet"]
    strangers += ["/old", "/old//data/a.parquet", "/old/data/./a.parquet", "hdfs://h/old/a.parquet"]
    targets = {destination(location) for location in strangers}
    assert len(targets) == len(strangers)
    for target in targets:
        assert target.startswith("s3://b/new/outside/")
        assert ".." not in target
    taken = destination("s3://x/y")[len("s3://b/new/") :]
    destination.keep_apart([f"/old/{taken}", "/old/outside-2/z"])
    assert destination("s3://x/y") == f"s3://b/new/{taken}".replace("outside", "outside-3")
    assert destination(f"/old/{taken}") == f"s3://b/new/{taken}"


def test_properties_that_place_files(tmp_path: Path) -> None:
    maker = make_table(tmp_path / "t")
    maker.properties |= {
        "write.data.path": f"{maker.location}/data/deep/",
        "write.metadata.path": f"{maker.location}",
        "write.object-storage.path": "s3://other/place",
        "unrelated": f"{maker.location}/x",
    }
    new = reopened(relocate(open_made(maker), f"file://{tmp_path}/new"))
    assert new.metadata.properties["write.data.path"] == f"file://{tmp_path}/new/data/deep"
    assert new.metadata.properties["write.metadata.path"] == f"file://{tmp_path}/new"
    assert "write.object-storage.path" not in new.metadata.properties
    assert new.metadata.properties["unrelated"] == f"{maker.location}/x"
    assert Path(new.metadata_location.removeprefix("file://")).parent == tmp_path / "new"
    assert [row["id"] for row in rows_of(new)] == LEFT


def test_unknown_fields_and_other_codecs_survive(tmp_path: Path) -> None:
    maker = make_table(tmp_path / "t")
    maker.properties["write.metadata.compression-codec"] = "gzip"
    metadata = maker.metadata() | {"from-the-future": {"a": [1, None]}}
    metadata["snapshots"][0]["also-new"] = 1.5
    table = open_table(maker.write(metadata), memory_kms())
    assert isinstance(table, EncryptedTable)
    result = relocate(table, str(tmp_path / "new"))
    assert str(result.metadata_location).endswith(".gz.metadata.json")
    new = reopened(result)
    assert new.view().metadata["from-the-future"] == {"a": [1, None]}
    assert new.view().metadata["snapshots"][0]["also-new"] == 1.5


# -- the current snapshot alone


def test_the_current_snapshot_alone(tmp_path: Path) -> None:
    maker = make_table(tmp_path / "t")
    first, last = maker.snapshots[0]["snapshot-id"], maker.snapshots[-1]["snapshot-id"]
    maker.refs["old"] = {"snapshot-id": first, "type": "tag"}
    maker.refs["new"] = {"snapshot-id": last, "type": "tag"}
    old = open_made(maker)
    new = reopened(relocate(old, str(tmp_path / "new"), snapshots="current", verify=True))
    assert [row["id"] for row in rows_of(new)] == LEFT
    assert [s.snapshot_id for s in new.metadata.snapshots] == [last]
    assert set(new.metadata.refs) == {"main", "new"}
    assert [entry.snapshot_id for entry in new.metadata.snapshot_log] == [last]
    assert len(new.files.keys.encryption_keys) == 2
    assert verify_table(new).ok


def test_of_java_s_deletes_the_current_snapshot_alone(tmp_path: Path) -> None:
    folder = copied("mor_dv", tmp_path)
    old = open_fixture("mor_dv", tmp_path)
    current: Any = old.metadata.current_snapshot()
    live, gone = set(), set()
    for _, entry in entries_of(old, current):
        is_gone = entry[manifests.STATUS] == manifests.DELETED
        name = entry[manifests.DATA_FILE][100].rpartition("/")[2]
        (gone if is_gone else live).add(name)
    assert gone - live
    for name in gone - live:
        (folder / "data" / name).unlink()  # as when the other snapshots have expired
    result = relocate(old, str(tmp_path / "new"), snapshots="current")
    new = reopened(result)
    assert rows_of(new) == expected_rows("mor_dv")
    assert len(new.metadata.snapshots) == 1
    # Entries of what went are there still, and lead to nowhere else.
    for _, entry in entries_of(new, new.metadata.snapshots[0]):
        assert entry[manifests.DATA_FILE][100].startswith(new.metadata.location + "/")
    assert verify_table(new).ok


def test_statistics_that_are_gone_are_dropped(tmp_path: Path) -> None:
    folder = copied("stats", tmp_path)
    [gone] = (folder / "metadata").glob("*.stats")
    gone.unlink()
    old = open_fixture("stats", tmp_path)
    result = relocate(old, str(tmp_path / "new"))
    new = reopened(result)
    assert result.dropped_statistics == (old.metadata.statistics[0].statistics_path,)
    assert not new.metadata.statistics
    assert len(new.metadata.partition_statistics) == 1
    assert verify_table(new).ok


# -- failures, and going on


def test_an_attempt_that_failed_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = open_made(make_table(tmp_path / "t"))
    place = tmp_path / "new"
    steps = 0

    def fail_at(step: int) -> Any:
        write = TableOutput.write

        def failing(self: Any, location: str, data: bytes) -> None:
            nonlocal steps
            write(self, location, data)
            steps += 1
            if steps == step:
                raise OSError(28, "No space left on device", location)

        return failing

    for step in (1, 6, 12):
        steps = 0
        with monkeypatch.context() as patch:
            patch.setattr(TableOutput, "write", fail_at(step))
            with pytest.raises(OSError, match="No space left"):
                relocate(old, str(place), threads=1)
        left = files_in(place)
        assert len(left) == 7, "copies stay, what named other files is gone"
        assert not [f for f in left if f.startswith("metadata")]
    result = relocate(old, str(place), verify=True)
    assert (result.copied_files, result.found_files) == (0, 7)
    check_relocated(old, reopened(result))


def test_an_interrupt_leaves_whole_files_only(tmp_path: Path) -> None:
    old = open_made(make_table(tmp_path / "t"))
    place = tmp_path / "new"
    sizes = {stored(c["file_path"]).stat().st_size for c in old_files(old)}

    def interrupt(done: int, total: int | None) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        relocate(old, str(place), threads=1, progress=interrupt)
    assert {p.stat().st_size for p in place.rglob("*") if p.is_file()} <= sizes
    with pytest.raises(KeyboardInterrupt):
        relocate(old, f"{place}2", threads=1, progress=interrupt, resume=False)
    assert not files_in(tmp_path / "new2")
    check_relocated(old, reopened(relocate(old, str(place))))


def old_files(table: EncryptedTable) -> Iterator[dict[str, Any]]:
    for _, entry in entries_of(table, table.metadata.snapshots[-1]):
        file = entry[manifests.DATA_FILE]
        yield {"file_path": file[100].replace("file:/", "/").replace("//", "/")}


def test_a_kms_that_goes_away_leaves_no_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = open_made(make_table(tmp_path / "t"))

    def down(self: Any, km: KeyMetadata) -> str:
        raise KmsUnavailableError("down")

    with monkeypatch.context() as patch:
        patch.setattr(EncryptionManager, "add_manifest_list_key", down)
        with pytest.raises(KmsUnavailableError):
            relocate(old, str(tmp_path / "new"))
    assert not [f for f in files_in(tmp_path / "new") if "metadata" in f]
    check_relocated(old, reopened(relocate(old, str(tmp_path / "new"))))


def test_after_a_crash_there_are_orphans_and_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = open_fixture("mor_dv")
    place = tmp_path / "new"
    with monkeypatch.context() as patch:
        # A process that is killed cleans nothing up.
        patch.setattr(TableOutput, "discard", lambda self, locations: None)
        patch.setattr(relocation, "print_metadata", lambda metadata: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            relocate(old, str(place))
    left = files_in(place)
    new = reopened(relocate(old, str(place)))
    assert rows_of(new) == expected_rows("mor_dv")
    report = verify_table(new)
    assert report.ok
    data = {f for f in left if f.endswith(".parquet")}
    assert report.finding_counts["orphan-file"] == len(left) - len(data) == 16


def test_an_expired_kek_is_not_taken_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = open_fixture("mor_dv")
    monkeypatch.setattr("ags1.keys.manager.KEK_LIFETIME_MS", 60_000)
    [kek] = old.files.keys.key_encryption_keys
    result = relocate(old, str(tmp_path / "new"))
    monkeypatch.undo()
    new = reopened(result)
    [fresh] = new.files.keys.key_encryption_keys
    assert fresh.key_id != kek.key_id
    assert rows_of(new) == expected_rows("mor_dv")


@pytest.mark.parametrize("where", [0.3, 0.9])
def test_damaged_position_deletes(tmp_path: Path, where: float) -> None:
    maker = make_table(tmp_path / "t")
    old = open_made(maker)
    deletes = [
        stored(file[100])
        for _, entry in entries_of(old, old.metadata.snapshots[-1])
        if (file := entry[manifests.DATA_FILE])[manifests.CONTENT] == 1 and not file[143]
    ]
    assert {path.suffix for path in deletes} == {".avro", ".parquet"}
    for path in deletes:
        data = path.read_bytes()
        at = int(len(data) * where)
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(ags1.AuthenticationError, match=path.name):
            relocate(old, str(tmp_path / "new"))
        path.write_bytes(data)


def test_another_file_in_the_way(tmp_path: Path) -> None:
    old = open_made(make_table(tmp_path / "t"))
    place = tmp_path / "new"
    plain = next(f for f in (tmp_path / "t" / "data").iterdir() if f.read_bytes()[:4] == b"PAR1")
    (place / "data").mkdir(parents=True)
    for wrong in (plain.read_bytes() + b"x", b"x" + plain.read_bytes()[1:]):
        (place / "data" / plain.name).write_bytes(wrong)
        with pytest.raises(FileExistsError):
            relocate(old, str(place))
        assert (place / "data" / plain.name).read_bytes() == wrong
    shutil.rmtree(place)
    (place / "data").mkdir(parents=True)
    (place / "data" / plain.name).write_bytes(plain.read_bytes())
    with pytest.raises(FileExistsError):
        relocate(old, str(place), resume=False)
    assert files_in(place) == {f"data/{plain.name}"}
    assert relocate(old, str(place)).found_files == 1


def test_another_table_in_the_way(tmp_path: Path) -> None:
    first = relocate(open_fixture("mor_dv"), str(tmp_path / "t"))
    with pytest.raises(FileExistsError, match="Another table"):
        relocate(open_fixture("stats"), str(tmp_path / "t"))
    again = relocate(open_fixture("mor_dv"), str(tmp_path / "t"))
    assert (again.copied_files, again.found_files) == (0, 3)
    for result in (first, again):
        assert rows_of(reopened(result)) == expected_rows("mor_dv")


@pytest.mark.parametrize(("change", "error"), [(-1, TruncatedError), (1, FormatError)])
def test_a_file_of_another_size_is_not_copied(
    tmp_path: Path, change: int, error: type[Exception]
) -> None:
    folder = copied("parquet_plain", tmp_path)
    victim = sorted((folder / "data").iterdir())[1]
    data = victim.read_bytes()
    victim.write_bytes(data[:change] if change < 0 else data + b"x")
    with pytest.raises(error, match=victim.name):
        relocate(open_fixture("parquet_plain", tmp_path), str(tmp_path / "new"))
    left = files_in(tmp_path / "new")
    assert f"data/{victim.name}" not in left
    assert not [f for f in left if "metadata" in f or f.endswith(".tmp")]


@pytest.mark.parametrize("kind", ["data", "puffin", "manifest", "list"])
def test_damage(tmp_path: Path, kind: str) -> None:
    folder = copied("mor_dv", tmp_path)
    pattern = {"data": "data/*.parquet", "puffin": "data/*.puffin"}.get(kind)
    pattern = pattern or {"manifest": "metadata/*-m0.avro", "list": "metadata/snap-*"}[kind]
    victim = sorted(folder.glob(pattern))[0]
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.write_bytes(data)
    table = open_fixture("mor_dv", tmp_path)
    with pytest.raises((ags1.AuthenticationError, MetadataIntegrityError)):
        relocate(table, str(tmp_path / "new"), verify=True)
    assert not [f for f in files_in(tmp_path / "new") if "metadata" in f or "deletes" in f]


def test_a_table_that_must_be_encrypted(tmp_path: Path) -> None:
    table = open_made(make_table(tmp_path / "t"), require_encrypted=True)
    with pytest.raises(NotEncryptedError):
        relocate(table, str(tmp_path / "new"))


# -- arguments


def test_places_that_are_refused(tmp_path: Path) -> None:
    maker = make_table(tmp_path / "t")
    table = open_made(maker)
    for bad in ("", "/", "file:///", "relative/path", "file:/a/../b", "s3://", "/a\0b"):
        with pytest.raises(ValueError, match=r"table's location|whole path|must not contain"):
            relocate(table, bad)
    for near in (f"{tmp_path}/t", f"file:{tmp_path}/t/", f"{tmp_path}/t/new", str(tmp_path)):
        with pytest.raises(ValueError, match=r"already|within"):
            relocate(table, near)
    assert relocate(table, f"{tmp_path}/t2", dry_run=True).location == f"file://{tmp_path}/t2"
    with pytest.raises(ValueError, match="snapshots"):
        relocate(table, f"{tmp_path}/t2", snapshots="some")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="threads"):
        relocate(table, f"{tmp_path}/t2", threads=0)


def test_places_that_are_one_are_refused(tmp_path: Path) -> None:
    table = open_made(make_table(tmp_path / "t"))
    (tmp_path / "alias").symlink_to(".")
    before = files_in(tmp_path / "t")
    with pytest.raises(ValueError, match="under another name"):
        relocate(table, f"{tmp_path}/alias/t", dry_run=True)
    for near in (f"{tmp_path}/alias", f"{tmp_path}/alias/t/new"):
        with pytest.raises(ValueError, match="within"):
            relocate(table, near)
    assert files_in(tmp_path / "t") == before
    # A table that is known by a link, and goes to another folder.
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    other = open_made(make_table(tmp_path / "link" / "t"))
    result = relocate(other, f"{tmp_path}/new")
    assert set(map(normalized, result.old_files)) == {
        normalized(f"{tmp_path}/link/t/{name}") for name in files_in(tmp_path / "real" / "t")
    }
    assert not is_seen_from(other.view(), other.metadata_location, str(result.metadata_location))


class AliasIO(FileIO):
    """A storage where ``alias://`` is the folder that the property ``alias`` has."""

    def __init__(self, properties: Properties = EMPTY_DICT) -> None:
        super().__init__(properties)
        self._inner = PyArrowFileIO(properties)

    def _named(self, location: Any) -> Any:
        return location.replace("alias://", self.properties["alias"])

    def new_input(self, location: str) -> InputFile:
        return self._inner.new_input(self._named(location))

    def new_output(self, location: str) -> OutputFile:
        return self._inner.new_output(self._named(location))

    def delete(self, location: Any) -> None:
        self._inner.delete(self._named(location))


@pytest.mark.parametrize("metadata", ["metadata", "meta"])
def test_a_place_that_turns_out_to_be_the_old_one(tmp_path: Path, metadata: str) -> None:
    maker = make_table(tmp_path / "t")
    if metadata == "meta":
        maker.properties["write.metadata.path"] = f"{maker.location}/meta"
    table = open_made(maker)
    before = {f: (tmp_path / "t" / f).read_bytes() for f in files_in(tmp_path / "t")}
    alias = {"py-io-impl": f"{__name__}.AliasIO", "alias": f"file://{tmp_path}/"}
    with pytest.raises(ValueError, match="under another name"):
        relocate(table, "alias://t", properties=alias)
    assert {f: (tmp_path / "t" / f).read_bytes() for f in files_in(tmp_path / "t")} == before
    # With the same way to the storage, in another folder.
    result = relocate(table, "alias://new", properties=alias)
    assert rows_of(reopened(result, properties=alias)) == rows_of(table)
    location = str(result.metadata_location)
    assert not is_seen_from(table.view(), table.metadata_location, location)
    name = location.rpartition("/")[2]
    (tmp_path / "t" / metadata).mkdir(exist_ok=True)
    (tmp_path / "t" / metadata / name).touch()
    assert is_seen_from(table.view(), table.metadata_location, location)


@pytest.mark.parametrize("kind", ["pyarrow.PyArrowFileIO", "fsspec.FsspecFileIO"])
def test_links_are_not_walked(tmp_path: Path, kind: str) -> None:
    io = load_file_io({"py-io-impl": f"pyiceberg.io.{kind}"})
    folder = tmp_path / "real"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "file").touch()
    for name in ("a", "b"):
        (folder / name).symlink_to(".")
        (folder / "inner" / name).symlink_to(folder)
    (tmp_path / "link").symlink_to("real")
    for name in ("real", "link"):
        # No end of them otherwise.
        found = list_files(io, f"file://{tmp_path}/{name}")
        assert found is not None
        files = [f for f in itertools.islice(found, 100) if f.endswith("/file")]
        assert files == [f"{tmp_path}/{name}/inner/file"]


def test_a_table_in_the_clear_is_refused(tmp_path: Path) -> None:
    maker = TableMaker(tmp_path / "t", COLUMNS)
    maker.commit(maker.add_parquet([{"id": 1, "name": "a"}]))
    with pytest.raises(TypeError):
        relocate(open_table(maker.write()), str(tmp_path / "new"))  # type: ignore[arg-type]


def test_a_dry_run_writes_nothing_and_says_what_would_be(tmp_path: Path) -> None:
    old = open_made(make_table(tmp_path / "t"))
    dry = relocate(old, str(tmp_path / "new"), dry_run=True)
    assert not (tmp_path / "new").exists()
    assert dry.metadata_location is None
    steps: list[tuple[int, int | None]] = []
    real = relocate(old, str(tmp_path / "new"), progress=lambda *step: steps.append(step))
    assert steps[-1] == (real.copied_size, real.copied_size)
    for field in ("copied_files", "copied_size", "rewritten_files", "snapshots", "old_files"):
        assert getattr(dry, field) == getattr(real, field)
    # And metadata.json.
    assert len(files_in(tmp_path / "new")) == real.copied_files + real.rewritten_files + 1


def test_a_table_that_was_moved_gets_its_names_right_in_place(tmp_path: Path) -> None:
    folder = copied("mor_dv", tmp_path)
    before = {f: hashlib.sha256((folder / f).read_bytes()).digest() for f in files_in(folder)}
    result = relocate(open_fixture("mor_dv", tmp_path), str(folder), verify=True)
    assert (result.copied_files, result.found_files) == (0, 3)
    for name, digest in before.items():
        assert hashlib.sha256((folder / name).read_bytes()).digest() == digest
    assert not [f for f in result.old_files if f.endswith(".parquet")]
    assert len([f for f in result.old_files if f.endswith(".puffin")]) == 3
    assert rows_of(reopened(result)) == expected_rows("mor_dv")


def test_nothing_shows_a_key(tmp_path: Path) -> None:
    old = open_fixture("mor_dv")
    result = relocate(old, str(tmp_path / "t"))
    snapshot: Any = old.metadata.current_snapshot()
    key = old.files.keys.manifest_list_key(snapshot.key_id).encryption_key
    keys = {key} | {
        KeyMetadata.from_bytes(e[manifests.DATA_FILE][131]).encryption_key
        for _, e in entries_of(old, snapshot)
    }
    stored_files = b"".join(p.read_bytes() for p in (tmp_path / "t").rglob("*") if p.is_file())
    for key in keys:
        assert key not in stored_files
        assert repr(key) not in repr(result)


# -- other storages


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, str]]:
    """FileIO properties of a server that is there for this module."""
    boto3 = pytest.importorskip("boto3")
    pytest.importorskip("moto.server")
    from aws_server import aws_server, dummy_environment

    with aws_server() as endpoint, pytest.MonkeyPatch.context() as patch:
        for name, value in dummy_environment(endpoint).items():
            patch.setenv(name, value)
        boto3.client("s3", endpoint_url=endpoint).create_bucket(Bucket="tables")
        yield {
            "s3.endpoint": endpoint,
            "s3.access-key-id": "testing",
            "s3.secret-access-key": "testing",
            "s3.region": "us-east-1",
        }


# Of `make test`: to a folder, through both FileIOs; to S3 are the slow ones.
@pytest.mark.slow_variants(r"pyarrow.PyArrowFileIO")
@pytest.mark.parametrize(
    "kind",
    ["pyarrow.PyArrowFileIO", pytest.param("fsspec.FsspecFileIO", marks=pytest.mark.slow)],
)
def test_to_s3_within_it_and_back(s3: dict[str, str], kind: str, tmp_path: Path) -> None:
    if "fsspec" in kind:
        pytest.importorskip("s3fs")
    properties = {"py-io-impl": f"pyiceberg.io.{kind}", **s3}
    bucket = f"s3://tables/{kind}"
    old = open_made(make_table(tmp_path / "t"))
    there = relocate(old, f"{bucket}/a", properties=properties)
    first = reopened(there, properties=properties)
    check_relocated(old, first)
    again = relocate(first, f"{bucket.replace('s3:', 's3a:')}/b")
    second = reopened(again, properties=properties)
    assert rows_of(second) == rows_of(old)
    with pytest.raises(ValueError, match="within"):
        relocate(first, f"{bucket}/a/b")
    with pytest.raises(FileExistsError):
        relocate(first, f"{bucket}/b", resume=False)
    back = relocate(second, f"file://{tmp_path}/back", properties={})
    assert verify_table(reopened(back)).ok
    assert rows_of(reopened(back)) == rows_of(old)


def test_through_another_file_io(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    old = open_made(make_table(tmp_path / "t"))
    fsspec = {"py-io-impl": "pyiceberg.io.fsspec.FsspecFileIO"}
    result = relocate(old, str(tmp_path / "new"), properties=fsspec)
    new = reopened(result, properties=fsspec)
    check_relocated(old, new)
    relocate(new, str(tmp_path / "newer"), properties={})
    assert relocate(new, str(tmp_path / "newer")).found_files == result.copied_files

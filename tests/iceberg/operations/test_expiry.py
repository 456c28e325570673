"""Expiry of snapshots: which go, by Java's rules, and which files go with them.

The metadata of each plan is applied, and the table verified whole afterwards: nothing that a
snapshot needs is gone, and nothing is left that no snapshot has.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from iceberg_tables import (
    JAVA_LOCATION,
    by_id,
    copied,
    expected_rows,
    memory_kms,
    metadata_file,
    open_fixture,
)
from pyiceberg.exceptions import ValidationException
from pyiceberg.io.pyarrow import PyArrowFileIO
from table_maker import Entry, TableMaker, stored

from ags1.errors import KmsError, KmsUnavailableError, TruncatedError
from ags1.iceberg import EncryptedTable, open_table
from ags1.iceberg.commit.updates import apply_updates
from ags1.iceberg.operations.check import verify_table
from ags1.iceberg.operations.expire import ExpiryPlan, expire, expire_all
from ags1.iceberg.operations.expired_files import ExpiredFiles
from ags1.iceberg.spec.table_keys import prune, rotate, unmoved_refs
from ags1.iceberg.storage.output import TableOutput
from ags1.iceberg.storage.table_files import TableFiles
from ags1.iceberg.storage.table_folders import TableFolders
from ags1.iceberg.write.view import TableView
from ags1.keys import EncryptionManager

pytestmark = pytest.mark.filterwarnings("ignore::ags1.kms.memory.KeysInPropertiesWarning")

DAY = 24 * 60 * 60 * 1000
NOW = 1_795_000_000_000
COLUMNS = [{"id": 1, "name": "id", "type": "long"}]


# -- which snapshots


def history(*parents: int | None, refs: dict[str, Any] | None = None, **more: Any) -> Any:
    """Metadata of snapshots 1, 2, … with these parents, one made each day, the last today."""
    count = len(parents)
    snapshots = [
        {
            "snapshot-id": number,
            "timestamp-ms": NOW - (count - number) * DAY,
            "manifest-list": f"file:///t/snap-{number}.avro",
            "sequence-number": number,
        }
        | ({} if parent is None else {"parent-snapshot-id": parent})
        for number, parent in enumerate(parents, 1)
    ]
    refs = {"main": branch(count)} if refs is None else refs
    return {
        "format-version": 3,
        "table-uuid": "0e1f0d92-5a9c-4b0e-9f5d-0a6f3c1d2e4b",
        "location": "file:///t",
        "last-sequence-number": count,
        "last-updated-ms": NOW,
        "last-column-id": 1,
        "current-schema-id": 0,
        "schemas": [{"type": "struct", "schema-id": 0, "fields": []}],
        "default-spec-id": 0,
        "partition-specs": [{"spec-id": 0, "fields": []}],
        "last-partition-id": 999,
        "default-sort-order-id": 0,
        "sort-orders": [{"order-id": 0, "fields": []}],
        "properties": {},
        "current-snapshot-id": refs["main"]["snapshot-id"] if "main" in refs else -1,
        "next-row-id": 0,
        "snapshots": snapshots,
        "refs": refs,
        "statistics": [],
        "partition-statistics": [],
        "snapshot-log": [],
        "metadata-log": [],
    } | more


def branch(snapshot_id: int, **settings: int) -> dict[str, Any]:
    return {"snapshot-id": snapshot_id, "type": "branch"} | settings


def tag(snapshot_id: int, **settings: int) -> dict[str, Any]:
    return {"snapshot-id": snapshot_id, "type": "tag"} | settings


def ago(days: int) -> int:
    """Epoch milliseconds at which the snapshot of so many days ago was made."""
    return NOW - days * DAY


LINE = (None, 1, 2, 3, 4, 5, 6, 7)  # the eighth is today's


@pytest.mark.parametrize(
    ("wish", "properties", "gone"),
    [
        ({}, {}, [1, 2]),  # five days
        ({}, {"history.expire.max-snapshot-age-ms": str(2 * DAY)}, [1, 2, 3, 4, 5]),
        ({}, {"history.expire.min-snapshots-to-keep": "7"}, [1]),
        ({"older_than_ms": ago(2)}, {}, [1, 2, 3, 4, 5]),
        ({"older_than_ms": ago(2) + 1}, {}, [1, 2, 3, 4, 5, 6]),
        ({"older_than_ms": NOW + DAY}, {}, [1, 2, 3, 4, 5, 6, 7]),
        ({"older_than_ms": NOW, "retain_last": 3}, {}, [1, 2, 3, 4, 5]),
        ({"older_than_ms": ago(4), "retain_last": 3}, {}, [1, 2, 3]),
        ({"retain_last": 100, "older_than_ms": NOW}, {}, []),
        ({"older_than_ms": NOW}, {"history.expire.min-snapshots-to-keep": "2"}, [1, 2, 3, 4, 5, 6]),
        ({"older_than_ms": 0, "snapshot_ids": [3, 5]}, {}, [3, 5]),
        ({"snapshot_ids": [7]}, {}, [1, 2, 7]),
    ],
)
def test_a_line_of_snapshots(wish: Any, properties: dict[str, str], gone: list[int]) -> None:
    plan = expire(history(*LINE, properties=properties), now_ms=NOW, **wish)
    assert list(plan.snapshot_ids) == gone
    assert plan.refs == ()
    expected = [{"action": "remove-snapshots", "snapshot-ids": gone}] if gone else []
    assert plan.updates == expected


def test_branches_have_their_own_rules() -> None:
    # 1-2-3-4 is main; 5-6-7 left it at 2.
    metadata = history(None, 1, 2, 3, 2, 5, 6, refs={"main": branch(4), "b": branch(7)})
    assert expire(metadata, older_than_ms=NOW + 1, now_ms=NOW).snapshot_ids == (1, 2, 3, 5, 6)
    metadata["refs"]["b"] = branch(7, **{"min-snapshots-to-keep": 2})
    assert expire(metadata, older_than_ms=NOW + 1, now_ms=NOW).snapshot_ids == (1, 2, 3, 5)
    metadata["refs"]["b"] = branch(7, **{"max-snapshot-age-ms": 5 * DAY})
    assert expire(metadata, older_than_ms=NOW + 1, now_ms=NOW).snapshot_ids == (1, 3)
    metadata["refs"]["b"] = branch(7, **{"max-snapshot-age-ms": 0})
    assert expire(metadata, older_than_ms=0, now_ms=NOW).snapshot_ids == (5, 6)


def test_refs_grow_old_and_main_does_not() -> None:
    age = {"max-ref-age-ms": 3 * DAY}
    refs = {"main": branch(2, **age), "b": branch(4, **age), "t": tag(3, **age), "u": tag(1)}
    metadata = history(None, 1, 2, 3, None, refs=refs)
    plan = expire(metadata, older_than_ms=NOW, now_ms=NOW)
    assert (plan.refs, plan.snapshot_ids) == ((), ())
    later = NOW + 2 * DAY
    plan = expire(metadata, older_than_ms=later, now_ms=later)
    assert plan.refs == ("t",)
    assert set(plan.snapshot_ids) == {3, 5}
    plan = expire(metadata, older_than_ms=later + DAY, now_ms=later + DAY)
    assert plan.refs == ("b", "t")
    assert set(plan.snapshot_ids) == {3, 4, 5}
    assert plan.updates[:2] == [
        {"action": "remove-snapshot-ref", "ref-name": name} for name in ("b", "t")
    ]
    metadata["properties"]["history.expire.max-ref-age-ms"] = "0"
    assert "u" in expire(metadata, older_than_ms=0, now_ms=NOW).refs


def test_what_no_ref_has_goes_by_age_alone() -> None:
    metadata = history(None, 1, 2, 1, refs={"main": branch(2)})  # 3 was rolled back, 4 is staged
    assert expire(metadata, older_than_ms=ago(1), now_ms=NOW).snapshot_ids == (1,)
    assert expire(metadata, older_than_ms=NOW, now_ms=NOW).snapshot_ids == (1, 3)
    assert expire(metadata, older_than_ms=NOW + 1, now_ms=NOW).snapshot_ids == (1, 3, 4)


def test_a_tag_keeps_its_snapshot_and_none_before_it() -> None:
    metadata = history(None, 1, 2, 3, refs={"main": branch(4), "t": tag(2)})
    assert expire(metadata, older_than_ms=NOW, now_ms=NOW).snapshot_ids == (1, 3)


def test_a_ref_whose_snapshot_is_missing_goes() -> None:
    metadata = history(None, 1, refs={"main": branch(2), "b": branch(99)})
    assert expire(metadata, now_ms=NOW).refs == ("b",)


def test_a_history_that_goes_in_a_circle_ends() -> None:
    metadata = history(2, 1)
    assert expire(metadata, older_than_ms=0, now_ms=NOW).snapshot_ids == ()


def test_statistics_go_with_their_snapshot() -> None:
    statistics = [{"snapshot-id": i, "statistics-path": f"file:///t/{i}.stats"} for i in (1, 4)]
    metadata = history(None, 1, 2, 3, statistics=statistics)
    metadata["partition-statistics"] = statistics
    plan = expire(metadata, older_than_ms=NOW, now_ms=NOW)
    assert plan.updates[1:] == [
        {"action": "remove-statistics", "snapshot-id": 1},
        {"action": "remove-partition-statistics", "snapshot-id": 1},
    ]
    after = apply_updates(metadata, plan.updates, now_ms=NOW)
    assert after["statistics"] == after["partition-statistics"] == statistics[1:]


def test_what_is_refused() -> None:
    line = history(*LINE, refs={"main": branch(8), "t": tag(3)})
    with pytest.raises(ValueError, match="at least 1"):
        expire(line, retain_last=0)
    with pytest.raises(ValueError, match="no snapshot 9"):
        expire(line, snapshot_ids=[9])
    for snapshot_id, name in ((8, "main"), (3, "t")):
        with pytest.raises(ValueError, match=f"{snapshot_id} cannot be expired: {name}"):
            expire(line, snapshot_ids=[snapshot_id])
    for value in ("false", "no"):
        with pytest.raises(ValidationException, match=r"gc\.enabled"):
            expire(history(*LINE, properties={"gc.enabled": value}))
    with pytest.raises(ValueError, match=r"max-ref-age-ms' is 'x': it must be a whole number"):
        expire(history(*LINE, properties={"history.expire.max-ref-age-ms": "x"}))
    assert expire(history(*LINE, properties={"gc.enabled": "TRUE"}), older_than_ms=0).updates == []


def test_an_empty_table_has_nothing_to_expire() -> None:
    plan = expire(history(refs={}))
    assert plan.updates == []
    assert plan.requirements[1]["snapshot-id"] is None


def test_every_ref_is_required_to_stand() -> None:
    metadata = history(*LINE, refs={"main": branch(8), "t": tag(3)})
    assert expire(metadata).requirements == unmoved_refs(metadata)


@st.composite
def histories(draw: st.DrawFn) -> Any:
    count = draw(st.integers(1, 8))
    parents = [draw(st.none() | st.integers(1, n)) if n else None for n in range(count)]
    ages = st.none() | st.integers(0, 9).map(lambda days: days * DAY)
    refs = {"main": branch(draw(st.integers(1, count)))}
    for name in ("a", "b", "c"):
        if not draw(st.booleans()):
            continue
        options: dict[str, Any] = {"max-ref-age-ms": draw(ages)}
        if is_branch := draw(st.booleans()):
            options |= {
                "max-snapshot-age-ms": draw(ages),
                "min-snapshots-to-keep": draw(st.none() | st.integers(1, 4)),
            }
        options = {key: value for key, value in options.items() if value is not None}
        refs[name] = (branch if is_branch else tag)(draw(st.integers(1, count)), **options)
    return history(*parents, refs=refs)


@pytest.mark.parametrize("examples", [25, pytest.param(200, marks=pytest.mark.slow)])
def test_what_stays_of_any_history(examples: int) -> None:
    """Each snapshot by itself: whether one of the reasons to stay is there."""

    @settings(deadline=None, max_examples=examples)
    @given(histories(), st.integers(-1, 9), st.integers(1, 4))
    def check(metadata: Any, days: int, retain_last: int) -> None:
        older_than_ms = ago(days)
        plan = expire(metadata, older_than_ms=older_than_ms, retain_last=retain_last, now_ms=NOW)
        times = {s["snapshot-id"]: s["timestamp-ms"] for s in metadata["snapshots"]}
        parents = {s["snapshot-id"]: s.get("parent-snapshot-id") for s in metadata["snapshots"]}

        def line(snapshot_id: int | None) -> list[int]:
            return [] if snapshot_id is None else [snapshot_id, *line(parents[snapshot_id])]

        stay = set(times) - set(plan.snapshot_ids)
        refs = {
            name: ref
            for name, ref in metadata["refs"].items()
            if name == "main"
            or NOW - times[ref["snapshot-id"]] <= ref.get("max-ref-age-ms", float("inf"))
        }
        assert set(metadata["refs"]) - set(plan.refs) == set(refs)
        reasons: set[int] = {ref["snapshot-id"] for ref in refs.values()}
        in_refs = set(reasons)
        for ref in refs.values():
            if ref["type"] == "tag":
                continue
            ancestors = line(ref["snapshot-id"])
            in_refs |= set(ancestors)
            oldest = (
                NOW - ref["max-snapshot-age-ms"] if "max-snapshot-age-ms" in ref else older_than_ms
            )
            count = ref.get("min-snapshots-to-keep", retain_last)
            young = [i for i in ancestors if times[i] >= oldest]
            # Times only fall along a line here, so that the young ones come first.
            reasons |= set(ancestors[:count]) | set(young)
        reasons |= {i for i in set(times) - in_refs if times[i] >= older_than_ms}
        assert stay == reasons
        after = apply_updates(metadata, plan.updates, now_ms=NOW)
        assert {s["snapshot-id"] for s in after["snapshots"]} == stay
        assert after["refs"] == refs

    check()


# -- which files


class Lake:
    """A table in a folder, expired and looked at again."""

    def __init__(self, metadata: dict[str, Any], location: str, location_map: Any = None) -> None:
        self.metadata = metadata
        self.location = location
        self.location_map = location_map or {}
        self.output = TableOutput(PyArrowFileIO(), location_map)
        self.files = self.files_of(metadata)

    def files_of(self, metadata: dict[str, Any], kms: Any = None) -> TableFiles:
        manager = EncryptionManager.from_metadata(
            metadata, kms or memory_kms(), table_key_id="keyA"
        )
        return TableFiles(PyArrowFileIO(), manager, location_map=self.location_map)

    def after(self, plan: ExpiryPlan) -> dict[str, Any]:
        now_ms = max(NOW, self.metadata["last-updated-ms"])
        return apply_updates(self.metadata, plan.updates, now_ms=now_ms)

    def found(
        self,
        plan: ExpiryPlan,
        after: dict[str, Any] | None = None,
        after_files: TableFiles | None = None,
    ) -> ExpiredFiles:
        folders = TableFolders(self.location, stored=self.files.stored_location)
        version = None if after is None else TableView(after, after_files or self.files)
        return plan.find_files(self.files, folders, version)

    def table(self, metadata: dict[str, Any]) -> EncryptedTable:
        path = Path(self.location).with_name("99999.metadata.json")
        path.write_text(json.dumps(metadata))
        table = open_table(str(path), kms=memory_kms(), location_map=self.location_map)
        assert isinstance(table, EncryptedTable)
        return table

    def findings(self, metadata: dict[str, Any]) -> set[str]:
        """What a verification finds of the table's files."""
        return {
            finding.kind
            for finding in verify_table(self.table(metadata)).findings
            if finding.kind not in ("metadata-not-pinned", "orphan-key")
            and not (finding.file or "").endswith(".metadata.json")
        }


def lake_of(maker: TableMaker, metadata: dict[str, Any] | None = None) -> Lake:
    metadata = metadata or maker.metadata()
    return Lake(metadata, maker.write(metadata))


def rows(*numbers: int) -> list[dict[str, Any]]:
    return [{"id": number} for number in numbers]


def last_only(metadata: dict[str, Any]) -> ExpiryPlan:
    return expire(metadata, older_than_ms=metadata["last-updated-ms"] + 1, retain_last=1)


def paths(*entries: Entry) -> list[str]:
    return [entry["file_path"] for entry in entries]


def test_the_table_that_java_wrote_expires_to_its_last_snapshot(tmp_path: Path) -> None:
    folder = copied("mor_dv", tmp_path)
    path = metadata_file("mor_dv", tmp_path)
    lake = Lake(json.loads(path.read_bytes()), str(path), {JAVA_LOCATION: str(tmp_path)})
    before = {file.name for file in folder.rglob("*") if file.is_file()}
    plan = last_only(lake.metadata)
    assert len(plan.snapshot_ids) == 4
    expired = lake.found(plan)
    assert len(expired.manifest_lists) == 4
    assert expired.left_behind == ()
    assert {file.name for file in folder.rglob("*") if file.is_file()} == before
    after = lake.after(plan)
    assert lake.found(plan, after=after, after_files=lake.files_of(after)) == expired
    assert "orphan-file" in lake.findings(after)
    assert expired.delete(lake.output) == ()
    assert lake.findings(after) == set()
    table = open_fixture("mor_dv", tmp_path)
    assert by_id(table.scan().to_arrow().to_pylist()) == expected_rows("mor_dv")
    assert by_id(lake.table(after).scan().to_arrow().to_pylist()) == expected_rows("mor_dv")


def test_replaced_files_go_and_shared_ones_stay(tmp_path: Path) -> None:
    maker = TableMaker(tmp_path / "t", COLUMNS, memory_kms())
    old, kept, vectored = (maker.add_parquet(rows(i, i + 1)) for i in (1, 3, 5))
    maker.commit(old)
    maker.commit(kept)
    vectors = maker.add_deletion_vectors({vectored["file_path"]: [0], kept["file_path"]: [1]})
    maker.commit(vectored, *vectors)
    maker.manifests.clear()
    # One of the two vectors of a file stays, so the file does.
    new = maker.add_parquet(rows(7))
    maker.commit(kept, new, vectors[1])
    lake = lake_of(maker)
    plan = last_only(lake.metadata)
    expired = lake.found(plan)
    assert sorted(expired.data_files) == paths(old, vectored)
    assert expired.delete_files == ()
    assert len(expired.manifest_lists) == 3
    assert len(expired.manifests) == 4
    expired.delete(lake.output)
    after = lake.after(plan)
    assert lake.findings(after) == set()
    assert by_id(lake.table(after).scan().to_arrow().to_pylist()) == rows(3, 7)


def test_delete_files_are_told_from_data_files(tmp_path: Path) -> None:
    maker = TableMaker(tmp_path / "t", COLUMNS, memory_kms())
    data = maker.add_parquet(rows(1, 2))
    deletes = maker.add_position_deletes([(data["file_path"], 0)])
    maker.commit(data, deletes)
    maker.manifests.clear()
    maker.commit(maker.add_parquet(rows(3)))
    lake = lake_of(maker)
    expired = lake.found(last_only(lake.metadata))
    assert expired.data_files == (data["file_path"],)
    assert expired.delete_files == (deletes["file_path"],)
    assert expired.locations == (
        *expired.data_files,
        *expired.delete_files,
        *expired.manifests,
        *expired.manifest_lists,
    )


def test_what_a_branch_reaches_stays(tmp_path: Path) -> None:
    maker = TableMaker(tmp_path / "t", COLUMNS, memory_kms())
    first, second = maker.add_parquet(rows(1)), maker.add_parquet(rows(2))
    maker.commit(first)
    maker.commit(second, ref="b")
    maker.manifests.clear()
    maker.commit(maker.add_parquet(rows(3)))
    lake = lake_of(maker)
    plan = last_only(lake.metadata)
    assert plan.snapshot_ids == (1001,)
    expired = lake.found(plan)
    assert expired.data_files == expired.manifests == ()
    assert len(expired.manifest_lists) == 1
    del lake.metadata["refs"]["b"]
    assert sorted(lake.found(last_only(lake.metadata)).data_files) == paths(first, second)


def test_a_file_that_is_known_by_two_names_stays(tmp_path: Path) -> None:
    maker = TableMaker(tmp_path / "t", COLUMNS, memory_kms())
    entry = maker.add_parquet(rows(1))
    maker.commit(entry)
    for other in (
        entry["file_path"].replace("file://", "file:"),
        entry["file_path"].replace("file://", ""),
        entry["file_path"].replace("/data/", "/data/../data/"),
        entry["file_path"].replace("/data/", "/data//"),
    ):
        maker.manifests.clear()
        maker.commit(entry | {"file_path": other})
        lake = lake_of(maker)
        plan = last_only(lake.metadata)
        assert lake.found(plan).data_files == ()


def test_files_are_looked_for_in_what_was_committed(tmp_path: Path) -> None:
    maker = TableMaker(tmp_path / "t", COLUMNS, memory_kms())
    first = maker.add_parquet(rows(1))
    maker.commit(first)
    maker.manifests.clear()
    maker.commit(maker.add_parquet(rows(2)))
    lake = lake_of(maker)
    plan = last_only(lake.metadata)
    assert lake.found(plan).data_files == (first["file_path"],)
    # It was not committed: all is as it was.
    assert lake.found(plan, after=lake.metadata).locations == ()
    # Somebody has added the file again, and the keys were rotated and pruned.
    maker.commit(first)
    later = maker.metadata()
    later = apply_updates(later, plan.updates, now_ms=NOW)
    for change in (rotate, prune):
        manager = EncryptionManager.from_metadata(later, memory_kms(), table_key_id="keyA")
        later = apply_updates(later, change(later, manager).updates, now_ms=NOW)
    files = lake.files_of(later)
    expired = lake.found(plan, after=later, after_files=files)
    assert expired.data_files == ()
    assert len(expired.manifest_lists) == len(expired.manifests) == 1
    with pytest.raises(ValueError, match="another table"):
        lake.found(plan, after=lake.metadata | {"table-uuid": "x"})


def test_a_manifest_list_that_a_snapshot_still_names_stays(tmp_path: Path) -> None:
    maker = TableMaker(tmp_path / "t", COLUMNS, memory_kms())
    maker.commit()
    maker.commit()
    metadata = maker.metadata()
    plan = last_only(metadata)
    assert len(lake_of(maker, metadata).found(plan).manifest_lists) == 1
    first, second = metadata["snapshots"]
    second["manifest-list"] = first["manifest-list"].replace("file://", "file:")
    assert lake_of(maker, metadata).found(plan) == ExpiredFiles()


def test_all_files_of_a_table_that_is_dropped(tmp_path: Path) -> None:
    maker = TableMaker(tmp_path / "t", COLUMNS, memory_kms())
    maker.commit(maker.add_parquet(rows(1)))
    maker.commit(maker.add_parquet(rows(2)), ref="b")
    lake = lake_of(maker)
    plan = expire_all(lake.metadata)
    assert plan.updates == []
    assert lake.found(plan).delete(lake.output) == ()
    left = [path.name for path in maker.folder.rglob("*") if path.is_file()]
    assert left == [Path(lake.location).name]
    lake.metadata["properties"]["gc.enabled"] = "false"
    with pytest.raises(ValidationException, match=r"gc\.enabled"):
        expire_all(lake.metadata)


def test_damage_to_what_stays_stops_the_search(tmp_path: Path) -> None:
    maker = TableMaker(tmp_path / "t", COLUMNS, memory_kms())
    maker.commit(maker.add_parquet(rows(1)))
    maker.manifests.clear()
    maker.commit(maker.add_parquet(rows(2)))
    lake = lake_of(maker)
    plan = last_only(lake.metadata)
    for location in (
        maker.manifests[0]["manifest_path"],
        lake.metadata["snapshots"][1]["manifest-list"],
    ):
        path = stored(location)
        whole = path.read_bytes()
        path.write_bytes(whole[:-1])
        with pytest.raises(TruncatedError):
            lake.found(plan)
        path.unlink()
        with pytest.raises(FileNotFoundError):
            lake.found(plan)
        path.write_bytes(whole)


def test_damage_to_what_goes_leaves_the_rest_behind(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    maker = TableMaker(tmp_path / "t", COLUMNS, memory_kms())
    one, two = maker.add_parquet(rows(1)), maker.add_parquet(rows(2))
    maker.commit(one, two, manifests_of=1)
    [damaged, whole] = [manifest["manifest_path"] for manifest in maker.manifests]
    maker.manifests.clear()
    maker.commit(maker.add_parquet(rows(3)))
    lake = lake_of(maker)
    plan = last_only(lake.metadata)
    stored(damaged).write_bytes(stored(damaged).read_bytes()[:-1])
    with caplog.at_level(logging.WARNING):
        expired = lake.found(plan)
    assert expired.left_behind == (damaged,)
    assert expired.data_files == (two["file_path"],)
    assert expired.manifests == (whole,)
    assert "TruncatedError" in caplog.text
    location = lake.metadata["snapshots"][0]["manifest-list"]
    stored(location).unlink()
    assert lake.found(plan) == ExpiredFiles(left_behind=(location,))


def test_trouble_of_the_kms_stops_the_search(tmp_path: Path) -> None:
    class Down:
        accepts_foreign_keys = wraps_with_public_key = supports_key_generation = False

        def unwrap_key(self, wrapped_key: bytes, key_id: str) -> bytes:
            raise KmsUnavailableError("no answer")

    maker = TableMaker(tmp_path / "t", COLUMNS, memory_kms())
    maker.commit(maker.add_parquet(rows(1)))
    maker.commit(maker.add_parquet(rows(2)))
    lake = lake_of(maker)
    lake.files = lake.files_of(lake.metadata, Down())
    plan = last_only(lake.metadata)
    with pytest.raises(KmsError, match="no answer"):
        lake.found(plan)
    # Nothing is even read where nothing was expired.
    assert lake.found(plan, after=lake.metadata) == ExpiredFiles()


def test_statistics_beside_the_metadata_go_and_others_stay(tmp_path: Path) -> None:
    maker = TableMaker(tmp_path / "t", COLUMNS, memory_kms())
    maker.commit(maker.add_parquet(rows(1)))
    maker.commit(maker.add_parquet(rows(2)))
    metadata = maker.metadata()
    folder = f"{maker.location}/metadata"
    live_list = metadata["snapshots"][1]["manifest-list"]
    outside = [
        f"file://{tmp_path}/precious",
        f"{folder}/../data/00001.parquet",
        live_list,
        f"{folder}/00001.metadata.json",
    ]
    names = [f"{folder}/1.stats", f"{folder}/both.stats", *outside]
    metadata["statistics"] = [{"snapshot-id": 1001, "statistics-path": name} for name in names] + [
        {"snapshot-id": 1002, "statistics-path": f"file:{maker.folder}/metadata/both.stats"}
    ]
    metadata["partition-statistics"] = [
        {"snapshot-id": 1001, "statistics-path": f"{folder}/p.parquet"}
    ]
    for name in ("1.stats", "both.stats", "p.parquet"):
        (maker.folder / "metadata" / name).write_bytes(b"PFA1...")
    lake = lake_of(maker, metadata)
    expired = lake.found(last_only(metadata))
    assert expired.statistics == (f"{folder}/1.stats", f"{folder}/p.parquet")
    assert expired.left_behind == tuple(outside)


def test_what_cannot_be_deleted_is_told(tmp_path: Path) -> None:
    class Stubborn(TableOutput):
        def delete(self, location: str) -> None:
            if location == b:
                raise PermissionError(location)
            deleted.append(location)

    deleted: list[str] = []
    seen: list[tuple[int, int]] = []
    folders = TableFolders(f"file://{tmp_path}/t/metadata/1.metadata.json")
    a, b, c = (f"file://{tmp_path}/t/{name}" for name in "abc")
    expired = ExpiredFiles(data_files=(a, b), manifests=(c,), folders=folders)
    failed = expired.delete(
        Stubborn(PyArrowFileIO()), progress=lambda done, total: seen.append((done, total))
    )
    assert failed == (b,)
    assert sorted(deleted) == [a, c]
    assert seen == [(1, 3), (2, 3), (3, 3)]
    gone = ExpiredFiles(data_files=(f"file://{tmp_path}/t/gone",), folders=folders)
    assert gone.delete(TableOutput(PyArrowFileIO())) == ()
    # Nobody says which folders are the table's.
    deleted.clear()
    assert ExpiredFiles(data_files=(a, c)).delete(Stubborn(PyArrowFileIO())) == (a, c)
    assert not deleted

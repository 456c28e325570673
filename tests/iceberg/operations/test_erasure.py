"""Deleted rows erased: afterwards no file in the table's folder has them, and no other row is lost.

Each test searches every file with every key that the table ever had. Before the erasure the same
search has to find the values, so that it would find them afterwards too.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from iceberg_tables import memory_kms, unpin, with_statistics
from kept_tables import KeptTables
from opened_files import OpenedFiles
from pyiceberg.exceptions import ValidationException
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.statistics import StatisticsFile
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import ListType, LongType, NestedField, StringType, StructType

from ags1.errors import KmsUnavailableError
from ags1.iceberg import EncryptedCatalog, EncryptedTable, Erasure, verify_table
from ags1.iceberg.operations import erase as erasing
from ags1.iceberg.operations.erase import earlier_snapshots
from ags1.iceberg.storage.output import TableOutput

pytestmark = pytest.mark.filterwarnings("ignore::ags1.kms.memory.KeysInPropertiesWarning")

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "name", StringType(), required=False),
    NestedField(
        3, "who", StructType(NestedField(4, "mail", StringType(), required=False)), required=False
    ),
    NestedField(5, "tags", ListType(6, StringType(), False), required=False),
    NestedField(7, "day", StringType(), required=False),
)
ARROW = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("who", pa.struct([("mail", pa.string())])),
        ("tags", pa.list_(pa.string())),
        ("day", pa.string()),
    ]
)
BY_DAY = PartitionSpec(PartitionField(7, 1000, IdentityTransform(), "day"))
# No value of a file's name or of JSON has these by chance. Bounds have 16 characters at most.
SECRETS = (b"erase-me-name", b"erase-me-mail", b"erase-me-tag", b"erase-me-day")
NOW: dict[str, Any] = {"no_other_writers": True, "remove_orphans": True}


def row(number: int, *, secret: bool = False, day: str = "monday") -> dict[str, Any]:
    name, mail, tag = ("erase-me-name", "erase-me-mail", "erase-me-tag") if secret else "nmt"
    return {
        "id": number,
        "name": f"{name}{number}",
        "who": {"mail": f"{mail}{number}"},
        "tags": [f"{tag}{number}", "x"],
        "day": day,
    }


def rows(*of: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(of), schema=ARROW)


def folder_of(table: EncryptedTable) -> Path:
    return Path(table.location().removeprefix("file://"))


def opened(table: EncryptedTable) -> OpenedFiles:
    return OpenedFiles(folder_of(table), memory_kms())


def create(catalog: EncryptedCatalog, **properties: str) -> EncryptedTable:
    made = catalog.create_table(
        "db.t", SCHEMA, properties={"encryption.key-id": "keyA", **properties}
    )
    assert isinstance(made, EncryptedTable)
    return made


def filled(catalog: EncryptedCatalog, **properties: str) -> EncryptedTable:
    """Rows 1 to 6; 2 and 5 have secrets and are not deleted yet."""
    made = create(catalog, **properties)
    made.append(rows(row(1), row(2, secret=True), row(3)))
    made.append(rows(row(4), row(5, secret=True), row(6)))
    return made


def ids(table: EncryptedTable) -> list[int]:
    return sorted(table.scan().to_arrow()["id"].to_pylist())


def kinds(done: Erasure) -> set[str]:
    return {remaining.kind for remaining in done.remaining}


def check_erased(table: EncryptedTable, files: OpenedFiles, *left: int) -> None:
    assert files.holding(*SECRETS) == {secret: set() for secret in SECRETS}
    assert ids(table) == list(left)
    report = verify_table(table)
    assert report.ok, report.findings
    assert not report.finding_counts.keys() & {"orphan-file", "stray-plain-file", "orphan-key"}


MODES: dict[str, dict[str, str]] = {
    "merge-on-read": {},
    "copy-on-write": {
        "write.delete.mode": "copy-on-write",
        "write.parquet.compression-codec": "uncompressed",
    },
    "avro": {
        "write.format.default": "avro",
        "write.metadata.previous-versions-max": "1",
        "write.metadata.delete-after-commit.enabled": "true",
    },
    "gzip": {"write.metadata.compression-codec": "gzip", "commit.manifest-merge.enabled": "false"},
    "short log": {"write.metadata.previous-versions-max": "1"},
}


# Of `make test`: every format and mode, and the log of metadata files that is deleted.
@pytest.mark.slow_variants(r"(gzip|short log)")
@pytest.mark.parametrize("mode", MODES)
def test_no_file_has_a_deleted_value(kept: KeptTables, mode: str) -> None:
    table = kept(filled, **MODES[mode])
    table.delete("id = 2")
    table.delete("name = 'erase-me-name5'")
    table.append(rows(row(7)))
    files = opened(table)
    before = files.holding(*SECRETS[:3])
    assert all(before.values()), before
    done = table.erase_deleted_rows()
    check_erased(table, files, 1, 3, 4, 6, 7)
    assert kinds(done) == {"orphans-not-searched"}
    assert len(done.snapshot_ids) >= 4
    assert len(table.snapshots()) == 1
    again = table.erase_deleted_rows()
    assert (again.snapshot_ids, again.files, again.metadata_files) == ((), (), ())


def test_what_the_steps_are_for(kept: KeptTables, monkeypatch: Any) -> None:
    """Without any one of them, a value is found."""
    steps: list[tuple[str, Any]] = [
        ("_forgetting", lambda view: erasing.FileChange()),
        ("earlier_snapshots", lambda *_: []),
        ("_delete_in_order", lambda *_: ((), ())),
    ]
    for name, nothing in steps:
        table = kept(filled)
        table.delete("id = 2 or id = 5")
        files = opened(table)
        assert all(files.holding(*SECRETS[:3]).values())
        with monkeypatch.context() as patch:
            patch.setattr(erasing, name, nothing)
            files.watch(patch)
            table.erase_deleted_rows()
        assert any(files.holding(*SECRETS[:3]).values()), name
        table.erase_deleted_rows(orphans_older_than=datetime.now(timezone.utc), **NOW)
        check_erased(table, files, 1, 3, 4, 6)


def test_values_of_partitions(catalog: EncryptedCatalog) -> None:
    made = catalog.create_table(
        "db.t", SCHEMA, partition_spec=BY_DAY, properties={"encryption.key-id": "keyA"}
    )
    assert isinstance(made, EncryptedTable)
    made.append(rows(row(1), row(2, secret=True, day="erase-me-day"), row(3, day="erase-me-day")))
    made.append(rows(row(4, day="tuesday")))
    made.delete("day = 'erase-me-day'")
    files = opened(made)
    assert all(files.holding(*SECRETS).values())
    done = made.erase_deleted_rows()
    check_erased(made, files, 1, 4)
    # The folder is empty, and its name is told.
    [told] = [r for r in done.remaining if r.kind == "empty-folder"]
    empty = next(folder_of(made).rglob("day=erase-me-day"))
    assert str(empty) in told.message
    empty.rmdir()
    assert kinds(made.erase_deleted_rows()) == {"orphans-not-searched"}


def test_rows_that_were_changed_and_files_under_fresh_keys(kept: KeptTables) -> None:
    table = kept(filled)
    table.overwrite(rows(row(2)), "id = 2")
    table.upsert(rows(row(5)), ["id"])
    table.rekey()
    table.rotate_keys()
    files = opened(table)
    assert all(files.holding(*SECRETS[:3]).values())
    table.erase_deleted_rows()
    check_erased(table, files, 1, 2, 3, 4, 5, 6)


def test_a_dry_run_changes_nothing_and_says_what_would_go(kept: KeptTables) -> None:
    table = kept(filled)
    table.delete("id = 2 or id = 5")
    before = {path: path.read_bytes() for path in folder_of(table).rglob("*") if path.is_file()}
    dry = table.erase_deleted_rows(dry_run=True)
    after = {path: path.read_bytes() for path in folder_of(table).rglob("*") if path.is_file()}
    assert after == before
    steps: list[tuple[int, int]] = []
    done = table.erase_deleted_rows(progress=lambda *step: steps.append(step))
    assert dry.rewritten.rewritten_data_files_count == 2
    assert done.rewritten.rewritten_data_files_count == 2
    assert set(dry.snapshot_ids) < set(done.snapshot_ids)
    assert set(dry.files) < set(done.files)
    assert set(dry.metadata_files) < set(done.metadata_files)
    assert kinds(dry) == kinds(done)
    assert steps[-1][0] == steps[-1][1] > 0


# -- what is still there


def test_branches_and_tags_keep_what_they_have_and_are_named(kept: KeptTables) -> None:
    table = kept(filled)
    first = table.metadata.current_snapshot_id
    assert first is not None
    table.manage_snapshots().create_tag(first, "v1").create_branch(first, "audit").commit()
    table.delete("id = 2 or id = 5")
    table.append(rows(row(8)), branch="audit")
    files = opened(table)
    assert all(files.holding(*SECRETS[:3]).values())
    done = table.erase_deleted_rows()
    assert all(files.holding(*SECRETS[:3]).values())
    told = {r.kind: r for r in done.remaining}
    assert set(told) == {"tag", "branch", "orphans-not-searched"}
    assert "'v1'" in told["tag"].message
    assert str(first) in told["tag"].message
    assert "'audit'" in told["branch"].message
    for name, of in (("v1", [1, 2, 3, 4, 5, 6]), ("audit", [1, 2, 3, 4, 5, 6, 8])):
        snapshot = table.snapshot_by_name(name)
        assert snapshot is not None
        rows_of = table.scan(snapshot_id=snapshot.snapshot_id).to_arrow()["id"].to_pylist()
        assert sorted(rows_of) == of
    # The remedies are what they say.
    eval(told["tag"].remedy, {"table": table})
    table.delete("id = 2 or id = 5", branch="audit")
    table.erase_deleted_rows(branch="audit")
    left = table.erase_deleted_rows()
    assert kinds(left) == {"branch", "orphans-not-searched"}
    check_erased(table, files, 1, 3, 4, 6)


def test_which_snapshots_expire() -> None:
    def metadata(refs: dict[str, Any], *parents: int | None, staged: int = 0) -> dict[str, Any]:
        return {
            "refs": refs,
            "snapshots": [
                {"snapshot-id": n, "parent-snapshot-id": parent}
                | ({"summary": {"wap.id": "x"}} if n == staged else {})
                for n, parent in enumerate(parents, 1)
            ],
        }

    def branch(snapshot_id: int) -> dict[str, Any]:
        return {"snapshot-id": snapshot_id, "type": "branch"}

    main = {"main": branch(3)}
    tag = {"snapshot-id": 2, "type": "tag"}
    assert earlier_snapshots(metadata(main, None, 1, 2), "main") == [1, 2]
    assert earlier_snapshots(metadata({**main, "t": tag}, None, 1, 2), "main") == [1]
    # 4 was rolled back, 5 is staged.
    assert earlier_snapshots(metadata(main, None, 1, 2, 3, 3, staged=5), "main") == [1, 2, 4]
    # 4 and 5 are another branch's own history.
    both = {**main, "b": branch(5)}
    assert earlier_snapshots(metadata(both, None, 1, 2, 1, 4), "main") == [1, 2]
    assert earlier_snapshots(metadata(both, None, 1, 2, 1, 4), "b") == [1, 4]


def test_statistics_and_summaries_are_told(kept: KeptTables) -> None:
    table = kept(filled)
    snapshot_id = table.metadata.current_snapshot_id
    assert snapshot_id is not None
    path = folder_of(table) / "metadata" / "1.stats"
    path.write_bytes(b"PFA1")
    statistics = StatisticsFile(
        snapshot_id=snapshot_id,
        statistics_path=f"file://{path}",
        file_size_in_bytes=4,
        file_footer_size_in_bytes=4,
        blob_metadata=[],
    )
    table.update_statistics(allow_plaintext=True).set_statistics(statistics).commit()
    done = table.erase_deleted_rows()
    [told] = [r for r in done.remaining if r.kind == "statistics"]
    assert f"{path} is not encrypted" in told.message
    table.update_statistics(allow_plaintext=True).remove_statistics(snapshot_id).commit()
    done = table.erase_deleted_rows(orphans_older_than=datetime.now(timezone.utc), **NOW)
    assert done.remaining == ()
    assert not path.exists()
    # With a new snapshot they go by themselves.
    path.write_bytes(b"PFA1")
    table.update_statistics(allow_plaintext=True).set_statistics(statistics).commit()
    table.delete("id = 2")
    assert kinds(table.erase_deleted_rows(dry_run=True)) == {"orphans-not-searched"}
    assert kinds(table.erase_deleted_rows()) == {"orphans-not-searched"}
    assert not path.exists()

    location = Path(table.metadata_location.removeprefix("file://"))
    metadata = json.loads(location.read_text())
    metadata["snapshots"][0]["summary"]["partitions.day=erase-me-day"] = "added-records=1"
    location.write_text(json.dumps(metadata))
    unpin(table.catalog)
    table = table.catalog.load_table("db.t")
    assert kinds(table.erase_deleted_rows()) == {"orphans-not-searched", "partition-values"}


def test_malformed_earlier_metadata_files_are_told(kept: KeptTables) -> None:
    table = kept(filled)
    for number in (2, 5):
        table.delete(f"id = {number}")
    wrong: list[dict[str, Any]] = [
        {"snapshots": [{"snapshot-id": 9}]},
        {"statistics": [{"x": 1}]},
        {"metadata-log": [{}]},
        {"encryption-keys": [{}]},
    ]
    log = [Path(e.metadata_file.removeprefix("file://")) for e in table.metadata.metadata_log]
    for logged, change in zip(log, wrong, strict=True):
        logged.write_text(json.dumps(json.loads(logged.read_bytes()) | change))
    for dry_run in (True, False):
        done = table.erase_deleted_rows(dry_run=dry_run)
        told = [r.message for r in done.remaining if r.kind == "metadata-file"]
        assert [sum(str(logged) in message for message in told) for logged in log] == [1] * 4
    assert all(logged.exists() for logged in log)
    assert ids(table) == [1, 3, 4, 6]


def test_a_folder_that_was_not_searched_is_told(kept: KeptTables, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    table = kept(filled, **{"write.data.path": f"file://{elsewhere}"})
    table.delete("id in (2, 5)")
    unpin(table.catalog)
    table.refresh()
    now = datetime.now(timezone.utc)
    done = table.erase_deleted_rows(orphans_older_than=now, **NOW)
    assert kinds(done) == {"left-behind", "orphans"}
    # The manifests that named these files are gone now, but the files are still there.
    done = table.erase_deleted_rows(orphans_older_than=now, **NOW)
    assert len(list(elsewhere.glob("*.parquet"))) == 3
    [told] = done.remaining
    assert (told.kind, str(elsewhere) in told.message) == ("orphans", True)


def test_encrypted_statistics_go_with_their_snapshots_and_keys(kept: KeptTables) -> None:
    table = kept(filled, **{"encryption.keys.prune-on-commit": "true"})
    table = with_statistics(table, b"PFA1 erase-me")
    table.delete("id in (2, 5)")
    table = with_statistics(table, b"PFA1 erase-me")
    assert kinds(table.erase_deleted_rows(dry_run=True)) == {"orphans-not-searched"}
    assert kinds(table.erase_deleted_rows()) == {"orphans-not-searched"}
    assert list((folder_of(table) / "metadata").glob("*.stats")) == []
    # Those of the manifest list and of its KEK.
    assert len(table.version.json["encryption-keys"]) == 2
    table = with_statistics(table, b"PFA1 erase-me")
    done = table.erase_deleted_rows()
    [told] = [r for r in done.remaining if r.kind == "statistics"]
    assert "not encrypted" not in told.message
    assert len(list((folder_of(table) / "metadata").glob("*.stats"))) == 1
    assert verify_table(table).ok


def test_files_outside_the_tables_folders_are_told(
    catalog: EncryptedCatalog, tmp_path: Path
) -> None:
    table = create(catalog, **{"write.data.path": f"file://{tmp_path}/elsewhere"})
    table.append(rows(row(1), row(2, secret=True)))
    table.delete("id = 2")
    unpin(catalog)
    table.refresh()
    done = table.erase_deleted_rows()
    told = [r.message for r in done.remaining if r.kind == "left-behind"]
    outside = {str(path) for path in (tmp_path / "elsewhere").rglob("*") if path.is_file()}
    assert len(outside) == 3  # the old file, its vector and the new file
    assert len(told) == 2
    assert {path for path in outside if any(path in message for message in told)} < outside


def test_files_that_an_expiry_has_deleted_are_not_left_behind(
    kept: KeptTables, caplog: pytest.LogCaptureFixture
) -> None:
    table = kept(filled)
    table.delete("id = 2")
    expired = table.expire_snapshots(older_than=datetime.now(timezone.utc))
    assert expired.snapshot_ids
    done = table.erase_deleted_rows()
    assert kinds(done) == {"orphans-not-searched"}
    assert [record.message for record in caplog.records] == []


def test_what_cannot_be_deleted_is_told_and_done_by_the_next_run(
    kept: KeptTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = kept(filled)
    table.delete("id = 2 or id = 5")
    files = opened(table)
    files.holding()
    delete = TableOutput.delete

    def stubborn(self: TableOutput, location: str) -> None:
        if location.endswith(".parquet"):
            raise PermissionError(location)
        delete(self, location)

    with monkeypatch.context() as patch:
        patch.setattr(TableOutput, "delete", stubborn)
        done = table.erase_deleted_rows()
    assert len(done.failed) == 2
    assert [r.kind for r in done.remaining].count("not-deleted") == 2
    # What names these files is still there, so that they are found again.
    assert done.metadata_files == ()
    assert all(files.holding(*SECRETS[:3]).values())
    assert set(done.failed) <= set(table.erase_deleted_rows().files)
    check_erased(table, files, 1, 3, 4, 6)


def test_orphans_are_erased_if_asked(kept: KeptTables) -> None:
    table = kept(filled)
    table.delete("id = 2 or id = 5")
    orphan = folder_of(table) / "data" / "erase-me-name.parquet"
    orphan.write_bytes(b"PAR1")
    files = opened(table)
    assert kinds(table.erase_deleted_rows()) == {"orphans-not-searched"}
    assert files.holding(SECRETS[0])[SECRETS[0]] == {orphan.name}
    done = table.erase_deleted_rows(remove_orphans=True)
    assert done.orphans is not None
    assert done.orphans.young_files == 1
    assert kinds(done) == {"orphans"}
    with pytest.raises(ValueError, match="24 hours"):
        table.erase_deleted_rows(remove_orphans=True, orphans_older_than=datetime.now(timezone.utc))
    done = table.erase_deleted_rows(orphans_older_than=datetime.now(timezone.utc), **NOW)
    assert done.remaining == ()
    check_erased(table, files, 1, 3, 4, 6)


# -- refusals, other writers, interruptions


def test_what_is_refused(kept: KeptTables) -> None:
    table = kept(filled)
    table.delete("id = 2")
    before = table.metadata_location
    with pytest.raises(ValueError, match="no branch 'nobody'"):
        table.erase_deleted_rows(branch="nobody")
    with table.transaction() as transaction:
        transaction.set_properties({"gc.enabled": "false"})
    for dry_run in (True, False):
        with pytest.raises(ValidationException, match=r"gc\.enabled"):
            table.erase_deleted_rows(dry_run=dry_run)
    assert before in {entry.metadata_file for entry in table.metadata.metadata_log}
    assert len(table.snapshots()) == 3


def test_an_empty_table(catalog: EncryptedCatalog) -> None:
    table = create(catalog)
    assert kinds(table.erase_deleted_rows()) == {"orphans-not-searched"}
    table.append(rows(row(1)))
    table.delete("id > 0")
    table.erase_deleted_rows()
    assert ids(table) == []


def at_each(monkeypatch: Any, owner: Any, name: str, do: Callable[[], Any], after: bool) -> None:
    original = getattr(owner, name)

    def called(*arguments: Any, **named: Any) -> Any:
        if not after:
            monkeypatch.setattr(owner, name, original)
            do()
        result = original(*arguments, **named)
        if after:
            monkeypatch.setattr(owner, name, original)
            do()
        return result

    monkeypatch.setattr(owner, name, called)


# Of `make test`: what another writer does before each step.
@pytest.mark.slow_variants(r"True-.*")
@pytest.mark.parametrize(
    "step",
    ["rewrite_data_files", "_forget_removed_files", "commit_steps", "prune_keys"],
)
@pytest.mark.parametrize("after", [False, True])
def test_nothing_that_another_writer_does_meanwhile_is_lost(
    kept: KeptTables, monkeypatch: pytest.MonkeyPatch, step: str, after: bool
) -> None:
    table = kept(filled)
    table.delete("id = 2 or id = 5")
    files = opened(table)
    files.holding()

    def other() -> None:
        theirs = table.catalog.load_table("db.t")
        theirs.append(rows(row(9)))
        theirs.delete("id = 6")

    at_each(monkeypatch, erasing, step, other, after)
    done = table.erase_deleted_rows()
    table.refresh()
    assert ids(table) == [1, 3, 4, 9]
    assert verify_table(table, list_folders=False).ok
    if (step, after) != ("rewrite_data_files", False):
        assert "deleted-since" in kinds(done)
    table.erase_deleted_rows()
    check_erased(table, files, 1, 3, 4, 9)


def test_a_commit_that_is_tried_again_keeps_its_files(
    kept: KeptTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another writer has lost a race, and its metadata file is there. Its data files must not be
    taken for those of an expired snapshot, because its next try has them too."""
    from ags1.iceberg.commit.sql import SqlCommits

    table = kept(filled)
    table.delete("id = 2 or id = 5")
    at_each(monkeypatch, SqlCommits, "_swap", table.erase_deleted_rows, False)
    theirs = table.catalog.load_table("db.t")
    theirs.append(rows(row(9)))
    assert ids(theirs) == [1, 3, 4, 6, 9]
    assert verify_table(theirs).ok


def test_when_the_kms_goes_away_the_next_run_goes_on(
    kept: KeptTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = kept(filled)
    table.delete("id = 2 or id = 5")
    files = opened(table)
    files.holding()

    def down(*_: Any) -> Any:
        raise KmsUnavailableError("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(erasing, "find_expired_files", down)
        with pytest.raises(KmsUnavailableError):
            table.erase_deleted_rows()
    # The snapshots are expired, and nothing else than earlier metadata files names their files.
    assert len(table.snapshots()) == 1
    assert all(files.holding(*SECRETS[:3]).values())
    table.erase_deleted_rows()
    check_erased(table, files, 1, 3, 4, 6)

"""What ``check_table`` finds at each level, with and without the keys, and what fixes it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from exposing import rewrite_manifests_as_java_1_11
from iceberg_tables import (
    CORPUS_TABLES,
    JAVA_LOCATION,
    TABLES,
    memory_kms,
    open_fixture,
    rewritten,
)
from kept_tables import KeptTables
from pyiceberg.catalog import load_catalog as load_plain_catalog
from pyiceberg.catalog.noop import NoopCatalog
from table_maker import TableMaker

from ags1.errors import KmsAccessDeniedError
from ags1.iceberg import (
    EncryptedCatalog,
    EncryptedTable,
    TableCheck,
    check_table,
    open_table,
    verify_table,
)
from ags1.iceberg.operations.check import remedies
from ags1.iceberg.operations.check.findings import SEVERITIES, Finding, Remedy

pytestmark = pytest.mark.filterwarnings("ignore::ags1.kms.memory.KeysInPropertiesWarning")

DAY_MS = 24 * 60 * 60 * 1000
COLUMNS = [{"id": 1, "name": "id", "type": "long"}]


def rows(*numbers: int) -> pa.Table:
    return pa.table({"id": pa.array(numbers, pa.int64())})


def by_kind(health: TableCheck) -> dict[str, Finding]:
    return {finding.kind: finding for finding in health.findings}


def kinds(health: TableCheck) -> set[str]:
    """The kinds of what was found, but for that a test gives no hash of metadata.json."""
    return set(by_kind(health)) - {"metadata-not-pinned"}


def now_of(table: EncryptedTable) -> int:
    return int(table.version.json["last-updated-ms"])


def examined(table: EncryptedTable, **named: Any) -> TableCheck:
    """Examine a table as if its last commit were made just now: Java's tables become old."""
    return check_table(table, clock_ms=lambda: now_of(table), **named)


@pytest.fixture
def table(kept: KeptTables) -> EncryptedTable:
    made: EncryptedTable = kept(two_files)
    return made


def two_files(catalog: EncryptedCatalog) -> EncryptedTable:
    properties = {"encryption.key-id": "keyA"}
    made = catalog.create_table("db.t", rows().schema, properties=properties)
    assert isinstance(made, EncryptedTable)
    made.append(rows(1, 2, 3))
    made.append(rows(4))
    return made


# -- Java's tables


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("empty", set()),
        ("parquet_plain", set()),
        ("avro_part", {"missing-file"}),  # it has one of its files
        ("stats", {"plain-statistics"}),
        ("mor_dv", {"compaction", "deleted-rows"}),
        ("java_plain_manifest", {"exposed-keys", "deleted-rows"}),
    ],
)
def test_tables_of_java(name: str, expected: set[str]) -> None:
    folder, places = TABLES, {JAVA_LOCATION: str(TABLES)}
    if name == "java_plain_manifest":
        folder, places = CORPUS_TABLES, {f"{JAVA_LOCATION}/exposed": str(CORPUS_TABLES / name)}
    table = open_fixture(name, folder, location_map=places)
    health = examined(table, list_folders=False)
    assert kinds(health) == expected
    assert health.ok == (not expected - {"compaction", "deleted-rows"})


def test_the_files_of_a_branch_are_those_that_spark_counts() -> None:
    table = open_fixture("mor_dv")
    files = json.loads((TABLES / "read_by_spark" / "mor_dv" / "files.json").read_text())
    (branch,) = examined(table, list_folders=False).branches
    data = [file for file in files if file["content"] == 0]
    vectors = [file for file in files if file["content"] == 1]
    assert branch.data_files == len(data)
    assert branch.deletion_vectors == len(vectors)
    assert branch.size == sum(file["file_size_in_bytes"] for file in data)
    current = table.metadata.current_snapshot()
    assert current is not None
    assert current.summary is not None
    assert str(branch.deleted_rows) == current.summary["total-position-deletes"]


# -- without the keys


def test_what_needs_no_key_is_the_same_without_one(table: EncryptedTable) -> None:
    table.delete("id = 2")
    with table.transaction() as transaction:
        transaction.set_properties({"history.expire.max-snapshot-age-ms": "0"})
    later = now_of(table) + 700 * DAY_MS
    health = check_table(table, clock_ms=lambda: later)
    blind = check_table(table, "quick", clock_ms=lambda: later)
    assert kinds(blind) == {"kek-near-expiry", "old-snapshots"}
    assert kinds(health) == {*kinds(blind), "deleted-rows", "compaction"}
    assert {*blind.findings} < {*health.findings}
    assert health.left_out == blind.left_out == ()
    assert blind.keks == health.keks
    assert blind.branches == ()


def test_a_kms_that_refuses_is_told(table: EncryptedTable, monkeypatch: Any) -> None:
    def refuse(*_: object) -> bytes:
        raise KmsAccessDeniedError("not you")

    kms = memory_kms()
    monkeypatch.setattr(kms, "unwrap_key", refuse)
    again = open_table(table.metadata_location, kms)
    assert isinstance(again, EncryptedTable)
    health = check_table(again)
    assert [left.reason for left in health.left_out] == ["not you"]
    assert kinds(health) == set()
    assert check_table(again, "quick").left_out == ()


def test_each_level_finds_what_it_looks_at(table: EncryptedTable) -> None:
    """And nothing is written."""
    table.delete("id = 2")
    folder = Path(table.location().removeprefix("file://"))
    due = {"deleted-rows", "compaction"}

    def found() -> list[set[str]]:
        before = state(folder)
        loaded = table.catalog.load_table("db.t")
        levels = [kinds(check_table(loaded, level)) for level in ("quick", "default", "full")]
        assert state(folder) == before
        return levels

    assert found() == [set(), due, due]
    paths = [path for path in (folder / "data").rglob("*") if path.is_file()]
    assert {path.suffix for path in paths} == {".parquet", ".puffin"}
    for path in paths:
        whole = path.read_bytes()
        # The same length, then another one.
        path.write_bytes(whole[:-40] + bytes([whole[-40] ^ 1]) + whole[-39:])
        assert found() == [set(), due, due | {"authentication"}]
        path.write_bytes(whole[:-1])
        assert found() == [set(), due | {"truncated"}, due | {"truncated"}]
        path.write_bytes(whole + b"x")
        assert found() == [set(), due | {"format"}, due | {"format"}]
        path.unlink()
        assert found() == [set(), due | {"missing-file"}, due | {"missing-file"}]
        path.write_bytes(whole)
    (folder / "metadata" / "notes.csv").write_text("id,v\n1,a\n")
    assert found() == [set(), *[due | {"stray-plain-file"}] * 2]
    with pytest.raises(ValueError, match="deep"):
        check_table(table, "deep")  # type: ignore[arg-type]


def test_what_verify_finds_is_in_a_full_check(table: EncryptedTable) -> None:
    table.delete("id = 2")
    verified, full = verify_table(table), table.check("full")
    assert verified.finding_counts.items() <= full.finding_counts.items()
    assert verified.verified_size == full.verified_size > table.check().verified_size
    assert (verified.findings, verified.branches) == ((), ())


def state(folder: Path) -> dict[Path, tuple[int, int]]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in files}


def test_no_key_is_in_the_result(table: EncryptedTable) -> None:
    rewrite_manifests_as_java_1_11(table)
    health = check_table(table)
    said = repr(health) + json.dumps(health.to_dict())
    for entry in table.version.json["encryption-keys"]:
        assert entry["encrypted-key-metadata"] not in said
    assert "0123456789012345" not in said


# -- findings of metadata.json


@pytest.mark.parametrize(
    ("days", "expected"),
    [
        (0, None),
        (600, None),
        (700, "kek-near-expiry"),
        (730, "kek-expired"),
        (-10, "kek-timestamp"),
    ],
)
def test_the_age_of_a_kek(days: int, expected: str | None) -> None:
    table = open_fixture("parquet_plain")
    (kek,) = table.files.keys.key_encryption_keys
    made_ms = int(kek.timestamp or "")
    health = check_table(table, "quick", clock_ms=lambda: made_ms + days * DAY_MS)
    found = by_kind(health)
    assert [kind for kind in found if kind.startswith("kek-")] == ([expected] if expected else [])
    if expected is not None:
        assert found[expected].remedy == Remedy("rotate")
    assert health.keks[0].created_ms == made_ms


def with_property(name: str, value: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda m: m | {"properties": m["properties"] | {name: value}}


def without_key(metadata: dict[str, Any]) -> None:
    del metadata["snapshots"][0]["key-id"]


def without_keys(metadata: dict[str, Any]) -> None:
    needed = metadata["snapshots"][0]["key-id"]
    metadata["encryption-keys"] = [
        entry for entry in metadata["encryption-keys"] if entry["key-id"] != needed
    ]


def with_partitions(metadata: dict[str, Any]) -> None:
    metadata["snapshots"][0]["summary"]["partitions.id=1"] = "added-records=1"


@pytest.mark.parametrize(
    ("spoil", "kind"),
    [
        (with_property("gc.enabled", "false"), "gc-disabled"),
        (with_property("history.expire.min-snapshots-to-keep", "x"), "impossible-setting"),
        (with_property("write.metadata.previous-versions-max", "x"), "impossible-setting"),
        (without_key, "snapshot-without-key"),
        (without_keys, "missing-snapshot-key"),
        (with_partitions, "partition-values"),
    ],
)
def test_findings_that_need_no_key(
    table: EncryptedTable, spoil: Callable[[dict[str, Any]], Any], kind: str
) -> None:
    assert check_table(table).findings == ()
    spoiled = rewritten(table, spoil)
    # The listing of the metadata folder needs no key either, but is not quick.
    level = "default" if "previous-versions" in repr(spoiled.properties) else "quick"
    finding = by_kind(check_table(spoiled, level))[kind]
    assert finding.severity == SEVERITIES[kind]
    assert kind in kinds(check_table(spoiled))


def test_a_table_that_shares_its_files_is_not_to_be_erased(table: EncryptedTable) -> None:
    table.delete("id = 2")
    shared = rewritten(table, with_property("gc.enabled", "false"))
    assert by_kind(check_table(shared))["deleted-rows"].remedy is None


def test_a_catalog_that_loses_keys_is_told(table: EncryptedTable) -> None:
    class Other(NoopCatalog):
        """A catalog of somebody else's."""

    table.catalog = EncryptedCatalog(Other("other"), memory_kms())
    finding = by_kind(check_table(table))["catalog-loses-keys"]
    assert "Other" in finding.message


# -- findings of the manifests


def test_dangling_deletes(catalog: EncryptedCatalog, tmp_path: Path) -> None:
    maker = TableMaker(tmp_path / "made", COLUMNS, memory_kms())
    maker.commit(maker.add_parquet([{"id": i} for i in range(10)]))
    maker.commit(maker.add_equality_deletes([{"id": 2}], [1]))
    table = catalog.register_table("db.made", maker.write())
    assert isinstance(table, EncryptedTable)
    health = check_table(table)
    assert "dangling-deletes" not in kinds(health)
    (branch,) = health.branches
    assert (branch.equality_delete_files, branch.position_delete_files) == (1, 0)
    table.rewrite_data_files(rewrite_all=True)
    finding = by_kind(check_table(table))["dangling-deletes"]
    assert finding.remedy == Remedy("compact", ("--remove-dangling-deletes",))
    table.rewrite_data_files(remove_dangling_deletes=True)
    assert "dangling-deletes" not in kinds(check_table(table))


def test_a_snapshot_that_a_tag_has_names_the_tag(table: EncryptedTable) -> None:
    rewrite_manifests_as_java_1_11(table)
    head = table.metadata.current_snapshot_id
    assert head is not None
    table.manage_snapshots().create_tag(head, "keep").commit()
    table.rekey(exposed=True)
    finding = by_kind(check_table(table))["exposed-keys"]
    assert finding.remedy is None
    assert "keep" in finding.message
    table.manage_snapshots().remove_tag("keep").commit()
    finding = by_kind(check_table(table))["exposed-keys"]
    assert finding.remedy == Remedy("expire", ("--snapshot", str(head)))


def test_an_unencrypted_file_that_only_a_tag_has(table: EncryptedTable, tmp_path: Path) -> None:
    path = tmp_path / "plain.parquet"
    pq.write_table(rows(7), path)
    table.add_files([f"file://{path}"], allow_plaintext=True)
    head = table.metadata.current_snapshot_id
    assert head is not None
    table.manage_snapshots().create_tag(head, "keep").commit()
    table.rekey(select=lambda file: not file.is_encrypted)
    finding = by_kind(check_table(table))["plain-data-file"]
    assert (finding.file, finding.snapshot_ids) == (f"file://{path}", (head,))
    assert "keep" in finding.message
    assert finding.remedy is None


def test_rows_that_an_append_did_not_delete_are_not_told(table: EncryptedTable) -> None:
    """A compaction of small files replaces files, but hides no row."""
    for number in range(5, 9):
        table.append(rows(number))
    table.rewrite_data_files()
    assert kinds(check_table(table)) == set()
    table.overwrite(rows(9), "id = 8")
    finding = by_kind(check_table(table))["deleted-rows"]
    assert finding.remedy == Remedy("erase")


def test_a_manifest_that_cannot_be_read_is_told_and_the_rest_is_done(
    table: EncryptedTable,
) -> None:
    head = table.metadata.current_snapshot()
    assert head is not None
    manifest = head.manifests(table.io)[0].manifest_path
    path = Path(manifest.removeprefix("file://"))
    path.write_bytes(path.read_bytes()[:-1] + b"\x00\x00")
    loaded = table.catalog.load_table("db.t")
    health = check_table(loaded)
    assert not health.ok
    checks = [left.checks for left in health.left_out]
    assert checks == ["the files of the branch 'main'"]
    assert "orphans-not-searched" in kinds(health)


def test_an_unencrypted_table_is_told(tmp_path: Path) -> None:
    place = {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"file://{tmp_path}"}
    plain = load_plain_catalog("plain", **place)
    plain.create_namespace("db")
    made = plain.create_table("db.t", rows().schema)
    made.append(rows(1))
    health = check_table(made)
    (finding,) = health.findings
    assert (finding.kind, finding.count) == ("unencrypted-table", 1)
    assert finding.remedy == Remedy("migrate")
    assert not health.ok


def test_many_snapshots_are_expired_by_age(
    table: EncryptedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remedies, "_MAX_NAMED", 1)
    metadata = table.version.json
    ids = {s["snapshot-id"] for s in metadata["snapshots"]}
    (named,) = ids - {metadata["current-snapshot-id"]}
    expiring = remedies.expiring
    assert expiring(metadata, ids) == Remedy("expire", ("--snapshot", str(named)))
    arguments = ("--older-than", "0s", "--retain-last", "1")
    assert expiring(metadata | {"refs": {}}, ids) == Remedy("expire", arguments)

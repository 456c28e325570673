"""Keys that nothing needs are removed by commits and expiries, and those that are needed stay.

Which keys a table needs is found here by itself: those of the snapshots that are left, and the KEKs
that wrap them. The REST server is a stand-in, which applies updates; Spark goes on after a pruning
in ``interop``.
"""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from iceberg_tables import KMS_PROPERTIES, rewritten
from pyiceberg.exceptions import ValidationException
from rest_catalog import Rest

from ags1 import KeyMetadata
from ags1.iceberg import EncryptedCatalog, EncryptedTable, load_catalog, verify_table
from ags1.iceberg.commit import updates
from ags1.iceberg.operations.check.findings import Remedy
from ags1.iceberg.spec.table_keys import PRUNE_ON_COMMIT
from ags1.keys.envelope import EncryptedKey

pytest.importorskip("sqlalchemy")
pytestmark = pytest.mark.filterwarnings("ignore::ags1.kms.memory.KeysInPropertiesWarning")

KEY = {"encryption.key-id": "keyA", "commit.retry.min-wait-ms": "1"}
PRUNING = KEY | {PRUNE_ON_COMMIT: "true"}
SCHEMA = pa.schema([("id", pa.int64())])
FUTURE = datetime(2100, 1, 1, tzinfo=timezone.utc)


@contextmanager
def rest_server(folder: Path) -> Iterator[Rest]:
    with Rest(folder) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(params=["sql", "rest"])
def catalog(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EncryptedCatalog]:
    if request.param == "sql":
        places = {"uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"file://{tmp_path}/w"}
        with load_catalog("sql", type="sql", **places, **KMS_PROPERTIES) as made:
            made.create_namespace("db")
            yield made
        return
    with rest_server(tmp_path) as server:
        uri = f"http://127.0.0.1:{server.server_address[1]}"
        with load_catalog("rest", type="rest", uri=uri, **KMS_PROPERTIES) as made:
            yield made


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64())})


def make(catalog: EncryptedCatalog, properties: dict[str, str] = PRUNING) -> EncryptedTable:
    table = catalog.create_table("db.t", SCHEMA, properties=properties)
    with table.transaction() as transaction:
        for number in range(4):
            transaction.append(rows(number))
    return again(table)


def again(table: EncryptedTable) -> EncryptedTable:
    found = table.catalog.load_table(table.name())
    assert isinstance(found, EncryptedTable)
    return found


def key_ids(table: EncryptedTable) -> set[str]:
    return {key["key-id"] for key in again(table).version.json["encryption-keys"]}


def needed(table: EncryptedTable) -> set[str]:
    metadata = again(table).version.json
    by = {key["key-id"]: key["encrypted-by-id"] for key in metadata["encryption-keys"]}
    ids = {snapshot["key-id"] for snapshot in metadata["snapshots"]}
    return ids | {by[key_id] for key_id in ids}


def strew(table: EncryptedTable, count: int) -> None:
    """Give the table keys that nothing needs, as Java's expiry leaves them."""
    manager = table.view().manager
    before = len(manager.encryption_keys)
    for _ in range(count):
        manager.add_manifest_list_key(KeyMetadata.generate(16).with_file_length(1000))
    with table.transaction() as transaction:
        transaction.stage_updates(map(adding, manager.encryption_keys[before:]))


def adding(key: EncryptedKey) -> dict[str, Any]:
    return {"action": "add-encryption-key", "encryption-key": key.to_dict()}


def check(table: EncryptedTable, *ids: int) -> None:
    """The table has these rows, every snapshot opens, and no key is there that is not needed."""
    table = again(table)
    assert sorted(table.scan().to_arrow()["id"].to_pylist()) == sorted(ids)
    for snapshot in table.snapshots():
        table.scan(snapshot_id=snapshot.snapshot_id).to_arrow()
    report = verify_table(table)
    assert report.ok, report.findings
    assert "orphan-key" not in report.finding_counts
    assert key_ids(table) == needed(table)


def expire(table: EncryptedTable, **options: Any) -> Any:
    return table.expire_snapshots(FUTURE, **options)


# -- with every commit


@pytest.mark.slow_variants(r"rest")
def test_each_commit_removes_what_nothing_needs(catalog: EncryptedCatalog) -> None:
    table = make(catalog)
    check(table, 0, 1, 2, 3)
    assert len(key_ids(table)) == 5
    done = expire(table)
    # One commit removes the snapshots and their keys.
    assert len(done.snapshot_ids) == 3
    assert len(done.key_ids) == 3
    check(table, 0, 1, 2, 3)
    for change in (
        lambda: table.append(rows(4)),
        lambda: table.delete("id = 0"),
        lambda: table.upsert(rows(3, 5), ["id"]),
        lambda: table.transaction().set_properties(a="b").commit_transaction(),
        table.rotate_keys,
        table.rewrap_keys,
        lambda: table.rekey("id = 1"),
        lambda: table.maintenance.expire_snapshots().older_than(FUTURE).commit(),
    ):
        change()
        check(table, *table.scan().to_arrow()["id"].to_pylist())
    check(table, 1, 2, 3, 4, 5)


@pytest.mark.slow_variants(r"sql")
def test_without_the_property_keys_stay(catalog: EncryptedCatalog) -> None:
    table = make(catalog, KEY)
    done = expire(table)
    assert done.key_ids == ()
    before = len(key_ids(table))
    assert before == 5
    for text in ("", "false", "False", "0"):
        with table.transaction() as transaction:
            transaction.set_properties({PRUNE_ON_COMMIT: text})
            transaction.append(rows(4))
        before += 1
        assert len(key_ids(table)) == before, text
    table.transaction().set_properties({PRUNE_ON_COMMIT: "TRUE"}).commit_transaction()
    check(table, 0, 1, 2, 3, 4, 4, 4, 4)


def test_a_property_that_is_neither_is_refused(catalog: EncryptedCatalog) -> None:
    with pytest.raises(ValueError, match=PRUNE_ON_COMMIT):
        make(catalog, KEY | {PRUNE_ON_COMMIT: "perhaps"})
    with pytest.raises(ValueError, match="prune-on-comit"):
        make(catalog, KEY | {"encryption.keys.prune-on-comit": "true"})
    table = make(catalog)
    with pytest.raises(ValueError, match=PRUNE_ON_COMMIT):
        table.transaction().set_properties({PRUNE_ON_COMMIT: "perhaps"}).commit_transaction()
    table.append(rows(4))
    check(table, 0, 1, 2, 3, 4)


@pytest.mark.slow_variants(r"rest")
def test_hundreds_of_keys_as_java_leaves_them(catalog: EncryptedCatalog) -> None:
    table = make(catalog, KEY)
    strew(table, 500)
    table = again(table)
    size = len(json.dumps(table.version.json, separators=(",", ":")))
    [finding] = [f for f in verify_table(table).findings if f.kind == "orphan-key"]
    assert "500 of 505 keys" in finding.message
    assert finding.remedy == Remedy("prune-keys")
    numbers = re.search(r"They are (\d+) of the (\d+) bytes", finding.message)
    assert numbers is not None
    saved, total = map(int, numbers.groups())
    assert total == pytest.approx(size, rel=0.02)
    with table.transaction() as transaction:
        transaction.set_properties({PRUNE_ON_COMMIT: "true"})
        transaction.append(rows(4))
    check(table, 0, 1, 2, 3, 4)
    after = len(json.dumps(again(table).version.json, separators=(",", ":")))
    assert size - after == pytest.approx(saved, rel=0.02)


def test_a_damaged_table_can_be_committed_to(
    catalog: EncryptedCatalog, caplog: pytest.LogCaptureFixture
) -> None:
    if catalog.inner.properties["type"] == "rest":
        pytest.skip("the server has the metadata")
    table = make(catalog)
    lost = table.snapshots()[0].snapshot_id

    def lose_a_key(metadata: dict[str, Any]) -> None:
        key_id = metadata["snapshots"][0]["key-id"]
        keys = metadata["encryption-keys"]
        metadata["encryption-keys"] = [key for key in keys if key["key-id"] != key_id]

    table = rewritten(table, lose_a_key)
    with caplog.at_level(logging.WARNING, "ags1"):
        table.append(rows(4))
    assert "no key is removed" in caplog.text
    assert table.scan().count() == 5
    # The expiry of the damaged snapshot is the repair.
    table.expire_snapshots(FUTURE, 100, [lost], delete_files=False)
    check(table, 0, 1, 2, 3, 4)


# -- with an expiry


def test_an_expiry_prunes_in_its_own_commit(catalog: EncryptedCatalog) -> None:
    table = make(catalog, KEY)
    would = expire(table, prune_keys=True, dry_run=True)
    assert len(key_ids(table)) == 5
    versions = len(table.metadata.metadata_log)
    done = expire(table, prune_keys=True)
    assert would.key_ids == done.key_ids
    assert len(done.key_ids) == 3
    assert would.files == done.files
    assert not done.left_behind
    if catalog.inner.properties["type"] == "sql":
        assert len(again(table).metadata.metadata_log) == versions + 1
    check(table, 0, 1, 2, 3)
    # There is nothing to expire any more, and there are keys to prune.
    strew(table, 2)
    assert len(expire(table, prune_keys=True).key_ids) == 2
    check(table, 0, 1, 2, 3)


# -- writers who meet


def meet(
    catalog: EncryptedCatalog,
    monkeypatch: pytest.MonkeyPatch,
    first: Callable[[EncryptedTable], object],
    second: Callable[[EncryptedTable], object],
) -> EncryptedTable:
    """Have the second change commit when the first one has built its commit and not sent it."""
    table = make(catalog)
    strew(table, 3)  # pruned by whoever comes first
    table, other = again(table), again(table)
    commits = catalog.commits()
    commit = commits.commit
    waiting = [second]

    def meeting(*arguments: Any, **options: Any) -> Any:
        if waiting:
            waiting.pop()(other)
        return commit(*arguments, **options)

    monkeypatch.setattr(commits, "commit", meeting)
    first(table)
    assert not waiting
    return table


def on_a_branch(table: EncryptedTable) -> None:
    table.append(rows(11), branch="other")


CHANGES: list[tuple[Callable[[EncryptedTable], object], list[int]]] = [
    (lambda t: t.append(rows(10)), [10]),
    (on_a_branch, []),
    (lambda t: t.rotate_keys(), []),
    (lambda t: expire(t, delete_files=False), []),
]


# Of `make test`: each change first and second, over REST and over SQL.
@pytest.mark.slow_variants(
    r"(rest-[0-3]-[01]|sql-[0-3]-[23])", r"(rest-(0-3|1-2|2-3|3-2)|sql-(0-1|1-0|2-1|3-0))"
)
@pytest.mark.parametrize("second", range(len(CHANGES)))
@pytest.mark.parametrize("first", range(len(CHANGES)))
def test_two_writers_who_both_prune(
    catalog: EncryptedCatalog, monkeypatch: pytest.MonkeyPatch, first: int, second: int
) -> None:
    (one, added), (other, added_too) = CHANGES[first], CHANGES[second]
    table = again(meet(catalog, monkeypatch, one, other))
    # Over REST, a rotation may add a key again whose snapshot expires meanwhile.
    table.append(rows(30))
    check(table, 0, 1, 2, 3, 30, *added, *added_too)


def test_a_conflict_stays_a_conflict(
    catalog: EncryptedCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValidationException):
        meet(
            catalog,
            monkeypatch,
            lambda t: t.overwrite(rows(20), "id = 1"),
            lambda t: t.delete("id = 1"),
        )
    check(catalog.load_table("db.t"), 0, 2, 3)


def test_a_key_that_a_writer_without_the_rule_needs_is_added_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That writer wraps under a KEK that the commit removes, and nothing of the base moves. The
    server does not look at what keys are for."""
    monkeypatch.setattr(updates._Table, "_check_keys", lambda self: None)
    with rest_server(tmp_path) as server:
        uri = f"http://127.0.0.1:{server.server_address[1]}"
        with load_catalog("rest", type="rest", uri=uri, **KMS_PROPERTIES) as catalog:
            table = make(catalog, KEY)
            manager = table.view().manager
            [old] = manager.key_encryption_keys
            km = KeyMetadata.generate(16).with_file_length(1000)
            key_id = manager.add_manifest_list_key(km)
            table.rotate_keys()
            # Nothing needs the old KEK, which comes back as Java brings it back.
            with table.transaction() as transaction:
                transaction.stage_updates([adding(old)])
            metadata = table.version.json
            snapshot = metadata["snapshots"][-1] | {
                "snapshot-id": 99,
                "key-id": key_id,
                "sequence-number": metadata["last-sequence-number"] + 1,
                "first-row-id": metadata["next-row-id"],
            }
            unseen = [
                adding(manager.encryption_keys[-1]),
                {"action": "add-snapshot", "snapshot": snapshot},
            ]
            answers = []
            body = {"requirements": [], "updates": unseen}
            server.on_commit = lambda: answers.append(server.commit("t", body)[0])
            removed = table.prune_keys()
            assert answers == [200]
            assert old.key_id in removed
            assert again(table).view().manager.manifest_list_key(key_id) == km


def test_a_pruning_commit_requires_that_no_branch_has_moved(catalog: EncryptedCatalog) -> None:
    """Also if its own steps move one without a requirement, as ``commit_table`` lets callers."""
    table = make(catalog, KEY)
    on_a_branch(table)
    strew(table, 1)
    head = table.snapshots()[0].snapshot_id
    moved = {"action": "set-snapshot-ref", "ref-name": "other", "type": "branch"}
    with table.transaction() as transaction:
        transaction.stage_updates([moved | {"snapshot-id": head}])
        transaction.set_properties({PRUNE_ON_COMMIT: "true"})
    found = again(table).snapshot_by_name("other")
    assert found is not None
    assert found.snapshot_id == head
    assert key_ids(table) == needed(table)

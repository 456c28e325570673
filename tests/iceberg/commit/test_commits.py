"""Commits to catalogs: one winner per base, files of losers gone, lost answers asked about.

SQL runs on SQLite, and PyIceberg's own catalog reads what was committed. Hive's metastore and the
REST server are stand-ins here, which fail as they are told to; the real ones are in ``interop``.
"""

from __future__ import annotations

import base64
import copy
import hashlib
import json
import random
import sqlite3
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from committing import (
    KEK,
    KEY,
    SCHEMA,
    Update,
    adding,
    appending,
    at,
    check_eight_writers,
    create,
    files_of,
    ids,
    key_entry,
    setting,
)
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.exceptions import (
    AuthorizationExpiredError,
    CommitFailedException,
    CommitStateUnknownException,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField, TimestampNanoType
from rest_catalog import Rest
from unknown_fields import strewn, unknown_fields

from ags1 import MetadataIntegrityError, NotEncryptedError
from ags1.iceberg.commit.base import Base
from ags1.iceberg.commit.commits import Commits
from ags1.iceberg.commit.connections import connection_to
from ags1.iceberg.storage.trust import Trust
from ags1.keys.manager import now_ms

pytest.importorskip("sqlalchemy")

# -- SQL


def sql_catalog(folder: Path, *, counts_rows: bool = True, **properties: str) -> Catalog:
    catalog = load_catalog(
        "sql",
        type="sql",
        uri=f"sqlite:///{folder}/catalog.db",
        warehouse=f"file://{folder}/warehouse",
        **properties,
    )
    catalog.create_namespace_if_not_exists("db")
    catalog.engine.dialect.supports_sane_rowcount = counts_rows  # type: ignore[attr-defined]
    return catalog


@pytest.fixture
def commits(request: pytest.FixtureRequest, tmp_path: Path) -> Commits:
    return connection_to(sql_catalog(tmp_path, counts_rows=getattr(request, "param", True)))


# Of some databases it is not known whether an update has found its row.
counted_or_not = pytest.mark.parametrize("commits", [True, False], indirect=True)


def test_a_table_is_created_and_committed_to(commits: Commits) -> None:
    base, output = create(commits)
    after = commits.commit(base, setting(colour="red"), [], output)
    assert after == commits.load("db.t", Trust("keyA"))
    assert after.metadata["metadata-log"] == [
        {"timestamp-ms": base.metadata["last-updated-ms"], "metadata-file": base.location}
    ]
    assert output.written == [base.location, after.location]
    # PyIceberg's own catalog finds it.
    table = commits.catalog.load_table("db.t")
    assert table.metadata_location == after.location
    assert table.properties["colour"] == "red"
    assert table.schema().find_field("id").required


def test_the_row_is_pyiceberg_s(commits: Commits, tmp_path: Path) -> None:
    base, output = create(commits)
    after = commits.commit(base, setting(a="1"), [], output)
    with sqlite3.connect(tmp_path / "catalog.db") as database:
        rows = database.execute("SELECT * FROM iceberg_tables").fetchall()
    assert rows == [("sql", "db", "t", after.location, base.location, "TABLE")]


@counted_or_not
def test_the_second_commit_upon_one_base_fails_and_leaves_nothing(commits: Commits) -> None:
    base, output = create(commits)
    first = commits.commit(base, setting(a="1"), [], output)
    with pytest.raises(CommitFailedException, match="another process"):
        commits.commit(base, setting(a="2"), [], output)
    assert commits.load("db.t", Trust()).location == first.location
    assert len(files_of(base.metadata["location"])) == 2
    assert output.written == [base.location, first.location]


def test_a_requirement_that_does_not_hold_fails_before_anything_is_written(
    commits: Commits,
) -> None:
    base, output = create(commits)
    required = [{"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 7}]
    with pytest.raises(CommitFailedException):
        commits.commit(base, setting(a="1"), required, output)
    assert output.written == [base.location]


def test_no_updates_are_no_commit(commits: Commits) -> None:
    base, output = create(commits)
    assert commits.commit(base, [], at(base), output) is base
    assert output.written == [base.location]


def test_a_table_s_name_is_taken_once(commits: Commits) -> None:
    base, output = create(commits)
    with pytest.raises(TableAlreadyExistsError):
        create(commits)
    assert files_of(base.metadata["location"]) == files_of(base.location.rpartition("/")[0])
    assert len(files_of(base.metadata["location"])) == 1
    with pytest.raises(NoSuchNamespaceError):
        create(commits, "nowhere.t")
    with pytest.raises(NoSuchTableError):
        commits.load("db.other", Trust())
    commits.catalog.drop_table("db.t")
    with pytest.raises(CommitFailedException):
        commits.commit(base, setting(a="1"), [], output)


# Of `make test`: the databases that say how many rows were changed.
@pytest.mark.slow_variants("False")
@counted_or_not
def test_eight_processes_append_at_once(commits: Commits, tmp_path: Path) -> None:
    counts = commits.catalog.engine.dialect.supports_sane_rowcount  # type: ignore[attr-defined]
    check_eight_writers(commits, lambda: sql_catalog(tmp_path, counts_rows=counts))


class Answers:
    """Lets the commits of SQL connections end otherwise than they should: ``before`` and ``after``
    the database has committed something is called, which may raise."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from sqlalchemy import Connection

        self.before: Callable[[], None] | None = None
        self.after: Callable[[], None] | None = None
        self.may_ask = True
        really_commit, really_ask = Connection.commit, Connection.scalar

        def commit(connection: Connection) -> None:
            before, after, self.before, self.after = self.before, self.after, None, None
            if before is not None:
                before()
            really_commit(connection)
            if after is not None:
                after()

        def scalar(connection: Connection, *arguments: Any, **options: Any) -> Any:
            if not self.may_ask:
                raise ConnectionError("no database")
            return really_ask(connection, *arguments, **options)

        monkeypatch.setattr(Connection, "commit", commit)
        monkeypatch.setattr(Connection, "scalar", scalar)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Answers:
    return Answers(monkeypatch)


def lost() -> None:
    raise ConnectionError("the answer is lost")


def interrupted() -> None:
    raise KeyboardInterrupt


def test_a_commit_that_was_made_though_its_answer_is_lost_is_a_success(
    commits: Commits, answers: Answers
) -> None:
    base, output = create(commits)
    answers.after = lost
    after = commits.commit(base, setting(a="1"), [], output)
    assert commits.load("db.t", Trust("keyA")) == after


def test_so_it_is_when_others_committed_since(commits: Commits, answers: Answers) -> None:
    base, output = create(commits)

    def lost_behind_another() -> None:
        mine = commits.load("db.t", Trust())
        commits.commit(mine, setting(b="2"), [], output)
        lost()

    answers.after = lost_behind_another
    after = commits.commit(base, setting(a="1"), [], output)
    assert "b" not in after.metadata["properties"]
    final = commits.load("db.t", Trust()).metadata
    assert (final["properties"]["a"], final["properties"]["b"]) == ("1", "2")
    assert final["metadata-log"][-1]["metadata-file"] == after.location


def test_a_commit_that_was_certainly_not_made_fails(commits: Commits, answers: Answers) -> None:
    base, output = create(commits)
    answers.before = lost
    with pytest.raises(CommitFailedException):
        commits.commit(base, setting(a="1"), [], output)
    assert output.written == [base.location]
    assert len(files_of(base.metadata["location"])) == 1

    def lost_before_another() -> None:
        # Rolled back, and somebody else was first.
        commits.commit(base, setting(b="2"), [], output)
        lost()

    answers.before = None
    original = commits._swap  # type: ignore[attr-defined]

    def swap(base: Base, staged: Any, sent: Any) -> None:
        commits._swap = original  # type: ignore[attr-defined]
        sent.set()
        lost_before_another()

    commits._swap = swap  # type: ignore[attr-defined]
    with pytest.raises(CommitFailedException):
        commits.commit(base, setting(a="1"), [], output)
    assert len(files_of(base.metadata["location"])) == 2


def test_where_the_log_does_not_reach_back_the_outcome_is_unknown(
    commits: Commits, answers: Answers
) -> None:
    base, output = create(commits, properties={**KEY, "write.metadata.previous-versions-max": "1"})

    def lost_behind_two_others() -> None:
        for name in "bc":
            current = commits.load("db.t", Trust())
            commits.commit(current, setting(**{name: "2"}), [], output)
        lost()

    answers.after = lost_behind_two_others
    with pytest.raises(CommitStateUnknownException):
        commits.commit(base, setting(a="1"), [], output)
    assert len(files_of(base.metadata["location"])) == 4


def test_an_unknown_outcome_leaves_the_file(commits: Commits, answers: Answers) -> None:
    base, output = create(commits)

    def lost_for_good() -> None:
        answers.may_ask = False
        lost()

    for name in ("before", "after"):
        setattr(answers, name, lost_for_good)
        base = commits.load("db.t", Trust("keyA"))
        with pytest.raises(CommitStateUnknownException):
            commits.commit(base, setting(a="1"), [], output)
        answers.may_ask = True
    assert len(output.written) == len(files_of(base.metadata["location"])) == 3


def test_ctrl_c_says_whether_the_commit_was_made(commits: Commits, answers: Answers) -> None:
    base, output = create(commits)
    answers.before = interrupted
    with pytest.raises(KeyboardInterrupt):
        commits.commit(base, setting(a="1"), [], output)
    assert output.written == [base.location]
    answers.after = interrupted
    with pytest.raises(CommitStateUnknownException, match="was made") as raised:
        commits.commit(base, setting(a="1"), [], output)
    assert isinstance(raised.value.__cause__, KeyboardInterrupt)
    assert commits.load("db.t", Trust()).location == output.written[-1]


def test_a_creation_whose_answer_is_lost(commits: Commits, answers: Answers) -> None:
    answers.after = lost
    base, _ = create(commits)
    assert commits.load("db.t", Trust("keyA")) == base
    answers.before = lost
    with pytest.raises(CommitFailedException):
        create(commits, "db.u")
    with pytest.raises(NoSuchTableError):
        commits.load("db.u", Trust())


def test_a_locked_database_is_a_conflict(tmp_path: Path) -> None:
    catalog = load_catalog(
        "sql",
        type="sql",
        uri=f"sqlite:///{tmp_path}/catalog.db?timeout=0.05",
        warehouse=f"file://{tmp_path}/warehouse",
    )
    catalog.create_namespace("db")
    commits = connection_to(catalog)
    base, output = create(commits)
    holder = sqlite3.connect(tmp_path / "catalog.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(CommitFailedException):
        commits.commit(base, setting(a="1"), [], output)
    assert output.written == [base.location]
    holder.execute("ROLLBACK")
    holder.close()
    commits.commit(base, setting(a="1"), [], output)


def test_a_database_that_cannot_be_reached_is_a_conflict(commits: Commits, tmp_path: Path) -> None:
    base, output = create(commits)
    database = tmp_path / "catalog.db"
    commits.catalog.engine.dispose()  # type: ignore[attr-defined]  # the next commit connects anew
    database.rename(tmp_path / "away")
    database.mkdir()
    with pytest.raises(CommitFailedException, match="unable to open"):
        commits.commit(base, setting(a="1"), [], output)
    assert output.written == [base.location]
    database.rmdir()
    (tmp_path / "away").rename(database)
    commits.commit(base, setting(a="1"), [], output)


# -- What no commit may do


def test_a_commit_does_not_take_the_encryption_away(commits: Commits) -> None:
    base, output = create(commits)
    for update in (
        {"action": "remove-properties", "removals": ["encryption.key-id"]},
        setting(**{"encryption.key-id": ""})[0],
    ):
        with pytest.raises(NotEncryptedError):
            commits.commit(base, [update], [], output)
    without_key_id = appending(base, 1)
    del without_key_id[2]["snapshot"]["key-id"]
    _, *without_kek = appending(base, 1)
    for updates in (without_key_id, without_kek, without_kek[1:]):
        with pytest.raises(ValueError, match="snapshot 1"):
            commits.commit(base, updates, [], output)
    assert output.written == [base.location]


def test_a_commit_does_not_lose_a_key_that_a_snapshot_needs(commits: Commits) -> None:
    base, output = create(commits)
    base = commits.commit(base, appending(base, 1), at(base), output)
    for key_id in ("key-1", "a2Vr"):
        remove = [{"action": "remove-encryption-key", "key-id": key_id}]
        with pytest.raises(ValueError, match="still needs the key"):
            commits.commit(base, remove, [], output)
    # With another in its place it is a rotation.
    other = {**KEK, "key-id": "b3RoZXI="}
    rotation = [
        {"action": "remove-encryption-key", "key-id": "key-1"},
        {"action": "remove-encryption-key", "key-id": "a2Vr"},
        adding(other),
        adding(key_entry("key-1", "b3RoZXI=")),
    ]
    base = commits.commit(base, rotation, at(base), output)
    assert [key["key-id"] for key in base.metadata["encryption-keys"]] == ["b3RoZXI=", "key-1"]


def test_another_master_key_is_said_twice(commits: Commits) -> None:
    base, output = create(commits)
    change = setting(**{"encryption.key-id": "keyB"})
    with pytest.raises(MetadataIntegrityError, match="keyB"):
        commits.commit(base, change, [], output)
    with pytest.raises(MetadataIntegrityError, match="keyB"):
        commits.commit(base, change, [], output, new_key_id="keyC")
    after = commits.commit(base, change, [], output, new_key_id="keyB")
    digest = hashlib.sha256(Path(after.location.removeprefix("file://")).read_bytes()).hexdigest()
    assert after.trust == Trust("keyB", pinned_sha256=digest)
    assert commits.load("db.t", Trust("keyB")) == after
    with pytest.raises(MetadataIntegrityError):
        commits.load("db.t", Trust("keyA"))


def test_a_plain_table_gets_its_first_key(commits: Commits) -> None:
    base, output = create(commits, properties={})
    change = setting(**KEY)
    with pytest.raises(MetadataIntegrityError):
        commits.commit(base, change, [], output)
    after = commits.commit(base, change, [], output, new_key_id="keyA")
    assert after.trust.key_id == "keyA"
    other, output = create(commits, "db.u", properties={})
    snapshot = appending(other, 1)[2]
    del snapshot["snapshot"]["key-id"]
    other = commits.commit(other, [snapshot], [], output)
    with pytest.raises(NotEncryptedError, match="snapshot 1"):
        commits.commit(other, change, [], output, new_key_id="keyA")


@pytest.mark.parametrize("name", ["py-io-impl", "s3.endpoint", "write.py-location-provider.impl"])
def test_a_commit_does_not_name_code_to_run(tmp_path: Path, name: str) -> None:
    commits = connection_to(sql_catalog(tmp_path))
    base, output = create(commits)
    change = setting(**{name: "evil.Code"})
    with pytest.raises(MetadataIntegrityError, match=name):
        commits.commit(base, change, [], output)
    with pytest.raises(MetadataIntegrityError, match=name):
        create(commits, "db.u", {**KEY, name: "evil.Code"})
    tampered = {**base.metadata, "properties": {**base.metadata["properties"], name: "x"}}
    with pytest.raises(MetadataIntegrityError, match=name):
        commits.check(replace(base, metadata=tampered))
    assert output.written == [base.location]
    # The catalog's own word counts.
    commits.catalog.properties[name] = "evil.Code"
    commits.commit(base, change, [], output)


def test_a_pinned_file_is_followed_by_its_successor(commits: Commits) -> None:
    _, output = create(commits)
    location = commits.load("db.t", Trust()).location
    digest = hashlib.sha256(Path(location.removeprefix("file://")).read_bytes()).hexdigest()
    pinned = commits.load("db.t", Trust("keyA", digest))
    after = commits.commit(pinned, setting(a="1"), [], output)
    stored = Path(after.location.removeprefix("file://")).read_bytes()
    assert after.trust.metadata_sha256 == hashlib.sha256(stored).hexdigest()
    with pytest.raises(MetadataIntegrityError):
        commits.load("db.t", Trust("keyA", digest))


def test_metadata_may_be_compressed_and_old_files_deleted(commits: Commits) -> None:
    base, output = create(
        commits,
        properties={
            **KEY,
            "write.metadata.compression-codec": "gzip",
            "write.metadata.previous-versions-max": "2",
            "write.metadata.delete-after-commit.enabled": "true",
        },
    )
    for number in range(5):
        base = commits.commit(base, setting(a=str(number)), [], output)
    assert base.location.endswith(".gz.metadata.json")
    assert commits.load("db.t", Trust("keyA")) == base
    assert commits.catalog.load_table("db.t").properties["a"] == "4"
    assert [name[:5] for name in files_of(base.metadata["location"])] == ["00003", "00004", "00005"]


def test_a_log_does_not_have_other_files_deleted(commits: Commits, tmp_path: Path) -> None:
    names = ("treasure.txt", "other.metadata.json")
    for name in names:
        (tmp_path / name).write_text("gold")
    base, output = create(
        commits,
        properties={
            **KEY,
            "write.metadata.previous-versions-max": "1",
            "write.metadata.delete-after-commit.enabled": "true",
        },
    )
    log = [{"timestamp-ms": 1, "metadata-file": f"file://{tmp_path}/{name}"} for name in names]
    base = replace(base, metadata={**base.metadata, "metadata-log": log})
    base = commits.commit(base, setting(a="1"), [], output)
    assert len(base.metadata["metadata-log"]) == 1
    assert all((tmp_path / name).exists() for name in names)


def test_catalogs_that_would_lose_the_keys_are_refused() -> None:
    with pytest.raises(NotImplementedError, match="'mine', a NoopCatalog"):
        connection_to(NoopCatalog("mine")).check_writable()


# -- Hive


class Metastore:
    """A Hive metastore that knows the database ``db``. What ``fault`` is set to is raised by the
    next change of a table, ``before`` or after it is made."""

    def __init__(self) -> None:
        self.tables: dict[str, Any] = {}
        self.fault: Exception | None = None
        self.is_before = True
        self.on_change: Callable[[], object] | None = None
        self.lock_state = 1  # acquired
        self.locks: list[str] = []
        self.may_unlock = True

    def __enter__(self) -> Metastore:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def get_all_databases(self) -> list[str]:
        return ["db"]

    def get_database(self, name: str) -> Any:
        from hive_metastore.ttypes import NoSuchObjectException

        if name != "db":
            raise NoSuchObjectException()
        return SimpleNamespace(parameters={}, locationUri=None, description=None)

    def get_table(self, dbname: str, tbl_name: str) -> Any:
        from hive_metastore.ttypes import NoSuchObjectException

        if dbname != "db" or tbl_name not in self.tables:
            raise NoSuchObjectException()
        return copy.deepcopy(self.tables[tbl_name])

    def create_table(self, table: Any) -> None:
        from hive_metastore.ttypes import AlreadyExistsException, InvalidObjectException

        if table.dbName != "db":
            raise InvalidObjectException("no database")
        if table.tableName in self.tables:
            raise AlreadyExistsException()
        self.change(table)

    def alter_table_with_environment_context(
        self, database: str, name: str, table: Any, context: Any
    ) -> None:
        from hive_metastore.ttypes import InvalidOperationException, MetaException

        first, self.on_change = self.on_change, None
        if first is not None:
            first()
        key = context.properties["expected_parameter_key"]
        if self.tables[name].parameters[key] != context.properties["expected_parameter_value"]:
            raise MetaException("The table has been modified.")
        if table.dbName != "db":
            raise InvalidOperationException("no database")
        self.change(table, name)

    def change(self, table: Any, before: str | None = None) -> None:
        fault, self.fault = self.fault, None
        if fault is not None and self.is_before:
            raise fault
        self.tables.pop(before, None)
        self.tables[table.tableName] = copy.deepcopy(table)
        if fault is not None:
            raise fault

    def lock(self, request: Any) -> Any:
        self.locks.append(request.component[0].tablename)
        return SimpleNamespace(lockid=7, state=self.lock_state)

    def check_lock(self, request: Any) -> Any:
        return SimpleNamespace(lockid=7, state=self.lock_state)

    def unlock(self, request: Any) -> None:
        if not self.may_unlock:
            raise ConnectionError
        self.locks.pop()


@pytest.fixture
def metastore() -> Metastore:
    return Metastore()


@pytest.fixture
def hive(metastore: Metastore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commits:
    pytest.importorskip("thrift")
    from pyiceberg.catalog.hive import HiveCatalog

    client = staticmethod(lambda properties: metastore)
    monkeypatch.setattr(HiveCatalog, "_create_hive_client", client)
    retries = {"lock-check-retries": "1"}
    return connection_to(
        HiveCatalog("hive", uri="thrift://nowhere", warehouse=f"file://{tmp_path}", **retries)
    )


def test_hive_keeps_what_guards_the_keys(hive: Commits, metastore: Metastore) -> None:
    base, output = create(hive, properties={**KEY, "encryption.data-key-length": "32"})
    metastore.tables["t"].parameters["whose"] = "hive's own"
    after = hive.commit(base, appending(base, 1), at(base), output)
    parameters = metastore.tables["t"].parameters
    stored = Path(after.location.removeprefix("file://")).read_bytes()
    digest = base64.b64encode(hashlib.sha256(stored).digest()).decode()
    assert (parameters["metadata_hash"], after.trust.java_hash) == (digest, digest)
    assert parameters["encryption.key-id"] == "keyA"
    assert parameters["encryption.data-key-length"] == "32"
    assert parameters["metadata_location"] == after.location
    assert parameters["previous_metadata_location"] == base.location
    assert parameters["whose"] == "hive's own"
    assert parameters["numRows"] == "1"
    assert json.loads(parameters["current-snapshot-summary"]) == {"total-records": "1"}
    assert hive.load("db.t", Trust("keyA")) == after
    assert metastore.locks == []
    parameters["metadata_hash"] = base64.b64encode(bytes(32)).decode()
    with pytest.raises(MetadataIntegrityError, match="metadata_hash"):
        hive.load("db.t", Trust("keyA"))
    with pytest.raises(MetadataIntegrityError, match="keyA"):
        hive.load("db.t", Trust("keyB"))


@pytest.mark.parametrize("knows_all", [True, False])
def test_hive_s_hash_is_of_what_the_java_knows_that_made_it(
    hive: Commits, metastore: Metastore, knows_all: bool
) -> None:
    """A later Java has fields in its hash that are not known here; an earlier one leaves them out,
    as it does with those that others have put in."""

    def hashed(location: str) -> str:
        stored = Path(location.removeprefix("file://")).read_bytes()
        return base64.b64encode(hashlib.sha256(stored).digest()).decode()

    base, output = create(hive)
    without = hashed(base.location)
    strewn_over = strewn(base.metadata, random.Random(0))
    text = json.dumps(strewn_over, separators=(",", ":"), ensure_ascii=False)
    Path(base.location.removeprefix("file://")).write_text(text)
    parameters = metastore.tables["t"].parameters
    parameters["metadata_hash"] = hashed(base.location) if knows_all else without
    base = hive.load("db.t", Trust("keyA"))
    after = hive.commit(base, appending(base, 1), at(base), output)
    parameters = metastore.tables["t"].parameters
    assert (parameters["metadata_hash"] == hashed(after.location)) == knows_all
    kept = list(unknown_fields(after.metadata))
    assert [field for field in unknown_fields(base.metadata) if field not in kept] == []
    assert hive.load("db.t", Trust("keyA")) == after


def test_hive_s_folder_confirms_the_location_if_there_is_no_hash(
    hive: Commits, metastore: Metastore
) -> None:
    base, _ = create(hive)
    entry = metastore.tables["t"]
    del entry.parameters["metadata_hash"]
    path = Path(base.location.removeprefix("file://"))
    location = base.metadata["location"]

    def put(folder: str) -> None:
        path.write_text(json.dumps(base.metadata | {"location": folder}))

    for spelling in (location, location.replace("file://", "file:"), location[7:], f"{location}/"):
        put(spelling)
        assert hive.load("db.t", Trust()).metadata["location"] == spelling
    for elsewhere in ("file:///tmp/evil", "s3://bucket" + location[7:], f"{location}/t"):
        put(elsewhere)
        with pytest.raises(MetadataIntegrityError, match="but the catalog has 'file:///"):
            hive.load("db.t", Trust())
    with pytest.raises(MetadataIntegrityError, match="but the catalog has 'file:///"):
        hive.check(hive.read("db.t", Trust()))
    entry.sd.location = None
    assert hive.load("db.t", Trust()).metadata["location"] == f"{location}/t"


def test_hive_s_columns_follow_the_schema(hive: Commits, metastore: Metastore) -> None:
    schema = Schema(*SCHEMA.fields, NestedField(3, "at", TimestampNanoType(), required=False))
    base, output = create(hive, schema=schema)
    columns = [(c.name, c.type, c.comment) for c in metastore.tables["t"].sd.cols]
    assert columns == [
        ("id", "bigint", None),
        ("name", "string", "a name"),
        ("at", "timestamp", None),
    ]
    smaller = base.metadata["schemas"][0] | {"schema-id": 1}
    smaller["fields"] = smaller["fields"][:2]
    updates = [
        {"action": "add-schema", "schema": smaller},
        {"action": "set-current-schema", "schema-id": -1},
    ]
    hive.commit(base, updates, [], output)
    assert [column.name for column in metastore.tables["t"].sd.cols] == ["id", "name"]


def test_parameters_that_are_too_long_or_gone_are_not_kept(
    hive: Commits, metastore: Metastore
) -> None:
    base, output = create(hive, properties={**KEY, "gc.enabled": "false"})
    assert metastore.tables["t"].parameters["external.table.purge"] == "false"
    assert "current-schema" in metastore.tables["t"].parameters
    hive.catalog.properties["iceberg.hive.table-property-max-size"] = "20"
    gone = [{"action": "remove-properties", "removals": ["gc.enabled"]}]
    hive.commit(base, gone, [], output)
    assert not {"external.table.purge", "current-schema"} & set(metastore.tables["t"].parameters)


def test_two_commits_at_once_to_hive(hive: Commits, metastore: Metastore) -> None:
    base, output = create(hive)
    after = hive.commit(base, setting(a="1"), [], output)
    with pytest.raises(CommitFailedException, match="another process"):
        hive.commit(base, setting(a="2"), [], output)
    # Where the lock does not keep others out, the metastore compares.
    metastore.on_change = lambda: hive.commit(after, setting(b="1"), [], output)
    with pytest.raises(CommitFailedException):
        hive.commit(after, setting(a="3"), [], output)
    properties = hive.load("db.t", Trust("keyA")).metadata["properties"]
    assert (properties["a"], properties["b"]) == ("1", "1")
    assert len(files_of(base.metadata["location"])) == 3
    del metastore.tables["t"]
    with pytest.raises(CommitFailedException, match="does not exist any more"):
        hive.commit(after, setting(a="4"), [], output)


def test_answers_of_hive_that_are_lost(hive: Commits, metastore: Metastore) -> None:
    from hive_metastore.ttypes import MetaException
    from thrift.transport.TTransport import TTransportException

    base, output = create(hive)
    metastore.fault, metastore.is_before = TTransportException(), False
    base = hive.commit(base, setting(a="1"), [], output)
    assert hive.load("db.t", Trust("keyA")) == base
    # It may be done yet.
    metastore.fault, metastore.is_before = TTransportException(), True
    with pytest.raises(CommitStateUnknownException):
        hive.commit(base, setting(a="2"), [], output)
    assert len(files_of(base.metadata["location"])) == 3
    # An answer of the metastore's own: it will not be done.
    metastore.fault = MetaException("told to\n\tat org.example")
    with pytest.raises(CommitFailedException, match=r"MetaException: told to$"):
        hive.commit(base, setting(a="3"), [], output)
    assert len(files_of(base.metadata["location"])) == 3
    metastore.fault, metastore.is_before = TTransportException(), False
    other, _ = create(hive, "db.u")
    assert hive.load("db.u", Trust("keyA")) == other
    metastore.fault, metastore.is_before = TTransportException(), True
    with pytest.raises(CommitStateUnknownException):
        create(hive, "db.v")


def test_a_rename_in_hive_does_not_undo_a_commit(hive: Commits, metastore: Metastore) -> None:
    from thrift.transport.TTransport import TTransportException

    base, output = create(hive)
    metastore.on_change = lambda: hive.commit(base, setting(a="1"), [], output)
    with pytest.raises(CommitFailedException, match="modified"):
        hive.rename(base, "db.u")
    with pytest.raises(CommitFailedException, match="another process"):
        hive.rename(base, "db.u")
    assert list(metastore.tables) == ["t"]
    base = hive.load("db.t", Trust("keyA"))
    assert base.metadata["properties"]["a"] == "1"
    create(hive, "db.taken")
    with pytest.raises(TableAlreadyExistsError):
        hive.rename(base, "db.taken")
    with pytest.raises(NoSuchNamespaceError):
        hive.rename(base, "nowhere.t")
    # An answer is lost, before and after the change.
    metastore.fault, metastore.is_before = TTransportException(), True
    with pytest.raises(CommitStateUnknownException):
        hive.rename(base, "db.u")
    metastore.fault, metastore.is_before = TTransportException(), False
    hive.rename(base, "db.u")
    assert sorted(metastore.tables) == ["taken", "u"]
    assert metastore.locks == []
    assert hive.load("db.u", Trust("keyA")).location == base.location


def test_our_commit_to_hive_does_not_confirm_a_folder_that_somebody_put_into_the_metadata(
    hive: Commits, metastore: Metastore, tmp_path: Path
) -> None:
    base, output = create(hive)
    path = Path(base.location.removeprefix("file://"))
    metadata = json.loads(path.read_bytes())
    elsewhere = f"file://{tmp_path}/other"
    metadata["properties"]["write.data.path"] = elsewhere
    path.write_text(json.dumps(metadata))
    del metastore.tables["t"].parameters["metadata_hash"]  # as after a commit of PyIceberg's
    ours = hive.commit(hive.load("db.t", Trust("keyA")), setting(a="1"), [], output)
    assert "metadata_hash" not in metastore.tables["t"].parameters
    assert hive.load("db.t", Trust("keyA")) == ours
    assert not ours.trust.confirms_metadata
    # Who sets it means it.
    ours = hive.commit(ours, setting(**{"write.data.path": elsewhere}), [], output)
    assert ours.trust.confirms_metadata
    assert hive.load("db.t", Trust("keyA")) == ours


def test_hive_s_lock(hive: Commits, metastore: Metastore) -> None:
    base, output = create(hive)
    metastore.on_change = lambda: metastore.locks.index("t")
    base = hive.commit(base, setting(a="1"), [], output)
    assert metastore.locks == []
    metastore.lock_state = 2  # waiting
    with pytest.raises(CommitFailedException, match="another client holds it"):
        hive.commit(base, setting(a="2"), [], output)
    assert metastore.locks == []
    assert len(files_of(base.metadata["location"])) == 2
    declined = setting(**{"engine.hive.lock-enabled": "false"})
    metastore.lock_state = 1
    metastore.may_unlock = False
    base = hive.commit(base, declined, [], output)
    assert metastore.locks == ["t"]
    hive.commit(base, setting(a="2"), [], output)
    assert metastore.locks == ["t"]


def test_a_name_is_taken_once_in_hive(hive: Commits, tmp_path: Path) -> None:
    base, _ = create(hive)
    with pytest.raises(TableAlreadyExistsError):
        create(hive)
    assert len(files_of(base.metadata["location"])) == 1
    with pytest.raises(NoSuchNamespaceError):
        create(hive, "nowhere.t")
    with pytest.raises(NoSuchTableError):
        hive.load("db.u", Trust())


# -- REST


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Rest]:
    with Rest(tmp_path) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def rest(server: Rest) -> Commits:
    uri = f"http://127.0.0.1:{server.server_address[1]}"
    return connection_to(load_catalog("rest", type="rest", uri=uri))


def test_a_rest_server_applies_the_updates(rest: Commits, server: Rest) -> None:
    base, output = create(rest)
    assert base.location == server.tables["t"][1]
    assert base.trust == Trust("keyA", is_from_server=True)
    assert base.config.storage == {"token": "of-the-table"}
    after = rest.commit(base, setting(a="1"), [], output)
    loaded = rest.load("db.t", Trust("keyA"))
    assert (loaded.metadata, loaded.location) == (after.metadata, after.location)
    # The server writes its metadata itself.
    assert output.written == []
    with pytest.raises(TableAlreadyExistsError):
        create(rest)


def test_a_table_s_first_key_is_committed_alone(rest: Commits, server: Rest) -> None:
    base, output = create(rest)
    server.requests.clear()
    after = rest.commit(base, appending(base, 1), at(base), output)
    add = "add-encryption-key"
    append = [add, add, "add-snapshot", "set-snapshot-ref"]
    assert server.requests == [[add], append]
    again = rest.commit(after, appending(after, 2)[1:], at(after), output)
    # The key that the snapshot's is under goes with it.
    assert server.requests[2:] == [append]
    assert ids(again) == [1, 2]


@pytest.mark.filterwarnings("ignore:.*in the future")
@pytest.mark.parametrize("hours", [-1, 1])
def test_the_server_s_clock_may_be_another(rest: Commits, server: Rest, hours: int) -> None:
    base, output = create(rest)
    metadata, location = server.tables["t"]
    then = now_ms() + hours * 3_600_000
    server.tables["t"] = {**metadata, "last-updated-ms": then}, location
    base = rest.load("db.t", Trust("keyA"))
    updates = appending(base, 1)
    updates[2]["snapshot"]["timestamp-ms"] = now_ms()
    server.now_ms = max(then, now_ms())
    base = rest.commit(base, updates, at(base), output)
    base = rest.commit(base, appending(base, 2), at(base), output)
    assert ids(rest.commit(base, appending(base, 3), at(base), output)) == [1, 2, 3]


@pytest.mark.parametrize("ahead_ms", [55_000, 800 * 86_400_000])
@pytest.mark.parametrize("name", ["commits", "hive", "rest"])
def test_a_commit_by_a_clock_that_is_ahead(
    name: str, ahead_ms: int, request: pytest.FixtureRequest
) -> None:
    """The next commits have its time, so that the table's times do not go back, as Java requires.
    They warn if it is more than a minute ahead."""
    commits = request.getfixturevalue(name)
    base, output = create(commits)
    ahead = now_ms() + ahead_ms
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ags1.iceberg.commit.commits.now_ms", lambda: ahead)
        if name == "rest":
            request.getfixturevalue("server").now_ms = ahead
        base = commits.commit(base, appending(base, 1), at(base), output)
    assert base.metadata["last-updated-ms"] == ahead
    for updates in (setting(a="1"), rotation(base)):
        with warnings.catch_warnings(record=True) as caught:
            base = commits.commit(base, updates, at(base), output)
        assert [w.category for w in caught] == [UserWarning] * (ahead_ms > 60_000)
        assert all("in the future" in str(warning.message) for warning in caught)
        assert base.metadata["last-updated-ms"] == ahead


def test_a_rest_server_that_loses_keys_gets_no_data(rest: Commits, server: Rest) -> None:
    base, output = create(rest)
    server.keeps_keys = False
    with pytest.raises(NotImplementedError, match="does not keep"):
        rest.commit(base, appending(base, 1), at(base), output)
    assert server.tables["t"][0]["snapshots"] == []
    # Nor does it keep a table that is created with its first key, or with data.
    with pytest.raises(NotImplementedError):
        create(rest, "db.u", more=[adding(KEK)])
    with pytest.raises(NotImplementedError):
        create(rest, "db.u", more=appending(base, 1))
    assert list(server.tables) == ["t"]


def test_a_table_is_created_with_data(rest: Commits, server: Rest) -> None:
    template, _ = create(rest, "db.template")
    base, _ = create(rest, more=appending(template, 1))
    assert ids(base) == [1]
    assert "add-snapshot" not in server.requests[-2]
    # When the data cannot be committed, the table goes again.
    server.faults = [("never", None), ("before", 409)]
    with pytest.raises(CommitFailedException):
        create(rest, "db.u", more=appending(template, 1))
    assert "u" not in server.tables


def test_rest_conflicts(rest: Commits, server: Rest) -> None:
    base, output = create(rest)
    first = rest.commit(base, appending(base, 1), at(base), output)
    with pytest.raises(CommitFailedException):
        rest.commit(base, appending(base, 2), at(base), output)
    # The server's 400 is a conflict where the table has moved on: upon another branch, perhaps.
    moved = appending(base, 3)
    moved[3]["ref-name"] = "other"
    with pytest.raises(CommitFailedException):
        rest.commit(base, moved, [], output)
    server.faults = [("before", 400)]
    with pytest.raises(Exception, match="told to") as raised:
        rest.commit(first, setting(a="1"), [], output)
    assert not isinstance(raised.value, CommitFailedException | CommitStateUnknownException)
    server.faults = [("before", 429)]
    with pytest.raises(CommitFailedException):
        rest.commit(first, setting(a="1"), [], output)
    assert ids(rest.load("db.t", Trust())) == [1]


@pytest.mark.parametrize("status", [500, 502, 503, 504, None])
def test_rest_answers_that_are_lost(rest: Commits, server: Rest, status: int | None) -> None:
    base, output = create(rest)
    base = rest.commit(base, appending(base, 1), at(base), output)
    for updates, required in ((appending(base, 2), at(base)), (setting(a="1"), [])):
        server.faults = [("after", status)]
        base = rest.commit(base, updates, required, output)
        assert server.tables["t"] == (base.metadata, base.location)
    for updates, required in ((appending(base, 3), at(base)), (setting(a="2"), [])):
        server.faults = [("before", status)]
        # It may be done yet.
        with pytest.raises(CommitStateUnknownException):
            rest.commit(base, updates, required, output)
    assert server.tables["t"] == (base.metadata, base.location)


def test_a_lost_commit_to_rest_was_not_made_when_another_took_its_place(
    rest: Commits, server: Rest
) -> None:
    base, output = create(rest)
    base = rest.commit(base, appending(base, 1), at(base), output)
    stale = base
    base = rest.commit(base, appending(base, 2), at(base), output)
    server.faults = [("before", 500)]
    with pytest.raises(CommitFailedException):
        rest.commit(stale, appending(stale, 3), at(stale), output)
    server.faults = [("before", 500)]
    with pytest.raises(CommitFailedException):
        rest.commit(stale, setting(a="1"), at(stale), output)
    server.faults = [("after", 500)]
    server.may_load = False
    with pytest.raises(CommitStateUnknownException):
        rest.commit(base, appending(base, 4), at(base), output)
    # A first key whose answer is lost is no unknown snapshot.
    server.may_load = True
    fresh, output = create(rest, "db.u")
    server.faults = [("before", 500)]
    with pytest.raises(CommitFailedException):
        rest.commit(fresh, appending(fresh, 1), at(fresh), output)


def test_a_lost_creation_at_a_rest_server(rest: Commits, server: Rest) -> None:
    server.faults = [("after", 500)]
    base, _ = create(rest)
    assert base.location == server.tables["t"][1]
    server.faults = [("before", 500)]
    with pytest.raises(TableAlreadyExistsError):
        create(rest)
    server.faults = [("before", 500)]
    with pytest.raises(CommitStateUnknownException):
        create(rest, "db.u")


def test_a_server_that_is_not_there_has_done_nothing(rest: Commits, server: Rest) -> None:
    base, output = create(rest)
    server.shutdown()
    server.server_close()
    with pytest.raises(CommitFailedException, match="cannot be reached"):
        rest.commit(base, setting(a="1"), [], output)


def rotation(base: Base) -> list[Update]:
    """Updates that put the first snapshot's key under another KEK and take the old one out."""
    return [
        {"action": "remove-encryption-key", "key-id": "key-1"},
        {"action": "remove-encryption-key", "key-id": "a2Vr"},
        adding({**KEK, "key-id": "b3RoZXI="}),
        adding(key_entry("key-1", "b3RoZXI=")),
    ]


def test_a_rotation_fails_where_a_branch_has_moved(rest: Commits, server: Rest) -> None:
    base, output = create(rest)
    base = rest.commit(base, appending(base, 1), at(base), output)
    server.on_commit = lambda: (
        server.commit("t", {"requirements": [], "updates": appending(base, 2)}) and None
    )
    with pytest.raises(CommitFailedException):
        rest.commit(base, rotation(base), [], output)
    # Not every server looks whether a key is needed.
    assert at(base)[0] in server.required
    base = rest.load("db.t", Trust("keyA"))
    assert ids(base) == [1, 2]
    keys = {key["key-id"] for key in base.metadata["encryption-keys"]}
    assert keys == {"a2Vr", "key-1", "key-2"}


def test_a_key_that_a_rotation_took_out_comes_back_with_the_snapshot_that_needs_it(
    rest: Commits, server: Rest
) -> None:
    base, output = create(rest)
    base = rest.commit(base, appending(base, 1), at(base), output)
    # No branch moves, so the server sees no conflict.
    server.on_commit = lambda: (
        server.commit("t", {"requirements": [], "updates": rotation(base)}) and None
    )
    after = rest.commit(base, appending(base, 2)[1:], at(base), output)
    entries = {key["key-id"]: key["encrypted-by-id"] for key in after.metadata["encryption-keys"]}
    assert entries == {"b3RoZXI=": "keyA", "key-1": "b3RoZXI=", "a2Vr": "keyA", "key-2": "a2Vr"}


def test_a_key_that_the_answer_lacks_is_put_back(rest: Commits, server: Rest) -> None:
    base, output = create(rest)
    base = rest.commit(base, appending(base, 1), at(base), output)
    server.requests.clear()
    server.forgets = [KEK["key-id"]]
    after = rest.commit(base, appending(base, 2), at(base), output)
    assert server.requests[1:] == [["add-encryption-key"]]
    assert {key["key-id"] for key in after.metadata["encryption-keys"]} == {
        *("a2Vr", "key-1", "key-2")
    }
    server.forgets = ["key-1"] * 5
    # The data is there, so its files have to stay.
    with pytest.raises(CommitStateUnknownException, match="was made, and then"):
        rest.commit(after, setting(a="1"), at(after), output)


def test_a_key_of_statistics_is_put_back_and_not_removed(rest: Commits, server: Rest) -> None:
    """As iceberg pull request 17533 has them."""
    base, output = create(rest)
    base = rest.commit(base, appending(base, 1), at(base), output)
    statistics = {
        "snapshot-id": 1,
        "statistics-path": f"{base.metadata['location']}/metadata/1.stats",
        "file-size-in-bytes": 1,
        "file-footer-size-in-bytes": 1,
        "blob-metadata": [],
        "key-id": "key-s",
    }
    updates = [
        adding(key_entry("key-s")),
        {"action": "set-statistics", "snapshot-id": 1, "statistics": statistics},
    ]
    base = rest.commit(base, updates, at(base), output)
    assert base.metadata["statistics"] == [statistics]
    server.requests.clear()
    server.forgets = ["key-s"]
    base = rest.commit(base, setting(a="1"), at(base), output)
    assert server.requests[1:] == [["add-encryption-key"]]
    assert "key-s" in {key["key-id"] for key in base.metadata["encryption-keys"]}
    removal = [{"action": "remove-encryption-key", "key-id": "key-s"}]
    with pytest.raises(ValueError, match="still refers to the key 'key-s'"):
        rest.commit(base, removal, at(base), output)


def test_a_token_that_has_expired_is_renewed(rest: Commits, server: Rest) -> None:
    base, output = create(rest)
    server.faults = [("before", 401)]
    after = rest.commit(base, setting(a="1"), [], output)
    assert after.metadata["properties"]["a"] == "1"
    server.faults = [("before", 419), ("before", 419)]
    with pytest.raises(AuthorizationExpiredError):
        rest.commit(base, setting(a="1"), [], output)


def test_a_server_that_changes_the_master_key_is_noticed(rest: Commits, server: Rest) -> None:
    base, output = create(rest)
    change = {"requirements": [], "updates": setting(**{"encryption.key-id": "keyB"})}
    server.on_commit = lambda: server.commit("t", change) and None
    with pytest.raises(CommitStateUnknownException, match="keyB"):
        rest.commit(base, setting(a="1"), [], output)
    with pytest.raises(MetadataIntegrityError):
        rest.load("db.t", Trust("keyA"))

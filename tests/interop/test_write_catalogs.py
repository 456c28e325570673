"""Commits to a real Hive metastore, the REST server of Java's reference implementation, PostgreSQL.

Spark, with the metastore as its catalog, goes on where we committed, and we where Spark did: it
checks the hash that the metastore keeps, as we do.
"""

from __future__ import annotations

import hashlib
import json
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import requests
from committing import (
    KEK,
    KEY,
    adding,
    appending,
    at,
    check_eight_writers,
    create,
    ids,
    key_entry,
    setting,
)
from conftest import RunPython
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import (
    DecimalType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import ProgrammingError

from ags1 import MetadataIntegrityError, NotEncryptedError
from ags1.iceberg import EncryptedCatalog, EncryptedTable
from ags1.iceberg.commit.base import Base
from ags1.iceberg.commit.commits import Commits
from ags1.iceberg.commit.connections import connection_to
from ags1.iceberg.commit.new_table import new_table_updates
from ags1.iceberg.storage.output import TableOutput
from ags1.iceberg.storage.trust import Trust
from ags1.kms import KmsClient

from .metastore import served_metastore
from .postgres import postgres
from .rest_server import rest_server
from .spark import DATABASE, SparkTables

pytestmark = pytest.mark.interop

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "name", StringType(), required=False, doc="ein Name"),
    NestedField(3, "price", DecimalType(9, 2), required=False),
    NestedField(4, "at", TimestamptzType(), required=False),
    NestedField(
        5,
        "more",
        StructType(
            NestedField(6, "list", ListType(7, LongType(), element_required=False), required=False),
            NestedField(
                8,
                "map",
                MapType(9, StringType(), 10, LongType(), value_required=False),
                required=False,
            ),
        ),
        required=False,
    ),
)
SPEC = PartitionSpec(PartitionField(1, 1000, BucketTransform(4), "id_bucket"))
ORDER = SortOrder(SortField(source_id=1, transform=IdentityTransform()))
COLUMNS = "id, name, price, at, more"
ROW = "(1, 'a', 1.5, TIMESTAMP '2026-01-01', named_struct('list', array(1L), 'map', map('k', 2L)))"
ROWS = pa.table({"id": pa.array([1, 2]), "v": pa.array(["a", "b"])})
# What differs between two commits of one table.
CHANGING = {
    "metadata_location",
    "previous_metadata_location",
    "metadata_hash",
    "transient_lastDdlTime",
}


# -- Hive


@pytest.fixture(scope="module")
def metastore(spark: SparkTables) -> Iterator[str]:
    with served_metastore(spark) as uri:
        yield uri


@pytest.fixture
def hive(metastore: str, tmp_path: Path) -> Commits:
    """Commits to the metastore, which is of Hive 2 and has no lock tables: Spark's settings say so
    too."""
    return connection_to(
        load_catalog(
            "hive",
            type="hive",
            uri=metastore,
            warehouse=f"file:{tmp_path}",
            **{"iceberg.engine.hive.lock-enabled": "false", "hive.hive2-compatible": "true"},
        )
    )


def created(commits: Commits, name: str, location: Path, **properties: str) -> Base:
    """Create an encrypted table with partitions and an order."""
    identifier = f"{DATABASE}.{name}"
    settings = {"encryption.key-id": "keyA", **properties}
    new_location = commits.new_location(identifier, f"file:{location}", SCHEMA, settings)
    updates = new_table_updates(SCHEMA, SPEC, ORDER, new_location.location, settings, uuid.uuid4())
    return commits.create(
        identifier,
        updates,
        TableOutput(new_location.io(commits.catalog)),
        new_location=new_location,
    )


def commit(commits: Commits, base: Base, **properties: str) -> Base:
    return commits.commit(base, setting(**properties), [], TableOutput(base.io(commits.catalog)))


def test_spark_and_we_take_turns_at_a_hive_table(
    spark: SparkTables, hive: Commits, tmp_path: Path
) -> None:
    name = "enc.db.turns"
    base = created(hive, "turns", tmp_path)
    assert spark.rows(name, COLUMNS) == []
    spark.sql(f"INSERT INTO {name} VALUES {ROW}")
    base = hive.load("db.turns", Trust("keyA"))
    assert base.trust.java_hash == spark.parameters(name)["metadata_hash"]
    after = commit(hive, base, colour="red")
    assert spark.metadata_file(name) == Path(after.location.removeprefix("file:"))
    assert after.trust.java_hash == spark.parameters(name)["metadata_hash"]
    assert hive.load("db.turns", Trust("keyA")) == after
    # Spark checks the hash, and commits with the metadata that it has parsed.
    spark.sql(f"REFRESH TABLE {name}")
    spark.sql(f"INSERT INTO {name} VALUES {ROW}")
    assert len(spark.rows(name, "id")) == 2
    last = hive.load("db.turns", Trust("keyA"))
    assert last.metadata["properties"]["colour"] == "red"
    locations = [entry["metadata-file"] for entry in last.metadata["metadata-log"]]
    assert after.location in locations
    with pytest.raises(CommitFailedException):
        commit(hive, after, colour="blue")


def test_rows_in_a_table_that_spark_and_we_write(
    spark: SparkTables, hive: Commits, kms: KmsClient
) -> None:
    catalog = EncryptedCatalog(hive.catalog, kms)
    properties = {"encryption.key-id": "keyA"}
    table = catalog.create_table(f"{DATABASE}.rows", ROWS.schema, properties=properties)
    table.append(ROWS)
    assert spark.rows("enc.db.rows") == [(1, "a"), (2, "b")]
    spark.sql("INSERT INTO enc.db.rows VALUES (3, 'c')")
    # The base is Spark's by now: one commit is lost, the next is upon it.
    table.append(ROWS)
    spark.sql("REFRESH TABLE enc.db.rows")
    spark.sql("INSERT INTO enc.db.rows VALUES (4, 'd')")
    ids = catalog.load_table(f"{DATABASE}.rows").scan().to_arrow()["id"].to_pylist()
    assert sorted(ids) == [1, 1, 2, 2, 3, 4]
    assert [row[0] for row in spark.rows("enc.db.rows")] == [1, 1, 2, 2, 3, 4]


def test_the_parameters_are_those_that_java_would_have_set(
    spark: SparkTables, hive: Commits, tmp_path: Path
) -> None:
    name = "enc.db.parameters"
    created(hive, "parameters", tmp_path, **{"encryption.data-key-length": "32"})
    spark.sql(f"INSERT INTO {name} VALUES {ROW}")
    of_java, java_storage = spark.parameters(name), described(spark, name)
    base = commit(hive, hive.load("db.parameters", Trust("keyA")), a="1")
    ours = spark.parameters(name)
    assert ours.pop("a") == "1"
    assert {**ours, **{k: of_java[k] for k in CHANGING}} == of_java
    assert ours["previous_metadata_location"] == of_java["metadata_location"]
    assert {"current-snapshot-summary", "default-sort-order", "numRows"} <= set(ours)
    assert described(spark, name) == java_storage
    # A property that goes from the metadata goes from the metastore.
    gone = [{"action": "remove-properties", "removals": ["a"]}]
    hive.commit(base, gone, [], TableOutput(base.io(hive.catalog)))
    assert "a" not in spark.parameters(name)


def described(spark: SparkTables, table: str) -> list[str]:
    """The storage descriptor of a table, as the metastore has it."""
    found = spark._hive(lambda client: client.getTable(*table.split(".")[1:]).getSd().toString())
    return sorted(str(found).replace("(", ",").split(","))


def test_hive_s_refusals(spark: SparkTables, hive: Commits, tmp_path: Path) -> None:
    base = created(hive, "refusals", tmp_path)
    with pytest.raises(TableAlreadyExistsError):
        created(hive, "refusals", tmp_path / "other")
    assert not list((tmp_path / "other").rglob("*.json"))
    with pytest.raises(NoSuchNamespaceError):
        hive.new_location("nowhere.t", None, SCHEMA, {})
    with pytest.raises(NoSuchTableError):
        hive.load("db.no_such_table", Trust())
    # The file was changed, and the metastore has its hash.
    path = Path(base.location.removeprefix("file:"))
    metadata = json.loads(path.read_bytes())
    path.write_text(json.dumps({**metadata, "last-updated-ms": 1}, separators=(",", ":")))
    with pytest.raises(MetadataIntegrityError, match="metadata_hash"):
        hive.load("db.refusals", Trust("keyA"))


def test_without_lock_tables_the_lock_has_to_be_declined(
    metastore: str, hive: Commits, tmp_path: Path
) -> None:
    base = created(hive, "locked", tmp_path)
    locking = connection_to(
        load_catalog("locking", type="hive", uri=metastore, **{"hive.hive2-compatible": "true"})
    )
    with pytest.raises(NotImplementedError, match=r"engine\.hive\.lock-enabled"):
        commit(locking, base, a="1")
    assert len(list(tmp_path.rglob("*.json"))) == 1
    own = commit(hive, base, **{"engine.hive.lock-enabled": "false"})
    commit(locking, own, a="1")


def test_the_metastore_refuses_the_second_of_two_commits_at_once(
    spark: SparkTables, hive: Commits, tmp_path: Path
) -> None:
    base = created(hive, "race", tmp_path, **{"commit.status-check.min-wait-ms": "1"})
    errors: list[BaseException] = []

    def work(writer: int) -> None:
        try:
            for number in range(3):
                while True:
                    current = hive.load("db.race", Trust("keyA"))
                    try:
                        commit(hive, current, **{f"w{writer}.{number}": "x"})
                        break
                    except CommitFailedException:
                        continue
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(writer,)) for writer in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    last = hive.load("db.race", Trust("keyA"))
    assert {f"w{w}.{n}" for w in range(6) for n in range(3)} <= set(last.metadata["properties"])
    assert len(last.metadata["metadata-log"]) == 18
    assert len(list(tmp_path.rglob("*.json"))) == 19
    assert base.location == last.metadata["metadata-log"][0]["metadata-file"]
    assert spark.rows("enc.db.race", "id") == []


def test_a_rename_in_hive_needs_the_newest_base(
    spark: SparkTables, hive: Commits, tmp_path: Path
) -> None:
    base = created(hive, "old_name", tmp_path)
    spark.sql(f"INSERT INTO enc.db.old_name VALUES {ROW}")
    with pytest.raises(CommitFailedException, match="another process"):
        hive.rename(base, "db.new_name")
    newest = hive.load("db.old_name", Trust("keyA"))
    with pytest.raises(NoSuchNamespaceError):
        hive.rename(newest, "nowhere.t")
    hive.rename(newest, "db.new_name")
    assert hive.load("db.new_name", Trust("keyA")).metadata == newest.metadata
    assert len(spark.rows("enc.db.new_name", "id")) == 1
    with pytest.raises(NoSuchTableError):
        hive.load("db.old_name", Trust())


HISTORIES = """
import sys
from pathlib import Path
import histories
histories.main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), 1)
"""


def test_histories_of_killed_writers_to_hive_are_explained(
    hive: Commits, tmp_path: Path, run_python: RunPython
) -> None:
    hive.catalog.create_namespace_if_not_exists("db")
    properties = {"type": "hive", **hive.catalog.properties}
    done = run_python(HISTORIES, json.dumps(properties), tmp_path, 18, timeout=600)
    assert json.loads(done.stdout.splitlines()[-1])["kills"] == 18


# -- REST


@pytest.fixture(scope="module")
def rest_uri(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("rest")
    with rest_server(folder, folder / "stderr.txt") as uri:
        yield uri


@pytest.fixture
def rest(rest_uri: str) -> Commits:
    catalog = load_catalog("rest", type="rest", uri=rest_uri)
    catalog.create_namespace_if_not_exists("db")
    return connection_to(catalog)


def test_the_reference_server_keeps_what_we_commit(rest: Commits) -> None:
    base, output = create(rest, "db.kept")
    first = rest.commit(base, appending(base, 1), at(base), output)
    second = rest.commit(first, appending(first, 2)[1:], at(first), output)
    assert ids(second) == [1, 2]
    assert [s["key-id"] for s in second.metadata["snapshots"]] == ["key-1", "key-2"]
    assert second.metadata["encryption-keys"] == [KEK, key_entry("key-1"), key_entry("key-2")]
    again = rest.load("db.kept", Trust("keyA"))
    assert (again.metadata, again.location) == (second.metadata, second.location)
    # It writes the file, as Java prints it.
    written = json.loads(Path(second.location.removeprefix("file:")).read_bytes())
    assert written["encryption-keys"] == second.metadata["encryption-keys"]


def test_conflicts_at_the_reference_server(rest: Commits) -> None:
    base, output = create(rest, "db.conflicts")
    rest.commit(base, appending(base, 1), at(base), output)
    elsewhere = appending(base, 3)
    elsewhere[-1]["ref-name"] = "other"
    for updates, required in ((appending(base, 2), at(base)), (elsewhere, [])):
        with pytest.raises(CommitFailedException):
            rest.commit(base, updates, required, output)
    with pytest.raises(TableAlreadyExistsError):
        create(rest, "db.conflicts")
    with pytest.raises(NoSuchTableError):
        rest.load("db.no_such_table", Trust())


def test_a_rotation_at_the_reference_server(rest: Commits) -> None:
    base, output = create(rest, "db.rotation")
    stale = base = rest.commit(base, appending(base, 1), at(base), output)
    updates = [
        {"action": "remove-encryption-key", "key-id": "key-1"},
        {"action": "remove-encryption-key", "key-id": KEK["key-id"]},
        adding({**KEK, "key-id": "b3RoZXI="}),
        adding(key_entry("key-1", "b3RoZXI=")),
    ]
    base = rest.commit(base, updates, [], output)
    assert base.metadata["encryption-keys"] == [
        {**KEK, "key-id": "b3RoZXI="},
        key_entry("key-1", "b3RoZXI="),
    ]
    # A writer who had not heard of it brings its key back, and can be read.
    after = rest.commit(stale, appending(stale, 2)[1:], at(stale), output)
    assert key_entry("key-2") in after.metadata["encryption-keys"]
    assert KEK in after.metadata["encryption-keys"]
    with pytest.raises(CommitFailedException):
        rest.commit(stale, updates, [], output)
    change = setting(**{"encryption.key-id": "keyB"})
    moved = rest.commit(after, change, [], output, new_key_id="keyB")
    assert moved.trust.key_id == "keyB"


def test_a_table_with_data_at_the_reference_server(rest: Commits) -> None:
    template, _ = create(rest, "db.template")
    base, _ = create(rest, "db.with_data", more=appending(template, 1))
    assert ids(base) == [1]
    assert base.metadata["encryption-keys"] == [KEK, key_entry("key-1")]


def test_rows_in_a_table_of_the_reference_server(rest: Commits, kms: KmsClient) -> None:
    catalog = EncryptedCatalog(rest.catalog, kms)
    table = catalog.create_table("db.rows", ROWS.schema, properties={"encryption.key-id": "keyA"})
    assert isinstance(table, EncryptedTable)
    for _ in range(2):
        table.append(ROWS)
    table.delete("id = 1")
    table.rotate_keys()
    table.append(ROWS)
    found = catalog.load_table("db.rows")
    assert sorted(found.scan().to_arrow()["id"].to_pylist()) == [1, 2, 2, 2]
    data = [task.file.file_path for task in found.scan().plan_files()]
    assert {Path(path.removeprefix("file:")).read_bytes()[:4] for path in data} == {b"PARE"}


# -- PostgreSQL


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    with postgres() as uri:
        yield uri


def postgres_catalog(uri: str, folder: Path) -> Catalog:
    catalog = load_catalog("sql", type="sql", uri=uri, warehouse=f"file://{folder}")
    catalog.create_namespace_if_not_exists("db")
    return catalog


@pytest.fixture
def sql(database: str, tmp_path: Path) -> Iterator[Commits]:
    catalog = postgres_catalog(database, tmp_path)
    yield connection_to(catalog)
    if catalog.table_exists("db.t"):
        catalog.drop_table("db.t")
    catalog.close()


def test_eight_processes_append_to_a_table_in_postgresql(
    sql: Commits, database: str, tmp_path: Path
) -> None:
    check_eight_writers(sql, lambda: postgres_catalog(database, tmp_path))


def test_a_name_is_taken_once_in_postgresql(sql: Commits) -> None:
    create(sql)
    with pytest.raises(TableAlreadyExistsError):
        create(sql)


def test_a_connection_that_ends_before_the_commit(
    sql: Commits, monkeypatch: pytest.MonkeyPatch
) -> None:
    really_commit = Connection.commit

    def cut(connection: Connection) -> None:
        pid = connection.scalar(text("SELECT pg_backend_pid()"))
        with engine_of(sql).connect() as other:
            other.execute(text(f"SELECT pg_terminate_backend({pid})"))
        really_commit(connection)

    base, output = create(sql)
    monkeypatch.setattr(Connection, "commit", cut)
    with pytest.raises(CommitFailedException):
        sql.commit(base, setting(a="1"), at(base), output)
    assert output.written == [base.location]


def test_a_commit_that_is_under_way_yet_is_waited_for(
    sql: Commits, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client has lost its connection, the server has not finished."""
    finishing: list[threading.Timer] = []

    base, output = create(sql)
    swap = sql._swap  # type: ignore[attr-defined]
    with monkeypatch.context() as patch:

        def lose(connection: Connection) -> None:
            connection.detach()  # from the pool: it stays open
            patch.setattr(Connection, "close", lambda _: None)
            finishing.append(threading.Timer(0.5, connection.connection.commit))
            finishing[0].start()
            raise ConnectionError("lost")

        def swap_once(*arguments: object) -> None:
            try:
                swap(*arguments)
            finally:
                patch.undo()

        patch.setattr(Connection, "commit", lose)
        patch.setattr(sql, "_swap", swap_once)
        after = sql.commit(base, setting(a="1"), at(base), output)
    finishing[0].join()
    assert sql.load("db.t", Trust("keyA")) == after


def test_users_of_postgresql_who_may_not_do_all(
    sql: Commits, database: str, tmp_path: Path
) -> None:
    def run(*statements: str) -> None:
        with engine_of(sql).begin() as connection:
            for statement in statements:
                connection.execute(text(statement))

    base, output = create(sql)
    pins, tables = "iceberg_namespace_properties", "iceberg_tables"
    run("CREATE ROLE part LOGIN", f"GRANT SELECT ON {tables}, {pins} TO part")
    try:
        part = connection_to(
            load_catalog("sql", type="sql", uri=database.replace("ags1@", "part@"))
        )
        path = Path(base.location.removeprefix("file://"))
        honest = path.read_bytes()
        assert part.load("db.t", Trust()) == base
        path.write_bytes(honest + b" ")
        with pytest.raises(MetadataIntegrityError, match="the catalog keeps"):
            part.load("db.t", Trust())
        path.write_bytes(honest)
        # Without the right to write pins, nothing is committed.
        for granted, table in (("SELECT", tables), ("UPDATE", pins)):
            run(f"GRANT {granted} ON {tables} TO part")
            with pytest.raises(CommitFailedException, match=f"permission denied .* {table}"):
                part.commit(base, setting(a="1"), [], output)
            assert sql.load("db.t", Trust()) == base
        # Whoever may not read the pins does not read the table as one that has none.
        run(f"REVOKE SELECT ON {pins} FROM part")
        with pytest.raises(ProgrammingError, match=f"permission denied .* {pins}"):
            part.load("db.t", Trust())
    finally:
        engine_of(part).dispose()
        run("DROP OWNED BY part", "DROP ROLE part")


# -- Java's JDBC catalog on the same tables, behind the REST server of the reference implementation


def test_java_s_jdbc_catalog_on_the_same_tables(kms: KmsClient, tmp_path: Path) -> None:
    database = tmp_path / "catalog.db"
    warehouse = f"file://{tmp_path}"

    def path_of(location: str) -> Path:
        return Path(location.removeprefix("file:").removeprefix("//"))

    def pinned() -> dict[str, str]:
        properties = java("GET", "namespaces/db")["properties"]
        return {k: v for k, v in properties.items() if k.startswith("ags1.")}

    def of(location: str, name: str) -> dict[str, str]:
        digest = hashlib.sha256(path_of(location).read_bytes()).hexdigest()
        values = {"key-id": "keyA", "location": location, "sha256": digest}
        return {f"ags1.pin.{part}.{name}": value for part, value in values.items()}

    with rest_server(tmp_path, tmp_path / "stderr.txt", f"file:{database}") as uri:

        def java(method: str, path: str, body: object = None) -> Any:
            answer = requests.request(method, f"{uri}/v1/{path}", json=body, timeout=60)
            assert answer.ok, answer.text
            return answer.json() if answer.content else None

        java("POST", "namespaces", {"namespace": ["db"], "properties": {"owner": "java"}})
        inner = load_catalog("rest", type="sql", uri=f"sqlite:///{database}", warehouse=warehouse)
        catalog = EncryptedCatalog(inner, kms)
        table = catalog.create_table("db.t", ROWS.schema, properties=KEY)
        table.append(ROWS)
        first = of(table.metadata_location, "t")
        assert pinned() == first
        # Java goes on, and does not know the pins.
        change = {"requirements": [], "updates": setting(java="was here")}
        java("POST", "namespaces/db/tables/t", change)
        assert pinned() == first
        table = catalog.load_table("db.t")
        assert isinstance(table, EncryptedTable)
        assert table.properties["java"] == "was here"
        assert not table.metadata_is_confirmed
        assert table.scan().count() == len(ROWS)
        path = path_of(table.metadata_location)
        theirs = path.read_text()
        path.write_text(theirs.replace('"encryption.key-id":"keyA"', '"x":"y"'))
        with pytest.raises(NotEncryptedError):
            catalog.load_table("db.t")
        path.write_text(theirs)
        # We go on; Java opens it, and changes the namespace, with the pins in it.
        table.append(ROWS)
        assert pinned() == of(table.metadata_location, "t")
        loaded = java("GET", "namespaces/db/tables/t")
        assert loaded["metadata-location"] == table.metadata_location
        java("POST", "namespaces/db/properties", {"removals": ["owner"], "updates": {"a": "b"}})
        second = of(table.metadata_location, "t")
        assert pinned() == second
        # Java renames and drops.
        names = {"source": {"namespace": ["db"], "name": "t"}}
        java("POST", "tables/rename", names | {"destination": {"namespace": ["db"], "name": "u"}})
        renamed = catalog.load_table("db.u")
        renamed.append(ROWS)
        assert pinned() == second | of(renamed.metadata_location, "u")
        java("DELETE", "namespaces/db/tables/u")
        java("DELETE", "namespaces/db")
        assert java("GET", "namespaces")["namespaces"] == []
        assert not catalog.namespace_exists("db")
        catalog.close()


def engine_of(commits: Commits) -> Engine:
    engine: Engine = commits.catalog.engine  # type: ignore[attr-defined]  # SqlCatalog's
    return engine

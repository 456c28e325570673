"""Glue and DynamoDB: one winner per base, lost answers, what is trusted (also in SQL), renames.

moto's server answers (``aws_catalogs``), with Glue's check of versions added, which moto lacks. It
runs in this process and talks HTTP, so requests, repetitions and errors are botocore's own.
PyIceberg's own catalogs read what was committed.
"""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from committing import (
    KEY,
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
from iceberg_tables import memory_kms
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.schema import Schema
from pyiceberg.types import DecimalType, ListType, NestedField, StringType, TimestampNanoType

from ags1 import MetadataIntegrityError, NotEncryptedError
from ags1.iceberg import EncryptedCatalog, EncryptedTable, verify_table
from ags1.iceberg.commit.commits import Commits
from ags1.iceberg.commit.connections import connection_to
from ags1.iceberg.storage.table_folders import TableFolders
from ags1.iceberg.storage.trust import Trust

pytest.importorskip("moto")
pytest.importorskip("werkzeug")
pytest.importorskip("boto3")
pytest.importorskip("sqlalchemy")

from aws_catalogs import Aws, aws_catalogs, environment, properties
from sqlalchemy import text

pytestmark = pytest.mark.filterwarnings("ignore::ags1.kms.memory.KeysInPropertiesWarning")

# What the services answer if something is wrong on their side; botocore then asks again.
BUSY = {"glue": "InternalServiceException", "dynamodb": "InternalServerError"}


@pytest.fixture(scope="module")
def server() -> Iterator[Aws]:
    with aws_catalogs() as aws, pytest.MonkeyPatch.context() as patch:
        for name, value in environment(aws.url).items():
            patch.setenv(name, value)
        # botocore waits up to a second before it asks Glue again.
        backoff = "botocore.retries.standard.ExponentialBackoff.delay_amount"
        patch.setattr(backoff, lambda self, context: 0)
        yield aws


@pytest.fixture
def aws(server: Aws) -> Aws:
    server.faults, server.on_commit = [], None
    server.requests.clear()
    return server


@pytest.fixture(params=["glue", "dynamodb"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# SQL catalogs keep a hash too, and other writers of theirs do not know it either.
with_sql = pytest.mark.parametrize("kind", ["glue", "dynamodb", "sql"], indirect=True)


@pytest.fixture(scope="module")
def client_of(server: Aws, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Catalog]:
    """Return the catalog of a kind, with the namespace ``db``. It is made once: the clients of
    botocore take longer than a test."""

    @functools.cache
    def made(kind: str) -> Catalog:
        folder = tmp_path_factory.mktemp(kind)
        if kind == "sql":
            found = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db"}
            found |= {"warehouse": f"file://{folder}/warehouse"}
        else:
            found = properties(kind, server.url, f"file://{folder}/warehouse")
        catalog = load_catalog(kind, **found)
        catalog.create_namespace("db")
        return catalog

    return made


@pytest.fixture
def client(aws: Aws, kind: str, client_of: Callable[[str], Catalog]) -> Iterator[Catalog]:
    """A catalog of PyIceberg's that has no table, in a warehouse without files."""
    made = client_of(kind)
    aws.requests.clear()
    yield made
    aws.faults, aws.on_commit = [], None
    for name in made.list_tables("db"):
        made.drop_table(name)
    shutil.rmtree(path_of(made.properties["warehouse"]), ignore_errors=True)


@pytest.fixture
def commits(client: Catalog) -> Commits:
    return connection_to(client)


@pytest.fixture
def catalog(client: Catalog) -> EncryptedCatalog:
    return EncryptedCatalog(client, memory_kms())


def entry(catalog: Catalog, name: str = "t") -> dict[str, Any]:
    """What the service has of a table, without the prefix of DynamoDB's columns."""
    if catalog.properties["type"] == "glue":
        found = catalog.glue.get_table(DatabaseName="db", Name=name)  # type: ignore[attr-defined]
        return dict(found["Table"]["Parameters"])
    item = catalog.dynamodb.get_item(  # type: ignore[attr-defined]
        TableName="iceberg",
        Key={"identifier": {"S": f"db.{name}"}, "namespace": {"S": "db"}},
    )["Item"]
    return {column.removeprefix("p."): next(iter(item[column].values())) for column in item}


def point_to(catalog: Catalog, location: str) -> None:
    """Commit as Java does: only the location changes, and Java knows nothing of a hash."""
    if catalog.properties["type"] == "glue":
        glue = catalog.glue  # type: ignore[attr-defined]
        found = glue.get_table(DatabaseName="db", Name="t")["Table"]
        parameters = found["Parameters"] | {"metadata_location": location}
        glue.update_table(
            DatabaseName="db",
            TableInput={"Name": "t", "Parameters": parameters},
            VersionId=found["VersionId"],
        )
        return
    if catalog.properties["type"] == "sql":
        with catalog.engine.begin() as connection:  # type: ignore[attr-defined]
            statement = text("UPDATE iceberg_tables SET metadata_location = :location")
            connection.execute(statement, {"location": location})
        return
    catalog.dynamodb.update_item(  # type: ignore[attr-defined]
        TableName="iceberg",
        Key={"identifier": {"S": "db.t"}, "namespace": {"S": "db"}},
        UpdateExpression="SET #l = :l, v = :v",
        ExpressionAttributeNames={"#l": "p.metadata_location"},
        ExpressionAttributeValues={":l": {"S": location}, ":v": {"S": "another"}},
    )


def path_of(location: str) -> Path:
    return Path(location.removeprefix("file://"))


# -- commits


def test_a_table_is_created_and_committed_to(commits: Commits) -> None:
    base, output = create(commits)
    after = commits.commit(base, setting(colour="red"), [], output)
    assert after == commits.load("db.t", Trust("keyA"))
    assert after.trust.confirms_metadata
    assert output.written == [base.location, after.location]
    found = entry(commits.catalog)
    assert found["table_type"] == "ICEBERG"
    assert found["metadata_location"] == after.location
    assert found["previous_metadata_location"] == base.location
    assert found["encryption.key-id"] == "keyA"
    # PyIceberg's own catalog finds it.
    table = commits.catalog.load_table("db.t")
    assert table.metadata_location == after.location
    assert table.properties["colour"] == "red"


def test_the_second_commit_upon_one_base_fails_and_leaves_nothing(commits: Commits) -> None:
    base, output = create(commits)
    first = commits.commit(base, setting(a="1"), [], output)
    with pytest.raises(CommitFailedException, match="another process"):
        commits.commit(base, setting(a="2"), [], output)
    assert commits.load("db.t", Trust()).location == first.location
    assert len(files_of(base.metadata["location"])) == 2
    assert output.written == [base.location, first.location]


def test_a_commit_just_before_ours_is_not_lost(commits: Commits, aws: Aws) -> None:
    """Ours has read the entry by then, and the service refuses it."""
    base, output = create(commits)
    aws.on_commit = lambda: commits.commit(base, setting(b="2"), [], output) and None
    with pytest.raises(CommitFailedException, match="another process"):
        commits.commit(base, setting(a="1"), [], output)
    assert commits.load("db.t", Trust()).metadata["properties"]["b"] == "2"
    assert len(files_of(base.metadata["location"])) == 2


def test_names(commits: Commits) -> None:
    base, output = create(commits)
    with pytest.raises(TableAlreadyExistsError):
        create(commits)
    assert len(files_of(base.metadata["location"])) == 1
    with pytest.raises(NoSuchNamespaceError):
        create(commits, "nowhere.t")
    with pytest.raises(NoSuchNamespaceError):
        commits.register("nowhere.t", base.location, output)
    with pytest.raises(NoSuchTableError):
        commits.load("db.other", Trust())
    commits.catalog.drop_table("db.t")
    with pytest.raises(CommitFailedException):
        commits.commit(base, setting(a="1"), [], output)
    assert len(files_of(base.metadata["location"])) == 1


@pytest.mark.slow
def test_eight_processes_append_at_once(commits: Commits, kind: str) -> None:
    check_eight_writers(commits, lambda: load_catalog(kind, **commits.catalog.properties))


# -- answers that are lost; botocore asks again


def test_a_commit_whose_first_answer_is_lost_is_a_success(
    commits: Commits, aws: Aws, kind: str
) -> None:
    for lost in (BUSY[kind], None):
        name = f"db.t{lost is None}"
        aws.requests.clear()
        aws.faults = [("after", lost)]
        base, output = create(commits, name)
        aws.faults = [("after", lost)]
        after = commits.commit(base, setting(a="1"), [], output)
        assert len(aws.requests) == 4, "botocore did not ask again"
        assert commits.load(name, Trust("keyA")) == after
        aws.faults = [("before", lost)]
        after = commits.commit(after, setting(a="2"), [], output)
        assert commits.load(name, Trust("keyA")) == after


def test_so_it_is_when_others_committed_since(commits: Commits, aws: Aws, kind: str) -> None:
    base, output = create(commits)

    def another() -> None:
        mine = commits.load("db.t", Trust())
        assert mine.metadata["properties"]["a"] == "1"
        commits.commit(mine, setting(b="2"), [], output)

    aws.faults = [("after", BUSY[kind])]
    aws.on_commit = lambda: setattr(aws, "on_commit", another)  # before the repetition
    after = commits.commit(base, setting(a="1"), [], output)
    assert "b" not in after.metadata["properties"]
    final = commits.load("db.t", Trust()).metadata
    assert (final["properties"]["a"], final["properties"]["b"]) == ("1", "2")


def test_a_repeated_commit_that_was_not_made_is_refused(
    commits: Commits, aws: Aws, kind: str
) -> None:
    base, output = create(commits)

    def another() -> None:
        commits.commit(base, setting(b="2"), [], output)

    aws.faults = [("before", BUSY[kind])]
    aws.on_commit = lambda: setattr(aws, "on_commit", another)
    with pytest.raises(CommitFailedException):
        commits.commit(base, setting(a="1"), [], output)
    assert "a" not in commits.load("db.t", Trust()).metadata["properties"]
    assert len(files_of(base.metadata["location"])) == 2


def test_a_creation_that_another_one_preceded(commits: Commits, aws: Aws, kind: str) -> None:
    aws.faults = [("before", BUSY[kind])]
    aws.on_commit = lambda: setattr(aws, "on_commit", lambda: create(commits) and None)
    with pytest.raises(TableAlreadyExistsError):
        create(commits)
    assert len(files_of(commits.load("db.t", Trust()).metadata["location"])) == 1


def test_a_refusal_of_the_service_leaves_nothing(commits: Commits, aws: Aws) -> None:
    base, output = create(commits)
    aws.faults = [("before", "AccessDeniedException")]
    with pytest.raises(CommitFailedException, match="AccessDenied"):
        commits.commit(base, setting(a="1"), [], output)
    assert len(files_of(base.metadata["location"])) == 1


def test_an_outcome_that_nobody_can_say_is_unknown(
    commits: Commits, aws: Aws, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, output = create(commits)

    def offline(identifier: object) -> str:
        raise ConnectionError("no network")

    monkeypatch.setattr(commits, "_current_location", offline)
    # The repetition is refused, and the first request was carried out.
    aws.faults = [("after", BUSY[kind]), ("before", "AccessDeniedException")]
    with pytest.raises(CommitStateUnknownException):
        commits.commit(base, setting(a="1"), [], output)
    assert len(files_of(base.metadata["location"])) == 2
    assert commits.load("db.t", Trust()).metadata["properties"]["a"] == "1"


# -- what is trusted


@with_sql
def test_metadata_that_was_changed_in_the_storage_is_refused(commits: Commits) -> None:
    base, output = create(commits)
    after = commits.commit(base, setting(a="1"), [], output)
    path = path_of(after.location)
    printed = path.read_text()
    path.write_text(printed.replace('"a":"1"', '"a":"2"'))
    assert path.read_text() != printed
    with pytest.raises(MetadataIntegrityError, match="the catalog keeps"):
        commits.load("db.t", Trust())
    metadata = json.loads(printed)
    del metadata["properties"]["encryption.key-id"]
    path.write_text(json.dumps(metadata))
    with pytest.raises((MetadataIntegrityError, NotEncryptedError)):
        commits.load("db.t", Trust())


@with_sql
def test_a_commit_of_a_writer_who_does_not_know_the_hash(commits: Commits) -> None:
    """The master key stays confirmed, and the next commit of ours confirms everything again."""
    base, output = create(commits)
    metadata = json.loads(path_of(base.location).read_bytes())
    metadata["properties"]["java"] = "was here"
    location = base.location.replace("/00000-", "/00001-")
    path_of(location).write_text(json.dumps(metadata))
    point_to(commits.catalog, location)
    theirs = commits.load("db.t", Trust())
    assert theirs.metadata["properties"]["java"] == "was here"
    assert not theirs.trust.confirms_metadata
    for key in ("keyB", ""):
        metadata["properties"]["encryption.key-id"] = key
        path_of(location).write_text(json.dumps(metadata))
        with pytest.raises((MetadataIntegrityError, NotEncryptedError)):
            commits.load("db.t", Trust())
    with pytest.raises(MetadataIntegrityError, match="keyB"):
        commits.load("db.t", Trust("keyB"))
    metadata["properties"]["encryption.key-id"] = "keyA"
    path_of(location).write_text(json.dumps(metadata))
    ours = commits.commit(theirs, setting(a="1"), [], output)
    assert ours.trust.confirms_metadata
    assert commits.load("db.t", Trust()) == ours


@pytest.mark.parametrize("kind", ["glue"], indirect=True)
def test_glue_s_folder_confirms_the_location_if_there_is_no_hash(commits: Commits) -> None:
    base, output = create(commits)
    glue = commits.catalog.glue  # type: ignore[attr-defined]
    found = glue.get_table(DatabaseName="db", Name="t")["Table"]
    # As Java's commits leave the entry: with the folder, and with a hash of other metadata.
    location = base.location.replace("/00000-", "/00001-")
    given = {"Name": "t", "StorageDescriptor": {"Location": base.metadata["location"]}}
    given["Parameters"] = found["Parameters"] | {"metadata_location": location}
    glue.update_table(DatabaseName="db", TableInput=given, VersionId=found["VersionId"])
    path_of(location).write_text(json.dumps(base.metadata))
    honest = commits.load("db.t", Trust())
    assert not honest.trust.confirms_metadata
    path_of(location).write_text(json.dumps(base.metadata | {"location": "s3://evil/t"}))
    with pytest.raises(MetadataIntegrityError, match="names 's3://evil/t' as the table's folder"):
        commits.load("db.t", Trust())
    path_of(location).write_text(json.dumps(base.metadata))
    moved = [{"action": "set-location", "location": base.metadata["location"] + "/new"}]
    after = commits.commit(honest, moved, [], output)
    assert commits.load("db.t", Trust()) == after


# Of `make test`: each catalog once, and each name.
@pytest.mark.slow_variants("location-sql", "write.data.path-(glue|dynamodb)")
@with_sql
@pytest.mark.parametrize("name", ["location", "write.data.path"])
def test_our_commit_does_not_confirm_a_folder_that_somebody_put_into_the_metadata(
    commits: Commits, tmp_path: Path, name: str
) -> None:
    base, output = create(commits)
    metadata = json.loads(path_of(base.location).read_bytes())
    elsewhere = f"file://{tmp_path}/other"
    if name == "location":
        metadata[name] = elsewhere
    else:
        metadata["properties"][name] = elsewhere
    location = base.location.replace("/00000-", "/00001-")
    path_of(location).write_text(json.dumps(metadata))
    point_to(commits.catalog, location)
    ours = commits.commit(commits.load("db.t", Trust()), setting(a="1"), [], output)
    for after in (ours, commits.load("db.t", Trust())):
        assert not after.trust.confirms_metadata
        own = TableFolders.of(after.metadata, after.location, after.trust, {})
        assert not own.has(f"{elsewhere}/data/a.parquet")
    # Who sets it means it.
    update: dict[str, Any] = {"action": "set-location", "location": elsewhere}
    updates = [update] if name == "location" else setting(**{name: elsewhere})
    meant = commits.commit(ours, updates, [], output)
    assert commits.load("db.t", Trust()) == meant
    assert meant.trust.confirms_metadata


def test_keys_are_kept(commits: Commits) -> None:
    base, output = create(commits)
    base = commits.commit(base, appending(base, 1), at(base), output)
    more = [adding(key_entry("key-2"))]
    base = commits.commit(base, more, [], output)
    assert ids(base) == [1]
    stored = json.loads(path_of(base.location).read_bytes())
    assert [key["key-id"] for key in stored["encryption-keys"]] == ["a2Vr", "key-1", "key-2"]
    removal = [{"action": "remove-properties", "removals": ["encryption.key-id"]}]
    with pytest.raises(NotEncryptedError):
        commits.commit(base, removal, [], output)


# -- tables


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64())})


def again(catalog: EncryptedCatalog, name: str = "db.t") -> EncryptedTable:
    table = catalog.load_table(name)
    assert isinstance(table, EncryptedTable)
    return table


def found_ids(table: EncryptedTable) -> list[int]:
    return sorted(table.scan().to_arrow()["id"].to_pylist())


@pytest.fixture
def table(catalog: EncryptedCatalog) -> EncryptedTable:
    made = catalog.create_table("db.t", rows().schema, properties=KEY)
    made.append(rows(1, 2))
    assert isinstance(made, EncryptedTable)
    return made


def test_a_table_is_written_by_two_and_verified(
    catalog: EncryptedCatalog, table: EncryptedTable
) -> None:
    other = again(catalog)
    other.append(rows(3))
    table.append(rows(4))  # tries again
    with table.transaction() as transaction:
        transaction.delete("id = 1")
        transaction.append(rows(5))
    table.rotate_keys()
    assert found_ids(again(catalog)) == [2, 3, 4, 5]
    report = verify_table(again(catalog))
    assert (report.ok, dict(report.finding_counts)) == (True, {})


def test_pruning_with_each_commit(catalog: EncryptedCatalog, table: EncryptedTable) -> None:
    table.append(rows(3))
    first = table.snapshots()[0].snapshot_id
    with table.transaction() as transaction:
        transaction.set_properties({"encryption.keys.prune-on-commit": "true"})
    table.maintenance.expire_snapshots().by_id(first).commit()
    keys = again(catalog).version.json["encryption-keys"]
    assert len(keys) == 2
    assert found_ids(again(catalog)) == [1, 2, 3]


def test_rename_register_drop_and_purge(
    catalog: EncryptedCatalog, table: EncryptedTable, tmp_path: Path
) -> None:
    kept = entry(catalog.inner)
    renamed = catalog.rename_table("db.t", "db.u")
    assert renamed.name() == ("db", "u")
    assert catalog.list_tables("db") == [("db", "u")]
    ours = {"metadata_location", "metadata_hash", "encryption.key-id"}
    after = entry(catalog.inner, "u")
    assert {n: after[n] for n in ours} == {n: kept[n] for n in ours}
    renamed.append(rows(3))
    assert found_ids(again(catalog, "db.u")) == [1, 2, 3]
    with pytest.raises(NoSuchTableError):
        table.append(rows(4))
    catalog.drop_table("db.u")
    registered = catalog.register_table("db.v", renamed.metadata_location)
    assert isinstance(registered, EncryptedTable)
    assert registered.metadata_is_confirmed
    with pytest.raises(TableAlreadyExistsError):
        catalog.register_table("db.v", renamed.metadata_location)
    catalog.create_table("db.w", rows().schema, properties=KEY)
    with pytest.raises(TableAlreadyExistsError):
        catalog.rename_table("db.v", "db.w")
    with pytest.raises(NoSuchNamespaceError):
        catalog.rename_table("db.v", "nowhere.v")
    with pytest.raises(NoSuchTableError):
        catalog.rename_table("db.t", "db.x")
    folder = path_of(registered.location())
    assert any(path.is_file() for path in folder.rglob("*"))
    catalog.purge_table("db.v")
    assert catalog.list_tables("db") == [("db", "w")]
    assert not [path for path in folder.rglob("*") if path.is_file()]


def test_a_rename_does_not_lose_a_commit(
    catalog: EncryptedCatalog, table: EncryptedTable, aws: Aws, kind: str
) -> None:
    other = again(catalog)

    def append() -> None:
        other.append(rows(3))

    # In Glue there are two requests, and the second one is refused.
    aws.on_commit = append if kind == "dynamodb" else lambda: setattr(aws, "on_commit", append)
    with pytest.raises(CommitFailedException):
        catalog.rename_table("db.t", "db.u")
    assert catalog.list_tables("db") == [("db", "t")]
    assert found_ids(again(catalog)) == [1, 2, 3]


def test_a_rename_whose_answer_is_lost(
    catalog: EncryptedCatalog, table: EncryptedTable, aws: Aws, kind: str
) -> None:
    aws.faults = [("never", None), ("after", BUSY[kind])][kind == "dynamodb" :]
    assert found_ids(catalog.rename_table("db.t", "db.u")) == [1, 2]  # type: ignore[arg-type]
    assert catalog.list_tables("db") == [("db", "u")]


def test_a_rename_that_is_refused_is_taken_back(
    catalog: EncryptedCatalog, table: EncryptedTable, aws: Aws, kind: str
) -> None:
    faults = [("never", None), ("before", "AccessDeniedException")]
    aws.faults = faults[kind == "dynamodb" :]
    with pytest.raises(Exception, match="AccessDenied"):
        catalog.rename_table("db.t", "db.u")
    assert catalog.list_tables("db") == [("db", "t")]
    assert found_ids(again(catalog)) == [1, 2]


# -- Glue's own


@pytest.mark.parametrize("kind", ["glue"], indirect=True)
def test_what_others_have_put_into_glue_s_entry_stays(commits: Commits) -> None:
    base, output = create(commits)
    glue = commits.catalog.glue  # type: ignore[attr-defined]
    found = glue.get_table(DatabaseName="db", Name="t")["Table"]
    theirs = {
        "Description": "flights",
        "Owner": "somebody",
        "Retention": 3,
        "Parameters": found["Parameters"] | {"classification": "iceberg"},
        "StorageDescriptor": found["StorageDescriptor"] | {"Compressed": True},
    }
    glue.update_table(DatabaseName="db", TableInput={"Name": "t", **theirs})
    commits.commit(base, setting(a="1"), [], output)
    after = glue.get_table(DatabaseName="db", Name="t")["Table"]
    assert {name: after[name] for name in ("Description", "Owner", "Retention")} == {
        name: theirs[name] for name in ("Description", "Owner", "Retention")
    }
    assert after["Parameters"]["classification"] == "iceberg"
    assert after["StorageDescriptor"]["Compressed"]
    assert after["TableType"] == "EXTERNAL_TABLE"


@pytest.mark.parametrize("kind", ["glue"], indirect=True)
def test_glue_has_the_columns(commits: Commits) -> None:
    schema = Schema(
        NestedField(1, "price", DecimalType(9, 2), required=False, doc="long " * 100),
        NestedField(2, "ns", TimestampNanoType(), required=False),
        NestedField(3, "tags", ListType(4, StringType(), False), required=False),
    )
    create(commits, schema=schema)
    glue = commits.catalog.glue  # type: ignore[attr-defined]
    columns = glue.get_table(DatabaseName="db", Name="t")["Table"]["StorageDescriptor"]["Columns"]
    assert {column["Name"]: column["Type"] for column in columns} == {
        "price": "decimal(9,2)",
        "ns": "timestamp_ns",
        "tags": "array<string>",
    }
    assert len(columns[0]["Comment"]) == 255


@pytest.mark.parametrize("kind", ["glue"], indirect=True)
def test_a_database_of_s3_tables_is_refused(
    commits: Commits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commits.catalog, "_is_s3tables_database", lambda name: True)
    with pytest.raises(NotImplementedError, match="S3 Tables"):
        create(commits)


@pytest.mark.parametrize("kind", ["glue"], indirect=True)
def test_the_catalog_says_whether_versions_are_archived(client: Catalog, aws: Aws) -> None:
    for asked in ("true", "false"):
        skip = {"glue.skip-archive": asked}
        commits = connection_to(load_catalog("glue", **client.properties, **skip))
        base, output = create(commits, f"db.{asked}")
        commits.commit(base, setting(a="1"), [], output)
        action, request = aws.requests[-1]
        assert (action, request["SkipArchive"]) == ("AWSGlue.UpdateTable", asked == "true")


def test_a_table_does_not_choose_the_server(commits: Commits, aws: Aws, kind: str) -> None:
    elsewhere = {f"{kind}.endpoint": "http://127.0.0.1:1", f"{kind}.region": "nowhere"}
    base, output = create(commits, properties=KEY | elsewhere)
    before = len(aws.requests)
    commits.commit(base, setting(a="1"), [], output)
    assert len(aws.requests) == before + 1

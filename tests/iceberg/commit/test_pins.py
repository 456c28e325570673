"""What a SQL catalog keeps of an encrypted table: its key ID and its metadata.json's SHA-256.

The rows are read from SQLite itself, and the hash is computed here. The other client is plain
PyIceberg. It does not write tables of version 3, so another writer's commit is an UPDATE here, as
JDBC's; Java's own is in ``interop/test_write_catalogs.py``. What is the same for Glue and DynamoDB
is tested in ``test_aws.py``.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from iceberg_tables import KMS_PROPERTIES, unpin
from pyiceberg.catalog import Catalog
from pyiceberg.catalog import load_catalog as load_plain_catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.table import Table
from pyiceberg.types import LongType

from ags1 import MetadataIntegrityError, NotEncryptedError
from ags1.iceberg import (
    EncryptedCatalog,
    EncryptedTable,
    load_catalog,
    open_table,
    verify_table,
)

pytest.importorskip("sqlalchemy")
pytestmark = pytest.mark.filterwarnings("ignore::ags1.kms.memory.KeysInPropertiesWarning")

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])
ENCRYPTED = {"encryption.key-id": "keyA"}


@pytest.fixture
def table(catalog: EncryptedCatalog) -> EncryptedTable:
    return create(catalog, "db.t")


@pytest.fixture
def plain(tmp_path: Path) -> Catalog:
    """Plain PyIceberg's catalog over the same database."""
    return load_plain_catalog("sql", **properties(tmp_path))


def properties(tmp_path: Path, options: str = "") -> dict[str, str]:
    uri = f"sqlite:///{tmp_path}/catalog.db"
    if options:
        uri = f"sqlite:///file:{tmp_path}/catalog.db?{options}"
    return {"type": "sql", "uri": uri, "warehouse": f"file://{tmp_path}/warehouse"}


def create(catalog: EncryptedCatalog, name: str) -> EncryptedTable:
    made = catalog.create_table(name, SCHEMA, properties=ENCRYPTED)
    assert isinstance(made, EncryptedTable)
    return made


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": ids, "v": [f"v{i}" for i in ids]}, schema=SCHEMA)


def path_of(location: str) -> Path:
    return Path(location.removeprefix("file://"))


def kept(tmp_path: Path) -> dict[str, str]:
    """The rows of all pins: the namespace and the key, and the value."""
    with sqlite3.connect(tmp_path / "catalog.db") as database:
        found = database.execute(
            "SELECT namespace || '/' || property_key, property_value"
            " FROM iceberg_namespace_properties WHERE property_key LIKE 'ags1%'"
        ).fetchall()
    return dict(found)


def of(location: str, name: str = "db.t", key_id: str = "keyA") -> dict[str, str]:
    """The rows that pin the metadata.json at ``location``."""
    namespace, _, table = name.rpartition(".")
    return {
        f"{namespace}/ags1.pin.key-id.{table}": key_id,
        f"{namespace}/ags1.pin.location.{table}": location,
        f"{namespace}/ags1.pin.sha256.{table}": hashlib.sha256(
            path_of(location).read_bytes()
        ).hexdigest(),
    }


def test_each_commit_pins_its_metadata(catalog: EncryptedCatalog, tmp_path: Path) -> None:
    def check(table: Any) -> None:
        assert table.metadata_is_confirmed
        assert kept(tmp_path) == of(table.metadata_location, key_id=table.key_id)
        assert catalog.load_table("db.t").metadata_is_confirmed

    table = catalog.create_table_transaction("db.t", SCHEMA, properties=ENCRYPTED)
    table.commit_transaction()
    table = catalog.load_table("db.t")
    check(table)
    for change in (
        lambda t: t.append(rows(1, 2, 3)),
        lambda t: t.delete("id = 2"),
        lambda t: t.update_schema().add_column("w", LongType()).commit(),
        lambda t: t.rewrap_keys("keyB"),
        lambda t: (
            t.transaction()
            .set_properties({"write.metadata.compression-codec": "gzip"})
            .commit_transaction()
        ),
    ):
        change(table)
        check(table)
    assert table.metadata_location.endswith(".gz.metadata.json")


Change = Callable[[dict[str, Any], list[dict[str, Any]]], Any]


def _downgrade(metadata: dict[str, Any], _: object) -> None:
    del metadata["properties"]["encryption.key-id"], metadata["encryption-keys"]
    del metadata["next-row-id"], metadata["refs"], metadata["current-snapshot-id"]
    metadata |= {"snapshots": [], "format-version": 2, "location": "file:///tmp/evil"}


def _exchange_names(metadata: dict[str, Any], _: object) -> None:
    first, second = metadata["schemas"][-1]["fields"]
    first["name"], second["name"] = second["name"], first["name"]


def _forge_default(metadata: dict[str, Any], _: object) -> None:
    field = {"id": 3, "name": "x", "type": "int", "required": True, "initial-default": 7}
    metadata["schemas"][-1]["fields"].append(field)
    metadata["last-column-id"] = 3


ATTACKS: dict[str, Change] = {
    "encryption switched off": _downgrade,
    "an older metadata.json": lambda metadata, older: older[-1],
    "snapshots emptied": lambda metadata, _: metadata.update(
        {"snapshots": [], "refs": {}, "current-snapshot-id": None}
    ),
    "column names exchanged": _exchange_names,
    "a column with a forged default": _forge_default,
    "another location": lambda metadata, _: metadata.update(location="file:///tmp/evil"),
    "a location with ..": lambda metadata, _: metadata.update(
        location=f"{metadata['location']}/../other"
    ),
    "row IDs set back": lambda metadata, _: metadata["snapshots"][-1].update({"first-row-id": 0}),
    "another key": lambda metadata, _: metadata["properties"].update({"encryption.key-id": "keyB"}),
    "another folder for new files": lambda metadata, _: metadata["properties"].update(
        {"write.data.path": "file:///tmp/evil"}
    ),
    "one more space": lambda metadata, _: None,
}


def test_metadata_that_somebody_changed_is_refused(
    table: EncryptedTable, catalog: EncryptedCatalog
) -> None:
    older = []
    for number in range(2):
        older.append(json.loads(path_of(table.metadata_location).read_bytes()))
        table.append(rows(number))
    path = path_of(table.metadata_location)
    honest = path.read_bytes()
    before = {p for p in path.parents[1].rglob("*") if p.is_file()}
    doors: dict[str, Callable[[], object]] = {
        "load": lambda: catalog.load_table("db.t"),
        "load with its key": lambda: catalog.load_table("db.t", expected_key_id="keyA"),
        "refresh": table.refresh,
        "rename": lambda: catalog.rename_table("db.t", "db.u"),
        "purge": lambda: catalog.purge_table("db.t"),
        "migrate": lambda: catalog.migrate_table("db.t", "keyA"),
        "commits": lambda: catalog.commits().load("db.t", table.version.base.trust),
    }
    for attack, change in ATTACKS.items():
        metadata = json.loads(honest)
        metadata = change(metadata, older) or metadata
        path.write_text(json.dumps(metadata) + " ")
        for name, door in doors.items():
            assert is_refused(door), (attack, name)
        assert {p for p in path.parents[1].rglob("*") if p.is_file()} == before, attack
        assert catalog.table_exists("db.t"), attack
    path.write_bytes(honest)
    assert catalog.load_table("db.t").scan().count() == 2


def is_refused(call: Callable[[], object]) -> bool:
    try:
        call()
    except MetadataIntegrityError:
        return True
    return False


# What is noticed without the pins. SECURITY.md names the other attacks.
SEEN_WITHOUT_PINS = ["a location with ..", "another key"]


def test_what_is_noticed_without_pins(table: EncryptedTable, catalog: EncryptedCatalog) -> None:
    """The table is one of an older release, or is opened by its folder or with a location map."""
    for number in range(2):
        table.append(rows(number))
    selected = {"selected_fields": ("id", "_row_id")}
    honest = table.scan(**selected).to_arrow().to_pylist()
    unpin(catalog)
    path = path_of(table.metadata_location)
    untouched = path.read_text()
    own = json.loads(untouched)["location"]

    def loaded() -> EncryptedTable:
        found: EncryptedTable = catalog.load_table("db.t", expected_key_id="keyA")
        return found

    def in_its_folder() -> EncryptedTable:
        return open_table(str(path.parents[1]), catalog.kms, expected_key_id="keyA")

    def mapped() -> EncryptedTable:
        return open_table(str(path), catalog.kms, {own: own}, expected_key_id="keyA")

    for attack in (*SEEN_WITHOUT_PINS, "another location", "row IDs set back"):
        metadata = json.loads(untouched)
        ATTACKS[attack](metadata, [])
        path.write_text(json.dumps(metadata))
        for opened in (loaded, in_its_folder, mapped):
            if attack in SEEN_WITHOUT_PINS:
                assert is_refused(opened), (attack, opened)
            elif opened is mapped:
                # Another location looks like that of a table that was moved here.
                opened()
            else:
                # Row IDs are the manifests', which are authenticated.
                found = opened().scan(**selected).to_arrow().to_pylist()
                assert found == honest, (attack, opened)
    loaded().append(rows(2))
    found = catalog.load_table("db.t").scan(**selected).to_arrow().to_pylist()
    assert sorted(row["_row_id"] for row in found) == [0, 1, 2]


def test_a_hash_that_the_caller_expects_is_checked_too(
    table: EncryptedTable, catalog: EncryptedCatalog
) -> None:
    digest = hashlib.sha256(path_of(table.metadata_location).read_bytes()).hexdigest()
    assert catalog.load_table("db.t", expected_metadata_sha256=digest.upper()).key_id == "keyA"
    with pytest.raises(MetadataIntegrityError, match="was expected"):
        catalog.load_table("db.t", expected_metadata_sha256="00" * 32)


def test_another_writer_moves_on(
    table: EncryptedTable, catalog: EncryptedCatalog, tmp_path: Path
) -> None:
    table.append(rows(1))
    path = path_of(table.metadata_location)
    metadata = json.loads(path.read_bytes())
    metadata["properties"]["a"] = "1"
    path = path.with_name("00002-theirs.metadata.json")
    path.write_text(json.dumps(metadata))
    first = of(table.metadata_location)
    with sqlite3.connect(tmp_path / "catalog.db") as database:
        database.execute("UPDATE iceberg_tables SET metadata_location = ?", [f"file://{path}"])
    table.refresh()
    assert table.properties["a"] == "1"
    assert not table.metadata_is_confirmed
    [note] = [f for f in verify_table(table).findings if f.kind == "metadata-not-pinned"]
    assert "another writer" in note.message
    assert "the next commit of ags1 writes one" in note.message
    # The key stays pinned.
    honest = path.read_text()
    for key_id, version in (("keyB", 3), ("", 3), ("", 2)):
        metadata = json.loads(honest) | {"format-version": version}
        metadata["properties"]["encryption.key-id"] = key_id
        path.write_text(json.dumps(metadata))
        with pytest.raises(MetadataIntegrityError, match="'keyA' was expected"):
            catalog.load_table("db.t")
    path.write_text(honest)
    assert kept(tmp_path) == first
    table.append(rows(2))
    assert kept(tmp_path) == of(table.metadata_location)
    assert "metadata-not-pinned" not in verify_table(table).finding_counts


def test_a_migration_believes_the_pins(
    table: EncryptedTable, catalog: EncryptedCatalog, tmp_path: Path
) -> None:
    """After another writer's commit, somebody replaces the metadata by that of a plain table with
    the same key ID. A migration would encrypt the rows of that one, and confirm them."""
    table.append(rows(1))
    plain = catalog.create_table("db.plain", SCHEMA)
    plain.append(rows(66))
    path = path_of(table.metadata_location).with_name("00002-theirs.metadata.json")
    forged = json.loads(path_of(plain.metadata_location).read_bytes())
    forged["properties"]["encryption.key-id"] = "keyA"
    path.write_text(json.dumps(forged))
    with sqlite3.connect(tmp_path / "catalog.db") as database:
        database.execute(
            "UPDATE iceberg_tables SET metadata_location = ? WHERE table_name = 't'",
            [f"file://{path}"],
        )
    before = kept(tmp_path)
    with pytest.raises(NotEncryptedError, match="may be an attack") as refused:
        catalog.load_table("db.t")
    assert "migrate" not in str(refused.value)
    for door in (
        table.refresh,
        lambda: catalog.migrate_table("db.t", "keyA"),
        lambda: catalog.migrate_table("db.t", "keyB"),
        lambda: catalog.rename_table("db.t", "db.u"),
    ):
        with pytest.raises(NotEncryptedError, match="somebody replaced the metadata"):
            door()
    assert kept(tmp_path) == before


def test_a_table_of_an_older_release_is_pinned_by_the_next_commit(
    table: EncryptedTable, catalog: EncryptedCatalog, tmp_path: Path
) -> None:
    unpin(catalog)
    table.refresh()
    assert not table.metadata_is_confirmed
    [note] = [f for f in verify_table(table).findings if f.kind == "metadata-not-pinned"]
    assert "another writer" not in note.message
    table.append(rows(1))
    assert kept(tmp_path) == of(table.metadata_location)


@pytest.mark.parametrize("name", ["db.u", "other.t", "a.b.u"])
def test_the_pins_move_with_a_table_that_is_renamed(
    table: EncryptedTable, catalog: EncryptedCatalog, plain: Catalog, tmp_path: Path, name: str
) -> None:
    # What is left of another table that had the name.
    catalog.create_namespace_if_not_exists(name.rpartition(".")[0])
    create(catalog, name).append(rows(7))
    plain.drop_table(name)
    table.append(rows(1))
    renamed = catalog.rename_table("db.t", name)
    assert kept(tmp_path) == of(renamed.metadata_location, name)
    assert renamed.metadata_is_confirmed
    renamed.append(rows(2))
    assert kept(tmp_path) == of(renamed.metadata_location, name)
    table = create(catalog, "db.t")
    both = kept(tmp_path)
    for to, error in ((name, TableAlreadyExistsError), ("nowhere.t", NoSuchNamespaceError)):
        with pytest.raises(error):
            catalog.rename_table("db.t", to)
    assert kept(tmp_path) == both
    assert catalog.rename_table("db.t", "db.t").metadata_is_confirmed
    assert kept(tmp_path) == both


def test_what_is_dropped_is_forgotten(
    table: EncryptedTable, catalog: EncryptedCatalog, tmp_path: Path
) -> None:
    other = create(catalog, "db.t_")
    catalog.drop_table("db.t")
    assert kept(tmp_path) == of(other.metadata_location, "db.t_")
    with pytest.raises(NoSuchTableError):
        catalog.drop_table("db.t")
    again = catalog.register_table("db.t", table.metadata_location)
    assert again.metadata_is_confirmed
    again.append(rows(1))
    catalog.purge_table("db.t")
    assert kept(tmp_path) == of(other.metadata_location, "db.t_")
    catalog.drop_table("db.t_")
    catalog.drop_namespace("db")
    assert not catalog.namespace_exists("db")


@pytest.mark.parametrize("of_row", [True, False])
def test_a_purge_whose_database_fails_drops_nothing(
    table: EncryptedTable, catalog: EncryptedCatalog, tmp_path: Path, of_row: bool
) -> None:
    table.append(rows(1))
    pins = kept(tmp_path)
    deleted = "iceberg_tables" if of_row else "iceberg_namespace_properties"
    with closing(sqlite3.connect(tmp_path / "catalog.db")) as database:
        fails = "BEGIN SELECT RAISE(ABORT, 'disk full'); END"
        database.execute(f"CREATE TRIGGER fail AFTER DELETE ON {deleted} {fails}")
        with pytest.raises(OSError, match=f"files are left in {table.location()}"):
            catalog.purge_table("db.t")
        assert kept(tmp_path) == pins
        assert catalog.load_table("db.t").scan().count() == 1
        database.execute("DROP TRIGGER fail")
    catalog.purge_table("db.t")
    assert kept(tmp_path) == {}
    assert not catalog.table_exists("db.t")


@pytest.mark.parametrize("by", ["drop", "create", "begin", "register", "rename"])
def test_a_table_that_another_client_dropped(
    table: EncryptedTable, catalog: EncryptedCatalog, plain: Catalog, tmp_path: Path, by: str
) -> None:
    """Its name stays that of an encrypted table, until this library gives it to another one."""
    location = plain.create_table("db.plain", SCHEMA).metadata_location
    pins = of(table.metadata_location)
    plain.drop_table("db.t")
    assert kept(tmp_path) == pins
    if by == "drop":
        plain.register_table("db.t", location)
        with pytest.raises(NotEncryptedError, match="'keyA' was expected"):
            catalog.load_table("db.t")
        catalog.drop_table("db.t")
        catalog.register_table("db.t", location)
    elif by == "create":
        catalog.create_table("db.t", SCHEMA)
    elif by == "begin":
        catalog.create_table_transaction("db.t", SCHEMA).commit_transaction()
    elif by == "register":
        catalog.register_table("db.t", location)
    else:
        catalog.rename_table("db.plain", "db.t")
    assert kept(tmp_path) == {}
    assert type(catalog.load_table("db.t")) is Table


def test_a_plain_table_does_not_unpin_an_encrypted_one(
    table: EncryptedTable, catalog: EncryptedCatalog, plain: Catalog, tmp_path: Path
) -> None:
    other = plain.create_table("db.plain", SCHEMA)
    pins = of(table.metadata_location)
    for attempt in (
        lambda: catalog.create_table("db.t", SCHEMA),
        lambda: catalog.register_table("db.t", other.metadata_location),
        lambda: catalog.rename_table("db.plain", "db.t"),
    ):
        with pytest.raises(TableAlreadyExistsError):
            attempt()
    assert kept(tmp_path) == pins
    # Other tables have no pins, and those of PyIceberg are PyIceberg's.
    assert type(catalog.load_table("db.plain")) is Table
    other = plain.load_table("db.plain")
    other.append(rows(1))
    assert catalog.load_table("db.plain").scan().count() == 1


def test_a_migrated_table_is_pinned(catalog: EncryptedCatalog, tmp_path: Path) -> None:
    catalog.create_table("db.t", SCHEMA).append(rows(1))
    assert kept(tmp_path) == {}
    catalog.migrate_table("db.t", "keyA")
    assert kept(tmp_path) == of(catalog.load_table("db.t").metadata_location)


def test_plain_pyiceberg_does_not_stumble_over_the_pins(
    table: EncryptedTable, catalog: EncryptedCatalog, plain: Catalog, tmp_path: Path
) -> None:
    pins = of(table.metadata_location)
    plain.update_namespace_properties("db", {"exists"}, {"owner": "me"})
    shown = {key.removeprefix("db/"): value for key, value in pins.items()}
    assert plain.load_namespace_properties("db") == {"owner": "me", **shown}
    assert plain.list_namespaces() == [("db",)]
    assert plain.list_tables("db") == [("db", "t")]
    assert plain.table_exists("db.t")
    plain.rename_table("db.t", "db.u")
    # Under the new name nothing is known of it, until the next commit.
    renamed = catalog.load_table("db.u")
    assert not renamed.metadata_is_confirmed
    renamed.append(rows(1))
    assert kept(tmp_path) == pins | of(renamed.metadata_location, "db.u")
    plain.drop_table("db.u")
    plain.drop_namespace("db")
    assert kept(tmp_path) == {}
    assert not plain.namespace_exists("db")


def test_catalogs_of_one_database_have_pins_of_their_own(
    table: EncryptedTable, tmp_path: Path
) -> None:
    with load_catalog("second", **properties(tmp_path), **KMS_PROPERTIES) as second:
        second.create_namespace("db")
        place = f"file://{tmp_path}/second"
        made = second.create_table("db.t", SCHEMA, place, properties=ENCRYPTED)
        made.append(rows(1))
        assert made.refresh().metadata_is_confirmed
        second.drop_table("db.t")
    assert kept(tmp_path) == of(table.metadata_location)
    assert table.refresh().metadata_is_confirmed


def test_a_database_without_namespace_properties(
    table: EncryptedTable, catalog: EncryptedCatalog, tmp_path: Path
) -> None:
    create(catalog, "db.other")
    with sqlite3.connect(tmp_path / "catalog.db") as database:
        database.execute("DROP TABLE iceberg_namespace_properties")
    given = properties(tmp_path) | {"init_catalog_tables": "false"}
    with load_catalog("sql", **given, **KMS_PROPERTIES) as lacking:
        found = lacking.load_table("db.t")
        found.append(rows(1))
        assert found.refresh().scan().count() == 1
        assert not found.metadata_is_confirmed
        [note] = [f for f in found.check("quick").findings if f.kind == "metadata-not-pinned"]
        assert "the next commit of ags1 writes one" not in note.message
        lacking.rename_table("db.t", "db.u").append(rows(2))
        lacking.drop_table("db.u")
        with pytest.raises(NoSuchTableError):
            lacking.load_table("db.u")


def test_a_database_that_may_only_be_read(
    table: EncryptedTable, catalog: EncryptedCatalog, tmp_path: Path
) -> None:
    table.append(rows(1))
    given = properties(tmp_path, "mode=ro&uri=true")
    with load_catalog("sql", **given, **KMS_PROPERTIES) as reading:
        found = reading.load_table("db.t")
        assert found.scan().count() == 1
        assert found.metadata_is_confirmed
        path = path_of(table.metadata_location)
        path.write_text(path.read_text() + " ")
        with pytest.raises(MetadataIntegrityError, match="the catalog keeps"):
            reading.load_table("db.t")

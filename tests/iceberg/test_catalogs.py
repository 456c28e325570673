"""``load_catalog``: PyIceberg's catalogs, with encrypted tables among their tables.

SQL runs on SQLite. The REST server is the protocol's one answer that loading needs, served on
127.0.0.1; Hive's client answers from memory. (Java's own servers are in ``interop``.) The tables
are those that Java wrote.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import sys
import textwrap
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from iceberg_tables import (
    JAVA_LOCATION,
    KMS_PROPERTIES,
    TABLES,
    by_id,
    copied,
    expected_rows,
    memory_kms,
    metadata_file,
    unpin,
)
from pyiceberg.catalog import Catalog
from pyiceberg.catalog import load_catalog as load_plain_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError, ValidationException
from pyiceberg.table import Table
from table_maker import TableMaker

from ags1 import KeyMetadataError, KmsConfigurationError, MetadataIntegrityError, NotEncryptedError
from ags1.errors import KmsKeyNotFoundError
from ags1.iceberg import (
    EncryptedCatalog,
    EncryptedTable,
    PlainTableWarning,
    check_table,
    load_catalog,
    open_table,
    verify_table,
)
from ags1.iceberg.pyiceberg.redirection import refuse_redirection
from ags1.kms import KmsClient, from_properties
from ags1.kms.memory import MemoryKms

pytest.importorskip("sqlalchemy")
pytestmark = pytest.mark.filterwarnings("ignore::ags1.kms.memory.KeysInPropertiesWarning")

PLACES = {JAVA_LOCATION: str(TABLES)}
COLUMNS = [{"id": 1, "name": "id", "type": "long"}]


@pytest.fixture
def sql(tmp_path: Path) -> dict[str, str]:
    """The properties of a SQL catalog with the fixture table ``db.stats``."""
    properties = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": str(tmp_path),
    }
    with load_catalog("sql", **properties, **KMS_PROPERTIES) as catalog:
        catalog.create_namespace("db")
        catalog.register_table("db.stats", str(metadata_file("stats")))
    return properties


def plain_table(folder: Path) -> str:
    maker = TableMaker(folder, COLUMNS)
    maker.commit(maker.add_parquet([{"id": 1}, {"id": 2}]))
    return maker.write()


def test_an_encrypted_table_of_a_sql_catalog(sql: dict[str, str]) -> None:
    with load_catalog("sql", **sql, **KMS_PROPERTIES) as catalog:
        assert isinstance(catalog, Catalog)
        assert catalog.list_tables("db") == [("db", "stats")]
        assert catalog.table_exists("db.stats")
        table = catalog.load_table("db.stats", location_map=PLACES)
        assert isinstance(table, EncryptedTable)
        assert table.name() == ("db", "stats")
        assert by_id(table.scan().to_arrow().to_pylist()) == expected_rows("stats")
        assert by_id(table.refresh().scan().to_arrow().to_pylist()) == expected_rows("stats")
        assert "db.stats" in repr(table) or "stats" in repr(table)


def test_plain_tables_are_pyiceberg_s_own(sql: dict[str, str], tmp_path: Path) -> None:
    path = plain_table(tmp_path / "t")
    for more in (KMS_PROPERTIES, {}):
        with load_catalog("sql", **sql, **more) as catalog:
            if not catalog.table_exists("db.plain"):
                catalog.register_table("db.plain", path)
            table = catalog.load_table("db.plain")
            assert type(table) is Table
            assert table.scan().to_arrow().num_rows == 2
            with pytest.raises(NotEncryptedError):
                catalog.load_table("db.plain", require_encrypted=True)
            with pytest.raises(NotEncryptedError):
                catalog.load_table("db.plain", expected_key_id="keyA")


def test_an_encrypted_table_without_a_kms(sql: dict[str, str]) -> None:
    with load_catalog("sql", **sql) as catalog, pytest.raises(KmsConfigurationError):
        catalog.load_table("db.stats")


def test_the_kms_may_be_a_client(sql: dict[str, str]) -> None:
    with EncryptedCatalog(load_plain_catalog("sql", **sql), memory_kms()) as catalog:
        assert catalog.load_table("db.stats", location_map=PLACES).scan().count() == 1000


@pytest.mark.slow
def test_the_configuration_of_pyiceberg_is_read(tmp_path: Path, run_python: Any) -> None:
    # In its file, PyIceberg makes the names of properties small, the key's among them.
    key = {"encryption.kms-type": "memory", "encryption.kms.key.keyA": "00" * 16}
    maker = TableMaker(tmp_path / "t", COLUMNS, from_properties(key))
    maker.commit(maker.add_parquet([{"id": 1}]))
    lines = ["catalog:", "  mine:"]
    configured = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db"} | key
    lines += [f'    {name}: "{value}"' for name, value in configured.items()]
    (tmp_path / ".pyiceberg.yaml").write_text("\n".join(lines))
    script = f"""
import os, sys, warnings
warnings.simplefilter("ignore")
os.environ["PYICEBERG_HOME"] = {str(tmp_path)!r}
from ags1.iceberg import load_catalog
catalog = load_catalog("mine")
assert not [name for name in catalog.properties if name.startswith("encryption.kms.key")]
catalog.create_namespace("db")
table = catalog.register_table("db.t", {maker.write()!r})
assert table.scan().count() == 1
"""
    run_python(script)


class ForPyIceberg:
    """A KMS client that was written for PyIceberg."""

    def __init__(self, properties: dict[str, str]) -> None:
        self._kms = MemoryKms(properties)

    def wrap_key(self, key: bytes, wrapping_key_id: str) -> bytes:
        return self._kms.wrap_key(key, wrapping_key_id)

    def unwrap_key(self, wrapped_key: bytes, wrapping_key_id: str) -> bytes:
        return self._kms.unwrap_key(wrapped_key, wrapping_key_id)


def test_a_kms_client_of_pyiceberg_opens_tables(sql: dict[str, str]) -> None:
    keys = {name: KMS_PROPERTIES[name] for name in KMS_PROPERTIES if ".key." in name}
    named = {"py-kms-impl": f"{__name__}.ForPyIceberg", **keys}
    # The class does not say whose keys it unwraps with.
    with load_catalog("sql", **sql, **named) as catalog:
        unpin(catalog)
        with pytest.raises(KeyMetadataError):
            catalog.load_table("db.stats")
    trusted = {"encryption.trusted-key-ids": "keyA"}
    with load_catalog("sql", **sql, **named, **trusted) as catalog:
        assert catalog.load_table("db.stats", location_map=PLACES).scan().count() == 1000
    ours = {**KMS_PROPERTIES, "py-kms-impl": "ags1.kms.pyiceberg.KeyManagementClient"}
    with load_catalog("sql", **sql, **ours) as catalog:
        assert catalog.load_table("db.stats", location_map=PLACES).scan().count() == 1000


def test_pyiceberg_itself_loads_our_catalogs(sql: dict[str, str]) -> None:
    # With py-catalog-impl, PyIceberg takes no type. It follows from the URI.
    named = {"uri": sql["uri"], "py-catalog-impl": "ags1.iceberg.load_catalog", **KMS_PROPERTIES}
    with load_plain_catalog("sql", **named) as catalog:
        assert type(catalog) is EncryptedCatalog
        assert catalog.table_exists("db.stats")
        assert catalog.list_tables("db") == [("db", "stats")]


def test_pandas_reads_and_writes_an_encrypted_table(sql: dict[str, str]) -> None:
    pandas = pytest.importorskip("pandas", "3.0")
    rows = pandas.DataFrame({"id": [1, 2], "name": ["a", "b"]})
    with load_catalog("sql", **sql, **KMS_PROPERTIES) as catalog:
        schema = pa.Table.from_pandas(rows).schema
        catalog.create_table("db.frames", schema, properties={"encryption.key-id": "keyA"})
    here = {name: value for name, value in sql.items() if name != "type"}
    here |= {"py-catalog-impl": "ags1.iceberg.load_catalog", **KMS_PROPERTIES}
    given = {"catalog_name": "sql", "catalog_properties": here}
    rows.to_iceberg("db.frames", **given, append=True)
    found = pandas.read_iceberg("db.frames", **given, row_filter="id > 1")
    assert found.to_dict("records") == [{"id": 2, "name": "b"}]
    with load_catalog("sql", **sql, **KMS_PROPERTIES) as catalog:
        files = catalog.load_table("db.frames").inspect.files()["file_path"].to_pylist()
    assert [Path(file.removeprefix("file://")).read_bytes()[:4] for file in files] == [b"PARE"]


def test_what_the_catalog_shows_has_no_key(sql: dict[str, str]) -> None:
    with load_catalog("sql", **sql, **KMS_PROPERTIES) as catalog:
        table = catalog.load_table("db.stats", location_map=PLACES)
        shown = [catalog, catalog.properties, catalog.inner.properties, table.io.properties, table]
        for thing in [*shown, vars(catalog)]:
            for name, value in KMS_PROPERTIES.items():
                assert name == "encryption.kms-type" or value not in repr(thing)


def test_pins(sql: dict[str, str]) -> None:
    digest = hashlib.sha256(metadata_file("stats").read_bytes()).hexdigest()
    with load_catalog("sql", **sql, **KMS_PROPERTIES) as catalog:
        pins = {"expected_key_id": "keyA", "expected_metadata_sha256": digest}
        assert catalog.load_table("db.stats", location_map=PLACES, **pins).scan().count() == 1000
        for wrong in ({"expected_key_id": "keyB"}, {"expected_metadata_sha256": "00" * 32}):
            with pytest.raises(MetadataIntegrityError):
                catalog.load_table("db.stats", **wrong)
        with pytest.raises(NoSuchTableError):
            catalog.load_table("db.nothing")


def test_the_master_keys_that_a_catalog_s_tables_may_be_under(sql: dict[str, str]) -> None:
    keys = {"encryption.trusted-key-ids": "keyB, keyA"}
    with load_catalog("sql", **sql, **KMS_PROPERTIES, **keys) as catalog:
        assert catalog.load_table("db.stats", location_map=PLACES).scan().count() == 1000
    keys = {"encryption.trusted-key-ids": "keyB"}
    with load_catalog("sql", **sql, **KMS_PROPERTIES, **keys) as catalog:
        with pytest.raises(MetadataIntegrityError, match="none of those"):
            catalog.load_table("db.stats")


def test_a_catalog_may_require_encrypted_tables(sql: dict[str, str], tmp_path: Path) -> None:
    maker = TableMaker(tmp_path / "t", COLUMNS, memory_kms())
    maker.commit(maker.add_parquet([{"id": 1}], encrypted=False))
    required = {"encryption.require-encrypted": "true"}
    with load_catalog("sql", **sql, **KMS_PROPERTIES, **required) as catalog:
        assert catalog.load_table("db.stats", location_map=PLACES).scan().count() == 1000
        schema = catalog.load_table("db.stats").schema()
        with pytest.raises(NotEncryptedError, match="would not be encrypted"):
            catalog.create_table("db.plain", schema)
        assert type(catalog.inner.create_table("db.plain", schema)) is Table
        with pytest.raises(NotEncryptedError, match="not encrypted"):
            catalog.load_table("db.plain")
        assert type(catalog.load_table("db.plain", require_encrypted=False)) is Table
        with pytest.raises(NotEncryptedError, match="not encrypted"):
            catalog.register_table("db.t", maker.write()).scan().to_arrow()
    with load_catalog("sql", **sql, **required) as catalog, pytest.raises(NotEncryptedError):
        catalog.load_table("db.plain")
    with pytest.raises(KmsConfigurationError, match="'true' or 'false'"):
        load_catalog("sql", **sql, **{"encryption.require-encrypted": "yes"})


@pytest.mark.parametrize("name", ["default.encryption.key-id", "override.Encryption-Key.Id"])
def test_a_key_that_java_would_take_from_the_catalog_s_defaults(
    sql: dict[str, str], name: str
) -> None:
    """In Java, new tables would be encrypted. Here, they would not be."""
    given = {f"table-{name}": "keyA"}
    with load_catalog("sql", **sql, **KMS_PROPERTIES, **given) as catalog:
        schema = catalog.load_table("db.stats").schema()
        for create in (catalog.create_table, catalog.create_table_transaction):
            with pytest.raises(ValueError, match="obeyed by Java alone"):
                create("db.new", schema)
        made = catalog.create_table("db.new", schema, properties={"encryption.key-id": "keyA"})
        assert isinstance(made, EncryptedTable)


class Foreign(MemoryKms):
    """A KMS where the key's name may be a stranger's, as AWS's."""

    accepts_foreign_keys = True


def test_a_kms_of_many_owners_needs_the_key_s_name_from_a_trusted_place(
    sql: dict[str, str],
) -> None:
    kms = Foreign(KMS_PROPERTIES)
    inner = load_plain_catalog("sql", **sql)
    assert EncryptedCatalog(inner, kms).load_table("db.stats").key_id == "keyA"  # it is pinned
    unpin(inner)
    with pytest.raises(KeyMetadataError, match="another user's key"):
        EncryptedCatalog(inner, kms).load_table("db.stats")
    for catalog, pin in (
        (EncryptedCatalog(inner, kms), {"expected_key_id": "keyA"}),
        (EncryptedCatalog(inner, kms, key_ids=["keyA"]), {}),
        (EncryptedCatalog(hive_catalog(hive_parameters(metadata_file("stats"))).inner, kms), {}),
    ):
        table = catalog.load_table("db.stats", location_map=PLACES, **pin)
        assert table.scan().count() == table.refresh().scan().count() == 1000
    with (
        rest_server(rest_answer(metadata_file("stats"))) as uri,
        load_plain_catalog("rest", type="rest", uri=uri) as rest,
    ):
        table = EncryptedCatalog(rest, kms).load_table("db.t", location_map=PLACES)
        assert table.scan().count() == 1000


def test_the_rest_is_the_inner_catalog_s(sql: dict[str, str], tmp_path: Path) -> None:
    with load_catalog("sql", **sql, **KMS_PROPERTIES) as catalog:
        catalog.create_namespace("other", {"owner": "me"})
        assert catalog.load_namespace_properties("other")["owner"] == "me"
        assert sorted(catalog.list_namespaces()) == [("db",), ("other",)]
        assert catalog.namespace_exists("other")
        catalog.update_namespace_properties("other", updates={"owner": "you"})
        renamed = catalog.rename_table("db.stats", "other.stats")
        assert isinstance(renamed, EncryptedTable)
        catalog.drop_table("other.stats")
        assert not catalog.table_exists("other.stats")
        catalog.drop_namespace("other")
        table = catalog.create_table_if_not_exists("db.new", renamed.schema())
        assert type(table) is Table
        assert table.catalog is catalog
        assert catalog.load_table("db.new").catalog is catalog
        rows = pa.table({"id": [1], "p": ["x"]}, table.schema().as_arrow())
        with catalog.create_table_transaction("db.made", table.schema()) as change:
            change.append(rows)
        assert catalog.load_table("db.made").scan().count() == 1
        table.append(rows)
        assert catalog.load_table("db.new").scan().count() == 1
        assert catalog.engine is catalog.inner.engine  # what only a SqlCatalog has
        with pytest.raises(AttributeError):
            _ = catalog.no_such_thing
        assert isinstance(catalog, EncryptedCatalog)
        assert isinstance(catalog, type(catalog.inner))  # as code that looks for a SqlCatalog asks
        assert repr(catalog).startswith(repr(catalog.inner))
        assert repr(EncryptedCatalog(catalog.inner)) == repr(catalog.inner)


@pytest.mark.parametrize("refreshed", [False, True], ids=["stale", "refreshed"])
def test_a_plain_table_of_before_its_migration_writes_nothing(
    refreshed: bool, sql: dict[str, str]
) -> None:
    rows = pa.table({"id": [1]})
    with load_catalog("sql", **sql, **KMS_PROPERTIES) as catalog:
        table = catalog.create_table("db.t", rows.schema)
        table.append(rows)
        catalog.migrate_table("db.t", "keyA")
        if refreshed:
            table.refresh()
        for write in (lambda: table.append(rows), lambda: table.delete("id = 1")):
            with pytest.raises((NotImplementedError, ValidationException, OSError)):
                write()
        assert catalog.load_table("db.t").scan().count() == 1


def test_a_new_plain_table_beside_a_kms_is_told(sql: dict[str, str]) -> None:
    schema = pa.schema([("id", pa.int64())])
    with load_catalog("sql", **sql, **KMS_PROPERTIES) as catalog:
        with pytest.warns(PlainTableWarning, match=r"the new table db\.\w+ is not encrypted"):
            table = catalog.create_table("db.new", schema)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert catalog.create_table_if_not_exists("db.new", schema).name() == ("db", "new")
        with pytest.warns(PlainTableWarning, match=r"the new table db\.\w+ is not encrypted"):
            catalog.create_table_transaction("db.other", schema)
        with pytest.raises(NotEncryptedError, match="is not encrypted, so nothing can be verified"):
            verify_table(table)  # type: ignore[arg-type]


def test_files_that_other_tables_may_have_are_not_deleted_by_a_migration(
    sql: dict[str, str], tmp_path: Path
) -> None:
    rows = pa.table({"id": [1, 2]})

    def files() -> set[Path]:
        return {path for path in tmp_path.rglob("*") if path.is_file()}

    with load_catalog("sql", **sql, **KMS_PROPERTIES) as catalog:
        plain = catalog.inner.create_table("db.t", rows.schema, properties={"gc.enabled": "false"})
        plain.append(rows)
        before = files()
        for dry_run in (True, False):
            with pytest.raises(ValidationException, match=r"'gc\.enabled' is not true"):
                catalog.migrate_table("db.t", "keyA", delete_plaintext=True, dry_run=dry_run)
        assert catalog.load_table("db.t").metadata_location == plain.metadata_location
        assert catalog.migrate_table("db.t", "keyA", dry_run=True).files == 1
        assert files() == before
        plaintext = catalog.migrate_table("db.t", "keyA").plaintext
        assert plaintext.inside == ()
        assert {Path(file.removeprefix("file://")).name for file in plaintext.outside} == {
            path.name for path in before if path.suffix in (".parquet", ".avro")
        }
        table = catalog.load_table("db.t")
        # What is set later does not say whose the earlier files are.
        table.transaction().set_properties({"gc.enabled": "true"}).commit_transaction()
        with pytest.raises(ValidationException, match="or was not when it was migrated"):
            catalog.migrate_table("db.t", "keyA", delete_plaintext=True)
        assert before <= files()
        assert table.refresh().scan().to_arrow() == rows


@pytest.mark.parametrize("version", ["1", "2"])
def test_a_plaintext_table_that_names_a_key_is_read_and_migrated(
    version: str, sql: dict[str, str]
) -> None:
    """PyIceberg up to 0.12 makes such tables."""
    rows = pa.table({"id": [1, 2]})
    named = {"format-version": version, "encryption.key-id": "keyA"}
    with load_catalog("sql", **sql, **KMS_PROPERTIES) as catalog:
        catalog.inner.create_table("db.t", rows.schema, properties=named).append(rows)
        with pytest.warns(PlainTableWarning, match="another writer wrote plaintext.*migrate_table"):
            table = catalog.load_table("db.t")
        assert type(table) is Table
        assert table.scan().to_arrow() == rows
        [finding] = check_table(table).findings
        assert (finding.kind, finding.remedy.command) == ("unencrypted-table", "migrate")
        assert "no file of it is encrypted" in finding.message
        folder = Path(table.metadata_location.removeprefix("file://")).parent
        old = set(folder.iterdir())
        for given in ({"expected_key_id": "keyA"}, {"require_encrypted": True}):
            with pytest.raises(NotEncryptedError, match=r"no file of it is encrypted.*migrate"):
                catalog.load_table("db.t", **given)  # type: ignore[arg-type]
        with pytest.raises(KmsKeyNotFoundError):
            catalog.migrate_table("db.t", "no-such-key", dry_run=True)
        assert catalog.migrate_table("db.t", "keyA", dry_run=True).rows == 2
        catalog.migrate_table("db.t", "keyA", delete_plaintext=True)
        assert not old & set(
            folder.iterdir()
        )  # nor the metadata files, whose summaries tell values
        encrypted = catalog.load_table("db.t", require_encrypted=True)
        assert encrypted.scan().to_arrow() == rows
        assert verify_table(encrypted).ok  # type: ignore[arg-type]


def test_an_in_memory_catalog(tmp_path: Path) -> None:
    with load_catalog("m", type="in-memory", warehouse=str(tmp_path), **KMS_PROPERTIES) as catalog:
        catalog.create_namespace("db")
        catalog.register_table("db.mor_dv", str(metadata_file("mor_dv")))
        table = catalog.load_table("db.mor_dv", location_map=PLACES)
        assert by_id(table.scan().to_arrow().to_pylist()) == expected_rows("mor_dv")


def test_a_commit_of_somebody_else_is_seen_by_a_refresh(
    sql: dict[str, str], tmp_path: Path
) -> None:
    maker = TableMaker(tmp_path / "t", COLUMNS, memory_kms())
    maker.commit(maker.add_parquet([{"id": 1}]))
    with load_catalog("sql", **sql, **KMS_PROPERTIES) as catalog:
        table = catalog.register_table("db.t", maker.write())
        assert table.scan().count() == 1
        maker.commit(maker.add_parquet([{"id": 2}]))
        catalog.drop_table("db.t")  # a SQL catalog cannot replace what it has registered
        catalog.register_table("db.t", maker.write())
        assert table.scan().count() == 1
        assert table.refresh().scan().count() == 2


def test_the_kms_is_asked_once_for_all_tables_and_refreshes(sql: dict[str, str]) -> None:
    class Counting(MemoryKms):
        calls = 0

        def unwrap_key(self, wrapped_key: bytes, key_id: str) -> bytes:
            Counting.calls += 1
            return super().unwrap_key(wrapped_key, key_id)

    with EncryptedCatalog(load_plain_catalog("sql", **sql), Counting(KMS_PROPERTIES)) as catalog:
        table = catalog.load_table("db.stats", location_map=PLACES)
        table.scan().to_arrow()
        table.refresh().scan().to_arrow()
        catalog.load_table("db.stats", location_map=PLACES).scan().to_arrow()
    assert Counting.calls == 1


# -- REST


@contextmanager
def rest_server(answer: dict[str, Any], asked: list[str] | None = None) -> Iterator[str]:
    """Serve the table ``db.t`` as ``answer``, and the protocol's configuration. ``asked`` gets what
    is asked of tables."""
    tables = {"/v1/namespaces/db/tables/t": "?", "/v1/namespaces/db/register": "register"}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            path, _, query = self.path.partition("?")
            if asked is not None and path in tables:
                asked.append(query or tables[path])
            if path == "/v1/config":
                # What a server tells of a KMS is not heard: it could name code to run.
                evil = {"encryption.kms-impl": "os:system", "encryption.kms-type": ""}
                found: Any = {"defaults": {}, "overrides": evil}
            else:
                found = answer if path in tables else None
            missing = {"error": {"message": "no", "type": "NoSuchTableException", "code": 404}}
            body = json.dumps(missing if found is None else found).encode()
            self.send_response(404 if found is None else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        # A commit, which changes nothing.
        do_POST = do_GET

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def rest_answer(path: Path) -> dict[str, Any]:
    metadata = json.loads(path.read_bytes())
    return {"metadata-location": str(path), "metadata": metadata, "config": {}}


def test_an_encrypted_table_of_a_rest_catalog() -> None:
    with (
        rest_server(rest_answer(metadata_file("mor_dv"))) as uri,
        load_catalog("rest", type="rest", uri=uri, **KMS_PROPERTIES) as catalog,
    ):
        table = catalog.load_table("db.t", location_map=PLACES, expected_key_id="keyA")
        assert isinstance(table, EncryptedTable)
        assert by_id(table.scan().to_arrow().to_pylist()) == expected_rows("mor_dv")
        assert table.refresh().scan().count() == 2598
        with pytest.raises(NoSuchTableError):
            catalog.load_table("db.other")


class Twice(dict[str, Any]):
    """An object whose JSON has each name twice."""

    def items(self) -> Any:
        return [*super().items(), *super().items()]


def test_a_rest_server_s_answer_that_has_a_name_twice() -> None:
    answer = rest_answer(metadata_file("stats"))
    answer["metadata"]["properties"] = Twice(answer["metadata"]["properties"])
    with (
        rest_server(answer) as uri,
        load_catalog("rest", type="rest", uri=uri, **KMS_PROPERTIES) as catalog,
        pytest.raises(MetadataIntegrityError, match="the REST server's answer has the name"),
    ):
        catalog.load_table("db.t", location_map=PLACES)


def test_a_rest_server_s_word_is_better_than_the_file(tmp_path: Path) -> None:
    copied("stats", tmp_path)
    path = metadata_file("stats", tmp_path)
    answer = rest_answer(path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    path.write_text("{}")
    with (
        rest_server(answer) as uri,
        load_catalog("rest", type="rest", uri=uri, **KMS_PROPERTIES) as catalog,
    ):
        assert catalog.load_table("db.t", location_map=PLACES).scan().count() == 1000
        with pytest.raises(MetadataIntegrityError, match="SHA-256"):
            catalog.load_table("db.t", expected_metadata_sha256=digest)


def test_a_rest_server_is_asked_for_the_snapshots_that_the_catalog_is_told_to(
    tmp_path: Path,
) -> None:
    refs: dict[str, str] = {"snapshot-loading-mode": "refs"}
    for kms, expected in (None, ["snapshots=refs"]), (memory_kms(), ["snapshots=refs", "?"]):
        maker = TableMaker(tmp_path / str(bool(kms)), COLUMNS, kms)
        asked: list[str] = []
        with (
            rest_server(rest_answer(Path(maker.write())), asked) as uri,
            load_catalog("rest", type="rest", uri=uri, **refs, **KMS_PROPERTIES) as catalog,
        ):
            catalog.load_table("db.t")
            # Keys of snapshots that are not seen would be pruned.
            assert asked == expected
    with rest_server({}) as uri, load_catalog("rest", type="rest", uri=uri, **refs) as catalog:
        catalog.inner.properties["snapshot-loading-mode"] = "some"
        with pytest.raises(ValueError, match="snapshot-loading-mode"):
            catalog.load_table("db.t")


def test_a_plain_table_s_files_are_read_with_the_catalog_s_authority(tmp_path: Path) -> None:
    maker = TableMaker(tmp_path / "t", COLUMNS, None)
    with (
        rest_server(rest_answer(Path(maker.write()))) as uri,
        load_catalog("rest", type="rest", uri=uri, token="t", **KMS_PROPERTIES) as catalog,
    ):
        found = catalog.load_table("db.t").io.properties
        assert found["auth.manager"] is not None
        assert found == catalog.inner.load_table("db.t").io.properties


def test_a_rest_server_registers_a_table_in_one_request() -> None:
    asked: list[str] = []
    with (
        rest_server(rest_answer(metadata_file("stats")), asked) as uri,
        load_catalog("rest", type="rest", uri=uri, **KMS_PROPERTIES) as catalog,
    ):
        table = catalog.register_table("db.t", str(metadata_file("stats")))
        assert isinstance(table, EncryptedTable)
        assert asked == ["register"]


def test_a_rest_server_does_not_choose_the_kms() -> None:
    with (
        rest_server(rest_answer(metadata_file("stats"))) as uri,
        load_catalog("rest", type="rest", uri=uri) as catalog,
        pytest.raises(KmsConfigurationError, match="no KMS is configured"),
    ):
        catalog.load_table("db.t")


def test_planning_by_the_server_is_not_used_for_an_encrypted_table() -> None:
    with (
        rest_server(rest_answer(metadata_file("stats"))) as uri,
        load_catalog("rest", type="rest", uri=uri, **KMS_PROPERTIES) as catalog,
    ):
        catalog.inner.supports_server_side_planning = lambda: True  # type: ignore[method-assign]
        table = catalog.load_table("db.t", location_map=PLACES)
        assert catalog.supports_server_side_planning()
        assert table.scan().count() == 1000


# -- Hive


def hive_catalog(*answers: dict[str, str]) -> EncryptedCatalog:
    """PyIceberg's Hive catalog with a metastore that knows one table. It answers with the first
    parameters, then with the next, and goes on with the last."""
    pytest.importorskip("thrift")
    from pyiceberg.catalog.hive import HiveCatalog

    following = iter(answers)

    class Client:
        def __enter__(self) -> Client:
            return self

        def __exit__(self, *error: object) -> None:
            pass

        def get_table(self, dbname: str, tbl_name: str) -> Any:
            found = {"table_type": "ICEBERG"} | next(following, answers[-1])
            return SimpleNamespace(dbName=dbname, tableName=tbl_name, parameters=found, sd=None)

    class Metastore(HiveCatalog):
        @staticmethod
        def _create_hive_client(properties: dict[str, str]) -> Any:
            return Client()

    return EncryptedCatalog(Metastore("hive", uri="thrift://127.0.0.1:1"), memory_kms())


def hive_parameters(path: Path) -> dict[str, str]:
    """What Java's HiveCatalog keeps of an encrypted table."""
    digest = hashlib.sha256(path.read_bytes()).digest()
    return {
        "metadata_location": str(path),
        "encryption.key-id": "keyA",
        "encryption.data-key-length": "16",
        "metadata_hash": base64.b64encode(digest).decode(),
    }


def test_an_encrypted_table_of_a_hive_catalog() -> None:
    catalog = hive_catalog(hive_parameters(metadata_file("stats")))
    table = catalog.load_table("db.stats", location_map=PLACES)
    assert table.scan().count() == 1000
    assert table.refresh().scan().count() == 1000


def test_hive_s_hash_is_checked_where_there_is_one(tmp_path: Path) -> None:
    copied("stats", tmp_path)
    path = metadata_file("stats", tmp_path)
    parameters = hive_parameters(path)
    path.write_text(path.read_text().replace('"next-row-id":1000', '"next-row-id":1001'))
    assert hashlib.sha256(path.read_bytes()).digest() != base64.b64decode(
        parameters["metadata_hash"]
    )
    with pytest.raises(MetadataIntegrityError, match="metadata_hash"):
        hive_catalog(parameters).load_table("db.stats")
    del parameters["metadata_hash"]
    assert (
        hive_catalog(parameters).load_table("db.stats", location_map=PLACES).scan().count() == 1000
    )


def test_hive_s_parameters_of_two_versions_are_asked_for_again(tmp_path: Path) -> None:
    copied("stats", tmp_path)
    path = metadata_file("stats", tmp_path)
    newest = hive_parameters(path)
    older = newest | {"metadata_hash": base64.b64encode(bytes(32)).decode()}
    catalog = hive_catalog(older, older | {"x": "y"}, newest)
    assert catalog.load_table("db.stats").metadata_location == str(path)
    with pytest.raises(MetadataIntegrityError, match="metadata_hash"):
        hive_catalog(newest | {"x": "y"}, older).load_table("db.stats").refresh()


def test_hive_s_key_id_is_trusted_before_the_file_s(tmp_path: Path) -> None:
    parameters = hive_parameters(metadata_file("stats"))
    for key_id, pins in (("keyB", {}), ("keyA", {"expected_key_id": "keyB"})):
        changed = parameters | {"encryption.key-id": key_id}
        with pytest.raises(MetadataIntegrityError, match="'keyB' was expected"):
            hive_catalog(changed).load_table("db.stats", **pins)
    path = plain_table(tmp_path / "t")
    del parameters["metadata_hash"]
    with pytest.raises(NotEncryptedError, match="'keyA' was expected"):
        hive_catalog(parameters | {"metadata_location": path}).load_table("db.stats")


def test_hive_s_length_of_data_keys() -> None:
    parameters = hive_parameters(metadata_file("stats")) | {"encryption.data-key-length": "32"}
    # With a hash Java does not look at it, as the hash is of the property too.
    hive_catalog(parameters).load_table("db.stats")
    del parameters["metadata_hash"]
    with pytest.raises(MetadataIntegrityError, match="16 bytes"):
        hive_catalog(parameters).load_table("db.stats")


def test_hive_is_asked_once_so_that_a_commit_cannot_come_between() -> None:
    older, newer = sorted((TABLES / "stats/metadata").glob("*.metadata.json"))[-2:]
    parameters = hive_parameters(older)
    catalog = hive_catalog(parameters)
    ask = catalog.inner._get_hive_table

    def ask_and_commit(*arguments: Any) -> Any:
        answer = ask(*arguments)
        parameters.update(hive_parameters(newer))
        return answer

    catalog.inner._get_hive_table = ask_and_commit
    table = catalog.load_table("db.stats", location_map=PLACES)
    assert table.metadata_location == str(older)
    assert table.refresh().metadata_location == str(newer)


def test_a_table_of_hive_s_that_is_not_iceberg_s() -> None:
    from pyiceberg.exceptions import NoSuchIcebergTableError, NoSuchPropertyException

    parameters = hive_parameters(metadata_file("stats"))
    with pytest.raises(NoSuchIcebergTableError):
        hive_catalog(parameters | {"table_type": "EXTERNAL"}).load_table("db.stats")
    del parameters["metadata_location"]
    with pytest.raises(NoSuchPropertyException):
        hive_catalog(parameters).load_table("db.stats")


# -- whoever may write the metadata, but has no key


def test_a_plain_table_in_a_catalog_with_keys_is_told_once(
    sql: dict[str, str], tmp_path: Path
) -> None:
    path = plain_table(tmp_path / "t")
    keys = {"encryption.trusted-key-ids": "keyA"}
    with load_catalog("sql", **sql, **KMS_PROPERTIES, **keys) as catalog:
        with pytest.warns(PlainTableWarning, match=r"db\.plain is not encrypted"):
            catalog.register_table("db.plain", path)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert catalog.load_table("db.plain").scan().count() == 2
            assert catalog.load_table("db.stats", location_map=PLACES).scan().count() == 1000


def test_a_catalog_s_own_word_does_not_widen_the_caller_s_list_of_keys() -> None:
    kms = memory_kms()
    with (
        rest_server(rest_answer(metadata_file("stats"))) as uri,
        load_plain_catalog("rest", type="rest", uri=uri) as rest,
    ):
        hive = hive_catalog(hive_parameters(metadata_file("stats"))).inner
        for inner in (rest, hive):
            for pins in ({}, {"expected_key_id": "keyA"}):
                with pytest.raises(MetadataIntegrityError, match="none of those"):
                    EncryptedCatalog(inner, kms, key_ids=["keyB"]).load_table("db.t", **pins)
                table = EncryptedCatalog(inner, kms, key_ids=["keyA"]).load_table("db.t", **pins)
                assert isinstance(table, EncryptedTable)


# -- what the metadata may not choose

SERVER = "http://127.0.0.1:1"
REDIRECTING = {
    "py-io-impl": "evil_io.EvilIO",
    "write.py-location-provider.impl": "evil_io.EvilProvider",
    "s3.retry-strategy-impl": "evil_io.EvilIO",
    "gcs.session-kwargs": "{}",
    "s3.endpoint": SERVER,
    "s3.signer": "S3V4RestSigner",
    "s3.signer.uri": SERVER,
    "s3.proxy-uri": SERVER,
    "s3.region": "evil.example/",
    "uri": SERVER,
    "token": "evil",
    "DEFAULT_SCHEME": "s3",
    "hdfs.host": "evil",
    "hdfs.user": "root",
    "adls.account-name": "evil",
    "adls.connection-string": "evil",
    "adls.dfs-storage-authority": "evil",
    "gcs.service.host": SERVER,
    "gcs.oauth2.token": "evil",
    "hf.endpoint": SERVER,
    "client.profile-name": "admin",
    "client.role-arn": "arn:aws:iam::1:role/admin",
    "s3.access-key-id": "evil",
    "s3.sse-kms-key-id": "evil",
}
HARMLESS = {
    "s3.region": "eu-central-1",
    "client.region": "us-east-1",
    "s3.connect-timeout": "10",
    "gcs.version-aware": "true",
    "write.location-provider.impl": "com.example.Java",
    "comment": "the token, the uri and the endpoint",
}


@pytest.mark.parametrize("name", REDIRECTING)
def test_what_chooses_code_a_server_or_credentials_is_refused(name: str) -> None:
    value = REDIRECTING[name]
    with pytest.raises(MetadataIntegrityError, match=name):
        refuse_redirection({"properties": {name: value}}, {name: "another"}, "x.metadata.json")
    refuse_redirection({"properties": {name: value}}, {name: value}, "x.metadata.json")
    refuse_redirection({"properties": HARMLESS}, {}, "x.metadata.json")


@pytest.fixture
def evil(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Python code that a metadata.json can name, and that must not run."""
    code = """
        from pyiceberg.io.pyarrow import PyArrowFileIO
        from pyiceberg.table.locations import SimpleLocationProvider

        class EvilIO(PyArrowFileIO):
            pass

        class EvilProvider(SimpleLocationProvider):
            pass
    """
    folder = tmp_path / "evil"
    folder.mkdir()
    (folder / "evil_io.py").write_text(textwrap.dedent(code))
    monkeypatch.syspath_prepend(folder)
    yield
    assert sys.modules.pop("evil_io", None) is None, "code that the metadata names was imported"


class Stage:
    """The table ``db.t`` of a catalog, honest at first."""

    def __init__(self, catalog: EncryptedCatalog, maker: TableMaker, path: Path) -> None:
        self.catalog = catalog
        self.maker = maker
        self.path = path
        self._honest = dict(maker.properties)
        # As a REST server has it.
        self.answer: dict[str, Any] = {}

    def spoil(self, name: str) -> None:
        """Change this one property of the table's metadata where it lies."""
        self.maker.properties = self._honest | {name: REDIRECTING[name]}
        self.path.write_text(json.dumps(self.maker.metadata()))
        if isinstance(self.catalog, SqlCatalog):
            unpin(self.catalog)
        self.answer |= rest_answer(self.path)


@contextmanager
def staged(kind: str, folder: Path, kms: KmsClient | None) -> Iterator[Stage]:
    maker = TableMaker(folder / "t", COLUMNS, kms, location=f"file://{folder}/t")
    maker.commit(maker.add_parquet([{"id": 1}]))
    path = Path(maker.write().removeprefix("file://"))
    answer = rest_answer(path)
    with contextlib.ExitStack() as stack:
        if kind == "hive":
            catalog = hive_catalog({"metadata_location": f"file://{path}"})
        elif kind == "rest":
            uri = stack.enter_context(rest_server(answer))
            catalog = load_catalog("rest", type="rest", uri=uri, **KMS_PROPERTIES)
        elif kind == "glue":
            catalog = stack.enter_context(glue_catalog({"metadata_location": f"file://{path}"}))
        else:
            more = {"uri": f"sqlite:///{folder}/catalog.db"} if kind == "sql" else {}
            catalog = load_catalog("c", type=kind, warehouse=str(folder), **more, **KMS_PROPERTIES)
            catalog.create_namespace("db")
            catalog.register_table("db.t", f"file://{path}")
        stack.enter_context(catalog)
        stage = Stage(catalog, maker, path)
        stage.answer = answer
        yield stage


@contextmanager
def glue_catalog(parameters: dict[str, str]) -> Iterator[EncryptedCatalog]:
    """PyIceberg's Glue catalog, of a table that has no hash."""
    moto = pytest.importorskip("moto")
    # It has botocore read the description of a service once.
    import aws_server  # noqa: F401
    import boto3

    region = {"region_name": "us-east-1"}
    identity = {"aws_access_key_id": "a", "aws_secret_access_key": "b"}
    with moto.mock_aws():
        client = boto3.client("glue", **region, **identity)
        client.create_database(DatabaseInput={"Name": "db"})
        client.create_table(
            DatabaseName="db",
            TableInput={
                "Name": "t",
                "TableType": "EXTERNAL_TABLE",
                "StorageDescriptor": {"Columns": []},
                "Parameters": {"table_type": "ICEBERG"} | parameters,
            },
        )
        properties = {"glue.region": "us-east-1", "glue.access-key-id": "a"}
        inner = load_plain_catalog(
            "glue", type="glue", **properties, **{"glue.secret-access-key": "b"}
        )
        yield EncryptedCatalog(inner, memory_kms())


CODE = ["py-io-impl", "write.py-location-provider.impl"]
KINDS = ["sql", "hive", "rest", "in-memory", "glue"]


@pytest.mark.usefixtures("evil")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("encrypted", [True, False], ids=["encrypted", "plain"])
def test_the_metadata_does_not_choose_what_reads_the_table(
    kind: str, encrypted: bool, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    with staged(kind, tmp_path, memory_kms() if encrypted else None) as stage:
        table = stage.catalog.load_table("db.t")
        digest = hashlib.sha256(stage.path.read_bytes()).hexdigest()
        doors: list[Callable[[], object]] = [
            lambda: stage.catalog.load_table("db.t"),
            lambda: stage.catalog.inner.load_table("db.t"),
            lambda: stage.catalog.purge_table("db.t"),
            lambda: stage.catalog.rename_table("db.t", "db.u"),
            table.refresh,
            lambda: open_table(str(stage.path), memory_kms() if encrypted else None),
        ]
        if kind == "rest":
            # There, the server renames; loading what has another name then is PyIceberg's.
            del doors[3]
        for name in (*CODE, "s3.endpoint"):
            with subtests.test(name):
                stage.spoil(name)
                for door in doors:
                    with pytest.raises(MetadataIntegrityError, match=name):
                        door()
                with pytest.raises(MetadataIntegrityError, match="SHA-256"):
                    stage.catalog.load_table("db.t", expected_metadata_sha256=digest)
                assert stage.path.exists()
                assert stage.catalog.table_exists("db.t")


@pytest.mark.usefixtures("evil")
@pytest.mark.parametrize("kind", ["sql", "in-memory"])
@pytest.mark.parametrize("encrypted", [True, False], ids=["encrypted", "plain"])
def test_the_metadata_does_not_choose_what_commits_to_the_table(
    kind: str, encrypted: bool, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    rows = pa.table({"id": pa.array([2], pa.int64())})
    with staged(kind, tmp_path, memory_kms() if encrypted else None) as stage:
        stage.maker.properties["format-version"] = "3"
        catalog = stage.catalog
        catalog.create_table("db.plain", rows.schema).append(rows)
        table = catalog.load_table("db.t" if encrypted else "db.plain")
        path = Path(table.metadata_location.removeprefix("file://"))
        honest = json.loads(path.read_bytes())
        for name in (*CODE, "s3.endpoint"):
            properties = honest["properties"] | {name: REDIRECTING[name]}
            path.write_text(json.dumps(honest | {"properties": properties}))
            unpin(catalog)
            with subtests.test(name):
                with pytest.raises(MetadataIntegrityError, match=name):
                    (table.refresh() if encrypted else table).append(rows)
                with pytest.raises(MetadataIntegrityError, match=name):
                    catalog.register_table("db.other", str(path))
                assert not catalog.table_exists("db.other")
                with pytest.raises(MetadataIntegrityError, match=name):
                    catalog.rename_table(table.name(), "db.other")
                assert not catalog.table_exists("db.other")
                for create in (catalog.create_table, catalog.create_table_transaction):
                    with pytest.raises(MetadataIntegrityError, match=name):
                        create("db.other", rows.schema, properties={name: REDIRECTING[name]})
                assert not catalog.table_exists("db.other")


@pytest.mark.usefixtures("evil")
@pytest.mark.parametrize("name", [*CODE, "s3.endpoint"])
def test_what_a_rest_server_answers_to_a_commit_does_not_choose_it_either(
    name: str, tmp_path: Path
) -> None:
    with staged("rest", tmp_path, None) as stage:
        table = stage.catalog.load_table("db.t")
        stage.spoil(name)
        with pytest.raises(MetadataIntegrityError, match=name), table.transaction() as change:
            change.set_properties(a="b")
        assert name not in table.properties


@pytest.mark.usefixtures("evil")
@pytest.mark.parametrize("encrypted", [True, False], ids=["encrypted", "plain"])
def test_a_rest_server_chooses_storage_and_no_code(encrypted: bool, tmp_path: Path) -> None:
    with staged("rest", tmp_path, memory_kms() if encrypted else None) as stage:
        stage.answer["config"] = {"s3.endpoint": SERVER, "s3.session-token": "x"}
        table = stage.catalog.load_table("db.t")
        assert table.io.properties["s3.endpoint"] == SERVER
        stage.catalog.inner.load_table("db.t")
        for name in ("py-io-impl", "s3.retry-strategy-impl"):
            stage.answer["config"] = {name: REDIRECTING[name]}
            for door in (stage.catalog.load_table, stage.catalog.inner.load_table):
                with pytest.raises(MetadataIntegrityError, match=name):
                    door("db.t")


def test_what_the_catalog_says_too_is_no_redirection(tmp_path: Path) -> None:
    maker = TableMaker(tmp_path / "t", COLUMNS, memory_kms())
    maker.commit(maker.add_parquet([{"id": 1}]))
    maker.properties |= {"s3.endpoint": "http://127.0.0.1:1", "s3.region": "nowhere"}
    endpoint = {"s3.endpoint": "http://127.0.0.1:1"}
    with load_catalog("m", type="in-memory", **KMS_PROPERTIES, **endpoint) as catalog:
        catalog.create_namespace("db")
        table = catalog.register_table("db.t", maker.write())
        assert table.scan().count() == 1
        assert "s3.region" not in table.io.properties


def test_a_pinned_plain_table_is_the_one_that_was_checked(tmp_path: Path) -> None:
    path = plain_table(tmp_path / "t")
    digest = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    with load_catalog("m", type="in-memory") as catalog:
        catalog.create_namespace("db")
        catalog.inner.register_table("db.t", path)

        def swapped(identifier: Any) -> Table:
            pytest.fail("the metadata was read unchecked")

        catalog.inner.load_table = swapped  # type: ignore[method-assign]
        table = catalog.load_table("db.t", expected_metadata_sha256=digest)
        assert table.scan().count() == 2
        table = catalog.load_table("db.t")
        assert type(table) is Table
        assert table.catalog is catalog


def test_kms_clients_are_closed_by_who_made_them(sql: dict[str, str]) -> None:
    Closing.closed.clear()
    kms = Closing({"closing.list": "1"})
    EncryptedCatalog(load_plain_catalog("sql", **sql), kms).close()
    assert Closing.closed == []
    load_catalog(
        "sql", **(sql | {"encryption.kms-impl": f"{__name__}:Closing", "closing.list": "1"})
    ).close()
    assert len(Closing.closed) == 1


class Closing(MemoryKms):
    closed: ClassVar[list[MemoryKms]] = []

    def __init__(self, properties: dict[str, str]) -> None:
        assert properties["closing.list"] == "1"
        super().__init__(KMS_PROPERTIES)

    def close(self) -> None:
        self.closed.append(self)


@pytest.mark.parametrize("location", [None, "file:///nowhere"])
def test_a_name_without_a_namespace_is_refused_as_by_pyiceberg(
    catalog: EncryptedCatalog, location: str | None
) -> None:
    key, columns = {"encryption.key-id": "keyA"}, pa.schema([("a", pa.int64())])
    with pytest.raises(NoSuchNamespaceError):
        catalog.create_table("t", columns, location=location, properties=key)

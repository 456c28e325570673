"""Iceberg's own Spark runtime with our plug-in: tables that Python made, in catalogs and under KMSs
that the runtime does not know."""

from __future__ import annotations

import gzip
import hashlib
import json
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from iceberg_tables import KMS_PROPERTIES

from .corpus_table_readers import TABLES, at_its_location, in_order
from .lake import SCHEMA, Lake, listed, pipe, plain_files
from .spark import DATABASE, SparkTables, path_of

pytestmark = pytest.mark.interop

ENCRYPTED = "TBLPROPERTIES ('format-version' = '3', 'encryption.key-id' = 'default')"

ROWS: dict[int, str | None] = {1: "UA", 2: "AA", 3: "UA", 4: None}


@pytest.mark.parametrize("mode", ["copy-on-write", "merge-on-read"])
def test_statements_that_change_rows(lake: Lake, mode: str) -> None:
    modes = {f"write.{what}.mode": mode for what in ("delete", "update", "merge")}
    table = lake.create(listed(ROWS), **modes)
    model = dict(ROWS)
    lake.check(table, model)
    lake.sql("INSERT INTO {t} VALUES (5, 'DL'), (6, 'WN')", table)
    lake.check(table, model := model | {5: "DL", 6: "WN"})
    lake.sql("UPDATE {t} SET carrier = 'XX' WHERE id IN (2, 5)", table)
    lake.check(table, model := model | {2: "XX", 5: "XX"})
    lake.sql("DELETE FROM {t} WHERE id = 3", table)
    del model[3]
    lake.check(table, model).append(pa.Table.from_pylist([{"id": 7, "carrier": "B6"}], SCHEMA))
    model[7] = "B6"
    lake.refresh(table)
    lake.sql(
        "MERGE INTO {t} t USING (SELECT 1 id, 'new' carrier UNION ALL SELECT 8, 'HA' "
        "UNION ALL SELECT 6, NULL) s ON t.id = s.id "
        "WHEN MATCHED AND s.carrier IS NULL THEN DELETE "
        "WHEN MATCHED THEN UPDATE SET carrier = s.carrier WHEN NOT MATCHED THEN INSERT *",
        table,
    )
    del model[6]
    loaded = lake.check(table, model := model | {1: "new", 8: "HA"})
    loaded.delete("id = 8")
    del model[8]
    lake.check(table, model)
    lake.sql("INSERT OVERWRITE {t} SELECT id, 'all' FROM {t}", table)
    lake.check(table, dict.fromkeys(model, "all"))


def test_tables_that_spark_creates(lake: Lake) -> None:
    source = lake.create(listed(ROWS))
    for statement in ("CREATE TABLE", "CREATE OR REPLACE TABLE", "REPLACE TABLE"):
        table = source + "_made" if statement != "CREATE OR REPLACE TABLE" else source + "_other"
        place = f"file://{lake.folder}/elsewhere/{table}"
        lake.sql(
            f"{statement} {{c}}.{table} USING iceberg LOCATION '{place}' {ENCRYPTED} AS "
            f"SELECT id, '{statement}' AS carrier FROM {{t}}",
            source,
        )
        loaded = lake.check(table, dict.fromkeys(ROWS, statement))
        assert loaded.metadata.properties["encryption.key-id"] == "default"
        assert loaded.location().removeprefix("file:").lstrip("/") == place[8:]
    table = lake.new_name()
    lake.sql(
        f"CREATE TABLE {{t}} (id BIGINT, carrier STRING) USING iceberg "
        f"PARTITIONED BY (bucket(2, id)) {ENCRYPTED}",
        table,
    )
    lake.sql("INSERT INTO {t} VALUES (1, 'UA'), (2, 'AA')", table)
    lake.sql("ALTER TABLE {t} ADD COLUMN note STRING", table)
    lake.sql("ALTER TABLE {t} ADD PARTITION FIELD carrier", table)
    lake.sql("INSERT INTO {t} VALUES (3, 'DL', 'late')", table)
    lake.check(table, {1: "UA", 2: "AA", 3: "DL"})
    lake.sql(f"ALTER TABLE {{t}} RENAME TO {table}_renamed", table)
    lake.check(f"{table}_renamed", {1: "UA", 2: "AA", 3: "DL"})
    lake.sql("DROP TABLE {t} PURGE", f"{table}_renamed")


def test_a_table_without_a_key_is_as_in_the_plain_catalog(lake: Lake) -> None:
    table = lake.new_name()
    lake.sql("CREATE TABLE {t} USING iceberg AS SELECT 1L AS id, 'UA' AS carrier", table)
    lake.sql("INSERT INTO {t} VALUES (2, 'AA')", table)
    lake.sql("CALL {c}.system.compute_table_stats('" + table + "')")
    assert [tuple(r) for r in lake.sql("SELECT * FROM {t} ORDER BY id", table)] == [
        (1, "UA"),
        (2, "AA"),
    ]
    with pytest.warns(UserWarning, match="is not encrypted"):
        assert lake.ours.load_table(table).scan().to_arrow().num_rows == 2


def test_procedures_and_history(lake: Lake) -> None:
    table = lake.create(listed(ROWS), **{"write.delete.mode": "merge-on-read"})
    for number in range(5, 9):
        lake.sql(f"INSERT INTO {{t}} VALUES ({number}, 'new')", table)
    first = lake.sql("SELECT snapshot_id FROM {t}.snapshots ORDER BY committed_at", table)[0][0]
    lake.sql("DELETE FROM {t} WHERE id = 2", table)
    model = {key: value for key, value in ROWS.items() if key != 2}
    model |= dict.fromkeys(range(5, 9), "new")
    rows = lake.sql(f"SELECT * FROM {{t}} VERSION AS OF {first} ORDER BY id", table)
    assert [tuple(row) for row in rows] == sorted(ROWS.items())
    lake.sql("ALTER TABLE {t} CREATE TAG before", table)
    lake.sql("ALTER TABLE {t} CREATE BRANCH side", table)
    lake.sql("INSERT INTO {t}.branch_side VALUES (99, 'side')", table)
    assert lake.sql("SELECT count(*) FROM {t}.branch_side", table)[0][0] == len(model) + 1
    lake.check(table, model)
    lake.sql(f"CALL {{c}}.system.fast_forward('{table}', 'main', 'side')")
    lake.check(table, model := model | {99: "side"})
    for procedure in (
        f"rewrite_data_files(table => '{table}', options => map('rewrite-all', 'true'))",
        f"rewrite_position_delete_files('{table}')",
        f"rewrite_manifests('{table}')",
        f"remove_orphan_files(table => '{table}', dry_run => true)",
        f"expire_snapshots(table => '{table}', older_than => TIMESTAMP '2100-01-01 00:00:00')",
        f"rewrite_manifests(table => '{table}', use_caching => true)",
    ):
        lake.sql(f"CALL {{c}}.system.{procedure}")
        lake.check(table, model)
    snapshot = lake.sql("SELECT max(snapshot_id) FROM {t}.refs WHERE name = 'before'", table)
    lake.sql(f"CALL {{c}}.system.set_current_snapshot('{table}', {snapshot[0][0]})")
    lake.check(table, {k: v for k, v in model.items() if k != 99})


METADATA_TABLES = (
    "entries files data_files delete_files manifests partitions snapshots history refs "
    "metadata_log_entries position_deletes all_data_files all_delete_files all_files all_entries "
    "all_manifests"
)


def test_metadata_tables(lake: Lake) -> None:
    table = lake.create(listed(ROWS), **{"write.delete.mode": "merge-on-read"})
    lake.sql("DELETE FROM {t} WHERE id = 2", table)
    counted = {
        name: lake.sql(f"SELECT count(*) FROM {{t}}.{name}", table)[0][0]
        for name in METADATA_TABLES.split()
    }
    inspect = lake.ours.load_table(table).inspect
    for name in ("files", "data_files", "delete_files", "manifests", "snapshots", "refs"):
        assert counted[name] == getattr(inspect, name)().num_rows
    assert min(counted.values()) > 0


def test_streams(lake: Lake) -> None:
    source, target = lake.create(listed(ROWS)), lake.create([])
    session = lake.spark.session
    for more in ({5: "DL"}, {6: "WN", 7: None}):
        values = ", ".join(f"({k}, {'NULL' if v is None else repr(v)})" for k, v in more.items())
        lake.sql(f"INSERT INTO {{t}} VALUES {values}", source)
        stream = session.readStream.table(f"{lake.name}.{source}").writeStream
        query = (
            stream.option("checkpointLocation", str(lake.folder / f"checkpoint-{source}"))
            .trigger(availableNow=True)
            .toTable(f"{lake.name}.{target}")
        )
        query.awaitTermination(60)
        assert query.exception() is None
    lake.check(target, ROWS | {5: "DL", 6: "WN", 7: None})


def test_avro_data_and_other_key_lengths(lake: Lake) -> None:
    more = {"write.format.default": "avro", "encryption.data-key-length": "32"}
    table = lake.create(listed(ROWS), **more)
    lake.sql("INSERT INTO {t} VALUES (5, 'DL')", table)
    lake.check(table, ROWS | {5: "DL"})


# --- what is refused ------------------------------------------------------------------------------


def refusal(lake: Lake, statement: str, table: str = "") -> str:
    """Return why Spark refuses a statement."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    lake.spark.session.sparkContext.setLogLevel("OFF")
    try:
        with pytest.raises((Py4JJavaError, PySparkException)) as caught:
            lake.sql(statement, table)
    finally:
        lake.spark.session.sparkContext.setLogLevel("ERROR")
    return str(caught.value)


def test_what_would_be_written_unencrypted_is_refused(lake: Lake, tmp_path: Path) -> None:
    table = lake.create(listed(ROWS))
    plain = lake.spark.session.range(3).selectExpr("id", "'UA' AS carrier")
    plain.write.parquet(f"file:{tmp_path}/plain", compression="gzip")
    location = path_of(lake.ours.load_table(table).location())
    source = f"`parquet`.`file:{tmp_path}/plain`"
    in_catalog = f"spark_catalog.default.{lake.new_name().replace('.', '_')}"
    plain.write.format("parquet").saveAsTable(in_catalog)
    for procedure, why in (
        (f"compute_table_stats('{table}')", "would be written unencrypted"),
        # Spark's tasks write the manifest with no FileIO of the table.
        (f"add_files(table => '{table}', source_table => '{source}')", "is not encrypted"),
        # This manifest is written by the driver, encrypted. The data file that it lists is not.
        (f"add_files(table => '{table}', source_table => '{in_catalog}')", "is not encrypted"),
    ):
        said = refusal(lake, f"CALL {{c}}.system.{procedure}")
        assert why in said
        assert plain_files(location) == []
        lake.check(table, ROWS)
    lake.sql("ALTER TABLE {t} ADD PARTITION FIELD carrier", table)
    lake.sql("INSERT INTO {t} VALUES (5, 'DL')", table)
    said = refusal(lake, f"CALL {{c}}.system.compute_partition_stats('{table}')")
    assert "would be written unencrypted" in said
    assert plain_files(location) == []
    lake.check(table, ROWS | {5: "DL"})


def test_the_key_of_a_table_does_not_change(lake: Lake) -> None:
    table, plain = lake.create(listed(ROWS)), lake.new_name()
    lake.sql(
        "CREATE TABLE {t} USING iceberg TBLPROPERTIES ('format-version' = '3') AS SELECT 1L id",
        plain,
    )
    for statement, name in (
        ("ALTER TABLE {t} SET TBLPROPERTIES ('encryption.key-id' = 'other')", table),
        ("ALTER TABLE {t} UNSET TBLPROPERTIES ('encryption.key-id')", table),
        ("ALTER TABLE {t} SET TBLPROPERTIES ('encryption.key-id' = 'default')", plain),
        (f"REPLACE TABLE {{t}} USING iceberg {ENCRYPTED} AS SELECT 2L id", plain),
    ):
        said = refusal(lake, statement, name)
        assert "is not added, changed or removed" in said
    lake.check(table, ROWS)


@pytest.mark.parametrize(
    ("properties", "said"),
    [
        ("'format-version' = '3', 'encryption.key-id' = 'untrusted'", "trusted-key-ids"),
        ("'format-version' = '3', 'encryption.keyid' = 'default'", "would not be encrypted"),
        ("'format-version' = '2', 'encryption.key-id' = 'default'", "v2"),
        (
            "'format-version' = '3', 'encryption.key-id' = 'default', "
            "'write.parquet.page-version' = 'v2'",
            "page-version",
        ),
    ],
)
def test_tables_that_are_not_created(lake: Lake, properties: str, said: str) -> None:
    for select in ("(id BIGINT) USING iceberg {p}", "USING iceberg {p} AS SELECT 1L AS id"):
        table = lake.new_name()
        rest = select.format(p=f"TBLPROPERTIES ({properties})")
        location = lake.folder / table
        assert said in refusal(lake, f"CREATE TABLE {{t}} {rest}", table)
        assert not lake.ours.table_exists(table)
        assert not location.exists() or plain_files(location) == []


def test_the_properties_that_a_table_will_have_are_checked(lake: Lake) -> None:
    """The catalog gives its tables some, which the statement does not have."""
    prefix = f"spark.sql.catalog.{lake.name}."
    settings = lake.spark.session.conf.getAll
    ours = {k.removeprefix(prefix): v for k, v in settings.items() if k.startswith(prefix)}
    table, default = lake.new_name(), {"table-default.encryption.key-id": "default"}
    create = "CREATE TABLE {}.{} (id BIGINT) USING iceberg TBLPROPERTIES ('format-version' = '3')"
    required = default | {"encryption.require-encrypted": "true"}
    given = lake.spark.plugin_catalog(f"{lake.name}_given", ours | required)
    lake.spark.sql(create.format(given, table))
    has = {row[0]: row[1] for row in lake.spark.sql(f"SHOW TBLPROPERTIES {given}.{table}")}
    assert has["encryption.key-id"] == "default"
    unknown = default | {"table-override.encryption.key-id": "untrusted"}
    given = lake.spark.plugin_catalog(f"{lake.name}_unknown", ours | unknown)
    table = lake.new_name()
    assert "trusted-key-ids" in refusal(lake, create.format(given, table))
    names = [row[1] for row in lake.spark.sql(f"SHOW TABLES IN {given}.{DATABASE}")]
    assert table.partition(".")[2] not in names


@pytest.mark.parametrize(("name", "said"), [("token", "Bearer 4711"), ("credential", None)])
def test_a_secret_of_a_rest_catalog_comes_from_a_file(
    spark: SparkTables, tmp_path: Path, name: str, said: str | None
) -> None:
    asked: list[tuple[str | None, str]] = []

    class Server(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            size = int(self.headers["Content-Length"] or 0)
            asked.append((self.headers["Authorization"], self.rfile.read(size).decode()))
            self.send_error(404)

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    (tmp_path / "secret").write_text("4711\n")
    with HTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        given = {"uri": f"http://127.0.0.1:{server.server_port}", "warehouse": "lake"}
        given[f"{name}-file"] = str(tmp_path / "secret")
        with pytest.raises(Exception, match="404"):
            spark.plugin_catalog(
                f"secret_{name}", {"catalog-impl": "ags1.iceberg.EncryptedRestCatalog", **given}
            )
        server.shutdown()
    assert asked[0][0] == said
    assert said or "client_secret=4711" in asked[0][1]


@pytest.mark.parametrize("lake", ["sql"], indirect=True)
def test_a_file_that_ends_early_is_refused(lake: Lake) -> None:
    # Avro takes the end of a file between two blocks of AGS1 for the end of the rows.
    rows = {n: hashlib.sha256(str(n).encode()).hexdigest() * 16 for n in range(3000)}
    table = lake.create(
        listed(dict(rows)),
        **{"write.format.default": "avro", "write.avro.compression-codec": "uncompressed"},
    )
    ((path,),) = lake.sql("SELECT file_path FROM {t}.files", table)
    file = path_of(path)
    # Iceberg answers count and max from the statistics in the manifests.
    question = "SELECT sum(length(carrier)) FROM {t}"
    assert lake.sql(question, table) == [(3000 * 1024,)]
    with file.open("r+b") as stream:
        stream.truncate(8 + 2 * (28 + (1 << 20)))
    assert "is truncated" in refusal(lake, question, table)


# --- pins of a SQL catalog ------------------------------------------------------------------------


class Database:
    """The database of the SQL catalog, as SQLite itself sees it."""

    def __init__(self, lake: Lake) -> None:
        self._path, self._catalog = lake.folder / "catalog.db", lake.name

    def run(self, statement: str, *values: str) -> list[Any]:
        with closing(sqlite3.connect(self._path)) as database, database:
            return database.execute(statement, values).fetchall()

    def location(self, table: str) -> str:
        name = table.partition(".")[2]
        question = "SELECT metadata_location FROM iceberg_tables WHERE table_name = ?"
        return str(self.run(question, name)[0][0])

    def pins(self, table: str) -> dict[str, str]:
        name = f"ags1.pin.%.{table.partition('.')[2]}"
        question = (
            "SELECT property_key, property_value FROM iceberg_namespace_properties "
            "WHERE catalog_name = ? AND namespace = 'db' AND property_key LIKE ?"
        )
        return {key.split(".")[2]: value for key, value in self.run(question, self._catalog, name)}


@pytest.mark.parametrize("lake", ["sql"], indirect=True)
class TestPins:
    @staticmethod
    def expected(database: Database, table: str) -> dict[str, str]:
        location = database.location(table)
        stored = path_of(location).read_bytes()
        return {
            "key-id": "default",
            "location": location,
            "sha256": hashlib.sha256(stored).hexdigest(),
        }

    def test_each_commit_writes_them(self, lake: Lake) -> None:
        database, table = Database(lake), lake.create(listed(ROWS))
        lake.sql("INSERT INTO {t} VALUES (5, 'DL')", table)
        assert database.pins(table) == self.expected(database, table)
        lake.ours.load_table(table).append(pa.Table.from_pylist(listed({6: "WN"}), SCHEMA))
        lake.check(table, ROWS | {5: "DL", 6: "WN"})
        lake.sql("DELETE FROM {t} WHERE id = 6", table)
        assert database.pins(table) == self.expected(database, table)
        made = f"{table}_made"
        lake.sql(f"CREATE TABLE {{t}} USING iceberg {ENCRYPTED} AS SELECT 1L AS id", made)
        assert database.pins(made) == self.expected(database, made)
        lake.sql(f"ALTER TABLE {{t}} RENAME TO {made}_renamed", made)
        assert database.pins(made) == {}
        assert database.pins(f"{made}_renamed") == self.expected(database, f"{made}_renamed")
        for purge in ("", "PURGE"):
            dropped = made + "_renamed" if purge else table
            lake.sql(f"DROP TABLE {{t}} {purge}", dropped)
            assert database.pins(dropped) == {}
            assert not lake.ours.table_exists(dropped)

    def test_metadata_that_was_changed_is_refused(self, lake: Lake) -> None:
        database, table = Database(lake), lake.create(listed(ROWS))
        lake.sql("INSERT INTO {t} VALUES (5, 'DL')", table)
        path = path_of(database.location(table))
        path.with_name(f".{path.name}.crc").unlink()  # Hadoop's own, which anybody can write
        text = path.read_text()
        path.write_text(text.replace('"carrier"', '"karrier"'))
        lake.refresh(table)
        assert "somebody has changed it" in refusal(lake, "SELECT * FROM {t}", table)
        path.write_text(text)
        lake.check(table, ROWS | {5: "DL"})

    def test_metadata_that_is_no_file_or_too_large_is_refused(self, lake: Lake) -> None:
        database, table = Database(lake), lake.create(listed(ROWS))
        path = path_of(database.location(table))
        text = path.read_bytes()
        path.unlink()
        with pipe(path), pytest.raises(Exception, match="is not a regular file"):
            lake.refresh(table)
        path.unlink()
        path.write_bytes(text)
        # 32 MiB of spaces are 32 KiB then.
        small, large = (path.with_name(f"{name}.gz.metadata.json") for name in "ab")
        small.write_bytes(gzip.compress(text))
        large.write_bytes(gzip.compress(text + b" " * (32 << 20)))
        call = "CALL {c}.system.register_table('{t}', 'file:{p}')"
        names = {"c": lake.name, "t": f"{table}_registered"}
        with pytest.raises(Exception, match="is larger than"):
            lake.spark.sql(call.format(p=large, **names))
        lake.spark.sql(call.format(p=small, **names))
        lake.check(f"{table}_registered", ROWS)

    def test_a_stripped_table_is_refused(self, lake: Lake) -> None:
        database, table = Database(lake), lake.create(listed(ROWS))
        lake.sql("INSERT INTO {t} VALUES (5, 'DL')", table)
        metadata = json.loads(path_of(database.location(table)).read_text())
        del metadata["properties"]["encryption.key-id"], metadata["encryption-keys"]
        metadata |= {"snapshots": [], "refs": {}, "current-snapshot-id": -1}
        stripped = path_of(database.location(table)).with_name("00009-stripped.metadata.json")
        stripped.write_text(json.dumps(metadata))
        database.run(
            "UPDATE iceberg_tables SET metadata_location = ? WHERE table_name = ?",
            *(f"file:{stripped}", table.partition(".")[2]),
        )
        lake.refresh(table)
        assert "as the key of the table" in refusal(lake, "SELECT * FROM {t}", table)

    def test_a_folder_that_leads_up_is_refused(self, lake: Lake) -> None:
        database, table = Database(lake), lake.create(listed(ROWS))
        location = path_of(database.location(table))
        metadata = json.loads(location.read_text())
        metadata["location"] += "/../other"
        changed = location.with_name("00009-changed.metadata.json")
        changed.write_text(json.dumps(metadata))
        database.run(
            "UPDATE iceberg_tables SET metadata_location = ? WHERE table_name = ?",
            *(f"file:{changed}", table.partition(".")[2]),
        )
        assert "'..' may lead out of it" in refusal(lake, "SELECT * FROM {t}", table)

    def test_a_commit_that_another_one_precedes_is_made_again(self, lake: Lake) -> None:
        table = lake.create([], **{"commit.retry.num-retries": "20"})
        with ThreadPoolExecutor(4) as pool:
            inserts = [
                pool.submit(lake.sql, f"INSERT INTO {{t}} VALUES ({n}, 'x')", table)
                for n in range(6)
            ]
            for n in range(6, 9):
                ours = lake.ours.load_table(table)
                ours.append(pa.Table.from_pylist(listed({n: "x"}), SCHEMA))
            for insert in inserts:
                insert.result()
        lake.check(table, dict.fromkeys(range(9), "x"))


@pytest.fixture(scope="module")
def corpus(spark: SparkTables, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Make a catalog that trusts one key."""
    folder = tmp_path_factory.mktemp("corpus")
    made: dict[tuple[str, str], str] = {}

    def catalog(key_id: str, required: str = "false") -> str:
        name = f"corpus_{key_id}_{required}"
        if (key_id, required) not in made:
            properties = {
                "catalog-impl": "ags1.iceberg.EncryptedJdbcCatalog",
                "uri": f"jdbc:sqlite:{folder}/{name}.db",
                "warehouse": f"file:{folder}",
                "encryption.trusted-key-ids": key_id,
                "encryption.require-encrypted": required,
                **KMS_PROPERTIES,
            }
            made[key_id, required] = spark.plugin_catalog(name, properties)
        return made[key_id, required]

    return catalog


CASES = [
    case
    for group in json.loads((TABLES / "index.json").read_text())["testGroups"]
    for case in group["tests"]
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["name"]))
def test_the_corpus(spark: SparkTables, corpus: Any, case: dict[str, Any]) -> None:
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    def read(catalog: str) -> list[dict[str, Any]] | None:
        name = f"{catalog}.{DATABASE}.{case['name']}"
        with at_its_location(case) as metadata:
            try:
                spark.register(name, metadata)
                return in_order(spark.session.sql(f"SELECT * FROM {name}").toArrow().to_pylist())
            except (Py4JJavaError, PySparkException):
                return None

    spark.session.sparkContext.setLogLevel("OFF")
    spark.session.conf.set("spark.sql.iceberg.executor-cache.enabled", "false")
    try:
        rows = read(corpus(case["expectedKeyId"]))
        # Nothing in a table that was stripped whole says that it was ever encrypted.
        if case["name"] == "stripped":
            assert rows is not None
            rows = read(corpus(case["expectedKeyId"], "true"))
    finally:
        spark.session.sparkContext.setLogLevel("ERROR")
        spark.session.conf.unset("spark.sql.iceberg.executor-cache.enabled")
    if case["result"] == "invalid" or (case["result"] == "acceptable" and rows is None):
        assert rows is None
    else:
        lines = (TABLES / case["rows"]).read_text().splitlines()
        assert rows == [json.loads(line) for line in lines]

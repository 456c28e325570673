"""Iceberg's own Spark runtime with our plug-in: tables that Python made, in catalogs and under KMSs
that the runtime does not know."""

from __future__ import annotations

import hashlib
import itertools
import json
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from aws_catalogs import aws_catalogs, environment, properties
from go_server import free_port
from iceberg_tables import KMS_PROPERTIES

from ags1.iceberg import EncryptedCatalog, EncryptedTable, load_catalog, verify_table
from ags1.kms.local import create_key
from ags1.spark.sql_catalog import sql_catalog

from .corpus_table_readers import TABLES, at_its_location, in_order
from .metastore import served_metastore
from .postgres import postgres
from .rest_server import rest_server
from .spark import DATABASE, SparkTables, path_of

pytestmark = pytest.mark.interop

ENCRYPTED = "TBLPROPERTIES ('format-version' = '3', 'encryption.key-id' = 'default')"
SCHEMA = pa.schema([("id", pa.int64()), ("carrier", pa.string())])
_numbers = itertools.count()


@dataclass(frozen=True)
class Lake:
    """A catalog with a keyring: ours, and the plug-in's by the name ``name``."""

    ours: EncryptedCatalog
    spark: SparkTables
    name: str
    folder: Path

    def new_name(self) -> str:
        return f"{DATABASE}.t{next(_numbers)}"

    def create(self, rows: list[dict[str, Any]], **properties: str) -> str:
        """Create a table in Python; return its name."""
        name = self.new_name()
        # The metastore of Spark's own has no tables for locks.
        properties |= {"encryption.key-id": "default", "engine.hive.lock-enabled": "false"}
        table = self.ours.create_table(name, SCHEMA, properties=properties)
        table.append(pa.Table.from_pylist(rows, SCHEMA))
        return name

    def sql(self, statement: str, table: str = "") -> list[Any]:
        """Run a statement, with ``{t}`` for the table and ``{c}`` for the catalog."""
        return self.spark.sql(statement.format(t=f"{self.name}.{table}", c=self.name))

    def check(self, table: str, expected: dict[int, str | None]) -> EncryptedTable:
        """Compare the rows of both languages with a model, and verify every file."""
        loaded = self.ours.load_table(table)
        assert isinstance(loaded, EncryptedTable)
        read = loaded.scan().to_arrow().to_pylist()
        assert {row["id"]: row["carrier"] for row in read} == expected
        assert len(read) == len(expected)
        rows = self.sql("SELECT id, carrier FROM {t} ORDER BY id", table)
        assert [tuple(row) for row in rows] == sorted(expected.items())
        assert not [f for f in verify_table(loaded).findings if f.severity != "note"]
        return loaded


POSTGRESQL = pytest.param("postgresql", marks=pytest.mark.cluster)


@pytest.fixture(scope="module", params=["sql", "rest", "hive", "glue", "dynamodb", POSTGRESQL])
def lake(
    request: Any, spark: SparkTables, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Lake]:
    folder = tmp_path_factory.mktemp(f"lake-{request.param}")
    keyring = folder / "keyring.json"
    create_key(str(keyring), "default")
    create_key(str(keyring), "other")
    kms = {
        "encryption.kms-type": "local",
        "kms.local.keyring": str(keyring),
        "encryption.trusted-key-ids": "default,other",
    }
    name = f"lake_{request.param}"
    warehouse = f"file://{folder}/warehouse"
    with ExitStack() as stack:
        python, java = {"type": request.param, "warehouse": warehouse, **kms}, {}
        if request.param == "sql":
            python["uri"] = f"sqlite:///{folder}/catalog.db"
        elif request.param == "postgresql":
            uri = stack.enter_context(postgres(free_port()))
            python |= {"type": "sql", "uri": uri}
        elif request.param == "rest":
            python["uri"] = stack.enter_context(rest_server(folder, folder / "stderr.txt"))
        elif request.param == "hive":
            python["uri"] = stack.enter_context(served_metastore(spark))
        else:
            url = stack.enter_context(aws_catalogs()).url
            patch = stack.enter_context(pytest.MonkeyPatch.context())
            for variable, value in environment(url).items():
                patch.setenv(variable, value)
            python |= properties(request.param, url, warehouse)
            java = {f"{request.param}.endpoint": url}
        # Both languages take the keys of AWS from the environment.
        named = {key: value for key, value in python.items() if "access-key" not in key}
        java |= sql_catalog(name, named).properties
        if request.param == "hive":
            del java["uri"]  # Iceberg's catalog there shares Spark's metastore
        spark.plugin_catalog(name, java)
        ours = load_catalog(name, **python)
        ours.create_namespace_if_not_exists(DATABASE)
        yield Lake(ours, spark, name, folder)
        ours.close()


ROWS: dict[int, str | None] = {1: "UA", 2: "AA", 3: "UA", 4: None}


def listed(rows: dict[int, str | None]) -> list[dict[str, Any]]:
    return [{"id": key, "carrier": value} for key, value in rows.items()]


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
        lake.sql(
            f"{statement} {{c}}.{table} USING iceberg {ENCRYPTED} AS "
            f"SELECT id, '{statement}' AS carrier FROM {{t}}",
            source,
        )
        loaded = lake.check(table, dict.fromkeys(ROWS, statement))
        assert loaded.metadata.properties["encryption.key-id"] == "default"
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


def plain_files(folder: Path) -> list[Path]:
    """The files of a table that are neither encrypted nor metadata.json."""
    return [
        path
        for path in folder.rglob("*")
        if path.is_file()
        and not path.name.endswith((".metadata.json", ".crc"))
        and path.read_bytes()[:4] not in (b"AGS1", b"PARE")
    ]


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
    for procedure, why in (
        (f"compute_table_stats('{table}')", "would be written unencrypted"),
        # Spark's tasks write the manifest with no FileIO of the table.
        (f"add_files(table => '{table}', source_table => '{source}')", "is not encrypted"),
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
        self._path = lake.folder / "catalog.db"

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
            "WHERE catalog_name = 'lake_sql' AND namespace = 'db' AND property_key LIKE ?"
        )
        return {key.split(".")[2]: value for key, value in self.run(question, name)}


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
        assert "somebody has changed it" in refusal(lake, "SELECT * FROM {t}", table)
        path.write_text(text)
        lake.check(table, ROWS | {5: "DL"})

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
        assert "as the key of the table" in refusal(lake, "SELECT * FROM {t}", table)

    def test_a_commit_that_another_one_precedes_is_made_again(self, lake: Lake) -> None:
        table = lake.create([])
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

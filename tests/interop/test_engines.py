"""Other engines over the plug-in, on a table that Python writes too: Flink, Comet, Spark 4.0. And
writers of both languages, which are killed. Run by ``make engines``."""

from __future__ import annotations

import io
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import forged_parquet as forged
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from day import SEED
from pyspark_versions import pyspark

from ags1.iceberg import EncryptedCatalog, EncryptedTable, load_catalog, verify_table
from ags1.kms.local import create_key

from . import jars
from .driver import Driver, DriverError
from .lake import SCHEMA, listed, plain_files

pytestmark = pytest.mark.cluster

FLINK = "apache-flink==2.3.0"
FLINK_RUNTIME = "org.apache.iceberg:iceberg-flink-runtime-2.1:1.11.0"
COMET = "org.apache.datafusion:comet-spark-spark4.1_2.13:1.2.0"
COMET_SETTINGS = {
    "spark.plugins": "org.apache.spark.CometPlugin",
    # With Spark's own, Comet turns itself off, and says so in a warning only.
    "spark.shuffle.manager": "org.apache.spark.sql.comet.execution.shuffle.CometShuffleManager",
    "spark.memory.offHeap.enabled": "true",
    "spark.memory.offHeap.size": "512m",
}
TABLE = "db.flights"
ROWS: dict[int, str | None] = {1: "UA", 2: "AA", 3: "UA", 4: None}
WRITER = """
import json, sys
import pyarrow as pa
from ags1.iceberg import load_catalog

given, table, first = json.loads(sys.argv[1]), sys.argv[2], int(sys.argv[3])
with load_catalog("lake", **given) as catalog:
    for number in range(first, first + 1000):
        print(number, "begun", flush=True)
        rows = {"id": pa.array([number], pa.int64()), "carrier": ["python"]}
        catalog.load_table(table).append(pa.table(rows))
        print(number, "done", flush=True)
"""


class Lake:
    """A catalog in SQLite with a keyring, in the words of each language."""

    def __init__(self, folder: Path) -> None:
        create_key(str(folder / "keyring.json"), "default")
        shared = {
            "warehouse": f"file://{folder}/warehouse",
            "encryption.kms-type": "local",
            "kms.local.keyring": str(folder / "keyring.json"),
            "encryption.trusted-key-ids": "default",
        }
        self.folder = folder
        self.python = shared | {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db"}
        self.java = shared | {
            "catalog-impl": "ags1.iceberg.EncryptedJdbcCatalog",
            "uri": f"jdbc:sqlite:{folder}/catalog.db",
        }
        self.catalog: EncryptedCatalog = load_catalog("lake", **self.python)
        self.catalog.create_namespace("db")

    def create(self, rows: dict[int, str | None], name: str = TABLE, **properties: str) -> None:
        given = {"encryption.key-id": "default", "commit.retry.num-retries": "50"} | properties
        table = self.catalog.create_table(name, SCHEMA, properties=given)
        table.append(pa.Table.from_pylist(listed(rows), SCHEMA))

    def rows(self, name: str = TABLE) -> list[tuple[int, str | None]]:
        """Return the rows as Python reads them."""
        read = self.loaded(name).scan().to_arrow().to_pylist()
        return sorted((row["id"], row["carrier"]) for row in read)

    def loaded(self, name: str = TABLE) -> EncryptedTable:
        table = self.catalog.load_table(name)
        assert isinstance(table, EncryptedTable)
        return table

    def check_whole(self, name: str = TABLE, kinds: tuple[str, ...] = ()) -> None:
        """Check that nothing is damaged or plaintext. ``kinds`` of findings are allowed."""
        findings = [f for f in verify_table(self.loaded(name)).findings if f.severity != "note"]
        assert [f for f in findings if f.kind not in kinds] == []
        assert plain_files(self.folder / "warehouse") == []


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    made = Lake(tmp_path)
    yield made
    made.catalog.close()


# --- Flink ----------------------------------------------------------------------------------------


def flink_python() -> Path:
    """Return the Python of an environment with PyFlink, made on first use."""
    folder = jars.cache_folder() / "flink"
    python = folder / "bin" / "python"
    if not (folder / "made").exists():
        venv.create(folder, with_pip=True, clear=True)
        pip = [str(python), "-m", "pip", "--quiet", "install", FLINK]
        if subprocess.run(pip, check=False).returncode:
            jars.unavailable(f"pip cannot install {FLINK}")
        (folder / "made").touch()
    return python


class Flink:
    """PyFlink in a process of its own, with the catalog ``lake``."""

    def __init__(self, lake: Lake, folder: Path, mode: str) -> None:
        names = "hadoop-client-api", "hadoop-client-runtime"
        runtime = [jars.fetched(FLINK_RUNTIME), jars.jar("sqlite"), jars.plugin()]
        class_path = [*runtime, *jars.pyspark_jars(*names)]
        words = {"type": "iceberg"} | lake.java
        catalog = ", ".join(f"'{name}' = '{value}'" for name, value in words.items())
        program = Path(__file__).with_name("flink_program.py")
        self.log = folder / "flink.txt"
        with self.log.open("ab") as stderr:
            self._process = subprocess.Popen(
                [str(flink_python()), str(program), mode, f"CREATE CATALOG lake WITH ({catalog})"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                cwd=folder,
                env=os.environ | {"HADOOP_CLASSPATH": os.pathsep.join(map(str, class_path))},
                start_new_session=True,
            )

    def __enter__(self) -> Flink:
        return self

    def __exit__(self, *_: object) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def ask(self, statement: str, count: int | None = None) -> Any:
        """Run a statement; return its rows, at most ``count``, or why it failed. An empty statement
        gives more rows of the last one."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([statement, count]) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("{"):  # others are of Flink's log
                return json.loads(line)
        raise AssertionError(self.log.read_text()[-3000:])


def test_flink_reads_and_does_not_write(lake: Lake, tmp_path: Path) -> None:
    lake.create(ROWS)
    query = f"SELECT id, carrier FROM lake.{TABLE}"
    with Flink(lake, tmp_path, "batch") as flink:
        assert sorted(flink.ask(query)["rows"]) == listed_rows(ROWS)
        assert flink.ask(f"{query} WHERE carrier = 'AA'")["rows"] == [[2, "AA"]]
        # Flink would write the manifests of its checkpoints, with the keys of files, unencrypted.
        said = flink.ask(f"INSERT INTO lake.{TABLE} VALUES (5, 'DL'), (6, 'WN')")["error"]
        assert "would be written unencrypted" in said
    assert lake.rows() == sorted(ROWS.items())
    lake.check_whole(kinds=("orphan-file",))


def test_flink_streams_what_python_appends(lake: Lake, tmp_path: Path) -> None:
    lake.create(ROWS)
    options = {
        "streaming": "true",
        "monitor-interval": "1s",
        "starting-strategy": "TABLE_SCAN_THEN_INCREMENTAL",
    }
    hint = ", ".join(f"'{name}' = '{value}'" for name, value in options.items())
    with Flink(lake, tmp_path, "streaming") as flink:
        query = f"SELECT id, carrier FROM lake.{TABLE} /*+ OPTIONS({hint}) */"
        assert sorted(flink.ask(query, len(ROWS))["rows"]) == listed_rows(ROWS)
        for more in ({5: "DL", 6: "WN"}, {7: None}):
            lake.loaded().append(pa.Table.from_pylist(listed(dict(more)), SCHEMA))
            assert sorted(flink.ask("", len(more))["rows"]) == listed_rows(dict(more))


def listed_rows(rows: dict[int, str | None]) -> list[list[Any]]:
    return [list(row) for row in sorted(rows.items())]


# --- Comet ----------------------------------------------------------------------------------------


def test_comet_scans_natively(lake: Lake, tmp_path: Path) -> None:
    lake.create(ROWS)
    lake.loaded().delete("id = 1")  # a deletion vector
    query = f"SELECT id, carrier FROM lake.{TABLE}"
    with Driver(
        tmp_path / "spark", lake.java, COMET_SETTINGS, more_jars=[jars.fetched(COMET)]
    ) as spark:
        assert "CometIcebergNativeScan" in spark.sql(f"EXPLAIN {query}")[0][0]
        rows = {number: carrier for number, carrier in ROWS.items() if number != 1}
        assert sorted(spark.sql(query)) == listed_rows(rows)
        # Its scan takes what Java's refuses, so we turn it off.
        put_plaintext_file(lake, dict.fromkeys(ROWS, "XX"))
        assert sorted(spark.sql(query)) == [[2, "XX"], [3, "XX"], [4, "XX"]]
        spark.sql("SET spark.comet.scan.icebergNative.enabled = false")
        assert "CometIcebergNativeScan" not in spark.sql(f"EXPLAIN {query}")[0][0]
        with pytest.raises(DriverError, match="is not encrypted or is truncated"):
            spark.sql(query)


@pytest.fixture
def forgeries(lake: Lake) -> list[str]:
    """Return queries of a table, and of such whose only file somebody forged."""
    queries = []
    for forge in (bytes, *forged.FORGERIES):
        name = f"db.forged_{forge.__name__}"  # BYTES is a word of Flink's SQL
        given = {"encryption.key-id": "default"} | forged.PROPERTIES
        lake.catalog.create_table(name, forged.SCHEMA, properties=given).append(forged.rows())
        (task,) = lake.loaded(name).scan().plan_files()
        path = Path(task.file.file_path.removeprefix("file://"))
        path.write_bytes(forge(path.read_bytes()))
        queries.append(f"SELECT * FROM lake.{name}")
    return queries


def test_flink_gives_no_rows_that_somebody_forged(
    lake: Lake, forgeries: list[str], tmp_path: Path
) -> None:
    with Flink(lake, tmp_path, "batch") as flink:
        genuine, *others = map(flink.ask, forgeries)
        assert len(genuine.get("rows", ())) == 2, genuine
        assert all("error" in answer for answer in others)


def test_comet_gives_no_rows_that_somebody_forged(
    lake: Lake, forgeries: list[str], tmp_path: Path
) -> None:
    # Its native scan does not ask the plug-in for the file, so it is off.
    settings = COMET_SETTINGS | {"spark.comet.scan.icebergNative.enabled": "false"}
    with Driver(tmp_path / "spark", lake.java, settings, more_jars=[jars.fetched(COMET)]) as spark:
        genuine, *others = forgeries
        assert len(spark.sql(f"SELECT id FROM ({genuine})")) == 2
        for query in others:
            with pytest.raises(DriverError):
                spark.sql(query)


def put_plaintext_file(lake: Lake, rows: dict[int, str | None]) -> None:
    """Replace the only data file by an unencrypted one of the same size."""
    (task,) = lake.loaded().scan().plan_files()
    path = Path(task.file.file_path.removeprefix("file://"))
    fields = [
        field.with_metadata({"PARQUET:field_id": str(number)})
        for number, field in enumerate(SCHEMA, start=1)
    ]
    table = pa.Table.from_pylist(listed(rows), pa.schema(fields))
    written = io.BytesIO()
    pq.write_table(table, written, write_statistics=False, store_schema=False)
    data, size = written.getvalue(), path.stat().st_size
    # Readers find the footer from the end of the file, so there may be room in front of it.
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    path.write_bytes(data[:footer] + bytes(size - len(data)) + data[footer:])
    assert path.stat().st_size == size


# --- Spark 4.0 ------------------------------------------------------------------------------------


def test_spark_4_0(lake: Lake, tmp_path: Path) -> None:
    # Iceberg 1.11, the newest for this Spark, writes no encrypted deletion vectors.
    modes = {f"write.{kind}.mode": "copy-on-write" for kind in ("delete", "update", "merge")}
    lake.create(ROWS, **modes)
    query = f"SELECT id, carrier FROM lake.{TABLE}"
    of_4_0: dict[str, Any] = {"runtime": "spark-runtime-4.0", "packages": pyspark("4.0.5")}
    with Driver(tmp_path / "spark", lake.java, **of_4_0) as spark:
        assert spark.sql("SELECT version()")[0][0].startswith("4.0.")
        assert sorted(spark.sql(query)) == listed_rows(ROWS)
        spark.sql(f"INSERT INTO lake.{TABLE} VALUES (5, 'DL')")
        spark.sql(f"UPDATE lake.{TABLE} SET carrier = 'WN' WHERE id = 2")
        spark.sql(f"DELETE FROM lake.{TABLE} WHERE id = 1")
        spark.sql(
            f"MERGE INTO lake.{TABLE} t USING (SELECT 4L AS id, 'B6' AS carrier) s ON t.id = s.id "
            "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )
        spark.sql(
            "CREATE TABLE lake.db.made USING iceberg TBLPROPERTIES ('format-version' = '3', "
            f"'encryption.key-id' = 'default') AS {query}"
        )
    for name in (TABLE, "db.made"):
        assert lake.rows(name) == [(2, "WN"), (3, "UA"), (4, "B6"), (5, "DL")]
        lake.check_whole(name)


# --- writers that are killed ----------------------------------------------------------------------


class Notes:
    """Which rows a writer has begun and which it has done."""

    def __init__(self) -> None:
        self.begun: set[int] = set()
        self.done: set[int] = set()


@contextmanager
def python_writer(lake: Lake, first: int, notes: Notes) -> Iterator[subprocess.Popen[str]]:
    """Append row by row in another process, until it is killed."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, json.dumps(lake.python), TABLE, str(first)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )

    def listen() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            number, what = line.split()
            (notes.begun if what == "begun" else notes.done).add(int(number))

    listener = threading.Thread(target=listen)
    listener.start()
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        listener.join()


def spark_writer(spark: Driver, first: int, notes: Notes) -> None:
    """Insert row by row until the driver is gone."""
    for number in range(first, first + 1000):
        notes.begun.add(number)
        try:
            spark.sql(f"INSERT INTO lake.{TABLE} VALUES ({number}, 'spark')")
        except DriverError as error:
            if "is gone" in str(error):
                return
            continue  # a conflict: then the row must not be there twice
        notes.done.add(number)


def test_nothing_is_lost_when_writers_are_killed(lake: Lake, tmp_path: Path) -> None:
    pick, kills = random.Random(SEED), 3
    lake.create(ROWS)
    notes = Notes()
    for number in range(kills):
        with Driver(tmp_path / f"spark-{number}", lake.java) as spark:
            first = 10_000 * (number + 1)
            writing = threading.Thread(target=spark_writer, args=(spark, first, notes))
            writing.start()
            for part in range(2):
                begun = len(notes.done)
                with python_writer(lake, first + 1000 * (part + 1), notes):
                    # Both have written; then one of them dies at any time.
                    while len(notes.done) < begun + 6:
                        time.sleep(0.1)
                    time.sleep(2 * pick.random())
            spark.kill()
            writing.join()
    found = [number for number, _ in lake.rows()]
    assert len(found) == len(set(found))
    written = set(found) - set(ROWS)
    assert notes.done <= written <= notes.begun
    lake.check_whole(kinds=("orphan-file",))

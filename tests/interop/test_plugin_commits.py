"""Threads of one Spark session share a loaded table, because Spark keeps loaded tables by default.

What was acknowledged has to be there, and what was refused has not: counted by marks in snapshots
and by rows, with Iceberg's own catalog as the oracle. ``make commits`` makes 10,000 commits in each
of four catalogs.
"""

from __future__ import annotations

import functools
import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from . import jars
from .java import Java, iceberg_class_path
from .lake import SCHEMA, Lake, listed
from .spark import DATABASE, SparkTables

pytestmark = pytest.mark.interop

COMMITS = int(os.environ.get("AGS1_TEST_COMMITS") or 24)
COMMITS_OF_A_TABLE = 100  # each makes the metadata longer
THREADS = 8
RETRIES = {
    "commit.retry.num-retries": "200",
    "commit.retry.min-wait-ms": "2",
    "commit.retry.max-wait-ms": "100",
}


@pytest.fixture(scope="module", params=["spark-runtime", "spark-runtime-4.0"])
def either_java(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Java]:
    """Iceberg 1.12, and 1.11, which adds the keys of a snapshot in another way."""
    runtime = jars.jar(request.param)
    others = [path for path in iceberg_class_path() if "-spark-runtime-" not in path.name]
    java = Java(tmp_path_factory.mktemp("java") / "stderr.txt", [runtime, *others])
    yield java
    java.close()


@pytest.mark.parametrize("has_keys", [False, True])
@pytest.mark.parametrize("step", ["begin", "replace", "list", "metadata", "transaction"])
def test_another_client_and_another_thread_meet_a_commit(
    either_java: Java, tmp_path: Path, step: str, has_keys: bool
) -> None:
    catalog = {
        "uri": f"jdbc:sqlite:{tmp_path}/catalog.db",
        "warehouse": f"file:{tmp_path}",
        "encryption.kms-type": "memory",
        "encryption.kms.key.a": b"0123456789012345".hex(),
    }
    call = "ags1.iceberg.Interleaved.commit"
    marks = either_java.call(call, catalog=catalog, step=step, **{"has-keys": has_keys})
    assert marks == ["first"] * has_keys + ["other", "stopped"]


# --- commits of one kind --------------------------------------------------------------------------


@pytest.mark.parametrize("first", range(0, COMMITS, COMMITS_OF_A_TABLE))
def test_what_threads_commit_is_there(lake: Lake, first: int) -> None:
    name = f"{lake.name}.{lake.create([], **RETRIES)}"
    check_commits(lake.spark, name, min(COMMITS - first, COMMITS_OF_A_TABLE))


def test_what_threads_commit_is_there_as_in_icebergs_own_catalog(
    spark: SparkTables, tmp_path: Path
) -> None:
    properties = {
        "catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
        "uri": f"jdbc:sqlite:{tmp_path}/catalog.db",
        "warehouse": f"file:{tmp_path}",
    }
    name = f"{spark.plugin_catalog('own_commits', properties)}.{DATABASE}.t"
    given = ", ".join(f"'{key}' = '{value}'" for key, value in RETRIES.items())
    spark.sql(f"CREATE TABLE {name} (id BIGINT) USING iceberg TBLPROPERTIES ({given})")
    check_commits(spark, name, min(COMMITS, COMMITS_OF_A_TABLE))


def check_commits(spark: SparkTables, name: str, count: int) -> None:
    """Have threads append through one table object, and compare what they heard with what a new
    client of the catalog finds."""
    shared = loaded(spark, name)
    marks = [str(number) for number in range(count)]
    acknowledged: list[str] = []

    def append(mine: Sequence[str]) -> None:
        for mark in mine:
            shared.newFastAppend().set("mark", mark).commit()
            acknowledged.append(mark)

    in_threads([functools.partial(append, marks[k::THREADS]) for k in range(THREADS)])
    shared.refresh()
    kept = metadata_of(spark, shared)
    spark.refresh(name)
    assert kept == metadata_of(spark, loaded(spark, name))
    found = [row[0] for row in spark.sql(f"SELECT summary['mark'] FROM {name}.snapshots")]
    there = [mark for mark in found if mark is not None]
    assert sorted(there) == sorted(acknowledged) == sorted(marks)


def loaded(spark: SparkTables, name: str) -> Any:
    session = spark.session._jsparkSession
    return spark.jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(session, name)


def metadata_of(spark: SparkTables, table: Any) -> str:
    metadata = table.operations().current()
    return str(spark.jvm.org.apache.iceberg.TableMetadataParser.toJson(metadata))


def in_threads(works: Sequence[Callable[[], object]]) -> None:
    """Do all at the same time. Raises what one of them raises."""
    raised: list[BaseException] = []

    def done(work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=done, args=[work]) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if raised:
        raise raised[0]


# --- statements of all kinds ----------------------------------------------------------------------

Rows = dict[int, str | None]  # None for one that is not there
STREAMED: Rows = dict.fromkeys(range(500, 503), "stream")

# What says that another writer was first.
REFUSED = "CommitFailed|ValidationException|onflict|oncurrent|[Mm]issing required files|stale"


def test_threads_that_insert_delete_merge_alter_compact_and_stream(lake: Lake) -> None:
    mine = Writers(lake)
    name = f"{lake.name}.{mine.table}"
    shared = loaded(lake.spark, name)
    works = (mine.inserts, mine.deletes, mine.merges, mine.alters, mine.compacts, mine.streams)
    in_threads([*works, mine.another_session, mine.python])
    shared.refresh()
    kept = metadata_of(lake.spark, shared)
    lake.spark.refresh(name)
    assert kept == metadata_of(lake.spark, loaded(lake.spark, name))
    there: Rows = {number: by for number, by in mine.model.items() if by is not None}
    lake.check(mine.table, there)
    properties = dict(lake.sql("SHOW TBLPROPERTIES {t}", mine.table))
    assert {n for n in range(3) if f"mark.{n}" in properties} == mine.altered
    query = (
        "SELECT sum(summary['deleted-data-files']) FROM {t}.snapshots WHERE operation = 'replace'"
    )
    ((rewritten,),) = lake.sql(query, mine.table)
    assert int(rewritten or 0) == mine.rewritten
    assert mine.acknowledged > 10


class Writers:
    """Writers of one table, each with rows of its own, so that the order of their commits does not
    matter. ``model`` are the rows that the acknowledged ones have left."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        self.model: Rows = {}
        self.altered: set[int] = set()
        self.rewritten = self.acknowledged = 0
        modes = {f"write.{what}.mode": "merge-on-read" for what in ("delete", "merge")}
        self.table = lake.create([], **RETRIES, **modes)
        self.source = lake.create(listed(STREAMED))
        loaded = lake.ours.load_table(self.table)
        for first in range(0, 40, 10):
            rows: Rows = dict.fromkeys(range(first, first + 10), "first")
            loaded.append(pa.Table.from_pylist(listed(rows), SCHEMA))
            self.model |= rows
        lake.refresh(self.table)

    def commit(self, work: Callable[[], Any], changes: Rows) -> Any:
        """Do the work, again if it is refused, and note in the model what it has changed."""
        for _ in range(5):
            try:
                result = work()
            except Exception as error:
                text = f"{type(error).__name__}: {error}"
                assert re.search(REFUSED, text), text
                continue
            self.acknowledged += 1
            for number, carrier in changes.items():
                self.model[number] = carrier
            return result
        return None

    def sql(self, statement: str, changes: Rows, session: Any = None) -> Any:
        text = statement.format(t=f"{self.lake.name}.{self.table}", c=self.lake.name)
        session = session or self.lake.spark.session
        return self.commit(lambda: session.sql(text).collect(), changes)

    def inserts(self) -> None:
        for n in range(100, 103):
            self.sql(f"INSERT INTO {{t}} VALUES ({n}, 'insert')", {n: "insert"})

    def deletes(self) -> None:
        for n in (1, 11, 21):
            self.sql(f"DELETE FROM {{t}} WHERE id = {n}", {n: None})

    def merges(self) -> None:
        for n in (2, 12):
            self.sql(
                f"MERGE INTO {{t}} t USING (SELECT {n} id UNION ALL SELECT {n + 200}) s "
                "ON t.id = s.id WHEN MATCHED THEN UPDATE SET carrier = 'merge' "
                "WHEN NOT MATCHED THEN INSERT (id, carrier) VALUES (s.id, 'merge')",
                {n: "merge", n + 200: "merge"},
            )

    def alters(self) -> None:
        for n in range(3):
            if self.sql(f"ALTER TABLE {{t}} SET TBLPROPERTIES ('mark.{n}' = 'x')", {}) is not None:
                self.altered.add(n)

    def compacts(self) -> None:
        options = "'rewrite-all', 'true', 'partial-progress.enabled', 'true', "
        options += "'partial-progress.max-commits', '4', 'max-file-group-size-bytes', '1'"
        call = f"rewrite_data_files(table => '{self.table}', options => map({options}))"
        for _ in range(2):
            [row] = self.sql(f"CALL {{c}}.system.{call}", {}) or [None]
            self.rewritten += row["rewritten_data_files_count"] if row else 0

    def streams(self) -> None:
        stream = self.lake.spark.session.readStream.table(f"{self.lake.name}.{self.source}")
        place = str(self.lake.folder / f"checkpoint-{self.source}")
        query = (
            stream.writeStream.option("checkpointLocation", place)
            .trigger(availableNow=True)
            .toTable(f"{self.lake.name}.{self.table}")
        )
        query.awaitTermination(300)
        assert query.exception() is None
        self.model |= STREAMED

    def another_session(self) -> None:
        """Insert as another client, which has its own catalog and loaded tables."""
        first = self.lake.spark.session
        session = first.newSession()
        for name, value in first.conf.getAll.items():
            if name.startswith(f"spark.sql.catalog.{self.lake.name}"):
                session.conf.set(name, value)
        for n in range(300, 302):
            self.sql(f"INSERT INTO {{t}} VALUES ({n}, 'other')", {n: "other"}, session)

    def python(self) -> None:
        table = self.lake.ours.load_table(self.table)
        for n in range(400, 402):
            rows = pa.Table.from_pylist([{"id": n, "carrier": "python"}], SCHEMA)
            self.commit(functools.partial(table.append, rows), {n: "python"})

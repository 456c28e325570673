"""Queries of an encrypted table on Spark: a count, a sum, groups, and the rows of one day.

``read_table`` and ``count`` of ags1, the data source "ags1-iceberg", Spark on plain Parquet files
with the same rows, and Iceberg's own runtime (with the peer ``java``) take turns in one session on
two cores, which lives in a process of its own.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from bench.peers.iceberg_java import IcebergJava
from bench.rounds import Contest, Contestant, compete
from bench.settings import Settings
from bench.storage import scratch_folder
from bench.subjects.spark import (
    JAVA_PEER,
    KEY,
    KMS,
    JavaWork,
    Session,
    SparkError,
    Work,
    expect,
    missing,
)

SUBJECT = "queries"
COUNT, SUM = "count of all rows", "sum of one column of 13"
GROUPS, DAY = "sums of four columns by two others", "all columns of 1,000 rows of one day"
QUERIES = (COUNT, SUM, GROUPS, DAY)
OURS, SOURCE, PLAIN = "read_table", "format ags1-iceberg with options", "plain Parquet"
# What Spark itself takes to bring values from Python: the floor of OURS.
PIPED = "as many numbers from memory, through mapInArrow"
COUNTED = "ags1.spark.count"
JAVA = IcebergJava.name

_FILES = 4
_BATCH = 1 << 16
_ROWS_OF_A_DAY = 1000
_GROUPED = ("delay", "distance", "fuel", "passengers")
_BY = ("carrier", "origin")
# What a query names of the table: its columns, and its rows for ags1 and for Spark.
_COLUMNS = {SUM: ["passengers"], GROUPS: [*_BY, *_GROUPED]}
_FIRST_DAY = "day = '2013-01-01'"


class _Queries:
    """A session that runs queries, on its side."""

    _spark: Any
    _java_s: str | None = None

    def query(self, what: str, way: str, place: str, plain: str, rows: int) -> tuple[float, float]:
        """Return the seconds that a query takes, and a number that its rows give. The table and
        the plain files have ``rows`` rows."""
        from pyspark.sql import functions as of

        from ags1.spark import count

        options = {**KMS, "key": KEY}
        begin = time.perf_counter()
        if way == COUNTED:
            found = count(self._spark, place, options)
            return time.perf_counter() - begin, float(found)
        frame = self._framed(what, way, place, plain, rows)
        if what == COUNT:
            answer = frame.count()
        elif what == DAY:
            answer = len(frame.where(of.expr("day = date'2013-01-01'")).collect())
        elif what == SUM:
            answer = frame.agg(of.sum("passengers")).collect()[0][0]
        else:
            sums = [of.sum(name).alias(name) for name in _GROUPED]
            answer = sum(row.passengers for row in frame.groupBy(*_BY).agg(*sums).collect())
        return time.perf_counter() - begin, float(answer)

    def _framed(self, what: str, way: str, place: str, plain: str, rows: int) -> Any:
        from ags1.spark import read_table

        if way == PLAIN:
            return self._spark.read.parquet(plain)
        if way == JAVA:
            return self._spark.table(self._java_s)
        if way == PIPED:
            return _piped(self._spark, rows)
        options = {**KMS, "key": KEY}
        columns, where = _COLUMNS.get(what), _FIRST_DAY if what == DAY else None
        if way == OURS:
            return read_table(self._spark, place, options, columns=columns, where=where)
        reader = self._spark.read.format("ags1-iceberg").options(**options)
        if columns:
            reader = reader.option("columns", ",".join(columns))
        if where:
            reader = reader.option("filter", where)
        return reader.load(place)


def _piped(spark: Any, rows: int) -> Any:
    """Return a frame of ``rows`` numbers that cost Python nothing, in a task for each file."""

    def numbers(batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa

        batch = pa.record_batch([pa.repeat(pa.scalar(1, pa.int64()), _BATCH)], ["passengers"])
        for _ in batches:
            for begin in range(0, rows // _FILES, _BATCH):
                yield batch.slice(0, min(_BATCH, rows // _FILES - begin))

    return spark.range(0, _FILES, 1, _FILES).mapInArrow(numbers, "passengers bigint")


class OwnQueries(_Queries, Work):
    """In a session without Iceberg's runtime."""


class JavaQueries(_Queries, JavaWork):
    """In a session with Iceberg's runtime."""

    def __init__(self, folder: Path, cores: int) -> None:
        from ags1.spark import iceberg_source

        super().__init__(folder, cores)
        self._spark = self._tables.session
        iceberg_source.register(self._spark)
        self._java_s = f"{self._catalog}.db.measured"


def measure(settings: Settings, skipped: dict[str, str]) -> Iterator[Contest]:
    if (name := missing()) is not None:
        skipped[SUBJECT] = f"{name} is not there"
        return
    with (
        scratch_folder(settings.folder, 2 * settings.table_size) as folder,
        Queries.in_session(folder, settings, skipped) as queries,
    ):
        yield from queries.contests(settings.slow_rounds)


class Queries:
    """Flights in a table of four encrypted files, and in four plain ones; ``size`` is what they
    take in Arrow."""

    def __init__(self, folder: Path, size: int) -> None:
        import pyarrow.parquet as pq

        from ags1.iceberg import load_catalog
        from bench.flights import BYTES_PER_FLIGHT, FLIGHTS, flights

        rows = max(_FILES * _ROWS_OF_A_DAY, size // BYTES_PER_FLIGHT)
        self.rows = rows - rows % (_FILES * _ROWS_OF_A_DAY)
        self.plain = folder / "plain"
        self.plain.mkdir()
        self._session: Session | None = None
        self._ways = [OURS, SOURCE, PLAIN]
        place = {"uri": f"sqlite:///{folder}/queries.db", "warehouse": f"file://{folder}/queries"}
        catalog = load_catalog("queries", type="sql", **place, **KMS)
        catalog.create_namespace("db")
        table = catalog.create_table("db.flights", FLIGHTS, properties={"encryption.key-id": KEY})
        data = flights(self.rows, self.rows // _ROWS_OF_A_DAY)
        for number in range(_FILES):
            part = data.slice(number * self.rows // _FILES, self.rows // _FILES)
            table.append(part)
            pq.write_table(part, self.plain / f"{number}.parquet", compression="zstd")
        self.table = table.refresh().metadata_location

    @classmethod
    @contextlib.contextmanager
    def in_session(
        cls, folder: Path, settings: Settings, skipped: dict[str, str]
    ) -> Iterator[Queries]:
        """Make the data and a session, with Iceberg's runtime if that is a peer and there."""
        queries = cls(folder, settings.table_size)
        if JAVA_PEER in settings.peers:
            queries._session = Session(JavaQueries, folder, 2)
            try:
                path = Path(queries.table.removeprefix("file://"))
                expect(queries.rows, queries._session.ask("register", path))
                queries._ways.append(JAVA)
            except SparkError as error:
                skipped[f"{SUBJECT}: {JAVA}"] = str(error).partition("\n")[0]
                queries._session.stop()
                queries._session = None
        if queries._session is None:
            (folder / "own").mkdir()
            queries._session = Session(OwnQueries, folder / "own", 2)
        try:
            yield queries
        finally:
            queries._session.stop()

    def contests(self, rounds: int) -> Iterator[Contest]:
        for what in QUERIES:
            ways = [COUNTED, *self._ways[1:]] if what == COUNT else self._ways
            if what == SUM:
                ways = [*ways, PIPED]
            runs = [Contestant(way, lambda way=way: self.run(what, way)) for way in ways]  # type: ignore[misc]  # noqa: B023
            yield compete(SUBJECT, what, runs, rounds)

    def run(self, what: str, way: str) -> float:
        """Return the seconds of a query. Raises RuntimeError if its answer is wrong."""
        assert self._session is not None
        seconds: float
        seconds, answer = self._session.ask(
            "query", what, way, self.table, str(self.plain), self.rows
        )
        if what in (COUNT, DAY):
            expect(self.rows if what == COUNT else _ROWS_OF_A_DAY, int(answer))
        return seconds

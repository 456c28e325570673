"""Streams of the data source "ags1-iceberg": the rows that snapshots append, and micro-batches that
become snapshots, each row once."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.types import StructType

from ags1.spark.arrow_rows import spark_schema
from ags1.spark.iceberg_source.stream_reader import TableStreamReader

from .test_iceberg_source import catalog, iceberg, options, some_rows, table_of

__all__ = ["catalog", "iceberg", "options"]


def schema_of(table: Any) -> StructType:
    return spark_schema(table.schema().as_arrow())


def reader_of(table: Any, options: dict[str, str], **more: str) -> TableStreamReader:
    given = {**options, "path": "db.t", **{k.replace("_", "-"): v for k, v in more.items()}}
    return TableStreamReader(given, schema_of(table))


def rows_of(reader: TableStreamReader, start: dict[str, int], end: dict[str, int]) -> list[int]:
    """What tasks read, in other processes, of a micro-batch."""
    parts = pickle.loads(pickle.dumps(reader.partitions(start, end)))
    reader = pickle.loads(pickle.dumps(reader))
    found = [b.column("id").to_pylist() for part in parts for b in reader.read(part)]
    return sorted(n for batch in found for n in batch)


def batches_of(reader: TableStreamReader) -> list[list[int]]:
    """The rows of each micro-batch of a query, which Spark before 4.2 would run."""
    found = []
    start = reader.initialOffset()
    while (end := reader.latestOffset()) != start:
        found.append(rows_of(reader, start, end))
        start = end
    return found


def query(session: Any, options: dict[str, str], checkpoint: Path, **more: str) -> list[Any]:
    """Run a stream of the table into a folder of JSON to its end, return all rows so far."""
    source = session.readStream.format("ags1-iceberg").options(**options)
    source = source.options(**{k.replace("_", "-"): v for k, v in more.items()})
    writer = source.load("db.t").writeStream.format("json").trigger(availableNow=True)
    writer = writer.option("checkpointLocation", str(checkpoint))
    run = writer.start(f"{checkpoint}-rows")
    run.awaitTermination()
    return [run, sorted(row.id for row in session.read.json(f"{checkpoint}-rows").collect())]


def test_a_query_reads_each_appended_row_once(
    iceberg: Any, catalog: Any, options: dict[str, str], tmp_path: Path
) -> None:
    table = table_of(catalog)
    table.append(some_rows(0, 10))
    checkpoint = tmp_path / "checkpoint"

    assert query(iceberg, options, checkpoint)[1] == list(range(10))
    table.append(some_rows(10, 10))
    table.append(some_rows(20, 10))
    assert query(iceberg, options, checkpoint)[1] == list(range(30))
    assert query(iceberg, options, checkpoint)[1] == list(range(30))

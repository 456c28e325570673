"""Streams of the data source "ags1-iceberg": the rows that snapshots append, and micro-batches that
become snapshots, each row once."""

from __future__ import annotations

import os
import pickle
import signal
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Operation
from pyiceberg.types import LongType, NestedField
from pyspark.sql.types import StructType

from ags1.errors import MetadataIntegrityError
from ags1.iceberg.table import EncryptedTable
from ags1.spark.arrow_rows import spark_schema
from ags1.spark.iceberg_source import Ags1IcebergDataSource, stream_writer
from ags1.spark.iceberg_source.stream_reader import TableStreamReader
from ags1.spark.iceberg_source.stream_writer import BatchFiles, TableStreamWriter

from .test_iceberg_source import iceberg, some_rows, table_of

pytestmark = pytest.mark.spark

__all__ = ["iceberg"]


def schema_of(table: Any) -> StructType:
    return spark_schema(table.schema().as_arrow())


def reader_of(table: Any, options: dict[str, str], **more: str) -> TableStreamReader:
    given = {**options, "path": "db.t", **{k.replace("_", "-"): v for k, v in more.items()}}
    return Ags1IcebergDataSource(given).streamReader(schema_of(table))


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


class KilledSource(Ags1IcebergDataSource):
    """The data source with a driver that is killed after it has committed a batch."""

    @classmethod
    def name(cls) -> str:
        return "ags1-iceberg-killed"

    def streamWriter(self, schema: StructType, overwrite: bool) -> TableStreamWriter:
        return KilledWriter(dict(self.options), schema, overwrite=overwrite)


class KilledWriter(TableStreamWriter):
    def commit(self, messages: list[BatchFiles | None], batchId: int) -> None:
        super().commit(messages, batchId)
        if batchId == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    def abort(self, messages: list[BatchFiles | None], batchId: int) -> None:
        pass  # a driver that was killed takes nothing back


def copy(
    session: Any, options: dict[str, str], checkpoint: Path, name: str = "ags1-iceberg"
) -> None:
    """Run a stream of the table into another one to its end."""
    source = session.readStream.format("ags1-iceberg").options(**options)
    writer = source.load("db.t").repartition(2).writeStream.format(name).options(**options)
    writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    run = writer.start("db.copy")
    try:
        assert run.awaitTermination(300)
    finally:
        run.stop()


def test_a_stream_copies_each_appended_row_once(
    iceberg: Any, catalog: Any, options: dict[str, str], tmp_path: Path
) -> None:
    iceberg.dataSource.register(KilledSource)
    table = table_of(catalog)
    table.append(some_rows(0, 10))
    properties = {"encryption.key-id": "default"}
    # The columns of a frame are never required.
    columns = Schema(
        *(NestedField(f.field_id, f.name, f.field_type) for f in table.schema().fields)
    )
    target = catalog.create_table("db.copy", columns, properties=properties)
    checkpoint = tmp_path / "checkpoint"

    copy(iceberg, options, checkpoint)
    assert ids_in(target) == list(range(10))
    table.append(some_rows(10, 10))
    table.append(some_rows(20, 10))
    with pytest.raises(Exception, match=r"STREAM_FAILED|terminated with exception"):
        copy(iceberg, options, checkpoint, "ags1-iceberg-killed")
    table.append(some_rows(30, 10))
    copy(iceberg, options, checkpoint)
    copy(iceberg, options, checkpoint)

    assert ids_in(target) == list(range(40))
    rows = table.scan().to_arrow().sort_by("id").to_pylist()
    assert target.scan().to_arrow().sort_by("id").to_pylist() == rows
    summaries = [snapshot.summary.additional_properties for snapshot in target.snapshots()]
    epochs = [summary["spark.sql.streaming.epochId"] for summary in summaries]
    assert epochs == ["0", "1", "2"]
    assert len({summary["spark.sql.streaming.queryId"] for summary in summaries}) == 1
    assert len({summary["spark.sql.streaming.runId"] for summary in summaries}) == 3
    keys = [task.file.key.encryption_key for task in table.scan().plan_files()]
    for path in checkpoint.rglob("*"):
        stored = path.read_bytes() if path.is_file() else b""
        assert not any(key in stored or key.hex().encode() in stored for key in keys)


def test_a_count_of_a_stream_replaces_the_one_before(
    iceberg: Any, catalog: Any, options: dict[str, str], tmp_path: Path
) -> None:
    table = table_of(catalog)
    columns = Schema(NestedField(1, "rows", LongType()))
    properties = {"encryption.key-id": "default"}
    target = catalog.create_table("db.counts", columns, properties=properties)

    for first in (0, 10):
        table.append(some_rows(first, 10))
        source = iceberg.readStream.format("ags1-iceberg").options(**options).load("db.t")
        counted = source.groupBy().count().selectExpr("count as rows")
        writer = counted.writeStream.format("ags1-iceberg").options(**options)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        run = writer.outputMode("complete").trigger(availableNow=True).start("db.counts")
        assert run.awaitTermination(300)

        assert target.refresh().scan().to_arrow()["rows"].to_pylist() == [first + 10]


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        ({}, [[0, 60]]),
        ({"streaming_max_files_per_micro_batch": "2"}, [[0, 20], [20, 40], [40, 60]]),
        ({"streaming_max_rows_per_micro_batch": "35"}, [[0, 30], [30, 60]]),
        # At least one file.
        ({"streaming_max_bytes_per_micro_batch": "1"}, [[n, n + 10] for n in range(0, 60, 10)]),
    ],
)
def test_micro_batches_are_limited(
    catalog: Any, options: dict[str, str], limit: dict[str, str], expected: list[list[int]]
) -> None:
    table = table_of(catalog)
    with table.transaction() as transaction:
        for first in (0, 10, 20):
            transaction.append(some_rows(first, 10))
    table.append(some_rows(30, 10))
    table.append(some_rows(40, 20).slice(0, 10))
    table.append(some_rows(50, 10))

    found = batches_of(reader_of(table, options, **limit))

    assert found == [list(range(*ends)) for ends in expected]


def test_a_query_goes_on_within_its_limits(catalog: Any, options: dict[str, str]) -> None:
    table = table_of(catalog)
    for first in range(0, 40, 10):
        table.append(some_rows(first, 10))
    limit = {"streaming_max_files_per_micro_batch": "1"}
    first = reader_of(table, options, **limit)
    start = first.initialOffset()
    end = first.latestOffset()

    again = reader_of(table, options, **limit)  # as after a kill
    assert again.partitions(end, end) == []  # Spark says where the query is
    next_end = again.latestOffset()

    assert rows_of(again, start, end) == list(range(10))
    assert rows_of(again, end, next_end) == list(range(10, 20))
    # PySpark from 4.2 on says it itself.
    assert again.latestOffset(next_end, None) != again.latestOffset(end, None) == next_end


def test_filters_and_columns_of_a_stream(catalog: Any, options: dict[str, str]) -> None:
    table = table_of(catalog)
    table.append(some_rows(0, 20))
    table.append(some_rows(20, 20))
    columns = schema_of(table)
    reader = reader_of(table, options, filter="id >= 15", streaming_max_files_per_micro_batch="1")

    assert batches_of(reader) == [list(range(15, 20)), list(range(20, 40))]

    with table.update_schema() as update:
        update.rename_column("region", "land")
    table.append(some_rows(40, 20).rename_columns(["id", "land", "at"]))
    begin = reader.latestOffset()
    reader.partitions(begin, begin)
    table.append(some_rows(60, 1).rename_columns(["id", "land", "at"]))
    (part,) = reader.partitions(begin, reader.latestOffset())
    (batch,) = reader.read(part)
    assert batch.column("region").to_pylist() == ["r0"]
    other = TableStreamReader({**options, "path": "db.t"}, columns)
    with pytest.raises(ValueError, match=r"columns are not those .* load the table again"):
        other.partitions(begin, other.latestOffset())


def test_snapshots_that_do_not_append(catalog: Any, options: dict[str, str]) -> None:
    table = table_of(catalog)
    table.append(some_rows(0, 10))
    table.append(some_rows(10, 10))
    table.rewrite_data_files(min_input_files=2)
    assert table.current_snapshot().summary.operation == Operation.REPLACE
    table.delete("id < 3")
    table.append(some_rows(20, 10))
    table.overwrite(some_rows(40, 1), "id = 25")
    table.append(some_rows(30, 5))
    deletes = {"streaming_skip_delete_snapshots": "true"}
    overwrites = {"streaming_skip_overwrite_snapshots": "true"}

    for more, kind, option in (
        ({}, "delete", "streaming-skip-delete-snapshots"),
        (deletes, "overwrite", "streaming-skip-overwrite-snapshots"),
    ):
        reader = reader_of(table, options, **more)
        reader.initialOffset()
        with pytest.raises(ValueError, match=f"operation '{kind}'.*{option}"):
            reader.latestOffset()
    ((*rows,),) = batches_of(reader_of(table, options, **deletes, **overwrites))
    assert rows == list(range(35))


def test_expired_snapshots(catalog: Any, options: dict[str, str]) -> None:
    table = table_of(catalog)
    reader = reader_of(table, options)
    empty = reader.initialOffset()
    table.append(some_rows(0, 10))
    first = reader.latestOffset()
    partly = {**first, "position": 0}
    table.append(some_rows(10, 10))
    ids = [s.snapshot_id for s in table.snapshots()]
    table.expire_snapshots(snapshot_ids=ids[:1])

    # All of the expired snapshot was read, so nothing is missing.
    assert rows_of(reader, first, reader.latestOffset()) == list(range(10, 20))
    for begin in (empty, partly):
        again = reader_of(table, options)
        again.partitions(begin, begin)
        with pytest.raises(ValueError, match="not have it any more: it was expired"):
            again.latestOffset()
    assert batches_of(reader_of(table, options)) == [list(range(10, 20))]

    table.append(some_rows(20, 10))
    table.expire_snapshots(snapshot_ids=ids[1:])
    with pytest.raises(ValueError, match=f"snapshot {ids[0]}, .* begin a new query"):
        reader.partitions(first, reader.reportLatestOffset())


def test_a_branch_that_was_rolled_back(catalog: Any, options: dict[str, str]) -> None:
    table = table_of(catalog)
    table.append(some_rows(0, 10))
    table.append(some_rows(10, 10))
    ids = [s.snapshot_id for s in table.snapshots()]
    table.manage_snapshots().create_branch(ids[0], "work").commit()
    table.append(some_rows(50, 5), branch="work")
    reader = reader_of(table, options)
    reader.partitions({"snapshot_id": ids[1]}, {"snapshot_id": ids[1]})
    table.manage_snapshots().rollback_to_snapshot(ids[0]).commit()

    with pytest.raises(ValueError, match=f"up to snapshot {ids[1]}.* was rolled back"):
        reader.latestOffset()

    assert batches_of(reader_of(table, options, branch="work")) == [[*range(10), *range(50, 55)]]
    with pytest.raises(ValueError, match="no branch 'wrok'"):
        reader_of(table, options, branch="wrok").initialOffset()


def test_where_a_query_begins(catalog: Any, options: dict[str, str]) -> None:
    table = table_of(catalog)
    reader = reader_of(table, options)
    assert reader.initialOffset() == reader.latestOffset() == {"snapshot_id": -1}
    for first in (0, 10, 20):
        table.append(some_rows(first, 10))
    _, second, _ = table.snapshots()

    def beginning(**more: Any) -> list[list[int]]:
        return batches_of(reader_of(table, options, **{k: str(v) for k, v in more.items()}))

    assert beginning(stream_from_timestamp=second.timestamp_ms) == [list(range(10, 30))]
    assert beginning(start_snapshot_id=second.snapshot_id) == [list(range(20, 30))]
    later = str(second.timestamp_ms + 10**9)
    reader = reader_of(table, options, stream_from_timestamp=later)
    assert batches_of(reader) == []
    table.append(some_rows(30, 10))  # before that time, too
    assert batches_of(reader) == []
    assert reader.latestOffset() == {"snapshot_id": -1}
    with pytest.raises(ValueError, match="up to snapshot 17"):
        beginning(start_snapshot_id=17)
    with pytest.raises(ValueError, match="exclude each other"):
        beginning(start_snapshot_id=17, stream_from_timestamp=1)
    with pytest.raises(ValueError, match="'snapshot-id' is only for reading: leave it out"):
        beginning(snapshot_id=17)
    for name in ("stream_from_timestamp", "streaming_max_rows_per_micro_batch"):
        with pytest.raises(ValueError, match="has to be a number above 0, not 'today'"):
            beginning(**{name: "today"})


def test_what_a_stream_sends_has_no_key_in_it(catalog: Any, options: dict[str, str]) -> None:
    table = table_of(catalog)
    table.append(some_rows(0, 10))
    reader = reader_of(table, options)
    start, end = reader.initialOffset(), reader.latestOffset()

    sent = pickle.dumps((reader, reader.partitions(start, end), start, end))

    (task,) = table.scan().plan_files()
    assert task.file.key.encryption_key not in sent
    assert table.files.keys.encryption_keys


# -- writing

QUERY = "6f1f8a4e-7c0b-4d2e-9f65-0a4f1a2b3c4d"


class Task:
    """Spark's context of a task of a query's batch."""

    def __init__(self, batch: int, run: str, query: str) -> None:
        self._properties = {
            "sql.streaming.queryId": query,
            "streaming.sql.batchId": str(batch),
            "spark.jobGroup.id": run,
        }

    def getLocalProperty(self, name: str) -> str | None:
        return self._properties.get(name)


class Streaming:
    """Runs the batches of a query as Spark does, in this process."""

    def __init__(
        self, options: dict[str, str], monkeypatch: pytest.MonkeyPatch, overwrite: bool = False
    ) -> None:
        more = {"checkpointlocation": "/nowhere", "snapshot-property.job": "nightly"}
        self._options = {**options, "path": "db.t", **more}
        self._overwrite = overwrite
        self._patch = monkeypatch
        self.restart()

    def restart(self) -> None:
        self.run = str(uuid.uuid4())

    def writer(self) -> TableStreamWriter:
        columns = spark_schema(some_rows(0, 1).schema)
        columns["id"].nullable = False
        source = Ags1IcebergDataSource(self._options)
        writer = source.streamWriter(columns, overwrite=self._overwrite)
        assert isinstance(writer, TableStreamWriter)
        return writer

    def write(self, batch: int, *parts: pa.Table, query: str = QUERY) -> list[BatchFiles | None]:
        """What the tasks of a batch, one for each part, have written."""
        writer = pickle.loads(pickle.dumps(self.writer()))
        with self._patch.context() as patch:
            task = Task(batch, self.run, query)
            patch.setattr(stream_writer.TaskContext, "get", lambda: task)
            patch.setattr("ags1.spark.iceberg_source.writer.end_of_task", lambda: None)
            return [writer.write(iter(part.to_batches())) for part in parts]

    def commit(self, batch: int, messages: list[BatchFiles | None]) -> None:
        self.writer().commit(pickle.loads(pickle.dumps(messages)), batch)


def ids_in(table: Any, **scan: Any) -> list[int]:
    return sorted(table.refresh().scan(**scan).to_arrow()["id"].to_pylist())


def data_files(tmp_path: Path) -> set[str]:
    return {path.name for path in (tmp_path / "warehouse").rglob("data/**/*.parquet")}


def live_files(table: Any) -> set[str]:
    paths = table.refresh().inspect.all_files()["file_path"].to_pylist()
    return {path.rpartition("/")[2] for path in paths}


def test_a_batch_is_one_snapshot_once(
    catalog: Any, options: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = table_of(catalog)
    stream = Streaming(options, monkeypatch)
    first = stream.write(0, some_rows(0, 10), some_rows(10, 10))
    stream.commit(0, first)
    stream.commit(1, stream.write(1, some_rows(20, 10)))
    stream.restart()

    # The driver was killed before it had noted the end of batch 1.
    stream.commit(1, stream.write(1, some_rows(20, 10)))
    stream.commit(0, stream.write(0, some_rows(0, 20)))
    stream.commit(2, stream.write(2, some_rows(30, 10)))
    stream.commit(3, stream.write(3, some_rows(0, 0)))  # no rows

    assert ids_in(table) == list(range(40))
    summaries = [snapshot.summary.additional_properties for snapshot in table.snapshots()]
    assert [
        (s["spark.sql.streaming.queryId"], s["spark.sql.streaming.epochId"]) for s in summaries
    ] == [(QUERY, "0"), (QUERY, "1"), (QUERY, "2")]
    assert {summary["job"] for summary in summaries} == {"nightly"}
    assert data_files(tmp_path) == live_files(table)
    # Another query begins at 0 again.
    stream.commit(0, stream.write(0, some_rows(40, 1), query=str(uuid.uuid4())))
    assert ids_in(table) == list(range(41))
    keys = [task.file.key.encryption_key for task in table.scan().plan_files()]
    assert len(set(keys)) == len(keys) == 5
    assert not any(key in pickle.dumps(first) for key in keys)


@pytest.mark.parametrize("forged", ["x", "", "-1", "1" * 20])
def test_a_forged_number_of_a_batch_is_refused(
    catalog: Any, options: dict[str, str], monkeypatch: pytest.MonkeyPatch, forged: str
) -> None:
    table = table_of(catalog)
    named = {
        "spark.sql.streaming.queryId": QUERY,
        "spark.sql.streaming.epochId": forged,
    }
    table.append(some_rows(0, 1), snapshot_properties=named)
    stream = Streaming(options, monkeypatch)
    with pytest.raises(MetadataIntegrityError, match=r"streaming\.epochId' is not a number"):
        stream.commit(0, stream.write(0, some_rows(1, 1)))
    assert ids_in(table) == [0]


def test_two_drivers_of_one_query_commit_a_batch_once(
    catalog: Any, options: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = table_of(catalog)
    stream, other = Streaming(options, monkeypatch), Streaming(options, monkeypatch)
    ours, theirs = stream.write(0, some_rows(0, 10)), other.write(0, some_rows(0, 10))
    commit_updates = EncryptedTable.commit_updates

    def commit_after_the_other(*args: Any) -> Any:
        monkeypatch.setattr(EncryptedTable, "commit_updates", commit_updates)
        other.commit(0, theirs)
        return commit_updates(*args)

    monkeypatch.setattr(EncryptedTable, "commit_updates", commit_after_the_other)

    stream.commit(0, ours)

    assert ids_in(table) == list(range(10))
    assert data_files(tmp_path) == live_files(table)


@pytest.mark.parametrize("point", ["before the commit", "in the commit", "a task failed"])
def test_a_batch_that_was_killed_leaves_no_file(
    catalog: Any,
    options: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    point: str,
) -> None:
    table = table_of(catalog)
    stream = Streaming(options, monkeypatch)
    stream.commit(0, stream.write(0, some_rows(0, 10)))
    killed = stream.write(1, some_rows(10, 5), some_rows(15, 5))
    if point == "in the commit":
        with monkeypatch.context() as patch:
            patch.setattr(EncryptedTable, "commit_updates", _no_answer)
            with pytest.raises(OSError, match="no answer"):
                stream.commit(1, killed)
    elif point == "a task failed":
        stream.writer().abort([*killed[:1], None], 1)
        assert len(data_files(tmp_path)) == 2
    stream.restart()

    stream.commit(1, stream.write(1, some_rows(10, 10)))

    assert ids_in(table) == list(range(20))
    assert data_files(tmp_path) == live_files(table)
    assert len(live_files(table)) == 2


def test_files_of_the_table_are_never_removed(
    catalog: Any, options: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = table_of(catalog)
    stream = Streaming(options, monkeypatch)
    stream.commit(0, stream.write(0, some_rows(0, 10)))
    number = table.refresh().current_snapshot().snapshot_id
    table.append(some_rows(10, 1))
    table.expire_snapshots(snapshot_ids=[number])
    stream.restart()

    # Nothing says that the table has the batch, as in Java. Its files stay.
    stream.commit(0, stream.write(0, some_rows(0, 10)))

    assert ids_in(table) == sorted([*range(11), *range(10)])


def test_a_complete_result_replaces_all_rows(
    catalog: Any, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = table_of(catalog)
    table.append(some_rows(50, 5))
    stream = Streaming({**options, "branch": "work"}, monkeypatch, overwrite=True)
    for batch in (0, 1, 1):
        stream.commit(batch, stream.write(batch, some_rows(0, batch + 1)))

    assert ids_in(table) == list(range(50, 55))
    head = table.snapshot_by_name("work")
    assert ids_in(table, snapshot_id=head.snapshot_id) == [0, 1]
    assert head.summary.operation == Operation.OVERWRITE
    assert len(table.snapshots()) == 3


def _no_answer(*_: object) -> Any:
    raise OSError("no answer")

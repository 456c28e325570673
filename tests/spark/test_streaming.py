"""Streams of the data source "ags1": written to a folder and its ledger, and read from there, each
row once, whatever is killed in between."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark import __version__ as pyspark_version
from pyspark.sql.types import LongType, StringType, StructField, StructType

import ags1
from ags1.atomic import publish
from ags1.spark import datasource, jobs
from ags1.spark.datasource import Ags1DataSource, staging
from ags1.spark.datasource.ledger_commit import commit_to_ledger, ledger_rows, take_back
from ags1.spark.datasource.reader import FilesReader
from ags1.spark.datasource.stream_reader import LedgerStreamReader
from ags1.spark.datasource.stream_writer import StreamWriter, is_committed, job_id_of
from ags1.spark.datasource.writer import FilesWriter, Target, WrittenFile
from ags1.spark.jobs.publishing import settle_pending
from ags1.spark.keys import KmsConfig
from ags1.spark.ledger import DONE, ENCRYPT, FAILED, REMOVED, Ledger, Row, open_ledger
from ags1.spark.options import sealing_keys as options_sealing_keys
from ags1.spark.storage.local import LocalSource
from ags1.spark.storage.places import find
from tests.aws_server import aws_server, dummy_environment

pytestmark = pytest.mark.spark

QUERY = "6f1f8a4e-7c0b-4d2e-9f65-0a4f1a2b3c4d"
_VALUE = StructType([StructField("value", StringType())])


class KilledSource(Ags1DataSource):
    """The data source with a driver that is killed, once, at the point that an option names."""

    @classmethod
    def name(cls) -> str:
        return "ags1-killed"

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        return KilledWriter(dict(self.options), schema, overwrite=overwrite)


class KilledWriter(StreamWriter):
    """Dies in a commit, and takes whom it is told along."""

    def commit(self, messages: list[WrittenFile | None], batchId: int) -> None:
        options = self._target.options
        if batchId != int(options["killed-at-batch"]):
            super().commit(messages, batchId)
            return
        patch = pytest.MonkeyPatch()  # of a process that ends here
        die = Killing(options.get("killed-pids", ""))
        point = options["killed-at"]
        if point == "before the commit":
            die()
        elif point == "before the names":
            patch.setattr("ags1.spark.datasource.ledger_commit.published", die)
        elif point == "between the names":
            one_by_one = publish

            def publish_one(*args: Any, **named: Any) -> None:
                one_by_one(*args, **named)
                die()

            patch.setattr("ags1.spark.storage.local.publish", publish_one)
        else:
            assert point == "after the commit"
            super().commit(messages, batchId)
            die()
        super().commit(messages, batchId)

    def abort(self, messages: list[WrittenFile | None], batchId: int) -> None:
        # A driver that was killed takes nothing back.
        if self._target.options.get("aborts") == "true":
            super().abort(messages, batchId)


class Killing:
    def __init__(self, others: str) -> None:
        self._others = [int(pid) for pid in others.split(",") if pid]

    def __call__(self, *args: object, **named: object) -> Any:
        for pid in [*self._others, os.getpid()]:
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "sealed"


@pytest.fixture
def given(tmp_path: Path, keyring: Path) -> dict[str, str]:
    """The options of writers and readers."""
    return {
        "ledger": str(tmp_path / "ledger"),
        "keyring": str(keyring),
        "key": "default",
        "inner": "text",
    }


@pytest.fixture
def session(spark: Any) -> Any:
    datasource.register(spark)
    spark.dataSource.register(KilledSource)
    return spark


def lines_in(folder: Path, number: int, count: int = 20) -> list[str]:
    """Write a file of lines for a stream to read; return them."""
    folder.mkdir(exist_ok=True)
    lines = [f"file {number} line {n}" for n in range(count)]
    (folder / f"{number}.txt").write_text("\n".join(lines))
    os.utime(folder / f"{number}.txt", (1_700_000_000 + number, 1_700_000_000 + number))
    return lines


def write_stream(
    session: Any, source: Path, folder: Path, options: dict[str, str], name: str = "ags1"
) -> None:
    """Run a stream of the text files of ``source``, a file to a batch, to its end."""
    frame = session.readStream.option("maxFilesPerTrigger", "1").text(str(source))
    # Two files in a batch.
    writer = frame.repartition(2).writeStream.format(name).options(**options)
    writer = writer.option("checkpointLocation", f"{folder}-checkpoint")
    query = writer.trigger(availableNow=True).start(str(folder))
    try:
        assert query.awaitTermination(300)
    finally:
        query.stop()


def read_stream(session: Any, folder: Path, target: Path, options: dict[str, str]) -> list[str]:
    """Run a stream of the encrypted files' rows to its end; return all that it has ever written."""
    frame = session.readStream.format("ags1").options(**options).load(str(folder))
    writer = frame.writeStream.format("parquet").option("path", str(target))
    writer = writer.option("checkpointLocation", f"{target}-checkpoint")
    query = writer.trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(300)
    finally:
        query.stop()
    return sorted(row.value for row in session.read.parquet(str(target)).collect())


def settled(options: dict[str, str]) -> list[Row]:
    with open_ledger(options["ledger"], writing=False) as ledger:
        assert not list(ledger.pending())
        return ledger.rows()


def values(session: Any, folder: Path, options: dict[str, str]) -> list[str]:
    frame = session.read.format("ags1").options(**options).load(str(folder))
    return sorted(row.value for row in frame.collect())


def test_what_a_stream_writes_another_one_reads(
    session: Any, tmp_path: Path, folder: Path, given: dict[str, str], kms: KmsConfig
) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    lines = lines_in(source, 0) + lines_in(source, 1)

    write_stream(session, source, folder, given)
    assert read_stream(session, folder, target, given) == sorted(lines)
    lines += lines_in(source, 2)
    lines_in(source, 3, 0)  # a batch without rows is a file without rows, as in Spark's own sink
    write_stream(session, source, folder, given)
    assert read_stream(session, folder, target, given) == sorted(lines)
    assert read_stream(session, folder, target, given) == sorted(lines)

    assert values(session, folder, given) == sorted(lines)
    rows = settled(given)
    assert {row.target for row in rows} == set(map(str, folder.iterdir()))
    assert len(rows) == 7
    assert len({row.job_id for row in rows}) == 4
    assert len({row.source for row in rows}) == 4
    for row in rows:
        assert (row.operation, row.status, row.master_key_id) == (ENCRYPT, DONE, "default")
        assert Path(row.target).name == f"{row.relative_path}.ags1"
        assert Path(row.target).read_bytes().startswith(b"AGS1")
        assert row.target_size == Path(row.target).stat().st_size
        assert row.source.startswith("stream:")
    assert sum(row.source_size for row in rows) == sum(len(line) + 1 for line in lines)
    plain = tmp_path / "plain"
    summary = jobs.decrypt_files(session, None, plain, ledger=given["ledger"], kms=kms)
    assert (summary.done, summary.failed) == (7, 0)
    texts = [path.read_text() for path in plain.iterdir()]
    assert sorted("".join(texts).splitlines()) == sorted(lines)


def test_what_a_bulk_job_encrypts_is_read_once(
    session: Any, tmp_path: Path, folder: Path, given: dict[str, str], kms: KmsConfig
) -> None:
    source, ledger = tmp_path / "source", given["ledger"]
    first, second = lines_in(source, 0), lines_in(source, 1)
    jobs.encrypt_files(session, source, folder, ledger=ledger, kms=kms, key_id="default")
    reader = reader_of(given, folder)
    middle = reader.latestOffset()["batch"]
    assert texts_of(reader, 0, middle) == sorted(first + second)

    second = lines_in(source, 1, 21)
    third = lines_in(source, 2)
    jobs.encrypt_files(session, source, folder, ledger=ledger, kms=kms, key_id="default")
    end = reader.latestOffset()["batch"]
    # Run again, the first micro-batch is without what was encrypted anew.
    assert texts_of(reader, 0, middle) == sorted(first)
    assert texts_of(reader, middle, end) == sorted(second + third)


@pytest.mark.parametrize(
    ("point", "aborts"),
    [
        ("before the commit", False),
        ("before the names", False),
        ("between the names", False),
        ("between the names", True),
        ("after the commit", False),
    ],
)
def test_a_commit_that_is_killed_leaves_each_row_once(
    session: Any,
    tmp_path: Path,
    folder: Path,
    given: dict[str, str],
    point: str,
    aborts: bool,
) -> None:
    source = tmp_path / "source"
    lines = lines_in(source, 0) + lines_in(source, 1)
    killed = {"killed-at": point, "killed-at-batch": "1", "aborts": str(aborts).lower()}
    with pytest.raises(Exception, match=r"STREAM_FAILED|terminated with exception"):
        write_stream(session, source, folder, given | killed, "ags1-killed")

    lines += lines_in(source, 2)
    write_stream(session, source, folder, given)

    assert values(session, folder, given) == sorted(lines)
    reader = reader_of(given, folder)
    assert texts_of(reader, 0, reader.latestOffset()["batch"]) == sorted(lines)
    done = [row for row in settled(given) if row.status == DONE]
    assert {row.target for row in done} == set(map(str, folder.glob("[!.]*")))
    assert len({row.job_id for row in done}) == 3
    assert len({row.key_metadata for row in done}) == len(done)


DRIVER = """
import sys
import uuid

from pyspark.sql import SparkSession

from tests.spark import test_streaming as streams

source, folder = map(streams.Path, sys.argv[1:3])
options = dict(argument.split("=", 1) for argument in sys.argv[3:])
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
builder = builder.config("spark.driver.host", "127.0.0.1")
builder = builder.config("spark.driver.bindAddress", "127.0.0.1")
spark = builder.config("spark.sql.warehouse.dir", f"file:{folder}-warehouse").getOrCreate()
spark.dataSource.register(streams.KilledSource)
java = spark._jvm.java.lang.ProcessHandle.current().pid()
options["killed-pids"] = f"{streams.os.getpid()},{java}"
streams.write_stream(spark, source, folder, options, "ags1-killed")
"""


def test_a_driver_that_is_killed_leaves_each_row_once(
    session: Any, tmp_path: Path, folder: Path, given: dict[str, str]
) -> None:
    source = tmp_path / "source"
    lines = lines_in(source, 0) + lines_in(source, 1)
    (tmp_path / "driver.py").write_text(DRIVER)
    options = given | {"killed-at": "between the names", "killed-at-batch": "1"}
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    paths = [str(Path(__file__).parents[2]), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(paths)

    driver = subprocess.run(
        [
            sys.executable,
            str(tmp_path / "driver.py"),
            str(source),
            str(folder),
            *(f"{name}={value}" for name, value in options.items()),
        ],
        env=environment,
        capture_output=True,
        timeout=300,
    )

    assert driver.returncode == -signal.SIGKILL, driver.stderr.decode()[-2000:]
    with open_ledger(given["ledger"], writing=False) as ledger:
        (pending,) = ledger.pending()
    named = [Path(row.target).exists() for row in pending.rows]
    assert sorted(named) == [False, True]
    # Not settled: not there yet for readers.
    assert len(values(session, folder, given)) == 20

    write_stream(session, source, folder, given)

    assert values(session, folder, given) == sorted(lines)
    assert {row.target for row in settled(given)} == set(map(str, folder.glob("[!.]*")))


def test_a_task_that_fails_leaves_nothing(
    session: Any, tmp_path: Path, folder: Path, given: dict[str, str]
) -> None:
    source = tmp_path / "source"
    lines = lines_in(source, 0)
    frame = session.readStream.text(str(source)).repartition(2)
    failing = frame.selectExpr(
        "if(value = 'file 0 line 7', cast(raise_error('boom') as string), value) as value"
    )
    writer = failing.writeStream.format("ags1").options(**given)
    query = writer.option("checkpointLocation", f"{folder}-checkpoint").start(str(folder))

    with pytest.raises(Exception, match="boom"):
        query.awaitTermination(300)

    assert not list(folder.glob("[!_]*"))
    write_stream(session, source, folder, given)
    assert values(session, folder, given) == sorted(lines)
    assert len(list(folder.iterdir())) == 2


def test_a_complete_result_replaces_the_one_before(
    session: Any, tmp_path: Path, folder: Path, given: dict[str, str]
) -> None:
    source = tmp_path / "source"

    def run() -> None:
        frame = session.readStream.text(str(source)).groupBy().count()
        writer = frame.selectExpr("cast(count as string) as value").writeStream.format("ags1")
        writer = writer.options(**given).outputMode("complete")
        writer = writer.option("checkpointLocation", f"{folder}-checkpoint")
        query = writer.trigger(availableNow=True).start(str(folder))
        assert query.awaitTermination(300)

    lines_in(source, 0)
    run()
    assert values(session, folder, given) == ["20"]
    lines_in(source, 1)
    run()

    assert values(session, folder, given) == ["40"]
    assert len(list(folder.iterdir())) == 1
    assert [row.status for row in settled(given)] == [DONE, DONE, REMOVED]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ledger": ""}, "the option 'ledger'"),
        ({"inner": "orc"}, "has to be one of text"),
        ({"s3.secret-access-key": "open sesame"}, "would send a secret"),
    ],
)
def test_streams_that_cannot_be_are_refused(
    tmp_path: Path, given: dict[str, str], options: dict[str, str], message: str
) -> None:
    given = given | options | {"path": str(tmp_path)}

    with pytest.raises((ValueError, ags1.KmsConfigurationError), match=message) as caught:
        StreamWriter(given, _VALUE, overwrite=False)
    assert "sesame" not in str(caught.value)
    if "inner" not in options:
        with pytest.raises((ValueError, ags1.KmsConfigurationError), match=message):
            LedgerStreamReader(given, _VALUE)


# -- without a query


def written(given: dict[str, str], folder: Path | str, *texts: str) -> tuple[FilesWriter, Any]:
    """Have a task write each of the texts; return the writer and the messages."""
    writer = FilesWriter({**given, "path": str(folder)}, _VALUE, overwrite=False)
    batches = [pa.record_batch({"value": [text]}) for text in texts]
    return writer, [writer.write(iter([batch])) for batch in batches]


def add(given: dict[str, str], folder: Path, *texts: str) -> list[Row]:
    """Write each text to a file of its own, all in one batch of the ledger; return its rows."""
    writer, messages = written(given, folder, *texts)
    writer.commit(messages)
    return settled(given)[-len(texts) :]


def reader_of(given: dict[str, str], folder: Path | str, **more: str) -> LedgerStreamReader:
    return LedgerStreamReader({**given, **more, "path": str(folder)}, _VALUE)


def texts_of(reader: LedgerStreamReader, first: int, last: int) -> list[str]:
    """Return what a micro-batch reads, pickled on the way as by Spark."""
    partitions = reader.partitions({"batch": first}, {"batch": last})
    sent: tuple[LedgerStreamReader, Any] = pickle.loads(pickle.dumps((reader, partitions)))
    return sorted(
        str(value) for p in sent[1] for batch in sent[0].read(p) for value in batch["value"]
    )


def test_micro_batches_are_the_ledger_s(given: dict[str, str], folder: Path) -> None:
    add(given, folder, "a", "b")
    add(given, folder / "inside", "c")
    add(given, folder.with_name("sealed-too"), "d")
    add(given, folder, "e")
    reader = reader_of(given, folder)

    assert reader.initialOffset() == {"batch": 0}
    assert reader.latestOffset() == {"batch": 4}
    assert texts_of(reader, 0, 4) == ["a", "b", "c", "e"]
    assert texts_of(reader, 0, 1) == ["a", "b"]
    assert texts_of(reader, 1, 3) == ["c"]
    assert texts_of(reader, 3, 4) == ["e"]
    assert reader.partitions({"batch": 4}, {"batch": 4}) == []
    assert reader_of(given, folder, startingoffsets="latest").initialOffset() == {"batch": 4}


def test_what_is_pending_holds_back_what_comes_after(given: dict[str, str], folder: Path) -> None:
    (first,) = add(given, folder, "a")
    with open_ledger(given["ledger"], writing=True) as ledger:
        batch = ledger.prepare([first._replace(target=str(folder / "x"))])
        reader = reader_of(given, folder)
        assert reader.latestOffset() == {"batch": 1}
        later = ledger.prepare([first._replace(status=FAILED)])
        ledger.settle(later, later.rows)
        assert reader.latestOffset() == {"batch": 1}
        ledger.settle(batch, [first._replace(status=FAILED)])
        assert reader.latestOffset() == {"batch": 3}


def test_a_file_written_anew_is_left_to_the_newer_batch(
    given: dict[str, str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (first,) = add(given, folder, "a")
    (second,) = add(given, folder, "b")
    os.replace(second.target, first.target)
    with open_ledger(given["ledger"], writing=True) as ledger:
        newer = ledger.prepare([second._replace(target=first.target, replaces=True)])
        reader = reader_of(given, folder, ignoremissingfiles="true")
        # Given its name, and not settled: the older key does not open it any more.
        assert texts_of(reader, 0, 2) == []
        pending = [newer]

        # Settled between the looks at what is pending and at what is settled, whichever is first.
        def then_settled(look: Any) -> Any:
            def looking(*args: Any, **options: Any) -> Any:
                found = list(look(*args, **options))
                if args[1:2] != (0,) and pending:
                    ledger.settle(pending.pop(), newer.rows)
                return iter(found)

            return looking

        with monkeypatch.context() as patch:
            patch.setattr(Ledger, "pending", then_settled(Ledger.pending))
            patch.setattr(Ledger, "rows_between", then_settled(Ledger.rows_between))
            assert texts_of(reader, 0, 2) == []
        assert not pending

    assert texts_of(reader, 0, 1) == []
    assert texts_of(reader, 0, 2) == []
    assert texts_of(reader, 2, 3) == ["b"]
    assert texts_of(reader, 0, 3) == ["b"]
    with pytest.raises(FileNotFoundError):
        reader_of(given, folder).partitions({"batch": 1}, {"batch": 2})


def test_files_elsewhere_are_read_by_their_place_in_the_ledger(
    given: dict[str, str], folder: Path
) -> None:
    store = fsspec.filesystem("memory")
    rows = []
    for row in add(given, folder, "a", "b"):
        store.put(row.target, f"/stream/{row.relative_path}.ags1")
        rows.append(row._replace(target=f"memory:///stream/{row.relative_path}.ags1"))
    with open_ledger(given["ledger"], writing=True) as ledger:
        ledger.settle(ledger.prepare(rows), rows)
    reader = LedgerStreamReader({**given, "path": "memory://stream"}, _VALUE)

    assert texts_of(reader, 0, 2) == ["a", "b"]
    batch = FilesReader({**given, "path": "memory://stream"}, _VALUE)
    found = [b["value"].to_pylist() for p in batch.partitions() for b in batch.read(p)]
    assert sorted(found) == [["a"], ["b"]]


@pytest.fixture(params=["memory", "s3"])
def elsewhere(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A folder of a storage that is not mounted."""
    if request.param == "memory":
        yield f"memory:///{uuid.uuid4().hex}"
        return
    s3fs = pytest.importorskip("s3fs")
    with aws_server() as endpoint:
        for name, value in dummy_environment(endpoint).items():
            monkeypatch.setenv(name, value)
        # moto keeps the buckets of all servers of this process.
        bucket = f"lake-{uuid.uuid4().hex}"
        fsspec.filesystem("s3").mkdir(bucket)
        yield f"s3://{bucket}/stream"
        s3fs.S3FileSystem.clear_instance_cache()


def names_in(folder: str) -> list[str]:
    return [found.relative_path for found in find([folder]).files]


def test_streams_are_written_elsewhere(given: dict[str, str], elsewhere: str) -> None:
    here = Target.of_options({**given, "path": elsewhere}, _VALUE)
    FilesWriter({**given, "path": elsewhere}, _VALUE, overwrite=True).commit([])
    writer, messages = written(given, elsewhere, "a" * (20 << 20), "b")
    assert names_in(elsewhere) == []
    writer.commit(messages)
    (row, _) = settled(given)
    assert row.target == f"{elsewhere}/{row.relative_path}.ags1"
    assert row.master_key_id == "default"
    reader = reader_of(given, elsewhere)
    assert texts_of(reader, 0, 1) == ["a" * (20 << 20), "b"]

    # A write that is given up, and a batch that is there already.
    writer, messages = written(given, elsewhere, "c", "d")
    writer.abort(messages)
    job = job_id_of(QUERY, 3)
    for _ in range(2):
        keys = options_sealing_keys(given)
        message = here.write([pa.record_batch({"value": ["e"]})], keys, job, job[:32])
        StreamWriter({**given, "path": elsewhere}, _VALUE, overwrite=False).commit([message], 3)
    assert texts_of(reader, 0, 2) == ["a" * (20 << 20), "b", "e"]
    assert len(names_in(elsewhere)) == len(settled(given)) == 3
    fs, name = fsspec.core.url_to_fs(elsewhere)
    for path, data in (("README.txt", b"read me"), ("notes.ags1", b"notes"), ("o.ags1", b"AGS1")):
        fs.pipe_file(f"{name}/{path}", data)
    FilesWriter({**given, "path": elsewhere}, _VALUE, overwrite=True).commit([])
    assert sorted(names_in(elsewhere)) == ["README.txt", "notes.ags1"]
    with open_ledger(given["ledger"], writing=False) as ledger:
        assert ledger.done(ENCRYPT) == {}
    if elsewhere.startswith("s3:"):
        uploads = fsspec.filesystem("s3").call_s3(
            "list_multipart_uploads", Bucket=elsewhere.split("/")[2]
        )
        assert not uploads.get("Uploads")
    with pytest.raises(NotImplementedError, match="with the option 'ledger'"):
        Target.of_options({**given, "path": elsewhere, "ledger": ""}, _VALUE)


class _MaxFiles:
    def __init__(self, max_files: int) -> None:
        self.max_files = max_files


def test_a_limit_ends_a_micro_batch_at_a_batch_of_the_ledger(
    given: dict[str, str], folder: Path
) -> None:
    add(given, folder, "a", "b", "c")
    add(given, folder, "d")
    add(given, folder.with_name("other"), "e")
    add(given, folder, "f")
    add(given, folder, "x", "y", "z")
    reader = reader_of(given, folder)

    def steps(limit: object) -> list[int]:
        found = [0]
        while (end := reader.latestOffset({"batch": found[-1]}, limit)["batch"]) != found[-1]:
            found.append(end)
        return found

    assert steps(_MaxFiles(1)) == [0, 1, 2, 4, 5]
    assert steps(_MaxFiles(2)) == [0, 1, 4, 5]
    assert steps(_MaxFiles(3)) == [0, 1, 4, 5]
    assert steps(_MaxFiles(4)) == [0, 2, 5]
    assert steps(_MaxFiles(9)) == [0, 5]
    assert steps(object()) == [0, 5]
    reader.prepareForTriggerAvailableNow()
    add(given, folder, "g")
    assert steps(_MaxFiles(1)) == [0, 1, 2, 4, 5]


def test_a_limit_is_refused_where_spark_does_not_ask_for_it(
    given: dict[str, str], folder: Path
) -> None:
    add(given, folder, "a")
    with pytest.raises(ValueError, match="a number above 0, not"):
        reader_of(given, folder, maxfilespertrigger="0")
    with pytest.raises(ValueError, match="'earliest' or 'latest'"):
        reader_of(given, folder, startingoffsets="7")
    if tuple(map(int, pyspark_version.split(".")[:2])) < (4, 2):
        with pytest.raises(NotImplementedError, match="needs PySpark 4"):
            reader_of(given, folder, maxfilespertrigger="3")
    else:
        assert reader_of(given, folder, maxfilespertrigger="3").getDefaultReadLimit().max_files == 3


def test_files_of_a_commit_that_fails_are_taken_back(
    given: dict[str, str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(given, folder, "a")
    writer, messages = written(given, folder, "b", "c")
    Path(staging.staged_path(str(folder), messages[1].file.staged)).unlink()

    with pytest.raises(ags1.Ags1Error, match="No such file"):
        writer.commit(messages)

    assert len(list(folder.glob("*.ags1"))) == 1
    assert [row.status for row in settled(given)] == [DONE, FAILED, FAILED]
    assert all(row.key_metadata for row in settled(given))  # no mistake loses a file
    writer.abort(messages)

    writer, messages = written(given, folder, "b", "c")
    monkeypatch.setattr("ags1.spark.storage.local_files.sync_file_system", _raise)
    with pytest.raises(OSError, match="sync"):
        writer.commit(messages)
    assert len(list(folder.glob("*.ags1"))) == 3
    writer.abort(messages)
    assert len(list(folder.iterdir())) == 1
    assert [row.status for row in settled(given)] == [DONE] + [FAILED] * 4


def test_a_folder_of_a_killed_driver_is_not_mounted(
    given: dict[str, str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, messages = written(given, folder, "b", "c")
    with monkeypatch.context() as patch:  # as after a kill: nothing of this is caught
        patch.setattr("ags1.spark.datasource.ledger_commit.published", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            writer.commit(messages)
    volume = folder.with_name("volume")
    folder.rename(volume)
    folder.mkdir()  # the mount point
    with open_ledger(given["ledger"], writing=True) as ledger:
        with pytest.raises(FileNotFoundError, match="mount it"):
            settle_pending(ledger)
        assert len(list(ledger.pending())) == 1
    folder.rmdir()
    volume.rename(folder)
    with open_ledger(given["ledger"], writing=True) as ledger:
        settle_pending(ledger)
        assert ledger.killed() == {}
    assert [row.status for row in settled(given)] == [DONE, DONE]
    assert len(list(folder.glob("*.ags1"))) == 2
    # For a while, to tell late tasks that their job has ended.
    [mark] = folder.glob(".ags1-*")
    assert mark.name.endswith("-ended-root.tmp")


def test_only_files_of_the_job_are_taken_back(
    given: dict[str, str], folder: Path, tmp_path: Path
) -> None:
    [row] = add(given, folder, "a")
    (tmp_path / "precious").write_bytes(b"x")
    job = job_id_of(QUERY, 0)
    planted = row._replace(target=str(tmp_path / "precious"), job_id=job)
    with open_ledger(given["ledger"], writing=True) as ledger:
        ledger.prepare([planted])
    take_back(given["ledger"], job)
    assert (tmp_path / "precious").exists()
    assert [row.status for row in settled(given)] == [DONE, FAILED]


def _interrupt(*args: object) -> None:
    raise KeyboardInterrupt


def _raise(*args: object) -> None:
    raise OSError("cannot sync")


def test_a_batch_is_known_by_its_query_and_its_number(
    given: dict[str, str], folder: Path, tmp_path: Path
) -> None:
    target = Target.of_options({**given, "path": str(folder)}, _VALUE)
    keys = options_sealing_keys(given)
    other = "11111111" + QUERY[8:]

    def commit(query: str, batch: int) -> bool:
        job = job_id_of(query, batch)
        record = pa.record_batch({"value": ["a"]})
        file = target.write([record], keys, job, job[:32]).file
        assert file is not None
        rows = ledger_rows(str(folder), [file], job, "")
        commit_to_ledger(
            given["ledger"], str(folder), rows, is_done=lambda it: is_committed(it, job)
        )
        return Path(rows[0].target).exists()

    assert commit(QUERY, 0)
    assert commit(other, 5)
    assert not commit(QUERY, 0)
    assert not commit(other, 5)
    assert not commit(other, 4)
    assert commit(QUERY, 1)
    with open_ledger(given["ledger"], writing=True) as ledger:
        row = ledger.rows()[-1]._replace(job_id=job_id_of(QUERY, 2))
        rows = [row, row._replace(status=FAILED, error="lost")]
        ledger.settle(ledger.prepare(rows), rows)
        with pytest.raises(ags1.Ags1Error, match="is in the ledger: lost"):
            is_committed(ledger, job_id_of(QUERY, 2))


def test_a_ledger_that_another_one_writes_to_is_waited_for(
    given: dict[str, str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, messages = written(given, folder, "a")
    monkeypatch.setattr("ags1.spark.datasource.ledger_commit.LOCK_SECONDS", 0.3)
    with open_ledger(given["ledger"], writing=True):
        with pytest.raises(BlockingIOError):
            writer.commit(messages)
    writer.commit(messages)
    assert len(settled(given)) == 1


@pytest.mark.parametrize("where", ["a ledger", "sidecars", "memory"])
def test_overwriting_leaves_what_is_not_encrypted(
    given: dict[str, str], tmp_path: Path, where: str
) -> None:
    folder = f"memory:///{uuid.uuid4().hex}" if where == "memory" else f"{tmp_path}/sealed"
    if where == "sidecars":
        given = {**given, "ledger": ""}
    store, name = fsspec.core.url_to_fs(folder)
    writer, messages = written(given, folder, "a")
    writer.commit(messages)
    before = set(names_in(folder))
    sealed = ags1.encrypt(b"somebody's").data
    others = {
        "README.txt": b"read me",
        "plain/numbers.csv": b"1,2,3",
        "notes.ags1": b"no such file",
        "data.parquet": sealed,  # a table's, say, which has the key
        "plain.txt": b"text",
        "plain.txt.keys": b"house, car",
    }
    gone = {"old.ags1": sealed, "with": sealed, "with.keys": b"{}"}
    for path, data in (others | gone).items():
        store.makedirs(os.path.dirname(f"{name}/{path}"), exist_ok=True)
        store.pipe_file(f"{name}/{path}", data)
    if where != "sidecars":
        # As a bulk job writes it of a source in a folder of that name.
        hidden = settled(given)[0]._replace(target=f"{folder}/_kept/a.ags1")
        store.makedirs(f"{name}/_kept", exist_ok=True)
        store.pipe_file(f"{name}/_kept/a.ags1", sealed)
        others["_kept/a.ags1"] = sealed
        with open_ledger(given["ledger"], writing=True) as ledger:
            ledger.settle(ledger.prepare([hidden]), [hidden])

    FilesWriter({**given, "path": folder}, _VALUE, overwrite=True).commit([])

    assert set(names_in(folder)) == others.keys()
    assert not before & others.keys()
    assert all(store.cat_file(f"{name}/{path}") == data for path, data in others.items())
    if where != "sidecars":
        with open_ledger(given["ledger"], writing=False) as ledger:
            assert list(ledger.done(ENCRYPT)) == [hidden.target]


def test_a_file_that_cannot_be_looked_at_ends_an_overwrite(
    given: dict[str, str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(given, folder, "a")
    (folder / "old.ags1").write_bytes(b"AGS1")
    writer = FilesWriter({**given, "path": str(folder)}, _VALUE, overwrite=True)
    monkeypatch.setattr(LocalSource, "read", _raise)
    with pytest.raises(OSError, match="sync"):
        writer.commit([])
    assert len(list(folder.iterdir())) == 2
    assert [row.status for row in settled(given)] == [DONE]


def test_a_ledger_is_named_by_a_path(
    given: dict[str, str], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    url = {**given, "ledger": f"file://{given['ledger']}", "path": str(folder)}
    writer, messages = written(url, folder, "a")
    writer.commit(messages)
    assert [row.status for row in settled(given)] == [DONE]
    reader = reader_of(url, folder)
    assert texts_of(reader, 0, 1) == ["a"]
    assert len(FilesReader(url, _VALUE).partitions()) == 1
    writer, messages = written(url, folder, "b")
    with open_ledger(given["ledger"], writing=True) as ledger:
        ledger.prepare(writer._rows([message.file for message in messages]))
    writer.abort(messages)
    assert [row.status for row in settled(given)] == [DONE, FAILED]

    elsewhere = {**url, "ledger": "s3:/bucket/ledger"}
    for use in (
        lambda: FilesWriter(elsewhere, _VALUE, overwrite=False),
        lambda: StreamWriter(elsewhere, _VALUE, overwrite=False),
        lambda: LedgerStreamReader(elsewhere, _VALUE),
        lambda: FilesReader(elsewhere, _VALUE).partitions(),
        lambda: take_back("s3:/bucket/ledger", "ab"),
    ):
        with pytest.raises(OSError, match="neither a folder nor a URL"):
            use()
    assert list((tmp_path / "here").iterdir()) == []


def test_overwriting_with_a_ledger_takes_the_other_files_out_of_it(
    session: Any, folder: Path, given: dict[str, str]
) -> None:
    def write(count: int, mode: str) -> None:
        frame = session.range(0, count, 1, 2).selectExpr("cast(id as string) as value")
        frame.write.format("ags1").options(**given).mode(mode).save(str(folder))

    write(3, "append")
    write(2, "append")
    assert values(session, folder, given) == ["0", "0", "1", "1", "2"]
    left = next(folder.iterdir())
    data = left.read_bytes()
    write(4, "overwrite")

    assert values(session, folder, given) == ["0", "1", "2", "3"]
    with open_ledger(given["ledger"], writing=False) as ledger:
        assert set(ledger.done(ENCRYPT)) == set(map(str, folder.iterdir()))
    # A driver that was killed before it had removed them all.
    left.write_bytes(data)
    assert values(session, folder, given) == ["0", "1", "2", "3"]


def test_what_a_stream_sends_has_no_key_in_it(
    given: dict[str, str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[bytes] = []

    def sealing_keys(options: dict[str, str]) -> Any:
        keys = options_sealing_keys(options)
        assert keys.kek is not None
        made.append(bytes(keys.unwrap_kek(keys.kek)._key))
        return keys

    monkeypatch.setattr("ags1.spark.options.sealing_keys", sealing_keys)
    writer = StreamWriter({**given, "path": str(folder)}, _VALUE, overwrite=False)
    assert made == []

    sent = pickle.dumps(writer) + pickle.dumps(writer)

    assert len(made) == 1
    assert made[0] not in sent
    assert made[0].hex().encode() not in sent
    columns = StructType([StructField("n", LongType())])
    with pytest.raises(ValueError, match="one column, a string"):
        Target.of_options({**given, "path": str(folder)}, columns)
    take_back(given["ledger"] + "-none", "ab")

"""Writes of "ags1" with a ledger: each is whole or not there, whatever is killed."""

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

from pyspark.sql.types import LongType, StringType, StructField, StructType

import ags1
from ags1.files.jobs.publishing import settle_pending
from ags1.files.keys import KmsConfig
from ags1.files.ledger import DONE, ENCRYPT, FAILED, Row, open_ledger
from ags1.files.staging.local import LocalSource
from ags1.files.staging.places import find
from ags1.host.atomic import publish
from ags1.kms import LocalKms
from ags1.spark import datasource
from ags1.spark.datasource import Ags1DataSource, staging
from ags1.spark.datasource.ledger_commit import ledger_rows, take_back
from ags1.spark.datasource.reader import FilesReader
from ags1.spark.datasource.writer import FilesWriter, WrittenFile
from ags1.spark.jobs import rewrap_ledger
from ags1.spark.options import sealing_keys as options_sealing_keys
from tests.aws_server import aws_server, dummy_environment

pytestmark = pytest.mark.spark

_VALUE = StructType([StructField("value", StringType())])


class KilledSource(Ags1DataSource):
    """The data source with a driver that is killed at the point that an option names."""

    @classmethod
    def name(cls) -> str:
        return "ags1-killed"

    def writer(self, schema: StructType, overwrite: bool) -> FilesWriter:
        return KilledWriter(dict(self.options), schema, overwrite=overwrite)


class KilledWriter(FilesWriter):
    """Dies in a commit, and takes whom it is told along."""

    def commit(self, messages: list[WrittenFile | None]) -> None:
        patch = pytest.MonkeyPatch()  # of a process that ends here
        die = Killing(self._options.get("killed-pids", ""))
        point = self._options["killed-at"]
        if point == "before the commit":
            die()
        elif point == "before the names":
            patch.setattr("ags1.spark.datasource.ledger_commit.published", die)
        elif point == "between the names":
            one_by_one = publish

            def publish_one(*args: Any, **named: Any) -> None:
                one_by_one(*args, **named)
                die()

            patch.setattr("ags1.files.staging.local.publish", publish_one)
        else:
            assert point == "after the commit"
            super().commit(messages)
            die()
        super().commit(messages)

    def abort(self, messages: list[WrittenFile | None]) -> None:
        # A driver that was killed takes nothing back.
        if self._options.get("aborts") == "true":
            super().abort(messages)


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


def write(
    session: Any, count: int, folder: Path, options: dict[str, str], name: str = "ags1"
) -> list[str]:
    """Write numbers to two files; return them as the rows are."""
    frame = session.range(0, count, 1, 2).selectExpr("cast(id as string) as value")
    frame.write.format(name).options(**options).mode("append").save(str(folder))
    return [str(number) for number in range(count)]


def settled(options: dict[str, str]) -> list[Row]:
    with open_ledger(options["ledger"], writing=False) as ledger:
        assert not list(ledger.pending())
        return ledger.rows()


def values(session: Any, folder: Path, options: dict[str, str]) -> list[str]:
    frame = session.read.format("ags1").options(**options).load(str(folder))
    return sorted(row.value for row in frame.collect())


@pytest.mark.parametrize(
    ("point", "aborts", "is_there"),
    [
        ("before the commit", False, False),
        ("before the names", False, True),
        ("between the names", False, True),
        ("between the names", True, False),
        ("after the commit", False, True),
    ],
)
def test_a_commit_that_is_killed_is_whole_or_not_there(
    session: Any, folder: Path, given: dict[str, str], point: str, aborts: bool, is_there: bool
) -> None:
    killed = {**given, "killed-at": point, "aborts": str(aborts).lower()}
    with pytest.raises(Exception, match=r"DATA_SOURCE|crashed|exited unexpectedly"):
        write(session, 20, folder, killed, "ags1-killed")

    lines = [str(number) for number in range(20)] if is_there else []
    lines += write(session, 10, folder, given)

    assert values(session, folder, given) == sorted(lines)
    done = [row for row in settled(given) if row.status == DONE]
    assert {row.target for row in done} == set(map(str, folder.glob("[!._]*")))
    assert len({row.key_metadata for row in done}) == len(done)


DRIVER = """
import sys

from pyspark.sql import SparkSession

from tests.spark import test_ledger_commit as commits

folder = commits.Path(sys.argv[1])
options = dict(argument.split("=", 1) for argument in sys.argv[2:])
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
builder = builder.config("spark.driver.host", "127.0.0.1")
builder = builder.config("spark.driver.bindAddress", "127.0.0.1")
spark = builder.config("spark.sql.warehouse.dir", f"file:{folder}-warehouse").getOrCreate()
spark.dataSource.register(commits.KilledSource)
java = spark._jvm.java.lang.ProcessHandle.current().pid()
options["killed-pids"] = f"{commits.os.getpid()},{java}"
commits.write(spark, 20, folder, options, "ags1-killed")
"""


def test_a_driver_that_is_killed_leaves_each_row_once(
    session: Any, tmp_path: Path, folder: Path, given: dict[str, str]
) -> None:
    lines = write(session, 10, folder, given)
    (tmp_path / "driver.py").write_text(DRIVER)
    options = given | {"killed-at": "between the names"}
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    paths = [str(Path(__file__).parents[2]), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(paths)

    driver = subprocess.run(
        [
            sys.executable,
            str(tmp_path / "driver.py"),
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
    assert values(session, folder, given) == sorted(lines)

    lines += [str(number) for number in range(20)] + write(session, 5, folder, given)

    assert values(session, folder, given) == sorted(lines)
    assert {row.target for row in settled(given)} == set(map(str, folder.glob("[!._]*")))


def test_a_task_that_fails_leaves_nothing(
    session: Any, folder: Path, given: dict[str, str]
) -> None:
    failing = session.range(0, 20, 1, 2).selectExpr(
        "if(id = 17, cast(raise_error('boom') as string), 'x') as value"
    )

    with pytest.raises(Exception, match="boom"):
        failing.write.format("ags1").options(**given).mode("append").save(str(folder))

    assert not list(folder.glob("*"))
    lines = write(session, 3, folder, given)
    assert values(session, folder, given) == lines


# -- without a session


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


def texts_in(given: dict[str, str], folder: Path | str) -> list[str]:
    """Return the rows of a folder, pickled on the way as by Spark."""
    reader = FilesReader({**given, "path": str(folder)}, _VALUE)
    sent: tuple[FilesReader, Any] = pickle.loads(pickle.dumps((reader, reader.partitions())))
    return sorted(
        str(value) for p in sent[1] for batch in sent[0].read(p) for value in batch["value"]
    )


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
        yield f"s3://{bucket}/rows"
        s3fs.S3FileSystem.clear_instance_cache()


def names_in(folder: str) -> list[str]:
    return [found.relative_path for found in find([folder]).files]


def test_rows_are_written_elsewhere(given: dict[str, str], elsewhere: str) -> None:
    FilesWriter({**given, "path": elsewhere}, _VALUE, overwrite=True).commit([])
    writer, messages = written(given, elsewhere, "a" * (20 << 20), "b")
    assert names_in(elsewhere) == []
    writer.commit(messages)
    (row, _) = settled(given)
    assert row.target == f"{elsewhere}/{row.relative_path}.ags1"
    assert row.master_key_id == "default"
    assert texts_in(given, elsewhere) == ["a" * (20 << 20), "b"]
    # A write that is given up.
    writer, messages = written(given, elsewhere, "c", "d")
    writer.abort(messages)
    assert len(names_in(elsewhere)) == len(settled(given)) == 2
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
        FilesWriter({**given, "path": elsewhere, "ledger": ""}, _VALUE, overwrite=False)


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
    monkeypatch.setattr("ags1.files.staging.local_files.sync_file_system", _raise)
    with pytest.raises(OSError, match="sync"):
        writer.commit(messages)
    assert len(list(folder.glob("*.ags1"))) == 3
    writer.abort(messages)
    assert len(list(folder.iterdir())) == 1
    assert [row.status for row in settled(given)] == [DONE] + [FAILED] * 4


@pytest.mark.usefixtures("here")
def test_a_rewrapping_between_the_key_and_the_commit(
    given: dict[str, str], folder: Path, keyring: Path
) -> None:
    """After it, the old master key may be destroyed."""
    LocalKms(str(keyring)).create_key("new")
    kms = KmsConfig({"encryption.kms-type": "local", "kms.local.keyring": str(keyring)})
    add(given, folder, "a")
    writer, messages = written(given, folder, "b")
    rewrap_ledger(lambda: None, ledger=given["ledger"], kms=kms, to_key_id="new")

    with pytest.raises(ags1.Ags1Error, match="wrapped again while"):
        writer.commit(messages)
    writer.abort(messages)

    given["key"] = "new"
    assert [row.master_key_id for row in settled(given)] == ["new"]
    assert texts_in(given, folder) == ["a"]
    assert names_in(str(folder)) == [Path(settled(given)[0].target).name]
    add(given, folder, "b")
    assert texts_in(given, folder) == ["a", "b"]


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
    job = uuid.uuid4().hex
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


def test_a_job_that_runs_meanwhile_is_left_alone(given: dict[str, str], folder: Path) -> None:
    writer, messages = written(given, folder, "a")
    other, theirs = written(given, folder, "b")
    rows = ledger_rows(str(folder), [message.file for message in theirs], other._job_id)
    with open_ledger(given["ledger"], writing=True) as ledger:
        ledger.begin(other._job_id, str(folder))
        ledger.prepare(rows)
        writer.commit(messages)
        assert texts_in(given, folder) == ["a"]
        assert [one.rows for one in ledger.pending()] == [rows]


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
    assert texts_in(url, folder) == ["a"]
    writer, messages = written(url, folder, "b")
    with open_ledger(given["ledger"], writing=True) as ledger:
        ledger.prepare(ledger_rows(str(folder), [m.file for m in messages], writer._job_id))
    writer.abort(messages)
    assert [row.status for row in settled(given)] == [DONE, FAILED]

    elsewhere = {**url, "ledger": "s3:/bucket/ledger"}
    for use in (
        lambda: FilesWriter(elsewhere, _VALUE, overwrite=False),
        lambda: FilesReader(elsewhere, _VALUE).partitions(),
        lambda: take_back("s3:/bucket/ledger", "ab"),
    ):
        with pytest.raises(OSError, match="neither a folder nor a URL"):
            use()
    assert list((tmp_path / "here").iterdir()) == []


def test_overwriting_with_a_ledger_takes_the_other_files_out_of_it(
    session: Any, folder: Path, given: dict[str, str]
) -> None:
    write(session, 3, folder, given)
    write(session, 2, folder, given)
    assert values(session, folder, given) == ["0", "0", "1", "1", "2"]
    left = next(folder.iterdir())
    data = left.read_bytes()
    frame = session.range(0, 4, 1, 2).selectExpr("cast(id as string) as value")
    frame.write.format("ags1").options(**given).mode("overwrite").save(str(folder))

    assert values(session, folder, given) == ["0", "1", "2", "3"]
    with open_ledger(given["ledger"], writing=False) as ledger:
        assert set(ledger.done(ENCRYPT)) == set(map(str, folder.iterdir()))
    # A driver that was killed before it had removed them all.
    left.write_bytes(data)
    assert values(session, folder, given) == ["0", "1", "2", "3"]


def test_what_is_sent_has_no_key_in_it(
    given: dict[str, str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[bytes] = []

    def sealing_keys(options: dict[str, str]) -> Any:
        keys = options_sealing_keys(options)
        assert keys.kek is not None
        made.append(bytes(keys.unwrap_kek(keys.kek)._key))
        return keys

    monkeypatch.setattr("ags1.spark.options.sealing_keys", sealing_keys)
    writer = FilesWriter({**given, "path": str(folder)}, _VALUE, overwrite=False)
    sent = pickle.dumps(writer)
    assert len(made) == 1
    assert made[0] not in sent
    assert made[0].hex().encode() not in sent
    with pytest.raises(ags1.KmsConfigurationError, match="would send a secret") as caught:
        FilesWriter(
            {**given, "path": "x", "s3.secret-access-key": "sesame"}, _VALUE, overwrite=True
        )
    assert "sesame" not in str(caught.value)
    columns = StructType([StructField("n", LongType())])
    with pytest.raises(ValueError, match="one column, a string"):
        FilesWriter({**given, "path": str(folder)}, columns, overwrite=False)
    take_back(given["ledger"] + "-none", "ab")

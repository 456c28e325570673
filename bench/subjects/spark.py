"""Jobs and data sources on Spark, on one machine: two sessions, on two cores and on one.

Each session lives in a process of its own, since a process has one JVM, and is warm when the clock
runs; the one on one core is bound to that core with all that it consists of, JVM and Python. The
peers are ``encrypt_file`` and ``decrypt_file`` in this process, copying by Spark, and in a third
process, where Maven or the user's cache has their jars, spark-avro and Iceberg's own runtime.

Before every run over large files the target is removed and the disk synced, the sources are read
once, so that all find them in the page cache, and the memory for the target is taken once.
"""

from __future__ import annotations

import contextlib
import filecmp
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ags1
from ags1.kms.local import create_key
from bench.material import random_file, take_memory
from bench.rounds import Contest, Contestant, compete
from bench.settings import Settings, first_missing
from bench.storage import scratch_folder

if TYPE_CHECKING:
    from ags1.files.keys import KmsConfig

SUBJECT = "spark"
NEEDED = ("numpy", "pyarrow", "pyiceberg", "pyspark", "sqlalchemy")
MANY, ONE = "64 files", "1 file"
ENCRYPT, DECRYPT = "encrypt files", "decrypt files"
SMALL = "many files of 10 KB, durable"
AVRO = "read one large encrypted Avro file"
TABLE = "read an encrypted table of one large Avro file"
TASKS, JOB = "a task besides its work", "a job of one small file"
TWO_CORES, ONE_CORE = "Spark, 2 cores", "Spark, 1 core"
MANY_TWO_CORES, ONE_TWO_CORES = f"{MANY}, {TWO_CORES}", f"{ONE}, {TWO_CORES}"
MANY_ONE_CORE = f"{MANY}, {ONE_CORE}"
MANY_HERE, ONE_HERE = f"{MANY}, 2 threads, no Spark", f"{ONE}, 2 threads, no Spark"
MANY_COPIED = f"{MANY}, copied by Spark"
SMALL_ENCRYPTED, SMALL_DECRYPTED = "encrypted by Spark", "decrypted by Spark"
SMALL_COPIED = "copied by Spark, then sync"
SMALL_HERE = "encrypt_file in a loop, not durable"
AVRO_SOURCE = "format ags1"
TABLE_SOURCE = "format ags1-iceberg"
SPARK_AVRO = "spark-avro, plain file, 2 cores"
ICEBERG = "Iceberg Java, 2 cores"
JAVA_PEER = "java"

_PROJECT = Path(__file__).resolve().parents[2]
_FILES = 64
_SMALL_SIZE = 10_000
# For each of the files that the settings want a table to have.
_SMALL_FACTOR = 20
_TASKS = 32
# Of a task. To a shorter one Spark tells 0.04 s late that there is no more input (Nagle's
# algorithm); to one that works it does so meanwhile.
_WORK_SECONDS = 0.1
KEY = "keyA"
_KEYRING = "keyring.json"
_AVRO_LEDGER = "avro-ledger"
# Of the settings' table size: rows in Python's memory are what writing Avro takes its time for.
_TABLE_SHARE = 2
# The blocks of the large file: the more, the less what Spark does once a query counts.
_REPEATED = 3
_SYNC_SIZE = 16
# The newest that is published; all of 4.1 will do.
_SPARK_AVRO = "org.apache.spark:spark-avro_2.13:4.1.1"
# The key that Java's test KMS calls keyA.
KMS = {"encryption.kms-impl": "bench.subjects.spark:JavaTestKms"}

_CONF = {
    "spark.driver.memory": "2g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
}


class SparkError(Exception):
    """What was asked of a session failed, in its process."""


class Session:
    """A Spark session in a process of its own, which does what ``Work`` or ``JavaWork`` can do."""

    def __init__(self, kind: Callable[[Path, int], Any], folder: Path, cores: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(kind, folder, cores, theirs))
        self._process.start()
        theirs.close()

    def ask(self, what: str, *arguments: object) -> Any:
        """Call a method over there and return what it returns. Raises SparkError."""
        try:
            self._pipe.send((what, arguments))
            failure, answer = self._pipe.recv()
        except (EOFError, OSError):
            raise SparkError("the session's process died") from None
        if failure is not None:
            raise SparkError(failure)
        return answer

    def stop(self) -> None:
        with contextlib.suppress(OSError):
            self._pipe.close()
        self._process.join(30)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def _serve(kind: Callable[[Path, int], Any], folder: Path, cores: int, pipe: Connection) -> None:
    """What the process of a session does."""
    # The JVM and the workers say much, and nothing of it is ours.
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    if cores == 1:
        # A task has two processes that work at the same time, the JVM's and Python's.
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    os.environ["PYSPARK_PYTHON"] = sys.executable
    paths = [str(_PROJECT), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    work = None
    while True:
        try:
            what, arguments = pipe.recv()
        except EOFError:
            break
        try:
            if work is None:
                work = kind(folder, cores)
            answer: tuple[str | None, Any] = (None, getattr(work, what)(*arguments))
        except BaseException as error:
            answer = (f"{error}\n{traceback.format_exc()}", None)
        pipe.send(answer)
    if work is not None:
        work.stop()


class Work:
    """What is measured, on the side of a session with ``cores`` cores."""

    def __init__(self, folder: Path, cores: int) -> None:
        from pyspark.sql import SparkSession

        from ags1.spark import datasource, iceberg_source

        local = folder / f"spark-{cores}"
        local.mkdir()
        builder = SparkSession.builder.master(f"local[{cores}]").appName("ags1 bench")
        conf = _CONF | {
            "spark.local.dir": str(local),
            "spark.sql.warehouse.dir": f"file:{local}/warehouse",
            "spark.driver.extraJavaOptions": f"-XX:-UsePerfData -Djava.io.tmpdir={local}",
        }
        for name, value in conf.items():
            builder = builder.config(name, value)
        self._spark: Any = builder.getOrCreate()
        self._spark.sparkContext.setLogLevel("OFF")
        self._cores = cores
        datasource.register(self._spark)
        iceberg_source.register(self._spark)
        self._keyring = str(folder / _KEYRING)
        self._ledger = str(folder / _AVRO_LEDGER)
        self._kms = _kms(folder)

    def encrypt(self, source: Path, target: Path, ledger: Path, durable: bool) -> float:
        """Return the seconds that it takes to encrypt a folder."""
        from ags1.spark import jobs

        begin = time.perf_counter()
        summary = jobs.encrypt_files(
            self._spark,
            source,
            target,
            ledger=ledger,
            kms=self._kms,
            key_id="key",
            durable=durable,
        )
        seconds = time.perf_counter() - begin
        _check(summary, _count(source))
        return seconds

    def decrypt(self, source: Path, target: Path, ledger: Path, durable: bool) -> float:
        """Return the seconds that it takes to decrypt a folder."""
        from ags1.spark import jobs

        begin = time.perf_counter()
        summary = jobs.decrypt_files(
            self._spark, source, target, ledger=ledger, kms=self._kms, durable=durable
        )
        seconds = time.perf_counter() - begin
        _check(summary, _count(source))
        return seconds

    def copy(self, source: Path, target: Path, sync: bool) -> float:
        """Return the seconds that it takes to copy a folder, in as many tasks as a job of ours
        has."""

        def copy_files(names: Iterable[str]) -> None:
            for name in names:
                shutil.copyfile(f"{source}/{name}", f"{target}/{name}")

        context = self._spark.sparkContext
        begin = time.perf_counter()
        target.mkdir()
        names = sorted(os.listdir(source))
        context.parallelize(names, 3 * self._cores).foreachPartition(copy_files)
        if sync:
            os.sync()
        return time.perf_counter() - begin

    def read(self, source: str, path: str) -> float:
        """Return the seconds that it takes to read all columns of all rows of a file or table."""
        return _read(lambda: self._frame(source, path))

    def count(self, source: str, path: str) -> int:
        """Return the number of rows."""
        return int(self._frame(source, path).count())

    def _frame(self, source: str, path: str) -> Any:
        reader = self._spark.read.format(source)
        if source == "ags1-iceberg":
            return reader.options(**KMS, key=KEY).load(path)
        return reader.options(keyring=self._keyring, ledger=self._ledger, inner="avro").load(path)

    def wait(self) -> float:
        """Return the seconds of a core that ``_TASKS`` tasks take besides their work."""
        from ags1.spark.jobs.group import JobGroup
        from ags1.spark.workers import end_of_task

        def wait(numbers: Iterable[int]) -> Iterator[int]:
            for _ in numbers:
                time.sleep(_WORK_SECONDS)
                yield 0
            end_of_task()

        group = JobGroup(self._spark, "ags1-wait", "ags1: waiting tasks", self._cores)
        begin = time.perf_counter()
        group.run(range(_TASKS), wait)
        return (time.perf_counter() - begin) * self._cores - _TASKS * _WORK_SECONDS

    def stop(self) -> None:
        self._spark.stop()


class JavaWork:
    """The session of the interoperability tests, with Iceberg's runtime and spark-avro."""

    def __init__(self, folder: Path, cores: int) -> None:
        sys.path.insert(0, str(_PROJECT / "tests"))
        from interop import jars  # type: ignore[import-not-found]
        from interop.spark import SparkTables  # type: ignore[import-not-found]

        if cores != 2:
            raise ValueError("that session has two cores")
        local = folder / "java"
        local.mkdir()
        jars.COORDINATES["spark-avro"] = _SPARK_AVRO
        self._tables = SparkTables(local)
        self._catalog = self._tables.catalog("enc", keeps_tables=True)

    def read(self, source: str, path: str, cores: int = 2) -> float:
        """As ``Work.read``, on one core if ``cores`` is 1; a table has to be registered."""
        spark = self._tables.session

        def frame() -> Any:
            if source == "avro":
                rows = spark.read.format("avro").load(path)
            else:
                rows = spark.table(f"{self._catalog}.db.measured")
            return rows.coalesce(1) if cores == 1 else rows

        return _read(frame)

    def register(self, metadata_file: Path) -> int:
        """Register a table and return the number of its rows."""
        name = f"{self._catalog}.db.measured"
        self._tables.register(name, metadata_file)
        return int(self._tables.session.table(name).count())

    def stop(self) -> None:
        self._tables.stop()


def _read(frame: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    # Rows that go nowhere: all columns have to be there all the same.
    frame().write.format("noop").mode("overwrite").save()
    return time.perf_counter() - begin


class JavaTestKms:
    """The KMS of Iceberg's own tests, for tables that both read."""

    @staticmethod
    def from_properties(properties: dict[str, str]) -> Any:
        import warnings

        from ags1.kms.memory import MemoryKms

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that its keys are in the configuration
            return MemoryKms({f"encryption.kms.key.{KEY}": b"0123456789012345".hex()})


def _kms(folder: Path) -> KmsConfig:
    from ags1.files.keys import KmsConfig

    return KmsConfig({"encryption.kms-type": "local", "kms.local.keyring": str(folder / _KEYRING)})


def _check(summary: Any, count: int) -> None:
    if summary.failed or summary.done != count:
        raise RuntimeError(f"{summary.done} files of {count}; {summary.failures[:1]}")


def missing() -> str | None:
    """What is not there, if something is not."""
    name = first_missing(NEEDED)
    return name or (None if shutil.which("java") else "java")


@contextlib.contextmanager
def sessions(folder: Path) -> Iterator[tuple[Session, Session]]:
    """A session on two cores and one on one core, with a keyring in ``folder``."""
    create_key(str(folder / _KEYRING), "key")
    two, one = Session(Work, folder, 2), Session(Work, folder, 1)
    try:
        yield two, one
    finally:
        two.stop()
        one.stop()


def measure(settings: Settings, skipped: dict[str, str]) -> Iterator[Contest]:
    if (name := missing()) is not None:
        skipped[SUBJECT] = f"{name} is not there"
        return
    needed = 6 * settings.file_size + 3 * settings.table_size
    with scratch_folder(settings.folder, needed) as folder, sessions(folder) as (two, one):
        rounds = settings.slow_rounds
        yield from LargeFiles(folder, two, one, settings.file_size).contests(rounds)
        yield from SmallFiles(folder, two, _SMALL_FACTOR * settings.table_files).contests(rounds)
        yield from _overheads(folder, two, rounds)
        java = None
        if JAVA_PEER in settings.peers:
            java = Session(JavaWork, folder, 2)
        try:
            rows = AvroRows(folder, two, one, settings.table_size // _TABLE_SHARE)
            yield from rows.contests(rounds, java, skipped)
        finally:
            if java is not None:
                java.stop()


class LargeFiles:
    """The same amount in 64 files and in one, encrypted and decrypted by Spark and without."""

    def __init__(self, folder: Path, two: Session, one: Session, size: int) -> None:
        self._two, self._one, self._size = two, one, size
        self._plain = {MANY: folder / "many", ONE: folder / "one"}
        self._sealed = {MANY: folder / "many-sealed", ONE: folder / "one-sealed"}
        self._kept = {MANY: folder / "many-ledger", ONE: folder / "one-ledger"}
        self._target, self._ledger = folder / "target", folder / "ledger"
        _random_files(self._plain[MANY], _FILES, size // _FILES)
        _random_files(self._plain[ONE], 1, size)
        for which, plain in self._plain.items():
            two.ask("encrypt", plain, self._sealed[which], self._kept[which], False)
        self._keys = _keys(folder, self._kept.values())

    def check(self) -> None:
        """Raise RuntimeError unless the plaintexts come back."""
        for session, which in ((self._two, ONE), (self._one, MANY)):
            self.decrypt(session, which)
            _compare(self._plain[which], self._target)
            self.clean()

    def contests(self, rounds: int) -> Iterator[Contest]:
        self.check()
        for name, by_spark, here in (
            (ENCRYPT, self.encrypt, self.encrypt_here),
            (DECRYPT, self.decrypt, self.decrypt_here),
        ):
            ways: dict[str, Callable[[], float]] = {
                MANY_TWO_CORES: lambda by_spark=by_spark: by_spark(self._two, MANY),  # type: ignore[misc]
                ONE_TWO_CORES: lambda by_spark=by_spark: by_spark(self._two, ONE),  # type: ignore[misc]
                MANY_ONE_CORE: lambda by_spark=by_spark: by_spark(self._one, MANY),  # type: ignore[misc]
                MANY_HERE: lambda here=here: here(MANY),  # type: ignore[misc]
                ONE_HERE: lambda here=here: here(ONE),  # type: ignore[misc]
                MANY_COPIED: self.copy,
            }
            runs = [Contestant(who, way, self._size) for who, way in ways.items()]
            yield compete(SUBJECT, name, runs, rounds, between=self.clean, by_best=True)

    def encrypt(self, session: Session, which: str) -> float:
        _warm(self._plain[which])
        seconds: float = session.ask(
            "encrypt", self._plain[which], self._target, self._ledger, False
        )
        return seconds

    def decrypt(self, session: Session, which: str) -> float:
        # A job notes in the ledger what it has done: each begins with the one of the encryption.
        shutil.copytree(self._kept[which], self._ledger)
        _warm(self._sealed[which])
        seconds: float = session.ask(
            "decrypt", self._sealed[which], self._target, self._ledger, False
        )
        return seconds

    def copy(self) -> float:
        _warm(self._plain[MANY])
        seconds: float = self._two.ask("copy", self._plain[MANY], self._target, False)
        return seconds

    def encrypt_here(self, which: str) -> float:
        """Without Spark, one file after the other, each by two threads."""
        files = _warm(self._plain[which])
        begin = time.perf_counter()
        self._target.mkdir()
        for path in files:
            ags1.encrypt_file(path, self._target / path.name, threads=2, durable=False)
        return time.perf_counter() - begin

    def decrypt_here(self, which: str) -> float:
        files = _warm(self._sealed[which])
        begin = time.perf_counter()
        self._target.mkdir()
        for path in files:
            km = self._keys[str(path)]
            ags1.decrypt_file(path, self._target / path.stem, km, threads=2, durable=False)
        return time.perf_counter() - begin

    def clean(self) -> None:
        _clean(self._target, self._ledger)


class SmallFiles:
    """``count`` files of 10 KB; durable where nothing else is said."""

    def __init__(self, folder: Path, session: Session, count: int) -> None:
        self._session, self._count = session, count
        self._plain, self._sealed = folder / "small", folder / "small-sealed"
        self._kept = folder / "small-ledger"
        self._target, self._ledger = folder / "target", folder / "ledger"
        _random_files(self._plain, count, _SMALL_SIZE)
        session.ask("encrypt", self._plain, self._sealed, self._kept, False)

    def contests(self, rounds: int) -> Iterator[Contest]:
        ways = {
            SMALL_ENCRYPTED: self.encrypt,
            SMALL_DECRYPTED: self.decrypt,
            SMALL_COPIED: lambda: self._session.ask("copy", self._plain, self._target, True),
            SMALL_HERE: self.encrypt_here,
        }
        runs = [Contestant(who, way, count=self._count) for who, way in ways.items()]
        yield compete(SUBJECT, SMALL, runs, rounds, between=self.clean)

    def encrypt(self) -> float:
        seconds: float = self._session.ask("encrypt", self._plain, self._target, self._ledger, True)
        return seconds

    def decrypt(self) -> float:
        shutil.copytree(self._kept, self._ledger)
        seconds: float = self._session.ask(
            "decrypt", self._sealed, self._target, self._ledger, True
        )
        return seconds

    def encrypt_here(self) -> float:
        begin = time.perf_counter()
        self._target.mkdir()
        for path in self._plain.iterdir():
            ags1.encrypt_file(path, self._target / path.name, durable=False)
        return time.perf_counter() - begin

    def clean(self) -> None:
        _clean(self._target, self._ledger)


class AvroRows:
    """Flights in one Avro file, encrypted and plain, and in an encrypted table of one such file;
    ``size`` is what they take in Arrow."""

    def __init__(self, folder: Path, two: Session, one: Session, size: int) -> None:
        import pyarrow as pa

        from ags1.iceberg import load_catalog
        from ags1.spark.datasource.avro_rows import write_avro
        from bench.flights import BYTES_PER_FLIGHT, FLIGHTS, flights

        self._two, self._one = two, one
        self.table_rows = max(1, size // BYTES_PER_FLIGHT)
        rows: pa.Table = flights(self.table_rows, 1)
        self.plain, sealed = folder / "avro" / "flights.avro", folder / "avro-sealed"
        self.plain.parent.mkdir()
        with tempfile.TemporaryDirectory(dir=folder) as made:
            file = os.path.join(made, "file")
            km = write_avro(file, rows.schema, [rows], "uncompressed", 32)
            ags1.decrypt_file(file, self.plain, km, durable=False)
        self.table_size = self.plain.stat().st_size
        self.file_size = _repeat(self.plain, _REPEATED)
        self.file_rows = _REPEATED * self.table_rows
        two.ask("encrypt", self.plain.parent, sealed, folder / _AVRO_LEDGER, False)
        [self.sealed] = _files(sealed)
        catalog = load_catalog(
            "spark",
            type="sql",
            uri=f"sqlite:///{folder}/catalog.db",
            warehouse=f"file://{folder}/warehouse",
            **KMS,
        )
        catalog.create_namespace("db")
        properties = {
            "encryption.key-id": KEY,
            "write.format.default": "avro",
            "write.avro.compression-codec": "uncompressed",
            "write.target-file-size-bytes": str(1 << 40),
            # Java cuts a file by its stored size, and fails where the last part begins behind the
            # end of what is in it; which its own choice of a size makes likely.
            "read.split.adaptive-size.enabled": "false",
            "read.split.target-size": str(64 << 20),
        }
        table = catalog.create_table("db.flights", FLIGHTS, properties=properties)
        table.append(rows)
        self.table = table.refresh().metadata_location

    def check(self) -> None:
        """Raise RuntimeError unless all rows are there."""
        expect(self.file_rows, self._two.ask("count", "ags1", str(self.sealed)))
        expect(self.table_rows, self._one.ask("count", "ags1-iceberg", self.table))

    def contests(
        self, rounds: int, java: Session | None, skipped: dict[str, str]
    ) -> Iterator[Contest]:
        self.check()
        if java is not None:
            try:
                found = java.ask("register", Path(self.table.removeprefix("file://")))
                expect(self.table_rows, found)
            except SparkError as error:
                skipped[f"{SPARK_AVRO}; {ICEBERG}"] = str(error).partition("\n")[0]
                java = None
        file, table = (self.file_size, self.file_rows), (self.table_size, self.table_rows)
        for name, source, place, (size, rows), other, peer in (
            (AVRO, AVRO_SOURCE, self.sealed, file, "avro", SPARK_AVRO),
            (TABLE, TABLE_SOURCE, self.table, table, "iceberg", ICEBERG),
        ):
            ours = source.removeprefix("format "), str(place)
            asked: dict[str, tuple[Session, tuple[Any, ...]]] = {
                f"{source}, 2 cores": (self._two, ours),
                f"{source}, 1 core": (self._one, ours),
            }
            if java is not None:
                asked[peer] = (java, (other, str(self.plain)))
                asked[peer.replace("2 cores", "1 core")] = (java, (other, str(self.plain), 1))
            runs = [
                Contestant(
                    who,
                    lambda session=session, what=what: session.ask("read", *what),  # type: ignore[misc]
                    size,
                    rows,
                )
                for who, (session, what) in asked.items()
            ]
            yield compete(SUBJECT, name, runs, rounds)


def _repeat(path: Path, times: int) -> int:
    """Have an Avro file's blocks in it so many times; return its size. Much faster than writing
    as many rows."""
    data = path.read_bytes()
    sync = data[-_SYNC_SIZE:]
    blocks = data[data.index(sync) + _SYNC_SIZE :]
    with path.open("ab") as file:
        for _ in range(times - 1):
            file.write(blocks)
    return path.stat().st_size


def expect(count: int, found: int) -> None:
    if found != count:
        raise RuntimeError(f"{found} rows of {count} are there")


def _overheads(folder: Path, session: Session, rounds: int) -> Iterator[Contest]:
    """What a task and a job cost, whatever they do."""
    plain, target, ledger = folder / "single", folder / "target", folder / "ledger"
    _random_files(plain, 1, 1)
    tasks = Contestant(TWO_CORES, lambda: session.ask("wait"), count=_TASKS)
    yield compete(SUBJECT, TASKS, [tasks], rounds)
    job = Contestant(TWO_CORES, lambda: session.ask("encrypt", plain, target, ledger, False))
    yield compete(SUBJECT, JOB, [job], rounds, between=lambda: _clean(target, ledger))


def _keys(folder: Path, ledgers: Iterable[Path]) -> dict[str, ags1.KeyMetadata]:
    """The keys of the encrypted files that ledgers know, by their paths."""
    from ags1.files.keys import FileKeys
    from ags1.files.ledger import ENCRYPT, open_ledger

    keys = FileKeys.for_opening(_kms(folder))
    found = {}
    for ledger in ledgers:
        for path, row in open_ledger(str(ledger), writing=False).done(ENCRYPT).items():
            found[path] = keys.unwrap(row.key_metadata or "")
    return found


def _random_files(folder: Path, count: int, size: int) -> None:
    folder.mkdir()
    for number in range(count):
        random_file(folder / f"{number:05}", size)


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_file())


def _count(folder: Path) -> int:
    return len(os.listdir(folder))


def _warm(folder: Path) -> Sequence[Path]:
    """Read the files of a folder, so that they are in the page cache, and take the memory that as
    many new ones need; return them."""
    room = bytearray(1 << 20)
    files = _files(folder)
    size = 0
    for path in files:
        with path.open("rb", buffering=0) as file:
            while count := file.readinto(room):
                size += count
    take_memory(size + size // 4)
    return files


def _compare(folder: Path, other: Path) -> None:
    names = [path.name for path in _files(folder)]
    _, different, unreadable = filecmp.cmpfiles(folder, other, names, shallow=False)
    if different or unreadable:
        raise RuntimeError(f"{(different + unreadable)[0]} is not what it was")


def _clean(*folders: Path) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    os.sync()

"""A ledger in each storage: jobs side by side, paused and killed ones, and what is refused.

In a folder, on fsspec's own storage in memory, on moto, on a real S3 server and HDFS. No Spark.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import pyarrow.dataset as ds
import pyarrow.fs
import pytest
from fsspec.implementations.arrow import ArrowFSWrapper
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from ags1.errors import FormatError, KmsConfigurationError
from ags1.files.ledger import (
    ENCRYPT,
    FAILED,
    Batch,
    JobNote,
    Ledger,
    Row,
    open_ledger,
)
from ags1.files.ledger import ledger as ledgers
from ags1.files.ledger.earlier import State
from ags1.files.ledger.processes import this_process
from ags1.files.ledger.rows import rows_to_table, to_parquet
from ags1.files.ledger.store import Store, create

from .test_ledger import JOB, row

pytest.importorskip("s3fs")
BUCKET = "bucket"


class Bucket:
    """The bucket of a server, and fsspec's connections to it, which are kept from test to test."""

    connected: Bucket | None = None

    def __init__(self, environment: dict[str, str]) -> None:
        boto3 = pytest.importorskip("boto3")
        self.environment = environment
        s3 = boto3.Session(
            environment["AWS_ACCESS_KEY_ID"],
            environment["AWS_SECRET_ACCESS_KEY"],
            region_name=environment["AWS_REGION"],
        ).resource("s3", endpoint_url=environment["AWS_ENDPOINT_URL"])
        self.objects = s3.Bucket(BUCKET)

    def connect(self, patch: pytest.MonkeyPatch) -> None:
        for name, value in self.environment.items():
            patch.setenv(name, value)
        if Bucket.connected is not self:
            fsspec.get_filesystem_class("s3").clear_instance_cache()
            Bucket.connected = self

    def clear(self) -> None:
        self.objects.objects.all().delete()
        for connection in fsspec.get_filesystem_class("s3")._cache.values():
            connection.invalidate_cache()


@pytest.fixture(scope="module", autouse=True)
def disconnected() -> Iterator[None]:
    yield
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    Bucket.connected = None


@pytest.fixture(scope="module")
def minio(real_s3: dict[str, str]) -> Bucket:
    return Bucket(real_s3)


@pytest.fixture(scope="module")
def moto() -> Iterator[Bucket]:
    """moto, which looks first and then writes, so one request at a time."""
    from aws_catalogs import Quiet
    from aws_server import dummy_environment
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    app = DomainDispatcherApplication(create_backend_app)
    server = make_server("127.0.0.1", 0, app, threaded=False, request_handler=Quiet)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    made = Bucket(dummy_environment(f"http://127.0.0.1:{server.server_port}"))
    made.objects.create()
    yield made
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def hdfs() -> Iterator[str]:
    pytest.importorskip("requests")
    from hdfs_server import hdfs_server

    with hdfs_server() as url:
        yield url


@pytest.fixture(
    params=[
        *("folder", "memory", "moto"),
        *(pytest.param(name, marks=pytest.mark.cluster) for name in ("minio", "hdfs")),
    ],
)
def url(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[str]:
    """The place of a ledger that does not exist yet."""
    if request.param == "folder":
        yield str(tmp_path / "ledger")
        return
    if request.param == "hdfs":
        server: Any = request.getfixturevalue("hdfs")
        yield f"{server}/{tmp_path.name}/ledger"
        return
    if request.param == "memory":
        MemoryFileSystem.store.clear()
        yield "memory://bucket/ledger"
        MemoryFileSystem.store.clear()
        return
    bucket: Bucket = request.getfixturevalue(request.param)
    bucket.connect(monkeypatch)
    yield f"s3://{BUCKET}/ledger"
    bucket.clear()


def rows_named(*names: str) -> list[Row]:
    return [row(Path("/out") / name) for name in names]


def names_in(rows: list[Row]) -> list[str]:
    return [row.relative_path for row in rows]


def put(ledger: Ledger, *names: str) -> Batch:
    """Store a batch and settle it."""
    batch = ledger.prepare(rows_named(*names))
    ledger.settle(batch, batch.rows)
    return batch


class TestPromises:
    def test_pending_then_settled(self, url: str) -> None:
        with open_ledger(url, writing=True) as ledger, open_ledger(url, writing=False) as reader:
            batch = ledger.prepare(rows_named("a"))
            assert reader.rows() == []
            assert reader.rows(pending=True) == rows_named("a")
            put(ledger, "b")
            assert len(reader.numbers()) == 1
            failed = [rows_named("a")[0]._replace(status=FAILED)]
            ledger.settle(batch, failed)
            assert len(reader.numbers()) == 2
            assert reader.rows() == ledger.rows() == [*failed, *rows_named("b")]
            assert list(reader.pending()) == []
        with open_ledger(url, writing=True) as ledger:
            assert put(ledger, "c").name == ledger.numbers()[-1]
            assert ledger.done(ENCRYPT).keys() == {"/out/b", "/out/c"}

    def test_notes_of_jobs_and_uploads(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ledgers, "_STAGED_IN_A_NOTE", 2)
        begun = {f"s3://bucket/{number}": "upload" for number in range(5)}
        with open_ledger(url, writing=True) as ledger:
            ledger.begin(JOB, "/out")
            ledger.note_staged(JOB, 1, begun)
            ledger.note_staged(JOB, 2, {"s3://bucket/x": "upload"})
            assert ledger.killed() == {JOB: "/out"}
            assert dict(ledger.staged(JOB)) == begun | {"s3://bucket/x": "upload"}
            ledger.forget_staged(JOB, 1)
            ledger.forget_staged(JOB, 1)
            assert ledger.staged(JOB) == [("s3://bucket/x", "upload")]
            ledger.end(JOB)
            assert (ledger.staged(JOB), ledger.killed()) == ([], {})

    def test_readers_of_parquet_see_settled_rows_only(self, url: str) -> None:
        with open_ledger(url, writing=True) as ledger:
            put(ledger, "a")
            ledger.begin(JOB, "/out")
            ledger.prepare(rows_named("b"))
            fs, path = fsspec.url_to_fs(url)
            if url.startswith("webhdfs"):
                return  # pyarrow cannot list it
            table = ds.dataset(path, filesystem=fs, format="parquet").to_table()
            assert table.column("relative_path").to_pylist() == ["a"]

    def test_reading_makes_no_ledger(self, url: str) -> None:
        with pytest.raises(FileNotFoundError, match="there is no ledger"):
            open_ledger(url, writing=False)
        assert Store(url).names("_state") == []

    # Of `make test`: the same steps on objects in memory.
    @pytest.mark.slow_variants(r"moto")
    def test_compacting_and_wrapping_again(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ledgers, "MERGED_ROWS", 6)
        with open_ledger(url, writing=True) as ledger, open_ledger(url, writing=False) as reader:
            for name in "abcdefgh":
                put(ledger, name, name * 2)
            held = ledger.prepare(rows_named("held"))
            put(ledger, "later")
            before = reader.rows()
            names = reader.numbers()
            assert ledger.compact() == (9, 3)
            assert reader.rows() == before
            assert reader.numbers() == names
            new = [row._replace(key_metadata="new") for row in rows_named("e", "ee")]
            ledger.replace_all({names[4]: new})
            assert dict(reader.batches())[names[4]] == new
            assert names_in(reader.rows()) == names_in(before)
            ledger.settle(held, held.rows)
            assert ledger.compact() == (4, 3)
            assert names_in(reader.rows()) == [*names_in(before)[:16], "held", "later"]


class TestSideBySide:
    # Of `make test`: the same steps on objects in memory.
    @pytest.mark.slow_variants(r"moto")
    def test_many_jobs_at_once(self, url: str) -> None:
        """While the ledger is merged again and again: each row is there, once."""

        def job(number: int) -> None:
            with open_ledger(url, writing=True) as ledger:
                for name in "abc":
                    put(ledger, f"{number}{name}")
                    if number % 2:
                        ledger.compact()

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(job, range(4)))
        with open_ledger(url, writing=True) as ledger:
            expected = sorted(f"{number}{name}" for number in range(4) for name in "abc")
            assert sorted(names_in(ledger.rows())) == expected
            ledger.compact()
            assert sorted(names_in(ledger.rows())) == expected
        objects = Store(url).names()
        assert len([name for name in objects if name.endswith(".parquet")]) == 1

    def test_signs_of_life(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ledgers, "_SIGN_SECONDS", 0.02)
        with open_ledger(url, writing=True) as ledger, open_ledger(url, writing=False) as reader:
            ledger.begin(JOB, "/out")
            assert reader.notes()[JOB].runs_in is not None
            Store(url).remove([f"_alive-{JOB}"])
            wait = threading.Event()
            for _ in range(500):
                if reader.notes()[JOB].runs_in is not None:
                    break
                wait.wait(0.02)
            assert reader.notes()[JOB].runs_in is not None
            monkeypatch.setattr(ledgers, "_DEAD_SECONDS", -1000.0)
            assert reader.notes()[JOB].runs_in is None
        assert reader.notes()[JOB].runs_in is None

    # Of `make test`: the same process on a folder.
    @pytest.mark.slow_variants("moto")
    def test_a_process_of_this_machine_that_is_gone(self, url: str, run_python: Any) -> None:
        """Not in memory: nobody else sees this process's."""
        if url.startswith("memory"):
            return
        killed = "import os, sys\nfrom ags1.files.ledger import open_ledger\n"
        killed += "ledger = open_ledger(sys.argv[1], writing=True)\n"
        killed += f"ledger.begin('{JOB}', '/out')\nos.kill(os.getpid(), 9)\n"
        assert run_python(killed, url, check=False, timeout=60).returncode == -9
        with open_ledger(url, writing=True) as ledger:
            assert ledger.notes() == {JOB: JobNote("/out")}

    def test_a_paused_job_can_do_no_harm(self, url: str) -> None:
        """Another one has taken it for dead, and has done its work."""
        paused = open_ledger(url, writing=True)
        batch = paused.prepare(rows_named("a", "b"))
        done, failed = batch.rows, [row._replace(status=FAILED) for row in batch.rows]
        for settled in (done, failed):
            with open_ledger(url, writing=True) as ledger:
                ledger.settle(batch, settled)
        with open_ledger(url, writing=True) as ledger:
            ledger.compact()
            paused.settle(batch, failed)
            assert ledger.rows() == done
            ledger.compact()
            assert ledger.rows() == done
            assert list(ledger.pending()) == []
        paused.close()

    def test_requests_that_arrive_a_second_time(self, url: str) -> None:
        objects = Store(url)
        with open_ledger(url, writing=True) as ledger:
            batch = ledger.prepare(rows_named("a"))
            sent = {name: objects.read(name) for name in objects.names()}
            ledger.settle(batch, batch.rows)
            put(ledger, "b")
            sent |= {name: objects.read(name) for name in objects.names()}
            ledger.compact()
            again = [row._replace(key_metadata="again") for row in rows_named("a")]
            ledger.replace_all({batch.name: again})
            for name, data in sent.items():
                if not name.startswith("_lock"):
                    objects.put(name, data)
            assert ledger.rows() == [*again, *rows_named("b")]
            [late] = ledger.pending()
            ledger.settle(late, late.rows)
            assert ledger.rows() == [*again, *rows_named("b")]
            ledger.compact()
            assert ledger.rows() == [*again, *rows_named("b")]


def _stop_at(step: int, after: bool, store: type[Store]) -> list[tuple[str, Callable[..., Any]]]:
    """Return a ``put`` and a ``remove`` that a kill ends at their ``step``-th request."""
    calls = 0

    def stopping(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == step and not after:
                raise KeyboardInterrupt
            if calls > step:
                raise KeyboardInterrupt
            method(*arguments)
            if calls == step:
                raise KeyboardInterrupt

        return call

    return [(name, stopping(getattr(store, name))) for name in ("put", "remove")]


# After a request the bucket is as it is before the next one.
# Of `make test`: the same steps on objects in memory.
@pytest.mark.slow_variants(r"moto-False")
@pytest.mark.parametrize("after", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_kill_at_every_step(url: str, monkeypatch: pytest.MonkeyPatch, after: bool) -> None:
    """One batch on its way, and a compaction: each is whole or was not, and nothing is doubled."""
    with open_ledger(url, writing=True) as ledger:
        put(ledger, "a")
    for step in range(1, 100):
        reached = "open"
        kind = type(Store(url))
        with monkeypatch.context() as patch:
            for name, stopping in _stop_at(step, after, kind):
                patch.setattr(kind, name, stopping)
            patch.setattr(Ledger, "close", lambda self: None)
            try:
                ledger = open_ledger(url, writing=True)
                batch = ledger.prepare(rows_named(f"b{step}"))
                reached = "prepared"
                ledger.settle(batch, batch.rows)
                reached = "settled"
                ledger.compact()
                reached = "all"
            except KeyboardInterrupt:
                pass
        with open_ledger(url, writing=True) as after_kill:
            pending = [name for b in after_kill.pending() for name in names_in(list(b.rows))]
            settled = names_in(after_kill.rows())
            assert len(settled) == len({*settled})
            if reached in ("settled", "all"):
                assert f"b{step}" in settled
            elif reached == "prepared":
                assert f"b{step}" in [*pending, *settled]
            for batch in list(after_kill.pending()):
                after_kill.settle(batch, batch.rows)
            both = sorted({*settled, *pending})
            assert sorted(names_in(after_kill.rows())) == both
            assert len(after_kill.numbers()) == len(both)
        if reached == "all":
            break
    assert reached == "all"
    assert step > 5


@pytest.mark.parametrize("was_made", [False, True])
def test_an_answer_that_was_lost(url: str, monkeypatch: pytest.MonkeyPatch, was_made: bool) -> None:
    kind = type(Store(url))
    real = kind.put
    lost: list[str] = []

    def losing(self: Any, name: str, data: bytes) -> None:
        if name not in lost and not name.startswith("_probe"):
            lost.append(name)
            if was_made:
                real(self, name, data)
            raise OSError("no answer")
        real(self, name, data)

    with monkeypatch.context() as patch:
        patch.setattr(kind, "put", losing)
        with open_ledger(url, writing=True) as ledger:
            put(ledger, "a")
            put(ledger, "b")
            ledger.compact()
    assert len(lost) > 4
    with open_ledger(url, writing=True) as ledger:
        assert names_in(ledger.rows()) == ["a", "b"]


class ShelfOfLedgers(LocalFileSystem):  # type: ignore[misc]
    """A file system whose files can be seen while they are written, as those of SFTP."""

    protocol = "ledgershelf"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.removeprefix("ledgershelf://")))


class ArrowShelf(ArrowFSWrapper):  # type: ignore[misc]
    """As pyarrow's client of HDFS."""

    protocol = "arrowshelf"

    def __init__(self, **more: Any) -> None:
        super().__init__(pyarrow.fs.LocalFileSystem(), **more)

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path.removeprefix("arrowshelf://")


for _kind in (ShelfOfLedgers, ArrowShelf):
    fsspec.register_implementation(_kind.protocol, _kind, clobber=True)


def refused(call: Callable[..., object], *arguments: Any, **more: Any) -> bool:
    """Return whether a call says that the ledger is damaged."""
    try:
        call(*arguments, **more)
    except FormatError as error:
        return "the ledger is damaged" in str(error)
    return False


class TestRefused:
    @pytest.mark.parametrize("scheme", ["ledgershelf", "arrowshelf"])
    def test_a_storage_that_shows_files_in_part(self, tmp_path: Path, scheme: str) -> None:
        with pytest.raises(OSError, match=r"while they are written.*use an object storage"):
            open_ledger(f"{scheme}://{tmp_path}/ledger", writing=True)
        assert list(tmp_path.iterdir()) == []

    def test_a_name_from_the_far_future(self, url: str) -> None:
        """The next one would have a name that nobody reads."""
        with open_ledger(url, writing=True) as ledger:
            put(ledger, "a")
            create(Store(url), f"pack-{'9' * 15}-{'0' * 16}-0000001.parquet", b"")
            ledger.files()
            with pytest.raises(FormatError, match="the ledger is damaged"):
                put(ledger, "b")

    @pytest.mark.parametrize(
        "bad", ["s3://user:password@bucket/ledger", "simplecache::s3://bucket/ledger"]
    )
    def test_urls_with_secrets_or_others_inside(self, bad: str) -> None:
        with pytest.raises(KmsConfigurationError):
            open_ledger(bad, writing=True)

    def test_a_state_that_no_job_has_written(self, url: str) -> None:
        state = {"revision": 1, "writer": "a", "epoch": 1, "holder": None, "next": 2}
        others = [
            json.dumps({**state, "pending": {"1": name}}).encode()
            for name in ("../precious", "batch-000000000001.000001-000001.parquet")
        ]
        for data in (b"", b"[]", b"{}", b'{"revision": 1}', b"[" * 100_000, *others):
            Store(url).put("_state/000000000001.json", data)
            assert refused(open_ledger, url, writing=True), data[:200]

    def test_a_pack_that_does_not_say_what_it_has(self, url: str) -> None:
        open_ledger(url, writing=True).close()
        name = "pack-000000000000001-0000000000000001.merged.parquet"
        for facts in (None, "x", "[]", '[["../x", 0, 0, 1]]', "[[1]]"):
            table = rows_to_table(rows_named("a"))
            if facts is not None:
                table = table.replace_schema_metadata({b"ags1.leaves": facts})
            Store(url).put(name, to_parquet(table))
            with open_ledger(url, writing=False) as reader:
                assert refused(reader.rows), facts

    def test_a_name_with_too_many_batches(self, url: str) -> None:
        with open_ledger(url, writing=True) as ledger:
            put(ledger, "a")
        create(Store(url), "batch-000000000001-999999999999.000009-000001.parquet", b"")
        with (
            open_ledger(url, writing=False) as reader,
            pytest.raises(FormatError, match="no file has so many batches"),
        ):
            reader.rows()


class TestEarlierVersions:
    """Ledgers that ags1 0.1 has written, each with all kinds of objects, after the kill of a job.
    A folder had no state then, and jobs locked the file ``_lock``."""

    @pytest.fixture(params=["folder", "objects"])
    def old(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
        kept = Path(__file__).parent / "ledgers" / request.param
        if request.param == "folder":
            shutil.copytree(kept, tmp_path / "ledger")
            (tmp_path / "ledger").chmod(0o700)
            yield str(tmp_path / "ledger")
            return
        MemoryFileSystem.store.clear()
        fsspec.filesystem("memory").put(str(kept), "/old/ledger", recursive=True)
        yield "memory://old/ledger"
        MemoryFileSystem.store.clear()

    def test_they_are_read_and_go_on(self, old: str) -> None:
        for writing in (False, True):
            with open_ledger(old, writing=writing) as ledger:
                assert ledger.rows() == rows_named("a", "b", "c", "d", "f")
                both = sorted(ledger.rows(pending=True))
                assert both == rows_named("a", "b", "c", "d", "e", "f")
                assert [batch.rows for batch in ledger.pending()] == [rows_named("e")]
                assert ledger.numbers() == [f"batch-{number:012}" for number in (1, 2, 3, 5)]
                assert ledger.notes() == {
                    JOB: JobNote("/out", sidecars=True),
                    "ab": JobNote("/gone", cleared_ms=1234),
                }
                assert ledger.staged(JOB) == [("s3://bucket/x", "upload")]
        with open_ledger(old, writing=True) as ledger:
            for batch in list(ledger.pending()):
                ledger.settle(batch, batch.rows)
            assert put(ledger, "g").name == ledger.numbers()[-1]
            for job_id in list(ledger.notes()):
                ledger.end(job_id)
            assert ledger.compact()[1] == 1
        with open_ledger(old, writing=False) as ledger:
            assert names_in(ledger.rows()) == list("abcdefg")
        names = Store(old).names()
        assert len([name for name in names if not name.startswith("_state")]) == 1

    def test_a_job_of_that_version_that_is_writing(self, tmp_path: Path) -> None:
        folder = tmp_path / "ledger"
        shutil.copytree(Path(__file__).parent / "ledgers" / "folder", folder)
        folder.chmod(0o700)
        with (folder / "_lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            before = sorted(folder.iterdir())
            with pytest.raises(BlockingIOError, match="earlier version is writing to this ledger"):
                open_ledger(folder, writing=True)
            assert sorted(folder.iterdir()) == before
        with open_ledger(folder, writing=True):
            pass
        with pytest.raises(IsADirectoryError):  # as its jobs open it
            os.open(folder / "_lock", os.O_RDWR | os.O_CREAT)

    def test_a_job_with_a_claim_that_is_writing(self, url: str) -> None:
        state = {"revision": 1, "writer": "a", "epoch": 1, "next": 1, "pending": {}}
        objects = Store(url)
        for holder, is_refused in ((this_process(), True), ("{}", True), (None, False)):
            data = json.dumps({**state, "holder": holder}).encode()
            objects.put("_state/000000000001.json", data)
            if is_refused:
                with pytest.raises(BlockingIOError, match=r"earlier version is writing.*process"):
                    open_ledger(url, writing=True)
        open_ledger(url, writing=True).close()
        # They take it for a newer state, and cannot read it.
        assert max(objects.names("_state")) == "999999999999.json"
        with pytest.raises(FormatError, match="damaged"):
            State.from_bytes(objects.read("_state/999999999999.json"), "", "")

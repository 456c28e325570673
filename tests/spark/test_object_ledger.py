"""A ledger in each storage: claims, paused and killed jobs, and storages that it refuses.

In a folder, on fsspec's own storage in memory, on moto, on a real S3 server and HDFS. No Spark.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import pyarrow.dataset as ds
import pyarrow.fs
import pytest
from fsspec.implementations.arrow import ArrowFSWrapper
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from ags1.errors import FormatError, KmsConfigurationError
from ags1.files.filesystems import host_url_of, open_filesystem
from ags1.files.ledger import (
    DONE,
    ENCRYPT,
    FAILED,
    Batch,
    JobNote,
    Ledger,
    Row,
    open_ledger,
    state,
)
from ags1.files.ledger import ledger as ledgers
from ags1.files.ledger.copying import copy_rows
from ags1.files.ledger.store import Store, create

from .test_ledger import JOB, row

pytest.importorskip("s3fs")
BUCKET = "bucket"


def _forget_connections() -> None:
    fsspec.get_filesystem_class("s3").clear_instance_cache()


@pytest.fixture(scope="module")
def moto() -> Iterator[dict[str, str]]:
    """moto, which looks first and then writes, so one request at a time."""
    from aws_catalogs import Quiet
    from aws_server import dummy_environment
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    app = DomainDispatcherApplication(create_backend_app)
    server = make_server("127.0.0.1", 0, app, threaded=False, request_handler=Quiet)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield dummy_environment(f"http://127.0.0.1:{server.server_port}")
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
    boto3 = pytest.importorskip("boto3")
    environment = request.getfixturevalue("moto" if request.param == "moto" else "real_s3")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    _forget_connections()
    s3 = boto3.Session().resource("s3")  # the default one keeps the credentials of the other server
    bucket = s3.Bucket(BUCKET)
    if request.param == "moto":
        bucket.create()
    yield f"s3://{BUCKET}/ledger"
    bucket.objects.all().delete()
    _forget_connections()


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
            assert reader.numbers() == [2]
            failed = [rows_named("a")[0]._replace(status=FAILED)]
            ledger.settle(batch, failed)
            assert reader.numbers() == [1, 2]
            assert reader.rows() == ledger.rows() == [*failed, *rows_named("b")]
            assert list(reader.pending()) == []
        with open_ledger(url, writing=True) as ledger:  # goes on numbering
            assert put(ledger, "c").number == 3
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
            assert ledger.compact() == (8, 3)
            assert reader.rows() == before
            assert reader.numbers() == [*range(1, 9), 10]
            new = [row._replace(key_metadata="new") for row in rows_named("e", "ee")]
            ledger.replace_all({5: new})
            assert dict(reader.batches())[5] == new
            assert names_in(reader.rows()) == names_in(before)
            ledger.settle(held, held.rows)
            assert ledger.compact() == (5, 3)
            assert names_in(reader.rows()) == [*names_in(before)[:16], "held", "later"]


class TestClaims:
    # Of `make test`: the same steps on objects in memory.
    @pytest.mark.slow_variants(r"moto")
    def test_one_of_many_gets_it(self, url: str) -> None:
        def claim(_: int) -> Ledger | None:
            try:
                return open_ledger(url, writing=True)
            except BlockingIOError:
                return None

        with ThreadPoolExecutor(8) as pool:
            got = [ledger for ledger in pool.map(claim, range(8)) if ledger is not None]
        assert len(got) == 1
        with pytest.raises(BlockingIOError, match=r"another job is writing.*45 s after.* release"):
            open_ledger(url, writing=True)
        got[0].close()
        open_ledger(url, writing=True).close()

    def test_a_claim_is_renewed(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(state, "RENEWAL_SECONDS", 0.02)
        with open_ledger(url, writing=True) as ledger:
            first = max(Store(url).names("_state"))
            wait = threading.Event()
            for _ in range(500):
                if len(Store(url).names("_state")) == state._REVISIONS:
                    break
                wait.wait(0.02)
            assert max(Store(url).names("_state")) > first
            assert len(Store(url).names("_state")) <= state._REVISIONS + 1
            put(ledger, "a")
            assert names_in(ledger.rows()) == ["a"]

    def test_a_process_of_this_machine_that_is_gone(self, url: str, run_python: Any) -> None:
        """Not in memory: nobody else sees this process's."""
        if url.startswith("memory"):
            return
        killed = "import os, sys\nfrom ags1.files.ledger import open_ledger\n"
        killed += "open_ledger(sys.argv[1], writing=True)\nos.kill(os.getpid(), 9)\n"
        assert run_python(killed, url, check=False, timeout=60).returncode == -9
        with open_ledger(url, writing=True) as ledger:
            put(ledger, "a")

    def test_a_claim_that_is_released(self, url: str) -> None:
        dead = open_ledger(url, writing=True)
        with open_ledger(url, writing=False) as reader:
            claim = reader.claim()
            assert claim is not None
            with pytest.raises(OSError, match="no claim of a job ffff"):
                reader.release("ffff")
            reader.release(claim.claim_id)
            assert reader.claim() is None
        with pytest.raises(BlockingIOError, match="another job has taken"):
            dead.prepare(rows_named("a"))
        open_ledger(url, writing=True).close()
        dead.close()

    def test_a_paused_job_can_do_no_harm(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        paused = open_ledger(url, writing=True)
        known = paused.prepare(rows_named("a"))
        unknown = SimpleNamespace(number=2, rows=rows_named("b"))
        monkeypatch.setattr(state, "LEASE_SECONDS", -1.0)
        with open_ledger(url, writing=True) as ledger:
            [batch] = ledger.pending()
            assert (batch.number, names_in(list(batch.rows))) == (1, ["a"])
            for step in (
                lambda: paused.prepare(unknown.rows),
                lambda: paused.settle(known, rows_named("wrong")),
            ):
                with pytest.raises(BlockingIOError, match="another job has taken this ledger over"):
                    step()
            ledger.settle(batch, batch.rows)
            put(ledger, "c")
            assert ledger.numbers() == [1, 2]
            paused.close()
        with open_ledger(url, writing=True) as ledger:
            assert names_in(ledger.rows()) == ["a", "c"]
            assert list(ledger.pending()) == []
            # What the paused job left is gone.
            assert len([n for n in Store(url).names() if n.endswith(".parquet")]) == 2

    # Of `make test`: the same steps on objects in memory.
    @pytest.mark.slow_variants(r"moto")
    def test_a_change_that_arrives_late(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Its revision was removed already, so the write itself succeeds."""
        paused = open_ledger(url, writing=True)
        monkeypatch.setattr(state, "LEASE_SECONDS", -1.0)
        monkeypatch.setattr(state, "_REVISIONS", 1)
        with open_ledger(url, writing=True) as ledger:
            for name in "abcd":
                put(ledger, name)
            with pytest.raises(BlockingIOError, match="another job has taken this ledger over"):
                paused.prepare(rows_named("x"))
            put(ledger, "e")
            paused.close()
            with open_ledger(url, writing=False) as reader:
                assert names_in(reader.rows(pending=True)) == list("abcde")


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
    monkeypatch.setattr(state, "RENEWAL_SECONDS", 3600.0)  # whoever is killed renews nothing
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
        with monkeypatch.context() as patch:
            patch.setattr(state, "LEASE_SECONDS", -1.0)
            with open_ledger(url, writing=True) as after_kill:
                pending = [name for b in after_kill.pending() for name in names_in(list(b.rows))]
                settled = names_in(after_kill.rows())
                assert len(settled) == len({*settled})
                assert not {*pending} & {*settled}
                if reached in ("settled", "all"):
                    assert f"b{step}" in settled
                elif reached == "prepared":
                    assert f"b{step}" in [*pending, *settled]
                for batch in list(after_kill.pending()):
                    after_kill.settle(batch, batch.rows)
                assert names_in(after_kill.rows()) == [*settled, *pending]
                assert len(after_kill.numbers()) == len(settled) + len(pending)
        if reached == "all":
            break
    assert reached == "all"
    assert step > 10


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
    assert len(lost) > 8
    with open_ledger(url, writing=True) as ledger:
        assert names_in(ledger.rows()) == ["a", "b"]


class ShelfOfLedgers(LocalFileSystem):  # type: ignore[misc]
    """A file system that looks first and then writes, as fsspec's do by default."""

    protocol = "ledgershelf"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.removeprefix("ledgershelf://")))


class ArrowShelf(ArrowFSWrapper):  # type: ignore[misc]
    """A file system of pyarrow's, which looks first too, as that of HDFS does."""

    protocol = "arrowshelf"

    def __init__(self, **more: Any) -> None:
        super().__init__(pyarrow.fs.LocalFileSystem(), **more)

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path.removeprefix("arrowshelf://")


for _kind in (ShelfOfLedgers, ArrowShelf):
    fsspec.register_implementation(_kind.protocol, _kind, clobber=True)


def _no_links(*_: Any, **__: Any) -> None:
    raise OSError(errno.EPERM, "Operation not permitted")


class TestRefused:
    @pytest.mark.parametrize("scheme", ["ledgershelf", "arrowshelf"])
    def test_a_file_system_that_looks_first(self, tmp_path: Path, scheme: str) -> None:
        with pytest.raises(OSError, match=r"no conditional writes.*use an S3 bucket") as caught:
            open_ledger(f"{scheme}://{tmp_path}/ledger", writing=True)
        assert not isinstance(caught.value, FileExistsError)
        assert list(tmp_path.iterdir()) == []

    def test_a_server_that_ignores_the_condition(
        self, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if "://" not in url:
            monkeypatch.setattr(os, "link", _no_links)
            with pytest.raises(OSError, match=r"no hard links.*use a folder of another"):
                open_ledger(url, writing=True)
            assert Store(url).names() == Store(url).names("_state") == []
            return
        if url.startswith("webhdfs"):
            return  # a rename has no condition that could be ignored
        fs = open_filesystem(host_url_of(url))
        real = fs.pipe_file
        monkeypatch.setattr(fs, "pipe_file", lambda path, data, mode: real(path, data))
        with pytest.raises(OSError, match="no conditional writes"):
            open_ledger(url, writing=True)
        assert Store(url).names() == Store(url).names("_state") == []

    @pytest.mark.parametrize(
        "bad", ["s3://user:password@bucket/ledger", "simplecache::s3://bucket/ledger"]
    )
    def test_urls_with_secrets_or_others_inside(self, bad: str) -> None:
        with pytest.raises(KmsConfigurationError):
            open_ledger(bad, writing=True)

    @pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"revision": 1}', b"[" * 100_000])
    def test_a_state_that_no_job_has_written(self, url: str, data: bytes) -> None:
        create(Store(url), "_state/000000000001.json", data)
        for writing in (False, True):
            with pytest.raises(FormatError, match="the ledger is damaged"):
                open_ledger(url, writing=writing)

    @pytest.mark.parametrize("name", ["../precious", "batch-000000000001.000001-000001.parquet"])
    def test_a_state_that_names_other_objects_as_pending(self, url: str, name: str) -> None:
        with open_ledger(url, writing=True) as ledger:
            put(ledger, "a")
        objects = Store(url)
        newest = max(objects.names("_state"))
        state = json.loads(objects.read(f"_state/{newest}"))
        state |= {"revision": int(newest[:12]) + 1, "pending": {"1": name}}
        create(objects, f"_state/{state['revision']:012}.json", json.dumps(state).encode())
        for writing in (False, True):
            with pytest.raises(FormatError, match="the ledger is damaged"):
                open_ledger(url, writing=writing)

    def test_a_state_that_was_set_back(self, url: str) -> None:
        """Numbers of batches, given again, would replace batches with keys of files."""
        objects = Store(url)
        open_ledger(url, writing=True).close()
        old = set(objects.names("_state"))
        with open_ledger(url, writing=True) as ledger:
            put(ledger, "a")
        objects.remove(f"_state/{name}" for name in set(objects.names("_state")) - old)
        before = sorted(objects.names())
        for _ in range(2):  # nobody holds the claim after the first
            with pytest.raises(FormatError, match="its state is older than its batches"):
                open_ledger(url, writing=True)
        assert sorted(objects.names()) == before

    def test_a_name_with_too_many_batches(self, url: str) -> None:
        with open_ledger(url, writing=True) as ledger:
            put(ledger, "a")
        create(Store(url), "batch-000000000001-999999999999.000009-000001.parquet", b"")
        with pytest.raises(FormatError, match="no file has so many batches"):
            open_ledger(url, writing=True)
        with (
            open_ledger(url, writing=False) as reader,
            pytest.raises(FormatError, match="no file has so many batches"),
        ):
            reader.rows()

    def test_batches_without_a_state(self, url: str, tmp_path: Path) -> None:
        with open_ledger(url, writing=True) as ledger:
            put(ledger, "a")
        objects = Store(url)
        objects.remove(f"_state/{name}" for name in objects.names("_state"))
        with pytest.raises(FormatError, match=r"copy its batch-….parquet to a folder, and import"):
            open_ledger(url, writing=True)
        with open_ledger(url, writing=False) as reader:
            assert reader.rows() == rows_named("a")

        folder = tmp_path / "copy"
        folder.mkdir(mode=0o700)
        for name in objects.names():
            assert name.startswith("batch-")
            (folder / name).write_bytes(objects.read(name))
        with (
            open_ledger(folder, writing=False) as copy,
            open_ledger(f"{url}-2", writing=True) as new,
        ):
            copy_rows(copy, new)
            assert new.rows() == rows_named("a")


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
                assert ledger.rows(pending=True) == rows_named("a", "b", "c", "d", "e", "f")
                assert [(batch.number, batch.rows) for batch in ledger.pending()] == [
                    (4, rows_named("e"))
                ]
                assert ledger.numbers() == [1, 2, 3, 5]
                assert ledger.notes() == {
                    JOB: JobNote("/out", sidecars=True),
                    "ab": JobNote("/gone", cleared_ms=1234),
                }
                assert ledger.staged(JOB) == [("s3://bucket/x", "upload")]
        with open_ledger(old, writing=True) as ledger:
            for batch in list(ledger.pending()):
                ledger.settle(batch, batch.rows)
            assert put(ledger, "g").number == 6
            for job_id in list(ledger.notes()):
                ledger.end(job_id)
            assert ledger.compact() == (5, 1)
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
            with pytest.raises(BlockingIOError, match="another job is writing to this ledger"):
                open_ledger(folder, writing=True)
            assert sorted(folder.iterdir()) == before
        with open_ledger(folder, writing=True):
            pass
        with pytest.raises(IsADirectoryError):  # as its jobs open it
            os.open(folder / "_lock", os.O_RDWR | os.O_CREAT)

    def test_a_batch_that_it_settles_just_before_its_lock_ends(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its rows would be hidden by a state that was read before."""
        folder = tmp_path / "ledger"
        shutil.copytree(Path(__file__).parent / "ledgers" / "folder", folder)
        folder.chmod(0o700)
        check = type(Store(str(folder))).check

        def settling(store: Store, age_of: str | None) -> float:
            (folder / "_pending-000000000004.parquet").rename(folder / "batch-000000000004.parquet")
            return check(store, age_of)

        monkeypatch.setattr(type(Store(str(folder))), "check", settling)
        with open_ledger(folder, writing=True) as ledger:
            assert list(ledger.pending()) == []
            assert names_in(ledger.rows()) == list("abcdef")


def test_what_was_written_is_done(url: str) -> None:
    with open_ledger(url, writing=True) as ledger:
        put(ledger, "a", "b")
        assert {row.status for row in ledger.rows(("status",))} == {DONE}

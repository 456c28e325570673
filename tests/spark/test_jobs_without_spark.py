"""What bulk jobs know before Spark starts: options, ledger, keys, sources, targets; and what they
do when the cause of a failure is no single file's. Tasks run in this process, without a JVM."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import json
import os
import pickle
import shutil
import stat
import threading
import time
import traceback
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import click
import pytest
from fsspec.implementations.memory import MemoryFile, MemoryFileSystem

pytest.importorskip("pyarrow")
pytest.importorskip("pathspec")

from ags1.cli.app import app
from ags1.cli.exits import Exit
from ags1.cli.spark.session import session
from ags1.errors import (
    KeyMetadataError,
    KmsAccessDeniedError,
    KmsKeyNotFoundError,
    KmsUnavailableError,
    NoKeyError,
    TruncatedError,
)
from ags1.files.jobs.publishing import clear, clear_again
from ags1.files.jobs.waves import Waves
from ags1.files.keys import FileKeys, KmsConfig
from ags1.files.ledger import JobNote, Ledger, Row, open_ledger
from ags1.files.ledger.rows import read_table, rows_to_table, table_to_rows, to_parquet
from ags1.files.plan import cutting
from ags1.files.plan.cutting import Pace, Wave
from ags1.files.plan.patterns import Patterns
from ags1.files.plan.selection import Selection
from ags1.files.staging import local_files as files
from ags1.files.staging import marks
from ags1.files.staging.pieces import Item, Piece
from ags1.files.staging.places import find, open_storage
from ags1.files.staging.protocol import Attempt, JobEndedError, Staging
from ags1.files.staging.remote import RemoteStorage
from ags1.files.work.tasks import Encrypting, Result, Work
from ags1.kms import LocalKms
from ags1.spark import jobs
from tests.aws_server import aws_server, dummy_environment

from .conftest import LedgerPlace, step_around


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail if the command line starts Spark."""
    # `tables` first: imported while `session` is replaced, it would keep what replaces it.
    for module in ("tables", "session"):
        name = f"ags1.cli.spark.{module}.session"
        monkeypatch.setattr(name, lambda *_, **__: pytest.fail("started"))


class Places:
    def __init__(self, root: Path, kms: KmsConfig, keyring: Path) -> None:
        self.source, self.target, self.back = root / "in", root / "sealed", root / "back"
        self.ledger, self.kms, self.keyring = root / "ledger", kms, keyring
        self.source.mkdir()
        self.session: Callable[[], Any] = lambda: None

    def write(self, *names: str, size: int = 1000) -> None:
        for name in names:
            path = self.source / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(os.urandom(size))

    def encrypt(self, **more: Any) -> jobs.Summary:
        how = {"ledger": self.ledger, "kms": self.kms, "key_id": "default", "durable": False}
        how |= {"sources": self.source, "target": self.target}
        return jobs.encrypt_files(self.session, **(how | more))

    def decrypt(self, **more: Any) -> jobs.Summary:
        how = {"ledger": self.ledger, "kms": self.kms, "durable": False}
        return jobs.decrypt_files(self.session, None, self.back, **(how | more))

    def verify(self, **more: Any) -> jobs.Summary:
        return jobs.verify_files(
            self.session, None, **({"ledger": self.ledger, "kms": self.kms} | more)
        )

    def names(self, folder: Path) -> set[str]:
        """Return what is in a folder. A ledger has revisions of its state besides."""
        names = {str(path.relative_to(folder)) for path in folder.rglob("*")}
        return {name for name in names if not name.startswith("_state/")}


@pytest.fixture
def places(tmp_path: Path, kms: KmsConfig, keyring: Path) -> Places:
    return Places(tmp_path, kms, keyring)


@pytest.fixture
def run(places: Places, capfd: pytest.CaptureFixture[str]) -> Any:
    def run(command: str, *arguments: object) -> tuple[int, list[dict[str, Any]]]:
        """Run a command; return its status and what it says, which is JSON alone."""
        where = ["--ledger", places.ledger, "--keyring", places.keyring, "--json"]
        with pytest.raises(SystemExit) as ended:
            app(["spark", command, *map(str, [*where, *arguments])])
        out, err = capfd.readouterr()
        assert err == ""
        assert isinstance(ended.value.code, int)
        return ended.value.code, [json.loads(line) for line in out.splitlines()]

    return run


@pytest.mark.usefixtures("pyspark")
class TestBeforeSpark:
    """Each of these ends the command before Spark starts (``no_spark``)."""

    def told(self, run: Any, code: Exit, *arguments: object) -> str:
        status, [told] = run(*arguments)
        assert (status, told["ok"], told["error"]["exit_code"]) == (code, False, code)
        assert told.keys() == {"ok", "error"}
        return str(told["error"]["message"])

    def test_wrong_options(self, places: Places, run: Any) -> None:
        places.write("a")
        pair = places.source, places.target
        for options, word in (
            (("--fast",), "--fast"),
            (("--cores", 0), "--cores"),
            (("--max-failures", "none"), "--max-failures"),
            (("--exclude", "a["), "a["),
            (("--include", "#x"), "#x"),
            (("--master", "local[x]"), "local[x]"),
            (("--master", "host:7077"), "host:7077"),
            (("--remote", "spark://host:7077"), "sc://host:15002"),
            (("--remote", "sc://host", "--master", "local[2]"), "--remote"),
            (("--kms", "aws"), "--keyring"),
        ):
            assert word in self.told(run, Exit.USAGE, "encrypt", *pair, *options)
        said = self.told(run, Exit.USAGE, "encrypt", *pair, "--remote", "http://h/;token=sesame")
        assert "sc://host:15002" in said
        assert "sesame" not in said
        assert "SOURCE" in self.told(run, Exit.USAGE, "encrypt")
        assert "--to-key" in self.told(run, Exit.USAGE, "rewrap", "--to-kms", "vault")
        assert not places.target.exists()
        assert not places.ledger.exists()

    @pytest.mark.parametrize(
        "url",
        [
            "sc://host:15002;token=SECRET",
            "sc://host;token=SECRET",
            "sc://host/;token=SECRET==",
            "sc://host/;token=SEC/SECRET",
            "sc://host/;token=a?SECRET",
            "sc://host/;SECRET",
            "sc://host/token=SECRET",
            "sc://host:1500200/;token=SECRET",
            "sc://host:SECRET",
            "sc://me:SECRET@host",
            "sc:///;token=SECRET",
            "SC://host/;token=SECRET",
            "sc:host/;token=SECRET",
        ],
    )
    def test_a_malformed_url_of_spark_connect_is_not_printed(
        self, places: Places, run: Any, monkeypatch: pytest.MonkeyPatch, url: str
    ) -> None:
        pytest.importorskip("grpc")
        places.write("a")
        pair = places.source, places.target
        for option in ("--remote", "--master"):
            message = self.told(run, Exit.USAGE, "encrypt", *pair, option, url)
            assert "SECRET" not in message
            assert "sc://host:15002" in message or option == "--master"
        monkeypatch.setenv("SPARK_REMOTE", url)
        if url.startswith("sc://"):
            assert "SECRET" not in self.told(run, Exit.USAGE, "encrypt", *pair)

    def test_keys(self, places: Places, run: Any, here: None) -> None:
        places.write("d/a", "d/b")
        pair = places.source, places.target
        places.encrypt()
        places.target = places.target.with_name("other")
        nowhere = places.keyring.with_name("none.json")
        message = self.told(run, Exit.KEYS, "encrypt", *pair, "--keyring", nowhere)
        assert str(nowhere) in message
        assert "'none'" in self.told(run, Exit.KEYS, "encrypt", *pair, "--key", "none")
        LocalKms(str(nowhere)).create_key("another")
        for command in (("decrypt", places.back), ("verify",), ("rewrap",)):
            message = self.told(run, Exit.KEYS, *command, "--keyring", nowhere)
            assert "'default'" in message
            assert "name the keyring that has it" in message
            assert "keygen" not in message
        assert "'none'" in self.told(run, Exit.KEYS, "rewrap", "--to-key", "none")
        nowhere.unlink()
        LocalKms(str(nowhere)).create_key("default")
        assert "does not open" in self.told(
            run, Exit.KEYS, "decrypt", places.back, "--keyring", nowhere
        )
        assert not places.back.exists()

    def test_the_ledger(self, places: Places, run: Any) -> None:
        places.write("a")
        pair = places.source, places.target
        for command in (("verify",), ("decrypt", places.back), ("rewrap",)):
            assert str(places.ledger) in self.told(run, Exit.IO, *command)
        places.ledger.mkdir(mode=0o700)
        with open(places.ledger / "_lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            assert "a job of an earlier version" in self.told(run, Exit.IO, "encrypt", *pair)
        places.ledger.chmod(stat.S_IRWXU | stat.S_IWGRP)
        assert "others may write" in self.told(run, Exit.KEYS, "encrypt", *pair)
        assert not places.target.exists()

    def test_a_target_that_cannot_be_written(self, places: Places, run: Any) -> None:
        places.write("a")
        places.target.write_bytes(b"a file")
        message = self.told(run, Exit.IO, "encrypt", places.source, places.target)
        assert str(places.target) in message

    def test_a_bucket_that_is_not_there(
        self, places: Places, run: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        s3fs = pytest.importorskip("s3fs")
        places.write("a")
        with aws_server() as endpoint:
            for name, value in dummy_environment(endpoint).items():
                monkeypatch.setenv(name, value)
            bucket = f"none-{uuid.uuid4().hex}"
            message = self.told(run, Exit.IO, "encrypt", places.source, f"s3://{bucket}/x")
            s3fs.S3FileSystem.clear_instance_cache()
        assert "bucket" in message.lower()

    def test_sources_that_match_nothing(self, places: Places, run: Any) -> None:
        os.mkfifo(places.source / "pipe")
        for source in (places.source, places.source / "*.csv", places.source / "none"):
            status, [failure, summary] = run("encrypt", source, places.target)
            assert (status, failure["file"], summary["failed"]) == (Exit.IO, str(source), 1)
        assert not places.target.exists()

    def test_patterns_that_match_nothing(self, places: Places, run: Any) -> None:
        """A nightly job must notice."""
        places.write("a")
        command = ("encrypt", places.source, places.target, "--include", "*.zip")
        status, [summary] = run(*command)
        assert (status, summary["ok"], summary["done"]) == (Exit.NO_FILES, False, 0)
        status, [summary] = run(*command, "--allow-empty")
        assert (status, summary["ok"]) == (Exit.OK, True)
        status, [summary] = run(*command, "--dry-run")
        assert (status, summary["to_do"]) == (Exit.NO_FILES, 0)

    def test_a_ledger_in_hdfs_without_hadoop(self, places: Places, run: Any) -> None:
        places.write("a")
        pair = places.source, places.target
        message = self.told(run, Exit.IO, "encrypt", *pair, "--ledger", "hdfs://host/ledger")
        assert message.startswith("hdfs://host: cannot be used: ")
        assert "dlopen" not in message

    @pytest.mark.usefixtures("here")
    def test_a_run_with_nothing_to_do(self, places: Places, run: Any) -> None:
        places.write("a", "b")
        (places.source / "link").symlink_to(".")
        os.mkfifo(places.source / "pipe")
        (places.source / "dangling").symlink_to("none")
        with open(os.fsencode(places.source) + b"/\xff", "wb"):
            pass
        assert places.encrypt().done == 2
        status, [summary] = run("encrypt", places.source, places.target)
        assert (status, summary["ok"], summary["unchanged"]) == (Exit.OK, True, 2)
        assert summary["passed_over"] == {
            "link_to_folder": 1,
            "pipe": 1,
            "dangling_link": 1,
            "name_not_utf8": 1,
        }
        status, [summary] = run("encrypt", places.source, places.target, "--exclude", "[!ab]*")
        assert summary["passed_over"] == {"excluded": 4}

    def test_a_dry_run(self, places: Places, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        places.write("a.csv", "tmp/b.csv", "c.bin")
        options = "--dry-run", "--exclude", "tmp/", "--include", "*.csv"
        status, [file, summary] = run("encrypt", places.source, places.target, *options)
        target = str(places.target / "a.csv.ags1")
        assert file == {"file": str(places.source / "a.csv"), "target": target, "size": 1000}
        assert (status, summary["dry_run"], summary["to_do"]) == (Exit.OK, True, 1)
        assert (summary["size"], summary["passed_over"]) == (1000, {"excluded": 2})
        assert not places.target.exists()
        assert not places.ledger.exists()
        more = "--dry-run", "--ledger", "iceberg:none.ops.ledger"
        message = self.told(run, Exit.IO, "encrypt", places.source, places.target, *more)
        assert "no longer a table" in message


@pytest.mark.usefixtures("here")
class TestRuns:
    def test_what_is_planned_is_what_is_done(self, places: Places) -> None:
        places.write("a", "d/b", "d/c.tmp")
        planned = places.encrypt(dry_run=True, exclude=["*.tmp"]).planned
        done = places.encrypt(exclude=["*.tmp"])
        assert (done.done, done.passed_over) == (2, {"excluded": 1})
        assert {file.target for file in planned} == {
            str(path) for path in places.target.rglob("*.ags1")
        }
        before = places.names(places.ledger)
        planned = places.decrypt(dry_run=True, include=["b"]).planned
        assert [file.target for file in planned] == [str(places.back / "d" / "b")]
        assert places.names(places.ledger) == before
        assert places.decrypt(include=["b"]).done == 1
        assert places.names(places.back) == {"d", "d/b"}

    @pytest.mark.parametrize("nonce", ["no", "00" * 50, ""])
    def test_a_nonce_in_the_ledger_that_is_none(
        self, places: Places, here: None, nonce: str
    ) -> None:
        places.write("a", "b")
        places.encrypt()
        [path] = places.ledger.glob("pack-*")
        table = read_table(path.read_bytes(), Row._fields, "")
        rows = [row._replace(nonce=nonce) for row in table_to_rows(table, Row._fields, "")]
        path.write_bytes(to_parquet(rows_to_table(rows)))
        assert places.encrypt().unchanged == 2
        assert places.verify().done == 2

    def test_a_wrong_keyring_leaves_nothing(self, places: Places, tmp_path: Path) -> None:
        places.write(*(f"d{number}/f" for number in range(30)))
        places.encrypt()
        LocalKms(str(tmp_path / "k2.json")).create_key("another")
        properties = {"encryption.kms-type": "local", "kms.local.keyring": f"{tmp_path}/k2.json"}
        before = places.names(places.ledger)
        with pytest.raises(KmsKeyNotFoundError, match="name the keyring"):
            places.decrypt(kms=KmsConfig(properties))
        with pytest.raises(KeyMetadataError, match="not among"):
            places.decrypt(key_ids=["other"])
        assert not places.back.exists()
        assert places.names(places.ledger) == before

    @pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
    def test_a_full_disk_ends_the_job(
        self, places: Places, monkeypatch: pytest.MonkeyPatch, number: int
    ) -> None:
        monkeypatch.setattr(cutting, "MIN_TASK_COST", 4 * cutting.FILE_COST)
        places.write(*(f"d{n:02}/f" for n in range(60)))
        tried = []

        class Full(Encrypting):
            def piece(self, piece: Piece, attempt: Any) -> Any:
                tried.append(piece.source)
                if len(tried) > 10:
                    raise OSError(number, os.strerror(number))
                return super().piece(piece, attempt)

        monkeypatch.setattr(jobs, "Encrypting", Full)
        with pytest.raises(OSError, match="10 files are done, 50 are left") as raised:
            places.encrypt()
        assert raised.value.errno == number
        assert raised.value.filename.startswith(str(places.target))
        assert len(tried) < 20  # one of each task that had begun
        made = places.names(places.target)
        assert len([name for name in made if name.endswith(".ags1")]) == 10
        assert len(made) == 20  # no empty folder, nothing staged
        with open_ledger(str(places.ledger), writing=False) as ledger:
            assert {row.status for row in ledger.rows()} == {"done"}
        assert not list(places.ledger.glob("_[pj]*"))

    def test_a_full_disk_when_files_are_synced(
        self, places: Places, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        places.write("a", "d/b")

        def full(staged: list[str]) -> None:
            if not staged[0].endswith("-root.tmp"):  # the job's mark
                raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

        monkeypatch.setattr(files, "sync", full)
        with pytest.raises(OSError, match="0 files are done, 2 are left"):
            places.encrypt(durable=True)
        assert not places.target.exists()
        places.write("c")
        places.target.mkdir()
        (places.target / "c.ags1").write_bytes(b"")  # of somebody else, so it is a failure
        with pytest.raises(OSError, match="0 files are done, 2 are left"):
            places.encrypt(durable=True)

    def test_a_full_disk_under_the_ledger_is_named(
        self, places: Places, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        places.write("a")

        def full(self: object, rows: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(Ledger, "prepare", full)
        with pytest.raises(OSError, match=str(places.ledger)) as raised:
            places.encrypt()
        assert raised.value.errno == errno.ENOSPC

    def test_as_many_failures_as_are_allowed(
        self, places: Places, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(cutting, "MIN_TASK_COST", 2 * cutting.FILE_COST)
        places.write(*(f"f{number:02}" for number in range(40)))
        places.target.mkdir()
        for number in (0, 1, 2):
            (places.target / f"f{number:02}.ags1").write_bytes(b"mine")
        start, places.session = places.session, lambda: pytest.fail("started")
        stopped = places.encrypt(max_failures=3)
        places.session = start
        assert (stopped.done, stopped.failed, stopped.not_tried) == (0, 3, 37)
        assert places.encrypt(max_failures=4).done == 37

        class Refusing(Encrypting):
            def piece(self, piece: Piece, attempt: Any) -> Any:
                raise PermissionError(errno.EACCES, "no", piece.source)

        monkeypatch.setattr(jobs, "Encrypting", Refusing)
        stopped = places.encrypt(
            ledger=places.ledger.with_name("l2"), max_failures=5, overwrite=True
        )
        assert 5 <= stopped.failed < 40
        assert stopped.failed + stopped.not_tried == 40
        with pytest.raises(ValueError, match="max_failures is 0"):
            places.encrypt(max_failures=0)


def test_an_alias_that_was_pointed_at_a_new_key(
    places: Places, here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the former key is named, the ledger is mended. No key is wrapped under a name that only
    the ledger gives."""
    boto3 = pytest.importorskip("boto3")
    places.write("a", "b")
    with aws_server() as endpoint:
        for name, value in dummy_environment(endpoint).items():
            monkeypatch.setenv(name, value)
        client = boto3.client("kms")
        old, new = (client.create_key()["KeyMetadata"] for _ in range(2))
        client.create_alias(AliasName="alias/a", TargetKeyId=old["KeyId"])
        places.kms = KmsConfig({"encryption.kms-type": "aws", "kms.endpoint": endpoint})
        assert places.encrypt(key_id="alias/a").done == 2
        client.update_alias(AliasName="alias/a", TargetKeyId=new["KeyId"])
        places.kms.keks().clear()
        rewrap = functools.partial(
            jobs.rewrap_ledger, places.session, ledger=places.ledger, kms=places.kms
        )
        with pytest.raises(KmsAccessDeniedError):
            rewrap(key_ids=["alias/a"])
        summary = rewrap(key_ids=[new["Arn"], old["Arn"]])
        assert summary.done == 0
        assert {failure.kind for failure in summary.failures} == {"KeyMetadataError"}
        assert rewrap(key_ids=["alias/a", old["Arn"]]).done == 2
        places.kms.keks().clear()
        assert places.decrypt(key_ids=["alias/a"]).done == 2
    assert (places.back / "a").read_bytes() == (places.source / "a").read_bytes()


class _Steps:
    """Calls ``act`` at the ``at``-th step of a task, and ``later`` at each step after it. There is
    a step before and after each call of some functions."""

    def __init__(
        self,
        patch: pytest.MonkeyPatch,
        at: int,
        act: Callable[[], object],
        later: Callable[[], object],
    ) -> None:
        self._lock = threading.RLock()
        self._left, self._act, self._later = at, act, later
        self.is_over = False
        calls = (
            (files, "create"),
            (marks, "check"),
            (files, "remove"),
            (os, "pwrite"),
            (os, "fchmod"),
            (RemoteStorage, "read"),
            (MemoryFileSystem, "open"),
            (MemoryFile, "write"),
            (MemoryFile, "commit"),
            (Work, "_result"),
        )
        step_around(patch, calls, self._step)

    def _step(self) -> None:
        with self._lock:
            self._left -= 1
            if self._left == 0:
                self._act()
                self.is_over = True
            elif self.is_over:
                self._later()


@pytest.mark.parametrize(
    ("where", "sizes"), [("local", 3 * [99]), ("local", [2 << 20]), ("memory", 3 * [99])]
)
@pytest.mark.parametrize("is_cut", [False, True])
def test_a_task_that_outlasts_its_job_leaves_nothing(
    tmp_path: Path,
    kms: KmsConfig,
    monkeypatch: pytest.MonkeyPatch,
    where: str,
    sizes: list[int],
    is_cut: bool,
) -> None:
    """Another job clears what the task has staged, after each step of the task in turn."""
    if is_cut:  # each write to a remote storage looks at the mark
        monkeypatch.setattr(marks, "_SECONDS", 0)
    root = f"memory://{tmp_path}/out" if where == "memory" else str(tmp_path / "out")
    storage = open_storage(root)
    keys = FileKeys.for_sealing(kms, "default")
    sources = [tmp_path / str(number) for number in range(len(sizes))]
    for path, size in zip(sources, sizes, strict=True):
        path.write_bytes(b"t" * size)
    listed = find(list(map(str, sources))).files
    at, outcomes = 0, set()

    def no_plaintext() -> None:
        if where == "local":  # not even while the task runs
            assert not any(path.stat().st_size for path in Path(root).iterdir())

    while True:
        at += 1
        job_id = f"{at:012x}"
        staging = Staging(job_id, root, True, False)
        items = [
            Item(n, file.path, f"{root}/{n}", str(n), file.size, file.version, file.size)
            for n, file in enumerate(listed)
        ]
        storage.make_root(root)
        marks.leave(storage, job_id, root, durable=False)
        cut = {item.number for item in items} if is_cut else set()
        shared = storage.stage(staging, items, cut)
        task = [cutting.whole(item)._replace(shared=shared[item.number]) for item in items]  # type: ignore[arg-type]
        with open_ledger(str(tmp_path / "ledger"), writing=True) as ledger:
            ledger.begin(job_id, root)
            with pytest.MonkeyPatch.context() as patch:
                clears = partial(clear, ledger, job_id, root, late=JobNote(root))
                steps = _Steps(patch, at, clears, no_plaintext)
                try:
                    Encrypting(keys, job_id, False).run(task, Attempt(job_id, "1", 0, root))
                except JobEndedError:
                    outcomes.add("ended")
                else:
                    outcomes.add("done")
            found = MemoryFileSystem().find(root) if where == "memory" else os.listdir(root)
            clear_again(ledger)
            if not steps.is_over:
                clear(ledger, job_id, root)
                break
            assert found == ([f".ags1-{job_id}-ended-root.tmp"] if where == "local" else [])
            assert not ledger.notes()
            assert where == "memory" or not os.listdir(root)
    assert outcomes == {"ended", "done"}
    assert at > 8  # there were some steps


class _LastFails(Encrypting):
    """For the last file, the KMS cannot be reached. The other files are staged by then."""

    def piece(self, piece: Piece, attempt: Attempt) -> Result:
        if piece.number:
            return super().piece(piece, attempt)
        while len(MemoryFileSystem().find(attempt.root)) < 4:  # with the mark
            time.sleep(0.01)
        raise KmsUnavailableError("no answer")


def test_a_task_that_fails_leaves_nothing_elsewhere(tmp_path: Path, kms: KmsConfig) -> None:
    root = f"memory://{tmp_path}/out"
    storage, attempt = open_storage(root), Attempt("ab", "1", 0, root)
    marks.leave(storage, "ab", root, durable=False)
    pieces = []
    for number in range(4):
        (tmp_path / str(number)).write_bytes(b"t")
        [file] = find([str(tmp_path / str(number))]).files
        target = f"{root}/{number}"
        pieces.append(
            Piece(number, file.path, target, 1, file.version, None, f"{root}/.ags1-ab.tmp")
        )
    work = _LastFails(FileKeys.for_sealing(kms, "default"), "ab", False)
    with pytest.raises(KmsUnavailableError):
        work.run(pieces, attempt)
    [mark] = MemoryFileSystem().find(root)
    assert mark.endswith("/root")
    marks.end(storage, "ab", root)


def test_fsspec_finds_the_keys_of_a_ledger(places: Places, here: None, place: LedgerPlace) -> None:
    """``ags1::`` reads what a job has encrypted, without sidecars."""
    import fsspec

    location = place.at
    places.write("a.bin", "sub/b.bin")
    places.encrypt(ledger=location)
    stored = places.names(places.target)
    assert stored == {"a.bin.ags1", "sub", "sub/b.bin.ags1"}
    options = {"ledger": location, "keyring": str(places.keyring)}
    for name in ("a.bin", "sub/b.bin"):
        plain = (places.source / name).read_bytes()
        with fsspec.open(f"ags1::file://{places.target}/{name}.ags1", ags1=options) as file:
            assert file.read() == plain
    files = fsspec.filesystem("ags1", target_protocol="file", **options)
    again = pickle.loads(pickle.dumps(files))
    listed = again.find(str(places.target), detail=True)
    assert [info["size"] for info in listed.values()] == [1000, 1000]
    assert str(places.keyring) in files.to_json()

    # A job has written a file again, under another key.
    places.write("a.bin", size=2000)
    places.encrypt(ledger=location)
    assert files.cat_file(f"{places.target}/a.bin") == (places.source / "a.bin").read_bytes()
    assert files.info(f"{places.target}/a.bin")["size"] == 2000

    with pytest.raises(NotImplementedError, match="leave out the storage option 'ledger'"):
        files.pipe_file(f"{places.target}/c.bin", b"x")
    with pytest.raises(NotImplementedError, match="ledger"):
        files.cp_file(f"{places.target}/a.bin", f"{places.target}/c.bin")
    unknown = places.target / "d.bin.ags1"
    shutil.copy(places.target / "a.bin.ags1", unknown)
    with pytest.raises(KeyMetadataError, match="no such sidecar"):
        files.cat_file(str(unknown))
    os.truncate(places.target / "a.bin.ags1", 1500)
    with pytest.raises(TruncatedError):
        files.cat_file(f"{places.target}/a.bin")
    # The master keys to accept are checked as for a sidecar.
    other = fsspec.filesystem("ags1", target_protocol="file", **options, trusted_keys=["other"])
    with pytest.raises(KeyMetadataError, match="'default', which is not among those to trust"):
        other.cat_file(f"{places.target}/sub/b.bin")
    # Readers would take a FileNotFoundError for that of a missing data file.
    options["ledger"] = f"{location}-none"
    other = fsspec.filesystem("ags1", target_protocol="file", **options)
    with pytest.raises(KeyMetadataError, match=r"there is no ledger '.*ledger-none'"):
        other.cat_file(f"{places.target}/sub/b.bin")


def test_readers_beside_a_job_that_replaces_a_file(
    places: Places, here: None, place: LedgerPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger has the keys of both contents before the file changes, and the file's first nonce
    says which one it is. Whoever reads is not alarmed, also if both are of one size."""
    import fsspec

    where = {"ledger": place.at}
    places.write("a.bin")
    places.encrypt(**where)
    target = places.target / "a.bin.ags1"
    contents = [(places.source / "a.bin").read_bytes()]
    sealed = target.read_bytes()
    options = {**where, "keyring": str(places.keyring)}
    files = fsspec.filesystem("ags1", target_protocol="file", **options)
    seen: list[bytes] = []

    def look() -> None:
        seen.append(files.cat_file(f"{places.target}/a.bin"))
        verified = places.verify(**where)
        assert (verified.done, verified.failures) == (1, [])

    def prepare(ledger: Ledger, rows: Any) -> Any:
        batch = real_prepare(ledger, rows)
        look()
        return batch

    def settle(ledger: Ledger, *arguments: Any) -> None:
        look()
        real_settle(ledger, *arguments)

    real_prepare, real_settle = Ledger.prepare, Ledger.settle
    places.write("a.bin")
    contents.append((places.source / "a.bin").read_bytes())
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "prepare", prepare)
        patch.setattr(Ledger, "settle", settle)
        assert places.encrypt(**where).done == 1
    look()
    assert seen == [contents[0], contents[1], contents[1]]

    # Somebody puts the old file back.
    target.write_bytes(sealed)
    with pytest.raises(NoKeyError, match="put back"):
        files.cat_file(f"{places.target}/a.bin")
    verified = places.verify(**where)
    [failure] = verified.failures
    assert (failure.kind, "put back" in failure.message) == ("NoKeyError", True)


@pytest.mark.parametrize("size", [1000, 2000])
@pytest.mark.parametrize("step", ["a lookup", "a selection"])
def test_a_job_that_replaces_what_another_one_reads(
    places: Places, here: None, monkeypatch: pytest.MonkeyPatch, step: str, size: int
) -> None:
    """Just after the keys were looked up, or all is ready for the tasks."""
    kind, name = {"a lookup": (Selection, "_encrypted_rows"), "a selection": (Waves, "run")}[step]
    real = getattr(kind, name)

    def replacing(self: Any, *arguments: Any) -> Any:
        monkeypatch.setattr(kind, name, real)
        found = real(self) if step == "a lookup" else None
        places.write("a.bin", size=size)
        assert places.encrypt().done == 1
        return real(self, *arguments) if step == "a selection" else found

    places.write("a.bin", "b.bin")
    places.encrypt()
    for read in (places.decrypt, places.verify):
        monkeypatch.setattr(kind, name, replacing)
        done = read()
        assert (done.done, done.failures, done.not_tried) == (2, [], 0)
    places.back.joinpath("a.bin").unlink()
    assert places.decrypt().done == 1
    for name in ("a.bin", "b.bin"):
        assert (places.back / name).read_bytes() == (places.source / name).read_bytes()


class TestSideBySide:
    """Jobs in threads, on one ledger: what they say is done is there, once, and opens."""

    @pytest.fixture(autouse=True)
    def small_waves(self, here: None, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cutting.Pace, "is_enough", lambda self, tasks, files: True)
        monkeypatch.setattr("ags1.files.jobs.waves.task_cost", lambda *_: 2000)
        for name in ("ls", "info", "_open"):
            method = getattr(MemoryFileSystem, name)
            monkeypatch.setattr(MemoryFileSystem, name, self._beside_others(method))

    @staticmethod
    def _beside_others(method: Callable[..., Any]) -> Callable[..., Any]:
        """Return a method of fsspec's files in memory for several threads. It sees that a file is
        there, and looks it up after another thread has removed it."""

        @functools.wraps(method)
        def repeated(*arguments: Any, **options: Any) -> Any:
            while True:
                with contextlib.suppress(KeyError):
                    return method(*arguments, **options)

        return repeated

    def test_two_jobs_and_a_verification(self, places: Places, place: LedgerPlace) -> None:
        names = [f"{folder}/{folder}{n}" for folder in ("one", "two") for n in range(6)]
        places.write(*names)
        ended = threading.Event()

        def encrypt(name: str) -> int:
            done = 0
            for _ in range(2):
                summary = places.encrypt(
                    sources=places.source / name, target=places.target / name, ledger=place.at
                )
                assert summary.failures == []
                done += summary.done
                for path in names[::2]:
                    if path.startswith(name):
                        places.write(path)
            return done

        def verify() -> None:
            while not ended.wait(0.01):
                with contextlib.suppress(FileNotFoundError):  # the ledger is not there yet
                    verified = places.verify(ledger=place.at)
                    # If a file is replaced after its key was looked up, that is said, and no more.
                    assert {one.kind for one in verified.failures} <= {"NoKeyError"}

        with ThreadPoolExecutor(3) as pool:
            verified = pool.submit(verify)
            written = [pool.submit(encrypt, name) for name in ("one", "two")]
            try:
                done = sum(one.result() for one in written)
            finally:
                ended.set()
            verified.result()
        with open_ledger(place.at, writing=True) as ledger:
            assert done == len(ledger.rows()) == 12 + 6
            assert (ledger.notes(), list(ledger.pending())) == ({}, [])
            ledger.compact()
            assert len({row.nonce for row in ledger.rows()}) == done
        assert encrypt("one") + encrypt("two") == 6 + 6
        assert places.decrypt(ledger=place.at).done == 12

    def test_two_jobs_on_one_source(self, places: Places, place: LedgerPlace) -> None:
        """A file that both write is that of one of them, and the ledger has its key."""
        places.write(*map(str, range(6)))
        for _ in range(3):
            with ThreadPoolExecutor(2) as pool:
                both = [
                    pool.submit(places.encrypt, ledger=place.at, overwrite=True) for _ in range(2)
                ]
                summaries = [one.result() for one in both]
            assert max(one.done for one in summaries) > 0
            assert {kind.kind for one in summaries for kind in one.failures} <= {"Ags1Error"}
            verified = places.verify(ledger=place.at)
            assert (verified.done, verified.failures) == (6, [])
            for n in range(0, 6, 2):
                (places.source / str(n)).write_bytes(os.urandom(1000))
        assert places.encrypt(ledger=place.at).failures == []
        again = places.encrypt(ledger=place.at)
        assert (again.done, again.unchanged) == (0, 6)
        assert places.decrypt(ledger=place.at).done == 6
        for n in range(6):
            assert (places.back / str(n)).read_bytes() == (places.source / str(n)).read_bytes()


def test_patterns_are_those_of_gitignore() -> None:
    paths = ["a.csv", "x/a.csv", "x/y/a.csv", "tmp/b", "x/tmp/b", "x/tmp.csv"]

    def taken(**patterns: list[str]) -> list[str]:
        wanted = Patterns(**patterns)  # type: ignore[arg-type]
        return [path for path in paths if wanted(path, False)]

    assert taken() == paths
    assert taken(include=["*.csv"]) == ["a.csv", "x/a.csv", "x/y/a.csv", "x/tmp.csv"]
    assert taken(include=["/*.csv"]) == ["a.csv"]
    assert taken(include=["x/*.csv"]) == ["x/a.csv", "x/tmp.csv"]
    assert taken(include=["x/**/a.csv"]) == ["x/a.csv", "x/y/a.csv"]
    assert taken(exclude=["tmp"]) == ["a.csv", "x/a.csv", "x/y/a.csv", "x/tmp.csv"]
    assert taken(exclude=["/tmp/"]) == [path for path in paths if path != "tmp/b"]
    assert taken(include=["*.csv"], exclude=["x/"]) == ["a.csv"]
    assert taken(exclude=["*.csv", "!x/a.csv"]) == ["x/a.csv", "tmp/b", "x/tmp/b"]
    folders = Patterns(include=["*.csv"], exclude=["tmp/"])
    assert folders("x", True)
    assert not folders("x/tmp", True)
    both = Patterns(include=["*.csv"], suffix=".ags1")
    assert both("a.csv.ags1", False)
    for pattern in ("", "#x", "a[", "!", "/"):
        with pytest.raises(ValueError, match="matches nothing"):
            Patterns([pattern])


@pytest.mark.usefixtures("pyspark")
def test_a_token_for_spark_connect_is_not_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("grpc")
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    class Builder(SparkSession.Builder):  # type: ignore[misc]  # PySpark's types are not read
        def getOrCreate(self) -> Any:
            raise PySparkException("nobody answers")

    monkeypatch.setattr(SparkSession, "builder", Builder())
    said = r"Connect at sc://host:15002 cannot be used: check that it runs, .*\(nobody answers\)$"
    with (
        pytest.raises(OSError, match=said),
        session("sc://host:15002/;token=sesame"),
    ):
        pass


@pytest.mark.parametrize(
    "url",
    [
        "sc://host:15002;token=sesame",
        "sc://host:15002/token=sesame",
        "sc://host:15002/;sesame",
        "sc://host:15002/;session_id=sesame",
        "sc://user:sesame@host:x",
    ],
)
@pytest.mark.usefixtures("pyspark")
def test_no_part_of_a_wrong_url_for_spark_connect_is_printed(url: str) -> None:
    """PySpark's own messages quote it."""
    pytest.importorskip("grpc")
    refused = (click.UsageError, OSError)
    with pytest.raises(refused, match=r"(such as|like) sc://host:15002") as caught, session(url):
        pass
    assert "sesame" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("task_seconds", [0.1, 7.0, 50.0, 900.0])
@pytest.mark.parametrize("cores", [1, 2, 1000])
def test_a_killed_driver_loses_minutes(cores: int, task_seconds: float) -> None:
    """However slow the tasks are, once two waves have shown it, a wave takes about a minute, or
    one task for each core."""
    pace = Pace(cores)
    assert pace.wave_tasks <= max(2 * cores, 4)
    seconds = 0.0
    for _ in range(3):
        wave = Wave([[]] * pace.wave_tasks, [])
        seconds += task_seconds * len(wave.tasks) / cores
        pace.finished(wave, seconds)
        assert cores <= pace.wave_tasks <= max(4 * cores, 8)
        lasts = task_seconds * -(-pace.wave_tasks // cores)
        assert lasts <= max(cutting.WAVE_SECONDS + task_seconds, task_seconds)

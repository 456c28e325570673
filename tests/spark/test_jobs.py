"""Jobs over many files: what arrives, what a failure or a kill leaves, and how they go on."""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlparse

import pytest
from click.testing import CliRunner
from conftest import python_environment

import ags1
from ags1.cli.app import app
from ags1.cli.exits import Exit
from ags1.engine.key_metadata import KeyMetadata
from ags1.errors import KmsUnavailableError, KmsUnwrapError
from ags1.files.jobs import waves
from ags1.files.jobs.sidecars import write_sidecars
from ags1.files.keys import FileKeys, KmsConfig, as_text
from ags1.files.ledger import ENCRYPT, Ledger, Row, open_ledger
from ags1.files.ledger.rows import read_table, rows_to_table, table_to_rows, to_parquet
from ags1.files.plan import cutting
from ags1.files.staging import local as local_storage
from ags1.files.staging import local_files, marks
from ags1.files.staging.local import LOCAL, LocalSource, LocalStorage
from ags1.files.staging.pieces import Item, Piece, target_size
from ags1.files.staging.places import find
from ags1.files.staging.protocol import Attempt, Staging
from ags1.files.work import tasks as work
from ags1.files.work.tasks import Decrypting, Encrypting, Result, Verifying
from ags1.keys import Keychain
from ags1.keys.sidecar import read_sidecar, sidecar_path
from ags1.kms import LocalKms
from ags1.spark import jobs
from ags1.spark.jobs import group, sessions
from ags1.spark.jobs.group import JobGroup, TaskFailedError

from .conftest import nonce_in

MIB = 1 << 20

Run = Callable[..., jobs.Summary]


class Folders:
    """The folders of a test, and the jobs between them."""

    def __init__(self, root: Path, spark: Any, kms: KmsConfig) -> None:
        self.source, self.target = root / "in", root / "sealed"
        self.back = root / "back"
        self.ledger: Any = root / "ledger"
        self.source.mkdir()
        self.spark, self.kms = spark, kms
        # On Spark Connect a job with failed tasks keeps its note for the next one.
        self.knows_late_tasks = hasattr(spark, "sparkContext")

    def write(self, **sizes: int) -> None:
        for name, size in sizes.items():
            path = self.source / name.replace("_", "/")
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(os.urandom(size))

    def encrypt(self, source: Any = None, **more: Any) -> jobs.Summary:
        more = {
            "ledger": self.ledger,
            "kms": self.kms,
            "key_id": "default",
            "durable": False,
        } | more
        return jobs.encrypt_files(self.spark, source or self.source, self.target, **more)

    def decrypt(self, source: Any = None, **more: Any) -> jobs.Summary:
        more = {"ledger": self.ledger, "kms": self.kms, "durable": False} | more
        return jobs.decrypt_files(self.spark, source, self.back, **more)

    def verify(self, source: Any = None) -> jobs.Summary:
        return jobs.verify_files(self.spark, source, ledger=self.ledger, kms=self.kms)

    def opened(self) -> Ledger:
        return open_ledger(self.ledger, writing=False)

    def rows(self) -> list[Row]:
        with self.opened() as ledger:
            return ledger.rows()

    def done(self) -> dict[str, Row]:
        """Return the encrypted files' rows by their relative paths."""
        with self.opened() as ledger:
            return {row.relative_path: row for row in ledger.done(ENCRYPT).values()}

    def check_sidecars(self, keyring: Path) -> None:
        """See that each encrypted file has one sidecar, with its key and no other."""
        keychain = Keychain(LocalKms(str(keyring)))
        rows = self.done()
        sidecars = {str(path.relative_to(self.target)) for path in self.target.rglob("*.keys")}
        assert sidecars == {f"{name}.ags1.keys" for name in rows}
        for name, row in rows.items():
            sidecar = sidecar_path(row.target)
            assert os.stat(sidecar).st_mode == os.stat(row.target).st_mode
            assert [key.key_id for key in read_sidecar(sidecar).file_keys] == [row.key_id]
            km = keychain.open(sidecar, row.target)
            plain = (self.source / name).read_bytes()
            assert ags1.decrypt(Path(row.target).read_bytes(), km) == plain

    def check(self) -> None:
        """See that ledger, targets and sources agree, no key served twice, nothing is left."""
        keys = FileKeys.for_opening(self.kms)
        opened = {name: keys.unwrap(row.key_metadata or "") for name, row in self.done().items()}
        assert contents(self.target).keys() == {name + ".ags1" for name in opened}
        for name, km in opened.items():
            sealed = (self.target / (name + ".ags1")).read_bytes()
            assert ags1.decrypt(sealed, km) == (self.source / name).read_bytes()
            assert nonce_in(self.done()[name]) == sealed[8:20].hex()
        used = [
            keys.unwrap(row.key_metadata).encryption_key for row in self.rows() if row.key_metadata
        ]
        assert len(set(used)) == len(used)
        assert not left(self.target)
        with self.opened() as ledger:
            assert not list(ledger.pending())
            if self.knows_late_tasks:
                assert not list(self.target.rglob(".ags1-*"))
                assert not ledger.killed()


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith(".ags1-") and path.suffix != ".keys"
    }


def left(folder: Path) -> list[Path]:
    """Return what was staged; a job that was broken off leaves its mark, too."""
    return [path for path in folder.rglob(".ags1-*") if not path.name.endswith("-root.tmp")]


@pytest.fixture
def folders(tmp_path: Path, spark: Any, kms: KmsConfig) -> Folders:
    return Folders(tmp_path, spark, kms)


@pytest.fixture
def small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have files of more than 3 MiB cut, and tasks of a few small files."""
    monkeypatch.setattr(cutting, "MIN_TASK_COST", 2 * MIB)


@pytest.mark.usefixtures("small_tasks")
def test_a_tree_comes_back(folders: Folders) -> None:
    folders.write(a_empty=0, a_small=1000, a_block=MIB, b_more=2 * MIB + 1, b_cut=9 * MIB + 5)
    (folders.source / "b" / "cut").chmod(0o640)
    (folders.source / "a").chmod(0o750)
    done = folders.encrypt(durable=True)
    assert (done.done, done.failed, done.skipped, done.unchanged) == (5, 0, 0, 0)
    assert done.size == sum(map(len, contents(folders.source).values()))
    folders.check()
    assert (folders.target / "b" / "cut.ags1").stat().st_mode & 0o777 == 0o640
    assert (folders.target / "a").stat().st_mode & 0o777 == 0o750
    assert folders.verify().done == 5
    assert folders.decrypt(durable=True).done == 5
    assert contents(folders.back) == contents(folders.source)
    assert left(folders.back) == []
    again = folders.decrypt()
    assert (again.done, again.unchanged) == (0, 5)


def test_names_are_synced_in_each_folder(folders: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of them may be of another file system."""
    synced: set[str] = set()
    monkeypatch.setattr(local_files, "sync_names", synced.update)
    folders.write(a=1, b_c=1)
    folders.encrypt(durable=True)
    assert synced == {str(folders.target), str(folders.target / "b")}


@pytest.mark.usefixtures("small_tasks")
def test_sidecars_beside_the_files(folders: Folders, keyring: Path, tmp_path: Path) -> None:
    """The command without Spark opens the files by them, whether or not a file is cut."""
    folders.write(a=1000, b_c=10, big=9 * MIB)
    assert folders.encrypt(sidecars=True).done == 3
    folders.check_sidecars(keyring)
    done = CliRunner().invoke(
        app, ["decrypt", "--keyring", str(keyring), *map(str, folders.target.rglob("*.ags1"))]
    )
    assert done.exit_code == 0, done.output
    for name, plain in contents(folders.source).items():
        opened = folders.target / name
        assert opened.read_bytes() == plain
        opened.unlink()
    folders.write(a=1000)
    assert folders.encrypt(sidecars=True).done == 1
    folders.check()
    folders.check_sidecars(keyring)
    # Neither the sidecars nor the ledger are taken for encrypted files.
    assert folders.decrypt(folders.target).done == 3
    row = folders.done()["a"]
    assert row.key_metadata is not None
    assert row.master_key_id == "default"
    assert row.key_id == json.loads(row.key_metadata)["key-id"]
    assert row.target_size == Path(row.target).stat().st_size


def test_moved_files_are_found_by_their_relative_paths(folders: Folders, tmp_path: Path) -> None:
    folders.write(a_x=10, b=20)
    folders.encrypt()
    folders.target.rename(tmp_path / "moved")
    assert folders.decrypt(tmp_path / "moved").done == 2
    assert contents(folders.back) == contents(folders.source)


class TestGoingOn:
    def test_what_is_done_is_left_alone(self, folders: Folders) -> None:
        folders.write(a=1000, b=2000)
        folders.encrypt()
        before = {path: path.stat().st_ino for path in folders.target.iterdir()}
        folders.write(c=10)
        again = folders.encrypt()
        assert (again.done, again.unchanged) == (1, 2)
        assert before.items() <= {p: p.stat().st_ino for p in folders.target.iterdir()}.items()
        folders.check()

    @pytest.mark.parametrize("size", [1000, 1001])
    def test_a_changed_source_gets_a_new_key(self, folders: Folders, size: int) -> None:
        folders.write(a=1000)
        folders.encrypt()
        before = folders.done()["a"]
        folders.write(a=size)
        assert folders.encrypt().done == 1
        assert folders.done()["a"].key_id != before.key_id
        folders.check()

    @pytest.mark.parametrize("spoil", [os.unlink, lambda path: os.truncate(path, 5)])
    def test_a_target_that_is_not_as_it_was(
        self, folders: Folders, spoil: Callable[[Path], None]
    ) -> None:
        folders.write(a=1000, b=1000)
        folders.encrypt()
        spoil(folders.target / "a.ags1")
        again = folders.encrypt()
        assert (again.done, again.unchanged) == (1, 1)
        folders.check()


class TestFailures:
    def test_somebody_elses_target(self, folders: Folders) -> None:
        folders.write(a=1000, b=1000)
        folders.target.mkdir()
        (folders.target / "a.ags1").write_bytes(b"mine")
        done = folders.encrypt()
        assert (done.done, done.failed) == (1, 1)
        assert done.failures[0].kind == "FileExistsError"
        assert (folders.target / "a.ags1").read_bytes() == b"mine"
        assert {row.status for row in folders.rows()} == {"done", "failed"}
        again = folders.encrypt(overwrite=True)
        assert (again.done, again.unchanged) == (1, 1)
        folders.check()

    def test_two_sources_of_one_target(self, folders: Folders) -> None:
        folders.write(a_x=1000, b_x=1000)
        done = folders.encrypt([folders.source / "a", folders.source / "b"])
        assert (done.done, done.failed) == (1, 1)
        assert "same target" in done.failures[0].message

    def test_a_missing_source(self, folders: Folders) -> None:
        folders.write(a=1000)
        done = folders.encrypt([folders.source / "a", folders.source / "none"])
        assert (done.done, done.failed) == (1, 1)
        assert [row.error_kind for row in folders.rows() if row.error] == ["FileNotFoundError"]

    def test_a_ledger_leads_nowhere_else(self, folders: Folders) -> None:
        folders.write(a=1000, b=1000)
        folders.encrypt()
        [batch] = folders.ledger.glob("pack-*")
        rows = folders.rows()
        rows[0] = rows[0]._replace(relative_path="../a")
        batch.write_bytes(to_parquet(rows_to_table(rows)))
        done = folders.decrypt()
        assert (done.done, done.failed) == (1, 1)
        assert contents(folders.back).keys() == {"b"}
        assert not (folders.back.parent / "a").exists()

    @pytest.mark.parametrize("size", [100, 3 * MIB])
    def test_what_is_encrypted_already_is_passed_over(self, folders: Folders, size: int) -> None:
        folders.write(a=size)
        (folders.source / "b").write_bytes(ags1.encrypt(bytes(size)).data)
        done = folders.encrypt()
        assert (done.done, done.skipped, done.failed) == (1, 1, 0)
        assert not (folders.target / "b.ags1").exists()

    @pytest.mark.usefixtures("small_tasks")
    def test_one_corrupted_file_among_many(self, folders: Folders) -> None:
        folders.write(**{f"f{number}": 1000 for number in range(50)}, big=8 * MIB)
        folders.encrypt()
        for name in ("f7", "big"):
            path = folders.target / f"{name}.ags1"
            sealed = bytearray(path.read_bytes())
            sealed[-100] ^= 1
            path.write_bytes(sealed)
        (folders.target / "f8.ags1").write_bytes(b"AGS1")
        os.unlink(folders.target / "f9.ags1")
        kinds = {
            "f7": "AuthenticationError",
            "big": "AuthenticationError",
            "f8": "TruncatedError",
            "f9": "FileNotFoundError",
        }
        for done in (folders.verify(), folders.decrypt()):
            assert (done.done, done.failed) == (47, 4)
            found = {Path(f.path).name.removesuffix(".ags1"): f.kind for f in done.failures}
            assert found == kinds
        expected = {n: d for n, d in contents(folders.source).items() if n not in kinds}
        assert contents(folders.back) == expected
        assert left(folders.back) == []

    def test_a_file_that_the_ledger_does_not_know(self, folders: Folders) -> None:
        folders.write(a=10)
        folders.encrypt()
        (folders.target / "b.ags1").write_bytes(b"x")
        done = folders.verify(folders.target)
        assert (done.done, [failure.kind for failure in done.failures]) == (1, ["KeyMetadataError"])

    def test_what_means_no_file_is_a_failure(self, folders: Folders) -> None:
        empty = folders.source.with_name("empty")
        empty.mkdir()
        folders.write(a=10)
        assert folders.encrypt().done == 1
        for run in (folders.encrypt, folders.verify, folders.decrypt):
            done = run(empty)
            assert [failure.message for failure in done.failures] == [
                "there is no file: check the path, and that it is mounted"
            ]
        for run, folder in ((folders.encrypt, folders.target), (folders.verify, folders.ledger)):
            [failure] = run(folder).failures
            assert failure.path == str(folder)
            assert "in the folder of the targets or the ledger" in failure.message

    def test_an_empty_path_is_not_the_current_folder(
        self, folders: Folders, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(folders.source)
        folders.write(a=10)
        for more in ({"source": [""]}, {"ledger": ""}):
            with pytest.raises(ValueError, match="is empty"):
                folders.encrypt(**more)
        frame = folders.spark.createDataFrame([("",)], "path string")
        with pytest.raises(ValueError, match="is empty"):
            folders.encrypt(frame)
        folders.target = ""  # type: ignore[assignment]
        with pytest.raises(ValueError, match="is empty"):
            folders.encrypt()
        assert os.listdir(folders.source) == ["a"]

    def test_a_ledger_that_is_not_there(self, folders: Folders) -> None:
        for run in (folders.verify, folders.decrypt):
            with pytest.raises(FileNotFoundError):
                run()
        assert not folders.ledger.exists()

    @pytest.mark.usefixtures("small_tasks")
    @pytest.mark.parametrize("size", [4 * MIB, 1 << 60, -1])
    def test_a_size_in_the_ledger_is_not_believed(self, folders: Folders, size: int) -> None:
        folders.write(a=9 * MIB, b=10)
        folders.encrypt()
        with (folders.target / "a.ags1").open("r+b") as file:
            file.seek(8 * MIB)
            file.write(b"damaged")
        self.change_row(folders, "a", source_size=size)
        for source in (None, folders.target):
            for done in (folders.verify(source), folders.decrypt(source)):
                assert done.done + done.unchanged == 1
                [failure] = done.failures
                assert Path(failure.path).name == "a.ags1"
                assert "not as long as the ledger says" in failure.message
        assert contents(folders.back).keys() == {"b"}

    @pytest.mark.parametrize(
        ("field", "value"), [("target", "unheard://of/a"), ("relative_path", "a\0b")]
    )
    def test_a_row_that_makes_no_sense_stops_no_other(
        self, folders: Folders, field: str, value: str
    ) -> None:
        folders.write(a=10, b=10)
        folders.encrypt()
        self.change_row(folders, "a", **{field: value})
        done = folders.decrypt()
        assert (done.done, done.failed) == (1, 1)
        assert contents(folders.back).keys() == {"b"}

    def change_row(self, folders: Folders, name: str, **more: Any) -> None:
        for path in folders.ledger.glob("pack-*"):
            table = read_table(path.read_bytes(), Row._fields, path.name)
            rows = [
                row._replace(**more) if row.relative_path == name else row
                for row in table_to_rows(table, Row._fields, path.name)
            ]
            path.write_bytes(to_parquet(rows_to_table(rows)))


class Killed(Encrypting):
    """Kills the worker process in the middle of a piece, once."""

    def piece(self, piece: Piece, attempt: str) -> Result:
        marker = Path(piece.source).parent.parent / f"killed-{piece.first_block}"
        if Path(piece.source).name != "victim" or marker.exists():
            return super().piece(piece, attempt)
        if piece.first_block > 2:
            return super().piece(piece, attempt)
        LocalSource.check_unchanged = lambda _: [  # type: ignore[assignment,method-assign]
            marker.touch(),
            os.kill(os.getpid(), signal.SIGKILL),
        ]
        return super().piece(piece, attempt)


class Unusable(Encrypting):
    """Finds the KMS out of reach."""

    def piece(self, piece: Piece, attempt: str) -> Result:
        raise KmsUnavailableError("no answer from the KMS")


class Broken(Encrypting):
    """Fails as no file may make a task fail, for one file."""

    def piece(self, piece: Piece, attempt: str) -> Result:
        if Path(piece.source).name == "victim":
            raise RuntimeError("a mistake")
        return super().piece(piece, attempt)


class Changing(Encrypting):
    """Lets the source change between planning and working."""

    def piece(self, piece: Piece, attempt: str) -> Result:
        if piece.first_block:
            os.utime(piece.source)
        return super().piece(piece, attempt)


class TestRetries:
    def test_a_worker_that_is_killed(
        self, folders: Folders, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(jobs, "Encrypting", Killed)
        folders.write(a=1000, victim=3 * MIB, z=1000)
        assert folders.encrypt().done == 3
        assert (folders.source.parent / "killed-0").exists()
        folders.check()

    @pytest.mark.usefixtures("small_tasks")
    def test_a_worker_that_is_killed_in_a_range(
        self, folders: Folders, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(jobs, "Encrypting", Killed)
        copied = []
        assembled = LocalStorage._assembled
        monkeypatch.setattr(
            LocalStorage,
            "_assembled",
            lambda self, *given: copied.append(given) or assembled(self, *given),
        )
        folders.write(a=1000, victim=11 * MIB + 7)
        assert folders.encrypt(durable=True).done == 2
        assert len(copied) == 1
        assert len(list(folders.source.parent.glob("killed-*"))) >= 1
        folders.check()

    @pytest.mark.usefixtures("small_tasks")
    def test_a_source_that_changes_under_one_key(
        self, folders: Folders, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(jobs, "Encrypting", Changing)
        folders.write(a=9 * MIB, b=10)
        done = folders.encrypt()
        assert (done.done, [failure.message for failure in done.failures]) == (1, [work.CHANGED])
        folders.check()
        monkeypatch.undo()
        monkeypatch.setattr(cutting, "MIN_TASK_COST", 2 * MIB)
        assert folders.encrypt().done == 1
        folders.check()

    def test_a_file_that_always_fails_its_task(
        self, folders: Folders, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(jobs, "Encrypting", Broken)
        folders.write(a=1000, b=1000, victim=1000, z=1000)
        done = folders.encrypt()
        assert done.done == 3
        [failure] = done.failures
        assert (Path(failure.path).name, failure.message) == ("victim", "RuntimeError: a mistake")
        folders.check()
        monkeypatch.undo()
        assert folders.encrypt().done == 1
        folders.check()

    @pytest.mark.parametrize("ended", [True, False])
    def test_tasks_of_a_part_that_failed_are_waited_for(
        self, folders: Folders, monkeypatch: pytest.MonkeyPatch, ended: bool
    ) -> None:
        monkeypatch.setattr(jobs, "Encrypting", Broken)
        folders.write(a=1000, victim=1000)
        waited = []
        monkeypatch.setattr(
            JobGroup, "wait_for_tasks", lambda ran: waited.append(ran._failed_tags) or ended
        )
        assert folders.encrypt().done == 1
        [failed_tags] = waited
        assert failed_tags
        assert len(list(folders.ledger.glob("_job-*"))) == (not ended)
        monkeypatch.undo()
        # What they stage after that is the next job's to remove.
        for note in folders.ledger.glob("_job-*"):
            job_id = note.stem.removeprefix("_job-")
            (folders.target / f".ags1-{job_id}-9-9.tmp").touch()
        assert folders.encrypt().done == 1
        folders.check()

    def test_tasks_of_a_job_long_ago_go_on(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sessions, "_LAST_TASKS_SECONDS", 0)
        tracker = SimpleNamespace(
            getJobIdsForGroup=lambda tag: [int(tag.rpartition("-")[2])],
            getJobInfo=lambda job_id: SimpleNamespace(stageIds=[job_id]),
            getStageInfo=lambda stage: SimpleNamespace(numActiveTasks=int(stage == 7)),
        )
        context = SimpleNamespace(statusTracker=lambda: tracker)
        jobs_of = JobGroup(SimpleNamespace(sparkContext=context), "group", "", cores=1)
        assert jobs_of.wait_for_tasks()
        jobs_of._last_tags += [f"group-{number}" for number in range(8, 100)]
        assert jobs_of.wait_for_tasks()
        jobs_of._failed_tags += ["group-6", "group-7"]
        assert not jobs_of.wait_for_tasks()

    def test_tasks_that_all_fail_end_the_job(
        self, folders: Folders, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(jobs, "Encrypting", Broken)
        # Each failed job has three workers of Python end.
        monkeypatch.setattr(waves, "_MAX_FAILED_JOBS", 4)
        for number in range(40):
            folders.write(**{f"d{number}_victim": 10})
        with pytest.raises(TaskFailedError, match="a mistake"):
            folders.encrypt()
        assert contents(folders.target) == {}
        assert left(folders.target) == []
        monkeypatch.undo()
        assert folders.encrypt().done == 40
        folders.check()

    def test_a_kms_out_of_reach_ends_the_job(
        self, folders: Folders, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(jobs, "Encrypting", Unusable)
        folders.write(a=1000)
        with pytest.raises(KmsUnavailableError, match="no answer"):
            folders.encrypt()
        monkeypatch.undo()
        assert folders.encrypt().done == 1
        folders.check()


def _squares(numbers: Iterable[int]) -> Iterator[int]:
    for number in numbers:
        yield number * number


def test_tasks_that_are_too_large_for_one_message_are_sent_in_several(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group, "_MAX_SENT", 4 * len(pickle.dumps(1)))
    ran = JobGroup(spark, "ags1-parts", "squares", cores=None)
    assert ran.cores == 2
    assert ran.run(range(10), _squares, [3] * 10) == [number**2 for number in range(10)]
    assert ran.cost_done == 30
    assert not ran.has_failures
    assert len(ran._last_tags) == 3


class Slow(Decrypting):
    """Takes a while for each of many small files."""

    def piece(self, piece: Piece, attempt: str) -> Result:
        time.sleep(0.01)
        return super().piece(piece, attempt)


def test_a_job_that_is_broken_off_leaves_no_plaintext(
    folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders.write(**{f"f{number}": 100 for number in range(150)})
    folders.encrypt()
    monkeypatch.setattr(jobs, "Decrypting", Slow)

    def interrupt(done: int, total: int) -> None:
        if folders.back.exists() and left(folders.back):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        folders.decrypt(progress=interrupt)
    time.sleep(0.5)
    assert left(folders.back) == []
    monkeypatch.undo()
    # What a task leaves that goes on for longer is the next job's to remove.
    [note] = folders.ledger.glob("_job-*.json")
    job_id = note.stem.removeprefix("_job-")
    (folders.back / f".ags1-{job_id}-7-1.tmp").write_bytes(b"plaintext")
    assert folders.decrypt().done == 150
    assert not list(folders.back.rglob(".ags1-*"))
    assert not list(folders.ledger.glob("_job-*"))


class Cut:
    """A file of three blocks that is encrypted in three ranges, without Spark."""

    def __init__(self, root: Path, kms: KmsConfig, data: bytes = b"A" * 3 * MIB) -> None:
        self.path = root / "source"
        self.path.write_bytes(data)
        os.utime(self.path, (1, 315532800))  # as tar, rsync -t and reproducible builds leave it
        [found] = find([str(self.path)]).files
        target = str(root / "out" / "source.ags1")
        size, version = found.size, found.version
        item = Item(0, found.path, target, "source", size, version, size)
        self.item = item
        self.keys = FileKeys.for_sealing(kms, "default")
        km = KeyMetadata.generate(32).with_file_length(target_size(item, seals=True))
        self.staging = Staging("ab", str(root / "out"), True, False)
        (root / "out").mkdir()
        marks.leave(LOCAL, "ab", str(root / "out"), durable=False)
        self.whole = cutting.whole(item)._replace(
            shared=LOCAL.stage(self.staging, [item], {0})[0],  # type: ignore[arg-type]
            wrapped=as_text(self.keys.wrap(km)),
            source_identity=work.file_identity(found.path),
        )
        self.cut = [
            self.whole._replace(first_block=piece.first_block, block_count=piece.block_count)
            for piece in cutting.ranges(item, MIB)
        ]

    def result(self, number: int, attempt: str = "a") -> Result:
        """Return what comes of a range."""
        task_work = Encrypting(self.keys, "ab", False)
        return task_work._result(self.cut[number], Attempt("ab", f"{attempt}{number}", 0))


def test_a_cut_source_is_exchanged_for_one_of_the_same_time(tmp_path: Path, kms: KmsConfig) -> None:
    file = Cut(tmp_path, kms)
    assert file.result(0).error is None
    (tmp_path / "new").write_bytes(b"B" * 3 * MIB)
    os.utime(tmp_path / "new", (1, 315532800))
    os.rename(tmp_path / "new", file.path)
    assert file.result(1).error == work.CHANGED


def test_a_late_attempt_does_not_write_to_what_has_its_name(tmp_path: Path, kms: KmsConfig) -> None:
    file = Cut(tmp_path, kms)
    results = [file.result(number) for number in range(3)]
    shared = file.whole.shared or ""
    sealed = Path(shared).read_bytes()
    staged = [(result.first_block, result.staged or "") for result in results]
    attempt = LOCAL.gather(file.staging, file.item, shared, staged, lambda path: None)
    LOCAL.discard(file.item.target, shared, staged, whole=False)
    named: dict[str, Any] = dict.fromkeys(Row._fields)
    named |= {"job_id": "ab", "target": file.item.target, "attempt": attempt, "replaces": False}
    row = Row(**(named | {"target_size": len(sealed)}))
    for step in ("gathered", "published", "cleared"):
        if step == "published":
            LOCAL.publish(row, again=False)
        if step == "cleared":
            assert LOCAL.clear("ab", str(tmp_path / "out"), None, ())
        late = file.result(1, f"{step}-late")
        assert late.staged != shared
        where = shared if step == "gathered" else file.item.target
        assert Path(where).read_bytes() == sealed
    assert not os.path.lexists(shared)


def test_a_late_attempt_at_a_file_that_failed(tmp_path: Path, kms: KmsConfig) -> None:
    file = Cut(tmp_path, kms)
    shared = file.whole.shared or ""
    LOCAL.discard(file.item.target, shared, [(0, file.result(0).staged or "")], whole=True)
    for number in (0, 1):
        late = file.result(number, "late")
        assert (late.error_kind == "FileNotFoundError") == (number == 1)
    assert not os.path.lexists(shared)


@pytest.mark.usefixtures("small_tasks")
def test_a_late_attempt_at_the_end_of_a_wave(
    folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a copy of a task, whose worker is killed a while after its stage is done."""
    folders.write(big=11 * MIB)
    target = folders.target / "big.ags1"
    under_way: list[tuple[Any, Any]] = []
    run_wave, commit = waves.Waves.run_wave, waves.Waves.commit

    def running_wave(self: waves.Waves, wave: Any, work: Any) -> Any:
        under_way.append((wave, work))
        return run_wave(self, wave, work)

    def late_attempt() -> None:
        [(wave, work)] = under_way
        pieces = [piece for task in wave.tasks for piece in task]
        assert len(pieces) > 2
        for piece in pieces:
            work._result(piece, Attempt(work.job_id, f"late{time.monotonic_ns()}", 1))

    def committing(self: waves.Waves, rows: list[Row]) -> None:
        if rows:
            [shared] = [path for path in left(folders.target) if path.stem.endswith("-shared-0")]
            sealed = shared.read_bytes()
            late_attempt()
            assert shared.read_bytes() == sealed
        commit(self, rows)
        if rows:
            late_attempt()
            assert target.read_bytes() == sealed

    monkeypatch.setattr(waves.Waves, "run_wave", running_wave)
    monkeypatch.setattr(waves.Waves, "commit", committing)
    assert folders.encrypt().done == 1
    folders.check()


def test_an_open_source_is_changed_back_in_time(tmp_path: Path) -> None:
    path = tmp_path / "source"
    path.write_bytes(b"old")
    before = path.stat()
    with LOCAL.open(str(path), 3, "") as source:
        source.check_unchanged()
        time.sleep(0.05)  # a file system's clock is coarse
        path.write_bytes(b"new")
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        with pytest.raises(ags1.Ags1Error, match=work.CHANGED):
            source.check_unchanged()


def test_a_cut_file_that_is_encrypted_already_is_passed_over(
    tmp_path: Path, kms: KmsConfig
) -> None:
    result = Cut(tmp_path, kms, b"AGS1" + bytes(3 * MIB - 4)).result(0)
    assert (result.error, result.error_kind) == (work.ALREADY_ENCRYPTED, None)


def test_a_file_that_is_cut_short_before_a_task_opens_it(tmp_path: Path, kms: KmsConfig) -> None:
    """The blocks of a range follow from the size that was planned with."""
    keys = FileKeys.for_sealing(kms, "default")
    path = tmp_path / "sealed"
    sealed, km = ags1.encrypt(bytes(3 * MIB))
    path.write_bytes(sealed)
    size = len(sealed)
    item = Item(0, str(path), "", "sealed", size - 1, "", 3 * MIB, as_text(keys.wrap(km)))
    verifying = Verifying(keys, "ab", False)
    first = next(cutting.ranges(item, MIB))
    assert verifying._result(first, Attempt("ab", "a", 0)).error == work.CHANGED
    first = first._replace(source_size=size)
    assert verifying._result(first, Attempt("ab", "a", 0)).error is None


_KILLED_DRIVER = """
import os, signal, sys
from pyspark.sql import SparkSession
from ags1.spark import jobs
from ags1.files.staging import local as local_storage
from ags1.files.plan import cutting
from ags1.files.keys import KmsConfig

source, target, ledger, keyring, wanted = sys.argv[1:]
cutting.MIN_TASK_COST = 2 << 20
cutting._WAVE_TASKS_PER_CORE = 1
builder = SparkSession.builder.master("local[2]")
for name in ("spark.driver.host", "spark.driver.bindAddress"):
    builder = builder.config(name, "127.0.0.1")
spark = builder.config("spark.ui.enabled", "false").getOrCreate()
publish, published = local_storage.publish, 0

def killing(*arguments, **more):
    global published
    if published == int(wanted):
        os.kill(os.getpid(), signal.SIGKILL)
    published += 1
    publish(*arguments, **more)

local_storage.publish = killing
kms = KmsConfig({"encryption.kms-type": "local", "kms.local.keyring": keyring})
where = {"ledger": ledger, "kms": kms, "key_id": "default"}
jobs.encrypt_files(spark, source, target, sidecars=True, **where)
"""


@pytest.mark.parametrize("published", [0, 11])
def test_a_driver_that_is_killed(
    folders: Folders, keyring: Path, run_python: Any, published: int
) -> None:
    folders.write(**{f"f{number}": 100_000 for number in range(40)}, big=7 * MIB)
    where = (folders.source, folders.target, folders.ledger, keyring, published)
    done = run_python(_KILLED_DRIVER, *where, check=False, timeout=300)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert len(contents(folders.target)) == published
    assert len(list(folders.target.rglob("*.keys"))) == published + 1
    # Before anything goes on: what has its name has its key.
    with folders.opened() as ledger:
        known = {row.target for row in ledger.rows(pending=True)}
    assert {row + ".ags1" for row in folders.done()} <= contents(folders.target).keys()
    assert {str(folders.target / name) for name in contents(folders.target)} <= known
    assert folders.verify(folders.target).done == published
    again = folders.encrypt()
    assert again.failed == 0
    assert again.unchanged >= published
    assert again.done + again.unchanged == 41
    folders.check()
    with folders.opened() as ledger:
        write_sidecars(ledger)  # for those that the second job has encrypted
    folders.check_sidecars(keyring)
    if published:
        assert jobs.rewrap_ledger(
            folders.spark, ledger=folders.ledger, kms=folders.kms, to_key_id="other"
        ).done == len(folders.rows())
        folders.check()
        assert folders.decrypt().done == 41


def test_a_folder_that_is_not_mounted_yet(
    folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders.write(a=1000)

    def interrupt(path: str) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:  # between name and ledger
        patch.setattr(local_files, "sync_names", lambda paths: interrupt(""))
        with pytest.raises(KeyboardInterrupt):
            folders.encrypt(durable=True)
    folders.target.rename(folders.source.parent / "volume")
    folders.target.mkdir()  # the mount point
    with pytest.raises(FileNotFoundError, match="mount it"):
        folders.encrypt()
    with pytest.raises(FileNotFoundError, match="mount it"):  # would leave out its keys
        jobs.rewrap_ledger(folders.spark, ledger=folders.ledger, kms=folders.kms)
    assert not list(folders.target.iterdir())
    mounted, folders.target = folders.target, folders.source.parent / "other"
    assert folders.encrypt().done == 1
    folders.target.rename(folders.source.parent / "moved")
    mounted.rmdir()
    (folders.source.parent / "volume").rename(mounted)
    folders.target = mounted
    assert folders.encrypt().unchanged == 1
    assert folders.verify(mounted).done == 1
    assert not list(mounted.rglob(".ags1-*"))
    assert not list(folders.ledger.glob("_[pj]*"))


def test_an_interrupt_between_key_and_name(
    folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The older target of the same size does not pass for the new one."""
    folders.write(a=1000)
    folders.encrypt()
    folders.write(a=1000)

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(local_storage, "publish", interrupt)
    with pytest.raises(KeyboardInterrupt):
        folders.encrypt()
    monkeypatch.undo()
    assert folders.encrypt().unchanged == 1
    folders.check()


class TestRewrapping:
    def test_under_another_master_key(self, folders: Folders, keyring: Path) -> None:
        folders.write(a=1000, b=2000)
        folders.encrypt()
        folders.write(c=10)
        folders.encrypt()
        before = folders.rows()
        where = {"ledger": folders.ledger, "kms": folders.kms}
        for _ in range(2):
            done = jobs.rewrap_ledger(folders.spark, **where, to_key_id="other")
            assert (done.done, done.failed) == (3, 0)
            folders.check()
        after = folders.rows()
        assert [row.key_id for row in after] == [row.key_id for row in before]
        assert {row.master_key_id for row in after} == {"other"}
        assert folders.decrypt(key_ids=["other"]).done == 3
        assert folders.encrypt().unchanged == 3

    def test_in_another_keyring(self, folders: Folders, tmp_path: Path, keyring: Path) -> None:
        folders.write(a=1000)
        folders.encrypt()
        path = str(tmp_path / "k2.json")
        LocalKms(path).create_key("default")
        to_kms = KmsConfig({"encryption.kms-type": "local", "kms.local.keyring": path})
        where = {"ledger": folders.ledger, "kms": folders.kms}
        for _ in range(2):  # the second one finds it done
            done = jobs.rewrap_ledger(folders.spark, **where, to_key_id="default", to_kms=to_kms)
            assert (done.done, done.failed) == (1, 0)
        with pytest.raises(KmsUnwrapError):
            folders.verify()
        folders.kms = to_kms
        assert folders.verify().done == 1

    def test_a_key_that_does_not_open_is_told_and_stays(self, folders: Folders) -> None:
        folders.write(a=1000, b=1000)
        folders.encrypt()
        [batch] = folders.ledger.glob("pack-*")
        rows = folders.rows()
        document = json.loads(rows[0].key_metadata or "")
        wrapped = document["encryption-keys"][1]
        text = wrapped["encrypted-key-metadata"]
        wrapped["encrypted-key-metadata"] = ("A" if text[0] != "A" else "B") + text[1:]
        rows[0] = rows[0]._replace(key_metadata=json.dumps(document))
        batch.write_bytes(to_parquet(rows_to_table(rows)))
        done = jobs.rewrap_ledger(
            folders.spark, ledger=folders.ledger, kms=folders.kms, to_key_id="other"
        )
        assert (done.done, [failure.kind for failure in done.failures]) == (
            1,
            ["AuthenticationError"],
        )
        assert [row.master_key_id for row in folders.rows()] == ["default", "other"]


def test_paths_in_a_data_frame(folders: Folders) -> None:
    folders.write(a=1000, b=2000, c=3000)
    frame = folders.spark.createDataFrame(
        [(str(folders.source / name), number) for number, name in enumerate("ab")], ["path", "n"]
    )
    assert folders.encrypt(frame).done == 2
    assert contents(folders.target).keys() == {"a.ags1", "b.ags1"}


def test_progress_is_told(folders: Folders, caplog: pytest.LogCaptureFixture) -> None:
    folders.write(a=3 * MIB, b=1000)
    told: list[tuple[int, int]] = []
    with caplog.at_level(logging.INFO, "ags1.spark.jobs.report"):
        folders.encrypt(progress=lambda done, total: told.append((done, total)))
    # A log gets a line for each wave.
    lines = [record.getMessage() for record in caplog.records]
    assert lines[-1] == "encrypt: 2 of 2 files, 0.0 of 0.0 GB, 0 failed"
    total = 3 * MIB + 1000
    assert told[0] == (0, total)
    assert told[-1] == (total, total)
    assert told == sorted(told)


def test_target_and_ledger_in_the_source_folder(folders: Folders) -> None:
    folders.write(a=1000)
    folders.target, folders.ledger = folders.source / "sealed", folders.source / "ledger"
    assert folders.encrypt().done == 1
    again = folders.encrypt()
    assert (again.done, again.unchanged, again.failed) == (0, 1, 0)


def test_no_key_travels(folders: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes to the executors, comes back or is logged holds no key that opens a file."""
    sent: list[bytes] = []
    run_wave = waves.Waves.run_wave

    def spying(self: Any, wave: Any, task_work: Any) -> Any:
        sent.append(pickle.dumps((wave, task_work.keys)))
        results = run_wave(self, wave, task_work)
        sent.append(pickle.dumps(results))
        return results

    monkeypatch.setattr(waves.Waves, "run_wave", spying)
    monkeypatch.setattr(cutting, "MIN_TASK_COST", 2 * MIB)
    folders.write(a=1000, b=9 * MIB)
    folders.encrypt()
    folders.decrypt()
    keys = FileKeys.for_opening(folders.kms)
    assert len(sent) >= 4
    for row in folders.done().values():
        key = keys.unwrap(row.key_metadata or "").encryption_key
        assert row.key_metadata
        assert any(row.key_metadata.encode() in data for data in sent)
        logs = Path(urlparse(folders.spark.conf.get("spark.eventLog.dir")).path)
        stored = [path for folder in (folders.ledger, logs) for path in folder.rglob("*")]
        stored = [path for path in stored if path.is_file()]
        assert any(b"SparkListenerTaskEnd" in path.read_bytes() for path in stored)
        for data in [*sent, *(path.read_bytes() for path in stored)]:
            for form in (key, key.hex().encode(), base64.b64encode(key)):
                assert form not in data


def names_of_session(session: int) -> list[str]:
    """The names of the processes in a session."""
    names = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            name, _, rest = status.read_text().partition("(")[2].rpartition(")")
            state, _, _, number = rest.split()[:4]
            if int(number) == session and state != "Z":
                names.append(name)
    return names


_KILLED_JVM = """
import os, signal, sys, time
from ags1.cli.app import app
from ags1.spark import jobs
from ags1.spark.jobs.group import JobGroup
from pyspark import SparkContext

run = JobGroup.run

def killing(*arguments):
    SparkContext._gateway.proc.kill()
    return run(*arguments)

JobGroup.run = killing
source, target, ledger, keyring = sys.argv[1:]
where = ["--ledger", ledger, "--keyring", keyring, "--master", "local[2]"]
app(["spark", "encrypt", source, target, *where])
"""


def test_a_jvm_that_is_killed(folders: Folders, keyring: Path, run_python: Any) -> None:
    folders.write(**{f"f{number}": 1000 for number in range(10)})
    where = (folders.source, folders.target, folders.ledger, keyring)
    done = run_python(_KILLED_JVM, *where, check=False, timeout=300)
    assert done.returncode == Exit.IO
    [line] = done.stderr.splitlines()
    assert line.startswith("ags1: Spark's JVM ended during the job")
    assert folders.encrypt().done == 10
    folders.check()


class TestCommands:
    """``ags1 spark …``, in the session that there is."""

    @pytest.fixture
    def run(self, folders: Folders, keyring: Path, capfd: pytest.CaptureFixture[str]) -> Any:
        def run(command: str, *arguments: object) -> tuple[int, list[dict[str, Any]], str]:
            where = ["--ledger", folders.ledger, "--keyring", keyring, "--json"]
            with pytest.raises(SystemExit) as ended:
                app(["spark", command, *map(str, [*arguments, *where])])
            out, err = capfd.readouterr()
            code = ended.value.code
            assert isinstance(code, int)
            return code, [json.loads(line) for line in out.splitlines()], err

        return run

    def test_all_of_them(self, folders: Folders, run: Any) -> None:
        folders.write(a_x=1000, b=2000)
        code, [summary], _ = run("encrypt", folders.source, folders.target)
        assert (code, summary["ok"], summary["done"], summary["size"]) == (0, True, 2, 3000)
        folders.check()
        code, [summary], _ = run("encrypt", folders.source, folders.target, "--no-fsync")
        assert (code, summary["unchanged"]) == (0, 2)
        assert run("verify")[0] == 0
        assert run("rewrap", "--to-key", "other")[0] == 0
        assert run("decrypt", folders.target, folders.back, "--key", "other")[0] == 0
        assert contents(folders.back) == contents(folders.source)

    def test_the_first_failure_is_the_exit_status(self, folders: Folders, run: Any) -> None:
        folders.write(a=1000, b=2000)
        run("encrypt", folders.source, folders.target)
        sealed = folders.target / "b.ags1"
        data = sealed.read_bytes()
        sealed.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        code, [failed, summary], err = run("verify")
        assert code == failed["error"]["exit_code"] == Exit.AUTHENTICATION
        assert failed["file"] == str(sealed)
        assert (summary["ok"], summary["done"], summary["failed"]) == (False, 1, 1)
        assert err == ""

    def test_an_interrupt_while_spark_starts_leaves_no_jvm(
        self, spark: Any, folders: Folders, keyring: Path
    ) -> None:
        folders.write(a=1000)
        where = ["--ledger", folders.ledger, "--keyring", keyring]
        command = ["ags1", "spark", "encrypt", folders.source, folders.target, *where]
        process = subprocess.Popen(
            [sys.executable, "-m", *map(str, command)],
            env=python_environment(),
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        while not any("java" in name for name in names_of_session(process.pid)):
            assert process.poll() is None
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(60) == Exit.INTERRUPTED
        end = time.monotonic() + 20
        while (left := names_of_session(process.pid)) and time.monotonic() < end:
            time.sleep(0.1)
        assert left == []

    def test_a_secret_is_refused(
        self, folders: Folders, run: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folders.write(a=1)
        monkeypatch.setenv("AGS1_KMS_TYPE", "local")
        monkeypatch.setenv("AGS1_KMS_KMS__LOCAL__PASSPHRASE", "marker")
        code, [told], err = run("encrypt", folders.source, folders.target)
        assert (code, told["ok"]) == (Exit.KEYS, False)
        assert "marker" not in err + json.dumps(told)
        assert not folders.target.exists()

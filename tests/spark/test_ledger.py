"""The ledger and the cutting of the work, without Spark."""

from __future__ import annotations

import base64
import errno
import functools
import itertools
import json
import os
import shutil
import socket
import stat
import sys
import threading
import time
import tracemalloc
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from ags1 import KeyMetadata, layout
from ags1.cli.app import app
from ags1.errors import (
    FormatError,
    KmsAccessDeniedError,
    KmsConfigurationError,
)
from ags1.files.jobs import publishing
from ags1.files.jobs.publishing import (
    clear,
    clear_again,
    published,
    settle_pending,
)
from ags1.files.keys import KmsConfig
from ags1.files.ledger import (
    DONE,
    ENCRYPT,
    FAILED,
    SCHEMA,
    Ledger,
    Row,
    open_ledger,
)
from ags1.files.ledger.copying import ParquetRows, copy_rows, export_rows
from ags1.files.ledger.lookup import LedgerSidecars
from ags1.files.ledger.rows import read_table, rows_to_table, to_parquet
from ags1.files.ledger.store import Store
from ags1.files.plan import cutting
from ags1.files.plan.selection import has_its_name
from ags1.files.staging import local as local_storage
from ags1.files.staging import local_files as files
from ags1.files.staging import marks
from ags1.files.staging import places as storages
from ags1.files.staging import remote as remote_storage
from ags1.files.staging.local import LOCAL, LocalStorage
from ags1.files.staging.packed import DigestMap, PackedRows
from ags1.files.staging.pieces import BLOCK_SIZE, Item, Piece
from ags1.files.staging.protocol import Staging, UnknownOutcomeError
from ags1.files.staging.remote import RemoteSource, unsettled_seconds
from ags1.files.storage.bucket import version_of
from ags1.files.storage.protocol import Status
from ags1.keys import KeyEncryptionKey, Sidecar
from ags1.kms.key_file import KeyFileKms

from .conftest import LedgerPlace, step_around

JOB = "0123456789ab"


def row(target: Path, *, attempt: str | None = None, status: str = DONE, **more: object) -> Row:
    values = {
        "operation": ENCRYPT,
        "source": f"/in/{target.name}",
        "target": str(target),
        "relative_path": target.name,
        "source_size": 1,
        "source_version": "2",
        "target_size": 3,
        "status": status,
        "error_kind": None,
        "error": None,
        "key_metadata": "{}",
        "key_id": "k",
        "master_key_id": "default",
        "attempt": attempt,
        "replaces": False,
        "job_id": JOB,
        "finished_ms": 4,
    }
    return Row(**(values | more))  # type: ignore[arg-type]


def staged(target: Path, data: bytes = b"new", *, job_id: str = JOB) -> str:
    """Stage a file and return what a row has of it."""
    path = files.staged_path(str(target), job_id, f"1-{target.name}")
    Path(path).write_bytes(data)
    return files.attempt(path, str(target.parent))


def path_of(row: Row) -> Path:
    """Return the path of what a row has staged."""
    found = files.staged_of(row.attempt or "", JOB)
    assert found is not None
    return Path(row.target).parent / found[0]


def test_rows_come_back_and_the_newest_done_one_counts(tmp_path: Path, place: LedgerPlace) -> None:
    old, failed = row(tmp_path / "a"), row(tmp_path / "a", status=FAILED)
    new, other = row(tmp_path / "a", source_size=9), row(tmp_path / "b")
    with place.open() as ledger:
        for rows in ([old, other], [new], [failed]):
            ledger.settle(ledger.prepare(rows), rows)
        assert ledger.rows() == [old, other, new, failed]
        assert ledger.done(ENCRYPT) == {new.target: new, other.target: other}
    with place.open() as ledger:  # goes on numbering
        ledger.settle(ledger.prepare([old]), [old])
        assert ledger.done(ENCRYPT)[old.target] == old


def test_whoever_has_looked_up_a_key_finds_it_as_it_was_wrapped_again(
    tmp_path: Path, place: LedgerPlace
) -> None:
    (tmp_path / "key").write_bytes(bytes(range(16)))
    kms = KeyFileKms({"kms.file.path": str(tmp_path / "key"), "kms.allow-readable-files": "true"})
    km = KeyMetadata.generate(32).with_file_length(36)
    kek = KeyEncryptionKey.generate(kms, "one", key_size=32)
    old, new = Sidecar.seal(km, kek), Sidecar.seal(km, kek.rewrap(kms, "other"))
    rows = [row(tmp_path / "a", key_metadata=old.to_bytes().decode())]
    reader = LedgerSidecars(place.at)
    with place.open() as ledger:
        ledger.settle(ledger.prepare(rows), rows)
        assert reader.find([rows[0].target]) == [old]
        again = rows[0]._replace(key_metadata=new.to_bytes().decode())
        [name] = ledger.numbers()
        ledger.replace_all({name: [again]})
        assert reader.find([again.target]) == [new]


def test_readers_see_settled_rows_only(tmp_path: Path, place: LedgerPlace) -> None:
    with place.open() as ledger, place.open(writing=False) as reader:
        batch = ledger.prepare([row(tmp_path / "a")])
        ledger.begin(JOB, str(tmp_path))
        for opened in (ledger, reader):
            assert opened.rows() == []
            assert opened.rows(pending=True) == [row(tmp_path / "a")]
            assert opened.killed() == {JOB: str(tmp_path)}
            assert opened.numbers() == []
        later = ledger.prepare([row(tmp_path / "b")])
        ledger.settle(later, later.rows)
        assert reader.numbers() == [later.name]
        ledger.settle(batch, batch.rows)
        assert list(reader.batches()) == [(b.name, [*b.rows]) for b in (batch, later)]
        named = reader.rows(["target"])
        assert [row.target for row in named] == [str(tmp_path / "a"), str(tmp_path / "b")]
        assert {row.source for row in named} == {None}
    if place.kind == "folder":
        assert pq.read_table(tmp_path / "ledger").num_rows == 2


def test_keys_that_were_wrapped_again(tmp_path: Path, place: LedgerPlace) -> None:
    batches = {}
    with place.open() as ledger:
        for names in ("ab", "cd"):
            batch = ledger.prepare([row(tmp_path / name) for name in names])
            ledger.settle(batch, batch.rows)
            batches[batch.name] = [row._replace(key_metadata="[]") for row in batch.rows]
        ledger.replace_all(batches)
        assert dict(ledger.batches()) == batches


def test_any_number_of_jobs_write(tmp_path: Path, place: LedgerPlace) -> None:
    rows = [row(tmp_path / str(n), job_id=f"{n:012x}") for n in range(3)]
    with place.open() as one, place.open() as two:
        one.begin(rows[0].job_id, str(tmp_path))
        first, second = one.prepare(rows[:1]), two.prepare(rows[1:2])
        assert two.notes()[rows[0].job_id].runs_in is not None
        two.settle(second, second.rows)
        assert one.compact() == (1, 1)
        two.add(rows[2:])
        one.settle(first, first.rows)
        assert sorted(one.rows()) == sorted(two.rows()) == rows
        # It may be settled once more by whoever took the first job for dead.
        two.settle(first, [rows[0]._replace(status=FAILED)])
        assert sorted(one.rows()) == rows
        assert two.compact()[1] == 1
        assert sorted(one.rows()) == rows
    with place.open() as ledger:
        assert ledger.notes()[rows[0].job_id].runs_in is None


def test_a_ledger_that_lies_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in (str(Path("s3://bucket/ledger")), "dbfs:/ledger"):
        for writing in (False, True):
            with pytest.raises(OSError, match="neither a folder nor a URL"):
                open_ledger(name, writing=writing)
    assert list(tmp_path.iterdir()) == []
    for name in (f"file://{tmp_path}/ledger", f"file:{tmp_path}/ledger", "ledger"):
        with open_ledger(name, writing=True) as ledger:
            assert ledger.location == str(tmp_path / "ledger")


@pytest.mark.parametrize("status", [DONE, FAILED])
def test_a_batch_that_is_settled_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    read_file = Store.read
    written = row(tmp_path / "a")
    for pending in (False, True):
        folder = tmp_path / str(pending)
        with open_ledger(str(folder), writing=True) as writer:
            batch = writer.prepare([written])
            settled = [written._replace(status=status)]

            def read(self: Any, name: str, *, settle: Any = (writer, batch, settled)) -> bytes:
                if name.startswith("_plan"):
                    monkeypatch.setattr(Store, "read", read_file)
                    settle[0].settle(*settle[1:])
                return read_file(self, name)

            monkeypatch.setattr(Store, "read", read)
            with open_ledger(str(folder), writing=False) as reader:
                if pending:
                    assert list(reader.pending()) == []
                assert reader.rows(pending=True) == settled


@pytest.mark.parametrize("data", [b"", b"PAR1PAR1", b"no Parquet file at all"])
def test_a_damaged_ledger_is_told(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "batch-000000000001.parquet").write_bytes(data)
    with (
        open_ledger(str(tmp_path), writing=False) as ledger,
        pytest.raises(FormatError, match="ledger"),
    ):
        ledger.rows()


@pytest.mark.parametrize("mode", [0o770, 0o702])
def test_a_folder_that_others_may_write_to(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "ledger"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(KmsAccessDeniedError, match="others may write to this ledger"):
        open_ledger(str(folder), writing=True)
    assert not list(folder.iterdir())
    folder.chmod(0o755)
    open_ledger(str(folder), writing=True).close()
    folder.chmod(mode)
    open_ledger(str(folder), writing=False).close()


def test_what_a_stranger_wrote_there(tmp_path: Path) -> None:
    deep = "[" * 200_000
    with open_ledger(str(tmp_path), writing=True) as ledger:
        for name in (f"_job-{JOB}.json", f"_staged-{JOB}-000001-0.json"):
            (tmp_path / name).write_text(deep)
        assert ledger.killed() == {}
        assert ledger.staged(JOB) == []


def test_a_note_of_many_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ags1.files.ledger.ledger._STAGED_IN_A_NOTE", 100)
    begun = {f"s3://bucket/{number}": "upload" for number in range(1001)}
    with open_ledger(str(tmp_path), writing=True) as ledger:
        ledger.note_staged(JOB, 1, begun)
        ledger.note_staged(JOB, 2, {"s3://bucket/x": "upload"})
        assert dict(ledger.staged(JOB)) == begun | {"s3://bucket/x": "upload"}
        ledger.forget_staged(JOB, 1)
        assert ledger.staged(JOB) == [("s3://bucket/x", "upload")]
        ledger.end(JOB)
        assert ledger.staged(JOB) == []


@pytest.mark.parametrize("durable", [True, False])
def test_what_a_killed_job_is_known_by_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durable: bool
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    with open_ledger(str(tmp_path), writing=True, durable=durable) as ledger:
        for step in (
            lambda: ledger.begin(JOB, str(tmp_path)),
            lambda: ledger.note_staged(JOB, 1, {"s3://bucket/a": "upload"}),
            lambda: marks.leave(LOCAL, JOB, str(tmp_path), durable=durable),
        ):
            synced.clear()
            step()
            assert bool(synced) == durable


class _Killed(BaseException):
    """Ends a job where a kill would: what it raises through is not told."""


class _Kills:
    """Kills a job at its ``at``-th step: before or after a change of the ledger, within one, or
    around the naming of a file."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
        self.steps = 0
        self._at = at
        calls = (
            *itertools.product((Ledger,), ("begin", "prepare", "settle", "end")),
            *itertools.product((Store,), ("put", "remove")),
            (local_storage, "publish"),
            (LocalStorage, "write_beside"),
        )
        step_around(monkeypatch, calls, self._step)

    def _step(self) -> None:
        self.steps += 1
        if self.steps == self._at:
            raise _Killed


def _encrypt(ledger: Ledger, folder: Path, job_id: str) -> None:
    """Do what a job does, without Spark: a wave of two files."""
    marks.leave(LOCAL, job_id, str(folder), durable=False)
    ledger.begin(job_id, str(folder))
    done = ledger.done(ENCRYPT, below=str(folder))
    rows = []
    for name in "ab":
        if str(folder / name) not in done:
            # The content stands for the key that encrypted it.
            key = os.urandom(2).hex()
            data = staged(folder / name, key.encode(), job_id=job_id)
            rows.append(row(folder / name, attempt=data, key_id=key, target_size=4, job_id=job_id))
    if rows:
        batch = ledger.prepare(rows)
        ledger.settle(batch, published(rows))
    clear(ledger, job_id, str(folder))


@pytest.mark.slow
def test_a_job_that_is_killed_at_any_step(
    tmp_path: Path, place: LedgerPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.open().close()
    at = 0
    while True:
        at += 1
        folder = tmp_path / f"out{at}"
        folder.mkdir()
        ledger = place.open()
        with monkeypatch.context() as patch:
            kills = _Kills(patch, at)
            try:
                _encrypt(ledger, folder, f"{at:06x}")
            except _Killed:
                is_killed = True
            else:
                is_killed = False
        # Every file that has its name has its key, also before the next job.
        known = {(row.target, row.key_id) for row in ledger.rows(pending=True)}
        for path in folder.iterdir():
            if path.name in "ab":
                assert (str(path), path.read_text()) in known
        ledger.close()
        with place.open() as ledger:
            settle_pending(ledger)
            _encrypt(ledger, folder, f"{at:06x}ff")
            rows = ledger.done(ENCRYPT, below=str(folder))
            everything = [row for row in ledger.rows() if row.target in rows]
            assert not list(ledger.pending())
            assert not ledger.killed()
        # No file twice, none without its key, and nothing else.
        assert sorted(Path(target).name for target in rows) == list("ab")
        assert len(everything) == 2
        names = sorted(path.name for path in folder.iterdir())
        # A job that was killed before its note leaves its mark.
        assert [name for name in names if not name.endswith("-root.tmp")] == list("ab")
        for target, found in rows.items():
            assert Path(target).read_text() == found.key_id
        if not is_killed:
            break
    assert kills.steps >= 12


def test_a_link_inside_the_target_folder(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "real").mkdir()
    (tmp_path / "root").symlink_to(tmp_path / "real")  # whoever names it means it
    (tmp_path / "real" / "sub").symlink_to(tmp_path / "elsewhere")
    root = str(tmp_path / "root")
    names = ("sub/a", "sub/deep/a", "own/a", "a")
    sources = [str(tmp_path / "in" / name) for name in names]
    (tmp_path / "in" / "own").mkdir(parents=True)
    items = [
        Item(number, source, f"{root}/{name}", name, 1, "", 1)
        for number, (source, name) in enumerate(zip(sources, names, strict=True))
    ]
    staged = LOCAL.stage(Staging(JOB, root, True, False), items, ())
    errors = [error.errno for error in staged.values() if isinstance(error, OSError)]
    assert errors == [errno.ELOOP] * 2
    assert not list((tmp_path / "elsewhere").iterdir())
    assert (tmp_path / "real" / "own").is_dir()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"relative_path": None}, "relative_path"),
        ({"source_size": None}, "source_size"),
        ({"target": 7}, "target"),
        ({}, "so many rows"),
    ],
)
def test_rows_that_no_job_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], said: str
) -> None:
    if not change:
        monkeypatch.setattr("ags1.files.ledger.rows._MAX_ROWS", 1)
    rows = [row(tmp_path / "a")._asdict() | change for _ in range(2)]
    table = pa.Table.from_pylist(rows)
    for number, field in enumerate(SCHEMA):
        if field.name not in change:
            column = table.column(field.name).cast(field.type)
            table = table.set_column(number, field, column)
        elif change[field.name] is None:
            table = table.set_column(number, field, pa.nulls(2, field.type))
    pq.write_table(table, tmp_path / "batch-000000000001.parquet")
    with open_ledger(str(tmp_path), writing=False) as ledger:
        with pytest.raises(FormatError, match=said):
            ledger.rows()


class TestAfterAKill:
    """What was pending is brought to its end, wherever the kill came."""

    @pytest.fixture(autouse=True)
    def _at(self, place: LedgerPlace) -> None:
        self.place = place

    def settle(self, folder: Path, *rows: Row) -> list[Row]:
        with self.kill(folder, *rows):
            pass
        with self.place.open() as ledger:
            settle_pending(ledger)
            assert not ledger.killed()
            assert not list(ledger.pending())
            clear_again(ledger)
            assert not ledger.notes()
            assert not list(folder.rglob(f".ags1-{JOB}-*"))
            return ledger.rows()

    def kill(self, folder: Path, *rows: Row) -> Ledger:
        """Return the ledger after the kill of a job with files in ``folder``."""
        ledger = self.place.open()
        marks.leave(LOCAL, JOB, str(folder), durable=False)
        ledger.begin(JOB, str(folder))
        if rows:
            ledger.prepare(rows)
        return ledger

    def test_before_the_first_name(self, tmp_path: Path) -> None:
        wanted = row(tmp_path / "a", attempt=staged(tmp_path / "a"))
        assert self.settle(tmp_path, wanted) == [wanted]
        assert (tmp_path / "a").read_bytes() == b"new"

    def test_after_the_last_name(self, tmp_path: Path) -> None:
        wanted = row(tmp_path / "a", attempt=staged(tmp_path / "a"))
        path_of(wanted).rename(tmp_path / "a")
        assert self.settle(tmp_path, wanted) == [wanted]

    def test_between_the_link_and_the_unlink(self, tmp_path: Path) -> None:
        wanted = row(tmp_path / "a", attempt=staged(tmp_path / "a"))
        os.link(path_of(wanted), tmp_path / "a")
        assert self.settle(tmp_path, wanted) == [wanted]
        assert (tmp_path / "a").read_bytes() == b"new"

    def test_an_older_target_is_replaced(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_bytes(b"old")
        wanted = row(tmp_path / "a", attempt=staged(tmp_path / "a"), replaces=True)
        assert self.settle(tmp_path, wanted) == [wanted]
        assert (tmp_path / "a").read_bytes() == b"new"

    def test_an_older_target_of_the_same_size_is_no_new_one(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_bytes(b"old")
        wanted = row(tmp_path / "a", attempt=staged(tmp_path / "a"), replaces=True)
        path_of(wanted).unlink()
        (tmp_path / "a").chmod(0o640)  # its status is newer than the row
        assert self.settle(tmp_path, wanted)[0].status == FAILED

    def test_an_older_target_that_was_replaced(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_bytes(b"old")
        # By this machine's clock, that of the files' server is behind.
        now_ms = time.time_ns() // 1_000_000 + 60_000
        name = staged(tmp_path / "a")
        wanted = row(tmp_path / "a", attempt=name, replaces=True, finished_ms=now_ms)
        path_of(wanted).rename(tmp_path / "a")
        assert self.settle(tmp_path, wanted) == [wanted]

    def test_somebody_elses_target_stays(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_bytes(b"old")
        [settled] = self.settle(tmp_path, row(tmp_path / "a", attempt=staged(tmp_path / "a")))
        assert (settled.status, settled.error_kind) == (FAILED, "FileExistsError")
        assert settled.key_metadata == "{}"  # no mistake here loses a file
        assert (tmp_path / "a").read_bytes() == b"old"

    def test_a_half_written_file_gets_no_name(self, tmp_path: Path) -> None:
        wanted = row(tmp_path / "a", attempt=staged(tmp_path / "a", b"ne"))
        assert self.settle(tmp_path, wanted)[0].status == FAILED
        assert not (tmp_path / "a").exists()

    def test_a_staged_file_that_is_gone(self, tmp_path: Path) -> None:
        name = os.path.basename(files.staged_path(str(tmp_path / "a"), JOB, "1"))
        wanted = row(tmp_path / "a", attempt=f"{name}\t1-1")
        assert self.settle(tmp_path, wanted)[0].status == FAILED

    def test_a_folder_that_is_not_mounted_yet(self, tmp_path: Path) -> None:
        (tmp_path / "out").mkdir()
        wanted = row(tmp_path / "out" / "a", attempt=staged(tmp_path / "out" / "a"))
        path_of(wanted).rename(tmp_path / "out" / "a")
        (tmp_path / "out").rename(tmp_path / "elsewhere")
        with pytest.raises(FileNotFoundError, match="mount it"):
            self.settle(tmp_path, wanted)
        (tmp_path / "elsewhere").rename(tmp_path / "out")
        with self.place.open() as ledger:
            settle_pending(ledger)
            assert ledger.rows() == [wanted]

    def test_a_mount_point_with_nothing_mounted(self, tmp_path: Path) -> None:
        mount, other = tmp_path / "mount", tmp_path / "other"
        for folder in (mount, other):
            folder.mkdir()
        wanted = row(mount / "a", attempt=staged(mount / "a"))
        # As a sink's, whose jobs have no note.
        name = staged(other / "a", job_id="cd")
        elsewhere = row(other / "a", attempt=name, job_id="cd")
        path_of(wanted).rename(mount / "a")
        staged(mount / "b")
        with self.kill(mount, wanted) as ledger:
            ledger.prepare([elsewhere])
            mount.rename(tmp_path / "volume")
            mount.mkdir()
            for root in (None, str(mount), str(tmp_path)):
                with pytest.raises(FileNotFoundError, match=f"mount it.*{JOB}"):
                    settle_pending(ledger, root=root)
            settle_pending(ledger, root=str(other))  # whose files are no others'
            assert ledger.rows() == [elsewhere]
            assert [batch.rows for batch in ledger.pending()] == [[wanted]]
            mount.rmdir()
            (tmp_path / "volume").rename(mount)
            settle_pending(ledger)
            assert ledger.rows() == [wanted, elsewhere]
            assert not ledger.killed()
            clear_again(ledger)
        assert [path.name for path in mount.iterdir()] == ["a"]

    def test_a_folder_that_is_gone_for_good(self, tmp_path: Path) -> None:
        folder = tmp_path / "out"
        folder.mkdir()
        wanted = row(folder / "a", attempt=staged(folder / "a"))
        with self.kill(folder, wanted) as ledger:
            shutil.rmtree(folder)
            folder.mkdir()
            with pytest.raises(FileNotFoundError) as caught:
                settle_pending(ledger)
            message = str(caught.value.strerror)
            assert message.endswith(f" ledger forget {ledger.location} {JOB}")
            ledger.end(JOB)
            settle_pending(ledger)
            [settled] = ledger.rows()
            assert (settled.status, settled.key_metadata) == (FAILED, "{}")

    def test_a_file_in_trouble_bars_its_own_folder(self, tmp_path: Path) -> None:
        folder = tmp_path / "out"
        (folder / "a").mkdir(parents=True)  # what a file cannot replace
        stray = Path(folder / f".ags1-{JOB}-2.tmp")
        stray.touch()
        rows = [row(folder / name, attempt=staged(folder / name)) for name in "ab"]
        with self.kill(folder, *(row._replace(replaces=True) for row in rows)) as ledger:
            settle_pending(ledger, root=str(tmp_path / "other"))
            for root in (None, str(folder)):
                with pytest.raises(IsADirectoryError):
                    settle_pending(ledger, root=root)
            assert ledger.killed() == {JOB: str(folder)}
            assert stray.exists()
            (folder / "a").rmdir()
            settle_pending(ledger, root=str(folder))
            assert [row.status for row in ledger.rows()] == [DONE, DONE]
            assert not ledger.killed()
            clear_again(ledger)
        assert sorted(path.name for path in folder.iterdir()) == ["a", "b"]

    @pytest.mark.parametrize(
        ("error", "is_told"), [(PermissionError("lost+found"), False), (OSError("broken"), True)]
    )
    def test_folders_that_cannot_be_listed(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        error: OSError,
        is_told: bool,
    ) -> None:
        """Where nobody may look no job has written."""
        (tmp_path / "out" / "lost+found").mkdir(parents=True)
        listing = os.scandir

        def listed(path: str) -> Any:
            if path.endswith("lost+found"):
                raise error
            return listing(path)

        with self.kill(tmp_path / "out") as ledger:
            monkeypatch.setattr(os, "scandir", listed)
            settle_pending(ledger)
            assert bool(ledger.killed()) == is_told

    def test_what_cannot_be_removed_is_tried_again(self, tmp_path: Path) -> None:
        folder = tmp_path / "out"
        stays = folder / "sub" / f".ags1-{JOB}-2.tmp"
        stays.mkdir(parents=True)  # what no unlink removes
        with self.kill(folder) as ledger:
            settle_pending(ledger)
            assert ledger.killed() == {JOB: str(folder)}
            stays.rmdir()
            stays.touch()
            settle_pending(ledger)
            assert not ledger.killed()
        assert not stays.exists()

    def test_what_late_tasks_leave(self, tmp_path: Path, late_seconds: pytest.MonkeyPatch) -> None:
        """The note of a dead job stays until none of its tasks can leave anything."""
        late_seconds.undo()
        late = tmp_path / f".ags1-{JOB}-9-9.tmp"
        self.kill(tmp_path).close()
        for number in range(3):
            with self.place.open() as ledger:
                dead = settle_pending(ledger)
                assert ledger.killed() == {}
                late.write_bytes(b"plaintext")
                if number == 2:
                    late_seconds.setattr(publishing, "LATE_SECONDS", 0)
                clear_again(ledger)
                assert not late.exists()
                assert bool(ledger.notes()) == (number < 2)
            assert bool(dead[JOB].cleared_ms) == (number > 0)
        assert not list(tmp_path.glob(".ags1-*"))

    def test_a_name_that_was_not_given(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = tmp_path / "out"
        folder.mkdir()
        (folder / "a").write_bytes(b"old")
        wanted = row(folder / "a", attempt=staged(folder / "a"), replaces=True)
        monkeypatch.setattr(local_storage, "publish", _throttled)
        [settled] = published([wanted])
        assert (settled.status, settled.key_metadata) == (FAILED, "{}")
        assert [path.read_bytes() for path in folder.iterdir()] == [b"old"]

    def test_a_staged_file_with_another_name_yet(self, tmp_path: Path) -> None:
        wanted = row(tmp_path / "a", attempt=staged(tmp_path / "a"))
        os.link(path_of(wanted), tmp_path / "of a backup")
        assert self.settle(tmp_path, wanted) == [wanted]
        assert (tmp_path / "a").read_bytes() == b"new"

    def test_a_mount_that_numbers_its_inodes_anew(self, tmp_path: Path) -> None:
        wanted = row(tmp_path / "a", attempt=staged(tmp_path / "a"), replaces=True)
        path_of(wanted).rename(tmp_path / "a")
        shutil.copy2(tmp_path / "a", tmp_path / "b")
        (tmp_path / "b").rename(tmp_path / "a")
        assert self.settle(tmp_path, wanted) == [wanted]

    @pytest.mark.parametrize("there", [True, False])
    @pytest.mark.parametrize(
        "attempt",
        [
            "theirs/precious",
            "{0}/theirs/precious",
            "../{1}/theirs/precious",
            "theirs/precious\t{2}",
            "{0}/theirs/.ags1-{3}-1.tmp\t{2}",
            "theirs/.ags1-{3}-1.tmp\t{2}",
            "_ags1-ffff/.ags1-{3}-1.tmp\t{2}",
            "../{1}/theirs/.ags1-{3}-1.tmp\t{2}",
            ".ags1-{3}-\0.tmp\t{2}",
            "",
        ],
    )
    def test_no_other_file_is_moved_or_removed_by_a_ledger(
        self, tmp_path: Path, attempt: str, there: bool
    ) -> None:
        for name in (
            "theirs/precious",
            f"theirs/.ags1-{JOB}-1.tmp",
            f"_ags1-ffff/.ags1-{JOB}-1.tmp",
        ):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_bytes(b"new")
        if there:
            (tmp_path / "a").write_bytes(b"old")
        status = (tmp_path / "theirs" / "precious").stat()
        trace = f"{status.st_ino}-{status.st_mtime_ns}"
        planted = attempt.format(tmp_path, tmp_path.name, trace, JOB)
        wanted = row(tmp_path / "a", attempt=planted, replaces=True)
        before = sorted(tmp_path.rglob("*"))
        [settled] = published([wanted], again=True)
        assert (settled.status, settled.error_kind) == (FAILED, "NothingStagedError")
        assert not has_its_name(wanted)
        assert sorted(tmp_path.rglob("*")) == before

    def test_what_was_staged_and_not_pending_goes(self, tmp_path: Path) -> None:
        staged(tmp_path / "b")
        theirs = tmp_path / ".ags1-ffffffffffff-1.tmp"
        theirs.write_bytes(b"of another job")
        self.settle(tmp_path)
        assert theirs.exists()


@pytest.mark.parametrize("replaces", [True, False])
@pytest.mark.parametrize("code", [errno.ENOENT, errno.EIO])
def test_a_name_that_was_given_though_the_answer_was_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replaces: bool, code: int
) -> None:
    wanted = row(tmp_path / "a", attempt=staged(tmp_path / "a"), replaces=replaces)

    def losing(temporary: str, target: str, **_: object) -> None:
        (os.rename if replaces else os.link)(temporary, target)
        raise OSError(code, "no answer")

    monkeypatch.setattr(local_storage, "publish", losing)
    assert published([wanted]) == [wanted]
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("examples", [30, pytest.param(100, marks=pytest.mark.slow)])
def test_every_block_is_in_one_piece(examples: int) -> None:
    @settings(max_examples=examples)
    @given(
        st.lists(st.integers(0, 200 << 20), max_size=60),
        st.integers(1, 64),
        st.integers(1 << 20, 64 << 20),
    )
    def check(sizes: list[int], cores: int, cost: int) -> None:
        items = [Item(n, "", "", "", size, "1", size) for n, size in enumerate(sizes)]
        seen: dict[int, list[Piece]] = {}
        for wave in cutting.waves(items, cutting.Pace(cores), cost):
            assert all(wave.tasks)
            pieces = [piece for task in wave.tasks for piece in task]
            assert {piece.number for piece in pieces} == {item.number for item in wave.items}
            assert not {item.number for item in wave.items} & set(seen)
            for piece in pieces:
                seen.setdefault(piece.number, []).append(piece)
        assert sorted(seen) == list(range(len(sizes)))
        for number, pieces in seen.items():
            if not pieces[0].block_count:
                assert len(pieces) == 1
                continue
            ends = [0]
            for piece in pieces:
                assert piece.first_block == ends[-1]
                assert 0 < piece.block_count <= cost // BLOCK_SIZE + 1
                ends.append(piece.first_block + piece.block_count)
            assert ends[-1] == layout.block_count(sizes[number])

    check()


# Of `make test`: smaller ledgers of each kind.
@pytest.mark.slow
@pytest.mark.variant
@given(st.lists(st.tuples(st.text(max_size=2), st.none() | st.integers(1, 3)), max_size=50))
def test_facts_in_little_memory(changes: list[tuple[str, int | None]]) -> None:
    """They are those of a dictionary, also after growing."""
    expected: dict[str, bytes] = {f"many{n}": b"%016d" % n for n in range(2000)}
    found, wide = DigestMap(), DigestMap(28)
    for text, value in expected.items():
        found[text] = value
        assert wide.put(text, value + b"and more now") is None
    assert wide.put("many7", b"1" * 28) == expected["many7"] + b"and more now"
    assert wide.get("many8") == expected["many8"] + b"and more now"
    for text, number in changes:
        if number is None:
            assert found.pop(text, None) == expected.pop(text, None)
        else:
            found[text] = expected[text] = bytes([number]) * 16
    for text in [*expected, *(text for text, _ in changes), "none"]:
        assert found.get(text) == expected.get(text)


class _Pair(NamedTuple):
    name: str
    other: str
    text: str


# Of `make test`: verification by a job.
@pytest.mark.slow
@pytest.mark.variant
@given(st.lists(st.tuples(st.text(max_size=2), st.none() | st.integers(1, 99)), max_size=300))
def test_rows_in_little_memory(changes: list[tuple[str, int | None]]) -> None:
    """They are those of a dictionary, in the order in which they came last."""
    expected: dict[str, _Pair] = {}
    found: PackedRows[_Pair] = PackedRows(_Pair._make, lambda pair: pair.name)
    for n, (name, number) in enumerate([*((f"many{n}", n) for n in range(200)), *changes]):
        expected.pop(name, None)
        if number is None:
            found.pop(name, None)
        else:
            found[name] = expected[name] = _Pair(name, f"other{number % 7}", f"text{n}")
    assert list(found) == list(expected.values())
    for name in [*expected, *(name for name, _ in changes), "none"]:
        assert found.get(name) == expected.get(name)
        assert (name in found) == (name in expected)
    others = {pair.other: pair for pair in expected.values()}
    by_other = found.by(lambda pair: pair.other)
    assert {name: by_other.get(name) for name in others} == others
    assert list(found.drained()) == list(expected.values())


@pytest.mark.slow
@pytest.mark.thread_unsafe(reason="tracemalloc traces all threads")
def test_keys_need_little_memory() -> None:
    """For a million names the driver needs at most 500 MiB. It has most of them twice."""
    count = 20_000
    kek = base64.b64encode(os.urandom(60)).decode()

    def row(n: int) -> _Pair:
        own = base64.b64encode(os.urandom(110)).decode()
        return _Pair(f"/data/region={n % 17}/part-{n:08}.ags1", f"{n}.ags1", f"{kek * 3}{own}")

    tracemalloc.start()
    try:
        rows: PackedRows[_Pair] = PackedRows(_Pair._make, lambda pair: pair.name)
        for n in range(count):
            rows[f"/data/region={n % 17}/part-{n:08}.ags1"] = row(n)
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size / count < 300


def test_tasks_are_few_and_even() -> None:
    small = [Item(n, "", "", "", 10_000, "1", 10_000) for n in range(20_000)]
    cost = cutting.task_cost(small, 2)
    tasks = [task for wave in cutting.waves(small, cutting.Pace(2), cost) for task in wave.tasks]
    assert 6 <= len(tasks) <= 16
    assert max(map(len, tasks)) < 2 * 20_000 / len(tasks)
    for sizes in ([2 << 30], [32 << 20] * 64, [5 << 30] + [10_000] * 1000):
        items = [Item(n, "", "", "", size, "1", size) for n, size in enumerate(sizes)]
        cost = cutting.task_cost(items, 2)
        tasks = [
            task for wave in cutting.waves(items, cutting.Pace(2), cost) for task in wave.tasks
        ]
        loads = [sum(piece.cost + cutting.FILE_COST for piece in task) for task in tasks]
        assert len(tasks) >= 6
        assert max(loads) < 1.5 * cost


def test_what_nothing_tells_the_version_of_is_one_piece() -> None:
    size = 1 << 30
    known = Item(0, "", "", "", size, "1", size)
    unknown = known._replace(source_version="")
    for item, is_cut in (
        (known, True),
        (unknown, False),
        (unknown._replace(wrapped="{}"), True),  # to be opened: its tags tell
        (known._replace(unit=0), False),
    ):
        [wave] = cutting.waves([item], cutting.Pace(2), 64 << 20)
        assert (len(wave.tasks) > 1) is is_cut


class TestListing:
    def test_folders_globs_and_files(self, tmp_path: Path) -> None:
        for name in ("a/1.csv", "a/b/2.csv", "a/b/.ags1-x.tmp", "c/3.txt"):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes(b"x")
        (tmp_path / "link").symlink_to(tmp_path / "a")
        (tmp_path / "a" / "loop").symlink_to(tmp_path / "a")

        def found(*sources: str, **more: object) -> list[str]:
            listing = storages.find([str(tmp_path / source) for source in sources], **more)  # type: ignore[arg-type]
            assert not listing.problems
            return [item.relative_path for item in listing.files]

        assert found("") == ["a/1.csv", "a/b/2.csv", "c/3.txt"]
        assert found("a", "a/b") == ["1.csv", "b/2.csv"]
        assert found("a/b/2.csv") == ["2.csv"]
        assert found("a*/*.csv") == ["a/1.csv"]
        assert found("**/*.csv") == ["a/1.csv", "a/b/2.csv"]
        assert found("", closed=[str(tmp_path / "a" / "b")]) == ["a/1.csv", "c/3.txt"]

    def test_what_is_missing_is_told(self, tmp_path: Path) -> None:
        listing = storages.find([str(tmp_path / "none"), str(tmp_path / "*.csv"), str(tmp_path)])
        assert not listing.files
        assert [type(problem.error) for problem in listing.problems] == [FileNotFoundError] * 2

    def test_names_that_are_no_text(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_bytes(b"")
        with open(os.fsencode(tmp_path) + b"/\xff", "wb"):
            pass
        listing = storages.find([str(tmp_path)])
        assert [found.relative_path for found in listing.files] == ["a"]
        assert listing.problems == []
        assert listing.passed_over == {"name_not_utf8": (f"{tmp_path}/\\xff", 1)}
        [problem] = storages.find([os.fsdecode(os.fsencode(tmp_path) + b"/\xff")]).problems
        assert problem.path == f"{tmp_path}/\\xff"

    def test_what_is_no_file_is_counted(self, tmp_path: Path) -> None:
        folder = tmp_path / "in" / "deep"
        folder.mkdir(parents=True)
        (folder / "file").touch()
        (folder / "to_file").symlink_to("file")
        (folder / "to_folder").symlink_to(tmp_path)
        for name, goal in (("nothing", "none"), ("itself", "itself"), ("below", "file/below")):
            (folder / name).symlink_to(goal)
        (folder / "null").symlink_to("/dev/null")
        os.mkfifo(folder / "pipe")
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(os.path.relpath(folder / "socket"))
        expected = {"dangling_link": 3, "device": 1, "link_to_folder": 1, "pipe": 1, "socket": 1}
        for source in ("in", "in/deep", "in/**"):
            listing = storages.find([str(tmp_path / source)])
            names = [Path(found.path).name for found in listing.files]
            assert (names, listing.problems) == (["file", "to_file"], [])
            counts = {reason: count for reason, (_, count) in listing.passed_over.items()}
            if source == "in/**":  # a folder that a link leads to is only looked at
                counts["link_to_folder"] = 1
            assert counts == expected
        for name in ("nothing", "pipe", "socket"):  # by their names they are failures
            assert len(storages.find([str(folder / name)]).problems) == 1

    def test_names_with_a_globs_characters(self, tmp_path: Path) -> None:
        (tmp_path / "a[1]*.csv").write_bytes(b"")
        assert len(storages.find([str(tmp_path / "a[1]*.csv")]).files) == 1


def test_copying_ranges_without_the_kernels_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = os.urandom(3_000_000)
    (tmp_path / "a").write_bytes(data)
    for with_help in (True, False):
        if not with_help:
            monkeypatch.delattr(os, "copy_file_range", raising=False)
        with (tmp_path / "b").open("wb") as target:
            files.copy_range(str(tmp_path / "a"), target.fileno(), 100, 2_500_000)
        assert (tmp_path / "b").read_bytes()[100:] == data[100:2_500_100]
        with (tmp_path / "b").open("wb") as target, pytest.raises(OSError, match="ends early"):
            files.copy_range(str(tmp_path / "a"), target.fileno(), 0, len(data) + 1)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kms.local.passphrase", "marker"),
        ("encryption.kms.key.a", "marker"),
        ("s3.secret-access-key", "marker"),
        ("auth", '{"type": "basic", "basic": {"username": "u", "password": "marker"}}'),
    ],
)
def test_a_secret_does_not_travel(name: str, value: str) -> None:
    with pytest.raises(KmsConfigurationError, match=name) as caught:
        KmsConfig({"encryption.kms-type": "local", name: value})
    assert "marker" not in str(caught.value)


class TestElsewhere:
    """A file system of fsspec's, and one whose names do not say which host is meant."""

    @pytest.fixture
    def fs(self) -> Any:
        fsspec = pytest.importorskip("fsspec")
        fs = fsspec.filesystem("memory")
        fs.pipe("/lake[1]/.ags1-ab.tmp/1", b"new")
        yield fs
        fs.store.clear()
        fs.pseudo_dirs[:] = [""]

    def row(self, *, name: str = "f", **more: object) -> Row:
        root = "memory:///lake[1]"
        values = {"target": f"{root}/{name}", "attempt": f"{root}/.ags1-ab.tmp/1", "job_id": "ab"}
        return row(Path("f"))._replace(**(values | more))  # type: ignore[arg-type]

    @pytest.mark.parametrize("replaces", [False, True])
    def test_a_name_is_given(self, fs: Any, replaces: bool) -> None:
        if replaces:
            fs.pipe("/lake[1]/f", b"old")
        wanted = self.row(replaces=replaces)
        assert not has_its_name(wanted)
        for again in (False, True):
            assert published([wanted], again=again) == [wanted]
            assert fs.find("/lake[1]") == ["/lake[1]/f"]
            assert fs.cat_file("/lake[1]/f") == b"new"
        assert has_its_name(wanted)

    def test_a_copy_that_fails_leaves_the_old_file(
        self, fs: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fs.pipe("/lake[1]/f", b"old")
        wanted = self.row(replaces=True)
        monkeypatch.setattr(type(fs), "cp_file", _throttled)
        with pytest.raises(OSError, match="throttled"):
            published([wanted], again=True)
        assert published([wanted])[0].status == FAILED
        assert fs.cat_file("/lake[1]/f") == b"old"

    def test_a_move_that_fails_loses_nothing(
        self, fs: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Of a file system that moves nothing over what is there."""
        fs.pipe("/lake[1]/f", b"old")
        wanted = self.row(replaces=True)
        with monkeypatch.context() as patch:
            patch.setattr(type(fs), "mv", _throttled)
            with pytest.raises(UnknownOutcomeError):
                published([wanted])
            with pytest.raises(OSError, match="throttled"):
                published([wanted], again=True)
        assert published([wanted], again=True) == [wanted]
        assert fs.cat_file("/lake[1]/f") == b"new"

    def test_a_copy_that_cannot_be_cleaned_up_after(
        self, fs: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(type(fs), "rm_file", _throttled)
        wanted = self.row()
        assert published([wanted]) == [wanted]
        assert published([wanted], again=True) == [wanted]
        assert fs.cat_file("/lake[1]/f") == b"new"

    def test_what_never_moved_failed(self, fs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(type(fs), "cp_file", _throttled)
        [settled] = published([self.row()])
        assert (settled.status, settled.error) == (FAILED, "throttled")
        assert settled.key_metadata

    @pytest.mark.parametrize(
        ("there", "ours"), [(b"ne", True), (b"", True), (b"no", False), (b"old", False)]
    )
    def test_a_move_that_was_cut_short(self, fs: Any, there: bytes, ours: bool) -> None:
        fs.pipe("/lake[1]/f", there)
        [settled] = published([self.row()], again=True)
        assert settled.error_kind == (None if ours else "FileExistsError")
        assert fs.cat_file("/lake[1]/f") == (b"new" if ours else there)

    def test_a_move_over_a_target_that_says_nothing(
        self, fs: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As HDFS: a rename over a file does nothing, and WebHDFS of fsspec does not say so."""

        def move(self: Any, source: str, target: str) -> None:
            if not self.exists(target):
                self.pipe(target, self.cat_file(source))
                self.rm_file(source)

        monkeypatch.setattr(type(fs), "mv", move)
        fs.pipe("/lake[1]/f", b"older")
        wanted = self.row(replaces=True)
        assert published([wanted]) == [wanted]
        assert fs.cat_file("/lake[1]/f") == b"new"
        assert not fs.exists("/lake[1]/.ags1-ab.tmp/1")

    @pytest.mark.parametrize("root", ["/lake", "/lake[1]"])
    def test_what_cannot_be_removed_is_tried_again(
        self, fs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, root: str
    ) -> None:
        fs.pipe("/lake/.ags1-ab.tmp/1", b"new")
        with open_ledger(str(tmp_path), writing=True) as ledger:
            ledger.begin("ab", f"memory://{root}")
            for name in ("rm_file", "info"):
                with monkeypatch.context() as patch:
                    patch.setattr(type(fs), name, _throttled)
                    settle_pending(ledger)
                assert ledger.killed()
            settle_pending(ledger)
            assert not ledger.killed()
        assert fs.find(root) == []

    def test_nothing_is_withdrawn_before_a_batch_is_settled(
        self, fs: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What is looked for again would pass for published where another file is as long."""
        fs.pipe({"/lake[1]/.ags1-ab.tmp/2": b"new", "/lake[1]/theirs": b"old"})
        other = self.row(name="theirs", attempt="memory:///lake[1]/.ags1-ab.tmp/2")
        for _ in range(2):
            with monkeypatch.context() as patch:
                patch.setattr(type(fs), "cp_file", _throttled)
                with pytest.raises(OSError, match="throttled"):
                    published([other, self.row()], again=True)
        settled = published([other, self.row()], again=True)
        assert [row.error_kind for row in settled] == ["FileExistsError", None]
        assert fs.cat_file("/lake[1]/theirs") == b"old"
        assert fs.cat_file("/lake[1]/f") == b"new"

    def test_a_store_that_cannot_be_reached(self, fs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        wanted = self.row()
        with monkeypatch.context() as patch:
            patch.setattr(type(fs), "info", _throttled)
            with pytest.raises(OSError, match="throttled"):
                published([wanted], again=True)
        assert published([wanted], again=True) == [wanted]

    @pytest.mark.parametrize(
        "attempt",
        [
            "memory:///precious",
            "memory:///other/.ags1-ab.tmp/1",
            "memory:///lake[1]/.ags1-ab.tmp/..",
            "memory:///lake[1]/.ags1-cd.tmp/1",
        ],
    )
    def test_no_other_file_is_moved_or_removed(self, fs: Any, attempt: str) -> None:
        for name in ("/precious", "/other/.ags1-ab.tmp/1", "/lake[1]/.ags1-cd.tmp/1"):
            fs.pipe(name, b"new")
        before = fs.find("/")
        [settled] = published([self.row(attempt=attempt)], again=True)
        assert settled.error_kind == "NothingStagedError"
        assert fs.find("/") == before

    @pytest.mark.parametrize("name", ["../precious", "a/../../precious", "./f", "a//f"])
    def test_no_file_is_moved_out_of_its_folder(self, fs: Any, name: str) -> None:
        """Some file systems, such as SFTP, follow ``..``."""
        before = fs.find("/")
        [settled] = published([self.row(name=name, replaces=True)], again=True)
        assert settled.error_kind == "NothingStagedError"
        assert fs.find("/") == before

    def test_a_host_stays_in_the_path(self, fs: Any) -> None:
        import fsspec
        from fsspec.implementations.memory import MemoryFileSystem
        from fsspec.utils import infer_storage_options

        class Cluster(MemoryFileSystem):  # type: ignore[misc]
            protocol = "cluster"

            @classmethod
            def _strip_protocol(cls, path: str) -> str:
                return str(infer_storage_options(path)["path"])

            def unstrip_protocol(self, name: str) -> str:
                return f"cluster://{self._strip_protocol(name)}"

        class Account(MemoryFileSystem):  # type: ignore[misc]
            protocol = "account"

            @classmethod
            def _get_kwargs_from_urls(cls, path: str) -> dict[str, str]:
                user, at, _ = path.removeprefix("account://").partition("@")
                return {"account": user} if at else {}

            @classmethod
            def _strip_protocol(cls, path: str) -> str:
                return "/" + path.removeprefix("account://").rpartition("@")[2].lstrip("/")

        for kind in (Cluster, Account):
            fsspec.register_implementation(kind.protocol, kind, clobber=True)
        fs.pipe("/in/a", b"a")
        assert storages.absolute("cluster://nn2:8020/in") == "cluster://nn2:8020/in"
        [found] = storages.find(["cluster://nn2:8020/in"]).files
        assert found.path == "cluster://nn2:8020/in/a"
        with pytest.raises(OSError, match="look elsewhere"):
            storages.absolute("account://me@root")
        [problem] = storages.find(["account://me@root"]).problems
        assert "look elsewhere" in str(problem.error)


def _throttled(*_: object, **__: object) -> None:
    raise OSError(errno.EIO, "throttled")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("https://user:marker@host/f", "password or a signature"),
        ("https://host/f?X-Amz-Signature=marker&x=1", "password or a signature"),
        ("HTTPS://host/f?sig=marker", "password or a signature"),
        ("simplecache::https://host/f?sig=marker", "another one inside"),
        ("zip://a/b::HTTPS://host/f.zip?key=marker", "another one inside"),
        ("zip://marker::/in/f.zip", "another one inside"),
        ("file::https://host/f?sig=marker", "another one inside"),
    ],
)
def test_a_url_with_a_secret_in_it(url: str, message: str) -> None:
    for call in (storages.open_storage, storages.absolute, lambda it: storages.find([it])):
        with pytest.raises(KmsConfigurationError, match=message) as caught:
            call(url)
        assert "marker" not in str(caught.value)


def test_colons_in_a_name(tmp_path: Path) -> None:
    for path in (f"{tmp_path}/a::b", f"file://{tmp_path}/a::b"):
        assert storages.absolute(path) == f"{tmp_path}/a::b"
    for url in ("memory:///in/a::b", "http://[::1]:80/a"):
        assert storages.absolute(url) == url


def test_what_changes_with_a_file() -> None:
    facts = {"name": "a", "size": 1, "type": "file"}
    assert version_of(facts) == ""
    for name in ("ETag", "mtime", "modificationTime", "modify", "Last-Modified", "Digest"):
        assert version_of(facts | {name: 7}) == "7"


def test_what_a_web_server_tells_of_a_file(tmp_path: Path) -> None:
    pytest.importorskip("aiohttp")
    (tmp_path / "a").write_bytes(b"12345")
    os.utime(tmp_path / "a", (86_400, 86_400))
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/a"
        [found] = storages.find([url]).files
        server.shutdown()
    assert (found.size, found.version) == (5, "Fri, 02 Jan 1970 00:00:00 GMT")


def test_what_a_row_calls_staged_is_of_its_own_job_and_in_the_targets_folder() -> None:
    name = ".ags1-ab-1.tmp"
    assert files.staged_of(f"{name}\t5-6", "ab") == (name, (5, 6))
    mark = ".ags1-ab-root.tmp"
    for path in ("thesis", f"../{name}", f"/in/{name}", f"{name}/..", mark):
        assert files.staged_of(f"{path}\t5-6", "ab") is None
    assert files.staged_of(name, "ab") is None
    assert files.staged_of(f"{name}\t5-6", "cd") is None


def test_the_commands_on_ledgers(tmp_path: Path) -> None:
    """Rows move from a folder to objects, to a Parquet file, and back."""

    def run(*words: str) -> Any:
        return CliRunner().invoke(app, ["spark", "ledger", *words])

    folder, objects = str(tmp_path / "ledger"), f"memory://{tmp_path.name}/ledger"
    exported = str(tmp_path / "rows.parquet")
    rows = [row(tmp_path / name) for name in "abc"]
    with open_ledger(folder, writing=True) as ledger:
        for part in (rows[:2], rows[2:]):
            ledger.settle(ledger.prepare(part), part)
        pending = ledger.prepare(rows[:1])
    for words in (("import", objects, folder), ("export", folder, exported)):
        refused = run(*words)
        assert refused.exit_code == 6
        assert "a job is writing, or was killed" in refused.output
    with open_ledger(folder, writing=True) as ledger:
        ledger.settle(pending, [rows[0]._replace(status=FAILED)])

    for copied, known in ((4, 0), (0, 4)):
        done = run("import", objects, folder, "--json")
        assert done.exit_code == 0, done.output
        facts = json.loads(done.output)
        assert (facts["rows"], facts["known"]) == (copied, known)
    assert run("export", objects, exported).exit_code == 0
    assert stat.S_IMODE(os.stat(exported).st_mode) == 0o600
    assert run("export", objects, exported).exit_code == 6
    assert run("export", objects, exported, "--force").exit_code == 0
    assert run("export", objects, "elsewhere").exit_code == 2
    assert pq.read_table(exported, columns=["target"]).num_rows == 4
    back = str(tmp_path / "back")
    assert run("import", back, exported).exit_code == 0
    with (
        open_ledger(folder, writing=False) as old,
        open_ledger(objects, writing=False) as new,
        open_ledger(back, writing=False) as copy,
    ):
        assert old.rows() == new.rows() == copy.rows()
    # Whoever keeps a copy must not take it for one of the keys that were wrapped again.
    with open_ledger(objects, writing=True) as ledger:
        [number] = ledger.numbers()
        ledger.replace_all({number: [one._replace(key_metadata="again") for one in ledger.rows()]})
    for words in (
        ("import", back, objects),
        ("import", objects, back),
        ("import", objects, exported),
    ):
        refused = run(*words)
        assert refused.exit_code == 6
        assert "was rewrapped: copy into an empty ledger" in refused.output
    assert run("import", str(tmp_path / "new"), objects).exit_code == 0

    told = json.loads(run("info", objects, "--json").output)
    assert told["rows"] == {"encrypt done": 3, "encrypt failed": 1}
    assert (told["encrypted_files"], told["running"]) == (3, {})
    with open_ledger(objects, writing=True) as job:
        job.begin(JOB, "/a")
        assert f"job {JOB} in /a runs in process {os.getpid()} of" in run("info", objects).output
        assert "has no killed job" in run("forget", objects, JOB).output
    assert f"job {JOB} in /a has not ended" in run("info", objects).output
    assert run("forget", objects, JOB).exit_code == 0
    refused = run("forget", objects, JOB, "--json")
    error = json.loads(refused.stdout)["error"]
    assert (refused.exit_code, error["exit_code"], error["kind"]) == (2, 2, "UsageError")
    other = str(tmp_path / "other")
    with open_ledger(other, writing=True) as ledger:
        newer = [rows[0]._replace(finished_ms=99)]
        ledger.settle(ledger.prepare(newer), newer)
    refused = run("import", other, objects)
    assert refused.exit_code == 6
    assert "has a newer row" in refused.output


def test_the_rows_of_a_table_that_was_a_ledger(tmp_path: Path) -> None:
    """Its rows have no order but that of two columns."""
    with pytest.raises(OSError, match="ags1 table scan TABLE --catalog CATALOG --filter"):
        open_ledger("iceberg:prod.ops.ledger", writing=False)
    rows = [row(tmp_path / name, finished_ms=at) for at, name in enumerate("abcd")]
    table = rows_to_table(rows).append_column("entry", pa.array(["settled"] * 4))
    table = table.append_column("batch", pa.array([1, 1, 2, 12], pa.int64()))
    table = table.append_column("number", pa.array([0, 1, 0, 0], pa.int64()))
    wide = table.cast(
        pa.schema(
            [
                field.with_type(pa.large_string()) if field.type == pa.string() else field
                for field in table.schema
            ]
        )
    )
    path = str(tmp_path / "rows.parquet")
    pq.write_table(wide.take([3, 1, 2, 0]), path)
    with open_ledger(tmp_path / "ledger", writing=True) as ledger:
        assert copy_rows(ParquetRows(path), ledger).rows == 4
        assert ledger.rows() == rows
    pq.write_table(wide.drop_columns("batch"), path)
    with pytest.raises(FormatError, match="does not have the columns"):
        next(ParquetRows(path).batches())


def with_hmacs(path: Path) -> None:
    """Give a Parquet file of rows the column that 0.2.0 had."""
    table = pq.read_table(path)
    hmacs = pa.array([bytes(32)] * table.num_rows, pa.binary())
    at = table.column_names.index("attempt")
    pq.write_table(table.add_column(at, "plaintext_hmac", hmacs), path)


def test_ledgers_with_a_column_of_0_2_0(tmp_path: Path) -> None:
    """They are read, merged with new ones, exported and imported, and the column goes."""
    folder, exported = tmp_path / "ledger", tmp_path / "rows.parquet"
    rows = [row(tmp_path / name, finished_ms=at) for at, name in enumerate("abc")]
    with open_ledger(folder, writing=True) as ledger:
        for one in rows[:2]:
            ledger.settle(ledger.prepare([one]), [one])
        packs = list(folder.glob("pack-*"))
        for path in packs:
            with_hmacs(path)
        ledger.settle(ledger.prepare(rows[2:]), rows[2:])
        assert (len(packs), ledger.rows()) == (2, rows)
        export_rows(ledger, str(exported))
        assert ledger.compact() == (3, 1)
        assert ledger.rows() == rows
    [merged] = folder.glob("pack-*")
    for path in (exported, merged):
        assert "plaintext_hmac" not in pq.read_schema(path).names
    with_hmacs(exported)
    with open_ledger(tmp_path / "copy", writing=True) as copy:
        assert copy_rows(ParquetRows(str(exported)), copy).rows == 3
        assert copy.rows() == rows


@pytest.mark.parametrize(
    ("version", "is_whole"),
    [
        ("2026-01-31 23:59:59+00:00", True),
        ("2026-01-31 23:59:59.250000+00:00", False),
        ("2026-01-31T23:59:59Z", True),
        ("1769903999", True),
        ("1769903999.0", True),
        ("1769903999.25", False),
        ("20260131235959", True),
        ("Sat, 31 Jan 2026 23:59:59 GMT", True),
        ('"9b2cf535f27731c974343645a3985328"', False),
        ("", False),
    ],
)
def test_a_time_in_whole_seconds_is_sure_later(version: str, is_whole: bool) -> None:
    second = 1769903999  # 2026-01-31 23:59:59 UTC, by GNU date
    for after, left in ((0.0, 2.0), (0.5, 1.5), (1.5, 0.5), (2.0, 0.0), (3600.0, 0.0), (-0.5, 2.0)):
        assert unsettled_seconds(version, second + after) == (left if is_whole else 0.0)


def test_a_source_that_is_replaced_within_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read has the version that the ledger gets: the content cannot change any more
    without the version."""
    clock = [1000.2]
    contents = {1000.1: b"old", 1000.7: b"new"}

    class Server:
        """Replaces a file; tells its time in whole seconds."""

        def read(self, path: str, begin: int, end: int) -> bytes:
            return self.now()[begin:end]

        def now(self) -> bytes:
            return contents[max(when for when in contents if when <= clock[0])]

        def status(self, path: str) -> Status:
            return Status(len(self.now()), "1000")

    def sleep(seconds: float) -> None:
        clock[0] += seconds

    fake = SimpleNamespace(time=lambda: clock[0], sleep=sleep)
    monkeypatch.setattr(remote_storage, "time", fake)
    source = RemoteSource(Server(), "x")  # type: ignore[arg-type]
    assert source.read(0, 3) == b"new"
    source.check_unchanged()


def test_arrow_holds_no_object_of_python_while_a_ledger_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One of its threads may drop the file while the interpreter ends, which aborts the process."""
    data = to_parquet(rows_to_table([]))
    before, held = sys.getrefcount(data), []

    def opened(source: pa.NativeFile) -> pq.ParquetFile:
        held.append(sys.getrefcount(data))
        return real(source)

    real = pq.ParquetFile
    monkeypatch.setattr("ags1.files.ledger.rows.pq.ParquetFile", opened)
    assert read_table(data, ["target"], "ledger").num_rows == 0
    assert held[0] - before <= 1  # the parameter

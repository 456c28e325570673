"""The ledger and the cutting of the work, without Spark."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ags1 import layout
from ags1.errors import FormatError, KmsConfigurationError
from ags1.spark.bulk import planning
from ags1.spark.bulk.publishing import settle_pending
from ags1.spark.keys import KmsConfig
from ags1.spark.ledger import DONE, ENCRYPT, FAILED, Ledger, Row
from ags1.spark.storage import choice as storages
from ags1.spark.storage import local_files as files

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
        "plaintext_hmac": None,
        "attempt": attempt,
        "replaces": False,
        "job_id": JOB,
        "finished_ms": 4,
    }
    return Row(**(values | more))  # type: ignore[arg-type]


def staged(target: Path, data: bytes = b"new") -> str:
    """Stage a file and return its name."""
    path = files.staged_path(str(target), JOB, f"1-{target.name}")
    Path(path).write_bytes(data)
    return os.path.basename(path)


def test_rows_come_back_and_the_newest_done_one_counts(tmp_path: Path) -> None:
    old, failed = row(tmp_path / "a"), row(tmp_path / "a", status=FAILED)
    new, other = row(tmp_path / "a", source_size=9), row(tmp_path / "b")
    with Ledger(str(tmp_path / "ledger"), writing=True) as ledger:
        for rows in ([old, other], [new], [failed]):
            ledger.settle(ledger.prepare(rows), rows)
        assert ledger.rows() == [old, other, new, failed]
        assert ledger.done(ENCRYPT) == {new.target: new, other.target: other}
    with Ledger(str(tmp_path / "ledger"), writing=True) as ledger:  # goes on numbering
        ledger.settle(ledger.prepare([old]), [old])
        assert ledger.done(ENCRYPT)[old.target] == old


def test_parquet_readers_see_settled_rows_only(tmp_path: Path) -> None:
    with Ledger(str(tmp_path), writing=True) as ledger:
        batch = ledger.prepare([row(tmp_path / "a")])
        ledger.begin(JOB, str(tmp_path))
        assert ledger.rows() == []
        assert ledger.rows(pending=True) == [row(tmp_path / "a")]
        ledger.settle(batch, batch.rows)
    assert pq.read_table(tmp_path).num_rows == 1


def test_one_job_at_a_time_writes(tmp_path: Path) -> None:
    with Ledger(str(tmp_path), writing=True):
        with pytest.raises(BlockingIOError, match="another job"):
            Ledger(str(tmp_path), writing=True)
        Ledger(str(tmp_path), writing=False).close()
    Ledger(str(tmp_path), writing=True).close()


@pytest.mark.parametrize("data", [b"", b"PAR1PAR1", b"no Parquet file at all"])
def test_a_damaged_ledger_is_told(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "batch-000000000001.parquet").write_bytes(data)
    with Ledger(str(tmp_path), writing=False) as ledger, pytest.raises(FormatError, match="ledger"):
        ledger.rows()


class TestAfterAKill:
    """What was pending is brought to its end, wherever the kill came."""

    def settle(self, folder: Path, *rows: Row) -> list[Row]:
        with Ledger(str(folder / "ledger"), writing=True) as ledger:
            ledger.begin(JOB, str(folder))
            ledger.prepare(list(rows))
        with Ledger(str(folder / "ledger"), writing=True) as ledger:
            settle_pending(ledger)
            assert not ledger.killed()
            assert not list(ledger.pending())
            left = [path for path in folder.rglob("*") if files.is_staged(path.name, JOB)]
            assert left == []
            return ledger.rows()

    def test_before_the_first_name(self, tmp_path: Path) -> None:
        wanted = row(tmp_path / "a", attempt=staged(tmp_path / "a"))
        assert self.settle(tmp_path, wanted) == [wanted]
        assert (tmp_path / "a").read_bytes() == b"new"

    def test_after_the_last_name(self, tmp_path: Path) -> None:
        wanted = row(tmp_path / "a", attempt=staged(tmp_path / "a"))
        assert wanted.attempt
        (tmp_path / wanted.attempt).rename(tmp_path / "a")
        assert self.settle(tmp_path, wanted) == [wanted]

    def test_between_the_link_and_the_unlink(self, tmp_path: Path) -> None:
        wanted = row(tmp_path / "a", attempt=staged(tmp_path / "a"))
        assert wanted.attempt
        os.link(tmp_path / wanted.attempt, tmp_path / "a")
        assert self.settle(tmp_path, wanted) == [wanted]
        assert (tmp_path / "a").read_bytes() == b"new"

    def test_an_older_target_is_replaced(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_bytes(b"old")
        wanted = row(tmp_path / "a", attempt=staged(tmp_path / "a"), replaces=True)
        assert self.settle(tmp_path, wanted) == [wanted]
        assert (tmp_path / "a").read_bytes() == b"new"

    def test_an_older_target_of_the_same_size_is_no_new_one(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_bytes(b"old")
        name = staged(tmp_path / "a")
        now_ms = time.time_ns() // 1_000_000 + 60_000
        wanted = row(tmp_path / "a", attempt=name, replaces=True, finished_ms=now_ms)
        (tmp_path / name).unlink()
        assert self.settle(tmp_path, wanted)[0].status == FAILED

    def test_an_older_target_that_was_replaced(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_bytes(b"old")
        name = staged(tmp_path / "a")
        now_ms = time.time_ns() // 1_000_000
        wanted = row(tmp_path / "a", attempt=name, replaces=True, finished_ms=now_ms)
        (tmp_path / name).rename(tmp_path / "a")
        assert self.settle(tmp_path, wanted) == [wanted]

    def test_somebody_elses_target_stays(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_bytes(b"old")
        [settled] = self.settle(tmp_path, row(tmp_path / "a", attempt=staged(tmp_path / "a")))
        assert (settled.status, settled.error_kind) == (FAILED, "FileExistsError")
        assert settled.key_metadata is None
        assert (tmp_path / "a").read_bytes() == b"old"

    def test_a_half_written_file_gets_no_name(self, tmp_path: Path) -> None:
        wanted = row(tmp_path / "a", attempt=staged(tmp_path / "a", b"ne"))
        assert self.settle(tmp_path, wanted)[0].status == FAILED
        assert not (tmp_path / "a").exists()

    def test_a_staged_file_that_is_gone(self, tmp_path: Path) -> None:
        name = os.path.basename(files.staged_path(str(tmp_path / "a"), JOB, "1"))
        assert self.settle(tmp_path, row(tmp_path / "a", attempt=name))[0].status == FAILED

    def test_no_other_file_is_moved_by_a_ledger(self, tmp_path: Path) -> None:
        (tmp_path / "mine").write_bytes(b"new")
        settled = self.settle(tmp_path, row(tmp_path / "a", attempt="mine"))
        assert settled[0].status == FAILED
        assert not (tmp_path / "a").exists()

    def test_what_was_staged_and_not_pending_goes(self, tmp_path: Path) -> None:
        staged(tmp_path / "b")
        theirs = tmp_path / ".ags1-ffffffffffff-1.tmp"
        theirs.write_bytes(b"of another job")
        self.settle(tmp_path)
        assert theirs.exists()


@given(
    st.lists(st.integers(0, 200 << 20), max_size=60),
    st.integers(1, 64),
    st.integers(1 << 20, 64 << 20),
)
def test_every_block_is_in_one_piece(sizes: list[int], cores: int, cost: int) -> None:
    items = [planning.Item(number, "", "", "", size, 0, size) for number, size in enumerate(sizes)]
    seen: dict[int, list[planning.Piece]] = {}
    for wave in planning.waves(items, cores, cost):
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
            assert 0 < piece.block_count <= cost // planning.BLOCK_SIZE + 1
            ends.append(piece.first_block + piece.block_count)
        assert ends[-1] == layout.block_count(sizes[number])


def test_tasks_are_few_and_even() -> None:
    small = [planning.Item(n, "", "", "", 10_000, 0, 10_000) for n in range(20_000)]
    cost = planning.task_cost(small, 2)
    tasks = [task for wave in planning.waves(small, 2, cost) for task in wave.tasks]
    assert 6 <= len(tasks) <= 16
    assert max(map(len, tasks)) < 2 * 20_000 / len(tasks)
    for sizes in ([2 << 30], [32 << 20] * 64, [5 << 30] + [10_000] * 1000):
        items = [planning.Item(n, "", "", "", size, 0, size) for n, size in enumerate(sizes)]
        cost = planning.task_cost(items, 2)
        tasks = [task for wave in planning.waves(items, 2, cost) for task in wave.tasks]
        loads = [sum(piece.cost + planning.FILE_COST for piece in task) for task in tasks]
        assert len(tasks) >= 6
        assert max(loads) < 1.5 * cost


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
        assert found("", passed_over=[str(tmp_path / "a" / "b")]) == ["a/1.csv", "c/3.txt"]

    def test_what_is_missing_is_told(self, tmp_path: Path) -> None:
        listing = storages.find([str(tmp_path / "none"), str(tmp_path / "*.csv"), str(tmp_path)])
        assert listing.files == []
        assert [type(problem.error) for problem in listing.problems] == [FileNotFoundError] * 2

    def test_names_that_are_no_text(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_bytes(b"")
        with open(os.fsencode(tmp_path) + b"/\xff", "wb"):
            pass
        listing = storages.find([str(tmp_path)])
        assert [found.relative_path for found in listing.files] == ["a"]
        assert [problem.path for problem in listing.problems] == [f"{tmp_path}/\\xff"]

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
    "name", ["kms.local.passphrase", "encryption.kms.key.a", "s3.secret-access-key"]
)
def test_a_secret_does_not_travel(name: str) -> None:
    with pytest.raises(KmsConfigurationError, match=name) as caught:
        KmsConfig({"encryption.kms-type": "local", name: "marker"})
    assert "marker" not in str(caught.value)

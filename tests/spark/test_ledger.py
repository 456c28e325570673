"""The ledger and the cutting of the work, without Spark."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ags1 import layout
from ags1.errors import FormatError, KmsAccessDeniedError, KmsConfigurationError
from ags1.spark.bulk import planning
from ags1.spark.bulk.publishing import has_its_name, published, settle_pending
from ags1.spark.keys import KmsConfig
from ags1.spark.ledger import DONE, ENCRYPT, FAILED, SCHEMA, Ledger, Row
from ags1.spark.storage import choice as storages
from ags1.spark.storage import local_files as files
from ags1.spark.storage.local import LOCAL
from ags1.spark.storage.protocol import Staging, UnknownOutcomeError, version_of

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
    """Stage a file and return what a row has of it."""
    path = files.staged_path(str(target), JOB, f"1-{target.name}")
    Path(path).write_bytes(data)
    return files.attempt(path, str(target.parent))


def path_of(row: Row) -> Path:
    """Return the path of what a row has staged."""
    found = files.staged_of(row.attempt or "", JOB)
    assert found is not None
    return Path(row.target).parent / found[0]


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


@pytest.mark.parametrize("mode", [0o770, 0o702])
def test_a_folder_that_others_may_write_to(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "ledger"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(KmsAccessDeniedError, match="others may write to this ledger"):
        Ledger(str(folder), writing=True)
    assert not list(folder.iterdir())
    Ledger(str(folder), writing=False).close()
    folder.chmod(0o755)
    Ledger(str(folder), writing=True).close()


def test_what_a_stranger_wrote_there(tmp_path: Path) -> None:
    deep = "[" * 200_000
    with Ledger(str(tmp_path), writing=True) as ledger:
        for name in (f"_job-{JOB}.json", f"_staged-{JOB}-000001-0.json"):
            (tmp_path / name).write_text(deep)
        assert ledger.killed() == {}
        assert ledger.staged(JOB) == []


def test_a_note_of_many_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ags1.spark.ledger._STAGED_IN_A_NOTE", 100)
    monkeypatch.setattr("ags1.spark.ledger._MAX_STAGED_SIZE", 4096)
    begun = {f"s3://bucket/{number}": "upload" for number in range(1001)}
    with Ledger(str(tmp_path), writing=True) as ledger:
        ledger.note_staged(JOB, 1, begun)
        ledger.note_staged(JOB, 2, {"s3://bucket/x": "upload"})
        assert dict(ledger.staged(JOB)) == begun | {"s3://bucket/x": "upload"}
        ledger.forget_staged(JOB, 1)
        assert ledger.staged(JOB) == [("s3://bucket/x", "upload")]
        ledger.end(JOB)
        assert ledger.staged(JOB) == []


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
        planning.Item(number, source, f"{root}/{name}", name, 1, "", 1)
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
        monkeypatch.setattr("ags1.spark.ledger._MAX_ROWS", 1)
    rows = [row(tmp_path / "a")._asdict() | change for _ in range(2)]
    table = pa.Table.from_pylist(rows)
    for number, field in enumerate(SCHEMA):
        if field.name not in change:
            column = table.column(field.name).cast(field.type)
            table = table.set_column(number, field, column)
        elif change[field.name] is None:
            table = table.set_column(number, field, pa.nulls(2, field.type))
    pq.write_table(table, tmp_path / "batch-000000000001.parquet")
    with Ledger(str(tmp_path), writing=False) as ledger:
        with pytest.raises(FormatError, match=said):
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
        wanted = row(tmp_path / "a", attempt=f"{name}\t1")
        assert self.settle(tmp_path, wanted)[0].status == FAILED

    def test_a_folder_that_is_not_mounted_yet(self, tmp_path: Path) -> None:
        (tmp_path / "out").mkdir()
        wanted = row(tmp_path / "out" / "a", attempt=staged(tmp_path / "out" / "a"))
        path_of(wanted).rename(tmp_path / "out" / "a")
        (tmp_path / "out").rename(tmp_path / "elsewhere")
        with pytest.raises(FileNotFoundError, match="mount it"):
            self.settle(tmp_path, wanted)
        (tmp_path / "elsewhere").rename(tmp_path / "out")
        with Ledger(str(tmp_path / "ledger"), writing=True) as ledger:
            settle_pending(ledger)
            assert ledger.rows() == [wanted]

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
        inode = (tmp_path / "theirs" / "precious").stat().st_ino
        planted = attempt.format(tmp_path, tmp_path.name, inode, JOB)
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


class TestElsewhere:
    """A file system of fsspec's, and one whose names do not say which host is meant."""

    @pytest.fixture
    def fs(self) -> Any:
        fsspec = pytest.importorskip("fsspec")
        fs = fsspec.filesystem("memory")
        fs.pipe("/root[1]/.ags1-ab.tmp/1", b"new")
        yield fs
        fs.store.clear()
        fs.pseudo_dirs[:] = [""]

    def row(self, *, name: str = "f", **more: object) -> Row:
        root = "memory:///root[1]"
        values = {"target": f"{root}/{name}", "attempt": f"{root}/.ags1-ab.tmp/1", "job_id": "ab"}
        return row(Path("f"))._replace(**(values | more))  # type: ignore[arg-type]

    @pytest.mark.parametrize("replaces", [False, True])
    def test_a_name_is_given(self, fs: Any, replaces: bool) -> None:
        if replaces:
            fs.pipe("/root[1]/f", b"old")
        wanted = self.row(replaces=replaces)
        assert not has_its_name(wanted)
        for again in (False, True):
            assert published([wanted], again=again) == [wanted]
            assert fs.find("/root[1]") == ["/root[1]/f"]
            assert fs.cat_file("/root[1]/f") == b"new"
        assert has_its_name(wanted)

    def test_a_copy_that_fails_leaves_the_old_file(
        self, fs: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fs.pipe("/root[1]/f", b"old")
        wanted = self.row(replaces=True)
        monkeypatch.setattr(type(fs), "cp_file", _throttled)
        with pytest.raises(OSError, match="throttled"):
            published([wanted], again=True)
        assert published([wanted])[0].status == FAILED
        assert fs.cat_file("/root[1]/f") == b"old"

    def test_a_move_that_fails_loses_nothing(
        self, fs: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Of a file system that moves nothing over what is there."""
        fs.pipe("/root[1]/f", b"old")
        wanted = self.row(replaces=True)
        with monkeypatch.context() as patch:
            patch.setattr(type(fs), "mv", _throttled)
            with pytest.raises(UnknownOutcomeError):
                published([wanted])
            with pytest.raises(OSError, match="throttled"):
                published([wanted], again=True)
        assert published([wanted], again=True) == [wanted]
        assert fs.cat_file("/root[1]/f") == b"new"

    def test_a_copy_that_cannot_be_cleaned_up_after(
        self, fs: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(type(fs), "rm_file", _throttled)
        wanted = self.row()
        assert published([wanted]) == [wanted]
        assert published([wanted], again=True) == [wanted]
        assert fs.cat_file("/root[1]/f") == b"new"

    def test_what_never_moved_failed(self, fs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(type(fs), "cp_file", _throttled)
        [settled] = published([self.row()])
        assert (settled.status, settled.error) == (FAILED, "throttled")
        assert settled.key_metadata

    @pytest.mark.parametrize(
        ("there", "ours"), [(b"ne", True), (b"", True), (b"no", False), (b"old", False)]
    )
    def test_a_move_that_was_cut_short(self, fs: Any, there: bytes, ours: bool) -> None:
        fs.pipe("/root[1]/f", there)
        [settled] = published([self.row()], again=True)
        assert settled.error_kind == (None if ours else "FileExistsError")
        assert fs.cat_file("/root[1]/f") == (b"new" if ours else there)

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
            "memory:///root[1]/.ags1-ab.tmp/..",
            "memory:///root[1]/.ags1-cd.tmp/1",
        ],
    )
    def test_no_other_file_is_moved_or_removed(self, fs: Any, attempt: str) -> None:
        for name in ("/precious", "/other/.ags1-ab.tmp/1", "/root[1]/.ags1-cd.tmp/1"):
            fs.pipe(name, b"new")
        before = fs.find("/")
        [settled] = published([self.row(attempt=attempt)], again=True)
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
    "url", ["https://user:marker@host/f", "https://host/f?X-Amz-Signature=marker&x=1"]
)
def test_a_url_with_a_secret_in_it(url: str) -> None:
    for call in (storages.storage_of, storages.absolute, lambda it: storages.find([it])):
        with pytest.raises(KmsConfigurationError, match="password or a signature") as caught:
            call(url)
        assert "marker" not in str(caught.value)


def test_what_changes_with_a_file() -> None:
    facts = {"name": "a", "size": 1, "type": "file"}
    assert version_of(facts) == ""
    for name in ("ETag", "mtime", "modificationTime", "modify"):
        assert version_of(facts | {name: 7}) == "7"


def test_what_a_row_calls_staged_is_of_its_own_job_and_in_the_targets_folder() -> None:
    name = ".ags1-ab-1.tmp"
    assert files.staged_of(f"{name}\t5", "ab") == (name, 5)
    for attempt in (name, "thesis\t5", f"../{name}\t5", f"/in/{name}\t5", f"{name}/..\t5"):
        assert files.staged_of(attempt, "ab") is None
    assert files.staged_of(f"{name}\t5", "cd") is None

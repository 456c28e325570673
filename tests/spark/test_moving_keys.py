"""Keys that move between ledgers and sidecars, and ledgers whose batches are merged. No Spark."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import ags1
from ags1.cli.app import app
from ags1.engine import oneshot
from ags1.files.jobs.publishing import clear, published, settle_pending
from ags1.files.jobs.sidecars import rows_from_sidecars, write_sidecars
from ags1.files.keys import FileKeys, KmsConfig, as_text
from ags1.files.ledger import ENCRYPT, FAILED, JobNote, Ledger, Row, open_ledger
from ags1.files.ledger.copying import copy_rows
from ags1.files.plan.patterns import Patterns
from ags1.files.plan.selection import Selection
from ags1.files.staging import marks
from ags1.files.staging.local import LOCAL
from ags1.keys import Keychain
from ags1.keys.keychain import FILE_KEY_SIZE
from ags1.keys.sidecar import Sidecar, read_sidecar, sidecar_path
from ags1.kms import LocalKms

from .conftest import LedgerPlace
from .test_ledger import JOB, _Killed, _Kills, row, staged


@pytest.fixture
def sealed(tmp_path: Path, kms: KmsConfig) -> dict[Path, tuple[bytes, Row]]:
    """Encrypted files: their plaintexts, and the rows that a job would have for them."""
    keys = FileKeys.for_sealing(kms, "default")
    made = {}
    for name, size in (("a", 0), ("sub/b", 10), ("sub/c", 3_000_000)):
        plain = os.urandom(size)
        data, km = oneshot.encrypt(plain, key_size=FILE_KEY_SIZE)
        path = tmp_path / "sealed" / f"{name}.ags1"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        document = keys.wrap(km)
        facts: dict[str, Any] = {
            "relative_path": name,
            "source_size": size,
            "target_size": len(data),
            "key_metadata": as_text(document),
            "key_id": document["key-id"],
        }
        made[path] = plain, row(path, **facts)
    return made


def fill(ledger: Ledger, rows: list[Row]) -> None:
    ledger.settle(ledger.prepare(rows), rows)


def check(sealed: dict[Path, tuple[bytes, Row]], keyring: Path) -> None:
    """Each file opens by its sidecar alone."""
    keychain = Keychain(LocalKms(str(keyring)))
    for path, (plain, _) in sealed.items():
        km = keychain.open(sidecar_path(str(path)), str(path))
        with ags1.open(str(path), km=km) as file:
            assert file.read() == plain


def test_sidecars_from_a_ledger_and_back(
    tmp_path: Path,
    place: LedgerPlace,
    keyring: Path,
    sealed: dict[Path, tuple[bytes, Row]],
) -> None:
    rows = [row for _, row in sealed.values()]
    missing = row(tmp_path / "sealed" / "gone.ags1", key_metadata=rows[0].key_metadata)
    with place.open() as ledger:
        fill(ledger, [*rows, missing])
        moved = write_sidecars(ledger)
        assert (moved.done, moved.unchanged) == (3, 0)
        assert [failure.kind for failure in moved.failures] == ["FileNotFoundError"]
        assert not Path(sidecar_path(missing.target)).exists()
        assert write_sidecars(ledger).unchanged == 3
    check(sealed, keyring)
    with open_ledger(str(tmp_path / "new"), writing=True) as rebuilt:
        for expected in ((3, 0), (0, 3)):
            moved = rows_from_sidecars(rebuilt, [str(tmp_path / "sealed")])
            assert (moved.done, moved.unchanged, moved.failures) == (*expected, [])
        found = rebuilt.done(ENCRYPT)
        columns = ("relative_path", "source_size", "target_size", "key_id", "master_key_id")
        for row_before in rows:
            after = found[row_before.target]
            assert [getattr(after, name) for name in columns] == [
                getattr(row_before, name) for name in columns
            ]
            assert json.loads(after.key_metadata or "") == json.loads(row_before.key_metadata or "")


def test_a_sidecar_keeps_the_keys_of_an_older_content(
    tmp_path: Path, kms: KmsConfig, keyring: Path, sealed: dict[Path, tuple[bytes, Row]]
) -> None:
    path, (_, row_of_file) = next(iter(sealed.items()))
    older = FileKeys.for_sealing(kms, "default").wrap(oneshot.encrypt(b"older")[1])
    Path(sidecar_path(str(path))).write_text(as_text(older))
    with open_ledger(str(tmp_path / "ledger"), writing=True) as ledger:
        fill(ledger, [row for _, row in sealed.values()])
        assert write_sidecars(ledger).done == 3
        sidecar = read_sidecar(sidecar_path(str(path)))
        assert [key.key_id for key in sidecar.file_keys] == [row_of_file.key_id, older["key-id"]]
        check(sealed, keyring)
        Path(sidecar_path(str(path))).write_bytes(b"somebody's notes")
        [failure] = write_sidecars(ledger).failures
        assert (failure.path, failure.kind) == (str(path), "KeyMetadataError")
        assert Path(sidecar_path(str(path))).read_bytes() == b"somebody's notes"


def test_what_cannot_be_rebuilt(tmp_path: Path, sealed: dict[Path, tuple[bytes, Row]]) -> None:
    [first, second, third] = sealed
    with open_ledger(str(tmp_path / "ledger"), writing=True) as ledger:
        rows = [row for _, row in sealed.values()]
        fill(ledger, rows)
        write_sidecars(ledger)
        fill(ledger, [rows[2]._replace(key_id="another")])
        Path(sidecar_path(str(first))).unlink()
        second.write_bytes(b"cut")
        moved = rows_from_sidecars(ledger, [str(tmp_path / "sealed")])
    with open_ledger(str(tmp_path / "new"), writing=True) as rebuilt:
        again = rows_from_sidecars(rebuilt, [str(tmp_path / "sealed")])
    assert {failure.path: failure.kind for failure in again.failures} == {
        str(first): "KeyMetadataError",
        str(second): "FormatError",
    }
    assert str(third) in {failure.path for failure in moved.failures}


def test_no_rows_behind_those_of_a_killed_job(
    tmp_path: Path, place: LedgerPlace, sealed: dict[Path, tuple[bytes, Row]]
) -> None:
    """The killed job's rows have older numbers and, once they are settled, newer keys."""
    rows = [row for _, row in sealed.values()]
    with open_ledger(tmp_path / "old", writing=True) as old:
        fill(old, rows)
        write_sidecars(old)
        with place.open() as ledger:
            killed = ledger.prepare([rows[0]._replace(key_id="newer")])
            for add in (
                lambda: rows_from_sidecars(ledger, [str(tmp_path / "sealed")]),
                lambda: copy_rows(old, ledger),
            ):
                with pytest.raises(OSError, match="run it again, which finishes its work"):
                    add()
            assert ledger.rows() == []
            ledger.settle(killed, killed.rows)
            rows_from_sidecars(ledger, [str(tmp_path / "sealed")])
            assert ledger.done(ENCRYPT)[rows[0].target].key_id == "newer"


def test_the_commands(tmp_path: Path, keyring: Path, sealed: dict[Path, tuple[bytes, Row]]) -> None:
    for name in ("ledger", "backup"):
        with open_ledger(str(tmp_path / name), writing=True) as ledger:
            for _, row_of_file in sealed.values():
                fill(ledger, [row_of_file])
    folder, where = str(tmp_path / "sealed"), str(tmp_path / "ledger")
    for arguments, facts in (
        (["compact", where], {"ledger": where, "files_before": 3, "files_after": 1}),
        (["export", where, "--to-sidecars"], {"done": 3, "known": 0, "failed": 0}),
        (["rebuild", str(tmp_path / "new"), folder], {"done": 3, "known": 0, "failed": 0}),
        (["rebuild", "memory://moving/ledger", folder], {"done": 3, "known": 0, "failed": 0}),
    ):
        done = CliRunner().invoke(app, ["spark", "ledger", *arguments, "--json"])
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout) == {**facts, "ok": True}
    check(sealed, keyring)
    next(iter(sealed)).unlink()
    partly = CliRunner().invoke(
        app, ["spark", "ledger", "export", where, "--to-sidecars", "--json"]
    )
    failure, summary = map(json.loads, partly.stdout.splitlines())
    assert partly.exit_code == summary["exit_code"] == failure["error"]["exit_code"] == 6
    assert (summary["known"], summary["failed"], summary["ok"]) == (2, 1, False)
    wrong = CliRunner().invoke(app, ["spark", "ledger", "export", where])
    assert wrong.exit_code == 2
    assert "give either FILE.parquet or --to-sidecars" in wrong.output


def test_sidecars_are_no_encrypted_files(
    tmp_path: Path, sealed: dict[Path, tuple[bytes, Row]]
) -> None:
    with open_ledger(str(tmp_path / "ledger"), writing=True) as ledger:
        fill(ledger, [row for _, row in sealed.values()])
        write_sidecars(ledger)
        (tmp_path / "sealed" / "other.keys").write_bytes(b"of nobody")
        selection = Selection("verify", "", ledger, Patterns())
        found = [file.path for file, _ in selection.encrypted([str(tmp_path / "sealed")])]
        assert found == sorted(map(str, sealed))
        [failure] = selection.failures
        assert failure.file.relative_path == "other.keys"


class TestAsTheJobGoes:
    """Sidecars that a job writes, without Spark."""

    @pytest.fixture(autouse=True)
    def _at(self, tmp_path: Path, kms: KmsConfig, keyring: Path) -> None:
        self.folder = tmp_path / "out"
        self.folder.mkdir()
        self.keys = FileKeys.for_sealing(kms, "default")
        self.keychain = Keychain(LocalKms(str(keyring)))
        self.jobs = 0

    def staged(self, job_id: str, name: str, plain: bytes, **more: object) -> Row:
        data, km = oneshot.encrypt(plain, key_size=FILE_KEY_SIZE)
        document = self.keys.wrap(km)
        target = self.folder / name
        facts: dict[str, Any] = {
            "attempt": staged(target, data, job_id=job_id),
            "target_size": len(data),
            "key_metadata": as_text(document),
            "key_id": document["key-id"],
            "job_id": job_id,
        }
        return row(target, **(facts | more))

    def run(self, ledger: Ledger, plain: dict[str, bytes]) -> None:
        """Do what a job does: a wave of the files whose content the ledger has not."""
        self.jobs += 1
        job_id = f"{self.jobs:012x}"
        marks.leave(LOCAL, job_id, str(self.folder), durable=False)
        ledger.begin(job_id, str(self.folder), sidecars=True)
        done = ledger.done(ENCRYPT)
        rows = []
        for name, data in plain.items():
            old = done.get(str(self.folder / name))
            if old is None or old.source_version != str(data):
                more = {"replaces": old is not None, "source_version": str(data)}
                rows.append(self.staged(job_id, name, data, **more))
        if rows:
            batch = ledger.prepare(rows)
            ledger.settle(batch, published(rows, sidecars=True))
        clear(ledger, job_id, str(self.folder))

    def opened(self, name: str) -> bytes:
        """Return what a file is, by its sidecar alone."""
        path = self.folder / name
        km = self.keychain.open(sidecar_path(str(path)), str(path))
        return ags1.decrypt(path.read_bytes(), km)

    def key_ids(self, name: str) -> list[str]:
        sidecar = read_sidecar(sidecar_path(str(self.folder / name)))
        return [key.key_id for key in sidecar.file_keys]

    def test_a_kill_at_any_step(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        older, newer = {"a": b"older"}, {"a": b"newer", "b": b"other"}
        at, is_killed = 0, True
        while is_killed:
            at += 1
            for path in self.folder.iterdir():
                path.unlink()
            where = str(tmp_path / f"ledger{at}")
            with open_ledger(where, writing=True) as ledger:
                self.run(ledger, older)
                with monkeypatch.context() as patch:
                    kills = _Kills(patch, at)
                    try:
                        self.run(ledger, newer)
                    except _Killed:
                        pass
                    else:
                        is_killed = False
            # Whatever has its name, its sidecar opens, also before the next job.
            assert self.opened("a") in (b"older", b"newer")
            if (self.folder / "b").exists():
                assert self.opened("b") == b"other"
            with open_ledger(where, writing=True) as ledger:
                settle_pending(ledger)
                self.run(ledger, newer)
                done = ledger.done(ENCRYPT)
            for name, plain in newer.items():
                assert self.opened(name) == plain
                assert self.key_ids(name) == [done[str(self.folder / name)].key_id]
            names = sorted(path.name for path in self.folder.iterdir())
            names = [name for name in names if not name.endswith("-root.tmp")]
            assert names == ["a", "a.keys", "b", "b.keys"]
        assert kills.steps >= 20

    def test_what_each_kind_of_ledger_notes(self, place: LedgerPlace) -> None:
        with place.open() as ledger:
            ledger.begin("ab", "/a", sidecars=True)
            ledger.begin("cd", "/b")
        with place.open() as ledger:
            assert ledger.notes() == {"ab": JobNote("/a", sidecars=True), "cd": JobNote("/b")}

    def test_an_interrupted_write_of_a_storage_that_does_not_write_whole_files(self) -> None:
        wanted = self.staged(JOB, "a", b"text")
        for size in (0, 20):
            data = Sidecar.from_bytes((wanted.key_metadata or "").encode()).to_bytes()
            (self.folder / "a.keys").write_bytes(data[:size])
            assert published([wanted], again=True, sidecars=True) == [wanted]
            assert self.opened("a") == b"text"

    @pytest.mark.parametrize("replaces", [False, True])
    def test_a_paused_job_takes_no_key_from_the_one_that_took_it_over(self, replaces: bool) -> None:
        if replaces:
            published([self.staged(JOB, "a", b"old")], sidecars=True)
        wanted = self.staged(JOB, "a", b"new", replaces=replaces)
        assert published([wanted], again=True, sidecars=True) == [wanted]
        # The paused job goes on, and does not know yet that it has lost its claim.
        assert [row.status for row in published([wanted], sidecars=True)] == [FAILED]
        assert self.opened("a") == b"new"

    def test_keys_of_a_file_that_was_moved_away_stay(self) -> None:
        for plain in (b"one", b"two"):
            wanted = self.staged(JOB, "a", plain)
            assert published([wanted], sidecars=True) == [wanted]
            (self.folder / "a").rename(self.folder / plain.decode())
        for name in ("one", "two"):
            path = self.folder / name
            km = self.keychain.open(str(self.folder / "a.keys"), str(path))
            assert ags1.decrypt(path.read_bytes(), km) == name.encode()

    def test_a_file_that_cannot_be_named_takes_its_key_back(self) -> None:
        """Another program has made a file of that name, and its sidecar."""
        theirs = self.staged(JOB, "a", b"theirs")
        published([theirs], sidecars=True)
        before = (self.folder / "a.keys").read_bytes()
        rows = [self.staged(JOB, "a", b"ours"), self.staged(JOB, "b", b"ours")]
        (self.folder / "b").write_bytes(b"no sidecar")
        assert [row.status for row in published(rows, sidecars=True)] == [FAILED, FAILED]
        assert (self.folder / "a.keys").read_bytes() == before
        assert self.opened("a") == b"theirs"
        assert sorted(path.name for path in self.folder.iterdir()) == ["a", "a.keys", "b"]

    def test_what_is_no_sidecar_is_told_and_stays(self) -> None:
        (self.folder / "a.keys").write_bytes(b"somebody's notes")
        (self.folder / "b.keys").mkdir()
        rows = [self.staged(JOB, "a", b"text"), self.staged(JOB, "b", b"text")]
        for one in rows:
            with pytest.raises(OSError, match=r"move the file|[Rr]egular|irectory"):
                published([one], again=True, sidecars=True)
        settled = published(rows, sidecars=True)
        assert [row.status for row in settled] == [FAILED, FAILED]
        assert "move the file" in (settled[0].error or "")
        assert (self.folder / "a.keys").read_bytes() == b"somebody's notes"
        assert sorted(path.name for path in self.folder.iterdir()) == ["a.keys", "b.keys"]


class TestCompactingAFolder:
    def fill(self, folder: Path, count: int) -> list[Row]:
        rows = [row(folder / str(number)) for number in range(count)]
        with open_ledger(str(folder), writing=True) as ledger:
            for one in rows:
                fill(ledger, [one])
        return rows

    def test_rows_and_names_stay(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        rows = self.fill(tmp_path, 10)
        monkeypatch.setattr("ags1.files.ledger.ledger.MERGED_ROWS", 4)
        with open_ledger(str(tmp_path), writing=True) as ledger:
            held = ledger.prepare([row(tmp_path / "held")])
            fill(ledger, [row(tmp_path / "later")])
            names = ledger.numbers()
            assert ledger.compact() == (11, 3)
            assert ledger.numbers() == names
            assert [one for _, one in ledger.batches()][4:6] == [[rows[4]], [rows[5]]]
            ledger.replace_all({names[6]: [rows[6]._replace(key_metadata="new")]})
            ledger.settle(held, held.rows)
            assert ledger.numbers() == [*names[:10], held.name, names[10]]
        with open_ledger(str(tmp_path), writing=True) as ledger:
            fill(ledger, [row(tmp_path / "last")])
            assert ledger.numbers()[:12] == [*names[:10], held.name, names[10]]
            assert [one.key_metadata for one in ledger.rows()].index("new") == 6
            assert ledger.compact() == (5, 4)
            assert [one.key_metadata for one in ledger.rows()].index("new") == 6

    def test_a_kill_between_the_merged_file_and_the_old_ones(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rows = self.fill(tmp_path, 5)
        unlink = os.unlink
        removed: list[str] = []

        def stopping(path: Any, **more: Any) -> None:
            removed.extend([path] * ("pack-" in str(path)))
            if len(removed) == 3:
                raise KeyboardInterrupt
            unlink(path, **more)

        with open_ledger(str(tmp_path), writing=True) as ledger, monkeypatch.context() as patch:
            patch.setattr(os, "unlink", stopping)
            with pytest.raises(KeyboardInterrupt):
                ledger.compact()
        assert len(list(tmp_path.glob("pack-*"))) == 4
        with open_ledger(str(tmp_path), writing=False) as reader:
            assert reader.rows() == rows
        with open_ledger(str(tmp_path), writing=True) as ledger:
            assert ledger.rows() == rows
            fill(ledger, [row(tmp_path / "next")])
            assert len(ledger.numbers()) == 6
            ledger.compact()
            assert ledger.rows()[:5] == rows
        assert len(list(tmp_path.glob("pack-*"))) == 1

    def test_a_reader_whose_files_are_merged_meanwhile(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rows = self.fill(tmp_path, 6)
        with (
            open_ledger(str(tmp_path), writing=True) as ledger,
            open_ledger(str(tmp_path), writing=False) as reader,
        ):
            read = Ledger._read

            def reading(self: Ledger, leaves: Any, columns: Any) -> Any:
                for number, found in enumerate(read(self, leaves, columns)):
                    if self is reader and number == 2:
                        monkeypatch.setattr(Ledger, "_read", read)
                        assert ledger.compact() == (6, 1)
                    yield found

            monkeypatch.setattr(Ledger, "_read", reading)
            assert reader.rows() == rows

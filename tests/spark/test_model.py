"""Orders of requests that no test with real processes would meet: jobs on one source, jobs that are
taken for dead while they are only paused, compactions, rewrappings, readers, and requests that
arrive a second time, on one ledger in an object storage. Each makes one request at a time, in an
order that is drawn, and some are killed between two requests.

The rules are those of a file system, and know nothing of ledgers: whoever reads gets a content that
the source had; when all have ended, one more job brings the file up to its source, and the one
after it finds nothing to do; what was replaced does not open; and if a rewrapping says that it has
wrapped all keys, the file opens without the old master key. ``AGS1_TEST_MODEL=2000`` tries so many
orders of each kind.
"""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("pathspec")
pytest.importorskip("fsspec")

from actors import Actor, Killed, lives, play, request
from day import SEED
from fsspec.implementations.memory import MemoryFileSystem

from ags1.errors import Ags1Error, NoKeyError
from ags1.files.jobs.publishing import settle_pending
from ags1.files.keys import FileKeys, KmsConfig
from ags1.files.ledger import DONE, open_ledger
from ags1.filesystem import Ags1FileSystem
from ags1.keys.sidecar import Sidecar
from ags1.spark import jobs

ORDERS = int(os.environ.get("AGS1_TEST_MODEL", "10"))
LEDGER, SOURCE, TARGET = "memory://model/ledger", "memory://model/in", "memory://model/sealed"
_FILE, _SEALED = "/model/in/x", "/model/sealed/x.ags1"
_CALLS = ("info", "ls", "cat_file", "pipe_file", "cp_file", "rm_file", "_open", "modified")


class World:
    """A source with one file, its target, and a ledger, in one object storage."""

    def __init__(self, kms: KmsConfig, rng: random.Random) -> None:
        self._kms, self._rng = kms, rng
        self.master = "default"
        self.contents: list[bytes] = []
        self.sealed: set[bytes] = set()
        self.sent: list[tuple[str, bytes]] = []
        self.listings: dict[str, Any] = {}
        self.stale = 0.0
        MemoryFileSystem.store.clear()
        self.source()
        # Mostly there is something to do, and something that it replaces.
        if rng.random() < 0.8:
            self.job()
            if rng.random() < 0.8:
                self.source()

    # -- who acts

    def source(self) -> None:
        """Change the source, to a content of another or of the same size."""
        self.contents.append(self._rng.randbytes(self._rng.choice((10, 20))))
        MemoryFileSystem().pipe_file(_FILE, self.contents[-1])

    def job(self) -> jobs.Summary:
        return jobs.encrypt_files(
            lambda: None,
            SOURCE,
            TARGET,
            ledger=LEDGER,
            kms=self._kms,
            key_id="default",
            durable=False,
            cores=1,
        )

    def taking_over(self) -> None:
        with open_ledger(LEDGER, writing=True) as ledger:
            settle_pending(ledger)

    def compaction(self) -> None:
        with open_ledger(LEDGER, writing=True) as ledger:
            ledger.compact()

    def rewrapping(self) -> jobs.Summary:
        self.master = "other"  # before the keys are wrapped again
        request()
        return jobs.rewrap_ledger(
            lambda: None, ledger=LEDGER, kms=self._kms, to_key_id="other", cores=1
        )

    def reader(self) -> bytes | None:
        options = {"keyring": dict(self._kms.properties)["kms.local.keyring"], "ledger": LEDGER}
        files = Ags1FileSystem(fs=MemoryFileSystem(), skip_instance_cache=True, **options)
        try:
            found: bytes = files.cat_file(_SEALED.removesuffix(".ags1"))
        except FileNotFoundError:
            return None
        return found

    def late(self) -> None:
        """Requests to the ledger's storage that arrive a second time."""
        for _ in range(3):
            request()
            if self.sent:
                MemoryFileSystem().pipe_file(*self._rng.choice(self.sent))

    # -- the rules

    def check(self) -> None:
        found = self.reader()
        assert found in self.contents or _SEALED not in MemoryFileSystem.store

    def check_end(self) -> None:
        self.check()
        self.taking_over()
        self.check()
        assert self.job().failures == []
        assert self.reader() == self.contents[-1]
        again = self.job()
        assert (again.done, again.failed, again.unchanged) == (0, 0, 1)
        self.compaction()
        assert self.reader() == self.contents[-1]
        with open_ledger(LEDGER, writing=False) as ledger:
            done = {row.nonce for row in ledger.rows() if row.status == DONE}
        now = MemoryFileSystem.store[_SEALED].getvalue()
        for content in self.sealed - {now}:
            if content[8:20].hex() in done:
                MemoryFileSystem().pipe_file(_SEALED, content)  # somebody puts it back
                with pytest.raises(NoKeyError):
                    self.reader()


class _Inline:
    """A pool of threads whose calls are made by the caller."""

    def __init__(self, *_: object) -> None: ...

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None: ...

    map = staticmethod(map)


@pytest.fixture
def world(here: None, kms: KmsConfig, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Make worlds, in which each call of the storage is a request."""
    made: list[World] = []

    def counted(name: str) -> Callable[..., Any]:
        call = getattr(MemoryFileSystem, name)

        def requested(self: Any, path: str, *arguments: Any, **more: Any) -> Any:
            request()
            result = call(self, path, *arguments, **more)
            now = made[-1]
            if name == "cp_file" and arguments[0] == _SEALED:
                now.sealed.add(self.store[_SEALED].getvalue())
            if name == "pipe_file" and "/ledger/" in path and "/_" not in path.replace("_plan", ""):
                now.sent.append((path, arguments[0]))
            if name == "info":
                return _with_version(self, result)
            if name == "ls" and more.get("detail", True):
                result = [_with_version(self, facts) for facts in result]
                before = now.listings.get(path, result)
                now.listings[path] = result
                return before if now._rng.random() < now.stale else result
            return result

        return requested

    def for_sealing(kms: KmsConfig, master_key_id: str) -> FileKeys:
        request()
        return make(kms, made[-1].master)

    make = FileKeys.for_sealing
    monkeypatch.setattr(FileKeys, "for_sealing", for_sealing)
    for name in _CALLS:
        monkeypatch.setattr(MemoryFileSystem, name, counted(name))
    for module in ("host.pools", "files.staging.remote"):
        monkeypatch.setattr(f"ags1.{module}.CancellingPool", _Inline)
    monkeypatch.setattr("ags1.files.ledger.ledger._SIGN_SECONDS", 1e6)

    def new(rng: random.Random, *, dead: bool = True) -> World:
        # Each job takes all others for dead, or none of them.
        seconds = -1e6 if dead else 1e6
        monkeypatch.setattr("ags1.files.ledger.ledger._DEAD_SECONDS", seconds)
        made.append(World.__new__(World))
        made[-1].__init__(kms, rng)  # type: ignore[misc]
        return made[-1]

    yield new
    MemoryFileSystem.store.clear()


def _with_version(fs: Any, facts: dict[str, Any]) -> dict[str, Any]:
    if facts["type"] != "file" or facts["name"] not in fs.store:
        return facts
    content = fs.store[facts["name"]].getvalue()
    return facts | {"ETag": "x" + hashlib.sha256(content).hexdigest()}


def orders(count: int = ORDERS) -> Iterator[random.Random]:
    return (random.Random(f"{SEED}-{number}") for number in range(count))


many_orders = pytest.mark.parametrize(
    "count", [ORDERS // 2, pytest.param(ORDERS, marks=pytest.mark.slow)]
)


def check_results(actors: list[Actor]) -> None:
    """Nobody was told anything but what a user can act on."""
    for actor in actors:
        is_error = isinstance(actor.result, BaseException)
        assert not is_error or isinstance(actor.result, (OSError, Ags1Error, Killed)), actor.result


@many_orders
def test_jobs_compactions_and_readers_with_kills(world: Any, count: int) -> None:
    for rng in orders(count):
        now = world(rng)
        makers = [now.job] * rng.randrange(1, 4)
        makers += [now.compaction] * rng.randrange(3) + [now.taking_over] * rng.randrange(3)
        actors = [Actor(make, lives(rng)) for make in makers]
        readers = [Actor(now.reader, None) for _ in range(2)]
        play(rng, [*actors, *readers, Actor(now.source, None)])
        check_results(actors)
        for reader in readers:
            assert reader.result in [None, *now.contents]
        now.check_end()


@many_orders
def test_requests_that_arrive_a_second_time(world: Any, count: int) -> None:
    for rng in orders(count):
        now = world(rng)
        makers = [now.job, now.job, now.compaction, now.taking_over]
        actors = [Actor(make, lives(rng)) for make in makers]
        play(rng, [*actors, Actor(now.late, None), Actor(now.source, None)])
        check_results(actors)
        now.late()
        now.check_end()


def test_a_rewrapping_beside_jobs(world: Any) -> None:
    """If it says that all keys are wrapped again, the old master key may go."""
    verdicts = set()
    for rng in orders():
        now = world(rng, dead=False)
        makers = [now.job] * rng.randrange(1, 3) + [now.compaction] * rng.randrange(2)
        actors = [Actor(make, lives(rng)) for make in makers]
        actors[0].steps(rng.randrange(60))
        rewrapping = Actor(now.rewrapping, lives(rng))
        play(rng, [*actors, rewrapping])
        check_results([*actors, rewrapping])
        now.check()
        verdicts.add(type(rewrapping.result))
        if isinstance(rewrapping.result, jobs.Summary):
            with open_ledger(LEDGER, writing=False) as ledger:
                for row in ledger.rows(pending=True):
                    sidecar = Sidecar.from_bytes((row.key_metadata or "").encode())
                    assert [kek.encrypted_by_id for kek in sidecar.own_kek_entries] == ["other"]
    assert jobs.Summary in verdicts
    assert len(verdicts) > 1


@many_orders
def test_a_listing_that_is_old(world: Any, count: int) -> None:
    """A reader may find no key then, but never another one. What ends is as with current ones."""
    for rng in orders(count):
        now = world(rng)
        now.stale = 0.3
        actors = [Actor(make, lives(rng)) for make in (now.job, now.job, now.taking_over)]
        readers = [Actor(now.reader, None) for _ in range(2)]
        play(rng, [*actors, *readers, Actor(now.source, None)])
        check_results(actors)
        for reader in readers:
            assert isinstance(reader.result, NoKeyError) or reader.result in [None, *now.contents]
        now.stale = 0.0
        now.check_end()


def test_a_pack_that_is_lost_costs_its_rows_alone(world: Any) -> None:
    now = world(random.Random(SEED))
    MemoryFileSystem().pipe_file("/model/in/y", b"another")
    MemoryFileSystem().pipe_file(_FILE, now.contents[-1])
    with open_ledger(LEDGER, writing=True) as ledger:
        before = {*ledger.files()}
    assert now.job().failures == []
    with open_ledger(LEDGER, writing=True) as ledger:
        [lost] = {*ledger.files()} - before
    now.source()
    assert now.job().done == 1
    MemoryFileSystem().rm_file(f"/model/ledger/{lost}")
    assert now.reader() == now.contents[-1]
    [failure] = jobs.verify_files(lambda: None, [TARGET], ledger=LEDGER, kms=now._kms).failures
    assert (failure.path[-7:], failure.kind) == ("/y.ags1", "KeyMetadataError")

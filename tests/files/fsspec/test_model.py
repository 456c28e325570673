"""Orders of requests that no test with real processes would meet: writers, readers and a process
that wraps keys again work on one file and its sidecar, one request of one of them at a time, in an
order that is drawn, and some are killed between two requests. In a folder, a request is a system
call; in an object storage, a GET, a PUT or a DELETE.

The rules are those of a file system, and know nothing of keys: whoever reads gets a content that
somebody has written as a whole; what was written last is what is read when all have ended; nobody
is alarmed. ``AGS1_TEST_MODEL=20000`` tries so many orders of each kind.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import itertools
import os
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from actors import Actor, Killed, lives, play, request
from day import SEED
from fsspec.implementations.memory import MemoryFileSystem

from ags1.cli.keys.rewrapping import Rewrapping, rewrap
from ags1.errors import KeyMetadataError, NoKeyError
from ags1.filesystem import Ags1FileSystem
from ags1.keys import Keychain
from ags1.keys.cache import KekCache
from ags1.kms import LocalKms

ORDERS = int(os.environ.get("AGS1_TEST_MODEL", "30"))
OLD, NEW, OTHER, LAST = b"old" * 100, b"new" * 70, b"other" * 90, b"last"
_CALLS = ("open", "rename", "link", "unlink", "remove", "stat", "lstat")


class Objects(MemoryFileSystem):  # type: ignore[misc]
    """An object storage whose clients keep their listings. Each call is a request."""

    protocol = "objects"
    cachable = False

    def __init__(self, store: dict[str, Any], **more: Any) -> None:
        super().__init__(**more)
        self.store = store
        self.pseudo_dirs = [""]
        self.listed: dict[str, Any] = {}

    def info(self, path: str, **more: Any) -> Any:
        path = self._strip_protocol(path)
        if path not in self.listed:
            request()
            return super().info(path, **more)
        return self.listed[path]

    def cat_file(self, path: str, *arguments: Any, **more: Any) -> Any:
        request()
        return super().cat_file(path, *arguments, **more)

    def pipe_file(self, path: str, value: bytes, **more: Any) -> None:
        request()
        super().pipe_file(path, value, **more)

    def rm_file(self, path: str) -> None:
        request()
        super().rm_file(path)

    def invalidate_cache(self, path: str | None = None) -> None:
        self.listed.clear()


class World:
    """One file, by each client's own file system. ``path`` is its name."""

    def __init__(self, folder: Path | None) -> None:
        self._store: dict[str, Any] = {}
        self.folder = folder
        self.path = f"{folder}/x" if folder else "/lake/x"

    def client(self) -> Ags1FileSystem:
        below = fsspec.filesystem("file") if self.folder else Objects(self._store)
        return Ags1FileSystem(fs=below, threads=1, skip_instance_cache=True)

    def write(self, data: bytes) -> Callable[[], None]:
        fs = self.client()
        return lambda: fs.pipe_file(self.path, data)

    def read(self, *, has_listed: bool = False) -> Callable[[], bytes]:
        fs = self.client()
        if has_listed and not self.folder:
            name = f"{self.path}.ags1"
            fs.fs.listed[name] = fs.fs.info(name)
        return lambda: fs.cat_file(self.path)  # type: ignore[no-any-return]

    def remove(self) -> Callable[[], None]:
        fs = self.client()
        return lambda: fs.rm_file(self.path)


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a request of each system call of an actor on a file."""

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def made(*arguments: Any, **more: Any) -> Any:
            request()
            return call(*arguments, **more)

        return made

    flock = fcntl.flock

    def locked(fd: int, how: int) -> None:
        while getattr(Actor.current, "actor", None) is not None and how == fcntl.LOCK_EX:
            request()
            with contextlib.suppress(BlockingIOError):
                return flock(fd, how | fcntl.LOCK_NB)
        flock(fd, how)

    for name in _CALLS:
        monkeypatch.setattr(os, name, counted(getattr(os, name)))
    monkeypatch.setattr(fcntl, "flock", locked)
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    # What is dropped in a process that is gone tries to remove its temporary file.
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)


@pytest.fixture(params=["folder", "objects"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def worlds(kind: str, tmp_path: Path, requests: None) -> Iterator[World]:
    """Worlds that have the old file."""

    def made() -> Iterator[World]:
        number = 0
        while True:
            number += 1
            folder = tmp_path / str(number) if kind == "folder" else None
            if folder:
                folder.mkdir()
            world = World(folder)
            world.write(OLD)()
            yield world

    return made()


def test_a_writer_that_is_killed_after_any_request(worlds: Iterator[World]) -> None:
    for before in (OLD, None):
        for count in range(100):
            world = next(worlds)
            if before is None:
                world.remove()()
            writer = Actor(world.write(NEW), count)
            play(random.Random(0), [writer])
            try:
                found = world.read()()
            except FileNotFoundError:
                found = None
            assert found in (before, NEW), count
            world.write(LAST)()
            assert world.read()() == LAST
            if not isinstance(writer.result, Killed):
                break
        assert count > 5
        assert found == NEW


def test_readers_beside_a_writer(worlds: Iterator[World]) -> None:
    rng = random.Random(SEED)
    for order in range(ORDERS):
        world = next(worlds)
        readers = [Actor(world.read(has_listed=bool(n % 2)), None) for n in range(3)]
        writer = Actor(world.write(NEW), lives(rng))
        play(rng, [*readers, writer])
        for reader in readers:
            assert reader.result in (OLD, NEW), (SEED, order)
        allowed = (OLD, NEW) if writer.result is not None else (NEW,)
        assert world.read()() in allowed, (SEED, order)
        world.write(LAST)()
        assert world.read(has_listed=True)() == LAST


def test_an_object_that_is_put_a_second_time_late() -> None:
    """Its key is gone by then: nothing that somebody has replaced opens again."""
    rng = random.Random(SEED)
    for order in range(ORDERS):
        world = World(None)
        world.write(OLD)()
        late = world._store["/lake/x.ags1"].getvalue()
        other = Objects(world._store)
        readers = [Actor(world.read(), None) for _ in range(3)]
        writer = Actor(world.write(NEW), None)
        again = Actor(functools.partial(other.pipe_file, "/lake/x.ags1", late), None)
        play(rng, [*readers, writer, again])
        for result in (reader.result for reader in readers):
            assert result in (OLD, NEW) or isinstance(result, NoKeyError), (SEED, order)


@pytest.mark.parametrize("kind", ["folder"], indirect=True)
def test_two_writers_of_a_folder(worlds: Iterator[World]) -> None:
    rng = random.Random(SEED)
    for order in range(ORDERS):
        world = next(worlds)
        readers = [Actor(world.read(), None) for _ in range(2)]
        writers = [Actor(world.write(data), lives(rng)) for data in (NEW, OTHER)]
        play(rng, [*readers, *writers])
        for reader in readers:
            assert reader.result in (OLD, NEW, OTHER), (SEED, order)
        ended = [data for one, data in zip(writers, (NEW, OTHER), strict=True) if not one.result]
        found = world.read()()
        assert found in ([*ended, OLD, NEW, OTHER] if len(ended) < 2 else ended), (SEED, order)
        assert found != OLD or not ended, (SEED, order)
        world.write(LAST)()
        assert world.read()() == LAST


@pytest.mark.parametrize("kind", ["folder"], indirect=True)
def test_every_order_of_two_writers_with_two_switches(worlds: Iterator[World]) -> None:
    """One makes some requests, then the other one some. Then both are killed, or the first goes on
    to its end, and then the other one, as far as their locks let them."""
    alone = Actor(next(worlds).write(NEW), None).steps(1000)
    assert alone > 15
    orders = list(itertools.product(range(alone + 1), range(1, alone + 1), (False, True)))
    if len(orders) > ORDERS:
        orders = random.Random(SEED).sample(orders, ORDERS)
    for order in orders:
        first, second, are_killed = order
        world = next(worlds)
        writers = [Actor(world.write(NEW), None), Actor(world.write(OTHER), None)]
        writers[0].steps(first)
        writers[1].steps(second)
        assert world.read()() in (OLD, NEW, OTHER), order
        if are_killed:
            for one in writers:
                one.kill()
            assert world.read()() in (OLD, NEW, OTHER), order
        while not all(one.ended for one in writers):
            for one in writers:
                one.steps(1000 if writers[0].ended else 50)
        if not are_killed:
            assert [one.result for one in writers] == [None, None], order
            assert world.read()() in (NEW, OTHER), order
        world.write(LAST)()
        assert world.read()() == LAST


@pytest.mark.parametrize("kind", ["folder"], indirect=True)
def test_a_rewrapping_and_a_removal_beside_a_writer(worlds: Iterator[World], keyring: str) -> None:
    kms = LocalKms(keyring)
    kms.create_key("second")
    rng = random.Random(SEED)
    for order in range(ORDERS):
        world = next(worlds)
        options = Rewrapping(
            keychain=Keychain(kms),
            master_key_id="second",
            other_kms=None,
            kms=kms,
            target_keks=KekCache(kms),
            dry_run=False,
            durable=True,
        )
        sidecar = f"{world.path}.ags1.keys"
        removes = rng.random() < 0.3
        change = world.remove() if removes else functools.partial(rewrap, sidecar, options)
        actors = [
            Actor(world.write(NEW), lives(rng)),
            Actor(change, lives(rng)),
            Actor(world.read(), None),
        ]
        play(rng, actors)
        _, changer, reader = (actor.result for actor in actors)
        is_gone = removes and isinstance(reader, (FileNotFoundError, KeyMetadataError))
        assert is_gone or reader in (OLD, NEW), (SEED, order)
        if isinstance(changer, Exception):
            # It tells its user to try again.
            assert isinstance(changer, (KeyMetadataError, FileNotFoundError)), (SEED, order)
        try:
            found = world.read()()
        except FileNotFoundError:
            found = None
        assert found in (OLD, NEW) or (removes and found is None), (SEED, order)
        world.write(LAST)()
        assert world.read()() == LAST

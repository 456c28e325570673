"""Many files at a time over a file system that serves many requests at a time."""

from __future__ import annotations

import io
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from fsspec.callbacks import Callback
from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper
from fsspec.implementations.memory import MemoryFileSystem

from ags1.errors import Ags1Error
from ags1.filesystem import Ags1FileSystem

CONTENTS = {f"{n % 4}/{n}": b"%d" % n * (n * 20_000) for n in range(12)}


class Busy(MemoryFileSystem):
    """Counts how many of its methods run at the same time."""

    protocol = "busy"
    cachable = False
    lock: ClassVar = threading.Lock()

    def __init__(self) -> None:
        super().__init__(global_store=False)
        self.running = self.most = 0
        self.hook: Callable[[str], None] = lambda path: None

    def _request(self, name: str, path: str, *arguments: Any, **more: Any) -> Any:
        with self.lock:
            self.running += 1
            self.most = max(self.most, self.running)
        try:
            time.sleep(0.003)
            self.hook(path)
            return getattr(super(), name)(path, *arguments, **more)
        finally:
            with self.lock:
                self.running -= 1

    def cat_file(self, path: str, *arguments: Any, **more: Any) -> Any:
        return self._request("cat_file", path, *arguments, **more)

    def pipe_file(self, path: str, *arguments: Any, **more: Any) -> Any:
        return self._request("pipe_file", path, *arguments, **more)

    def cp_file(self, path: str, *arguments: Any, **more: Any) -> Any:
        return self._request("cp_file", path, *arguments, **more)

    def rm_file(self, path: str) -> Any:
        return self._request("rm_file", path)


@pytest.fixture
def busy() -> Busy:
    return Busy()


@pytest.fixture
def fs(busy: Busy) -> Ags1FileSystem:
    return Ags1FileSystem(fs=AsyncFileSystemWrapper(busy, asynchronous=False))


def below(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_many_files_are_done_side_by_side(tmp_path: Path, busy: Busy, fs: Ags1FileSystem) -> None:
    def most_at_a_time(work: Callable[[], Any]) -> Any:
        busy.most = 0
        result = work()
        assert busy.most > 1
        return result

    source = tmp_path / "source"
    for name, content in CONTENTS.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(content)
    most_at_a_time(lambda: fs.put(f"{source}/", "/in", recursive=True))
    most_at_a_time(lambda: fs.copy("/in/", "/copy", recursive=True))
    most_at_a_time(lambda: fs.mv("/copy", "/moved", recursive=True))
    most_at_a_time(lambda: fs.get("/moved/", f"{tmp_path}/out", recursive=True))
    assert below(tmp_path / "out") == CONTENTS
    found = most_at_a_time(lambda: fs.cat("/moved", recursive=True))
    assert {name.removeprefix("/moved/"): data for name, data in found.items()} == CONTENTS
    most_at_a_time(
        lambda: fs.pipe({f"/in/{name}": content[::-1] for name, content in CONTENTS.items()})
    )
    paths = [f"/in/{name}" for name in CONTENTS]
    assert fs.cat_ranges(paths, 0, 9) == [content[::-1][:9] for content in CONTENTS.values()]
    assert fs.cat(paths, start=1) == {
        path: data[::-1][1:] for path, data in zip(paths, CONTENTS.values(), strict=True)
    }
    most_at_a_time(lambda: fs.rm(["/in", "/moved"], recursive=True))
    assert busy.find("/") == []


def test_one_file_that_is_named_twice_is_written_one_time_after_the_other(
    tmp_path: Path, busy: Busy, fs: Ags1FileSystem
) -> None:
    for n in range(4):
        (tmp_path / f"{n}").write_bytes(b"%d" % n)
    fs.put([f"{tmp_path}/{n}" for n in range(4)], ["/x", "/x.ags1", "memory://x", "/x"])
    fs.pipe({"/y": b"first", "/y.ags1": b"second"})
    assert busy.most == 1
    assert (fs.cat_file("/x"), fs.cat_file("/y")) == (b"3", b"second")


def test_a_failure_leaves_whole_files_only(tmp_path: Path, busy: Busy, fs: Ags1FileSystem) -> None:
    fs.pipe(CONTENTS)
    sealed = busy.cat_file("/3/11.ags1")
    (tmp_path / "3").mkdir()
    (tmp_path / "3" / "11").write_bytes(b"old")
    for damaged in (sealed[:-1], sealed[:-20] + bytes(20)):
        busy.pipe_file("/3/11.ags1", damaged)
        with pytest.raises(Ags1Error, match=r"11\.ags1"):
            fs.get("/", str(tmp_path), recursive=True)
        found = below(tmp_path)
        assert found.pop("3/11") == b"old"
        assert found.items() <= CONTENTS.items()
    whole = {name: data for name, data in CONTENTS.items() if name != "3/11"}
    found = fs.cat("/", recursive=True, on_error="omit")
    assert {path.lstrip("/"): data for path, data in found.items()} == whole


def test_an_interrupt_leaves_whole_files_only(
    tmp_path: Path, busy: Busy, fs: Ags1FileSystem
) -> None:
    # After this import, SIGINT does not end a wait without a timeout.
    pytest.importorskip("polars")
    contents = {f"{n}": b"%d" % n for n in range(64)}
    fs.pipe(contents)
    main_thread, reads = threading.get_ident(), iter(range(9))

    def interrupt_once(path: str) -> None:
        if (number := next(reads, None)) is None:
            time.sleep(0.5)
        elif number == 8:
            signal.pthread_kill(main_thread, signal.SIGINT)

    busy.hook = interrupt_once
    with pytest.raises(KeyboardInterrupt):
        fs.get("/", str(tmp_path), recursive=True)
    found = below(tmp_path)
    assert found.items() <= contents.items()
    assert len(found) < len(contents)


def test_a_file_is_got_into_an_open_file(tmp_path: Path, fs: Ags1FileSystem) -> None:
    fs.pipe(CONTENTS)
    with (tmp_path / "all").open("ab") as file:
        for path in list(CONTENTS)[:3]:
            fs.get_file(path, f"/dev/fd/{file.fileno()}")
    assert (tmp_path / "all").read_bytes() == b"".join(list(CONTENTS.values())[:3])
    path, content = max(CONTENTS.items(), key=lambda item: len(item[1]))
    for given in ("lpath", "outfile"):
        short = ShortWrites()
        fs.get_file(path, **{given: short})
        assert short.taken == content


class ShortWrites(io.RawIOBase):
    """A raw file that takes a part of what it is given, as pipes in non-blocking mode do."""

    taken = b""

    def write(self, data: Any, /) -> int:
        self.taken += bytes(data[: len(data) // 2 + 1])
        return len(data) // 2 + 1


def test_callbacks_count_files_and_bytes(tmp_path: Path, fs: Ags1FileSystem) -> None:
    class Counting(Callback):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.children: list[Callback] = []

        def branched(self, source: str, target: str, **_: Any) -> Callback:
            self.children.append(Callback())
            return self.children[-1]

    fs.pipe(CONTENTS)
    counting = Counting()
    paths = list(CONTENTS)
    fs.get(paths, [f"{tmp_path}/{path}" for path in paths], callback=counting)
    assert (counting.size, counting.value) == (len(paths), len(paths))
    sizes = sorted(len(content) for content in CONTENTS.values())
    assert sorted(child.value for child in counting.children) == sizes
    assert sorted(child.size for child in counting.children) == sizes

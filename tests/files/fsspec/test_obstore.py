"""``ags1::`` over obstore: its adapter for fsspec, its readers and its writers, over its memory and
local stores."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from conftest import RunPython

import ags1
from ags1 import KeyMetadataError
from ags1.filesystem import Ags1FileSystem

obstore = pytest.importorskip("obstore")
from obstore.fsspec import FsspecStore  # noqa: E402
from obstore.store import LocalStore, MemoryStore  # noqa: E402

TEXT = b"id,carrier\n1,UA\n" * 100
LARGE = bytes(range(256)) * 40000


class Counting(FsspecStore):  # type: ignore[misc]
    """Counts the requests of the adapter."""

    requests: Counter[str]


def _counted(name: str) -> Any:
    async def request(self: Any, *arguments: Any, **named: Any) -> Any:
        self.requests[name] += 1
        return await getattr(FsspecStore, name)(self, *arguments, **named)

    return request


for _name in ("_cat_file", "_cat_ranges", "_info", "_pipe_file", "_put_file", "_rm_file", "_ls"):
    setattr(Counting, _name, _counted(_name))


@pytest.fixture(params=["memory", "file"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Counting, str]:
    below = Counting(request.param, skip_instance_cache=True)
    below.requests = Counter()
    return below, str(tmp_path / "lake")


def test_files_are_written_read_listed_replaced_and_removed(place: tuple[Counting, str]) -> None:
    below, folder = place
    fs = Ags1FileSystem(fs=below)
    for data in (TEXT, LARGE):
        with fs.open(f"{folder}/a.csv", "wb") as out:
            out.write(data)
        with fs.open(f"{folder}/a.csv", "rb") as file:
            assert file.read() == data
            file.seek(100)
            assert file.read(7) == data[100:107]
        assert fs.info(f"{folder}/a.csv")["size"] == len(data)
    assert not below.cat_file(f"{folder}/a.csv.ags1").count(LARGE[:64])
    (listed,) = fs.ls(folder)
    assert (listed["name"].lstrip("/"), listed["size"]) == (
        f"{folder}/a.csv".lstrip("/"),
        len(LARGE),
    )
    fs.cp_file(f"{folder}/a.csv", f"{folder}/b.csv")
    assert fs.cat([f"{folder}/a.csv", f"{folder}/b.csv"]).popitem()[1] == LARGE
    fs.rm(f"{folder}/a.csv")
    assert not below.exists(f"{folder}/a.csv.ags1.keys")
    with pytest.raises(FileNotFoundError):
        fs.open(f"{folder}/a.csv", "rb")


def test_a_new_file_replaces_no_other_one(place: tuple[Counting, str]) -> None:
    """The adapter itself ignores the mode. The other file comes between our look and our write."""
    below, folder = place
    fs = Ags1FileSystem(fs=below)
    out = fs.open(f"{folder}/a", "xb")
    out.write(TEXT)
    with fs.open(f"{folder}/a", "wb") as other:
        other.write(b"other")
    with pytest.raises(FileExistsError):
        out.close()
    assert fs.cat_file(f"{folder}/a") == b"other"
    storage = fs._pairs.storage
    staged = storage.scratch(f"{folder}/a.ags1")
    staged.write(memoryview(b"more"))
    staged.commit()
    with pytest.raises(FileExistsError):
        storage.put(staged, f"{folder}/a.ags1", new=True)
    staged.discard()
    assert fs.cat_file(f"{folder}/a") == b"other"


def test_a_file_without_its_sidecar_and_an_empty_sidecar_are_told(
    place: tuple[Counting, str],
) -> None:
    below, folder = place
    fs = Ags1FileSystem(fs=below)
    fs.pipe_file(f"{folder}/a", TEXT)
    below.pipe_file(f"{folder}/a.ags1.keys", b"")
    with pytest.raises(KeyMetadataError, match="damaged"):
        fs.cat_file(f"{folder}/a")
    below.rm_file(f"{folder}/a.ags1.keys")
    with pytest.raises(KeyMetadataError, match="no such sidecar"):
        fs.cat_file(f"{folder}/a")


def test_the_requests_of_a_file(place: tuple[Counting, str]) -> None:
    below, folder = place
    fs = Ags1FileSystem(fs=below)
    fs.pipe_file(f"{folder}/a", TEXT)
    # The old sidecar is looked for, and the new one and the file are written.
    assert below.requests == {"_cat_file": 1, "_pipe_file": 2}
    below.requests.clear()
    with fs.open(f"{folder}/a", "rb") as file:
        assert file.read() == TEXT
    # The file's size, its sidecar, and the file.
    assert below.requests == {"_info": 1, "_cat_file": 2}


def test_a_url_of_a_registered_protocol(tmp_path: Path, run_python: RunPython) -> None:
    """In a process of its own, because the protocol stays registered.

    The process ends without Python's clean-up: in CPython 3.11, one exit in eight with obstore
    alone aborts, when a thread of obstore's runtime asks for the GIL of the ending interpreter.
    """
    run_python(
        """
import os, pickle, sys
import fsspec
from obstore.fsspec import register
register("file")
url = f"ags1::file://{sys.argv[1]}/x.txt"
with fsspec.open(url, "wt") as out:
    out.write("one")
fs, path = fsspec.core.url_to_fs(url)
assert isinstance(fs.fs, __import__("obstore").fsspec.FsspecStore)
assert pickle.loads(pickle.dumps(fs)).cat_file(path) == b"one"
os._exit(0)
""",
        tmp_path,
    )


@pytest.mark.parametrize("kind", ["memory", "local"])
def test_the_writer_and_reader_of_obstore(kind: str, tmp_path: Path) -> None:
    """The writer keeps the memory that it is given, until it sends it."""
    store = MemoryStore() if kind == "memory" else LocalStore(tmp_path)
    writer = obstore.open_writer(store, "x.ags1")
    with ags1.open(writer, "wb", threads=2) as out:
        for start in range(0, len(LARGE), 1 << 20):
            out.write(LARGE[start : start + (1 << 20)])
    writer.close()
    reader = obstore.open_reader(store, "x.ags1")
    with ags1.open(reader, "rb", out.key_metadata, threads=2) as file:
        assert file.read() == LARGE

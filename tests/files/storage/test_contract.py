"""What every storage promises. Another client reads what it has written, and writes what it reads:
Python's own files, fsspec's objects in memory, boto3, obstore, and a second connection to HDFS."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ags1.files.storage.bucket import bucket_below, open_bucket
from ags1.files.storage.folder import Folder

fsspec = pytest.importorskip("fsspec")
BUCKET = "bucket"  # that of the real server


class Place:
    """A folder of a storage, and another client that reads and writes there."""

    def __init__(self, storage: Any, root: str, other: Any, other_root: str) -> None:
        self.storage = storage
        self.root = root
        self._other = other
        self._other_root = other_root

    def path(self, name: str) -> str:
        return f"{self.root}/{name}"

    def seen(self) -> dict[str, bytes]:
        """Return all files, as the other client sees them."""
        self._other.invalidate_cache()
        below = f"{self._other_root}/"
        found = {name.rpartition(below)[2] for name in self._other.find(self._other_root)}
        return {name: self._other.cat_file(below + name) for name in found}

    def put(self, name: str, data: bytes) -> None:
        path = f"{self._other_root}/{name}"
        self._other.makedirs(path.rpartition("/")[0], exist_ok=True)
        self._other.pipe_file(path, data)


class Boto:
    """What ``Place`` needs of a client, of boto3."""

    def __init__(self) -> None:
        boto3 = pytest.importorskip("boto3")
        self._bucket = boto3.Session().resource("s3").Bucket(BUCKET)

    def invalidate_cache(self) -> None:
        pass

    def makedirs(self, path: str, exist_ok: bool) -> None:
        pass

    def find(self, root: str) -> list[str]:
        return [one.key for one in self._bucket.objects.filter(Prefix=root + "/")]

    def cat_file(self, key: str) -> bytes:
        data: bytes = self._bucket.Object(key).get()["Body"].read()
        return data

    def pipe_file(self, key: str, data: bytes) -> None:
        self._bucket.put_object(Key=key, Body=data)


@pytest.fixture(scope="module")
def moto() -> Iterator[dict[str, str]]:
    pytest.importorskip("moto")
    pytest.importorskip("s3fs")
    from aws_server import aws_server, dummy_environment

    with aws_server() as endpoint:
        yield dummy_environment(endpoint)


@pytest.fixture(scope="module")
def hdfs() -> Iterator[str]:
    pytest.importorskip("requests")
    from hdfs_server import hdfs_server

    with hdfs_server() as url:
        yield url


@pytest.fixture(
    params=[
        *("folder", "memory", "s3", "obstore"),
        *(pytest.param(name, marks=pytest.mark.cluster) for name in ("minio", "hdfs")),
    ]
)
def place(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Place]:
    kind, folder = request.param, os.urandom(4).hex()
    if kind == "folder":
        yield Place(Folder(), f"{tmp_path}/x", fsspec.filesystem("file"), f"{tmp_path}/x")
    elif kind == "memory":
        url = f"memory://{folder}"
        yield Place(open_bucket(url), url, fsspec.filesystem("memory"), f"/{folder}")
    elif kind == "obstore":
        store = pytest.importorskip("obstore.fsspec").FsspecStore
        other = store("memory", skip_instance_cache=True)
        # Threads that ask for a bucket the first time would get a memory each.
        other._construct_store(other._split_path("lake/x")[0])
        yield Place(bucket_below(other), f"lake/{folder}", other, f"lake/{folder}")
    elif kind == "hdfs":
        server = request.getfixturevalue("hdfs")
        other = fsspec.filesystem("webhdfs", host="127.0.0.1", port=server.rpartition(":")[2])
        yield Place(open_bucket(server), f"{server}/{folder}", other, f"/{folder}")
    else:
        environment = request.getfixturevalue("moto" if kind == "s3" else "real_s3")
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        forget = fsspec.get_filesystem_class("s3").clear_instance_cache
        forget()
        fsspec.filesystem("s3").makedirs(BUCKET, exist_ok=True)
        url = f"s3://{BUCKET}/{folder}"
        yield Place(open_bucket(url), url, Boto(), folder)
        forget()


def test_what_is_written_is_there(place: Place) -> None:
    for name, data in (("a", b"1"), ("deep/er/b", bytes(300_000)), ("empty", b"")):
        place.storage.write(place.path(name), data)
    assert place.seen() == {"a": b"1", "deep/er/b": bytes(300_000), "empty": b""}
    place.storage.write(place.path("a"), b"another")
    assert place.seen()["a"] == b"another"


def test_a_new_file_replaces_none(place: Place) -> None:
    place.storage.write(place.path("a"), b"first", new=True)
    place.put("b", b"of another client")
    for name in "ab":
        with pytest.raises(FileExistsError):
            place.storage.write(place.path(name), b"second", new=True)
    assert place.seen() == {"a": b"first", "b": b"of another client"}


def test_one_of_many_makes_a_new_file(place: Place) -> None:
    """Whoever is told that it has made the file has made it, and nobody else has."""
    made: list[bytes] = []
    count = 8
    start = threading.Barrier(count)

    def write(data: bytes) -> None:
        start.wait()
        try:
            place.storage.write(place.path("one"), data, new=True)
        except FileExistsError:
            return
        made.append(data)

    if type(getattr(place.storage, "fs", None)).__module__ == "fsspec.implementations.memory":
        pytest.skip("it looks first")
    threads = [threading.Thread(target=write, args=(b"%d" % n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert place.seen() == {"one": made[0]}
    assert len(made) == 1


def test_ranges_and_starts(place: Place) -> None:
    data = bytes(range(256)) * 40
    place.put("a", data)
    place.put("empty", b"")
    path, read = place.path("a"), place.storage.read
    assert read(path) == data
    for begin, end in ((0, 1), (1, 5), (10_000, 10_240), (10_200, 20_000), (0, 10_240)):
        assert read(path, begin, end) == data[begin:end]
    assert read(path, 10_000) == data[10_000:]
    missing = place.path("missing")
    whole, start, empty, error = place.storage.starts(
        [(path, 20_000), (path, 3), (place.path("empty"), 3), (missing, 3)]
    )
    assert (whole, start, empty) == (data, data[:3], b"")
    assert isinstance(error, FileNotFoundError)
    with pytest.raises(FileNotFoundError):
        read(missing)
    assert place.storage.starts([]) == []


def test_status_tells_contents_apart(place: Place) -> None:
    path = place.path("a")
    assert place.storage.status(path) is None
    place.put("a", b"12345")
    first = place.storage.status(path)
    assert first.size == 5
    assert place.storage.status(path) == first
    place.put("a", b"123456")
    assert place.storage.status(path).size == 6
    assert place.storage.status(path) != first


def test_the_names_in_a_folder(place: Place) -> None:
    assert place.storage.names(place.path("none")) == []
    for name in ("in/a", "in/b", "in/deeper/c", "beside"):
        place.put(name, b"1")
    assert sorted(place.storage.names(place.path("in"))) == ["a", "b"]
    # A listing is not kept: another client may have changed the folder.
    place.put("in/new", b"1")
    assert sorted(place.storage.names(place.path("in"))) == ["a", "b", "new"]


@pytest.mark.parametrize("size", [10, pytest.param(33 << 20, marks=pytest.mark.slow)])
def test_staged_bytes_get_their_name(place: Place, size: int) -> None:
    if not place.storage.is_remote:
        pytest.skip("a pair of files is published in a folder: see the tests of fsspec")
    data = bytes(size)
    for name in ("to/a", "to/b"):
        staged = place.storage.scratch(place.path(name))
        staged.write(data)
        staged.commit()
        place.storage.put(staged, place.path(name), new=name == "to/b")
        staged.discard()
    assert place.seen() == {"to/a": data, "to/b": data}
    with pytest.raises(FileExistsError):
        place.storage.put(staged_file(place), place.path("to/a"), new=True)


def staged_file(place: Place) -> Any:
    staged = place.storage.scratch(place.path("x"))
    staged.write(b"1")
    staged.commit()
    return staged


def test_a_copy_replaces(place: Place) -> None:
    if not place.storage.is_remote:
        pytest.skip("a folder has no copy of its own")
    place.put("a", b"new")
    place.put("to/b", b"older")
    for target in ("to/b", "to/c"):
        place.storage.copy(place.path("a"), place.path(target))
    assert place.seen() == {"a": b"new", "to/b": b"new", "to/c": b"new"}
    with pytest.raises(FileNotFoundError):
        place.storage.copy(place.path("missing"), place.path("d"))


def test_what_is_removed_is_gone(place: Place) -> None:
    place.put("a", b"1")
    place.put("b", b"2")
    place.storage.remove(place.path("a"))
    place.storage.remove(place.path("a"))
    place.storage.remove(place.path("no/folder/a"))
    assert place.seen() == {"b": b"2"}


def test_names_that_are_patterns_to_fsspec(place: Place) -> None:
    for name in ("a*", "[b]", "c?d"):
        place.storage.write(place.path(name), name.encode())
    place.put("ab", b"other")
    place.put("b", b"other")
    for name in ("a*", "[b]", "c?d"):
        assert place.storage.read(place.path(name)) == name.encode()
        place.storage.remove(place.path(name))
    assert place.seen() == {"ab": b"other", "b": b"other"}

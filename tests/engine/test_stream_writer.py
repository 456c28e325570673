"""Writer: whole files or none, on targets of every kind."""

# Where an error may come from any statement of a `with` or a loop, the block is that long.
# ruff: noqa: PT012
from __future__ import annotations

import contextlib
import copy
import csv
import gzip
import io
import json
import mmap
import os
import pickle
import shutil
import socket
import stat
import sys
import tarfile
import tempfile
import threading
import traceback
import warnings
import weakref
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pytest
import reference
import sources
from all_pairs import all_pairs
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import ags1
from ags1 import KeyMetadata, layout

MIB = 1 << 20
THREADS = [1, 2, 4]
threads = pytest.mark.parametrize("threads", THREADS)
BLOCK = 16


def open_by_reference(stream: bytes, km: KeyMetadata) -> bytes:
    return reference.decrypt(stream, km.encryption_key, km.aad_prefix, km.file_length)


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


# ---- every kind of target ----------------------------------------------------------------------


@contextlib.contextmanager
def collecting(kind: str, path: Path) -> Iterator[tuple[Any, Callable[[], bytes]]]:
    """Yield a target and a call that returns what arrived there, to be used after closing."""
    if kind in ("path", "str", "bytes path"):
        name: Any = {"path": path, "str": str(path), "bytes path": os.fsencode(path)}[kind]
        yield name, path.read_bytes
    elif kind in ("buffered file", "raw file"):
        with path.open("wb", buffering=0 if kind == "raw file" else -1) as file:
            yield file, lambda: (file.flush(), path.read_bytes())[1]
    elif kind == "BytesIO":
        memory = io.BytesIO()
        yield memory, memory.getvalue
    elif kind == "stingy":
        stingy = sources.Stingy(at_a_time=5)
        yield stingy, stingy.inner.getvalue
    elif kind == "write only":
        sink = sources.WriteOnlyStream()
        yield sink, lambda: sink.data
    elif kind in ("SFTP", "object"):
        file = sources.Sftp() if kind == "SFTP" else sources.ObjectWriter()
        yield file, file.getvalue
    elif kind == "gzip":
        with gzip.open(path, "wb", 1) as file:
            yield file, lambda: (file.close(), gzip.decompress(path.read_bytes()))[1]
    elif kind in ("temporary file", "spooled"):
        spooled = kind == "spooled"
        with tempfile.SpooledTemporaryFile(99) if spooled else tempfile.TemporaryFile() as file:
            yield file, lambda: (file.seek(0), file.read())[1]
    elif kind == "mmap":
        with mmap.mmap(-1, 10 * MIB) as file:
            yield file, lambda: file[: file.tell()]
    else:
        parts: list[bytes] = []
        if kind == "pipe":
            read, write = os.pipe()
            receive = lambda: os.read(read, 65_536)  # noqa: E731
            file = os.fdopen(write, "wb", buffering=0)
        else:
            left, right = socket.socketpair()
            receive = lambda: left.recv(65_536)  # noqa: E731
            file = right.makefile("wb", buffering=0)
        drainer = threading.Thread(target=lambda: parts.extend(iter(receive, b"")))
        drainer.start()

        def finish() -> bytes:
            file.close()
            if kind == "socket":
                right.close()
            drainer.join()
            return b"".join(parts)

        try:
            yield file, finish
        finally:
            finish()
            if kind == "pipe":
                os.close(read)
            else:
                left.close()


KINDS = [
    "path",
    "str",
    "bytes path",
    "buffered file",
    "raw file",
    "BytesIO",
    "stingy",
    "write only",
    "pipe",
    "socket",
    "SFTP",
    "object",
    "gzip",
    "temporary file",
    "spooled",
    "mmap",
]


@all_pairs(kind=KINDS, size=[0, 1, 15, 16, 17, 160, 5000], threads=THREADS)
def test_targets(tmp_path: Path, kind: str, size: int, threads: int) -> None:
    data = reference.pattern(size)
    for step in (1, 7, 16, 40, 10_000) if size <= 160 else (999,):
        with collecting(kind, tmp_path / "file") as (target, arrived):
            with ags1.open(target, "wb", block_size=BLOCK, threads=threads) as file:
                for at in range(0, size, step):
                    part = data[at : at + step]
                    assert file.write(part) == len(part)
            assert open_by_reference(arrived(), file.key_metadata) == data


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("threads", [1, 2])
def test_large_blocks_to_every_target(
    tmp_path: Path, kind: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each larger than what a pipe holds, and a batch of its own.
    block_size = {"path": MIB, "stingy": 10_000}.get(kind, 65_536)
    monkeypatch.setattr("ags1.engine.writer.CHUNK_SIZE", block_size)
    data = reference.pattern(5 * block_size + 77)
    with collecting(kind, tmp_path / "file") as (target, arrived):
        with ags1.open(target, "wb", block_size=block_size, threads=threads, durable=False) as file:
            file.write(data[:100])
            file.write(data[100 : 3 * block_size])
            file.write(data[3 * block_size :])
        assert open_by_reference(arrived(), file.key_metadata) == data


@threads
def test_the_default_blocks_are_javas(tmp_path: Path, threads: int) -> None:
    with ags1.open(tmp_path / "file", "wb", threads=threads) as file:
        file.write(b"data")
    stream = (tmp_path / "file").read_bytes()
    assert stream[:8] == b"AGS1\0\0\x10\0"
    km = file.key_metadata
    assert (len(km.encryption_key), len(km.aad_prefix or b"")) == (32, 16)
    assert km.file_length == len(stream) == 40


def test_a_caller_s_file_stays_open() -> None:
    target = io.BytesIO()
    with ags1.open(target, "wb") as file:
        file.write(b"data")
    assert not target.closed
    assert target.tell() == 40


def test_a_file_object_is_written_from_where_it_stands() -> None:
    target = io.BytesIO(b"prefix")
    target.seek(6)
    with ags1.open(target, "wb") as file:
        file.write(b"data")
    assert target.getvalue()[:6] == b"prefix"
    assert open_by_reference(target.getvalue()[6:], file.key_metadata) == b"data"


def test_every_block_has_a_nonce_of_its_own() -> None:
    for count in (1, 3):
        target = io.BytesIO()
        with ags1.open(target, "wb", block_size=1, threads=count) as file:
            for _ in range(40):
                file.write(bytes(100))
        assert len({slot[:12] for slot in reference.slots(target.getvalue())}) == 4000


def test_any_buffer_is_written() -> None:
    data = reference.pattern(4096)
    target = io.BytesIO()
    with ags1.open(target, "wb", block_size=100) as file:
        for part in (
            bytearray(data),
            memoryview(data).cast("I"),
            np.frombuffer(data, ">i4"),
            np.frombuffer(data, "c16").reshape(2, -1),
            np.frombuffer(data, [("a", "<i4"), ("b", "<f4")]),
            np.zeros(0, "f4"),
            b"",
        ):
            assert file.write(part) in (4096, 0)
        file.writelines([b"a", bytearray(b"b"), b""])
        for bad in ("text", 5, None, [1], memoryview(data)[::2]):
            with pytest.raises((TypeError, BufferError, ValueError)):
                file.write(bad)
        assert file.tell() == 5 * 4096 + 2
    assert open_by_reference(target.getvalue(), file.key_metadata) == data * 5 + b"ab"


def test_a_buffer_may_change_after_write() -> None:
    for count in (1, 3):
        target = io.BytesIO()
        buffer = bytearray(3000)
        with ags1.open(target, "wb", block_size=100, threads=count) as file:
            for i in range(50):
                buffer[:] = bytes([i]) * 3000
                file.write(buffer)
            buffer.append(0)
        expected = b"".join(bytes([i]) * 3000 for i in range(50))
        assert open_by_reference(target.getvalue(), file.key_metadata) == expected


# ---- the io protocol ---------------------------------------------------------------------------


def test_the_io_protocol(tmp_path: Path) -> None:
    path = tmp_path / "file"
    file = ags1.open(path, "wb")
    assert isinstance(file, io.BufferedIOBase)
    assert isinstance(file, ags1.Writer)
    assert os.fspath(file.name) == str(path)
    assert file.mode == "wb"
    assert file.block_size == MIB
    assert (file.readable(), file.writable(), file.seekable()) == (False, True, False)
    assert not file.isatty()
    assert not file.closed
    assert file.tell() == 0
    file.write(b"12345")
    assert file.tell() == 5
    file.flush()
    for call in (
        lambda: file.read(),
        lambda: file.read1(),
        lambda: file.readinto(bytearray(1)),
        lambda: file.readline(),
        lambda: file.seek(0),
        lambda: file.truncate(0),
        lambda: file.detach(),
        lambda: file.fileno(),
    ):
        with pytest.raises(io.UnsupportedOperation):
            call()
    assert str(path) in repr(file)
    assert file.__enter__() is file
    file.close()
    file.close()
    assert file.closed
    for call in (
        lambda: file.write(b""),
        lambda: file.write(b"x"),
        lambda: file.writelines([b"x"]),
        lambda: file.tell(),
        lambda: file.flush(),
        lambda: file.writable(),
        lambda: file.__enter__(),
    ):
        with pytest.raises(ValueError, match="closed"):
            call()
    assert open_by_reference(path.read_bytes(), file.key_metadata) == b"12345"


def test_nothing_but_the_public_names_shows() -> None:
    target = io.BytesIO()
    with ags1.open(target, "wb", block_size=BLOCK) as file:
        names = {name for name in dir(file) if not name.startswith("_")}
        public = {n for n in dir(io.BufferedWriter) if n[0] != "_"} - {"raw"}
        public |= {n for n in dir(io.BufferedReader) if n[0] != "_"} - {"raw"}
        assert names == public | {"abort", "block_size", "key_metadata"}
        file.write(b"five!")
        inherited = {*dir(object), *dir(io.BufferedWriter)}
        own = {name for name in dir(file) if name not in inherited}
        for name in own | {"position", "busy", "batch", "core", "_position", "_next_block"}:
            with pytest.raises(AttributeError):
                setattr(file, name, 0)
        with pytest.raises(RuntimeError, match="open already"):
            file.__init__(io.BytesIO(), reuse_key=True)
        file.write(bytes(100))
    assert open_by_reference(target.getvalue(), file.key_metadata) == b"five!" + bytes(100)
    assert file.key_metadata.file_length == len(target.getvalue())
    # One that was never opened refuses, and does nothing worse.
    file = type(file).__new__(type(file))
    assert repr(file).startswith("<ags1 Writer name=None")
    assert file.closed
    file.close()
    file.abort()
    for call in (lambda: file.write(b"x"), file.tell):
        with pytest.raises((ValueError, AttributeError)):
            call()


def test_no_pool_is_made_for_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ags1.engine.writer.Pool", pytest.fail)
    with ags1.open(io.BytesIO(), "wb", block_size=BLOCK) as file:
        file.write(bytes(5000))


def test_key_metadata_comes_with_closing() -> None:
    target = io.BytesIO()
    file = ags1.open(target, "wb")
    with pytest.raises(ValueError, match="closed"):
        _ = file.key_metadata
    file.write(b"data")
    with pytest.raises(ValueError, match="closed"):
        _ = file.key_metadata
    file.close()
    assert file.key_metadata.file_length == len(target.getvalue())
    with pytest.raises(AttributeError):
        file.key_metadata = None


def test_pickling_and_copying_are_refused() -> None:
    with ags1.open(io.BytesIO(), "wb") as file:
        for call in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError):
                call(file)


def test_text_mode(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with ags1.open(path, "wt", encoding="utf-16-le", newline="\r\n", block_size=7) as file:
        assert isinstance(file, io.TextIOBase)
        file.write("zwölf\n")
        print("Boxkämpfer", file=file)
    km = file.key_metadata
    expected = "zwölf\r\nBoxkämpfer\r\n".encode("utf-16-le")
    assert open_by_reference(path.read_bytes(), km) == expected
    with ags1.open(path, "rt", km, encoding="utf-16-le") as file:
        assert file.readlines() == ["zwölf\n", "Boxkämpfer\n"]
    with pytest.raises(FileExistsError):
        ags1.open(path, "xt")
    with ags1.open(tmp_path / "other", "xt", encoding="ascii", errors="replace") as file:
        file.write("ö")
    assert open_by_reference((tmp_path / "other").read_bytes(), file.key_metadata) == b"?"


def ask(file: Any, name: str) -> bool:
    return getattr(file, name)()  # type: ignore[no-any-return]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "utf-8-sig", "utf-16-le", "utf-8"])
def test_text_begins_with_the_mark_that_files_have(tmp_path: Path, encoding: str) -> None:

    def fill(file: Any) -> Iterator[int]:
        for piece in ("", "z", "wölf\n"):
            file.write(piece)
            yield file.tell()

    with open(tmp_path / "plain", "w", encoding=encoding, newline="") as file:
        expected = list(fill(file))
    for make in (ags1.open, lambda *a, **more: io.TextIOWrapper(ags1.open(a[0], "wb"), **more)):
        with make(tmp_path / "file", "wt", encoding=encoding, newline="") as file:
            assert list(fill(file)) == expected
        sealed, km = (tmp_path / "file").read_bytes(), file.buffer.key_metadata
        assert open_by_reference(sealed, km) == (tmp_path / "plain").read_bytes()
    with ags1.open(io.BytesIO(), "wt", encoding=encoding) as file:
        for stream in (file, file.buffer):
            asked = stream.readable(), stream.writable(), stream.seekable()
            assert asked == (False, True, False)
            # Both calls come from the same place in the same function.
            names = ["writable", "seekable"]
            assert (ask(stream, names[0]), ask(stream, names[1])) == (True, False)
        with pytest.raises(io.UnsupportedOperation):
            file.seek(0)


def test_a_failed_encoding_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(UnicodeEncodeError):
        with ags1.open(tmp_path / "file", "wt", encoding="ascii") as file:
            file.write("fine" * 10_000)
            file.write("ö")
    assert names(tmp_path) == []


# ---- keys --------------------------------------------------------------------------------------


def test_a_used_key_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    used = ags1.encrypt(b"").key_metadata
    target = io.BytesIO()
    for file in (tmp_path / "file", target):
        for mode in ("wb", "xb", "wt"):
            with pytest.raises(ags1.KeyReuseError):
                ags1.open(file, mode, used)
    assert names(tmp_path) == []
    assert target.getvalue() == b""
    with ags1.open(target, "wb", used, reuse_key=True) as writer:
        writer.write(b"data")
    assert writer.key_metadata == used.with_file_length(40)
    assert open_by_reference(target.getvalue(), writer.key_metadata) == b"data"


@pytest.mark.parametrize("prefix", [None, b"", b"any prefix"])
@pytest.mark.parametrize("key_size", [16, 24, 32])
def test_a_given_key_is_used(prefix: bytes | None, key_size: int) -> None:
    km = KeyMetadata(bytes(key_size), prefix)
    target = io.BytesIO()
    with ags1.open(target, "wb", km) as file:
        file.write(b"data")
    assert file.key_metadata == km.with_file_length(40)
    assert reference.decrypt(target.getvalue(), bytes(key_size), prefix, 40) == b"data"


def test_fresh_keys_of_the_size_asked_for() -> None:
    for key_size in (16, 24, 32):
        seen = set()
        for _ in range(5):
            with ags1.open(io.BytesIO(), "wb", key_size=key_size) as file:
                pass
            seen.add(file.key_metadata.encryption_key)
        assert {len(key) for key in seen} == {key_size}
        assert len(seen) == 5


def test_bad_arguments(tmp_path: Path) -> None:
    for more, kind in (
        ({"key_size": 20}, ags1.KeyMetadataError),
        ({"block_size": 0}, ags1.FormatError),
        ({"block_size": layout.MAX_BLOCK_SIZE + 1}, ags1.FormatError),
        ({"threads": 0}, ValueError),
        ({"km": "key"}, TypeError),
        ({"km": bytes(16)}, TypeError),
        ({"encoding": "ascii"}, ValueError),
    ):
        with pytest.raises(kind):
            ags1.open(tmp_path / "file", "wb", **more)
        assert names(tmp_path) == []
    for bad in (None, 1.5, object(), io.StringIO()):
        with pytest.raises(TypeError):
            ags1.open(bad, "wb")
    with pytest.raises((io.UnsupportedOperation, ValueError, TypeError)):
        ags1.open(sources.ReadOnlyStream(b""), "wb").close()


# ---- whole or not at all -----------------------------------------------------------------------


def test_the_name_appears_with_closing(tmp_path: Path) -> None:
    path = tmp_path / "file"
    file = ags1.open(path, "wb", block_size=BLOCK)
    file.write(bytes(5000))
    assert not path.exists()
    file.close()
    assert path.stat().st_size == layout.encrypted_size(5000, BLOCK)
    assert names(tmp_path) == ["file"]


def test_an_existing_file_stays_until_closing(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    path.chmod(0o640)
    file = ags1.open(path, "wb")
    file.write(b"data")
    assert path.read_bytes() == b"old"
    file.close()
    assert open_by_reference(path.read_bytes(), file.key_metadata) == b"data"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


@pytest.mark.thread_unsafe(reason="the umask is the process's")
@pytest.mark.parametrize("mask", [0o022, 0o077, 0])
def test_a_new_files_mode_is_the_umasks(tmp_path: Path, mask: int) -> None:
    previous = os.umask(mask)
    try:
        with ags1.open(tmp_path / "file", "wb") as file:
            file.write(b"data")
    finally:
        os.umask(previous)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o666 & ~mask


@pytest.mark.parametrize("mode", ["x", "xb", "xt"])
def test_exclusive_creation(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"precious")
    with pytest.raises(FileExistsError) as caught:
        ags1.open(path, mode)
    assert caught.value.filename == str(path)
    other = tmp_path / "other"
    file = ags1.open(other, mode)
    other.write_bytes(b"another's")
    with pytest.raises(FileExistsError):
        file.close()
    assert (path.read_bytes(), other.read_bytes()) == (b"precious", b"another's")
    assert names(tmp_path) == ["file", "other"]
    with pytest.raises(ValueError, match="closed"):
        _ = file.key_metadata


class StopHere(BaseException):
    pass


@threads
@pytest.mark.parametrize("kind", [RuntimeError, KeyboardInterrupt, StopHere, GeneratorExit])
@pytest.mark.parametrize("written", [0, 5, 16, 17, 5000])
def test_an_exception_inside_with_leaves_no_file(
    tmp_path: Path, written: int, kind: type[BaseException], threads: int
) -> None:
    for path in (tmp_path / "new", tmp_path / "old"):
        (tmp_path / "old").write_bytes(b"old")
        with pytest.raises(kind):
            with ags1.open(path, "wb", block_size=BLOCK, threads=threads) as file:
                file.write(bytes(written))
                raise kind
        assert names(tmp_path) == ["old"]
        assert (tmp_path / "old").read_bytes() == b"old"
        assert file.closed
        with pytest.raises(ValueError, match="closed"):
            _ = file.key_metadata


@all_pairs(kind=KINDS, written=[0, 5, 16, 17, 32, 5000], threads=THREADS)
def test_abort_leaves_nothing_that_could_be_taken_for_a_file(
    tmp_path: Path, kind: str, written: int, threads: int
) -> None:
    km = KeyMetadata(bytes(16), b"prefix")
    with collecting(kind, tmp_path / "file") as (target, arrived):
        file = ags1.open(target, "wb", km, block_size=BLOCK, threads=threads)
        file.write(reference.pattern(written))
        file.abort()
        file.abort()
        file.close()
        assert file.closed
        with pytest.raises(ValueError, match="closed"):
            _ = file.key_metadata
        if "path" in kind or kind == "str":
            assert names(tmp_path) == []
            return
        stream = arrived()
    # Nothing that anybody could be made to believe is whole, whatever its length is said to be.
    with pytest.raises(reference.RefusedError):
        reference.decrypt(stream, bytes(16), b"prefix", len(stream))
    with pytest.raises(ags1.Ags1Error):
        ags1.decrypt(stream, km, trust_file_size=True)
    with pytest.raises(ags1.Ags1Error):
        ags1.decrypt(stream, km.with_file_length(len(stream)))


@all_pairs(
    written=[0, 5, BLOCK, 3 * BLOCK + 5, 5000],
    behind=[0, 1, 8, 8 + 2 * (BLOCK + 28), 1000],
    kind=["BytesIO", "SFTP", "no truncate"],
    threads=THREADS,
)
def test_abort_leaves_what_lay_in_front_and_behind(
    written: int, behind: int, kind: str, threads: int
) -> None:
    class Target(io.BytesIO):
        def truncate(self, size: int | None = None, /) -> int:
            raise io.UnsupportedOperation

    truncates = kind != "no truncate"
    make = {"BytesIO": io.BytesIO, "SFTP": sources.Sftp, "no truncate": Target}[kind]
    km = KeyMetadata(bytes(16), b"prefix")
    # What lies behind the start is a file under the same key: the two must not become one.
    old = ags1.encrypt(bytes(2000), km=km, block_size=BLOCK, reuse_key=True).data[:behind]
    target: Any = make(b"in front" + old)
    target.seek(8)
    file = ags1.open(target, "wb", km, block_size=BLOCK, threads=threads, reuse_key=True)
    file.write(reference.pattern(written))
    reached = target.tell() - 8
    file.abort()
    assert target.tell() == 8
    left = target.getvalue()
    assert left[:8] == b"in front"
    assert left[8 + reached :] == old[reached:] or not truncates
    assert len(left) == 8 + behind or not truncates
    for length in {len(left) - 8, reached, 8 + BLOCK + 28}:
        stream = left[8 : 8 + length]
        for trusted in (km, km.with_file_length(len(stream))):
            with pytest.raises(ags1.Ags1Error):
                ags1.decrypt(stream, trusted, trust_file_size=True)


def test_abort_adds_one_byte_to_what_went_down_a_pipe() -> None:
    target = sources.WriteOnlyStream()
    file = ags1.open(target, "wb", block_size=BLOCK)
    file.write(bytes(5000))
    before = target.data
    file.abort()
    assert target.data == before + b"\0"


def test_abort_after_closing_does_nothing(tmp_path: Path) -> None:
    with ags1.open(tmp_path / "file", "wb") as file:
        file.write(b"data")
    file.abort()
    assert open_by_reference((tmp_path / "file").read_bytes(), file.key_metadata) == b"data"


@pytest.mark.parametrize("mode", ["wb", "wt"])
def test_dropping_a_writer_leaves_no_file_and_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    said: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", said.append)
    (tmp_path / "old").write_bytes(b"old")
    for path in (tmp_path / "new", tmp_path / "old"):
        file = ags1.open(path, mode)
        file.write(b"data" if mode == "wb" else "data")
        del file
        assert (
            str(said.pop().exc_value) == f"{path}: the writer was not closed: nothing was written"
        )
        assert not said
        assert names(tmp_path) == ["old"]
        assert (tmp_path / "old").read_bytes() == b"old"


class Failing(io.RawIOBase):
    """Takes so many bytes and then fails once."""

    def __init__(self, room: int, error: BaseException | None) -> None:
        self.data = b""
        self.room = room
        self.error = error

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int | None:
        data = bytes(data)[: self.room]
        if not data:
            self.room = 10**9
            if self.error is None:
                return None
            raise self.error
        self.room -= len(data)
        self.data += data
        return len(data)


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written goes on to the target after about 1000 bytes in place of 1 MiB."""
    monkeypatch.setattr("ags1.engine.writer.CHUNK_SIZE", 1000)


@pytest.mark.usefixtures("small_batches")
@threads
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), StopHere(), None])
@pytest.mark.parametrize("room", [0, 3, 8, 20, 1000, 5000])
def test_a_target_that_fails(room: int, error: BaseException | None, threads: int) -> None:
    target = Failing(room, error)
    kind = BlockingIOError if error is None else type(error)
    km = KeyMetadata(bytes(16))
    with pytest.raises(kind) as caught:
        with ags1.open(target, "wb", km, block_size=BLOCK, threads=threads) as file:
            for _ in range(1000):
                file.write(bytes(50))
    if error is not None:
        assert caught.value is error
    # The target works again, and yet must not become a file that looks whole.
    with pytest.raises(reference.RefusedError):
        reference.decrypt(target.data, bytes(16), None, len(target.data))


@pytest.mark.usefixtures("small_batches")
@threads
def test_a_failed_write_is_remembered(threads: int) -> None:
    target = Failing(1000, OSError(28, "No space left on device"))
    file = ags1.open(target, "wb", block_size=BLOCK, threads=threads)
    with pytest.raises(OSError, match="No space"):
        for _ in range(1000):
            file.write(bytes(50))
    for call in (lambda: file.write(bytes(5)), lambda: file.write(bytes(5000)), file.close):
        with pytest.raises(OSError, match="No space"):
            call()
    with pytest.raises(ValueError, match="closed"):
        _ = file.key_metadata
    assert file.closed
    file.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@threads
def test_a_full_device(threads: int) -> None:
    with pytest.raises(OSError, match="No space"):
        with open("/dev/full", "wb", buffering=0) as target:
            with ags1.open(target, "wb", threads=threads) as file:
                file.write(bytes(3 * MIB))


def test_targets_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for target, kind in (
        (tmp_path / "no" / "folder", FileNotFoundError),
        (tmp_path, IsADirectoryError),
        (tmp_path / "file" / "below", NotADirectoryError),
    ):
        with pytest.raises(kind) as caught:
            ags1.open(target, "wb")
        assert caught.value.filename == str(target)


def test_durable_syncs_the_file_before_its_name_and_then_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    real = {name: getattr(os, name) for name in ("fsync", "rename", "link", "replace")}

    def fsync(fd: int) -> None:
        steps.append("sync folder" if stat.S_ISDIR(os.fstat(fd).st_mode) else "sync file")
        real["fsync"](fd)

    def publish(name: str) -> Callable[..., None]:
        def step(*arguments: Any, **more: Any) -> None:
            # To replace a file takes two such steps.
            steps.extend(["publish"] * (steps[-1:] != ["publish"]))
            real[name](*arguments, **more)

        return step

    monkeypatch.setattr(os, "fsync", fsync)
    for name in ("rename", "link", "replace"):
        monkeypatch.setattr(os, name, publish(name))
    for mode in ("xb", "wb", "wt"):
        steps.clear()
        ags1.open(tmp_path / "one", mode).close()
        assert steps == ["sync file", "publish", "sync folder"]
    steps.clear()
    ags1.open(tmp_path / "two", "wb", durable=False).close()
    assert steps == ["publish"]


@pytest.mark.thread_unsafe(reason="counts those of the process")
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts in /proc")
def test_no_descriptor_or_thread_is_left_behind(tmp_path: Path) -> None:
    def attempts() -> None:
        for count in (1, 3):
            with ags1.open(tmp_path / "file", "wb", block_size=BLOCK, threads=count) as file:
                file.write(bytes(5000))
            file = ags1.open(tmp_path / "file", "wb", block_size=BLOCK, threads=count)
            file.write(bytes(5000))
            file.abort()
            with pytest.raises(FileExistsError):
                ags1.open(tmp_path / "file", "xb", threads=count)
            with pytest.raises(ags1.KeyReuseError):
                ags1.open(tmp_path / "file", "wb", KeyMetadata(bytes(16), None, 36))

    attempts()
    before = os.listdir("/proc/self/fd"), threading.active_count()
    attempts()
    assert (os.listdir("/proc/self/fd"), threading.active_count()) == before


# ---- threads and forks -------------------------------------------------------------------------


@threads
def test_many_threads_write_one_stream(threads: int) -> None:
    target = io.BytesIO()
    with ags1.open(target, "wb", block_size=100, threads=threads) as file:

        def work(seed: int) -> None:
            for _ in range(300):
                file.write(bytes([seed]) * 33)

        workers = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    data = open_by_reference(target.getvalue(), file.key_metadata)
    # Each write arrived in one piece.
    pieces = [data[at : at + 33] for at in range(0, len(data), 33)]
    assert all(len(set(piece)) == 1 for piece in pieces)
    assert sorted(piece[0] for piece in pieces) == sorted(list(range(8)) * 300)


def use_after_a_fork(ending: str, opened: dict[str, Any], rubbish: str | bytes) -> None:
    """Do in the child what must leave the parent's file alone."""
    file = opened.pop(ending)
    if ending == "close":
        with pytest.raises(ags1.KeyReuseError, match="fork"):
            file.close()
    elif ending == "abort":
        file.abort()
    elif ending == "drop":
        dropped = weakref.ref(file)
        del file
        assert dropped() is None
    elif ending == "with":
        with pytest.raises(ags1.KeyReuseError):
            with file:
                file.write(rubbish)
    else:
        for _ in range(3):
            with pytest.raises(ags1.KeyReuseError, match="fork"):
                file.write(rubbish)
                file.flush()


# Of `make test`: one thread and four.
@pytest.mark.slow_variants(r"2-.*")
@pytest.mark.thread_unsafe(reason="a child of a fork has one thread")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("mode", ["wb", "wt"])
@threads
def test_a_fork_while_writing(tmp_path: Path, mode: str, threads: int) -> None:
    endings = ["abort", "close", "drop", "with", "write"]
    first, second = reference.pattern(5000).hex(), reference.pattern(3000).hex()
    parts: list[Any] = [first, second, "rubbish" * 5000]
    if mode == "wb":
        parts = [part.encode() for part in parts]
    opened = {
        ending: ags1.open(tmp_path / ending, mode, block_size=BLOCK, threads=threads)
        for ending in endings
    }
    for file in opened.values():
        file.write(parts[0])
    del file
    child = os.fork()
    if child == 0:
        failed = 0
        warnings.simplefilter("ignore")
        for number, ending in enumerate(endings):
            try:
                use_after_a_fork(ending, opened, parts[2])
            except BaseException:
                traceback.print_exc()
                failed |= 1 << number
        os._exit(failed)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code == 0, [e for number, e in enumerate(endings) if code < 0 or code >> number & 1]
    for ending, file in opened.items():
        file.write(parts[1])
        file.close()
        stream = (tmp_path / ending).read_bytes()
        assert open_by_reference(stream, file.key_metadata) == (first + second).encode(), ending
    assert names(tmp_path) == endings


@pytest.mark.thread_unsafe(reason="a child of a fork has one thread")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_while_writing_to_a_file_object(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("wb", buffering=0) as target:
        file = ags1.open(target, "wb", block_size=BLOCK)
        file.write(bytes(5000))
        child = os.fork()
        if child == 0:
            warnings.simplefilter("ignore")
            dropped = weakref.ref(file)
            del file
            os._exit(dropped() is not None)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        file.write(bytes(100))
        file.close()
    assert open_by_reference(path.read_bytes(), file.key_metadata) == bytes(5100)


# ---- other people's code over it ---------------------------------------------------------------


@threads
@pytest.mark.parametrize("block_size", [100, 4096, MIB])
def test_fastavro(block_size: int, threads: int) -> None:
    schema = fastavro.parse_schema(
        {"type": "record", "name": "r", "fields": [{"name": "id", "type": "long"}]}
    )
    records = [{"id": i} for i in range(6000)]
    target = io.BytesIO()
    with ags1.open(target, "wb", block_size=block_size, threads=threads) as file:
        fastavro.writer(file, schema, records)
    plain = open_by_reference(target.getvalue(), file.key_metadata)
    assert list(fastavro.reader(io.BytesIO(plain))) == records
    with ags1.open(io.BytesIO(target.getvalue()), "rb", file.key_metadata) as reader:
        assert list(fastavro.reader(reader)) == records


def test_the_standard_librarys_writers() -> None:
    def through(write: Callable[[Any], object]) -> io.BytesIO:
        target = io.BytesIO()
        with ags1.open(target, "wb", block_size=50) as file:
            write(file)
        return io.BytesIO(open_by_reference(target.getvalue(), file.key_metadata))

    def zipped(file: Any) -> None:
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("a", b"a" * 5000)

    def tarred(file: Any) -> None:
        with tarfile.open(fileobj=file, mode="w|gz") as archive:
            archive.addfile(tarfile.TarInfo("empty"))

    def commas(file: Any) -> None:
        with io.TextIOWrapper(file, newline="", write_through=True) as text:
            csv.writer(text).writerow([1, 2])

    assert zipfile.ZipFile(through(zipped)).read("a") == b"a" * 5000
    with tarfile.open(fileobj=through(tarred)) as archive:
        assert archive.getnames() == ["empty"]
    assert through(lambda file: pickle.dump([1, 2], file)).read() == pickle.dumps([1, 2])
    assert through(commas).read() == b"1,2\r\n"
    assert np.load(through(lambda file: np.save(file, np.arange(9)))).tolist() == list(range(9))
    copied = through(lambda file: shutil.copyfileobj(io.BytesIO(reference.pattern(10_000)), file))
    assert copied.read() == reference.pattern(10_000)
    dumped = through(lambda file: json.dump({"a": 1}, io.TextIOWrapper(file, write_through=True)))
    assert json.load(dumped) == {"a": 1}


# ---- the model ---------------------------------------------------------------------------------


class WriterMachine(RuleBasedStateMachine):
    """Whatever is written must be what the reference decrypts."""

    @initialize(
        block_size=st.integers(1, 80),
        threads=st.sampled_from([1, 1, 2, 4]),
        kind=st.sampled_from(["BytesIO", "stingy", "write only"]),
        chunk=st.sampled_from([1, 100, 1 << 20]),
    )
    def open(self, block_size: int, threads: int, kind: str, chunk: int) -> None:
        # A small chunk brings the hand-over from batch to batch within reach of small writes.
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr("ags1.engine.writer.CHUNK_SIZE", chunk)
        self.target: Any = {
            "BytesIO": io.BytesIO,
            "stingy": sources.Stingy,
            "write only": sources.WriteOnlyStream,
        }[kind]()
        self.model = io.BytesIO()
        self.block_size = block_size
        self.file = ags1.open(self.target, "wb", block_size=block_size, threads=threads)

    @precondition(lambda self: not self.file.closed)
    @rule(size=st.integers(0, 300), kind=st.sampled_from([bytes, bytearray, memoryview]))
    def write(self, size: int, kind: Any) -> None:
        at = self.model.tell()
        data = reference.pattern(at + size)[at:]
        assert self.file.write(kind(data)) == self.model.write(data) == size

    @precondition(lambda self: not self.file.closed)
    @rule(sizes=st.lists(st.integers(0, 50), max_size=5))
    def writelines(self, sizes: list[int]) -> None:
        lines = [os.urandom(size) for size in sizes]
        self.file.writelines(lines)
        self.model.writelines(lines)

    @precondition(lambda self: not self.file.closed)
    @rule()
    def flush(self) -> None:
        self.file.flush()

    @precondition(lambda self: not self.file.closed)
    @rule(bad=st.sampled_from(["text", None, 5]))
    def write_something_else(self, bad: Any) -> None:
        with pytest.raises(TypeError):
            self.file.write(bad)

    @invariant()
    def same_place(self) -> None:
        if hasattr(self, "file") and not self.file.closed:
            assert self.file.tell() == self.model.tell()

    @rule()
    def close(self) -> None:
        self.file.close()

    def teardown(self) -> None:
        if not hasattr(self, "file"):
            return
        self.patch.undo()
        self.file.close()
        if isinstance(self.target, io.BytesIO):
            stream = self.target.getvalue()
        elif isinstance(self.target, sources.Stingy):
            stream = self.target.inner.getvalue()
        else:
            stream = self.target.data
        assert stream[:8] == layout.build_header(self.block_size)
        assert open_by_reference(stream, self.file.key_metadata) == self.model.getvalue()


WriterMachine.TestCase.settings = settings(max_examples=25, stateful_step_count=25)
test_the_writer_writes_what_the_reference_reads: Callable[..., Any] = WriterMachine.TestCase


@pytest.mark.slow
class TestManyWrites(WriterMachine.TestCase):  # type: ignore[misc, name-defined]
    settings = settings(max_examples=150, stateful_step_count=25)


def test_a_second_thread_waits_for_the_first_one_s_write() -> None:
    gate, arrived, target = threading.Event(), threading.Event(), io.BytesIO()

    class Slow:
        def write(self, data: memoryview) -> int:
            if target.tell() > 100:
                arrived.set()
                gate.wait()
            return target.write(data)

    # One block a batch, so that the first thread sends while the second one wants to fill.
    size = 1 << 20
    with ags1.open(Slow(), "wb") as file:
        file.write(b"a" * size)
        first = threading.Thread(target=file.write, args=(b"b" * (size // 2 + size),))
        first.start()
        arrived.wait()
        second = threading.Thread(target=file.write, args=(b"c" * 10,))
        second.start()
        second.join(0.1)
        gate.set()
        first.join()
        second.join()
    plaintext = ags1.decrypt(target.getvalue(), file.key_metadata)
    assert plaintext == b"a" * size + b"b" * (size // 2 + size) + b"c" * 10

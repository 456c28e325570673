"""Reader: a file like any other, and ``pread``/``readv`` beside it."""

# Where an error may come from any statement of a `with` or a loop, the block is that long.
# ruff: noqa: PT012
from __future__ import annotations

import concurrent.futures
import copy
import csv
import errno
import gc
import io
import json
import os
import pickle
import random
import shutil
import signal
import struct
import tarfile
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pyarrow
import pytest
import reference
import sources
from all_pairs import all_pairs
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import ags1
from ags1 import KeyMetadata, layout
from ags1.engine import blocks
from ags1.host.process import PerProcess

MIB = 1 << 20
KEY, PREFIX = bytes(range(32)), b"sixteen byte aad"
THREADS = [1, 2, 4]
threads = pytest.mark.parametrize("threads", THREADS)
SEEKABLE = ["path", "str", "bytes path", "BytesIO", "buffered file", "raw file", "pread", "stingy"]
SEEKABLE += ["stingy ranges", "pyarrow", "pyarrow in memory", "pyarrow over Python", "SFTP", "mmap"]
SEEKABLE += ["temporary file", "spooled", "object", "zip member", "tar member", "gzip", "bz2"]
SEQUENTIAL = ["pipe", "socket", "read only", "bytearrays", "memoryviews", "Arrow's buffers"]
SEQUENTIAL += ["download", "HTTP stream", "http.client", "urllib3", "tar stream"]


def sealed(data: bytes, block_size: int = 16) -> tuple[bytes, KeyMetadata]:
    stream = reference.encrypt(data, KEY, PREFIX, block_size)
    return stream, KeyMetadata(KEY, PREFIX, len(stream))


def reader(data: bytes, block_size: int = 16, **more: Any) -> Any:
    stream, km = sealed(data, block_size)
    return ags1.open(io.BytesIO(stream), "rb", km, **more)


# ---- every kind of source ----------------------------------------------------------------------


@all_pairs(kind=SEEKABLE, size=[0, 1, 15, 16, 17, 160, 5000], threads=THREADS)
def test_sources_that_seek(tmp_path: Path, kind: str, size: int, threads: int) -> None:
    data = reference.pattern(size)
    stream, km = sealed(data)
    with sources.seekable_sources(stream, tmp_path / "file")[kind]() as source:
        with ags1.open(source, "rb", km, threads=threads) as file:
            assert file.seekable()
            assert (file.plaintext_size, file.block_size) == (size, 16)
            assert file.encrypted_size == len(stream)
            assert file.read() == data
            assert file.read() == b""
            file.seek(size // 2)
            assert file.read() == data[size // 2 :]
            assert file.pread(size // 3, 40) == data[size // 3 :][:40]
            file.seek(0)
            out = bytearray(b"\xaa" * (size + 5))
            assert file.readinto(out) == size
            assert out == data + b"\xaa" * 5


@all_pairs(kind=SEQUENTIAL, size=[0, 1, 15, 16, 17, 160, 5000, 100_000], threads=THREADS)
def test_sources_that_do_not_seek(kind: str, size: int, threads: int) -> None:
    data = reference.pattern(size)
    stream, km = sealed(data)
    make = sources.sequential_sources(stream)[kind]
    for take in (-1, 1, 7, 16, 40, 3000) if size <= 5000 else (-1,):
        with make() as source, ags1.open(source, "rb", km, threads=threads) as file:
            assert not file.seekable()
            assert file.plaintext_size == size
            if take == -1:
                assert file.read() == data
            else:
                assert list(iter(lambda f=file, n=take: f.read(n), b"")) == [
                    data[i : i + take] for i in range(0, size, take)
                ]
                assert file.tell() == size


@pytest.mark.parametrize("kind", SEQUENTIAL)
def test_what_a_source_that_does_not_seek_refuses(kind: str) -> None:
    stream, km = sealed(bytes(100))
    with sources.sequential_sources(stream)[kind]() as source:
        with ags1.open(source, "rb", km) as file:
            for call in (
                lambda: file.seek(0, os.SEEK_SET),
                lambda: file.pread(0, 10),
                lambda: file.readv([(0, 10)]),
            ):
                file.read(20)
                with pytest.raises(io.UnsupportedOperation):
                    call()
            assert file.read() == bytes(40)


@pytest.mark.parametrize("kind", SEQUENTIAL)
def test_a_source_that_does_not_seek_is_checked_to_its_end(kind: str) -> None:
    stream, km = sealed(reference.pattern(100))
    for changed, error in (
        (stream + b"\0", ags1.FormatError),
        (stream + stream, ags1.FormatError),
        (stream[:-1], ags1.TruncatedError),
        (stream[:-20], ags1.TruncatedError),
        (stream[:-32], ags1.TruncatedError),
        (stream[:9], ags1.TruncatedError),
        (stream[:3], ags1.TruncatedError),
        (b"", ags1.TruncatedError),
    ):
        for take in (-1, 13, 100, 101):
            returned = b""
            with sources.sequential_sources(changed)[kind]() as source:
                with pytest.raises(error):
                    with ags1.open(source, "rb", km) as file:
                        while part := file.read(take):
                            returned += part
            assert reference.pattern(100).startswith(returned)


@pytest.mark.parametrize("kind", SEQUENTIAL)
def test_empty_files_from_a_source_that_does_not_seek(kind: str) -> None:
    for stream in (layout.build_header(16), sealed(b"")[0]):
        km = KeyMetadata(KEY, PREFIX, len(stream))
        with sources.sequential_sources(stream)[kind]() as source:
            assert ags1.open(source, "rb", km).read() == b""
        with sources.sequential_sources(stream + b"\0")[kind]() as source:
            with pytest.raises(ags1.FormatError):
                ags1.open(source, "rb", km).read()


@pytest.mark.parametrize("kind", SEQUENTIAL)
def test_a_pipe_needs_a_trusted_length(kind: str) -> None:
    stream, km = sealed(b"data")
    without = KeyMetadata(km.encryption_key, km.aad_prefix)
    for trust in (False, True):
        with sources.sequential_sources(stream)[kind]() as source:
            with pytest.raises(ags1.MissingFileLengthError):
                ags1.open(source, "rb", without, trust_file_size=trust)


@pytest.mark.thread_unsafe(reason="counts those of the process")
def test_a_caller_s_file_stays_open_and_ours_is_closed(tmp_path: Path) -> None:
    stream, km = sealed(b"data")
    source = io.BytesIO(stream)
    with ags1.open(source, "rb", km) as file:
        file.read()
    assert not source.closed
    (tmp_path / "file").write_bytes(stream)
    if Path("/proc/self/fd").exists():
        before = os.listdir("/proc/self/fd")
        with ags1.open(tmp_path / "file", "rb", km) as file:
            file.read()
            assert len(os.listdir("/proc/self/fd")) > len(before)
        assert os.listdir("/proc/self/fd") == before


def test_a_file_object_is_read_from_where_it_stands(tmp_path: Path) -> None:
    stream, km = sealed(reference.pattern(100))
    (tmp_path / "file").write_bytes(b"prefix" + stream)
    with (tmp_path / "file").open("rb") as on_disk:
        for source in (io.BytesIO(b"prefix" + stream), on_disk):
            source.seek(6)
            with ags1.open(source, "rb", km) as file:
                assert file.read() == reference.pattern(100)
                assert file.pread(50, 50) == reference.pattern(100)[50:]


def test_the_source_is_not_changed() -> None:
    stream, km = sealed(reference.pattern(100))
    for content in (stream, stream[:40] + b"\0" + stream[41:]):
        source = io.BytesIO(content)
        with ags1.open(source, "rb", km) as file:
            for call in (file.read, lambda f=file: f.pread(0, 100), lambda f=file: f.pread(80, 9)):
                try:
                    call()
                except ags1.AuthenticationError:
                    assert content != stream
        assert source.getvalue() == content


# ---- the io protocol ---------------------------------------------------------------------------


def test_the_io_protocol(tmp_path: Path) -> None:
    stream, km = sealed(b"line\nanother\nlast")
    path = tmp_path / "file"
    path.write_bytes(stream)
    file = ags1.open(path, "rb", km)
    assert isinstance(file, io.BufferedIOBase)
    assert isinstance(file, ags1.Reader)
    assert os.fspath(file.name) == str(path)
    assert file.mode == "rb"
    assert (file.readable(), file.writable(), file.seekable()) == (True, False, True)
    assert not file.isatty()
    assert not file.closed
    assert file.tell() == 0
    assert file.readlines() == [b"line\n", b"another\n", b"last"]
    file.seek(0)
    assert list(file) == [b"line\n", b"another\n", b"last"]
    assert iter(file) is file
    for call in (
        lambda: file.write(b"x"),
        lambda: file.writelines([b"x"]),
        lambda: file.truncate(),
        lambda: file.truncate(0),
        lambda: file.detach(),
        # A descriptor would hand out ciphertext to whoever reads from it.
        lambda: file.fileno(),
    ):
        with pytest.raises(io.UnsupportedOperation):
            call()
    file.flush()
    assert str(path) in repr(file)
    assert file.__enter__() is file
    file.close()
    file.close()
    assert file.closed


OWN_NAMES = {"plaintext_size", "encrypted_size", "block_size", "pread", "readv", "read_buffer"}


def test_nothing_but_the_public_names_shows() -> None:
    data = reference.pattern(1000)
    with reader(data) as file:
        names = {name for name in dir(file) if not name.startswith("_")}
        assert names == {n for n in dir(io.BufferedReader) if n[0] != "_"} - {"raw"} | OWN_NAMES
        inherited = {*dir(object), *dir(io.BufferedReader)}
        for name in dir(file):
            value = getattr(file, name)
            if name not in inherited and not callable(value):
                with pytest.raises(AttributeError):
                    setattr(file, name, value)
        for name in ("position", "busy", "window", "core", "_position", "_plaintext_size"):
            with pytest.raises(AttributeError):
                setattr(file, name, 0)
        other, km = sealed(b"other")
        with pytest.raises(RuntimeError, match="open already"):
            file.__init__(io.BytesIO(other), km)
        assert file.read() == data
    # One that was never opened refuses, and does nothing worse.
    file = type(file).__new__(type(file))
    assert repr(file).startswith("<ags1 Reader name=None")
    assert file.closed
    for call in (file.read, file.peek, file.tell, lambda: file.pread(0, 1)):
        with pytest.raises((ValueError, AttributeError)):
            call()


def test_a_bytes_io_is_the_callers_while_it_is_read() -> None:
    data = reference.pattern(10_000)
    stream, km = sealed(data, 1000)
    source = io.BytesIO(b"before")
    source.seek(6)
    source.write(stream)
    source.seek(6)
    with ags1.open(source, "rb", km) as file:
        assert file.read(1) == data[:1]
        # What its user does then is what io.BytesIO allows without us, and changes nothing here.
        source.seek(0)
        source.write(bytes(9000))
        source.truncate(3)
        source.close()
        assert file.read() == data[1:]
        assert file.pread(5000, 10) == data[5000:5010]


def test_a_closed_file_refuses_everything() -> None:
    file = reader(bytes(100))
    file.read(50)
    file.close()
    for call in (
        lambda: file.read(),
        lambda: file.read(0),
        lambda: file.read(1),
        lambda: file.read1(),
        lambda: file.read1(1),
        lambda: file.readinto(bytearray(5)),
        lambda: file.readinto(bytearray()),
        lambda: file.readinto1(bytearray(5)),
        lambda: file.readline(),
        lambda: file.readlines(),
        lambda: next(file),
        lambda: file.peek(),
        lambda: file.seek(0),
        lambda: file.tell(),
        lambda: file.pread(0, 1),
        lambda: file.readv([(0, 1)]),
        lambda: file.readv([]),
        lambda: file.readable(),
        lambda: file.seekable(),
        lambda: file.__enter__(),
    ):
        with pytest.raises(ValueError, match="closed"):
            call()


def test_seek_and_tell() -> None:
    with reader(reference.pattern(100)) as file:
        assert file.seek(10) == 10
        assert file.seek(5, os.SEEK_CUR) == 15
        assert file.seek(-5, os.SEEK_CUR) == 10
        assert file.seek(-1, os.SEEK_END) == 99
        assert file.seek(0, os.SEEK_END) == 100
        assert file.read() == b""
        # Beyond the end is a place like any other, as in io.BytesIO.
        assert file.seek(1000) == file.tell() == 1000
        assert file.read() == file.read(5) == file.read1() == file.peek() == file.readline() == b""
        assert file.readinto(bytearray(3)) == 0
        assert file.seek(2**40, os.SEEK_END) == 2**40 + 100
        for arguments in ((-1,), (-101, os.SEEK_END), (-(2**50), os.SEEK_CUR)):
            with pytest.raises(OSError, match="before the beginning") as raised:
                file.seek(*arguments)
            assert raised.value.errno == errno.EINVAL  # as open() has it
        for whence in (3, -1):
            with pytest.raises(ValueError, match="whence"):
                file.seek(0, whence)
        assert file.seek(50) == 50
        with pytest.raises(OSError, match="before the beginning"):
            file.seek(-51, os.SEEK_CUR)
        assert file.tell() == 50
        assert file.read(10) == reference.pattern(100)[50:60]
        for bad in ("0", 1.5, None):
            with pytest.raises(TypeError):
                file.seek(bad)


def test_code_that_expects_the_errors_of_files() -> None:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as out:
        out.writestr("name", b"content")
    for data, is_zip in ((b"short", False), (b"", False), (archive.getvalue(), True)):
        with reader(data) as file:
            assert zipfile.is_zipfile(file) is is_zip
    # The usual way to the last line: seek backwards until there is a newline, or an OSError.
    for data in (b"only", b"one\ntwo"):
        with reader(data) as file:
            try:
                file.seek(-2, os.SEEK_END)
                while file.read(1) != b"\n":
                    file.seek(-2, os.SEEK_CUR)
            except OSError:
                file.seek(0)
            assert file.readline() == data.split(b"\n")[-1]


def test_sizes_of_the_wrong_type() -> None:
    with reader(bytes(100)) as file:
        for call in (file.read, file.read1, file.readline, file.peek):
            for bad in ("1", 1.5, b"1"):
                with pytest.raises(TypeError):
                    call(bad)
        for bad in (None, 5, "text", b"read-only"):
            with pytest.raises((TypeError, BufferError)):
                file.readinto(bad)
        assert file.tell() == 0


def test_readinto_takes_any_writable_buffer() -> None:
    data = reference.pattern(4096)
    with reader(data, 100) as file:
        array = np.zeros((16, 32), "f8")
        assert file.readinto(array) == 4096
        assert array.tobytes() == data
        file.seek(3)
        view = memoryview(bytearray(1000)).cast("H")
        assert file.readinto(view) == 1000
        assert bytes(view.cast("B")) == data[3:1003]
        with pytest.raises((TypeError, BufferError, ValueError)):
            file.readinto(memoryview(bytearray(20))[::2])


def test_pickling_and_copying_are_refused() -> None:
    with reader(b"data") as file:
        for call in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError):
                call(file)


def test_text_mode(tmp_path: Path) -> None:
    text = "zwölf Boxkämpfer\r\njagen\nViktor\n" * 10
    stream, km = sealed(text.encode("utf-16"))
    (tmp_path / "file").write_bytes(stream)
    with ags1.open(tmp_path / "file", "rt", km, encoding="utf-16", newline="") as file:
        assert isinstance(file, io.TextIOBase)
        assert file.read() == text
        file.seek(0)
        assert file.readline() == "zwölf Boxkämpfer\r\n"
        place = file.tell()
        assert file.readline() == "jagen\n"
        file.seek(place)
        assert file.readline() == "jagen\n"
    with ags1.open(io.BytesIO(stream), "rt", km, encoding="utf-16") as file:
        assert list(file)[:2] == ["zwölf Boxkämpfer\n", "jagen\n"]
    with ags1.open(io.BytesIO(stream), "rt", km, encoding="ascii", errors="replace") as file:
        assert "\ufffd" in file.read()


def test_text_wrapper_by_hand() -> None:
    lines = [f"line {i}\n" for i in range(1000)]
    for block_size in (1, 7, 100, MIB):
        with io.TextIOWrapper(reader("".join(lines).encode(), block_size)) as file:
            assert file.readlines() == lines


@pytest.mark.parametrize(
    "mode", ["", "a", "ab", "r+", "rb+", "w+", "rw", "rbt", "U", "rr", "b", "t", "xw"]
)
def test_modes_that_do_not_exist(tmp_path: Path, mode: str) -> None:
    stream, km = sealed(b"data")
    path = tmp_path / "file"
    path.write_bytes(stream)
    with pytest.raises(ValueError, match="mode"):
        ags1.open(path, mode, km)
    assert path.read_bytes() == stream


@pytest.mark.parametrize("mode", ["r", "rb"])
@pytest.mark.parametrize("argument", ["encoding", "errors", "newline"])
def test_text_arguments_in_binary_mode(mode: str, argument: str) -> None:
    stream, km = sealed(b"data")
    with pytest.raises(ValueError, match=argument):
        ags1.open(io.BytesIO(stream), mode, km, **{argument: "utf-8"})


def test_bad_arguments(tmp_path: Path) -> None:
    stream, km = sealed(b"data")
    path = tmp_path / "file"
    path.write_bytes(stream)
    for bad in (None, 1.5, object(), ["file"], io.StringIO("text")):
        with pytest.raises(TypeError):
            ags1.open(bad, "rb", km)
    with path.open("r") as text, pytest.raises(TypeError):
        ags1.open(text, "rb", km)
    for bad in (None, "key", KEY, 5):
        with pytest.raises(TypeError):
            ags1.open(path, "rb", bad)
    for bad in (0, -1):
        with pytest.raises(ValueError, match="thread"):
            ags1.open(path, "rb", km, threads=bad)
    for bad in (0, -1, 2**31):
        with pytest.raises((ags1.FormatError, ValueError)):
            ags1.open(path, "rb", km, block_size=bad)
    with pytest.raises(FileNotFoundError) as caught:
        ags1.open(tmp_path / "missing", "rb", km)
    assert caught.value.filename == str(tmp_path / "missing")
    with pytest.raises(IsADirectoryError) as directory:
        ags1.open(tmp_path, "rb", km)
    assert directory.value.filename == str(tmp_path)
    closed = io.BytesIO(stream)
    closed.close()
    with pytest.raises(ValueError, match="closed"):
        ags1.open(closed, "rb", km)


@pytest.mark.parametrize("content", [b"", b"A", b"AGS1\0\0", b"PAR1 in the clear", bytes(50)])
def test_files_that_are_not_ags1(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    for length in (len(content), 40):
        with pytest.raises((ags1.FormatError, ags1.TruncatedError)) as caught:
            ags1.open(path, "rb", KeyMetadata(KEY, None, length)).read()
        assert caught.value.file == str(path)
        assert str(path) in str(caught.value)


def test_the_trusted_length(tmp_path: Path) -> None:
    stream, km = sealed(bytes(100))
    path = tmp_path / "file"
    path.write_bytes(stream)
    without = KeyMetadata(KEY, PREFIX)
    for source in (path, io.BytesIO(stream), sources.PreadOnly(stream)):
        with pytest.raises(ags1.MissingFileLengthError):
            ags1.open(source, "rb", without)
    for source in (path, io.BytesIO(stream)):
        with ags1.open(source, "rb", without, trust_file_size=True) as file:
            assert file.read() == bytes(100)
        for step, error in ((1, ags1.TruncatedError), (-1, ags1.FormatError)):
            length = len(stream) + step
            with pytest.raises(error, match=f"{len(stream)}.*{length}"):
                ags1.open(source, "rb", km.with_file_length(length))
    with pytest.raises(ags1.MissingFileLengthError):
        ags1.open(sources.PreadOnly(stream), "rb", without, trust_file_size=True)


def test_a_header_alone_is_a_file_only_when_the_trusted_length_says_so() -> None:
    header = layout.build_header(16)
    with ags1.open(io.BytesIO(header), "rb", KeyMetadata(KEY, None, 8)) as file:
        assert file.read() == b""
        assert file.plaintext_size == 0
    for km, trust in ((KeyMetadata(KEY), True), (KeyMetadata(KEY, None, 36), False)):
        with pytest.raises((ags1.FormatError, ags1.TruncatedError)):
            ags1.open(io.BytesIO(header), "rb", km, trust_file_size=trust).read()


def test_an_empty_files_block_is_verified() -> None:
    stream, km = sealed(b"")
    for at in range(8, 36):
        changed = bytearray(stream)
        changed[at] ^= 1
        with pytest.raises(ags1.AuthenticationError):
            ags1.open(io.BytesIO(changed), "rb", km).read()


def test_block_size_limits() -> None:
    stream, km = sealed(bytes(100))
    for limits in ({"block_size": 17}, {"max_block_size": 15}, {"block_size": 1 << 20}):
        with pytest.raises(ags1.FormatError):
            ags1.open(io.BytesIO(stream), "rb", km, **limits)
    with ags1.open(io.BytesIO(stream), "rb", km, block_size=16, max_block_size=1) as file:
        assert file.read() == bytes(100)


# ---- pread and readv ---------------------------------------------------------------------------


@threads
def test_pread(threads: int) -> None:
    data = reference.pattern(1000)
    with reader(data, threads=threads) as file:
        file.seek(123)
        for offset in (0, 1, 15, 16, 17, 500, 991, 999, 1000, 1001, 10**12):
            for size in (0, 1, 16, 33, 1000, 5000):
                assert file.pread(offset, size) == data[offset : offset + size]
        assert file.tell() == 123
        assert file.read(5) == data[123:128]
        for arguments in ((-1, 5), (0, -1), (-5, -5)):
            with pytest.raises(ValueError, match="negative"):
                file.pread(*arguments)
        for bad in (("0", 1), (0, "1"), (0.5, 1), (0, 1.5), (None, 1), (0, None)):
            with pytest.raises(TypeError):
                file.pread(*bad)


def test_readv() -> None:
    data = reference.pattern(1000)
    picker = random.Random(5)
    with reader(data) as file:
        file.seek(77)
        assert file.readv([]) == []
        for _ in range(200):
            wanted = [
                (picker.randrange(1100), picker.randrange(100)) for _ in range(picker.randrange(9))
            ]
            assert file.readv(wanted) == [data[o : o + n] for o, n in wanted]
        assert file.readv(iter([(5, 5)])) == [data[5:10]]
        assert file.tell() == 77
        for bad in ([(-1, 5)], [(0, 5), (0, -1)]):
            with pytest.raises(ValueError, match="negative"):
                file.readv(bad)
        with pytest.raises(TypeError):
            file.readv([5])


def test_readv_reads_neighbours_at_once() -> None:
    data = reference.pattern(100_000)
    stream, km = sealed(data, 1000)
    source = sources.PreadOnly(stream)
    with ags1.open(source, "rb", km) as file:
        source.calls.clear()
        wanted = [(5000, 10), (5100, 900), (6000, 1), (7500, 500), (90_000, 10), (8000, 1)]
        assert file.readv(wanted) == [data[o : o + n] for o, n in wanted]
        # Blocks 5 to 8 and, far away, block 90.
        assert sorted(source.calls) == [
            (layout.block_offset(5, 1000), 4 * 1028),
            (layout.block_offset(90, 1000), 1028),
        ]


def test_only_the_blocks_needed_are_read() -> None:
    stream, km = sealed(reference.pattern(100_000), 1000)
    source = sources.PreadOnly(stream)
    with ags1.open(source, "rb", km) as file:
        assert source.bytes_asked <= 8
        source.calls.clear()
        assert len(file.pread(50_500, 100)) == 100
        assert source.calls == [(layout.block_offset(50, 1000), 1028)]
        source.calls.clear()
        assert len(file.pread(50_999, 2)) == 2
        assert source.bytes_asked <= 2 * 1028


def test_a_sequential_read_asks_for_each_byte_once() -> None:
    stream, km = sealed(reference.pattern(100_000), 1000)
    for take in (1, 10, 999, 1000, 1001, 4096, 100_000, -1):
        source = sources.PreadOnly(stream)
        with ags1.open(source, "rb", km) as file:
            while file.read(take):
                pass
        assert source.bytes_asked <= len(stream) + 1028
        source = sources.PreadOnly(stream)
        with ags1.open(source, "rb", km, threads=2) as file:
            while file.read(take):
                pass
        assert source.bytes_asked <= len(stream) + 1028


def test_small_reads_hit_the_block_in_memory() -> None:
    stream, km = sealed(reference.pattern(10_000), 1000)
    source = sources.PreadOnly(stream)
    with ags1.open(source, "rb", km) as file:
        file.read(1)
        source.calls.clear()
        for offset in (1, 500, 0, 999):
            file.seek(offset)
            file.read(1)
        assert source.calls == []


# Of `make test`: one thread and four.
@pytest.mark.slow_variants(r"2-.*")
@pytest.mark.parametrize("kind", ["path", "BytesIO", "raw file", "pread", "stingy", "pyarrow"])
@threads
def test_many_threads_pread_one_reader(tmp_path: Path, kind: str, threads: int) -> None:
    data = random.Random(7).randbytes(200_000)
    stream, km = sealed(data, 1000)

    def work(seed: int) -> None:
        picker = random.Random(seed)
        for _ in range(20):
            offset, size = picker.randrange(210_000), picker.randrange(5000)
            assert file.pread(offset, size) == data[offset : offset + size]
            offset = picker.randrange(200_000)
            assert file.readv([(offset, 5), (offset + 5, 2000)]) == [
                data[offset : offset + 5],
                data[offset + 5 : offset + 2005],
            ]

    with sources.seekable_sources(stream, tmp_path / "file")[kind]() as source:
        with ags1.open(source, "rb", km, threads=threads) as file:
            with concurrent.futures.ThreadPoolExecutor(16) as pool:
                jobs = [pool.submit(work, seed) for seed in range(16)]
                # The sequential side is used meanwhile.
                assert b"".join(iter(lambda: file.read(777), b"")) == data
            for job in jobs:
                job.result()


def test_threads_share_the_sequential_side_without_losing_bytes() -> None:
    data = b"".join(struct.pack("<I", i) for i in range(50_000))
    for count in (1, 3):
        with reader(data, 1000, threads=count) as file:
            with concurrent.futures.ThreadPoolExecutor(8) as pool:
                parts = [
                    part
                    for job in [
                        pool.submit(lambda: list(iter(lambda: file.read(4), b""))) for _ in range(8)
                    ]
                    for part in job.result()
                ]
        assert sorted(struct.unpack("<I", part)[0] for part in parts) == list(range(50_000))


def test_pread_keeps_the_last_blocks() -> None:
    data = reference.pattern(100_000)
    stream, km = sealed(data, 10_000)
    source = sources.PreadOnly(stream)

    def fetched(read: Callable[[], bytes]) -> int:
        source.calls.clear()
        read()
        return source.bytes_asked // 10_000

    with pytest.MonkeyPatch.context() as patch:
        # One block at a time, as with blocks of 1 MiB.
        patch.setattr("ags1.engine.blocks.CHUNK_SIZE", 10_000)
        with ags1.open(source, "rb", km, cache_size=30_000) as file:
            for offset in (5, 10_005, 20_005):
                assert fetched(lambda offset=offset: file.pread(offset, 10)) == 1
            for offset, size in ((0, 10_000), (20_000, 9_999), (9_000, 18_000), (3, 29_997)):
                assert fetched(lambda o=offset, n=size: file.pread(o, n)) == 0
                assert file.pread(offset, size) == data[offset : offset + size]
            assert fetched(lambda: file.readv([(1, 5), (25_000, 5)])[0]) == 0
            # The block that was not used for the longest time goes.
            assert file.pread(7, 1) == data[7:8]
            assert fetched(lambda: file.pread(35_000, 10)) == 1
            assert fetched(lambda: file.pread(8, 1)) == 0
            assert fetched(lambda: file.pread(35_000, 5010)) == 1
            assert fetched(lambda: file.pread(20_005, 10)) == 1
            assert fetched(lambda: file.pread(8, 1)) == 1
            # Reading in order fills its own window.
            assert file.read() == data
            assert fetched(lambda: file.pread(8, 1)) == 0
        with pytest.raises(ValueError, match="closed"):
            file.pread(8, 1)
        with ags1.open(source, "rb", km, cache_size=9_999) as file:
            for _ in range(2):
                assert fetched(lambda: file.pread(5, 10)) == 1
    with pytest.raises(ValueError, match="cache_size"):
        ags1.open(source, "rb", km, cache_size=-1)


@threads
def test_reads_here_and_there_decrypt_a_block_once(threads: int) -> None:
    data = reference.pattern(20 * 1000)
    stream, km = sealed(data, 1000)
    source = sources.PreadOnly(stream)
    order = random.Random(5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ags1.engine.blocks.CHUNK_SIZE", 1000)
        patch.setattr("ags1.engine.blocks.REQUEST_SIZE", 1000)
        with ags1.open(source, "rb", km, threads=threads, cache_size=20_000) as file:
            source.calls.clear()
            for _ in range(500):
                at = order.randrange(len(data) - 10)
                at -= max(0, at % 1000 - 990)
                assert file.seek(at) == at
                assert file.read(10) == data[at : at + 10]
            assert source.bytes_asked <= 20 * 1028
        with ags1.open(source, "rb", km, threads=threads, cache_size=3000) as file:
            source.calls.clear()
            for at in [5, 5000, 9000] * 20:
                file.seek(at)
                file.readinto(bytearray(10))
            assert source.bytes_asked == 3 * 1028


def test_after_an_error_no_read_is_served_from_memory() -> None:
    data = reference.pattern(5000)
    stream, km = sealed(data, 1000)
    damaged = bytearray(stream)
    damaged[layout.HEADER_SIZE + 3 * 1028 + 500] ^= 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ags1.engine.blocks.CHUNK_SIZE", 1000)
        with ags1.open(io.BytesIO(damaged), "rb", km) as file:
            for at in (10, 1010, 10, 1010):
                file.seek(at)
                assert file.read(10) == data[at : at + 10]
            file.seek(3010)
            for call in (file.read, lambda: file.seek(10), lambda: file.read(10), file.readline):
                with pytest.raises(ags1.AuthenticationError):
                    call()
            assert file.pread(10, 10) == data[10:20]
    with pytest.raises(ValueError, match="closed"):
        file.seek(10)


def test_the_window_the_cache_and_threads_share_no_buffer() -> None:
    """A buffer that is used again, while somebody still reads from it, would show other bytes."""
    data = os.urandom(64_000)
    stream, km = sealed(data, 1000)
    ended = threading.Event()

    def pread(seed: int) -> None:
        order = random.Random(seed)
        while not ended.is_set():
            at = order.randrange(len(data) - 2000)
            assert file.pread(at, 1500) == data[at : at + 1500]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ags1.engine.blocks.CHUNK_SIZE", 1000)
        file = ags1.open(io.BytesIO(stream), "rb", km, cache_size=5000)
        with file, concurrent.futures.ThreadPoolExecutor(3) as pool:
            jobs = [pool.submit(pread, seed) for seed in range(3)]
            try:
                order = random.Random(9)
                for number in range(3000):
                    at = order.randrange(len(data) - 2000)
                    file.seek(at)
                    size = 10 if number % 3 else 1990
                    assert file.read(size) == data[at : at + size]
            finally:
                ended.set()
            for job in jobs:
                job.result()


@pytest.mark.parametrize("part", [0.25, 1, 3, None], ids=str)
@threads
def test_a_distant_source_is_asked_for_more_each_time(
    part: float | None, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunk = 10_000
    for name in ("CHUNK_SIZE", "REQUEST_SIZE"):
        monkeypatch.setattr(blocks, name, getattr(blocks, name) // MIB * chunk)
    data = reference.pattern(32 * chunk)
    made = ags1.encrypt(data, block_size=chunk)
    source = sources.PreadOnly(made.data)
    size = -1 if part is None else int(part * chunk)
    with ags1.open(source, "rb", made.key_metadata, threads=threads) as file:
        assert b"".join(iter(lambda: file.read(size), b"")) == data
    assert len(source.calls) <= 12
    assert source.bytes_asked == len(made.data)
    # After a jump, no more is read ahead than was read since.
    source.calls.clear()
    with ags1.open(source, "rb", made.key_metadata, threads=threads) as file:
        for at in (9 * chunk + 7, 25 * chunk + 7, 17 * chunk + 7):
            file.seek(at)
            assert file.read(4 * chunk) == data[at : at + 4 * chunk]
    assert source.bytes_asked <= 3 * 8 * (chunk + layout.BLOCK_OVERHEAD)


def test_a_block_that_failed_is_not_kept() -> None:
    stream, km = sealed(reference.pattern(1000), 100)
    changed = bytearray(stream)
    changed[layout.block_offset(5, 100)] ^= 1
    source = sources.PreadOnly(bytes(changed))
    with ags1.open(source, "rb", km) as file:
        with pytest.raises(ags1.AuthenticationError):
            file.pread(550, 10)
        source.data = stream
        assert file.pread(550, 10) == reference.pattern(1000)[550:560]


# ---- errors ------------------------------------------------------------------------------------


@threads
def test_errors_name_the_block_and_stay(tmp_path: Path, threads: int) -> None:
    stream, km = sealed(reference.pattern(1000), 100)
    path = tmp_path / "file"
    changed = bytearray(stream)
    changed[layout.block_offset(5, 100)] ^= 1
    path.write_bytes(changed)
    with ags1.open(path, "rb", km, threads=threads) as file:
        file.seek(540)
        for call in (
            lambda: file.read(1),
            lambda: file.read(1),
            lambda: file.readinto(bytearray(10)),
            lambda: file.read1(),
            lambda: file.peek(),
            lambda: next(file),
            lambda: file.seek(0),
        ):
            with pytest.raises(ags1.AuthenticationError) as caught:
                call()
            error = caught.value
            assert (error.block, error.offset) == (5, layout.block_offset(5, 100))
            assert error.file == str(path)
            assert str(path) in str(error)
            assert "block 5" in str(error)


@threads
def test_after_an_error_what_lies_in_memory_is_not_served_either(threads: int) -> None:
    stream, km = sealed(reference.pattern(1000), 100)
    changed = bytearray(stream)
    changed[layout.block_offset(5, 100)] ^= 1
    for call in (
        lambda f: f.read(5),
        lambda f: f.read1(5),
        lambda f: f.readinto(bytearray(5)),
        lambda f: f.readline(5),
        lambda f: f.peek(),
    ):
        with ags1.open(io.BytesIO(changed), "rb", km, threads=threads) as file:
            file.seek(480)
            assert file.read(10) == reference.pattern(1000)[480:490]
            with pytest.raises(ags1.AuthenticationError):
                file.read(20)
            with pytest.raises(ags1.AuthenticationError):
                call(file)


@threads
def test_an_error_of_pread_is_that_calls_alone(threads: int) -> None:
    data = reference.pattern(1000)
    stream, km = sealed(data, 100)
    changed = bytearray(stream)
    changed[layout.block_offset(5, 100)] ^= 1
    with ags1.open(io.BytesIO(changed), "rb", km, threads=threads) as file:
        assert file.read(10) == data[:10]
        for _ in range(2):
            for call in (lambda: file.pread(550, 10), lambda: file.readv([(0, 5), (550, 10)])):
                with pytest.raises(ags1.AuthenticationError, match="block 5"):
                    call()
            assert file.pread(450, 40) == data[450:490]
            assert file.readv([(600, 10), (5, 5)]) == [data[600:610], data[5:10]]
        assert file.read(80) == data[10:90]
        # Nor do the errors of the position concern pread.
        file.seek(550)
        with pytest.raises(ags1.AuthenticationError, match="block 5"):
            file.read(1)
        with pytest.raises(ags1.AuthenticationError, match="block 5"):
            file.seek(0)
        assert file.pread(700, 50) == data[700:750]


class Moody(sources.PreadOnly):
    """Returns nothing, or raises, when it is told to."""

    mood: str | None = None

    def pread(self, offset: int, size: int) -> bytes:
        mood, self.mood = self.mood, None
        if mood == "raises":
            raise OSError(110, "Connection timed out")
        return super().pread(offset, 3 if mood == "short" else 0 if mood else size)


@pytest.mark.parametrize(
    ("mood", "error"),
    [("short", None), ("empty", ags1.TruncatedError), ("raises", OSError)],
)
def test_short_answers_are_asked_again_and_failures_pass(
    mood: str, error: type[BaseException] | None
) -> None:
    data = reference.pattern(1000)
    stream, km = sealed(data, 100)
    source = Moody(stream)
    with ags1.open(source, "rb", km) as file:
        for call in (lambda: file.pread(250, 10), lambda: file.readv([(350, 10)])[0]):
            source.mood = mood
            if error is None:
                assert call() in (data[250:260], data[350:360])
            else:
                with pytest.raises(error):
                    call()
        assert file.pread(250, 10) == data[250:260]
        assert file.readv([(350, 10)]) == [data[350:360]]
        assert file.read() == data


def test_a_failure_zeroes_what_the_call_could_have_written_and_no_more() -> None:
    stream, km = sealed(reference.pattern(100))
    for count in (1, 2):
        changed = stream[:-1] + bytes([stream[-1] ^ 1])
        with ags1.open(io.BytesIO(changed), "rb", km, threads=count) as file:
            out = bytearray(b"\xaa" * 150)
            with pytest.raises(ags1.AuthenticationError):
                file.readinto(out)
            assert out == bytes(100) + b"\xaa" * 50
        out = bytearray(b"\xaa" * 150)
        with pytest.raises(ValueError, match="closed"):
            file.readinto(out)
        assert out == b"\xaa" * 150


def test_no_thread_writes_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    # The first block is bad and quickly found; the others must not arrive after the zeros.
    monkeypatch.setattr(blocks, "REQUEST_SIZE", MIB)
    data = reference.pattern(12 * MIB)
    sealed_data = ags1.encrypt(data)
    changed = bytearray(sealed_data.data)
    changed[8] ^= 1
    for _ in range(3):
        with ags1.open(
            sources.PreadOnly(bytes(changed)), "rb", sealed_data.key_metadata, threads=8
        ) as file:
            out = bytearray(len(data))
            with pytest.raises(ags1.AuthenticationError):
                file.readinto(out)
            assert not any(out[::4096])
        assert out.count(0) == len(out)


class Failing(sources.Stingy):
    """Fails once at the given read."""

    def __init__(self, data: bytes, at: int, error: BaseException | None) -> None:
        super().__init__(data, 100)
        self.left = at
        self.error = error

    def readinto(self, buffer: Any, /) -> int:
        self.left -= 1
        if self.left == 0:
            if self.error is None:
                return None  # type: ignore[return-value]  # a raw file that would block
            raise self.error
        return super().readinto(buffer)


@threads
@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), KeyboardInterrupt(), None])
def test_what_the_source_raises_comes_through(error: BaseException | None, threads: int) -> None:
    data = reference.pattern(1000)
    stream, km = sealed(data, 50)
    kind = BlockingIOError if error is None else type(error)
    for at in range(2, 12):
        source = Failing(stream, at, error)
        with ags1.open(source, "rb", km, threads=threads) as file:
            source.left = at
            out = bytearray(b"\xaa" * 1000)
            with pytest.raises(kind):
                file.readinto(out)
            assert all(byte in (0, 0xAA) for byte in out)


class Liar:
    """Returns other amounts than asked for."""

    def __init__(self, data: bytes, more: int) -> None:
        self.data = data
        self.more = more

    def pread(self, offset: int, size: int) -> bytes:
        return self.data[offset : offset + size + self.more] + bytes(max(0, self.more))


def test_a_source_that_returns_the_wrong_amount() -> None:
    data = reference.pattern(1000)
    stream, km = sealed(data, 50)
    # Too much is cut to size, too little is a cut file.
    with ags1.open(Liar(stream, 5), "rb", km) as file:
        assert file.read() == data
    with pytest.raises(ags1.TruncatedError):
        ags1.open(Liar(stream, -1), "rb", km).read()


# ---- other people's code over it ---------------------------------------------------------------


@threads
def test_pyarrow_reads_through_read_buffer(threads: int) -> None:
    data = reference.pattern(5 * MIB + 5)
    with reader(data, MIB, threads=threads) as file:
        read = file.read_buffer(3 * MIB)
        assert isinstance(read, pyarrow.Buffer)
        assert read.to_pybytes() == data[: 3 * MIB]
        assert file.tell() == 3 * MIB
        with pyarrow.PythonFile(file, "r") as native:
            assert native.read_buffer(MIB + 3).to_pybytes() == data[3 * MIB : 4 * MIB + 3]
            assert native.read(100) == data[4 * MIB + 3 : 4 * MIB + 103]
            assert native.read_buffer().to_pybytes() == data[4 * MIB + 103 :]
            assert native.read_buffer(10).size == 0
            native.seek(2 * MIB)
            assert native.read_at(2 * MIB, 7) == data[7 : 2 * MIB + 7]


def test_a_pyarrow_file_is_read_in_ranges_from_where_it_stands(tmp_path: Path) -> None:
    data = reference.pattern(1000)
    stream, km = sealed(data, 100)
    (tmp_path / "file").write_bytes(b"in front" + stream)
    with pyarrow.OSFile(str(tmp_path / "file")) as source:
        source.seek(8)
        with ags1.open(source, "rb", km) as file:
            assert file.pread(250, 10) == data[250:260]
            assert file.read() == data
            # By ranges, not by moving the position that all share.
            assert source.tell() == 8
    compressed = pyarrow.compress(stream, "gzip", asbytes=True)
    with pyarrow.CompressedInputStream(pyarrow.BufferReader(compressed), "gzip") as source:
        # It has the method, and cannot do it.
        with ags1.open(source, "rb", km) as file:
            assert not file.seekable()
            assert file.read() == data


def avro_file(count: int) -> tuple[bytes, list[dict[str, Any]]]:
    records = [{"id": i, "text": f"record {i}" * (i % 7)} for i in range(count)]
    out = io.BytesIO()
    schema = {
        "type": "record",
        "name": "r",
        "fields": [{"name": "id", "type": "long"}, {"name": "text", "type": "string"}],
    }
    fastavro.writer(out, fastavro.parse_schema(schema), records)
    return out.getvalue(), records


@threads
@pytest.mark.parametrize("block_size", [100, 4096, MIB])
def test_fastavro(block_size: int, threads: int) -> None:
    data, records = avro_file(2000)
    with reader(data, block_size, threads=threads) as file:
        assert list(fastavro.reader(file)) == records


def test_the_standard_librarys_readers(tmp_path: Path) -> None:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as zip_file:
        zip_file.writestr("a", b"a" * 5000)
        zip_file.writestr("b", b"b")
    with reader(archive.getvalue(), 64) as file, zipfile.ZipFile(file) as zip_file:
        assert zip_file.read("b") == b"b"
        assert zip_file.read("a") == b"a" * 5000
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        tar.addfile(tarfile.TarInfo("empty"))
    with reader(archive.getvalue(), 64) as file, tarfile.open(fileobj=file) as tar:
        assert tar.getnames() == ["empty"]
    with reader(json.dumps({"a": [1, 2]}).encode(), 4) as file:
        assert json.load(file) == {"a": [1, 2]}
    with reader(pickle.dumps(list(range(1000))), 64) as file:
        assert pickle.load(file) == list(range(1000))
    with io.TextIOWrapper(reader(b"a,b\n1,2\n", 3), newline="") as file:
        assert list(csv.reader(file)) == [["a", "b"], ["1", "2"]]
    with reader(reference.pattern(10_000), 64) as file, io.BytesIO() as copied:
        shutil.copyfileobj(file, copied)
        assert copied.getvalue() == reference.pattern(10_000)
    with io.BufferedReader(reader(reference.pattern(10_000), 64), 100) as file:
        assert file.read(150) + file.read() == reference.pattern(10_000)
    saved = io.BytesIO()
    np.save(saved, np.arange(1000))
    with reader(saved.getvalue(), 64) as file:
        assert (np.load(file) == np.arange(1000)).all()


@pytest.mark.thread_unsafe(reason="a child of a fork has one thread")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("threads", [1, 2])
def test_a_forked_child_reads_on(tmp_path: Path, threads: int) -> None:
    data = reference.pattern(100_000)
    stream, km = sealed(data, 1000)
    (tmp_path / "file").write_bytes(stream)
    with ags1.open(tmp_path / "file", "rb", km, threads=threads) as file:
        assert file.read(10_500) == data[:10_500]
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            try:
                assert file.pread(50_000, 5000) == data[50_000:55_000]
                assert file.read(20_000) == data[10_500:30_500]
                assert file.read() == data[30_500:]
            except BaseException:
                os._exit(1)
            os._exit(0)
        assert file.read() == data[10_500:]
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_two_threads_of_a_forked_child_get_the_same_lock() -> None:
    meeting = threading.Barrier(2, timeout=20)

    def make() -> object:
        meeting.wait()
        return object()

    each = PerProcess(make)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: each.get(), range(2))
    assert first is second is each.get() is each.made()


def test_no_pool_is_made_for_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ags1.engine.blocks.Pool", pytest.fail)
    with reader(reference.pattern(10_000), 100) as file:
        file.read(10)
        file.pread(50, 500)
        assert file.read(5000) == reference.pattern(5010)[10:]


@pytest.mark.thread_unsafe(reason="counts those of the process")
@threads
def test_threads_end_with_the_file(threads: int) -> None:
    before = set(threading.enumerate())
    file = reader(reference.pattern(100_000), 100, threads=threads)
    file.read(5000)
    file.close()
    left = [t for t in threading.enumerate() if t not in before]
    for thread in left:
        thread.join(5)
    assert not [t for t in left if t.is_alive()]
    # Forgotten without close as well.
    file = reader(reference.pattern(100_000), 100, threads=threads)
    file.read(5000)
    del file
    gc.collect()
    left = [t for t in threading.enumerate() if t not in before]
    for thread in left:
        thread.join(5)
    assert not [t for t in left if t.is_alive()]


# ---- the model ---------------------------------------------------------------------------------


class ReaderMachine(RuleBasedStateMachine):
    """Whatever is done to a Reader must come out as from an io.BytesIO of the plaintext."""

    @initialize(
        data=st.integers(0, 400).map(reference.pattern),
        lines=st.booleans(),
        block_size=st.integers(1, 80),
        threads=st.sampled_from([1, 1, 2, 4]),
        kind=st.sampled_from(["BytesIO", "pread", "stingy"]),
        chunk=st.sampled_from([1, 100, 500, 1 << 20]),
        request=st.sampled_from([1, 200, 1 << 20]),
        cache_size=st.sampled_from([0, 50, 300, 1 << 20]),
    )
    def open(
        self,
        data: bytes,
        lines: bool,
        block_size: int,
        threads: int,
        kind: str,
        chunk: int,
        request: int,
        cache_size: int,
    ) -> None:
        # A small chunk brings reading ahead, and the borders of chunks, within reach.
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr("ags1.engine.blocks.CHUNK_SIZE", chunk)
        self.patch.setattr("ags1.engine.blocks.REQUEST_SIZE", request)
        if lines:
            data = bytes(10 if byte % 11 == 0 else byte for byte in data)
        stream, km = sealed(data, block_size)
        source: Any = {
            "BytesIO": io.BytesIO,
            "pread": sources.PreadOnly,
            "stingy": sources.Stingy,
        }[kind](stream)
        self.data = data
        self.model = io.BytesIO(data)
        self.file = ags1.open(source, "rb", km, threads=threads, cache_size=cache_size)

    @rule(size=st.integers(-2, 500) | st.none())
    def read(self, size: int | None) -> None:
        assert self.file.read(size) == self.model.read(size)

    @rule(size=st.integers(-1, 500))
    def read1(self, size: int) -> None:
        at = self.model.tell()
        part = self.file.read1(size)
        assert self.data[at:].startswith(part)
        assert len(part) <= size or size < 0
        assert part or size == 0 or at >= len(self.data)
        self.model.seek(len(part), os.SEEK_CUR)

    @rule(size=st.integers(0, 500))
    def readinto(self, size: int) -> None:
        ours, theirs = bytearray(b"\xaa" * size), bytearray(b"\xaa" * size)
        assert self.file.readinto(ours) == self.model.readinto(theirs)
        assert ours == theirs

    @rule(size=st.integers(-1, 500) | st.none())
    def read_buffer(self, size: int | None) -> None:
        assert self.file.read_buffer(size).to_pybytes() == self.model.read(size)

    @rule(size=st.integers(0, 500))
    def readinto1(self, size: int) -> None:
        at = self.model.tell()
        out = bytearray(b"\xaa" * size)
        got = self.file.readinto1(out)
        assert out == self.data[at : at + got] + b"\xaa" * (size - got)
        assert got or size == 0 or at >= len(self.data)
        self.model.seek(got, os.SEEK_CUR)

    @rule(size=st.integers(-1, 100) | st.none())
    def readline(self, size: int | None) -> None:
        assert self.file.readline(size) == self.model.readline(size)

    @rule(hint=st.integers(-1, 100))
    def readlines(self, hint: int) -> None:
        assert self.file.readlines(hint) == self.model.readlines(hint)

    @rule()
    def iterate(self) -> None:
        assert next(self.file, None) == next(self.model, None)

    @rule(size=st.integers(0, 100))
    def peek(self, size: int) -> None:
        at = self.model.tell()
        part = self.file.peek(size)
        assert self.data[at:].startswith(part)
        assert part or at >= len(self.data)

    @rule(offset=st.integers(-500, 500), whence=st.sampled_from([0, 1, 2]))
    def seek(self, offset: int, whence: int) -> None:
        target = offset + (0, self.model.tell(), len(self.data))[whence]
        if target < 0:
            with pytest.raises((ValueError, OSError)):
                self.file.seek(offset, whence)
        else:
            assert self.file.seek(offset, whence) == target
            self.model.seek(target)

    @rule(offset=st.integers(0, 500), size=st.integers(0, 500))
    def pread(self, offset: int, size: int) -> None:
        assert self.file.pread(offset, size) == self.data[offset : offset + size]

    @rule(ranges=st.lists(st.tuples(st.integers(0, 450), st.integers(0, 200)), max_size=6))
    def readv(self, ranges: list[tuple[int, int]]) -> None:
        assert self.file.readv(ranges) == [self.data[o : o + n] for o, n in ranges]

    @invariant()
    def same_place(self) -> None:
        if hasattr(self, "file"):
            assert self.file.tell() == self.model.tell()

    def teardown(self) -> None:
        if hasattr(self, "file"):
            self.patch.undo()
            self.file.close()


ReaderMachine.TestCase.settings = settings(max_examples=25, stateful_step_count=40)
test_the_reader_is_a_bytesio_of_the_plaintext: Callable[..., Any] = ReaderMachine.TestCase


@pytest.mark.slow
class TestManyReads(ReaderMachine.TestCase):  # type: ignore[misc, name-defined]
    settings = settings(max_examples=200, stateful_step_count=40)


def test_a_second_thread_waits_for_the_first_one_s_read() -> None:
    data = reference.pattern(1000)
    stream = reference.encrypt(data, KEY, PREFIX, 100)
    gate, arrived = threading.Event(), threading.Event()

    class Slow:
        size = len(stream)

        def pread(self, offset: int, size: int) -> bytes:
            if offset > 200:
                arrived.set()
                gate.wait()
            return stream[offset : offset + size]

    parts: dict[str, bytes] = {}
    with ags1.open(Slow(), "rb", KeyMetadata(KEY, PREFIX, len(stream))) as file:
        assert file.read(4) == data[:4]
        first = threading.Thread(target=lambda: parts.update(first=file.read(500)))
        first.start()
        arrived.wait()
        # What it takes is at hand, and yet behind what the first one is about to return.
        second = threading.Thread(target=lambda: parts.update(second=file.read(4)))
        second.start()
        second.join(0.1)
        gate.set()
        first.join()
        second.join()
    assert parts == {"first": data[4:504], "second": data[504:508]}


@pytest.mark.parametrize("inner", ["pread", "read"])
@pytest.mark.parametrize("outer", ["pread", "read"])
def test_a_read_of_the_reader_by_its_own_file_is_refused(
    inner: str, outer: str, in_a_fork: Callable[[Callable[[], object]], None]
) -> None:
    """As Python's own buffered reader refuses it. Waiting for the lock would never end."""
    data = reference.pattern(1000)
    stream = reference.encrypt(data, KEY, PREFIX, 100)
    reads = {"pread": lambda: file.pread(500, 10), "read": lambda: file.read(10)}
    refused = []

    class File(io.BytesIO):
        def readinto(self, buffer: Any, /) -> int:
            if self.tell() >= 8 and not refused:
                refused.append(None)
                with pytest.raises(RuntimeError, match="reentrant call"):
                    reads[inner]()
            return super().readinto(buffer)

    file = ags1.open(File(stream), "rb", KeyMetadata(KEY, PREFIX, len(stream)))

    def read() -> None:
        reads[outer]()
        assert refused

    in_a_fork(read)


def test_a_read_within_a_read_of_the_same_thread_is_refused() -> None:
    """As a signal handler does that uses the stream which it has interrupted."""
    data = reference.pattern(1000)
    stream = reference.encrypt(data, KEY, PREFIX, 100)
    refused = []

    class Handler:
        size = len(stream)

        def pread(self, offset: int, size: int) -> bytes:
            if offset:
                with pytest.raises(RuntimeError) as caught:
                    file.read(900)
                refused.append(caught)
            return stream[offset : offset + size]

    with ags1.open(Handler(), "rb", KeyMetadata(KEY, PREFIX, len(stream))) as file:
        assert file.read() == data
    assert refused

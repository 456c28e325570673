"""``ags1.open``: sequential pieces and random reads, from memory and from the page cache."""

from __future__ import annotations

import io
import os
import random
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

import ags1
from bench.material import random_bytearray
from bench.settings import size_name

PIECES = [1 << 20, 64 << 10, 4 << 10]


@pytest.mark.parametrize("piece_size", PIECES, ids=size_name)
@pytest.mark.parametrize("place", ["memory", "file"])
def test_reading(
    benchmark: BenchmarkFixture, tmp_path: Path, size: int, place: str, piece_size: int
) -> None:
    data = random_bytearray(size)
    sealed, km = ags1.encrypt(data)
    path = tmp_path / "sealed"
    path.write_bytes(sealed)
    piece = bytearray(piece_size)

    def work() -> int:
        source = io.BytesIO(sealed) if place == "memory" else path
        total = 0
        with ags1.open(source, "rb", km) as reader:
            while count := reader.readinto(piece):
                total += count
        return total

    benchmark.group = f"read from {place}"
    assert benchmark(work) == size


@pytest.mark.parametrize("piece_size", PIECES, ids=size_name)
@pytest.mark.parametrize("place", ["memory", "file"])
def test_writing(
    benchmark: BenchmarkFixture, tmp_path: Path, size: int, place: str, piece_size: int
) -> None:
    data = memoryview(random_bytearray(size))
    pieces = [data[at : at + piece_size] for at in range(0, size, piece_size)]
    path = tmp_path / "sealed"
    memory = io.BytesIO()

    def start() -> None:
        path.unlink(missing_ok=True)
        memory.seek(0)

    def work() -> ags1.KeyMetadata:
        target = memory if place == "memory" else path
        with ags1.open(target, "wb", durable=False) as writer:
            for piece in pieces:
                writer.write(piece)
        return writer.key_metadata

    benchmark.group = f"write to {place}"
    km = benchmark.pedantic(work, setup=start, rounds=5)  # type: ignore[no-untyped-call]
    sealed = memory.getvalue() if place == "memory" else path.read_bytes()
    assert ags1.decrypt(sealed, km) == data


def test_random_reads(benchmark: BenchmarkFixture, tmp_path: Path, size: int) -> None:
    data = random_bytearray(size)
    sealed, km = ags1.encrypt(data)
    path = tmp_path / "sealed"
    path.write_bytes(sealed)
    offsets = [random.randrange(size - 4096) for _ in range(100)]
    benchmark.group = "100 random reads of 4 KiB"
    with ags1.open(path, "rb", km) as reader:
        got = benchmark(lambda: [reader.pread(offset, 4096) for offset in offsets])
    assert got == [data[offset : offset + 4096] for offset in offsets]


def test_reads_of_one_block(benchmark: BenchmarkFixture, size: int) -> None:
    data = random_bytearray(size)
    sealed, km = ags1.encrypt(data)
    benchmark.group = "4 KiB read again and again"
    with ags1.open(io.BytesIO(sealed), "rb", km) as reader:
        assert benchmark(reader.pread, 8192, 4096) == data[8192:12288]


@pytest.mark.parametrize("way", ["Reader", "decrypt"])
def test_a_small_file(benchmark: BenchmarkFixture, tmp_path: Path, way: str) -> None:
    data, path = os.urandom(4096), tmp_path / "sealed"
    sealed, km = ags1.encrypt(data)
    path.write_bytes(sealed)

    def with_reader() -> bytes:
        with ags1.open(path, "rb", km) as file:
            return file.read()

    benchmark.group = "open, read and close a file of 4 KiB"
    work = with_reader if way == "Reader" else lambda: ags1.decrypt(path.read_bytes(), km)
    assert benchmark(work) == data

"""Whole files, next to ``cp``."""

from __future__ import annotations

import filecmp
import shutil
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

import ags1
from bench.limits import run_command
from bench.material import random_file


@pytest.fixture
def plain(tmp_path: Path, size: int) -> Path:
    return random_file(tmp_path / "plain", size)


@pytest.mark.parametrize("durable", [False, True], ids=["not durable", "durable"])
@pytest.mark.parametrize("threads", [1, 2])
def test_encrypt_file(
    benchmark: BenchmarkFixture, plain: Path, tmp_path: Path, threads: int, durable: bool
) -> None:
    target, back = tmp_path / "sealed", tmp_path / "back"
    benchmark.group = "encrypt_file, durable" if durable else "encrypt_file"
    km = benchmark(
        ags1.encrypt_file, plain, target, threads=threads, durable=durable, overwrite=True
    )
    ags1.decrypt_file(target, back, km, durable=False)
    assert filecmp.cmp(plain, back, shallow=False)


@pytest.mark.parametrize("threads", [1, 2])
def test_decrypt_file(
    benchmark: BenchmarkFixture, plain: Path, tmp_path: Path, threads: int
) -> None:
    sealed, target = tmp_path / "sealed", tmp_path / "target"
    km = ags1.encrypt_file(plain, sealed, durable=False)
    benchmark.group = "decrypt_file"
    benchmark(ags1.decrypt_file, sealed, target, km, threads=threads, durable=False, overwrite=True)
    assert filecmp.cmp(plain, target, shallow=False)


@pytest.mark.parametrize("threads", [1, 2])
def test_verify_file(
    benchmark: BenchmarkFixture, plain: Path, tmp_path: Path, size: int, threads: int
) -> None:
    sealed = tmp_path / "sealed"
    km = ags1.encrypt_file(plain, sealed, durable=False)
    benchmark.group = "verify_file"
    assert benchmark(ags1.verify_file, sealed, km, threads=threads) == size


@pytest.mark.skipif(shutil.which("cp") is None, reason="no cp")
@pytest.mark.parametrize("group", ["encrypt_file", "decrypt_file"])
def test_cp(benchmark: BenchmarkFixture, plain: Path, tmp_path: Path, group: str) -> None:
    target = tmp_path / "target"
    benchmark.group = group
    benchmark(run_command, ["cp", plain, target])
    assert filecmp.cmp(plain, target, shallow=False)

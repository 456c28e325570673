"""The block engine between kept buffers, next to the bare loop and ``cryptography``."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from bench.contenders import Engine, Into
from bench.limits import EvpLoop, copy_memory
from bench.limits import __main__ as limits
from bench.material import Material, make_material
from bench.peers import PycaInto
from bench.settings import size_name

CONTENDERS: dict[str, Callable[[Material], Engine | EvpLoop | PycaInto]] = {
    "ags1": Engine,
    "limit": EvpLoop,
    "cryptography": lambda material: started(PycaInto(), material),
}


def started(peer: PycaInto, material: Material) -> PycaInto:
    if reason := peer.missing():
        pytest.skip(f"lacking: {reason}")
    peer.start(material)
    return peer


@pytest.mark.parametrize("name", CONTENDERS)
@pytest.mark.parametrize("block_size", [4 << 10, 64 << 10, 1 << 20])
@pytest.mark.parametrize("key_size", [16, 32])
@pytest.mark.parametrize("verb", ["seal", "open"])
def test_blocks(
    benchmark: BenchmarkFixture, size: int, verb: str, key_size: int, block_size: int, name: str
) -> None:
    material = make_material(size, key_size, block_size)
    contender = CONTENDERS[name](material)
    contender.seal()
    benchmark.group = f"{verb} AES-{key_size * 8}, blocks of {size_name(block_size)}"
    benchmark(contender.seal if verb == "seal" else contender.open)
    Engine(material).open()
    material.check_opened()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("verb", ["seal", "open"])
def test_threads(benchmark: BenchmarkFixture, size: int, verb: str, threads: int) -> None:
    material = make_material(size)
    form = Into(material, threads)
    form.seal()
    benchmark.group = f"{verb} AES-256 in threads"
    benchmark(form.seal if verb == "seal" else form.open)
    form.open()
    material.check_opened()


def test_limits_by_piece(capsys: pytest.CaptureFixture[str]) -> None:
    limits.main(["--sizes", "1", "--rounds", "1"])
    head, _, *rows = capsys.readouterr().out.splitlines()[2:]
    assert head.startswith("| GB/s | 16 KiB |")
    assert [row.split(",")[0] for row in rows] == [
        *("| AES-256 seal", "| AES-256 open", "| AES-128 seal", "| AES-128 open")
    ]


def test_memcpy(benchmark: BenchmarkFixture, size: int) -> None:
    material = make_material(size)
    benchmark.group = "memcpy"
    benchmark(copy_memory, material.opened, material.plaintext)
    material.check_opened()

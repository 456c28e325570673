"""A table's keys."""

from __future__ import annotations

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from bench.subjects.keys import COUNT, ManifestListKeys


@pytest.fixture(scope="module")
def keys() -> ManifestListKeys:
    return ManifestListKeys(COUNT)


@pytest.mark.parametrize("way", ["manager", "by hand"])
def test_open(benchmark: BenchmarkFixture, keys: ManifestListKeys, way: str) -> None:
    if way == "by hand":
        pytest.importorskip("cryptography")
    benchmark.group = f"open the keys of {COUNT} manifest lists"
    assert len(benchmark(keys.open if way == "manager" else keys.open_by_hand)) == COUNT


def test_both_ways_give_the_same_keys(keys: ManifestListKeys) -> None:
    pytest.importorskip("cryptography")
    keys.check()


def test_add(benchmark: BenchmarkFixture, keys: ManifestListKeys) -> None:
    benchmark.group = f"add the keys of {COUNT} manifest lists"
    assert len(benchmark(keys.add)) == COUNT + 1

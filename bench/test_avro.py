"""Avro data files."""

from __future__ import annotations

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from bench.subjects.avro import DataFile, missing

ROWS = 20000

pytestmark = pytest.mark.skipif(missing() is not None, reason="needs pyarrow and pyiceberg")


@pytest.fixture(scope="module", params=["null", "deflate", "encrypted"])
def file(request: pytest.FixtureRequest) -> DataFile:
    if request.param == "encrypted":
        return DataFile(ROWS, encrypted=True)
    return DataFile(ROWS, request.param)


def test_all_ways_give_the_same_rows(file: DataFile) -> None:
    file.check()


@pytest.mark.parametrize("threads", [1, 2])
def test_read(benchmark: BenchmarkFixture, file: DataFile, threads: int) -> None:
    benchmark.group = f"read {ROWS} rows"
    assert sum(batch.num_rows for batch in benchmark(file.read, threads)) == ROWS


def test_read_by_fastavro(benchmark: BenchmarkFixture, file: DataFile) -> None:
    benchmark.group = f"read {ROWS} rows"
    assert len(benchmark(file.read_by_fastavro)) == ROWS

"""Whole encrypted tables and their plain twins."""

from __future__ import annotations

from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from bench.settings import MIB
from bench.subjects.tables import (
    AvroTable,
    DeletedRows,
    LargeTable,
    ManifestTwins,
    ParquetTwins,
    missing,
)

MANIFESTS = 20

pytestmark = pytest.mark.skipif(missing() is not None, reason="needs pyarrow and pyiceberg")


@pytest.fixture(scope="module")
def parquet(tmp_path_factory: pytest.TempPathFactory) -> ParquetTwins:
    return ParquetTwins(tmp_path_factory.mktemp("parquet"), 4 * MIB)


@pytest.fixture(scope="module")
def deleted(tmp_path_factory: pytest.TempPathFactory) -> DeletedRows:
    return DeletedRows(tmp_path_factory.mktemp("deleted"), 4 * MIB)


@pytest.fixture(scope="module")
def manifests(tmp_path_factory: pytest.TempPathFactory) -> ManifestTwins:
    return ManifestTwins(tmp_path_factory.mktemp("manifests"), MANIFESTS)


@pytest.fixture(scope="module")
def avro(tmp_path_factory: pytest.TempPathFactory) -> AvroTable:
    return AvroTable(tmp_path_factory.mktemp("avro") / "table", 4 * MIB)


def test_twins_have_the_same_rows(parquet: ParquetTwins) -> None:
    parquet.check()


def test_twins_have_the_same_plan(manifests: ManifestTwins) -> None:
    manifests.check()


@pytest.mark.parametrize("twin", ["encrypted", "plain"])
def test_scan(benchmark: BenchmarkFixture, parquet: ParquetTwins, twin: str) -> None:
    benchmark.group = "scan a Parquet table to Arrow"
    rows = benchmark(parquet.scan if twin == "encrypted" else parquet.scan_plain)
    assert rows.num_rows


@pytest.mark.parametrize("twin", ["encrypted", "plain"])
def test_plan(benchmark: BenchmarkFixture, manifests: ManifestTwins, twin: str) -> None:
    benchmark.group = f"plan the scan of {MANIFESTS} manifests"
    tasks = benchmark(manifests.plan if twin == "encrypted" else manifests.plan_plain)
    assert len(tasks) == 10 * MANIFESTS


@pytest.mark.parametrize("way", ["scan", "scan_rewritten", "scan_and_copy"])
def test_scan_deleted(benchmark: BenchmarkFixture, deleted: DeletedRows, way: str) -> None:
    benchmark.group = "scan a table with 5 % of its rows deleted"
    deleted.check()
    benchmark(getattr(deleted, way))


def test_delete_partition(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    benchmark.group = f"delete one partition of {MANIFESTS}"
    large = LargeTable(tmp_path, MANIFESTS)
    benchmark.pedantic(large.delete, rounds=3)  # type: ignore[no-untyped-call]
    large.expire()


@pytest.mark.parametrize("way", ["verify", "cat"])
def test_verify(benchmark: BenchmarkFixture, avro: AvroTable, way: str) -> None:
    benchmark.group = "verify a table of Avro files"
    benchmark(avro.verify if way == "verify" else avro.cat)

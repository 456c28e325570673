"""Tables written, compacted, migrated and rotated."""

from __future__ import annotations

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from bench.settings import MIB
from bench.subjects.writes import (
    Appends,
    ChangedTable,
    Committers,
    Lake,
    PlainTable,
    RotatedTable,
    SmallFiles,
    missing,
)

FILES = 12

pytestmark = pytest.mark.skipif(missing() is not None, reason=f"needs {missing()}")


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    return Lake(tmp_path_factory.mktemp("lake"))


@pytest.fixture(scope="module")
def appends(lake: Lake, size: int) -> Appends:
    from bench.flights import BYTES_PER_FLIGHT, flights

    return Appends(lake, flights(size // BYTES_PER_FLIGHT, FILES))


def test_rows_come_back(appends: Appends) -> None:
    appends.check()


@pytest.mark.parametrize("who", ["ags1.iceberg", "PyIceberg"])
def test_append(benchmark: BenchmarkFixture, appends: Appends, size: int, who: str) -> None:
    benchmark.group = f"append {size // MIB} MiB of Arrow"
    benchmark(appends.append, encrypted=who == "ags1.iceberg")


@pytest.mark.parametrize("buckets", [0, 16])
def test_append_by_buckets(
    benchmark: BenchmarkFixture, appends: Appends, size: int, buckets: int
) -> None:
    benchmark.group = f"append {size // MIB} MiB of Arrow by buckets of a string"
    benchmark(appends.append, encrypted=True, buckets=buckets)


@pytest.mark.parametrize("writers", [1, 2])
def test_commits(benchmark: BenchmarkFixture, lake: Lake, writers: int) -> None:
    benchmark.group = f"{FILES} commits"
    committers = Committers(lake, writers)
    benchmark(committers.commit, FILES, encrypted=True)
    committers.close()


@pytest.mark.parametrize("who", ["ags1.iceberg", "PyIceberg"])
@pytest.mark.parametrize("change", ["delete", "upsert"])
def test_changes(benchmark: BenchmarkFixture, lake: Lake, change: str, who: str) -> None:
    benchmark.group = f"{change} over {FILES} manifests"
    benchmark(getattr(ChangedTable(lake, FILES), change), encrypted=who == "ags1.iceberg")


def test_migrate(benchmark: BenchmarkFixture, lake: Lake, size: int) -> None:
    from bench.flights import BYTES_PER_FLIGHT, flights

    plain = PlainTable(lake, flights(size // BYTES_PER_FLIGHT, FILES), 2)
    benchmark(plain.migrate)


@pytest.mark.parametrize("who", ["ags1.iceberg", "PyIceberg"])
def test_compact(benchmark: BenchmarkFixture, lake: Lake, size: int, who: str) -> None:
    from bench.flights import BYTES_PER_FLIGHT, flights

    benchmark.group = f"write {FILES} files of {size // MIB} MiB again"
    table = SmallFiles(lake, flights(size // BYTES_PER_FLIGHT, FILES), FILES, 128 * MIB)
    table.check()
    benchmark(table.compact if who == "ags1.iceberg" else table.read_and_append)


def test_rotate(benchmark: BenchmarkFixture, lake: Lake) -> None:
    table = RotatedTable(lake, FILES)
    table.check()
    benchmark(table.rotate)

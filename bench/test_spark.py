"""Jobs and data sources on Spark, next to the same work without it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from bench.subjects.spark import (
    MANY,
    ONE,
    AvroRows,
    LargeFiles,
    Session,
    SmallFiles,
    SparkError,
    missing,
    sessions,
)

SMALL_FILES = 200
ROUNDS = 5

pytestmark = pytest.mark.skipif(missing() is not None, reason=f"needs {missing()}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("spark")


@pytest.fixture(scope="module")
def both(folder: Path) -> Iterator[tuple[Session, Session]]:
    with sessions(folder) as both:
        yield both


@pytest.fixture(scope="module")
def large(folder: Path, both: tuple[Session, Session], size: int) -> LargeFiles:
    return LargeFiles(folder, *both, size)


def test_files_come_back(large: LargeFiles) -> None:
    large.check()


@pytest.mark.parametrize("which", [MANY, ONE])
@pytest.mark.parametrize("where", ["Spark", "here"])
@pytest.mark.parametrize("verb", ["encrypt", "decrypt"])
def test_large_files(
    benchmark: BenchmarkFixture,
    large: LargeFiles,
    both: tuple[Session, Session],
    verb: str,
    where: str,
    which: str,
) -> None:
    works: dict[tuple[str, str], Callable[[], float]] = {
        ("encrypt", "Spark"): lambda: large.encrypt(both[0], which),
        ("decrypt", "Spark"): lambda: large.decrypt(both[0], which),
        ("encrypt", "here"): lambda: large.encrypt_here(which),
        ("decrypt", "here"): lambda: large.decrypt_here(which),
    }
    benchmark.group = f"{verb} {which}"
    assert _timed(benchmark, works[verb, where], large.clean) > 0
    large.clean()


@pytest.mark.parametrize("verb", ["encrypt", "decrypt"])
def test_small_files(
    benchmark: BenchmarkFixture,
    tmp_path: Path,
    both: tuple[Session, Session],
    verb: str,
) -> None:
    small = SmallFiles(tmp_path, both[0], SMALL_FILES)
    benchmark.group = f"{SMALL_FILES} small files"
    work = small.encrypt if verb == "encrypt" else small.decrypt
    assert _timed(benchmark, work, small.clean) > 0


@pytest.fixture(scope="module")
def rows(folder: Path, both: tuple[Session, Session], size: int) -> AvroRows:
    return AvroRows(folder, *both, size)


def test_all_rows_are_read(rows: AvroRows) -> None:
    rows.check()


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("source", ["ags1", "ags1-iceberg"])
def test_read(
    benchmark: BenchmarkFixture,
    rows: AvroRows,
    both: tuple[Session, Session],
    source: str,
    cores: int,
) -> None:
    place = str(rows.sealed) if source == "ags1" else rows.table
    benchmark.group = f"read Avro, {source}"
    session = both[2 - cores]
    assert _timed(benchmark, lambda: session.ask("read", source, place)) > 0


def test_a_failure_over_there_is_told(both: tuple[Session, Session]) -> None:
    with pytest.raises(SparkError, match="no-such-source"):
        both[0].ask("count", "no-such-source", "/nowhere")
    assert both[0].ask("wait") > 0


def _timed(
    benchmark: BenchmarkFixture, work: Callable[[], float], before: Callable[[], None] | None = None
) -> float:
    """Return what ``work`` returns, the seconds over there."""
    seconds: float = benchmark.pedantic(work, setup=before, rounds=ROUNDS)  # type: ignore[no-untyped-call]
    return seconds

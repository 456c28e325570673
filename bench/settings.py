"""How much to measure."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Settings:
    """Sizes in bytes."""

    rounds: int = 9
    size: int = 256 * MIB
    grid_size: int = 128 * MIB
    file_size: int = 2048 * MIB
    pread_size: int = 1024 * MIB
    preads: int = 1000
    messages: int = 5000
    many: int = 10_000
    table_size: int = 1024 * MIB
    manifests: int = 1000
    table_files: int = 1000
    bucketed_rows: int = 1_000_000
    commits: int = 80
    writers: int = 8
    objects: int = 40
    grown_files: tuple[int, ...] = (1_000, 10_000, 100_000)
    grown_snapshots: tuple[int, ...] = (10, 100, 600, 3_000)
    peers: tuple[str, ...] = ()
    folder: Path | None = None

    @property
    def slow_rounds(self) -> int:
        """For work that takes seconds a time."""
        return max(1, min(self.rounds, 5))


QUICK = Settings(
    rounds=3,
    size=64 * MIB,
    grid_size=32 * MIB,
    file_size=256 * MIB,
    pread_size=128 * MIB,
    preads=200,
    messages=1000,
    many=2000,
    table_size=256 * MIB,
    commits=40,
    grown_files=(1_000, 10_000),
    grown_snapshots=(10, 100, 600),
)
SMOKE = Settings(
    rounds=1,
    size=2 * MIB,
    grid_size=MIB,
    file_size=4 * MIB,
    pread_size=2 * MIB,
    preads=10,
    messages=20,
    many=20,
    table_size=4 * MIB,
    manifests=20,
    table_files=12,
    bucketed_rows=10_000,
    commits=4,
    writers=2,
    objects=6,
    grown_files=(10, 200),
    grown_snapshots=(2, 8),
)


def size_name(size: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (MIB, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / unit:g} {name}"
    return f"{size} bytes"


def first_missing(packages: Iterable[str]) -> str | None:
    """Which package is not there, if one is not."""
    return next((name for name in packages if importlib.util.find_spec(name) is None), None)

"""How the time of a table's operations grows with its files and with its snapshots.

Each contest has one operation, and the contestants are sizes. The times are CPU time.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench.rounds import Contest, Contestant, compete
from bench.settings import MIB, Settings
from bench.storage import scratch_folder

from .keys import MemoryMaster
from .writes import Lake, missing

SUBJECT = "growth"
BY_FILES, BY_SNAPSHOTS = "{}, by files", "{}, by snapshots"
FILES_PER_MANIFEST = 100
COMMITS_PER_TRANSACTION = 50


class FilesTable:
    """A table of ``count`` data files that were never written, with all metrics."""

    def __init__(self, folder: Path, count: int) -> None:
        from bench.tables import ORDERS, ORDERS_BY_DAY, TableWriter

        self._kms = MemoryMaster()
        writer = TableWriter(folder, ORDERS, ORDERS_BY_DAY, kms=self._kms)
        for day in range(max(1, count // FILES_PER_MANIFEST)):
            writer.manifest(
                [
                    writer.absent_file(f"{number:05}", 1_000_000, 64 * MIB, day)
                    for number in range(min(count, FILES_PER_MANIFEST))
                ]
            )
        self._location = writer.finish()
        self._count = count

    def _open(self) -> Any:
        from ags1.iceberg import open_table

        return open_table(self._location, self._kms, expected_key_id="key")

    def plan(self) -> None:
        _expect(len(self._open().scan().plan_files()), self._count)

    def plan_by_bounds(self) -> None:
        """Plan with a filter that is true for all rows, as the bounds of each file say."""
        _expect(len(self._open().scan("id >= 0").plan_files()), self._count)

    def count(self) -> None:
        _expect(self._open().scan().count(), self._count * 1_000_000)

    def partitions(self) -> None:
        _expect(len(self._open().inspect.partitions()), max(1, self._count // FILES_PER_MANIFEST))


class SnapshotsTable:
    """A table of ``count`` snapshots, each of an appended row."""

    def __init__(self, lake: Lake, count: int) -> None:
        from bench.flights import flights

        self._row = flights(1, 1)
        self._lake, self._count = lake, count
        table = lake.create(encrypted=True)
        for first in range(0, count, COMMITS_PER_TRANSACTION):
            with table.transaction() as transaction:
                for _ in range(first, min(count, first + COMMITS_PER_TRANSACTION)):
                    transaction.append(self._row)
        self._name = ".".join(table.name())
        self._table = table

    def load(self) -> Any:
        return self._lake.encrypted.load_table(self._name)

    def append(self) -> None:
        self._table.append(self._row)

    def expire(self) -> None:
        found = self.load().expire_snapshots("0s", 1, dry_run=True)
        if not found.snapshot_ids:
            raise RuntimeError("no snapshot would expire")

    def inspect(self) -> None:
        if len(self.load().inspect.snapshots()) < self._count:
            raise RuntimeError("not all snapshots are there")

    def verify(self) -> None:
        from ags1.iceberg.operations.check import verify_table

        if not verify_table(self.load()).ok:
            raise RuntimeError("the table is not sound")


def measure(settings: Settings, skipped: dict[str, str]) -> Iterator[Contest]:
    if (name := missing()) is not None:
        skipped[SUBJECT] = f"{name} is not installed"
        return
    with scratch_folder(settings.folder, max(settings.grown_files) << 10) as folder:
        tables = {count: FilesTable(folder / str(count), count) for count in settings.grown_files}
        for name in ("plan", "plan_by_bounds", "count", "partitions"):
            yield contest(BY_FILES, name, tables, settings.slow_rounds)
    with scratch_folder(settings.folder, max(settings.grown_snapshots) << 17) as folder:
        lake = Lake(folder)
        grown = {count: SnapshotsTable(lake, count) for count in settings.grown_snapshots}
        for name in ("load", "append", "expire", "inspect", "verify"):
            yield contest(BY_SNAPSHOTS, name, grown, settings.slow_rounds)


def contest(title: str, work: str, tables: dict[int, Any], rounds: int) -> Contest:
    """Compare the sizes of a table in one operation."""
    runs = [
        Contestant(f"{count:,}", _cpu_time(getattr(table, work)), count=count)
        for count, table in tables.items()
    ]
    return compete(SUBJECT, title.format(work.replace("_", " ")), runs, rounds, between=_forget)


def _cpu_time(work: Callable[[], object]) -> Callable[[], float]:
    def run() -> float:
        # The collector runs as it does for users: to look for cycles is a part of the time.
        gc.enable()
        begin = time.process_time()
        work()
        seconds = time.process_time() - begin
        gc.disable()
        return seconds

    return run


def _expect(found: int, wanted: int) -> None:
    if found != wanted:
        raise RuntimeError(f"{found} were found, not {wanted}")


def _forget() -> None:
    from pyiceberg.manifest import clear_manifest_cache

    clear_manifest_cache()
    gc.collect()

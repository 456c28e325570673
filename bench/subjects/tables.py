"""Whole encrypted tables: scanned, planned and verified, next to plain twins of them.

The peer is PyIceberg on the plain twin: the same rows, files and row groups, in the same process.
"""

from __future__ import annotations

import datetime
import gc
import importlib.util
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ags1
from bench.limits import copies
from bench.material import random_bytearray
from bench.rounds import Contest, Contestant, compete, timed
from bench.settings import MIB, Settings
from bench.storage import scratch_folder

from .keys import MemoryMaster

if TYPE_CHECKING:
    from bench.tables import Entry, TableWriter

# Arrow gives freed memory back at once, and to get it anew takes a virtual machine longer than the
# scan, whoever's. Arrow reads this when it is loaded.
os.environ.setdefault("MIMALLOC_PURGE_DELAY", "-1")

SUBJECT = "tables"
NEEDED = ("numpy", "pyarrow", "pyiceberg", "pyroaring")
OURS = "ags1.iceberg, encrypted"
PYICEBERG = "PyIceberg, plain twin"
VERIFY, CAT = "verify_table, 2 threads", "cat to /dev/null"
VERIFY_FILES = "verify_file of each, 2 threads"
SCAN = "scan a Parquet table to Arrow"
SCAN_DELETED = "scan a table with 5 % of its rows deleted, CPU time"
REWRITTEN = "PyIceberg, plain, without the deleted rows"
COPIED = "ags1.iceberg, all rows and a copy of them"
PLAN = "plan the scan of many manifests"
DELETE_PARTITION = "delete one partition of a large table"
EXPIRY = "find the files of an expired snapshot of a large table"
VERIFICATION = "verify a table of Avro files"
MANY_VERIFICATION = "verify a table of many small Avro files"

FILES, MANY_FILES = 8, 64
# One of so many rows is deleted, anywhere.
ROWS_PER_DELETED = 20
FILES_PER_MANIFEST = 10
FILES_PER_PARTITION = 50
_PAYLOAD_SIZE = 64 << 10


class Twins:
    """An encrypted table and its plain twin in ``folder``, both written by ``write``."""

    def __init__(self, folder: Path, write: Callable[[TableWriter], object], **table: Any) -> None:
        from bench.tables import TableWriter

        self._kms = MemoryMaster()
        self._locations = []
        for name, kms in (("encrypted", self._kms), ("plain", None)):
            writer = TableWriter(folder / name, kms=kms, **table)
            write(writer)
            self._locations.append(writer.finish())

    def open(self) -> Any:
        """Open the encrypted one with ags1."""
        from ags1.iceberg import open_table

        return open_table(self._locations[0], self._kms, expected_key_id="key")

    def open_plain(self) -> Any:
        """Open the plain one with PyIceberg."""
        from pyiceberg.table import StaticTable

        return StaticTable.from_metadata(self._locations[1])


class ParquetTwins(Twins):
    """Twins with about ``size`` bytes of Parquet in several files of ten columns."""

    def __init__(self, folder: Path, size: int) -> None:
        from bench.tables import BYTES_PER_ORDER, ORDERS, orders

        count = max(1, size // BYTES_PER_ORDER // FILES)
        self.size = 0

        def write(writer: TableWriter) -> None:
            entries: list[Entry] = []
            for number in range(FILES):
                rows = orders(number * count, count)
                entries.append(writer.parquet_file(f"{number:05}", rows))
            writer.manifest(entries)
            self.size = sum(entry["file_size_in_bytes"] for entry in entries)

        super().__init__(folder, write, schema=ORDERS)

    def scan(self) -> Any:
        return self.open().scan().to_arrow()

    def scan_plain(self) -> Any:
        return self.open_plain().scan().to_arrow()

    def check(self) -> None:
        """Raise RuntimeError unless both have the same rows."""
        # By columns: two whole tables at once are more memory than a scan takes.
        for column in self.open().schema().column_names:
            ours, theirs = (
                table.scan(selected_fields=(column,)).to_arrow()
                for table in (self.open(), self.open_plain())
            )
            if not ours.num_rows or not ours.equals(theirs):
                raise RuntimeError(f"{column!r} is not that of the plain twin")


class DeletedRows:
    """An encrypted table with about ``size`` bytes of Parquet, of which scattered rows are deleted
    by deletion vectors, and a plain table of the other rows, which PyIceberg wrote."""

    def __init__(self, folder: Path, size: int) -> None:
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        from bench.tables import BYTES_PER_ORDER, orders

        from .writes import Lake

        lake = Lake(folder)
        count = max(ROWS_PER_DELETED, size // BYTES_PER_ORDER // FILES)
        for number in range(FILES):
            chosen = np.random.default_rng(number).integers(0, ROWS_PER_DELETED, count)
            rows = orders(number * count, count).append_column("chosen", pa.array(chosen))
            if not number:
                key = {"encryption.key-id": "key"}
                self._table: Any = lake.encrypted.create_table("db.d", rows.schema, properties=key)
                self._rewritten: Any = lake.plain.create_table("db.r", rows.schema)
            self._table.append(rows)
            self._rewritten.append(rows.filter(pc.not_equal(rows["chosen"], 0)))
        self._before = self._table.current_snapshot().snapshot_id
        self._table.delete("chosen = 0")

    def scan(self) -> Any:
        return self._table.scan().to_arrow()

    def scan_rewritten(self) -> Any:
        return self._rewritten.scan().to_arrow()

    def scan_and_copy(self) -> Any:
        """Read the table as it was before the deletion, and copy each column: whoever leaves rows
        out has to copy the others."""
        import pyarrow as pa

        rows = self._table.scan(snapshot_id=self._before).to_arrow()
        return [
            pa.concat_arrays([chunk, chunk.slice(0, 0)])
            for column in rows.columns
            for chunk in column.chunks
        ]

    def check(self) -> None:
        """Raise RuntimeError unless both have the same rows."""
        ours, theirs = (rows.sort_by("id") for rows in (self.scan(), self.scan_rewritten()))
        if not ours.num_rows or not ours.equals(theirs.cast(ours.schema)):
            raise RuntimeError("the rows are not those of the rewritten table")


class ManifestTwins(Twins):
    """Twins with so many manifests, of data files that were never written, with all metrics."""

    def __init__(self, folder: Path, count: int) -> None:
        from bench.tables import ORDERS, ORDERS_BY_DAY

        def write(writer: TableWriter) -> None:
            for day in range(count):
                writer.manifest(
                    [
                        writer.absent_file(f"{number:05}", 1_000_000, 64 * MIB, day)
                        for number in range(FILES_PER_MANIFEST)
                    ]
                )

        super().__init__(folder, write, schema=ORDERS, spec=ORDERS_BY_DAY)

    def plan(self) -> list[Any]:
        return list(self.open().scan().plan_files())

    def plan_plain(self) -> list[Any]:
        return list(self.open_plain().scan().plan_files())

    def check(self) -> None:
        """Raise RuntimeError unless both name the same files with the same metrics."""
        both = [
            [
                (
                    task.file.file_path.rpartition("/data/")[2],
                    task.file.partition[0],
                    task.file.record_count,
                    task.file.upper_bounds,
                )
                for task in tasks
            ]
            for tasks in (self.plan(), self.plan_plain())
        ]
        if both[0] != both[1]:
            raise RuntimeError("the plan is not that of the plain twin")


class LargeTable:
    """A table in a catalog, of ``count`` partitions in a manifest each, of 50 data files that were
    never written. Deletes of whole partitions read manifests only."""

    def __init__(self, folder: Path, count: int) -> None:
        from ags1.kms import from_properties
        from bench.tables import ORDERS, ORDERS_BY_DAY, TableWriter

        from .writes import Lake

        lake = Lake(folder)
        keyring = {"encryption.kms-type": "local", "kms.local.keyring": f"{folder}/keyring.json"}
        place = folder / "warehouse" / "db" / "large"
        writer = TableWriter(place, ORDERS, ORDERS_BY_DAY, from_properties(keyring))
        for day in range(count):
            writer.manifest(
                [
                    writer.absent_file(f"{number:05}", 1_000_000, 64 * MIB, day)
                    for number in range(FILES_PER_PARTITION)
                ]
            )
        self._table: Any = lake.encrypted.register_table("db.large", writer.finish())
        self._days = iter(range(count))
        # The first delete merges all manifests.
        self.delete()

    def delete(self) -> None:
        """Delete one more partition. Raises RuntimeError unless its files are gone."""
        day = datetime.date(1970, 1, 1) + datetime.timedelta(days=next(self._days))
        self._table.delete(f"day = '{day}'")
        removed = self._table.current_snapshot().summary["deleted-data-files"]
        if int(removed) != FILES_PER_PARTITION:
            raise RuntimeError(f"{removed} files were deleted")

    def expire(self) -> None:
        """Find what the first snapshot has alone. Raises RuntimeError unless that is there."""
        first = self._table.snapshots()[0].snapshot_id
        found = self._table.expire_snapshots(snapshot_ids=[first], dry_run=True)
        if len(found.files.data_files) != FILES_PER_PARTITION:
            raise RuntimeError(f"{len(found.files.data_files)} files are found")


class AvroTable:
    """An encrypted table with ``size`` bytes of Avro in several ``files``."""

    def __init__(self, folder: Path, size: int, files: int = FILES) -> None:
        from bench.tables import PAYLOADS, TableWriter

        self._kms = MemoryMaster()
        writer = TableWriter(folder, PAYLOADS, kms=self._kms)
        content = bytes(random_bytearray(max(_PAYLOAD_SIZE, size // files)))
        payloads = [
            content[at : at + _PAYLOAD_SIZE] for at in range(0, len(content), _PAYLOAD_SIZE)
        ]
        entries = [writer.avro_file(f"{number:05}", payloads) for number in range(files)]
        writer.manifest(entries)
        self._location = writer.finish()
        self._keys = {
            entry["file_path"].removeprefix("file://"): ags1.KeyMetadata.from_bytes(
                entry["key_metadata"]
            )
            for entry in entries
        }
        self.size = sum(entry["file_size_in_bytes"] for entry in entries)

    def verify(self, threads: int = 2) -> Any:
        """Verify the table. Raises RuntimeError unless all of it was and nothing is amiss."""
        from ags1.iceberg import EncryptedTable, open_table
        from ags1.iceberg.operations.check import verify_table
        from ags1.iceberg.operations.check.findings import Severity

        table = open_table(self._location, self._kms, expected_key_id="key")
        assert isinstance(table, EncryptedTable)
        found = verify_table(table, threads=threads)
        amiss = [one for one in found.findings if one.severity != Severity.NOTE]
        if amiss or found.verified_size < self.size:
            raise RuntimeError(f"{found.verified_size} bytes verified, {len(amiss)} findings")
        return found

    def verify_files(self) -> None:
        """The data files alone, one after the other."""
        for path, km in self._keys.items():
            ags1.verify_file(path, km, threads=2)

    def cat(self) -> None:
        copies.run_command(["cat", *self._keys])


def missing() -> str | None:
    """Which package is not there, if one is not."""
    return next((name for name in NEEDED if importlib.util.find_spec(name) is None), None)


def measure(settings: Settings, skipped: dict[str, str]) -> Iterator[Contest]:
    if (name := missing()) is not None:
        skipped[SUBJECT] = f"{name} is not installed"
        return
    with scratch_folder(settings.folder, 3 * settings.table_size) as folder:
        parquet = ParquetTwins(folder, settings.table_size)
        parquet.check()
        yield _contest(
            SCAN,
            {OURS: parquet.scan, PYICEBERG: parquet.scan_plain},
            settings.slow_rounds,
            size=parquet.size,
        )
    with scratch_folder(settings.folder, 2 * settings.table_size) as folder:
        deleted = DeletedRows(folder, settings.table_size // 4)
        deleted.check()
        ways = {
            OURS: deleted.scan,
            COPIED: deleted.scan_and_copy,
            REWRITTEN: deleted.scan_rewritten,
        }
        runs = [Contestant(way, _cpu_time(work)) for way, work in ways.items()]
        yield compete(SUBJECT, SCAN_DELETED, runs, settings.rounds, between=_forget)
    with scratch_folder(settings.folder, settings.manifests << 16) as folder:
        manifests = ManifestTwins(folder, settings.manifests)
        manifests.check()
        yield _contest(
            PLAN,
            {OURS: manifests.plan, PYICEBERG: manifests.plan_plain},
            settings.slow_rounds,
            count=settings.manifests,
        )
    with scratch_folder(settings.folder, settings.manifests << 18) as folder:
        large = LargeTable(folder, 2 * settings.manifests)
        for name, work in ((DELETE_PARTITION, large.delete), (EXPIRY, large.expire)):
            yield _contest(name, {OURS: work}, settings.slow_rounds)
    with scratch_folder(settings.folder, 2 * settings.table_size) as folder:
        for name, size, files in (
            (VERIFICATION, settings.table_size, FILES),
            (MANY_VERIFICATION, settings.table_size // 4, MANY_FILES),
        ):
            avro = AvroTable(folder / name, size, files)
            yield _contest(
                name,
                {VERIFY: avro.verify, VERIFY_FILES: avro.verify_files, CAT: avro.cat},
                settings.rounds,
                size=avro.size,
                by_best=True,
            )


def _cpu_time(work: Callable[[], object]) -> Callable[[], float]:
    """Return a function that does ``work`` and returns the CPU seconds that all threads took."""

    def run() -> float:
        begin = time.process_time()
        _made = work()
        return time.process_time() - begin

    return run


def _contest(
    name: str,
    ways: dict[str, Callable[[], object]],
    rounds: int,
    *,
    size: int = 0,
    count: int = 1,
    by_best: bool = False,
) -> Contest:
    runs = [Contestant(way, timed(work), size, count) for way, work in ways.items()]
    return compete(SUBJECT, name, runs, rounds, between=_forget, by_best=by_best)


def _forget() -> None:
    """Take from both what the last run left behind: PyIceberg keeps manifests, and ags1 none."""
    from pyiceberg.manifest import clear_manifest_cache

    clear_manifest_cache()
    gc.collect()

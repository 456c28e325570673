"""Tables written, compacted, migrated and rotated, in a SQLite catalog on this machine.

The peers are PyIceberg, which writes the same rows to plain tables of format version 2 with the
same properties in the same catalog, and ``cp``.
"""

from __future__ import annotations

import functools
import gc
import importlib.util
import logging
import multiprocessing
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ags1.kms.local import create_key
from bench.limits import copies
from bench.rounds import Contest, Contestant, compete, timed
from bench.settings import MIB, Settings
from bench.storage import scratch_folder

if TYPE_CHECKING:
    import pyarrow as pa

SUBJECT = "writes"
NEEDED = ("numpy", "pyarrow", "pyiceberg", "pyroaring", "sqlalchemy")
OURS = "ags1.iceberg, encrypted"
PYICEBERG = "PyIceberg, plain"
PYICEBERG_FSYNC = "PyIceberg, plain, then fsync of each file"
MIGRATE, ROTATE = "migrate_table", "rotate_keys"
CP, CP_FSYNC = "cp", "cp, then fsync of each file"
APPEND = "append Arrow to a table"
PARTITIONED, UNPARTITIONED = "16 buckets of a string", "not partitioned"
BUCKETS = "append a million rows to an encrypted table"
COMMITS = "append one row, one process"
CONTENDED = "append one row, processes that contend"
DELETE = "delete from a table of many manifests"
UPSERT = "upsert into a table of many manifests"
MIGRATION = "migrate a plain table"
ROTATION = "rotate the keys of a table of many files and snapshots"
COMPACTION = "compact files of 1 MB into files of 128 MiB"
COMPACT = "rewrite_data_files, encrypted"
READ_AND_APPEND = "PyIceberg, plain: read to Arrow, then append"

# Both write with these; the compression and the target size are the defaults of both.
_PROPERTIES = {
    "write.parquet.compression-codec": "zstd",
    "write.target-file-size-bytes": str(512 * MIB),
}
_ENCRYPTED = {
    "format-version": "3",
    "encryption.key-id": "key",
    "encryption.data-key-length": "32",
}
_PLAIN = {"format-version": "2"}


class Lake:
    """A SQLite catalog, its warehouse and a keyring in ``folder``."""

    def __init__(self, folder: Path) -> None:
        from pyiceberg.catalog import load_catalog as load_plain_catalog

        from ags1.iceberg import load_catalog

        self.folder = folder
        keyring = folder / "keyring.json"
        if not keyring.exists():
            create_key(str(keyring), "key")
        where = {
            "type": "sql",
            "uri": f"sqlite:///{folder}/catalog.db",
            "warehouse": f"file://{folder}/warehouse",
        }
        kms = {"encryption.kms-type": "local", "kms.local.keyring": str(keyring)}
        self.encrypted = load_catalog("lake", **where, **kms)
        self.plain = load_plain_catalog("lake", **where)
        self.plain.create_namespace_if_not_exists("db")
        self._count = 0

    def new_name(self) -> str:
        """A name of a table that is not there."""
        self._count += 1
        return f"db.t{self._count}"

    def create(self, *, encrypted: bool, **properties: str) -> Any:
        """A new table for flights."""
        from bench.flights import FLIGHTS

        own = _ENCRYPTED if encrypted else _PLAIN
        catalog = self.encrypted if encrypted else self.plain
        return catalog.create_table(
            self.new_name(), FLIGHTS, properties=_PROPERTIES | own | properties
        )

    def drop(self, table: Any) -> None:
        """Remove a table and all that lies in its folder."""
        table.catalog.drop_table(table.name())
        shutil.rmtree(_folder(table), ignore_errors=True)


class Appends:
    """``rows`` appended to new tables, one after the other."""

    def __init__(self, lake: Lake, rows: pa.Table) -> None:
        self._lake = lake
        self._rows = rows
        self.size = rows.nbytes

    def append(self, *, encrypted: bool, sync: bool = False, buckets: int = 0) -> float:
        """Return the seconds that the append takes, with making the files durable, which ags1 does
        always, if ``sync``; to a table that is partitioned by so many ``buckets`` of its remarks,
        which are all different."""
        from pyiceberg.transforms import BucketTransform

        table = self._lake.create(encrypted=encrypted)
        if buckets:
            with table.update_spec() as spec:
                spec.add_field("remark", BucketTransform(buckets), "bucket")
        begin = time.perf_counter()
        table.append(self._rows)
        if sync:
            for path in _files(_folder(table)):
                copies.sync_file(path)
        seconds = time.perf_counter() - begin
        self._lake.drop(table)
        return seconds

    def check(self) -> None:
        """Raise RuntimeError unless both tables have the rows that were appended, in files of one
        codec."""
        import pyarrow.parquet as pq

        for encrypted in (True, False):
            table = self._lake.create(encrypted=encrypted)
            table.append(self._rows)
            order = "scheduled_at", "fuel", "remark"
            sorting = [(name, "ascending") for name in order]
            read = table.scan(selected_fields=order).to_arrow().sort_by(sorting)
            written = self._rows.select(order).sort_by(sorting)
            if read.num_rows != written.num_rows or not read.cast(written.schema).equals(written):
                raise RuntimeError("the rows did not come back")
            if not encrypted:
                file = next(path for path in _files(_folder(table)) if path.suffix == ".parquet")
                codec = pq.read_metadata(file).row_group(0).column(0).compression
                assert codec == "ZSTD", codec
            self._lake.drop(table)


class Committers:
    """``writers`` processes that append one row at a time to one table, each as fast as it can."""

    def __init__(self, lake: Lake, writers: int) -> None:
        self._lake = lake
        self._writers = writers
        self._pool: ProcessPoolExecutor | None = None
        if writers > 1:
            context = multiprocessing.get_context("spawn")
            barrier = context.Barrier(writers)
            self._pool = ProcessPoolExecutor(writers, context, _meet_at, (barrier,))

    def commit(self, count: int, *, encrypted: bool) -> float:
        """Return the seconds that ``count`` commits take. Raises RuntimeError if a row is lost."""
        table = self._lake.create(encrypted=encrypted)
        each = count // self._writers
        job = functools.partial(
            _commit, str(self._lake.folder), ".".join(table.name()), each, encrypted
        )
        if self._pool is None:
            times = [job()]
        else:
            times = [f.result() for f in [self._pool.submit(job) for _ in range(self._writers)]]
        found = table.refresh().scan().count()
        # Each has made one more before the clock ran.
        if found != (each + 1) * self._writers:
            raise RuntimeError(f"{found} rows of {(each + 1) * self._writers} are there")
        self._lake.drop(table)
        return max(end for _, end in times) - min(begin for begin, _ in times)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()


# Where the processes of a pool wait for each other, so that none is alone with the table.
_barrier: Barrier | None = None


def _meet_at(barrier: Barrier) -> None:
    global _barrier
    _barrier = barrier


def _commit(folder: str, name: str, count: int, encrypted: bool) -> tuple[float, float]:
    """Append ``count`` rows one by one; return when that began and ended (seconds, the same clock
    in all processes)."""
    from bench.flights import flights

    # PyIceberg logs each retry as a warning.
    logging.getLogger("pyiceberg").setLevel(logging.ERROR)
    lake = Lake(Path(folder))
    table = (lake.encrypted if encrypted else lake.plain).load_table(name)
    row = flights(1, 1)
    # The first one imports what is needed.
    _append(table, row)
    if _barrier is not None:
        _barrier.wait(120)
    begin = time.monotonic()
    for _ in range(count):
        _append(table, row)
    return begin, time.monotonic()


def _append(table: Any, rows: pa.Table) -> None:
    """Append, however often others come first: the table's own retries are few."""
    from pyiceberg.exceptions import CommitFailedException

    while True:
        try:
            table.append(rows)
            return
        except CommitFailedException:
            table.refresh()


class PlainTable:
    """A plain table written by PyIceberg, to be migrated again and again."""

    def __init__(self, lake: Lake, rows: pa.Table, files: int) -> None:
        self._lake = lake
        self._table = lake.create(encrypted=False)
        for number in range(files):
            start = number * rows.num_rows // files
            end = (number + 1) * rows.num_rows // files
            self._table.append(rows.slice(start, end - start))
        self._folder = _folder(self._table)
        self._before = set(_files(self._folder))
        self._data = [path for path in self._before if path.suffix == ".parquet"]
        self._rows = rows.num_rows
        self.size = sum(path.stat().st_size for path in self._data)

    def migrate(self) -> float:
        """Return the seconds that it takes to migrate a table of these files."""
        name = self._lake.new_name()
        self._lake.plain.register_table(name, self._table.metadata_location)
        begin = time.perf_counter()
        result = self._lake.encrypted.migrate_table(name, "key", data_key_length=32)
        seconds = time.perf_counter() - begin
        if result.rows != self._rows or result.files != len(self._data):
            raise RuntimeError(f"{result.rows} rows in {result.files} files were migrated")
        self._lake.plain.drop_table(name)
        for path in set(_files(self._folder)) - self._before:
            path.unlink()
        return seconds

    def cp(self, *, sync: bool = False) -> float:
        """Return the seconds that it takes to copy the data files."""
        target = self._lake.folder / "copy"
        target.mkdir()
        begin = time.perf_counter()
        copies.run_command(["cp", *self._data, target])
        if sync:
            for path in target.iterdir():
                copies.sync_file(path)
        seconds = time.perf_counter() - begin
        shutil.rmtree(target)
        return seconds


class RotatedTable:
    """An encrypted table of ``count`` data files, each of a snapshot of its own."""

    def __init__(self, lake: Lake, count: int) -> None:
        from bench.flights import flights

        self._count = count
        self._table = lake.create(encrypted=True)
        row = flights(1, 1)
        # Commits with thousands of snapshots take their time, and are not the subject.
        for start in range(0, count, 50):
            with self._table.transaction() as transaction:
                for _ in range(start, min(count, start + 50)):
                    transaction.append(row)

    def rotate(self) -> None:
        self._table.rotate_keys()

    def check(self) -> None:
        """Raise RuntimeError unless a rotation leaves all files but metadata.json as they are, and
        every snapshot opens."""
        table = self._table
        before = _stats(table)
        table.rotate_keys()
        if _stats(table) != before:
            raise RuntimeError("a rotation changed a file")
        snapshots = table.refresh().metadata.snapshots
        if len(snapshots) != self._count or table.scan().count() != self._count:
            raise RuntimeError(f"{len(snapshots)} snapshots, {table.scan().count()} rows")
        if table.scan(snapshot_id=snapshots[0].snapshot_id).count() != 1:
            raise RuntimeError("the first snapshot is not what it was")


class SmallFiles:
    """Tables of ``files`` data files each, encrypted and plain, whose rows are written again into
    files of ``target`` bytes, again and again."""

    def __init__(self, lake: Lake, rows: pa.Table, files: int, target: int) -> None:
        self._lake = lake
        self._target = target
        self._rows = rows.num_rows
        self._tables = {}
        for encrypted in (True, False):
            table = lake.create(encrypted=encrypted)
            # Commits with thousands of snapshots take their time, and are not the subject.
            for first in range(0, files, 50):
                with table.transaction() as transaction:
                    for number in range(first, min(files, first + 50)):
                        start = number * rows.num_rows // files
                        end = (number + 1) * rows.num_rows // files
                        transaction.append(rows.slice(start, end - start))
            self._tables[encrypted] = table
        self._before = set(_files(_folder(self._tables[True])))
        self.size = sum(path.stat().st_size for path in self._before if path.suffix == ".parquet")
        self._files = files

    def compact(self) -> float:
        """Return the seconds that a compaction takes."""
        table = self._tables[True]
        before = table.current_snapshot().snapshot_id
        begin = time.perf_counter()
        done = table.rewrite_data_files(target_file_size_bytes=self._target)
        seconds = time.perf_counter() - begin
        if done.rewritten_data_files_count != self._files or table.scan().count() != self._rows:
            raise RuntimeError(f"not all rows are there: {done}")
        self._put_back(before)
        return seconds

    def read_and_append(self) -> float:
        """Return the seconds in which PyIceberg reads the plain table and appends its rows to
        another one."""
        new = self._lake.create(
            encrypted=False, **{"write.target-file-size-bytes": str(self._target)}
        )
        begin = time.perf_counter()
        new.append(self._tables[False].scan().to_arrow())
        seconds = time.perf_counter() - begin
        if new.scan().count() != self._rows:
            raise RuntimeError("not all rows are there")
        self._lake.drop(new)
        return seconds

    def check(self) -> None:
        """Raise RuntimeError unless the compacted table has the rows of the plain one."""
        table = self._tables[True]
        before = table.current_snapshot().snapshot_id
        table.rewrite_data_files(target_file_size_bytes=self._target)
        order = "scheduled_at", "fuel", "remark"
        sorting = [(name, "ascending") for name in order]
        read, expected = (
            one.scan(selected_fields=order).to_arrow().sort_by(sorting)
            for one in (table, self._tables[False])
        )
        if not read.cast(expected.schema).equals(expected):
            raise RuntimeError("the rows did not come back")
        self._put_back(before)

    def _put_back(self, snapshot_id: int) -> None:
        table = self._tables[True]
        table.manage_snapshots().rollback_to_snapshot(snapshot_id).commit()
        table.refresh()
        for path in set(_files(_folder(table))) - self._before:
            if path.suffix == ".parquet":
                path.unlink()


class ChangedTable:
    """Tables of ``count`` manifests, with a data file of two flights each, that are changed again
    and again and put back."""

    def __init__(self, lake: Lake, count: int) -> None:
        from bench.flights import flights

        self._rows = rows = _with(flights(2 * count, 1), flight=range(2 * count))
        self._tables = {}
        for encrypted in (True, False):
            table = lake.create(encrypted=encrypted, **{"commit.manifest-merge.enabled": "false"})
            with table.transaction() as transaction:
                for number in range(count):
                    transaction.append(rows.slice(2 * number, 2))
            self._tables[encrypted] = table

    def delete(self, *, encrypted: bool) -> float:
        """Return the seconds that it takes to delete a file, and a row of another."""
        return self._change(encrypted, lambda table: table.delete("flight in (10, 11, 12)"), -3)

    def upsert(self, *, encrypted: bool) -> float:
        """Return the seconds that it takes to update three rows and insert one."""
        some = _with(self._rows.slice(10, 4), flight=[10, 11, 12, -1], passengers=[0] * 4)
        return self._change(encrypted, lambda table: table.upsert(some, ["flight"]), 1)

    def _change(self, encrypted: bool, change: Callable[[Any], object], more: int) -> float:
        table = self._tables[encrypted]
        before = table.current_snapshot().snapshot_id
        begin = time.perf_counter()
        change(table)
        seconds = time.perf_counter() - begin
        if table.scan().count() != self._rows.num_rows + more:
            raise RuntimeError(f"{table.scan().count()} rows are there")
        table.manage_snapshots().rollback_to_snapshot(before).commit()
        table.refresh()
        return seconds


def missing() -> str | None:
    """Which package is not there, if one is not."""
    return next((name for name in NEEDED if importlib.util.find_spec(name) is None), None)


def measure(settings: Settings, skipped: dict[str, str]) -> Iterator[Contest]:
    if (name := missing()) is not None:
        skipped[SUBJECT] = f"{name} is not installed"
        return
    from bench.flights import BYTES_PER_FLIGHT, flights

    rounds = settings.slow_rounds
    count = max(settings.table_files, settings.table_size // BYTES_PER_FLIGHT)
    with scratch_folder(settings.folder, 2 * settings.table_size) as folder:
        lake = Lake(folder)
        rows = flights(count, settings.table_files)
        appends = Appends(lake, rows)
        appends.check()
        append = appends.append
        yield _contest(
            APPEND,
            {
                OURS: lambda: append(encrypted=True),
                PYICEBERG: lambda: append(encrypted=False),
                PYICEBERG_FSYNC: lambda: append(encrypted=False, sync=True),
            },
            rounds,
            size=appends.size,
        )
        million = Appends(lake, flights(settings.bucketed_rows, 12))
        yield _contest(
            BUCKETS,
            {
                PARTITIONED: lambda: million.append(encrypted=True, buckets=16),
                UNPARTITIONED: lambda: million.append(encrypted=True),
            },
            settings.rounds,
            size=million.size,
        )
        plain = PlainTable(lake, rows, 8)
        yield _contest(
            MIGRATION,
            {MIGRATE: plain.migrate, CP: plain.cp, CP_FSYNC: lambda: plain.cp(sync=True)},
            rounds,
            size=plain.size,
            by_best=True,
        )
    with scratch_folder(settings.folder, 4 * settings.table_size) as folder:
        # A flight takes half as many bytes in a file as in Arrow.
        more = flights(2 * count, settings.table_files)
        small = SmallFiles(Lake(folder), more, settings.table_files, 128 * MIB)
        small.check()
        yield _contest(
            COMPACTION,
            {COMPACT: small.compact, READ_AND_APPEND: small.read_and_append},
            rounds,
            size=small.size,
        )
    with scratch_folder(settings.folder, settings.table_files << 18) as folder:
        lake = Lake(folder)
        rotated = RotatedTable(lake, settings.table_files)
        rotated.check()
        yield _contest(ROTATION, {ROTATE: timed(rotated.rotate)}, settings.rounds)
        changed = ChangedTable(lake, min(150, settings.table_files))
        for name, work in ((DELETE, changed.delete), (UPSERT, changed.upsert)):
            both: dict[str, Callable[[], float]] = {
                who: functools.partial(work, encrypted=encrypted)
                for who, encrypted in ((OURS, True), (PYICEBERG, False))
            }
            yield _contest(name, both, rounds)
        for name, writers in ((COMMITS, 1), (CONTENDED, settings.writers)):
            committers = Committers(lake, writers)
            commits = settings.commits // writers * writers
            try:
                yield _contest(
                    name,
                    {
                        who: functools.partial(committers.commit, commits, encrypted=encrypted)
                        for who, encrypted in ((OURS, True), (PYICEBERG, False))
                    },
                    rounds,
                    count=commits,
                )
            finally:
                committers.close()


def _contest(
    name: str,
    ways: dict[str, Callable[[], float]],
    rounds: int,
    *,
    size: int = 0,
    count: int = 1,
    by_best: bool = False,
) -> Contest:
    runs = [Contestant(way, work, size, count) for way, work in ways.items()]
    return compete(SUBJECT, name, runs, rounds, between=_settle, by_best=by_best)


def _settle() -> None:
    """Nobody pays for what the last one left: dirty pages, or memory."""
    from pyiceberg.manifest import clear_manifest_cache

    clear_manifest_cache()
    gc.collect()
    os.sync()


def _with(rows: pa.Table, **columns: Iterable[int]) -> pa.Table:
    """Return rows with other values in some columns."""
    import pyarrow as pa

    for name, values in columns.items():
        place = rows.schema.get_field_index(name)
        field = rows.schema.field(place)
        rows = rows.set_column(place, field, pa.array(values, field.type))
    return rows


def _folder(table: Any) -> Path:
    location: str = table.location()
    return Path(location.removeprefix("file://"))


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def _stats(table: Any) -> dict[Path, tuple[int, int]]:
    """Size and time of each file that is not a metadata.json."""
    return {
        path: (path.stat().st_size, path.stat().st_mtime_ns)
        for path in _files(_folder(table))
        if not path.name.endswith(".metadata.json")
    }

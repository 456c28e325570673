"""Tables in an object store that answers each request after 30 ms.

The peer is PyIceberg, which writes and reads the same rows in plaintext, in the same store and by
the same file system (PyArrow's).
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ags1.kms.local import create_key
from bench.object_store import BUCKET, ObjectStore
from bench.rounds import Contest, Contestant, compete
from bench.settings import Settings, first_missing
from bench.storage import scratch_folder

if TYPE_CHECKING:
    import pyarrow as pa

SUBJECT = "objects"
NEEDED = ("boto3", "moto", "pyarrow", "pyiceberg", "sqlalchemy", "werkzeug")
OURS = "ags1.iceberg, encrypted"
PYICEBERG = "PyIceberg, plain"
APPEND = "append 10 rows"
SCAN = "scan many small files"
DELETE = "delete one row in each of many files"
COMPACTION = "write many files of many commits again as one"
DELAY_SECONDS = 0.03
ROWS = 10


class Lakes:
    """Encrypted tables and plain ones in one bucket, with catalogs in ``folder``."""

    def __init__(self, store: ObjectStore, folder: Path) -> None:
        from pyiceberg.catalog import load_catalog as load_plain_catalog

        from ags1.iceberg import load_catalog

        self.store = store
        create_key(str(folder / "keyring.json"), "key")
        where = {
            "type": "sql",
            "uri": f"sqlite:///{folder}/catalog.db",
            "warehouse": f"s3://{BUCKET}/warehouse",
            "py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO",
            **store.properties,
        }
        kms = {"encryption.kms-type": "local", "kms.local.keyring": f"{folder}/keyring.json"}
        self._encrypted = load_catalog("lake", **where, **kms)
        self._plain = load_plain_catalog("lake", **where)
        self._plain.create_namespace_if_not_exists("db")
        self._count = 0

    def table(self, files: int, *, encrypted: bool) -> Any:
        """Return a new table of so many commits, each of one file."""
        self._count += 1
        catalog = self._encrypted if encrypted else self._plain
        properties = {"encryption.key-id": "key"} if encrypted else {}
        with self.store.at_once():
            name = f"db.t{self._count}"
            table = catalog.create_table(name, rows(0).schema, properties=properties)
            for number in range(files):
                table.append(rows(number))
            # Nobody has the manifests in memory.
            return catalog.load_table(name)


def rows(number: int) -> pa.Table:
    """Return the rows of one file."""
    import pyarrow as pa

    first = number * ROWS
    return pa.table(
        {
            "id": pa.array(range(first, first + ROWS)),
            "of_file": pa.array(range(ROWS)),
            "name": [f"row {n}" for n in range(first, first + ROWS)],
        }
    )


def append(table: Any) -> None:
    table.append(rows(1))


def scan(table: Any) -> None:
    table.scan().to_arrow()


def delete(table: Any) -> None:
    table.delete("of_file = 5")


def compact(table: Any) -> None:
    """Write all rows again: PyIceberg has to read and to overwrite them."""
    if hasattr(table, "rewrite_data_files"):
        table.rewrite_data_files()
    else:
        table.overwrite(table.scan().to_arrow())


class Work:
    """``work`` on new tables of so many ``files``. ``requests`` is what the last one took, and
    ``left`` is how many rows are there afterwards."""

    def __init__(
        self, lakes: Lakes, work: Callable[[Any], None], files: int, left: int, *, encrypted: bool
    ) -> None:
        self._lakes, self._work, self._files = lakes, work, files
        self._left, self._encrypted = left, encrypted
        self.requests = 0

    def run(self) -> float:
        """Return the seconds that the work takes. Raises RuntimeError if rows are lost."""
        table = self._lakes.table(self._files, encrypted=self._encrypted)
        _forget()
        before, begin = self._lakes.store.requests, time.perf_counter()
        self._work(table)
        seconds = time.perf_counter() - begin
        self.requests = self._lakes.store.requests - before
        with self._lakes.store.at_once():
            found = table.refresh().scan().count()
        if found != self._left:
            raise RuntimeError(f"{found} rows of {self._left} are there")
        return seconds


def missing() -> str | None:
    """Which package is not there, if one is not."""
    return first_missing(NEEDED)


def measure(settings: Settings, skipped: dict[str, str]) -> Iterator[Contest]:
    if (name := missing()) is not None:
        skipped[SUBJECT] = f"{name} is not installed"
        return
    store = ObjectStore(DELAY_SECONDS)
    try:
        with scratch_folder(settings.folder, 1 << 20) as folder:
            lakes = Lakes(store, folder)
            files = settings.objects
            for name, work, count, left in (
                (APPEND, append, 2, 3 * ROWS),
                (SCAN, scan, files * 3 // 2, files * 3 // 2 * ROWS),
                (DELETE, delete, files, files * (ROWS - 1)),
                (COMPACTION, compact, files, files * ROWS),
            ):
                yield contest(lakes, name, work, count, left, settings.slow_rounds)
    finally:
        store.close()


def contest(
    lakes: Lakes, name: str, work: Callable[[Any], None], files: int, left: int, rounds: int
) -> Contest:
    """Compare both, and note the requests of each."""
    ways = {
        who: Work(lakes, work, files, left, encrypted=encrypted)
        for who, encrypted in ((OURS, True), (PYICEBERG, False))
    }
    runs = [Contestant(who, way.run, warm_up=False) for who, way in ways.items()]
    found = compete(SUBJECT, name, runs, rounds)
    for who, way in ways.items():
        found.series[who].requests = way.requests
    return found


def _forget() -> None:
    from pyiceberg.manifest import clear_manifest_cache

    clear_manifest_cache()
    gc.collect()

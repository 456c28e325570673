"""Reading encrypted files as a stream, each once: those that a ledger has as done.

``spark.readStream.format("ags1").option("ledger", …).load(folder)`` has the rows that
``spark.read`` has, in micro-batches. Where a query stands is a number of the ledger's settled
batches. Those do not change, so that a micro-batch which is run again has the same files. A file
that was written anew since, by a newer batch, is left to that one: its older content is gone.

Options are those of ``datasource``, and ``startingOffsets`` (``earliest``, or ``latest`` for what
is settled from now on), ``ignoreMissingFiles`` (``true`` passes over files that somebody has
removed) and, from PySpark 4.2 on, ``maxFilesPerTrigger`` (at about so many files a micro-batch
ends; batches of the ledger are not cut).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.types import StructType

from .. import options as opt
from ..bulk.publishing import has_its_name
from ..datasource import FilesPartition, FilesReader
from ..ledger import DONE, ENCRYPT, REMOVED, Ledger, Row
from ..storage.choice import absolute
from .sealed_files import Listed, list_file

try:
    from pyspark.sql.streaming import datasource as _limits
except ImportError:  # PySpark before 4.2, which takes all there is at once
    _limits = None

_EndsWithWhatIsThere: Any = object if _limits is None else _limits.SupportsTriggerAvailableNow
_BATCH = "batch"
_EARLIEST, _LATEST = "earliest", "latest"
_THREADS = 8


class LedgerStreamReader(DataSourceStreamReader, _EndsWithWhatIsThere):  # type: ignore[misc]
    """Reads what a ledger's batches have done. What is pickled has options, and no keys.

    Raises ValueError for options that say nothing, FileNotFoundError where there is no ledger, and
    KmsError.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._files = FilesReader(options, schema)
        self._ledger = options.get("ledger", "")
        if not self._ledger:
            raise ValueError("a stream is read with the option 'ledger': it says what is whole")
        self._folders = [absolute(path) for path in opt.paths(options)]
        self._start = options.get("startingoffsets", _EARLIEST).lower()
        if self._start not in (_EARLIEST, _LATEST):
            raise ValueError(f"the option 'startingOffsets' is {_EARLIEST!r} or {_LATEST!r}")
        self._forgives = opt.flag(options, "ignoremissingfiles")
        self._most_files = _count(options, "maxfilespertrigger")
        if self._most_files and _limits is None:
            raise NotImplementedError("'maxFilesPerTrigger' needs PySpark 4.2: leave it out")
        self._last: int | None = None  # where a query ends that takes what is there now
        with self._opened():
            pass

    def initialOffset(self) -> dict[str, int]:
        """Return where a new query begins."""
        return {_BATCH: self._settled() if self._start == _LATEST else 0}

    def getDefaultReadLimit(self) -> Any:
        """Return how much a micro-batch takes at once."""
        if self._most_files is None:
            return _limits.ReadAllAvailable()
        return _limits.ReadMaxFiles(self._most_files)

    def prepareForTriggerAvailableNow(self) -> None:
        """Let this query end with what is there now."""
        self._last = self._settled()

    def reportLatestOffset(self) -> dict[str, int]:
        """Return where the ledger stands."""
        return {_BATCH: self._settled()}

    def latestOffset(
        self, start: dict[str, int] | None = None, limit: Any = None
    ) -> dict[str, int]:
        """Return where the next micro-batch ends. Before PySpark 4.2 nothing is given."""
        end = self._settled() if self._last is None else self._last
        begin = 0 if start is None else start[_BATCH]
        most = getattr(limit, "max_files", None)
        if most is None:
            # A ledger that was replaced by another one has nothing that can be gone on with.
            return {_BATCH: max(begin, end)}
        count = 0
        at = begin
        with self._opened() as ledger:
            for number, rows in ledger.rows_between(begin, end, _KNOWN):
                count += sum(map(self._is_meant, rows))
                if count > most and at > begin:
                    break
                at = number
                if count >= most:
                    break
            else:
                at = max(begin, end)
        return {_BATCH: at}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[FilesPartition]:
        """Return the tasks for the files of the batches after ``start`` up to ``end``. Raises
        FileNotFoundError, FormatError."""
        first, last = start[_BATCH], end[_BATCH]
        rows: dict[str, Row] = {}
        with self._opened() as ledger:
            for _, batch in ledger.rows_between(first, last, (*_KNOWN, "key_metadata")):
                for row in batch:
                    if self._is_meant(row):
                        rows[row.target] = row
                    elif row.status == REMOVED:
                        rows.pop(row.target, None)
            if rows:
                # Before the settled ones: see ``Ledger.pending``.
                for pending in ledger.pending():
                    _leave_out(rows, [row for row in pending.rows if has_its_name(row)])
                for _, batch in ledger.rows_between(last, None, _KNOWN):
                    _leave_out(rows, batch)
        with ThreadPoolExecutor(_THREADS, "ags1-listing") as pool:
            listed = [file for file in pool.map(self._listed, rows) if file is not None]
        keys = {file.path: rows[target].key_metadata or "" for target, file in listed}
        return self._files.tasks([file for _, file in listed], keys)

    def read(self, partition: FilesPartition) -> Iterator[pa.RecordBatch]:
        """Yield a task's rows. Raises as ``FilesReader.read``."""
        return self._files.read(partition)

    def _opened(self) -> Ledger:
        return Ledger(self._ledger, writing=False)

    def _settled(self) -> int:
        with self._opened() as ledger:
            return ledger.settled_up_to()

    def _is_meant(self, row: Row) -> bool:
        if row.operation != ENCRYPT or row.status != DONE:
            return False
        return any(
            row.target == folder or row.target.startswith(folder.rstrip("/") + "/")
            for folder in self._folders
        )

    def _listed(self, target: str) -> tuple[str, Listed] | None:
        try:
            return target, list_file(target)
        except FileNotFoundError:
            if self._forgives:
                return None
            raise


_KNOWN = ("operation", "status", "target")


def _leave_out(rows: dict[str, Row], newer: list[Row]) -> None:
    """Take the files away that newer rows are about."""
    for row in newer:
        if row.operation == ENCRYPT and row.status in (DONE, REMOVED):
            rows.pop(row.target, None)


def _count(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name)
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ValueError(f"the option {name!r} is no number above 0: {text!r}")
    return int(text)

"""Reads encrypted files as a stream, each file once, when a ledger has it as done.

``spark.readStream.format("ags1").option("ledger", …).load(folder)`` has the rows of ``spark.read``,
in micro-batches. The offset of a query is the number of a settled batch of the ledger. Settled
batches do not change, so a micro-batch that is run again has the same files. If a newer batch has
written a file again, only that batch has its rows: the older content does not exist any more.

Options are those of the package, and ``startingOffsets`` (``earliest``, or ``latest`` for what is
settled from now on), ``ignoreMissingFiles`` (``true`` passes over missing files) and, from
PySpark 4.2 on, ``maxFilesPerTrigger`` (a micro-batch ends at about so many files; batches of the
ledger are not cut).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.types import StructType

from .. import options as opt
from ..jobs.publishing import has_its_name
from ..ledger import DONE, ENCRYPT, REMOVED, Ledger, Row, ledger_location, open_ledger
from ..storage.places import absolute
from .encrypted_files import list_file, list_if_there
from .reader import FilesPartition, FilesReader

try:
    from pyspark.sql.streaming import datasource as _limits
except ImportError:  # PySpark before 4.2, which has no read limits
    _limits = None

_EndsWithWhatIsThere: Any = object if _limits is None else _limits.SupportsTriggerAvailableNow
_BATCH = "batch"
_EARLIEST, _LATEST = "earliest", "latest"
_THREADS = 8


class LedgerStreamReader(DataSourceStreamReader, _EndsWithWhatIsThere):  # type: ignore[misc]
    """Reads the files of a ledger's batches. Its pickle has options, and no plaintext keys. Raises
    ValueError for invalid options, FileNotFoundError if there is no ledger, and KmsError."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._files = FilesReader(options, schema)
        if not options.get("ledger"):
            message = "reading a stream needs the option 'ledger': it tells which files are done"
            raise ValueError(message)
        self._ledger = ledger_location(options["ledger"])
        self._folders = [absolute(path) for path in opt.paths(options)]
        self._start = options.get("startingoffsets", _EARLIEST).lower()
        if self._start not in (_EARLIEST, _LATEST):
            raise ValueError(f"the option 'startingOffsets' has to be {_EARLIEST!r} or {_LATEST!r}")
        self._look = list_if_there if opt.flag(options, "ignoremissingfiles") else list_file
        self._most_files = opt.count(options, "maxfilespertrigger")
        if self._most_files and _limits is None:
            raise NotImplementedError("'maxFilesPerTrigger' needs PySpark 4.2: leave it out")
        self._last: int | None = None  # the end of a query that takes only what exists now
        with self._opened():
            pass

    def initialOffset(self) -> dict[str, int]:
        """Return the offset at which a new query begins."""
        return {_BATCH: self._settled() if self._start == _LATEST else 0}

    def getDefaultReadLimit(self) -> Any:
        """Return the limit of a micro-batch."""
        if self._most_files is None:
            return _limits.ReadAllAvailable()
        return _limits.ReadMaxFiles(self._most_files)

    def prepareForTriggerAvailableNow(self) -> None:
        """Let this query end with what exists now."""
        self._last = self._settled()

    def reportLatestOffset(self) -> dict[str, int]:
        """Return the offset of the newest settled batch."""
        return {_BATCH: self._settled()}

    def latestOffset(
        self, start: dict[str, int] | None = None, limit: Any = None
    ) -> dict[str, int]:
        """Return the end of the next micro-batch. PySpark before 4.2 gives no arguments."""
        end = self._settled() if self._last is None else self._last
        begin = 0 if start is None else start[_BATCH]
        most = getattr(limit, "max_files", None)
        if most is None:
            # A ledger that was replaced by another one may end before ``begin``.
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
                # Pending batches before settled ones: see ``Ledger.pending``.
                for pending in ledger.pending():
                    _leave_out(rows, [row for row in pending.rows if has_its_name(row)])
                for _, batch in ledger.rows_between(last, None, _KNOWN):
                    _leave_out(rows, batch)
        with ThreadPoolExecutor(_THREADS, "ags1-listing") as pool:
            listed = zip(rows.values(), pool.map(self._look, rows), strict=True)
            keys = {file: row.key_metadata or "" for row, file in listed if file is not None}
        return self._files.tasks(list(keys), {file.path: key for file, key in keys.items()})

    def read(self, partition: FilesPartition) -> Iterator[pa.RecordBatch]:
        """Yield a task's rows. Raises as ``FilesReader.read``."""
        return self._files.read(partition)

    def _opened(self) -> Ledger:
        return open_ledger(self._ledger, writing=False)

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


_KNOWN = ("operation", "status", "target")


def _leave_out(rows: dict[str, Row], newer: list[Row]) -> None:
    """Leave out the files of newer rows."""
    for row in newer:
        if row.operation == ENCRYPT and row.status in (DONE, REMOVED):
            rows.pop(row.target, None)

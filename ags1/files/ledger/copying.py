"""Copies the settled rows of a ledger to another one, of any kind, or to a Parquet file and back.

The file has the columns of ``Row``, and ``batch``: the number of the row's batch."""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from ...errors import FormatError
from ...host.atomic import AtomicFile
from .ledger import Ledger
from .rows import LATER, SCHEMA, Row, rows_to_table, table_to_rows

_MOST_ROWS = 100_000
_ROWS_AS_OBJECTS = 10_000
_BATCH, _NUMBER = "batch", "number"


class Copied(NamedTuple):
    """How many rows were copied, and how many the target had already."""

    rows: int
    known: int


class _Settled(Protocol):
    """Settled rows, as ``Ledger`` has them."""

    def batches(self, columns: Sequence[str] = Row._fields) -> Iterator[tuple[Any, list[Row]]]: ...


class ParquetRows:
    """The rows of a Parquet file that ``export_rows`` has made, or that has the rows of a table
    which was a ledger: these have the columns ``batch`` and ``number``, which order them."""

    def __init__(self, path: str) -> None:
        self._path = path

    def batches(self, columns: Sequence[str] = Row._fields) -> Iterator[tuple[int, list[Row]]]:
        """Yield the rows as ``Ledger.batches``. Raises OSError, and FormatError for a file
        that has no such rows."""
        batch = 0
        rows: list[Row] = []
        for number, row in self._numbered(columns):
            if number != batch and rows:
                yield batch, rows
                rows = []
            batch = number
            rows.append(row)
        if rows:
            yield batch, rows

    def _numbered(self, columns: Sequence[str]) -> Iterator[tuple[int, Row]]:
        try:
            with pq.ParquetFile(self._path) as file:
                names = file.schema_arrow.names
                if not {*Row._fields, _BATCH} - {*LATER} <= {*names}:
                    message = "this file does not have the columns of a ledger's rows"
                    raise FormatError(message, file=self._path)
                wanted = [*(name for name in columns if name in names), _BATCH]
                if _NUMBER in names:
                    table = file.read([*wanted, _NUMBER])
                    parts = table.sort_by([(_BATCH, "ascending"), (_NUMBER, "ascending")])
                    batches = iter(parts.to_batches(_ROWS_AS_OBJECTS))
                else:
                    batches = file.iter_batches(_ROWS_AS_OBJECTS, columns=wanted)
                kinds = pa.schema([*(SCHEMA.field(name) for name in columns), (_BATCH, pa.int64())])
                for part in batches:
                    table = pa.Table.from_batches([part])
                    for name in columns:
                        if name not in names:
                            table = table.append_column(name, pa.nulls(len(table), pa.string()))
                    table = table.select(kinds.names).cast(kinds)
                    rows = table_to_rows(table, columns, self._path)
                    yield from zip(table.column(_BATCH).to_pylist(), rows, strict=True)
        except pa.ArrowInvalid as error:
            raise FormatError(str(error), file=self._path) from None


def export_rows(source: Ledger, path: str, *, overwrite: bool = False) -> int:
    """Write all settled rows to a Parquet file, whole or not at all, and return how many there
    are. Only the user can read the file. Raises OSError, also for work of a killed job (as
    ``copy_rows``), and FormatError."""
    _refuse_unfinished(source)
    count = 0
    schema = SCHEMA.append(pa.field(_BATCH, pa.int64()))
    with (
        AtomicFile(path, overwrite=overwrite, mode=0o600) as out,
        open(out.fd, "wb", closefd=False) as file,
        pq.ParquetWriter(file, schema, compression="zstd") as writer,
    ):
        first = 1
        for batches in source.settled_groups(_MOST_ROWS):
            table = rows_to_table([row for _, rows in batches for row in rows])
            numbers = [n for n, (_, rows) in enumerate(batches, first) for _ in rows]
            first += len(batches)
            columns = [*table.columns, pa.array(numbers, pa.int64())]
            writer.write_table(pa.Table.from_arrays(columns, schema=schema))
            count += len(numbers)
    return count


def copy_rows(source: _Settled, target: Ledger) -> Copied:
    """Copy all settled rows of ``source`` to ``target``, in their order, behind its own rows. Rows
    that it has already are left out, so a copy that was interrupted can be repeated.

    Raises OSError if nothing was copied: ``source`` has work of a killed job, whose files have no
    settled rows yet; a job is writing to ``target`` (``Ledger.refuse_jobs``); ``target`` has a
    newer row for the same file, and the older one would count then; or one of the two has keys that
    were wrapped again and the other has not, so that nothing tells which are the newer ones.
    """
    if isinstance(source, Ledger):
        _refuse_unfinished(source)
    target.refuse_jobs()  # rows that are added now would hide the keys of its files
    known: dict[_Identity, bytes] = {}
    newest: dict[tuple[str, str], int] = {}
    for row in _compared(target):
        known[_identity(row)] = _wrapped(row)
        at = row.operation, row.target
        newest[at] = max(newest.get(at, 0), row.finished_ms)
    skipped = 0
    for row in _compared(source) if known else ():
        if (wrapped := known.get(_identity(row))) is not None:
            if wrapped != _wrapped(row):
                message = (
                    f"the key of {row.target} is wrapped otherwise here, because one of the two "
                )
                message += "ledgers was rewrapped: copy into an empty ledger"
                raise OSError(errno.EEXIST, message, target.location)
            skipped += 1
        elif row.finished_ms < newest.get((row.operation, row.target), 0):
            message = f"this ledger has a newer row for {row.target}: copy into an empty ledger"
            raise OSError(errno.EEXIST, message, target.location)
    copied = 0
    waiting: list[Row] = []
    for _, rows in source.batches():
        waiting += (row for row in rows if _identity(row) not in known)
        if len(waiting) >= _MOST_ROWS:
            copied += _add(target, waiting)
            waiting = []
    return Copied(copied + _add(target, waiting), skipped)


def _refuse_unfinished(source: Ledger) -> None:
    if any(source.pending()) or source.killed():
        message = "a job is writing, or was killed: wait, or run it again, which finishes its work"
        raise OSError(errno.EBUSY, message, source.location)


_Identity: TypeAlias = "tuple[str | int | None, ...]"
_IDENTITY = ("operation", "target", "status", "key_id", "job_id", "finished_ms")
_COMPARED = (*_IDENTITY, "key_metadata")


def _identity(row: Row) -> _Identity:
    return row.operation, row.target, row.status, row.key_id, row.job_id, row.finished_ms


def _compared(ledger: _Settled) -> Iterator[Row]:
    for _, rows in ledger.batches(_COMPARED):  # with all keys, in memory by parts
        yield from rows


def _wrapped(row: Row) -> bytes:
    """Return 16 bytes that tell a wrapped key from others; the key itself needs more memory."""
    return hashlib.blake2b((row.key_metadata or "").encode(), digest_size=16).digest()


def _add(target: Ledger, rows: list[Row]) -> int:
    if rows:
        target.add(rows)
    return len(rows)

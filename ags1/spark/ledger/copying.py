"""Copies the settled rows of a ledger to another one, of any kind."""

from __future__ import annotations

import errno
from typing import NamedTuple

from .base import Ledger
from .rows import Row

_MOST_ROWS = 100_000


class Copied(NamedTuple):
    """How many rows were copied, and how many the target had already."""

    rows: int
    known: int


def copy_rows(source: Ledger, target: Ledger) -> Copied:
    """Copy all settled rows of ``source`` to ``target``, in their order, behind its own rows. Rows
    that it has already are left out, so a copy that was interrupted can be repeated.

    Raises OSError if ``source`` has work of a killed job, whose files have no settled rows yet, or
    if ``target`` has a newer row for the same file: the older row would count then. In this case
    nothing was copied.
    """
    if any(source.pending(others=True)) or source.killed():
        said = "a job is writing, or was killed: wait, or run it again, which finishes its work"
        raise OSError(errno.EBUSY, said, source.location)
    known = set()
    newest: dict[tuple[str, str], int] = {}
    for row in target.rows(_IDENTITY):
        known.add(_identity(row))
        at = row.operation, row.target
        newest[at] = max(newest.get(at, 0), row.finished_ms)
    skipped = 0
    for row in source.rows(_IDENTITY) if known else ():
        if _identity(row) in known:
            skipped += 1
        elif row.finished_ms < newest.get((row.operation, row.target), 0):
            said = f"this ledger has a newer row for {row.target}: copy into an empty ledger"
            raise OSError(errno.EEXIST, said, target.location)
    copied = 0
    waiting: list[Row] = []
    for _, rows in source.rows_between(0):
        waiting += (row for row in rows if _identity(row) not in known)
        if len(waiting) >= _MOST_ROWS:
            copied += _add(target, waiting)
            waiting = []
    return Copied(copied + _add(target, waiting), skipped)


_IDENTITY = ("operation", "target", "status", "key_id", "job_id", "finished_ms")


def _identity(row: Row) -> tuple[str | int | None, ...]:
    return row.operation, row.target, row.status, row.key_id, row.job_id, row.finished_ms


def _add(target: Ledger, rows: list[Row]) -> int:
    if rows:
        target.settle(target.prepare(rows), rows)
    return len(rows)

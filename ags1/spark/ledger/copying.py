"""Copies the settled rows of a ledger to another one, of any kind."""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from .base import Ledger
from .rows import FAILED, Row

_MOST_ROWS = 100_000


class Copied(NamedTuple):
    """How many rows were copied, and how many the target had already."""

    rows: int
    known: int


def copy_rows(source: Ledger, target: Ledger) -> Copied:
    """Copy all settled rows of ``source`` to ``target``, in their order, behind its own rows. Rows
    that it has already are left out, so a copy that was interrupted can be repeated.

    Raises OSError if nothing was copied: ``source`` has work of a killed job, whose files have no
    settled rows yet; as ``refuse_pending`` for ``target``; ``target`` has a newer row for the same
    file, and the older one would count then; or one of the two has keys that were wrapped again and
    the other has not, so that nothing tells which are the newer ones.
    """
    if any(source.pending(others=True)) or source.killed():
        said = "a job is writing, or was killed: wait, or run it again, which finishes its work"
        raise OSError(errno.EBUSY, said, source.location)
    refuse_pending(target)
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
                said = f"the key of {row.target} is wrapped otherwise here, because one of the two "
                said += "ledgers was rewrapped: copy into an empty ledger"
                raise OSError(errno.EEXIST, said, target.location)
            skipped += 1
        elif row.finished_ms < newest.get((row.operation, row.target), 0):
            said = f"this ledger has a newer row for {row.target}: copy into an empty ledger"
            raise OSError(errno.EEXIST, said, target.location)
    copied = 0
    waiting: list[Row] = []
    for _, rows in source.rows_between(0):
        # A stream tells by a batch whether all files of a try got their names.
        is_apart = any(row.status == FAILED and row.source.startswith("stream:") for row in rows)
        if is_apart:
            copied += _add(target, waiting)
            waiting = []
        waiting += (row for row in rows if _identity(row) not in known)
        if is_apart or len(waiting) >= _MOST_ROWS:
            copied += _add(target, waiting)
            waiting = []
    return Copied(copied + _add(target, waiting), skipped)


def refuse_pending(ledger: Ledger) -> None:
    """Raise OSError if a batch is pending. It would be settled under its older number, so rows that
    are added now would hide the keys of files that it gives their names later."""
    if any(ledger.pending()):
        said = "a job was killed before all of its files had their names: run it again, which "
        raise OSError(errno.EBUSY, f"{said}finishes its work", ledger.location)


_Identity: TypeAlias = "tuple[str | int | None, ...]"
_IDENTITY = ("operation", "target", "status", "key_id", "job_id", "finished_ms")
_COMPARED = (*_IDENTITY, "key_metadata")


def _identity(row: Row) -> _Identity:
    return row.operation, row.target, row.status, row.key_id, row.job_id, row.finished_ms


def _compared(ledger: Ledger) -> Iterator[Row]:
    for _, rows in ledger.rows_between(0, None, _COMPARED):  # with all keys, in memory by parts
        yield from rows


def _wrapped(row: Row) -> bytes:
    """Return 16 bytes that tell a wrapped key from others; the key itself needs more memory."""
    return hashlib.blake2b((row.key_metadata or "").encode(), digest_size=16).digest()


def _add(target: Ledger, rows: list[Row]) -> int:
    if rows:
        target.settle(target.prepare(rows), rows)
    return len(rows)

"""The files of settled batches of earlier versions, one batch each, or several that were merged::

    batch-<number>.<epoch>-<count>.parquet  one batch
    batch-<first>-<last>.….parquet          merged batches; the Parquet footer has their lengths
    batch-….parquet                         of a still earlier version, in a folder

Nothing writes them any more. Knows no storage.
"""

from __future__ import annotations

import bisect
import json
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

import pyarrow as pa

from .rows import Row, damaged, read_table, table_to_rows

_NAME = re.compile(r"batch-(\d{12})(?:-(\d{12}))?(?:\.(\d{6})-(\d{6}))?\.parquet")
_LENGTHS = b"ags1.batches"
# Far more than are merged. A name costs its writer nothing, whatever numbers are in it.
_MOST_BATCHES = 1_000_000
# The number of a batch and its rows.
Numbered: TypeAlias = "tuple[int, Sequence[Row]]"


class Segment(NamedTuple):
    """A file with the settled batches from ``first`` to ``last``. The higher ``version`` counts."""

    first: int
    last: int
    version: tuple[int, int]
    name: str


def segments(names: Iterable[str]) -> list[Segment]:
    """Return the files that count, in the order of their batches. A killed job may have left files
    that others have replaced: of those that overlap, the newest counts, and then the one with the
    most batches. Raises FormatError for a name that no job gives."""
    found = [segment for name in names if (segment := _parsed(name)) is not None]
    found.sort(key=lambda one: (one.version, one.last - one.first), reverse=True)
    counting: list[Segment] = []  # none overlaps another one
    for segment in found:
        place = bisect.bisect(counting, segment.last, key=lambda one: one.first)
        if not place or counting[place - 1].last < segment.first:
            counting.insert(place, segment)
    return counting


def read_batches(
    data: bytes, segment: Segment, columns: Iterable[str], where: str
) -> list[tuple[int, list[Row]]]:
    """Return number and rows of each batch of a file, with None in columns that are not asked for.
    Raises FormatError."""
    table = read_table(data, columns, where)
    batches = []
    first = 0
    for number, count in _lengths(table, segment, where):
        batches.append((number, table_to_rows(table.slice(first, count), columns, where)))
        first += count
    return batches


def _parsed(name: str) -> Segment | None:
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    first, last = int(match[1]), int(match[2] or match[1])
    version = (int(match[3] or 0), int(match[4] or 0))
    if last - first >= _MOST_BATCHES:
        raise damaged("no file has so many batches", name)
    return Segment(first, last, version, name) if first <= last else None


def _lengths(table: pa.Table, segment: Segment, where: str) -> list[tuple[int, int]]:
    """Return the numbers of a file's batches and how many rows each one has."""
    if segment.first == segment.last:
        return [(segment.first, table.num_rows)]
    try:
        message = json.loads((table.schema.metadata or {})[_LENGTHS])
        lengths = [(int(number), int(count)) for number, count in message]
    except (KeyError, ValueError, TypeError, RecursionError):
        raise damaged("it does not say where its batches begin", where) from None
    numbers = [number for number, _ in lengths]
    counts = [count for _, count in lengths]
    whole = list(range(segment.first, segment.last + 1))
    if numbers != whole or min(counts) < 0 or sum(counts) != table.num_rows:
        raise damaged("it does not say where its batches begin", where)
    return lengths

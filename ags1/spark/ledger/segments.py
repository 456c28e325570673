"""The files of settled batches, in a folder or an object storage: one batch each, or several that
were merged into one (``compact``)::

    batch-<number>.parquet                  one batch
    batch-<first>-<last>.parquet            merged batches; the Parquet footer has their lengths
    batch-….<epoch>-<count>.parquet         in an object storage, where names are used only once

A batch keeps its number when it is merged, so a stream goes on where it was. Knows no storage.
"""

from __future__ import annotations

import bisect
import json
import re
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from .base import JobNote, Ledger
from .rows import Row, damaged, read_table, rows_of, table_of

# A merged file has about so many rows: rewrapping rewrites it as a whole.
MERGED_ROWS = 200_000
_NAME = re.compile(r"batch-(\d{12})(?:-(\d{12}))?(?:\.(\d{6})-(\d{6}))?\.parquet")
_LENGTHS = b"ags1.batches"
# Far more than are merged. A name costs its writer nothing, whatever numbers are in it.
_MOST_BATCHES = 1_000_000
# How often files are listed again, if others take their places while they are read.
_TRIES = 8

# What ``job_note`` raises for an object that is no note.
NO_NOTE = (ValueError, KeyError, TypeError, RecursionError)

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


def segment_name(first: int, last: int, version: tuple[int, int] | None = None) -> str:
    """Return the name of a file of batches."""
    until = "" if first == last else f"-{last:012}"
    suffix = "" if version is None else f".{version[0]:06}-{version[1]:06}"
    return f"batch-{first:012}{until}{suffix}.parquet"


def is_batch(name: str) -> bool:
    """Whether this is the name of a file of settled batches."""
    return _NAME.fullmatch(name) is not None


def job_note(data: bytes) -> JobNote:
    """Return the note of a job that is JSON. Raises one of ``NO_NOTE``."""
    note = json.loads(data)
    return JobNote(
        str(note["folder"]), note.get("sidecars") is True, int(note.get("cleared_ms", 0))
    )


def write_batches(file: BinaryIO, batches: Sequence[Numbered]) -> None:
    """Write settled batches as one Parquet file. Raises OSError."""
    table = table_of([row for _, rows in batches for row in rows])
    if len(batches) > 1:
        lengths = json.dumps([[number, len(rows)] for number, rows in batches])
        table = table.replace_schema_metadata({_LENGTHS: lengths})
    pq.write_table(table, file, compression="zstd")


def read_batches(
    file: Any, segment: Segment, columns: Iterable[str], where: str
) -> Iterator[tuple[int, list[Row]]]:
    """Yield number and rows of each batch of a file (a path, or a file of pyarrow's), with None in
    columns that are not asked for. Raises FormatError."""
    table = read_table(file, columns, where)
    first = 0
    for number, count in _lengths(table, segment, where):
        yield number, rows_of(table.slice(first, count), columns, where)
        first += count


class SegmentLedger(Ledger):
    """What ledgers have in common whose settled batches are files."""

    _kept: tuple[Segment, tuple[str, ...], list[tuple[int, list[Row]]]] | None = None

    @abstractmethod
    def _segments(self) -> list[Segment]:
        """Return the files that count, in the order of their batches."""

    @abstractmethod
    def _read(self, segment: Segment, columns: Sequence[str]) -> list[tuple[int, list[Row]]]:
        """Return the batches of a file. Raises FileNotFoundError if another one has taken its
        place."""

    @abstractmethod
    def _write(self, batches: Sequence[Numbered], old: Sequence[Segment]) -> None:
        """Write a file with all batches of the files ``old``, which takes their place in one
        step."""

    def numbers(self) -> list[int]:
        return [n for segment in self._segments() for n in range(segment.first, segment.last + 1)]

    def rows_between(
        self, after: int, until: int | None = None, columns: Sequence[str] = Row._fields
    ) -> Iterator[tuple[int, list[Row]]]:
        tries_left = _TRIES
        while True:
            try:
                for segment in self._segments():
                    if segment.last <= after or (until is not None and segment.first > until):
                        continue
                    for number, rows in self._batches(segment, tuple(columns), after, until):
                        if after < number and (until is None or number <= until):
                            after = number
                            yield number, rows
                return
            except FileNotFoundError:  # merged or wrapped again since it was listed
                tries_left -= 1
                if not tries_left:
                    raise

    def replace(self, number: int, rows: Sequence[Row]) -> None:
        self.replace_all({number: rows})

    def replace_all(self, batches: Mapping[int, Sequence[Row]]) -> None:
        for segment in self._segments():
            if not batches.keys().isdisjoint(range(segment.first, segment.last + 1)):
                old = self._read(segment, Row._fields)
                self._write(
                    [(number, batches.get(number, rows)) for number, rows in old], [segment]
                )
        self._kept = None

    def compact(self) -> tuple[int, int]:
        until = self.settled_up_to()
        present = [segment for segment in self._segments() if segment.last <= until]
        before = len(present)
        files = 0
        while present:
            run = [present.pop(0)]
            batches: list[Numbered] = list(self._read(run[0], Row._fields))
            while (
                present
                and present[0].first == run[-1].last + 1
                and sum(len(rows) for _, rows in batches) < MERGED_ROWS
            ):
                run.append(present.pop(0))
                batches += self._read(run[-1], Row._fields)
            if len(run) > 1:
                self._write(batches, run)
            files += 1
        self._kept = None
        return before, files

    def _batches(
        self, segment: Segment, columns: tuple[str, ...], after: int, until: int | None
    ) -> list[tuple[int, list[Row]]]:
        if after < segment.first and (until is None or segment.last <= until):
            return self._read(segment, columns)
        # Merged batches are often asked for one after the other.
        if self._kept is None or self._kept[:2] != (segment, columns):
            self._kept = segment, columns, self._read(segment, columns)
        return self._kept[2]


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
        said = json.loads((table.schema.metadata or {})[_LENGTHS])
        lengths = [(int(number), int(count)) for number, count in said]
    except (KeyError, ValueError, TypeError, RecursionError):
        raise damaged("it does not say where its batches begin", where) from None
    numbers = [number for number, _ in lengths]
    counts = [count for _, count in lengths]
    whole = list(range(segment.first, segment.last + 1))
    if numbers != whole or min(counts) < 0 or sum(counts) != table.num_rows:
        raise damaged("it does not say where its batches begin", where)
    return lengths

"""Packs: objects with the rows of settled batches, which are written once and never changed.

    pack-<stamp>-<random>-<done>.parquet  the rows of one wave or commit: one *leaf*
    pack-<stamp>-<random>.merged.parquet  leaves that were merged, or wrapped again (``compact``)
    batch-….parquet                       of an earlier version: a leaf for each batch

A ledger is the union of its leaves: see ``docs/design/0008-packs.md``. A leaf keeps its name and
its rows wherever it is stored. Leaves are read in the order of their stamps: ms since 1970, but
always later than all that their writer had listed. Independent of storages.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from ...engine._gcm import random_bytes
from .rows import DONE, Row, damaged, rows_to_table, to_parquet
from .segments import Segment, segments

_PACK = re.compile(r"(pack-(\d{15})-[0-9a-f]{16})(?:-(\d{7})|(\.merged))\.parquet")
_LEAF = re.compile(r"(?:pack-(\d{15})-[0-9a-f]{16}|batch-(\d{12}))")
_LEAVES = b"ags1.leaves"
_LAST_STAMP = 10**15 - 1


class Leaf(NamedTuple):
    """A leaf, and where it is: ``length`` rows of the object ``file`` from ``first`` on; all of it
    if that is None. ``wraps``: how often its keys were wrapped again; ``done``: its rows that are
    done. ``segment`` is that of an object of an earlier version."""

    stamp: int
    name: str
    wraps: int
    done: int
    file: str
    first: int = 0
    length: int | None = None
    segment: Segment | None = None


def new_leaf(stamp: int) -> str:
    """Return a name that is used once. Raises FormatError."""
    if stamp > _LAST_STAMP:  # a name from the far future, that no job has given
        raise damaged("its newest batch has an impossible time", f"{stamp}")
    return f"pack-{stamp:015}-{random_bytes(8).hex()}"


def name_of(leaf: str, rows: Iterable[Row]) -> str:
    """Return the name of the object with the rows of a leaf."""
    return f"{leaf}-{sum(row.status == DONE for row in rows):07}.parquet"


def stamp_of(name: str) -> int:
    """Return the stamp in an object's name; 0 if it has none."""
    match = _PACK.fullmatch(name)
    return int(match[2]) if match is not None else 0


def is_pack(name: str) -> bool:
    """Whether this is the name of an object with leaves of this version."""
    return _PACK.fullmatch(name) is not None


def is_merged(name: str) -> bool:
    """Whether an object has several leaves, which its footer names."""
    match = _PACK.fullmatch(name)
    return match is not None and match[4] is not None


def single(name: str) -> Leaf:
    """Return the one leaf of an object."""
    match = _PACK.fullmatch(name)
    assert match is not None
    return Leaf(int(match[2]), match[1], 0, int(match[3]), name)


def old_leaves(names: Iterable[str]) -> list[Leaf]:
    """Return the batches that an earlier version has written. Their numbers come before stamps.
    Raises FormatError for a name that no job gives."""
    return [
        Leaf(number, f"batch-{number:012}", 0, 0, segment.name, segment=segment)
        for segment in segments(names)
        for number in range(segment.first, segment.last + 1)
    ]


def merged_to_bytes(leaves: Sequence[tuple[Leaf, Sequence[Row]]]) -> bytes:
    """Return leaves as one object."""
    table = rows_to_table([row for _, rows in leaves for row in rows])
    facts = json.dumps([[leaf.name, leaf.wraps, leaf.done, len(rows)] for leaf, rows in leaves])
    return to_parquet(table.replace_schema_metadata({_LEAVES: facts}))


def merged_leaves(data: bytes, file: str, where: str) -> list[Leaf]:
    """Return the leaves of an object from its footer. Raises FormatError."""
    try:
        metadata = pq.read_metadata(pa.BufferReader(data))
        facts = json.loads((metadata.metadata or {})[_LEAVES])
        leaves = []
        first = 0
        for name, wraps, done, count in facts:
            match = _LEAF.fullmatch(name)
            if match is None or min(wraps, done, count) < 0:
                raise ValueError(name)
            stamp = int(match[1] or match[2])
            leaves.append(Leaf(stamp, name, wraps, done, file, first, count))
            first += count
    except (KeyError, ValueError, TypeError, RecursionError, pa.ArrowInvalid):
        raise damaged("it does not say which leaves it has", where) from None
    if first != metadata.num_rows:
        raise damaged("it does not say which leaves it has", where)
    return leaves

"""How the files of a data source are divided among tasks. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

# The stored bytes that a task reads, if no option says otherwise.
PART_SIZE = 64 << 20
# The cost of opening a file: bytes that could be read in that time.
_OPEN_COST = 1 << 20


def grouped(files: Iterable[tuple[list[T], int]], part_size: int) -> Iterator[list[T]]:
    """Yield the parts for each task. ``files`` has each file's parts, and its size in bytes. If a
    file has several parts, each is a task. Files of one part are put together, up to about
    ``part_size`` bytes for a task."""
    gathered: list[T] = []
    weight = 0
    for parts, size in files:
        if len(parts) > 1:
            yield from ([part] for part in parts)
            continue
        if gathered and weight + size > part_size:
            yield gathered
            gathered, weight = [], 0
        gathered = gathered + parts
        weight += size + _OPEN_COST
    if gathered:
        yield gathered

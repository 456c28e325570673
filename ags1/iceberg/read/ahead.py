"""Reads several files at the same time, and returns their contents in order.

    files        a: 2 MiB   b: 3 MiB   c: 1 MiB   d: 200 MiB      e: 2 MiB
    read         a, b and c side by side          d, batch by     e
                 and held until their turn        batch

Small files are held decoded, which takes a few times as much memory as they have stored bytes.
Larger files are not held: Arrow's threads read ahead inside them.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from typing import TypeVar

import pyarrow as pa
from pyiceberg.utils.concurrent import ExecutorFactory

from ..storage.workers import pool_size

_LARGE_FILE = 32 << 20

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def is_large(size: int) -> bool:
    """Return whether an item of this size (stored bytes) is not held decoded."""
    return size > _LARGE_FILE


def in_order(
    stream: Callable[[_Item], Iterable[pa.RecordBatch]],
    read: Callable[[_Item], Iterable[pa.RecordBatch]],
    items: Iterable[_Item],
    size_of: Callable[[_Item], int],
    most: int,
    pool: Executor | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the batches of all items. Large items are read by ``stream``, one after the other.
    Others are read by ``read``, which returns all batches at once; at most ``most`` stored bytes
    are read ahead."""
    for one_by_one, group in itertools.groupby(items, key=lambda item: is_large(size_of(item))):
        if one_by_one:
            yield from itertools.chain.from_iterable(map(stream, group))
        else:
            yield from itertools.chain.from_iterable(read_ahead(read, group, size_of, most, pool))


def read_ahead(
    read: Callable[[_Item], _Result],
    items: Iterable[_Item],
    size_of: Callable[[_Item], int] = lambda _: 0,
    most: int = 0,
    pool: Executor | None = None,
) -> Iterator[_Result]:
    """Yield ``read(item)`` for each item. A limited number of items runs ahead. They have at most
    ``most`` bytes according to ``size_of``, or there is only one. ``pool`` has the threads; without
    one, they are PyIceberg's."""
    executor = pool or ExecutorFactory.get_or_create()
    window = pool_size(executor)
    running: deque[tuple[int, Future[_Result]]] = deque()
    size = 0
    try:
        for item in items:
            coming = size_of(item)
            while running and (len(running) >= window or size + coming > most):
                done, future = running.popleft()
                size -= done
                yield future.result()
            running.append((coming, executor.submit(read, item)))
            size += coming
        while running:
            yield running.popleft()[1].result()
    finally:
        for _, future in running:
            future.cancel()

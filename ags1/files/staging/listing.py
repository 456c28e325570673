"""Lists many folders at the same time, in little memory however many files a folder has."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from typing import TypeVar

from .protocol import LISTING_THREADS

T = TypeVar("T")

# How many entries of each folder are listed ahead.
_BATCH = 1000


def side_by_side(listings: Iterable[Iterator[T]], pool: Executor) -> Iterator[T]:
    """Yield what ``listings`` yield, in no order. Threads of ``pool`` read some of them at the
    same time. Raises what they raise."""
    later = iter(listings)
    running: dict[Future[list[T]], Iterator[T]] = {}

    def read(listing: Iterator[T]) -> None:
        running[pool.submit(lambda: list(itertools.islice(listing, _BATCH)))] = listing

    for listing in itertools.islice(later, LISTING_THREADS):
        read(listing)
    while running:
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            listing, batch = running.pop(future), future.result()
            if len(batch) == _BATCH:
                read(listing)
            else:
                for following in itertools.islice(later, 1):
                    read(following)
            yield from batch

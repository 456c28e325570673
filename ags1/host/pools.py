"""Threads for many calls that mostly wait, such as requests. One rule for all of them: if a call
fails, or the caller is interrupted or goes no further, no other call begins, and those under way
are waited for. ``threads`` is for calls that write to the caller's memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

_T = TypeVar("_T")


class CancellingPool(ThreadPoolExecutor):
    """Threads for one ``with`` block. At its end, also after an interrupt, ``stop`` is called, no
    further call begins, and this waits for those under way."""

    def __init__(
        self, threads: int, name: str = "ags1", stop: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(threads, name)
        self._before_end = stop

    def __exit__(self, *_: object) -> None:
        self._before_end()
        self.shutdown(cancel_futures=True)


def map_in_threads(threads: int, work: Callable[..., _T], *items: Iterable[Any]) -> Iterator[_T]:
    """Yield what ``map(work, *items)`` yields, with ``threads`` calls at a time."""
    with CancellingPool(threads) as pool:
        yield from pool.map(work, *items)

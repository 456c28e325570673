"""``Workers``: the threads of one relocation, and its progress."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from itertools import islice
from typing import TypeVar

from ...storage.byte_meter import ByteMeter
from ..verify.progress import EstimatedProgress

_PROGRESS_SECONDS = 0.1

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class Workers:
    """Runs work in ``threads`` threads, and calls ``progress`` in the caller's thread. ``meter``
    counts the copied bytes. ``total`` is the number of bytes to copy, as far as it is known."""

    def __init__(self, threads: int, progress: EstimatedProgress | None) -> None:
        self.threads = threads
        self.meter = ByteMeter()
        self.total = 0
        self._progress = progress
        self._next_progress = 0.0
        self._pool = ThreadPoolExecutor(threads, "ags1-relocate")

    def each(self, work: Callable[[_Item], _Result], items: Iterable[_Item]) -> Iterator[_Result]:
        """Yield ``work(item)`` for each item, as they finish. Raises what ``work`` and ``progress``
        raise."""
        running: set[Future[_Result]] = set()
        waiting = iter(items)
        while True:
            for item in islice(waiting, 4 * self.threads - len(running)):
                running.add(self._pool.submit(work, item))
            if not running:
                return
            done, running = wait(running, _PROGRESS_SECONDS, FIRST_COMPLETED)
            self.report()
            for future in done:
                yield future.result()

    def report(self, *, final: bool = False) -> None:
        """Call ``progress``, but at most about ten times a second unless this is the final call."""
        now = time.monotonic()
        if self._progress is None or (now < self._next_progress and not final):
            return
        self._next_progress = now + _PROGRESS_SECONDS
        self._progress(self.meter.done, self.total)

    def stop(self) -> None:
        """End the threads, and wait for them. Copying stops at once, and no other work begins."""
        self.meter.stop()
        self._pool.shutdown(cancel_futures=True)

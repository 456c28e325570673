"""``Workers``: the threads of one relocation, and its progress."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from ...storage.byte_meter import ByteMeter
from ..verify.checks import run_each
from ..verify.progress import EstimatedProgress, ProgressReport

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class Workers:
    """Runs work in ``threads`` threads, and calls ``progress`` in the caller's thread. ``meter``
    counts the copied bytes, and ``report.known_size`` is the number of bytes to copy."""

    def __init__(self, threads: int, progress: EstimatedProgress | None) -> None:
        self.threads = threads
        self.meter = ByteMeter()
        self.report = ProgressReport(progress, self.meter, 0)
        self._pool = ThreadPoolExecutor(threads, "ags1-relocate")

    def each(self, work: Callable[[_Item], _Result], items: Iterable[_Item]) -> Iterator[_Result]:
        """Yield ``work(item)`` as they finish. Raises what ``work`` and ``progress`` raise."""
        return run_each(self._pool, self.threads, work, items, self.report.tick)

    def stop(self) -> None:
        """End the threads, and wait for them. Copying stops at once, and no other work begins."""
        self.meter.stop()
        self._pool.shutdown(cancel_futures=True)

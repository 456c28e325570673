"""``ProgressReport`` tells the caller of a check how far it is."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeAlias

from ...storage.byte_meter import ByteMeter
from .checks import TICK_SECONDS

# Called with the bytes that are done, and an estimate of all of them if there is a basis for one.
EstimatedProgress: TypeAlias = "Callable[[int, int | None], object]"


class ProgressReport:
    """Calls ``progress`` with the bytes of ``meter`` and a total, in the walking thread. The total
    is ``estimate`` (bytes; None if unknown) or, if the walk has come upon more, ``known_size``."""

    def __init__(
        self, progress: EstimatedProgress | None, meter: ByteMeter, estimate: int | None
    ) -> None:
        self._progress = progress
        self._meter = meter
        self._estimate = estimate
        self._next = 0.0
        self.known_size = 0

    def tick(self) -> None:
        """Report if the last report is a tenth of a second old."""
        now = time.monotonic()
        if self._progress is None or now < self._next:
            return
        self._next = now + TICK_SECONDS
        total = None if self._estimate is None else max(self._estimate, self.known_size)
        self._progress(self._meter.done, total)

    def finish(self) -> None:
        """Report that all is done."""
        if self._progress is not None:
            self._progress(self.known_size, self.known_size)

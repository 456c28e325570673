"""``ByteMeter`` counts the bytes that many threads have processed, and can stop these threads."""

from __future__ import annotations

import threading


class Stopped(Exception):
    """The work was stopped."""


class ByteMeter:
    """The number of processed bytes of all threads. After ``stop``, ``add`` raises Stopped."""

    def __init__(self) -> None:
        self.done = 0
        self._lock = threading.Lock()
        self._stopped = False

    def add(self, size: int) -> None:
        """Add to the number of bytes. Raises Stopped."""
        if self._stopped:
            raise Stopped
        with self._lock:
            self.done += size

    def stop(self) -> None:
        """Make every later ``add`` raise Stopped."""
        self._stopped = True

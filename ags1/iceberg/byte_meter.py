"""Bytes that many threads have done, and the end of their work. Knows nothing of what it is."""

from __future__ import annotations

import threading


class Stopped(Exception):
    """The work ends early."""


class ByteMeter:
    """Bytes done, counted by all threads; ``add`` ends a thread's work once ``stop`` was called."""

    def __init__(self) -> None:
        self.done = 0
        self._lock = threading.Lock()
        self._stopped = False

    def add(self, size: int) -> None:
        """Count bytes. Raises Stopped."""
        if self._stopped:
            raise Stopped
        with self._lock:
            self.done += size

    def stop(self) -> None:
        self._stopped = True

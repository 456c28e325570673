"""How far a rewrite of files is."""

from __future__ import annotations

from collections.abc import Callable

from ..writing.entries import FileRecord

# Called with the bytes of files that are done, and of all.
Progress = Callable[[int, int], None]


class Meter:
    """Tells ``progress`` of each file that is ``done``; ``total`` (bytes) is set once it is known.

    Called by one thread at a time.
    """

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._size = 0
        self.total = 0

    def done(self, old: FileRecord, new: FileRecord) -> None:
        """Count a file that was rewritten."""
        self._size += old.file_size_in_bytes
        if self._progress is not None:
            self._progress(min(self._size, self.total), self.total)

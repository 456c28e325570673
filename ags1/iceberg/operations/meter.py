"""``Meter`` reports the progress of a rewrite of files."""

from __future__ import annotations

from collections.abc import Callable

from ..read.records import ContentFile

# Called with two numbers of bytes: those of the finished files, and those of all files.
Progress = Callable[[int, int], None]


class Meter:
    """Calls ``progress`` as files are rewritten. The caller sets ``total`` (bytes) when it is
    known, and calls ``add`` and ``done`` from one thread at a time."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._size = 0
        self.total = 0

    def add(self, size: int) -> None:
        """Count bytes of a file that is being rewritten."""
        self._size += size
        if self._progress is not None:
            self._progress(min(self._size, self.total), self.total)

    def done(self, old: ContentFile, new: ContentFile) -> None:
        """Count a rewritten file."""
        self.add(old.file_size_in_bytes)

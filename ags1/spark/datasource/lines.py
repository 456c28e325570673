"""The lines of a part of a file, for text and CSV. A line belongs to the part in which it
begins, so that adjoining parts have each line once. As with Hadoop's readers, a line ends with a
line feed, a carriage return, or both. Independent of what is in a line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Protocol

# Bytes of lines that are decoded at once: Spark moves batches of a few MiB faster than small ones.
CHUNK_SIZE = 8 << 20
# Bytes of lines from which columns are inferred.
SAMPLE_SIZE = 8 << 20
_END = re.compile(rb"\r\n|\n|\r(?!\Z)")
_STEP = 1 << 20


class Positioned(Protocol):
    def pread(self, offset: int, size: int, /) -> bytes: ...

    @property
    def plaintext_size(self) -> int: ...


def line_start(reader: Positioned, position: int) -> int:
    """Return the offset of the first line at or after ``position``, or the file's size."""
    size = reader.plaintext_size
    if position <= 0 or position >= size:
        return min(max(position, 0), size)
    at = position - 1
    while at < size:
        # One byte more than is searched, because a line feed may follow a carriage return.
        data = reader.pread(at, _STEP + 1)
        line_end = _END.search(data)
        if line_end is not None:
            return at + line_end.end()
        if at + len(data) >= size:
            break
        at += len(data) - 1
    return size


def whole_lines(reader: Positioned, begin: int, end: int, size: int) -> Iterator[bytes]:
    """Yield the lines that begin from ``begin`` to ``end``, about ``size`` bytes at a time."""
    at, stop = line_start(reader, begin), line_start(reader, end)
    wanted = size
    while at < stop:
        data = reader.pread(at, min(wanted, stop - at))
        if at + len(data) < stop:
            cut = max(data.rfind(b"\n"), data.rfind(b"\r", 0, -1)) + 1
            if not cut:  # a line that is longer
                wanted *= 2
                continue
            data = data[:cut]
        yield data
        at += len(data)
        wanted = size


def with_line_feeds(data: bytes) -> bytes:
    """Return lines that end with line feeds alone."""
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return data

"""Finds where records of CSV end. A line end inside a quoted value does not end a record.
Independent of what is in a record.

Only somebody who reads a file from its beginning knows whether a value is open. So each part of a
file is assumed to begin outside quotes, and must end outside quotes. If all parts do, the
assumption was right for each of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ...errors import FormatError
from .lines import Positioned, line_start

_OPEN = (
    "a quoted value has a line end where the file is cut into parts for tasks, or its quote is not "
    "closed: read the file with the option multiLine=true, by which a task reads a whole file"
)


class Quoting:
    """The characters of a dialect, as Arrow's parser understands them: a quote opens a value only
    at its beginning, two quotes in a quoted value are one, and after ``escape`` any character
    stands for itself. ``quote`` and ``escape`` may be empty."""

    def __init__(self, separator: str, quote: str, escape: str) -> None:
        self._quote = quote.encode()
        self._escape = b"" if escape == quote else escape.encode()  # two quotes are one anyway
        self._separator = separator.encode()
        special = {self._quote, self._escape, self._separator, b"\n", b"\r"} - {b""}
        self._special = re.compile(b"|".join(map(re.escape, special)))

    def last_end(self, data: bytes, *, whole: bool) -> tuple[int, bool]:
        """Return the offset behind the last line end outside quotes, 0 if there is none, and
        whether ``data``, which begins outside quotes, ends outside them. A line feed may follow
        ``data``, unless it is ``whole``."""
        if self._escape and self._escape in data:
            return self._walked(data, whole)
        pieces = data.split(self._quote) if self._quote else [data]
        # Mostly each quote that opens follows a separator, a line end or another quote.
        before = (self._separator, b"\n", b"\r", b"")
        if any(piece[-1:] not in before for piece in pieces[:-1:2]):
            return self._walked(data, whole)
        at = len(data)
        for number in reversed(range(len(pieces))):
            begin = at - len(pieces[number])
            if number % 2 == 0:
                stop = len(data) if whole or at < len(data) else len(data) - 1
                end = max(data.rfind(b"\n", begin, at), data.rfind(b"\r", begin, min(at, stop)))
                if end >= 0:
                    return end + 1, len(pieces) % 2 == 1
            at = begin - 1
        return 0, len(pieces) % 2 == 1

    def _walked(self, data: bytes, whole: bool) -> tuple[int, bool]:
        """The same, one special character after the other."""
        is_open, last, begin, skipped = False, 0, 0, 0
        for found in self._special.finditer(data):
            at, what = found.span()[0], found.group()
            if at < skipped:
                continue
            if what == self._escape:
                skipped = at + 2
            elif what == self._quote:
                if is_open and data[at + 1 : at + 2] == what:
                    skipped = at + 2
                elif is_open or at == begin:
                    is_open = not is_open
            elif not is_open:
                begin = at + 1
                if what == b"\n" or (what == b"\r" and (whole or begin < len(data))):
                    last = begin
        return last, not is_open


def first_record(reader: Positioned, quoting: Quoting) -> int:
    """Return the offset behind the first record that is not an empty line."""
    end = 0
    while end < reader.plaintext_size:
        end = line_start(reader, end + 1)
        data = reader.pread(0, end)
        if data.strip(b"\r\n") and quoting.last_end(data, whole=True)[1]:
            break
    return end


def whole_records(
    reader: Positioned, begin: int, end: int, size: int, quoting: Quoting
) -> Iterator[bytes]:
    """Yield the records on the lines that begin from ``begin`` to ``end``, about ``size`` bytes at
    a time. Raises FormatError if a value is open at the end, and the file goes on."""
    at, stop = line_start(reader, begin), line_start(reader, end)
    wanted = size
    while at < stop:
        data = reader.pread(at, min(wanted, stop - at))
        is_last = at + len(data) >= stop
        cut, is_closed = quoting.last_end(data, whole=is_last)
        if is_last:
            if not is_closed and stop < reader.plaintext_size:
                raise FormatError(_OPEN)
            cut = len(data)
        elif not cut:  # a record that is longer
            wanted *= 2
            continue
        yield data[:cut]
        at += cut
        wanted = size

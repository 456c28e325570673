"""Memory for the plaintexts of Parquet files, which other libraries read.

The first use of new memory takes longer than decrypting what is put there. So the memory of one
file is that of the next one, as soon as nothing else refers to it. Independent of files.
"""

from __future__ import annotations

import contextlib
import sys
from collections import deque

from ...engine._buffers import new_bytes

_PAGE_SIZE = 4096
# How much stays when no file is read (bytes), and how many pieces: all are looked at.
_IDLE_SIZE = 128 << 20
_IDLE_COUNT = 64


class PlainMemory:
    """The memory of one plaintext. ``data`` is for its readers, ``view`` to write it before."""

    __slots__ = ("data", "view")

    def __init__(self, size: int) -> None:
        self.data, self.view = new_bytes(size)

    def references(self) -> int:
        """Return how many references there are to ``data``, with those of this object and of the
        call."""
        return sys.getrefcount(self.data)


# Without a reader. Releases of Python differ in what a call adds.
_OWN_REFERENCES = PlainMemory(_PAGE_SIZE).references()


class MemoryPool:
    """Memory that is used again. Any number of threads may take some, also after a fork: nothing is
    locked."""

    def __init__(self) -> None:
        self._idle: deque[PlainMemory] = deque(maxlen=_IDLE_COUNT)

    def take(self, size: int) -> PlainMemory:
        """Return memory of this size or more (bytes). Elsewhere than in what is written into it, it
        has what the memory had before."""
        # The next file may be a little larger.
        rounded = -(-size * 9 // 8 // _PAGE_SIZE) * _PAGE_SIZE
        for _ in range(len(self._idle)):
            try:
                memory = self._idle.pop()
            except IndexError:
                break
            if size <= len(memory.data) <= 2 * rounded:
                return memory
            self._idle.appendleft(memory)
        return PlainMemory(rounded)

    def give_back(self, memory: PlainMemory) -> None:
        """Take memory back for the next file, unless a reader still has it."""
        if memory.references() > _OWN_REFERENCES:
            return
        self._idle.append(memory)
        while sum(len(one.data) for one in tuple(self._idle)) > _IDLE_SIZE:
            with contextlib.suppress(IndexError):  # others take some meanwhile
                self._idle.popleft()


POOL = MemoryPool()

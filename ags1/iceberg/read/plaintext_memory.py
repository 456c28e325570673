"""Memory for the plaintexts of Parquet files, which other libraries read.

The first use of new memory takes longer than decrypting what is put there. So the memory of one
file is that of the next one, as soon as nothing else refers to it. Arrow's threads may do so for a
moment after a read has ended. If the interpreter ends in this moment, Arrow aborts the process, so
the end waits for them. Independent of files.
"""

from __future__ import annotations

import atexit
import contextlib
import sys
import time
from collections import deque

from ...engine._buffers import new_bytes

_PAGE_SIZE = 4096
# How much stays when no file is read (bytes), and how many pieces: all are looked at.
_IDLE_SIZE = 128 << 20
_IDLE_COUNT = 64
# How long the end of the interpreter waits for readers at most.
_EXIT_WAIT_SECONDS = 0.5


class PlainMemory:
    """The memory of one plaintext. ``data`` is for its readers, ``view`` to write it before."""

    __slots__ = ("data", "view")

    def __init__(self, size: int) -> None:
        self.data, self.view = new_bytes(size)

    def references(self) -> int:
        """Return how many references there are to ``data``, with those of this object and of the
        call."""
        return sys.getrefcount(self.data)

    def has_readers(self) -> bool:
        return self.references() > _OWN_REFERENCES


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
            if size <= len(memory.data) <= 2 * rounded and not memory.has_readers():
                return memory
            self._idle.appendleft(memory)
        return PlainMemory(rounded)

    def give_back(self, memory: PlainMemory) -> None:
        """Take memory back for the next file, as soon as it has no readers."""
        self._idle.append(memory)
        while sum(len(one.data) for one in tuple(self._idle)) > _IDLE_SIZE:
            with contextlib.suppress(IndexError):  # others take some meanwhile
                self._idle.popleft()

    def wait_for_readers(self) -> None:
        """Wait until the memory that was given back has no readers, or for half a second."""
        end = time.monotonic() + _EXIT_WAIT_SECONDS
        while any(one.has_readers() for one in tuple(self._idle)) and time.monotonic() < end:
            time.sleep(0.001)


POOL = MemoryPool()
atexit.register(POOL.wait_for_readers)

"""A few threads that write the files of several partitions at the same time.

What ``concurrent.futures`` does not do is done here: the work for one writer is done in order and
by one thread at a time, and ``write`` waits while too much work is queued.

    write(a, 1) write(a, 2) write(b, 3) finish(a)
      a: 1 -> 2 -> finish    on one thread after the other
      b: 3                   on another thread at the same time
"""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import NamedTuple

import pyarrow as pa

from .rolling_writer import RollingWriter


class _Done(NamedTuple):
    """Work that a thread has done. ``size`` is in bytes of Arrow data."""

    size: int
    is_finish: bool
    error: BaseException | None


class WriterThreads:
    """``count`` threads. At most ``max_queued_size`` bytes of Arrow data are queued or being
    written, or else the rows of one ``write``. One thread at a time may call the methods. The first
    error of a thread is raised by ``write``, ``finish`` or ``join``, and by all later calls."""

    def __init__(self, count: int, max_queued_size: int) -> None:
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="ags1-data-file")
        self._count = count
        self._max_queued_size = max_queued_size
        # The work for each writer that a thread works for. None is to complete its file.
        self._queues: dict[RollingWriter, deque[pa.Table | None]] = {}
        # KeyboardInterrupt cannot leave these two locked. It could with the conditions in futures.
        self._lock = threading.Lock()
        self._done: SimpleQueue[_Done] = SimpleQueue()
        self._pending = self._pending_finishes = self._queued_size = 0
        self._error: BaseException | None = None

    def write(self, writer: RollingWriter, rows: pa.Table) -> None:
        """Queue rows for a writer; wait before that while too much is queued."""
        size = rows.nbytes
        while not self._done.empty() or (
            (self._queued_size and self._queued_size + size > self._max_queued_size)
            or self._pending_finishes > self._count
        ):
            self._wait_for_one()
        self._queued_size += size
        self._queue(writer, rows)

    def finish(self, writer: RollingWriter) -> None:
        """Let a writer complete its file, if it has one, after its queued rows."""
        self._pending_finishes += 1
        self._queue(writer, None)

    def join(self) -> None:
        """Wait until all work is done."""
        while self._pending:
            self._wait_for_one()
        self._raise()

    def stop(self) -> None:
        """End the threads. Work that they have not begun is dropped."""
        with self._lock:
            for queue in self._queues.values():
                queue.clear()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _queue(self, writer: RollingWriter, work: pa.Table | None) -> None:
        self._raise()
        self._pending += 1
        with self._lock:
            if writer in self._queues:
                self._queues[writer].append(work)
            else:
                self._queues[writer] = deque([work])
                self._pool.submit(self._work_for, writer)

    def _wait_for_one(self) -> None:
        # After an error, work may have been dropped: waiting for that would never end.
        self._raise()
        done = self._done.get()
        self._pending -= 1
        self._pending_finishes -= done.is_finish
        self._queued_size -= done.size
        self._error = self._error or done.error
        self._raise()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _work_for(self, writer: RollingWriter) -> None:
        """Do the work for a writer until none is left. A thread runs this."""
        while True:
            with self._lock:
                if not self._queues[writer]:
                    del self._queues[writer]
                    return
                rows = self._queues[writer].popleft()
            is_finish = rows is None
            size = 0 if rows is None else rows.nbytes
            error = None
            try:
                writer.finish() if rows is None else writer.write(rows)
            except BaseException as raised:
                error = raised
            # The rows are freed before another write is let in.
            del rows
            self._done.put(_Done(size, is_finish, error))

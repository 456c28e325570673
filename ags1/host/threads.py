"""Threads that work for one caller, and survive Ctrl-C in it.

A signal handler may raise anywhere in the main thread. ``concurrent.futures`` uses locks made of
Python code. An exception at the wrong moment leaves such a lock locked for good, or leaves a job
that nobody knows of and that continues to write to the caller's memory. Here the caller changes
shared state only by single calls of C code, and may repeat each of them.

When the interpreter ends, it stops our threads for good. After that (in a ``__del__``), the caller
does the work itself, and so it does if the system lets it start no thread.
"""

from __future__ import annotations

import contextlib
import operator
from _thread import allocate_lock, start_new_thread
from collections.abc import Callable, Iterable
from functools import partial
from queue import Empty, SimpleQueue
from sys import is_finalizing
from typing import Generic, TypeVar

from .cpu import usable_cpus

_T = TypeVar("_T")
_WORKER, _CALLER = "worker", "caller"
# How often a waiting caller reports progress, and checks whether an interrupt lost its wake-up.
WAIT_SECONDS = 0.1


def _nothing() -> None:
    pass


def check_threads(threads: int) -> None:
    """Raise ValueError if ``threads`` is below 1."""
    if operator.index(threads) < 1:
        raise ValueError(f"threads must be at least 1, not {threads}")


def thread_count(threads: int | None) -> int:
    """Return ``threads``, or one for each CPU available to the process if it is None. Raises
    ValueError for less than 1."""
    if threads is None:
        return usable_cpus()
    check_threads(threads)
    return threads


class Job(Generic[_T]):
    """One call of ``work`` by a thread of a ``Pool``."""

    def __init__(self, work: Callable[[], _T]) -> None:
        self._work: Callable[[], _T] | None = work
        # The first to set this decides: a worker runs the job, or the caller cancels it.
        self._owner: dict[None, str] = {}
        self._over = False
        self._signal = allocate_lock()
        self._signal.acquire()
        self._value: list[_T] = []
        self._error: BaseException | None = None

    def run(self) -> None:
        """Call ``work``, unless the job was cancelled. Only the pool's threads call this."""
        work, self._work = self._work, None
        if work is None or self._owner.setdefault(None, _WORKER) != _WORKER:
            return
        try:
            self._value.append(work())
        except BaseException as error:
            self._error = error
        # It may hold the caller's memory.
        del work
        self._over = True
        self._signal.release()

    def raise_interrupt(self) -> None:
        """Raise what ended the job if it was meant for the thread's owner, such as Ctrl-C."""
        if self._error is not None and not isinstance(self._error, Exception):
            raise self._error

    def cancel(self) -> bool:
        """Cancel the job if it has not begun. Return False if it has."""
        return self._owner.setdefault(None, _CALLER) == _CALLER

    @property
    def ended(self) -> bool:
        """Whether the job is done, or was cancelled before it began."""
        return self._over or self._owner.get(None) == _CALLER

    def wait(self, watch: Callable[[], object] = _nothing) -> None:
        """Wait until it has ended. Meanwhile, call ``watch`` about ten times a second. A job that
        is neither in a pool nor cancelled never ends. Raises RuntimeError if the interpreter has
        stopped the job's thread, because it ends."""
        while not self.ended:
            if is_finalizing():
                raise RuntimeError("the interpreter has stopped the threads of ags1: it is ending")
            if self._signal.acquire(timeout=WAIT_SECONDS):
                self._signal.release()
            watch()

    def result(self) -> _T:
        """Wait, then return what the call returned, or raise what it raised."""
        self.wait()
        if self._error is not None:
            raise self._error
        return self._value[0]


class Pool:
    """Threads that do jobs in their order. A new thread is made for a job until there are
    ``threads`` of them. They wait for jobs until the owner calls ``shutdown``. It must not
    happen in a ``__del__``: Python ignores the KeyboardInterrupt of a signal that arrives there."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._started = 0
        self._jobs: list[Job[object]] = []
        self._queue: SimpleQueue[Job[object] | None] = SimpleQueue()

    def submit(self, work: Callable[[], _T]) -> Job[_T]:
        """Have a thread call ``work``."""
        job = Job(work)
        self._jobs = [known for known in self._jobs if not known.ended]
        self._jobs.append(job)  # type: ignore[arg-type]
        self.put(job)
        return job

    def put(self, job: Job[_T]) -> None:
        """Have a thread do ``job``. The caller waits for it. If the system lets the process start
        no thread (``ulimit -u``, the limit of a container), the caller does it."""
        if is_finalizing():
            job.run()
            return
        self._queue.put(job)  # type: ignore[arg-type]
        if self._started < self._threads:
            # In this order, an interrupt can make one thread too many, but never one too few.
            try:
                start_new_thread(_serve, (self._queue,))
            except RuntimeError:
                self._work_here()
            else:
                self._started += 1

    def _work_here(self) -> None:
        """Do what waits in the queue, if there is no thread for it."""
        if not self._started:
            with contextlib.suppress(Empty):
                while (job := self._queue.get_nowait()) is not None:
                    job.run()
                    job.raise_interrupt()

    def shutdown(self, *, wait: bool) -> None:
        """Cancel the jobs that have not begun, and let the threads end; ``wait``: wait for the jobs
        that have begun."""
        for job in self._jobs:
            job.cancel()
        # One for each thread, and one for a thread that was not counted because of an interrupt.
        for _ in range(self._started + 1):
            self._queue.put(None)
        if wait:
            for job in self._jobs:
                job.wait()


def _serve(queue: SimpleQueue[Job[object] | None]) -> None:
    while True:
        job = queue.get()
        if job is None:
            return
        job.run()
        del job


def run_all(
    pool: Pool,
    work: Callable[[int], object],
    arguments: Iterable[int],
    stop: Callable[[], object] = _nothing,
    watch: Callable[[], object] = _nothing,
) -> None:
    """Call ``work`` with each argument in the pool. When all calls have ended, return, or raise the
    error of the first argument whose call failed. The calls write to memory that belongs to our
    caller again as soon as this returns. So after an interrupt (Ctrl-C, or an exception of
    ``watch``) this calls ``stop``, which makes the calls end early, and still waits for all of
    them. ``watch`` is called about ten times a second."""
    jobs = [Job(partial(work, argument)) for argument in arguments]
    interrupt: BaseException | None = None
    while True:
        try:
            if interrupt is None:
                for job in jobs:
                    pool.put(job)
            else:
                stop()
                for job in jobs:
                    job.cancel()
            for job in jobs:
                job.wait(watch if interrupt is None else _nothing)
            break
        except BaseException as error:
            interrupt = error
    if interrupt is not None:
        raise interrupt
    for job in jobs:
        job.result()


def run_in_threads(
    work: Callable[[int], object],
    arguments: range,
    stop: Callable[[], object] = _nothing,
    watch: Callable[[], object] = _nothing,
    threads: int | None = None,
) -> None:
    """Do what ``run_all`` does, in new threads: ``threads``, or one for each argument."""
    pool = Pool(threads or len(arguments))
    try:
        run_all(pool, work, arguments, stop, watch)
    finally:
        try:
            pool.shutdown(wait=False)
        except BaseException:
            # An interrupt. A thread that is not told to end would wait for ever.
            pool.shutdown(wait=False)
            raise

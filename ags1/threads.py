"""Threads that share one call's work."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future, wait


def run_all(
    pool: Executor,
    work: Callable[[int], object],
    arguments: Iterable[int],
    stop: Callable[[], object] = lambda: None,
) -> None:
    """Call ``work`` with each argument in the pool; return, or raise the first one's error, when
    all have ended.

    They write to memory that belongs to our caller again as soon as we return, so nothing, Ctrl-C
    included, makes us leave before. ``stop`` is called then, to make them end early.
    """
    jobs: list[Future[object]] = []
    interrupt: BaseException | None = None
    try:
        for argument in arguments:
            jobs.append(pool.submit(work, argument))
        wait(jobs)
    except BaseException as error:
        interrupt = error
    while True:
        try:
            if interrupt is not None:
                stop()
                for job in jobs:
                    job.cancel()
            wait(jobs)
            break
        except BaseException as error:
            interrupt = error
    if interrupt is not None:
        raise interrupt
    for job in jobs:
        job.result()

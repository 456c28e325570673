"""Runs work on a stream of items in waves of tasks of about equal cost.

The items come from a walk through a table, so their number is not known in advance. A wave takes
enough items to keep the cluster busy for a while, and starts the largest first. While a wave runs,
the next one is gathered. Knows nothing of what the work is.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, TypeAlias, TypeVar
from uuid import uuid4

from ..jobs.planning import FILE_COST
from ..jobs.running import cancel, task_failure, wait_for_tasks

Item = TypeVar("Item")
Result = TypeVar("Result")
Costed: TypeAlias = "tuple[Item, int]"

# Bytes that a task reads: the least that is worth a task, even for an idle core, and the most.
_LEAST_COST = 8 << 20
_TASK_COST = 128 << 20
_TASKS_PER_CORE = 4
# Two, so that the next wave uses the cores that the end of one leaves idle.
_WAVES_IN_FLIGHT = 2
_TICK_SECONDS = 0.1


class Waves:
    """Runs work on the executors of a Spark session. ``cores`` are those of the cluster, by default
    what Spark says."""

    def __init__(self, spark: Any, cores: int | None = None) -> None:
        self._context = spark.sparkContext
        self._cores = cores or max(self._context.defaultParallelism, 1)
        self._group = f"ags1-{uuid4()}"

    def run(
        self,
        items: Iterable[Costed[Item]],
        work: Callable[[Iterable[list[Item]]], Iterator[list[Result]]],
        tick: Callable[[], object],
    ) -> Generator[Result, None, None]:
        """Yield the results of ``work``, which gets lists of items, for all items.

        Each item comes with the bytes that its work reads. ``work`` is pickled. Spark runs a task
        that fails again, as it is configured. ``tick`` is called about ten times a second while
        this waits. The tasks are cancelled if the generator is closed or an error is raised.

        Raises what ``task_failure`` makes of a task's failure, and what ``items`` raises.
        """
        flying: deque[Future[list[Result]]] = deque()
        with ThreadPoolExecutor(_WAVES_IN_FLIGHT, "ags1-wave") as pool:
            try:
                for tasks in _waves(items, self._cores):
                    flying.append(pool.submit(self._run_tasks, tasks, work))
                    if len(flying) == _WAVES_IN_FLIGHT:
                        yield from _finished(flying, tick)
                while flying:
                    yield from _finished(flying, tick)
            except BaseException:
                cancel(self._context, self._group, flying)
                raise

    def wait_for_tasks(self) -> None:
        """Wait some seconds for tasks that outlast their Spark jobs."""
        wait_for_tasks(self._context, self._group)

    def _run_tasks(
        self,
        tasks: list[list[Item]],
        work: Callable[[Iterable[list[Item]]], Iterator[list[Result]]],
    ) -> list[Result]:
        # Spark keeps the job group by thread.
        self._context.setJobGroup(self._group, "ags1: files of a table")
        try:
            cut = self._context.parallelize(tasks, len(tasks))
            return [result for part in self._context.runJob(cut, work) for result in part]
        except Exception as error:
            failure = task_failure(error)
        # Outside of except: Spark's error, with the tasks' whole traceback, would be its context.
        raise failure


def _finished(flying: deque[Future[list[Result]]], tick: Callable[[], object]) -> list[Result]:
    """Wait for the first job under way, and return its results."""
    while not wait((flying[0],), _TICK_SECONDS).done:
        tick()
    tick()
    # Until here it is in the queue, so that it is cancelled if something goes wrong.
    return flying.popleft().result()


def _waves(items: Iterable[Costed[Item]], cores: int) -> Iterator[list[list[Item]]]:
    """Gather items; yield the tasks of a wave, each a list of items."""
    most = max(_TASKS_PER_CORE * cores, 8)
    gathered: list[Costed[Item]] = []
    load = 0
    for item, size in items:
        gathered.append((item, size + FILE_COST))
        load += size + FILE_COST
        if load >= most * _TASK_COST:
            yield cut(gathered, cores, most)
            gathered, load = [], 0
    if gathered:
        yield cut(gathered, cores, most)


def cut(items: list[Costed[Item]], cores: int, most: int) -> list[list[Item]]:
    """Spread items over tasks of about equal cost, the most expensive items first. There are
    ``most`` tasks at most, and no more than are worth it."""
    load = sum(cost for _, cost in items)
    count = max(-(-load // _TASK_COST), min(cores, -(-load // _LEAST_COST)))
    tasks: list[list[Item]] = [[] for _ in range(min(count, most, len(items)))]
    lightest = [(0, number) for number in range(len(tasks))]
    for item, cost in sorted(items, key=lambda costed: costed[1], reverse=True):
        weight, number = lightest[0]
        tasks[number].append(item)
        heapq.heapreplace(lightest, (weight + cost, number))
    return tasks

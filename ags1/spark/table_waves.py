"""Work on items as they come, by Spark's executors: waves of tasks of about equal cost.

How many items there will be nobody knows when the first ones are worked on: they come from a walk
through a table. A wave takes as many as keep the cluster busy for a while, its largest ones begin
first; while it runs the next one is gathered. Knows nothing of what the work is.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, TypeAlias, TypeVar
from uuid import uuid4

from .bulk.planning import FILE_COST
from .bulk.running import task_failure, wait_for_tasks

Item = TypeVar("Item")
Result = TypeVar("Result")
Costed: TypeAlias = "tuple[Item, int]"

# In bytes that are read. A task of less than the first is not worth a core that is idle, one of
# more than the second is work enough.
_LEAST_COST = 8 << 20
_TASK_COST = 128 << 20
_TASKS_PER_CORE = 4
# Two: while one ends, the next one's tasks have the cores that it leaves.
_WAVES_IN_FLIGHT = 2
_TICK_SECONDS = 0.1


class Waves:
    """Runs work on the executors of a Spark session; ``cores`` are the cluster's, by default what
    Spark says."""

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

        Each item comes with the bytes that its work reads. ``work`` is pickled; a task that fails
        is tried again as Spark is configured. ``tick`` is called about ten times a second while
        there is nothing to do but to wait. Closing the generator, and whatever is raised, ends the
        tasks.

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
                self._cancel(flying)
                raise

    def wait_for_tasks(self) -> None:
        """Wait, some seconds at most, for tasks whose results nobody waits for: cancelled ones, and
        second attempts, which end a while after their job does."""
        wait_for_tasks(self._context, self._group)

    def _run_tasks(
        self,
        tasks: list[list[Item]],
        work: Callable[[Iterable[list[Item]]], Iterator[list[Result]]],
    ) -> list[Result]:
        # The group is the thread's.
        self._context.setJobGroup(self._group, "ags1: files of a table")
        try:
            cut = self._context.parallelize(tasks, len(tasks))
            return [result for part in self._context.runJob(cut, work) for result in part]
        except Exception as error:
            failure = task_failure(error)
        # Outside: the other error has the tasks' whole traceback, which is of no use here.
        raise failure

    def _cancel(self, flying: Iterable[Future[Any]]) -> None:
        """End the jobs under way, and wait for that."""
        under_way = {future for future in flying if not future.cancel()}
        while under_way:
            # Again and again: one may just be about to begin.
            self._context.cancelJobGroup(self._group)
            under_way = wait(under_way, _TICK_SECONDS).not_done


def _finished(flying: deque[Future[list[Result]]], tick: Callable[[], object]) -> list[Result]:
    """Wait for the first job under way, and return its results."""
    while not wait((flying[0],), _TICK_SECONDS).done:
        tick()
    tick()
    # Until here it is one of those to be ended if something goes wrong.
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
    """Spread items over tasks of about equal cost, the most expensive ones first; ``most`` tasks,
    and no more than are worth it."""
    load = sum(cost for _, cost in items)
    count = max(-(-load // _TASK_COST), min(cores, -(-load // _LEAST_COST)))
    tasks: list[list[Item]] = [[] for _ in range(min(count, most, len(items)))]
    lightest = [(0, number) for number in range(len(tasks))]
    for item, cost in sorted(items, key=lambda costed: costed[1], reverse=True):
        weight, number = lightest[0]
        tasks[number].append(item)
        heapq.heapreplace(lightest, (weight + cost, number))
    return tasks

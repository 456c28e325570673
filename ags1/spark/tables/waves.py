"""Runs work on a stream of items in waves of tasks of about equal cost.

The items come from a walk through a table, so their number is not known in advance. A wave takes
enough items to keep the cluster busy for a while, and starts the largest first. While a wave runs,
the next one is gathered. Independent of what the work is.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar
from uuid import uuid4

from ..jobs.group import JobGroup
from ..jobs.planning import FILE_COST
from ..workers import end_of_task

Item = TypeVar("Item")
Result = TypeVar("Result")
Costed: TypeAlias = "tuple[Item, int]"
Work: TypeAlias = "Callable[[Iterable[list[Item]]], Iterator[list[Result]]]"

# Bytes that a task reads: the least that is worth a task, even for an idle core, and the most.
_LEAST_COST = 8 << 20
_TASK_COST = 128 << 20
_TASKS_PER_CORE = 4


@dataclass(frozen=True)
class _InTask(Generic[Item, Result]):
    """``work`` in a task of Spark; picklable."""

    work: Work[Item, Result]

    def __call__(self, tasks: Iterable[list[Item]]) -> Iterator[list[Result]]:
        yield from self.work(tasks)
        end_of_task()


class WaveRunner:
    """Runs the tasks of one job in Spark. ``cores`` are the cluster's, by default what Spark
    says."""

    def __init__(self, spark: Any, cores: int | None) -> None:
        self._group = JobGroup(spark, f"ags1-{uuid4()}", "ags1: files of a table", cores)
        self.wait_for_tasks = self._group.wait_for_tasks

    @property
    def cost_done(self) -> int:
        """As ``JobGroup.cost_done``."""
        return self._group.cost_done

    def run(
        self,
        items: Iterable[Costed[Item]],
        work: Work[Item, Result],
        tick: Callable[[], object],
    ) -> Generator[Result, None, None]:
        """Yield the results of ``work``, which gets lists of items, for all items. Each item comes
        with the bytes that its work reads. ``work`` is pickled. ``tick`` is called about ten times
        a second while this waits. The tasks are cancelled if the generator is closed or anything
        raises. Raises as ``JobGroup.run``, and what ``items`` raises."""
        group = self._group

        def run(tasks: list[Costed[list[Item]]]) -> list[list[Result]]:
            return group.run(
                [task for task, _ in tasks], _InTask(work), [size for _, size in tasks]
            )

        with closing(group.run_waves(_waves(items, group.cores), run, tick)) as finished:
            for _, results in finished:
                for of_task in results:
                    yield from of_task


def _waves(items: Iterable[Costed[Item]], cores: int) -> Iterator[list[Costed[list[Item]]]]:
    """Gather items; yield the tasks of a wave, each a list of items with their bytes."""
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


def cut(items: list[Costed[Item]], cores: int, most: int) -> list[Costed[list[Item]]]:
    """Spread items over tasks of about equal cost, the most expensive items first. There are
    ``most`` tasks at most, and no more than are worth it. Each comes with its items' bytes."""
    load = sum(cost for _, cost in items)
    count = max(-(-load // _TASK_COST), min(cores, -(-load // _LEAST_COST)))
    tasks: list[list[Item]] = [[] for _ in range(min(count, most, len(items)))]
    lightest = [(0, number) for number in range(len(tasks))]
    for item, cost in sorted(items, key=lambda costed: costed[1], reverse=True):
        weight, number = lightest[0]
        tasks[number].append(item)
        heapq.heapreplace(lightest, (weight + cost, number))
    weights = {number: weight for weight, number in lightest}
    return [(task, weights[n] - FILE_COST * len(task)) for n, task in enumerate(tasks)]

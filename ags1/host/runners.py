"""``Runner``: what runs the tasks of a job in other processes. Spark has one (``ags1.spark``).

``run_items`` runs work on a stream of items, whose number is not known in advance. A wave of tasks
takes enough items to keep the cluster busy for a while, and starts the largest first. While a wave
runs, the next one is gathered. Independent of what the work is.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from contextvars import ContextVar
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

from ..errors import Ags1Error

T = TypeVar("T")
R = TypeVar("R")
Costed: TypeAlias = "tuple[T, int]"
# It yields a result for each task.
Work: TypeAlias = "Callable[[Iterable[T]], Iterator[R]]"

# The cost of opening, creating and naming one file: bytes that could be encrypted in that time.
FILE_COST = 512 << 10
# Bytes that a task reads: the least that is worth a task, even for an idle core, and the most.
_LEAST_COST = 8 << 20
_TASK_COST = 128 << 20
_TASKS_PER_CORE = 4


class TaskAttempt(NamedTuple):
    """One attempt at a task: a name that no other attempt has, and how many came before."""

    name: str
    number: int


# The attempt that runs here; a runner sets it.
this_attempt: ContextVar[TaskAttempt] = ContextVar("this_attempt")


class RunnerEndedError(Ags1Error):
    """What runs the tasks, or the connection to it, has ended during a job."""


class Runner(Protocol):
    """Runs the tasks of one job. ``cores``: so many at a time. ``is_cancelled``: no other one
    begins."""

    cores: int
    is_cancelled: bool

    @property
    def has_failures(self) -> bool:
        """Whether tasks have failed."""

    @property
    def speculates(self) -> bool:
        """Whether two copies of a task may run at a time."""

    @property
    def cost_done(self) -> int:
        """About what the tasks that have ended cost; it may also become less."""

    def run(self, tasks: Sequence[T], work: Work[T, R], costs: Sequence[int] = ()) -> list[R]:
        """Return what ``work``, which is pickled, yields for ``tasks``, one result for each, in
        order. A task that fails may run again. ``costs`` are for ``cost_done``. Raises Ags1Error,
        and RunnerEndedError."""

    def run_waves(
        self, waves: Iterable[T], run: Callable[[T], R], tick: Callable[[], object]
    ) -> Generator[tuple[T, R], None, None]:
        """Yield each wave with ``run(wave)``, in order. ``run`` is called in a thread, and ``tick``
        about ten times a second. If the generator is closed, or anything raises, all tasks are
        cancelled."""

    def wait_for_tasks(self) -> bool:
        """Wait some seconds for cancelled tasks and second attempts. Return whether all are known
        to have ended."""


# Starts a runner: its name, what to call it, and the number of cores if the user says it.
Start: TypeAlias = "Callable[[str, str, int | None], Runner]"


def run_items(
    runner: Runner,
    items: Iterable[Costed[T]],
    work: Work[list[T], list[R]],
    tick: Callable[[], object],
) -> Generator[R, None, None]:
    """Yield the results of ``work``, which gets lists of items, for all items. Each item comes with
    the bytes that its work reads. ``tick`` is called about ten times a second while this waits. The
    tasks are cancelled if the generator is closed or anything raises. Raises as ``Runner.run``, and
    what ``items`` raises."""

    def run(tasks: list[Costed[list[T]]]) -> list[list[R]]:
        return runner.run([task for task, _ in tasks], work, [size for _, size in tasks])

    with closing(runner.run_waves(_waves(items, runner.cores), run, tick)) as finished:
        for _, results in finished:
            for of_task in results:
                yield from of_task


def _waves(items: Iterable[Costed[T]], cores: int) -> Iterator[list[Costed[list[T]]]]:
    """Gather items; yield the tasks of a wave, each a list of items with their bytes."""
    most = max(_TASKS_PER_CORE * cores, 8)
    gathered: list[Costed[T]] = []
    load = 0
    for item, size in items:
        gathered.append((item, size + FILE_COST))
        load += size + FILE_COST
        if load >= most * _TASK_COST:
            yield cut(gathered, cores, most)
            gathered, load = [], 0
    if gathered:
        yield cut(gathered, cores, most)


def cut(items: list[Costed[T]], cores: int, most: int) -> list[Costed[list[T]]]:
    """Spread items over tasks of about equal cost, the most expensive items first. There are
    ``most`` tasks at most, and no more than are worth it. Each comes with its items' bytes."""
    load = sum(cost for _, cost in items)
    count = max(-(-load // _TASK_COST), min(cores, -(-load // _LEAST_COST)))
    tasks: list[list[T]] = [[] for _ in range(min(count, most, len(items)))]
    lightest = [(0, number) for number in range(len(tasks))]
    for item, cost in sorted(items, key=lambda costed: costed[1], reverse=True):
        weight, number = lightest[0]
        tasks[number].append(item)
        heapq.heapreplace(lightest, (weight + cost, number))
    weights = {number: weight for weight, number in lightest}
    return [(task, weights[n] - FILE_COST * len(task)) for n, task in enumerate(tasks)]

"""What classic sessions and those of Spark Connect do not share: how tasks are run, the number of
cores, the progress of what is running, cancelling it, and waiting for tasks that outlast it.

With a classic session, Spark's driver belongs to this process, runs functions on an RDD, and has a
status tracker. A session of Spark Connect is a client of a driver elsewhere, and has only queries.
So a Spark job is a query there: a partition for each task, and a function on it (``mapInArrow``).
A query costs 0.1 to 0.2 s more than a job on an RDD. A client cancels by tags, and learns of
progress from what the server sends meanwhile, but nothing tells it when cancelled tasks have ended.
Independent of what is run.
"""

from __future__ import annotations

import contextlib
import pickle
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from ...host.runners import TaskAttempt, this_attempt
from ..workers import end_of_task, task_context

POLL_SECONDS = 0.1
_LAST_TASKS_SECONDS = 10
# Spark gives the Python worker of a cancelled task two seconds to end.
_KILL_SECONDS = 3
# As many partitions as a session makes by default are counted on so many rows.
_COUNTED_ROWS = 1 << 16
_RESULT_SCHEMA = pa.schema([("number", pa.int64()), ("result", pa.binary())])

# It yields a result for each task.
Work: TypeAlias = "Callable[[Iterable[Any]], Iterator[Any]]"


class RunningJobs(Protocol):
    """The Spark jobs of one session, each known by a tag."""

    def run(self, tasks: list[bytes], work: Work) -> list[bytes]:
        """Run a Spark job with a task for each of ``tasks``, which are pickled; return the pickled
        results, in order."""

    def cores(self) -> int:
        """Return how many tasks the cluster runs at a time, as far as Spark says."""

    def tagged(self, tag: str) -> contextlib.AbstractContextManager[None]:
        """Give the Spark job that this thread runs in the block its tag."""

    def cancel(self, tag: str) -> None:
        """Cancel the Spark job of a tag, if it is running."""

    def share_done(self, tag: str) -> float:
        """Return how much of a running Spark job is done, from 0 to 1 by the number of tasks."""

    def wait_for_tasks(self, tags: Iterable[str]) -> bool:
        """Wait some seconds for tasks that outlast the Spark jobs of these tags. Return whether
        they are known to have ended."""


def running_jobs(spark: Any, description: str) -> RunningJobs:
    """Return the Spark jobs of a session, which the user interface shows with ``description``."""
    if hasattr(spark, "sparkContext"):
        return _ClassicJobs(spark, description)
    return _ConnectJobs(spark)


def _on_pickles(work: Work, tasks: Iterable[bytes]) -> Iterator[bytes]:
    context = task_context()
    this_attempt.set(TaskAttempt(f"{context.taskAttemptId():x}", context.attemptNumber()))
    yield from map(pickle.dumps, work(map(pickle.loads, tasks)))
    end_of_task()


@dataclass(frozen=True)
class _OnPartition:
    """The function that a query runs on a partition, whose rows are numbers of pickled tasks. It
    returns each number with its pickled result."""

    tasks: list[bytes]
    work: Work

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            numbers = batch.column(0).to_pylist()
            results = _on_pickles(self.work, (self.tasks[number] for number in numbers))
            for number, result in zip(numbers, results, strict=True):
                columns = [pa.array([number], pa.int64()), pa.array([result])]
                yield pa.RecordBatch.from_arrays(columns, schema=_RESULT_SCHEMA)


class _ClassicJobs:
    def __init__(self, spark: Any, description: str) -> None:
        self._context = spark.sparkContext
        self._description = description

    def run(self, tasks: list[bytes], work: Work) -> list[bytes]:
        rows = self._context.parallelize(tasks, len(tasks))
        return list(self._context.runJob(rows, partial(_on_pickles, work)))

    def cores(self) -> int:
        return int(self._context.defaultParallelism)

    @contextlib.contextmanager
    def tagged(self, tag: str) -> Iterator[None]:
        # Tags of a classic session can only be interrupted by the thread that has added them.
        names = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel")
        before = {name: self._context.getLocalProperty(name) for name in names}
        self._context.setJobGroup(tag, self._description)
        try:
            yield
        finally:
            with contextlib.suppress(Exception):  # Spark itself may have ended
                for name, value in before.items():
                    self._context.setLocalProperty(name, value)

    def cancel(self, tag: str) -> None:
        self._context.cancelJobGroup(tag)

    def share_done(self, tag: str) -> float:
        stages = self._stages((tag,))
        tasks = sum(stage.numTasks for stage in stages)
        return sum(stage.numCompletedTasks for stage in stages) / tasks if tasks else 0.0

    def wait_for_tasks(self, tags: Iterable[str]) -> bool:
        end = time.monotonic() + _LAST_TASKS_SECONDS
        tags = list(tags)
        while any(stage.numActiveTasks for stage in self._stages(tags)):
            if time.monotonic() > end:
                return False
            time.sleep(POLL_SECONDS)
        return True

    def _stages(self, tags: Iterable[str]) -> list[Any]:
        tracker = self._context.statusTracker()
        jobs = [tracker.getJobInfo(n) for tag in tags for n in tracker.getJobIdsForGroup(tag)]
        stages = [tracker.getStageInfo(n) for job in jobs if job for n in job.stageIds]
        return [stage for stage in stages if stage]


class _ConnectJobs:
    def __init__(self, spark: Any) -> None:
        self._spark = spark
        self._shares: dict[str, float] = {}
        self._last_end = time.monotonic()

    def run(self, tasks: list[bytes], work: Work) -> list[bytes]:
        rows = self._spark.range(0, len(tasks), 1, len(tasks))
        done = rows.mapInArrow(_OnPartition(tasks, work), "number bigint, result binary")
        numbers, results = done.toArrow().columns
        found = dict(zip(numbers.to_pylist(), results.to_pylist(), strict=True))
        return [found[number] for number in range(len(tasks))]

    def cores(self) -> int:
        from pyspark.sql import functions  # optional: the driver's part is imported without it

        partitions = functions.spark_partition_id().alias("partition")
        rows = self._spark.range(_COUNTED_ROWS).select(partitions)
        [row] = rows.agg(functions.max("partition").alias("last")).collect()
        return int(row["last"]) + 1

    @contextlib.contextmanager
    def tagged(self, tag: str) -> Iterator[None]:
        thread = threading.get_ident()

        def note(stages: Any, inflight_tasks: int, operation_id: Any, done: bool) -> None:
            # PySpark calls it for all that the session runs, in the thread that waits for it.
            tasks = sum(stage.num_tasks for stage in stages)
            if threading.get_ident() == thread and tasks:
                completed = sum(stage.num_completed_tasks for stage in stages)
                self._shares[tag] = completed / tasks

        self._spark.addTag(tag)
        self._spark.registerProgressHandler(note)
        try:
            yield
        finally:
            self._spark.removeProgressHandler(note)
            self._spark.removeTag(tag)
            self._shares.pop(tag, None)
            self._last_end = time.monotonic()

    def cancel(self, tag: str) -> None:
        self._spark.interruptTag(tag)

    def share_done(self, tag: str) -> float:
        return self._shares.get(tag, 0.0)

    def wait_for_tasks(self, tags: Iterable[str]) -> bool:
        time.sleep(max(0.0, self._last_end + _KILL_SECONDS - time.monotonic()))
        return False

"""``JobGroup``: the Spark jobs of one run, which are cancelled and waited for together.

A run cuts its work into waves, and each wave is a Spark job with many tasks. Two waves are under
way at a time, so that one can be committed, and the next one planned, while the cluster works::

    driver     plan 1  plan 2           commit 1  plan 3           commit 2  plan 4
    cluster            [---- wave 1 ----][----- wave 2 -----------][----- wave 3 ------- ...

Knows nothing of what the tasks do.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

from ... import errors
from ...errors import Ags1Error

_POLL_SECONDS = 0.1
# Spark gives a Python worker two seconds to end.
_LAST_TASKS_SECONDS = 10
# The Spark jobs whose tasks may still be running.
_LAST_JOBS = 32
_WAVES_IN_FLIGHT = 2
_MAX_CAUSE = 500
_PYTHON_ERROR = re.compile(r"^ags1\.errors\.(\w+): (.*)$", re.MULTILINE)

T = TypeVar("T")
R = TypeVar("R")


class TaskFailedError(Ags1Error):
    """A task failed again and again, with an error that the work on a file does not raise."""


class SparkEndedError(Ags1Error):
    """Spark's JVM, or the connection to it, has ended during a job."""


class JobGroup:
    """Runs Spark jobs in the job group ``group_id``, which Spark's user interface shows with
    ``description``. ``cores`` are those of the cluster, by default what Spark says."""

    def __init__(self, spark: Any, group_id: str, description: str, cores: int | None) -> None:
        self.context = spark.sparkContext
        self.cores = cores or max(self.context.defaultParallelism, 1)
        self.is_cancelled = False
        self._id = group_id
        self._description = description
        # Spark's ids of jobs that failed, or ran at that time: their tasks may still be running.
        self._failed_ids: deque[int] = deque(maxlen=_LAST_JOBS)

    @property
    def has_failures(self) -> bool:
        """Whether a Spark job has failed."""
        return bool(self._failed_ids)

    @property
    def speculates(self) -> bool:
        """Whether Spark may run two copies of a task at a time."""
        return str(self.context.getConf().get("spark.speculation", "false")).lower() == "true"

    def run(self, tasks: list[T], work: Callable[[Iterable[T]], Iterator[R]]) -> list[R]:
        """Run a Spark job with a task for each of ``tasks``; return what ``work`` yields, in order.
        ``work`` is pickled. Spark runs a task that fails again, as it is configured. Raises the
        exception of ours that a task raised, and otherwise TaskFailedError."""
        try:
            return list(self.context.runJob(self.context.parallelize(tasks, len(tasks)), work))
        except Exception as error:
            failure = _task_failure(error)
            with contextlib.suppress(Exception):  # Spark itself may have ended
                self._failed_ids += self._last_jobs(2 * _WAVES_IN_FLIGHT)
        # Outside of except: Spark's error, with the tasks' whole traceback, would be its context.
        raise failure

    def run_waves(
        self, waves: Iterable[T], run: Callable[[T], R], tick: Callable[[], object]
    ) -> Generator[tuple[T, R], None, None]:
        """Yield each wave with ``run(wave)``, in order. ``run`` is called in a thread of the group.
        ``tick`` is called about ten times a second while this waits. All jobs of the group are
        cancelled if the generator is closed, or if anything raises."""
        in_flight: deque[tuple[T, Future[R]]] = deque()

        def run_in_group(wave: T) -> R:
            # Spark keeps the job group by thread.
            self.context.setJobGroup(self._id, self._description)
            return run(wave)

        def first() -> tuple[T, R]:
            wave, future = in_flight[0]
            while not wait((future,), _POLL_SECONDS).done:
                tick()
            tick()
            # Until here it is in the queue, so that it is cancelled if something goes wrong.
            in_flight.popleft()
            return wave, future.result()

        with ThreadPoolExecutor(_WAVES_IN_FLIGHT, "ags1-wave") as pool:
            try:
                for wave in waves:
                    in_flight.append((wave, pool.submit(run_in_group, wave)))
                    if len(in_flight) == _WAVES_IN_FLIGHT:
                        yield first()
                while in_flight:
                    yield first()
            except BaseException:
                self._cancel(future for _, future in in_flight)
                raise

    def wait_for_tasks(self) -> bool:
        """Wait some seconds for tasks that outlast their Spark jobs: cancelled tasks and second
        attempts. Return whether they have ended."""
        end = time.monotonic() + _LAST_TASKS_SECONDS
        job_ids = {*self._failed_ids, *self._last_jobs(_LAST_JOBS)}
        while self._have_tasks(job_ids):
            if time.monotonic() > end:
                return False
            time.sleep(_POLL_SECONDS)
        return True

    def _cancel(self, futures: Iterable[Future[Any]]) -> None:
        """End the waves that are under way, and wait until they have ended."""
        self.is_cancelled = True
        under_way = {future for future in futures if not future.cancel()}
        while under_way:
            # Again and again: a wave may be about to begin. Spark itself may have ended.
            with contextlib.suppress(Exception):
                self.context.cancelJobGroup(self._id)
            under_way = wait(under_way, _POLL_SECONDS).not_done

    def _last_jobs(self, count: int) -> list[int]:
        return sorted(self.context.statusTracker().getJobIdsForGroup(self._id))[-count:]

    def _have_tasks(self, job_ids: Iterable[int]) -> bool:
        tracker = self.context.statusTracker()
        jobs = [tracker.getJobInfo(job_id) for job_id in job_ids]
        stages = [tracker.getStageInfo(n) for job in jobs if job for n in job.stageIds]
        return any(stage.numActiveTasks for stage in stages if stage)


def _task_failure(error: Exception) -> Exception:
    """Return the exception of ours that caused Spark's, or else a TaskFailedError."""
    text = str(error)
    if _is_end_of_spark(error):
        return SparkEndedError(
            "Spark's JVM ended during the job, perhaps for want of memory: see its log, and run "
            "the job again; it goes on where it was"
        )
    if match := _PYTHON_ERROR.search(text):
        kind = getattr(errors, match[1], None)
        if isinstance(kind, type) and issubclass(kind, Ags1Error):
            return kind(match[2])
    java = getattr(error, "java_exception", None)
    message = str(java.getMessage()) if java is not None else text
    _, _, python = message.partition("Traceback (most recent call last):\n")
    causes = [line for line in python.splitlines() if line and not line.startswith(" ")]
    causes += [*message.splitlines(), type(error).__name__]
    return TaskFailedError(causes[0][:_MAX_CAUSE])


def _is_end_of_spark(error: Exception) -> bool:
    """Whether that is what PySpark raises when its JVM does not answer any more."""
    from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError  # optional

    if isinstance(error, (ConnectionError, Py4JNetworkError)):
        return True
    # Py4J's own words, for an answer that broke off.
    return (
        isinstance(error, Py4JError)
        and not isinstance(error, Py4JJavaError)
        and "occurred while calling" in str(error)
    )

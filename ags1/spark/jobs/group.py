"""``JobGroup``: the Spark jobs of one run, which are cancelled and waited for together.

A run cuts its work into waves, and each wave is a Spark job with many tasks. Two waves are under
way at a time, so that one can be committed, and the next one planned, while the cluster works::

    driver     plan 1  plan 2           commit 1  plan 3           commit 2  plan 4
    cluster            [---- wave 1 ----][----- wave 2 -----------][----- wave 3 ------- ...

The same code serves classic sessions and Spark Connect; ``sessions`` has what differs. The tasks
travel pickled. Independent of what they do.
"""

from __future__ import annotations

import contextlib
import itertools
import pickle
import re
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

from ... import errors
from ...errors import Ags1Error
from ...host.runners import Runner, RunnerEndedError, Start
from .sessions import POLL_SECONDS, running_jobs

# The Spark jobs whose tasks may still be running.
_LAST_JOBS = 32
_WAVES_IN_FLIGHT = 2
# Between two looks at the progress of Spark jobs, which take some milliseconds.
_LOOK_SECONDS = 0.5
# With Spark Connect, each task gets the pickles of all tasks of its job, in a message of 128 MiB at
# most. More are sent as several Spark jobs at a time.
_MAX_SENT = 8 << 20
_PARTS_AT_A_TIME = 16
_MAX_CAUSE = 500
_TRACEBACK = "Traceback (most recent call last):\n"  # of a task
# gRPC's word, and PySpark's if the server was started again.
_NO_SERVER = (
    "StatusCode.UNAVAILABLE",
    "INVALID_HANDLE.SESSION_",
    "INVALID_HANDLE.OPERATION_NOT_FOUND",
    "RESPONSE_ALREADY_RECEIVED",
    "Received incorrect server side session identifier",
)
_PYTHON_ERROR = re.compile(r"^ags1\.errors\.(\w+): (.*)$", re.MULTILINE)

T = TypeVar("T")
R = TypeVar("R")


class TaskFailedError(Ags1Error):
    """A task failed again and again, with an error that the work on a file does not raise."""


class SparkEndedError(RunnerEndedError):
    """Spark's JVM, or the connection to it, has ended during a job."""


def starts(spark: Any) -> Start:
    """Return what starts Spark's runner with a session, or with the one that a function returns."""

    def start(group_id: str, description: str, cores: int | None) -> Runner:
        return JobGroup(spark() if callable(spark) else spark, group_id, description, cores)

    return start


class JobGroup:
    """Spark's ``Runner``. Its Spark jobs have tags that begin with ``group_id``. Spark's user
    interface shows them with ``description``, unless the session is one of Spark Connect.
    ``cores`` are those of the cluster, by default what Spark says."""

    def __init__(self, spark: Any, group_id: str, description: str, cores: int | None) -> None:
        self._spark = spark
        self._jobs = running_jobs(spark, description)
        try:
            self.cores = cores or max(self._jobs.cores(), 1)
        except Exception as error:
            raise _task_failure(error) from None
        self.is_cancelled = False
        self._has_spark_ended = False
        self._id = group_id
        self._numbers = itertools.count()
        self._finished_cost = 0
        self._looked = 0.0
        self._shares: dict[str, float] = {}
        # What the tasks of running Spark jobs cost, for each job's tag.
        self._running: dict[str, int] = {}
        self._last_tags: deque[str] = deque(maxlen=_LAST_JOBS)
        # Spark jobs that failed, or ran at that time: their tasks may still be running.
        self._failed_tags: deque[str] = deque(maxlen=_LAST_JOBS)

    @property
    def has_failures(self) -> bool:
        return bool(self._failed_tags)

    @property
    def speculates(self) -> bool:
        return str(self._spark.conf.get("spark.speculation", "false")).lower() == "true"

    @property
    def cost_done(self) -> int:
        """It counts the tasks of a running Spark job as if they were equal, and becomes less when
        one fails."""
        running = self._running.copy()
        if time.monotonic() > self._looked + _LOOK_SECONDS:
            self._looked = time.monotonic()
            with contextlib.suppress(Exception):  # Spark itself may have ended
                self._shares = {tag: self._jobs.share_done(tag) for tag in running}
        shares = self._shares
        done = (int(cost * shares.get(tag, 0.0)) for tag, cost in running.items())
        return self._finished_cost + sum(done)

    def run(
        self,
        tasks: Sequence[T],
        work: Callable[[Iterable[T]], Iterator[R]],
        costs: Sequence[int] = (),
    ) -> list[R]:
        """Run a Spark job, or several if it is too large for one message. Spark runs a task that
        fails again, as it is configured. Raises the exception of ours that a task raised, and
        otherwise TaskFailedError."""
        parts = list(_parts([pickle.dumps(task) for task in tasks], costs))
        if len(parts) == 1:
            return self._run_part(work, *parts[0])
        with ThreadPoolExecutor(_PARTS_AT_A_TIME, "ags1-part") as pool:
            futures = [pool.submit(self._run_part, work, sent, cost) for sent, cost in parts]
            try:
                return [result for future in futures for result in future.result()]
            except BaseException:
                self._end(futures)
                raise

    def _run_part(
        self, work: Callable[[Iterable[T]], Iterator[R]], tasks: list[bytes], cost: int
    ) -> list[R]:
        results = self._run_job(lambda: self._jobs.run(tasks, work), cost)
        return [pickle.loads(result) for result in results]

    def _run_job(self, run: Callable[[], R], cost: int) -> R:
        tag = f"{self._id}-{next(self._numbers)}"
        self._last_tags.append(tag)
        self._running[tag] = cost
        try:
            with self._jobs.tagged(tag):
                results = run()
            self._running[tag] = 0  # progress does not count it twice
            self._finished_cost += cost
            return results
        except Exception as error:
            failure = _task_failure(error)
            self._has_spark_ended |= isinstance(failure, SparkEndedError)
            self._failed_tags += list(self._last_tags)[-2 * _WAVES_IN_FLIGHT :]
        except BaseException:
            # The user's Ctrl-C. A server of Spark Connect would go on.
            with contextlib.suppress(Exception):
                self._jobs.cancel(tag)
            raise
        finally:
            del self._running[tag]
        # Outside of except: Spark's error, with the tasks' whole traceback, would be its context.
        raise failure

    def run_waves(
        self, waves: Iterable[T], run: Callable[[T], R], tick: Callable[[], object]
    ) -> Generator[tuple[T, R], None, None]:
        """``run`` is called in a thread of the group, and ``tick`` about ten times a second."""
        in_flight: deque[tuple[T, Future[R]]] = deque()

        def first() -> tuple[T, R]:
            wave, future = in_flight[0]
            while not wait((future,), POLL_SECONDS).done:
                tick()
            tick()
            # Until here it is in the queue, so that it is cancelled if something goes wrong.
            in_flight.popleft()
            return wave, future.result()

        with ThreadPoolExecutor(_WAVES_IN_FLIGHT, "ags1-wave") as pool:
            try:
                for wave in waves:
                    in_flight.append((wave, pool.submit(run, wave)))
                    if len(in_flight) == _WAVES_IN_FLIGHT:
                        yield first()
                while in_flight:
                    yield first()
            except BaseException:
                self._cancel(future for _, future in in_flight)
                raise

    def wait_for_tasks(self) -> bool:
        """They are cancelled ones and second attempts. Spark Connect does not say whether they have
        ended."""
        return self._jobs.wait_for_tasks({*self._failed_tags, *self._last_tags})

    def _cancel(self, futures: Iterable[Future[Any]]) -> None:
        """End the waves that are under way, and wait until they have ended."""
        self.is_cancelled = True
        self._end(futures)

    def _end(self, futures: Iterable[Future[Any]]) -> None:
        """Cancel all Spark jobs until what runs them has ended."""
        under_way = {future for future in futures if not future.cancel()}
        while under_way:
            # This is repeated, because a wave may be about to begin. If a server of Spark Connect
            # has ended, PySpark would try for minutes to reach it.
            for tag in () if self._has_spark_ended else tuple(self._running):
                with contextlib.suppress(Exception):
                    self._jobs.cancel(tag)
            under_way = wait(under_way, POLL_SECONDS).not_done


def _parts(tasks: list[bytes], costs: Sequence[int]) -> Iterator[tuple[list[bytes], int]]:
    """Cut pickled tasks into parts that are sent together; yield each with its cost."""
    part: list[bytes] = []
    size = cost = 0
    for task, of_task in zip(tasks, costs or itertools.repeat(0), strict=False):
        if part and size + len(task) > _MAX_SENT:
            yield part, cost
            part, size, cost = [], 0, 0
        part.append(task)
        size += len(task)
        cost += of_task
    yield part, cost


def _task_failure(error: Exception) -> Exception:
    """Return the exception of ours that caused Spark's, or else a TaskFailedError."""
    text = str(error)
    if (ended := _ended(error)) is not None:
        return SparkEndedError(f"{ended}, and run the job again; it goes on where it was")
    if match := _PYTHON_ERROR.search(text):
        kind = getattr(errors, match[1], None)
        if isinstance(kind, type) and issubclass(kind, Ags1Error):
            return kind(match[2])
    java = getattr(error, "java_exception", None)
    message = str(java.getMessage()) if java is not None else text
    _, _, python = message.partition(_TRACEBACK)
    causes = [line for line in python.splitlines() if line and not line.startswith(" ")]
    causes += [*message.splitlines(), type(error).__name__]
    return TaskFailedError(causes[0][:_MAX_CAUSE])


def _ended(error: Exception) -> str | None:
    """Return what has ended, and what to look at, if this is what PySpark raises when its JVM or
    its server does not answer any more."""
    from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError  # optional

    text = str(error)
    if _TRACEBACK not in text and any(sign in text for sign in _NO_SERVER):
        return (
            "the server of Spark Connect ended during the job, or could not be reached any more: "
            "check that it runs"
        )
    # Py4J's own words, for an answer that broke off.
    broke_off = (
        isinstance(error, Py4JError)
        and not isinstance(error, Py4JJavaError)
        and "occurred while calling" in str(error)
    )
    if broke_off or isinstance(error, (ConnectionError, Py4JNetworkError)):
        return "Spark's JVM ended during the job, perhaps for lack of memory: see its log"
    return None

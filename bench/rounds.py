"""Measuring several contestants fairly: in turns, in one process.

A machine's speed drifts (clock, neighbours, memory). So the contestants run A B C B C A …, and a
ratio is formed within each round, where both met the same machine, before the median is taken.
Where a disk takes part, what disturbs it lasts for seconds and doubles the time or more; there the
best runs are compared instead.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Contestant:
    """``run`` does the work once and returns the seconds it took.

    ``size`` (bytes of plaintext) or ``count`` (operations) says how much work that is. A slow
    contestant takes part in the first ``rounds`` rounds only.
    """

    name: str
    run: Callable[[], float]
    size: int = 0
    count: int = 1
    rounds: int | None = None
    warm_up: bool = True


@dataclass(slots=True)
class Series:
    """The seconds that one contestant took, round by round."""

    name: str
    size: int
    count: int
    seconds: list[float] = field(default_factory=list)
    # To an object store, in one run.
    requests: int = 0

    @property
    def best(self) -> float:
        return min(self.seconds)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def rate(self) -> float:
        """Bytes of plaintext per second, by the median."""
        return self.size / self.median

    @property
    def each(self) -> float:
        """Seconds per operation, by the median."""
        return self.median / self.count


@dataclass(slots=True)
class Contest:
    """One comparison: the same work done by each contestant in turn."""

    subject: str
    name: str
    series: dict[str, Series] = field(default_factory=dict)
    by_best: bool = False

    def ratio(self, name: str, other: str) -> float | None:
        """How many times faster ``name`` is than ``other`` per unit of work; None if one is absent.

        Computed in each round that both took part in, then the median; or with ``by_best`` of the
        best runs.
        """
        ours, theirs = self.series.get(name), self.series.get(other)
        if not (ours and theirs and ours.seconds and theirs.seconds):
            return None
        work = (ours.size or ours.count) / (theirs.size or theirs.count)
        if self.by_best:
            return work * theirs.best / ours.best
        return statistics.median(
            work * b / a for a, b in zip(ours.seconds, theirs.seconds, strict=False)
        )

    def slope(self, name: str) -> float | None:
        """How the time grows with the ``count``, from the first contestant to ``name``: the
        exponent of a power, 1 for twice the time at twice the count. None if both have the same
        count."""
        first, other = next(iter(self.series.values())), self.series[name]
        if first.count == other.count or not (first.seconds and other.seconds):
            return None
        return math.log(other.median / first.median) / math.log(other.count / first.count)


def timed(work: Callable[[], object]) -> Callable[[], float]:
    """Return a function that does ``work`` and returns the seconds it took.

    What ``work`` returned is freed when the clock has stopped.
    """

    def run() -> float:
        begin = time.perf_counter()
        _made = work()
        return time.perf_counter() - begin

    return run


def repeated(work: Callable[[], object], count: int) -> Callable[[], float]:
    """The same for work too short to be timed alone: ``count`` times in a loop."""
    turns = range(count)

    def run() -> float:
        begin = time.perf_counter()
        for _ in turns:
            work()
        return time.perf_counter() - begin

    return run


def compete(
    subject: str,
    name: str,
    contestants: Sequence[Contestant],
    rounds: int,
    *,
    between: Callable[[], None] | None = None,
    by_best: bool = False,
) -> Contest:
    """Let the contestants run in turns, after one untimed run each. A single round has no untimed
    run, because nobody compares its times.

    ``between`` is called before every run, outside its time.
    """
    series = {c.name: Series(c.name, c.size, c.count) for c in contestants}
    contest = Contest(subject, name, series, by_best)
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        for number in range(-1 if rounds > 1 else 0, rounds):
            # Whoever comes first meets what the last one left behind: each has its turn at that.
            start = max(number, 0) % len(contestants)
            for contestant in [*contestants[start:], *contestants[:start]]:
                if number == -1 and not contestant.warm_up:
                    continue
                if contestant.rounds is not None and number >= contestant.rounds:
                    continue
                if between is not None:
                    between()
                seconds = contestant.run()
                if number >= 0:
                    contest.series[contestant.name].seconds.append(seconds)
    finally:
        if was_enabled:
            gc.enable()
    return contest

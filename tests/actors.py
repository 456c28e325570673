"""Processes of a model: threads that make one request at a time, in an order that a test draws, and
that may be killed between two requests."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any


class Killed(BaseException):
    """The process is gone. Whatever it tries then has no effect."""


class Actor:
    """A process, as a thread that goes on by one request at a time."""

    current = threading.local()

    def __init__(self, work: Callable[[], Any], lives: int | None) -> None:
        self.result: Any = None
        self.ended = False
        self._lives = lives  # the requests until it is killed
        self._go, self._waits = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self._thread.start()
        self._waits.acquire()

    def _run(self, work: Callable[[], Any]) -> None:
        Actor.current.actor = self
        try:
            self.request()
            self.result = work()
        except BaseException as error:
            self.result = error
        self.ended = True
        self._waits.release()

    def request(self) -> None:
        """Wait until it is this actor's turn."""
        self._waits.release()
        self._go.acquire()
        if self._lives is not None:
            if self._lives <= 0:
                raise Killed
            self._lives -= 1

    def step(self) -> None:
        """Let it make one request, and go on to the next one."""
        self._go.release()
        self._waits.acquire()

    def steps(self, count: int) -> int:
        """Let it make up to so many requests. Return how many it made."""
        for made in range(count):
            if self.ended:
                return made
            self.step()
        return count

    def kill(self) -> None:
        """Kill it before its next request."""
        self._lives = 0
        while not self.ended:
            self.step()


def request() -> None:
    actor = getattr(Actor.current, "actor", None)
    if actor is not None:
        actor.request()


def play(rng: random.Random, actors: list[Actor]) -> None:
    """Have the actors make their requests in a drawn order, until all have ended."""
    live = list(actors)
    while live:
        actor = rng.choice(live)
        # Long runs of one actor are as likely as a change after each request.
        for _ in range(rng.choice((1, 1, 2, 5, 20))):
            if not actor.ended:
                actor.step()
        live = [one for one in live if not one.ended]


def lives(rng: random.Random) -> int | None:
    return rng.randrange(40) if rng.random() < 0.4 else None

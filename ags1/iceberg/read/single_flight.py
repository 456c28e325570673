"""``SingleFlight``: values that several threads need and one of them makes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

_K = TypeVar("_K")
_V = TypeVar("_V")


class SingleFlight(Generic[_K, _V]):
    """A cache that makes each value once, in the thread that first asks for it. Other threads wait
    for it."""

    def __init__(self, make: Callable[[_K], _V]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._values: dict[_K, Future[_V]] = {}

    def __call__(self, key: _K) -> _V:
        with self._lock:
            future = self._values.get(key)
            mine = future is None
            if future is None:
                future = self._values[key] = Future()
        if mine:
            try:
                future.set_result(self._make(key))
            except BaseException as error:
                future.set_exception(error)
                raise
        return future.result()

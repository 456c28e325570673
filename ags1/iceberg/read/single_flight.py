"""``SingleFlight``: values that several threads need and one of them makes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

from ...host.process import Lock

_K = TypeVar("_K")
_V = TypeVar("_V")


class SingleFlight(Generic[_K, _V]):
    """A cache that makes each value once, in the thread that first asks for it. Other threads wait
    for it. If making a value needs the same value, in the same thread, this raises RuntimeError."""

    def __init__(self, make: Callable[[_K], _V]) -> None:
        self._make = make
        self._lock = Lock()
        self._values: dict[_K, Future[_V]] = {}
        self._makers: dict[_K, Lock] = {}

    def __call__(self, key: _K) -> _V:
        with self._lock:
            future = self._values.get(key)
            mine = future is None
            if future is None:
                future = self._values[key] = Future()
                self._makers[key] = Lock()
        maker = self._makers[key]
        maker.check_not_mine()
        if mine:
            try:
                with maker:
                    future.set_result(self._make(key))
            except BaseException as error:
                future.set_exception(error)
                raise
        return future.result()

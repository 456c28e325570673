"""One value for each process: what a forked child must not share with its parent.

After a fork, the child cannot use its parent's connections, gRPC channels and locks that another
thread held, and it should not have its plaintext keys. Knows nothing of KMSs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from .._gcm import process_number
from .secret import Secret

T = TypeVar("T")


class _State(Generic[T]):
    __slots__ = ("lock", "value")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.value: T | None = None


class PerProcess(Secret, Generic[T]):
    """Makes a value when it is first asked for, once, and again in a forked child.

    ``make`` is called by one thread at a time; what it raises, ``get`` raises, and the next ``get``
    tries again. The parent's value is dropped in the child, not closed: its connections are still
    the parent's.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._states: dict[int, _State[T]] = {}

    def get(self) -> T:
        """Return this process's value."""
        state = self._state()
        value = state.value
        if value is None:
            with state.lock:
                value = state.value
                if value is None:
                    value = state.value = self._make()
        return value

    def take(self) -> T | None:
        """Return the value if there is one, and forget it: whoever closes it calls this."""
        state = self._state()
        with state.lock:
            value, state.value = state.value, None
        return value

    def forget_parents(self) -> None:
        """Drop what the parent of a forked child had; ``get`` does it too, when it is called."""
        self._state()

    def _state(self) -> _State[T]:
        fork = process_number()
        state = self._states.get(fork)
        if state is None:
            # No lock around it, which a fork could copy held: setdefault is one step under the GIL.
            state = self._states.setdefault(fork, _State())
            for other in [number for number in self._states if number != fork]:
                self._states.pop(other, None)
        return state

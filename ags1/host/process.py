"""Objects that a forked child must not share with its parent.

A forked child has no threads of its parent, and must not use its connections. A lock that another
thread of the parent held stays locked in the child. Two classes, for two kinds of objects:

    PerProcess       takes no lock. Two threads may both make an object; both get the first one. For
                     locks, queues and pools, also where a signal handler may interrupt the call.
    OncePerProcess   is made by one thread while the others wait. For what is expensive or secret:
                     connections, unwrapped keys. The child forgets the parent's.

``docs/design/0003-forks-and-nonces.md`` says what a child may do with its parent's keys.
"""

from __future__ import annotations

from _thread import RLock
from collections.abc import Callable
from typing import Generic, NoReturn, TypeVar

from ._process import process_number

T = TypeVar("T")


class PerProcess(Generic[T]):
    """An object that is made when it is first needed, and again in a forked child."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._by_process: dict[int, T] = {}

    def made(self) -> T | None:
        """Return this process's object if there is one."""
        # Not by get(): without the GIL that locks the dict, in a forked child perhaps for good.
        try:
            return self._by_process[process_number()]
        except KeyError:
            return None

    def get(self) -> T:
        """Return this process's object."""
        made = self.made()
        if made is None:
            # One step: of two threads that come at once, both get what the first has put there.
            made = self._by_process.setdefault(process_number(), self._make())
        return made

    def forget_parents(self) -> None:
        """Drop the objects of other processes."""
        for number in [number for number in self._by_process if number != process_number()]:
            self._by_process.pop(number, None)


class Lock(RLock):  # type: ignore[misc]  # final to the checker, not to Python
    """A lock that knows whether the current thread holds it. Other threads wait for it. If a signal
    handler uses the stream that it has interrupted, it gets an error. The class is derived from the
    one in C, so ``with`` takes the lock without running Python code. Otherwise a signal handler
    could raise after the lock is taken and before the block that releases it."""

    @property
    def mine(self) -> bool:
        """Whether the current thread holds the lock."""
        return bool(self._is_owned())  # type: ignore[attr-defined]

    def check_not_mine(self) -> None:
        """Raise RuntimeError if the current thread holds the lock."""
        if self.mine:
            raise RuntimeError(
                "reentrant call: the object was used while a call on it was still running in the "
                "same thread (by a signal handler, or by a file object or function that it uses): "
                "use it after that call has returned"
            )


class _Slot(Generic[T]):
    __slots__ = ("lock", "value")

    def __init__(self) -> None:
        self.lock = Lock()
        self.value: T | None = None


class OncePerProcess(Generic[T]):
    """An object that one thread makes when it is first needed, and again in a forked child. If
    ``make`` fails, ``get`` raises its exception, and the next ``get`` calls it again. If ``make``
    itself, or a signal handler that interrupts it, calls ``get``, that raises RuntimeError. The
    parent's object is dropped in the child, not closed: its connections are still the parent's."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._slots: PerProcess[_Slot[T]] = PerProcess(_Slot)

    def get(self) -> T:
        """Return this process's object."""
        slot = self._slot()
        value = slot.value
        if value is None:
            slot.lock.check_not_mine()
            with slot.lock:
                value = slot.value
                if value is None:
                    value = slot.value = self._make()
        return value

    def made(self) -> T | None:
        """Return this process's object if there is one."""
        slot = self._slots.made()
        return None if slot is None else slot.value

    def take(self) -> T | None:
        """Return the object if there is one, and forget it. The caller closes it."""
        slot = self._slot()
        with slot.lock:
            value, slot.value = slot.value, None
        return value

    def forget(self, value: T) -> None:
        """Forget the object if it is still ``value``. Another thread may have replaced it."""
        slot = self._slot()
        with slot.lock:
            if slot.value is value:
                slot.value = None

    def forget_parents(self) -> None:
        """Drop the parent's object in a forked child. ``get`` and ``take`` do it too."""
        self._slot()

    def _slot(self) -> _Slot[T]:
        slot = self._slots.made()
        if slot is None:
            slot = self._slots.get()
            self._slots.forget_parents()
        return slot

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("OncePerProcess is not pickled or copied: it may hold secrets")

"""Unwrapped KEKs, kept for an hour (also of a machine that sleeps) so that the KMS is asked once
for each.

The hour is that of Java's ``StandardEncryptionManager``. A key that was revoked in the KMS is
therefore still usable for up to an hour. Other than in Java, the number of KEKs is bounded. An
expired KEK is removed when the cache is used next, and is wiped when its last user is done. A
forked child has a cache of its own and asks the KMS itself.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import math
import os
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from ..host.process import Lock, OncePerProcess
from ..kms.client import KmsClient
from .envelope import EncryptedKey, KeyEncryptionKey

LIFETIME_SECONDS = 3600.0
CAPACITY = 1000

# The clock also counts the time while the machine is suspended.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_now_seconds = functools.partial(time.clock_gettime, _CLOCK)
# The master key to ask for, and the entry.
_Wanted = tuple[str | None, str, bytes, str | None, tuple[tuple[str, str], ...]]


class _Flight:
    """A running KMS call. The threads that need its result wait for the lock."""

    __slots__ = ("ended", "error", "kek", "lock")

    def __init__(self) -> None:
        self.lock = Lock()
        self.ended = threading.Event()
        self.kek: KeyEncryptionKey | None = None
        self.error: Exception | None = None


class _Contents:
    __slots__ = ("first_end", "flights", "keks", "lock")

    def __init__(self) -> None:
        self.lock = Lock()
        self.first_end = math.inf
        self.keks: OrderedDict[_Wanted, tuple[KeyEncryptionKey, float]] = OrderedDict()
        self.flights: dict[_Wanted, _Flight] = {}


class KekCache:
    """The unwrapped KEKs of one KMS client. Threads and tables may share it. If several threads ask
    for a KEK at once, the KMS is called once. If that call fails, all of them get the error, and
    the next call asks the KMS again. A pickle has the client and no key. ``lifetime_seconds`` is
    how long a KEK is kept, ``capacity`` how many are."""

    def __init__(
        self,
        kms: KmsClient,
        *,
        lifetime_seconds: float = LIFETIME_SECONDS,
        capacity: int = CAPACITY,
        clock: Callable[[], float] = _now_seconds,
    ) -> None:
        self.kms = kms
        self._lifetime_seconds = lifetime_seconds
        self._capacity = capacity
        self._clock = clock
        self._contents = OncePerProcess(_Contents)
        _caches.add(self)

    def unwrap(self, entry: EncryptedKey, master_key_id: str | None = None) -> KeyEncryptionKey:
        """Return what ``KeyEncryptionKey.unwrap`` returns, from the cache if it is there."""
        contents = self._contents.get()
        wanted = _wanted(entry, master_key_id)
        while True:
            if cached := self._cached(contents, wanted):
                return cached
            flight = contents.flights.setdefault(wanted, _Flight())
            if flight.ended.is_set():  # it ended before this call
                contents.flights.pop(wanted, None)
                continue
            # If anything ends a call, even Ctrl-C, the lock is released and the next thread calls.
            flight.lock.check_not_mine()
            with flight.lock:
                if not flight.ended.is_set():
                    return self._call(contents, wanted, flight, entry, master_key_id)
            if flight.kek is not None:
                return flight.kek
            assert flight.error is not None
            raise _copy(flight.error) from None

    def peek(
        self, entry: EncryptedKey, master_key_id: str | None = None
    ) -> KeyEncryptionKey | None:
        """Return the KEK if the cache has it. Does not call the KMS."""
        return self._cached(self._contents.get(), _wanted(entry, master_key_id))

    def put(self, kek: KeyEncryptionKey, master_key_id: str | None = None) -> None:
        """Add a KEK that was just made."""
        contents = self._contents.get()
        with contents.lock:
            self._keep(contents, _wanted(kek.entry, master_key_id), kek)

    def clear(self) -> None:
        """Forget all KEKs."""
        self._contents.take()

    def _call(
        self,
        contents: _Contents,
        wanted: _Wanted,
        flight: _Flight,
        entry: EncryptedKey,
        master_key_id: str | None,
    ) -> KeyEncryptionKey:
        if cached := self._cached(contents, wanted):  # another call ended when this one began
            return cached
        try:
            flight.kek = KeyEncryptionKey.unwrap(self.kms, entry, master_key_id)
            with contents.lock:
                self._keep(contents, wanted, flight.kek)
        except Exception as error:
            flight.error = error
            raise
        finally:
            if flight.kek is not None or flight.error is not None:
                flight.ended.set()
            contents.flights.pop(wanted, None)
        return flight.kek

    def _cached(self, contents: _Contents, wanted: _Wanted) -> KeyEncryptionKey | None:
        with contents.lock:
            self._forget_expired(contents)
            cached = contents.keks.get(wanted)
            if cached is None:
                return None
            contents.keks.move_to_end(wanted)
            return cached[0]

    def _keep(self, contents: _Contents, wanted: _Wanted, kek: KeyEncryptionKey) -> None:
        end = self._clock() + self._lifetime_seconds
        contents.first_end = min(contents.first_end, end)
        contents.keks[wanted] = kek, end
        contents.keks.move_to_end(wanted)
        while len(contents.keks) > self._capacity:
            contents.keks.popitem(last=False)

    def _forget_expired(self, contents: _Contents) -> None:
        now = self._clock()
        if now < contents.first_end:
            return
        for wanted in [key for key, (_, end) in contents.keks.items() if end <= now]:
            del contents.keks[wanted]
        contents.first_end = min((end for _, end in contents.keks.values()), default=math.inf)

    def __repr__(self) -> str:
        return f"KekCache({self.kms!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        make = functools.partial(
            KekCache, lifetime_seconds=self._lifetime_seconds, capacity=self._capacity
        )
        return make, (self.kms,)


def _copy(error: Exception) -> Exception:
    """Return a copy of an error if it can be copied: each thread adds its own traceback."""
    with contextlib.suppress(Exception):
        return copy.copy(error)
    return error


def _forget_parents() -> None:
    for cache in list(_caches):
        cache._contents.forget_parents()


def _wanted(entry: EncryptedKey, master_key_id: str | None) -> _Wanted:
    master_key_id = entry.encrypted_by_id if master_key_id is None else master_key_id
    properties = tuple(sorted(entry.properties.items()))
    return (
        master_key_id,
        entry.key_id,
        entry.encrypted_key_metadata,
        entry.encrypted_by_id,
        properties,
    )


_caches: weakref.WeakSet[KekCache] = weakref.WeakSet()
os.register_at_fork(after_in_child=_forget_parents)

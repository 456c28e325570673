"""Unwrapped KEKs, kept for a while so that the KMS is asked once for each.

As in Java's ``StandardEncryptionManager`` a KEK stays for an hour; unlike there the number is
bounded, and what leaves is wiped once its last user is done. Kept per process: a forked child asks
the KMS by itself.
"""

from __future__ import annotations

import copy
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from ..errors import Ags1Error
from ..kms.client import KmsClient
from ..kms.process import PerProcess
from .envelope import EncryptedKey, KeyEncryptionKey

LIFETIME_SECONDS = 3600.0
CAPACITY = 1000

# A suspended machine's time counts.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_Wanted = tuple[str | None, str, bytes, str | None]


def _now_seconds() -> float:
    return time.clock_gettime(_CLOCK)


class _Flight:
    """A KMS call under way, and those who wait for what it brings."""

    __slots__ = ("ended", "error", "kek")

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.kek: KeyEncryptionKey | None = None
        self.error: Exception | None = None


class _Contents:
    __slots__ = ("first_end", "flights", "keks", "lock")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.first_end = math.inf
        self.keks: OrderedDict[_Wanted, tuple[KeyEncryptionKey, float]] = OrderedDict()
        self.flights: dict[_Wanted, _Flight] = {}


class KekCache:
    """The unwrapped KEKs of one KMS client. Threads may share it, and so may tables.

    However many threads ask for a KEK at once, the KMS is called once; its failure is everybody's,
    and is not kept. A pickle has the client and no key.
    """

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
        self._contents = PerProcess(_Contents)

    def unwrap(self, entry: EncryptedKey, master_key_id: str | None = None) -> KeyEncryptionKey:
        """Return what ``KeyEncryptionKey.unwrap`` returns, from the cache if it is there."""
        contents = self._contents.get()
        wanted = _wanted(entry, master_key_id)
        while True:
            if kept := self._kept(contents, wanted):
                return kept
            mine = _Flight()
            try:
                flight = contents.flights.setdefault(wanted, mine)
                if flight is mine:
                    # The last call may have ended since we looked.
                    return self._kept(contents, wanted) or self._call(
                        contents, wanted, flight, entry, master_key_id
                    )
            finally:
                # Also when Ctrl-C came in between: nobody may wait for a call that nobody makes.
                if contents.flights.get(wanted) is mine:
                    del contents.flights[wanted]
                    mine.ended.set()
            flight.ended.wait()
            if flight.kek is not None:
                return flight.kek
            if isinstance(flight.error, Ags1Error):
                # A copy: each thread that raises it adds its own traceback.
                raise copy.copy(flight.error) from None

    def put(self, kek: KeyEncryptionKey, master_key_id: str | None = None) -> None:
        """Keep a KEK that was just made."""
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
        try:
            kek = KeyEncryptionKey.unwrap(self.kms, entry, master_key_id)
        except Exception as error:
            flight.error = error
            raise
        flight.kek = kek
        with contents.lock:
            self._keep(contents, wanted, kek)
        return kek

    def _kept(self, contents: _Contents, wanted: _Wanted) -> KeyEncryptionKey | None:
        with contents.lock:
            self._forget_expired(contents)
            kept = contents.keks.get(wanted)
            if kept is None:
                return None
            contents.keks.move_to_end(wanted)
            return kept[0]

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

    def __reduce__(self) -> tuple[type[KekCache], tuple[KmsClient]]:
        return KekCache, (self.kms,)


def _wanted(entry: EncryptedKey, master_key_id: str | None) -> _Wanted:
    # All that decides what the KMS is asked and what the KEK is bound to.
    master_key_id = entry.encrypted_by_id if master_key_id is None else master_key_id
    return master_key_id, entry.key_id, entry.encrypted_key_metadata, entry.timestamp

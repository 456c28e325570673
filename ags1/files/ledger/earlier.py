"""Ledgers of earlier versions: who writes to them, and what is pending.

They are read as they are, and no longer written. Their state is in ``_state/<revision>.json``, and
the highest revision counts. A folder of a still earlier version has no state: the names of its
files tell it. The first job of this version that writes makes ``SHUT``, which earlier versions take
for a newer state that they cannot read. A folder's ``_lock`` keeps out versions that know no state
(``store``).
"""

from __future__ import annotations

import contextlib
import errno
import json
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from .processes import is_gone, process_name
from .rows import damaged
from .segments import segments
from .store import BUSY, Store, create

SHUT = "999999999999.json"
LEASE_SECONDS = 45.0
_STATE = "_state"
_REVISION = re.compile(r"\d{12}\.json")
# With the epoch and a count; without them, it is a still earlier version's.
_PENDING = re.compile(r"_pending-(\d{12})(?:\.\d{6}-\d{6})?\.parquet")
_TRIES = 8


class State(NamedTuple):
    """One revision: the process that writes, if there is one, and the names of the pending batches
    by number."""

    revision: str
    holder: str | None
    pending: dict[int, str]

    @classmethod
    def from_bytes(cls, data: bytes, revision: str, where: str) -> State:
        """Parse a revision. Raises FormatError."""
        try:
            facts = json.loads(data)
            pending = {int(number): str(name) for number, name in facts["pending"].items()}
            for number, name in pending.items():
                match = _PENDING.fullmatch(name)
                # It is removed in the end, so it must not be the name of anything else.
                if match is None or int(match[1]) != number:
                    raise ValueError(name)
            holder = facts["holder"]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise damaged("its state cannot be read", where) from None
        return cls(revision, None if holder is None else str(holder), pending)


def is_there(store: Store) -> bool:
    """Whether a ledger exists. Raises OSError."""
    if store.names(_STATE):
        return True
    # Copies may have no more than the rows.
    starts = ("pack-", "_plan-", "batch-", "_pending-", "_job-")
    return any(name.startswith(starts) for name in store.names())


def shut(store: Store) -> None:
    """Keep earlier versions from writing. Raises BlockingIOError while one of them writes."""
    names = store.names(_STATE)
    if SHUT in names:
        return
    state = _read(store, names)
    if state is not None and state.holder is not None:
        seconds = store.age(f"{_STATE}/{state.revision}")
        if seconds <= LEASE_SECONDS and not is_gone(state.holder):
            message = f"{BUSY} ({process_name(state.holder)})"
            raise BlockingIOError(errno.EAGAIN, message, store.url)
    # Pending batches stay known by the state before.
    create(store, f"{_STATE}/{SHUT}", b'{"shut": "by a version whose ledgers are packs"}\n')


def pending(store: Store, names: Sequence[str]) -> list[str]:
    """Return those names of objects that are batches which an earlier version has left pending,
    oldest first."""
    left = {name for name in names if _PENDING.fullmatch(name)}
    if not left:
        return []
    state = _read(store, [name for name in store.names(_STATE) if name != SHUT])
    if state is not None:
        return [name for _, name in sorted(state.pending.items()) if name in left]
    # A batch may have been settled, just before a kill.
    settled = segments(names)
    numbers = sorted((int(name[9:21]), name) for name in left)
    return [name for n, name in numbers if not any(s.first <= n <= s.last for s in settled)]


def strays(store: Store, names: Sequence[str]) -> list[str]:
    """Return the names of pending batches that are in no state: nobody reads them."""
    counting = pending(store, names)
    return [name for name in names if _PENDING.fullmatch(name) and name not in counting]


def _read(store: Store, names: Iterable[str]) -> State | None:
    """Return the newest state; None if there is none."""
    revisions = sorted((name for name in names if _REVISION.fullmatch(name)), reverse=True)
    for name in revisions[:_TRIES]:
        with contextlib.suppress(FileNotFoundError):
            at = f"{_STATE}/{name}"
            return State.from_bytes(store.read(at), name, store.url_of(at))
    return None

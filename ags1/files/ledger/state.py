"""The state of a ledger, and the claim of the job that writes to it: one protocol for all storages.

**The state** is in ``_state/<revision>.json``: who holds the claim, what is pending, the next
number. The object of the highest revision counts. A process that changes the state makes the object
of the next revision, by a write that fails if that object exists. So if two processes change one
revision, only one succeeds. Old revisions are removed, but never the highest. Therefore the writer
lists the revisions once more: if its own is the highest, its change counts; if not, its write came
so late that its revision had been removed already, and it has changed nothing. All other objects
have names that are used once. The state, or the version in a name, says whether an object counts.

**The claim.** A job claims the ledger by a change of the state, with a new epoch, and renews the
claim every ``RENEWAL_SECONDS`` by a change without any other meaning. A killed job renews nothing.
``LEASE_SECONDS`` after the last change, by the storage's clock, another job may take it over. On
the same machine, it may as soon as the process is gone.

**A job that was paused and has lost its claim can do no harm.** Every step of it that counts is a
change of the state, and fails, because the new holder has changed the state:

- ``prepare`` writes the rows, then changes the state. If that fails, no file gets its name, and the
  object of the rows is in no state: nobody reads it.
- It may be paused between ``prepare`` and the names of the files. But the new holder knows the
  batch from the state, and gives the files their names or withdraws them, before it does anything
  else (``ags1.spark.jobs.publishing.settle_pending``). Then nothing is left that the paused job
  could name.
- ``settle`` writes the settled rows, then changes the state. Until then the batch is pending to all
  readers. If both jobs wrote rows of one batch, those of the later epoch count.
- ``replace`` and ``compact`` write a file of the same rows with the version of their epoch, which
  yields to files of later epochs. Old files are removed only after a change of the state.
- ``begin``, ``end`` and the notes of uploads only make, or remove, objects with the job's own id.

**A kill at any step** leaves the state before or after the change, and objects that nobody reads.
The next holder removes them.

**A folder that an earlier version has written has no state.** The names of its files tell it:
``_pending-<number>.parquet`` is pending unless its number is settled, and the numbers go on after
the highest one. The first claim makes the first revision of this.
"""

from __future__ import annotations

import contextlib
import errno
import json
import re
import threading
from collections.abc import Mapping
from typing import Any, NamedTuple

from ...engine._gcm import random_bytes
from ...errors import FormatError
from .claims import is_gone, process_name, this_process
from .rows import damaged
from .segments import segments
from .store import BUSY, Store, create

# Less than the minute for which a write of the data source waits.
LEASE_SECONDS = 45.0
RENEWAL_SECONDS = 10.0
# Revisions that stay for readers who have listed them already.
_REVISIONS = 8
_TRIES = 8
_STATE = "_state"
_REVISION = re.compile(r"(\d{12})\.json")
# With the epoch and a count; without them, it is an earlier version's.
PENDING = re.compile(r"_pending-(\d{12})(?:\.(\d{6})-\d{6})?\.parquet")

_NO_LEDGER = "there is no ledger: check its place"


class State(NamedTuple):
    """One revision. ``epoch`` counts the claims, ``next`` is the number of the next batch,
    ``pending`` has the names of pending batches by number. ``holder`` is the process that holds
    the claim (``claims``); None if none does. ``writer`` and ``revision`` make it unique."""

    revision: int = 0
    writer: str = ""
    epoch: int = 0
    holder: str | None = None
    next: int = 1
    pending: dict[int, str] = {}  # noqa: RUF012  # replaced, never changed

    def to_bytes(self) -> bytes:
        return json.dumps(self._asdict()).encode() + b"\n"

    @classmethod
    def from_bytes(cls, data: bytes, where: str) -> State:
        """Parse a revision. Raises FormatError."""
        try:
            facts = json.loads(data)
            pending = {int(number): str(name) for number, name in facts["pending"].items()}
            numbers = [int(facts[name]) for name in ("revision", "epoch", "next")]
            holder = facts["holder"]
            for number, name in pending.items():
                match = PENDING.fullmatch(name)
                # It is removed in the end, so it must not be the name of anything else.
                if match is None or int(match[1]) != number:
                    raise ValueError(name)
            return cls(
                numbers[0],
                str(facts["writer"]),
                numbers[1],
                None if holder is None else str(holder),
                numbers[2],
                pending,
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise damaged("its state cannot be read", where) from None

    @classmethod
    def of_names(cls, names: list[str]) -> State | None:
        """Return the state of a ledger that has no revision; its epoch is the highest in a name.
        None if these are not the names of a ledger's objects. Raises FormatError."""
        found = segments(names)
        pending = [(match, name) for name in names if (match := PENDING.fullmatch(name))]
        if not found and not pending and not any(name.startswith("_job-") for name in names):
            return None
        epochs = [segment.version[0] for segment in found]
        epochs += [int(match[2] or 0) for match, _ in pending]
        numbers = {int(match[1]): name for match, name in pending}
        last = max([*numbers, *(segment.last for segment in found)], default=0)
        for segment in found:
            for number in numbers.keys() & range(segment.first, segment.last + 1):
                del numbers[number]  # settled, just before a kill
        return cls(epoch=max(epochs, default=0), next=last + 1, pending=numbers)


class LostClaimError(Exception):
    """Somebody else has changed the state."""


class Revisions:
    """The state of a ledger in a store. With ``claim``, this process holds the claim until
    ``release_own``."""

    def __init__(self, store: Store) -> None:
        self._store = store
        # The thread that renews the claim changes the state too, but only its revision.
        self._lock = threading.Lock()
        self.writer = random_bytes(8).hex()
        self._is_lost = False
        self._closing = threading.Event()
        self._renewal: threading.Thread | None = None
        self._held: State | None = None

    def current(self) -> State:
        """Return the state. Raises FileNotFoundError if there is no ledger, OSError, and
        FormatError."""
        state = self._held if self._renewal is not None else self._read()
        if state is None:
            raise FileNotFoundError(errno.ENOENT, _NO_LEDGER, self._store.url)
        return state

    def renewed(self, state: State) -> float:
        """Return when a state was written, in seconds since 1970."""
        return self._store.modified(_name(state.revision))

    def claim(self) -> State:
        """Take the claim, and renew it from now on. Raises BlockingIOError while another job holds
        it, and as ``Store.check`` and ``current``."""
        found = self._read() or State()
        holder = found.holder
        age = self._store.check(None if holder is None else _name(found.revision))
        if not found.revision:
            # Until now, a job of an earlier version may have been writing.
            found = self._read() or State()
            if found.revision:  # another job was faster
                return self.claim()
            if found.epoch:
                raise self.needs_import("it has batches, but no state")
        if holder is not None and age <= LEASE_SECONDS and not is_gone(holder):
            message = (
                f"{BUSY} ({process_name(holder)}, last seen {max(age, 0):.0f} s ago). If it is "
                f"dead, this ledger is free {LEASE_SECONDS:.0f} s after it was last seen, or "
                f"after: ags1 spark ledger release {self._store.url} {found.writer}"
            )
            raise BlockingIOError(errno.EAGAIN, message, self._store.url)
        try:
            epoch = {"epoch": found.epoch + 1, "holder": this_process()}
            self._held = self.changed(found, epoch)
        except LostClaimError:
            raise BlockingIOError(errno.EAGAIN, BUSY, self._store.url) from None
        self._renewal = threading.Thread(target=self._renew, name="ags1-claim", daemon=True)
        self._renewal.start()
        return self._held

    def release_own(self) -> None:
        """End the claim, if this process holds it."""
        if self._renewal is None:
            return
        self._closing.set()
        self._renewal.join()
        self._renewal = None
        # If this fails, others wait until the claim is old.
        with contextlib.suppress(OSError, FormatError):
            if not self._is_lost:
                self.change(holder=None)

    def change(self, **changes: Any) -> None:
        """Change the state, if this job holds the claim. Raises BlockingIOError if it has lost it,
        and OSError if the outcome is not known: then the next change tells."""
        with self._lock:
            if not self._is_lost:
                try:
                    assert self._held is not None
                    self._held = self.changed(self._held, changes)
                    return
                except LostClaimError:
                    self._is_lost = True
            message = (
                "another job has taken this ledger over, because this one had not renewed its "
                f"claim for {LEASE_SECONDS:.0f} s: run it again; what was prepared is in the ledger"
            )
            raise BlockingIOError(errno.EAGAIN, message, self._store.url)

    def changed(self, before: State, changes: Mapping[str, Any]) -> State:
        """Write and return the next revision. Raises LostClaimError if somebody else has made it,
        OSError and FormatError."""
        revision = before.revision + 1
        state = before._replace(revision=revision, writer=self.writer, **changes)
        try:
            create(self._store, _name(revision), state.to_bytes())
        except FileExistsError:
            found = self._read()
            # The answer to an earlier change was lost. The pending rows may not be those of this
            # change.
            if (
                found is not None
                and found.writer == self.writer
                and (found.pending == before.pending or changes.keys() <= {"holder"})
            ):
                return self.changed(found, changes)
            raise LostClaimError from None
        revisions = self._listed()
        if max(revisions, default=revision) > revision:
            raise LostClaimError
        old = [number for number in revisions if number <= revision - _REVISIONS]
        with contextlib.suppress(OSError):  # they stay until the next change
            self._store.remove(map(_name, old))
        return state

    def needs_import(self, what: str) -> FormatError:
        """Return the error of a ledger whose state does not fit its batches."""
        message = (
            f"the ledger is damaged ({what}): copy its batch-….parquet to a folder, and import "
        )
        message += "that into an empty ledger (ags1 spark ledger import)"
        return FormatError(message, file=self._store.url)

    def _read(self) -> State | None:
        """Return the state, None if there is no ledger. Raises FormatError, OSError."""
        tries_left = _TRIES
        while (newest := max(self._listed(), default=None)) is not None:
            name = _name(newest)
            try:
                return State.from_bytes(self._store.read(name), self._store.url_of(name))
            except FileNotFoundError:  # an old one by now
                tries_left -= 1
                if not tries_left:
                    raise
        return State.of_names(self._store.names())

    def _listed(self) -> list[int]:
        names = self._store.names(_STATE)
        return [int(match[1]) for name in names if (match := _REVISION.fullmatch(name))]

    def _renew(self) -> None:
        while not self._closing.wait(RENEWAL_SECONDS):
            try:
                self.change()
            except BlockingIOError:
                return
            except OSError:
                continue  # the next one may succeed


def _name(revision: int) -> str:
    return f"{_STATE}/{revision:012}.json"

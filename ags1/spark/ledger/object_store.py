"""A ledger that is a folder of an object storage (S3, Google, Azure), with these objects::

    batch-….parquet             settled rows, one or more batches each (``segments``)
    _pending-….parquet          rows whose files may not all have their names yet
    _job-<job id>.json          a job that is running, or was killed
    _cleared-<job id>-<ms>.json when what it had staged was removed, and its tasks may still run
    _staged-<job id>-….json     the uploads that it has begun
    _state/<revision>.json      who holds the claim, what is pending, the next number

**The state.** The object of the highest revision counts. A process that changes the state makes the
object of the next revision, by a write that fails if that object exists. So if two processes change
one revision, only one succeeds. Old revisions are removed, but never the highest. Therefore the
writer lists the revisions once more: if its own is the highest, its change counts; if not, its
write came so late that its revision had been removed already, and it has changed nothing. All other
objects have names that are used once. The state, or the version in a name, says whether an object
counts.

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
  else (``jobs.publishing.settle_pending``). Then nothing is left that the paused job could name.
- ``settle`` writes the settled rows, then changes the state. Until then the batch is pending to all
  readers. If both jobs wrote rows of one batch, those of the later epoch count.
- ``replace`` and ``compact`` write a file of the same rows with the version of their epoch, which
  yields to files of later epochs. Old files are removed only after a change of the state.
- ``begin``, ``end`` and the notes of uploads only make, or remove, objects with the job's own id.

**A kill at any step** leaves the state before or after the change, and objects that nobody reads.
The next holder removes them. Knows nothing of Spark or of storages of files.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from ..._gcm import random_bytes
from ...errors import FormatError
from .base import BUSY, JobNote
from .claims import Claim, is_gone, process_name, this_process
from .objects import Objects
from .rows import Batch, Row, damaged, read_parquet, write_parquet
from .segments import (
    NO_NOTE,
    Numbered,
    Segment,
    SegmentLedger,
    is_batch,
    job_note,
    read_batches,
    segment_name,
    segments,
    write_batches,
)

# Less than the minute for which a stream's commit waits.
LEASE_SECONDS = 45.0
RENEWAL_SECONDS = 10.0
# Revisions that stay for readers who have listed them already.
_REVISIONS = 8
_TRIES = 8
_STATE = "_state"
_REVISION = re.compile(r"(\d{12})\.json")
_PENDING = re.compile(r"_pending-(\d{12})\.(\d{6})-\d{6}\.parquet")
_JOB = re.compile(r"_job-([0-9a-f]+)\.json")
_CLEARED = re.compile(r"_cleared-([0-9a-f]+)-(\d{1,15})\.json")
_STAGED_IN_A_NOTE = 20_000

_NO_LEDGER = "there is no ledger: check its URL"


class _State(NamedTuple):
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
    def from_bytes(cls, data: bytes, where: str) -> _State:
        """Parse a revision. Raises FormatError."""
        try:
            facts = json.loads(data)
            pending = {int(number): str(name) for number, name in facts["pending"].items()}
            numbers = [int(facts[name]) for name in ("revision", "epoch", "next")]
            holder = facts["holder"]
            for number, name in pending.items():
                match = _PENDING.fullmatch(name)
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


class ObjectLedger(SegmentLedger):
    """A ledger below a URL. ``writing`` takes the claim, which one job at a time holds. Raises
    BlockingIOError while another job holds it, FileNotFoundError for reading if there is no ledger,
    and OSError for a storage without conditional writes."""

    def __init__(self, url: str, *, writing: bool) -> None:
        self._objects = Objects(url)
        self.location = self.own_folder = self._objects.url
        # The thread that renews the claim changes the state too, but only its revision.
        self._lock = threading.Lock()
        self._writer = random_bytes(8).hex()
        self._count = 0
        self._is_lost = False
        self._closing = threading.Event()
        self._renewal: threading.Thread | None = None
        found = self._read_state()
        if not writing:
            if found is None:
                raise FileNotFoundError(errno.ENOENT, _NO_LEDGER, url)
            return
        self._state = self._claim(found)
        try:
            self._remove_rest()
        except BaseException:
            self._release_own()
            raise
        self._renewal = threading.Thread(target=self._renew, name="ags1-claim", daemon=True)
        self._renewal.start()

    def close(self) -> None:
        if self._renewal is None:
            return
        self._closing.set()
        self._renewal.join()
        self._renewal = None
        self._release_own()

    def _release_own(self) -> None:
        # If this fails, others wait until the claim is old.
        with contextlib.suppress(OSError, FormatError):
            if not self._is_lost:
                self._change(holder=None)

    # -- batches

    def prepare(self, rows: Sequence[Row]) -> Batch:
        number = self._state.next
        epoch, count = self._version()
        name = f"_pending-{number:012}.{epoch:06}-{count:06}.parquet"
        out = io.BytesIO()
        write_parquet(out, rows)
        self._objects.create(name, out.getvalue())
        self._change(next=number + 1, pending={**self._state.pending, number: name})
        return Batch(number, rows)

    def settle(self, batch: Batch, rows: Sequence[Row]) -> None:
        others = dict(self._state.pending)
        name = others.pop(batch.number)
        self._put([(batch.number, rows)])
        self._change(pending=others)
        self._objects.remove([name])

    def pending(self) -> Iterator[Batch]:
        for number, name in sorted(self._current().pending.items()):
            with contextlib.suppress(FileNotFoundError):  # settled since
                data = pa.BufferReader(self._objects.read(name))
                yield Batch(number, read_parquet(data, Row._fields, self._objects.url_of(name)))

    def settled_up_to(self) -> int:
        state = self._current()
        return min(state.pending, default=state.next) - 1

    def how_to_forget(self, job_id: str) -> str:
        return f"run: ags1 spark ledger forget {self.location} {job_id}"

    def claim(self) -> Claim | None:
        state = self._current()
        if state.holder is None:
            return None
        renewed = self._objects.modified(_state_name(state.revision))
        return Claim(state.writer, int(renewed * 1000))

    def release(self, claim_id: str) -> None:
        state = self._current()
        if state.holder is None or state.writer != claim_id:
            super().release(claim_id)
        with contextlib.suppress(_LostClaimError):  # renewed, or ended, meanwhile
            self._changed(state, {"holder": None})

    # -- notes

    def begin(self, job_id: str, folder: str, *, sidecars: bool = False) -> None:
        note = {"folder": folder, "sidecars": sidecars, "writer": self._writer}
        data = json.dumps(note).encode() + b"\n"
        self._objects.create(f"_job-{job_id}.json", data)

    def note_cleared(self, job_id: str, note: JobNote) -> None:
        with contextlib.suppress(FileExistsError):  # of a job that has taken our claim over
            self._objects.create(f"_cleared-{job_id}-{note.cleared_ms}.json", self._writer.encode())

    def end(self, job_id: str) -> None:
        # The job's note last: while it is there, the next job looks for the other ones.
        self._objects.remove(self._staged_names(job_id))
        self._objects.remove(
            name
            for name in self._objects.names()
            if (match := _CLEARED.fullmatch(name)) and match[1] == job_id
        )
        self._objects.remove([f"_job-{job_id}.json"])

    def notes(self) -> dict[str, JobNote]:
        notes: dict[str, JobNote] = {}
        names = self._objects.names()
        cleared = {match[1]: int(match[2]) for name in names if (match := _CLEARED.fullmatch(name))}
        for name in names:
            if match := _JOB.fullmatch(name):
                with contextlib.suppress(FileNotFoundError, *NO_NOTE):
                    note = job_note(self._objects.read(name))
                    notes[match[1]] = note._replace(cleared_ms=cleared.get(match[1], 0))
        return notes

    def note_staged(self, job_id: str, number: int, staged: Mapping[str, str]) -> None:
        begun = list(staged.items())
        for part, first in enumerate(range(0, len(begun), _STAGED_IN_A_NOTE)):
            data = json.dumps(begun[first : first + _STAGED_IN_A_NOTE]).encode() + b"\n"
            self._objects.create(f"_staged-{job_id}-{number:06}-{part}.json", data)

    def forget_staged(self, job_id: str, number: int) -> None:
        self._objects.remove(self._staged_names(f"{job_id}-{number:06}"))

    def staged(self, job_id: str) -> list[tuple[str, str]]:
        staged: list[tuple[str, str]] = []
        for data in self._objects.read_all(self._staged_names(job_id)):
            with contextlib.suppress(ValueError, TypeError, RecursionError):
                staged += [(str(target), str(shared)) for target, shared in json.loads(data)]
        return staged

    def _staged_names(self, start: str) -> list[str]:
        names = self._objects.names()
        return sorted(name for name in names if name.startswith(f"_staged-{start}-"))

    # -- files of settled batches

    def _segments(self) -> list[Segment]:
        # The state first: a batch that is settled afterwards belongs to a later state.
        state = self._current()
        return [
            segment
            for segment in segments(self._objects.names())
            if segment.last < state.next
            and not any(segment.first <= number <= segment.last for number in state.pending)
        ]

    def _read(self, segment: Segment, columns: Sequence[str]) -> list[tuple[int, list[Row]]]:
        data = pa.BufferReader(self._objects.read(segment.name))
        return list(read_batches(data, segment, columns, self._objects.url_of(segment.name)))

    def _write(self, batches: Sequence[Numbered], old: Sequence[Segment]) -> None:
        self._put(batches)
        self._change()  # it fails if the claim is lost, and then nothing may be removed
        self._objects.remove([segment.name for segment in old])

    def _put(self, batches: Sequence[Numbered]) -> None:
        out = io.BytesIO()
        write_batches(out, batches)
        name = segment_name(batches[0][0], batches[-1][0], self._version())
        self._objects.create(name, out.getvalue())

    def _version(self) -> tuple[int, int]:
        self._count += 1
        return self._state.epoch, self._count

    def _remove_rest(self) -> None:
        """Remove objects that nobody reads: earlier holders of the claim have left them. Raises
        FormatError if the state is older than the batches: their numbers would be given again."""
        names = self._objects.names()
        found = segments(names)
        if found and found[-1].last >= self._state.next:
            raise self._needs_import("its state is older than its batches")
        counting = {segment.name for segment in found}
        pending = set(self._state.pending.values())
        rest = [name for name in names if is_batch(name) and name not in counting]
        for name in names:
            match = _PENDING.fullmatch(name)
            if match and name not in pending and int(match[2]) < self._state.epoch:
                rest.append(name)
        self._objects.remove(rest)

    # -- the state

    def _current(self) -> _State:
        if self._renewal is not None:
            return self._state
        state = self._read_state()
        if state is None:
            raise FileNotFoundError(errno.ENOENT, _NO_LEDGER, self.location)
        return state

    def _read_state(self) -> _State | None:
        """Return the state, None if there is no ledger. Raises FormatError, OSError."""
        tries_left = _TRIES
        while (newest := max(self._revisions(), default=None)) is not None:
            name = _state_name(newest)
            try:
                return _State.from_bytes(self._objects.read(name), self._objects.url_of(name))
            except FileNotFoundError:  # an old one by now
                tries_left -= 1
                if not tries_left:
                    raise
        if any(is_batch(name) for name in self._objects.names()):
            raise self._needs_import("it has batches, but no state")
        return None

    def _needs_import(self, what: str) -> FormatError:
        said = f"the ledger is damaged ({what}): copy its files to a folder, and import that into "
        return FormatError(f"{said}an empty ledger (ags1 spark ledger import)", file=self.location)

    def _revisions(self) -> list[int]:
        names = self._objects.names(_STATE)
        return [int(match[1]) for name in names if (match := _REVISION.fullmatch(name))]

    def _claim(self, found: _State | None) -> _State:
        """Take the claim. Raises BlockingIOError while another job holds it."""
        holder = None if found is None else found.holder
        age = self._objects.check(_state_name(found.revision) if found and holder else None)
        if holder is not None and age <= LEASE_SECONDS and not is_gone(holder):
            said = (
                f"{BUSY} ({process_name(holder)}, last seen {max(age, 0):.0f} s ago). If it is "
                f"dead, this ledger is free {LEASE_SECONDS:.0f} s after it was last seen, or "
                f"after: ags1 spark ledger release {self.location} {found.writer if found else ''}"
            )
            raise BlockingIOError(errno.EAGAIN, said, self.location)
        found = found or _State()
        try:
            return self._changed(found, {"epoch": found.epoch + 1, "holder": this_process()})
        except _LostClaimError:
            raise BlockingIOError(errno.EAGAIN, BUSY, self.location) from None

    def _change(self, **changes: Any) -> None:
        """Change the state, if this job holds the claim. Raises BlockingIOError if it has lost it,
        and OSError if the outcome is not known: then the next change tells."""
        with self._lock:
            if not self._is_lost:
                try:
                    self._state = self._changed(self._state, changes)
                    return
                except _LostClaimError:
                    self._is_lost = True
            said = (
                "another job has taken this ledger over, because this one had not renewed its "
                f"claim for {LEASE_SECONDS:.0f} s: run it again; what was prepared is in the ledger"
            )
            raise BlockingIOError(errno.EAGAIN, said, self.location)

    def _changed(self, before: _State, changes: Mapping[str, Any]) -> _State:
        """Return the next revision. Raises _LostClaimError if somebody else has made it."""
        revision = before.revision + 1
        state = before._replace(revision=revision, writer=self._writer, **changes)
        try:
            self._objects.create(_state_name(revision), state.to_bytes())
        except FileExistsError:
            found = self._read_state()
            # The answer to an earlier change was lost. The pending rows may not be those of this
            # change.
            if (
                found is not None
                and found.writer == self._writer
                and (found.pending == before.pending or changes.keys() <= {"holder"})
            ):
                return self._changed(found, changes)
            raise _LostClaimError from None
        revisions = self._revisions()
        if max(revisions, default=revision) > revision:
            raise _LostClaimError
        old = [number for number in revisions if number <= revision - _REVISIONS]
        with contextlib.suppress(OSError):  # they stay until the next change
            self._objects.remove(map(_state_name, old))
        return state

    def _renew(self) -> None:
        while not self._closing.wait(RENEWAL_SECONDS):
            try:
                self._change()
            except BlockingIOError:
                return
            except OSError:
                continue  # the next one may succeed


class _LostClaimError(Exception):
    """Somebody else has changed the state."""


def _state_name(revision: int) -> str:
    return f"{_STATE}/{revision:012}.json"

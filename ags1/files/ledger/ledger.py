"""``Ledger``: what became of each file of a job, and its wrapped key.

The rule: the ledger stores the wrapped key of a file before the file gets its name. So there is no
file without its key. A file has one key for one content: whoever writes a file again does it under
a fresh key, with a new row. These are the steps of a batch, and each of them is durable and whole
when its method returns, or did not happen::

    prepare(rows)         the rows, with their keys, are pending
      files get their names (``ags1.spark.jobs.publishing``)
    settle(batch, rows)   the same batch, as it turned out, takes the place of the pending one

A job may be killed between any two steps, or in one. Then the next job that opens the ledger for
writing sees its batches in ``pending`` and its notes in ``notes`` and ``staged``, and brings them
to their end. Numbers of batches grow in the order of ``prepare``. A settled batch never changes,
except that ``replace_all`` wraps its keys again. ``compact`` changes only how batches are stored.

These are the objects of a ledger, in a folder or an object storage (``store``). Readers of Parquet
folders pass over names that begin with ``_``::

    batch-….parquet             settled rows, one or more batches each (``segments``)
    _pending-….parquet          rows whose files may not all have their names yet
    _job-<job id>.json          a job that is running, or was killed
    _cleared-<job id>-<ms>.json when what it had staged was removed, and its tasks may still run
    _staged-<job id>-….json     the uploads that it has begun; they are aborted with it
    _state/<revision>.json      who holds the claim, what is pending, the next number (``state``)

Knows nothing of Spark or of storages of files.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

from ..paths import local_path
from .rows import DONE, REMOVED, Batch, Row, read_table, rows_to_table, table_to_rows, to_parquet
from .segments import (
    Numbered,
    Segment,
    batches_to_bytes,
    is_batch,
    read_batches,
    segment_name,
    segments,
)
from .state import PENDING, LostClaimError, Revisions
from .store import Store, create

T = TypeVar("T")

# A merged file has about so many rows: rewrapping rewrites it as a whole.
MERGED_ROWS = 200_000
# How often files are listed again, if others take their places while they are read.
_TRIES = 8
# URLs and the ids of uploads have a few hundred bytes each.
_STAGED_IN_A_NOTE = 20_000
_JOB = re.compile(r"_job-([0-9a-f]+)\.json")
_CLEARED = re.compile(r"_cleared-([0-9a-f]+)-(\d{1,15})\.json")
# What an object raises that is no note.
_NO_NOTE = (ValueError, KeyError, TypeError, AttributeError, RecursionError)

# The ledgers of earlier versions could be tables.
_TABLE = "iceberg:"
_TABLES_ROWS = (
    "a ledger is a folder or a URL, and no longer a table. Write the rows of the table to a file "
    "(ags1 table scan TABLE --catalog CATALOG --filter \"entry = 'settled'\" -o FILE.parquet), and "
    "copy them into a ledger (ags1 spark ledger import LEDGER FILE.parquet)"
)
# URLs with one slash: dbfs:/ledger, or s3:/bucket/ledger, which pathlib makes of s3://.
_ONE_SLASH = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/(?!/)")


class JobNote(NamedTuple):
    """What a job notes when it begins: the folder in and below which it stages files, and whether
    each file that it names gets a sidecar. ``cleared_ms`` is the time when the staged files of a
    dead job were first removed (0: not yet). After that, the note stays for a while, because tasks
    of the job may still run."""

    folder: str
    sidecars: bool = False
    cleared_ms: int = 0


class Claim(NamedTuple):
    """A job's claim to write to a ledger. ``renewed_ms`` is the time of its last renewal, in ms
    since 1970 by the storage's clock."""

    claim_id: str
    renewed_ms: int


class Facts(Protocol[T]):
    """What a dictionary of facts has to support; ``DigestMap`` needs less memory."""

    def __setitem__(self, target: str, fact: T, /) -> None: ...

    def pop(self, target: str, default: None, /) -> T | None: ...


class Ledger:
    """A ledger, open for reading or for writing. ``open_ledger`` makes one.

    A ledger has one writer at a time. A job that ended without ``close`` does not keep others out
    for ever (``state``).

    ``location`` is the text that opens the ledger again: a folder of this machine, or a URL. No
    sources are searched for in it. All methods raise OSError if the ledger cannot be reached, and
    FormatError if it is damaged.
    """

    def __init__(self, store: Store, *, writing: bool) -> None:
        self._store = store
        self.location = store.url
        self._revisions = Revisions(store)
        self._count = 0
        if not writing:
            self._revisions.current()
            return
        self._revisions.claim()
        try:
            self._remove_rest()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let other jobs write. What is pending stays pending."""
        self._revisions.release_own()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # -- the state of batches

    def prepare(self, rows: Sequence[Row]) -> Batch:
        """Store rows as pending."""
        state = self._revisions.current()
        epoch, count = self._version()
        name = f"_pending-{state.next:012}.{epoch:06}-{count:06}.parquet"
        create(self._store, name, to_parquet(rows_to_table(rows)))
        self._revisions.change(next=state.next + 1, pending={**state.pending, state.next: name})
        return Batch(state.next, rows)

    def settle(self, batch: Batch, rows: Sequence[Row]) -> None:
        """Replace a pending batch by a settled one with ``rows``, which say what became of it."""
        others = dict(self._revisions.current().pending)
        name = others.pop(batch.number)
        self._put([(batch.number, rows)])
        self._revisions.change(pending=others)
        self._store.remove([name])

    def pending(self) -> Iterator[Batch]:
        """Yield the pending batches, oldest first: those that a killed job left, and to readers
        also those that a job is about to settle. Read the settled batches afterwards, not before:
        otherwise a batch that is settled in between is missed."""
        for number, name in sorted(self._revisions.current().pending.items()):
            with contextlib.suppress(FileNotFoundError):  # settled since
                table = read_table(self._store.read(name), Row._fields, self._store.url_of(name))
                yield Batch(number, table_to_rows(table, Row._fields, self._store.url_of(name)))

    def numbers(self) -> list[int]:
        """Return the numbers of the settled batches, oldest first."""
        return [n for segment in self._segments() for n in range(segment.first, segment.last + 1)]

    def files(self) -> list[str]:
        """Return the names of the files of the settled batches. They change with every row and key,
        and when files are merged."""
        return [segment.name for segment in self._segments()]

    def batches(self, columns: Sequence[str] = Row._fields) -> Iterator[tuple[int, list[Row]]]:
        """Yield number and rows of each settled batch, oldest first, with None in columns that are
        not asked for."""
        tries_left = _TRIES
        after = 0
        while True:
            try:
                for segment in self._segments():
                    if segment.last <= after:
                        continue
                    for number, rows in self._read(segment, columns):
                        if after < number:
                            after = number
                            yield number, rows
                return
            except FileNotFoundError:  # merged or wrapped again since it was listed
                tries_left -= 1
                if not tries_left:
                    raise

    def settled_groups(self, most: int) -> Iterator[list[tuple[int, list[Row]]]]:
        """Yield number and rows of all settled batches, oldest first, small batches together: up to
        about ``most`` rows, or one batch."""
        group: list[tuple[int, list[Row]]] = []
        for number, rows in self.batches():
            if group and sum(len(batch) for _, batch in group) + len(rows) > most:
                yield group
                group = []
            group.append((number, rows))
        yield group

    def replace_all(self, batches: Mapping[int, Sequence[Row]]) -> None:
        """Replace settled batches by the same rows with keys that were wrapped again, each batch
        whole."""
        for segment in self._segments():
            if not batches.keys().isdisjoint(range(segment.first, segment.last + 1)):
                old = self._read(segment, Row._fields)
                new = [(number, batches.get(number, rows)) for number, rows in old]
                self._write(new, [segment])

    def compact(self) -> tuple[int, int]:
        """Store settled batches in fewer files. Rows and numbers of batches do not change. Needs a
        ledger that is open for writing. Return the number of files before and after."""
        state = self._revisions.current()
        until = min(state.pending, default=state.next)
        present = [segment for segment in self._segments() if segment.last < until]
        before = len(present)
        files = 0
        while present:
            run = [present.pop(0)]
            batches: list[Numbered] = list(self._read(run[0], Row._fields))
            while (
                present
                and present[0].first == run[-1].last + 1
                and sum(len(rows) for _, rows in batches) < MERGED_ROWS
            ):
                run.append(present.pop(0))
                batches += self._read(run[-1], Row._fields)
            if len(run) > 1:
                self._write(batches, run)
            files += 1
        return before, files

    def claim(self) -> Claim | None:
        """Return the claim of the job that writes; None if none does."""
        state = self._revisions.current()
        if state.holder is None:
            return None
        return Claim(state.writer, int(self._revisions.renewed(state) * 1000))

    def release(self, claim_id: str) -> None:
        """End the claim of a job that is dead: the next job takes over what it has left. If the job
        is alive, its next step fails. Raises OSError if there is no such claim."""
        state = self._revisions.current()
        if state.holder is None or state.writer != claim_id:
            message = f"the ledger has no claim of a job {claim_id}: see ags1 spark ledger info"
            raise OSError(errno.ENOENT, message, self.location)
        with contextlib.suppress(LostClaimError):  # renewed, or ended, meanwhile
            self._revisions.changed(state, {"holder": None})

    # -- notes of what a job has begun

    def begin(self, job_id: str, folder: str, *, sidecars: bool = False) -> None:
        """Note that a job has begun (``JobNote``)."""
        note = {"folder": folder, "sidecars": sidecars, "writer": self._revisions.writer}
        create(self._store, f"_job-{job_id}.json", _json(note))

    def note_cleared(self, job_id: str, note: JobNote) -> None:
        """Note ``cleared_ms`` in the note of a job, which has the rest already."""
        with contextlib.suppress(FileExistsError):  # of a job that has taken our claim over
            name = f"_cleared-{job_id}-{note.cleared_ms}.json"
            create(self._store, name, self._revisions.writer.encode())

    def end(self, job_id: str) -> None:
        """Note that nothing that a job staged is left. It is no error if there is no note."""
        # The job's note last: while it is there, the next job looks for the other ones.
        self._store.remove(self._noted(f"_staged-{job_id}-"))
        self._store.remove(self._noted(f"_cleared-{job_id}-"))
        self._store.remove([f"_job-{job_id}.json"])

    def notes(self) -> dict[str, JobNote]:
        """Return the notes of jobs that did not end, by job id."""
        notes: dict[str, JobNote] = {}
        names = self._store.names()
        cleared = {match[1]: int(match[2]) for name in names if (match := _CLEARED.fullmatch(name))}
        for name in names:
            if match := _JOB.fullmatch(name):
                with contextlib.suppress(FileNotFoundError, *_NO_NOTE):
                    note = json.loads(self._store.read(name))
                    sidecars = note.get("sidecars") is True
                    # In a folder, earlier versions have the time here.
                    at = cleared.get(match[1], int(note.get("cleared_ms", 0)))
                    notes[match[1]] = JobNote(str(note["folder"]), sidecars, at)
        return notes

    def killed(self) -> dict[str, str]:
        """Return the folders of the jobs in ``notes`` that have not been cleared."""
        notes = self.notes().items()
        return {job_id: note.folder for job_id, note in notes if not note.cleared_ms}

    def note_staged(self, job_id: str, number: int, staged: Mapping[str, str]) -> None:
        """Note the uploads that wave ``number`` of a job has begun, by target: their names do not
        tell which job they belong to."""
        begun = list(staged.items())
        for part, first in enumerate(range(0, len(begun), _STAGED_IN_A_NOTE)):
            data = _json(begun[first : first + _STAGED_IN_A_NOTE])
            create(self._store, f"_staged-{job_id}-{number:06}-{part}.json", data)

    def forget_staged(self, job_id: str, number: int) -> None:
        """Note that no upload of a wave is left. It is no error if there is no note."""
        self._store.remove(self._noted(f"_staged-{job_id}-{number:06}-"))

    def staged(self, job_id: str) -> list[tuple[str, str]]:
        """Return the uploads that a job has noted: (target, what its storage calls it) each."""
        staged: list[tuple[str, str]] = []
        for name in self._noted(f"_staged-{job_id}-"):
            with contextlib.suppress(*_NO_NOTE):
                noted = json.loads(self._store.read(name))
                staged += [(str(target), str(shared)) for target, shared in noted]
        return staged

    def _noted(self, start: str) -> list[str]:
        return sorted(name for name in self._store.names() if name.startswith(start))

    # -- rows

    def rows(self, columns: Sequence[str] = Row._fields, *, pending: bool = False) -> list[Row]:
        """Return the settled rows, oldest first, with None in columns that are not asked for;
        ``pending`` adds the pending ones, in the order of their batches."""
        # Before the settled ones, so that a batch which is settled meanwhile is not missed.
        batches: dict[int, Sequence[Row]] = dict(self.pending()) if pending else {}
        batches.update(self.batches(columns))
        return [row for number in sorted(batches) for row in batches[number]]

    def done(
        self, operation: str, columns: Sequence[str] = Row._fields, *, below: str = ""
    ) -> dict[str, Row]:
        """Return by target the newest row of each file that is done and was not removed since.
        ``below``: only targets that begin with this text."""
        newest: dict[str, Row] = {}
        self.facts(newest, operation, columns, lambda row: row, below=below)
        return newest

    def facts(
        self,
        newest: Facts[T],
        operation: str,
        columns: Sequence[str],
        fact_of: Callable[[Row], T],
        *,
        below: str = "",
    ) -> None:
        """Put into ``newest`` what ``fact_of`` makes of each row that ``done`` returns. Besides
        that, one batch at a time is in memory."""
        names = [*columns, "operation", "status", "target"]
        for _, rows in self.batches(names):
            for row in rows:
                if row.operation != operation or not row.target.startswith(below):
                    continue
                if row.status == DONE:
                    newest[row.target] = fact_of(row)
                elif row.status == REMOVED:
                    newest.pop(row.target, None)

    # -- files of settled batches

    def _segments(self) -> list[Segment]:
        # The state first: a batch that is settled afterwards belongs to a later state.
        state = self._revisions.current()
        return [
            segment
            for segment in segments(self._store.names())
            if segment.last < state.next
            and not any(segment.first <= number <= segment.last for number in state.pending)
        ]

    def _read(self, segment: Segment, columns: Sequence[str]) -> list[tuple[int, list[Row]]]:
        data = self._store.read(segment.name)
        return read_batches(data, segment, columns, self._store.url_of(segment.name))

    def _write(self, batches: Sequence[Numbered], old: Sequence[Segment]) -> None:
        """Write a file with all batches of the files ``old``, which takes their place."""
        self._put(batches)
        self._revisions.change()  # fails if the claim is lost, and then nothing may be removed
        self._store.remove([segment.name for segment in old])

    def _put(self, batches: Sequence[Numbered]) -> None:
        name = segment_name(batches[0][0], batches[-1][0], self._version())
        create(self._store, name, batches_to_bytes(batches))

    def _version(self) -> tuple[int, int]:
        self._count += 1
        return self._revisions.current().epoch, self._count

    def _remove_rest(self) -> None:
        """Remove objects that nobody reads: earlier holders of the claim have left them. Raises
        FormatError if the state is older than the batches: their numbers would be given again."""
        state = self._revisions.current()
        names = self._store.names()
        found = segments(names)
        if found and found[-1].last >= state.next:
            raise self._revisions.needs_import("its state is older than its batches")
        counting = {segment.name for segment in found}
        pending = set(state.pending.values())
        rest = [name for name in names if is_batch(name) and name not in counting]
        for name in names:
            match = PENDING.fullmatch(name)
            if match and name not in pending and int(match[2] or 0) < state.epoch:
                rest.append(name)
        self._store.remove(rest)


def ledger_location(text: str | os.PathLike[str]) -> str:
    """Return the text of a ledger in the form that means the same in any current folder. Raises
    OSError for a URL with one slash: taken as a path, it would name a folder below the current one,
    and the only copy of the keys would be there. Raises OSError for a table too."""
    path = os.fspath(text)
    if path.startswith(_TABLE):
        raise OSError(errno.EINVAL, _TABLES_ROWS, path)
    here = local_path(path)
    if here is None:
        return path.rstrip("/")
    if _ONE_SLASH.match(here):
        message = "this is neither a folder nor a URL: write two slashes behind the colon"
        raise OSError(errno.EINVAL, message, path)
    return os.path.abspath(here)


def check_ledger(text: str | os.PathLike[str]) -> None:
    """Raise OSError unless a ledger exists. Costs a moment, so that it can be called before Spark
    starts."""
    open_ledger(text, writing=False).close()


def open_ledger(text: str | os.PathLike[str], *, writing: bool, durable: bool = True) -> Ledger:
    """Open the ledger that a text names: a folder, or the URL of one in an object storage or HDFS.
    With ``writing``, it is made if it does not exist, and no other job may write to it until it is
    closed. ``durable`` syncs a folder's files to the disk.

    Raises BlockingIOError while another job writes, OSError, also for a storage without conditional
    writes, FormatError for a file there that is not a ledger's, and KmsAccessDeniedError for a
    folder that other users may write to: jobs move and remove the files that a ledger names.
    """
    return Ledger(Store(ledger_location(text), durable=durable), writing=writing)


def _json(note: object) -> bytes:
    return json.dumps(note).encode() + b"\n"

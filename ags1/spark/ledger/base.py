"""``Ledger``: what a ledger of any kind promises to a job.

The rule: the ledger stores the wrapped key of a file before the file gets its name. So there is no
file without its key. A file has one key for one content: whoever writes a file again does it under
a fresh key, with a new row. These are the steps of a batch, and each of them is durable and whole
when its method returns, or did not happen::

    prepare(rows)         the rows, with their keys, are pending
      files get their names (``jobs.publishing``)
    settle(batch, rows)   the same batch, as it turned out, takes the place of the pending one

A job may be killed between any two steps, or in one. Then the next job that opens the ledger for
writing sees its batches in ``pending`` and its notes in ``notes`` and ``staged``, and brings them
to their end. Numbers of batches grow in the order of ``prepare``. A settled batch never changes,
except that ``replace`` wraps its keys again. ``compact`` changes only how batches are stored. Knows
nothing of Spark or of storages of files.
"""

from __future__ import annotations

import errno
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

from .claims import Claim
from .rows import DONE, REMOVED, Batch, Row

T = TypeVar("T")

BUSY = (
    "another job is writing to this ledger: wait for it, or give each folder of targets a ledger "
    "of its own"
)


class JobNote(NamedTuple):
    """What a job notes when it begins: the folder in and below which it stages files, and whether
    each file that it names gets a sidecar. ``cleared_ms`` is the time when the staged files of a
    dead job were first removed (0: not yet). After that, the note stays for a while, because tasks
    of the job may still run."""

    folder: str
    sidecars: bool = False
    cleared_ms: int = 0


class Facts(Protocol[T]):
    """What a dictionary of facts has to support; ``DigestMap`` needs less memory."""

    def __setitem__(self, target: str, fact: T, /) -> None: ...

    def pop(self, target: str, default: None, /) -> T | None: ...


class Ledger(ABC):
    """A ledger, open for reading or for writing. ``choice.open_ledger`` makes one.

    A ledger has one writer at a time. A job that ended without ``close`` does not keep others out
    for ever; each kind says how long, and how a user ends that.

    ``location`` is the text that opens the ledger again. ``own_folder`` is the folder of this
    machine, or the URL, in which no sources are searched for; None if there is none. All methods
    raise OSError if the ledger cannot be reached, and FormatError if it is damaged.
    """

    location: str
    own_folder: str | None = None

    # -- the state of batches

    @abstractmethod
    def prepare(self, rows: Sequence[Row]) -> Batch:
        """Store rows as pending."""

    @abstractmethod
    def settle(self, batch: Batch, rows: Sequence[Row]) -> None:
        """Replace a pending batch by a settled one with ``rows``, which say what became of it."""

    @abstractmethod
    def pending(self) -> Iterator[Batch]:
        """Yield the pending batches, oldest first: those that a killed job left, and to readers
        also those that a job is about to settle. Read the settled batches afterwards, not before:
        otherwise a batch that is settled in between is missed."""

    @abstractmethod
    def numbers(self) -> list[int]:
        """Return the numbers of the settled batches, oldest first."""

    @abstractmethod
    def rows_between(
        self, after: int, until: int | None = None, columns: Sequence[str] = Row._fields
    ) -> Iterator[tuple[int, list[Row]]]:
        """Yield number and rows of each settled batch above ``after`` and up to ``until``, oldest
        first, with None in columns that are not asked for."""

    @abstractmethod
    def settled_up_to(self) -> int:
        """Return the number of the newest settled batch with no pending batch before it, 0 if there
        is none. Every batch that is settled later has a higher number."""

    @abstractmethod
    def replace(self, number: int, rows: Sequence[Row]) -> None:
        """Replace a settled batch by the same rows with keys that were wrapped again."""

    def replace_all(self, batches: Mapping[int, Sequence[Row]]) -> None:
        """Replace settled batches as ``replace`` does, each one whole."""
        for number, rows in batches.items():
            self.replace(number, rows)

    def claim(self) -> Claim | None:
        """Return the claim of the job that writes. A ledger with a lock of the operating system has
        none."""
        return None

    def release(self, claim_id: str) -> None:
        """End the claim of a job that is dead: the next job takes over what it has left. If the job
        is alive, its next step fails. Raises OSError if there is no such claim."""
        message = f"the ledger has no claim of a job {claim_id}: see ags1 spark ledger info"
        raise OSError(errno.ENOENT, message, self.location)

    @abstractmethod
    def compact(self) -> tuple[int, int]:
        """Store settled batches in fewer files. Rows and numbers of batches do not change. Needs a
        ledger that is open for writing. Return the number of files before and after."""

    # -- notes of what a job has begun

    @abstractmethod
    def begin(self, job_id: str, folder: str, *, sidecars: bool = False) -> None:
        """Note that a job has begun (``JobNote``)."""

    @abstractmethod
    def note_cleared(self, job_id: str, note: JobNote) -> None:
        """Note ``cleared_ms`` in the note of a job, which has the rest already."""

    @abstractmethod
    def end(self, job_id: str) -> None:
        """Note that nothing that a job staged is left. It is no error if there is no note."""

    @abstractmethod
    def notes(self) -> dict[str, JobNote]:
        """Return the notes of jobs that did not end, by job id."""

    def killed(self) -> dict[str, str]:
        """Return the folders of the jobs in ``notes`` that have not been cleared."""
        notes = self.notes().items()
        return {job_id: note.folder for job_id, note in notes if not note.cleared_ms}

    @abstractmethod
    def note_staged(self, job_id: str, number: int, staged: Mapping[str, str]) -> None:
        """Note the uploads that wave ``number`` of a job has begun, by target: their names do not
        tell which job they belong to."""

    @abstractmethod
    def forget_staged(self, job_id: str, number: int) -> None:
        """Note that no upload of a wave is left. It is no error if there is no note."""

    @abstractmethod
    def staged(self, job_id: str) -> list[tuple[str, str]]:
        """Return the uploads that a job has noted: (target, what its storage calls it) each."""

    @abstractmethod
    def how_to_forget(self, job_id: str) -> str:
        """Return what a user has to do to give up a killed job whose folder is lost for good: the
        end of a sentence, after "if it is lost for good,"."""

    # -- what all kinds have in common

    def rows(self, columns: Sequence[str] = Row._fields, *, pending: bool = False) -> list[Row]:
        """Return the settled rows, oldest first, with None in columns that are not asked for;
        ``pending`` adds the pending ones, in the order of their batches."""
        # Before the settled ones, so that a batch which is settled meanwhile is not missed.
        batches: dict[int, Sequence[Row]] = dict(self.pending()) if pending else {}
        batches.update(self.rows_between(0, None, columns))
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
        for _, rows in self.rows_between(0, None, names):
            for row in rows:
                if row.operation != operation or not row.target.startswith(below):
                    continue
                if row.status == DONE:
                    newest[row.target] = fact_of(row)
                elif row.status == REMOVED:
                    newest.pop(row.target, None)

    @abstractmethod
    def close(self) -> None:
        """Let other jobs write. What is pending stays pending."""

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

"""What a job needs of a storage.

There are three: mounted folders (``local``), S3 (``s3``), and every other file system of fsspec
(``remote``). Each keeps the same promise: a target appears whole, after the ledger has its key, and
no two attempts at a piece of work write to the same file. No I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol, TypeAlias

from ...errors import Ags1Error
from ..ledger import Row
from .pieces import Item, Piece

CHANGED = "the file changed while it was read: run the job again"
# Requests at a time, if each one mostly waits.
REQUESTS = 32
# Tells the status of a target; None if there is no target.
StatusOf: TypeAlias = "Callable[[str], Status | None]"


class NothingStagedError(OSError):
    """No file can ever come of a row: what it names is gone, or no job has staged it."""


class UnknownOutcomeError(Ags1Error):
    """A file may have its name, or may still get it: its row stays pending, with its key."""


class SourceFile(NamedTuple):
    """A file that the paths of a job mean. ``relative_path`` is its path below the folder that was
    given, or its name if the file itself was given; ``size`` is bytes; ``version`` changes with the
    file (as in ``Row.source_version``), "" if nothing tells."""

    path: str
    relative_path: str
    size: int
    version: str


class Problem(NamedTuple):
    """A path that could not be listed, and why."""

    path: str
    error: OSError


class Status(NamedTuple):
    """A file's size (bytes; -1 if it is not a regular file) and version."""

    size: int
    version: str


class Attempt(NamedTuple):
    """One attempt of a job at a piece. No other attempt has its ``name``; ``number`` counts the
    attempts at the piece."""

    job_id: str
    name: str
    number: int


class Staging(NamedTuple):
    """What a storage is told of a job before it stages files. ``seals``: the job encrypts;
    ``durable``: files are synced before the ledger has them as done."""

    job_id: str
    root: str
    seals: bool
    durable: bool


class Source(Protocol):
    """A file that is open for reading. ``fd`` is its descriptor, or -1; ``mode`` has the permission
    bits for its target."""

    fd: int
    size: int
    version: str
    mode: int

    def read(self, offset: int, size: int) -> bytes:
        """Return ``size`` bytes at ``offset``, fewer at the end. Raises OSError, Ags1Error."""
        ...

    def check_unchanged(self) -> None:
        """Raise Ags1Error if the file has changed since it was opened."""
        ...


class Output(Protocol):
    """What an attempt writes to, from its piece's first byte on. ``fd`` is a descriptor of the
    whole file, or -1. After it is closed, ``staged`` tells the driver where the bytes are."""

    fd: int
    staged: str

    def write(self, data: bytes | memoryview) -> None:
        """Append ``data``: all of a piece, or a run of ``Piece.unit`` blocks. Raises OSError."""
        ...


class Storage(Protocol):
    """A storage. Its methods raise OSError, whatever its own errors are.

    ``is_remote``: each request mostly waits, so many are sent at a time. Only the storage itself
    knows the meaning of what ``stage`` returns for an item, and of an output's ``staged``.
    """

    is_remote: bool

    def absolute(self, path: str) -> str:
        """Return the one form that a path has in the ledger."""
        ...

    def holds(self, root: str, target: str) -> bool:
        """Whether a target lies in the folder ``root``, under the name that a listing gives it."""
        ...

    def find(
        self, source: str, passed_over: Collection[str], pool: Executor
    ) -> Iterator[SourceFile | Problem]:
        """Yield the files that a path, a pattern or a folder means."""
        ...

    def statuses(self, folder: str, count: int, *, follow: bool) -> StatusOf:
        """Return what tells the status of files below a folder, about ``count`` of them.
        ``follow``: follow links."""
        ...

    def make_root(self, root: str) -> None:
        """Make the folder of a job's targets, or check that it can be used."""
        ...

    def mark(self, job_id: str, root: str, *, durable: bool) -> None:
        """Leave a mark of the job in the folder of its targets, if that may be a mount: without the
        mark, an unmounted folder would look like one whose files are lost."""
        ...

    def has_mark(self, job_id: str, root: str) -> bool:
        """Whether the folder has the mark of the job."""
        ...

    def remove_mark(self, job_id: str, root: str) -> None:
        """Remove a job's mark. A mark that cannot be removed stays."""
        ...

    def unit(self, plaintext_size: int) -> int:
        """Return the number of blocks of which the ranges that tasks write of one file have to be
        a multiple; 0 if only one task can write a file."""
        ...

    def stage(
        self, staging: Staging, items: Sequence[Item], cut: Collection[int]
    ) -> Mapping[int, str | OSError | None]:
        """Prepare what tasks will write to. Return, by the item's number, what the attempts at it
        share, or why it cannot be written. ``cut`` are the items that several tasks write."""
        ...

    def open(self, path: str, size: int, version: str) -> AbstractContextManager[Source]:
        """Open a file that was listed with that size and version."""
        ...

    def output(
        self, piece: Piece, attempt: Attempt, mode: int, begin: int
    ) -> AbstractContextManager[Output]:
        """Open what an attempt writes to; if writing fails, it is removed. ``begin`` is the piece's
        offset in the target."""
        ...

    def sync(self, staged: Sequence[str]) -> None:
        """Sync what attempts have written to the disk."""
        ...

    def gather(
        self,
        staging: Staging,
        item: Item,
        shared: str | None,
        results: Sequence[tuple[int, str]],
        check: Callable[[str], object],
    ) -> str:
        """Put together what attempts have written of an item: (first block, staged) each. Return
        what the ledger needs to publish it (``Row.attempt``). ``check`` reads a local file whose
        bytes had to be copied."""
        ...

    def discard(
        self, target: str, shared: str | None, results: Iterable[tuple[int, str]], *, all_: bool
    ) -> bool:
        """Remove what attempts have left besides what ``gather`` has put together; ``all_``: remove
        that, too. Return whether ``clear`` needs no note to remove the rest, if any."""
        ...

    def publish(self, row: Row, *, again: bool) -> None:
        """Give a row's file its name; ``again``: it may have its name already.

        Raises OSError if the file does not get its name by this call. FileExistsError and
        NothingStagedError mean that it never will. With ``again``, any other OSError means only
        that this cannot be told now. Raises UnknownOutcomeError.
        """
        ...

    def withdraw(self, row: Row) -> None:
        """Remove what was staged for a row that could not be published, and nothing else, whatever
        the row names."""
        ...

    def has_its_name(self, row: Row) -> bool:
        """Whether the file of a pending row has its name already. Raises OSError, and
        NothingStagedError if it can have none."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file, if it exists. A file that cannot be removed stays."""
        ...

    def sync_names(self, paths: Collection[str]) -> None:
        """Sync the names in these folders to the disk."""
        ...

    def clear(
        self,
        job_id: str,
        root: str,
        folders: Iterable[str] | None,
        staged: Iterable[tuple[str, str]],
    ) -> bool:
        """Remove what attempts of a job left in these folders (None: anywhere below ``root``), and
        the uploads ``staged``: (target, shared) each. Return whether all of it is gone."""
        ...

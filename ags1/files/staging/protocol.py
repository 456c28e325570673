"""What a job needs of a storage.

There are three: mounted folders (``local``), S3 (``s3``), and every other file system of fsspec
(``remote``). All of them promise: a target appears complete, and only after the ledger has its key;
and no two attempts at a piece of work write to the same file. No I/O.

The life of a target in a job::

    stage --> output --> gather --> ledger: pending --> publish --> ledger: settled --> clear
    driver    tasks      driver                         driver                          driver
                                                          |
                                                          +-- it failed --> withdraw

What these calls make::

                output                              gather                       publish
    local       a file in the target's folder       one file for all ranges      rename
    s3          parts of an upload                  the list of its parts        complete the upload
    remote      a file in the job's own folder      that file                    move
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol, TypeAlias

from ...errors import Ags1Error
from ..ledger import Row
from ..storage.protocol import Status, Storage
from .pieces import Item, Piece

CHANGED = "the file changed while it was read: run the job again"
# The number of requests at a time, if each one mostly waits.
REQUESTS = 32
# A tree is listed by this many threads.
LISTING_THREADS = 8
# Tells the status of a target; None if there is no target.
StatusOf: TypeAlias = "Callable[[str], Status | None]"
# What is found below a folder; and in one folder, with the paths of the folders in it.
Found: TypeAlias = "Iterator[SourceFile | Problem | PassedOver]"
Entries: TypeAlias = "Iterator[SourceFile | Problem | PassedOver | str]"
# Whether somebody wants a relative path; ``is_folder``: all that may be below it.
Takes: TypeAlias = "Callable[[str, bool], bool]"
# Why a listing passes over a path.
LINK_TO_FOLDER, DANGLING_LINK = "link_to_folder", "dangling_link"
PIPE, SOCKET, DEVICE = "pipe", "socket", "device"
NOT_UTF8, EXCLUDED = "name_not_utf8", "excluded"
# For each item's number: what its attempts share (``Piece.shared``), or why it cannot be written.
Prepared: TypeAlias = "Mapping[int, str | OSError | None]"
# The first block and the ``Output.staged`` of each attempt at an item.
Results: TypeAlias = "Sequence[tuple[int, str]]"
# The target and the ``Piece.shared`` of each upload.
Uploads: TypeAlias = "Iterable[tuple[str, str]]"
# Called with the path of a copy of what attempts have written.
Check: TypeAlias = "Callable[[str], object]"


class NothingStagedError(OSError):
    """A row's file can never be published: the staged file is gone, or no job has staged it."""


class JobEndedError(Ags1Error):
    """The mark of a task's job is gone, so nobody wants what the task stages."""

    def __init__(self, root: str) -> None:
        message = (
            "the job's mark is gone: another job has taken this one over, or somebody removed it"
        )
        super().__init__(f"{message}; run the job again", file=root)


class UnknownOutcomeError(Ags1Error):
    """A file may have its name already, or may still get it. So its row stays pending, with its
    key."""


class SourceFile(NamedTuple):
    """A listed file. ``relative_path`` is its path below the folder that the user gave, or its name
    if the user gave the file itself. ``size`` is in bytes. ``version`` changes with the file (as in
    ``Row.source_version``); it is "" if the storage has nothing that does."""

    path: str
    relative_path: str
    size: int
    version: str


class Problem(NamedTuple):
    """A path that could not be listed, and why."""

    path: str
    error: OSError


class PassedOver(NamedTuple):
    """A path in a folder that is no file to work on, and why: ``PIPE`` and so on."""

    path: str
    reason: str


class Attempt(NamedTuple):
    """One attempt of a job at a piece. ``name`` is unique; ``number`` counts the attempts at the
    piece. ``root`` is the folder that has the job's mark; None if the job leaves none."""

    job_id: str
    name: str
    number: int
    root: str | None = None


class Staging(NamedTuple):
    """What a storage must know of a job to stage files. ``seals``: the job encrypts; ``durable``:
    files are synced before the ledger has them as done."""

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

    def check_unchanged(self) -> None:
        """Raise Ags1Error if the file has changed since it was opened."""


class Output(Protocol):
    """What an attempt writes to, from its piece's first byte on. ``fd`` is a descriptor of the
    whole file, or -1. After closing, ``staged`` tells the driver where the bytes are."""

    fd: int
    staged: str

    def write(self, data: bytes | memoryview) -> None:
        """Append ``data``: all of a piece, or a run of ``Piece.unit`` blocks. Raises OSError."""


class FileListing(Protocol):
    """Finds files."""

    def absolute(self, path: str) -> str:
        """Return the one form that a path has in the ledger."""

    def holds(self, root: str, target: str) -> bool:
        """Whether a target lies in the folder ``root``, under the name that a listing gives it."""

    def find(self, source: str, closed: Collection[str], takes: Takes, pool: Executor) -> Found:
        """Yield the files that match a path, a pattern or a folder and that ``takes`` takes. Those
        in the folders ``closed`` are left out."""

    def statuses(self, folder: str, count: int, *, follow: bool) -> StatusOf:
        """Return a function that returns the status of a file below a folder. About ``count`` files
        will be asked for. ``follow``: follow links."""


class Publishing(Protocol):
    """Stages files and gives them their names. What ``stage`` returns for an item, and an output's
    ``staged``, have a meaning for this storage only."""

    def make_root(self, root: str) -> None:
        """Make the folder of a job's targets, or check that it can be used."""

    def mark_paths(self, job_id: str, root: str) -> list[str]:
        """Return the path of a job's mark and, if the folder may be a mount, of the file that takes
        its place in the end; none if the storage needs no mark (``marks``)."""

    def unit(self, plaintext_size: int) -> int:
        """Return ``Item.unit``: tasks write ranges of a file that are multiples of so many blocks.
        0 means that only one task can write a file."""

    def stage(self, staging: Staging, items: Sequence[Item], cut: Collection[int]) -> Prepared:
        """Prepare what tasks will write to. ``cut`` has the numbers of the items that several tasks
        write."""

    def open(self, path: str, size: int, version: str) -> AbstractContextManager[Source]:
        """Open a file that was listed with that size and version."""

    def output(
        self, piece: Piece, attempt: Attempt, mode: int, begin: int
    ) -> AbstractContextManager[Output]:
        """Open what an attempt writes to. If writing fails, remove it. ``begin`` is the piece's
        offset in the target."""

    def gather(
        self, staging: Staging, item: Item, shared: str | None, results: Results, check: Check
    ) -> str:
        """Put together what the attempts at an item have written. Return what the ledger needs to
        publish the file (``Row.attempt``). ``check`` is called if local bytes had to be copied."""

    def discard(self, target: str, shared: str | None, results: Results, *, whole: bool) -> bool:
        """Remove what attempts have written; ``whole``: also what ``gather`` has put together.
        Return False if the ledger must note the upload, so that ``clear`` can end it later."""

    def publish(self, row: Row, *, again: bool) -> None:
        """Give a row's file its name; ``again``: it may have its name already. Raises OSError if
        this call does not give the file its name. FileExistsError and NothingStagedError mean that
        it will never get it. With ``again``, any other OSError means only that the outcome is not
        known yet. Raises UnknownOutcomeError."""

    def withdraw(self, row: Row) -> None:
        """Remove what was staged for a row that could not be published, and nothing else, even if a
        damaged row names another file."""

    def has_its_name(self, row: Row) -> bool:
        """Whether the file of a pending row has its name already. Raises OSError, and
        NothingStagedError if it can have none."""

    def clear(self, job_id: str, root: str, folders: Iterable[str] | None, staged: Uploads) -> bool:
        """Remove what attempts of a job have left: files in ``folders`` (None: anywhere below
        ``root``), and uploads. Return whether nothing is left."""


class JobStorage(Storage, FileListing, Publishing, Protocol):
    """What a job needs of a storage."""

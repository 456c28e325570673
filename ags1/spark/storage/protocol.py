"""What a job needs of a place where files lie, whichever it is.

Three are known: what this machine has mounted (``local``), S3 (``s3``), and every other file system
of fsspec's (``remote``); ``choice`` tells which one a path means. Each keeps the same promise: a
target appears whole, after the ledger has its key, and no two attempts at a piece of work write to
the same thing. No I/O.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias
from urllib.parse import unquote

from ...errors import Ags1Error

if TYPE_CHECKING:
    from ..bulk.planning import Item, Piece
    from ..ledger import Row

CHANGED = "the file changed while it was read"
# Requests under way at a time, where each one mostly waits.
REQUESTS = 32
# What fsspec's file systems call what changes with a file.
_VERSIONS = (
    "ETag",
    "etag",
    "Content-MD5",
    "Digest",
    "generation",
    "mtime",
    "LastModified",
    "last_modified",
    "Last-Modified",
    "modificationTime",
    "modify",
    "sha",
)

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")

# What is known of a target before it is looked at: None where there is none.
StatusOf: TypeAlias = "Callable[[str], Status | None]"


class NothingStagedError(OSError):
    """Nothing will ever come of a row: what it names is gone, or no job has staged it."""


class UnknownOutcomeError(Ags1Error):
    """A file may have got its name, or may get it yet: its row stays pending, with its key."""


class Found(NamedTuple):
    """A file that a job is about. ``relative_path`` is where it lies below the folder that was
    named, its own name if it was named itself; ``size`` in bytes; ``version`` changes with the
    file (as in ``Row.source_version``), "" where nothing tells."""

    path: str
    relative_path: str
    size: int
    version: str


class Problem(NamedTuple):
    """A path that could not be listed, and why."""

    path: str
    error: OSError


class Status(NamedTuple):
    """A file's size (bytes; -1 for what is no regular file) and version."""

    size: int
    version: str


class Attempt(NamedTuple):
    """One attempt of a job at a piece: its ``name`` is no other attempt's; ``number`` counts the
    attempts at the piece."""

    job_id: str
    name: str
    number: int


class Staging(NamedTuple):
    """What a storage is told of a job before its files are staged; ``seals``: it encrypts;
    ``durable``: all is synced before the ledger says so."""

    job_id: str
    root: str
    seals: bool
    durable: bool


class Source(Protocol):
    """A file that is open for reading. ``fd`` is its descriptor, or -1; ``mode`` the permission
    bits of what is made of it."""

    fd: int
    size: int
    version: str
    mode: int

    def read(self, offset: int, size: int) -> bytes:
        """Return ``size`` bytes at ``offset``, fewer at the end. Raises OSError, Ags1Error."""
        ...

    def check_unchanged(self) -> None:
        """Raise Ags1Error when the file is not what it was when it was opened."""
        ...


class Output(Protocol):
    """What an attempt writes to, from its piece's first byte on. ``fd`` is a descriptor of all the
    file, or -1. ``staged`` tells the driver, once it is closed, where the bytes are."""

    fd: int
    staged: str

    def write(self, data: bytes | memoryview) -> None:
        """Append ``data``: all of a piece, or a run of ``Piece.unit`` blocks. Raises OSError."""
        ...


class Storage(Protocol):
    """A place where files lie. Its methods raise OSError, whatever is beneath it.

    ``is_remote``: each request mostly waits, so that many go together. What ``stage`` returns for
    an item, and an output's ``staged``, are of meaning to the storage alone.
    """

    is_remote: bool

    def absolute(self, path: str) -> str:
        """Return the one form that a path has in the ledger."""
        ...

    def holds(self, root: str, target: str) -> bool:
        """Whether a target lies in the folder ``root``, and is written as it would be listed."""
        ...

    def find(
        self, source: str, passed_over: Collection[str], pool: Executor
    ) -> Iterator[Found | Problem]:
        """Yield the files that a path, a pattern or a folder means."""
        ...

    def statuses(self, folder: str, count: int, *, follow: bool) -> StatusOf:
        """Return what tells the status of files below a folder; some ``count`` will be asked.
        ``follow``: of those that links lead to."""
        ...

    def make_root(self, root: str) -> None:
        """Make the folder of a job's targets, or see that it can be used."""
        ...

    def mark(self, job_id: str, root: str, *, durable: bool) -> None:
        """Mark the folder of a job's targets as the one that the job has, where it may be a mount:
        that is told from the empty folder below it by this."""
        ...

    def has_mark(self, job_id: str, root: str) -> bool:
        """Whether that is the folder that the job had."""
        ...

    def remove_mark(self, job_id: str, root: str) -> None:
        """Take a job's mark away. What cannot be removed stays."""
        ...

    def unit(self, plaintext_size: int) -> int:
        """Return of how many blocks the ranges consist that tasks can write of one file: 0 where
        a file is written by one task."""
        ...

    def stage(
        self, staging: Staging, items: Sequence[Item], cut: Collection[int]
    ) -> Mapping[int, str | OSError | None]:
        """Make ready what tasks will write to. Return by an item's number what its attempts share,
        or why it cannot be written. ``cut`` are the items that several tasks write."""
        ...

    def open(self, path: str, size: int, version: str) -> AbstractContextManager[Source]:
        """Open a file for reading, which was listed with that size and version."""
        ...

    def output(
        self, piece: Piece, attempt: Attempt, mode: int, begin: int
    ) -> AbstractContextManager[Output]:
        """Open what an attempt writes to, which is gone if that fails. ``begin`` is where in the
        target the piece begins."""
        ...

    def sync(self, staged: Sequence[str]) -> None:
        """Bring what attempts have written to the disk."""
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
        what the ledger has to know to publish it (``Row.attempt``). ``check`` reads a local file
        whose bytes had to be moved."""
        ...

    def discard(
        self, target: str, shared: str | None, results: Iterable[tuple[int, str]], *, all_: bool
    ) -> bool:
        """Remove what is left of attempts once they are gathered; ``all_``: and that, too. Return
        whether ``clear`` finds the rest, if any, without being told of it."""
        ...

    def publish(self, row: Row, *, again: bool) -> None:
        """Give a row's file its name; ``again``: it may have it already.

        Raises OSError where the file has no name and gets none by this call. Of them
        FileExistsError and NothingStagedError mean that it never will; ``again``, others only that
        it cannot be told now. Raises UnknownOutcomeError.
        """
        ...

    def withdraw(self, row: Row) -> None:
        """Remove what a row that could not be published had staged; nothing else, whatever the row
        names."""
        ...

    def has_its_name(self, row: Row) -> bool:
        """Whether the file of a pending row has got its name already. Raises OSError,
        NothingStagedError where it could have none."""
        ...

    def sync_names(self, paths: Collection[str]) -> None:
        """Bring the names given in these folders to the disk."""
        ...

    def clear(
        self,
        job_id: str,
        root: str,
        folders: Iterable[str] | None,
        staged: Iterable[tuple[str, str]],
    ) -> bool:
        """Remove what attempts of a job left: in these folders (None: wherever below ``root``), and
        of what was staged: (target, shared) each. Return whether all of it is gone."""
        ...


def local_path(path: str) -> str | None:
    """Return the path of a file of this machine, None for one that lies elsewhere."""
    if path.startswith("file:"):
        return unquote("/" + path.removeprefix("file:").lstrip("/"))
    return None if "://" in path else path


def ledger_folder(path: str) -> str:
    """Return the absolute path of a ledger's folder. Raises OSError for one that lies elsewhere: as
    a path, a URL names a folder below the current one, and the only keys would be there."""
    here = local_path(path)
    # With one slash, too: dbfs:/ledger, or what pathlib makes of s3://bucket/ledger.
    if here is None or _URL.match(here):
        raise OSError(errno.EINVAL, "a ledger is a folder of the driver's", path)
    return os.path.abspath(here)


def version_of(facts: Mapping[str, Any]) -> str:
    """Return what changes with a file, of what fsspec tells about it; "" where nothing does."""
    return str(next((facts[key] for key in _VERSIONS if facts.get(key)), ""))

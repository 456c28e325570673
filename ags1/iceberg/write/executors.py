"""``RewriteExecutor`` rewrites many files of a table side by side; ``RewriteThreads`` is one.

``reencryption`` gives single files fresh keys, and ``merging`` writes the rows of several files
into new ones. Spark's executors are the other ``RewriteExecutor``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import as_completed
from typing import Protocol, TypeAlias, TypeVar

from pyiceberg.table.locations import LocationProvider

from ...host.cpu import usable_cpus
from ...host.pools import CancellingPool
from ..read.records import ContentFile
from ..storage.output import TableOutput
from ..storage.table_files import TableFiles
from .merging import Merge, Merger, OnRead
from .reencryption import new_location, rewrite_file
from .view import TableView

# With more threads, the storage is the limit. Each thread holds a page and two windows in memory.
_MAX_THREADS = 16
# A merge holds a few hundred MiB of rows.
_MAX_MERGES = 4

Identity = tuple[str, int | None]
# Called with a file's old record and its new one.
Done: TypeAlias = "Callable[[ContentFile, ContentFile], None]"
# Called with a merge and the records of its new files.
Merged: TypeAlias = "Callable[[Merge, list[ContentFile]], None]"

_Item = TypeVar("_Item")


class RewriteExecutor(Protocol):
    """Rewrites many files, in any order and in any process.

    ``output`` records each new file. The functions that are passed are called by one thread at a
    time. If a file fails, the method raises that exception and begins no other. Those under way are
    completed and reported, or leave no file.
    """

    def rewrite(
        self,
        files: Sequence[ContentFile],
        source: TableFiles,
        output: TableOutput,
        locations: LocationProvider,
        on_done: Done,
    ) -> None:
        """Do for each file what ``rewrite_file`` does, at a ``new_location``. ``on_done`` is called
        after each file."""


class RewriteThreads:
    """Rewrites ``threads`` files at once; by default as many as there are CPUs, at most 16. By
    default at most four merges go on at once, because each needs a few hundred MiB of memory."""

    def __init__(self, threads: int | None = None) -> None:
        if threads is not None and threads < 1:
            raise ValueError(f"threads must be at least 1, not {threads}")
        self._threads = threads or min(usable_cpus(), _MAX_THREADS)
        self._merges = threads or min(usable_cpus(), _MAX_MERGES)
        self._lock = threading.Lock()

    def rewrite(
        self,
        files: Sequence[ContentFile],
        source: TableFiles,
        output: TableOutput,
        locations: LocationProvider,
        on_done: Done,
    ) -> None:
        def rewrite(record: ContentFile) -> None:
            location = new_location(record, locations)
            new = rewrite_file(record, source, output, location)
            with self._lock:
                on_done(record, new)

        _run(rewrite, files, self._threads, lambda: None)

    def merge(
        self,
        merges: Sequence[Merge],
        view: TableView,
        output: TableOutput,
        target_size: int,
        on_done: Merged,
        on_read: OnRead,
    ) -> None:
        """Do for each merge what ``Merger.merge`` does, with the schema, spec and keys of ``view``.
        ``on_done`` is called after each merge, ``on_read`` while they go on."""
        merger = Merger(view, output, target_size)
        at_once = min(self._merges, len(merges))

        def read(size: int) -> None:
            with self._lock:
                on_read(size)

        def merge(one: Merge) -> None:
            files = merger.merge(one, read, threads=max(1, self._merges // at_once))
            with self._lock:
                on_done(one, files)

        # The largest merges begin first, so that none of them is left for the end.
        largest_first = sorted(merges, key=lambda one: one.size, reverse=True)
        _run(merge, largest_first, at_once, merger.stop)


def _run(
    work: Callable[[_Item], None],
    items: Iterable[_Item],
    threads: int,
    stop: Callable[[], None],
) -> None:
    """Call ``work`` for each item, on a few threads. If a call fails, this raises its exception,
    and begins no other call. ``stop`` is called before this waits for those under way."""
    with CancellingPool(max(1, threads), "ags1-rewrite", stop) as pool:
        for done in as_completed([pool.submit(work, item) for item in items]):
            done.result()

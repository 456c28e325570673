"""Many files at a time: ``get``, ``put``, ``copy``, ``cat`` and ``pipe``.

fsspec decides which path goes where. Then it does one file after another, and an encrypted file
needs several requests. Over a file system that serves many requests at a time, such as an object
storage, ``ManyFiles`` does many files at a time, each in a thread.
"""

from __future__ import annotations

import contextlib
import errno
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError
from functools import partial
from typing import Any, TypeVar

from fsspec import AbstractFileSystem
from fsspec.callbacks import DEFAULT_CALLBACK, Callback
from fsspec.implementations.chained import ChainedFileSystem

from ...host.threads import run_in_threads
from ...keys.sidecar import MOST_TRIES
from ..paths import SUFFIX

T = TypeVar("T")

_FILES_AT_A_TIME = 16


class _Pairs:
    """Takes the calls by which fsspec's ``get``, ``put`` and ``copy`` do one file each, and notes
    their two paths. For everything else it is the file system."""

    def __init__(self, fs: Any) -> None:
        self._fs = fs
        self.pairs: list[tuple[str, str]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fs, name)

    def _note(self, source: str, target: str, **_: object) -> None:
        self.pairs.append((source, target))

    get_file = put_file = cp_file = _note


class _Progress(Callback):  # type: ignore[misc]
    """A caller's callback for one file. Its methods are called by one thread at a time. They raise
    CancelledError when ``stopped`` is set, so that the transfer ends."""

    def __init__(self, callback: Callback, lock: threading.Lock, stopped: threading.Event) -> None:
        super().__init__()
        self._callback = callback
        self._lock = lock
        self._stopped = stopped

    def _pass_on(self, call: Callable[[Any], None], number: Any) -> None:
        if self._stopped.is_set():
            raise CancelledError
        with self._lock:
            call(number)

    def set_size(self, size: int | None) -> None:
        self._pass_on(self._callback.set_size, size)

    def absolute_update(self, value: int) -> None:
        self._pass_on(self._callback.absolute_update, value)

    def relative_update(self, inc: int = 1) -> None:
        self._pass_on(self._callback.relative_update, inc)


def _in_threads(
    work: Callable[..., T],
    calls: Sequence[Sequence[Any]],
    threads: int,
    stopped: threading.Event | None = None,
) -> list[T]:
    """Return what ``work`` returns for each call's arguments. If calls fail, raise the error of one
    of them. Calls that have not begun then never begin. Those that have are waited for, and
    ``stopped`` is set to make them end early; so it is after an interrupt."""
    if threads == 1 or len(calls) < 2:
        return [work(*call) for call in calls]
    is_over = stopped or threading.Event()
    results: dict[int, T] = {}

    def do(number: int) -> None:
        if is_over.is_set():
            return
        try:
            results[number] = work(*calls[number])
        except BaseException as error:
            if isinstance(error, CancelledError) and is_over.is_set():
                return
            is_over.set()
            raise

    run_in_threads(do, range(len(calls)), is_over.set, threads=threads)
    return [results[number] for number in range(len(calls))]


class ManyFiles(ChainedFileSystem):  # type: ignore[misc]
    """The methods of a file system ``fs`` that do one file or many."""

    def side_by_side(
        self,
        work: Callable[..., T],
        calls: Sequence[Sequence[Any]],
        stopped: threading.Event | None = None,
    ) -> list[T]:
        """Return what ``work`` returns for each call's arguments. Calls run at the same time if
        the file system below serves many requests at a time."""
        threads = _FILES_AT_A_TIME if self.fs.async_impl else 1
        return _in_threads(work, calls, threads, stopped)

    def cat(
        self, path: Any, recursive: bool = False, on_error: str = "raise", **kwargs: Any
    ) -> Any:
        """Return a file's bytes. For several files, for a pattern and for a folder with
        ``recursive``, return the bytes by path."""
        paths = self.expand_path(path, recursive=recursive)
        if isinstance(path, str) and paths == [self._strip_protocol(path)]:
            return self.cat_file(paths[0], **kwargs)
        if recursive:
            are_files = self.side_by_side(self.isfile, [(one,) for one in paths])
            paths = [one for one, is_file in zip(paths, are_files, strict=True) if is_file]
        starts, ends = ([kwargs.pop(name, None)] * len(paths) for name in ("start", "end"))
        returned = "raise" if on_error == "raise" else "return"
        found = zip(
            paths, self.cat_ranges(paths, starts, ends, on_error=returned, **kwargs), strict=True
        )
        with_errors = on_error == "return"
        return {one: data for one, data in found if with_errors or not isinstance(data, Exception)}

    def pipe(self, path: Any, value: Any = None, **kwargs: Any) -> None:
        if isinstance(path, dict) and _are_distinct(path):
            self.side_by_side(partial(self.pipe_file, **kwargs), list(path.items()))
        else:
            super().pipe(path, value, **kwargs)

    def get(
        self,
        rpath: Any,
        lpath: Any,
        recursive: bool = False,
        callback: Callback = DEFAULT_CALLBACK,
        maxdepth: int | None = None,
        **kwargs: Any,
    ) -> None:
        plan = _Pairs(self)
        AbstractFileSystem.get(plan, rpath, lpath, recursive, maxdepth=maxdepth, **kwargs)
        self._transfer(self.get_file, plan.pairs, callback, **kwargs)

    def put(
        self,
        lpath: Any,
        rpath: Any,
        recursive: bool = False,
        callback: Callback = DEFAULT_CALLBACK,
        maxdepth: int | None = None,
        **kwargs: Any,
    ) -> None:
        plan = _Pairs(self)
        AbstractFileSystem.put(plan, lpath, rpath, recursive, maxdepth=maxdepth, **kwargs)
        self._transfer(self.put_file, plan.pairs, callback, **kwargs)

    def copy(
        self,
        path1: Any,
        path2: Any,
        recursive: bool = False,
        maxdepth: int | None = None,
        on_error: str | None = None,
        **kwargs: Any,
    ) -> None:
        plan = _Pairs(self)
        AbstractFileSystem.copy(plan, path1, path2, recursive, maxdepth, **kwargs)
        passes_over = on_error == "ignore" or (on_error is None and recursive)

        def copy_file(source: str, target: str, callback: Callback) -> None:
            with contextlib.suppress(*[FileNotFoundError] * passes_over):
                self.cp_file(source, target, **kwargs)

        self._transfer(copy_file, plan.pairs, DEFAULT_CALLBACK)

    def _transfer(
        self,
        work: Callable[..., None],
        pairs: list[tuple[Any, Any]],
        callback: Callback,
        **kwargs: Any,
    ) -> None:
        """Call ``work`` with each pair of paths. Some calls run at the same time, unless a file is
        named more than once. Raises the error of a call that failed."""
        lock, stopped = threading.Lock(), threading.Event()
        callback.set_size(len(pairs))

        def transfer(source: Any, target: Any) -> None:
            with lock:
                child = callback.branched(source, target)
            with child:
                work(source, target, callback=_Progress(child, lock, stopped), **kwargs)
            with lock:
                callback.relative_update(1)

        if _are_distinct(name for pair in pairs for name in pair):
            self.side_by_side(transfer, pairs, stopped)
        else:
            for pair in pairs:
                transfer(*pair)


def _are_distinct(paths: Iterable[Any]) -> bool:
    """Whether no file is named twice: as a URL or a path, with its suffix or without."""
    names = [str(path).rpartition("://")[2].removesuffix(SUFFIX) for path in paths]
    return len(set(names)) == len(names)


def unless_replaced(read: Callable[[], T]) -> T:
    """Return what ``read`` returns. If another process replaces the object that it reads, it begins
    again. Raises OSError, what ``read`` raises."""
    for _ in range(MOST_TRIES - 1):
        try:
            return read()
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
    return read()

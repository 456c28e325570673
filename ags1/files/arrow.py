"""Encrypted files for pyarrow: a ``pyarrow.fs.FileSystem`` that shows them as plaintext.

Datasets, Parquet, CSV and Feather readers of pyarrow use it as any other file system. pyarrow asks
for ranges from several threads. One file is then decrypted by several threads too. Needs pyarrow
and fsspec, which are optional.
"""

from __future__ import annotations

import atexit
import errno
import math
import threading
import time
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.fs as pafs
from fsspec.implementations.arrow import ArrowFSWrapper

from .fsspec import Ags1FileSystem


def filesystem(below: Any = None, **options: Any) -> pafs.PyFileSystem:
    """Return a file system of pyarrow that shows the encrypted files of ``below`` as plaintext.

    ``below`` is a file system of fsspec or pyarrow, or a protocol of fsspec such as ``"s3"``. None
    means the files of this machine. ``options`` are as in ``Ags1FileSystem``. Paths are those of
    ``below``, with or without ``.ags1``. A pickle has the options and no key.
    """
    if isinstance(below, Ags1FileSystem):
        return pafs.PyFileSystem(_Handler(below))
    if below is None or isinstance(below, pafs.LocalFileSystem):
        below = fsspec.filesystem("file")
    elif isinstance(below, str):
        below = fsspec.filesystem(below)
    elif isinstance(below, pafs.FileSystem):
        below = _ArrowBelow(below)
    return pafs.PyFileSystem(_Handler(Ags1FileSystem(fs=below, **options)))


class _ArrowBelow(ArrowFSWrapper):  # type: ignore[misc]
    """Opens files as seekable. fsspec's wrapper does not if they are read from 0, but seeks."""

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any
    ) -> bytes:
        kwargs["seekable"] = True
        return super().cat_file(path, start, end, **kwargs)  # type: ignore[no-any-return]


class _Handler(pafs.FSSpecHandler):  # type: ignore[misc]
    """Does what pyarrow's handler for fsspec does, but sends no request before it opens a file."""

    def get_file_info_selector(self, selector: pafs.FileSelector) -> list[pafs.FileInfo]:
        """Return what is in a folder. As with Arrow's own file systems, paths begin as the folder's
        does: those in a relative folder are relative."""
        folder = self.fs._strip_protocol(selector.base_dir)
        found = super().get_file_info_selector(
            pafs.FileSelector(folder, selector.allow_not_found, selector.recursive)
        )
        named = selector.base_dir.rstrip("/")
        if folder == named:
            return found  # type: ignore[no-any-return]
        return [
            pafs.FileInfo(
                f"{named}{info.path.removeprefix(folder)}".removeprefix("" if named else "/"),
                info.type,
                size=info.size,
                mtime_ns=info.mtime_ns,
            )
            for info in found
        ]

    def open_input_stream(self, path: str) -> pa.NativeFile:
        return self.open_input_file(path)

    def open_input_file(self, path: str) -> pa.NativeFile:
        with _in_python:
            # Arrow calls the reader's read_buffer, which decrypts into Arrow's memory.
            return pa.PythonFile(_Input(self.fs.open(path, mode="rb")), mode="r")


class _Input:
    """A file that Arrow's threads read. It says when they are in Python."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def read(self, size: int = -1) -> Any:
        with _in_python:
            return self._file.read(size)

    def read_buffer(self, size: int = -1) -> Any:
        with _in_python:
            return self._file.read_buffer(size)

    def __del__(self) -> None:
        _in_python.note()


class _InPython:
    """The threads that are in calls of Arrow, and when the last call ended."""

    def __init__(self) -> None:
        self._threads: set[int] = set()
        self._last = -math.inf
        self.refuses = False

    def __enter__(self) -> None:
        if self.refuses:
            self.note()
            raise OSError(errno.ECANCELED, "the process ends, so nothing more is read ahead")
        self._threads.add(threading.get_ident())

    def __exit__(self, *_: object) -> None:
        self.note()
        self._threads.discard(threading.get_ident())

    def note(self) -> None:
        self._last = time.monotonic()

    def is_recent(self) -> bool:
        """Whether a thread is in Python, or may come again to read more or to drop a file."""
        return bool(self._threads) or time.monotonic() < self._last + _QUIET_SECONDS


_in_python = _InPython()
_LONGEST_WAIT_SECONDS = 30
_QUIET_SECONDS = 0.1


@atexit.register
def _wait_for_arrow() -> None:
    """Let Arrow's threads end their work, such as what they read ahead for a scan that was not read
    to its end. Python ends a thread that needs it while it ends itself. That aborts the process
    (``terminate called without an active exception``), or Arrow waits for the thread for ever."""
    end = time.monotonic() + _LONGEST_WAIT_SECONDS
    _in_python.refuses = True
    while _in_python.is_recent() and time.monotonic() < end:
        time.sleep(0.005)
    _in_python.refuses = False

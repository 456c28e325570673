"""Encrypted files for pyarrow: a ``pyarrow.fs.FileSystem`` that shows them as plaintext.

Datasets, Parquet, CSV and Feather readers of pyarrow use it as any other file system. pyarrow asks
for ranges from several threads. One file is then decrypted by several threads too. Needs pyarrow
and fsspec, which are optional.
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.fs as pafs
from fsspec.implementations.arrow import ArrowFSWrapper

from .filesystem import Ags1FileSystem


def filesystem(below: Any = None, **options: Any) -> pafs.PyFileSystem:
    """Return a file system of pyarrow that shows the encrypted files of ``below`` as plaintext.

    ``below`` is a file system of fsspec or pyarrow, or a protocol of fsspec such as ``"s3"``. None
    means the files of this machine. ``options`` are those of ``Ags1FileSystem``. Paths are those of
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

    def open_input_stream(self, path: str) -> pa.NativeFile:
        return self.open_input_file(path)

    def open_input_file(self, path: str) -> pa.NativeFile:
        file = self.fs.open(path, mode="rb")
        _in_use.add(file)
        _was_used.set()
        # Arrow calls the reader's read_buffer, which decrypts into Arrow's memory.
        return pa.PythonFile(file, mode="r")


# The files that Arrow has not dropped yet, and whether any file was opened.
_in_use: weakref.WeakSet[Any] = weakref.WeakSet()
_was_used = threading.Event()
_LONGEST_WAIT_SECONDS = 0.5
# A thread of Arrow may still be dropping a file that has left the set.
_LAST_WAIT_SECONDS = 0.1


@atexit.register
def _wait_for_arrow() -> None:
    """Let Arrow's threads drop their files. A thread of Arrow that needs Python while Python ends
    would abort the process (``terminate called without an active exception``)."""
    end = time.monotonic() + _LONGEST_WAIT_SECONDS
    while _in_use and time.monotonic() < end:
        time.sleep(0.005)
    if _was_used.is_set():
        time.sleep(_LAST_WAIT_SECONDS)

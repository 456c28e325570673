"""Encrypted files in DuckDB: ``SELECT * FROM read_csv('ags1::file://flights.csv.ags1')``.

DuckDB asks a file system of fsspec for the URLs that begin as its protocol does. ``_Urls`` is one
for all URLs with ``ags1::``. Needs duckdb and fsspec, which are optional (the extra ``duckdb``).
"""

from __future__ import annotations

import io
import threading
from collections.abc import Mapping
from typing import Any
from weakref import WeakValueDictionary

import duckdb
from fsspec import available_protocols
from fsspec.spec import AbstractFileSystem

from .files.fsspec.options import KeyOptions
from .files.fsspec.urls import at_url
from .host.shared_reader import SharedReader


def connect(
    database: str = ":memory:",
    *args: Any,
    storage_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> duckdb.DuckDBPyConnection:
    """Return a connection of ``duckdb.connect`` whose SQL reads and writes encrypted files.

    A file is named by its URL: ``ags1::file:///data/x.parquet`` or ``ags1::s3://lake/x.parquet``,
    with or without ``.ags1`` at its end. ``storage_options`` are as in ``ags1::`` URLs
    (``Ags1FileSystem``). Other names mean what they mean in DuckDB. Its database file and the files
    to which it spills rows are not encrypted by ``ags1``. The other arguments are those of
    ``duckdb.connect``. Raises KmsConfigurationError and ValueError for wrong options. If a query
    fails, DuckDB raises its own exception with the text of ours.
    """
    # Wrong options are told now. Those of the storages belong to their URLs.
    KeyOptions({k: v for k, v in (storage_options or {}).items() if not isinstance(v, Mapping)})
    connection = duckdb.connect(database, *args, **options)
    connection.register_filesystem(_Urls(dict(storage_options or {})))
    return connection


class _Urls(AbstractFileSystem):  # type: ignore[misc]
    """The URLs of encrypted files, each on the file system that it names. Threads share one.

    A local file has its name as soon as DuckDB opens it. After a failed COPY, DuckDB asks whether
    there is one, and removes it. Another of its threads may close the file afterwards. So a file
    that is being written exists, and when it has been removed, its ``close`` does nothing.
    """

    protocol = ("ags1", *(f"ags1::{name}" for name in available_protocols()))
    cachable = False

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__()
        self._options = options
        self._written: WeakValueDictionary[str, _SharedWriter] = WeakValueDictionary()

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path

    def unstrip_protocol(self, name: str) -> str:
        return name

    def _open(self, path: str, mode: str = "rb", **_: Any) -> Any:
        files, below = at_url(path, self._options)
        file = files.open(below, mode)
        if mode == "rb":
            return SharedReader(file)
        self._written[path] = writer = _SharedWriter(file)
        return writer

    def glob(self, path: str, **_: Any) -> list[str]:
        files, below = at_url(path, self._options)
        return [f"ags1::{files.fs.unstrip_protocol(one)}" for one in files.glob(below)]

    def ls(self, path: str, detail: bool = True, **_: Any) -> Any:
        files, below = at_url(path, self._options)
        return files.ls(below, detail=detail)

    def info(self, path: str, **_: Any) -> Any:
        writer = self._written.get(path)
        if writer is not None and not writer.closed:
            return {"name": path, "size": writer.tell(), "type": "file"}
        files, below = at_url(path, self._options)
        return files.info(below)

    def modified(self, path: str) -> Any:
        files, below = at_url(path, self._options)
        return files.modified(below)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        files, below = at_url(path, self._options)
        files.makedirs(below, exist_ok=exist_ok)

    def mv(self, path1: str, path2: str, **_: Any) -> None:
        files, below = at_url(path1, self._options)
        files.mv(below, at_url(path2, self._options)[1])

    def rm_file(self, path: str) -> None:
        writer = self._written.pop(path, None)
        if writer is not None and writer.abort():
            return
        files, below = at_url(path, self._options)
        files.rm_file(below)


class _SharedWriter:
    """A file that one thread writes, and that another one may close or abort. If nobody does, it is
    never there, as the file's own finalizer says."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._lock = threading.Lock()
        self.closed = False

    def write(self, data: Any) -> int:
        return int(self._file.write(data))

    def flush(self) -> None:
        self._file.flush()

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())

    def close(self) -> None:
        with self._lock:
            if not self.closed:
                self.closed = True
                self._file.close()

    def abort(self) -> bool:
        """Remove what was written, unless the file is closed. Returns whether it was removed."""
        with self._lock:
            is_open, self.closed = not self.closed, True
            if is_open:
                self._file.abort()
        return is_open

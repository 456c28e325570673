"""Encrypted files in DuckDB: ``SELECT * FROM read_csv('ags1::file://flights.csv.ags1')``.

DuckDB asks a file system of fsspec for the URLs that begin as its protocol does. ``_Urls`` is one
for all URLs with ``ags1::``. Needs duckdb and fsspec, which are optional (the extra ``duckdb``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
    """The URLs of encrypted files, each on the file system that it names."""

    protocol = ("ags1", *(f"ags1::{name}" for name in available_protocols()))
    cachable = False

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__()
        self._options = options

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path

    def unstrip_protocol(self, name: str) -> str:
        return name

    def _open(self, path: str, mode: str = "rb", **_: Any) -> Any:
        files, below = at_url(path, self._options)
        file = files.open(below, mode)
        return SharedReader(file) if mode == "rb" else file

    def glob(self, path: str, **_: Any) -> list[str]:
        files, below = at_url(path, self._options)
        return [f"ags1::{files.fs.unstrip_protocol(one)}" for one in files.glob(below)]

    def ls(self, path: str, detail: bool = True, **_: Any) -> Any:
        files, below = at_url(path, self._options)
        return files.ls(below, detail=detail)

    def info(self, path: str, **_: Any) -> Any:
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
        files, below = at_url(path, self._options)
        files.rm_file(below)

"""Shows the data files of a scan to DuckDB, whose own Parquet reader reads them.

DuckDB asks a file system of fsspec for the files of a view. ``ScanFiles`` has the plaintexts of
those files whose rows and columns are, as they are, those of the scan. A column chunk is decrypted
when a query asks for it. No key is given to DuckDB. The other files are for Arrow to read. Needs
duckdb, which is optional.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterable
from datetime import datetime, timezone
from typing import Any
from weakref import WeakKeyDictionary

import duckdb
import pyarrow as pa
from fsspec.spec import AbstractFileSystem
from pyiceberg.schema import Schema

from ...host.shared_reader import SharedReader
from ..formats.parquet_view import ParquetView, PlainParquet
from ..storage.table_files import TableFiles
from .binding import BoundFilter
from .records import ContentFile
from .row_expressions import row_expression

# Files of a scan never change.
_MODIFIED = datetime(1970, 1, 1, tzinfo=timezone.utc)


class ScanFiles(AbstractFileSystem):  # type: ignore[misc]
    """The plaintexts of the data files of a connection's views, under names that only this object
    has. It has the files of a view until the view is made anew."""

    cachable = False

    def __init__(self) -> None:
        super().__init__()
        self.protocol = f"ags1-scan-{secrets.token_hex(8)}"
        self._shown: dict[str, tuple[TableFiles, ContentFile, int]] = {}
        self._numbers = itertools.count()

    def add(self, files: TableFiles, shown: Iterable[tuple[ContentFile, int]]) -> list[str]:
        """Show these files, with the sizes of their plaintexts (bytes). Return their names."""
        added = {
            f"{self.protocol}://{next(self._numbers)}.parquet": (files, file, size)
            for file, size in shown
        }
        self._shown |= added
        return list(added)

    def remove(self, names: Iterable[str]) -> None:
        for name in names:
            del self._shown[name]

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path

    def _open(self, path: str, mode: str = "rb", **_: Any) -> SharedReader:
        if mode != "rb":
            raise PermissionError(f"{path} is a file of a scan, and cannot be written")
        files, file, _size = self._entry(path)
        key_metadata = file.sized_key
        assert key_metadata is not None
        with files.naming(file.file_path):
            source = files.open_source(file.file_path)
            try:
                plain = PlainParquet(ParquetView(source, key_metadata))
            except BaseException:
                source.close()
                raise
        return _NamedReader(plain, files, file.file_path)

    def _entry(self, path: str) -> tuple[TableFiles, ContentFile, int]:
        try:
            return self._shown[path]
        except KeyError:
            raise FileNotFoundError(f"{path} is of a view that was made anew") from None

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        return {"name": path, "size": self._entry(path)[2], "type": "file"}

    def glob(self, path: str, **_: Any) -> list[str]:
        return [path] if path in self._shown else []

    def modified(self, _path: str) -> datetime:
        return _MODIFIED


class _NamedReader(SharedReader):
    """A reader whose errors name the data file."""

    def __init__(self, file: PlainParquet, files: TableFiles, location: str) -> None:
        super().__init__(file)
        self._files, self._location = files, location

    def read(self, size: int = -1) -> Any:
        with self._files.naming(self._location):
            return super().read(size)


class Views:
    """The views that scans have made in one connection, and what they need there. Share it as the
    connection, which is for one thread at a time."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._files = ScanFiles()
        self._needed: dict[str, tuple[list[str], str]] = {}
        connection.register_filesystem(self._files)

    def show(
        self,
        connection: duckdb.DuckDBPyConnection,
        name: str,
        files: TableFiles,
        shown: Iterable[tuple[ContentFile, int]],
        rest: pa.Table,
        projected: Schema,
        row_filter: BoundFilter,
    ) -> bool:
        """Make a view of the rows in the files that are ``shown`` and of those in ``rest``, which
        was read by Arrow. Return False without a view if DuckDB has no such filter, or has the
        columns in other types than Arrow."""
        names = {field.field_id: field.name for field in row_filter.schema.fields}
        condition = row_expression(row_filter.expression, names, _DuckDb())
        if condition is None:
            return False
        added = self._files.add(files, shown)
        hidden = f"ags1-rest-{secrets.token_hex(8)}"
        try:
            is_shown = _make_view(connection, name, added, hidden, rest, condition, projected)
        except BaseException:
            self._files.remove(added)
            raise
        if not is_shown:
            self._files.remove(added)
            return False
        self._forget(connection, name)
        self._needed[name.lower()] = added, hidden
        return True

    def register(self, connection: duckdb.DuckDBPyConnection, name: str, rows: pa.Table) -> None:
        """Make a view of rows in memory. DuckDB would refuse to register them under the name of a
        view."""
        if name.lower() in self._needed:
            connection.execute(f"DROP VIEW IF EXISTS temp.main.{_quoted(name)}")
            self._forget(connection, name)
        connection.register(name, rows)

    def _forget(self, connection: duckdb.DuckDBPyConnection, name: str) -> None:
        """Drop what a former view of this name has needed."""
        names, hidden = self._needed.pop(name.lower(), ([], ""))
        self._files.remove(names)
        if hidden:
            connection.unregister(hidden)


# A connection that is closed and forgotten takes its views with it.
_VIEWS: WeakKeyDictionary[duckdb.DuckDBPyConnection, Views] = WeakKeyDictionary()


def views(connection: duckdb.DuckDBPyConnection) -> Views:
    """Return the views of a connection."""
    found = _VIEWS.get(connection)
    if found is None:
        found = _VIEWS[connection] = Views(connection)
    return found


def _make_view(
    connection: duckdb.DuckDBPyConnection,
    name: str,
    paths: list[str],
    hidden: str,
    rest: pa.Table,
    condition: duckdb.Expression,
    projected: Schema,
) -> bool:
    found = connection.read_parquet(paths, hive_partitioning=False).filter(condition)
    columns = found.select(*(duckdb.ColumnExpression(f.name) for f in projected.fields))
    others = connection.from_arrow(rest)
    if (columns.columns, columns.types) != (others.columns, others.types):
        return False
    rows = columns.sql_query()
    if rest.num_rows:
        connection.register(hidden, rest)
        rows = f'({rows}) UNION ALL SELECT * FROM "{hidden}"'
    connection.execute(f"CREATE OR REPLACE TEMPORARY VIEW {_quoted(name)} AS {rows}")
    return True


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


class _DuckDb:
    def column(self, name: str) -> duckdb.Expression:
        return duckdb.ColumnExpression(name)

    def literal(self, value: Any) -> duckdb.Expression:
        return duckdb.ConstantExpression(value)

    def is_null(self, column: duckdb.Expression) -> duckdb.Expression:
        return column.isnull()

    def is_in(self, column: duckdb.Expression, values: list[Any]) -> duckdb.Expression:
        return column.isin(*map(self.literal, values))

    def starts_with(self, column: duckdb.Expression, prefix: str) -> duckdb.Expression:
        return duckdb.FunctionExpression("starts_with", column, self.literal(prefix))

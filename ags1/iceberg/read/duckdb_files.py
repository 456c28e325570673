"""Shows the data files of a scan to DuckDB, whose own Parquet reader reads them.

DuckDB asks a file system of fsspec for the files of a view. ``ScanFiles`` has the plaintexts of
those files whose rows and columns are, as they are, those of the scan. A column chunk is decrypted
when a query asks for it. No key is given to DuckDB. The other files are for Arrow to read. Needs
duckdb, which is optional.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from datetime import datetime, timezone
from typing import Any

import duckdb
import pyarrow as pa
from fsspec.spec import AbstractFileSystem
from pyiceberg.schema import Schema

from ...host.shared_reader import SharedReader
from ..formats.parquet_view import PlainParquet
from ..storage.table_files import TableFiles
from .binding import BoundFilter
from .records import ContentFile
from .row_expressions import row_expression

# Files of a scan never change.
_MODIFIED = datetime(1970, 1, 1, tzinfo=timezone.utc)


class ScanFiles(AbstractFileSystem):  # type: ignore[misc]
    """The plaintexts of data files, under names that only this object has. ``shown`` are the files
    and the sizes of their plaintexts (bytes)."""

    cachable = False

    def __init__(self, files: TableFiles, shown: Iterable[tuple[ContentFile, int]]) -> None:
        super().__init__()
        self.protocol = f"ags1-scan-{secrets.token_hex(8)}"
        self._files = files
        self._shown = {f"{self.protocol}://{n}.parquet": one for n, one in enumerate(shown)}
        self.names = list(self._shown)

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path

    def _open(self, path: str, mode: str = "rb", **_: Any) -> SharedReader:
        if mode != "rb":
            raise PermissionError(f"{path} is a file of a scan, and cannot be written")
        file = self._shown[path][0]
        key_metadata = file.sized_key
        assert key_metadata is not None
        with self._files.naming(file.file_path):
            source = self._files.open_source(file.file_path)
            try:
                return _NamedReader(PlainParquet(source, key_metadata), self._files, file.file_path)
            except BaseException:
                source.close()
                raise

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        return {"name": path, "size": self._shown[path][1], "type": "file"}

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


def show(
    connection: duckdb.DuckDBPyConnection,
    name: str,
    shown: ScanFiles,
    rest: pa.Table,
    projected: Schema,
    row_filter: BoundFilter,
) -> bool:
    """Make a view of the rows in the files that are ``shown`` and of those in ``rest``, which was
    read by Arrow. Return False without a view if DuckDB has no such filter, or has the columns in
    other types than Arrow."""
    names = {field.field_id: field.name for field in row_filter.schema.fields}
    condition = row_expression(row_filter.expression, names, _DuckDb())
    if condition is None:
        return False
    connection.register_filesystem(shown)
    found = connection.read_parquet(shown.names, hive_partitioning=False).filter(condition)
    columns = found.select(*(duckdb.ColumnExpression(f.name) for f in projected.fields))
    others = connection.from_arrow(rest)
    if (columns.columns, columns.types) != (others.columns, others.types):
        connection.unregister_filesystem(shown.protocol)
        return False
    rows = columns.sql_query()
    if rest.num_rows:
        hidden = shown.protocol
        connection.register(hidden, rest)
        rows = f'({rows}) UNION ALL SELECT * FROM "{hidden}"'
    quoted = name.replace('"', '""')
    connection.execute(f'CREATE OR REPLACE TEMPORARY VIEW "{quoted}" AS {rows}')
    return True


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

"""The data source "ags1": encrypted files as rows.

``spark.read.format("ags1").load(path)`` has a row for each run of blocks: path, offset, length,
content. With ``.option("inner", "text"|"csv"|"parquet"|"avro")`` the rows are those inside the
files. The driver lists the files and opens one of them at most, for its columns.

Options: ``columns`` (names separated by commas; other columns are not decoded), ``partSize`` (what
a task reads at most, 64m), ``ledger`` (that of the job that encrypted the files; only files that it
has as done are read, and one that does not exist is an error unless ``ignoreMissingFiles`` is
``true``), and those of keys (see ``options``). Spark's filters are not pushed down, because Spark
then returns wrong rows for a DataFrame that is used twice. For writing see ``writer``.
"""

from __future__ import annotations

from typing import Any, NoReturn

from pyspark.sql.datasource import DataSource, DataSourceStreamReader
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from ...engine.layout import encrypted_size
from .. import known_options as known
from .. import options as opt
from ..arrow_rows import spark_schema
from ..planning_errors import in_few_words
from ..registration import register_source
from .encrypted_files import open_whole
from .format_readers import InnerFormat, inner_format
from .reader import FilesReader, find_files
from .writer import FilesWriter

NAME = "ags1"

_KINDS = {"path": StringType(), "offset": LongType(), "length": LongType(), "content": BinaryType()}
_ROWS = StructType([StructField(name, kind, nullable=False) for name, kind in _KINDS.items()])
_NO_STREAMS = (
    "the source 'ags1' has no streams: for new files run a bulk job again, and write rows that "
    "arrive to an encrypted table by Iceberg's own writeStream"
)


def register(spark: Any) -> None:
    """Register "ags1" with a Spark session. Call this in each thread that saves."""
    register_source(spark, Ags1DataSource)


class _NoStream(DataSourceStreamReader):  # type: ignore[misc]
    """Refuses when the query begins: if ``streamReader`` raises, PySpark shows an UnboundLocalError
    of its own."""

    @in_few_words
    def _refuse(self, *_: Any) -> NoReturn:
        raise NotImplementedError(_NO_STREAMS)

    initialOffset = latestOffset = partitions = read = _refuse


class Ags1DataSource(DataSource):  # type: ignore[misc]  # PySpark's types are not read
    """The data source; see the package."""

    @classmethod
    def name(cls) -> str:
        return NAME

    @in_few_words
    def schema(self) -> StructType:
        """Return the columns; with ``inner``, those of the first file. Raises ValueError for bad
        options, FileNotFoundError, and what opening the file raises."""
        self._check(known.READ)
        inner = inner_format(self.options)
        columns = _ROWS if inner is None else self._inner_schema(inner)
        return _chosen(columns, opt.names(self.options.get("columns")))

    @in_few_words
    def reader(self, schema: StructType) -> FilesReader:
        self._check(known.READ)
        return FilesReader(dict(self.options), schema)

    @in_few_words
    def writer(self, schema: StructType, overwrite: bool) -> FilesWriter:
        self._check(known.WRITE)
        return FilesWriter(dict(self.options), schema, overwrite=overwrite)

    def streamReader(self, schema: StructType) -> _NoStream:
        return _NoStream()

    @in_few_words
    def streamWriter(self, schema: StructType, overwrite: bool) -> NoReturn:
        raise NotImplementedError(_NO_STREAMS)

    def _check(self, direction: str) -> None:
        """Raise KmsConfigurationError for an option that is a secret, and ValueError for one that
        is not known."""
        opt.refuse_secrets(self.options)
        known.check(self.options, known.of_files(self.options.get("inner") or ""), direction)

    def _inner_schema(self, inner: InnerFormat) -> StructType:
        files, sidecars = find_files(self.options)
        if not files:
            raise ValueError("there are no files to take the columns from: give a schema")
        # An empty file has no columns.
        first = next((file for file in files if file.size > encrypted_size(0)), files[0])
        with open_whole(first, opt.opening_keys(self.options), sidecars) as whole:
            return spark_schema(inner.columns(whole))


def _chosen(schema: StructType, columns: list[str]) -> StructType:
    """Return the columns of these names, or all if none is given. Raises ValueError."""
    if not columns:
        return schema
    missing = [name for name in columns if name not in schema.fieldNames()]
    if missing:
        raise ValueError(f"the option 'columns' names {missing[0]!r}, which the files do not have")
    return StructType([schema[name] for name in columns])

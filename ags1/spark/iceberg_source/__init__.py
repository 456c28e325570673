"""The data source "ags1-iceberg": encrypted Iceberg tables, without Java's runtime.

For installations where Java's runtime cannot be configured with a KMS, and for KMSs that it
does not have::

    spark.read.format("ags1-iceberg").option("catalog", "prod").load("db.table")
    df.write.format("ags1-iceberg").option("catalog", "prod").mode("append").save("db.table")

The options are those in ``known_options``. A frame reads the snapshot that was current when it was
made. Spark's filters are not taken, see ``datasource``: use ``queries.read_table``.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructType

from ...iceberg.distributed import ScanJob
from .. import known_options as known
from .. import options as opt
from ..arrow_rows import spark_schema
from ..planning_errors import in_few_words
from ..registration import register_source
from ..table_access import open_of_options
from .reader import TableReader, build_scan
from .snapshots import Pin, resolve_pin
from .writer import TableWriter

NAME = "ags1-iceberg"


def register(spark: Any) -> None:
    """Register "ags1-iceberg" with a Spark session. Call this in each thread that saves."""
    register_source(spark, Ags1IcebergDataSource)


class Ags1IcebergDataSource(DataSource):  # type: ignore[misc]  # PySpark's types are not read
    """The data source; see the package. Spark makes one for each frame, and pickles it with what
    ``schema`` has found."""

    _pin: Pin | None = None

    @classmethod
    def name(cls) -> str:
        return NAME

    @in_few_words
    def schema(self) -> StructType:
        """Return the columns of the table or the snapshot. Raises as ``open_of_options``, and
        ValueError for a column or snapshot that does not exist."""
        self._check(known.READ)
        table = open_of_options(self.options)
        self._pin = resolve_pin(table, self.options)
        return spark_schema(ScanJob.columns(build_scan(table, self.options, self._pin)))

    @in_few_words
    def reader(self, schema: StructType) -> DataSourceReader:
        self._check(known.READ)
        return TableReader(dict(self.options), schema, self._pin)

    @in_few_words
    def writer(self, schema: StructType, overwrite: bool) -> TableWriter:
        self._check(known.WRITE)
        return TableWriter(dict(self.options), schema, overwrite=overwrite)

    def _check(self, direction: str) -> None:
        """Raise KmsConfigurationError for an option that is a secret, and ValueError for one that
        is not known."""
        opt.refuse_secrets(self.options)
        known.check(self.options, known.TABLES, direction)

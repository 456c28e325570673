"""Tables changed through Iceberg's Java API: types that Spark has not, defaults, equality deletes.

The JVM and its catalogs are the Spark session's, so tables and keys are the same. What our own
Java writes is in ``sources/TableRows.java``.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .java import compiled, iceberg_class_path
from .spark import UNITEST_KMS, SparkTables

Value = Any
"""As in the specification's JSON single-value serialization; NaN and -0.0 as strings."""


class JavaTables:
    """Iceberg's Java API on the tables of ``spark``'s catalogs."""

    def __init__(self, spark: SparkTables) -> None:
        self._spark = spark
        self._jvm = spark.jvm
        self._rows = _table_rows(spark)

    def named(self, name: str) -> Any:
        """Return a class of Iceberg's by its name, with ``$`` before an inner class."""
        return getattr(self._jvm, f"org.apache.iceberg.{name}")

    def type(self, name: str) -> Any:
        """Return a type by the name that it has in metadata: ``fixed[5]``, ``uuid``, …"""
        return self.named("types.Types").fromPrimitiveString(name)

    def create(self, name: str, columns: Mapping[str, str], location: Path, **more: str) -> None:
        """Create an encrypted table of optional columns."""
        catalog, _, table = name.partition(".")
        session = self._spark.session._jsparkSession
        self.named("spark.Spark3Util").loadIcebergCatalog(session, catalog).createTable(
            self.named("catalog.TableIdentifier").parse(table),
            self._schema(columns),
            self.named("PartitionSpec").unpartitioned(),
            f"file:{location}",
            self._properties({"format-version": "3", "encryption.key-id": "keyA"} | more),
        )

    def _schema(self, columns: Mapping[str, str]) -> Any:
        fields = self._jvm.java.util.ArrayList()
        for number, (column, kind) in enumerate(columns.items(), 1):
            field = self.named("types.Types$NestedField")
            fields.add(field.optional(number, column, self.type(kind)))
        return self.named("Schema")(fields)

    def _properties(self, properties: Mapping[str, str]) -> Any:
        found = self._jvm.java.util.HashMap()
        for key, value in properties.items():
            found.put(key, value)
        return found

    def load(self, name: str) -> Any:
        """Return Java's table."""
        return self.named("spark.Spark3Util").loadIcebergTable(
            self._spark.session._jsparkSession, name
        )

    def append(
        self,
        table: Any,
        rows: Sequence[Mapping[str, Value]],
        file_format: str,
        partition: str | None = None,
    ) -> None:
        """Append a file of rows, to the partition of this path (``p=1``) if there are any.
        ``table`` is Java's, or the name of one."""
        loaded = self.load(table) if isinstance(table, str) else table
        self._rows.append(loaded, file_format, partition, json.dumps(rows))

    def create_plain(self, columns: Mapping[str, str], location: Path) -> Any:
        """Return a plain table of optional columns, made without a catalog: Hive's knows not all
        types."""
        return self.named("hadoop.HadoopTables")(
            self._jvm.org.apache.hadoop.conf.Configuration()
        ).create(
            self._schema(columns),
            self.named("PartitionSpec").unpartitioned(),
            self._properties({"format-version": "3"}),
            f"file:{location}",
        )

    def open(self, metadata_file: Path) -> Any:
        """Return a table to read, under the key of the tests' KMS, without a catalog."""
        return self._rows.open(f"file:{metadata_file}", UNITEST_KMS["encryption.kms-impl"])

    def rows(self, table: Any) -> list[list[str | None]]:
        """Return the rows of Java's table, the values as Java prints them, bytes in hex. It must
        have no deletion vectors, which this reader of Java's cannot decrypt."""
        found: list[list[str | None]] = json.loads(self._rows.rows(table))
        return found

    def delete(
        self,
        name: str,
        rows: Sequence[Mapping[str, Value]],
        file_format: str,
        partition: str | None = None,
        *,
        ids: Sequence[int] = (),
        spec_id: int | None = None,
    ) -> None:
        """Write an equality delete file: what equals one of these rows in all its columns, which
        are the table's unless ``ids`` says what they were."""
        table = self.load(name)
        numbers = self._jvm.java.util.ArrayList()
        for field_id in ids or [table.schema().findField(c).fieldId() for c in rows[0]]:
            numbers.add(field_id)
        spec = table.spec().specId() if spec_id is None else spec_id
        self._rows.delete(table, spec, file_format, partition, numbers, json.dumps(rows))

    def add_column(
        self, name: str, column: str, kind: str, default: str | int | float | bytes
    ) -> None:
        """Add a column with a default, which Spark's SQL cannot; times are given as text."""
        of_type, literal = self.type(kind), self.named("expressions.Literal")
        if isinstance(default, bytes):
            value = literal.of(self._jvm.java.nio.ByteBuffer.wrap(bytearray(default)))
        else:
            value = literal.of(default).to(of_type)
        self.load(name).updateSchema().addColumn(column, of_type, None, value).commit()


@functools.cache  # two classes of one name would be one to Py4J
def _table_rows(spark: SparkTables) -> Any:
    """Load our Java into Spark's JVM."""
    gateway = spark.session.sparkContext._gateway
    lang, net = spark.jvm.java.lang, spark.jvm.java.net
    urls = gateway.new_array(net.URL, 1)
    urls[0] = net.URL(f"file:{compiled(iceberg_class_path())}/")
    loader = net.URLClassLoader(urls, lang.Thread.currentThread().getContextClassLoader())
    constructor = loader.loadClass("ags1.interop.TableRows").getConstructor(
        gateway.new_array(lang.Class, 0)
    )
    return constructor.newInstance(gateway.new_array(lang.Object, 0))

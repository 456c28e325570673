"""One Spark for the whole test run, with Iceberg's HiveCatalog on a Derby database in memory.

All catalogs share that metastore, so that another catalog is another client of the same tables. The
settings are those that Spark needs on one machine with no network but 127.0.0.1. Independent of
ags1.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import signal
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from . import jars

DATABASE = "db"
UNITEST_KMS = {"encryption.kms-impl": "org.apache.iceberg.encryption.UnitestKMS"}

_CONF = {
    "spark.driver.memory": "2g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "spark.hadoop.javax.jdo.option.ConnectionURL": "jdbc:derby:memory:ags1;create=true",
    "spark.hadoop.datanucleus.schema.autoCreateAll": "true",
    "spark.hadoop.hive.metastore.schema.verification": "false",
    # Hive's own choices need a pool that Spark does not bring, and lock tables that are not there.
    "spark.hadoop.datanucleus.connectionPoolingType": "dbcp",
    "spark.hadoop.iceberg.engine.hive.lock-enabled": "false",
}


class SparkTables:
    """A Spark session, its catalogs, and the metastore behind them. ``stop`` ends it.

    ``folder`` takes whatever Spark writes.
    """

    def __init__(self, folder: Path) -> None:
        jars.program("java")
        class_path = [*(jars.jar(name) for name in jars.COORDINATES), jars.plugin()]
        jars.pyspark_jars()
        from pyspark.sql import SparkSession

        self.folder = folder
        conf = _CONF | {
            # Not spark.jars, which copies them for each session.
            "spark.driver.extraClassPath": os.pathsep.join(map(str, class_path)),
            "spark.driver.extraJavaOptions": " ".join(
                [
                    *jars.JVM_OPTIONS,
                    f"-Dderby.stream.error.file={folder}/derby.log",
                    f"-Dderby.system.home={folder}",
                    f"-Djava.io.tmpdir={folder}",
                ]
            ),
            "spark.local.dir": str(folder / "local"),
            "spark.sql.warehouse.dir": f"file:{folder}/spark-warehouse",
            "spark.hadoop.hive.metastore.warehouse.dir": f"file:{folder}/hive-warehouse",
        }
        builder = SparkSession.builder.master("local[2]").appName("ags1 interop")
        for name, value in conf.items():
            builder = builder.config(name, value)
        on_interrupt = signal.getsignal(signal.SIGINT)
        self.session: Any = builder.getOrCreate()
        signal.signal(signal.SIGINT, on_interrupt)  # Spark's own would stay when Spark is gone
        self.session.sparkContext.setLogLevel("ERROR")
        self.jvm: Any = self.session._jvm
        self._catalogs: set[str] = set()

    def catalog(
        self, name: str, kms: Mapping[str, str] = UNITEST_KMS, *, keeps_tables: bool = False
    ) -> str:
        """Make a catalog, a new client of the metastore, and return its name.

        ``kms`` are the catalog properties of its KMS. One that keeps tables is like a session that
        never ends: Spark's default is to forget a table that was not used for 30 s.
        """
        assert name not in self._catalogs, "a catalog's properties are read once"
        conf = {
            "type": "hive",
            "clients": "1",
            "warehouse": f"file:{self.folder}/warehouse",
            "cache-enabled": str(keeps_tables).lower(),
            "cache.expiration-interval-ms": "-1",
            **kms,
        }
        return self._add(name, conf)

    def plugin_catalog(self, name: str, properties: Mapping[str, str]) -> str:
        """Make a catalog of our plug-in, whose class ``catalog-impl`` names; return its name.

        Spark keeps loaded tables, as it does by default: ``refresh`` a table that others changed.
        """
        return self._add(name, properties)

    def _add(self, name: str, properties: Mapping[str, str]) -> str:
        self.session.conf.set(f"spark.sql.catalog.{name}", "org.apache.iceberg.spark.SparkCatalog")
        for key, value in properties.items():
            self.session.conf.set(f"spark.sql.catalog.{name}.{key}", value)
        self._catalogs.add(name)
        self.sql(f"CREATE NAMESPACE IF NOT EXISTS {name}.{DATABASE}")
        return name

    def refresh(self, table: str) -> None:
        """Have Spark load a table again."""
        self.sql(f"REFRESH TABLE {table}")

    def sql(self, statement: str) -> list[Any]:
        """Run a statement to its end and return the rows."""
        rows: list[Any] = self.session.sql(statement).collect()
        return rows

    def rows(self, table: str, columns: str = "*", order: str = "id") -> list[tuple[Any, ...]]:
        """Return a table's rows, or those of ``table VERSION AS OF …``."""
        return [tuple(row) for row in self.sql(f"SELECT {columns} FROM {table} ORDER BY {order}")]

    def create(self, table: str, columns: str, location: Path, **properties: str) -> None:
        """Create an encrypted table (its key is keyA unless ``encryption.key-id`` says else)."""
        settings = {"format-version": "3", "encryption.key-id": "keyA"} | properties
        listed = ", ".join(f"'{name}' = '{value}'" for name, value in settings.items())
        self.sql(
            f"CREATE TABLE {table} ({columns}) USING iceberg "
            f"LOCATION 'file:{location}' TBLPROPERTIES ({listed})"
        )

    def register(self, table: str, metadata_file: Path) -> None:
        """Register a metadata.json as a new table: the file is taken as it is."""
        catalog, name = table.split(".", 1)
        self.sql(f"CALL {catalog}.system.register_table('{name}', 'file:{metadata_file}')")

    def metadata_file(self, table: str) -> Path:
        """Return the path of a table's current metadata.json, as the metastore has it."""
        return path_of(self.parameters(table)["metadata_location"])

    def metadata(self, table: str) -> dict[str, Any]:
        """Return a table's current metadata.json, parsed."""
        parsed: dict[str, Any] = json.loads(self.metadata_file(table).read_bytes())
        return parsed

    def parameters(self, table: str) -> dict[str, str]:
        """Return the parameters that the metastore keeps of a table."""
        return dict(self._hive(lambda client: _load(client, table).getParameters()))

    def set_parameters(self, table: str, parameters: Mapping[str, str | None]) -> None:
        """Set parameters that the metastore keeps of a table; None removes one."""

        def alter(client: Any) -> None:
            loaded = _load(client, table)
            for name, value in parameters.items():
                if value is None:
                    loaded.getParameters().remove(name)
                else:
                    loaded.getParameters().put(name, value)
            client.alter_table(loaded.getDbName(), loaded.getTableName(), loaded)

        self._hive(alter)

    def forget(self, tables: Iterable[str]) -> None:
        """Take those tables that the metastore has out of it, and leave their files."""

        def drop(client: Any) -> None:
            for table in tables:
                _, database, name = table.split(".")
                client.dropTable(database, name, False, True)

        self._hive(drop)

    def commit(self, table: str, metadata_file: Path, **parameters: str) -> None:
        """Point the metastore to another metadata.json with its hash, as a Hive commit does.

        ``parameters`` are set too. Java's check of the hash passes when the file has Java's form.
        """
        data = metadata_file.read_bytes()
        committed = {
            "previous_metadata_location": self.parameters(table).get("metadata_location"),
            "metadata_location": f"file:{metadata_file}",
            "metadata_hash": base64.b64encode(hashlib.sha256(data).digest()).decode(),
        }
        self.set_parameters(table, committed | parameters)

    def stop(self) -> None:
        """Stop Spark and end its JVM."""
        from pyspark import SparkContext

        self.session.stop()
        gateway = SparkContext._gateway
        assert gateway is not None
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(30)
        SparkContext._gateway = SparkContext._jvm = None

    def _hive(self, work: Any) -> Any:
        hive = self.jvm.org.apache.hadoop.hive
        # The session's copy, where "spark.hadoop." has been taken off the names.
        settings = self.session._jsparkSession.sessionState().newHadoopConf()
        conf = hive.conf.HiveConf(settings, settings.getClass())
        client = hive.metastore.HiveMetaStoreClient(conf)
        try:
            return work(client)
        finally:
            client.close()


def path_of(location: str) -> Path:
    """Return the path of a ``file:`` location."""
    return Path(unquote(urlparse(location).path))


def _load(client: Any, table: str) -> Any:
    _, database, name = table.split(".")
    return client.getTable(database, name)

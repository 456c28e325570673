"""Reads the tables of the corpus: by ags1 where they lie, and by Spark at their location."""

from __future__ import annotations

import contextlib
import shutil
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ags1.iceberg import open_table
from ags1.kms import from_properties

from .corpus_cases import CORPUS
from .corpus_place import in_place
from .java import JavaError
from .spark import DATABASE, SparkTables, path_of

Given = Mapping[str, Any]
Rows = list[dict[str, Any]]
TABLES = CORPUS / "tables"


def in_order(rows: Rows) -> Rows:
    return sorted(rows, key=lambda row: row["id"])


def read_by_ags1(given: Given) -> Rows:
    """Return a table's rows. Raises Ags1Error."""
    properties = {"encryption.kms-type": "memory"}
    properties |= {f"encryption.kms.key.{k}": v for k, v in given["master_keys"].items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        kms = from_properties(properties)
    table = open_table(
        str(TABLES / given["metadata"]),
        kms,
        {given["location"]: str(TABLES / given["name"])},
        expected_key_id=given["table_key_id"],
        trust_file_size=given["trust_file_size"],
    )
    return in_order(table.scan().to_arrow().to_pylist())


@contextlib.contextmanager
def at_its_location(given: Given) -> Iterator[Path]:
    """Have a copy of a table where its metadata says; yield the path of its metadata.json."""
    with in_place():
        folder = Path(shutil.copytree(TABLES / given["name"], path_of(given["location"])))
        yield folder / "metadata" / given["metadata"].rpartition("/")[2]


class TablesOfSpark:
    """The tables in a Spark session with Iceberg's runtime, until ``close``."""

    # It finds the equality deletes of a file by the file's path, which several tables have.
    _CACHE = "spark.sql.iceberg.executor-cache.enabled"

    def __init__(self, spark: SparkTables) -> None:
        self._spark = spark
        self._cached = self._spark.session.conf.get(self._CACHE, "true")
        self._spark.session.conf.set(self._CACHE, "false")
        self._spark.session.sparkContext.setLogLevel("OFF")  # what it refuses is a result
        self._catalog = self._spark.catalog("corpus")
        self._names: list[str] = []

    def read(self, given: Given) -> Rows:
        """Return a table's rows. Raises JavaError."""
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkException

        name = f"{self._catalog}.{DATABASE}.{given['name']}"
        try:
            with at_its_location(given) as metadata:
                self._names.append(name)
                self._spark.register(name, metadata)
                # A hash, which Java prefers to the key ID, would be that of what was changed.
                known = {"encryption.key-id": given["table_key_id"], "metadata_hash": None}
                self._spark.set_parameters(name, known)
                rows = self._spark.session.sql(f"SELECT * FROM {name}").toArrow()
        except (Py4JJavaError, PySparkException) as error:
            raise JavaError(str(error)) from error
        return in_order(rows.to_pylist())

    def close(self) -> None:
        """Leave the session as it was."""
        self._spark.forget(self._names)
        self._spark.session.sparkContext.setLogLevel("ERROR")
        self._spark.session.conf.set(self._CACHE, self._cached)

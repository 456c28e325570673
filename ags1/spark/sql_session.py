"""Spark sessions that open encrypted tables in SQL, through Iceberg's Java runtime and our plug-in.

``session`` and ``configure`` take a catalog of PyIceberg's configuration (``sql_catalog``). What is
configured already stays: jars, packages and extensions are added to a list. PySpark is imported
when a session is made.
"""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .plugin import jar, packages
from .sql_catalog import SqlCatalog, sql_catalog

EXTENSIONS = "spark.sql.extensions"
_ICEBERG_S = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
_CATALOG = "org.apache.iceberg.spark.SparkCatalog"
_JARS, _PACKAGES = "spark.jars", "spark.jars.packages"
_CLASS_PATH = "spark.driver.extraClassPath"
# Comet's native scan reads data files by itself. It takes a plaintext file in place of an encrypted
# one, which the plug-in refuses.
_COMET_SCAN = "spark.comet.scan.icebergNative.enabled"
# Shuffle and spill files hold whole rows, and stay on the disk if a process is killed. Spark
# encrypts them with a key for each application, which is only in memory.
_UNLESS_GIVEN = {
    _COMET_SCAN: "false",
    "spark.io.encryption.enabled": "true",
    "spark.io.encryption.keySizeBits": "256",
}


def session(
    catalog: str, properties: Mapping[str, str] | None = None, *, builder: Any = None
) -> Any:
    """Return a Spark session in whose SQL ``catalog`` is a catalog of encrypted tables::

        spark = ags1.spark.session("lake")
        spark.sql("SELECT count(*) FROM lake.db.flights")

    The arguments are as in ``configure``; ``builder`` is by default ``SparkSession.builder``.
    Call it before anything else starts Spark in this process, because Spark takes jars only when it
    starts. A session that has them already may get more catalogs.

    Raises as ``configure``, and RuntimeError if Spark does not start or runs without the jars.
    """
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    builder = configure(SparkSession.builder if builder is None else builder, catalog, properties)
    try:
        made = builder.getOrCreate()
    except PySparkRuntimeError as error:
        raise RuntimeError(
            f"Spark did not start ({error}). It says why on standard error. If it could not fetch "
            f"the packages of {_PACKAGES!r}, put their jars on this machine and name them in "
            f"{_JARS!r}"
        ) from error
    _check(made, catalog, properties)
    return made


def configure(builder: Any, catalog: str, properties: Mapping[str, str] | None = None) -> Any:
    """Set in a builder of Spark sessions what ``catalog`` needs in SQL; return the builder.

    ``catalog`` is the name of a catalog in PyIceberg's configuration (file and environment), and
    its name in SQL. ``properties`` override those of the configuration, or describe the catalog
    alone. They have PyIceberg's names. No secret may be among them or in the configuration: Spark
    shows its configuration to its users. An error names the file or the environment variable to use
    instead.

    For a server of Spark Connect, only the catalog is set: ``ags1 spark conf`` prints what the
    server itself needs. Raises FileNotFoundError if this installation has no jar of the plug-in,
    ValueError if Iceberg has no runtime for this Spark or Java cannot open the catalog, and
    KmsConfigurationError for a secret.
    """
    given = getattr(builder, "_options", {})
    if _is_remote(given):
        settings = _catalog_settings(catalog, sql_catalog(catalog, properties))
    else:
        settings = conf(catalog, properties, given=_configured(given))
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder


def conf(
    catalog: str,
    properties: Mapping[str, str] | None = None,
    *,
    spark_version: str | None = None,
    given: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return Spark's settings for a catalog, as ``configure`` sets them. ``given`` are those that
    Spark has already. Raises as ``configure``."""
    found = sql_catalog(catalog, properties)
    given = given or {}
    needed = packages(found.packages, spark_version)
    present = ",".join(given.get(name, "") for name in (_JARS, _PACKAGES, _CLASS_PATH))
    missing = [at for at in needed if not re.search(_artifact(at), present)]
    return {
        _JARS: _extended(given, _JARS, [jar()]),
        **({_PACKAGES: _extended(given, _PACKAGES, missing)} if missing else {}),
        EXTENSIONS: _extended(given, EXTENSIONS, [_ICEBERG_S]),
        **{name: given.get(name, value) for name, value in _UNLESS_GIVEN.items()},
        **_catalog_settings(catalog, found),
    }


def _artifact(coordinates: str) -> str:
    """Return a form of the names of a package, in coordinates and of files, of any version."""
    name = re.sub(r"-\d.*", "", coordinates.split(":")[1])
    return rf"(^|[:/,_]){re.escape(name)}[-:]"


def _extended(given: Mapping[str, str], name: str, more: list[str]) -> str:
    listed = [part.strip() for part in given.get(name, "").split(",")]
    return ",".join(dict.fromkeys([*filter(None, listed), *more]))


def _catalog_settings(name: str, catalog: SqlCatalog) -> dict[str, str]:
    prefix = f"spark.sql.catalog.{name}"
    return {prefix: _CATALOG} | {f"{prefix}.{k}": v for k, v in catalog.properties.items()}


def _is_remote(options: Mapping[str, Any]) -> bool:
    remote = options.get("spark.remote") or os.environ.get("SPARK_REMOTE", "")
    return str(remote).startswith("sc://")


def _configured(options: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings that Spark would start with: those of spark-defaults.conf, of the JVM if
    there is one (spark-submit's), and of a builder, which come first."""
    from pyspark import SparkConf

    return {**defaults(), **dict(SparkConf().getAll()), **options}


def defaults() -> dict[str, str]:
    """Return the settings in spark-defaults.conf; none if there is no such file or no PySpark."""
    folder = os.environ.get("SPARK_CONF_DIR")
    if not folder:
        try:
            from pyspark.find_spark_home import _find_spark_home
        except ImportError:
            return {}
        folder = os.path.join(_find_spark_home(), "conf")
    try:
        lines = (Path(folder) / "spark-defaults.conf").read_text().splitlines()
    except FileNotFoundError:
        return {}
    told = (line.strip() for line in lines)
    pairs = (re.split(r"\s*[=:\s]\s*", line, maxsplit=1) for line in told if line[:1] not in "#!")
    return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}


def _check(spark: Any, catalog: str, properties: Mapping[str, str] | None) -> None:
    """Raise RuntimeError if a session runs without the jars."""
    remedy = f"start Spark with the lines of `ags1 spark conf {catalog}` in spark-defaults.conf"
    if not hasattr(spark, "_jvm"):  # a session of Connect does not show the server's classes
        missing = [] if _ICEBERG_S in spark.conf.get(EXTENSIONS, "") else [_ICEBERG_S]
    else:
        from py4j.java_gateway import JavaPackage

        needed = packages(sql_catalog(catalog, properties).packages)
        needed = {"the jar of the plug-in": "ags1.iceberg.CatalogRules"} | needed
        found = {what: operator.attrgetter(name)(spark._jvm) for what, name in needed.items()}
        # Py4J takes the name of a class that is not there for a package's.
        missing = [what for what, it in found.items() if isinstance(it, JavaPackage)]
        remedy += ", or call ags1.spark.session before anything else starts Spark in this process"
    if missing:
        raise RuntimeError(
            f"this Spark runs without {' and '.join(missing)}, and takes no jars after its start: "
            f"{remedy}"
        )

"""The jars that Spark needs to open encrypted tables in SQL: our plug-in, which ``make jvm`` makes,
Iceberg's Java runtime, drivers of databases, and clients of clouds. Independent of catalogs."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_FOLDER = Path(__file__).with_name("jars")
# The release of Iceberg for each Spark that Iceberg has a runtime for.
_ICEBERG = {"4.0": "1.11.0", "4.1": "1.12.0"}
# Of each package: its coordinates, and a class in it.
_PACKAGES = {
    "runtime": (
        "org.apache.iceberg:iceberg-spark-runtime-{spark}_2.13:{iceberg}",
        "org.apache.iceberg.spark.SparkCatalog",
    ),
    "sqlite": ("org.xerial:sqlite-jdbc:3.50.3.0", "org.sqlite.JDBC"),
    "postgresql": ("org.postgresql:postgresql:42.7.8", "org.postgresql.Driver"),
    "aws": (
        "org.apache.iceberg:iceberg-aws-bundle:{iceberg}",
        "software.amazon.awssdk.services.kms.KmsClient",
    ),
    "gcp": (
        "org.apache.iceberg:iceberg-gcp-bundle:{iceberg}",
        "com.google.cloud.kms.v1.KeyManagementServiceClient",
    ),
    "azure": (
        "org.apache.iceberg:iceberg-azure-bundle:{iceberg}",
        "com.azure.security.keyvault.keys.KeyClient",
    ),
}


def jar() -> str:
    """Return the path of the plug-in's jar, for ``spark.jars``. ``session`` and ``configure`` set
    it. Raises FileNotFoundError if this installation has no jar."""
    found = sorted(_FOLDER.glob("ags1-iceberg-*.jar"))
    if not found:
        raise FileNotFoundError(
            f"there is no jar of the plug-in in {_FOLDER}, because this ags1 was installed without "
            "it: in a checkout of the same version, run `make jvm` (it needs JDK 17 and Maven)"
        )
    return str(found[-1])


def packages(names: Iterable[str], spark_version: str | None = None) -> dict[str, str]:
    """Return the coordinates of packages for ``spark.jars.packages``, each with a class in it.

    ``names`` are ``runtime``, ``sqlite``, ``postgresql``, ``aws``, ``gcp`` and ``azure``.
    ``spark_version`` is by default that of the PySpark that is installed. Raises ValueError if
    Iceberg has no runtime for it, or if there is no PySpark.
    """
    if spark_version is None:
        try:
            spark_version = version("pyspark")
        except PackageNotFoundError:
            raise ValueError(
                "PySpark is not installed: pip install 'ags1[spark]', or name Spark's version"
            ) from None
    spark = ".".join(spark_version.split(".")[:2])
    if spark not in _ICEBERG:
        raise ValueError(
            f"Iceberg has no runtime for Spark {spark_version}: use Spark {' or '.join(_ICEBERG)} "
            f"(pip install 'pyspark=={max(_ICEBERG)}.*')"
        )
    made = (_PACKAGES[name] for name in dict.fromkeys(names))
    return {text.format(spark=spark, iceberg=_ICEBERG[spark]): known for text, known in made}

"""The command ``ags1 spark conf``: what Spark SQL needs to open encrypted tables."""

from __future__ import annotations

import click

from ...errors import Ags1Error
from ..console import print_line
from ..exits import Command


@click.command(cls=Command, short_help="Print Spark's settings for a catalog of encrypted tables.")
@click.argument("catalog", metavar="CATALOG")
@click.option(
    "--spark-version",
    metavar="VERSION",
    help="Spark's version, such as 4.1.  [default: that of the PySpark installed here]",
)
def conf(catalog: str, spark_version: str | None) -> None:
    """Print the lines of spark-defaults.conf with which Spark SQL opens the encrypted tables of a
    catalog, which is one of PyIceberg's configuration.

    What spark-defaults.conf has already is kept in the lists of jars, packages and extensions. No
    secret is printed: a catalog whose configuration has one is refused.

    Examples:
      ags1 spark conf lake >> "$SPARK_CONF_DIR/spark-defaults.conf"
      ags1 spark conf lake --spark-version 4.0
    """
    try:
        from ...spark.sql_session import conf as settings_of
        from ...spark.sql_session import defaults

        settings = settings_of(catalog, spark_version=spark_version, given=defaults())
    except ImportError as error:
        raise click.UsageError(f"{error}: pip install 'ags1[spark,iceberg]'") from None
    except Ags1Error:
        raise
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    width = max(map(len, settings)) + 1
    for name, value in settings.items():
        # The file has the form of Java's properties.
        print_line(f"{name:{width}} " + value.replace("\\", "\\\\"))

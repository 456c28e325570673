"""Runs small queries on a session of Spark, and ends its JVM. With ``-XX:ArchiveClassesAtExit`` the
JVM then archives the classes that it has loaded. The JVMs of the tests start from the archive: see
the Makefile."""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from pyspark import SparkContext
from pyspark.sql import SparkSession


def main(folder: Path) -> None:
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.log.level", "ERROR")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.local.dir", str(folder))
        .config("spark.sql.warehouse.dir", f"file:{folder}/warehouse")
        .getOrCreate()
    )
    numbers = session.range(100).repartition(2).mapInArrow(lambda batches: batches, "id long")
    numbers.selectExpr("id", "id % 7 AS v", "CAST(id AS string) AS s").write.parquet(f"{folder}/t")
    session.read.parquet(f"{folder}/t").createOrReplaceTempView("t")
    session.sql("SELECT v, count(s) FROM t WHERE id > 3 GROUP BY v ORDER BY v").collect()
    session.sparkContext.parallelize(range(4), 2).map(str).collect()
    session.stop()
    gateway = SparkContext._gateway
    assert gateway is not None
    gateway.shutdown()
    gateway.proc.stdin.close()
    sys.exit(gateway.proc.wait())


if __name__ == "__main__":
    with TemporaryDirectory() as made:
        main(Path(made))

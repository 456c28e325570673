"""A program for ``test_versions`` and ``test_standalone``: each kind of work on Spark, once.

``python cluster_job.py MASTER FOLDER KEYRING [NAME=VALUE ...]``: a bulk job there and back, each
data source, and a job on a table, on the cluster
MASTER with the settings given. Prints one JSON document with what each of them found. Imports
nothing of the tests: it is a user's program.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import __version__ as pyspark_version
from pyspark.sql import SparkSession

from ags1.files.keys import KmsConfig
from ags1.iceberg import load_catalog
from ags1.spark import datasource, iceberg_source, jobs, tables

LINES = [f"line {number}" for number in range(1000)]


def main(master: str, folder: Path, keyring: str, settings: dict[str, str]) -> dict[str, Any]:
    builder = SparkSession.builder.master(master).appName("ags1 cluster")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    said: dict[str, Any] = {"pyspark": pyspark_version, "python": list(sys.version_info[:2])}
    try:
        said["bulk"] = bulk(spark, folder, keyring)
        said["files"] = files(spark, folder, keyring)
        said["table"] = table(spark, folder, keyring)
    finally:
        spark.stop()
    return said


def bulk(spark: Any, folder: Path, keyring: str) -> dict[str, Any]:
    kms = KmsConfig({"encryption.kms-type": "local", "kms.local.keyring": keyring})
    plain = {f"d{n % 3}/{n}": os.urandom(1000 * n) for n in range(20)}
    plain["large"] = os.urandom(110 << 20)
    for name, data in plain.items():
        path = folder / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    with_ledger = {"ledger": folder / "ledger", "kms": kms}
    sealed = jobs.encrypt_files(
        spark, folder / "in", folder / "sealed", key_id="default", **with_ledger
    )
    verified = jobs.verify_files(spark, None, **with_ledger)
    opened = jobs.decrypt_files(spark, None, folder / "back", **with_ledger)
    same = all((folder / "back" / name).read_bytes() == data for name, data in plain.items())
    failures = [str(failure) for summary in (sealed, opened) for failure in summary.failures]
    counts = [sealed.done, verified.done, opened.done]
    return {"counts": counts, "same": same, "failures": failures}


def files(spark: Any, folder: Path, keyring: str) -> dict[str, Any]:
    datasource.register(spark)
    options = {"keyring": keyring, "key": "default", "ledger": str(folder / "rows-ledger")}
    rows = spark.createDataFrame([(line,) for line in LINES], "value string").repartition(2)
    target = str(folder / "rows")
    rows.write.format("ags1").options(**options, inner="text").mode("append").save(target)
    read = spark.read.format("ags1").options(**options, inner="text").load(target)
    blocks = spark.read.format("ags1").options(**options).load(target)
    return {
        "same": sorted(row.value for row in read.collect()) == sorted(LINES),
        "bytes": sum(row.length for row in blocks.select("length").collect()),
        "selected": read.where("value = 'line 7'").count(),
    }


def table(spark: Any, folder: Path, keyring: str) -> dict[str, Any]:
    iceberg_source.register(spark)
    kms = {"encryption.kms-type": "local", "kms.local.keyring": keyring}
    place = {
        "type": "sql",
        "uri": f"sqlite:///{folder}/catalog.db",
        "warehouse": f"file://{folder}/warehouse",
    }
    with load_catalog("lake", **place, **kms) as catalog:
        catalog.create_namespace("db")
        made = catalog.create_table(
            "db.t",
            pa.schema([("id", pa.int64()), ("name", pa.string())]),
            properties={"encryption.key-id": "default"},
        )
        made.append(pa.table({"id": range(100), "name": [f"n{n}" for n in range(100)]}))
        options = {"catalog": "lake", **{f"catalog.{k}": v for k, v in place.items()}, **kms}
        more = spark.range(100, 300, 1, 2).selectExpr("id", "concat('n', id) as name")
        more.write.format("ags1-iceberg").options(**options).mode("append").save("db.t")
        read = spark.read.format("ags1-iceberg").options(**options).load("db.t")
        rows = read.selectExpr("count(*) as n", "sum(id) as total").collect()[0]
        names = read.where("id >= 290").orderBy("id").collect()
        report = tables.verify_table(spark, catalog.load_table("db.t"), options)
    return {
        "count": rows.n,
        "sum": rows.total,
        "names": [row.name for row in names],
        "verified": report.ok,
    }


if __name__ == "__main__":
    given = dict(argument.split("=", 1) for argument in sys.argv[4:])
    print(json.dumps(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], given)))

"""A program for ``test_leaks``: jobs of every kind, and all that Spark shows of them, in files.

``python leak_job.py FOLDER KEYRING``, with the tests' folder on PYTHONPATH: FOLDER has ``sealed``,
encrypted lines with sidecars, ``damaged``, some that do not open, ``plain``, files to encrypt, and
``catalog.db`` with the table ``db.t``. What is shown goes to FOLDER/shown.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from leaks import api
from pyspark.sql import SparkSession

from ags1.spark import datasource, iceberg_source, jobs
from ags1.spark.tables import rekey_table, verify_table


def main(folder: Path, keyring: str) -> None:
    shown = folder / "shown"
    (shown / "events").mkdir(parents=True)
    conf = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": f"file:{shown}/events",
        "spark.eventLog.compress": "false",
        "spark.local.dir": str(shown / "local"),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": f"file:{folder}/spark-warehouse",
        "spark.sql.debug.maxToStringFields": "10000",
        "spark.driver.extraJavaOptions": f"-XX:-UsePerfData -Djava.io.tmpdir={folder}",
    }
    builder = SparkSession.builder.master("local[2]").appName("ags1 leaks")
    for name, value in conf.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("DEBUG")
    datasource.register(spark)
    iceberg_source.register(spark)
    texts = bulk(spark, folder, keyring) + run(spark, folder, keyring)
    (shown / "texts").write_text("\n".join(texts))
    (shown / "api").write_text("\n".join(api(spark)))
    spark.stop()


def bulk(spark: Any, folder: Path, keyring: str) -> list[str]:
    """Run the jobs over files; return what they say."""
    kms = jobs.KmsConfig({"encryption.kms-type": "local", "kms.local.keyring": keyring})
    ledger, sealed = folder / "ledger", folder / "bulk"
    encrypted = jobs.encrypt_files(
        spark, folder / "plain", sealed, ledger=ledger, kms=kms, key_id="default"
    )
    damaged = sealed / "damaged.txt.ags1"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    verified = jobs.verify_files(spark, None, ledger=ledger, kms=kms)
    decrypted = jobs.decrypt_files(spark, None, folder / "back", ledger=ledger, kms=kms)
    rewrapped = jobs.rewrap_ledger(spark, ledger=ledger, kms=kms, to_key_id="other")
    outcomes = (encrypted, verified, decrypted, rewrapped)
    assert [(o.done, o.failed) for o in outcomes] == [(2, 0), (1, 1), (1, 1), (2, 0)]
    return [repr(outcome) for outcome in outcomes]


def run(spark: Any, folder: Path, keyring: str) -> list[str]:
    """Run the jobs; return their plans, schemas, and the exceptions of those that fail."""
    table = {
        "catalog": "leaks",
        "catalog.type": "sql",
        "catalog.uri": f"sqlite:///{folder}/catalog.db",
        "catalog.warehouse": f"file://{folder}/warehouse",
        "keyring": keyring,
    }
    files = spark.read.format("ags1").option("keyring", keyring)
    lines = files.option("inner", "text").load(str(folder / "sealed"))
    blocks = spark.read.format("ags1").option("keyring", keyring).load(str(folder / "sealed"))
    rows = spark.read.format("ags1-iceberg").options(**table).load("db.t")
    texts = []
    for frame in (lines, blocks.drop("content"), rows):
        frame.groupBy(frame.columns[0]).count().collect()
        texts += [str(frame.schema), frame._jdf.queryExecution().toString()]
    (lines.write.format("ags1").options(keyring=keyring, inner="text").mode("append")).save(
        str(folder / "written")
    )
    to_ledger = {"keyring": keyring, "inner": "text", "ledger": f"{folder}/ledger-of-rows"}
    (lines.write.format("ags1").options(**to_ledger).mode("append")).save(f"{folder}/in-ledger")
    again = spark.read.format("ags1").options(**to_ledger).load(f"{folder}/in-ledger")
    assert again.count() == lines.count()
    texts.append(again._jdf.queryExecution().toString())
    rows.repartition(2).write.format("ags1-iceberg").options(**table).mode("append").save("db.t")
    texts.append(repr(verify_table(spark, "db.t", table)))
    texts.append(repr(rekey_table(spark, "db.t", table)))
    lines.createOrReplaceTempView("lines")
    texts += [str(spark.sql("DESCRIBE EXTENDED lines").collect())]
    failing = files.option("inner", "text").load(str(folder / "damaged"))
    bad = rows.selectExpr("coalesce(cast(raise_error('on purpose') as long), 1) as id")
    attempts = [
        lambda: failing.collect(),
        lambda: bad.write.format("ags1-iceberg").options(**table).mode("append").save("db.t"),
        lambda: (
            files.option("key", "nobody")
            .option("trusted_keys", "nobody")
            .load(str(folder / "sealed"))
        ),
    ]
    for attempt in attempts:
        try:
            attempt()
        except Exception as error:
            texts += [str(error), repr(error)]
        else:
            raise AssertionError("this was to fail")
    return texts


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])

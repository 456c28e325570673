"""A program for ``test_plugin_session``: a session of ``ags1.spark``, statements in SQL, and all
that Spark shows of them.

``python -m interop.session_job FOLDER``, with the tests' folder on PYTHONPATH. FOLDER/job.json has
the properties of the catalogs ``lake`` and ``tokens``, paths of jars, and the URL of a server of
Spark Connect or null. What is shown goes to FOLDER/shown.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from leaks import api
from pyspark.sql import SparkSession

import ags1.spark

TABLE = "lake.db.t"
MERGE = f"""
    MERGE INTO {TABLE} t
    USING (SELECT * FROM VALUES (2, 'DL'), (9, 'WN') AS v(id, carrier)) s ON t.id = s.id
    WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"""
STATEMENTS = (
    f"INSERT INTO {TABLE} VALUES (4, 'AS'), (5, NULL)",
    MERGE,
    f"UPDATE {TABLE} SET carrier = 'XX' WHERE id = 5",
    f"DELETE FROM {TABLE} WHERE id = 4",
    f"CREATE TABLE lake.db.made USING iceberg TBLPROPERTIES ('format-version' = '3', "
    f"'encryption.key-id' = 'default') AS SELECT * FROM {TABLE}",
    "CALL lake.system.rewrite_data_files(table => 'db.t', options => map('rewrite-all', 'true'))",
    f"CALL lake.system.rewrite_manifests('{TABLE.partition('.')[2]}')",
)
QUERIES = (
    f"SELECT carrier, count(*) FROM {TABLE} WHERE id > 0 GROUP BY carrier",
    f"SELECT a.id FROM {TABLE} a JOIN lake.db.made b ON a.id = b.id",
    f"SELECT file_path, record_count FROM {TABLE}.files",
    f"SELECT snapshot_id, summary FROM {TABLE}.snapshots",
)
SHOWN = (f"DESCRIBE EXTENDED {TABLE}", f"SHOW TBLPROPERTIES {TABLE}", "SET -v")
FAILING = (
    "SELECT sum(length(carrier)) FROM lake.db.damaged",
    "CREATE TABLE lake.db.no USING iceberg TBLPROPERTIES ('format-version' = '3', "
    "'encryption.key-id' = 'nobody') AS SELECT 1 AS id",
)


def main(folder: Path) -> None:
    job = json.loads((folder / "job.json").read_text())
    shown = folder / "shown"
    (shown / "events").mkdir(parents=True)
    builder = SparkSession.builder
    if job["url"]:
        builder = builder.remote(job["url"])
    else:
        builder = builder.master("local[2]")
        for name, value in _conf(folder, shown, job["jars"]).items():
            builder = builder.config(name, value)
    spark = ags1.spark.session("lake", job["lake"], builder=builder)
    if not job["url"]:
        spark.sparkContext.setLogLevel("DEBUG")
    texts = run(spark)
    if job["tokens"]:
        # Of any session, Apache's HTTP client logs what it sends.
        spark.sparkContext.setLogLevel("INFO")
        ags1.spark.session("tokens", job["tokens"])
        assert [row[0] for row in spark.sql("SHOW NAMESPACES IN tokens").collect()] == ["named"]
    (shown / "texts").write_text("\n".join(texts))
    if not job["url"]:
        (shown / "api").write_text("\n".join(api(spark)))
    rows = [tuple(row) for row in spark.sql(f"SELECT * FROM {TABLE} ORDER BY id").collect()]
    spark.stop()
    print(json.dumps(rows))


def run(spark: Any) -> list[str]:
    """Run the statements; return what they answer, their plans, and the errors of those that
    fail."""
    texts = []
    for statement in STATEMENTS:
        texts.append(str(spark.sql(statement).collect()))
    for query in (*QUERIES, MERGE):
        for mode in ("EXTENDED", "CODEGEN"):
            texts.append(spark.sql(f"EXPLAIN {mode} {query}").collect()[0][0])
    for query in (*QUERIES, *SHOWN):
        texts.append(str(spark.sql(query).collect()))
    for statement in FAILING:
        try:
            spark.sql(statement).collect()
        except Exception as error:
            texts += [str(error), repr(error)]
        else:
            raise AssertionError("this was to fail")
    return texts


def _conf(folder: Path, shown: Path, jars: list[str]) -> dict[str, str]:
    return {
        "spark.jars": ",".join(jars),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": f"file:{shown}/events",
        "spark.eventLog.compress": "false",
        "spark.local.dir": str(folder / "local"),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.debug.maxToStringFields": "10000",
        "spark.sql.warehouse.dir": f"file:{folder}/spark-warehouse",
        "spark.driver.extraJavaOptions": f"-XX:-UsePerfData -Djava.io.tmpdir={folder}",
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""A program for ``test_side_by_side``: Iceberg's Java runtime and "ags1-iceberg" in one session.

``python side_by_side_job.py FOLDER``, with the tests' folder on PYTHONPATH and the plug-in
``java_unitest_kms`` in FOLDER. Each reads what the other has written; what they read is printed as
one JSON document.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from interop.metastore import served_metastore
from interop.spark import SparkTables
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType, TimestamptzType

from ags1.iceberg import load_catalog
from ags1.spark import iceberg_source

_KMS = {"encryption.kms-impl": "java_unitest_kms:Kms"}


def main(folder: Path) -> dict[str, Any]:
    sys.path.insert(0, str(folder))
    tables = SparkTables(folder / "java")
    spark = tables.session
    spark.sparkContext.addPyFile(str(folder / "java_unitest_kms.py"))
    iceberg_source.register(spark)
    catalog = tables.catalog("enc")
    said: dict[str, Any] = {}

    # Java writes, we read.
    java_s = f"{catalog}.db.java_s"
    tables.create(
        java_s,
        "id bigint, name string, at timestamp, amount decimal(9,2), tags array<string>",
        folder / "java_s",
        **{"write.delete.mode": "merge-on-read"},
    )
    tables.sql(
        f"INSERT INTO {java_s} SELECT id, concat('n', id), timestamp_seconds(id), "
        "cast(id / 4 as decimal(9,2)), array(cast(id as string)) FROM range(500)"
    )
    tables.sql(f"DELETE FROM {java_s} WHERE id % 10 = 3")
    ours = spark.read.format("ags1-iceberg").options(**_KMS, key="keyA")
    ours = ours.load(f"file://{tables.metadata_file(java_s)}")
    said["java's by java"] = spark.table(java_s).orderBy("id").toJSON().collect()
    said["java's by us"] = ours.orderBy("id").toJSON().collect()
    joined = ours.alias("a").join(spark.table(java_s).alias("b"), "id")
    said["joined"] = joined.where("a.name = b.name and a.at = b.at").count()

    # We write, Java reads.
    place = {
        "catalog.type": "sql",
        "catalog.uri": f"sqlite:///{folder}/catalog.db",
        "catalog.warehouse": f"file://{folder}/warehouse",
    }
    plain = {name.removeprefix("catalog."): value for name, value in place.items()}
    made = load_catalog("side", **plain, **_KMS)
    made.create_namespace("db")
    schema = Schema(
        NestedField(1, "id", LongType()),
        NestedField(2, "name", StringType()),
        NestedField(3, "at", TimestamptzType()),
    )
    for file_format in ("parquet", "avro"):
        properties = {"encryption.key-id": "keyA", "write.format.default": file_format}
        made.create_table(f"db.{file_format}", schema, properties=properties)
        frame = spark.table(java_s).select("id", "name", "at")
        writer = frame.write.format("ags1-iceberg").options(**place, **_KMS, catalog="side")
        writer.mode("append").save(f"db.{file_format}")
        location = made.load_table(f"db.{file_format}").metadata_location
        tables.register(f"{catalog}.db.{file_format}", Path(location.removeprefix("file://")))
        found = spark.table(f"{catalog}.db.{file_format}")
        said[f"ours by java, {file_format}"] = found.orderBy("id").toJSON().collect()
    said["expected"] = frame.orderBy("id").toJSON().collect()

    # One table of one metastore, which both write to by turns.
    shared = f"{catalog}.db.shared"
    tables.create(
        shared,
        "id bigint, name string, at timestamp",
        folder / "shared",
        # This metastore is of Hive 2, and has no tables for locks.
        **{"engine.hive.lock-enabled": "false"},
    )
    tables.sql(f"INSERT INTO {shared} SELECT id, name, at FROM {java_s} WHERE id < 100")
    with served_metastore(tables) as uri:
        lake = {
            "catalog": "lake",
            "catalog.type": "hive",
            "catalog.uri": uri,
            "catalog.hive.hive2-compatible": "true",
            **_KMS,
        }
        ours = spark.read.format("ags1-iceberg").options(**lake, key="keyA")
        frame.where("id >= 100 and id < 200").write.format("ags1-iceberg").options(**lake).mode(
            "append"
        ).save("db.shared")
        tables.sql(f"INSERT INTO {shared} SELECT id, name, at FROM {java_s} WHERE id >= 200")
        tables.sql(f"DELETE FROM {shared} WHERE id % 10 = 4")
        said["shared by java"] = spark.table(shared).orderBy("id").toJSON().collect()
        said["shared by us"] = ours.load("db.shared").orderBy("id").toJSON().collect()
        said["snapshots"] = spark.table(f"{shared}.snapshots").count()
        said |= compared(tables, catalog, lake, folder)
    said["shared, expected"] = frame.where("id % 10 <> 4").orderBy("id").toJSON().collect()
    tables.stop()
    return said


def compared(
    tables: SparkTables, catalog: str, lake: dict[str, str], folder: Path
) -> dict[str, list[Any]]:
    """Return what Java and we make of the same options: of time travel, of appended rows, and of
    overwrites of equal tables, each as a pair."""
    spark = tables.session
    shared = f"{catalog}.db.shared"
    snapshots = spark.table(f"{shared}.snapshots").orderBy("committed_at").collect()
    ids = [str(row.snapshot_id) for row in snapshots]
    tables.sql(f"ALTER TABLE {shared} CREATE TAG early AS OF VERSION {ids[1]}")
    at = spark.sql(
        f"SELECT unix_millis(committed_at) AS at FROM {shared}.snapshots "
        f"WHERE snapshot_id = {ids[1]}"
    ).first()["at"]
    said: dict[str, list[Any]] = {}

    def read(options: dict[str, str], java_s: str) -> None:
        ours = spark.read.format("ags1-iceberg").options(**lake, key="keyA", **options)
        both = [spark.sql(f"SELECT id FROM {java_s}"), ours.load("db.shared")]
        said[f"read {options}"] = [sorted(row.id for row in frame.collect()) for frame in both]

    # Java's runtime has no options for a tag and a time any more, but these clauses.
    read({"branch": "early"}, f"{shared} VERSION AS OF 'early'")
    read({"snapshot-id": ids[0]}, f"{shared} VERSION AS OF {ids[0]}")
    moment = f"{shared} TIMESTAMP AS OF timestamp_millis({at} - {{}})"
    read({"as-of-timestamp": str(at)}, moment.format(0))
    read({"as-of-timestamp": str(at - 1)}, moment.format(1))

    java_s, ours = f"{catalog}.db.java_over", f"{catalog}.db.ours_over"
    for table in (java_s, ours):
        tables.create(
            table,
            "id bigint, name string, at timestamp",
            folder / table.rpartition(".")[2],
            # This metastore is of Hive 2, and has no tables for locks.
            **{"engine.hive.lock-enabled": "false", "write.delete.mode": "merge-on-read"},
        )
        tables.sql(f"INSERT INTO {table} SELECT id, name, at FROM {shared} WHERE id < 20")
        tables.sql(f"ALTER TABLE {table} ADD PARTITION FIELD bucket(4, id)")
        tables.sql(f"INSERT INTO {table} SELECT id, name, at FROM {shared} WHERE id >= 20")
        tables.sql(f"DELETE FROM {table} WHERE id % 7 = 3")
    new = spark.table(shared).where("id = 101 or id = 208").selectExpr("id", "'new' name", "at")
    options = {"overwrite-mode": "dynamic"}
    new.write.format("iceberg").options(**options).mode("overwrite").save(java_s)
    writer = new.write.format("ags1-iceberg").options(**lake, **options).mode("overwrite")
    writer.save("db.ours_over")
    spark.catalog.refreshTable(ours)
    said["overwritten"] = [
        spark.table(table).orderBy("id").toJSON().collect() for table in (java_s, ours)
    ]
    last = "SELECT operation, summary FROM {}.snapshots ORDER BY committed_at DESC LIMIT 1"
    rows = [spark.sql(last.format(table)).first() for table in (java_s, ours)]
    counted = ("replace-partitions", "deleted-data-files", "deleted-records", "total-records")
    said["overwritten, summary"] = [
        [row.operation, *(row.summary.get(name) for name in counted)] for row in rows
    ]
    return said


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))

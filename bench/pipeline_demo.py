"""The pipeline on Spark, on real data: ``make pipeline``.

Makes an encrypted table in Python, queries and changes it in Spark SQL, and reads it in Python
again. Then cuts the flights of ``bench.demo`` into Avro files and does with them what a pipeline
would do, on all cores of this machine: encrypts them into a folder with a ledger, sees that there
is nothing left to do, queries the encrypted files and the ledger, writes what they hold into an
encrypted Iceberg table and reads that, and finds the one bit that was flipped. Needs Java 17; all
is made in a temporary folder.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import fastavro

from .demo import (
    CANCELLED,
    CONFIGURATION,
    FLIGHTS,
    WORST_CARRIERS,
    call,
    console,
    flights_file,
    flip_a_bit,
    run,
    step,
)

FILES = 24
SETTINGS = """\
spark.master local[*]
spark.driver.memory 1g
spark.ui.enabled false
spark.ui.showConsoleProgress false
spark.sql.shuffle.partitions 4
"""
# What Spark says while it starts is no part of the story.
LOGGING = """\
appender.none.type = Null
appender.none.name = none
rootLogger.level = off
rootLogger.appenderRef.none.ref = none
"""


def main() -> None:
    if shutil.which("java") is None:
        sys.exit("Spark needs Java, and there is no java on this machine: install JDK 17")
    flights = flights_file()
    with tempfile.TemporaryDirectory(prefix="ags1-pipeline-") as folder:
        os.chdir(folder)
        settings = Path("conf")
        settings.mkdir()
        (settings / "spark-defaults.conf").write_text(SETTINGS)
        (settings / "log4j2.properties").write_text(LOGGING)
        Path(".pyiceberg.yaml").write_text(CONFIGURATION.format(folder=folder))
        os.environ |= {
            "SPARK_CONF_DIR": str(settings.absolute()),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
            "PYICEBERG_HOME": folder,
            "AGS1_KEYRING": f"{folder}/keyring.json",
        }
        spark = in_sql()
        cut(flights, Path("in"))
        encrypt()
        go_on_where_it_was(spark)
        rows = query_files(spark)
        look_at_the_ledger(spark)
        to_a_table(spark, rows)
        break_it(spark)
        spark.stop()
    console.print("\n[bold]That was it.[/] docs/spark.md says the rest.")


def in_sql() -> Any:
    """Create a table in Python, change it in Spark SQL, and read it in Python. Return the
    session."""
    step("An encrypted table, made in Python: a catalog in SQLite, a master key in a keyring")
    import pyarrow as pa

    from ags1.iceberg import load_catalog

    run("ags1 keygen")
    call('catalog = load_catalog("demo")')
    call('table = catalog.create_table("db.flights", …, {"encryption.key-id": "default"})')
    catalog = load_catalog("demo")
    catalog.create_namespace("db")
    rows = pa.table({"id": [1, 2, 3], "carrier": ["UA", "AA", "UA"]})
    properties = {"encryption.key-id": "default"}
    table = catalog.create_table("db.flights", rows.schema, properties=properties)
    table.append(rows)
    step("The same table in Spark SQL: Iceberg's own runtime, with our catalogs and keys")
    call('spark = ags1.spark.session("demo")')
    spark = session()
    query = "SELECT carrier, count(*) FROM demo.db.flights GROUP BY carrier ORDER BY 1"
    call(f'spark.sql("{query}")')
    for carrier, flights in spark.sql(query).collect():
        console.print(f"  {carrier}  {flights} flights")
    change = """\
    MERGE INTO demo.db.flights t
    USING (SELECT * FROM VALUES (2, 'DL'), (4, 'WN') AS v(id, carrier)) s ON t.id = s.id
    WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"""
    call('spark.sql("""')
    console.print(change + '""")')
    spark.sql(change)
    call("table.refresh().scan().to_arrow()")
    found = table.refresh().scan().to_arrow().sort_by("id").to_pylist()
    for row in found:
        console.print(f"  {row['id']}  {row['carrier']}")
    assert [row["carrier"] for row in found] == ["UA", "DL", "UA", "WN"]
    return spark


def session() -> Any:
    import ags1.spark
    from ags1.spark import datasource, iceberg_source

    # Spark tells there what it fetches, and why it does not start.
    before = os.dup(2)
    with Path("spark.log").open("wb") as log:
        os.dup2(log.fileno(), 2)
    try:
        spark = ags1.spark.session("demo")
    except RuntimeError:
        os.write(before, Path("spark.log").read_bytes())
        raise
    finally:
        os.dup2(before, 2)
        os.close(before)
    datasource.register(spark)
    iceberg_source.register(spark)
    return spark


def cut(flights: Path, folder: Path) -> None:
    """Cut an Avro file into several, between two of its blocks, as a program may that knows none
    of its columns."""
    folder.mkdir()
    with flights.open("rb") as file:
        blocks = list(fastavro.block_reader(file))
        starts = [block.offset for block in blocks]
        bounds = [starts[len(starts) * n // FILES] for n in range(FILES)]
        file.seek(0)
        header = file.read(starts[0])
        for number, (begin, end) in enumerate(pairwise([*bounds, flights.stat().st_size])):
            file.seek(begin)
            (folder / f"flights-{number:02}.avro").write_bytes(header + file.read(end - begin))


def encrypt() -> None:
    step(f"{FLIGHTS:,} flights in {FILES} Avro files, encrypted by Spark, each under a fresh key")
    run("ags1 spark encrypt in sealed --ledger ledger --key default --master 'local[*]'")


def kms() -> Any:
    from ags1.files.keys import KmsConfig

    keyring = os.path.abspath("keyring.json")
    return KmsConfig({"encryption.kms-type": "local", "kms.local.keyring": keyring})


def go_on_where_it_was(spark: Any) -> None:
    step("The same job again: the ledger has all files as done. Then one source changes")
    from ags1.spark.jobs import encrypt_files

    for _ in range(2):
        call('encrypt_files(spark, "in", "sealed", ledger="ledger", kms=kms, key_id="default")')
        done = encrypt_files(spark, "in", "sealed", ledger="ledger", kms=kms(), key_id="default")
        console.print(f"  {done.done} encrypted, {done.unchanged} done already")
        os.utime("in/flights-03.avro")
    assert (done.done, done.unchanged) == (1, FILES - 1)


def query_files(spark: Any) -> Any:
    """Return the rows of the encrypted files."""
    step("The encrypted files as rows: read, split and decoded on the executors")
    call('rows = spark.read.format("ags1").option("ledger", "ledger")')
    call('rows = rows.option("inner", "avro").load("sealed")')
    source = spark.read.format("ags1").option("ledger", "ledger")
    rows = source.option("inner", "avro").load("sealed")
    rows.createOrReplaceTempView("flights")
    call('spark.sql("""')
    console.print(WORST_CARRIERS + '""")')
    for carrier, flights, delay in spark.sql(WORST_CARRIERS).collect():
        console.print(f"  {carrier}  {flights:6,} flights  {delay:4} minutes late on average")
    count = rows.count()
    console.print(f"  {count:,} flights in all")
    assert count == FLIGHTS
    return rows


def look_at_the_ledger(spark: Any) -> None:
    step("The ledger: Parquet, with each file's wrapped key and what became of it")
    query = """\
    SELECT operation, status, count(*), sum(source_size), sum(target_size)
    FROM parquet.`ledger` GROUP BY operation, status"""
    call('spark.sql("""')
    console.print(query + '""")')
    found = spark.sql(query)
    for operation, status, count, size, sealed in found.collect():
        console.print(f"  {operation} {status}: {count} files, {size:,} bytes became {sealed:,}")


def to_a_table(spark: Any, rows: Any) -> None:
    step("From encrypted files into an encrypted Iceberg table, in one commit")
    from ags1.iceberg import load_catalog

    catalog = load_catalog("demo")
    catalog.create_namespace("nyc")
    call('catalog.create_table("nyc.flights", rows.limit(0).toArrow().schema,')
    call('    properties={"encryption.key-id": "default"})')
    schema = rows.limit(0).toArrow().schema
    catalog.create_table("nyc.flights", schema, properties={"encryption.key-id": "default"})
    call('rows.where("dep_time is not null").write.format("ags1-iceberg")')
    call('    .option("catalog", "demo").mode("append").save("nyc.flights")')
    writer = rows.where("dep_time is not null").write.format("ags1-iceberg")
    writer.option("catalog", "demo").mode("append").save("nyc.flights")
    call('spark.read.format("ags1-iceberg").option("catalog", "demo")')
    call('    .option("filter", "dest = \'SFO\'").load("nyc.flights").count()')
    source = spark.read.format("ags1-iceberg").option("catalog", "demo")
    count = source.load("nyc.flights").count()
    to_sfo = source.option("filter", "dest = 'SFO'").load("nyc.flights").count()
    console.print(f"  {count:,} flights left the ground, {to_sfo:,} of them to San Francisco")
    assert count == FLIGHTS - CANCELLED


def break_it(spark: Any) -> None:
    step("Flipping one bit of one file")
    from ags1.spark.jobs import verify_files

    flip_a_bit(Path("sealed/flights-07.avro.ags1"))
    call('verify_files(spark, None, ledger="ledger", kms=kms)')
    found = verify_files(spark, None, ledger="ledger", kms=kms())
    console.print(f"  {found.done} files are whole, {found.failed} is not")
    (failure,) = found.failures
    said = f"  {os.path.basename(failure.path)}: {failure.kind}: {failure.message}"
    console.print(said, markup=False, soft_wrap=True)
    assert found.done == FILES - 1


if __name__ == "__main__":
    main()

"""Queries as written: through the plug-in on a catalog in SQLite, and by Iceberg's own runtime on a
Hive catalog. Both tables have the same rows, and rounds alternate.

``python -m bench.spark_sql --rows 3000000 --rounds 5`` prints a table for bench/results/spark.md.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from ags1.kms.local import create_key
from tests.interop.spark import DATABASE, SparkTables

QUERIES = {
    "count": "SELECT count(*) FROM {t}",
    "sum": "SELECT sum(distance), max(delay) FROM {t}",
    "group by": "SELECT carrier, count(*), avg(delay) FROM {t} GROUP BY carrier",
    "selective where": "SELECT count(*), sum(delay) FROM {t} WHERE id BETWEEN 1000 AND 2000",
    "join": "SELECT count(*) FROM {t} a JOIN {t} b ON a.id = b.next WHERE b.delay > 170",
    "full scan": "SELECT sum(hash(*)) FROM {t}",
}
ROWS = (
    "id, id + 1 AS next, pmod(hash(id), 20) AS carrier, "
    "CAST(pmod(hash(id, 1), 180) AS INT) AS delay, "
    "CAST(pmod(hash(id, 2), 3000) AS BIGINT) AS distance, rand(7) AS fuel, "
    "concat('N', pmod(hash(id, 3), 9000)) AS tail, CAST(id AS STRING) AS note"
)


def tables(spark: SparkTables, folder: Path, rows: int) -> dict[str, str]:
    """Make the two tables; return their names."""
    keyring = folder / "keyring.json"
    create_key(str(keyring), "keyA")
    spark.catalog("hive")
    spark.plugin_catalog(
        "sqlite",
        {
            "catalog-impl": "ags1.iceberg.EncryptedJdbcCatalog",
            "uri": f"jdbc:sqlite:{folder}/catalog.db",
            "warehouse": f"file://{folder}/lake",
            "encryption.kms-type": "local",
            "kms.local.keyring": str(keyring),
        },
    )
    made = {}
    for catalog in ("hive", "sqlite"):
        made[catalog] = f"{catalog}.{DATABASE}.flights"
        spark.sql(
            f"CREATE TABLE {made[catalog]} USING iceberg "
            "TBLPROPERTIES ('format-version' = '3', 'encryption.key-id' = 'keyA') "
            f"AS SELECT {ROWS} FROM range(0, {rows}, 1, 4)"
        )
    return made


def measured(spark: SparkTables, tables: dict[str, str], rounds: int) -> dict[str, Any]:
    """Return the seconds of each round, by query and catalog."""
    seconds: dict[str, dict[str, list[float]]] = {q: {t: [] for t in tables} for q in QUERIES}
    answers: dict[str, set[str]] = {query: set() for query in QUERIES}
    for number in range(-1, rounds):  # the first one warms up
        for query, statement in QUERIES.items():
            for catalog, table in sorted(tables.items(), reverse=bool(number % 2)):
                begun = time.perf_counter()
                answers[query].add(repr(spark.sql(statement.format(t=table))))
                if number >= 0:
                    seconds[query][catalog].append(time.perf_counter() - begun)
    assert all(len(found) == 1 for found in answers.values()), answers
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=3_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        spark = SparkTables(Path(name))
        seconds = measured(spark, tables(spark, Path(name), given.rows), given.rounds)
        spark.stop()
    print("| query | Hive, Java alone: median (best) | SQLite, plug-in: median (best) | ratio |")
    print("|---|---|---|---|")
    for query, of in seconds.items():
        hive, sqlite = of["hive"], of["sqlite"]
        cells = (f"{statistics.median(s):.2f} s ({min(s):.2f})" for s in (hive, sqlite))
        print(f"| {query} | {' | '.join(cells)} | {min(hive) / min(sqlite):.2f}x |")


if __name__ == "__main__":
    main()

"""Deleted rows stay deleted: deletion vectors, rewritten files, equality deletes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ags1.iceberg import ContentFile, EncryptedTable
from ags1.kms import KmsClient

from .java_tables import JavaTables
from .reading import check_equal, check_filters, check_history, check_same, opened
from .spark import SparkTables

pytestmark = pytest.mark.interop

FORMATS = ["parquet", "avro"]


@pytest.fixture(scope="module")
def java_tables(spark: SparkTables) -> JavaTables:
    # Spark keeps a delete file's keys by its path alone: read once as floats, they are not found
    # among doubles when the column is one.
    spark.session.conf.set("spark.sql.iceberg.executor-cache.enabled", "false")
    return JavaTables(spark)


def deletes_of(table: EncryptedTable) -> list[ContentFile]:
    return [d for task in table.scan().plan_files() for d in task.delete_files]


@pytest.mark.parametrize("file_format", FORMATS)
def test_merge_on_read(
    spark: SparkTables, kms: KmsClient, tmp_path: Path, file_format: str
) -> None:
    name = f"enc.db.mor_{file_format}"
    spark.create(
        name,
        "id BIGINT, p INT, v STRING",
        tmp_path,
        **{
            "write.format.default": file_format,
            "write.delete.mode": "merge-on-read",
            "write.update.mode": "merge-on-read",
            "write.merge.mode": "merge-on-read",
            # Many row groups and Avro blocks: positions count on from one to the next.
            "write.parquet.row-group-size-bytes": "2048",
            "write.parquet.row-group-check-min-record-count": "50",
            "write.parquet.row-group-check-max-record-count": "100",
        },
    )
    spark.sql(f"ALTER TABLE {name} ADD PARTITION FIELD p")
    spark.sql(f"INSERT INTO {name} SELECT id, id % 3 AS p, concat('v', id) AS v FROM range(3000)")
    spark.sql(f"DELETE FROM {name} WHERE id % 7 = 0 OR id BETWEEN 1200 AND 1500")
    vectors = deletes_of(opened(spark, name, kms))
    assert len(vectors) == 3
    assert max(Counter(d.file_path for d in vectors).values()) > 1, "several in one Puffin file"
    spark.sql(f"DELETE FROM {name} WHERE id % 11 = 0 AND p = 1")
    spark.sql(f"UPDATE {name} SET v = concat(v, '!') WHERE id IN (1, 2, 3, 1501, 2999)")
    spark.sql(
        f"MERGE INTO {name} t USING (SELECT id, id % 3 AS p FROM range(2990, 3010)) s "
        "ON t.id = s.id WHEN MATCHED AND t.id % 2 = 0 THEN DELETE "
        "WHEN MATCHED THEN UPDATE SET v = 'merged' "
        "WHEN NOT MATCHED THEN INSERT (id, p, v) VALUES (s.id, s.p, 'new')"
    )
    spark.sql(f"DELETE FROM {name} WHERE p = 2 AND id < 3000")  # a whole partition
    table = opened(spark, name, kms)
    assert deletes_of(table)
    check_history(spark, name, table)
    check_filters(
        spark,
        name,
        table,
        [
            ("id = 1501", "id = 1501"),
            ("id = 1400", "id = 1400"),
            ("id > 2980", "id > 2980"),
            ("id BETWEEN 1190 AND 1510", "id >= 1190 and id <= 1510"),
            ("v = 'merged'", "v = 'merged'"),
            ("v LIKE 'v1%' AND p = 1", "v like 'v1%' and p = 1"),
            ("p = 2", "p = 2"),
        ],
    )
    few = table.scan("p = 0", limit=5).to_arrow()
    assert len(few) == 5
    assert set(few["id"].to_pylist()) <= set(table.scan("p = 0").to_arrow()["id"].to_pylist())


def test_copy_on_write(spark: SparkTables, kms: KmsClient, tmp_path: Path) -> None:
    name = "enc.db.cow"
    spark.create(name, "id BIGINT, v STRING", tmp_path, **{"write.delete.mode": "copy-on-write"})
    spark.sql(f"INSERT INTO {name} SELECT id, concat('v', id) FROM range(300)")
    spark.sql(f"DELETE FROM {name} WHERE id % 7 = 0")
    spark.sql(f"UPDATE {name} SET v = null WHERE id < 10")
    spark.sql(f"INSERT OVERWRITE {name} SELECT * FROM {name} WHERE id > 5")
    spark.sql(f"DELETE FROM {name} WHERE id > 100")
    table = opened(spark, name, kms)
    assert not deletes_of(table)
    check_history(spark, name, table)
    spark.sql(f"DELETE FROM {name}")
    table = opened(spark, name, kms)
    assert check_same(spark, name, table.scan()) == 0


ROWS = """
    (1, 1, 'a', 1.5, DATE'1969-12-31', 1.10, TIMESTAMP'1969-12-31 23:59:59.999999', 'k'),
    (2, 1, null, DOUBLE('NaN'), null, -1.10, null, 'k'),
    (3, 2, '', DOUBLE('-0.0'), DATE'2024-02-29', 0, TIMESTAMP'1970-01-01 00:00:00', 'k'),
    (4, 2, 'd', 0.0, DATE'1970-01-01', null, TIMESTAMP'2024-02-29 00:00:00', null),
    (5, 2, 'a', null, null, 9999999.99, null, 'l'),
    (6, null, 'f', 2.5, null, 2.00, null, 'm')
"""
KEY_COLUMNS = (
    "id BIGINT, p INT, s STRING, d DOUBLE, dt DATE, n DECIMAL(9, 2), ts TIMESTAMP, gone STRING"
)
# Equality deletes, one after another, each seen by the files written before it.
DELETES: list[list[dict[str, Any]]] = [
    [{"s": "a", "p": 1}],
    [{"s": None, "d": "NaN"}],
    [{"d": "-0.0"}, {"d": 77.0}],
    [{"n": "9999999.99"}, {"n": None}],
    [{"ts": "1969-12-31T23:59:59.999999+00:00", "dt": "1969-12-31", "id": 1}],
    [{"id": 6, "gone": "m"}, {"id": 4, "gone": "other"}],
]


@pytest.mark.parametrize(("file_format", "delete_format"), [FORMATS, FORMATS[::-1]])
def test_equality_deletes(
    spark: SparkTables,
    java_tables: JavaTables,
    kms: KmsClient,
    tmp_path: Path,
    file_format: str,
    delete_format: str,
) -> None:
    name = f"enc.db.equality_{file_format}_{delete_format}"
    spark.create(name, KEY_COLUMNS, tmp_path, **{"write.format.default": file_format})
    spark.sql(f"INSERT INTO {name} VALUES {ROWS}")
    for keys in DELETES[:3]:
        java_tables.delete(name, keys, delete_format)
    spark.sql(f"INSERT INTO {name} VALUES {ROWS}")  # which stay
    for keys in DELETES[3:]:
        java_tables.delete(name, keys, delete_format)
    table = opened(spark, name, kms)
    assert all(d.equality_ids for d in deletes_of(table))
    check_history(spark, name, table)
    assert table.scan().count() < 12

    for names in [("id",), ("id", "dt"), ("s",), ("gone",)]:  # without the keys' columns
        query = f"SELECT {', '.join(names)} FROM {name}"
        check_same(spark, query, table.scan(selected_fields=names))
    for theirs, ours in [("s = 'a'", "s = 'a'"), ("d IS NULL", "d is null"), ("p = 2", "p = 2")]:
        check_same(spark, f"SELECT * FROM {name} WHERE {theirs}", table.scan(ours))


@pytest.mark.parametrize("file_format", FORMATS)
def test_equality_deletes_of_partitions_and_changed_columns(
    spark: SparkTables, java_tables: JavaTables, kms: KmsClient, tmp_path: Path, file_format: str
) -> None:
    name = f"enc.db.equality_parts_{file_format}"
    merge_on_read = {"write.delete.mode": "merge-on-read", "write.format.default": file_format}
    spark.create(name, "id BIGINT, p INT, f FLOAT, gone STRING", tmp_path, **merge_on_read)
    spark.sql(f"INSERT INTO {name} VALUES (1, 1, 0.1, 'x'), (2, 2, 0.1, 'y'), (3, 2, 0.5, 'z')")
    spark.sql(f"ALTER TABLE {name} ADD PARTITION FIELD p")
    rows = [(n, n % 3, n / 10, f"'g{n}'") for n in range(10, 30)]
    spark.sql(
        f"INSERT INTO {name} VALUES {', '.join(f'({i}, {p}, {f}, {g})' for i, p, f, g in rows)}"
    )
    # Of one partition, though others have the key too.
    java_tables.delete(name, [{"f": 1.2}, {"f": 1.3}, {"f": 0.1}], file_format, "p=0")
    # Of the whole table: by a partition spec that has no partitions.
    java_tables.delete(name, [{"id": 14}, {"id": 15}, {"id": 2}], file_format, spec_id=0)
    java_tables.delete(name, [{"gone": "g16"}, {"gone": "x"}], file_format, spec_id=0)
    spark.sql(f"DELETE FROM {name} WHERE id IN (20, 21, 22)")  # and vectors beside them
    gone = java_tables.load(name).schema().findField("gone").fieldId()
    spark.sql(f"ALTER TABLE {name} DROP COLUMN gone")
    spark.sql(f"ALTER TABLE {name} ALTER COLUMN f TYPE DOUBLE")
    spark.sql(f"ALTER TABLE {name} ALTER COLUMN p TYPE BIGINT")
    java_tables.delete(name, [{"f": 0.5}, {"f": 1.7}], file_format, spec_id=0)
    java_tables.delete(name, [{"gone": "g18"}], file_format, spec_id=0, ids=[gone])
    table = opened(spark, name, kms)
    kinds = {d.content.name for d in deletes_of(table)}
    assert kinds == {"EQUALITY_DELETES", "POSITION_DELETES"}
    # Java cannot read _partition of a column whose type has changed ("Wrong class").
    check_history(spark, name, table, without="_partition")
    ids = table.scan(selected_fields=("id",)).to_arrow()
    theirs = spark.session.sql(f"SELECT id FROM {name}").toArrow()
    check_equal(ids, theirs)

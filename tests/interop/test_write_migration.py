"""Plain tables of Spark's, of every format version, that ``migrate_table`` encrypts where they are.

Spark finds the same rows under the same name, and continues the table; then we do.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from ags1.iceberg import verify_table
from ags1.iceberg.read.records import DELETED
from ags1.kms import KmsClient

from .metastore import served_metastore
from .reading import check_history
from .spark import SparkTables
from .writing import Shared, check_kept, check_version, entries_of

pytestmark = pytest.mark.interop

BY_ROW = {f"write.{command}.mode": "merge-on-read" for command in ("delete", "update", "merge")}
ENCRYPTED = (b"AGS1", b"PARE")


@pytest.fixture(scope="module")
def metastore(spark: SparkTables) -> Iterator[str]:
    with served_metastore(spark) as uri:
        yield uri


@pytest.fixture
def shared(spark: SparkTables, kms: KmsClient, metastore: str, tmp_path: Path) -> Iterator[Shared]:
    made = Shared("hive", spark, kms, tmp_path, metastore)
    yield made
    made.close()


def create_plain(
    spark: SparkTables, name: str, location: Path, version: int, file_format: str
) -> None:
    """Have Spark make a table that has changed its schema and its partitions, with deletes."""
    properties = {
        "format-version": str(version),
        "write.format.default": file_format,
        "write.parquet.row-group-size-bytes": "2048",
        "write.parquet.row-group-check-min-record-count": "20",
        "write.parquet.row-group-check-max-record-count": "40",
    }
    if version > 1:
        properties |= BY_ROW
    listed = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
    spark.sql(
        f"CREATE TABLE {name} (id BIGINT, p INT, v STRING, l ARRAY<DOUBLE>, "
        "s STRUCT<m: MAP<STRING, DECIMAL(20, 3)>, t: TIMESTAMP>, gone INT) "
        f"USING iceberg PARTITIONED BY (p) LOCATION 'file:{location}' TBLPROPERTIES ({listed})"
    )
    values = (
        "id, CAST(id % 2 AS INT), IF(id % 7 = 0, NULL, concat('v', id)), "
        "array(id / 3, NULL, DOUBLE('NaN')), "
        "IF(id % 5 = 0, NULL, named_struct('m', map('k', CAST(id AS DECIMAL(20, 3))), "
        "'t', TIMESTAMP'1969-12-31 23:59:59')), 5"
    )
    spark.sql(f"INSERT INTO {name} SELECT {values} FROM range(100)")
    spark.sql(f"DELETE FROM {name} WHERE id BETWEEN 10 AND 15")
    spark.sql(f"ALTER TABLE {name} DROP COLUMN gone")
    spark.sql(f"ALTER TABLE {name} ADD COLUMN n INT")
    spark.sql(f"ALTER TABLE {name} REPLACE PARTITION FIELD p WITH bucket(2, v) AS v_bucket")
    spark.sql(f"INSERT INTO {name} SELECT {values} FROM range(100, 150)")
    spark.sql(f"DELETE FROM {name} WHERE id % 11 = 0 OR id = 149")
    spark.sql(f"UPDATE {name} SET v = 'changed' WHERE id BETWEEN 20 AND 30")


@pytest.mark.parametrize(
    ("version", "file_format"),
    [(1, "parquet"), (1, "avro"), (2, "parquet"), (2, "avro"), (3, "parquet"), (3, "avro")],
)
def test_a_plain_table_of_spark_is_migrated(
    spark: SparkTables, shared: Shared, tmp_path: Path, version: int, file_format: str
) -> None:
    name, location = f"enc.{shared.new_name()}", tmp_path / "table"
    create_plain(spark, name, location, version, file_format)
    # Row ids are of format version 3.
    columns = "*, _row_id, _last_updated_sequence_number" if version == 3 else "*"
    rows = repr(spark.rows(name, columns))  # with NaN
    counts = spark.rows(f"{name}.data_files", "record_count", "record_count")
    deletes = {r[0] for r in spark.sql(f"SELECT DISTINCT content FROM {name}.all_delete_files")}
    assert deletes == (set() if version == 1 else {1})
    identifier = name.removeprefix("enc.")
    dry = shared.catalog.migrate_table(identifier, "keyA", dry_run=True)
    result = shared.catalog.migrate_table(
        identifier, "keyA", data_key_length=24, delete_plaintext=True
    )
    assert (dry.files, dry.size) == (result.files, result.size)
    assert not result.failed
    assert result.files == len(counts)
    assert result.rows == sum(count for (count,) in counts)
    for path in location.rglob("*"):
        if path.is_file() and not path.name.startswith("."):
            is_metadata = path.name.endswith(".metadata.json")
            assert is_metadata or path.read_bytes()[:4] in ENCRYPTED, path

    assert repr(spark.rows(name, columns)) == rows
    assert spark.parameters(name)["encryption.key-id"] == "keyA"
    table = shared.taken_back(name)
    assert spark.rows(f"{name}.data_files", "record_count", "record_count") == counts
    assert {len(e.file.key.encryption_key) for e in entries_of(table) if e.file.key} == {24}
    assert {e.file.file_format for e in entries_of(table)} <= {file_format.upper(), "PUFFIN"}
    first = check_version(spark, name, table, rewritten=version == 3)
    check_history(spark, name, table)

    spark.sql(f"INSERT INTO {name} (id, v, n) VALUES (1000, 'spark', 1), (1001, 'spark', 2)")
    spark.sql(f"DELETE FROM {name} WHERE id IN (1, 102)")
    spark.sql(
        f"MERGE INTO {name} t USING (SELECT 2L AS id UNION ALL SELECT 1002L) s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET v = 'merged' WHEN NOT MATCHED THEN INSERT (id) VALUES (s.id)"
    )
    table = shared.taken_back(name)
    second = check_version(spark, name, table, rewritten=True)
    assert second.keys() == first.keys() - {1, 102} | {1000, 1001, 1002}
    check_kept(first, second, 2)

    table.delete("id = 3 or id = 103 or id = 1001")
    table.append(pa.table({"id": [2000], "v": ["ours"]}))
    third = check_version(spark, name, table, rewritten=True)
    assert third.keys() == second.keys() - {3, 103, 1001} | {2000}
    check_kept(second, third)
    spark.sql(
        f"CALL enc.system.rewrite_data_files(table => '{identifier}', "
        "options => map('rewrite-all', 'true'))"
    )
    table = shared.taken_back(name)
    check_kept(third, check_version(spark, name, table, rewritten=True))
    assert not [e for e in entries_of(table) if e.file.content and e.status != DELETED]
    assert verify_table(table).ok

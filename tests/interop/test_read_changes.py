"""The changes between snapshots, beside Spark's ``create_changelog_view`` of a plain twin.

Spark makes both tables with the same statements. Their snapshots have other IDs, so that these are
compared by their place in the history.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from changelogs import LABELS, check_changes
from pyiceberg.table.snapshots import ancestors_of

from ags1.iceberg import EncryptedTable
from ags1.kms import KmsClient

from .reading import exactly, opened
from .spark import SparkTables

pytestmark = pytest.mark.interop

COLUMNS = "id BIGINT, v STRING, d DOUBLE, at TIMESTAMP, s STRUCT<a: INT, b: ARRAY<STRING>>"


def rows(first: int, last: int, v: str = "concat('v', id % 3)") -> str:
    return (
        f"SELECT id, {v} AS v, IF(id % 2 = 0, DOUBLE('NaN'), id / 4D) AS d, "
        "timestamp_seconds(id) AS at, named_struct('a', int(id), 'b', array('x', null)) AS s "
        f"FROM range({first}, {last})"
    )


# Histories. Spark's own modes of writing are copy-on-write.
HISTORIES: dict[str, Sequence[str]] = {
    "append": [
        f"INSERT INTO {{0}} {rows(0, 20)}",
        f"INSERT INTO {{0}} {rows(10, 15)}",  # some rows twice
        f"INSERT INTO {{0}} {rows(20, 22)}",
    ],
    "overwrite": [
        f"INSERT INTO {{0}} {rows(0, 30)}",
        f"INSERT OVERWRITE {{0}} {rows(10, 40)}",
        f"INSERT OVERWRITE {{0}} {rows(0, 30)}",  # as it was at first
        "ALTER TABLE {0} ADD COLUMN more INT",
        "UPDATE {0} SET more = 1 WHERE id < 3",
    ],
    "delete": [
        f"INSERT INTO {{0}} {rows(0, 30)}",
        f"INSERT INTO {{0}} {rows(5, 10)}",
        "DELETE FROM {0} WHERE id % 7 = 0",
        "CALL {1}.system.rewrite_data_files(table => '{2}', options => map('rewrite-all', 'true'))",
        "DELETE FROM {0} WHERE id < 6",
        "DELETE FROM {0} WHERE v = 'v1'",
    ],
    "update": [
        f"INSERT INTO {{0}} {rows(0, 30)}",
        "UPDATE {0} SET v = 'new' WHERE id IN (3, 4, 5)",
        "MERGE INTO {0} t USING (SELECT id FROM range(25, 35)) s ON t.id = s.id "
        "WHEN MATCHED AND t.id % 2 = 0 THEN DELETE WHEN MATCHED THEN UPDATE SET v = 'merged' "
        "WHEN NOT MATCHED THEN INSERT (id, v) VALUES (s.id, 'inserted')",
        "UPDATE {0} SET v = 'v0' WHERE id = 3",
    ],
}


@pytest.fixture(scope="module")
def plain(spark: SparkTables) -> str:
    """A catalog without a KMS."""
    return spark.catalog("plainchanges", {})


@pytest.mark.parametrize("history", sorted(HISTORIES))
def test_the_changes_are_those_of_spark(
    spark: SparkTables, kms: KmsClient, plain: str, tmp_path: Path, history: str
) -> None:
    table, twin = f"enc.db.changes_{history}", f"{plain}.db.twin_{history}"
    spark.create(table, COLUMNS, tmp_path / "encrypted")
    spark.sql(
        f"CREATE TABLE {twin} ({COLUMNS}) USING iceberg LOCATION 'file:{tmp_path}/plain' "
        "TBLPROPERTIES ('format-version' = '3')"
    )
    for name in (table, twin):
        catalog, short = name.split(".", 1)
        for statement in HISTORIES[history]:
            spark.sql(statement.format(name, catalog, short))
    ours = opened(spark, table, kms)
    check_changes(ours)
    log = spark.sql(f"SELECT snapshot_id FROM {twin}.history ORDER BY made_current_at")
    theirs = [row[0] for row in log]
    ids = [
        snapshot.snapshot_id for snapshot in ancestors_of(ours.current_snapshot(), ours.metadata)
    ]
    ids.reverse()
    assert len(ids) == len(theirs) >= 3
    compared = 0
    for first in (None, 0, len(ids) - 2):
        for last in (None, len(ids) - 2):
            if first is not None and first == last:
                continue
            options = [] if first is None else ["start-snapshot-id", str(theirs[first])]
            options += [] if last is None else ["end-snapshot-id", str(theirs[last])]
            scan = {
                "from_snapshot_id_exclusive": None if first is None else ids[first],
                "to_snapshot_id_inclusive": None if last is None else ids[last],
            }
            for more, named in [
                ("", {}),
                (", net_changes => true", {"net_changes": True}),
                (", identifier_columns => array('id')", {"identifier_columns": ["id"]}),
            ]:
                expected = view(spark, twin, options, more)
                found = changes(ours, **scan, **named)
                if isinstance(expected, str):
                    assert isinstance(found, str), (scan, named)
                    assert "multiple rows with the same identifier" in expected
                    assert "multiple rows with the same identifier" in found
                    continue
                if "net_changes" in named:
                    # Java gives equal rows of several snapshots the label of the first.
                    found, expected = without_repetitions(found), without_repetitions(expected)
                assert labelled(found, ids) == labelled(expected, theirs), (scan, named)
                compared += len(expected)
    assert compared


def view(spark: SparkTables, twin: str, options: list[str], more: str) -> Any:
    """Return the changes that Spark finds, or its error."""
    catalog, short = twin.split(".", 1)
    listed = ", ".join(f"'{text}'" for text in options)
    spark.sql(
        f"CALL {catalog}.system.create_changelog_view(table => '{short}', "
        f"changelog_view => 'found', options => map({listed}){more})"
    )
    try:
        return spark.session.sql("SELECT * FROM found").toArrow().to_pylist()
    except Exception as error:
        return str(error)


def changes(table: EncryptedTable, **scan: Any) -> Any:
    """Return the changes that we find, or the error."""
    try:
        return table.changelog_scan(**scan).to_arrow().to_pylist()
    except ValueError as error:
        return str(error)


def without_repetitions(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows, those that are there several times with the label of the first."""
    firsts: dict[str, dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: row["_change_ordinal"]):
        key = repr(exactly({n: v for n, v in row.items() if n not in LABELS}))
        firsts.setdefault(key, row)
    return [
        firsts[repr(exactly({n: v for n, v in row.items() if n not in LABELS}))] for row in rows
    ]


def labelled(rows: list[dict[str, Any]], ids: list[int]) -> Counter[str]:
    """Return the rows with the place of their snapshot."""
    placed = (row | {"_commit_snapshot_id": ids.index(row["_commit_snapshot_id"])} for row in rows)
    return Counter(repr(exactly(row)) for row in placed)


@pytest.mark.parametrize("file_format", ["parquet", "avro"])
def test_vectors_that_spark_writes(
    spark: SparkTables, kms: KmsClient, tmp_path: Path, file_format: str
) -> None:
    # Spark refuses to read these changes. Its snapshots are read, and subtracted.
    name = f"enc.db.changes_mor_{file_format}"
    modes = {f"write.{kind}.mode": "merge-on-read" for kind in ("delete", "update", "merge")}
    spark.create(name, COLUMNS, tmp_path, **modes, **{"write.format.default": file_format})
    statements = [
        *(*HISTORIES["delete"], *HISTORIES["update"][1:]),
        "CALL {1}.system.rewrite_position_delete_files(table => '{2}')",
        "DELETE FROM {0} WHERE id = 11",
        f"INSERT OVERWRITE {{0}} {rows(10, 20)}",
    ]
    for statement in statements:
        spark.sql(statement.format(name, "enc", name.removeprefix("enc.")))
    table = opened(spark, name, kms)
    assert table.inspect.all_delete_files().num_rows
    for snapshot in table.snapshots():
        found = table.scan(snapshot_id=snapshot.snapshot_id).count()
        theirs = spark.sql(f"SELECT count(*) FROM {name} VERSION AS OF {snapshot.snapshot_id}")
        assert found == theirs[0][0]
    assert check_changes(table) > 40

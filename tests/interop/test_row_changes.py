"""Deletes, updates and merges over executors, beside those of Iceberg's Spark runtime: the same
rows with the same row lineage."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ags1.iceberg import verify_table
from ags1.iceberg.catalog import EncryptedCatalog, load_catalog

pytest.importorskip("pyspark")

from pyspark.errors import AnalysisException, ArithmeticException

from ags1.spark import tables
from ags1.spark.tables import RowChanges

from .spark import SparkTables

pytestmark = pytest.mark.interop

KMS_MODULE = """
import warnings

from ags1.kms import from_properties as make


class Kms:
    @staticmethod
    def from_properties(properties):
        keys = {"keyA": b"0123456789012345"}
        named = {f"encryption.kms.key.{name}": key.hex() for name, key in keys.items()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return make({"encryption.kms-type": "memory"} | named)
"""
LINEAGE = "*, _row_id, _last_updated_sequence_number"
SOURCE = (
    "SELECT id, concat('new', id) AS v, CAST(id % 5 AS INT) AS p, id / 4 AS d, id % 2 = 0 AS gone "
    "FROM range(25, 70, 3)"
)


class Twins(NamedTuple):
    """A table of Java's, and one of ours that begins with the same files."""

    spark: SparkTables
    name: str
    options: dict[str, str]
    catalog: EncryptedCatalog
    folder: Path

    @property
    def session(self) -> Any:
        return self.spark.session

    def java(self, statement: str) -> list[tuple[Any, ...]]:
        """Have Java run a statement on its table; return the rows."""
        self.spark.sql(statement.format(self.name))
        return self.spark.rows(self.name, LINEAGE, "id, v, p, _row_id")

    def removed(self) -> tuple[dict[str, str], dict[str, Any]]:
        """Return what the newest snapshot of Java's table, and of ours, has removed, and how."""
        query = f"SELECT summary FROM {self.name}.snapshots ORDER BY committed_at"
        of_java = self.spark.sql(query)[-1][0]
        snapshot = self.catalog.load_table("db.t").current_snapshot()
        of_ours = snapshot.summary.additional_properties
        counted = ("deleted-data-files", "added-dvs", "removed-dvs")
        return (
            {name: of_java[name] for name in counted if name in of_java},
            {name: of_ours[name] for name in counted if name in of_ours},
        )

    def ours(self) -> list[tuple[Any, ...]]:
        """Return the rows that Java reads in our table."""
        return self.ours_by("id, v, p, _row_id")

    def ours_by(self, order: str) -> list[tuple[Any, ...]]:
        """Return the rows that Java reads in our table, in this order."""
        table = self.catalog.load_table("db.t")
        assert verify_table(table).ok
        name = f"{self.name}_{table.metadata.last_sequence_number}"
        path = Path(table.metadata_location.removeprefix("file:").replace("//", "/"))
        self.spark.register(name, path)
        return self.spark.rows(name, LINEAGE, order)


@pytest.fixture(scope="module")
def kms_module(spark: SparkTables, tmp_path_factory: pytest.TempPathFactory) -> str:
    module = tmp_path_factory.mktemp("kms") / "interop_kms.py"
    module.write_text(KMS_MODULE)
    spark.session.sparkContext.addPyFile(str(module))
    return "interop_kms:Kms"


@pytest.fixture(params=["merge-on-read", None], ids=["merge-on-read", "default mode"])
def twins(
    request: pytest.FixtureRequest, spark: SparkTables, kms_module: str, tmp_path: Path
) -> Twins:
    """A table with three files, of which one has a deletion vector."""
    number = tmp_path.name.translate({ord(c): "_" for c in "-[]."})
    name = f"enc.db.rows_{number}"
    names = [f"write.{command}.mode" for command in ("delete", "update", "merge")]
    modes = dict.fromkeys(names, request.param) if request.param else {}
    columns = "id BIGINT NOT NULL, v STRING, p INT, d DOUBLE"
    vectors = {**modes, "write.delete.mode": "merge-on-read"}
    spark.create(name, columns, tmp_path / "t", **vectors)
    for first in (0, 20, 40):
        spark.sql(
            f"INSERT INTO {name} SELECT /*+ COALESCE(1) */ id, concat('v', id) AS v, "
            f"CAST(id % 4 AS INT) AS p, id / 2 AS d FROM range({first}, {first + 20})"
        )
    spark.sql(f"DELETE FROM {name} WHERE id IN (3, 24)")
    if not modes:
        spark.sql(f"ALTER TABLE {name} UNSET TBLPROPERTIES ('write.delete.mode')")
    options = {
        "catalog": "test",
        "catalog.type": "sql",
        "catalog.uri": f"sqlite:///{tmp_path}/catalog.db",
        "encryption.kms-impl": kms_module,
    }
    kms = {"encryption.kms-impl": kms_module}
    catalog = load_catalog("test", type="sql", uri=options["catalog.uri"], **kms)
    catalog.create_namespace("db")
    catalog.register_table("db.t", f"file:{spark.metadata_file(name)}")
    return Twins(spark, name, options, catalog, tmp_path)


def test_rows_and_lineage_are_those_of_java(twins: Twins) -> None:
    session, options = twins.session, twins.options

    expected = twins.java("DELETE FROM {0} WHERE id < 8 AND upper(v) <> 'V5'")
    done = tables.delete(session, "db.t", "id < 8 AND upper(v) <> 'V5'", options)
    assert twins.ours() == expected
    assert done == RowChanges(rows_deleted=6)
    of_java, of_ours = twins.removed()
    assert of_ours == of_java

    expected = twins.java("UPDATE {0} SET v = concat(v, '!'), p = p + 1 WHERE id % 7 = 0")
    done = tables.update(
        session, "db.t", {"V": "concat(v, '!')", "p": "p + 1"}, "id % 7 = 0", options
    )
    assert twins.ours() == expected
    assert done == RowChanges(rows_updated=7)

    expected = twins.java(
        f"MERGE INTO {{0}} t USING ({SOURCE}) s ON t.id = s.id "
        "WHEN MATCHED AND s.gone THEN DELETE "
        "WHEN MATCHED AND t.p < 3 THEN UPDATE SET v = s.v, d = t.d + s.d "
        "WHEN NOT MATCHED AND s.gone THEN INSERT (id, v) VALUES (s.id, s.v) "
        "WHEN NOT MATCHED THEN INSERT * "
        "WHEN NOT MATCHED BY SOURCE AND t.id > 55 THEN UPDATE SET v = 'left' "
        "WHEN NOT MATCHED BY SOURCE AND t.id BETWEEN 50 AND 53 THEN DELETE"
    )
    done = (
        tables.merge_into(session, "db.t", session.sql(SOURCE), ["id"], options)
        .whenMatched("source.gone")
        .delete()
        .whenMatched("target.p < 3")
        .update({"v": "source.v", "d": "target.d + source.d"})
        .whenNotMatched("source.gone")
        .insert({"id": "source.id", "v": "source.v"})
        .whenNotMatched()
        .insertAll()
        .whenNotMatchedBySource("target.id > 55")
        .update({"v": "'left'"})
        .whenNotMatchedBySource("target.id BETWEEN 50 AND 53")
        .delete()
        .merge()
    )
    ours = twins.ours()
    assert without_new_ids(ours) == without_new_ids(expected)
    assert done.rows_inserted == 3
    assert len({row[-2] for row in ours}) == len(ours)
    assert None not in {row[-2] for row in ours}
    of_java, of_ours = twins.removed()
    # Java's earlier commands have left fewer files than ours.
    assert of_ours.keys() == of_java.keys()

    for command in ("delete", "update", "merge"):
        level = {f"write.{command}.isolation-level": "none"}
        twins.spark.sql(
            f"ALTER TABLE {twins.name} SET TBLPROPERTIES "
            f"('write.{command}.isolation-level' = 'none')"
        )
        with twins.catalog.load_table("db.t").transaction() as transaction:
            transaction.set_properties(level)
    said = "Invalid isolation level: none"
    changed = f"MERGE INTO {twins.name} t USING ({SOURCE}) s ON t.id = s.id WHEN MATCHED"
    for statement in (
        f"DELETE FROM {twins.name} WHERE v = 'v9'",
        f"UPDATE {twins.name} SET v = ''",
        f"{changed} THEN DELETE",
    ):
        with pytest.raises(Exception, match=said):
            twins.spark.sql(statement)
    merge = tables.merge_into(session, "db.t", session.sql(SOURCE), ["id"], options)
    for ours_too in (
        lambda: tables.delete(session, "db.t", "v = 'v9'", options),
        lambda: tables.update(session, "db.t", {"v": "''"}, options=options),
        merge.whenMatched().delete().merge,
    ):
        with pytest.raises(ValueError, match=said):
            ours_too()


VALUES = """l BIGINT, i INT, dec DECIMAL(6, 2), s STRING, dt DATE, ts TIMESTAMP, tn TIMESTAMP_NTZ,
    st STRUCT<a: INT, b: STRING>, ar ARRAY<INT>, mp MAP<STRING, INT>, flag BOOLEAN"""
# What Spark stores, although the types differ, and what it refuses before it computes anything.
STORED = {
    "i": "1.5D",
    "dec": "double('NaN')",
    "s": "TIMESTAMP '2020-01-02 03:04:05'",
    "dt": "TIMESTAMP '2020-01-02 03:04:05'",
    "ts": "DATE '2020-01-02'",
    "tn": "TIMESTAMP '2020-01-02 03:04:05'",
    "st": "named_struct('B', 7, 'a', 2L)",
    "ar": "array(1L, null)",
    "mp": "map(1, 2.5D)",
    "flag": "null",
}
REFUSED = {
    "i": ["'7'", "true", "DATE '2020-01-02'", "named_struct('a', 1)"],
    "flag": ["1"],
    "dt": ["1"],
    "s": ["array(1)"],
    "st": [
        "named_struct('a', 1)",
        "named_struct('a', 1, 'b', 'x', 'c', 2, 'd', 3)",
        "named_struct('a', '7', 'b', 'x')",
    ],
    "ar": ["array('7')", "map(1, 1)"],
    "mp": ["map('a', true)", "map(array(1), 1)"],
}
TOO_LARGE = {
    "i": "l + 5000000000L",
    "dec": "99999.99",
    "st": "named_struct('a', l + 5000000000L, 'b', 'x')",
    "ar": "array(l + 5000000000L)",
    "mp": "map('a', l + 5000000000L)",
}


def test_values_are_assigned_as_by_spark(
    spark: SparkTables, kms_module: str, tmp_path: Path
) -> None:
    name = "enc.db.assigned"
    spark.create(name, VALUES, tmp_path / "t")
    spark.sql(f"INSERT INTO {name} (l) VALUES (1), (9007199254740993)")
    uri = f"sqlite:///{tmp_path}/catalog.db"
    options = {"catalog": "test", "catalog.type": "sql", "catalog.uri": uri}
    options["encryption.kms-impl"] = kms_module
    catalog = load_catalog("test", type="sql", uri=uri, **{"encryption.kms-impl": kms_module})
    catalog.create_namespace("db")
    catalog.register_table("db.t", f"file:{spark.metadata_file(name)}")
    twins = Twins(spark, name, options, catalog, tmp_path)
    session = spark.session
    # Spark assigns values alike with both.
    ansi = session.conf.get("spark.sql.ansi.enabled")
    session.conf.set("spark.sql.ansi.enabled", "false")
    try:
        _check_assignments(twins)
    finally:
        session.conf.set("spark.sql.ansi.enabled", ansi)


def _check_assignments(twins: Twins) -> None:
    session, options, name = twins.session, twins.options, twins.name
    given = ", ".join(f"{column} = {value}" for column, value in STORED.items())
    twins.spark.sql(f"UPDATE {name} SET {given} WHERE l = 1")
    tables.update(session, "db.t", STORED, "l = 1", options)
    source = "SELECT * FROM VALUES (1L, 'x', 2L), (9007199254740993L, 'y', 3L) AS s(id, v, n)"
    twins.spark.sql(
        f"MERGE INTO {name} t USING ({source}) s ON t.l = s.id "
        "WHEN MATCHED AND s.n = 2 THEN UPDATE SET i = s.n, l = t.l + 1, dec = s.n "
        "WHEN MATCHED THEN UPDATE SET dec = 1.25D, i = null, st = named_struct('b', s.v, 'a', s.n)"
    )
    (
        tables.merge_into(session, "db.t", session.sql(source), "target.l = source.id", options)
        .whenMatched("source.n = 2")
        .update({"i": "source.n", "l": "target.l + 1", "dec": "source.n"})
        .whenMatched()
        .update({"dec": "1.25D", "i": None, "st": "named_struct('b', source.v, 'a', source.n)"})
        .merge()
    )
    assert twins.ours_by("l") == twins.spark.rows(name, LINEAGE, "l")

    for column, values in REFUSED.items():
        for value in values:
            with pytest.raises(AnalysisException) as theirs:
                twins.spark.sql(f"UPDATE {name} SET {column} = {value}")
            with pytest.raises(AnalysisException) as ours:
                tables.update(session, "db.t", {column: value}, None, options)
            assert ours.value.getCondition() == theirs.value.getCondition()
            # Spark does not name the table.
            assert str(ours.value).replace("`db`.`t`", "``") == str(theirs.value)
    for column, value in TOO_LARGE.items():
        statement = f"UPDATE {name} SET {column} = {value} WHERE l = 2"
        with pytest.raises(ArithmeticException):
            twins.spark.sql(statement)
        with pytest.raises(ArithmeticException):
            tables.update(session, "db.t", {column: value}, "l = 2", options)


def without_new_ids(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return rows of which the inserted ones have no row IDs: these follow the order in which a
    commit has its new files, which nothing specifies."""
    return [(*row[:-2], None if row[0] >= 60 else row[-2], row[-1]) for row in rows]

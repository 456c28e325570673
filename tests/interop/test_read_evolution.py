"""Tables whose schema changed between their files: every stage is read as Spark reads it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from ags1.kms import KmsClient

from .java_tables import JavaTables
from .reading import check_equal, check_filters, check_history, check_same, opened
from .spark import UNITEST_KMS, SparkTables

pytestmark = pytest.mark.interop

# Hive 2's metastore refuses changes of nested columns unless told; the rest makes this catalog one
# with a connection of its own.
_CHANGES = "hive.metastore.disallow.incompatible.col.type.changes"
_KMS = {**UNITEST_KMS, f"hadoop.{_CHANGES}": "false", "client-pool-cache-keys": f"conf:{_CHANGES}"}

COLUMNS = (
    "id BIGINT NOT NULL, a INT, f FLOAT, d DECIMAL(9, 2), s STRING, old STRING, "
    "st STRUCT<a: INT, c: FLOAT, gone: STRING>, ar ARRAY<INT>, m MAP<STRING, FLOAT>, "
    "arst ARRAY<STRUCT<x: INT, gone: STRING>>, mst MAP<STRING, STRUCT<v: INT>>"
)
# What is done to the table, one stage after another, and rows that are then inserted.
STAGES = {
    "created": (
        [],
        "(1, -1, 0.1, -0.01, 's1', 'old1', named_struct('a', 1, 'c', 0.1, 'gone', 'g'), "
        "array(1, null), map('k', 0.1, 'n', null), array(named_struct('x', 1, 'gone', 'g')), "
        "map('k', named_struct('v', 1)))",
        "(2, null, FLOAT('NaN'), null, null, null, named_struct('a', null, 'c', FLOAT('-0.0'), "
        "'gone', null), array(), map(), array(), map())",
    ),
    "columns_changed": (
        [
            "ADD COLUMN new STRING AFTER id",
            "RENAME COLUMN a TO b",
            "ALTER COLUMN b TYPE BIGINT",
            "ALTER COLUMN f TYPE DOUBLE",
            "ALTER COLUMN d TYPE DECIMAL(18, 2)",
            "ALTER COLUMN id DROP NOT NULL",
        ],
        "(3, 'new3', 9000000000, 0.1, 9999999999999999.99, 's3', 'old3', named_struct('a', 3, 'c', "
        "0.5, 'gone', 'g3'), array(3), map('k', 0.5), array(), map())",
    ),
    "dropped_and_added_again": (
        ["DROP COLUMN old", "ADD COLUMN old BIGINT", "ALTER COLUMN s FIRST"],
        "('s4', 4, 'new4', 4, 0.25, 0, named_struct('a', 4, 'c', 0.5, 'gone', 'g4'), array(4), "
        "map('k', 4.5), array(), map(), 44)",
    ),
    "nested_changed": (
        [
            "ADD COLUMN st.b STRING AFTER a",
            "RENAME COLUMN st.c TO cc",
            "ALTER COLUMN st.cc TYPE DOUBLE",
            "ALTER COLUMN st.a TYPE BIGINT",
            "DROP COLUMN st.gone",
            "ALTER COLUMN ar.element TYPE BIGINT",
            "ALTER COLUMN m.value TYPE DOUBLE",
            "ALTER COLUMN arst.element.x TYPE BIGINT",
            "ADD COLUMN arst.element.y DATE FIRST",
            "DROP COLUMN arst.element.gone",
            "ADD COLUMN mst.value.w STRING FIRST",
        ],
        "('s5', 5, 'new5', 5, 0.25, 0, named_struct('a', 9000000000, 'b', 'b5', 'cc', 0.1), "
        "array(9000000000), map('k', 0.1), array(named_struct('y', DATE'1969-01-01', 'x', 5)), "
        "map('k', named_struct('w', 'w', 'v', 5)), 55)",
    ),
    "name_moved_to_another_column": (
        ["DROP COLUMN new", "RENAME COLUMN b TO new"],
        "('s6', null, null, null, null, null, null, null, null, null, 66)",
    ),
}
DEFAULTS = {
    "de_s": ("string", "dflt"),
    "de_l": ("long", -5),
    "de_d": ("double", 1.5),
    "de_b": ("boolean", True),
    "de_n": ("decimal(9, 2)", "-14.20"),
    "de_dt": ("date", "1969-01-01"),
    "de_ts": ("timestamptz", "1969-12-31T23:59:59.999999+00:00"),
    "de_tn": ("timestamp", "1969-12-31T23:59:59.999999"),
    "de_bi": ("binary", b"\x00\xff"),
}


@dataclass(frozen=True, slots=True)
class Evolved:
    """A table after all stages: a snapshot each, and a last one after the defaults."""

    name: str
    snapshots: dict[str, int]


@pytest.fixture(scope="module")
def catalog(spark: SparkTables) -> str:
    return spark.catalog("evolving", _KMS)


@pytest.fixture(scope="module", params=["parquet", "avro"])
def evolved(
    spark: SparkTables,
    catalog: str,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Evolved:
    name = f"{catalog}.db.evolved_{request.param}"
    folder = tmp_path_factory.mktemp("evolved")
    spark.create(name, COLUMNS, folder, **{"write.format.default": request.param})
    snapshots = {}
    for stage, (changes, *rows) in STAGES.items():
        for change in changes:
            spark.sql(f"ALTER TABLE {name} {change}")
        spark.sql(f"INSERT INTO {name} VALUES {', '.join(rows)}")
        snapshots[stage] = spark.metadata(name)["current-snapshot-id"]
    java = JavaTables(spark)
    for column, (kind, default) in DEFAULTS.items():
        java.add_column(name, column, kind, default)
    nulls = ", ".join(["null"] * len(DEFAULTS))
    spark.sql(f"INSERT INTO {name} (id) VALUES (7)")
    spark.sql(f"INSERT INTO {name} (id, {', '.join(DEFAULTS)}) VALUES (8, {nulls})")
    snapshots["defaults"] = spark.metadata(name)["current-snapshot-id"]
    return Evolved(name, snapshots)


# Apart: what is null in these is empty in PyIceberg's projection.
STRUCTS_INSIDE = ("arst", "mst")


def test_the_current_schema(spark: SparkTables, evolved: Evolved, kms: KmsClient) -> None:
    table = opened(spark, evolved.name, kms)
    names = tuple(f.name for f in table.schema().fields if f.name not in STRUCTS_INSIDE)
    query = f"SELECT {', '.join(names)} FROM {evolved.name}"
    assert check_same(spark, query, table.scan(selected_fields=names)) == 8


def test_structs_inside_lists_and_maps(
    spark: SparkTables, evolved: Evolved, kms: KmsClient
) -> None:
    names = ("id", *STRUCTS_INSIDE)
    scan = opened(spark, evolved.name, kms).scan(selected_fields=names)
    check_same(spark, f"SELECT {', '.join(names)} FROM {evolved.name}", scan)


def test_time_travel_has_the_schema_of_its_time(
    spark: SparkTables, evolved: Evolved, kms: KmsClient
) -> None:
    table = opened(spark, evolved.name, kms)
    for snapshot_id in evolved.snapshots.values():
        theirs = spark.session.sql(f"SELECT * FROM {evolved.name} VERSION AS OF {snapshot_id}")
        ours = table.scan(snapshot_id=snapshot_id).to_arrow()
        assert ours.schema.names == theirs.columns
        check_equal(ours.drop(STRUCTS_INSIDE), theirs.drop(*STRUCTS_INSIDE).toArrow())


FILTERS = [
    ("new = -1", "new = -1"),
    ("new = 9000000000", "new = 9000000000"),
    ("new IS NULL", "new is null"),
    ("old IS NULL", "old is null"),
    ("old > 44", "old > 44"),
    ("f > 0.1 AND NOT isnan(f)", "f > 0.1"),
    ("f < 0.2", "f < 0.2"),
    ("isnan(f)", "f is nan"),
    ("d >= 9999999999999999.99", "d >= 9999999999999999.99"),
    ("d = -0.01", "d = -0.01"),
    ("st.a > 1", "st.a > 1"),
    ("st.cc < 0.2", "st.cc < 0.2"),
    ("st.b = 'b5'", "st.b = 'b5'"),
    ("st.b IS NULL AND st.a IS NOT NULL", "st.b is null and st.a is not null"),
    ("de_s = 'dflt'", "de_s = 'dflt'"),
    ("de_s IS NULL", "de_s is null"),
    ("de_s != 'dflt'", "de_s != 'dflt'"),
    ("de_l < 0", "de_l < 0"),
    ("de_l IN (1, -5)", "de_l in (1, -5)"),
    ("de_n = -14.20", "de_n = -14.20"),
    ("de_n > 0", "de_n > 0"),
    ("de_b = true", "de_b = true"),
    ("de_d > 1.5", "de_d > 1.5"),
]
TIME_FILTERS = [
    ("de_dt < DATE'1970-01-01'", "de_dt < '1970-01-01'"),
    ("de_dt = DATE'1969-01-01'", "de_dt = '1969-01-01'"),
    ("de_ts < TIMESTAMP'1970-01-01'", "de_ts < '1970-01-01T00:00:00+00:00'"),
    ("de_tn > TIMESTAMP_NTZ'1970-01-01'", "de_tn > '1970-01-01T00:00:00'"),
]


def test_filters_on_changed_columns(spark: SparkTables, evolved: Evolved, kms: KmsClient) -> None:
    check_filters(spark, evolved.name, opened(spark, evolved.name, kms), FILTERS)


def test_filters_on_times_by_default(spark: SparkTables, evolved: Evolved, kms: KmsClient) -> None:
    check_filters(spark, evolved.name, opened(spark, evolved.name, kms), TIME_FILTERS)


def test_selected_nested_fields(spark: SparkTables, evolved: Evolved, kms: KmsClient) -> None:
    fields = ("st.b", "id", "st.cc")
    ours = opened(spark, evolved.name, kms).scan("old > 0 or old is null", selected_fields=fields)
    theirs = spark.session.sql(
        "SELECT id, CASE WHEN st IS NOT NULL THEN named_struct('b', st.b, 'cc', st.cc) END AS st "
        f"FROM {evolved.name} WHERE old > 0 OR old IS NULL"
    )
    check_equal(ours.to_arrow().select(["id", "st"]), theirs.toArrow())


@pytest.mark.parametrize("file_format", ["parquet", "avro"])
def test_a_partition_column_that_was_dropped(
    spark: SparkTables, catalog: str, kms: KmsClient, tmp_path: Path, file_format: str
) -> None:
    name = f"{catalog}.db.partition_dropped_{file_format}"
    columns = {"write.format.default": file_format, "write.delete.mode": "merge-on-read"}
    spark.create(name, "id BIGINT, p INT, q INT", tmp_path, **columns)
    spark.sql(f"ALTER TABLE {name} ADD PARTITION FIELD p")
    spark.sql(f"ALTER TABLE {name} ADD PARTITION FIELD bucket(4, q)")
    spark.sql(f"INSERT INTO {name} VALUES (1, 1, 1), (2, 2, 2), (3, null, null)")
    spark.sql(f"ALTER TABLE {name} DROP PARTITION FIELD p")
    spark.sql(f"ALTER TABLE {name} DROP COLUMN p")
    spark.sql(f"INSERT INTO {name} VALUES (4, 4)")
    table = opened(spark, name, kms)
    check_history(spark, name, table)
    check_filters(
        spark,
        name,
        table,
        [("id > 1", "id > 1"), ("q = 2", "q = 2"), ("q IS NULL", "q is null")],
    )

"""Tables that we write, in every format, key size, partitioning and catalog: Spark reads them, says
of rows and files what we say, and continues them; then we do again.

Every two choices meet in one table at least.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, parse_transform
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
)

from ags1.iceberg import EncryptedTable, verify_table
from ags1.iceberg.read.records import DELETED
from ags1.kms import KmsClient

from .metastore import served_metastore
from .reading import check_history
from .rest_server import rest_server
from .spark import SparkTables
from .writing import Lineage, Shared, check_kept, check_rows, check_version, entries_of

pytestmark = pytest.mark.interop

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "v", StringType(), required=False),
    NestedField(3, "d", DateType(), required=False),
    NestedField(4, "t", TimestampType(), required=False),
    NestedField(5, "z", TimestamptzType(), required=False),
    NestedField(6, "x", DoubleType(), required=False),
    NestedField(7, "m", DecimalType(9, 2), required=False),
    NestedField(8, "b", BinaryType(), required=False),
)
ARROW = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("v", pa.string()),
        ("d", pa.date32()),
        ("t", pa.timestamp("us")),
        ("z", pa.timestamp("us", "UTC")),
        ("x", pa.float64()),
        ("m", pa.decimal128(9, 2)),
        ("b", pa.binary()),
    ]
)
SPECS = {
    "unpartitioned": [],
    "identity": [("v", "identity")],
    "bucket": [("id", "bucket[3]"), ("v", "truncate[1]")],
    "time": [("d", "year"), ("t", "month"), ("z", "day")],
    "decimal": [("m", "identity"), ("z", "hour")],
}
# All partitionings with all catalogs, and every two of the other choices somewhere.
KEY_LENGTHS = ("16", "24", "32")
CASES = [
    (("parquet", "avro")[(p + c) % 2], KEY_LENGTHS[(p + 2 * c) % 3], partitioning, catalog)
    for p, partitioning in enumerate(SPECS)
    for c, catalog in enumerate(("sql", "hive", "rest"))
]
# Where Spark maintains the tables too, which takes it longest: once for each partitioning.
MAINTAINED = [CASES[number] for number in (2, 3, 8, 10, 13)]
BY_ROW = {f"write.{command}.mode": "merge-on-read" for command in ("delete", "update", "merge")}


def rows(first: int, count: int) -> pa.Table:
    """Return rows of SCHEMA with nulls, NaN and values at the edges."""
    ids = range(first, first + count)
    day = datetime.date(2026, 1, 31)
    moment = datetime.datetime(2026, 1, 31, 23, 59, 59, 999_999)
    utc = datetime.timezone.utc
    columns: dict[str, list[Any]] = {
        "id": list(ids),
        "v": [None if i % 7 == 0 else "äbc"[i % 3] * (i % 4) for i in ids],
        "d": [None if i % 11 == 0 else day + datetime.timedelta(days=i % 3) for i in ids],
        "t": [moment + datetime.timedelta(hours=i % 3) for i in ids],
        "z": [(moment + datetime.timedelta(minutes=i % 2)).replace(tzinfo=utc) for i in ids],
        "x": [float("nan") if i % 5 == 0 else i / 3 for i in ids],
        "m": [None if i % 13 == 0 else Decimal(i % 2) - Decimal("0.25") for i in ids],
        "b": [bytes([i % 256]) * (i % 5) for i in ids],
    }
    return pa.table(columns, schema=ARROW)


def spec(name: str) -> PartitionSpec:
    return PartitionSpec(
        *(
            PartitionField(
                SCHEMA.find_field(column).field_id,
                1000 + number,
                parse_transform(transform),
                f"{column}_p{number}",
            )
            for number, (column, transform) in enumerate(SPECS[name])
        )
    )


@pytest.fixture(scope="module")
def servers(
    spark: SparkTables, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    """The URIs of the metastore and of a REST server."""
    folder = tmp_path_factory.mktemp("rest")
    with served_metastore(spark) as hive, rest_server(folder, folder / "stderr.txt") as rest:
        yield {"hive": hive, "rest": rest}


@pytest.fixture
def shared(
    spark: SparkTables,
    kms: KmsClient,
    servers: dict[str, str],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> Iterator[Shared]:
    kind = request.param
    made = Shared(kind, spark, kms, tmp_path, servers.get(kind))
    yield made
    made.close()


def create(shared: Shared, partitioning: str, **properties: str) -> EncryptedTable:
    table = shared.catalog.create_table(
        shared.new_name(),
        SCHEMA,
        partition_spec=spec(partitioning),
        properties={"format-version": "3", "encryption.key-id": "keyA"} | BY_ROW | properties,
    )
    assert isinstance(table, EncryptedTable)
    return table


def write(table: EncryptedTable) -> None:
    """Change a table in every way that we have."""
    table.append(rows(1, 60))
    with table.update_schema() as update:
        update.add_column("n", IntegerType())
        update.add_column("k", StringType(), default_value="none")
    table.append(rows(61, 20).append_column("n", pa.array(range(20), pa.int32())))
    table.delete("id > 20 and id < 31")
    table.delete("id = 5 or id = 25 or id >= 78")
    table.overwrite(rows(5, 1), "id = 6")
    changed = rows(7, 2).append_column("n", pa.array([-1, None], pa.int32()))
    result = table.upsert(changed.append_column("k", pa.array(["none", "none"])), ["id"])
    assert (result.rows_updated, result.rows_inserted) == (1, 0)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    with table.manage_snapshots() as manage:
        manage.create_tag(snapshot.snapshot_id, "before")
        manage.create_branch(snapshot.snapshot_id, "audit")
    with table.transaction() as transaction:
        transaction.append(rows(200, 2), branch="audit")
        transaction.delete("id < 3", branch="audit")
    with table.transaction() as transaction:
        transaction.delete("id = 10")
        transaction.append(rows(10, 1))


def continue_with_spark(spark: SparkTables, name: str) -> None:
    spark.sql(f"INSERT INTO {name} (id, v, n) VALUES (100000, 'spark', 7)")
    spark.sql(f"DELETE FROM {name} WHERE id % 10 = 3")
    spark.sql(
        f"MERGE INTO {name} t USING (SELECT 100000L AS id UNION ALL SELECT 100001L) s "
        "ON t.id = s.id WHEN MATCHED THEN UPDATE SET v = 'merged' "
        "WHEN NOT MATCHED THEN INSERT (id, v) VALUES (s.id, 'new')"
    )
    spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('write.delete.mode' = 'copy-on-write')")
    spark.sql(f"DELETE FROM {name} WHERE id IN (2, 62)")
    spark.sql(f"INSERT INTO {name}.branch_audit (id, v) VALUES (300, 'spark')")


def maintain_with_spark(spark: SparkTables, name: str) -> None:
    catalog, short = name.split(".", 1)
    calls = (
        "rewrite_position_delete_files(table => '{}', options => map('rewrite-all', 'true'))",
        "rewrite_data_files(table => '{}', options => map('rewrite-all', 'true'))",
        "rewrite_manifests('{}')",
        "expire_snapshots(table => '{}', older_than => TIMESTAMP '2100-01-01', retain_last => 1)",
    )
    for call in calls:
        spark.sql(f"CALL {catalog}.system.{call.format(short)}")


def check_files_of(table: EncryptedTable, format_name: str, key_length: int) -> None:
    """Check that all files of the current snapshot are encrypted, each under a key of its own."""
    files = {e.file.file_path: e.file for e in entries_of(table) if e.status != DELETED}
    keys = [file.key for file in files.values()]
    assert {len(key.encryption_key) for key in keys if key} == {key_length}
    assert len({key.encryption_key for key in keys if key}) == len(files)
    assert {file.file_format for file in files.values()} <= {format_name.upper(), "PUFFIN"}


@pytest.mark.parametrize(
    ("format_name", "key_length", "partitioning", "shared"),
    CASES,
    ids=["-".join(case) for case in CASES],
    indirect=["shared"],
)
def test_a_table_is_written_in_turns(
    spark: SparkTables,
    shared: Shared,
    format_name: str,
    key_length: str,
    partitioning: str,
) -> None:
    table = create(
        shared,
        partitioning,
        **{"write.format.default": format_name, "encryption.data-key-length": key_length},
    )
    write(table)
    check_files_of(table, format_name, int(key_length))
    name = shared.shown(table)
    first = check_version(spark, name, table)
    assert first.keys() == {*range(1, 78)} - {6} - {*range(21, 31)}
    check_history(spark, name, table)

    continue_with_spark(spark, name)
    by_spark = (format_name, key_length, partitioning, shared.kind) in MAINTAINED
    if by_spark:
        maintain_with_spark(spark, name)
    table = shared.taken_back(name)
    second = check_version(spark, name, table, rewritten=True)
    assert second.keys() - first.keys() == {100_000, 100_001}
    assert {2, 3, 13, 62} <= first.keys() - second.keys()
    check_kept(first, second)

    table.delete("id = 4 or id = 12 or id = 100001 or v = 'a'")
    table.append(rows(500, 30).append_column("n", pa.nulls(30, pa.int32())))
    with table.update_schema() as update:
        update.update_column("n", LongType())
        update.rename_column("b", "bytes")
    with table.update_spec() as update_spec:
        update_spec.add_field("n", BucketTransform(2), "n_bucket")
    some = {"id": [600, 601, 602], "n": [None, 1, 2]}
    table.append(pa.table(some, pa.schema([ARROW.field("id"), ("n", pa.int64())])))
    assert table.rekey().files
    table.rotate_keys()
    check_files_of(table, format_name, int(key_length))
    if not by_spark:
        tomorrow = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(days=1)
        assert table.expire_snapshots(tomorrow, 2).files.manifest_lists
        assert table.prune_keys()
    name = shared.shown(table)
    third = check_version(spark, name, table, rewritten=True)
    # Nothing comes back that Spark's vectors had.
    assert third.keys() - second.keys() == {*range(500, 530), 600, 601, 602}
    assert {4, 12, 100_001} <= second.keys() - third.keys()
    check_kept(second, third)
    check_history(spark, name, table)

    spark.sql(f"INSERT INTO {name} (id) VALUES (1000)")
    spark.sql(f"DELETE FROM {name} WHERE id = 501")
    table = shared.taken_back(name)
    fourth = check_rows(spark, name, table, rewritten=True)
    check_kept(third, fourth)
    assert fourth.keys() == third.keys() - {501} | {1000}
    assert verify_table(table).ok


@pytest.mark.parametrize("shared", ["hive"], indirect=True)
@pytest.mark.parametrize(
    ("format_name", "partitioning"), [("parquet", "identity"), ("avro", "unpartitioned")]
)
def test_files_are_rewritten_in_turns(
    spark: SparkTables, shared: Shared, format_name: str, partitioning: str
) -> None:
    rewriting = dict.fromkeys(BY_ROW, "copy-on-write") | {"write.format.default": format_name}
    table = create(shared, partitioning, **rewriting)
    table.append(rows(1, 60))
    with table.update_schema() as update:
        update.add_column("n", IntegerType())
    table.append(rows(61, 20).append_column("n", pa.array(range(20), pa.int32())))
    with table.update_spec() as update_spec:
        update_spec.add_field("id", BucketTransform(2), "id_bucket")
    name = shared.shown(table)
    first = check_version(spark, name, table)

    def changed(before: Lineage, *gone: int) -> Lineage:
        after = check_version(spark, shared.shown(table), table, rewritten=True)
        assert before.keys() - after.keys() == set(gone)
        assert not any(e.file.content for e in entries_of(table) if e.status != DELETED)
        return after

    table.delete("id = 5 or id > 78")
    second = changed(first, 5, 79, 80)
    check_kept(first, second)
    table.overwrite(rows(100, 2).append_column("n", pa.nulls(2, pa.int32())), "id = 6")
    table.upsert(rows(8, 1).append_column("n", pa.array([-1], pa.int32())), ["id"])
    third = changed(second, 6)
    check_kept(second, third, 8)
    # Its turn: it goes on with the ids that our files have, and we with those of its files.
    spark.sql(f"DELETE FROM {name} WHERE id % 10 = 3")
    spark.sql(f"UPDATE {name} SET v = 'spark' WHERE id = 9")
    table = shared.taken_back(name)
    fourth = changed(third, *range(3, 80, 10))
    check_kept(third, fourth, 9)
    # An update keeps the id, and changes the number.
    assert fourth[9][0] == third[9][0]
    assert fourth[9][1] > third[9][1]
    table.delete("id = 10 or v = 'spark'")
    check_kept(fourth, changed(fourth, 9, 10))
    check_history(spark, name, table)
    assert verify_table(table).ok


def test_what_properties_say_of_how_and_where(
    spark: SparkTables, kms: KmsClient, servers: dict[str, str], tmp_path: Path
) -> None:
    shared = Shared("hive", spark, kms, tmp_path, servers["hive"])
    table = create(
        shared,
        "identity",
        **{
            "write.metadata.compression-codec": "gzip",
            "write.metadata.path": f"file:{tmp_path}/elsewhere/metadata",
            "write.metadata.previous-versions-max": "2",
            "write.metadata.delete-after-commit.enabled": "true",
            "write.metadata.metrics.default": "counts",
            "write.metadata.metrics.column.id": "full",
            "write.metadata.metrics.column.b": "none",
            "write.manifest.compression-codec": "zstd",
            "write.object-storage.enabled": "true",
            "write.data.path": f"file:{tmp_path}/elsewhere/data",
            "write.summary.partition-limit": "10",
            "commit.manifest-merge.enabled": "false",
        },
    )
    name = "enc." + ".".join(table.name())
    table.append(rows(1, 40))
    table.delete("id > 30")
    assert table.metadata_location.startswith(f"file:{tmp_path}/elsewhere/metadata/")
    assert table.metadata_location.endswith(".gz.metadata.json")
    first = check_version(spark, name, table)
    spark.sql(f"INSERT INTO {name} (id, v) VALUES (1000, 'spark')")
    spark.sql(f"DELETE FROM {name} WHERE id = 20")
    table = shared.taken_back(name)
    second = check_version(spark, name, table)
    check_kept(first, second)
    table.append(rows(41, 5))
    assert len(table.metadata.metadata_log) == 2
    assert len(list(Path(tmp_path, "elsewhere/metadata").glob("*.metadata.json"))) == 3
    check_kept(second, check_version(spark, name, table))
    assert verify_table(table).ok
    shared.close()

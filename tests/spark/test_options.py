"""Options of the data sources: refused if they are not known, and never passed over. The snapshot
that a frame reads, and the partitions that a write replaces."""

from __future__ import annotations

import pickle
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyiceberg.exceptions import NoSuchTableError, ValidationException
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform
from pyiceberg.types import LongType, StringType
from pyspark.sql.datasource import CaseInsensitiveDict

from ags1.iceberg.table import EncryptedTable
from ags1.spark import tables
from ags1.spark.arrow_rows import spark_schema
from ags1.spark.datasource import Ags1DataSource
from ags1.spark.iceberg_source import Ags1IcebergDataSource
from ags1.spark.queries import count

from .test_iceberg_source import iceberg, ids, reading, some_rows, table_of

pytestmark = pytest.mark.spark

__all__ = ["iceberg"]

_ROWS = spark_schema(some_rows(0, 1).schema)
_ROWS["id"].nullable = False
_PARTITIONS = PartitionSpec(
    PartitionField(2, 1000, IdentityTransform(), "region"),
    PartitionField(3, 1001, DayTransform(), "day"),
    PartitionField(1, 1002, BucketTransform(2), "bucket"),
)


def source(kind: Any, options: dict[str, str], **more: str) -> Any:
    """A source as Spark makes it."""
    given = CaseInsensitiveDict()
    for name, value in (options | more).items():
        given[name] = value
    return kind(given)


class Frame:
    """A frame of the table, as Spark makes it, without Spark: the source is pickled with what it
    found when the frame was made."""

    def __init__(self, options: dict[str, str], **more: str) -> None:
        made = source(Ags1IcebergDataSource, options, path="db.t", **more)
        self.schema = made.schema()
        self._pickled = pickle.dumps(made)

    def ids(self) -> list[int]:
        """Run the frame."""
        reader = pickle.loads(self._pickled).reader(self.schema)
        parts, reader = pickle.loads(pickle.dumps((reader.partitions(), reader)))
        return sorted(n for part in parts for b in reader.read(part) for n in b["id"].to_pylist())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"fliter": "id = 1"}, "the option 'fliter' is not known: did you mean 'filter'"),
        ({"SnapshotID": "1"}, "'snapshotid' is not known: did you mean 'snapshot-id'"),
        ({"as-of-timestmap": "1"}, "did you mean 'as-of-timestamp'"),
        ({"partsizes": "1"}, "did you mean 'partSize'"),
        ({"mergeSchema": "true"}, "the option 'mergeschema' is not known: leave it out$"),
        ({"inner": "csv"}, "'inner' is one of the source 'ags1'. Leave it out"),
        ({"iner": "csv"}, "'iner' is not known: 'inner' is one of the source 'ags1'"),
        ({"overwrite-mode": "dynamic"}, "'overwrite-mode' is only for writing"),
    ],
)
def test_an_unknown_option_of_a_table_is_refused(given: dict[str, str], message: str) -> None:
    for make in (lambda made: made.schema(), lambda made: made.reader(_ROWS)):
        with pytest.raises(ValueError, match=message):
            make(source(Ags1IcebergDataSource, {"path": "db.t"} | given))


@pytest.mark.parametrize(
    "name", ["fliter", "overwrite-fliter", "filter", "snapshot-id", "partSize"]
)
def test_a_write_to_a_table_takes_options_of_writes_alone(name: str) -> None:
    with pytest.raises(ValueError, match=f"the option '{name.lower()}' is (not known|only for)"):
        source(Ags1IcebergDataSource, {"path": "db.t", name: "1"}).writer(_ROWS, False)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"colums": "a"}, "'colums' is not known: did you mean 'columns'"),
        (
            {"inner": "parquet", "header": "true"},
            "'header' is only for reading csv and writing csv",
        ),
        ({"compression": "zstd"}, "'compression' is only for writing parquet and writing avro"),
    ],
)
def test_an_unknown_option_of_files_is_refused(given: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        source(Ags1DataSource, {"path": "/data"} | given).reader(_ROWS)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"keyrnig": "/x"}, "the option 'keyrnig' is not known: did you mean 'keyring'"),
        ({"Catalogue": "x"}, "the option 'catalogue' is not known: did you mean 'catalog'"),
        ({"columns": "id"}, "the option 'columns' is only for reading: leave"),
        ({"branch": "b"}, "the option 'branch' is only for reading and writing: leave"),
        ({"case-sensitive": "true"}, "the option 'case-sensitive' is only for reading"),
        ({"path": "db.other"}, "the option 'path' is an argument too: leave one out"),
    ],
)
def test_an_unknown_option_of_a_job_on_a_table_is_refused(
    catalog: Any, options: dict[str, str], given: dict[str, str], message: str
) -> None:
    table = table_of(catalog)
    wrong = options | given

    for job in (
        lambda: tables.verify_table(None, "db.t", wrong),
        lambda: tables.rekey_table(None, "db.t", wrong),
        lambda: tables.migrate_table(None, "db.t", "default", wrong),
    ):
        with pytest.raises(ValueError, match=message):
            job()
    if "path" not in given:
        with pytest.raises(ValueError, match=message):
            tables.verify_table(None, table, wrong)


def test_an_unknown_option_of_a_write_of_files_is_refused() -> None:
    made = source(Ags1DataSource, {"path": "/data", "inner": "csv", "quote": "'"})

    with pytest.raises(ValueError, match="'quote' is only for reading"):
        made.writer(_ROWS, False)


def test_a_stream_is_refused_with_what_to_use_instead() -> None:
    made = source(Ags1DataSource, {"path": "/data"})

    with pytest.raises(NotImplementedError, match="no streams: for new files run a bulk job again"):
        made.streamReader(_ROWS).initialOffset()
    with pytest.raises(NotImplementedError, match="Iceberg's own writeStream"):
        made.streamWriter(_ROWS, False)


def test_errors_of_planning_have_frames_for_debugging_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = source(Ags1DataSource, {"path": str(tmp_path / "absent")})

    def frames() -> int:
        with pytest.raises(FileNotFoundError, match="absent") as caught:
            made.reader(_ROWS).partitions()
        return len(caught.traceback)

    assert frames() == 2  # this file's and one of ours
    monkeypatch.setenv("AGS1_DEBUG", "1")
    assert frames() > 4


@pytest.mark.parametrize("kind", [Ags1DataSource, Ags1IcebergDataSource])
@pytest.mark.parametrize(
    "of_spark", [{}, {"owner": "me", "provider": "ags1", "path": "db.t", "option.path": "db.t"}]
)
def test_a_table_of_spark_s_catalog_is_refused(kind: Any, of_spark: dict[str, str]) -> None:
    made = source(kind, of_spark)

    for make in (made.schema, lambda: made.reader(_ROWS), lambda: made.writer(_ROWS, False)):
        with pytest.raises(ValueError, match="use CREATE TEMPORARY VIEW"):
            make()


def test_a_write_to_a_table_that_is_not_there_says_how_to_make_it(
    catalog: Any, options: dict[str, str]
) -> None:
    with pytest.raises(NoSuchTableError, match=r"db\.t.*: create it with create_table"):
        source(Ags1IcebergDataSource, options, path="db.t").writer(_ROWS, False)


def test_a_wrong_filter_is_one_line(catalog: Any, options: dict[str, str]) -> None:
    table_of(catalog)

    with pytest.raises(
        ValueError, match=r"'filter' \('id = 3 limit 5'\) is wrong.*character 8 on"
    ) as caught:
        Frame(options, filter="id = 3 limit 5")
    assert len(str(caught.value)) < 200
    with pytest.raises(ValueError, match=r"'filter' \('id = true'\) is wrong"):
        Frame(options, filter="id = true")
    made = source(Ags1IcebergDataSource, options, path="db.t", **{"overwrite-filter": "id ="})
    with pytest.raises(ValueError, match=r"'overwrite-filter' \('id ='\) is wrong.*character 1 on"):
        made.writer(_ROWS, True)


def pause() -> int:
    """Return a time in ms between two commits."""
    time.sleep(0.003)
    now = time.time_ns() // 1_000_000
    time.sleep(0.003)
    return now


def test_a_frame_travels_in_time_by_each_name(catalog: Any, options: dict[str, str]) -> None:
    table = table_of(catalog)
    table.append(some_rows(0, 10))
    first = str(table.current_snapshot().snapshot_id)
    early = pause()
    table.append(some_rows(10, 10))
    table.manage_snapshots().create_tag(int(first), "early").commit()
    table.manage_snapshots().create_branch(int(first), "side").commit()
    table.append(some_rows(90, 1), branch="side")
    table.delete("id = 3")
    table.append(some_rows(20, 10))

    for name, value in [
        ("as-of-timestamp", str(early)),
        ("branch", "early"),
        ("snapshot-id", first),
    ]:
        assert Frame(options, **{name: value}).ids() == list(range(10)), name
    assert Frame(options, branch="side").ids() == [*range(10), 90]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"as-of-timestamp": "1000"}, "no snapshot of that time or before: correct the option"),
        ({"as-of-timestamp": "yesterday"}, "has to be a number, not 'yesterday'"),
        ({"snapshot-id": "5"}, "no snapshot of that ID"),
        ({"branch": "late"}, "no branch or tag of that name: .*'late'"),
        ({"branch": "a", "snapshot-id": "1"}, "'snapshot-id' and 'branch' cannot be used together"),
        ({"versionAsOf": "1"}, "'versionasof' is not known"),
    ],
)
def test_a_version_that_does_not_exist_is_refused(
    catalog: Any, options: dict[str, str], given: dict[str, str], message: str
) -> None:
    table_of(catalog).append(some_rows(0, 1))

    with pytest.raises(ValueError, match=message):
        Frame(options, **given)


def test_a_frame_keeps_its_snapshot_and_its_columns(catalog: Any, options: dict[str, str]) -> None:
    table = table_of(catalog)
    empty = Frame(options)
    table.append(some_rows(0, 10))
    table.manage_snapshots().create_branch(table.current_snapshot().snapshot_id, "side").commit()
    with table.update_schema() as update:
        update.add_column("extra", StringType())
    made, filtered = Frame(options), Frame(options, filter="region = 'r1' or extra = ''")
    side = Frame(options, branch="side")

    table.append(some_rows(10, 10))
    table.append(some_rows(20, 10), branch="side")
    with table.update_schema() as update:
        update.rename_column("region", "area")

    assert made.schema.names == ["id", "region", "at", "extra"]
    assert made.ids() == side.ids() == list(range(10))
    assert filtered.ids() == [1, 4, 7]
    assert empty.ids() == []
    newer = Frame(options)
    assert newer.schema.names == ["id", "area", "at", "extra"]
    assert newer.ids() == list(range(20))


def test_a_filter_names_the_columns_of_its_snapshot(catalog: Any, options: dict[str, str]) -> None:
    table = table_of(catalog)
    table.append(some_rows(0, 10))
    snapshot_id = table.current_snapshot().snapshot_id
    with table.update_schema() as update:
        update.rename_column("region", "area")
    with table.update_schema() as update:
        update.add_column("region", StringType())

    def old(where: str, **more: str) -> list[int]:
        return Frame(options, filter=where, **{"snapshot-id": str(snapshot_id)}, **more).ids()

    assert old("Region = 'r1'") == old("region = 'r1'", columns="id") == [1, 4, 7]
    assert count(None, "db.t", options, snapshot=snapshot_id, where="region = 'r1'") == 3
    newer = "area = 'r1' and region is null"
    assert Frame(options, filter=newer).ids() == [1, 4, 7]
    # A branch has the table's columns, as in Java's SnapshotUtil.schemaFor; a tag has its own.
    snapshots = table.manage_snapshots().create_branch(snapshot_id, "side")
    snapshots.create_tag(snapshot_id, "old").commit()
    for name in ("side", "main"):
        branch = Frame(options, filter=newer, branch=name)
        assert (branch.schema.names, branch.ids()) == (Frame(options).schema.names, [1, 4, 7])
    tag = Frame(options, branch="old", filter="region = 'r1'")
    assert (tag.schema.names, tag.ids()) == (["id", "region", "at"], [1, 4, 7])
    with pytest.raises(ValueError, match="area"):
        old("area = 'r1'")
    with table.update_schema() as update:
        update.delete_column("area")
    assert old("region = 'r1'") == [1, 4, 7]


def test_a_frame_whose_snapshot_has_expired_says_so(catalog: Any, options: dict[str, str]) -> None:
    table = table_of(catalog)
    table.append(some_rows(0, 10))
    made = Frame(options)
    old = table.current_snapshot().snapshot_id
    table.append(some_rows(10, 10))
    table.maintenance.expire_snapshots().by_id(old).commit()

    with pytest.raises(ValueError, match=f"{old}, .*has expired: load the table again"):
        made.ids()


def overwrite(options: dict[str, str], *tasks: pa.Table, **more: str) -> None:
    """Overwrite the table as Spark does, without Spark."""
    made = source(Ags1IcebergDataSource, options, path="db.t", **more).writer(_ROWS, True)
    made, messages = pickle.loads(
        pickle.dumps((made, [made.write(iter(rows.to_batches())) for rows in tasks]))
    )
    made.commit(messages)


def rows_of(table: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.refresh().scan().to_arrow().to_pylist()
    return rows


def partition(row: dict[str, Any]) -> tuple[Any, ...]:
    """The partition of a row by ``_PARTITIONS``, as PyIceberg computes it."""
    return row["region"], row["at"].date(), BucketTransform(2).transform(LongType())(row["id"])


def test_the_partition_of_a_row_is_that_of_its_file(catalog: Any, options: dict[str, str]) -> None:
    table = table_of(catalog, spec=_PARTITIONS)
    table.append(some_rows(0, 50))
    with table.update_spec() as update:
        update.remove_field("day")
    table.append(some_rows(50, 50))
    made = source(Ags1IcebergDataSource, options, path="db.t", columns="id,_PARTITION")

    reader = pickle.loads(pickle.dumps(made.reader(made.schema())))
    batches = [b for part in reader.partitions() for b in reader.read(part)]

    assert made.schema()["_partition"].dataType.simpleString() == (
        "struct<region:string,day:date,bucket:int>"
    )
    found = {row["id"]: tuple(row["_partition"].values()) for b in batches for row in b.to_pylist()}
    expected = {row["id"]: partition(row) for row in rows_of(table)}
    without_day = {n: (p[0], None, p[2]) for n, p in expected.items() if n >= 50}
    assert found == expected | without_day
    assert len(found) == 100


@pytest.mark.parametrize("option", ["overwrite-mode", "partitionOverwriteMode"])
def test_a_dynamic_overwrite_replaces_the_partitions_of_its_rows_alone(
    catalog: Any, options: dict[str, str], option: str
) -> None:
    table = table_of(catalog, spec=_PARTITIONS)
    table.append(pa.concat_tables([some_rows(0, 100), some_rows(86_400, 50)]))
    deleted = (3, 4, 22, 33, 86_401)  # vectors in replaced partitions and in others
    old = [row for row in rows_of(table) if row["id"] in deleted]
    table.delete(f"id in {deleted}")
    before = rows_of(table)
    tasks = some_rows(11, 1), some_rows(7, 1)  # the region of row 11 is null

    overwrite(options, *tasks, **{option: "Dynamic"})

    new = [row for rows in tasks for row in rows.to_pylist()]
    replaced = set(map(partition, new))
    kept = [row["id"] for row in before if partition(row) not in replaced]
    assert 50 < len(kept) < 140
    assert sorted(row["id"] for row in rows_of(table)) == sorted([*kept, 7, 11])
    summary = table.current_snapshot().summary
    assert summary.operation.value == "overwrite"
    assert summary["replace-partitions"] == "true"
    assert summary["removed-dvs"] == str(len(set(map(partition, old)) & replaced)) != "0"

    snapshots = len(table.snapshots())
    overwrite(options, some_rows(0, 0), **{option: "dynamic"})
    assert len(table.refresh().snapshots()) == snapshots


def test_a_dynamic_overwrite_keeps_files_of_another_partition_spec(
    catalog: Any, options: dict[str, str]
) -> None:
    table = table_of(catalog, spec=PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "r")))
    table.append(some_rows(0, 10))
    with table.update_spec() as update:
        update.add_field("id", BucketTransform(2))
    table.append(some_rows(10, 10))

    overwrite(options, some_rows(16, 1), **{"overwrite-mode": "dynamic"})

    (new,) = some_rows(16, 1).to_pylist()
    kept = [r["id"] for r in some_rows(10, 10).to_pylist() if partition(r) != partition(new)]
    assert 16 not in kept
    assert len(kept) < 9
    assert sorted(row["id"] for row in rows_of(table)) == sorted([*range(10), 16, *kept])
    with table.update_spec() as update:
        update.remove_field("r")
        update.remove_field("id_bucket_2")
    overwrite(options, some_rows(50, 2), **{"overwrite-mode": "dynamic"})
    assert sorted(row["id"] for row in rows_of(table)) == [50, 51]


@pytest.mark.parametrize("isolation", ["serializable", "snapshot"])
@pytest.mark.parametrize("other", ["appends", "deletes", "appends elsewhere"])
def test_a_dynamic_overwrite_loses_no_other_writer_s_rows(
    catalog: Any,
    options: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    isolation: str,
    other: str,
) -> None:
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "region"))
    table = table_of(catalog, spec=spec, **{"write.update.isolation-level": isolation})
    table.append(some_rows(0, 10))
    commit_updates = EncryptedTable.commit_updates

    def commit_after_another(self: Any, *args: Any) -> Any:
        monkeypatch.setattr(EncryptedTable, "commit_updates", commit_updates)
        if other == "deletes":
            table.delete("id = 4")
        else:
            table.append(some_rows(13 if other == "appends" else 14, 1))
        return commit_updates(self, *args)

    monkeypatch.setattr(EncryptedTable, "commit_updates", commit_after_another)
    made = {"overwrite-mode": "dynamic"}
    if other == "deletes" or (other, isolation) == ("appends", "serializable"):
        with pytest.raises(ValidationException, match="another writer has changed a partition"):
            overwrite(options, some_rows(16, 1), **made)
        expected = [n for n in range(10) if n != 4] if other == "deletes" else [*range(10), 13]
    else:
        overwrite(options, some_rows(16, 1), **made)
        added = 13 if other == "appends" else 14
        # The region of rows 1, 4, 7, 13 and 16 is r1; that of row 14 is r2.
        expected = [0, 2, 3, 5, 6, 8, 9, added, 16]
    assert sorted(row["id"] for row in rows_of(table)) == expected


@pytest.mark.parametrize(
    ("given", "overwrites", "message"),
    [
        ({"overwrite-mode": "dynamic"}, False, "only for mode..overwrite"),
        ({"overwrite-filter": "id = 1"}, False, "only for mode..overwrite"),
        ({"overwrite-mode": "dynamc"}, True, "'static' or 'dynamic', not 'dynamc'"),
        ({"overwrite-mode": "dynamic", "overwrite-filter": "id = 1"}, True, "contradict"),
        ({"overwrite-mode": "dynamic", "partitionOverwriteMode": "static"}, True, "contradict"),
    ],
)
def test_options_of_overwrites_that_cannot_be_meant_are_refused(
    given: dict[str, str], overwrites: bool, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        source(Ags1IcebergDataSource, {"path": "db.t"} | given).writer(_ROWS, overwrites)


def test_the_properties_of_a_snapshot(catalog: Any, options: dict[str, str]) -> None:
    table = table_of(catalog)

    overwrite(options, some_rows(0, 3), **{"snapshot-property.job": "nightly"})

    assert table.refresh().current_snapshot().summary["job"] == "nightly"


def spark_rows(session: Any, first: int, count: int) -> Any:
    return session.range(first, first + count, 1, 2).selectExpr(
        "id", "concat('r', id % 3) as region", "timestamp_seconds(id) as at"
    )


def test_spark_overwrites_partitions_as_its_session_says(
    iceberg: Any, catalog: Any, options: dict[str, str]
) -> None:
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "region"))
    table = table_of(catalog, spec=spec)
    table.append(some_rows(12, 9))

    def write(first: int, count: int, **more: str) -> list[int]:
        writer = spark_rows(iceberg, first, count).write.format("ags1-iceberg")
        writer.options(**options, **more).mode("overwrite").save("db.t")
        return sorted(row["id"] for row in rows_of(table))

    assert write(40, 1, partitionOverwriteMode="dynamic") == [12, 14, 15, 17, 18, 20, 40]
    iceberg.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    try:
        assert write(42, 1) == [14, 17, 20, 40, 42]
        assert write(0, 0) == [14, 17, 20, 40, 42]
        assert write(50, 1, **{"overwrite-filter": "id < 20"}) == [20, 40, 42, 50]
        assert write(60, 1, **{"overwrite-mode": "static"}) == [60]
    finally:
        iceberg.conf.unset("spark.sql.sources.partitionOverwriteMode")
    assert write(70, 2) == [70, 71]
    assert write(0, 0) == []


def test_spark_shows_what_the_sources_refuse(
    iceberg: Any, catalog: Any, options: dict[str, str]
) -> None:
    table = table_of(catalog)
    table.append(some_rows(0, 5))
    table.manage_snapshots().create_tag(table.current_snapshot().snapshot_id, "a0").commit()
    with pytest.raises(Exception, match="'fliter' is not known: did you mean 'filter'") as caught:
        reading(iceberg, options, fliter="id = 1")
    assert str(caught.value).count("  File ") == 1  # of the place where our frames are left out
    writer = spark_rows(iceberg, 0, 1).write.format("ags1-iceberg").options(**options)
    for mode in ("ignore", "errorifexists"):
        with pytest.raises(Exception, match='Please use either the "Append" or "Overwrite" mode'):
            writer.mode(mode).save("db.t")
    given = ", ".join(f"`{name}` '{value}'" for name, value in options.items())
    using = f"USING `ags1-iceberg` OPTIONS (path 'db.t', {given})"
    with pytest.raises(Exception, match="use CREATE TEMPORARY VIEW"):
        iceberg.sql(f"CREATE TABLE entry {using}")
    with pytest.raises(Exception, match="use CREATE TEMPORARY VIEW"):
        writer.mode("append").saveAsTable("entry")
    assert not iceberg.catalog.tableExists("entry")


def test_a_view_has_the_rows_of_the_time_when_it_was_made(
    iceberg: Any, catalog: Any, options: dict[str, str]
) -> None:
    table_of(catalog).append(some_rows(0, 5))
    given = ", ".join(f"`{name}` '{value}'" for name, value in options.items())
    using = f"USING `ags1-iceberg` OPTIONS (path 'db.t', {given})"
    iceberg.sql(f"CREATE TEMPORARY VIEW rows {using}")
    try:
        made = reading(iceberg, options)
        new = "SELECT 9L AS id, 'r' AS region, timestamp_seconds(9) AS at"
        iceberg.sql(f"INSERT INTO rows {new}")
        assert ids(iceberg.table("rows")) == ids(made) == [0, 1, 2, 3, 4]
        assert ids(reading(iceberg, options)) == [0, 1, 2, 3, 4, 9]
        iceberg.sql(f"CREATE OR REPLACE TEMPORARY VIEW rows {using}")
        assert ids(iceberg.table("rows")) == [0, 1, 2, 3, 4, 9]
    finally:
        iceberg.catalog.dropTempView("rows")
